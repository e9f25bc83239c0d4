"""How each implementation of attention is called, its arguments, and the reason where it cannot run.

No package of attention is here, and no GPU: packages with the interface that is named stand in for the real ones, and
say what they were called with.
"""

import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import lazy
import pytest
from stand_in_gpu import pretend_cuda

from profpipe import plugins

pytestmark = lazy.needs("torch")
torch = lazy.module("torch")
WORKLOADS = Path(__file__).parents[1] / "workloads"
attention = lazy.workload(WORKLOADS / "attention.py")
attention_config = lazy.module("profpipe.workload_lib.attention_config")
implementations = lazy.module("profpipe.workload_lib.implementations")
requirements = lazy.module("profpipe.workload_lib.requirements")

SMALL = {"batch": 2, "seqlen": 40, "heads": 4, "head_dim": 16}

#: A function that keeps what it was called with, and gives back the query: it has the output's shape.
RECORDING = """
calls = []
def {name}(q, k, v, **options):
    calls.append(options)
    return {result}
"""


@pytest.fixture(autouse=True)
def _on_the_cpu(monkeypatch):
    monkeypatch.setattr(attention_config, "device", lambda: "cpu")
    before = set(sys.modules)
    packages = {row.package.split(".")[0] for row in implementations.IMPLEMENTATIONS.values()}
    yield
    for name in set(sys.modules) - before:
        if name.split(".")[0] in packages - {""}:
            del sys.modules[name]


def _package(tmp_path, monkeypatch, name, text, version=""):
    """Puts a module ``name`` within reach, with the metadata of an installed distribution where it has a version."""
    path = tmp_path.joinpath(*name.split(".")).with_suffix(".py")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    if version:
        folder = tmp_path / f"{name}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    monkeypatch.syspath_prepend(tmp_path)


def _without_trial(monkeypatch):
    monkeypatch.setattr(requirements, "trial_error", lambda *_: None)


def _called(impl, **params):
    """The options that the stand-in for ``impl`` was called with."""
    (out,) = attention.build({**SMALL, "impl": impl, "dtype": "fp16", **params})()
    assert out.shape in ((2, 4, 40, 16), (2, 40, 4, 16))
    row = implementations.IMPLEMENTATIONS[impl]
    (options,) = sys.modules[row.package].calls
    return options


# --- how they are called ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("result", ["q", "(q, None)"])
@pytest.mark.parametrize(("impl", "module"), [("fa3", "flash_attn_interface"), ("fa4", "flash_attn.cute")])
def test_flash_attention_3_and_4_may_return_the_log_sum_exp_with_the_output(
    tmp_path, monkeypatch, impl, module, result
):
    _package(tmp_path, monkeypatch, module, RECORDING.format(name="flash_attn_func", result=result))
    assert _called(impl, causal=True) == {"causal": True}


def test_sage1_is_the_whole_of_1_x_and_one_kernel_of_2_x(tmp_path, monkeypatch):
    kept = RECORDING.format(name="sageattn_qk_int8_pv_fp16_triton", result="q")
    _package(tmp_path, monkeypatch, "sageattention", kept + "def sageattn(q, k, v, **options): raise TypeError\n")
    assert _called("sage1") == {"tensor_layout": "HND", "is_causal": False}
    del sys.modules["sageattention"]
    _package(tmp_path, monkeypatch, "sageattention", RECORDING.format(name="sageattn", result="q") + "\n")
    assert _called("sage1", causal=True) == {"tensor_layout": "HND", "is_causal": True}


@pytest.mark.parametrize(
    ("impl", "thresholds", "function", "given"),
    [
        ("sparge_fp8", {}, "spas_sage2_attn_meansim_topk_cuda", {}),
        ("sparge_fp8", {"topk": 0.3, "pvthreshd": 20}, "spas_sage2_attn_meansim_topk_cuda", None),
        ("sparge_fp8", {"cdfthreshd": 0.95, "simthreshd1": 0.5}, "spas_sage2_attn_meansim_cuda", None),
        ("sparge_fp16", {"topk": 0.3}, "spas_sage_attn_meansim_topk_cuda", None),
        ("sparge_fp16", {"cdfthreshd": 0.95}, "spas_sage_attn_meansim_cuda", None),
    ],
)
def test_sparge_takes_the_function_for_its_thresholds_and_its_own_defaults_for_the_rest(
    tmp_path, monkeypatch, impl, thresholds, function, given
):
    _package(tmp_path, monkeypatch, "spas_sage_attn", RECORDING.format(name=function, result="q"))
    expected = thresholds if given is None else given
    assert _called(impl, **thresholds) == {"tensor_layout": "HND", "is_causal": False, **expected}


