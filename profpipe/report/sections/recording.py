"""Where the time of a whole recording goes, of programs in which no step was found."""

from __future__ import annotations

from collections.abc import Iterator

from profpipe.analysis.findings.steps import IDLE_PARTS, Contradiction, StepPart
from profpipe.analysis.findings.workloads import CaseResult, Iteration, KernelBreakdown, WorkloadFindings
from profpipe.report import document as doc
from profpipe.report.labels import case_text, duration, fill, literal, percent, with_share
from profpipe.report.sections.steps import LEAST_SHOWN, PART_NAMES, WHY_IDLE, copy_table
from profpipe.report.units import count, size_unit, step_unit
from profpipe.results.schema import Check

#: Copies of at least this share of the kernel time are in the headline.
_LEAST_COPIES = 0.05


def recording(workload: WorkloadFindings) -> doc.Section:
    """Return why there are no steps, the parts of the whole recording by rank, and its copies.

    The section is empty for measured calls, and where steps were found.
    """
    of_everything = workload.iteration in (Iteration.CAPTURE, Iteration.PROCESS)
    if workload.steps or not of_everything or workload.is_on_cpu or not workload.steps.without_steps:
        return doc.Section("recording", "", workload=workload.name)
    labels = {case.id: case_text(case) for case in workload.cases}
    copies = copy_table([(labels.get(case, ""), own) for case, own in workload.steps.copies.items()], "copies and sets")
    parts = () if _has_unknown_times(workload) else (_parts_table(workload),)
    blocks = (doc.Paragraph(_reason(workload)), *parts, copies)
    return doc.make_section("recording", "Where the time goes", blocks, workload=workload.name)


def _reason(workload: WorkloadFindings) -> str:
    if workload.steps.one_by_one:
        return (
            "No steps: the profiler ran the launches one by one to read its counters, so the time between them says"
            " nothing about the program. Record without counters to see steps and idle time."
        )
    if not workload.steps.has_launches:
        return (
            "No steps: the file does not say when each launch ran, so neither steps nor idle time can be found."
            if workload.iteration is Iteration.CAPTURE
            else "No steps were found: the profiler did not record when each launch ran."
        )
    whole = " The figures are of the whole recording"
    whole += "" if _has_unknown_times(workload) else ", from the first operation of each GPU to its last"
    whole += f" ({workload.kernel_profiler})."
    if any(each.check.forbids_steps for each in workload.steps.contradictions):
        return f"No step is given, since the recording contradicts itself.{whole}"
    return (
        "No steps were found: no marker and no range of the program or a framework says where one begins, and no"
        f" sequence of launches recurs in at least half of the kernel time.{whole}"
    )


def _parts_table(workload: WorkloadFindings) -> doc.Table:
    """Return a row for each case and rank, or GPU of the only process: what was recorded, and its parts."""
    found = workload.steps.recordings
    unit = step_unit(each.parts.wall_ns for each in found)
    labels = {case.id: case_text(case) for case in workload.cases}
    shown = [part for part in StepPart if any(each.parts.share(each.parts.ns[part]) >= LEAST_SHOWN for each in found)]
    # Several GPUs of the only process are no ranks.
    lone = "0, " if all(each.rank.startswith("0, ") for each in found) else ""
    who = "GPU" if lone else "rank"
    columns = [doc.label("case"), doc.label("rank", who), doc.Column("wall", "recorded", unit)]
    columns += [doc.Column(part.value, PART_NAMES[part], unit) for part in shown]
    rows = [
        [labels.get(each.case, ""), each.rank.removeprefix(lone), each.parts.wall_ns,
         *(with_share(each.parts.ns[part], each.parts.share(each.parts.ns[part])) for part in shown)]
        for each in found
    ]  # fmt: skip
    alone = [*(["case"] if len(workload.cases) < 2 else []), *(["rank"] if len({e.rank for e in found}) < 2 else [])]
    return doc.make_table("recording", columns, rows).without(*alone)


def remarks(workload: WorkloadFindings) -> Iterator[doc.Text]:
    """Yield which span of time was recorded, the memory of the only case, and what the sum of the kernels leaves out.

    The sum leaves out idle time and copies.
    """
    if workload.recorded_for_s is not None:
        after = f"{workload.recorded_after_s:g} s after the start of the program"
        yield f"Recorded: {workload.recorded_for_s:g} s, from {after}."
        values = workload.cases[0].values if len(workload.cases) == 1 else {}
        peaks = {name: values[key] for key, name in _PEAKS.items() if key in values}
        if parts := [f"{size_unit([peak]).with_name(peak)} of the {name}" for name, peak in peaks.items()]:
            yield f"Peak memory of a process: {' and '.join(parts)}."
    yield from contradictions(workload)
    if workload.steps or workload.iteration not in (Iteration.CAPTURE, Iteration.PROCESS):
        return
    for case in workload.cases:
        if case.breakdown and len(workload.cases) == 1 and answer(workload, case):
            yield sum_of_kernels(workload, case, case.breakdown)
    copied = sum(copy.ns for own in workload.steps.copies.values() for copy in own)
    kernels = sum(case.breakdown.total.ns for case in workload.cases if case.breakdown)
    if copied and not kernels:
        yield "Record again while the program launches kernels: the capture may have begun too late or ended too early."
    if copied >= _LEAST_COPIES * kernels > 0:
        yield fill("Copies and sets took {} beside {} of kernels.", duration(copied), duration(kernels))


