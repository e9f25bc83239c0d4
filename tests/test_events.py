"""job.jsonl: the events of the harness, also after a kill."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from profpipe.errors import UnreadableFile

Event = dict[str, Any]
Write = Callable[..., Path]

STARTED: Event = {
    "event": "started", "profiler": "plain", "machine": {"device": "NVIDIA H200"}, "torch": "2.11.0", "pid": 1
}  # fmt: skip
FINISHED: Event = {"event": "finished", "time": 9.0}


@pytest.fixture
def events(tmp_path):
    """Writes events (or pieces of text) line by line and gives the file's path."""

    def write(*lines, end="\n"):
        path = tmp_path / "job.jsonl"
        path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + end)
        return path

    return write


def case(name, *values, status="ok", ended=True, **more):
    """The events of one case with samples of ``values`` ns."""
    lines: list[Event] = [{"event": "case_started", "case": name, "params": {"n": 1}, "time": 2.0}]
    if values:
        lines.append({"event": "samples", "case": name, "unit": "ns", "clock": "cuda_event", "values": list(values)})
    if ended:
        lines.append(
            {"event": "case_ended", "case": name, "status": status, "reason": "", "seconds": 1.5, "flags": [], **more}
        )
    return lines


def metric(name, value, unit="byte"):
    return {"event": "metric", "case": "a", "subject": "", "metric": name, "value": value, "unit": unit, "n": 1}


def values(parsed):
    return dict(zip(parsed.metrics["metric"], parsed.metrics["value"], strict=True))


def test_a_case_becomes_a_row_with_its_parameters_and_flags(parser, events):
    path = events(STARTED, *case("a", 5.0, flags=["throttled"]), FINISHED)
    assert parser.sniff(path)
    row = parser.parse(path).cases.iloc[0]
    assert (row["case"], row["profiler"], row["status"], row["seconds"]) == ("a", "plain", "ok", 1.5)
    assert json.loads(row["params"]) == {"n": 1} and json.loads(row["flags"]) == ["throttled"]


def test_samples_become_their_median_spread_and_count(parser, events):
    parsed = parser.parse(events(STARTED, *case("a", *range(1, 12)), FINISHED))
    found = values(parsed)
    assert found == {
        "time": 6.0, "time_p10": 2.0, "time_p90": 10.0, "time_min": 1.0, "time_max": 11.0, "iterations": 11.0,
        "time_cv": pytest.approx(np.std(range(1, 12), ddof=1) / 6 * 100),
    }  # fmt: skip
    time = parsed.metrics.iloc[0]
    assert (time["unit"], time["n"], time["ci_low"], time["ci_high"]) == ("ns", 11, 2.0, 10.0)


def test_samples_in_other_units_and_in_several_events_are_joined_in_nanoseconds(parser, events):
    started, ended = case("a")
    more = [
        {"event": "samples", "case": "a", "unit": u, "clock": "perf_counter", "values": [v]}
        for u, v in (("us", 2), ("ms", 4))
    ]
    assert values(parser.parse(events(STARTED, started, *more, ended)))["time"] == (2e3 + 4e6) / 2


def test_too_few_samples_have_no_interval_rather_than_a_wrong_one(parser, events):
    metrics = parser.parse(events(STARTED, *case("a", 1, 2, 3, 4, 5))).metrics
    assert metrics[["ci_low", "ci_high"]].isna().all(axis=None)


def test_other_metrics_are_kept_as_given_and_the_last_one_counts(parser, events):
    started, ended = case("a")
    parsed = parser.parse(events(STARTED, started, metric("flops", 1), metric("flops", 2, "flop"), ended))
    assert parsed.metrics[["metric", "value", "unit", "n"]].values.tolist() == [["flops", 2.0, "flop", 1]]


def test_a_metric_that_is_not_a_number_is_dropped_with_a_note(parser, events):
    started, ended = case("a")
    parsed = parser.parse(events(STARTED, started, metric("error_max", "tensor(1.)", "1"), metric("flops", 2), ended))
    assert values(parsed) == {"flops": 2.0} and "error_max is no number" in parsed.origin.notes[0]


def test_a_whole_number_beyond_any_float_costs_no_other_number(parser, events):
    (started, samples, ended), huge = case("a", 5.0, 6.0), math.factorial(200)
    parsed = parser.parse(events(STARTED, started, samples, metric("ways", huge, "1"), metric("flops", 2), ended))
    assert values(parsed)["time"] == 5.5 and values(parsed)["flops"] == 2.0 and "ways" not in values(parsed)
    assert parsed.origin.notes == ("a: metric ways is no number and was dropped",)


def test_a_case_that_was_begun_and_never_ended_has_crashed(parser, events):
    parsed = parser.parse(events(STARTED, *case("a", 1.0), *case("b", ended=False)))
    assert parsed.cases["status"].tolist() == ["ok", "crashed"]
    assert parsed.cases["reason"].tolist()[1].startswith("the process ended inside this case")


def test_what_finished_before_a_kill_survives_the_line_that_the_kill_cut(parser, events):
    path = events(STARTED, *case("a", 1.0), *case("b", ended=False), '{"event":"samples","case":"b","val', end="")
    parsed = parser.parse(path)
    assert parsed.cases["status"].tolist() == ["ok", "crashed"]
    assert any("was cut by the end of its process" in note for note in parsed.origin.notes)


