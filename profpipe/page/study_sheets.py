"""The tables that a study asked for, written: what their numbers are, in which unit, and what stands in each cell."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from profpipe.asked import UNITS, Asked
from profpipe.findings import Basis
from profpipe.page.markdown import Sheet, code, escape, listed, short_names
from profpipe.page.quantities import MISSING, NOT_ASKED, Unit, count, number, percent, ratio, unit_of
from profpipe.page.wording import DENSE_WORK, cases, quantity
from profpipe.points import in_words, is_number, shown
from profpipe.study_findings import BASELINE, Cell, Grid, Study
from profpipe.tolerance import INACCURATE, UNCHECKED, cosine

#: Grids of one table that are shown, rows of one that stand open, and rows of it that a page has at most.
_GRIDS, _ROWS, _MOST = 9, 60, 120

#: The file that has every row.
FILE = "comparison_results.txt"

_TITLES: Mapping[str, str] = {
    "time": "time", "p10": "10th percentile", "p90": "90th percentile", "throughput": "iterations/s",
    "tflops": "TFLOP/s", "tflops_effective": "effective TFLOP/s", "bandwidth": "GB/s", "speedup": "over baseline",
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

#: Why no case has a speed-up though some ran, by what a cell says; the baseline's own result comes first.
_BASELINE: Mapping[str, str] = {
    f"{BASELINE} {INACCURATE}": "the baseline is not within the tolerance",
    f"{BASELINE} {UNCHECKED}": "the baseline was not compared with the reference",
}
_NOT_COMPARED: Mapping[str, str] = {
    INACCURATE: "none is within the tolerance",
    UNCHECKED: "none was compared with the reference",
}

#: What a sentence says of times that are this.
_SAID_OF = (("Times are", ("time", "p10", "p90")),
            ("Rates are of", ("throughput", "tflops", "tflops_effective", "bandwidth")),
            ("Ratios are of", ("speedup",)))  # fmt: skip


@dataclass(frozen=True)
class Part:
    """One grid of a table; ``folded`` ones open at a click on their title."""

    title: str
    sheet: Sheet
    folded: bool


@dataclass(frozen=True)
class Written:
    """A table of the study, ready for the page."""

    title: str
    said: str
    parts: tuple[Part, ...]
    left_out: str
    first: bool = False


def written(study: Study, most: int = _MOST, before: Study | None = None) -> Written:
    """``study`` in words; of more than nine grids, and of more rows than ``most``, the rest is counted.

    What its cases share is not said again where it is the same as in the table ``before`` it.
    """
    units = {value.word: unit(study, value) for value in study.values}
    names = short_names(str(c.value) for v, c in _valued(study) if v.of == "kernels" and isinstance(c.value, str))
    parts = []
    absent = _absent(study)
    ran = [told for grid in study.grids if (told := _telling(study, grid, absent)).rows]
    for i, grid in enumerate(ran[:_GRIDS]):
        sheet = _sheet(study, grid, units, names)
        heading, folded = escape(in_words(grid.others)), i > 0 or len(sheet.rows) > _ROWS
        if len(sheet.rows) > most:
            heading = f"{heading or 'table'}: the first {most} of {len(sheet.rows)} rows, all are in {code(FILE)}"
        parts.append(Part(heading, sheet.first(most), folded))
    said = " ".join(_said(study, units, before))
    return Written(escape(study.title), said, tuple(parts), _left_out(study, ran), study.first)


def plain(study: Study) -> str:
    """The same as text, for a terminal."""
    told = written(study, most=sys.maxsize)
    lines = [_text(told.title), _text(told.said)]
    for part in told.parts:
        lines += [f"{_text(part.title)}\n\n{part.sheet.plain()}" if part.title else part.sheet.plain()]
    return "\n\n".join(line for line in (*lines, _text(told.left_out)) if line)


def _text(markdown: str) -> str:
    return Sheet([markdown], []).plain().splitlines()[0] if markdown else ""


# --- what is said above a table --------------------------------------------------------------------------------------


def _said(study: Study, units: Mapping[str, Unit], before: Study | None) -> Iterator[str]:
    if not study.grids:
        yield "No case of this run is in this table."
        return
    if study.note:
        yield escape(study.note)
    absent = _absent(study)
    if len(absent) == len(study.values):
        yield from _nobody_has(study, absent)
        return
    of = quantity(Basis(*study.basis)) if study.basis else ""
    named = _in_caption(study)
    if named:
        yield _only_value(study, study.values[0], units, of)
    if not (named and study.values[0].word == "time"):
        yield from of_calls(study, study.values)
    yield from of_kernels(study, study.values)
    if study.fixed and not (before and before.grids and before.fixed == study.fixed):
        yield f"In every case: {escape(_fixed(study))}."
    yield from _nobody_has(study, absent)
    if empty := _empty_phases(study):
        yield f"Nothing was seen in a range {listed(map(code, empty))}."


def _empty_phases(study: Study) -> list[str]:
    """The ranges that were asked for and in which no case has anything, where others do."""
    axes = (*study.row_axes, *study.column_axes)
    if "phase" not in axes:
        return []
    seen: dict[str, bool] = {}
    for grid in study.grids:
        for row, cells in zip(grid.rows, grid.cells, strict=True):
            for column, cell in zip(grid.columns, cells, strict=True):
                phase = (*row, *column)[axes.index("phase")]
                seen[phase] = seen.get(phase, False) or (cell is not None and bool(cell.value is not None or cell.fate))
    return [phase for phase, any_case in seen.items() if phase and not any_case]


def _nobody_has(study: Study, absent: Sequence[str]) -> Iterator[str]:
    """What no case has, each reason for itself."""
    by_reason: dict[str, list[str]] = {}
    for word in absent:
        fates = {cell.fate for value, cell in _valued(study) if value.word == word}
        said = [of_it for fate, of_it in _BASELINE.items() if fate in fates]
        said = said or [of_it for fate, of_it in _NOT_COMPARED.items() if fate in fates]
        reason = "each is inaccurate or unchecked" if len(said) > 1 else "".join(said)
        by_reason.setdefault(reason, []).append(code(word.removeprefix("metric.")))
    for reason, (*others, last) in by_reason.items():
        yield f"No case has {', '.join(others)}{' or ' if others else ''}{last}{f': {reason}' if reason else ''}."


def _absent(study: Study) -> list[str]:
    """What was asked for and no case has, though some ran. That a baseline is as fast as itself says nothing."""
    found = []
    for value in study.values:
        cells = [cell for of, cell in _valued(study) if of == value]
        barred = any(cell.fate in _NOT_COMPARED for cell in cells)
        numbers = {cell.value for cell in cells} - ({1.0} if value.word == "speedup" and barred else set())
        if numbers == {None} and (barred or any(not cell.fate for cell in cells)):
            found.append(value.word)
    return found


def _in_caption(study: Study) -> bool:
    """Whether no head of a row or column names the one value."""
    return "value" not in (*study.row_axes, *study.column_axes) and bool(study.column_axes)


def _only_value(study: Study, value: Asked, units: Mapping[str, Unit], of: str) -> str:
    if value.word == "passed":
        verdicts = [cell.value for _, cell in _valued(study) if cell.value is not None]
        return f"Within tolerance are {verdicts.count('pass')} of the {len(verdicts)} cases that were compared."
    name = units[value.word].name
    named = code(value.subject) if value.of == "metric" else escape(plain_name(study, value))
    named = of if value.word == "time" and of else named
    return f"{_capitalised(named)}{f' in {escape(name)}' if name else ''}."


def _fixed(study: Study) -> str:
    return ", ".join(f"{axis} {shown(value)}" for axis, value in study.fixed)


def of_calls(study: Study, values: Sequence[Asked]) -> Iterator[str]:
    """Whose times ``values`` are, or are computed from."""
    subjects = {value.subject for value in values if value.of == "call"}
    if study.basis and subjects:
        said = next(words for words, group in _SAID_OF if subjects & set(group))
        yield f"{said} the {quantity(Basis(*study.basis))}."
    if study.sparse and "tflops" in subjects:
        yield DENSE_WORK


def of_kernels(study: Study, values: Sequence[Asked]) -> Iterator[str]:
    """Whose kernels ``values`` are of, and which of them."""
    if study.kernel_profiler is None or all(value.of != "kernels" for value in values):
        return
    noun = "Operators" if study.cpu else "Kernels"
    per = "per call" if study.iterated else "all iterations together"
    inside = f", in {code(study.phases[0])} alone" if len(study.phases) == 1 else ""
    yield f"{noun} as {escape(study.kernel_profiler)} saw them, {per}{inside}."
    if any(value.figure == "share" for value in values):
        yield f"Shares are of {'that range' if study.phases else 'a call'}'s {noun[:-1].lower()} time."


def _telling(study: Study, grid: Grid, absent: Sequence[str]) -> Grid:
    """The same without rows and columns in which every case was skipped, or which are of ``absent`` values."""
    words = [[_value_of(study, row, column).word for column in grid.columns] for row in grid.rows]
    lines = [list(zip(cells, own, strict=True)) for cells, own in zip(grid.cells, words, strict=True)]
    rows = [i for i, line in enumerate(lines) if _tells(line, absent)]
    columns = [i for i, line in enumerate(zip(*lines, strict=True)) if _tells(line, absent)]
    return Grid(
        grid.others,
        tuple(grid.rows[i] for i in rows),
        tuple(grid.columns[i] for i in columns),
        tuple(tuple(grid.cells[i][j] for j in columns) for i in rows),
    )


def _tells(line: Sequence[tuple[Cell | None, str]], absent: Sequence[str]) -> bool:
    """Whether a row or column, cells with what was asked for in them, is more than skipped cases or absent values."""
    return not _skipped(cell for cell, _ in line) and any(word not in absent for _, word in line)


def _skipped(cells: Iterable[Cell | None]) -> bool:
    return {"" if cell.value is not None else cell.fate for cell in cells if cell is not None} == {"skipped"}


def _of_skipped(study: Study, ran: Sequence[Grid]) -> Iterator[str]:
    """``20 rows``, ``3 columns``, ``1 table``: what is not shown of skipped cases."""
    shown_in = {grid.others for grid in ran[:_GRIDS]}
    grids = [grid for grid in study.grids if grid.others in shown_in]
    lost = {
        "row": sum(_skipped(cells) for grid in grids for cells in grid.cells),
        "column": sum(_skipped(cells) for grid in grids for cells in zip(*grid.cells, strict=True)),
        "table": sum(_skipped(cell for cells in grid.cells for cell in cells) for grid in study.grids),
    }
    yield from (f"{many} {noun}{'' if many == 1 else 's'}" for noun, many in lost.items() if many)


def of_marks(study: Study) -> str:
    """The marks that every case carries, which no cell and no dot shows; empty where there are none."""
    shared = shared_marks(study)
    return f"Every case: *{escape(', '.join(shared))}*." if shared else ""


def _left_out(study: Study, ran: Sequence[Grid]) -> str:
    said = [of_marks(study)] if ran and of_marks(study) else []
    cells = [cell for grid in ran[:_GRIDS] for row in grid.cells for cell in row if cell is not None]
    if any(cell.value is None and not cell.fate for cell in cells):
        said.append(f"{MISSING}: none was recorded of that case.")
    if skipped := list(_of_skipped(study, ran)):
        said.append(f"Not shown: {listed(skipped)} of skipped cases.")
    if (more := len(ran) - _GRIDS) > 0:
        axes = listed(code(axis) for axis, _ in ran[0].others)
        said.append(f"{more} more like these, by {axes}, are left out: `where` or a further row chooses.")
    for axis, number_of in study.lacking.items():
        said.append(
            f"{_capitalised(cases(number_of))} without {code(axis)} {'is' if number_of == 1 else 'are'} left out."
        )
    return " ".join(said)


def _capitalised(text: str) -> str:
    return text[:1].upper() + text[1:]


def shared_marks(study: Study) -> tuple[str, ...]:
    """The marks that all of its cases carry, where it has several: they are said once and not in each cell."""
    value = next((value for value in study.values if value.of == "call"), None)
    ran = [cell.marks for of, cell in _valued(study) if of == value and (cell.marks or cell.value is not None)]
    return tuple(mark for mark in ran[0] if all(mark in marks for marks in ran)) if len(ran) > 1 else ()


# --- values ----------------------------------------------------------------------------------------------------------


def _valued(study: Study) -> Iterator[tuple[Asked, Cell]]:
    """Every cell with what was asked for in it."""
    for grid in study.grids:
        for row, cells in zip(grid.rows, grid.cells, strict=True):
            for column, cell in zip(grid.columns, cells, strict=True):
                if cell is not None:
                    yield _value_of(study, row, column), cell


def _value_of(study: Study, row: Sequence[Any], column: Sequence[Any]) -> Asked:
    at = dict(zip((*study.row_axes, *study.column_axes), (*row, *column), strict=True))
    return next((value for value in study.values if value.word == at.get("value")), study.values[0])


def unit(study: Study, value: Asked) -> Unit:
    """One unit for all its cells: the one that the study asks for, else that in which they read best.

    Times of kernels are parts of each other, and have one unit together.
    """
    stored = study.units.get(value.word, "")
    wanted = next((name for name in study.wanted if name in UNITS.get(stored, {})), None)
    if wanted is not None:
        return Unit(wanted, UNITS[stored][wanted])
    beside = [v for v in study.values if (v.of, v.unit) == ("kernels", "ns")] if value.of == "kernels" else []
    alike = beside if value in beside else [value]
    return unit_of(stored, (c.value for v, c in _valued(study) if v in alike and isinstance(c.value, (int, float))))


def plain_name(study: Study, value: Asked) -> str:
    """``time``, ``attention``, ``attention calls``: what a value is called, without its unit."""
    named = value.subject + (" calls" if value.of == "kernels" and value.figure == "calls" else "")
    on_cpu = _TITLES_CPU.get(value.word) if study.cpu else None
    return on_cpu or _TITLES.get(value.word, named)


def title(study: Study, value: Asked, units: Mapping[str, Unit]) -> str:
    """``time ms``, ``attention %``, ``attention calls``."""
    name = units[value.word].name
    return escape(plain_name(study, value)) + (f" {escape(name)}" if name else "")


def _shown(value: float | str, unit: Unit, stored: str, names: Mapping[str, str]) -> str:
    if isinstance(value, str):
        return code(names.get(value, value)) if stored == "kernel" else f"**{value}**" if value == "fail" else value
    written_as = {"share": percent, "calls": count, "x": ratio, "cosine": cosine}.get(stored)
    if written_as is not None and unit.size == 1.0:
        return written_as(value)
    if stored == "1" and unit.size == 1.0 and value.is_integer():
        return f"{value:.0f}"  # heads and tokens are counted, not measured
    return number(value / unit.size)


# --- the sheet -------------------------------------------------------------------------------------------------------


def _sheet(study: Study, grid: Grid, units: Mapping[str, Unit], names: Mapping[str, str]) -> Sheet:
    head = ["" if axis == "value" else escape(axis) for axis in study.row_axes]
    head += [_column(study, grid, column, units) for column in grid.columns]
    rows, texts, shared = [], set(), shared_marks(study)
    for row, cells in zip(grid.rows, grid.cells, strict=True):
        line = [label(study, axis, value, units) for axis, value in zip(study.row_axes, row, strict=True)]
        for i, (column, cell) in enumerate(zip(grid.columns, cells, strict=True), start=len(line)):
            value = _value_of(study, row, column)
            stored = "cosine" if value.subject.startswith("cosine") else study.units.get(value.word, "")
            line.append(_cell(cell, units[value.word], stored, names, shared))
            if cell is not None and isinstance(cell.value, str):
                texts.add(head[i])
        rows.append(line)
    return Sheet(head, rows, labels=len(study.row_axes), words=frozenset(texts))


def _cell(cell: Cell | None, unit: Unit, stored: str, names: Mapping[str, str], shared: Sequence[str]) -> str:
    if cell is None:
        return NOT_ASKED
    if cell.value is None:
        return escape(cell.fate) or MISSING
    own = [mark for mark in cell.marks if mark not in shared]
    return _shown(cell.value, unit, stored, names) + (f" *{escape(', '.join(own))}*" if own else "")


def _column(study: Study, grid: Grid, column: Sequence[Any], units: Mapping[str, Unit]) -> str:
    if not column:
        return title(study, study.values[0], units)
    parts = []
    for axis, value in zip(study.column_axes, column, strict=True):
        # A number says nothing without its axis, which the first of several columns names for all.
        bare = len(study.column_axes) == 1 and column != grid.columns[0]
        named = is_number(value) and not bare
        parts.append((f"{escape(axis)} " if named else "") + label(study, axis, value, units))
    return ", ".join(parts)


def label(study: Study, axis: str, value: Any, units: Mapping[str, Unit]) -> str:
    if axis == "value":
        return title(study, next(asked for asked in study.values if asked.word == value), units)
    if value is None:
        return MISSING
    if axis == study.compare:
        return code(shown(value)) + (" (baseline)" if value in study.baselines else "")
    return escape(in_words(((axis, value),))) if isinstance(value, bool) else escape(shown(value))
