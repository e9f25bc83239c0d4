"""What is wrong in a pipeline file's `tables` and `plots`: words that stand for nothing in its workloads."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from profpipe import asked
from profpipe.document import written_list
from profpipe.errors import did_you_mean
from profpipe.pipeline import Pipeline, Plot, Table, Workload
from profpipe.scripts import declared_params, script_path

#: (path in the file, what is wrong, what to do), as in mistakes.
Mistake = tuple[str, str, str]

#: What may stand among rows and columns besides axes and metrics.
_PLACES = ("value", "phase", "workload")

#: Names that every comparison with a reference may write: error_rel_l1, cosine_dq.
_ERRORS = re.compile(r"(error_(max|mean|rel_l1|rmse)|cosine)(_\w+)?")

_NAME = re.compile(r"[A-Za-z]\w*")


def found(pipeline: Pipeline, path: Path, written: Mapping[str, Any]) -> Iterator[Mistake]:
    """The mistakes in the tables and plots of ``pipeline``, read from ``path``.

    ``written`` is the file without the environment and ``--set``: what is a value there is none of these mistakes when
    a run leaves it out.
    """
    for at, table in _entries(pipeline):
        for name in table.workload:
            if name not in pipeline.workloads:
                yield f"{at}.workload", f"there is no workload '{name}'.", did_you_mean(name, pipeline.workloads)
        if not table.workload and len(pipeline.workloads) > 1:
            yield at, "needs 'workload', for there are several.", f"Known: {', '.join(pipeline.workloads)}."
            continue
        chosen = {n: w for n, w in pipeline.workloads.items() if n in table.workload or not table.workload}
        if chosen:
            yield from _in_table(at, table, _Known.of(chosen, path, written))


def _entries(pipeline: Pipeline) -> Iterator[tuple[str, Table | Plot]]:
    """Each with its path in the file."""
    for part in ("tables", "plots"):
        yield from ((f"{part}.{i}", entry) for i, entry in enumerate(getattr(pipeline, part)))


def _places(entry: Table | Plot) -> dict[str, list[str]]:
    """The axes of an entry by the key that they stand under."""
    if isinstance(entry, Table):
        return {"rows": entry.rows, "columns": entry.columns}
    return {"over": [entry.over], "lines": entry.lines}


class _Known:
    """The words that a table of certain workloads may use: their axes with the values, and their metrics."""

    def __init__(self, axes: Mapping[str, Sequence[Any]], metrics: frozenset[str]) -> None:
        self.axes, self.metrics = axes, metrics

    @classmethod
    def of(cls, workloads: Mapping[str, Workload], path: Path, written: Mapping[str, Any]) -> _Known:
        axes: dict[str, list[Any]] = {}
        metrics: frozenset[str] = frozenset(asked.METRICS)
        for name, workload in workloads.items():
            script = script_path(workload.script, path) if workload.script else None
            in_file = _mapping(written.get("workloads")).get(name)
            for axis, values in _values(workload, _params(script), in_file):
                axes.setdefault(axis, []).extend(values)
            metrics |= _texts(script) if script else frozenset()
        return cls(axes, metrics - axes.keys())

    def is_metric(self, word: str) -> bool:
        """Whether a case may have a metric of this name; ``metric.`` says that it does, whatever is known of it."""
        return word.startswith("metric.") or word in self.metrics or bool(_ERRORS.fullmatch(word))


def _params(script: Path | None) -> Mapping[str, Any]:
    try:
        return (declared_params(script) if script else None) or {}
    except (SyntaxError, ValueError):
        return {}  # told of the workload itself


def _values(workload: Workload, declared: Mapping[str, Any], written: object) -> Iterator[tuple[str, list[Any]]]:
    """Each axis with the values that a case may have on it: in this run, and in the file as it was written."""
    for axis, default in declared.items():
        yield axis, [default]
    for part in ("params", "matrix"):
        yield from ((a, value if isinstance(value, list) else [value]) for a, value in getattr(workload, part).items())
        for axis, value in _mapping(_mapping(written).get(part)).items():
            yield str(axis), written_list(value) or []
    for point in workload.include:
        yield from ((axis, [value]) for axis, value in point.items())


def _mapping(node: object) -> Mapping[str, Any]:
    return node if isinstance(node, dict) else {}


@functools.lru_cache(maxsize=64)
def _texts(script: Path) -> frozenset[str]:
    """Every name that stands as a text in a workload's file, or in the parts (``_part.py``) that it names there.

    Its metrics are among them. They are read from the syntax tree, as the parameters are: nothing of the user's is run.
    """
    try:
        tree = ast.parse(script.read_text(encoding="utf-8"), filename=str(script))
    except (OSError, SyntaxError, ValueError):
        return frozenset()
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    parts = [script.with_name(text) for text in texts if re.fullmatch(r"_\w+\.py", text)]
    own = frozenset(text for text in texts if _NAME.fullmatch(text))
    return own.union(*(_texts(part) for part in parts if part != script))


# --- one table -------------------------------------------------------------------------------------------------------


def _in_table(at: str, table: Table | Plot, known: _Known) -> Iterator[Mistake]:
    yield from _in_values(at, table, known)
    yield from _in_places(at, table, known)
    for axis, values in table.where.items():
        if axis not in known.axes:
            if axis != "workload" and not known.is_metric(axis):
                yield f"{at}.where", f"'{axis}' is no axis and no metric.", _nearest(axis, known.axes)
            continue
        for value in values:
            if not any(_shown(value) == _shown(other) for other in known.axes[axis]):
                yield f"{at}.where.{axis}", f"no case has {_shown(value)}.", _choice(value, known.axes[axis])
    yield from _in_units(at, table)


def _in_places(at: str, table: Table | Plot, known: _Known) -> Iterator[Mistake]:
    places = _places(table)
    # In a plot each value is a picture of its own.
    reserved = _PLACES if isinstance(table, Table) else tuple(word for word in _PLACES if word != "value")
    for part, words in places.items():
        for word in words:
            if word not in known.axes and word not in reserved and not known.is_metric(word):
                yield f"{at}.{part}", f"'{word}' is no axis and no metric.", _nearest(word, [*known.axes, *reserved])
    (first, one), (second, other) = places.items()
    for word in dict.fromkeys(word for word in one if word in other):
        yield f"{at}.{second}", f"'{word}' is also under {first}.", "Keep one of the two."
    if "phase" in (*one, *other) and not table.phase:
        yield at, "has 'phase' among its axes and names none.", "For example: phase: [forward, backward]"


def _in_values(at: str, table: Table | Plot, known: _Known) -> Iterator[Mistake]:
    wanted = [asked.asked(word) for word in table.value]
    for value in wanted:
        if value.of == "metric" and not known.is_metric(value.word) and value.word not in known.axes:
            yield f"{at}.value", f"'{value.word}' is not known.", _nearest(value.word, asked.words(), known.metrics)
        elif value.of == "metric" and value.word in known.axes:
            yield f"{at}.value", f"'{value.word}' is an axis.", "Put it among rows or columns."
        elif value.of == "kernels" and table.profiler == "plain":
            yield f"{at}.profiler", f"plain sees no kernels, and '{value.word}' needs them.", "Leave it out, or: nsys."
        elif value.word in ("p10", "p90") and table.profiler not in (None, "plain"):
            yield f"{at}.profiler", f"only plain times single calls, which '{value.word}' needs.", "Leave it out."
    if table.phase and not any(value.of == "kernels" for value in wanted):
        yield f"{at}.phase", "narrows values of kernels, and there is none.", "For example: value: kernels.time"
    for value in wanted:
        if table.phase and value.of != "kernels":
            yield f"{at}.value", f"'{value.word}' is not known by phase.", "Give it a table of its own."


def _in_units(at: str, table: Table | Plot) -> Iterator[Mistake]:
    stored = [asked.asked(word).unit for word in table.value]
    for unit in table.unit:
        fitting = [name for name, units in asked.UNITS.items() if unit in units]
        if not fitting:
            every = [name for units in asked.UNITS.values() for name in units]
            yield f"{at}.unit", f"'{unit}' is no unit.", did_you_mean(unit, every)
        elif all(stored) and not set(fitting) & set(stored):
            yield f"{at}.unit", f"nothing here is measured in {unit}.", ""


def _nearest(word: str, likely: Iterable[str], further: Iterable[str] = ()) -> str:
    """The word that was meant; where nothing is near, how a metric is named that nothing here tells of."""
    said = did_you_mean(word, [*likely, *further])
    if said.startswith("Did you mean"):
        return said
    return f"{did_you_mean(word, likely)} A metric that its workload names otherwise: metric.{word}".strip()


def _choice(value: Any, values: Iterable[Any]) -> str:
    return did_you_mean(_shown(value), map(_shown, values))


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)
