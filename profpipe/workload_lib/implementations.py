"""The implementations of attention that can be compared.

Example for a caller with tensors::

    config = AttentionConfig(impl="fa2", batch=1, seqlen=17776, heads=30, head_dim=64, dtype="bf16")
    reason = unavailable_reason(config)  # None: it can run
    row = IMPLEMENTATIONS[config.impl]
    forward = row.prepare(config)
    out = row.view(forward(*(row.view(tensor).contiguous() for tensor in (q, k, v))))

where q, k, v and out are ``(batch, seqlen, heads, head_dim)``.
Functions import their package themselves, so that the others work without it.
"""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable, Hashable
from importlib import metadata
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from profpipe.workload_lib import attention_config, plain_attention, requirements
from profpipe.workload_lib.attention_config import AttentionConfig, Forward
from profpipe.workload_lib.requirements import Implementation

# --- torch: scaled_dot_product_attention -----------------------------------------------------------------------------


def switches() -> dict[str, tuple[Callable[[], bool], Callable[[bool], None]]]:
    """Return the getter and setter of the backends of SDPA; releases before 2.4 have no cuDNN."""
    cuda = torch.backends.cuda
    names = [name for name in ("flash", "mem_efficient", "math", "cudnn") if hasattr(cuda, f"enable_{name}_sdp")]
    return {name: (getattr(cuda, f"{name}_sdp_enabled"), getattr(cuda, f"enable_{name}_sdp")) for name in names}


class OnlyBackend:
    """Restricts SDPA to one backend, as ``torch.nn.attention.sdpa_kernel`` does.

    ``sdpa_kernel`` takes 8 us to enter and exit, a third of the host time of a small call; the switches that it sets
    take 1 us. Only the forward pass reads them: its graph node determines the backward kernel.
    """

    def __init__(self, backend: str) -> None:
        backends = switches()
        if backend not in backends:
            raise ValueError(f"torch {torch.__version__} has no SDPA backend {backend!r}: it needs 2.5 or later")
        self._getters = [is_enabled for is_enabled, _ in backends.values()]
        self._setters = [(enable, name == backend) for name, (_, enable) in backends.items()]
        self._before: list[bool] = []

    def __enter__(self) -> None:
        self._before = [is_enabled() for is_enabled in self._getters]
        for enable, wanted in self._setters:
            enable(wanted)

    def __exit__(self, *_: object) -> None:
        for (enable, _wanted), before in zip(self._setters, self._before, strict=True):
            enable(before)


def math_products() -> tuple[str, str] | None:
    """Return the types in which the backend `math` multiplies 16-bit tensors: fp32 since torch 2.5.

    None before 2.5, and where torch allows 16-bit reduction: the types are those of the tensors then.
    """
    allows_16_bits = getattr(torch.backends.cuda, "fp16_bf16_reduction_math_sdp_allowed", lambda: True)
    if allows_16_bits():
        return None
    wide = "fp32" if torch.get_float32_matmul_precision() == "highest" else "tf32"
    return wide, wide


