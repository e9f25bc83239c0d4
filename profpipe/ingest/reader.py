"""A file -> its parser -> the tables. Which parser reads a file is decided by its content.

Tables are trusted only where their rows agree with the sums of the file.
"""

from __future__ import annotations

import gc
import inspect
import math
import os
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas as pd

from profpipe import plugins
from profpipe.errors import ConfigError, UnreadableFile
from profpipe.ingest import foreign_files, kernel_classes, launch_tables, reader
from profpipe.ingest.recording import Recording
from profpipe.ingest.steps import figures
from profpipe.results import atomic, budget, schema
from profpipe.results.schema import CAPTURE_WAIT, Tables

_LFS = b"version https://git-lfs.github.com/spec/"
#: The first bytes of compressed files, and what unpacks them.
_COMPRESSED = {b"\x1f\x8b": "gunzip", b"PK\x03\x04": "unzip", b"\xfd7zXZ": "unxz", b"(\xb5/\xfd": "unzstd"}

#: The names that a parser module defines.
_PARTS = ("FORMATS", "sniff", "parse")

#: Two sums of the same times may differ by the order of their additions.
_ROUNDING = {"rel_tol": 1e-9, "abs_tol": 1.0}


def parsers(pipeline_dir: Path | None = None) -> list[ModuleType]:
    """Load all parsers; those in ``pipeline_dir/parsers`` replace the built-in ones of the same name.

    Raises ConfigError for a user's file that cannot be loaded or is no parser.
    """
    return [_loaded(path) for path in plugins.files("parsers", "*.py", pipeline_dir)]


def _loaded(path: Path) -> ModuleType:
    try:
        parser = plugins.load_module(path)
    except Exception as error:  # a user's file may raise anything
        raise ConfigError(str(path), f"cannot be loaded: {_place(error, path)}.", "Fix it, or move it away.") from error
    if missing := [part for part in _PARTS if not hasattr(parser, part)]:
        remedy = "A file that is no parser begins with an underscore, or lies elsewhere."
        raise ConfigError(str(path), f"is no parser: it has no {missing[0]}.", remedy)
    return parser


def name_of(parser: ModuleType) -> str:
    return Path(str(parser.__file__)).stem


def choose(path: Path, parsers: Sequence[ModuleType]) -> ModuleType:
    """Return the parser that knows the content of ``path``. Raises UnreadableFile where none does."""
    _check_content(path)
    able = [parser for parser in parsers if path.is_file() or getattr(parser, "READS_FOLDERS", False)]
    with within_budget(path):
        for parser in able:
            with _blame(parser, path):
                if parser.sniff(path):
                    return parser
    if path.is_dir():
        raise UnreadableFile(path, "is a folder, and not one that a profiler wrote", "Name the files in it.")
    foreign_files.refuse(path)
    with path.open("rb") as stream:
        head = stream.read(8)
    if unpack := next((tool for magic, tool in _COMPRESSED.items() if head.startswith(magic)), None):
        remedy = f"profpipe reads CSV, JSON and SQLite compressed by gzip. Unpack this: {unpack} {path.name}"
        raise UnreadableFile(path, "is compressed", remedy)
    raise UnreadableFile(path, "is in no format that profpipe reads", "`profpipe ingest --help` names the formats.")


def _check_content(path: Path) -> None:
    if not path.exists():
        raise UnreadableFile(path, "there is no such file", "Check the path.")
    if path.is_dir():
        return
    if not path.is_file():
        raise UnreadableFile(path, "is neither a file nor a folder", "Name the file that a profiler wrote.")
    try:
        with atomic.open_regular(path) as stream:
            # A file of /proc has no size, and to read it may wait for ever.
            head = stream.read(len(_LFS)) if os.fstat(stream.fileno()).st_size else b""
    except OSError as error:
        raise UnreadableFile(
            path, f"cannot be read: {error.strerror or error}", "Make it readable, or copy it."
        ) from error
    if not head:
        raise UnreadableFile(path, "is empty", "The tool that should have written it failed: read its log.")
    if head == _LFS:
        raise UnreadableFile(path, "is a Git LFS pointer, not the file itself", "Fetch the file: git lfs pull.")


