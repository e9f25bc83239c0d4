"""Nsight Systems exports: SQLite of every schema since 2020, and directories of Parquet files with the same tables.

Tables and columns are found by name and may be absent: the exporter leaves out tables without rows, and columns came
and went with the versions. Times are ns since the start of the capture. Ids of threads and processes carry the pid in
bits 24 to 47 and the thread in the lowest 24.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from profpipe import errors, kernels, load, tables
from profpipe.formats import attribution, launch_order, overlap, range_sums
from profpipe.formats.columns import (
    FAILURES,
    SQLITE_HEAD,
    Database,
    ParquetFolder,
    Source,
    Strings,
    read_lookup,
    read_rows,
)
from profpipe.formats.grouping import combine

if TYPE_CHECKING:
    import _nsys_activities
    import _nsys_nvtx
    import _nsys_remarks
else:
    _nsys_activities = load.module(Path(__file__).with_name("_nsys_activities.py"))
    _nsys_nvtx = load.module(Path(__file__).with_name("_nsys_nvtx.py"))
    _nsys_remarks = load.module(Path(__file__).with_name("_nsys_remarks.py"))

FORMATS = ("nsys SQLite export (schemas of 2020 to 2026)", "nsys Parquet export (directory of TABLE.parquet)")

_EXPORT_AGAIN: Final = "Export it again: nsys export --type sqlite --force-overwrite true -o OUT.sqlite REPORT.nsys-rep"
#: Any of these says that nsys made the file; an interrupted export may lack the others.
_MARKS: Final = ("StringIds", "META_DATA_EXPORT", "EXPORT_META_DATA", "ENUM_NSYS_EVENT_TYPE")
_NOTHING: Final = np.zeros(0, dtype=np.int64)


def sniff(path: Path) -> bool:
    if path.is_dir():
        return any(_is_ours(file.stem) for file in path.glob("*.parquet"))
    if _lacks_first_page(path):
        return True
    with path.open("rb") as file:
        head = file.read(1 << 16)
    if not head.startswith(SQLITE_HEAD):
        return False
    try:
        return any(_is_ours(table) for table in Database(path).tables())
    except FAILURES:
        # Truncated or damaged, but the first page still holds the schema's text; `parse` says what is wrong.
        return any(mark.encode() in head for mark in (*_MARKS, _nsys_activities.PREFIX))


def _lacks_first_page(path: Path) -> bool:
    """Whether the exporter was killed: nsys 2022.4 writes the first page last, over zeros."""
    with path.open("rb") as file:
        if any(file.read(512)):
            return False
        begin = file.read(1 << 22)
    return b"CREATE TABLE" in begin and any(mark.encode() in begin for mark in (*_MARKS, _nsys_activities.PREFIX))


def _is_ours(table: str) -> bool:
    return table in _MARKS or table.startswith(_nsys_activities.PREFIX)


_Found = TypeVar("_Found")


def parse(path: Path) -> tables.Tables:
    return _or_refused(_parse, path)


def launches(path: Path) -> pd.DataFrame:
    """Each kernel's launch, as ``launch_order.COLUMNS``; none of an export without grids. Raises ``Refused``."""
    return _or_refused(_launches, path)


def _or_refused(read: Callable[[Path], _Found], path: Path) -> _Found:
    try:
        return read(path)
    except _nsys_activities.Damaged as damage:
        raise errors.Refused(path, str(damage), _EXPORT_AGAIN) from damage
    except FAILURES as failure:
        reason = "".join(c if c.isprintable() else "?" for c in " ".join(str(failure).split()))
        raise errors.Refused(path, f"damaged or cut short, cannot be read ({reason[:200]})", _EXPORT_AGAIN) from failure


