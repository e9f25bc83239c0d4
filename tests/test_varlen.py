"""The varlen workload: its formulas by brute force, its results against attention with a mask over the whole group.

These run on a CPU. The packages that need a GPU have stand-ins here: functions with the real signatures that compute
the same attention on a CPU, so that the layouts, the arguments and the ways back are what is tested.
"""

import importlib.util
import inspect
import math
import sys
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import lazy
import pytest

torch = lazy.module("torch")
SCRIPT = Path(__file__).parents[1] / "workloads" / "varlen.py"
varlen = lazy.workload(SCRIPT)
implementations = lazy.Lazy(lambda: varlen.varlen)

SMALL = {"impl": "sdpa_loop", "seqlens": "7,3x5,1", "qheads": 4, "kvheads": 2, "head_dim": 8, "dtype": "fp32"}
#: Names of a call's results, in their order.
RESULTS = ("out", "dq", "dk", "dv")

pytestmark = [lazy.needs("torch"), pytest.mark.usefixtures("on_the_cpu")]


# --- parameters ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seqlens", "lengths"),
    [
        ("128,128", (128, 128)),
        (128, (128,)),
        ("128", (128,)),
        ("3x64", (64, 64, 64)),
        (" 64, 2 x 32 ,1", (64, 32, 32, 1)),
    ],
)
def test_a_group_is_written_as_lengths_and_counts_of_lengths(seqlens, lengths):
    group = varlen.parse_params({"seqlens": seqlens})
    assert group.lengths == lengths
    assert varlen.facts({"seqlens": seqlens}) == {"tokens": (sum(lengths), "1"), "sequences": (len(lengths), "1")}
    assert [rows.stop - rows.start for rows in group.sequences()] == list(lengths)
    assert group.offsets().tolist() == [sum(lengths[:count]) for count in range(len(lengths) + 1)]


def test_as_many_key_and_value_heads_as_query_heads_are_written_zero():
    assert varlen.parse_params({"qheads": 6, "kvheads": 0}).kvheads == 6


# --- formulas --------------------------------------------------------------------------------------------------------


def _visible(seqlens, causal):
    """The mask of the packed group, which none of the implementations builds."""
    owner = torch.repeat_interleave(torch.arange(len(seqlens)), torch.tensor(seqlens))
    seen = owner[:, None] == owner
    return seen.tril() if causal else seen


def test_flops_are_those_of_the_pairs_that_see_each_other():
    pairs = int(_visible((7, 5, 5, 5, 1), causal=False).sum())
    assert varlen.flops(SMALL) == 4 * 4 * 8 * pairs == 4 * 4 * 8 * (49 + 75 + 1)
    assert varlen.flops({**SMALL, "kvheads": 4}) == varlen.flops(SMALL)
    assert varlen.flops({**SMALL, "mode": "bwd"}) == 2.5 * varlen.flops(SMALL)
    assert varlen.flops({**SMALL, "mode": "fwd_bwd"}) == 3.5 * varlen.flops(SMALL)


def test_a_causal_mask_halves_the_pairs_up_to_half_a_key_a_query():
    counted = varlen.flops({**SMALL, "causal": True})
    pairs = int(_visible((7, 5, 5, 5, 1), causal=True).sum())
    assert counted == varlen.flops(SMALL) / 2
    assert counted == 4 * 4 * 8 * (pairs - 23 / 2)


def test_a_group_has_a_fraction_of_the_flops_of_one_sequence_as_long():
    assert varlen.flops({"seqlens": 1024}) == 8 * varlen.flops({"seqlens": "8x128"})
    assert varlen.bytes_moved({"seqlens": 1024}) == varlen.bytes_moved({"seqlens": "8x128"})


@pytest.mark.parametrize("mode", ["fwd", "bwd", "fwd_bwd"])
def test_bytes_are_those_of_the_tensors_each_once(mode):
    group = varlen.parse_params({**SMALL, "mode": mode, "dtype": "bf16"})
    q, k, v, *upstream = (tensor.numel() * tensor.element_size() for tensor in implementations.inputs(group))
    log_sum_exp = 4 * 23 * 4 * len(upstream)
    forward = q + k + v + q + log_sum_exp  # the output is as large as q
    backward = (q + k + v + q + sum(upstream) + log_sum_exp) + (q + k + v)
    expected = {"fwd": forward, "bwd": backward, "fwd_bwd": forward + backward}
    assert varlen.bytes_moved({**SMALL, "mode": mode, "dtype": "bf16"}) == expected[mode]


# --- results ---------------------------------------------------------------------------------------------------------


