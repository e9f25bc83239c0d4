"""A result that is too far from its reference wins nothing: the limits, the harness that holds them, and the report."""

import math
import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from report_study import (
    ATTENTION,
    analyze,
    case_row,
    check_studies,
    every_table,
    kernel_row,
    metric_row,
    range_row,
    tables,
)

from profpipe import plugins
from profpipe.config import loader
from profpipe.errors import ConfigError
from profpipe.measure import harness, rounds, workload_metrics
from profpipe.measure.conditions import GpuConditions, Reading
from profpipe.measure.tolerance import judge, shown
from profpipe.plugins import builtin_folder
from profpipe.report.document import OnPage
from profpipe.report.sections import cases, headline, kernel_share, times
from profpipe.report.sections.studies import study_table

# --- limits ----------------------------------------------------------------------------------------------------------


def test_errors_may_be_as_large_and_cosines_as_small_as_their_limits():
    limits = {"error_max": 0.5, "cosine": 0.99}
    assert judge({"error_max": 0.5, "cosine": 0.99}, limits).flag == ""
    assert judge({"error_max": 0.51, "cosine": 0.99}, limits).flag == "inaccurate"
    assert judge({"error_max": 0.5, "cosine": 0.98}, limits).flag == "inaccurate"


def test_a_limit_applies_to_gradients_without_a_limit():
    checked = {"error_max": 0.1, "error_max_dq": 0.3, "error_max_dk": 0.1}
    assert judge(checked, {"error_max": 0.2}).why == "error_max_dq is 0.3, at most 0.2"
    assert judge(checked, {"error_max": 0.2, "error_max_dq": 0.4}).flag == ""


def test_the_worst_misses_are_named_first_and_the_rest_counted():
    checked = {"error_max": 3.0, "error_mean": 9.0, "cosine": 0.5, "cosine_dq": 0.2}
    assert judge(checked, {"error_max": 1, "error_mean": 1, "cosine": 0.9}).why == (
        "error_mean is 9, at most 1; error_max is 3, at most 1; and 2 more"
    )


def test_a_limit_is_shown_as_written():
    assert judge({"cosine": 0.5}, {"cosine": 0.99999999}).why == "cosine is 0.500, at least 0.99999999"
    assert judge({"error_max": 0.5}, {"error_max": 1e-4}).why == "error_max is 0.5, at most 0.0001"


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_a_nan_is_outside_every_limit(wrong):
    assert judge({"error_max": wrong}, {"error_max": 1e9}).flag == "inaccurate"
    assert judge({"cosine": -1.0}, {"cosine": 0.0}).flag == "inaccurate"
    assert judge({"cosine": math.nan}, {"cosine": 0.0}).flag == "inaccurate"


def test_a_case_passes_only_limits_that_were_compared():
    assert judge({"flops": 1.0}, {"error_max": 1}).why == "nothing was compared for error_max"
    assert judge({"error_max": 0.0}, {"error_max": 1, "cosine": 0.9}).flag == "unchecked"
    assert judge({}, {"error_max_dq": 1}).flag == "unchecked"


def test_the_limit_of_a_gradient_does_not_apply_to_a_forward_pass():
    assert judge({"error_max": 0.5}, {"error_max": 1, "error_max_dq": 2}).flag == ""
    assert judge({"error_max": 0.5, "error_max_dq": 3.0}, {"error_max": 9, "error_max_dq": 2}).flag == "inaccurate"
    assert judge({"error_max_dq": 0.5}, {"error_max": 1}).flag == ""


def test_without_limits_everything_passes_that_is_a_number():
    assert judge({"error_max": 1e30, "error_rel_l1": math.inf}, {}).flag == judge({}, {}).flag == ""


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
def test_a_cosine_has_enough_digits_to_differ_from_one(value, text):
    assert shown("cosine_dq", value) == text


# --- in the pipeline file --------------------------------------------------------------------------------------------

WORKLOAD = "PARAMS = {'n': 1}\ndef build(params):\n    return lambda: None\n"


