"""Kernels without a category, by class: together they are often the largest part of a call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from profpipe.analysis.grouping import grouped
from profpipe.analysis.kernel_breakdown import ClassTotal, KernelBreakdown

#: From this share of any call's kernel time on, a class has a row.
_LEAST_SHARE = 0.05

_NAMES: Mapping[str, str] = {"copy": "other copies", "other": "own kernels"}


def classes(splits: Sequence[KernelBreakdown]) -> list[str]:
    """Return the classes without a category that are 5 % of any of these calls, the largest first."""
    shares = grouped((name, part.ns / own.total.ns) for own in splits for name, part in own.other_classes.items())
    kept = (name for name in shares if max(shares[name]) >= _LEAST_SHARE)
    return sorted(kept, key=lambda name: -max(shares[name]))


def named(name: str, kind: str = "kernel") -> str:
    """Return the name of a class in tables; the class of copies holds those that are no direct_copy."""
    return "other operators" if (name, kind) == ("other", "cpu_op") else _NAMES.get(name, name)


def of(split: KernelBreakdown, name: str) -> ClassTotal:
    """Return the kernels of class ``name`` without a category."""
    return split.other_classes.get(name, ClassTotal())


def left(split: KernelBreakdown, names: Sequence[str]) -> ClassTotal:
    """Return the kernels without a category whose class is not in ``names``."""
    own = [part for name, part in split.other_classes.items() if name not in names]
    return ClassTotal(sum(part.calls for part in own), sum(part.ns for part in own))
