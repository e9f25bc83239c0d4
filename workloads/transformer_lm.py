"""A decoder-only language model in plain PyTorch: its forward pass, forward and backward, or a whole training step.

``block: modern`` is the block of Llama: RoPE, RMSNorm, SwiGLU, no biases, an output layer of its own. ``classic`` is
GPT-2's: learned positions, LayerNorm, a GELU MLP, biases, the output layer tied to the embedding. Neither has dropout.
The sizes small to xl are GPT-2's, 2.7B is GPT-3's. With ``size: custom`` the four numbers come from ``d_model``,
``d_ff``, ``layers`` and ``heads``; the other sizes leave those at 0.

Weights are fp32. bf16 and fp16 run the forward pass under autocast, as mixed-precision training does. fp16 also scales
the loss with a GradScaler, as it must: its kernels, and where AdamW is not fused its wait for the GPU, are part of the
step. fp32 uses TF32 only where the process allows it, which torch by default does not.

``what: forward`` computes the loss without gradients. ``forward_backward`` adds the gradients, freed before the next
forward pass; ``train_step`` adds AdamW (``adamw``: which of torch's loops), without clipping or a schedule. The passes
stand in the ranges ``forward`` (with ``loss`` inside), ``backward`` and ``optimizer``. ``attention: plain`` has
``attention scores``, ``softmax`` and ``final matmul`` in each layer; ``sdpa`` is one call. ``compile: true`` compiles
the model, not the loss and the optimizer, and opens no range inside the model, since a range would break its graph.
"""

from __future__ import annotations

import copy
import importlib.util
import json
import math
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from profpipe.errors import did_you_mean
from profpipe.ranges import annotate

PARAMS = {
    "size": "small",
    "block": "modern",
    "context": 512,
    "batch": 4,
    "vocab": 10000,
    "precision": "bf16",
    "what": "train_step",
    "attention": "plain",
    "compile": False,
    "adamw": "foreach",
    "d_model": 0,  # these four: for size: custom
    "d_ff": 0,
    "layers": 0,
    "heads": 0,
    "memory_snapshot": False,
    "seed": 0,
}

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
    "what": ("forward", "forward_backward", "train_step"),
    "attention": ("plain", "sdpa"),
    "adamw": tuple(ADAMW),
}

#: Opens a range around a block: ``annotate``, or ``nullcontext`` for none.
Phase = Callable[[str], AbstractContextManager[object]]


@dataclass(frozen=True)
class Setting:
    """The parameters of one case, checked, with the four numbers that its size stands for."""

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
    memory_snapshot: bool
    seed: int

    @property
    def modern(self) -> bool:
        return self.block == "modern"

    @property
    def tokens(self) -> int:
        return self.batch * self.context

    @property
    def dtype(self) -> torch.dtype:
        """What matrix products are computed in."""
        return PRECISIONS[self.precision]

    @property
    def block_weights(self) -> int:
        """Elements of the matrices of all blocks: query, key, value, output, and the two or three of the MLP."""
        return self.layers * (4 * self.d_model**2 + (3 if self.modern else 2) * self.d_model * self.d_ff)

    @property
    def score_elements(self) -> int:
        """Attention scores of one layer: the full square, what is masked included."""
        return self.batch * self.heads * self.context**2


# --- what profpipe asks of a workload --------------------------------------------------------------------------------


def build(params: Mapping[str, Any]) -> Callable[[], Tensor]:
    """Allocates the model on the GPU (else the CPU) and returns what one iteration runs; that returns the loss.

    Raises ValueError for parameters that make no sense on any machine.
    """
    return _iteration(_setting(params), annotate)


