"""One call of attention: its parameters, its inputs, and its passes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from profpipe.workload_lib.parameters import check_bool, check_choice, check_positive

# --- passes ----------------------------------------------------------------------------------------------------------

#: Puts a range around a block: ``annotate``, or ``nullcontext`` for none.
Phase = Callable[[str], AbstractContextManager[object]]

MODES = ("fwd", "bwd", "fwd_bwd")

#: FLOPs of a mode in those of the forward pass: the backward pass computes the scores again.
FLOPS_FACTOR = {"fwd": 1, "bwd": 2.5, "fwd_bwd": 3.5}


def iteration(
    forward: Callable[..., Tensor | tuple[Tensor, ...]],
    inputs: Sequence[Tensor],
    mode: str,
    upstream: Sequence[Tensor] | Callable[[tuple[Tensor, ...]], Sequence[Tensor]],
    phase: Phase,
) -> Callable[[], tuple[Tensor, ...]]:
    """Return one iteration, which returns (outputs..., gradients of ``inputs``...).

    ``upstream`` are the gradients of the outputs, or makes them for the outputs of a first call, whose strides are not
    known before. Mode ``bwd`` keeps the graph of that call.
    """

    def forward_pass() -> tuple[Tensor, ...]:
        with phase("forward"):
            return make_tuple(forward(*inputs))

    if mode == "fwd":
        return forward_pass
    kept = make_tuple(forward(*inputs)) if mode == "bwd" or callable(upstream) else ()
    gradients = upstream(kept) if callable(upstream) else upstream

    def backward_pass() -> tuple[Tensor, ...]:
        with phase("backward"):
            return (*kept, *torch.autograd.grad(kept, inputs, gradients, retain_graph=True))

    def both_passes() -> tuple[Tensor, ...]:
        outs = forward_pass()
        with phase("backward"):
            return (*outs, *torch.autograd.grad(outs, inputs, gradients))

    return backward_pass if mode == "bwd" else both_passes


def make_tuple(out: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return out if isinstance(out, tuple) else (out,)


def least_bytes(mode: str, q: float, kv: float, query_rows: float) -> float:
    """Return the bytes that a call must read and write at least; ``q`` and ``kv`` are the bytes of q, and of k and v.

    The forward pass writes a log-sum-exp (fp32) for a query row where the backward pass needs it.
    """
    log_sum_exp = 0 if mode == "fwd" else 4 * query_rows
    forward, backward = 2 * q + kv + log_sum_exp, 4 * q + 2 * kv + log_sum_exp
    return {"fwd": forward, "bwd": backward, "fwd_bwd": forward + backward}[mode]


# --- the parameters --------------------------------------------------------------------------------------------------

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
#: Precisions of the reference.
REFERENCES = {"fp32": torch.float32, "fp64": torch.float64}

#: q, k, v in the implementation's layout -> the output in the same layout.
Forward = Callable[[Tensor, Tensor, Tensor], Tensor]


def device() -> str:
    """Return the device of the tensors: the GPU, else the CPU."""
    return "cuda" if torch.cuda.is_available() else "cpu"


@dataclass(frozen=True, kw_only=True)
class AttentionConfig:
    """One call of attention with ``queries`` queries over ``seqlen`` keys and values.

    Fewer queries than keys are the last ones of the sequence: the last query sees all keys, causal or not. The four
    fields below ``mode`` are SpargeAttn's, with its names; None means its default. The others are for the workload
    ``attention``.

    Raises ValueError for values that are invalid on any machine.
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
    inputs: str = "normal"
    seed: int = 0
    reference: str = "fp32"
    memory_cap_gib: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "kv_heads", self.kv_heads or self.heads)
        object.__setattr__(self, "queries", self.queries or self.seqlen)
        check_choice("dtype", self.dtype, DTYPES)
        check_choice("mode", self.mode, MODES)
        check_positive(vars(self), ("batch", "seqlen", "queries", "heads", "kv_heads", "head_dim"))
        check_bool(vars(self), "causal")
        if self.heads % self.kv_heads:
            raise ValueError(f"heads ({self.heads}) must be a multiple of kv_heads ({self.kv_heads})")
        if self.queries > self.seqlen:
            raise ValueError(f"queries ({self.queries}) must not exceed seqlen ({self.seqlen})")
        self._check_thresholds()
        check_choice("inputs", self.inputs, KINDS)
        check_choice("reference", self.reference, REFERENCES)
        if type(self.memory_cap_gib) not in (int, float) or not 0 <= self.memory_cap_gib < math.inf:
            raise ValueError(f"memory_cap_gib must be a number of at least 0, not {self.memory_cap_gib!r}")

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
        """Whether the causal mask hides anything: a single query, the last one, sees all keys."""
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


