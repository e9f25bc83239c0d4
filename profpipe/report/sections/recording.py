"""Recordings in which no step was found: where the time goes in one, and several files side by side."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from pathlib import PurePath

from profpipe.analysis.case_index import Measure
from profpipe.analysis.findings import CLOSE, CaseResult, Findings, Iteration, WorkloadFindings
from profpipe.analysis.kernels import ClassTotal, KernelBreakdown, KernelTotals, find_variants
from profpipe.analysis.steps import IDLE_PARTS, ONE_DEVICE, Place, StepPart, StepParts, place_name
from profpipe.job import Cause, Status
from profpipe.report import document as doc
from profpipe.report.labels import (
    case_texts,
    duration,
    fill,
    literal,
    make_time_cell,
    percent,
    plural,
    ratio,
    short_names,
)
from profpipe.report.sections.plots import pieces
from profpipe.report.sections.steps import LEAST_SHOWN, PART_NAMES, WHY_IDLE, copy_table
from profpipe.report.units import Unit, count, size_unit, step_unit, time_unit
from profpipe.results.manifest import FileEntry, Manifest
from profpipe.results.schema import PROCESS_WALL, PYTHON_LINES, Check

#: Copies of at least this share of the kernel time are in the headline.
_LEAST_COPIES = 0.05

#: A variant of a kernel that takes so many times as long as the fastest one is in the headline.
_SLOWER = 1.05

#: A launch is named that takes so many times as long as the others of its kernel, and this share of all kernel time.
_LONGER, _LONG_SHARE = 10, 0.2

#: A GPU that is idle for no more than this share is busy all the time.
_LEAST_IDLE = 0.1

#: A case is represented by the launches of one kernel that takes so much of its kernel time.
_MAIN_KERNEL = 0.9

#: Kernels of a program that a sentence names.
_NAMED = 4

#: Metrics of the peak memory of a process, and whose memory it is.
_PEAKS = {"peak_allocated": "GPU, allocated by torch,", "peak_host": "host"}

#: The metric of ncu with the bytes per second between a kernel and the memory of the GPU.
_BANDWIDTH = "dram__bytes.sum.per_second"

#: What a GPU did, of a part of a recording.
_SPENT = {
    StepPart.COMPUTE: "computed {}",
    StepPart.COMMUNICATION: "communicated while nothing computed {}",
    StepPart.COPY: "copied while no kernel ran {}",
}

_ONE_BY_ONE = (
    "No steps: the profiler ran the launches one by one to read its counters, so the time between them says nothing"
    " about the program. Record without counters to see steps and idle time."
)
_SUMS = "No steps: the file does not say when each launch ran, so neither steps nor idle time can be found."
_NO_TIMES = "No steps were found: the profiler did not record when each launch ran."
_CONTRADICTED = "No step is given, since the recording contradicts itself."
_NO_MARKER = (
    "No steps were found: no marker and no range of the program or a framework says where one begins. In a span of time"
    " launches that recur may be the layers of a model."
)
_NOTHING_RECURS = (
    "No steps were found: no marker and no range of the program or a framework says where one begins, and no sequence"
    " of launches recurs in at least half of the kernel time."
)


def recording(workload: WorkloadFindings) -> doc.Section:
    """Return why there are no steps, the parts of the whole recording by rank, and its copies.

    The section is empty for measured calls, and where steps were found.
    """
    if not _is_of_everything(workload) or workload.is_on_cpu or not workload.steps.without_steps:
        return doc.Section("recording", "", workload=workload.name)
    labels = case_texts(workload.cases)
    copies = copy_table(
        [(labels.get(case, ""), case_copies) for case, case_copies in workload.steps.copies.items()], "copies and sets"
    )
    parts = None if _has_unknown_times(workload) else _parts_table(workload)
    waits, variants = _waits_table(workload), _variants_table(workload)
    blocks = (doc.Paragraph(_reason(workload)), parts, copies, waits, variants)
    return doc.make_section("recording", "Where the time goes", blocks, workload=workload.name)


def _is_of_everything(workload: WorkloadFindings) -> bool:
    """Return True if no steps were found, and the kernel times are not of measured calls."""
    return not workload.steps and workload.iteration in (Iteration.CAPTURE, Iteration.PROCESS)


def _reason(workload: WorkloadFindings) -> str:
    if workload.steps.one_by_one:
        return _ONE_BY_ONE
    if not workload.steps.recordings:
        return _SUMS if workload.iteration is Iteration.CAPTURE else _NO_TIMES
    ends = "" if _has_unknown_times(workload) else ", from the first operation of each GPU to its last"
    is_contradicted = any(check.forbids_steps for _, _, check, *_ in workload.steps.contradictions)
    is_span = workload.declared is not None and workload.declared.capture is not None
    why = _CONTRADICTED if is_contradicted else _NO_MARKER if is_span else _NOTHING_RECURS
    return f"{why} The figures are of the whole recording{ends} ({workload.kernel_profiler})."


def _parts_table(workload: WorkloadFindings) -> doc.TableBlock:
    """Return a row per case and rank, or GPU of the only process: what was recorded, and its parts."""
    recorded = [
        (case, place, parts)
        for case, by_place in workload.steps.recordings.items()
        for place, parts in by_place.items()
    ]
    unit, places = step_unit(parts.wall_ns for *_, parts in recorded), {place for _, place, _ in recorded}
    labels = case_texts(workload.cases)
    # Several GPUs of the only process are no ranks.
    is_lone = all(rank == 0 and device != ONE_DEVICE for rank, device in places)
    columns: doc.Columns[tuple[str, Place, StepParts]] = [
        (doc.label("case"), lambda row: labels.get(row[0], "")),
        (doc.label("rank", "GPU" if is_lone else "rank"),
         lambda row: f"GPU {row[1][1]}" if is_lone else place_name(row[1])),
        (doc.number("wall", "recorded", unit), lambda row: row[2].wall_ns),
        *((doc.number(part.value, PART_NAMES[part], unit),
           lambda row, part=part: make_time_cell(row[2].ns[part], row[2].share(row[2].ns[part])))
          for part in StepPart if any(parts.share(parts.ns[part]) >= LEAST_SHOWN for *_, parts in recorded)),
    ]  # fmt: skip
    alone = {"case": len(workload.cases), "rank": len(places)}
    return doc.table_of("recording", recorded, columns).without(*(name for name, number in alone.items() if number < 2))


def launches(workload: WorkloadFindings) -> doc.Section:
    """Return the median time of each kernel by launch configuration, of the cases of a command without steps."""
    labels, times = case_texts(workload.cases), workload.launch_times
    rows = [(labels[case], *key, time) for case, case_times in times.items() for key, time in case_times.items()]
    short = short_names(kernel for _, kernel, *_ in rows)
    columns: doc.Columns[tuple[doc.Text, str, str, str, Measure]] = [
        (doc.label("case"), lambda row: row[0]),
        (doc.label("kernel"), lambda row: doc.Code(short[row[1]])),
        (doc.words("grid"), lambda row: _size(row[2])),
        (doc.words("block"), lambda row: _size(row[3])),
        (doc.number("ns", "median", time_unit(time.ns for *_, time in rows)), lambda row: row[-1].ns),
        (doc.count("calls"), lambda row: row[-1].n),
    ]
    table = doc.table_of("launches", rows, columns[len(workload.cases) < 2 :])
    return doc.make_section("launches", "Kernels by launch configuration", [table], workload=workload.name)


def _size(sizes: str) -> str:
    """Return ``128`` of ``128x1x1``."""
    return re.sub("(x1)+$", "", sizes)


def fastest_launches(workload: WorkloadFindings) -> list[tuple[CaseResult, tuple[str, str, str], Measure]]:
    """Return the fastest launch of the kernel that each case spends its GPU time in, the fastest case first.

    Empty where a case has none, or where one kernel does not take nearly all of it: its launches are then no measure.
    """
    fastest = []
    for case in workload.cases:
        times = workload.launch_times.get(case.id, {})
        sums = {
            name: sum(time.ns * (time.n or 0) for (other, *_), time in times.items() if other == name)
            for name, *_ in times
        }
        kernel = max(sums, key=lambda name: sums[name], default="")
        if not kernel or sums[kernel] < _MAIN_KERNEL * sum(sums.values()):
            return []
        fastest.append(next((case, key, time) for key, time in times.items() if key[0] == kernel))
    return sorted(fastest, key=lambda launch: launch[-1].ns) if len(fastest) > 1 else []


def compared_kernels(workload: WorkloadFindings) -> doc.Text:
    """Return which case has the fastest kernel, by the medians of its launches; empty where these say nothing."""
    fastest = fastest_launches(workload)
    if not fastest:
        return ""
    labels, short = case_texts(workload.cases), short_names(kernel for _, (kernel, *_), _ in fastest)
    named = [
        fill(f"{{}}: {{}}, {{}} at block {_size(block)}", labels[case.id], doc.Code(short[name]), duration(time.ns))
        for case, (name, _, block), time in (fastest if len(fastest) <= _NAMED else (fastest[0], fastest[-1]))
    ]
    is_clear = fastest[1][-1].ns > (1 + CLOSE) * fastest[0][-1].ns
    begin = (
        fill("{} has the fastest kernel", labels[fastest[0][0].id]) if is_clear else "No kernel is clearly the fastest"
    )
    return fill("{}. Medians of a launch: {}.", begin, doc.join(named, separator="; ", last="; "))


def _waits_table(workload: WorkloadFindings) -> doc.TableBlock:
    """Return a row per function in which the host waited for the GPU, of each case."""
    labels = case_texts(workload.cases)
    rows = [(labels.get(case, ""), *call) for case, waits in workload.steps.waits.items() for call in waits.items()]
    columns: doc.Columns[tuple[doc.Text, str, ClassTotal]] = [
        (doc.label("case"), lambda row: row[0]),
        (doc.label("call", "calls in which the host waited"), lambda row: doc.Code(row[1])),
        (doc.count("calls", "number"), lambda row: row[2].calls),
        (doc.number("ns", "time", time_unit(total.ns for *_, total in rows)), lambda row: row[2].ns),
    ]
    return doc.table_of("host_waits", rows, columns[len(workload.cases) < 2 :])


def _variants(workload: WorkloadFindings) -> Iterator[list[tuple[str, ClassTotal]]]:
    """Yield the variants of each kernel of the only case, the fastest first."""
    if len(workload.cases) == 1 and _is_of_everything(workload):
        yield from find_variants(_totals(workload))


def _totals(workload: WorkloadFindings) -> KernelTotals:
    key = workload.cases[0].id, workload.kernel_profiler or ""
    return workload.recorded.capture_totals.get(key, KernelTotals())


def _variants_table(workload: WorkloadFindings) -> doc.TableBlock:
    """Return a row per variant of a kernel: its time, relative to the fastest one, and its bandwidth by ncu."""
    rows = [(group[0][1], *variant) for group in _variants(workload) for variant in group]
    short, unit = short_names(name for _, name, _ in rows), time_unit(total.ns / total.calls for *_, total in rows)
    counters = [counter for counter in workload.kernels.counters if _BANDWIDTH in counter.values]
    moved = {counter.kernel: counter.values[_BANDWIDTH][0] for counter in counters}
    columns: doc.Columns[tuple[ClassTotal, str, ClassTotal]] = [
        (doc.label("variant", "variants of a kernel"), lambda row: doc.Code(short[row[1]])),
        (doc.count("calls", "launches"), lambda row: row[2].calls),
        (doc.number("ns", "time of a launch", unit), lambda row: row[2].ns / row[2].calls),
        (doc.ratio("factor", "of the fastest"), lambda row: row[2].ns / row[2].calls / (row[0].ns / row[0].calls)),
        (doc.number("bandwidth", "DRAM (ncu)", Unit("GB/s", 1e9)), lambda row: moved.get(row[1], "")),
    ]
    return doc.table_of("variants", rows, columns if moved else columns[:-1])


# --- sentences -------------------------------------------------------------------------------------------------------


def remarks(workload: WorkloadFindings) -> Iterator[doc.Text]:
    """Yield which span of time was recorded, the memory of the only case, and what the sum of the kernels leaves out.

    The sum leaves out idle time and copies.
    """
    only = workload.cases[0] if len(workload.cases) == 1 else None
    if workload.declared and (capture := workload.declared.capture):
        yield f"Recorded: {capture.for_s:g} s, from {capture.after_s:g} s after the start of the program."
    yield from _spans(workload)
    if only and not workload.steps:
        yield from _used(workload, only)
    yield from contradictions(workload)
    if not _is_of_everything(workload):
        return
    if only and not only.breakdown and (spent := answer(workload, only)):
        yield spent
    if only and only.breakdown and (spent := answer(workload, only)):
        if workload.time_source is None or workload.time_source.is_timed:
            yield spent
        yield sum_of_kernels(workload, only, only.breakdown)
        yield from _long_launch(workload)
    for (fast, least), *_, (slow, most) in _variants(workload):
        name = short_names([fast, slow])
        least_ns, most_ns = least.ns / least.calls, most.ns / most.calls
        if most_ns < _SLOWER * least_ns:
            continue
        said = "{} takes {} a launch, and its variant {} takes {}, {} as long."
        times = duration(least_ns), doc.Code(name[slow]), duration(most_ns), ratio(most_ns / least_ns)
        yield fill(said, doc.Code(name[fast]), *times)
    copied = sum(copy.ns for copies in workload.steps.copies.values() for copy in copies.values())
    kernels = sum(case.breakdown.total.ns for case in workload.cases if case.breakdown)
    if copied and not kernels:
        yield "Record again while the program launches kernels: the capture may have begun too late or ended too early."
    if copied >= _LEAST_COPIES * kernels > 0:
        yield fill("Copies and sets took {} beside {} of kernels.", duration(copied), duration(kernels))


def _long_launch(workload: WorkloadFindings) -> Iterator[doc.Text]:
    """Yield that one launch of a kernel holds much of the kernel time, such as a collective that waited for a peer."""
    totals = _totals(workload)
    for kernel, total in totals.kernels.items():
        others = (total.ns - total.most) / max(total.calls - 1, 1)
        if (
            total.calls > 1
            and _LONG_SHARE * totals.total_ns <= total.most < math.inf
            and total.most >= _LONGER * others
        ):
            said = "One launch of {} took {}, {} of the kernel time."
            said += f" The mean of its other {count(total.calls - 1)} is {{}}."
            name, share = short_names([kernel.name])[kernel.name], percent(total.most / totals.total_ns)
            yield fill(said, doc.Code(name), duration(total.most), share, duration(others))


def _used(workload: WorkloadFindings, case: CaseResult) -> Iterator[doc.Text]:
    """Yield the CPU time and the peaks of memory of a program without steps, and which tools are made for a CPU."""
    cpu_ns, wall_ns = case.values.get("process_cpu"), case.values.get(PROCESS_WALL)
    if cpu_ns and wall_ns:
        yield fill(f"CPU time of all processes: {{}}, on average {cpu_ns / wall_ns:.1f} cores.", duration(cpu_ns))
    peaks = {name: case.values[key] for key, name in _PEAKS.items() if key in case.values}
    if parts := [f"{size_unit([peak]).with_name(peak)} of the {name}" for name, peak in peaks.items()]:
        yield f"Peak memory of a process: {' and '.join(parts)}."
    if workload.cpu_rows == PYTHON_LINES:
        top = [row for row in workload.kernels.top if row.case == case.id][:_NAMED]
        places = doc.join([fill("{} at {}", percent(row.share), doc.Code(row.kernel)) for row in top])
        yield fill("Time of the main thread, its waits included: {}.", places)
    ended = {job.profiler: (job.status, job.cause) for job in workload.jobs}
    # The runner skips torch where no process imported it.
    is_without_torch = ended.get("torch") == (Status.SKIPPED, Cause.TOOL_MISSING) and wall_ns
    is_without_gpu = workload.gpu.is_absent or ended.get("nsys", (None,))[0] is Status.OK
    if is_without_torch and is_without_gpu and not (case.breakdown or workload.launches or workload.steps.copies):
        yield "profpipe measures GPU programs. For a program on the CPU use py-spy (Python) or perf."


def _spans(workload: WorkloadFindings) -> Iterator[doc.Text]:
    """Yield which part of a program without steps was recorded, of as many seconds as it took under plain."""
    labels = case_texts(workload.cases) if len(workload.cases) > 1 else {}
    whole_s = {job.cases: job.seconds for job in workload.jobs if job.profiler == "plain"}
    for job in workload.jobs:
        if job.span and job.cases in whole_s:
            of = fill(" ({})", labels[job.cases[0]]) if job.cases[0] in labels else ""
            span = f"{job.span['for_s']:g} s of {whole_s[job.cases]:.0f} s{{}}, from {job.span['after_s']:g} s on."
            yield fill(f"{job.profiler} recorded {span}", of)


def name_copies(workload: WorkloadFindings) -> doc.Text:
    """Return that only copies and sets were recorded, and which; empty where kernels were, or nothing."""
    copies = [copy for case_copies in workload.steps.copies.values() for copy in case_copies.items()]
    if not copies or any(case.breakdown for case in workload.cases):
        return ""
    of = [
        fill(f"{count(copy.calls)} {literal(name.strip('[]').removeprefix('CUDA '))} ({{}})", duration(copy.ns))
        for name, copy in copies
    ]
    return fill("No kernel was recorded, only {}.", doc.join(of))


def answer(workload: WorkloadFindings, case: CaseResult) -> doc.Text:
    """Return where the time of a whole recording of ``case`` went, the largest part first; empty where unknown."""
    recorded = list(workload.steps.recordings.get(case.id, {}).values())
    wall = sum(parts.wall_ns for parts in recorded)
    if not wall or _has_unknown_times(workload):
        return ""
    shares = {part: sum(parts.ns[part] for parts in recorded) / wall for part in StepPart}
    idle = sum(shares[part] for part in IDLE_PARTS)
    cause = max(IDLE_PARTS, key=lambda part: shares[part])
    is_alone = shares[cause] == idle or cause is StepPart.IDLE_OTHER
    how = "" if is_alone else "mostly " if 2 * shares[cause] >= idle else "partly "
    why = f" ({how}{WHY_IDLE[cause]})" if shares[cause] else ""
    spent = [(shares[part], said) for part, said in _SPENT.items()] + [(idle, f"was idle {{}}{why}")]
    shown = sorted((pair for pair in spent if pair[0] >= LEAST_SHOWN), reverse=True)
    begin, who = ("Of", "the") if len(recorded) == 1 else (f"Mean of {len(recorded)} GPUs: of", "a")
    parts = doc.join([fill(said, percent(share)) for share, said in shown])
    return fill(f"{begin} {{}} {who} GPU {{}}.", duration(wall / len(recorded)), parts)


def sum_of_kernels(workload: WorkloadFindings, case: CaseResult, breakdown: KernelBreakdown) -> doc.Text:
    """Return the launches of a capture whose iterations are unknown, and the two classes with the most time.

    Where no kernel has a class, the largest kernels are named.
    """
    total = breakdown.total
    launches = total.calls + workload.untimed.get((case.id, breakdown.profiler), 0)
    is_one = round(launches) == 1
    noun = f"kernel launch{'' if is_one else 'es'}"
    if breakdown.kind == "cpu_op":
        noun = f"call{'' if is_one else 's'} of {workload.cpu_rows}"
    scope = f"in the {count(total.calls)} that have a time" if launches > total.calls else "in all"
    classes = sorted(((part.ns, name) for name, part in breakdown.classes.items() if part.ns), reverse=True)[:2]
    named = [fill(f"{name} {{}}", percent(ns / total.ns)) for ns, name in classes if name != "other"]
    if not named and breakdown.kind == "kernel":
        top = workload.kernels.top
        short, rows = short_names(row.kernel for row in top), [row for row in top if row.case == case.id]
        named = [
            fill("{} {} ({} a launch)", doc.Code(short[row.kernel]), percent(row.share), duration(row.ns / row.calls))
            for row in rows[:_NAMED]
        ]
    shares = fill(": {} of it", doc.join(named)) if named else ""
    return fill(f"{count(launches)} {noun}, {{}} {scope}{{}}.", duration(total.ns), shares)


def _has_unknown_times(workload: WorkloadFindings) -> bool:
    """Return True where it is unknown when kernels ran, or on which GPU, so that nothing is known of idle time."""
    checks = {check for _, _, check, *_ in workload.steps.contradictions}
    return Check.SHARED_IDS in checks or (Check.OUTSIDE_STEPS in checks and not _is_busy(workload))


def _is_busy(workload: WorkloadFindings) -> bool:
    """Return True where each GPU was busy all the time, so that it makes no difference when single kernels ran."""
    recorded = [parts for of_case in workload.steps.recordings.values() for parts in of_case.values()]
    return bool(recorded) and all(parts.share(parts.idle_ns) <= _LEAST_IDLE for parts in recorded)


def contradictions(workload: WorkloadFindings) -> Iterator[doc.Text]:
    """Yield what the recordings contradict themselves in, and what follows from it."""
    labels = case_texts(workload.cases) if len(workload.cases) > 1 else {}
    for case, profiler, check, subject, value, total in workload.steps.contradictions:
        of = fill(" ({})", labels[case]) if case in labels else ""
        # Another profiler, or none, may give figures of a step beside this one.
        end = f" The recording of {profiler} gives no figure of a step." if check.forbids_steps else ""
        yield fill(f"{{}}{{}}.{end}", _contradiction(check, subject, value, total, is_busy=_is_busy(workload)), of)


def _contradiction(check: Check, subject: str, value: float, total: int, *, is_busy: bool) -> doc.Text:
    number, n = count(value), count(total)
    match check:
        case Check.LATE_END:
            launches = plural(total, "launch", "launches")
            text = f"The file says that {launches} of {{}} ended after the next kernel of the stream had ended. The end"
            text += " was set to the start of that kernel, which removed {}"
            return fill(text, doc.Code(subject), duration(value))
        case Check.LOST_KERNELS:
            who = subject.capitalize() or "The program"
            lost = f" made {n} launches, and {number} of them have no kernel in the file: records were lost"
            return doc.concat(who, lost)
        case Check.REPLAYS:
            who = "1 replay of a CUDA graph lacks" if total == 1 else f"The {n} replays of a CUDA graph lack"
            return f"{who} {number} kernels that other replays have: records were lost"
        case Check.OUTSIDE_STEPS:
            text = f"{{}} of the kernel time that {n} steps launched ran after them or in other steps, so"
            unknown = "the time of a step" if is_busy else "idle time"
            return fill(f"{text} {unknown} is unknown", percent(value / 100))
        case Check.SHARED_IDS:
            text = f"{number} of {n} kernels have a launch number that several processes of this merged trace use, so"
            return f"{text} their process is unknown"
    clause = "1 step was found, but it holds" if total == 1 else f"{n} steps were found, but they hold"
    end = fill(f"{clause} only {{}} of the kernel time", percent(value / 100))
    return doc.concat(f"{subject.capitalize()}: " if subject else "", end)


# --- several files ---------------------------------------------------------------------------------------------------


def recordings(findings: Findings, run: Manifest) -> doc.Section:
    """Return the shares of the kernel time by file; empty for a run, and for fewer than two files with kernels."""
    # The files without cases whose kernels were recorded, in their order.
    rows = [
        (workload.name, case.breakdown, file)
        for workload in findings.workloads
        if not run.is_run and (file := _file_of(workload.name, run.files))
        for case in workload.cases
        if not case.id and case.breakdown and case.breakdown.kind == "kernel"
    ]
    summary = (
        "The files were recorded elsewhere, by the tools and on the GPUs that they name. The shares of their kernel"
        " time can be compared; their times may be of different programs and machines."
    )
    unit = time_unit(file.total_ns or 0.0 for *_, file in rows)
    columns: doc.Columns[tuple[str, KernelBreakdown, FileEntry]] = [
        (doc.label("file"), lambda row: row[0]),
        (doc.label("tool"), lambda row: f"{row[2].tool} {row[2].tool_version}".strip()),
        (doc.label("GPU"), lambda row: row[2].device or "not named"),
        (doc.count("launches"), lambda row: row[2].launches),
        (doc.number("total", "kernel time", unit), lambda row: row[2].total_ns),
    ]
    chart = _chart([(f"{name} ({file.tool})", breakdown) for name, breakdown, file in rows])
    blocks = (doc.table_of("recordings", rows, columns), chart) if len(rows) > 1 else ()
    return doc.make_section("recordings", "Recordings side by side", blocks, summary)


def _file_of(workload: str, files: Iterable[FileEntry]) -> FileEntry | None:
    """Return the file of a workload, which is named like the file, with as many of its folders as make it unique.

    The path may have fewer parts than the name, where it starts at the current folder.
    """
    name, alike = PurePath(workload).parts, []
    for file in files:
        path = PurePath(file.source).parts
        depth = min(len(path), len(name))
        if depth and path[-depth:] == name[-depth:]:
            alike.append((depth, file))
    return max(alike, key=lambda pair: pair[0])[1] if alike else None


def _chart(breakdowns: list[tuple[str, KernelBreakdown]]) -> doc.Chart:
    totals = [breakdown.total.ns for _, breakdown in breakdowns]
    series = [
        doc.Series(name, key, tuple(doc.Mark(i, ns / totals[i]) for i, ns in enumerate(times)))
        for name, key, times in pieces([breakdown for _, breakdown in breakdowns])
    ]
    return doc.Chart(
        "recordings-share",
        "Kernel time by recording",
        doc.ChartKind.STACKED_BARS,
        doc.Axis("file", labels=tuple(name for name, _ in breakdowns)),
        doc.Axis("% of the kernel time of the file", Unit("%", 0.01), quantity="share"),
        {"": tuple(series)},
        subtitle="Recorded elsewhere",
    )
