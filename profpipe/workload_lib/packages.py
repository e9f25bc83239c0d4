"""Attention from packages other than torch: how to call each one, and which kernels it runs.

Functions import their package themselves, so that the others work without it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from importlib import metadata
from typing import Any

import torch
from torch import Tensor

from profpipe.workload_lib import attention_config
from profpipe.workload_lib.attention_config import AttentionConfig, Forward


def flash_attn(module: str) -> Callable[[AttentionConfig], Forward]:
    """Return the function that prepares calls of FlashAttention 2, 3 or 4."""

    def prepare(config: AttentionConfig) -> Forward:
        call = importlib.import_module(module).flash_attn_func
        return lambda q, k, v: output(call(q, k, v, causal=config.has_mask))

    return prepare


def output(returned: Tensor | tuple[Tensor, ...]) -> Tensor:
    """FlashAttention 4, and 3 up to the beta of August 2025, also return the log-sum-exp, or None."""
    return returned[0] if isinstance(returned, tuple) else returned


def sage(config: AttentionConfig) -> Forward:
    """Call the installed SageAttention, 1.0.6 or 2.x; on Hopper, 2.x chooses its fp8 kernel for sm_90."""
    from sageattention import sageattn

    return lambda q, k, v: sageattn(q, k, v, tensor_layout="HND", is_causal=config.has_mask)


def sage_1(config: AttentionConfig) -> Forward:
    """Call SageAttention 1.x, or its Triton kernel in 2.x: QK in int8 per block, PV in fp16."""
    module = importlib.import_module("sageattention")
    call = getattr(module, "sageattn_qk_int8_pv_fp16_triton", module.sageattn)
    return lambda q, k, v: call(q, k, v, tensor_layout="HND", is_causal=config.has_mask)


def _sage_version() -> str:
    """Return the installed version; empty without one."""
    try:
        return metadata.version("sageattention")
    except metadata.PackageNotFoundError:
        return ""


def sage_family(config: AttentionConfig) -> str:
    if not (version := _sage_version()):
        return "sage1|sage2"
    return "sage1" if version.startswith("1.") else sage_2_family(config)


def sage_2_family(config: AttentionConfig) -> str:
    """On sm_86, 2.x runs the Triton kernel of 1.x."""
    return "sage1|sage2" if torch.cuda.get_device_capability() == (8, 6) else "sage2"


def sage_products() -> tuple[str, str] | None:
    """Return the data types of QK and PV in the installed version; None without one."""
    if not (version := _sage_version()):
        return None
    return ("int8", "fp16") if version.startswith("1.") else sage_2_products()


def sage_2_products() -> tuple[str, str] | None:
    """From sm_89 on, 2.x computes PV in fp8, before in fp16; None without a GPU."""
    if attention_config.device() == "cpu":
        return None
    return "int8", "fp8" if torch.cuda.get_device_capability() >= (8, 9) else "fp16"


def xformers(config: AttentionConfig) -> Forward:
    from xformers.ops import memory_efficient_attention
    from xformers.ops.fmha import attn_bias

    mask = _xformers_mask(config, attn_bias)
    return lambda q, k, v: memory_efficient_attention(*with_group_axis(config.group_size, q, k, v), attn_bias=mask)


def _xformers_mask(config: AttentionConfig, attn_bias: Any) -> Any:
    if not config.has_mask:
        return None
    equal = config.queries == config.seqlen
    return attn_bias.LowerTriangularMask() if equal else attn_bias.LowerTriangularFromBottomRightMask()


def with_group_axis(group_size: int, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Add an axis for the query heads of a group, over which K and V are expanded: views that xformers supports."""
    if group_size == 1:
        return q, k, v
    k, v = (tensor.unsqueeze(3).expand(-1, -1, -1, group_size, -1) for tensor in (k, v))
    return q.unflatten(2, (-1, group_size)), k, v


def xformers_family(config: AttentionConfig) -> str:
    """Return the family of the first operator that accepts the inputs: FlashAttention 3 or 2 if installed, or CUTLASS.

    ``xformers.ops.fmha.dispatch`` chooses the operator. It is not public; without it any of the families is expected.
    """
    families = {"fa3": "fa3", "flash3": "fa3", "fa2": "fa2", "flshatt": "fa2", "cutlass": "cutlass_fmha", "ck": "ck"}
    any_family = "cutlass_fmha|fa2|fa3"
    try:
        fmha = importlib.import_module("xformers.ops.fmha")
        dispatch = importlib.import_module("xformers.ops.fmha.dispatch")
    except ImportError:
        return any_family
    options = {"dtype": attention_config.DTYPES[config.dtype], "device": attention_config.device()}
    # One token: the operator does not depend on the lengths.
    heads = (config.heads, config.kv_heads, config.kv_heads)
    q, k, v = (torch.empty(1, 1, count, config.head_dim, **options) for count in heads)
    tensors = with_group_axis(config.group_size, q, k, v)
    inputs = fmha.Inputs(*tensors, _xformers_mask(config, fmha.attn_bias))
    try:
        operators = [] if config.mode == "bwd" else [dispatch._dispatch_fw(inputs, config.needs_grad)]
        if config.needs_grad:
            operators.append(dispatch._dispatch_bw(inputs, None))
    # Another version may lack the functions or give them other parameters. The last is raised where no operator fits.
    except (AttributeError, TypeError, NotImplementedError):
        return any_family
    found = [next((f for start, f in families.items() if o.NAME.startswith(start)), "") for o in operators]
    return "|".join(dict.fromkeys(filter(None, found)))
