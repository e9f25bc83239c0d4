"""The inputs of attention: ``normal`` (independent normal numbers), or ``local`` (tokens that resemble neighbours).

``local`` is for implementations that exploit structure, as the tokens of a video have it (SpargeAttn, arXiv
2502.18137). The tokens lie on a cube of frames, rows and columns. Each head has a smooth random field on the cube
(random Fourier features, Rahimi and Recht, 2007): two places have a dot product of head_dim x exp(-distance^2 / (2
length^2)) on average. q and k of a head are the same field and v is another, each with noise. The lengths of the heads
range from a side of the cube to a quarter of it. Every element has variance 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from profpipe.workload_lib import attention_config
from profpipe.workload_lib.attention_config import AttentionConfig

KINDS = ("normal", "local")

#: Standard deviation of the noise on the fields, before scaling back to variance 1.
_NOISE = 0.25


def draw(config: AttentionConfig, kind: str, seed: int) -> list[Tensor]:
    """Draw q, k, v and, for the backward pass, the upstream gradient: ``(batch, length, heads, head_dim)``.

    The numbers depend on the seed and the shapes only, so every implementation gets the same.
    """
    generator = torch.Generator(attention_config.device()).manual_seed(seed)
    upstream = [config.q_shape] * config.needs_grad
    if kind == "local":
        return _local(config, generator) + normal(upstream, config.dtype, generator)
    return normal([config.q_shape, config.kv_shape, config.kv_shape, *upstream], config.dtype, generator)


def normal(shapes: Iterable[tuple[int, ...]], dtype: str, seed: int | torch.Generator) -> list[Tensor]:
    """Draw a tensor of independent normal numbers for each of ``shapes``."""
    generator = torch.Generator(attention_config.device()).manual_seed(seed) if isinstance(seed, int) else seed
    options: dict[str, Any] = {"device": generator.device, "dtype": attention_config.DTYPES[dtype]}
    return [torch.randn(shape, generator=generator, **options) for shape in shapes]


def _local(config: AttentionConfig, generator: torch.Generator) -> list[Tensor]:
    side = max(1, round(config.seqlen ** (1 / 3)))
    index = torch.arange(config.seqlen, device=generator.device)
    places = torch.stack([index // side**2, index // side % side, index % side], dim=1).float()
    lengths = side * 0.25 ** torch.linspace(0, 1, config.kv_heads, device=generator.device)
    keys = _field(config, places, lengths, generator)
    values = _field(config, places, lengths, generator)
    queries = keys[:, -config.queries :].repeat_interleave(config.group_size, dim=2)
    noisy = []
    for field in (queries, keys, values):
        noise = torch.randn(field.shape, generator=generator, device=field.device)
        noisy.append(((field + _NOISE * noise) / math.sqrt(1 + _NOISE**2)).to(attention_config.DTYPES[config.dtype]))
    return noisy


def _field(config: AttentionConfig, places: Tensor, lengths: Tensor, generator: torch.Generator) -> Tensor:
    """Draw a field ``(batch, seqlen, kv_heads, head_dim)``, smooth over ``lengths``; items differ by their phases."""
    device, features = generator.device, (config.kv_heads, config.head_dim)
    frequencies = torch.randn((3, *features), generator=generator, device=device) / lengths[:, None]
    phases = torch.rand((config.batch, 1, *features), generator=generator, device=device) * (2 * math.pi)
    return (torch.einsum("sp,phd->shd", places, frequencies) + phases).cos_().mul_(math.sqrt(2))
