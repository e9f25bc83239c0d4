"""The precision of the tensors of a training step of the language model, by kind."""

from __future__ import annotations

import functools
from contextlib import nullcontext
from dataclasses import replace

import torch
from torch import nn

from profpipe.workload_lib import lm_model, lm_step
from profpipe.workload_lib.lm_config import SIZES, LmConfig

#: The modules whose outputs are looked at.
_KINDS = {"linear": (nn.Linear,), "norm": (nn.LayerNorm, lm_model.RMSNorm)}


@functools.lru_cache(maxsize=16)
def bits(config: LmConfig) -> dict[str, int]:
    """Return the bits of a number of the parameters, linear layers, norms, logits, loss and gradients.

    Of linear layers and norms it is the output, of several the widest. A tiny model of the same block, attention and
    precision makes one forward and one backward pass: dtypes do not depend on the size.
    """
    width, inner, layers, heads = SIZES["tiny"]
    small = replace(config, d_model=width, d_ff=inner, layers=layers, heads=heads, context=16, batch=1, vocab=64)
    model = lm_step.Model(replace(small, compile=False), nullcontext)
    found: dict[str, set[torch.dtype]] = {name: set() for name in ("parameter", *_KINDS, "logits", "loss", "gradient")}
    for module in model.layers.modules():
        for kind, types in _KINDS.items():
            if isinstance(module, types):
                module.register_forward_hook(lambda _, given, out, own=found[kind]: own.add(out.dtype))
    logits, loss = model.forward()
    loss.backward()
    found["logits"], found["loss"] = {logits.dtype}, {loss.dtype}
    for parameter in model.layers.parameters():
        found["parameter"].add(parameter.dtype)
        if parameter.grad is not None:
            found["gradient"].add(parameter.grad.dtype)
    return {kind: max(torch.finfo(dtype).bits for dtype in dtypes) for kind, dtypes in found.items()}
