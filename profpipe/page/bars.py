"""The kernel time of a call by what its kernels do, as stacked bars: one an implementation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from profpipe.findings import Part, Point, Shape, Split, WorkloadFindings
from profpipe.page import remainder
from profpipe.page.canvas import INK, RC, Plot, figure_of, fixed, head, path_of, save
from profpipe.page.quantities import Unit, number, time_unit
from profpipe.points import in_words

#: The colours of a call's parts in the stacked bars: attention stands out, what it drags along is warm.
_COLOURS = {
    "attention": "#0072B2", "helpers": "#56B4E9", "direct_copy": "#D55E00", "add": "#E69F00", "gemm": "#009E73",
    "softmax": "#CC79A7",
}  # fmt: skip

#: The paler ones of what else is told apart; a class that has none is grey with everything else.
_PALE = {
    "copy": "#EDB08F", "elementwise": "#9C8FBF", "reduction": "#7FA3B5", "norm": "#B99B7A", "optimizer": "#A3AC6B",
    "conv": "#86C5AF", "communication": "#5B5F8A", "fused": "#D9C277",
}  # fmt: skip
_REST, _GRAPH = "#B4B8BD", "#7F858C"

#: The share of a bar from which on a piece can be seen; what is less in all of them is with everything else.
_SEEN = 0.005

#: Inches: the width of the picture; in the legend a letter, what stands around a name, and the height of a row.
_WIDTH, _LETTER, _AROUND, _ROW = 7.6, 0.075, 0.42, 0.2


@dataclass(frozen=True)
class Piece:
    """What a bar is made of: a part of a call, or a class of the rest."""

    label: str
    colour: str
    of: Callable[[Split], Part]


def pieces(splits: Sequence[Split]) -> list[Piece]:
    """Those that occur in any of ``splits``, from left to right; as the table of shares tells them apart."""
    names = [name for name in remainder.classes(splits) if name in _PALE]
    cpu = any(split.kind == "cpu_op" for split in splits)
    found = [Piece("copy" if cpu and part == "direct_copy" else part, colour, partial(_part, name=part))
             for part, colour in _COLOURS.items()]  # fmt: skip
    found += [Piece(remainder.named(name), _PALE[name], partial(remainder.of, name=name)) for name in names]
    found.append(Piece("graph", _GRAPH, partial(_part, name="graph")))
    kept = [piece for piece in found if _is_seen(piece, splits)]
    rest = Piece("everything else", _REST, partial(_besides, kept=kept))
    return [*kept, rest] if _is_seen(rest, splits) else kept


def _is_seen(piece: Piece, splits: Sequence[Split]) -> bool:
    return any(piece.of(split).ns >= _SEEN * split.total.ns for split in splits)


def _part(split: Split, name: str) -> Part:
    return split.part(name)


def _besides(split: Split, kept: Sequence[Piece]) -> Part:
    """What is in none of the pieces ``kept``."""
    parts = [piece.of(split) for piece in kept]
    return Part(split.total.calls - sum(part.calls for part in parts), split.total.ns - sum(part.ns for part in parts))


def shares(workload: WorkloadFindings, shape: Shape, folder: Path) -> Plot:
    """Stacked bars, the fastest on top; one that would dwarf the others has a scale of its own, and says so."""
    import matplotlib

    points = sorted((p for p in shape.points if p.split), key=lambda p: p.split.total.ns if p.split else 0)
    splits = [point.split for point in points if point.split]
    unit = time_unit(split.total.ns for split in splits)
    names = [point.variant + (" (baseline)" if point.is_baseline else "") for point in points]
    left = min(0.35, (0.078 * max(map(len, names)) + 0.15) / _WIDTH)
    used = pieces(splits)
    columns = abreast([piece.label for piece in used], (1 - left) * _WIDTH)
    above = 0.85 + _ROW * (-(-len(used) // columns) - 1)
    height = 0.34 * len(points) + 0.7 + above
    path = path_of(workload, "share")
    with matplotlib.rc_context(RC):
        figure = figure_of(_WIDTH, height)
        axes = figure.subplots()
        _bars(axes, points, used, unit)
        axes.set_yticks(range(len(points)), names)
        axes.tick_params(axis="y", length=0, labelcolor=INK)
        axes.grid(axis="x")
        axes.set_xlabel(f"{unit.name} per call ({workload.kernel_profiler})")
        figure.subplots_adjust(left=left, right=0.97, top=1 - above / height, bottom=0.5 / height)
        what = "Self time of CPU operators" if any(split.kind == "cpu_op" for split in splits) else "Kernel time"
        title = ", ".join(filter(None, [f"{what} of a call", in_words(shape.axes)]))
        head(figure, title, fixed(workload), left=0.02)
        _legend(figure, used, columns, (left - 0.01, 1 - 0.5 / height))
        save(figure, folder / path)
    return Plot(title, path.as_posix(), _of_several(workload, points))


def _of_several(workload: WorkloadFindings, points: Sequence[Point]) -> str:
    """What a bar is where several processes ran the cases, each on a GPU of its own."""
    ids = {point.id for point in points}
    gpus = len({own.name for own in workload.ranks if own.case in ids})
    if gpus < 2 or any(point.split and point.split.kind == "cpu_op" for point in points):
        return ""
    return f"A bar is the mean of the {gpus} GPUs that ran the case; where two kernels overlap, both count."


def _bars(axes: Any, points: Sequence[Point], used: Sequence[Piece], unit: Unit) -> None:
    totals = [point.split.total.ns / unit.size for point in points if point.split]
    middle = totals[len(totals) // 2]
    limit = max(total for total in totals if total <= 3 * middle)
    for row, point in enumerate(points):
        assert point.split is not None
        total, left = totals[row], 0.0
        own_scale = total > 1.02 * limit
        shown_of = limit / total if own_scale else 1.0
        for piece in used:
            width = piece.of(point.split).ns / unit.size * shown_of
            if width:
                axes.barh(row, width, left=left, height=0.66, color=piece.colour, edgecolor="white", linewidth=0.5,
                          alpha=0.55 if own_scale else 1.0)  # fmt: skip
                left += width
        told = f"{number(total)}, own scale" if own_scale else number(total)
        axes.annotate(
            told, (left, row), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8.5, color=INK
        )
    axes.set_xlim(0, 1.25 * limit)
    axes.set_ylim(len(points) - 0.45, -0.6)


def abreast(labels: Sequence[str], inches: float) -> int:
    """How many of a legend's names fit beside each other; each column is as wide as its longest name."""
    for columns in range(len(labels), 1, -1):
        longest = [max(map(len, labels[i::columns])) for i in range(columns)]
        if sum(_LETTER * letters + _AROUND for letters in longest) <= inches:
            return columns
    return 1


def _legend(figure: Any, used: Sequence[Piece], columns: int, corner: tuple[float, float]) -> None:
    from matplotlib.patches import Patch

    # Matplotlib fills columns; names are read along rows.
    ordered = [piece for i in range(columns) for piece in used[i::columns]]
    handles = [Patch(color=piece.colour, label=piece.label) for piece in ordered]
    figure.legend(handles=handles, loc="upper left", bbox_to_anchor=corner, ncols=columns, frameon=False, fontsize=8.5,
                  handlelength=0.9, handleheight=0.9, columnspacing=1.2, handletextpad=0.4,
                  labelcolor=INK)  # fmt: skip
