"""Read the files that the start-up hook of a command writes: the steps of one process, and remarks.

One JSON object a line; ``hook`` names what the line holds:

* ``started``: process id, rank, Python and torch;
* ``recording``: the first step began;
* ``steps``: numbers, starts on the host (ns since the epoch) and durations (ns), torch's peak memory so far, and where
  calls of modules are steps what each of the ``calls`` is, as in ``profpipe.ingest.steps.calls``;
* ``span``: the recording of a span of time began; ``memory``: at its end, the peaks of torch's memory and the host's;
* ``restart``: the steps before it were none, since a rule applied that says more;
* ``note``, ``error``: what the report must say; ``finished``: the process ended.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from profpipe.errors import UnreadableFile
from profpipe.ingest.steps import accounting, calls
from profpipe.measure import event_lines
from profpipe.measure.event_lines import BadLine, Damage
from profpipe.results import schema
from profpipe.results.schema import StepState

FORMATS = ("steps of profpipe's start-up hook (JSON lines)",)

_RULES = {rule.value for rule in schema.StepRule}
_RERUN = "Run the command again; the file was changed or damaged after it was written."


def sniff(path: Path) -> bool:
    """Return True for a file whose first line is one of the hook."""
    with path.open("rb") as file:
        return file.read(64).lstrip().replace(b" ", b"").startswith(b'{"hook":')


def parse(path: Path) -> schema.Tables:
    """Read the steps of a process. Only their times are known: the parts of a step are missing.

    A line that is none of the hook is dropped with a note. Raises ``UnreadableFile`` where the rest makes no steps.
    """
    lines: list[dict[str, Any]] = []
    bad: list[BadLine] = []
    for number, found in event_lines.parse_lines(path.read_bytes().splitlines(), key="hook"):
        if isinstance(found, BadLine):
            bad.append(found)
        elif found["hook"] == "steps" and not (
            found["rule"] in _RULES and len(found["step"]) == len(found["start_ns"]) == len(found["wall_ns"])
        ):
            bad.append(BadLine(number, Damage.WRONG, "steps"))
        else:
            lines.append(found)
    try:
        return _tables(lines, event_lines.describe(bad))
    except (TypeError, ValueError, OverflowError) as error:
        raise UnreadableFile(path, f"holds a malformed line of the start-up hook ({error!r})", _RERUN) from error


def _tables(lines: list[dict[str, Any]], damage: list[str]) -> schema.Tables:
    about = next((line for line in lines if line["hook"] == "started"), {})
    first = max((number for number, line in enumerate(lines) if line["hook"] == "restart"), default=0)
    written = [line for line in lines[first:] if line["hook"] in ("steps", "memory")]
    notes = [*damage, *(str(line["text"]) for line in lines if line["hook"] == "note")]
    notes += [
        f"the start-up hook failed ({line['type']}: {line['message']}, during {line['during']})"
        for line in lines
        if line["hook"] == "error"
    ]
    torch = about.get("torch")
    origin = schema.Origin(
        format=FORMATS[0],
        tool=str(about.get("profiler") or "plain"),
        tool_version=f"torch {torch}" if torch else "",
        device=str(about.get("device_name") or ""),
        notes=tuple(notes),
    )
    steps = _steps(written, about)
    return schema.Tables(
        steps=schema.frame(schema.STEPS, steps),
        metrics=schema.frame(schema.METRICS, [*_memory(written, about), *_requests(written, about, steps)]),
        origin=origin,
    )


def _steps(written: list[dict[str, Any]], about: dict[str, Any]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [
        {"step": int(number), "start_ns": float(start), "wall_ns": float(wall), "rule": schema.StepRule(line["rule"])}
        for line in written
        if line["hook"] == "steps"
        for number, start, wall in zip(line["step"], line["start_ns"], line["wall_ns"], strict=True)
    ]
    if not rows:
        return []
    if parts := _parts(written):
        rows = [
            {**rows[part.first], "kind": part.kind, "is_step": part.is_step,
             "wall_ns": sum(row["wall_ns"] for row in rows[part.first : part.last + 1])}
            for part, _, _ in parts
        ]  # fmt: skip
    is_step = np.array([row.pop("is_step", True) for row in rows])
    found = np.full(len(rows), StepState.OTHER.value, dtype=object)
    found[is_step] = accounting.states(np.array([row["wall_ns"] for row in rows])[is_step])
    origin_ns, warmup = rows[0]["start_ns"], int(about.get("warmup") or 0)
    device = written[-1].get("device")
    place = {"process": about.get("pid"), "rank": about.get("rank"), "device": device, "profiler": "plain"}
    return [
        {
            **row,
            **place,
            "rule": row["rule"].value,
            "start_ns": row["start_ns"] - origin_ns,
            # The user knows better than the change point.
            "state": StepState.WARMUP.value
            if row["step"] < warmup and len(rows) > warmup and state != StepState.OTHER.value
            else state,
        }
        for row, state in zip(rows, found, strict=True)
    ]


@dataclass
class _Request:
    """A prompt, the time of its call (prefill), and the times of the calls after it (decode), in ns."""

    #: The number of the call with the prompt.
    step: int
    batch: int
    prompt: int
    prefill_ns: float
    decode_ns: list[float] = field(default_factory=list)
    decode: list[int] = field(default_factory=list)
    is_sure: bool = True

    @property
    def output(self) -> int:
        """The tokens of each sequence: one of each call."""
        return 1 + len(self.decode_ns)

    @property
    def rate(self) -> float:
        """Tokens per second over the batch. The last call ends with the next request, so it counts as the median."""
        known = self.decode_ns[:-1]
        return 1e9 * self.batch * self.output / (self.prefill_ns + sum(known) + float(np.median(known)))


def _requests(
    written: list[dict[str, Any]], about: dict[str, Any], steps: list[dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Yield the figures of the requests in which a language model generates tokens, by the length of the prompt.

    They are those of the process without a rank, or of rank 0. A request is left out where less than half of its calls
    after the prompt are steady steps, as in the first request of a process.
    """
    steady = {row["step"] for row in steps if row["state"] == StepState.STEADY.value}
    by_prompt: dict[int, list[_Request]] = {}
    walls = [row["wall_ns"] for row in steps]
    for request in [] if about.get("rank") else _split(written, walls):
        decode = request.decode[: len(request.decode_ns) - 1]
        if 2 * sum(step in steady for step in decode) >= len(decode):
            by_prompt.setdefault(request.prompt, []).append(request)
    for prompt, own in sorted(by_prompt.items()):
        figures: dict[str, tuple[list[float], str]] = {
            "request_batch": ([float(request.batch) for request in own], "1"),
            "request_output": ([float(request.output) for request in own], "1"),
            "time_to_first_token": ([request.prefill_ns for request in own], "ns"),
            "time_per_output_token": ([wall for request in own for wall in request.decode_ns[:-1]], "ns"),
            "tokens_per_s": ([request.rate for request in own], "1/s"),
        }
        for metric, (values, unit) in figures.items():
            of = {"subject": f"{schema.PROMPT_PREFIX}{prompt}", "metric": metric, "unit": unit, "n": len(values)}
            yield {**of, "value": float(np.median(values))}


