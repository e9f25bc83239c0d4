"""Kernel names: one spelling for all tools, their classes, and the unclassified rest."""

import csv
import gzip
import json
import random
import re
import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest

from profpipe import plugins
from profpipe.cli import main
from profpipe.ingest import kernel_classes, kernel_names, reader
from profpipe.ingest.kernel_classes import annotate, user_rules
from profpipe.ingest.kernel_names import demangle, normalise

REPORTED = Path(__file__).parent / "data" / "reported"

NSYS_COPY = (
    "void at::native::elementwise_kernel<(int)128, (int)4, void at::native::gpu_kernel_impl_nocast<"
    "at::native::direct_copy_kernel_cuda(at::TensorIteratorBase &)::[lambda() (instance 3)]::operator ()() const::"
    "[lambda() (instance 10)]::operator ()() const::[lambda(c10::Half) (instance 1)]>(at::TensorIteratorBase &, "
    "const T1 &)::[lambda(int) (instance 1)]>(int, T3)"
)
FLASH_MANGLED = (
    "_ZN13pytorch_flash16flash_fwd_kernelI23Flash_fwd_kernel_traitsILi128ELi128ELi64ELi4ELb0ELb0EN7cutlass6half_tE"
    "19Flash_kernel_traitsILi128ELi128ELi64ELi4ES3_EELb0ELb0ELb0ELb0ELb1ELb1ELb0ELb0EEEvNS_16Flash_fwd_paramsE"
)


def first_rule(name, own=()):
    return kernel_classes.first_rules([name], own)[name]


def classify(name, own=()):
    """Class and family of a kernel name."""
    rule = first_rule(name, own)
    return (rule.kernel_class, rule.family) if rule else ("other", "")


def nsys_names(path, column="demangledName"):
    """Kernel names of an nsys export, with the time of each."""
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    query = (
        f'SELECT s.value, SUM(k."end" - k.start) FROM CUPTI_ACTIVITY_KIND_KERNEL k '
        f"JOIN StringIds s ON s.id = k.{column} GROUP BY 1"
    )
    try:
        return Counter(dict(connection.execute(query).fetchall()))
    finally:
        connection.close()


def ncu_csv_names(path):
    with path.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(line for line in file if line.startswith('"')))
    return {row["Kernel Name"] for row in rows if row["Kernel Name"]}


def kineto_names(path):
    with gzip.open(path) as file:
        return {e["name"] for e in json.load(file)["traceEvents"] if e.get("cat") == "kernel"}


def same(names):
    return {normalise(name) for name in names}


@pytest.fixture(scope="module")
def real_names(shared_data):
    return list(json.loads((shared_data / "kernel_names.json").read_text(encoding="utf-8")))


def test_every_kernel_of_the_torch_trace_but_the_setup_joins_with_nsys(shared_data):
    nsys = same(nsys_names(shared_data / "h200" / "attn_h200.sqlite"))
    torch = same(kineto_names(shared_data / "h200" / "attn_trace.json.gz"))
    only_torch = torch - nsys
    # The trace was recorded over the making of the inputs too; the nsys capture was not.
    assert [name for name in only_torch if "normal_kernel" not in name] == []
    assert len(torch & nsys) >= 7


def test_every_kernel_of_the_ncu_csvs_joins_with_nsys(shared_data):
    nsys = same(nsys_names(shared_data / "h200" / "attn_h200.sqlite"))
    for page in ("attn_basic.raw.csv", "attn_full.raw.csv"):
        assert same(ncu_csv_names(shared_data / "h200" / page)) <= nsys


def test_the_ncu_report_joins_with_nsys_by_either_of_its_names(shared_data):
    ncu_report = pytest.importorskip("ncu_report")
    nsys = same(nsys_names(shared_data / "h200" / "sdpa_capture_range.sqlite"))
    report = ncu_report.load_report(str(shared_data / "h200" / "sdpa_basic.ncu-rep"))
    actions = [action for one_range in report for action in one_range]
    assert len(actions) == 6
    for action in actions:
        demangled = normalise(action.name(action.NameBase_DEMANGLED))
        assert demangled == normalise(action.name(action.NameBase_MANGLED))
        assert demangled in nsys


