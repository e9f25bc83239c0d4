"""Attention written in PyTorch, plain, compiled and tiled: against autograd in fp64, on a CPU."""

import importlib
import math
from types import SimpleNamespace
from typing import Any

import lazy
import pytest

pytestmark = lazy.needs("torch")
torch = lazy.module("torch")
accuracy = lazy.module("profpipe.workload_lib.accuracy")
attention_config = lazy.module("profpipe.workload_lib.attention_config")
plain_attention = lazy.module("profpipe.workload_lib.plain_attention")


@pytest.fixture(autouse=True)
def _on_the_cpu(monkeypatch):
    """The same answers on a machine with a GPU; and tiles so small that 40 keys need three, the last one shorter."""
    monkeypatch.setattr(attention_config, "device", lambda: "cpu")
    monkeypatch.setattr(plain_attention, "TILE", 16)


def a_setting(**more):
    return attention_config.AttentionConfig(
        **{"impl": "x", "batch": 2, "seqlen": 40, "heads": 4, "head_dim": 8, **more}
    )


def tensors(s, dtype):
    """q, k, v and the gradient of the output, heads first."""
    generator = torch.Generator().manual_seed(0)
    shapes = (s.q_shape, s.kv_shape, s.kv_shape, s.q_shape)
    return [torch.randn(s, generator=generator).transpose(1, 2).contiguous().to(dtype) for s in shapes]


def with_gradients(forward, given):
    q, k, v = (tensor.clone().requires_grad_() for tensor in given[:3])
    out = forward(q, k, v)
    return [out, *torch.autograd.grad(out, (q, k, v), given[3])]


def truth(s, given):
    """Written the long way round, in fp64, with every head of K and V repeated."""

    def forward(q, k, v):
        k, v = (tensor.repeat_interleave(s.group_size, 1) for tensor in (k, v))
        scores = q @ k.transpose(2, 3) / math.sqrt(s.head_dim)
        if s.causal:
            hidden = torch.ones(scores.shape[-2:]).triu(1 + scores.shape[-1] - scores.shape[-2]).bool()
            scores = scores.masked_fill(hidden, -math.inf)
        return scores.softmax(-1) @ v

    return with_gradients(forward, [tensor.double() for tensor in given])


