"""``profpipe ingest``: read, store and report files of profilers. Only an export of nsys may be started."""

from __future__ import annotations

import argparse
import ctypes
import functools
import gzip
import importlib
import shutil
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from profpipe import errors, plugins
from profpipe.commands import arguments
from profpipe.errors import ConfigError, UnreadableFile
from profpipe.stdio import visible_line

if TYPE_CHECKING:
    from profpipe.ingest import reader
    from profpipe.results.manifest import FileEntry, Manifest
    from profpipe.results.schema import Tables

EXAMPLES = """\
  profpipe ingest capture.nsys-rep                       # print what the file holds
  profpipe ingest *.sqlite report.ncu-rep --out tables   # tables and SUMMARY.md in tables/
  profpipe ingest capture.sqlite --step-range 'train_step.*' --out tables

reads:
  Nsight Systems   .sqlite, .sqlite.gz, Parquet directories, nsys stats as CSV or text; .nsys-rep, .qdrep where nsys is
  Nsight Compute   .ncu-rep, CSV of the raw and the details page, the text page
  rocprof          v1: CSV, JSON, database; v2: CSV; v3: CSV, JSON, rocpd
  torch.profiler   Chrome traces, .json and .json.gz
  jax.profiler     .trace.json.gz of GPUs
docs/ingest.md has more. A file in parsers/ beside a pipeline file adds a format."""

#: A report of gigabytes takes minutes to export.
_EXPORT_S = 3600.0

