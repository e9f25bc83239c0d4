"""The picture of a chart: one drawing for each panel, on report.html or together in a file."""

from __future__ import annotations

import functools
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from markupsafe import Markup

from profpipe import plugins
from profpipe.report import document as doc
from profpipe.report.markdown import plot_path
from profpipe.report.markup import cut, element, empty, flat
from profpipe.report.svg import bars, lines, points
from profpipe.report.svg.palette import key_class, line_classes, series_class
from profpipe.report.svg.scales import LETTER, LINE, Drawing, text_width
from profpipe.results import atomic

_DRAWINGS: Mapping[doc.ChartKind, Callable[[doc.Chart, Sequence[doc.Series]], Drawing]] = {
    doc.ChartKind.STACKED_BARS: bars.picture,
    doc.ChartKind.COURSE: points.course,
    doc.ChartKind.STRIP: points.strip,
    doc.ChartKind.INTERVALS: points.intervals,
    doc.ChartKind.FOREST: points.intervals,
}

#: The style of the drawings, light and dark.
STYLE = "chart.css"

#: Pixels around what a file holds and of a row of its legend, and letters of a name there.
_AROUND, _ROW, _NAME = 14, 20, 60
#: What only a page can use, whose script shows and selects points.
_OF_SCRIPT = re.compile(r' data-[a-z]+="[^"]*"')
_LIGHT_DARK, _FIRST, _SECOND = re.compile(r"light-dark\(([^,]+), ([^)]+)\)"), r"\1", r"\2"


def draw(chart: doc.Chart, panel: Sequence[doc.Series], columns: int = 2) -> Drawing:
    """Return the drawing of a panel, of which ``columns`` stand in a row."""
    if _is_over_axis(chart):
        return lines.picture(chart, panel, columns)
    return _DRAWINGS[chart.kind](chart, panel)


def _is_over_axis(chart: doc.Chart) -> bool:
    return chart.kind in (doc.ChartKind.LINES, doc.ChartKind.ROOFLINE)


def heading(chart: doc.Chart) -> str:
    """Return the title, with the unit where no axis names it."""
    unit = chart.y.unit.name if _is_over_axis(chart) and chart.y.unit else ""
    return ", ".join(filter(None, [chart.title, unit]))


def legend(chart: doc.Chart) -> Iterator[tuple[doc.Series, str, Drawing]]:
    """Yield each named series of a chart with several: its classes and its sign."""
    every = {series.key: series for series in chart.series if series.name}
    if len(every) < 2:
        return
    classes = line_classes(chart)
    for key, series in every.items():
        if chart.kind is doc.ChartKind.STACKED_BARS:
            box = empty("rect", x=1, y=2, width=13, height=13, rx=2, class_="piece")
            yield series, series_class(series, key_class(key)), Drawing(box, 16, 16)
        else:
            colour, shape = classes[key]
            sign = lines.swatch(shape, chart.kind is doc.ChartKind.LINES)
            yield series, series_class(series, colour), Drawing(sign, 24, 16)


# --- files -----------------------------------------------------------------------------------------------------------


def write_files(document: doc.Document, folder: Path) -> None:
    """Write the charts of SUMMARY.md and details.md into ``folder``/plots."""
    for section in document.without(doc.Placement.HTML).sections:
        for block in section.walk():
            if isinstance(block, doc.Chart):
                path = folder / plot_path(block)
                atomic.make_folder(path.parent)
                atomic.write_text(path, picture(block))


