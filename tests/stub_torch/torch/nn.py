"""Modules whose calls return tensors of the right shape."""

from __future__ import annotations

from collections.abc import Iterator

from torch.tensors import Tensor


class Module:
    def __init__(self, *sizes: int) -> None:
        """Make weights for a layer of ``sizes``; none without."""
        self.weights = [Tensor(*reversed(sizes)), Tensor(sizes[-1])] if sizes else []

    def __call__(self, *args: Tensor) -> Tensor:
        return self.forward(*args)

    def forward(self, x: Tensor, *_: Tensor) -> Tensor:
        return x

    def parameters(self) -> Iterator[Tensor]:
        yield from self.weights
        for child in vars(self).values():
            if isinstance(child, Module):
                yield from child.parameters()


class Linear(Module):
    def forward(self, x: Tensor, *_: Tensor) -> Tensor:
        return Tensor(*x.shape[:-1], self.weights[-1].shape[0])


class Sequential(Module):
    def __init__(self, *layers: Module) -> None:
        super().__init__()
        vars(self).update({str(number): layer for number, layer in enumerate(layers)})
        self.layers = layers

    def forward(self, x: Tensor, *_: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class ReLU(Module): ...


class Sigmoid(Module): ...


class MSELoss(Module): ...


def Parameter(tensor: Tensor) -> Tensor:
    return tensor
