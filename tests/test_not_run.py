"""Cases without a result: a row a reason, the cases named by what they have in common."""

from __future__ import annotations

from typing import Any

from report_study import analyze, case_row, metric_row, tables

from profpipe.report.sections import warnings
from profpipe.report.text import write_table


def rows(cases: list[dict[str, Any]], times: tuple[str, ...] = (), section: Any = warnings.skipped) -> list[list[str]]:
    """The cells of the section's table as text, without its head."""
    measured = [metric_row(case, "time", 1.0) for case in times]
    (table,) = section(analyze(tables(cases, metrics=measured), {})).tables()
    return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in write_table(table).splitlines()[2:]]


def sweep(*impls: str) -> list[str]:
    return [f"impl={i},mode={m},seqlen={n}" for i in impls for m in ("fwd", "fwd_bwd") for n in (512, 2048)]


def test_cases_are_named_by_the_axis_that_explains_them() -> None:
    why = "sage has no backward pass. Use mode: fwd."
    cases = [case_row(c, "plain", *(("skipped", why) if "fwd_bwd" in c else ())) for c in sweep("sage")]
    assert rows(cases) == [["sage with mode=fwd_bwd", "2", why]]


def test_each_reason_has_a_row() -> None:
    missing = {"fa2": "flash-attn is not installed. pip install flash-attn.", "x": "xformers is not installed."}
    cases = [case_row(c, "plain", "skipped", missing[i]) for i in missing for c in sweep(i)]
    cases += [case_row(c) for c in sweep("ok")]
    assert rows(cases) == [["fa2", "4", missing["fa2"]], ["x", "4", missing["x"]]]


def test_workloads_that_skip_the_same_cases_share_a_row() -> None:
    row = case_row("", "plain", "skipped", "needs a GPU. Get one.")
    cases = [{**row, "case": f"impl={i}", "workload": w} for w in "vw" for i in "ab"]
    assert rows(cases) == [["v and w", "all cases", "4", "plain", "needs a GPU. Get one."]]


def test_a_profiler_that_skipped_what_others_ran_is_named() -> None:
    cases = [case_row("impl=a"), case_row("impl=b"), case_row("impl=a", "ncu", "skipped", "too large for a replay")]
    assert rows(cases, ("impl=a", "impl=b")) == [["a", "1", "ncu", "too large for a replay"]]


def test_single_cases_are_named_by_their_shape() -> None:
    cases = [
        case_row(c, "plain", *(("skipped", "why not") if c.endswith("fwd,seqlen=2048") else ()))
        for c in sweep("a", "b")
    ]
    named = "a with mode=fwd at seqlen 2048 and b with mode=fwd at seqlen 2048"
    assert rows(cases) == [[named, "2", "why not"]]


def test_cases_that_ran_out_of_memory_share_a_row_although_their_allocations_differ() -> None:
    cases = [case_row("impl=ok")]
    cases += [case_row(f"impl=a,n={n}", "plain", "oom", f"CUDA out of memory. Tried {n} GiB.") for n in (1, 2)]
    assert rows(cases, section=warnings.failures) == [
        ["out of memory", "plain", "a n=1 and a n=2", "2", "CUDA out of memory. Tried 1 GiB."]
    ]
