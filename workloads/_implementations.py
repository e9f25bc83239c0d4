"""The implementations of attention that can be compared: how each is called, and why one cannot run here.

For a caller with tensors of its own::

    setting = Setting(impl="fa2", batch=1, seqlen=17776, heads=30, head_dim=64, dtype="bf16")
    reason = unavailable(setting)  # None: it can run
    row = IMPLEMENTATIONS[setting.impl]
    forward = row.prepare(setting)
    out = row.view(forward(*(row.view(tensor).contiguous() for tensor in (q, k, v))))

where q, k, v and out are ``(batch, seqlen, heads, head_dim)``; who has them as ``(batch, heads, seqlen, head_dim)``
and sees ``row.heads_first`` needs no view.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import textwrap
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from profpipe import load

if TYPE_CHECKING:
    import _packages
    import _sdpa
    import _setting
    from _setting import Setting
else:
    _packages = load.module(Path(__file__).with_name("_packages.py"))
    _sdpa = load.module(Path(__file__).with_name("_sdpa.py"))
    _setting = load.module(Path(__file__).with_name("_setting.py"))
    Setting = _setting.Setting


@dataclass(frozen=True)
class Implementation:
    """One row of the table: how to call it, and what is known beforehand about what it takes.

    ``prepare`` imports what it needs and binds the setting; ``heads_first`` tells the layout. ``family`` gives the
    kernel family on an NVIDIA GPU, ``rocm_family`` on an AMD one; alternatives are separated by ``|``.
    """

    prepare: Callable[[Setting], _setting.Forward]
    family: Callable[[Setting], str]
    heads_first: bool = True
    rocm_family: str = ""
    package: str = ""
    install: str = ""
    on_cpu: bool = False
    has_backward: bool = True
    dtypes: tuple[str, ...] = tuple(_setting.DTYPES)
    max_head_dim: int | None = None
    least_sm: tuple[int, int] = (0, 0)

    def view(self, tensor: Tensor) -> Tensor:
        """From ``(batch, seqlen, heads, head_dim)`` to this implementation's order of axes, or back; copies nothing."""
        return tensor.transpose(1, 2) if self.heads_first else tensor


def _fixed(family: str) -> Callable[[Setting], str]:
    return lambda setting: family


_HALF = ("fp16", "bf16")
_AMPERE = (8, 0)

IMPLEMENTATIONS: dict[str, Implementation] = {
    "sdpa_math": Implementation(_sdpa.sdpa("math"), _fixed(""), on_cpu=True),
    "sdpa_flash": Implementation(
        _sdpa.sdpa("flash"), _fixed("fa2"), rocm_family="aotriton|ck", on_cpu=True, least_sm=_AMPERE
    ),
    "sdpa_efficient": Implementation(_sdpa.sdpa("mem_efficient"), _fixed("cutlass_fmha"), rocm_family="aotriton"),
    "sdpa_cudnn": Implementation(_sdpa.sdpa("cudnn"), _fixed("cudnn"), dtypes=_HALF, least_sm=_AMPERE),
    "fa2": Implementation(
        _packages.flash_attn,
        _fixed("fa2"),
        heads_first=False,
        rocm_family="ck|aotriton",
        package="flash_attn",
        install="pip install flash-attn --no-build-isolation",
        dtypes=_HALF,
        max_head_dim=256,
        least_sm=_AMPERE,
    ),
    "sage": Implementation(
        _packages.sage,
        _packages.sage_family,
        package="sageattention",
        install="pip install sageattention (1.0.6, Triton), or build 2.x from github.com/thu-ml/SageAttention",
        has_backward=False,
        max_head_dim=128,
        least_sm=_AMPERE,
    ),
    "xformers": Implementation(
        _packages.xformers,
        _packages.xformers_family,
        heads_first=False,
        rocm_family="ck",
        package="xformers",
        install="pip install xformers, of the release made for your torch (pip would replace torch otherwise)",
    ),
}


def expected_family(setting: Setting) -> str:
    """The kernel family that must be found in a trace; ``a|b``: any of them.

    Empty: none, because the implementation is unfused (``sdpa_math``) or runs on a CPU, where kernels have no family.
    """
    row = IMPLEMENTATIONS[setting.impl]
    if _setting.device() == "cpu":
        return ""
    return row.rocm_family if torch.version.hip else row.family(setting)


# --- why an implementation cannot run here ---------------------------------------------------------------------------


