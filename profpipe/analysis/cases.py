"""The axes of a workload's cases: which vary, which one is compared, and which case is the baseline."""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from profpipe.analysis.grouping import grouped
from profpipe.analysis.kernels import rows
from profpipe.job import Case, as_text
from profpipe.results.schema import ALL, Tables

if TYPE_CHECKING:
    # Pydantic takes longer to load than a small file takes to read.
    from profpipe.config.models import Workload

#: The axis whose values are alternatives to each other, where a matrix has it.
COMPARED = "impl"

#: Parameters that are always shown, even where only the workload's default sets them.
_ALWAYS_SHOWN = ("dtype", "causal")

#: Parameters and their values.
Axes = tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class CaseAxes:
    """How the cases of one workload relate.

    ``params`` gives the parameters of each case id, in the order in which the cases were planned. ``varying`` are the
    axes with more than one value, ``compare`` is the one that is compared, ``baseline`` what a baseline case has.
    """

    params: Mapping[str, Mapping[str, Any]]
    fixed: Axes
    varying: tuple[str, ...]
    compare: str | None
    baseline: Mapping[str, Any]

    def variant(self, case: str) -> str:
        """Return the case's value on the compared axis and its optional parameters: ``sparge topk=0.5``.

        An axis other than the implementation has its name: ``compile=true``.
        """
        params = self.params[case]
        named = []
        if self.compare is not None and self.compare in params:
            value = as_text(params[self.compare])
            named.append(value if self.compare == COMPARED else f"{self.compare}={value}")
        return " ".join([*named, *self.options(params)])

    def options(self, params: Mapping[str, Any], drop_axes: Iterable[str] = ()) -> list[str]:
        """Return the parameters that only some cases set, except ``drop_axes``: ``["topk=0.5"]``."""
        left = [axis for axis in self.extra if axis not in drop_axes and params.get(axis) is not None]
        return [f"{axis}={as_text(params[axis])}" for axis in left]

    def shape(self, case: str) -> Axes:
        """Return the other axes that vary, with the case's values."""
        params = self.params[case]
        return tuple((axis, params[axis]) for axis in self.varying if axis != self.compare and axis not in self.extra)

    def baseline_of(self, case: str) -> str | None:
        """Return the case with the baseline's values and otherwise the same ones."""
        if not self.baseline:
            return None
        return self._first_cases.get(self._point({**self.params[case], **self.baseline}))

    @functools.cached_property
    def _first_cases(self) -> dict[tuple[str, ...], str]:
        """The first case of each combination of values; indexed because every case looks it up."""
        first_cases: dict[tuple[str, ...], str] = {}
        for case, params in self.params.items():
            first_cases.setdefault(self._point(params), case)
        return first_cases

    def _point(self, params: Mapping[str, Any]) -> tuple[str, ...]:
        axes = dict.fromkeys([*(axis for axis in self.varying if axis not in self.extra), *self.baseline])
        return tuple(as_text(params.get(axis)) for axis in axes)

    @functools.cached_property
    def extra(self) -> tuple[str, ...]:
        """The varying axes that only some cases have: options of what is compared, not part of a shape."""
        cases = self.params.values()
        return tuple(axis for axis in self.varying if any(axis not in p for p in cases) or self._is_null_of_some(axis))

    def _is_null_of_some(self, axis: str) -> bool:
        """Return True if ``topk: null`` means that a case has no such option.

        Where each compared value has both null and numbers, or where the values are words, null is a value like others.
        """
        if self.compare is None or axis == self.compare:
            return False
        by_compared = grouped((as_text(params.get(self.compare)), params.get(axis)) for params in self.params.values())
        sets_none = any(all(value is None for value in values) for values in by_compared.values())
        return sets_none and all(
            value is None or is_number(value) for values in by_compared.values() for value in values
        )


def find_axes(tables: Tables, declared: Workload | None, planned: Iterable[str] = ()) -> CaseAxes:
    """Return the layout of the workload in ``tables``; ``declared`` is its entry in the pipeline file.

    ``planned`` are its cases in order. The tables have them in the order of measurement, in shuffled rounds.
    """
    return _find_axes(_params(tables, planned), declared)


def comparisons(cases: Sequence[Case], workload: Workload) -> list[tuple[str, ...]]:
    """Return the ids of planned cases in groups: the report compares the cases of a group with each other.

    A group has the cases of one shape, and those that share their baseline. The order is that of ``cases``.
    """
    layout = _find_axes({case.id: dict(case.params) for case in cases}, workload)
    groups = grouped((without(layout.shape(case.id), *layout.baseline), case.id) for case in cases)
    return [tuple(group) for group in groups.values()]


def select_largest(cases: Sequence[Case], workload: Workload) -> tuple[str, ...]:
    """Return the ids of the largest of the cases that differ in the running axis alone; of all where no axis runs."""
    layout = _find_axes({case.id: dict(case.params) for case in cases}, workload)
    axis = running_axis(layout.shape(case.id) for case in cases)
    if axis is None:
        return tuple(case.id for case in cases)
    by_size = sorted((case.id for case in cases), key=lambda name: layout.params[name][axis])
    return tuple({(layout.variant(name), without(layout.shape(name), axis)): name for name in by_size}.values())


