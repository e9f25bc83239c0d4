"""The first screen on a terminal: what it shows, within any width, in any encoding, and of names from anybody."""

import gzip
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from report_study import check_golden

from profpipe import cli
from profpipe.report import document as doc, first_screen
from profpipe.report.document import Bullets, Code, Document, Paragraph, Section
from profpipe.report.screen import display_width, lay_out
from profpipe.report.units import PERCENT

DATA = Path(__file__).parent / "data"
#: One recording with steps of several ranks, and one without steps.
RECORDINGS = {"steps": "reported/one_process_four_gpus.sqlite", "no-steps": "nsys-2025.3.1/attention/attn_h200.sqlite"}
HOSTILE = (
    "\x1b[2J\x1b]0;title\x07",
    "a\nWarnings:\n- none",
    "\u202egnp",
    "矩阵乘" * 2000,
    "k" * 10_000,
    "%s{}{0}",
    "::error::x",
)


def printed(capsys, *arguments):
    capsys.readouterr()
    assert cli.main(list(arguments)) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("width", [40, 80, 120])
@pytest.mark.parametrize("name", RECORDINGS)
def test_the_screens_are_as_recorded_and_within_the_width(name, width, monkeypatch, capsys, regenerate):
    monkeypatch.chdir(DATA)
    monkeypatch.setenv("COLUMNS", str(width))
    screen = printed(capsys, "ingest", RECORDINGS[name])
    _, *lines = screen.splitlines()
    assert max(map(display_width, lines)) <= width
    assert len(lines) <= 42 or width < 80
    check_golden(f"screen-{name}-{width}.txt", screen, regenerate)


def test_a_narrow_terminal_keeps_what_ncu_counted_and_drops_the_launches(monkeypatch, capsys):
    pytest.importorskip("ncu_report")
    monkeypatch.chdir(DATA)
    monkeypatch.setenv("COLUMNS", "80")
    lines = printed(capsys, "ingest", "ncu-2025.3/sdpa_h200.ncu-rep").splitlines()
    (head,) = (line for line in lines if line.startswith("kernel "))
    assert head.split("  ")[-1] == "occupancy %" and max(map(display_width, lines[1:])) <= 80
    assert [name for name in ("us", "memory %", "SM %", "tensor %") if f"  {name}" not in head] == []
    assert "not shown: class; launches; of kernel time %" in lines


def test_the_same_screen_is_printed_with_and_without_out_and_by_report(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shutil.copyfile(DATA / RECORDINGS["steps"], "steps.sqlite")
    (held, *first), (end,) = printed(capsys, "ingest", "steps.sqlite").splitlines()[:-1], ["Report: seen/SUMMARY.md"]
    for arguments in (["ingest", "steps.sqlite", "--out", "seen"], ["ingest", "steps.sqlite", "--out", "seen"]):
        assert printed(capsys, *arguments).splitlines() == [held, *first, "Tables and details: seen", end]
    assert printed(capsys, "report", "seen").splitlines() == [*first[1:], "Tables and details: seen", end]


def test_the_bar_says_where_a_step_goes_and_no_sentence_says_it_again(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    export = tmp_path / "decode.sqlite"
    export.write_bytes(gzip.decompress((DATA / "steps_vary" / "decode_long.sqlite.gz").read_bytes()))
    screen = printed(capsys, "ingest", str(export))
    assert "█" in screen and "A step is " not in screen and "At most to gain" in screen
    lines = screen.splitlines()
    bar = lines[1 + next(i for i, line in enumerate(lines) if line.startswith("Where a step goes"))]
    assert len(bar) == 80 and set(bar) <= set("█▓▒▚▞▄░▁·")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp437:strict"])
def test_a_terminal_of_another_encoding_gets_every_line(encoding):
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "COLUMNS": "80"}
    names = [sys.executable, "-m", "profpipe", "ingest", str(DATA / "reported" / "unicode_names.sqlite")]
    done = subprocess.run(names, env=environment, capture_output=True, check=True)
    screen = done.stdout.decode(encoding.partition(":")[0])
    assert done.stderr == b"" and "compute 33.3 %" in screen and "\\u" in screen
    assert "###" in screen and "..." in screen
    assert "add --out DIR" in screen.splitlines()[-1]


def made_up(names):
    columns = (
        doc.label("kernel"),
        doc.label("class"),
        doc.count("calls", "launches"),
        doc.number("share", "", PERCENT),
    )
    table = doc.make_table("top_kernels", columns, [[Code(name), "own", 1, 0.5] for name in names])
    sections = [
        Section("headline", "", (Paragraph(("slowest is ", Code(names[0]))), Bullets(tuple(names))), workload="w"),
        Section("kernels", "Kernels", (table,), workload="w"),
        Section("warnings", "Warnings", (Bullets(tuple(Code(name) for name in names)),)),
    ]
    return Document("run", tuple(sections))


@pytest.mark.parametrize("width", [40, 80, 200])
def test_hostile_names_stay_text_in_one_line_of_the_table_within_the_width(width):
    screen = lay_out(first_screen.show_document(made_up(HOSTILE)), width, "utf-8")
    assert not any(char in screen for char in "\x1b\x07\u202e")
    head = next(i for i, line in enumerate(screen.splitlines()) if line.startswith("kernel"))
    rows = screen.splitlines()[head : head + 1 + len(HOSTILE)]
    assert all(line.endswith(("50.0", "%")) for line in rows)
    assert {display_width(line) for line in rows} <= set(range(min(width, 120) + 1))
    assert max(map(display_width, screen.splitlines())) <= min(width, 120)
    # No name makes a heading, and nothing is executed.
    assert screen.splitlines().count("Warnings:") == 1


def test_long_lists_leave_room_for_the_warnings():
    names = [f"kernel_{i}" for i in range(60)]
    lines = lay_out(first_screen.show_document(made_up(names)), 80, "utf-8").splitlines()
    assert len(lines) <= 40 and "57 more" in "\n".join(lines) and "Warnings:" in lines


def test_a_narrow_table_keeps_what_its_rows_are_and_says_what_is_missing():
    columns = (doc.label("mode"), doc.label("seqlen"), doc.label("variant", "fastest"),
               doc.number("time", "time ms"), doc.words("interval", "95 % interval"),
               doc.words("others", "other cases"))  # fmt: skip
    rows = [["fwd", str(512 * i), "sdpa_cudnn", 1.0, "+-0.1 %", "sdpa_flash 1.3x"] for i in range(1, 15)]
    times = Section("times", "Times", (doc.make_table("times", columns, rows),), workload="w")
    answer = Section("headline", "", (Paragraph("fastest is sdpa_cudnn"),), workload="w")
    lines = lay_out(first_screen.show_document(Document("run", (answer, times))), 40, "utf-8").splitlines()
    assert lines[2].split() == ["mode", "seqlen", "fastest", "time", "ms"]
    assert lines[3].split() == ["fwd", "512", "sdpa_cudnn", "1.00"]
    assert lines[-2:] == ["not shown: 95 % interval; other cases", "4 more"]


def test_tables_that_are_asked_for_stand_behind_the_answer():
    columns = (doc.label("case"), doc.number("time", "ms"))
    study = Section("first_studies", "", (doc.make_table("t", columns, [["fa2", 1.0]], title="asked for first"),))
    answer = Section("headline", "", (Paragraph("fastest is fa2"),), workload="w")
    screen = lay_out(first_screen.show_document(Document("run", (study, answer))), 80, "utf-8")
    assert screen.splitlines() == ["fastest is fa2", "", "asked for first", "case    ms", "fa2   1.00"]
