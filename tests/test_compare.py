"""The comparison of two runs, case by case."""

import json
import re
import statistics
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from pair_study import run_of, tables_of
from report_study import check_golden

from profpipe import cli
from profpipe.analysis import pairs
from profpipe.analysis.changes import Change, Gate, GateCause
from profpipe.analysis.compare_runs import RunComparison, compare_runs, plain_processes
from profpipe.job import Incident, IncidentKind
from profpipe.report import comparison, results_json
from profpipe.results import schema, store
from profpipe.results.manifest import DeviceEntry, Gpu, JobEntry, Machine, Manifest, PairsEntry
from profpipe.results.noise import Noise, Spread, SpreadSource
from profpipe.results.schema import CASES, METRICS, Tables


def run_with(**times):
    rows = [
        {"workload": "w", "case": case, "profiler": "plain", "metric": "time", "value": value, "unit": "ns",
         "ci_low": low, "ci_high": high}
        for case, (value, low, high) in times.items()
    ]  # fmt: skip
    return Tables(metrics=schema.frame(METRICS, rows))


BEFORE = run_with(same=(100.0, 99.0, 101.0), slow=(100.0, 99.0, 101.0), gone=(1.0, 1.0, 1.0), bare=(100.0, None, None))
AFTER = run_with(same=(101.0, 100.0, 102.0), slow=(110.0, 109.0, 111.0), new=(1.0, 1.0, 1.0), bare=(120.0, None, None))


#: AFTER lacks a case.
GONE = {"gone": GateCause.ABSENT}
ENDED = Manifest(ended="2026-11-20T06:00:00+00:00", machine=Machine(gpus=(Gpu(name="NVIDIA H200"),)))


def known(spread, *cases, degrees=1e6):
    return {("w", case): Noise(between=Spread(spread, degrees, {SpreadSource.RUNS: 8})) for case in cases}


#: Two runs of the same code lie 2 % apart: in 99 % of comparisons less than 5.2 %.
SPREADS = known(0.02, "same", "slow", "bare")


def compared(a, b, noise=SPREADS):
    return compare_runs(a, b, ENDED, ENDED, noise)


def names_of(changes):
    return [change.name for change in changes]


def timed(a=BEFORE, b=AFTER):
    return names_of(compared(a, b).timed)


def causes(comparison, percent):
    """Return why cases do not pass a gate, by case."""
    return {change.case: cause for change, cause in comparison.judge_gate(percent).causes}


def test_only_cases_of_both_runs_are_compared():
    assert timed() == ["w/same", "w/slow", "w/bare"]


def test_a_gate_fails_for_slower_cases_but_not_for_noise():
    found = compared(BEFORE, AFTER)
    assert causes(found, 0.5) == {"slow": GateCause.SLOWER, "bare": GateCause.SLOWER, **GONE}
    assert causes(found, 25) == GONE
    wide = known(0.08, "same", "slow", "bare")
    assert causes(compared(BEFORE, AFTER, wide), 0.5) == GONE


def test_two_runs_give_no_verdict_where_the_spread_between_runs_is_unknown():
    found = compared(BEFORE, AFTER, {})
    assert {change.name: change.is_beyond_noise for change in found.timed} == {
        "w/same": False, "w/slow": None, "w/bare": None,
    }  # fmt: skip
    assert causes(found, 0.5) == {"slow": GateCause.UNDECIDED, "bare": GateCause.UNDECIDED, **GONE}
    assert causes(found, 15) == {"bare": GateCause.UNDECIDED, **GONE}
    assert causes(found, 25) == GONE


def test_the_spread_of_one_session_shows_noise_and_no_difference_for_a_drift_may_be_the_difference():
    of_pairs = {("w", case): Noise(Spread(0.02, 1e6, {SpreadSource.PAIRS: 8})) for case in ("same", "slow", "bare")}
    found = compared(BEFORE, run_with(same=(110.0, 109.0, 111.0), slow=(104.0, 103.0, 105.0)), of_pairs)
    assert {change.name: change.is_beyond_noise for change in found.timed} == {"w/same": None, "w/slow": False}
    assert causes(found, 1) == {"same": GateCause.UNDECIDED, "bare": GateCause.ABSENT, **GONE}


