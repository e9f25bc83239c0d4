"""Where the time of a call goes, as stacked bars: one an implementation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from profpipe.findings import Point, Shape, WorkloadFindings
from profpipe.page.canvas import INK, RC, Plot, figure_of, fixed, head, path_of, save
from profpipe.page.quantities import Unit, number, time_unit
from profpipe.points import in_words

#: The colours of a call's parts in the stacked bars: attention stands out, what it drags along is warm, the rest grey.
_COLOURS = {
    "attention": "#0072B2", "helpers": "#56B4E9", "direct_copy": "#D55E00", "add": "#E69F00", "gemm": "#009E73",
    "softmax": "#CC79A7", "rest": "#B4B8BD", "graph": "#7F858C",
}  # fmt: skip


def shares(workload: WorkloadFindings, shape: Shape, folder: Path) -> Plot:
    """Stacked bars, the fastest on top; one that would dwarf the others has a scale of its own, and says so."""
    import matplotlib

    points = sorted((p for p in shape.points if p.split), key=lambda p: p.split.total.ns if p.split else 0)
    unit = time_unit(point.split.total.ns for point in points if point.split)
    totals = [point.split.total.ns / unit.size for point in points if point.split]
    middle = totals[len(totals) // 2]
    limit = max(total for total in totals if total <= 3 * middle)
    path = path_of(workload, "share")
    with matplotlib.rc_context(RC):
        height = 0.34 * len(points) + 1.55
        figure = figure_of(7.6, height)
        axes = figure.subplots()
        used = _bars(axes, points, unit, limit)
        axes.set_xlim(0, 1.25 * limit)
        axes.set_ylim(len(points) - 0.45, -0.6)
        axes.set_yticks(range(len(points)), [p.variant + (" (baseline)" if p.is_baseline else "") for p in points])
        axes.tick_params(axis="y", length=0, labelcolor=INK)
        axes.grid(axis="x")
        axes.set_xlabel(f"{unit.name} per call ({workload.kernel_profiler})")
        longest = max(len(label.get_text()) for label in axes.get_yticklabels())
        left = min(0.35, (0.078 * longest + 0.15) / 7.6)
        figure.subplots_adjust(left=left, right=0.97, top=1 - 0.85 / height, bottom=0.5 / height)
        title = "Where the time of a call goes" + (f", {in_words(shape.axes)}" if shape.axes else "")
        head(figure, title, fixed(workload), left=0.02)
        figure.legend(handles=used, loc="upper left", bbox_to_anchor=(left - 0.01, 1 - 0.5 / height), ncols=len(used),
                      frameon=False, fontsize=8.5, handlelength=0.9, handleheight=0.9, columnspacing=1.2,
                      handletextpad=0.4, labelcolor=INK)  # fmt: skip
        save(figure, folder / path)
    return Plot(title, path.as_posix())


def _bars(axes: Any, points: Sequence[Point], unit: Unit, limit: float) -> list[Any]:
    """Draws the bars; gives a legend handle for each part that occurs."""
    from matplotlib.patches import Patch

    used: dict[str, Any] = {}
    for row, point in enumerate(points):
        assert point.split is not None
        total, left = point.split.total.ns / unit.size, 0.0
        own_scale = total > 1.02 * limit
        shown_of = limit / total if own_scale else 1.0
        for part, colour in _COLOURS.items():
            width = point.split.part(part).ns / unit.size * shown_of
            if width:
                axes.barh(row, width, left=left, height=0.66, color=colour, edgecolor="white", linewidth=0.5,
                          alpha=0.55 if own_scale else 1.0)  # fmt: skip
                used.setdefault(part, Patch(color=colour, label=_said(part, point.split.kind)))
                left += width
        told = f"{number(total)}, own scale" if own_scale else number(total)
        axes.annotate(
            told, (left, row), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8.5, color=INK
        )
    return [used[part] for part in _COLOURS if part in used]


def _said(part: str, kind: str) -> str:
    if part == "direct_copy" and kind == "cpu_op":
        return "copy"
    return "everything else" if part == "rest" else part
