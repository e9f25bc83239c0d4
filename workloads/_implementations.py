"""The implementations of attention that can be compared: how each is called, and why one cannot run here.

For a caller with tensors of its own::

    setting = Setting(impl="fa2", batch=1, seqlen=17776, heads=30, head_dim=64, dtype="bf16")
    reason = unavailable(setting)  # None: it can run
    row = IMPLEMENTATIONS[setting.impl]
    forward = row.prepare(setting)
    out = row.view(forward(*(row.view(tensor).contiguous() for tensor in (q, k, v))))

where q, k, v and out are ``(batch, seqlen, heads, head_dim)``; who has them as ``(batch, heads, seqlen, head_dim)``
and sees ``row.heads_first`` needs no view.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from profpipe import load

if TYPE_CHECKING:
    import _flex
    import _obstacles
    import _packages
    import _plain
    import _sdpa
    import _setting
    import _sparge
    import _sta
    from _setting import Forward, Setting
else:
    _flex = load.module(Path(__file__).with_name("_flex.py"))
    _obstacles = load.module(Path(__file__).with_name("_obstacles.py"))
    _packages = load.module(Path(__file__).with_name("_packages.py"))
    _plain = load.module(Path(__file__).with_name("_plain.py"))
    _sdpa = load.module(Path(__file__).with_name("_sdpa.py"))
    _setting = load.module(Path(__file__).with_name("_setting.py"))
    _sparge = load.module(Path(__file__).with_name("_sparge.py"))
    _sta = load.module(Path(__file__).with_name("_sta.py"))


@dataclass(frozen=True)
class Implementation:
    """One row of the table: how to call it, and what is known beforehand about what it takes.

    ``prepare`` imports what it needs and binds the setting; ``heads_first`` tells the layout. ``family`` gives the
    kernel family on an NVIDIA GPU, ``rocm_family`` on an AMD one; alternatives are separated by ``|``.

    ``package`` is what is imported. ``distribution`` is what pip calls it, where that decides: its version must begin
    with ``version``. ``install`` is the command that gets it, in which ``{arch}`` stands for the GPU's, as 9.0.
    ``lacks`` says what else it needs and is not here, and what to do about it.

    ``bottom_right``: a causal mask over fewer queries than keys lets the last query see every key. ``grouped``: there
    may be fewer key/value heads than query heads. ``causal``: there may be a causal mask. ``lengths`` are the only
    sequences that it takes; empty: any. ``gpu_dtypes`` are those that it takes on a GPU, where these are fewer than all
    of ``dtypes``. ``products`` are the data types in which it computes QK and PV, where they are not the tensors' own.
    ``sparsity`` prepares calls that give the share of the scores that the implementation does not compute.
    """

    prepare: Callable[[Setting], Forward]
    family: Callable[[Setting], str]
    heads_first: bool = True
    rocm_family: str = ""
    package: str = ""
    distribution: str = ""
    version: str = ""
    install: str = ""
    lacks: Callable[[], str | None] = lambda: None
    on_cpu: bool = False
    has_backward: bool = True
    grouped: bool = True
    causal: bool = True
    bottom_right: bool = False
    lengths: tuple[int, ...] = ()
    dtypes: tuple[str, ...] = tuple(_setting.DTYPES)
    gpu_dtypes: tuple[str, ...] = ()
    max_head_dim: int | None = None
    least_sm: tuple[int, int] = (0, 0)
    products: Callable[[], tuple[str, str] | None] = lambda: None
    sparsity: Callable[[Setting], Callable[[Tensor, Tensor, Tensor], float]] | None = None

    def view(self, tensor: Tensor) -> Tensor:
        """From ``(batch, seqlen, heads, head_dim)`` to this implementation's order of axes, or back; copies nothing."""
        return tensor.transpose(1, 2) if self.heads_first else tensor


def _fixed(family: str) -> Callable[[Setting], str]:
    return lambda setting: family


_HALF = ("fp16", "bf16")
_AMPERE, _ADA, _HOPPER = (8, 0), (8, 9), (9, 0)


def _sparge_row(values: str, least_sm: tuple[int, int]) -> Implementation:
    """SpargeAttn with PV in ``values``."""
    return Implementation(
        _sparge.sparge(values),
        _fixed("sparge"),
        package="spas_sage_attn",
        install=(
            "pip install ninja einops && git clone https://github.com/thu-ml/SpargeAttn && cd SpargeAttn && "
            "TORCH_CUDA_ARCH_LIST={arch} python setup.py install"
        ),
        has_backward=False,
        grouped=False,
        dtypes=_HALF,
        max_head_dim=128,
        least_sm=least_sm,
        products=lambda: ("int8", values),
        sparsity=_sparge.sparsity(values),
    )


