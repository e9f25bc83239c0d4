"""A result that is too far from its reference wins nothing: the limits, the harness that holds them, and the report."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from report_study import ATTENTION, case_row, kernel_row, metric_row, range_row, tables

from profpipe import config, harness, load, report
from profpipe.analyze import analyze
from profpipe.errors import ConfigError
from profpipe.findings import WorkloadFindings
from profpipe.load import own_folder
from profpipe.measuring import conditions, facts, sweep
from profpipe.page import accuracy_sheets, chapters, plots, study_sheets
from profpipe.tables import Tables
from profpipe.tolerance import judge, shown

# --- limits ----------------------------------------------------------------------------------------------------------


def test_errors_may_be_as_large_and_cosines_as_small_as_their_limits() -> None:
    limits = {"error_max": 0.5, "cosine": 0.99}
    assert judge({"error_max": 0.5, "cosine": 0.99}, limits).mark == ""
    assert judge({"error_max": 0.51, "cosine": 0.99}, limits).mark == "inaccurate"
    assert judge({"error_max": 0.5, "cosine": 0.98}, limits).mark == "inaccurate"


def test_a_limit_holds_for_gradients_that_have_none_of_their_own() -> None:
    checked = {"error_max": 0.1, "error_max_dq": 0.3, "error_max_dk": 0.1}
    assert judge(checked, {"error_max": 0.2}).why == "error_max_dq is 0.3, at most 0.2"
    assert judge(checked, {"error_max": 0.2, "error_max_dq": 0.4}).mark == ""


def test_the_worst_misses_are_named_first_and_the_rest_counted() -> None:
    checked = {"error_max": 3.0, "error_mean": 9.0, "cosine": 0.5, "cosine_dq": 0.2}
    assert judge(checked, {"error_max": 1, "error_mean": 1, "cosine": 0.9}).why == (
        "error_mean is 9, at most 1; error_max is 3, at most 1; and 2 more"
    )


def test_a_limit_is_said_as_it_was_written() -> None:
    assert judge({"cosine": 0.5}, {"cosine": 0.99999999}).why == "cosine is 0.500, at least 0.99999999"
    assert judge({"error_max": 0.5}, {"error_max": 1e-4}).why == "error_max is 0.5, at most 0.0001"


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_what_is_no_number_is_outside_every_limit(wrong: float) -> None:
    assert judge({"error_max": wrong}, {"error_max": 1e9}).mark == "inaccurate"
    assert judge({"cosine": -1.0}, {"cosine": 0.0}).mark == "inaccurate"
    assert judge({"cosine": math.nan}, {"cosine": 0.0}).mark == "inaccurate"


def test_a_case_passes_only_what_was_compared() -> None:
    assert judge({"flops": 1.0}, {"error_max": 1}).why == "nothing was compared for error_max"
    assert judge({"error_max": 0.0}, {"error_max": 1, "cosine": 0.9}).mark == "unchecked"
    assert judge({}, {"error_max_dq": 1}).mark == "unchecked"


def test_the_limit_of_a_gradient_is_none_for_a_forward_pass() -> None:
    assert judge({"error_max": 0.5}, {"error_max": 1, "error_max_dq": 2}).mark == ""
    assert judge({"error_max": 0.5, "error_max_dq": 3.0}, {"error_max": 9, "error_max_dq": 2}).mark == "inaccurate"
    assert judge({"error_max_dq": 0.5}, {"error_max": 1}).mark == ""


def test_without_limits_everything_passes_that_is_a_number() -> None:
    assert judge({"error_max": 1e30, "error_rel_l1": math.inf}, {}).mark == judge({}, {}).mark == ""


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.5, "0.500"),
        (0.98, "0.980"),
        (0.99991, "0.999910"),
        (0.999999987, "0.999999987"),
        (1 - 1e-14, "> 0.999999999"),
        (1.0, "1"),
        (-1.0, "-1"),
    ],
)
def test_a_cosine_has_the_digits_that_tell_it_from_one(value: float, text: str) -> None:
    assert shown("cosine_dq", value) == text


# --- in the pipeline file --------------------------------------------------------------------------------------------

WORKLOAD = "PARAMS = {'n': 1}\ndef build(params):\n    return lambda: None\n"


def pipeline(folder: Path, tolerance: str, place: str = "workloads") -> Any:
    (folder / "workloads").mkdir(exist_ok=True)
    (folder / "workloads" / "mine.py").write_text(WORKLOAD)
    defaults = f"defaults: {{tolerance: {tolerance}}}\n" if place == "defaults" else ""
    own = f", tolerance: {tolerance}" if place == "workloads" else ""
    (folder / "p.yaml").write_text(f"version: 1\n{defaults}workloads:\n  w: {{script: mine{own}}}\n")
    return config.load_pipeline(folder / "p.yaml", env={})


def test_a_tolerance_reaches_the_harness_and_may_stand_in_defaults(tmp_path: Path) -> None:
    for place in ("workloads", "defaults"):
        workload = pipeline(tmp_path, "{error_rel_l1: 0.05, cosine_dq: 0.99}", place).workloads["w"]
        assert dict(workload.tolerance) == {"error_rel_l1": 0.05, "cosine_dq": 0.99}


@pytest.mark.parametrize(
    ("tolerance", "place", "said"),
    [
        ("{error_rell1: 0.05}", "workloads.w.tolerance.error_rell1", "Did you mean 'error_rel_l1'?"),
        ("{error_max_dQ: 0.05}", "workloads.w.tolerance.error_max_dQ", "Did you mean 'error_max_d"),
        ("{cosine: 1.5}", "workloads.w.tolerance", "no cosine is at least 1.5: 1 is the most that it can be"),
        ("{error_max: -1}", "workloads.w.tolerance.error_max", "greater than or equal to 0"),
        ("{error_max: .inf}", "workloads.w.tolerance.error_max", "finite"),
        ("{error_max: some}", "workloads.w.tolerance.error_max", "number"),
        ("0.05", "workloads.w.tolerance", "is not a mapping"),
    ],
)
def test_a_limit_that_means_nothing_is_refused_with_its_place(
    tmp_path: Path, tolerance: str, place: str, said: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        pipeline(tmp_path, tolerance)
    assert f"{place}: " in str(raised.value) and said in str(raised.value)


def test_a_wrong_limit_in_defaults_is_told_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        pipeline(tmp_path, "{cosin: 0.9}", "defaults")
    assert str(raised.value).count("Did you mean 'cosine'?") == 1


# --- in the workload's process ---------------------------------------------------------------------------------------


class Workload:
    """A workload whose check says what it was made with."""

    def __init__(self, found: Any) -> None:
        self._found = found

    def check(self, params: Any) -> Any:
        if isinstance(self._found, Exception):
            raise self._found
        return self._found


def written(found: Any, folder: Path, limits: dict[str, float]) -> tuple[list[str], list[str]]:
    """(marks, notes) of a case whose check gives ``found``."""
    events: list[dict[str, Any]] = []
    marks = facts.write(Workload(found), {}, folder, lambda event, **f: events.append({"event": event, **f}), limits)
    return marks, [event["text"] for event in events if event["event"] == "note"]


def test_a_miss_is_marked_and_noted_with_its_measure_value_and_limit(tmp_path: Path) -> None:
    assert written({"error_rel_l1": 0.08}, tmp_path, {"error_rel_l1": 0.05}) == (
        ["inaccurate"], ["inaccurate: error_rel_l1 is 0.08, at most 0.05"],
    )  # fmt: skip
    assert written({"error_rel_l1": 0.04}, tmp_path, {"error_rel_l1": 0.05}) == ([], [])
    assert written({"error_rel_l1": 0.08}, tmp_path, {}) == ([], [])


def test_a_check_that_fails_or_compares_something_else_leaves_the_case_unchecked(tmp_path: Path) -> None:
    assert written(MemoryError("too large"), tmp_path, {"error_max": 1}) == (["unchecked"], [])
    assert written({"loss": 0.5}, tmp_path, {"error_max": 1}) == (
        ["unchecked"], ["unchecked: nothing was compared for error_max"],
    )  # fmt: skip
    marks = facts.write(object(), {}, tmp_path, lambda event, **fields: None, {"error_max": 1})
    assert marks == ["unchecked"]


@pytest.mark.parametrize("odd", ["x", None, [0.1]])
def test_a_measure_that_is_no_number_leaves_the_case_unchecked_and_is_named(tmp_path: Path, odd: Any) -> None:
    limits = {"error_max": 1.0, "cosine": 0.9}
    assert written({"error_max": odd, "cosine": 0.99}, tmp_path, limits) == (
        ["unchecked"], [f"unchecked: error_max is no number: {odd!r}"],
    )  # fmt: skip
    assert written({"error_max": odd, "cosine": 0.5}, tmp_path, limits)[0] == ["inaccurate"]
    assert written({"error_max": odd}, tmp_path, {"cosine": 0.9})[0] == ["unchecked"]


def test_without_a_tolerance_a_measure_that_is_no_number_is_no_comparison_and_none_is_no_measure(
    tmp_path: Path,
) -> None:
    assert written({"error_max": "x"}, tmp_path, {}) == (["unchecked"], ["unchecked: error_max is no number: 'x'"])
    assert written({"error_max": [0.1], "cosine": 0.99}, tmp_path, {})[0] == ["unchecked"]
    assert written({"error_max": None}, tmp_path, {}) == ([], [])
    assert written({"loss": "x"}, tmp_path, {}) == ([], [])


class OneNumber:
    """What torch and numpy have in common: a number that has to be asked for."""

    def __init__(self, *values: float) -> None:
        self._values = values

    def item(self) -> float:
        if len(self._values) != 1:
            raise RuntimeError(f"a Tensor with {len(self._values)} elements cannot be converted to Scalar")
        return self._values[0]


def test_a_tensor_of_one_element_is_the_number_in_it(tmp_path: Path) -> None:
    assert written({"error_max": OneNumber(math.nan)}, tmp_path, {}) == (
        ["inaccurate"], ["inaccurate: error_max is nan, at most a finite number"],
    )  # fmt: skip
    assert written({"error_max": np.array([0.2])}, tmp_path, {"error_max": 0.5}) == ([], [])
    assert written({"error_max": OneNumber(0.1, 0.2)}, tmp_path, {})[0] == ["unchecked"]
    told: dict[str, Any] = {}
    workload = SimpleNamespace(
        flops=lambda params: OneNumber(5.0),
        facts=lambda params: {"parameters": (OneNumber(3.0), "1")},
        snapshot=lambda params, folder: {"layer": {"held": (OneNumber(7.0), "byte", 1)}},
    )
    facts.write(workload, {}, tmp_path / "kept", lambda event, **f: told.update({f["metric"]: f["value"]}), {})
    assert told == {"flops": 5.0, "parameters": 3.0, "held": 7.0}


# --- names -----------------------------------------------------------------------------------------------------------


def said_by(workload: Any, folder: Path) -> list[dict[str, Any]]:
    """The events of a case of ``workload``."""
    told: list[dict[str, Any]] = []
    facts.write(workload, {}, folder, lambda event, **fields: told.append({"event": event, **fields}), {})
    return told


@pytest.mark.parametrize("name", ["time", "time_p90", "iterations", "peak_allocated", "flops", "flops.int8", "power"])
@pytest.mark.parametrize("function", ["facts", "check"])
def test_a_number_by_a_name_of_profpipes_own_is_refused(tmp_path: Path, function: str, name: str) -> None:
    numbers = {"facts": {"parameters": (3.0, "1"), name: (1.0, "ns")}, "check": {"loss": 3.0, name: 1.0}}[function]
    (event,) = said_by(SimpleNamespace(**{function: lambda params: numbers}), tmp_path)
    assert (event["event"], event["during"]) == ("error", function)
    assert f"the name '{name}' is profpipe's own" in event["reason"]


def test_every_measurement_of_a_case_has_a_name_that_no_workload_may_give(tmp_path: Path) -> None:
    """The names that measuring writes, and those that the parser makes of samples, are all of them refused."""
    record = tmp_path / "events.jsonl"
    with record.open("w") as stream:
        events = harness.Events(stream)
        events.write("started", profiler="plain")
        plan = sweep.Plan.of({"options": {"timing": {"mode": "both", "budget_s": 0.01}}, "warmup": 1, "repeats": 5})
        events.write("case_started", case="a", params={})
        case = sweep.Case(plan, "cpu", "case:a", events.of("a"))
        case.visit(lambda: sum(range(1000)))
        case.facts(lambda: sum(range(1000)))
        for name in (sweep.OWN_TIME, sweep.GRAPH_TIME):
            events.write("samples", case="a", metric=name, unit="ns", values=[1.0, 2.0])
    parsed = load.module(own_folder("parsers") / "events.py").parse(record)
    reading = conditions.Reading(sm_clock_hz=1e9, power_w=100.0, temperature_c=50.0)
    measured = {*parsed.metrics["metric"], *conditions.as_metrics(conditions.Conditions((reading,)))}
    assert {"time", "loop_wall", "temperature", "time_own_cv"} <= measured
    assert measured <= facts.MEASURED


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("flops", -5),
        ("flops", {"fp16": 9.0, "int8": -2.0}),
        ("bytes_moved", -1.0),
        ("phase_work", {"forward": {"flops": 1, "bytes_moved": -1}}),
    ],
)
def test_work_below_nothing_is_left_out_with_the_reason(tmp_path: Path, name: str, said: Any) -> None:
    told: list[dict[str, Any]] = []
    workload = SimpleNamespace(**{name: lambda params: said})
    facts.write(workload, {}, tmp_path, lambda event, **fields: told.append({"event": event, **fields}), {})
    (event,) = told
    assert event["event"] == "error" and event["during"] == name
    assert re.search(r"ValueError: (flops|bytes_moved) is -\d", event["reason"])


def test_a_nan_is_written_as_the_worst_difference_for_no_table_holds_a_nan(tmp_path: Path) -> None:
    told: dict[str, Any] = {}
    check = {"error_max": math.nan, "cosine_dq": math.nan, "error_max_dq": 0.01, "loss": math.nan}

    def events(event: str, **fields: Any) -> None:
        told.update({fields["metric"]: fields["value"]} if event == "metric" else {"note": fields["text"]})

    assert facts.write(Workload(check), {}, tmp_path, events, {"error_max": 0.05}) == ["inaccurate"]
    assert (told["error_max"], told["cosine_dq"], told["error_max_dq"]) == (math.inf, -1.0, 0.01)
    assert math.isnan(told["loss"]) and told["note"].startswith("inaccurate: error_max is nan, at most 0.05")
    numbers = {name: value for name, value in told.items() if name != "note"}
    assert judge(numbers, {"error_max": 0.05}).mark == "inaccurate", "judged anew when the run is analysed"


def test_a_result_that_is_no_number_passes_nowhere_also_without_a_tolerance(tmp_path: Path) -> None:
    for wrong in (math.nan, math.inf):
        marks, notes = written({"error_max": wrong, "cosine": 0.9}, tmp_path, {})
        assert (marks, notes) == (["inaccurate"], [f"inaccurate: error_max is {wrong}, at most a finite number"])
    for measure in ("error_rel_l1", "cosine", "cosine_dq"):
        assert written({measure: math.nan}, tmp_path, {})[0] == ["inaccurate"]
        assert written({measure: math.nan, "error_max": 0.1}, tmp_path, {"error_max": 0.5})[0] == ["inaccurate"]
    # Beside a reference of zeros, as the gradients of a single key are, any rounding is infinitely far off.
    assert written({"error_max": 1e-7, "error_rel_l1": math.inf}, tmp_path, {}) == ([], [])


# --- in the report ---------------------------------------------------------------------------------------------------

LIMITS = {"error_rel_l1": 0.05}


def run(**workload: Any) -> dict[str, Any]:
    return {"pipeline": {"workloads": {"w": {"baseline": {"impl": "a"}, "tolerance": LIMITS, **workload}}}}


def study(shapes: tuple[str, ...] = ("",), **impls: tuple[float, float | None]) -> Tables:
    """Cases of a time and a relative error each; None where nobody compared it."""
    names = [(f"impl={impl}{shape}", ns, error) for impl, (ns, error) in impls.items() for shape in shapes]
    metrics = [metric_row(name, "time", ns, n=30, ci_low=ns, ci_high=ns) for name, ns, _ in names]
    metrics += [metric_row(name, "error_rel_l1", e, "1") for name, _, e in names if e is not None]
    flags = {name: [] if e is not None else ["unchecked"] for name, _, e in names}
    return tables([case_row(name, flags=flags[name]) for name, _, _ in names], metrics=metrics)


def only(data: Tables, **workload: Any) -> WorkloadFindings:
    (found,) = analyze(data, run(**workload)).workloads
    return found


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The report of tables, without its pictures."""
    monkeypatch.setattr(plots, "draw", lambda findings, folder: {})

    def render(data: Tables, **workload: Any) -> str:
        spec = run(**workload)
        template = own_folder("templates") / "SUMMARY.md.j2"
        return report.render(analyze(data, spec), data, spec, tmp_path, template).read_text(encoding="utf-8")

    return render


