"""Read exports of Nsight Systems: SQLite of every schema since 2020, and folders of Parquet files.

Both hold the same tables. The exporter leaves out tables without rows, and columns changed with the versions. Times are
ns since the start of the capture. Ids of threads carry the thread in bits 0 to 23 and the pid in bits 24 to 47. Source:
exports of nsys 2020 to 2026, and the "SQLite Schema Reference" in the documentation of Nsight Systems.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import numpy as np
import numpy.typing as npt
import pandas as pd

from profpipe import errors
from profpipe.ingest import attribution, bounds, kernel_classes, launch_tables, operations
from profpipe.ingest.groupby import combine, factorize, groups, labelled
from profpipe.ingest.nsys import activities, columns, diagnostics, nvtx
from profpipe.ingest.operations import Recording
from profpipe.ingest.steps import reconcile, search
from profpipe.results import schema

READS_FOLDERS = True
FORMATS = ("nsys SQLite export (schemas of 2020 to 2026)", "nsys Parquet export (directory of TABLE.parquet)")

_EXPORT_AGAIN: Final = "Export it again: nsys export --type sqlite --force-overwrite true -o OUT.sqlite REPORT.nsys-rep"
#: Any of these says that nsys made the file; an interrupted export may lack the others.
_MARKS: Final = ("StringIds", "META_DATA_EXPORT", "EXPORT_META_DATA", "ENUM_NSYS_EVENT_TYPE")


def sniff(path: Path) -> bool:
    if path.is_dir():
        return any(_is_ours(file.stem) for file in path.glob("*.parquet"))
    if _lacks_first_page(path):
        return True
    with path.open("rb") as file:
        head = file.read(1 << 16)
    if not head.startswith(bounds.SQLITE_HEAD):
        return False
    try:
        tables = columns.Database(path).tables()
        # nvprof has tables of the same names, and its own one of texts.
        return "StringTable" not in tables and any(map(_is_ours, tables))
    except columns.FAILURES:
        # The first page of a damaged file still holds the schema's text; `parse` says what is wrong.
        return any(mark.encode() in head for mark in (*_MARKS, activities.PREFIX))


def _lacks_first_page(path: Path) -> bool:
    """Return True where the exporter was killed: nsys 2022.4 writes the first page last, over zeros."""
    with path.open("rb") as file:
        if any(file.read(512)):
            return False
        begin = file.read(1 << 22)
    return b"CREATE TABLE" in begin and any(mark.encode() in begin for mark in (*_MARKS, activities.PREFIX))


def _is_ours(table: str) -> bool:
    return table in _MARKS or table.startswith(activities.PREFIX)


_Reader = TypeVar("_Reader", bound=Callable[..., Any])


def _refusing(read: _Reader) -> _Reader:
    """Make ``read`` raise ``UnreadableFile`` for an export that is damaged, or was interrupted."""

    @functools.wraps(read)
    def reading(path: Path, *options: Any, **named: Any) -> Any:
        try:
            return read(path, *options, **named)
        except activities.Damaged as damage:
            raise errors.UnreadableFile(path, str(damage), _EXPORT_AGAIN) from damage
        except columns.FAILURES as failure:
            reason = "".join(c if c.isprintable() else "?" for c in " ".join(str(failure).split()))
            what = f"damaged or cut short, cannot be read ({reason[:200]})"
            raise errors.UnreadableFile(path, what, _EXPORT_AGAIN) from failure

    return cast(_Reader, reading)


def _opened(path: Path) -> tuple[columns.Source, columns.Strings]:
    for leftover in ("-journal", "-wal"):
        beside = path.with_name(path.name + leftover)
        if beside.is_file() and beside.stat().st_size:
            raise activities.Damaged(f"its export was interrupted, or still runs: {beside.name} lies beside it")
    if path.is_file() and _lacks_first_page(path):
        raise activities.Damaged("its export was interrupted: the first page, which is written last, is empty")
    export: columns.Source = columns.ParquetFolder(path) if path.is_dir() else columns.Database(path)
    if not {"id", "value"} <= set(export.columns("StringIds")):
        raise activities.Damaged("its export was interrupted: the table StringIds with all names is missing")
    return export, columns.Strings(export)


@_refusing
def parse(path: Path, step_range: str = "") -> schema.Tables:
    """Read an export. ``step_range`` is a regular expression for the ranges that are steps."""
    export, strings = _opened(path)
    work, calls = activities.read(export, strings)
    ranges, notes = nvtx.read(export, strings, _latest(work, calls))
    with ThreadPoolExecutor(max_workers=1) as executor:
        # SQLite and numpy work without the interpreter's lock, so that two parts run at the same time. One thread for
        # all of them takes the least memory: what a thread frees, glibc does not give to the others.
        classes = executor.submit(kernel_classes.classes, work.names)
        launches = activities.launches(work, calls)
        warnings, details = diagnostics.messages(export, work)
        notes += [*diagnostics.notes(work, calls, launches), *warnings]
        latest, waits = _latest(work, calls), _waits(calls)
        checks = _checks(export, work, calls)
        # A gigabyte of ten million kernels, which nothing needs any more.
        del calls
        placed = attribution.attribute(ranges, launches)
        notes += placed.paths.notes()
        # Not in the other thread, which would go on after a refusal of this one.
        range_rows = launch_tables.range_rows(ranges, launches, placed, work.start, work.end, activities.pids)
        # After the sums of the ranges, which need as much memory.
        kernels = executor.submit(_kernel_rows, work, placed)
        # What needs no classes is done before them.
        origin = _origin(export, work, placed)
        given = _operations(export, work, launches, classes.result(), placed, checks)
        del launches
        metrics = launch_tables.overlap_rows(given, placed, activities.pids, range_rows)
        steps = search.find(given, ranges, waits, activities.pids, latest, step_range)
    return replace(
        steps,
        kernels=kernels.result(),
        ranges=range_rows,
        metrics=metrics,
        origin=replace(origin, notes=tuple(notes), details=tuple(details)),
    ).with_columns(profiler="nsys")


@_refusing
def launches(path: Path) -> pd.DataFrame:
    """Read single launches (``launch_tables.COLUMNS``), none without grids. Raises ``UnreadableFile``."""
    export, strings = _opened(path)
    if (shapes := activities.read_shapes(export)) is None:
        return launch_tables.no_launches()
    work, calls = activities.read(export, strings)
    ranges, _ = nvtx.read(export, strings, _latest(work, calls))
    called = activities.launches(work, calls)
    placed = attribution.attribute(ranges, called)
    rows = np.flatnonzero(work.is_kind("kernel"))
    names = np.array([kernel_classes.normalise(name) for name in work.names], dtype=object)
    seen = shapes.assign(kernel=names[work.name[rows]], duration_ns=(work.end - work.start)[rows])
    return launch_tables.in_order(ranges, called, placed, rows, seen, work.start[rows])


@_refusing
def recording(path: Path) -> Recording:
    """Read the single events of an export. Raises ``UnreadableFile``."""
    export, strings = _opened(path)
    work, calls = activities.read(export, strings)
    latest = _latest(work, calls)
    ranges, _ = nvtx.read(export, strings, latest)
    launches = activities.launches(work, calls)
    placed = attribution.attribute(ranges, launches)
    classes = kernel_classes.classes(work.names)
    return Recording(
        _operations(export, work, launches, classes, placed),
        placed,
        activities.join(work, calls),
        operations.Calls(
            calls.start, calls.end, calls.process, calls.thread & activities.THREAD_BITS,
            *activities.read_call_names(export, strings),
        ),
        ranges,
        _waits(calls),
        activities.pids,
        lambda threads: threads & activities.THREAD_BITS,
        latest,
    )  # fmt: skip


def _latest(work: activities.Work, calls: activities.Calls) -> int:
    return max(int(work.end.max(initial=activities.NULL)), int(calls.end.max(initial=activities.NULL)))


# --- the tables ------------------------------------------------------------------------------------------------------


def _kernel_rows(work: activities.Work, placed: attribution.Attribution) -> pd.DataFrame:
    """Return rows of `kernels`."""

    def numbered(column: npt.NDArray[Any], known: Callable[[Any], Any] = lambda values: values) -> Any:
        codes, values = factorize(column)
        # Negative pids and ordinals stand for NULL.
        return labelled(codes, [int(number) if number >= 0 else None for number in known(values)])

    # Without a name for the launches, which ``summarise`` frees as soon as it can.
    rows = launch_tables.kernel_rows(
        pd.DataFrame(
            {
                "case": labelled(placed.path, placed.paths.case),
                "process": numbered(work.process, activities.pids),
                "device": numbered(work.device),
                "stream": numbered(work.stream),
                "phase": labelled(placed.path, placed.paths.phase),
                "kind": labelled(work.kind, schema.KINDS),
                "kernel": labelled(work.name, work.names),
                "duration_ns": np.subtract(work.end, work.start, dtype=np.float64),
            },
            copy=False,
        )
    )
    return kernel_classes.annotate(rows)


def _waits(calls: activities.Calls) -> operations.Calls:
    rows = calls.waits
    thread = calls.thread[rows] & activities.THREAD_BITS
    return operations.Calls(
        calls.start[rows], calls.end[rows], calls.process[rows], thread, calls.wait_name, calls.wait_names
    )


def _operations(
    export: columns.Source,
    work: activities.Work,
    launches: attribution.Launches,
    classes: Sequence[str],
    placed: attribution.Attribution,
    checks: Sequence[reconcile.Row] = (),
) -> operations.Operations:
    # Without the other columns of the launches: one of ten million kernels is 80 MB.
    end, thread = launches.end, (launches.thread & activities.THREAD_BITS).astype(np.int32)

    def read_calls(rows: npt.NDArray[Any]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
        return end[rows], thread[rows]

    return operations.Operations(
        work.kind,
        work.start,
        work.end,
        launches.start,
        work.process,
        work.device,
        work.name,
        work.names,
        classes,
        placed.in_case,
        work.stream,
        read_calls,
        work.grid,
        functools.partial(activities.read_sizes, export, work),
        checks=checks,
    )


def _checks(export: columns.Source, work: activities.Work, calls: activities.Calls) -> list[reconcile.Row]:
    """Return the kernels whose end was corrected, the launches without a kernel, and the replays that lack some."""
    rows, removed = work.late_ends
    found = list(reconcile.of_late_ends(removed, work.name[rows], work.names))
    of_work = dict(groups(work.process))
    for process, own in groups(calls.process[calls.launches]):
        # nsys may record a call twice, under its name with and without a version.
        launched = pd.unique(calls.correlation[calls.launches[own]])
        done = np.isin(launched, work.correlation[of_work[process]]) if process in of_work else np.zeros(1, dtype=bool)
        lost = reconcile.of_lost_kernels(len(launched), int(done.sum()))
        found += [{**check, "process": process} for check in lost]
    if len(calls.graphs) and (graph := activities.read_graphs(export, work)) is not None:
        for process, own in groups(work.process):
            own = own[work.kind[own] == schema.KINDS.index("kernel")]
            launch = np.where(work.correlation[own] == 0, -1, work.correlation[own].astype(np.int64))
            replays = reconcile.of_replays(graph[own], launch, work.name[own])
            found += [{**check, "process": process} for check in replays]
    return found


def _origin(export: columns.Source, work: activities.Work, placed: attribution.Attribution) -> schema.Origin:
    is_kernel = work.is_kind("kernel")
    duration = work.end - work.start
    total, attributed = (int(duration.sum(where=rows)) for rows in (is_kernel, is_kernel & placed.in_case))
    meta = columns.read_lookup(export, "META_DATA_EXPORT", "name", "value")
    meta |= columns.read_lookup(export, "EXPORT_META_DATA", "name", "value")
    return schema.Origin(
        format=f"nsys export, schema {meta.get('EXPORT_SCHEMA_VERSION') or 'without a version (before 2022)'}",
        tool="nsys",
        tool_version=meta.get("EXPORT_PRODUCT_VERSION", ""),
        launches=int(is_kernel.sum()),
        total_ns=float(total),
        attributed_ns=float(attributed),
        unattributed_ns=float(total - attributed),
        attribution=_count_placements(placed, is_kernel),
        device=_device(export, work),
        without_kernels="" if is_kernel.any() else _without_kernels(work),
    )


def _without_kernels(work: activities.Work) -> str:
    others = int((work.is_kind("memcpy") | work.is_kind("memset")).sum())
    only = f", only {others} {'copy or set' if others == 1 else 'copies and sets'}" if others else ""
    return f"no kernels in this file{only}"


def _count_placements(placed: attribution.Attribution, is_kernel: npt.NDArray[np.bool_]) -> dict[schema.Placement, int]:
    if not len(placed.range_path):
        return {schema.Placement.NO_RANGES: int(is_kernel.sum())}
    found, by_time = placed.path[is_kernel] != 0, placed.by_time[is_kernel]
    counts = {
        schema.Placement.THREAD: int((found & ~by_time).sum()),
        schema.Placement.OTHER_THREAD: int(by_time.sum()),
        schema.Placement.NO_RANGE: int((~found).sum()),
    }
    return {how: count for how, count in counts.items() if count}


def _device(export: columns.Source, work: activities.Work) -> str:
    """Return the names of the GPUs that ran something, empty where the file does not say."""
    _, firsts = combine(work.process, work.device)
    pids = activities.pids(work.process[firsts])
    ran = {(str(pid), str(device)) for pid, device in zip(pids, work.device[firsts], strict=True)}
    by_id = columns.read_lookup(export, "TARGET_INFO_GPU", "id", "name")
    # `id` numbers the GPUs by bus, a kernel's deviceId is CUDA's ordinal. On a four-GPU node the two may count in
    # opposite order, and each process may see other GPUs.
    mapped = columns.read_rows(export, "TARGET_INFO_CUDA_DEVICE", "pid", "cudaId", "gpuId")
    names = {by_id.get(gpu, "") for pid, ordinal, gpu in mapped if (pid, ordinal) in ran}
    by_ordinal = columns.read_lookup(export, "TARGET_INFO_GPU", "cuDevice", "name")
    by_ordinal |= columns.read_lookup(export, "TARGET_INFO_CUDA_GPU", "deviceId", "name")
    names = names or {by_ordinal.get(ordinal, "") for _, ordinal in ran}
    installed = {name for (name,) in columns.read_rows(export, "TARGET_INFO_GPU", "name")}
    return ", ".join(sorted(names - {""}) or (installed if ran and len(installed) == 1 else []))