def pipeline(folder, tolerance, place="workloads"):
    (folder / "workloads").mkdir(exist_ok=True)
    (folder / "workloads" / "mine.py").write_text(WORKLOAD)
    defaults = f"defaults: {{tolerance: {tolerance}}}\n" if place == "defaults" else ""
    own = f", tolerance: {tolerance}" if place == "workloads" else ""
    (folder / "p.yaml").write_text(f"version: 1\n{defaults}workloads:\n  w: {{script: mine{own}}}\n")
    return loader.load_pipeline(folder / "p.yaml", env={})


def test_a_tolerance_reaches_the_harness_and_may_stand_in_defaults(tmp_path):
    for place in ("workloads", "defaults"):
        workload = pipeline(tmp_path, "{error_rel_l1: 0.05, cosine_dq: 0.99}", place).workloads["w"]
        assert dict(workload.tolerance) == {"error_rel_l1": 0.05, "cosine_dq": 0.99}


@pytest.mark.parametrize(
    ("tolerance", "place", "message"),
    [
        ("{error_rell1: 0.05}", "workloads.w.tolerance.error_rell1", "Did you mean 'error_rel_l1'?"),
        ("{error_max_dQ: 0.05}", "workloads.w.tolerance.error_max_dQ", "Did you mean 'error_max_d"),
        ("{cosine: 1.5}", "workloads.w.tolerance", "no cosine is at least 1.5: 1 is the most that it can be"),
        ("{error_max: -1}", "workloads.w.tolerance.error_max", "at least 0"),
        ("{error_max: .inf}", "workloads.w.tolerance.error_max", "finite"),
        ("{error_max: some}", "workloads.w.tolerance.error_max", "number"),
        ("0.05", "workloads.w.tolerance", "is not a mapping"),
    ],
)
def test_a_limit_that_means_nothing_is_refused_with_its_place(tmp_path, tolerance, place, message):
    with pytest.raises(ConfigError) as raised:
        pipeline(tmp_path, tolerance)
    assert f"{place}: " in str(raised.value) and message in str(raised.value)


def test_a_wrong_limit_in_defaults_is_reported_once(tmp_path):
    with pytest.raises(ConfigError) as raised:
        pipeline(tmp_path, "{cosin: 0.9}", "defaults")
    assert str(raised.value).count("Did you mean 'cosine'?") == 1


# --- in the workload's process ---------------------------------------------------------------------------------------


class Workload:
    """A workload whose check says what it was made with."""

    def __init__(self, found):
        self._found = found

    def check(self, params):
        if isinstance(self._found, Exception):
            raise self._found
        return self._found


def written(found, limits):
    """(marks, notes) of a case whose check gives ``found``."""
    events: list[dict[str, Any]] = []
    marks = workload_metrics.write(Workload(found), {}, lambda event, **f: events.append({"event": event, **f}), limits)
    return marks, [event["text"] for event in events if event["event"] == "note"]


def test_a_miss_is_flagged_with_its_measure_value_and_limit():
    assert written({"error_rel_l1": 0.08}, {"error_rel_l1": 0.05}) == (
        ["inaccurate"], ["inaccurate: error_rel_l1 is 0.08, at most 0.05"],
    )  # fmt: skip
    assert written({"error_rel_l1": 0.04}, {"error_rel_l1": 0.05}) == ([], [])
    assert written({"error_rel_l1": 0.08}, {}) == ([], [])


def test_a_check_that_fails_or_compares_something_else_leaves_the_case_unchecked():
    assert written(MemoryError("too large"), {"error_max": 1}) == (["unchecked"], [])
    assert written({"loss": 0.5}, {"error_max": 1}) == (
        ["unchecked"], ["unchecked: nothing was compared for error_max"],
    )  # fmt: skip
    marks = workload_metrics.write(object(), {}, lambda event, **fields: None, {"error_max": 1})
    assert marks == ["unchecked"]


