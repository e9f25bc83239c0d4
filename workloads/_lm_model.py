"""The decoder of the language model: embedding, blocks and output layer, in plain PyTorch."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

if TYPE_CHECKING:
    from _lm_setting import Setting

#: Opens a range around a block: ``annotate``, or ``nullcontext`` for none.
Phase = Callable[[str], AbstractContextManager[object]]


class Embedding(nn.Module):
    """Token ids to vectors; the classic one adds a learned vector for each position."""

    def __init__(self, s: Setting) -> None:
        super().__init__()
        self.tokens = nn.Embedding(s.vocab, s.d_model)
        self.positions = None if s.modern else nn.Embedding(s.context, s.d_model)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        return x if self.positions is None else x + self.positions.weight[: ids.shape[1]]


class RMSNorm(nn.Module):
    """Root-mean-square normalisation, written out: torch has a function for it from 2.4 on only."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * self.weight


class Attention(nn.Module):
    """Causal self-attention with query, key and value from one product."""

    def __init__(self, s: Setting, phase: Phase, rotation: Tensor | None, hidden: Tensor | None) -> None:
        super().__init__()
        self.heads, self.phase = s.heads, phase
        self.qkv = nn.Linear(s.d_model, 3 * s.d_model, bias=not s.modern)
        self.out = nn.Linear(s.d_model, s.d_model, bias=not s.modern)
        self.register_buffer("rotation", rotation, persistent=False)
        self.register_buffer("hidden", hidden, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind()
        if self.rotation is not None:
            cos, sin = self.rotation[:, : x.shape[1]].unbind()
            q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        if self.hidden is None:
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            mixed = self.plain(q, k, v, self.hidden[: x.shape[1], : x.shape[1]])
        return self.out(mixed.transpose(1, 2).flatten(2))

    def plain(self, q: Tensor, k: Tensor, v: Tensor, hidden: Tensor) -> Tensor:
        """Attention as its formula is written; ``hidden`` is true where a query must not see a key."""
        with self.phase("attention scores"):
            scores = q @ k.mT / math.sqrt(q.shape[-1])
            scores = scores.masked_fill(hidden, -math.inf)
        with self.phase("softmax"):
            weights = scores.softmax(-1)
        with self.phase("final matmul"):
            return weights @ v


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RoPE: the pair (i, i + half) turned by position times frequency i. In fp32 under autocast, as in Llama."""
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), -1).type_as(x)


def rotation(s: Setting) -> Tensor:
    """Cosines and sines of RoPE with base 10000: (2, context, head_dim / 2), fp32."""
    half = s.d_model // s.heads // 2
    frequencies = 10000.0 ** -(torch.arange(half, dtype=torch.float64) / half)
    angles = torch.arange(s.context, dtype=torch.float64)[:, None] * frequencies
    return torch.stack((angles.cos(), angles.sin())).float()


class SwiGLU(nn.Module):
    def __init__(self, s: Setting) -> None:
        super().__init__()
        self.gate = nn.Linear(s.d_model, s.d_ff, bias=False)
        self.up = nn.Linear(s.d_model, s.d_ff, bias=False)
        self.down = nn.Linear(s.d_ff, s.d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(functional.silu(self.gate(x)) * self.up(x))


def _gelu_mlp(s: Setting) -> nn.Module:
    return nn.Sequential(nn.Linear(s.d_model, s.d_ff), nn.GELU("tanh"), nn.Linear(s.d_ff, s.d_model))


def _norm(s: Setting) -> nn.Module:
    return RMSNorm(s.d_model) if s.modern else nn.LayerNorm(s.d_model)


class Block(nn.Module):
    """One layer: attention and MLP, each normalised before and added to what went in."""

    def __init__(self, s: Setting, attention: Attention) -> None:
        super().__init__()
        self.attention_norm, self.attention = _norm(s), attention
        self.mlp_norm, self.mlp = _norm(s), SwiGLU(s) if s.modern else _gelu_mlp(s)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


def decoder(s: Setting, phase: Phase) -> nn.Sequential:
    """Embedding, blocks and output layer on torch's default device, with torch's own initial weights."""
    turns = rotation(s) if s.modern else None
    # One mask for all layers: each layer's own would be as large as its scores of one head.
    hidden = later_keys(s.context) if s.attention == "plain" else None
    blocks = [Block(s, Attention(s, phase, turns, hidden)) for _ in range(s.layers)]
    embedding, output = Embedding(s), nn.Linear(s.d_model, s.vocab, bias=False)
    if not s.modern:
        output.weight = embedding.tokens.weight
    return nn.Sequential(embedding, *blocks, nn.Sequential(_norm(s), output))


def later_keys(tokens: int, device: torch.device | None = None) -> Tensor:
    """(tokens, tokens), true where a query must not see a key; on torch's default device, if no other is given."""
    return torch.ones(tokens, tokens, dtype=torch.bool, device=device).triu(1)


def by_formula(layer: nn.Module, hidden: Tensor) -> nn.Module:
    """``layer`` with plain attention, whatever it had."""
    for module in layer.modules():
        if isinstance(module, Attention):
            module.hidden = hidden
    return layer


def initialise(model: nn.Module, generator: torch.Generator) -> None:
    """GPT-2's initial weights (normal, 0.02) in both blocks; biases zero, norms one."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.02, generator=generator)
            elif name.endswith("bias"):
                parameter.zero_()


@functools.lru_cache
def parameter_count(s: Setting) -> int:
    """Elements of all parameters, counted on a model that takes no memory."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in decoder(s, nullcontext).parameters())
