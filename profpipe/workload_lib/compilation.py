"""torch.compile for one case at a time: its requirements, and isolation of cases from each other."""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from profpipe.workload_lib import attention_config


def missing_compiler(needed: bool, alternative: str) -> str | None:
    """Return what torch's inductor lacks here and the remedy: Triton on a GPU, a C++ compiler on a CPU."""
    if not needed:
        return None
    if attention_config.device() == "cuda":
        if importlib.util.find_spec("triton") is None:
            return f"torch.compile needs triton, which is not installed. Install it, or use {alternative}."
        return None
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None and shutil.which("clang++") is None:
        return f"torch.compile needs a C++ compiler, and there is no {compiler}. Install g++, or use {alternative}."
    return None


def compiled(function: Callable[..., Tensor], **options: Any) -> Callable[..., Tensor]:
    """Compile ``function``, which must be a new object for each case, as one graph for one shape.

    Compiled code belongs to a code object, which may have 8 versions; after that it runs uncompiled without a warning.
    A separate code object keeps cases from counting against each other and from checking each other's guards.
    """
    function.__code__ = function.__code__.replace()  # type: ignore[attr-defined]
    return torch.compile(function, dynamic=False, fullgraph=True, **options)


def compiled_model(model: torch.nn.Module, *, fullgraph: bool) -> Any:
    """Compile ``model`` for its shape, as one graph or as many as it needs.

    Compiled code of earlier cases is dropped first: their sizes would count against torch's limit of 8 recompilations,
    after which the model runs uncompiled without a warning, and would make the dimensions of this one dynamic.
    """
    torch.compiler.reset()
    return torch.compile(model, fullgraph=fullgraph, dynamic=False)


def without_sdpa() -> dict[str, Any]:
    """Return options under which inductor compiles the formula of attention instead of replacing it by SDPA.

    Those patterns (``fx_passes/fuse_attention.py``) are in the first pass over the joint graph, with patterns that pad
    matrices of odd widths and drop no-op views. Patterns for the softmax are in the second passes, which still run
    (torch 2.11, 2.13). A torch that cannot disable one pass disables all patterns.
    """
    config: Any = importlib.import_module("torch._inductor.config")
    return {"disabled_passes": "pass_pattern_0"} if hasattr(config, "disabled_passes") else {"pattern_matcher": False}


def keep_graphs(kept: bool) -> None:
    """Set, before a case's first call, whether its autograd graph is kept after a backward pass.

    From torch 2.6 on a compiled backward pass reuses the memory of saved tensors, and rejects a graph that is kept.
    """
    functorch: Any = importlib.import_module("torch._functorch.config")
    if hasattr(functorch, "donated_buffer"):
        functorch.donated_buffer = not kept
