"""Attention over several GPUs: one call, its sequence parted among the processes of ``processes: N``.

``method`` is one of PyTorch's two rings, heads by DTensor, or ``single`` (see ``_parallel.py``, which also says what of
them a CPU runs), ``backend`` the kernel of ``scaled_dot_product_attention`` that each process calls: flash, efficient
or cudnn. ``load_balance`` deals a causal sequence out so that the processes of a ring have equal work; without it the
last has 2N - 1 times that of the first. It means nothing to the other methods, and without ``causal``.

The inputs follow from ``seed`` alone: every process draws the whole of them and keeps its shard. ``mode: fwd_bwd`` adds
``torch.autograd.grad`` for q, k and v. The passes stand in the ranges ``forward`` and ``backward``.

Work and memory traffic are those of one device, so that TFLOP/s stand beside what one device can do; ``flops_all`` is
what all of them do together. A ring without load balance gives each device the mean. ``bytes_received`` is what one
device gets from the others. Peak memory is that of torch's allocator; NCCL holds buffers of its own beside it.
"""

from __future__ import annotations

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
    import _errors
    import _implementations
    import _parallel
    import _setting
else:
    _errors = load.module(Path(__file__).with_name("_errors.py"))
    _implementations = load.module(Path(__file__).with_name("_implementations.py"))
    _parallel = load.module(Path(__file__).with_name("_parallel.py"))
    _setting = load.module(Path(__file__).with_name("_setting.py"))

PARAMS = {
    "method": "ring_allgather",
    "backend": "flash",
    "batch": 1,
    "seqlen": 16384,
    "heads": 16,
    "head_dim": 128,
    "dtype": "bf16",
    "causal": True,
    "load_balance": True,
    "mode": "fwd",
    "seed": 0,
}

BACKENDS = ("flash", "efficient", "cudnn")
MODES = ("fwd", "fwd_bwd")
NAMES = ("out", "dq", "dk", "dv")


@dataclass(frozen=True, kw_only=True)
class Case(_setting.Setting):
    """The parameters of one case, checked. ``impl`` is the backend's name among the implementations of attention."""

    method: str
    load_balance: bool
    seed: int

    @property
    def parallel(self) -> bool:
        return self.method != "single"

    @property
    def devices(self) -> int:
        """Among how many the work of one call is parted."""
        return _parallel.world() if self.parallel else 1

    @property
    def of_q(self) -> int:
        """Elements of q, which k, v, the output and the gradients have too."""
        return self.batch * self.heads * self.seqlen * self.head_dim

    def shards(self, *tensors: Tensor) -> list[Tensor]:
        return _parallel.shards(tensors, self.method, causal=self.causal, load_balance=self.load_balance)


# --- what profpipe asks of a workload --------------------------------------------------------------------------------


def build(params: Mapping[str, Any]) -> Callable[[], object]:
    """Allocates this process's shards and returns what one iteration runs, together with the other processes'.

    Sends nothing, so that a process that runs out of memory here leaves none of the others waiting.
    """
    case = _case(params)
    return _iteration(case, _parallel.prepare(case.method, case), case.shards(*_inputs(case)), annotate)


def flops(params: Mapping[str, Any]) -> float:
    """Floating-point operations of one device, the mean where they differ; counted as in the workload ``attention``."""
    case = _case(params)
    return _flops_all(case) / case.devices


def bytes_moved(params: Mapping[str, Any]) -> float:
    """Bytes that one device must at least move to and from its own memory.

    Its shards of q and out (by ``heads``: all four), and every key and value, which a ring brings to every device. With
    a backward pass: these again, the log-sum-exp twice (fp32, one a query row), the gradients of out and q and, of all
    keys and values, those of k and v.
    """
    case = _case(params)
    element, parts = _setting.DTYPES[case.dtype].itemsize, case.devices
    of_q = case.of_q * element / parts
    of_kv = 2 * case.of_q * element / (parts if case.method == "heads" else 1)
    forward = 2 * of_q + of_kv
    if not case.backward:
        return forward
    log_sum_exp = 4 * case.batch * case.heads * case.seqlen / parts
    return (forward + log_sum_exp) + (4 * of_q + 2 * of_kv + log_sum_exp)


def facts(params: Mapping[str, Any]) -> dict[str, tuple[float, str]]:
    """``flops_all``: of all devices together. ``bytes_received``: by one device from the others, in one call."""
    case = _case(params)
    return {"flops_all": (_flops_all(case), "flop"), "bytes_received": (_bytes_received(case), "byte")}


def expects(params: Mapping[str, Any]) -> str:
    """The kernel family that must be found in a trace; ``a|b``: any of them; empty: none is expected."""
    return _implementations.expected_family(_case(params))


def available(params: Mapping[str, Any]) -> str | None:
    """Why this case cannot run here and what to do about it, or None. Looks at this process only."""
    case = _case(params)
    return _not_parallel(case) or _not_divisible(case) or _implementations.unavailable(case)


