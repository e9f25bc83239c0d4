"""Sliding tile attention (arXiv 2502.04507): a token sees the tiles of a video around its own, by FastVideo's kernel.

A tile is 6 x 8 x 8 tokens that follow one another in the sequence. The window is 3 x 3 x 3 tiles for each head, as in
the kernel's documentation, and lies inside the video also for tiles at its edge, so that all see equally many. The
kernel is written for the videos of single models (fastvideo-kernel 0.2 and 0.3): of those without a prompt in the
sequence these two.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from _setting import Forward, Setting

TILE = (6, 8, 8)
WINDOW = (3, 3, 3)

#: By the number of tokens: frames x rows x columns of Wan 2.1 (69 x 768 x 1280 pixels) and StepVideo (204 x 768 x 768).
VIDEOS = {69120: (18, 48, 80), 82944: (36, 48, 48)}


def sta(setting: Setting) -> Forward:
    call = importlib.import_module("fastvideo_kernel").sliding_tile_attention
    windows, shape = [WINDOW] * setting.heads, "x".join(map(str, VIDEOS[setting.seqlen]))
    return lambda q, k, v: call(q, k, v, windows, 0, False, shape)


def sparsity(setting: Setting) -> Callable[[Tensor, Tensor, Tensor], float]:
    """The share of the tiles outside of the window, whatever the inputs."""
    tiles = math.prod(side // of_tile for side, of_tile in zip(VIDEOS[setting.seqlen], TILE, strict=True))
    return lambda q, k, v: 1 - math.prod(WINDOW) / tiles
