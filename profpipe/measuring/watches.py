"""A device's clock, caches, memory and launch queue, for the time of one measurement: what ``timing`` measures with.

On a GPU the whole call must be queued before the GPU begins it, or the time of its launches is in the sample. The flush
of the caches keeps the GPU busy for some 60 us meanwhile; where issuing the call takes the host longer, a kernel that
only spins holds the GPU back before the flush. nvbench holds it with a kernel that spins until the host allows it on
(``measure_cold.cu``, ``blocking_kernel``) and deadlocks when the call synchronises; a kernel that spins for a given
time cannot. Behind the sample before, while the GPU is still at that, nothing needs to hold it: and a GPU that rests
for a tenth of the loop has power to spare, and reaches a clock that it does not keep under load.

That kernel also tells the clock: it counts the SM's own cycles, and events tell the time. NVML was seen to be some
100 ms behind, longer than many a case takes.
"""

from __future__ import annotations

import ctypes
import math
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from profpipe.measuring.ranks import ALONE, Ranks

MIB: Final = 2**20

#: Least size of the flush on a GPU, that of Triton's ``do_bench``: 56 us at 4.8 TB/s.
_LEAST_GPU_FLUSH_BYTES: Final = 256 * MIB
#: Where the cache's size is not known, and at most. A server reports the cache of all its cores as one, up to half a
#: gigabyte. To overwrite that twice takes 0.2 s before each sample, and a process on a few cores holds a part of it.
_CPU_FLUSH_BYTES: Final = 64 * MIB
_MOST_CPU_FLUSH_BYTES: Final = 256 * MIB
_CPU_CACHES: Final = Path("/sys/devices/system/cpu/cpu0/cache")

#: Calls issued into an idle GPU, to learn what issuing one costs the host; fewer where they take long.
_ISSUES: Final = 5
_ISSUES_NS: Final = 0.2e9

#: The GPU is held for half as long again as the call took to issue, and this much more for the flush and the events.
_ROOM: Final = 1.5
_ROOM_NS: Final = 30e3
_LONGEST_HOLD_NS: Final = 100e6
_LONGEST_TRIED_NS: Final = 500e6
_LONG_CALL_NS: Final = 2e9
_SHORT_CALL_NS: Final = 1e6

#: Before the first sample of a batch it is held twice as long, and this much more: after a wait, and what the host does
#: between batches, the first call was seen to be queued up to 0.15 ms later than by that rule. One late sample would
#: have the GPU held for longer before all that follow; samples of short calls were seen to take half as long again so.
_FIRST_ROOM: Final = 2
_FIRST_ROOM_NS: Final = 150e3

#: For so long the loop of samples runs before the first of them, about what ``do_bench`` warms up for by default; and
#: where the call fills most of the loop. An H200 at its power limit brought its clock down, and the times of
#: FlashAttention up by 3 to 5 %, 60 to 70 ms after the load began. A call that was seen not to do that (``light``) need
#: not be waited for again.
_LOAD_NS: Final = 30e6
_FULL_LOAD_NS: Final = 100e6
#: It runs on until the times of so many groups of calls in a row agree within the tolerance, or only wander
#: (``settled``). A group lasts so long, and the load at most so long for it.
GROUPS: Final = 3
_SETTLED: Final = 0.02
GROUP_NS: Final = 10e6
_PATIENCE_NS: Final = 500e6
#: Where an earlier visit to the case has told what time to expect, less is enough to see that it is so again.
_LOAD_AGAIN_NS: Final = 10e6
_GROUP_AGAIN_NS: Final = 5e6
_PATIENCE_AGAIN_NS: Final = 100e6

#: A call that does not bring the clock down is not measured at the one that a heavier case has left behind: an H200 at
#: 700 W took 20 to 60 ms to rise again, by up to 3 %. One step of 15 MHz below its highest it also stays for long.
_CLOCK_BACK: Final = 0.01
_CLOCK_BACK_NS: Final = 100e6

#: A CUDA stream takes about 1024 launches; then the host waits. It cannot issue so many in less time than this.
_QUEUE: Final = 1024
_LEAST_FULL_QUEUE_NS: Final = 1e6
_SHORT_HOLDS: Final = 3

#: Cycles of the two kernels that tell the clock, 50 and 250 us: the difference of their times has no launch in it.
PROBES: Final = (100_000, 500_000)


