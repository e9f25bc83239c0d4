"""Results and recordings in Python: ``profpipe.read`` and ``profpipe.compare``. The commands read by them too."""

from __future__ import annotations

import html
import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Union

from profpipe.errors import ConfigError, UnreadableFile

if TYPE_CHECKING:
    import pandas as pd

    from profpipe.analysis.compare_recordings import RecordingComparison
    from profpipe.analysis.compare_runs import RunComparison
    from profpipe.commands.rendering import RunReport
    from profpipe.report.screen import Screen
    from profpipe.results.manifest import Manifest
    from profpipe.results.noise import Model
    from profpipe.results.schema import Tables

StrPath = Union[str, "os.PathLike[str]"]

#: What files of profilers are called. Whether one can be read shows when it is opened.
SUFFIXES: Final = (".sqlite", ".nsys-rep", ".qdrep", ".ncu-rep", ".json", ".json.gz", ".csv", ".csv.gz", ".db",
                   ".sqlite.gz")  # fmt: skip
#: Columns of a screen in a notebook.
_WIDTH: Final = 110


class _Shown:
    """What a notebook shows as its first screen."""

    _screen: Screen

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"

    def __str__(self) -> str:
        from profpipe.report import screen

        return screen.lay_out(self._screen, _WIDTH, "utf-8")


class Run(_Shown):
    """A run, the results of ``profpipe ingest``, or recordings of profilers. ``path`` is the folder or the first file.

    Attributes of the tables are pandas frames with the columns of docs/tables.md, times in ns and sizes in bytes:
    ``cases``, ``kernels``, ``ranges``, ``metrics``, ``steps``, ``verdicts``, ``timeline`` and ``modules``. A value
    that a tool did not record is missing.
    """

    cases: pd.DataFrame
    kernels: pd.DataFrame
    ranges: pd.DataFrame
    metrics: pd.DataFrame
    steps: pd.DataFrame
    verdicts: pd.DataFrame
    timeline: pd.DataFrame
    modules: pd.DataFrame

    def __init__(self, path: Path, tables: Tables, manifest: Manifest) -> None:
        from profpipe.results import schema

        self.path, self.tables, self.manifest = path, tables, manifest
        for table in schema.ALL:
            setattr(self, table.name, getattr(tables, table.name))

    @cached_property
    def report(self) -> RunReport:
        """The report, which is made at the first use and not written."""
        from profpipe.commands import rendering

        return rendering.read_report(self.path, self.tables, self.manifest)

    @cached_property
    def answer(self) -> str:
        """The first sentences of SUMMARY.md, a line each."""
        _, *_, sentences = next((part for part in self._screen if part[0] in ("text", "items")), ("text", ""))
        return sentences if isinstance(sentences, str) else "\n".join(sentences)

    @cached_property
    def results(self) -> dict[str, Any]:
        """The content of results.json (docs/tables.md); of an `ab` run the document of its verdicts."""
        from profpipe.commands import rendering

        return rendering.as_json(self.report)

    @property
    def _screen(self) -> Screen:  # type: ignore[override]
        return self.report.first_screen

    def __repr__(self) -> str:
        return f"profpipe.read({str(self.path)!r})"


class Differences(_Shown):
    """What differs between two runs or recordings: ``answer`` and ``results``, the text and the JSON of `compare`."""

    def __init__(self, comparison: RunComparison | RecordingComparison, sides: Sequence[Run]) -> None:
        self.comparison, self.sides = comparison, sides

    @cached_property
    def answer(self) -> str:
        from profpipe.report import comparison

        return comparison.text(self.comparison)

    @cached_property
    def results(self) -> dict[str, Any]:
        from profpipe.analysis.compare_runs import RunComparison
        from profpipe.report import comparison

        names = [str(side.path) for side in self.sides]
        if isinstance(self.comparison, RunComparison):
            return comparison.document(self.comparison, names, self.sides[1].manifest, None, 0)
        return comparison.recordings_document(self.comparison, names)

    def __str__(self) -> str:
        return self.answer


