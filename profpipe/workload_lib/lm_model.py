"""The decoder of the language model: embedding, blocks and output layer, in plain PyTorch."""

from __future__ import annotations

import functools
import math
from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.nn import functional

from profpipe.workload_lib.lm_config import LmConfig
from profpipe.workload_lib.passes import Phase


class Embedding(nn.Module):
    """Token ids to vectors; classic adds a learned vector for each position."""

    def __init__(self, config: LmConfig) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocab, config.d_model)
        self.positions = None if config.modern else nn.Embedding(config.context, config.d_model)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        return x if self.positions is None else x + self.positions.weight[: ids.shape[1]]


class RMSNorm(nn.Module):
    """Root-mean-square normalisation as a formula: torch has a function for it only from 2.4 on."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * self.weight


class Attention(nn.Module):
    """Causal self-attention with query, key and value from one matrix product."""

    def __init__(self, config: LmConfig, phase: Phase, rotation: Tensor | None, hidden: Tensor | None) -> None:
        super().__init__()
        self.heads, self.phase = config.heads, phase
        self.qkv = nn.Linear(config.d_model, 3 * config.d_model, bias=not config.modern)
        self.out = nn.Linear(config.d_model, config.d_model, bias=not config.modern)
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
        """Compute attention by its formula; ``hidden`` is true where a query must not see a key."""
        with self.phase("attention scores"):
            scores = q @ k.mT / math.sqrt(q.shape[-1])
            scores = scores.masked_fill(hidden, -math.inf)
        with self.phase("softmax"):
            weights = scores.softmax(-1)
        with self.phase("final matmul"):
            return weights @ v


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply RoPE: rotate the pair (i, i + half) by position times frequency i; in fp32 under autocast, as in Llama."""
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), -1).type_as(x)


def rotation(config: LmConfig) -> Tensor:
    """Return cosines and sines of RoPE with base 10000: (2, context, head_dim / 2), fp32."""
    half = config.d_model // config.heads // 2
    frequencies = 10000.0 ** -(torch.arange(half, dtype=torch.float64) / half)
    angles = torch.arange(config.context, dtype=torch.float64)[:, None] * frequencies
    return torch.stack((angles.cos(), angles.sin())).float()


class SwiGLU(nn.Module):
    def __init__(self, config: LmConfig) -> None:
        super().__init__()
        self.gate = nn.Linear(config.d_model, config.d_ff, bias=False)
        self.up = nn.Linear(config.d_model, config.d_ff, bias=False)
        self.down = nn.Linear(config.d_ff, config.d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(functional.silu(self.gate(x)) * self.up(x))


def _gelu_mlp(config: LmConfig) -> nn.Module:
    return nn.Sequential(
        nn.Linear(config.d_model, config.d_ff), nn.GELU("tanh"), nn.Linear(config.d_ff, config.d_model)
    )


def _norm(config: LmConfig) -> nn.Module:
    return RMSNorm(config.d_model) if config.modern else nn.LayerNorm(config.d_model)


class Block(nn.Module):
    """One layer: attention and MLP, each with a norm before it and a residual connection around it."""

    def __init__(self, config: LmConfig, attention: Attention) -> None:
        super().__init__()
        self.attention_norm, self.attention = _norm(config), attention
        self.mlp_norm, self.mlp = _norm(config), SwiGLU(config) if config.modern else _gelu_mlp(config)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


def decoder(config: LmConfig, phase: Phase) -> nn.Sequential:
    """Return embedding, blocks and output layer on torch's default device, with torch's initial weights."""
    turns = rotation(config) if config.modern else None
    # One mask for all layers: a mask is as large as the scores of one head.
    hidden = later_keys(config.context) if config.attention == "plain" else None
    blocks = [Block(config, Attention(config, phase, turns, hidden)) for _ in range(config.layers)]
    embedding, output = Embedding(config), nn.Linear(config.d_model, config.vocab, bias=False)
    if not config.modern:
        output.weight = embedding.tokens.weight
    return nn.Sequential(embedding, *blocks, nn.Sequential(_norm(config), output))


def later_keys(tokens: int, device: torch.device | None = None) -> Tensor:
    """Return (tokens, tokens), true where a query must not see a key; on torch's default device without ``device``."""
    return torch.ones(tokens, tokens, dtype=torch.bool, device=device).triu(1)


def initialise(model: nn.Module, generator: torch.Generator) -> None:
    """Set GPT-2's initial weights (normal, 0.02) for both kinds of block; biases 0, norms 1."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.02, generator=generator)
            elif name.endswith("bias"):
                parameter.zero_()


@functools.lru_cache
def parameter_count(config: LmConfig) -> int:
    """Count the elements of all parameters in a model without memory."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in decoder(config, nullcontext).parameters())