def _expected(group):
    """Attention over the whole group in fp64 under one mask, with every key/value head repeated, by autograd."""
    q, k, v, *upstream = (tensor.double().requires_grad_() for tensor in implementations.inputs(group))
    keys, values = (tensor.repeat_interleave(group.group_size, 1).transpose(0, 1) for tensor in (k, v))
    scores = q.transpose(0, 1) @ keys.mT / math.sqrt(group.head_dim)
    weights = scores.masked_fill(~_visible(group.lengths, group.causal), -math.inf).softmax(-1)
    out = (weights @ values).transpose(0, 1)
    gradients = torch.autograd.grad(out, (q, k, v), *upstream) if group.needs_grad else ()
    return dict(zip(RESULTS, (out.detach(), *gradients), strict=False))


def _agrees(params):
    """Output and gradients equal those of the mask over the whole group, and ``check`` confirms it."""
    assert varlen.available(params) is None
    group = varlen.parse_params(params)
    produced, expected = implementations.produced(group), _expected(group)
    assert list(produced) == list(expected) == list(RESULTS if group.needs_grad else RESULTS[:1])
    for name in expected:
        torch.testing.assert_close(produced[name].double(), expected[name], rtol=1e-4, atol=1e-5)
    errors = varlen.check(params)
    assert len(errors) == 5 * len(produced)
    assert 0 <= errors["error_mean"] <= errors["error_rmse"] <= errors["error_max"] < 1e-5
    assert all(abs(value - name.startswith("cosine")) < 1e-4 for name, value in errors.items())