def test_a_difference_below_the_floor_of_a_verdict_is_noise_however_calm_the_processes():
    calm = known(0.0001, "same")
    after = run_with(same=(100.8, 100.7, 100.9))
    before = run_with(same=(100.0, 99.9, 100.1))
    assert [change.is_beyond_noise for change in compared(before, after, calm).changes] == [False]


def test_a_spread_of_few_pairs_gives_a_wider_limit():
    before, after = run_with(same=(100.0, 99.9, 100.1)), run_with(same=(107.0, 106.9, 107.1))
    verdicts = {n: compared(before, after, known(0.02, "same", degrees=n)).changes[0].is_beyond_noise for n in (2, 40)}
    assert verdicts == {2: False, 40: True}


def test_runs_vary_at_least_as_much_as_the_processes_of_one_session():
    before, after = run_with(same=(100.0, 99.9, 100.1)), run_with(same=(107.0, 106.9, 107.1))
    for within, between in ((0.01, 0.05), (0.05, 0.01)):
        noise = {("w", "same"): Noise(Spread(within, 90, {}), Spread(between, 90, {}))}
        assert [change.is_beyond_noise for change in compared(before, after, noise).changes] == [False]


def repeated(*times):
    """The case of a run that repeated it in several processes."""
    middle = statistics.median(times)
    merged = run_with(same=(middle, min(times), max(times))).metrics
    single = [run_with(same=(time, None, None)).metrics.assign(subject=f"process {number}")
              for number, time in enumerate(times, start=1)]  # fmt: skip
    return Tables(metrics=pd.concat([merged, *single], ignore_index=True))


def test_several_processes_of_each_run_show_the_spread_of_their_session():
    calm = repeated(100.0, 101.0, 99.0, 100.5, 99.5)
    assert plain_processes(calm) == {("w", "same"): [100.0, 101.0, 99.0, 100.5, 99.5]}

    def judged(after, noise):
        (change,) = compared(calm, after, noise).changes
        return change.is_beyond_noise

    assert judged(repeated(102.0, 102.5, 101.5), {}) is False
    # All processes of B ran after those of A: a drift may be the difference.
    assert judged(repeated(110.0, 111.0, 109.0), {}) is None
    assert judged(run_with(same=(110.0, 109.9, 110.1)), {}) is None
    assert judged(repeated(110.0, 111.0, 109.0), known(0.01, "same")) is True


def test_times_under_a_profiler_are_not_compared():
    under = Tables(metrics=BEFORE.metrics.assign(profiler="nsys"))
    assert not timed(under)


def test_times_of_single_kernels_are_not_cases():
    assert not timed(Tables(metrics=BEFORE.metrics.assign(subject="some_kernel")))


def test_a_case_that_failed_in_the_second_run_is_named():
    failed = schema.frame(CASES, [{"workload": "w", "case": case, "profiler": "plain", "status": "crashed"}
                                  for case in ("gone", "never_timed")])  # fmt: skip
    after = Tables(cases=failed, metrics=AFTER.metrics)
    assert names_of(compared(BEFORE, after).lost) == ["w/gone"] and not compared(BEFORE, AFTER).lost


def marked(data, *cases):
    rows = [{"workload": "w", "case": case, "profiler": "plain", "status": "ok", "flags": '["noisy", "inaccurate"]'}
            for case in cases]  # fmt: skip
    return Tables(cases=schema.frame(CASES, rows), metrics=data.metrics)


def test_a_newly_inaccurate_result_is_shown_with_its_time_and_fails_a_gate():
    found = compared(marked(BEFORE, "bare"), marked(AFTER, "bare", "slow"))
    inaccurate = {change.name: change.inaccurate_in for change in found.timed}
    assert inaccurate == {"w/same": (), "w/slow": ("B",), "w/bare": ("A", "B")}
    assert causes(found, 25) == {"slow": GateCause.NEWLY_INACCURATE, **GONE}


