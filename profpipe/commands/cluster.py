"""Submit, follow and collect a run on a Slurm cluster: the common part of ``run``, ``resume`` and ``collect``."""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from profpipe import errors, stdio
from profpipe.analysis.cases import comparisons
from profpipe.commands import arguments, execution, rendering
from profpipe.config import yaml
from profpipe.config.settings import Slurm
from profpipe.errors import ConfigError, Interrupted
from profpipe.job import count_cases, readable
from profpipe.results import folders, manifest
from profpipe.results.manifest import PairsEntry
from profpipe.results.tasks import Task, TaskState
from profpipe.runner import fingerprint
from profpipe.runner.request import RunRequest
from profpipe.runner.sides import PairSide
from profpipe.runner.slurm import collect as records_of_tasks, queue, records, submit

#: Seconds between two looks at the queue: at first, and at most.
_POLL_S, _MOST_POLL_S = 1.0, 15.0
#: How long a collection waits for another one, and how often it starts again because there are newer records.
_LOCK_S, _MOST_READS = 60.0, 5
#: How long the queue is followed while Slurm does not answer.
_SILENT_S = 900.0

#: The states in a line of progress.
_WORDS: Final = {
    TaskState.DONE: "done",
    TaskState.RUNNING: "running",
    TaskState.PENDING: "pending",
    TaskState.REQUEUED: "requeued",
}


def add_options(request: RunRequest, words: Sequence[str], command: str) -> RunRequest:
    """Return the request with the options of sbatch that follow ``command --``."""
    try:
        settings = (request.pipeline.slurm or Slurm()).add_options(words)
        changed = replace(request, pipeline=request.pipeline.model_copy(update={"slurm": settings}))
        return changed.with_secrets({})
    except ValueError as error:
        text = str(error).splitlines()[0]
        raise ConfigError(f"{command} --", f"{text}.", "For example: -- --mem=64G --account=physics") from None


# --- submitting ------------------------------------------------------------------------------------------------------


def print_plan(request: RunRequest) -> None:
    """Print the batch script and the plan of a run. Nothing is submitted or written."""
    tasks = submit.plan_tasks(request, comparisons)
    folder = request.out / folders.folder_name(request.pipeline.name, manifest.utc_now())
    print(submit.write_script(request.placed_in(folder), folder, len(tasks)))
    print(f"# The plan, {_count(len(tasks), 'task')}:")
    for task in tasks:
        print(f"# {task.index}: {task.workload} under {', '.join(task.profilers)}: {count_cases(len(task.cases))}")
        for case in task.cases:
            print(f"#   {readable(case)}")


def start(
    request: RunRequest,
    command: list[str],
    args: argparse.Namespace,
    both: tuple[PairSide, PairSide] | None = None,
    settings: PairsEntry | None = None,
) -> int:
    """Submit a new run, of the pairs of two sides where these are given; with ``--wait`` follow and collect it."""
    queue.require_slurm()
    folder = submit.create(request, command, comparisons, both, settings)
    try:
        with _lock(folder):
            # A `resume` may have submitted the tasks before this process had the lock.
            queue.adopt(folder)
            made = queue.read_submissions(folder) or submit.submit(
                folder, request.placed_in(folder), range(len(records.load_plan(folder)))
            )
    except (queue.SubmissionUnknown, queue.SlurmSilent, folders.InUse):
        # Tasks of the run may be in the queue, or another process works on it.
        raise
    except errors.ProfpipeError:
        if not queue.read_submissions(folder):
            folders.discard(folder)
        raise
    return _after(folder, made, args)


def resume(folder: Path, request: RunRequest, options: Sequence[str], args: argparse.Namespace) -> int:
    """Submit the tasks that are neither done nor in the queue."""
    queue.require_slurm()
    made: list[queue.Submission] = []
    # Another `resume` sees in the queue what this one submits.
    with _lock(folder):
        # Without an answer, tasks that run would be submitted again.
        tasks = _look(folder, records.load_plan(folder), manifest.Manifest.load(folder).tasks)
        if indices := [task.index for task in tasks if not (task.state.is_queued or task.state is TaskState.DONE)]:
            made = submit.submit(folder, request, indices, options)
    if made:
        return _after(folder, made, args)
    if args.wait and any(task.state.is_queued for task in tasks):
        follow(folder, args.quiet)
    elif not args.quiet:
        waiting = sum(task.state.is_queued for task in tasks)
        left = f"{_count(waiting, 'task')} in the queue and nothing to submit" if waiting else "nothing left to do"
        print(f"{folder.name} has {left}.", file=sys.stderr)
    return collect(folder, args)


def _after(folder: Path, made: Sequence[queue.Submission], args: argparse.Namespace) -> int:
    """Say what was submitted; with ``--wait`` follow and collect it."""
    jobs, count = [submission.job for submission in made], sum(len(submission.indices) for submission in made)
    if args.wait:
        if not args.quiet:
            print(f"Submitted {_count(count, 'task')} as {_shown(jobs)}.", file=sys.stderr)
        follow(folder, args.quiet)
        return collect(folder, args)
    if arguments.prints_json(args):
        print(stdio.as_json({"run": str(folder), "tasks": count, "jobs": jobs}))
    elif args.quiet:
        print(yaml.shown(folder))
    else:
        print(f"Submitted {_count(count, 'task')} as {_shown(jobs)}. To read what is done at any time:")
        print(f"  {execution.command('collect', folder)}")
    return errors.OK


