"""Cases timed in rounds: their order, what a round takes, and what outlives a process."""

import json
import time
from contextlib import nullcontext

import pytest

from profpipe.measuring import process, sweep
from profpipe.measuring.conditions import Conditions, Reading
from profpipe.measuring.sweep import Round
from profpipe.measuring.watches import Issue

CASES = [{"id": name, "params": {}} for name in "abcd"]


def plan(**timing):
    spec = {"warmup": timing.pop("warmup", 2), "repeats": timing.pop("repeats", 6), "options": {"timing": timing}}
    return sweep.Plan.of(spec)


def order(a_plan):
    return [(number, case["id"]) for number, case in a_plan.visits(CASES)]


def test_every_round_visits_each_case_once_in_an_order_of_its_own():
    visited = order(plan(order="interleaved", rounds=3, seed=1))
    by_round = [[case for number, case in visited if number == wanted] for wanted in (1, 2, 3)]
    assert all(sorted(cases) == list("abcd") for cases in by_round)
    assert len({tuple(cases) for cases in by_round}) > 1


def test_the_order_follows_from_the_seed():
    assert order(plan(order="interleaved", rounds=3, seed=1)) == order(plan(order="interleaved", rounds=3, seed=1))
    assert order(plan(order="interleaved", rounds=3, seed=1)) != order(plan(order="interleaved", rounds=3, seed=2))


def test_sequential_order_is_one_round_in_the_order_of_the_pipeline():
    assert order(plan(order="sequential", rounds=3)) == [(1, name) for name in "abcd"]


def test_there_are_no_more_rounds_than_samples():
    assert plan(order="interleaved", rounds=3, repeats=2).rounds == 2


def timed(a_plan, written):
    return sweep.Case(a_plan, "cpu", "profpipe:a", lambda event, **fields: written.append({"event": event, **fields}))


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
    case.facts(lambda: None)
    metrics = {event["metric"]: event for event in written if event["event"] == "metric"}
    assert metrics["loop_wall"]["value"] > 0 and metrics["loop_wall"]["unit"] == "ns"


def test_the_loop_that_profilers_see_begins_warm_and_is_that_of_the_callable_that_was_timed(monkeypatch):
    # A mock: graphs need a GPU. It shows only what is called as what.
    calls = []
    monkeypatch.setattr(sweep.timing, "graphed", lambda fn: lambda: calls.append("replay"))
    monkeypatch.setattr(sweep.timing, "loop", lambda fn, n, **_: calls.append("loop") or sweep.timing.Loop(1.0))
    case = timed(plan(order="sequential", mode="cuda_graph", target=0.9), [])
    case.visit(lambda: calls.append("eager"))
    calls.clear()
    case.facts(lambda: calls.append("eager"))
    assert calls == ["replay", "loop"]


@pytest.mark.parametrize(("loop_ns", "issue", "flags"), [(1000.0, 300.0, ["host_bound"]), (205.0, 205.0, [])])
def test_the_host_is_taken_at_its_best_and_held_to_what_the_loop_takes(monkeypatch, loop_ns, issue, flags):
    # A mock: a CPU has no launches. It shows only which of the host's times counts.
    seen, written = iter([900.0, 300.0, 700.0]), []

    def sample(fn, **_):
        return sweep.timing.Samples([200.0] * 6, "cuda_event", sweep.timing.Rule(least=6), issue=Issue(next(seen)))

    monkeypatch.setattr(sweep.timing, "sample", sample)
    monkeypatch.setattr(sweep.timing, "loop", lambda fn, n, **_: sweep.timing.Loop(loop_ns))
    case = timed(plan(order="interleaved", rounds=3), written)
    assert [case.visit(lambda: None) for _ in range(3)] == [False, False, True]
    assert case.facts(lambda: None) == flags
    assert [event["value"] for event in written if event.get("metric") == "issue"] == [issue]


def test_a_process_goes_on_with_the_rounds_that_one_before_it_left(tmp_path):
    log = tmp_path / "events.jsonl"
    events = [
        {"event": "samples", "case": "a", "metric": "time", "round": 1, "values": [1.0, 2.0]},
        {"event": "samples", "case": "b", "metric": "time", "round": 1, "values": [9.0]},
        {"event": "samples", "case": "a", "metric": "time", "round": 2, "values": [3.0]},
    ]
    log.write_text("".join(json.dumps(event) + "\n" for event in events) + '{"event": "sam')
    earlier = sweep.inherited(log, {"a"})
    assert earlier == {"a": {"time": {1: Round([1.0, 2.0]), 2: Round([3.0])}}}
    written = []
    case = timed(plan(order="interleaved", rounds=3, target=0.9), written)
    case.inherit(earlier["a"])
    assert case.rounds == 2 and [event["values"] for event in written] == [[1.0, 2.0], [3.0]]
    assert case.visit(lambda: None)


