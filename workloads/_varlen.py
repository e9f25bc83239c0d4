"""The implementations of attention over a group of sequences: how each is called, and why one cannot run here."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from profpipe import load

if TYPE_CHECKING:
    import _group
    import _implementations
    import _setting
    import _varlen_calls
    from _group import Group, Layout
    from _varlen_calls import Forward
else:
    _group = load.module(Path(__file__).with_name("_group.py"))
    _implementations = load.module(Path(__file__).with_name("_implementations.py"))
    _setting = load.module(Path(__file__).with_name("_setting.py"))
    _varlen_calls = load.module(Path(__file__).with_name("_varlen_calls.py"))

# Its functions know a row and a setting by their fields, which Group and Implementation have too.
_obstacles: Any = load.module(Path(__file__).with_name("_obstacles.py"))

#: Outputs as the layout makes q, and gradients as it gives q, k and v.
Results = tuple[Sequence[Tensor], Sequence[Tensor]]


@dataclass(frozen=True)
class Implementation:
    """One row of the table, as ``_implementations.Implementation`` is for attention that knows no groups.

    ``apis`` are the forms of its interface that can be asked for. ``grouped``: there may be fewer key/value heads than
    query heads.
    """

    prepare: Callable[[Group], Forward]
    layout: Callable[[Group], Layout]
    family: str
    rocm_family: str = ""
    package: str = ""
    distribution: str = ""
    version: str = ""
    install: str = ""
    apis: tuple[str, ...] = ("varlen",)
    on_cpu: bool = False
    grouped: bool = True
    dtypes: tuple[str, ...] = tuple(_setting.DTYPES)
    max_head_dim: int | None = None
    least_sm: tuple[int, int] = (0, 0)


def _like(
    name: str, prepare: Callable[[Group], Forward], layout: Callable[[Group], Layout], **more: Any
) -> Implementation:
    """A row that takes what the row ``name`` of attention without groups takes, and is installed like it."""
    row = _implementations.IMPLEMENTATIONS[name]
    same = (
        "rocm_family",
        "package",
        "distribution",
        "version",
        "install",
        "on_cpu",
        "dtypes",
        "max_head_dim",
        "least_sm",
    )
    return Implementation(prepare, layout, **{"family": name} | {field: getattr(row, field) for field in same} | more)


IMPLEMENTATIONS: Mapping[str, Implementation] = {
    "fa2": _like("fa2", _varlen_calls.flash_attn, _varlen_calls.flash_layout, apis=_group.APIS),
    "fa3": _like("fa3", _varlen_calls.flash_attn_3, _varlen_calls.flash_layout, apis=("func", "varlen")),
    "fa4": _like("fa4", _varlen_calls.flash_attn_4, _varlen_calls.flash_layout, apis=("func", "varlen")),
    # The first of its operators that takes the case.
    "xformers": _like("xformers", _varlen_calls.xformers, _group.batch_of_one, family="fa2|fa3|cutlass_fmha"),
    "torch_varlen": Implementation(
        _varlen_calls.torch_varlen,
        _group.packed,
        "fa2",
        rocm_family="aotriton|ck",
        package="torch.nn.attention.varlen",
        install="It is a part of torch since 2.10: pip install 'torch>=2.10'",
        dtypes=("fp16", "bf16"),
        max_head_dim=256,
        least_sm=(8, 0),
    ),
    "flex": _like("flex", _varlen_calls.flex, _group.heads_first),
    "sdpa_nested": Implementation(
        _varlen_calls.sdpa_nested,
        _group.nested,
        "fa2|cutlass_fmha",
        rocm_family="aotriton|ck",
        on_cpu=True,
        grouped=False,
    ),
    "sdpa_loop": _like("sdpa_flash", _varlen_calls.sdpa_loop, _group.one_by_one, family="fa2"),
}


def expected_family(group: Group) -> str:
    """The kernel family that must be found in a trace; ``a|b``: any of them; empty on a CPU."""
    row = IMPLEMENTATIONS[group.impl]
    if _setting.device() == "cpu":
        return ""
    return row.rocm_family if torch.version.hip else row.family


# --- one iteration ---------------------------------------------------------------------------------------------------


def inputs(group: Group) -> list[Tensor]:
    """q, k, v and, for the backward pass, the upstream gradient, packed and normal: the same for all."""
    device = _setting.device()
    generator = torch.Generator(device).manual_seed(group.seed)
    shapes = [group.q_shape, group.kv_shape, group.kv_shape] + [group.q_shape] * group.backward
    options = {"generator": generator, "device": device, "dtype": _setting.DTYPES[group.dtype]}
    return [torch.randn(shape, **options) for shape in shapes]


def iteration(group: Group, phase: Callable[[str], AbstractContextManager[object]]) -> Callable[[], Results]:
    """What one iteration runs, its passes each in a ``phase``. Mode ``bwd`` keeps the graph of one forward pass."""
    row = IMPLEMENTATIONS[group.impl]
    layout, forward = row.layout(group), row.prepare(group)
    q, k, v, *upstream = inputs(group)
    given = [tensor.requires_grad_(group.backward) for tensor in layout.given(q, k, v)]

    def forward_only() -> Results:
        with phase("forward"):
            return forward(*given), ()

    if not group.backward:
        return forward_only

    # Only a call tells the strides of the outputs. A gradient with others may be copied by the backward pass.
    with torch.set_grad_enabled(group.mode == "bwd"):
        kept = forward(*given)
    gradients = [_strided_as(out, part) for out, part in zip(kept, layout.apart(*upstream), strict=True)]

    def backward_only() -> Results:
        with phase("backward"):
            return kept, torch.autograd.grad(kept, given, gradients, retain_graph=True)

    def forward_and_backward() -> Results:
        with phase("forward"):
            outs = forward(*given)
        with phase("backward"):
            return outs, torch.autograd.grad(outs, given, gradients)

    return backward_only if group.mode == "bwd" else forward_and_backward


def _strided_as(out: Tensor, gradient: Tensor) -> Tensor:
    """Nested tensors are contiguous, and are no copies of each other's kind."""
    return gradient if gradient.is_nested else torch.empty_like(out).copy_(gradient)


