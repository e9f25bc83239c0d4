"""Pipeline x machine -> [Job]. A pure function: it starts no process and touches no file."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from types import MappingProxyType

from profpipe.config.models import Pipeline, Workload
from profpipe.errors import ConfigError, did_you_mean
from profpipe.job import Case, Job, JobSettings, Launch, Missing, Scalar, Span, Tool, as_text, revealed
from profpipe.measure import case_order
from profpipe.profilers import ALL, find_traits

#: The case of a workload without a matrix. An empty name would mean "outside every case range".
ONLY_CASE = "default"

#: Processes under plain that a run may ask for. A saved request from somebody else may hold any number.
_MOST_PROCESSES = 100_000


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
    captures: int | None = None,
    hidden: Mapping[str, Scalar] = MappingProxyType({}),
    wanted: Collection[str] | None = None,
    allocated: int | None = None,
    comparisons: Mapping[str, Sequence[Sequence[str]]] = MappingProxyType({}),
    ncu_cases: Mapping[str, Collection[str]] = MappingProxyType({}),
    secrets: Mapping[str, str] = MappingProxyType({}),
) -> list[Job]:
    """Return the jobs of ``pipeline`` in the order in which they run.

    ``scripts`` are the files of the workloads, ``out`` is the run's folder, ``cwd`` the folder of the pipeline file, in
    which all processes run unless a command names another, ``env`` the variables of every job. ``workloads`` and
    ``profilers`` narrow the choice. ``captures`` is the number of processes of each case under plain; they run first,
    the first process of every workload before the second of any. A missing tool still gets its job, so that its cases
    become `skipped` rows with the reason. ``hidden`` are the values of parameters by the text in their place, and
    ``secrets`` the published texts of secrets. ``wanted`` narrows the choice to cases of these names. ``allocated`` is
    the number of nodes of the allocation in which profpipe runs; None where it runs in none. ``comparisons`` has the
    cases that the report compares with each other, by workload, where jobs may run side by side. ``ncu_cases`` narrows
    the cases under ncu. Raises ConfigError for an unknown name.
    """
    for flag, given, names in (("-w", workloads, pipeline.workloads), ("-p", profilers, {**ALL, **tools})):
        if unknown := [word for word in given if word not in names]:
            raise ConfigError(flag, f"unknown name '{unknown[0]}'.", did_you_mean(unknown[0], names))
    common = Launch(out, python, cwd, env, on_gpu, secrets=secrets, hidden=hidden)
    jobs: list[Job] = []
    captured: list[Job] = []
    for name, workload in pipeline.workloads.items():
        if workloads and name not in workloads:
            continue
        settings, groups = (
            read_settings(workload),
            _groups(name, workload, wanted, pipeline.gpus, comparisons.get(name)),
        )
        for profiler in dict.fromkeys(profilers or workload.profilers):
            tool, folder = _check_workload(tools[profiler], workload, allocated), out / "raw" / name / profiler
            planned = []
            counted = ncu_cases.get(name) if profiler == "ncu" else None
            for number, (group, grouped) in enumerate(groups, start=1):
                members = tuple(case for case in grouped if counted is None or case.id in counted)
                if not members:
                    continue
                params = revealed(members[0].params, hidden)
                launch = replace(
                    common,
                    folder=folder / _number(number, len(groups)) if len(groups) > 1 else folder,
                    cwd=(cwd / workload.cwd).resolve() if workload.cwd else cwd,
                    env={**env, **_fill_variables(workload, params)},
                    nodes=workload.nodes,
                    tasks_per_node=workload.tasks_per_node,
                    srun=workload.srun,
                )
                command = fill_command(workload, workload.command or (), params)
                what = (name, profiler, members, tool, settings, launch, scripts.get(name), command)
                planned.append(Job(*what, processes=workload.processes, group=group))
            if profiler == "plain" and captures is not None:
                captured += planned
            elif profiler == "plain" and workload.command is not None:
                _check_processes(f"workloads.{name}.repeats", planned, workload.repeats)
                jobs += _repeat_jobs(planned, workload.repeats, workload.timing.seed)
            else:
                jobs += planned
    _check_processes("--captures", captured, captures or 1)
    return [*_repeat_jobs(captured, captures or 1, pipeline.defaults.timing.seed), *jobs]


def _check_processes(where: str, jobs: Sequence[Job], count: int) -> None:
    if len(jobs) * count > _MOST_PROCESSES:
        what = f"asks for {len(jobs) * count:,} processes, more than {_MOST_PROCESSES:,}."
        raise ConfigError(where, what, "Choose a smaller number.")


def _groups(
    name: str,
    workload: Workload,
    wanted: Collection[str] | None,
    gpus: int,
    comparisons: Sequence[Sequence[str]] | None,
) -> list[tuple[str, tuple[Case, ...]]]:
    """Return the cases of each process of a workload, after the name of the group that stays on one GPU.

    With several GPUs a process has the cases of some comparisons: as many processes as GPUs. Sizes often grow along a
    sweep, so neighbours go to different GPUs, in turn from the first to the last and back.
    """
    chosen = [case for case in cases(workload) if wanted is None or case.id in wanted]
    if not chosen:
        raise ConfigError(f"workloads.{name}", "has no case left.", "Its exclude removes the whole matrix.")
    is_split = workload.isolate or workload.command is not None
    if not (workload.is_parallel and comparisons):
        return [("", (case,)) for case in chosen] if is_split else [("", tuple(chosen))]
    numbers = {case: number for number, compared in enumerate(comparisons) for case in compared}
    if is_split:
        return [(f"{name}/{numbers[case.id] + 1}", (case,)) for case in chosen]
    turns = [*range(gpus), *reversed(range(gpus))]
    parts: dict[int, list[Case]] = {}
    for case in chosen:
        parts.setdefault(turns[numbers[case.id] % len(turns)], []).append(case)
    return [(f"{name}/{part + 1}", tuple(members)) for part, members in sorted(parts.items())]


def _number(number: int, most: int) -> str:
    return f"{number:0{len(str(most))}d}"


def _repeat_jobs(jobs: Sequence[Job], count: int, seed: int) -> list[Job]:
    """Return ``count`` processes of each of ``jobs``. Each round has one process of each, in a new order."""
    if count == 1:
        return list(jobs)
    is_one_workload = len({job.workload for job in jobs}) == 1
    names = tuple(job.cases[0].id if is_one_workload else f"{job.workload}/{job.cases[0].id}" for job in jobs)
    return [
        replace(
            job.move_to(job.folder / f"process-{_number(number, count)}"),
            repeat=number,
            captures=count,
            interleaved=names,
        )
        for number, order in case_order.rounds(jobs, count, seed)
        for job in order
    ]


def read_settings(workload: Workload) -> JobSettings:
    """Return the settings of a workload that its jobs have."""
    settings = {field.name: getattr(workload, field.name) for field in fields(JobSettings)}
    span = workload.capture and Span(workload.capture.after_s, workload.capture.for_s)
    return JobSettings(**{**settings, "capture": span})


def _fill_variables(workload: Workload, params: Mapping[str, Scalar]) -> Mapping[str, str]:
    """Return the variables of a workload; those of a command with the parameters of its case."""
    if workload.command is None:
        return workload.env
    words = _flag_words(workload, params)
    return {name: _fill(value, params, words) for name, value in workload.env.items()}


def cases(workload: Workload) -> list[Case]:
    """Return the cases of a workload; their parameters are those of a point and the fixed ones."""
    return [Case(name, {**workload.params, **point}) for name, point in points(workload).items()]


def points(workload: Workload) -> dict[str, Mapping[str, Scalar]]:
    """Return the points of the matrix without the excluded and with the included ones, by the name of their case.

    The last axis varies fastest.
    """
    axes = list(workload.matrix)
    product = (dict(zip(axes, values, strict=True)) for values in itertools.product(*workload.matrix.values()))
    combinations = [
        point
        for point in product
        if not any(all(point[axis] in values for axis, values in region.items()) for region in workload.exclude)
    ]
    for point in workload.include:
        # The axes come first in the name, in their order, so that names stay comparable.
        combinations.append({axis: point[axis] for axis in axes if axis in point} | dict(point))
    # Two cases of one name (SEQLEN=512,512) would be added up as one case with twice the iterations.
    named: dict[str, Mapping[str, Scalar]] = {}
    for point in combinations:
        named.setdefault(case_id(point), point)
    return named


def case_id(point: Mapping[str, Scalar]) -> str:
    """Return ``impl=fa2,batch=2``. Characters that separate names and ranges are percent-encoded."""
    return ",".join(f"{_encoded(name)}={_encoded(as_text(value))}" for name, value in point.items()) or ONLY_CASE


def _encoded(text: str) -> str:
    """Encode separators, and what torch's traces do not keep: non-ASCII characters, backslashes and quotes."""
    encoded = []
    for c in text:
        is_plain = c.isascii() and c.isprintable() and c not in '%,=/@ \\"'
        encoded.append(c if is_plain else "".join(f"%{byte:02X}" for byte in c.encode("utf-8", "surrogatepass")))
    return "".join(encoded)


