"""The plain values that the stages pass to each other: Case, Tool, Job, Launch, Command, JobOutcome."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import unquote

from profpipe import masking

if TYPE_CHECKING:
    # The workload's process may have no pydantic.
    from profpipe.config.settings import Ncu, Steps, Timing, TorchProfiler

Scalar = str | int | float | bool | None


class Status(str, Enum):
    """What became of a case, or of a job. The tables store the value."""

    OK = "ok"
    OOM = "oom"
    FAILED = "failed"
    CRASHED = "crashed"
    TIMEOUT = "timeout"
    SKIPPED = "skipped"
    #: The user stopped the run before the case ended, or before it began.
    INTERRUPTED = "interrupted"

    # From Python 3.12 on the text of a mixed-in member would be `Status.OK`.
    __str__ = str.__str__

    @property
    def is_failure(self) -> bool:
        """Return True if nothing that was measured of the case counts."""
        return self in (Status.OOM, Status.FAILED, Status.CRASHED, Status.TIMEOUT)


#: In the folder of each job that was started: what the runner and the workload's process say (``runner/job_log.py``).
LOG = "job.jsonl"

#: Encoded characters in a case's name that torch's traces would change: non-ASCII, backslashes and quotes.
_LETTERS = re.compile(r"(?:%[89A-F][0-9A-F])+|%5C|%22")


def log_name(rank: int) -> str:
    """Return the name of the file for the events of a rank. Rank 0 writes into the log of the job."""
    return f"job.rank{rank}.jsonl" if rank else LOG


@dataclass(frozen=True)
class Case:
    """One point of a workload's matrix. ``params`` holds all parameters, fixed ones included."""

    id: str
    params: Mapping[str, Scalar]


def as_text(value: Scalar) -> str:
    """Return a parameter's value as it appears in the name of a case and in a command."""
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)


def revealed(params: Mapping[str, Scalar], hidden: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Return the parameters of a case with the values of the secret ones, which are ``hidden`` by their texts."""
    return {name: hidden.get(value, value) if isinstance(value, str) else value for name, value in params.items()}


def readable(case: str) -> str:
    """Return a case's name with decoded letters. A comma in a value stays encoded, for it would separate the name."""
    return _LETTERS.sub(lambda match: text if (text := unquote(match[0])).isprintable() else match[0], case)


def count_cases(number: int) -> str:
    return "1 case" if number == 1 else f"{number} cases"


@dataclass(frozen=True)
class Tool:
    """A profiler on this machine. ``path`` is its executable (empty: a Python library), ``variant`` its generation.

    ``options`` are those of its options that not every version has.
    """

    name: str
    version: str
    path: str = ""
    variant: str = ""
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class Missing:
    """A profiler or a package that cannot be used here: why, and how to fix it."""

    name: str
    reason: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.reason}. {self.remedy}"


@dataclass(frozen=True)
class Span:
    """The span of time that profilers record of a command without steps.

    ``is_chosen``: profpipe chose it, by what plain showed (``after_plain``). ``goes_on``: the program is not ended
    after the span. ``is_whole``: the program is recorded from its begin to its end.
    """

    after_s: float
    for_s: float
    is_chosen: bool = False
    goes_on: bool = False
    is_whole: bool = False
    on_gpu: bool = False

    def as_json(self) -> dict[str, Any]:
        """Return the span as the start-up hook and the key of a job have it."""
        chosen = {"whole": True} if self.is_whole else {}
        chosen |= {"on_gpu": self.on_gpu, "goes_on": self.goes_on} if self.is_chosen else {}
        return {"after_s": self.after_s, "for_s": self.for_s, **chosen}


