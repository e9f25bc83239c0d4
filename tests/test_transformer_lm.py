"""The language model: its formulas by known models and hand-computed numbers, its parts against one another.

These run on a CPU, with the size made for it. Where a test needs what only a GPU machine has, it replaces that one
thing and says so.
"""

from __future__ import annotations

import ast
import csv
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from profpipe import load, ranges

torch = pytest.importorskip("torch")
ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "workloads" / "transformer_lm.py"
PIPELINE = ROOT / "pipelines" / "transformer_lm.yaml"
lm = load.module(SCRIPT)

TINY = {"size": "tiny", "context": 16, "batch": 2, "vocab": 101, "precision": "fp32"}
GPT2 = {"block": "classic", "context": 1024, "vocab": 50257}


@pytest.fixture(autouse=True)
def _on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same answers on a machine with a GPU."""
    monkeypatch.setattr(lm, "_device", lambda: "cpu")


def _decoder(params: dict[str, Any], device: str = "meta") -> Any:
    """The module; on the device ``meta`` without any memory."""
    with torch.device(device):
        return lm.decoder(lm._setting(params), nullcontext)


def _parameters(params: dict[str, Any]) -> int:
    return sum(parameter.numel() for parameter in _decoder(params).parameters())


def _pretend_cuda(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int] = (9, 0), memory: int = 2**40) -> None:
    """A mock of the device's properties: no kernel can run behind it."""
    monkeypatch.setattr(lm, "_device", lambda: "cuda")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: capability)
    monkeypatch.setattr(lm, "_memory_bytes", lambda: memory)


# --- the model and its size ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "count"),
    [("small", 124_439_808), ("medium", 354_823_168), ("large", 774_030_080), ("xl", 1_557_611_200)],
)
def test_the_classic_block_makes_the_models_of_gpt2(size: str, count: int) -> None:
    """The counts are those of the published weights (gpt2, gpt2-medium, gpt2-large, gpt2-xl)."""
    assert _parameters({**GPT2, "size": size}) == count


def test_the_modern_block_has_three_matrices_in_its_mlp_and_an_output_layer_of_its_own() -> None:
    # 2 x 10000 x 768 + 12 x (4 x 768 x 768 + 3 x 768 x 3072 + 2 x 768) + 768
    assert _parameters({"size": "small"}) == 128_625_408


@pytest.mark.parametrize("block", ["modern", "classic"])
@pytest.mark.parametrize("size", ["tiny", "medium", "2.7B"])
def test_the_formula_counts_the_parameters_that_the_module_has(size: str, block: str) -> None:
    params = {"size": size, "block": block, "context": 77, "vocab": 1001}
    assert lm._parameter_count(lm._setting(params)) == _parameters(params)


def test_a_custom_size_takes_its_numbers_from_the_parameters() -> None:
    params = {**TINY, "size": "custom", "d_model": 24, "d_ff": 40, "layers": 1, "heads": 2}
    assert lm._parameter_count(lm._setting(params)) == _parameters(params) == 2 * 101 * 24 + 4 * 576 + 3 * 960 + 3 * 24
    assert lm.build(params)().ndim == 0


@pytest.mark.parametrize("block", ["modern", "classic"])
@pytest.mark.parametrize("attention", ["plain", "sdpa"])
def test_a_token_sees_itself_and_what_came_before(block: str, attention: str) -> None:
    model = lm._Model(lm._setting({**TINY, "block": block, "attention": attention}), nullcontext)
    logits, loss = model.forward()
    assert logits.shape == (2, 16, 101)
    assert loss.item() == pytest.approx(math.log(101), rel=0.05)
    changed = model.tokens.clone()
    changed[:, 9] = (changed[:, 9] + 1) % 101
    difference = (model.layers(changed) - logits).abs().amax((0, 2))
    assert difference[:9].max() < 1e-6 < difference[9:].min()