def with_params(data, **params):
    """``data`` with the parameters of each of its cases, which their names do not hold."""
    rows = [{"workload": "w", "case": case, "profiler": profiler, "status": "ok", "params": json.dumps(params)}
            for case in data.metrics["case"] for profiler in ("plain", "nsys")]  # fmt: skip
    return Tables(cases=schema.frame(CASES, rows), metrics=data.metrics)


def test_a_parameter_that_one_of_the_runs_does_not_have_differs_too():
    found = compared(with_params(BEFORE, n=1), with_params(AFTER, n=1, causal=None))
    assert found.changed_params and all(
        change.differing_params == {"causal": (None, "null")} for change in found.changed_params
    )


def test_the_same_parameters_in_another_order_and_none_at_all_are_no_difference():
    before, after = with_params(BEFORE, n=1, m=2.0), with_params(AFTER, m=2, n=1)
    for data in (after, AFTER):
        found = compared(before, data)
        assert not found.changed_params and len(found.timed) == 3


def comparisons():
    """Comparisons, and the percentages of gates for them."""
    named = run_with(**{"path=gr%C3%B6%C3%9Fe%2Ca%5Cb%E2%80%8B": (100.0, 99.0, 101.0)})
    other = replace(ENDED, machine=Machine(gpus=(Gpu(name="NVIDIA A100"),) * 2))
    failed = [{"workload": "w", "case": "gone", "profiler": "plain", "status": "crashed"}]
    before, after = with_params(BEFORE, head_dim=64, dtype="bf16"), with_params(AFTER, head_dim=128, dtype="bf16")
    open_ended = replace(ENDED, ended=None)
    slow = Change("time", 8_862_615_760.0, 9e9, workload="w", case="n=1", is_beyond_noise=True)
    yield "the spread between runs is known", compared(BEFORE, AFTER), (5, 15, 25)
    yield "it is not known", compared(BEFORE, AFTER, {}), (0.5, 15, 25)
    yield "newly inaccurate", compared(marked(BEFORE, "bare"), marked(AFTER, "bare", "slow")), (25,)
    yield "failed in B", compared(BEFORE, Tables(schema.frame(CASES, failed), metrics=AFTER.metrics)), (25,)
    yield "other parameters", compared(before, after), (50,)
    yield "nothing in both", RunComparison(()), (5,)
    yield "one readable unit", RunComparison((slow,)), (1, 2)
    yield "letters of a name", compared(named, named), (5,)
    yield "other GPUs", compare_runs(BEFORE, AFTER, ENDED, other), ()
    yield "GPUs of which one is unknown", compare_runs(BEFORE, AFTER, ENDED, Manifest()), ()
    yield "B has not ended", compare_runs(BEFORE, BEFORE, ENDED, open_ended), (5,)
    yield "A has not ended", compare_runs(BEFORE, BEFORE, open_ended, ENDED), (5,)


def test_comparisons_and_gates_read_as_in_the_golden_file(regenerate):
    texts = []
    for name, found, gates in comparisons():
        texts.append(f"# {name}\n{comparison.text(found)}\n")
        texts += [
            f"gate of {gate} %: {comparison.gate_text(found, found.judge_gate(gate)) or 'passed'}\n" for gate in gates
        ]
    check_golden("compare_runs.txt", "\n".join(texts), regenerate)


def test_the_time_of_a_process_is_not_compared_with_that_of_its_steps():
    wall = Tables(metrics=BEFORE.metrics.assign(metric="process_wall"))
    for a, b in ((BEFORE, wall), (wall, BEFORE)):
        found = compared(a, b)
        assert len(found.absent) == len(found.changes) == 4 and found.judge_gate(100).verdict is Gate.UNDECIDED


