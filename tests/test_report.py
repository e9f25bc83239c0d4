"""Findings -> SUMMARY.md and the text files: golden pages, and what must hold of every page."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_study import (
    ADD,
    ATTENTION,
    COPY,
    DATA,
    case_row,
    example,
    kernel_row,
    made_up,
    metric_row,
    range_row,
    recorded,
    tables,
)  # fmt: skip

from profpipe import load, report
from profpipe.analyze import analyze
from profpipe.errors import ProfpipeError
from profpipe.findings import Findings, WorkloadFindings
from profpipe.page import chapters, companions, files, limit_sheets, markdown, plots, quantities
from profpipe.tables import Tables

TEMPLATE = load.own_folder("templates") / "SUMMARY.md.j2"

#: A kernel name that would break a table, a code span and a page, were it not escaped.
NASTY = "k<a|b>::`quoted`*_(int)_<script>"


def page(data: Tables, run: dict[str, Any], folder: Path, template: Path = TEMPLATE) -> str:
    return report.render(analyze(data, run), data, run, folder, template).read_text(encoding="utf-8")


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of words alone: drawing takes most of a report's time."""
    monkeypatch.setattr(plots, "draw", lambda findings, folder: {})


def compare(text: str, golden: Path, regenerate: bool) -> None:
    if regenerate:
        golden.parent.mkdir(parents=True, exist_ok=True)
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8"), "pytest --regenerate writes the golden files anew"


# --- golden pages ----------------------------------------------------------------------------------------------------


def test_the_page_of_an_h200_run_is_the_golden_one(tmp_path: Path, regenerate: bool) -> None:
    compare(page(*recorded(), tmp_path), DATA / "report-h200" / "SUMMARY.md", regenerate)


def test_the_page_of_a_sweep_under_four_profilers_is_the_golden_one(tmp_path: Path, regenerate: bool) -> None:
    data, run = made_up(["flash", "cudnn", "sage", "math"], [512, 2048, 8192], causal=(False, True))
    compare(page(data, run, tmp_path), DATA / "report-made-up" / "SUMMARY.md", regenerate)


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize(
    "name", ["comparison_results", "baseline_benchmark", "ncu_memory_metrics", "nsys_stats", "gpu_info"]
)
def test_the_text_files_are_the_golden_ones(tmp_path: Path, regenerate: bool, name: str) -> None:
    data, run = made_up(["flash", "cudnn"], [512, 2048])
    page(data, run, tmp_path)
    compare((tmp_path / f"{name}.txt").read_text(encoding="utf-8"), DATA / "report-made-up" / f"{name}.txt", regenerate)


def test_what_lies_in_no_case_is_not_among_the_kernels_of_all_cases() -> None:
    """But of a workload whose capture has no cases, as that of a command."""
    kernels = [
        kernel_row("impl=a", ATTENTION, 3, 3000.0),
        kernel_row("", "flush", 9, 9000.0),
        {**kernel_row("", COPY, 1, 1000.0), "workload": "command"},
    ]
    data = tables(kernels=kernels)
    text = companions.texts(analyze(data, {}), data, {})["nsys_stats.txt"]
    rows = [line.split() for line in text.splitlines()[4:]]
    assert [(row[0], row[1], row[2]) for row in rows] == [("75.0", "3000", "3"), ("25.0", "1000", "1")]
    assert "flush" not in text


# --- the first screen ------------------------------------------------------------------------------------------------


def first_screen(text: str) -> str:
    return text.partition("\n## ")[0]


@pytest.mark.usefixtures("no_pictures")
def test_the_answer_of_the_h200_run_is_that_of_its_kernels(tmp_path: Path) -> None:
    top = first_screen(page(*recorded(), tmp_path))
    assert top.startswith("# attention · 14 cases · NVIDIA H200 · 2026-11-20 05:55 UTC\n")
    assert (
        "**`cudnn` is fastest in both shapes: 1.30x to 1.42x over `flash` (baseline);"
        " 103.7 us of kernel time per call at seqlen 2048 (1.42x).**"
    ) in top
    assert "`sage1` has a faster attention kernel than the baseline (1.32x) and yet a slower call (0.97x)" in top
    assert "In every case: batch 2, heads 16, head_dim 64, dtype fp16." in top
    assert "Not run under `rocprof`: no AMD GPU." in top


@pytest.mark.usefixtures("no_pictures")
def test_a_copy_that_eats_what_the_kernel_saves_is_named(tmp_path: Path) -> None:
    kernels = [kernel_row("impl=a", ATTENTION, 10, 2_000_000.0), kernel_row("impl=b", ATTENTION, 10, 1_400_000.0)]
    kernels.append(kernel_row("impl=b", "[CUDA memcpy DtoD]", 10, 600_000.0, kind="memcpy"))
    ranges = [range_row(f"impl={impl}", 10) for impl in "ab"]
    top = first_screen(page(tables((), kernels, ranges, times(a=200_000.0, b=250_000.0)), with_baseline("a"), tmp_path))
    assert (
        "`b` has a faster attention kernel than the baseline (1.43x) and yet a slower call (0.80x): its kernels "
        "together are no slower, beside them it has copies and sets that are no kernels (60.0 us more)"
    ) in top


def times(**ns: float) -> list[dict[str, Any]]:
    return [metric_row(f"impl={impl}", "time", value, n=30) for impl, value in ns.items()]


def with_baseline(impl: str, **more: Any) -> dict[str, Any]:
    return {"pipeline": {"workloads": {"w": {"baseline": {"impl": impl}}}}, **more}


def test_a_marked_lowest_time_is_not_called_the_fastest(tmp_path: Path) -> None:
    data = tables([case_row("impl=a"), case_row("impl=b", flags=["throttled"])], metrics=times(a=2000.0, b=1000.0))
    top = first_screen(page(data, with_baseline("a"), tmp_path))
    assert "`b` has the lowest time, 1000 us" not in top
    assert (
        "`b` has the lowest time, 1.00 us per call, but is not called the fastest: its measurement is marked throttled"
        in top
    )
    assert "**throttled** (1 of 2 cases): the GPU ran below its highest clock" in top


def test_two_times_whose_intervals_overlap_are_level(tmp_path: Path) -> None:
    rows = [metric_row("impl=a", "time", 1000.0, ci_low=990.0, ci_high=1010.0),
            metric_row("impl=b", "time", 1005.0, ci_low=1000.0, ci_high=1015.0)]  # fmt: skip
    assert "**`a` and `b` are level: 1.00 us per call" in page(tables(metrics=rows), with_baseline("b"), tmp_path)


@pytest.mark.usefixtures("no_pictures")
def test_those_that_are_level_and_far_less_exact_than_the_baseline_are_said_to_be(tmp_path: Path) -> None:
    rows = [metric_row(f"impl={i}", "time", ns, ci_low=ns - 10, ci_high=ns + 10)
            for i, ns in (("a", 4000.0), ("b", 1000.0), ("c", 1005.0), ("d", 1006.0), ("e", 1010.0))]  # fmt: skip
    errors = {"a": 0.0001, "b": 0.02, "c": 0.0001, "d": 0.03, "e": 0.02}
    rows += [metric_row(f"impl={i}", "error_rel_l1", error, "1") for i, error in errors.items()]
    run = {"pipeline": {"workloads": {"w": {"baseline": {"impl": "a"}, "tolerance": {"error_rel_l1": 0.05}}}}}
    text = page(tables(metrics=rows), run, tmp_path)
    assert "**`b`, `c` and 2 more are level: 1.00 us per call" in text
    among = "among the fastest with {} times the baseline's error (relative L1 {}, of `a` 0.0001)."
    assert f"`b` and `e` are {among.format(200, 0.02)}" in text and f"`d` is {among.format(300, 0.03)}" in text
    assert text.count("the baseline's error") == 2


def test_shapes_in_which_two_are_level_are_told_together(tmp_path: Path) -> None:
    names = [f"impl={i},seqlen={n}" for i in "ab" for n in (1, 2, 3)]
    rows = [metric_row(name, "time", 1000.0, ci_low=990.0, ci_high=1010.0) for name in names]
    assert "**`a` and `b` are level in all 3 shapes.**" in page(tables(metrics=rows), with_baseline("b"), tmp_path)


