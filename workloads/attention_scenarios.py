"""Attention in the shapes of known models: ``scenario`` names one; the other parameters are those of ``attention``.

The shapes are those of one layer. ``PUBLISHED`` are the scenarios of a published comparison of implementations, in its
shapes and batch sizes. Of the others, contexts are those of the training of the models; the batch sizes are ours.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from profpipe.ranges import annotate
from profpipe.workload_lib import attention, implementations
from profpipe.workload_lib.attention_config import AttentionConfig
from profpipe.workload_lib.parameters import add_defaults, check_choice

PARAMS = {"impl": "sdpa_flash", "scenario": "gpt2-small", "dtype": "bf16", "mode": "fwd", "seed": 0}

AXES = ("batch", "seqlen", "queries", "heads", "kv_heads", "head_dim", "causal")
PUBLISHED = {
    # GPT-2 of 124M parameters (Radford et al. 2019): width 768, 12 heads, context 1024.
    "gpt2-small": (8, 1024, 1024, 12, 12, 64, True),
    "gpt3-large": (2, 2048, 2048, 96, 96, 128, True),
    "bert-base-16": (16, 512, 512, 12, 12, 64, False),
    "bert-large-8": (8, 512, 512, 16, 16, 64, False),
    "long-8k": (1, 8192, 8192, 8, 8, 64, False),
    "long-16k": (1, 16384, 16384, 8, 8, 64, False),
    # Without gradients: in mode fwd.
    "inference-32": (32, 512, 512, 8, 8, 64, False),
}
SCENARIOS = PUBLISHED | {
    "tiny": (1, 64, 64, 4, 2, 16, True),
    # GPT-3 of 175B (arXiv 2005.14165, table 2.1): 96 heads of 128, context 2048.
    "gpt3": (1, 2048, 2048, 96, 96, 128, True),
    # BERT (arXiv 1810.04805): 12 heads at width 768, 16 at 1024, sequences of 512.
    "bert-base": (32, 512, 512, 12, 12, 64, False),
    "bert-large": (32, 512, 512, 16, 16, 64, False),
    # Llama 3 8B (arXiv 2407.21783, table 3): width 4096, 32 heads that share 8 key/value heads; 8192 tokens first.
    "context-8k": (1, 8192, 8192, 32, 8, 128, True),
    "context-16k": (1, 16384, 16384, 32, 8, 128, True),
    # The same model with 64 requests: the prefill of their prompts, and the decoding step of each.
    "batch-inference": (64, 512, 512, 32, 8, 128, True),
    "decode": (64, 8192, 1, 32, 8, 128, True),
}


def build(params: Mapping[str, Any]) -> Callable[[], object]:
    """Allocate the inputs of the scenario and return the callable that runs one iteration."""
    return attention.iteration(parse_params(params), annotate)


def flops(params: Mapping[str, Any]) -> float | dict[str, float]:
    """Return the operations of the two matrix products, counted as in ``attention``."""
    case = parse_params(params)
    return implementations.flops_by_dtype(case, attention.dense_flops(case))


def bytes_moved(params: Mapping[str, Any]) -> float:
    """Return the bytes that a call must read and write at least, counted as in ``attention``."""
    return attention.bytes_moved(parse_params(params))


def expects(params: Mapping[str, Any]) -> str:
    """Return the kernel family that a trace must contain; ``a|b``: any of them; empty: none."""
    return implementations.expected_family(parse_params(params))


def available(params: Mapping[str, Any]) -> str | None:
    """Return why the case cannot run here and the remedy, or None."""
    reason = implementations.unavailable_reason(parse_params(params))
    # The reason names parameters of attention.
    named = [axis for axis in AXES if reason and re.search(rf"\b{axis}\b", reason)]
    return f"{reason} Here the scenario sets {', '.join(named)}." if named else reason


def check(params: Mapping[str, Any]) -> dict[str, float]:
    """Return the differences from attention in fp32 for the same rounded inputs."""
    return attention.differences(parse_params(params))


def facts(params: Mapping[str, Any]) -> dict[str, tuple[float, str]]:
    """Return the shape as numbers, and the facts of attention."""
    case = parse_params(params)
    return {axis: (float(getattr(case, axis)), "1") for axis in AXES} | attention.facts(case)


def parse_params(params: Mapping[str, Any]) -> AttentionConfig:
    """Return the case of ``params`` with defaults. Raises ValueError for a wrong value."""
    values = add_defaults(params, PARAMS)
    scenario = values.pop("scenario")
    check_choice("scenario", scenario, SCENARIOS)
    return attention.case_from({**values, **dict(zip(AXES, SCENARIOS[scenario], strict=True))})
