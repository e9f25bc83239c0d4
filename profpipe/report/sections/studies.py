"""The tables and the plots that the pipeline file requests (`tables:`, `plots:`).

A plot has a chart per value, and a line per combination of the line axes.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from profpipe.analysis.cases import in_words, is_number
from profpipe.analysis.findings import Grid, NoValue, Study, StudyCell
from profpipe.analysis.grouping import grouped
from profpipe.config.quantities import BY_NAME, UNITS, Source, StudyValue
from profpipe.job import as_text, count_cases
from profpipe.measure.flags import Flag
from profpipe.measure.tolerance import MEASURES, bound, cosine, limit_of
from profpipe.report import document as doc, selection
from profpipe.report.labels import DENSE_WORK, capitalise, fill, quantity, short_names
from profpipe.report.sections.plots import Point, line_chart, not_shown
from profpipe.report.selection import GROUPS
from profpipe.report.units import COUNT, MISSING, NO_CASE, Unit, unit_of

#: Grids of one table that are shown.
_GRIDS = 9
#: Implementations outside the tolerance that a caption names.
_MOST_OUTSIDE = 6

_TITLES: Mapping[str, str] = {
    "time": "time", "min": "minimum", "p10": "10th percentile", "p90": "90th percentile", "max": "maximum",
    "throughput": "iterations/s", "tflops": "TFLOP/s", "tflops_best": "TFLOP/s at the minimum",
    "tflops_effective": "effective TFLOP/s", "bandwidth": "GB/s", "speedup": "over baseline",
    "memory": "peak memory", "memory_reserved": "reserved memory", "passed": "within tolerance",
    "kernels.calls": "launches", "kernels.time": "all kernels", "most_launched.name": "most launched kernel",
    "most_launched.calls": "its launches", "most_launched.time": "its time", "most_launched.share": "its share",
    "range.time": "range on the host", "range.busy": "GPU busy", "range.calls": "times entered",
    "metric.loop_wall": "wall time",
}  # fmt: skip

#: The same of operators of a CPU.
_TITLES_CPU: Mapping[str, str] = {
    "kernels.calls": "calls of operators", "kernels.time": "all operators",
    "most_launched.name": "most called operator", "most_launched.calls": "its calls",
}  # fmt: skip

#: Why no case has a speed-up though some ran; the baseline's own result comes first.
_NOT_COMPARED: Mapping[str, str] = {
    NoValue.BASELINE_INACCURATE: "the baseline is not within the tolerance",
    NoValue.BASELINE_UNCHECKED: "the baseline was not compared with the reference",
    NoValue.BASELINE_ELSEWHERE: "the baseline ran on a node of another kind",
    NoValue.INACCURATE: "none is within the tolerance",
    NoValue.UNCHECKED: "none was compared with the reference",
}

_OF_BASELINE = {NoValue.BASELINE_INACCURATE, NoValue.BASELINE_UNCHECKED, NoValue.BASELINE_ELSEWHERE}

#: How a sentence begins that names the basis of such values.
_BASIS_OF = (("Times are", ("time", "min", "p10", "p90", "max")),
             ("Rates are of", ("throughput", "tflops", "tflops_best", "tflops_effective", "bandwidth")),
             ("Ratios are of", ("speedup",)))  # fmt: skip


def study_tables(studies: Sequence[Study]) -> doc.Section:
    """Return the tables that the pipeline file asks for, in its order."""
    parts = [study_table(study, before) for before, study in zip((None, *studies), studies, strict=False)]
    return doc.Section("studies", "Study tables" if parts else "", sections=tuple(parts))


def study_table(study: Study, before: Study | None = None, id: str = "") -> doc.Section:
    """Return one table: its largest grid for the short page, the others folded.

    Values that all cases share are left out where they are those of the table ``before`` it.
    """
    writer, notes = _TableWriter(study), " ".join(_notes(study))
    open_grid = [writer.table(grid, "grid-1", in_words(grid.others)) for grid in study.grids[:1]]
    folded = [
        doc.Details(in_words(grid.others) or "table", (writer.table(grid, f"grid-{i}"),))
        for i, grid in enumerate(study.grids[1:_GRIDS], 2)
    ]
    blocks: tuple[doc.Block, ...] = (*open_grid, *([doc.Paragraph(notes)] if notes else []), *folded)
    title, summary = study.entry.title, doc.join(_summary(study, before), " ", " ")
    return doc.Section(id or f"study-{slug(title)}", title, blocks, summary)


def slug(text: str) -> str:
    """Return ``text`` in letters that a file name and an anchor may have.

    A checksum keeps texts apart that differ in other signs, such as ``A+`` and ``A*``.
    """
    name = re.sub(r"[^A-Za-z0-9_.]+", "-", text).strip("-.").lower()
    if name and re.fullmatch(r"[\w.,:;()/&<>%= -]*", text, re.ASCII):
        return name
    return f"{name or 'plot'}-{zlib.crc32(text.encode('utf-8', 'replace')):08x}"


# --- the text above and below a table --------------------------------------------------------------------------------


def _summary(study: Study, before: Study | None) -> Iterator[doc.Text]:
    if not study.has_cases:
        yield "No case of this run is in this table."
        return
    if study.entry.note:
        yield study.entry.note
    if len(study.absent) < len(study.values):
        # The only value, where no head of a row or column names it.
        is_named = "value" in (*study.row_axes, *study.column_axes) or not study.column_axes
        only = None if is_named else study.values[0]
        if only:
            yield _caption(study, only)
        if study.is_by_profiler or not (only and only.name == "time"):
            yield from basis_note(study, study.values)
        yield from kernels_note(study, study.values)
        if study.fixed and not (before and before.has_cases and before.fixed == study.fixed):
            yield f"In every case: {', '.join(f'{axis} {as_text(value)}' for axis, value in study.fixed)}."
    yield from _absence_notes(study)
    if study.empty_phases and len(study.absent) < len(study.values):
        yield ("Nothing was recorded in the range ", *doc.join(map(doc.Code, study.empty_phases)), ".")


def _absence_notes(study: Study) -> Iterator[doc.Text]:
    """Yield which values no case has, one sentence a reason."""

    def reason(missing: frozenset[str]) -> str:
        # An inaccurate or unchecked baseline is the reason for all cases.
        texts = [text for why, text in _NOT_COMPARED.items() if why in (missing & _OF_BASELINE or missing)]
        return "each is inaccurate or unchecked" if len(texts) > 1 else "".join(texts)

    by_reason = grouped((reason(missing), name.removeprefix("metric.")) for name, missing in study.absent.items())
    for why, names in by_reason.items():
        yield ("No case has ", *doc.join(map(doc.Code, names), last=" or "), f": {why}." if why else ".")


def _caption(study: Study, value: StudyValue) -> doc.Text:
    if value.name == "passed":
        compared = [(place, cell.value) for place, _, cell in study.cells() if cell and cell.value is not None]
        passed = sum(result == "pass" for _, result in compared)
        failed = dict.fromkeys(str(at["impl"]) for at, result in compared if result == "fail" and "impl" in at)
        within = f"{passed} of the {len(compared)} compared cases are within the tolerance."
        outside = doc.join(map(doc.Code, failed), most=_MOST_OUTSIDE)
        return fill("{} Outside: {}.", within, outside) if failed else within
    unit = choose_unit(study, value).name
    of = f" in {unit}." if unit else "."
    if value.source is Source.METRIC:
        return (doc.Code(value.subject), of)
    is_time = value.name == "time" and study.time_source
    name = quantity(study.time_source) if is_time else value_name(study, value)
    return f"{capitalise(name)}{of}"


def basis_note(study: Study, values: Sequence[StudyValue]) -> Iterator[str]:
    """Yield which times ``values`` are, or are computed from."""
    subjects = {value.subject for value in values if value.source is Source.CALL}
    if study.is_by_profiler and subjects:
        yield "plain: the median time of a call; the others: the sum of its kernels (on a CPU, operators)."
    if study.time_source and subjects:
        beginning = next(words for words, group in _BASIS_OF if subjects & set(group))
        yield f"{beginning} the {quantity(study.time_source)}."
    if study.has_sparse_cases and "tflops" in subjects:
        yield DENSE_WORK


def kernels_note(study: Study, values: Sequence[StudyValue]) -> Iterator[str]:
    """Yield whose kernels ``values`` are of, and which of them."""
    if study.kernel_profiler is None or all(value.source is not Source.KERNELS for value in values):
        return
    noun = "Operators" if study.is_cpu else "Kernels"
    per = "per call" if study.is_per_call else "all iterations together"
    inside = f", in {study.entry.phase[0]} alone" if len(study.entry.phase) == 1 else ""
    yield f"{noun} of {study.kernel_profiler}, {per}{inside}."
    if any(value.figure == "share" for value in values):
        yield f"Shares are of the {noun[:-1].lower()} time of {'that range' if study.entry.phase else 'a call'}."


def _notes(study: Study) -> Iterator[str]:
    """Yield the flags that all cases share, and what the table leaves out."""
    grids = study.grids[:_GRIDS]
    if grids and study.shared_flags:
        yield f"Every case: {', '.join(study.shared_flags)}."
    if any(cell and cell.value is None and not cell.missing for _, _, cell in study.cells(grids)):
        yield f"{MISSING}: not recorded for that case."
    rows, columns = (sum(grid.skipped[i] for grid in grids) for i in (0, 1))
    skipped = {"row": rows, "column": columns, "table": study.skipped_grids}
    if lost := [f"{many} {noun}{'' if many == 1 else 's'}" for noun, many in skipped.items() if many]:
        yield f"Not shown: {doc.plain(doc.join(lost))} of skipped cases."
    if (more := len(study.grids) - _GRIDS) > 0:
        axes = doc.plain(doc.join([axis for axis, _ in grids[0].others]))
        yield f"{more} more tables like these, by {axes}, are left out; `where` or a further row selects them."
    for axis, number in study.cases_without_axis.items():
        yield f"{capitalise(count_cases(number))} without {axis} {'is' if number == 1 else 'are'} left out."


# --- values and cells ------------------------------------------------------------------------------------------------


def choose_unit(study: Study, value: StudyValue) -> Unit:
    """Return one unit for all cells of a value: the requested one, else that in which they read best.

    Times of kernels are parts of each other, and have one unit together.
    """
    stored = study.units.get(value.name, "")
    wanted = next((name for name in study.entry.unit if name in UNITS.get(stored, {})), None)
    if wanted is not None:
        return Unit(wanted, UNITS[stored][wanted])
    times = [v for v in study.values if (v.source, v.unit) == (Source.KERNELS, "ns")]
    alike = times if value in times else [value]
    numbers = (c.value for _, v, c in study.cells() if c and v in alike and isinstance(c.value, (int, float)))
    return unit_of(stored, numbers)


def value_name(study: Study, value: StudyValue) -> str:
    """Return ``time``, ``attention`` or ``attention calls``: the name of a value without its unit."""
    suffix = " calls" if value.source is Source.KERNELS and value.figure == "calls" else ""
    name = value.subject.removeprefix(BY_NAME) + suffix
    on_cpu = _TITLES_CPU.get(value.name) if study.is_cpu else None
    return on_cpu or _TITLES.get(value.name, name)


class _TableWriter:
    """Turns the grids of one study into tables of the document."""

    def __init__(self, study: Study) -> None:
        self._study = study
        self._units = {value.name: choose_unit(study, value) for value in study.values}
        kernels = (c.value for _, v, c in study.cells() if c and v.unit == "kernel" and isinstance(c.value, str))
        self._kernels = short_names(kernels)

    def table(self, grid: Grid, id: str, title: str = "") -> doc.TableBlock:
        """Return the table; only the first grid of a study stands on the short page."""
        study = self._study
        labels = [doc.label(axis, "" if axis == "value" else axis) for axis in study.row_axes]
        are_words = [any(c and isinstance(c.value, str) for c in cells) for cells in zip(*grid.cells, strict=True)]
        columns = [
            doc.number("/".join(map(as_text, at)), self._title(at, i == 0), is_words=is_words)
            for i, (at, is_words) in enumerate(zip(grid.columns, are_words, strict=True))
        ]
        rows = tuple(
            (
                *(
                    doc.TableCell(text=self._label(axis, value))
                    for axis, value in zip(study.row_axes, row, strict=True)
                ),
                *(self._cell(c, study.value_at(row, at)) for c, at in zip(cells, grid.columns, strict=True)),
            )
            for row, cells in zip(grid.rows, grid.cells, strict=True)
        )
        return doc.TableBlock(id, (*labels, *columns), rows, title)

    def _title(self, at: Sequence[Any], is_first: bool) -> doc.Text:
        if not at:
            if "value" not in self._study.row_axes:
                return self._value_title(self._study.values[0])
            # Each row is another value, and the only column has no unit: it is of the compared value.
            fixed, compare = dict(self._study.fixed), self._study.compare
            return self._label(compare, fixed[compare]) if compare in fixed else "value"
        parts: list[doc.Text] = []
        for axis, value in zip(self._study.column_axes, at, strict=True):
            # A number needs its axis, which the first of several columns names for all.
            is_named = is_number(value) and (is_first or len(at) > 1)
            parts.append((f"{axis} " if is_named else "", *doc.inlines(self._label(axis, value))))
        return doc.join(parts, last=", ")

    def _value_title(self, value: StudyValue) -> str:
        return f"{value_name(self._study, value)} {self._units[value.name].name}".strip()

    def _label(self, axis: str, value: Any) -> doc.Text:
        if axis == "value":
            return self._value_title(
                next(study_value for study_value in self._study.values if study_value.name == value)
            )
        if value is None:
            return MISSING
        if axis == self._study.compare:
            code = doc.Code(as_text(value))
            return (code, " (baseline)") if value in self._study.baselines else code
        return in_words(((axis, value),)) if isinstance(value, bool) else as_text(value)

    def _cell(self, cell: StudyCell | None, value: StudyValue) -> doc.TableCell:
        if cell is None:
            return doc.TableCell(missing=NO_CASE)
        flags = tuple(flag for flag in cell.flags if flag not in self._study.shared_flags)
        if cell.value is None:
            return doc.TableCell(text=cell.missing) if cell.missing else doc.TableCell(missing=MISSING)
        stored, unit = self._study.units.get(value.name, ""), self._units[value.name]
        if isinstance(cell.value, str):
            is_kernel = stored == "kernel"
            text: doc.Text = doc.Code(self._kernels.get(cell.value, cell.value)) if is_kernel else cell.value
            return doc.TableCell(text=doc.Strong(text) if text == "fail" else text, flags=flags)
        if unit.size == 1.0 and value.subject.startswith("cosine"):
            return doc.TableCell(text=cosine(cell.value), flags=flags)
        # Heads and tokens are counted, not measured.
        is_count = stored in ("", "1") and cell.value.is_integer()
        return doc.TableCell(cell.value, flags=flags, unit=COUNT if is_count and unit.size == 1.0 else unit)


# --- study plots ------------------------------------------------------------------------------------------------------

#: Stored units whose values may span decades.
_DECADES = ("ns", "byte", "flop")

#: Differences from a reference: those that pass lie decades below the others.
_ERRORS = "error_"


def study_plots(studies: Iterable[Study]) -> doc.Section:
    """Return the charts of the pipeline file's ``plots``, and the titles of those with fewer than two numbers."""
    charts: list[doc.Chart] = []
    empty: list[str] = []
    for study in studies:
        drawn = [chart for value in study.values if (chart := study_plot(study, value))]
        charts += drawn
        empty += [] if drawn else [study.entry.title]
    note = doc.concat("Not drawn, because they have fewer than two numbers: ", doc.join(empty, most=4), ".")
    return doc.Section("study_plots", "Requested plots", (*charts, *((doc.Paragraph(note),) if empty else ())))


def study_plot(study: Study, value: StudyValue) -> doc.Chart | None:
    """Return the chart of a value over the rows of the study; None with fewer than two positions."""
    stored, unit = study.units.get(value.name, ""), choose_unit(study, value)
    name, is_titled = value_name(study, value), len(study.values) > 1
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
        f"study-{slug(study.entry.title)}-{slug(value.name)}",
        f"{study.entry.title}: {name}" if is_titled else study.entry.title,
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
            *basis_note(study, [value]),
            *kernels_note(study, [value]),
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


def _cells(study: Study, value: StudyValue) -> Iterator[tuple[Grid, Mapping[str, Any], StudyCell | None]]:
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
    names = {name for name, place in _lines(study) if place[study.compare or ""] in study.baselines}
    return names.pop() if len(names) == 1 else None
