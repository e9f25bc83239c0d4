"""Make the folder of a run on a cluster, with its plan and its batch script, and submit its tasks.

The plan says which cases and profilers each index of the array has. It is data in the run's folder: a task reads its
index, and the command that collects reads all of it.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from profpipe import __version__
from profpipe.config.models import Workload
from profpipe.config.settings import Slurm, Spread, option_lines
from profpipe.errors import ConfigError
from profpipe.ingest import reader
from profpipe.job import Case, Job
from profpipe.results import atomic
from profpipe.results.manifest import PairsEntry
from profpipe.results.tasks import Task
from profpipe.runner import fingerprint, guided_ncu, plan, process, session, sides
from profpipe.runner.request import ExaminedMachine, RunRequest, plan_jobs
from profpipe.runner.sides import PairSide
from profpipe.runner.slurm import queue, records
from profpipe.runner.slurm.queue import Submission

SCRIPT: Final = records.FOLDER / "job.sh"
LOGS: Final = records.FOLDER / "logs"

#: Returns the cases of a workload in groups that the report compares with each other.
Compared = Callable[[Sequence[Case], Workload], Sequence[Sequence[str]]]

#: What sbatch reads in a line `#SBATCH` as it stands. A quote, a backslash, a space or `#` has a meaning there.
_PLAIN: Final = re.compile(r"[A-Za-z0-9_.,:;=@%&|()\[\]*+/^~{}<>?!$-]+")


def settings_of(request: RunRequest) -> Slurm:
    return request.pipeline.slurm or Slurm()


# --- the plan --------------------------------------------------------------------------------------------------------


def plan_tasks(request: RunRequest, compared: Compared, both: tuple[PairSide, PairSide] | None = None) -> list[Task]:
    """Return the tasks of a run in the order of the workloads and cases in the file.

    All pairs of a case of an `ab` run are one task, and so are the cases that share their processes. Raises ConfigError
    for a workload that the pipeline does not have.
    """
    session.load_rules(request)
    # Refuses unknown names.
    planned = session.plan_run(request, ExaminedMachine.examine(request), both)
    if both:
        # Cases in one process are one job.
        tasks = [
            Task(workload=job.workload, cases=tuple(c.id for c in job.cases), profilers=("plain",)) for job in planned
        ]
    else:
        chosen, spread = {job.workload for job in planned}, settings_of(request).spread
        names = (name for name in request.pipeline.workloads if name in chosen)
        tasks = [task for name in names for task in _tasks_of(request, name, spread, compared)]
    return [replace(task, index=index) for index, task in enumerate(tasks)]


def _tasks_of(request: RunRequest, name: str, spread: Spread, compared: Compared) -> Iterator[Task]:
    """Yield the tasks of a workload."""
    workload = request.pipeline.workloads[name]
    profilers = tuple(dict.fromkeys(request.profilers or workload.profilers))
    cases = plan.cases(workload)
    counted = request.ncu_cases.get(name, [case.id for case in cases])
    groups = compared(cases, workload)
    if spread == "comparisons":
        yield from (Task(workload=name, cases=tuple(group), profilers=profilers) for group in groups)
        return
    reference = _reference(groups, cases, workload)
    for case in cases:
        for group in _apart(profilers, workload) if spread == "all" else [profilers]:
            if group == ("ncu",) and case.id not in counted:
                continue
            has_other = "plain" in group and case.id != reference
            yield Task(workload=name, cases=(case.id,), profilers=group, reference=reference if has_other else "")


def _reference(groups: Sequence[Sequence[str]], cases: Sequence[Case], workload: Workload) -> str:
    """Return the baseline of the first comparison, or its first case; empty where nothing is compared."""
    first = next((set(group) for group in groups if len(group) > 1), set())
    baseline = workload.baseline or {}
    members = [case for case in cases if case.id in first]
    is_baseline = (case for case in members if all(case.params.get(name) == value for name, value in baseline.items()))
    return next(is_baseline, members[0]).id if members else ""


def _apart(profilers: Sequence[str], workload: Workload) -> list[tuple[str, ...]]:
    """Return each profiler alone. Guided ncu stays with the captures that name its kernels."""
    guided = "ncu" in profilers and workload.ncu.kernels == "guided"
    together = tuple(name for name in profilers if guided and name in (*guided_ncu.GUIDES, "ncu"))
    alone: list[tuple[str, ...]] = [(name,) for name in profilers if name not in together]
    return [*alone, together] if together else alone


# --- the batch script ------------------------------------------------------------------------------------------------


def write_script(request: RunRequest, folder: Path, tasks: int) -> str:
    """Return the batch script of the run in ``folder``: task i of the array runs index i of the plan.

    ``request`` is that of the run. The first word after the name of the script is added to the index, for a run with
    more tasks than an array may have. A second one identifies the array in the queue.
    """
    settings = settings_of(request)
    directives = _directives(settings, folder, request.pipeline.name, tasks, _shape(request))
    lines = [
        "#!/bin/bash",
        f"# Written by profpipe {__version__}. Task i of the array runs index i of plan.json in this folder.",
        *(f"#SBATCH {' '.join(map(_directive_word, words))}" for words in directives),
        f"cd {shlex.quote(str(request.pipeline_dir))} || exit",
        *settings.setup,
    ]
    # A container has another Python, and its own profpipe.
    if settings.python is None:
        lines.append(f"export PYTHONPATH={shlex.quote(process.python_path())}")
    # Import profpipe from where it is, not from the folder of the task. The interpreter of a container may be older.
    safe = ["-P"] if settings.python is None and sys.version_info >= (3, 11) else []
    words = [*settings.launcher, settings.python or sys.executable, *safe, "-m", "profpipe", "task", str(folder)]
    # exec: signals of Slurm reach profpipe, which then ends its processes and writes what they have measured.
    lines.append(f'exec {shlex.join(words)} "$((SLURM_ARRAY_TASK_ID + ${{1:-0}}))"')
    return "\n".join(lines) + "\n"


def _directives(
    settings: Slurm, folder: Path, name: str, tasks: int, shape: tuple[int, int]
) -> Iterator[Sequence[str]]:
    """Yield the words of each line `#SBATCH`."""
    yield [f"--job-name=profpipe-{name}"]
    yield [f"--array={queue.indices(range(tasks))}{queue.limit(settings.array_limit)}"]
    # In a path sbatch replaces patterns such as ``%j``.
    logs = str(folder / LOGS).replace("%", "%%")
    yield [f"--output={logs}/%A_%a.txt"]
    yield ["--open-mode=append"]
    if shape != (1, 1):
        yield [f"--nodes={shape[0]}"]
        yield [f"--ntasks-per-node={shape[1]}"]
    for option in ("partition", "gres", "constraint", "time"):
        if (value := getattr(settings, option)) is not None:
            yield [f"--{option}={value}"]
    yield from option_lines(settings.options)


def _directive_word(word: str) -> str:
    """Return a word as sbatch reads it in a line `#SBATCH`. Raises ConfigError for one that ends the line."""
    if not word.isprintable():
        raise ConfigError(repr(word), "cannot stand in a batch script.", "Choose another --out.")
    if _PLAIN.fullmatch(word):
        return word
    name, equals, value = word.partition("=") if _PLAIN.match(word) else ("", "", word)
    return f'{name}{equals}"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _shape(request: RunRequest) -> tuple[int, int]:
    """Return the nodes of a task and the processes on each. Raises ConfigError where workloads differ in them."""
    pairs = request.pipeline.workloads.items()
    chosen = {name: workload for name, workload in pairs if not request.workloads or name in request.workloads}
    shapes = {(workload.nodes, workload.tasks_per_node) for workload in chosen.values()}
    if len(shapes) > 1:
        what = "have different `nodes` or `tasks_per_node`, and all tasks of an array are alike."
        raise ConfigError(f"workloads {', '.join(chosen)}", what, "Submit each of them alone: -w NAME.")
    return shapes.pop()


# --- the folder ------------------------------------------------------------------------------------------------------


def create(
    request: RunRequest,
    command: Sequence[str],
    compared: Compared,
    both: tuple[PairSide, PairSide] | None = None,
    settings: PairsEntry | None = None,
) -> Path:
    """Make the folder of a new run with its plan and its batch script, and return it. Nothing is submitted.

    ``both`` are the sides of an `ab` run with these ``settings``. The tools and GPUs of this machine do not matter:
    each task examines its node.
    """
    tasks, machine = plan_tasks(request, compared, both), ExaminedMachine.examine(request)
    planned = session.plan_run(request, machine, both)
    begun = replace(session.begin_run(request, machine, planned, command), ab=settings)
    reader.parsers(request.plugin_dir)
    # What cannot stand in the batch script is refused before there is a folder.
    write_script(request, request.out, len(tasks))

    def write(folder: Path) -> None:
        if both:
            sides.save(folder, both)
        fingerprint.save_sources(folder, sources(both, machine, folder) if both else planned)
        records.save_plan(folder, tasks)
        (folder / LOGS).mkdir()

    folder = session.make_folder(request, begun, write)
    _save_script(request.placed_in(folder), folder, len(tasks))
    return folder


def sources(both: tuple[PairSide, PairSide], machine: ExaminedMachine, folder: Path) -> Iterator[Job]:
    """Yield the jobs of the sides whose code is not that of a commit, under the name of the side and the workload."""
    for side in both:
        if side.repository is None:
            for job in plan_jobs(side.request, machine, folder):
                yield replace(job, workload=f"{side.label} {job.workload}")


def _save_script(request: RunRequest, folder: Path, tasks: int) -> None:
    # Private, for setup lines may set passwords.
    atomic.write_private(folder / SCRIPT, write_script(request, folder, tasks).encode())


def submit(folder: Path, request: RunRequest, indices: Sequence[int], options: Sequence[str] = ()) -> list[Submission]:
    """Submit the tasks of these indices of the run in ``folder``, with further options of sbatch.

    The script is written again: somebody may have changed the one in the folder.
    """
    _save_script(request, folder, len(records.load_plan(folder)))
    return queue.submit(folder, folder / SCRIPT, indices, queue.limit(settings_of(request).array_limit), options)