def picture(chart: doc.Chart) -> str:
    """Return a file that needs no other: its style is inside, for a light and a dark page."""
    columns = _columns(chart)
    drawings = {title: draw(chart, panel, columns) for title, panel in chart.panels.items()}
    width = columns * (max(drawing.width for drawing in drawings.values()) + _AROUND) + _AROUND
    most = int((width - 2 * _AROUND) / LETTER)
    title = cut(flat(heading(chart)), int(most * 0.8))
    parts, y = [element("text", title, x=_AROUND, y=27, class_="title")], 30.0
    for line in textwrap.wrap(flat(chart.subtitle), most, max_lines=2, placeholder="…"):
        y += LINE
        parts.append(element("text", line, x=_AROUND, y=y, class_="label"))
    y += LINE
    # The names of the only lines stand at their ends.
    if not lines.names_lines(chart):
        own, y = _legend_below(chart, y, width)
        parts += own
    for i, (name, drawing) in enumerate(drawings.items()):
        x = _AROUND + i % columns * (drawing.width + _AROUND)
        if name:
            shown = cut(flat(name), int(drawing.width / LETTER))
            parts.append(element("text", shown, x=x, y=y + 14, class_="panel-title"))
        top = y + (20 if name else 0)
        parts.append(element("g", drawing.content, transform=f"translate({x:g} {top:g})"))
        if i % columns == columns - 1 or i == len(drawings) - 1:
            y = top + drawing.height + _AROUND / 2
    ground = empty("rect", width=width, height=y, rx=8, class_="ground")
    body = _OF_SCRIPT.sub("", element("g", ground, *parts, class_="picture"))
    style = element("style", Markup(_style_of(body)))
    return element("svg", style, Markup(body), xmlns="http://www.w3.org/2000/svg", width=width, height=y,
                   viewBox=f"0 0 {width:g} {y:g}", role="img", aria_label=title) + "\n"  # fmt: skip


def _legend_below(chart: doc.Chart, y: float, width: float) -> tuple[list[Markup], float]:
    """Return the names of the series in rows from ``y`` on, and where the rows end."""
    parts, x = [], float(_AROUND)
    for series, classes, sign in legend(chart):
        name = cut(flat(series.name), _NAME)
        room = sign.width + text_width(name) + 2 * _AROUND
        if x > _AROUND and x + room > width:
            x, y = float(_AROUND), y + _ROW
        text = element("text", name, x=sign.width + 6, y=12)
        parts.append(element("g", sign.content, text, transform=f"translate({x:g} {y:g})", class_=classes))
        x += room
    return parts, y + _ROW + 4 if parts else y


def _columns(chart: doc.Chart) -> int:
    """Return 2, so that both values of the last axis stand side by side, or 3 where the axis has three values."""
    if len(chart.panels) == 1:
        return 1
    last = {title.rpartition(", ")[2] for title in chart.panels}
    return 3 if len(last) == 3 and len(chart.panels) % 3 == 0 else 2


def _style_of(body: str) -> str:
    """Return the rules for the classes in ``body``, for viewers that know neither variables nor ``light-dark()``."""
    used = {name for names in re.findall(r'class="([^"]*)"', body) for name in names.split()}
    light, dark = [], []
    for selector, own in _rules():
        if used.issuperset(re.findall(r"\.([\w-]+)", selector)):
            light.append(f"{selector}{{{_LIGHT_DARK.sub(_FIRST, own)}}}")
            if differing := ";".join(part for part in own.split(";") if "light-dark" in part):
                dark.append(f"{selector}{{{_LIGHT_DARK.sub(_SECOND, differing)}}}")
    return f"{''.join(light)}@media (prefers-color-scheme:dark){{{''.join(dark)}}}"


@functools.cache
def _rules() -> list[tuple[str, str]]:
    """Return the selectors of the style sheet with their declarations, without variables."""
    sheet = (plugins.builtin_folder("templates") / STYLE).read_text(encoding="utf-8")
    sheet = " ".join(re.sub(r"/\*.*?\*/", "", sheet, flags=re.DOTALL).split())
    # The only variable that differs from element to element is its colour.
    sheet = sheet.replace("--c:", "color:").replace("var(--c)", "currentColor")
    values = dict(re.findall(r"--([\w-]+): ([^;]+);", sheet))
    sheet = re.sub(r"var\(--([\w-]+)\)", lambda found: values[found[1]], sheet)
    return [
        (selector.strip(), own.strip())
        for selectors, own in re.findall(r"([^{}]+)\{([^{}]*)\}", sheet)
        for selector in selectors.split(",")
        if ":root" not in selector
    ]
