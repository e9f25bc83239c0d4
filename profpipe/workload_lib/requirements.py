"""What a case needs, and the remedy where it is missing: a compiler, memory, a GPU, a package of attention."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import re
import shutil
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from typing import Any

import torch
from torch import Tensor

from profpipe.errors import words
from profpipe.workload_lib import attention_config
from profpipe.workload_lib.attention_config import AttentionConfig

# --- torch.compile ---------------------------------------------------------------------------------------------------
#
# torch.compile for one case at a time: its requirements, and isolation of cases from others.


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
    """Compile ``function``, which must be a new object for a case, as one graph for one shape.

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


def exclude_sdpa() -> dict[str, Any]:
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


# --- free memory -----------------------------------------------------------------------------------------------------


def shortage(least: int, device: str, needs: str, remedy: str) -> str | None:
    """Return why a case that needs ``least`` bytes cannot run, or None. ``needs`` has ``{}`` for the size."""
    available = memory_bytes(device)
    if least <= available:
        return None
    place = "this GPU" if device == "cuda" else "this machine"
    return f"{needs.format(_gib(least))}, and {place} has {_gib(available)}. {remedy}"


def memory_bytes(device: str) -> int:
    """Return the memory of the GPU, or of the machine."""
    if device == "cuda":
        return int(torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _gib(size: int) -> str:
    return f"{size / 2**30:.0f} GiB"


# --- implementations -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Implementation:
    """An implementation of attention: how to call it, and what it supports.

    ``prepare`` imports its package and binds the config. ``heads_first``: its tensors are ``(batch, heads, seqlen,
    head_dim)``. ``family`` gives the kernel family on an NVIDIA GPU, ``rocm_family`` on an AMD GPU; ``|`` separates
    alternatives.

    ``package`` is the imported module and ``distribution`` its name for pip, where the version matters: it must begin
    with ``version``. ``install`` is the command that installs it; ``{arch}`` stands for the GPU's architecture (9.0).
    ``missing_dependency`` returns what else is missing here, with the remedy.

    ``bottom_right``: with fewer queries than keys, the causal mask lets the last query see all keys. ``grouped``:
    fewer key/value heads than query heads are supported. ``causal``: a causal mask is supported. ``lengths`` are the
    only supported sequence lengths; empty: any. ``gpu_dtypes`` are the dtypes supported on a GPU, where they differ
    from ``dtypes``. ``products`` returns the data types of QK and PV where they differ from the tensors'. ``sparsity``
    prepares a call that returns the share of scores that the implementation does not compute.

    Of packed sequences, ``layout`` makes the arguments of a call, and ``apis`` are the variants of the interface.
    """

    prepare: Callable[[Any], Callable[..., Any]]
    family: str | Callable[[AttentionConfig], str] = ""
    heads_first: bool = True
    rocm_family: str = ""
    package: str = ""
    distribution: str = ""
    version: str = ""
    install: str = ""
    missing_dependency: Callable[[], str | None] = lambda: None
    on_cpu: bool = False
    has_backward: bool = True
    grouped: bool = True
    causal: bool = True
    bottom_right: bool = False
    lengths: tuple[int, ...] = ()
    dtypes: tuple[str, ...] = tuple(attention_config.DTYPES)
    gpu_dtypes: tuple[str, ...] = ()
    max_head_dim: int | None = None
    least_sm: tuple[int, int] = (0, 0)
    products: Callable[[], tuple[str, str] | None] = lambda: None
    sparsity: Callable[[AttentionConfig], Callable[[Tensor, Tensor, Tensor], float]] | None = None
    layout: Callable[[Any], Any] = lambda config: None
    apis: tuple[str, ...] = ()

    def view(self, tensor: Tensor) -> Tensor:
        """Swap between ``(batch, seqlen, heads, head_dim)`` and the implementation's layout, without a copy."""
        return tensor.transpose(1, 2) if self.heads_first else tensor


def missing_requirement(config: AttentionConfig, implementations: Mapping[str, Implementation]) -> str | None:
    """Return the first reason, or None. Known limits are looked up; the rest is tried by one small call."""
    row = implementations[config.impl]
    return (
        _unsupported(config, row, implementations)
        or missing_device(config.impl, config.dtype, row, implementations)
        or row.missing_dependency()
        or missing_package(config.impl, row)
        or _rejection(config, row)
    )


def _unsupported(
    config: AttentionConfig, row: Implementation, implementations: Mapping[str, Implementation]
) -> str | None:
    """Return a limit of the implementation on any machine."""
    impl = config.impl
    if wrong := unsupported_length(config, row, "seqlen"):
        return wrong
    if config.needs_grad and not row.has_backward:
        return f"{impl} has no backward pass. Use mode: fwd."
    if wrong := unsupported_tensor(impl, config.dtype, config.head_dim, row):
        return wrong
    if config.group_size > 1 and not row.grouped:
        return f"{impl} needs as many key/value heads as query heads. Leave kv_heads at 0."
    if config.has_mask and not row.causal:
        return f"{impl} has no causal mask. Use causal: false."
    if config.has_mask and config.queries < config.seqlen and not row.bottom_right:
        able = ", ".join(name for name, other in implementations.items() if other.bottom_right)
        return (
            f"{impl} has no causal mask in which the last of fewer queries than keys sees every key. "
            f"Use causal: false, queries: 1 or 0, or one of {able}."
        )
    return None


def unsupported_length(config: AttentionConfig, row: Implementation, change: str) -> str | None:
    """Return why the sequence length is unsupported, or None; ``change`` names the parameters that set it."""
    if not row.lengths or (config.seqlen in row.lengths and config.queries == config.seqlen):
        return None
    lengths = " or ".join(map(str, row.lengths))
    takes = f"{config.impl} takes {lengths} tokens and no others, not {config.seqlen}"
    return f"{takes}. Change {change}. {row.install}."


def unsupported_tensor(impl: str, dtype: str, head_dim: int, row: Implementation) -> str | None:
    if dtype not in row.dtypes:
        return _other_dtype(impl, dtype, row.dtypes)
    if row.max_head_dim is not None and head_dim > row.max_head_dim:
        return f"{impl} takes head dims up to {row.max_head_dim}, not {head_dim}. Change head_dim."
    return None


def _other_dtype(impl: str, dtype: str, taken: Sequence[str]) -> str:
    return f"{impl} does not take {dtype}. Use dtype: {' or '.join(taken)}."


def missing_device(impl: str, dtype: str, row: Implementation, rows: Mapping[str, Implementation]) -> str | None:
    if attention_config.device() == "cpu":
        if row.on_cpu:
            return None
        here = " or ".join(name for name, other in rows.items() if other.on_cpu)
        if torch.version.cuda is None and torch.version.hip is None:
            return (
                f"{impl} needs a GPU, and torch {torch.__version__} is built for the CPU only. "
                f"Install a CUDA build of torch on a machine with a GPU, or use {here} here."
            )
        return f"{impl} needs a GPU, and torch sees none. Run it where there is one, or use {here} here."
    if row.gpu_dtypes and dtype not in row.gpu_dtypes:
        return _other_dtype(impl, dtype, row.gpu_dtypes)
    capability = torch.cuda.get_device_capability()
    if torch.version.cuda is not None and capability < row.least_sm:
        have, need = ("sm_{}{}".format(*sm) for sm in (capability, row.least_sm))
        return f"{impl} needs {need} or later; this GPU is {have}. Use sdpa_efficient or sdpa_math on it."
    return None


# --- packages --------------------------------------------------------------------------------------------------------


def missing_package(impl: str, row: Implementation) -> str | None:
    if not row.package:
        return None
    # A build from source is for one architecture.
    arch = "{}.{}".format(*torch.cuda.get_device_capability()) if "{arch}" in row.install else ""
    install = row.install.format(arch=arch) if arch else row.install
    try:
        version = metadata.version(row.distribution) if row.distribution else ""
        if not version.startswith(row.version):
            return f"{row.distribution} {version} is installed, and {impl} is {row.version}x. {install}."
        if importlib.util.find_spec(row.package) is None:
            return f"{row.package} is not installed. {install}."
        importlib.import_module(row.package)
    except metadata.PackageNotFoundError:
        return f"{row.distribution} is not installed. {install}."
    except (ImportError, OSError, RuntimeError) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and row.package.startswith(missing):
            return f"{row.package} is not installed. {install}."
        if missing:
            return f"{row.package} is installed and lacks {missing}. Install that, or {row.package} again: {install}."
        return (
            f"{row.package} is installed and cannot be loaded: {words(error).rstrip('.')}. "
            f"Build or install it for torch {torch.__version__} (CUDA {torch.version.cuda})."
        )
    return None


# --- a trial call ----------------------------------------------------------------------------------------------------

#: Where torch raised a warning.
_ORIGIN = re.compile(r"\s*\(Triggered internally.*", re.DOTALL)
_DISABLED = re.compile("not used because:|runtime disabled")
_BREAKS_MASK = "its first query sees later keys, against the causal mask"


def _rejection(config: AttentionConfig, row: Implementation) -> str | None:
    """Return why a call with this dtype, head dim, heads, mask and mode fails.

    The call is small where lengths are free. Of a short sequence a sparse implementation may keep no block that the
    first queries see, as it does of no long one, so it is tried at the length of the config.
    """
    keeps_length = row.lengths or row.sparsity is not None
    error = trial_error(call_once, row.package, replace(config, batch=1) if keeps_length else shorten(config), row)
    if error is None:
        return None
    remedy = "Change head_dim, dtype, kv_heads, seqlen or mode, or use"
    if error == _BREAKS_MASK:
        remedy = "Use causal: false, or"
    return f"{config.impl} rejects this case: {error}. {remedy} another build of {row.package or 'torch'}."


def shorten(config: AttentionConfig) -> AttentionConfig:
    """Shorten lengths but keep their remainder: some kernels accept only multiples of 8, 64 or 128."""
    least = 128 if config.queries == config.seqlen else 256
    seqlen = min(config.seqlen, least + config.seqlen % 128)
    return replace(config, batch=1, seqlen=seqlen, queries=min(config.queries, 128 + config.queries % 128))


@functools.lru_cache(maxsize=256)
def trial_error(call: Callable[..., str | None], package: str, *arguments: Hashable) -> str | None:
    """Return the reason that ``call`` returns for ``arguments``, or its error; None if it succeeds.

    ``package`` is the package of its operators; empty for torch. Results are cached, because a sweep over lengths tries
    the same call repeatedly, and some kernels are compiled.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            return call(*arguments)
        except torch.cuda.OutOfMemoryError:
            return None  # the case itself will fail then; this is no limit of the implementation
        except (AssertionError, AttributeError, ImportError, RuntimeError, TypeError, ValueError) as error:
            # These include errors of a build without the function or one of its arguments.
            if "CUDA error" in str(error):
                raise  # the context is lost, which is an error of the process
            # SDPA raises "No available kernel" and gives the reasons as warnings, with those of disabled backends.
            texts = [_ORIGIN.sub("", str(warning.message)).rstrip(". ") for warning in caught]
            reasons = [text for text in texts if text and not _DISABLED.search(text)]
            return ("" if package else "; ".join(dict.fromkeys(reasons))) or words(error).rstrip(".")


def call_once(config: AttentionConfig, row: Implementation) -> str | None:
    forward = row.prepare(config)
    options = {"dtype": attention_config.DTYPES[config.dtype], "device": attention_config.device()}
    shapes = (config.q_shape, config.kv_shape, config.kv_shape)
    q, k, v = (torch.randn(shape, **options) for shape in shapes)
    tensors = [row.view(tensor).contiguous().requires_grad_(config.needs_grad) for tensor in (q, k, v)]
    out = forward(*tensors)
    if config.needs_grad:
        torch.autograd.grad(out, tensors, torch.ones_like(out), retain_graph=config.mode == "bwd")
    if attention_config.device() == "cuda":
        torch.cuda.synchronize()
    return _BREAKS_MASK if _breaks_mask(config, row.view(out), v) else None


def _breaks_mask(config: AttentionConfig, out: Tensor, v: Tensor) -> bool:
    """Return True if the first query sees later keys despite a causal mask over equally many queries and keys.

    Its output must be the first value. Values are normal: quantised to fp8 the error is a quarter at most, while a
    mean over several values is off by the largest of at least 8 of them.
    """
    if not config.has_mask or config.queries != config.seqlen:
        return False
    expected = v[:, 0].repeat_interleave(config.group_size, dim=1)
    return (out.detach()[:, 0].float() - expected.float()).abs().max().item() > 1