FAST_AND_WRONG = {"a": (4000.0, 0.001), "b": (2000.0, 0.01), "c": (1000.0, 0.08)}


def test_the_win_is_that_of_the_fastest_accurate_one() -> None:
    (shape,) = only(study(**FAST_AND_WRONG)).shapes
    assert shape.win is not None and shape.fastest is shape.win.best
    assert (shape.win.best.variant, shape.win.verdict) == ("b", "clear")
    assert [point.variant for point in shape.win.barred] == ["c"]
    assert [point.marks for point in shape.points] == [("inaccurate",), (), ()]


def test_the_answer_names_the_fastest_accurate_one_and_why_another_is_not_called_faster(page: Any) -> None:
    text = page(study(**FAST_AND_WRONG))
    assert "**`b` is the fastest accurate one: 2.00 us per call, 2.00x over `a` (baseline).**" in text
    assert (
        "`c` takes 1.00 us and is not called faster: its result is **inaccurate** (error_rel_l1 is 0.08, at most 0.05)."
    ) in text
    assert (
        "**inaccurate** (1 of 3 cases): its result is further from the reference than is allowed, or no number at all."
        in text
    )


def test_a_winner_that_the_tolerance_lets_pass_says_how_much_less_exact_it_is(page: Any) -> None:
    text = page(study(**FAST_AND_WRONG))
    assert "`b` wins with 10 times the baseline's error (relative L1 0.01, of `a` 0.001)." in text
    alike = {"a": (4000.0, 0.001), "b": (2000.0, 0.004)}
    assert "the baseline's error" not in page(study(**alike))


