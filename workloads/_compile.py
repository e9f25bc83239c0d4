"""torch.compile for one case at a time: what it lacks here, and what keeps cases from counting against each other."""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from profpipe import load

if TYPE_CHECKING:
    import _setting
else:
    _setting = load.module(Path(__file__).with_name("_setting.py"))


def lacking() -> str | None:
    """What torch's inductor compiles with and is not here, and what to do: Triton on a GPU, a C++ compiler on a CPU."""
    if _setting.device() == "cuda":
        if importlib.util.find_spec("triton") is None:
            return "torch.compile needs triton, which is not installed. Install it"
        return None
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None and shutil.which("clang++") is None:
        return f"torch.compile needs a C++ compiler, and there is no {compiler}. Install g++"
    return None


def compiled(function: Callable[..., Tensor], **more: Any) -> Callable[..., Tensor]:
    """One graph for one shape; ``function`` must be made anew for each case, and ``more`` goes to torch.compile.

    What is compiled belongs to a code object, and one object may have 8 versions, after which it would run uncompiled
    without a word. With an object of its own, no case counts against another or waits for its guards.
    """
    function.__code__ = function.__code__.replace()  # type: ignore[attr-defined]
    return torch.compile(function, dynamic=False, fullgraph=True, **more)


def without_sdpa() -> dict[str, Any]:
    """Options under which inductor leaves the formula of attention as it is, where it would call SDPA instead.

    Its patterns for that (``fx_passes/fuse_attention.py``) are in the first pass over the joint graph, beside some that
    pad matrices of odd widths and drop views that change nothing. Those that shape the softmax are in the second
    passes, which still run (torch 2.11, 2.13). A torch that cannot leave out one pass leaves out all patterns.
    """
    config: Any = importlib.import_module("torch._inductor.config")
    return {"disabled_passes": "pass_pattern_0"} if hasattr(config, "disabled_passes") else {"pattern_matcher": False}


def keep_graphs(kept: bool) -> None:
    """Says, before a case's first call, whether its autograd graph outlives a backward pass.

    From torch 2.6 on a compiled backward pass reuses saved tensors' memory, and refuses a graph that is kept.
    """
    functorch: Any = importlib.import_module("torch._functorch.config")
    if hasattr(functorch, "donated_buffer"):
        functorch.donated_buffer = not kept
