"""Find mistakes in the `tables` and `plots` of a pipeline file: words that its workloads do not know."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from profpipe.config import study_values
from profpipe.config.models import Pipeline, Plot, Table, Workload
from profpipe.config.study_values import Source
from profpipe.config.workload_files import readable_params, script_path
from profpipe.config.yaml import mapping_at, written_list
from profpipe.errors import did_you_mean
from profpipe.job import as_text

#: (path in the file, what is wrong, remedy), as in validation.
Mistake = tuple[str, str, str]

#: Words that rows and columns may hold in addition to axes and metrics.
_PLACES = ("value", "phase", "workload", "profiler")

#: Metrics that a comparison with a reference may write: error_rel_l1, cosine_dq.
_ERRORS = re.compile(r"(error_(max|mean|rel_l1|rmse)|cosine)(_\w+)?")

_NAME = re.compile(r"[A-Za-z]\w*")


def find_mistakes(pipeline: Pipeline, path: Path, written: Mapping[str, Any]) -> Iterator[Mistake]:
    """Yield the mistakes in the tables and plots of ``pipeline``, read from ``path``.

    ``written`` is the file before the environment and ``--set`` change it. A table may name a value that the file has
    and this run leaves out.
    """
    studies: Mapping[str, Sequence[Table | Plot]] = {"tables": pipeline.tables, "plots": pipeline.plots}
    for at, table in ((f"{part}.{i}", study) for part, group in studies.items() for i, study in enumerate(group)):
        for name in table.workload:
            if name not in pipeline.workloads:
                yield f"{at}.workload", f"there is no workload '{name}'.", did_you_mean(name, pipeline.workloads)
        if not table.workload and len(pipeline.workloads) > 1:
            yield at, "needs 'workload', for there are several.", f"Known: {', '.join(pipeline.workloads)}."
            continue
        chosen = {n: w for n, w in pipeline.workloads.items() if n in table.workload or not table.workload}
        if chosen:
            yield from _in_table(at, table, _Vocabulary.of(chosen, path, written))


_WORKLOAD_LIB: Final = Path(__file__).parents[1] / "workload_lib"


@dataclass(frozen=True)
class _Vocabulary:
    """The words that a table of some workloads may use: axes with their values, and metrics."""

    axes: Mapping[str, Sequence[Any]]
    metrics: frozenset[str]

    @classmethod
    def of(cls, workloads: Mapping[str, Workload], path: Path, written: Mapping[str, Any]) -> _Vocabulary:
        axes: dict[str, list[Any]] = {}
        metrics = frozenset(study_values.METRICS)
        for name, workload in workloads.items():
            for axis, values in _values(workload, path, mapping_at(written, "workloads", name)):
                axes.setdefault(axis, []).extend(values)
            script = script_path(workload.script, path) if workload.script else None
            metrics |= _texts(script) if script else frozenset()
        return cls(axes, metrics - axes.keys())

    def is_metric(self, word: str) -> bool:
        """Return True if a case may have a metric ``word``. The prefix ``metric.`` allows every name."""
        return word.startswith("metric.") or word in self.metrics or bool(_ERRORS.fullmatch(word))


def _values(workload: Workload, path: Path, written: Mapping[str, Any]) -> Iterator[tuple[str, list[Any]]]:
    """Yield each axis with the values of its cases, in this run and in the file as written."""
    points = [readable_params(workload.script, path), workload.params, *workload.include]
    yield from ((axis, [value]) for point in points for axis, value in point.items())
    yield from workload.matrix.items()
    for part in ("params", "matrix"):
        yield from ((str(axis), written_list(value) or []) for axis, value in mapping_at(written, part).items())


@functools.lru_cache(maxsize=64)
def _texts(script: Path) -> frozenset[str]:
    """Return every name among the string literals of a workload's file, of the parts (``_part.py``) that it names, and
    of the modules that it imports from ``profpipe.workload_lib``.

    The names of its metrics are among them. They are read from the syntax tree, so no code of the user runs.
    """
    try:
        tree = ast.parse(script.read_text(encoding="utf-8"), filename=str(script))
    except (OSError, SyntaxError, ValueError):
        return frozenset()
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    parts = [script.with_name(text) for text in texts if re.fullmatch(r"_\w+\.py", text)]
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    if script.parent != _WORKLOAD_LIB:
        shared = [alias.name for node in imports if node.module == "profpipe.workload_lib" for alias in node.names]
        parts += [_WORKLOAD_LIB / f"{name}.py" for name in shared]
    names = frozenset(text for text in texts if _NAME.fullmatch(text))
    return names.union(*(_texts(part) for part in parts if part != script))


def _in_table(at: str, table: Table | Plot, known: _Vocabulary) -> Iterator[Mistake]:
    yield from _in_values(at, table, known)
    yield from _in_places(at, table, known)
    for axis, values in table.where.items():
        if axis not in known.axes:
            if axis != "workload" and not known.is_metric(axis):
                yield f"{at}.where", f"'{axis}' is no axis and no metric.", _nearest(axis, known.axes)
            continue
        for value in values:
            texts = [as_text(other) for other in known.axes[axis]]
            if as_text(value) not in texts:
                yield f"{at}.where.{axis}", f"no case has {as_text(value)}.", did_you_mean(as_text(value), texts)
    yield from _in_units(at, table)


def _in_places(at: str, table: Table | Plot, known: _Vocabulary) -> Iterator[Mistake]:
    places = table.axes
    # A plot draws one picture for each value.
    reserved = _PLACES if isinstance(table, Table) else tuple(word for word in _PLACES if word != "value")
    for part, words in places.items():
        for word in words:
            if word not in known.axes and word not in reserved and not known.is_metric(word):
                yield f"{at}.{part}", f"'{word}' is no axis and no metric.", _nearest(word, [*known.axes, *reserved])
    (first, words), (second, others) = places.items()
    if table.profiler and "profiler" in (*words, *others):
        yield f"{at}.profiler", "names one profiler, and 'profiler' is among the axes.", "Keep one of the two."
    for word in dict.fromkeys(word for word in words if word in others):
        yield f"{at}.{second}", f"'{word}' is also under {first}.", "Keep one of the two."
    if "phase" in (*words, *others) and not table.phase:
        yield at, "has 'phase' among its axes and names none.", "For example: phase: [forward, backward]"


def _in_values(at: str, table: Table | Plot, known: _Vocabulary) -> Iterator[Mistake]:
    values = [study_values.parse_value(word) for word in table.value]
    for value in values:
        if value.source is Source.METRIC and value.name in known.axes:
            yield f"{at}.value", f"'{value.name}' is an axis.", "Put it among rows or columns."
        elif value.source is Source.METRIC and not known.is_metric(value.name):
            remedy = _nearest(value.name, study_values.known_names(), known.metrics)
            yield f"{at}.value", f"'{value.name}' is not known.", remedy
        elif value.source is Source.KERNELS and table.profiler == "plain":
            yield f"{at}.profiler", f"plain sees no kernels, and '{value.name}' needs them.", "Leave it out, or: nsys."
        elif value.name in study_values.OF_SINGLE_CALLS and table.profiler not in (None, "plain"):
            yield f"{at}.profiler", f"only plain times single calls, which '{value.name}' needs.", "Leave it out."
    without_phase = [value.name for value in values if value.source is not Source.KERNELS] if table.phase else []
    if table.phase and len(without_phase) == len(values):
        yield f"{at}.phase", "narrows values of kernels, and there is none.", "For example: value: kernels.time"
    for name in without_phase:
        yield f"{at}.value", f"'{name}' is not known by phase.", "Give it a separate table."


def _in_units(at: str, table: Table | Plot) -> Iterator[Mistake]:
    stored = [study_values.parse_value(word).unit for word in table.value]
    for unit in table.unit:
        fitting = [name for name, units in study_values.UNITS.items() if unit in units]
        if not fitting:
            every = [name for units in study_values.UNITS.values() for name in units]
            yield f"{at}.unit", f"'{unit}' is no unit.", did_you_mean(unit, every)
        elif all(stored) and not set(fitting) & set(stored):
            yield f"{at}.unit", f"nothing here is measured in {unit}.", ""


def _nearest(word: str, likely: Iterable[str], further: Iterable[str] = ()) -> str:
    """Return a remedy: the nearest word, or the prefix that allows an unknown metric."""
    remedy = did_you_mean(word, [*likely, *further])
    if remedy.startswith("Did you mean"):
        return remedy
    return f"{did_you_mean(word, likely)} A metric that its workload names otherwise: metric.{word}".strip()
