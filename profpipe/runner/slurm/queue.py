"""Ask Slurm: submit an array, find out what became of its tasks, and end the steps of a job on several nodes.

scontrol and squeue know a task until some minutes after its end (MinJobAge), sacct for months, where the cluster has
accounting. Formats: Slurm 20.11 to 24.05.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from profpipe import errors
from profpipe.errors import ConfigError, ProfpipeError, ToolMissing
from profpipe.job import Job
from profpipe.masking import is_secret_name
from profpipe.measure import node as node_info
from profpipe.results import atomic, budget, manifest
from profpipe.results.manifest import NodeEntry
from profpipe.results.tasks import Task, TaskState
from profpipe.runner import process
from profpipe.runner.slurm import records

SUBMISSIONS: Final = records.FOLDER / "submissions"
#: In that folder: the array that is being submitted, or whose number sbatch did not give.
_BEGUN: Final = "begun.json"

_TIMEOUT_S: Final = 60.0
_DAY_S: Final = 86400
#: The indices that an array may have where Slurm does not say: the default of MaxArraySize.
_MOST: Final = 1001
#: Without it scontrol and squeue cut long lists of indices.
_ENVIRONMENT: Final = {"SLURM_BITSTR_LEN": "0", "SLURM_TIME_FORMAT": "standard"}

#: Slurm's names of each state. With a record, a task that is COMPLETED would be DONE.
_NAMES: Final[Mapping[TaskState, str]] = {
    TaskState.PENDING: "PENDING CONFIGURING RESV_DEL_HOLD SPECIAL_EXIT",
    TaskState.REQUEUED: "REQUEUED REQUEUE_FED REQUEUE_HOLD",
    TaskState.RUNNING: "RUNNING COMPLETING STAGE_OUT SIGNALING SUSPENDED STOPPED RESIZING",
    TaskState.NODE_FAILED: "NODE_FAIL BOOT_FAIL",
    TaskState.TIME_LIMIT: "TIMEOUT DEADLINE",
    TaskState.CANCELLED: "CANCELLED REVOKED",
    TaskState.PREEMPTED: "PREEMPTED",
    TaskState.OUT_OF_MEMORY: "OUT_OF_MEMORY",
    TaskState.FAILED: "FAILED COMPLETED",
}
_STATES: Final = {name: state for state, names in _NAMES.items() for name in names.split()}
#: The exit code of a shell for a command that it cannot start.
_NOT_STARTED: Final = 127
#: Errors after which the controller may have the array all the same: the answer to sbatch was lost.
_LOST: Final = re.compile(
    r"timed out|Zero Bytes|Message receive failure|reset by peer|Transport endpoint", re.IGNORECASE
)
_NONE: Final = ("", "None", "(null)", "N/A")


class SubmissionUnknown(ProfpipeError):
    """Whether sbatch submitted an array is not known: it did not end, or gave no number."""


class SlurmSilent(ProfpipeError):
    """No program of Slurm says what became of the tasks: its controller is away, or this machine has no Slurm."""


@dataclass(frozen=True)
class Submission:
    """An array that was submitted: task ``i`` of ``job`` runs the index ``i + offset`` of the plan."""

    job: int
    indices: tuple[int, ...]
    offset: int = 0
    #: ISO 8601, UTC.
    submitted: str = ""
    #: A word of the command of the array, which no other array has. So Slurm finds it where its number is not known.
    token: str = ""

    def save(self, folder: Path, name: str = "") -> None:
        """Write the submission into the run's ``folder``, under the number of the array unless it has a ``name``."""
        (folder / SUBMISSIONS).mkdir(parents=True, exist_ok=True)
        path = folder / SUBMISSIONS / (name or f"{self.job}.json")
        atomic.write_text(path, json.dumps(asdict(self)) + "\n")

    @classmethod
    def load(cls, path: Path) -> Submission:
        """Raises ConfigError where the file is no submission."""
        try:
            return manifest.parse(cls, budget.load_json(atomic.read_regular(path).decode()))
        except (ValueError, OSError) as error:
            what = f"is not the submission that profpipe wrote: {errors.words(error)}."
            raise ConfigError(str(path), what, "Start a new run.") from None


def read_submissions(folder: Path) -> list[Submission]:
    """Return the arrays of the run in ``folder``, the first one first. Raises ConfigError for a damaged file."""
    paths = (folder / SUBMISSIONS).glob("[0-9]*.json")
    return sorted(map(Submission.load, paths), key=lambda array: (array.submitted, array.job))


