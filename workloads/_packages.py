"""Attention from packages that are installed beside torch: how each is called, and which kernels it runs.

A package is imported by the function that needs it, so that the others work where it is missing.
"""

from __future__ import annotations

import importlib
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from profpipe import load

if TYPE_CHECKING:
    import _setting
else:
    _setting = load.module(Path(__file__).with_name("_setting.py"))


def flash_attn(setting: _setting.Setting) -> _setting.Forward:
    from flash_attn import flash_attn_func

    return lambda q, k, v: flash_attn_func(q, k, v, causal=setting.causal)


def sage(setting: _setting.Setting) -> _setting.Forward:
    from sageattention import sageattn

    # 1.0.6 and 2.x: on Hopper, 2.x chooses its fp8 kernel for sm_90.
    return lambda q, k, v: sageattn(q, k, v, tensor_layout="HND", is_causal=setting.causal)


def sage_family(setting: _setting.Setting) -> str:
    """2.x runs 1.x's Triton kernel on sm_86."""
    try:
        version = metadata.version("sageattention")
    except metadata.PackageNotFoundError:
        return "sage1|sage2"
    if version.startswith("1."):
        return "sage1"
    return "sage1|sage2" if torch.cuda.get_device_capability() == (8, 6) else "sage2"


def xformers(setting: _setting.Setting) -> _setting.Forward:
    """Grouped heads are a fifth axis, over which K and V are expanded: views, which its operators know."""
    from xformers.ops import LowerTriangularMask, memory_efficient_attention

    mask = LowerTriangularMask() if setting.causal else None
    return lambda q, k, v: memory_efficient_attention(*_by_group(setting, q, k, v), attn_bias=mask)


def _by_group(setting: _setting.Setting, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    if setting.group == 1:
        return q, k, v
    k, v = (tensor.unsqueeze(3).expand(-1, -1, -1, setting.group, -1) for tensor in (k, v))
    return q.unflatten(2, (setting.kv_heads, setting.group)), k, v


def xformers_family(setting: _setting.Setting) -> str:
    """xformers takes the first operator that accepts the inputs: FlashAttention 3 or 2 where installed, else CUTLASS.

    It is asked which (``xformers.ops.fmha.dispatch``, not a public interface: without it, any of them is expected).
    """
    families = {"fa3": "fa3", "flash3": "fa3", "fa2": "fa2", "flshatt": "fa2", "cutlass": "cutlass_fmha", "ck": "ck"}
    try:
        fmha = importlib.import_module("xformers.ops.fmha")
        dispatch = importlib.import_module("xformers.ops.fmha.dispatch")
        mask = fmha.attn_bias.LowerTriangularMask() if setting.causal else None
        inputs = fmha.Inputs(*_by_group(setting, *_one_token(setting)), mask)
        operators = [dispatch._dispatch_fw(inputs, setting.backward)]
        if setting.backward:
            operators.append(dispatch._dispatch_bw(inputs, None))
    except (ImportError, AttributeError, TypeError, NotImplementedError):
        return "cutlass_fmha|fa2|fa3"
    found = [next((f for start, f in families.items() if o.NAME.startswith(start)), "") for o in operators]
    return "|".join(dict.fromkeys(filter(None, found)))


def _one_token(setting: _setting.Setting) -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v of the setting's kind, one token long."""
    options = {"dtype": _setting.DTYPES[setting.dtype], "device": _setting.device()}
    q, k, v = (
        torch.empty(1, 1, heads, setting.head_dim, **options)
        for heads in (setting.heads, setting.kv_heads, setting.kv_heads)
    )
    return q, k, v
