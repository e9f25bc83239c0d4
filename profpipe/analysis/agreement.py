"""Do the profilers agree? The same call as each of them timed it, and why they differ where that is known.

A reason begins with its kind and a colon, by which reports gather them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from profpipe.analysis.shares import PREFERENCE
from profpipe.analysis.tallies import Key, Tally
from profpipe.findings import Agreement, Figure, Point, Split
from profpipe.kernel_findings import Counters

#: Below this the figures are called the same: events resolve 0.5 us, and clocks move by a percent or two.
CLOSE = 0.03

#: What lies between two kernels of one stream when the CPU is ahead of the GPU, plus what the events themselves cost.
_GAP_NS, _EVENTS_NS = 3_000.0, 6_000.0

#: What reading a whole L2 again takes at most: 60 MB at 3 TB/s. More than that for each launch is not the cold cache.
_COLD_NS = 20_000.0

#: Launches of one kernel differ by some tenths of a microsecond from run to run.
_JITTER_NS = 300.0

#: Clocks at which ncu ran a kernel, newest spelling first.
_NCU_CLOCKS = ("gpc__cycles_elapsed.avg.per_second", "smsp__cycles_elapsed.avg.per_second")


@dataclass(frozen=True)
class Setting:
    """What is known of how the profilers ran: the arguments of ncu."""

    ncu_argv: tuple[str, ...] = ()

    @classmethod
    def of(cls, run: Mapping[str, Any], workload: str) -> Setting:
        jobs = [
            job for job in run.get("jobs") or () if job.get("workload") == workload and job.get("profiler") == "ncu"
        ]
        return cls(tuple(str(word) for job in jobs for command in job.get("argv") or () for word in command))

    def ncu_reasons(self, extra_ns: float, launches: float) -> list[str]:
        """Why ncu's times are longer by its own settings (Nsight Compute CLI: both controls default to on)."""
        reasons = []
        if extra_ns <= launches * _COLD_NS and "none" not in _values(self.ncu_argv, "--cache-control"):
            reasons.append("cold cache: ncu empties the caches before each replay")
        if self.ncu_argv and "none" not in _values(self.ncu_argv, "--clock-control"):
            reasons.append("base clock: ncu locks it (`--clock-control`)")
        return reasons


def _values(argv: Sequence[str], flag: str) -> list[str]:
    after = [value for name, value in itertools.pairwise(argv) if name == flag]
    return after + [argument.partition("=")[2] for argument in argv if argument.startswith(f"{flag}=")]


def agree(
    point: Point,
    splits: Mapping[str, Split],
    tallies: Mapping[Key, Tally],
    setting: Setting,
    counters: Iterable[Counters] = (),
) -> Agreement | None:
    """The figures for one case; ``splits`` by profiler, ``counters`` of ncu. None for fewer than two.

    Shares, speed-ups and rates never mix these figures; this comparison is the one place where they meet.
    """
    comparable = {name: s for name, s in splits.items() if s.iterations is not None}
    reference = next((name for name in PREFERENCE if name in comparable), None)
    if reference is None:
        return None
    base, own = comparable[reference], tallies[point.id, reference]
    figures = [Figure(reference, base.total.ns)]
    if (timed := point.values.get("time")) is not None:
        figures.append(_events(point, timed, base, own))
    for name in PREFERENCE:
        if name == "ncu" and name in comparable and name != reference:
            figures.append(_ncu(tallies[point.id, name], own, base, setting, _clocks(point, counters)))
        elif name in comparable and name != reference:
            figures.append(_kernels(name, comparable[name].total.ns, base))
    return Agreement(point, reference, tuple(figures)) if len(figures) > 1 else None


def _compared(profiler: str, ns: float, base: Split, because: str = "") -> Figure:
    difference = ns / base.total.ns - 1
    apart = abs(difference) > CLOSE
    return Figure(profiler, ns, difference, because if apart else "", flagged=apart and not because)


def _kernels(profiler: str, ns: float, base: Split) -> Figure:
    within = base.kind == "kernel" and abs(ns - base.total.ns) <= base.total.calls * _JITTER_NS
    return _compared(profiler, ns, base, "short kernels: less than 0.3 us a launch" if within else "")


# --- timed calls -----------------------------------------------------------------------------------------------------


def _events(point: Point, ns: float, base: Split, own: Tally) -> Figure:
    because = _why_shorter(base, own) if ns < base.total.ns else _why_longer(point, ns, base, own)
    spread = _spread(point, base)
    return _compared("plain", ns, base, (spread or because) if base.kind == "cpu_op" else (because or spread))


def _spread(point: Point, base: Split) -> str:
    """Where the call's own time is known so poorly that the difference need not be one."""
    time = point.time
    if time is None or "time" not in point.values:
        return ""
    if time.ci_low is None or time.ci_high is None:
        few = "too_few_samples" in point.marks
        return "spread: the call's time has too few samples for an interval" if few else ""
    inside = time.ci_low <= base.total.ns <= time.ci_high
    return "spread: it lies within the 95 % interval of the call's time" if inside else ""


