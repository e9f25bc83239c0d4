"""The implementations of attention that can be compared.

Example for a caller with its own tensors::

    config = AttentionConfig(impl="fa2", batch=1, seqlen=17776, heads=30, head_dim=64, dtype="bf16")
    reason = unavailable_reason(config)  # None: it can run
    row = IMPLEMENTATIONS[config.impl]
    forward = row.prepare(config)
    out = row.view(forward(*(row.view(tensor).contiguous() for tensor in (q, k, v))))

where q, k, v and out are ``(batch, seqlen, heads, head_dim)``.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from profpipe.workload_lib import attention_config, flex, packages, plain_attention, requirements, sdpa, sparse
from profpipe.workload_lib.attention_config import AttentionConfig
from profpipe.workload_lib.requirements import Implementation

_HALF = ("fp16", "bf16")
_AMPERE, _ADA, _HOPPER = (8, 0), (8, 9), (9, 0)

#: What rows have in common.
_CAUSAL_ON_CPU: dict[str, Any] = {"on_cpu": True, "bottom_right": True}
_FLASH: dict[str, Any] = {"heads_first": False, "bottom_right": True, "dtypes": _HALF, "max_head_dim": 256}
_SAGE: dict[str, Any] = {"package": "sageattention", "has_backward": False, "max_head_dim": 128, "least_sm": _AMPERE}


def _sparge_row(values: str, least_sm: tuple[int, int]) -> Implementation:
    """SpargeAttn with PV in ``values``."""
    return Implementation(
        functools.partial(sparse.sparge, values),
        "sparge",
        package="spas_sage_attn",
        install="pip install ninja einops && " + _build_for_gpu("SpargeAttn"),
        has_backward=False,
        grouped=False,
        dtypes=_HALF,
        max_head_dim=128,
        least_sm=least_sm,
        products=lambda: ("int8", values),
        sparsity=functools.partial(sparse.sparge_sparsity, values),
    )


def _build_for_gpu(repository: str) -> str:
    clone = f"git clone https://github.com/thu-ml/{repository} && cd {repository}"
    return f"{clone} && TORCH_CUDA_ARCH_LIST={{arch}} python setup.py install"


IMPLEMENTATIONS: dict[str, Implementation] = {
    "sdpa_math": Implementation(sdpa.sdpa("math"), on_cpu=True, products=sdpa.math_products),
    "sdpa_flash": Implementation(
        sdpa.sdpa("flash"), "fa2", rocm_family="aotriton|ck", on_cpu=True, gpu_dtypes=_HALF, least_sm=_AMPERE
    ),
    "sdpa_efficient": Implementation(sdpa.sdpa("mem_efficient"), "cutlass_fmha", rocm_family="aotriton"),
    "sdpa_cudnn": Implementation(sdpa.sdpa("cudnn"), "cudnn", dtypes=_HALF, least_sm=_AMPERE),
    "flex": Implementation(flex.flex, "flex", rocm_family="flex", bottom_right=True),
    "fa2": Implementation(
        packages.flash_attn("flash_attn"),
        "fa2",
        rocm_family="ck|aotriton",
        package="flash_attn",
        install="pip install flash-attn --no-build-isolation",
        least_sm=_AMPERE,
        **_FLASH,
    ),
    "fa3": Implementation(
        packages.flash_attn("flash_attn_interface"),
        "fa3",
        package="flash_attn_interface",
        install=(
            "git clone --recursive https://github.com/Dao-AILab/flash-attention && cd flash-attention/hopper && "
            "python setup.py install (CUDA 12.3 or later)"
        ),
        least_sm=_HOPPER,
        **_FLASH,
    ),
    "fa4": Implementation(
        packages.flash_attn("flash_attn.cute"),
        "fa4",
        package="flash_attn.cute",
        distribution="flash-attn-4",  # flash-attn 2.8.3 has an early flash_attn.cute in it
        install='pip install flash-attn-4 (with CUDA 13: "flash-attn-4[cu13]")',
        least_sm=_HOPPER,
        **_FLASH,
    ),
    "sage": Implementation(
        packages.sage,
        packages.sage_family,
        install="pip install sageattention (1.0.6, Triton), or build 2.x from github.com/thu-ml/SageAttention",
        products=packages.sage_products,
        **_SAGE,
    ),
    "sage1": Implementation(
        packages.sage_1,
        # The name of the Triton kernel does not identify it: in 2.x only the quantiser beside it, in CUDA, does.
        "sage1|triton",
        install="pip install sageattention==1.0.6",
        products=lambda: ("int8", "fp16"),
        **_SAGE,
    ),
    "sage2": Implementation(
        packages.sage,
        packages.sage_2_family,
        distribution="sageattention",
        version="2.",
        install=_build_for_gpu("SageAttention"),
        dtypes=_HALF,
        products=packages.sage_2_products,
        **_SAGE,
    ),
    "sparge_fp16": _sparge_row("fp16", _AMPERE),
    "sparge_fp8": _sparge_row("fp8", _ADA),
    "sta": Implementation(
        sparse.sta,
        "sta",
        package="fastvideo_kernel",
        install="pip install fastvideo-kernel",
        has_backward=False,
        grouped=False,
        causal=False,
        lengths=tuple(sparse.VIDEOS),
        dtypes=("bf16",),
        max_head_dim=128,
        least_sm=_AMPERE,
        sparsity=sparse.sta_sparsity,
    ),
    "xformers": Implementation(
        packages.xformers,
        packages.xformers_family,
        heads_first=False,
        rocm_family="ck",
        package="xformers",
        install="pip install xformers, of the release made for your torch (pip would replace torch otherwise)",
        bottom_right=True,
    ),
    "plain": Implementation(plain_attention.plain, **_CAUSAL_ON_CPU),
    "plain_compiled": Implementation(
        plain_attention.compiled, missing_dependency=plain_attention.missing_compiler, **_CAUSAL_ON_CPU
    ),
    "tiled": Implementation(plain_attention.tiled, **_CAUSAL_ON_CPU),
}


def expected_family(config: AttentionConfig) -> str:
    """Return the kernel family that a trace must contain; ``a|b``: any of them.

    Empty: none, because the implementation is unfused (as ``plain``) or runs on a CPU, where kernels have no family.
    """
    row = IMPLEMENTATIONS[config.impl]
    if attention_config.device() == "cpu":
        return ""
    if torch.version.hip:
        return row.rocm_family
    return row.family if isinstance(row.family, str) else row.family(config)


def flops_by_dtype(config: AttentionConfig, flops: float) -> float | dict[str, float]:
    """Split ``flops`` of the two products of a forward pass by their data types; one number for the tensors' own."""
    types = IMPLEMENTATIONS[config.impl].products()
    if types is None or set(types) == {config.dtype}:
        return flops
    return {dtype: flops * types.count(dtype) / 2 for dtype in types}


def unavailable_reason(config: AttentionConfig) -> str | None:
    """Return why the implementation cannot run ``config`` here and the remedy, or None.

    Known limits are looked up. The rest is tried by one call, because the supported head dims, dtypes and head groups
    depend on the build of the package. It has at most 383 tokens, except for sparse implementations.
    """
    return requirements.missing_requirement(config, IMPLEMENTATIONS)