@dataclass(frozen=True)
class Issue:
    """The host's side of one call.

    ``ns`` is what it takes to issue the call, into an idle GPU or among samples. ``synchronises``: the host waits
    inside the call until the GPU is done. ``overflows``: it waits for room in the launch queue. ``starves``: of a call
    that overflows, the GPU has done all by the time that the host returns, though it was held back before: it waits for
    launches. ``call_ns`` is about what one call takes in all, of which the GPU goes on for ``tail_ns`` once issued.
    """

    ns: float
    synchronises: bool = False
    overflows: bool = False
    starves: bool = False
    call_ns: float = 0.0
    tail_ns: float = 0.0

    @property
    def waits(self) -> bool:
        return self.synchronises or self.overflows


@dataclass(frozen=True)
class Known:
    """What earlier visits to a case have found.

    How its calls are issued; ``light``, that the GPU kept its highest clock under a full load of them; their median;
    and the highest SM clock that the GPU was seen to have under any case.
    """

    issue: Issue | None = None
    light: bool = False
    median_ns: float | None = None
    clock_hz: float | None = None


#: Of a case at its first visit, before any other.
UNSEEN: Final = Known()


class _Issued(NamedTuple):
    """One call: the host's time to issue it, whether the GPU was idle then, and the time until it was."""

    ns: float
    idle: bool
    call_ns: float


class Watch(Protocol):
    clock: str
    flush_bytes: int
    #: Whether ``learn`` has loaded a GPU for as long as it takes to bring its clock down.
    fully_loaded: bool

    def __enter__(self) -> Watch: ...

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None: ...

    def learn(self, fn: Callable[[], object], ranks: Ranks, known: Known, patience_s: float) -> Issue | None:
        """Calls ``fn`` to learn how the host issues it, and to load a GPU until its times settle; None on a CPU.

        For times that do not settle, or a clock that does not rise again, nobody waits longer than ``patience_s``.
        """

    def learned(self) -> Issue | None:
        """What ``learn`` told, by the samples since then as well."""

    def load(self, fn: Callable[[], object], ranks: Ranks = ALONE, clock_hz: float | None = None) -> None:
        """Brings a GPU to the clock that it keeps under ``fn``; for a loop without samples.

        ``clock_hz`` is the highest SM clock that it was seen to have.
        """

    def flush(self) -> None:
        """Empties the caches, and on a GPU gives the host the time to queue what follows."""

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def wait(self) -> None: ...

    def values_ns(self) -> list[float]:
        """Waits until everything is done; the samples since the last time, in order."""

    def hold_longer(self, ranks: Ranks = ALONE) -> bool:
        """True when the samples just taken were not all queued in time and the next will have more of it.

        In any of the processes, and then in all: in a call that they make together, one that is held for less waits
        for the others, and its time has that in it.
        """

    def probe(self) -> None:
        """Queues behind what was queued what tells the clock that the GPU has then."""

    def clocks_hz(self) -> list[float]:
        """The SM clock at each ``probe``, in order; nothing where it cannot be counted."""

    def forget_peaks(self) -> None: ...

    def peaks(self) -> tuple[int | None, int | None]:
        """(allocated, reserved) since ``forget_peaks``, in bytes."""

    def notes(self) -> list[str]: ...


