"""Why an implementation of attention cannot run a setting here, and what to do about it."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from profpipe import load
from profpipe.errors import words

if TYPE_CHECKING:
    import _setting
    from _implementations import Implementation
    from _setting import Setting
else:
    _setting = load.module(Path(__file__).with_name("_setting.py"))


def first(setting: Setting, implementations: Mapping[str, Implementation]) -> str | None:
    """The first reason that is found, or None. What is known is looked up; the rest is tried by one small call."""
    row = implementations[setting.impl]
    known = _unsupported(setting, row, implementations) or no_device(setting, row, implementations)
    return known or row.lacks() or not_installed(setting, row) or _refused(setting, row)


def _unsupported(setting: Setting, row: Implementation, implementations: Mapping[str, Implementation]) -> str | None:
    """What no build of the implementation can do, on no machine."""
    impl = setting.impl
    if wrong := other_length(setting, row, "seqlen"):
        return wrong
    if setting.backward and not row.has_backward:
        return f"{impl} has no backward pass. Use mode: fwd."
    if setting.dtype not in row.dtypes:
        return _other_dtype(setting, row.dtypes)
    if row.max_head_dim is not None and setting.head_dim > row.max_head_dim:
        return f"{impl} takes head dims up to {row.max_head_dim}, not {setting.head_dim}. Change head_dim."
    if setting.group > 1 and not row.grouped:
        return f"{impl} needs as many key/value heads as query heads. Leave kv_heads at 0."
    if setting.masked and not row.causal:
        return f"{impl} has no causal mask. Use causal: false."
    if setting.masked and setting.queries < setting.seqlen and not row.bottom_right:
        able = ", ".join(name for name, other in implementations.items() if other.bottom_right)
        return (
            f"{impl} has no causal mask in which the last of fewer queries than keys sees every key. "
            f"Use causal: false, queries: 1 or 0, or one of {able}."
        )
    return None


def other_length(setting: Setting, row: Implementation, change: str) -> str | None:
    """Where it takes single lengths and not this one; ``change`` names the parameters that make it."""
    if not row.lengths or (setting.seqlen in row.lengths and setting.queries == setting.seqlen):
        return None
    lengths = " or ".join(map(str, row.lengths))
    return f"{setting.impl} takes {lengths} tokens and no others, not {setting.seqlen}. Change {change}. {row.install}."


def _other_dtype(setting: Setting, taken: Sequence[str]) -> str:
    return f"{setting.impl} does not take {setting.dtype}. Use dtype: {' or '.join(taken)}."


def no_device(setting: Setting, row: Implementation, implementations: Mapping[str, Implementation]) -> str | None:
    if _setting.device() == "cpu":
        if row.on_cpu:
            return None
        here = " or ".join(name for name, other in implementations.items() if other.on_cpu)
        if torch.version.cuda is None and torch.version.hip is None:
            return (
                f"{setting.impl} needs a GPU, and torch {torch.__version__} is built for the CPU only. "
                f"Install a CUDA build of torch on a machine with a GPU, or use {here} here."
            )
        return f"{setting.impl} needs a GPU, and torch sees none. Run it where there is one, or use {here} here."
    if row.gpu_dtypes and setting.dtype not in row.gpu_dtypes:
        return _other_dtype(setting, row.gpu_dtypes)
    capability = torch.cuda.get_device_capability()
    if torch.version.cuda is not None and capability < row.least_sm:
        have, need = ("sm_{}{}".format(*sm) for sm in (capability, row.least_sm))
        return f"{setting.impl} needs {need} or later; this GPU is {have}. Use sdpa_efficient or sdpa_math on it."
    return None


# --- packages --------------------------------------------------------------------------------------------------------


def not_installed(setting: Setting, row: Implementation) -> str | None:
    if not row.package:
        return None
    install = _install(row)
    try:
        version = metadata.version(row.distribution) if row.distribution else ""
        if not version.startswith(row.version):
            return f"{row.distribution} {version} is installed, and {setting.impl} is {row.version}x. {install}."
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
        said = words(error).rstrip(".")
        return (
            f"{row.package} is installed and cannot be loaded: {said}. "
            f"Build or install it for torch {torch.__version__} (CUDA {torch.version.cuda})."
        )
    return None


def _install(row: Implementation) -> str:
    """The command, for the GPU that is here: what is built from source is built for one architecture."""
    if "{arch}" not in row.install:
        return row.install
    return row.install.format(arch="{}.{}".format(*torch.cuda.get_device_capability()))


# --- what the implementation itself says -----------------------------------------------------------------------------

_SEES_LATER = "its first query sees later keys, against the causal mask"


def _refused(setting: Setting, row: Implementation) -> str | None:
    """What one call with this dtype, head dim, heads, mask and mode ends in: a small one, if it may be small."""
    said = _tried(replace(setting, batch=1) if row.lengths else _small(setting), row)
    if said is None:
        return None
    remedy = "Change head_dim, dtype, kv_heads, seqlen or mode, or use"
    if said == _SEES_LATER:
        remedy = "Use causal: false, or"
    return f"{setting.impl} refuses this case: {said}. {remedy} another build of {row.package or 'torch'}."


def _small(setting: Setting) -> Setting:
    """Lengths keep their remainder, for some kernels accept only multiples of 8, 64 or 128; unequal ones stay so."""
    if setting.queries == setting.seqlen:
        length = min(setting.seqlen, 128 + setting.seqlen % 128)
        return replace(setting, batch=1, seqlen=length, queries=length)
    queries = min(setting.queries, 128 + setting.queries % 128)
    return replace(setting, batch=1, seqlen=min(setting.seqlen, 256 + setting.seqlen % 128), queries=queries)


@functools.lru_cache(maxsize=256)
def _tried(setting: Setting, row: Implementation) -> str | None:
    """The reason of a refusal. A sweep over lengths asks the same again and again, and some kernels are compiled."""
    return refusal(functools.partial(_called_once, setting, row), row.package)


def refusal(call: Callable[[], str | None], package: str) -> str | None:
    """What is wrong with what ``call`` did, as it says itself or by the error that it ends in; None where nothing is.

    ``package`` is whose operators it calls; empty for torch's.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            return call()
        except torch.cuda.OutOfMemoryError:
            return None  # the case itself will say so, and it is no property of the implementation
        except (AssertionError, AttributeError, ImportError, RuntimeError, TypeError, ValueError) as error:
            # A build that lacks the function, or one of its arguments, refuses too.
            if "CUDA error" in str(error):
                raise  # the context is lost: a failure of the process, not a property of the case
            return (not package and _backend_reasons(caught)) or words(error).rstrip(".")