def test_no_number_says_how_much_faster_an_inaccurate_one_is(page: Any) -> None:
    points = {point.variant: point for point in only(study(**FAST_AND_WRONG)).points}
    assert points["c"].time is not None and points["c"].speedup is None and points["b"].speedup == 2
    row = next(line for line in page(study(**FAST_AND_WRONG)).splitlines() if line.startswith("| `c` | 1.00"))
    assert "inaccurate" in row and "x" not in row.replace("inaccurate", "")


def test_the_fastest_number_of_a_table_is_that_of_the_fastest_accurate_one(page: Any) -> None:
    text = page(study((",seqlen=1", ",seqlen=2"), **FAST_AND_WRONG))
    assert "| `b` | **2.00** | **2.00** |" in text
    assert "| `c` | 1.00 *inaccurate* | 1.00 *inaccurate* |" in text
    assert "**`b` is the fastest accurate one in both shapes: 2.00x over `a` (baseline);" in text
    assert (
        "`c` takes less time in both shapes and is not called faster: its result is **inaccurate**"
        " (error_rel_l1 is 0.08, at most 0.05 at seqlen 2)."
    ) in text


def test_several_that_are_not_called_faster_in_the_same_shapes_share_a_sentence(page: Any) -> None:
    wrong = {**FAST_AND_WRONG, "d": (1500.0, 0.07)}
    assert (
        "`c` (1.00 us) and `d` (1.50 us) take less time and are not called faster: their results are **inaccurate**"
        " (`c`: error_rel_l1 is 0.08, at most 0.05)."
    ) in page(study(**wrong))
    assert (
        "`c` and `d` take less time in both shapes and are not called faster: their results are **inaccurate**"
        " (`c`: error_rel_l1 is 0.08, at most 0.05 at seqlen 2)."
    ) in page(study((",seqlen=1", ",seqlen=2"), **wrong))


