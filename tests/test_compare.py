"""Two runs, case by case."""

import json

import pytest

from profpipe import compare, tables
from profpipe.tables import CASES, METRICS, Tables


def run_with(**times):
    rows = [
        {"workload": "w", "case": case, "profiler": "plain", "metric": "time", "value": value, "unit": "ns",
         "ci_low": low, "ci_high": high}
        for case, (value, low, high) in times.items()
    ]  # fmt: skip
    return Tables(metrics=tables.frame(METRICS, rows))


BEFORE = run_with(same=(100.0, 99.0, 101.0), slow=(100.0, 99.0, 101.0), gone=(1.0, 1.0, 1.0), bare=(100.0, None, None))
AFTER = run_with(same=(101.0, 100.0, 102.0), slow=(110.0, 109.0, 111.0), new=(1.0, 1.0, 1.0), bare=(120.0, None, None))


def changes():
    return {change.case: change for change in compare.compare(BEFORE, AFTER)}


def test_only_cases_of_both_runs_are_compared():
    assert set(changes()) == {"same", "slow", "bare"}


def test_a_difference_within_the_intervals_is_noise():
    assert changes()["same"].distinct is False and changes()["slow"].distinct is True
    assert changes()["bare"].distinct is None


def test_a_gate_stops_what_is_slower_but_not_what_is_noise():
    stopped = [change.case for change in compare.slower(changes().values(), 0.5)]
    assert stopped == ["slow", "bare"]
    assert compare.slower(changes().values(), 25) == []


def test_the_text_names_each_case_with_its_change():
    text = compare.text(list(changes().values()))
    assert "+10.0%" in text and "within the noise" in text and "no interval kept" in text
    assert compare.text([]) == "No case has a time in both runs."


def test_a_case_is_named_with_the_letters_of_its_values():
    name = "path=gr%C3%B6%C3%9Fe%2Ca%5Cb%E2%80%8B"
    data = run_with(**{name: (100.0, 99.0, 101.0)})
    assert "w/path=größe%2Ca\\b%E2%80%8B " in compare.text(compare.compare(data, data))


def test_times_under_a_profiler_are_not_compared():
    under = Tables(metrics=BEFORE.metrics.assign(profiler="nsys"))
    assert compare.compare(under, AFTER) == []


@pytest.mark.parametrize("subject", ["some_kernel"])
def test_times_of_single_kernels_are_not_cases(subject):
    assert compare.compare(Tables(metrics=BEFORE.metrics.assign(subject=subject)), AFTER) == []


def test_a_case_that_failed_in_the_second_run_is_named():
    failed = tables.frame(CASES, [{"workload": "w", "case": case, "profiler": "plain", "status": "crashed"}
                                  for case in ("gone", "never_timed")])  # fmt: skip
    after = Tables(cases=failed, metrics=AFTER.metrics)
    assert compare.lost(BEFORE, after) == ["w/gone"] and compare.lost(BEFORE, AFTER) == []
    assert "w/gone: has a time in A and failed in B" in compare.text([], ["w/gone"])


def marked(data, *cases):
    rows = [{"workload": "w", "case": case, "profiler": "plain", "status": "ok", "flags": '["noisy", "inaccurate"]'}
            for case in cases]  # fmt: skip
    return Tables(cases=tables.frame(CASES, rows), metrics=data.metrics)


def test_a_result_that_has_become_inaccurate_is_said_beside_its_time_and_stops_a_gate():
    found = compare.compare(marked(BEFORE, "bare"), marked(AFTER, "bare", "slow"))
    assert {change.case: change.inaccurate for change in found} == {"same": "", "slow": "B", "bare": "A and B"}
    assert [change.case for change in compare.spoilt(found)] == ["slow"]
    text = compare.text(found)
    assert "+10.0%  inaccurate in B\n" in text and "no interval kept  inaccurate in A and B" in text