@pytest.mark.parametrize("recording", ["attn_h200", "lm_eager", "sdpa_capture_range", "sdpa_nsys2023"])
def test_no_two_kernels_of_a_recording_become_one(shared_data, recording):
    names = nsys_names(shared_data / "h200" / f"{recording}.sqlite")
    assert len(same(names)) == len(names)


def test_normalising_twice_changes_nothing(real_names):
    once = [normalise(name) for name in real_names]
    assert [normalise(name) for name in once] == once


def test_names_that_become_one_are_the_same_but_for_their_spelling(real_names):
    def letters(name):
        """What no spelling changes: the words in front of the first bracket."""
        plain = name.removeprefix("void ").replace("native::", "").replace("<unnamed>", "(anonymous namespace)")
        return plain.replace(".kd", "").replace(" [clone .kd]", "").split("<")[0].split("(")[0]

    groups: dict[str, set[str]] = {}
    for name in real_names:
        if not name.startswith("_Z"):
            groups.setdefault(normalise(name), set()).add(letters(name))
    assert [group for group in groups.values() if len(group) > 1] == []
    assert len(groups) > 800


def test_a_name_reads_well_when_normalised():
    assert normalise(NSYS_COPY) == (
        "at::elementwise_kernel<128, 4, at::gpu_kernel_impl_nocast<at::direct_copy_kernel_cuda(at::TensorIteratorBase&)"
        "::{lambda()#3}::{lambda()#10}::{lambda(c10::Half)#1}>::{lambda(int)#1}>"
    )


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("saxpy(double *, double *, const double *, int)", "saxpy(double*, double*, double const*, int)"),
        ("_Z5saxpyPfS_f", "saxpy(float *, float *, float)"),
        ("void k<(int)64, (bool)1, (unsigned long)3>(T1)", "void k<64, true, 3ul>(float)"),
        ("void k<(int)-1>(T1)", "k<-1>(int)"),
        (
            "void k<4, F<(bool)1>::operator ()<at::native::Add>(at::Tensor &)::[lambda(int) (instance 1)]>(int, T2)",
            "void k<4, F<true>::operator()<at::native::Add>(at::Tensor&)::{lambda(int)#1}>(int, F<true>)",
        ),
        ("void <unnamed>::k<A<B<int>>>(int)", "void (anonymous namespace)::k<A<B<int> > >(int)"),
        ("unnamed>::saxpy_kernel(float, const float *)", "(anonymous namespace)::saxpy_kernel(float, float const*)"),
        ("attn_fwd.kd", "attn_fwd"),
        ("void f<double>(double*) [clone .kd]", "void f<double>(double *)"),
        ("[CUDA memcpy HtoD]", "[CUDA memcpy Host-to-Device]"),
        ("k<f(int)::'lambda'(float)>(int)", "k<f(int)::{lambda(float)#1}>(int)"),
        ("k<f(int)::'lambda0'(float)>(int)", "k<f(int)::{lambda(float)#2}>(int)"),
        ("std::enable_if<!T7, void>::type gemvx::kernel<(int)4, (bool)0>(T13)", "gemvx::kernel<4, 0>(gemvx::Params)"),
        (
            "void k<const float *, const std::array<int, (unsigned long)4> &>(T1)",
            "k<float const*, std::array<int, 4ul> const&>(int)",
        ),
        ("fmha_sm80(A::K<cutlass::arch::Sm80, (bool)1>::Params)", "fmha_sm80(A::K<arch::Sm80, 1>::Params)"),
    ],
)
def test_two_spellings_become_one(one, other):
    assert normalise(one) == normalise(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("void k<float>(int)", "void k<double>(int)"),
        ("flash::flash_fwd_kernel<1>(int)", "pytorch_flash::flash_fwd_kernel<1>(int)"),
        ("k<(QuantGranularity)2>(int)", "k<(QuantGranularity)3>(int)"),
        ("k<(QuantGranularity)2>(int)", "k<(PVThresholdMode)2>(int)"),
        ("add(float*, float*)", "add(double*, double*)"),
        ("k<f(int)::{lambda(float)#1}>(int)", "k<f(int)::{lambda(int)#1}>(int)"),
        ("k<f(int)::{lambda()#1}>(int)", "k<f(float)::{lambda()#1}>(int)"),
        ("k<float const*>(int)", "k<float*>(int)"),
    ],
)
def test_distinct_kernels_stay_apart(one, other):
    assert normalise(one) != normalise(other)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "aten::mm",
        "Memcpy HtoD (Pageable -> Device)",
        "Memset (Device)",
        "[CUDA memset]",
        "triton_poi_fused_add_0",
        "autograd::engine::evaluate_function: AddmmBackward0",
        "ampere_sgemm_128x64_tn",
        "## Call CompiledFxGraph abc ##",
        "_Znot_a_mangled_name",
    ],
)
def test_names_that_are_not_cpp_signatures_stay_unchanged(name):
    assert normalise(name) == name


