"""The implementations of attention over a group of sequences: how each is called, and why one cannot run here."""

from __future__ import annotations

import functools
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

# Of a setting its functions use the name of the implementation alone, which a group has too.
_obstacles: Any = load.module(Path(__file__).with_name("_obstacles.py"))

#: Outputs as the layout makes q, and gradients as it gives q, k and v.
Results = tuple[Sequence[Tensor], Sequence[Tensor]]


@dataclass(frozen=True)
class Implementation:
    """One row of the table: how to call it, and what is known beforehand about what it takes.

    ``alone`` is the row of attention without groups that is installed like this one and takes the same. ``family`` is
    the kernel family on an NVIDIA GPU; alternatives are separated by ``|``. ``apis`` are the forms of its interface
    that can be asked for. ``grouped``: there may be fewer key/value heads than query heads.
    """

    prepare: Callable[[Group], Forward]
    layout: Callable[[Group], Layout]
    family: str
    alone: _implementations.Implementation
    apis: tuple[str, ...] = ("varlen",)
    grouped: bool = True


_ALONE = _implementations.IMPLEMENTATIONS

IMPLEMENTATIONS: Mapping[str, Implementation] = {
    "fa2": Implementation(_varlen_calls.flash_attn, _varlen_calls.flash_layout, "fa2", _ALONE["fa2"], _group.APIS),
    "fa3": Implementation(
        _varlen_calls.flash_attn_3, _varlen_calls.flash_layout, "fa3", _ALONE["fa3"], ("func", "varlen")
    ),
    "fa4": Implementation(
        _varlen_calls.flash_attn_4, _varlen_calls.flash_layout, "fa4", _ALONE["fa4"], ("func", "varlen")
    ),
    "xformers": Implementation(
        _varlen_calls.xformers,
        _group.batch_of_one,
        "fa2|fa3|cutlass_fmha",  # the first of its operators that takes the case
        _ALONE["xformers"],
    ),
    "torch_varlen": Implementation(
        _varlen_calls.torch_varlen,
        _group.packed,
        "fa2",
        replace(
            _ALONE["sdpa_flash"],
            package="torch.nn.attention.varlen",
            install="It is a part of torch since 2.10: pip install 'torch>=2.10'",
            on_cpu=False,
            dtypes=("fp16", "bf16"),
            max_head_dim=256,
        ),
    ),
    "flex": Implementation(_varlen_calls.flex, _group.heads_first, "flex", _ALONE["flex"]),
    "sdpa_nested": Implementation(
        _varlen_calls.sdpa_nested,
        _group.nested,
        "fa2|cutlass_fmha",
        replace(_ALONE["sdpa_flash"], least_sm=(0, 0)),
        grouped=False,
    ),
    "sdpa_loop": Implementation(_varlen_calls.sdpa_loop, _group.one_by_one, "fa2", _ALONE["sdpa_flash"]),
}


def expected_family(group: Group) -> str:
    """The kernel family that must be found in a trace; ``a|b``: any of them; empty on a CPU."""
    row = IMPLEMENTATIONS[group.impl]
    if _setting.device() == "cpu":
        return ""
    return row.alone.rocm_family if torch.version.hip else row.family


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
    """The output and, with a backward pass, the gradients of one call as packed tensors: out, dq, dk and dv."""
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
    every = {name: other.alone for name, other in IMPLEMENTATIONS.items()}
    known = _unsupported(group, row) or _unformed(group, row) or _obstacles.no_device(group, row.alone, every)
    return known or _obstacles.not_installed(group, row.alone) or _refused(group, row)


def _unsupported(group: Group, row: Implementation) -> str | None:
    """What no build of the implementation can do, on no machine."""
    dtypes, most = row.alone.dtypes, row.alone.max_head_dim
    if group.dtype not in dtypes:
        return f"{group.impl} does not take {group.dtype}. Use dtype: {' or '.join(dtypes)}."
    if most is not None and group.head_dim > most:
        return f"{group.impl} takes head dims up to {most}, not {group.head_dim}. Change head_dim."
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
        f"Change head_dim, dtype, kvheads, causal or mode, or use another build of {row.alone.package or 'torch'}."
    )


@functools.lru_cache(maxsize=256)
def _tried(group: Group, row: Implementation) -> str | None:
    """The reason of a refusal. A sweep over lengths asks the same again and again, and some kernels are compiled."""
    return _obstacles.refusal(functools.partial(_called_once, group), row.alone.package)


def _called_once(group: Group) -> None:
    iteration(group, nullcontext)()
    if _setting.device() == "cuda":
        torch.cuda.synchronize()
