"""Read what a workload's process says: the lines of the harness in the log of a job, and those of the start-up hook.

Anything may stand in the file: libraries print into it, a kill cuts a line, a newer version writes other events. A line
that is no event is left out, and its number is returned, so that all readers see the same events.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final

from profpipe.hook.record import PENDING_STEP
from profpipe.job import Status

Event = dict[str, Any]

NS_PER: Final[Mapping[str, float]] = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}
_STATUSES: Final = frozenset(map(str, Status))
_NAMED: Final = 3
#: The first event of a process, and those of the runner, which follow the last line of a process.
_OTHER_PROCESS: Final = re.compile(rb'\{"event": ?"(?:started|attempt|stopping|ended)"')


class Damage(Enum):
    """Why a line is no event."""

    #: The last line of a process that was killed while it wrote.
    CUT = "was cut by the end of its process and dropped"
    NO_JSON = "is not a JSON object and was dropped"
    WRONG = "has a wrong or missing value and was dropped"


@dataclass(frozen=True)
class BadLine:
    """A line that is no event. Numbers count from 1. ``kind`` is the name of the event, where the line has one."""

    number: int
    damage: Damage
    kind: str = ""

    def __str__(self) -> str:
        kind = f" ('{self.kind}')" if self.kind else ""
        return f"line {self.number}{kind} {self.damage.value}"


def describe(bad: list[BadLine]) -> list[str]:
    """Return what is wrong with the first lines that are no events, and how many more there are."""
    more = len(bad) - _NAMED
    rest = [f"{more} more lines are no events and were dropped"] if more > 0 else []
    return [*map(str, bad[:_NAMED]), *rest]


def read(path: Path, key: str = "event") -> tuple[list[Event], list[BadLine]]:
    """Return the events in ``path``, and the lines that are none; ``key`` as for ``parse_lines``.

    A file that does not exist has no events, and neither has a pipe or a device, which may have no end.
    """
    if not path.is_file():
        return [], []
    events: list[Event] = []
    bad: list[BadLine] = []
    for _, parsed in parse_lines(path.read_bytes().splitlines(), key):
        if isinstance(parsed, BadLine):
            bad.append(parsed)
        else:
            events.append(parsed)
    return events, bad


def complete(pending: Path) -> None:
    """Move the steps that a process, which has ended, left in ``pending`` to its record (``hook.record.Pending``)."""
    record = pending.with_suffix(".jsonl")
    written = [line for line in read(record, "hook")[0] if line["hook"] in ("steps", "restart")]
    begin = max((i + 1 for i, line in enumerate(written) if line["hook"] == "restart"), default=0)
    # Steps of several threads are not in the order of their numbers.
    recorded = {int(step) for line in written[begin:] for step in line["step"]}
    content = pending.read_bytes()
    whole = content[: len(content) // PENDING_STEP.size * PENDING_STEP.size]  # the disk may have been full
    rows = [row for row in PENDING_STEP.iter_unpack(whole) if row[1] and row[0] not in recorded]
    last = max(recorded, default=-1)
    done = [(number, start, round(wall), *words.rstrip(b"\0").decode(errors="replace").split(" ", 2))
            for number, start, wall, words in rows if wall >= 0]  # fmt: skip
    more: list[Event] = []
    if done:
        step, start_ns, wall_ns, (rule, *_), (clock, *_), calls = zip(*done, strict=True)
        times = {"step": step, "start_ns": start_ns, "wall_ns": wall_ns, "calls": calls}
        more.append({"hook": "steps", "rule": rule, "clock": clock, **times})
        last = max(last, *step)
    if rows and (lost := rows[-1][0] - last) > 0:
        steps = f"{lost} steps" if lost > 1 else "step"
        more.append({"hook": "note", "text": f"the process ended before the GPU had finished its last {steps}"})
    with record.open("a", encoding="utf-8") as stream:
        stream.writelines(json.dumps(line) + "\n" for line in more)
    pending.unlink()


def parse_lines(lines: list[bytes], key: str = "event") -> Iterator[tuple[int, Event | BadLine]]:
    """Yield what a line says, with its number; empty lines are left out.

    ``key`` names what a line holds: ``event`` of the harness, ``hook`` of the start-up hook. A killed process leaves
    its last line cut, without a line end: the ``started`` of the next process may be in the same line.
    """
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        parsed = parse(line, key)
        if parsed is Damage.NO_JSON and (following := [*_OTHER_PROCESS.finditer(line, 1)]):
            yield number, BadLine(number, Damage.CUT)
            parsed = parse(line[following[-1].start() :], key)
        if isinstance(parsed, Damage):
            is_cut = parsed is Damage.NO_JSON and _is_last_of_process(lines[i] for i in range(number, len(lines)))
            yield number, BadLine(number, Damage.CUT if is_cut else parsed, _kind_of(line, key))
        else:
            yield number, parsed


def parse(line: bytes, key: str = "event") -> Event | Damage:
    """Return the event in a line, or why it is none."""
    try:
        # `json.loads` of bytes would accept halves of surrogate pairs.
        event = json.loads(line.decode())
        if b"\\ud" in line.lower():
            # A path that is no UTF-8 has halves of surrogate pairs, which Arrow cannot store.
            event = json.loads(json.dumps(event, ensure_ascii=False).encode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return Damage.NO_JSON
    if not isinstance(event, dict):
        return Damage.NO_JSON
    kind = event.get(key)
    if not isinstance(kind, str):
        return Damage.WRONG
    needed, others = _FIELDS[key].get(kind, ({}, {}))
    given = {name: is_valid for name, is_valid in others.items() if event.get(name) is not None}
    is_right = all(is_valid(event.get(name)) for name, is_valid in {**needed, **given}.items())
    return event if is_right else Damage.WRONG


def _kind_of(line: bytes, key: str) -> str:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return ""
    kind = event.get(key) if isinstance(event, dict) else ""
    return kind[:40] if isinstance(kind, str) else ""


def _is_last_of_process(following: Iterable[bytes]) -> bool:
    after = next((line for line in following if line.strip()), None)
    return after is None or _OTHER_PROCESS.match(after.lstrip()) is not None


# --- the values of each event ----------------------------------------------------------------------------------------

_IsValid = Callable[[Any], bool]


def _is_a(kind: type) -> _IsValid:
    return lambda value: isinstance(value, kind)


def _is_list_of(is_valid: _IsValid) -> _IsValid:
    return lambda value: isinstance(value, list) and all(map(is_valid, value))


def _is_mapping_of(is_valid: _IsValid) -> _IsValid:
    return lambda value: isinstance(value, dict) and all(map(is_valid, value.values()))


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    try:
        float(value)
    except OverflowError:  # a whole number beyond any float
        return False
    return True


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 31


def _is_index(value: Any) -> bool:
    return value == 0 or _is_count(value)


def _are_params(value: Any) -> bool:
    return isinstance(value, dict) and _fits(value)


def _fits(value: Any) -> bool:
    """Return True if the tables can hold all whole numbers in ``value``."""
    if isinstance(value, (dict, list)):
        return all(map(_fits, value.values() if isinstance(value, dict) else value))
    return not isinstance(value, int) or value.bit_length() < 64


def _are_times(value: Any) -> bool:
    """Return True for times of a clock that neither stands nor goes back."""
    return _are_numbers(value) and (not value or (min(value) >= 0 and max(value) > 0))


_is_text, _is_mapping = _is_a(str), _is_a(dict)
_are_numbers, _are_texts = _is_list_of(_is_number), _is_list_of(_is_text)


def _is_reading(value: Any) -> bool:
    return value is None or (_are_numbers(value) and len(value) == 2)


_Fields = Mapping[str, _IsValid]

#: By event: the values that a reader needs, and those that may be missing. Other events and values are not looked at.
_HARNESS: Final[Mapping[str, tuple[_Fields, _Fields]]] = {
    "attempt": ({"part": _is_count, "cases": _are_texts}, {}),
    "ended": ({"part": _is_count, "command": _is_index}, {}),
    "started": ({}, {"profiler": _is_text, "torch": _is_text, "machine": _is_mapping, "rank": _is_index}),
    "order": ({}, {"rounds": _is_count}),
    "case_started": ({"case": _is_text}, {"params": _are_params}),
    "samples": (
        {"case": _is_text, "values": _are_times, "unit": lambda value: isinstance(value, str) and value in NS_PER},
        {"metric": _is_text, "round": _is_count, "conditions": _is_mapping},
    ),
    "metric": ({"case": _is_text, "metric": _is_text, "unit": _is_text}, {"subject": _is_text, "n": _is_count}),
    "error": ({"case": _is_text}, {}),
    "expects": ({"case": _is_text}, {"family": _is_text}),
    "case_ended": (
        {"case": _is_text, "status": lambda value: isinstance(value, str) and value in _STATUSES},
        {"reason": _is_text, "seconds": _is_number, "flags": _are_texts, "params": _are_params},
    ),
}
_HOOK: Final[Mapping[str, tuple[_Fields, _Fields]]] = {
    "started": ({}, {"profiler": _is_text, "torch": _is_text, "device_name": _is_text, "warmup": _is_index}),
    "steps": (
        {"rule": _is_text, "step": _are_numbers, "start_ns": _are_numbers, "wall_ns": _are_times},
        {"calls": _are_texts, "loading_ns": _are_times, "gpus": _is_index, "energy": _is_reading},
    ),
    "flops": (
        {},
        {
            "by_type": _is_mapping_of(_is_number),
            "again": _is_number,
            "unknown": _is_mapping_of(_is_number),
            "why": _is_text,
        },
    ),
    "memory": ({}, dict.fromkeys(("peak_allocated", "peak_reserved", "peak_host"), _is_number)),
    "note": ({"text": _is_text}, {}),
    "error": ({"type": _is_text, "message": _is_text, "during": _is_text}, {}),
}
_FIELDS: Final = {"event": _HARNESS, "hook": _HOOK}
