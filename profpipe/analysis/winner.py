"""Decide which case of a shape is the fastest, and which flags make that decision inconclusive.

* ``other_process``, ``waited`` and ``above_peak`` always do: the size of their effect on a time is unknown.
* ``throttled`` and ``clock_spread`` do, unless the times of the two cases differ by more than their SM clocks. Clocks
  that differ without a flag count as well. The best case is compared with every other case.
* A case with a single sample wins nothing and loses to none: how far its time varies is unknown.
* ``noisy`` and ``too_few_samples`` do where a timed call has no confidence interval. Both together always do: the
  interval of a few scattered samples misses the median too often.
* ``shared_host`` of a slower case does: another process may have made it slower, and by how much is unknown.
* ``host_bound`` does not: the measured calls are compared. Kernels are compared by their own times. ``synchronises``
  and ``unchecked`` do not make a time wrong either.
* Cases of nodes that are unlike are not compared. On like nodes the lead must be larger than the spread between them.

A case that is ``inaccurate`` takes no part. Neither does one that is ``unchecked`` where the pipeline sets a tolerance:
its result is not known to be the result of the other cases. The winner is the fastest accurate case.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from profpipe.analysis.findings.workloads import CaseResult, Doubt, DoubtCause, Win, WinVerdict
from profpipe.analysis.nodes import Nodes
from profpipe.measure.flags import Flag
from profpipe.results.schema import PROCESS_WALL

#: A run without a cluster.
_ONE_MACHINE = Nodes()

#: Flags of a time that another process has changed.
_SHARED_GPU = (Flag.OTHER_PROCESS, Flag.WAITED)
_CLOCKS = (Flag.THROTTLED, Flag.CLOCK_SPREAD)
_SCATTERED = (Flag.NOISY, Flag.TOO_FEW_SAMPLES)

#: From this ratio of two SM clocks on, cases count as run at different clocks, also without a flag.
_DIFFERENT_CLOCKS = 1.02


def judge(
    cases: Sequence[CaseResult],
    unreliable: Mapping[str, DoubtCause],
    nodes: Nodes = _ONE_MACHINE,
) -> Win | None:
    """Return the win among ``cases`` of one shape; ``unreliable`` gives cases that did not run as expected."""
    timed = sorted((case for case in cases if case.time), key=lambda case: case.ns or 0.0)
    if not timed:
        return None
    eligible = [case for case in timed if not case.is_disqualified]
    if not eligible:
        flags = tuple(dict.fromkeys(case.accuracy.mark for case in timed if case.accuracy))
        cause = DoubtCause.NOT_COMPARED if flags == (Flag.UNCHECKED,) else DoubtCause.INACCURATE
        doubt = Doubt(cause, tuple(case.variant for case in timed), flags[:1])
        return Win(timed[0], next(iter(timed[1:]), None), WinVerdict.INCONCLUSIVE, (doubt,))
    best, *others = eligible
    disqualified = tuple(timed[: timed.index(best)])
    if not others:
        return Win(best, None, WinVerdict.UNOPPOSED, disqualified=disqualified)
    second = others[0]
    if refusal := nodes.refuse(eligible):
        return Win(best, second, WinVerdict.INCONCLUSIVE, (refusal,), disqualified)
    if unusable := (*_unusable_times(best, second, unreliable), *_possibly_faster(best, others[1:])):
        return Win(best, second, WinVerdict.INCONCLUSIVE, unusable, disqualified)
    usable = [case for case in others if case.id not in unreliable and not set(_SHARED_GPU) & set(case.marks)]
    if tied := tuple(case for case in usable if best.time and case.time and best.time.overlaps(case.time)):
        return Win(best, second, WinVerdict.TIE, disqualified=disqualified, tied=(best, *tied))
    # A slower case may be the fastest at the same clock, where its clock is known.
    clocked = [case for case in others[1:] if _clocks(best, case)]
    doubts = (
        *(doubt for case in others for doubt in nodes.doubt(best, case)),
        *_clock_doubts(best, second),
        *(doubt for case in others for doubt in _flagged(case, (Flag.SHARED_HOST,))),
        *_scatter_doubts(best, second),
        *(doubt for case in clocked for doubt in _clock_doubts(best, case)),
    )
    return Win(best, second, WinVerdict.INCONCLUSIVE if doubts else WinVerdict.CLEAR, doubts, disqualified)


def _unusable_times(best: CaseResult, second: CaseResult, unreliable: Mapping[str, DoubtCause]) -> Iterator[Doubt]:
    """Yield why the two times cannot be compared at all."""
    for case in (best, second):
        if case.id in unreliable:
            yield Doubt(unreliable[case.id], (case.variant,))
    single = [c for c in (best, second) if c.time and c.time.n == 1 and not c.time.interval]
    yield from (Doubt(DoubtCause.ONE_SAMPLE, (case.variant,)) for case in single)
    for case, fatal in ((best, (*_SHARED_GPU, Flag.ABOVE_PEAK)), (second, _SHARED_GPU)):
        yield from _flagged(case, fatal)


def _flagged(case: CaseResult, flags: Iterable[Flag], cause: DoubtCause = DoubtCause.FLAGGED) -> Iterator[Doubt]:
    if found := tuple(flag for flag in flags if flag in case.marks):
        yield Doubt(cause, (case.variant,), found)


def _possibly_faster(best: CaseResult, others: Iterable[CaseResult]) -> Iterator[Doubt]:
    """Yield the cases that waited for another process and whose own time may be lower than the best one.

    The loop around such a call gives an upper bound of its time. Above twice the best time, the flush of the cache
    between the calls cannot explain the difference.
    """
    upper = 2 * best.time.ns if best.time else 0.0
    waited = [c.variant for c in others if Flag.WAITED in c.marks and c.values.get("loop_wall", 0.0) < upper]
    if waited:
        yield Doubt(DoubtCause.MAY_BE_FASTER, tuple(waited))


def _scatter_doubts(best: CaseResult, second: CaseResult) -> Iterator[Doubt]:
    """Yield flags of a timed call whose samples do not separate it from the other. Sums of kernels have no interval."""
    for case in (best, second):
        is_timed = "time" in case.values or PROCESS_WALL in case.values
        lacks_interval = is_timed and (case.time is None or case.time.interval is None)
        if lacks_interval or set(_SCATTERED) <= set(case.marks):
            yield from _flagged(case, _SCATTERED, DoubtCause.NO_INTERVAL if lacks_interval else DoubtCause.FLAGGED)


def _clock_doubts(best: CaseResult, other: CaseResult) -> Iterator[Doubt]:
    """Yield why the SM clocks may explain the lead. A short case can end before NVML is read, and then has no flag."""
    clocks = _clocks(best, other)
    # A time scales at most with 1 / clock.
    if clocks and best.time and other.time and other.time.ns > best.time.ns * max(clocks[0] / clocks[1], 1.0):
        return
    flagged = [doubt for case in (best, other) for doubt in _flagged(case, _CLOCKS)]
    yield from flagged
    if not flagged and clocks and clocks[0] > _DIFFERENT_CLOCKS * clocks[1]:
        yield Doubt(DoubtCause.CLOCKS, (best.variant, other.variant), clocks_hz=clocks)


def _clocks(best: CaseResult, other: CaseResult) -> tuple[float, float] | None:
    """Return the median SM clocks in Hz; where clocks moved, the highest of the best and the lowest of the other."""
    moved = any(Flag.CLOCK_SPREAD in case.marks for case in (best, other))
    high = best.values.get("sm_clock_max" if moved else "sm_clock")
    low = other.values.get("sm_clock_min" if moved else "sm_clock")
    return (high, low) if high and low else None
