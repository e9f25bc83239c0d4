"""The language model: its parameters, the decoder in plain PyTorch, one iteration, and what a case needs."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from profpipe.workload_lib import attention_config, requirements
from profpipe.workload_lib.attention_config import Phase
from profpipe.workload_lib.parameters import add_defaults, check_bool, check_choice, check_positive

# --- parameters ------------------------------------------------------------------------------------------------------

#: d_model, d_ff, layers, heads.
SIZES = {
    "tiny": (64, 128, 2, 4),
    "small": (768, 3072, 12, 12),
    "medium": (1024, 4096, 24, 16),
    "large": (1280, 5120, 36, 20),
    "xl": (1600, 6400, 48, 25),
    "2.7B": (2560, 10240, 32, 32),
}
DIMENSIONS = ("d_model", "d_ff", "layers", "heads")
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
ADAMW = {"foreach": {"foreach": True}, "fused": {"fused": True}, "loop": {"foreach": False, "fused": False}}
CHOICES: Mapping[str, Sequence[str]] = {
    "size": (*SIZES, "custom"),
    "block": ("modern", "classic"),
    "precision": tuple(PRECISIONS),
    "what": ("forward", "backward", "forward_backward", "train_step"),
    "attention": ("plain", "sdpa"),
    "adamw": tuple(ADAMW),
}


@dataclass(frozen=True)
class LmConfig:
    """The checked parameters of one case, with the four dimensions of its size."""

    size: str
    block: str
    context: int
    batch: int
    vocab: int
    precision: str
    what: str
    attention: str
    compile: bool
    adamw: str
    d_model: int
    d_ff: int
    layers: int
    heads: int
    record_dtypes: bool
    seed: int

    @property
    def modern(self) -> bool:
        return self.block == "modern"

    @property
    def tokens(self) -> int:
        return self.batch * self.context

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of matrix products."""
        return PRECISIONS[self.precision]

    @property
    def block_weights(self) -> int:
        """Elements of the matrices of all blocks: query, key, value, output, and two or three of the MLP."""
        return self.layers * (4 * self.d_model**2 + (3 if self.modern else 2) * self.d_model * self.d_ff)

    @property
    def score_elements(self) -> int:
        """Attention scores of one layer: the full square, with masked ones."""
        return self.batch * self.heads * self.context**2


def lm_config(params: Mapping[str, Any], defaults: Mapping[str, Any]) -> LmConfig:
    """Return the config of ``params`` with defaults. Raises ValueError for a wrong value."""
    values = add_defaults(params, defaults)
    for name, choices in CHOICES.items():
        check_choice(name, values[name], choices)
    check_bool(values, "compile", "record_dtypes")
    values |= _dimensions(values)
    check_positive(values, ("context", "batch", "vocab", *DIMENSIONS))
    if values["d_model"] % values["heads"]:
        raise ValueError(f"d_model ({values['d_model']}) must be a multiple of heads ({values['heads']})")
    if values["block"] == "modern" and values["d_model"] // values["heads"] % 2:
        raise ValueError("RoPE rotates pairs: d_model / heads must be even, or block: classic")
    return LmConfig(**values)