@dataclass(frozen=True)
class JobSettings:
    """The settings of a workload that the runner, the profilers and the harness read."""

    ncu: Ncu
    timing: Timing
    steps: Steps
    torch: TorchProfiler
    warmup: int = 10
    repeats: int = 30
    timeout_s: float = 900.0
    case_timeout_s: float | None = None
    tolerance: Mapping[Any, float] = field(default_factory=dict)
    skip_larger_after_oom: bool = True
    #: Settings of a command.
    hook: bool = True
    capture: Span | None = None
    collect: str | None = None
    clean_env: bool = False


#: The settings in cases.json and in the key of a job, in this order, and those of a command.
_DUMPED = ("case_timeout_s", "ncu", "timing", "tolerance", "skip_larger_after_oom")
_DUMPED_OF_COMMANDS = ("clean_env", "hook", "steps", "capture", "torch", "collect")


@dataclass(frozen=True)
class GuidedKernels:
    """The kernels that ncu replays, which captures of other profilers name.

    ``pattern`` finds their names, ``invocations`` are the launches, ``chosen`` what ``ingest.ncu.Choice`` says of each.
    ``by_step``: the launches count from the begin of a step; None for a script. ``adds``: the job only adds kernels to
    the cases of another job.
    """

    pattern: str
    invocations: tuple[int | str, ...]
    chosen: tuple[Any, ...] = ()
    by_step: bool | None = None
    adds: bool = False

    def as_json(self) -> dict[str, Any]:
        document: dict[str, Any] = {} if self.by_step is None else {"by_step": self.by_step}
        document |= {"pattern": self.pattern, "invocations": list(self.invocations)}
        document["chosen"] = [asdict(choice) for choice in self.chosen]
        return {**document, **({"adds": True} if self.adds else {})}


