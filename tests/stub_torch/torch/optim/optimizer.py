"""Optimizers that change nothing but the counts of changes, and call the hooks that are registered for all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch.tensors import Tensor

_hooks: list[Callable[..., None]] = []


def register_optimizer_step_post_hook(hook: Callable[..., None]) -> None:
    """Have ``hook`` called after each step of each optimizer."""
    _hooks.append(hook)


class Optimizer:
    def __init__(self, params: Iterable[Tensor], lr: float = 0.001) -> None:
        self.param_groups = [{"params": list(params), "lr": lr}]

    def zero_grad(self) -> None:
        """There are no gradients."""

    def step(self) -> None:
        for parameter in self.param_groups[0]["params"]:
            parameter._version += 1
        for hook in _hooks:
            hook(self, (), {})


class SGD(Optimizer): ...


class Adam(Optimizer): ...


class AdamW(Optimizer): ...
