"""Attention over packed sequences of different lengths: its parameters, layouts and implementations."""

from __future__ import annotations

import importlib
import inspect
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from profpipe.workload_lib import (
    attention_config,
    implementations,
    requirements,
)
from profpipe.workload_lib.implementations import IMPLEMENTATIONS as DENSE
from profpipe.workload_lib.parameters import check_bool, check_choice, check_positive
from profpipe.workload_lib.requirements import Implementation

# --- parameters and layouts ------------------------------------------------------------------------------------------

#: The functions of flash-attn: ``flash_attn_varlen_qkvpacked_func`` and so on; ``func``: flash_attn_func.
APIS = ("func", "kvpacked", "qkvpacked", "varlen", "varlen_kvpacked", "varlen_qkvpacked")

_LENGTHS = re.compile(r"\s*(?:(\d+)\s*x\s*)?(\d+)\s*")


@dataclass(frozen=True, kw_only=True)
class VarlenConfig:
    """One call of attention over packed sequences, each of which attends to itself only.

    Raises ValueError for values that are invalid on any machine.
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
        check_choice("mode", self.mode, attention_config.MODES)
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
        """Yield the rows of the sequences in a packed tensor."""
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
class ArgumentLayout:
    """Converts packed tensors ``(tokens, heads, head_dim)`` into the arguments of a call, and back.

    ``split`` makes the ``parts`` tensors that the interface takes for a packed one, ``join`` makes the packed one from
    them. ``stacked`` is how many of q, k and v, counted from v, share one tensor: 1, 2 (kv) or 3 (qkv).
    """

    split: Callable[[Tensor], Sequence[Tensor]]
    join: Callable[[Sequence[Tensor]], Tensor]
    stacked: int = 1
    parts: int = 1

    def arguments(self, q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
        """Return the arguments of the call: those of q, then of k, then of v, all contiguous."""
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


def packed(config: VarlenConfig, stacked: int = 1) -> ArgumentLayout:
    """Layout ``(tokens, heads, head_dim)``, or ``(tokens, stacked, heads, head_dim)``."""
    return ArgumentLayout(lambda tensor: [tensor], lambda parts: parts[0], stacked)


def batch(config: VarlenConfig, stacked: int = 1) -> ArgumentLayout:
    """Layout ``(sequences, seqlen, heads, head_dim)`` for sequences of equal length."""
    shape = (len(config.lengths), config.longest)
    return ArgumentLayout(lambda tensor: [tensor.unflatten(0, shape)], lambda parts: parts[0].flatten(0, 1), stacked)


def batch_of_one(config: VarlenConfig) -> ArgumentLayout:
    """Layout ``(1, tokens, heads, head_dim)``."""
    return ArgumentLayout(lambda tensor: [tensor.unsqueeze(0)], lambda parts: parts[0].squeeze(0))


def heads_first(config: VarlenConfig) -> ArgumentLayout:
    """Layout ``(1, heads, tokens, head_dim)``."""
    return ArgumentLayout(
        lambda tensor: [tensor.transpose(0, 1).unsqueeze(0).contiguous()],
        lambda parts: parts[0].squeeze(0).transpose(0, 1),
    )


def one_by_one(config: VarlenConfig) -> ArgumentLayout:
    """Layout with a tensor ``(1, heads, seqlen, head_dim)`` for a sequence."""
    return ArgumentLayout(
        lambda tensor: [tensor[rows].transpose(0, 1).unsqueeze(0).contiguous() for rows in config.sequences()],
        lambda parts: torch.cat([part.squeeze(0).transpose(0, 1) for part in parts]),
        parts=len(config.lengths),
    )


def nested(config: VarlenConfig) -> ArgumentLayout:
    """Layout with one nested tensor ``(sequences, seqlen, heads, head_dim)``, jagged in its second axis."""
    offsets = config.offsets()  # shared, because torch treats different offset tensors as different shapes

    def split(tensor: Tensor) -> list[Tensor]:
        made = torch.nested.nested_tensor_from_jagged(
            tensor, offsets, min_seqlen=min(config.lengths), max_seqlen=config.longest
        )
        return [made.detach()]

    return ArgumentLayout(split, lambda parts: parts[0].values())


# --- calls -----------------------------------------------------------------------------------------------------------

#: The arguments of the layout -> the outputs, laid out as q.
Forward = Callable[..., tuple[Tensor, ...]]


def _stacked(config: VarlenConfig) -> int:
    """Return how many of q, k and v the function of flash-attn takes in one tensor."""
    return 3 if config.api.endswith("qkvpacked") else 2 if config.api.endswith("kvpacked") else 1


def flash_layout(config: VarlenConfig) -> ArgumentLayout:
    return (packed if config.api.startswith("varlen") else batch)(config, _stacked(config))


def flash_attn(module: str) -> Callable[[VarlenConfig], Forward]:
    """Return the function that prepares ``flash_attn_func`` of FlashAttention 2, 3 or 4, or a variant named by ``api``.

    Lengths are passed by name, because their positions changed between betas of 4; qkvpacked takes them once.
    """

    def prepare(config: VarlenConfig) -> Forward:
        name = "flash_attn_func" if config.api == "func" else f"flash_attn_{config.api}_func"
        function, offsets = getattr(importlib.import_module(module), name), config.offsets()
        options: dict[str, Any] = {"causal": config.causal}
        if config.api.startswith("varlen"):
            for suffix in ("",) if _stacked(config) == 3 else ("_q", "_k"):
                options |= {f"cu_seqlens{suffix}": offsets, f"max_seqlen{suffix}": config.longest}
        return lambda *arguments: (implementations.output(function(*arguments, **options)),)

    return prepare


def xformers(config: VarlenConfig) -> Forward:
    from xformers.ops import memory_efficient_attention
    from xformers.ops.fmha.attn_bias import BlockDiagonalMask

    mask = BlockDiagonalMask.from_seqlens(list(config.lengths))
    if config.causal:
        mask = mask.make_causal()

    def forward(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        out = memory_efficient_attention(*implementations.add_group_axis(config.group_size, q, k, v), attn_bias=mask)
        return (out.flatten(2, 3) if config.group_size > 1 else out,)

    return forward


def torch_varlen(config: VarlenConfig) -> Forward:
    """The arguments differ: torch 2.10 has ``is_causal``, later releases a window; 2.12 requires ``enable_gqa``."""
    varlen_attn = importlib.import_module("torch.nn.attention.varlen").varlen_attn
    parameters = inspect.signature(varlen_attn).parameters
    options: dict[str, Any] = {}
    if config.causal:
        options |= {"is_causal": True} if "is_causal" in parameters else {"window_size": (-1, 0)}
    if config.group_size > 1 and "enable_gqa" in parameters:
        options["enable_gqa"] = True
    offsets, longest = config.offsets(), config.longest
    return lambda q, k, v: (varlen_attn(q, k, v, offsets, offsets, longest, longest, **options),)


def flex(config: VarlenConfig) -> Forward:
    """FlexAttention over all sequences as one, in which a token sees its document only."""
    from torch.nn.attention.flex_attention import create_block_mask

    device = attention_config.device()
    lengths = torch.tensor(config.lengths, device=device)
    document = torch.arange(len(lengths), device=device).repeat_interleave(lengths)

    def visible(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        same_document = document[query] == document[key]
        return same_document & (query >= key) if config.causal else same_document

    mask = create_block_mask(visible, None, None, config.tokens, config.tokens, device=device)
    call = implementations.flex_with_mask(mask, config, grouped=config.group_size > 1, kept=config.mode == "bwd")
    return lambda q, k, v: (call(q, k, v),)


def sdpa_nested(config: VarlenConfig) -> Forward:
    def forward(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))
        return (scaled_dot_product_attention(q, k, v, is_causal=config.causal).transpose(1, 2),)

    return forward


def sdpa_loop(config: VarlenConfig) -> Forward:
    """Call SDPA's flash kernel once per sequence."""
    one = implementations.sdpa("flash")(config.sequence(slice(0, config.longest)))

    def forward(*arguments: Tensor) -> tuple[Tensor, ...]:
        count = len(config.lengths)
        return tuple(map(one, arguments[:count], arguments[count : 2 * count], arguments[2 * count :]))

    return forward


