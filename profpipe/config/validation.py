"""Find the mistakes in a pipeline file: where, what, and the nearest correct word."""

from __future__ import annotations

import ast
import functools
import itertools
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, Final, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from profpipe import plugins
from profpipe.config import quantities
from profpipe.config.models import OF_SCRIPTS, Pipeline, Plot, Table, Workload
from profpipe.config.quantities import Source, items_of, parameters
from profpipe.config.yaml import mapping_at, place_of, shown, written_list
from profpipe.errors import ConfigError, did_you_mean
from profpipe.job import Scalar, as_text

#: pydantic names Python's types, but the user wrote YAML.
_PLAIN_WORDS: Final = {
    "dict_type": ("is not a mapping", "Write it as {name: value}."),
    "model_type": ("is not a mapping", "Write it as {name: value}."),
    "list_type": ("is not a list", "Write it as [a, b]."),
    "tuple_type": ("is not a list", "Write it as [a, b]."),
    "string_type": ("is not text", "Put it in quotes."),
    "int_type": ("is not a whole number", ""),
    "int_parsing": ("is not a whole number", ""),
    "int_from_float": ("is not a whole number", ""),
    "int_parsing_size": ("is too large", ""),
    "float_type": ("is not a number", ""),
    "float_parsing": ("is not a number", ""),
    "bool_type": ("is neither true nor false", ""),
    "bool_parsing": ("is neither true nor false", ""),
    "finite_number": ("is not a finite number", ""),
    "greater_than": ("must be above {gt:g}", ""),
    "greater_than_equal": ("must be at least {ge:g}", ""),
    "less_than": ("must be below {lt:g}", ""),
    "less_than_equal": ("must be at most {le:g}", ""),
    "string_too_short": ("is empty", ""),
    "invalid_key": ("is no name", "Put it in quotes: YAML reads on, off, yes and no as true and false."),
    "too_short": ("is empty", ""),
    "string_pattern_mismatch": (
        "is no name",
        "A name has letters, digits, '.', '_' and '-', and begins with one of the first two.",
    ),
}


#: (path in the file, what is wrong, remedy).
Mistake = tuple[str, str, str]


_MOST_MISTAKES: Final = 50
#: Points of one matrix, those that are excluded too.
_MOST_POINTS: Final = 100_000


def as_error(
    where: str, mistakes: Sequence[Mistake], file: Path | None = None, overrides: Sequence[str] = ()
) -> ConfigError:
    """Return one error with a line for a mistake in the pipeline file ``where``.

    It names the line of ``file``, except where one of the ``overrides`` (``KEY=VALUE``) gave the value.
    """
    keys = {override.partition("=")[0].strip().rpartition(".")[2] for override in overrides}
    first, *rest = [
        ConfigError(place_of(where, at, None if keys & {*at.split(".")} else file, _quoted_word(what)), what, remedy)
        for at, what, remedy in mistakes
    ]
    if rest:
        first.args = ("\n".join(str(error) for error in (first, *rest)),)
    return first


def _quoted_word(text: str) -> str:
    """Return the first word in quotes, such as an unknown key; empty if there is none."""
    match = re.search(r"'([^']+)'", text)
    return match[1] if match else ""


def form_mistakes(error: ValidationError) -> list[Mistake]:
    """Return the places where the document does not have the form of a pipeline file.

    A mistake that a workload has only from `defaults` is returned once.
    """
    # To look for the nearest word takes a millisecond, and a thousand mistakes are more than a person reads.
    entries = error.errors(include_url=False)
    mistakes = list(dict.fromkeys(map(_explain, entries[:_MOST_MISTAKES])))
    if len(entries) > _MOST_MISTAKES:
        mistakes.append(("", f"{len(entries) - _MOST_MISTAKES:,} more mistakes.", ""))
    shared = {(at.removeprefix("defaults."), what) for at, what, _ in mistakes if at.startswith("defaults.")}
    return [m for m in mistakes if (re.sub(r"^workloads\.[^.]+\.", "", m[0]), m[1]) not in shared]


def ignored_settings(workloads: Mapping[str, Any]) -> list[Mistake]:
    """Return the settings of the harness in workloads with a command. ``workloads`` are without the defaults."""
    return [
        (f"workloads.{name}.{key}", "has no effect on a command, which the harness does not run.", _OWN_LOOP[key])
        for name, workload in workloads.items()
        if isinstance(workload, dict) and "command" in workload
        for key in OF_SCRIPTS
        if key in workload
    ]


_OWN_LOOP: Final = {
    "warmup": "Remove it. `steps: {warmup: 5}` leaves out the first steps of the program.",
    "timing": "Remove it. `repeats: 5` starts five processes of each case, interleaved.",
}


