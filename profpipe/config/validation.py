"""Find the mistakes in a pipeline file: where, what, and the nearest correct word."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, Final, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from profpipe import plugins
from profpipe.config import items, study_validation
from profpipe.config.models import OF_SCRIPTS, Pipeline, Workload
from profpipe.config.workload_files import declared_params, find_build_problem, script_path
from profpipe.config.yaml import line_of, shown
from profpipe.errors import ConfigError, did_you_mean
from profpipe.job import Scalar, as_text

#: pydantic names Python's types, but the user wrote YAML.
_PLAIN_WORDS: Final = {
    "dict_type": ("is not a mapping", "Write it as {name: value}."),
    "model_type": ("is not a mapping", "Write it as {name: value}."),
    "list_type": ("is not a list", "Write it as [a, b]."),
    "tuple_type": ("is not a list", "Write it as [a, b]."),
    "string_type": ("is not text", "Put it in quotes."),
    "too_short": ("is empty", ""),
    "string_pattern_mismatch": (
        "is no name",
        "A name has letters, digits, '.', '_' and '-', and begins with one of the first two.",
    ),
}


#: (path in the file, what is wrong, remedy[, line in the file]).
Mistake = tuple[str, str, str] | tuple[str, str, str, int | None]


_MOST_MISTAKES: Final = 50
#: Points of one matrix, those that are excluded too.
_MOST_POINTS: Final = 100_000


def as_error(where: str, mistakes: Sequence[Mistake]) -> ConfigError:
    """Return one error with a line for each mistake in the file ``where``."""
    first, *rest = [
        ConfigError(": ".join(filter(None, [f"{where}:{line[0]}" if any(line) else where, at])), what, remedy)
        for at, what, remedy, *line in mistakes
    ]
    if rest:
        first.args = ("\n".join(str(error) for error in (first, *rest)),)
    return first


def form_mistakes(error: ValidationError) -> list[Mistake]:
    """Return the places where the document does not have the form of a pipeline file.

    A mistake that a workload has only from `defaults` is returned once.
    """
    # To look for the nearest word takes a millisecond, and a thousand mistakes are more than a person reads.
    entries = error.errors(include_url=False)
    mistakes = list(dict.fromkeys(map(_explain, entries[:_MOST_MISTAKES])))
    if len(entries) > _MOST_MISTAKES:
        mistakes.append(("", f"{len(entries) - _MOST_MISTAKES:,} more mistakes.", ""))
    shared = {(at.removeprefix("defaults."), what) for at, what, *_ in mistakes if at.startswith("defaults.")}
    return [m for m in mistakes if (re.sub(r"^workloads\.[^.]+\.", "", m[0]), m[1]) not in shared]


def ignored_settings(workloads: Mapping[str, Any]) -> list[Mistake]:
    """Return the settings of the harness in workloads with a command. ``workloads`` are without the defaults."""
    return [
        (f"workloads.{name}.{key}", "has no effect on a command, which the harness does not run.", _OWN_LOOP[key])
        for name, own in workloads.items()
        if isinstance(own, dict) and "command" in own
        for key in OF_SCRIPTS
        if key in own
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
    in_workloads = [m for name, workload in pipeline.workloads.items() for m in _in_workload(name, workload, path)]
    return in_workloads + list(study_validation.find_mistakes(pipeline, path, written))


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
        known = re.findall(r"'([^']+)'|(\d+)", entry["ctx"]["expected"])
        return at, f"{value!r} is not known.", did_you_mean(str(value), map("".join, known))
    text = repr(value) if len(repr(value)) <= 60 else f"{value!r:.57}..."
    if len(location) > 1 and location[-1] in ("str", "int", "float", "bool"):
        # pydantic reports each type that a single value may have.
        return at.rpartition(".")[0], f"is not a single value (got {text}).", ""
    what, remedy = _PLAIN_WORDS.get(kind, (entry["msg"].removeprefix("Value error, "), ""))
    return at, f"{what} (got {text}).", remedy


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


def _in_workload(name: str, workload: Workload, path: Path) -> Iterator[Mistake]:
    at = f"workloads.{name}"
    if workload.script is not None:
        yield from _in_script(at, workload, workload.script, path)
        yield from _in_env_of_script(at, workload)
    for axis in workload.matrix:
        if axis in workload.params:
            yield f"{at}.matrix.{axis}", "is also in params.", "Keep one of the two."
    if workload.cwd is not None and not (path.resolve().parent / workload.cwd).resolve().is_dir():
        yield f"{at}.cwd", f"there is no folder '{workload.cwd}'.", f"It is relative to {path.resolve().parent}."
    yield from _in_items(f"{at}.items_per_step", workload)
    yield from _of_one_name(at, workload)
    if workload.command is not None:
        yield from _in_command(name, workload, path)
        yield from _in_flags(f"{at}.flag", workload)
    axes = set(workload.matrix)
    baseline = (workload.baseline or {},)
    for part, points in (("exclude", workload.exclude), ("include", workload.include), ("baseline", baseline)):
        known = axes | set(workload.params) if part == "include" else axes
        for word in dict.fromkeys(key for point in points for key in point if key not in known):
            yield f"{at}.{part}", f"'{word}' is not an axis of the matrix.", did_you_mean(word, known)
    for axis, value in (workload.baseline or {}).items():
        if axis in axes and value not in (values := _values(workload, axis)):
            yield f"{at}.baseline", f"{axis}={value} is not in the matrix.", did_you_mean(str(value), map(str, values))


def _of_one_name(at: str, workload: Workload) -> Iterator[Mistake]:
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


def _in_command(name: str, workload: Workload, path: Path) -> Iterator[Mistake]:
    """Yield the placeholders in a command and its ``env`` that are not parameters, and the axes without a placeholder.

    Other braces belong to the command (JSON, awk's ``{print}``). If an axis is not used at all, so that its cases would
    all be the same, braces as the value of an option count as a placeholder.
    """
    at, command = f"workloads.{name}.command", " ".join(workload.command or ())
    known = {*workload.matrix, *workload.params}
    texts = " ".join((command, *workload.env.values()))
    unused = [axis for axis in _varying(workload) if f"{{{axis}}}" not in texts]
    of_options = {word for pair in itertools.pairwise(workload.command or ()) for word in _option_values(*pair)}
    has_unknown = False
    for word in dict.fromkeys(re.findall(r"\{([A-Za-z_]\w*)\}", texts)):
        if word in known:
            continue
        if (remedy := did_you_mean(word, known)).startswith("Did you mean"):
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
        line = line_of(path, "workloads", name, part, axis) or line_of(path, "workloads", name, part)
        yield f"workloads.{name}.{part}.{axis}", what, remedy, line


def _varying(workload: Workload) -> list[str]:
    """Return the names whose values make the cases."""
    return list(dict.fromkeys([*workload.matrix, *(axis for point in workload.include for axis in point)]))


def _in_items(at: str, workload: Workload) -> Iterator[Mistake]:
    """Yield the names in ``items_per_step`` that are no parameters, and the first case that it has no number for."""
    if not isinstance(expression := workload.items_per_step, str):
        return
    names, known = items.parameters(expression), {*_varying(workload), *workload.params}
    if unknown := [name for name in names if name not in known]:
        yield from ((at, f"there is no parameter '{name}'.", did_you_mean(name, known)) for name in unknown)
        return
    axes = [name for name in names if name in workload.matrix]
    points = [dict(zip(axes, values, strict=True)) for values in itertools.product(*map(workload.matrix.get, axes))]  # type: ignore[arg-type]
    for point in [*points, *workload.include]:
        try:
            items.items_of(expression, {**workload.params, **point})
        except ValueError as error:
            yield at, f"{error}.", "Each case needs a number above 0: write one, or arithmetic on its parameters."
            return


def _in_flags(at: str, workload: Workload) -> Iterator[Mistake]:
    """Yield the flags that no parameter has, and the values that have no words."""
    known = {*_varying(workload), *workload.params}
    for name, words in workload.flag.items():
        if name not in known:
            yield f"{at}.{name}", "is no parameter of this workload.", did_you_mean(name, known)
            continue
        values = [*_values(workload, name), *([workload.params[name]] if name in workload.params else [])]
        for value in dict.fromkeys(as_text(value) for value in values if as_text(value) not in words):
            what = f"has no words for {name}={value}."
            yield f"{at}.{name}", what, f"Write {{{value}: --option, ...}}, or {{{value}: null}} for no word."


def _in_env_of_script(at: str, workload: Workload) -> Iterator[Mistake]:
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


def _in_script(at: str, workload: Workload, script: str, path: Path) -> Iterator[Mistake]:
    found = script_path(script, path)
    if found is None:
        own = [file.stem for file in plugins.files("workloads", "*.py", path.resolve().parent)]
        yield f"{at}.script", f"there is no workload '{script}'.", did_you_mean(script.removesuffix(".py"), own)
        return
    try:
        declared = declared_params(found)
        problem = find_build_problem(found)
    except (SyntaxError, ValueError) as error:
        yield f"{at}.script", f"{shown(found)}: {error}.", "PARAMS must be a literal dict of names and defaults."
        return
    if problem is not None:
        place = f"{shown(found)}:{problem.line}" if problem.line else shown(found)
        remedy = f"Define build(params), or run the file as a program: command: [python, {script}]"
        line = line_of(path, "workloads", at.removeprefix("workloads."), "script")
        yield f"{at}.script", f"{place} {problem.what}.", remedy, line
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

    A text default allows every value: seqlens='128,128' looks like a number when it holds only one.
    """
    expected: dict[type, tuple[tuple[type, ...], str]] = {
        bool: ((bool,), "true or false"),
        int: ((int,), "a whole number"),
        float: ((int, float), "a number"),
    }
    types, name = expected.get(type(default), ((), ""))
    return None if value is None or not types or type(value) in types else name
