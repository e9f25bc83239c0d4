"""What the workload says of a case: its work, its facts, and its difference from a reference.

The harness calls these functions of the workload after it timed the case. An error in one of them leaves the times
valid, unless the process dies. Only a full disk fails the case: it is measured again once there is room for its files.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from numbers import Real
from typing import Any, Final

from profpipe.errors import one_line
from profpipe.measure import tolerance
from profpipe.measure.flags import Flag

Write = Callable[..., None]
#: Subject (empty: the case), name, value, unit and number of samples; a value of None is not written.
Metric = tuple[str, str, float | None, str, int]

_UNITS = {"flops": "flop", "bytes_moved": "byte"}

#: Metrics that are samples, and the suffixes that the parser of a job's log adds for their statistics.
_SAMPLED: Final = ("time", "time_own", "time_cuda_graph")
_STATISTICS: Final = ("", "_p10", "_p90", "_min", "_max", "_cv")
#: Metric names of profpipe's measurements. A workload's number of such a name would be taken for the measurement.
MEASURED: Final = frozenset(
    {f"{name}{suffix}" for name in _SAMPLED for suffix in _STATISTICS}
    | {"iterations", "rounds", "issue", "loop_wall", "peak_allocated", "peak_reserved"}
    | {"sm_clock", "sm_clock_min", "sm_clock_max", "power", "power_max", "temperature"}
)


def write(workload: Any, params: Mapping[str, Any], events: Write, limits: Mapping[str, float]) -> list[Flag]:
    """Write the workload's numbers of a case; return the validity flags that follow from them.

    ``events(event, **fields)`` appends to the case's record. ``unchecked``: the result was not compared with the
    reference. ``inaccurate``: it exceeds ``limits``, the pipeline's tolerance; a note has the numbers.
    """
    case = _CaseMetrics(workload, params, events)
    case.write("flops", lambda flops: _work("", "flops", flops))
    case.write("bytes_moved", lambda moved: _work("", "bytes_moved", moved))
    case.write("phase_work", lambda work: [number for item in _flatten(work) for number in _work(*item)])
    case.write("facts", lambda facts: [("", m, value, unit, 1) for m, (value, unit) in _allowed(facts).items()])
    checked = case.write(
        "check", lambda measures: [("", m, _replace_nan(m, v), "1", 1) for m, v in _allowed(measures).items()]
    )
    if checked is None:
        return [Flag.UNCHECKED]
    verdict = tolerance.judge(checked, limits)
    if not verdict.flag:
        return []
    events("note", text=f"{verdict.flag}: {verdict.why}")
    return [verdict.flag]


class _CaseMetrics:
    """Calls a workload's functions for one case and writes their numbers."""

    def __init__(self, workload: Any, params: Mapping[str, Any], events: Write) -> None:
        self._workload, self._params, self._events = workload, params, events

    def write(self, name: str, rows: Callable[[Any], Iterable[Metric]]) -> Any:
        """Write and return the result of the workload's function ``name``; {} without one, None where it failed."""
        if (function := getattr(self._workload, name, None)) is None:
            return {}
        try:
            result = _plain_numbers(function(self._params))
            self._write_rows(rows(result))
        except Exception as error:  # recorded; the times of the case stay valid
            self._write_error(name, error)
            return None
        return result

    def _write_rows(self, rows: Iterable[Metric]) -> None:
        for subject, metric, value, unit, n in rows:
            if value is not None:
                self._events("metric", subject=subject, metric=metric, value=value, unit=unit, n=n)

    def _write_error(self, during: str, error: Exception) -> None:
        self._events("error", during=during, reason=one_line(error), traceback=traceback.format_exc())


def _allowed(numbers: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return ``numbers``; ValueError where a name is reserved for profpipe's measurements."""
    for name in numbers:
        if name in MEASURED or name.partition(".")[0] in _UNITS:
            raise ValueError(f"{name!r} is a metric of profpipe. Use another name")
    return numbers


def _plain_numbers(result: Any) -> Any:
    """Replace tensors and arrays of one element by their numbers."""
    if isinstance(result, Mapping):
        return {name: _plain_numbers(value) for name, value in result.items()}
    if isinstance(result, tuple):
        return tuple(_plain_numbers(value) for value in result)
    try:
        return result.item()
    except (AttributeError, RuntimeError, TypeError, ValueError):  # not a tensor, or not of one element
        return result


def _replace_nan(measure: str, value: Any) -> Any:
    """Replace NaN by the worst value of the measure: the tables would treat NaN as missing."""
    is_nan = isinstance(value, Real) and math.isnan(value)
    return tolerance.worst(measure) if is_nan and measure in tolerance.MEASURES else value


def _flatten(numbers: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, str, Any]]:
    return ((subject, metric, value) for subject, metrics in numbers.items() for metric, value in metrics.items())


def _work(subject: str, metric: str, result: float | Mapping[str, float] | None) -> Iterator[Metric]:
    """Yield one number; FLOPs by data type as single numbers (``flops.int8``), and their sum. Raises ValueError."""
    for value in result.values() if isinstance(result, Mapping) else [result]:
        if value is not None and value < 0:
            raise ValueError(f"{metric} is {value}, but must not be negative; it is left out")
    if isinstance(result, Mapping):
        yield from ((subject, f"{metric}.{dtype}", value, _UNITS[metric], 1) for dtype, value in result.items())
        result = sum(result.values())
    yield subject, metric, result, _UNITS[metric], 1
