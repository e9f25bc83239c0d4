"""One call of attention, as the workloads describe it to the implementations and to the reference."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import torch
from torch import Tensor

from profpipe.errors import did_you_mean

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
MODES = ("fwd", "fwd_bwd")

#: q, k, v in the implementation's layout -> the output in it.
Forward = Callable[[Tensor, Tensor, Tensor], Tensor]


def device() -> str:
    """Where tensors are made: the GPU, else the CPU."""
    return "cuda" if torch.cuda.is_available() else "cpu"


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What one call is given. Queries and keys have the same length.

    Raises ValueError, naming what is possible, for values that make no sense on any machine.
    """

    impl: str
    batch: int
    seqlen: int
    heads: int
    kv_heads: int = 0  # 0: as many as heads
    head_dim: int
    dtype: str = "fp16"
    causal: bool = False
    mode: str = "fwd"

    def __post_init__(self) -> None:
        object.__setattr__(self, "kv_heads", self.kv_heads or self.heads)
        known("dtype", self.dtype, DTYPES)
        known("mode", self.mode, MODES)
        for name in ("batch", "seqlen", "heads", "kv_heads", "head_dim"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, not {value!r}")
        if type(self.causal) is not bool:
            raise ValueError(f"causal must be true or false, not {self.causal!r}")
        if self.heads % self.kv_heads:
            raise ValueError(f"heads ({self.heads}) must be a multiple of kv_heads ({self.kv_heads})")

    @property
    def backward(self) -> bool:
        return self.mode == "fwd_bwd"

    @property
    def group(self) -> int:
        """Query heads that share one key/value head."""
        return self.heads // self.kv_heads

    @property
    def q_shape(self) -> tuple[int, int, int, int]:
        """``(batch, seqlen, heads, head_dim)`` of q, out and its gradient."""
        return self.batch, self.seqlen, self.heads, self.head_dim

    @property
    def kv_shape(self) -> tuple[int, int, int, int]:
        """``(batch, seqlen, kv_heads, head_dim)`` of k and v."""
        return self.batch, self.seqlen, self.kv_heads, self.head_dim


def known(name: str, value: object, possible: Collection[str]) -> None:
    """Raises ValueError where ``value`` is not among the possible ones."""
    if value not in possible:
        raise ValueError(f"unknown {name} {value!r}. {did_you_mean(str(value), possible)}")
