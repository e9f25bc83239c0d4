"""The document as Markdown and as plain text; SUMMARY.md keeps its length for any document, details.md has the rest."""

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st
from report_study import every_table

from profpipe.report import document as doc, text
from profpipe.report.document import (
    Amount,
    Bullets,
    Code,
    Document,
    Link,
    OnPage,
    Paragraph,
    Section,
    Strong,
    TableBlock,
    TableCell,
    cell,
    label,
)
from profpipe.report.markdown import DETAILS, SUMMARY, Markdown, anchors
from profpipe.report.pages import MOST_LINES, paginate
from profpipe.report.units import NO_CASE, PERCENT, RATIO, Unit

US = Unit("us", 1e3)
TIME = doc.number("time", "time", US)


def table(*cells, column=TIME, title=""):
    rows = tuple((cell(f"case {i}"), cell(each)) for i, each in enumerate(cells))
    return TableBlock("times", (label("case"), column), rows, title)


# --- Markdown --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("a < b & c > d", "a < b & c > d"),
        ("> <b>&lt; x<", "&gt; &lt;b>&amp;lt; x&lt;"),
        ("*stars* and [links](x)", r"\*stars\* and \[links\](x)"),
        ("batch_size", "batch_size"),
        (("fastest is ", Code("fa2"), " by ", Amount(1.42, unit=RATIO)), "fastest is `fa2` by 1.42x"),
        (("it takes ", Amount(103_700.0, US), "."), "it takes 103.7 us."),
        (("share ", Amount(0.813, unit=PERCENT)), "share 81.3 %"),
        (Strong(("up to ", Code("x|y"))), "**up to `x|y`**"),
        (Amount(None, US), "–"),
        (Code("a`b"), "``a`b``"),
    ],
)
def test_text_is_escaped_and_numbers_of_a_sentence_carry_their_unit(text, written):
    assert Markdown().text(text) == written


@pytest.mark.parametrize(
    ("content", "written"),
    [
        (TableCell(17_300.0, flags=("noisy", "host_bound")), "17.3 *noisy, host_bound*"),
        (TableCell(17_300.0, is_strong=True, note="±2 %"), "**17.3** ±2 %"),
        (TableCell(1.42, unit=RATIO), "1.42x"),
        (None, "–"),
        (TableCell(missing=NO_CASE), "no case"),
        (Code("x|y"), r"`x\|y`"),
        ("a | b", r"a \| b"),
    ],
)
def test_a_cell_shows_its_number_its_note_and_its_flags_or_why_it_is_empty(content, written):
    assert Markdown().table(table(content)).splitlines()[-1] == f"| case 0 | {written} |"


def test_a_table_has_its_units_in_its_head_and_its_numbers_on_the_right():
    head, align, *rows = Markdown().table(table(103_700.0, 17_300.0)).splitlines()
    assert (head, align) == ("| case | time us |", "| --- | ---: |")
    assert rows == ["| case 0 | 103.7 |", "| case 1 | 17.3 |"]
    share = Markdown().table(table(0.813, column=doc.percent("share", "of the call"))).splitlines()
    assert (share[0], share[-1]) == ("| case | of the call % |", "| case 0 | 81.3 |")


def test_a_column_of_words_is_on_the_left_and_disappears_where_it_is_empty():
    words = doc.words("flags")
    assert Markdown().table(table("noisy", column=words)).splitlines()[1] == "| --- | --- |"
    empty = doc.make_table("times", (label("case"), words), [("a", ""), ("b", "")])
    assert [column.id for column in empty.columns] == ["case"]