def unavailable(setting: Setting) -> str | None:
    """Why this implementation cannot run the setting here and what to do about it, or None.

    What is known is looked up; the rest is tried by one call of at most 255 tokens, since which head dims, dtypes and
    head groups a kernel takes depends on how its package was built.
    """
    looks = (_unsupported, _no_device, _not_installed, _refused)
    reasons = (look(setting, IMPLEMENTATIONS[setting.impl]) for look in looks)
    return next((reason for reason in reasons if reason), None)


def _unsupported(setting: Setting, row: Implementation) -> str | None:
    """What no build of the implementation can do, on no machine."""
    if setting.backward and not row.has_backward:
        return f"{setting.impl} has no backward pass. Use mode: fwd."
    if setting.dtype not in row.dtypes:
        return f"{setting.impl} does not take {setting.dtype}. Use dtype: {' or '.join(row.dtypes)}."
    if row.max_head_dim is not None and setting.head_dim > row.max_head_dim:
        return f"{setting.impl} takes head dims up to {row.max_head_dim}, not {setting.head_dim}. Change head_dim."
    return None


def _no_device(setting: Setting, row: Implementation) -> str | None:
    if _setting.device() == "cpu":
        if row.on_cpu:
            return None
        here = " or ".join(name for name, other in IMPLEMENTATIONS.items() if other.on_cpu)
        if torch.version.cuda is None and torch.version.hip is None:
            return (
                f"{setting.impl} needs a GPU, and torch {torch.__version__} is built for the CPU only. "
                f"Install a CUDA build of torch on a machine with a GPU, or use {here} here."
            )
        return f"{setting.impl} needs a GPU, and torch sees none. Run it where there is one, or use {here} here."
    capability = torch.cuda.get_device_capability()
    if torch.version.cuda is not None and capability < row.least_sm:
        have, need = ("sm_{}{}".format(*sm) for sm in (capability, row.least_sm))
        return f"{setting.impl} needs {need} or later; this GPU is {have}. Use sdpa_efficient or sdpa_math on it."
    return None


def _not_installed(setting: Setting, row: Implementation) -> str | None:
    if not row.package:
        return None
    if importlib.util.find_spec(row.package) is None:
        return f"{row.package} is not installed. {row.install}."
    try:
        importlib.import_module(row.package)
    except (ImportError, OSError, RuntimeError) as error:
        return (
            f"{row.package} is installed and cannot be loaded: {_one_line(error)}. "
            f"Build or install it for torch {torch.__version__} (CUDA {torch.version.cuda})."
        )
    return None


def _refused(setting: Setting, row: Implementation) -> str | None:
    """What the implementation itself says to one small call with this dtype, head dim, heads, mask and mode."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            _call_once(_small(setting), row)
            return None
        except torch.cuda.OutOfMemoryError:
            return None  # the case itself will say so, and it is no property of the implementation
        except (AssertionError, RuntimeError, ValueError) as error:
            if "CUDA error" in str(error):
                raise  # the context is lost: a failure of the process, not a property of the case
            said = (not row.package and _backend_reasons(caught)) or _one_line(error)
    return (
        f"{setting.impl} refuses this case: {said}. "
        f"Change head_dim, dtype, kv_heads, seqlen or mode, or use another build of {row.package or 'torch'}."
    )


def _small(setting: Setting) -> Setting:
    """Lengths keep their remainder: some kernels accept only multiples of 8, 64 or 128."""
    return replace(setting, batch=1, seqlen=min(setting.seqlen, 128 + setting.seqlen % 128))


def _call_once(setting: Setting, row: Implementation) -> None:
    forward = row.prepare(setting)
    options = {"dtype": _setting.DTYPES[setting.dtype], "device": _setting.device()}
    shapes = (setting.q_shape, setting.kv_shape, setting.kv_shape)
    tensors = [row.view(torch.randn(shape, **options)).contiguous() for shape in shapes]
    out = forward(*(tensor.requires_grad_(setting.backward) for tensor in tensors))
    if setting.backward:
        torch.autograd.grad(out, tensors, torch.ones_like(out))
    if _setting.device() == "cuda":
        torch.cuda.synchronize()


def _backend_reasons(caught: list[warnings.WarningMessage]) -> str:
    """SDPA's error says only "No available kernel"; the reasons are warnings beside it, among those we asked for."""
    texts = [re.sub(r"\s*\(Triggered internally.*", "", str(w.message), flags=re.S).rstrip(". ") for w in caught]
    asked_for = ("not used because:", "runtime disabled")
    return "; ".join(dict.fromkeys(t for t in texts if t and not any(word in t for word in asked_for)))


def _one_line(error: BaseException) -> str:
    return textwrap.shorten(str(error), 500).rstrip(".") or type(error).__name__
