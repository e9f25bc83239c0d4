"""Read the log of a job, to which the harness appends: the cases and their numbers.

One JSON object a line. Each process begins with ``started``; a job whose process died continues in another one, in the
same file. The last process that began a case counts.

Of several ranks, all have a file (``job.rank1.jsonl``). Rank 0 has the cases. Other ranks add only numbers of cases
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
from profpipe.ingest import bounds
from profpipe.measure import event_lines, statistics
from profpipe.results import schema

FORMATS = ("profpipe job.jsonl",)

_CRASHED = "the process ended inside this case; see log.txt beside it for its last words"


@dataclass
class CaseLog:
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
class JobLog:
    """A whole file: the last attempts of the cases, and the last process."""

    attempts: dict[tuple[str, str], CaseLog] = field(default_factory=dict)
    process: int = 0
    rank: int = 0
    profiler: str = ""
    torch: str = ""
    device: str = ""
    notes: list[str] = field(default_factory=list)
    #: (function of the workload that failed, reason) -> cases.
    failed_functions: dict[tuple[str, str], list[str]] = field(default_factory=dict)

    def attempt(self, event: dict[str, Any]) -> CaseLog:
        """Return this process's attempt at the event's case, in place of an earlier process's.

        A process may start a case several times, so ``case_started`` begins no new attempt.
        """
        fresh = CaseLog(self.profiler, str(event["case"]), self.process)
        current = self.attempts.get((fresh.profiler, fresh.case))
        if current is None or current.process != fresh.process:
            self.attempts[fresh.profiler, fresh.case] = current = fresh
        return current


def sniff(path: Path) -> bool:
    """Return True for a file whose first line is an event of the harness."""
    with path.open("rb") as file:
        head = file.read(64).lstrip()
    return head.replace(b" ", b"").startswith(b'{"event":')


def parse(path: Path) -> schema.Tables:
    """Read cases (one a row) and metrics; samples are summarised.

    A line that is no event is dropped with a note. Raises ``UnreadableFile`` where no case is left, and ``TooLarge``
    for very many of them.
    """
    record, (events, bad) = JobLog(), event_lines.read(path)
    for event in events:
        if handler := _HANDLERS.get(event["event"]):
            handler(record, event)
    record.notes += event_lines.describe(bad)
    if not record.attempts:
        raise UnreadableFile(
            path, "holds no case: the process ended before its first one", "See log.txt beside it for why."
        )
    if len(record.attempts) > bounds.MOST_CASES:
        raise bounds.TooLarge(f"it has more than {bounds.MOST_CASES:,} cases")
    return _tables(record)


def _read_start(record: JobLog, event: dict[str, Any]) -> None:
    record.profiler, record.process = event.get("profiler") or "", record.process + 1
    record.rank = int(event.get("rank") or 0)
    record.torch = str(event.get("torch") or "")
    machine = event.get("machine")
    record.device = str(machine.get("device") or "") if isinstance(machine, dict) else ""


def _read_case_start(record: JobLog, event: dict[str, Any]) -> None:
    record.attempt(event).params = dict(event.get("params") or {})


def _read_samples(record: JobLog, event: dict[str, Any]) -> None:
    factor = event_lines.NS_PER[event["unit"]]
    samples = record.attempt(event).samples_ns.setdefault(str(event.get("metric") or "time"), [])
    samples += [float(value) * factor for value in event["values"]]


def _read_metric(record: JobLog, event: dict[str, Any]) -> None:
    attempt, name = record.attempt(event), str(event["metric"])
    try:
        row: dict[str, Any] = {k: float(event[k]) for k in ("value", "ci_low", "ci_high") if event.get(k) is not None}
    except (TypeError, ValueError, OverflowError):  # the last: a whole number beyond any float
        # A workload's check() may return anything; its other numbers are valid.
        record.notes.append(f"{attempt.case}: metric {name} is no number and was dropped")
        return
    row |= {"unit": str(event["unit"]), "n": int(event.get("n") or 1)}
    attempt.metrics[str(event.get("subject") or ""), name] = row


def _read_error(record: JobLog, event: dict[str, Any]) -> None:
    """Note a function of the workload that failed. The reason of a failed case is in ``case_ended``."""
    if during := event.get("during"):
        cases = record.failed_functions.setdefault((str(during), str(event.get("reason") or "")), [])
        cases.append(str(event["case"]))


def _read_case_end(record: JobLog, event: dict[str, Any]) -> None:
    attempt = record.attempt(event)
    attempt.status, attempt.reason = event["status"], event.get("reason") or ""
    attempt.seconds = None if event.get("seconds") is None else float(event["seconds"])
    if attempt.seconds is not None and attempt.seconds < 0:
        record.notes.append(f"{attempt.case}: its duration is negative, for the clock was set back, and was dropped")
        attempt.seconds = None
    attempt.flags = [str(flag) for flag in event.get("flags") or []]
    # A case that is skipped before it starts has its parameters only here.
    attempt.params = attempt.params or dict(event.get("params") or {})


_HANDLERS = {
    "started": _read_start,
    "case_started": _read_case_start,
    "samples": _read_samples,
    "metric": _read_metric,
    "error": _read_error,
    "case_ended": _read_case_end,
}


def _tables(record: JobLog) -> schema.Tables:
    cases: list[dict[str, Any]] = []
    metrics: list[dict[str, Any]] = []
    for attempt in record.attempts.values():
        key = {"case": attempt.case, "profiler": attempt.profiler}
        texts = {"params": json.dumps(attempt.params), "flags": json.dumps(attempt.flags)}
        cases.append({**key, "status": attempt.status, "reason": attempt.reason, "seconds": attempt.seconds, **texts})
        rows: list[dict[str, Any]] = []
        for name, samples_ns in attempt.samples_ns.items():
            finite = np.array([value for value in samples_ns if math.isfinite(value)])
            if dropped := len(samples_ns) - len(finite):
                record.notes.append(f"{attempt.case}: {dropped} samples that are no number dropped")
            rows += [{**key, "subject": "", **row} for row in _summary(name, finite)]
        rows += [{**key, "subject": s, "metric": m, **row} for (s, m), row in attempt.metrics.items()]
        metrics += rows if not record.rank else _label_rank(record.rank, attempt, rows)
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


def _label_rank(rank: int, attempt: CaseLog, rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the numbers of another rank that have no subject yet: phases and places in the code keep theirs."""
    if attempt.status == "ok":
        yield from ({**row, "subject": f"{schema.RANK_PREFIX}{rank}"} for row in rows if not row["subject"])


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