@pytest.mark.usefixtures("no_pictures")
def test_more_than_two_that_are_level_are_named_or_counted(tmp_path: Path) -> None:
    rows = [metric_row(f"impl={i}", "time", 1000.0, ci_low=990.0, ci_high=1010.0) for i in "abcdef"]
    assert "**`a`, `b` and 4 more are level: 1.00 us per call" in page(tables(metrics=rows), {}, tmp_path)
    others = [metric_row(f"impl={i},n={n}", "time", ns, ci_low=990.0, ci_high=ns) for n in (1, 2) for i, ns in
              (("a", 1010.0), ("b", 1000.0 + n), ("c", 1000.0 - n))]  # fmt: skip
    assert "**`c`, `b` and `a` are level in both shapes.**" in page(tables(metrics=others), {}, tmp_path)


def test_families_of_which_one_was_to_run_are_told_in_words(tmp_path: Path) -> None:
    own = {"kernel_class": "attention", "kernel_family": "fa2"}
    copy = kernel_row("impl=b", "pytorch_flash::flash_fwd_kernel<64, 128>", 1, 5.0) | own
    data = tables(kernels=[copy], metrics=times(a=2000.0, b=1000.0))
    unmet = page(data, with_baseline("a", expects={"w": {"impl=b": "cudnn|ck"}}), tmp_path)
    assert "`impl=b` asked for `cudnn` or `ck` kernels; what ran is `fa2`." in unmet


@pytest.mark.usefixtures("no_pictures")
def test_who_ran_pytorchs_own_copy_is_named_and_not_the_family_that_others_ran_themselves(tmp_path: Path) -> None:
    own = {"kernel_class": "attention", "kernel_family": "fa2"}
    kernels = [kernel_row("impl=b", "pytorch_flash::flash_fwd_kernel<64, 128>", 1, 5.0) | own]
    kernels.append(kernel_row("impl=fa2", "flash::flash_fwd_kernel<64, 128>", 1, 5.0) | own)
    data = tables(kernels=kernels, metrics=times(a=2000.0, b=1000.0, fa2=1000.0))
    expects = {"w": {"impl=b": "fa2|cutlass_fmha", "impl=fa2": "fa2"}}
    told = "All 2 cases that name a kernel family ran kernels of that family (`b` ran PyTorch's own copy of `fa2`)."
    assert told in page(data, with_baseline("a", expects=expects), tmp_path)


@pytest.mark.usefixtures("no_pictures")
def test_a_workload_whose_kernels_were_not_captured_is_named_beside_those_that_were_checked(tmp_path: Path) -> None:
    own = {"kernel_class": "attention", "kernel_family": "fa2"}
    kernels = [kernel_row("impl=b", "flash::flash_fwd_kernel<64, 128>", 1, 5.0) | own]
    blind = [row | {"workload": "lengths"} for row in times(a=2000.0, b=1000.0)]
    text = page(
        tables(kernels=kernels, metrics=[*times(b=1000.0), *blind]), {"expects": {"w": {"impl=b": "fa2"}}}, tmp_path
    )
    assert (
        "kernels of that family. No kernel of `lengths` (2 cases) was captured, so which ran there is not known."
        in text
    )


@pytest.mark.usefixtures("no_pictures")
def test_a_case_that_two_workloads_measured_with_unlike_results_is_told_and_wins_nothing(tmp_path: Path) -> None:
    """A slow host passed for a call that synchronises in one of them: 30.6 ms for a forward pass of 8.5."""

    def timed(workload: str, case: str, ms: float) -> dict[str, Any]:
        return metric_row(case, "time", ms * 1e6, ci_low=ms * 0.98e6, ci_high=ms * 1.02e6) | {"workload": workload}

    rows = [timed("sizes", "impl=a", 25.0), timed("sizes", "impl=b", 30.6), timed("contexts", "impl=b", 8.5)]
    rows += [timed("contexts", "impl=a", 26.0)]  # as near as clocks may bring two measurements
    entry = {"script": "lm", "matrix": {"impl": ["a", "b"]}, "baseline": {"impl": "a"}}
    run = {"pipeline": {"workloads": {"sizes": entry, "contexts": entry}}}
    text = page(tables(metrics=rows), run, tmp_path)
    told = "so neither is to be relied on: impl b: 30.6 ms in `sizes` and 8.50 ms in `contexts`."
    assert told in text
    assert "is not called the fastest: the next took another time in another workload." in text
    for unlike in ({"script": "another"}, {"processes": 2}, {"timing": {"mode": "cuda_graph"}}, {"env": {"A": "1"}}):
        other = {**run["pipeline"]["workloads"], "sizes": {**entry, **unlike}}
        assert told not in page(tables(metrics=rows), {"pipeline": {"workloads": other}}, tmp_path)
    # Of environments only the names are kept: these two may well have unlike values.
    hidden = {name: {**entry, "env": {"OMP_WAIT": None}} for name in ("sizes", "contexts")}
    assert told not in page(tables(metrics=rows), {"pipeline": {"workloads": hidden}}, tmp_path)
    beside = case_row("impl=b", flags=["other_process"]) | {"workload": "sizes"}
    assert told not in page(tables([beside], metrics=rows), run, tmp_path)


def test_a_win_with_the_wrong_kernels_is_no_win(tmp_path: Path) -> None:
    data = tables(kernels=[kernel_row("impl=b", ATTENTION, 1, 5.0)], metrics=times(a=2000.0, b=1000.0))
    top = first_screen(page(data, with_baseline("a", expects={"w": {"impl=b": "cudnn"}}), tmp_path))
    assert "is not called the fastest: it did not run the kernels that were asked for" in top
    assert "**Failed expectation**: `impl=b` asked for `cudnn` kernels; what ran is `fa2`." in top


@pytest.mark.usefixtures("no_pictures")
def test_many_shapes_are_summed_up_instead_of_listed(tmp_path: Path) -> None:
    data, run = made_up(["a", "b", "c"], [512, 1024, 2048, 4096, 8192])
    text = page(data, run, tmp_path)
    assert "**The baseline, `a`, is fastest in all 5 shapes: 1.09x to 1.26x over the next;" in text
    one = data.metrics["case"] == "impl=c,seqlen=512"
    data.metrics.loc[one & (data.metrics["metric"] == "time"), ["value", "ci_low", "ci_high"]] = 9000.0
    text = page(data, run, tmp_path)
    assert "**Fastest: `a` in 4 of 5 shapes (1.12x to 1.26x over the next) and `c` at seqlen 512 (1.21x" in text


def test_refused_files_notes_and_missing_profilers_stand_on_the_first_screen(tmp_path: Path) -> None:
    run = {
        "refused": [{"source": "a.sqlite", "what": "is empty", "remedy": "Record it again"}],
        "files": [
            {"source": "b.sqlite", "launches": 1, "total_ns": 5.0, "notes": ["3 graph launches hide their kernels"]}
        ],
        "jobs": [
            {"workload": "w", "profiler": "ncu", "status": "skipped", "reason": "ncu is not on PATH. Install it."}
        ],
    }
    top = first_screen(page(tables(kernels=[kernel_row("impl=a", ADD, 1, 5.0)]), run, tmp_path))
    assert "Not read: `a.sqlite`: is empty. Record it again." in top
    assert "`b.sqlite`: 3 graph launches hide their kernels." in top
    assert "Not run under `ncu`: ncu is not on PATH. Install it." in top


@pytest.mark.usefixtures("no_pictures")
def test_what_nsys_says_of_every_capture_stands_with_the_files(tmp_path: Path) -> None:
    data, run = recorded()
    run["files"][0]["notes"] = ["nsys: Not all CUDA events might have been collected."]
    text = page(data, run, tmp_path)
    assert "might have" not in first_screen(text) and "Not all CUDA events might have been collected." in text


def test_cases_without_anything_to_compare_are_headlined_by_their_times(tmp_path: Path) -> None:
    names = [f"what={what},precision={p}" for what in ("forward", "train_step") for p in ("fp32", "bf16")]
    rows = [metric_row(name, "time", 1e6 * (i + 1), n=5) for i, name in enumerate(names)]
    top = first_screen(page(tables(metrics=rows), {}, tmp_path))
    assert "**Forward, precision fp32: 1000 us; forward, precision bf16: 2000 us;" in top
    rows += [metric_row("what=forward,precision=fp16", "time", 9e6, n=5)]
    assert (
        "**5 cases, from 1000 us (forward, precision fp32) to 9000 us (forward, precision fp16) per call.**"
    ) in page(tables(metrics=rows), {}, tmp_path)
    rows[-1]["value"] = 2e8
    assert "from 1.00 ms (forward, precision fp32) to 200.0 ms (forward" in page(tables(metrics=rows), {}, tmp_path)


