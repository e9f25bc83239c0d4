"""One case of attention: inputs, iteration, work, and differences from the reference."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from profpipe.workload_lib import accuracy, attention_config
from profpipe.workload_lib.attention_config import AttentionConfig
from profpipe.workload_lib.implementations import IMPLEMENTATIONS
from profpipe.workload_lib.parameters import check_choice


def case_from(params: Mapping[str, Any]) -> AttentionConfig:
    """Return the case of ``params``. Raises ValueError for a wrong value."""
    check_choice("impl", params["impl"], IMPLEMENTATIONS)
    return AttentionConfig(**params)


def iteration(case: AttentionConfig, phase: attention_config.Phase) -> Callable[[], tuple[Tensor, ...]]:
    """Return one iteration, with its passes in a ``phase``; the iteration returns (output, gradients...)."""
    row = IMPLEMENTATIONS[case.impl]
    forward = row.prepare(case)
    q, k, v, *upstream = attention_config.draw(case)
    arguments = [row.view(tensor).contiguous().requires_grad_(case.needs_grad) for tensor in (q, k, v)]

    def gradient(outs: tuple[Tensor, ...]) -> list[Tensor]:
        # cuDNN's backward pass would copy a gradient with other strides than the output's.
        return [torch.empty_like(outs[0]).copy_(row.view(upstream.pop()).reshape(outs[0].shape))]

    return attention_config.iteration(forward, arguments, case.mode, gradient, phase)


def results(case: AttentionConfig) -> dict[str, Tensor]:
    """Return the output and gradients of one call as ``(batch, seqlen, heads, head_dim)``."""
    view = IMPLEMENTATIONS[case.impl].view
    shapes = (case.q_shape, case.q_shape, case.kv_shape, case.kv_shape)
    return {
        name: view(tensor.detach()).reshape(shape)
        for name, tensor, shape in zip(("out", "dq", "dk", "dv"), iteration(case, nullcontext)(), shapes, strict=False)
    }


def dense_flops(case: AttentionConfig) -> float:
    """Return the FLOPs of the two matrix products without sparsity."""
    visible_keys = (2 * case.seqlen - case.queries) / 2 if case.has_mask else case.seqlen
    forward = 4 * case.batch * case.heads * case.queries * visible_keys * case.head_dim
    return forward * attention_config.FLOPS_FACTOR[case.mode]


def bytes_moved(case: AttentionConfig) -> float:
    """Return the bytes that a call must read and write at least, all tensors once."""
    element = attention_config.DTYPES[case.dtype].itemsize
    of_q, of_kv = math.prod(case.q_shape) * element, 2 * math.prod(case.kv_shape) * element
    return attention_config.least_bytes(case.mode, of_q, of_kv, case.batch * case.heads * case.queries)


def facts(case: AttentionConfig) -> dict[str, tuple[float, str]]:
    """Return sparsity, memory between the passes, and the checked share, where they apply."""
    row = IMPLEMENTATIONS[case.impl]
    metrics: dict[str, tuple[float, str]] = {}
    if row.sparsity is not None:
        skipped = row.sparsity(case)(*(row.view(tensor).contiguous() for tensor in attention_config.draw(case)[:3]))
        metrics |= {"sparsity": (100 * skipped, "%"), "flops_effective": (dense_flops(case) * (1 - skipped), "flop")}
        metrics |= {"sparsity_requested": (100 * (1 - case.topk), "%")} if case.topk is not None else {}
    if case.needs_grad and attention_config.device() == "cuda":
        memory = memory_before_backward(case, torch.cuda.memory_allocated)
        metrics["memory_before_backward"] = (float(memory), "byte")
    share = accuracy.checked_share(case, case.reference, backward=case.needs_grad)
    return metrics | ({"checked": (100 * share, "%")} if share < 1 else {})


def memory_before_backward(case: AttentionConfig, allocated: Callable[[], int]) -> int:
    """Return the bytes in use after a forward pass: q, k, v, mask, output, and tensors saved for the backward pass."""
    # cuBLAS keeps a workspace from its first call on (32 MiB on an H200), which belongs to no pass.
    tiny = torch.zeros(1, 16, 16, device=attention_config.device())
    torch.bmm(tiny, tiny)
    del tiny
    before = allocated()
    row = IMPLEMENTATIONS[case.impl]
    forward = row.prepare(case)
    arguments = [row.view(tensor).contiguous().requires_grad_() for tensor in attention_config.draw(case)[:3]]
    out = forward(*arguments)
    in_use = allocated() - before
    del out  # which kept the graph until now
    return in_use


def differences(case: AttentionConfig) -> dict[str, float]:
    """Return the differences of output and gradients from the reference for the same rounded inputs."""
    produced = results(case)
    # Drawn again, because an implementation may write into its inputs (SageAttention 1 does).
    drawn = attention_config.draw(case)
    # A smaller GPU would not need memory for the reference.
    cap_memory(0)
    return accuracy.measure_differences(case, case.reference, produced, drawn)


def impossible_cap(case: AttentionConfig) -> str | None:
    """Return why the memory cap cannot be set here, or None."""
    if not case.memory_cap_gib:
        return None
    if attention_config.device() == "cpu":
        return "memory_cap_gib limits torch's memory on a GPU, and torch sees none. Use memory_cap_gib: 0."
    total = torch.cuda.mem_get_info()[1] / 2**30
    if case.memory_cap_gib > total:
        return f"memory_cap_gib {case.memory_cap_gib:g} is more than this GPU has. Use 0, or less than {total:.1f}."
    return None


def cap_memory(gib: float) -> None:
    """Limit the GPU memory that torch may reserve, for all later calls; 0: no limit.

    The limit is on reserved memory, as a smaller GPU would run out of it. The CUDA context, some 0.5 GiB, is not
    included, but needs memory on a real GPU.
    """
    if attention_config.device() == "cuda":
        total = torch.cuda.mem_get_info()[1]
        torch.cuda.set_per_process_memory_fraction(min(1.0, gib * 2**30 / total) if gib else 1.0)
