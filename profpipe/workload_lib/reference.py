"""Reference attention in fp32 or fp64, some query rows at a time, and the difference of a result from it.

fp32 runs on the device of the result, fp64 on the CPU; either is expensive for a long sequence. Within one batch item,
the query heads of a key/value head need no other heads, for output and gradients. So as many key/value heads as the
budget allows are checked completely, and always the last one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from profpipe.workload_lib import error_metrics
from profpipe.workload_lib.attention_config import AttentionConfig

REFERENCES = {"fp32": torch.float32, "fp64": torch.float64}

#: Largest block of scores. The backward pass has four such blocks at once.
SCORES_BYTES = 256 * 2**20

#: The same on a GPU, which needs more rows to be busy; and its largest share of the free memory.
GPU_SCORES_BYTES = 2 * 2**30
GPU_SCORES_PART = 1 / 16

#: Floating-point operations of one reference at most. fp64: some ten seconds on two cores, a second on a server. fp32:
#: one or two seconds on a current GPU, 32 heads of 128 at sequence length 32768 forward, and a few heads at 65536.
FLOPS = {"fp32": 1e13, "fp64": 3e11}


def measure_differences(
    config: AttentionConfig, precision: str, produced: Mapping[str, Tensor], inputs: Sequence[Tensor]
) -> dict[str, float]:
    """Return the measures of ``error_metrics`` for each tensor of ``produced``: ``out``, ``dq``, ``dk``, ``dv``.

    ``inputs`` are q, k, v and, for gradients, the upstream gradient; all ``(batch, seqlen, heads, head_dim)``, with
    ``kv_heads`` heads for k, v and their gradients. They are already rounded to the config's dtype.
    """
    differences = {name: error_metrics.Difference() for name in produced}
    with full_fp32_precision():
        for item, own, shared in checked_heads(config, precision, backward=len(inputs) > 3):
            heads = {"out": own, "dq": own, "dk": shared, "dv": shared}
            given = [tensor[item, :, some] for tensor, some in zip(inputs, (own, shared, shared, own), strict=False)]
            if precision == "fp64":
                given = [tensor.cpu() for tensor in given]
            for name, rows, expected in reference(config, *given, dtype=REFERENCES[precision]):
                if name in differences:
                    differences[name].add(produced[name][item, rows, heads[name]], expected)
    return {name: value for tensor, found in differences.items() for name, value in found.measures(tensor).items()}


def checked_heads(config: AttentionConfig, precision: str, *, backward: bool) -> list[tuple[int, slice, slice]]:
    """Return (batch item, query heads, key/value heads) of each part that is compared.

    In fp32 whole items where the budget allows; else single key/value heads, spread evenly, at least one: the last,
    where an index overflow would show.
    """
    every, group = config.batch * config.kv_heads, config.group_size
    # Two products of 2 x queries x keys x head_dim forward; four more backward, which reuses the weights.
    of_one = (12 if backward else 4) * group * config.q_shape[1] * config.seqlen * config.head_dim
    count = max(1, min(every, int(FLOPS[precision] / of_one)))
    if precision == "fp32" and count == every:
        return [(item, slice(0, config.heads), slice(0, config.kv_heads)) for item in range(config.batch)]
    places = (divmod(every - 1 - i * every // count, config.kv_heads) for i in range(count))
    return [(item, slice(head * group, (head + 1) * group), slice(head, head + 1)) for item, head in places]


def checked_share(config: AttentionConfig, precision: str, *, backward: bool) -> float:
    """Return the share of the tensors that is compared."""
    heads = sum(own.stop - own.start for _, own, _ in checked_heads(config, precision, backward=backward))
    return heads / (config.batch * config.heads)


def reference(
    config: AttentionConfig,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out_gradient: Tensor | None = None,
    *,
    dtype: torch.dtype = torch.float32,
) -> Iterator[tuple[str, slice, Tensor]]:
    """Compute attention of one batch item in ``dtype``; yield (name, rows of the sequence, values), block by block.

    q and out_gradient are ``(queries, heads, head_dim)``, k and v ``(seqlen, kv_heads, head_dim)``; a subset of the
    config's heads is allowed, and fewer queries than keys are the last of the sequence. The names are ``out`` and,
    with a gradient, ``dq``, ``dk`` and ``dv``, the latter two complete at the end.

    The query heads of a group are rows of one product with their shared keys, so that product also sums dk and dv over
    the group.
    """
    queries, keys, scale = q.shape[0], k.shape[0], 1 / math.sqrt(config.head_dim)
    k, v = (tensor.to(dtype).transpose(0, 1) for tensor in (k, v))
    dk, dv = torch.zeros_like(k), torch.zeros_like(v)
    step = max(1, _scores_bytes(q.device) // (dtype.itemsize * q.shape[1] * keys))

    for start in range(0, queries, step):
        rows = slice(start, min(start + step, queries))
        some = _grouped(q[rows].to(dtype), len(k))
        scores = some @ k.mT * scale
        if config.causal:
            row, column = (torch.arange(count, device=q.device) for count in (queries, keys))
            row = row[rows, None] + keys - queries
            scores.masked_fill_((column > row).repeat(config.group_size, 1), -math.inf)
        weights = scores.softmax(-1)
        out = weights @ v
        yield "out", rows, _ungrouped(out, config.group_size)
        if out_gradient is not None:
            d_out = _grouped(out_gradient[rows].to(dtype), len(k))
            dv += weights.mT @ d_out
            d_scores = weights * (d_out @ v.mT - (d_out * out).sum(-1, keepdim=True)) * scale
            dk += d_scores.mT @ some
            yield "dq", rows, _ungrouped(d_scores @ k, config.group_size)
    if out_gradient is not None:
        yield "dk", slice(None), dk.transpose(0, 1)
        yield "dv", slice(None), dv.transpose(0, 1)


def _grouped(tensor: Tensor, kv_heads: int) -> Tensor:
    """Reshape ``(rows, heads, d)`` to ``(kv_heads, group x rows, d)``."""
    return tensor.unflatten(1, (kv_heads, -1)).permute(1, 2, 0, 3).flatten(1, 2)


def _ungrouped(tensor: Tensor, group_size: int) -> Tensor:
    return tensor.unflatten(1, (group_size, -1)).permute(2, 0, 1, 3).flatten(1, 2)


def _scores_bytes(device: torch.device) -> int:
    if device.type != "cuda":
        return SCORES_BYTES
    free_bytes, _ = torch.cuda.mem_get_info(device)
    return max(SCORES_BYTES, min(GPU_SCORES_BYTES, int(free_bytes * GPU_SCORES_PART)))


@contextmanager
def full_fp32_precision() -> Iterator[None]:
    """Disable TF32, which would round the reference to the mantissa of fp16."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
