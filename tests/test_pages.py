"""SUMMARY.md keeps its length for any document; details.md has the rest."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, strategies as st

from profpipe.report.document import (
    Bullets,
    Column,
    Document,
    Paragraph,
    Placement,
    Section,
    Table,
    cell,
    plain,
)
from profpipe.report.markdown import Markdown
from profpipe.report.pages import MOST_LINES, paginate


def rows(number: int, placement: Placement = Placement.SUMMARY) -> Table:
    columns = (Column("case", "case", is_label=True), Column("time", "time"))
    return Table(
        "times",
        columns,
        tuple((cell(f"case {i}"), cell(i)) for i in range(number)),
        placement=placement,
    )


def lines(page: Document) -> int:
    """The lines of the page with its title, and a blank line between sections."""
    return sum(Markdown().section(section).count("\n") + 2 for section in page.sections) + 1


def cases_of(page: Document) -> int:
    return sum(len(table.rows) for table in page.tables())


def ids(page: Document) -> list[tuple[str, str]]:
    return [(section.workload, section.id) for section in page.sections]


def test_a_short_document_is_one_page() -> None:
    document = Document("run", (Section("times", "Times", (rows(30), Paragraph("All measured."))),))
    summary, details = paginate(document)
    assert summary == document and not details.sections


def test_blocks_for_details_stand_on_details_alone() -> None:
    document = Document("run", (Section("cases", "Cases", (rows(3), rows(4, Placement.DETAILS)), "Three of seven."),))
    summary, details = paginate(document)
    assert (cases_of(summary), cases_of(details)) == (3, 4)
    assert summary.sections[0].summary == "Three of seven." and details.sections[0].summary == ""


def test_a_table_that_is_too_long_leaves_its_first_rows_and_a_link_to_the_others() -> None:
    summary, details = paginate(Document("run", (Section("cases", "Cases", (rows(30),)),)), most_lines=21)
    (first, more), (rest,) = summary.sections[0].blocks, details.sections[0].blocks
    assert isinstance(first, Table) and isinstance(rest, Table) and isinstance(more, Paragraph)
    assert (len(first.rows), plain(more.content)) == (10, "20 more rows: details.md")
    assert rest.rows[0][0].text == "case 10"


def test_two_thousand_cases_keep_the_summary_short_and_lose_no_row() -> None:
    sections = (
        Section("headline", "", (Paragraph("fa2 is fastest."),), workload="w"),
        Section("times", "", (rows(2000),), workload="w"),
        Section("warnings", "Warnings", (Bullets(tuple(f"warning {i}" for i in range(300))),)),
        Section("kernel_share", "Kernel share", (rows(40),), workload="w"),
        Section("commands", "Repeat", (Paragraph("profpipe run"),)),
    )
    summary, details = paginate(Document("run", sections))
    assert lines(summary) <= MOST_LINES
    assert [id for _, id in ids(summary)] == ["headline", "times", "warnings", "kernel_share", "commands", "details"]
    assert cases_of(summary) + cases_of(details) == 2040


def test_thirty_workloads_keep_the_most_important_sections_of_each() -> None:
    document = Document(
        "run",
        (
            Section("overview", "", (rows(30),)),
            *(Section(id, id, (rows(12),), workload=f"w{i}") for i in range(30) for id in ("kernel_share", "times")),
            Section("commands", "Repeat", (Paragraph("profpipe run"),)),
        ),
    )
    summary, details = paginate(document)
    assert lines(summary) <= MOST_LINES
    kept = ids(summary)
    assert kept[0] == ("", "overview") and kept[-2:] == [("", "commands"), ("", "details")]
    assert {id for _, id in kept[1:-2]} == {"times"}
    assert cases_of(summary) + cases_of(details) == 30 + 30 * 24


blocks = st.one_of(
    st.integers(0, 200).map(lambda n: Paragraph(f"text {n}")),
    st.tuples(st.integers(0, 200), st.sampled_from(list(Placement))).map(lambda of: rows(*of)),
    st.integers(1, 200).map(lambda n: Bullets(tuple(f"item {i}" for i in range(n)))),
)
sections = st.builds(
    Section,
    id=st.sampled_from(["times", "warnings", "kernel_share", "other"]),
    title=st.sampled_from(["", "Title"]),
    blocks=st.lists(blocks, max_size=4).map(tuple),
    summary=st.sampled_from(["", "A sentence."]),
)
nested = st.builds(
    lambda section, children: replace(section, sections=tuple(children)), sections, st.lists(sections, max_size=3)
)


@given(st.lists(st.one_of(sections, nested), max_size=12), st.integers(20, 200))
def test_no_document_exceeds_the_length_or_loses_a_row(parts: list[Section], most_lines: int) -> None:
    document = Document("run", tuple(parts))
    summary, details = paginate(document, most_lines)
    assert lines(summary) <= most_lines
    in_markdown = document.without(Placement.HTML)
    assert cases_of(summary) + cases_of(details) == cases_of(in_markdown)
    sentences = [section.summary for section in in_markdown.sections if section.summary]
    pages = [section for page in (summary, details) for section in page.sections if section.id != "details"]
    assert [section.summary for section in pages if section.summary] == sentences
    assert (summary, details) == paginate(document, most_lines)
