"""What no workload can run: parameters that are wrong on every machine, and combinations with their remedies."""

from pathlib import Path
from typing import Any

import lazy
import pytest
from stand_in_gpu import pretend_cuda

from profpipe import plugins

pytestmark = [lazy.needs("torch"), pytest.mark.usefixtures("on_the_cpu")]

Rows = dict[str, list[tuple[dict[str, Any], str]]]

WRONG: Rows = {
    "attention": [
        ({"impl": "spda_flash"}, "unknown impl 'spda_flash'. Did you mean 'sdpa_flash'?"),
        ({"impl": "x"}, "unknown impl 'x'. Known: fa2, fa3, fa4"),
        ({"seq_len": 8}, "unknown parameter 'seq_len'. Did you mean 'seqlen'?"),
        ({"dtype": "float16"}, "unknown dtype 'float16'."),
        ({"mode": "backward"}, "unknown mode 'backward'."),
        ({"heads": 16, "kv_heads": 3}, "heads (16) must be a multiple of kv_heads (3)"),
        ({"seqlen": 0}, "seqlen must be a whole number of at least 1, not 0"),
        ({"batch": 2.0}, "batch must be a whole number of at least 1, not 2.0"),
        ({"causal": "false"}, "causal must be true or false, not 'false'"),
        ({"seqlen": 8, "queries": 9}, "queries (9) must not exceed seqlen (8)"),
        ({"inputs": "locl"}, "unknown inputs 'locl'. Did you mean 'local'?"),
        ({"topk": "0.5"}, "topk must be a number, or null for the library's default, not '0.5'"),
        ({"topk": 50}, "topk is a share: it must be above 0 and at most 1, not 50"),
        ({"topk": 0.5, "cdfthreshd": 0.9}, "topk and cdfthreshd are two ways to choose the same blocks"),
        ({"reference": "fp16"}, "unknown reference 'fp16'. Did you mean 'fp64'?"),
        ({"memory_cap_gib": -1}, "memory_cap_gib must be a number of at least 0, not -1"),
        ({"memory_cap_gib": "24"}, "memory_cap_gib must be a number of at least 0, not '24'"),
    ],
    "attention_scenarios": [
        ({"scenario": "gtp3"}, "unknown scenario 'gtp3'. Did you mean 'gpt3'?"),
        ({"seqlen": 8}, "unknown parameter 'seqlen'."),
        ({"impl": "sdpa"}, "unknown impl 'sdpa'."),
    ],
    "varlen": [
        ({"seqlens": "128;64"}, "seqlens must be lengths such as 128,64 or 8x128, not '128;64'"),
        ({"seqlens": "128,"}, "seqlens must be lengths such as 128,64 or 8x128, not '128,'"),
        ({"seqlens": 1.5}, "seqlens must be lengths such as 128,64 or 8x128, not 1.5"),
        ({"seqlens": "4,0"}, "seqlens must have lengths of at least 1, not '4,0'"),
        ({"seqlens": "0x4"}, "seqlens must have lengths of at least 1, not '0x4'"),
        ({"kvheads": 5}, "qheads (32) must be a multiple of kvheads (5)"),
        ({"qheads": "8"}, "qheads must be a whole number of at least 1, not '8'"),
        ({"causal": "yes"}, "causal must be true or false, not 'yes'"),
        ({"api": "qkv"}, "unknown api 'qkv'. "),
        ({"impl": "torch_varlem"}, "unknown impl 'torch_varlem'. Did you mean 'torch_varlen'"),
        ({"mode": "fwd_bdw"}, "unknown mode 'fwd_bdw'. Did you mean 'fwd_bwd'"),
        ({"heads": 4}, "unknown parameter 'heads'. Did you mean 'qheads'"),
    ],
    "transformer_lm": [
        ({"size": "smal"}, "unknown size 'smal'. Did you mean 'small'?"),
        ({"block": "llama"}, "unknown block 'llama'. Known: classic, modern"),
        ({"seqlen": 8}, "unknown parameter 'seqlen'."),
        ({"precision": "tf32"}, "unknown precision 'tf32'."),
        ({"what": "backwards"}, "unknown what 'backwards'."),
        ({"compile": "true"}, "compile must be true or false, not 'true'"),
        ({"layers": 4}, "layers is fixed by size small: use size: custom to choose it"),
        ({"size": "custom", "layers": -1}, "layers must be a whole number of at least 1, not -1"),
        ({"context": 0}, "context must be a whole number of at least 1, not 0"),
        (
            {"size": "custom", "d_model": 64, "d_ff": 1, "layers": 1, "heads": 3},
            "d_model (64) must be a multiple of heads (3)",
        ),
        ({"size": "custom", "d_model": 6, "d_ff": 1, "layers": 1, "heads": 2}, "RoPE rotates pairs:"),
    ],
    "cogvideox": [
        ({"impl": "sage3"}, "unknown impl 'sage3'."),
        ({"size": "5b"}, "unknown size '5b'."),
        ({"what": "video"}, "unknown what 'video'."),
        ({"dtype": "fp8"}, "unknown dtype 'fp8'."),
        ({"seqlen": 8}, "unknown parameter 'seqlen'."),
        ({"guidance": 6}, "guidance must be true or false, not 6"),
        ({"frames": 48}, "frames must be a multiple of 4 and one more, as 49 is, not 48"),
        ({"height": 481}, "height must be a multiple of 16, not 481"),
        ({"steps": 0}, "steps must be a whole number of at least 1, not 0"),
        ({"steps": 1001}, "steps must be at most 1000"),
    ],
}
UNSUPPORTED: Rows = {
    "attention": [
        ({"impl": "sage", "mode": "fwd_bwd"}, "sage has no backward pass. Use mode: fwd."),
        ({"impl": "fa2", "dtype": "fp32"}, "fa2 does not take fp32. Use dtype: fp16 or bf16."),
        ({"impl": "sdpa_cudnn", "dtype": "fp32"}, "sdpa_cudnn does not take fp32. Use dtype: fp16 or bf16."),
        ({"impl": "fa2", "head_dim": 512}, "fa2 takes head dims up to 256, not 512. Change head_dim."),
        ({"impl": "sage", "head_dim": 256}, "sage takes head dims up to 128, not 256. Change head_dim."),
        ({"impl": "sparge_fp8", "mode": "bwd"}, "sparge_fp8 has no backward pass. Use mode: fwd."),
        ({"impl": "sparge_fp16", "dtype": "fp32"}, "sparge_fp16 does not take fp32. Use dtype: fp16 or bf16."),
        (
            {"impl": "sparge_fp8", "kv_heads": 4},
            "sparge_fp8 needs as many key/value heads as query heads. Leave kv_heads at 0.",
        ),
        (
            {"impl": "sdpa_flash", "queries": 4, "causal": True},
            "sdpa_flash has no causal mask in which the last of fewer queries than keys sees every key. "
            "Use causal: false, queries: 1 or 0, or one of flex, fa2, fa3, fa4, xformers, plain, "
            "plain_compiled, tiled.",
        ),
    ],
    "varlen": [
        ({"impl": "fa2", "dtype": "fp32"}, "fa2 does not take fp32. Use dtype: fp16 or bf16."),
        ({"impl": "fa2", "head_dim": 512}, "fa2 takes head dims up to 256, not 512. Change head_dim."),
        ({"impl": "xformers", "api": "func"}, "xformers has no form func. Use api: varlen."),
        (
            {"impl": "fa2", "api": "func", "seqlens": "128,64"},
            "api: func takes sequences of one length, not 128,64. Use a form that begins with varlen.",
        ),
        (
            {"impl": "fa2", "api": "varlen_qkvpacked"},
            "api: varlen_qkvpacked needs as many key/value heads as query heads. Use kvheads: 32.",
        ),
        ({"impl": "sdpa_nested"}, "sdpa_nested needs as many key/value heads as query heads. Use kvheads: 32."),
    ],
}


