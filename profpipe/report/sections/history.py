"""The page of a results folder: its runs, and the course of each case with its noise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from profpipe.analysis.history import Course, PipelineHistory
from profpipe.report import document as doc, history_pages
from profpipe.report.labels import plural
from profpipe.report.units import time_unit

#: Courses that are not folded, if their last run is within the band.
_OPEN = 4

#: Characters of a commit.
_COMMIT = 10


def document(found: Sequence[PipelineHistory], folder: str, page_of: Callable[[str], str]) -> doc.Document:
    """Return the page. ``page_of`` returns the path of a run's report, empty where the run has none."""
    runs = [entry for pipeline in found for entry in pipeline.runs]
    facts = [f"Runs in {folder}", plural(len(runs), "run"), plural(len(found), "pipeline")]
    if runs:
        facts.append(f"the last one {max(entry.started for entry in runs)[:16].replace('T', ' ')} UTC")
    sections = []
    for each in found:
        sections.append(doc.make_section("courses", "Courses", _courses(each), workload=each.name))
        sections.append(doc.make_section("runs", "Runs", [_run_table(each, page_of)], workload=each.name))
    return doc.Document(" · ".join(facts), tuple(filter(None, sections)))


def _run_table(pipeline: PipelineHistory, page_of: Callable[[str], str]) -> doc.Table:
    def run(name: str) -> doc.Text:
        return doc.Link(doc.Code(name), page) if (page := page_of(name)) else doc.Code(name)

    columns = [
        (doc.label("run"), lambda entry: run(entry.run)),
        (doc.words("started"), lambda entry: entry.started[:16].replace("T", " ")),
        (doc.words("state"), lambda entry: "ended" if entry.is_ended else "unfinished"),
        (doc.count("ok", "cases ok"), lambda entry: entry.ok),
        (doc.count("cases"), lambda entry: entry.cases),
        (doc.words("commit"), lambda entry: doc.Code(entry.commit[:_COMMIT]) if entry.commit else ""),
    ]
    return doc.table_of("runs", pipeline.runs, columns)


def _courses(pipeline: PipelineHistory) -> Iterator[doc.Block]:
    if not pipeline.courses:
        yield doc.Paragraph("No run has times.")
        return
    # Courses that have just left their band come first.
    ordered = sorted(pipeline.courses, key=lambda course: not course.points[-1].is_outside)
    yield history_pages.course_table(ordered).without("course")
    yield doc.Paragraph(
        "Level: the median of the runs. Band: 99 % of the runs of the same code lie within it around the level. A"
        " hollow point lies outside the band."
    )
    charts = [chart(course, pipeline, number) for number, course in enumerate(ordered)]
    shown = max(sum(course.points[-1].is_outside for course in ordered), _OPEN)
    yield from charts[:shown]
    if charts[shown:]:
        yield doc.Details(f"{plural(len(charts) - shown, 'course')} within the band", tuple(charts[shown:]))


def chart(course: Course, pipeline: PipelineHistory, number: int) -> doc.Chart:
    """Return the course over the runs: the oldest first, with the band of its noise."""
    starts = {entry.run: entry.started for entry in pipeline.runs}
    band = 1 + (course.band or 0.0)
    marks = tuple(
        doc.Mark(
            i,
            point.time_ns,
            low=course.level_ns / band if course.band else None,
            high=course.level_ns * band if course.band else None,
            flags=("outside the band",) if point.is_outside else (),
        )
        for i, point in enumerate(course.points)
    )
    labels = tuple(f"{starts.get(point.run, '')[:10]} {point.run}".strip() for point in course.points)
    name = history_pages.course_name(course, pipeline.courses)
    return doc.Chart(
        f"course {number}",
        name,
        doc.ChartKind.COURSE,
        doc.Axis("run", labels=labels),
        doc.Axis("time", time_unit(point.time_ns for point in course.points), quantity="ns"),
        {"": (doc.Series(name, name, marks),)},
        subtitle=history_pages.state(course),
        placement=doc.Placement.HTML,
    )
