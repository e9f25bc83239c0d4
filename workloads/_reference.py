"""Attention in fp32, some query rows at a time: what implementations are checked against."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from _setting import Setting

#: Size that one block of fp32 scores may have. Four such blocks live at once in the backward pass.
SCORES_BYTES = 256 * 2**20


def reference(
    setting: Setting, q: Tensor, k: Tensor, v: Tensor, out_gradient: Tensor | None = None
) -> Iterator[tuple[str, slice, Tensor]]:
    """Attention of one batch item in fp32: (name, rows of the sequence, values), some query rows at a time.

    q and out_gradient are ``(seqlen, heads, head_dim)``, k and v ``(seqlen, kv_heads, head_dim)``. The names are
    ``out`` and, with a gradient, ``dq``, ``dk`` and ``dv``, the latter two whole at the end.

    The query heads of a group are rows of one product with their shared keys, so the sums over a group that dk and dv
    need are part of the product.
    """
    s, scale = setting, 1 / math.sqrt(setting.head_dim)
    k, v = (tensor.float().transpose(0, 1) for tensor in (k, v))
    dk, dv = torch.zeros_like(k), torch.zeros_like(v)
    step = max(1, SCORES_BYTES // (4 * s.heads * s.seqlen))

    def grouped(tensor: Tensor) -> Tensor:
        """``(rows, heads, d)`` to ``(kv_heads, group x rows, d)``."""
        return tensor.float().unflatten(1, (s.kv_heads, s.group)).permute(1, 2, 0, 3).flatten(1, 2)

    def ungrouped(tensor: Tensor) -> Tensor:
        return tensor.unflatten(1, (s.group, -1)).permute(2, 0, 1, 3).flatten(1, 2)

    for start in range(0, s.seqlen, step):
        rows = slice(start, min(start + step, s.seqlen))
        queries = grouped(q[rows])
        scores = queries @ k.mT * scale
        if s.causal:
            row, column = torch.arange(s.seqlen, device=q.device)[rows, None], torch.arange(s.seqlen, device=q.device)
            scores.masked_fill_((column > row).repeat(s.group, 1), -math.inf)
        weights = scores.softmax(-1)
        out = weights @ v
        yield "out", rows, ungrouped(out)
        if out_gradient is not None:
            d_out = grouped(out_gradient[rows])
            dv += weights.mT @ d_out
            d_scores = weights * (d_out @ v.mT - (d_out * out).sum(-1, keepdim=True)) * scale
            dk += d_scores.mT @ queries
            yield "dq", rows, ungrouped(d_scores @ k)
    if out_gradient is not None:
        yield "dk", slice(None), dk.transpose(0, 1)
        yield "dv", slice(None), dv.transpose(0, 1)


@contextmanager
def full_fp32_precision() -> Iterator[None]:
    """TF32 would round the reference to fp16's mantissa."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
