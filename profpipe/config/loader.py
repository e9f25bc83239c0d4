"""Load and validate pipeline.yaml before anything runs.

Each mistake is reported with the file, the path in the file and the nearest correct word.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from profpipe import masking
from profpipe.config import validation
from profpipe.config.models import OF_SCRIPTS, Pipeline, Settings, Workload
from profpipe.config.yaml import (
    as_list,
    commands_of,
    is_parameter,
    mapping_at,
    placeholders,
    read,
    scalar,
    shown,
    substituted,
    takes_text,
    word,
    written_list,
)
from profpipe.errors import ConfigError, did_you_mean
from profpipe.plugins import readable_params

#: (axis, the baseline's value in the file, the value that replaces it).
_Moved = tuple[str, Any, Any]


def schema() -> dict[str, Any]:
    """Return the JSON schema of a pipeline file, for editors."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Pipeline.model_json_schema(by_alias=True)}


def load_pipeline(path: Path, overrides: Sequence[str] = (), env: Mapping[str, str] = os.environ) -> Pipeline:
    """Return the pipeline in the file ``path``, with the defaults merged into the workloads.

    ``overrides`` are ``KEY=VALUE`` as for ``--set``. Raises ConfigError with a line for a mistake.
    """
    return load_document(read(path, shown(path)), path, env, overrides)


def load_document(
    written: Mapping[str, Any],
    path: Path,
    env: Mapping[str, str] = os.environ,
    overrides: Sequence[str] = (),
    where: str = "",
) -> Pipeline:
    """Return the pipeline of ``written``, the content of the file ``path``, which errors call ``where``."""
    file = None if where else path
    where, written = where or shown(path), dict(written)
    masking.remember(masking.secrets_of_placeholders(placeholders(written), env))
    document = substituted(written, env, where, file=file)
    for assignment in overrides:
        override(document, assignment, path)
    for node in (document, written):
        _keep_commas(node, path)
    _split_lists(document)
    _narrow_studies(document, _narrow_baselines(document, written))
    ignored = validation.ignored_settings(mapping_at(document, "workloads"))
    _merge_defaults(document)
    try:
        pipeline = Pipeline.model_validate(document)
    except ValidationError as error:
        raise validation.as_error(where, [*validation.form_mistakes(error), *ignored], file, overrides) from None
    validation.check_points(pipeline, where)
    if mistakes := [*ignored, *validation.unknown_names(pipeline, path, written)]:
        raise validation.as_error(where, mistakes, file, overrides)
    return pipeline


def variables(path: Path) -> list[str]:
    """Return the environment variables that the file uses, except those below ``env``, which may be secrets."""
    return list(dict(placeholders(read(path, shown(path)), without="env")))


def _merge_defaults(document: dict[str, Any]) -> None:
    """Merge ``defaults`` into the workloads. Mappings such as ``env`` are merged key by key, at all levels."""
    defaults, workloads = document.get("defaults"), document.get("workloads")
    if not isinstance(defaults, dict) or not isinstance(workloads, dict):
        return
    # An unknown key in the defaults is reported once, and not again in the workloads.
    shared = {k: v for k, v in defaults.items() if k in Settings.model_fields}
    # A number of iterations for all scripts is no number of processes.
    of_commands = {k: v for k, v in shared.items() if k != "repeats"}
    for name, workload in workloads.items():
        if isinstance(workload, dict):
            workloads[name] = _merged(of_commands if "command" in workload else shared, workload)


