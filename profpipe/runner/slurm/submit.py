"""Make the folder of a run on a cluster, and submit its tasks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from profpipe.config.slurm import Slurm
from profpipe.ingest import registry
from profpipe.results import atomic, folders, manifest, store
from profpipe.results.schema import Tables
from profpipe.results.tasks import TaskEntry
from profpipe.runner import fingerprint, seal, session
from profpipe.runner.request import Machine, RunRequest
from profpipe.runner.slurm import queue, records, script
from profpipe.runner.slurm.plan import ClusterPlan, Compared
from profpipe.runner.slurm.queue import Submission


def settings_of(request: RunRequest) -> Slurm:
    return request.pipeline.slurm or Slurm()


def plan_tasks(request: RunRequest, compared: Compared) -> ClusterPlan:
    session.load_rules(request)
    return ClusterPlan.create(request, settings_of(request).spread, compared)


def write_script(request: RunRequest, folder: Path, tasks: int) -> str:
    """Return the batch script of the run in ``folder``, whose request is ``request``."""
    return script.write(settings_of(request), folder, request.pipeline.name, tasks, request.pipeline_dir)


def create(request: RunRequest, command: Sequence[str], compared: Compared) -> Path:
    """Make the folder of a new run with its plan and its batch script, and return it. Nothing is submitted.

    The tools and GPUs of this machine do not matter: each task examines its node.
    """
    plan = plan_tasks(request, compared)
    registry.parsers(request.plugin_dir)
    machine, now = Machine.examine(request), manifest.utc_now()
    planned = session.plan_jobs(request, machine, request.out)
    folders.remove_litter(request.out)
    begun = session.begin_run(request, machine, now, planned, command, planned[0].cwd)

    def fill(folder: Path) -> None:
        request.save(folder)
        fingerprint.save_sources(folder, planned)
        seal.save(folder)
        plan.save(folder)
        records.make_folders(folder)
        store.save(folder, Tables(), begun)

    folder = folders.create(request.out, request.pipeline.name, now, fill)
    (folder / script.LOGS).mkdir()
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
    return [task.index for task in tasks if not (task.state.is_queued or task.state is task.state.DONE)]