def test_each_visit_is_told_what_the_earlier_ones_took_and_learned(monkeypatch):
    """A mock of sampling: it notes by which rule, and what of the call is known already."""
    asked, issue = [], Issue(5_000.0)

    def sample(fn, **given):
        asked.append((given["rule"].own, given["known"].issue))
        return sweep.timing.Samples([1.0] * 40, "cuda_event", given["rule"], issue=issue)

    monkeypatch.setattr(sweep.timing, "sample", sample)
    case = timed(plan(order="interleaved", rounds=3), [])
    for _ in range(3):
        case.visit(lambda: None)
    assert asked == [(1, None), (40, issue), (40, issue)]


@pytest.mark.parametrize(
    ("fully_loaded", "lowest_mhz", "light"),
    [
        ((True, False, True), (1979, 1800, 1981), (False, True, False)),
        ((True, False, False), (1979, 1979, 1979), (False, True, True)),
        ((False, True, False), (1979, 1979, 1979), (False, False, True)),
        ((False, False, False), (1979, 1979, 1979), (False, False, False)),
    ],
)
def test_a_case_that_kept_the_highest_clock_under_full_load_is_light_until_it_no_longer_does(
    monkeypatch, fully_loaded, lowest_mhz, light
):
    """A mock of the GPU's clocks and of how long it was loaded."""
    asked, visits = [], iter(zip(fully_loaded, lowest_mhz, strict=True))

    def sample(fn, **given):
        asked.append(given["known"].light)
        loaded, lowest = next(visits)
        known = {"clocks_hz": (1980e6, lowest * 1e6), "fully_loaded": loaded}
        return sweep.timing.Samples([1.0] * 40, "cuda_event", given["rule"], **known)

    watched = FakeWatched(Conditions((Reading(highest_hz=1980e6),)))
    monkeypatch.setattr(sweep.timing, "sample", sample)
    monkeypatch.setattr(sweep.conditions, "watching_on", lambda device: nullcontext(watched))
    case = timed(plan(order="interleaved", rounds=3), [])
    for _ in range(3):
        case.visit(lambda: None)
    assert tuple(asked) == light


def test_a_visit_expects_the_highest_clock_that_any_visit_before_it_had(monkeypatch):
    """A mock of the GPU's clocks: the counts of seven visits in turn, and two of a process before."""
    asked, counts = [], iter([(1850e6,), (1980e6, 1970e6), (), (1900e6,), (2500e6,), (1990e6,), (1860e6,)])

    def sample(fn, **given):
        asked.append(given["known"].clock_hz)
        return sweep.timing.Samples([1.0] * 40, "cuda_event", given["rule"], clocks_hz=next(counts))

    watched = FakeWatched(Conditions((Reading(sm_clock_hz=2000e6, highest_hz=1980e6),)))
    monkeypatch.setattr(sweep.timing, "sample", sample)
    monkeypatch.setattr(sweep.conditions, "watching_on", lambda device: nullcontext(watched))
    light, heavy = (timed(plan(order="interleaved", rounds=4), []) for _ in range(2))
    heavy.visit_clocks_hz = light.visit_clocks_hz
    for case in (heavy, light, heavy, light, heavy, light, heavy):
        case.visit(lambda: None)
    assert asked == [None, 1850e6, 1970e6, 1970e6, 1970e6, 1970e6, 1980e6], "of two the lower, and none above its own"
    another = timed(plan(order="interleaved", rounds=4), [])
    another.inherit({"time": {1: Round([1.0], Conditions(counted_hz=(1900e6,))), 2: Round([1.0])}})
    assert another.visit_clocks_hz == [1900e6]


def test_the_last_round_is_made_anew_where_a_case_had_all_and_did_not_end():
    written = []
    case = timed(plan(order="interleaved", rounds=2, target=0.9), written)
    case.inherit({"time": {1: Round([1.0, 2.0]), 2: Round([3.0, 4.0])}})
    assert case.rounds == 1 and case.samples_ns == {"time": [1.0, 2.0]}
    assert case.visit(lambda: None) and case.rounds == 2
    alone = timed(plan(order="sequential", target=0.9), [])
    alone.inherit({"time": {1: Round([1.0, 2.0])}})
    assert alone.rounds == 0 and alone.visit(lambda: None)


def test_the_first_visit_of_a_process_warms_up_in_full_though_it_is_not_the_first_round(monkeypatch):
    """A mock: sampling on a GPU. What counts is how often each visit calls what it will time."""
    calls, warmed = [], []

    def sample(fn, **_):
        warmed.append(len(calls))
        calls.clear()
        return sweep.timing.Samples([1.0], "cuda_event", sweep.timing.Rule())

    monkeypatch.setattr(sweep.timing, "sample", sample)
    monkeypatch.setattr(sweep.timing, "warm_up", lambda fn, n, device: [fn() for _ in range(n)])
    monkeypatch.setattr(sweep.conditions, "watching_on", lambda device: nullcontext(sweep.conditions.Watched(None)))
    case = timed(plan(order="interleaved", rounds=3, warmup=8), [])
    case.device = "cuda"
    case.inherit({"time": {1: Round([1.0, 2.0])}})
    case.visit(lambda: calls.append(1))
    case.visit(lambda: calls.append(1))
    assert warmed == [8, 3]