def test_a_name_cut_in_the_middle_is_left_as_it_is():
    cut = NSYS_COPY[:120] + "..."
    assert normalise(cut) == cut
    assert classify(cut)[0] in ("elementwise", "other")


def test_a_name_that_lost_brackets_in_the_middle_keeps_its_beginning():
    """As the text page of ncu 2025 prints it."""
    torn = (
        "void vectorized_elementwise_kernel<4, unnamed>::silu_kernel(TensorIteratorBase &)::[lambda() (instance 1)]"
        "::operator ()() lambda() (instance 2)]::operator ()() lambda(float) (instance 1)], std::array<char *, 2>>(int)"
    )
    assert normalise(torn).startswith("vectorized_elementwise_kernel<4, (anonymous namespace)::silu_kernel(")
    assert classify(torn)[0] == "elementwise"
    closed_twice = "void k<4, f>::g(int)], std::array<char *, 2>>(int)"
    assert normalise(closed_twice) == closed_twice


@pytest.mark.parametrize(
    ("name", "kernel_class"),
    [
        (
            "void moe::dev::routing::routingIndicesHistogramKernel<routingRenormalize::KernelParams<float>>(int)",
            "index",
        ),
        ("void fbgemm_gpu::permute_pooled_embs_kernel<float>(float const*)", "copy"),
        ("void tensorTransformGeneric<float, float, float, 1, 0, 0, (cudnnKernelDataType_t)0>()", "copy"),
        ("matrixMulKernel(float*, float*, float*, int)", "gemm"),
        ("main_53_gpu__red", "reduction"),
    ],
)
def test_a_word_inside_another_word_does_not_decide(name, kernel_class):
    assert classify(name)[0] == kernel_class


def test_text_made_of_brackets_never_breaks_the_parser():
    dice = random.Random(7)
    for _ in range(3000):
        text = "k" + "".join(dice.choice("<>(){}[],:&* a1T_const lambda") for _ in range(dice.randrange(30)))
        normalise(text)
    normalise("f<" * 5000)


def test_bf16_kernels_of_rocm_are_demangled_with_their_substitutions_right():
    name = "_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi64ELi8ELb0ELb0ELb1ELi1EEEvPT0_PT_PfS4_S4_S4_diiiiiiib"
    assert normalise(name) == "aiter::add_rmsnorm_quant_kernel<__bf16, __bf16, 64, 8, 0, 0, 1, 1>"
    # A vendor type in the place of DF16b would shift S_ by one and turn ck_tile::sequence into __bf16.
    shape = demangle("_ZN2ck1kINS_1AIDF16bNS_8sequenceIJLi1EEEENS2_IJLi2EEEEEEEEvT_")
    assert shape.startswith("void ck::k<ck::A<__bf16, ck::sequence<1>, ck::sequence<2>")


def test_a_name_that_takes_too_much_time_to_demangle_is_shortened(monkeypatch):
    monkeypatch.setattr(kernel_names, "MOST_S", -1.0)  # a file has spent its time
    digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    doubled = "".join(f"S_IS{digit}_S{digit}_E" for digit in digits[:24])
    head = "_ZN2ck16tensor_operation12_GLOBAL__N_139kernel_grouped_conv_fwd_xdl_cshuffle_v3I1PIiiE"
    first, second = (normalise(f"{head}{doubled}Li{number}EEEvi") for number in (1, 2))
    shown = "ck::tensor_operation::(anonymous namespace)::kernel_grouped_conv_fwd_xdl_cshuffle_v3"
    assert re.fullmatch(rf"{re.escape(shown)}<…[0-9a-f]{{8}}>", first) and first != second
    assert normalise(first) == first and classify(first) == classify(f"{shown}<int>") != ("other", "")
    # No template, and a prefix that is a substitution.
    for name in (f"_Z1f1PIiiE{doubled}", f"_ZNSt1fI1PIiiE{doubled}EEvv"):
        assert normalise(name) == name