def require_slurm() -> None:
    """Raise ToolMissing where this machine cannot submit to Slurm."""
    if not shutil.which("sbatch"):
        raise ToolMissing("sbatch is not on PATH. Submit from a machine of the cluster where `sbatch --version` works.")


def call(argv: Sequence[str], cwd: Path | None = None) -> tuple[int | None, str]:
    """Return exit code and output of a command of Slurm. The code is None where it did not run to its end.

    It gets the whole environment: SLURM_CONF names the cluster, and sbatch passes variables on to the job.
    """
    try:
        return process.call(argv, {**os.environ, **_ENVIRONMENT}, _TIMEOUT_S, cwd)
    except OSError as error:
        return _NOT_STARTED, f"{argv[0]}: {error.strerror}"


def submit(folder: Path, script: Path, wanted: Sequence[int], limit: str, options: Sequence[str]) -> list[Submission]:
    """Submit the tasks of these indices, as several arrays where one cannot have all, and return the arrays.

    ``limit`` is the end of the array specification. Each array is recorded in the run's ``folder`` at once. Raises
    ProfpipeError with the answer of sbatch where it refuses, and SubmissionUnknown where it gives none.
    """
    made: list[Submission] = []
    match = re.search(r"^MaxArraySize\s*=\s*(\d+)", call(["scontrol", "show", "config"])[1], re.MULTILINE)
    most = max(int(match[1]) - 1, 0) if match else _MOST - 1
    while left := wanted[sum(len(submission.indices) for submission in made) :]:
        offset = left[0] if left[-1] > most else 0
        part = tuple(index for index in left if index - offset <= most)
        array = f"--array={indices([index - offset for index in part])}{limit}"
        made.append(_submit_array(folder, part, offset, ["sbatch", "--parsable", array, *options, str(script)]))
    return made


def _submit_array(folder: Path, part: tuple[int, ...], offset: int, argv: Sequence[str]) -> Submission:
    """Submit an array and record it. What is recorded before says how to find the array if its number is lost."""
    begun = Submission(0, part, offset, manifest.utc_now().isoformat(), secrets.token_hex(8))
    begun.save(folder, _BEGUN)
    code, output = call([*argv, str(offset), begun.token])
    answer = " ".join(output.split())
    if code == 0 and (match := re.search(r"^(\d+)(;.*)?$", output, re.MULTILINE)):
        return _record(folder, begun, int(match[1]))
    if code is not None and code > 0 and not _LOST.search(answer):
        atomic.remove(folder / SUBMISSIONS / _BEGUN)
        raise ProfpipeError(f"sbatch refused the array: {answer or 'no answer'}")
    with suppress(SlurmSilent):
        if adopted := adopt(folder):
            return adopted
    what = f"did not end within {_TIMEOUT_S:g} s" if code is None else "gave no number of the array"
    remedy = "The array may be in the queue: `profpipe resume` looks for it there before it submits another one."
    raise SubmissionUnknown(f"sbatch {what}{answer and f': {answer}'}. {remedy}")


def _record(folder: Path, begun: Submission, job: int) -> Submission:
    submission = replace(begun, job=job)
    submission.save(folder)
    atomic.remove(folder / SUBMISSIONS / _BEGUN)
    return submission


def adopt(folder: Path) -> Submission | None:
    """Record the array that was submitted without an answer, and return it; None where Slurm has no such array.

    It is recognised by its token in the queue or in the accounting, or by the number in the first file of a task, which
    stays where Slurm has forgotten the array. Raises SlurmSilent where Slurm does not answer.
    """
    path = folder / SUBMISSIONS / _BEGUN
    if not path.exists():
        return None
    begun = Submission.load(path)
    code, queued = call(["squeue", "--me", "--noheader", "--states=all", "--format=%F|%o"])
    # With a day for time zones and clocks that differ.
    since = f"--starttime=now-{max(time.time() - path.stat().st_mtime, 0) // _DAY_S + 2:.0f}days"
    accounted = call(["sacct", "--noheader", "--parsable2", "--allocations", since, "--format=JobID,SubmitLine"])[1]
    for line in f"{queued}\n{accounted}".splitlines():
        name, _, command = line.strip().partition("|")
        if begun.token in command.split() and (match := re.match(r"\d+", name)):
            return _record(folder, begun, int(match[0]))
    if problem := _problem(code, queued):
        raise SlurmSilent(f"Slurm does not say whether an array of the run is in the queue: {problem}.")
    recorded_jobs = {str(submission.job) for submission in read_submissions(folder)}
    for start in records.read_starts(folder):
        job = start.job.partition("_")[0]
        if start.index in begun.indices and job.isdigit() and job not in recorded_jobs:
            return _record(folder, begun, int(job))
    return None