IMPLEMENTATIONS: dict[str, Implementation] = {
    "sdpa_math": Implementation(_sdpa.sdpa("math"), _fixed(""), on_cpu=True, products=_sdpa.math_products),
    "sdpa_flash": Implementation(
        _sdpa.sdpa("flash"),
        _fixed("fa2"),
        rocm_family="aotriton|ck",
        on_cpu=True,
        gpu_dtypes=_HALF,
        least_sm=_AMPERE,
    ),
    "sdpa_efficient": Implementation(_sdpa.sdpa("mem_efficient"), _fixed("cutlass_fmha"), rocm_family="aotriton"),
    "sdpa_cudnn": Implementation(_sdpa.sdpa("cudnn"), _fixed("cudnn"), dtypes=_HALF, least_sm=_AMPERE),
    "flex": Implementation(_flex.flex, _fixed("flex"), rocm_family="flex", bottom_right=True),
    "fa2": Implementation(
        _packages.flash_attn_2,
        _fixed("fa2"),
        heads_first=False,
        rocm_family="ck|aotriton",
        package="flash_attn",
        install="pip install flash-attn --no-build-isolation",
        bottom_right=True,
        dtypes=_HALF,
        max_head_dim=256,
        least_sm=_AMPERE,
    ),
    "fa3": Implementation(
        _packages.flash_attn_3,
        _fixed("fa3"),
        heads_first=False,
        package="flash_attn_interface",
        install=(
            "git clone --recursive https://github.com/Dao-AILab/flash-attention && cd flash-attention/hopper && "
            "python setup.py install (CUDA 12.3 or later)"
        ),
        bottom_right=True,
        dtypes=_HALF,
        max_head_dim=256,
        least_sm=_HOPPER,
    ),
    "fa4": Implementation(
        _packages.flash_attn_4,
        _fixed("fa4"),
        heads_first=False,
        package="flash_attn.cute",
        distribution="flash-attn-4",  # flash-attn 2.8.3 has an early flash_attn.cute in it
        install='pip install flash-attn-4 (with CUDA 13: "flash-attn-4[cu13]")',
        bottom_right=True,
        dtypes=_HALF,
        max_head_dim=256,
        least_sm=_HOPPER,
    ),
    "sage": Implementation(
        _packages.sage,
        _packages.sage_family,
        package="sageattention",
        install="pip install sageattention (1.0.6, Triton), or build 2.x from github.com/thu-ml/SageAttention",
        has_backward=False,
        max_head_dim=128,
        least_sm=_AMPERE,
        products=_packages.sage_products,
    ),
    "sage1": Implementation(
        _packages.sage_1,
        # Beside 2.x's quantiser, which is CUDA, nothing in the name of its Triton kernel says whose it is.
        _fixed("sage1|triton"),
        package="sageattention",
        install="pip install sageattention==1.0.6",
        has_backward=False,
        max_head_dim=128,
        least_sm=_AMPERE,
        products=lambda: ("int8", "fp16"),
    ),
    "sage2": Implementation(
        _packages.sage,
        _packages.sage_2_family,
        package="sageattention",
        distribution="sageattention",
        version="2.",
        install=(
            "git clone https://github.com/thu-ml/SageAttention && cd SageAttention && "
            "TORCH_CUDA_ARCH_LIST={arch} python setup.py install"
        ),
        has_backward=False,
        dtypes=_HALF,
        max_head_dim=128,
        least_sm=_AMPERE,
        products=_packages.sage_2_products,
    ),
    "sparge_fp16": _sparge_row("fp16", _AMPERE),
    "sparge_fp8": _sparge_row("fp8", _ADA),
    "sta": Implementation(
        _sta.sta,
        _fixed("sta"),
        package="fastvideo_kernel",
        install="pip install fastvideo-kernel",
        has_backward=False,
        grouped=False,
        causal=False,
        lengths=tuple(_sta.VIDEOS),
        dtypes=("bf16",),
        max_head_dim=128,
        least_sm=_AMPERE,
        sparsity=_sta.sparsity,
    ),
    "xformers": Implementation(
        _packages.xformers,
        _packages.xformers_family,
        heads_first=False,
        rocm_family="ck",
        package="xformers",
        install="pip install xformers, of the release made for your torch (pip would replace torch otherwise)",
        bottom_right=True,
    ),
    "plain": Implementation(_plain.plain, _fixed(""), on_cpu=True, bottom_right=True),
    "plain_compiled": Implementation(
        _plain.compiled, _fixed(""), lacks=_plain.no_compiler, on_cpu=True, bottom_right=True
    ),
    "tiled": Implementation(_plain.tiled, _fixed(""), on_cpu=True, bottom_right=True),
}


def expected_family(setting: Setting) -> str:
    """The kernel family that must be found in a trace; ``a|b``: any of them.

    Empty: none, because the implementation is unfused (as ``plain``) or runs on a CPU, where kernels have no family.
    """
    row = IMPLEMENTATIONS[setting.impl]
    if _setting.device() == "cpu":
        return ""
    return row.rocm_family if torch.version.hip else row.family(setting)


def by_type(setting: Setting, flops: float) -> float | dict[str, float]:
    """``flops`` of the two products of a forward pass by the data types that they are computed in.

    One number where that is the tensors' own type.
    """
    types = IMPLEMENTATIONS[setting.impl].products()
    if types is None or set(types) == {setting.dtype}:
        return flops
    return {dtype: flops * types.count(dtype) / 2 for dtype in types}


def unavailable(setting: Setting) -> str | None:
    """Why this implementation cannot run the setting here and what to do about it, or None.

    What is known is looked up; the rest is tried by one call of at most 383 tokens, since which head dims, dtypes and
    head groups a kernel takes depends on how its package was built.
    """
    return _obstacles.first(setting, IMPLEMENTATIONS)