@dataclass(frozen=True)
class Launch:
    """How and where the processes of a job start. ``folder`` receives all files of the job."""

    folder: Path
    python: str
    cwd: Path
    env: Mapping[str, str] = field(default_factory=dict)
    on_gpu: bool = False
    #: The nodes of a Slurm allocation on which srun starts the command, how often on each, and further options of srun.
    nodes: int = 1
    tasks_per_node: int = 1
    srun: tuple[str, ...] = ()
    #: Secrets and words of commands that hold them, and the published text for each.
    secrets: Mapping[str, str] = field(default_factory=dict)
    #: The values of secret parameters, by the texts that ``cases`` have in their place.
    hidden: Mapping[str, Scalar] = field(default_factory=dict)
    #: Where the job runs beside others: ``GPU 1``. Empty where nothing runs beside it.
    slot: str = ""
    #: The folder that paths in a report are relative to, where it is not ``cwd``.
    shown_from: Path | None = None
    #: In an `ab` run that exchanges folders: the folder of the job's side, then those with the code of others.
    roots: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Job:
    """One workload under one profiler, with all its cases, or one case where the workload has ``isolate: true``.

    Exactly one of ``script`` (a module with ``build``, run by the harness) and ``command`` (any argv, one case) is set.
    ``part`` is the number of the job's attempt: after a crash the pending cases continue as part 2, and the files of
    that attempt carry the number.
    """

    workload: str
    profiler: str
    cases: tuple[Case, ...]
    tool: Tool | Missing
    settings: JobSettings
    launch: Launch
    script: Path | None = None
    command: tuple[str, ...] = ()
    guided: GuidedKernels | None = None
    part: int = 1
    #: The number of processes that run each case together.
    processes: int = 1
    #: Where several processes repeat each case: which of the ``captures`` processes this job is, and the names of the
    #: jobs that take turns.
    repeat: int = 1
    captures: int = 1
    interleaved: tuple[str, ...] = ()
    #: What distinguishes the job from others of its workload and profiler: ``pair 3 B``.
    label: str = ""
    #: Jobs of one group run one after the other on one GPU, and jobs of other groups may run beside them. Nothing runs
    #: beside a job without a group.
    group: str = ""

    @property
    def folder(self) -> Path:
        """The folder of all files of the job."""
        return self.launch.folder

    def move_to(self, folder: Path, label: str | None = None) -> Job:
        """Return the job with its files in ``folder``, and with another label where one is given."""
        launch = replace(self.launch, folder=folder)
        return replace(self, launch=launch, label=self.label if label is None else label)

    def select_cases(self, cases: Iterable[Case], part: int | None = None) -> Job:
        """Return the job with these of its cases, as the attempt number ``part`` where one is given."""
        return replace(self, cases=tuple(cases), part=part or self.part)

    def change_settings(self, **changed: Any) -> Job:
        """Return the job with changed settings."""
        return replace(self, settings=replace(self.settings, **changed))

    def dump_settings(self) -> dict[str, Any]:
        """Return the settings as the harness and the key of the job have them."""
        document: dict[str, Any] = {}
        for name in _DUMPED if self.script else (*_DUMPED, *_DUMPED_OF_COMMANDS):
            value = getattr(self.settings, name)
            # Which cases ncu counts is no setting of a job, which has cases.
            document[name] = value.model_dump(exclude={"shapes"}) if hasattr(value, "model_dump") else value
        if self.guided:
            document["ncu"] |= self.guided.as_json()
        if self.settings.capture:
            document["capture"] = self.settings.capture.as_json()
        return document

    @property
    def title(self) -> str:
        """The name of the job for people: ``attention under plain``."""
        return ", ".join(filter(None, [f"{self.workload} under {self.profiler}", self.label]))

    @property
    def is_repeated(self) -> bool:
        """Return True if the job is one of several processes of its cases."""
        return bool(self.interleaved)

    @property
    def is_hooked(self) -> bool:
        """Return True if the start-up hook finds the steps of the job's command in its Python processes."""
        return self.script is None and self.settings.hook and not self.settings.capture

    @property
    def stem(self) -> str:
        """The stem of this attempt's files: ``capture``, then ``capture-2``."""
        return "capture" if self.part == 1 else f"capture-{self.part}"

    @property
    def spec(self) -> Path:
        """The specification for the harness: ``cases.json``, then ``cases-2.json``."""
        return self.folder / ("cases.json" if self.part == 1 else f"cases-{self.part}.json")

    @property
    def records(self) -> list[Path]:
        """The files that the harness writes: the log of the job, and the events of its further processes.

        For a command: the files that its start-up hook wrote, one for each process that made steps.
        """
        if self.script is None:
            return sorted(self.folder.glob(f"hook.{self.stem}.*.jsonl"))
        return [self.folder / log_name(rank) for rank in range(self.processes)]

    def case_files(self, suffix: str) -> list[tuple[Path, str]]:
        """Return the files that the processes of the harness write for single cases, and the case of each."""
        stems = [self.stem, *(f"{self.stem}.rank{rank}" for rank in range(1, self.processes))]
        cases = list(enumerate(self.cases, start=1))
        return [(self.folder / f"{stem}.{number}{suffix}", case.id) for stem in stems for number, case in cases]

    @property
    def log(self) -> Path:
        return self.folder / LOG

    def shown(self, command: Command) -> str:
        """Return ``command`` as a shell line, without secrets."""
        return shlex.join(map(self.masked_word, command.argv))

    def masked(self, text: str) -> str:
        """Return ``text`` without secrets."""
        return masking.mask_printed(masking.masker(self.launch.secrets).mask(text))

    def masked_word(self, word: str) -> str:
        """Return a word of a command without secrets, however short they are."""
        return self.launch.secrets.get(word) or self.masked(word)

    def portable(self, argument: str) -> str:
        """Return ``argument`` for a report: paths relative to ``shown_from``, and a program on PATH by its name."""
        if Path(argument).is_absolute() and shutil.which(Path(argument).name) == argument:
            return Path(argument).name
        return argument.replace(f"{self.launch.shown_from or self.launch.cwd}/", "")


