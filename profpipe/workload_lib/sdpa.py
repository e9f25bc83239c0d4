"""torch's scaled_dot_product_attention with one of its backends."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from profpipe.workload_lib.attention_config import AttentionConfig, Forward


def switches() -> dict[str, tuple[Callable[[], bool], Callable[[bool], None]]]:
    """Return the getter and setter of each backend of SDPA; releases before 2.4 have no cuDNN."""
    cuda = torch.backends.cuda
    names = [name for name in ("flash", "mem_efficient", "math", "cudnn") if hasattr(cuda, f"enable_{name}_sdp")]
    return {name: (getattr(cuda, f"{name}_sdp_enabled"), getattr(cuda, f"enable_{name}_sdp")) for name in names}


class OnlyBackend:
    """Restricts SDPA to one backend, as ``torch.nn.attention.sdpa_kernel`` does.

    ``sdpa_kernel`` takes 8 us to enter and exit, a third of the host time of a small call; the switches that it sets
    take 1 us. Only the forward pass reads them: its graph node determines the backward kernel.
    """

    def __init__(self, backend: str) -> None:
        found = switches()
        if backend not in found:
            raise ValueError(f"torch {torch.__version__} has no SDPA backend {backend!r}: it needs 2.5 or later")
        self._getters = [is_enabled for is_enabled, _ in found.values()]
        self._setters = [(enable, name == backend) for name, (_, enable) in found.items()]
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
        # Only where needed: the argument is new in torch 2.5, and not every backend supports it.
        grouped = {"enable_gqa": True} if config.group_size > 1 else {}

        def forward(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            with only:
                return scaled_dot_product_attention(q, k, v, is_causal=config.has_mask, **grouped)

        return forward

    return prepare