def test_sparge_says_how_much_it_left_out(tmp_path, monkeypatch):
    name = "spas_sage2_attn_meansim_topk_cuda"
    _package(tmp_path, monkeypatch, "spas_sage_attn", RECORDING.format(name=name, result="(q, 0.75)"))
    params = {**SMALL, "impl": "sparge_fp8", "dtype": "fp16"}
    facts = attention.facts(params)
    assert facts == {"sparsity": (75.0, "%"), "flops_effective": (sum(attention.flops(params).values()) / 4, "flop")}
    assert sys.modules["spas_sage_attn"].calls[0]["return_sparsity"] is True
    assert attention.facts({**params, "topk": 0.2})["sparsity_requested"] == (80.0, "%")


def test_sliding_tiles_are_those_of_a_video_whose_length_the_sequence_has(tmp_path, monkeypatch):
    """The stand-in for the package notes its call and gives q back."""
    text = "calls = []\ndef sliding_tile_attention(q, *given):\n    calls.append(given[2:])\n    return q\n"
    _package(tmp_path, monkeypatch, "fastvideo_kernel", text)
    params = {"impl": "sta", "batch": 1, "heads": 2, "head_dim": 2, "dtype": "bf16", "seqlen": 69120}
    attention.build(params)()
    assert sys.modules["fastvideo_kernel"].calls == [([(3, 3, 3)] * 2, 0, False, "18x48x80")]
    # 27 of the 3 x 6 x 10 tiles are in the window.
    assert attention.facts(params)["sparsity"] == (85.0, "%")


def test_sliding_tile_attention_says_which_lengths_it_takes_and_how_to_get_it(monkeypatch):
    short, fitting = {"impl": "sta", "seqlen": 17776}, {"impl": "sta", "seqlen": 82944, "dtype": "bf16"}
    assert attention.available(short) == (
        "sta takes 69120 or 82944 tokens and no others, not 17776. Change seqlen. pip install fastvideo-kernel."
    )
    cogvideox = plugins.load_module(Path(attention.__file__).with_name("cogvideox.py"))
    assert cogvideox.available({"impl": "sta"}) == (
        "sta takes 69120 or 82944 tokens and no others, not 17776. Change frames, height or width. "
        "pip install fastvideo-kernel."
    )
    assert attention.available({**fitting, "queries": 1}).startswith("sta takes 69120 or 82944 tokens")
    assert attention.available({**fitting, "causal": True}) == "sta has no causal mask. Use causal: false."
    pretend_cuda(monkeypatch)
    assert attention.available(fitting) == "fastvideo_kernel is not installed. pip install fastvideo-kernel."


def test_fixed_lengths_are_tried_with_one_of_them(monkeypatch):
    tried: list[tuple[int, int]] = []

    def prepare(setting):
        tried.append((setting.batch, setting.seqlen))
        return implementations.sdpa("math")(setting)

    row = implementations.Implementation(prepare, lambda setting: "", on_cpu=True, lengths=(500,))
    monkeypatch.setitem(implementations.IMPLEMENTATIONS, "mine", row)
    assert attention.available({**SMALL, "impl": "mine", "dtype": "fp32", "seqlen": 500}) is None
    assert tried == [(1, 500)]


def test_dense_implementations_have_no_sparsity():
    assert attention.facts({**SMALL, "impl": "sdpa_math"}) == {}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("causal", "queries"), [(False, 0), (True, 0), (True, 9), (True, 1)])
@pytest.mark.parametrize("kv_heads", [0, 2])
def test_the_block_mask_of_flex_lets_the_last_query_see_every_key(monkeypatch, causal, queries, kv_heads):
    """Uncompiled, which needs no compiler and computes the same."""
    pytest.importorskip("torch.nn.attention.flex_attention")
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    monkeypatch.setattr(implementations, "compile_flex", implementations.compile_flex.__wrapped__)
    _compile_nothing_inside_flex_attention(monkeypatch)
    params = {**SMALL, "impl": "flex", "dtype": "fp32", "causal": causal, "queries": queries, "kv_heads": kv_heads}
    assert attention.check(params)["error_max"] < 1e-5


def _compile_nothing_inside_flex_attention(monkeypatch):
    """Without its own torch.compile it takes the path that it has for debugging."""
    module = sys.modules["torch.nn.attention.flex_attention"]
    monkeypatch.setattr(module, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True, raising=False)


