"""Attention over several GPUs: one call, its sequence sharded over the processes of ``processes: N``.

``method`` is one of PyTorch's two rings, heads by DTensor, or ``single`` (``profpipe/workload_lib/parallel.py``).
``backend`` is the kernel of ``scaled_dot_product_attention`` in each process: flash, efficient or cudnn.
``load_balance`` shards a causal sequence so that the processes of a ring have equal work; without it the last process
has 2N - 1 times the work of the first. Every process draws all inputs and keeps its shard. ``mode: fwd_bwd`` adds
``torch.autograd.grad`` for q, k and v. The passes are in the ranges ``forward`` and ``backward``.

FLOPs and bytes are those of one device; ``flops_all`` is the sum over all devices, ``bytes_received`` what one device
receives from the others. Peak memory is that of torch's allocator, without the buffers of NCCL.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from profpipe.ranges import annotate
from profpipe.workload_lib import accuracy, attention, attention_config, implementations, parallel
from profpipe.workload_lib.parameters import add_defaults, check_bool, check_choice

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
class ContextParallelConfig(attention_config.AttentionConfig):
    """The checked parameters of one case. ``impl`` is the backend as an implementation of attention."""

    method: str
    load_balance: bool

    @property
    def is_parallel(self) -> bool:
        return self.method != "single"

    @property
    def devices(self) -> int:
        """The number of devices that share the work of one call."""
        return parallel.world() if self.is_parallel else 1

    @property
    def elements(self) -> int:
        """Elements of q, k, v, the output and each gradient."""
        return self.batch * self.heads * self.seqlen * self.head_dim

    def shards(self, *tensors: Tensor) -> list[Tensor]:
        return parallel.shards(tensors, self.method, causal=self.causal, load_balance=self.load_balance)


def build(params: Mapping[str, Any]) -> Callable[[], object]:
    """Allocate the shards of this process and return the callable that runs one iteration in all processes.

    Sends nothing, so that no process waits for one that runs out of memory here.
    """
    case = parse_params(params)
    return iteration(case, parallel.prepare(case.method, case), case.shards(*draw_inputs(case)), annotate)


def flops(params: Mapping[str, Any]) -> float:
    """Return the FLOPs of one device, the mean where they differ; counted as in the workload ``attention``."""
    case = parse_params(params)
    return attention.dense_flops(case) / case.devices


def bytes_moved(params: Mapping[str, Any]) -> float:
    """Return the bytes that one device must read and write in its own memory at least.

    Its shards of q and out (with ``heads`` also of k and v), and all keys and values, which a ring sends to every
    device. With a backward pass: these again, the log-sum-exp twice (fp32, one per query row), the gradients of out
    and q, and those of all keys and values.
    """
    case = parse_params(params)
    element, parts = attention_config.DTYPES[case.dtype].itemsize, case.devices
    of_q = case.elements * element / parts
    of_kv = 2 * case.elements * element / (parts if case.method == "heads" else 1)
    return attention_config.least_bytes(case.mode, of_q, of_kv, case.batch * case.heads * case.seqlen / parts)


def facts(params: Mapping[str, Any]) -> dict[str, tuple[float, str]]:
    """Return ``flops_all`` (all devices) and ``bytes_received`` (by one device from the others, in one call)."""
    case = parse_params(params)
    return {"flops_all": (attention.dense_flops(case), "flop"), "bytes_received": (_bytes_received(case), "byte")}


def expects(params: Mapping[str, Any]) -> str:
    """Return the kernel family that a trace must contain; ``a|b``: any of them; empty: none."""
    return implementations.expected_family(parse_params(params))


def available(params: Mapping[str, Any]) -> str | None:
    """Return why the case cannot run here and the remedy, or None; for this process only."""
    case = parse_params(params)
    return _missing_processes(case) or _indivisible(case) or implementations.unavailable_reason(case)


def check(params: Mapping[str, Any]) -> dict[str, float]:
    """Compare the shards of output and gradients with those of scaled_dot_product_attention on one device.

    The reference has the same backend, dtype and inputs, so differences come from the parallelism: the order of sums,
    and the merge of partial results in a ring.
    """
    case = parse_params(params)
    shards = case.shards(*draw_inputs(case))
    produced = iteration(case, parallel.prepare(case.method, case), shards, nullcontext)()
    del shards
    expected = iteration(case, parallel.prepare("single", case), draw_inputs(case), nullcontext)()
    measures: dict[str, float] = {}
    for name, got, whole in zip(NAMES, produced, expected, strict=False):
        difference = accuracy.Difference()
        difference.add(got.detach(), case.shards(whole.detach())[0])
        measures |= difference.measures(name)
    return measures


def parse_params(params: Mapping[str, Any]) -> ContextParallelConfig:
    """Return the case of ``params`` with defaults. Raises ValueError for a wrong value."""
    values = add_defaults(params, PARAMS)
    check_choice("method", values["method"], parallel.METHODS)
    check_choice("mode", values["mode"], MODES)
    backend = values.pop("backend")
    check_choice("backend", backend, BACKENDS)
    check_bool(values, "load_balance")
    return ContextParallelConfig(impl=f"sdpa_{backend}", **values)


def draw_inputs(case: ContextParallelConfig) -> list[Tensor]:
    """Draw the whole q, k, v and, for the backward pass, the upstream gradient; the same in every process.

    The gradient has the strides of the output, ``(batch, seqlen, heads, head_dim)`` in memory: cuDNN's backward pass
    would copy a gradient with other strides.
    """
    shape = (case.batch, case.heads, case.seqlen, case.head_dim)
    q, k, v, *upstream = attention_config.normal([shape] * 3 + [case.q_shape] * case.needs_grad, case.dtype, case.seed)
    return [q, k, v, *(gradient.transpose(1, 2) for gradient in upstream)]


def iteration(
    case: ContextParallelConfig, forward: parallel.Forward, tensors: list[Tensor], phase: attention_config.Phase
) -> Callable[[], tuple[Tensor, ...]]:
    """Return one iteration, with each pass in a ``phase``; it returns (output, gradients of q, k, v)."""
    arguments = [tensor.requires_grad_(case.needs_grad) for tensor in tensors[:3]]
    return attention_config.iteration(forward, arguments, case.mode, tensors[3:], phase)


def _bytes_received(case: ContextParallelConfig) -> float:
    """Return the bytes received by one device, as in the sources of torch 2.11 and 2.13.

    A ring sends all keys and values, once more in the backward pass, and passes the sums of their gradients on N
    times, in fp32. With ``heads``, each of q, k, v and out, and of their gradients, keeps 1/N of a shard.
    """
    parts, element = case.devices, attention_config.DTYPES[case.dtype].itemsize
    if parts == 1:
        return 0.0
    of_others = (parts - 1) / parts
    if case.method == "heads":
        tensors = 8 if case.needs_grad else 4
        return tensors * case.elements * element / parts * of_others
    keys_and_values = 2 * case.elements * element * of_others
    return keys_and_values * 2 + 2 * case.elements * 4 if case.needs_grad else keys_and_values


def _missing_processes(case: ContextParallelConfig) -> str | None:
    if not case.is_parallel:
        return None
    if parallel.world() == 1:
        return f"{case.method} needs at least two processes. Set processes: 2 in the workload, or use method: single."
    return parallel.missing_context_parallel() if case.method in parallel.RINGS else None


def _indivisible(case: ContextParallelConfig) -> str | None:
    parts = case.devices
    even = case.method in parallel.RINGS and parallel.is_balanced(case.causal, case.load_balance)
    if case.seqlen % (chunks := 2 * parts if even else parts):
        return f"a seqlen of {case.seqlen} cannot be parted into {chunks} equal chunks. Use a multiple of {chunks}."
    if case.method == "heads" and case.heads % parts:
        return f"{case.heads} heads cannot be parted among {parts} processes. Use a multiple of {parts}."
    return None
