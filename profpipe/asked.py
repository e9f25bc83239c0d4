"""What a table of a study may ask for: the words under `value` in the pipeline file, and the units to show them in.

Both the check of a pipeline file and the analysis read them here, so this module knows neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

#: Of the timed call, each with its unit: these come from one profiler's times and are never mixed with another's.
OF_CALLS: Final[Mapping[str, str]] = {
    "time": "ns", "p10": "ns", "p90": "ns", "throughput": "1/s", "tflops": "TFLOP/s", "bandwidth": "GB/s",
    "speedup": "x", "tflops_effective": "TFLOP/s",
}  # fmt: skip

#: Of the case, by shorter names than those of the metrics.
OF_CASES: Final[Mapping[str, str]] = {"memory": "byte", "memory_reserved": "byte", "passed": ""}
METRIC_OF: Final = {
    "memory": "peak_allocated",
    "memory_reserved": "peak_reserved",
    "p10": "time_p10",
    "p90": "time_p90",
}

#: Numbers that the harness and every workload with a reference write.
METRICS: Final = ("peak_allocated", "peak_reserved", "flops", "bytes_moved", "iterations", "time_cv")

#: What kernels do. Those of the first line are parts of a call as the report shows them, the others classes.
PARTS: Final = ("attention", "helpers", "direct_copy", "add", "gemm", "softmax", "rest", "graph")
CLASSES: Final = (
    "attention_aux", "conv", "norm", "reduction", "copy", "elementwise", "index", "random", "optimizer",
    "communication", "fused", "other",
)  # fmt: skip

_FIGURES: Final = {"time": "ns", "calls": "calls", "share": "share"}

#: Of the kernels that ran, as one profiler saw them: what they are called before the dot, and what may follow it.
OF_KERNELS: Final[Mapping[str, Mapping[str, str]]] = {
    **dict.fromkeys((*PARTS, *CLASSES), _FIGURES),
    "kernels": {"time": "ns", "calls": "calls"},
    "most_launched": {"name": "kernel", **_FIGURES},
    "range": {"time": "ns", "busy": "ns", "calls": "calls"},
}

#: Names of units by the unit that is stored, each with how many of the stored one it is.
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


@dataclass(frozen=True)
class Asked:
    """One word under `value`. ``of``: ``call``, ``case``, ``kernels`` or ``metric``; ``figure`` follows the dot."""

    word: str
    of: str
    subject: str
    figure: str = ""

    @property
    def unit(self) -> str:
        """The unit that it is stored in; empty where only the tables know, or where it is text."""
        if self.of == "kernels":
            return OF_KERNELS[self.subject][self.figure]
        return OF_CALLS.get(self.subject, OF_CASES.get(self.subject, ""))


def asked(word: str) -> Asked:
    """What ``word`` asks for; whatever has no meaning of its own is the name of a metric."""
    subject, _, figure = word.partition(".")
    if figure in OF_KERNELS.get(subject, {}):
        return Asked(word, "kernels", subject, figure)
    if word in OF_CALLS:
        return Asked(word, "call", word)
    if word in OF_CASES:
        return Asked(word, "case", word)
    return Asked(word, "metric", word.removeprefix("metric."))


def words() -> list[str]:
    """Every word that means something in every study."""
    kernels = [f"{subject}.{figure}" for subject, figures in OF_KERNELS.items() for figure in figures]
    return [*OF_CALLS, *OF_CASES, *METRICS, *kernels]
