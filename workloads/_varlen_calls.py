"""How each implementation of attention over a group of sequences is called.

A package is imported by the function that needs it, so that the others work where it is missing.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from profpipe import load

if TYPE_CHECKING:
    import _flex
    import _group
    import _sdpa
    import _setting
    from _group import Group, Layout
else:
    _flex = load.module(Path(__file__).with_name("_flex.py"))
    _group = load.module(Path(__file__).with_name("_group.py"))
    _sdpa = load.module(Path(__file__).with_name("_sdpa.py"))
    _setting = load.module(Path(__file__).with_name("_setting.py"))

#: What the layout gives -> the outputs, laid out as it makes q.
Forward = Callable[..., tuple[Tensor, ...]]


def _stacked(group: Group) -> int:
    """How many of q, k and v flash-attn's form of the interface takes in one tensor."""
    return 3 if group.api.endswith("qkvpacked") else 2 if group.api.endswith("kvpacked") else 1


def flash_layout(group: Group) -> Layout:
    return (_group.packed if group.api.startswith("varlen") else _group.batch)(group, _stacked(group))


def flash_attn(group: Group) -> Forward:
    """``flash_attn_func`` and its five other forms, named by ``api``."""
    import flash_attn

    function = getattr(flash_attn, "flash_attn_func" if group.api == "func" else f"flash_attn_{group.api}_func")
    lengths: tuple[Any, ...] = ()
    if group.api.startswith("varlen"):
        # The same for queries and keys, which qkvpacked takes once.
        times = 1 if _stacked(group) == 3 else 2
        lengths = (group.offsets(),) * times + (group.longest,) * times
    return lambda *given: (function(*given, *lengths, causal=group.causal),)


def flash_attn_3(group: Group) -> Forward:
    """Up to the beta of August 2025 it returned the log-sum-exp beside the output."""
    interface = importlib.import_module("flash_attn_interface")
    if group.api == "func":
        return lambda q, k, v: _output(interface.flash_attn_func(q, k, v, causal=group.causal))
    offsets, longest = group.offsets(), group.longest
    return lambda q, k, v: _output(
        interface.flash_attn_varlen_func(q, k, v, offsets, offsets, longest, longest, causal=group.causal)
    )


def flash_attn_4(group: Group) -> Forward:
    """Returns the log-sum-exp beside the output, or None for it. Where its arguments stand changed between betas."""
    cute = importlib.import_module("flash_attn.cute")
    if group.api == "func":
        return lambda q, k, v: _output(cute.flash_attn_func(q, k, v, causal=group.causal))
    offsets, longest = group.offsets(), group.longest
    options = {
        "cu_seqlens_q": offsets,
        "cu_seqlens_k": offsets,
        "max_seqlen_q": longest,
        "max_seqlen_k": longest,
        "causal": group.causal,
    }
    return lambda q, k, v: _output(cute.flash_attn_varlen_func(q, k, v, **options))


def _output(returned: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (returned[0] if isinstance(returned, tuple) else returned,)


def xformers(group: Group) -> Forward:
    """Grouped heads are a fifth axis, over which K and V are expanded: views, which its operators know."""
    from xformers.ops import memory_efficient_attention
    from xformers.ops.fmha.attn_bias import BlockDiagonalMask

    mask = BlockDiagonalMask.from_seqlens(list(group.lengths))
    if group.causal:
        mask = mask.make_causal()

    def forward(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        if group.shared > 1:
            q = q.unflatten(2, (group.kvheads, group.shared))
            k, v = (tensor.unsqueeze(3).expand(-1, -1, -1, group.shared, -1) for tensor in (k, v))
        out = memory_efficient_attention(q, k, v, attn_bias=mask)
        return (out.flatten(2, 3) if group.shared > 1 else out,)

    return forward


def torch_varlen(group: Group) -> Forward:
    """The arguments differ: torch 2.10 takes ``is_causal``, later ones a window; 2.12 asks for ``enable_gqa``."""
    varlen_attn = importlib.import_module("torch.nn.attention.varlen").varlen_attn
    known = inspect.signature(varlen_attn).parameters
    options: dict[str, Any] = {}
    if group.causal:
        options |= {"is_causal": True} if "is_causal" in known else {"window_size": (-1, 0)}
    if group.shared > 1 and "enable_gqa" in known:
        options["enable_gqa"] = True
    offsets, longest = group.offsets(), group.longest
    return lambda q, k, v: (varlen_attn(q, k, v, offsets, offsets, longest, longest, **options),)


def flex(group: Group) -> Forward:
    """FlexAttention over the whole group as one sequence, in which a token sees its own document only."""
    from torch.nn.attention.flex_attention import create_block_mask

    device = _setting.device()
    lengths = torch.tensor(group.lengths, device=device)
    document = torch.arange(len(lengths), device=device).repeat_interleave(lengths)

    def together(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return document[query] == document[key]

    def earlier(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (document[query] == document[key]) & (query >= key)

    visible = earlier if group.causal else together
    mask = create_block_mask(visible, None, None, group.tokens, group.tokens, device=device)
    call = _flex.under(mask, group, grouped=group.shared > 1, kept=group.mode == "bwd")
    return lambda q, k, v: (call(q, k, v),)


def sdpa_nested(group: Group) -> Forward:
    def forward(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))
        return (scaled_dot_product_attention(q, k, v, is_causal=group.causal).transpose(1, 2),)

    return forward


def sdpa_loop(group: Group) -> Forward:
    """SDPA's flash kernel, once a sequence."""
    one = _sdpa.sdpa("flash")(group.sequence(slice(0, group.longest)))

    def forward(*given: Tensor) -> tuple[Tensor, ...]:
        count = len(group.lengths)
        return tuple(map(one, given[:count], given[count : 2 * count], given[2 * count :]))

    return forward
