"""pipeline.yaml -> Pipeline.

Everything that can be wrong is found here, before anything runs: each mistake is named with the file, the path in the
file and the nearest word that would have been right.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from profpipe import mistakes
from profpipe.document import placeholders, read, scalar, shown, substituted, takes_text, written_list
from profpipe.errors import ConfigError, did_you_mean
from profpipe.pipeline import Pipeline, Settings
from profpipe.scripts import declared_params, script_path

#: An axis, the baseline's value on it in the file, and what stands in its place.
_Moved = tuple[str, Any, Any]


def schema() -> dict[str, Any]:
    """The JSON schema of a pipeline file, for editors."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Pipeline.model_json_schema(by_alias=True)}


def load_pipeline(path: Path, overrides: Sequence[str] = (), env: Mapping[str, str] = os.environ) -> Pipeline:
    """The pipeline in the file ``path``, with defaults merged into each workload.

    ``overrides`` are ``KEY=VALUE`` as ``--set`` takes them. Raises ConfigError, with each mistake on its own line.
    """
    where = shown(path)
    written = read(path, where)
    document = substituted(written, env, where)
    for override in overrides:
        _override(document, override, path)
    for node in (document, written):
        _keep_commas(node, path)
    _narrow_studies(document, _narrow_baselines(document, written))
    _merge_defaults(document)
    try:
        pipeline = Pipeline.model_validate(document)
    except ValidationError as error:
        raise mistakes.named(where, mistakes.in_form(error)) from None
    if wrong := mistakes.in_meaning(pipeline, path, written):
        raise mistakes.named(where, wrong)
    return pipeline


def variables(path: Path) -> list[str]:
    """The environment variables that the file takes values from; not those below ``env``, which may be secrets."""
    return list(dict.fromkeys(placeholders(read(path, shown(path)))))


# --- reading ---------------------------------------------------------------------------------------------------------


def _merge_defaults(document: dict[str, Any]) -> None:
    """Puts ``defaults`` under each workload; ``env`` and tool options are merged key by key, at every level."""
    defaults, workloads = document.get("defaults"), document.get("workloads")
    if not isinstance(defaults, dict) or not isinstance(workloads, dict):
        return
    # A key that defaults may not have is reported once, there, and not again in every workload.
    shared = {k: v for k, v in defaults.items() if k in Settings.model_fields}
    for name, workload in workloads.items():
        if not isinstance(workload, dict):
            continue
        workloads[name] = _over(workload, shared)


def _over(own: dict[str, Any], shared: Mapping[str, Any]) -> dict[str, Any]:
    """``shared`` with ``own`` in its place, mappings by their keys."""
    merged = {**shared, **own}
    for key, value in shared.items():
        if isinstance(value, dict) and isinstance(own.get(key), dict):
            merged[key] = _over(own[key], value)
    return merged


def _override(document: dict[str, Any], override: str, path: Path) -> None:
    """Applies one ``--set``: a path in the file, or the bare name of a parameter, for every workload that knows it."""
    key, equals, text = override.partition("=")
    keys = key.strip().split(".")
    if not equals or not all(keys):
        raise ConfigError("--set", f"{override!r} is not KEY=VALUE.", "For example: --set seqlen=1024,4096")
    in_file = keys if keys[0] in Pipeline.model_fields else ["defaults", *keys]
    try:
        value = text if takes_text(tuple(in_file)) else scalar(text)
    except ValueError as error:
        remedy = "Write the value as a number or a word, several as a,b; any other text goes into the file, in quotes."
        raise ConfigError("--set", f"{key.strip()}: {error}.", remedy) from None
    workloads = document.get("workloads")
    if keys[0] == "workloads" and len(keys) > 1 and isinstance(workloads, dict) and keys[1] not in workloads:
        raise ConfigError("--set", f"unknown workload '{keys[1]}'.", did_you_mean(keys[1], workloads))
    if keys[0] in Pipeline.model_fields:
        _assign(document, keys, value)
        return
    known = {n: _known_names(w, path) for n, w in workloads.items()} if isinstance(workloads, dict) else {}
    if keys[0] in Settings.model_fields:
        for name in known:
            _assign(document, ["workloads", name, *keys], value)
        return
    if len(keys) > 1:
        remedy = did_you_mean(keys[0], [*Pipeline.model_fields, *Settings.model_fields])
        raise ConfigError("--set", f"unknown name '{keys[0]}'.", remedy)
    takers = [name for name, names in known.items() if keys[0] in names]
    if not takers:
        everything = {*Settings.model_fields, *(n for names in known.values() for n in names)}
        raise ConfigError("--set", f"unknown name '{keys[0]}'.", did_you_mean(keys[0], everything))
    for name in takers:
        # A matrix axis also takes one value, so a fixed parameter becomes an axis: its cases then carry its name.
        _assign(document, ["workloads", name, "matrix", keys[0]], value)
        _mapping(document["workloads"][name], "params").pop(keys[0], None)


