"""Make the folder of a run on a cluster, and submit its tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from profpipe.config.slurm import Slurm
from profpipe.errors import ConfigError
from profpipe.ingest import reader
from profpipe.results import atomic
from profpipe.results.manifest import Manifest, PairsEntry, PlannedJob
from profpipe.results.tasks import TaskEntry
from profpipe.runner import fingerprint, pair_session, session, sides
from profpipe.runner.request import Machine, RunRequest
from profpipe.runner.sides import Side
from profpipe.runner.slurm import node_sessions, queue, records, script
from profpipe.runner.slurm.plan import ClusterPlan, Compared
from profpipe.runner.slurm.queue import Submission


def settings_of(request: RunRequest) -> Slurm:
    return request.pipeline.slurm or Slurm()


def plan_tasks(request: RunRequest, compared: Compared) -> ClusterPlan:
    """Return the plan of a run. Raises ConfigError for a workload that the pipeline does not have."""
    plan = _plan(request, compared)
    session.plan_jobs(request, Machine.examine(request), request.out)
    return plan


def _plan(request: RunRequest, compared: Compared) -> ClusterPlan:
    session.load_rules(request)
    return ClusterPlan.create(request, settings_of(request).spread, compared)


def write_script(request: RunRequest, folder: Path, tasks: int) -> str:
    """Return the batch script of the run in ``folder``, whose request is ``request``."""
    name, cwd = request.pipeline.name, request.pipeline_dir
    return script.write(settings_of(request), folder, name, tasks, cwd, _shape(request))


def _shape(request: RunRequest) -> tuple[int, int]:
    """Return the nodes of a task and the processes on each. Raises ConfigError where workloads differ in them."""
    pairs = request.pipeline.workloads.items()
    chosen = {name: own for name, own in pairs if not request.workloads or name in request.workloads}
    shapes = {(own.nodes, own.tasks_per_node) for own in chosen.values()}
    if len(shapes) > 1:
        what = "have different `nodes` or `tasks_per_node`, and all tasks of an array are alike."
        raise ConfigError(f"workloads {', '.join(chosen)}", what, "Submit each of them alone: -w NAME.")
    return shapes.pop()


def create(request: RunRequest, command: Sequence[str], compared: Compared) -> Path:
    """Make the folder of a new run with its plan and its batch script, and return it. Nothing is submitted.

    The tools and GPUs of this machine do not matter: each task examines its node.
    """
    plan, machine = _plan(request, compared), Machine.examine(request)
    planned = session.plan_jobs(request, machine, request.out)
    begun = session.begin_run(request, machine, planned[0].cwd, planned, command)
    return _make_folder(request, plan, begun, lambda folder: fingerprint.save_sources(folder, planned))


def plan_pairs(request: RunRequest, both: tuple[Side, Side]) -> ClusterPlan:
    """Return the plan of an `ab` run; ``request`` is that of A at the user's own pipeline file."""
    session.load_rules(request)
    joined = pair_session.join_cases(both[0].request.pipeline, both[1].request.pipeline, request.workloads)
    return ClusterPlan.of_pairs(request.pipeline, {name: [case for case, *_ in own] for name, own in joined.items()})


def create_pairs(request: RunRequest, both: tuple[Side, Side], settings: PairsEntry, command: Sequence[str]) -> Path:
    """Make the folder of a new `ab` run, as ``create`` does. Each task chooses the profiler of the captures."""
    plan, machine = plan_pairs(request, both), Machine.examine(request)
    begun = session.begin_run(request, machine, sides.working_folder(request), command=command)
    planned = tuple(PlannedJob(task.workload, "plain", task.cases) for task in plan.tasks)

    def write(folder: Path) -> None:
        sides.save(folder, both)
        fingerprint.save_sources(folder, node_sessions.jobs_of_sides(both, machine, folder))

    return _make_folder(request, plan, replace(begun, ab=settings, planned=planned), write)


def _make_folder(request: RunRequest, plan: ClusterPlan, begun: Manifest, write: Callable[[Path], object]) -> Path:
    """Make the folder of a run with its plan, its batch script and what ``write`` adds; return it."""
    reader.parsers(request.plugin_dir)
    # What cannot stand in the batch script is refused before there is a folder.
    write_script(request, request.out, len(plan.tasks))

    def write_all(folder: Path) -> None:
        write(folder)
        plan.save(folder)
        records.make_folders(folder)
        (folder / script.LOGS).mkdir()

    folder = session.make_folder(request, begun, write_all)
    _save_script(request.placed_in(folder), folder, len(plan.tasks))
    return folder


def _save_script(request: RunRequest, folder: Path, tasks: int) -> None:
    # Private, for setup lines may set passwords.
    atomic.write_private(folder / script.FILE, write_script(request, folder, tasks).encode())


def submit(folder: Path, request: RunRequest, indices: Sequence[int], options: Sequence[str] = ()) -> list[Submission]:
    """Submit the tasks of these indices of the run in ``folder``, with further options of sbatch.

    The script is written again: somebody may have changed the one in the folder.
    """
    _save_script(request, folder, len(ClusterPlan.load(folder).tasks))
    return queue.submit(folder, folder / script.FILE, indices, script.limit(settings_of(request)), options)


def missing(tasks: Sequence[TaskEntry]) -> list[int]:
    """Return the indices to submit again: those that are neither done nor in the queue."""
    return [each.index for each in tasks if not (each.state.is_queued or each.state is each.state.DONE)]