def _why_shorter(base: Split, own: Tally) -> str:
    if base.kind == "cpu_op":
        return "overhead: the profiler's own cost for each operator"
    several = len(own.streams) > 1
    return f"overlap: kernels ran on {len(own.streams)} streams, and the sum counts each" if several else ""


def _why_longer(point: Point, ns: float, base: Split, own: Tally) -> str:
    extra, calls, copies = ns - base.total.ns, base.total.calls, own.copies_ns / (base.iterations or 1)
    if base.kind == "cpu_op":
        return "between operators: time that no operator's self time holds"
    if copies and extra <= 1.1 * copies + _EVENTS_NS / 6:
        return f"copies and sets: {copies / 1e3:.1f} us, which the sum of kernels leaves out"
    beside = f", {copies / 1e3:.1f} us of copies and sets among them" if copies >= 100 else ""
    if extra <= calls * _GAP_NS + _EVENTS_NS + copies:
        return f"launch gaps: {extra / 1e3:.1f} us around {calls:.0f} kernel{'s' if calls > 1 else ''}{beside}"
    return _waits(point, base)


def _waits(point: Point, base: Split) -> str:
    """Why a call may hold more than its kernels: it is queued whole before it begins, unless it waits for the GPU.

    Before there was an ``issue`` to record, calls were not queued ahead, and the host's pace was in their times.
    """
    if "synchronises" in point.marks:
        return "launch gaps: the host waits for the GPU inside the call"
    if "issue" in point.values:
        return ""
    if base.idle is not None and base.idle > 0.2:
        return f"launch gaps: no kernel runs in {100 * base.idle:.0f} % of the range"
    return "launch gaps: the call is host_bound" if "host_bound" in point.marks else ""


# --- ncu -------------------------------------------------------------------------------------------------------------


def _ncu(ncu: Tally, own: Tally, base: Split, setting: Setting, clocks: tuple[float, float] | None) -> Figure:
    """ncu against the reference over the kernels that both saw: it may have been told to profile some of them only.

    ncu's mean of a kernel stands for all its launches in a call, for it may have profiled one of them.
    """
    seen, theirs, ours, launches = _by_name(ncu), 0.0, 0.0, 0.0
    for name, (calls, ns) in _by_name(own).items():
        if name in seen and calls and seen[name][0]:
            ours += ns / (base.iterations or 1)
            theirs += seen[name][1] / seen[name][0] * calls / (base.iterations or 1)
            launches += calls / (base.iterations or 1)
    if not ours:
        return Figure("ncu", ncu.total_ns, None, "no kernel name in common", flagged=True, covered=0.0)
    difference = theirs / ours - 1
    reasons = [reason] if (reason := _other_clock(difference, clocks)) else []
    reasons += setting.ncu_reasons(theirs - ours, launches) if difference > 0 else []
    if abs(theirs - ours) <= launches * _JITTER_NS and not reasons:
        reasons = ["short kernels: less than 0.3 us a launch"]
    apart, covered = abs(difference) > CLOSE, ours / base.total.ns
    because = "; ".join(reasons) if apart else ""
    return Figure("ncu", theirs, difference, because, flagged=apart and not reasons, covered=covered)


def _clocks(point: Point, counters: Iterable[Counters]) -> tuple[float, float] | None:
    """(median SM clock while the case was timed, SM clock under ncu over its kernels' time), both in Hz."""
    timed, cycles, ns = point.values.get("sm_clock"), 0.0, 0.0
    for row in counters:
        clock = next((row.values[name][0] for name in _NCU_CLOCKS if name in row.values), None)
        if clock and row.mean_ns:
            cycles += clock * row.mean_ns * row.calls
            ns += row.mean_ns * row.calls
    return (timed, cycles / ns) if timed and ns else None


def _other_clock(difference: float, clocks: tuple[float, float] | None) -> str:
    """The clocks, where they differ by what the times do: ncu runs one kernel at a time, which keeps a GPU cool."""
    if clocks is None:
        return ""
    timed, under_ncu = clocks
    expected = timed / under_ncu - 1
    if abs(expected) < 0.01 or expected * difference <= 0 or abs(difference - expected) > CLOSE:
        return ""
    return f"clock: {under_ncu / 1e6:.0f} MHz under ncu, {timed / 1e6:.0f} MHz while the case was timed"


def _by_name(own: Tally) -> dict[str, tuple[float, float]]:
    found: dict[str, tuple[float, float]] = {}
    for kernel, (calls, ns) in own.work.items():
        before = found.get(kernel.name, (0.0, 0.0))
        found[kernel.name] = before[0] + calls, before[1] + ns
    return found
