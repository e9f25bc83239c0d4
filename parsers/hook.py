"""Read the files that the start-up hook of a command writes: the steps of one process, and remarks.

One JSON object a line; ``hook`` names what the line holds:

* ``started``: process id, rank, Python and torch;
* ``recording``: the first step began;
* ``flops``: the FLOPs of one step ``by_type`` of data, those of what is computed ``again``, and the calls of operators
  whose FLOPs are ``unknown``; or ``why`` none were counted;
* ``steps``: numbers, starts on the host (ns since the epoch) and durations (ns), torch's peak memory so far, and where
  calls of modules are steps what each of the ``calls`` is, as in ``profpipe.ingest.steps.calls``; where torch's data
  loader is used, the ns in ``loading_ns`` in which the program waits for it; about once a second
  also the number of ``gpus`` and their ``energy``: when the counter was read (ns), and the energy so far (mJ);
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
import pandas as pd

from profpipe.errors import UnreadableFile
from profpipe.ingest.steps import accounting, calls, figures
from profpipe.measure import event_lines
from profpipe.measure.event_lines import BadLine, Damage
from profpipe.results import schema
from profpipe.results.schema import StepState

FORMATS = ("steps of profpipe's start-up hook (JSON lines)",)

_RULES = {rule.value for rule in schema.StepRule}
#: A part of the calls, the number of its first one, and what that is.
_Part = tuple[calls.Part, int, calls.Call]
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
    for number, line in event_lines.parse_lines(path.read_bytes().splitlines(), key="hook"):
        if isinstance(line, BadLine):
            bad.append(line)
        elif line["hook"] == "steps" and not (
            line["rule"] in _RULES and len(line["step"]) == len(line["start_ns"]) == len(line["wall_ns"])
        ):
            bad.append(BadLine(number, Damage.WRONG, "steps"))
        else:
            lines.append(line)
    try:
        return _tables(lines, event_lines.describe(bad))
    except (TypeError, ValueError, OverflowError) as error:
        raise UnreadableFile(path, f"holds a malformed line of the start-up hook ({error!r})", _RERUN) from error


def _tables(lines: list[dict[str, Any]], damage: list[str]) -> schema.Tables:
    about = next((line for line in lines if line["hook"] == "started"), {})
    first = max((number for number, line in enumerate(lines) if line["hook"] == "restart"), default=0)
    written = _join_threads([line for line in lines[first:] if line["hook"] in ("steps", "memory")])
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
    # Ranks share the numbers of their steps, and each one alone may see other iterations.
    iterations = _iterations(written) if about.get("rank") is None else []
    parts = iterations or _parts(written)
    steps = _steps(written, about, parts, bool(iterations))
    requests = [] if about.get("rank") or not parts else list(_settled_requests(parts, steps))
    return schema.Tables(
        steps=steps,
        metrics=schema.frame(
            schema.METRICS,
            [
                *_memory(written, about),
                *_sum_parts(written, iterations, parts),
                *(_sum_loading(written, about, steps) if not parts else ()),
                *_requests(requests, steps),
                *_energy(written, about, steps, parts, requests),
                *_flops(lines, about),
            ],
        ),
        origin=origin,
    )


def _steps(
    written: list[dict[str, Any]], about: dict[str, Any], parts: list[_Part], are_iterations: bool
) -> pd.DataFrame:
    lines = [line for line in written if line["hook"] == "steps" and line["step"]]
    if not lines:
        return schema.empty(schema.STEPS)
    # As Python objects, a million steps take a gigabyte.
    recorded = np.fromiter((int(number) for line in lines for number in line["step"]), np.int64)
    # Nanoseconds since 1970 have more digits than a float.
    origin = lines[0]["start_ns"][0]
    start = np.fromiter((float(ns - origin) for line in lines for ns in line["start_ns"]), float)
    wall = np.fromiter((float(ns) for line in lines for ns in line["wall_ns"]), float)
    rule = np.repeat(np.array([line["rule"] for line in lines], dtype=object), [len(line["step"]) for line in lines])
    is_step, kind = np.ones(len(wall), dtype=bool), np.full(len(wall), "", dtype=object)
    if parts:
        first = [part.first for part, *_ in parts]
        wall = np.array([sum(wall[part.first : part.last + 1].tolist()) for part, *_ in parts])
        recorded, start, rule = recorded[first], start[first], rule[first]
        is_step = np.array([part.is_step for part, *_ in parts])
        kind = np.array([part.kind for part, *_ in parts], dtype=object)
    states = np.full(len(wall), StepState.OTHER.value, dtype=object)
    states[is_step] = accounting.states(wall[is_step])
    warmup = int(about.get("warmup") or 0)
    if len(wall) > warmup:
        # The user knows better than the change point.
        states[is_step & (recorded < warmup)] = StepState.WARMUP.value
    # The last steps of a process that was killed say no device.
    device = next((line["device"] for line in reversed(written) if "device" in line), None)
    place = {"process": about.get("pid"), "rank": about.get("rank"), "device": device, "profiler": "plain"}
    # Iterations have numbers of their own, under each profiler.
    step = np.arange(len(wall)) if are_iterations else recorded
    columns = {"step": step, "state": states, "rule": rule, "kind": kind, "start_ns": start - start[0], "wall_ns": wall}
    return schema.frame(schema.STEPS, {**columns, **place})


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
        """The tokens of a sequence: one of a call."""
        return 1 + len(self.decode_ns)

    @property
    def rate(self) -> float:
        """Tokens per second over the batch. The last call ends with the next request, so it counts as the median."""
        whole_ns = self.decode_ns[:-1]
        return 1e9 * self.batch * self.output / (self.prefill_ns + sum(whole_ns) + float(np.median(whole_ns)))


def _settled_requests(parts: list[_Part], steps: pd.DataFrame) -> Iterator[_Request]:
    """Yield the requests without those, such as the first of a process, of which few calls after the prompt are steady.

    At least half of these calls are steady steps in the others.
    """
    steady = set(steps["step"][steps["state"] == StepState.STEADY.value])
    for request in _split(parts, steps["wall_ns"].tolist()):
        decode = request.decode[: len(request.decode_ns) - 1]
        if 2 * sum(step in steady for step in decode) >= len(decode):
            yield request


def _requests(requests: list[_Request], steps: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Yield the figures of the requests in which a language model generates tokens, by the length of the prompt.

    They are those of the process without a rank, or of rank 0. The time of a token is the median of steady steps, of
    uneven ones the mean, as the time of a step is. Where all prompts have one length, it is that of all steady steps.
    """
    if not requests:
        return
    steady = steps.loc[steps["state"] == StepState.STEADY.value, "wall_ns"].tolist()
    is_uneven = bool(steady) and figures.typical(steady)[1] > schema.UNEVEN_STEPS
    by_prompt: dict[int, list[_Request]] = {}
    for request in requests:
        by_prompt.setdefault(request.prompt, []).append(request)
    for prompt, prompt_requests in sorted(by_prompt.items()):
        decoded = [wall for request in prompt_requests for wall in request.decode_ns[:-1]]
        tokens = decoded if len(by_prompt) > 1 else steady
        samples: dict[str, tuple[list[float], str]] = {
            "request_batch": ([float(request.batch) for request in prompt_requests], "1"),
            "request_output": ([float(request.output) for request in prompt_requests], "1"),
            "time_to_first_token": ([request.prefill_ns for request in prompt_requests], "ns"),
            "time_per_output_token": (tokens, "ns"),
            "tokens_per_s": ([request.rate for request in prompt_requests], "1/s"),
        }
        for metric, (values, unit) in samples.items():
            of = {"subject": f"{schema.PROMPT_PREFIX}{prompt}", "metric": metric, "unit": unit, "n": len(values)}
            middle = np.mean if is_uneven and metric == "time_per_output_token" else np.median
            yield {**of, "value": float(middle(values))}


