"""What each validity mark means, and how it stands beside a number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from profpipe.findings import OVERHEAD, Point, WorkloadFindings
from profpipe.page.markdown import escape
from profpipe.page.quantities import percent
from profpipe.tolerance import INACCURATE, UNCHECKED

#: Samples below which a median has no 95 % interval: 1 - 2 / 2^n is less than 0.95.
_FOR_INTERVAL = 6

#: What each validity mark means; a mark that is not here was set by the workload, and is shown under its own name.
_MEANING: Mapping[str, str] = {
    "throttled": "the GPU ran below its highest clock while this was measured{clocks}: held down by power or heat, or"
    " not yet back from it. A lead that the clocks of the two cases could explain is not called a win; a winner that"
    " ran at the lower clock would lead by as much or more at the other's, not by less",
    "clock_spread": "the SM clock moved by more than 5 % while this was measured. A lead that the clocks of the two"
    " cases could explain is not called a win",
    "noisy": "the samples spread so far that their median is not well known: see its 95 % interval",
    "waited": "the samples are more than 10 % longer than an iteration of the loop around the call, which has the flush"
    " in it as well: in them the call waited for another process, so the time is not its own. Not called a win",
    "other_process": "another process used the GPU at the same time. Not called a win",
    "above_peak": "above what the hardware can do: a wrong FLOP or byte count, a skipped kernel, or data in the cache."
    " Not called a win",
    "too_few_samples": "fewer samples than the pipeline asks for",
    "profiler_overhead": f"the profiler made the loop more than {100 * OVERHEAD:.0f} % slower. Kernel times are the"
    " GPU's own and stand; idle shares come out too high",
    "synchronises": "the host waits for the GPU inside the call, so launch cost is part of its time",
    "not_captured": "the call could not be captured into a CUDA graph, or there is no GPU, so that it has no time in a"
    " graph. Its time launch by launch stands",
    UNCHECKED: "its output was not compared with the reference, so it may be fast and wrong",
    INACCURATE: "its result is further from the reference than is allowed, or no number at all. Not called faster than"
    " anything",
}
_HOST_BOUND = {
    True: "the host takes over 5 % longer to issue a call than the GPU to run it. Times are of calls queued ahead; in a"
    " loop they go at the host's pace, and a faster kernel changes nothing. What is compared here are calls",
    False: "the host takes longer to issue a call than the GPU to run it, so no kernel runs for more than half of the"
    " range. The sums of kernel times stand; a call takes longer than they say",
}


def explained(workload: WorkloadFindings) -> list[str]:
    """One sentence for each mark that occurs."""
    timed = [point for point in workload.points if point.time]
    present = dict.fromkeys(mark for point in timed for mark in point.marks)
    return [f"**{escape(mark)}** ({_how_many(mark, workload)}): {_meaning(mark, workload)}." for mark in present]


def _how_many(mark: str, workload: WorkloadFindings) -> str:
    timed = [point for point in workload.points if point.time]
    marked = [point for point in timed if mark in point.marks]
    if len(marked) == len(timed):
        return "every case"
    return f"{len(marked)} of {len(timed)} cases"


def _meaning(mark: str, workload: WorkloadFindings) -> str:
    if mark == UNCHECKED and workload.tolerance:
        return f"{_MEANING[mark]}. Under a tolerance it is not called faster than anything"
    if mark == "throttled":
        return _MEANING[mark].format(clocks=_clocks(mark, workload))
    if mark == "host_bound":
        return _host_bound(workload)
    if mark == "too_few_samples" and workload.asked_samples:
        counts = [p.time.n for p in workload.points if p.time and mark in p.marks and p.time.n is not None]
        if counts:
            return _few(counts, workload.asked_samples)
    return _MEANING.get(mark, "set by the workload")


def _clocks(mark: str, workload: WorkloadFindings) -> str:
    """`` (at 1845 to 1980 of 1980 MHz in the median, 1695 at the lowest)``: SM clocks of the cases that carry it.

    They are those of the timed calls, so that nothing is said of marks that cases carry from another profiler.
    """
    timed = workload.basis is not None and workload.basis.timed
    marked = [point.values for point in workload.points if point.time and mark in point.marks and timed]
    medians, lows = ([v[name] for v in marked if name in v] for name in ("sm_clock", "sm_clock_min"))
    if not medians:
        return ""
    low, high, lowest = (f"{hz / 1e6:.0f}" for hz in (min(medians), max(medians), min(lows, default=0.0)))
    of_most = f" of {workload.highest_clock / 1e6:.0f}" if workload.highest_clock else ""
    least = f", {lowest} at the lowest" if lows and lowest != low else ""
    return f" (at {low if low == high else f'{low} to {high}'}{of_most} MHz in the median{least})"


def _host_bound(workload: WorkloadFindings) -> str:
    timed = bool(workload.basis and workload.basis.timed)
    below = timed and any(point.split for point in workload.points)
    return _HOST_BOUND[timed] + ("; kernels are compared by their own times below" if below else "")


def _few(counts: Sequence[int], asked: int) -> str:
    """Of which number there were too few: of the one asked for, or of the least that has an interval."""
    bounds = [f"the {asked} asked for"] if min(counts) < asked else []
    bounds += [f"the {_FOR_INTERVAL} that a 95 % interval of a median needs"] if max(counts) >= asked else []
    had = f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
    return f"fewer samples than {' or '.join(bounds)}: {had}"


def told(point: Point, shared: tuple[str, ...]) -> str:
    """The marks of a case, without those that every case carries, which are told once."""
    return ", ".join(f"**{escape(mark)}**{_idle(mark, point)}" for mark in point.marks if mark not in shared)


def _idle(mark: str, point: Point) -> str:
    """How idle the GPU was, where no call was timed and that is why a sum of kernels is marked."""
    split = point.split
    if mark == "host_bound" and split and split.idle and "time" not in point.values:
        return f" (no kernel in {percent(split.idle)} % of its range)"
    return ""


def beside(point: Point) -> str:
    """What follows a number: its own marks, in italics."""
    return f" *{escape(', '.join(point.own_marks))}*" if point.own_marks else ""
