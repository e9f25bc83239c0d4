"""The plots that a study asked for, drawn: a picture for each value, a line for each combination of what it names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from profpipe.asked import Asked
from profpipe.page import lines, study_sheets
from profpipe.page.canvas import GREY, Plot
from profpipe.page.excerpt import GROUPS
from profpipe.page.markdown import escape
from profpipe.page.plots import time_tick
from profpipe.points import in_words, is_number, shown
from profpipe.study_findings import Cell, Grid, Study
from profpipe.tolerance import INACCURATE, MEASURES, UNCHECKED, bound, limit_of

#: Stored units whose values may span decades.
_DECADES = ("ns", "byte", "flop")
#: Differences from a reference: those that pass lie decades below those that do not.
_ERRORS = "error_"


def draw(study: Study, folder: Path) -> list[Plot]:
    """The pictures of ``study`` in ``folder/plots``; none of a value that stands over fewer than two numbers."""
    looks = lines.styles(_names(study), _baseline(study))
    return [plot for value in study.values for plot in _of(study, value, looks, folder)]


def _of(study: Study, value: Asked, looks: Mapping[str, Mapping[str, Any]], folder: Path) -> Iterator[Plot]:
    drawn_as = _rejected(study, value, looks)
    panels = [panel for grid in study.grids if (panel := _panel(study, grid, value, drawn_as))]
    shown_panels = panels[:GROUPS]
    if len({dot.x for panel in shown_panels for line in panel.lines for dot in line.dots}) < 2:
        return
    stored, unit = study.units.get(value.word, ""), study_sheets.unit(study, value)
    named = study_sheets.plain_name(study, value)
    own_unit = "" if stored in ("ns", "byte", "x") else unit.name
    picture = lines.Picture(
        title=f"{study.title}: {named}" if len(study.values) > 1 else study.title,
        below=", ".join([*([named] if len(study.values) == 1 else []), *_fixed(study)]),
        axis=study.row_axes[0],
        tick=_tick(stored, unit.size),
        decades=stored in _DECADES or value.word.startswith(_ERRORS),
        binary=stored == "byte",
        unit=own_unit,
        level=1.0 if value.word == "speedup" else None,
    )
    shown_panels = _with_limit(study, value, shown_panels)
    path = Path("plots") / f"study-{_slug(study.title)}-{_slug(value.word)}.png"
    lines.draw(picture, shown_panels, folder / path)
    said = [*study_sheets.of_calls(study, [value]), *study_sheets.of_kernels(study, [value])]
    shared = study_sheets.shared_marks(study)
    said += [lines.caption(picture, shown_panels), f"Every case: {', '.join(shared)}." if shared else ""]
    said.append(_not_shown(study, value))
    if len(panels) > GROUPS:
        said.append(f"{GROUPS} of {len(panels)} combinations of the other axes.")
    yield Plot(picture.title, path.as_posix(), escape(" ".join(part for part in said if part)))


def _with_limit(study: Study, value: Asked, panels: Sequence[lines.Panel]) -> list[lines.Panel]:
    """The same with a line at what the tolerance allows, where ``value`` is a difference that it limits."""
    limit = limit_of(value.subject, study.tolerance) if value.subject in MEASURES else None
    if limit is None:
        return list(panels)
    xs = [dot.x for panel in panels for line in panel.lines for dot in line.dots]
    ends = tuple(lines.Dot(x, limit) for x in (min(xs), max(xs)))
    look = {"color": GREY, "linestyle": (0, (4, 3)), "linewidth": 0.9, "marker": "", "zorder": 1}
    allowed = lines.Series(bound(value.subject, limit), look, ends)
    return [replace(panel, lines=(*panel.lines, allowed)) for panel in panels]


def _not_shown(study: Study, value: Asked) -> str:
    """The cases that have no dot for what they compute."""
    left_out: dict[str, list[str]] = {mark: [] for mark in (INACCURATE, UNCHECKED)}
    for grid in study.grids:
        for (x, *_), cells in zip(grid.rows, grid.cells, strict=True):
            for column, cell in zip(grid.columns, cells, strict=True):
                if cell and cell.fate in left_out and is_number(x) and _is_of(study, column, value):
                    left_out[cell.fate].append(_line_name(study, column))
    return lines.not_shown({f"marked {mark}": names for mark, names in left_out.items() if names})


def _fixed(study: Study) -> list[str]:
    return [in_words(study.fixed)] if study.fixed else []


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.]+", "-", text).strip("-.").lower() or "plot"


def _tick(stored: str, size: float) -> Callable[[float], str]:
    if stored == "ns":
        return time_tick
    if stored == "byte":
        return size_tick
    sign = "x" if stored == "x" else ""
    scale = 100 if stored == "share" else 1 / size
    return lambda value: f"{value * scale:.4g}{sign}"


def size_tick(size: float) -> str:
    """``256 MiB``, then ``1 GiB``: a scale changes its unit at 1024, unlike a column."""
    units = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))
    name, unit = next(((name, unit) for name, unit in units if abs(size) >= unit), ("byte", 1))
    return f"{size / unit:.4g} {name}" if size else "0"


# --- the lines -------------------------------------------------------------------------------------------------------


def _line_name(study: Study, column: Sequence[Any]) -> str:
    at = zip(study.column_axes, column, strict=True)
    words = [in_words(((axis, v),)) if _needs_its_axis(v) else shown(v) for axis, v in at if axis != "value"]
    return ", ".join(words)


def _needs_its_axis(value: Any) -> bool:
    return isinstance(value, bool) or is_number(value)


def _columns(study: Study) -> list[tuple[Any, ...]]:
    return list(dict.fromkeys(column for grid in study.grids for column in grid.columns))


def _names(study: Study) -> list[str]:
    return list(dict.fromkeys(_line_name(study, column) for column in _columns(study)))


def _baseline(study: Study) -> str | None:
    """The one line that the others are compared with, where there is just one."""
    if study.compare not in study.column_axes:
        return None
    place = study.column_axes.index(study.compare or "")
    found = {_line_name(study, column) for column in _columns(study) if column[place] in study.baselines}
    return found.pop() if len(found) == 1 else None


def _rejected(study: Study, value: Asked, looks: Mapping[str, Mapping[str, Any]]) -> dict[str, tuple[str, Any]]:
    """The names and looks of the lines; of an error itself nothing is greyed, for that is where it is seen."""
    wrong: dict[str, list[bool]] = {}
    for grid in study.grids if not value.word.startswith(_ERRORS) else ():
        for cells in grid.cells:
            for column, cell in zip(grid.columns, cells, strict=True):
                if cell and isinstance(cell.value, (int, float)) and _is_of(study, column, value):
                    wrong.setdefault(_line_name(study, column), []).append(INACCURATE in cell.marks)
    return lines.rejected(looks, wrong)


def _panel(study: Study, grid: Grid, value: Asked, looks: Mapping[str, tuple[str, Any]]) -> lines.Panel | None:
    dots: dict[str, list[lines.Dot]] = {}
    shared = study_sheets.shared_marks(study)
    for (x, *_), cells in zip(grid.rows, grid.cells, strict=True):
        for column, cell in zip(grid.columns, cells, strict=True):
            if _is_of(study, column, value) and (dot := _dot(x, cell, shared)):
                dots.setdefault(_line_name(study, column), []).append(dot)
    series = [lines.Series(*named, tuple(dots[name])) for name, named in looks.items() if name in dots]
    return lines.Panel(grid.others, tuple(series)) if series else None


def _is_of(study: Study, column: Sequence[Any], value: Asked) -> bool:
    return "value" not in study.column_axes or column[study.column_axes.index("value")] == value.word


def _dot(x: Any, cell: Cell | None, shared: Sequence[str]) -> lines.Dot | None:
    if cell is None or not is_number(x) or not isinstance(cell.value, (int, float)):
        return None
    return lines.Dot(float(x), float(cell.value), hollow=any(mark not in shared for mark in cell.marks))
