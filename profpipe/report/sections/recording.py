"""Where the time of a whole recording goes, of programs in which no step was found."""

from __future__ import annotations

from collections.abc import Iterator

from profpipe.analysis.findings.steps import StepPart
from profpipe.analysis.findings.workloads import Iteration, WorkloadFindings
from profpipe.report import document as doc
from profpipe.report.inlines import duration, fill, literal, percent, with_share
from profpipe.report.labels import case_text
from profpipe.report.sections.steps import LEAST_SHOWN, PART_NAMES, copy_table
from profpipe.report.units import count, size_unit, step_unit

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
    blocks = (doc.Paragraph(_reason(workload)), _parts_table(workload), copies)
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
    return (
        "No steps were found: no marker and no range of a framework says where one begins, and no sequence of launches"
        " recurs in at least half of the kernel time. The figures are of the whole recording, from the first operation"
        f" of each GPU to its last ({workload.kernel_profiler})."
    )


def _parts_table(workload: WorkloadFindings) -> doc.Table:
    """Return a row for each case and rank: what was recorded, and its parts."""
    found = workload.steps.recordings
    unit = step_unit(each.parts.wall_ns for each in found)
    labels = {case.id: case_text(case) for case in workload.cases}
    shown = [part for part in StepPart if any(each.parts.share(each.parts.ns[part]) >= LEAST_SHOWN for each in found)]
    columns = [doc.label("case"), doc.label("rank"), doc.Column("wall", "recorded", unit)]
    columns += [doc.Column(part.value, PART_NAMES[part], unit) for part in shown]
    rows = [
        [labels.get(each.case, ""), each.rank, each.parts.wall_ns,
         *(with_share(each.parts.ns[part], each.parts.share(each.parts.ns[part])) for part in shown)]
        for each in found
    ]  # fmt: skip
    alone = [*(["case"] if len(workload.cases) < 2 else []), *(["rank"] if len({e.rank for e in found}) < 2 else [])]
    return doc.make_table("recording", columns, rows).without(*alone)


def remarks(workload: WorkloadFindings) -> Iterator[doc.Text]:
    """Yield which span of time was recorded, the memory of the only case, and what the sum of the kernels leaves out.

    The sum leaves out idle time and copies.
    """
    if span := workload.span:
        yield f"Recorded: {span.for_s:g} s, from {span.after_s:g} s after the start of the program."
        values = workload.cases[0].values if len(workload.cases) == 1 else {}
        peaks = {name: values[key] for key, name in _PEAKS.items() if key in values}
        if parts := [f"{size_unit([peak]).with_name(peak)} of the {name}" for name, peak in peaks.items()]:
            yield f"Peak memory of a process: {' and '.join(parts)}."
    if workload.steps or workload.iteration not in (Iteration.CAPTURE, Iteration.PROCESS):
        return
    copied = sum(copy.ns for own in workload.steps.copies.values() for copy in own)
    kernels = sum(case.breakdown.total.ns for case in workload.cases if case.breakdown)
    if copied and not kernels:
        yield "Record again while the program launches kernels: the capture may have begun too late or ended too early."
    elif found := workload.steps.recordings:
        wall = sum(each.parts.wall_ns for each in found)
        idle = percent(sum(each.parts.idle_ns for each in found) / wall if wall else 0.0)
        ranks = len({each.rank for each in found})
        who = "The GPU was" if ranks == 1 else f"The {ranks} GPUs were"
        yield fill(f"{who} idle in {{}} of the recorded time, from the first operation to the last.", idle)
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