def test_almost_every_mangled_name_that_was_seen_is_demangled(real_names):
    mangled = [name for name in real_names if name.startswith("_Z")]
    left = [name for name in mangled if normalise(name).startswith("_Z")]
    # A constrained template parameter (Tn), which no demangler of before 2024 reads.
    assert [name.split("_kernel")[0] for name in left] in ([], ["_ZN7sgl_hip10activation18act_and_mul"])


def test_a_mangled_name_is_the_demangled_one():
    assert normalise(FLASH_MANGLED).startswith(
        "pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, 0, 0,"
    )
    assert classify(FLASH_MANGLED) == ("attention", "fa2")


DOCUMENT = plugins.kernel_classes()
EXAMPLES = [
    (rule, name)
    for rule, entry in zip(kernel_classes.rules(), DOCUMENT["rules"], strict=True)
    for name in entry["examples"]
]


def test_every_rule_has_a_known_class_a_source_and_examples():
    for entry in DOCUMENT["rules"]:
        assert entry["class"] in DOCUMENT["classes"] and entry["pattern"] and entry["source"] and entry["examples"]
        assert entry.keys() <= {"class", "family", "pattern", "source", "examples", "company"}


@pytest.mark.parametrize(("rule", "name"), EXAMPLES, ids=[name[:60] for _, name in EXAMPLES])
def test_an_example_is_found_by_its_own_rule_first(rule, name):
    assert first_rule(name) is rule
    # The table holds normalised names, and `profpipe report` may classify them again.
    assert classify(normalise(name)) == classify(name)


SERVERS = {
    "mla_a16w16_qh16_m16x4_n16x1_coex0_mask1_ps": "attention",
    "mla_a8w8_qh16_qseqlen1_gqaratio16": "attention",
    "fused_moe_kernel": "gemm",
    "void marlin::Marlin<__nv_bfloat16, 1125899906909960l, 256, 1, 8, 8>(int4 const*)": "gemm",
    "_ZN5aiter44fmoe_bf16_blockscaleFp8_g1u1_vs_silu_1tg_32x256E": "gemm",
    "nccldevkernel_allreduce_sum_bf16_ring_ll": "communication",
    "nccldevkernel_allgather_ring_ll": "communication",
    "rccl_main_kernel(ncclDevComm*, unsigned long, ncclWork*)": "communication",
    "ncclSymkDevKernel_AllGather_STMC(ncclSymkDevWorkArgs4K)": "communication",
    "void deep_ep::internode::combine<x>(y)": "communication",
    "void vllm::qr::allreduce_prototype_twoshot<x>(y)": "communication",
}


def test_the_kernels_of_servers_have_the_class_of_what_they_do():
    (result,) = reader.ingest([reader.InputFile(REPORTED / "kernel_names.json", "w")])
    assert isinstance(result, reader.Read)
    kernels = result.tables.kernels[result.tables.kernels["kind"] == "kernel"]
    found = dict(zip(kernels["kernel"], kernels["kernel_class"], strict=True))
    assert found == {normalise(name): kernel_class for name, kernel_class in SERVERS.items()}
    assert kernels["total_ns"].sum() == 110_000


