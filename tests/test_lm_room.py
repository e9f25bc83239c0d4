"""Which cases of the language model are skipped, and their reasons."""

from contextlib import nullcontext
from pathlib import Path

import lazy
import pytest
from stand_in_gpu import pretend_cuda

torch = lazy.module("torch")
lm = lazy.workload(Path(__file__).parents[1] / "workloads" / "transformer_lm.py")
room = lazy.Lazy(lambda: lm.lm_model)

TINY = {"size": "tiny", "context": 16, "batch": 2, "vocab": 101, "precision": "fp32"}

pytestmark = [lazy.needs("torch"), pytest.mark.usefixtures("on_the_cpu")]


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("what", ["forward", "backward", "forward_backward", "train_step"])
def test_the_tiny_model_runs_on_any_cpu(precision, what):
    assert lm.available({**TINY, "precision": precision, "what": what}) is None


def test_the_largest_size_asks_for_a_gpu():
    assert lm.available({"size": "2.7B"}).startswith("2.7B needs a GPU, and torch sees none.")


def test_bf16_needs_an_architecture_that_has_it(monkeypatch):
    pretend_cuda(monkeypatch, capability=(7, 5))
    reason = "bf16 needs sm_80 or later; this GPU is sm_75. Use precision: fp16 or fp32."
    assert lm.available({**TINY, "precision": "bf16"}) == reason
    assert lm.available({**TINY, "precision": "fp16"}) is None


def test_a_model_that_cannot_fit_is_not_tried(monkeypatch):
    pretend_cuda(monkeypatch, memory=24 * 2**30)
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
def test_the_bound_on_memory_is_below_what_autograd_keeps(block, attention):
    """On a CPU there is no allocator to ask, so the tensors that autograd saves are counted, each storage once."""
    setting = lm.parse_params(
        {**TINY, "context": 64, "block": block, "attention": attention, "what": "forward_backward"}
    )
    model = lm.lm_model.Model(setting, nullcontext)
    kept: dict[int, int] = {p.data_ptr(): 0 for p in [*model.layers.parameters(), *model.layers.buffers()]}

    def pack(tensor):
        storage = tensor.untyped_storage()
        kept.setdefault(storage.data_ptr(), storage.nbytes())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = model.forward()[1]
    loss.backward()
    weights = 4 * lm.lm_model.parameter_count(setting)
    least = room.least_bytes(setting) - weights
    assert max(sum(kept.values()), weights) >= least > 0.5 * sum(kept.values())