def _merged(shared: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    both = {key for key in shared if isinstance(shared[key], dict) and isinstance(settings.get(key), dict)}
    return {**shared, **settings, **{key: _merged(shared[key], settings[key]) for key in both}}


def override(document: dict[str, Any], text: str, path: Path) -> None:
    """Apply a ``--set``: a path in the file, or the name of a parameter for all workloads that declare it."""
    key, equals, written = text.partition("=")
    keys = key.strip().split(".")
    if not equals or not all(keys):
        raise ConfigError("--set", f"{text!r} is not KEY=VALUE.", "For example: --set seqlen=1024,4096")
    workloads, commands = mapping_at(document, "workloads"), commands_of(document)
    has_workloads = isinstance(document.get("workloads"), dict)
    if keys[0] == "workloads" and len(keys) > 1 and has_workloads and keys[1] not in workloads:
        raise ConfigError("--set", f"unknown workload '{keys[1]}'.", did_you_mean(keys[1], workloads))
    if keys[0] in Pipeline.model_fields:
        _assign(document, keys, _override_value(key, keys, written, commands))
    elif keys[0] in Workload.model_fields:
        for name in workloads:
            # Like a default, it is for all workloads, of which a command has no use for some settings.
            if keys[0] not in OF_SCRIPTS or name not in commands:
                at = ["workloads", name, *keys]
                _assign(document, at, _override_value(key, at, written, commands))
    elif len(keys) > 1:
        remedy = did_you_mean(keys[0], [*Pipeline.model_fields, *Workload.model_fields])
        raise ConfigError("--set", f"unknown name '{keys[0]}'.", remedy)
    else:
        _set_axis(document, workloads, keys[0], written, path)


def _override_value(name: str, keys: list[str], text: str, commands: Collection[str]) -> Any:
    """Return the value of ``--set`` for the path ``keys`` of a pipeline file, in which ``commands`` are commands."""
    try:
        if takes_text(tuple(keys)):
            return text
        # A command leaves out a word that is empty.
        return "" if not text.strip() else word(text.strip()) if is_parameter(keys, commands) else scalar(text)
    except ValueError as error:
        remedy = "Write the value as a number or a word, several as a,b; any other text goes into the file, in quotes."
        raise ConfigError("--set", f"{name.strip()}: {error}.", remedy) from None


def _set_axis(document: dict[str, Any], workloads: dict[str, Any], param: str, written: str, path: Path) -> None:
    """Make an axis of a parameter in all workloads that know it, so that the names of cases hold its value."""
    names_by_workload = {
        name: {*mapping_at(workload, "params"), *mapping_at(workload, "matrix"), *_declared(workload, path)}
        for name, workload in workloads.items()
    }
    if not any(param in names for names in names_by_workload.values()):
        names = {*Workload.model_fields}.union(*names_by_workload.values())
        raise ConfigError("--set", f"unknown name '{param}'.", did_you_mean(param, names))
    for name in names_by_workload:
        if param in names_by_workload[name]:
            at = ["workloads", name, "matrix", param]
            _assign(document, at, _override_value(param, at, written, commands_of(document)))
            mapping_at(workloads[name], "params").pop(param, None)


def _declared(workload: Any, path: Path) -> dict[str, Any]:
    script = workload.get("script") if isinstance(workload, dict) else None
    return readable_params(str(script), path) if script else {}


def _split_lists(document: dict[str, Any]) -> None:
    """Split ``1e-3,1e-4`` of an axis of a command into its words. The model would read numbers."""
    for name in commands_of(document):
        workload = document["workloads"][name]
        exclude = workload.get("exclude")
        for point in (mapping_at(workload, "matrix"), *(exclude if isinstance(exclude, list) else ())):
            for axis, value in point.items() if isinstance(point, dict) else ():
                point[axis] = as_list(value, word) if isinstance(value, str) else value


def _keep_commas(document: dict[str, Any], path: Path) -> None:
    """Keep a text as one value for a parameter whose default in PARAMS has commas: ``seqlens: 128,128``.

    Only ``;`` separates the values of such a parameter.
    """
    for workload in mapping_at(document, "workloads").values():
        declared = _declared(workload, path)
        whole = [name for name, default in declared.items() if isinstance(default, str) and "," in default]
        exclude = workload.get("exclude") if whole else None
        for point in (mapping_at(workload, "matrix"), *(exclude if isinstance(exclude, list) else ())):
            for name in whole if isinstance(point, dict) else ():
                if isinstance(point.get(name), str) and ";" not in point[name]:
                    point[name] = [point[name]]


def _narrow_baselines(document: dict[str, Any], written: dict[str, Any]) -> dict[str, list[_Moved]]:
    """Replace a baseline that the environment or ``--set`` removed from the matrix by the axis's first value.

    ``IMPLS=fa2,sage ./auto_profile.sh`` is no mistake in the file. A baseline that the matrix of the file lacks is a
    mistake and stays. Returns the replaced values by workload.
    """
    moved: dict[str, list[_Moved]] = {}
    for name, workload in mapping_at(document, "workloads").items():
        matrix, baseline = mapping_at(workload, "matrix"), mapping_at(workload, "baseline")
        in_file = mapping_at(written, "workloads", name, "matrix")
        for axis, value in baseline.items():
            now, before = written_list(matrix.get(axis)), written_list(in_file.get(axis))
            if now and value not in now and before and value in before:
                baseline[axis] = now[0]
                moved.setdefault(name, []).append((axis, value, now[0]))
    return moved


def _narrow_studies(document: dict[str, Any], moved: Mapping[str, Sequence[_Moved]]) -> None:
    """Replace the values of a replaced baseline in the ``where`` of tables and plots too."""
    listed = [entries for part in ("tables", "plots") if isinstance(entries := document.get(part), list)]
    for study in (entry for entries in listed for entry in entries if isinstance(entry, dict)):
        workloads = written_list(study.get("workload")) or list(moved)
        for axis, values in mapping_at(study, "where").items():
            pairs = [(old, new) for name in workloads for of, old, new in moved.get(str(name), ()) if of == axis]
            if pairs and (chosen := written_list(values)):
                study["where"][axis] = [next((new for old, new in pairs if old == value), value) for value in chosen]


def _assign(document: dict[str, Any], keys: list[str], value: Any) -> None:
    node = document
    for key in keys[:-1]:
        below = node.setdefault(key, {})
        if not isinstance(below, dict):
            raise ConfigError("--set", f"'{key}' in {'.'.join(keys)} is not a mapping.")
        node = below
    node[keys[-1]] = value
