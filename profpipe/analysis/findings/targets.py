"""How the cases of a workload compare with the targets of the pipeline file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class Grade(str, Enum):
    """What a value is beside its target."""

    GOOD = "good"
    FAIR = "fair"
    POOR = "poor"


@dataclass(frozen=True)
class Target:
    """From ``good`` on a value is good, below ``poor`` it is poor; without ``poor`` none is."""

    good: float
    poor: float | None = None

    def judge(self, value: float) -> Grade:
        """Return the grade of ``value``, which has the unit of the target."""
        if value >= self.good:
            return Grade.GOOD
        return Grade.POOR if self.poor is not None and value < self.poor else Grade.FAIR


@dataclass(frozen=True)
class TargetFindings:
    """The targets of a workload by quantity, and what its cases reach: case -> quantity -> value.

    Quantities: ``tflops`` in TFLOP/s; ``gpu_busy``, ``memory_bandwidth`` and ``sm`` in %; ``speedup`` as a ratio. A
    quantity that was not measured of a case is missing.
    """

    targets: Mapping[str, Target] = field(default_factory=dict)
    values: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def grade(self, case: str, quantity: str) -> Grade | None:
        """Return the grade of a case; None without a target or a value."""
        target, value = self.targets.get(quantity), self.values.get(case, {}).get(quantity)
        return None if target is None or value is None else target.judge(value)

    def grades(self, case: str) -> dict[str, Grade]:
        """Return the grades of a case by quantity."""
        found = {quantity: self.grade(case, quantity) for quantity in self.targets}
        return {quantity: grade for quantity, grade in found.items() if grade is not None}
