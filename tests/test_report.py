"""Findings -> SUMMARY.md and the text files: golden pages, and what must hold of every page."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from report_study import (
    ADD,
    ATTENTION,
    COPY,
    DATA,
    analyze,
    case_row,
    example,
    kernel_row,
    made_up,
    metric_row,
    range_row,
    read_pages,
    recorded,
    tables,
    with_ceilings,
    write_page,
)  # fmt: skip

from profpipe import plugins
from profpipe.analysis.findings import Findings
from profpipe.errors import ProfpipeError
from profpipe.report import labels, markdown, render, selection, text_files, units
from profpipe.report.sections import cases as case_numbers
from profpipe.results.manifest import Manifest
from profpipe.results.schema import Tables

TEMPLATE = plugins.builtin_folder("templates") / "SUMMARY.md.j2"

#: A kernel name that would break a table, a code span and a page, were it not escaped.
NASTY = "k<a|b>::`quoted`*_(int)_<script>"


def page(data: Tables, run: dict[str, Any], folder: Path, template: Path = TEMPLATE) -> str:
    write_page(analyze(data, run), data, run, folder, template)
    return read_pages(folder)


def compare(text: str, golden: Path, regenerate: bool) -> None:
    if regenerate:
        golden.parent.mkdir(parents=True, exist_ok=True)
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8"), "pytest --regenerate writes the golden files again"


# --- golden pages ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two runs with their pages."""
    study = made_up(["flash", "cudnn", "sage", "math"], [512, 2048, 8192], causal=(False, True))
    made = {"recorded": recorded(), "made-up": study}
    paths = {name: tmp_path_factory.mktemp(name) for name in made}
    for name, run in made.items():
        (paths[name] / "SUMMARY.md").write_text("an older page", encoding="utf-8")
        page(*run, paths[name])
    return paths


@pytest.mark.parametrize("name", ["recorded", "made-up"])
def test_the_pages_are_the_golden_ones_and_whole(folders: dict[str, Path], regenerate: bool, name: str) -> None:
    text = read_pages(folders[name])
    compare(text, Path(__file__).parent / "golden" / f"pages-{name}.md", regenerate)
    for lines in tables_of(text):
        assert len({cells(line) for line in lines}) == 1, lines[0]
    assert "an older page" not in text
    assert not [path for path in folders[name].rglob("*") if path.name.startswith(".")]


def test_every_link_of_the_page_leads_somewhere(folders: dict[str, Path]) -> None:
    for name in ("SUMMARY.md", "details.md"):
        for target in re.findall(r"\]\(([^)]+)\)", (folders["recorded"] / name).read_text(encoding="utf-8")):
            path, _, anchor = target.partition("#")
            linked = folders["recorded"] / (path or name)
            assert linked.is_file()
            lines = linked.read_text(encoding="utf-8", errors="replace").splitlines() if anchor else []
            assert not anchor or anchor in {markdown.slug(line.lstrip("# ")) for line in lines if line[:1] == "#"}


@pytest.mark.parametrize("absent", [None, *json.loads((DATA / "report-h200" / "run.json").read_text())])
def test_any_key_of_run_json_may_be_absent(absent: str | None) -> None:
    data, run = recorded()
    run = {key: value for key, value in run.items() if key != absent} if absent else {}
    document = render.build(analyze(data, run), data, Manifest.parse(run))
    text = "".join(map(markdown.Markdown().section, document.sections))
    assert "## Kernel share" in text and "None" not in text and "nan" not in text.lower()


@pytest.mark.parametrize(
    "name", ["comparison_results", "baseline_benchmark", "ncu_memory_metrics", "nsys_stats", "gpu_info"]
)
def test_the_text_files_are_the_golden_ones(tmp_path: Path, regenerate: bool, name: str) -> None:
    data, run = made_up(["flash", "cudnn"], [512, 2048])
    page(data, run, tmp_path)
    compare((tmp_path / f"{name}.txt").read_text(encoding="utf-8"), DATA / "report-made-up" / f"{name}.txt", regenerate)


