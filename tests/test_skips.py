"""Why cases were not run: one line a reason, the cases named by what they have in common."""

from __future__ import annotations

from report_study import case_row, metric_row, tables

from profpipe.analyze import analyze
from profpipe.page.skips import skipped


def lines(cases: list[dict[str, object]], times: tuple[str, ...] = ()) -> list[str]:
    return skipped(analyze(tables(cases, metrics=[metric_row(case, "time", 1.0) for case in times]), {}), alone=True)


def sweep(*impls: str) -> list[str]:
    return [f"impl={i},mode={m},seqlen={n}" for i in impls for m in ("fwd", "fwd_bwd") for n in (512, 2048)]


def test_cases_are_named_by_the_axis_that_explains_them() -> None:
    why = "sage has no backward pass. Use mode: fwd."
    rows = [case_row(c, "plain", *(("skipped", why) if "fwd_bwd" in c else ())) for c in sweep("sage")]
    assert lines(rows) == ["Not run: `sage` with `mode=fwd_bwd` (2 cases): has no backward pass. Use mode: fwd."]


def test_implementations_that_are_missing_alike_share_a_line() -> None:
    missing = {"fa2": "flash-attn is not installed. pip install flash-attn.", "x": "xformers is not installed. Get it."}
    rows = [case_row(c, "plain", "skipped", missing[i]) for i in missing for c in sweep(i)]
    rows += [case_row(c) for c in sweep("ok")]
    assert lines(rows) == [
        "Not run: `fa2` and `x` (8 cases): not installed (`flash-attn` and `xformers`). pip install flash-attn. Get it."
    ]


def test_a_version_in_a_reason_ends_no_sentence() -> None:
    why = "a needs compute capability 8.0 or later; this GPU is 7.5. Use b."
    rows = [case_row("impl=a", "plain", "skipped", why), case_row("impl=b")]
    assert lines(rows) == ["Not run: `a` (1 case): needs compute capability 8.0 or later; this GPU is 7.5. Use b."]


def test_what_was_skipped_alike_in_several_workloads_is_told_once() -> None:
    row = case_row("", "plain", "skipped", "needs a GPU. Get one.")
    rows = [{**row, "case": f"impl={i}", "workload": w} for w in "vw" for i in "ab"]
    whole = analyze(tables(rows), {})
    assert skipped(whole, alone=False) == ["Not run of `v` and `w` under `plain`: needs a GPU. Get one."]
    ran = [{**case_row("impl=c"), "workload": w} for w in "vw"]
    times = [{**metric_row("impl=c", "time", 1.0), "workload": w} for w in "vw"]
    parts = analyze(tables(rows + ran, metrics=times), {})
    assert skipped(parts, alone=False) == ["Not run of `v` and `w`: `a` and `b` (4 cases): needs a GPU. Get one."]


def test_a_profiler_that_skipped_what_others_ran_is_named() -> None:
    rows = [case_row("impl=a"), case_row("impl=b"), case_row("impl=a", "ncu", "skipped", "too large for a replay")]
    assert lines(rows, ("impl=a", "impl=b")) == ["Not run: `a` under `ncu` (1 case): too large for a replay."]


def test_single_cases_are_named_by_their_shape() -> None:
    rows = [
        case_row(c, "plain", *(("skipped", "why not") if c.endswith("fwd,seqlen=2048") else ()))
        for c in sweep("a", "b")
    ]
    assert lines(rows) == [
        "Not run: `a` with `mode=fwd` at seqlen 2048 and `b` with `mode=fwd` at seqlen 2048 (2 cases): why not."
    ]
