"""What the page of a run that was stopped says of the cases that have no row, and how its record knows them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from report_study import case_row, metric_row, tables

from profpipe import record
from profpipe.analyze import analyze
from profpipe.config import load_pipeline
from profpipe.job import Case, Job, Missing
from profpipe.page import caveats

CASES = [f"n={n}" for n in (1, 2, 3)]


def stopped(done: list[str], **planned: Any) -> dict[str, Any]:
    """The record of a run in which each of three cases is a job of its own, and ``done`` of them have one."""
    jobs = [{"workload": "w", "profiler": "plain", "cases": [case]} for case in done]
    return {"planned": [{"workload": "w", "profiler": "plain", **planned}], "jobs": jobs, "ended": None}


def told(run: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    findings = analyze(tables(rows, metrics=[metric_row("n=1", "time", 1000.0)]), run)
    return next((line for line in caveats.doubts(findings, run, alone=True) if "not complete" in line), "")


INTERRUPTED = [case_row("n=1"), case_row("n=2", "plain", "failed", "interrupted")]


def test_cases_that_were_never_begun_are_missed_where_each_is_a_job_of_its_own() -> None:
    text = told(stopped(CASES[:2], cases=CASES), INTERRUPTED)
    assert "lacks what was interrupted under `plain`: n 2; not begun under `plain`: `n=3`." in text


def test_after_a_kill_the_case_that_was_cut_off_is_among_those_without_a_row() -> None:
    text = told(stopped(CASES[:1], cases=CASES, cut_off=True), INTERRUPTED[:1])
    assert "lacks what was cut off, not read yet or not begun under `plain`: `n=2` and `n=3` (2 cases)." in text


def test_a_run_without_an_end_is_not_complete_whatever_its_record_knows() -> None:
    text = told(stopped(CASES[:1]), INTERRUPTED[:1])
    assert text == "**Not ended**: this run is not complete. `profpipe resume` with its folder goes on."
    ended = {**stopped(CASES[:1], cases=CASES), "ended": "2026-11-20T12:00:00+00:00"}
    assert told(ended, INTERRUPTED[:1]) == ""


def test_the_record_of_a_run_holds_what_each_workload_and_profiler_is_to_do(tmp_path: Path) -> None:
    (tmp_path / "pipeline.yaml").write_text("version: 1\nworkloads: {w: {command: [echo], profilers: [plain]}}\n")
    nothing = Missing("nsys", "is not here", "")
    jobs = [
        Job("w", profiler, (Case(case, {}),), tmp_path, nothing, "python", tmp_path)
        for profiler in ("plain", "nsys")
        for case in CASES[:2]
    ]
    begun = record.begun(
        load_pipeline(tmp_path / "pipeline.yaml"),
        now=record.utc_now(), machine={}, packages={}, tools={}, git={}, command=[], planned=jobs,
    )  # fmt: skip
    assert begun["planned"] == [
        {"workload": "w", "profiler": profiler, "cases": CASES[:2]} for profiler in ("plain", "nsys")
    ]
