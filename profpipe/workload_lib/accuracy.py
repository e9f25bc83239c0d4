"""The difference of a result from a reference of attention in fp32 or fp64.

fp32 runs on the device of the result, fp64 on the CPU; either is expensive for a long sequence. Within one batch item,
the query heads of a key/value head need no other heads, for output and gradients. So as many key/value heads as the
budget allows are checked completely, and always the last one.

A result ``a`` and a reference ``b`` of n elements have five measures, summed block by block:

* ``error_max``: max |a - b|; ``error_mean``: (1/n) sum |a - b|; ``error_rmse``: sqrt((1/n) sum (a - b)^2)
* ``error_rel_l1``: sum |a - b| / sum |b|; ``cosine``: sum a b / (sqrt(sum a^2) sqrt(sum b^2))

Relative L1, RMSE and cosine are the measures of SageAttention (arXiv 2410.02367) and its successors. Relative L1 and
the cosine do not scale with the data. Names of gradients end in ``_dq``, ``_dk`` and ``_dv``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from profpipe.workload_lib import attention_config
from profpipe.workload_lib.attention_config import AttentionConfig

# --- the difference of two tensors -----------------------------------------------------------------------------------

MEASURES = ("error_max", "error_mean", "error_rel_l1", "error_rmse", "cosine")

#: Elements in fp64 at once: 128 MiB for one of the four tensors of a block.
BLOCK = 2**24


@dataclass
class Difference:
    """The difference of one tensor from its reference, over the blocks added so far."""

    largest: float = 0.0
    count: int = 0
    #: |a - b|, (a - b)^2, |b|, a^2, b^2 and a b, summed.
    sums: list[float] = field(default_factory=lambda: [0.0] * 6)

    def add(self, got: Tensor, expected: Tensor) -> None:
        """Add a block. ``got`` and ``expected`` have one shape; the device of ``expected`` does the computation.

        Differences and sums are fp64, so their rounding is far below any difference.
        """
        if got.shape != expected.shape:
            raise ValueError(f"a result of shape {tuple(got.shape)} has a reference of shape {tuple(expected.shape)}")
        rows = max(1, BLOCK // max(1, expected[:1].numel()))
        for some_got, some_expected in zip(got.split(rows), expected.split(rows), strict=True):
            self._add(some_got.to(expected.device, torch.float64), some_expected.double())

    def _add(self, a: Tensor, b: Tensor) -> None:
        distance = a - b
        sums = (distance.abs(), distance.square(), b.abs(), a.square(), b.square(), a * b)
        largest, *totals = torch.stack([distance.abs().max(), *(terms.sum() for terms in sums)]).tolist()
        self.largest = max(self.largest, _nan_to_inf(largest))
        self.count += distance.numel()
        self.sums = [before + now for before, now in zip(self.sums, totals, strict=True)]

    def measures(self, tensor: str = "out") -> dict[str, float]:
        """Return the five measures with their names for ``tensor``: ``out``, ``dq``, ``dk`` or ``dv``.

        A NaN in the result makes all errors infinite and the cosine -1: the worst values, which meet no limit and can
        be compared and plotted.
        """
        absolute, squared, of_b, a_a, b_b, a_b = self.sums
        values = (
            _nan_to_inf(self.largest),
            _nan_to_inf(absolute / self.count),
            _nan_to_inf(_ratio(absolute, of_b)),
            _nan_to_inf(math.sqrt(squared / self.count)),
            _cosine(a_a, b_b, a_b) if squared else 1.0,
        )
        suffix = "" if tensor == "out" else f"_{tensor}"
        return {f"{name}{suffix}": value for name, value in zip(MEASURES, values, strict=True)}


def _nan_to_inf(value: float) -> float:
    return math.inf if math.isnan(value) else value


def _ratio(distance: float, size: float) -> float:
    """Return the relative distance; from a reference of zeros any distance is infinite."""
    if size == 0:
        return math.inf if distance else 0.0
    return distance / size


def _cosine(a_a: float, b_b: float, a_b: float) -> float:
    """Return the cosine of two tensors that differ; 0, as of orthogonal tensors, if one of them is zero."""
    if a_a == 0 or b_b == 0:
        return 0.0
    cosine = a_b / (math.sqrt(a_a) * math.sqrt(b_b))
    return -1.0 if math.isnan(cosine) else min(1.0, max(-1.0, cosine))


# --- the reference ---------------------------------------------------------------------------------------------------

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
    """Return the measures of ``error_metrics`` for the tensors of ``produced``: ``out``, ``dq``, ``dk``, ``dv``.

    ``inputs`` are q, k, v and, for gradients, the upstream gradient; all ``(batch, seqlen, heads, head_dim)``, with
    ``kv_heads`` heads for k, v and their gradients. They are already rounded to the config's dtype.
    """
    differences = {name: Difference() for name in produced}
    with full_fp32_precision():
        for item, query_heads, shared in checked_heads(config, precision, backward=len(inputs) > 3):
            heads = {"out": query_heads, "dq": query_heads, "dk": shared, "dv": shared}
            given = [
                tensor[item, :, some]
                for tensor, some in zip(inputs, (query_heads, shared, shared, query_heads), strict=False)
            ]
            if precision == "fp64":
                given = [tensor.cpu() for tensor in given]
            for name, rows, expected in reference(config, *given, dtype=attention_config.REFERENCES[precision]):
                if name in differences:
                    differences[name].add(produced[name][item, rows, heads[name]], expected)
    return {
        name: value for tensor, difference in differences.items() for name, value in difference.measures(tensor).items()
    }


def checked_heads(config: AttentionConfig, precision: str, *, backward: bool) -> list[tuple[int, slice, slice]]:
    """Return (batch item, query heads, key/value heads) of the parts that are compared.

    In fp32 whole items where the budget allows; else single key/value heads, spread evenly, at least one: the last,
    where an index overflow would show.
    """
    all_heads, group = config.batch * config.kv_heads, config.group_size
    # Two products of 2 x queries x keys x head_dim forward; four more backward, which reuses the weights.
    of_one = (12 if backward else 4) * group * config.q_shape[1] * config.seqlen * config.head_dim
    count = max(1, min(all_heads, int(FLOPS[precision] / of_one)))
    if precision == "fp32" and count == all_heads:
        return [(item, slice(0, config.heads), slice(0, config.kv_heads)) for item in range(config.batch)]
    places = (divmod(all_heads - 1 - i * all_heads // count, config.kv_heads) for i in range(count))
    return [(item, slice(head * group, (head + 1) * group), slice(head, head + 1)) for item, head in places]


def checked_share(config: AttentionConfig, precision: str, *, backward: bool) -> float:
    """Return the share of the tensors that is compared."""
    heads = sum(part.stop - part.start for _, part, _ in checked_heads(config, precision, backward=backward))
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
