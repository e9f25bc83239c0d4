"""report.html is one file without requests, in which everything from outside is text."""

import base64
import hashlib
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from profpipe.analysis import analyze
from profpipe.analysis.timeline import Event, Lane, LaneKind
from profpipe.commands import rendering
from profpipe.report import html_page as page
from profpipe.report.document import (
    SUMMARY,
    Axis,
    Bullets,
    Chart,
    ChartKind,
    Code,
    CodeBlock,
    Details,
    Document,
    Link,
    Mark,
    OnPage,
    Paragraph,
    Reference,
    ReferenceKind,
    Section,
    Series,
    Strong,
    TableBlock,
    TableCell,
    TimelineChart,
    ViewChoice,
    case_link,
    count,
    label,
    words,
)
from profpipe.report.html_page import MOST_ROWS
from profpipe.report.render import build
from profpipe.report.text import write_text
from profpipe.results import store

ROOT = Path(__file__).resolve().parents[1]

HOSTILE = (
    "<script>alert(1)</script>",
    "</style><style>*{display:none}</style>",
    "\"' onload='alert(1)' x=\"",
    "</title><img src=x onerror=alert(1)>",
    "--><script>alert(2)</script><!--",
    "]]>&lt;script&gt;",
    "{{ 7 * 7 }}{% raw %}",
    "void kernel<" + "int, " * 2000 + "float>",
    "abc\u202edef\u2066ghi\x00\x1b[31m",
    "javascript:alert(1)",
)


class Elements(HTMLParser):
    """The elements of a page, its text, and the content of its styles and scripts."""

    def __init__(self, page):
        super().__init__(convert_charrefs=True)
        self.names: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.contents: dict[str, list[str]] = {"style": [], "script": []}
        self.text = ""
        self._inside = ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.names.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag in self.contents:
            self._inside = tag
            self.contents[tag].append("")

    def handle_endtag(self, tag):
        self._inside = "" if tag == self._inside else self._inside

    def handle_data(self, data):
        if self._inside:
            self.contents[self._inside][-1] += data
        else:
            self.text += data

    def values(self, name):
        return [value for _, own, value in self.attributes if own == name]


def chart(kind, name):
    first = 1 if kind is ChartKind.ROOFLINE else 0  # the scale of a roofline is logarithmic
    marks = (Mark(first, 1e6, 0.9e6, 1.2e6, ("noisy",), name, 0.1, name), Mark(first + 1, 4e6, case=name))
    is_over_axis = kind in (ChartKind.LINES, ChartKind.STRIP, ChartKind.ROOFLINE)
    x = Axis(name) if is_over_axis else Axis(name, labels=(name, name), cases=(name, name))
    references = (Reference(ReferenceKind.LEVEL, 2e6, name), Reference(ReferenceKind.ROOF, 5e6, name, 10))
    panels = {name: (Series(name, name, marks), Series("other", "gemm", marks))}
    return Chart(f"{kind.value} {name}", name, kind, x, Axis(name, quantity="ns"), panels, name, subtitle=name,
                 references=references)  # fmt: skip


def document(name):
    """A document in which every text is ``name``."""
    columns = (label("case", name), count("n", name), words("flags", name))
    row = (TableCell(text=case_link(Code(name), name)), TableCell(3.0, flags=(name,), note=name), TableCell(text=name))
    table = TableBlock(name, columns, (row,), name)
    blocks = (
        Paragraph((name, Strong(name), Code(name), Link(name, name), Link(name, "#headline"))),
        Bullets((name,)),
        CodeBlock(f"{name}\n{name}"),
        table,
        *(chart(kind, name) for kind in ChartKind),
        Details(name, (table,)),
        ViewChoice(name, (name, "profiler"), {(name, "nsys"): (table,), (name, "ncu"): ()}),
        TimelineChart(
            name,
            name,
            ((name, name, Lane(LaneKind.STREAM, None, (Event(0, 10, name, name),), totals={name: (1, 10.0)})),),
            10,
            {name: name},
            caption=name,
            case=name,
        ),
    )
    return Document(
        f"{name} · {name}",
        (Section("headline", name, blocks, name, workload=name), Section(name, name, (Paragraph(name),), workload="b")),
        cases=(Section(name, name, (Paragraph(name),), name, workload=name),),
        flags={name: name},
    )


def render(name):
    return page.render(document(name), rendering.find_templates(), lambda path: True)


def visible(text):
    """The text without blanks, as a page shows it."""
    return re.sub(r"\s+", "", text)


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_texts_from_outside_make_no_element_and_no_attribute(name):
    hostile, plain = Elements(render(name)), Elements(render("name"))
    assert set(hostile.names) == set(plain.names)
    kinds = {(tag, attribute) for tag, attribute, _ in plain.attributes}
    assert {(tag, attribute) for tag, attribute, _ in hostile.attributes} <= kinds | {
        ("code", "title"),
        ("span", "title"),
    }
    assert hostile.contents["style"] == plain.contents["style"]
    assert hostile.contents["script"][-1] == plain.contents["script"][-1]
    assert not [value for value in hostile.values("href") if value.startswith(("javascript:", "data:"))]


@pytest.mark.parametrize("name", [name for name in HOSTILE if len(name) < 90 and name.isprintable()])
def test_texts_from_outside_are_shown_as_they_are(name):
    assert visible(Elements(render(name)).text).count(visible(name)) > 10


