"""Attention in fp32 or fp64, some query rows at a time, and how far a result is from it.

fp32 is computed where the result is, fp64 on the CPU, and a long sequence makes either costly. What is attended within
one batch item by the query heads that share a key/value head needs nothing else, neither for its output nor for its
gradients: so as many of these are checked as can be afforded, whole, and the last one always.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from profpipe import load

if TYPE_CHECKING:
    import _errors
    from _setting import Setting
else:
    _errors = load.module(Path(__file__).with_name("_errors.py"))

REFERENCES = {"fp32": torch.float32, "fp64": torch.float64}

#: Size that one block of scores may have. Four such blocks live at once in the backward pass.
SCORES_BYTES = 256 * 2**20

#: The same on a GPU, which a few rows of a long sequence do not fill; and the part of its free memory that it may be.
GPU_SCORES_BYTES = 2 * 2**30
GPU_SCORES_PART = 1 / 16

#: Floating-point operations that one reference may take. fp64: some ten seconds on two cores, a second on a server's.
#: fp32: a second or two on a GPU of today; 32 heads of 128 at sequence length 32768 forward, and a few at 65536.
FLOPS = {"fp32": 1e13, "fp64": 3e11}


def differences(
    setting: Setting, precision: str, produced: Mapping[str, Tensor], inputs: Sequence[Tensor]
) -> dict[str, float]:
    """The measures of ``_errors`` for each tensor that was produced: ``out``, ``dq``, ``dk``, ``dv``.

    ``inputs`` are q, k, v and, where gradients were produced, that of the output; all ``(batch, seqlen, heads,
    head_dim)`` with the heads of k, v and their gradients being ``kv_heads``. The reference is computed from them as
    they are, already rounded to the setting's dtype.
    """
    seen = {name: _errors.Difference() for name in produced}
    with full_fp32_precision():
        for item, own, shared in checked(setting, precision, backward=len(inputs) > 3):
            heads = {"out": own, "dq": own, "dk": shared, "dv": shared}
            given = [tensor[item, :, some] for tensor, some in zip(inputs, (own, shared, shared, own), strict=False)]
            if precision == "fp64":
                given = [tensor.cpu() for tensor in given]
            for name, rows, expected in reference(setting, *given, dtype=REFERENCES[precision]):
                if name in seen:
                    seen[name].add(produced[name][item, rows, heads[name]], expected)
    return {name: value for tensor, found in seen.items() for name, value in found.measures(tensor).items()}


def checked(setting: Setting, precision: str, *, backward: bool) -> list[tuple[int, slice, slice]]:
    """(batch item, query heads, key/value heads) of what is compared.

    Each item whole where that can be afforded in fp32; else single key/value heads, spread evenly; at least one, the
    last, where an index that overflows would be wrong.
    """
    every, group = setting.batch * setting.kv_heads, setting.group
    # Two products of 2 x queries x keys x head_dim forward; four more backward, which uses the weights again.
    of_one = (12 if backward else 4) * group * setting.q_shape[1] * setting.seqlen * setting.head_dim
    count = max(1, min(every, int(FLOPS[precision] / of_one)))
    if precision == "fp32" and count == every:
        return [(item, slice(0, setting.heads), slice(0, setting.kv_heads)) for item in range(setting.batch)]
    places = (divmod(every - 1 - i * every // count, setting.kv_heads) for i in range(count))
    return [(item, slice(head * group, (head + 1) * group), slice(head, head + 1)) for item, head in places]


def share_checked(setting: Setting, precision: str, *, backward: bool) -> float:
    """What part of the tensors ``checked`` covers."""
    heads = sum(own.stop - own.start for _, own, _ in checked(setting, precision, backward=backward))
    return heads / (setting.batch * setting.heads)


def reference(
    setting: Setting,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out_gradient: Tensor | None = None,
    *,
    dtype: torch.dtype = torch.float32,
) -> Iterator[tuple[str, slice, Tensor]]:
    """Attention of one batch item in ``dtype``: (name, rows of the sequence, values), some query rows at a time.

    q and out_gradient are ``(queries, heads, head_dim)``, k and v ``(seqlen, kv_heads, head_dim)``; fewer heads than
    the setting's will do, and queries fewer than keys are the last of the sequence. The names are ``out`` and, with a
    gradient, ``dq``, ``dk`` and ``dv``, the latter two whole at the end.

    The query heads of a group are rows of one product with their shared keys, so the sums over a group that dk and dv
    need are part of the product.
    """
    queries, keys, scale = q.shape[0], k.shape[0], 1 / math.sqrt(setting.head_dim)
    k, v = (tensor.to(dtype).transpose(0, 1) for tensor in (k, v))
    dk, dv = torch.zeros_like(k), torch.zeros_like(v)
    step = max(1, _scores_bytes(q.device) // (dtype.itemsize * q.shape[1] * keys))

    def grouped(tensor: Tensor) -> Tensor:
        """``(rows, heads, d)`` to ``(kv_heads, group x rows, d)``."""
        return tensor.to(dtype).unflatten(1, (len(k), setting.group)).permute(1, 2, 0, 3).flatten(1, 2)

    def ungrouped(tensor: Tensor) -> Tensor:
        return tensor.unflatten(1, (setting.group, -1)).permute(2, 0, 1, 3).flatten(1, 2)

    for start in range(0, queries, step):
        rows = slice(start, min(start + step, queries))
        some = grouped(q[rows])
        scores = some @ k.mT * scale
        if setting.causal:
            row, column = (torch.arange(count, device=q.device) for count in (queries, keys))
            row = row[rows, None] + keys - queries
            scores.masked_fill_((column > row).repeat(setting.group, 1), -math.inf)
        weights = scores.softmax(-1)
        out = weights @ v
        yield "out", rows, ungrouped(out)
        if out_gradient is not None:
            d_out = grouped(out_gradient[rows])
            dv += weights.mT @ d_out
            d_scores = weights * (d_out @ v.mT - (d_out * out).sum(-1, keepdim=True)) * scale
            dk += d_scores.mT @ some
            yield "dq", rows, ungrouped(d_scores @ k)
    if out_gradient is not None:
        yield "dk", slice(None), dk.transpose(0, 1)
        yield "dv", slice(None), dv.transpose(0, 1)


def _scores_bytes(device: torch.device) -> int:
    if device.type != "cuda":
        return SCORES_BYTES
    free_bytes, _ = torch.cuda.mem_get_info(device)
    return max(SCORES_BYTES, min(GPU_SCORES_BYTES, int(free_bytes * GPU_SCORES_PART)))


@contextmanager
def full_fp32_precision() -> Iterator[None]:
    """TF32 would round the reference to fp16's mantissa."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
