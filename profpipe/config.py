"""pipeline.yaml -> Pipeline.

Everything that can be wrong is found here, before anything runs: each mistake is named with the file, the path in the
file and the nearest word that would have been right.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Final, Literal, get_args, get_origin

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from profpipe import load
from profpipe.document import as_list, placeholders, read, scalar, shown, substituted, without_environment
from profpipe.errors import ConfigError, did_you_mean
from profpipe.job import Scalar

ProfilerName = Literal["plain", "torch", "nsys", "ncu", "rocprof"]
PROFILERS: Final = get_args(ProfilerName)

_NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]*$"


Values = Annotated[list[Scalar], BeforeValidator(as_list), Field(min_length=1)]
Point = Mapping[str, Scalar]
Region = Mapping[str, Annotated[list[Scalar], BeforeValidator(as_list)]]


def _regex(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"is no regular expression: {error}") from None
    return text


Regex = Annotated[str, AfterValidator(_regex)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class NcuTargets(_Model):
    """What a good kernel reaches, in % of the hardware's peak; kernels below are named in the report."""

    memory: float = Field(80, ge=0, le=100, description="memory throughput")
    sm: float = Field(90, ge=0, le=100, description="SM throughput")


class Ncu(_Model):
    """What Nsight Compute collects."""

    set: str = Field("basic", description="ncu --set: basic, detailed, full, roofline")
    sections: tuple[str, ...] = Field(
        ("MemoryWorkloadAnalysis", "ComputeWorkloadAnalysis"),
        description="further ncu --section names; these two fill ncu_memory_metrics.txt and ncu_compute_metrics.txt",
    )
    kernels: Regex = Field("all", description="'all', 'guided' (those with the largest share), or a regular expression")
    top: int = Field(3, ge=1, description="how many kernels of a case 'guided' takes")
    source: bool = Field(False, description="embed the kernels' sources in the report")
    targets: NcuTargets = NcuTargets()
    exclude: Regex = Field("nccl", description="kernels never replayed: those that wait for another process would hang")


class Coverage(_Model):
    """What share of the GPU time must be understood for the report to pass."""

    min_classified: float | None = Field(None, ge=0, le=1, description="smallest classified share of kernel time")


class KernelRule(_Model):
    """A rule of the user's own for the class of a kernel; it goes before those of parsers/kernel_classes.yaml."""

    pattern: Regex = Field(description="regular expression, searched in the kernel's name")
    kernel_class: str = Field(alias="class", description="attention, gemm, copy, add, ...")
    family: str = ""


class Settings(_Model):
    """What `defaults` may set for all workloads and each workload for itself."""

    profilers: Annotated[list[ProfilerName], BeforeValidator(as_list), Field(min_length=1)] = Field(
        ["plain", "torch", "nsys", "ncu"], description="each is one process a workload"
    )
    warmup: int = Field(10, ge=0, description="iterations before the measured ones")
    repeats: int = Field(30, ge=1, description="measured iterations of each case (ncu: one)")
    timeout_s: float = Field(900, gt=0, description="seconds after which a process and all its children are ended")
    case_timeout_s: float | None = Field(None, gt=0, description="seconds after which a case is given up")
    isolate: bool = Field(False, description="one process for each case instead of one for all")
    env: Mapping[str, str] = Field({}, description="environment variables for the workload's process")
    ncu: Ncu = Ncu()
    skip_larger_after_oom: bool = Field(True, description="after an OOM, skip cases that are larger in every dimension")


class Workload(Settings):
    """One entry under `workloads`: a script with `build`, or any command."""

    script: str | None = Field(None, description="a file with build(params), here or in workloads/")
    command: tuple[str, ...] | None = Field(None, description="any argv; {name} becomes the parameter of that name")
    params: Mapping[str, Scalar] = Field({}, description="parameters that are the same in every case")
    matrix: Mapping[str, Values] = Field({}, description="parameters that vary: the cases are the product of the lists")
    exclude: tuple[Region, ...] = Field((), description="cases left out: those that match every value of an entry")
    include: tuple[Point, ...] = Field((), description="cases added to the product")
    baseline: Point | None = Field(None, description="what the others are compared with: {impl: sdpa_flash}")

    @model_validator(mode="after")
    def _one_way_to_run(self) -> Workload:
        if (self.script is None) == (self.command is None) or self.command == ():
            raise ValueError("needs either 'script' (a file with build) or 'command' (an argv)")
        return self


