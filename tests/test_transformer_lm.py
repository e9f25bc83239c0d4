"""The language model: its formulas by known models and hand-computed numbers, its parts against one another.

These run on a CPU, with the size made for it. Where a test needs what only a GPU machine has, it replaces that one
thing and says so.
"""

import json
import math
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import lazy
import pytest

from profpipe import plugins, ranges

torch = lazy.module("torch")
ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "workloads" / "transformer_lm.py"
lm = lazy.workload(SCRIPT)
model = lazy.Lazy(lambda: lm.lm_model)

TINY = {"size": "tiny", "context": 16, "batch": 2, "vocab": 101, "precision": "fp32"}
GPT2 = {"block": "classic", "context": 1024, "vocab": 50257}

pytestmark = [lazy.needs("torch"), pytest.mark.usefixtures("on_the_cpu")]


def _decoder(params, device="meta"):
    """The module; on the device ``meta`` without any memory."""
    with torch.device(device):
        return model.decoder(lm.parse_params(params), nullcontext)


def _parameters(params):
    return sum(parameter.numel() for parameter in _decoder(params).parameters())


# --- the model and its size ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "count"), [("small", 124_439_808), ("medium", 354_823_168), ("large", 774_030_080), ("xl", 1_557_611_200)]
)
def test_the_classic_block_makes_the_models_of_gpt2(size, count):
    """The counts equal those of the published weights (gpt2, gpt2-medium, gpt2-large, gpt2-xl)."""
    assert _parameters({**GPT2, "size": size}) == count


def test_the_modern_block_has_three_mlp_matrices_and_a_separate_output_layer():
    # 2 x 10000 x 768 + 12 x (4 x 768 x 768 + 3 x 768 x 3072 + 2 x 768) + 768
    assert _parameters({"size": "small"}) == 128_625_408


@pytest.mark.parametrize("block", ["modern", "classic"])
def test_the_parameters_are_counted_without_the_memory_for_them(block):
    params = {**TINY, "block": block, "context": 77, "vocab": 1001}
    on_the_cpu = sum(parameter.numel() for parameter in _decoder(params, "cpu").parameters())
    assert lm.facts(params)["parameters"] == (on_the_cpu, "1") and lm.facts(params)["layers"] == (2, "")
    # In memory these would be 36 GB.
    wide = {"size": "custom", "d_model": 8192, "d_ff": 32768, "heads": 64, "layers": 12}
    assert lm.facts(wide)["parameters"][0] > 9e9


@pytest.mark.parametrize("block", ["classic", "modern"])
def test_autocast_runs_linear_layers_in_16_bits_and_keeps_the_rest_in_32(block):
    params = {"size": "tiny", "block": block, "record_dtypes": True}
    assert {lm.facts({**params, "precision": "fp32"})[name] for name in lm.BITS} == {(32.0, "1")}
    mixed = lm.facts({**params, "precision": "bf16"})
    assert {name for name in lm.BITS if mixed[name] == (16.0, "1")} == {"linear_bits", "logits_bits"}
    assert {name for name in lm.BITS if mixed[name] == (32.0, "1")} == set(lm.BITS) - {"linear_bits", "logits_bits"}


def test_a_sum_in_16_bits_loses_what_one_in_32_keeps():
    accumulation = plugins.load_module(SCRIPT.with_name("accumulation.py"))
    exact, narrow, mixed = (
        accumulation.facts({"sum": total, "term": term})["total"][0]
        for total, term in (("fp32", "fp32"), ("fp16", "fp16"), ("fp32", "fp16"))
    )
    assert (round(exact, 4), round(narrow, 4), round(mixed, 4)) == (10.0001, 9.9531, 10.0021)  # as published for CS336
    assert accumulation.check({"sum": "fp16", "term": "fp16"})["error_rel_l1"] == pytest.approx((10 - narrow) / 10)


def test_a_custom_size_takes_its_numbers_from_the_parameters():
    params = {**TINY, "size": "custom", "d_model": 24, "d_ff": 40, "layers": 1, "heads": 2}
    assert lm.facts(params)["parameters"][0] == _parameters(params) == 2 * 101 * 24 + 4 * 576 + 3 * 960 + 3 * 24
    assert lm.build(params)().ndim == 0


def test_the_numbers_that_a_custom_size_leaves_out_are_small_s():
    given = lm.parse_params({"size": "custom", "layers": 4})
    assert (given.d_model, given.d_ff, given.layers, given.heads) == (768, 3072, 4, 12)


