"""How samples are taken: which functions are called, in which order and how often, and what counts.

No test asserts how fast anything is. The GPU's side runs against a stand-in for torch, a mock for want of a GPU: its
clocks and its allocator follow the test.
"""

import itertools
import math
import random
import resource
import sys
import time
import weakref
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from stand_in_gpu import MIB, StandInGpu, kernels

from profpipe.measure import launch_profile, sampling, statistics, timers
from profpipe.measure.distributed import SINGLE_PROCESS, Ranks
from profpipe.measure.launch_profile import LaunchProfile, PriorMeasurement
from profpipe.measure.sampling import StoppingRule
from profpipe.measure.timers import CpuTimer


class Log:
    """What happened, in order."""

    def __init__(self):
        self.seen: list[str] = []

    def call(self):
        self.seen.append("call")

    @contextmanager
    def annotate(self, name):
        self.seen.append(f"push {name}")
        yield
        self.seen.append("pop")


@pytest.fixture
def log(monkeypatch):
    """A log that also sees the flush of the CPU's caches."""
    log = Log()
    monkeypatch.setattr(timers.ctypes, "memset", lambda *_: log.seen.append("flush"))
    return log


def exactly(n):
    return StoppingRule(min_samples=n, max_samples=n, target=math.inf, budget_s=math.inf)


# --- when there are enough -------------------------------------------------------------------------------------------

STEADY = [100.0] * 30
NOISY = [100.0, 200.0] * 15


SLOWED = StoppingRule(budget_s=0.2, slowed_s=0.5)
THIRD_ROUND = StoppingRule().limit_round(3, 3, earlier=300)


@pytest.mark.parametrize(
    ("rule", "values", "taken", "spent_s", "slowed", "expected"),
    [
        # One sample alone, then those up to the least, then half as many again.
        (StoppingRule(budget_s=1000.0), [], 0, 0.0, False, 1),
        (StoppingRule(budget_s=1000.0), [100.0], 1, 0.01, False, 29),
        (StoppingRule(budget_s=1000.0), NOISY, 30, 0.3, False, 16),
        (StoppingRule(budget_s=1000.0), NOISY * 2, 60, 0.6, False, 31),
        # A narrow interval ends it, and a wide one does not.
        (StoppingRule(), STEADY, 30, 0.1, False, 0),
        (StoppingRule(min_samples=31), STEADY, 30, 0.1, False, 1),
        (StoppingRule(), NOISY, 30, 0.1, False, 16),
        # Where the clock is lowered, sampling lasts longer, as long as another sample does not exceed that time.
        (SLOWED, STEADY, 30, 0.3, False, 0),
        (SLOWED, STEADY, 30, 0.3, True, 16),
        (SLOWED, STEADY, 30, 0.49, True, 0),
        (SLOWED, STEADY, 30, 0.5, True, 0),
        # No more than the budget and the most allow.
        (StoppingRule(budget_s=2.0), NOISY, 30, 1.8, False, 3),
        (StoppingRule(budget_s=2.0), NOISY, 30, 2.0, False, 0),
        (StoppingRule(max_samples=32), NOISY, 30, 0.1, False, 2),
        (StoppingRule(max_samples=30), NOISY, 30, 0.1, False, 0),
        (StoppingRule(max_samples=10**6, budget_s=1e9), [100.0, 200.0] * 5000, 10_000, 1.0, False, 1000),
        # Up to the least, five times the budget may be spent, but a call of a minute is made once.
        (StoppingRule(), [1.0], 1, 1.0, False, 9),
        (StoppingRule(), [1.0] * 10, 10, 10.0, False, 0),
        # On a CPU one and a half times, but a second sample within five times: six in three rounds make an interval.
        (StoppingRule(least_budgets=1.5), [1.0], 1, 0.5, False, 5),
        (StoppingRule(least_budgets=1.5), [1.0], 1, 2.0, False, 1),
        (StoppingRule(least_budgets=1.5), [1.0], 1, 5.1, False, 0),
        (StoppingRule(least_budgets=1.5).limit_round(1, 3), [1.0], 1, 1.0, False, 1),
        (StoppingRule(), [60.0], 1, 60.0, False, 0),
        # Earlier samples count, and one is taken all the same.
        (StoppingRule(), STEADY, 0, 0.0, False, 1),
        (StoppingRule(), [*STEADY, 100.0], 1, 0.01, False, 0),
        # A round takes as many as those before it, though the interval is narrow, if the budget allows it.
        (THIRD_ROUND, [*STEADY * 10, 100.0], 1, 0.001, False, 149),
        (THIRD_ROUND, [*STEADY * 10, *STEADY * 5], 150, 0.1, False, 0),
        (THIRD_ROUND, [*STEADY * 10, *STEADY], 30, 10.0, False, 0),
    ],
)
def test_a_rule_says_how_many_samples_to_take_next(rule, values, taken, spent_s, slowed, expected):
    assert rule.next_batch(values, taken, spent_s, is_slowed=slowed) == expected


def test_rounds_share_samples_and_time_equally():
    rule = StoppingRule(min_samples=30, max_samples=100, budget_s=3.0, slowed_s=0.6)
    rounds = [rule.limit_round(number, 3) for number in (1, 2, 3)]
    assert [(own.min_samples, own.max_samples) for own in rounds] == [(10, 34), (20, 67), (30, 100)]
    assert [(own.budget_s, own.slowed_s) for own in rounds] == [(1.0, pytest.approx(0.2))] * 3


@pytest.mark.parametrize("seed", range(5))
def test_sampling_ends_when_the_interval_reaches_its_target(seed):
    draw, rule, values = random.Random(seed), StoppingRule(target=0.005, budget_s=1e9), []
    while size := rule.next_batch(values, len(values), 1.0):
        before, values = values, values + [draw.gauss(100.0, 3.0) for _ in range(size)]
    assert rule.is_met(values) and not (len(before) >= rule.min_samples and rule.is_met(before))
    assert len(values) < 3000


def test_a_rule_that_makes_no_sense_is_refused():
    for wrong in ({"min_samples": 0}, {"min_samples": 5, "max_samples": 4}):
        with pytest.raises(ValueError, match="need 1 <= min_samples <= max_samples"):
            StoppingRule(**wrong)


