"""Cases timed in rounds: their order, the length of a round, and the state that outlives a process."""

import json
import time
from contextlib import nullcontext
from dataclasses import replace

import pytest

from profpipe.measure import machine, rounds
from profpipe.measure.conditions import GpuConditions, Reading
from profpipe.measure.launch_profile import LaunchProfile

CASES = [{"id": name, "params": {}} for name in "abcd"]


def plan(**timing):
    spec = {"warmup": timing.pop("warmup", 2), "repeats": timing.pop("repeats", 6), "options": {"timing": timing}}
    return rounds.TimingPlan.from_spec(spec)


def order(a_plan):
    return [(number, case["id"]) for number, case in a_plan.visits(CASES)]


def test_every_round_visits_each_case_once_in_a_new_order():
    visited = order(plan(order="interleaved", rounds=3, seed=1))
    by_round = [[case for number, case in visited if number == wanted] for wanted in (1, 2, 3)]
    assert all(sorted(cases) == list("abcd") for cases in by_round)
    assert len({tuple(cases) for cases in by_round}) > 1


def test_the_order_follows_from_the_seed_and_is_that_of_the_pipeline_without_rounds():
    first, again, other = (order(plan(order="interleaved", rounds=3, seed=seed)) for seed in (1, 1, 2))
    assert first == again != other
    assert order(plan(order="sequential", rounds=3)) == [(1, name) for name in "abcd"]
    assert plan(order="interleaved", rounds=3, repeats=2).rounds == 2, "no more rounds than samples"


def timed(a_plan, written):
    return rounds.CaseTiming(
        a_plan, "cpu", "profpipe:a", lambda event, **fields: written.append({"event": event, **fields})
    )


def test_the_visits_of_a_case_share_its_samples_and_end_with_the_last_round():
    written, calls = [], []
    case = timed(plan(order="interleaved", rounds=3, target=0.9), written)
    assert [case.visit(lambda: calls.append(1)) for _ in range(3)] == [False, False, True]
    samples = [event for event in written if event["event"] == "samples"]
    assert [event["round"] for event in samples] == [1, 2, 3]
    assert sum(len(event["values"]) for event in samples) == len(case.samples_ns["time"]) >= 6


def test_the_facts_name_the_loop_that_profilers_see():
    written = []
    case = timed(plan(order="sequential", target=0.9), written)
    assert case.visit(lambda: None)
    case.finish(lambda: None)
    metrics = {event["metric"]: event for event in written if event["event"] == "metric"}
    assert metrics["loop_wall"]["value"] > 0 and metrics["loop_wall"]["unit"] == "ns"


def test_the_loop_that_profilers_see_begins_warm_and_is_that_of_the_callable_that_was_timed(monkeypatch):
    # A mock: graphs need a GPU. It shows only which function is called how.
    calls = []
    monkeypatch.setattr(rounds.launch_profile, "capture_graph", lambda fn: lambda: calls.append("replay"))
    monkeypatch.setattr(rounds.sampling, "run_loop", lambda fn, n, **_: calls.append("loop") or (1.0, ()))
    case = timed(plan(order="sequential", mode="cuda_graph", target=0.9), [])
    case.visit(lambda: calls.append("eager"))
    calls.clear()
    case.finish(lambda: calls.append("eager"))
    assert calls == ["replay", "loop"]


@pytest.mark.parametrize(("loop_ns", "issue", "flags"), [(1000.0, 300.0, ["host_bound"]), (205.0, 205.0, [])])
def test_the_launch_time_is_the_shortest_seen_and_at_most_the_loop_time(monkeypatch, loop_ns, issue, flags):
    # A mock: a CPU has no launches. It shows only which of the host's times counts.
    seen, written = iter([900.0, 300.0, 700.0]), []

    def sample(fn, **_):
        return rounds.sampling.Samples(
            [200.0] * 6, "cuda_event", rounds.sampling.StoppingRule(min_samples=6), launch=LaunchProfile(next(seen))
        )

    monkeypatch.setattr(rounds.sampling, "sample", sample)
    monkeypatch.setattr(rounds.sampling, "run_loop", lambda fn, n, **_: (loop_ns, ()))
    case = timed(plan(order="interleaved", rounds=3), written)
    assert [case.visit(lambda: None) for _ in range(3)] == [False, False, True]
    assert case.finish(lambda: None) == flags
    assert [event["value"] for event in written if event.get("metric") == "issue"] == [issue]