def _flag_words(workload: Workload, params: Mapping[str, Scalar]) -> dict[str, Sequence[str]]:
    return {name: workload.flag_words(name, params[name]) or () for name in workload.flag}


def fill_command(workload: Workload, command: Sequence[str], params: Mapping[str, Scalar]) -> tuple[str, ...]:
    """Return the words of a command for a case. A word that its parameters leave empty is left out."""
    words, filled = _flag_words(workload, params), list[str]()
    for word in command:
        name = word[1:-1] if word.startswith("{") and word.endswith("}") else ""
        if name in words:
            filled += words[name]
        elif (text := _fill(word, params, words)) or not word:
            filled.append(text)
    return tuple(filled)


def _fill(text: str, params: Mapping[str, Scalar], words: Mapping[str, Sequence[str]]) -> str:
    """Replace each ``{name}`` by the parameter, or by its words. Other braces stay, for an argument may be JSON."""
    for name, value in params.items():
        text = text.replace(f"{{{name}}}", " ".join(words[name]) if name in words else as_text(value))
    return text


def _check_workload(tool: Tool | Missing, workload: Workload, allocated: int | None) -> Tool | Missing:
    """Return ``tool``, or why it cannot profile ``workload`` here."""
    if workload.nodes > max(allocated or 1, 1):
        has = "profpipe runs in no allocation of Slurm" if allocated is None else f"the allocation has {allocated}"
        remedy = f"Use --slurm, or start profpipe in a job of `sbatch --nodes {workload.nodes}`."
        return Missing(tool.name, f"the workload needs {workload.nodes} nodes, and {has}", remedy)
    traits = find_traits(tool.name)
    if workload.capture and traits.no_span and isinstance(tool, Tool) and traits.span_option not in tool.options:
        return Missing(tool.name, *traits.no_span)
    if traits.needs_hook and workload.command is not None and not workload.hook and not workload.collect:
        what = f"{traits.title or tool.name} works inside the process, and hook is false"
        return Missing(tool.name, what, "Remove `hook: false`.")
    if traits.needs_torch and workload.command is not None and isinstance(tool, Missing):
        # The command may have a Python with torch where profpipe's has none.
        return Tool(tool.name, "")
    if workload.script is not None and traits.no_script:
        return Missing(tool.name, traits.no_script, "Use torch or nsys.")
    if max(workload.processes, workload.nodes) > 1 and traits.one_process:
        return Missing(tool.name, traits.one_process, "Use plain, torch or nsys, or one process.")
    return tool
