"""Read the tables of a page back: every number, in its stored unit, with the words that say what the number is."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

#: Names of units in heads and cells, and how many of the stored unit (ns, byte, Hz, 1) each one is.
UNITS = {
    "ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9, "byte": 1.0, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30,
    "byte/s": 1.0, "GB/s": 1e9, "TB/s": 1e12, "flop": 1.0, "MFLOP": 1e6, "GFLOP": 1e9, "TFLOP": 1e12, "TFLOP/s": 1e12,
    "million": 1e6, "billion": 1e9, "MHz": 1e6, "GHz": 1e9, "%": 0.01, "x": 1.0,
}  # fmt: skip

_MARKDOWN_RULE = re.compile(r"\|(?: ?:?-+:? ?\|)+$")
_TEXT_RULE = re.compile(r"-+(?:  -+)*$")
#: The letters of a table's flags, on the line below it.
_LEGEND = re.compile(r"\w+: \w+(?:, \w+: \w+)*$")
_PIPE = re.compile(r"(?<!\\)\|")
_NUMBER = re.compile(r"(?<![\w.])[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?(?=([%x]?)(?![\w.]*\w))")
_WORD = re.compile(r"[^\s,:;()|=>*]+")


@dataclass(frozen=True)
class Table:
    """A table of a page. ``heading`` is that of levels 2 and 3, ``title`` the line above it or its fold's summary."""

    workload: str
    heading: str
    title: str
    head: list[str]
    rows: list[list[str]]


@dataclass(frozen=True)
class Figure:
    """A number in its stored unit. ``precision`` is half of its last written digit."""

    value: float
    precision: float


def tables(page: str, workloads: Collection[str]) -> Iterator[Table]:
    """Yield the tables of a page of Markdown or of aligned text.

    The workload is the one that the heading or the line above names, or the only one.
    """
    headings, title, lines = ["", ""], "", page.splitlines()
    workload = only = next(iter(workloads)) if len(workloads) == 1 else ""
    for i, line in enumerate(lines):
        is_markdown, is_text = bool(_MARKDOWN_RULE.match(line)), i > 0 and bool(_TEXT_RULE.match(line))
        if found := re.match(r"(##+) (.*)", line):
            level = min(len(found[1]) - 2, 1)
            headings[level:] = [plain(found[2]), *[""] * (1 - level)]
            title = ""
            workload = only or next((name for name in workloads if re.search(rf": {name}(,|$)", headings[0])), "")
        elif found := re.match(r"<details><summary>(.*)</summary>", line):
            title = plain(found[1])
        elif line == "</details>":
            title = ""
        elif is_markdown or is_text:
            above = title if is_markdown or i < 3 or lines[i - 2] else plain(lines[i - 3])
            heading = " / ".join(filter(None, headings)).replace(f": {workload}", "")
            rows = _markdown_rows(lines[i - 1 :]) if is_markdown else _text_rows(lines[i - 1 :])
            yield Table(workload, heading, above, rows[0], rows[2:])
            title = ""
        elif line and not line.startswith("|"):
            title = plain(line) if len(line) < 200 else ""
            workload = next((name for name in workloads if title == name or title.startswith(f"{name} (")), workload)


def _markdown_rows(lines: list[str]) -> list[list[str]]:
    end = next((i for i, line in enumerate(lines) if not line.startswith("|")), len(lines))
    return [[plain(cell.strip()) for cell in _PIPE.split(line.strip())[1:-1]] for line in lines[:end]]


def _text_rows(lines: list[str]) -> list[list[str]]:
    spans = [found.span() for found in re.finditer("-+", lines[1])]
    # A very long name of the last column is wider than the rule below its head.
    spans[-1] = (spans[-1][0], None)
    end = next((i for i, line in enumerate(lines) if not line.strip()), len(lines))
    below = "".join(lines[end + 1 : end + 2])
    legend = dict(re.findall(r"(\w+): (\w+)", below)) if _LEGEND.match(below) else {}
    return [[_with_words(line[a:b].strip(), legend) for a, b in spans] for line in lines[:end]]


def _with_words(cell: str, legend: Mapping[str, str]) -> str:
    """Return the cell with its flags in words: ``9.00 (noisy, host_bound)`` for ``9.00 (n, h)``."""
    found = re.search(r"\(([\w, ]+)\)$", cell)
    if not found:
        return cell
    return cell[: found.start(1)] + ", ".join(legend.get(flag, flag) for flag in found[1].split(", ")) + ")"


def plain(markdown: str) -> str:
    """Return the text without markup."""
    text = re.sub(r"(`+) ?(.+?) ?\1", r"\2", markdown).replace("**", "").replace("\\|", "|")
    text = re.sub(r"\\([\\`*_\[\]|~])", r"\1", text)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")


def words(text: str) -> frozenset[str]:
    """Return the words of a label or a title, without units."""
    return frozenset(word.lower() for word in _WORD.findall(text) if word.removesuffix("/call") not in UNITS)


def figures(text: str, column: str, label: str) -> Iterator[Figure]:
    """Yield the numbers of a cell. Their unit stands behind them, in the column's head or in the row's first label."""
    of_table = _unit(column) or _unit(label) or 1.0
    for found in _NUMBER.finditer(text):
        behind = found[1] or (re.match(r"\S+", text[found.end() :].lstrip()) or [""])[0]
        unit = UNITS.get(behind.rstrip(",;)"), of_table)
        digits, _, exponent = found[0].partition("e")
        places = len(digits.partition(".")[2]) - int(exponent or 0)
        yield Figure(float(found[0]) * unit, 0.5 * 10.0**-places * unit)


def _unit(title: str) -> float | None:
    named = [UNITS[word] for word in re.split(r"[\s(),:]+", title.replace("/call", "")) if word in UNITS]
    return named[-1] if named else None
