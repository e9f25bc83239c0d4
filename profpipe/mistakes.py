"""What is wrong in a pipeline file, as its author would say it: where, what, and the nearest word that is right."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, Final, get_args, get_origin

from pydantic import BaseModel, ValidationError

from profpipe import load, table_mistakes
from profpipe.document import shown
from profpipe.errors import ConfigError, did_you_mean
from profpipe.job import Scalar, as_text
from profpipe.pipeline import PROFILERS, Pipeline, Workload
from profpipe.scripts import declared_params, script_path
from profpipe.tolerance import MEASURES

#: pydantic speaks of Python's types; the user wrote YAML.
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


#: (path in the file, what is wrong, what to do).
Mistake = tuple[str, str, str]


def named(where: str, mistakes: Sequence[Mistake]) -> ConfigError:
    """One error that tells all ``mistakes`` of the file ``where``, each on its own line."""
    first, *rest = [ConfigError(f"{where}: {at}" if at else where, what, remedy) for at, what, remedy in mistakes]
    if rest:
        first.args = ("\n".join(str(error) for error in (first, *rest)),)
    return first


def in_form(error: ValidationError) -> list[Mistake]:
    """Where the document does not have the form of a pipeline file."""
    return _told_once(list(_explained(error)))


def in_meaning(pipeline: Pipeline, path: Path, written: Mapping[str, Any]) -> list[Mistake]:
    """What the form allows and cannot be meant: names that stand for nothing.

    ``path`` is the pipeline file, ``written`` what it holds before the environment and ``--set``.
    """
    in_workloads = [m for name, workload in pipeline.workloads.items() for m in _in_workload(name, workload, path)]
    return in_workloads + list(table_mistakes.found(pipeline, path, written))


def _explained(error: ValidationError) -> Iterator[Mistake]:
    """pydantic's errors as (path in the file, what, what to do)."""
    for entry in error.errors(include_url=False):
        location = tuple(entry["loc"])
        at = ".".join(str(part) for part in location if part != "[key]")
        if entry["type"] == "extra_forbidden":
            word, parent = str(location[-1]), location[:-1]
            yield ".".join(map(str, parent)), f"unknown key '{word}'.", did_you_mean(word, _fields_at(parent))
        elif entry["type"] == "missing":
            yield at, "is missing.", "Add 'version: 1'." if at == "version" else ""
        elif entry["type"] == "literal_error":
            known = [str(value) for value in _literals_at(location)]
            yield at, f"{entry['input']!r} is not known.", did_you_mean(str(entry["input"]), known)
        elif len(location) > 1 and location[-1] in ("str", "int", "float", "bool"):
            # pydantic names each type that a single value could have been.
            yield at.rpartition(".")[0], f"is not a single value (got {_brief(entry['input'])}).", ""
        elif entry["type"] in _PLAIN_WORDS:
            what, remedy = _PLAIN_WORDS[entry["type"]]
            yield at, f"{what} (got {_brief(entry['input'])}).", remedy
        else:
            yield at, f"{entry['msg'].removeprefix('Value error, ')} (got {_brief(entry['input'])}).", ""


def _told_once(mistakes: Sequence[Mistake]) -> list[Mistake]:
    """Without what a workload only has from `defaults`, where it is told already."""
    shared = {(at.removeprefix("defaults."), what) for at, what, _ in mistakes if at.startswith("defaults.")}
    kept = [m for m in mistakes if (re.sub(r"^workloads\.[^.]+\.", "", m[0]), m[1]) not in shared]
    return list(dict.fromkeys(m for m in mistakes if m in kept or m[0].startswith("defaults.")))


