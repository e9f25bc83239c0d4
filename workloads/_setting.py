"""One call of attention, as the workloads describe it to the implementations and to the reference."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import torch
from torch import Tensor

from profpipe.errors import did_you_mean

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
MODES = ("fwd", "bwd", "fwd_bwd")

#: q, k, v in the implementation's layout -> the output in it.
Forward = Callable[[Tensor, Tensor, Tensor], Tensor]


def device() -> str:
    """Where tensors are made: the GPU, else the CPU."""
    return "cuda" if torch.cuda.is_available() else "cpu"


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What one call is given: ``queries`` queries over ``seqlen`` keys and values.

    Where there are fewer queries than keys they are the last of the sequence: the last query sees every key, causal or
    not. The four fields below ``mode`` are SpargeAttn's, under its own names; None leaves them to its defaults.

    Raises ValueError, naming what is possible, for values that make no sense on any machine.
    """

    impl: str
    batch: int
    seqlen: int
    queries: int = 0  # 0: as many as seqlen
    heads: int
    kv_heads: int = 0  # 0: as many as heads
    head_dim: int
    dtype: str = "fp16"
    causal: bool = False
    mode: str = "fwd"
    simthreshd1: float | None = None
    cdfthreshd: float | None = None
    pvthreshd: float | None = None
    topk: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "kv_heads", self.kv_heads or self.heads)
        object.__setattr__(self, "queries", self.queries or self.seqlen)
        known("dtype", self.dtype, DTYPES)
        known("mode", self.mode, MODES)
        for name in ("batch", "seqlen", "queries", "heads", "kv_heads", "head_dim"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, not {value!r}")
        if type(self.causal) is not bool:
            raise ValueError(f"causal must be true or false, not {self.causal!r}")
        if self.heads % self.kv_heads:
            raise ValueError(f"heads ({self.heads}) must be a multiple of kv_heads ({self.kv_heads})")
        if self.queries > self.seqlen:
            raise ValueError(f"queries ({self.queries}) must not exceed seqlen ({self.seqlen})")
        self._check_thresholds()

    def _check_thresholds(self) -> None:
        for name in ("simthreshd1", "cdfthreshd", "pvthreshd", "topk"):
            value = getattr(self, name)
            if value is not None and type(value) not in (int, float):
                raise ValueError(f"{name} must be a number, or null for the library's default, not {value!r}")
        for name in ("cdfthreshd", "topk"):
            value = getattr(self, name)
            if value is not None and not 0 < value <= 1:
                raise ValueError(f"{name} is a share: it must be above 0 and at most 1, not {value!r}")
        if self.topk is not None and self.cdfthreshd is not None:
            raise ValueError("topk and cdfthreshd are two ways to choose the same blocks: give one of them")

    @property
    def backward(self) -> bool:
        """Whether gradients are needed."""
        return self.mode != "fwd"

    @property
    def masked(self) -> bool:
        """Whether the causal mask hides anything: a single query, the last one, sees every key."""
        return self.causal and self.queries > 1

    @property
    def group(self) -> int:
        """Query heads that share one key/value head."""
        return self.heads // self.kv_heads

    @property
    def q_shape(self) -> tuple[int, int, int, int]:
        """``(batch, queries, heads, head_dim)`` of q, out and its gradient."""
        return self.batch, self.queries, self.heads, self.head_dim

    @property
    def kv_shape(self) -> tuple[int, int, int, int]:
        """``(batch, seqlen, kv_heads, head_dim)`` of k and v."""
        return self.batch, self.seqlen, self.kv_heads, self.head_dim


def known(name: str, value: object, possible: Collection[str]) -> None:
    """Raises ValueError where ``value`` is not among the possible ones."""
    if value not in possible:
        raise ValueError(f"unknown {name} {value!r}. {did_you_mean(str(value), possible)}")
