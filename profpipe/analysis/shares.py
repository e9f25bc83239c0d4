"""Where a call's kernel time goes: attention, its helpers, copies, adds; and what a swap of implementations changes."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping

import pandas as pd

from profpipe.analysis.tallies import Kernel, OwnRange, Tally
from profpipe.findings import Part, Split, Swap
from profpipe.kernel_findings import KernelRow, Phase
from profpipe.tables import PATH_SEPARATOR

#: Whose kernels stand for a case, best first: nsys sees every launch at the least cost, ncu runs each one alone.
PREFERENCE = ("nsys", "rocprof", "torch", "ncu")

#: The parts of a call in reading order. What a class is not named here for is ``rest``.
PARTS = ("attention", "helpers", "direct_copy", "add", "gemm", "softmax", "rest", "graph")

_PART_OF_CLASS = {
    "attention": "attention",
    "attention_aux": "helpers",
    "add": "add",
    "gemm": "gemm",
    "softmax": "softmax",
}

#: SageAttention and SpargeAttn subtract the mean of K before they quantise it; PyTorch computes that mean, in a kernel
#: whose name alone could be anything's (sageattention/core.py, ``smooth_k``).
_SMOOTHING_FAMILIES, _SMOOTHING = ("sage", "sparge"), "MeanOps"

#: PyTorch operators that only dispatch: what they call does the attention, be it one kernel or gemm, softmax and gemm.
_DISPATCHERS = re.compile(r"::scaled_dot_product_attention$|_scaled_dot_product_attention_math|_fused_sdp_choice")


def device_rows(kernels: pd.DataFrame) -> pd.DataFrame:
    """The rows that are work of the device proper: kernels and whole graphs, else CPU operators; no copies and sets.

    Launches whose time the tool did not record (an ncu section set without durations) are no zeros: they are left out.
    """
    kernels = kernels[kernels["total_ns"].notna()]
    device = kernels[kernels["kind"].isin(["kernel", "graph"])]
    return device if len(device) else kernels[kernels["kind"] == "cpu_op"]


def split(profiler: str, own: Tally, count: int | None, own_range: OwnRange) -> Split | None:
    """The kernel time of one case, per call where ``count`` iterations are known. None where nothing has a time."""
    if not own.total_ns > 0:
        return None
    by_family: dict[str, float] = {}
    for kernel, (_, ns) in own.work.items():
        if kernel.kernel_class == "attention" and kernel.family:
            by_family[kernel.family] = by_family.get(kernel.family, 0.0) + ns
    families = tuple(sorted(by_family, key=lambda family: -by_family[family]))
    smooths = any(family.startswith(_SMOOTHING_FAMILIES) for family in families)
    parts: dict[str, Part] = {}
    classes: dict[str, Part] = {}
    rest: dict[str, Part] = {}
    total = Part()
    for kernel, (calls, ns) in own.work.items():
        added = Part(calls / (count or 1), ns / (count or 1))
        name = "helpers" if smooths and _SMOOTHING in kernel.name else _part(kernel)
        parts[name] = _plus(parts.get(name), added)
        classes[kernel.kernel_class] = _plus(classes.get(kernel.kernel_class), added)
        if name == "rest":
            rest[kernel.kernel_class] = _plus(rest.get(kernel.kernel_class), added)
        total = _plus(total, added)
    if not own.kernels:
        return Split(profiler, "cpu_op", count, parts, total, classes, families, rest=rest)
    busy, wall, span = (own_range.per_call(ns) for ns in (own_range.busy_ns, own_range.wall_ns, own_range.span_ns))
    copies, idle = Part(own.copies / (count or 1), own.copies_ns / (count or 1)), own_range.idle
    return Split(profiler, "kernel", count, parts, total, classes, families, idle, busy, wall, rest, span, copies)


def _plus(one: Part | None, other: Part) -> Part:
    return other if one is None else Part(one.calls + other.calls, one.ns + other.ns)


@functools.lru_cache(maxsize=4096)
def _part(kernel: Kernel) -> str:
    if kernel.kind == "graph":
        return "graph"
    if "direct_copy_kernel" in kernel.name or (kernel.kind == "cpu_op" and kernel.kernel_class == "copy"):
        return "direct_copy"
    if kernel.kind == "cpu_op" and _DISPATCHERS.search(kernel.name):
        return "rest"
    return _PART_OF_CLASS.get(kernel.kernel_class, "rest")


def swap(variant: str, base: Split, other: Split, measured: float | None) -> Swap:
    """What ``variant`` changes against the baseline; both splits are one profiler's, ``measured`` is of timed calls."""
    attention = with_helpers = None
    if base.fused and other.fused:
        attention = base.part("attention").ns / other.part("attention").ns
        with_helpers = _sum(base, "attention", "helpers") / _sum(other, "attention", "helpers")
    share = base.part("attention").ns / base.total.ns
    return Swap(
        variant=variant,
        attention=attention,
        with_helpers=with_helpers,
        call=base.total.ns / other.total.ns,
        measured_call=measured,
        limit=1 / (1 - share) if base.fused and share < 1 else None,
        changes=_changes(base, other),
    )


