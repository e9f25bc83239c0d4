"""Warnings, and the sections on files, environment and commands of a run."""

from __future__ import annotations

from typing import Any

import pytest
from report_study import ADD, ATTENTION, analyze, case_row, kernel_row, metric_row, recorded, tables

from profpipe.report.document import Bullets, Details, Section
from profpipe.report.markdown import Markdown
from profpipe.report.sections import environment, kernels, warnings
from profpipe.report.text import write_table
from profpipe.results.manifest import Manifest
from profpipe.results.schema import Tables

FA2 = {"kernel_class": "attention", "kernel_family": "fa2"}


def times(**ns: float) -> list[dict[str, Any]]:
    return [metric_row(f"impl={impl}", "time", value) for impl, value in ns.items()]


def items(section: Section) -> list[str]:
    """The bullets of a section as Markdown."""
    return [Markdown().text(item) for block in section.blocks if isinstance(block, Bullets) for item in block.items]


def warned(data: Tables, run: dict[str, Any]) -> list[str]:
    return items(warnings.warnings(analyze(data, run), Manifest.parse(run)))


def classified(data: Tables, run: dict[str, Any]) -> str:
    return Markdown().section(kernels.classification(analyze(data, run)))


# --- kernels ---------------------------------------------------------------------------------------------------------


def test_a_case_that_ran_another_kernel_than_it_requested_is_a_warning() -> None:
    data = tables(kernels=[kernel_row("impl=b", "flash_fwd_kernel", 1, 5.0) | FA2])
    run = {"expects": {"w": {"impl=b": "cudnn|ck"}}}
    assert warned(data, run) == ["**Unexpected kernel**: `impl=b` requested `cudnn` or `ck` and ran `fa2`."]
    assert classified(data, run).endswith("Classified: 100 % of kernel time (nsys).")


def test_the_variants_that_ran_pytorchs_copy_are_named() -> None:
    kernels = [kernel_row("impl=b", "pytorch_flash::flash_fwd_kernel<64, 128>", 1, 5.0) | FA2]
    kernels.append(kernel_row("impl=fa2", "flash::flash_fwd_kernel<64, 128>", 1, 5.0) | FA2)
    data = tables(kernels=kernels, metrics=times(b=1000.0, fa2=1000.0))
    run = {"expects": {"w": {"impl=b": "fa2|cutlass_fmha", "impl=fa2": "fa2"}},
           "pipeline": {"workloads": {"w": {"baseline": {"impl": "fa2"}}}}}  # fmt: skip
    sentence = "All 2 cases with a requested kernel family ran it (`b` ran PyTorch's copy of `fa2`)."
    assert sentence in classified(data, run)


def test_a_workload_without_recorded_kernels_is_named() -> None:
    kernels = [kernel_row("impl=b", "flash::flash_fwd_kernel<64, 128>", 1, 5.0) | FA2]
    other = [row | {"workload": "lengths"} for row in times(a=2000.0)]
    data = tables(kernels=kernels, metrics=[*times(b=1000.0), *other])
    text = classified(data, {"expects": {"w": {"impl=b": "fa2"}}})
    assert text.endswith("ran it. No profiler recorded kernels of `lengths`, so their kernels are unknown.")


def test_a_classified_share_below_the_required_one_is_a_warning() -> None:
    data = tables(kernels=[kernel_row("impl=a", ATTENTION, 1, 90.0), kernel_row("impl=a", "mystery", 1, 10.0)])
    (line,) = warned(data, {"pipeline": {"workloads": {"w": {}}, "coverage": {"min_classified": 0.95}}})
    assert line == (
        "Classified: 90.0 % of kernel time (nsys), **below the required 95.0 %**; own kernels: `mystery` (10.0 %)."
    )


def test_the_programs_own_kernels_are_listed_without_a_warning() -> None:
    rows = [kernel_row("impl=a", "stencil(int, float*)", 1, 80.0), kernel_row("impl=a", "at::unheard_of<int>", 1, 20.0)]
    data = tables(kernels=rows)
    assert warned(data, {}) == []
    text = classified(data, {})
    assert "Classified: 0 % of kernel time (nsys); own kernels: `stencil` (80.0 %)" in text
    assert "; without a class: `unheard_of<int>` (20.0 %)." in text
    assert "unclassified" not in text


@pytest.mark.parametrize(("own", "is_doubtful"), [(30.0, True), (3.0, False)])
def test_own_kernels_are_a_warning_where_they_could_change_the_share_of_attention(
    own: float, is_doubtful: bool
) -> None:
    rows = [kernel_row("impl=a", ATTENTION, 1, 40.0) | FA2, kernel_row("impl=a", ADD, 1, 60.0 - own)]
    data = tables(kernels=[*rows, kernel_row("impl=a", "mystery", 1, own)])
    sentence = (
        "Classified: 70.0 % of kernel time (nsys); attention's share, 40.0 %, is up to 70.0 % if the rest is attention"
        " too; own kernels: `mystery` (30.0 %)."
    )
    assert warned(data, {"expects": {"w": {"impl=a": "fa2"}}}) == [sentence] * is_doubtful
    # A case that requests no fused kernel rests on no share of attention.
    assert warned(data, {"expects": {"w": {"impl=a": ""}}}) == []