@pytest.mark.parametrize(("text", "said"), [
    ("# {{ titel }}", "SUMMARY.md.j2: 'titel' is undefined. Compare it with"),
    ("one\n{% fi %}", "SUMMARY.md.j2:2: Encountered unknown tag 'fi'"),
])  # fmt: skip
def test_a_template_of_the_users_own_that_does_not_fit_is_named(text: str, said: str, tmp_path: Path) -> None:
    template = tmp_path / "SUMMARY.md.j2"
    template.write_text(text)
    with pytest.raises(ProfpipeError, match=re.escape(said)):
        report.render(Findings(), tables(), {}, tmp_path, template)


def test_a_failed_coverage_and_a_failed_expectation_stand_on_the_first_screen(tmp_path: Path) -> None:
    kernels = [kernel_row("impl=a", ATTENTION, 1, 90.0), kernel_row("impl=a", "mystery", 1, 10.0)]
    run = {"pipeline": {"coverage": {"min_classified": 0.95}}, "expects": {"w": {"impl=a": "cudnn"}}}
    findings = analyze(tables(kernels=kernels), run)
    top = first_screen(page(tables(kernels=kernels), run, tmp_path))
    assert findings.failed
    assert "Classified: 90.0 % of kernel time (nsys), **below the 95.0 % asked for**; largest unclassified:" in top
    assert "**Failed expectation**: `impl=a` asked for `cudnn` kernels; what ran is `fa2`." in top


@pytest.mark.usefixtures("no_pictures")
def test_a_headline_begins_with_a_capital(tmp_path: Path) -> None:
    cases = [case_row("impl=a"), case_row("impl=b", status="failed", reason="why not")]
    text = page(tables(cases, metrics=times(a=1000.0)), with_baseline("a"), tmp_path)
    assert "**Only `a` has a time: 1.00 us per call.**" in text


def spread(impl: str, ns: float, half: float, shape: str = "") -> list[dict[str, Any]]:
    case = f"impl={impl}{shape}"
    wide = metric_row(case, "time", ns, n=30, ci_low=(1 - half) * ns, ci_high=(1 + half) * ns)
    return [wide, metric_row(case, "time_p10", 0.6 * ns), metric_row(case, "time_p90", 1.3 * ns)]


@pytest.mark.usefixtures("no_pictures")
def test_a_poorly_known_time_of_the_first_two_is_told_beside_the_win(tmp_path: Path) -> None:
    rows = [*spread("a", 1e8, 0.245), *spread("b", 5e8, 0.04), *spread("c", 9e8, 0.5)]
    top = first_screen(page(tables(metrics=rows), with_baseline("b"), tmp_path))
    assert (
        "`a` is fastest: 100.0 ms per call, 5.00x over `b` (baseline).**\n\n"
        "Mind the spread: `a` has a 95 % interval of ±24.5 % (p10 to p90 60.0 to 130.0 ms).\n"
    ) in top


@pytest.mark.usefixtures("no_pictures")
def test_of_many_shapes_the_worst_spread_is_told(tmp_path: Path) -> None:
    rows = [r for n in (1, 2, 3) for i, ns in (("a", 1e8), ("b", 5e8)) for r in spread(i, ns, 0.03 * n, f",seqlen={n}")]
    top = first_screen(page(tables(metrics=rows), with_baseline("b"), tmp_path))
    assert "Mind the spread in 2 of 3 shapes, most of all: `a` at seqlen 3 has a 95 % interval of ±9.0 %" in top


@pytest.mark.usefixtures("no_pictures")
def test_samples_too_few_for_an_interval_are_told_where_they_spread(tmp_path: Path) -> None:
    rows = [*times(a=1000.0, b=2000.0), metric_row("impl=b", "time_p10", 500.0), metric_row("impl=b", "time_p90", 3e3)]
    top = first_screen(page(tables(metrics=rows), with_baseline("a"), tmp_path))
    assert "Mind the spread: `b` has too few samples for a 95 % interval (p10 to p90 0.5 to 3.00 us)." in top


@pytest.mark.usefixtures("no_pictures")
def test_a_win_of_calls_that_the_host_issues_no_faster_says_so(tmp_path: Path) -> None:
    """bf16 kernels are done sooner than fp32's, and sooner than a slow host launches the next."""
    flags = {"a": ["host_bound"], "b": []}
    rows = [
        case_row(f"impl={i},seqlen={n}", flags=flags[i], params={"impl": i, "seqlen": n}) for i in "ab" for n in (1, 2)
    ]
    metrics = [metric_row(f"impl={i},seqlen={n}", "time", ns * n) for i, ns in (("a", 2e7), ("b", 5e7)) for n in (1, 2)]
    issue = {"a,seqlen=1": 12e7, "a,seqlen=2": 9e7, "b,seqlen=1": 1e7, "b,seqlen=2": 1e7}
    metrics += [metric_row(f"impl={case}", "issue", ns) for case, ns in issue.items()]
    told = "In a loop another is the fastest in 1 of 2 shapes: `b` at seqlen 1 (a call takes 50.0 ms, and the host"
    text = first_screen(page(tables(rows, metrics=metrics), with_baseline("b"), tmp_path))
    assert f"{told} 120.0 ms to issue one of `a`, which is about 0.4x as fast)." in text
    loops = [metric_row("impl=a,seqlen=1", "loop_wall", 3e7)]
    assert "In a loop another" not in page(tables(rows, metrics=metrics + loops), with_baseline("b"), tmp_path)


def in_loops(shapes: int, **paces: tuple[float, float | None]) -> Tables:
    """Cases by the time of a call and the host's time to issue it, alike in so many shapes; the host slower by each."""
    cases = [(f"impl={impl},n={n}", *own) for n in range(shapes) for impl, own in paces.items()]
    rows = [case_row(case, flags=["host_bound"] if issue and issue > ns else []) for case, ns, issue in cases]
    metrics = [metric_row(case, "time", ns) for case, ns, _ in cases]
    metrics += [metric_row(case, "issue", issue * (1 + int(case[-1])), "ns") for case, _, issue in cases if issue]
    return tables(rows, metrics=metrics)


@pytest.mark.usefixtures("no_pictures")
def test_who_wins_in_a_loop_is_named_whichever_it_is_compared_with(tmp_path: Path) -> None:
    """That of which nobody knows how the host issues it is not; of more than three shapes one is told."""

    def told(shapes: int, **paces: tuple[float, float | None]) -> str:
        data = in_loops(shapes, a=(1e6, 6e6), **paces, base=(9e6, 1e5))
        return next(line for line in page(data, with_baseline("base"), tmp_path).splitlines() if "In a loop a" in line)

    unknown, known = (2e6, None), (2e6, 1e5)
    assert told(1, b=unknown, c=(2.5e6, 3e6)) == (
        "In a loop another is the fastest: `c` (the host issues a call in 3000 us, and in 6000 us one of `a`, which is "
        "about 0.5x as fast)."
    )
    of_b = "(a call takes 2000 us, and the host 6000 us to issue one of `a`, which is about 0.3x as fast)"
    assert told(1, b=known) == f"In a loop another is the fastest: `b` {of_b}."
    assert told(2, b=known).startswith(f"In a loop another is the fastest in both shapes: `b` at n 0 {of_b} and `b` at")
    assert told(4, b=known) == (
        "In a loop another is the fastest in all 4 shapes, by most `b` at n 3 (a call takes 2.00 ms, and the host "
        "24.0 ms to issue one of `a`, which is about 0.1x as fast)."
    )


@pytest.mark.usefixtures("no_pictures")
def test_a_result_that_is_wrong_does_not_win_in_a_loop(tmp_path: Path) -> None:
    data = in_loops(1, a=(1e6, 6e6), wrong=(2e6, 1e5), base=(9e6, 1e5))
    data.cases.loc[data.cases["case"] == "impl=wrong,n=0", "flags"] = '["inaccurate"]'
    text = first_screen(page(data, with_baseline("base"), tmp_path))
    assert "In a loop another" not in text and "leads by less or not at all: 9.00x becomes about 1.5x" in text