def test_what_lies_in_no_case_is_not_among_the_kernels_of_all_cases() -> None:
    """The workload is a command, so its capture has no cases."""
    kernels = [
        kernel_row("impl=a", ATTENTION, 3, 3000.0),
        kernel_row("", "flush", 9, 9000.0),
        {**kernel_row("", COPY, 1, 1000.0), "workload": "command"},
    ]
    data = tables(kernels=kernels)
    text = text_files.texts(analyze(data, {}), data, Manifest())["nsys_stats.txt"]
    rows = [line.split() for line in text.splitlines()[4:]]
    assert [(row[0], row[1], row[2]) for row in rows] == [("75.0", "3000", "3"), ("25.0", "1000", "1")]
    assert "flush" not in text


# --- answers and warnings --------------------------------------------------------------------------------------------


def times(**ns: float) -> list[dict[str, Any]]:
    return [metric_row(f"impl={impl}", "time", value, n=30) for impl, value in ns.items()]


def with_baseline(impl: str, **more: Any) -> dict[str, Any]:
    return {"pipeline": {"workloads": {"w": {"baseline": {"impl": impl}}}}, **more}


def test_a_case_with_different_times_in_two_workloads_gives_a_warning_and_cannot_win(tmp_path: Path) -> None:
    """A slow host passed for a call that synchronises in one of them: 30.6 ms for a forward pass of 8.5."""

    def timed(workload: str, case: str, ms: float) -> dict[str, Any]:
        return metric_row(case, "time", ms * 1e6, ci_low=ms * 0.98e6, ci_high=ms * 1.02e6) | {"workload": workload}

    rows = [timed("sizes", "impl=a", 25.0), timed("sizes", "impl=b", 30.6), timed("contexts", "impl=b", 8.5)]
    rows += [timed("contexts", "impl=a", 26.0)]  # as near as clocks may bring two measurements
    entry = {"script": "lm", "matrix": {"impl": ["a", "b"]}, "baseline": {"impl": "a"}}
    run = {"pipeline": {"workloads": {"sizes": entry, "contexts": entry}}}
    text = page(tables(metrics=rows), run, tmp_path)
    sentence = "different times in two workloads; trust neither: impl b: 30.6 ms in `sizes` and 8.50 ms in `contexts`."
    assert sentence in text
    assert "took a different time in another workload." in text
    for unlike in ({"script": "another"}, {"processes": 2}, {"timing": {"mode": "cuda_graph"}}, {"env": {"A": "1"}}):
        other = {**run["pipeline"]["workloads"], "sizes": {**entry, **unlike}}
        assert sentence not in page(tables(metrics=rows), {"pipeline": {"workloads": other}}, tmp_path)
    # Of environments only the names are kept: these two may well have unlike values.
    hidden = {name: {**entry, "env": {"OMP_WAIT": None}} for name in ("sizes", "contexts")}
    assert sentence not in page(tables(metrics=rows), {"pipeline": {"workloads": hidden}}, tmp_path)
    other_case = case_row("impl=b", flags=["other_process"]) | {"workload": "sizes"}
    assert sentence not in page(tables([other_case], metrics=rows), run, tmp_path)


def test_a_case_with_unexpected_kernels_cannot_win(tmp_path: Path) -> None:
    data = tables(kernels=[kernel_row("impl=b", ATTENTION, 1, 5.0)], metrics=times(a=2000.0, b=1000.0))
    top = page(data, with_baseline("a", expects={"w": {"impl=b": "cudnn"}}), tmp_path)
    assert "is not called the fastest: `b` did not run the kernels it should" in top
    assert "**Unexpected kernel**: `impl=b` requested `cudnn` and ran `fa2`." in top


@pytest.mark.parametrize(("text", "expected"), [
    ("# {{ titel }}", "SUMMARY.md.j2: 'titel' is undefined. Compare it with"),
    ("one\n{% fi %}", "SUMMARY.md.j2:2: Encountered unknown tag 'fi'"),
])  # fmt: skip
def test_a_users_template_that_does_not_fit_is_named(text: str, expected: str, tmp_path: Path) -> None:
    template = tmp_path / "SUMMARY.md.j2"
    template.write_text(text)
    with pytest.raises(ProfpipeError, match=re.escape(expected)):
        write_page(Findings(), tables(), {}, tmp_path, template)


