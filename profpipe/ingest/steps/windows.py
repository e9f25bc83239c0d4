"""Steps from ranges: profpipe's own, those that the user names, and those that frameworks open."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import numpy as np
import pandas as pd

from profpipe.ingest import attribution
from profpipe.ingest.groupby import Int64s, groups
from profpipe.ingest.steps import segments
from profpipe.ingest.steps.segments import Segments
from profpipe.results import schema
from profpipe.results.schema import StepRule

#: The ranges of frameworks, the most exact first. Sources: torch.profiler; Megatron-Bridge (NVTX of its training loop);
#: lightning 1.5 to 2.5, profilers/pytorch.py; vLLM 0.6 to 0.12, v1/worker/gpu_worker.py (annotate_profile) and
#: v1/worker/gpu_model_runner.py; SGLang 0.5, srt/managers/scheduler.py.
_FRAMEWORKS: Final = (
    r"ProfilerStep#(?P<n>\d+)",
    r"(?:training_step|train_step|step|iteration|iter)[ _#](?P<n>\d+)",
    r"\[pl\]\[profile\]run_training_batch",
    r"execute_context_\d+\(.*\)_generation_\d+\(.*\)",
    r"execute_(?:new_\d+_cached_\d+|\d+_context_\d+\(.*)",
    r"step\[(?:DECODE|EXTEND|MIXED|IDLE)\b.*\]",
    r"(?:v2_)?gpu_model_runner: forward",
)
#: Longer numbers would overflow.
_DIGITS: Final = 18
#: nsys puts the domain of a range before its name.
_DOMAIN: Final = r"(?:[^:]+:)?"


def find(ranges: attribution.Ranges, unclosed: int | None = None, own: str = "") -> dict[int, list[Segments]]:
    """Return the ranges of each process that are steps, by sort: the first that holds launches applies.

    A step has the number in the name of its range.

    ``own`` is the user's regular expression for names of ranges. ``unclosed`` is the end that the parser gave to ranges
    without one: they are no whole steps.
    """
    texts = ranges.recorded or ranges.names
    used = pd.unique(ranges.name).tolist()
    found: dict[int, list[Segments]] = {}
    for rule, sort in _sorts(own):
        matches = {code: match for code in used if (match := sort.fullmatch(texts[code]))}
        rows = np.flatnonzero(np.isin(ranges.name, list(matches))) if matches else np.zeros(0, dtype=np.int64)
        if unclosed is not None:
            rows = rows[ranges.end[rows] != unclosed]
        number_of = {code: int((match.groupdict().get("n") or "-1")[-_DIGITS:]) for code, match in matches.items()}
        number = np.array([number_of[code] for code in ranges.name[rows].tolist()], dtype=np.int64)
        for process, of in groups(ranges.process[rows]):
            windows = _windows(rule, ranges.start[rows[of]], ranges.end[rows[of]], number[of])
            found.setdefault(process, []).append(windows)
    return found


def _sorts(own: str) -> Iterator[tuple[StepRule, re.Pattern[str]]]:
    for rule in (StepRule.MARKER, StepRule.OPTIMIZER, StepRule.FORWARD):
        yield rule, re.compile(rf"{_DOMAIN}{re.escape(schema.STEP_PREFIX)}{rule.value}:(?P<n>\d+)")
        if own and rule is StepRule.MARKER:
            yield rule, re.compile(f"{_DOMAIN}(?:{own})")
    for pattern in _FRAMEWORKS:
        yield StepRule.FRAMEWORK, re.compile(f"{_DOMAIN}{pattern}", re.IGNORECASE)


def _windows(rule: StepRule, start: Int64s, end: Int64s, number: Int64s) -> Segments:
    """Order the ranges, and leave out those that begin inside another one: nested ones, and those of other threads."""
    order = np.lexsort((-end, start))
    start, end, number = start[order], end[order], number[order]
    outer = start >= np.concatenate([start[:1], np.maximum.accumulate(end)[:-1]])
    start, end, number = start[outer], end[outer], number[outer]
    counts_up = bool((number >= 0).all() and (np.diff(number) > 0).all())
    return Segments(rule, start, end, number if counts_up else np.arange(len(start)), np.ones(len(start), dtype=bool))


def segments_of(windows: Segments, launched: Int64s) -> Segments:
    """Return the steps of the device with these launches.

    Where most gaps between two windows hold launches, these belong to the loop, and a step reaches to the next window:
    some frameworks leave out the loading of data. Otherwise what lies between is other work.
    """
    end = windows.end
    gap = np.searchsorted(windows.begin, launched, side="right") - 1
    between = (gap >= 0) & (gap < len(end) - 1)
    filled = np.unique(gap[between & (launched >= end[gap])])
    if 2 * len(filled) > len(end) - 1:
        end = np.append(windows.begin[1:], end[-1])
    return segments.with_gaps(windows.rule, windows.begin, end, windows.step)
