"""Pipeline x machine -> [Job]."""

from pathlib import Path

import pytest

from profpipe.analysis.cases import comparisons, parse_id
from profpipe.config.models import Pipeline, Workload
from profpipe.errors import ConfigError
from profpipe.job import Missing, Tool
from profpipe.runner import plan

TOOLS = {"plain": Tool("plain", ""), "torch": Tool("torch", "2"), "nsys": Missing("nsys", "not here", "Install it.")}


def jobs(workload, tools=TOOLS, **narrowed):
    pipeline = Pipeline.model_validate({"version": 1, "workloads": {"w": {"profilers": ["plain"], **workload}}})
    place = {"scripts": {"w": Path("/p/w.py")}, "cwd": Path("/p"), "out": Path("/o"), "python": "python"}
    return plan.plan(pipeline, tools, **place, **narrowed)


def ids(workload):
    return [case.id for case in jobs(workload)[0].cases]


def test_cases_are_the_product_of_the_matrix_and_the_last_axis_varies_fastest():
    matrix = {"impl": ["a", "b"], "n": [1, 2]}
    assert ids({"script": "w", "matrix": matrix}) == ["impl=a,n=1", "impl=a,n=2", "impl=b,n=1", "impl=b,n=2"]


def test_excluded_cases_are_those_that_match_every_value_of_an_entry():
    matrix = {"impl": ["a", "b"], "n": [1, 2, 3]}
    assert ids({"script": "w", "matrix": matrix, "exclude": [{"impl": "b", "n": "2,3"}]}) == [
        "impl=a,n=1", "impl=a,n=2", "impl=a,n=3", "impl=b,n=1",
    ]  # fmt: skip


def test_an_included_case_is_named_in_the_order_of_the_axes_and_counted_once():
    included = [{"n": 9, "impl": "b"}, {"n": 1, "impl": "a"}]
    workload = {"script": "w", "matrix": {"impl": ["a"], "n": [1]}, "include": included}
    assert ids(workload) == ["impl=a,n=1", "impl=b,n=9"]


def test_a_profiler_that_is_named_twice_runs_once():
    assert ids({"script": "w", "matrix": {"n": "512,1024,512"}}) == ["n=512", "n=1024"]
    assert len(jobs({"script": "w", "profilers": ["plain", "torch", "plain"]})) == 2
    assert len(jobs({"script": "w"}, profilers=["plain", "plain"])) == 1


def test_a_workload_without_matrix_has_one_case_with_a_name():
    assert ids({"script": "w", "params": {"n": 1}}) == ["default"]


def test_a_case_carries_fixed_and_varying_parameters():
    (job,) = jobs({"script": "w", "params": {"d": 64}, "matrix": {"n": [1]}})
    assert job.cases[0].params == {"d": 64, "n": 1}


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("128,128", "seqlens=128%2C128"),
        (True, "seqlens=true"),
        ("a/b=c@d", "seqlens=a%2Fb%3Dc%40d"),
        (0.5, "seqlens=0.5"),
        ("größe", "seqlens=gr%C3%B6%C3%9Fe"),
        ('C:\\a "b"', "seqlens=C:%5Ca%20%22b%22"),
        ("a\u200bb", "seqlens=a%E2%80%8Bb"),
    ],
)
def test_a_case_id_has_only_characters_that_names_ranges_and_traces_keep(value, written):
    assert plan.case_id({"seqlens": value}) == written
    assert parse_id(written) == {"seqlens": value}


def test_one_process_runs_all_cases_unless_they_are_isolated():
    matrix = {"n": [1, 2, 3]}
    assert [len(job.cases) for job in jobs({"script": "w", "matrix": matrix})] == [3]
    isolated = jobs({"script": "w", "matrix": matrix, "isolate": True})
    assert [len(job.cases) for job in isolated] == [1, 1, 1]
    assert len({job.folder for job in isolated}) == 3


def test_a_command_runs_each_case_in_its_own_process_with_its_parameters_filled_in():
    made = jobs({"command": ["python", "t.py", "--n={n}", '{"json": {n}}'], "matrix": {"n": [1, 2]}})
    assert [job.command for job in made] == [
        ("python", "t.py", "--n=1", '{"json": 1}'), ("python", "t.py", "--n=2", '{"json": 2}'),
    ]  # fmt: skip


