"""Where a call's kernel time goes: attention, its helpers, copies, adds; and what a swap of implementations changes."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from profpipe.findings import KernelRow, Part, Phase, Split, Swap

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
_SMOOTHING = ("sage", "sparge")


#: PyTorch operators that only dispatch: what they call does the attention, be it one kernel or gemm, softmax and gemm.
_DISPATCHERS = r"::scaled_dot_product_attention$|_scaled_dot_product_attention_math|_fused_sdp_choice"


def device_rows(kernels: pd.DataFrame) -> pd.DataFrame:
    """The rows that are work of the device proper: kernels and whole graphs, else CPU operators; no copies and sets.

    Launches whose time the tool did not record (an ncu section set without durations) are no zeros: they are left out.
    """
    kernels = kernels[kernels["total_ns"].notna()]
    device = kernels[kernels["kind"].isin(["kernel", "graph"])]
    return device if len(device) else kernels[kernels["kind"] == "cpu_op"]


def iterations(ranges: pd.DataFrame, metrics: pd.DataFrame, case: str, profiler: str) -> int | None:
    """How often ``case`` ran under ``profiler``: the instances of its range, else what the harness counted."""
    own = ranges[(ranges["case"] == case) & (ranges["profiler"] == profiler) & (ranges["range"] == "")]
    if case and (count := own["instances"].sum()) > 0:
        return int(count)
    said = metrics[(metrics["case"] == case) & (metrics["profiler"] == profiler) & (metrics["metric"] == "iterations")][
        "value"
    ].dropna()
    return int(said.sum()) if len(said) and said.sum() > 0 else None


def split(rows: pd.DataFrame, count: int | None, own_range: pd.DataFrame) -> Split | None:
    """The kernel time of one case under one profiler.

    ``rows``: its kernels; ``count``: its iterations; ``own_range``: the rows of its own range, for the idle share.
    """
    rows = device_rows(rows)
    if not rows["total_ns"].sum() > 0:
        return None
    families = _families(rows)
    part = _parts(rows, smoothing=any(family.startswith(_SMOOTHING) for family in families))
    on_cpu = str(rows["kind"].iloc[0]) == "cpu_op"
    return Split(
        profiler=str(rows["profiler"].iloc[0]),
        kind="cpu_op" if on_cpu else "kernel",
        iterations=count,
        parts=_sums(rows, part, count),
        total=_sums(rows, pd.Series("total", index=rows.index), count)["total"],
        classes=_sums(rows, rows["kernel_class"], count),
        families=families,
        idle=None if on_cpu else _idle(own_range),
    )


def _sums(rows: pd.DataFrame, by: pd.Series, count: int | None) -> dict[str, Part]:
    """Launches and time by group, per call where the number of calls is known."""
    numbers = pd.DataFrame({"calls": rows["calls"].astype(float), "ns": rows["total_ns"].astype(float)})
    sums = numbers.groupby(by.astype(object)).sum() / (count or 1)
    return {str(name): Part(float(row["calls"]), float(row["ns"])) for name, row in sums.iterrows()}


def _families(rows: pd.DataFrame) -> tuple[str, ...]:
    attention = rows[(rows["kernel_class"] == "attention") & (rows["kernel_family"] != "")]
    by_time = attention.groupby("kernel_family")["total_ns"].sum().sort_values(ascending=False)
    return tuple(str(family) for family in by_time.index)


def _parts(rows: pd.DataFrame, *, smoothing: bool) -> pd.Series:
    part = rows["kernel_class"].map(_PART_OF_CLASS).fillna("rest").astype(object)
    part[rows["kind"] == "graph"] = "graph"
    part[rows["kernel"].str.contains("direct_copy_kernel", regex=False)] = "direct_copy"
    on_cpu = rows["kind"] == "cpu_op"
    part[on_cpu & (rows["kernel_class"] == "copy")] = "direct_copy"
    part[on_cpu & rows["kernel"].str.contains(_DISPATCHERS)] = "rest"
    if smoothing:
        part[rows["kernel"].str.contains("MeanOps", regex=False)] = "helpers"
    return part


def _idle(own_range: pd.DataFrame) -> float | None:
    known = own_range.dropna(subset=["wall_ns", "busy_ns"])
    wall, busy = float(known["wall_ns"].sum()), float(known["busy_ns"].sum())
    # Launches run ahead of the GPU, so a range may end before its kernels do; then nothing is known of gaps.
    return 1 - busy / wall if wall > busy > 0 else None


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
    """Parts besides attention whose time differs by 2 % of the baseline's call, largest first."""
    found = []
    for name in PARTS[1:]:
        ns, calls = other.part(name).ns - base.part(name).ns, other.part(name).calls - base.part(name).calls
        if abs(ns) >= 0.02 * base.total.ns:
            found.append((name, ns, calls))
    return tuple(sorted(found, key=lambda change: -abs(change[1])))


def top_kernels(rows: pd.DataFrame, case: str, count: int | None, limit: int) -> list[KernelRow]:
    """The ``limit`` kernels of ``case`` with the most time, over all phases and streams."""
    rows = device_rows(rows)
    keys = ["kernel", "kernel_class", "kernel_family"]
    sums = rows.groupby(keys)[["calls", "total_ns"]].sum().sort_values("total_ns", ascending=False, kind="stable")
    total, runs = float(sums["total_ns"].sum()), count or 1
    return [
        KernelRow(case, str(kernel), str(cls), str(family), float(calls) / runs, float(ns) / runs, float(ns) / total)
        for kernel, cls, family, calls, ns in sums.head(limit).reset_index().itertuples(index=False, name=None)
    ]


def phases(ranges: pd.DataFrame, case: str, count: int | None, total_ns: float) -> list[Phase]:
    """Kernel time of the user's own ranges in ``case``, nested ranges included, in the order of the file."""
    own = ranges[(ranges["range"] != "") & ranges["kernel_ns"].notna()]
    # min_count: a tool that does not count instances leaves them missing, not zero.
    sums = own.groupby("range", sort=False)[["instances", "kernels", "kernel_ns"]].sum(min_count=1)
    runs = count or 1
    found = []
    for name, instances, kernels, ns in sums.reset_index().itertuples(index=False, name=None):
        if ns > 0:
            entered = None if pd.isna(instances) else int(instances)
            per_call = float(ns) / runs
            share = per_call / total_ns if total_ns else None
            found.append(Phase(case, str(name), entered, _number(kernels, runs), per_call, share))
    return found


def _number(value: object, runs: int) -> float | None:
    return None if pd.isna(value) else float(value) / runs  # type: ignore[call-overload,arg-type]


def unclassified(rows: pd.DataFrame, limit: int) -> tuple[float, float, tuple[tuple[str, float], ...]]:
    """(total ns, classified share, largest unclassified (name, share)) of ``rows``."""
    rows = device_rows(rows)
    total = float(rows["total_ns"].sum())
    if not total:
        return 0.0, 1.0, ()
    other = rows[rows["kernel_class"] == "other"].groupby("kernel")["total_ns"].sum().sort_values(ascending=False)
    largest: Mapping[str, float] = {str(name): float(ns) / total for name, ns in other.head(limit).items()}
    return total, 1 - float(other.sum()) / total, tuple(largest.items())