def _sum(split: Split, *parts: str) -> float:
    return sum(split.part(part).ns for part in parts)


def _changes(base: Split, other: Split) -> tuple[tuple[str, float, float], ...]:
    """Parts besides attention whose time differs by 2 % of the shorter of the two calls, largest first.

    Copies and sets that are no kernels are among them, for they are in the call: cuDNN sets 0.8 us before 9 us.
    """
    found = []
    pairs = [(name, base.part(name), other.part(name)) for name in PARTS[1:]]
    for name, before, after in (*pairs, ("copies", base.copies, other.copies)):
        if abs(after.ns - before.ns) >= base.least_change(other):
            found.append((name, after.ns - before.ns, after.calls - before.calls))
    return tuple(sorted(found, key=lambda change: -abs(change[1])))


def top_kernels(own: Tally, case: str, count: int | None, limit: int) -> list[KernelRow]:
    """The ``limit`` kernels of ``case`` with the most time, over all phases and streams."""
    total, runs = own.total_ns, count or 1
    ordered = sorted(own.work.items(), key=lambda item: (-item[1][1], item[0].name))
    return [
        KernelRow(case, kernel.name, kernel.kernel_class, kernel.family, calls / runs, ns / runs, ns / total)
        for kernel, (calls, ns) in ordered[:limit]
    ]


def phases(own: Tally, case: str, count: int | None) -> list[Phase]:
    """Launches and kernel time of each of the user's own ranges in ``case``, with what is nested in it."""
    sums: dict[str, tuple[float, float]] = {}
    for path, (calls, ns) in own.phases.items():
        steps = path.split(PATH_SEPARATOR) if path else []
        for depth in range(len(steps)):
            name = PATH_SEPARATOR.join(steps[: depth + 1])
            before = sums.get(name, (0.0, 0.0))
            sums[name] = before[0] + calls, before[1] + ns
    total, runs = own.total_ns, count or 1
    return [Phase(case, name, calls / runs, ns / runs, ns / total) for name, (calls, ns) in sums.items() if ns > 0]


def unclassified(rows: pd.DataFrame, limit: int) -> tuple[float, float, tuple[tuple[str, float], ...]]:
    """(total ns, classified share, largest unclassified (name, share)) of ``rows``."""
    rows = device_rows(rows)
    total = float(rows["total_ns"].sum())
    if not total:
        return 0.0, 1.0, ()
    other = rows[rows["kernel_class"] == "other"].groupby("kernel")["total_ns"].sum().sort_values(ascending=False)
    largest: Mapping[str, float] = {str(name): float(ns) / total for name, ns in other.head(limit).items()}
    return total, 1 - float(other.sum()) / total, tuple(largest.items())
