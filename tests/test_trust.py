"""`resume` starts what a run names. Without a question it resumes only runs that this user made on this machine."""

import io
import itertools
import json
import os
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from profpipe import cli
from profpipe.config import loader, program
from profpipe.results import store
from profpipe.results.manifest import Manifest, PairsEntry
from profpipe.runner import fingerprint, session, sides
from profpipe.runner.request import REQUEST_FILE, RunRequest

PIPELINE = """
version: 1
name: small
workloads: {w: {command: [touch, mark], profilers: [plain], hook: false}}
"""


@pytest.fixture
def request_of(tmp_path, monkeypatch):
    """A request whose command leaves the file ``mark``; the current folder is that of the pipeline."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "pipeline.yaml"
    path.write_text(PIPELINE)
    return RunRequest.create(loader.load_pipeline(path), path, tmp_path / "out")


@pytest.fixture
def run(request_of):
    """A run that was killed before its first job."""
    return session.create(request_of, ["profpipe", "run"]).folder


def resume(*words):
    return cli.main(["resume", *map(str, words), "--quiet"])


def mark():
    """Return whether the command of the run was started."""
    return Path("mark").exists()


def change(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_a_run_of_this_user_is_resumed_without_a_question(run):
    assert not fingerprint.find_doubt(run)
    assert resume() == 0 and mark() and Manifest.load(run).ended


def test_a_run_that_its_user_moved_is_resumed_without_a_question(run, tmp_path):
    moved = tmp_path / "elsewhere" / "moved"
    moved.parent.mkdir()
    shutil.move(run, moved)
    assert resume(moved) == 0 and mark()


def test_a_run_of_a_version_before_1_0_is_resumed_without_a_question(run):
    for old, new in (("order.json", "request.json"), ("basis.json", "fingerprint.json")):
        (run / "raw" / new).rename(run / "raw" / old)
    assert not fingerprint.find_doubt(run)
    assert resume() == 0 and mark() and not (run / "raw" / "request.json").exists()


def test_the_list_of_runs_is_private_and_has_a_line_for_each_run(run, request_of):
    known = _list_file()
    assert known.stat().st_mode & 0o777 == 0o600 and known.parent.stat().st_mode & 0o777 == 0o700
    other = session.create(replace(request_of, out=request_of.out / "other"), ["profpipe", "run"]).folder
    assert len(known.read_text().splitlines()) == 2
    assert not fingerprint.find_doubt(run) and not fingerprint.find_doubt(other)


def _list_file():
    return Path(os.environ["XDG_STATE_HOME"], "profpipe", "runs")


def _unknown(run):
    _list_file().write_text("\n")


def _list_of_others(run):
    _list_file().chmod(0o622)


def _no_home(run):
    os.environ["XDG_STATE_HOME"] = "/nonexistent"


def _other_request(run):
    change(run / REQUEST_FILE, '"touch", "mark"', '"touch", "./mark"')


def _no_fingerprint(run):
    (run / "raw" / "fingerprint.json").unlink()


def _sides_added(run):
    (run / "raw" / "sides.json").write_text("[]")


def _other_owner(run):
    if os.geteuid() != 0:
        pytest.skip("only root may give a file away")
    os.chown(run / "cases.csv", 12345, -1)


CHANGES: list[Callable[[Path], None]] = [
    _unknown, _list_of_others, _no_home, _other_request, _no_fingerprint, _sides_added, _other_owner,
]  # fmt: skip


@pytest.mark.parametrize("alter", CHANGES, ids=lambda alter: alter.__name__.strip("_"))
def test_any_other_run_is_refused_where_nobody_can_be_asked(run, alter, capsys):
    alter(run)
    doubt = fingerprint.find_doubt(run)
    assert (doubt == "another user owns a file in it") is (alter is _other_owner) and doubt
    assert resume(run) == 2 and not mark()
    printed = capsys.readouterr().err
    assert f"was not made by this user on this machine: {doubt}" in printed
    assert f"in {Path.cwd()}: touch " in printed and f"profpipe resume out/{run.name} --trust" in printed
    assert not [path for path in run.rglob("*") if path.name in ("lock", "SUMMARY.md")], "nothing was written"


def test_a_run_whose_files_are_renamed_meanwhile_is_still_of_this_user(run):
    is_over = threading.Event()

    def rename():
        for number in itertools.cycle(range(100)):
            if is_over.is_set():
                return
            (run / f"{number}.partial").touch()
            (run / f"{number}.partial").rename(run / "renamed")

    with ThreadPoolExecutor(1) as pool:
        pool.submit(rename)
        try:
            assert all(not fingerprint.find_doubt(run) for _ in range(300))
        finally:
            is_over.set()


def test_trust_resumes_a_run_of_somebody_else(run):
    _unknown(run)
    assert resume(run, "--trust") == 0 and mark()


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("YES\n", 0), ("n\n", 2), ("\n", 2), ("", 2)])
def test_on_a_terminal_the_user_is_asked(run, monkeypatch, answer, code):
    _unknown(run)
    shown = Terminal()
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    monkeypatch.setattr("sys.stderr", shown)
    assert resume(run) == code and mark() is (code == 0)
    assert "Resume it? [y/N]" in shown.getvalue()


def test_what_is_shown_cannot_hide_a_command(run, capsys):
    change(run / REQUEST_FILE, '"touch", "mark"', '"touch", "mark", "\\u001b[1A\\u001b[2K\\r"')
    change(run / REQUEST_FILE, '"hook": false', '"hook": false, "env": {"LD_PRELOAD": "evil.so"}')
    assert resume(run) == 2
    printed = capsys.readouterr().err
    assert "LD_PRELOAD=evil.so touch mark" in printed and "\\x1b[1A\\x1b[2K\\r" in printed and "\x1b" not in printed


def test_without_a_name_the_runs_of_others_are_left_out(run, tmp_path, capsys):
    foreign = run.with_name("20990101T000000Z-small")
    shutil.copytree(run, foreign)
    change(foreign / REQUEST_FILE, '"touch", "mark"', '"touch", "./mark"')
    data, record = store.load(foreign)
    store.save(foreign, data, replace(record, started="2099-01-01T00:00:00+00:00"))
    assert resume() == 0 and Manifest.load(run).ended and not Manifest.load(foreign).ended
    assert (tmp_path / "out" / "latest").resolve() == run
    capsys.readouterr()
    Path("mark").unlink()
    assert resume() == 2 and not mark()
    assert f"Name it to resume it: profpipe resume out/{foreign.name}" in capsys.readouterr().err
    assert resume("--trust") == 2 and not mark() and "--trust: is for a run that you name" in capsys.readouterr().err


@pytest.mark.parametrize("place", ["raw", "raw/w", "raw/w/plain/job.jsonl"])
def test_a_run_with_a_link_out_of_its_folder_is_not_resumed(run, tmp_path, capsys, place):
    outside = tmp_path / "outside"
    if place == "raw":
        shutil.move(run / "raw", outside)
    else:
        outside.mkdir()
        (run / place).parent.mkdir(parents=True, exist_ok=True)
    (run / place).symlink_to(outside)
    before = sorted(outside.rglob("*"))
    assert resume(run, "--trust") == 2 and f"{run / place}: leads out of the folder" in capsys.readouterr().err
    assert not mark() and sorted(outside.rglob("*")) == before


def test_a_link_inside_the_folder_is_no_reason_to_refuse_a_run(run):
    (run / "raw" / "again").symlink_to("../cases.csv")
    assert fingerprint.find_link(run) is None and resume(run) == 0


def test_code_that_somebody_put_into_a_run_of_this_user_is_not_used(request_of, tmp_path):
    both = tuple(sides.create(label, (), request_of) for label in "AB")
    made = session.create(request_of, ["profpipe", "ab"], both, PairsEntry())  # type: ignore[arg-type]
    for place in sides.MADE_ANEW:
        (made.folder / place / "A").mkdir(parents=True)
        (made.folder / place / "sitecustomize.py").write_text("import os; os.abort()")
    (tmp_path / "outside" / "kept").mkdir(parents=True)
    (made.folder / sides.LIBRARY / "profpipe").symlink_to(tmp_path / "outside")
    assert not fingerprint.find_doubt(made.folder) and fingerprint.find_link(made.folder) is None
    session.load(made.folder, RunRequest.load(made.folder))
    assert not any((made.folder / place).exists() for place in sides.MADE_ANEW)
    assert (tmp_path / "outside" / "kept").is_dir()


def test_parsers_and_templates_in_the_folder_of_a_run_are_not_used(tmp_path, request_of):
    path = tmp_path / "out" / "run" / "pipeline.yaml"
    found = program.read_program(["touch", "mark"], path, profilers=["plain"])
    run = session.create(
        RunRequest.create(found.pipeline, path, tmp_path / "out", program=found), ["profpipe", "run"]
    ).folder
    for kind, name in (("parsers", "evil.py"), ("templates", "SUMMARY.md.j2")):
        (run / kind).mkdir()
        (run / kind / name).write_text("raise SystemExit('evil') {{ evil }}")
    assert RunRequest.load(run).plugin_dir is None and request_of.plugin_dir == tmp_path
    assert resume(run) == 0 and mark() and "evil" not in (run / "SUMMARY.md").read_text()


@pytest.mark.parametrize("part", [{"secrets": {"hunter2-hunter2": 5}}, {"hidden": "hunter2-hunter2"}])
def test_a_damaged_request_is_named_without_its_secrets(run, part, capsys):
    (run / REQUEST_FILE).write_text(json.dumps(json.loads((run / REQUEST_FILE).read_text()) | part))
    assert resume(run, "--trust") == 2
    printed = capsys.readouterr().err
    assert f"its {next(iter(part))} is wrong" in printed and "hunter2" not in printed


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"pipeline": []}', "\\xff", '{"pipeline": {"version": 2}}'])
def test_a_damaged_request_is_named(run, text, capsys):
    (run / REQUEST_FILE).write_bytes(text.encode().replace(b"\\xff", b"\xff"))
    assert resume(run, "--trust") == 2
    assert f"{run / REQUEST_FILE}: is not the file that profpipe wrote" in capsys.readouterr().err