def _dimensions(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the dimensions of a size; for size custom the given ones, with those of small in place of 0."""
    given = {name: values[name] for name in DIMENSIONS}
    if values["size"] == "custom":
        small = dict(zip(DIMENSIONS, SIZES["small"], strict=True))
        return {name: given[name] if given[name] != 0 else small[name] for name in DIMENSIONS}
    if wrong := [name for name in DIMENSIONS if given[name]]:
        raise ValueError(f"{wrong[0]} is fixed by size {values['size']}: use size: custom to choose it")
    return dict(zip(DIMENSIONS, SIZES[values["size"]], strict=True))


# --- the decoder -----------------------------------------------------------------------------------------------------


class Embedding(nn.Module):
    """Token ids to vectors; classic adds a learned vector for a position."""

    def __init__(self, config: LmConfig) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocab, config.d_model)
        self.positions = None if config.modern else nn.Embedding(config.context, config.d_model)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        return x if self.positions is None else x + self.positions.weight[: ids.shape[1]]


class RMSNorm(nn.Module):
    """Root-mean-square normalisation as a formula: torch has a function for it only from 2.4 on."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * self.weight


class Attention(nn.Module):
    """Causal self-attention with query, key and value from one matrix product."""

    def __init__(self, config: LmConfig, phase: Phase, rotation: Tensor | None, hidden: Tensor | None) -> None:
        super().__init__()
        self.heads, self.phase = config.heads, phase
        self.qkv = nn.Linear(config.d_model, 3 * config.d_model, bias=not config.modern)
        self.out = nn.Linear(config.d_model, config.d_model, bias=not config.modern)
        self.register_buffer("rotation", rotation, persistent=False)
        self.register_buffer("hidden", hidden, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind()
        if self.rotation is not None:
            cos, sin = self.rotation[:, : x.shape[1]].unbind()
            q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        if self.hidden is None:
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            mixed = self.plain(q, k, v, self.hidden[: x.shape[1], : x.shape[1]])
        return self.out(mixed.transpose(1, 2).flatten(2))

    def plain(self, q: Tensor, k: Tensor, v: Tensor, hidden: Tensor) -> Tensor:
        """Compute attention by its formula; ``hidden`` is true where a query must not see a key."""
        with self.phase("attention scores"):
            scores = q @ k.mT / math.sqrt(q.shape[-1])
            scores = scores.masked_fill(hidden, -math.inf)
        with self.phase("softmax"):
            weights = scores.softmax(-1)
        with self.phase("final matmul"):
            return weights @ v


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply RoPE: rotate the pair (i, i + half) by position times frequency i; in fp32 under autocast, as in Llama."""
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), -1).type_as(x)


def rotation(config: LmConfig) -> Tensor:
    """Return cosines and sines of RoPE with base 10000: (2, context, head_dim / 2), fp32."""
    half = config.d_model // config.heads // 2
    frequencies = 10000.0 ** -(torch.arange(half, dtype=torch.float64) / half)
    angles = torch.arange(config.context, dtype=torch.float64)[:, None] * frequencies
    return torch.stack((angles.cos(), angles.sin())).float()


class SwiGLU(nn.Module):
    def __init__(self, config: LmConfig) -> None:
        super().__init__()
        self.gate = nn.Linear(config.d_model, config.d_ff, bias=False)
        self.up = nn.Linear(config.d_model, config.d_ff, bias=False)
        self.down = nn.Linear(config.d_ff, config.d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(functional.silu(self.gate(x)) * self.up(x))


def _gelu_mlp(config: LmConfig) -> nn.Module:
    return nn.Sequential(
        nn.Linear(config.d_model, config.d_ff), nn.GELU("tanh"), nn.Linear(config.d_ff, config.d_model)
    )


def _norm(config: LmConfig) -> nn.Module:
    return RMSNorm(config.d_model) if config.modern else nn.LayerNorm(config.d_model)


class Block(nn.Module):
    """One layer: attention and MLP, both with a norm before it and a residual connection around it."""

    def __init__(self, config: LmConfig, attention: Attention) -> None:
        super().__init__()
        self.attention_norm, self.attention = _norm(config), attention
        self.mlp_norm, self.mlp = _norm(config), SwiGLU(config) if config.modern else _gelu_mlp(config)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


def decoder(config: LmConfig, phase: Phase) -> nn.Sequential:
    """Return embedding, blocks and output layer on torch's default device, with torch's initial weights."""
    turns = rotation(config) if config.modern else None
    # One mask for all layers: a mask is as large as the scores of one head.
    hidden = later_keys(config.context) if config.attention == "plain" else None
    blocks = [Block(config, Attention(config, phase, turns, hidden)) for _ in range(config.layers)]
    embedding, output = Embedding(config), nn.Linear(config.d_model, config.vocab, bias=False)
    if not config.modern:
        output.weight = embedding.tokens.weight
    return nn.Sequential(embedding, *blocks, nn.Sequential(_norm(config), output))


def later_keys(tokens: int, device: torch.device | None = None) -> Tensor:
    """Return (tokens, tokens), true where a query must not see a key; on torch's default device without ``device``."""
    return torch.ones(tokens, tokens, dtype=torch.bool, device=device).triu(1)


def initialise(model: nn.Module, generator: torch.Generator) -> None:
    """Set GPT-2's initial weights (normal, 0.02) for both kinds of block; biases 0, norms 1."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.02, generator=generator)
            elif name.endswith("bias"):
                parameter.zero_()


@functools.lru_cache
def parameter_count(config: LmConfig) -> int:
    """Count the elements of all parameters in a model without memory."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in decoder(config, nullcontext).parameters())


# --- one iteration ---------------------------------------------------------------------------------------------------


class Model:
    """The decoder on the device, with random tokens to predict; ``seed`` sets tokens and weights."""

    def __init__(self, config: LmConfig, phase: Phase) -> None:
        device = attention_config.device()
        generator = torch.Generator(device).manual_seed(config.seed)
        with torch.device(device):
            self.layers = decoder(config, nullcontext if config.compile else phase)
            ids = torch.randint(config.vocab, (config.batch, config.context + 1), generator=generator)
        initialise(self.layers, generator)
        self.tokens, self.targets = ids[:, :-1].contiguous(), ids[:, 1:].flatten()
        self._setting, self._phase = config, phase
        self._run = requirements.compiled_model(self.layers, fullgraph=True) if config.compile else self.layers

    def forward(self) -> tuple[Tensor, Tensor]:
        """Return (logits, mean loss)."""
        is_mixed, dtype = self._setting.precision != "fp32", self._setting.dtype
        autocast = torch.autocast(attention_config.device(), dtype=dtype) if is_mixed else nullcontext()
        with self._phase("forward"), autocast:
            logits = self._run(self.tokens)
            with self._phase("loss"):
                return logits, functional.cross_entropy(logits.flatten(0, 1), self.targets)


def iteration(config: LmConfig, phase: Phase) -> Callable[[], Tensor]:
    """Return one iteration, with its passes in a ``phase``; the iteration returns the loss."""
    model = Model(config, nullcontext if config.what == "backward" else phase)

    def forward() -> Tensor:
        with torch.no_grad():
            return model.forward()[1]

    if config.what == "forward":
        return forward
    # A scale of 1024 never overflows in a new model: an overflow would skip the optimizer in a timed step.
    scaler = torch.amp.GradScaler(attention_config.device(), init_scale=1024.0, enabled=config.precision == "fp16")

    if config.what == "backward":
        graph = model.forward()[1]

        def backward() -> Tensor:
            model.layers.zero_grad(set_to_none=True)
            with phase("backward"):
                scaler.scale(graph).backward(retain_graph=True)
            return graph.detach()

        return backward

    def forward_backward() -> Tensor:
        model.layers.zero_grad(set_to_none=True)
        loss = model.forward()[1]
        with phase("backward"):
            scaler.scale(loss).backward()
        return loss.detach()

    if config.what == "forward_backward":
        return forward_backward
    optimizer = torch.optim.AdamW(model.layers.parameters(), lr=1e-4, **ADAMW[config.adamw])

    def train_step() -> Tensor:
        loss = forward_backward()
        with phase("optimizer"):
            scaler.step(optimizer)
            scaler.update()
        return loss

    return train_step


# --- data types ------------------------------------------------------------------------------------------------------

#: The modules whose outputs are looked at.
_KINDS = {"linear": (nn.Linear,), "norm": (nn.LayerNorm, RMSNorm)}


@functools.lru_cache(maxsize=16)
def bits(config: LmConfig) -> dict[str, int]:
    """Return the bits of a number of the parameters, linear layers, norms, logits, loss and gradients.

    Of linear layers and norms it is the output, of several the widest. A tiny model of the same block, attention and
    precision makes one forward and one backward pass: dtypes do not depend on the size.
    """
    width, inner, layers, heads = SIZES["tiny"]
    sizes: dict[str, Any] = {"d_model": width, "d_ff": inner, "context": 16, "batch": 1, "vocab": 64}
    model = Model(replace(config, layers=layers, heads=heads, compile=False, **sizes), nullcontext)
    dtypes_by_kind: dict[str, set[torch.dtype]] = {
        name: set() for name in ("parameter", *_KINDS, "logits", "loss", "gradient")
    }
    for module in model.layers.modules():
        for kind, types in _KINDS.items():
            if isinstance(module, types):
                module.register_forward_hook(lambda _, given, out, dtypes=dtypes_by_kind[kind]: dtypes.add(out.dtype))
    logits, loss = model.forward()
    loss.backward()
    dtypes_by_kind["logits"], dtypes_by_kind["loss"] = {logits.dtype}, {loss.dtype}
    for parameter in model.layers.parameters():
        dtypes_by_kind["parameter"].add(parameter.dtype)
        if parameter.grad is not None:
            dtypes_by_kind["gradient"].add(parameter.grad.dtype)
    return {kind: max(torch.finfo(dtype).bits for dtype in dtypes) for kind, dtypes in dtypes_by_kind.items()}


# --- what a case needs -----------------------------------------------------------------------------------------------


def missing_requirement(config: LmConfig) -> str | None:
    """Return the first reason, or None."""
    on_gpu = attention_config.device() == "cuda"
    if config.size == "2.7B" and not on_gpu:
        return "2.7B needs a GPU, and torch sees none. Run it where there is one, or use a smaller size here."
    if config.precision == "bf16" and on_gpu and torch.version.cuda is not None:
        capability = torch.cuda.get_device_capability()
        if capability < (8, 0):
            return "bf16 needs sm_80 or later; this GPU is sm_{}{}. Use precision: fp16 or fp32.".format(*capability)
    if config.compile and config.what == "backward":
        # With torch 2.13 on a CPU, gradients were wrong from the first pass on.
        return "what: backward keeps its graph, and a compiled pass overwrites its tensors. Use forward_backward."
    return requirements.missing_compiler(config.compile, "compile: false") or missing_memory(config)


def missing_memory(config: LmConfig) -> str | None:
    remedy = f"Use a smaller size, batch or context{', or attention: sdpa' if config.attention == 'plain' else ''}."
    return requirements.shortage(
        least_bytes(config), attention_config.device(), f"{config.size} needs at least {{}} for {config.what}", remedy
    )


def least_bytes(config: LmConfig) -> int:
    """Return a lower bound of the memory that the case needs, so that all cases that fit are tried.

    Weights, gradients and AdamW's two states take 4 bytes per parameter. For the backward pass eager PyTorch
    keeps at least the inputs of all matrix products (plain attention: also its weights) and the logits, in the case's
    precision; compiled code may recompute them.
    """
    element = config.dtype.itemsize
    weights = 4 * parameter_count(config)
    scores = config.score_elements * element if config.attention == "plain" else 0
    logits = config.tokens * config.vocab * element
    if config.what == "forward":
        return weights + max(0 if config.compile else 2 * scores, logits)
    per_token = (6 * config.d_model + (4 if config.modern else 2) * config.d_ff) * element
    kept = 0 if config.compile else config.layers * (config.tokens * per_token + scores) + logits
    states = 2 * weights if config.what == "train_step" else 0
    return weights + states + max(kept, weights)