def test_a_process_that_goes_on_knows_under_what_conditions_the_rounds_before_it_were_measured(monkeypatch, tmp_path):
    # A mock of the GPU's readings: there is no GPU here. The record between the two processes is real.
    hot = Reading(1.5e9, 700.0, 81.0, reasons=0x4, highest_hz=1.98e9)
    hot_gpu = Conditions((hot,) * 3, other_processes=1, counted_hz=(1.6e9, 1.5e9))
    monkeypatch.setattr(sweep.conditions, "watching_on", lambda device: nullcontext(FakeWatched(hot_gpu)))
    written = []
    timed(plan(order="interleaved", rounds=2, target=0.9), written).visit(lambda: None)
    log = tmp_path / "events.jsonl"
    log.write_text("".join(json.dumps({"case": "a", **event}) + "\n" for event in written))
    monkeypatch.setattr(sweep.conditions, "watching_on", lambda device: nullcontext(FakeWatched(Conditions())))
    written.clear()
    case = timed(plan(order="interleaved", rounds=2, target=0.9), written)
    case.inherit(sweep.inherited(log, {"a"})["a"])
    assert case.visit(lambda: None)
    assert {"throttled", "other_process"} <= set(case.facts(lambda: None))
    temperatures = [event["value"] for event in written if event.get("metric") == "temperature"]
    assert temperatures == [81.0]


class FakeWatched:
    def __init__(self, seen):
        self.summary = lambda: seen
        self.forget = lambda: None


def test_nothing_is_inherited_where_nothing_was_written(tmp_path):
    assert sweep.inherited(tmp_path / "none", {"a"}) == {}


def test_mode_both_keeps_the_graphs_times_under_a_name_of_their_own(monkeypatch):
    # A mock: graphs need a GPU. It shows only which callable is sampled as what.
    monkeypatch.setattr(sweep.timing, "graphed", lambda fn: lambda: None)
    monkeypatch.setattr(sweep.conditions, "watching_on", lambda device: nullcontext(sweep.conditions.Watched(None)))
    written = []
    case = timed(plan(order="sequential", mode="both", target=0.9), written)
    case.visit(lambda: None)
    assert [event["metric"] for event in written if event["event"] == "samples"] == ["time", "time_cuda_graph"]


def test_a_call_that_has_no_graph_keeps_its_eager_times_in_mode_both_and_is_marked(monkeypatch):
    """No mock is needed: without a GPU no call can be captured."""
    if process.device() == "cuda":
        pytest.skip("here the call would be captured")
    written = []
    case = timed(plan(order="interleaved", rounds=2, mode="both", target=0.9), written)
    assert [case.visit(lambda: None) for _ in range(2)] == [False, True]
    assert "not_captured" in case.facts(lambda: None)
    assert [event["metric"] for event in written if event["event"] == "samples"] == ["time", "time"]
    assert sum("CUDA graph" in event.get("text", "") for event in written) == 1


def test_a_process_that_a_failed_capture_spoiled_is_not_measured_in_any_more(monkeypatch):
    """A mock: what the driver does is made up."""

    def give_up(fn):
        raise sweep.timing.LeftCapturing("the driver gave the capture up")

    monkeypatch.setattr(sweep.timing, "graphed", give_up)
    with pytest.raises(sweep.timing.LeftCapturing):
        timed(plan(order="sequential", mode="both", target=0.9), []).visit(lambda: None)


def test_of_a_call_that_alone_takes_the_whole_budget_no_loop_is_timed():
    written = []
    case = timed(plan(order="sequential", budget_s=0.001, repeats=1), written)
    assert case.visit(lambda: time.sleep(0.01))
    case.facts(lambda: pytest.fail("was called again"))
    assert "loop_wall" not in {event.get("metric") for event in written}


@pytest.mark.parametrize("mode", ["cuda_graph"])
def test_a_graph_that_cannot_be_captured_fails_its_case_with_the_reason(mode):
    with pytest.raises(Exception, match=r"(?i)cuda|gpu|captur"):
        timed(plan(order="sequential", mode=mode), []).visit(lambda: None)


@pytest.mark.parametrize(("call_ns", "iterations"), [(1e5, 30), (1e6, 30), (2e6, 15), (1e7, 10), (5e8, 4), (3e9, None)])
def test_the_loop_without_a_profiler_is_as_long_as_its_time_needs(monkeypatch, call_ns, iterations):
    """A mock of the loop: how often it calls. By default two seconds are spent on a case."""
    made = []
    monkeypatch.setattr(sweep.timing, "loop", lambda fn, n, **_: made.append(n) or sweep.timing.Loop(7.0))
    case = timed(plan(repeats=30), [])
    case.samples_ns["time"] = [call_ns]
    assert case._loop_wall_ns(lambda: None) == (None if iterations is None else 7.0)
    assert made == ([] if iterations is None else [iterations])