def test_an_inaccurate_one_that_is_slower_anyway_is_no_part_of_the_answer(page: Any) -> None:
    text = page(study(a=(4000.0, 0.001), b=(2000.0, 0.01), c=(9000.0, 0.08)))
    assert "**`b` is fastest: 2.00 us per call, 2.00x over `a` (baseline).**" in text
    assert "not called faster:" not in text and "**inaccurate** (1 of 3 cases)" in text


def test_an_unchecked_one_is_not_called_faster_under_a_tolerance(page: Any) -> None:
    data = study(a=(4000.0, 0.001), b=(2000.0, None))
    text = page(data)
    assert "**Only `a` has a time and is accurate: 4.00 us per call.**" in text
    assert "`b` takes 2.00 us and is not called faster: its result is **unchecked** (nothing was compared" in text
    assert "**`b` is fastest" in page(data, tolerance={})


def test_where_none_is_accurate_none_wins(page: Any) -> None:
    data = study(a=(4000.0, 0.2), b=(2000.0, 0.1))
    (shape,) = only(data).shapes
    assert shape.fastest is None
    assert (
        "`b` has the lowest time, 2.00 us per call, but is not called the fastest:"
        " its result is inaccurate, and no other is accurate"
    ) in page(data)


def test_where_no_result_was_compared_that_is_why_none_wins(page: Any) -> None:
    data = study(a=(4000.0, None), b=(2000.0, None))
    assert "but is not called the fastest: no result was compared with the reference.**" in page(data)
    one_compared = study(a=(4000.0, 0.2), b=(2000.0, None))
    assert "is not called the fastest: its result is unchecked, and no other is accurate.**" in page(one_compared)