# --- the table -------------------------------------------------------------------------------------------------------


def _row(
    dense: str,
    prepare: Callable[[VarlenConfig], Forward],
    layout: Callable[[VarlenConfig], ArgumentLayout],
    family: str,
    apis: tuple[str, ...] = ("varlen",),
    **changes: Any,
) -> Implementation:
    """Return a row of the package, dtypes and head dims of ``dense``, an implementation without packing."""
    return replace(DENSE[dense], prepare=prepare, layout=layout, family=family, apis=apis, **changes)


IMPLEMENTATIONS: Mapping[str, Implementation] = {
    "fa2": _row("fa2", flash_attn("flash_attn"), flash_layout, "fa2", APIS),
    "fa3": _row("fa3", flash_attn("flash_attn_interface"), flash_layout, "fa3", ("func", "varlen")),
    "fa4": _row("fa4", flash_attn("flash_attn.cute"), flash_layout, "fa4", ("func", "varlen")),
    # The first of its operators that supports the case.
    "xformers": _row("xformers", xformers, batch_of_one, "fa2|fa3|cutlass_fmha"),
    "torch_varlen": _row(
        "sdpa_flash",
        torch_varlen,
        packed,
        "fa2",
        package="torch.nn.attention.varlen",
        install="It is a part of torch since 2.10: pip install 'torch>=2.10'",
        on_cpu=False,
        dtypes=("fp16", "bf16"),
        max_head_dim=256,
    ),
    "flex": _row("flex", flex, heads_first, "flex"),
    "sdpa_nested": _row("sdpa_flash", sdpa_nested, nested, "fa2|cutlass_fmha", grouped=False, least_sm=(0, 0)),
    "sdpa_loop": _row("sdpa_flash", sdpa_loop, one_by_one, "fa2"),
}