def parse(parser: ModuleType, path: Path, step_range: str | None = "") -> Tables:
    """Parse the file. Raises UnreadableFile where the rows contradict the sums of the file.

    ``step_range``, a regular expression for ranges that are steps, is for parsers that find steps. With None launches
    that recur are no steps.
    """
    with _blame(parser, path), _pause_collector():
        finds_steps = step_range != "" and "step_range" in inspect.signature(parser.parse).parameters
        parsed: Tables = parser.parse(path, step_range=step_range) if finds_steps else parser.parse(path)
        wrong = _contradiction(parsed)
    if wrong:
        raise _wrong(parser, path, f"contradicts itself: {wrong}")
    return parsed


@contextmanager
def _pause_collector() -> Iterator[None]:
    """Keep the garbage collector from visiting the records of a JSON file again and again: they have no cycles."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def launches(parser: ModuleType, path: Path) -> pd.DataFrame:
    """Return the single launches in the file (``launch_tables.COLUMNS``), none where the parser has no ``launches``."""
    if not hasattr(parser, "launches"):
        return launch_tables.no_launches()
    with _blame(parser, path):
        frame: pd.DataFrame = parser.launches(path)
        wrong = [name for name in launch_tables.COLUMNS if name not in frame.columns]
    if wrong:
        raise _wrong(parser, path, f"returns launches without {wrong[0]}")
    return frame


def recording(parser: ModuleType, path: Path) -> Recording:
    """Return the single events in the file, for a parser that has ``recording``."""
    with _blame(parser, path):
        events: Recording = parser.recording(path)
    return events


def _contradiction(parsed: Tables) -> str:
    """Return where the rows of device kernels differ from the sums of the origin, empty where they agree.

    The rows come from joins and groups, the sums straight from the file: a row that a join lost or doubled shows.
    """
    device = parsed.kernels[parsed.kernels["kind"] == "kernel"]
    origin, times = parsed.origin, device["total_ns"].astype("Float64")
    if (calls := int(device["calls"].sum())) != origin.launches:
        return f"its rows hold {calls} launches, the file {origin.launches}"
    if origin.total_ns is None:
        return ""
    sums = [("in all", times.sum(), origin.total_ns)]
    if origin.attributed_ns is not None and origin.unattributed_ns is not None:
        inside = times[device["case"] != ""].sum()
        sums.append(("inside cases", inside, origin.attributed_ns))
        sums.append(("outside every case", times.sum() - inside, origin.unattributed_ns))
    for where, rows_ns, file_ns in sums:
        if not math.isclose(rows_ns, file_ns, **_ROUNDING):
            return f"its rows hold {rows_ns:.0f} ns {where}, the file {file_ns:.0f} ns"
    return ""


@contextmanager
def within_budget(path: Path, times: float = 1) -> Iterator[None]:
    """Raise UnreadableFile where the body takes more than ``times`` the budget of a file of this size."""
    try:
        with budget.limit(path, times):
            yield
    except budget.TooLarge as error:
        raise UnreadableFile(path, f"is more than profpipe reads: {error}", budget.REMEDY) from error


@contextmanager
def _blame(parser: ModuleType, path: Path) -> Iterator[None]:
    """Turn any error of a parser into an UnreadableFile: the other files are still read."""
    try:
        with within_budget(path):
            yield
    except (UnreadableFile, ConfigError):
        raise
    except Exception as error:
        raise _wrong(parser, path, f"fails on it: {_place(error, Path(str(parser.__file__)))}") from error


def _wrong(parser: ModuleType, path: Path, what: str) -> UnreadableFile:
    name = Path(str(parser.__file__)).name
    return UnreadableFile(
        path, f"cannot be trusted: the parser {name} {what}", f"Fix {name}, or report this with the file."
    )


def _place(error: BaseException, file: Path) -> str:
    """Return ``KeyError: 'x' (line 12)``: the error and the last line of ``file`` in its traceback."""
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == file]
    return f"{type(error).__name__}: {error}" + (f" (line {lines[-1]})" if lines else "")


@dataclass(frozen=True)
class InputFile:
    """A file to read and what the caller knows about it; ``name`` is how the tables and messages call it.

    ``case`` is set where the whole file belongs to one case: that of a command, which has no case ranges.
    ``set_aside`` are cases of which the file holds an attempt that was cut off, and another file the whole.
    ``step_range`` is the user's regular expression for the ranges that are steps; None for a span of time, in which
    launches that recur are no steps.
    """

    path: Path
    name: str
    run: str = ""
    workload: str = ""
    profiler: str = ""
    case: str = ""
    set_aside: frozenset[str] = frozenset()
    step_range: str | None = ""


@dataclass(frozen=True)
class Read:
    """The tables of a file."""

    source: InputFile
    parser: str
    tables: Tables


@dataclass(frozen=True)
class Refusal:
    """A file that cannot be read: what is wrong with it, and the remedy."""

    source: InputFile
    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.source.name}: {self.what}. {self.remedy}"


def ingest(
    sources: Iterable[InputFile], pipeline_dir: Path | None = None, rules: Any = None
) -> Iterator[Read | Refusal]:
    """Read the files. A file that cannot be read becomes a Refusal, and the others are still read.

    ``pipeline_dir`` is the folder of the user's pipeline file, whose ``parsers/`` come first; ``rules`` are the user's
    kernel classes.
    """
    parsers = reader.parsers(pipeline_dir)
    for source in sources:
        try:
            parser = reader.choose(source.path, parsers)
            tables = _complete(reader.parse(parser, source.path, source.step_range), source, rules)
        except UnreadableFile as refused:
            yield Refusal(source, refused.what, refused.remedy)
        else:
            yield Read(source, reader.name_of(parser), tables)


#: What a row of `metrics` is of.
_METRIC = ["workload", "case", "profiler", "subject", "metric"]


def combine(read: Iterable[Tables]) -> Tables:
    """Return the rows of several files, those of a job or more, with the ranks and the metrics of their steps.

    Of the peaks of memory that processes without a rank have for the same case the largest stays. The times in which
    their hosts waited add up.
    """
    tables = schema.concat(_joined_ranks(list(read)))
    metrics = tables.metrics
    is_wait = metrics["metric"] == CAPTURE_WAIT
    if is_wait.any():
        waits = metrics[is_wait]
        sums = waits.groupby(_METRIC, sort=False)[["value", "n"]].transform("sum")
        once = waits.assign(**sums).drop_duplicates(_METRIC)
        metrics = pd.concat([metrics[~is_wait], once])
    peaks = metrics[metrics["metric"].str.startswith("peak_")].sort_values("value", ascending=False)
    smaller = peaks.index[peaks.duplicated(_METRIC)]
    if len(smaller):
        metrics = metrics.drop(index=smaller)
    steps, step_metrics, timeline = figures.sum_steps(tables)
    metrics = schema.concat_rows(schema.METRICS, [metrics, step_metrics])
    return replace(tables, steps=steps, metrics=metrics, timeline=timeline)


def _joined_ranks(read: list[Tables]) -> list[Tables]:
    """Return the tables; files that state different ranks of one number of ranks are one workload, of one job.

    Where two of them state the same rank they are of several jobs, and stay apart.
    """
    files: dict[tuple[str, int], list[int]] = {}
    for number, tables in enumerate(read):
        if tables.rank_of is not None and tables.rank_of[1] > 1:
            files.setdefault((tables.origin.tool, tables.rank_of[1]), []).append(number)
    for numbers in files.values():
        ranks = [of[0] for number in numbers if (of := read[number].rank_of)]
        names = [name for number in numbers for name in read[number].kernels["workload"].unique()]
        if len(numbers) == len(set(ranks)) and len(names) == len(set(names)) > 1:
            others = len(names) - 1
            name = f"{names[0]} and {others} other {'rank' if others == 1 else 'ranks'}"
            for number in numbers:
                read[number] = read[number].set_columns(workload=name)
    return read


def _complete(parsed: Tables, source: InputFile, rules: Any) -> Tables:
    """Fill in what a parser cannot know: run, workload, source, and the case of a whole file."""
    profiler = source.profiler or parsed.origin.tool
    placed = parsed.set_columns(
        run=source.run, workload=source.workload or source.path.name, profiler=profiler, source=source.name
    )
    if source.case:
        placed = _move_into_case(placed, source.case)
    if source.set_aside:
        placed = _drop_cases(placed, source.set_aside)
    if rules:
        kernels = kernel_classes.annotate(placed.kernels, rules)
        placed = replace(placed, kernels=kernels, timeline=_reclassified(placed.timeline, rules))
    return placed


def _reclassified(timeline: pd.DataFrame, rules: Any) -> pd.DataFrame:
    """Return the timeline with the classes by the user's rules, as in `kernels`."""
    has_class = timeline["kernel_class"] != ""
    if not has_class.any():
        return timeline
    named = timeline.loc[has_class, ["kind", "name", "kernel_class"]].rename(columns={"name": "kernel"})
    classes = kernel_classes.annotate(named, rules)["kernel_class"]
    return timeline.assign(kernel_class=classes.reindex(timeline.index).fillna(""))


