"""The cases of a workload as points of a comparison: which axes vary, which one is compared, what the baseline is."""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import pandas as pd

from profpipe.findings import Axes
from profpipe.tables import ALL, Tables

#: The axis whose values are alternatives to each other, where a matrix has it.
COMPARED = "impl"

#: What a reader must know to compare with other figures, and so is told where only the workload's default sets it.
_ALWAYS_TOLD = ("dtype", "causal")


@dataclass(frozen=True)
class Layout:
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
        """The case's value on the compared axis, with what only some cases set: ``sparge topk=0.5``."""
        params = self.params[case]
        extra = self.options(params)
        named = [self._named(params[self.compare])] if self.compare is not None and self.compare in params else []
        return " ".join(named + extra)

    def options(self, params: Mapping[str, Any], besides: Iterable[str] = ()) -> list[str]:
        """``["topk=0.5"]``: what only some cases set, as this one has it; without the axes of ``besides``."""
        left = [axis for axis in self.extra if axis not in besides and params.get(axis) is not None]
        return [f"{axis}={shown(params[axis])}" for axis in left]

    def _named(self, value: Any) -> str:
        """``fa2``, and ``compile=true``: of an axis that is no implementation the bare value would say nothing."""
        return shown(value) if self.compare == COMPARED else f"{self.compare}={shown(value)}"

    def shape(self, case: str) -> Axes:
        """All other axes that vary."""
        params = self.params[case]
        return tuple((axis, params[axis]) for axis in self.varying if axis != self.compare and axis not in self.extra)

    def baseline_of(self, case: str) -> str | None:
        """The case that ``case`` is compared with: the same point with the baseline's values."""
        if not self.baseline:
            return None
        return self._by_point.get(self._point({**self.params[case], **self.baseline}))

    @functools.cached_property
    def _by_point(self) -> dict[tuple[str, ...], str]:
        """The first case of each point: a sweep of a thousand cases asks for the baseline of each of them."""
        found: dict[tuple[str, ...], str] = {}
        for case, params in self.params.items():
            found.setdefault(self._point(params), case)
        return found

    def _point(self, params: Mapping[str, Any]) -> tuple[str, ...]:
        axes = dict.fromkeys([*(axis for axis in self.varying if axis not in self.extra), *self.baseline])
        return tuple(shown(params.get(axis)) for axis in axes)

    @property
    def axes(self) -> tuple[str, ...]:
        """Every parameter that some case has."""
        return tuple(dict.fromkeys(axis for params in self.params.values() for axis in params))

    @functools.cached_property
    def extra(self) -> tuple[str, ...]:
        """Those of the varying axes that only some cases have: settings of what is compared, and no part of a shape."""
        return tuple(axis for axis in self.varying if self._lacked(axis) or self._is_null_of_some(axis))

    def _lacked(self, axis: str) -> bool:
        return any(axis not in params for params in self.params.values())

    def _is_null_of_some(self, axis: str) -> bool:
        """Whether ``topk: null`` says of the dense ones that it is not theirs, as its absence would.

        Where each of the compared values has null and numbers, null is a size like these; among words it is a word.
        """
        if self.compare is None or axis == self.compare:
            return False
        by_compared: dict[str, list[Any]] = {}
        for params in self.params.values():
            by_compared.setdefault(shown(params.get(self.compare)), []).append(params.get(axis))
        sets_none = [all(value is None for value in own) for own in by_compared.values()]
        every = [value for own in by_compared.values() for value in own if value is not None]
        return any(sets_none) and all(map(is_number, every))


def lay_out(tables: Tables, workload: str, declared: Mapping[str, Any], planned: Iterable[str] = ()) -> Layout:
    """The layout of ``workload``; ``declared`` is its entry in the resolved pipeline, empty where there is none.

    ``planned`` are its cases in their order: the tables have them as they were measured, in rounds and shuffled.
    """
    params = _params(tables, workload, planned)
    axes = list(dict.fromkeys(axis for point in params.values() for axis in point))
    varying = [axis for axis in axes if len({_key(p.get(axis, _Absent)) for p in params.values()}) > 1]
    own = {*(declared.get("params") or {}), *(declared.get("matrix") or {})}
    set_here = {*own, *_ALWAYS_TOLD} if own else set(axes)
    fixed = tuple(
        (axis, next(iter(params.values()))[axis]) for axis in axes if axis not in varying and axis in set_here
    )
    baseline = {axis: value for axis, value in (declared.get("baseline") or {}).items() if axis in axes}
    compare = next((axis for axis in (COMPARED, *baseline) if axis in varying), None)
    if compare is None and COMPARED in axes:
        compare = COMPARED
        fixed = tuple(pair for pair in fixed if pair[0] != COMPARED)
    return Layout(params, fixed, tuple(varying), compare, baseline)


