"""Attention over several processes: how q, k and v are parted among them, and what each of them runs.

Every process has one shard of the sequence of q, k, v, of the output and of the gradients, whatever the method, so that
the methods can take each other's place in a model. Tensors are ``(batch, heads, seqlen, head_dim)``.

``ring_allgather`` and ``ring_alltoall`` are PyTorch's own context parallelism
(``torch.distributed.tensor.experimental._attention``, an interface that is still in motion; written against torch 2.11
and 2.13). On a GPU it is reached the way a model reaches it: ``parallelize_module`` with ``_ContextParallel`` makes
DTensors of q, k, v, and DTensor's dispatcher hands ``scaled_dot_product_attention`` to the ring. That dispatcher knows
the operators of the flash, efficient and cuDNN backends, which exist on GPUs only. On a CPU the same ring
(``_templated_ring_attention`` and its backward pass) is called with the CPU's flash operator; DTensor's own handling of
a CPU's attention is no ring, and in torch 2.11 it has none.

``heads`` shards heads instead for the time of the attention (DeepSpeed-Ulysses, arXiv 2309.14509): DTensor
redistributes q, k, v from sequence to heads and the output back, an all-to-all each. On a CPU DTensor has no such
all-to-all, and gathers everything to keep its part.

``single`` is no parallelism: every process computes the whole by itself, which is what one GPU takes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from profpipe import load

if TYPE_CHECKING:
    import _implementations
    import _setting
else:
    _implementations = load.module(Path(__file__).with_name("_implementations.py"))
    _setting = load.module(Path(__file__).with_name("_setting.py"))

RINGS = {"ring_allgather": "allgather", "ring_alltoall": "alltoall"}
METHODS = (*RINGS, "heads", "single")

SEQUENCE, HEADS = 2, 1

#: q, k, v -> out, of this process's shards.
Forward = Callable[[Tensor, Tensor, Tensor], Tensor]


def world() -> int:
    """How many processes work together; 1 where no process group was made."""
    distributed = torch.distributed
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def balanced(causal: bool, load_balance: bool) -> bool:
    """Whether the ring deals out its sequence in pairs of chunks: without a mask all have the same to do anyway."""
    return causal and load_balance


def missing() -> str | None:
    """Why PyTorch's context parallelism cannot be used, or None."""
    try:
        _ring()
        _backward_template()
    except (ImportError, AttributeError) as error:
        return (
            f"torch {torch.__version__} has no context parallelism in the form of torch 2.11 to 2.13 ({error}). "
            "Install one of these, or use method: heads."
        )
    return None


def shards(tensors: Sequence[Tensor], method: str, *, causal: bool, load_balance: bool) -> list[Tensor]:
    """This process's part of each whole tensor, in memory of its own. Nothing is sent: every process has the whole."""
    if method == "single":
        return list(tensors)
    if method == "heads":
        return [tensor.chunk(world(), SEQUENCE)[_rank()].clone() for tensor in tensors]
    seqlen, device = tensors[0].shape[SEQUENCE], tensors[0].device
    even = balanced(causal, load_balance)
    # Also tells the ring how the sequence was dealt out, for whatever runs next.
    balancer = _ring()._HeadTailLoadBalancer(seqlen, world(), device) if even else None
    parts = _ring()._context_parallel_shard(_mesh(), tensors, [SEQUENCE] * len(tensors), balancer)
    return [part.clone() for part in parts]


def prepare(method: str, setting: _setting.Setting) -> Forward:
    """What computes attention by ``method`` on the shards of all processes; they must all call it together.

    ``setting.impl`` names the backend of scaled_dot_product_attention, ``setting.seqlen`` is the whole sequence.
    """
    plain = _implementations.IMPLEMENTATIONS[setting.impl].prepare(setting)
    if method == "single":
        return plain
    if method == "heads":
        return _by_heads(plain)
    _ring().set_rotate_method(RINGS[method])
    return _ring_on_gpu(plain) if _setting.device() == "cuda" else _ring_on_cpu(setting.causal)


def _rank() -> int:
    return torch.distributed.get_rank()


@functools.cache
def _mesh() -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh(_setting.device(), (world(),))


# --- PyTorch's ring --------------------------------------------------------------------------------------------------


def _ring() -> Any:
    from torch.distributed.tensor.experimental import _attention

    _attention._ContextParallel, _attention._templated_ring_attention  # noqa: B018 (AttributeError in older releases)
    return _attention


def _backward_template() -> Any:
    from torch.distributed.tensor.experimental._context_parallel import _attention

    return _attention._templated_ring_attention_backward


class _Attention(torch.nn.Module):
    def __init__(self, plain: Forward) -> None:
        super().__init__()
        self._plain = plain

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self._plain(q, k, v)


def _ring_on_gpu(plain: Forward) -> Forward:
    from torch.distributed.tensor.parallel import parallelize_module

    ring = _ring()
    # Stays on: nothing else here gives DTensors to scaled_dot_product_attention.
    ring._enable_context_parallel_dispatcher()
    style = ring._ContextParallel(SEQUENCE, ring._ContextParallel.AttentionType.SDPA)
    return parallelize_module(_Attention(plain), _mesh(), style)


def _ring_on_cpu(causal: bool) -> Forward:
    group = _mesh().get_group()
    return lambda q, k, v: _CpuRing.apply(q, k, v, group, causal)


class _CpuRing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, group: Any, causal: bool) -> Tensor:
        operator = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
        out, log_sum_exp, *_ = _ring()._templated_ring_attention(
            group, SEQUENCE, operator, q, k, v, is_causal=causal, dropout_p=0.0
        )
        ctx.save_for_backward(q, k, v, out, log_sum_exp)
        ctx.group, ctx.causal = group, causal
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        q, k, v, out, log_sum_exp = ctx.saved_tensors
        dq, dk, dv, *_ = _backward_template()(
            ctx.group,
            SEQUENCE,
            torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
            grad_out=gradients[0],
            grad_out_name="grad_out",
            query=q,
            key=k,
            value=v,
            out=out,
            logsumexp=log_sum_exp,
            is_causal=ctx.causal,
            dropout_p=0.0,
        )
        return dq, dk, dv, None, None


# --- heads -----------------------------------------------------------------------------------------------------------


def _by_heads(plain: Forward) -> Forward:
    from torch.distributed.tensor import DTensor, Shard

    def moved(tensor: Tensor, before: int, after: int) -> Tensor:
        whole = DTensor.from_local(tensor, _mesh(), [Shard(before)], run_check=False)
        return whole.redistribute(placements=[Shard(after)]).to_local()

    def forward(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        by_heads = (moved(tensor, SEQUENCE, HEADS) for tensor in (q, k, v))
        return moved(plain(*by_heads), HEADS, SEQUENCE)

    return forward