def check_points(pipeline: Pipeline, where: str) -> None:
    """Raise ConfigError for a matrix with more points than a run could ever measure."""
    for name, workload in pipeline.workloads.items():
        points = math.prod(len(values) for values in workload.matrix.values())
        if points > _MOST_POINTS:
            place = f"{where}: workloads.{name}.matrix"
            raise ConfigError(place, f"has {points:,} points, more than {_MOST_POINTS:,}.", "Shorten its lists.")


def unknown_names(pipeline: Pipeline, path: Path, written: Mapping[str, Any]) -> list[Mistake]:
    """Return the names in a well-formed pipeline that stand for nothing.

    ``path`` is the pipeline file, ``written`` its content before the environment and ``--set`` change it.
    """
    in_workloads = [m for name, workload in pipeline.workloads.items() for m in _check_workload(name, workload, path)]
    return in_workloads + list(_check_studies(pipeline, path, written))


def _explain(entry: ErrorDetails) -> Mistake:
    """Return the mistake that one of pydantic's errors describes."""
    location, kind, value = entry["loc"], entry["type"], entry["input"]
    at = ".".join(str(part) for part in location if part != "[key]")
    if kind == "extra_forbidden":
        return ".".join(map(str, location[:-1])), f"unknown key '{location[-1]}'.", _nearest_key(location)
    if kind == "missing":
        return at, "is missing.", "Add 'version: 1'." if at == "version" else ""
    if kind == "literal_error":
        # pydantic gives the choices only as text: 'plain', 'torch' or 'nsys'
        choices = re.findall(r"'([^']+)'|(\d+)", entry["ctx"]["expected"])
        return at, f"{value!r} is not known.", did_you_mean(str(value), map("".join, choices))
    text = repr(value) if len(repr(value)) <= 60 else f"{value!r:.57}..."
    if len(location) > 1 and location[-1] in ("str", "int", "float", "bool"):
        # pydantic reports all types that a single value may have.
        return at.rpartition(".")[0], f"is not a single value (got {text}).", ""
    what, remedy = _PLAIN_WORDS.get(kind, (entry["msg"].removeprefix("Value error, "), ""))
    if kind == "value_error" and isinstance(value, Mapping):
        return at, f"{what}.", remedy  # a sentence about several keys
    return at, f"{what.format(**entry.get('ctx', {}))} (got {'nothing' if value is None else text}).", remedy


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the models inside an annotation such as ``Mapping[str, Workload]``."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) is not None or isinstance(annotation, UnionType):
        for inner in get_args(annotation):
            yield from _models(inner)


def _nearest_key(location: Sequence[int | str]) -> str:
    """Return a remedy for the unknown key at ``location``."""
    model: type[BaseModel] = Pipeline
    for part in location[:-1]:
        if isinstance(part, str) and part in model.model_fields:
            model = next(_models(model.model_fields[part].annotation), model)
    return did_you_mean(str(location[-1]), {field.alias or name for name, field in model.model_fields.items()})


def _check_workload(name: str, workload: Workload, path: Path) -> Iterator[Mistake]:
    at = f"workloads.{name}"
    if workload.script is not None:
        yield from _check_script(at, workload, workload.script, path)
        yield from _check_script_env(at, workload)
    for axis in workload.matrix:
        if axis in workload.params:
            yield f"{at}.matrix.{axis}", "is also in params.", "Keep one of the two."
    if workload.cwd is not None and not (path.resolve().parent / workload.cwd).resolve().is_dir():
        yield f"{at}.cwd", f"there is no folder '{workload.cwd}'.", f"It is relative to {path.resolve().parent}."
    yield from _check_items(f"{at}.items_per_step", workload)
    yield from _check_case_names(at, workload)
    if workload.command is not None:
        yield from _check_command(name, workload, path)
        yield from _check_flags(f"{at}.flag", workload)
    axes = set(workload.matrix)
    baseline = (workload.baseline or {},)
    for part, points in (("exclude", workload.exclude), ("include", workload.include), ("baseline", baseline)):
        allowed = axes | set(workload.params) if part == "include" else axes
        for word in dict.fromkeys(key for point in points for key in point if key not in allowed):
            yield f"{at}.{part}", f"'{word}' is not an axis of the matrix.", did_you_mean(word, allowed)
    for axis, value in (workload.baseline or {}).items():
        if axis in axes and value not in (values := _values(workload, axis)):
            yield f"{at}.baseline", f"{axis}={value} is not in the matrix.", did_you_mean(str(value), map(str, values))


