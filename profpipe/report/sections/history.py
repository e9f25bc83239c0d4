"""The trends of `profpipe history`: lines for the terminal, and the pages of a results folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from profpipe.analysis.history import PipelineHistory, Trend
from profpipe.report import document as doc
from profpipe.report.labels import plural
from profpipe.report.markdown import Markdown
from profpipe.report.text import align
from profpipe.report.units import time_unit
from profpipe.results.noise import SpreadSource

#: Trends that are not folded, if their last run is within the band.
_OPEN = 4

#: Characters of a commit.
_COMMIT = 10

_NOTE = "Level: the median of the runs. Band: 99 % of the runs of the same code lie within it around the level."


def document(histories: Sequence[PipelineHistory], folder: str, page_of: Callable[[str], str]) -> doc.Document:
    """Return the page. ``page_of`` returns the path of a run's report, empty where the run has none."""
    runs = [row for pipeline in histories for row in pipeline.runs]
    facts = [f"Runs in {folder}", plural(len(runs), "run"), plural(len(histories), "pipeline")]
    if runs:
        facts.append(f"the last one {max(row['started'] for row in runs)[:16].replace('T', ' ')} UTC")
    sections = []
    for history in histories:
        # Trends that have just left their band come first.
        ordered = sorted(history.trends, key=lambda trend: not trend.points[-1]["is_outside"])
        blocks = _trend_blocks(
            ordered, f"{_NOTE} A hollow point lies outside the band.", tuple(_charts(ordered, history))
        )
        sections.append(doc.make_section("courses", "Courses", blocks, workload=history.name))
        sections.append(doc.make_section("runs", "Runs", [_run_table(history, page_of)], workload=history.name))
    return doc.Document(" · ".join(facts), tuple(filter(None, sections)))


def _run_table(pipeline: PipelineHistory, page_of: Callable[[str], str]) -> doc.TableBlock:
    def run(name: str) -> doc.Text:
        return doc.Link(doc.Code(name), page) if (page := page_of(name)) else doc.Code(name)

    columns = [
        (doc.label("run"), lambda row: run(row["run"])),
        (doc.words("started"), lambda row: row["started"][:16].replace("T", " ")),
        (doc.words("state"), lambda row: "ended" if row["is_ended"] else "unfinished"),
        (doc.count("ok", "cases ok"), lambda row: row["ok"]),
        (doc.count("cases"), lambda row: row["cases"]),
        (doc.words("commit"), lambda row: doc.Code(row["commit"][:_COMMIT]) if row["commit"] else ""),
    ]
    return doc.table_of("runs", pipeline.runs, columns)


def _trend_blocks(trends: Sequence[Trend], note: str, charts: Sequence[doc.Block] = ()) -> list[doc.Block]:
    if not trends:
        return [doc.Paragraph("No run has times.")]
    table = trend_table(trends)
    return [table.without("course") if charts else table, doc.Paragraph(note), *charts]


def _charts(ordered: Sequence[Trend], pipeline: PipelineHistory) -> Iterator[doc.Block]:
    charts = [chart(trend, pipeline, number) for number, trend in enumerate(ordered)]
    shown = max(sum(trend.points[-1]["is_outside"] for trend in ordered), _OPEN)
    yield from charts[:shown]
    if charts[shown:]:
        yield doc.Details(f"{plural(len(charts) - shown, 'course')} within the band", tuple(charts[shown:]))


def chart(trend: Trend, pipeline: PipelineHistory, number: int) -> doc.Chart:
    """Return the trend over the runs: the oldest first, with the band of its noise."""
    starts = {row["run"]: row["started"] for row in pipeline.runs}
    band = 1 + (trend.band or 0.0)
    marks = tuple(
        doc.Mark(
            i,
            point["time_ns"],
            low=trend.level_ns / band if trend.band else None,
            high=trend.level_ns * band if trend.band else None,
            flags=("outside the band",) if point["is_outside"] else (),
        )
        for i, point in enumerate(trend.points)
    )
    labels = tuple(f"{starts.get(point['run'], '')[:10]} {point['run']}".strip() for point in trend.points)
    name = trend_name(trend, pipeline.trends)
    return doc.Chart(
        f"course {number}",
        name,
        doc.ChartKind.TREND,
        doc.Axis("run", labels=labels),
        doc.Axis("time", time_unit(point["time_ns"] for point in trend.points), quantity="ns"),
        {"": (doc.Series(name, name, marks),)},
        subtitle=state(trend),
        placement=doc.OnPage.HTML,
    )