class _Absent:
    """Stands for a parameter that a case does not have; None is a value like any other."""


def _params(tables: Tables, workload: str, planned: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Case id to its parameters, planned order first. What the id says comes before what the tables add."""
    cases = tables.cases[tables.cases["workload"] == workload]
    recorded: dict[str, dict[str, Any]] = {}
    for case, text in zip(cases["case"], cases["params"], strict=True):
        recorded.setdefault(case, {}).update(json.loads(text) if text else {})
    mentioned = dict.fromkeys([*recorded, *_mentioned(tables, workload)])
    every = list(dict.fromkeys([*(case for case in planned if case in mentioned), *mentioned]))
    named = [case for case in every if case] or every
    return _with_defaults({case: _ordered(parse_id(case), recorded.get(case, {})) for case in named})


def _with_defaults(params: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """What the workload fills in and no case's name has, also for cases whose process never wrote it down.

    That of a case which crashed, or was not begun, knows only what the pipeline file says of it.
    """
    named = {case: parse_id(case) for case in params}
    if not all(named.values()):
        return params
    mentioned = {axis for point in named.values() for axis in point}
    values: dict[str, dict[str, Any]] = {}
    for point in params.values():
        for axis in point.keys() - mentioned:
            values.setdefault(axis, {})[_key(point[axis])] = point[axis]
    alike = {axis: next(iter(seen.values())) for axis, seen in values.items() if len(seen) == 1}
    return {case: point | {axis: alike[axis] for axis in alike if axis not in point} for case, point in params.items()}


def _mentioned(tables: Tables, workload: str) -> Iterable[str]:
    for table in ALL:
        rows: pd.DataFrame = getattr(tables, table.name)
        yield from rows.loc[rows["workload"] == workload, "case"].drop_duplicates()


def _ordered(from_id: dict[str, Any], recorded: dict[str, Any]) -> dict[str, Any]:
    return {**from_id, **recorded}


def parse_id(case: str) -> dict[str, Any]:
    """``impl=fa2,seqlen=512`` taken apart; empty for a name that is no list of assignments."""
    parts = [part.partition("=") for part in re.split(r",(?=[^,=]+=)", case)]
    if not all(equals for _, equals, _ in parts):
        return {}
    return {unquote(axis): _scalar(unquote(text)) for axis, _, text in parts}


def _scalar(text: str) -> Any:
    if text in ("true", "false", "none", "null"):
        return {"true": True, "false": False}.get(text)
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text


def shown(value: Any) -> str:
    """A parameter's value as the pipeline file has it."""
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)


def _key(value: Any) -> str:
    return "absent" if value is _Absent else json.dumps(value, sort_keys=True, default=str)


def same(one: Any, other: Any) -> bool:
    """Whether two values of a parameter are one, also where one came by way of a case's name."""
    return shown(one) == shown(other)


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


#: Axes that mean a length.
_LENGTHS = re.compile(r"seq|len|context|token|total", re.IGNORECASE)


def running_axis(shapes: Iterable[Axes]) -> str | None:
    """The axis that a plot or a table runs over: a length where one varies, else the numbers with the most values."""
    values: dict[str, set[Any]] = {}
    for shape in shapes:
        for axis, value in shape:
            values.setdefault(axis, set()).add(value)
    counts = {axis: len(seen) for axis, seen in values.items() if len(seen) > 1 and all(map(is_number, seen))}
    return max(counts, key=lambda axis: (bool(_LENGTHS.search(axis)), counts[axis]), default=None)


def without(shape: Axes, axis: str) -> Axes:
    return tuple(pair for pair in shape if pair[0] != axis)


def in_words(shape: Axes) -> str:
    """``seqlen 2048, not causal``: a shape as people say it."""
    words = []
    for axis, value in shape:
        if isinstance(value, bool):
            words.append(axis if value else f"not {axis}")
        else:
            # `what` is what its value names: "forward", not "what forward".
            words.append(shown(value) if axis == "what" and not is_number(value) else f"{axis} {shown(value)}")
    return ", ".join(words)


def order(shapes: Iterable[Axes]) -> list[Axes]:
    """Shapes in the order of first appearance of their words, and of size of their numbers."""
    shapes = list(dict.fromkeys(shapes))
    words: dict[str, int] = {}
    for shape in shapes:
        for axis, value in shape:
            words.setdefault(f"{axis}={shown(value)}", len(words))

    def rank(shape: Axes) -> list[tuple[int, float]]:
        keyed = [(0, float(v)) if is_number(v) else (1, float(words[f"{a}={shown(v)}"])) for a, v in shape]
        # Words first: causal and not, forward and backward are read as blocks, with the sizes inside.
        return [key for key in keyed if key[0]] + [key for key in keyed if not key[0]]

    return sorted(shapes, key=rank)
