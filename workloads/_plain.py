"""Attention written in PyTorch: as its formula stands, eager and compiled, and tiled as FlashAttention is.

All take q ``(batch, heads, queries, head_dim)`` and k and v ``(batch, kv_heads, seqlen, head_dim)`` and give the output
in q's shape; queries fewer than keys are the last of the sequence. None of them is fast. They are what a fused kernel
is measured against: the plain one keeps scores and weights of ``queries x seqlen`` for its backward pass, the tiled one
only q, k, v, the output and one number a query row.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from profpipe import load
from profpipe.ranges import annotate

if TYPE_CHECKING:
    import _compile
    import _setting
    from _setting import Forward, Setting
else:
    _compile = load.module(Path(__file__).with_name("_compile.py"))
    _setting = load.module(Path(__file__).with_name("_setting.py"))

#: Queries and keys of one tile. FlashAttention's are 64 to 128, what an SM's shared memory takes. Here a tile costs
#: some ten launches, so they are larger: a sequence of 16384 has 1024 tiles instead of 16384, and one tile of fp32
#: scores (1 MiB for each batch item and head) still lies in the cache.
TILE = 512

Phase = Callable[[str], AbstractContextManager[object]]


# --- as the formula stands -------------------------------------------------------------------------------------------


def plain(setting: Setting) -> Forward:
    """Scores, softmax and product each by its own kernels, in ranges of these names."""
    hidden = _hidden(setting)
    return lambda q, k, v: _plain(q, k, v, hidden, annotate)


def compiled(setting: Setting) -> Forward:
    """The same through torch.compile, for this shape alone and without the ranges, which no graph can hold.

    It is the formula that is compiled: left alone, inductor recognises it where there is no mask, in half precision or
    with TF32 allowed, and puts SDPA in its place, so that cuDNN's or FlashAttention's kernels would run.
    """
    _compile.keep_graphs(setting.mode == "bwd")
    run, hidden = _compiled(setting), _hidden(setting)
    return lambda q, k, v: run(q, k, v, hidden)


@functools.cache
def _compiled(setting: Setting) -> Callable[..., Tensor]:
    """Compiled at its first call, once a process for each setting, for a case is built more than once."""

    def attend(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor | None) -> Tensor:
        return _plain(q, k, v, hidden, lambda name: nullcontext())

    return _compile.compiled(attend, options=_compile.without_sdpa())


def _plain(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor | None, phase: Phase) -> Tensor:
    """The queries of a group are rows of one product with their shared keys, so that no key is copied."""
    rows = _grouped(q, k.shape[1])
    with phase("attention scores"):
        scores = rows @ k.mT / math.sqrt(q.shape[-1])
        if hidden is not None:
            scores = scores.unflatten(2, (-1, q.shape[2])).masked_fill(hidden, -math.inf).flatten(2, 3)
    with phase("softmax"):
        weights = scores.softmax(-1)
    with phase("final matmul"):
        return _ungrouped(weights @ v, q.shape[1])


def _hidden(setting: Setting) -> Tensor | None:
    """True where a query must not see a key: ``(queries, seqlen)``, made once, as a model keeps it in a buffer."""
    if not setting.causal:
        return None
    queries, keys = setting.q_shape[1], setting.seqlen
    return torch.ones(queries, keys, dtype=torch.bool, device=_setting.device()).triu_(1 + keys - queries)


def no_compiler() -> str | None:
    """Why ``compiled`` cannot run here and what to do about it, or None."""
    reason = _compile.lacking()
    return f"{reason}, or use plain instead." if reason else None


# --- tiled -----------------------------------------------------------------------------------------------------------


def tiled(setting: Setting) -> Forward:
    """FlashAttention-2 (arXiv 2307.08691) in PyTorch: no more than a tile of the scores exists at any time."""
    before = setting.seqlen - setting.q_shape[1] if setting.causal else None
    return lambda q, k, v: _Tiled.apply(q, k, v, before)


class _Tiled(torch.autograd.Function):
    """Algorithms 1 and 2 of the paper, each product and each line of the online softmax a call of PyTorch.

    The products take the inputs' dtype; sums, maxima and softmax are fp32 (fp64 for fp64 inputs). Causal, ``before`` is
    the number of keys before that of the first query; else it is None.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, before: int | None) -> Tensor:
        out, log_sum_exp = torch.empty_like(q), q.new_empty(q.shape[:-1], dtype=_exact(q))
        for rows in _tiles(q.shape[2]):
            summed, highest, total = _attended(q[:, :, rows], k, v, rows, before)
            out[:, :, rows] = _ungrouped(summed / total, q.shape[1])
            log_sum_exp[:, :, rows] = _ungrouped(highest + total.log(), q.shape[1]).squeeze(-1)
        ctx.save_for_backward(q, k, v, out, log_sum_exp)
        ctx.before = before
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        """The weights of each tile are computed again from the scores and the log-sum-exp of their rows."""
        q, k, v, out, log_sum_exp = ctx.saved_tensors
        heads, kv_heads, scale = q.shape[1], k.shape[1], 1 / math.sqrt(q.shape[-1])
        # Row sums of d_out x out: what the softmax's backward subtracts.
        delta = (d_out.to(_exact(q)) * out).sum(-1)
        dq, dk, dv = torch.zeros_like(q, dtype=_exact(q)), torch.empty_like(k), torch.empty_like(v)
        for columns in _tiles(k.shape[2]):
            keys, values = k[:, :, columns], v[:, :, columns]
            d_keys, d_values = (torch.zeros_like(tile, dtype=_exact(q)) for tile in (keys, values))
            first = 0 if ctx.before is None else max(0, columns.start - ctx.before) // TILE
            for rows in _tiles(q.shape[2], first):
                queries, d_rows = (_grouped(tensor[:, :, rows], kv_heads) for tensor in (q, d_out))
                weights = (_scores(queries, keys, rows, columns, ctx.before) - _column(log_sum_exp, rows, k)).exp_()
                d_values += weights.to(v.dtype).mT @ d_rows
                d_scores = weights.mul_(d_rows @ values.mT - _column(delta, rows, k)).to(q.dtype)
                dq[:, :, rows] += _ungrouped(d_scores @ keys, heads)
                d_keys += d_scores.mT @ queries
            dk[:, :, columns], dv[:, :, columns] = d_keys * scale, d_values
        return (dq * scale).to(q.dtype), dk, dv, None


