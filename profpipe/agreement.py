"""Do the profilers agree? The same call as each of them timed it, and why they differ where that is known."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from profpipe.findings import Agreement, Figure, Point, Split
from profpipe.shares import PREFERENCE
from profpipe.tallies import Key, Tally

#: Below this the figures are called the same: events resolve 0.5 us, and clocks move by a percent or two.
CLOSE = 0.03

#: What lies between two kernels of one stream when the CPU is ahead of the GPU, plus what the events themselves cost.
_GAP_NS, _EVENTS_NS = 3_000.0, 6_000.0


#: What reading a whole L2 again takes at most: 60 MB at 3 TB/s. More than that for each launch is not the cold cache.
_COLD_NS = 20_000.0


@dataclass(frozen=True)
class Setting:
    """What is known of how the profilers ran: the arguments of ncu."""

    ncu_argv: tuple[str, ...] = ()

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
    point: Point, splits: Mapping[str, Split], tallies: Mapping[Key, Tally], setting: Setting
) -> Agreement | None:
    """The figures for one case; ``splits`` by profiler. None for fewer than two.

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
            figures.append(_ncu(tallies[point.id, name], own, base, setting))
        elif name in comparable and name != reference:
            figures.append(_compared(name, comparable[name].total.ns, base))
    return Agreement(point, reference, tuple(figures)) if len(figures) > 1 else None


def _compared(profiler: str, ns: float, base: Split, because: str = "") -> Figure:
    difference = ns / base.total.ns - 1
    apart = abs(difference) > CLOSE
    return Figure(profiler, ns, difference, because if apart else "", flagged=apart and not because)


def _events(point: Point, ns: float, base: Split, own: Tally) -> Figure:
    because = _why_shorter(base, own) if ns < base.total.ns else _why_longer(point, ns, base, own)
    return _compared("plain", ns, base, because)


def _why_shorter(base: Split, own: Tally) -> str:
    if base.kind == "cpu_op":
        return "the profiler's own cost for each operator"
    several = len(own.streams) > 1
    return f"overlap: kernels ran on {len(own.streams)} streams, and the sum counts each" if several else ""


def _why_longer(point: Point, ns: float, base: Split, own: Tally) -> str:
    extra, calls, copies = ns - base.total.ns, base.total.calls, own.copies_ns / (base.iterations or 1)
    if base.kind == "cpu_op":
        return "time between operators, which no operator's self time holds"
    if "host_bound" in point.marks:
        return "launch gaps: the call is host_bound"
    if copies and extra <= 1.1 * copies + _EVENTS_NS:
        return f"copies and sets, {copies / 1e3:.1f} us, which the sum of kernels leaves out"
    if extra <= calls * _GAP_NS + _EVENTS_NS:
        return f"launch gaps: {extra / 1e3:.1f} us around {calls:.0f} kernel{'s' if calls > 1 else ''}"
    if base.idle is not None and base.idle > 0.2:
        return f"launch gaps: no kernel runs in {100 * base.idle:.0f} % of the range"
    return ""


def _ncu(ncu: Tally, own: Tally, base: Split, setting: Setting) -> Figure:
    """ncu against the reference over the kernels that both saw: it may have been told to profile some of them only.

    ncu's mean of a kernel stands for all its launches in a call, for it may have profiled one of them.
    """
    seen, theirs, ours = _by_name(ncu), 0.0, 0.0
    for name, (calls, ns) in _by_name(own).items():
        if name in seen and calls and seen[name][0]:
            ours += ns / (base.iterations or 1)
            theirs += seen[name][1] / seen[name][0] * calls / (base.iterations or 1)
    if not ours:
        return Figure("ncu", ncu.total_ns, None, "no kernel name in common", flagged=True)
    difference, covered = theirs / ours - 1, ours / base.total.ns
    because = "; ".join(setting.ncu_reasons(theirs - ours, base.total.calls)) if difference > 0 else ""
    apart = abs(difference) > CLOSE
    notes = [because] if apart and because else []
    if covered < 0.995:
        notes.append(f"over the kernels that both saw, {100 * covered:.0f} % of {base.profiler}'s time")
    return Figure("ncu", theirs, difference, "; ".join(notes), flagged=apart and not because)


def _by_name(own: Tally) -> dict[str, tuple[float, float]]:
    found: dict[str, tuple[float, float]] = {}
    for kernel, (calls, ns) in own.work.items():
        before = found.get(kernel.name, (0.0, 0.0))
        found[kernel.name] = before[0] + calls, before[1] + ns
    return found
