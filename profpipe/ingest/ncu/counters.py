"""Make rows of `kernels`, `ranges` and `metrics` from the hardware counters of single launches.

ncu measures some 500 quantities of every launch. The tables keep the ``CHOSEN`` ones and those that the user requested
by name. A metric has ncu's name, the mean over the launches of a kernel in a case, and a base unit: ns, byte, byte/s,
Hz, %, 1, or what ncu counts (inst, cycle, block).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import pandas as pd

from profpipe.ingest import launch_tables
from profpipe.results import schema

#: The duration of a launch, newest spelling first. Sum, avg and max of one launch on one GPU are the same.
DURATIONS: Final = tuple(f"gpu__time_duration{suffix}" for suffix in (".sum", ".avg", ".max", ""))

_ELAPSED = ".avg.pct_of_peak_sustained_elapsed"
_ACTIVE = ".avg.pct_of_peak_sustained_active"

#: Subject -> metrics. A tuple holds the spellings of several chips and versions, of which the first present is kept.
CHOSEN: Final[dict[str, tuple[str | tuple[str, ...], ...]]] = {
    "time": (DURATIONS,),
    "DRAM traffic": (
        "dram__bytes.sum",
        ("dram__bytes_read.sum", "dram__bytes_op_read.sum"),
        ("dram__bytes_write.sum", "dram__bytes_op_write.sum"),
        "dram__bytes.sum.per_second",
        ("dram__bytes_read.sum.per_second", "dram__bytes_op_read.sum.per_second"),
        ("dram__bytes_write.sum.per_second", "dram__bytes_op_write.sum.per_second"),
        (f"gpu__dram_throughput{_ELAPSED}", f"dram__throughput{_ELAPSED}"),
    ),
    "caches": (
        "lts__t_bytes.sum",
        "lts__t_sector_hit_rate.pct",
        f"lts__throughput{_ELAPSED}",
        "l1tex__t_sector_hit_rate.pct",
        f"l1tex__throughput{_ACTIVE}",
    ),
    "speed of light": (
        f"sm__throughput{_ELAPSED}",
        (f"gpu__compute_memory_throughput{_ELAPSED}", f"gpu__compute_memory_access_throughput{_ELAPSED}"),
    ),
    "tensor cores": (
        (
            f"sm__pipe_tensor_cycles_active{_ELAPSED}",
            f"sm__pipe_tensor_cycles_active_v2{_ELAPSED}",
            f"sm__pipe_tensor_cycles_active{_ACTIVE}",
            f"sm__pipe_tensor_op_hmma_cycles_active{_ELAPSED}",
            f"sm__pipe_tensor_op_hmma_cycles_active{_ACTIVE}",
            f"sm__inst_executed_pipe_tensor{_ELAPSED}",
            f"sm__inst_executed_pipe_tensor{_ACTIVE}",
        ),
        ("sm__inst_executed_pipe_tensor.sum", "sm__inst_executed_pipe_tensor_op_hmma.sum"),
        "sm__inst_executed_pipe_tensor_op_gmma.sum",
    ),
    "instructions": ("sm__inst_executed.avg.per_cycle_active", "smsp__inst_executed.sum"),
    "occupancy": (
        f"sm__warps_active{_ACTIVE}",
        "sm__maximum_warps_per_active_cycle_pct",
        *(f"launch__occupancy_limit_{what}" for what in ("registers", "shared_mem", "warps", "blocks", "barriers")),
    ),
    "launch": tuple(
        f"launch__{what}"
        for what in (
            "grid_size", "block_size", "thread_count", "cluster_size", "waves_per_multiprocessor",
            "registers_per_thread", "shared_mem_per_block", "shared_mem_per_block_static",
            "shared_mem_per_block_dynamic",
        )
    ),
    "clocks": (
        ("gpc__cycles_elapsed.avg.per_second", "smsp__cycles_elapsed.avg.per_second"),
        "dram__cycles_elapsed.avg.per_second",
    ),
}  # fmt: skip

#: Families with a member for each stall reason and each kind of instruction.
CHOSEN_FAMILIES: Final = re.compile(
    r"^smsp__average_warps_issue_stalled_\w+_per_issue_active(\.ratio)?$"
    r"|^smsp__average_warp_latency_issue_stalled_\w+(\.ratio)?$"
    r"|^smsp?__sass_thread_inst_executed_op_[a-z0-9]+_pred_on\.sum$"
)


@dataclass
class Rule:
    """Advice of ncu: the estimated speed-up in percent, if any, of the whole kernel or of a part (local)."""

    name: str
    speedup: float | None = None
    is_local: bool = False


@dataclass
class Launch:
    """One profiled launch. ``name`` is normalised: ncu prints the same kernel demangled or mangled.

    ``values``: metric -> (value, unit as stated); ``path``: the ranges around it, outermost first; ``grid`` and
    ``block``: ``32x2x16``, empty where the file does not give the three sizes.
    """

    name: str
    process: int | None = None
    device: int | None = None
    stream: int | None = None
    path: tuple[str, ...] = ()
    kind: str = "kernel"
    grid: str = ""
    block: str = ""
    values: dict[str, tuple[float, str]] = field(default_factory=dict)
    #: Metrics that the user named on ncu's command line.
    requested: set[str] = field(default_factory=set)
    rules: list[Rule] = field(default_factory=list)

    @property
    def duration_ns(self) -> float:
        """Return the duration, NaN where it was not measured or has no unit of time."""
        for name in DURATIONS:
            value, unit = in_base_unit(*self.values.get(name, (math.nan, "")))
            if unit == "ns" and not math.isnan(value):
                return round(value, 3)
        return math.nan


def chosen(names: Iterable[str]) -> Iterator[str]:
    """Yield those of ``names`` that the tables keep."""
    there = dict.fromkeys(names)
    for entry in (entry for group in CHOSEN.values() for entry in group):
        candidates = (entry,) if isinstance(entry, str) else entry
        yield from [name for name in candidates if name in there][:1]
    yield from (name for name in there if CHOSEN_FAMILIES.search(name))


# --- units -----------------------------------------------------------------------------------------------------------

_TIME = re.compile(r"^(n|u|m|)(?:s|sec|second|seconds)$")
_SCALED = re.compile(r"^([KkMGTP]?)(byte|bytes|B|hz|Hz)$")
_NS_PER = {"n": 1.0, "u": 1e3, "m": 1e6, "": 1e9}
_PREFIX = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}


def in_base_unit(value: float, unit: str) -> tuple[float, str]:
    """Return ``value`` in its base unit, and that unit.

    ncu up to 2023 writes nsecond, usecond, Kbyte, Gbyte/second and cycle/nsecond, later versions ns, us, Gbyte/s and
    Ghz. Prefixes are decimal: 16384 byte are 16.38 Kbyte.
    """
    unit = unit.strip()
    above, _, below = unit.partition("/")
    factor = 1.0
    if time := _TIME.match(above):
        factor, above = _NS_PER[time[1]], "ns"
    elif scaled := _SCALED.match(above):
        factor, above = _PREFIX[scaled[1]], "Hz" if scaled[2].lower() == "hz" else "byte"
    if below and (time := _TIME.match(below)):
        factor, below = factor * 1e9 / _NS_PER[time[1]], "s"
        if above == "cycle":
            above, below = "Hz", ""
    return value * factor, (f"{above}/{below}" if below else above) or "1"


# --- tables ----------------------------------------------------------------------------------------------------------


def tables_of(launches: Sequence[Launch], origin: schema.Origin, placement: schema.Placement) -> schema.Tables:
    """Return the tables of ``launches`` without classes and families; complete ``origin`` with the sums.

    ``placement`` is how the file shows in which ranges a launch lies. A launch without a measured duration counts as a
    call, and the times of its kernel are missing.
    """
    frame = pd.DataFrame([_row(launch) for launch in launches])
    summed = launch_tables.kernel_rows(frame)
    times = ["total_ns", "mean_ns", "median_ns", "min_ns", "max_ns", "stddev_ns"]
    summed.loc[summed["total_ns"].isna(), times] = pd.NA
    return schema.Tables(
        kernels=summed.assign(profiler=origin.tool),
        ranges=_ranges(launches, frame).assign(profiler=origin.tool),
        metrics=_metrics(launches, frame).assign(profiler=origin.tool),
        origin=replace(_with_sums(origin, frame), attribution=_count_placements(launches, placement)),
    )


def _count_placements(launches: Sequence[Launch], placement: schema.Placement) -> dict[schema.Placement, int]:
    found = sum(bool(launch.path) for launch in launches)
    if not found:
        return {schema.Placement.NO_NVTX: len(launches)}
    counts = {placement: found, schema.Placement.NO_RANGE: len(launches) - found}
    return {how: count for how, count in counts.items() if count}


def _row(launch: Launch) -> dict[str, object]:
    case, phase = schema.split_path(launch.path)
    return {
        "case": case, "phase": phase, "kind": launch.kind, "kernel": launch.name,
        "process": launch.process, "device": launch.device, "stream": launch.stream,
        "duration_ns": launch.duration_ns,
    }  # fmt: skip


def _with_sums(origin: schema.Origin, frame: pd.DataFrame) -> schema.Origin:
    kernels = frame[frame["kind"] == "kernel"]
    notes = list(origin.notes)
    if missing := int(kernels["duration_ns"].isna().sum()):
        have, whose = ("has", "its") if missing == 1 else ("have", "their")
        notes.append(f"{missing} of {len(kernels)} launches {have} no gpu__time_duration: {whose} time is missing")
    if whole := int((frame["kind"] == "graph").sum()):
        notes.append(f"{whole} results are of whole graphs or ranges: their kernels are not distinguished")
    return replace(origin.with_sums(kernels["duration_ns"], kernels["case"] != ""), notes=tuple(notes))


def _ranges(launches: Sequence[Launch], frame: pd.DataFrame) -> pd.DataFrame:
    """Return the kernels of each range. ncu gives no instances and no wall times."""
    rows: dict[tuple[int | None, str, str], list[float]] = {}
    for launch, duration in zip(launches, frame["duration_ns"], strict=True):
        if launch.kind == "kernel":
            places = (schema.split_path(launch.path[: depth + 1]) for depth in range(len(launch.path)))
            for case, path in dict.fromkeys(places):
                rows.setdefault((launch.process, case, path), []).append(duration)
    found = [(*place, len(times), math.fsum(times)) for place, times in rows.items()]
    columns = ["process", "case", "range", "kernels", "kernel_ns"]
    return schema.frame(schema.RANGES, pd.DataFrame(found, columns=columns))


def _metrics(launches: Sequence[Launch], frame: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each case, kernel and metric: the mean over its launches, and their number."""
    found: dict[tuple[str, str, str, str], list[float]] = {}
    for launch, case in zip(launches, frame["case"], strict=True):
        for metric, value, unit in _numbers(launch):
            found.setdefault((case, launch.name, metric, unit), []).append(value)
    rows = []
    for (case, subject, metric, unit), values in found.items():
        known = np.array([value for value in values if not math.isnan(value)])
        number = {"value": float(known.mean()) if len(known) else None, "n": len(known) or len(values)}
        rows.append({"case": case, "subject": subject, "metric": metric, "unit": unit, **number})
    return schema.frame(schema.METRICS, rows)


def _numbers(launch: Launch) -> Iterator[tuple[str, float, str]]:
    for metric in dict.fromkeys([*chosen(launch.values), *sorted(launch.requested & launch.values.keys())]):
        value, unit = in_base_unit(*launch.values[metric])
        if not math.isnan(value):
            yield metric, value, unit
    # A rule may give several estimates for one launch (of DRAM, of L1, of L2): the largest counts.
    estimates: dict[tuple[str, bool], list[float]] = {}
    for rule in launch.rules:
        known = estimates.setdefault((rule.name, rule.is_local), [])
        known += [] if rule.speedup is None else [rule.speedup]
    for (name, is_local), known in estimates.items():
        yield f"rule:{name}", max(known, default=math.nan), "% local" if is_local else "%"