@pytest.mark.parametrize("between", ["", "\n"])
def test_a_second_process_appends_after_the_cut_line_of_the_first(parser, events, between):
    cut = '{"event": "samples", "case": "b", "valu' + between + json.dumps(STARTED)
    parsed = parser.parse(events(STARTED, *case("a", 1.0), *case("b", ended=False), cut, *case("c", 2.0), FINISHED))
    assert dict(zip(parsed.cases["case"], parsed.cases["status"], strict=True)) == {
        "a": "ok",
        "b": "crashed",
        "c": "ok",
    }


def test_a_case_that_a_later_process_began_anew_counts_as_there(parser, events):
    parsed = parser.parse(events(STARTED, *case("a", 1.0, 1.0, ended=False), STARTED, *case("a", 7.0)))
    assert parsed.cases["status"].tolist() == ["ok"]
    assert values(parsed)["time"] == 7.0 and values(parsed)["iterations"] == 1


def test_a_process_that_turns_to_a_case_again_adds_to_its_samples(parser, events):
    first, again = case("a", 1.0, ended=False), case("a", 3.0)
    parsed = parser.parse(events(STARTED, *first, *case("b", 9.0, ended=False), *again, FINISHED))
    assert parsed.cases["status"].tolist() == ["ok", "crashed"]
    assert parsed.metrics.loc[parsed.metrics["metric"] == "time", "value"].tolist() == [2.0, 9.0]


def test_profilers_in_one_file_stay_apart(parser, events):
    parsed = parser.parse(events(STARTED, *case("a", 1.0), {**STARTED, "profiler": "nsys"}, *case("a")))
    assert parsed.cases[["case", "profiler"]].values.tolist() == [["a", "plain"], ["a", "nsys"]]


def test_a_case_that_was_skipped_keeps_its_reason(parser, events):
    ended = {"event": "case_ended", "case": "a", "status": "skipped", "reason": "needs sm_90", "seconds": 0}
    row = parser.parse(events(STARTED, ended)).cases.iloc[0]
    assert (row["status"], row["reason"], row["flags"], row["params"]) == ("skipped", "needs sm_90", "[]", "{}")


def test_events_that_are_not_known_are_ignored(parser, events):
    path = events(STARTED, {"event": "weather", "case": 3}, *case("a", 1.0))
    assert parser.parse(path).cases["status"].tolist() == ["ok"]


def test_a_reason_with_bytes_that_are_not_text_can_be_written_to_a_table(parser, events):
    ended = {"event": "case_ended", "case": "a", "status": "failed", "reason": "no file caf\udce9", "seconds": 0}
    assert parser.parse(events(STARTED, ended)).cases["reason"].str.encode("utf-8").tolist() == [b"no file caf?"]
    path = events(STARTED, ended)
    path.write_bytes(
        path.read_bytes().replace(b"\\udce9", b"\\uDCE9") + b'{"event": "case_started", "case": "\xed\xa0\x80"}\n'
    )
    parsed = parser.parse(path)
    assert parsed.cases["reason"].str.encode("utf-8").tolist() == [b"no file caf?"]
    assert parsed.origin.notes[0].startswith("line 3 ")


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ('{"event": "case_sta', "line 2 is not a JSON object"),
        ("[1]", "line 2 is not a JSON object"),
        ("[" * 100_000, "line 2 is not a JSON object"),
        ("Segmentation fault", "line 2 is not a JSON object"),
        ({"event": ["samples"]}, "line 2 has a wrong"),
        ({"event": "samples", "case": "a", "unit": "fortnights", "values": [1]}, "line 2 ('samples') has a wrong"),
        ({"event": "samples", "case": "a", "unit": "ns", "values": ["x"]}, "line 2 ('samples') has a wrong"),
        ({"event": "samples", "case": "a", "unit": "ns", "values": [10**400]}, "line 2 ('samples') has a wrong"),
        ({"event": "case_started", "case": "a", "params": {"n": [2**63]}}, "line 2 ('case_started') has a wrong"),
        ({"event": "metric", "case": "a", "metric": "flops", "value": 1, "unit": 7}, "line 2 ('metric') has a wrong"),
        ({"event": "case_ended"}, "line 2 ('case_ended') has a wrong"),
        ({"event": "case_ended", "case": "a", "status": "splendid"}, "line 2 ('case_ended') has a wrong"),
        ({"event": "case_started"}, "line 2 ('case_started') has a wrong"),
    ],
)
def test_a_line_that_is_no_event_costs_nothing_else(parser, events, wrong, why):
    parsed = parser.parse(events(STARTED, wrong, *case("a", 5.0, 7.0), FINISHED))
    assert parsed.cases["status"].tolist() == ["ok"] and values(parsed)["time"] == 6.0
    (note,) = parsed.origin.notes
    assert note.startswith(why) and note.endswith("was dropped")


def test_many_lines_that_are_no_events_are_counted(parser, events):
    notes = parser.parse(events(STARTED, *["oh"] * 9, *case("a", 5.0))).origin.notes
    assert notes[-1] == "6 more lines are no events and were dropped" and len(notes) == 4


def test_a_negative_duration_is_dropped(parser, events):
    """An earlier version subtracted times of a clock that may be set back."""
    parsed = parser.parse(events(STARTED, *case("a", 5.0, seconds=-3600.5)))
    assert parsed.cases["seconds"].isna().all() and "the clock was set back" in parsed.origin.notes[0]


def test_a_process_that_died_before_its_first_case_is_refused(parser, events):
    with pytest.raises(UnreadableFile, match="holds no case"):
        parser.parse(events(STARTED))
