"""The run itself: its title, machine, versions and tools, its files, and the commands that repeat it."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import PurePosixPath
from typing import Final
from urllib.parse import unquote

from profpipe.analysis.findings import Findings, Unattributed
from profpipe.analysis.grouping import grouped
from profpipe.job import Status, as_text, count_cases
from profpipe.report import document as doc
from profpipe.report.labels import add_workload, duration, fill, is_on_cpu, names
from profpipe.report.text import write_text
from profpipe.report.units import number, percent, size_unit, time_unit
from profpipe.results import folders
from profpipe.results.manifest import DeviceEntry, FileEntry, Gpu, JobEntry, Manifest, NodeEntry, PeakRates, ToolEntry
from profpipe.results.schema import GPUS, Placement as Placed, Tables

#: Nodes that a row names; more are counted.
_MOST_NODES = 8


def environment(run: Manifest) -> doc.Section:
    """Return the machine, the packages, the state of the repository and the profilers."""
    facts = tuple(f"{name}: {value}" for name, value in _facts(run))
    columns = (doc.label("profiler"), doc.label("version"), doc.words("note"))
    rows = [_tool(name, tool) for name, tool in run.tools.items()]
    tools = doc.make_table("tools", columns, rows, placement=doc.OnPage.DETAILS)
    bullets = doc.Bullets(facts, doc.OnPage.DETAILS)
    return doc.make_section("environment", "Environment", [bullets, _nodes(run), tools])


def _nodes(run: Manifest) -> doc.TableBlock:
    """Return the nodes of a cluster: like nodes are one row."""

    def facts(node: NodeEntry) -> tuple[str, ...]:
        gpus = "; ".join(dict.fromkeys(map(_gpu, node.machine.gpus or ()))) or "none"
        clocks = {gpu.max_sm_clock_hz / 1e6 for gpu in node.machine.gpus or () if gpu.max_sm_clock_hz}
        clock = ", ".join(f"{clock:.0f} MHz" for clock in sorted(clocks))
        return gpus, clock, node.machine.cpu, node.packages.get("torch") or ""

    columns = [doc.label("nodes"), *map(doc.words, ("GPUs", "highest SM clock", "CPU", "torch"))]
    alike = grouped((facts(node), name) for name, node in run.nodes.items())
    rows: list[tuple[doc.Text, ...]] = [(doc.join(names, most=_MOST_NODES), *cells) for cells, names in alike.items()]
    return doc.make_table("nodes", columns, rows, placement=doc.OnPage.DETAILS)


def _facts(run: Manifest) -> Iterator[tuple[str, str]]:
    machine = run.machine
    yield from ((f"GPU {i}", _gpu(gpu)) for i, gpu in enumerate(machine.gpus or ()))
    rates = {"peak rates": machine.peaks, "measured rates": machine.ceilings}
    rates |= {f"peak rates of {job.workload}": job.peaks for job in run.jobs if job.peaks}
    yield from ((name, write_rates(peak_rates)) for name, peak_rates in rates.items() if peak_rates)
    if machine.cpu:
        yield "CPU", machine.cpu + (f", {machine.cpu_count} CPUs" if machine.cpu_count else "")
    packages = ", ".join(f"{name} {version}" for name, version in run.packages.items() if version)
    dirty = "" if run.git.dirty is None else f", dirty {as_text(run.git.dirty)}"
    facts = {
        "system": machine.os,
        "Python": machine.python,
        "packages": packages,
        "git": f"commit {run.git.commit}{dirty}" if run.git.commit else "",
        "started": run.started,
        "ended": run.ended,
    }
    yield from ((name, fact) for name, fact in facts.items() if fact)


def _gpu(gpu: Gpu) -> str:
    facts = [
        gpu.name,
        size_unit([gpu.memory_bytes]).with_name(gpu.memory_bytes) if gpu.memory_bytes else "",
        f"{gpu.sm_count} SMs" if gpu.sm_count else "",
        f"compute capability {'.'.join(map(str, gpu.compute_capability))}" if gpu.compute_capability else "",
        f"driver {gpu.driver}" if gpu.driver else "",
        f"CUDA {gpu.cuda}" if gpu.cuda else "",
    ]
    return ", ".join(fact for fact in facts if fact)


def write_rates(rates: PeakRates) -> str:
    """Return ``fp16 711.4, int8 939.1 TFLOP/s, memory 4249 GB/s; measured``: the rates and their source."""
    flops = ", ".join(f"{dtype} {number(rate / 1e12)}" for dtype, rate in rates.flops.items() if rate)
    memory = f"memory {number(rates.bytes_per_s / 1e9)} GB/s" if rates.bytes_per_s else ""
    figures = ", ".join(rate for rate in (f"{flops} TFLOP/s" if flops else "", memory) if rate)
    return "; ".join(part for part in (figures, rates.source) if part)


def _tool(name: str, tool: ToolEntry) -> tuple[doc.Text, ...]:
    if tool.missing:
        return doc.Code(name), "not found", " ".join(filter(None, [tool.missing, tool.remedy]))
    return doc.Code(name), tool.version or ("built in" if name == "plain" else "found"), tool.variant


# --- the title -------------------------------------------------------------------------------------------------------


def title(workloads: Iterable[str], cases: int, run: Manifest, tables: Tables) -> str:
    """Return ``attention · 14 cases · NVIDIA H200 · 2026-11-20 05:55 UTC``."""
    names, name = list(workloads), run.pipeline.name if run.pipeline else ""
    named = name if name and len(names) > 1 else _listed(names) or run.name or "profpipe"
    count = count_cases(cases) if cases else ""
    return " · ".join(part for part in (named, count, _machine(run, tables), _date(run)) if part)


def _listed(names: Iterable[str]) -> str:
    return write_text(doc.join(dict.fromkeys(names), most=3))


def _machine(run: Manifest, tables: Tables) -> str:
    """Return the GPU, the CPU of a machine without a GPU, or the device that the files name."""
    gpus = run.machine.gpus
    if gpus is None:
        devices = [file.device for file in run.files]
        return _listed(device or "GPU not named" for device in devices) if any(devices) else ""
    if not gpus:
        return f"{run.machine.cpu or 'CPU'}, no GPU"
    names = list(dict.fromkeys(gpu.name for gpu in gpus))
    if len(names) > 1:
        return _listed([entry.device for job in run.jobs for entry in job.devices] or names)
    count = _gpus_in_use(run, tables)
    if count is not None and count < len(gpus):
        return f"{count} of {len(gpus)} {names[0]}"
    return (f"{len(gpus)} x " if len(gpus) > 1 else "") + names[0]


def _gpus_in_use(run: Manifest, tables: Tables) -> int | None:
    """Return how many GPUs the jobs used at once at most; None if a job that ran does not say.

    Each process of a script names the GPU that it began on; the kernels name the others.
    """
    ran = [job for job in run.jobs if job.status is not Status.SKIPPED and job.returncode is not None]
    counts = [[entry.count for entry in job.devices or (DeviceEntry(),) if entry.device != "cpu"] for job in ran]
    stated = [[count for count in of_job if count is not None] for of_job in counts]
    silent = {job.workload for job, given, counted in zip(ran, stated, counts, strict=True) if given != counted}
    # A results folder may hold anything.
    of_programs = tables.metrics[(tables.metrics["metric"] == GPUS) & tables.metrics["value"].between(1, 1e6)]
    if not ran or not silent <= {*of_programs["workload"]}:
        return None
    recorded = tables.kernels.groupby(["workload", "profiler"])["device"].nunique()
    return max([*map(sum, stated), *of_programs["value"].astype(int), *recorded]) or None


def _date(run: Manifest) -> str:
    try:
        return datetime.fromisoformat(run.started.replace("Z", "+00:00")).strftime("%Y-%m-%d %H:%M UTC")
    except ValueError:
        return ""


# --- files -----------------------------------------------------------------------------------------------------------

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
        doc.concat(outside(unattributed, findings), f"{setup if unattributed.has_setup else ''}.")
        for unattributed in findings.unattributed
        if unattributed.has_setup or unattributed.unexplained < LEAST_UNEXPLAINED
    )
    remarks = (*_private_files(run), *_reused(run), *apart, *notes(findings, run, are_warnings=False))
    return doc.make_section("files", "Files", [_file_table(run), doc.Bullets(remarks, doc.OnPage.DETAILS)])


def _file_table(run: Manifest) -> doc.TableBlock:
    sizes = {file.path: file.bytes for job in run.jobs for file in job.files}

    def size(group: Sequence[FileEntry]) -> doc.TableCell:
        total = sum(sizes.get(file.source, 0) for file in group)
        return doc.TableCell(text=doc.Amount(total, size_unit([total]))) if total else doc.TableCell()

    def launches(group: Sequence[FileEntry]) -> int | None:
        """Return None where the files hold something else instead of kernels."""
        total = sum(file.launches for file in group)
        return total if total or not any(file.without_kernels for file in group if not file.launches) else None

    def time(group: Sequence[FileEntry], name: str) -> doc.TableCell | None:
        times_ns = [ns for file in group if (ns := getattr(file, name)) is not None]
        if launches(group) is None or not times_ns:
            return None
        total = float(sum(times_ns))
        return doc.TableCell(text=doc.Amount(total, time_unit([total]))) if total else doc.TableCell(0.0)

    def place(group: Sequence[FileEntry]) -> doc.Text:
        folder_text = doc.concat(doc.Code(f"{_folder(group[0])}/"), f", {len(group)} files")
        return folder_text if len(group) > 1 else doc.Code(group[0].source)

    columns: doc.Columns[list[FileEntry]] = [
        (doc.label("file"), place),
        (doc.label("format"), lambda group: group[0].format),
        (doc.label("tool"), lambda group: f"{group[0].tool} {group[0].tool_version}".strip()),
        (doc.number("size", "size"), size),
        (doc.count("launches"), launches),
        (doc.number("total", "kernel time"), lambda group: time(group, "total_ns")),
        (doc.number("attributed", "in cases"), lambda group: time(group, "attributed_ns")),
        (doc.number("unattributed", "outside every case"), lambda group: time(group, "unattributed_ns")),
        (doc.words("attribution", "placed in ranges"),
         lambda group: _attribution(group, "CPU operators " if launches(group) is None else "")),
    ]  # fmt: skip
    with_kernels = [file for file in run.files if file.total_ns is not None or file.launches]
    # The files of one folder, format and tool have one row.
    alike = grouped(((_folder(file), file.format, file.tool, file.tool_version), file) for file in with_kernels)
    table = doc.table_of("files", alike.values(), columns, placement=doc.OnPage.DETAILS)
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
    parts = [_PLACEMENTS[how] if None in numbers else f"{sum(filter(None, numbers))} {_PLACEMENTS[how]}"
             for how, numbers in counts.items()]  # fmt: skip
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
    table = doc.table_of("launch_counts", findings.launch_counts, columns, placement=doc.OnPage.DETAILS)
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


def outside(unattributed: Unattributed, findings: Findings) -> doc.Text:
    """Return how much kernel time of a profiler lies outside every case."""
    flush = (
        f", {percent(unattributed.flush_ns / unattributed.ns)} % of it the cache flush" if unattributed.flush_ns else ""
    )
    return doc.concat(
        duration(unattributed.ns), f" ({percent(unattributed.share)} %) of the kernel time",
        add_workload(unattributed.workload, findings), " under ", doc.Code(unattributed.profiler),
        f" lie outside every case{flush}",
    )  # fmt: skip


def notes(findings: Findings, run: Manifest, are_warnings: bool) -> list[doc.Text]:
    """Return what the parsers note of the files: warnings or remarks; files with the same notes share a line."""
    on_cpu = run.machine.gpus == () or is_on_cpu(findings)

    def chosen(file: FileEntry) -> tuple[str, ...]:
        missing = (file.without_kernels,) if file.without_kernels and are_warnings is not on_cpu else ()
        remarks = (*file.details, *(f"read with it: {name}" for name in file.read_with))
        return (*missing, *(file.notes if are_warnings else remarks))

    sources = grouped((chosen(file), file.source) for file in run.files if chosen(file))
    return [
        doc.concat(names(paths, _NAMED), f": {' '.join(map(as_sentence, texts))}") for texts, paths in sources.items()
    ]


def as_sentence(text: str) -> str:
    """Return ``text`` with a full stop."""
    flat = " ".join(text.split())
    return flat if not flat or flat.endswith((".", "!", "?")) else f"{flat}."


# --- commands --------------------------------------------------------------------------------------------------------


def command_on(run: Manifest, command: str) -> str:
    """Return ``profpipe command RUN`` as it can be typed where the run was started."""
    if not _date(run):  # a record without it does not say what the folder is called
        return f"profpipe {command}"
    words = [*itertools.takewhile(lambda word: word != "--", run.command)]
    places = [word.removeprefix("--out=") for word in words if word.startswith("--out=")]
    places += [following for word, following in itertools.pairwise(words) if word == "--out"]
    name = folders.folder_name(folders.run_name(run), datetime.fromisoformat(run.started.replace("Z", "+00:00")))
    return shlex.join(["profpipe", command, str(PurePosixPath(places[-1] if places else "out", name))])


def commands(run: Manifest) -> doc.Section:
    """Return the command of the run, and the commands that each job started."""
    blocks: list[doc.Block] = [doc.CodeBlock(shlex.join(run.command))] if run.command else []
    # The pipeline file of a program from the command line is in the run's folder.
    if "--" in run.command and not (run.ab and run.ab.tried):
        how = (
            (": its first line is the command.",)
            if run.ab or run.bisect
            else (": ", doc.Code("profpipe run pipeline.yaml"), ".")
        )
        blocks.append(doc.Paragraph((doc.Code("pipeline.yaml"), " in the folder of this run repeats it", *how)))
    if early := dict.fromkeys(job.profiler for job in run.jobs if job.ended_early):
        words = "The program ended after the recorded steps under {}, because plain ran it to its end: {}"
        words += " runs it to its end under all."
        option = "--no-stop" if "--" in run.command else "steps: {stop: false}"
        blocks.append(doc.Paragraph(fill(words, doc.join([*early], last=" and "), doc.Code(option))))
    return doc.Section("commands", "How to repeat it", (*blocks, *jobs(run.jobs)))


def jobs(entries: Iterable[JobEntry]) -> Iterator[doc.Details]:
    """Yield the commands of each job, folded below what became of it."""
    # The processes that repeat a command differ in nothing but their time.
    alike = grouped(
        ((job.workload, job.profiler, job.cases, job.argv, job.reused_from, job.status, job.interrupted, job.lane), job)
        for job in entries
        if job.argv
    )
    for group in alike.values():
        job, seconds = group[0], sum(job.seconds for job in group)
        status = Status.INTERRUPTED if job.interrupted else job.status
        processes = f", {len(group)} processes" if len(group) > 1 else ""
        place = f", on {job.lane}, beside other jobs" if job.lane else ""
        ended = "" if status is Status.OK else f", {status}"
        took = f", {seconds:.1f} s" if seconds else ""
        took = f", reused from {job.reused_from}" if job.reused_from else took
        lines = "\n".join(map(shlex.join, job.argv))
        yield doc.Details(
            f"{job.workload} under {job.profiler}{processes}{took}{place}{ended}", (doc.CodeBlock(lines),)
        )