@pytest.mark.parametrize("block", ["modern", "classic"])
def test_plain_attention_gives_what_sdpa_gives(block: str) -> None:
    models = [lm._Model(lm._setting({**TINY, "block": block, "attention": a}), nullcontext) for a in ("plain", "sdpa")]
    losses = [model.forward()[1] for model in models]
    torch.testing.assert_close(*losses)
    for loss in losses:
        loss.backward()
    plain, sdpa = ([parameter.grad for parameter in model.layers.parameters()] for model in models)
    torch.testing.assert_close(plain, sdpa, atol=1e-6, rtol=1e-4)


def test_rope_turns_pairs_so_that_scores_depend_on_the_distance_alone() -> None:
    cos, sin = lm._rotation(lm._setting({**TINY, "context": 32})).unbind()
    query, key = torch.randn(2, 1, 16, generator=torch.Generator().manual_seed(0))
    turned = [lm._rotated(x.expand(32, 16), cos, sin) for x in (query, key)]
    assert turned[0][0].equal(query[0])
    scores = turned[0] @ turned[1].T
    torch.testing.assert_close(scores[10:, 10:], scores[:-10, :-10], atol=1e-5, rtol=1e-5)
    assert not torch.allclose(scores[0, 0], scores[0, 5])


def test_rms_norm_is_the_one_of_torch() -> None:
    if not hasattr(torch.nn.functional, "rms_norm"):
        pytest.skip(f"torch {torch.__version__} has no rms_norm")
    x = torch.randn(3, 5, 64)
    torch.testing.assert_close(lm.RMSNorm(64)(x), torch.nn.functional.rms_norm(x, (64,), eps=1e-5))


def test_one_seed_gives_one_model_and_one_text() -> None:
    first, same, other = (lm.build({**TINY, "what": "forward", "seed": seed})().item() for seed in (1, 1, 2))
    assert first == same != other


# --- formulas --------------------------------------------------------------------------------------------------------


def test_flops_count_each_matrix_and_the_full_square_of_plain_attention() -> None:
    # 128 tokens x (2 layers x (4 x 64 x 64 + 3 x 64 x 128) + 64 x 1000) x 2, and 2 layers x 128 x 32 keys x 64 x 4
    params = {**TINY, "batch": 4, "context": 32, "vocab": 1000, "what": "forward"}
    products, attention = 2 * 128 * (2 * (16_384 + 24_576) + 64_000), 2_097_152
    assert lm.flops(params) == products + attention == 39_452_672
    assert lm.flops({**params, "block": "classic"}) == products - 2 * 128 * 2 * 8_192 + attention
    assert lm.flops({**params, "attention": "sdpa"}) == products + attention / 2
    assert lm.flops({**params, "what": "forward_backward"}) == 3 * (products + attention)
    assert lm.flops({**params, "what": "train_step"}) == 3 * (products + attention)


@pytest.mark.parametrize("block", ["modern", "classic"])
@pytest.mark.parametrize("what", ["forward", "forward_backward"])
def test_flops_are_those_that_torch_counts(block: str, what: str) -> None:
    counting = pytest.importorskip("torch.utils.flop_counter").FlopCounterMode(display=False)
    params = {**TINY, "block": block, "what": what}
    iteration = lm.build(params)
    with counting:
        iteration()
    assert counting.get_total_flops() == lm.flops(params)


def test_the_work_of_the_ranges_of_attention_adds_up_to_its_share_of_the_flops() -> None:
    params = {**TINY, "what": "forward", "precision": "bf16"}
    work = lm.phase_work(params)
    scores, mixing = work["forward > attention scores"], work["forward > final matmul"]
    without = lm.flops({**params, "attention": "sdpa"})
    assert scores["flops"] + mixing["flops"] == 2 * (lm.flops(params) - without) == 2 * 4 * 32 * 16 * 64
    # 2 layers, 2 bytes: q and k of 2 x 16 x 64 elements each, and 2 x 4 x 16 x 16 scores
    assert scores["bytes_moved"] == mixing["bytes_moved"] == 2 * 2 * (2 * 2048 + 2048)
    assert work["forward > softmax"] == {"flops": 5 * 2 * 2048, "bytes_moved": 2 * 2 * 2 * 2048}


def test_there_is_no_work_of_ranges_that_are_not_opened() -> None:
    assert lm.phase_work({**TINY, "attention": "sdpa"}) == lm.phase_work({**TINY, "compile": True}) == {}