def flops(params: Mapping[str, Any]) -> float:
    """Floating-point operations of the matrix products; all else is not counted.

    Forward: 2 x tokens x elements of the matrices (the output layer's too, the embedding's not), and for attention
    4 x tokens x visible keys x d_model in each layer. ``plain`` computes the whole square and masks it afterwards, so
    every key counts; of ``sdpa`` half the context counts, since its kernels skip masked blocks. The backward pass is
    twice the forward: what SDPA's kernels compute again in it is not counted. AdamW has no matrix product.
    """
    s = _setting(params)
    visible_keys = s.context if s.attention == "plain" else s.context / 2
    attention = 4 * s.layers * s.tokens * visible_keys * s.d_model
    forward = 2 * s.tokens * (s.block_weights + s.d_model * s.vocab) + attention
    return forward * (1 if s.what == "forward" else 3)


def phase_work(params: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """FLOPs and least bytes of attention's ranges in one forward pass, all layers together, by path of the range.

    Bytes: each operand read once and each result written once, in the precision of the case. What eager PyTorch does
    beside that (scaling, masking, autocast's conversions to fp32 and back) is traffic which the count leaves out. The
    FLOPs of a softmax are 5 an element: maximum, difference, exponential, sum, quotient.
    """
    s = _setting(params)
    if s.attention != "plain" or s.compile:
        return {}
    product = 2.0 * s.layers * s.tokens * s.context * s.d_model
    element = s.layers * s.dtype.itemsize
    scores, rows = s.score_elements, s.tokens * s.d_model
    return {
        "forward > attention scores": {"flops": product, "bytes_moved": element * (2 * rows + scores)},
        "forward > softmax": {"flops": 5.0 * s.layers * scores, "bytes_moved": element * 2 * scores},
        "forward > final matmul": {"flops": product, "bytes_moved": element * (scores + 2 * rows)},
    }


def available(params: Mapping[str, Any]) -> str | None:
    """Why this case cannot run here and what to do about it, or None."""
    setting = _setting(params)
    reasons = (look(setting) for look in (_no_device, _no_precision, _no_compiler, _no_room))
    return next((reason for reason in reasons if reason), None)


#: Tokens of the first sequence that are compared with the reference, whose memory this bounds.
_CHECKED_TOKENS = 1024


def check(params: Mapping[str, Any]) -> dict[str, float]:
    """``parameters``, ``loss``, and ``error_max`` and ``error_mean`` of the logits, against the same weights in fp64.

    Of a fresh model, as it is before its first step. The reference takes the first 1024 tokens of the first sequence,
    which see no later ones, and converts one layer at a time. Infinite where the model gave a NaN.
    """
    model = _Model(_setting(params), nullcontext)
    with torch.no_grad():
        logits, loss = model.forward()
        expected = model.tokens[:1, :_CHECKED_TOKENS]
        for layer in model.layers:
            expected = copy.deepcopy(layer).double()(expected)
        distance = (logits[:1, :_CHECKED_TOKENS].double() - expected).abs().nan_to_num(nan=math.inf)
    return {
        "parameters": float(sum(parameter.numel() for parameter in model.layers.parameters())),
        "loss": loss.item(),
        "error_max": distance.max().item(),
        "error_mean": distance.mean().item(),
    }


def snapshot(params: Mapping[str, Any], folder: Path) -> list[Path]:
    """With ``memory_snapshot: true``, the GPU memory of one forward pass and of one training step; the files written.

    Into ``folder``, which is this case's alone: ``memory-forward.pickle`` and ``memory-train_step.pickle`` for torch's
    viewer (pytorch.org/memory_viz), and ``memory.json`` with the peak of each phase and the largest allocations. Empty
    on a CPU, and where this torch has no such record.
    """
    setting = _setting(params)
    needed = ("_record_memory_history", "_dump_snapshot", "_snapshot")  # not public, so they may go
    if not setting.memory_snapshot or _device() == "cpu" or not all(hasattr(torch.cuda.memory, n) for n in needed):
        return []
    summary = folder / "memory.json"
    pickles = {what: folder / f"memory-{what}.pickle" for what in ("forward", "train_step")}
    seen = {what: _recorded(replace(setting, what=what), pickle) for what, pickle in pickles.items()}
    summary.write_text(json.dumps(seen, indent=1) + "\n", encoding="utf-8")
    return [*pickles.values(), summary]


# --- parameters ------------------------------------------------------------------------------------------------------


def _setting(params: Mapping[str, Any]) -> Setting:
    """The parameters with defaults and the size's numbers; ValueError names the wrong one and what is possible."""
    for name in params:
        if name not in PARAMS:
            raise ValueError(f"unknown parameter {name!r}. {did_you_mean(name, PARAMS)}")
    values: dict[str, Any] = {**PARAMS, **params}
    for name, known in CHOICES.items():
        if values[name] not in known:
            raise ValueError(f"unknown {name} {values[name]!r}. {did_you_mean(str(values[name]), known)}")
    for name in ("compile", "memory_snapshot"):
        if type(values[name]) is not bool:
            raise ValueError(f"{name} must be true or false, not {values[name]!r}")
    values |= _dimensions(values)
    for name in ("context", "batch", "vocab", *DIMENSIONS):
        if type(values[name]) is not int or values[name] < 1:
            raise ValueError(f"{name} must be a whole number of at least 1, not {values[name]!r}")
    if values["d_model"] % values["heads"]:
        raise ValueError(f"d_model ({values['d_model']}) must be a multiple of heads ({values['heads']})")
    if values["block"] == "modern" and values["d_model"] // values["heads"] % 2:
        raise ValueError("RoPE rotates pairs: d_model / heads must be even, or block: classic")
    return Setting(**values)


def _dimensions(values: Mapping[str, Any]) -> dict[str, Any]:
    """The four numbers of a size by its name; those that were given where it is custom."""
    given = {name: values[name] for name in DIMENSIONS}
    if values["size"] == "custom":
        return given
    if wrong := [name for name in DIMENSIONS if given[name]]:
        raise ValueError(f"{wrong[0]} is fixed by size {values['size']}: use size: custom to choose it")
    return dict(zip(DIMENSIONS, SIZES[values["size"]], strict=True))


def _device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


# --- the model -------------------------------------------------------------------------------------------------------


class Embedding(nn.Module):
    """Token ids to vectors; the classic one adds a learned vector for each position."""

    def __init__(self, s: Setting) -> None:
        super().__init__()
        self.tokens = nn.Embedding(s.vocab, s.d_model)
        self.positions = None if s.modern else nn.Embedding(s.context, s.d_model)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        return x if self.positions is None else x + self.positions.weight[: ids.shape[1]]


class RMSNorm(nn.Module):
    """Root-mean-square normalisation, written out: torch has a function for it from 2.4 on only."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * self.weight


class Attention(nn.Module):
    """Causal self-attention with query, key and value from one product."""

    def __init__(self, s: Setting, phase: Phase, rotation: Tensor | None, hidden: Tensor | None) -> None:
        super().__init__()
        self.heads, self.phase = s.heads, phase
        self.qkv = nn.Linear(s.d_model, 3 * s.d_model, bias=not s.modern)
        self.out = nn.Linear(s.d_model, s.d_model, bias=not s.modern)
        self.register_buffer("rotation", rotation, persistent=False)
        self.register_buffer("hidden", hidden, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind()
        if self.rotation is not None:
            cos, sin = self.rotation[:, : x.shape[1]].unbind()
            q, k = _rotated(q, cos, sin), _rotated(k, cos, sin)
        if self.hidden is None:
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            mixed = self.plain(q, k, v, self.hidden[: x.shape[1], : x.shape[1]])
        return self.out(mixed.transpose(1, 2).flatten(2))

    def plain(self, q: Tensor, k: Tensor, v: Tensor, hidden: Tensor) -> Tensor:
        """Attention as its formula is written; ``hidden`` is true where a query must not see a key."""
        with self.phase("attention scores"):
            scores = q @ k.mT / math.sqrt(q.shape[-1])
            scores = scores.masked_fill(hidden, -math.inf)
        with self.phase("softmax"):
            weights = scores.softmax(-1)
        with self.phase("final matmul"):
            return weights @ v


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RoPE: the pair (i, i + half) turned by position times frequency i. In fp32 under autocast, as in Llama."""
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), -1).type_as(x)


