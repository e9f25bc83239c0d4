"""Select the shapes of a large comparison that the page shows in full."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from profpipe.analysis.cases import Axes, in_words, is_number, running_axis, without
from profpipe.analysis.findings import CaseResult, PhaseFindings, Shape, WorkloadFindings
from profpipe.job import as_text
from profpipe.report import document as doc

#: Cases without a comparison up to which all of them stand together.
_MAIN_CASES = 24

#: Cases, and shapes of comparisons, up to which a page shows every shape; beyond, one of each of so many groups.
_CASES, SHAPES, GROUPS = 100, 24, 8


def groups(workload: WorkloadFindings, *axes: str | None, most: int = GROUPS) -> list[Axes]:
    """Return at most ``most`` combinations of the other axes: the largest shape's and its neighbours.

    Neighbours differ in the fewest axes; of these the largest come first.
    """
    sizes: dict[Axes, float] = {}
    for shape in workload.shapes:
        others = without(shape.axes, *axes)
        sizes[others] = max(sizes.get(others, 0.0), shape.size)
    combinations = list(sizes)
    if len(combinations) <= most or workload.largest is None:
        return combinations
    main = dict(workload.largest.axes)
    apart = {others: sum(main.get(name) != value for name, value in others) for others in combinations}
    chosen = sorted(combinations, key=lambda others: (apart[others], -sizes[others]))[:most]
    return [others for others in combinations if others in chosen]


def _groups_shown(page: Sequence[WorkloadFindings]) -> int | None:
    """Return how many groups of each workload have a shape shown in full; None if all shapes are shown."""
    compared = sum(len(workload.shapes) for workload in page if workload.compare)
    if sum(len(workload.cases) for workload in page) <= _CASES and compared <= SHAPES:
        return None
    return max(1, GROUPS // len(page))


def shapes(workload: WorkloadFindings, page: Sequence[WorkloadFindings] = ()) -> tuple[Shape, ...]:
    """Return the shapes shown in full: all of a small page, else the largest with a time in each group."""
    if (most := _groups_shown(page or (workload,))) is None:
        return workload.shapes
    axis = running_axis(shape.axes for shape in workload.shapes)
    kept: list[Shape] = []
    for others in groups(workload, axis, most=most):
        candidates = [shape for shape in workload.shapes if without(shape.axes, axis) == others]
        kept.append(max(candidates, key=lambda shape: (len(shape.timed) > 1, bool(shape.timed), shape.size)))
    return tuple(shape for shape in workload.shapes if shape in kept or shape is workload.largest)


def select(workload: WorkloadFindings, page: Sequence[WorkloadFindings] = ()) -> WorkloadFindings:
    """Return ``workload`` with the shapes that the page shows in full."""
    kept = shapes(workload, page)
    return workload if len(kept) == len(workload.shapes) else restrict(workload, kept)


def restrict(workload: WorkloadFindings, shapes: tuple[Shape, ...]) -> WorkloadFindings:
    """Return ``workload`` with ``shapes`` alone, and with the findings that are of their cases."""
    cases, steps = {case.id for shape in shapes for case in shape.cases}, workload.steps

    def keep_cases(findings: Iterable[Any]) -> tuple[Any, ...]:
        return tuple(finding for finding in findings if finding.case in cases)

    return replace(
        workload,
        agreements={case: times for case, times in workload.agreements.items() if case in cases},
        ranks=keep_cases(workload.ranks),
        phases=PhaseFindings(**{name: keep_cases(rows) for name, rows in vars(workload.phases).items()}),
        shapes=shapes,
        steps=replace(
            steps,
            cases=keep_cases(steps.cases),
            without_steps=tuple(name for name in steps.without_steps if name in cases),
            recordings={name: parts for name, parts in steps.recordings.items() if name in cases},
        ),
    )


def note(workload: WorkloadFindings, page: Sequence[WorkloadFindings] = ()) -> doc.Text:
    """Return which shapes the page shows in full; empty where it shows all."""
    kept = shapes(workload, page)
    if len(kept) == len(workload.shapes):
        return ""
    axis = running_axis(shape.axes for shape in workload.shapes)
    varying = doc.join(doc.Code(name) for name in workload.varying_shape if name != axis)
    combinations = len({without(shape.axes, axis) for shape in workload.shapes})
    most = _groups_shown(page or (workload,)) or GROUPS
    which: doc.Text = "the largest" if len(kept) == 1 else "the largest and those next to it"
    if axis and combinations <= most:
        which = doc.concat(
            "the largest ", doc.Code(axis), doc.concat(" for each combination of ", varying) if varying else ""
        )
    elif axis and most > 1:
        near = f" for {most} of {combinations} combinations of "
        which = doc.concat("the largest ", doc.Code(axis), near, varying, ", those next to the largest")
    verb = "are" if len(kept) > 1 else "is"
    return doc.concat(
        f"Below, {len(kept)} of {len(workload.shapes)} shapes {verb} shown case by case: ", which, ". ",
        doc.Code("comparison_results.txt"), " has all shapes.",
    )  # fmt: skip


def column(others: Axes) -> str:
    """Return ``fwd, fp16, not causal``: a combination as the head of a column."""
    return ", ".join(in_words(((a, v),)) if isinstance(v, bool) or is_number(v) else as_text(v) for a, v in others)


def main_cases(workload: WorkloadFindings) -> tuple[list[CaseResult], list[CaseResult]]:
    """Return the cases of the largest shape, and all others; few cases without a comparison are all in the first."""
    all_cases = [case for shape in workload.shapes for case in shape.cases]
    if not workload.compare and len(all_cases) <= _MAIN_CASES:
        return all_cases, []
    largest = list(workload.largest.cases) if workload.largest else []
    # To compare whole results takes seconds for thousands of cases, and each case's page asks.
    largest_ids = {case.id for case in largest}
    return largest, [case for case in all_cases if case.id not in largest_ids]
