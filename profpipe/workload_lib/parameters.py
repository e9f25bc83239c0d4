"""Checks the parameters of a case. Each error names the parameter and the possible values."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from profpipe.errors import did_you_mean


def add_defaults(params: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``defaults`` updated by ``params``. Raises ValueError for an unknown parameter."""
    for name in params:
        if name not in defaults:
            raise ValueError(f"unknown parameter {name!r}. {did_you_mean(name, defaults)}")
    return {**defaults, **params}


def check_choice(name: str, value: object, choices: Collection[str]) -> None:
    """Raise ValueError if ``value`` is not one of ``choices``."""
    if value not in choices:
        raise ValueError(f"unknown {name} {value!r}. {did_you_mean(str(value), choices)}")


def check_positive(values: Mapping[str, Any], names: Iterable[str]) -> None:
    """Raise ValueError if one of the values is not a positive int."""
    for name in names:
        if type(values[name]) is not int or values[name] < 1:
            raise ValueError(f"{name} must be a whole number of at least 1, not {values[name]!r}")


def check_bool(values: Mapping[str, Any], *names: str) -> None:
    """Raise ValueError if one of the values is not a bool."""
    for name in names:
        if type(values[name]) is not bool:
            raise ValueError(f"{name} must be true or false, not {values[name]!r}")