def read(path: StrPath, *more: StrPath, step_range: str = "", out: StrPath = "out") -> Run:
    """Return a run, the results of `ingest`, or one or several recordings of profilers.

    ``path`` is a folder of results, a name below the results folder ``out`` such as ``latest``, a file of a profiler,
    or a folder of such files, such as those of the ranks of a job. ``step_range`` is a regular expression for the
    ranges of a recording that are steps.

    Raises ConfigError for a path without results, and UnreadableFile for a file that no parser can read. Of a folder
    of files those are left out that cannot be read; ``manifest.refused`` names them.
    """
    from profpipe.results import folders, store

    places = [Path(path), *map(Path, more)]
    if not more:
        try:
            folder = folders.find(str(path), Path(out))
        except ConfigError:
            if not places[0].exists():
                raise
        else:
            return Run(folder, *store.load(folder))
    return _read_recordings(places, step_range)


def compare(a: Run | StrPath, b: Run | StrPath, *, out: StrPath = "out") -> Differences:
    """Return what differs between A and B: the times of the cases of two runs, or the steps and kernels of recordings.

    Raises ConfigError where nothing in A has a partner in B.
    """
    from profpipe.analysis.compare_runs import RunComparison
    from profpipe.results import noise

    before, after = (side if isinstance(side, Run) else read(side, out=out) for side in (a, b))
    is_alike = (before.manifest.name, before.manifest.device) == (after.manifest.name, after.manifest.device)
    compared = find_differences(before, after, noise.read(Path(out), after.manifest) if is_alike else {})
    if not isinstance(compared, RunComparison):
        check_partners(compared)
    return Differences(compared, (before, after))


def find_differences(a: Run, b: Run, noise_model: Model) -> RunComparison | RecordingComparison:
    """Return the differences of the times of two runs; where they have none in common, those of their recordings.

    Raises ConfigError where both are one run or recording: nothing was measured twice.
    """
    if a.path.resolve() == b.path.resolve():
        raise ConfigError("profpipe compare", f"A and B are the same run: {a.path.resolve().name}.", "Name two runs.")
    from profpipe.analysis.compare_recordings import compare_recordings
    from profpipe.analysis.compare_runs import compare_runs

    times = compare_runs(a.tables, b.tables, a.manifest, b.manifest, noise_model)
    if len(times.changes) == len(times.absent):
        recorded = compare_recordings((a.tables, a.manifest), (b.tables, b.manifest))
        if not (a.manifest.is_run and b.manifest.is_run) or (recorded.changes and not times.absent):
            return recorded
    return times


def check_partners(recorded: RecordingComparison) -> None:
    """Raise ConfigError where no recording of A has a partner in B."""
    if recorded.changes or recorded.memory:
        return
    held = (f"{side} holds {', '.join(names) or 'no GPU kernels with times'}" for side, names in recorded.alone.items())
    remedy = "Name two files, or give both recordings the same name."
    if not all(recorded.alone.values()):
        remedy = "Record the kernels with nsys, torch or rocprof."
    raise ConfigError("profpipe compare", f"no recording has a partner: {'; '.join(held)}.", remedy)


def _read_recordings(paths: Sequence[Path], step_range: str) -> Run:
    """Return the recordings in files and folders. A folder may itself be one: an export of nsys as Parquet."""
    from profpipe.commands import ingest

    files = [file for path in paths for file in _files_of(path)]
    tables, manifest = ingest.read_recordings(files, step_range)
    for refused in manifest.refused:
        # A file that the caller named must be read.
        if not manifest.files or Path(refused.source) in paths:
            raise UnreadableFile(Path(refused.source), refused.what, refused.remedy)
    return Run(paths[0], tables, manifest)


def _files_of(path: Path) -> list[Path]:
    if not path.is_dir() or any(path.glob("*.parquet")):
        return [path]
    if files := sorted(file for file in path.iterdir() if file.name.endswith(SUFFIXES)):
        return files
    what = "holds no results of profpipe and no file of a profiler."
    raise ConfigError(str(path), what, "Name a run's folder, a file, or a folder with recordings.")
