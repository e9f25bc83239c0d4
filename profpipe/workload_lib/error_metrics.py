"""The difference of a result ``a`` from a reference ``b`` of n elements, in five measures summed block by block.

* ``error_max``: max |a - b|; ``error_mean``: (1/n) sum |a - b|; ``error_rmse``: sqrt((1/n) sum (a - b)^2)
* ``error_rel_l1``: sum |a - b| / sum |b|; ``cosine``: sum a b / (sqrt(sum a^2) sqrt(sum b^2))

Relative L1, RMSE and cosine are the measures of SageAttention (arXiv 2410.02367) and its successors. Relative L1 and
the cosine do not scale with the data. Names of gradients end in ``_dq``, ``_dk`` and ``_dv``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

MEASURES = ("error_max", "error_mean", "error_rel_l1", "error_rmse", "cosine")

#: Elements in fp64 at once: 128 MiB for each of the four tensors of a block.
BLOCK = 2**24


@dataclass
class Difference:
    """The difference of one tensor from its reference, over the blocks added so far."""

    largest: float = 0.0
    count: int = 0
    #: |a - b|, (a - b)^2, |b|, a^2, b^2 and a b, each summed.
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
        largest, *found = torch.stack([distance.abs().max(), *(terms.sum() for terms in sums)]).tolist()
        self.largest = max(self.largest, _nan_to_inf(largest))
        self.count += distance.numel()
        self.sums = [before + now for before, now in zip(self.sums, found, strict=True)]

    def measures(self, tensor: str = "out") -> dict[str, float]:
        """Return the five measures with their names for ``tensor``: ``out``, ``dq``, ``dk`` or ``dv``.

        A NaN in the result makes every error infinite and the cosine -1: the worst values, which meet no limit and can
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
