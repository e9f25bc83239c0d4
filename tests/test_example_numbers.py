"""Every number that the pages of the committed examples showed is still on their pages.

``golden/example_cells.parquet`` holds the cells with numbers of all tables of the pages and of the text files: example,
start of its run, page, workload, heading, title of the table, labels of the row, column and text. Most were recorded
before the report was rebuilt; `pytest --regenerate` records an example that was measured again. The SM clocks of
``context_parallel`` are those of the slower GPU of each case; before, they were those of the first one. The causes of
differences in ``h200-attention`` include what ncu adds to a launch; before, two differences had no known cause. The
test looks on the pages of each example for every number in a row with the same labels, up to the digits that both pages
write.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from page_tables import Figure, figures, tables, words

ROOT = Path(__file__).resolve().parents[1]
GOLDEN = ROOT / "tests" / "golden" / "example_cells.parquet"
RECORDED = pd.read_parquet(GOLDEN)
EXAMPLES = sorted(RECORDED["example"].unique())

#: Recorded section -> the sections that hold its figures now. A section is a heading of level 2 without what follows
#: its first comma, or the name of a text file. One that is not listed has kept its name.
SECTIONS: Mapping[str, tuple[str, ...]] = {
    "": ("", "Times"),
    "Answer": ("Times",),
    "What a swap really costs": ("Cost of switching implementation",),
    "What is unclassified": ("Classification",),
    "What the study asked": ("Study tables", "Study plots"),
}

#: Recorded column, in lower case and without its unit -> the columns that hold its figures now. One that is not listed
#: has kept its name.
COLUMNS: Mapping[str, tuple[str, ...]] = {
    "marks": ("flags",),
    "what else changes, per call": ("other changes per call",),
    "what else changes, per": ("other changes per call",),
    "% of the workload's time": ("of the workload's time %",),
    "gpu": ("gpu time",),
    "peak": ("peak", "peak memory"),
    "sm": ("sm clock",),
    "w": ("power w",),
    "degc": ("degc temperature",),
    "%": ("%", "of kernel time %"),
    "top stall": ("top stall, cycles/instruction",),
}

#: Word of a recorded label -> the word that replaced it.
WORDS: Mapping[str, str] = {"level": "tie", "attn": "attention"}

#: Recorded columns of times whose unit stood in the head of another column. Today's columns name their own unit.
WITHOUT_UNIT = frozenset({"some kernel runs", "first to last kernel", "host in its range"})


@dataclass(frozen=True)
class Shown:
    """A figure of a page of today. ``context`` are all words of its row, column, title and heading."""

    figure: Figure
    column: str
    context: frozenset[str]


Pages = Mapping[tuple[str, str], list[Shown]]


def read_pages(example: str) -> Pages:
    """Return the figures of the committed pages by workload and section, sorted by their values.

    ``test_examples.py`` holds that the pages are those that the present code writes.
    """
    folder = ROOT / "examples" / example
    workloads = list(read_run(example)["pipeline"]["workloads"])
    found: dict[tuple[str, str], list[Shown]] = {}
    for page in sorted((*folder.glob("*.md"), *folder.glob("*.txt"))):
        for table in tables(page.read_text(encoding="utf-8"), workloads):
            above = words(f"{table.heading} {table.title}")
            place = found.setdefault((table.workload, section_of(page.name, table.heading)), [])
            for row in table.rows:
                context = above.union(*map(words, row))
                for head, text in zip(table.head, row, strict=True):
                    own = context | words(head)
                    place += [Shown(figure, column_of(head), own) for figure in figures(text, head, row[0])]
    for place in found.values():
        place.sort(key=lambda shown: shown.figure.value)
    return found


def read_run(example: str) -> dict[str, Any]:
    return dict(json.loads((ROOT / "examples" / example / "run.json").read_text(encoding="utf-8")))


def cells(example: str) -> Iterator[dict[str, str]]:
    """Yield the cells with numbers of the example's committed pages. A parameter is a label, even if it is a number."""
    folder, run = ROOT / "examples" / example, read_run(example)
    parameters = {part.partition("=")[0] for case in case_names(run) for part in case.split(",")}
    for page in sorted((*folder.glob("*.md"), *folder.glob("*.txt"))):
        for table in tables(page.read_text(encoding="utf-8"), list(run["pipeline"]["workloads"])):
            place = {"workload": table.workload, "heading": table.heading, "title": table.title}
            for row in table.rows:
                numbers, labels = [], []
                for head, text in zip(table.head, row, strict=True):
                    is_number = head not in parameters and any(figures(text, head, row[0]))
                    (numbers if is_number else labels).append((head, text))
                named = {**place, "labels": "\t".join(text for _, text in labels if text)}
                for head, text in numbers:
                    yield {"example": example, "page": page.name, **named, "column": head, "text": text}


def case_names(run: Mapping[str, Any]) -> set[str]:
    return {case for job in run["jobs"] for case in job["cases"]}


def section_of(page: str, heading: str) -> str:
    return re.split(r", | / ", heading)[0].strip() if page.endswith(".md") else page


def column_of(head: str) -> str:
    return " ".join(sorted(words(head)))


