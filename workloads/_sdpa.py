"""torch's scaled_dot_product_attention, held to one of its backends."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

if TYPE_CHECKING:
    from _setting import Forward, Setting


def switches() -> dict[str, tuple[Callable[[], bool], Callable[[bool], None]]]:
    """How torch is asked and told whether SDPA may choose a backend; releases before 2.4 have no cuDNN."""
    cuda = torch.backends.cuda
    names = [name for name in ("flash", "mem_efficient", "math", "cudnn") if hasattr(cuda, f"enable_{name}_sdp")]
    return {name: (getattr(cuda, f"{name}_sdp_enabled"), getattr(cuda, f"enable_{name}_sdp")) for name in names}


class OnlyBackend:
    """Lets SDPA choose one backend and no other, as ``torch.nn.attention.sdpa_kernel`` does, for each call.

    ``sdpa_kernel`` takes 8 us to enter and leave, a third of the host's work for a small call; these switches, which
    it sets too, take 1 us. They are read by the forward pass only: its node of the graph knows its backward kernel.
    """

    def __init__(self, backend: str) -> None:
        found = switches()
        if backend not in found:
            raise ValueError(f"torch {torch.__version__} has no SDPA backend {backend!r}: it needs 2.5 or later")
        self._asked = [is_enabled for is_enabled, _ in found.values()]
        self._told = [(enable, name == backend) for name, (_, enable) in found.items()]
        self._before: list[bool] = []

    def __enter__(self) -> None:
        self._before = [is_enabled() for is_enabled in self._asked]
        for enable, wanted in self._told:
            enable(wanted)

    def __exit__(self, *_: object) -> None:
        for (enable, _wanted), before in zip(self._told, self._before, strict=True):
            enable(before)


def math_products() -> tuple[str, str] | None:
    """The types in which the backend `math` multiplies 16-bit tensors: since torch 2.5 it computes in fp32 throughout.

    Unless torch is told that 16 bits will do, which before 2.5 it always was; None then.
    """
    in_16_bits = getattr(torch.backends.cuda, "fp16_bf16_reduction_math_sdp_allowed", lambda: True)
    if in_16_bits():
        return None
    wide = "fp32" if torch.get_float32_matmul_precision() == "highest" else "tf32"
    return wide, wide


def sdpa(backend: str) -> Callable[[Setting], Forward]:
    """What prepares calls of one backend: flash, mem_efficient, math or cudnn.

    Its causal mask begins at the first query and the first key (flash refuses it for different lengths).
    """

    def prepare(setting: Setting) -> Forward:
        only = OnlyBackend(backend)
        # Given only where needed: the argument is new in torch 2.5, and not every backend takes it.
        grouped = {"enable_gqa": True} if setting.group > 1 else {}

        def forward(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            with only:
                return scaled_dot_product_attention(q, k, v, is_causal=setting.masked, **grouped)

        return forward

    return prepare