def check(params: Mapping[str, Any]) -> dict[str, float]:
    """This process's shards of the output and gradients against those of one device's scaled_dot_product_attention.

    The reference has the same backend, dtype and inputs, so what remains is what the parallelism does: the order of
    sums, and the ring's merging of partial results.
    """
    case = _case(params)
    shards = case.shards(*_inputs(case))
    produced = _iteration(case, _parallel.prepare(case.method, case), shards, nullcontext)()
    del shards
    expected = _iteration(case, _parallel.prepare("single", case), _inputs(case), nullcontext)()
    found: dict[str, float] = {}
    for name, got, whole in zip(NAMES, produced, expected, strict=False):
        difference = _errors.Difference()
        difference.add(got.detach(), case.shards(whole.detach())[0])
        found |= difference.measures(name)
    return found


# --- parameters and inputs -------------------------------------------------------------------------------------------


def _case(params: Mapping[str, Any]) -> Case:
    """The parameters with defaults; ValueError names the wrong one and what is possible."""
    for name in params:
        if name not in PARAMS:
            raise ValueError(f"unknown parameter {name!r}. {did_you_mean(name, PARAMS)}")
    values = {**PARAMS, **params}
    _setting.known("method", values["method"], _parallel.METHODS)
    _setting.known("mode", values["mode"], MODES)
    backend = values.pop("backend")
    _setting.known("backend", backend, BACKENDS)
    if type(values["load_balance"]) is not bool:
        raise ValueError(f"load_balance must be true or false, not {values['load_balance']!r}")
    return Case(impl=f"sdpa_{backend}", **values)


def _inputs(case: Case) -> list[Tensor]:
    """q, k, v and, for the backward pass, the gradient of the output, whole; the same numbers in every process.

    The gradient has the strides that the backends give the output, ``(batch, seqlen, heads, head_dim)`` in memory: with
    others cuDNN's backward pass would copy it.
    """
    device = _setting.device()
    generator = torch.Generator(device).manual_seed(case.seed)
    options: dict[str, Any] = {"generator": generator, "device": device, "dtype": _setting.DTYPES[case.dtype]}
    shape = (case.batch, case.heads, case.seqlen, case.head_dim)
    tensors = [torch.randn(shape, **options) for _ in range(3)]
    if case.backward:
        tensors.append(torch.randn(case.q_shape, **options).transpose(1, 2))
    return tensors


def _iteration(
    case: Case,
    forward: _parallel.Forward,
    tensors: list[Tensor],
    phase: Callable[[str], AbstractContextManager[object]],
) -> Callable[[], tuple[Tensor, ...]]:
    """What one iteration runs, its two passes each in a ``phase``: (output, gradients of q, k, v)."""
    inputs = [tensor.requires_grad_(case.backward) for tensor in tensors[:3]]

    def forward_only() -> tuple[Tensor, ...]:
        with phase("forward"):
            return (forward(*inputs),)

    def forward_and_backward() -> tuple[Tensor, ...]:
        with phase("forward"):
            out = forward(*inputs)
        with phase("backward"):
            return (out, *torch.autograd.grad(out, inputs, tensors[3]))

    return forward_and_backward if case.backward else forward_only


# --- numbers ---------------------------------------------------------------------------------------------------------


def _flops_all(case: Case) -> float:
    visible_keys = case.seqlen / 2 if case.causal else case.seqlen
    forward = 4 * case.batch * case.heads * case.seqlen * visible_keys * case.head_dim
    return forward * (3.5 if case.backward else 1)


def _bytes_received(case: Case) -> float:
    """As the sources of torch 2.11 and 2.13 send them.

    A ring brings the keys and values of the others, in the backward pass once more, and passes the sums of their
    gradients on N times, in fp32. By ``heads`` each of q, k, v and out, and of their gradients, keeps 1/N of a shard.
    """
    parts, element = case.devices, _setting.DTYPES[case.dtype].itemsize
    if parts == 1:
        return 0.0
    of_others = (parts - 1) / parts
    if case.method == "heads":
        tensors = 8 if case.backward else 4
        return tensors * case.of_q * element / parts * of_others
    keys_and_values = 2 * case.of_q * element * of_others
    return keys_and_values * 2 + 2 * case.of_q * 4 if case.backward else keys_and_values


# --- why a case cannot run here --------------------------------------------------------------------------------------


def _not_parallel(case: Case) -> str | None:
    if not case.parallel:
        return None
    if _parallel.world() == 1:
        return f"{case.method} needs at least two processes. Set processes: 2 in the workload, or use method: single."
    return _parallel.missing() if case.method in _parallel.RINGS else None


def _not_divisible(case: Case) -> str | None:
    parts = case.devices
    even = case.method in _parallel.RINGS and _parallel.balanced(case.causal, case.load_balance)
    if case.seqlen % (chunks := 2 * parts if even else parts):
        return f"a seqlen of {case.seqlen} cannot be parted into {chunks} equal chunks. Use a multiple of {chunks}."
    if case.method == "heads" and case.heads % parts:
        return f"{case.heads} heads cannot be parted among {parts} processes. Use a multiple of {parts}."
    return None
