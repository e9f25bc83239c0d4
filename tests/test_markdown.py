"""The Markdown renderer: escaping, code spans, tables, folding and links, on values."""

from __future__ import annotations

import pytest

from profpipe.report.document import (
    Axis,
    Bullets,
    Cell,
    Chart,
    ChartKind,
    Code,
    CodeBlock,
    Column,
    Details,
    Document,
    Link,
    Number,
    Paragraph,
    Section,
    Strong,
    Table,
    Text,
    cell,
)
from profpipe.report.markdown import DETAILS, SUMMARY, Markdown, anchors
from profpipe.report.units import NO_CASE, PERCENT, RATIO, Unit

US = Unit("us", 1e3)


def table(*cells: Cell | Text | float | None, column: Column | None = None) -> Table:
    columns = (Column("case", "case", is_label=True), column or Column("time", "time", US))
    return Table("times", columns, tuple((cell(f"case {i}"), cell(each)) for i, each in enumerate(cells)))


def row(each: Cell | Text | float | None, column: Column | None = None) -> str:
    return Markdown().table(table(each, column=column)).splitlines()[-1]


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("a < b & c", "a &lt; b &amp; c"),
        ("*stars* and [links](x)", r"\*stars\* and \[links\](x)"),
        ("batch_size", "batch_size"),
        (("fastest is ", Code("fa2"), " by ", Number(1.42, unit=RATIO)), "fastest is `fa2` by 1.42x"),
        (("it takes ", Number(103_700.0, US), "."), "it takes 103.7 us."),
        (("share ", Number(0.813, unit=PERCENT)), "share 81.3 %"),
        (Strong(("up to ", Code("x|y"))), "**up to `x|y`**"),
        (Number(None, US), "–"),
        (Code("a`b"), "``a`b``"),
    ],
)
def test_text_is_escaped_and_numbers_of_a_sentence_carry_their_unit(text: Text, written: str) -> None:
    assert Markdown().text(text) == written


def test_a_table_has_its_units_in_its_head_and_its_numbers_on_the_right() -> None:
    head, align, *rows = Markdown().table(table(103_700.0, 17_300.0)).splitlines()
    assert (head, align) == ("| case | time us |", "| --- | ---: |")
    assert rows == ["| case 0 | 103.7 |", "| case 1 | 17.3 |"]


@pytest.mark.parametrize(
    ("content", "written"),
    [
        (Cell(17_300.0, flags=("noisy", "host_bound")), "17.3 *noisy, host_bound*"),
        (Cell(17_300.0, is_strong=True, note="±2 %"), "**17.3** ±2 %"),
        (Cell(1.42, unit=RATIO), "1.42x"),
        (None, "–"),
        (Cell(missing=NO_CASE), "no case"),
        (Code("x|y"), r"`x\|y`"),
        ("a | b", r"a \| b"),
    ],
)
def test_a_cell_shows_its_number_its_note_and_its_flags_or_why_it_is_empty(
    content: Cell | Text | float | None, written: str
) -> None:
    assert row(content) == f"| case 0 | {written} |"


def test_a_column_of_percentages_has_the_sign_in_its_head() -> None:
    written = Markdown().table(table(0.813, column=Column("share", "of the call", unit=PERCENT)))
    assert written.splitlines()[0] == "| case | of the call % |"
    assert written.splitlines()[-1] == "| case 0 | 81.3 |"


def test_a_column_of_words_is_on_the_left_and_disappears_where_it_is_empty() -> None:
    words = Column("flags", "flags", is_words=True)
    assert Markdown().table(table("noisy", column=words)).splitlines()[1] == "| --- | --- |"
    assert [column.id for column in table("", "", column=words).without_empty_columns().columns] == ["case"]