def test_of_several_wins_in_doubt_each_has_its_reason_in_its_row(tmp_path: Path) -> None:
    """The clock of a case without a flag counts too."""
    clocks = {"impl=a,n=1": 1939e6, "impl=b,n=1": 1711e6, "impl=a,n=4": 1900e6, "impl=b,n=4": 1600e6}
    numbers = [metric_row(f"impl={i},n={n}", "time", ns, ci_low=ns - 1, ci_high=ns + 1)
               for n in (1, 2, 3, 4) for i, ns in (("a", 1000.0), ("b", 1100.0))]  # fmt: skip
    numbers += [metric_row(case, "sm_clock", hz, "Hz") for case, hz in clocks.items()]
    rows = [case_row(f"impl={i},n={n}", flags=["other_process"] if i == "a" and n == 2 else [])
            for n in (1, 2, 3, 4) for i in "ab"]  # fmt: skip
    text = page(tables(rows, metrics=numbers), with_baseline("b"), tmp_path)
    assert "In 3 of 4 shapes the lowest time is not called the fastest; the table says why." in text
    lines = [line for line in text.splitlines() if line.startswith("| ") and "`a`" in line]
    sentence = {line.split("|")[1].strip(): line for line in reversed(lines)}
    clock = "in doubt: the GPU ran at 1939 MHz for `a` and at 1711 MHz for `b`"
    assert f"| {clock} |" in sentence["1"] and "in doubt" not in sentence["3"]
    assert "| **other_process**; in doubt: `a` is other_process |" in sentence["2"]


def test_a_study_of_several_workloads_has_the_name_of_its_pipeline(tmp_path: Path) -> None:
    rows = [metric_row("impl=a", "time", 1e3, workload=workload) for workload in ("fp16", "bf16")]
    run = {"pipeline": {"name": "accuracy", "workloads": {"fp16": {}, "bf16": {}}}}
    named = page(tables(metrics=rows), run, tmp_path)
    assert named.startswith("# accuracy · 2 cases\n") and "fp16" in named
    assert page(tables(metrics=rows[:1]), run, tmp_path).startswith("# fp16 · 1 case\n")
    assert page(tables(metrics=rows), {"name": "out"}, tmp_path).startswith("# fp16 and bf16 · 2 cases\n"), (
        "files from elsewhere"
    )


def test_a_picture_that_the_page_no_longer_shows_is_removed_and_no_other(tmp_path: Path) -> None:
    data, run = made_up(["a", "b"], [512, 1024, 2048])
    page(data, run, tmp_path)
    shown = set((tmp_path / "plots").iterdir())
    (tmp_path / "plots" / "mine.png").write_bytes(b"another picture")
    # A user has edited the page in another encoding.
    (tmp_path / "SUMMARY.md").write_bytes((tmp_path / "SUMMARY.md").read_bytes() + b"caf\xe9\n")
    page(tables(metrics=times(a=1.0)), {}, tmp_path)
    assert shown and set((tmp_path / "plots").iterdir()) == {tmp_path / "plots" / "mine.png"}


def test_an_axis_and_the_number_of_samples_have_columns_of_their_own(tmp_path: Path) -> None:
    rows = [metric_row(f"n={n}", "time", 5.0, n=30 + n) for n in (1, 2)]
    page(tables(metrics=rows), {}, tmp_path)
    assert "| n | time ns | samples |" in (tmp_path / "details.md").read_text(encoding="utf-8")
    same = [metric_row(f"n={n}", "time", 5.0, n=30) for n in (1, 2)]
    page(tables(metrics=same), {}, tmp_path)
    assert "| n | time ns |\n" in (tmp_path / "details.md").read_text(encoding="utf-8")


def test_times_of_a_machine_without_a_gpu_are_labelled_as_such(tmp_path: Path) -> None:
    text = page(tables(metrics=times(a=1.0, b=2.0)), with_baseline("a", machine={"gpus": []}), tmp_path)
    assert "Measured on a CPU.\n" in text
    assert "on a CPU" not in page(tables(metrics=times(a=1.0, b=2.0)), with_baseline("a"), tmp_path)