@dataclass(frozen=True)
class Command:
    """One process to start. ``argv`` is never a shell string; ``env`` is added to the filtered environment.

    ``makes`` are the files without which the command failed, whatever its exit code. Where the tool chooses their
    names, ``makes_like`` is a glob that must find one below the job's folder. ``runs_workload`` is false for an export
    after the process of the workload. ``retry_pattern`` finds what a tool prints when it fails by chance before the
    workload runs: the command is then started again. ``fallback`` is started instead of a command whose workload ended
    well and that made no file, for its tool waited for a step that never began. ``ends_after_s`` is set for a workload
    that would not end by itself: after so many seconds SIGTERM ends it, from its tool where ``is_ended_by_tool``, else
    from the runner.
    """

    argv: tuple[str, ...]
    makes: tuple[Path, ...] = ()
    makes_like: str = ""
    #: How many files of that glob there must be at least: one of each task on several nodes.
    makes_count: int = 1
    env: Mapping[str, str] = field(default_factory=dict)
    runs_workload: bool = True
    retry_pattern: re.Pattern[str] | None = None
    fallback: Command | None = None
    ends_after_s: float | None = None
    is_ended_by_tool: bool = False
    #: Whether the tool may end before the workload, which goes on until its own end.
    may_outlive_tool: bool = False

    def has_failed(self, returncode: int | None, seconds: float) -> bool:
        """Return True if the exit code says that the workload, which ran for ``seconds``, did not end well.

        What a program returns after SIGTERM says nothing: a server returns 0, 1 or the signal.
        """
        was_ended = self.ends_after_s is not None and seconds >= self.ends_after_s
        return bool(returncode) and not was_ended


def capture_end_s(job: Job) -> float | None:
    """Return when the span of time ends that the job records, in seconds after its start.

    None for other jobs, and where the program goes on after the span: profpipe chose it (``after_plain``).
    """
    span = job.settings.capture
    return span.after_s + span.for_s if span and not span.goes_on else None


#: Environment of a command that records the whole process: the start-up hook then starts and ends no capture.
WHOLE: Mapping[str, str] = {"PROFPIPE_RECORD": "whole"}
#: Environment of a command under a rocprofv3 that records nothing before the start-up hook resumes it.
REGIONS_ONLY: Mapping[str, str] = {"PROFPIPE_RECORD": "regions"}


#: Environment of a process of the harness that waits after its imports. A JSON list of the file for its output and of
#: the value of CUDA_VISIBLE_DEVICES, or null, then comes from its standard input.
WAIT_VARIABLE = "PROFPIPE_WAIT"


class Cause(str, Enum):
    """Why a case or a job did not end well. Stages decide by it, never by the reason that people read."""

    NONE = ""
    #: The user stopped the run while this was running, or before it was started.
    INTERRUPTED = "interrupted"
    NOT_STARTED = "not_started"
    JOB_TIMEOUT = "job_timeout"
    CASE_TIMEOUT = "case_timeout"
    DISK_FULL = "disk_full"
    #: The kernel killed the process for want of host memory, or something killed it with SIGKILL.
    HOST_MEMORY = "host_memory"
    #: The GPU had no memory left, as the program prints.
    GPU_MEMORY = "gpu_memory"
    SIGKILL = "sigkill"
    #: A smaller case ran out of memory.
    LARGER_THAN_OOM = "larger_than_oom"
    TOOL_MISSING = "tool_missing"
    NOT_STARTABLE = "not_startable"
    #: The profiler explains the failure, or the workload does.
    PROFILER = "profiler"
    WORKLOAD = "workload"
    FILE_MISSING = "file_missing"
    #: An exit code or a signal that nothing else explains.
    EXIT = "exit"

    __str__ = str.__str__


@dataclass(frozen=True)
class Outcome:
    """What became of a case, or of a whole job. ``details`` is text for people, ``log`` the path of the output."""

    status: Status
    cause: Cause = Cause.NONE
    details: str = ""
    log: str = ""
    #: Whether the case itself ended well and only its profile is lost.
    profile_lost: bool = False

    @property
    def reason(self) -> str:
        """The sentence that the tables store."""
        return f"no profile: {self.details}" if self.profile_lost else self.details


