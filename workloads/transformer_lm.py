"""A decoder-only language model in plain PyTorch: one of its passes, forward and backward, or a whole training step.

``block: modern`` is the block of Llama: RoPE, RMSNorm, SwiGLU, no biases, an output layer of its own. ``classic`` is
GPT-2's: learned positions, LayerNorm, a GELU MLP, biases, the output layer tied to the embedding. Neither has dropout.
The sizes small to xl are GPT-2's, 2.7B is GPT-3's. With ``size: custom`` the four numbers come from ``d_model``,
``d_ff``, ``layers`` and ``heads``, and those left at 0 are small's; the other sizes leave all four at 0.

Weights are fp32. bf16 and fp16 run the forward pass under autocast, as mixed-precision training does. fp16 also scales
the loss with a GradScaler, as it must: its kernels, and where AdamW is not fused its wait for the GPU, are part of the
step. fp32 uses TF32 only where the process allows it, which torch by default does not.

``what: forward`` computes the loss without gradients; ``backward`` the gradients alone, of a graph that is made once
and kept. ``forward_backward`` does both, the gradients freed before the next forward pass; ``train_step`` adds AdamW
(``adamw``: which of torch's loops), without clipping or a schedule. The passes stand in the ranges ``forward`` (with
``loss`` inside), ``backward`` and ``optimizer``. ``attention: plain`` has ``attention scores``, ``softmax`` and ``final
matmul`` in each layer; ``sdpa`` is one call. ``compile: true`` compiles the model, not the loss and the optimizer, and
opens no range inside the model, since a range would break its graph.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from profpipe import load
from profpipe.ranges import annotate

if TYPE_CHECKING:
    import _errors
    import _lm_memory
    import _lm_model
    import _lm_room
    import _lm_setting
    import _lm_step
    from _lm_setting import Setting
else:
    _errors = load.module(Path(__file__).with_name("_errors.py"))
    _lm_memory = load.module(Path(__file__).with_name("_lm_memory.py"))
    _lm_model = load.module(Path(__file__).with_name("_lm_model.py"))
    _lm_room = load.module(Path(__file__).with_name("_lm_room.py"))
    _lm_setting = load.module(Path(__file__).with_name("_lm_setting.py"))
    _lm_step = load.module(Path(__file__).with_name("_lm_step.py"))

PARAMS = {
    "size": "small",
    "block": "modern",
    "context": 512,
    "batch": 4,
    "vocab": 10000,
    "precision": "bf16",
    "what": "train_step",
    "attention": "plain",
    "compile": False,
    "adamw": "foreach",
    "d_model": 0,  # these four: for size: custom
    "d_ff": 0,
    "layers": 0,
    "heads": 0,
    "memory_snapshot": False,
    "seed": 0,
}


def build(params: Mapping[str, Any]) -> Callable[[], Tensor]:
    """Allocates the model on the GPU (else the CPU) and returns what one iteration runs; that returns the loss.

    Raises ValueError for parameters that make no sense on any machine.
    """
    return _lm_step.iteration(_setting(params), annotate)


def _setting(params: Mapping[str, Any]) -> Setting:
    return _lm_setting.setting(params, PARAMS)


def flops(params: Mapping[str, Any]) -> float:
    """Floating-point operations of the matrix products; all else is not counted.

    Forward: 2 x tokens x elements of the matrices (the output layer's too, the embedding's not), and for attention
    4 x tokens x visible keys x d_model in each layer. ``plain`` computes the whole square and masks it afterwards, so
    every key counts; of ``sdpa`` half the context counts, since its kernels skip masked blocks. The backward pass is
    twice the forward: what SDPA's kernels compute again in it is not counted. AdamW has no matrix product.
    """
    s = _setting(params)
    visible_keys = s.context if s.attention == "plain" else s.context / 2
    attention = 4 * s.layers * s.tokens * visible_keys * s.d_model
    forward = 2 * s.tokens * (s.block_weights + s.d_model * s.vocab) + attention
    return forward * {"forward": 1, "backward": 2}.get(s.what, 3)


def phase_work(params: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """FLOPs and least bytes of attention's ranges in one forward pass, all layers together, by path of the range.

    Bytes: each operand read once and each result written once, in the precision of the case. What eager PyTorch does
    beside that (scaling, masking, autocast's conversions to fp32 and back) is traffic which the count leaves out. The
    FLOPs of a softmax are 5 an element: maximum, difference, exponential, sum, quotient.
    """
    s = _setting(params)
    if s.attention != "plain" or s.compile or s.what == "backward":
        return {}
    product = 2.0 * s.layers * s.tokens * s.context * s.d_model
    element = s.layers * s.dtype.itemsize
    scores, rows = s.score_elements, s.tokens * s.d_model
    return {
        "forward > attention scores": {"flops": product, "bytes_moved": element * (2 * rows + scores)},
        "forward > softmax": {"flops": 5.0 * s.layers * scores, "bytes_moved": element * 2 * scores},
        "forward > final matmul": {"flops": product, "bytes_moved": element * (scores + 2 * rows)},
    }


def facts(params: Mapping[str, Any]) -> dict[str, tuple[float, str]]:
    return {"parameters": (float(_lm_model.parameter_count(_setting(params))), "1")}


def available(params: Mapping[str, Any]) -> str | None:
    """Why this case cannot run here and what to do about it, or None."""
    return _lm_room.lacking(_setting(params))


#: Tokens of the first sequence that are compared with the reference, whose memory this bounds.
_CHECKED_TOKENS = 1024


def check(params: Mapping[str, Any]) -> dict[str, float]:
    """The five measures of ``_errors`` of the logits, against the same weights in fp64 with attention by its formula.

    Of a fresh model, as it is before its first step. The reference takes the first 1024 tokens of the first sequence,
    which see no later ones, and converts one layer at a time. Infinite where the model gave a NaN or an infinity.
    """
    model = _lm_step.Model(_setting(params), nullcontext)
    with torch.no_grad():
        logits, _ = model.forward()
        expected = model.tokens[:1, :_CHECKED_TOKENS]
        hidden = _lm_model.later_keys(expected.shape[1], expected.device)
        for layer in model.layers:
            expected = _lm_model.by_formula(copy.deepcopy(layer), hidden).double()(expected)
        difference = _errors.Difference()
        difference.add(logits[:1, :_CHECKED_TOKENS], expected)
    return difference.measures()


def snapshot(params: Mapping[str, Any], folder: Path) -> Mapping[str, Mapping[str, tuple[float, str, int]]]:
    """With ``memory_snapshot: true``, the GPU memory of one iteration; ``memory.pickle`` in ``folder`` is its record.

    That file is for torch's viewer (pytorch.org/memory_viz). Returned are, by path of the range,
    ``allocated_at_start``, ``peak_allocated`` and ``allocated_at_end``, and by line of the source ``allocation:<rank>``
    and ``held:<rank>``, each with its unit and how often it was counted. Empty on a CPU, and where this torch has no
    such record.
    """
    s = _setting(params)
    needed = ("_record_memory_history", "_snapshot")  # not public, so they may go
    if not s.memory_snapshot or _lm_setting.device() == "cpu" or not all(hasattr(torch.cuda.memory, n) for n in needed):
        return {}
    return _lm_memory.record(s, folder / "memory.pickle")