def test_a_case_that_ran_without_a_recorded_kernel_is_a_warning() -> None:
    data = tables([case_row("impl=a", "nsys"), case_row("impl=b", "nsys")], [kernel_row("impl=a", ATTENTION, 1, 5.0)])
    assert warned(data, {}) == ["`nsys` recorded no kernel of 1 case that ran: `b`."]


# --- cases without a result ------------------------------------------------------------------------------------------


def test_failures_are_counted_by_outcome_and_link_to_their_reasons() -> None:
    rows = [case_row("impl=a"), case_row("impl=b", status="oom"), case_row("impl=c", status="oom"),
            case_row("impl=d", status="crashed", reason="killed by SIGABRT")]  # fmt: skip
    (line,) = warned(tables(rows), {})
    assert line == "**2 cases out of memory and 1 case crashed**: reasons and logs."


def failures(data: Tables, run: dict[str, Any], *present: str) -> list[list[str]]:
    """The rows of the failed cases as Markdown; of all files only ``present`` are there."""
    writer = Markdown(exists=lambda path: path in present)
    (table,) = warnings.failures(analyze(data, run)).tables()
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in writer.table(table).splitlines()[2:]]


def test_a_failure_links_the_log_of_its_job_where_the_log_is() -> None:
    log = "raw/topk_/plain/log.txt"
    rows = [case_row("n=1", "plain", "crashed", "killed by SIGABRT"), case_row("n=2")]
    run = {"jobs": [{"workload": "w", "profiler": "plain", "cases": ["n=1"], "log": log},
                    {"workload": "w", "profiler": "plain", "cases": ["n=2"], "log": "raw/other.txt"}]}  # fmt: skip
    data = tables(rows, metrics=[metric_row("n=2", "time", 5.0)])
    row = ["crashed", "`plain`", "at n 1", "1", "killed by SIGABRT"]
    assert failures(data, run, log) == [[*row, f"[log.txt]({log})"]]
    assert failures(data, run) == [[*row, "log.txt"]]


def test_failed_cases_are_named_by_the_values_that_they_share() -> None:
    names = [f"impl={i},mode={m},seqlen={n}" for i in "ab" for m in ("fwd", "bwd") for n in (1, 2, 3)]
    lost = [name for name in names if name.startswith("impl=b") and not name.endswith("=1")]
    rows = [case_row(name, status="oom" if name in lost else "ok", reason="no room") for name in names]
    data = tables(rows, metrics=[metric_row(name, "time", 5.0) for name in names if name not in lost])
    run = {"pipeline": {"workloads": {"w": {"baseline": {"impl": "a"}}}}}
    assert failures(data, run) == [["out of memory", "`plain`", "`b` at seqlen 2 and 3", "4", "no room"]]


def test_a_value_with_commas_is_written_as_in_the_pipeline_file() -> None:
    rows = [case_row("seqlens=128%2C128", status="failed", reason="why not"), case_row("seqlens=256")]
    ((_, _, named, *_),) = failures(tables(rows, metrics=[metric_row("seqlens=256", "time", 5.0)]), {})
    assert named == "with `seqlens=128,128`"


def test_a_job_that_failed_after_its_last_case_has_a_row_without_cases() -> None:
    rows = [case_row("impl=a", "nsys"), case_row("impl=b", "nsys")]
    job = {"workload": "w", "profiler": "nsys", "status": "failed", "reason": "export failed"}
    assert failures(tables(rows, metrics=times(a=1000.0, b=2000.0)), {"jobs": [job]}) == [
        ["failed", "`nsys`", "after the last case", "export failed"]
    ]


# --- files -----------------------------------------------------------------------------------------------------------


def test_files_that_could_not_be_read_and_notes_on_files_are_warnings() -> None:
    run = {
        "refused": [{"source": "a.sqlite", "what": "is empty", "remedy": "Record it again"}],
        "files": [
            {"source": "b.sqlite", "launches": 1, "total_ns": 5.0, "notes": ["3 graph launches hide their kernels"]}
        ],
    }
    assert warned(tables(kernels=[kernel_row("impl=a", ADD, 1, 5.0)]), run) == [
        "Not read: `a.sqlite`: is empty. Record it again.",
        "`b.sqlite`: 3 graph launches hide their kernels.",
    ]


def test_a_process_that_was_started_again_is_a_warning() -> None:
    incident = {"kind": "restarted", "source": "raw/w/plain/log.txt", "details": "killed by SIGKILL"}
    assert warned(tables(metrics=times(a=1000.0)), {"incidents": [incident]}) == [
        "`raw/w/plain/log.txt`: a process ended before its last case (killed by SIGKILL). Another process ran the "
        "cases that were left."
    ]


def test_what_nsys_notes_of_every_capture_is_a_remark() -> None:
    data, run = recorded()
    run["files"][0]["details"] = ["nsys: Not all CUDA events might have been collected."]
    assert not any("might have" in line for line in warned(data, run))
    assert any("Not all CUDA events might have been collected." in line for line in items(of_files(data, run)))