# --- what one iteration does -----------------------------------------------------------------------------------------

_ATTENTION = ["attention scores", "softmax", "final matmul"]


@pytest.mark.parametrize(
    ("what", "passes"),
    [
        ("forward", ["forward"]),
        ("forward_backward", ["forward", "backward"]),
        ("train_step", ["forward", "backward", "optimizer"]),
    ],
)
def test_passes_and_the_steps_of_attention_stand_in_nested_ranges(
    monkeypatch: pytest.MonkeyPatch, what: str, passes: list[str]
) -> None:
    seen: list[tuple[int, str]] = []
    depth = 0

    @contextmanager
    def recording(name: str) -> Iterator[None]:
        nonlocal depth
        seen.append((depth, name))
        depth += 1
        yield
        depth -= 1

    monkeypatch.setattr(lm, "annotate", recording)
    iteration = lm.build({**TINY, "what": what})
    assert seen == []
    iteration()
    inner = [(1, name) for name in (*_ATTENTION, *_ATTENTION, "loss")]
    assert seen == [(0, "forward"), *inner, *((0, name) for name in passes[1:])]


def test_the_ranges_are_in_a_trace_of_torch(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("block", ["modern", "classic"])
def test_the_loss_falls_with_each_step(block: str, precision: str) -> None:
    step = lm.build({**TINY, "block": block, "precision": precision})
    losses = [step().item() for _ in range(6)]
    assert losses == sorted(losses, reverse=True)
    assert losses[5] < losses[0] - 0.05


@pytest.mark.parametrize("adamw", ["foreach", "fused", "loop"])
def test_each_loop_of_adamw_makes_the_same_step(adamw: str) -> None:
    expected, step = (lm.build({**TINY, "adamw": name}) for name in ("loop", adamw))
    for _ in range(3):
        torch.testing.assert_close(step(), expected(), atol=1e-5, rtol=1e-5)


def test_an_iteration_keeps_no_graph_and_no_sum_of_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    model = lm._Model
    monkeypatch.setattr(lm, "_Model", lambda *given: made.append(model(*given)) or made[-1])
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


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", "float32"), ("bf16", "bfloat16"), ("fp16", "float16")])
def test_products_are_in_the_precision_and_weights_in_fp32(precision: str, dtype: str) -> None:
    model = lm._Model(lm._setting({**TINY, "precision": precision}), nullcontext)
    logits, _ = model.forward()
    assert logits.dtype == getattr(torch, dtype)
    assert {parameter.dtype for parameter in model.layers.parameters()} == {torch.float32}


def test_fp16_steps_are_scaled_and_none_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_the_fewer_bits_the_further_from_fp64(block: str) -> None:
    fp32, fp16, bf16 = (lm.check({**TINY, "block": block, "precision": p}) for p in ("fp32", "fp16", "bf16"))
    assert fp32["parameters"] == _parameters({**TINY, "block": block})
    assert fp32["loss"] == pytest.approx(math.log(101), rel=0.05)
    assert 0 < fp32["error_mean"] <= fp32["error_max"] < 1e-5 < fp16["error_max"] < bf16["error_max"] < 0.1


def test_only_the_first_tokens_are_compared_however_long_the_context(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lm, "_CHECKED_TOKENS", 5)
    assert 0 < lm.check(TINY)["error_max"] < 1e-5


def test_a_nan_makes_the_error_infinite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lm.Attention, "plain", lambda self, q, k, v, hidden: v * (math.nan if len(v) == 2 else 1))
    assert lm.check(TINY)["error_max"] == math.inf


# --- torch.compile ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("attention", ["plain", "sdpa"])
@pytest.mark.parametrize("block", ["modern", "classic"])
def test_the_model_is_one_graph_without_ranges_inside(
    monkeypatch: pytest.MonkeyPatch, block: str, attention: str
) -> None:
    """Captured by dynamo and run as it is, so that no compiler is needed."""
    compiled, seen = torch.compile, []

    @contextmanager
    def recording(name: str) -> Iterator[None]:
        seen.append(name)
        yield

    monkeypatch.setattr(torch, "compile", lambda model, **given: compiled(model, backend="eager", **given))
    monkeypatch.setattr(lm, "annotate", recording)
    params = {**TINY, "block": block, "attention": attention}
    losses = [lm.build({**params, "compile": on})() for on in (False, True)]
    torch.testing.assert_close(*losses)
    assert seen[-4:] == ["forward", "loss", "backward", "optimizer"]


