"""What attention is computed of: independent normal numbers, or tokens that resemble their neighbours.

``local`` is made for implementations that look for structure. In normal numbers there is none: no block of keys weighs
less than another, and no two tokens are alike. The tokens of a video are: those next to each other in time, height and
width hardly differ, and a query attends to a region around its own place (SpargeAttn, arXiv 2502.18137; Sparse
VideoGen, arXiv 2502.01776). Here tokens stand on a cube of frames, rows and columns, the columns following one another
in the sequence. Each head has a smooth random field on it: the cosines of random Fourier features (Rahimi and Recht,
2007), drawn so that the fields at two places have a dot product of head_dim x exp(-distance^2 / (2 length^2)) on
average. q and k of a head are the same field, v another, each with a little noise of its own. So a score is about
sqrt(head_dim) x exp(...) at most, and falls off with the distance. The heads' lengths go from a whole side of the cube
to a quarter of it: some heads attend to a wide region, some to a narrow one. Every element has variance 1, as with
normal numbers.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from profpipe import load

if TYPE_CHECKING:
    import _setting
    from _setting import Setting
else:
    _setting = load.module(Path(__file__).with_name("_setting.py"))

KINDS = ("normal", "local")

#: Standard deviation of what is added to the fields, before all is scaled back to variance 1.
_NOISE = 0.25


def draw(setting: Setting, kind: str, seed: int) -> list[Tensor]:
    """q, k, v and, for the backward pass, the upstream gradient: ``(batch, length, heads, head_dim)``.

    The numbers follow from the seed and the shapes alone, so every implementation gets the same.
    """
    generator = torch.Generator(_setting.device()).manual_seed(seed)
    shapes = [setting.q_shape, setting.kv_shape, setting.kv_shape]
    tensors = _local(setting, generator) if kind == "local" else [_normal(setting, s, generator) for s in shapes]
    return tensors + [_normal(setting, setting.q_shape, generator)] * setting.backward


def _normal(setting: Setting, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator, device=generator.device, dtype=_setting.DTYPES[setting.dtype])


def _local(setting: Setting, generator: torch.Generator) -> list[Tensor]:
    side = max(1, round(setting.seqlen ** (1 / 3)))
    index = torch.arange(setting.seqlen, device=generator.device)
    places = torch.stack([index // side**2, index // side % side, index % side], dim=1).float()
    lengths = side * 0.25 ** torch.linspace(0, 1, setting.kv_heads, device=generator.device)
    keys = _field(setting, places, lengths, generator)
    values = _field(setting, places, lengths, generator)
    queries = keys[:, -setting.queries :].repeat_interleave(setting.group, dim=2)
    return [_noisy(field, generator).to(_setting.DTYPES[setting.dtype]) for field in (queries, keys, values)]


def _field(setting: Setting, places: Tensor, lengths: Tensor, generator: torch.Generator) -> Tensor:
    """``(batch, seqlen, kv_heads, head_dim)`` of variance 1, smooth over ``lengths``; items differ by their phases."""
    device, features = generator.device, (setting.kv_heads, setting.head_dim)
    frequencies = torch.randn((3, *features), generator=generator, device=device) / lengths[:, None]
    phases = torch.rand((setting.batch, 1, *features), generator=generator, device=device) * (2 * math.pi)
    return (torch.einsum("sp,phd->shd", places, frequencies) + phases).cos_().mul_(math.sqrt(2))


def _noisy(field: Tensor, generator: torch.Generator) -> Tensor:
    noise = torch.randn(field.shape, generator=generator, device=field.device)
    return (field + _NOISE * noise) / math.sqrt(1 + _NOISE**2)