def test_each_setting_of_flex_is_compiled_once_and_counts_against_no_other(monkeypatch):
    """A function replaces FlexAttention: the test is about torch.compile's cache."""
    module = pytest.importorskip("torch.nn.attention.flex_attention")
    monkeypatch.setattr(module, "flex_attention", lambda q, k, v, **_: q + k + v)
    graphs: list[Any] = []
    compile_ = torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda function, **options: compile_(function, backend=_counting(graphs), **options)
    )
    implementations.compile_flex.cache_clear()
    for _ in range(2):
        for seqlen in range(2, 14):
            case = attention_config.AttentionConfig(impl="flex", **{**SMALL, "seqlen": seqlen}, dtype="fp32")
            tensor = torch.ones(case.q_shape)
            assert implementations.flex(case)(tensor, tensor, tensor).sum() == 3 * tensor.sum()
    implementations.compile_flex.cache_clear()
    assert len(graphs) == 12


def _counting(graphs):
    def backend(graph, example):
        graphs.append(graph)
        return graph.forward

    return backend


def test_flex_keeps_no_buffer_for_reuse_where_the_backward_pass_runs_again():
    functorch = pytest.importorskip("torch._functorch.config")
    if not hasattr(functorch, "donated_buffer"):
        pytest.skip("this torch donates no buffers")
    # Without monkeypatch, which deletes the option at the end because the module has no such attribute.
    with functorch.patch(donated_buffer=True):
        for mode, donated in (("bwd", False), ("fwd_bwd", True)):
            implementations.flex(attention_config.AttentionConfig(impl="flex", **SMALL, mode=mode))
            assert functorch.donated_buffer is donated


# --- why they cannot run ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("impl", "reason"),
    [
        ("fa3", "flash_attn_interface is not installed. git clone --recursive https://github.com/Dao-AILab/flash-at"),
        ("fa4", "flash-attn-4 is not installed. pip install flash-attn-4"),
        ("sage1", "sageattention is not installed. pip install sageattention==1.0.6."),
        ("sage2", "sageattention is not installed. git clone https://github.com/thu-ml/SageAttention && cd Sage"),
        ("sparge_fp8", "spas_sage_attn is not installed. pip install ninja einops && git clone https://github.com/t"),
    ],
)
def test_each_package_is_named_with_the_command_that_gets_it(monkeypatch, impl, reason):
    pretend_cuda(monkeypatch)
    assert attention.available({"impl": impl}).startswith(reason)


def test_what_is_built_from_source_is_built_for_the_gpu_that_is_here(monkeypatch):
    pretend_cuda(monkeypatch, capability=(8, 9))
    for impl in ("sage2", "sparge_fp16", "sparge_fp8"):
        assert "TORCH_CUDA_ARCH_LIST=8.9 python setup.py install" in attention.available({"impl": impl})


@pytest.mark.parametrize(("version", "available"), [("1.0.6", False), ("2.2.0", True)])
def test_sage2_needs_2_x_and_says_what_is_there_instead(tmp_path, monkeypatch, version, available):
    pretend_cuda(monkeypatch)
    _without_trial(monkeypatch)
    _package(tmp_path, monkeypatch, "sageattention", "", version)
    reason = attention.available({"impl": "sage2"})
    assert (reason is None) is available
    assert available or reason.startswith("sageattention 1.0.6 is installed, and sage2 is 2.x. git clone")
    assert attention.available({"impl": "sage1"}) is None


def test_a_package_that_lacks_another_names_that(tmp_path, monkeypatch):
    pretend_cuda(monkeypatch)
    _package(tmp_path, monkeypatch, "spas_sage_attn", "import einops_that_is_not_here\n")
    reason = attention.available({"impl": "sparge_fp16"})
    assert reason.startswith("spas_sage_attn is installed and lacks einops_that_is_not_here. Install that, or spas_")


def test_a_build_without_the_needed_function_rejects_the_case(tmp_path, monkeypatch):
    pretend_cuda(monkeypatch)
    _package(tmp_path, monkeypatch, "spas_sage_attn", "")
    monkeypatch.setattr(requirements, "call_once", lambda setting, row: row.prepare(setting))
    reason = attention.available({"impl": "sparge_fp8", "topk": 0.25})
    assert reason.startswith(
        "sparge_fp8 rejects this case: module 'spas_sage_attn' has no attribute 'spas_sage2_attn_meansim_topk_cuda'."
    )
    assert reason.endswith("or use another build of spas_sage_attn.")


def test_an_implementation_whose_first_query_sees_later_keys_is_refused(monkeypatch):
    """SpargeAttn 0.1.0 with fp8 passes its kernel no causal mask."""

    def prepare(setting):
        exact = implementations.sdpa("math")
        return exact(setting.__class__(**{**vars(setting), "causal": False}))

    row = implementations.Implementation(prepare, lambda setting: "", on_cpu=True)
    monkeypatch.setitem(implementations.IMPLEMENTATIONS, "mine", row)
    params = {**SMALL, "impl": "mine", "dtype": "fp32"}
    assert attention.available(params) is None
    reason = attention.available({**params, "causal": True})
    assert reason == (
        "mine rejects this case: its first query sees later keys, against the causal mask."
        " Use causal: false, or another build of torch."
    )
    assert attention.available({**params, "impl": "sdpa_math", "causal": True, "kv_heads": 2}) is None


