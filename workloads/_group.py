"""A group of sequences of different lengths, packed one behind the other: its parameters, and its tensors' layouts."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from profpipe import load

if TYPE_CHECKING:
    import _setting
else:
    _setting = load.module(Path(__file__).with_name("_setting.py"))

#: flash-attn's functions by what they take: ``flash_attn_varlen_qkvpacked_func`` and so on; ``func``: flash_attn_func.
APIS = ("func", "kvpacked", "qkvpacked", "varlen", "varlen_kvpacked", "varlen_qkvpacked")

_LENGTHS = re.compile(r"\s*(?:(\d+)\s*x\s*)?(\d+)\s*")


@dataclass(frozen=True, kw_only=True)
class Group:
    """What one call is given: sequences that attend to themselves alone, each query head to one key/value head.

    Raises ValueError, naming what is possible, for values that make no sense on any machine.
    """

    impl: str
    seqlens: str | int
    qheads: int
    kvheads: int = 0  # 0: as many as qheads
    head_dim: int
    dtype: str = "bf16"
    causal: bool = False
    api: str = "varlen"
    mode: str = "fwd"
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "kvheads", self.kvheads or self.qheads)
        for name, possible in (("dtype", _setting.DTYPES), ("api", APIS), ("mode", _setting.MODES)):
            _setting.known(name, getattr(self, name), possible)
        for name in ("qheads", "kvheads", "head_dim"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, not {value!r}")
        if type(self.causal) is not bool:
            raise ValueError(f"causal must be true or false, not {self.causal!r}")
        if self.qheads % self.kvheads:
            raise ValueError(f"qheads ({self.qheads}) must be a multiple of kvheads ({self.kvheads})")
        if min(self.lengths, default=0) < 1:
            raise ValueError(f"seqlens must have lengths of at least 1, not {self.seqlens!r}")

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """``"128,2x64"``, ``128``: 128, 64, 64 and 128."""
        parts = [_LENGTHS.fullmatch(part) for part in str(self.seqlens).split(",")]
        if not all(parts):
            raise ValueError(f"seqlens must be lengths such as 128,64 or 8x128, not {self.seqlens!r}")
        return tuple(int(part[2]) for part in parts if part for _ in range(int(part[1] or 1)))

    @property
    def tokens(self) -> int:
        """The total length."""
        return sum(self.lengths)

    @property
    def longest(self) -> int:
        return max(self.lengths)

    @property
    def equally_long(self) -> bool:
        return len(set(self.lengths)) == 1

    @property
    def backward(self) -> bool:
        """Whether gradients are needed."""
        return self.mode != "fwd"

    @property
    def shared(self) -> int:
        """Query heads that share one key/value head."""
        return self.qheads // self.kvheads

    @property
    def q_shape(self) -> tuple[int, int, int]:
        """``(tokens, qheads, head_dim)`` of q, out and its gradient."""
        return self.tokens, self.qheads, self.head_dim

    @property
    def kv_shape(self) -> tuple[int, int, int]:
        """``(tokens, kvheads, head_dim)`` of k and v."""
        return self.tokens, self.kvheads, self.head_dim

    def sequences(self) -> Iterator[slice]:
        """The rows of each sequence in a packed tensor."""
        ends = list(itertools.accumulate(self.lengths))
        return itertools.starmap(slice, zip([0, *ends], ends, strict=False))

    def offsets(self) -> Tensor:
        """Where sequences begin, and the total length: ``(sequences + 1,)`` int32 on the device, as kernels take it."""
        return torch.tensor([0, *itertools.accumulate(self.lengths)], dtype=torch.int32, device=_setting.device())

    def sequence(self, rows: slice) -> _setting.Setting:
        """One of the sequences, as attention that knows no groups describes it."""
        return _setting.Setting(
            impl=self.impl,
            batch=1,
            seqlen=rows.stop - rows.start,
            heads=self.qheads,
            kv_heads=self.kvheads,
            head_dim=self.head_dim,
            dtype=self.dtype,
            causal=self.causal,
        )


@dataclass(frozen=True)
class Layout:
    """How packed tensors ``(tokens, heads, head_dim)`` become what a call is given, and back.

    ``apart`` makes the tensors that the interface takes in place of a packed one, ``together`` the packed one of them.
    ``stacked`` are how many of q, k and v, counted from v, stand in one tensor: 1, 2 (kv) or 3 (qkv).
    """

    apart: Callable[[Tensor], Sequence[Tensor]]
    together: Callable[[Sequence[Tensor]], Tensor]
    stacked: int = 1

    def given(self, q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
        """What the call takes: that of q, then that of k, then that of v, each contiguous."""
        tensors = [part for tensor in (q, k, v) for part in self.apart(tensor)]
        if self.stacked > 1:
            # (tokens, heads, head_dim) -> (tokens, stacked, heads, head_dim), and likewise behind a batch axis
            tensors[-self.stacked :] = [torch.stack(tensors[-self.stacked :], dim=-3)]
        return tensors

    def packed(self, given: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """The three packed tensors of what is laid out as ``given`` makes it, such as its gradients."""
        tensors = list(given)
        if self.stacked > 1:
            tensors[-1:] = tensors[-1].unbind(-3)
        parts = len(tensors) // 3
        q, k, v = (self.together(tensors[start : start + parts]) for start in range(0, 3 * parts, parts))
        return q, k, v


def packed(group: Group, stacked: int = 1) -> Layout:
    """``(tokens, heads, head_dim)``, or ``(tokens, stacked, heads, head_dim)``."""
    return Layout(lambda tensor: [tensor], lambda parts: parts[0], stacked)


def batch(group: Group, stacked: int = 1) -> Layout:
    """``(sequences, seqlen, heads, head_dim)``, of sequences of one length."""
    shape = (len(group.lengths), group.longest)
    return Layout(lambda tensor: [tensor.unflatten(0, shape)], lambda parts: parts[0].flatten(0, 1), stacked)


def batch_of_one(group: Group) -> Layout:
    """``(1, tokens, heads, head_dim)``."""
    return Layout(lambda tensor: [tensor.unsqueeze(0)], lambda parts: parts[0].squeeze(0))


def heads_first(group: Group) -> Layout:
    """``(1, heads, tokens, head_dim)``."""
    return Layout(
        lambda tensor: [tensor.transpose(0, 1).unsqueeze(0).contiguous()],
        lambda parts: parts[0].squeeze(0).transpose(0, 1),
    )


def one_by_one(group: Group) -> Layout:
    """A tensor ``(1, heads, seqlen, head_dim)`` for each sequence."""
    return Layout(
        lambda tensor: [tensor[rows].transpose(0, 1).unsqueeze(0).contiguous() for rows in group.sequences()],
        lambda parts: torch.cat([part.squeeze(0).transpose(0, 1) for part in parts]),
    )


def nested(group: Group) -> Layout:
    """One nested tensor ``(sequences, seqlen, heads, head_dim)``, jagged in its second axis."""
    offsets = group.offsets()  # one for all: torch takes tensors with different offsets for differently jagged

    def apart(tensor: Tensor) -> list[Tensor]:
        made = torch.nested.nested_tensor_from_jagged(
            tensor, offsets, min_seqlen=min(group.lengths), max_seqlen=group.longest
        )
        return [made.detach()]

    return Layout(apart, lambda parts: parts[0].values())
