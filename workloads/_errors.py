"""How far a result is from a reference, in five measures gathered block by block.

For the result ``a`` and the reference ``b``, over all n elements:

* ``error_max``: max |a - b|
* ``error_mean``: (1/n) sum |a - b|
* ``error_rel_l1``: sum |a - b| / sum |b|
* ``error_rmse``: sqrt((1/n) sum (a - b)^2)
* ``cosine``: sum a b / (sqrt(sum a^2) sqrt(sum b^2))

The last three are the measures of SageAttention (arXiv 2410.02367) and its successors. The first two and the RMSE have
the size of the data; relative L1 and the cosine do not, so those compare shapes and can be held to a limit.

The names stand for the output; those of gradients end in ``_dq``, ``_dk`` and ``_dv``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

MEASURES = ("error_max", "error_mean", "error_rel_l1", "error_rmse", "cosine")

#: Elements that are held in fp64 at once: 128 MiB for each of the four tensors that a block needs.
BLOCK = 2**24

#: |a - b|, (a - b)^2, |b|, a^2, b^2 and a b, each summed.
_SUMS = 6


@dataclass
class Difference:
    """What is known of one tensor's difference from its reference, from the blocks seen so far."""

    largest: float = 0.0
    count: int = 0
    sums: list[float] = field(default_factory=lambda: [0.0] * _SUMS)

    def add(self, got: Tensor, expected: Tensor) -> None:
        """Takes in a block: ``got`` and ``expected`` have one shape, and any dtype and device, where the latter's is
        computed on.

        Differences and sums are fp64, whatever the two are in: their own rounding is far below what is measured.
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
        self.largest = _worse(self.largest, largest)
        self.count += distance.numel()
        self.sums = [before + now for before, now in zip(self.sums, found, strict=True)]

    def measures(self, tensor: str = "out") -> dict[str, float]:
        """The five measures under their names for ``tensor``: ``out``, ``dq``, ``dk`` or ``dv``.

        A NaN in the result makes every error infinite and the cosine -1: the worst that each can be, so that no limit
        is met, and numbers that can be compared and plotted.
        """
        absolute, squared, of_b, a_a, b_b, a_b = self.sums
        values = (
            _or_infinite(self.largest),
            _or_infinite(absolute / self.count),
            _or_infinite(_ratio(absolute, of_b)),
            _or_infinite(math.sqrt(squared / self.count)),
            _cosine(a_a, b_b, a_b) if squared else 1.0,
        )
        suffix = "" if tensor == "out" else f"_{tensor}"
        return {f"{name}{suffix}": value for name, value in zip(MEASURES, values, strict=True)}


def _worse(one: float, other: float) -> float:
    return math.inf if math.isnan(other) else max(one, other)


def _or_infinite(value: float) -> float:
    return math.inf if math.isnan(value) else value


def _ratio(distance: float, size: float) -> float:
    """Of a reference that is zero everywhere only zero is no distance away."""
    if size == 0:
        return math.inf if distance else 0.0
    return distance / size


def _cosine(a_a: float, b_b: float, a_b: float) -> float:
    """Of two tensors that differ. A zero and anything else are as far apart as orthogonal ones."""
    if a_a == 0 or b_b == 0:
        return 0.0
    cosine = a_b / (math.sqrt(a_a) * math.sqrt(b_b))
    return -1.0 if math.isnan(cosine) else min(1.0, max(-1.0, cosine))
