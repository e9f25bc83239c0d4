"""The text renderer: the same values for a terminal and for the text files."""

from __future__ import annotations

from dataclasses import replace

from profpipe.report import pages, text
from profpipe.report.document import (
    Bullets,
    Cell,
    Code,
    Column,
    Document,
    Number,
    Paragraph,
    Section,
    Strong,
    Table,
    cell,
)
from profpipe.report.units import Unit

US = Unit("us", 1e3)
TIMES = Table(
    "times",
    (Column("case", "case", is_label=True), Column("time", "time", US), Column("flags", "flags", is_words=True)),
    (
        (cell(Code("fa2")), Cell(103_700.0, is_strong=True), cell("")),
        (cell(Code("sage|1")), Cell(9_000.0, flags=("noisy",)), cell("throttled")),
    ),
    title="by case",
)


def test_a_table_is_aligned_and_has_no_markup() -> None:
    assert text.write_table(TIMES).splitlines() == [
        "by case",
        "",
        "case         time us  flags",
        "------  ------------  ---------",
        "fa2            103.7",
        "sage|1  9.00 (noisy)  throttled",
    ]


def test_a_table_with_many_flags_shows_letters_and_explains_them_below() -> None:
    rows = tuple((cell(name), Cell(9_000.0, flags=("noisy", "host_bound"))) for name in "abc")
    table = Table("times", (Column("case", "case", is_label=True), Column("time", "time", US)), rows)
    assert text.write_table(table).splitlines() == [
        "case      time us",
        "----  -----------",
        "a     9.00 (n, h)",
        "b     9.00 (n, h)",
        "c     9.00 (n, h)",
        "",
        "h: host_bound, n: noisy",
    ]


def test_text_has_no_markup_and_keeps_special_characters() -> None:
    assert (
        text.write_text((Strong("a <b> "), Code("c_d*"), " takes ", Number(1500.0, US))) == "a <b> c_d* takes 1.50 us"
    )


def test_the_first_screen_is_what_summary_md_begins_with() -> None:
    sections = (
        Section("first_studies", "", (replace(TIMES, title="asked for first"),), workload="w"),
        Section("headline", "", (Paragraph(("fastest is ", Code("fa2"))),), workload="w"),
        Section("times", "", (TIMES,), workload="w"),
        Section("warnings", "Warnings", (Bullets(("too few samples",)),)),
        Section("kernel_share", "Kernel share", (Paragraph("not shown"),), workload="w"),
    )
    screen = pages.first_screen(Document("run", sections))
    assert screen.startswith("asked for first\n\ncase ")
    assert "\n\nfastest is fa2\n\nby case\n\ncase " in screen
    assert screen.endswith("Warnings\n========\n\n- too few samples")
