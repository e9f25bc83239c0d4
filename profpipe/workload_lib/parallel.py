"""Attention over several processes: how q, k and v ``(batch, heads, seqlen, head_dim)`` are sharded and computed.

With all methods a process has one shard of the sequence, so the methods are interchangeable in a model.
``ring_allgather`` and ``ring_alltoall`` are PyTorch's context parallelism
(``torch.distributed.tensor.experimental._attention``, an unstable interface; written against torch 2.11 and 2.13).
DTensor passes ``scaled_dot_product_attention`` to the ring on GPUs only; on a CPU the ring is called with the flash
operator of CPUs. ``heads`` shards heads during the attention (DeepSpeed-Ulysses, arXiv 2309.14509) by DTensor's
all-to-all; on a CPU DTensor gathers everything and keeps its part. ``single`` computes everything in all processes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from profpipe.workload_lib import attention_config, implementations

RINGS = {"ring_allgather": "allgather", "ring_alltoall": "alltoall"}
METHODS = (*RINGS, "heads", "single")

SEQUENCE, HEADS = 2, 1

#: q, k, v -> out, for the shards of this process.
Forward = Callable[[Tensor, Tensor, Tensor], Tensor]


def world() -> int:
    """Return the number of processes; 1 without a process group."""
    distributed = torch.distributed
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def is_balanced(causal: bool, load_balance: bool) -> bool:
    """Return True if the ring shards its sequence in pairs of chunks; without a mask the load is equal anyway."""
    return causal and load_balance


def missing_context_parallel() -> str | None:
    """Return why PyTorch's context parallelism cannot be used, or None."""
    try:
        ring_module()
        _backward_template()
    except (ImportError, AttributeError) as error:
        return (
            f"torch {torch.__version__} has no context parallelism in the form of torch 2.11 to 2.13 ({error}). "
            "Install one of these, or use method: heads."
        )
    return None


def shards(tensors: Sequence[Tensor], method: str, *, causal: bool, load_balance: bool) -> list[Tensor]:
    """Return this process's shard of the tensors as copies. Nothing is sent: all processes have the whole tensors."""
    if method == "single":
        return list(tensors)
    if method == "heads":
        rank = torch.distributed.get_rank()
        return [tensor.chunk(world(), SEQUENCE)[rank].clone() for tensor in tensors]
    seqlen, device = tensors[0].shape[SEQUENCE], tensors[0].device
    even = is_balanced(causal, load_balance)
    # This also sets the balancing of the ring for the next call.
    balancer = ring_module()._HeadTailLoadBalancer(seqlen, world(), device) if even else None
    parts = ring_module()._context_parallel_shard(_mesh(), tensors, [SEQUENCE] * len(tensors), balancer)
    return [part.clone() for part in parts]


def prepare(method: str, config: attention_config.AttentionConfig) -> Forward:
    """Return the function that computes attention by ``method`` on the shards; all processes must call it together.

    ``config.impl`` is the backend of scaled_dot_product_attention, ``config.seqlen`` the length of the whole sequence.
    """
    plain = implementations.IMPLEMENTATIONS[config.impl].prepare(config)
    if method == "single":
        return plain
    if method == "heads":
        return _shard_heads(plain)
    ring_module().set_rotate_method(RINGS[method])
    if attention_config.device() == "cuda":
        return ring_on_gpu(plain)
    group = _mesh().get_group()
    return lambda q, k, v: _CpuRing.apply(q, k, v, group, config.causal)


@functools.cache
def _mesh() -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh(attention_config.device(), (world(),))


def ring_module() -> Any:
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


def ring_on_gpu(plain: Forward) -> Forward:
    from torch.distributed.tensor.parallel import parallelize_module

    ring = ring_module()
    # Never disabled: nothing else here passes DTensors to scaled_dot_product_attention.
    ring._enable_context_parallel_dispatcher()
    style = ring._ContextParallel(SEQUENCE, ring._ContextParallel.AttentionType.SDPA)
    return parallelize_module(_Attention(plain), _mesh(), style)


class _CpuRing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, group: Any, causal: bool) -> Tensor:
        operator = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
        out, log_sum_exp, *_ = ring_module()._templated_ring_attention(
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


def _shard_heads(plain: Forward) -> Forward:
    from torch.distributed.tensor import DTensor, Shard

    def moved(tensor: Tensor, before: int, after: int) -> Tensor:
        whole = DTensor.from_local(tensor, _mesh(), [Shard(before)], run_check=False)
        return whole.redistribute(placements=[Shard(after)]).to_local()

    def forward(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        by_heads = (moved(tensor, SEQUENCE, HEADS) for tensor in (q, k, v))
        return moved(plain(*by_heads), HEADS, SEQUENCE)

    return forward