def parameter_values(example: str) -> frozenset[str]:
    """Return the words of all parameters' values in the names of the example's cases."""
    parts = [part for case in case_names(read_run(example)) for part in case.split(",")]
    return frozenset().union(*(words(part.partition("=")[2]) for part in parts))


def test_the_recorded_numbers_are_those_of_the_committed_runs(regenerate: bool) -> None:
    recorded = dict(zip(RECORDED["example"], RECORDED["started"], strict=True))
    measured_again = [name for name in EXAMPLES if read_run(name)["started"] != recorded[name]]
    if regenerate and measured_again:
        rows = [{**cell, "started": read_run(name)["started"]} for name in measured_again for cell in cells(name)]
        others = RECORDED[~RECORDED["example"].isin(measured_again)]
        table = pd.concat([others, pd.DataFrame(rows)[RECORDED.columns]]).sort_values("example", kind="stable")
        table.to_parquet(GOLDEN, index=False, compression="zstd", compression_level=19)
    else:
        assert not measured_again, f"record their numbers: pytest --regenerate {Path(__file__).name}"


#: The examples that are read for every change; one has four profilers, one study tables.
QUICK = ("h200-attention", "cogvideox")


@pytest.mark.parametrize(
    "example", [pytest.param(name, marks=() if name in QUICK else pytest.mark.exhaustive) for name in EXAMPLES]
)
def test_every_recorded_number_is_on_the_pages_of_today(example: str) -> None:
    pages, values = read_pages(example), parameter_values(example)
    lost: Counter[tuple[str, str]] = Counter()
    first: dict[tuple[str, str], str] = {}
    for cell in RECORDED[RECORDED["example"] == example].itertuples():
        if cell.title == "Time that a profiler adds to the loop" and str(cell.text).startswith("-"):
            continue  # no profiler adds a negative time, and the page says "none"
        key = (section_of(str(cell.page), str(cell.heading)), str(cell.column))
        count = sum(not is_found for is_found in search(cell, pages, values))
        if count:
            lost[key] += count
            first.setdefault(key, f"{cell.workload} | {cell.title} | {cell.labels} | {cell.text}")
    assert not lost, "\n".join(f"{key}: {count} numbers, first {first[key]}" for key, count in lost.most_common())


def search(cell: Any, pages: Pages, values: frozenset[str]) -> Iterator[bool]:
    """Yield for each number of the recorded cell whether today's pages have it."""
    section, labels = section_of(cell.page, cell.heading), cell.labels.split("\t")
    needed = frozenset().union(*map(words, labels)) - {"baseline"}
    # A title is the place of its table, unless it is the sentence above it; a heading names the largest shape.
    place = cell.title if cell.title and not cell.title.endswith(".") else cell.heading
    needed |= words(f"{place} {cell.column}") & values
    needed = frozenset(WORDS.get(word, word) for word in needed)
    names = COLUMNS.get(" ".join(cell.column.lower().split()[:-1]), ()) or COLUMNS.get(cell.column.lower(), ())
    columns = {column_of(name) for name in (*names, cell.column)}
    sections = SECTIONS.get(section, (section,))
    places = [
        place
        for (workload, where), place in pages.items()
        if where in sections and (workload == cell.workload or not workload or not cell.workload)
    ]
    for figure in figures(cell.text, cell.column, labels[0]):
        factors = (1.0, 1e3, 1e6, 1e9) if cell.column in WITHOUT_UNIT else (1.0,)
        scaled = [Figure(figure.value * factor, figure.precision * factor) for factor in factors]
        yield any(_holds(place, each, needed, columns) for place in places for each in scaled)


def _holds(place: list[Shown], wanted: Figure, needed: frozenset[str], columns: set[str]) -> bool:
    # Today's page may write fewer digits, though never fewer than two.
    widest = wanted.precision + 0.06 * abs(wanted.value)
    low = bisect_left(place, wanted.value - widest, key=lambda shown: shown.figure.value)
    high = bisect_right(place, wanted.value + widest, key=lambda shown: shown.figure.value)
    return any(
        abs(shown.figure.value - wanted.value) <= 1.001 * (wanted.precision + shown.figure.precision)
        and needed <= shown.context
        and shown.column in columns
        for shown in place[low:high]
    )


@pytest.mark.parametrize(
    ("text", "column", "labels", "is_found"),
    [
        ("81.7", "time us", "fa2", True),
        ("0.0817", "time ms", "fa2", True),
        ("81.9", "time us", "fa2", False),
        ("81.7", "time ms", "fa2", False),
        ("81.7", "time us", "fa3", False),
        ("81.7", "p90 us", "fa2", False),
        ("81.7", "512: us", "fa2", False),
    ],
)
def test_only_the_same_number_of_the_same_row_and_column_counts(
    text: str, column: str, labels: str, is_found: bool
) -> None:
    pages = {("w", "Times"): [Shown(Figure(81_700.0, 50.0), "time", frozenset({"fa2", "512", "time"}))]}
    cell = SimpleNamespace(
        page="SUMMARY.md", workload="w", heading="Times, by case", title="", labels=labels, column=column, text=text
    )
    assert list(search(cell, pages, frozenset({"512"}))) == [is_found]