def marks(values, earlier=(), **known):
    return sampling.Samples(values, "cuda_event", StoppingRule(), earlier, **known).flags


def test_flags_name_the_problems_of_samples():
    assert marks(STEADY) == []
    assert marks(STEADY[:10]) == ["too_few_samples"]
    assert marks(STEADY[:10], earlier=tuple(STEADY[:20])) == []
    assert marks(NOISY) == ["noisy"]
    assert marks(STEADY, launch=LaunchProfile(99.0)) == []
    assert marks(STEADY, launch=LaunchProfile(104.0)) == [], "what issuing takes is not known that well"
    assert marks(STEADY, launch=LaunchProfile(107.0)) == ["host_bound"]
    assert marks(STEADY, launch=LaunchProfile(107.0, synchronises=True)) == ["synchronises"]
    assert marks(STEADY, launch=LaunchProfile(99.0, starves_gpu=True)) == ["host_bound"]
    few = sampling.Samples([100.0] * 5, "cuda_event", StoppingRule(min_samples=5))
    assert few.flags == ["too_few_samples"], "five values have no interval, however many were asked for"


# --- warm-up ---------------------------------------------------------------------------------------------------------


def settled(monkeypatch, seconds, min_calls, budget_s):
    """(calls that settle counted, calls made) for calls that last as ``seconds`` says, one after the other."""
    clock, made = SimpleNamespace(now=0.0), []
    monkeypatch.setattr(sampling.time, "perf_counter", lambda: clock.now)

    def call():
        clock.now += seconds(len(made))
        made.append(1)

    return sampling.warm_up_until_stable(call, device="cpu", min_calls=min_calls, budget_s=budget_s), len(made)


@pytest.mark.parametrize(
    ("seconds", "min_calls", "budget_s", "calls"),
    [
        # The first call, and three groups.
        (lambda number: 0.02, 1, 10.0, 4),
        # Groups of 10 ms, of which the first lasts as long as the first call lets one guess.
        (lambda number: 0.0009 if number else 0.02, 1, 10.0, 24),
        (lambda number: 0.0206 if number % 2 else 0.02, 1, 10.0, 6),
        # It still gets faster.
        (lambda number: 0.02 + max(0, 20 - number) * 0.01, 1, 1e9, 23),
        # The least calls, and the budget.
        (lambda number: 0.02, 12, 10.0, 12),
        (lambda number: 1.0 + number, 1, 5.0, 3),
        (lambda number: 60.0, 10, 1.0, 1),
        (lambda number: 1.0, 0, 1.0, 0),
    ],
)
def test_calls_are_made_until_their_times_are_stable(monkeypatch, seconds, min_calls, budget_s, calls):
    assert settled(monkeypatch, seconds, min_calls, budget_s) == (calls, calls)


@pytest.mark.parametrize(
    ("groups", "have"),
    [
        ([103, 100, 103, 100, 103], True),
        ([103, 101, 103, 105, 102], True),  # by less than the tolerance beyond what was seen before
        ([103, 101, 103, 100, 103], True),
        ([103, 100, 103, 100, 106], False),  # slower and slower
        ([106, 103, 106, 100, 103], False),  # faster and faster
        ([106, 109, 103, 106, 103, 100], False),
        ([106, 103, 106, 103], False),  # too few to see where they go
        ([50, 103, 100, 103, 100, 103], True),  # earlier ones do not count
        ([], False),
    ],
)
def test_times_that_vary_around_one_value_are_stable(groups, have):
    assert statistics.is_stable(groups) is have


