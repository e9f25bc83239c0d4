"""Names and texts from programs and files stay text, on every page, in every picture and on the terminal."""

import contextlib
import io
import json
import os
import pty
import re
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from fake_profiler import job_of
from nsys_exports import Export

from profpipe import cli, stdio
from profpipe.commands.mcp import Library
from profpipe.report import document as doc
from profpipe.report.charts import picture
from profpipe.report.document import Axis, Chart, ChartKind, Mark, Series
from profpipe.report.markdown import Markdown, plot_path
from profpipe.report.sections.studies import slug
from profpipe.report.text import write_table, write_text
from profpipe.runner.progress import Display

ROOT = Path(__file__).parents[1]

#: Backspace, NUL, ESC, an OSC of 8 bits, a bidi override, and a line that would hide the ones before it.
CONTROLS = "a\x08\x00\x1b[2J\x9d8;;x\x07\u202eb"
WRITTEN = "a<U+0008><U+0000><U+001B>[2J<U+009D>8;;x<U+0007><U+202E>b"


def is_clean(text):
    return all(character.isprintable() or character == "\n" for character in text)


@pytest.mark.parametrize("kind", [ChartKind.LINES, ChartKind.STACKED_BARS])
@pytest.mark.parametrize("name", ["$A_$B", r"$\frac$", "$", r"\$x^$", CONTROLS, "n" * 3_000, "two\nlines", "\ud800"])
def test_any_name_can_be_drawn(name, kind):
    series = tuple(Series(own, own, (Mark(0, 1), Mark(1, 2))) for own in (name, f"{name}2", "plain"))
    chart = Chart("c", name, kind, Axis(name, labels=(name, f"{name}b")), Axis(name), {name: series}, name)
    written = picture(chart)
    assert is_clean(written) and float(ElementTree.fromstring(written).attrib["width"]) < 1_000


def test_control_characters_are_written_out_in_markdown_and_text():
    for text in (CONTROLS, doc.Code(CONTROLS), doc.Strong(CONTROLS)):
        assert is_clean(Markdown().text(text)) and is_clean(write_text(text))
    assert write_text(CONTROLS) == WRITTEN
    assert Markdown().text(doc.Code(CONTROLS)) == f"`{WRITTEN}`"
    table = doc.make_table("t", (doc.label("name"),), [(CONTROLS,)], CONTROLS)
    assert is_clean(write_table(table)) and is_clean(Markdown().table(table))
    block = Markdown().block(doc.CodeBlock(f"one\n{CONTROLS}\n```\n# no heading"))
    assert is_clean(block) and block.startswith("````") and block.endswith("\n````")


@pytest.mark.parametrize("name", ["\n+\r> a", " - a", "\t# a", " 1) a", "    a"])
def test_a_name_that_begins_with_a_blank_makes_no_list_quote_heading_or_code(name):
    assert re.match(r"\\|1\\|a", Markdown().paragraph(name))


def test_a_bare_address_becomes_no_link():
    written = Markdown().text("see http://evil.example/x, ftp://a and www.evil.example; torch::mm")
    assert written == r"see http\://evil.example/x, ftp\://a and www\.evil.example; torch::mm"


def test_the_name_of_a_picture_is_short_and_names_one_chart():
    def path(id):
        return plot_path(Chart(id, "", ChartKind.LINES, Axis(""), Axis(""), ()))

    assert path("attention-time") == "plots/attention-time.svg"
    assert len(path("t" * 3_000)) < 140 and path("t" * 3_000) != path("t" * 2_999)
    assert slug("Time by length") == "time-by-length" and len({slug("A+"), slug("A*"), slug("A"), slug("é")}) == 4


# --- the terminal ----------------------------------------------------------------------------------------------------

#: What a file system and a YAML file can hold: an OSC that sets the title, a C1 character, a bidi override, a line end.
HOSTILE = "a\x1b]0;x\x07\x9d\u202eb\nc"


def printed(capsys, *words):
    """Run a command in this process and return what it prints."""
    with contextlib.suppress(SystemExit):
        cli.main([str(word) for word in words])
    captured = capsys.readouterr()
    text = captured.out + captured.err
    assert is_clean(text), repr(text)
    return text