def with_params(data, **params):
    """``data`` with the parameters of each of its cases, which their names do not hold."""
    rows = [{"workload": "w", "case": case, "profiler": profiler, "status": "ok", "params": json.dumps(params)}
            for case in data.metrics["case"] for profiler in ("plain", "nsys")]  # fmt: skip
    return Tables(cases=tables.frame(CASES, rows), metrics=data.metrics)


ENDED = {"jobs": [], "ended": "2026-11-20T06:00:00+00:00", "machine": {"gpus": [{"name": "NVIDIA H200"}]}}


def test_cases_whose_parameters_differ_are_named_and_not_compared_and_stop_a_gate():
    before, after = with_params(BEFORE, head_dim=64, dtype="bf16"), with_params(AFTER, head_dim=128, dtype="bf16")
    assert compare.compare(before, after) == []
    found = compare.examined(before, after, ENDED, ENDED)
    text = compare.page(found)
    assert "Not compared, for their parameters differ (3 cases; in A and in B):" in text
    assert text.startswith("No case is the same in both runs.\n")
    assert "w/slow: head_dim 64 and 128\n" in text and "dtype" not in text
    assert compare.objection(found, 50) == "3 cases have other parameters in B, so nothing is known of them: head_dim"


def test_a_parameter_that_one_of_the_runs_does_not_have_differs_too():
    found = compare.unlike(with_params(BEFORE, n=1), with_params(AFTER, n=1, causal=None))
    assert {case.params for case in found} == {("causal none and null",)}


def test_the_same_parameters_in_another_order_and_none_at_all_are_no_difference():
    before, after = with_params(BEFORE, n=1, m=2.0), with_params(AFTER, m=2, n=1)
    for data in (after, AFTER):
        assert compare.unlike(before, data) == [] and len(compare.compare(before, data)) == 3


def test_cases_that_the_second_run_lacks_are_named_and_stop_no_gate():
    found = compare.examined(BEFORE, AFTER, ENDED, ENDED)
    assert found.absent == ("w/gone",) and "w/gone: has a time in A and none in B" in compare.page(found)
    assert compare.objection(found, 25) == "" and "2 cases are more than 5 % slower" in compare.objection(found, 5)


def test_runs_of_unlike_gpus_say_so():
    other = {**ENDED, "machine": {"gpus": [{"name": "NVIDIA A100"}] * 2}}
    told = compare.page(compare.examined(BEFORE, AFTER, ENDED, other))
    assert "The GPUs differ: A ran on NVIDIA H200, B on NVIDIA A100, NVIDIA A100." in told
    for alike in (ENDED, {}):
        assert "GPUs" not in compare.page(compare.examined(BEFORE, AFTER, ENDED, alike))


def test_a_gate_refuses_a_run_that_has_not_ended():
    found = compare.examined(BEFORE, BEFORE, ENDED, {**ENDED, "ended": None})
    assert "B has not ended" in compare.objection(found, 5) and "B has not ended" in compare.page(found)
    assert compare.objection(compare.examined(BEFORE, BEFORE, {**ENDED, "ended": None}, ENDED), 5) == ""


def test_what_was_measured_of_a_case_that_failed_is_no_time_of_it():
    died = Tables(
        cases=tables.frame(CASES, [{"workload": "w", "case": "slow", "profiler": "plain", "status": "crashed"}]),
        metrics=BEFORE.metrics,
    )
    assert {change.case for change in compare.compare(died, AFTER)} == {"same", "bare"}
    assert compare.lost(BEFORE, died) == ["w/slow"]


def test_of_a_case_that_was_interrupted_there_is_a_time():
    rows = [{"workload": "w", "case": "slow", "profiler": "plain", "status": "failed", "reason": "interrupted"}]
    stopped = Tables(cases=tables.frame(CASES, rows), metrics=BEFORE.metrics)
    assert {change.case for change in compare.compare(stopped, AFTER)} == {"same", "slow", "bare"}