@pytest.mark.parametrize("odd", ["x", None, [0.1]])
def test_a_measure_that_is_not_a_number_is_named_and_the_case_is_unchecked(odd):
    limits = {"error_max": 1.0, "cosine": 0.9}
    assert written({"error_max": odd, "cosine": 0.99}, limits) == (
        ["unchecked"], [f"unchecked: error_max is not a number: {odd!r}"],
    )  # fmt: skip
    assert written({"error_max": odd, "cosine": 0.5}, limits)[0] == ["inaccurate"]
    assert written({"error_max": odd}, {"cosine": 0.9})[0] == ["unchecked"]


def test_without_a_tolerance_text_is_unchecked_and_none_is_missing():
    assert written({"error_max": "x"}, {}) == (["unchecked"], ["unchecked: error_max is not a number: 'x'"])
    assert written({"error_max": [0.1], "cosine": 0.99}, {})[0] == ["unchecked"]
    assert written({"error_max": None}, {}) == ([], [])
    assert written({"loss": "x"}, {}) == ([], [])


class OneNumber:
    """The common part of torch and numpy: ``item`` returns the number."""

    def __init__(self, *values):
        self._values = values

    def item(self):
        if len(self._values) != 1:
            raise RuntimeError(f"a Tensor with {len(self._values)} elements cannot be converted to Scalar")
        return self._values[0]


def test_a_tensor_of_one_element_is_the_number_in_it():
    assert written({"error_max": OneNumber(math.nan)}, {}) == (
        ["inaccurate"], ["inaccurate: error_max is nan, at most a finite number"],
    )  # fmt: skip
    assert written({"error_max": np.array([0.2])}, {"error_max": 0.5}) == ([], [])
    assert written({"error_max": OneNumber(0.1, 0.2)}, {})[0] == ["unchecked"]
    recorded: dict[str, Any] = {}
    workload = SimpleNamespace(
        flops=lambda params: OneNumber(5.0),
        facts=lambda params: {"parameters": (OneNumber(3.0), "1")},
    )
    workload_metrics.write(workload, {}, lambda event, **f: recorded.update({f["metric"]: f["value"]}), {})
    assert recorded == {"flops": 5.0, "parameters": 3.0}


# --- names -----------------------------------------------------------------------------------------------------------


def said_by(workload):
    """The events of a case of ``workload``."""
    recorded: list[dict[str, Any]] = []
    workload_metrics.write(workload, {}, lambda event, **own: recorded.append({"event": event, **own}), {})
    return recorded


@pytest.mark.parametrize("name", ["time", "time_p90", "iterations", "peak_allocated", "flops", "flops.int8", "power"])
@pytest.mark.parametrize("function", ["facts", "check"])
def test_a_number_with_a_reserved_name_is_an_error(function, name):
    numbers = {"facts": {"parameters": (3.0, "1"), name: (1.0, "ns")}, "check": {"loss": 3.0, name: 1.0}}[function]
    (event,) = said_by(SimpleNamespace(**{function: lambda params: numbers}))
    assert (event["event"], event["during"]) == ("error", function)
    assert f"'{name}' is a metric of profpipe" in event["reason"]


