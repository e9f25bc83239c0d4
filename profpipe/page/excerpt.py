"""Which part of a large comparison the page shows: a thousand cases are a file to search, not a page to read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from profpipe.findings import Axes, Shape, WorkloadFindings
from profpipe.page.markdown import code, escape, listed
from profpipe.points import is_number, running_axis, shown, without

#: Cases, and shapes of a comparison, up to which every shape is shown; beyond, one of each of so many groups is.
_CASES, SHAPES, GROUPS = 100, 24, 8


def groups(workload: WorkloadFindings, *axes: str | None) -> list[Axes]:
    """The combinations of the axes besides ``axes``, at most eight: the largest shape's, and those next to it."""
    every = list(dict.fromkeys(besides(shape.axes, axes) for shape in workload.shapes))
    if len(every) <= GROUPS or workload.largest is None:
        return every
    main = dict(workload.largest.axes)
    chosen = sorted(every, key=lambda others: sum(main.get(name) != value for name, value in others))[:GROUPS]
    return [others for others in every if others in chosen]


def besides(shape: Axes, axes: Sequence[str | None]) -> Axes:
    return tuple(pair for pair in shape if pair[0] not in axes)


def shapes(workload: WorkloadFindings) -> tuple[Shape, ...]:
    """The shapes that are shown in full: of a large comparison the largest with a time in each group."""
    if len(workload.points) <= _CASES and (len(workload.shapes) <= SHAPES or not workload.compare):
        return workload.shapes
    axis = running_axis(shape.axes for shape in workload.shapes)
    kept: list[Shape] = []
    for others in groups(workload, axis):
        own = [shape for shape in workload.shapes if without(shape.axes, axis or "") == others]
        kept.append(max(own, key=lambda shape: (len(shape.timed) > 1, bool(shape.timed), shape.size)))
    return tuple(shape for shape in workload.shapes if shape in kept or shape is workload.largest)


def of(workload: WorkloadFindings) -> WorkloadFindings:
    """``workload`` with these shapes alone."""
    kept = shapes(workload)
    if len(kept) == len(workload.shapes):
        return workload
    cases = {point.id for shape in kept for point in shape.points}
    return replace(
        workload,
        shapes=kept,
        agreements=tuple(agreement for agreement in workload.agreements if agreement.point.id in cases),
    )


def said(workload: WorkloadFindings, file: str) -> str:
    """What is left out, and that ``file`` has it; empty where nothing is."""
    kept = shapes(workload)
    if len(kept) == len(workload.shapes):
        return ""
    axis = running_axis(shape.axes for shape in workload.shapes)
    varying = [name for name in workload.varying_shape if name != axis]
    combinations = len({without(shape.axes, axis or "") for shape in workload.shapes})
    which = "the largest and those next to it"
    if axis and combinations <= GROUPS:
        which = f"the largest {code(axis)}" + (f" for each combination of {listed(map(code, varying))}" * bool(varying))
    elif axis:
        near = f"{GROUPS} of {combinations} combinations of {listed(map(code, varying))}, those next to the largest"
        which = f"the largest {code(axis)} for {near}"
    return (
        f"Below, {len(kept)} of its {len(workload.shapes)} shapes are shown case by case: {which}. "
        f"{code(file)} has all of them."
    )


def column(others: Axes) -> str:
    """``fwd, fp16, not causal``: a combination as the head of a column, where words say which axis they are of."""
    return escape(", ".join(_word(axis, value) for axis, value in others))


def _word(axis: str, value: Any) -> str:
    if isinstance(value, bool):
        return axis if value else f"not {axis}"
    return f"{axis} {shown(value)}" if is_number(value) else shown(value)


def by_group(workload: WorkloadFindings, axis: str, chosen: Sequence[Axes]) -> dict[Axes, dict[Any, Shape]]:
    """The shapes of each group by their value on ``axis``."""
    found: dict[Axes, dict[Any, Shape]] = {others: {} for others in chosen}
    for shape in workload.shapes:
        if (others := without(shape.axes, axis)) in found:
            found[others][dict(shape.axes)[axis]] = shape
    return found