@pytest.mark.parametrize("block", ["modern", "classic"])
@pytest.mark.parametrize("attention", ["plain", "sdpa"])
def test_a_token_attends_to_itself_and_to_earlier_tokens(block, attention):
    made = model.Model(lm.parse_params({**TINY, "block": block, "attention": attention}), nullcontext)
    logits, loss = made.forward()
    assert logits.shape == (2, 16, 101)
    assert loss.item() == pytest.approx(math.log(101), rel=0.05)
    changed = made.tokens.clone()
    changed[:, 9] = (changed[:, 9] + 1) % 101
    difference = (made.layers(changed) - logits).abs().amax((0, 2))
    assert difference[:9].max() < 1e-6 < difference[9:].min()


@pytest.mark.parametrize("block", ["modern", "classic"])
def test_plain_attention_gives_what_sdpa_gives(block):
    models = [
        model.Model(lm.parse_params({**TINY, "block": block, "attention": a}), nullcontext) for a in ("plain", "sdpa")
    ]
    losses = [made.forward()[1] for made in models]
    torch.testing.assert_close(*losses)
    for loss in losses:
        loss.backward()
    plain, sdpa = ([parameter.grad for parameter in made.layers.parameters()] for made in models)
    torch.testing.assert_close(plain, sdpa, atol=1e-6, rtol=1e-4)


def test_rope_turns_pairs_so_that_scores_depend_on_the_distance_alone():
    cos, sin = model.rotation(lm.parse_params({**TINY, "context": 32})).unbind()
    query, key = torch.randn(2, 1, 16, generator=torch.Generator().manual_seed(0))
    turned = [model.rotated(x.expand(32, 16), cos, sin) for x in (query, key)]
    assert turned[0][0].equal(query[0])
    scores = turned[0] @ turned[1].T
    torch.testing.assert_close(scores[10:, 10:], scores[:-10, :-10], atol=1e-5, rtol=1e-5)
    assert not torch.allclose(scores[0, 0], scores[0, 5])


def test_rms_norm_is_the_one_of_torch():
    if not hasattr(torch.nn.functional, "rms_norm"):
        pytest.skip(f"torch {torch.__version__} has no rms_norm")
    x = torch.randn(3, 5, 64)
    torch.testing.assert_close(model.RMSNorm(64)(x), torch.nn.functional.rms_norm(x, (64,), eps=1e-5))


def test_one_seed_gives_one_model_and_one_text():
    first, same, other = (lm.build({**TINY, "what": "forward", "seed": seed})().item() for seed in (1, 1, 2))
    assert first == same != other


# --- formulas --------------------------------------------------------------------------------------------------------


def test_flops_count_each_matrix_and_the_full_square_of_plain_attention():
    # 128 tokens x (2 layers x (4 x 64 x 64 + 3 x 64 x 128) + 64 x 1000) x 2, and 2 layers x 128 x 32 keys x 64 x 4
    params = {**TINY, "batch": 4, "context": 32, "vocab": 1000, "what": "forward"}
    products, attention = 2 * 128 * (2 * (16_384 + 24_576) + 64_000), 2_097_152
    assert lm.flops(params) == products + attention == 39_452_672
    assert lm.flops({**params, "block": "classic"}) == products - 2 * 128 * 2 * 8_192 + attention
    assert lm.flops({**params, "attention": "sdpa"}) == products + attention / 2
    assert lm.flops({**params, "what": "forward_backward"}) == 3 * (products + attention)
    assert lm.flops({**params, "what": "train_step"}) == 3 * (products + attention)


@pytest.mark.parametrize("block", ["modern", "classic"])
@pytest.mark.parametrize("what", ["forward", "backward", "forward_backward"])
def test_flops_are_those_that_torch_counts(block, what):
    counting = pytest.importorskip("torch.utils.flop_counter").FlopCounterMode(display=False)
    params = {**TINY, "block": block, "what": what}
    iteration = lm.build(params)
    with counting:
        iteration()
    assert counting.get_total_flops() == lm.flops(params)


def test_the_work_of_the_ranges_of_attention_adds_up_to_its_share_of_the_flops():
    params = {**TINY, "what": "forward", "precision": "bf16"}
    work = lm.phase_work(params)
    scores, mixing = work["forward > attention scores"], work["forward > final matmul"]
    without = lm.flops({**params, "attention": "sdpa"})
    assert scores["flops"] + mixing["flops"] == 2 * (lm.flops(params) - without) == 2 * 4 * 32 * 16 * 64
    # 2 layers, 2 bytes: q and k of 2 x 16 x 64 elements each, and 2 x 4 x 16 x 16 scores
    assert scores["bytes_moved"] == mixing["bytes_moved"] == 2 * 2 * (2 * 2048 + 2048)
    assert work["forward > softmax"] == {"flops": 5 * 2 * 2048, "bytes_moved": 2 * 2 * 2 * 2048}


