"""A second look at unchanged files: the answer stands in the results folder, and any change is read anew."""

import json
import os
import shutil
import time
from pathlib import Path

import pytest

from profpipe import cli, errors
from profpipe.ingest import reader
from profpipe.results import answer

RECORDING = Path(__file__).parent / "data" / "reported" / "own_range.sqlite"


@pytest.fixture
def recording(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shutil.copyfile(RECORDING, "recording.sqlite")
    _settle()
    assert cli.main(["ingest", "recording.sqlite", "--out", "seen"]) == errors.OK
    return Path("recording.sqlite")


@pytest.fixture
def reads(monkeypatch):
    """The files that are read from now on."""
    found = []
    original = reader.choose
    monkeypatch.setattr(reader, "choose", lambda path, parsers: found.append(path.name) or original(path, parsers))
    return found


def _settle():
    time.sleep(2 * answer.TICK_NS / 1e9)


def _ingest(*more):
    return cli.main(["ingest", "recording.sqlite", "--out", "seen", *more])


def test_unchanged_files_are_not_read_again(recording, reads, capsys):
    first = capsys.readouterr().out
    assert _ingest() == errors.OK
    assert capsys.readouterr().out == first
    assert not reads


def test_the_report_of_an_unchanged_folder_is_what_the_tables_give(recording, capsys):
    for options in ([], ["--quiet"], ["--json"], ["--json=full"]):
        shutil.copytree("seen", "copied")
        capsys.readouterr()
        assert cli.main(["report", "seen", *options]) == errors.OK
        kept = capsys.readouterr().out
        assert answer.find(Path("seen")) and not answer.find(Path("copied"))
        assert cli.main(["report", "copied", *options]) == errors.OK
        assert capsys.readouterr().out.replace("copied", "seen") == kept
        shutil.rmtree("copied")


def _rewrite(recording):
    """Change the file, but neither its size nor its time."""
    before = recording.stat()
    with recording.open("r+b") as stream:
        stream.seek(-1, os.SEEK_END)
        stream.write(b"x")
    os.utime(recording, ns=(before.st_atime_ns, before.st_mtime_ns))


def _edit(**changed):
    kept = json.loads(Path("seen", answer.FILE).read_bytes())
    Path("seen", answer.FILE).write_text(json.dumps({**kept, **changed}))


CHANGES = {
    "written anew": _rewrite,
    "another time": lambda recording: os.utime(recording),
    "another file of this name": lambda recording: Path(shutil.copyfile(RECORDING, "new")).replace(recording),
    "an exporter's leftover": lambda recording: Path(f"{recording}-journal").touch(),
    "a table beside it": lambda recording: Path("agent_info.csv").write_text("x"),
    "a table is gone": lambda recording: Path("seen/ranges.parquet").unlink(),
    "a page was edited": lambda recording: Path("seen/SUMMARY.md").write_text("mine"),
    "a file in its folder": lambda recording: Path("seen/new").mkdir() or Path("seen/new/file").touch(),
    "the answer is damaged": lambda recording: Path("seen/.answer.json").write_text('{"folder": []'),
    "a part of the screen is another": lambda recording: _edit(first_screen=[["x"], {"a": 1}, 5]),
    "a text is a number": lambda recording: _edit(printed=5),
    "the short document is a list": lambda recording: _edit(document=[1]),
    "the answer has other keys": lambda recording: Path("seen/.answer.json").write_text('{"printed": 1}'),
}


@pytest.mark.parametrize(
    "change", [*[*CHANGES][:4], *(pytest.param(change, marks=pytest.mark.slow) for change in [*CHANGES][4:])]
)
def test_a_change_is_read_anew(recording, reads, change):
    CHANGES[change](recording)
    _settle()
    assert _ingest() == errors.OK
    assert reads
    assert "mine" not in Path("seen/SUMMARY.md").read_text()
    assert Path("seen/ranges.parquet").is_file()


@pytest.mark.parametrize("options", [["--csv"], ["--step-range", "iter"]])
def test_other_options_are_read_anew(recording, reads, options):
    _ingest(*options)
    assert reads


def test_another_version_reads_anew(recording, reads, monkeypatch):
    monkeypatch.setattr("profpipe.__version__", "0.0")
    _ingest()
    assert reads


def test_templates_of_the_user_are_used(recording, capsys):
    Path("templates").mkdir()
    Path("templates/SUMMARY.md.j2").write_text("of the user")
    assert cli.main(["report", "seen"]) == errors.OK
    assert Path("seen/SUMMARY.md").read_text() == "of the user\n"


def test_no_answer_is_kept_of_a_file_that_may_still_change(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copyfile(RECORDING, "recording.sqlite")
    assert answer.state_of_files([Path("recording.sqlite")], Path("seen")) == ""
    _settle()
    assert answer.state_of_files([Path("recording.sqlite")], Path("seen"))


def test_no_answer_is_kept_where_a_file_is_refused(recording):
    Path("empty.sqlite").touch()
    _settle()
    assert cli.main(["ingest", "recording.sqlite", "empty.sqlite", "--out", "seen"]) == errors.SOME_FAILED
    assert not answer.find(Path("seen"))


def test_the_answer_holds_no_path(recording):
    assert str(Path.cwd()) not in json.dumps(json.loads(Path("seen/.answer.json").read_text()))


def test_an_answer_that_somebody_wrote_gives_no_command_to_the_terminal(recording, reads, capsys):
    kept = json.loads(Path("seen", answer.FILE).read_bytes())
    answer.keep(Path("seen"), kept["files"], "\x1b]0;title\x07", [["text", "\x1b[2J\u202e"]], kept["document"])
    capsys.readouterr()
    assert _ingest() == errors.OK and cli.main(["report", "seen"]) == errors.OK and reads == []
    printed = capsys.readouterr().out
    assert "\x1b" not in printed and "<U+001B>]0;title<U+0007>" in printed and "<U+001B>[2J<U+202E>" in printed