def load(workload):
    return plugins.load_module(Path(__file__).parents[1] / "workloads" / f"{workload}.py")


def rows(table):
    return [(workload, params, text) for workload, found in table.items() for params, text in found]


@pytest.mark.parametrize(("workload", "params", "message"), rows(WRONG))
def test_a_wrong_parameter_is_named_with_what_is_possible(workload, params, message):
    module = load(workload)
    for ask in ("build", "flops", "bytes_moved", "phase_work", "facts", "available", "expects"):
        if hasattr(module, ask):
            with pytest.raises(ValueError) as raised:
                getattr(module, ask)(params)
            assert str(raised.value).startswith(message)


@pytest.mark.parametrize(("workload", "params", "reason"), rows(UNSUPPORTED))
def test_an_unsupported_combination_is_named_with_the_remedy(workload, params, reason):
    assert load(workload).available(params) == reason


LM = {"size": "tiny", "context": 16, "batch": 2, "vocab": 101, "precision": "fp32"}
COG = {"size": "tiny", "frames": 9, "height": 32, "width": 48, "dtype": "fp32", "impl": "sdpa_math"}
PLAIN = {"batch": 2, "seqlen": 40, "heads": 4, "head_dim": 16, "dtype": "fp32", "impl": "plain"}


@pytest.mark.parametrize(
    ("workload", "params", "changed", "instead"),
    [
        ("transformer_lm", LM, {"compile": True}, "compile: false"),
        ("cogvideox", COG, {"compile": True}, "compile: false"),
        ("attention", PLAIN, {"impl": "plain_compiled"}, "plain instead"),
    ],
)
def test_what_compiles_is_named_where_it_is_missing(monkeypatch, workload, params, changed, instead):
    from profpipe.workload_lib import requirements

    if workload == "cogvideox":
        pytest.importorskip("diffusers", reason="the package diffusers is not installed")
    module = load(workload)
    monkeypatch.setattr(requirements.shutil, "which", lambda name: None)
    monkeypatch.setenv("CXX", "c++-17")
    expected = f"torch.compile needs a C++ compiler, and there is no c++-17. Install g++, or use {instead}."
    assert module.available({**params, **changed}) == expected and module.available(params) is None
    if workload != "transformer_lm":
        return
    pretend_cuda(monkeypatch)
    monkeypatch.setattr(requirements.importlib.util, "find_spec", lambda name: None)
    assert module.available({**params, **changed}).startswith("torch.compile needs triton, which is not installed.")
    assert module.available(params) is None