def test_blocks_are_separated_by_one_blank_line() -> None:
    chart = Chart("times", "Times", ChartKind.LINES, Axis("seqlen"), Axis("time", US), (), caption="Bands: 10 to 90 %.")
    blocks = (
        Paragraph("First."), Bullets(("one", "two")), CodeBlock("profpipe run"),
        chart, Details("every case", (table(1e3),)),
    )  # fmt: skip
    assert Markdown().section(Section("times", "Times", blocks, "A summary.")) == (
        "## Times\n\nA summary.\n\nFirst.\n\n- one\n- two\n\n```sh\nprofpipe run\n```\n\n"
        "![Times](plots/times.svg)\n\nBands: 10 to 90 %.\n\n<details><summary>every case</summary>\n\n"
        "| case | time us |\n| --- | ---: |\n| case 0 | 1.00 |\n\n</details>"
    )


@pytest.mark.parametrize(("name", "written"), [
    ("11) a", r"11\) a"), ("1. a", r"1\. a"), ("- a", r"\- a"), ("+ a", r"\+ a"), ("## a", r"\## a"), ("===", r"\==="),
    ("---", r"\---"), ("-1.5 %", "-1.5 %"), ("1.5 ms", "1.5 ms"), ("#1", "#1"), ("a - b", "a - b"),
])  # fmt: skip
def test_a_name_at_the_start_of_a_line_makes_neither_a_list_nor_a_heading(name: str, written: str) -> None:
    assert Markdown().section(Section("x", "", (Paragraph(name), Bullets((name,))), summary=name)) == (
        f"{written}\n\n{written}\n\n- {written}"
    )


def test_sections_of_several_workloads_name_theirs() -> None:
    section = Section("times", "Times", (Paragraph("x"),), workload="decode")
    assert Markdown().section(section).startswith("## Times\n")
    assert Markdown(names_workloads=True).section(section).startswith("## Times: decode\n")


def test_a_link_finds_the_section_of_its_workload_on_either_page() -> None:
    def section(id: str, title: str, workload: str = "") -> Section:
        return Section(id, title, (Paragraph("x"),), workload=workload)

    summary = Document("run", (section("times", "Times", "a"), section("times", "Times", "b")))
    details = Document("run", (section("cases", "Cases", "b"), section("files", "Files & folders")))
    known = anchors({SUMMARY: summary, DETAILS: details}, names_workloads=True)
    writer = Markdown(SUMMARY, known, names_workloads=True, workload="b")
    assert writer.text(Link("times", "#times")) == "[times](#times-b)"
    assert writer.text(Link("cases", "#cases")) == "[cases](details.md#cases-b)"
    assert writer.text(Link("files", "#files")) == "[files](details.md#files--folders)"
    assert writer.text(Link("all", DETAILS)) == "[all](details.md)"
    assert writer.text(Link("nothing", "#nothing")) == "nothing"


def test_a_heading_that_occurs_twice_has_the_anchor_that_github_gives_it() -> None:
    twice = Document("run", tuple(Section(id, "Times", (Paragraph("x"),)) for id in ("times", "other")))
    assert anchors({SUMMARY: twice}, False) == {(SUMMARY, "", "times"): "times", (SUMMARY, "", "other"): "times-1"}


def test_a_link_to_a_file_that_is_not_there_is_text() -> None:
    link = Link(Code("raw/log.txt"), "raw/log file.txt")
    assert Markdown(exists=lambda path: False).text(link) == "`raw/log.txt`"
    assert Markdown(exists=lambda path: True).text(link) == "[`raw/log.txt`](raw/log%20file.txt)"


def test_a_table_with_many_flags_shows_letters_and_explains_them_below() -> None:
    columns = (Column("case", "case", is_label=True), Column("time", "time"))
    flags = [("throttled",), ("too_few_samples",), ("noisy", "throttled"), ("noisy",)]
    rows = tuple((Cell(text=str(i)), Cell(value=float(i), flags=each)) for i, each in enumerate(flags))
    lines = Markdown().block(Table("times", columns, rows)).splitlines()
    assert lines[2:6] == ["| 0 | 0 *th* |", "| 1 | 1.00 *to* |", "| 2 | 2.00 *n, th* |", "| 3 | 3.00 *n* |"]
    assert lines[-1] == "*n*: noisy, *th*: throttled, *to*: too_few_samples"