def with_shapes(*errors: float) -> Tables:
    """``c`` takes less time in as many shapes as it has errors."""
    data = study(tuple(f",seqlen={n}" for n in range(len(errors))), a=(4000.0, 0.0), c=(1000.0, 0.0))
    for n, error in enumerate(errors):
        own = (data.metrics["case"] == f"impl=c,seqlen={n}") & (data.metrics["metric"] == "error_rel_l1")
        data.metrics.loc[own, "value"] = error
    return data


def test_of_one_that_misses_in_several_shapes_the_least_and_the_largest_miss_are_told(page: Any) -> None:
    assert (
        "`c` takes less time in all 3 shapes and is not called faster: its result is **inaccurate** (least:"
        " error_rel_l1 is 0.06, at most 0.05 at seqlen 1; most: error_rel_l1 is 3.04, at most 0.05 at seqlen 0)."
    ) in page(with_shapes(3.04, 0.06, 0.7))
    nearly_alike = page(with_shapes(0.101, 0.1))
    assert "**inaccurate** (error_rel_l1 is 0.101, at most 0.05 at seqlen 0)." in nearly_alike


def test_a_result_that_is_no_number_is_the_largest_miss(page: Any) -> None:
    assert "most: error_rel_l1 is inf, at most 0.05 at seqlen 0)." in page(with_shapes(math.inf, 0.7))