@pytest.mark.usefixtures("no_pictures")
def test_a_lead_in_a_loop_that_the_hosts_time_is_not_known_to_is_none(tmp_path: Path) -> None:
    text = first_screen(page(in_loops(1, a=(1e6, 6e6), b=(2e6, 3.2e6)), with_baseline("b"), tmp_path))
    assert "In a loop another" not in text
    assert (
        "the fastest leads by less or not at all: 2.00x becomes about 0.5x. The host's times are rough: of one call"
        " they differ by up to twice from case to case."
    ) in text
    assert "In a loop another" in page(in_loops(1, a=(1e6, 6e6), b=(2e6, 2.9e6)), with_baseline("b"), tmp_path)


@pytest.mark.usefixtures("no_pictures")
def test_of_the_h200_runs_loops_no_more_is_said_than_the_hosts_times_are_good_for(tmp_path: Path) -> None:
    """One of its host's times is that of a whole iteration of the loop, for no more can be said of it."""
    text = first_screen(page(*example("h200-attention"), tmp_path))
    assert "In a loop another" not in text
    assert (
        "Where calls go at the host's pace the fastest leads by less or not at all: 1.32x becomes about 0.6x (mode fwd,"
        " seqlen 512) and 1.49x becomes about 1.1x (mode fwd_bwd, seqlen 512). The host's times are rough"
    ) in text


@pytest.mark.usefixtures("no_pictures")
def test_a_lead_that_shrinks_at_the_hosts_pace_says_to_what(tmp_path: Path) -> None:
    """Of four shapes in which calls that are queued ahead are three times as fast, one gains that in a loop too."""
    rows = [case_row(f"impl={i},n={n}", flags=["host_bound"]) for i in "ab" for n in range(4)]
    metrics = [metric_row(f"impl={i},n={n}", "time", ns) for i, ns in (("a", 1e6), ("b", 3e6)) for n in range(4)]
    metrics += [metric_row(f"impl=a,n={n}", "issue", ns) for n, ns in enumerate((1.05e6, 1.5e6, 2.5e6, 2e6))]
    metrics += [metric_row(f"impl=b,n={n}", "issue", 1e5) for n in range(4)]
    data = tables(rows, metrics=metrics)
    told = "the fastest leads by less or not at all: 3.00x becomes about 1.2x (n 2), 3.00x becomes"
    text = first_screen(page(data, with_baseline("b"), tmp_path))
    assert f"Where calls go at the host's pace {told} about 1.5x (n 3) and 1 more. The host's" in text
    assert "In a loop another" not in text
    one, numbers = ([row for row in every if row["case"].endswith("n=2")] for every in (rows, metrics))
    told = "not at all: 3.00x becomes about 1.2x. The"
    assert told in page(tables(one, metrics=numbers), with_baseline("b"), tmp_path)
    metrics[-8:-4] = [metric_row(f"impl=a,n={n}", "issue", 1.05e6 + 1e5 * n) for n in range(4)]
    text = page(tables(rows, metrics=metrics), with_baseline("b"), tmp_path)
    assert "the fastest leads by less: 3.00x becomes about 2.2x (n 3)" in text


@pytest.mark.usefixtures("no_pictures")
def test_of_several_wins_in_doubt_each_has_its_reason_in_its_row(tmp_path: Path) -> None:
    """A clock that nobody marked is one."""
    clocks = {"impl=a,n=1": 1939e6, "impl=b,n=1": 1711e6, "impl=a,n=4": 1900e6, "impl=b,n=4": 1600e6}
    numbers = [metric_row(f"impl={i},n={n}", "time", ns, ci_low=ns - 1, ci_high=ns + 1)
               for n in (1, 2, 3, 4) for i, ns in (("a", 1000.0), ("b", 1100.0))]  # fmt: skip
    numbers += [metric_row(case, "sm_clock", hz, "Hz") for case, hz in clocks.items()]
    rows = [case_row(f"impl={i},n={n}", flags=["other_process"] if i == "a" and n == 2 else [])
            for n in (1, 2, 3, 4) for i in "ab"]  # fmt: skip
    text = page(tables(rows, metrics=numbers), with_baseline("b"), tmp_path)
    assert "In 3 of 4 shapes the lowest time is not called the fastest; the table says why." in text
    lines = [line for line in text.splitlines() if line.startswith("| ") and "`a`" in line]
    told = {line.split("|")[1].strip(): line for line in reversed(lines)}
    clock = "in doubt: the GPU ran at 1939 MHz for it and at 1711 for the next, which may be all of the lead"
    assert f"| {clock} |" in told["1"] and "in doubt" not in told["3"]
    assert "| **other_process**; in doubt: its measurement is marked other_process |" in told["2"]


@pytest.mark.usefixtures("no_pictures")
def test_a_study_of_several_workloads_goes_by_its_own_name(tmp_path: Path) -> None:
    rows = [metric_row("impl=a", "time", 1e3, workload=workload) for workload in ("fp16", "bf16")]
    named = page(tables(metrics=rows), {"pipeline": {"name": "accuracy"}}, tmp_path)
    assert named.startswith("# accuracy · 2 cases\n") and "fp16" in named
    assert page(tables(metrics=rows[:1]), {"pipeline": {"name": "accuracy"}}, tmp_path).startswith("# fp16 · 1 case\n")
    assert page(tables(metrics=rows), {"name": "out"}, tmp_path).startswith("# fp16 and bf16 · 2 cases\n"), (
        "files from elsewhere"
    )


@pytest.mark.usefixtures("no_pictures")
def test_jobs_that_a_stopped_run_did_not_reach_are_missed(tmp_path: Path) -> None:
    planned = [
        {"workload": w, "profiler": p} for w, p in (("w", "plain"), ("w", "nsys"), ("v", "plain"), ("v", "nsys"))
    ]
    run = {**with_baseline("a"), "planned": planned, "ended": None, "jobs": [{"workload": "w", "profiler": "plain"}]}
    data = tables(metrics=times(a=1000.0, b=2000.0))
    text = page(data, run, tmp_path)
    missed = "not begun under `nsys`: everything of `w`; not begun under `plain` and `nsys`: everything of `v`."
    assert f"Until then it lacks what was {missed}" in text
    assert "Interrupted" not in page(data, {**run, "ended": "2026-11-20T12:00:00+00:00"}, tmp_path)
    planned[1]["cut_off"] = True  # type: ignore[assignment]
    assert "lacks what was cut off or not read yet under `nsys`: everything of `w`; not begun" in page(
        data, run, tmp_path
    )


@pytest.mark.usefixtures("no_pictures")
def test_a_run_that_was_stopped_says_how_it_goes_on(tmp_path: Path) -> None:
    full = {"impl": "a", "seqlen": 1, "seed": 0}
    rows = [
        case_row("impl=a,seqlen=1", params=full),
        case_row("impl=a,seqlen=2", "plain", "failed", "interrupted", params={"impl": "a", "seqlen": 2}),
        case_row("impl=b,seqlen=1", "plain", "skipped", "interrupted before it started", params={"impl": "b"}),
        case_row("impl=b,seqlen=2", "plain", "skipped", "interrupted before it started", params={"impl": "b"}),
    ]
    text = page(tables(rows, metrics=[metric_row("impl=a,seqlen=1", "time", 5.0)]), with_baseline("a"), tmp_path)
    assert (
        "- **Interrupted**: this run is not complete. `profpipe resume` with its folder goes on. Until then it lacks"
        " what was interrupted under `plain`: `a` at seqlen 2; not begun under `plain`: `b` (2 cases).\n"
    ) in text
    assert "seed=0" not in text and "Failed" not in text and "Not run" not in text
    assert "| `a` (baseline) | **5.00** | interrupted |" in text
    # Cases that take turns have times of the rounds before.
    begun = [metric_row(f"impl={i},seqlen=1", "time", 5.0) for i in "ab"]
    text = page(tables(rows, metrics=begun), with_baseline("a"), tmp_path)
    assert "`a` at seqlen 2; not finished under `plain`: `b` (2 cases).\n" in text
    assert "- Not finished under `plain`: `impl=b,seqlen=1` and `impl=b,seqlen=2`.\n" in text


