"""One iteration of a call of attention: the forward pass, the backward pass, or both, each in a range."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor

#: Puts a range around a block: ``annotate``, or ``nullcontext`` for none.
Phase = Callable[[str], AbstractContextManager[object]]

MODES = ("fwd", "bwd", "fwd_bwd")

#: FLOPs of a mode in those of the forward pass: the backward pass computes the scores again.
FLOPS_FACTOR = {"fwd": 1, "bwd": 2.5, "fwd_bwd": 3.5}


def iteration(
    forward: Callable[..., Tensor | tuple[Tensor, ...]],
    inputs: Sequence[Tensor],
    mode: str,
    upstream: Sequence[Tensor] | Callable[[tuple[Tensor, ...]], Sequence[Tensor]],
    phase: Phase,
) -> Callable[[], tuple[Tensor, ...]]:
    """Return one iteration, which returns (outputs..., gradients of ``inputs``...).

    ``upstream`` are the gradients of the outputs, or makes them for the outputs of a first call, whose strides are not
    known before. Mode ``bwd`` keeps the graph of that call.
    """

    def forward_pass() -> tuple[Tensor, ...]:
        with phase("forward"):
            return as_tuple(forward(*inputs))

    if mode == "fwd":
        return forward_pass
    kept = as_tuple(forward(*inputs)) if mode == "bwd" or callable(upstream) else ()
    gradients = upstream(kept) if callable(upstream) else upstream

    def backward_pass() -> tuple[Tensor, ...]:
        with phase("backward"):
            return (*kept, *torch.autograd.grad(kept, inputs, gradients, retain_graph=True))

    def both_passes() -> tuple[Tensor, ...]:
        outs = forward_pass()
        with phase("backward"):
            return (*outs, *torch.autograd.grad(outs, inputs, gradients))

    return backward_pass if mode == "bwd" else both_passes


def as_tuple(out: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return out if isinstance(out, tuple) else (out,)


def least_bytes(mode: str, q: float, kv: float, query_rows: float) -> float:
    """Return the bytes that a call must read and write at least; ``q`` and ``kv`` are the bytes of q, and of k and v.

    The forward pass writes a log-sum-exp (fp32) for each query row where the backward pass needs it.
    """
    log_sum_exp = 0 if mode == "fwd" else 4 * query_rows
    forward, backward = 2 * q + kv + log_sum_exp, 4 * q + 2 * kv + log_sum_exp
    return {"fwd": forward, "bwd": backward, "fwd_bwd": forward + backward}[mode]