def _check_case_names(at: str, workload: Workload) -> Iterator[Mistake]:
    """Yield the values of an axis, such as 1 and "1", whose cases would have the same name."""
    for axis in dict.fromkeys(name for point in (workload.matrix, *workload.include) for name in point):
        named: dict[str, Scalar] = {}
        for value in _values(workload, axis):
            other = named.setdefault(as_text(value), value)
            if type(other) is not type(value):
                what = f"{json.dumps(other)} and {json.dumps(value)} would be cases of one name."
                part = "matrix" if axis in workload.matrix else "include"
                yield f"{at}.{part}.{axis}", what, "Keep one of the two, or spell one otherwise."


def _values(workload: Workload, axis: str) -> list[Scalar]:
    return [*workload.matrix.get(axis, ()), *(point[axis] for point in workload.include if axis in point)]


def _check_command(name: str, workload: Workload, path: Path) -> Iterator[Mistake]:
    """Yield the placeholders in a command and its ``env`` that are not parameters, and the axes without a placeholder.

    Other braces belong to the command (JSON, awk's ``{print}``). If an axis is not used at all, so that its cases would
    all be the same, braces as the value of an option count as a placeholder.
    """
    at, command = f"workloads.{name}.command", " ".join(workload.command or ())
    declared = {*workload.matrix, *workload.params}
    texts = " ".join((command, *workload.env.values()))
    unused = [axis for axis in _varying(workload) if f"{{{axis}}}" not in texts]
    of_options = {word for pair in itertools.pairwise(workload.command or ()) for word in _option_values(*pair)}
    has_unknown = False
    for word in dict.fromkeys(re.findall(r"\{([A-Za-z_]\w*)\}", texts)):
        if word in declared:
            continue
        if (remedy := did_you_mean(word, declared)).startswith("Did you mean"):
            place = at if f"{{{word}}}" in command else f"workloads.{name}.env"
            yield place, f"there is no parameter '{word}'.", remedy
            has_unknown = True
        elif unused and word in of_options:
            what = f"there is no parameter '{word}', and the axis '{unused[0]}' is used nowhere."
            yield at, what, f"Write {{{unused[0]}}} where its value belongs, or take it out of the matrix."
            has_unknown = True
    for axis in () if has_unknown else unused:
        part = "matrix" if axis in workload.matrix else "include"
        what = f"the command never uses '{axis}', so its values would be the same case."
        remedy = f"Write {{{axis}}} where its value belongs. To repeat a case, set `repeats: 5`."
        yield f"workloads.{name}.{part}.{axis}", what, remedy


def _varying(workload: Workload) -> list[str]:
    """Return the names whose values make the cases."""
    return list(dict.fromkeys([*workload.matrix, *(axis for point in workload.include for axis in point)]))


def _check_items(at: str, workload: Workload) -> Iterator[Mistake]:
    """Yield the names in ``items_per_step`` that are no parameters, and the first case that it has no number for."""
    if not isinstance(expression := workload.items_per_step, str):
        return
    names, declared = parameters(expression), {*_varying(workload), *workload.params}
    if unknown := [name for name in names if name not in declared]:
        yield from ((at, f"there is no parameter '{name}'.", did_you_mean(name, declared)) for name in unknown)
        return
    axes = [name for name in names if name in workload.matrix]
    points = [dict(zip(axes, values, strict=True)) for values in itertools.product(*map(workload.matrix.get, axes))]  # type: ignore[arg-type]
    for point in [*points, *workload.include]:
        try:
            items_of(expression, {**workload.params, **point})
        except ValueError as error:
            yield at, f"{error}.", "Each case needs a number above 0: write one, or arithmetic on its parameters."
            return


def _check_flags(at: str, workload: Workload) -> Iterator[Mistake]:
    """Yield the flags that no parameter has, and the values that have no words."""
    declared = {*_varying(workload), *workload.params}
    for name in workload.flag:
        if name not in declared:
            yield f"{at}.{name}", "is no parameter of this workload.", did_you_mean(name, declared)
            continue
        values = [*_values(workload, name), *([workload.params[name]] if name in workload.params else [])]
        for value in dict.fromkeys(as_text(value) for value in values if workload.flag_words(name, value) is None):
            what = f"has no words for {name}={value}."
            yield f"{at}.{name}", what, f"Write {{{value}: --option, ...}}, or {{{value}: null}} for no word."


def _check_script_env(at: str, workload: Workload) -> Iterator[Mistake]:
    """Yield the placeholders in variables that all cases of a process share."""
    for name, value in workload.env.items():
        for parameter in (*workload.matrix, *workload.params):
            if f"{{{parameter}}}" in value:
                what = f"{{{parameter}}} stays as it is: the cases of a script share their process and its environment."
                yield f"{at}.env.{name}", what, "Take the parameter from params in build, or use `command:`."


