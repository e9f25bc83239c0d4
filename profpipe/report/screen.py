"""Lay out the first screen of a report for a terminal: within its width, and at most about forty lines.

A screen is a list of parts. Each part is a list of JSON values, so that a results folder keeps the screen for terminals
of any width:

    ["text", sentence]
    ["items", title, [sentence, ...]]
    ["bars", title, number of further bars, [[name, time, [[key, part, share of the longest bar], ...]], ...]]
    ["table", title, [[head, is_numeric, importance], ...], number of further rows, [[cell, ...], ...]]

Printing must cost nothing: nothing that loads pandas is imported here.
"""

from __future__ import annotations

import shutil
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from profpipe.report.units import percent
from profpipe.stdio import visible, visible_line

Screen: TypeAlias = list[list[Any]]

#: Lines of a screen, without the paths below it; and rows of a table and sentences of a list that are left in any case.
_MOST_LINES: Final = 36
_LEAST: Final = 3
#: Columns: longer lines are hard to read, and a narrower terminal is not supported.
_WIDEST, _NARROWEST = 120, 20
#: Names in a table are shortened to this width before a column is left out: one without importance, then any.
_NAME: Final = (40, 20)
#: By the key of a part of a step, how a bar draws it: with block characters, and in ASCII. Kernels take the others.
_FILLS: Final = {
    "step_communication": "▞~",
    "step_copy": "▄c",
    "step_idle_launch": "░.",
    "step_idle_blocked": "▁,",
    "step_idle_other": "·_",
}
_KERNELS: Final = ("█#", "▓=", "▒+", "▚*", "▌|", "▗o", "▙%", "▖@", "▀^")
#: What a terminal that shows only ASCII is given for a character of our own. The ellipsis stands in aligned columns.
_ASCII: Final = str.maketrans({"…": "~", "±": "+-", "–": "-", "→": "->", "·": "-", "×": "x"})


def lay_out(
    screen: Screen, width: int | None = None, encoding: str | None = None, most_lines: int = _MOST_LINES
) -> str:
    """Return the screen as lines of at most ``width`` columns; the default is that of the terminal, else 80.

    Paths, and commands with one, are not divided: they can be copied.
    """
    width = max(min(width or shutil.get_terminal_size().columns, _WIDEST), _NARROWEST)
    is_drawn = _encodes("█▞▁…", encoding or getattr(sys.stdout, "encoding", None) or "ascii")
    parts: Screen = screen if is_drawn else _convert_to_ascii(screen)
    # Each row and sentence takes a line at least. A file may have hundreds of remarks, which are not laid out in vain.
    most = [min(len(part[-1]), most_lines) for part in parts]
    while True:
        blocks = [_lines(part, most[i], width, is_drawn) for i, part in enumerate(parts)]
        excess = sum(len(block) + 1 for block in blocks) - 1 - most_lines
        # Tables give way first, then the remarks; what stands last are the warnings.
        giving = [
            i for kind in ("table", "items") for i in range(len(parts)) if parts[i][0] == kind and most[i] > _LEAST
        ]
        if excess <= 0 or not giving:
            break
        most[giving[0]] -= 1
    text = visible("\n\n".join("\n".join(block) for block in blocks if block))
    return text if is_drawn else text.translate(_ASCII)


def _convert_to_ascii(node: Any) -> Any:
    return (
        list(map(_convert_to_ascii, node))
        if isinstance(node, list)
        else node.translate(_ASCII)
        if isinstance(node, str)
        else node
    )


def _encodes(text: str, encoding: str) -> bool:
    try:
        return bool(text.encode(encoding))
    except (UnicodeError, LookupError):
        return False


def _lines(part: Sequence[Any], most: int, width: int, is_drawn: bool) -> list[str]:
    match part:
        case ["text", text]:
            return wrap(text, width)
        case ["items", title, items]:
            shown = [*items[:most], *_more(len(items) - most)]
            return [*wrap(title, width), *(line for item in shown for line in wrap(f"- {item}", width, "  "))]
        case ["bars", title, more, bars]:
            return [*wrap(title, width), *_bars(bars, width, 0 if is_drawn else 1), *_more(more)]
        case ["table", title, columns, more, rows]:
            return [*wrap(title, width), *fit(columns, rows[:most], width), *_more(more + len(rows) - most)]
    raise ValueError(part)


def _more(number: int) -> list[str]:
    return [f"{number} more"] if number > 0 else []


# --- text ------------------------------------------------------------------------------------------------------------