def _move_into_case(placed: Tables, case: str) -> Tables:
    """Move all rows into ``case``, so that no time is unattributed."""
    frames = {table.name: getattr(placed, table.name) for table in schema.PARSED}
    moved = {name: frame.assign(case=frame["case"].where(frame["case"] != "", case)) for name, frame in frames.items()}
    origin = replace(placed.origin, attributed_ns=placed.origin.total_ns, unattributed_ns=0.0)
    return Tables(**moved, origin=origin)


def _drop_cases(placed: Tables, cases: frozenset[str]) -> Tables:
    """Drop ranges, metrics and timeline of ``cases``. Their kernels stay, outside all cases, because they did run."""
    kernels_aside = placed.kernels["case"].isin(cases)
    device = kernels_aside & (placed.kernels["kind"] == "kernel")
    time_ns = float(placed.kernels.loc[device, "total_ns"].sum())
    detail = f"an attempt that was cut off is set aside: {', '.join(sorted(cases))}"
    origin, sums = placed.origin, dict[str, Any]()
    if origin.attributed_ns is not None and origin.unattributed_ns is not None:
        sums = {
            "attributed_ns": origin.attributed_ns - time_ns,
            "unattributed_ns": origin.unattributed_ns + time_ns,
        }
    return replace(
        placed,
        kernels=placed.kernels.assign(case=placed.kernels["case"].where(~kernels_aside, "")),
        ranges=placed.ranges[~placed.ranges["case"].isin(cases)],
        metrics=placed.metrics[~placed.metrics["case"].isin(cases)],
        timeline=placed.timeline[~placed.timeline["case"].isin(cases)],
        origin=replace(origin, details=(*origin.details, detail), **sums),
    )


def sources_of_paths(paths: Iterable[Path]) -> list[InputFile]:
    """Return the files that a user names, once. Files of the same name are workloads named with their folder.

    Exports of several runs often have the same name, and the kernels of two files must not be added up.
    """
    # Unlike Path.resolve, realpath accepts a link to itself; its parser then says what is wrong with it.
    once = {os.path.realpath(path): path for path in paths}.values()
    # Not resolved: users know the name of their link.
    places = [path.absolute() for path in once]
    return [
        InputFile(path, str(path), workload=_unique_tail(place, places))
        for path, place in zip(once, places, strict=True)
    ]


def _unique_tail(path: Path, among: Iterable[Path]) -> str:
    """Return the last parts of ``path``, as few as no other path ends with."""
    others = [other.parts for other in among if other != path]
    depths = range(1, len(path.parts))
    depth = next((d for d in depths if all(other[-d:] != path.parts[-d:] for other in others)), len(path.parts))
    return str(Path(*path.parts[-depth:]))
