"""Bounds on what a file may hold: a damaged, hostile or merely very large file must not take all time and memory.

Where an honest program can pass a bound, the rest is folded into one row, so that all sums stay right, and the report
says so. Anything else is refused. ``results.budget`` bounds the time and memory that reading takes.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from profpipe.results.budget import TooLarge as TooLarge

#: Characters of a kernel's name that are demangled, spelt alike and classified. The longest recorded name has 6,000.
LONGEST_NAME: Final = 10_000
#: Distinct names of kernels in one file.
MOST_NAMES: Final = 20_000
#: The same in a file of sums, which has a row for each of them: it is refused.
MOST_SUMMED_NAMES: Final = 100_000
#: Ranges nested in ranges, and those inside a case. A program that pushes without popping nests without end.
DEEPEST: Final = 64
#: Distinct paths of nested ranges in one file.
MOST_PATHS: Final = 20_000
#: Distinct paths together with the cases, which are never folded.
MOST_CASES: Final = 100_000
#: Repetitions of a pattern of launches that count as steps.
MOST_PATTERN_STEPS: Final = 50_000
#: Characters of a range's name.
LONGEST_RANGE: Final = 1_000

#: Lines of a text, and entries of a trace that are no events.
MOST_LINES: Final = 20_000_000
MOST_OTHER_ENTRIES: Final = 1_000_000
#: The first bytes of an SQLite file.
SQLITE_HEAD: Final = b"SQLite format 3\0"
#: The tables of a profiler's database. A view or a virtual table is a program, which may never end.
SELECT_TABLES: Final = "SELECT name FROM sqlite_master WHERE type = 'table' AND sql NOT LIKE 'CREATE VIRTUAL%'"

OTHER_KERNELS: Final = "[other kernels]"
OTHER_RANGES: Final = "[other ranges]"


def most_unzipped(zipped: int) -> int:
    """Return the bytes that a zip of ``zipped`` bytes may hold. Traces and CSV shrink to a tenth or a thirtieth."""
    return (1 << 27) + 50 * zipped


def check_unzipped(size: int, zipped: int) -> None:
    """Raise ``TooLarge`` for a zip of ``zipped`` bytes that holds ``size`` bytes or more."""
    if size > most_unzipped(zipped):
        raise TooLarge(f"it unzips to more than {most_unzipped(zipped) >> 20:,} MiB")


def fold_names(
    codes: npt.NDArray[Any], names: list[str], weights: npt.NDArray[Any]
) -> tuple[npt.NDArray[Any], list[str], int]:
    """Keep the ``MOST_NAMES`` of ``names`` with the largest sums of ``weights``; give the others one name.

    ``codes`` index ``names``. Return codes, names, and how many names were folded.
    """
    if len(names) <= MOST_NAMES:
        return codes, names, 0
    sums = np.bincount(codes, weights=weights, minlength=len(names))
    kept = np.sort(np.argsort(-sums, kind="stable")[: MOST_NAMES - 1])
    number = np.full(len(names), len(kept), dtype=codes.dtype)
    number[kept] = np.arange(len(kept))
    return number[codes], [*(names[code] for code in kept), OTHER_KERNELS], len(names) - len(kept)


def note_of_names(folded: int) -> str:
    """Return what a report says about ``folded`` names of kernels."""
    return f"{folded:,} names of kernels beyond the {MOST_NAMES - 1:,} that took longest are one row, {OTHER_KERNELS}"
