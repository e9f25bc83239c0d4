"""Steps from ranges: those of profpipe, those that the user names, and those that frameworks open."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from profpipe.ingest.groupby import Bools, Int64s, Ints, count_up_to, groups
from profpipe.ingest.operations import Spans
from profpipe.ingest.steps import calls
from profpipe.results import schema
from profpipe.results.schema import StepRule


@dataclass(frozen=True)
class Segments:
    """Parts of the host's time in ns, [begin, end), ascending and without overlap; all follow one rule.

    ``step`` is the number of a step, and for other work that of the step before it. ``has_last_end`` is False where
    nothing says when the last step ends.
    """

    rule: StepRule
    begin: Int64s
    end: Int64s
    step: Int64s
    is_step: Bools
    has_last_end: bool = False
    #: What a part is, as in the column `kind` of `steps`; None by rules that do not know it.
    kind: npt.NDArray[Any] | None = None

    def place(self, launched: Int64s) -> Ints:
        """Return the segments of the launches, -1 for those outside all of them."""
        at = count_up_to(self.begin, launched) - 1
        return np.where((at >= 0) & (launched < self.end[at]), at, -1)

    @property
    def steps(self) -> int:
        return int(self.is_step.sum())

    def joined(self, last: Ints, stride: int) -> Segments:
        """Return steps of ``stride`` of these. ``last`` are the last ones of them."""
        begin = np.concatenate([[max(int(last[0]) - stride + 1, 0)], last[:-1] + 1])
        number = np.arange(len(last))
        return Segments(self.rule, self.begin[begin], self.end[last], number, np.ones(len(last), dtype=bool))


def everything(launched: Int64s) -> Segments:
    """Return one part that holds all launches of a device."""
    ends = np.array([launched.min()]), np.array([launched.max() + 1])
    return Segments(StepRule.PATTERN, *ends, np.zeros(1, dtype=np.int64), np.ones(1, dtype=bool))


def add_gaps(windows: Segments, end: Int64s, has_last_end: bool = False) -> Segments:
    """Return the windows until ``end``, and the time between two of them as other work."""
    begin, step = windows.begin, windows.step
    gaps = np.flatnonzero(end[:-1] < begin[1:])
    order = np.argsort(np.concatenate([begin, end[gaps]]), kind="stable")
    return Segments(
        windows.rule,
        np.concatenate([begin, end[gaps]])[order],
        np.concatenate([end, begin[gaps + 1]])[order],
        np.concatenate([step, step[gaps]])[order],
        np.concatenate([windows.is_step, np.zeros(len(gaps), dtype=bool)])[order],
        has_last_end,
        None if windows.kind is None else np.concatenate([windows.kind, np.full(len(gaps), "", dtype=object)])[order],
    )


#: The ranges of frameworks, the most exact first. Sources: torch.profiler; Megatron-Bridge (NVTX of its training loop);
#: JAX (StepTraceAnnotation, as TraceMe encodes it); lightning 1.5 to 2.5, profilers/pytorch.py; vLLM 0.6 to 0.12,
#: v1/worker/gpu_worker.py (annotate_profile) and v1/worker/gpu_model_runner.py; SGLang 0.5, srt/managers/scheduler.py.
_FRAMEWORKS: Final = (
    r"ProfilerStep#(?P<n>\d+)",
    r"(?:training_step|train_step|step|iteration|iter)[ _#](?P<n>\d+)",
    r"[\w ]+#(?:.*,)?step_num=(?P<n>\d+)\b.*",
    r"\[pl\]\[profile\]run_training_batch",
    r"execute_context_\d+\(.*\)_generation_\d+\(.*\)",
    r"execute_(?:new_\d+_cached_\d+|\d+_context_\d+\(.*)",
    r"step\[(?:DECODE|EXTEND|MIXED|IDLE)\b.*\]",
    r"(?:v2_)?gpu_model_runner: forward",
)
#: Ranges that libraries open around single operations, and profpipe around its work, parts of a model, and epochs:
#: no steps of a program. ``rank0_train_step`` is a step.
_NO_STEP: Final = re.compile(
    rf"(?i)({re.escape(schema.CASE_PREFIX)}|aten::|autograd::|c10d::|nccl|cublas|cudnn|cusolver|cusparse|cub::|thrust|cccl"
    r"|tsl:|xla|optimizer\.|enumerate\(|fsdp::|torch-compiled|compiledf|## |.*evaluate_function"
    r"|epochs?[^a-z]*$"
    r"|(?!.*(?:step|iter|batch))(.*[^a-z])?(layers?|blocks?|stage|head|rank|device|gpu|stream|module)[^a-z]*\d)"
)
#: A range is a step from so many instances on, of which at least half launch nearly as many kernels as the typical one.
_LEAST_INSTANCES: Final = 3
_ALIKE: Final = 0.25
#: The time of half of the instances differs by no more than this from the median. Inputs have different lengths.
_LARGEST_SPREAD: Final = 0.75
_ONE_PARENT: Final = 0.8
#: Programs have few names of ranges; more are those of single operations.
_MOST_NAMES: Final = 1000
#: Two ranges in turn overlap by this share of the later one at most: some tools round times to whole microseconds.
_OVERLAP: Final = 0.05
#: Longer numbers would overflow.
_DIGITS: Final = 18
#: nsys puts the domain of a range before its name.
_DOMAIN: Final = r"(?:[^:]+:)?"


def find(ranges: Spans, unclosed: int | None = None, step_range: str = "") -> dict[int, list[Segments]]:
    """Return the ranges of a process that are steps, by sort: the first that holds launches applies.

    A step has the number in the name of its range.

    ``step_range`` is the user's regular expression for names of ranges. ``unclosed`` is the end that the parser gave to
    ranges without one: they are no whole steps.
    """
    texts = ranges.recorded or ranges.names
    used = pd.unique(ranges.name).tolist()
    by_process: dict[int, list[Segments]] = {}
    for rule, sort in _sorts(step_range):
        matches = {code: match for code in used if (match := sort.fullmatch(texts[code]))}
        rows = np.flatnonzero(np.isin(ranges.name, list(matches))) if matches else np.zeros(0, dtype=np.int64)
        if unclosed is not None:
            rows = rows[ranges.end[rows] != unclosed]
        number_of = {code: int((match.groupdict().get("n") or "-1")[-_DIGITS:]) for code, match in matches.items()}
        number = np.array([number_of[code] for code in ranges.name[rows].tolist()], dtype=np.int64)
        for process, of in groups(ranges.process[rows]):
            called = [matches[code].groupdict().get("call") or "" for code in ranges.name[rows[of]].tolist()]
            windows = _windows(rule, ranges.start[rows[of]], ranges.end[rows[of]], number[of], called)
            by_process.setdefault(process, []).append(windows)
    return by_process


def recurring(ranges: Spans, process: int, launched: Int64s, duration: Int64s) -> tuple[str, float, Segments] | None:
    """Return the program's range that is a step: its name, % of the kernel time, and instances; None without one.

    It opens at least three times, holds most of the time of the process's kernels, and its instances are alike. The
    outermost such range wins. ``launched`` and ``duration`` are those of the kernels. Names that differ in numbers that
    count up are one name.
    """
    rows = np.flatnonzero(ranges.process == process)
    texts = ranges.recorded or ranges.names
    by_name: dict[str, list[int]] = {}
    for code, of_name in groups(ranges.name[rows]):
        text = texts[code]
        if not _NO_STEP.match(text):
            by_name.setdefault(re.sub(r"\d+", "#", text), []).extend(rows[of_name].tolist())
    loops: list[tuple[int, str, float, Segments]] = []
    order = np.argsort(launched, kind="stable")
    launched, duration = launched[order], duration[order]
    total = np.concatenate([[0], np.cumsum(duration)])
    windows_of: dict[str, Segments] = {}
    for name, instances in list(by_name.items())[:_MOST_NAMES]:
        name_rows = np.array(instances)
        name_rows = name_rows[np.argsort(ranges.start[name_rows], kind="stable")]
        counters = _counters(texts, ranges.name[name_rows])
        if len(set(counters)) == 1 or all(one < following for one, following in pairwise(counters)):
            last = np.array([(counter or (-1,))[-1] for counter in counters], dtype=np.int64)
            windows_of[name] = _windows(StepRule.RANGE, ranges.start[name_rows], ranges.end[name_rows], last)
    for name, windows in windows_of.items():
        if len(windows.begin) < _LEAST_INSTANCES:
            continue
        first, last = np.searchsorted(launched, [windows.begin, windows.end])
        held, kernels = total[last] - total[first], last - first
        if (
            2 * held.sum() <= total[-1]
            or not _are_alike(held, kernels)
            or not _have_one_parent(name, windows, windows_of)
        ):
            continue
        loops.append((int((windows.end - windows.begin).sum()), name, float(100 * held.sum() / total[-1]), windows))
    if not loops:
        return None
    _, name, share, windows = max(loops, key=lambda loop: loop[0])
    return name, share, windows


def _counters(texts: Sequence[str], codes: Int64s) -> list[tuple[int, ...]]:
    """Return the numbers in a name."""
    used = set(codes.tolist())
    numbers = {code: tuple(int(digits[-_DIGITS:]) for digits in re.findall(r"\d+", texts[code])) for code in used}
    return [numbers[code] for code in codes.tolist()]


def _are_alike(held: Int64s, kernels: Int64s) -> bool:
    """Return True where at least half of the instances are alike in their kernels and the time of these."""
    typical, median = np.median(kernels), np.median(held)
    alike = 2 * np.count_nonzero(np.abs(kernels - typical) <= _ALIKE * typical) >= len(kernels)
    return bool(median > 0 and alike and np.median(np.abs(held - median)) <= _LARGEST_SPREAD * median)


def _have_one_parent(name: str, windows: Segments, others: Mapping[str, Segments]) -> bool:
    """Return True where nearly all instances lie in ranges of the same names: others are cases of a comparison."""
    inside = [
        (other.place(windows.begin) >= 0) & (windows.end <= other.end[other.place(windows.begin)])
        for other_name, other in others.items()
        if other_name != name and len(other.begin)
    ]
    if not inside:
        return True
    _, counts = np.unique(np.stack(inside, axis=1), axis=0, return_counts=True)
    return bool(counts.max() >= _ONE_PARENT * len(windows.begin))


def _sorts(step_range: str) -> Iterator[tuple[StepRule, re.Pattern[str]]]:
    for rule in (StepRule.MARKER, StepRule.OPTIMIZER, StepRule.FORWARD):
        yield rule, re.compile(rf"{_DOMAIN}{re.escape(schema.STEP_PREFIX)}{rule.value}:(?P<n>\d+)(?: (?P<call>.+))?")
        if step_range and rule is StepRule.MARKER:
            yield rule, re.compile(f"{_DOMAIN}(?:{step_range})")
    for pattern in _FRAMEWORKS:
        yield StepRule.FRAMEWORK, re.compile(f"{_DOMAIN}{pattern}", re.IGNORECASE)


def _windows(
    rule: StepRule, start: Int64s, end: Int64s, number: Int64s, called: Sequence[str] | None = None
) -> Segments:
    """Order the ranges, and leave out those that begin inside another one: nested ones, and those of other threads.

    ``called`` says what a range calls, if calls of modules are steps. Those of several threads are none.
    """
    if called and len({calls.read(text).thread for text in called}) > 1:
        whole = np.array([start.min()]), np.array([end.max()])
        return Segments(rule, *whole, np.zeros(1, dtype=np.int64), np.zeros(1, dtype=bool))
    order = np.lexsort((-end, start))
    start, end, number = start[order], end[order], number[order]
    latest = np.concatenate([start[:1], np.maximum.accumulate(end)[:-1]])
    outer = latest - start <= _OVERLAP * (end - start)
    start, end, number = start[outer], end[outer], number[outer]
    end[:-1] = np.minimum(end[:-1], start[1:])
    counts_up = bool((number >= 0).all() and (np.diff(number) > 0).all())
    step = number if counts_up else np.arange(len(start))
    if rule is not StepRule.FORWARD or called is None or not len(start):
        return Segments(rule, start, end, step, np.ones(len(start), dtype=bool))
    module_calls = [calls.read(called[i]) for i in order[outer].tolist()]
    parts = calls.divide(module_calls, (end - start).tolist())
    first, last = (np.array([getattr(part, name) for part in parts]) for name in ("first", "last"))
    is_step, kind = np.array([part.is_step for part in parts]), np.array([part.kind for part in parts], dtype=object)
    return Segments(rule, start[first], end[last], step[first], is_step, kind=kind)


def segments_of(windows: Segments, launched: Int64s) -> Segments:
    """Return the steps of the device with these launches.

    Where most gaps between two windows hold launches, these belong to the loop, and a step reaches to the next window:
    some frameworks leave out the loading of data. Otherwise what lies between is other work.
    """
    end = windows.end
    gap = np.searchsorted(windows.begin, launched, side="right") - 1
    between = (gap >= 0) & (gap < len(end) - 1)
    filled = np.unique(gap[between & (launched >= end[gap])])
    if is_loop := 2 * len(filled) > len(end) - 1:
        end = np.append(windows.begin[1:], end[-1])
    return add_gaps(windows, end, has_last_end=not is_loop)
