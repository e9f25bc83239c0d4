"""``ncu --csv``: the raw page with a column for each metric, and the details page with a row for each."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from profpipe import load
from profpipe.errors import Refused
from profpipe.formats import counters, numerals

if TYPE_CHECKING:
    import _ncu_sheet
else:
    _ncu_sheet = load.module(Path(__file__).with_name("_ncu_sheet.py"))

_HEADER = re.compile(r'^"?ID"?[,;].*\bKernel Name\b')
RUN_AGAIN = "Profile again; the rest of ncu's output is missing."


def is_header(line: str) -> bool:
    return bool(_HEADER.match(line))


@dataclass
class _Segment:
    """What stands under one header: a column for each metric (``figures``), or on the details page a row for each."""

    header: list[str]
    units: dict[str, str] = field(default_factory=dict)
    rows: list[dict[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.is_long = "Metric Value" in self.header
        self.figures = ["Metric Value"] if self.is_long else list(counters.chosen(self.header))
        self.least = self.header.index("Metric Value") + 1 if self.is_long else len(self.header)

    def numbers(self) -> Iterator[str]:
        return (row[name] for row in self.rows for name in self.figures)


def read(path: Path, lines: Sequence[str], first: int) -> _ncu_sheet.Sheet:
    segments: list[_Segment] = []
    for number, row in _records(path, lines, first):
        if row[0] == "ID":
            segments.append(_Segment(row))
        elif not row[0]:
            segments[-1].units = dict(zip(segments[-1].header, row, strict=False))
        elif len(row) < segments[-1].least:
            raise Refused(path, f"ncu's CSV is cut or damaged in line {number}", RUN_AGAIN)
        else:
            segments[-1].rows.append(dict(zip(segments[-1].header, row, strict=False)))
    mark = numerals.decimal_mark(text for segment in segments for text in segment.numbers())
    sheet = _ncu_sheet.Sheet(is_details=any(segment.is_long for segment in segments))
    for number, segment in enumerate(segments):
        for place, cells in enumerate(segment.rows):
            if segment.is_long:
                _ncu_sheet.add_row(sheet.launch(number, cells), cells, mark)
            else:
                _add_columns(sheet.launch(number, cells, place), cells, segment, mark)
    return sheet


def _records(path: Path, lines: Sequence[str], first: int) -> Iterator[tuple[int, list[str]]]:
    """(line number, cells) of headers, rows of units and rows of launches; what else was printed is left out."""
    quote = '"' if lines[first].startswith('"') else ""
    comma = ";" if lines[first].count(";") > lines[first].count(",") else ","
    begins = re.compile(rf"^{quote}(?:ID|\d+|){quote}{comma}")
    for at in range(first, len(lines)):
        if not begins.match(lines[at]):
            continue
        # The text of a rule may go over several lines; the next row begins on a line of its own at the latest.
        record, following = lines[at], at + 1
        while record.count('"') % 2 and following < len(lines) and not begins.match(lines[following]):
            record, following = f"{record}\n{lines[following]}", following + 1
        try:
            (row,) = csv.reader([record], delimiter=comma, strict=True)
        except (csv.Error, ValueError) as error:
            raise Refused(path, f"ncu's CSV is cut or damaged in line {at + 1} ({error})", RUN_AGAIN) from error
        yield at + 1, row


def _add_columns(launch: counters.Launch, cells: dict[str, str], segment: _Segment, mark: str) -> None:
    """A row of the raw page: every metric of the launch."""
    for name in segment.figures:
        value = _ncu_sheet.number(cells[name], mark)
        if value is not None:
            launch.values[name] = (value, segment.units.get(name, ""))