@pytest.mark.usefixtures("no_pictures")
def test_what_a_stop_left_unfinished_is_told_together_whether_or_not_its_last_round_had_begun(tmp_path: Path) -> None:
    rows = [
        case_row("impl=a"),
        case_row("impl=b", "plain", "failed", "interrupted"),
        case_row("impl=c", "plain", "skipped", "interrupted before it started"),
    ]
    text = page(tables(rows, metrics=times(a=5.0, b=5.0, c=5.0)), with_baseline("a"), tmp_path)
    assert "what was not finished under `plain`: `b` and `c` (2 cases).\n" in text
    assert "- Not finished under `plain`: `impl=b` and `impl=c`.\n" in text


@pytest.mark.usefixtures("no_pictures")
def test_a_job_that_was_stopped_after_its_last_case_lacks_none_of_them(tmp_path: Path) -> None:
    job = {"workload": "w", "profiler": "nsys", "status": "failed", "reason": "interrupted", "interrupted": True}
    rows = [case_row(case, profiler) for case in ("impl=a", "impl=b") for profiler in ("plain", "nsys")]
    data = tables(rows, metrics=times(a=1000.0, b=2000.0))
    assert "Until then it lacks what was interrupted under `nsys`: what comes after the last case." in page(
        data, with_baseline("a", jobs=[job]), tmp_path
    )
    text = page(tables(rows[:1], metrics=times(a=1000.0)), with_baseline("a", jobs=[job]), tmp_path)
    assert "Until then it lacks what was interrupted under `nsys`: everything." in text


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize(("stopped", "said"), [(True, "interrupted"), (False, "failed")])
def test_a_job_that_was_stopped_is_not_called_failed_beside_its_command(
    tmp_path: Path, stopped: bool, said: str
) -> None:
    job = {"workload": "w", "profiler": "nsys", "status": "failed", "reason": "interrupted", "interrupted": stopped}
    run = with_baseline("a", jobs=[{**job, "seconds": 51.6, "argv": [["nsys", "profile"]]}])
    text = page(tables(metrics=times(a=1000.0, b=2000.0)), run, tmp_path)
    assert f"<summary>w under nsys, 51.6 s, {said}</summary>" in text


@pytest.mark.usefixtures("no_pictures")
def test_failures_of_several_workloads_are_named_with_theirs(tmp_path: Path) -> None:
    rows = [case_row("default", status="failed", reason="exit code 1") | {"workload": name} for name in ("one", "two")]
    text = page(tables(rows), {}, tmp_path)
    assert "- Failed of `one` under `plain`: `default`.\n- Failed of `two` under `plain`: `default`.\n" in text


def test_a_picture_that_the_page_no_longer_shows_is_removed_and_no_other(tmp_path: Path) -> None:
    data, run = made_up(["a", "b"], [512, 1024, 2048])
    page(data, run, tmp_path)
    shown = set((tmp_path / "plots").iterdir())
    (tmp_path / "plots" / "mine.png").write_bytes(b"a picture of somebody's own")
    # Somebody has edited the page in another encoding.
    (tmp_path / "SUMMARY.md").write_bytes((tmp_path / "SUMMARY.md").read_bytes() + b"caf\xe9\n")
    page(tables(metrics=times(a=1.0)), {}, tmp_path)
    assert shown and set((tmp_path / "plots").iterdir()) == {tmp_path / "plots" / "mine.png"}


@pytest.mark.usefixtures("no_pictures")
def test_a_failure_links_its_own_log_once(tmp_path: Path) -> None:
    ids = [f"how={how},n={n}" for how in ("none", "x") for n in (1, 2)]
    why = "killed by SIGABRT (log: out/run/raw/w/plain/1/log.txt)"
    rows = [case_row(ids[0], "plain", "crashed", why), *map(case_row, ids[1:])]
    jobs = [
        {"workload": "w", "profiler": "plain", "cases": [case], "log": f"raw/w/plain/{i}/log.txt"}
        for i, case in enumerate(ids, 1)
    ]
    run = {"jobs": jobs, "pipeline": {"workloads": {"w": {"baseline": {"n": 1}}}}}
    data = tables(rows, metrics=[metric_row(case, "time", 5.0) for case in ids[1:]])
    assert "killed by SIGABRT. Log: raw/w/plain/1/log.txt.\n" in page(data, run, tmp_path), (
        "no link to what is not here"
    )
    (tmp_path / "raw" / "w" / "plain" / "1").mkdir(parents=True)
    (tmp_path / "raw" / "w" / "plain" / "1" / "log.txt").touch()
    text = page(data, run, tmp_path)
    log = "[raw/w/plain/1/log.txt](raw/w/plain/1/log.txt)"
    assert f"- **Crashed** under `plain`, `n=1` with `how=none`: killed by SIGABRT. Log: {log}.\n" in text
    assert text.count("log.txt") == 2


@pytest.mark.usefixtures("no_pictures")
def test_a_log_is_linked_whatever_its_workload_is_called(tmp_path: Path) -> None:
    log = "raw/topk_/plain/log.txt"
    (tmp_path / log).parent.mkdir(parents=True)
    (tmp_path / log).touch()
    row = case_row("default", status="failed", reason=f"exit code 1 (log: out/run/{log})") | {"workload": "topk_"}
    run = {"jobs": [{"workload": "topk_", "profiler": "plain", "cases": ["default"], "log": log}]}
    assert "(raw/topk\\_/plain/log.txt)" in page(tables([row]), run, tmp_path)


@pytest.mark.usefixtures("no_pictures")
def test_an_axis_and_the_number_of_samples_have_columns_of_their_own(tmp_path: Path) -> None:
    rows = [metric_row(f"n={n}", "time", 5.0, n=30 + n) for n in (1, 2)]
    assert "| n | time ns | samples |" in page(tables(metrics=rows), {}, tmp_path)
    same = [metric_row(f"n={n}", "time", 5.0, n=30) for n in (1, 2)]
    assert "| n | time ns |\n" in page(tables(metrics=same), {}, tmp_path)


@pytest.mark.usefixtures("no_pictures")
def test_times_of_a_machine_without_a_gpu_are_said_to_be_that(tmp_path: Path) -> None:
    text = page(tables(metrics=times(a=1.0, b=2.0)), with_baseline("a", machine={"gpus": []}), tmp_path)
    assert "\nThese are times on a CPU.\n" in first_screen(text)
    assert "on a CPU" not in page(tables(metrics=times(a=1.0, b=2.0)), with_baseline("a"), tmp_path)


@pytest.mark.usefixtures("no_pictures")
def test_files_without_kernels_are_no_doubt_where_there_is_no_gpu(tmp_path: Path) -> None:
    sums = {"launches": 0, "total_ns": 0.0, "attributed_ns": 0.0, "unattributed_ns": 0.0}
    nsys = {"source": "a.sqlite", "format": "nsys", "notes": ["no kernels in this file"], **sums}
    operators = {"notes": ["no GPU events: CPU operators, each with its self time"], **sums}
    torch = {"source": "b.json", "format": "torch", "attribution": "80 by the launching thread's ranges", **operators}
    run = with_baseline("a", machine={"gpus": []}, files=[nsys, torch])
    data = tables(metrics=times(a=1.0, b=2.0))
    text = page(data, run, tmp_path)
    assert "- `a.sqlite`: no kernels in this file." in text.partition("## Files")[2]
    assert "What casts doubt" not in text
    assert "| `b.json` | torch |  | 80 CPU operators by the launching thread's ranges |" in text
    with_gpu = page(data, run | {"machine": {"gpus": [{"name": "Made-up GPU"}]}}, tmp_path)
    assert "- `a.sqlite`: no kernels in this file." in first_screen(with_gpu)


def test_one_case_is_counted_as_one(tmp_path: Path) -> None:
    kernels = [kernel_row("impl=a", ATTENTION, 1, 5.0)]
    data = tables([case_row("impl=a", "nsys"), case_row("impl=b", "nsys")], kernels)
    text = page(data, {"expects": {"w": {"impl=a": "fa2"}}}, tmp_path)
    assert "`nsys` shows no kernel of 1 case that ran well: `b`." in text
    assert "The one case that names a kernel family ran kernels of that family." in text


# --- what must hold of every page ------------------------------------------------------------------------------------