@pytest.mark.parametrize("way", ["plain", "tiled"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_output_and_gradients_in_fp64_are_those_of_autograd(way, causal, kv_heads):
    s = a_setting(causal=causal, kv_heads=kv_heads)
    given = tensors(s, torch.float64)
    for got, expected in zip(with_gradients(getattr(plain_attention, way)(s), given), truth(s, given), strict=True):
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("way", ["plain", "tiled"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("queries", [1, 21])
def test_queries_fewer_than_keys_are_the_last_of_the_sequence(way, causal, queries):
    s = a_setting(causal=causal, kv_heads=2, queries=queries)
    given = tensors(s, torch.float64)
    assert given[0].shape[2] == queries
    for got, expected in zip(with_gradients(getattr(plain_attention, way)(s), given), truth(s, given), strict=True):
        torch.testing.assert_close(got, expected)


#: Largest relative L1 of output and gradients; about three times what rounding to the dtype gives.
LARGEST = {"float32": 2e-6, "float16": 3e-3, "bfloat16": 2e-2}


@pytest.mark.parametrize("way", ["plain", "tiled"])
@pytest.mark.parametrize("dtype", LARGEST)
@pytest.mark.parametrize("causal", [False, True])
def test_other_dtypes_differ_from_fp64_by_their_rounding(way, dtype, causal):
    s = a_setting(causal=causal, seqlen=130, head_dim=64, kv_heads=2)
    given = tensors(s, getattr(torch, dtype))
    for got, expected in zip(with_gradients(getattr(plain_attention, way)(s), given), truth(s, given), strict=True):
        seen = accuracy.Difference()
        seen.add(got.detach(), expected.detach())
        assert got.dtype == getattr(torch, dtype)
        assert 0 < seen.measures()["error_rel_l1"] < LARGEST[dtype]


def test_the_tiled_backward_pass_is_the_derivative_of_its_forward_pass(monkeypatch):
    monkeypatch.setattr(plain_attention, "TILE", 4)
    s = a_setting(batch=1, seqlen=6, heads=2, kv_heads=1, head_dim=2, causal=True)
    given = [tensor.requires_grad_() for tensor in tensors(s, torch.float64)[:3]]
    assert torch.autograd.gradcheck(plain_attention.tiled(s), given)


def test_scores_that_would_overflow_the_exponential_do_not():
    s = a_setting(causal=True)
    given = [30 * tensor for tensor in tensors(s, torch.float64)]
    for got, expected in zip(with_gradients(plain_attention.tiled(s), given), truth(s, given), strict=True):
        torch.testing.assert_close(got, expected)


def test_tiles_keep_no_scores_for_the_backward_pass():
    kept: dict[str, int] = {}
    s = a_setting(seqlen=256)
    for way in ("plain", "tiled"):
        sizes: list[int] = []
        q, k, v = (tensor.requires_grad_() for tensor in tensors(s, torch.float32)[:3])
        with torch.autograd.graph.saved_tensors_hooks(lambda t, sizes=sizes: sizes.append(t.numel()) or t, lambda t: t):
            getattr(plain_attention, way)(s)(q, k, v)
        kept[way] = max(sizes)
    assert kept == {"plain": 2 * 4 * 256 * 256, "tiled": 2 * 4 * 256 * 8}


def test_no_tile_of_scores_is_larger_than_it_may_be(monkeypatch):
    shapes, scores = set(), plain_attention.tile_scores

    def noting(*given):
        found = scores(*given)
        shapes.add(tuple(found.shape[2:]))
        return found

    monkeypatch.setattr(plain_attention, "tile_scores", noting)
    s = a_setting(causal=True)
    with_gradients(plain_attention.tiled(s), tensors(s, torch.float32))
    assert shapes == {(16, 16), (8, 16), (8, 8)}


def test_causal_tiles_above_the_diagonal_are_never_computed(monkeypatch):
    seen, scores = [], plain_attention.tile_scores
    monkeypatch.setattr(
        plain_attention, "tile_scores", lambda q, k, r, c, causal: seen.append((r, c)) or scores(q, k, r, c, causal)
    )
    s = a_setting(causal=True)
    with_gradients(plain_attention.tiled(s), tensors(s, torch.float32))
    assert len(seen) == 2 * 6 and all(columns.start < rows.stop for rows, columns in seen)


def test_the_parts_of_plain_attention_stand_in_ranges(opened):
    seen = opened(plain_attention)
    s = a_setting(causal=True)
    plain_attention.plain(s)(*tensors(s, torch.float32)[:3])
    assert seen == ["attention scores", "softmax", "final matmul"]


# --- compiled --------------------------------------------------------------------------------------------------------


@pytest.fixture
def _forgotten():
    """Compiled with another backend than the next test's."""
    plain_attention.compile_plain.cache_clear()
    yield
    plain_attention.compile_plain.cache_clear()


@pytest.mark.usefixtures("_forgotten")
@pytest.mark.parametrize("causal", [False, True])
def test_the_compiled_code_is_one_graph_with_the_results_of_the_eager_one(monkeypatch, causal):
    """Captured by dynamo and run without a compiler."""
    real = torch.compile
    monkeypatch.setattr(torch, "compile", lambda fn, options, **given: real(fn, backend="aot_eager", **given))
    s = a_setting(causal=causal, kv_heads=2)
    given = tensors(s, torch.float64)
    for got, expected in zip(with_gradients(plain_attention.compiled(s), given), truth(s, given), strict=True):
        torch.testing.assert_close(got, expected)


@pytest.mark.slow
@pytest.mark.usefixtures("_forgotten")
def test_more_cases_than_torch_recompiles_are_each_compiled_once(monkeypatch):
    graphs: list[Any] = []
    real = torch.compile

    def count(graph, inputs):
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", lambda fn, options, **given: real(fn, backend=count, **given))
    for seqlen in range(8, 8 + 20):
        s = a_setting(seqlen=seqlen)
        for _ in range(2):  # as a case is built for its time, and again for its check
            plain_attention.compiled(s)(*tensors(s, torch.float32)[:3])
    assert len(graphs) == 20


@pytest.mark.usefixtures("_forgotten")
def test_a_compiled_graph_that_is_kept_is_gone_through_again_and_again(monkeypatch):
    real = torch.compile
    monkeypatch.setattr(torch, "compile", lambda fn, options, **given: real(fn, backend="aot_eager", **given))
    s = a_setting(mode="bwd")
    q, k, v, gradient = tensors(s, torch.float32)
    out = plain_attention.compiled(s)(q.requires_grad_(), k, v)
    passes = [torch.autograd.grad(out, q, gradient, retain_graph=True)[0] for _ in range(2)]
    torch.testing.assert_close(*passes)


@pytest.mark.slow
@pytest.mark.usefixtures("_forgotten")
@pytest.mark.parametrize("causal", [False, pytest.param(True, marks=pytest.mark.exhaustive)])
def test_inductors_code_gives_the_results_of_the_eager_one_and_is_no_sdpa(causal):
    if reason := plain_attention.missing_compiler():
        pytest.skip(reason)
    s = a_setting(causal=causal)
    given = tensors(s, torch.float32)
    results, replaced = _compile_anew(lambda: with_gradients(plain_attention.compiled(s), given))
    assert replaced == 0
    for got, expected in zip(results, truth(s, given), strict=True):
        torch.testing.assert_close(got.double(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.usefixtures("_forgotten")
@pytest.mark.exhaustive
@pytest.mark.parametrize("mode", ["fwd", "bwd"])
def test_inductor_would_put_sdpa_in_the_place_of_the_formula(monkeypatch, mode):
    if reason := plain_attention.missing_compiler():
        pytest.skip(reason)
    replaced, given = [], tensors(a_setting(), torch.float32)
    for options in (plain_attention.requirements.exclude_sdpa(), None):
        monkeypatch.setattr(plain_attention.requirements, "exclude_sdpa", lambda options=options: options)
        plain_attention.compile_plain.cache_clear()
        forward = plain_attention.compiled(a_setting(mode=mode))
        call = (lambda f=forward: with_gradients(f, given)) if mode == "bwd" else (lambda f=forward: f(*given[:3]))
        replaced.append(_compile_anew(call)[1])
    assert replaced[0] == 0 < replaced[1]


def _compile_anew(call):
    """Return what a call gives, and how often inductor replaced the formula by SDPA. A cache would skip the search."""
    config = importlib.import_module("torch._inductor.config")
    counters = importlib.import_module("torch._dynamo.utils").counters
    counters.clear()
    with config.patch(force_disable_caches=True):
        results = call()
    assert counters["inductor"]["extern_calls"] >= 2, "both products were compiled"
    return results, int(counters["inductor"]["fuse_attention"])


def test_a_torch_that_leaves_out_no_single_pass_leaves_out_all_patterns(monkeypatch):
    older = SimpleNamespace(pattern_matcher=True)
    monkeypatch.setattr(plain_attention.requirements.importlib, "import_module", lambda name: older)
    assert plain_attention.requirements.exclude_sdpa() == {"pattern_matcher": False}