def expected_family(config: VarlenConfig) -> str:
    """Return the kernel family that a trace must contain; ``a|b``: any of them; empty on a CPU."""
    row = IMPLEMENTATIONS[config.impl]
    if attention_config.device() == "cpu":
        return ""
    return row.rocm_family if torch.version.hip else str(row.family)


def inputs(config: VarlenConfig) -> list[Tensor]:
    """Draw q, k, v and, for the backward pass, the upstream gradient: packed, normal, equal for all implementations."""
    shapes = [config.q_shape, config.kv_shape, config.kv_shape] + [config.q_shape] * config.needs_grad
    return attention_config.normal(shapes, config.dtype, config.seed)


def iteration(config: VarlenConfig, phase: attention_config.Phase) -> Callable[[], tuple[Tensor, ...]]:
    """Return one iteration, with its passes in a ``phase``.

    It returns the outputs in the layout of q, and the gradients in the layout of the arguments.
    """
    row = IMPLEMENTATIONS[config.impl]
    layout, forward = row.layout(config), row.prepare(config)
    q, k, v, *upstream = inputs(config)
    arguments = [tensor.requires_grad_(config.needs_grad) for tensor in layout.arguments(q, k, v)]

    def gradients(outs: tuple[Tensor, ...]) -> list[Tensor]:
        """Use the strides of the outputs. Nested tensors are contiguous, and cannot be copied so."""
        pairs = zip(outs, layout.split(*upstream), strict=True)
        return [part if part.is_nested else torch.empty_like(out).copy_(part) for out, part in pairs]

    return attention_config.iteration(forward, arguments, config.mode, gradients, phase)


def produced(config: VarlenConfig) -> dict[str, Tensor]:
    """Return the output and, with a backward pass, the gradients of one call, packed: out, dq, dk and dv."""
    layout, results = IMPLEMENTATIONS[config.impl].layout(config), iteration(config, nullcontext)()
    tensors = {"out": layout.join([out.detach() for out in results[: layout.parts]])}
    if gradients := results[layout.parts :]:
        tensors |= zip(("dq", "dk", "dv"), layout.packed(gradients), strict=True)
    return tensors


def unavailable_reason(config: VarlenConfig) -> str | None:
    """Return why the implementation cannot run ``config`` here and the remedy, or None.

    Known limits are looked up; the rest is tried by one call of a few short sequences.
    """
    row = IMPLEMENTATIONS[config.impl]
    return (
        _unsupported(config, row)
        or requirements.missing_device(config.impl, config.dtype, row, IMPLEMENTATIONS)
        or requirements.missing_package(config.impl, row)
        or _rejection(config, row)
    )


def _unsupported(config: VarlenConfig, row: Implementation) -> str | None:
    """Return a limit of the implementation on any machine."""
    if wrong := requirements.unsupported_tensor(config.impl, config.dtype, config.head_dim, row):
        return wrong
    if config.group_size > 1 and not row.grouped:
        return f"{config.impl} needs as many key/value heads as query heads. Use kvheads: {config.qheads}."
    if (api := config.api) not in row.apis:
        return f"{config.impl} has no form {api}. Use api: {' or '.join(row.apis)}."
    if not api.startswith("varlen") and not config.equally_long:
        return f"api: {api} takes sequences of one length, not {config.seqlens}. Use a form that begins with varlen."
    if config.group_size > 1 and api.endswith("qkvpacked"):
        return f"api: {api} needs as many key/value heads as query heads. Use kvheads: {config.qheads}."
    return None


def _rejection(config: VarlenConfig, row: Implementation) -> str | None:
    """Return why a call with a few short sequences fails."""
    short = ",".join(str(min(length, 128 + length % 128)) for length in config.lengths[:3])
    error = requirements.trial_error(_call_once, row.package, replace(config, seqlens=short), row)
    if error is None:
        return None
    return (
        f"{config.impl} rejects this case: {error}. "
        f"Change head_dim, dtype, kvheads, causal or mode, or use another build of {row.package or 'torch'}."
    )


def _call_once(config: VarlenConfig, _: Implementation) -> None:
    iteration(config, nullcontext)()
    if attention_config.device() == "cuda":
        torch.cuda.synchronize()
