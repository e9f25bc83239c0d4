"""A CSV file as columns of text, of which whole rows count and torn ones are counted."""

from __future__ import annotations

import csv
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

_TOO_LARGE = 2**63


@dataclass
class Sheet:
    """A CSV file: a list of texts for each column, all of one length. ``damaged`` rows were torn and left out."""

    path: Path
    columns: dict[str, list[str]]
    damaged: int = 0

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), []))

    def has(self, *names: str) -> bool:
        return all(name in self.columns for name in names)

    def first(self, *names: str) -> list[str] | None:
        """The first of the columns ``names`` that there is."""
        return next((self.columns[name] for name in names if name in self.columns), None)

    @property
    def notes(self) -> tuple[str, ...]:
        return (f"{self.damaged} row{'s' * (self.damaged > 1)} cut or torn, left out",) if self.damaged else ()

    def numbers(self, *names: str) -> Any:
        """That column as whole numbers, NA where there is none; ``Agent 4`` and ``GPU 4`` are 4, ``17.54`` is 18."""
        texts = self.first(*names)
        if texts is None:
            return pd.array([pd.NA] * len(self), dtype="Int64")
        try:
            return pd.array(np.array(texts, dtype=str).astype(np.int64), dtype="Int64")
        except (ValueError, OverflowError):
            return pd.array([_whole(text) for text in texts], dtype="Int64")


#: rocprof-compute averages the time stamps of its passes: ``41551790928449.54``.
_FRACTION = re.compile(r"(\d+)\.(\d)\d*", re.ASCII)


def _whole(text: str) -> Any:
    text = text.removeprefix("Agent ").removeprefix("GPU ")
    if parts := _FRACTION.fullmatch(text):
        # Not through float, which has no room for the ns of an epoch.
        return _whole(str(int(parts[1][:20]) + (parts[2] >= "5")))
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 20 else _TOO_LARGE
    return number if number < _TOO_LARGE else pd.NA


def opening(path: Path) -> list[str]:
    """The columns that the first line names, none where it is no text."""
    with path.open("rb") as file:
        line = file.readline(1 << 16).removeprefix(b"\xef\xbb\xbf")
    if b"\0" in line:
        return []
    try:
        return next(csv.reader([line.decode("utf-8", "replace").strip()]), [])
    except csv.Error:
        return []


def read(path: Path, unused: Collection[str] = ()) -> Sheet:
    """The file without the columns ``unused``; a row that has more or fewer cells than the first is damaged."""
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        rows = csv.reader(_without_nul(file))
        try:
            names = next(rows, [])
        except csv.Error:
            names = []
        columns: dict[str, list[str]] = {name: [] for name in names if name not in unused}
        places = [(names.index(name), values.append) for name, values in columns.items()]
        # A million rows repeat a few names and numbers; one text each is enough.
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
    return Sheet(path, columns, damaged)


def _resumed(rows: Iterator[list[str]]) -> Iterator[list[str] | None]:
    """``rows``, and None where the csv module gave one up.

    A quote that is never closed takes the lines behind it into its cell, until that is longer than the module allows.
    """
    while True:
        try:
            yield from rows
            return
        except csv.Error:
            yield None


def _without_nul(lines: Iterable[str]) -> Iterator[str]:
    # Up to Python 3.10 the csv module gives up at one.
    return (line.replace("\0", "") for line in lines)
