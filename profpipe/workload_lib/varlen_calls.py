"""How to call each implementation of attention over packed sequences.

Functions import their package themselves, so that the others work without it.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from profpipe.workload_lib import attention_config, flex as flex_attention, packages, sdpa, varlen_config
from profpipe.workload_lib.varlen_config import Layout, VarlenConfig

#: The arguments of the layout -> the outputs, laid out as q.
Forward = Callable[..., tuple[Tensor, ...]]


def _stacked(config: VarlenConfig) -> int:
    """Return how many of q, k and v the function of flash-attn takes in one tensor."""
    return 3 if config.api.endswith("qkvpacked") else 2 if config.api.endswith("kvpacked") else 1


def flash_layout(config: VarlenConfig) -> Layout:
    return (varlen_config.packed if config.api.startswith("varlen") else varlen_config.batch)(config, _stacked(config))


def flash_attn(module: str) -> Callable[[VarlenConfig], Forward]:
    """Return the function that prepares ``flash_attn_func`` of FlashAttention 2, 3 or 4, or a variant named by ``api``.

    Lengths are passed by name, because their positions changed between betas of 4; qkvpacked takes them once.
    """

    def prepare(config: VarlenConfig) -> Forward:
        name = "flash_attn_func" if config.api == "func" else f"flash_attn_{config.api}_func"
        function, offsets = getattr(importlib.import_module(module), name), config.offsets()
        options: dict[str, Any] = {"causal": config.causal}
        if config.api.startswith("varlen"):
            for suffix in ("",) if _stacked(config) == 3 else ("_q", "_k"):
                options |= {f"cu_seqlens{suffix}": offsets, f"max_seqlen{suffix}": config.longest}
        return lambda *arguments: (packages.output(function(*arguments, **options)),)

    return prepare


def xformers(config: VarlenConfig) -> Forward:
    from xformers.ops import memory_efficient_attention
    from xformers.ops.fmha.attn_bias import BlockDiagonalMask

    mask = BlockDiagonalMask.from_seqlens(list(config.lengths))
    if config.causal:
        mask = mask.make_causal()

    def forward(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        out = memory_efficient_attention(*packages.with_group_axis(config.group_size, q, k, v), attn_bias=mask)
        return (out.flatten(2, 3) if config.group_size > 1 else out,)

    return forward


def torch_varlen(config: VarlenConfig) -> Forward:
    """The arguments differ: torch 2.10 has ``is_causal``, later releases a window; 2.12 requires ``enable_gqa``."""
    varlen_attn = importlib.import_module("torch.nn.attention.varlen").varlen_attn
    known = inspect.signature(varlen_attn).parameters
    options: dict[str, Any] = {}
    if config.causal:
        options |= {"is_causal": True} if "is_causal" in known else {"window_size": (-1, 0)}
    if config.group_size > 1 and "enable_gqa" in known:
        options["enable_gqa"] = True
    offsets, longest = config.offsets(), config.longest
    return lambda q, k, v: (varlen_attn(q, k, v, offsets, offsets, longest, longest, **options),)


def flex(config: VarlenConfig) -> Forward:
    """FlexAttention over all sequences as one, in which a token sees its own document only."""
    from torch.nn.attention.flex_attention import create_block_mask

    device = attention_config.device()
    lengths = torch.tensor(config.lengths, device=device)
    document = torch.arange(len(lengths), device=device).repeat_interleave(lengths)

    def visible(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        own = document[query] == document[key]
        return own & (query >= key) if config.causal else own

    mask = create_block_mask(visible, None, None, config.tokens, config.tokens, device=device)
    call = flex_attention.with_mask(mask, config, grouped=config.group_size > 1, kept=config.mode == "bwd")
    return lambda q, k, v: (call(q, k, v),)


def sdpa_nested(config: VarlenConfig) -> Forward:
    def forward(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))
        return (scaled_dot_product_attention(q, k, v, is_causal=config.causal).transpose(1, 2),)

    return forward


def sdpa_loop(config: VarlenConfig) -> Forward:
    """Call SDPA's flash kernel once per sequence."""
    one = sdpa.sdpa("flash")(config.sequence(slice(0, config.longest)))

    def forward(*arguments: Tensor) -> tuple[Tensor, ...]:
        count = len(config.lengths)
        return tuple(map(one, arguments[:count], arguments[count : 2 * count], arguments[2 * count :]))

    return forward