# --- what must hold of every page ------------------------------------------------------------------------------------


def test_an_empty_run_gives_a_page_without_sections(tmp_path: Path) -> None:
    assert page(Tables(), {}, tmp_path) == "# profpipe\n"
    assert not list(tmp_path.glob("*.txt")) and not (tmp_path / "plots").exists()


def cells(line: str) -> int:
    return len(re.findall(r"(?<!\\)\|", line))


def tables_of(text: str) -> list[list[str]]:
    blocks = re.findall(r"(?:^\|.*\n?)+", text, flags=re.MULTILINE)
    return [block.splitlines() for block in blocks]


def test_kernel_names_cannot_break_the_page(tmp_path: Path) -> None:
    kernels = [kernel_row("impl=a", NASTY, 1, 9.0), kernel_row("impl=a", ADD, 1, 1.0)]
    text = page(tables(kernels=kernels), {}, tmp_path)
    outside_code = re.sub(r"(`+).+?\1", "", text)
    assert "<script>" not in outside_code and "k<a" not in outside_code
    for lines in tables_of(text):
        assert len({cells(line) for line in lines}) == 1


def test_a_missing_value_is_neither_zero_nor_nan(tmp_path: Path) -> None:
    data = tables(metrics=[*times(a=1000.0, b=2000.0), metric_row("impl=a", "flops", 1e6, "flop")])
    page(data, with_baseline("a"), tmp_path)
    details = (tmp_path / "details.md").read_text(encoding="utf-8")
    row = next(line for line in details.splitlines() if line.startswith("| `b`"))
    assert row.rstrip(" |").split(" | ")[-1] == "–"


def test_sums_over_all_iterations_are_labelled_as_such(tmp_path: Path) -> None:
    text = page(tables(kernels=[kernel_row("", ADD, 4, 4000.0), kernel_row("", COPY, 2, 1000.0)]), {}, tmp_path)
    assert "**6 kernel launches, 5.00 us in all: add 80.0 % and copy 20.0 % of it.**" in text
    assert "Sums over the whole recording (nsys): the file does not say how many iterations it has." in text
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


@pytest.mark.parametrize(("n", "s"), [(1, ""), (2, "s")])
def test_one_sample_and_one_iteration_are_written_in_the_singular(tmp_path: Path, n: int, s: str) -> None:
    assert f"over {n} sample{s}." in page(tables(metrics=[metric_row("impl=a", "time", 5.0, n=n)]), {}, tmp_path)
    data = tables(kernels=[kernel_row("impl=a", ADD, n, 9.0)], ranges=[range_row("impl=a", n)])
    assert f"over {n} iteration{s}." in page(data, {}, tmp_path)


def test_operators_of_the_other_cases_are_called_operators(tmp_path: Path) -> None:
    cpu = {"kind": "cpu_op", "profiler": "torch", "kernel_class": "other"}
    rows = [kernel_row(f"impl={i},seqlen={n}", "mystery", 2, 5000.0, **cpu) for i in "ab" for n in (1, 2)]
    text = page(tables(kernels=rows), with_baseline("a"), tmp_path)
    assert "<summary>The first 2 operators of each other case, from 10 % on</summary>" in text
    assert "| operator | of the workload's time % |" in (tmp_path / "details.md").read_text(encoding="utf-8")


def test_kernels_are_named_by_their_cases(tmp_path: Path) -> None:
    rows = [kernel_row(f"impl={i},seqlen={n}", ATTENTION, 2, 5000.0) for i in "ab" for n in (1, 2)]
    page(tables(kernels=rows), with_baseline("a"), tmp_path)
    _, _, text = (tmp_path / "details.md").read_text(encoding="utf-8").partition("## Top kernels, seqlen 2")
    opened, _, folded = text.partition("<summary>The first 2 kernels of each other case, from 10 % on</summary>")
    assert "| seqlen 2, `a` |" in opened and "| seqlen 1, `a` |" in folded