def produced(group: Group) -> dict[str, Tensor]:
    """The output, and in ``fwd_bwd`` the gradients, of one call as packed tensors: out, dq, dk and dv."""
    layout = IMPLEMENTATIONS[group.impl].layout(group)
    outs, gradients = iteration(group, nullcontext)()
    found = {"out": layout.together([out.detach() for out in outs])}
    if gradients:
        found |= zip(("dq", "dk", "dv"), layout.packed(gradients), strict=True)
    return found


# --- why an implementation cannot run here ---------------------------------------------------------------------------


def unavailable(group: Group) -> str | None:
    """Why this implementation cannot run the group here and what to do about it, or None.

    What is known is looked up; the rest is tried by one call of a few short sequences.
    """
    row = IMPLEMENTATIONS[group.impl]
    known = _unsupported(group, row) or _unformed(group, row) or _obstacles._no_device(group, row, IMPLEMENTATIONS)
    return known or _obstacles._not_installed(group, row) or _refused(group, row)


def _unsupported(group: Group, row: Implementation) -> str | None:
    """What no build of the implementation can do, on no machine."""
    if group.dtype not in row.dtypes:
        return f"{group.impl} does not take {group.dtype}. Use dtype: {' or '.join(row.dtypes)}."
    if row.max_head_dim is not None and group.head_dim > row.max_head_dim:
        return f"{group.impl} takes head dims up to {row.max_head_dim}, not {group.head_dim}. Change head_dim."
    if group.shared > 1 and not row.grouped:
        return f"{group.impl} needs as many key/value heads as query heads. Use kvheads: {group.qheads}."
    return None


def _unformed(group: Group, row: Implementation) -> str | None:
    """What the form of the interface cannot express."""
    api = group.api
    if api not in row.apis:
        return f"{group.impl} has no form {api}. Use api: {' or '.join(row.apis)}."
    if not api.startswith("varlen") and not group.equally_long:
        return f"api: {api} takes sequences of one length, not {group.seqlens}. Use a form that begins with varlen."
    if group.shared > 1 and api.endswith("qkvpacked"):
        return f"api: {api} needs as many key/value heads as query heads. Use kvheads: {group.qheads}."
    return None


def _refused(group: Group, row: Implementation) -> str | None:
    """What the implementation itself says to a few short sequences of this kind."""
    short = ",".join(str(min(length, 128 + length % 128)) for length in group.lengths[:3])
    said = _tried(replace(group, seqlens=short), row)
    if said is None:
        return None
    return (
        f"{group.impl} refuses this case: {said}. "
        f"Change head_dim, dtype, kvheads, causal or mode, or use another build of {row.package or 'torch'}."
    )


@functools.lru_cache(maxsize=256)
def _tried(group: Group, row: Implementation) -> str | None:
    """The reason of a refusal. A sweep over lengths asks the same again and again, and some kernels are compiled."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            iteration(group, nullcontext)()
            if _setting.device() == "cuda":
                torch.cuda.synchronize()
            return None
        except torch.cuda.OutOfMemoryError:
            return None  # the case itself will say so, and it is no property of the implementation
        except (AssertionError, RuntimeError, ValueError) as error:
            if "CUDA error" in str(error):
                raise  # the context is lost: a failure of the process, not a property of the case
            return (not row.package and _obstacles._backend_reasons(caught)) or _obstacles._one_line(error)