def test_the_wall_time_of_a_process_that_a_signal_ended_leaves_the_gate_undecided():
    wall = Tables(metrics=BEFORE.metrics.assign(metric="process_wall"))
    jobs = (
        JobEntry("w", "plain", ("slow",), folder="raw/w/plain"),
        JobEntry("w", "nsys", ("same",), folder="raw/w/nsys"),
    )
    incidents = tuple(Incident(IncidentKind.ENDED, f"{job.folder}/log.txt", "SIGTERM ended it") for job in jobs)
    ended = replace(ENDED, jobs=jobs, incidents=incidents)
    for sides in ((ENDED, ended), (ended, ENDED)):
        found = compare_runs(wall, wall, *sides, SPREADS)
        gate = found.judge_gate(5)
        assert [(change.name, cause) for change, cause in gate.causes] == [("w/slow", GateCause.ENDED)]
        assert gate.verdict is Gate.UNDECIDED
        assert comparison.gate_text(found, gate).endswith("a signal ended the process of 1 case, in A or B: w/slow")
        assert "w/slow: a signal ended its process" in comparison.text(found)
        # What steps or calls took is evidence, however the process ended.
        assert "w/slow" in {change.name for change in compare_runs(BEFORE, BEFORE, *sides, SPREADS).timed}


@pytest.mark.parametrize("time", [0.0, -1.0, float("nan"), float("inf"), 1e-300])
def test_a_time_that_cannot_be_leaves_the_gate_undecided_on_either_side(time):
    damaged = run_with(same=(time, None, None), slow=(100.0, 99.0, 101.0))
    for a, b in ((BEFORE, damaged), (damaged, AFTER)):
        found = compared(a, b)
        assert "w/same" in names_of(found.absent) and found.judge_gate(100).verdict is Gate.UNDECIDED
    pair = tables_of({"x": [0.5] * 8})
    pair.metrics.loc[3, "value"] = time
    found = pairs.analyze(pair, run_of(gate=5.0))
    assert found.gate.verdict is Gate.UNDECIDED and "0, negative or no number" in found.cases[0].failure.reason


def test_the_noise_of_a_machine_decides_nothing_where_a_case_ran_on_another_device_of_it():
    gpu, cpu = (
        replace(ENDED, jobs=(JobEntry("w", "plain", ("slow",), devices=(DeviceEntry(device),)),))
        for device in ("NVIDIA H200", "cpu")
    )
    for other, is_beyond in ((gpu, True), (cpu, None), (ENDED, True)):
        found = {change.name: change for change in compare_runs(BEFORE, AFTER, gpu, other, SPREADS).changes}
        assert found["w/slow"].is_beyond_noise is is_beyond and found["w/bare"].is_beyond_noise is True


def test_the_time_of_a_failed_case_is_ignored():
    died = Tables(
        cases=schema.frame(CASES, [{"workload": "w", "case": "slow", "profiler": "plain", "status": "crashed"}]),
        metrics=BEFORE.metrics,
    )
    assert timed(died) == ["w/same", "w/bare"]
    assert names_of(compared(BEFORE, died).lost) == ["w/slow"]


def test_the_time_of_an_interrupted_case_is_compared():
    rows = [{"workload": "w", "case": "slow", "profiler": "plain", "status": "interrupted"}]
    stopped = Tables(cases=schema.frame(CASES, rows), metrics=BEFORE.metrics)
    assert timed(stopped) == ["w/same", "w/slow", "w/bare"]


# --- the JSON document -----------------------------------------------------------------------------------------------


ROOT = Path(__file__).resolve().parents[1]


def save_run(folder, number, status="ok", params="{}", **times):
    """Store a run that started at the minute ``number``, with the times of its cases in ns."""
    key = {"run": folder.name, "workload": "w", "profiler": "plain"}
    reason = "" if status == "ok" else f"it {status}"
    ended = {"status": status, "reason": reason, "params": params, "flags": "[]"}
    cases = [{**key, "case": case, **ended} for case in times]
    rows = [
        {**key, "case": case, "subject": "", "metric": "time", "unit": "ns", "n": 9, "value": time,
         "ci_low": time * 0.999, "ci_high": time * 1.001}
        for case, time in times.items()
    ]  # fmt: skip
    folder.mkdir()
    started = f"2026-11-23T10:{number:02}:00+00:00"
    run = Manifest(name="w", started=started, ended=started)
    store.save(folder, Tables(cases=schema.frame(CASES, cases), metrics=schema.frame(METRICS, rows)), run)
    return folder


