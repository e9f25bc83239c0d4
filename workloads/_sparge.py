"""SpargeAttn (arXiv 2502.18137): attention that leaves out blocks of keys that it expects to weigh nothing.

``topk`` keeps that share of the key blocks of each query block, those with the highest pooled scores; its authors
recommend this way, and it is taken unless ``cdfthreshd`` is given. ``cdfthreshd`` keeps as many as together have that
share of the pooled softmax. Either way blocks are kept whose own tokens are less alike (mean cosine) than
``simthreshd1``, and ``pvthreshd`` skips products with V that are too small to show.

Both products are quantised as in SageAttention: QK in int8, PV in fp16 (``spas_sage_attn_*``) or fp8
(``spas_sage2_attn_*``; on sm_80 and sm_86 these run the fp16 kernel).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from _setting import Forward, Setting

#: By the precision of the product with V, what the names of its functions begin with (version 0.1.0).
_PREFIXES = {"fp16": "spas_sage_attn_meansim", "fp8": "spas_sage2_attn_meansim"}


def sparge(values: str) -> Callable[[Setting], Forward]:
    """What prepares calls with the product with V in ``values``: fp16 or fp8."""

    def prepare(setting: Setting) -> Forward:
        function, options = _function(values, setting), _options(setting)
        return lambda q, k, v: function(q, k, v, **options)

    return prepare


def sparsity(values: str) -> Callable[[Setting], Callable[[Tensor, Tensor, Tensor], float]]:
    """What prepares calls that give the share of blocks left out of QK instead of the output.

    As the library counts it: what ``pvthreshd`` skips beyond that is not in it, and for a causal mask the blocks that
    could be seen are estimated from their number in a row.
    """

    def prepare(setting: Setting) -> Callable[[Tensor, Tensor, Tensor], float]:
        function, options = _function(values, setting), _options(setting)
        return lambda q, k, v: float(function(q, k, v, return_sparsity=True, **options)[1])

    return prepare


def _function(values: str, setting: Setting) -> Callable[..., Any]:
    ending = "_cuda" if setting.cdfthreshd is not None else "_topk_cuda"
    return getattr(importlib.import_module("spas_sage_attn"), _PREFIXES[values] + ending)


def _options(setting: Setting) -> dict[str, Any]:
    chosen = {name: getattr(setting, name) for name in ("simthreshd1", "cdfthreshd", "pvthreshd", "topk")}
    given = {name: value for name, value in chosen.items() if value is not None}
    return {"tensor_layout": "HND", "is_causal": setting.masked, **given}