class IncidentKind(str, Enum):
    """What went wrong in a run without the loss of a case."""

    #: A process ended before its last case, by no fault of a case, and another one ran the cases that were left.
    RESTARTED = "restarted"
    #: Lines of a job's log could not be read. A case without an end in the log ran again.
    DAMAGED_JOURNAL = "damaged_journal"
    #: The saved request has settings that this version does not know.
    UNKNOWN_SETTINGS = "unknown_settings"
    #: A signal ended a program that had not failed.
    ENDED = "ended"
    #: `--budget` left out what its details name. The source is the command that measures it.
    LEFT_OUT = "left_out"

    __str__ = str.__str__


@dataclass(frozen=True)
class Incident:
    """An event that a reader of the run should know. ``source`` is a path in the run's folder."""

    kind: IncidentKind
    source: str
    details: str = ""


@dataclass(frozen=True)
class JobOutcome:
    """What became of a job. ``end`` is ``ok``, or the first problem that cost a case something."""

    job: Job
    end: Outcome
    seconds: float = 0.0
    #: The seconds of the last process. ``seconds`` includes earlier processes that were interrupted.
    last_s: float = 0.0
    #: CPU time (s) and peak of the host memory (bytes) of the last process and its children; empty where unknown.
    used: tuple[float, ...] = ()
    returncode: int | None = None
    #: The case of each file, empty where the file names its cases itself.
    files: Mapping[Path, str] = field(default_factory=dict)
    #: Whether the user stopped the job before it was done.
    interrupted: bool = False
    #: By file: the cases of which the file holds an unfinished attempt that a later process repeated.
    attempted_again: Mapping[Path, frozenset[str]] = field(default_factory=dict)
    #: By case: what the runner knows better than the workload's process, such as a crash, a timeout or a lost profile.
    case_outcomes: Mapping[str, Outcome] = field(default_factory=dict)
    #: By case: why it did not end well, whether the runner or the workload's process reported that.
    causes: Mapping[str, Cause] = field(default_factory=dict)
    #: ``source`` is relative to the job's folder.
    incidents: tuple[Incident, ...] = ()

    @property
    def status(self) -> Status:
        return self.end.status

    @property
    def reason(self) -> str:
        return self.end.reason


#: Runs a short command and returns its output (stdout and stderr), or None if it cannot be started.
RunTool = Callable[[Sequence[str]], str | None]


@dataclass(frozen=True)
class Traits:
    """What profpipe must know of a profiler. The defaults are those of a tool around the process."""

    #: Its name in sentences, where that is not the name of the profiler.
    title: str = ""
    #: Whether the files of a case are complete when the case ends. A report is written only when the process ends.
    keeps_ended_cases: bool = False
    #: A Python file with ``wrap(call, case, path)`` for the process of a script, or with ``at_start(settings)`` for the
    #: Python processes of a command, or with both. docs/profilers.md says what they do.
    inside: Path | None = None
    #: The end of the names of the files that ``wrap`` writes.
    suffix: str = ""
    #: Whether it works by the start-up hook in the Python processes of a command, and only where these import torch.
    needs_hook: bool = False
    needs_torch: bool = False
    #: The profiler whose kind of ranges it records too: ``nsys`` (NVTX), ``rocprof`` (ROCTX), ``torch``. Else none.
    ranges: str = ""
    #: Why it cannot profile several processes that work together; empty where it can.
    one_process: str = ""
    #: Why it cannot profile the process of a script; empty where it can.
    no_script: str = ""
    #: Why it cannot record a span of time (``capture``), and the remedy; and the option of a version that can.
    no_span: tuple[str, str] | None = None
    span_option: str = ""
    #: The seconds that it records of a long program without steps; None for the whole program.
    span_s: float | None = None
    #: Whether its single launches, from ``launches`` of its parser, name the kernels for guided ncu.
    guides_ncu: bool = False
    #: For the estimate, on an H100: seconds of a process outside its cases and of a case, and how many times as long as
    #: without a profiler a program takes.
    process_s: float = 8.0
    case_s: float = 0.4
    program: float = 1.2