def document_of(capsys, *argv):
    code = cli.main(["compare", *map(str, argv)])
    return code, json.loads(capsys.readouterr().out)


def cases_of(document):
    assert document["format"] == "profpipe.verdicts" and document["version"] == 1
    return {case["case"]: case for case in document["cases"]}


def test_two_runs_have_differences_and_no_verdict(tmp_path, capsys):
    a = save_run(tmp_path / "a", 1, slow=1e6, same=2e6, gone=3e6)
    b = save_run(tmp_path / "b", 2, slow=1.1e6, same=2e6)
    code, document = document_of(capsys, a, b, "--gate", "5", "--json=full")
    assert (code, document["exit_code"], document["kind"]) == (5, 5, "compare")
    assert document["a"] == {"runs": [str(a)]} and document["gate"]["result"] == "undecided"
    cases = cases_of(document)
    assert cases["slow"]["ratio"] == pytest.approx(1.1) and cases["slow"]["difference_ns"] == pytest.approx(1e5)
    assert [cases[name]["verdict"] for name in cases] == [None] * 3
    assert [cases[name]["gate"] for name in ("slow", "same", "gone")] == ["undecided", "passed", "undecided"]
    assert [cases[name].get("is_beyond_noise") for name in ("slow", "same", "gone")] == [None, False, None]
    assert document["warnings"] == [
        {"kind": "not_compared", "text": "w/gone: has no times above 0 of the same kind in A and B"}
    ]


def test_a_gate_counts_what_failed_or_has_other_parameters_and_nothing_is_undecided(tmp_path, capsys):
    a = save_run(tmp_path / "a", 1, c=1e6, params='{"x": 1}')
    other = save_run(tmp_path / "other", 2, c=1e6, params='{"x": 2}')
    crashed = save_run(tmp_path / "crashed", 3, "crashed", c=1e6)
    empty = save_run(tmp_path / "empty", 4)
    found = []
    for first, second, expected in ((a, other, 4), (a, crashed, 4), (empty, a, 5)):
        code, document = document_of(capsys, "--gate", "5", "--json=full", first, second)
        assert code == document["exit_code"] == expected
        found.append(document)
    of_other, of_crashed, of_none = found
    assert (of_other["gate"]["result"], of_other["gate"]["failed"]) == ("failed", 1)
    assert cases_of(of_other)["c"]["differing_params"] == {"x": ["1", "2"]}
    assert (of_crashed["gate"]["result"], of_crashed["gate"]["failed"]) == ("failed", 1)
    failure = {"status": "crashed", "reason": "it crashed", "is_of_b_alone": True}
    assert cases_of(of_crashed)["c"]["failure"] == failure
    assert (of_none["gate"]["result"], of_none["cases"]) == ("undecided", [])


def test_the_keys_are_those_of_ab_and_the_further_ones_are_documented(tmp_path, capsys):
    runs = [save_run(tmp_path / name, i, c=1e6) for i, name in enumerate("ab")]
    _, of_two = document_of(capsys, *runs, "--json=full")
    data, run = Tables(), Manifest(name="w", ab=PairsEntry())
    of_ab = results_json.verdict_document(pairs.analyze(data, run), data, run, "", 0)
    assert set(of_two) == set(of_ab)
    page = (ROOT / "docs" / "verdicts.md").read_text(encoding="utf-8").partition("## The JSON document")[2]
    words = set(re.findall(r"`(\w+)`", page.partition("## Which kernels")[0]))
    assert words >= {*of_two, *of_two["cases"][0]}