@pytest.mark.parametrize("mode", ["fwd", "bwd", "fwd_bwd"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kvheads", [4, 2, 1])
def test_the_loop_over_sequences_equals_a_mask_over_the_group(mode, causal, kvheads):
    _agrees({**SMALL, "mode": mode, "causal": causal, "kvheads": kvheads})


@pytest.mark.parametrize("mode", ["fwd", "bwd", "fwd_bwd"])
def test_nested_tensors_equal_a_mask_over_the_group(mode):
    _agrees({**SMALL, "impl": "sdpa_nested", "kvheads": 4, "mode": mode})


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kvheads", [4, 2])
def test_flex_attention_with_a_document_mask_equals_a_mask_over_the_group(monkeypatch, causal, kvheads):
    """It is not compiled, which needs a GPU. On a CPU torch has no backward pass for it."""
    module = pytest.importorskip("torch.nn.attention.flex_attention")
    flex = implementations.implementations
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    monkeypatch.setattr(flex, "compile_flex", flex.compile_flex.__wrapped__)
    # Without its own torch.compile it takes the path that it has for debugging.
    monkeypatch.setattr(module, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True, raising=False)
    _let_run(monkeypatch, "flex")
    _agrees({**SMALL, "impl": "flex", "kvheads": kvheads, "causal": causal})


def _let_run(monkeypatch, impl):
    """Lets a row of the table run on the CPU."""
    row = implementations.IMPLEMENTATIONS[impl]
    row = replace(row, on_cpu=True, dtypes=("fp32",), distribution="")
    monkeypatch.setattr(implementations, "IMPLEMENTATIONS", {**implementations.IMPLEMENTATIONS, impl: row})


def test_a_result_of_the_wrong_sequence_is_an_error(monkeypatch):
    def reversed_group(group):
        return lambda q, k, v: (v.flip(0),)

    row = replace(implementations.IMPLEMENTATIONS["sdpa_loop"], prepare=reversed_group, layout=implementations.packed)
    monkeypatch.setattr(implementations, "IMPLEMENTATIONS", {**implementations.IMPLEMENTATIONS, "mine": row})
    errors = varlen.check({**SMALL, "impl": "mine", "kvheads": 4})
    assert errors["error_rel_l1"] > 0.5
    assert errors["cosine"] < 0.9


def test_one_seed_gives_every_implementation_the_same_numbers():
    equal = {**SMALL, "kvheads": 4}
    loop, nested = (
        implementations.produced(varlen.parse_params({**equal, "impl": f"sdpa_{name}"})) for name in ("loop", "nested")
    )
    other = implementations.produced(varlen.parse_params({**equal, "seed": 1}))
    torch.testing.assert_close(loop["out"], nested["out"])
    assert not torch.allclose(loop["out"], other["out"])


@pytest.mark.parametrize(
    ("mode", "expected"), [("fwd", ["forward"]), ("bwd", ["backward"]), ("fwd_bwd", ["forward", "backward"])]
)
def test_passes_stand_in_ranges(opened, mode, expected):
    seen = opened(varlen)
    iteration = varlen.build({**SMALL, "mode": mode})
    assert seen == []
    iteration()
    assert seen == expected
    iteration()
    assert seen == 2 * expected


# --- packages that need a GPU, by stand-ins --------------------------------------------------------------------------


def _by_mask(q, k, v, lengths, causal):
    """Compute the result of the kernels on packed tensors."""
    assert all(tensor.stride(-1) == 1 for tensor in (q, k, v))
    q, k, v = (tensor.transpose(0, 1)[None] for tensor in (q, k, v))
    attended = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=_visible(lengths, causal), enable_gqa=q.shape[1] != k.shape[1]
    )
    return attended[0].transpose(0, 1)


def _by_offsets(q, k, v, offsets, longest, causal):
    assert offsets.dtype == torch.int32
    lengths = offsets.diff().tolist()
    assert longest == max(lengths)
    return _by_mask(q, k, v, lengths, causal)


def _flash_attn():
    """flash_attn 2.8.3: the signatures of its functions up to ``causal``."""

    def flash_attn_func(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False):
        shape = q.shape[:2]
        return _by_mask(*(t.flatten(0, 1) for t in (q, k, v)), [shape[1]] * shape[0], causal).unflatten(0, shape)

    def flash_attn_kvpacked_func(q, kv, dropout_p=0.0, softmax_scale=None, causal=False):
        return flash_attn_func(q, *kv.unbind(2), causal=causal)

    def flash_attn_qkvpacked_func(qkv, dropout_p=0.0, softmax_scale=None, causal=False):
        return flash_attn_func(*qkv.unbind(2), causal=causal)

    def flash_attn_varlen_func(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, softmax_scale=None, causal=False
    ):
        assert torch.equal(cu_seqlens_q, cu_seqlens_k)
        assert max_seqlen_q == max_seqlen_k
        return _by_offsets(q, k, v, cu_seqlens_q, max_seqlen_q, causal)

    def flash_attn_varlen_kvpacked_func(
        q, kv, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, softmax_scale=None, causal=False
    ):
        return flash_attn_varlen_func(
            q, *kv.unbind(1), cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, causal=causal
        )

    def flash_attn_varlen_qkvpacked_func(qkv, cu_seqlens, max_seqlen, dropout_p=0.0, softmax_scale=None, causal=False):
        return _by_offsets(*qkv.unbind(1), cu_seqlens, max_seqlen, causal)

    return _module("flash_attn", *(value for name, value in locals().items() if name.startswith("flash_attn")))


def _flash_attn_interface(with_lse):
    """FlashAttention 3 of flash-attention 2.8.3; earlier ones returned the log-sum-exp with the output."""

    def flash_attn_func(q, k, v, softmax_scale=None, causal=False):
        return result(_flash_attn().flash_attn_func(q, k, v, causal=causal))

    def flash_attn_varlen_func(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k,
        seqused_q=None, seqused_k=None, softmax_scale=None, causal=False,
    ):  # fmt: skip
        assert torch.equal(cu_seqlens_q, cu_seqlens_k)
        assert max_seqlen_q == max_seqlen_k
        return result(_by_offsets(q, k, v, cu_seqlens_q, max_seqlen_q, causal))

    def result(out):
        return (out, out.new_zeros(1)) if with_lse else out

    return _module("flash_attn_interface", flash_attn_func, flash_attn_varlen_func)


def _flash_attn_cute():
    """FlashAttention 4.0.0 beta 27; betas up to 8 had no ``qv``."""

    def flash_attn_func(q, k, v, qv=None, gather_kv_indices=None, softmax_scale=None, causal=False):
        return _flash_attn().flash_attn_func(q, k, v, causal=causal), None

    def flash_attn_varlen_func(
        q, k, v, qv=None, cu_seqlens_q=None, cu_seqlens_k=None, max_seqlen_q=None, max_seqlen_k=None,
        min_seqlen_k=None, seqused_q=None, seqused_k=None, gather_kv_indices=None, page_table=None,
        softmax_scale=None, causal=False,
    ):  # fmt: skip
        assert torch.equal(cu_seqlens_q, cu_seqlens_k)
        assert max_seqlen_q == max_seqlen_k
        return _by_offsets(q, k, v, cu_seqlens_q, max_seqlen_q, causal), None

    return _module("flash_attn.cute", flash_attn_func, flash_attn_varlen_func)


def _torch_varlen(version):
    """torch.nn.attention.varlen of torch 2.10, 2.11 and 2.13."""

    def of_2_10(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, is_causal=False, return_aux=None):
        assert torch.equal(cu_seq_q, cu_seq_k)
        assert max_q == max_k
        return _by_offsets(query, key, value, cu_seq_q, max_q, is_causal)

    def of_2_11(
        query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, return_aux=None, scale=None, window_size=(-1, -1)
    ):
        return of_2_10(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, window_size == (-1, 0))

    def of_2_13(
        query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *,
        return_aux=None, scale=None, window_size=(-1, -1), enable_gqa=False,
    ):  # fmt: skip
        assert enable_gqa or query.shape[1] == key.shape[1]
        return of_2_11(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, window_size=window_size)

    function = {"2.10": of_2_10, "2.11": of_2_11, "2.13": of_2_13}[version]
    function.__name__ = "varlen_attn"
    return _module("torch.nn.attention.varlen", function)


class _BlockDiagonalMask:
    """xformers.ops.fmha.attn_bias.BlockDiagonalMask 0.0.33."""

    def __init__(self, lengths, causal=False):
        self.lengths, self.causal = lengths, causal

    @classmethod
    def from_seqlens(cls, q_seqlen, kv_seqlen=None, *, device=None):
        return cls(q_seqlen)

    def make_causal(self):
        return _BlockDiagonalMask(self.lengths, causal=True)


def _memory_efficient_attention(query, key, value, attn_bias=None, p=0.0, scale=None, *, op=None):
    """xformers.ops of that release: grouped heads are a fifth axis, over which key and value are expanded."""
    shape = query.shape
    if query.ndim == 5:
        assert key.stride(3) == value.stride(3) == 0
        query, key, value = query.flatten(2, 3), key[:, :, :, 0], value[:, :, :, 0]
    tensors = (tensor.squeeze(0) for tensor in (query, key, value))
    return _by_mask(*tensors, attn_bias.lengths, attn_bias.causal).reshape(shape)


def _module(name, *members):
    module = ModuleType(name)
    vars(module).update({member.__name__: member for member in members})
    return module


@pytest.fixture
def install(monkeypatch):
    """Puts a stand-in where the package would be imported from, and lets its row of the table run on the CPU."""

    def installed(impl, *modules):
        for module in modules:
            module.__spec__ = ModuleSpec(module.__name__, None)
            monkeypatch.setitem(sys.modules, module.__name__, module)
        _let_run(monkeypatch, impl)

    return installed


_KINDS = pytest.mark.parametrize(("causal", "mode"), [(False, "fwd"), (True, "fwd"), (True, "fwd_bwd")])


@_KINDS
@pytest.mark.parametrize(
    ("api", "seqlens", "kvheads"),
    [
        ("func", "3x5", 2),
        ("kvpacked", "3x5", 2),
        ("qkvpacked", "3x5", 4),
        ("varlen", "7,3x5,1", 2),
        ("varlen_kvpacked", "7,3x5,1", 1),
        ("varlen_qkvpacked", "7,3x5,1", 4),
    ],
)
def test_each_form_of_flash_attn_is_given_what_it_takes(install, api, seqlens, kvheads, causal, mode):
    install("fa2", _flash_attn())
    group = {"api": api, "seqlens": seqlens, "kvheads": kvheads, "causal": causal, "mode": mode}
    _agrees({**SMALL, "impl": "fa2", **group})


@_KINDS
@pytest.mark.parametrize("with_lse", [False, True])
@pytest.mark.parametrize(("api", "seqlens"), [("func", "3x5"), ("varlen", "7,3x5,1")])
def test_flash_attention_3_is_given_what_it_takes(install, api, seqlens, with_lse, causal, mode):
    install("fa3", _flash_attn_interface(with_lse))
    _agrees({**SMALL, "impl": "fa3", "api": api, "seqlens": seqlens, "causal": causal, "mode": mode})


@_KINDS
@pytest.mark.parametrize(("api", "seqlens"), [("func", "3x5"), ("varlen", "7,3x5,1")])
def test_flash_attention_4_is_given_what_it_takes(install, api, seqlens, causal, mode):
    install("fa4", _module("flash_attn"), _flash_attn_cute())
    _agrees({**SMALL, "impl": "fa4", "api": api, "seqlens": seqlens, "causal": causal, "mode": mode})


@_KINDS
@pytest.mark.parametrize("version", ["2.10", "2.11", "2.13"])
@pytest.mark.parametrize("kvheads", [4, 2])
def test_torchs_varlen_attention_is_given_what_its_release_takes(install, version, kvheads, causal, mode):
    install("torch_varlen", _torch_varlen(version))
    _agrees({**SMALL, "impl": "torch_varlen", "kvheads": kvheads, "causal": causal, "mode": mode})


@_KINDS
@pytest.mark.parametrize("kvheads", [4, 2, 1])
def test_xformers_is_given_grouped_heads_as_views(install, kvheads, causal, mode):
    ops = _module("xformers.ops", _memory_efficient_attention)
    vars(ops)["memory_efficient_attention"] = _memory_efficient_attention
    bias = _module("xformers.ops.fmha.attn_bias")
    vars(bias)["BlockDiagonalMask"] = _BlockDiagonalMask
    install("xformers", _module("xformers"), ops, _module("xformers.ops.fmha"), bias)
    _agrees({**SMALL, "impl": "xformers", "kvheads": kvheads, "causal": causal, "mode": mode})


def test_the_stand_in_for_torch_has_the_signature_of_this_torch():
    real = pytest.importorskip("torch.nn.attention.varlen").varlen_attn
    names = list(inspect.signature(real).parameters)
    assert names[:7] == list(inspect.signature(_torch_varlen("2.10").varlen_attn).parameters)[:7]
    if "window_size" in names:
        assert "is_causal" not in names


@pytest.mark.parametrize(
    ("api", "shapes"),
    [
        ("func", [(3, 5, 4, 8), (3, 5, 2, 8), (3, 5, 2, 8)]),
        ("kvpacked", [(3, 5, 4, 8), (3, 5, 2, 2, 8)]),
        ("varlen", [(15, 4, 8), (15, 2, 8), (15, 2, 8)]),
        ("varlen_kvpacked", [(15, 4, 8), (15, 2, 2, 8)]),
        ("qkvpacked", [(3, 5, 3, 4, 8)]),
        ("varlen_qkvpacked", [(15, 3, 4, 8)]),
    ],
)
def test_tensors_are_contiguous_in_the_shapes_of_the_form(api, shapes):
    group = varlen.parse_params(
        {**SMALL, "impl": "fa2", "api": api, "seqlens": "3x5", "kvheads": 4 if "qkv" in api else 2}
    )
    layout = implementations.IMPLEMENTATIONS["fa2"].layout(group)
    q, k, v = implementations.inputs(group)
    given = layout.arguments(q, k, v)
    assert [tuple(tensor.shape) for tensor in given] == shapes
    assert all(tensor.is_contiguous() for tensor in given)
    for back, tensor in zip(layout.packed(given), (q, k, v), strict=True):
        assert torch.equal(back, tensor)


# --- what cannot run -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("impl", ["fa2", "fa3", "fa4", "xformers", "torch_varlen", "flex"])
def test_implementations_name_the_gpu_they_need_and_what_runs_without(impl):
    reason = varlen.available({"impl": impl})
    assert reason.startswith(f"{impl} needs a GPU")
    assert "sdpa_nested or sdpa_loop" in reason


def test_a_package_that_is_missing_is_named_with_its_installation(monkeypatch):
    """The device alone is pretended: no kernel runs behind it."""
    monkeypatch.setattr(varlen.attention_config, "device", lambda: "cuda")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert varlen.available({"impl": "fa3"}).startswith("flash_attn_interface is not installed. git clone")
    assert "pip install 'torch>=2.10'" in varlen.available({"impl": "torch_varlen"})
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (8, 0))
    assert varlen.available({"impl": "fa3"}).startswith("fa3 needs sm_90 or later; this GPU is sm_80.")


