"""ncu's text page: a line for each kernel, and below it the tables of its sections."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from profpipe import load
from profpipe.formats import numerals

if TYPE_CHECKING:
    import _ncu_sheet
else:
    _ncu_sheet = load.module(Path(__file__).with_name("_ncu_sheet.py"))

_PROCESS = re.compile(r"^\s*\[(\d+)\] \S+@\S+$")
_KERNEL = re.compile(
    r"^\s+(?P<name>\S.*?)(?: \(\d+, \d+, \d+\)x\(\d+, \d+, \d+\))?(?:, \d{4}-\w{3}-\d\d \d\d:\d\d:\d\d)?"
    r", Context \d+, Stream (?P<stream>\d+)(?:, Device (?P<device>\d+))?(?:, CC [\d.]+)?\s*$"
)
_RULER = re.compile(r"^\s*-{3,}(?: +-{3,})+\s*$")


def kernel_line(line: str) -> re.Match[str] | None:
    """The line of a kernel: its name, stream and device."""
    # The pattern alone takes seconds to find nothing in a line of a megabyte.
    return _KERNEL.match(line) if ", Context " in line[:65536] else None


def read(lines: Sequence[str]) -> _ncu_sheet.Sheet:
    """Launches of the text page, with the rows of the tables below each."""
    sheet, rows = _ncu_sheet.Sheet(is_details=True), list(_rows(lines))
    mark = numerals.decimal_mark(row.get("Metric Value", "") for row in rows)
    for cells in rows:
        launch = sheet.launch(0, cells)
        if "Metric Value" in cells:
            _ncu_sheet.add_row(launch, cells, mark)
    return sheet


def _rows(lines: Sequence[str]) -> Iterator[dict[str, str]]:
    """The cells of each kernel's line, then those of each row of its sections with the kernel's own before them.

    A row is cut where the ruler above it has its gaps, for a name may hold blanks and a unit be empty.
    """
    kernel: dict[str, str] = {}
    process, section, number = "", "", 0
    columns: list[slice] = []
    for line in lines:
        if found := _PROCESS.match(line):
            process = found[1]
        elif found := kernel_line(line):
            kernel = {"ID": str(number), "Process ID": process, "Kernel Name": found["name"]}
            kernel |= {"Stream": found["stream"], "Device": found["device"] or ""}
            number, columns = number + 1, []
            yield kernel
        elif _RULER.match(line):
            columns = [slice(*span.span()) for span in re.finditer("-+", line)]
        elif line.strip().startswith("Section: "):
            section, columns = line.strip().removeprefix("Section: "), []
        elif not line.strip():
            columns = []
        elif len(columns) == 3 and kernel:
            texts = [line[column].strip() for column in columns]
            named = dict(zip(("Metric Name", "Metric Unit", "Metric Value"), texts, strict=True))
            yield {**kernel, "Section Name": section, **named}
