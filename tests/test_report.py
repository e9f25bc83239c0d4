"""Findings -> SUMMARY.md and the text files: golden pages, and what must hold of every page."""

import json
import re
from typing import Any, TypeAlias

import pytest
from hypothesis import given, strategies as st
from report_study import (
    ADD,
    ATTENTION,
    COPY,
    DATA,
    analyze,
    case_row,
    check_golden,
    every_table,
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


def page(data, run, folder, template=TEMPLATE):
    write_page(analyze(data, run), data, run, folder, template)
    return read_pages(folder)


#: The tables and the record of a run.
Study: TypeAlias = "tuple[Tables, dict[str, Any]]"


# --- golden pages ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Two runs with their pages."""
    study = made_up(["flash", "cudnn", "sage", "math"], [512, 2048, 8192], causal=(False, True))
    made = {"recorded": recorded(), "made-up": study}
    paths = {name: tmp_path_factory.mktemp(name) for name in made}
    for name, run in made.items():
        (paths[name] / "SUMMARY.md").write_text("an older page", encoding="utf-8")
        page(*run, paths[name])
    return paths


@pytest.mark.parametrize("name", ["recorded", "made-up"])
def test_the_pages_are_the_golden_ones_and_whole(folders, regenerate, name):
    text = read_pages(folders[name])
    check_golden(f"pages-{name}.md", text, regenerate)
    for lines in tables_of(text):
        assert len({cells(line) for line in lines}) == 1, lines[0]
    assert "an older page" not in text
    assert not [path for path in folders[name].rglob("*") if path.name.startswith(".")]


def test_every_link_of_the_page_leads_somewhere(folders):
    for name in ("SUMMARY.md", "details.md"):
        for target in re.findall(r"\]\(([^)]+)\)", (folders["recorded"] / name).read_text(encoding="utf-8")):
            path, _, anchor = target.partition("#")
            linked = folders["recorded"] / (path or name)
            assert linked.is_file()
            lines = linked.read_text(encoding="utf-8", errors="replace").splitlines() if anchor else []
            assert not anchor or anchor in {markdown.slug(line.lstrip("# ")) for line in lines if line[:1] == "#"}


@pytest.mark.parametrize("absent", [None, *json.loads((DATA / "report-h200" / "run.json").read_text())])
def test_any_key_of_run_json_may_be_absent(absent):
    data, run = recorded()
    run = {key: value for key, value in run.items() if key != absent} if absent else {}
    document = render.build(analyze(data, run), data, Manifest.parse(run))
    text = "".join(map(markdown.Markdown().section, document.sections))
    assert "## Kernel share" in text and "None" not in text and "nan" not in text.lower()


@pytest.mark.parametrize(
    "name", ["comparison_results", "baseline_benchmark", "ncu_memory_metrics", "nsys_stats", "gpu_info"]
)
def test_the_text_files_are_the_golden_ones(tmp_path, regenerate, name):
    data, run = made_up(["flash", "cudnn"], [512, 2048])
    page(data, run, tmp_path)
    text = (tmp_path / f"{name}.txt").read_text(encoding="utf-8")
    check_golden(f"../data/report-made-up/{name}.txt", text, regenerate)


def test_what_lies_in_no_case_is_not_among_the_kernels_of_all_cases():
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


def times(**ns):
    return [metric_row(f"impl={impl}", "time", value, n=30) for impl, value in ns.items()]


def with_baseline(impl, **more):
    return {"pipeline": {"workloads": {"w": {"baseline": {"impl": impl}}}}, **more}


def twice(sizes, contexts, rows=()):
    """A case with a slow host in one of two workloads: 30.6 ms for a forward pass of 8.5."""

    def timed(workload, case, ms):
        return metric_row(case, "time", ms * 1e6, ci_low=ms * 0.98e6, ci_high=ms * 1.02e6) | {"workload": workload}

    metrics = [timed("sizes", "impl=a", 25.0), timed("sizes", "impl=b", 30.6), timed("contexts", "impl=b", 8.5)]
    metrics += [timed("contexts", "impl=a", 26.0)]  # as near as clocks may bring two measurements
    entry = {"script": "lm", "matrix": {"impl": ["a", "b"]}, "baseline": {"impl": "a"}}
    workloads = {"sizes": {**entry, **sizes}, "contexts": {**entry, **contexts}}
    return tables(rows, metrics=metrics), {"pipeline": {"workloads": workloads}}


def in_doubt():
    """Several wins in doubt. The clock of a case without a flag counts too."""
    clocks = {"impl=a,n=1": 1939e6, "impl=b,n=1": 1711e6, "impl=a,n=4": 1900e6, "impl=b,n=4": 1600e6}
    numbers = [metric_row(f"impl={i},n={n}", "time", ns, ci_low=ns - 1, ci_high=ns + 1)
               for n in (1, 2, 3, 4) for i, ns in (("a", 1000.0), ("b", 1100.0))]  # fmt: skip
    numbers += [metric_row(case, "sm_clock", hz, "Hz") for case, hz in clocks.items()]
    rows = [case_row(f"impl={i},n={n}", flags=["other_process"] if i == "a" and n == 2 else [])
            for n in (1, 2, 3, 4) for i in "ab"]  # fmt: skip
    return tables(rows, metrics=numbers), with_baseline("b")


def counted(clock):
    ncu = {"profiler": "ncu", "subject": ATTENTION}
    metrics = [
        metric_row("impl=a", "iterations", 10, "1"),
        metric_row("impl=a", "lts__t_sector_hit_rate.pct", 9, **ncu),
    ]
    metrics += [metric_row("impl=a", clock, 1.79e9, "Hz", **ncu)] if clock else []
    kernels = [kernel_row("impl=a", ATTENTION, 10, 1e6), kernel_row("impl=a", ATTENTION, 1, 1e5, profiler="ncu")]
    return tables((), kernels, [range_row("impl=a", 10)], metrics), {}


def studies():
    own, pair, cycles = metric_row, times(a=2000.0, b=1000.0), "cycles_elapsed.avg.per_second"
    cpu = {"kind": "cpu_op", "profiler": "torch", "kernel_class": "other"}
    both = [f"impl={i},seqlen={n}" for i in "ab" for n in (1, 2)]
    yield "different times in two workloads", twice({}, {})
    unlike = ({"script": "another"}, {"processes": 2}, {"timing": {"mode": "cuda_graph"}}, {"env": {"A": "1"}})
    yield from ((f"no warning: {next(iter(each))}", twice(each, {})) for each in unlike)
    hidden = {"env": {"OMP_WAIT": None}}
    yield "no warning: of environments only the names are kept, and values may be unlike", twice(hidden, hidden)
    other = case_row("impl=b", flags=["other_process"]) | {"workload": "sizes"}
    yield "no warning: another process", twice({}, {}, [other])
    yield "no warning: a noisy time", twice({}, {}, [case_row("impl=b", flags=["noisy"]) | {"workload": "sizes"}])
    yield (
        "a case with unexpected kernels cannot win",
        (
            tables(kernels=[kernel_row("impl=b", ATTENTION, 1, 5.0)], metrics=pair),
            with_baseline("a", expects={"w": {"impl=b": "cudnn"}}),
        ),
    )
    yield "several wins in doubt", in_doubt()
    named = [own("impl=a", "time", 1e3, workload=workload) for workload in ("fp16", "bf16")]
    run = {"pipeline": {"name": "accuracy", "workloads": {"fp16": {}, "bf16": {}}}}
    yield "several workloads have the name of their pipeline", (tables(metrics=named), run)
    yield "one workload has its own name", (tables(metrics=named[:1]), run)
    yield "files from elsewhere", (tables(metrics=named), {"name": "out"})
    for what, n in (("", 1), ("no ", 0)):
        rows = [own(f"n={i}", "time", 5.0, n=30 + n * i) for i in (1, 2)]
        yield f"{what}column of samples", (tables(metrics=rows), {})
    yield "a machine without a GPU", (tables(metrics=pair), with_baseline("a", machine={"gpus": []}))
    missing = [*times(a=1000.0, b=2000.0), own("impl=a", "flops", 1e6, "flop")]
    yield "a missing value is neither zero nor nan", (tables(metrics=missing), with_baseline("a"))
    lone = [kernel_row("", ADD, 4, 4000.0), kernel_row("", COPY, 2, 1000.0)]
    yield "sums over all iterations", (tables(kernels=lone), {})
    steps = [kernel_row("", ADD, 1, 1000.0 * (i + 1), phase=f"step {i}") for i in range(9)]
    yield "the ranges of a single capture", (tables(kernels=steps), {})
    bmm = kernel_row("impl=a", "aten::bmm", 2, 5000.0, **{**cpu, "kernel_class": "gemm"})
    yield (
        "CPU operators",
        (tables(kernels=[bmm], ranges=[range_row("impl=a", 2, "torch")]), {"machine": {"gpus": [], "cpu": "Some CPU"}}),
    )
    for n in (1, 2):
        yield f"{n} samples", (tables(metrics=[own("impl=a", "time", 5.0, n=n)]), {})
        one = tables(kernels=[kernel_row("impl=a", ADD, n, 9.0)], ranges=[range_row("impl=a", n)])
        yield f"{n} iterations", (one, {})
    operators = [kernel_row(case, "mystery", 2, 5000.0, **cpu) for case in both]
    yield "operators of the other cases", (tables(kernels=operators), with_baseline("a"))
    kernels = [kernel_row(case, ATTENTION, 2, 5000.0) for case in both]
    yield "kernels of the other cases", (tables(kernels=kernels), with_baseline("a"))
    for name in (f"gpc__{cycles}", f"smsp__{cycles}", ""):
        yield f"clock that ncu counts: {name or 'none'}", counted(name)


def test_pages_of_small_runs_are_the_golden_ones(tmp_path, regenerate):
    texts = []
    for number, (name, (data, run)) in enumerate(studies()):
        (tmp_path / str(number)).mkdir()
        texts.append(f"<!-- {name} -->\n\n{page(data, run, tmp_path / str(number))}")
    check_golden("report.md", "\n".join(texts), regenerate)


@pytest.mark.parametrize(("text", "expected"), [
    ("# {{ titel }}", "SUMMARY.md.j2: 'titel' is undefined. Compare it with"),
    ("one\n{% fi %}", "SUMMARY.md.j2:2: Encountered unknown tag 'fi'"),
])  # fmt: skip
def test_a_users_template_that_does_not_fit_is_named(text, expected, tmp_path):
    template = tmp_path / "SUMMARY.md.j2"
    template.write_text(text)
    with pytest.raises(ProfpipeError, match=re.escape(expected)):
        write_page(Findings(), tables(), {}, tmp_path, template)


def test_a_picture_that_the_page_no_longer_shows_is_removed_and_no_other(tmp_path):
    data, run = made_up(["a", "b"], [512, 1024, 2048])
    page(data, run, tmp_path)
    shown = set((tmp_path / "plots").iterdir())
    (tmp_path / "plots" / "mine.png").write_bytes(b"another picture")
    # A user has edited the page in another encoding.
    (tmp_path / "SUMMARY.md").write_bytes((tmp_path / "SUMMARY.md").read_bytes() + b"caf\xe9\n")
    page(tables(metrics=times(a=1.0)), {}, tmp_path)
    assert shown and set((tmp_path / "plots").iterdir()) == {tmp_path / "plots" / "mine.png"}


# --- what must hold of every page ------------------------------------------------------------------------------------


def test_an_empty_run_gives_a_page_without_sections(tmp_path):
    assert page(Tables(), {}, tmp_path) == "# profpipe\n"
    assert not list(tmp_path.glob("*.txt")) and not (tmp_path / "plots").exists()


def cells(line):
    return len(re.findall(r"(?<!\\)\|", line))


def tables_of(text):
    blocks = re.findall(r"(?:^\|.*\n?)+", text, flags=re.MULTILINE)
    return [block.splitlines() for block in blocks]


@pytest.mark.parametrize(
    ("is_measured", "name", "rates"), [(False, "peak", "peak rates"), (True, "measured ceiling", "measured rates")]
)
def test_the_share_of_the_peak_can_be_recomputed_from_the_page_of_a_real_run(is_measured, name, rates, tmp_path):
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


def test_one_shape_is_written_in_the_singular():
    findings = analyze(*made_up(["a", "b", "c"], [128 * 2**i for i in range(36)]))
    (workload,) = findings.workloads
    section = case_numbers.cases(workload, selection.select(workload, findings.workloads))
    assert [table.title for table in every_table(section)] == ["every number of 1 shape by case"]


def test_a_users_template_decides_the_content_of_the_page(tmp_path):
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
def test_a_shortened_name_keeps_the_part_that_distinguishes_it(name, short):
    assert labels.shorten(name) == short


def test_short_names_of_real_kernels_are_short_and_never_shared(shared_data):
    names = list(json.loads((shared_data / "kernel_names.json").read_text(encoding="utf-8")))
    short = labels.short_names(names)
    assert len(set(short.values())) == len(names)
    assert max(map(len, short.values())) <= 96 and all(short.values())


def test_names_that_would_be_alike_have_the_words_in_which_they_differ():
    unary, binary = (
        f"at::vectorized_elementwise_kernel<{n}, at::{kind}Functor<float, binary_internal::MulFunctor<float>>>"
        for n, kind in ((4, "AUnary"), (8, "Binary"))
    )
    other = unary.replace("<float, b", "<c10::BFloat16, b")
    short = "vectorized_elementwise_kernel<…MulFunctor<float>…>"
    words = ("AUnaryFunctor, float", "BinaryFunctor, float", "AUnaryFunctor, BFloat16")
    expected = [*(f"{short} ({differing})" for differing in words), "gemm"]
    assert list(labels.short_names([unary, binary, other, "gemm"]).values()) == expected


@given(st.text(max_size=60))
def test_any_text_survives_a_code_span_and_a_cell(text):
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
def test_numbers_have_three_or_four_digits(value, text):
    assert units.number(value) == text


@pytest.mark.parametrize(
    ("ns", "unit"),
    [([500.0], "ns"), ([17e3, 2e6], "us"), ([1e3, 9e6], "us"), ([3e7], "ms"), ([2e11, 3e10], "s"), ([], "us")],
)
def test_a_column_has_the_unit_of_its_middle(ns, unit):
    assert units.time_unit(ns).name == unit


@pytest.mark.parametrize(
    ("share", "text"), [(1.0, "100"), (0.99999, "> 99.9"), (0.813, "81.3"), (1e-5, "< 0.1"), (0.0, "0")]
)
def test_a_share_is_not_rounded_to_all_or_nothing(share, text):
    assert units.percent(share) == text