#: Fewer runs are no trend.
_FEWEST_RUNS: Final = 3
_SOURCES: Final[Mapping[SpreadSource, str]] = {
    SpreadSource.PAIRS: "A-A pairs",
    SpreadSource.CAPTURES: "processes",
    SpreadSource.RUNS: "runs of the same code",
}
#: From low to high.
_BLOCKS: Final = "▁▂▃▄▅▆▇█"
#: The same for terminals without UTF-8: from low to high.
_ASCII: Final = "_.-=+*#@"


def lines(trends: Sequence[Trend], *, is_ascii: bool) -> Iterator[str]:
    """Yield a line for each trend: its chart, its level, its noise and its last run."""
    shown = [trend for trend in trends if len(trend.points) >= _FEWEST_RUNS]
    if not shown:
        return
    yield "course of each case, the oldest run first; 99 % of the runs of the same code lie within the band around the"
    yield "level, the median of the runs"
    charts = [_chart(trend, is_ascii=is_ascii) for trend in shown]
    sign = "+-" if is_ascii else "±"
    bands = ["" if trend.band is None else f"{sign}{100 * trend.band:.1f} %" for trend in shown]
    times = [time_unit([trend.level_ns]).with_name(trend.level_ns) for trend in shown]
    levels = [f"{time} {band}" for time, band in zip(times, bands, strict=True)]
    names = [trend_name(trend, shown) for trend in shown]
    yield from align(list(zip(names, charts, levels, map(state, shown), strict=True)), [False] * 4)


def sparkline(values: Sequence[float], least_range: float = 0.0, *, ascii: bool) -> str:
    """Return a character for each value.

    The lowest character is the lowest value and the highest character the highest one. Values that differ by less than
    ``least_range`` fill only a part of the height, around its middle: noise is not drawn as large as a change.
    """
    marks = _ASCII if ascii else _BLOCKS
    low, high = min(values), max(values)
    missing = max(0.0, least_range - (high - low))
    low, high = low - missing / 2, high + missing / 2
    top = len(marks) - 1
    return "".join(marks[round((value - low) / (high - low) * top) if high > low else top // 2] for value in values)


def _chart(trend: Trend, *, is_ascii: bool) -> str:
    times = [point["time_ns"] for point in trend.points]
    # The whole band is half of the height: what stands out is outside of it.
    least = 4 * (trend.band or 0.0) * trend.level_ns
    return sparkline(times, least, ascii=is_ascii)


def trend_name(trend: Trend, among: Sequence[Trend]) -> str:
    """Return the name of the case, with its device where it ran on several."""
    devices = {other.device for other in among if other.name == trend.name}
    return f"{trend.name} on {trend.device or 'an unknown device'}" if len(devices) > 1 else trend.name


def state(trend: Trend) -> str:
    """Return how far the last run lies from the level, and whether that is more than noise."""
    if trend.band is None:
        return "noise unknown"
    share = trend.points[-1]["time_ns"] / trend.level_ns - 1
    return f"{100 * share:+.1f} %, {'outside' if trend.points[-1]['is_outside'] else 'within'} the band"


def source(trend: Trend) -> str:
    if trend.band is None:
        return ""
    counts = [f"{count} {_SOURCES[source]}" for source, count in trend.sources.items()]
    return ", ".join(counts) or "neighbouring runs"


def markdown(histories: Sequence[PipelineHistory]) -> str:
    """Return a page with a section for each pipeline."""
    note = f"Course: the oldest run first. {_NOTE}"
    sections = [
        doc.make_section(f"history-{number}", f"History of {pipeline.name}", _trend_blocks(pipeline.trends, note))
        for number, pipeline in enumerate(histories, start=1)
    ]
    return "\n\n".join(filter(None, (Markdown().section(section) for section in sections))) + "\n"


def trend_table(trends: Sequence[Trend]) -> doc.TableBlock:
    """Return a table with a row for each trend."""
    columns = [
        (doc.label("case"), lambda trend: trend_name(trend, trends)),
        (doc.words("course"), lambda trend: doc.Code(_chart(trend, is_ascii=False))),
        (doc.count("runs"), lambda trend: len(trend.points)),
        (
            doc.number("level", "level", time_unit(trend.level_ns for trend in trends)),
            lambda trend: trend.level_ns,
        ),
        (doc.plus_minus("band"), lambda trend: trend.band),
        (doc.words("noise", "noise from"), source),
        (doc.words("last", "last run"), state),
    ]
    return doc.table_of("courses", trends, columns)
