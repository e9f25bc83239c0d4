"""Self-attention, one call of one implementation: what profpipe is mostly asked about.

``impl`` names a row of the table in ``_implementations.py``. Each implementation gets its tensors in the layout that
its own interface takes, made before the measured region, so that no copy between layouts is charged to it: ``(batch,
heads, seqlen, head_dim)`` for torch's SDPA, SageAttention and SpargeAttn, ``(batch, seqlen, heads, head_dim)`` for
flash-attn and xformers, all contiguous. The upstream gradient has the strides of the output, as it would from the layer
after it in a model.

``queries`` below ``seqlen`` are the last of the sequence over all its keys and values: ``queries: 1`` is a step of
decoding. ``inputs`` chooses between independent normal numbers and tokens that resemble their neighbours
(``_inputs.py``). The numbers follow from ``seed`` and the shapes alone and are the same for every implementation.
SageAttention 1 subtracts K's mean from K in place, so from its second call on it works on a K that is already centred;
time and result stay the same. ``topk``, ``cdfthreshd``, ``simthreshd1`` and ``pvthreshd`` are SpargeAttn's
(``_sparge.py``); the others leave them aside.

``mode: fwd`` runs the forward pass on tensors that need no gradient. ``mode: fwd_bwd`` adds ``torch.autograd.grad`` for
q, k and v: unlike ``out.backward(g)`` it accumulates into no ``.grad`` and so adds no kernel of its own. ``mode: bwd``
is that alone, over a graph that one forward pass made beforehand and that is kept. The passes stand in the ranges
``forward`` and ``backward``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from profpipe import load
from profpipe.errors import did_you_mean
from profpipe.ranges import annotate

if TYPE_CHECKING:
    import _implementations
    import _inputs
    import _reference
    import _setting
else:
    _implementations = load.module(Path(__file__).with_name("_implementations.py"))
    _inputs = load.module(Path(__file__).with_name("_inputs.py"))
    _reference = load.module(Path(__file__).with_name("_reference.py"))
    _setting = load.module(Path(__file__).with_name("_setting.py"))

PARAMS = {
    "impl": "sdpa_flash",
    "batch": 2,
    "seqlen": 2048,
    "queries": 0,  # 0: as many as seqlen
    "heads": 16,
    "kv_heads": 0,  # 0: as many as heads
    "head_dim": 128,
    "dtype": "fp16",
    "causal": False,
    "mode": "fwd",
    "inputs": "normal",
    "simthreshd1": None,  # these four: of sparge_fp16 and sparge_fp8; None: the library's default
    "cdfthreshd": None,
    "pvthreshd": None,
    "topk": None,
    "seed": 0,
    "reference": "fp32",  # or fp64, on the CPU
    "memory_cap_gib": 0.0,  # what torch may take of the GPU's memory, as if it were a smaller one; 0: all
}


@dataclass(frozen=True, kw_only=True)
class Case(_setting.Setting):
    """The parameters of one case, checked."""

    inputs: str
    seed: int
    reference: str
    memory_cap_gib: float

    def __post_init__(self) -> None:
        super().__post_init__()
        _setting.known("reference", self.reference, _reference.REFERENCES)
        if type(self.memory_cap_gib) not in (int, float) or not 0 <= self.memory_cap_gib < math.inf:
            raise ValueError(f"memory_cap_gib must be a number of at least 0, not {self.memory_cap_gib!r}")


# --- what profpipe asks of a workload --------------------------------------------------------------------------------


def build(params: Mapping[str, Any]) -> Callable[[], object]:
    """Allocates the inputs on the GPU (else the CPU) and returns what one iteration runs.

    Raises ValueError for parameters that make no sense on any machine.
    """
    case = _case(params)
    _cap_memory(case.memory_cap_gib)
    return _iteration(case, annotate)


def flops(params: Mapping[str, Any]) -> float | dict[str, float]:
    """Operations of the two matrix products of a call; softmax and quantisation are not counted.

    Forward: 4 x batch x query heads x queries x visible keys x head_dim. Causal, the mean number of visible keys is
    taken as FlashAttention 3's benchmark does: (max(0, Sk - Sq) + Sk) / 2, half the sequence where Sq = Sk. The exact
    count is half a key more. Backward: 2.5 times the forward, which counts the scores computed again. For sparse
    implementations this is the dense work; ``facts`` has what they do. Implementations that quantise (SageAttention,
    SpargeAttn) compute QK in int8 and PV in fp16 or fp8, half of the work each, and SDPA's math backend all in fp32:
    theirs is given by data type, and is held against the rates of these rather than the tensors'.
    """
    s = _case(params)
    return _implementations.by_type(s, _dense(s))


def _dense(s: Case) -> float:
    visible_keys = (2 * s.seqlen - s.queries) / 2 if s.masked else s.seqlen
    forward = 4 * s.batch * s.heads * s.queries * visible_keys * s.head_dim
    return forward * {"fwd": 1, "bwd": 2.5, "fwd_bwd": 3.5}[s.mode]


def bytes_moved(params: Mapping[str, Any]) -> int:
    """Bytes that a call must move to and from memory at least, every tensor once; keys and values by their own heads.

    Forward: reads q, k, v and writes out. Backward: reads q, k, v, out, its gradient and the log-sum-exp (fp32, one a
    query row, written by the forward pass), and writes the three gradients.
    """
    s = _case(params)
    element = _setting.DTYPES[s.dtype].itemsize
    of_q, of_kv = math.prod(s.q_shape) * element, 2 * math.prod(s.kv_shape) * element
    log_sum_exp = 4 * s.batch * s.heads * s.queries if s.backward else 0
    forward = 2 * of_q + of_kv + log_sum_exp
    backward = 4 * of_q + 2 * of_kv + log_sum_exp
    return {"fwd": forward, "bwd": backward, "fwd_bwd": forward + backward}[s.mode]


def expects(params: Mapping[str, Any]) -> str:
    """The kernel family that must be found in a trace; ``a|b``: any of them; empty: none is expected."""
    return _implementations.expected_family(_case(params))


def available(params: Mapping[str, Any]) -> str | None:
    """Why this case cannot run here and what to do about it, or None."""
    case = _case(params)
    return _no_such_cap(case) or _implementations.unavailable(case)


def check(params: Mapping[str, Any]) -> dict[str, float]:
    """Differences from attention computed in fp32, or on the CPU in fp64, from the same rounded inputs.

    The five measures of ``_errors.py`` for the output and, with a backward pass, for dq, dk and dv. The worst values
    that they can have where the implementation gave a NaN. ``facts`` says what part of the tensors was compared.
    """
    case = _case(params)
    produced = _produced(case)
    # Drawn again, for an implementation may write into its inputs (SageAttention 1 does).
    inputs = _drawn(case)
    # The reference is no part of what a smaller GPU would have to hold.
    _cap_memory(0)
    return _reference.differences(case, case.reference, produced, inputs)


def facts(params: Mapping[str, Any]) -> dict[str, tuple[float, str]]:
    """What else is true of the case.

    ``sparsity``: the share of QK that a sparse implementation leaves out with these inputs, by its own count;
    ``sparsity_requested``: what ``topk`` asks for, thresholds ask for none in particular; ``flops_effective``: what is
    left of ``flops``. ``checked``: the share of the tensors that is compared with the reference, where that is not all.
    ``memory_before_backward``: the bytes of GPU memory that the case has in use between its two passes.
    """
    case = _case(params)
    row = _implementations.IMPLEMENTATIONS[case.impl]
    found: dict[str, tuple[float, str]] = {}
    if row.sparsity is not None:
        left_out = row.sparsity(case)(*(row.view(tensor).contiguous() for tensor in _drawn(case)[:3]))
        found |= {"sparsity": (100 * left_out, "%"), "flops_effective": (_dense(case) * (1 - left_out), "flop")}
        found |= {"sparsity_requested": (100 * (1 - case.topk), "%")} if case.topk is not None else {}
    if case.backward and _setting.device() == "cuda":
        found["memory_before_backward"] = (float(_in_use_before_backward(case, torch.cuda.memory_allocated)), "byte")
    share = _reference.share_checked(case, case.reference, backward=case.backward)
    return found | ({"checked": (100 * share, "%")} if share < 1 else {})


def _in_use_before_backward(case: Case, allocated: Callable[[], int]) -> int:
    """What a forward pass leaves behind: q, k, v, the mask, the output, and what is kept for the backward pass."""
    _wake_cublas()
    before = allocated()
    row = _implementations.IMPLEMENTATIONS[case.impl]
    forward = row.prepare(case)
    given = [row.view(tensor).contiguous().requires_grad_() for tensor in _drawn(case)[:3]]
    out = forward(*given)
    in_use = allocated() - before
    del out  # which kept the graph until now
    return in_use


def _wake_cublas() -> None:
    """Gives cuBLAS the workspace that it keeps from its first call on (32 MiB on an H200): no pass leaves it behind."""
    tiny = torch.zeros(1, 16, 16, device=_setting.device())
    torch.bmm(tiny, tiny)


# --- parameters and inputs -------------------------------------------------------------------------------------------


def _case(params: Mapping[str, Any]) -> Case:
    """The parameters with defaults; ValueError names the wrong one and what is possible."""
    for name in params:
        if name not in PARAMS:
            raise ValueError(f"unknown parameter {name!r}. {did_you_mean(name, PARAMS)}")
    values = {**PARAMS, **params}
    _setting.known("impl", values["impl"], _implementations.IMPLEMENTATIONS)
    _setting.known("inputs", values["inputs"], _inputs.KINDS)
    return Case(**values)


def _drawn(case: Case) -> list[Tensor]:
    """q, k, v and, for the backward pass, the upstream gradient: ``(batch, length, heads, head_dim)``."""
    return _inputs.draw(case, case.inputs, case.seed)


# --- a smaller GPU ---------------------------------------------------------------------------------------------------


def _no_such_cap(case: Case) -> str | None:
    if not case.memory_cap_gib:
        return None
    if _setting.device() == "cpu":
        return "memory_cap_gib limits torch's memory on a GPU, and torch sees none. Use memory_cap_gib: 0."
    total = torch.cuda.mem_get_info()[1] / 2**30
    if case.memory_cap_gib > total:
        return f"memory_cap_gib {case.memory_cap_gib:g} is more than this GPU has. Use 0, or less than {total:.1f}."
    return None


def _cap_memory(gib: float) -> None:
    """Lets torch reserve so much of the GPU's memory and no more, until told otherwise; 0: all there is.

    It counts what the allocator has reserved, as a smaller GPU would run out of it. The CUDA context, some 0.5 GiB, is
    not in it, but is on a real one.
    """
    if _setting.device() == "cuda":
        total = torch.cuda.mem_get_info()[1]
        torch.cuda.set_per_process_memory_fraction(min(1.0, gib * 2**30 / total) if gib else 1.0)


# --- one iteration ---------------------------------------------------------------------------------------------------


def _iteration(case: Case, phase: Callable[[str], AbstractContextManager[object]]) -> Callable[[], tuple[Tensor, ...]]:
    """What one iteration runs, its passes each in a ``phase``. Returns (output, gradients...)."""
    row = _implementations.IMPLEMENTATIONS[case.impl]
    forward = row.prepare(case)
    q, k, v, *upstream = _drawn(case)
    q, k, v = (row.view(tensor).contiguous().requires_grad_(case.backward) for tensor in (q, k, v))

    def forward_only() -> tuple[Tensor, ...]:
        with phase("forward"):
            return (forward(q, k, v),)

    if not case.backward:
        return forward_only

    # Only a call tells the strides of the output. A gradient with others would be copied by cuDNN's backward pass.
    kept = forward(q, k, v)
    out_gradient = torch.empty_like(kept.detach())
    out_gradient.copy_(row.view(upstream.pop()).reshape(out_gradient.shape))

    def backward_only() -> tuple[Tensor, ...]:
        with phase("backward"):
            return (kept, *torch.autograd.grad(kept, (q, k, v), out_gradient, retain_graph=True))

    def forward_and_backward() -> tuple[Tensor, ...]:
        with phase("forward"):
            out = forward(q, k, v)
        with phase("backward"):
            return (out, *torch.autograd.grad(out, (q, k, v), out_gradient))

    return backward_only if case.mode == "bwd" else forward_and_backward


def _produced(case: Case) -> dict[str, Tensor]:
    """The output and gradients of one call as ``(batch, seqlen, heads, head_dim)``."""
    view = _implementations.IMPLEMENTATIONS[case.impl].view
    results = _iteration(case, nullcontext)()
    shapes = (case.q_shape, case.q_shape, case.kv_shape, case.kv_shape)
    return {
        name: view(tensor.detach()).reshape(shape)
        for name, tensor, shape in zip(("out", "dq", "dk", "dv"), results, shapes, strict=False)
    }