def test_experts_exchange_is_communication_and_none_of_it_is_hidden(tmp_path):
    trace = REPORTED / "moe_expert_parallel.json.gz"
    assert main(["ingest", str(trace), "--out", str(tmp_path / "out")]) == 0
    page = (tmp_path / "out" / "SUMMARY.md").read_text(encoding="utf-8")
    assert "**A step takes 825.0 us" in page
    rows = dict(re.findall(r"^\| \*\*(.+?)\*\* \| \*\*([\d.]+)\*\* \|", page, re.MULTILINE))
    assert (rows["compute"], rows["exposed communication"]) == ("440.0", "360.0")
    assert "Classified: 100 % of kernel time (torch)." in (tmp_path / "out" / "details.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "kernel_class"),
    [
        # A matrix product whose arguments are cuBLAS's, as those of vectors are.
        ("void gemvNSP_kernel<float, float, float, float, 1, 32, 4, 1024, cublasGemvParamsEx<int>>(int)", "gemm"),
        (
            "void gemv2T_kernel_val<int, int, float, float, float, 128, 16, 4, 4, false>(cublasGemvParamsEx<int>)",
            "gemm",
        ),
        ("rocblas_gemvt_kernel", "gemm"),
        ("rocblas_reduction_kernel_part2", "reduction"),
        ("saxpy_kernel(int, float, float*, float*)", "elementwise"),
        # Structured sparsity is a matrix product, and sparse attention is attention.
        ("sm80_xmma_sparse_gemm_f16f16_f16f32_f32_tn_n_tilesize64x64x64_stage6_warpsize2x2x1", "gemm"),
        ("_sparse_attn_kernel", "attention"),
        ("aten::_sparse_mm", "gemm"),
        # The program's own kernels with a word of a library's.
        ("void combineKernel<float>(float*, int)", "other"),
        ("dispatch(int*)", "other"),
        ("compute_on_stream_kernel(float*)", "other"),
        ("void fast::WarpAllReduceKernel<float>(float*)", "other"),
    ],
)
def test_names_near_those_of_vectors_experts_and_exchanges_keep_their_class(name, kernel_class):
    assert classify(name)[0] == kernel_class


def test_less_than_a_tenth_of_the_real_names_is_unclassified(real_names, record_property):
    other = [name for name in real_names if classify(name)[0] == "other"]
    share = f"{100 * len(other) / len(real_names):.1f} %"
    record_property("table", [f"unclassified of {len(real_names)} kernel names", f"{len(other)} names", share])
    assert len(real_names) == 895
    assert len(other) < 0.1 * len(real_names)


def test_the_kernels_of_serving_projects_have_the_class_that_was_judged():
    """The names are those of their sources; each was judged by its name, samples by their source."""
    judged = json.loads((Path(__file__).parent / "data" / "serving_kernel_names.json").read_text(encoding="utf-8"))
    found = dict(zip(judged, kernel_classes.classes(list(judged)), strict=True))
    assert {name: found[name] for name, (_, known) in judged.items() if found[name] != known} == {}
    assert len(judged) > 3_000 and list(found.values()).count("other") <= 0.01 * len(judged)


def test_classes_do_not_depend_on_which_tool_spelt_the_name(real_names):
    assert [name for name in real_names if classify(name) != classify(normalise(name))] == []


@pytest.mark.parametrize("recording", ["attn_h200", "lm_eager", "sdpa_capture_range", "sdpa_nsys2023"])
def test_less_than_a_hundredth_of_the_h200_time_is_unclassified(shared_data, recording, record_property):
    times = nsys_names(shared_data / "h200" / f"{recording}.sqlite")
    other = sum(time for name, time in times.items() if classify(name)[0] == "other")
    share = f"{100 * other / sum(times.values()):.2f} % of time"
    record_property("table", [f"unclassified in h200/{recording}.sqlite", share])
    assert other < 0.01 * sum(times.values())


def test_the_attention_families_of_the_h200_recording_are_distinguished(shared_data):
    families = {classify(name)[1] for name in nsys_names(shared_data / "h200" / "attn_h200.sqlite")}
    assert {"fa2", "cudnn", "cutlass_fmha", "triton", "sage"} <= families


def test_add_in_the_name_of_a_fused_kernel_is_not_classified_as_an_addition():
    assert classify("triton_poi_fused_add_0") == ("fused", "inductor")
    assert classify("triton_red_fused_add_mean_0") == ("reduction", "inductor")


def test_sage1_is_recognised_by_the_quantiser_in_the_same_case():
    frame = pd.DataFrame(
        {
            "case": ["impl=sage", "impl=sage", "impl=tutorial"],
            "kernel": ["_attn_fwd", "quant_per_block_int8_kernel", "_attn_fwd"],
            "calls": [1, 2, 1],
        }
    )
    result = annotate(frame)
    assert list(result["kernel_family"]) == ["sage1", "sage", "triton"]
    assert list(result["kernel_class"]) == ["attention", "attention_aux", "attention"]
    assert list(result["calls"]) == [1, 2, 1]


