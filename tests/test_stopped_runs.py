"""The report of a run that was stopped names the cases that have no row, and run.json lists the planned cases."""

import pytest
from jobs import make_job
from report_study import analyze, case_row, every_table, metric_row, tables

from profpipe.config.loader import load_pipeline
from profpipe.job import Case, Missing
from profpipe.report.document import plain
from profpipe.report.sections import environment, warnings
from profpipe.report.text import write_table
from profpipe.results import manifest, manifest_entries
from profpipe.results.manifest import Manifest

CASES = [f"n={n}" for n in (1, 2, 3)]


def stopped(done, **planned):
    """The record of a run of three jobs with one case each, of which ``done`` have ended."""
    jobs = [{"workload": "w", "profiler": "plain", "cases": [case]} for case in done]
    return {"planned": [{"workload": "w", "profiler": "plain", **planned}], "jobs": jobs, "ended": None}


def reported(run, rows):
    """The warnings, and the rows of the cases that are not finished: outcome, profilers, cases."""
    findings = analyze(tables(rows, metrics=[metric_row("n=1", "time", 1000.0)]), run)
    lines = [plain(item) for block in warnings.warnings(findings, Manifest.parse(run)).blocks for item in block.items]
    written = [write_table(table).splitlines()[2:] for table in every_table(warnings.unfinished(findings))]
    return lines, [[cell.strip() for cell in row.split("  ") if cell.strip()] for table in written for row in table]


INTERRUPTED = [case_row("n=1"), case_row("n=2", "plain", "interrupted", "interrupted")]
CONTINUE = "Not complete: profpipe resume continues the run."


def test_cases_without_a_job_are_not_started():
    lines, rows = reported(stopped(CASES[:2], cases=CASES), INTERRUPTED)
    assert lines == [f"{CONTINUE} It lacks these cases."]
    assert rows == [["interrupted", "plain", "at n 2", "1"], ["not started", "plain", "n=3", "1"]]


def test_after_a_kill_the_case_that_was_cut_off_is_among_those_without_a_row():
    _, rows = reported(stopped(CASES[:1], cases=CASES, cut_off=True), INTERRUPTED[:1])
    assert rows == [["cut off", "plain", "n=2 and n=3", "2"]]


def test_a_run_without_an_end_is_not_complete_even_if_its_planned_cases_are_unknown():
    assert reported(stopped(CASES[:1]), INTERRUPTED[:1]) == ([CONTINUE], [])
    ended = {**stopped(CASES[:1], cases=CASES), "ended": "2026-11-20T12:00:00+00:00"}
    assert reported(ended, INTERRUPTED[:1]) == ([], [])


@pytest.mark.parametrize(("words", "out"), [
    (("profpipe", "run"), "out"),
    (("profpipe", "run", "--out", "my results", "--", "a.py", "--out", "other"), "'my results"),
    (("profpipe", "ab", "--out=there"), "there"),
])  # fmt: skip
def test_the_command_that_continues_a_run_can_be_pasted(words, out):
    run = Manifest(name="w", started="2026-11-20T12:00:01+00:00", command=words)
    end = "'" if out.startswith("'") else ""
    assert environment.command_on(run, "resume") == f"profpipe resume {out}/20261120T120001Z-w{end}"


def test_the_record_of_a_run_holds_what_each_workload_and_profiler_is_to_do(tmp_path):
    (tmp_path / "pipeline.yaml").write_text("version: 1\nworkloads: {w: {command: [echo], profilers: [plain]}}\n")
    nothing = Missing("nsys", "is not here", "")
    jobs = [
        make_job("w", profiler, (Case(case, {}),), tmp_path, nothing, "python", tmp_path)
        for profiler in ("plain", "nsys")
        for case in CASES[:2]
    ]
    record = manifest_entries.begin_run(load_pipeline(tmp_path / "pipeline.yaml"), {}, planned=jobs)
    cases = tuple(CASES[:2])
    assert record.planned == tuple(manifest.PlannedJob("w", profiler, cases) for profiler in ("plain", "nsys"))