def _shown(jobs: Sequence[int]) -> str:
    return f"job {jobs[0]}" if len(jobs) == 1 else f"jobs {', '.join(map(str, jobs))}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


# --- following -------------------------------------------------------------------------------------------------------


def follow(folder: Path, is_quiet: bool) -> None:
    """Return when no task of the run is in the queue. Raises Interrupted at Ctrl-C; the tasks then go on."""
    plan, shown, pause_s, silent_since = records.load_plan(folder), "", _POLL_S, math.inf
    try:
        while True:
            try:
                states, silent_since = [task.state for task in _look(folder, plan)], math.inf
                line, is_over = progress_line(states), not any(state.is_queued for state in states)
            except queue.SlurmSilent as error:
                # A controller that is started again answers after some minutes.
                silent_since = min(silent_since, time.monotonic())
                if time.monotonic() > silent_since + _SILENT_S:
                    raise
                line, is_over = str(error), False
            if line != shown and not is_quiet:
                print(line, file=sys.stderr, flush=True)
            if is_over:
                return
            pause_s = _POLL_S if line != shown else min(1.5 * pause_s, _MOST_POLL_S)
            shown = line
            time.sleep(pause_s)
    except KeyboardInterrupt:
        jobs = " ".join(str(submission.job) for submission in queue.read_submissions(folder))
        what = f"Interrupted. The tasks stay in the queue; `scancel {jobs}` stops them."
        raise Interrupted(f"{what} To read what is done: {execution.command('collect', folder)}") from None


def _look(folder: Path, plan: Sequence[Task], before: Sequence[Task] = ()) -> list[Task]:
    """Return what became of each task. Slurm is asked first: a task that ends after that has its record."""
    seen = _ask(folder)
    return records_of_tasks.describe_tasks(folder, plan, records.read_records(folder), seen, before)


def _ask(folder: Path) -> dict[int, Task]:
    """Return what Slurm says of each task, also of an array whose number sbatch did not give."""
    queue.adopt(folder)
    return queue.look_up(queue.read_submissions(folder))


def progress_line(states: Sequence[TaskState]) -> str:
    """Return ``12 of 40 tasks done, 4 running, 23 pending, 1 not finished``."""
    counts = Counter(_WORDS.get(state, "not finished") for state in states)
    others = [f"{counts[word]} {word}" for word in ("running", "pending", "requeued", "not finished") if counts[word]]
    return ", ".join([f"{counts['done']} of {_count(len(states), 'task')} done", *others])


# --- collecting ------------------------------------------------------------------------------------------------------


def collect(folder: Path, args: argparse.Namespace) -> int:
    """Merge the records that are there, write the report and print it; return the exit code.

    A file system may have no locks. So the records are listed again afterwards: of two collections, the one that ends
    last has read the newest records.
    """
    records.load_plan(folder)
    request = RunRequest.load(folder)
    templates = _find_templates(folder, request)
    with _lock(folder):
        for _ in range(_MOST_READS):
            before = records.list_records(folder)
            result, run = _collect(folder, request, templates, csv=args.csv)
            if records.list_records(folder) == before:
                break
    rendering.print_result(result, args)
    lacking = [task for task in run.tasks if task.state is not TaskState.DONE]
    if lacking and not (args.quiet or args.json):
        print(f"profpipe: {progress_line([task.state for task in run.tasks])}.", file=sys.stderr)
    return errors.SOME_FAILED if lacking else result.exit_code


def _find_templates(folder: Path, request: RunRequest) -> Mapping[str, Path]:
    """Return the templates of the pipeline; of a run that somebody else may have made, those of the current folder."""
    templates = rendering.find_templates(request.plugin_dir, not_below=folder)
    if not (doubt := fingerprint.find_doubt(folder)):
        return templates
    # Somebody else may have chosen the path of its pipeline file.
    others = rendering.find_templates(Path.cwd(), not_below=folder)
    if templates != others:
        what = f"{folder.name} was not made by this user on this machine: {doubt}."
        print(f"profpipe: {what} The templates of its pipeline are not used.", file=sys.stderr)
    return others


def _collect(
    folder: Path, request: RunRequest, templates: Mapping[str, Path], *, csv: bool
) -> tuple[rendering.RunReport, manifest.Manifest]:
    try:
        seen: dict[int, Task] | None = _ask(folder)
        silence = ""
    except queue.SlurmSilent as error:
        seen, silence = None, str(error)
    data, run = records_of_tasks.collect(folder, seen)
    if silence and not run.ended:
        print(f"profpipe: {silence} The report has the states of the last collection.", file=sys.stderr)
    result = execution.write_results(folder, request, data, run, templates=templates, csv=csv)
    run.save(folder)
    return result, run


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Keep other commands from working on the run. One that does is waited for."""
    until = time.monotonic() + _LOCK_S
    with ExitStack() as held:
        while True:
            try:
                held.enter_context(folders.lock(folder))
                break
            except folders.InUse:
                if time.monotonic() > until:
                    raise
            time.sleep(0.2)
        yield
