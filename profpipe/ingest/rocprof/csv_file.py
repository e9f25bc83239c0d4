"""Read a CSV file as columns of text: whole rows count, torn rows are left out and counted.

The csv module resumes behind a torn row. pyarrow 26 reads a kernel_trace of 1 million rows in 1.6 s instead of 6.1 s,
but can fail for a whole file with one quote that is never closed ("straddling object").
"""

from __future__ import annotations

import csv
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from profpipe.errors import UnreadableFile

_TOO_LARGE = 2**63


@dataclass
class CsvTable:
    """A CSV file: a list of texts for each column, all of one length. ``damaged`` counts the rows left out.

    ``step_range`` is the user's regular expression for the ranges that are steps.
    """

    path: Path
    columns: dict[str, list[str]]
    damaged: int = 0
    step_range: str = ""

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), []))

    def has(self, *names: str) -> bool:
        return all(name in self.columns for name in names)

    def first(self, *names: str) -> list[str] | None:
        """Return the first of the columns ``names`` that the file has."""
        return next((self.columns[name] for name in names if name in self.columns), None)

    @property
    def notes(self) -> tuple[str, ...]:
        return (f"{self.damaged} row{'s' * (self.damaged > 1)} cut or torn, left out",) if self.damaged else ()

    def unreadable(self, what: str, remedy: str) -> UnreadableFile:
        return UnreadableFile(self.path, "; ".join([what, *self.notes]), remedy)

    def numbers(self, *names: str) -> Any:
        """Return that column as Int64, NA where it has none; ``Agent 4`` and ``GPU 4`` are 4, ``17.54`` is 18."""
        texts = self.first(*names)
        if texts is None:
            return pd.array([pd.NA] * len(self), dtype="Int64")
        try:
            return pd.array(np.array(texts, dtype=str).astype(np.int64), dtype="Int64")
        except (ValueError, OverflowError):
            return pd.array([_whole(text) for text in texts], dtype="Int64")

    def all_numbers(self, names: Mapping[str, str]) -> dict[str, Any]:
        """Return the columns of numbers that ``names`` (our name -> the file's) lists."""
        return {ours: self.numbers(theirs) for ours, theirs in names.items()}


#: rocprof-compute averages the time stamps of its passes: ``41551790928449.54``.
_FRACTION = re.compile(r"(\d+)\.(\d)\d*", re.ASCII)


def _whole(text: str) -> Any:
    text = text.removeprefix("Agent ").removeprefix("GPU ")
    if parts := _FRACTION.fullmatch(text):
        # A float has too few digits for the ns of an epoch.
        return _whole(str(int(parts[1][:20]) + (parts[2] >= "5")))
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 20 else _TOO_LARGE
    return number if number < _TOO_LARGE else pd.NA


def read_beside(path: Path, needed: Collection[str], unused: Collection[str] = ()) -> CsvTable | None:
    """Read another file of a recording, None where it is missing, empty or lacks one of the columns ``needed``."""
    if not path.is_file() or not path.stat().st_size:
        return None
    table = read(path, unused)
    return table if table.has(*needed) else None


def read_header(path: Path) -> list[str]:
    """Return the columns in the first line of ``path``, none where the line is no text."""
    with path.open("rb") as file:
        line = file.readline(1 << 16).removeprefix(b"\xef\xbb\xbf")
    if b"\0" in line:
        return []
    try:
        return next(csv.reader([line.decode("utf-8", "replace").strip()]), [])
    except csv.Error:
        return []


def read(path: Path, unused: Collection[str] = ()) -> CsvTable:
    """Read the file without the columns ``unused``. A row with another number of cells than the first is damaged."""
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        # Up to Python 3.10 the csv module gives up at a NUL.
        rows = csv.reader(line.replace("\0", "") for line in file)
        try:
            names = next(rows, [])
        except csv.Error:
            names = []
        columns: dict[str, list[str]] = {name: [] for name in names if name not in unused}
        places = [(names.index(name), values.append) for name, values in columns.items()]
        # A million rows repeat a few names and numbers: keep one text of each.
        once: dict[str, str] = {}
        whole = damaged = 0
        for row in _resumed(rows):
            if row is None:
                damaged = rows.line_num - 1 - whole
            elif len(row) == len(names):
                whole += 1
                for place, append in places:
                    append(once.setdefault(row[place], row[place]))
            elif row:
                damaged += 1 + sum(cell.count("\n") for cell in row)
    return CsvTable(path, columns, damaged)


def _resumed(rows: Iterator[list[str]]) -> Iterator[list[str] | None]:
    """Yield ``rows``, and None for a row that the csv module gave up.

    A quote that is never closed takes the lines behind it into its cell, until the cell is too long for the module.
    """
    while True:
        try:
            yield from rows
            return
        except csv.Error:
            yield None
