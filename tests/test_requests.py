"""Requests in which a language model generates tokens, recognised by the lengths of the inputs of its calls."""

from __future__ import annotations

import json

import pytest

from profpipe.ingest import reader


def read(path):
    return reader.parse(reader.choose(path, reader.parsers()), path)


def tables(tmp_path, calls, rank=None):
    """The tables of a process that called its model with (batch, length) tokens, each call for so many ms."""
    lines = [
        {"hook": "started", "profiler": "plain", "pid": 1, "rank": rank, "warmup": 0},
        {
            "hook": "steps",
            "rule": "forward",
            "step": [*range(len(calls))],
            "start_ns": [10**9 + n for n in range(len(calls))],
            "wall_ns": [call[2] * 1e6 if call else 1e6 for call in calls],
            "calls": [f"LM {call[0]}x{call[1]}" if call else "Other" for call in calls],
        },
    ]
    path = tmp_path / "hook.capture.1.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return read(path)


def figures(found):
    """The figures of requests by subject and metric."""
    rows = found.metrics.itertuples()
    return {(row.subject, row.metric): (row.value, row.n) for row in rows if row.subject.startswith("prompt ")}


def request(prompt, *, first, each, output, batch=1, has_cache=True):
    """The calls of a request; its last one also holds the pause until the next request."""
    lengths = [1] * (output - 1) if has_cache else range(prompt + 1, prompt + output)
    calls = [(batch, prompt, first), *((batch, length, each) for length in lengths)]
    return [*calls[:-1], (*calls[-1][:2], 1000.0)]


#: The end of a process cuts its last call.
CUT = slice(None, -1)


@pytest.mark.parametrize("has_cache", [True, False], ids=["cache", "no cache"])
def test_a_request_has_a_time_to_first_token_and_one_per_token(tmp_path, has_cache):
    of = {"first": 40.0, "each": 10.0, "output": 17, "batch": 2, "has_cache": has_cache}
    found = figures(
        tables(tmp_path, [*request(512, **of), *request(512, **of), *request(64, **{**of, "first": 8.0})][CUT])
    )
    assert found["prompt 512", "time_to_first_token"] == (40e6, 2)
    assert found["prompt 512", "time_per_output_token"] == (10e6, 30)
    assert found["prompt 512", "request_output"] == (17, 2) and found["prompt 512", "request_batch"] == (2, 2)
    # The last call counts as long as the others: 40 + 16 * 10 ms for 2 * 17 tokens.
    assert found["prompt 512", "tokens_per_s"] == (pytest.approx(170.0), 2)
    assert found["prompt 64", "time_to_first_token"] == (8e6, 1) and found["prompt 64", "request_output"] == (17, 1)


def test_a_slow_request_at_the_beginning_is_left_out(tmp_path):
    slow = request(512, first=400.0, each=70.0, output=10)
    calls = [*slow, *request(512, first=40.0, each=10.0, output=60), *request(512, first=40.0, each=10.0, output=60)]
    found = figures(tables(tmp_path, calls[CUT]))
    assert found["prompt 512", "time_to_first_token"] == (40e6, 2)
    assert found["prompt 512", "time_per_output_token"] == (10e6, 116)


def test_a_prompt_is_no_steady_step(tmp_path):
    of = {"first": 11.0, "each": 10.0, "output": 12}
    steps = tables(tmp_path, [*request(32, **of), *request(32, **of)]).steps
    assert [int(row.step) for row in steps.itertuples() if row.state == "other"] == [0, 11, 12]


@pytest.mark.parametrize(
    "calls",
    [
        [(8, 128, 10.0)] * 30,
        [(1, 1, 10.0)] * 30,
        # A prompt in two calls looks like a request of one token before another request.
        [(1, 256, 20.0), *request(256, first=20.0, each=10.0, output=8)],
        request(64, first=20.0, each=10.0, output=3)[CUT],
        [*request(64, first=20.0, each=10.0, output=5)[:4], None, (1, 1, 10.0), (1, 1, 10.0)],
        [*request(64, first=0.0, each=0.0, output=5)],
    ],
    ids=[
        "a batch in each call",
        "the prompt was not recorded",
        "two prompts in a row",
        "too few tokens",
        "another model in between",
        "no time",
    ],
)
def test_other_calls_are_no_requests(tmp_path, calls):
    assert figures(tables(tmp_path, calls)) == {}


def test_requests_are_those_of_the_first_rank(tmp_path):
    calls = request(32, first=20.0, each=10.0, output=8)
    assert figures(tables(tmp_path, calls, rank=0)) and not figures(tables(tmp_path, calls, rank=1))


@pytest.mark.parametrize("tokens", [None, [[1, 2]], [[1, "x"]] * 3, [[1]] * 3, [[-1, 1]] * 3, [[0, 9]] * 3])
def test_wrong_tokens_drop_the_line_or_the_requests(tmp_path, tokens):
    path = tmp_path / "hook.capture.1.jsonl"
    line = {"hook": "steps", "rule": "forward", "step": [0, 1, 2], "start_ns": [1, 2, 3], "wall_ns": [1.0, 1.0, 1.0]}
    started = {"hook": "started", "profiler": "plain", "pid": 1}
    path.write_text(
        "".join(json.dumps(each) + "\n" for each in (started, {**line, "tokens": tokens})), encoding="utf-8"
    )
    assert figures(read(path)) == {}
