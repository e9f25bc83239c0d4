"""Sparse attention from packages: SpargeAttn, and FastVideo's sliding tile attention.

SpargeAttn (arXiv 2502.18137) skips blocks of keys with small expected weights. ``topk`` (the default) keeps that share
of the key blocks of each query block; ``cdfthreshd`` keeps the blocks that together have that share of the pooled
softmax. Both also keep blocks whose tokens are less similar (mean cosine) than ``simthreshd1``, and ``pvthreshd`` skips
small products with V. QK is quantised to int8, PV to fp16 (``spas_sage_attn_*``) or fp8 (``spas_sage2_attn_*``; on
sm_80 and sm_86 these run the fp16 kernel).

In sliding tile attention (arXiv 2502.04507) a token sees the tiles of a video around its own. A tile is 6 x 8 x 8
tokens, consecutive in the sequence. The window is 3 x 3 x 3 tiles for each head, as in the kernel's documentation, and
stays inside the video for tiles at its edge, so that every tile sees equally many. The kernel supports the videos of
certain models (fastvideo-kernel 0.2 and 0.3); these two have no prompt in the sequence.
"""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable
from typing import Any

from torch import Tensor

from profpipe.workload_lib.attention_config import AttentionConfig, Forward

#: Prefixes of SpargeAttn's function names by the precision of PV (version 0.1.0).
_PREFIXES = {"fp16": "spas_sage_attn_meansim", "fp8": "spas_sage2_attn_meansim"}

TILE, WINDOW = (6, 8, 8), (3, 3, 3)

#: Frames x rows x columns by number of tokens, for Wan 2.1 (69 x 768 x 1280 pixels) and StepVideo (204 x 768 x 768).
VIDEOS = {69120: (18, 48, 80), 82944: (36, 48, 48)}


def sparge(values: str, config: AttentionConfig) -> Callable[..., Any]:
    """Return SpargeAttn's function with PV in ``values`` (fp16 or fp8) and the options of ``config``."""
    ending = "_cuda" if config.cdfthreshd is not None else "_topk_cuda"
    function = getattr(importlib.import_module("spas_sage_attn"), _PREFIXES[values] + ending)
    chosen = {name: getattr(config, name) for name in ("simthreshd1", "cdfthreshd", "pvthreshd", "topk")}
    given = {name: value for name, value in chosen.items() if value is not None}
    return functools.partial(function, tensor_layout="HND", is_causal=config.has_mask, **given)


def sparge_sparsity(values: str, config: AttentionConfig) -> Callable[[Tensor, Tensor, Tensor], float]:
    """Return the function that returns the share of skipped blocks of QK.

    The library counts the share: it excludes what ``pvthreshd`` skips, and for a causal mask it estimates the visible
    blocks from their number in a row.
    """
    function = sparge(values, config)
    return lambda q, k, v: float(function(q, k, v, return_sparsity=True)[1])


def sta(config: AttentionConfig) -> Forward:
    call = importlib.import_module("fastvideo_kernel").sliding_tile_attention
    windows, shape = [WINDOW] * config.heads, "x".join(map(str, VIDEOS[config.seqlen]))
    return lambda q, k, v: call(q, k, v, windows, 0, False, shape)


def sta_sparsity(config: AttentionConfig) -> Callable[[Tensor, Tensor, Tensor], float]:
    """Return the share of the tiles outside the window, which does not depend on the inputs."""
    tiles = math.prod(side // of_tile for side, of_tile in zip(VIDEOS[config.seqlen], TILE, strict=True))
    return lambda q, k, v: 1 - math.prod(WINDOW) / tiles