def test_every_measurement_of_a_case_has_a_reserved_name(tmp_path):
    """The names that measuring writes, and those that the parser makes of samples, are all of them refused."""
    record = tmp_path / "job.jsonl"
    with record.open("w") as stream:
        events = harness.Events(stream)
        events.write("started", profiler="plain")
        plan = rounds.TimingPlan.from_spec(
            {"options": {"timing": {"mode": "both", "budget_s": 0.01}}, "warmup": 1, "repeats": 5}
        )
        events.write("case_started", case="a", params={})
        case = rounds.CaseTiming(plan, "cpu", "case:a", events.bind_case("a"))
        case.visit(lambda: sum(range(1000)))
        case.finish(lambda: sum(range(1000)))
        for name in (rounds.RANK_TIME, rounds.GRAPH_TIME):
            events.write("samples", case="a", metric=name, unit="ns", values=[1.0, 2.0])
    parsed = plugins.load_module(builtin_folder("parsers") / "events.py").parse(record)
    reading = Reading(sm_clock_hz=1e9, power_w=100.0, temperature_c=50.0)
    measured = {*parsed.metrics["metric"], *GpuConditions((reading,)).metrics()}
    assert {"time", "loop_wall", "temperature", "time_own_cv"} <= measured
    assert measured <= workload_metrics.MEASURED


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("flops", -5),
        ("flops", {"fp16": 9.0, "int8": -2.0}),
        ("bytes_moved", -1.0),
        ("phase_work", {"forward": {"flops": 1, "bytes_moved": -1}}),
    ],
)
def test_negative_work_is_left_out_with_the_reason(name, value):
    recorded: list[dict[str, Any]] = []
    workload = SimpleNamespace(**{name: lambda params: value})
    workload_metrics.write(workload, {}, lambda event, **own: recorded.append({"event": event, **own}), {})
    (event,) = recorded
    assert event["event"] == "error" and event["during"] == name
    assert re.search(r"ValueError: (flops|bytes_moved) is -\d", event["reason"])


def test_a_nan_is_written_as_the_worst_difference_for_no_table_holds_a_nan():
    recorded: dict[str, Any] = {}
    check = {"error_max": math.nan, "cosine_dq": math.nan, "error_max_dq": 0.01, "loss": math.nan}

    def events(event, **fields):
        recorded.update({fields["metric"]: fields["value"]} if event == "metric" else {"note": fields["text"]})

    assert workload_metrics.write(Workload(check), {}, events, {"error_max": 0.05}) == ["inaccurate"]
    assert (recorded["error_max"], recorded["cosine_dq"], recorded["error_max_dq"]) == (math.inf, -1.0, 0.01)
    assert math.isnan(recorded["loss"]) and recorded["note"].startswith("inaccurate: error_max is nan, at most 0.05")
    numbers = {name: value for name, value in recorded.items() if name != "note"}
    assert judge(numbers, {"error_max": 0.05}).flag == "inaccurate", "judged again when the run is analysed"


def test_a_nan_never_passes_also_without_a_tolerance():
    for wrong in (math.nan, math.inf):
        marks, notes = written({"error_max": wrong, "cosine": 0.9}, {})
        assert (marks, notes) == (["inaccurate"], [f"inaccurate: error_max is {wrong}, at most a finite number"])
    for measure in ("error_rel_l1", "cosine", "cosine_dq"):
        assert written({measure: math.nan}, {})[0] == ["inaccurate"]
        assert written({measure: math.nan, "error_max": 0.1}, {"error_max": 0.5})[0] == ["inaccurate"]
    # A reference of zeros, such as the gradient of a single key, makes any rounding an infinite relative error.
    assert written({"error_max": 1e-7, "error_rel_l1": math.inf}, {}) == ([], [])


# --- in the report ---------------------------------------------------------------------------------------------------

LIMITS = {"error_rel_l1": 0.05}


def run(**workload):
    return {"pipeline": {"workloads": {"w": {"baseline": {"impl": "a"}, "tolerance": LIMITS, **workload}}}}


def study(shapes=("",), **impls):
    """Cases with a time and a relative error each; None where it was not compared."""
    names = [(f"impl={impl}{shape}", ns, error) for impl, (ns, error) in impls.items() for shape in shapes]
    metrics = [metric_row(name, "time", ns, n=30, ci_low=ns, ci_high=ns) for name, ns, _ in names]
    metrics += [metric_row(name, "error_rel_l1", e, "1") for name, _, e in names if e is not None]
    flags = {name: [] if e is not None else ["unchecked"] for name, _, e in names}
    return tables([case_row(name, flags=flags[name]) for name, _, _ in names], metrics=metrics)


def only(data, **workload):
    (found,) = analyze(data, run(**workload)).workloads
    return found