def without_kernels(workload: WorkloadFindings) -> doc.Text:
    """Return that only copies and sets were recorded, and which; empty where kernels were, or nothing."""
    copies = [copy for own in workload.steps.copies.values() for copy in own]
    if not copies or any(case.breakdown for case in workload.cases):
        return ""
    named = (f"{count(copy.calls)} {literal(copy.name.strip('[]').removeprefix('CUDA '))}" for copy in copies)
    of = [fill(f"{name} ({{}})", duration(copy.ns)) for name, copy in zip(named, copies, strict=True)]
    return fill("No kernel was recorded, only {}.", doc.join(of))


#: Metrics of the peak memory of a process, and whose memory it is.
_PEAKS = {"peak_allocated": "GPU, allocated by torch,", "peak_host": "host"}


def answer(workload: WorkloadFindings, case: CaseResult) -> doc.Text:
    """Return where the time of a whole recording of ``case`` went, the largest part first; empty where unknown."""
    own = [each.parts for each in workload.steps.recordings if each.case == case.id]
    wall = sum(parts.wall_ns for parts in own)
    if not wall or _has_unknown_times(workload):
        return ""
    spent = {said: sum(parts.ns[part] for parts in own) / wall for part, said in _SPENT.items()}
    idle = {part: sum(parts.ns[part] for parts in own) / wall for part in IDLE_PARTS}
    cause = max(IDLE_PARTS, key=lambda part: idle[part])
    why = f" ({'' if idle[cause] == sum(idle.values()) else 'mostly '}{WHY_IDLE[cause]})" if idle[cause] else ""
    spent[f"was idle {{}}{why}"] = sum(idle.values())
    shown = sorted(((share, said) for said, share in spent.items() if share >= LEAST_SHOWN), reverse=True)
    begin, who = ("In", "the") if len(own) == 1 else (f"Mean of {len(own)} GPUs: in", "a")
    parts = doc.join([fill(said, percent(share)) for share, said in shown])
    return fill(f"{begin} {{}} {who} GPU {{}} of the time.", duration(wall / len(own)), parts)


#: What a GPU did, of a part of a recording.
_SPENT = {
    StepPart.COMPUTE: "computed {}",
    StepPart.COMMUNICATION: "communicated while nothing computed {}",
    StepPart.COPY: "copied while no kernel ran {}",
}


def sum_of_kernels(workload: WorkloadFindings, case: CaseResult, breakdown: KernelBreakdown) -> doc.Text:
    """Return the launches of a capture whose iterations are unknown, and the two classes with the most time."""
    total = breakdown.total
    launches = total.calls + workload.untimed.get((case.id, breakdown.profiler), 0)
    is_one, is_cpu = round(launches) == 1, breakdown.kind == "cpu_op"
    noun = f"call{'' if is_one else 's'} of CPU operators" if is_cpu else f"kernel launch{'' if is_one else 'es'}"
    scope = f"in the {count(total.calls)} that have a time" if launches > total.calls else "in all"
    classes = sorted(((part.ns, name) for name, part in breakdown.classes.items() if part.ns), reverse=True)[:2]
    named = [fill(f"{name} {{}}", percent(ns / total.ns)) for ns, name in classes if name != "other"]
    shares = fill(": {} of it", doc.join(named)) if named else ""
    return fill(f"{count(launches)} {noun}, {{}} {scope}{{}}.", duration(total.ns), shares)


def _has_unknown_times(workload: WorkloadFindings) -> bool:
    """Return True where it is unknown when kernels ran, or on which GPU, so that nothing is known of idle time."""
    return any(each.check in (Check.OUTSIDE_STEPS, Check.SHARED_IDS) for each in workload.steps.contradictions)


def contradictions(workload: WorkloadFindings) -> Iterator[doc.Text]:
    """Yield what the recordings contradict themselves in, and what follows from it."""
    labels = {case.id: case_text(case) for case in workload.cases} if len(workload.cases) > 1 else {}
    for each in workload.steps.contradictions:
        of = fill(" ({})", labels[each.case]) if each.case in labels else ""
        # Another profiler, or none, may give figures of a step beside this one.
        end = f" The recording of {each.profiler} gives no figure of a step." if each.check.forbids_steps else ""
        yield fill(f"{{}}{{}}.{end}", _contradiction(each), of)


def _contradiction(each: Contradiction) -> doc.Text:
    whose = doc.Code(each.subject)
    number, n = count(each.value), count(each.n)
    match each.check:
        case Check.LATE_END:
            launches = f"{n} launch{'' if each.n == 1 else 'es'}"
            text = f"The file says that {launches} of {{}} ended after the next kernel of the stream had ended. The end"
            text = f"{text} was set to the start of that kernel, which removed {{}}"
            return fill(text, whose, duration(each.value))
        case Check.LOST_KERNELS:
            who = fill("{} made", each.subject.capitalize()) if each.subject else "The program made"
            return fill(f"{{}} {n} launches, and {number} of them have no kernel in the file: records were lost", who)
        case Check.REPLAYS:
            return f"The {n} replays of a CUDA graph lack {number} kernels that other replays have: records were lost"
        case Check.OUTSIDE_STEPS:
            text = f"{{}} of the kernel time that {n} steps launched ran after them or in other steps, so idle time is"
            return fill(f"{text} unknown", percent(each.value / 100))
        case Check.SHARED_IDS:
            text = f"{number} of {n} kernels have a launch number that several processes of this merged trace use, so"
            return f"{text} their process is unknown"
    found = "1 step was found, but it holds" if each.n == 1 else f"{n} steps were found, but they hold"
    return fill(
        f"{{}}{found} only {{}} of the kernel time",
        f"{each.subject.capitalize()}: " if each.subject else "",
        percent(each.value / 100),
    )