class Pipeline(_Model):
    """A pipeline file."""

    version: Literal[1] = Field(description="of this format")
    name: str = Field("profpipe", pattern=_NAME, description="part of the name of the results' folder")
    defaults: Settings = Settings()
    workloads: Mapping[Annotated[str, Field(pattern=_NAME)], Workload] = Field(min_length=1)
    coverage: Coverage = Coverage()
    kernel_classes: tuple[KernelRule, ...] = ()


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
    _narrow_baselines(document, written)
    _merge_defaults(document)
    try:
        pipeline = Pipeline.model_validate(document)
    except ValidationError as error:
        raise _config_error(where, _told_once(list(_explained(error)))) from None
    _reject(where, [mistake for name, w in pipeline.workloads.items() for mistake in _mistakes(name, w, path)])
    return pipeline


def variables(path: Path) -> list[str]:
    """The environment variables that the file takes values from; not those below ``env``, which may be secrets."""
    return list(dict.fromkeys(placeholders(read(path, shown(path)))))


def script_path(script: str, pipeline_path: Path) -> Path | None:
    """The file a workload's ``script`` means: a path relative to the pipeline file, else a name in ``workloads/``."""
    beside = pipeline_path.resolve().parent
    filename = script if script.endswith(".py") else f"{script}.py"
    if (beside / filename).is_file():
        return beside / filename
    return load.find("workloads", filename, beside) if "/" not in script and "\\" not in script else None


def declared_params(script: Path) -> dict[str, Any] | None:
    """The literal ``PARAMS`` of a workload's file: parameter names and defaults. None where it declares none.

    Read from the syntax tree, so that checking a pipeline never runs a user's code and needs no torch.
    """
    for node in ast.parse(script.read_text(encoding="utf-8"), filename=str(script)).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        value = getattr(node, "value", None)
        if isinstance(target, ast.Name) and target.id == "PARAMS" and value is not None:
            declared = ast.literal_eval(value)
            if not isinstance(declared, dict):
                raise ValueError("PARAMS is not a mapping of names to defaults")
            return declared
    return None


# --- reading ---------------------------------------------------------------------------------------------------------


def _merge_defaults(document: dict[str, Any]) -> None:
    """Puts ``defaults`` under each workload; ``env`` and tool options are merged key by key."""
    defaults, workloads = document.get("defaults"), document.get("workloads")
    if not isinstance(defaults, dict) or not isinstance(workloads, dict):
        return
    # A key that defaults may not have is reported once, there, and not again in every workload.
    shared = {k: v for k, v in defaults.items() if k in Settings.model_fields}
    for name, workload in workloads.items():
        if not isinstance(workload, dict):
            continue
        merged = {**shared, **workload}
        for key, value in shared.items():
            if isinstance(value, dict) and isinstance(workload.get(key), dict):
                merged[key] = {**value, **workload[key]}
        workloads[name] = merged


def _override(document: dict[str, Any], override: str, path: Path) -> None:
    """Applies one ``--set``: a path in the file, or the bare name of a parameter, for every workload that knows it."""
    key, equals, text = override.partition("=")
    keys = key.strip().split(".")
    if not equals or not all(keys):
        raise ConfigError("--set", f"{override!r} is not KEY=VALUE.", "For example: --set seqlen=1024,4096")
    if len(keys) > 1 or keys[0] in Pipeline.model_fields:
        _assign(document, keys, scalar(text))
        return
    workloads = document.get("workloads")
    known = {n: _known_names(w, path) for n, w in workloads.items()} if isinstance(workloads, dict) else {}
    if keys[0] in Settings.model_fields:
        for name in known:
            _assign(document, ["workloads", name, keys[0]], scalar(text))
        return
    takers = [name for name, names in known.items() if keys[0] in names]
    if not takers:
        everything = {*Settings.model_fields, *(n for names in known.values() for n in names)}
        raise ConfigError("--set", f"unknown name '{keys[0]}'.", did_you_mean(keys[0], everything))
    for name in takers:
        # A matrix axis also takes one value, so a fixed parameter becomes an axis: its cases then carry its name.
        _assign(document, ["workloads", name, "matrix", keys[0]], scalar(text))


