"""What a report shows: categories of kernels, values and units of tables, and the items of a step."""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from profpipe import plugins

# --- categories of kernels, as parsers/kernel_classes.yaml declares them ---------------------------------------------

_DOCUMENT: Final[Mapping[str, Any]] = plugins.kernel_classes()

#: Class -> category.
CATEGORY_OF: Final[Mapping[str, str]] = _DOCUMENT["classes"]

#: In reading order.
CATEGORIES: Final[tuple[str, ...]] = tuple(_DOCUMENT["categories"])

#: The classes that are no category of the same name, and that a kernel on the GPU can have.
OTHER_CLASSES: Final = tuple(name for name in CATEGORY_OF if name not in (*CATEGORIES, "memcpy", "memset"))

_LIBRARIES: Final = re.compile(_DOCUMENT["libraries"])

_RULES: Final = [{**rule, "pattern": re.compile(rule.get("pattern", ""))} for rule in _DOCUMENT["category_rules"]]


def category(name: str, kernel_class: str, kind: str) -> str:
    """Return the category of a kernel."""
    for rule in _RULES:
        has_kind = rule.get("kind", kind) == kind and rule.get("class", kernel_class) == kernel_class
        if has_kind and rule["pattern"].search(name):
            return str(rule["category"])
    return CATEGORY_OF.get(kernel_class, "rest")


def is_own(name: str, kind: str) -> bool:
    """Return whether a kernel without a class is of the program itself: on the GPU, and of no library."""
    return kind != "cpu_op" and not _LIBRARIES.search(name)


class Grade(str, Enum):
    """What a value is beside its target."""

    GOOD = "good"
    FAIR = "fair"
    BELOW = "below target"
    POOR = "poor"


# --- the values of tables and plots (`value:`), and the units to show them in (`unit:`) -------------------------------

#: Values of the timed call with their stored units. One profiler measures all of them; profilers are never mixed.
CALL_VALUES: Final[Mapping[str, str]] = {
    "time": "ns", "min": "ns", "p10": "ns", "p90": "ns", "max": "ns", "throughput": "1/s", "tflops": "TFLOP/s",
    "tflops_best": "TFLOP/s", "tflops_effective": "TFLOP/s", "bandwidth": "GB/s", "speedup": "x",
}  # fmt: skip

#: Those of single calls, which no sum of kernels has.
OF_SINGLE_CALLS: Final = ("min", "p10", "p90", "max", "tflops_best")

#: Values of the case. ``METRIC_NAMES`` holds the names of their metrics.
CASE_VALUES: Final[Mapping[str, str]] = {"memory": "byte", "memory_reserved": "byte", "passed": ""}
METRIC_NAMES: Final = {
    "memory": "peak_allocated",
    "memory_reserved": "peak_reserved",
    "p10": "time_p10",
    "p90": "time_p90",
    "min": "time_min",
    "max": "time_max",
}

#: Metrics that the harness writes for all workloads.
METRICS: Final = ("peak_allocated", "peak_reserved", "flops", "bytes_moved", "iterations", "time_cv")

_FIGURES: Final = {"time": "ns", "calls": "calls", "share": "share"}

#: Before a text that stands in the names of kernels: ``kernel:CUDAFunctor_add.calls``.
BY_NAME: Final = "kernel:"

#: Values of kernels, written ``subject.figure``: by subject the stored units of the figures.
KERNEL_VALUES: Final[Mapping[str, Mapping[str, str]]] = {
    **dict.fromkeys((*CATEGORIES, *OTHER_CLASSES), _FIGURES),
    "kernels": {"time": "ns", "calls": "calls"},
    "most_launched": {"name": "kernel", **_FIGURES},
    "range": {"time": "ns", "busy": "ns", "calls": "calls"},
}

#: By stored unit, the units to show it in: name -> number of stored units in it.
UNITS: Final[Mapping[str, Mapping[str, float]]] = {
    "ns": {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9},
    "byte": {
        "byte": 1.0, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "kB": 1e3, "MB": 1e6, "GB": 1e9,
    },
    "byte/s": {"byte/s": 1.0, "GB/s": 1e9, "TB/s": 1e12},
    "flop": {"flop": 1.0, "MFLOP": 1e6, "GFLOP": 1e9, "TFLOP": 1e12},
    "flop/s": {"flop/s": 1.0, "GFLOP/s": 1e9, "TFLOP/s": 1e12},
    "1": {"1": 1.0, "%": 0.01, "thousand": 1e3, "million": 1e6, "billion": 1e9},
}  # fmt: skip


