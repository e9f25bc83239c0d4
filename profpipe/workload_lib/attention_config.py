"""The parameters of one call of attention."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from profpipe.workload_lib import passes
from profpipe.workload_lib.parameters import check_bool, check_choice, check_positive

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}

#: q, k, v in the implementation's layout -> the output in the same layout.
Forward = Callable[[Tensor, Tensor, Tensor], Tensor]


def device() -> str:
    """Return the device of the tensors: the GPU, else the CPU."""
    return "cuda" if torch.cuda.is_available() else "cpu"


@dataclass(frozen=True, kw_only=True)
class AttentionConfig:
    """One call of attention with ``queries`` queries over ``seqlen`` keys and values.

    Fewer queries than keys are the last ones of the sequence: the last query sees every key, causal or not. The four
    fields below ``mode`` are SpargeAttn's, with its names; None means its default.

    Raises ValueError for values that are invalid on every machine.
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
        check_choice("dtype", self.dtype, DTYPES)
        check_choice("mode", self.mode, passes.MODES)
        check_positive(vars(self), ("batch", "seqlen", "queries", "heads", "kv_heads", "head_dim"))
        check_bool(vars(self), "causal")
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
    def needs_grad(self) -> bool:
        return self.mode != "fwd"

    @property
    def has_mask(self) -> bool:
        """Whether the causal mask hides anything: a single query, the last one, sees every key."""
        return self.causal and self.queries > 1

    @property
    def group_size(self) -> int:
        """Query heads per key/value head."""
        return self.heads // self.kv_heads

    @property
    def q_shape(self) -> tuple[int, int, int, int]:
        """``(batch, queries, heads, head_dim)``, the shape of q, out and its gradient."""
        return self.batch, self.queries, self.heads, self.head_dim

    @property
    def kv_shape(self) -> tuple[int, int, int, int]:
        """``(batch, seqlen, kv_heads, head_dim)``, the shape of k and v."""
        return self.batch, self.seqlen, self.kv_heads, self.head_dim