def _narrow_baselines(document: dict[str, Any], written: dict[str, Any]) -> None:
    """A baseline that the environment or ``--set`` took out of the matrix gives way to the axis's first value.

    ``IMPLS=fa2,sage ./auto_profile.sh`` is no mistake in the file. A baseline that is not in the file's own matrix is,
    and stays as it stands, to be refused.
    """
    for name, workload in _mapping(document, "workloads").items():
        matrix, baseline = _mapping(workload, "matrix"), _mapping(workload, "baseline")
        in_file = _mapping(_mapping(_mapping(written, "workloads"), name), "matrix")
        for axis, value in baseline.items():
            now = as_list(matrix.get(axis))
            before = as_list(without_environment(in_file.get(axis)))
            if isinstance(now, list) and now and value not in now and isinstance(before, list) and value in before:
                baseline[axis] = now[0]


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
    names = {k for part in ("params", "matrix") if isinstance(workload.get(part), dict) for k in workload[part]}
    script = script_path(str(workload["script"]), path) if workload.get("script") else None
    return names | set((declared_params(script) if script else None) or {})


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


# --- mistakes --------------------------------------------------------------------------------------------------------


def _config_error(where: str, mistakes: Sequence[tuple[str, str, str]]) -> ConfigError:
    first, *rest = [ConfigError(f"{where}: {at}" if at else where, what, remedy) for at, what, remedy in mistakes]
    if rest:
        first.args = ("\n".join(str(error) for error in (first, *rest)),)
    return first


def _reject(where: str, mistakes: Sequence[tuple[str, str, str]]) -> None:
    if mistakes:
        raise _config_error(where, mistakes)


def _explained(error: ValidationError) -> Iterator[tuple[str, str, str]]:
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


def _told_once(mistakes: Sequence[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
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
    if "profilers" in location:
        yield from PROFILERS
    elif "version" in location:
        yield 1


def _mistakes(name: str, workload: Workload, path: Path) -> Iterator[tuple[str, str, str]]:
    at = f"workloads.{name}"
    if workload.script is not None:
        yield from _script_mistakes(at, workload, workload.script, path)
    for axis in workload.matrix:
        if axis in workload.params:
            yield f"{at}.matrix.{axis}", "is also in params.", "Keep one of the two."
    axes = set(workload.matrix)
    for word in re.findall(r"\{([A-Za-z_]\w*)\}", " ".join(workload.command or ())):
        known = axes | set(workload.params)
        # Braces that resemble no parameter are the command's own: an argument may be JSON.
        if word not in known and (remedy := did_you_mean(word, known)).startswith("Did you mean"):
            yield f"{at}.command", f"there is no parameter '{word}'.", remedy
    baseline = (workload.baseline or {},)
    for part, points in (("exclude", workload.exclude), ("include", workload.include), ("baseline", baseline)):
        known = axes | set(workload.params) if part == "include" else axes
        for word in dict.fromkeys(key for point in points for key in point if key not in known):
            yield f"{at}.{part}", f"'{word}' is not an axis of the matrix.", did_you_mean(word, known)
    for axis, value in (workload.baseline or {}).items():
        values = [*workload.matrix.get(axis, []), *(p[axis] for p in workload.include if axis in p)]
        if axis in axes and value not in values:
            yield f"{at}.baseline", f"{axis}={value} is not in the matrix.", did_you_mean(str(value), map(str, values))


def _script_mistakes(at: str, workload: Workload, script: str, path: Path) -> Iterator[tuple[str, str, str]]:
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