class Source(str, Enum):
    """What a value is measured of."""

    CALL = "call"
    CASE = "case"
    KERNELS = "kernels"
    METRIC = "metric"


@dataclass(frozen=True)
class StudyValue:
    """A value as the pipeline file names it. Of kernels, ``name`` is ``subject.figure``."""

    name: str
    source: Source
    subject: str
    figure: str = ""

    @property
    def unit(self) -> str:
        """The stored unit; empty for text, and for metrics, whose unit is in the tables."""
        if self.source is Source.KERNELS:
            return KERNEL_VALUES.get(self.subject, _FIGURES)[self.figure]
        return {**CALL_VALUES, **CASE_VALUES}.get(self.subject, "")


def parse_value(name: str) -> StudyValue:
    """Return the value that ``name`` stands for. Any other name is that of a metric."""
    subject, _, figure = name.rpartition(".")
    if figure in _FIGURES and subject.removeprefix(BY_NAME) not in ("", subject):
        return StudyValue(name, Source.KERNELS, subject, figure)
    if figure in KERNEL_VALUES.get(subject, {}):
        return StudyValue(name, Source.KERNELS, subject, figure)
    for source, names in ((Source.CALL, CALL_VALUES), (Source.CASE, CASE_VALUES)):
        if name in names:
            return StudyValue(name, source, name)
    return StudyValue(name, Source.METRIC, name.removeprefix("metric."))


def known_names() -> list[str]:
    """Return the names that all studies may use."""
    kernels = [f"{subject}.{figure}" for subject, figures in KERNEL_VALUES.items() for figure in figures]
    return [*CALL_VALUES, *CASE_VALUES, *METRICS, *kernels]


# --- the items, such as tokens or samples, of one step: a number, or arithmetic on the case's parameters --------------

_OPERATORS: Final[Mapping[type[ast.operator], Callable[[float, float], float]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}


def parameters(expression: str) -> list[str]:
    """Return the names in an expression such as ``batch * 1024``. Raises ValueError if it is none."""
    return list(dict.fromkeys(node.id for node in ast.walk(_parse(expression)) if isinstance(node, ast.Name)))


def items_of(expression: float | str | None, params: Mapping[str, Any]) -> float | None:
    """Return the items of a step of the case with ``params``; None without an expression.

    Raises ValueError where a parameter is missing or no number, or where the result is no positive number.
    """
    if expression is None:
        return None
    try:
        value = expression if not isinstance(expression, str) else _value(_parse(expression).body, params)
    except ZeroDivisionError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{expression} is {value:g}, no positive number")
    return float(value)


#: Characters. Python's parser and the evaluation below are recursive: a long expression ends them in a MemoryError or
#: a RecursionError.
_LONGEST = 300


def _parse(expression: str) -> ast.Expression:
    if len(expression) > _LONGEST:
        raise ValueError(f"{expression[:30]!r}... has {len(expression):,} characters, more than {_LONGEST}")
    try:
        # {batch} is how a command names a parameter.
        tree = ast.parse(expression.replace("{", "(").replace("}", ")").strip(), mode="eval")
    except SyntaxError:
        raise ValueError(f"{expression!r} is no number and no arithmetic on parameters") from None
    for node in ast.walk(tree):
        if not isinstance(
            node, (ast.Expression, ast.BinOp, ast.Name, ast.Load, ast.Constant, *_OPERATORS)
        ) or not isinstance(getattr(node, "value", 0), (int, float)):
            raise ValueError(f"{expression!r} may hold numbers, parameters and + - * / // only")
    return tree


def _value(node: ast.expr, params: Mapping[str, Any]) -> float:
    if isinstance(node, ast.BinOp):
        return _OPERATORS[type(node.op)](_value(node.left, params), _value(node.right, params))
    if isinstance(node, ast.Constant):
        return float(node.value)  # type: ignore[arg-type]
    assert isinstance(node, ast.Name)
    value = params.get(node.id)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"the parameter {node.id} is {value!r}, no number")
    return float(value)
