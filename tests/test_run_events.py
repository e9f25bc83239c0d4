"""Following events.jsonl while somebody else writes it."""

from __future__ import annotations

from pathlib import Path

from fake_profiler import Notes

from profpipe.running.events import Events

BEGAN_A = '{"event": "case_started", "case": "a", "params": {}}\n'
ENDED_A = '{"event": "case_ended", "case": "a", "status": "oom", "reason": ""}\n'


def test_half_a_line_waits_for_its_other_half(tmp_path: Path) -> None:
    path, notes = tmp_path / "events.jsonl", Notes()
    events = Events(path, notes)
    events.read()
    path.write_text(BEGAN_A + ENDED_A[:20])
    events.read()
    assert (events.inside, events.ended) == ("a", {})
    with path.open("a") as stream:
        stream.write(ENDED_A[20:])
    events.read()
    assert (events.inside, events.ended) == (None, {"a": "oom"})
    assert notes.told == [("case_started", "a"), ("case_ended", "a", "oom")]


def test_what_an_earlier_process_wrote_is_not_told_again(tmp_path: Path) -> None:
    path, notes = tmp_path / "events.jsonl", Notes()
    path.write_text(BEGAN_A + ENDED_A)
    events = Events(path, notes)
    events.read()
    assert (events.ended, notes.told) == ({}, [])


def test_an_unfinished_last_line_is_ended_so_that_the_next_stands_alone(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text(BEGAN_A + ENDED_A[:20])
    events = Events(path, Notes())
    with path.open("a") as stream:
        stream.write(BEGAN_A)
    events.read()
    assert events.inside == "a"
    assert path.read_text() == BEGAN_A + ENDED_A[:20] + "\n" + BEGAN_A


def test_the_case_turned_to_last_is_the_one_inside(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    events = Events(path, Notes())
    path.write_text(BEGAN_A + BEGAN_A.replace('"a"', '"b"') + BEGAN_A + ENDED_A.replace('"a"', '"b"'))
    events.read()
    assert events.inside == "a"


def test_a_line_that_is_no_event_is_passed_over_with_a_word(tmp_path: Path) -> None:
    path, notes = tmp_path / "events.jsonl", Notes()
    events = Events(path, notes)
    path.write_text("Segmentation fault\n" + "7\n" + BEGAN_A)
    events.read()
    assert events.inside == "a"
    assert len(notes.messages) == 2
