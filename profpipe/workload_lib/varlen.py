"""The implementations of attention over packed sequences."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from profpipe.workload_lib import (
    attention_config,
    inputs as attention_inputs,
    passes,
    requirements,
    varlen_calls,
    varlen_config,
)
from profpipe.workload_lib.implementations import IMPLEMENTATIONS as DENSE
from profpipe.workload_lib.requirements import Implementation
from profpipe.workload_lib.varlen_calls import Forward
from profpipe.workload_lib.varlen_config import Layout, VarlenConfig


@dataclass(frozen=True)
class VarlenImplementation:
    """An implementation of attention over packed sequences: how to call it, and what it supports.

    ``dense`` is the implementation of attention without packing that needs the same package and supports the same
    dtypes and head dims. ``family`` is the kernel family on an NVIDIA GPU; ``|`` separates alternatives. ``apis`` are
    the variants of its interface. ``grouped``: fewer key/value heads than query heads are supported.
    """

    prepare: Callable[[VarlenConfig], Forward]
    layout: Callable[[VarlenConfig], Layout]
    family: str
    dense: Implementation
    apis: tuple[str, ...] = ("varlen",)
    grouped: bool = True


IMPLEMENTATIONS: Mapping[str, VarlenImplementation] = {
    "fa2": VarlenImplementation(
        varlen_calls.flash_attn("flash_attn"), varlen_calls.flash_layout, "fa2", DENSE["fa2"], varlen_config.APIS
    ),
    "fa3": VarlenImplementation(
        varlen_calls.flash_attn("flash_attn_interface"),
        varlen_calls.flash_layout,
        "fa3",
        DENSE["fa3"],
        ("func", "varlen"),
    ),
    "fa4": VarlenImplementation(
        varlen_calls.flash_attn("flash_attn.cute"), varlen_calls.flash_layout, "fa4", DENSE["fa4"], ("func", "varlen")
    ),
    "xformers": VarlenImplementation(
        varlen_calls.xformers,
        varlen_config.batch_of_one,
        "fa2|fa3|cutlass_fmha",  # the first of its operators that supports the case
        DENSE["xformers"],
    ),
    "torch_varlen": VarlenImplementation(
        varlen_calls.torch_varlen,
        varlen_config.packed,
        "fa2",
        replace(
            DENSE["sdpa_flash"],
            package="torch.nn.attention.varlen",
            install="It is a part of torch since 2.10: pip install 'torch>=2.10'",
            on_cpu=False,
            dtypes=("fp16", "bf16"),
            max_head_dim=256,
        ),
    ),
    "flex": VarlenImplementation(varlen_calls.flex, varlen_config.heads_first, "flex", DENSE["flex"]),
    "sdpa_nested": VarlenImplementation(
        varlen_calls.sdpa_nested,
        varlen_config.nested,
        "fa2|cutlass_fmha",
        replace(DENSE["sdpa_flash"], least_sm=(0, 0)),
        grouped=False,
    ),
    "sdpa_loop": VarlenImplementation(varlen_calls.sdpa_loop, varlen_config.one_by_one, "fa2", DENSE["sdpa_flash"]),
}


def expected_family(config: VarlenConfig) -> str:
    """Return the kernel family that a trace must contain; ``a|b``: any of them; empty on a CPU."""
    row = IMPLEMENTATIONS[config.impl]
    if attention_config.device() == "cpu":
        return ""
    return row.dense.rocm_family if torch.version.hip else row.family


def inputs(config: VarlenConfig) -> list[Tensor]:
    """Draw q, k, v and, for the backward pass, the upstream gradient: packed, normal, equal for all implementations."""
    shapes = [config.q_shape, config.kv_shape, config.kv_shape] + [config.q_shape] * config.needs_grad
    return attention_inputs.normal(shapes, config.dtype, config.seed)


def iteration(config: VarlenConfig, phase: passes.Phase) -> Callable[[], tuple[Tensor, ...]]:
    """Return one iteration, with each pass in a ``phase``.

    It returns the outputs in the layout of q, and the gradients in the layout of the arguments.
    """
    row = IMPLEMENTATIONS[config.impl]
    layout, forward = row.layout(config), row.prepare(config)
    q, k, v, *upstream = inputs(config)
    arguments = [tensor.requires_grad_(config.needs_grad) for tensor in layout.arguments(q, k, v)]

    def gradients(outs: tuple[Tensor, ...]) -> list[Tensor]:
        """Use the strides of the outputs. Nested tensors are contiguous, and cannot be copied so."""
        pairs = zip(outs, layout.split(*upstream), strict=True)
        return [part if part.is_nested else torch.empty_like(out).copy_(part) for out, part in pairs]

    return passes.iteration(forward, arguments, config.mode, gradients, phase)


def produced(config: VarlenConfig) -> dict[str, Tensor]:
    """Return the output and, with a backward pass, the gradients of one call, packed: out, dq, dk and dv."""
    layout, results = IMPLEMENTATIONS[config.impl].layout(config), iteration(config, nullcontext)()
    found = {"out": layout.join([out.detach() for out in results[: layout.parts]])}
    if gradients := results[layout.parts :]:
        found |= zip(("dq", "dk", "dv"), layout.packed(gradients), strict=True)
    return found


def unavailable_reason(config: VarlenConfig) -> str | None:
    """Return why the implementation cannot run ``config`` here and the remedy, or None.

    Known limits are looked up; the rest is tried by one call of a few short sequences.
    """
    row = IMPLEMENTATIONS[config.impl]
    every = {name: other.dense for name, other in IMPLEMENTATIONS.items()}
    return (
        _unsupported(config, row)
        or requirements.missing_device(config.impl, config.dtype, row.dense, every)
        or requirements.missing_package(config.impl, row.dense)
        or _rejection(config, row)
    )


def _unsupported(config: VarlenConfig, row: VarlenImplementation) -> str | None:
    """Return a limit of the implementation on every machine."""
    if wrong := requirements.unsupported_tensor(config.impl, config.dtype, config.head_dim, row.dense):
        return wrong
    if config.group_size > 1 and not row.grouped:
        return f"{config.impl} needs as many key/value heads as query heads. Use kvheads: {config.qheads}."
    if (api := config.api) not in row.apis:
        return f"{config.impl} has no form {api}. Use api: {' or '.join(row.apis)}."
    if not api.startswith("varlen") and not config.equally_long:
        return f"api: {api} takes sequences of one length, not {config.seqlens}. Use a form that begins with varlen."
    if config.group_size > 1 and api.endswith("qkvpacked"):
        return f"api: {api} needs as many key/value heads as query heads. Use kvheads: {config.qheads}."
    return None


def _rejection(config: VarlenConfig, row: VarlenImplementation) -> str | None:
    """Return why a call with a few short sequences fails."""
    short = ",".join(str(min(length, 128 + length % 128)) for length in config.lengths[:3])
    error = requirements.trial_error(_call_once, row.dense.package, replace(config, seqlens=short), row)
    if error is None:
        return None
    return (
        f"{config.impl} rejects this case: {error}. "
        f"Change head_dim, dtype, kvheads, causal or mode, or use another build of {row.dense.package or 'torch'}."
    )


def _call_once(config: VarlenConfig, _: VarlenImplementation) -> None:
    iteration(config, nullcontext)()
    if attention_config.device() == "cuda":
        torch.cuda.synchronize()