def test_several_winners_are_those_of_the_accurate_ones(page: Any) -> None:
    data = study((",seqlen=1",), **FAST_AND_WRONG)
    other = study((",seqlen=2",), a=(1000.0, 0.0), b=(2000.0, 0.0), c=(4000.0, 0.08))
    both = tables(
        [*data.cases.to_dict("records"), *other.cases.to_dict("records")],
        metrics=[*data.metrics.to_dict("records"), *other.metrics.to_dict("records")],
    )
    assert "**Fastest of the accurate ones: `b` at seqlen 1 (2.00x over `a` (baseline)) and" in page(both)


def test_sums_of_kernels_win_nothing_either_for_a_result_that_plain_found_inaccurate() -> None:
    kernels = [kernel_row(f"impl={i}", ATTENTION, 10, ns) for i, ns in (("a", 4000.0), ("b", 1000.0))]
    ranges = [range_row(f"impl={i}", 10) for i in "ab"]
    errors = [metric_row(f"impl={i}", "error_rel_l1", e, "1") for i, e in (("a", 0.0), ("b", 0.5))]
    found = only(tables(kernels=kernels, ranges=ranges, metrics=errors))
    assert found.basis is not None and found.basis.quantity == "kernel"
    assert [s.win.best.variant for s in found.shapes if s.win] == ["a"]
    assert all(not shape.swaps for shape in found.shapes)
    assert {p.variant: p.kernel_speedup for p in found.points} == {"a": 1.0, "b": None}


def test_a_mark_in_files_without_their_pipeline_takes_the_win_too() -> None:
    rows = [case_row("impl=a"), case_row("impl=b", flags=["inaccurate"])]
    data = tables(rows, metrics=[metric_row(f"impl={i}", "time", ns) for i, ns in (("a", 2.0), ("b", 1.0))])
    (found,) = analyze(data, {}).workloads
    assert [shape.win.best.variant for shape in found.shapes if shape.win] == ["a"]