def test_a_second_process_runs_the_remaining_rounds_of_the_first(tmp_path):
    log = tmp_path / "job.jsonl"
    assert rounds.load_earlier_rounds(log, {"a"}) == {}
    events = [
        {"event": "samples", "case": "a", "metric": "time", "round": 1, "unit": "ns", "values": [1.0, 2.0]},
        {"event": "samples", "case": "b", "metric": "time", "round": 1, "unit": "ns", "values": [9.0]},
        {"event": "samples", "case": "a", "metric": "time", "round": 2, "unit": "ns", "values": [3.0]},
    ]
    log.write_text("".join(json.dumps(event) + "\n" for event in events) + '{"event": "sam')
    earlier = rounds.load_earlier_rounds(log, {"a"})
    assert earlier == {"a": {"time": {1: ([1.0, 2.0], GpuConditions()), 2: ([3.0], GpuConditions())}}}
    written = []
    case = timed(plan(order="interleaved", rounds=3, target=0.9), written)
    case.restore(earlier["a"])
    assert case.rounds == 2 and [event["values"] for event in written] == [[1.0, 2.0], [3.0]]
    assert case.visit(lambda: None)


def test_each_visit_gets_the_results_of_earlier_visits(monkeypatch):
    """A mock of sampling: it notes by which rule, and what of the call is known already."""
    requests, issue = [], LaunchProfile(5_000.0)

    def sample(fn, **given):
        requests.append((given["rule"].min_in_round, given["prior"].launch))
        return rounds.sampling.Samples([1.0] * 40, "cuda_event", given["rule"], launch=issue)

    monkeypatch.setattr(rounds.sampling, "sample", sample)
    case = timed(plan(order="interleaved", rounds=3), [])
    for _ in range(3):
        case.visit(lambda: None)
    assert requests == [(1, None), (40, issue), (40, issue)]


@pytest.mark.parametrize(
    ("fully_loaded", "lowest_mhz", "light"),
    [
        ((True, False, True), (1979, 1800, 1981), (False, True, False)),
        ((True, False, False), (1979, 1979, 1979), (False, True, True)),
        ((False, True, False), (1979, 1979, 1979), (False, False, True)),
        ((False, False, False), (1979, 1979, 1979), (False, False, False)),
    ],
)
def test_a_case_keeps_the_clock_until_a_visit_lowers_it(monkeypatch, fully_loaded, lowest_mhz, light):
    """A mock of the GPU's clocks and of how long it was loaded."""
    requests, visits = [], iter(zip(fully_loaded, lowest_mhz, strict=True))

    def sample(fn, **given):
        requests.append(given["prior"].keeps_clock)
        loaded, lowest = next(visits)
        known = {"clocks_hz": (1980e6, lowest * 1e6), "fully_loaded": loaded}
        return rounds.sampling.Samples([1.0] * 40, "cuda_event", given["rule"], **known)

    watched = FakeMonitor(GpuConditions((Reading(highest_hz=1980e6),)))
    monkeypatch.setattr(rounds.sampling, "sample", sample)
    monkeypatch.setattr(rounds.conditions, "monitor_device", lambda device: nullcontext(watched))
    case = timed(plan(order="interleaved", rounds=3), [])
    for _ in range(3):
        case.visit(lambda: None)
    assert tuple(requests) == light


