"""Requests in which a language model generates tokens, recognised by the lengths of the inputs of its calls."""

import itertools
import json

import pytest
from program import profpipe

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


def page(tmp_path, rule, calls, threads=()):
    """The first sentences of the page of a process that made these calls, or steps, of so many ms each."""
    texts = [f"{call}{f' @{thread}' if thread else ''}" for (call, _), thread in itertools.zip_longest(calls, threads)]
    columns = {"step": [*range(len(calls))], "wall_ns": [round(ms * 1e6) for _, ms in calls], "calls": texts}
    ends = [10**9, 10**9]
    columns["start_ns"] = []
    for wall, (_, thread) in zip(columns["wall_ns"], itertools.zip_longest(calls, threads, fillvalue=0), strict=True):
        columns["start_ns"].append(ends[thread])
        ends[thread] += wall
    lines = [{"hook": "started", "profiler": "plain", "pid": 1}, {"hook": "steps", "rule": rule, **columns}]
    path = tmp_path / "hook.capture.1.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return profpipe(tmp_path, "ingest", path, "--out", tmp_path / "seen").split("\n\n")[1].replace("\n", " ")


ROLLOUTS = [*[("", 1.7)] * 15, *[("", 31.7), *[("", 1.7)] * 15] * 20]
IMAGE = [("TextEncoder", 10.0), *[("UNet", 15.0)] * 20, ("Decoder", 300.0)]
SPEECH = [("Encoder 4x80", 5.0), *[("Speech 16x1", 16.0)] * 60]
WARMED = [*((call, 4 * ms) for call, ms in SPEECH * 3), *SPEECH * 4]
ENGINE = [*[("CUDAGraph", 3.0)] * 20, ("Qwen 12000", 1273.0), *[("CUDAGraph", 3.0)] * 200]
SERVER = [("A", 5.0), ("B", 7.0), ("B", 7.0), ("A", 5.0), ("B", 7.0), ("A", 5.0), ("A", 5.0)] * 9
EVALUATIONS = [("", 400.0 if n in (31, 86, 98, 170) else 10.0) for n in range(220)]


@pytest.mark.parametrize(
    ("rule", "calls", "sentences"),
    [
        ("optimizer", ROLLOUTS, ["An iteration takes 57.2 ms", "16 steps of the optimizer, 27.2 ms (1.70 ms a step)"]),
        ("optimizer", [*[("", 10.0)] * 4, ("", 80.0)] * 9, ["24.3 ms (mean", "One of 5 steps takes 80.0 ms"]),
        ("optimizer", EVALUATIONS, ["A step takes 10.0 ms", "leaves out 41.6 % of the time: 41.6 % in 4 outliers."]),
        ("optimizer", [("", 10.0 if n % 40 else 20.0) for n in range(1, 200)], ["steady steps)."]),
        ("forward", IMAGE * 4, ["A call of UNet takes 15.0 ms", "610.0 ms (median of 2)", "20 calls of UNet at"]),
        ("forward", WARMED, ["decode step of Speech", "A request takes 965.0 ms (median of 3)", "Encoder 5.00 ms and"]),
        ("forward", ENGINE, ["(a replay of a CUDA graph) takes 3.00 ms", "66.0 % of the time: 1 call, 1273 ms in"]),
        ("forward", SERVER, ["A call of A takes 5.00 ms", "one of B takes 7.00 ms (50.5 %)."]),
    ],
    ids=["rollouts", "fifth", "irregular", "checkpoints", "images", "speech", "engine", "server"],
)  # fmt: skip
def test_the_headline_stands_for_the_whole_program(tmp_path, rule, calls, sentences):
    found = page(tmp_path, rule, calls)
    assert [sentence for sentence in sentences if sentence not in found] == [], found
    assert ("leaves out" in found) == ("leaves out" in sentences[-1])


def test_calls_of_two_threads_are_two_kinds(tmp_path):
    found = page(tmp_path, "forward", [("ResNet", 7.0), ("ViT", 6.0)] * 30, [1, 0] * 30)
    assert "A call of ResNet takes 7.00 ms" in found and "one of ViT takes 6.00 ms (45.3 %)." in found


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


def test_a_million_steps_are_read_within_the_budget(tmp_path):
    """As Python objects they took 1.2 GB, and the file was refused."""
    lines = [{"hook": "started", "profiler": "plain", "pid": 1, "warmup": 3}]
    for first in range(0, 10**6, 1000):
        numbers = range(first, first + 1000)
        columns = {"step": [*numbers], "start_ns": [10**18 + 5000 * n for n in numbers], "wall_ns": [5000] * 1000}
        lines.append({"hook": "steps", "rule": "optimizer", **columns})
    path = tmp_path / "hook.capture.1.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    steps = reader.parse(reader.choose(path, reader.parsers()), path).steps
    assert steps["step"].tolist() == [*range(10**6)] and (steps["rule"] == "optimizer").all()
    assert (steps["state"] == "warmup").sum() == 3 and steps["start_ns"].iloc[-1] == 5000 * (10**6 - 1)
