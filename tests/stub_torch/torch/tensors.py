"""Tensors that have a shape and a count of changes, and no values."""

from __future__ import annotations


class Tensor:
    def __init__(self, *shape: int, dtype: str = "float32", **_: object) -> None:
        self.shape, self.dtype, self._version = shape, dtype, 0

    def is_floating_point(self) -> bool:
        return self.dtype != "int64"

    def backward(self) -> None:
        """Compute no gradient."""

    def item(self) -> float:
        return 0.0

    def as_it_is(self, *_: object, **__: object) -> Tensor:
        return self

    sum = mean = square = detach = cumsum = __add__ = __mul__ = __matmul__ = as_it_is


ones = randn = zeros = Tensor