@pytest.mark.parametrize(
    ("company", "family"),
    [
        (["quant_query_per_thread_int8_kernel"], "sage2"),
        (["triton_fill_block_map_kernel"], "sparge"),
        (["quant_query_per_thread_int8_kernel", "triton_fill_block_map_kernel"], "sage2|sparge"),
        (["ampere_sgemm_128x64_tn"], "sage2|sparge"),
    ],
)
def test_sage2_and_sparge_without_template_arguments_are_known_by_their_company(company, family):
    result = annotate(pd.DataFrame({"kernel": ["qk_int8_sv_f8_attn_kernel", *company]}))
    assert result["kernel_family"][0] == family


def test_sage2_and_sparge_are_recognised_by_their_template_arguments_in_any_spelling():
    for mode, family in (("(PVThresholdMode)1, ", "sparge"), ("", "sage2")):
        name = f"void qk_int8_sv_f8_attn_kernel<(unsigned int)64, (QuantGranularity)2, {mode}__half>(CUtensorMap)"
        assert classify(name) == classify(normalise(name)) == ("attention", family)


def test_whole_graphs_are_class_graph_and_copies_keep_their_class():
    frame = pd.DataFrame(
        {
            "kind": ["graph", "memcpy", "memset", "cpu_op"],
            "kernel": ["CUDA graph 4 of gemm", "[CUDA memcpy HtoD]", "Memset (Device)", "aten::mm"],
        }
    )
    assert list(annotate(frame)["kernel_class"]) == ["graph", "memcpy", "memset", "gemm"]


def test_annotating_keeps_the_rows_and_their_order_and_the_frame_given():
    frame = pd.DataFrame({"kernel": [NSYS_COPY, "x", NSYS_COPY], "calls": [3, 2, 1]}, index=[5, 3, 9])
    result = annotate(frame)
    assert list(result.index) == [5, 3, 9] and list(result["calls"]) == [3, 2, 1]
    assert list(result["kernel_class"]) == ["copy", "other", "copy"]
    assert frame["kernel"].iloc[0] == NSYS_COPY and "kernel_class" not in frame


def test_annotating_an_empty_frame_gives_its_columns():
    result = annotate(pd.DataFrame({"kernel": pd.Series([], dtype=object), "kind": pd.Series([], dtype=object)}))
    assert len(result) == 0 and {"kernel_class", "kernel_family"} <= set(result.columns)


def test_the_users_rules_go_first_and_see_either_spelling():
    own = user_rules([{"class": "attention", "family": "mine", "pattern": r"^void at::native::elementwise_kernel"}])
    assert classify(NSYS_COPY, own) == ("attention", "mine")
    assert classify(NSYS_COPY) == ("copy", "")
    assert annotate(pd.DataFrame({"kernel": [NSYS_COPY]}), own)["kernel_family"][0] == "mine"


@pytest.mark.parametrize(
    ("entry", "complaint"),
    [
        ({"class": "gem", "pattern": "x"}, "rule 1: unknown class 'gem'"),
        ({"class": "gemm", "pattern": ""}, "rule 1: the pattern must be a text, not ''"),
    ],
)
def test_a_wrong_rule_is_refused_with_its_index(entry, complaint):
    with pytest.raises(ValueError, match=complaint):
        user_rules([{"class": "gemm", "pattern": "x"}, entry])


def test_many_names_at_once_have_the_rules_that_each_has_alone():
    texts = [name for _, name in EXAMPLES]
    names = [
        *texts,
        *(f"{text} \u00e9 {other}" for text, other in zip(texts, reversed(texts), strict=True)),
        "\ud800 gemm",
    ]
    # Rules of the user that find nothing keep these results apart from each other, and from those of other tests.
    absent, other = (user_rules([{"class": "gemm", "pattern": f"no kernel has {what}"}]) for what in ("this", "that"))
    together = kernel_classes.first_rules(names, other)
    assert together == {name: first_rule(name, absent) for name in names}
    assert kernel_classes.classes(texts) == [rule.kernel_class for rule, _ in EXAMPLES]


def test_classifying_needs_no_pandas():
    classify = "from profpipe.ingest import kernel_classes; kernel_classes.classes(['aten::mm'])"
    code = f"import sys; {classify}; sys.exit('pandas' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[1], check=False).returncode == 0