FAST_AND_WRONG = {"a": (4000.0, 0.001), "b": (2000.0, 0.01), "c": (1000.0, 0.08)}


def sums_of_kernels():
    kernels = [kernel_row(f"impl={i}", ATTENTION, 10, ns) for i, ns in (("a", 4000.0), ("b", 1000.0))]
    errors = [metric_row(f"impl={i}", "error_rel_l1", e, "1") for i, e in (("a", 0.0), ("b", 0.5))]
    return tables(kernels=kernels, ranges=[range_row(f"impl={i}", 10) for i in "ab"], metrics=errors)


def of_tensors():
    data = study(**FAST_AND_WRONG, d=(9000.0, None))
    more = {"error_rel_l1_dq": 0.06, "error_max": 0.25, "cosine": 0.99995, "cosine_dq": 0.9, "checked": 12.5}
    rows = [metric_row("impl=b", name, value, "1") for name, value in more.items()]
    return tables(data.cases.to_dict("records"), metrics=[*data.metrics.to_dict("records"), *rows])


def with_gradients(cases, worst):
    """Cases with four tensors each, of which dK is the furthest from its reference."""
    errors = {"": 0.001, "_dq": 0.002, "_dk": worst, "_dv": 0.003}
    rows = [metric_row(f"impl=i{i}", "time", 1000.0 + i, n=30) for i in range(cases)]
    rows += [metric_row(f"impl=i{i}", f"error_rel_l1{t}", e, "1") for i in range(cases) for t, e in errors.items()]
    rows += [metric_row(f"impl=i{i}", f"cosine{t}", 0.9999, "1") for i in range(cases) for t in errors]
    return only(tables(metrics=rows), tolerance={"error_rel_l1": 0.05, "cosine": 0.99})


def of_types(*dtypes, reference="fp32"):
    rows = [case_row(f"dtype={d}", params={"impl": "a", "dtype": d, "reference": reference}) for d in dtypes]
    metrics = [metric_row(f"dtype={d}", "error_rel_l1", 1e-6, "1") for d in dtypes]
    metrics += [metric_row(f"dtype={d}", "time", 5.0) for d in dtypes]
    return only(tables(rows, metrics=metrics), tolerance={})


def not_a_number(*more, flags="inaccurate", **limits):
    rows = [metric_row(f"impl={impl}", "time", ns) for impl, ns in (("a", 2000.0), ("b", 1000.0))]
    cases = [case_row("impl=a"), case_row("impl=b", flags=flags.split())]
    return only(tables(cases, metrics=[*rows, *more]), tolerance=limits)


