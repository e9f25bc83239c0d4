"""Pipeline x machine -> [Job]. Pure: starts no process and touches no file."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from profpipe.errors import ConfigError, did_you_mean
from profpipe.job import Case, Job, Missing, Scalar, Tool, as_text
from profpipe.pipeline import Pipeline, Workload

#: The case of a workload without a matrix. It needs a name: an empty case means "outside every case range".
ONLY_CASE = "default"

#: What of a workload's settings the profilers, the runner and the harness read.
_FOR_THE_JOB = {"ncu", "timing", "tolerance", "case_timeout_s", "skip_larger_after_oom"}

#: Why a profiler cannot watch several processes that work together.
_OF_ONE_PROCESS = {
    "ncu": "ncu replays one kernel at a time, and one that waits for another process would wait for ever",
    "rocprof": "what rocprof writes of several processes is not read yet",
}


def plan(
    pipeline: Pipeline,
    tools: Mapping[str, Tool | Missing],
    *,
    scripts: Mapping[str, Path],
    cwd: Path,
    out: Path,
    python: str,
    env: Mapping[str, str] = MappingProxyType({}),
    on_gpu: bool = False,
    workloads: Sequence[str] = (),
    profilers: Sequence[str] = (),
) -> list[Job]:
    """The jobs of ``pipeline`` in the order in which they run.

    ``scripts`` gives the file of each workload that has one, ``out`` the run's folder, ``cwd`` where processes start
    (the pipeline file's folder), ``env`` what every workload's process needs. ``workloads`` and ``profilers`` narrow
    the choice. A tool that is missing still gets its job, so that its cases become `skipped` rows with the reason.
    Raises ConfigError for an unknown name.
    """
    _known("-w", workloads, pipeline.workloads)
    _known("-p", profilers, tools)
    jobs = []
    for name, workload in pipeline.workloads.items():
        if workloads and name not in workloads:
            continue
        every = cases(workload)
        if not every:
            raise ConfigError(f"workloads.{name}", "has no case left.", "Its exclude takes away the whole matrix.")
        for profiler in dict.fromkeys(profilers or workload.profilers):
            tool = _usable(tools[profiler], workload)
            for number, group in enumerate(_groups(workload, every), start=1):
                folder = out / "raw" / name / profiler
                if len(every) > 1 and len(group) < len(every):
                    folder /= f"{number:0{len(str(len(every)))}d}"
                jobs.append(
                    Job(
                        workload=name,
                        profiler=profiler,
                        cases=tuple(group),
                        folder=folder,
                        tool=tool,
                        python=python,
                        cwd=cwd,
                        script=scripts.get(name),
                        command=_filled(workload.command or (), group[0].params),
                        warmup=workload.warmup,
                        repeats=workload.repeats,
                        timeout_s=workload.timeout_s,
                        env={**env, **_own_env(workload, group[0].params)},
                        options=workload.model_dump(include=_FOR_THE_JOB),
                        on_gpu=on_gpu,
                        processes=workload.processes,
                    )
                )
    return jobs


def cases(workload: Workload) -> list[Case]:
    """The points of the matrix, less those excluded, and those included, each once. The last axis varies fastest."""
    axes = list(workload.matrix)
    product = (dict(zip(axes, values, strict=True)) for values in itertools.product(*workload.matrix.values()))
    points = [point for point in product if not any(_matches(point, region) for region in workload.exclude)]
    for point in workload.include:
        # An axis comes first in the name even where an entry writes it last, so that names stay comparable.
        points.append({axis: point[axis] for axis in axes if axis in point} | dict(point))
    # Two cases of one name (SEQLEN=512,512) would be added up as one with twice the iterations.
    named: dict[str, Mapping[str, Scalar]] = {}
    for point in points:
        named.setdefault(case_id(point), point)
    return [Case(name, {**workload.params, **point}) for name, point in named.items()]


def case_id(point: Mapping[str, Scalar]) -> str:
    """``impl=fa2,batch=2``. What separates names and ranges is percent-encoded, so that an id can be taken apart."""
    return ",".join(f"{_encoded(name)}={_encoded(as_text(value))}" for name, value in point.items()) or ONLY_CASE


def _encoded(text: str) -> str:
    """Besides what separates, all that torch's traces do not keep: what is no ASCII, backslashes and quotes."""
    return "".join(c if c.isascii() and c.isprintable() and c not in '%,=/@ \\"' else _as_bytes(c) for c in text)


def _as_bytes(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "surrogatepass"))


def _matches(point: Mapping[str, Scalar], region: Mapping[str, Sequence[Scalar]]) -> bool:
    return all(point[axis] in values for axis, values in region.items())


def _groups(workload: Workload, every: list[Case]) -> Iterator[list[Case]]:
    """One process for all cases; for each its own where asked for, and for a command, which can run only one."""
    if workload.isolate or workload.command is not None:
        yield from ([case] for case in every)
    else:
        yield every


def _own_env(workload: Workload, params: Mapping[str, Scalar]) -> dict[str, str]:
    """A command's variables are filled as its words are. Those of a script hold for all cases of its process."""
    if workload.command is None:
        return dict(workload.env)
    return dict(zip(workload.env, _filled(list(workload.env.values()), params), strict=True))


def _filled(words: Sequence[str], params: Mapping[str, Scalar]) -> tuple[str, ...]:
    """``{name}`` replaced by the parameter. Other braces stay: an argument may well be JSON."""
    filled = []
    for word in words:
        for name, value in params.items():
            word = word.replace(f"{{{name}}}", as_text(value))
        filled.append(word)
    return tuple(filled)


def _usable(tool: Tool | Missing, workload: Workload) -> Tool | Missing:
    if tool.name == "torch" and workload.command is not None:
        return Missing("torch", "torch.profiler works inside the process, and a command is not ours", "Use `script:`.")
    if workload.processes > 1 and tool.name in _OF_ONE_PROCESS:
        return Missing(tool.name, _OF_ONE_PROCESS[tool.name], "Use plain, torch or nsys, or processes: 1.")
    return tool


def _known(flag: str, given: Sequence[str], known: Mapping[str, Any]) -> None:
    for word in given:
        if word not in known:
            raise ConfigError(flag, f"unknown name '{word}'.", did_you_mean(word, known))
