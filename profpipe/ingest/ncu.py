"""Make rows of `kernels`, `ranges` and `metrics` from the hardware counters of single launches.

ncu measures some 500 quantities of a launch. The tables keep the ``CHOSEN`` ones and those that the user requested
by name. A metric has ncu's name, the mean over the launches of a kernel in a case, and a base unit: ns, byte, byte/s,
Hz, %, 1, or what ncu counts (inst, cycle, block).

Beside a report of guided ncu lies ``guide.json`` with the requested launches. ncu takes one list of invocations for
all kernels, so it profiles more launches than requested. They come in the order of their launch: of a kernel, the
j-th in the report is the j-th of that list.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from profpipe.errors import UnreadableFile
from profpipe.ingest import kernel_classes, launch_tables
from profpipe.results import atomic, schema

#: The duration of a launch, newest spelling first. Sum, avg and max of one launch on one GPU are the same.
DURATIONS: Final = tuple(f"gpu__time_duration{suffix}" for suffix in (".sum", ".avg", ".max", ""))

_ELAPSED = ".avg.pct_of_peak_sustained_elapsed"
_ACTIVE = ".avg.pct_of_peak_sustained_active"

#: The metrics. A tuple holds the spellings of several chips and versions, of which the first present is kept.
CHOSEN: Final[tuple[str | tuple[str, ...], ...]] = (
    # time
    DURATIONS,
    # DRAM traffic
    "dram__bytes.sum",
    ("dram__bytes_read.sum", "dram__bytes_op_read.sum"),
    ("dram__bytes_write.sum", "dram__bytes_op_write.sum"),
    "dram__bytes.sum.per_second",
    ("dram__bytes_read.sum.per_second", "dram__bytes_op_read.sum.per_second"),
    ("dram__bytes_write.sum.per_second", "dram__bytes_op_write.sum.per_second"),
    (f"gpu__dram_throughput{_ELAPSED}", f"dram__throughput{_ELAPSED}"),
    # caches
    "lts__t_bytes.sum",
    "lts__t_sector_hit_rate.pct",
    f"lts__throughput{_ELAPSED}",
    "l1tex__t_sector_hit_rate.pct",
    f"l1tex__throughput{_ACTIVE}",
    # speed of light
    f"sm__throughput{_ELAPSED}",
    (f"gpu__compute_memory_throughput{_ELAPSED}", f"gpu__compute_memory_access_throughput{_ELAPSED}"),
    # tensor cores
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
    # instructions
    "sm__inst_executed.avg.per_cycle_active",
    "smsp__inst_executed.sum",
    # occupancy
    f"sm__warps_active{_ACTIVE}",
    "sm__maximum_warps_per_active_cycle_pct",
    *(f"launch__occupancy_limit_{what}" for what in ("registers", "shared_mem", "warps", "blocks", "barriers")),
    # launch
    "launch__grid_size",
    "launch__block_size",
    "launch__thread_count",
    "launch__cluster_size",
    "launch__waves_per_multiprocessor",
    "launch__registers_per_thread",
    "launch__shared_mem_per_block",
    "launch__shared_mem_per_block_static",
    "launch__shared_mem_per_block_dynamic",
    # clocks
    ("gpc__cycles_elapsed.avg.per_second", "smsp__cycles_elapsed.avg.per_second"),
    "dram__cycles_elapsed.avg.per_second",
)

#: Families with a member for a stall reason or a kind of instruction.
CHOSEN_FAMILIES: Final = re.compile(
    r"^smsp__average_warps_issue_stalled_\w+_per_issue_active(\.ratio)?$"
    r"|^smsp__average_warp_latency_issue_stalled_\w+(\.ratio)?$"
    r"|^smsp?__sass_thread_inst_executed_op_[a-z0-9]+_pred_on\.sum$"
)


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
    #: The estimated speed-ups in % of the rules that advise; of the whole kernel or of a part (local).
    rules: dict[tuple[str, bool], list[float]] = field(default_factory=dict)

    def add_rule(self, name: str, is_local: bool, speedup: float | None) -> None:
        self.rules.setdefault((name, is_local), []).extend([] if speedup is None else [speedup])

    @property
    def duration_ns(self) -> float:
        """Return the duration, NaN where it was not measured or has no unit of time."""
        for name in DURATIONS:
            value, unit = convert_unit(*self.values.get(name, (math.nan, "")))
            if unit == "ns" and not math.isnan(value):
                return round(value, 3)
        return math.nan


def chosen(names: Iterable[str]) -> Iterator[str]:
    """Yield those of ``names`` that the tables keep."""
    there = dict.fromkeys(names)
    for entry in CHOSEN:
        candidates = (entry,) if isinstance(entry, str) else entry
        yield from [name for name in candidates if name in there][:1]
    yield from (name for name in there if CHOSEN_FAMILIES.search(name))


# --- units -----------------------------------------------------------------------------------------------------------

_TIME = re.compile(r"^(n|u|m|)(?:s|sec|second|seconds)$")
_SCALED = re.compile(r"^([KkMGTP]?)(byte|bytes|B|hz|Hz)$")
_NS_PER = {"n": 1.0, "u": 1e3, "m": 1e6, "": 1e9}
_PREFIX = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}


def convert_unit(value: float, unit: str) -> tuple[float, str]:
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


def sum_up(launches: Sequence[Launch], origin: schema.Origin, placement: schema.Placement) -> schema.Tables:
    """Return the tables of ``launches``; complete ``origin`` with the sums.

    ``placement`` is how the file shows in which ranges a launch lies. A launch without a measured duration counts as a
    call, and the times of its kernel are missing.
    """
    frame = pd.DataFrame([_row(launch) for launch in launches])
    summed = launch_tables.kernel_rows(frame)
    times = ["total_ns", "mean_ns", "median_ns", "min_ns", "max_ns", "stddev_ns"]
    summed.loc[summed["total_ns"].isna(), times] = pd.NA
    durations = frame[frame["kind"] == "kernel"]
    summed_origin = origin.add_sums(durations["duration_ns"], durations["case"] != "")
    notes = (*origin.notes, *_notes(durations["duration_ns"], int((frame["kind"] == "graph").sum())))
    return schema.Tables(
        kernels=kernel_classes.annotate(summed.assign(profiler=origin.tool)),
        ranges=_ranges(launches, frame).assign(profiler=origin.tool),
        metrics=_metrics(launches, frame).assign(profiler=origin.tool),
        origin=replace(summed_origin, notes=notes, attribution=_count_placements(launches, placement)),
    )


def _count_placements(launches: Sequence[Launch], placement: schema.Placement) -> dict[schema.Placement, int]:
    placed = sum(bool(launch.path) for launch in launches)
    if not placed:
        return {schema.Placement.NO_NVTX: len(launches)}
    counts = {placement: placed, schema.Placement.NO_RANGE: len(launches) - placed}
    return {how: count for how, count in counts.items() if count}


def _row(launch: Launch) -> dict[str, object]:
    case, phase = schema.split_path(launch.path)
    return {
        "case": case, "phase": phase, "kind": launch.kind, "kernel": launch.name,
        "process": launch.process, "device": launch.device, "stream": launch.stream,
        "duration_ns": launch.duration_ns,
    }  # fmt: skip


def _notes(durations_ns: pd.Series[Any], graphs: int) -> Iterator[str]:
    if missing := int(durations_ns.isna().sum()):
        have, whose = ("has", "its") if missing == 1 else ("have", "their")
        yield f"{missing} of {len(durations_ns)} launches {have} no gpu__time_duration: {whose} time is missing"
    if graphs:
        yield f"{graphs} results are of whole graphs or ranges: their kernels are not distinguished"


def _ranges(launches: Sequence[Launch], frame: pd.DataFrame) -> pd.DataFrame:
    """Return the kernels of a range. ncu gives no instances and no wall times."""
    rows: dict[tuple[int | None, str, str], list[float]] = {}
    for launch, duration in zip(launches, frame["duration_ns"], strict=True):
        if launch.kind == "kernel":
            places = (schema.split_path(launch.path[: depth + 1]) for depth in range(len(launch.path)))
            for case, path in dict.fromkeys(places):
                rows.setdefault((launch.process, case, path), []).append(duration)
    range_rows = [(*place, len(times), math.fsum(times)) for place, times in rows.items()]
    columns = ["process", "case", "range", "kernels", "kernel_ns"]
    return schema.frame(schema.RANGES, pd.DataFrame(range_rows, columns=columns))


def _metrics(launches: Sequence[Launch], frame: pd.DataFrame) -> pd.DataFrame:
    """Return a row for a case, kernel and metric: the mean over its launches, and their number."""
    samples: dict[tuple[str, str, str, str], list[float]] = {}
    for launch, case in zip(launches, frame["case"], strict=True):
        for metric, value, unit in _numbers(launch):
            samples.setdefault((case, launch.name, metric, unit), []).append(value)
    rows = []
    for (case, subject, metric, unit), values in samples.items():
        present = np.array([value for value in values if not math.isnan(value)])
        number = {"value": float(present.mean()) if len(present) else None, "n": len(present) or len(values)}
        rows.append({"case": case, "subject": subject, "metric": metric, "unit": unit, **number})
    return schema.frame(schema.METRICS, rows)


def _numbers(launch: Launch) -> Iterator[tuple[str, float, str]]:
    for metric in dict.fromkeys([*chosen(launch.values), *sorted(launch.requested & launch.values.keys())]):
        value, unit = convert_unit(*launch.values[metric])
        if not math.isnan(value):
            yield metric, value, unit
    # A rule may give several estimates for one launch (of DRAM, of L1, of L2): the largest counts.
    for (name, is_local), speedups in launch.rules.items():
        yield f"rule:{name}", max(speedups, default=math.nan), "% local" if is_local else "%"


# --- guided ncu ------------------------------------------------------------------------------------------------------

FILE: Final = "guide.json"
#: The file's first key; its value is the version of the format.
_MARK: Final = "profpipe_guide"
_NAME_WIDTH: Final = 100


@dataclass(frozen=True)
class Choice:
    """A chosen launch: the ``invocation``-th of ``kernel`` in one iteration of ``case``, counted from 1.

    ``launches`` is the kernel's number of launches in an iteration. The choice stands for the invocations in ``alike``,
    itself among them, which have its ``grid`` and ``block`` and about its duration; ``share`` is their part of the
    kernel's time. Without a capture of single launches all of these are missing, and the first launch is chosen.
    """

    case: str
    kernel: str
    invocation: int = 1
    grid: str = ""
    block: str = ""
    alike: tuple[int, ...] = ()
    launches: int | None = None
    share: float | None = None


#: The launches requested from one process of ncu.
Guide = tuple[Choice, ...]


def invocations(guide: Guide) -> list[int]:
    """Return the list that ncu was given."""
    return sorted({choice.invocation for choice in guide})


def to_json(guide: Guide) -> str:
    document = {_MARK: 1, "invocations": invocations(guide), "kernels": [asdict(choice) for choice in guide]}
    return json.dumps(document, indent=1)


def read_beside(report: Path) -> Guide | None:
    """Read the guide beside ``report``, None where it has none. Raises ``UnreadableFile`` for a damaged one."""
    path = report.with_name(FILE)
    try:
        document: Any = json.loads(atomic.read_regular(path))
        if not isinstance(document, dict) or _MARK not in document:
            return None  # a file of another program
        # pydantic takes 0.1 s to load.
        from pydantic import TypeAdapter

        return TypeAdapter(Guide).validate_json(json.dumps(document["kernels"]), strict=True)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        what = f"{FILE} beside it cannot be read ({error!r}), which says which launches were meant"
        remedy = f"Repair {FILE}, or move it away to read every launch in the report."
        raise UnreadableFile(report, what, remedy) from error


def select(report: Path, launches: Sequence[Launch], origin: schema.Origin) -> tuple[list[Launch], schema.Origin]:
    """Select the launches that the guide beside ``report`` asks for, all without one; note this in ``origin``.

    Raises ``UnreadableFile``.
    """
    guide = read_beside(report)
    if guide is None:
        return list(launches), origin
    kernels = [launch for launch in launches if launch.kind == "kernel"]
    cases = {_case_of(launch) for launch in kernels}
    # A report that was made after a crash has only the remaining cases. The range of a case is missing in a command.
    choices = [choice for choice in guide if choice.case in cases or "" in cases]
    matches = [_match(choice, kernels, guide) for choice in choices]
    selected_ids = {id(launch) for launch, _, _ in matches if launch}
    if not selected_ids:
        note = f"none of the kernels in {FILE} is in the report: every launch is kept"
        return list(launches), replace(origin, notes=(note, *origin.notes))
    details = [text for _, text, is_expected in matches if is_expected]
    if more := len(launches) - len(selected_ids):
        details.append(f"launches left out: {more}, which ncu took with one list of invocations for all kernels")
    notes = [text for _, text, is_expected in matches if not is_expected]
    origin = replace(origin, notes=(*notes, *origin.notes), details=tuple(details), read_with=(FILE,))
    return [launch for launch in launches if id(launch) in selected_ids], origin


def tables_of(
    report: Path, launches: Sequence[Launch], origin: schema.Origin, placement: schema.Placement
) -> schema.Tables:
    """Return the tables of the launches that ``select`` returns. Raises ``UnreadableFile``.

    ``origin`` and ``placement`` are those of ``sum_up``.
    """
    return sum_up(*select(report, launches, origin), placement)


def _match(choice: Choice, launches: Iterable[Launch], guide: Guide) -> tuple[Launch | None, str, bool]:
    """Return (the launch of ``choice``, a sentence about it, whether it is the requested launch)."""
    of_kernel = [
        launch for launch in launches if launch.name == choice.kernel and _case_of(launch) in ("", choice.case)
    ]
    half = _NAME_WIDTH // 2
    # Both ends of the name, which distinguish PyTorch's kernels.
    is_long = len(choice.kernel) > _NAME_WIDTH
    name = f"{choice.kernel[:half]}…{choice.kernel[-half:]}" if is_long else choice.kernel
    if not of_kernel:
        return None, f"not in the report: {name}, of which launch {choice.invocation} was requested", False
    rank = invocations(guide).index(choice.invocation)
    counted = of_kernel[rank] if rank < len(of_kernel) else None
    if counted and _has_shape(counted, choice):
        return counted, _describe(choice, name), True
    alike = next((launch for launch in of_kernel if _has_shape(launch, choice)), None)
    taken = alike or counted or of_kernel[-1]
    what = "another launch of its shape" if alike else f"one of grid {taken.grid or '?'}, block {taken.block or '?'},"
    text = (
        f"of {name} launch {choice.invocation} was chosen (grid {choice.grid}, block {choice.block}), which is not the "
        f"one that ncu counted as that: taken is {what} instead"
    )
    return taken, text, False


def _case_of(launch: Launch) -> str:
    return schema.split_path(launch.path)[0]


def _has_shape(launch: Launch, choice: Choice) -> bool:
    """Return True where no stated size differs: CSV and old reports do not give the three sizes."""
    pairs = ((launch.grid, choice.grid), (launch.block, choice.block))
    return all(not seen or not wanted or seen == wanted for seen, wanted in pairs)


def _describe(choice: Choice, name: str) -> str:
    of_all = "" if choice.launches is None else f" of {choice.launches}"
    if choice.share is None:
        return f"launch {choice.invocation}{of_all} of {name} (the guiding capture does not distinguish its launches)"
    alike = "1 launch" if len(choice.alike) == 1 else f"{len(choice.alike)} launches"
    shape = f"(grid {choice.grid}), of the shape with {100 * choice.share:.0f} % of that kernel's time ({alike})"
    return f"launch {choice.invocation}{of_all} of {name} {shape}"