def studies():
    wrong, oom = only(study(**FAST_AND_WRONG)), case_row("impl=b", status="oom", reason="too large")
    yield ("The win is that of the fastest accurate one, and no number says how much faster an inaccurate one is",
           headline.headline(wrong), times.times(wrong), cases.accuracy(wrong))  # fmt: skip
    two = only(study((",seqlen=1", ",seqlen=2"), **FAST_AND_WRONG))
    yield "So is the fastest number of a table", next(iter(cases.make_shape_tables(two)))
    yield "Where none is accurate none wins", headline.headline(only(study(a=(4000.0, 0.2), b=(2000.0, 0.1))))
    sums = only(sums_of_kernels())
    yield ("Sums of kernels win nothing either", headline.headline(sums), kernel_share.kernel_share(sums),
           kernel_share.switch_cost(sums))  # fmt: skip
    flagged = tables([case_row("impl=a"), case_row("impl=b", flags=["inaccurate"])],
                     metrics=[metric_row("impl=a", "time", 2.0), metric_row("impl=b", "time", 1.0)])  # fmt: skip
    (stored,) = analyze(flagged, {}).workloads
    yield "A stored flag disqualifies without the pipeline too", headline.headline(stored)
    accurate = [metric_row("impl=a", "time", 1.0), metric_row("impl=a", "error_rel_l1", 0.0, "1")]
    lost = only(tables([case_row("impl=a"), oom], metrics=accurate))
    yield "A case out of memory does not miss the tolerance", headline.headline(lost), cases.accuracy(lost)
    yield "A table has a verdict for each tensor", cases.accuracy(only(of_tensors()))
    yield ("Many rows within the tolerance begin with the worst tensor of each case",
           cases.accuracy(with_gradients(cases=8, worst=0.04)))  # fmt: skip
    yield "Few do not", cases.accuracy(with_gradients(cases=7, worst=0.04))
    yield "Nor do those of which one is outside", cases.accuracy(with_gradients(cases=8, worst=0.06))
    forward = only(study(**{f"i{i}": (1.0 + i, 0.001) for i in range(31)}))
    yield "Nor do those of one tensor each", cases.accuracy(forward)
    unchecked = {"c": (1.0, None), "d": (1.0, None)}
    for name, data in (
        ("Only compared cases count", study(b=(1.0, 0.0), **unchecked)), ("None was compared", study(**unchecked)),
        ("Every case is within", study(a=(1.0, 0.0), b=(1.0, 0.0))),
    ):  # fmt: skip
        yield name, cases.accuracy(only(data))
    yield "A difference from a reference of the same dtype is rounding", cases.accuracy(of_types("fp32"))
    yield "So are those of the cases with that dtype", cases.accuracy(of_types("fp32", "fp16"))
    yield "Others are not", cases.accuracy(of_types("fp16")), cases.accuracy(of_types("fp32", reference="fp64"))
    yield "Without a tolerance there is no verdict", cases.accuracy(only(study(**FAST_AND_WRONG), tolerance={}))
    largest = tables(metrics=[metric_row("impl=a", "time", 1.0), metric_row("impl=a", "error_max", 0.5, "1")])
    yield "The largest error alone stands with the times", cases.accuracy(only(largest, tolerance={}))
    compared = [metric_row(f"impl={impl}", "error_max", 0.1, "1") for impl in "ab"]
    cosine = metric_row("impl=b", "cosine", -1.0, "1")
    yield ("A NaN without a limit keeps the flag of the process", headline.headline(not_a_number(*compared, cosine)),
           headline.headline(not_a_number(*compared, cosine, error_max=0.5)))  # fmt: skip
    infinite = metric_row("impl=b", "error_max", math.inf, "1")
    yield "A NaN without a tolerance is not called faster", headline.headline(not_a_number(infinite, flags=""))


def test_accuracy_reads_as_in_the_golden_file(regenerate):
    check_studies("accuracy.md", studies(), regenerate)


def test_an_inaccurate_case_has_no_speedup():
    points = {point.variant: point for point in only(study(**FAST_AND_WRONG)).cases}
    assert points["c"].time is not None and points["c"].speedup is None and points["b"].speedup == 2
    assert {case.variant: case.kernel_speedup for case in only(sums_of_kernels()).cases} == {"a": 1.0, "b": None}


@pytest.mark.parametrize(("errors", "placement"), [
    ((0.001, 0.0011), OnPage.DETAILS),
    ((0.001, 0.01), OnPage.SUMMARY),
    ((0.08, 0.08), OnPage.SUMMARY),
])  # fmt: skip
def test_accuracy_stands_on_the_short_page_only_if_it_varies_or_something_is_inaccurate(errors, placement):
    section = cases.accuracy(only(study(a=(100.0, errors[0]), b=(100.0, errors[1]))))
    assert [table.placement for table in every_table(section)] == [placement]


def test_a_study_table_shows_enough_digits_of_a_cosine():
    spec = run()
    spec["pipeline"]["tables"] = [{"title": "Accuracy", "rows": ["impl"], "value": ["cosine_dq"]}]
    data = tables(metrics=[metric_row(f"impl={i}", "cosine_dq", value, "1") for i, value in (("a", 0.99995), ("b", 1))])
    (table,) = analyze(data, spec).studies
    (written_table,) = every_table(study_table(table))
    assert [row[1].text for row in written_table.rows] == ["0.999950", "1"]
