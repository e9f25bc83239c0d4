"""Attention written in PyTorch: by its formula, eager and compiled, and tiled as in FlashAttention.

All take q ``(batch, heads, queries, head_dim)`` and k and v ``(batch, kv_heads, seqlen, head_dim)`` and return the
output in q's shape; fewer queries than keys are the last of the sequence. They are slow baselines for fused kernels:
the plain one stores scores and weights of ``queries x seqlen`` for its backward pass, the tiled one only q, k, v, the
output and one number per query row.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from profpipe.ranges import annotate
from profpipe.workload_lib import attention_config, requirements
from profpipe.workload_lib.attention_config import AttentionConfig, Forward, Phase

#: Queries and keys per tile. FlashAttention's tiles of 64 to 128 fit the shared memory of an SM. Here a tile costs some
#: ten launches, so tiles are larger: a sequence of 16384 has 1024 tiles instead of 16384, and one tile of fp32 scores
#: (1 MiB per batch item and head) still fits the cache.
TILE = 512


def plain(config: AttentionConfig) -> Forward:
    """Prepare attention with separate kernels for scores, softmax and product, all in a range of that name."""
    hidden = _hidden(config)
    return lambda q, k, v: _plain(q, k, v, hidden, annotate)


def compiled(config: AttentionConfig) -> Forward:
    """Prepare the same through torch.compile for one shape, without ranges, because they break the graph.

    SDPA patterns are disabled: without a mask, in half precision or with TF32 allowed, inductor would replace the
    formula by SDPA, and kernels of cuDNN or FlashAttention would run.
    """
    requirements.keep_graphs(config.mode == "bwd")
    run, hidden = compile_plain(config), _hidden(config)
    return lambda q, k, v: run(q, k, v, hidden)


@functools.cache
def compile_plain(config: AttentionConfig) -> Callable[..., Tensor]:
    """Compile at the first call, once per process and config, because a case is built more than once."""

    def attend(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor | None) -> Tensor:
        return _plain(q, k, v, hidden, lambda name: nullcontext())

    return requirements.compiled(attend, options=requirements.exclude_sdpa())


def _plain(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor | None, phase: Phase) -> Tensor:
    """The queries of a group are rows of one product with their shared keys, so no key is copied."""
    rows = _grouped(q, k.shape[1])
    with phase("attention scores"):
        scores = rows @ k.mT / math.sqrt(q.shape[-1])
        if hidden is not None:
            scores = scores.unflatten(2, (-1, q.shape[2])).masked_fill(hidden, -math.inf).flatten(2, 3)
    with phase("softmax"):
        weights = scores.softmax(-1)
    with phase("final matmul"):
        return _ungrouped(weights @ v, q.shape[1])


def _hidden(config: AttentionConfig) -> Tensor | None:
    """Return ``(queries, seqlen)``, true where a query must not see a key; made once, as in a model's buffer."""
    if not config.causal:
        return None
    queries, keys = config.q_shape[1], config.seqlen
    return torch.ones(queries, keys, dtype=torch.bool, device=attention_config.device()).triu_(1 + keys - queries)


def missing_compiler() -> str | None:
    """Return why ``compiled`` cannot run here and the remedy, or None."""
    return requirements.missing_compiler(True, "plain instead")


def tiled(config: AttentionConfig) -> Forward:
    """Prepare FlashAttention-2 (arXiv 2307.08691) in PyTorch: only one tile of the scores exists at a time."""
    before = config.seqlen - config.q_shape[1] if config.causal else None
    return lambda q, k, v: _Tiled.apply(q, k, v, before)


