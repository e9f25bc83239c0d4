"""Files that someone already has: read, stored and reported, without running anything but an export.

Kept apart from ``workflow``, so that a large capture need not wait for the libraries that running needs.
"""

from __future__ import annotations

import functools
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from profpipe import analyze, errors, exports, ingest, load, record, run, store, tables
from profpipe import report as reporting
from profpipe.errors import ConfigError, Refused
from profpipe.profilers import nsys
from profpipe.tables import Tables

#: A report of gigabytes takes minutes to export.
_EXPORT_S = 3600.0


def read_files(paths: Sequence[Path], out: Path | None) -> int:
    """Reads any profiler's files into one set of tables; with ``out``, writes them and their report there."""
    if out is not None and (out / "run.json").is_file() and "jobs" in store.read_record(out):
        raise ConfigError(str(out), "is a run's folder, and its tables would be lost.", "Name another folder.")
    read: list[Tables] = []
    refusals: list[ingest.Refusal] = []
    parts: set[Path] = set()
    begun: dict[str, Any] = {"schema_version": tables.SCHEMA_VERSION, "files": []}
    for result in (_checked(result) for source in ingest.given(paths) for result in _read(source)):
        if isinstance(result, ingest.Refusal):
            refusals.append(result)
            continue
        read.append(result.tables)
        parts |= _read_with(result)
        begun["files"].append(record.file(result.source.name, result.parser, result.tables.origin))
        print("\n".join(_lines(result)))
    # A file that says nothing by itself may have been read as a part of another, whichever of them was given first.
    refusals = [refusal for refusal in refusals if refusal.source.path not in parts]
    begun["refused"] = [refused(refusal) for refusal in refusals]
    for refusal in refusals:
        print(f"profpipe: {refusal}", file=sys.stderr)
    if out is not None and read:
        _make(out)
        data = tables.concat(read)
        # Arrow writes Parquet without the interpreter's lock, beside the CSV files.
        with ThreadPoolExecutor(1) as beside:
            parquet = beside.submit(store.save_parquet, out, data)
            store.save(out, data, {**begun, "name": out.resolve().name})
            parquet.result()
        render(out, data, begun, None)
    return errors.SOME_FAILED if begun["refused"] else errors.OK


def _make(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = error.strerror or str(error)
        raise ConfigError(str(out), f"cannot hold the tables: {why}.", "Choose another --out.") from None


def _read(source: ingest.Source) -> Iterator[ingest.Read | ingest.Refusal]:
    """What the file holds; nsys's own report is exported first, where that is possible."""
    path = source.path
    if not (exports.is_report(path) or exports.is_recording(path)):
        yield from ingest.ingest([source])
        return
    with tempfile.TemporaryDirectory(prefix="profpipe-") as folder:
        target = Path(folder) / f"{path.stem}.sqlite"
        try:
            ask = functools.partial(run.ask, timeout_s=_EXPORT_S)
            exports.export(path, target, nsys.find(run.ask), ask)
        except Refused as refused:
            yield ingest.Refusal(source, refused.what, refused.remedy)
        else:
            yield from ingest.ingest([replace(source, path=target)])


def _checked(result: ingest.Read | ingest.Refusal) -> ingest.Read | ingest.Refusal:
    """A file in which nothing at all was recorded is no result, though it is whole."""
    if isinstance(result, ingest.Refusal) or any(len(getattr(result.tables, table.name)) for table in tables.ALL):
        return result
    said = next((note for note in result.tables.origin.notes if note.startswith(f"{result.tables.origin.tool}: ")), "")
    what = "holds no kernels, copies or ranges" + (f" ({said.rstrip('.')})" if said else "")
    return ingest.Refusal(result.source, what, "Record again, with the program using the GPU while it is recorded.")


def _read_with(result: ingest.Read) -> set[Path]:
    """The files beside this one that its parser took as parts of the same recording, as its notes name them."""
    said, notes = "read with it: ", result.tables.origin.notes
    return {result.source.path.parent / note.removeprefix(said) for note in notes if note.startswith(said)}


def _lines(result: ingest.Read) -> Iterator[str]:
    origin = result.tables.origin
    launches = "1 kernel launch" if origin.launches == 1 else f"{origin.launches} kernel launches"
    total = f"{origin.total_ns / 1e6:.3f} ms" if origin.total_ns is not None else "time not in the file"
    if origin.total_ns is None and result.tables.kernels["total_ns"].notna().any():
        total = "the time of some of them not in the file"
    tool = " ".join(part for part in (origin.tool, origin.tool_version) if part)
    yield f"{result.source.name}: {result.parser} ({tool}), {launches}, {total}"
    yield from (f"  {note}" for note in origin.notes)


def refused(refusal: ingest.Refusal) -> dict[str, str]:
    """A refusal as run.json keeps it."""
    return {"source": refusal.source.name, "what": refusal.what, "remedy": refusal.remedy}


def render(folder: Path, data: Tables, begun: Mapping[str, Any], beside: Path | None) -> bool:
    """Writes SUMMARY.md and says where; whether it names a failure."""
    template = load.find("templates", "SUMMARY.md.j2", beside)
    if template is None:
        raise ConfigError("templates/SUMMARY.md.j2", "is missing.", "Install profpipe anew.")
    findings = analyze.analyze(data, begun)
    summary = reporting.render(findings, data, begun, folder, template)
    print(f"{summary.relative_to(Path.cwd()) if summary.is_relative_to(Path.cwd()) else summary}")
    if findings.is_unmet:
        what = "a kernel family that was expected did not run, or too little of the kernels' time is classified"
        print(f"profpipe: {what}. SUMMARY.md says which.", file=sys.stderr)
    return findings.failed