def test_a_range_that_is_not_opened_has_no_work():
    assert lm.phase_work({**TINY, "attention": "sdpa"}) == lm.phase_work({**TINY, "compile": True}) == {}


# --- what one iteration does -----------------------------------------------------------------------------------------

_ATTENTION = ["attention scores", "softmax", "final matmul"]


@pytest.mark.parametrize(
    ("what", "passes"),
    [
        ("forward", ["forward"]),
        ("forward_backward", ["forward", "backward"]),
        ("backward", ["backward"]),
        ("train_step", ["forward", "backward", "optimizer"]),
    ],
)
def test_passes_and_the_steps_of_attention_stand_in_nested_ranges(monkeypatch, what, passes):
    seen: list[tuple[int, str]] = []
    depth = 0

    @contextmanager
    def recording(name):
        nonlocal depth
        seen.append((depth, name))
        depth += 1
        yield
        depth -= 1

    monkeypatch.setattr(lm, "annotate", recording)
    iteration = lm.build({**TINY, "what": what})
    assert seen == []
    iteration()
    inner = [(1, name) for name in (*_ATTENTION, *_ATTENTION, "loss")] if "forward" in passes else []
    assert seen == [(0, passes[0]), *inner, *((0, name) for name in passes[1:])]


def test_the_ranges_are_in_a_trace_of_torch(tmp_path):
    iteration = lm.build({**TINY, "precision": "bf16"})
    ranges.use("torch")
    try:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as recorded:
            iteration()
    finally:
        ranges.use("plain")
    recorded.export_chrome_trace(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    spans = [(e["name"], e["ts"], e["ts"] + e["dur"]) for e in events if e.get("cat") == "user_annotation"]
    begin, end = {name: begin for name, begin, _ in spans}, {name: end for name, _, end in spans}
    assert end["forward"] <= begin["backward"] < end["backward"] <= begin["optimizer"]
    softmaxes = [span for span in spans if span[0] == "softmax"]
    assert len(softmaxes) == 2
    assert all(begin["forward"] < span[1] < span[2] < end["forward"] for span in softmaxes)


@pytest.mark.parametrize(
    "precision", ["fp32", *(pytest.param(name, marks=pytest.mark.slow) for name in ("bf16", "fp16"))]
)
@pytest.mark.parametrize("block", ["modern", "classic"])
def test_the_loss_falls_with_each_step(block, precision):
    step = lm.build({**TINY, "block": block, "precision": precision})
    losses = [step().item() for _ in range(6)]
    assert losses == sorted(losses, reverse=True)
    assert losses[5] < losses[0] - 0.05


@pytest.mark.parametrize("adamw", ["foreach", "fused", "loop"])
def test_each_loop_of_adamw_makes_the_same_step(adamw):
    expected, step = (lm.build({**TINY, "adamw": name}) for name in ("loop", adamw))
    for _ in range(3):
        torch.testing.assert_close(step(), expected(), atol=1e-5, rtol=1e-5)


def test_an_iteration_keeps_no_graph_and_no_sum_of_gradients(monkeypatch):
    made: list[Any] = []
    make = model.Model
    monkeypatch.setattr(model, "Model", lambda *given: made.append(make(*given)) or made[-1])
    forward, both = (lm.build({**TINY, "what": what}) for what in ("forward", "forward_backward"))
    assert not forward().requires_grad
    assert all(parameter.grad is None for parameter in made[0].layers.parameters())
    losses, gradients = [], []
    for _ in range(2):
        losses.append(both())
        gradients.append([parameter.grad.clone() for parameter in made[1].layers.parameters()])
    assert not losses[0].requires_grad
    torch.testing.assert_close(*losses)
    torch.testing.assert_close(*gradients)


def test_a_backward_pass_alone_makes_the_same_gradients_each_time(monkeypatch):
    made: list[Any] = []
    make = model.Model
    monkeypatch.setattr(model, "Model", lambda *given: made.append(make(*given)) or made[-1])
    alone, both = (lm.build({**TINY, "what": what}) for what in ("backward", "forward_backward"))
    torch.testing.assert_close(both(), alone())
    alone()
    one, other = ([parameter.grad for parameter in each.layers.parameters()] for each in made)
    torch.testing.assert_close(one, other)


def test_a_compiled_backward_pass_is_not_run_alone():
    assert lm.available({**TINY, "what": "backward", "compile": True}).startswith("what: backward keeps its graph")


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", "float32"), ("bf16", "bfloat16"), ("fp16", "float16")])
def test_products_are_in_the_precision_and_weights_in_fp32(precision, dtype):
    made = model.Model(lm.parse_params({**TINY, "precision": precision}), nullcontext)
    logits, _ = made.forward()
    assert logits.dtype == getattr(torch, dtype)
    assert {parameter.dtype for parameter in made.layers.parameters()} == {torch.float32}


def test_fp16_steps_are_scaled_and_none_is_skipped(monkeypatch):
    scalers: list[Any] = []
    scaler = torch.amp.GradScaler
    monkeypatch.setattr(torch.amp, "GradScaler", lambda *a, **k: scalers.append(scaler(*a, **k)) or scalers[-1])
    for precision in ("fp16", "bf16"):
        step = lm.build({**TINY, "precision": precision})
        for _ in range(4):
            step()
    assert [made.is_enabled() for made in scalers] == [True, False]
    assert scalers[0].get_scale() == 1024


# --- check -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", ["modern", "classic"])
def test_the_fewer_bits_the_further_from_fp64(block):
    fp32, fp16, bf16 = (lm.check({**TINY, "block": block, "precision": p}) for p in ("fp32", "fp16", "bf16"))
    assert 0 < fp32["error_mean"] <= fp32["error_max"] < 1e-5 < fp16["error_max"] < bf16["error_max"] < 0.1


@pytest.mark.parametrize("attention", ["plain", "sdpa"])
def test_attention_that_is_wrong_is_far_from_the_reference(monkeypatch, attention):
    """The reference computes it by its formula, not by the call that it is to check."""
    sound = lm.check({**TINY, "attention": attention})
    assert sound["error_rel_l1"] < 1e-5 and sound["cosine"] > 0.99999
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", lambda q, k, v, **_: torch.zeros_like(q))
    wrong = lm.check({**TINY, "attention": attention})
    assert (wrong["error_rel_l1"] > 0.01) == (attention == "sdpa")


def test_only_the_first_tokens_are_compared_for_any_context_length(monkeypatch):
    monkeypatch.setattr(lm, "_CHECKED_TOKENS", 5)
    assert 0 < lm.check(TINY)["error_max"] < 1e-5


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_a_nan_or_an_infinity_makes_the_error_infinite(monkeypatch, wrong):
    """In the logits themselves, where no norm makes a NaN of an infinity; the reference, in fp64, has neither."""
    decoder = model.decoder

    def spoil(module, given, out):
        return out if out.dtype == torch.float64 else out.index_fill(-1, torch.tensor([0]), wrong)

    def broken(s, phase):
        layers = decoder(s, phase)
        layers[-1].register_forward_hook(spoil)
        return layers

    monkeypatch.setattr(model, "decoder", broken)
    assert lm.check(TINY)["error_max"] == math.inf


# --- torch.compile ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["plain", "sdpa"])
@pytest.mark.parametrize("block", ["modern", pytest.param("classic", marks=pytest.mark.exhaustive)])
def test_the_model_is_one_graph_without_ranges_inside(monkeypatch, block, attention):
    """Captured by dynamo and run without a compiler."""
    compiled, seen = torch.compile, []

    @contextmanager
    def recording(name):
        seen.append(name)
        yield

    monkeypatch.setattr(torch, "compile", lambda model, **given: compiled(model, backend="eager", **given))
    monkeypatch.setattr(lm, "annotate", recording)
    params = {**TINY, "block": block, "attention": attention}
    losses = [lm.build({**params, "compile": on})() for on in (False, True)]
    torch.testing.assert_close(*losses)
    assert seen[-4:] == ["forward", "loss", "backward", "optimizer"]


@pytest.mark.slow
def test_more_cases_than_torch_recompiles_are_each_compiled(monkeypatch):
    graphs: list[Any] = []
    compiled = torch.compile

    def count(graph, inputs):
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", lambda model, **given: compiled(model, backend=count, **given))
    params = {**TINY, "what": "forward", "compile": True, "attention": "sdpa"}
    for context in range(8, 18):
        lm.build({**params, "context": context})()
    assert len(graphs) == 10


@pytest.mark.exhaustive
def test_compiled_code_gives_the_loss_of_the_eager_model():
    params = {**TINY, "size": "custom", "d_model": 32, "d_ff": 64, "layers": 1, "heads": 2, "what": "forward"}
    if reason := lm.available({**params, "compile": True}):
        pytest.skip(reason)
    eager, compiled = (lm.build({**params, "compile": on}) for on in (False, True))
    for _ in range(2):
        torch.testing.assert_close(compiled(), eager(), atol=1e-5, rtol=1e-5)
