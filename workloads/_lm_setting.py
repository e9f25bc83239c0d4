"""The parameters of one case of the language model: what is possible, and the numbers that a size stands for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from profpipe.errors import did_you_mean

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


def setting(params: Mapping[str, Any], defaults: Mapping[str, Any]) -> Setting:
    """The parameters with defaults and the size's numbers; ValueError names the wrong one and what is possible."""
    for name in params:
        if name not in defaults:
            raise ValueError(f"unknown parameter {name!r}. {did_you_mean(name, defaults)}")
    values: dict[str, Any] = {**defaults, **params}
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
    """The four numbers of a size: by its name; of a custom one those given, and small's for those left at 0."""
    given = {name: values[name] for name in DIMENSIONS}
    if values["size"] == "custom":
        small = dict(zip(DIMENSIONS, SIZES["small"], strict=True))
        return {name: given[name] if given[name] != 0 else small[name] for name in DIMENSIONS}
    if wrong := [name for name in DIMENSIONS if given[name]]:
        raise ValueError(f"{wrong[0]} is fixed by size {values['size']}: use size: custom to choose it")
    return dict(zip(DIMENSIONS, SIZES[values["size"]], strict=True))


def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"