def test_what_the_implementation_says_to_short_sequences_becomes_the_reason(install):
    seen: list[Any] = []

    def flash_attn_func(q, k, v, causal=False):
        seen.append(tuple(q.shape))
        raise RuntimeError("This flash attention build does not support\n headdim 96.")

    install("fa2", _module("flash_attn", flash_attn_func))
    reason = varlen.available({**SMALL, "impl": "fa2", "api": "func", "seqlens": "9x1000", "head_dim": 96})
    assert seen == [(3, 232, 4, 96)]
    assert reason.startswith("fa2 rejects this case: This flash attention build does not support headdim 96. Change")


def test_a_causal_group_of_nested_tensors_is_refused_on_a_cpu_and_not_an_error():
    reason = varlen.available({**SMALL, "impl": "sdpa_nested", "kvheads": 4, "causal": True})
    assert reason.startswith("sdpa_nested rejects this case: No viable backend")


def test_kernels_are_expected_on_a_gpu_only(monkeypatch):
    assert varlen.expects({"impl": "fa2"}) == ""
    monkeypatch.setattr(varlen.attention_config, "device", lambda: "cuda")
    monkeypatch.setattr(torch.version, "hip", None)
    assert varlen.expects({"impl": "fa2"}) == varlen.expects({"impl": "torch_varlen"}) == "fa2"
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert varlen.expects({"impl": "xformers"}) == "ck"
