"""How a callable is timed: warm-up until it settles, cache flush, one sample an iteration, and when there are enough.

``settle`` warms up, ``sample`` loads a GPU until its times settle and then times, ``graphed`` gives the same call as a
CUDA graph, and ``load`` and ``loop`` run the same iterations without events, for profilers that bring their own clock.
What the callable returns is dropped at once. None of them needs numpy, and torch only for ``device="cuda"``.

The caches are flushed before each sample, outside the range and the clock. Without that a tensor that fits the L2 is
read from it, and memory-bound kernels have been seen to come out 1.6 times too fast. On a GPU the whole call is queued
before the GPU begins it, so that its launches are not part of the time (``watches``).
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Final

from profpipe.intervals import of_median
from profpipe.measuring.ranks import ALONE, Ranks
from profpipe.measuring.watches import GROUP_NS, UNSEEN, WATCHES, Issue, Known, Watch, calls_that_synchronise, settled

#: By how much the budget may be exceeded for the least number of samples or warm-up calls.
_PATIENCE: Final = 5
#: Events of more samples than this are not kept waiting for one synchronisation.
_LARGEST_BATCH: Final = 1000

#: By how much the host must take longer than the GPU: what issuing a call takes is known from five calls only.
_SLOWER: Final = 1.05

#: Half the width of a median's interval, relative to it, from which on a case is called noisy.
_NOISY: Final = 0.02

#: Calls on the stream of the capture before it, as torch's documentation asks for; Triton tunes itself in the first.
_CALLS_BEFORE_CAPTURE: Final = 3

Annotate = Callable[[str], AbstractContextManager[object]]


@dataclass(frozen=True)
class Rule:
    """When there are enough samples.

    Enough is: at least ``least``, and half the width of the 95 % confidence interval of their median (by order
    statistics; one side of it may be longer) is at most ``target`` of the median (0.005: half a percent). Sampling also
    ends at ``most`` samples, or when another one would take more than ``budget_s`` of wall time; for samples up to
    ``least``, five times ``budget_s``, so that a call of a minute is not made thirty times. One sample is always taken.
    ``own`` of them must be of this round, whatever earlier rounds took.
    """

    least: int = 30
    target: float = 0.005
    budget_s: float = 2.0
    most: int = 10_000
    own: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise ValueError(f"need 1 <= least <= most, not least {self.least} and most {self.most}")

    def of_round(self, number: int, rounds: int, earlier: int = 0) -> Rule:
        """The rule for round ``number`` (from 1) of a case that is visited in ``rounds``: its part of samples and time.

        The numbers of samples add up over the rounds, as ``sample`` judges earlier ones and its own together; the time
        is that of one round. A round takes as many as those before it did on average, ``earlier`` in all, even where
        the interval is narrow by then: so each has a like part, and a drift of the machine hits all cases alike.
        """
        least, most = (math.ceil(count * number / rounds) for count in (self.least, self.most))
        own = max(1, math.ceil(earlier / (number - 1))) if number > 1 else 1
        return replace(self, least=least, most=most, budget_s=self.budget_s / rounds, own=own)

    def met(self, values: Sequence[float]) -> bool:
        """Whether the interval of the median of ``values`` is as narrow as asked for."""
        width = half_width(values)
        return width is not None and width <= self.target

    def batch(self, values: Sequence[float], taken: int, spent_s: float) -> int:
        """How many samples to take next, 0 when done, after ``taken`` of ``values`` took ``spent_s``.

        The first is taken alone, as it tells what one costs; then those up to ``least``; then half as many again each
        time.
        """
        if taken == 0:
            return 1
        few = len(values) < self.least
        if not few and taken >= self.own and self.met(values):
            return 0
        limit_s = self.budget_s * (_PATIENCE if few else 1)
        affordable = (limit_s - spent_s) * taken / max(spent_s, 1e-9)
        lacking = max(self.least - len(values), self.own - taken)
        wanted = lacking if lacking > 0 else len(values) // 2 + 1
        return max(0, int(min(wanted, affordable, self.most - len(values), _LARGEST_BATCH)))


@dataclass(frozen=True)
class Samples:
    """One time an iteration, in order, and what is known about them.

    ``clock`` is ``cuda_event`` or ``perf_counter``. ``earlier_ns`` are those of earlier rounds, with which ``rule`` was
    judged. ``issue`` is how the host issues one call; None on a CPU. The peaks are bytes of torch's GPU allocator
    during the samples, inputs included and the flush buffer not; None on a CPU. What a CUDA graph needs while it runs
    is not in its allocated peak, for the allocator does not see it; its reserved one has it. ``clocks_hz`` are the SM
    clocks counted after each batch; none on a CPU. ``fully_loaded``: before the first the GPU was loaded for so long
    that one at its power limit has brought its clock down.
    """

    values_ns: list[float]
    clock: str
    rule: Rule
    earlier_ns: tuple[float, ...] = ()
    issue: Issue | None = None
    peak_allocated: int | None = None
    peak_reserved: int | None = None
    queue_notes: tuple[str, ...] = ()
    clocks_hz: tuple[float, ...] = ()
    fully_loaded: bool = False

    @property
    def host_bound(self) -> bool | None:
        """The host takes longer to issue a call than the GPU to run it: outside this loop the GPU waits for launches.

        Where it does so in this loop as well (``issue.starves``), its own time is not known, and is less. None where
        that is no question (a CPU) or cannot be told, for the host waits for the GPU inside the call.
        """
        if self.issue is None or self.issue.synchronises:
            return None
        return self.issue.starves or self.issue.ns > _SLOWER * statistics.median(self.values_ns)

    @property
    def flags(self) -> list[str]:
        """The validity marks of a case measured so.

        ``too_few_samples``: fewer than ``rule.least``, or so few that their median has no interval. ``noisy``: enough
        of them, and still half the interval is wider than 2 %, or than ``rule.target`` where that asks for less.
        Short of a finer target alone is no mark: the interval stands beside the time. Both speak of all rounds so far.
        """
        values = [*self.earlier_ns, *self.values_ns]
        width = half_width(values)
        few = len(values) < self.rule.least or width is None
        marks = {
            "host_bound": bool(self.host_bound),
            "synchronises": bool(self.issue and self.issue.synchronises),
            "too_few_samples": few,
            "noisy": width is not None and not few and width > max(_NOISY, self.rule.target),
        }
        return [mark for mark, holds in marks.items() if holds]

    @property
    def notes(self) -> tuple[str, ...]:
        if self.issue is None or not self.host_bound:
            return self.queue_notes
        median_ns = statistics.median(self.values_ns)
        said = f"issuing a call takes the host {self.issue.ns:.0f} ns, running it takes the GPU {median_ns:.0f} ns"
        return (*self.queue_notes, said + (", in which it waits for launches" if self.issue.starves else ""))


def settle(fn: Callable[[], object], *, device: str, least: int, budget_s: float) -> int:
    """Calls ``fn`` until its time no longer changes; returns how many calls that took.

    Compilation, autotuning, the allocator's growth and the rise of the clocks all show as calls that get faster, heat
    as calls that get slower. So calls are timed in groups of 10 ms, by the host's clock and back to back, and the time
    has settled when three groups in a row lie within 2 %, or the last two of five no more than that outside what the
    three before them span. The first call stands alone and is not among them.

    At least ``least`` calls are made and at most ``budget_s`` is spent, or five times that where there are fewer than
    ``least`` calls by then. ``least=0`` makes no call. On a GPU a short call, of less than 10 ms, is not called on: the
    host's clock tells little of it, and ``sample`` waits until it has settled by the GPU's.
    """
    begin, calls, size, group_s = time.perf_counter(), 0, 1, GROUP_NS / 1e9
    groups: list[float] = []
    while least:
        each_s = _wall_s(fn, size, device) / size
        groups = [*groups, each_s] if calls else []
        calls += size
        enough = calls >= least
        spent = time.perf_counter() - begin >= budget_s * (1 if enough else _PATIENCE)
        short_on_gpu = device == "cuda" and each_s < group_s
        if spent or (enough and (short_on_gpu or settled(groups))):
            break
        size = max(1, min(int(group_s / max(each_s, 1e-9)), _LARGEST_BATCH))
        if short_on_gpu:
            size = min(size, least - calls)
    return calls


def _wall_s(fn: Callable[[], object], n: int, device: str) -> float:
    begin = time.perf_counter()
    warm_up(fn, n, device=device)
    return time.perf_counter() - begin


def warm_up(fn: Callable[[], object], n: int, *, device: str) -> None:
    """Calls ``fn`` ``n`` times and waits for the device."""
    for _ in range(n):
        fn()
    if device == "cuda":
        import torch

        torch.cuda.synchronize()


def sample(
    fn: Callable[[], object],
    *,
    device: str,
    rule: Rule,
    earlier: Sequence[float] = (),
    range_name: str,
    annotate: Annotate,
    ranks: Ranks = ALONE,
    begun: Callable[[], object] = lambda: None,
    known: Known = UNSEEN,
) -> Samples:
    """Samples of ``fn``, each in the range ``range_name``, until there are enough by ``rule`` with ``earlier`` ones.

    On ``device="cuda"``: a pair of events around each call, on the current stream, so work on other streams counts only
    as far as that stream waits for it; one synchronisation a batch.

    Before the first sample ``fn`` is called outside any range to learn how the host issues it: 7 times, or 11 where the
    host waits inside it, 3 times where a call takes over 0.2 s and once over 2 s, and up to 30 times more where a wait
    of the host's has two explanations; not again where it is ``known`` of a call of over 1 ms.
    Then it is called as for samples, so that clocks and power are those of the loop: for 30 ms, or 100 where the call
    fills most of the loop and is not known to be light, and on until the medians of groups of 10 ms have settled as in
    ``settle``, for at most 0.5 s or half the budget. With ``earlier`` samples, to whose median they are held too, 10
    ms, groups of 5 ms and 0.1 s are enough. Calls of over 10 ms, and those of several processes, are made for 30 or 100
    ms whatever their times do. Until the GPU has the clock again that it is known to have, less 1 %, a single process
    goes on with a call that is not made for 100 ms, up to these 100 ms. Then ``begun()``; what follows is measured.

    A batch in which more than one sample in ten was not wholly queued in time is not kept but taken again.

    Several processes begin each batch together, and take it again if one of them must. Their ``rule`` must want the
    same number of samples of all of them, so none that depends on times.
    """
    values: list[float] = []
    with WATCHES[device]() as watch:
        known = replace(known, median_ns=statistics.median(earlier) if earlier else None)
        issue = watch.learn(fn, ranks, known, rule.budget_s / 2)
        watch.forget_peaks()
        begun()
        begin = time.perf_counter()
        while size := rule.batch([*earlier, *values], len(values), time.perf_counter() - begin):
            ranks.step("batch")
            _run(fn, size, watch, range_name, annotate)
            watch.probe()
            batch = watch.values_ns()
            if not watch.hold_longer(ranks):
                values += batch
        allocated, reserved = watch.peaks()
        clocks = watch.clocks_hz()
        notes = [f"{watch.flush_bytes} bytes written between samples to flush the caches", *watch.notes()]
    return Samples(
        values,
        watch.clock,
        rule,
        tuple(earlier),
        issue=issue if ranks.several else watch.learned(),  # several have agreed on one
        peak_allocated=allocated,
        peak_reserved=reserved,
        queue_notes=tuple(notes),
        clocks_hz=tuple(clocks),
        fully_loaded=watch.fully_loaded,
    )


def load(fn: Callable[[], object], *, device: str, ranks: Ranks = ALONE, clock_hz: float | None = None) -> None:
    """The iterations of ``loop`` for 30 or 100 ms, outside any range: a GPU then has the clock that it keeps.

    One that comes from rest is 5 % faster for its first 60 ms at its power limit, and one that comes from a heavier
    case is slower: ``clock_hz`` is that of ``Known``. Nothing on a CPU.
    """
    with WATCHES[device](timed=False) as watch:
        watch.load(fn, ranks, clock_hz)


@dataclass(frozen=True)
class Loop:
    """``wall_ns`` is the wall time of one iteration; ``clocks_hz`` the SM clocks before and after all of them."""

    wall_ns: float
    clocks_hz: tuple[float, ...] = ()


def loop(
    fn: Callable[[], object],
    n: int,
    *,
    device: str,
    range_name: str,
    annotate: Annotate,
    ranks: Ranks = ALONE,
) -> Loop:
    """The iterations of ``sample``, flush and range included, without its events.

    By the host's clock, from an idle device to an idle device. The flush is in it and a hold of the GPU is not, so what
    a profiler adds is its time less that of the same loop without one.
    """
    with WATCHES[device](timed=False) as watch:
        watch.probe()
        watch.wait()
        # Who begins earlier waits inside the first call, which a profiler would see as communication.
        ranks.step("loop")
        begin = time.perf_counter_ns()
        _run(fn, n, watch, range_name, annotate)
        watch.wait()
        wall_ns = (time.perf_counter_ns() - begin) / n
        watch.probe()
        return Loop(wall_ns, tuple(watch.clocks_hz()))


def _run(fn: Callable[[], object], n: int, watch: Watch, range_name: str, annotate: Annotate) -> None:
    for _ in range(n):
        watch.flush()
        with annotate(range_name):
            watch.start()
            fn()
            watch.stop()


class NotCapturable(RuntimeError):
    """The call cannot become a CUDA graph, with the reason."""


class LeftCapturing(NotCapturable):
    """The driver gave the capture up, and this process is not to be measured in any more.

    torch (2.11; parts of it up to 2.13) then goes on as in a capture: the allocator never gives the memory of that
    capture back, so every later peak has it, and the random number generator refuses to work.
    """


@dataclass(frozen=True)
class _Replay:
    """A captured graph. It knows what it reads by address only, so ``of``, which holds that, must live as long."""

    graph: Any
    of: Callable[[], object]

    def __call__(self) -> None:
        self.graph.replay()


def graphed(fn: Callable[[], object]) -> Callable[[], None]:
    """``fn`` captured once as a CUDA graph; calling the result replays it.

    Ranges that ``fn`` opens are passed at capture, not at replay. The graph and its memory live as long as the result:
    once that is dropped, ``torch.cuda.empty_cache`` gives the memory back. Raises NotCapturable, before it tries where
    torch already sees ``fn`` synchronise: an attempt that fails in the driver raises LeftCapturing.
    """
    import torch

    if not torch.cuda.is_available():
        raise NotCapturable("CUDA graphs need a GPU, and torch sees none. Use mode: eager.")
    # One stream for both: on ROCm, hipBLASLt makes its handle at the first use of a stream, which a capture forbids.
    side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(_CALLS_BEFORE_CAPTURE):
            waits = calls_that_synchronise(fn)
        if waits:
            raise NotCapturable(f"the call synchronises ({waits} operations, as item() and cpu() do). Use mode: eager.")
        failed: Exception | None = None
        try:
            with torch.cuda.graph(graph, stream=side):
                try:
                    fn()
                except Exception as error:  # whatever the driver, torch or the workload raises: this call has no graph
                    failed = error
        except Exception as error:  # the end of a capture that the driver gave up only says that something came before
            raise LeftCapturing(_uncaptured(failed or error)) from error
        if failed is not None:
            raise NotCapturable(_uncaptured(failed)) from failed
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    return _Replay(graph, fn)


def _uncaptured(error: Exception) -> str:
    return f"the call cannot be captured as a CUDA graph: {' '.join(str(error).split())[:300]}. Use mode: eager."


def half_width(values: Sequence[float]) -> float | None:
    """Half the width of the interval of the median, relative to the median; None where there is no interval."""
    if (interval := of_median(sorted(values))) is None:
        return None
    width, median = interval[1] - interval[0], statistics.median(values)
    return width / 2 / median if median > 0 else float(width > 0)
