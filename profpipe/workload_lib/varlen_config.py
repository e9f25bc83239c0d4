"""Packed sequences of different lengths: the parameters of a call, and the layouts of its tensors."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from profpipe.workload_lib import attention_config, passes
from profpipe.workload_lib.parameters import check_bool, check_choice, check_positive

#: The functions of flash-attn: ``flash_attn_varlen_qkvpacked_func`` and so on; ``func``: flash_attn_func.
APIS = ("func", "kvpacked", "qkvpacked", "varlen", "varlen_kvpacked", "varlen_qkvpacked")

_LENGTHS = re.compile(r"\s*(?:(\d+)\s*x\s*)?(\d+)\s*")


@dataclass(frozen=True, kw_only=True)
class VarlenConfig:
    """One call of attention over packed sequences, each of which attends to itself only.

    Raises ValueError for values that are invalid on every machine.
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
        check_choice("dtype", self.dtype, attention_config.DTYPES)
        check_choice("api", self.api, APIS)
        check_choice("mode", self.mode, passes.MODES)
        check_positive(vars(self), ("qheads", "kvheads", "head_dim"))
        check_bool(vars(self), "causal")
        if self.qheads % self.kvheads:
            raise ValueError(f"qheads ({self.qheads}) must be a multiple of kvheads ({self.kvheads})")
        if min(self.lengths, default=0) < 1:
            raise ValueError(f"seqlens must have lengths of at least 1, not {self.seqlens!r}")

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """The lengths: ``"128,2x64"`` is 128, 64 and 64."""
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
    def needs_grad(self) -> bool:
        return self.mode != "fwd"

    @property
    def group_size(self) -> int:
        """Query heads per key/value head."""
        return self.qheads // self.kvheads

    @property
    def q_shape(self) -> tuple[int, int, int]:
        """``(tokens, qheads, head_dim)``, the shape of q, out and its gradient."""
        return self.tokens, self.qheads, self.head_dim

    @property
    def kv_shape(self) -> tuple[int, int, int]:
        """``(tokens, kvheads, head_dim)``, the shape of k and v."""
        return self.tokens, self.kvheads, self.head_dim

    def sequences(self) -> Iterator[slice]:
        """Yield the rows of each sequence in a packed tensor."""
        ends = list(itertools.accumulate(self.lengths))
        return itertools.starmap(slice, zip([0, *ends], ends, strict=False))

    def offsets(self) -> Tensor:
        """Return the starts of the sequences and the total length, as kernels expect: ``(sequences + 1,)`` int32."""
        return torch.tensor(
            [0, *itertools.accumulate(self.lengths)], dtype=torch.int32, device=attention_config.device()
        )

    def sequence(self, rows: slice) -> attention_config.AttentionConfig:
        """Return the config of one sequence."""
        return attention_config.AttentionConfig(
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
    """Converts packed tensors ``(tokens, heads, head_dim)`` into the arguments of a call, and back.

    ``split`` makes the ``parts`` tensors that the interface takes for a packed one, ``join`` makes the packed one from
    them. ``stacked`` is how many of q, k and v, counted from v, share one tensor: 1, 2 (kv) or 3 (qkv).
    """

    split: Callable[[Tensor], Sequence[Tensor]]
    join: Callable[[Sequence[Tensor]], Tensor]
    stacked: int = 1
    parts: int = 1

    def arguments(self, q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
        """Return the arguments of the call: those of q, then of k, then of v, each contiguous."""
        tensors = [part for tensor in (q, k, v) for part in self.split(tensor)]
        if self.stacked > 1:
            # (tokens, heads, head_dim) -> (tokens, stacked, heads, head_dim), and likewise behind a batch axis
            tensors[-self.stacked :] = [torch.stack(tensors[-self.stacked :], dim=-3)]
        return tensors

    def packed(self, arguments: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Return the packed q, k and v of tensors laid out as ``arguments``, such as gradients."""
        tensors = list(arguments)
        if self.stacked > 1:
            tensors[-1:] = tensors[-1].unbind(-3)
        q, k, v = (self.join(tensors[at * self.parts : (at + 1) * self.parts]) for at in range(3))
        return q, k, v


def packed(config: VarlenConfig, stacked: int = 1) -> Layout:
    """Layout ``(tokens, heads, head_dim)``, or ``(tokens, stacked, heads, head_dim)``."""
    return Layout(lambda tensor: [tensor], lambda parts: parts[0], stacked)


def batch(config: VarlenConfig, stacked: int = 1) -> Layout:
    """Layout ``(sequences, seqlen, heads, head_dim)`` for sequences of equal length."""
    shape = (len(config.lengths), config.longest)
    return Layout(lambda tensor: [tensor.unflatten(0, shape)], lambda parts: parts[0].flatten(0, 1), stacked)


def batch_of_one(config: VarlenConfig) -> Layout:
    """Layout ``(1, tokens, heads, head_dim)``."""
    return Layout(lambda tensor: [tensor.unsqueeze(0)], lambda parts: parts[0].squeeze(0))


def heads_first(config: VarlenConfig) -> Layout:
    """Layout ``(1, heads, tokens, head_dim)``."""
    return Layout(
        lambda tensor: [tensor.transpose(0, 1).unsqueeze(0).contiguous()],
        lambda parts: parts[0].squeeze(0).transpose(0, 1),
    )


def one_by_one(config: VarlenConfig) -> Layout:
    """Layout with a tensor ``(1, heads, seqlen, head_dim)`` for each sequence."""
    return Layout(
        lambda tensor: [tensor[rows].transpose(0, 1).unsqueeze(0).contiguous() for rows in config.sequences()],
        lambda parts: torch.cat([part.squeeze(0).transpose(0, 1) for part in parts]),
        parts=len(config.lengths),
    )


def nested(config: VarlenConfig) -> Layout:
    """Layout with one nested tensor ``(sequences, seqlen, heads, head_dim)``, jagged in its second axis."""
    offsets = config.offsets()  # shared, because torch treats different offset tensors as different shapes

    def split(tensor: Tensor) -> list[Tensor]:
        made = torch.nested.nested_tensor_from_jagged(
            tensor, offsets, min_seqlen=min(config.lengths), max_seqlen=config.longest
        )
        return [made.detach()]

    return Layout(split, lambda parts: parts[0].values())