def test_a_sweep_over_lengths_asks_an_implementation_once(monkeypatch):
    tried: list[int] = []

    def prepare(setting):
        tried.append(setting.seqlen)
        return implementations.sdpa("math")(setting)

    row = implementations.Implementation(prepare, lambda setting: "", on_cpu=True)
    monkeypatch.setitem(implementations.IMPLEMENTATIONS, "mine", row)
    for seqlen in (128, 256, 4096, 4100):
        assert attention.available({**SMALL, "impl": "mine", "dtype": "fp32", "seqlen": seqlen}) is None
    assert tried == [128, 128 + 4100 % 128]
    # A sparse implementation may keep other blocks of a shorter sequence.
    monkeypatch.setitem(implementations.IMPLEMENTATIONS, "mine", replace(row, sparsity=lambda setting: None))
    tried.clear()
    assert attention.available({**SMALL, "impl": "mine", "dtype": "fp32", "seqlen": 500}) is None
    assert tried == [500]


def test_the_small_call_has_fewer_queries_than_keys_where_the_case_has(monkeypatch):
    for queries, seqlen in ((1, 8192), (128, 8192), (300, 500)):
        small = requirements.shorten(
            attention_config.AttentionConfig(impl="fa2", **{**SMALL, "seqlen": seqlen, "queries": queries})
        )
        assert small.batch == 1
        assert small.queries < small.seqlen < 384
        assert small.queries % 128 == queries % 128
        assert small.seqlen % 128 == seqlen % 128


# --- what they are given ---------------------------------------------------------------------------------------------


def _local(**params):
    shape = {"batch": 1, "seqlen": 1000, "heads": 4, "head_dim": 32, "dtype": "fp32", **params}
    return attention_config.draw(attention_config.AttentionConfig(impl="sdpa_math", inputs="local", **shape))


def test_local_tokens_have_the_size_of_normal_ones():
    for tensor in _local(batch=2, mode="fwd_bwd"):
        assert tensor.shape == (2, 1000, 4, 32)
        assert tensor.std().item() == pytest.approx(1, abs=0.05)
        assert abs(tensor.mean().item()) < 0.05


def test_local_tokens_resemble_their_neighbours_in_the_row_the_frame_and_in_time():
    q, k, *_ = _local()
    similarity = torch.nn.functional.cosine_similarity

    def alike(distance):
        return similarity(q[:, 0], k[:, distance], dim=-1).mean().item()

    row, frame, time, far = (alike(distance) for distance in (1, 10, 100, 999))
    assert min(row, frame, time) > 0.7
    assert far < 0.4
    # The first head looks furthest.
    wide, *_, narrow = similarity(q[:, 0], k[:, 4], dim=-1)[0].tolist()
    assert narrow < wide


def test_local_attention_is_concentrated_where_normal_attention_is_not():
    def largest_share(kind):
        """Of the softmax, in the tenth of the keys that weigh most; the mean over queries and heads."""
        case = attention_config.AttentionConfig(
            impl="sdpa_math", batch=1, seqlen=1000, heads=4, head_dim=128, dtype="fp32", inputs=kind
        )
        q, k, _ = (tensor.transpose(1, 2) for tensor in attention_config.draw(case))
        weights = (q @ k.mT / math.sqrt(128)).softmax(-1)
        return weights.topk(100).values.sum(-1).mean().item()

    assert largest_share("normal") < 0.45 < 0.7 < largest_share("local")


def test_local_queries_of_a_group_stand_where_their_keys_do_and_fewer_of_them_are_the_last():
    q, k, _ = _local(kv_heads=2, queries=10)
    assert q.shape == (1, 10, 4, 32)
    alike = torch.nn.functional.cosine_similarity(q, k[:, -10:].repeat_interleave(2, dim=2), dim=-1)
    assert alike.mean().item() > 0.85
    q, k, v = _local(seqlen=1)
    assert q.shape == k.shape == v.shape == (1, 1, 4, 32)


def test_local_inputs_follow_from_the_seed_and_differ_between_items():
    for one, other in zip(_local(), _local(), strict=True):
        torch.testing.assert_close(one, other)
    q = _local(batch=2)[0]
    assert not torch.allclose(q[0], q[1], atol=0.5)