def test_an_empty_run_gives_a_page_without_sections(tmp_path: Path) -> None:
    assert page(Tables(), {}, tmp_path) == "# profpipe\n"
    assert not list(tmp_path.glob("*.txt")) and not (tmp_path / "plots").exists()


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize("absent", [None, *json.loads((DATA / "report-h200" / "run.json").read_text())])
def test_any_key_of_run_json_may_be_absent(tmp_path: Path, absent: str | None) -> None:
    data, run = recorded()
    text = page(data, {key: value for key, value in run.items() if key != absent} if absent else {}, tmp_path)
    assert "## Kernel share" in text and "None" not in text and "nan" not in text.lower()


def cells(line: str) -> int:
    return len(re.findall(r"(?<!\\)\|", line))


def tables_of(text: str) -> list[list[str]]:
    blocks = re.findall(r"(?:^\|.*\n?)+", text, flags=re.MULTILINE)
    return [block.splitlines() for block in blocks]


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize("study", [recorded, lambda: made_up(["a", "b|c"], [128, 256])])
def test_every_row_of_a_table_has_the_cells_of_its_head(tmp_path: Path, study: Any) -> None:
    for lines in tables_of(page(*study(), tmp_path)):
        assert len({cells(line) for line in lines}) == 1, lines[0]


def test_kernel_names_cannot_break_the_page(tmp_path: Path) -> None:
    kernels = [kernel_row("impl=a", NASTY, 1, 9.0), kernel_row("impl=a", ADD, 1, 1.0)]
    text = page(tables(kernels=kernels), {}, tmp_path)
    outside_code = re.sub(r"(`+).+?\1", "", text)
    assert "<script>" not in outside_code and "k<a" not in outside_code
    for lines in tables_of(text):
        assert len({cells(line) for line in lines}) == 1


def test_a_missing_value_is_neither_zero_nor_nan(tmp_path: Path) -> None:
    data = tables(metrics=[*times(a=1000.0, b=2000.0), metric_row("impl=a", "flops", 1e6, "flop")])
    row = next(line for line in page(data, with_baseline("a"), tmp_path).splitlines() if line.startswith("| `b`"))
    assert row.rstrip(" |").split(" | ")[-1] == "–"


def test_sums_over_all_iterations_are_said_to_be_that(tmp_path: Path) -> None:
    text = page(tables(kernels=[kernel_row("", ADD, 4, 4000.0), kernel_row("", COPY, 2, 1000.0)]), {}, tmp_path)
    assert "**6 kernel launches, 5.00 us in all: add 80.0 % and copy 20.0 % of it.**" in text
    assert "All iterations together (nsys): the file does not say how many there were." in text
    assert "/call" not in text


def test_the_ranges_of_a_single_capture_are_all_listed(tmp_path: Path) -> None:
    kernels = [kernel_row("", ADD, 1, 1000.0 * (i + 1), phase=f"step {i}") for i in range(9)]
    rows = [line for line in page(tables(kernels=kernels), {}, tmp_path).splitlines() if line.startswith("| step ")]
    assert rows[0] == "| step 0 | 1 | 1.00 | 2.2 |" and len(rows) == 9


def test_cpu_operators_are_called_what_they_are(tmp_path: Path) -> None:
    cpu = {"kind": "cpu_op", "profiler": "torch", "kernel_class": "gemm"}
    data = tables(
        kernels=[kernel_row("impl=a", "aten::bmm", 2, 5000.0, **cpu)], ranges=[range_row("impl=a", 2, "torch")]
    )
    text = page(data, {"machine": {"gpus": [], "cpu": "Some CPU"}}, tmp_path)
    assert "Some CPU, no GPU" in text and "self time of CPU operators" in text and "## Top CPU operators" in text


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize(("n", "said"), [(1, "over 1 sample."), (2, "over 2 samples.")])
def test_one_sample_is_no_samples(tmp_path: Path, n: int, said: str) -> None:
    assert said in page(tables(metrics=[metric_row("impl=a", "time", 5.0, n=n)]), {}, tmp_path)


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize(("n", "said"), [(1, "over 1 iteration."), (2, "over 2 iterations.")])
def test_one_iteration_is_no_iterations(tmp_path: Path, n: int, said: str) -> None:
    data = tables(kernels=[kernel_row("impl=a", ADD, n, 9.0)], ranges=[range_row("impl=a", n)])
    assert said in page(data, {}, tmp_path)


@pytest.mark.usefixtures("no_pictures")
def test_launches_without_a_time_are_counted_in_the_headline_too(tmp_path: Path) -> None:
    rows = [
        kernel_row("", ATTENTION, 3, 3e8),
        kernel_row("", ADD, 1, None),
        kernel_row("", "copy", 9, 5.0, kind="memcpy"),
    ]
    text = page(tables(kernels=rows), {}, tmp_path)
    assert "4 kernel launches, 300.0 ms in the 3 that have a time" in text
    assert "3 kernel launches, 300.0 ms in all" in page(tables(kernels=[rows[0], rows[2]]), {}, tmp_path)
    outside = [kernel_row("impl=a", ATTENTION, 3, 3e8), kernel_row("", ADD, 5, 1e6), kernel_row("", ADD, 5, None)]
    assert "3 kernel launches, 300.0 ms in all" in page(tables(kernels=outside), {}, tmp_path)


@pytest.mark.usefixtures("no_pictures")
def test_operators_of_the_other_cases_are_called_operators(tmp_path: Path) -> None:
    cpu = {"kind": "cpu_op", "profiler": "torch", "kernel_class": "other"}
    rows = [kernel_row(f"impl={i},seqlen={n}", "mystery", 2, 5000.0, **cpu) for i in "ab" for n in (1, 2)]
    text = page(tables(kernels=rows), with_baseline("a"), tmp_path)
    assert "<summary>the first 2 operators of each other case, from 10 % on</summary>" in text
    assert "| operator that no rule classifies |" in text


@pytest.mark.usefixtures("no_pictures")
def test_kernels_of_the_other_cases_are_named_by_their_shape_though_all_are_of_one(tmp_path: Path) -> None:
    """Under the heading of the largest, theirs is another."""
    rows = [kernel_row(f"impl={i},seqlen={n}", ATTENTION, 2, 5000.0) for i in "ab" for n in (1, 2)]
    _, _, text = page(tables(kernels=rows), with_baseline("a"), tmp_path).partition("## Top kernels, seqlen 2")
    opened, _, folded = text.partition("<summary>the first 2 kernels of each other case, from 10 % on</summary>")
    assert "| `a` |" in opened and "| seqlen 1, `a` |" in folded


def limited(**issue_us: float) -> WorkloadFindings:
    """Calls of 100 us that the host takes so long to issue, and ``lacks``, of which no bytes are declared."""
    cases = [case_row(f"impl={i}", params={"impl": i, "dtype": "fp16"}) for i in (*issue_us, "lacks")]
    kernels = [kernel_row(f"impl={i}", ATTENTION, 10, 1e6) for i in (*issue_us, "lacks")]
    rows = [metric_row(f"impl={i}", "issue", 1e3 * us) for i, us in issue_us.items()]
    for name, value, unit in (("time", 1e5, "ns"), ("flops", 5e10, "flop"), ("bytes_moved", 1e6, "byte")):
        rows += [metric_row(f"impl={i}", name, value, unit) for i in issue_us]
    rows += [metric_row("impl=lacks", "time", 1e5), metric_row("impl=lacks", "flops", 5e10, "flop")]
    for row in [*cases, *kernels]:
        rows += [metric_row(row["case"], "loop_wall", ns, profiler=p) for p, ns in (("plain", 1e6), ("nsys", 2e6))]
    run = {"machine": {"peaks": {"flops": {"fp16": 1e15}, "bytes_per_s": 4e12, "source": "invented for a test"}}}
    idle = {"wall_ns": 2e6, "busy_ns": 1e6}
    ranges = [range_row(f"impl={i}", 10, **idle) for i in (*issue_us, "lacks")]
    (workload,) = analyze(tables(cases, kernels, ranges, rows), run).workloads
    return workload