def test_a_visit_expects_the_highest_clock_that_any_visit_before_it_had(monkeypatch):
    """A mock of the GPU's clocks: the counts of seven visits in turn, and two of a process before."""
    requests, counts = [], iter([(1850e6,), (1980e6, 1970e6), (), (1900e6,), (2500e6,), (1990e6,), (1860e6,)])

    def sample(fn, **given):
        requests.append(given["prior"].clock_hz)
        return rounds.sampling.Samples([1.0] * 40, "cuda_event", given["rule"], clocks_hz=next(counts))

    watched = FakeMonitor(GpuConditions((Reading(sm_clock_hz=2000e6, highest_hz=1980e6),)))
    monkeypatch.setattr(rounds.sampling, "sample", sample)
    monkeypatch.setattr(rounds.conditions, "monitor_device", lambda device: nullcontext(watched))
    light, heavy = (timed(plan(order="interleaved", rounds=4), []) for _ in range(2))
    heavy.visit_clocks_hz = light.visit_clocks_hz
    for case in (heavy, light, heavy, light, heavy, light, heavy):
        case.visit(lambda: None)
    assert requests == [None, 1850e6, 1970e6, 1970e6, 1970e6, 1970e6, 1980e6], (
        "the lower of two, and none above its own"
    )
    another = timed(plan(order="interleaved", rounds=4), [])
    another.restore({"time": {1: ([1.0], GpuConditions(counted_hz=(1900e6,))), 2: ([1.0], GpuConditions())}})
    assert another.visit_clocks_hz == [1900e6]


def test_the_last_round_is_made_anew_where_a_case_had_all_and_did_not_end():
    written = []
    case = timed(plan(order="interleaved", rounds=2, target=0.9), written)
    case.restore({"time": {1: ([1.0, 2.0], GpuConditions()), 2: ([3.0, 4.0], GpuConditions())}})
    assert case.rounds == 1 and case.samples_ns == {"time": [1.0, 2.0]}
    assert case.visit(lambda: None) and case.rounds == 2
    alone = timed(plan(order="sequential", target=0.9), [])
    alone.restore({"time": {1: ([1.0, 2.0], GpuConditions())}})
    assert alone.rounds == 0 and alone.visit(lambda: None)


def test_the_first_visit_of_a_process_warms_up_in_full_though_it_is_not_the_first_round(monkeypatch):
    """A mock: sampling on a GPU. What counts is how often each visit calls what it will time."""
    calls, warmed = [], []

    def sample(fn, **_):
        warmed.append(len(calls))
        calls.clear()
        return rounds.sampling.Samples([1.0], "cuda_event", rounds.sampling.StoppingRule())

    monkeypatch.setattr(rounds.sampling, "sample", sample)
    monkeypatch.setattr(rounds.sampling, "warm_up", lambda fn, n, device: [fn() for _ in range(n)])
    monkeypatch.setattr(
        rounds.conditions, "monitor_device", lambda device: nullcontext(rounds.conditions.GpuMonitor(None))
    )
    case = timed(plan(order="interleaved", rounds=3, warmup=8), [])
    case.device = "cuda"
    case.restore({"time": {1: ([1.0, 2.0], GpuConditions())}})
    case.visit(lambda: calls.append(1))
    case.visit(lambda: calls.append(1))
    assert warmed == [8, 3]


def test_restored_rounds_keep_their_conditions(monkeypatch, tmp_path):
    # A mock of the GPU's readings: there is no GPU here. The record between the two processes is real.
    hot = Reading(1.5e9, 700.0, 81.0, reasons=0x4, highest_hz=1.98e9)
    hot_gpu = GpuConditions((hot,) * 3, other_processes=1, counted_hz=(1.6e9, 1.5e9))
    monkeypatch.setattr(rounds.conditions, "monitor_device", lambda device: nullcontext(FakeMonitor(hot_gpu)))
    written = []
    timed(plan(order="interleaved", rounds=2, target=0.9), written).visit(lambda: None)
    log = tmp_path / "job.jsonl"
    log.write_text("".join(json.dumps({"case": "a", **event}) + "\n" for event in written))
    monkeypatch.setattr(rounds.conditions, "monitor_device", lambda device: nullcontext(FakeMonitor(GpuConditions())))
    written.clear()
    case = timed(plan(order="interleaved", rounds=2, target=0.9), written)
    case.restore(rounds.load_earlier_rounds(log, {"a"})["a"])
    assert case.visit(lambda: None)
    assert {"throttled", "other_process"} <= set(case.finish(lambda: None))
    temperatures = [event["value"] for event in written if event.get("metric") == "temperature"]
    assert temperatures == [81.0]


