"""The files of a run: what each holds, and the sums that show that no kernel time is lost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import Final
from urllib.parse import unquote

from profpipe.analysis.findings.workloads import Findings, Unattributed
from profpipe.analysis.grouping import grouped
from profpipe.report import document as doc
from profpipe.report.labels import has_no_gpu, is_on_cpu, names, of_workload
from profpipe.report.units import duration, percent, size_unit, time_unit
from profpipe.results.manifest import FileEntry, Manifest
from profpipe.results.schema import Placement as Placed

#: Files that hold the environment and the command line of the profiled process.
_PRIVATE = (".nsys-rep", ".qdrep", ".ncu-rep")

#: From this share of the kernel time on, unexplained time outside every case is a warning.
LEAST_UNEXPLAINED = 0.001

_NAMED = 3


def files(findings: Findings, run: Manifest) -> doc.Section:
    """Return what the run's files hold, and remarks on them."""
    # Set-up, warm-up and the cache flush explain this kernel time.
    setup = ": set-up, warm-up and the cache flush between samples"
    apart = (
        doc.concat(outside(found, findings), f"{setup if found.has_setup else ''}.")
        for found in findings.unattributed
        if found.has_setup or found.unexplained < LEAST_UNEXPLAINED
    )
    remarks = (*_private_files(run), *_reused(run), *apart, *notes(findings, run, are_warnings=False))
    return doc.make_section("files", "Files", [_table(run), doc.Bullets(remarks, doc.Placement.DETAILS)])


def _table(run: Manifest) -> doc.Table:
    sizes = {file.path: file.bytes for job in run.jobs for file in job.files}

    def size(group: Sequence[FileEntry]) -> doc.Cell:
        total = sum(sizes.get(file.source, 0) for file in group)
        return doc.Cell(text=doc.Number(total, size_unit([total]))) if total else doc.Cell()

    def launches(group: Sequence[FileEntry]) -> int | None:
        """Return None where the files hold something else instead of kernels."""
        total = sum(file.launches for file in group)
        return total if total or not any(file.without_kernels for file in group if not file.launches) else None

    def time(group: Sequence[FileEntry], name: str) -> doc.Cell | None:
        known = [ns for file in group if (ns := getattr(file, name)) is not None]
        if launches(group) is None or not known:
            return None
        total = float(sum(known))
        return doc.Cell(text=doc.Number(total, time_unit([total]))) if total else doc.Cell(0.0)

    def place(group: Sequence[FileEntry]) -> doc.Text:
        own = doc.concat(doc.Code(f"{_folder(group[0])}/"), f", {len(group)} files")
        return own if len(group) > 1 else doc.Code(group[0].source)

    columns: doc.Columns[list[FileEntry]] = [
        (doc.label("file"), place),
        (doc.label("format"), lambda group: group[0].format),
        (doc.label("tool"), lambda group: f"{group[0].tool} {group[0].tool_version}".strip()),
        (doc.Column("size", "size"), size),
        (doc.count("launches"), launches),
        (doc.Column("total", "kernel time"), lambda group: time(group, "total_ns")),
        (doc.Column("attributed", "in cases"), lambda group: time(group, "attributed_ns")),
        (doc.Column("unattributed", "outside every case"), lambda group: time(group, "unattributed_ns")),
        (doc.words("attribution", "placed in ranges"),
         lambda group: _attribution(group, "CPU operators " if launches(group) is None else "")),
    ]  # fmt: skip
    with_kernels = [file for file in run.files if file.total_ns is not None or file.launches]
    # The files of one folder, format and tool have one row.
    alike = grouped(((_folder(file), file.format, file.tool, file.tool_version), file) for file in with_kernels)
    table = doc.table_of("files", alike.values(), columns, placement=doc.Placement.DETAILS)
    # Files from elsewhere may know no cases: then no kernel is outside of one.
    has_cases = run.jobs or any(file.attributed_ns for file in run.files)
    return table if has_cases else table.without("attributed", "unattributed")


def _folder(file: FileEntry) -> str:
    return str(PurePosixPath(file.source).parent)


_PLACEMENTS: Final = {
    Placed.THREAD: "by the launching thread's ranges",
    Placed.OTHER_THREAD: "by time, launched from another thread",
    Placed.API_CALL: "by the thread and the time of their API call (correlation id)",
    Placed.DISPATCH: "by the thread and the time of their dispatch",
    Placed.RUN_TIME: "by the time at which they ran",
    Placed.NVTX_STATE: "by the NVTX ranges open at the launch",
    Placed.NVTX_COLUMNS: "by the NVTX ranges that ncu printed beside them",
    Placed.NO_RANGE: "in no range",
    Placed.SHARED_ID: "launched by one of several processes that used the same id",
    Placed.NO_CALL: "without a recorded launch",
    Placed.NO_RANGES: "in no range: the file holds no ranges",
    Placed.NO_NVTX: "in no range (ncu records NVTX ranges only with --nvtx)",
    Placed.NOT_SHOWN: "in no range: the file does not show where its kernels were launched",
    Placed.OF_OTHER_THREAD: "of them in a range of another thread",
    Placed.OF_EXTERNAL_ID: "of them joined to their operator by External id for want of a correlation id",
}


