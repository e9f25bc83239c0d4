"""``profpipe trace``: write what was recorded as a trace for ui.perfetto.dev."""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import shlex
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from profpipe.commands import arguments
from profpipe.errors import OK, ConfigError, did_you_mean
from profpipe.job import readable
from profpipe.results import atomic

if TYPE_CHECKING:
    from profpipe.results.manifest import Manifest
    from profpipe.results.schema import Tables
    from profpipe.traces.build import Process

EXAMPLES = """\
  profpipe trace out/latest                              # everything that was recorded
  profpipe trace out/latest --case compile=true --step steady
  profpipe trace tables capture.sqlite --out t.json.gz   # of `ingest`; JSON in place of Perfetto's format"""

_JSON = (".json", ".json.gz")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", help="a run's folder, or its name below the results folder; or a folder of `ingest`")
    text = "recordings that `ingest` has read outside of its folder"
    parser.add_argument("recordings", nargs="*", type=Path, metavar="FILE", help=text)
    parser.add_argument("--case", metavar="CASE", help="one case (default: all)")
    parser.add_argument("--profiler", choices=arguments.TRACED, help="whose recording (default: nsys, else torch)")
    parser.add_argument(
        "--step",
        type=lambda text: text if text == arguments.STEADY else arguments.count(text),
        metavar="N",
        help=f"one step, or `{arguments.STEADY}` for a typical one (default: all)",
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="the trace (default: trace.pftrace in the folder); .json: as JSON"
    )


@dataclass(frozen=True)
class _File:
    """A recording: its place in the tables, and the cases that it holds."""

    source: str
    workload: str
    profiler: str
    cases: tuple[str, ...]
    #: The node of a cluster that the file is of; empty where it is not of one of several.
    node: str = ""


def main(args: argparse.Namespace) -> int:
    from profpipe.results import folders, store
    from profpipe.traces import write

    folder = folders.find(args.run, Path("out"))
    target = _target(folder, args.out)
    data, manifest = store.load(folder)
    files = _choose(folder, data, manifest, args.profiler, args.case)
    processes = list(_processes(folder, files, data, manifest, args))
    if not processes:
        raise _explain_missing_step(folder, data, files, args.step)
    writer = write.write_json if _is_json(target) else write.write_perfetto
    atomic.write(target, partial(_write, writer, processes, target.name.endswith(".gz")))
    slices, size = sum(process.slices for process in processes), target.stat().st_size / 1e6
    of = "1 process" if len(processes) == 1 else f"{len(processes)} processes"
    print(f"{arguments.shown_path(target)}: {slices} slices of {of}, {size:.1f} MB. Open it in ui.perfetto.dev.")
    if args.out is None and _is_json(target):
        print("With `pip install 'profpipe[perfetto]'` it has Perfetto's own format, which loads faster.")
    return OK


def _target(folder: Path, out: Path | None) -> Path:
    has_package = importlib.util.find_spec("perfetto") is not None
    if out is None:
        return folder / ("trace.pftrace" if has_package else "trace.json.gz")
    if out.is_dir():
        raise ConfigError(str(out), "is a folder.", "Name a file: --out trace.pftrace.")
    if not has_package and not _is_json(out):
        raise ConfigError(
            str(out),
            "has Perfetto's own format, for which the package perfetto is missing.",
            "Name a file that ends in .json or .json.gz, or run: pip install 'profpipe[perfetto]'",
        )
    return out


def _is_json(target: Path) -> bool:
    return target.name.endswith(_JSON)


def _write(writer: Any, processes: Sequence[Process], is_zipped: bool, stream: IO[bytes]) -> None:
    with gzip.open(stream, "wb", compresslevel=6) if is_zipped else nullcontext(stream) as target:
        writer(processes, target)


# --- which recordings ------------------------------------------------------------------------------------------------


def _choose(folder: Path, data: Tables, manifest: Manifest, profiler: str | None, case: str | None) -> list[_File]:
    """Return the recordings of one profiler. Raises ConfigError where there are none."""
    files = list(_recordings(data, manifest))
    if not files:
        raise ConfigError(
            str(folder),
            "has no recording of nsys or torch.profiler.",
            "Run with `-p nsys` or `-p torch`. For rocprof, `rocprofv3 --output-format pftrace` writes a trace itself.",
        )
    profilers = dict.fromkeys(file.profiler for file in files)
    wanted = profiler or next(name for name in arguments.TRACED if name in profilers)
    if wanted not in profilers:
        raise ConfigError("--profiler", f"{folder} has no recording of {wanted}.", f"It has: {', '.join(profilers)}.")
    files = [file for file in files if file.profiler == wanted]
    if case is None:
        return files
    named = [file for file in files if _find_case(file, case) is not None]
    if not named:
        cases = {readable(name) for file in files for name in (*file.cases, file.workload) if name}
        raise ConfigError("--case", f"{folder} has no case {case!r} under {wanted}.", did_you_mean(case, cases))
    return named


def _recordings(data: Tables, manifest: Manifest) -> Iterator[_File]:
    parsers = {file.source: file.parser for file in manifest.files}
    key = ["source", "workload", "profiler"]
    for source, workload, profiler in data.kernels[key].drop_duplicates().itertuples(index=False, name=None):
        if profiler in arguments.TRACED and parsers.get(source) in ("nsys_sqlite", "torch_trace"):
            is_in_file = (data.kernels["source"] == source) & (data.kernels["workload"] == workload)
            cases = tuple(data.kernels.loc[is_in_file, "case"].unique())
            yield _File(source, workload, profiler, cases, _node(source, workload, manifest))