def test_more_cases_than_torch_recompiles_are_each_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs: list[Any] = []
    compiled = torch.compile

    def count(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", lambda model, **given: compiled(model, backend=count, **given))
    params = {**TINY, "what": "forward", "compile": True, "attention": "sdpa"}
    for context in range(8, 18):
        lm.build({**params, "context": context})()
    assert len(graphs) == 10


def test_compiled_code_gives_the_loss_of_the_eager_model() -> None:
    params = {**TINY, "size": "custom", "d_model": 32, "d_ff": 64, "layers": 1, "heads": 2, "what": "forward"}
    if reason := lm.available({**params, "compile": True}):
        pytest.skip(reason)
    eager, compiled = (lm.build({**params, "compile": on}) for on in (False, True))
    for _ in range(2):
        torch.testing.assert_close(compiled(), eager(), atol=1e-5, rtol=1e-5)


# --- what cannot run -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("what", ["forward", "forward_backward", "train_step"])
def test_the_tiny_model_runs_on_any_cpu(precision: str, what: str) -> None:
    assert lm.available({**TINY, "precision": precision, "what": what}) is None


def test_the_largest_size_asks_for_a_gpu() -> None:
    assert lm.available({"size": "2.7B"}).startswith("2.7B needs a GPU, and torch sees none.")


def test_bf16_needs_an_architecture_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    _pretend_cuda(monkeypatch, capability=(7, 5))
    reason = "bf16 needs sm_80 or later; this GPU is sm_75. Use precision: fp16 or fp32."
    assert lm.available({**TINY, "precision": "bf16"}) == reason
    assert lm.available({**TINY, "precision": "fp16"}) is None


def test_what_compiles_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    params = {**TINY, "compile": True}
    monkeypatch.setattr(lm.shutil, "which", lambda name: None)
    monkeypatch.setenv("CXX", "c++-17")
    assert lm.available(params).startswith("torch.compile needs a C++ compiler, and there is no c++-17. Install")
    _pretend_cuda(monkeypatch)
    monkeypatch.setattr(lm.importlib.util, "find_spec", lambda name: None)
    assert lm.available(params).startswith("torch.compile needs triton, which is not installed.")
    assert lm.available({**params, "compile": False}) is None


def test_a_model_that_cannot_fit_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    _pretend_cuda(monkeypatch, memory=24 * 2**30)
    # 3.4e9 parameters: weights 13 GiB; with gradients and AdamW's states 51
    assert lm.available({"size": "2.7B", "what": "forward"}) is None
    assert lm.available({"size": "2.7B", "what": "train_step"}) == (
        "2.7B needs at least 51 GiB for train_step, and this GPU has 24 GiB. "
        "Use a smaller size, batch or context, or attention: sdpa."
    )
    # 12 layers keep 2 x 12 x 16384 x 16384 weights of 2 bytes each: 144 GiB
    long = {"size": "small", "context": 16384, "batch": 2, "what": "forward_backward"}
    assert "needs at least 1" in lm.available(long)
    assert lm.available({**long, "attention": "sdpa"}) is None


@pytest.mark.parametrize("attention", ["plain", "sdpa"])
@pytest.mark.parametrize("block", ["modern", "classic"])
def test_the_bound_on_memory_is_below_what_autograd_keeps(block: str, attention: str) -> None:
    """On a CPU there is no allocator to ask, so the tensors that autograd saves are counted, each storage once."""
    setting = lm._setting({**TINY, "context": 64, "block": block, "attention": attention, "what": "forward_backward"})
    model = lm._Model(setting, nullcontext)
    kept: dict[int, int] = {p.data_ptr(): 0 for p in [*model.layers.parameters(), *model.layers.buffers()]}

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        kept.setdefault(storage.data_ptr(), storage.nbytes())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = model.forward()[1]
    loss.backward()
    weights = 4 * lm._parameter_count(setting)
    least = lm._least_bytes(setting) - weights
    assert max(sum(kept.values()), weights) >= least > 0.5 * sum(kept.values())


# --- memory snapshot -------------------------------------------------------------------------------------------------


def test_without_a_gpu_or_the_wish_there_is_no_snapshot(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert lm.snapshot({**TINY, "memory_snapshot": True}, tmp_path) == []
    _pretend_cuda(monkeypatch)
    assert lm.snapshot(TINY, tmp_path) == []
    monkeypatch.delattr(torch.cuda.memory, "_record_memory_history")
    assert lm.snapshot({**TINY, "memory_snapshot": True}, tmp_path) == []
    assert list(tmp_path.iterdir()) == []


class _Allocator:
    """The counters of CUDA's allocator, which a CPU build of torch does not have."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.peak = 100
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: self.now)
        monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: self.peak)
        monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", self._reset)

    def _reset(self) -> None:
        self.peak = self.now

    def add(self, size: int) -> None:
        self.now += size
        self.peak = max(self.peak, self.now)


def test_a_range_has_the_peak_of_the_ranges_inside_it_and_not_of_those_before(monkeypatch: pytest.MonkeyPatch) -> None:
    allocator = _Allocator(monkeypatch)
    allocator.add(5)
    phase = lm._Peaks(already=100)
    with phase("forward"):
        allocator.add(10)
        for size in (30, 20):
            with phase("softmax"):
                allocator.add(size)
                allocator.add(-size)
            allocator.add(1)
    with phase("backward"):
        allocator.add(2)
        allocator.add(-12)
    assert phase.by_phase == {
        "forward": {"start_bytes": 5, "peak_bytes": 45, "end_bytes": 17},
        "forward > softmax": {"start_bytes": 15, "peak_bytes": 45, "end_bytes": 16},
        "backward": {"start_bytes": 17, "peak_bytes": 19, "end_bytes": 7},
    }


def test_allocations_of_one_size_and_place_are_one_row_largest_first() -> None:
    def entry(action: str, size: int, line: int, filename: str = "workloads/transformer_lm.py") -> dict[str, Any]:
        inner = {"filename": "site-packages/torch/nn/functional.py", "line": 7, "name": "linear"}
        return {
            "action": action,
            "size": size,
            "frames": [inner, {"filename": filename, "line": line, "name": "plain"}],
        }

    trace = [
        entry("alloc", 512, 10),
        *(entry("alloc", 4096, 20) for _ in range(12)),
        entry("free_completed", 8192, 20),
        entry("alloc", 1024, 30, "elsewhere.py"),
    ]
    assert lm._largest(trace) == [
        {"bytes": 4096, "count": 12, "frames": ["plain, transformer_lm.py:20"]},
        {"bytes": 1024, "count": 1, "frames": ["linear, functional.py:7", "plain, elsewhere.py:30"]},
        {"bytes": 512, "count": 1, "frames": ["plain, transformer_lm.py:10"]},
    ]


def test_a_snapshot_has_both_passes_with_their_peaks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The model runs on the CPU; the allocator's counters and its record stand in for those of a GPU."""
    _Allocator(monkeypatch)
    recorded: list[Any] = []
    memory = torch.cuda.memory
    monkeypatch.setattr(memory, "_record_memory_history", lambda **given: recorded.append(given))
    monkeypatch.setattr(memory, "_dump_snapshot", lambda path: Path(path).write_bytes(b"pickle"))
    frame = {"filename": str(SCRIPT), "line": 1, "name": "plain"}
    entry = {"action": "alloc", "size": 8, "frames": [frame]}
    monkeypatch.setattr(memory, "_snapshot", lambda: {"segments": [], "device_traces": [[entry]]})
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    # Asked once by snapshot itself; the model after it asks for the device that is really here.
    answers = iter(["cuda"])
    monkeypatch.setattr(lm, "_device", lambda: next(answers, "cpu"))
    files = lm.snapshot({**TINY, "memory_snapshot": True}, tmp_path)
    assert [path.name for path in files] == ["memory-forward.pickle", "memory-train_step.pickle", "memory.json"]
    assert recorded == [{"stacks": "python"}, {"enabled": None}] * 2
    summary = json.loads(files[2].read_text())
    assert list(summary) == ["forward", "train_step"]
    inner = [f"forward > {name}" for name in (*_ATTENTION, "loss")]
    assert list(summary["train_step"]["phases"]) == ["forward", *inner, "backward", "optimizer"]
    assert list(summary["forward"]["phases"]) == ["forward", *inner]
    assert summary["forward"]["largest"] == [{"bytes": 8, "count": 1, "frames": ["plain, transformer_lm.py:1"]}]


# --- parameters that are wrong everywhere ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"size": "smal"}, "unknown size 'smal'. Did you mean 'small'?"),
        ({"block": "llama"}, "unknown block 'llama'. Known: classic, modern"),
        ({"seqlen": 8}, "unknown parameter 'seqlen'."),
        ({"precision": "tf32"}, "unknown precision 'tf32'."),
        ({"what": "backward"}, "unknown what 'backward'."),
        ({"compile": "true"}, "compile must be true or false, not 'true'"),
        ({"layers": 4}, "layers is fixed by size small: use size: custom to choose it"),
        ({"size": "custom"}, "d_model must be a whole number of at least 1, not 0"),
        ({"context": 0}, "context must be a whole number of at least 1, not 0"),
        (
            {"size": "custom", "d_model": 64, "d_ff": 1, "layers": 1, "heads": 3},
            "d_model (64) must be a multiple of heads (3)",
        ),
        ({"size": "custom", "d_model": 6, "d_ff": 1, "layers": 1, "heads": 2}, "RoPE rotates pairs:"),
    ],
)
def test_a_wrong_parameter_is_named_with_what_is_possible(params: dict[str, Any], message: str) -> None:
    for ask in (lm.build, lm.flops, lm.phase_work, lm.available):
        with pytest.raises(ValueError) as raised:
            ask(params)
        assert str(raised.value).startswith(message)


