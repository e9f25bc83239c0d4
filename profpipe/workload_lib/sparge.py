"""SpargeAttn (arXiv 2502.18137): sparse attention that skips blocks of keys with small expected weights.

``topk`` (the default) keeps that share of the key blocks of each query block; ``cdfthreshd`` keeps the blocks that
together have that share of the pooled softmax. Both also keep blocks whose tokens are less similar (mean cosine) than
``simthreshd1``, and ``pvthreshd`` skips small products with V. QK is quantised to int8, PV to fp16
(``spas_sage_attn_*``) or fp8 (``spas_sage2_attn_*``; on sm_80 and sm_86 these run the fp16 kernel).
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from profpipe.workload_lib.attention_config import AttentionConfig, Forward

#: Prefixes of the function names by the precision of PV (version 0.1.0).
_PREFIXES = {"fp16": "spas_sage_attn_meansim", "fp8": "spas_sage2_attn_meansim"}


def sparge(values: str) -> Callable[[AttentionConfig], Forward]:
    """Return the function that prepares calls with PV in ``values``: fp16 or fp8."""

    return functools.partial(_bound_function, values)


def sparsity(values: str) -> Callable[[AttentionConfig], Callable[[Tensor, Tensor, Tensor], float]]:
    """Return the function that prepares calls that return the share of skipped blocks of QK.

    The library counts the share: it excludes what ``pvthreshd`` skips, and for a causal mask it estimates the visible
    blocks from their number in a row.
    """

    def prepare(config: AttentionConfig) -> Callable[[Tensor, Tensor, Tensor], float]:
        function = _bound_function(values, config)
        return lambda q, k, v: float(function(q, k, v, return_sparsity=True)[1])

    return prepare


def _bound_function(values: str, config: AttentionConfig) -> Callable[..., Any]:
    """Return the library's function with the options of ``config``."""
    ending = "_cuda" if config.cdfthreshd is not None else "_topk_cuda"
    function = getattr(importlib.import_module("spas_sage_attn"), _PREFIXES[values] + ending)
    chosen = {name: getattr(config, name) for name in ("simthreshd1", "cdfthreshd", "pvthreshd", "topk")}
    given = {name: value for name, value in chosen.items() if value is not None}
    return functools.partial(function, tensor_layout="HND", is_causal=config.has_mask, **given)