def test_a_file_of_any_name_and_content_prints_text(tmp_path, capsys):
    export = Export()
    export.range(0, 100, HOSTILE)
    export.launch(1, 1, HOSTILE)
    export.add("DIAGNOSTIC_EVENT", timestamp=1, severity=2, text=HOSTILE, globalPid=1 << 24)
    path = export.write_sqlite(tmp_path / f"{HOSTILE}.sqlite")
    assert f"{WRITTEN_HOSTILE}.sqlite: nsys_sqlite" in printed(capsys, "ingest", path, "--out", tmp_path / HOSTILE)
    assert f"{WRITTEN_HOSTILE}.sqlite: " in printed(capsys, "scrub", path)
    for page in [*(tmp_path / HOSTILE).glob("*.md"), *(tmp_path / HOSTILE).glob("*.html")]:
        assert is_clean(page.read_text().replace("\t", " ")), page.name
    for command in ("report", "trace"):
        assert "<U+001B>" in printed(capsys, command, tmp_path / HOSTILE)
    path.write_bytes(b"x" + HOSTILE.encode())
    for command in ("ingest", "scrub"):
        assert WRITTEN_HOSTILE in printed(capsys, command, path)
        assert WRITTEN_HOSTILE in printed(capsys, command, tmp_path / f"no{HOSTILE}")


WRITTEN_HOSTILE = "a<U+001B>]0;x<U+0007><U+009D><U+202E>b<U+000A>c"


def test_a_pipeline_file_of_any_text_prints_text(tmp_path, capsys):
    path = tmp_path / f"{HOSTILE}.yaml"
    entry = {"command": ["echo", "{n}", HOSTILE], "matrix": {"n": [HOSTILE]}, "profilers": ["plain"]}
    good = {"version": 1, "name": "x", "workloads": {"w": entry}}
    for document in (
        good,
        {**good, HOSTILE: 1},
        {**good, "version": HOSTILE},
        {**good, "workloads": {HOSTILE: entry}},
        {**good, "workloads": {"w": {**entry, "profilers": [HOSTILE]}}},
        {**good, "workloads": {"w": {**entry, "env": {HOSTILE: HOSTILE}}}},
        {**good, "workloads": {"w": {"script": HOSTILE}}},
        [HOSTILE],
    ):
        path.write_text(json.dumps(document))
        for words in (["list", path], ["run", path, "--dry-run"], ["run", path, "-w", HOSTILE], ["resume", HOSTILE]):
            assert printed(capsys, *words)
    path.write_text(f"a: [\n{HOSTILE}")
    assert "is not YAML" in printed(capsys, "list", path)


def test_the_command_line_and_tracebacks_print_text(tmp_path, capsys):
    assert "<U+001B>" in printed(capsys, "ingest", "x", f"--{HOSTILE}")
    assert "Traceback" in (text := printed(capsys, "--debug", "report", tmp_path / HOSTILE)) and "<U+001B>" in text
    parsers = tmp_path / "parsers"
    parsers.mkdir()
    (parsers / "broken.py").write_text(f"raise ValueError({HOSTILE!r})")
    (tmp_path / "p.yaml").write_text("{version: 1, name: x, workloads: {w: {command: [echo], hook: false}}}")
    assert "cannot be loaded" in printed(capsys, "run", tmp_path / "p.yaml", "--out", tmp_path / "out")


#: A tag, which only a program reads, and characters of no width.
UNSEEN = "\U000e0072\u202e\u200b"


