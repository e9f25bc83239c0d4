"""Findings -> sentences: the answer, and what a swap of implementations eats."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from profpipe.findings import (
    Axes,
    Basis,
    Point,
    Shape,
    Swap,
    WorkloadFindings,
)
from profpipe.markdown import code, escape, listed, slug
from profpipe.points import in_words
from profpipe.quantities import count, duration, ratio

#: Marks that leave the time itself in doubt. Few samples, or a wait around kernels that were summed alone, do not.
_VOID = {"throttled", "clock-spread", "noisy", "other-process", "above-peak"}

PART_NAMES: Mapping[str, str] = {
    "attention": "Attn", "helpers": "Attn helpers", "direct_copy": "direct_copy", "add": "add", "gemm": "gemm",
    "softmax": "softmax", "rest": "everything else", "graph": "whole graphs",
}  # fmt: skip

#: The same parts inside a sentence.
PARTS_SAID: Mapping[str, str] = {
    "helpers": "its helper kernels", "direct_copy": "copies", "add": "additions", "gemm": "gemm", "softmax": "softmax",
    "rest": "other kernels", "graph": "graphs",
}  # fmt: skip

SWAP_HEADING = "What a swap really costs"


def axes(shape: Axes) -> str:
    """``seqlen 2048, causal``: a shape as people say it."""
    return escape(in_words(shape))


def quantity(basis: Basis | None) -> str:
    """What the times of a workload are, in words."""
    if basis is None:
        return ""
    if basis.quantity == "time":
        return "median time of a call"
    if basis.quantity == "wall":
        return "wall time of the process, start-up included"
    if basis.quantity == "cpu_op":
        return f"self time of CPU operators per call ({basis.profiler})"
    return f"kernel time per call ({basis.profiler})"


def _of_what(basis: Basis | None) -> str:
    words = {
        "time": "per call",
        "wall": "of wall time",
        "kernel": "of kernel time per call",
        "cpu_op": "of CPU operators' self time per call",
    }
    return words[basis.quantity] if basis else ""


# --- the answer ------------------------------------------------------------------------------------------------------


def answer(workload: WorkloadFindings, doubted: set[str], alone: bool) -> list[str]:
    """The sentences of the first lines; ``doubted`` are the cases that did not run what was asked.

    ``alone``: the report has no other workload, so none of its headings carries the workload's name.
    """
    largest = workload.largest
    if largest is None or largest.fastest is None:
        counted = [f"{n} launches under {code(profiler)}" for profiler, n in workload.launches.items() if n]
        return [f"**No case has a time{'; ' + listed(counted) + ', of unknown duration' if counted else ''}.**"]
    if not _compared(workload):
        return [_plain_times(workload)]
    first = _winner(workload, largest, doubted, leading=True)
    return [f"**{first}{_elsewhere(workload, largest, doubted)}**", *_paradoxes(workload, largest, alone)]


def _several(n: float, noun: str) -> str:
    first, _, rest = noun.partition(" of ")
    plural = first + ("es" if first.endswith("ch") else "s") if round(n) != 1 else first
    return f"{count(n)} {plural}" + (f" of {rest}s" if rest else "")


def _compared(workload: WorkloadFindings) -> bool:
    return any(len(shape.timed) > 1 or shape.baseline is not None for shape in workload.shapes) and bool(
        workload.compare
    )


def _plain_times(workload: WorkloadFindings) -> str:
    points = [shape.fastest for shape in workload.shapes if shape.fastest]
    told = [f"{axes(p.shape) or 'one call'}: {duration(p.time.ns)}" for p in points[-4:] if p.time]
    whole = points[0].split is not None and points[0].split.iterations is None and points[0].time is not None
    if whole and len(points) == 1 and workload.basis and not workload.basis.timed:
        split = points[0].split
        assert split is not None
        noun = "call of a CPU operator" if split.kind == "cpu_op" else "kernel launch"
        return f"**{_several(split.total.calls, noun)}, {duration(split.total.ns)} in all.**"
    return f"**{'; '.join(told)} {_of_what(workload.basis)}.**"


def _winner(workload: WorkloadFindings, shape: Shape, doubted: set[str], leading: bool) -> str:
    best, second = shape.fastest, shape.runner_up
    assert best is not None and best.time is not None
    comma = "," if len(shape.axes) > 1 else ""
    name, place = code(best.variant), f"At {axes(shape.axes)}{comma} " if shape.axes else ""
    time = duration(best.time.ns) + (f" {_of_what(workload.basis)}" if leading else "")
    if second is None:
        return f"{place}only {name} has a time: {time}."
    if why := _void(best, workload.basis, doubted):
        return f"{place}{name} has the lowest time, {time}, but is not called the fastest: {why}."
    lead = _lead(best, second, shape)
    if _level(best, second):
        return f"{place}{name} and {code(second.variant)} are level: {time}, {lead}; their 95 % intervals overlap."
    return f"{place}{name} is fastest: {time}, {lead}."


def _lead(best: Point, second: Point, shape: Shape) -> str:
    """By how much, over which baseline; a winning baseline is compared with the next."""
    if best.is_baseline and second.time and best.time:
        return f"the baseline itself, {ratio(second.time.ns / best.time.ns)} over the next, {code(second.variant)}"
    if best.speedup is not None and shape.baseline is not None:
        return f"{ratio(best.speedup)} over {code(shape.baseline.variant)} (baseline)"
    if best.speedup is not None:
        return f"{ratio(best.speedup)} over its baseline"
    assert best.time is not None and second.time is not None
    return (
        f"{ratio(second.time.ns / best.time.ns)} over the next, {code(second.variant)}; the baseline has no time here"
    )


def _ahead(best: Point, shape: Shape) -> str:
    second = shape.runner_up
    if best.is_baseline and best.time and second and second.time:
        return f"{ratio(second.time.ns / best.time.ns)} over {code(second.variant)}"
    return ratio(best.speedup)


def _level(best: Point, second: Point) -> bool:
    one, other = best.time, second.time
    return bool(one and other and one.ci_high is not None and other.ci_low is not None and one.ci_high >= other.ci_low)


def _void(best: Point, basis: Basis | None, doubted: set[str]) -> str:
    """Why the lowest time is no win; empty where it is one."""
    void = _VOID | ({"host_bound"} if basis and basis.timed else set())
    if best.id in doubted:
        return "it did not run the kernels that were asked for"
    marks = [mark for mark in best.marks if mark in void]
    return f"its measurement is marked {listed(marks)}" if marks else ""


def _elsewhere(workload: WorkloadFindings, largest: Shape, doubted: set[str]) -> str:
    others = [shape for shape in workload.shapes if shape is not largest and shape.fastest]
    if not others:
        return ""
    if len(others) <= 2:
        return "".join(" " + _also(workload, shape, largest, doubted) for shape in others)
    wins: dict[str, int] = {}
    for shape in [*others, largest]:
        best, second = shape.fastest, shape.runner_up
        assert best is not None
        level = second is not None and _level(best, second)
        won = "no clear winner" if level or _void(best, workload.basis, doubted) else code(best.variant)
        wins[won] = wins.get(won, 0) + 1
    told = [f"{name} in {n}" for name, n in sorted(wins.items(), key=lambda item: -item[1])]
    return f" Over all {len(others) + 1} shapes: {listed(told)}."


def _also(workload: WorkloadFindings, shape: Shape, largest: Shape, doubted: set[str]) -> str:
    best, same = shape.fastest, largest.fastest
    assert best is not None and best.time is not None and same is not None
    plain = not _void(best, workload.basis, doubted) and best.speedup is not None
    if plain and best.variant == same.variant and not (shape.runner_up and _level(best, shape.runner_up)):
        return f"At {axes(shape.axes)} also: {duration(best.time.ns)}, {_ahead(best, shape)}."
    return _winner(workload, shape, doubted, leading=False)


def _paradoxes(workload: WorkloadFindings, shape: Shape, alone: bool) -> Iterator[str]:
    """A faster attention kernel in a slower call, and what ate the difference."""
    anchor = slug(heading(SWAP_HEADING, workload, alone))
    for swap in [swap for swap in shape.swaps if swap.faster_kernel_slower_call][:3]:
        call = swap.measured_call if swap.measured_call is not None else swap.call
        yield (
            f"{code(swap.variant)} has a faster attention kernel than the baseline ({ratio(swap.attention)})"
            f" and yet a slower call ({ratio(call)}): {_eaten(swap)} ([why](#{anchor}))."
        )


def _eaten(swap: Swap) -> str:
    costs = [f"{PARTS_SAID[part]} ({duration(ns)} more)" for part, ns, _ in swap.changes if ns > 0]
    if swap.call > 1 or not costs:
        return "its kernels together are no slower, the time goes between them"
    return f"{listed(costs)} cost what the kernel saves"


def heading(title: str, workload: WorkloadFindings, alone: bool) -> str:
    """A section's heading; with several workloads in a report each carries its workload's name."""
    return title if alone else f"{title}: {escape(workload.name)}"