def _parts(written: list[dict[str, Any]]) -> list[_Part]:
    """Return the calls of modules of a process as steps and parts between steps; empty where steps are no calls."""
    step_lines = [line for line in written if line["hook"] == "steps"]
    if any(line["rule"] != schema.StepRule.FORWARD for line in step_lines):
        return []
    numbers = [int(step) for line in step_lines for step in line["step"]]
    walls = [float(wall) for line in step_lines for wall in line["wall_ns"]]
    texts = (text for line in step_lines for _, text in itertools.zip_longest(line["step"], line.get("calls", ())))
    module_calls = [calls.read(text or "") for _, text in zip(numbers, texts, strict=False)]
    parts: list[_Part] = []
    for thread, rows in itertools.groupby(range(len(module_calls)), key=lambda row: module_calls[row].thread):
        of, kinds = list(rows), {part.kind for part, *_ in parts}
        for part in calls.divide([module_calls[row] for row in of], [walls[row] for row in of]):
            kind = f"{part.kind} (thread {thread})" if part.kind in kinds - {""} else part.kind
            # The calls of the first thread are steps, and those of others are of other kinds.
            part = calls.Part(of[part.first], of[part.last], kind, part.is_step and not kinds)
            parts.append((part, numbers[part.first], module_calls[part.first]))
    return parts