#: A part of the calls, the number of its first one, and what that is.
_Part = tuple[calls.Part, int, calls.Call]


def _parts(written: list[dict[str, Any]]) -> list[_Part]:
    """Return the calls of modules of a process as steps and parts between steps; empty where steps are no calls."""
    own = [line for line in written if line["hook"] == "steps"]
    if any(line["rule"] != schema.StepRule.FORWARD for line in own):
        return []
    numbers = [int(step) for line in own for step in line["step"]]
    walls = [float(wall) for line in own for wall in line["wall_ns"]]
    texts = (text for line in own for _, text in itertools.zip_longest(line["step"], line.get("calls", ())))
    every = [calls.read(text or "") for _, text in zip(numbers, texts, strict=False)]
    return [(part, numbers[part.first], every[part.first]) for part in calls.divide(every, walls)]


def _split(written: list[dict[str, Any]], walls: Sequence[float]) -> list[_Request]:
    """Return the requests of a process, by the batches and lengths of tokens with which it called its model.

    A call with the last token only, or without a cache with one token more than the call before, is decoding; any other
    begins a request. One is left out where it is not sure that it is whole: a prompt may be in several calls, and the
    first calls of a process are not recorded. ``walls`` are the times of the parts.
    """
    found: list[_Request] = []
    last, expected = (0, 0), 0
    parts = _parts(written)
    names = {part.kind for part, *_ in parts if part.is_step} | {schema.PREFILL}
    for (part, step, call), wall in zip(parts, walls, strict=False):
        is_known = part.kind in names and call.batch > 0 and call.length > 0
        if not is_known or step != expected:
            # A call of another model, or a lost line: the request around it is not whole.
            if found:
                found[-1].is_sure = False
            last = (0, 0)
        expected = step + 1 + part.last - part.first
        if not is_known:
            continue
        batch, length = call.batch, call.length
        if found and batch == last[0] and length in (1, last[1] + 1):
            found[-1].decode_ns.append(wall)
            found[-1].decode.append(step)
            # Where a sequence grows, the first call of it may have been before the recording.
            found[0].is_sure = found[0].is_sure and (length == 1 or len(found) > 1 or found[0].step == 0)
        else:
            is_first = not found or bool(found[-1].decode_ns)
            if not is_first:
                found[-1].is_sure = False
            found.append(_Request(step, batch, length, wall, is_sure=is_first and length > 1))
        last = (batch, length)
    if found and found[-1].decode_ns:
        # The end of the process cut the last call.
        found[-1].decode_ns.append(0.0)
    return [each for each in found if each.is_sure and each.prefill_ns > 0 and len(each.decode_ns) > 2]


def _memory(written: list[dict[str, Any]], about: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the peaks of torch's memory: of rank 0 for the case, of other ranks by rank."""
    rank = about.get("rank")
    subject = f"{schema.RANK_PREFIX}{rank}" if rank else ""
    for metric in ("peak_allocated", "peak_reserved", "peak_host"):
        values = [line[metric] for line in written if metric in line]
        if values:
            yield {"subject": subject, "metric": metric, "value": float(max(values)), "unit": "byte", "n": 1}
