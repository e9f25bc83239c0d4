"""Read ``events.jsonl``, which the harness appends to during a job: the cases and their numbers.

One JSON object a line. Each process begins with ``started``; a job whose process died continues in another one, in the
same file. The last process that began a case counts.

Of several ranks each has a file (``events.rank1.jsonl``). Rank 0 has the cases. Other ranks add only numbers of cases
that ended well, with the subject ``rank 1``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from profpipe.errors import UnreadableFile
from profpipe.measure import statistics
from profpipe.results import schema

FORMATS = ("profpipe events.jsonl",)

_STARTED = b'{"event":"started"'
_NS_PER = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}
_CRASHED = "the process ended inside this case; see log.txt beside events.jsonl for its last words"


@dataclass
class Attempt:
    """One process's events of one case; ``status`` is ``crashed`` until ``case_ended``."""

    profiler: str
    case: str
    process: int
    params: dict[str, Any] = field(default_factory=dict)
    status: str = "crashed"
    reason: str = _CRASHED
    seconds: float | None = None
    flags: list[str] = field(default_factory=list)
    samples_ns: dict[str, list[float]] = field(default_factory=dict)
    metrics: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)


@dataclass
class Record:
    """A whole file: the last attempt of each case, and the last process."""

    attempts: dict[tuple[str, str], Attempt] = field(default_factory=dict)
    process: int = 0
    rank: int = 0
    profiler: str = ""
    torch: str = ""
    device: str = ""
    notes: list[str] = field(default_factory=list)
    #: (function of the workload that failed, reason) -> cases.
    failed_functions: dict[tuple[str, str], list[str]] = field(default_factory=dict)

    def attempt(self, event: dict[str, Any]) -> Attempt:
        """Return this process's attempt at the event's case, in place of an earlier process's.

        A process may start a case several times, so ``case_started`` begins no new attempt.
        """
        fresh = Attempt(self.profiler, str(event["case"]), self.process)
        known = self.attempts.get((fresh.profiler, fresh.case))
        if known is None or known.process != fresh.process:
            self.attempts[fresh.profiler, fresh.case] = known = fresh
        return known


def sniff(path: Path) -> bool:
    """Return True for a file whose first line is an event of the harness."""
    with path.open("rb") as file:
        head = file.read(64).lstrip()
    return head.replace(b" ", b"").startswith(b'{"event":')


def parse(path: Path) -> schema.Tables:
    """Read cases (one row each) and metrics; samples are summarised.

    Raises ``UnreadableFile`` for a line that is no event. A kill may cut the last line of a process, which is dropped.
    """
    record = Record()
    for number, event in _events(path, record):
        handler = _HANDLERS.get(str(event.get("event")))
        if handler is None:
            continue
        try:
            handler(record, event)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise UnreadableFile(
                path, f"line {number}: a malformed '{event['event']}' event ({error!r})", _RERUN
            ) from error
    if not record.attempts:
        raise UnreadableFile(
            path, "holds no case: the process ended before its first one", "See log.txt beside it for why."
        )
    return _tables(record)


_RERUN = "Run the workload again; the file was changed or damaged after it was written."