def test_a_long_name_is_cut_and_its_title_has_all_of_it():
    name = HOSTILE[7][:9_000]
    made = Elements(render(name))
    assert name in made.values("title")
    lines_of_code = 2
    assert made.text.count(name) == lines_of_code


def test_control_characters_and_those_of_writing_direction_are_shown_by_their_number():
    made = render("abc\u202edef\u2066ghi\x00")
    assert "\u202e" not in made and "\u2066" not in made and "\x00" not in made
    assert "abc<U+202E>def<U+2066>ghi<U+0000>" in Elements(made).text


def test_the_policy_of_the_page_allows_its_own_style_and_script_and_no_request():
    made = Elements(render("name"))
    policy = next(value for value in made.values("content") if "default-src" in value)
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    for name, content in (("style-src", made.contents["style"][0]), ("script-src", made.contents["script"][-1])):
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert rules[name] == f"'sha256-{digest}'"
    assert not {"src", "srcset", "style"} & {attribute for _, attribute, _ in made.attributes}
    assert "link" not in made.names and "url(" not in made.contents["style"][0]


@pytest.mark.parametrize("kind", [ChartKind.INTERVALS, ChartKind.FOREST])
@pytest.mark.parametrize("is_log", [False, True])
def test_an_interval_that_begins_below_zero_is_drawn(kind, is_log):
    marks = (Mark(0, 1e6, -2e6, 4e6), Mark(1, 5e7, 4e7, 6e7))
    times = Axis("time", quantity="ns", is_log=is_log)
    drawn = Chart("times", "Times", kind, Axis("", labels=("a", "b")), times, {"": (Series("", "", marks),)})
    section = Section("s", "Charts", (drawn,))
    text = page.render(Document("Title", (section,)), rendering.find_templates())
    assert text.count('class="whisker"') == 2


def test_of_thousands_of_points_the_same_ones_are_drawn_in_the_same_order():
    marks = tuple(Mark(step, ns + step) for ns in (2e6, 1e6) for step in range(800))
    times = Axis("time", quantity="ns")
    drawn = Chart("steps", "Steps", ChartKind.STRIP, Axis("step"), times, {"": (Series("", "", marks),)})
    text = page.render(Document("Title", (Section("s", "Charts", (drawn,)),)), rendering.find_templates())
    points = [(float(x), float(y)) for x, y in re.findall(r'd="M([\d.]+) ([\d.]+)m', text)]
    # Of two at one place the smaller value comes first, which stands lower.
    assert 850 < len(points) <= 1000
    assert points == sorted(points, key=lambda point: (point[0], -point[1]))


def test_no_two_elements_have_the_same_id():
    ids = Elements(render("name")).values("id")
    assert len(ids) == len(set(ids))


# --- the same figures as in SUMMARY.md -------------------------------------------------------------------------------

QUICK = ("h200-attention", "own_program")
#: Of each kind of page one, and the two largest.
OF_CI = (*QUICK, "accuracy", "attention_scaling", "context_parallel", "profilers")


def examples():
    for path in sorted(ROOT.glob("examples/*/run.json")):
        name = path.parent.name
        marks = [*[pytest.mark.slow] * (name not in QUICK), *[pytest.mark.exhaustive] * (name not in OF_CI)]
        yield pytest.param(path.parent, marks=marks, id=name)


def words_of(document):
    """Every text and figure of SUMMARY.md and details.md, without their markup."""
    for section in document.without(OnPage.HTML).sections:
        # The charts of the plots are among those to choose from.
        yield write_text(section.title) if section.id != "plots" else ""
        yield write_text(section.summary)
        for block in section.walk():
            match block:
                case Paragraph():
                    yield write_text(block.content)
                case Bullets():
                    yield from map(write_text, block.items)
                case CodeBlock():
                    yield block.text
                case TableBlock():
                    for row in block.rows[:MOST_ROWS]:
                        for cell, column in zip(row, block.columns, strict=True):
                            yield cell.number(column) or write_text(cell.text)


@pytest.mark.parametrize("example", list(examples()))
def test_it_holds_every_text_and_figure_of_the_other_pages(example):
    data, run = store.load(example)
    made = build(analyze.analyze(data, run), data, run)
    written = page.render(made, rendering.find_templates())
    shown = Elements(written)
    # A name that is cut has its end in the title.
    text = visible(shown.text + "".join(shown.values("title"))).replace(f"in{SUMMARY}", "")
    assert [words for words in words_of(made) if visible(words).replace(f"in{SUMMARY}", "") not in text] == []


def test_the_answer_its_picture_and_the_times_stand_first_and_the_rest_is_folded():
    data, run = store.load(ROOT / "examples" / "scenarios")
    made = build(analyze.analyze(data, run), data, run)
    text = page.render(made, rendering.find_templates()).partition("<main")[2].partition("<dialog")[0]
    seen, *folded = text.split('<details class="fold"><summary>')
    places = [seen.index(part) for part in ("is fastest in", "<figure", 'id="scenarios-times"', 'id="warnings"')]
    assert places == sorted(places) and seen.count("<figure") == 1
    assert {"Charts", "Kernel share", "Study tables", "Environment"} <= {
        own.partition("</h2>")[0].partition(">")[2] for own in folded
    }
