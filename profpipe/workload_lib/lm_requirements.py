"""Finds why a case of the language model cannot run here, and the remedy."""

from __future__ import annotations

import torch

from profpipe.workload_lib import attention_config, compilation, free_memory, lm_model
from profpipe.workload_lib.lm_config import LmConfig


def missing_requirement(config: LmConfig) -> str | None:
    """Return the first reason, or None."""
    on_gpu = attention_config.device() == "cuda"
    if config.size == "2.7B" and not on_gpu:
        return "2.7B needs a GPU, and torch sees none. Run it where there is one, or use a smaller size here."
    if config.precision == "bf16" and on_gpu and torch.version.cuda is not None:
        capability = torch.cuda.get_device_capability()
        if capability < (8, 0):
            return "bf16 needs sm_80 or later; this GPU is sm_{}{}. Use precision: fp16 or fp32.".format(*capability)
    if config.compile and config.what == "backward":
        # With torch 2.13 on a CPU, gradients were wrong from the first pass on.
        return "what: backward keeps its graph, and a compiled pass overwrites its tensors. Use forward_backward."
    return compilation.missing_compiler(config.compile, "compile: false") or missing_memory(config)


def missing_memory(config: LmConfig) -> str | None:
    remedy = f"Use a smaller size, batch or context{', or attention: sdpa' if config.attention == 'plain' else ''}."
    return free_memory.shortage(
        least_bytes(config), attention_config.device(), f"{config.size} needs at least {{}} for {config.what}", remedy
    )


def least_bytes(config: LmConfig) -> int:
    """Return a lower bound of the memory that the case needs, so that every case that fits is tried.

    Weights, gradients and AdamW's two states take 4 bytes each per parameter. For the backward pass eager PyTorch
    keeps at least the inputs of every matrix product (plain attention: also its weights) and the logits, in the case's
    precision; compiled code may recompute them.
    """
    element = config.dtype.itemsize
    weights = 4 * lm_model.parameter_count(config)
    scores = config.score_elements * element if config.attention == "plain" else 0
    logits = config.tokens * config.vocab * element
    if config.what == "forward":
        return weights + max(0 if config.compile else 2 * scores, logits)
    per_token = (6 * config.d_model + (4 if config.modern else 2) * config.d_ff) * element
    kept = 0 if config.compile else config.layers * (config.tokens * per_token + scores) + logits
    states = 2 * weights if config.what == "train_step" else 0
    return weights + states + max(kept, weights)