def look_up(submissions: Sequence[Submission]) -> dict[int, Task]:
    """Return what Slurm says of each index, by the last array that has it. An index that it does not know is absent.

    Raises SlurmSilent where no program of Slurm answers, so that nothing is known.
    """
    # The last array counts.
    left = {index: f"{array.job}_{index - array.offset}" for array in submissions for index in array.indices}
    tasks: dict[int, Task] = {}
    silence: list[str] = []
    programs = (_ask_scontrol, _ask_squeue, _ask_sacct)
    for ask in programs:
        if not left:
            break
        seen: dict[str, Task] = {}
        try:
            for task in ask(sorted({int(name.partition("_")[0]) for name in left.values()})):
                seen.setdefault(task.job, task)
        except SlurmSilent as error:
            silence.append(str(error))
        tasks |= {index: replace(seen[name], index=index) for index, name in left.items() if name in seen}
        left = {index: name for index, name in left.items() if index not in tasks}
    if len(silence) == len(programs):
        raise SlurmSilent(f"Slurm does not answer: {silence[0]}.")
    return tasks


def _problem(code: int | None, text: str) -> str:
    """Return why a program did not answer. That it does not know a job any more is an answer."""
    if code == 0 or "Invalid job id" in text:
        return ""
    return " ".join(text.split()) or "it gives no reason"


def _require_answer(code: int | None, text: str) -> None:
    """Raise SlurmSilent where a program did not answer."""
    if problem := _problem(code, text):
        raise SlurmSilent(problem)


def name_of(submissions: Iterable[Submission], index: int) -> str:
    """Return Slurm's name of the last task that has ``index``: ``4711_7``; empty where none has it."""
    return next(
        (f"{array.job}_{index - array.offset}" for array in reversed([*submissions]) if index in array.indices), ""
    )


def _ask_scontrol(jobs: Sequence[int]) -> list[Task]:
    replies = [call(["scontrol", "--oneliner", "show", "job", str(job)]) for job in jobs]
    rows = [row for _, text in replies for row in _read_scontrol(text)]
    if not rows:
        for reply in replies:
            _require_answer(*reply)
    return rows


def _read_scontrol(text: str) -> Iterator[Task]:
    for line in text.splitlines():
        fields = dict(re.findall(r"(\w+)=(\S*)", line))
        job = fields.get("ArrayJobId", "")
        if "ArrayTaskId" not in fields or not job.isdigit():
            continue
        restarts = fields.get("Restarts", "0") != "0"
        node = fields.get("BatchHost") or fields.get("NodeList", "")
        said = fields.get("JobState", ""), node, fields.get("Reason", ""), fields.get("ExitCode", ""), restarts
        yield from (_seen(f"{job}_{number}", *said) for number in expand(fields["ArrayTaskId"]))


def _ask_squeue(jobs: Sequence[int]) -> list[Task]:
    argv = ["squeue", "--noheader", "--array", "--states=all", "--format=%F|%K|%T|%N|%r"]
    code, text = call([*argv, f"--jobs={','.join(map(str, jobs))}"])
    _require_answer(code, text)
    return [_seen(f"{job}_{number}", state, node, reason) for job, number, state, node, reason in _rows(text, 5)]


def _rows(text: str, columns: int) -> Iterator[list[str]]:
    rows = (line.strip().split("|") for line in text.splitlines())
    return (row for row in rows if len(row) == columns)


def _ask_sacct(jobs: Sequence[int]) -> list[Task]:
    argv = ["sacct", "--noheader", "--parsable2", "--allocations", "--format=JobID,State,ExitCode,NodeList"]
    code, text = call([*argv, f"--jobs={','.join(map(str, jobs))}"])
    _require_answer(code, text)
    return list(_read_sacct(text)) if code == 0 else []


def _read_sacct(text: str) -> Iterator[Task]:
    for name, state, exit_code, node in _rows(text, 4):
        job, _, numbers = name.partition("_")
        # "CANCELLED by 1000"
        yield from (_seen(f"{job}_{number}", state.split(" ")[0], node, "", exit_code) for number in expand(numbers))