def _option_values(before: str, word: str) -> list[str]:
    """Return the name in braces that is the whole value of an option: ``--batch {size}``, ``--batch={size}``."""
    option, _, value = word.partition("=")
    alone = value if option.startswith("-") else word if before.startswith("-") else ""
    return re.findall(r"^\{([A-Za-z_]\w*)\}$", alone)


def _check_script(at: str, workload: Workload, script: str, path: Path) -> Iterator[Mistake]:
    script_file = plugins.script_path(script, path)
    if script_file is None:
        stems = [file.stem for file in plugins.files("workloads", "*.py", path.resolve().parent)]
        yield f"{at}.script", f"there is no workload '{script}'.", did_you_mean(script.removesuffix(".py"), stems)
        return
    try:
        declared = plugins.declared_params(script_file)
        plugins.declared_needs(script_file)
        problem = plugins.find_build_problem(script_file)
    except (SyntaxError, ValueError) as error:
        yield f"{at}.script", f"{shown(script_file)}: {error}.", "PARAMS and NEEDS_GPU must be literal dicts."
        return
    if problem is not None:
        what, build_line = problem
        place = f"{shown(script_file)}:{build_line}" if build_line else shown(script_file)
        remedy = f"Define build(params), or run the file as a program: command: [python, {script}]"
        yield f"{at}.script", f"{place} {what}.", remedy
        return
    if declared is None:
        return
    points = [("params", workload.params), *(("matrix", {k: v}) for k, vs in workload.matrix.items() for v in vs)]
    points += [("include", point) for point in workload.include]
    unknown: dict[str, str] = {}
    for part, point in points:
        for word, value in point.items():
            if word not in declared:
                unknown.setdefault(word, part)
            elif expected := _wrong_type(declared[word], value):
                yield f"{at}.{part}.{word}", f"{value!r} is not {expected}.", f"The default is {declared[word]!r}."
    for word, part in unknown.items():
        yield f"{at}.{part}", f"unknown key '{word}'.", did_you_mean(word, declared)


def _wrong_type(default: object, value: object) -> str | None:
    """Return the type that the parameter's default demands, or None if ``value`` has it.

    A text default allows any value: seqlens='128,128' looks like a number when it holds only one.
    """
    expected: dict[type, tuple[tuple[type, ...], str]] = {
        bool: ((bool,), "true or false"),
        int: ((int,), "a whole number"),
        float: ((int, float), "a number"),
    }
    types, name = expected.get(type(default), ((), ""))
    return None if value is None or not types or type(value) in types else name


# --- tables and plots: words that their workloads do not know ---------------------------------------------------------

#: Words that rows and columns may hold in addition to axes and metrics.
_PLACES = ("value", "phase", "workload", "profiler")

#: Metrics that a comparison with a reference may write: error_rel_l1, cosine_dq.
_ERRORS = re.compile(r"(error_(max|mean|rel_l1|rmse)|cosine)(_\w+)?")

_NAME = re.compile(r"[A-Za-z]\w*")


def _check_studies(pipeline: Pipeline, path: Path, written: Mapping[str, Any]) -> Iterator[Mistake]:
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
            yield from _check_table(at, table, _Words(chosen, path, written))


_WORKLOAD_LIB: Final = Path(__file__).parents[1] / "workload_lib"


class _Words:
    """The words that a table of some workloads may use: axes with their values, and metrics."""

    def __init__(self, workloads: Mapping[str, Workload], path: Path, written: Mapping[str, Any]) -> None:
        #: In this run, and in the file before the environment and ``--set`` changed it.
        self.axes: dict[str, list[Any]] = {}
        metrics = frozenset(quantities.METRICS)
        for name, workload in workloads.items():
            declared = plugins.readable_params(workload.script, path)
            points = [{axis: [value]} for point in (declared, workload.params, *workload.include)
                      for axis, value in point.items()]  # fmt: skip
            in_file = [mapping_at(written, "workloads", name, part) for part in ("params", "matrix")]
            points += [{str(axis): written_list(value) or []} for part in in_file for axis, value in part.items()]
            for axis, values in itertools.chain.from_iterable(point.items() for point in (*points, workload.matrix)):
                self.axes.setdefault(axis, []).extend(values)
            script = plugins.script_path(workload.script, path) if workload.script else None
            metrics |= _texts(script) if script else frozenset()
        self._metrics = metrics - self.axes.keys()

    def is_metric(self, word: str) -> bool:
        """Return True if a case may have a metric ``word``. The prefix ``metric.`` allows any name."""
        return word.startswith("metric.") or word in self._metrics or bool(_ERRORS.fullmatch(word))

    def nearest(self, word: str, likely: Iterable[str], with_metrics: bool = False) -> str:
        """Return a remedy: the nearest word, or the prefix that allows an unknown metric."""
        remedy = did_you_mean(word, [*likely, *(self._metrics if with_metrics else ())])
        if remedy.startswith("Did you mean"):
            return remedy
        return f"{did_you_mean(word, likely)} A metric that its workload names otherwise: metric.{word}".strip()