@pytest.mark.parametrize("clock", ["GPC GHz", "SM GHz", ""])
def test_the_clock_that_ncu_counts_is_explained_where_it_is_shown(tmp_path: Path, clock: str) -> None:
    ncu = {"profiler": "ncu", "subject": ATTENTION}
    names = {"GPC GHz": "gpc__cycles_elapsed.avg.per_second", "SM GHz": "smsp__cycles_elapsed.avg.per_second"}
    metrics = [
        metric_row("impl=a", "iterations", 10, "1"),
        metric_row("impl=a", "lts__t_sector_hit_rate.pct", 9, **ncu),
    ]
    metrics += [metric_row("impl=a", names[clock], 1.79e9, "Hz", **ncu)] if clock else []
    kernels = [kernel_row("impl=a", ATTENTION, 10, 1e6), kernel_row("impl=a", ATTENTION, 1, 1e5, profiler="ncu")]
    page(tables((), kernels, [range_row("impl=a", 10)], metrics), {}, tmp_path)
    text = (tmp_path / "details.md").read_text(encoding="utf-8")
    _, _, section = text.partition("<summary>Further figures of ncu</summary>\n\n")
    assert section.startswith("GPC GHz is a clock that ncu counts itself" if clock == "GPC GHz" else "| case |")


@pytest.mark.parametrize(
    ("is_measured", "name", "rates"),
    [(False, "peak", "peak rates"), (True, "measured ceiling", "measured rates")],
)
def test_the_share_of_the_peak_can_be_recomputed_from_the_page_of_a_real_run(
    is_measured: bool, name: str, rates: str, tmp_path: Path
) -> None:
    data, run = example("h200-attention")
    text = page(*(with_ceilings(data, run) if is_measured else (data, run)), tmp_path)
    reached = re.search(rf"reaches ([\d.]+) TFLOP/s at [^:]*, ([\d.]+) % of the {name}:", text)
    peak = re.search(
        rf"^- {rates}: fp16 ([\d.]+), .* TFLOP/s, memory \d+ GB/s; ",
        (tmp_path / "details.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    assert reached and peak
    assert float(reached[1]) / float(peak[1]) == pytest.approx(float(reached[2]) / 100, abs=0.001)
    assert f"fp16: {peak[1]} TFLOP/s" in (tmp_path / "gpu_info.txt").read_text(encoding="utf-8")


def test_one_shape_is_written_in_the_singular() -> None:
    findings = analyze(*made_up(["a", "b", "c"], [128 * 2**i for i in range(36)]))
    (workload,) = findings.workloads
    section = case_numbers.cases(workload, selection.select(workload, findings.workloads))
    assert [table.title for table in section.tables()] == ["every number of 1 shape by case"]


def test_a_users_template_decides_the_content_of_the_page(tmp_path: Path) -> None:
    template = tmp_path / "SUMMARY.md.j2"
    loop = "{{ document.title | markdown }}\n"
    loop += "{% for s in document.sections if s.id == 'headline' %}{{ s | markdown }}{% endfor %}"
    template.write_text(loop, encoding="utf-8")
    text = page(*recorded(), tmp_path / ".", template)
    assert text.startswith("attention · 14 cases") and "`cudnn` is fastest" in text and "##" not in text


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
def test_a_shortened_name_keeps_the_part_that_distinguishes_it(name: str, short: str) -> None:
    assert labels.shorten(name) == short


def test_short_names_of_real_kernels_are_short_and_never_shared(shared_data: Path) -> None:
    names = list(json.loads((shared_data / "kernel_names.json").read_text(encoding="utf-8")))
    short = labels.short_names(names)
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
    assert units.number(value) == text


@pytest.mark.parametrize(
    ("ns", "unit"),
    [([500.0], "ns"), ([17e3, 2e6], "us"), ([1e3, 9e6], "us"), ([3e7], "ms"), ([2e11, 3e10], "s"), ([], "us")],
)
def test_a_column_has_the_unit_of_its_middle(ns: list[float], unit: str) -> None:
    assert units.time_unit(ns).name == unit


@pytest.mark.parametrize(
    ("share", "text"), [(1.0, "100"), (0.99999, "> 99.9"), (0.813, "81.3"), (1e-5, "< 0.1"), (0.0, "0")]
)
def test_a_share_is_not_rounded_to_all_or_nothing(share: float, text: str) -> None:
    assert units.percent(share) == text