def _attribution(group: Sequence[FileEntry], noun: str) -> str:
    """Return how launches were placed in ranges, of several files together; ``noun`` names what the first count is."""
    counts = grouped(pair for file in group for pair in file.attribution.items())
    parts = [_PLACEMENTS[how] if None in own else f"{sum(filter(None, own))} {_PLACEMENTS[how]}"
             for how, own in counts.items()]  # fmt: skip
    if noun and parts:
        parts[0] = parts[0].replace(" ", f" {noun}", 1)
    return "; ".join(parts)


def launch_counts(findings: Findings) -> doc.Section:
    """Return a row for each two profilers: their common cases, and in how many each kernel has the same count."""
    columns = [
        (doc.label("profilers"), lambda counts: names(counts.profilers)),
        (doc.label("workload"), lambda counts: doc.Code(counts.workload)),
        (doc.count("launches"), lambda counts: counts.number),
        (doc.words("per", "of"), lambda counts: "one iteration" if counts.is_per_iteration else "all iterations"),
        (doc.count("cases"), lambda counts: counts.cases),
        (doc.count("same_total", "same total"), lambda counts: counts.cases - len(counts.differing)),
        (doc.count("same_by_kernel", "same by kernel"), lambda counts: counts.same_by_kernel),
    ]
    table = doc.table_of("launch_counts", findings.launch_counts, columns, placement=doc.Placement.DETAILS)
    table = table if len(findings.workloads) > 1 else table.without("workload")
    return doc.make_section("launch_counts", "Launches that two profilers recorded", [table])


# --- remarks ---------------------------------------------------------------------------------------------------------


def _private_files(run: Manifest) -> Iterator[doc.Text]:
    """Yield which files hold the environment of the profiled process."""
    private = run.private_files
    if private is None:
        private = tuple(file.path for job in run.jobs for file in job.files if file.path.endswith(_PRIVATE))
    if private:
        kinds = doc.join(doc.Code(kind) for kind in _PRIVATE if any(path.endswith(kind) for path in private))
        recordings = doc.concat(kinds, " files hold the environment and the command line of the profiled process. ")
        # Recordings first: they are the ones that people share.
        ordered = sorted(private, key=lambda path: not path.endswith(_PRIVATE))
        yield doc.concat(
            recordings if kinds else "", "Only their owner may read these private files; check them before you share"
            " them: ", names(ordered, _NAMED), ". The tables, the pages and the exports hold no secret.",
        )  # fmt: skip


def _reused(run: Manifest) -> Iterator[doc.Text]:
    """Yield which results an earlier run measured."""
    for (workload, profiler), jobs in grouped(((job.workload, job.profiler), job) for job in run.jobs).items():
        for source in dict.fromkeys(job.reused_from for job in jobs if job.reused_from):
            reused = [job for job in jobs if job.reused_from == source]
            cases = dict.fromkeys(case for job in reused for case in job.cases)
            named = doc.join((doc.Code(unquote(case)) for case in cases), most=8)
            some = doc.concat(": ", named) if len(reused) < len(jobs) and named else ""
            which = doc.concat(doc.Code(workload), " under ", doc.Code(profiler))
            yield doc.concat("Measured by the run ", doc.Code(source), ": ", which, some, ".")


def outside(found: Unattributed, findings: Findings) -> doc.Text:
    """Return how much kernel time of a profiler lies outside every case."""
    flush = f", {percent(found.flush_ns / found.ns)} % of it the cache flush" if found.flush_ns else ""
    return doc.concat(
        f"{duration(found.ns)} ({percent(found.share)} %) of the kernel time", of_workload(found.workload, findings),
        " under ", doc.Code(found.profiler), f" lie outside every case{flush}",
    )  # fmt: skip


def notes(findings: Findings, run: Manifest, are_warnings: bool) -> list[doc.Text]:
    """Return what the parsers note of the files: warnings or remarks; files with the same notes share a line."""
    on_cpu = has_no_gpu(run) or is_on_cpu(findings)

    def chosen(file: FileEntry) -> tuple[str, ...]:
        missing = (file.without_kernels,) if file.without_kernels and are_warnings is not on_cpu else ()
        remarks = (*file.details, *(f"read with it: {name}" for name in file.read_with))
        return (*missing, *(file.notes if are_warnings else remarks))

    sources = grouped((chosen(file), file.source) for file in run.files if chosen(file))
    return [doc.concat(names(paths, _NAMED), f": {' '.join(map(as_sentence, own))}") for own, paths in sources.items()]


def as_sentence(text: str) -> str:
    """Return ``text`` with a full stop."""
    flat = " ".join(text.split())
    return flat if not flat or flat.endswith((".", "!", "?")) else f"{flat}."
