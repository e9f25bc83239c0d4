"""Names and texts from programs and files stay text, on every page, in every picture and on the terminal."""

from __future__ import annotations

from pathlib import Path

import pytest

from profpipe.report import document as doc
from profpipe.report.document import Axis, Chart, ChartKind, Mark, Panel, Series
from profpipe.report.markdown import Markdown, plot_path
from profpipe.report.plots.matplotlib_charts import draw
from profpipe.report.sections.studies import slug
from profpipe.report.text import write_table, write_text

#: Backspace, NUL, ESC, an OSC of 8 bits, a bidi override, and a line that would hide the ones before it.
CONTROLS = "a\x08\x00\x1b[2J\x9d8;;x\x07\u202eb"
WRITTEN = "a<U+0008><U+0000><U+001B>[2J<U+009D>8;;x<U+0007><U+202E>b"


def is_clean(text: str) -> bool:
    return all(character.isprintable() or character == "\n" for character in text)


@pytest.mark.parametrize("kind", [ChartKind.LINES, ChartKind.STACKED_BARS])
@pytest.mark.parametrize("name", ["$A_$B", r"$\frac$", "$", r"\$x^$", CONTROLS, "n" * 3_000, "two\nlines", "\ud800"])
def test_any_name_can_be_drawn(tmp_path: Path, name: str, kind: ChartKind) -> None:
    series = tuple(Series(own, own, (Mark(0, 1), Mark(1, 2))) for own in (name, f"{name}2", "plain"))
    chart = Chart("c", name, kind, Axis(name, labels=(name, f"{name}b")), Axis(name), (Panel(name, series),), name)
    draw(chart, tmp_path / "plots" / "c.png")
    image = (tmp_path / "plots" / "c.png").read_bytes()
    assert image.startswith(b"\x89PNG") and int.from_bytes(image[16:20], "big") < 4_000


def test_control_characters_are_written_out_in_markdown_and_text() -> None:
    for text in (CONTROLS, doc.Code(CONTROLS), doc.Strong(CONTROLS)):
        assert is_clean(Markdown().text(text)) and is_clean(write_text(text))
    assert write_text(CONTROLS) == WRITTEN
    assert Markdown().text(doc.Code(CONTROLS)) == f"`{WRITTEN}`"
    table = doc.make_table("t", (doc.label("name"),), [(CONTROLS,)], CONTROLS)
    assert is_clean(write_table(table)) and is_clean(Markdown().table(table))
    block = Markdown().block(doc.CodeBlock(f"one\n{CONTROLS}\n```\n# no heading"))
    assert is_clean(block) and block.startswith("````") and block.endswith("\n````")


def test_a_bare_address_becomes_no_link() -> None:
    written = Markdown().text("see http://evil.example/x, ftp://a and www.evil.example; torch::mm")
    assert written == r"see http\://evil.example/x, ftp\://a and www\.evil.example; torch::mm"


def test_the_name_of_a_picture_is_short_and_names_one_chart() -> None:
    def path(id: str) -> str:
        return plot_path(Chart(id, "", ChartKind.LINES, Axis(""), Axis(""), ()))

    assert path("attention-time") == "plots/attention-time.png"
    assert len(path("t" * 3_000)) < 140 and path("t" * 3_000) != path("t" * 2_999)
    assert slug("Time by length") == "time-by-length" and len({slug("A+"), slug("A*"), slug("A"), slug("é")}) == 4