def _node(source: str, workload: str, manifest: Manifest) -> str:
    """Return the node in the name of a file: ``capture.node1.rank0.pt.trace.json.gz``."""
    nodes = {node for job in manifest.jobs_of(workload) for node in (job.rank_nodes or {}).values()}
    return next((part for part in Path(source).name.split(".") if part in nodes), "")


def _find_case(file: _File, case: str) -> str | None:
    """Return the id of the case that the user names: by its name, with or without the workload."""
    if case == file.workload:
        return ""
    spellings = {
        text: name for name in file.cases for text in (name, readable(name), f"{file.workload}/{readable(name)}")
    }
    return spellings.get(case)


# --- reading ---------------------------------------------------------------------------------------------------------


def _processes(
    folder: Path, files: Sequence[_File], data: Tables, manifest: Manifest, args: argparse.Namespace
) -> Iterator[Process]:
    """Yield the processes of all recordings. Each recording begins at 0: two cases did not run at one time.

    The traces of torch.profiler of one case are of its ranks, and share a clock on each node.
    """
    from profpipe.ingest import reader
    from profpipe.traces.build import Builder

    parsers = reader.parsers()
    together: dict[Any, list[Process]] = {}
    for file in files:
        with _opened(folder, file.source, args) as path:
            declared = manifest.workload(file.workload)
            step_range = (declared.steps.range or (None if declared.capture else "")) if declared else ""
            recording = reader.recording(reader.choose(path, parsers), path)
            # The class of each kernel as in the tables, by its name; of names with several classes none.
            kernels = data.kernels[data.kernels["workload"] == file.workload]
            pairs = kernels[["kernel", "kernel_class"]].drop_duplicates()
            builder = Builder(
                recording,
                dict(pairs.drop_duplicates("kernel", keep=False).itertuples(index=False, name=None)),
                step_range,
            )
            case = _find_case(file, args.case) if args.case is not None else None
            # The file of a command is one case, and holds no ranges of cases.
            in_ranges = case if case and len(file.cases) > 1 else None
            processes = builder.processes(partial(_title, file, data), in_ranges, args.step)
            key = (file.workload, file.cases, file.node) if file.profiler == "torch" else file.source
            together.setdefault(key, []).extend(processes)
    for of_one_clock in together.values():
        first = min(process.first_ns for process in of_one_clock) if of_one_clock else 0
        yield from (process.since(first) for process in of_one_clock)


@contextmanager
def _opened(folder: Path, source: str, args: argparse.Namespace) -> Iterator[Path]:
    """Give the file of a recording; a report of nsys is exported first. Raises ConfigError where it is gone.

    The folder may come from somebody else, so a file elsewhere is read only if the user names it.
    """
    from profpipe.commands.ingest import exported

    tail = tuple(part for part in Path(source).parts if part != "..")
    places = {path: tuple(part for part in path.absolute().parts if part != "..") for path in args.recordings}
    named = [path for path, place in places.items() if place[-len(tail) :] == tail]
    path = next((path for path in (*named, folder / source, Path(source)) if path.exists()), None)
    if path is None:
        raise ConfigError(
            str(folder / source),
            "is gone, and the tables do not hold single calls.",
            "Copy the recording there, or record again. Without it report.html shows what timeline.parquet holds.",
        )
    if not named and not path.resolve().is_relative_to(folder.resolve()):
        command = shlex.join(["profpipe", "trace", args.run, str(path)])
        what = f"is outside of {folder}. A folder from somebody else could name any file."
        raise ConfigError(str(path), what, f"If the recording is yours, name it: {command}")
    with tempfile.TemporaryDirectory(prefix="profpipe-") as temporary:
        yield exported(path, Path(temporary))


def _title(file: _File, data: Tables, pid: int | None, devices: list[int]) -> str:
    """Return the name of a process: its case, its rank where there are several, and its process id."""
    import pandas as pd

    (case,) = file.cases if len(file.cases) == 1 else ("",)
    places = pd.concat([data.steps, data.timeline], ignore_index=True)
    places = places[(places["workload"] == file.workload) & (places["profiler"] == file.profiler)]
    places = places[["source", "process", "device", "rank"]].drop_duplicates()
    ranks = places["rank"].dropna().unique()
    ranked = places[(places["source"] == file.source) & places["device"].isin(devices)]
    ranked = ranked[ranked["process"] == pid]["rank"].dropna().unique() if pid is not None else ranked["rank"].iloc[:0]
    parts = [file.workload, readable(case)]
    if len(ranks) > 1 and len(ranked):
        parts.append(f"rank {' and '.join(str(rank) for rank in sorted(ranked))}")
    return " ".join(part for part in (*parts, f"(pid {pid})" if pid is not None else "") if part)


def _explain_missing_step(folder: Path, data: Tables, files: Sequence[_File], step: int | str | None) -> ConfigError:
    """Return the error for a step that no recording has."""
    from profpipe.results.schema import StepState

    steps = data.steps[data.steps["source"].isin([file.source for file in files])]
    numbers = steps.loc[steps["state"] != StepState.OTHER.value, "step"]
    if not len(numbers):
        return ConfigError("--step", f"no steps were found in the recording of {folder}.", "Leave --step out.")
    return ConfigError("--step", f"{folder} has no step {step}.", f"Known: {numbers.min()} to {numbers.max()}.")