def test_a_legend_explains_nothing_that_is_not_in_its_tables() -> None:
    workload = limited(a=10.0, b=300.0)
    whole = limit_sheets.limits(workload, workload.points, one_shape=False)
    column = whole.head.index("limited by")
    assert [row[column] for row in whole.rows] == ["arithmetic", "the host", "–"]
    slowed, lacks = "profiler_overhead: the profiler made the loop", "he bytes of the call are not declared"
    for tables_, has_idle, sign in (
        ([whole], True, "–: t"),
        ([whole.without("GPU idle %")], False, "–: t"),
        ([whole.without("limited by")], True, " T"),
    ):
        said = limit_sheets.explained(workload, tables_)
        assert (slowed in said) is has_idle and f"{sign}{lacks}" in said
    assert limit_sheets.explained(workload) == limit_sheets.explained(workload, [whole])


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize("clock", ["GPC GHz", "SM GHz", ""])
def test_the_clock_that_ncu_counts_is_said_to_be_another_where_it_is_shown(tmp_path: Path, clock: str) -> None:
    ncu = {"profiler": "ncu", "subject": ATTENTION}
    names = {"GPC GHz": "gpc__cycles_elapsed.avg.per_second", "SM GHz": "smsp__cycles_elapsed.avg.per_second"}
    metrics = [
        metric_row("impl=a", "iterations", 10, "1"),
        metric_row("impl=a", "lts__t_sector_hit_rate.pct", 9, **ncu),
    ]
    metrics += [metric_row("impl=a", names[clock], 1.79e9, "Hz", **ncu)] if clock else []
    kernels = [kernel_row("impl=a", ATTENTION, 10, 1e6), kernel_row("impl=a", ATTENTION, 1, 1e5, profiler="ncu")]
    text = page(tables((), kernels, [range_row("impl=a", 10)], metrics), {}, tmp_path)
    _, _, section = text.partition("<summary>further figures of ncu</summary>\n\n")
    assert section.startswith(
        "GPC GHz is a clock that ncu counts itself, not the SM clock: on an H200" if clock == "GPC GHz" else "| case |"
    )


def test_the_rates_that_shares_are_of_stand_beside_what_gave_them() -> None:
    rate = {"flops": {"fp16": 711.44e12, "fp64": 0}, "bytes_per_s": 4248.6e9, "source": "measured"}
    told = dict(report._environment({"machine": {"peaks": {"source": "unknown"}, "ceilings": rate}}))
    assert told == {"peak rates": "unknown", "measured rates": "fp16 711.4 TFLOP/s, memory 4249 GB/s; measured"}
    of_jobs = {"jobs": [{"workload": "w", "peaks": {"flops": {"int8": 2e15, "fp8": 1e15}}}, {"workload": "v"}]}
    assert dict(report._environment(of_jobs)) == {"peak rates of w": "int8 2000, fp8 1000 TFLOP/s"}


@pytest.mark.usefixtures("no_pictures")
def test_the_share_of_a_ceiling_can_be_recomputed_from_the_page_of_a_real_run(tmp_path: Path) -> None:
    text = page(*example("h200-attention"), tmp_path)
    reached = re.search(r"reaches ([\d.]+) TFLOP/s, ([\d.]+) % of the measured ceiling", text)
    ceiling = re.search(
        r"^- measured rates: fp16 ([\d.]+), .* TFLOP/s, memory \d+ GB/s; measured on", text, re.MULTILINE
    )
    assert reached and ceiling
    assert float(reached[1]) / float(ceiling[1]) == pytest.approx(float(reached[2]) / 100, abs=0.001)
    assert f"fp16: {ceiling[1]} TFLOP/s" in (tmp_path / "gpu_info.txt").read_text(encoding="utf-8")


def test_one_shape_of_a_large_comparison_is_counted_as_one() -> None:
    findings = analyze(*made_up(["a", "b", "c"], [128 * 2**i for i in range(36)]))
    told = chapters.chapter(findings.workloads[0], findings, {}, without_gpu=False)
    assert [block.title for block in told.cases] == ["every number of 1 shape by case"]


@pytest.mark.usefixtures("no_pictures")
def test_reports_that_are_kept_come_with_a_warning(tmp_path: Path) -> None:
    data, run = recorded()
    run["jobs"][0]["files"] = [{"path": "raw/attention/nsys/capture.nsys-rep", "bytes": 1}]
    text = page(data, run, tmp_path)
    assert "- `.nsys-rep` files hold the environment and the command lines of the profiled process" in text
    run["private_files"] = ["raw/x.ncu-rep"]
    assert "- `.ncu-rep` files hold the environment" in page(data, run, tmp_path)


@pytest.mark.usefixtures("no_pictures")
def test_a_job_that_was_taken_over_is_said_to_be(tmp_path: Path) -> None:
    data, run = recorded()
    run["jobs"][0]["reused_from"] = "20261119T010101Z-attention"
    text = page(data, run, tmp_path)
    assert "its files are those of the run `20261119T010101Z-attention`." in text
    assert "<summary>attention under nsys, reused from 20261119T010101Z-attention</summary>" in text


def test_of_jobs_that_were_taken_over_in_part_the_cases_are_named_once() -> None:
    def job(case: str, source: str, profiler: str = "plain") -> dict[str, Any]:
        return {"workload": "b", "profiler": profiler, "cases": [case], "reused_from": source}

    some = [job("n=1", "r1"), job("n=2", ""), job("n=3", "r1"), job("n=4", "r0")]
    every = [job("n=1", "r1", "nsys"), job("n=2", "r1", "nsys")]
    assert list(files.remarks({"jobs": some + every, "private_files": []})) == [
        "Of `b` under `plain`, `n=1` and `n=3` were not measured again: their files are those of the run `r1`.",
        "Of `b` under `plain`, `n=4` was not measured again: its files are those of the run `r0`.",
        "`b` under `nsys` was not measured again: its files are those of the run `r1`.",
    ]


@pytest.mark.usefixtures("no_pictures")
def test_many_files_of_one_job_share_a_row(tmp_path: Path) -> None:
    told = "30 by the launching thread's ranges; 30 in no range"
    sums = {"launches": 60, "total_ns": 2e6, "attributed_ns": 1e6, "unattributed_ns": 1e6, "attribution": told}
    files = [{"source": f"raw/w/torch/{i}.json.gz", "format": "trace", "tool": "torch", **sums} for i in range(3)]
    jobs = [{"files": [{"path": f["source"], "bytes": 2**20} for f in files]}]
    text = page(tables(kernels=[kernel_row("impl=a", ADD, 1, 5.0)]), {"files": files, "jobs": jobs}, tmp_path)
    row = next(line for line in text.splitlines() if "3 files" in line)
    assert row == (
        "| `raw/w/torch/`, 3 files | trace | torch | 3072 KiB | 180 | 6000 us | 3000 us | 3000 us |"
        " 90 by the launching thread's ranges; 90 in no range |"
    )


@pytest.mark.usefixtures("no_pictures")
def test_a_users_template_decides_what_is_said(tmp_path: Path) -> None:
    template = tmp_path / "SUMMARY.md.j2"
    template.write_text("{{ chapters[0].workload.name }}: {{ chapters[0].answers }}\n", encoding="utf-8")
    assert page(*recorded(), tmp_path / ".", template).startswith("attention: | seqlen | fastest |")


@pytest.mark.usefixtures("no_pictures")
def test_a_page_is_replaced_whole_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    (tmp_path / "SUMMARY.md").write_text("an older page", encoding="utf-8")
    page(*recorded(), tmp_path)
    assert "an older page" not in (tmp_path / "SUMMARY.md").read_text(encoding="utf-8")
    assert not [path for path in tmp_path.rglob("*") if path.name.startswith(".")]


def test_every_link_of_the_page_leads_somewhere(tmp_path: Path) -> None:
    text = page(*recorded(), tmp_path)
    anchors = {markdown.slug(line.lstrip("# ")) for line in text.splitlines() if line.startswith("#")}
    for target in re.findall(r"\]\(([^)]+)\)", text):
        assert (
            target.lstrip("#") in anchors
            if target.startswith("#")
            else target.startswith("raw/") or (tmp_path / target).is_file()
        )