def _attended(q: Tensor, k: Tensor, v: Tensor, rows: slice, before: int | None) -> tuple[Tensor, Tensor, Tensor]:
    """(unnormalised output, largest score, sum of weights) of one tile of queries over all keys that it sees."""
    queries = _grouped(q, k.shape[1])
    summed = torch.zeros_like(queries, dtype=_exact(q))
    total = summed[..., :1].clone()
    highest = total - math.inf
    for columns in _tiles(k.shape[2] if before is None else rows.stop + before):
        scores = _scores(queries, k[:, :, columns], rows, columns, before)
        now = highest.maximum(scores.amax(-1, keepdim=True))
        shrunk, weights = (highest - now).exp_(), (scores - now).exp_()
        total = total * shrunk + weights.sum(-1, keepdim=True)
        summed = summed * shrunk + weights.to(v.dtype) @ v[:, :, columns]
        highest = now
    return summed, highest, total


def _scores(queries: Tensor, keys: Tensor, rows: slice, columns: slice, before: int | None) -> Tensor:
    """One tile of scores, hidden ones minus infinity. Every row sees a key of the first tile, so none is all hidden."""
    scores = (queries @ keys.mT).to(_exact(queries)) / math.sqrt(queries.shape[-1])
    if before is not None and columns.stop - 1 > rows.start + before:
        row, column = (torch.arange(one.start, one.stop, device=keys.device) for one in (rows, columns))
        hidden = column > row[:, None] + before
        scores.masked_fill_(hidden.repeat(queries.shape[2] // len(row), 1), -math.inf)
    return scores


def _tiles(length: int, first: int = 0) -> Iterator[slice]:
    """From tile number ``first`` on; the last may be shorter."""
    return (slice(start, min(start + TILE, length)) for start in range(first * TILE, length, TILE))


def _exact(tensor: Tensor) -> torch.dtype:
    """What sums are kept in: fp32 for all but fp64."""
    return torch.promote_types(tensor.dtype, torch.float32)


def _column(per_row: Tensor, rows: slice, k: Tensor) -> Tensor:
    """``(batch, heads, seqlen)`` for some rows, beside the scores of those rows."""
    return _grouped(per_row[:, :, rows].unsqueeze(-1), k.shape[1])


# --- query heads that share keys -------------------------------------------------------------------------------------


def _grouped(tensor: Tensor, kv_heads: int) -> Tensor:
    """``(batch, heads, rows, d)`` to ``(batch, kv_heads, group x rows, d)``."""
    return tensor.unflatten(1, (kv_heads, -1)).flatten(2, 3)


def _ungrouped(tensor: Tensor, heads: int) -> Tensor:
    return tensor.unflatten(2, (heads // tensor.shape[1], -1)).flatten(1, 2)