def sdpa(backend: str) -> Callable[[AttentionConfig], Forward]:
    """Return the function that prepares calls of a backend: flash, mem_efficient, math or cudnn.

    The causal mask starts at the first query and the first key (flash rejects it for different lengths).
    """

    def prepare(config: AttentionConfig) -> Forward:
        only = OnlyBackend(backend)
        # Only where needed: the argument is new in torch 2.5, and not all backends support it.
        grouped = {"enable_gqa": True} if config.group_size > 1 else {}

        def forward(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            with only:
                return scaled_dot_product_attention(q, k, v, is_causal=config.has_mask, **grouped)

        return forward

    return prepare


# --- torch: FlexAttention --------------------------------------------------------------------------------------------


def flex(config: AttentionConfig) -> Forward:
    """Prepare a call with a block mask that is made once, as a model makes it for all layers and steps."""
    return flex_with_mask(_block_mask(config), config, grouped=config.group_size > 1, kept=config.mode == "bwd")


def flex_with_mask(mask: Any, case: Hashable, *, grouped: bool, kept: bool) -> Forward:
    """Return FlexAttention with a block mask or None, compiled once for a ``case``.

    ``grouped``: there are fewer key/value heads than query heads. ``kept``: the graph is kept after a backward pass.
    """
    requirements.keep_graphs(kept)
    call = compile_flex(case, grouped)
    return lambda q, k, v: call(q, k, v, mask)


@functools.cache
def compile_flex(case: Hashable, grouped: bool) -> Callable[..., Tensor]:
    """Compile at the first call, once per process and case, because a case is built more than once."""
    from torch.nn.attention.flex_attention import flex_attention

    def attend(q: Tensor, k: Tensor, v: Tensor, mask: Any) -> Tensor:
        return flex_attention(q, k, v, block_mask=mask, enable_gqa=grouped)

    return requirements.compiled(attend)


def _block_mask(config: AttentionConfig) -> Any:
    """Return None without a mask. The last query sees the last key for any number of queries."""
    if not config.has_mask:
        return None
    from torch.nn.attention.flex_attention import create_block_mask

    earlier = config.seqlen - config.queries

    def visible(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return query + earlier >= key

    return create_block_mask(visible, None, None, config.queries, config.seqlen, device=attention_config.device())


# --- packages: SpargeAttn and FastVideo ------------------------------------------------------------------------------
#
# SpargeAttn (arXiv 2502.18137) skips blocks of keys with small expected weights. ``topk`` (the default) keeps that
# share of the key blocks of a query block; ``cdfthreshd`` keeps the blocks that together have that share of the
# pooled softmax. Both also keep blocks whose tokens are less similar (mean cosine) than ``simthreshd1``, and
# ``pvthreshd`` skips small products with V. QK is quantised to int8, PV to fp16 (``spas_sage_attn_*``) or fp8
# (``spas_sage2_attn_*``; on sm_80 and sm_86 these run the fp16 kernel).
#
# In sliding tile attention (arXiv 2502.04507) a token sees the tiles of a video around its tile. A tile is 6 x 8 x 8
# tokens, consecutive in the sequence. The window is 3 x 3 x 3 tiles for a head, as in the kernel's documentation,
# and stays inside the video for tiles at its edge, so that all tiles see as many. The kernel supports the videos
# of certain models (fastvideo-kernel 0.2 and 0.3); these two have no prompt in the sequence.

#: Prefixes of SpargeAttn's function names by the precision of PV (version 0.1.0).
_PREFIXES = {"fp16": "spas_sage_attn_meansim", "fp8": "spas_sage2_attn_meansim"}

TILE, WINDOW = (6, 8, 8), (3, 3, 3)

#: Frames x rows x columns by number of tokens, for Wan 2.1 (69 x 768 x 1280 pixels) and StepVideo (204 x 768 x 768).
VIDEOS = {69120: (18, 48, 80), 82944: (36, 48, 48)}


def sparge(values: str, config: AttentionConfig) -> Callable[..., Any]:
    """Return SpargeAttn's function with PV in ``values`` (fp16 or fp8) and the options of ``config``."""
    ending = "_cuda" if config.cdfthreshd is not None else "_topk_cuda"
    function = getattr(importlib.import_module("spas_sage_attn"), _PREFIXES[values] + ending)
    chosen = {name: getattr(config, name) for name in ("simthreshd1", "cdfthreshd", "pvthreshd", "topk")}
    given = {name: value for name, value in chosen.items() if value is not None}
    return functools.partial(function, tensor_layout="HND", is_causal=config.has_mask, **given)


def sparge_sparsity(values: str, config: AttentionConfig) -> Callable[[Tensor, Tensor, Tensor], float]:
    """Return the function that returns the share of skipped blocks of QK.

    The library counts the share: it excludes what ``pvthreshd`` skips, and for a causal mask it estimates the visible
    blocks from their number in a row.
    """
    function = sparge(values, config)
    return lambda q, k, v: float(function(q, k, v, return_sparsity=True)[1])


def sta(config: AttentionConfig) -> Forward:
    call = importlib.import_module("fastvideo_kernel").sliding_tile_attention
    windows, shape = [WINDOW] * config.heads, "x".join(map(str, VIDEOS[config.seqlen]))
    return lambda q, k, v: call(q, k, v, windows, 0, False, shape)


def sta_sparsity(config: AttentionConfig) -> Callable[[Tensor, Tensor, Tensor], float]:
    """Return the share of the tiles outside the window, which does not depend on the inputs."""
    tiles = math.prod(side // of_tile for side, of_tile in zip(VIDEOS[config.seqlen], TILE, strict=True))
    return lambda q, k, v: 1 - math.prod(WINDOW) / tiles


# --- packages: flash-attn, SageAttention, xFormers -------------------------------------------------------------------


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
    return lambda q, k, v: memory_efficient_attention(*add_group_axis(config.group_size, q, k, v), attn_bias=mask)


def _xformers_mask(config: AttentionConfig, attn_bias: Any) -> Any:
    if not config.has_mask:
        return None
    equal = config.queries == config.seqlen
    return attn_bias.LowerTriangularMask() if equal else attn_bias.LowerTriangularFromBottomRightMask()


def add_group_axis(group_size: int, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
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
    tensors = add_group_axis(config.group_size, q, k, v)
    inputs = fmha.Inputs(*tensors, _xformers_mask(config, fmha.attn_bias))
    try:
        operators = [] if config.mode == "bwd" else [dispatch._dispatch_fw(inputs, config.needs_grad)]
        if config.needs_grad:
            operators.append(dispatch._dispatch_bw(inputs, None))
    # Another version may lack the functions or give them other parameters. The last is raised where no operator fits.
    except (AttributeError, TypeError, NotImplementedError):
        return any_family
    kernel_families = [next((f for start, f in families.items() if o.NAME.startswith(start)), "") for o in operators]
    return "|".join(dict.fromkeys(filter(None, kernel_families)))


# --- the table -------------------------------------------------------------------------------------------------------

_HALF = ("fp16", "bf16")
_AMPERE, _ADA, _HOPPER = (8, 0), (8, 9), (9, 0)

#: What rows have in common.
_CAUSAL_ON_CPU: dict[str, Any] = {"on_cpu": True, "bottom_right": True}
_FLASH: dict[str, Any] = {"heads_first": False, "bottom_right": True, "dtypes": _HALF, "max_head_dim": 256}
_SAGE: dict[str, Any] = {"package": "sageattention", "has_backward": False, "max_head_dim": 128, "least_sm": _AMPERE}


def _sparge_row(values: str, least_sm: tuple[int, int]) -> Implementation:
    """SpargeAttn with PV in ``values``."""
    return Implementation(
        functools.partial(sparge, values),
        "sparge",
        package="spas_sage_attn",
        install="pip install ninja einops && " + _build_for_gpu("SpargeAttn"),
        has_backward=False,
        grouped=False,
        dtypes=_HALF,
        max_head_dim=128,
        least_sm=least_sm,
        products=lambda: ("int8", values),
        sparsity=functools.partial(sparge_sparsity, values),
    )


def _build_for_gpu(repository: str) -> str:
    clone = f"git clone https://github.com/thu-ml/{repository} && cd {repository}"
    return f"{clone} && TORCH_CUDA_ARCH_LIST={{arch}} python setup.py install"


IMPLEMENTATIONS: dict[str, Implementation] = {
    "sdpa_math": Implementation(sdpa("math"), on_cpu=True, products=math_products),
    "sdpa_flash": Implementation(
        sdpa("flash"), "fa2", rocm_family="aotriton|ck", on_cpu=True, gpu_dtypes=_HALF, least_sm=_AMPERE
    ),
    "sdpa_efficient": Implementation(sdpa("mem_efficient"), "cutlass_fmha", rocm_family="aotriton"),
    "sdpa_cudnn": Implementation(sdpa("cudnn"), "cudnn", dtypes=_HALF, least_sm=_AMPERE),
    "flex": Implementation(flex, "flex", rocm_family="flex", bottom_right=True),
    "fa2": Implementation(
        flash_attn("flash_attn"),
        "fa2",
        rocm_family="ck|aotriton",
        package="flash_attn",
        install="pip install flash-attn --no-build-isolation",
        least_sm=_AMPERE,
        **_FLASH,
    ),
    "fa3": Implementation(
        flash_attn("flash_attn_interface"),
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
        flash_attn("flash_attn.cute"),
        "fa4",
        package="flash_attn.cute",
        distribution="flash-attn-4",  # flash-attn 2.8.3 has an early flash_attn.cute in it
        install='pip install flash-attn-4 (with CUDA 13: "flash-attn-4[cu13]")',
        least_sm=_HOPPER,
        **_FLASH,
    ),
    "sage": Implementation(
        sage,
        sage_family,
        install="pip install sageattention (1.0.6, Triton), or build 2.x from github.com/thu-ml/SageAttention",
        products=sage_products,
        **_SAGE,
    ),
    "sage1": Implementation(
        sage_1,
        # The name of the Triton kernel does not identify it: in 2.x only the quantiser beside it, in CUDA, does.
        "sage1|triton",
        install="pip install sageattention==1.0.6",
        products=lambda: ("int8", "fp16"),
        **_SAGE,
    ),
    "sage2": Implementation(
        sage,
        sage_2_family,
        distribution="sageattention",
        version="2.",
        install=_build_for_gpu("SageAttention"),
        dtypes=_HALF,
        products=sage_2_products,
        **_SAGE,
    ),
    "sparge_fp16": _sparge_row("fp16", _AMPERE),
    "sparge_fp8": _sparge_row("fp8", _ADA),
    "sta": Implementation(
        sta,
        "sta",
        package="fastvideo_kernel",
        install="pip install fastvideo-kernel",
        has_backward=False,
        grouped=False,
        causal=False,
        lengths=tuple(VIDEOS),
        dtypes=("bf16",),
        max_head_dim=128,
        least_sm=_AMPERE,
        sparsity=sta_sparsity,
    ),
    "xformers": Implementation(
        xformers,
        xformers_family,
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
    """Split ``flops`` of the two products of a forward pass by their data types; one number for that of the tensors."""
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
