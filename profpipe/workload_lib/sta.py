"""Sliding tile attention (arXiv 2502.04507) by FastVideo's kernel: a token sees the tiles of a video around its own.

A tile is 6 x 8 x 8 tokens, consecutive in the sequence. The window is 3 x 3 x 3 tiles for each head, as in the
kernel's documentation, and stays inside the video for tiles at its edge, so that every tile sees equally many. The
kernel supports the videos of certain models (fastvideo-kernel 0.2 and 0.3); these two have no prompt in the sequence.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from profpipe.workload_lib.attention_config import AttentionConfig, Forward

TILE = (6, 8, 8)
WINDOW = (3, 3, 3)

#: Frames x rows x columns by number of tokens, for Wan 2.1 (69 x 768 x 1280 pixels) and StepVideo (204 x 768 x 768).
VIDEOS = {69120: (18, 48, 80), 82944: (36, 48, 48)}


def sta(config: AttentionConfig) -> Forward:
    call = importlib.import_module("fastvideo_kernel").sliding_tile_attention
    windows, shape = [WINDOW] * config.heads, "x".join(map(str, VIDEOS[config.seqlen]))
    return lambda q, k, v: call(q, k, v, windows, 0, False, shape)


def sparsity(config: AttentionConfig) -> Callable[[Tensor, Tensor, Tensor], float]:
    """Return the share of the tiles outside the window, which does not depend on the inputs."""
    tiles = math.prod(side // of_tile for side, of_tile in zip(VIDEOS[config.seqlen], TILE, strict=True))
    return lambda q, k, v: 1 - math.prod(WINDOW) / tiles