#: A thread with fewer calls has no time of one.
_FEWEST_CALLS = 3


def _join_threads(written: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the lines so that the calls of a thread are one line, where there are several: the longest first.

    These calls overlap, so the energy between two readings is that of none of them.
    """
    columns = ("step", "start_ns", "wall_ns", "calls")
    lines = [line for line in written if line["hook"] == "steps"]
    threads: dict[int, list[Any]] = {}
    for row in (row for line in lines for row in zip(*(line.get(name, ()) for name in columns), strict=False)):
        threads.setdefault(calls.read(row[3] or "").thread, []).append(row)
    if set(threads) <= {0}:
        return written
    several = [rows for rows in threads.values() if len(rows) >= _FEWEST_CALLS]
    several.sort(key=lambda rows: -sum(row[2] for row in rows))
    steps = (dict(zip(columns, map(list, zip(*rows, strict=True)), strict=True)) for rows in several)
    of = {"hook": "steps", "rule": schema.StepRule.FORWARD.value}
    return [*({**of, **line} for line in steps), *({**line, "hook": "memory", "energy": None} for line in written)]


def _iterations(written: list[dict[str, Any]]) -> list[_Part]:
    """Return the steps of an optimizer as parts that are iterations, of several steps each; empty where one is one."""
    step_lines = [line for line in written if line.get("rule") == schema.StepRule.OPTIMIZER]
    walls = np.array([wall for line in step_lines for wall in line["wall_ns"]])
    first, stride = accounting.find_iteration(walls) or (len(walls), 1)
    return [
        (calls.Part(i, i + stride - 1, "", True), i, calls.Call())
        for i in range(first, len(walls) - stride + 1, stride)
    ]


def _sum_parts(written: list[dict[str, Any]], iterations: list[_Part], parts: list[_Part]) -> Iterator[dict[str, Any]]:
    """Yield how many steps are an iteration, and the time of one; and whether calls that are steps decode."""
    walls = np.array([wall for line in written if line["hook"] == "steps" for wall in line["wall_ns"]])
    of, (_, stride) = {"subject": "", "n": len(walls)}, accounting.regular_stride(walls, are_equal=False) or (0, 1)
    if iterations or (stride > 1 and not parts):
        yield {**of, "metric": schema.STEP_STRIDE, "value": float(stride), "unit": "1"}
    if iterations:
        yield {**of, "metric": schema.STEP_PART, "value": float(np.median(walls)), "unit": "ns"}
    decodes = [call.length == 1 for part, _, call in parts if part.is_step]
    if 2 * sum(decodes) > len(decodes):
        yield {**of, "metric": schema.STEP_DECODES, "value": 1.0, "unit": "1"}


def _split(parts: list[_Part], walls: Sequence[float]) -> list[_Request]:
    """Return the requests of a process, by the batches and lengths of tokens with which it called its model.

    A call with the last token only, or without a cache with one token more than the call before, is decoding; any other
    begins a request. One is left out where it is not sure that it is whole: a prompt may be in several calls, and the
    first calls of a process are not recorded. ``walls`` are the times of the parts.
    """
    requests: list[_Request] = []
    last, expected = (0, 0), 0
    names = {part.kind for part, *_ in parts if part.is_step} | {schema.PREFILL}
    for (part, step, call), wall in zip(parts, walls, strict=False):
        is_known = part.kind in names and call.batch > 0 and call.length > 0
        if not is_known or step != expected:
            # A call of another model, or a lost line: the request around it is not whole.
            if requests:
                requests[-1].is_sure = False
            last = (0, 0)
        expected = step + 1 + part.last - part.first
        if not is_known:
            continue
        batch, length = call.batch, call.length
        if requests and batch == last[0] and length in (1, last[1] + 1):
            requests[-1].decode_ns.append(wall)
            requests[-1].decode.append(step)
            # Where a sequence grows, the first call of it may have been before the recording.
            requests[0].is_sure = requests[0].is_sure and (length == 1 or len(requests) > 1 or requests[0].step == 0)
        else:
            is_first = not requests or bool(requests[-1].decode_ns)
            if not is_first:
                requests[-1].is_sure = False
            requests.append(_Request(step, batch, length, wall, is_sure=is_first and length > 1))
        last = (batch, length)
    if requests and requests[-1].decode_ns:
        # The end of the process cut the last call.
        requests[-1].decode_ns.append(0.0)
    return [
        request for request in requests if request.is_sure and request.prefill_ns > 0 and len(request.decode_ns) > 2
    ]


#: The least share of the time between two readings that the counted steps fill: the rest is other work, or a pause.
_LEAST_FILLED = 0.9


def _energy(
    written: list[dict[str, Any]],
    about: dict[str, Any],
    steps: pd.DataFrame,
    parts: list[_Part],
    requests: list[_Request],
) -> Iterator[dict[str, Any]]:
    """Yield the energy in J of a steady step, or of a token where there are requests, on the GPUs of this process.

    It is the mean power between readings of the counter, over the time of the steps that ended between them. So it does
    not matter that the GPU is inside a step at a reading. A counter that is late matters little over several readings.
    ``energy_window`` is the time between them.
    """
    readings = [line for line in written if line.get("gpus")]
    if not readings:
        return
    rank = about.get("rank")
    of = {"subject": "" if rank is None else f"{schema.RANK_PREFIX}{rank}"}
    yield {**of, "metric": schema.GPUS, "value": float(max(line["gpus"] for line in readings)), "unit": "1", "n": 1}
    # Of iterations, by the number of the first step.
    recorded = [step for _, step, _ in parts] or steps["step"].tolist()
    are_steady = steps["state"] == StepState.STEADY.value
    metric, counts = schema.ENERGIES[1], dict.fromkeys(itertools.compress(recorded, are_steady), 1)
    if requests:
        # Each call gives one token of each sequence. As in the times, outliers do not count.
        outliers = set(steps["step"][steps["state"] == StepState.OUTLIER.value])
        tokens = ((request.batch, step) for request in requests for step in (request.step, *request.decode))
        metric, counts = schema.ENERGIES[0], {step: batch for batch, step in tokens if step not in outliers}
    # The other calls of a step take time, and are in its count.
    inner = [(step, step + n) for part, step, _ in parts for n in range(1, part.last - part.first + 1)]
    counts |= {other: 0 for step, other in inner if step in counts}
    joules = seconds = counted_s = 0.0
    amount = 0
    for window_j, window_s, walls in _windows(written):
        step_walls = {step: wall_s for step, wall_s in walls.items() if step in counts}
        if sum(step_walls.values()) >= _LEAST_FILLED * window_s and window_j > 0 < window_s:
            joules, seconds = joules + window_j, seconds + window_s
            counted_s, amount = counted_s + sum(step_walls.values()), amount + sum(counts[step] for step in step_walls)
    if any(line.get("energy") for line in readings):
        yield {**of, "metric": schema.ENERGY_WINDOW, "value": seconds * 1e9, "unit": "ns", "n": amount}
    if amount and seconds >= schema.LEAST_ENERGY_WINDOW_S:
        yield {**of, "metric": metric, "value": joules / seconds * counted_s / amount, "unit": "J", "n": amount}


def _windows(written: list[dict[str, Any]]) -> Iterator[tuple[float, float, dict[int, float]]]:
    """Yield the J and the s between two readings of the same GPUs, and the s of each step that ended between them."""
    last: dict[str, Any] = {}
    walls: dict[int, float] = {}
    for line in written:
        if line["hook"] == "steps":
            walls |= {int(step): wall / 1e9 for step, wall in zip(line["step"], line["wall_ns"], strict=True)}
        if line.get("gpus"):
            if line["gpus"] == last.get("gpus") and line.get("energy") and last.get("energy"):
                (begin_ns, begin_mj), (end_ns, end_mj) = last["energy"], line["energy"]
                yield (end_mj - begin_mj) / 1e3, (end_ns - begin_ns) / 1e9, walls
            last, walls = line, {}


def _sum_loading(written: list[dict[str, Any]], about: dict[str, Any], steps: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Yield how long a mean steady step waits for a data loader."""
    loading = {
        int(step): float(ns)
        for line in written
        for step, ns in zip(line.get("step", ()), line.get("loading_ns", ()), strict=False)
    }
    steady = steps.loc[steps["state"] == StepState.STEADY.value, "step"].tolist()
    if loading and steady and about.get("rank") is None:
        ns = sum(loading.get(int(step), 0.0) for step in steady) / len(steady)
        yield {"subject": "", "metric": schema.WAIT_LOADING, "value": ns, "unit": "ns", "n": len(steady)}


def _flops(lines: list[dict[str, Any]], about: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the FLOPs of a step under torch by type of data, or why none were counted, in the name of the metric."""
    if about.get("profiler") != "torch" or not any(line["hook"] == "recording" for line in lines):
        return
    counted: dict[str, Any] = next((line for line in lines if line["hook"] == "flops"), {"why": "ended"})
    rank = about.get("rank")
    of = {"subject": "" if rank is None else f"{schema.RANK_PREFIX}{rank}", "unit": "flop", "n": 1}
    if counted.get("why"):
        yield {**of, "metric": f"{schema.FLOPS}_missing.{counted['why']}", "value": 1.0, "unit": "1"}
        return
    for dtype, flops in counted.get("by_type", {}).items():
        yield {**of, "metric": f"{schema.FLOPS}.{dtype}", "value": float(flops)}
    yield {**of, "metric": f"{schema.FLOPS}_again", "value": float(counted.get("again", 0))}
    for name, number in counted.get("unknown", {}).items():
        yield {**of, "metric": f"{schema.FLOPS}_unknown.{name}", "value": float(number), "unit": "1"}


def _memory(written: list[dict[str, Any]], about: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the peaks of torch's memory: of rank 0 for the case, of other ranks by rank."""
    rank = about.get("rank")
    subject = f"{schema.RANK_PREFIX}{rank}" if rank else ""
    for metric in ("peak_allocated", "peak_reserved", "peak_host"):
        values = [line[metric] for line in written if metric in line]
        if values:
            yield {"subject": subject, "metric": metric, "value": float(max(values)), "unit": "byte", "n": 1}