def test_a_case_that_ran_out_of_memory_is_no_miss_of_the_tolerance() -> None:
    data = tables(
        [case_row("impl=a"), case_row("impl=b", status="oom", reason="too large")],
        metrics=[metric_row("impl=a", "time", 1.0), metric_row("impl=a", "error_rel_l1", 0.0, "1")],
    )
    assert {point.variant: point.marks for point in only(data).points} == {"a": (), "b": ()}


def test_a_table_says_of_each_tensor_whether_it_is_within_the_tolerance(page: Any) -> None:
    data = study(**FAST_AND_WRONG, d=(9000.0, None))
    more = {"error_rel_l1_dq": 0.06, "error_max": 0.25, "cosine": 0.99995, "cosine_dq": 0.9, "checked": 12.5}
    rows = [metric_row("impl=b", name, value, "1") for name, value in more.items()]
    data = tables(data.cases.to_dict("records"), metrics=[*data.metrics.to_dict("records"), *rows])
    section = page(data).partition("## Accuracy")[2].partition("\n## ")[0]
    assert (
        "Differences from the workload's reference. Allowed: error_rel_l1 at most 0.05, for gradients as for the"
        " output. 1 of 3 compared cases is within that. Not: `c` (error_rel_l1 is 0.08, at most 0.05) and `b`"
        " (error_rel_l1_dq is 0.06, at most 0.05). Not compared: `d`.\n"
    ) in section
    assert [line for line in section.splitlines() if line.startswith("|")][2:] == [
        "| `c` | out | – | 0.08 | – | – | **no**: relative L1 at most 0.05 |",
        "| `b` | out | 0.25 | 0.01 | 0.999950 | 12.5 | yes |",
        "| `b` | dQ | – | 0.06 | 0.900 | 12.5 | **no**: relative L1 at most 0.05 |",
        "| `a` | out | – | 0.001 | – | – | yes |",
        "| `d` | – | – | – | – | – | **unchecked** |",
    ]


def _with_gradients(cases: int, worst: float) -> WorkloadFindings:
    """Cases with four tensors each, of which dK is the furthest from its reference."""
    errors = {"": 0.001, "_dq": 0.002, "_dk": worst, "_dv": 0.003}
    rows = [metric_row(f"impl=i{i}", "time", 1000.0 + i, n=30) for i in range(cases)]
    rows += [metric_row(f"impl=i{i}", f"error_rel_l1{t}", e, "1") for i in range(cases) for t, e in errors.items()]
    rows += [metric_row(f"impl=i{i}", f"cosine{t}", 0.9999, "1") for i in range(cases) for t in errors]
    return only(tables(metrics=rows), tolerance={"error_rel_l1": 0.05, "cosine": 0.99})


def test_of_many_rows_within_the_tolerance_a_case_has_that_of_its_worst_tensor() -> None:
    found = _with_gradients(cases=8, worst=0.04)
    sheet = accuracy_sheets.worst(found, found.points)
    assert list(sheet.head) == ["impl", "worst", "relative L1", "cosine", "within tolerance"]
    assert sheet.rows[0] == ["`i0`", "dK", "0.04", "0.999900", "yes"] and len(sheet.rows) == 8
    few, outside = _with_gradients(cases=7, worst=0.04), _with_gradients(cases=8, worst=0.06)
    assert not accuracy_sheets.worst(few, few.points) and not accuracy_sheets.worst(outside, outside.points)
    forward = only(study(**{f"i{i}": (1.0 + i, 0.001) for i in range(40)}))
    assert not accuracy_sheets.worst(forward, forward.points)


def test_all_tensors_of_cases_that_show_their_worst_are_folded() -> None:
    worst, every = chapters._accuracy(_with_gradients(cases=8, worst=0.04))
    assert (worst.folded, len(worst.sheet.rows)) == (False, 8)
    assert (every.title, every.folded, len(every.sheet.rows)) == ("every tensor", True, 32)
    assert len(list(chapters._accuracy(_with_gradients(cases=8, worst=0.06)))) == 1


