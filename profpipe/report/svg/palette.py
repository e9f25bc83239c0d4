"""Classes of the style sheet by the key of a series: the colours, light and dark, in chart.css."""

from __future__ import annotations

from collections.abc import Mapping

from profpipe.report import document as doc
from profpipe.report.markup import anchor

#: Colours of lines in chart.css: ``s0`` to ``s7``. More lines than colours have another stroke.
COLOURS = 8
MARKERS = ("circle", "square", "triangle", "diamond", "down", "plus", "cross")

#: Verdicts, whose colours chart.css names, and their markers.
VERDICTS = {"slower": "circle", "faster": "square", "inconclusive": "diamond", "same": "triangle"}

#: Kernel classes and parts of a step whose colours chart.css names: ``k-gemm``.
KEYS = frozenset((
    "attention", "helpers", "attention_aux", "direct_copy", "add", "gemm", "sparse", "softmax", "copy",
    "elementwise", "reduction", "norm", "optimizer", "conv", "communication", "fused", "graph", "index", "random",
    "memcpy", "memset", "step_communication", "step_copy", "step_idle_launch", "step_idle_blocked", "step_idle_other",
    "host", "rest",
))  # fmt: skip


def key_class(key: str) -> str:
    """Return the class of a kernel class or of a part of a step."""
    return f"k-{anchor(key)}" if key in KEYS else "k-rest"


def series_class(series: doc.Series, colour: str) -> str:
    """Return the classes of the element of a series."""
    return f"series {colour}{' rejected' if series.is_rejected else ''}"


def line_classes(chart: doc.Chart) -> Mapping[str, tuple[str, str]]:
    """Return the class and the marker of each series by its key. The baseline has the colour of the text."""
    every = chart.series
    if chart.kind is doc.ChartKind.FOREST:
        return {key: (f"v-{key}", VERDICTS[key]) if key in VERDICTS else ("s-base", "circle")
                for key in (series.key for series in every)}  # fmt: skip
    baselines = {series.key for series in every if series.is_baseline}
    found = dict.fromkeys(baselines, ("s-base", "circle"))
    for i, key in enumerate(key for key in chart.every_key if key not in baselines):
        turn = i // COLOURS
        found[key] = f"s{i % COLOURS}{f' t{min(turn, 2)}' if turn else ''}", MARKERS[(i + turn + 1) % len(MARKERS)]
    return found
