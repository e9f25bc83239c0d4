"""The values that a table or plot of the pipeline file may show (`value:`), and the units to show them in (`unit:`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from profpipe.config.kernel_categories import CATEGORIES, OTHER_CLASSES

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

#: Metrics that the harness writes for every workload.
METRICS: Final = ("peak_allocated", "peak_reserved", "flops", "bytes_moved", "iterations", "time_cv")

_FIGURES: Final = {"time": "ns", "calls": "calls", "share": "share"}

#: Before a text that stands in the names of kernels: ``kernel:CUDAFunctor_add.calls``.
BY_NAME: Final = "kernel:"

#: Values of kernels, written ``subject.figure``: by subject the stored unit of each figure.
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
    """Return the value that ``name`` stands for. A name that is not known is that of a metric."""
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
    """Return the names that every study may use."""
    kernels = [f"{subject}.{figure}" for subject, figures in KERNEL_VALUES.items() for figure in figures]
    return [*CALL_VALUES, *CASE_VALUES, *METRICS, *kernels]