def _find_axes(params: Mapping[str, Mapping[str, Any]], declared: Workload | None) -> CaseAxes:
    axes = list(dict.fromkeys(axis for point in params.values() for axis in point))
    varying = [axis for axis in axes if len({axis in p and _key(p[axis]) for p in params.values()}) > 1]
    declared_axes = {*declared.params, *declared.matrix} if declared else set()
    set_here = {*declared_axes, *_ALWAYS_SHOWN} if declared_axes else set(axes)
    baseline = {axis: value for axis, value in ((declared and declared.baseline) or {}).items() if axis in axes}
    only = COMPARED if COMPARED in axes else None
    compare = next((axis for axis in (COMPARED, *baseline) if axis in varying), only)
    fixed = [axis for axis in axes if axis not in (*varying, compare) and axis in set_here]
    values = tuple((axis, next(iter(params.values()))[axis]) for axis in fixed)
    return CaseAxes(params, values, tuple(varying), compare, baseline)


def _params(tables: Tables, planned: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return the parameters of each case, planned cases first; those in the id come before others."""
    recorded: dict[str, dict[str, Any]] = {}
    for case, text in rows(tables.cases, "case", "params"):
        recorded.setdefault(case, {}).update(json.loads(text) if text else {})
    recorded_cases = dict.fromkeys(case for table in ALL for case in getattr(tables, table.name)["case"].unique())
    cases = dict.fromkeys([*(case for case in planned if case in recorded_cases), *recorded_cases])
    named = [case for case in cases if case] or list(cases)
    return _add_defaults({case: parse_id(case) | recorded.get(case, {}) for case in named})


def _add_defaults(params: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Add the workload's defaults that all recorded cases share to cases that crashed before recording them."""
    named = {case: parse_id(case) for case in params}
    if not all(named.values()):
        return params
    mentioned = {axis for point in named.values() for axis in point}
    values = grouped((axis, point[axis]) for point in params.values() for axis in point.keys() - mentioned)
    alike = {axis: seen[0] for axis, seen in values.items() if len(set(map(_key, seen))) == 1}
    return {case: point | {axis: alike[axis] for axis in alike if axis not in point} for case, point in params.items()}


def parse_id(case: str) -> dict[str, Any]:
    """Return the parameters in ``impl=fa2,seqlen=512``; empty for another kind of name."""
    parts = [part.partition("=") for part in re.split(r",(?=[^,=]+=)", case)]
    if not all(equals for _, equals, _ in parts):
        return {}
    return {unquote(axis): _scalar(unquote(text)) for axis, _, text in parts}


#: Characters of a number in a name. A longer one is beyond 64 bits, or no number that a person wrote.
_LONGEST_NUMBER = 25


def _scalar(text: str) -> Any:
    if text in ("true", "false", "none", "null"):
        return {"true": True, "false": False}.get(text)
    if len(text) > _LONGEST_NUMBER:
        return text
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text


def _key(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


#: Names of axes that are lengths.
_LENGTHS = re.compile(r"seq|len|context|token|total", re.IGNORECASE)


def running_axis(shapes: Iterable[Axes]) -> str | None:
    """Return the axis of plots and tables: a length if one varies, else the axis with the most numbers."""
    values = grouped(pair for shape in shapes for pair in shape)
    counts = {axis: len(set(seen)) for axis, seen in values.items() if all(map(is_number, seen)) and len(set(seen)) > 1}
    return max(counts, key=lambda axis: (bool(_LENGTHS.search(axis)), counts[axis]), default=None)


def without(shape: Axes, *axes: str | None) -> Axes:
    return tuple(pair for pair in shape if pair[0] not in axes)


#: Boolean axes that read well with "not" before them.
_ADJECTIVES = frozenset({"causal"})


def in_words(shape: Axes) -> str:
    """Return a shape as text: ``seqlen 2048, not causal, compile false``."""
    words = []
    for axis, value in shape:
        if isinstance(value, bool) and axis in _ADJECTIVES:
            words.append(axis if value else f"not {axis}")
        else:
            # "forward", not "what forward".
            words.append(as_text(value) if axis == "what" and not is_number(value) else f"{axis} {as_text(value)}")
    return ", ".join(words)


def order(shapes: Iterable[Axes]) -> list[Axes]:
    """Sort shapes by their words, in order of first appearance, then by their numbers."""
    shapes = list(dict.fromkeys(shapes))
    words: dict[str, int] = {}
    for shape in shapes:
        for axis, value in shape:
            words.setdefault(f"{axis}={as_text(value)}", len(words))

    def rank(shape: Axes) -> list[tuple[int, float]]:
        keyed = [(0, float(v)) if is_number(v) else (1, float(words[f"{a}={as_text(v)}"])) for a, v in shape]
        # Words first, so that causal and not causal are blocks with the sizes inside.
        return [key for key in keyed if key[0]] + [key for key in keyed if not key[0]]

    return sorted(shapes, key=rank)
