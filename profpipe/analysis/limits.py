"""What limits a call: the host that issues it, arithmetic, or memory; and what profilers add to it.

The roofline (Williams, Waterman, Patterson, CACM 52(4), 2009): with P FLOP/s and B bytes/s at most, a call of I FLOP
per byte is limited by arithmetic where I > P/B, else by memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from profpipe.analysis.recorded import Number
from profpipe.findings import Limit, Overhead, Point
from profpipe.kernel_findings import Counters

#: Spellings of data types in parameters, to those of the machine's rates.
_DTYPES = {"float16": "fp16", "half": "fp16", "bfloat16": "bf16", "float32": "fp32", "float": "fp32", "float64": "fp64"}

#: What the name of a metric begins with that holds the FLOPs of one data type; the type follows.
OF_TYPE = "flops."

#: More idle time than this inside a case's range, and its launches rather than its kernels are what one waits for.
HOST_BOUND = 0.5

#: Numbers that only cases of several processes, or of GPUs that communicate, have.
_OF_SEVERAL = ("time_own", "communication_busy")

_DRAM_RATE = "dram__bytes.sum.per_second"


@dataclass(frozen=True)
class Rates:
    """The most that the machine gives: FLOP/s by data type, bytes/s; ``source`` says by which rule or measurement.

    ``flops_in_16_bits`` are the rates that are higher where a kernel accumulates in 16 bits, which no workload tells.
    """

    flops: Mapping[str, float]
    bytes_per_s: float | None
    source: str = ""
    flops_in_16_bits: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, stated: Mapping[str, Any] | None) -> Rates:
        """From ``peaks`` or ``ceilings`` of run.json."""
        stated = stated or {}
        flops, in_16_bits = (stated.get(key) or {} for key in ("flops", "flops_in_16_bits"))
        return cls(flops, stated.get("bytes_per_s"), str(stated.get("source") or ""), in_16_bits)

    @classmethod
    def of_workload(cls, name: str, run: Mapping[str, Any]) -> tuple[Rates, Rates]:
        """(the most that its GPU can give, what limits are held against: ceilings where they were measured on it).

        Its GPU is the one that its jobs say they ran on. Records of earlier versions, and jobs that do not say, have
        the machine's rates.
        """
        machine, jobs = run.get("machine") or {}, [job for job in run.get("jobs") or () if job.get("workload") == name]
        telling = [job for job in jobs if job.get("devices")]
        stated = [job.get("peaks") or machine.get("peaks") for job in telling or jobs] or [machine.get("peaks")]
        alike = all(one == stated[0] for one in stated)
        peaks = cls.of(stated[0] if alike else {"source": "unknown: its jobs ran on GPUs of different rates"})
        names = {one.get("device") for job in telling for one in job["devices"]}
        names = names or {gpu.get("name") for gpu in machine.get("gpus") or ()}
        measured = machine.get("ceilings") or {}
        ceilings = cls.of(measured if names == {measured.get("device")} or "device" not in measured else {})
        return peaks, ceilings if ceilings.flops else peaks

    def flops_of(self, params: Mapping[str, Any], work: Mapping[str, float]) -> float | None:
        """The most for a case with ``params`` of which ``work`` is known, or of a part of one.

        That of the data type that the case names, or, where ``work`` has its FLOPs by data type, that of them all one
        after the other: their sum over the least time that they take. None where the rate of any is unknown.
        """
        parts = _by_type(work) or {_named(params): 1.0}
        rates = [self.flops.get(name) for name in parts]
        if len(rates) == 1:
            return rates[0]
        least_s = [flop / rate for flop, rate in zip(parts.values(), rates, strict=True) if rate]
        return sum(parts.values()) / sum(least_s) if len(least_s) == len(parts) else None

    def headroom(self, params: Mapping[str, Any], work: Mapping[str, float]) -> float:
        """How many times ``flops_of`` the case may reach at most, which is more than once on a GeForce."""
        usual = self.flops_of(params, work)
        most = replace(self, flops={**self.flops, **self.flops_in_16_bits}).flops_of(params, work)
        return most / usual if usual and most else 1.0

    @property
    def ridges(self) -> dict[str, float]:
        return {name: rate / self.bytes_per_s for name, rate in self.flops.items()} if self.bytes_per_s else {}


def _named(params: Mapping[str, Any]) -> str:
    """The data type that a case names: its ``dtype``, or its ``precision``."""
    named = str(params.get("dtype") or params.get("precision") or "").lower()
    return _DTYPES.get(named, named)


def _by_type(work: Mapping[str, float]) -> dict[str, float]:
    """FLOPs by data type, from the metrics ``flops.int8`` and so on; empty where a workload states one number."""
    found = {name.removeprefix(OF_TYPE): flop for name, flop in work.items() if name.startswith(OF_TYPE) and flop > 0}
    return {_DTYPES.get(name, name): flop for name, flop in found.items()}


#: A call that reaches less than this share of either peak does something other than its workload declares.
FAR_BELOW = 0.1


def limit(point: Point, rates: Rates, traffic: float | None, bandwidth: float | None) -> Limit:
    """What limits ``point``; ``traffic`` (bytes a call) and ``bandwidth`` (bytes/s) are those that ncu saw at the DRAM.

    The bytes that a call must move, which its workload declares, are less than what an unfused one does move. Where ncu
    measured what it moves, that decides. Where it did not, and the call stays far below both peaks, nothing is said.
    """
    issue, gpu_ns = point.values.get("issue"), _gpu_ns(point)
    flops, least = point.values.get("flops"), point.values.get("bytes_moved")
    moved, per_s = (traffic, bandwidth) if traffic else (least, (point.gbytes_per_s or 0.0) * 1e9 or None)
    peak, memory = rates.flops_of(point.params, point.values), rates.bytes_per_s
    ridge = peak / memory if peak and memory else None
    of_bandwidth = per_s / memory if per_s and memory else None
    # Of sparse work, what is done of it.
    done = point.values.get("flops_effective", flops)
    of_flops = point.tflops * 1e12 / peak * (done / flops) if point.tflops and peak and flops and done else None
    intensity = done / moved if done and moved else None
    binds = ""
    if _host_binds(point, issue, gpu_ns):
        binds = "host"
    elif intensity and ridge and (traffic or max(of_flops or 0.0, of_bandwidth or 0.0) >= FAR_BELOW):
        binds = "compute" if intensity > ridge else "memory"
    types = tuple(_by_type(point.values))
    others = () if types == (_named(point.params),) else types
    return Limit(binds, of_flops, issue, gpu_ns, intensity, traffic, of_bandwidth, others, ridge)


def _gpu_ns(point: Point) -> float | None:
    """The GPU's time for a call: its kernels under the profiler that stands for the case, else the call as timed.

    Kernels of several processes have waiting for one another in them, so there it is the call as timed as well.
    """
    timed = point.values.get("time")
    alone = timed is None or point.values.keys().isdisjoint(_OF_SEVERAL)
    if alone and point.split and point.split.kind == "kernel" and point.split.iterations is not None:
        return point.split.total.ns
    return timed


#: By how much the host must take longer than the GPU, as in ``timing``.
_SLOWER = 1.05

#: A CUDA stream takes about so many launches before the host has to wait.
QUEUE = 1024


def starves(point: Point) -> bool:
    """Whether the GPU waits for launches even in a call that was timed as far ahead queued as a queue allows."""
    split, issue, time = point.split, point.values.get("issue"), point.values.get("time")
    if split is None or split.kind != "kernel" or not split.iterations or issue is None or time is None:
        return False
    slower = min(issue, time) > _SLOWER * split.total.ns
    return split.total.calls > QUEUE and slower and "synchronises" not in point.marks


def _host_binds(point: Point, issue: float | None, gpu_ns: float | None) -> bool:
    """Whether the host is slower than the GPU. The mark says that of the call as timed, and is never contradicted."""
    if "host_bound" in point.marks:
        return True
    if issue is not None and gpu_ns is not None:
        return issue > _SLOWER * gpu_ns
    idle = point.split.idle if point.split else None
    return idle is not None and idle > HOST_BOUND


def dram(point: Point, counters: Iterable[Counters], kernels: Mapping[str, float]) -> tuple[float, float] | None:
    """(bytes that a call moves to and from the DRAM, bytes/s while its kernels run), as ncu saw it.

    ``kernels`` are the launches of each kernel in a call. None unless ncu measured kernels with nine tenths of the
    call's time, ``counters`` being those of this case.
    """
    if point.split is None or point.split.iterations is None:
        return None
    moved = seconds = 0.0
    for row in counters:
        if row.mean_ns and _DRAM_RATE in row.values and row.kernel in kernels:
            own = row.mean_ns / 1e9 * kernels[row.kernel]
            seconds += own
            moved += row.values[_DRAM_RATE][0] * own
    covered = seconds * 1e9 / point.split.total.ns
    return (moved, moved / seconds) if seconds and covered >= 0.9 else None


def loop_walls(numbers: Mapping[tuple[str, str, str], Mapping[str, Number]]) -> dict[tuple[str, str], float]:
    """By case and profiler: ns of an iteration of the loop around the call."""
    return {key[:2]: own["loop_wall"].value for key, own in numbers.items() if not key[2] and "loop_wall" in own}


def overheads(numbers: Mapping[tuple[str, str, str], Mapping[str, Number]]) -> Iterator[Overhead]:
    """What each profiler added to the loop of each case, where the loop's wall time is known with and without it."""
    walls = loop_walls(numbers)
    for (case, profiler), wall in walls.items():
        alone = walls.get((case, "plain"))
        if profiler != "plain" and alone:
            yield Overhead(case, profiler, wall / alone - 1)