class FakeMonitor:
    def __init__(self, seen):
        self.conditions = lambda counted_hz=(): replace(seen, counted_hz=counted_hz)
        self.is_slowed = False
        self.clear = lambda: None


def test_mode_both_keeps_the_graphs_times_under_a_name_of_their_own(monkeypatch):
    # A mock: graphs need a GPU. It shows only which callable is sampled as what.
    monkeypatch.setattr(rounds.launch_profile, "capture_graph", lambda fn: lambda: None)
    monkeypatch.setattr(
        rounds.conditions, "monitor_device", lambda device: nullcontext(rounds.conditions.GpuMonitor(None))
    )
    written = []
    case = timed(plan(order="sequential", mode="both", target=0.9), written)
    case.visit(lambda: None)
    assert [event["metric"] for event in written if event["event"] == "samples"] == ["time", "time_cuda_graph"]


def test_a_call_that_has_no_graph_keeps_its_eager_times_in_mode_both_and_is_marked(monkeypatch):
    """No mock is needed: without a GPU no call can be captured."""
    if machine.device() == "cuda":
        pytest.skip("here the call would be captured")
    written = []
    case = timed(plan(order="interleaved", rounds=2, mode="both", target=0.9), written)
    assert [case.visit(lambda: None) for _ in range(2)] == [False, True]
    assert "not_captured" in case.finish(lambda: None)
    assert [event["metric"] for event in written if event["event"] == "samples"] == ["time", "time"]
    assert sum("CUDA graph" in event.get("text", "") for event in written) == 1


def test_after_a_failed_graph_capture_the_process_measures_no_further_case(monkeypatch):
    """A mock of the driver."""

    def give_up(fn):
        raise rounds.launch_profile.CaptureAborted("the driver gave the capture up")

    monkeypatch.setattr(rounds.launch_profile, "capture_graph", give_up)
    with pytest.raises(rounds.launch_profile.CaptureAborted):
        timed(plan(order="sequential", mode="both", target=0.9), []).visit(lambda: None)


def test_of_a_call_that_alone_takes_the_whole_budget_no_loop_is_timed():
    written = []
    case = timed(plan(order="sequential", budget_s=0.001, repeats=1), written)
    assert case.visit(lambda: time.sleep(0.01))
    case.finish(lambda: pytest.fail("was called again"))
    assert "loop_wall" not in {event.get("metric") for event in written}


@pytest.mark.parametrize("mode", ["cuda_graph"])
def test_a_graph_that_cannot_be_captured_fails_its_case_with_the_reason(mode):
    with pytest.raises(Exception, match=r"(?i)cuda|gpu|captur"):
        timed(plan(order="sequential", mode=mode), []).visit(lambda: None)


@pytest.mark.parametrize(("call_ns", "iterations"), [(1e5, 30), (1e6, 30), (2e6, 15), (1e7, 10), (5e8, 4), (3e9, None)])
def test_the_loop_without_a_profiler_is_as_long_as_its_time_needs(monkeypatch, call_ns, iterations):
    """A mock of the loop: how often it calls. By default two seconds are spent on a case."""
    made = []
    monkeypatch.setattr(rounds.sampling, "run_loop", lambda fn, n, **_: made.append(n) or (7.0, ()))
    case = timed(plan(repeats=30), [])
    case.samples_ns["time"] = [call_ns]
    assert case.loop_wall_ns(lambda: None) == (None if iterations is None else 7.0)
    assert made == ([] if iterations is None else [iterations])