def test_an_agent_reads_no_invisible_character(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "r" / f"a{UNSEEN}.sqlite"
    path.parent.mkdir()
    shutil.copy(ROOT / "tests" / "data" / "nsys-2025.3.1" / "training" / "lm_eager.sqlite", path)
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("update StringIds set value = value || ?", (UNSEEN,))
    library = Library([path.parent])
    result = f"r/{path.name}"
    answers = [
        library.open(),
        *(getattr(library, tool)(result) for tool in ("summary", "steps", "kernels", "timeline")),
    ]
    assert not stdio.INVISIBLE.search(json.dumps(answers, ensure_ascii=False))
    assert "<U+E0072><U+202E>" in json.dumps(library.kernels(result))
    for option in ("--json", "--json=full"):
        assert cli.main(["ingest", str(path), "--out", f"out{option}", option]) == 0
        document = json.loads(capsys.readouterr().out)
        assert not stdio.INVISIBLE.search(json.dumps(document, ensure_ascii=False))
        for file in (tmp_path / f"out{option}").glob("*.txt"):
            assert not stdio.INVISIBLE.search(file.read_text())
        written = json.loads((tmp_path / f"out{option}" / "results.json").read_text())
        assert written["name"] == f"out{option}" and "<U+202E>" in written["cases"][0]["workload"]


def test_the_progress_of_a_run_prints_text(tmp_path):
    stream, job = io.StringIO(), job_of(tmp_path, "pass", "pass")
    with Display(stream) as display:
        display.job_started(job, 1, 1)
        display.case_ended(HOSTILE, "failed", HOSTILE)
        display.message(HOSTILE)
    assert is_clean(stream.getvalue()) and stream.getvalue().count("<U+001B>") == 3


LIVE = """
import sys, time
from profpipe import stdio
from profpipe.runner.progress import Display

with stdio.ignore_output_errors(), Display() as display:
    display.message(sys.argv[1])
    display.case_started(sys.argv[1])
    print(sys.argv[1])
    print(sys.argv[1], file=sys.stderr)
"""


def test_the_live_line_holds_no_controls_but_those_that_draw_it(tmp_path):
    leader, follower = pty.openpty()
    command = [sys.executable, "-c", LIVE, HOSTILE]
    subprocess.run(command, stdout=follower, stderr=follower, check=True, env={"TERM": "xterm", "PATH": ""})
    shown = os.read(leader, 1 << 16).decode()
    os.close(leader)
    os.close(follower)
    assert "a<U+001B>]0;x" in shown and not set(shown) & set("\x07\x9d\u202e\x00") and "\x1b]" not in shown


@pytest.mark.parametrize(("texts", "shown"), [
    (["::error::x\n"], ":<U+003A>error::x\n"), (["a\n  ::set-env::x"], "a\n  :<U+003A>set-env::x"),
    (["\n", " ", "::stop-commands::x"], "\n :<U+003A>stop-commands::x"), (["a ::b", "::c"], "a ::b::c"),
    ([":", ":error::x"], ":<U+003A>error::x"), (["ns::f ##[error]x"], "ns::f ##<U+005B>error]x"),
    (["a##", "[add-path]x"], "a##<U+005B>add-path]x"), (["#", "#", "[group]"], "##<U+005B>group]"),
    (["a##v", "so[task]x"], "a##vso<U+005B>task]x"),
    (["##VSO[task]x"], "##VSO<U+005B>task]x"),
    (["a long text and ::x ##", "[x"], "a long text and ::x ##<U+005B>x"),
    (["#[a] # #[b] ##"], "#[a] # #[b] ##"),
])  # fmt: skip
def test_no_line_is_a_command_of_ci(texts, shown, capsys):
    for filtered in (stdio.mask_output, stdio.ignore_output_errors):
        with filtered():
            for text in texts:
                sys.stdout.write(text)
        assert capsys.readouterr().out == shown


def test_names_of_cases_are_no_commands_of_ci(tmp_path, capsys):
    names = ["##[error]boom", "::error::boom"]
    case = {"script": "s.py", "matrix": {"n": names}}
    document = {"version": 1, "name": "x", "workloads": {"w": case}}
    (tmp_path / "p.yaml").write_text(json.dumps(document))
    (tmp_path / "s.py").write_text("PARAMS = {'n': ''}\n\ndef build(params):\n    raise ValueError(params['n'])\n")
    text = printed(capsys, "run", tmp_path / "p.yaml", "-p", "plain", "--out", tmp_path / "out")
    assert "boom" in text and "##[" not in text
    assert not any(line.lstrip().startswith("::") for line in text.splitlines())


def test_json_that_is_printed_holds_the_same_text():
    value = {"name": "##[error]x ##vso[a] ##VSO[b]", "other": "::x"}
    assert json.loads(stdio.as_json(value)) == value and "##[" not in stdio.as_json(value)
