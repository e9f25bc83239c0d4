"""The parameters of one case of the language model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from profpipe.workload_lib.parameters import check_bool, check_choice, check_positive, with_defaults

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
    memory_snapshot: bool
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
    values = with_defaults(params, defaults)
    for name, choices in CHOICES.items():
        check_choice(name, values[name], choices)
    check_bool(values, "compile", "memory_snapshot", "record_dtypes")
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