def test_only_what_was_compared_is_counted_as_within_the_tolerance_or_not() -> None:
    unchecked = {"c": (1.0, None), "d": (1.0, None)}
    assert "1 of 1 compared case is within that. Not compared: `c` and `d`." in accuracy_sheets.said(
        only(study(b=(1.0, 0.0), **unchecked))
    )
    assert "No case was compared. Not compared: `c` and `d`." in accuracy_sheets.said(only(study(**unchecked)))
    assert accuracy_sheets.said(only(study(a=(1.0, 0.0), b=(1.0, 0.0)))).endswith("Every case is within that.")


def test_a_difference_from_a_reference_of_the_same_dtype_is_said_to_be_rounding() -> None:
    def told(*dtypes: str, reference: str = "fp32") -> str:
        rows = [case_row(f"dtype={d}", params={"impl": "a", "dtype": d, "reference": reference}) for d in dtypes]
        errors = [metric_row(f"dtype={d}", "error_rel_l1", 1e-6, "1") for d in dtypes]
        return accuracy_sheets.said(only(tables(rows, metrics=errors), tolerance={}))

    too = "reference is fp32 too, so a relative L1 of about 1e-6 is that of rounding, in either of the two."
    assert told("fp32") == f"The {too}"
    assert told("fp32", "fp16") == f"For the cases in fp32 the {too}"
    assert told("fp16") == told("fp32", reference="fp64") == ""


def test_without_a_tolerance_differences_are_told_and_not_judged(page: Any) -> None:
    text = page(study(**FAST_AND_WRONG), tolerance={})
    section = text.partition("## Accuracy")[2].partition("\n## ")[0]
    assert "Differences from the workload's reference.\n" in section and "within" not in section
    assert "| `c` | out | 0.08 |" in section


def test_the_largest_error_alone_stands_with_the_times(page: Any) -> None:
    data = tables(metrics=[metric_row("impl=a", "time", 1.0), metric_row("impl=a", "error_max", 0.5, "1")])
    assert "## Accuracy" not in page(data, tolerance={})


def test_a_study_may_ask_whether_a_case_passed(page: Any) -> None:
    data, spec = study(**FAST_AND_WRONG, d=(9000.0, None)), run()
    spec["pipeline"]["tables"] = [{"title": "Accuracy", "rows": ["impl"], "value": ["passed"]}]
    (table,) = analyze(data, json.loads(json.dumps(spec))).studies
    values = {row[0]: cells[0].value for row, cells in zip(table.grids[0].rows, table.grids[0].cells, strict=True)}
    assert values == {"a": "pass", "b": "pass", "c": "fail", "d": None}


def test_a_study_shows_the_digits_that_tell_a_cosine_from_one() -> None:
    spec = run()
    spec["pipeline"]["tables"] = [{"title": "Accuracy", "rows": ["impl"], "value": ["cosine_dq"]}]
    data = tables(metrics=[metric_row(f"impl={i}", "cosine_dq", value, "1") for i, value in (("a", 0.99995), ("b", 1))])
    (table,) = analyze(data, spec).studies
    assert [row[1] for row in study_sheets.written(table).parts[0].sheet.rows] == ["0.999950", "1"]


@pytest.mark.parametrize("limits", [{}, {"error_max": 0.5}])
def test_a_nan_of_a_measure_without_a_limit_is_known_by_the_mark_of_its_process(page: Any, limits: Any) -> None:
    numbers = [metric_row(f"impl={impl}", "time", ns) for impl, ns in (("a", 2000.0), ("b", 1000.0))]
    numbers += [metric_row(f"impl={impl}", "error_max", 0.1, "1") for impl in "ab"]
    rows = [case_row("impl=a"), case_row("impl=b", flags=["inaccurate"])]
    text = page(tables(rows, metrics=[*numbers, metric_row("impl=b", "cosine", -1.0, "1")]), tolerance=limits)
    assert "`b` takes 1.00 us and is not called faster: its result is **inaccurate** (no number: cosine)." in text


def test_without_a_tolerance_too_what_is_no_number_is_not_called_faster(page: Any) -> None:
    numbers = [metric_row(f"impl={impl}", "time", ns) for impl, ns in (("a", 2000.0), ("b", 1000.0))]
    wrong = metric_row("impl=b", "error_max", math.inf, "1")
    text = page(tables(metrics=[*numbers, wrong]), tolerance={})
    told = "takes 1.00 us and is not called faster: its result is **inaccurate** (error_max is inf, at most a finite"
    assert "Only `a` has a time and is accurate" in text and told in text
