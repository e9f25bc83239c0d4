"""Attention in the shapes that known models give it: ``scenario`` names one, and the rest is the workload attention.

The shapes are those of one layer. Contexts are those the models were trained with; the batches are ours.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from profpipe import load
from profpipe.errors import did_you_mean

if TYPE_CHECKING:
    import _setting
    import attention
else:
    _setting = load.module(Path(__file__).with_name("_setting.py"))
    attention = load.module(Path(__file__).with_name("attention.py"))

PARAMS = {"impl": "sdpa_flash", "scenario": "gpt2-small", "dtype": "bf16", "mode": "fwd", "seed": 0}

AXES = ("batch", "seqlen", "queries", "heads", "kv_heads", "head_dim", "causal")
SCENARIOS = {
    "tiny": (1, 64, 64, 4, 2, 16, True),
    # GPT-2 of 124M parameters (Radford et al. 2019): width 768, 12 heads, context 1024.
    "gpt2-small": (8, 1024, 1024, 12, 12, 64, True),
    # GPT-3 of 175B (arXiv 2005.14165, table 2.1): 96 heads of 128, context 2048.
    "gpt3": (1, 2048, 2048, 96, 96, 128, True),
    # BERT (arXiv 1810.04805): 12 heads at width 768, 16 at 1024, sequences of 512.
    "bert-base": (32, 512, 512, 12, 12, 64, False),
    "bert-large": (32, 512, 512, 16, 16, 64, False),
    # Llama 3 8B (arXiv 2407.21783, table 3): width 4096, 32 heads that share 8 key/value heads; 8192 tokens first.
    "context-8k": (1, 8192, 8192, 32, 8, 128, True),
    "context-16k": (1, 16384, 16384, 32, 8, 128, True),
    # The same model serving 64 requests: their prompts at once, and later the next token of each.
    "batch-inference": (64, 512, 512, 32, 8, 128, True),
    "decode": (64, 8192, 1, 32, 8, 128, True),
}


def build(params: Mapping[str, Any]) -> Callable[[], object]:
    """As attention's, with the tensors of the scenario."""
    return attention.build(_shaped(params))


def flops(params: Mapping[str, Any]) -> float | dict[str, float]:
    return attention.flops(_shaped(params))


def bytes_moved(params: Mapping[str, Any]) -> int:
    return attention.bytes_moved(_shaped(params))


def expects(params: Mapping[str, Any]) -> str:
    return attention.expects(_shaped(params))


def available(params: Mapping[str, Any]) -> str | None:
    reason = attention.available(_shaped(params))
    # It is said of attention's own parameters.
    named = [axis for axis in AXES if reason and re.search(rf"\b{axis}\b", reason)]
    return f"{reason} Here the scenario sets {', '.join(named)}." if named else reason


def check(params: Mapping[str, Any]) -> dict[str, float]:
    return attention.check(_shaped(params))


def facts(params: Mapping[str, Any]) -> dict[str, tuple[float, str]]:
    """The shape in numbers, and what attention says of the case."""
    shaped = _shaped(params)
    return {axis: (float(shaped[axis]), "1") for axis in AXES} | attention.facts(shaped)


def _shaped(params: Mapping[str, Any]) -> dict[str, Any]:
    """Attention's parameters; ValueError names the wrong one and what is possible."""
    for name in params:
        if name not in PARAMS:
            raise ValueError(f"unknown parameter {name!r}. {did_you_mean(name, PARAMS)}")
    values = {**PARAMS, **params}
    scenario = values.pop("scenario")
    _setting.known("scenario", scenario, SCENARIOS)
    return {**values, **dict(zip(AXES, SCENARIOS[scenario], strict=True))}
