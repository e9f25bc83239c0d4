"""Read the files that the start-up hook of a command writes: the steps of one process, and remarks.

One JSON object a line; ``hook`` names what the line holds:

* ``started``: process id, rank, Python and torch;
* ``recording``: the first step began;
* ``steps``: numbers, starts on the host (ns since the epoch) and durations (ns), and torch's peak memory so far;
* ``span``: the recording of a span of time began; ``memory``: at its end, the peaks of torch's memory and the host's;
* ``restart``: the steps before it were none, since a rule applied that says more;
* ``note``, ``error``: what the report must say; ``finished``: the process ended.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from profpipe.errors import UnreadableFile
from profpipe.ingest.steps import accounting
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
    return schema.Tables(
        steps=schema.frame(schema.STEPS, _steps(written, about)),
        metrics=schema.frame(schema.METRICS, list(_memory(written, about))),
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
    found = accounting.states(np.array([row["wall_ns"] for row in rows]))
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
            "state": StepState.WARMUP.value if row["step"] < warmup and len(rows) > warmup else state,
        }
        for row, state in zip(rows, found, strict=True)
    ]


def _memory(written: list[dict[str, Any]], about: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the peaks of torch's memory: of rank 0 for the case, of other ranks by rank."""
    rank = about.get("rank")
    subject = f"{schema.RANK_PREFIX}{rank}" if rank else ""
    for metric in ("peak_allocated", "peak_reserved", "peak_host"):
        values = [line[metric] for line in written if metric in line]
        if values:
            yield {"subject": subject, "metric": metric, "value": float(max(values)), "unit": "byte", "n": 1}