def test_blocks_are_separated_by_one_blank_line():
    axes = doc.Axis("seqlen"), doc.Axis("time", US)
    blocks = (
        Paragraph("First."), Bullets(("one", "two")), doc.CodeBlock("profpipe run"),
        doc.Chart("times", "Times", doc.ChartKind.LINES, *axes, {}, caption="Bands: 10 to 90 %."),
        doc.Details("every case", (table(1e3),)),
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
def test_a_name_at_the_start_of_a_line_makes_neither_a_list_nor_a_heading(name, written):
    section = Section("x", "", (Paragraph(name), Bullets((name,))), summary=name)
    assert Markdown().section(section) == f"{written}\n\n{written}\n\n- {written}"


def titled(id, title, workload=""):
    return Section(id, title, (Paragraph("x"),), workload=workload)


def test_a_link_finds_the_section_of_its_workload_on_either_page():
    summary = Document("run", (titled("times", "Times", "a"), titled("times", "Times", "b")))
    details = Document("run", (titled("cases", "Cases", "b"), titled("files", "Files & folders")))
    known = anchors({SUMMARY: summary, DETAILS: details}, names_workloads=True)
    writer = Markdown(SUMMARY, known, names_workloads=True, workload="b")
    targets = ["#times", "#cases", "#files", DETAILS, "#nothing"]
    assert [writer.text(Link("x", target)) for target in targets] == [
        "[x](#times-b)", "[x](details.md#cases-b)", "[x](details.md#files--folders)", "[x](details.md)", "x",
    ]  # fmt: skip
    assert writer.section(summary.sections[1]).startswith("## Times: b\n")
    assert Markdown().section(summary.sections[1]).startswith("## Times\n")
    # GitHub numbers a heading that occurs twice.
    twice = anchors({SUMMARY: Document("run", (titled("times", "Times"), titled("other", "Times")))}, False)
    assert twice == {(SUMMARY, "", "times"): "times", (SUMMARY, "", "other"): "times-1"}


def test_a_link_to_a_file_that_is_not_there_is_text():
    link = Link(Code("raw/log.txt"), "raw/log file.txt")
    assert Markdown(exists=lambda path: False).text(link) == "`raw/log.txt`"
    assert Markdown(exists=lambda path: True).text(link) == "[`raw/log.txt`](raw/log%20file.txt)"


def test_a_table_with_many_flags_shows_letters_and_explains_them_below():
    flags = [("throttled",), ("too_few_samples",), ("noisy", "throttled"), ("noisy",)]
    flagged = table(*(TableCell(value=1e3 * i, flags=each) for i, each in enumerate(flags)))
    lines = Markdown().block(flagged).splitlines()
    assert [line.split(" | ")[1] for line in lines[2:6]] == ["0 *th* |", "1.00 *to* |", "2.00 *n, th* |", "3.00 *n* |"]
    assert lines[-1] == "*n*: noisy, *th*: throttled, *to*: too_few_samples"
    lines = text.write_table(flagged).splitlines()
    assert lines[:3] == ["case         time us", "------  ------------", "case 0        0 (th)"]
    assert lines[-1] == "n: noisy, th: throttled, to: too_few_samples"


# --- plain text ------------------------------------------------------------------------------------------------------


def test_a_table_is_aligned_and_has_no_markup():
    rows = (
        (cell(Code("fa2")), TableCell(103_700.0, is_strong=True), cell("")),
        (cell(Code("sage|1")), TableCell(9_000.0, flags=("noisy",)), cell("throttled")),
    )
    assert text.write_table(
        TableBlock("times", (label("case"), TIME, doc.words("flags")), rows, "by case")
    ).splitlines() == [
        "by case",
        "",
        "case         time us  flags",
        "------  ------------  ---------",
        "fa2            103.7",
        "sage|1  9.00 (noisy)  throttled",
    ]
    line = (Strong("a <b> "), Code("c_d*"), " takes ", Amount(1500.0, US))
    assert text.write_text(line) == "a <b> c_d* takes 1.50 us"


def test_a_long_cell_is_cut_and_others_are_not_padded_to_it():
    lines = text.write_table(doc.make_table("t", [label("case"), TIME], [["c" * 100_000, 1], ["d", 2]])).splitlines()
    assert len(lines[2]) < 11_000 and "(100,000 characters)" in lines[2] and len(lines[3]) < 300


# --- two pages -------------------------------------------------------------------------------------------------------


def rows(number, placement=OnPage.SUMMARY):
    return replace(table(*map(float, range(number))), placement=placement)


def lines(page):
    """The lines of the page with its title, and a blank line between sections."""
    return sum(Markdown().section(section).count("\n") + 2 for section in page.sections) + 1


def cases_of(page):
    return sum(len(table.rows) for section in page.sections for table in every_table(section))


def ids(page):
    return [(section.workload, section.id) for section in page.sections]


def test_a_short_document_is_one_page():
    document = Document("run", (Section("times", "Times", (rows(30), Paragraph("All measured."))),))
    summary, details = paginate(document)
    assert summary == document and not details.sections


def test_blocks_for_details_stand_on_details_alone():
    document = Document("run", (Section("cases", "Cases", (rows(3), rows(4, OnPage.DETAILS)), "Three of seven."),))
    summary, details = paginate(document)
    assert (cases_of(summary), cases_of(details)) == (3, 4)
    assert summary.sections[0].summary == "Three of seven." and details.sections[0].summary == ""


@pytest.mark.parametrize(("id", "stays"), [("times", False), ("classification", True)])
def test_what_explains_a_table_moves_with_it_and_a_finding_stays(id, stays):
    moved = replace(table(1.0), placement=OnPage.DETAILS)
    summary, details = paginate(Document("t", (Section(id, "Title", (Paragraph("Of each call."), moved)),)))
    assert ("Of each call." in str(summary), "Of each call." in str(details)) == (stays, not stays)


def test_a_table_that_is_too_long_leaves_its_first_rows_and_a_link_to_the_others():
    summary, details = paginate(Document("run", (Section("cases", "Cases", (rows(30),)),)), most_lines=21)
    (first, more), (rest,) = summary.sections[0].blocks, details.sections[0].blocks
    assert isinstance(first, TableBlock) and isinstance(rest, TableBlock) and isinstance(more, Paragraph)
    assert (len(first.rows), doc.plain(more.content)) == (10, "20 more rows: details.md")
    assert rest.rows[0][0].text == "case 10"


def test_two_thousand_cases_keep_the_summary_short_and_lose_no_row():
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


def test_thirty_workloads_keep_the_most_important_sections_of_each():
    each = (Section(id, id, (rows(12),), workload=f"w{i}") for i in range(30) for id in ("kernel_share", "times"))
    repeat = Section("commands", "Repeat", (Paragraph("profpipe run"),))
    summary, details = paginate(Document("run", (Section("answers", "", (rows(30),)), *each, repeat)))
    assert lines(summary) <= MOST_LINES
    kept = ids(summary)
    assert kept[0] == ("", "answers") and kept[-2:] == [("", "commands"), ("", "details")]
    assert {id for _, id in kept[1:-2]} == {"times"}
    assert cases_of(summary) + cases_of(details) == 30 + 30 * 24


blocks = st.one_of(
    st.integers(0, 200).map(lambda n: Paragraph(f"text {n}")),
    st.tuples(st.integers(0, 200), st.sampled_from(list(OnPage))).map(lambda of: rows(*of)),
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
def test_no_document_exceeds_the_length_or_loses_a_row(parts, most_lines):
    document = Document("run", tuple(parts))
    summary, details = paginate(document, most_lines)
    assert lines(summary) <= most_lines
    in_markdown = document.without(OnPage.HTML)
    assert cases_of(summary) + cases_of(details) == cases_of(in_markdown)
    sentences = [section.summary for section in in_markdown.sections if section.summary]
    kept = [section for page in (summary, details) for section in page.sections if section.id != "details"]
    assert [section.summary for section in kept if section.summary] == sentences
    assert (summary, details) == paginate(document, most_lines)
