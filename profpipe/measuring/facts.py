"""What is true of a case whoever measures it: its work, its own numbers, and how far its result is from a reference.

Asked of the workload after the case was timed. Its times stand whatever becomes of these questions, unless the process
dies of one. Only where there is no room for the files that it keeps has the case failed, and is done again once there
is.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from numbers import Real
from pathlib import Path
from typing import Any, Final

from profpipe import tolerance
from profpipe.errors import lacks_room, one_line

Write = Callable[..., None]
#: What it is of (empty: the case), its name, value, unit and samples; a value that is None is not written.
Metric = tuple[str, str, float | None, str, int]

_UNITS = {"flops": "flop", "bytes_moved": "byte"}

#: What is sampled of a case, and the figures that the parser of events.jsonl makes of the samples.
_SAMPLED: Final = ("time", "time_own", "time_cuda_graph")
_OF_SAMPLES: Final = ("", "_p10", "_p90", "_cv")
#: The names under which a case's own measurements stand in the tables: a workload's number of such a name would be
#: taken for the measurement.
MEASURED: Final = frozenset(
    {f"{name}{figure}" for name in _SAMPLED for figure in _OF_SAMPLES}
    | {"iterations", "rounds", "issue", "loop_wall", "peak_allocated", "peak_reserved"}
    | {"sm_clock", "sm_clock_min", "sm_clock_max", "power", "power_max", "temperature"}
)


def write(
    workload: Any, params: Mapping[str, Any], folder: Path, events: Write, limits: Mapping[str, float]
) -> list[str]:
    """Asks the workload and writes what it says; returns the validity marks that follow from it.

    ``folder`` is the job's, below which a workload may keep files of the case (``snapshot``); ``events(event,
    **fields)`` appends to the record of the case. ``unchecked``: its result could not be compared with the reference.
    ``inaccurate``: it is outside of ``limits``, the pipeline's tolerance; a note says by how much.
    """
    case = _Case(workload, params, events)
    case.tell("flops", lambda flops: _numbers("", "flops", flops))
    case.tell("bytes_moved", lambda moved: _numbers("", "bytes_moved", moved))
    case.tell("phase_work", lambda work: [number for said in _flat(work) for number in _numbers(*said)])
    case.tell("facts", lambda facts: [("", m, value, unit, 1) for m, (value, unit) in _free(facts).items()])
    found = case.tell("check", lambda found: [("", m, _comparable(m, v), "1", 1) for m, v in _free(found).items()])
    case.keep(folder)
    if found is None:
        return [tolerance.UNCHECKED]
    verdict = tolerance.judge(found, limits)
    if verdict.mark:
        events("note", text=f"{verdict.mark}: {verdict.why}")
    return [verdict.mark] if verdict.mark else []


def _free(numbers: Mapping[str, Any]) -> Mapping[str, Any]:
    """``numbers`` by names that are the workload's to give; ValueError for one that profpipe gives itself."""
    for name in numbers:
        if name in MEASURED or name.partition(".")[0] in _UNITS:
            raise ValueError(f"the name {name!r} is profpipe's own, for what it measures or asks for; take another")
    return numbers


def _plain(said: Any) -> Any:
    """``said`` with the number itself in place of a tensor or an array that holds only one."""
    if isinstance(said, Mapping):
        return {name: _plain(value) for name, value in said.items()}
    if isinstance(said, tuple):
        return tuple(_plain(value) for value in said)
    try:
        return said.item()
    except (AttributeError, RuntimeError, TypeError, ValueError):  # no tensor, or one of more elements or of none
        return said


def _comparable(measure: str, value: Any) -> Any:
    """A NaN is the worst difference there is. A table would take it for a number that was never told."""
    is_nan = isinstance(value, Real) and math.isnan(value)
    return tolerance.worst(measure) if is_nan and measure in tolerance.MEASURES else value


def _flat(numbers: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, str, Any]]:
    return ((subject, metric, value) for subject, own in numbers.items() for metric, value in own.items())


def _numbers(subject: str, metric: str, said: float | Mapping[str, float] | None) -> Iterator[Metric]:
    """One number; of FLOPs by data type each by its own name, ``flops.int8``, and their sum. None may be negative."""
    for value in said.values() if isinstance(said, Mapping) else [said]:
        if value is not None and value < 0:
            raise ValueError(f"{metric} is {value}, and no work is less than none; it is left out")
    if isinstance(said, Mapping):
        yield from ((subject, f"{metric}.{dtype}", value, _UNITS[metric], 1) for dtype, value in said.items())
        said = sum(said.values())
    yield subject, metric, said, _UNITS[metric], 1


class _Case:
    """One case of a workload, being asked."""

    def __init__(self, workload: Any, params: Mapping[str, Any], events: Write) -> None:
        self._workload, self._params, self._events = workload, params, events

    def tell(self, name: str, rows: Callable[[Any], Iterable[Metric]]) -> Any:
        """Writes what the workload's function ``name`` says, and returns it; {} without one, None where it failed."""
        if (function := getattr(self._workload, name, None)) is None:
            return {}
        try:
            said = _plain(function(self._params))
            self._write(rows(said))
        except Exception as error:  # as for the case itself: recorded, and not the end
            self._failed(name, error)
            return None
        return said

    def keep(self, folder: Path) -> None:
        """What the workload wants kept of the case (``snapshot``): files in ``folder``, and numbers by their subject.

        Each file is a number too: its size. An empty folder is not left.
        """
        if (snapshot := getattr(self._workload, "snapshot", None)) is None:
            return
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._write((subject, m, *number) for subject, m, number in _flat(_plain(snapshot(self._params, folder))))
            kept = sorted(folder.iterdir())
            where = f"{folder.parent.name}/{folder.name}"
            self._write((f"{where}/{file.name}", "kept", file.stat().st_size, "byte", 1) for file in kept)
            if not kept:
                folder.rmdir()
        except Exception as error:  # likewise, but for a full disk: with room the files would be there
            self._failed("snapshot", error)
            if lacks_room(str(error)):
                raise

    def _write(self, rows: Iterable[Metric]) -> None:
        for subject, metric, value, unit, n in rows:
            if value is not None:
                self._events("metric", subject=subject, metric=metric, value=value, unit=unit, n=n)

    def _failed(self, during: str, error: Exception) -> None:
        self._events("error", during=during, reason=one_line(error), traceback=traceback.format_exc())