@functools.lru_cache(maxsize=64)
def _texts(script: Path) -> frozenset[str]:
    """Return the names among the string literals of a workload's file, of the parts (``_part.py``) that it names, and
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


def _check_table(at: str, table: Table | Plot, vocabulary: _Words) -> Iterator[Mistake]:
    yield from _check_values(at, table, vocabulary)
    yield from _check_places(at, table, vocabulary)
    for axis, values in table.where.items():
        if axis not in vocabulary.axes:
            if axis != "workload" and not vocabulary.is_metric(axis):
                yield f"{at}.where", f"'{axis}' is no axis and no metric.", vocabulary.nearest(axis, vocabulary.axes)
            continue
        for value in values:
            texts = [as_text(other) for other in vocabulary.axes[axis]]
            if as_text(value) not in texts:
                yield f"{at}.where.{axis}", f"no case has {as_text(value)}.", did_you_mean(as_text(value), texts)
    yield from _check_units(at, table)


def _check_places(at: str, table: Table | Plot, vocabulary: _Words) -> Iterator[Mistake]:
    places = table.axes
    # A plot draws one picture for a value.
    reserved = _PLACES if isinstance(table, Table) else tuple(word for word in _PLACES if word != "value")
    for part, words in places.items():
        for word in words:
            if word not in vocabulary.axes and word not in reserved and not vocabulary.is_metric(word):
                yield (
                    f"{at}.{part}",
                    f"'{word}' is no axis and no metric.",
                    vocabulary.nearest(word, [*vocabulary.axes, *reserved]),
                )
    (first, words), (second, others) = places.items()
    if table.profiler and "profiler" in (*words, *others):
        yield f"{at}.profiler", "names one profiler, and 'profiler' is among the axes.", "Keep one of the two."
    for word in dict.fromkeys(word for word in words if word in others):
        yield f"{at}.{second}", f"'{word}' is also under {first}.", "Keep one of the two."
    if "phase" in (*words, *others) and not table.phase:
        yield at, "has 'phase' among its axes and names none.", "For example: phase: [forward, backward]"


def _check_values(at: str, table: Table | Plot, vocabulary: _Words) -> Iterator[Mistake]:
    values = [quantities.parse_value(word) for word in table.value]
    for value in values:
        if value.source is Source.METRIC and value.name in vocabulary.axes:
            yield f"{at}.value", f"'{value.name}' is an axis.", "Put it among rows or columns."
        elif value.source is Source.METRIC and not vocabulary.is_metric(value.name):
            remedy = vocabulary.nearest(value.name, quantities.known_names(), with_metrics=True)
            yield f"{at}.value", f"'{value.name}' is not known.", remedy
        elif value.source is Source.KERNELS and table.profiler == "plain":
            yield f"{at}.profiler", f"plain sees no kernels, and '{value.name}' needs them.", "Leave it out, or: nsys."
        elif value.name in quantities.OF_SINGLE_CALLS and table.profiler not in (None, "plain"):
            yield f"{at}.profiler", f"only plain times single calls, which '{value.name}' needs.", "Leave it out."
    without_phase = [value.name for value in values if value.source is not Source.KERNELS] if table.phase else []
    if table.phase and len(without_phase) == len(values):
        yield f"{at}.phase", "narrows values of kernels, and there is none.", "For example: value: kernels.time"
    for name in without_phase:
        yield f"{at}.value", f"'{name}' is not known by phase.", "Give it a separate table."


def _check_units(at: str, table: Table | Plot) -> Iterator[Mistake]:
    stored = [quantities.parse_value(word).unit for word in table.value]
    for unit in table.unit:
        fitting = [name for name, units in quantities.UNITS.items() if unit in units]
        if not fitting:
            all_units = [name for units in quantities.UNITS.values() for name in units]
            yield f"{at}.unit", f"'{unit}' is no unit.", did_you_mean(unit, all_units)
        elif all(stored) and not set(fitting) & set(stored):
            yield f"{at}.unit", f"nothing here is measured in {unit}.", ""
