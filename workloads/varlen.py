"""Attention over a group of sequences of different lengths, packed one behind the other without padding.

``seqlens`` are the lengths of the group's sequences, ``128,128,64``; a count says equal ones shorter, ``64x128``. A
token attends to its own sequence only (``causal``: to what stands before it there). ``qheads`` and ``kvheads`` are
apart: with fewer of the latter, each serves a group of query heads (GQA), one serves all (MQA).

``impl`` names a row of the table in ``_varlen.py``, ``api`` the form of flash-attn's interface: ``func`` and
``qkvpacked`` take a batch of sequences of one length, ``varlen`` and ``varlen_qkvpacked`` the packed group with the
sequences' offsets; ``qkvpacked`` has q, k and v in one tensor, ``kvpacked`` k and v. Only ``fa2`` has them all.

Tensors are made in the layout of the interface before the measured region, the offsets and masks with them, so that no
copy is charged to it. The numbers follow from ``seed`` and are the same for every implementation. ``mode`` is ``fwd``,
``fwd_bwd``, or ``bwd`` over a graph that is kept; the passes stand in the ranges ``forward`` and ``backward``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from profpipe import load
from profpipe.errors import did_you_mean
from profpipe.ranges import annotate

if TYPE_CHECKING:
    import _errors
    import _group
    import _reference
    import _setting
    import _varlen
else:
    _errors = load.module(Path(__file__).with_name("_errors.py"))
    _group = load.module(Path(__file__).with_name("_group.py"))
    _reference = load.module(Path(__file__).with_name("_reference.py"))
    _setting = load.module(Path(__file__).with_name("_setting.py"))
    _varlen = load.module(Path(__file__).with_name("_varlen.py"))

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


def build(params: Mapping[str, Any]) -> Callable[[], object]:
    """Allocates the inputs on the GPU (else the CPU) and returns what one iteration runs.

    Raises ValueError for parameters that make no sense on any machine.
    """
    return _varlen.iteration(_read(params), annotate)


def flops(params: Mapping[str, Any]) -> float:
    """Floating-point operations of the two matrix products of a call; softmax is not counted.

    Forward: the sum over the sequences of 4 x query heads x length x visible keys x head_dim, where a causal mask
    leaves half the keys visible, as ``attention`` counts it. Backward: 2.5 times the forward.
    """
    group = _read(params)
    pairs = sum(length * length for length in group.lengths) / (2 if group.causal else 1)
    return 4 * group.qheads * group.head_dim * pairs * {"fwd": 1, "bwd": 2.5, "fwd_bwd": 3.5}[group.mode]


def bytes_moved(params: Mapping[str, Any]) -> int:
    """Bytes that a call must move to and from memory at least, every tensor once; keys and values by their own heads.

    Forward: reads q, k, v and writes out. Backward: reads q, k, v, out, its gradient and the log-sum-exp (fp32, one a
    query row, written by the forward pass), and writes the three gradients.
    """
    group = _read(params)
    a_head = group.tokens * group.head_dim * _setting.DTYPES[group.dtype].itemsize
    of_q, of_kv = group.qheads * a_head, 2 * group.kvheads * a_head
    log_sum_exp = 4 * group.qheads * group.tokens if group.backward else 0
    forward, backward = 2 * of_q + of_kv + log_sum_exp, 4 * of_q + 2 * of_kv + log_sum_exp
    return {"fwd": forward, "bwd": backward, "fwd_bwd": forward + backward}[group.mode]


def facts(params: Mapping[str, Any]) -> dict[str, tuple[float, str]]:
    """``tokens``, the total length of the group, and how many ``sequences`` it has."""
    group = _read(params)
    return {"tokens": (group.tokens, "1"), "sequences": (len(group.lengths), "1")}


def expects(params: Mapping[str, Any]) -> str:
    """The kernel family that must be found in a trace; ``a|b``: any of them; empty: none is expected."""
    return _varlen.expected_family(_read(params))


def available(params: Mapping[str, Any]) -> str | None:
    """Why this case cannot run here and what to do about it, or None."""
    return _varlen.unavailable(_read(params))


def check(params: Mapping[str, Any]) -> dict[str, float]:
    """Differences from attention computed in fp32, sequence by sequence, from the same rounded inputs.

    The five measures of ``_errors.py`` for the output and, with a backward pass, for dq, dk and dv.
    """
    group = _read(params)
    produced = _varlen.produced(group)
    differences = {name: _errors.Difference() for name in produced}
    tensors = _varlen.inputs(group)
    with _reference.full_fp32_precision():
        for rows in group.sequences():
            own = (tensor[rows] for tensor in tensors)
            for name, some, expected in _reference.reference(group.sequence(rows), *own):
                differences[name].add(produced[name][rows][some], expected)
    return {name: value for tensor, seen in differences.items() for name, value in seen.measures(tensor).items()}


def _read(params: Mapping[str, Any]) -> _group.Group:
    """The parameters with defaults; ValueError names the wrong one and what is possible."""
    for name in params:
        if name not in PARAMS:
            raise ValueError(f"unknown parameter {name!r}. {did_you_mean(name, PARAMS)}")
    values = {**PARAMS, **params}
    _setting.known("impl", values["impl"], _varlen.IMPLEMENTATIONS)
    return _group.Group(**values)