class _Tiled(torch.autograd.Function):
    """Algorithms 1 and 2 of the paper, with a PyTorch call for a product and a line of the online softmax.

    Products use the dtype of the inputs; sums, maxima and softmax are fp32 (fp64 for fp64 inputs). With a causal mask,
    ``before`` is the number of keys before that of the first query; else it is None.
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
        """Recompute the weights of a tile from the scores and the log-sum-exp of their rows."""
        q, k, v, out, log_sum_exp = ctx.saved_tensors
        heads, kv_heads, scale = q.shape[1], k.shape[1], 1 / math.sqrt(q.shape[-1])
        # Row sums of d_out x out, which the backward pass of the softmax subtracts.
        delta = (d_out.to(_exact(q)) * out).sum(-1)
        dq, dk, dv = torch.zeros_like(q, dtype=_exact(q)), torch.empty_like(k), torch.empty_like(v)
        for columns in _tiles(k.shape[2]):
            keys, values = k[:, :, columns], v[:, :, columns]
            d_keys, d_values = (torch.zeros_like(tile, dtype=_exact(q)) for tile in (keys, values))
            first = 0 if ctx.before is None else max(0, columns.start - ctx.before) // TILE
            for rows in _tiles(q.shape[2], first):
                queries, d_rows = (_grouped(tensor[:, :, rows], kv_heads) for tensor in (q, d_out))
                weights = (tile_scores(queries, keys, rows, columns, ctx.before) - _column(log_sum_exp, rows, k)).exp_()
                d_values += weights.to(v.dtype).mT @ d_rows
                d_scores = weights.mul_(d_rows @ values.mT - _column(delta, rows, k)).to(q.dtype)
                dq[:, :, rows] += _ungrouped(d_scores @ keys, heads)
                d_keys += d_scores.mT @ queries
            dk[:, :, columns], dv[:, :, columns] = d_keys * scale, d_values
        return (dq * scale).to(q.dtype), dk, dv, None


def _attended(q: Tensor, k: Tensor, v: Tensor, rows: slice, before: int | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return (unnormalised output, largest score, sum of weights) of a tile of queries over all visible keys."""
    queries = _grouped(q, k.shape[1])
    summed = torch.zeros_like(queries, dtype=_exact(q))
    total = summed[..., :1].clone()
    highest = total - math.inf
    for columns in _tiles(k.shape[2] if before is None else rows.stop + before):
        scores = tile_scores(queries, k[:, :, columns], rows, columns, before)
        now = highest.maximum(scores.amax(-1, keepdim=True))
        shrunk, weights = (highest - now).exp_(), (scores - now).exp_()
        total = total * shrunk + weights.sum(-1, keepdim=True)
        summed = summed * shrunk + weights.to(v.dtype) @ v[:, :, columns]
        highest = now
    return summed, highest, total


def tile_scores(queries: Tensor, keys: Tensor, rows: slice, columns: slice, before: int | None) -> Tensor:
    """Return one tile of scores, -inf where masked. Every row sees a key of the first tile, so no row is all masked."""
    scores = (queries @ keys.mT).to(_exact(queries)) / math.sqrt(queries.shape[-1])
    if before is not None and columns.stop - 1 > rows.start + before:
        row, column = (torch.arange(span.start, span.stop, device=keys.device) for span in (rows, columns))
        hidden = column > row[:, None] + before
        scores.masked_fill_(hidden.repeat(queries.shape[2] // len(row), 1), -math.inf)
    return scores


def _tiles(length: int, first: int = 0) -> Iterator[slice]:
    """Yield the tiles from number ``first`` on; the last may be shorter."""
    return (slice(start, min(start + TILE, length)) for start in range(first * TILE, length, TILE))


def _exact(tensor: Tensor) -> torch.dtype:
    """Return the dtype of sums: fp32 for all but fp64."""
    return torch.promote_types(tensor.dtype, torch.float32)


def _column(per_row: Tensor, rows: slice, k: Tensor) -> Tensor:
    """Return ``rows`` of ``(batch, heads, seqlen)`` as a column that broadcasts over their scores."""
    return _grouped(per_row[:, :, rows].unsqueeze(-1), k.shape[1])


def _grouped(tensor: Tensor, kv_heads: int) -> Tensor:
    """``(batch, heads, rows, d)`` to ``(batch, kv_heads, group x rows, d)``."""
    return tensor.unflatten(1, (kv_heads, -1)).flatten(2, 3)


def _ungrouped(tensor: Tensor, heads: int) -> Tensor:
    return tensor.unflatten(2, (heads // tensor.shape[1], -1)).flatten(1, 2)