class Gpu:
    """CUDA events (on ROCm, HIP's under the same name), and torch's caching allocator.

    The flush buffer lives from before the first call until after the last sample, in a segment of its own because the
    cache is emptied first. So it adds the same number of bytes to the allocator's counters at every moment between,
    and taking that number off the peaks is exact. What it cannot give back is the room: the callable has that much
    less memory to grow into.
    """

    clock = "cuda_event"

    def __init__(self, timed: bool = True) -> None:
        import torch

        self._torch, self._timed = torch, timed
        self._events: list[tuple[Any, Any]] = []
        self._probes: list[tuple[Any, ...]] = []
        self._hold_ns = self._flush_ns = self._cycles_per_ns = 0.0
        self._issued_ns: list[int] = []
        self._call_began_ns = 0
        self._taken = self._late = self._late_in_all = 0
        self.fully_loaded = False
        self._issue: Issue | None = None
        l2_bytes = getattr(torch.cuda.get_device_properties(torch.cuda.current_device()), "L2_cache_size", 0)
        self.flush_bytes = max(2 * l2_bytes, _LEAST_GPU_FLUSH_BYTES)

    def __enter__(self) -> Gpu:
        cuda = self._torch.cuda
        if self._timed:  # else no peaks are asked for, and an emptied cache would put cudaMalloc into a trace
            cuda.empty_cache()
        before = cuda.memory_allocated(), cuda.memory_reserved()
        self._buffer: Any = self._torch.empty(self.flush_bytes // 4, dtype=self._torch.int32, device="cuda")
        self._own_bytes = cuda.memory_allocated() - before[0], cuda.memory_reserved() - before[1]
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._buffer = None
        if kind is None:  # after a CUDA error this call fails too, and would hide the error
            self._torch.cuda.empty_cache()

    # --- what the host does -----------------------------------------------------------------------------------------

    def learn(self, fn: Callable[[], object], ranks: Ranks, known: Known, patience_s: float) -> Issue:
        """How the host issues ``fn``, and from it for how long to hold the GPU before each sample.

        How earlier visits found it to be issued is not asked again of calls that take over a millisecond: of a training
        step they would take half a second.

        A call that synchronises is known by what torch says, or by taking the host longer behind a held GPU by the time
        of the hold. Behind a hold that is short beside the call nothing can be seen, so of calls that take the host
        over half a second only what torch says is known. One that takes two seconds in all is called once only: a
        launch is nothing beside it.

        Of several processes the one that takes longest counts for all, and what one of them sees all have seen: they
        then make the same calls, and hold their GPUs for the same time, for in a call that they make together each
        would wait for the one held longest.
        """
        self.wait()
        self._flush_ns = self._duration_ns(self._clear)
        if hasattr(self._torch.cuda, "_sleep"):
            cycles = 200_000
            self._cycles_per_ns = cycles / self._duration_ns(lambda: self._torch.cuda._sleep(cycles))
        again = known.issue if known.issue and known.issue.call_ns >= _SHORT_CALL_NS else None
        self._issue = issue = again or self._asked(fn, ranks)
        if not issue.synchronises:
            hold_ns = min(_LONGEST_HOLD_NS, max(0.0, _ROOM * issue.ns + _ROOM_NS - self._flush_ns))
            self._hold_ns = ranks.most(hold_ns)  # to the nanosecond, as what follows from it must be alike too
        began_ns = time.perf_counter_ns()
        if ranks.several or issue.call_ns + self._beside_ns > GROUP_NS:
            self._load(fn, issue.call_ns, ranks, known.light)
        else:
            self._settle(fn, issue.call_ns, known, patience_s * 1e9)
        if not ranks.several:
            self._await_clock(fn, issue.call_ns, known.clock_hz, began_ns + min(_CLOCK_BACK_NS, patience_s * 1e9))
        self._late = 0
        self._issued_ns.clear()
        return issue

    def learned(self) -> Issue | None:
        """The host is quicker among samples: the few calls after a rest were seen to take up to six times as long.

        Where it waits among them, for the GPU or for room in the launch queue, they say too much: the lesser counts.
        """
        if self._issue is None or not self._issued_ns:
            return self._issue
        return replace(self._issue, ns=min(self._issue.ns, statistics.median(self._issued_ns)))

    def _asked(self, fn: Callable[[], object], ranks: Ranks) -> Issue:
        begin = time.perf_counter_ns()
        said = calls_that_synchronise(fn) > 0
        issued_ns = float(time.perf_counter_ns() - begin)
        self.wait()
        call_ns = float(time.perf_counter_ns() - begin)
        synchronises = bool(ranks.most(said))
        if ranks.several or call_ns <= _LONG_CALL_NS:
            return self._tried(fn, synchronises, ranks)
        return Issue(issued_ns, synchronises, call_ns=call_ns, tail_ns=call_ns - issued_ns)

    def _tried(self, fn: Callable[[], object], said: bool, ranks: Ranks) -> Issue:
        """How the host issues ``fn`` into an idle GPU and behind a held one; ``said``: torch saw it synchronise.

        A full launch queue too makes the host wait until the hold is over, but not below a thousand launches, and
        mostly it leaves the GPU with work when the host returns. With kernels that are done sooner than issued it does
        not. Such a call does not wait where the hold is shorter than it takes to fill the queue, and one that
        synchronises does: unless it does so only after as long, which cannot be told from a full queue.
        """
        (unheld,) = self._issues(fn, [0.0], ranks)
        ns = ranks.most(statistics.median(issued.ns for issued in unheld))
        quickest = min(unheld, key=lambda issued: issued.call_ns)
        # Several processes are held alike, whatever is queued in each: in a call that they make together, one that is
        # not held waits for one that is.
        tail_ns = 0.0 if ranks.several else quickest.call_ns - quickest.ns
        found = Issue(ns, said, call_ns=ranks.most(quickest.call_ns), tail_ns=tail_ns)
        if ns > _LONGEST_TRIED_NS:
            return found
        hold_ns = min(2 * ns + 1e6, _LONGEST_HOLD_NS)
        waited_ns = ns + hold_ns / 2
        # One call that does not take longer by the hold is enough to know.
        (held,) = self._issues(fn, [hold_ns], ranks, until_ns=waited_ns)
        waits = bool(ranks.most(min(issued.ns for issued in held) > waited_ns))
        idle = not ranks.most(not all(issued.idle for issued in held))
        overflows = waits and not said and ns > _LEAST_FULL_QUEUE_NS
        if overflows and idle and self._waits_soon(fn, ranks):
            overflows = False
        return replace(
            found, synchronises=said or (waits and not overflows), overflows=overflows, starves=overflows and idle
        )

    def _waits_soon(self, fn: Callable[[], object], ranks: Ranks) -> bool:
        """Whether the host waits even behind a hold too short for a full queue, in any of the processes.

        One that waits takes longer by about the hold, each time. The host's own time varies by more in a long call: a
        slow host was seen to take 21 to 38 ms for the same forward pass, for some calls in a row. So calls behind the
        hold take turns with calls behind none, and where the two differ by anything else nothing is seen.
        """
        for _ in range(_SHORT_HOLDS):
            turns = self._issues(fn, [0.0, _LEAST_FULL_QUEUE_NS], ranks)
            unheld, held = ([issued.ns for issued in seen] for seen in turns)
            like_the_hold = 0.5 < (min(held) - min(unheld)) / _LEAST_FULL_QUEUE_NS < 1.5
            if not ranks.most(like_the_hold and min(held) > statistics.median(unheld)):
                return False
        return True

    def load(self, fn: Callable[[], object], ranks: Ranks = ALONE, clock_hz: float | None = None) -> None:
        self.wait()
        self._flush_ns = self._duration_ns(self._clear)
        began_ns = time.perf_counter_ns()
        fn()
        self.wait()
        call_ns = ranks.most(float(time.perf_counter_ns() - began_ns))
        self._load(fn, call_ns, ranks)
        if not ranks.several:
            self._await_clock(fn, call_ns, clock_hz, began_ns + _CLOCK_BACK_NS)

    @property
    def _beside_ns(self) -> float:
        """What the loop of samples gives the GPU to do beside a call."""
        return self._flush_ns + self._hold_ns

    def _load(self, fn: Callable[[], object], call_ns: float, ranks: Ranks, light: bool = False) -> None:
        """Runs the loop of samples for a while without keeping any; ``call_ns`` is about what a call takes.

        The GPU was idle between the calls that only learn, and its clock is up: without this, samples that are done in
        some milliseconds would show a speed that it does not keep.
        """
        self.fully_loaded = call_ns > self._beside_ns and not light
        load_ns = _FULL_LOAD_NS if self.fully_loaded else _LOAD_NS
        # Each process times its own flush, and all must make the same calls.
        self._rehearse(fn, int(ranks.most(load_ns / (call_ns + self._beside_ns))))
        self.values_ns()

    def _settle(self, fn: Callable[[], object], call_ns: float, known: Known, patience_ns: float) -> None:
        """``_load`` for short calls of one process: it goes on until their times, those of the events, have settled.

        By the host's clock calls that it issues more slowly than the GPU runs them settle when the host does. As long
        as more are needed whatever they show, one group is looked at while the GPU is at the next: it does not rest.
        """
        expected = [known.median_ns] * (GROUPS - 1) if known.median_ns is not None else []
        group_ns, least_ns = (_GROUP_AGAIN_NS, _LOAD_AGAIN_NS) if expected else (GROUP_NS, _LOAD_NS)
        patience_ns = min(patience_ns, _PATIENCE_AGAIN_NS if expected else _PATIENCE_NS)
        medians: list[float] = []
        each_ns, done, spent_ns, load_ns = call_ns + self._beside_ns, 0, 0.0, least_ns
        began_ns = time.perf_counter_ns()
        group = self._rehearse(fn, math.ceil(group_ns / each_ns))
        while group:
            ahead = spent_ns + 2 * group_ns <= load_ns
            following = self._rehearse(fn, math.ceil(group_ns / each_ns)) if ahead else []
            group[-1][1].synchronize()
            medians.append(statistics.median(begin.elapsed_time(end) * 1e6 for begin, end in group))
            done += len(group)
            spent_ns = time.perf_counter_ns() - began_ns
            each_ns = spent_ns / done
            self._events = list(following)
            self.fully_loaded = medians[-1] > self._beside_ns and not known.light
            load_ns = _FULL_LOAD_NS if self.fully_loaded else least_ns
            loaded = spent_ns >= load_ns - group_ns / 2  # to the nearest group
            if not following and not (loaded and (settled(medians, expected) or spent_ns >= patience_ns)):
                following = self._rehearse(fn, math.ceil(group_ns / each_ns))
            group = following
        self.values_ns()

    def _await_clock(self, fn: Callable[[], object], call_ns: float, clock_hz: float | None, until_ns: float) -> None:
        """Goes on with the loop until the GPU has the clock again that it is known to have, but not after ``until_ns``.

        Times at a clock that is still low settle as well. One that the call itself has brought down is not waited for.
        """
        if clock_hz is None or self.fully_loaded:
            return
        group = math.ceil(_GROUP_AGAIN_NS / (call_ns + self._beside_ns))
        while time.perf_counter_ns() < until_ns and self._clock_now_hz() < (1 - _CLOCK_BACK) * clock_hz:
            self._rehearse(fn, group)
            self.values_ns()

    def _clock_now_hz(self) -> float:
        """Infinite where it cannot be counted: then there is nothing to wait for."""
        self.probe()
        counted = self.clocks_hz()
        self._probes.clear()
        return counted[-1] if counted else math.inf

    def _rehearse(self, fn: Callable[[], object], n: int) -> list[tuple[Any, Any]]:
        """Queues ``n`` samples that are not kept; their events."""
        before = len(self._events)
        for _ in range(n):
            self.flush()
            self.start()
            fn()
            self.stop()
        return self._events[before:]

    def _issues(
        self, fn: Callable[[], object], behind_ns: Sequence[float], ranks: Ranks, until_ns: float = 0.0
    ) -> list[list[_Issued]]:
        """For each of ``behind_ns``, which take turns: calls that were issued into a GPU busy for so long.

        No more of them once one took the host no longer than ``until_ns``; processes together make the same calls.
        """
        seen: list[list[_Issued]] = [[] for _ in behind_ns]
        self.wait()
        first_ns = time.perf_counter_ns()
        while not seen[-1] or (
            len(seen[-1]) < _ISSUES and (ranks.several or self._is_more_to_see(seen, first_ns, until_ns))
        ):
            for hold_ns, own in zip(behind_ns, seen, strict=True):
                self._hold(hold_ns)
                begin = time.perf_counter_ns()
                fn()
                issued_ns = time.perf_counter_ns() - begin
                idle = bool(self._torch.cuda.current_stream().query())
                self.wait()
                own.append(_Issued(issued_ns, idle, time.perf_counter_ns() - begin))
        return seen

    @staticmethod
    def _is_more_to_see(seen: Sequence[Sequence[_Issued]], first_ns: float, until_ns: float) -> bool:
        return seen[-1][-1].ns > until_ns and time.perf_counter_ns() - first_ns < _ISSUES_NS * len(seen)

    def _duration_ns(self, action: Callable[[], object]) -> float:
        """What ``action`` takes the GPU, behind another one so that its launch is not in it."""
        begin, end = (self._torch.cuda.Event(enable_timing=True) for _ in range(2))
        action()
        begin.record()
        action()
        end.record()
        self.wait()
        return max(begin.elapsed_time(end) * 1e6, 1.0)

    def _hold(self, ns: float) -> None:
        if self._cycles_per_ns and ns > 0:
            self._torch.cuda._sleep(int(ns * self._cycles_per_ns))
        else:
            for _ in range(math.ceil(ns / self._flush_ns) if ns > 0 else 0):
                self._clear()

    def hold_longer(self, ranks: Ranks = ALONE) -> bool:
        """Where more than one sample in ten was late, the hold is doubled, and they are to be taken again."""
        late, self._late = int(ranks.most(self._late)), 0
        if late * 10 <= self._taken or self._hold_ns >= _LONGEST_HOLD_NS:
            self._late_in_all += late
            return False
        self._hold_ns = min(_LONGEST_HOLD_NS, 2 * self._hold_ns + _ROOM_NS)
        return True

    # --- one sample -------------------------------------------------------------------------------------------------

    def _clear(self) -> None:
        self._buffer.zero_()

    def flush(self) -> None:
        if not self._busy():
            self._hold(self._hold_ns if self._events else self._first_hold_ns)
        self._clear()

    @property
    def _first_hold_ns(self) -> float:
        """For how long to hold the GPU before the first sample of a batch."""
        if self._issue is None or self._issue.synchronises:
            return 0.0
        return min(_LONGEST_HOLD_NS, _FIRST_ROOM * self._hold_ns + _FIRST_ROOM_NS)

    def _busy(self) -> bool:
        """Whether the GPU has enough to do without a hold: it has not begun the sample before, which takes longer."""
        enough = self._issue is not None and self._issue.tail_ns >= self._hold_ns
        return enough and bool(self._events) and not self._events[-1][0].query()

    def start(self) -> None:
        if self._timed:
            begin, end = (self._torch.cuda.Event(enable_timing=True) for _ in range(2))
            self._events.append((begin, end))
            begin.record()
            self._call_began_ns = time.perf_counter_ns()

    def stop(self) -> None:
        if self._timed:
            self._issued_ns.append(time.perf_counter_ns() - self._call_began_ns)
            begin, end = self._events[-1]
            end.record()
            # Late: the GPU was at the call before all of it was queued. A call that waits for the GPU always is.
            if self._issue and not self._issue.waits and begin.query():
                self._late += 1

    def wait(self) -> None:
        self._torch.cuda.synchronize()

    def values_ns(self) -> list[float]:
        self.wait()
        events, self._events = self._events, []
        self._taken = len(events)
        return [begin.elapsed_time(end) * 1e6 for begin, end in events]

    # --- the clock --------------------------------------------------------------------------------------------------

    def probe(self) -> None:
        # On ROCm the same function counts another clock than that of the compute units.
        if hasattr(self._torch.cuda, "_sleep") and getattr(self._torch.version, "hip", None) is None:
            events = [self._torch.cuda.Event(enable_timing=True) for _ in range(len(PROBES) + 1)]
            # An idle GPU would wait for the first launch between the events, and one that comes from full load runs
            # more slowly for its first 0.1 ms.
            self._torch.cuda._sleep(PROBES[1])
            events[0].record()
            for cycles, event in zip(PROBES, events[1:], strict=True):
                self._torch.cuda._sleep(cycles)
                event.record()
            self._probes.append(tuple(events))

    def clocks_hz(self) -> list[float]:
        self.wait()
        short_long = [(a.elapsed_time(b) / 1e3, b.elapsed_time(c) / 1e3) for a, b, c in self._probes]
        return [(PROBES[1] - PROBES[0]) / (long - short) for short, long in short_long if long > short]

    # --- memory, and what to know -----------------------------------------------------------------------------------

    def forget_peaks(self) -> None:
        self._torch.cuda.reset_peak_memory_stats()

    def peaks(self) -> tuple[int, int]:
        cuda, (allocated, reserved) = self._torch.cuda, self._own_bytes
        return cuda.max_memory_allocated() - allocated, cuda.max_memory_reserved() - reserved

    def notes(self) -> list[str]:
        found, issue = [], self._issue
        if issue and issue.synchronises:
            found.append("the call synchronises: the host waits for the GPU inside it, and launch cost is in the time")
        if issue and issue.overflows:
            found.append(
                "the host waits for the GPU inside the call: it issues more than the launch queue holds (about "
                f"{_QUEUE} launches) or synchronises unseen by torch, so part of the launch cost is in the time"
            )
        if self._hold_ns:
            told = (
                "each sample" if self._issue and self._issue.tail_ns < self._hold_ns else "a sample that finds it idle,"
            )
            first = f"{self._first_hold_ns / 1e3:.0f} before the first of a batch"
            found.append(f"the GPU is held for {self._hold_ns / 1e3:.0f} us before {told} to queue the call; {first}")
        if issue and not issue.waits and _ROOM * issue.ns + _ROOM_NS > _LONGEST_HOLD_NS + self._flush_ns:
            found.append(
                f"issuing a call takes the host {issue.ns / 1e6:.0f} ms, longer than the GPU is held for it, so part "
                "of the launch cost may be in the time"
            )
        if self._late_in_all:
            counted = "1 sample" if self._late_in_all == 1 else f"{self._late_in_all} samples"
            found.append(f"{counted} began before the whole call was queued")
        return found


def settled(times: Sequence[float], expected: Sequence[float] = ()) -> bool:
    """Whether the last of ``times`` agree, as many as make a time settled, or wander without getting anywhere.

    ``expected`` are as good as times before them, for agreeing with. A kernel of 15 us was seen to take 3 % more or
    less from one group to the next however long the load lasted: of five the last two then go no further than the three
    before them, give or take the tolerance.
    """
    last = [*expected, *times][-GROUPS:]
    if len(last) == GROUPS and max(last) <= (1 + _SETTLED) * min(last):
        return True
    before, latest = times[-GROUPS - 2 : -2], times[-2:]
    return len(before) == GROUPS and (
        min(before) <= (1 + _SETTLED) * min(latest) and max(latest) <= (1 + _SETTLED) * max(before)
    )


def calls_that_synchronise(fn: Callable[[], object]) -> int:
    """How many synchronising operations torch sees in one call of ``fn``: ``item()``, ``cpu()``, ``nonzero()``, ...

    It knows its own operations and not ``torch.cuda.synchronize()`` or those of other packages (torch 2.13).
    """
    import torch

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        before = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("warn")
        try:
            fn()
        finally:
            torch.cuda.set_sync_debug_mode(before)
    return sum("called a synchronizing CUDA operation" in str(warning.message) for warning in caught)


class Cpu:
    """``perf_counter_ns``. The flush evicts the shared cache; private caches of other cores may keep what they hold."""

    clock = "perf_counter"
    fully_loaded = False

    def __init__(self, timed: bool = True) -> None:
        self._begin_ns = 0
        self._values_ns: list[float] = []
        self.flush_bytes = min(2 * (last_level_cache_bytes() or 0), _MOST_CPU_FLUSH_BYTES) or _CPU_FLUSH_BYTES

    def __enter__(self) -> Cpu:
        self._buffer = ctypes.create_string_buffer(self.flush_bytes)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        del self._buffer

    def learn(self, fn: Callable[[], object], ranks: Ranks, known: Known, patience_s: float) -> None:
        return None

    def learned(self) -> None:
        return None

    def load(self, fn: Callable[[], object], ranks: Ranks = ALONE, clock_hz: float | None = None) -> None:
        return None

    def flush(self) -> None:
        ctypes.memset(self._buffer, 0, self.flush_bytes)

    def start(self) -> None:
        self._begin_ns = time.perf_counter_ns()

    def stop(self) -> None:
        self._values_ns.append(float(time.perf_counter_ns() - self._begin_ns))

    def wait(self) -> None:
        return None

    def values_ns(self) -> list[float]:
        values, self._values_ns = self._values_ns, []
        return values

    def hold_longer(self, ranks: Ranks = ALONE) -> bool:
        return False

    def probe(self) -> None:
        return None

    def clocks_hz(self) -> list[float]:
        return []

    def forget_peaks(self) -> None:
        return None

    def peaks(self) -> tuple[None, None]:
        return None, None

    def notes(self) -> list[str]:
        return []


WATCHES: Final[dict[str, Callable[..., Watch]]] = {"cuda": Gpu, "cpu": Cpu}


def last_level_cache_bytes(caches: Path = _CPU_CACHES) -> int | None:
    """Size of the largest cache that Linux reports for the first core (``32768K``); None where it reports none."""
    units = {"K": 2**10, "M": MIB, "G": 2**30}
    sizes = [path.read_text(encoding="ascii").strip() for path in caches.glob("index*/size")]
    return max((int(size[:-1]) * units[size[-1]] for size in sizes if size[-1:] in units), default=None)