def _seen(job: str, state: str, node: str, reason: str, exit_code: str = "", restarts: bool = False) -> Task:
    """Return what Slurm says of a task; ``exit_code`` is ``1:0``, a code and a signal."""
    task_state = _STATES.get(state.strip().rstrip("+"), TaskState.UNKNOWN)
    node, reason = ("" if word.strip() in _NONE else word.strip() for word in (node, reason))
    if task_state is TaskState.PENDING and restarts:
        task_state = TaskState.REQUEUED
    if task_state is TaskState.FAILED:
        killed = exit_code.endswith(":9") or exit_code.startswith("137:")
        task_state, reason = (TaskState.KILLED, "") if killed else (task_state, f"exit code {exit_code.split(':')[0]}")
    elif not task_state.is_queued:
        reason = ""
    return Task(state=task_state, node=node, details=reason, job=job)


def limit(most: int | None) -> str:
    """Return the end of an array specification that limits how many tasks run at the same time."""
    return f"%{most}" if most else ""


def indices(numbers: Sequence[int]) -> str:
    """Return indices in ascending order as sbatch takes them: ``0-3,7,9-10``."""
    spans: list[tuple[int, int]] = []
    for number in numbers:
        if spans and spans[-1][1] == number - 1:
            spans[-1] = spans[-1][0], number
        else:
            spans.append((number, number))
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


def expand(text: str) -> Iterator[int]:
    """Yield the indices in ``3``, ``[3-9%2,12]``, ``0-8:4``. Other texts have none."""
    for part in text.strip("[]").partition("%")[0].split(","):
        if match := re.fullmatch(r"(\d+)(?:-(\d+)(?::(\d+))?)?", part):
            first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
            yield from range(first, last + 1, max(step, 1))


# --- commands on several nodes ---------------------------------------------------------------------------------------
#
# srun starts them as a job step of the allocation in which profpipe runs. The processes of a step are not descendants
# of profpipe: slurmstepd on each node is their parent. Where srun is killed, the step goes on, and scancel ends it.

#: Returns the output of a command with further variables; None if it cannot be started.
Ask = Callable[[Sequence[str], Mapping[str, str]], str | None]

_PAUSE_S: Final = 0.2


def allocated_nodes(environment: Mapping[str, str]) -> int | None:
    """Return the number of nodes of the allocation of this process; None outside of an allocation."""
    count = environment.get("SLURM_JOB_NUM_NODES", environment.get("SLURM_NNODES", ""))
    return int(count) if "SLURM_JOB_ID" in environment and count.isdecimal() else None


def step_variables(job: Job) -> dict[str, str]:
    """Return the variables that srun needs to find the allocation; none for a job on one machine."""
    return _slurm_variables() if job.launch.nodes > 1 else {}


def _slurm_variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith("SLURM") and not is_secret_name(name)}


def end_steps(job: Job, ask: Ask, wait_s: float) -> None:
    """End the steps of the job that this allocation still has, and wait until they are gone."""
    allocation = os.environ.get("SLURM_JOB_ID")
    if job.launch.nodes == 1 or allocation is None:
        return
    deadline = time.monotonic() + wait_s
    while running := _find_steps(allocation, job, ask):
        ask(["scancel", "--signal=KILL", *running], step_variables(job))
        if time.monotonic() > deadline:
            return
        time.sleep(_PAUSE_S)


def describe_nodes(nodes: int, ask: Ask) -> dict[str, NodeEntry]:
    """Return the nodes of the allocation on which commands run, by name.

    Those that do not answer, or whose description is wrong, are missing.
    """
    tasks = (f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1", "--input=none")
    # As in process.ask_python: nothing is imported from the current folder.
    argv = ["srun", *tasks, f"--chdir={process.ROOT}", sys.executable, "-m", "profpipe.measure.node"]
    answer = ask(argv, {**_slurm_variables(), "PYTHONPATH": process.own_python_path()}) or ""
    described = {}
    for description in node_info.from_lines(answer.splitlines()):
        try:
            machine = manifest.parse(manifest.Machine, description["machine"])
            described[str(description["node"])] = NodeEntry(machine, dict(description["packages"]))
        except (ValueError, LookupError, TypeError):  # it is not what profpipe writes
            continue
    return dict(sorted(described.items()))


def _find_steps(allocation: str, job: Job, ask: Ask) -> list[str]:
    """Return the steps of the job: ``["4711.0"]``."""
    argv = ["squeue", "--steps", f"--jobs={allocation}", "--noheader", "--format=%i %j"]
    lines = (line.strip().partition(" ") for line in (ask(argv, step_variables(job)) or "").splitlines())
    return [step for step, _, name in lines if name == str(job.folder)]
