"""What the cases reach of the targets that the pipeline file sets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from profpipe.analysis.cases import in_words
from profpipe.analysis.findings.targets import Grade, Target
from profpipe.analysis.findings.workloads import CaseResult, WorkloadFindings
from profpipe.report import document as doc
from profpipe.report.labels import case_text, fill, plural, variant_text
from profpipe.report.units import RATIO

#: By quantity: its name, its unit behind a number, and what measures it.
_QUANTITIES: Mapping[str, tuple[str, str, str]] = {
    "tflops": ("TFLOP/s", "", "needs a workload that states its FLOPs"),
    "gpu_busy": ("GPU busy", " %", "needs nsys or torch on a GPU"),
    "memory_bandwidth": ("memory bandwidth", " %", "needs ncu, or a workload that states its bytes"),
    "sm": ("SM throughput", " %", "needs ncu"),
    "speedup": ("over baseline", "x", "needs a baseline with a time"),
}


def targets(workload: WorkloadFindings, part: WorkloadFindings) -> doc.Section:
    """Return the targets with how many cases reach each, and the grades by case.

    The largest shape is on the short page, the other cases of ``part`` (the shapes shown in full) on the long one.
    """
    own = workload.targets
    largest = list(workload.largest.timed) if workload.largest else []
    ids = {case.id for case in largest}
    others = [case for case in part.cases if case.time and case.id not in ids]
    title = in_words(largest[0].shape) if largest and others else ""
    counts = doc.Bullets(tuple(_counts(workload, name, target) for name, target in own.targets.items()))
    # The cases of the short page have one shape, which the title names: they differ in the compared value alone.
    first, second = by_case(workload, largest, title, workload.compare), by_case(workload, others, "other cases")
    blocks = (counts, first, replace(second, id="other_targets", placement=doc.Placement.DETAILS))
    return doc.make_section("targets", "Targets", blocks, workload=workload.name)


def _counts(workload: WorkloadFindings, name: str, target: Target) -> doc.Text:
    """Return a target in words, and how many cases are good, fair and poor."""
    title, unit, needs = _QUANTITIES[name]
    limits = f"good from {target.good:g}{unit}"
    limits += "" if target.poor is None else f", poor below {target.poor:g}{unit}"
    grades = [workload.targets.grade(case.id, name) for case in workload.cases if case.time]
    known = [grade for grade in grades if grade is not None]
    if not known:
        return fill(f"{{}}: {limits}. No case has a value: it {needs}.", doc.Strong(title))
    counts = ", ".join(f"{known.count(grade)} {grade.value}" for grade in Grade if grade in known)
    missing = len(grades) - len(known)
    without = f"; {missing} without a value" if missing else ""
    return fill(f"{{}} ({limits}): of {plural(len(known), 'case')} {counts}{without}.", doc.Strong(title))


def by_case(
    workload: WorkloadFindings, cases: Sequence[CaseResult], title: str, compare: str | None = None
) -> doc.Table:
    """Return a row for each case, named by ``compare`` alone or in full: what it reaches of each target, its grade."""
    own = workload.targets
    columns = [doc.label("case", compare or "case")]
    columns += [doc.Column(name, _QUANTITIES[name][0] + _QUANTITIES[name][1].replace("x", "")) for name in own.targets]
    name_of = variant_text if compare else case_text
    rows = [(name_of(case), *_cells(workload, case)) for case in cases if own.values.get(case.id)]
    return doc.make_table("targets", columns, rows, title)


def _cells(workload: WorkloadFindings, case: CaseResult) -> Iterator[doc.Cell | None]:
    for name in workload.targets.targets:
        grade, value = workload.targets.grade(case.id, name), workload.targets.values[case.id].get(name)
        if grade is None or value is None:
            yield None
        else:
            unit = RATIO if name == "speedup" else None
            yield doc.Cell(value, is_strong=grade is Grade.GOOD, unit=unit, note=grade.value)