# --- inputs ----------------------------------------------------------------------------------------------------------
#
# The inputs of attention: ``normal`` (independent normal numbers), or ``local`` (tokens that resemble neighbours).
#
# ``local`` is for implementations that exploit structure, as the tokens of a video have it (SpargeAttn, arXiv
# 2502.18137). The tokens lie on a cube of frames, rows and columns. Each head has a smooth random field on the cube
# (random Fourier features, Rahimi and Recht, 2007): two places have a dot product of head_dim x exp(-distance^2 / (2
# length^2)) on average. q and k of a head are the same field and v is another, both with noise. The lengths of the
# heads range from a side of the cube to a quarter of it. Every element has variance 1.

KINDS = ("normal", "local")

#: Standard deviation of the noise on the fields, before scaling back to variance 1.
_NOISE = 0.25


def draw(config: AttentionConfig) -> list[Tensor]:
    """Draw q, k, v and, for the backward pass, the upstream gradient: ``(batch, length, heads, head_dim)``.

    The numbers depend on the seed and the shapes only, so all implementations get the same.
    """
    generator = torch.Generator(device()).manual_seed(config.seed)
    upstream = [config.q_shape] * config.needs_grad
    if config.inputs == "local":
        return _local(config, generator) + normal(upstream, config.dtype, generator)
    return normal([config.q_shape, config.kv_shape, config.kv_shape, *upstream], config.dtype, generator)


def normal(shapes: Iterable[tuple[int, ...]], dtype: str, seed: int | torch.Generator) -> list[Tensor]:
    """Draw a tensor of independent normal numbers for all ``shapes``."""
    generator = torch.Generator(device()).manual_seed(seed) if isinstance(seed, int) else seed
    options: dict[str, Any] = {"device": generator.device, "dtype": DTYPES[dtype]}
    return [torch.randn(shape, generator=generator, **options) for shape in shapes]


def _local(config: AttentionConfig, generator: torch.Generator) -> list[Tensor]:
    side = max(1, round(config.seqlen ** (1 / 3)))
    index = torch.arange(config.seqlen, device=generator.device)
    places = torch.stack([index // side**2, index // side % side, index % side], dim=1).float()
    lengths = side * 0.25 ** torch.linspace(0, 1, config.kv_heads, device=generator.device)
    keys = _field(config, places, lengths, generator)
    values = _field(config, places, lengths, generator)
    queries = keys[:, -config.queries :].repeat_interleave(config.group_size, dim=2)
    noisy = []
    for field in (queries, keys, values):
        noise = torch.randn(field.shape, generator=generator, device=field.device)
        noisy.append(((field + _NOISE * noise) / math.sqrt(1 + _NOISE**2)).to(DTYPES[config.dtype]))
    return noisy


def _field(config: AttentionConfig, places: Tensor, lengths: Tensor, generator: torch.Generator) -> Tensor:
    """Draw a field ``(batch, seqlen, kv_heads, head_dim)``, smooth over ``lengths``; items differ by their phases."""
    device, features = generator.device, (config.kv_heads, config.head_dim)
    frequencies = torch.randn((3, *features), generator=generator, device=device) / lengths[:, None]
    phases = torch.rand((config.batch, 1, *features), generator=generator, device=device) * (2 * math.pi)
    return (torch.einsum("sp,phd->shd", places, frequencies) + phases).cos_().mul_(math.sqrt(2))