def display_width(text: str) -> int:
    """Return the columns of a terminal that ``text`` takes: two for a letter of Chinese, none for a combining mark."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(char) in "WF" for char in text)
    return len(text) + wide - sum(unicodedata.category(char) in ("Mn", "Me") for char in text)


def wrap(text: str, width: int, indent: str = "") -> list[str]:
    """Return lines of at most ``width`` columns. A longer word is shortened in its middle, but a path stays whole."""
    lines: list[str] = []
    for word in text.split():
        shown = word if "/" in word else cut(word, width - len(indent))
        if lines and (lines[-1] == "-" or display_width(lines[-1]) + 1 + display_width(shown) <= width):
            lines[-1] += f" {shown}"
        else:
            lines.append(f"{indent if lines else ''}{shown}")
    return lines


def cut(text: str, width: int) -> str:
    """Return ``text``, or its beginning and its end around an ellipsis in ``width`` columns."""
    if display_width(text) <= width:
        return text
    end = _take(reversed(text), (width - 1) // 3)[::-1]
    return f"{_take(text, width - 1 - display_width(end))}…{end}"


def _take(chars: Iterable[str], width: int) -> str:
    """Return the first characters that fit into ``width`` columns."""
    taken = ""
    for char in chars:
        width -= display_width(char)
        if width < 0:
            break
        taken += char
    return taken


# --- tables ----------------------------------------------------------------------------------------------------------


def fit(columns: Sequence[Sequence[Any]], rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Return the lines of a table: its widest texts are shortened, and the least important columns left out and named.

    ``columns`` are (head, whether it holds numbers, importance from 0 on). No line is wider than ``width``. Columns
    without importance are also left out where names in the first one would look alike.
    """
    cells = [[head for head, *_ in columns], *([visible_line(cell) for cell in row] for row in rows)]
    natural = [max(map(display_width, column)) for column in zip(*cells, strict=True)]
    kept = list(range(len(columns)))
    while True:
        widths = dict(zip(kept, (natural[i] for i in kept), strict=True))
        least_important = min(kept[1:], key=lambda i: (columns[i][2], -i), default=0)
        least = _NAME[columns[least_important][2] > 0] if len(kept) > 1 else 1
        for i in sorted((i for i in kept if not columns[i][1] or len(kept) == 1), key=lambda i: -natural[i]):
            excess = sum(widths.values()) + 2 * (len(kept) - 1) - width
            widths[i] -= max(min(excess, widths[i] - least), 0)
        # The first column names the rows: two names that differ should not look the same.
        fits, first = sum(widths.values()) + 2 * (len(kept) - 1) <= width, {row[0] for row in cells}
        is_clear = len({cut(name, widths[0]) for name in first}) == len(first)
        if len(kept) == 1 or (fits and (is_clear or columns[least_important][2])):
            break
        kept.remove(least_important)
    lines = ["  ".join(_put(row[i], widths[i], columns[i][1]) for i in kept).rstrip() for row in cells]
    left_out = [head for i, head in enumerate(cells[0]) if i not in kept]
    return [*lines, *(wrap(f"not shown: {'; '.join(left_out)}", width) if left_out else [])]


def _put(cell: str, width: int, is_numeric: bool) -> str:
    shown = cut(cell, width)
    blank = " " * (width - display_width(shown))
    return blank + shown if is_numeric else shown + blank


# --- bars ------------------------------------------------------------------------------------------------------------


def _bars(bars: Sequence[Any], width: int, style: int) -> Iterator[str]:
    """Yield a line per bar, and the legend, which has the percentages of a lone bar."""
    parts = {name: key for *_, pieces in bars for key, name, _ in pieces}
    kernels = [name for name, key in parts.items() if key not in _FILLS]
    fills = {name: _FILLS.get(key) or _KERNELS[kernels.index(name) % len(_KERNELS)] for name, key in parts.items()}
    names = [cut(name, width // 3) for name, *_ in bars]
    before, after = (max(map(display_width, texts)) for texts in (names, [time for _, time, _ in bars]))
    room = width - before - after - (before > 0) * 2 - (after > 0) * 2
    for name, (_, time, pieces) in zip(names, bars, strict=True):
        bar = _bar([(fills[part][style], share) for _, part, share in pieces], room, is_lone=len(bars) == 1)
        line = [_put(name, before, False), f"{bar:{room}}", _put(time, after, True)]
        yield "  ".join(filter(None, line)).rstrip()
    yield from _legend(bars, {name: fills[name][style] for name in parts}, parts, width)


def _legend(bars: Sequence[Any], fills: Mapping[str, str], keys: Mapping[str, str], width: int) -> Iterator[str]:
    """Yield what the fills mean: compute and idle time on lines of their own. Of a lone bar the shares stand behind."""
    shares = {name: share for *_, pieces in bars for _, name, share in pieces} if len(bars) == 1 else {}
    groups: dict[str, list[str]] = {"compute": [], "idle": [], "": []}
    for name, key in keys.items():
        groups["idle" if key.startswith("step_idle") else "" if key in _FILLS else "compute"].append(name)
    for group, names in groups.items():
        is_summed = bool(group) and len(names) > 1
        whole = f" {percent(sum(shares[name] for name in names))} %" if shares and names else ""
        lines = [f"{group}{whole}:"] if is_summed else []
        for name in names:
            said = name.removeprefix(f"{group}: ") if is_summed else name
            entry = cut(f"{fills[name]} {said}{f' {percent(shares[name])} %' if shares else ''}", width - 2)
            if lines and display_width(lines[-1]) + 2 + display_width(entry) <= width:
                lines[-1] += f"  {entry}"
            else:
                lines.append(f"{'  ' if lines else ''}{entry}")
        yield from lines


def _bar(pieces: Sequence[tuple[str, float]], room: int, is_lone: bool) -> str:
    """Return a bar whose pieces end where their sum does, so that no error of rounding adds up.

    With several bars each wide piece has its share of the whole bar in it.
    """
    whole, end, drawn = sum(share for _, share in pieces), 0.0, ""
    for fill, share in pieces:
        end += share
        size = round(end * room) - len(drawn)
        text = f" {percent(share / whole)} % "
        drawn += text.center(size, fill) if not is_lone and size >= len(text) + 2 else fill * size
    return drawn