# --- names and numbers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "short"),
    [
        (COPY, "elementwise_kernel<…direct_copy_kernel_cuda…>"),
        (ADD, "elementwise_kernel<…CUDAFunctor_add<c10::Half>…>"),
        ("void at::native::reduce_kernel<(int)128, (int)4, at::native::ReduceOp<c10::Half, at::native::MeanOps<c10::Hal"
         "f, float, float, c10::Half>, unsigned int, c10::Half, (int)4, (int)8>>(T3)", "reduce_kernel<…MeanOps…>"),
        ("pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4, 0, 0, cutlass::half_t,"
         " Flash_kernel_traits<64, 128, 128, 4, cutlass::half_t>>, 0, 0, 0, 0, 1, 1, 0, 0>",
         "pytorch_flash::flash_fwd_kernel<64, 128, 128, 4, …>"),
        ("cutlass::Kernel2<cutlass_80_simt_sgemm_256x128_8x4_tn_align1>",
         "cutlass::Kernel2<cutlass_80_simt_sgemm_256x128_8x4_tn_align1>"),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096>)", "ncclDevKernel_SendRecv"),
        ("_attn_fwd", "_attn_fwd"),
        ("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x256x8_stage3_warpsize1x4x1_ffma_aligna4_alignc4_execute_kerne"
         "l__5x_cublas", "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x256x8…cublas"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x64_4x1x1_cga1x1x1_kernel0_0",
         "cudnn…sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64…4x1x1_cga1x1x1_kernel0_0"),
        ("[CUDA memcpy Host-to-Device]", "[CUDA memcpy Host-to-Device]"),
    ],
)  # fmt: skip
def test_a_long_name_keeps_what_tells_it_from_others(name: str, short: str) -> None:
    assert markdown.shorten(name) == short


def test_short_names_of_real_kernels_are_short_and_never_shared(shared_data: Path) -> None:
    names = list(json.loads((shared_data / "kernel_names.json").read_text(encoding="utf-8")))
    short = markdown.short_names(names)
    assert len(set(short.values())) == len(names)
    assert max(map(len, short.values())) <= 80 and all(short.values())


@given(st.text(max_size=60))
def test_any_text_survives_a_code_span_and_a_cell(text: str) -> None:
    written = markdown.code(text)
    flat = " ".join(text.split())
    assert cells(written) == len(re.findall(r"(?<!\\)\|", "")) == 0
    if flat:
        fence = re.match(r"`+", written)
        assert fence is not None and written.endswith(fence[0])
        assert f"`{fence[0]}" not in written[len(fence[0]) : -len(fence[0])]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.012345, "0.0123"), (1.234, "1.23"), (9.999, "10.0"), (12.345, "12.3"), (103.687, "103.7"),
     (999.99, "1000"), (2136.353, "2136"), (1e9, "1e+09"), (2e-7, "2e-07"), (None, "–"), (float("nan"), "–")],
)  # fmt: skip
def test_numbers_have_three_or_four_digits(value: float | None, text: str) -> None:
    assert quantities.number(value) == text


@pytest.mark.parametrize(
    ("ns", "unit"),
    [([500.0], "ns"), ([17e3, 2e6], "us"), ([1e3, 9e6], "us"), ([3e7], "ms"), ([2e11, 3e10], "s"), ([], "us")],
)
def test_a_column_has_the_unit_of_its_middle(ns: list[float], unit: str) -> None:
    assert quantities.time_unit(ns).name == unit


@pytest.mark.parametrize(
    ("share", "text"), [(1.0, "100"), (0.99999, "> 99.9"), (0.813, "81.3"), (1e-5, "< 0.1"), (0.0, "0")]
)
def test_a_share_is_not_rounded_to_all_or_nothing(share: float, text: str) -> None:
    assert quantities.percent(share) == text


@pytest.mark.usefixtures("no_pictures")
def test_a_value_with_commas_is_written_as_it_is_in_the_pipeline_file(tmp_path: Path) -> None:
    rows = [case_row("seqlens=128%2C128", status="failed", reason="why not"), case_row("seqlens=256")]
    text = page(tables(rows, metrics=[metric_row("seqlens=256", "time", 5.0)]), {}, tmp_path)
    assert "Failed under `plain`: `seqlens=128,128`." in text and "%2C" not in text


@pytest.mark.usefixtures("no_pictures")
def test_many_lost_cases_are_named_by_the_values_that_they_share(tmp_path: Path) -> None:
    names = [f"impl={i},mode={m},seqlen={n}" for i in "ab" for m in ("fwd", "bwd") for n in (1, 2, 3)]
    lost = [name for name in names if name.startswith("impl=b") and not name.endswith("=1")]
    rows = [case_row(name, status="oom" if name in lost else "ok", reason="no room") for name in names]
    metrics = [metric_row(name, "time", 5.0) for name in names if name not in lost]
    text = page(tables(rows, metrics=metrics), with_baseline("a"), tmp_path)
    assert "- **Out of memory** under `plain`, `b` at seqlen 2 and 3: no room." in text


@pytest.mark.usefixtures("no_pictures")
def test_a_full_gpu_is_told_once_whatever_its_allocator_was_asked_for(tmp_path: Path) -> None:
    said = (
        "OutOfMemoryError: CUDA out of memory. Tried to allocate {}.00 GiB. GPU 0 has a total capacity of 139.80 GiB of"
        " which 8.12 GiB is free. Including non-PyTorch memory, this process has 131.67 GiB memory in use."
    )
    rows = [case_row(f"impl=b,seqlen={n}", p, "oom", said.format(n)) for p in ("plain", "torch") for n in (2, 3)]
    rows += [case_row("impl=a,seqlen=2"), case_row("impl=a,seqlen=3")]
    text = page(tables(rows, metrics=[metric_row(f"impl=a,seqlen={n}", "time", 5.0) for n in (2, 3)]), {}, tmp_path)
    told = "- **Out of memory** under `plain` and `torch`, `b`: OutOfMemoryError: CUDA out of memory, of 139.80 GiB."
    assert told in text and text.count("OutOfMemoryError") == 1


@pytest.mark.usefixtures("no_pictures")
def test_a_lead_over_the_baseline_of_another_shape_is_called_that(tmp_path: Path) -> None:
    times = {("a", 1): 800.0, ("b", 1): 400.0, ("a", 2): 600.0, ("b", 2): 200.0}
    data = tables(metrics=[metric_row(f"impl={impl},n={n}", "time", ns, n=30) for (impl, n), ns in times.items()])
    run = {"pipeline": {"workloads": {"w": {"baseline": {"impl": "a", "n": 1}}}}}
    top = first_screen(page(data, run, tmp_path))
    assert (
        "**`b` is fastest in both shapes: 2.00x to 4.00x over the baseline; 200.0 ns per call at n 2 (4.00x).**" in top
    )


@pytest.mark.usefixtures("no_pictures")
def test_leads_over_the_baseline_and_over_the_next_make_no_span(tmp_path: Path) -> None:
    times = {("a", 1): 900.0, ("b", 1): 400.0, ("c", 1): 600.0, ("b", 2): 100.0, ("c", 2): 200.0}
    data = tables(metrics=[metric_row(f"impl={impl},n={n}", "time", ns, n=30) for (impl, n), ns in times.items()])
    top = first_screen(page(data, with_baseline("a"), tmp_path))
    assert "**`b` is fastest in both shapes: 1.50x to 2.00x over the next; 100.0 ns per call at n 2 (2.00x).**" in top


@pytest.mark.usefixtures("no_pictures")
def test_of_many_winners_and_many_wins_in_doubt_the_headline_counts_the_rest(tmp_path: Path) -> None:
    names = [f"impl={i},n={n},mode={m}" for i in "abcdef" for n in range(1, 16) for m in ("fwd", "bwd")]
    own = {"a": range(1, 5), "b": range(5, 9), "c": (9, 10), "d": (11, 12), "e": (13,), "f": (14, 15)}
    times = {name: 5.0 if int(name.split(",")[1][2:]) in own[name[5]] else 9.0 for name in names}
    rows = [case_row(name, flags=["other_process"] if name[5] in "ef" and times[name] == 5.0 else []) for name in names]
    data = tables(rows, metrics=[metric_row(name, "time", ns, n=3) for name, ns in times.items()])
    top = first_screen(page(data, with_baseline("a"), tmp_path))
    assert (
        "**Fastest: `a` in 8 of 30 shapes (1.80x over the next), `b` in 8 of 30 shapes (1.80x over `a` (baseline))"
        " and 2 others in 8. In 6 of 30 shapes the lowest time is not called the fastest: its measurement is marked"
        " other_process.**"
    ) in top