def _opened(path: Path) -> Source:
    for leftover in ("-journal", "-wal"):
        beside = path.with_name(path.name + leftover)
        if beside.is_file() and beside.stat().st_size:
            raise _nsys_activities.Damaged(f"its export was interrupted, or still runs: {beside.name} lies beside it")
    if path.is_file() and _lacks_first_page(path):
        raise _nsys_activities.Damaged("its export was interrupted: the first page, which is written last, is empty")
    export: Source = ParquetFolder(path) if path.is_dir() else Database(path)
    if not export.columns("StringIds"):
        raise _nsys_activities.Damaged("its export was interrupted: the table StringIds with all names is missing")
    return export


def _parse(path: Path) -> tables.Tables:
    export = _opened(path)
    strings = Strings(export, "StringIds", "id", "value")
    work, calls = _nsys_activities.read(export, strings)
    ranges, notes = _nsys_nvtx.read(export, strings, _latest(work, calls))
    launches = _nsys_activities.launches(work, calls)
    notes += _nsys_remarks.of(export, work, calls, launches)
    # With ten million kernels a gigabyte that nothing needs any more, here and behind the placing.
    del calls
    placed = attribution.attribute(ranges, launches)
    launches = replace(launches, end=_NOTHING, thread=_NOTHING)
    range_rows = range_sums.summarise(ranges, launches, placed, work.start, work.end)
    range_rows["process"] = pd.array(_known(_nsys_activities.pids(range_rows["process"].to_numpy())), dtype="Int64")
    metrics = overlap.metrics(_kernels(work, placed), overlap.iterations(range_rows))
    frame = _launch_frame(work, placed)
    return tables.Tables(
        kernels=kernels.annotate(tables.summarise(frame)).assign(profiler="nsys"),
        ranges=tables.frame(tables.RANGES, range_rows).assign(profiler="nsys"),
        metrics=tables.frame(tables.METRICS, metrics).assign(profiler="nsys"),
        origin=_origin(export, work, frame, placed, tuple(notes)),
    )


def _launches(path: Path) -> pd.DataFrame:
    export = _opened(path)
    strings = Strings(export, "StringIds", "id", "value")
    if (shapes := _nsys_activities.read_shapes(export)) is None:
        return launch_order.empty()
    work, calls = _nsys_activities.read(export, strings)
    ranges, _ = _nsys_nvtx.read(export, strings, _latest(work, calls))
    called = _nsys_activities.launches(work, calls)
    placed = attribution.attribute(ranges, called)
    rows = np.flatnonzero(work.is_kind("kernel"))
    names = np.array([kernels.normalise(name) for name in work.names], dtype=object)
    seen = shapes.assign(kernel=names[work.name[rows]], duration_ns=(work.end - work.start)[rows])
    return launch_order.table(ranges, called, placed, rows, seen, work.start[rows])


def _latest(work: _nsys_activities.Work, calls: _nsys_activities.Calls) -> int:
    return max(int(work.end.max(initial=_nsys_activities.NULL)), int(calls.end.max(initial=_nsys_activities.NULL)))


# --- the tables ------------------------------------------------------------------------------------------------------


def _launch_frame(work: _nsys_activities.Work, placed: attribution.Attribution) -> pd.DataFrame:
    """One row a launch, as ``tables.summarise`` takes it."""
    path, paths = pd.factorize(placed.path)
    cases, phases = placed.cases_and_phases(paths)
    process, processes = pd.factorize(work.process)
    device, devices = pd.factorize(work.device)
    stream, streams = pd.factorize(work.stream)
    return pd.DataFrame(
        {
            "case": _labelled(path, cases),
            "process": _labelled(process, _known(_nsys_activities.pids(processes))),
            "device": _labelled(device, _known(devices)),
            "stream": _labelled(stream, _known(streams)),
            "phase": _labelled(path, phases),
            "kind": _labelled(work.kind, tables.KINDS),
            "kernel": _labelled(work.name, work.names),
            "duration_ns": work.end - work.start,
        },
        copy=False,
    )