@pytest.mark.parametrize(
    ("ns", "min_calls", "budget_s", "calls"),
    [
        # Short calls end with the minimum.
        (lambda number: 5_000_000 // (1 + number), 10, 10.0, 10),
        (lambda number: 5_000_000 // (1 + number), 1, 10.0, 1),
        (lambda number: 100_000 if number else 5 * 10**9, 1, 10.0, 2),
        # A long call is stable by the host's clock.
        (lambda number: 100_000_000 + max(0, 20 - number) * 10_000_000, 1, 60.0, 23),
        (lambda number: 60 * 10**9, 10, 1.0, 1),
    ],
)
def test_on_a_gpu_only_long_calls_are_warmed_up_until_they_are_stable(gpu, ns, min_calls, budget_s, calls):
    call = changing(gpu, ns)
    assert sampling.warm_up_until_stable(call, device="cuda", min_calls=min_calls, budget_s=budget_s) == calls


def test_warm_up_makes_the_given_number_of_calls(log):
    sampling.warm_up(log.call, 4, device="cpu")
    assert log.seen == ["call"] * 4


# --- on a CPU --------------------------------------------------------------------------------------------------------


def on_cpu(fn, n, annotate):
    return sampling.sample(fn, device="cpu", rule=exactly(n), range_name="r", annotate=annotate)


def test_each_sample_is_flush_then_range(log):
    samples = on_cpu(log.call, 2, log.annotate)
    assert log.seen == ["flush", "push r", "call", "pop"] * 2
    assert len(samples.values_ns) == 2


def test_a_sample_is_the_time_of_the_callable_alone(monkeypatch):
    clock = SimpleNamespace(now=0)

    def advance(by):
        clock.now += by

    @contextmanager
    def annotate(name):
        advance(1)
        yield
        advance(1)

    monkeypatch.setattr(timers.time, "perf_counter_ns", lambda: clock.now)
    monkeypatch.setattr(timers.ctypes, "memset", lambda *_: advance(1_000_000))
    durations = iter([500, 20, 30])
    assert on_cpu(lambda: advance(next(durations)), 3, annotate).values_ns == [500.0, 20.0, 30.0]


def test_a_callable_of_known_duration_takes_at_least_that_long():
    samples = on_cpu(lambda: time.sleep(0.002), 3, Log().annotate)
    assert samples.clock == "perf_counter"
    assert all(value >= 2_000_000 for value in samples.values_ns)


def test_a_cpu_has_no_gpu_memory_and_is_never_host_bound(log):
    samples = on_cpu(log.call, 6, log.annotate)
    assert (samples.peak_allocated, samples.peak_reserved, samples.host_bound) == (None, None, None)
    assert samples.flags == []
    (note,) = samples.notes
    assert "to flush the caches" in note


def test_under_a_profiler_the_same_iterations_run_and_their_wall_time_is_known(log):
    wall_ns, clocks_hz = sampling.run_loop(
        lambda: (log.call(), time.sleep(0.001)), 2, device="cpu", range_name="profpipe:a=1", annotate=log.annotate
    )
    assert log.seen == ["flush", "push profpipe:a=1", "call", "pop"] * 2
    assert wall_ns >= 1_000_000 and clocks_hz == ()


def test_the_range_is_closed_and_the_error_is_raised_if_the_callable_fails():
    open_ranges: list[str] = []

    @contextmanager
    def annotate(name):
        open_ranges.append(name)
        try:
            yield
        finally:
            open_ranges.pop()

    def fail():
        raise KeyError("message of the workload")

    with pytest.raises(KeyError, match="message of the workload"):
        on_cpu(fail, 1, annotate)
    assert open_ranges == []


def test_a_second_case_costs_no_page_faults_for_the_flush_of_the_caches():
    timers = [CpuTimer() for _ in range(3)]
    before = []
    for timer in timers:
        with timer:
            timer.flush()
        before.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
    assert before[-1] - before[0] < timers[0].flush_bytes / resource.getpagesize() / 10


@pytest.mark.parametrize("times", [[0], [3000, 1000]])
def test_a_clock_that_stands_or_goes_back_measures_nothing(monkeypatch, times):
    monkeypatch.setattr(time, "perf_counter_ns", itertools.cycle(times).__next__)
    with pytest.raises(RuntimeError, match=r"perf_counter measured a time of -?[0-9]+ ns: the clock is too coarse, or"):
        on_cpu(lambda: None, 3, Log().annotate)


def test_the_largest_cache_that_linux_reports_is_flushed_twice_over_as_far_as_a_process_can_have_filled_it(
    monkeypatch, tmp_path
):
    assert timers.last_level_cache_bytes(tmp_path) is None
    for index, size in enumerate(("48K", "32K", "2048K", "105M")):
        (tmp_path / f"index{index}").mkdir()
        (tmp_path / f"index{index}" / "size").write_text(size + "\n")
    assert timers.last_level_cache_bytes(tmp_path) == 105 * MIB
    monkeypatch.setattr(timers, "last_level_cache_bytes", lambda: 105 * MIB)
    assert CpuTimer().flush_bytes == 210 * MIB
    monkeypatch.setattr(timers, "last_level_cache_bytes", lambda: 480 * MIB)
    assert CpuTimer().flush_bytes == 256 * MIB
    monkeypatch.setattr(timers, "last_level_cache_bytes", lambda: None)
    assert CpuTimer().flush_bytes == 64 * MIB


# --- on a GPU, against a stand-in for torch --------------------------------------------------------------------------


@pytest.fixture
def gpu(monkeypatch):
    gpu = StandInGpu()
    monkeypatch.setitem(sys.modules, "torch", gpu)
    monkeypatch.setattr(timers.time, "perf_counter_ns", lambda: gpu.now_ns)
    monkeypatch.setattr(sampling.time, "perf_counter", lambda: gpu.now_ns / 1e9)
    return gpu


def on_gpu(gpu, fn, n=20, known=None):
    named = {"rule": exactly(n), "range_name": "r", "annotate": gpu.annotate, "prior": PriorMeasurement(known)}
    return sampling.sample(fn, device="cuda", **named)


def test_events_stand_inside_the_range_around_the_call_and_one_synchronisation_ends_a_batch(gpu):
    on_gpu(gpu, gpu.call, n=3)
    one, clock = ["flush", "push r", "event", "call", "event", "pop"], ["event"] * 3
    assert gpu.seen[gpu.seen.index("reset") + 1 :] == [
        *one, *clock, "synchronize", *one, *one, *clock, "synchronize", "synchronize"
    ]  # fmt: skip


def host_takes(gpu, *launch_ns):
    """A kernel of 1 us that costs the host so long to launch: the first, the second and so on; the last stays."""
    left = list(launch_ns)
    return lambda: gpu.launch(1_000, left.pop(0) if len(left) > 1 else left[0])


def test_the_launch_time_is_refined_by_the_samples(gpu):
    at_first = [60_000] * 300  # those that learn and load
    assert on_gpu(gpu, host_takes(gpu, *at_first, 20_000), n=200).launch.host_ns == 20_000
    assert on_gpu(gpu, host_takes(gpu, *[20_000] * 7, 60_000), n=200).launch.host_ns == 20_000, "the host may wait"
    assert (
        on_gpu(
            gpu, host_takes(gpu, *at_first, 20_000), n=200, known=LaunchProfile(60_000.0, call_ns=2e6)
        ).launch.host_ns
        == 20_000
    )


def test_the_clock_is_counted_behind_each_batch_and_around_a_loop(gpu):
    gpu.hz = 1.785e9
    assert on_gpu(gpu, gpu.call, n=3).clocks_hz == pytest.approx([1.785e9] * 2, rel=1e-5)
    _, clocks_hz = sampling.run_loop(gpu.call, 3, device="cuda", range_name="r", annotate=gpu.annotate)
    assert clocks_hz == pytest.approx([1.785e9] * 2, rel=1e-5)


@pytest.mark.parametrize("lacks", ["_sleep", "hip"])
def test_without_a_cycle_counter_there_is_no_clock(gpu, lacks):
    if lacks == "hip":
        gpu.version.hip = "6.4"
    else:
        del gpu.cuda._sleep
    assert on_gpu(gpu, gpu.call, n=3).clocks_hz == ()


def loaded(gpu, fn, budget_s=2.0, earlier=(), ranks=SINGLE_PROCESS, **known):
    """For how many milliseconds the GPU was loaded, and when the calls of that time were issued (in nanoseconds)."""
    learned, issued = 0, list[float]()
    begun_ns = 0.0

    def call():
        issued.append(gpu.now_ns)
        fn()

    def started():
        nonlocal begun_ns, learned
        begun_ns, learned = gpu.now_ns, len(issued)

    rule = StoppingRule(min_samples=3, max_samples=3, target=math.inf, budget_s=budget_s)
    named = {"rule": rule, "range_name": "r", "annotate": gpu.annotate, "on_start": started}
    samples = sampling.sample(
        call, device="cuda", earlier=earlier, ranks=ranks, prior=PriorMeasurement(**known), **named
    )
    assert len(issued) == learned + len(samples.values_ns), "what follows is measured"
    loading = issued[7:learned]  # the first 7 are issued to learn how: one, five by themselves, one behind a hold
    return (begun_ns - loading[0]) / 1e6, loading


def changing(gpu, ns):
    """A call whose time follows from how many were made before it."""
    made = iter(range(10**9))
    return lambda: gpu.launch(int(ns(next(made))))


def never_settles(number):
    return 100_000 * 1.004**number


def under_a_clock_that_rises_after(gpu, ms, ns=20_000):
    """A call of ``ns``; the GPU comes at 1960 MHz and gets to 2000 that long after the first call."""
    began_ns = math.inf

    def call():
        nonlocal began_ns
        began_ns = min(began_ns, gpu.now_ns)
        gpu.hz = 2e9 if gpu.now_ns - began_ns >= ms * 1e6 else 1.96e9
        gpu.launch(ns)

    return call


def rises(ms, ns=20_000):
    return lambda gpu: under_a_clock_that_rises_after(gpu, ms, ns)


def of_times(ns):
    return lambda gpu: changing(gpu, ns)


def of_kernels(*arguments, **named):
    return lambda gpu: kernels(gpu, *arguments, **named)


KEEPS, HIGH, NEVER, USUAL = {"keeps_clock": True}, {"clock_hz": 2e9}, 10**6, of_kernels(1, 100_000)
AS_BEFORE = {"earlier": [100_000.0] * 10}


@pytest.mark.parametrize(
    ("call", "known", "least_ms", "most_ms"),
    [
        # To the nearest group. It is longer for a call that may lower the clock.
        (USUAL, {}, 95, 105),
        (USUAL, KEEPS, 25, 35),
        (of_kernels(1, 20_000), {}, 25, 35),  # the flush takes longer than the call
        (of_kernels(20, 1_000), {}, 25, 35),  # the host takes longer than the GPU
        # The host lets the GPU rest: it launches for 200 us, and the GPU works for 100 and is held for longer.
        (of_kernels(1, 100_000, launch_ns=200_000), {}, 25, 40),
        # Until times are stable, or half the budget is spent.
        (of_times(lambda number: 100_000 + (0 if number % 20 else 1_000 * number)), KEEPS, 25, 35),
        (of_times(lambda number: 100_000 + 1_000 * max(0, 200 - number)), KEEPS, 60, 100),
        (of_times(never_settles), {**KEEPS, "budget_s": 0.3}, 150, 200),
        (of_times(never_settles), {**KEEPS, "budget_s": 10**6}, 500, 550),
        # Times only wander, about a group of each; or they near those of earlier rounds.
        (of_times(lambda number: 20_000 if number // 125 % 2 else 20_600), {}, 25, 110),
        (of_times(lambda number: 114_000 - min(14_000, 80 * number)), {**KEEPS, **AS_BEFORE}, 25, 500),
        # An expected time shortens the load; another one does until three groups agree.
        (USUAL, {**KEEPS, **AS_BEFORE}, 8, 12),
        (USUAL, {**KEEPS, "earlier": [80_000.0] * 10}, 13, 17),
        (USUAL, AS_BEFORE, 95, 105),
        (of_times(never_settles), {**KEEPS, **AS_BEFORE}, 100, 125),
        # A light call waits until the clock has recovered from the previous case.
        (rises(60), HIGH, 60, 75),
        (rises(60), {**HIGH, "earlier": [20_000.0] * 10}, 60, 75),
        # So does a long call that keeps the clock; of 250 ms, learning takes 100.
        (rises(250, ns=12_000_000), {**KEEPS, **HIGH}, 70, 110),
        (rises(0, ns=12_000_000), {**KEEPS, **HIGH}, 20, 40),
        # The wait is short, and only where the clock can rise.
        (rises(NEVER), HIGH, 95, 115),
        (rises(NEVER), {**HIGH, "budget_s": 0.1}, 45, 65),
        (rises(NEVER), {"clock_hz": 1.97e9}, 25, 35),
        (rises(NEVER), {}, 25, 35),
        (rises(NEVER, ns=3_000_000), HIGH, 95, 100),  # eight groups
    ],
)
def test_the_gpu_is_loaded_until_its_clock_and_the_times_are_those_that_it_keeps(gpu, call, known, least_ms, most_ms):
    assert least_ms < loaded(gpu, call(gpu), **known)[0] < most_ms


def test_a_clock_that_cannot_be_counted_is_not_waited_for(gpu):
    del gpu.cuda._sleep
    assert 25 < loaded(gpu, under_a_clock_that_rises_after(gpu, NEVER), **HIGH)[0] < 35


def test_a_full_load_is_reported_with_the_samples(gpu):
    assert on_gpu(gpu, gpu.call).fully_loaded
    assert on_gpu(gpu, kernels(gpu, 1, 20_000_000)).fully_loaded
    assert not on_gpu(gpu, kernels(gpu, 1, 20_000)).fully_loaded
    named = {"rule": exactly(3), "range_name": "r", "annotate": gpu.annotate}
    assert not sampling.sample(gpu.call, device="cuda", prior=PriorMeasurement(keeps_clock=True), **named).fully_loaded
    assert not sampling.sample(gpu.call, device="cpu", **named).fully_loaded


def test_a_long_load_keeps_the_events_of_two_groups_at_most(gpu):
    _, calls = loaded(gpu, changing(gpu, lambda number: 20_000 * 1.0004**number), keeps_clock=True)
    assert len(calls) > 1000 and gpu.most_events < 600


def test_under_a_profiler_a_call_waits_for_the_clock_as_well(gpu):
    began_ns = gpu.now_ns
    sampling.apply_load(under_a_clock_that_rises_after(gpu, 60), device="cuda", clock_hz=2e9)
    assert 60e6 < gpu.now_ns - began_ns < 75e6
    began_ns = gpu.now_ns
    sampling.apply_load(under_a_clock_that_rises_after(gpu, 10**6), device="cuda", clock_hz=2e9)
    assert 100e6 < gpu.now_ns - began_ns < 110e6


def test_several_processes_wait_for_no_clock(gpu):
    """They would not make the same calls. A mock of the others, which say what this one says."""
    together = SimpleNamespace(is_distributed=True, all_max=lambda value: value, barrier=lambda name: None)
    assert 25 < loaded(gpu, under_a_clock_that_rises_after(gpu, 10**6), clock_hz=2e9, ranks=together)[0] < 35


def test_the_clock_that_was_waited_for_is_not_one_of_those_under_the_samples(gpu):
    named = {"rule": exactly(3), "range_name": "r", "annotate": gpu.annotate, "prior": PriorMeasurement(clock_hz=2e9)}
    counted = sampling.sample(under_a_clock_that_rises_after(gpu, 60), device="cuda", **named).clocks_hz
    assert counted == pytest.approx((2e9, 2e9))  # behind the first sample, and behind the two others


def test_the_gpu_does_not_rest_while_the_times_that_load_it_are_looked_at(gpu):
    lasted_ms, calls = loaded(gpu, kernels(gpu, 1, 3_000_000, launch_ns=300_000))
    assert lasted_ms == pytest.approx(len(calls) * 3.06, rel=0.01)


def test_a_long_call_is_made_for_the_load_as_often_as_fits_into_it(gpu):
    assert len(loaded(gpu, kernels(gpu, 1, 20_000_000))[1]) == 4
    assert len(loaded(gpu, kernels(gpu, 1, 20_000_000), keeps_clock=True)[1]) == 1
    made: list[int] = []
    on_gpu(gpu, lambda: (made.append(1), gpu.launch(250_000_000)), n=3)
    assert len(made) == 3 + 3, "three to learn, and three to measure"


def test_extra_work_of_the_first_call_is_not_part_of_the_call_time(gpu):
    """The allocator's cache was emptied: the first call may take as long to get its memory as a hundred others."""
    call = changing(gpu, lambda number: 20_000 if number else 200_000_000)
    lasted_ms, calls = loaded(gpu, call)
    assert 25 < lasted_ms < 35 and len(calls) > 200


def test_a_load_in_which_calls_were_late_does_not_hold_the_gpu_for_longer(gpu):
    """A batch of one sample, in time: what was late before it is not put down to it."""
    started = []
    call = lambda: gpu.launch(100_000, 5_000 if started or gpu.seen.count("event") < 20 else 500_000)  # noqa: E731
    named = {"range_name": "r", "annotate": gpu.annotate, "on_start": lambda: started.append(1)}
    samples = sampling.sample(call, device="cuda", rule=exactly(5), **named)
    assert gpu.seen.count("push r") == 5 and not any("held" in note for note in samples.notes)


#: How often several processes make a call of 100 us to load their GPUs for 100 ms: each with its launch and a flush.
LOADING = 100_000_000 // (5_000 + 100_000 + 60_000)


class InStep(Ranks):
    """One of two ranks. ``other`` holds the value of the other rank at each exchange."""

    def __init__(self, other):
        super().__init__(size=2)
        self.other, self.sent = iter(other), list[float]()

    def barrier(self, place):
        pass

    def all_max(self, value):
        self.sent.append(value)
        return max(value, next(self.other, value))


def test_processes_whose_gpus_flush_at_different_speeds_make_the_same_calls(gpu):
    def run(flush_ns, other):
        gpu.flush_ns, gpu.seen = flush_ns, []
        ranks = InStep(other)
        sampling.sample(gpu.call, device="cuda", rule=exactly(3), range_name="r", annotate=gpu.annotate, ranks=ranks)
        return gpu.seen.count("call"), ranks.sent

    alone = {flush_ns: run(flush_ns, [])[1] for flush_ns in (60_000, 90_000)}
    assert run(60_000, alone[90_000])[0] == run(90_000, alone[60_000])[0]


def test_several_processes_make_equally_many_calls_to_load_their_gpus(gpu):
    lasted_ms, calls = loaded(gpu, gpu.call, ranks=InStep([]))
    # Five calls behind a hold, where a process alone makes one.
    assert len(calls) == 4 + LOADING and lasted_ms > 100


def test_a_process_that_does_not_wait_makes_the_calls_of_one_that_does(gpu):
    def calls(waits):
        gpu.seen = []
        named = {"rule": exactly(3), "range_name": "r", "annotate": gpu.annotate, "ranks": InStep([])}
        sampling.sample(lambda: (gpu.call(), waits and gpu.item(is_noticed=False)), device="cuda", **named)
        return gpu.seen[: gpu.seen.index("push r")].count("call") - LOADING

    assert calls(waits=True) == calls(waits=False) == 11


def test_where_one_process_was_late_all_hold_their_gpus_longer(gpu):
    """Two H200: one held for 2 ms and the other for 4 gave 3.1 ms for a call of 1.1 ms."""
    call = kernels(gpu, 20, 1_000)

    def run(other):
        ranks, before = InStep(other), len(gpu.held_ns)
        sampling.sample(call, device="cuda", rule=exactly(1), range_name="r", annotate=gpu.annotate, ranks=ranks)
        return ranks, gpu.held_ns[before:]

    in_time, held_ns = run([])
    other_late, held_longer_ns = run([*in_time.sent[:-1], 1])
    assert in_time.sent[-1] == other_late.sent[-2] == 0, "this one was in time, and says so"
    # The only sample is the first of its batch, for which the GPU is held by a separate rule.
    room = timers.FIRST_HOLD_FACTOR, timers.FIRST_HOLD_EXTRA_NS
    before, after = ((ns - room[1]) / room[0] for ns in (held_ns[-1], held_longer_ns[-1]))
    assert held_longer_ns[:-1] == held_ns and after == pytest.approx(2 * before + 30_000, abs=2)


def test_processes_agree_on_the_launch_profile(gpu):
    """One that sees it wait and one that does not would hold their GPUs for unlike times."""
    call, alone = kernels(gpu, 20, 1_000), InStep([])

    def run(ranks):
        named = {"rule": exactly(1), "range_name": "r", "annotate": gpu.annotate, "ranks": ranks}
        return sampling.sample(call, device="cuda", **named)

    assert run(alone).flags[0] == "host_bound"
    others = [[*alone.sent[:place], 1] for place, sent in enumerate(alone.sent) if sent is False]
    assert [run(InStep(other)).flags[0] for other in others].count("synchronises") == 2, "by torch, and by the hold"


def test_the_load_is_not_part_of_the_budget(gpu):
    rule = StoppingRule(
        min_samples=5, target=-1.0, budget_s=0.05
    )  # narrow enough for nothing: all of the budget is spent
    samples = sampling.sample(gpu.call, device="cuda", rule=rule, range_name="r", annotate=gpu.annotate)
    assert 200 < len(samples.values_ns) < 400


def test_the_launch_of_a_short_call_is_profiled_at_every_visit(gpu):
    first = on_gpu(gpu, kernels(gpu, 20, 1_000, launch_ns=20_000), n=3)
    again = on_gpu(gpu, kernels(gpu, 20, 1_000), n=3, known=first.launch)
    assert first.launch and again.launch and (first.launch.host_ns, again.launch.host_ns) == (400_000, 100_000)


def test_the_launch_profile_of_a_long_call_is_reused(gpu):
    first = on_gpu(gpu, kernels(gpu, 300, 1_000), n=3)
    before, calls = len(gpu.held_ns), []
    again = on_gpu(gpu, lambda: calls.append(kernels(gpu, 300, 1_000)()), n=3, known=first.launch)
    assert again.launch == first.launch and again.values_ns == first.values_ns
    assert first.launch is not None and first.launch.call_ns > 1_000_000
    # Held as long as in the first visit, in every call but the two that calibrate the GPU's clock; longer
    # before the first of each batch, which has no work of an earlier sample before it.
    held, as_before = gpu.held_ns[before:], gpu.held_ns[before - 1]
    first_of_batch = 2 * (as_before + first.launch.gpu_tail_ns) + 150_000
    assert len(held) == len(calls) + 2
    assert set(held[2:]) == {as_before, first_of_batch} and held[-3:] == [first_of_batch, first_of_batch, as_before]


def test_samples_are_the_times_between_the_events_in_nanoseconds(gpu):
    samples = on_gpu(gpu, gpu.call)
    assert samples.clock == "cuda_event"
    assert samples.values_ns == [100_000.0] * 20
    assert samples.flags == []


def test_a_call_of_many_small_kernels_is_queued_whole_before_the_gpu_begins_it(gpu):
    samples = on_gpu(gpu, kernels(gpu, 200, 1_000))
    # Each takes the host 5 us to launch and the GPU 1 us: unheld, the samples would come near 200 x 5 us.
    assert samples.values_ns == [200_000.0] * 20
    assert samples.flags == ["host_bound"]
    assert samples.launch and samples.launch.host_ns == 1_000_000
    assert any("the GPU is held for 1469 us" in note for note in samples.notes)
    assert any("launching a call takes the host 1000000 ns" in note for note in samples.notes)


def test_without_a_kernel_that_spins_repeated_flushes_hold_the_gpu(gpu):
    del gpu.cuda._sleep
    samples = on_gpu(gpu, kernels(gpu, 200, 1_000))
    assert samples.values_ns == [200_000.0] * 20


def held_for_samples(gpu, call, n, ranks=SINGLE_PROCESS):
    """How often the GPU was held after the measurement had started, and the samples."""
    before = -1

    def started():
        nonlocal before
        before = len(gpu.held_ns)

    named = {"range_name": "r", "annotate": gpu.annotate, "on_start": started, "ranks": ranks}
    samples = sampling.sample(call, device="cuda", rule=exactly(n), **named)
    return len(gpu.held_ns) - before, samples


def test_behind_a_sample_that_takes_long_enough_the_gpu_is_not_held(gpu):
    long = kernels(gpu, 1, 3_000_000, launch_ns=300_000)
    held, samples = held_for_samples(gpu, long, 20)
    assert samples.values_ns == [3_000_000.0] * 20
    # A batch begins with an idle GPU, and its second sample while the GPU is held or at work on the first.
    assert 2 <= held <= 4
    assert any("before each sample that finds it idle" in note for note in samples.notes)


def test_the_gpu_is_held_where_a_sample_ends_before_the_next_is_launched(gpu):
    held, samples = held_for_samples(gpu, kernels(gpu, 20, 1_000), 20)
    assert held == 20 and set(samples.values_ns) == {20_000.0}


@pytest.mark.parametrize("gpu_ns", [265_000, 270_000, 275_000, 280_000, 285_000])
def test_the_hold_does_not_jump_where_a_call_takes_about_as_long_as_its_hold(gpu, gpu_ns):
    count, samples = held_for_samples(gpu, kernels(gpu, 1, gpu_ns, launch_ns=200_000), 200)
    assert set(samples.values_ns) == {gpu_ns}
    long = [ns for ns in gpu.held_ns[-count:] if ns > 15_000]
    assert len(long) <= 10, "the first of each batch, and the count of the clock"


def test_several_processes_hold_their_gpus_equally_before_every_sample(gpu):
    held, _ = held_for_samples(gpu, kernels(gpu, 1, 3_000_000, launch_ns=300_000), 20, InStep([]))
    assert held == 20


def test_for_a_call_that_is_issued_during_the_flush_the_gpu_is_held_only_before_the_first_of_a_batch(gpu):
    samples = on_gpu(gpu, gpu.call)
    assert samples.launch and samples.launch.host_ns == 5_000
    assert not any("held" in note for note in samples.notes)
    assert held_for_samples(gpu, gpu.call, 40)[0] == 2, "in two batches"


def test_the_first_sample_of_a_batch_may_be_issued_more_slowly_than_the_others(gpu):
    """After all that a host does between batches it was seen to take 0.15 ms longer, and be in time for the second."""

    def call():
        since = gpu.seen[len(gpu.seen) - gpu.seen[::-1].index("synchronize") :]
        gpu.launch(50_000, 160_000 if since.count("push r") == 1 else 60_000)
        gpu.launch(50_000)

    assert on_gpu(gpu, call).values_ns == [100_000.0] * 20
    assert gpu.seen.count("push r") == 20, "none was taken again"


@pytest.mark.parametrize("is_noticed", [True, False])
@pytest.mark.parametrize("tail", [0, 1])
def test_a_call_that_reads_a_result_is_flagged_and_the_gpu_is_not_held(gpu, is_noticed, tail):
    def call():
        kernels(gpu, 20, 1_000)()
        gpu.item(is_noticed)
        kernels(gpu, tail, 1_000)()

    samples = on_gpu(gpu, call)
    assert samples.flags == ["synchronises"]
    assert samples.host_bound is None
    assert any("the call synchronises" in note for note in samples.notes)
    assert not any("held" in note for note in samples.notes)


def test_a_long_call_that_torch_reports_as_synchronising_is_not_host_bound(gpu):
    def call():
        gpu.launch(60 * 10**9)
        gpu.item()

    calls = len(gpu.seen)
    samples = sampling.sample(call, device="cuda", rule=StoppingRule(), range_name="r", annotate=gpu.annotate)
    assert samples.flags == ["synchronises", "too_few_samples"]
    assert len(samples.values_ns) == 1
    assert calls == 0 and gpu.now_ns < 3 * 60 * 10**9, "once to learn, once to measure"


def test_a_call_with_more_launches_than_the_queue_holds_says_so(gpu):
    samples = on_gpu(gpu, kernels(gpu, 3000, 1_000))
    assert samples.flags == ["host_bound"]
    assert any("more than the queue holds (about 1024)" in note for note in samples.notes)
    # The part that was queued ran without gaps, the rest at the pace of the host.
    assert all(3_000_000 < value < 15_000_000 for value in samples.values_ns)


def test_the_gpu_is_idle_after_a_call_of_tiny_kernels_that_fills_the_queue_and_synchronises_nowhere(gpu):
    """Each kernel is done sooner than the next is issued, so the last one is when the host returns, held or not."""

    def call():
        kernels(gpu, 3000, 1_000, launch_ns=2_000)()
        gpu.think(5_000)

    samples = on_gpu(gpu, call)
    assert samples.flags == ["host_bound"] and samples.launch and samples.launch.starves_gpu
    assert any("more than the queue holds (about 1024)" in note for note in samples.notes)
    assert samples.notes[-1].startswith("launching a call takes the host 6005000 ns, running it takes the GPU")
    assert samples.notes[-1].endswith("which includes waits for launches")


@pytest.mark.parametrize("is_noticed", [True, False])
@pytest.mark.parametrize("after", [500, 3000])
def test_a_long_call_that_waits_early_synchronises_though_it_could_fill_the_queue(gpu, is_noticed, after):
    def call():
        kernels(gpu, 20, 1_000)()
        gpu.item(is_noticed)
        kernels(gpu, after, 1_000)()
        gpu.think(5_000)

    samples = on_gpu(gpu, call)
    assert samples.flags == ["synchronises"] and samples.launch and samples.launch.host_ns > 2_500_000
    assert not any("held" in note for note in samples.notes)


def test_a_hidden_wait_after_a_full_queue_is_reported_as_either(gpu):
    def call():
        kernels(gpu, 3000, 1_000, launch_ns=2_000)()
        gpu.item(is_noticed=False)

    samples = on_gpu(gpu, call)
    assert samples.flags == ["host_bound"]
    assert any("or synchronises in a way that torch does not report" in note for note in samples.notes)


@pytest.mark.parametrize("begin", range(0, 40, 4))
@pytest.mark.parametrize("slower_ns", [800_000, 1_500_000, 20_000_000])
def test_a_host_that_is_slower_for_some_calls_in_a_row_does_not_pass_for_a_wait(gpu, begin, slower_ns):
    """An autocast forward pass on an H200 took its host 21 ms, then 38, then 21 again, some ten calls each."""
    calls = iter(range(begin, 10_000))

    def call():
        kernels(gpu, 3000, 1_000, launch_ns=2_000)()
        gpu.think(5_000 + slower_ns * (next(calls) // 9 % 2))

    assert on_gpu(gpu, call).flags[0] == "host_bound"


@pytest.mark.parametrize("seed", range(20))
def test_a_variation_of_the_host_time_is_not_taken_for_a_wait(gpu, seed):
    varies = random.Random(seed)

    def call():
        kernels(gpu, 3000, 1_000, launch_ns=2_000)()
        gpu.think(5_000 + varies.randrange(10_000_000))

    assert on_gpu(gpu, call).flags[0] == "host_bound"


def test_a_long_call_whose_launches_come_before_the_gpu_needs_them_is_not_host_bound(gpu):
    samples = on_gpu(gpu, kernels(gpu, 500, 40_000))
    assert samples.values_ns == [20_000_000.0] * 20
    assert samples.flags == []


def test_samples_that_were_not_queued_in_time_are_taken_again_with_a_longer_hold(gpu):
    launches = iter([1_000_000] * 7)  # while learning; then the host is three times slower

    samples = on_gpu(gpu, lambda: gpu.launch(100_000, next(launches, 3_000_000)))
    assert samples.values_ns == [100_000.0] * 20
    assert gpu.seen.count("push r") > 20


def test_a_few_late_samples_are_kept_and_counted(gpu):
    def call():
        gpu.launch(1_000, 1_000_000 if gpu.seen.count("push r") == 6 else 5_000)
        gpu.launch(1_000, 5_000)

    samples = on_gpu(gpu, call, n=30)
    assert sorted(samples.values_ns)[-2] == 2_000.0 < max(samples.values_ns)
    assert any(note == "1 sample started before the whole call was queued" for note in samples.notes)


def test_peak_memory_is_that_of_the_samples_without_warm_up_and_flush_buffer(gpu):
    inputs, extra = 1000 * MIB, iter([300 * MIB, 200 * MIB])
    gpu.allocate(inputs)
    gpu.allocate(7000 * MIB)  # what making the inputs needed, free again before the first call
    gpu.allocate(-7000 * MIB)

    def call():
        size = next(extra) if "reset" in gpu.seen else 5000 * MIB
        gpu.launch(100_000)
        gpu.allocate(size)
        gpu.allocate(-size)

    samples = on_gpu(gpu, call, n=2)
    assert samples.peak_allocated == inputs + 300 * MIB
    # The allocator still holds the memory of the previous calls, as in a real loop, but none from before them.
    assert samples.peak_reserved == inputs + 5000 * MIB
    assert gpu.allocated == gpu.reserved == inputs


@pytest.mark.parametrize(("l2_bytes", "flush_bytes"), [(50 * MIB, 256 * MIB), (0, 256 * MIB), (200 * MIB, 400 * MIB)])
def test_the_flush_is_at_least_twice_the_l2(gpu, l2_bytes, flush_bytes):
    gpu.cuda.get_device_properties = lambda _: SimpleNamespace(L2_cache_size=l2_bytes)
    on_gpu(gpu, gpu.call)
    assert gpu.flush_bytes == flush_bytes


@pytest.mark.parametrize("flush", [True, False])
def test_without_a_flush_a_profiler_sees_no_buffer(gpu, flush):
    """The history of memory would hold it."""
    sampling.apply_load(gpu.call, device="cuda", flush=flush)
    sampling.run_loop(gpu.call, 2, device="cuda", range_name="r", annotate=gpu.annotate, flush=flush)
    assert gpu.peak_allocated == 256 * MIB * flush and gpu.seen.count("push r") == 2


@pytest.mark.parametrize(("ns", "lasts_ns"), [(1_000_000, 100e6), (20_000, 30e6)])
def test_under_a_profiler_the_gpu_is_loaded_as_before_samples(gpu, ns, lasts_ns):
    began = gpu.now_ns
    sampling.apply_load(kernels(gpu, 1, ns), device="cuda")
    assert 0.9 * lasts_ns < gpu.now_ns - began < 1.1 * lasts_ns
    assert gpu.held_ns == [] and not any(word.startswith("push") for word in gpu.seen)


def test_a_cpu_is_not_loaded():
    sampling.apply_load(lambda: pytest.fail("called"), device="cpu")


def test_under_a_profiler_no_event_is_recorded_and_nothing_is_held(gpu):
    wall_ns, _ = sampling.run_loop(gpu.call, 4, device="cuda", range_name="r", annotate=gpu.annotate)
    probe, one = ["event"] * 3, ["flush", "push r", "call", "pop"]
    assert gpu.seen == [*probe, "synchronize", *one * 4, "synchronize", *probe, "synchronize"]
    assert wall_ns == pytest.approx(160_000, rel=0.02)
    assert gpu.held_ns == []


def test_the_flush_buffer_is_no_part_of_a_block_that_the_call_needs_whole(gpu):
    """A call of two tensors of 8 GiB ran out of 24 GiB on an H200: the buffer lay in a free block of 8 GiB."""
    pools: list[tuple[object, int]] = []

    @contextmanager
    def use_mem_pool(pool):
        before = gpu.allocated
        yield
        pools.append((pool, gpu.allocated - before))

    gpu.cuda.MemPool, gpu.cuda.use_mem_pool = object, use_mem_pool
    on_gpu(gpu, gpu.call)
    sampling.run_loop(gpu.call, 4, device="cuda", range_name="r", annotate=gpu.annotate)
    assert [size for _, size in pools] == [gpu.flush_bytes] * 2
    assert pools[0][0] is not pools[1][0] and gpu.allocated == 0


def test_an_error_of_the_gpu_is_not_hidden_by_the_clean_up(gpu):
    def fail():
        def broken():
            raise RuntimeError("CUDA error: and the context is lost")

        gpu.cuda.empty_cache = broken
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    with pytest.raises(RuntimeError, match="illegal memory access"):
        on_gpu(gpu, fail)
    assert gpu.allocated == 0
    assert gpu.sync_mode == 0


# --- CUDA graphs -----------------------------------------------------------------------------------------------------


def test_a_graph_is_captured_after_warm_up_calls_and_replayed(gpu):
    replay = launch_profile.capture_graph(gpu.call)
    assert gpu.seen.count("call") == 4
    assert on_gpu(gpu, replay).values_ns == [100_000.0] * 20
    assert gpu.seen.count("call") == 4


def test_a_call_that_synchronises_is_refused_before_a_capture_is_tried(gpu):
    gpu.cuda.graph = None

    def call():
        gpu.launch(1_000)
        gpu.item()

    with pytest.raises(launch_profile.NotCapturable, match=r"synchronises \(1 operations.*Use mode: eager"):
        launch_profile.capture_graph(call)


def fails_when_captured(error):
    calls = iter(range(10))

    def call():
        if next(calls) == 3:
            raise error

    return call


def test_an_aborted_capture_names_the_first_error(gpu):
    @contextmanager
    def capture(graph, stream):
        yield
        raise RuntimeError("CUDA error: operation failed due to a previous error during capture")

    gpu.cuda.graph = capture
    call = fails_when_captured(RuntimeError("CUDA error: operation not permitted when stream is capturing"))
    with pytest.raises(launch_profile.CaptureAborted, match="not permitted when stream is capturing"):
        launch_profile.capture_graph(call)
    with pytest.raises(launch_profile.CaptureAborted, match="previous error during capture"):
        launch_profile.capture_graph(gpu.call)


def test_a_call_that_fails_by_itself_leaves_the_capture_well_ended(gpu):
    call = fails_when_captured(RuntimeError("AdamW's capturable is False"))
    with pytest.raises(launch_profile.NotCapturable, match="capturable is False") as raised:
        launch_profile.capture_graph(call)
    assert not isinstance(raised.value, launch_profile.CaptureAborted)


def test_the_inputs_of_a_graph_live_as_long_as_the_graph(gpu):
    class Inputs:
        def __call__(self):
            gpu.call()

    inputs = Inputs()
    alive, replay = weakref.ref(inputs), launch_profile.capture_graph(inputs)
    del inputs
    replay()
    assert alive() is not None


def test_without_a_gpu_there_is_no_graph(gpu):
    gpu.cuda.is_available = lambda: False
    with pytest.raises(launch_profile.NotCapturable, match="need a GPU"):
        launch_profile.capture_graph(gpu.call)