def _called_once(setting: Setting, row: Implementation) -> str | None:
    forward = row.prepare(setting)
    options = {"dtype": _setting.DTYPES[setting.dtype], "device": _setting.device()}
    shapes = (setting.q_shape, setting.kv_shape, setting.kv_shape)
    q, k, v = (torch.randn(shape, **options) for shape in shapes)
    tensors = [row.view(tensor).contiguous().requires_grad_(setting.backward) for tensor in (q, k, v)]
    out = forward(*tensors)
    if setting.backward:
        torch.autograd.grad(out, tensors, torch.ones_like(out), retain_graph=setting.mode == "bwd")
    if _setting.device() == "cuda":
        torch.cuda.synchronize()
    later = _sees_later(setting, row.view(out), v)
    return _SEES_LATER if later else None


def _sees_later(setting: Setting, out: Tensor, v: Tensor) -> bool:
    """Under a causal mask the first of equally many queries sees the first key only, so its output is that value.

    Values are normal: quantised to fp8 they are off by a quarter at most, while a mean over several is off by the
    largest of at least 8 of them.
    """
    if not setting.masked or setting.queries != setting.seqlen:
        return False
    expected = v[:, 0].repeat_interleave(setting.group, dim=1)
    return (out.detach()[:, 0].float() - expected.float()).abs().max().item() > 1


def _backend_reasons(caught: list[warnings.WarningMessage]) -> str:
    """SDPA's error says only "No available kernel"; the reasons are warnings beside it, among those we asked for."""
    texts = [re.sub(r"\s*\(Triggered internally.*", "", str(w.message), flags=re.S).rstrip(". ") for w in caught]
    asked_for = ("not used because:", "runtime disabled")
    return "; ".join(dict.fromkeys(t for t in texts if t and not any(word in t for word in asked_for)))