def _rotation(s: Setting) -> Tensor:
    """Cosines and sines of RoPE with base 10000: (2, context, head_dim / 2), fp32."""
    half = s.d_model // s.heads // 2
    frequencies = 10000.0 ** -(torch.arange(half, dtype=torch.float64) / half)
    angles = torch.arange(s.context, dtype=torch.float64)[:, None] * frequencies
    return torch.stack((angles.cos(), angles.sin())).float()


class SwiGLU(nn.Module):
    def __init__(self, s: Setting) -> None:
        super().__init__()
        self.gate = nn.Linear(s.d_model, s.d_ff, bias=False)
        self.up = nn.Linear(s.d_model, s.d_ff, bias=False)
        self.down = nn.Linear(s.d_ff, s.d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(functional.silu(self.gate(x)) * self.up(x))


def _gelu_mlp(s: Setting) -> nn.Module:
    return nn.Sequential(nn.Linear(s.d_model, s.d_ff), nn.GELU("tanh"), nn.Linear(s.d_ff, s.d_model))


def _norm(s: Setting) -> nn.Module:
    return RMSNorm(s.d_model) if s.modern else nn.LayerNorm(s.d_model)


class Block(nn.Module):
    """One layer: attention and MLP, each normalised before and added to what went in."""

    def __init__(self, s: Setting, attention: Attention) -> None:
        super().__init__()
        self.attention_norm, self.attention = _norm(s), attention
        self.mlp_norm, self.mlp = _norm(s), SwiGLU(s) if s.modern else _gelu_mlp(s)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


def decoder(s: Setting, phase: Phase) -> nn.Sequential:
    """Embedding, blocks and output layer on torch's default device, with torch's own initial weights."""
    rotation = _rotation(s) if s.modern else None
    # One mask for all layers: each layer's own would be as large as its scores of one head.
    hidden = torch.ones(s.context, s.context, dtype=torch.bool).triu(1) if s.attention == "plain" else None
    blocks = [Block(s, Attention(s, phase, rotation, hidden)) for _ in range(s.layers)]
    embedding, output = Embedding(s), nn.Linear(s.d_model, s.vocab, bias=False)
    if not s.modern:
        output.weight = embedding.tokens.weight
    return nn.Sequential(embedding, *blocks, nn.Sequential(_norm(s), output))


def _initialise(model: nn.Module, generator: torch.Generator) -> None:
    """GPT-2's initial weights (normal, 0.02) in both blocks; biases zero, norms one."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.02, generator=generator)
            elif name.endswith("bias"):
                parameter.zero_()


# --- one iteration ---------------------------------------------------------------------------------------------------


class _Model:
    """The decoder on the device with tokens to predict, random and following from ``seed`` as the weights do."""

    def __init__(self, s: Setting, phase: Phase) -> None:
        device = _device()
        generator = torch.Generator(device).manual_seed(s.seed)
        with torch.device(device):
            self.layers = decoder(s, nullcontext if s.compile else phase)
            ids = torch.randint(s.vocab, (s.batch, s.context + 1), generator=generator)
        _initialise(self.layers, generator)
        self.tokens, self.targets = ids[:, :-1].contiguous(), ids[:, 1:].flatten()
        self._setting, self._phase = s, phase
        self._run = _compiled(self.layers) if s.compile else self.layers

    def forward(self) -> tuple[Tensor, Tensor]:
        """(logits, mean loss)."""
        with self._phase("forward"), self._autocast():
            logits = self._run(self.tokens)
            with self._phase("loss"):
                return logits, functional.cross_entropy(logits.flatten(0, 1), self.targets)

    def _autocast(self) -> AbstractContextManager[object]:
        s = self._setting
        return nullcontext() if s.precision == "fp32" else torch.autocast(_device(), dtype=s.dtype)


def _compiled(model: nn.Module) -> Callable[[Tensor], Tensor]:
    """The model compiled as one graph for its shape alone.

    What earlier cases compiled is forgotten first: their sizes would count against torch's limit of 8 recompilations,
    after which it runs the model uncompiled without a word, and make this one's dimensions dynamic.
    """
    torch.compiler.reset()
    return torch.compile(model, fullgraph=True, dynamic=False)


def _iteration(s: Setting, phase: Phase) -> Callable[[], Tensor]:
    """What one iteration runs, its passes each in a ``phase``. Returns the loss."""
    model = _Model(s, phase)

    def forward() -> Tensor:
        with torch.no_grad():
            return model.forward()[1]

    if s.what == "forward":
        return forward
    # From 1024 on, which overflows in no step of a fresh model: an overflow skips the optimizer, a step that is timed.
    scaler = torch.amp.GradScaler(_device(), init_scale=1024.0, enabled=s.precision == "fp16")

    def forward_backward() -> Tensor:
        model.layers.zero_grad(set_to_none=True)
        loss = model.forward()[1]
        with phase("backward"):
            scaler.scale(loss).backward()
        return loss.detach()

    if s.what == "forward_backward":
        return forward_backward
    optimizer = torch.optim.AdamW(model.layers.parameters(), lr=1e-4, **ADAMW[s.adamw])

    def train_step() -> Tensor:
        loss = forward_backward()
        with phase("optimizer"):
            scaler.step(optimizer)
            scaler.update()
        return loss

    return train_step


# --- why a case cannot run here --------------------------------------------------------------------------------------


def _no_device(s: Setting) -> str | None:
    if s.size == "2.7B" and _device() == "cpu":
        return "2.7B needs a GPU, and torch sees none. Run it where there is one, or use a smaller size here."
    return None


def _no_precision(s: Setting) -> str | None:
    if s.precision == "bf16" and _device() == "cuda" and torch.version.cuda is not None:
        capability = torch.cuda.get_device_capability()
        if capability < (8, 0):
            return "bf16 needs sm_80 or later; this GPU is sm_{}{}. Use precision: fp16 or fp32.".format(*capability)
    return None


def _no_compiler(s: Setting) -> str | None:
    """What torch's inductor compiles with: Triton on a GPU, a C++ compiler on a CPU."""
    if not s.compile:
        return None
    if _device() == "cuda":
        if importlib.util.find_spec("triton") is None:
            return "torch.compile needs triton, which is not installed. Install it, or use compile: false."
        return None
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None and shutil.which("clang++") is None:
        return f"torch.compile needs a C++ compiler, and there is no {compiler}. Install g++, or use compile: false."
    return None


def _no_room(s: Setting) -> str | None:
    least, have = _least_bytes(s), _memory_bytes()
    if least <= have:
        return None
    place = "this GPU" if _device() == "cuda" else "this machine"
    return (
        f"{s.size} needs at least {least / 2**30:.0f} GiB for {s.what}, and {place} has {have / 2**30:.0f} GiB. "
        f"Use a smaller size, batch or context{', or attention: sdpa' if s.attention == 'plain' else ''}."
    )


def _memory_bytes() -> int:
    if _device() == "cuda":
        return int(torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _least_bytes(s: Setting) -> int:
    """Memory without which the case cannot end: a lower bound, so that no case is kept from trying that would fit.

    Weights, gradients and AdamW's two states take 4 bytes each a parameter. For the backward pass eager PyTorch keeps
    at least the inputs of every product (plain attention: its weights too) and the logits, in the case's precision;
    compiled code may compute them again.
    """
    element = s.dtype.itemsize
    weights = 4 * _parameter_count(s)
    scores = s.score_elements * element if s.attention == "plain" else 0
    logits = s.tokens * s.vocab * element
    if s.what == "forward":
        return weights + max(0 if s.compile else 2 * scores, logits)
    a_token = (6 * s.d_model + (4 if s.modern else 2) * s.d_ff) * element
    kept = 0 if s.compile else s.layers * (s.tokens * a_token + scores) + logits
    states = 2 * weights if s.what == "train_step" else 0
    return weights + states + max(kept, weights)


def _parameter_count(s: Setting) -> int:
    """Elements of all parameters, as the model has them."""
    matrices = s.block_weights + s.vocab * s.d_model
    norms = 2 * s.layers + 1
    if s.modern:
        return matrices + s.vocab * s.d_model + norms * s.d_model
    return matrices + s.context * s.d_model + s.layers * (5 * s.d_model + s.d_ff) + norms * 2 * s.d_model


# --- memory snapshot -------------------------------------------------------------------------------------------------

#: Kinds of allocation that the summary lists.
_LARGEST = 15


class _Peaks:
    """A ``phase`` that reads the allocator's counters: by path of the range its start, peak and end, in bytes.

    The peak is the highest of all times that the range was entered, and includes the ranges inside; start is the
    first entry's, end the last one's. ``already`` is what was allocated before and is not counted.
    """

    def __init__(self, already: int) -> None:
        self.by_phase: dict[str, dict[str, int]] = {}
        self._already = already
        self._open: list[str] = []

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        self._note_peak()
        self._open.append(name)
        row = self.by_phase.setdefault(" > ".join(self._open), {"start_bytes": self._allocated(), "peak_bytes": 0})
        try:
            yield
        finally:
            self._note_peak()
            row["end_bytes"] = self._allocated()
            self._open.pop()

    def _allocated(self) -> int:
        return torch.cuda.memory_allocated() - self._already

    def _note_peak(self) -> None:
        """Gives the peak since the last note to every open range."""
        peak = torch.cuda.max_memory_allocated() - self._already
        for depth in range(1, len(self._open) + 1):
            row = self.by_phase[" > ".join(self._open[:depth])]
            row["peak_bytes"] = max(row["peak_bytes"], peak)
        torch.cuda.reset_peak_memory_stats()


def _recorded(s: Setting, pickle: Path) -> dict[str, Any]:
    """Writes ``pickle`` and returns its summary. The iteration is the second: AdamW makes its states in the first.

    The backward pass runs on this thread: autograd's own has no Python frames to tell its allocations by.
    """
    memory, peaks = torch.cuda.memory, _Peaks(torch.cuda.memory_allocated())
    iteration = _iteration(s, peaks)
    with torch.autograd.set_multithreading_enabled(False):
        iteration()
        peaks.by_phase.clear()
        memory._record_memory_history(stacks="python")
        try:
            iteration()
            torch.cuda.synchronize()
            memory._dump_snapshot(str(pickle))
            trace = memory._snapshot()["device_traces"][torch.cuda.current_device()]
        finally:
            memory._record_memory_history(enabled=None)
    return {"file": pickle.name, "phases": peaks.by_phase, "largest": _largest(trace)}


def _largest(trace: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Allocations of a recorded history, largest first; those of one size from one place are one row with a count.

    An entry of the history has ``action``, ``size`` and ``frames``, innermost first, each with ``filename``, ``line``
    and ``name`` (torch.cuda.memory._snapshot).
    """
    kinds = Counter((entry["size"], _place(entry["frames"])) for entry in trace if entry["action"] == "alloc")
    largest = sorted(kinds.items(), key=lambda item: -item[0][0])[:_LARGEST]
    return [{"bytes": size, "count": count, "frames": list(frames)} for (size, frames), count in largest]


def _place(frames: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """The frames in this file, and where there are none all of them: ``plain, transformer_lm.py:280``."""
    here = Path(__file__).name
    shown = [(Path(frame["filename"]).name, frame["line"], frame["name"]) for frame in frames]
    return tuple(f"{name}, {file}:{line}" for file, line, name in [f for f in shown if f[0] == here] or shown)
