"""The plots that the pipeline file asks for: a chart for each value, a line for each combination of the line axes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from profpipe.analysis.cases import in_words, is_number
from profpipe.analysis.findings.studies import Cell, Grid, Study
from profpipe.config.study_values import StudyValue
from profpipe.measure.flags import Flag
from profpipe.measure.tolerance import MEASURES, bound, limit_of
from profpipe.report import document as doc, selection
from profpipe.report.sections import studies as tables
from profpipe.report.sections.plots import Point, line_chart, not_shown
from profpipe.report.selection import GROUPS

#: Stored units whose values may span decades.
_DECADES = ("ns", "byte", "flop")

#: Differences from a reference: those that pass lie decades below the others.
_ERRORS = "error_"


def study_plots(studies: Iterable[Study]) -> doc.Section:
    """Return the charts of the pipeline file's ``plots``, and the titles of those with fewer than two numbers."""
    charts: list[doc.Chart] = []
    empty: list[str] = []
    for study in studies:
        own = [chart for value in study.values if (chart := study_plot(study, value))]
        charts += own
        empty += [] if own else [study.title]
    note = doc.concat("Not drawn, because they have fewer than two numbers: ", doc.join(empty, most=4), ".")
    return doc.Section("study_plots", "Requested plots", (*charts, *((doc.Paragraph(note),) if empty else ())))


def study_plot(study: Study, value: StudyValue) -> doc.Chart | None:
    """Return the chart of a value over the rows of the study; None with fewer than two positions."""
    stored, unit = study.units.get(value.name, ""), tables.choose_unit(study, value)
    name, is_titled = tables.value_name(study, value), len(study.values) > 1
    points = list(_points(study, value))
    limit = limit_of(value.subject, study.tolerance) if value.subject in MEASURES else None
    references = [doc.Reference(doc.ReferenceKind.LEVEL, 1.0)] if value.name == "speedup" else []
    if limit is not None:
        references.append(doc.Reference(doc.ReferenceKind.LIMIT, limit, bound(value.subject, limit)))
    # The cases that have no mark because of what they compute.
    marks = (Flag.INACCURATE, Flag.UNCHECKED)
    lacking = [(cell.missing, _line_name(study, place)) for _, place, cell in _cells(study, value)
               if cell and cell.missing in marks and is_number(place[study.row_axes[0]])]  # fmt: skip
    missing = {f"marked {mark}": [name for why, name in lacking if why == mark] for mark in marks}
    panels = list(dict.fromkeys(point.panel for point in points))
    if len({point.mark.x for point in points if point.panel in panels[:GROUPS]}) < 2:
        return None
    return line_chart(
        f"study-{tables.slug(study.title)}-{tables.slug(value.name)}",
        f"{study.title}: {name}" if is_titled else study.title,
        _positions(study),
        doc.Axis(name, None if stored in ("ns", "byte", "x") else unit, quantity=stored),
        points,
        tuple(line_names(study)),
        panels=panels[:GROUPS],
        baseline=baseline_name(study),
        spans_decades=stored in _DECADES or value.name.startswith(_ERRORS),
        subtitle=", ".join(filter(None, ["" if is_titled else name, in_words(study.fixed)])),
        references=tuple(references),
        notes=(
            *tables.basis_note(study, [value]),
            *tables.kernels_note(study, [value]),
            f"Every case: {', '.join(study.shared_flags)}." if study.shared_flags else "",
            not_shown({mark: names for mark, names in missing.items() if names}),
            f"{GROUPS} of {len(panels)} combinations of the other axes." if len(panels) > GROUPS else "",
        ),
    )


def _positions(study: Study) -> doc.Axis:
    """Return the axis of what the plot runs over: a parameter, or a metric."""
    name, unit = study.row_axes[0], study.row_unit
    if unit is None:
        return doc.Axis(name)
    is_scaled = unit in ("ns", "byte")
    title = name if is_scaled or unit == "1" else f"{name} {unit}"
    return doc.Axis(title, quantity=unit if is_scaled else "", is_measured=True)


def _points(study: Study, value: StudyValue) -> Iterator[Point]:
    """Yield the numbers of ``value``; a chart of errors rejects no line."""
    for grid, place, cell in _cells(study, value):
        if cell and is_number(x := place[study.row_axes[0]]) and isinstance(cell.value, (int, float)):
            flags = tuple(flag for flag in cell.flags if flag not in study.shared_flags)
            is_wrong = Flag.INACCURATE in cell.flags and not value.name.startswith(_ERRORS)
            mark = doc.Mark(float(x), float(cell.value), flags=flags)
            yield Point(grid.others, _line_name(study, place), mark, is_wrong)


# --- the lines -------------------------------------------------------------------------------------------------------


def _cells(study: Study, value: StudyValue) -> Iterator[tuple[Grid, Mapping[str, Any], Cell | None]]:
    """Yield the cells of ``value`` with their grid and their place on the axes."""
    for grid in study.grids:
        yield from ((grid, place, cell) for place, at, cell in study.cells([grid]) if at == value)


def _line_name(study: Study, place: Mapping[str, Any]) -> str:
    return selection.column(tuple((axis, place[axis]) for axis in study.column_axes if axis != "value"))


def _lines(study: Study) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name of each line and its place on the axes."""
    for column in (column for grid in study.grids for column in grid.columns):
        place = dict(zip(study.column_axes, column, strict=True))
        yield _line_name(study, place), place


def line_names(study: Study) -> list[str]:
    """Return the names of all lines, in the order of the palette."""
    return list(dict.fromkeys(name for name, _ in _lines(study)))


def baseline_name(study: Study) -> str | None:
    """Return the name of the only baseline; None without one, and where there are several."""
    if study.compare not in study.column_axes:
        return None
    found = {name for name, place in _lines(study) if place[study.compare or ""] in study.baselines}
    return found.pop() if len(found) == 1 else None