#: A file, or a file and its only case.
Artifact = Path | tuple[Path, str]


def cases_of_files(artifacts: Iterable[Artifact]) -> dict[Path, str]:
    """Return the case of each file, empty where the file names its cases itself."""
    return dict(artifact if isinstance(artifact, tuple) else (artifact, "") for artifact in artifacts)


class Profiler(Protocol):
    """A module of ``profpipe/profilers``, or of a package. It builds commands and never runs them."""

    NAME: str
    TRAITS: Traits

    def find(self, ask: RunTool) -> Tool | Missing:
        """Return the tool and its version, or why it is missing and the remedy."""

    def commands(self, job: Job) -> list[Command]:
        """Return the commands of ``job`` in the order of their start."""

    def artifacts(self, job: Job) -> Sequence[Artifact]:
        """Return the files to read afterwards. Some may not exist."""

    def diagnose(self, log: str) -> tuple[str, str] | None:
        """Return (status, reason with remedy) for a failure that the tool's output explains; else None."""


def on_nodes(job: Job, argv: tuple[str, ...]) -> tuple[str, ...]:
    """Return ``argv`` as srun starts it on the nodes of the job; as it is where the job runs on this machine.

    srun passes on SIGINT at once (``--disable-status``), so that profilers write their reports. A task that fails ends
    the others, which would wait for it. The name of the job step is the job's folder.
    """
    launch = job.launch
    if launch.nodes == 1:
        return argv
    tasks = f"--ntasks={launch.nodes * launch.tasks_per_node}", f"--ntasks-per-node={launch.tasks_per_node}"
    ends = "--disable-status", "--kill-on-bad-exit=1", "--input=none"
    return ("srun", f"--nodes={launch.nodes}", *tasks, f"--job-name={job.folder}", *ends, *launch.srun, *argv)


def workload_argv(job: Job) -> tuple[str, ...]:
    """Return the argv of the workload's process, with which a profiler's command line ends."""
    if job.script is None:
        return job.command
    harness = ("-m", "profpipe.measure.harness", str(job.spec))
    if job.processes == 1:
        return (job.launch.python, *harness)
    # Without --local-addr, torchrun looks up the name of this machine, which may fail in a container.
    torchrun = ("torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1")
    return (job.launch.python, "-m", *torchrun, "--nproc-per-node", str(job.processes), *harness)


class ProgressListener:
    """Receives the events of a run, and shows none of them. ``progress.Display`` shows them to the user."""

    def slot(self, name: str) -> ProgressListener:
        """Return the listener of jobs that run beside others, by the name of their GPU: ``GPU 1``."""
        return self

    def job_started(
        self, job: Job, index: int, total: int, left: tuple[Mapping[str, float], float] | None = None
    ) -> None:
        """``index`` counts from 1 to ``total``.

        ``left`` are estimates in seconds, of each case of the job, where "" is its process, and of what comes after it.
        """

    def case_started(self, case: str, number: int = 1, round: int = 1, rounds: int = 1) -> None:
        """The harness turned to the ``number``-th case of a round of the current job. All numbers count from 1."""

    def case_ended(self, case: str, status: str, reason: str = "") -> None:
        """The harness recorded the end of a case."""

    def process_started(self, output_begin: int) -> None:
        """A process of the current job started, whose output begins at this byte of the job's log."""

    def job_runs(self, job: Job) -> None:
        """A process of the current job runs. It may have written more output."""

    def job_ended(self, outcome: JobOutcome) -> None:
        """The current job ended, well or not."""

    def message(self, text: str) -> None:
        """Show ``text`` to the user now."""
