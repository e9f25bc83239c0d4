"""Add the same small number many times: what the precision of the sum and of the terms costs.

``sum`` is the dtype of the running sum, ``term`` that of what is added. Mixed precision keeps the sum in fp32 and has
terms in fp16 or bf16. ``value`` is rounded to ``term`` once, ``count`` times it is added.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from profpipe.workload_lib import accuracy
from profpipe.workload_lib.attention_config import DTYPES, device
from profpipe.workload_lib.parameters import add_defaults, check_choice, check_positive

PARAMS = {"sum": "fp32", "term": "fp32", "value": 0.01, "count": 1000}


def build(params: Mapping[str, Any]) -> Callable[[], Tensor]:
    """Return the callable that makes the sum, one addition after the other, on the GPU (else the CPU)."""
    values = parse_params(params)
    term = torch.tensor(values["value"], dtype=DTYPES[values["term"]], device=device())

    def add() -> Tensor:
        total = torch.zeros((), dtype=DTYPES[values["sum"]], device=device())
        for _ in range(values["count"]):
            total += term
        return total

    return add


def facts(params: Mapping[str, Any]) -> dict[str, tuple[float, str]]:
    """Return the sum."""
    return {"total": (build(params)().item(), "1")}


def check(params: Mapping[str, Any]) -> dict[str, float]:
    """Return the difference of the sum from ``count`` times ``value``."""
    values = parse_params(params)
    difference = accuracy.Difference()
    difference.add(build(params)().reshape(1), torch.tensor([values["count"] * values["value"]], dtype=torch.float64))
    return difference.measures()


def parse_params(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``params`` with defaults. Raises ValueError for a wrong value."""
    values = add_defaults(params, PARAMS)
    check_choice("sum", values["sum"], DTYPES)
    check_choice("term", values["term"], DTYPES)
    check_positive(values, ("count",))
    return values