def _kernels(work: _nsys_activities.Work, placed: attribution.Attribution) -> overlap.Kernels:
    communicates = overlap.communicate(kernels.classify(name)[0] for name in work.names)
    # Most files have no communication, and with ten million kernels each column is 80 MB.
    rows = np.flatnonzero(work.is_kind("kernel", "graph")) if communicates.any() else _NOTHING
    path, paths = pd.factorize(placed.path[rows])
    cases, _ = placed.cases_and_phases(paths)
    return overlap.Kernels(
        *overlap.numbered(path, cases),
        _nsys_activities.pids(work.process[rows]),
        work.device[rows],
        work.start[rows],
        work.end[rows],
        communicates[work.name[rows]] & (work.kind[rows] == tables.KINDS.index("kernel")),
    )


def _labelled(codes: npt.NDArray[Any], labels: Sequence[Any]) -> pd.Categorical[Any]:
    """A categorical from codes whose labels may repeat or be missing."""
    code, categories = pd.factorize(np.array(labels, dtype=object))
    return pd.Categorical.from_codes(code.astype(np.int32)[codes], pd.Index(categories))


def _known(numbers: Any) -> list[int | None]:
    """Pids and ordinals, None in place of the negative ones that stand for NULL."""
    return [int(number) if number >= 0 else None for number in numbers]


def _origin(
    export: Source,
    work: _nsys_activities.Work,
    frame: pd.DataFrame,
    placed: attribution.Attribution,
    notes: tuple[str, ...],
) -> tables.Origin:
    is_kernel = work.is_kind("kernel")
    duration = frame["duration_ns"].to_numpy()
    in_case = is_kernel & (frame["case"].to_numpy() != "")
    total, attributed = int(duration[is_kernel].sum()), int(duration[in_case].sum())
    meta = read_lookup(export, "META_DATA_EXPORT", "name", "value")
    meta |= read_lookup(export, "EXPORT_META_DATA", "name", "value")
    return tables.Origin(
        format=f"nsys export, schema {meta.get('EXPORT_SCHEMA_VERSION') or 'without a version (before 2022)'}",
        tool="nsys",
        tool_version=meta.get("EXPORT_PRODUCT_VERSION", ""),
        launches=int(is_kernel.sum()),
        total_ns=float(total),
        attributed_ns=float(attributed),
        unattributed_ns=float(duration[is_kernel & ~in_case].sum()),
        attribution=_attribution_in_words(placed, is_kernel),
        device=_device(export, work),
        notes=notes,
    )


def _attribution_in_words(placed: attribution.Attribution, is_kernel: npt.NDArray[np.bool_]) -> str:
    """How launches were placed: of kernels alone, which are what the file's launches are counted by."""
    if not len(placed.range_path):
        return "none: the file holds no ranges"
    words = "by the thread that launched (NVTX ranges)"
    if by_time := int((placed.by_time & is_kernel).sum()):
        words += f"; {by_time} of {is_kernel.sum()} launches by time, inside a range of another thread"
    return words


def _device(export: Source, work: _nsys_activities.Work) -> str:
    """Names of the GPUs that ran something; empty where the file does not say."""
    _, firsts = combine(work.process, work.device)
    pids = _nsys_activities.pids(work.process[firsts])
    ran = {(str(pid), str(device)) for pid, device in zip(pids, work.device[firsts], strict=True)}
    by_id = read_lookup(export, "TARGET_INFO_GPU", "id", "name")
    # `id` numbers the GPUs by bus, the kernels' deviceId is CUDA's ordinal: on a four-GPU node they may run in opposite
    # order, and each process may see another choice of them.
    mapped = read_rows(export, "TARGET_INFO_CUDA_DEVICE", "pid", "cudaId", "gpuId")
    names = {by_id.get(gpu, "") for pid, ordinal, gpu in mapped if (pid, ordinal) in ran}
    by_ordinal = read_lookup(export, "TARGET_INFO_GPU", "cuDevice", "name")
    by_ordinal |= read_lookup(export, "TARGET_INFO_CUDA_GPU", "deviceId", "name")
    names = names or {by_ordinal.get(ordinal, "") for _, ordinal in ran}
    installed = {name for (name,) in read_rows(export, "TARGET_INFO_GPU", "name")}
    return ", ".join(sorted(names - {""}) or (installed if ran and len(installed) == 1 else []))
