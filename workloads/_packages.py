"""Attention from packages that are installed beside torch: how each is called, and which kernels it runs.

A package is imported by the function that needs it, so that the others work where it is missing.
"""

from __future__ import annotations

import importlib
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from profpipe import load

if TYPE_CHECKING:
    import _setting
    from _setting import Forward, Setting
else:
    _setting = load.module(Path(__file__).with_name("_setting.py"))


def flash_attn_2(setting: Setting) -> Forward:
    from flash_attn import flash_attn_func

    return lambda q, k, v: flash_attn_func(q, k, v, causal=setting.masked)


def flash_attn_3(setting: Setting) -> Forward:
    """Up to the beta of August 2025 the function returned the log-sum-exp beside the output."""
    call = importlib.import_module("flash_attn_interface").flash_attn_func
    return lambda q, k, v: _output(call(q, k, v, causal=setting.masked))


def flash_attn_4(setting: Setting) -> Forward:
    """Returns the log-sum-exp beside the output, or None for it."""
    from flash_attn.cute import flash_attn_func

    return lambda q, k, v: _output(flash_attn_func(q, k, v, causal=setting.masked))


def _output(returned: Tensor | tuple[Tensor, ...]) -> Tensor:
    return returned[0] if isinstance(returned, tuple) else returned


def sage(setting: Setting) -> Forward:
    """Whichever generation is installed: 1.0.6 and 2.x; on Hopper, 2.x chooses its fp8 kernel for sm_90."""
    from sageattention import sageattn

    return lambda q, k, v: sageattn(q, k, v, tensor_layout="HND", is_causal=setting.masked)


def sage_1(setting: Setting) -> Forward:
    """SageAttention 1: 1.x itself, or its kernel as 2.x keeps it, with QK in int8 a block and PV in fp16 in Triton."""
    module = importlib.import_module("sageattention")
    call = getattr(module, "sageattn_qk_int8_pv_fp16_triton", module.sageattn)
    return lambda q, k, v: call(q, k, v, tensor_layout="HND", is_causal=setting.masked)


def sage_family(setting: Setting) -> str:
    """Of what is installed."""
    try:
        version = metadata.version("sageattention")
    except metadata.PackageNotFoundError:
        return "sage1|sage2"
    return "sage1" if version.startswith("1.") else sage_2_family(setting)


def sage_2_family(setting: Setting) -> str:
    """2.x runs 1.x's Triton kernel on sm_86."""
    return "sage1|sage2" if torch.cuda.get_device_capability() == (8, 6) else "sage2"


def sage_products() -> tuple[str, str] | None:
    """The data types of QK and PV in what is installed; None where nothing is."""
    try:
        version = metadata.version("sageattention")
    except metadata.PackageNotFoundError:
        return None
    return ("int8", "fp16") if version.startswith("1.") else sage_2_products()


def sage_2_products() -> tuple[str, str] | None:
    """2.x computes PV in fp8 from sm_89 on, sm_90 included, and before that in fp16; None without a GPU."""
    if _setting.device() == "cpu":
        return None
    return "int8", "fp8" if torch.cuda.get_device_capability() >= (8, 9) else "fp16"


def xformers(setting: Setting) -> Forward:
    """Grouped heads are a fifth axis, over which K and V are expanded: views, which its operators know."""
    from xformers.ops import memory_efficient_attention
    from xformers.ops.fmha import attn_bias

    mask = _xformers_mask(setting, attn_bias)
    return lambda q, k, v: memory_efficient_attention(*_by_group(setting, q, k, v), attn_bias=mask)


def _xformers_mask(setting: Setting, attn_bias: Any) -> Any:
    if not setting.masked:
        return None
    equal = setting.queries == setting.seqlen
    return attn_bias.LowerTriangularMask() if equal else attn_bias.LowerTriangularFromBottomRightMask()


def _by_group(setting: Setting, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    if setting.group == 1:
        return q, k, v
    k, v = (tensor.unsqueeze(3).expand(-1, -1, -1, setting.group, -1) for tensor in (k, v))
    return q.unflatten(2, (setting.kv_heads, setting.group)), k, v


def xformers_family(setting: Setting) -> str:
    """xformers takes the first operator that accepts the inputs: FlashAttention 3 or 2 where installed, else CUTLASS.

    It is asked which (``xformers.ops.fmha.dispatch``, not a public interface: without it, any of them is expected).
    """
    families = {"fa3": "fa3", "flash3": "fa3", "fa2": "fa2", "flshatt": "fa2", "cutlass": "cutlass_fmha", "ck": "ck"}
    try:
        fmha = importlib.import_module("xformers.ops.fmha")
        dispatch = importlib.import_module("xformers.ops.fmha.dispatch")
        inputs = fmha.Inputs(*_by_group(setting, *_one_token(setting)), _xformers_mask(setting, fmha.attn_bias))
        operators = [] if setting.mode == "bwd" else [dispatch._dispatch_fw(inputs, setting.backward)]
        if setting.backward:
            operators.append(dispatch._dispatch_bw(inputs, None))
    except (ImportError, AttributeError, TypeError, NotImplementedError):
        return "cutlass_fmha|fa2|fa3"
    found = [next((f for start, f in families.items() if o.NAME.startswith(start)), "") for o in operators]
    return "|".join(dict.fromkeys(filter(None, found)))


def _one_token(setting: Setting) -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v of the setting's kind, one token long."""
    options = {"dtype": _setting.DTYPES[setting.dtype], "device": _setting.device()}
    q, k, v = (
        torch.empty(1, 1, heads, setting.head_dim, **options)
        for heads in (setting.heads, setting.kv_heads, setting.kv_heads)
    )
    return q, k, v