def _events(path: Path, record: Record) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield each event with its line number.

    A killed process leaves its last line cut, without a line end: the ``started`` of the next process is in the same
    line.
    """
    lines = path.read_bytes().replace(b'{"event": "started"', _STARTED).splitlines()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        event = _decode(line)
        if event is None and (at := line.rfind(_STARTED)) > 0:
            event = _decode(line[at:])
            record.notes.append(f"line {number} was cut by the end of its process and dropped")
        if event is None and not _is_last_of_process(lines[number:]):
            raise UnreadableFile(path, f"line {number} is not a JSON object", _RERUN)
        if event is None:
            record.notes.append(f"line {number} was cut by the end of its process and dropped")
        else:
            yield number, event


def _decode(line: bytes) -> dict[str, Any] | None:
    try:
        event = json.loads(line)
        if b"\\ud" in line:
            # A path that is no UTF-8 has halves of surrogate pairs, which Arrow cannot store.
            event = json.loads(json.dumps(event, ensure_ascii=False).encode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) else None


def _is_last_of_process(following: list[bytes]) -> bool:
    after = next((line for line in following if line.strip()), _STARTED)
    return after.lstrip().startswith(_STARTED)


def _on_started(record: Record, event: dict[str, Any]) -> None:
    record.profiler, record.process = str(event["profiler"]), record.process + 1
    record.rank = int(event.get("rank") or 0)
    record.torch = str(event.get("torch") or "")
    machine = event.get("machine")
    record.device = str(machine.get("device") or "") if isinstance(machine, dict) else ""


def _on_case_started(record: Record, event: dict[str, Any]) -> None:
    record.attempt(event).params = dict(event.get("params") or {})


def _on_samples(record: Record, event: dict[str, Any]) -> None:
    factor = _NS_PER[event["unit"]]
    samples = record.attempt(event).samples_ns.setdefault(str(event.get("metric") or "time"), [])
    samples += [float(value) * factor for value in event["values"]]


def _on_metric(record: Record, event: dict[str, Any]) -> None:
    attempt, name = record.attempt(event), str(event["metric"])
    try:
        row: dict[str, Any] = {k: float(event[k]) for k in ("value", "ci_low", "ci_high") if event.get(k) is not None}
    except (TypeError, ValueError, OverflowError):  # the last: a whole number beyond any float
        # A workload's check() may return anything; its other numbers are valid.
        record.notes.append(f"{attempt.case}: metric {name} is no number and was dropped")
        return
    row |= {"unit": str(event["unit"]), "n": int(event.get("n") or 1)}
    attempt.metrics[str(event.get("subject") or ""), name] = row


def _on_error(record: Record, event: dict[str, Any]) -> None:
    """Note a function of the workload that failed. The reason of a failed case is in ``case_ended``."""
    if during := event.get("during"):
        cases = record.failed_functions.setdefault((str(during), str(event.get("reason") or "")), [])
        cases.append(str(event["case"]))


def _on_case_ended(record: Record, event: dict[str, Any]) -> None:
    attempt = record.attempt(event)
    if event["status"] not in schema.STATUSES:
        raise ValueError(f"unknown status {event['status']!r}")
    attempt.status, attempt.reason = event["status"], str(event.get("reason") or "")
    attempt.seconds = None if event.get("seconds") is None else float(event["seconds"])
    attempt.flags = [str(flag) for flag in event.get("flags") or []]
    # A case that is skipped before it starts has its parameters only here.
    attempt.params = attempt.params or dict(event.get("params") or {})


_HANDLERS = {
    "started": _on_started,
    "case_started": _on_case_started,
    "samples": _on_samples,
    "metric": _on_metric,
    "error": _on_error,
    "case_ended": _on_case_ended,
}


def _tables(record: Record) -> schema.Tables:
    cases: list[dict[str, Any]] = []
    metrics: list[dict[str, Any]] = []
    for attempt in record.attempts.values():
        key = {"case": attempt.case, "profiler": attempt.profiler}
        texts = {"params": json.dumps(attempt.params), "flags": json.dumps(attempt.flags)}
        cases.append({**key, "status": attempt.status, "reason": attempt.reason, "seconds": attempt.seconds, **texts})
        own: list[dict[str, Any]] = []
        for name, samples_ns in attempt.samples_ns.items():
            finite = np.array([value for value in samples_ns if math.isfinite(value)])
            if dropped := len(samples_ns) - len(finite):
                record.notes.append(f"{attempt.case}: {dropped} samples that are no number dropped")
            own += [{**key, "subject": "", **row} for row in _summary(name, finite)]
        own += [{**key, "subject": s, "metric": m, **row} for (s, m), row in attempt.metrics.items()]
        metrics += own if not record.rank else _of_rank(record.rank, attempt, own)
    for (during, reason), named in record.failed_functions.items():
        also = f" and {len(named) - 1} more cases" if len(named) > 2 else f" and {named[-1]}" if named[1:] else ""
        record.notes.append(f"{named[0]}{also}: the workload's {during} failed: {reason}")
    origin = schema.Origin(
        format=FORMATS[0], tool=record.profiler, tool_version=record.torch and f"torch {record.torch}",
        device=record.device, notes=tuple(record.notes),
    )  # fmt: skip
    # The record of rank 0 has the cases.
    return schema.Tables(
        cases=schema.frame(schema.CASES, [] if record.rank else cases),
        metrics=schema.frame(schema.METRICS, metrics),
        origin=origin,
    )


def _of_rank(rank: int, attempt: Attempt, own: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the numbers of another rank that have no subject yet: phases and places in the code keep theirs."""
    if attempt.status == "ok":
        yield from ({**row, "subject": f"{schema.RANK_PREFIX}{rank}"} for row in own if not row["subject"])


def _summary(name: str, samples_ns: np.ndarray) -> Iterator[dict[str, Any]]:
    """Yield rows of ``metrics`` for samples: the median with its interval, the ends, the spread and their number."""
    n = len(samples_ns)
    if not n:
        return
    ordered = np.sort(samples_ns)
    low, high = statistics.median_interval(ordered.tolist()) or (None, None)
    time = {"unit": "ns", "n": n}
    yield {"metric": name, "value": float(np.median(ordered)), **time, "ci_low": low, "ci_high": high}
    yield {"metric": f"{name}_p10", "value": float(np.percentile(ordered, 10)), **time}
    yield {"metric": f"{name}_p90", "value": float(np.percentile(ordered, 90)), **time}
    yield {"metric": f"{name}_min", "value": float(ordered[0]), **time}
    yield {"metric": f"{name}_max", "value": float(ordered[-1]), **time}
    if n > 1 and ordered.mean() > 0:
        yield {"metric": f"{name}_cv", "value": float(ordered.std(ddof=1) / ordered.mean() * 100), "unit": "%", "n": n}
    if name == "time":
        yield {"metric": "iterations", "value": float(n), "unit": "1", "n": n}
