"""Self-attention: one call of one implementation.

``impl`` is a row of ``profpipe/workload_lib/implementations.py``. Each implementation gets contiguous tensors in the
layout of its interface, made before the measured region, so that no layout copy is charged to it. The upstream
gradient has the strides of the output, as from the next layer of a model.

``queries`` below ``seqlen`` are the last ones of the sequence and attend to all keys: ``queries: 1`` is a decoding
step. ``inputs`` is ``normal`` (independent normal numbers) or ``local`` (tokens that resemble their neighbours); the
numbers depend on ``seed`` and the shapes only. ``topk``, ``cdfthreshd``, ``simthreshd1`` and ``pvthreshd`` are
SpargeAttn's; other implementations ignore them.

``mode: fwd`` runs the forward pass on tensors without gradients. ``mode: fwd_bwd`` adds ``torch.autograd.grad`` for q,
k and v, which unlike ``out.backward(g)`` runs no kernels to accumulate ``.grad``. ``mode: bwd`` runs only the latter,
on the kept graph of one forward pass. The passes are in the ranges ``forward`` and ``backward``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from profpipe.ranges import annotate
from profpipe.workload_lib import attention, implementations
from profpipe.workload_lib.attention_config import AttentionConfig
from profpipe.workload_lib.parameters import add_defaults

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
    "simthreshd1": None,  # these four: for sparge_fp16 and sparge_fp8; None: the library's default
    "cdfthreshd": None,
    "pvthreshd": None,
    "topk": None,
    "seed": 0,
    "reference": "fp32",  # or fp64, on the CPU
    "memory_cap_gib": 0.0,  # limits torch's GPU memory, to simulate a smaller GPU; 0: no limit
}

#: Values that run on no CPU, with the package that they need too. The estimate of a run reads this without an import.
NEEDS_GPU = {
    "impl": {
        "sdpa_efficient": "",
        "sdpa_cudnn": "",
        "flex": "",
        "fa2": "flash_attn",
        "fa3": "flash_attn_interface",
        "fa4": "flash_attn",
        "sage": "sageattention",
        "sage1": "sageattention",
        "sage2": "sageattention",
        "sparge_fp16": "spas_sage_attn",
        "sparge_fp8": "spas_sage_attn",
        "sta": "fastvideo_kernel",
        "xformers": "xformers",
    }
}


def build(params: Mapping[str, Any]) -> Callable[[], object]:
    """Allocate the inputs on the GPU (else the CPU) and return the callable that runs one iteration.

    Raises ValueError for parameters that are invalid on every machine.
    """
    case = parse_params(params)
    attention.cap_memory(case.memory_cap_gib)
    return attention.iteration(case, annotate)


def flops(params: Mapping[str, Any]) -> float | dict[str, float]:
    """Return the operations of the two matrix products of a call, without softmax and quantisation.

    Forward: 4 x batch x query heads x queries x visible keys x head_dim. With a causal mask the mean number of visible
    keys is that of FlashAttention 3's benchmark: (max(0, Sk - Sq) + Sk) / 2, half the sequence for Sq = Sk; the exact
    count is half a key more. Backward: 2.5 times the forward, with the recomputed scores. For sparse implementations
    this is the dense work; ``facts`` has the effective work. SageAttention and SpargeAttn compute QK in int8 and PV in
    fp16 or fp8, half of the work each, and SDPA's math backend computes in fp32: their work is given by data type, and
    is compared with the peak rates of those types.
    """
    case = parse_params(params)
    return implementations.flops_by_dtype(case, attention.dense_flops(case))


def bytes_moved(params: Mapping[str, Any]) -> float:
    """Return the bytes that a call must read and write at least, every tensor once; k and v by their own heads.

    Forward: reads q, k, v and writes out. Backward: reads q, k, v, out, its gradient and the log-sum-exp (fp32, one
    per query row, written by the forward pass), and writes the three gradients.
    """
    return attention.bytes_moved(parse_params(params))


def expects(params: Mapping[str, Any]) -> str:
    """Return the kernel family that a trace must contain; ``a|b``: any of them; empty: none."""
    return implementations.expected_family(parse_params(params))


def available(params: Mapping[str, Any]) -> str | None:
    """Return why the case cannot run here and the remedy, or None."""
    case = parse_params(params)
    return attention.impossible_cap(case) or implementations.unavailable_reason(case)


def check(params: Mapping[str, Any]) -> dict[str, float]:
    """Return the differences from attention in fp32, or on the CPU in fp64, for the same rounded inputs.

    Five measures (``profpipe/workload_lib/accuracy.py``) for the output and, with a backward pass, for dq, dk and
    dv; a NaN gives their worst values. ``facts`` has the share of the tensors that is compared.
    """
    return attention.differences(parse_params(params))


def facts(params: Mapping[str, Any]) -> dict[str, tuple[float, str]]:
    """Return other numbers of the case.

    ``sparsity``: the share of QK that a sparse implementation skips for these inputs, by its own count;
    ``sparsity_requested``: the share that ``topk`` requests; ``flops_effective``: the remaining part of ``flops``.
    ``checked``: the share of the tensors that is compared with the reference, if not all. ``memory_before_backward``:
    the bytes of GPU memory in use between the two passes.
    """
    return attention.facts(parse_params(params))


def parse_params(params: Mapping[str, Any]) -> AttentionConfig:
    """Return the case of ``params`` with defaults. Raises ValueError for a wrong value."""
    return attention.case_from(add_defaults(params, PARAMS))