def _brief(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    """The models inside an annotation such as ``Mapping[str, Workload]``."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) is not None or isinstance(annotation, UnionType):
        for inner in get_args(annotation):
            yield from _models(inner)


def _fields_at(location: Iterable[object]) -> set[str]:
    """The keys that are allowed at a place in the document."""
    model: type[BaseModel] = Pipeline
    for part in location:
        if isinstance(part, str) and part in model.model_fields:
            model = next(_models(model.model_fields[part].annotation), model)
    return {field.alias or name for name, field in model.model_fields.items()}


def _literals_at(location: Sequence[object]) -> Iterator[object]:
    if "profilers" in location or "profiler" in location:
        yield from PROFILERS
    elif "tolerance" in location:
        yield from MEASURES
    elif "version" in location:
        yield 1


def _in_workload(name: str, workload: Workload, path: Path) -> Iterator[Mistake]:
    at = f"workloads.{name}"
    if workload.script is not None:
        yield from _in_script(at, workload, workload.script, path)
        yield from _in_env_of_script(at, workload)
    for axis in workload.matrix:
        if axis in workload.params:
            yield f"{at}.matrix.{axis}", "is also in params.", "Keep one of the two."
    yield from _of_one_name(at, workload)
    yield from _in_command(f"{at}.command", workload)
    axes = set(workload.matrix)
    baseline = (workload.baseline or {},)
    for part, points in (("exclude", workload.exclude), ("include", workload.include), ("baseline", baseline)):
        known = axes | set(workload.params) if part == "include" else axes
        for word in dict.fromkeys(key for point in points for key in point if key not in known):
            yield f"{at}.{part}", f"'{word}' is not an axis of the matrix.", did_you_mean(word, known)
    for axis, value in (workload.baseline or {}).items():
        values = [*workload.matrix.get(axis, []), *(p[axis] for p in workload.include if axis in p)]
        if axis in axes and value not in values:
            yield f"{at}.baseline", f"{axis}={value} is not in the matrix.", did_you_mean(str(value), map(str, values))


def _of_one_name(at: str, workload: Workload) -> Iterator[Mistake]:
    """Values of an axis that a case's name does not tell apart, as 1 and "1": of their cases one would never run."""
    for axis in dict.fromkeys((*workload.matrix, *(name for point in workload.include for name in point))):
        named: dict[str, Scalar] = {}
        for value in (*workload.matrix.get(axis, ()), *(point[axis] for point in workload.include if axis in point)):
            other = named.setdefault(as_text(value), value)
            if type(other) is not type(value):
                what = f"{json.dumps(other)} and {json.dumps(value)} would be cases of one name."
                part = "matrix" if axis in workload.matrix else "include"
                yield f"{at}.{part}.{axis}", what, "Keep one of the two, or spell one otherwise."


def _in_command(at: str, workload: Workload) -> Iterator[Mistake]:
    """Placeholders that stand for no parameter.

    Braces that resemble none are the command's own (JSON, awk's ``{print}``), unless one is the value of an option and
    an axis of the matrix is used nowhere: then its cases would all be the same.
    """
    command, known = " ".join(workload.command or ()), {*workload.matrix, *workload.params}
    texts = " ".join((command, *workload.env.values()))
    unused = next((axis for axis in workload.matrix if f"{{{axis}}}" not in texts), None)
    of_options = {word for pair in itertools.pairwise(workload.command or ()) for word in _option_values(*pair)}
    for word in dict.fromkeys(re.findall(r"\{([A-Za-z_]\w*)\}", command)):
        if word in known:
            continue
        if (remedy := did_you_mean(word, known)).startswith("Did you mean"):
            yield at, f"there is no parameter '{word}'.", remedy
        elif unused is not None and word in of_options:
            what = f"there is no parameter '{word}', and the axis '{unused}' is used nowhere."
            yield at, what, f"Write {{{unused}}} where its value belongs, or take it out of the matrix."


def _in_env_of_script(at: str, workload: Workload) -> Iterator[Mistake]:
    """Placeholders for parameters in variables that all cases of a process share."""
    for name, value in workload.env.items():
        for parameter in (*workload.matrix, *workload.params):
            if f"{{{parameter}}}" in value:
                what = f"{{{parameter}}} stays as it is: the cases of a script share their process and its environment."
                yield f"{at}.env.{name}", what, "Take the parameter from params in build, or use `command:`."


def _option_values(before: str, word: str) -> list[str]:
    """What stands in braces as the whole value of an option: ``--batch {size}``, ``--batch={size}``."""
    option, _, value = word.partition("=")
    alone = value if option.startswith("-") else word if before.startswith("-") else ""
    return re.findall(r"^\{([A-Za-z_]\w*)\}$", alone)


def _in_script(at: str, workload: Workload, script: str, path: Path) -> Iterator[Mistake]:
    found = script_path(script, path)
    if found is None:
        own = [file.stem for file in load.files("workloads", "*.py", path.resolve().parent)]
        yield f"{at}.script", f"there is no workload '{script}'.", did_you_mean(script.removesuffix(".py"), own)
        return
    try:
        declared = declared_params(found)
    except (SyntaxError, ValueError) as error:
        yield f"{at}.script", f"{shown(found)}: {error}.", "PARAMS must be a literal dict of names and defaults."
        return
    if declared is None:
        return
    points = [("params", workload.params), *(("matrix", {k: v}) for k, vs in workload.matrix.items() for v in vs)]
    points += [("include", point) for point in workload.include]
    told: set[str] = set()
    for part, point in points:
        for word, value in point.items():
            if word not in declared:
                if word not in told:
                    yield f"{at}.{part}", f"unknown key '{word}'.", did_you_mean(word, declared)
                told.add(word)
            elif expected := _wrong_type(declared[word], value):
                yield f"{at}.{part}.{word}", f"{value!r} is not {expected}.", f"The default is {declared[word]!r}."


def _wrong_type(default: object, value: object) -> str | None:
    """What ``value`` should have been, by the type of the parameter's default; None where it fits."""
    if default is None or value is None:
        return None
    if isinstance(default, bool):
        return None if isinstance(value, bool) else "true or false"
    if isinstance(default, int):
        return None if isinstance(value, int) and not isinstance(value, bool) else "a whole number"
    if isinstance(default, float):
        return None if isinstance(value, (int, float)) and not isinstance(value, bool) else "a number"
    # A text parameter such as seqlens='128,128' may look like a number when it holds only one.
    return None
