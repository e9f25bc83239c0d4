"""A decoder-only language model in plain PyTorch: a pass, forward and backward, or a training step.

``block: modern`` is the block of Llama: RoPE, RMSNorm, SwiGLU, no biases, a separate output layer. ``classic`` is
GPT-2's: learned positions, LayerNorm, a GELU MLP, biases, the output layer tied to the embedding. Neither has dropout.
The sizes small to xl are GPT-2's, 2.7B is GPT-3's. ``size: custom`` takes the dimensions from ``d_model``, ``d_ff``,
``layers`` and ``heads``, with those of small in place of 0; for other sizes all four stay 0.

Weights are fp32. bf16 and fp16 run the forward pass under autocast, as in mixed-precision training. fp16 also scales
the loss with a GradScaler: its kernels, and its wait for the GPU where AdamW is not fused, are part of the step. fp32
uses TF32 only where the process allows it; torch's default does not.

``what: forward`` computes the loss without gradients; ``backward`` only the gradients, on a graph that is made once
and kept. ``forward_backward`` does both and frees the gradients before the next forward pass; ``train_step`` adds
AdamW (``adamw``: which implementation of torch), without clipping or a schedule. The passes are in the ranges
``forward`` (with ``loss`` inside), ``backward`` and ``optimizer``. ``attention: plain`` has the ranges ``attention
scores``, ``softmax`` and ``final matmul`` in each layer; ``sdpa`` is one call. ``compile: true`` compiles the model
without loss and optimizer, and without ranges inside the model, because a range breaks the graph.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from profpipe.ranges import annotate
from profpipe.workload_lib import accuracy, lm_model
from profpipe.workload_lib.lm_model import LmConfig

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
    "record_dtypes": False,
    "seed": 0,
}

BITS = ("parameter_bits", "linear_bits", "norm_bits", "logits_bits", "loss_bits", "gradient_bits")


def build(params: Mapping[str, Any]) -> Callable[[], Tensor]:
    """Allocate the model on the GPU (else the CPU) and return the callable that runs one iteration.

    The callable returns the loss. Raises ValueError for parameters that are invalid on every machine.
    """
    return lm_model.iteration(parse_params(params), annotate)


def parse_params(params: Mapping[str, Any]) -> LmConfig:
    return lm_model.lm_config(params, PARAMS)


def flops(params: Mapping[str, Any]) -> float:
    """Return the FLOPs of the matrix products only.

    Forward: 2 x tokens x elements of the matrices (with the output layer, without the embedding), and for attention
    4 x tokens x visible keys x d_model in each layer. ``plain`` computes the whole square and masks it afterwards, so
    every key counts; for ``sdpa`` half the context counts, because its kernels skip masked blocks. The backward pass
    is twice the forward, without what SDPA's kernels recompute. AdamW has no matrix product.
    """
    config = parse_params(params)
    visible_keys = config.context if config.attention == "plain" else config.context / 2
    attention = 4 * config.layers * config.tokens * visible_keys * config.d_model
    forward = 2 * config.tokens * (config.block_weights + config.d_model * config.vocab) + attention
    return forward * {"forward": 1, "backward": 2}.get(config.what, 3)


def phase_work(params: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Return FLOPs and least bytes of attention's ranges in one forward pass, over all layers, by path of the range.

    Bytes: each operand is read once and each result written once, in the precision of the case. The count excludes
    other traffic of eager PyTorch (scaling, masking, autocast's conversions to fp32 and back). The FLOPs of a softmax
    are 5 per element: maximum, difference, exponential, sum, quotient.
    """
    config = parse_params(params)
    if config.attention != "plain" or config.compile or config.what == "backward":
        return {}
    product = 2.0 * config.layers * config.tokens * config.context * config.d_model
    element = config.layers * config.dtype.itemsize
    scores, rows = config.score_elements, config.tokens * config.d_model
    return {
        "forward > attention scores": {"flops": product, "bytes_moved": element * (2 * rows + scores)},
        "forward > softmax": {"flops": 5.0 * config.layers * scores, "bytes_moved": element * 2 * scores},
        "forward > final matmul": {"flops": product, "bytes_moved": element * (scores + 2 * rows)},
    }


def facts(params: Mapping[str, Any]) -> dict[str, tuple[float, str]]:
    """Return the dimensions and the number of parameters.

    With ``record_dtypes: true`` also the bits of a number by kind of tensor.
    """
    config = parse_params(params)
    metrics = {name: (float(getattr(config, name)), "") for name in lm_model.DIMENSIONS}
    metrics["parameters"] = (float(lm_model.parameter_count(config)), "1")
    if config.record_dtypes:
        bits = lm_model.bits(config)
        metrics |= {name: (float(bits[name.removesuffix("_bits")]), "1") for name in BITS}
    return metrics


def available(params: Mapping[str, Any]) -> str | None:
    """Return why the case cannot run here and the remedy, or None."""
    return lm_model.missing_requirement(parse_params(params))


#: Tokens of the first sequence that are compared with the reference, which limits the memory of the reference.
_CHECKED_TOKENS = 1024


def check(params: Mapping[str, Any]) -> dict[str, float]:
    """Compare the logits with those of the same weights in fp64 and attention by its formula.

    The model is new, before its first step. The reference takes the first 1024 tokens of the first sequence, which see
    no later tokens, and converts one layer at a time. Errors are infinite where a logit is NaN or infinite.
    """
    model = lm_model.Model(parse_params(params), nullcontext)
    with torch.no_grad():
        logits, _ = model.forward()
        expected = model.tokens[:1, :_CHECKED_TOKENS]
        hidden = lm_model.later_keys(expected.shape[1], expected.device)
        for layer in model.layers:
            exact = copy.deepcopy(layer)
            for module in exact.modules():
                if isinstance(module, lm_model.Attention):
                    module.hidden = hidden  # attention by its formula
            expected = exact.double()(expected)
        difference = accuracy.Difference()
        difference.add(logits[:1, :_CHECKED_TOKENS], expected)
    return difference.measures()
