"""Follow events.jsonl while another process writes it."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_profiler import Notes

from profpipe.errors import ConfigError
from profpipe.job import CaseOutcome, Cause, Status, Visit
from profpipe.runner.event_log import EventLog, read_outcomes, read_started

BEGAN_A = '{"event": "case_started", "case": "a", "params": {}}\n'
ENDED_A = '{"event": "case_ended", "case": "a", "status": "oom", "reason": ""}\n'


def test_a_partial_line_is_read_when_it_is_complete(tmp_path: Path) -> None:
    path, notes = tmp_path / "events.jsonl", Notes()
    events = EventLog(path, notes)
    events.read()
    path.write_text(BEGAN_A + ENDED_A[:20])
    events.read()
    assert (events.inside, events.ended) == ("a", {})
    with path.open("a") as stream:
        stream.write(ENDED_A[20:])
    events.read()
    assert (events.inside, events.ended) == (None, {"a": CaseOutcome(Status.OOM, Cause.WORKLOAD)})
    assert notes.calls == [("case_started", "a"), ("case_ended", "a", "oom")]


def test_events_of_an_earlier_process_are_not_reported_again(tmp_path: Path) -> None:
    path, notes = tmp_path / "events.jsonl", Notes()
    path.write_text(BEGAN_A + ENDED_A)
    events = EventLog(path, notes)
    events.read()
    assert (events.ended, notes.calls) == ({}, [])


def test_an_unfinished_last_line_does_not_damage_the_next_line(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text(BEGAN_A + ENDED_A[:20])
    events = EventLog(path, Notes())
    with path.open("a") as stream:
        stream.write(BEGAN_A)
    events.read()
    assert events.inside == "a"
    assert path.read_text() == BEGAN_A + ENDED_A[:20] + "\n" + BEGAN_A


@pytest.mark.parametrize("name", ["mine.txt", "new.txt"])
def test_events_are_not_written_through_a_link(tmp_path: Path, name: str) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    (tmp_path / "events.jsonl").symlink_to(name)
    with pytest.raises(ConfigError, match=r"events\.jsonl: is a link or no regular file"):
        EventLog(tmp_path / "events.jsonl", Notes())
    assert (tmp_path / "mine.txt").read_text() == "mine"


def test_the_last_started_case_is_the_current_one(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    events = EventLog(path, Notes())
    path.write_text(BEGAN_A + BEGAN_A.replace('"a"', '"b"') + BEGAN_A + ENDED_A.replace('"a"', '"b"'))
    events.read()
    assert events.inside == "a"


def test_a_line_that_is_not_an_event_is_ignored_with_a_message(tmp_path: Path) -> None:
    path, notes = tmp_path / "events.jsonl", Notes()
    events = EventLog(path, notes)
    path.write_text("Segmentation fault\n" + "7\n" + BEGAN_A)
    events.read()
    assert events.inside == "a"
    assert len(notes.messages) == 2


def start_of(case: str) -> str:
    return BEGAN_A.replace('"a"', f'"{case}"')


STARTED = '{"event": "started"}\n{"event": "order", "rounds": 3}\n'


def test_interleaved_rounds_count_the_cases_of_each_round(tmp_path: Path) -> None:
    path, notes = tmp_path / "events.jsonl", Notes()
    events = EventLog(path, notes)
    path.write_text(STARTED + "".join(map(start_of, "abba")))
    events.read()
    assert notes.visits == [("a", Visit(1, 1, 3)), ("b", Visit(2, 1, 3)), ("b", Visit(1, 2, 3)), ("a", Visit(2, 2, 3))]


def test_a_resumed_process_continues_the_count_of_rounds(tmp_path: Path) -> None:
    path, notes = tmp_path / "events.jsonl", Notes()
    path.write_text(STARTED + "".join(map(start_of, "abcab")) + ENDED_A)
    events = EventLog(path, notes)
    restored = '{"event": "samples", "case": "b", "metric": "time", "round": 1, "unit": "ns", "values": [1]}\n'
    with path.open("a") as stream:
        stream.write(STARTED + restored + start_of("c") + start_of("b"))
    events.read()
    assert notes.visits == [("c", Visit(3, 1, 3)), ("b", Visit(2, 2, 3))]


def test_a_line_without_its_case_or_status_ends_no_case(tmp_path: Path) -> None:
    path, notes = tmp_path / "events.jsonl", Notes()
    events = EventLog(path, notes)
    path.write_text('[1]\n{"event": "case_ended"}\n{"event": "case_ended", "case": "a"}\n' + BEGAN_A + ENDED_A)
    events.read()
    assert list(events.ended) == ["a"] and len(notes.messages) == 3
    assert list(read_outcomes(path)) == ["a"] and read_started(path) == {"a"}
