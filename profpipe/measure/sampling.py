"""Times a callable: warm-up until stable, cache flush, one sample an iteration, and a rule for when to stop.

docs/measurement.md describes the measurement. ``sample`` uses events or the host's clock. ``apply_load`` and
``run_loop`` run the same iterations without events, for profilers, which measure with other clocks. The result of the
callable is dropped at once. This module needs torch only for ``device="cuda"``, and never numpy.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Final

from profpipe.measure.distributed import SINGLE_PROCESS, Ranks
from profpipe.measure.flags import Flag
from profpipe.measure.launch_profile import NO_PRIOR, LaunchProfile, PriorMeasurement
from profpipe.measure.statistics import GROUP_NS, is_stable, relative_half_width
from profpipe.measure.timers import CpuTimer, CudaTimer

TIMERS: Final[Mapping[str, Callable[..., CpuTimer]]] = {"cuda": CudaTimer, "cpu": CpuTimer}

#: By how much the least number of samples or warm-up calls may exceed the budget.
_BUDGET_FACTOR: Final = 5
#: Largest batch: events of more samples are not kept for one synchronisation.
_LARGEST_BATCH: Final = 1000

#: A case is host-bound when launching takes this much longer than running; the launch time is a median of five calls.
_HOST_BOUND_FACTOR: Final = 1.05

#: A case is noisy when half the interval of its median, relative to the median, is wider than this.
_NOISY: Final = 0.02

Annotate = Callable[[str], AbstractContextManager[object]]


@dataclass(frozen=True)
class StoppingRule:
    """When there are enough samples.

    Sampling ends with ``min_samples`` samples of which ``min_in_round`` are of this round, if half the width of the
    95 % confidence interval of their median is at most ``target`` of the median. It also ends at ``max_samples``, or
    when another sample would exceed ``budget_s`` of wall time (``least_budgets`` times that up to ``min_samples``). At
    least one sample is taken.

    Where power or heat lowers the GPU's clock, sampling lasts at least ``slowed_s``: an H200 at its power limit moves
    its clock by 5 to 10 % within 0.1 to 0.2 s, and samples of a shorter time show one moment of that.
    """

    min_samples: int = 30
    target: float = 0.005
    budget_s: float = 2.0
    max_samples: int = 10_000
    min_in_round: int = 1
    slowed_s: float = 0.0
    least_budgets: float = _BUDGET_FACTOR

    def __post_init__(self) -> None:
        if not 1 <= self.min_samples <= self.max_samples:
            raise ValueError(f"need 1 <= min_samples <= max_samples, not {self.min_samples} and {self.max_samples}")

    def limit_round(self, number: int, rounds: int, earlier: int = 0) -> StoppingRule:
        """Return the rule for round ``number`` (from 1) of ``rounds``: its share of samples and time.

        Numbers of samples are totals, as ``sample`` judges earlier samples with new ones; the time is that of one
        round. A round takes at least the mean of the rounds before it (``earlier`` samples in all), even where the
        interval is narrow by then: with equal rounds a drift of the machine affects all cases equally.
        """
        least, most = (math.ceil(count * number / rounds) for count in (self.min_samples, self.max_samples))
        in_round = max(1, math.ceil(earlier / (number - 1))) if number > 1 else 1
        of_round = StoppingRule(least, self.target, self.budget_s / rounds, most, in_round, self.slowed_s / rounds)
        return replace(of_round, least_budgets=self.least_budgets)

    def is_met(self, values: Sequence[float]) -> bool:
        """Return True if the interval of the median of ``values`` is at most as wide as ``target``."""
        width = relative_half_width(values)
        return width is not None and width <= self.target

    def next_batch(self, values: Sequence[float], taken: int, spent_s: float, is_slowed: bool = False) -> int:
        """Return how many samples to take next; 0: stop. ``taken`` of ``values`` took ``spent_s``.

        The first batch is one sample, which shows the cost of one; the next reaches ``min_samples``; a later batch
        adds half as many again.
        """
        if taken == 0:
            return 1
        few, least_s = len(values) < self.min_samples, self.slowed_s if is_slowed else 0.0
        if not few and taken >= self.min_in_round and spent_s >= least_s and self.is_met(values):
            return 0
        limit_s = max(least_s, self.budget_s * (self.least_budgets if few else 1))
        affordable = (limit_s - spent_s) * taken / max(spent_s, 1e-9)
        if few and taken == 1 and affordable < 1:
            return int(2 * spent_s <= _BUDGET_FACTOR * self.budget_s)  # two samples in three rounds make an interval
        missing = max(self.min_samples - len(values), self.min_in_round - taken)
        wanted = missing if missing > 0 else len(values) // 2 + 1
        return max(0, int(min(wanted, affordable, self.max_samples - len(values), _LARGEST_BATCH)))


@dataclass(frozen=True)
class Samples:
    """One time an iteration, in order, and the facts of the measurement.

    ``clock`` is ``cuda_event`` or ``perf_counter``. ``earlier_ns`` are the samples of earlier rounds. The peaks are
    bytes of torch's GPU allocator without the flush buffer; only the reserved one includes what a CUDA graph allocates
    while it runs. ``clocks_hz`` are the SM clocks after the batches. ``fully_loaded``: the load before the first sample
    brought the clock of a GPU at its power limit down. On a CPU ``launch`` and the peaks are None.
    """

    values_ns: list[float]
    clock: str
    rule: StoppingRule
    earlier_ns: tuple[float, ...] = ()
    launch: LaunchProfile | None = None
    peak_allocated: int | None = None
    peak_reserved: int | None = None
    timer_notes: tuple[str, ...] = ()
    clocks_hz: tuple[float, ...] = ()
    fully_loaded: bool = False
    flushed: bool = True

    @property
    def host_bound(self) -> bool | None:
        """Return True if launching takes longer than running: in a plain loop the GPU waits for launches.

        Where the GPU waits in this loop as well (``launch.starves_gpu``), its time is unknown and smaller. None on
        a CPU, and where the call synchronises, because launch and run time cannot be separated then.
        """
        if self.launch is None or self.launch.synchronises:
            return None
        return self.launch.starves_gpu or self.launch.host_ns > _HOST_BOUND_FACTOR * statistics.median(self.values_ns)

    @property
    def flags(self) -> list[Flag]:
        """The validity flags of the samples of all rounds so far.

        A missed target below 2 % does not set ``noisy``, because the page shows the interval beside the time.
        """
        values = [*self.earlier_ns, *self.values_ns]
        width = relative_half_width(values)
        few = len(values) < self.rule.min_samples or width is None
        is_set = {
            Flag.HOST_BOUND: bool(self.host_bound),
            Flag.SYNCHRONISES: bool(self.launch and self.launch.synchronises),
            Flag.TOO_FEW_SAMPLES: few,
            Flag.NOISY: width is not None and not few and width > max(_NOISY, self.rule.target),
            Flag.WARM_CACHE: not self.flushed,
        }
        return [flag for flag, holds in is_set.items() if holds]

    @property
    def notes(self) -> tuple[str, ...]:
        if self.launch is None or not self.host_bound:
            return self.timer_notes
        median_ns = statistics.median(self.values_ns)
        note = (
            f"launching a call takes the host {self.launch.host_ns:.0f} ns, running it takes the GPU {median_ns:.0f} ns"
        )
        return (*self.timer_notes, note + (", which includes waits for launches" if self.launch.starves_gpu else ""))


def warm_up_until_stable(fn: Callable[[], object], *, device: str, min_calls: int, budget_s: float) -> int:
    """Call ``fn`` until its time is stable; return the number of calls.

    Calls are timed back to back in groups of 10 ms by the host's clock, without the first call, until ``is_stable``:
    at least ``min_calls`` calls, and for at most ``budget_s``, or on a GPU five times that up to ``min_calls`` calls.
    ``min_calls=0`` makes no call. On a GPU, calls shorter than 10 ms stop at ``min_calls``: the host's clock measures
    them badly, and ``sample`` waits until they are stable by the GPU's clock.
    """
    begin, calls, size, group_s = time.perf_counter(), 0, 1, GROUP_NS / 1e9
    groups: list[float] = []
    least_budgets = _BUDGET_FACTOR if device == "cuda" else 1
    while min_calls:
        group_begin = time.perf_counter()
        warm_up(fn, size, device=device)
        each_s = (time.perf_counter() - group_begin) / size
        groups = [*groups, each_s] if calls else []
        calls += size
        enough = calls >= min_calls
        spent = time.perf_counter() - begin >= budget_s * (1 if enough else least_budgets)
        short_on_gpu = device == "cuda" and each_s < group_s
        if spent or (enough and (short_on_gpu or is_stable(groups))):
            break
        size = max(1, min(int(group_s / max(each_s, 1e-9)), _LARGEST_BATCH))
        if short_on_gpu:
            size = min(size, min_calls - calls)
    return calls


def warm_up(fn: Callable[[], object], n: int, *, device: str, budget_s: float = math.inf) -> None:
    """Call ``fn`` ``n`` times, or until ``budget_s`` are over, and synchronise the device."""
    begin = time.perf_counter()
    for _ in range(n):
        fn()
        if time.perf_counter() - begin >= budget_s:
            break
    if device == "cuda":
        import torch

        torch.cuda.synchronize()


def sample(
    fn: Callable[[], object],
    *,
    device: str,
    rule: StoppingRule,
    earlier: Sequence[float] = (),
    range_name: str,
    annotate: Annotate,
    ranks: Ranks = SINGLE_PROCESS,
    on_start: Callable[[], object] = lambda: None,
    prior: PriorMeasurement = NO_PRIOR,
    flush: bool = True,
    is_slowed: Callable[[], bool] = lambda: False,
) -> Samples:
    """Take samples of ``fn``, all in the range ``range_name``, until ``rule`` is met together with ``earlier`` ones.

    On ``device="cuda"`` a pair of events surrounds a call on the current stream, so work on other streams counts
    only as far as that stream waits for it. A batch ends with one synchronisation.

    On a GPU, calls outside any range come first: they profile the launch and load the GPU. Then ``on_start()`` is
    called, and sampling begins. A batch in which more than one sample in ten was not queued in time is taken again.
    Raises RuntimeError where the clock stands or goes back.
    ``is_slowed()`` returns True while power or heat lowers the clock. Several processes start and repeat a batch
    together, so their ``rule`` must not depend on times.
    """
    with TIMERS[device](flush=flush) as timer:
        prior = replace(prior, median_ns=statistics.median(earlier) if earlier else None)
        launch = timer.prepare(fn, ranks, prior, rule.budget_s / 2)
        timer.reset_peak_memory()
        on_start()
        values: list[float] = []
        begin = time.perf_counter()
        while size := rule.next_batch([*earlier, *values], len(values), time.perf_counter() - begin, is_slowed()):
            ranks.barrier("batch")
            _iterate(fn, size, timer, range_name, annotate)
            timer.record_clock()
            batch = timer.take_times_ns()
            if not timer.extend_hold(ranks):
                values += batch
        if values and (min(values) < 0 or statistics.median(values) <= 0):
            what = f"{timer.clock} measured a time of {min(values):g} ns"
            raise RuntimeError(f"{what}: the clock is too coarse, or the workload has replaced it")
        allocated, reserved = timer.peak_memory()
        flushed = f"{timer.flush_bytes} bytes written between samples to flush the caches"
        return Samples(
            values,
            timer.clock,
            rule,
            tuple(earlier),
            launch=launch if ranks.is_distributed else timer.launch_profile(),  # processes have agreed on one profile
            peak_allocated=allocated,
            peak_reserved=reserved,
            clocks_hz=tuple(timer.clocks_hz()),
            timer_notes=(flushed if flush else "the caches are not flushed between samples", *timer.notes()),
            fully_loaded=timer.fully_loaded,
            flushed=flush,
        )


def apply_load(
    fn: Callable[[], object],
    *,
    device: str,
    ranks: Ranks = SINGLE_PROCESS,
    clock_hz: float | None = None,
    flush: bool = True,
) -> None:
    """Run the iterations of ``run_loop`` for 30 or 100 ms outside any range: a GPU then has the clock that it keeps.

    A GPU at its power limit that comes from idle is 5 % faster for its first 60 ms; one that comes from a heavier case
    is slower: ``clock_hz`` is that of ``PriorMeasurement``. Does nothing on a CPU.
    """
    with TIMERS[device](timed=False, flush=flush) as timer:
        timer.apply_load(fn, ranks, clock_hz)


def run_loop(
    fn: Callable[[], object],
    n: int,
    *,
    device: str,
    range_name: str,
    annotate: Annotate,
    ranks: Ranks = SINGLE_PROCESS,
    flush: bool = True,
) -> tuple[float, tuple[float, ...]]:
    """Run ``n`` iterations of ``sample``, with flush and range, without its events.

    Return the wall time of one iteration in nanoseconds, and the SM clocks before and after the loop in Hz.

    The host's clock measures from idle device to idle device. The time includes the flush and no hold, so a profiler's
    overhead is its loop time minus that of the same loop without a profiler.
    """
    with TIMERS[device](timed=False, flush=flush) as timer:
        timer.record_clock()
        timer.synchronize()
        # A process that starts earlier waits inside the first call, which a profiler would show as communication.
        ranks.barrier("loop")
        begin = time.perf_counter_ns()
        _iterate(fn, n, timer, range_name, annotate)
        timer.synchronize()
        wall_ns = (time.perf_counter_ns() - begin) / n
        timer.record_clock()
        return wall_ns, tuple(timer.clocks_hz())


def _iterate(fn: Callable[[], object], n: int, timer: CpuTimer, range_name: str, annotate: Annotate) -> None:
    for _ in range(n):
        timer.flush()
        with annotate(range_name):
            timer.start()
            fn()
            timer.stop()