def test_parameters_are_filled_into_the_variables_of_a_command_and_not_of_a_script():
    env = {"BATCH": "{n}", "BOTH": '{"n": {n}, "d": {d}}', "FIXED": "1"}
    made = jobs({"command": ["python", "t.py"], "params": {"d": True}, "matrix": {"n": [1, 2]}, "env": env})
    assert [job.launch.env["BATCH"] for job in made] == ["1", "2"]
    assert made[1].launch.env["BOTH"] == '{"n": 2, "d": true}' and made[1].launch.env["FIXED"] == "1"
    (job,) = jobs({"script": "w", "matrix": {"n": [1, 2]}, "env": {"JSON": '{"a": {}}'}}, env={"OURS": "{n}"})
    assert job.launch.env == {"OURS": "{n}", "JSON": '{"a": {}}'}


def test_limits_of_a_case_reach_its_job():
    (job,) = jobs({"script": "w", "case_timeout_s": 60, "skip_larger_after_oom": False})
    assert job.dump_settings()["case_timeout_s"] == 60 and job.dump_settings()["skip_larger_after_oom"] is False
    (job,) = jobs({"script": "w"})
    assert job.dump_settings()["case_timeout_s"] is None and job.dump_settings()["skip_larger_after_oom"] is True


def test_a_missing_tool_keeps_its_job_so_that_its_cases_are_reported():
    (job,) = jobs({"script": "w", "profilers": ["nsys"]})
    assert isinstance(job.tool, Missing)


def test_torch_profiler_enters_a_command_by_the_start_up_hook():
    (job,) = jobs({"command": ["x"], "profilers": ["torch"]})
    assert isinstance(job.tool, Tool)
    (without,) = jobs({"command": ["x"], "profilers": ["torch"], "hook": False})
    assert isinstance(without.tool, Missing) and "hook" in without.tool.remedy


@pytest.mark.parametrize(
    ("profiler", "options", "why"),
    [
        ("ncu", (), "ncu records steps"),
        ("rocprof", (), "this rocprof cannot record a span of time"),
        ("rocprof", ("--collection-period",), ""),
        ("torch", (), ""),
        ("plain", (), ""),
    ],
)
def test_a_profiler_that_cannot_record_a_span_of_time_is_skipped_with_the_reason(profiler, options, why):
    tool = Tool(profiler, "1", options=options)
    command = {"command": ["server"], "profilers": [profiler], "capture": {"for_s": 5}}
    (job,) = jobs(command, {profiler: tool})
    assert (why in str(job.tool)) if why else job.tool == tool


def test_a_matrix_whose_points_are_all_excluded_is_refused():
    with pytest.raises(ConfigError, match="has no case left"):
        jobs({"script": "w", "matrix": {"n": [1]}, "exclude": [{"n": 1}]})


@pytest.mark.parametrize("narrowed", [{"workloads": ["v"]}, {"profilers": ["plian"]}])
def test_an_unknown_name_on_the_command_line_is_refused(narrowed):
    with pytest.raises(ConfigError, match="unknown name"):
        jobs({"script": "w"}, **narrowed)


@pytest.mark.parametrize(
    ("settings", "groups"),
    [
        # Without a compared axis no case is compared with another.
        ({"matrix": {"n": [1, 2]}}, [("n=1",), ("n=2",)]),
        ({"matrix": {"impl": ["a", "b"], "n": [1, 2]}}, [("impl=a,n=1", "impl=b,n=1"), ("impl=a,n=2", "impl=b,n=2")]),
        # The axes of the baseline, and an option of one implementation.
        (
            {"matrix": {"dtype": ["x", "y"], "n": [1]}, "include": [{"dtype": "y", "n": 1, "topk": 0.5}],
             "baseline": {"dtype": "x"}},
            [("dtype=x,n=1", "dtype=y,n=1", "dtype=y,n=1,topk=0.5")],
        ),
        ({"matrix": {"impl": ["a"], "f": [1, 2]}, "baseline": {"impl": "a", "f": 1}}, [("impl=a,f=1", "impl=a,f=2")]),
    ],
)  # fmt: skip
def test_cases_that_the_report_compares_are_a_group(settings, groups):
    workload = Workload(script="x.py", **settings)
    assert comparisons(plan.cases(workload), workload) == groups