def of_files(data: Tables, run: dict[str, Any]) -> Section:
    return environment.files(analyze(data, run), Manifest.parse(run))


def test_files_without_kernels_are_a_warning_only_where_there_is_a_gpu() -> None:
    sums = {"launches": 0, "total_ns": 0.0, "attributed_ns": 0.0, "unattributed_ns": 0.0}
    nsys = {"source": "a.sqlite", "format": "nsys", "without_kernels": "no kernels in this file", **sums}
    operators = {"without_kernels": "no GPU events: CPU operators, each with its self time", **sums}
    torch = {"source": "b.json", "format": "torch", "attribution": {"thread": 80}, **operators}
    run = {"machine": {"gpus": []}, "files": [nsys, torch], "jobs": [{"files": []}]}
    data = tables(metrics=times(a=1.0, b=2.0))
    assert warned(data, run) == []
    assert "`a.sqlite`: no kernels in this file." in items(of_files(data, run))
    assert "80 CPU operators by the launching thread's ranges" in Markdown().section(of_files(data, run))
    assert "`a.sqlite`: no kernels in this file." in warned(data, run | {"machine": {"gpus": [{"name": "GPU"}]}})


def test_many_files_of_one_job_share_a_row() -> None:
    attribution = {"thread": 30, "no_range": 30}
    sums = {"launches": 60, "total_ns": 2e6, "attributed_ns": 1e6, "unattributed_ns": 1e6, "attribution": attribution}
    held = [{"source": f"raw/w/torch/{i}.json.gz", "format": "trace", "tool": "torch", **sums} for i in range(3)]
    run = {"files": held, "jobs": [{"files": [{"path": f["source"], "bytes": 2**20} for f in held]}]}
    text = Markdown().section(of_files(tables(kernels=[kernel_row("impl=a", ADD, 1, 5.0)]), run))
    assert (
        "| `raw/w/torch/`, 3 files | trace | torch | 3072 KiB | 180 | 6000 us | 3000 us | 3000 us |"
        " 90 by the launching thread's ranges; 90 in no range |"
    ) in text


@pytest.mark.parametrize("run", [
    {"jobs": [{"files": [{"path": "raw/capture.nsys-rep", "bytes": 1}]}]}, {"private_files": ["raw/capture.nsys-rep"]}
])  # fmt: skip
def test_reports_with_the_environment_of_the_process_come_with_a_remark(run: dict[str, Any]) -> None:
    (line,) = items(of_files(tables(), run))
    assert line.startswith("`.nsys-rep` files hold the environment and the command line of the profiled process")


def test_cases_of_an_earlier_run_are_named_with_the_run() -> None:
    def job(case: str, source: str, profiler: str = "plain") -> dict[str, Any]:
        return {"workload": "b", "profiler": profiler, "cases": [case], "reused_from": source}

    some = [job("n=1", "r1"), job("n=2", ""), job("n=3", "r1"), job("n=4", "r0")]
    every = [job("n=1", "r1", "nsys"), job("n=2", "r1", "nsys")]
    assert items(of_files(tables(), {"jobs": some + every, "private_files": []})) == [
        "Measured by the run `r1`: `b` under `plain`: `n=1` and `n=3`.",
        "Measured by the run `r0`: `b` under `plain`: `n=4`.",
        "Measured by the run `r1`: `b` under `nsys`.",
    ]


# --- environment and commands ----------------------------------------------------------------------------------------


def test_rates_stand_with_their_source() -> None:
    rate = {"flops": {"fp16": 711.44e12, "fp64": 0}, "bytes_per_s": 4248.6e9, "source": "measured"}
    assert items(
        environment.environment(Manifest.parse({"machine": {"peaks": {"source": "unknown"}, "ceilings": rate}}))
    ) == [
        "peak rates: unknown",
        "measured rates: fp16 711.4 TFLOP/s, memory 4249 GB/s; measured",
    ]
    of_jobs = {"jobs": [{"workload": "w", "peaks": {"flops": {"int8": 2e15, "fp8": 1e15}}}, {"workload": "v"}]}
    assert items(environment.environment(Manifest.parse(of_jobs))) == ["peak rates of w: int8 2000, fp8 1000 TFLOP/s"]


@pytest.mark.parametrize(
    ("job", "title"),
    [
        ({"status": "failed", "interrupted": True, "seconds": 51.6}, "w under nsys, 51.6 s, interrupted"),
        ({"status": "failed", "seconds": 51.6}, "w under nsys, 51.6 s, failed"),
        ({"reused_from": "20261119T010101Z-w"}, "w under nsys, reused from 20261119T010101Z-w"),
    ],
)
def test_a_command_says_how_its_job_ended(job: dict[str, Any], title: str) -> None:
    section = environment.commands(
        Manifest.parse({"jobs": [{"workload": "w", "profiler": "nsys", "argv": [["nsys", "a b"]], **job}]})
    )
    (block,) = section.blocks
    assert isinstance(block, Details) and block.summary == title
    assert "nsys 'a b'" in Markdown().block(block)


# --- cases without a result ------------------------------------------------------------------------------------------


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