def test_the_parameters_are_a_literal_that_needs_no_torch_to_be_read() -> None:
    assigned = (node for node in ast.parse(SCRIPT.read_text()).body if isinstance(node, ast.Assign))
    (literal,) = (node.value for node in assigned if node.targets[0].id == "PARAMS")
    assert ast.literal_eval(literal) == lm.PARAMS


# --- the study -------------------------------------------------------------------------------------------------------

_REDUCED = {
    "SIZES": "tiny", "SIZE": "tiny", "CONTEXT": "16", "CONTEXTS": "16", "BATCH": "1", "PRECISION": "fp32,bf16",
    "COMPILE": "false", "WARMUP": "1", "REPEATS": "2",
}  # fmt: skip


def _profpipe(*arguments: object, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "profpipe", *map(str, arguments)],
        cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_study_lists_its_cases_and_takes_its_sizes_from_the_environment() -> None:
    listed = _profpipe("list", PIPELINE)
    assert "sizes: transformer_lm, 27 cases under plain, torch, nsys" in listed
    assert "size=large,what=train_step,precision=fp16" in listed
    narrowed = _profpipe("list", PIPELINE, SIZES="xl,2.7B", PRECISION="bf16", CONTEXTS="2048")
    assert "sizes: transformer_lm, 6 cases" in narrowed
    assert "size=2.7B,context=2048" in narrowed


def test_the_reduced_study_runs_on_a_cpu(tmp_path: Path) -> None:
    _profpipe("run", PIPELINE, "-p", "plain", "--out", tmp_path, **_REDUCED)
    with (tmp_path / "latest" / "cases.csv").open(newline="") as stream:
        cases = list(csv.DictReader(stream))
    assert {case["workload"] for case in cases} == {"sizes", "contexts", "compiled", "memory"}
    assert {case["status"] for case in cases} == {"ok"}
    assert len(cases) == 6 + 4 + 4 + 1
    with (tmp_path / "latest" / "metrics.csv").open(newline="") as stream:
        metrics = {row["metric"] for row in csv.DictReader(stream) if row["workload"] == "sizes"}
    assert {"time", "flops", "parameters", "loss", "error_max", "error_mean"} <= metrics
