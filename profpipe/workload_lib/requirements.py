"""Finds why an implementation of attention cannot run a config here, and the remedy."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import metadata
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from profpipe.errors import words
from profpipe.workload_lib import attention_config
from profpipe.workload_lib.attention_config import AttentionConfig

if TYPE_CHECKING:
    from profpipe.workload_lib.implementation import Implementation


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
    """Return a limit of the implementation on every machine."""
    impl = config.impl
    if wrong := unsupported_length(config, row, "seqlen"):
        return wrong
    if config.needs_grad and not row.has_backward:
        return f"{impl} has no backward pass. Use mode: fwd."
    if config.dtype not in row.dtypes:
        return _other_dtype(impl, config.dtype, row.dtypes)
    if row.max_head_dim is not None and config.head_dim > row.max_head_dim:
        return f"{impl} takes head dims up to {row.max_head_dim}, not {config.head_dim}. Change head_dim."
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
    install = _install(row)
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


def _install(row: Implementation) -> str:
    """Return the install command for this GPU: a build from source is for one architecture."""
    if "{arch}" not in row.install:
        return row.install
    return row.install.format(arch="{}.{}".format(*torch.cuda.get_device_capability()))


# --- a trial call ----------------------------------------------------------------------------------------------------

_BREAKS_MASK = "its first query sees later keys, against the causal mask"


def _rejection(config: AttentionConfig, row: Implementation) -> str | None:
    """Return why a call with this dtype, head dim, heads, mask and mode fails; a small call where lengths are free."""
    error = trial_error(replace(config, batch=1) if row.lengths else shorten(config), row)
    if error is None:
        return None
    remedy = "Change head_dim, dtype, kv_heads, seqlen or mode, or use"
    if error == _BREAKS_MASK:
        remedy = "Use causal: false, or"
    return f"{config.impl} rejects this case: {error}. {remedy} another build of {row.package or 'torch'}."


def shorten(config: AttentionConfig) -> AttentionConfig:
    """Shorten lengths but keep their remainder: some kernels accept only multiples of 8, 64 or 128."""
    if config.queries == config.seqlen:
        length = min(config.seqlen, 128 + config.seqlen % 128)
        return replace(config, batch=1, seqlen=length, queries=length)
    queries = min(config.queries, 128 + config.queries % 128)
    return replace(config, batch=1, seqlen=min(config.seqlen, 256 + config.seqlen % 128), queries=queries)


@functools.lru_cache(maxsize=256)
def trial_error(config: AttentionConfig, row: Implementation) -> str | None:
    """Cached, because a sweep over lengths tries the same call repeatedly, and some kernels are compiled."""
    return rejection(functools.partial(call_once, config, row), row.package)


def rejection(call: Callable[[], str | None], package: str) -> str | None:
    """Return the reason that ``call`` returns, or its error; None if it succeeds.

    ``package`` is the package of its operators; empty for torch.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            return call()
        except torch.cuda.OutOfMemoryError:
            return None  # the case itself will fail then; this is no limit of the implementation
        except (AssertionError, AttributeError, ImportError, RuntimeError, TypeError, ValueError) as error:
            # These include errors of a build without the function or one of its arguments.
            if "CUDA error" in str(error):
                raise  # the context is lost, which is an error of the process
            return (not package and _backend_reasons(caught)) or words(error).rstrip(".")


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


def _backend_reasons(caught: list[warnings.WarningMessage]) -> str:
    """SDPA raises "No available kernel" and gives the reasons as warnings, beside those of disabled backends."""
    texts = [re.sub(r"\s*\(Triggered internally.*", "", str(w.message), flags=re.S).rstrip(". ") for w in caught]
    disabled = ("not used because:", "runtime disabled")
    return "; ".join(dict.fromkeys(t for t in texts if t and not any(word in t for word in disabled)))