def _keep_commas(document: dict[str, Any], path: Path) -> None:
    """Makes one value of a text for a parameter whose default in PARAMS is text with commas: ``seqlens: 128,128``.

    Only ``;`` separates the values of such a parameter, which ``as_list`` does.
    """
    for workload in _mapping(document, "workloads").values():
        declared = _declared(workload, path)
        whole = [name for name, default in declared.items() if isinstance(default, str) and "," in default]
        exclude = workload.get("exclude") if whole else None
        for point in (_mapping(workload, "matrix"), *(exclude if isinstance(exclude, list) else ())):
            for name in whole if isinstance(point, dict) else ():
                if isinstance(point.get(name), str) and ";" not in point[name]:
                    point[name] = [point[name]]


def _narrow_baselines(document: dict[str, Any], written: dict[str, Any]) -> dict[str, list[_Moved]]:
    """A baseline that the environment or ``--set`` took out of the matrix gives way to the axis's first value.

    ``IMPLS=fa2,sage ./auto_profile.sh`` is no mistake in the file. A baseline that is not in the file's own matrix is,
    and stays as it stands, to be refused. Returns what gave way, by workload.
    """
    moved: dict[str, list[_Moved]] = {}
    for name, workload in _mapping(document, "workloads").items():
        matrix, baseline = _mapping(workload, "matrix"), _mapping(workload, "baseline")
        in_file = _mapping(_mapping(_mapping(written, "workloads"), name), "matrix")
        for axis, value in baseline.items():
            now, before = written_list(matrix.get(axis)), written_list(in_file.get(axis))
            if now and value not in now and before and value in before:
                baseline[axis] = now[0]
                moved.setdefault(name, []).append((axis, value, now[0]))
    return moved


def _narrow_studies(document: dict[str, Any], moved: Mapping[str, Sequence[_Moved]]) -> None:
    """Tables and plots of the cases of a baseline (``where``) go with it where it gave way."""
    for study in (*_listed(document, "tables"), *_listed(document, "plots")):
        own = written_list(study.get("workload")) or list(moved)
        for axis, values in _mapping(study, "where").items():
            ways = [(old, new) for name in own for of, old, new in moved.get(str(name), ()) if of == axis]
            if ways and (asked := written_list(values)):
                study["where"][axis] = [next((new for old, new in ways if old == value), value) for value in asked]


def _listed(document: Any, key: str) -> list[dict[str, Any]]:
    found = document.get(key) if isinstance(document, dict) else None
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def _mapping(node: Any, key: str) -> dict[str, Any]:
    below = node.get(key) if isinstance(node, dict) else None
    return below if isinstance(below, dict) else {}


def _assign(document: dict[str, Any], keys: list[str], value: Any) -> None:
    node = document
    for key in keys[:-1]:
        below = node.setdefault(key, {})
        if not isinstance(below, dict):
            raise ConfigError("--set", f"'{key}' in {'.'.join(keys)} is not a mapping.")
        node = below
    node[keys[-1]] = value


def _known_names(workload: Any, path: Path) -> set[str]:
    if not isinstance(workload, dict):
        return set()
    return {*_mapping(workload, "params"), *_mapping(workload, "matrix"), *_declared(workload, path)}


def _declared(workload: Any, path: Path) -> dict[str, Any]:
    """The PARAMS of the workload's file; empty where there are none that can be read, which ``mistakes`` tells."""
    script = workload.get("script") if isinstance(workload, dict) else None
    found = script_path(str(script), path) if script else None
    try:
        return (declared_params(found) if found else None) or {}
    except (SyntaxError, ValueError):
        return {}