#: Bytes of a gzipped database that are in memory.
_BLOCK = 1 << 20
_NAMED_RANGES = 5
#: The options of a call that prints a screen.
_SCREEN = argparse.Namespace(quiet=False, json=None)
_RECORD_AGAIN = "Record again, with the program using the GPU while it is recorded."
_START_AGAIN = (
    "Check that nsys is as new as the driver, that this user may profile the GPU, and that no other profiler uses it. "
    "Then record again."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", metavar="FILE", type=Path)
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder that receives the tables and SUMMARY.md")
    parser.add_argument("--step-range", type=arguments.regex, metavar="REGEX", help=arguments.STEP_RANGE)
    arguments.add_output_format(parser)


def main(args: argparse.Namespace) -> int:
    if args.quiet and args.out is None:
        raise ConfigError("--quiet", "prints only the path of SUMMARY.md, and none is written.", "Add --out DIR.")
    if args.open and args.out is None:
        raise ConfigError("--open", "opens the report, and none is written.", "Add --out DIR.")
    return read_files(args.files, args.out, args.step_range or "", csv=args.csv, shown=args)


def read_files(
    paths: Sequence[Path],
    out: Path | None,
    step_range: str = "",
    *,
    csv: bool = False,
    shown: argparse.Namespace = _SCREEN,
) -> int:
    """Read files of any profilers into one set of tables. With ``out``, write the tables and their report there.

    What each file holds is printed, and the first screen of the report; less with the options ``quiet`` and ``json``
    in ``shown``.

    ``step_range`` is a regular expression for the ranges that are steps. Raises ConfigError where no range has such a
    name.
    """
    from profpipe.results import answer

    is_quiet = shown.quiet or shown.json is not None
    # Nothing is written through links, except one that the user names.
    real = out.resolve() if out is not None and out.is_symlink() else out
    parsers = [
        (str(path), path.stat().st_mtime_ns) for path in plugins.files("parsers", "*.py", plugins.current_folder())
    ]
    state = answer.state_of_files(paths, out, step_range, csv, parsers) if out is not None else ""
    if real is not None and state and (kept := answer.find(real, state)):
        _print_held(f"{kept.printed}\n", is_quiet)
        arguments.print_kept(shown, real, kept)
        return errors.OK
    from concurrent.futures import ThreadPoolExecutor

    import pyarrow

    from profpipe.ingest import reader
    from profpipe.results import store

    _refuse_run(out)
    # Arrow's own pool keeps the memory that it frees. Memory that malloc frees is used again by numpy, which saves a
    # quarter of the peak.
    pyarrow.set_memory_pool(pyarrow.system_memory_pool())
    # A thread that returns from SQLite, numpy or Arrow waits so long for one that runs Python, by default 5 ms.
    sys.setswitchinterval(0.0005)
    lines: list[str] = []

    def show(result: reader.Read) -> None:
        lines.append("\n".join(map(visible_line, _lines(result))))
        _print_held(lines[-1], is_quiet)

    with ThreadPoolExecutor(1) as loader:
        # The drivers read without the interpreter's lock, so that the modules of the report load meanwhile.
        reader.parsers(plugins.current_folder())
        loader.submit(
            importlib.import_module, f"profpipe.{'report.first_screen' if out is None else 'commands.rendering'}"
        )
        data, manifest = read_recordings(paths, step_range, show)
    for refused in manifest.refused:
        print(f"profpipe: {visible_line(f'{refused.source}: {refused.what}. {refused.remedy}')}", file=sys.stderr)
    if not manifest.files:
        return errors.SOME_FAILED if manifest.refused else errors.OK
    # Of what reading has freed glibc keeps a hundred megabytes, beside which the report would stand.
    getattr(ctypes.CDLL(None), "malloc_trim", lambda _: None)(0)
    _print_held("", is_quiet)
    manifest = replace(manifest, name=real.resolve().name if real else "")
    if out is None or real is None:
        _print_unwritten(shown, data, manifest)
    else:
        from profpipe.commands import rendering

        _make_folder(out)
        # Arrow writes without the interpreter's lock, while the report is made.
        with ThreadPoolExecutor(1) as writer:
            writes = [writer.submit(store.save, real, data, manifest)]
            if csv:
                writes.append(writer.submit(store.save_csv, real, data))
            written = rendering.write_report(real, data, manifest)
            for write in writes:
                write.result()
        if state and not manifest.refused and not written.exit_code and not written.expectations_failed:
            answer.keep(real, state, "\n".join(lines), written.first_screen, rendering.as_answer(written))
        rendering.print_result(written, shown)
    return errors.SOME_FAILED if manifest.refused else errors.OK


def _refuse_run(out: Path | None) -> None:
    from profpipe.results.manifest import FILE, Manifest

    if out is not None and (out / FILE).is_file() and Manifest.load(out).is_run:
        raise ConfigError(str(out), "is a run's folder, and its tables would be lost.", "Name another folder.")


def _print_held(text: str, is_quiet: bool) -> None:
    if not is_quiet:
        print(text)


def _print_unwritten(shown: argparse.Namespace, data: Tables, manifest: Manifest) -> None:
    """Print the answer of files whose report is not written, as one JSON object or as a screen."""
    if shown.json:
        from profpipe.commands import rendering

        report = rendering.read_report(Path(), data, manifest)
        arguments.print_json(shown, lambda: rendering.as_answer(report), lambda: rendering.as_json(report))
        return
    from profpipe.analysis import analyze
    from profpipe.report import first_screen, screen, text

    # The screen has no timeline.
    data = text.shorten_tables(replace(data, timeline=data.timeline.iloc[:0]))
    print(screen.lay_out(first_screen.show_recordings(analyze.analyze(data, manifest), manifest)))
    print("\nTables and pages: add --out DIR")


def _check_range(step_range: str, read: Sequence[Tables]) -> None:
    """Raise ConfigError where no step begins at a range that matches ``step_range``."""
    import pandas as pd

    from profpipe.results import schema

    if any((tables.steps["rule"] == schema.StepRule.MARKER.value).any() for tables in read):
        return
    ranges = pd.concat([tables.ranges for tables in read])
    names = ranges.groupby("range")["kernel_ns"].sum().sort_values(ascending=False).index[:_NAMED_RANGES]
    has = f"The ranges with the most kernel time are {', '.join(map(repr, names))}." if len(names) else "It has none."
    what = f"no range in which kernels were launched has a name that {step_range!r} matches as a whole."
    raise ConfigError("--step-range", what, has)


def read_recordings(
    paths: Sequence[Path], step_range: str = "", show: Callable[[reader.Read], object] = lambda result: None
) -> tuple[Tables, Manifest]:
    """Return the tables of files of any profilers. ``manifest.refused`` names those that cannot be read.

    ``show`` is called with each file as it is read. Raises ConfigError where no range matches ``step_range``.
    """
    from profpipe.ingest import reader
    from profpipe.results.manifest import Manifest, RefusedFile
    from profpipe.results.manifest_entries import file_entry

    tables: list[Tables] = []
    files: list[FileEntry] = []
    refusals: list[reader.Refusal] = []
    parts: set[Path] = set()
    for result in _read(paths, step_range):
        if isinstance(result, reader.Refusal):
            refusals.append(result)
            continue
        tables.append(result.tables)
        files.append(file_entry(result.source.name, result.parser, result.tables.origin))
        parts |= {result.source.path.parent / name for name in result.tables.origin.read_with}
        show(result)
    if step_range and tables:
        _check_range(step_range, tables)
    # A file that holds nothing by itself may be part of another recording, which may come before or after it.
    refused = tuple(
        RefusedFile(refusal.source.name, refusal.what, refusal.remedy)
        for refusal in refusals
        if refusal.source.path not in parts
    )
    name = paths[0].name if len(paths) == 1 else ""
    return reader.combine(tables), Manifest(name=name, files=tuple(files), refused=refused, is_run=False)


def _make_folder(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = error.strerror or str(error)
        raise ConfigError(str(out), f"cannot hold the tables: {why}.", "Choose another --out.") from None


def _read(paths: Sequence[Path], step_range: str = "") -> Iterator[reader.Read | reader.Refusal]:
    """Read files. A report of nsys is exported first, where that is possible, and a gzipped database unpacked."""
    from profpipe.ingest import reader

    for source in reader.sources_of_paths(paths):
        source = replace(source, step_range=step_range)
        (result,) = reader.ingest([source], plugins.current_folder())
        # To load the profilers takes longer than to find that no parser knows a report.
        if isinstance(result, reader.Refusal):
            with tempfile.TemporaryDirectory(prefix="profpipe-") as folder:
                try:
                    path = exported(source.path, Path(folder))
                except UnreadableFile as refused:
                    result = reader.Refusal(source, refused.what, refused.remedy)
                else:
                    if path != source.path:
                        (result,) = reader.ingest([replace(source, path=path)], plugins.current_folder())
        yield _refuse_empty(result)


def exported(path: Path, folder: Path) -> Path:
    """Return the file to read: the export of a report, or an unpacked database, made in ``folder``; else ``path``.

    Raises ``UnreadableFile`` where nsys cannot export it, or the database is damaged or too large.
    """
    if (unpacked := _unpack(path, folder)) is not None:
        return unpacked
    from profpipe.profilers import nsys

    if not (nsys.is_report(path) or nsys.is_recording(path)):
        return path
    # Only an export needs what starts processes, and that takes longer to load than a small file takes to read.
    from profpipe.runner import process

    target = folder / f"{path.stem}.sqlite"
    ask = functools.partial(process.ask, timeout_s=_EXPORT_S)
    try:
        nsys.export(path, target, nsys.find(process.ask), ask)
    except process.SupervisorError as error:
        raise UnreadableFile(path, "is a report of nsys, which only nsys can read", f"{error}.") from error
    return target


def _unpack(path: Path, folder: Path) -> Path | None:
    """Return the SQLite file in a gzip file, unpacked into ``folder``; None for any other file."""
    from profpipe.ingest import bounds, json_stream
    from profpipe.results import budget

    try:
        # A file of /proc has no size, and to read it may wait for ever.
        if not path.is_file() or not path.stat().st_size or not json_stream.is_zipped(path):
            return None
    except OSError:
        return None  # the parsers have said why
    target, room = folder / path.name.removesuffix(".gz"), shutil.disk_usage(folder).free // 2
    try:
        with json_stream.open_bytes(path) as packed:
            block = packed.read(_BLOCK)
            if not block.startswith(bounds.SQLITE_HEAD):
                return None
            with target.open("wb") as copy:
                while block:
                    if (room := room - len(block)) < 0:
                        raise bounds.TooLarge(f"it unzips to more than half of the free space of {folder.parent}")
                    copy.write(block)
                    block = packed.read(_BLOCK)
    except bounds.TooLarge as error:
        raise UnreadableFile(path, f"is more than profpipe reads: {error}", budget.REMEDY) from error
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UnreadableFile(path, f"is a gzip file that is cut or damaged ({error})", "Copy it again.") from error
    return target


def _refuse_empty(result: reader.Read | reader.Refusal) -> reader.Read | reader.Refusal:
    """Refuse a file in which nothing was recorded, although it is complete."""
    from profpipe.ingest import reader
    from profpipe.results import schema

    if isinstance(result, reader.Refusal) or any(len(getattr(result.tables, table.name)) for table in schema.ALL):
        return result
    notes = result.tables.origin.notes
    what = "holds no kernels, copies or ranges" + (f" ({notes[0].rstrip('.')})" if notes else "")
    has_failed = bool(notes) and notes[0].startswith("nsys: ") and not notes[0].startswith("nsys: No ")
    return reader.Refusal(result.source, what, _START_AGAIN if has_failed else _RECORD_AGAIN)


def _lines(result: reader.Read) -> Iterator[str]:
    origin = result.tables.origin
    launches = "1 kernel launch" if origin.launches == 1 else f"{origin.launches} kernel launches"
    total = f"{origin.total_ns / 1e6:.3f} ms" if origin.total_ns is not None else "time not in the file"
    if origin.total_ns is None and result.tables.kernels["total_ns"].notna().any():
        total = "the time of some of them not in the file"
    tool = " ".join(part for part in (origin.tool, origin.tool_version) if part)
    # A snapshot of memory holds no kernel.
    counted = "" if len(result.tables.memory) else f", {launches}, {total}"
    yield f"{result.source.name}: {result.parser} ({tool}){counted}"
    read_with = [f"read with it: {name}" for name in origin.read_with]
    # The notes are warnings of the screen.
    yield from (f"  {note}" for note in (*origin.details, *read_with))
