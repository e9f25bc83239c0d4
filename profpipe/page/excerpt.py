"""Which part of a large comparison the page shows: a thousand cases are a file to search, not a page to read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from profpipe.findings import Axes, Shape, WorkloadFindings
from profpipe.page.markdown import code, escape, listed
from profpipe.points import is_number, running_axis, shown, without

#: Cases, and shapes of comparisons, up to which a page shows every shape; beyond, one of each of so many groups.
_CASES, SHAPES, GROUPS = 100, 24, 8


def groups(workload: WorkloadFindings, *axes: str | None, most: int = GROUPS) -> list[Axes]:
    """The combinations of the axes besides ``axes``, ``most`` of them: the largest shape's, and those next to it.

    Next to it are those that differ in the fewest axes, of these the largest first: of a single axis all differ.
    """
    sizes: dict[Axes, float] = {}
    for shape in workload.shapes:
        others = besides(shape.axes, axes)
        sizes[others] = max(sizes.get(others, 0.0), shape.size)
    every = list(sizes)
    if len(every) <= most or workload.largest is None:
        return every
    main = dict(workload.largest.axes)
    apart = {others: sum(main.get(name) != value for name, value in others) for others in every}
    chosen = sorted(every, key=lambda others: (apart[others], -sizes[others]))[:most]
    return [others for others in every if others in chosen]


def besides(shape: Axes, axes: Sequence[str | None]) -> Axes:
    return tuple(pair for pair in shape if pair[0] not in axes)


def _room(page: Sequence[WorkloadFindings]) -> int | None:
    """How many groups of each of the workloads on a page have a shape shown in full; None: all shapes are."""
    compared = sum(len(workload.shapes) for workload in page if workload.compare)
    if sum(len(workload.points) for workload in page) <= _CASES and compared <= SHAPES:
        return None
    return max(1, GROUPS // len(page))


def shapes(workload: WorkloadFindings, page: Sequence[WorkloadFindings] = ()) -> tuple[Shape, ...]:
    """The shapes shown in full: of what is large with all of its ``page``, the largest with a time in each group."""
    if (most := _room(page or (workload,))) is None:
        return workload.shapes
    axis = running_axis(shape.axes for shape in workload.shapes)
    kept: list[Shape] = []
    for others in groups(workload, axis, most=most):
        own = [shape for shape in workload.shapes if without(shape.axes, axis or "") == others]
        kept.append(max(own, key=lambda shape: (len(shape.timed) > 1, bool(shape.timed), shape.size)))
    return tuple(shape for shape in workload.shapes if shape in kept or shape is workload.largest)


def of(workload: WorkloadFindings, page: Sequence[WorkloadFindings] = ()) -> WorkloadFindings:
    """``workload`` with these shapes alone."""
    kept = shapes(workload, page)
    if len(kept) == len(workload.shapes):
        return workload
    cases = {point.id for shape in kept for point in shape.points}
    return replace(
        workload,
        shapes=kept,
        agreements=tuple(agreement for agreement in workload.agreements if agreement.point.id in cases),
    )


def said(workload: WorkloadFindings, file: str, page: Sequence[WorkloadFindings] = ()) -> str:
    """What is left out, and that ``file`` has it; empty where nothing is."""
    kept = shapes(workload, page)
    if len(kept) == len(workload.shapes):
        return ""
    axis = running_axis(shape.axes for shape in workload.shapes)
    varying = [name for name in workload.varying_shape if name != axis]
    combinations = len({without(shape.axes, axis or "") for shape in workload.shapes})
    most = _room(page or (workload,)) or GROUPS
    which = "the largest" if len(kept) == 1 else "the largest and those next to it"
    if axis and combinations <= most:
        which = f"the largest {code(axis)}" + (f" for each combination of {listed(map(code, varying))}" * bool(varying))
    elif axis and most > 1:
        near = f"{most} of {combinations} combinations of {listed(map(code, varying))}, those next to the largest"
        which = f"the largest {code(axis)} for {near}"
    return (
        f"Below, {len(kept)} of its {len(workload.shapes)} shapes {'are' if len(kept) > 1 else 'is'} shown case by "
        f"case: {which}. {code(file)} has all of them."
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
