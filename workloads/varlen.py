"""Attention over packed sequences of different lengths, without padding.

``seqlens`` are the lengths of the sequences, ``128,128,64``, or with counts, ``64x128``. A token attends to its own
sequence only (``causal``: to earlier tokens of it). ``qheads`` and ``kvheads`` are separate: with fewer ``kvheads``
each serves a group of query heads (GQA), with one it serves all (MQA).

``impl`` is a row of ``profpipe/workload_lib/varlen.py``. ``api`` is the function of flash-attn: ``func`` and
``qkvpacked`` take a batch of sequences of one length, ``varlen`` and ``varlen_qkvpacked`` the packed sequences with
their offsets; ``qkvpacked`` has q, k and v in one tensor, ``kvpacked`` k and v. Only ``fa2`` has all of them.

Tensors, offsets and masks are made in the layout of the interface before the measured region, so that no copy is
charged to it. The numbers depend on ``seed`` and are the same for every implementation. ``mode`` is ``fwd``,
``fwd_bwd``, or ``bwd`` on a kept graph; the passes are in the ranges ``forward`` and ``backward``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from profpipe.ranges import annotate
from profpipe.workload_lib import accuracy, attention_config, varlen
from profpipe.workload_lib.parameters import add_defaults, check_choice

PARAMS = {
    "impl": "fa2",
    "seqlens": "128,128",
    "qheads": 32,
    "kvheads": 8,  # 0: as many as qheads
    "head_dim": 128,
    "dtype": "bf16",
    "causal": False,
    "api": "varlen",
    "mode": "fwd",
    "seed": 0,
}

#: As in ``attention``.
NEEDS_GPU = {
    "impl": {
        "fa2": "flash_attn",
        "fa3": "flash_attn_interface",
        "fa4": "flash_attn",
        "xformers": "xformers",
        "torch_varlen": "",
        "flex": "",
    }
}


def build(params: Mapping[str, Any]) -> Callable[[], object]:
    """Allocate the inputs on the GPU (else the CPU) and return the callable that runs one iteration.

    Raises ValueError for parameters that are invalid on every machine.
    """
    return varlen.iteration(parse_params(params), annotate)


def flops(params: Mapping[str, Any]) -> float:
    """Return the FLOPs of the two matrix products of a call, without softmax.

    Forward: the sum over the sequences of 4 x query heads x length x visible keys x head_dim; a causal mask leaves
    half the keys visible, as in ``attention``. Backward: 2.5 times the forward.
    """
    config = parse_params(params)
    pairs = sum(length * length for length in config.lengths) / (2 if config.causal else 1)
    return 4 * config.qheads * config.head_dim * pairs * attention_config.FLOPS_FACTOR[config.mode]


def bytes_moved(params: Mapping[str, Any]) -> float:
    """Return the bytes that a call must read and write at least, counted as in ``attention``."""
    config = parse_params(params)
    per_head = config.tokens * config.head_dim * attention_config.DTYPES[config.dtype].itemsize
    of_q, of_kv = config.qheads * per_head, 2 * config.kvheads * per_head
    return attention_config.least_bytes(config.mode, of_q, of_kv, config.qheads * config.tokens)


def facts(params: Mapping[str, Any]) -> dict[str, tuple[float, str]]:
    """Return ``tokens``, the total length, and the number of ``sequences``."""
    config = parse_params(params)
    return {"tokens": (config.tokens, "1"), "sequences": (len(config.lengths), "1")}


def expects(params: Mapping[str, Any]) -> str:
    """Return the kernel family that a trace must contain; ``a|b``: any of them; empty: none."""
    return varlen.expected_family(parse_params(params))


def available(params: Mapping[str, Any]) -> str | None:
    """Return why the case cannot run here and the remedy, or None."""
    return varlen.unavailable_reason(parse_params(params))


def check(params: Mapping[str, Any]) -> dict[str, float]:
    """Return the differences from attention in fp32, sequence by sequence, for the same rounded inputs.

    Five measures (``profpipe/workload_lib/accuracy.py``) for the output and, with a backward pass, for dq, dk and
    dv.
    """
    config = parse_params(params)
    produced = varlen.produced(config)
    differences = {name: accuracy.Difference() for name in produced}
    tensors = varlen.inputs(config)
    with accuracy.full_fp32_precision():
        for rows in config.sequences():
            sequence_tensors = (tensor[rows] for tensor in tensors)
            for name, some, expected in accuracy.reference(config.sequence(rows), *sequence_tensors):
                differences[name].add(produced[name][rows][some], expected)
    return {name: value for tensor, seen in differences.items() for name, value in seen.measures(tensor).items()}


def parse_params(params: Mapping[str, Any]) -> varlen.VarlenConfig:
    """Return the config of ``params`` with defaults. Raises ValueError for a wrong value."""
    values = add_defaults(params, PARAMS)
    check_choice("impl", values["impl"], varlen.IMPLEMENTATIONS)
    return varlen.VarlenConfig(**values)
