"""The manifest of a run: ``run.json`` as typed values.

The manifest may be published: it holds no values of environment variables. Paths below the folder of the pipeline file
are relative to that folder.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from datetime import datetime, timezone
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from profpipe.errors import ConfigError
from profpipe.job import Cause, Incident, Status
from profpipe.results import atomic, budget
from profpipe.results.schema import SCHEMA_VERSION, Origin
from profpipe.results.tasks import Task

if TYPE_CHECKING:
    from profpipe.config.models import Pipeline, Workload
else:
    # pydantic, which `ingest` does without, loads where a run has a pipeline.
    Pipeline = Any

FILE: Final = "run.json"
#: Entries of a list or mapping of the manifest: jobs, files, incidents and others.
_MOST_ENTRIES: Final = 100_000
#: Comparisons of a search and pairs of each, and log(B / A) of times that can be measured.
_MOST_PAIRS, _MOST_LOG = 1000, 100.0
#: Keys that most runs lack.
_OPTIONAL: Final = ("incidents", "tasks", "nodes")


@dataclass(frozen=True)
class Gpu:
    """A GPU as NVML describes it. A value that the driver does not report is None."""

    name: str = "GPU"
    driver: str | None = None
    cuda: str | None = None
    memory_bytes: int | None = None
    compute_capability: tuple[int, ...] | None = None
    max_sm_clock_hz: int | None = None
    max_memory_clock_hz: int | None = None
    memory_bus_bits: int | None = None
    power_limit_w: float | None = None
    mig: bool | None = None
    sm_count: int | None = None


@dataclass(frozen=True)
class PeakRates:
    """The peak rates of a GPU: FLOP/s by data type, and bytes/s. ``source`` names the rule or the measurement.

    ``flops_in_16_bits`` are the rates of kernels that accumulate in 16 bits. ``device`` is the GPU on which the rates
    were measured.
    """

    device: str | None = None
    flops: Mapping[str, float | None] = field(default_factory=dict)
    flops_in_16_bits: Mapping[str, float] = field(default_factory=dict)
    bytes_per_s: float | None = None
    source: str = ""


@dataclass(frozen=True)
class Machine:
    """The machine of a run. ``gpus`` is None if the record does not say which GPUs there were."""

    gpus: tuple[Gpu, ...] | None = None
    cpu: str = ""
    cpu_count: int | None = None
    os: str = ""
    python: str = ""
    #: Limits by the rules of the architecture, and what was measured on a GPU of this name.
    peaks: PeakRates | None = None
    ceilings: PeakRates | None = None


@dataclass(frozen=True)
class ToolEntry:
    """A profiler that was found, or why it is missing and the remedy."""

    version: str = ""
    variant: str = ""
    missing: str = ""
    remedy: str = ""


@dataclass(frozen=True)
class GitState:
    """The commit of the checkout that holds the pipeline; empty where there is none."""

    commit: str = ""
    dirty: bool | None = None


@dataclass(frozen=True)
class PlannedJob:
    """A workload under a profiler with all its cases. ``cut_off``: a process of it began and left no entry."""

    workload: str
    profiler: str
    cases: tuple[str, ...] = ()
    cut_off: bool = False


@dataclass(frozen=True)
class DeviceEntry:
    """A device that processes of a job used; ``device`` is its name, or ``cpu``, and ``count`` how many of them."""

    device: str = ""
    sm_count: int | None = None
    memory_bytes: int | None = None
    l2_bytes: int | None = None
    count: int | None = None


@dataclass(frozen=True)
class StoredFile:
    """A file that a job left; ``path`` is relative to the run's folder."""

    path: str
    bytes: int = 0


@dataclass(frozen=True)
class JobEntry:
    """The result of a job. ``argv`` holds its commands as typed in the pipeline's folder, without secrets.

    A later run reuses the job if ``key`` is equal; an empty key prevents this. ``reused_from`` is the other run that
    measured the job. ``peaks`` are the rates of the job's devices if they differ from the machine's. ``interrupted`` is
    true if the user stopped the job.
    """

    workload: str = ""
    profiler: str = ""
    cases: tuple[str, ...] = ()
    status: Status = Status.OK
    reason: str = ""
    cause: Cause = Cause.NONE
    #: The cause of each case that failed.
    causes: Mapping[str, Cause] = field(default_factory=dict)
    devices: tuple[DeviceEntry, ...] = ()
    peaks: PeakRates | None = None
    interrupted: bool = False
    key: str = ""
    reused_from: str = ""
    seconds: float = 0.0
    returncode: int | None = 0
    argv: tuple[tuple[str, ...], ...] = ()
    folder: str = ""
    log: str = ""
    files: tuple[StoredFile, ...] = ()
    #: The node of a cluster on which the job ran; None for the machine of the run.
    node: str | None = None
    #: Where the command ran on several nodes: the node of each rank that made steps.
    rank_nodes: Mapping[int, str] | None = None
    #: Where the job ran beside others: ``GPU 1``. None where nothing ran beside it.
    lane: str | None = None
    #: The span that profpipe chose to record of a program without steps, ``after_s`` and ``for_s``. None for others.
    span: Mapping[str, float] | None = None
    #: Whether profpipe ended the program after the steps to record, because plain had run it to its end.
    ended_early: bool = False


@dataclass(frozen=True)
class FileEntry(Origin):
    """A file that was read.

    ``scrubbed`` is true if the environment and command lines were removed from it, and None if its format has none.
    """

    source: str = ""
    parser: str = ""
    scrubbed: bool | None = None


@dataclass(frozen=True)
class RefusedFile:
    """A file that could not be read, with the reason and the remedy."""

    source: str
    what: str = ""
    remedy: str = ""


@dataclass(frozen=True)
class SideEntry:
    """A side of an `ab` run: what the command line says of it, and its commit where ``git:`` names one.

    ``versions`` has the versions of Python and of packages that differ from those of the other side; one is
    empty where the package is missing. ``foreign_modules`` has the packages that its processes loaded from another
    folder than that of the side: the file of each, relative to the folder that it belongs to.
    """

    specs: tuple[str, ...] = ()
    commit: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    foreign_modules: Mapping[str, str] = field(default_factory=dict)


class Undecided(str, Enum):
    """What a gate does where no case fails it and a case is inconclusive."""

    #: Exit code 5.
    REPORT = "report"
    PASS = "pass"
    FAIL = "fail"


class NoCaptures(str, Enum):
    """Why an `ab` run captures no kernels."""

    #: The command line says so.
    NOT_REQUESTED = "not_requested"
    NO_GPU = "no_gpu"
    #: There is a GPU, and neither nsys nor torch.
    NO_PROFILER = "no_profiler"


class TryOutcome(str, Enum):
    """What became of a change that `profpipe try` could try."""

    PLANNED = "planned"
    KEPT = "kept"
    #: Its gain may be chance.
    UNDECIDED = "undecided"
    NO_GAIN = "no gain"
    #: Another change of its kind is faster, or the combination without it is.
    REPLACED = "replaced"
    #: It alters what the program computes.
    REFUSED = "refused"
    FAILED = "failed"
    NOT_TRIED = "not tried"

    __str__ = str.__str__


@dataclass(frozen=True)
class TriedChange:
    """A change of `profpipe try`. ``ns`` is a step with it, in the median of its ``processes``; None: not measured."""

    name: str = ""
    outcome: TryOutcome = TryOutcome.PLANNED
    reason: str = ""
    code: str = ""
    #: The line of the program that the code is for.
    place: str = ""
    alters_numerics: bool = False
    processes: int = 0
    #: Of the first process, its start and its compilation included.
    seconds: float | None = None
    ns: float | None = None
    peak_bytes: float | None = None
    joules: float | None = None
    #: How far the loss is from that of the unchanged program.
    loss: str = ""


@dataclass(frozen=True)
class TryEntry:
    """The settings of `profpipe try`, and what it found before the pairs: ``unchanged`` is the program as it is.

    profpipe ends a process after ``steps``; 0 where the program comes to its end.
    ``parts`` are the shares of a step under a profiler: kernel classes, causes of waits and ``idle``. ``written`` are
    files that the program writes outside of its folder. ``harm``: why the combination is refused after its pairs.
    """

    budget_s: float = 600.0
    #: Pairs of the combination, and the changes of which it is made.
    pairs: int = 8
    chosen: tuple[str, ...] = ()
    unchanged: TriedChange = TriedChange()
    changes: tuple[TriedChange, ...] = ()
    steps: int = 0
    parts: Mapping[str, float] = field(default_factory=dict)
    written: tuple[str, ...] = ()
    is_deterministic: bool = False
    loss: str = ""
    harm: str = ""


@dataclass(frozen=True)
class PairsEntry:
    """The settings of an `ab` run. ``pairs`` is the number of pairs of the first block.

    ``seed`` draws the order in each pair. ``gate`` is the percentage by which B may be slower. ``is_aa``: both sides
    are the same. ``spreads`` has by workload and case how far pairs of the same code lie apart on this machine, as a
    ratio minus 1, where earlier A-A runs measured it. ``captures`` is the number of pairs in which ``profiler`` records
    the kernels of both sides; ``captures_all``: of every case, else of faster and slower ones. ``more`` is the largest
    number of further pairs for a case that is undecided. ``longer`` are the workloads whose first pairs scattered:
    their later pairs are longer and alone count. ``pairs`` counts both.
    """

    a: SideEntry = SideEntry()
    b: SideEntry = SideEntry()
    pairs: int = 8
    seed: int = 0
    gate: float | None = None
    undecided: Undecided = Undecided.REPORT
    is_aa: bool = False
    spreads: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    captures: int = 0
    #: Older versions recorded every case.
    captures_all: bool = True
    profiler: str = ""
    #: Set where ``captures`` is 0.
    no_captures: NoCaptures | None = None
    more: int = 0
    longer: tuple[str, ...] = ()
    #: Set by `profpipe try`, which chooses B.
    tried: TryEntry | None = None


class BisectKind(str, Enum):
    """The question that pairs of two commits answer."""

    #: Do GOOD and BAD differ?
    WHOLE = "whole"
    #: Is B, measured against GOOD, before or behind the commit that is searched?
    LEVEL = "level"
    #: Does the commit B, against its parent A, make the difference?
    STEP = "step"

    __str__ = str.__str__


@dataclass(frozen=True)
class BisectPairs:
    """Pairs of processes of two commits, by their numbers in ``BisectEntry.commits``: log(B / A) of each pair.

    ``further_pairs`` is how many of them are further pairs of `ab`. ``run`` is the folder below `runs/`. ``remarks``
    are the difference by kernel and the files that a step changed, and the code from outside the checkouts.
    """

    kind: BisectKind
    a: int
    b: int
    log_ratios: tuple[float, ...] = ()
    further_pairs: int = 0
    run: str = ""
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class BisectEntry:
    """A search for a commit. ``commits`` are (hash, subject) from GOOD to BAD, each the first parent of the next.

    ``more`` is the most further pairs of a verdict. ``gate`` is the least percentage of interest, or the spread that is
    known of the same code where it is larger. ``skipped`` has by its number why a commit cannot be measured.
    """

    commits: tuple[tuple[str, str], ...]
    more: int = 0
    gate: float = 0.0
    comparisons: tuple[BisectPairs, ...] = ()
    skipped: Mapping[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        ends = [*((pairs.a, pairs.b) for pairs in self.comparisons), *((0, number) for number in self.skipped)]
        is_bad = not all(0 <= a < b < len(self.commits) for a, b in [(0, 1), *ends])
        is_long = max(len(self.comparisons), *(len(pairs.log_ratios) for pairs in self.comparisons), 0) > _MOST_PAIRS
        ratios = (abs(ratio) for pairs in self.comparisons for ratio in pairs.log_ratios or (math.inf,))
        if is_bad or is_long or not all(ratio < _MOST_LOG for ratio in ratios):
            raise ValueError("bisect has commits or times that cannot be")


@dataclass(frozen=True)
class NodeEntry:
    """A node of a cluster: its hardware, its profilers and the versions of its packages, torch among them."""

    machine: Machine = Machine()
    packages: Mapping[str, str | None] = field(default_factory=dict)
    tools: Mapping[str, ToolEntry] = field(default_factory=dict)


@dataclass(frozen=True)
class Manifest:
    """The content of ``run.json``. ``profpipe ingest`` runs no jobs: ``is_run`` is false, and only files are set."""

    schema_version: int = SCHEMA_VERSION
    name: str = ""
    #: ISO 8601, UTC.
    started: str = ""
    #: None: the run has not ended; empty: the record does not say.
    ended: str | None = ""
    #: Wall time from the first job to the report, over all tries; None where the record does not say.
    seconds: float | None = None
    command: tuple[str, ...] = ()
    #: The resolved pipeline file without the values of environment variables; None for ingested files.
    pipeline: Pipeline | None = None
    machine: Machine = Machine()
    packages: Mapping[str, str | None] = field(default_factory=dict)
    tools: Mapping[str, ToolEntry] = field(default_factory=dict)
    git: GitState = GitState()
    #: All jobs of the run. While the run has not ended, the report lists those without an entry as missing.
    planned: tuple[PlannedJob, ...] = ()
    jobs: tuple[JobEntry, ...] = ()
    files: tuple[FileEntry, ...] = ()
    refused: tuple[RefusedFile, ...] = ()
    #: Files that hold the environment of the profiled process; None if none was searched for.
    private_files: tuple[str, ...] | None = None
    #: Workload -> case -> the kernel family that the case must run.
    expects: Mapping[str, Mapping[str, str | None]] = field(default_factory=dict)
    is_run: bool = True
    #: Set for an `ab` run only.
    ab: PairsEntry | None = None
    #: Set for a run of `bisect` only.
    bisect: BisectEntry | None = None
    incidents: tuple[Incident, ...] = ()
    #: Set for a run on a cluster only: its tasks, and its nodes by name.
    tasks: tuple[Task, ...] = ()
    nodes: Mapping[str, NodeEntry] = field(default_factory=dict)

    @property
    def device(self) -> tuple[str, str]:
        """The names of the GPUs and their driver; without a GPU, the CPU."""
        gpus = self.machine.gpus or ()
        names = ", ".join(dict.fromkeys(gpu.name for gpu in gpus))
        return names or self.machine.cpu, next((gpu.driver for gpu in gpus if gpu.driver), "")

    def jobs_of(self, workload: str) -> list[JobEntry]:
        return [job for job in self.jobs if job.workload == workload]

    def workload(self, name: str) -> Workload | None:
        """Return the settings of a workload in the pipeline file."""
        return self.pipeline.workloads.get(name) if self.pipeline is not None else None

    def is_command(self, workload: str) -> bool:
        declared = self.workload(workload)
        return declared is not None and declared.is_command

    @classmethod
    def load(cls, folder: Path) -> Manifest:
        """Read ``run.json`` of a run. Raises ConfigError where the folder has none that can be read."""
        path = folder / FILE
        try:
            document = budget.load_json(atomic.read_regular(path).decode())
        except FileNotFoundError:
            raise ConfigError(str(folder), f"is not a run: it has no {FILE}.", "Name a folder below out/.") from None
        except OSError as error:
            raise ConfigError(str(path), f"cannot be read: {error.strerror or error}.") from None
        except ValueError as error:
            raise ConfigError(str(path), f"is not JSON: {error}.") from None
        if not isinstance(document, dict):
            raise ConfigError(str(path), "is not the manifest of a run.")
        try:
            return cls.parse(document)
        except ValueError as error:
            raise ConfigError(str(path), f"is not the manifest of a run: {error}") from None

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> Manifest:
        """Return the manifest that a JSON document holds. Unknown keys, as of a later version, are ignored.

        Raises ValueError for wrong values, and for more entries than any run has.
        """
        for key, value in document.items():
            if isinstance(value, list | dict) and len(value) > _MOST_ENTRIES:
                raise ValueError(f"{key} has {len(value):,} entries, more than {_MOST_ENTRIES:,}")
        manifest = parse(cls, {"is_run": "jobs" in document, **document, "pipeline": None})
        return replace(manifest, pipeline=_read_pipeline(document.get("pipeline") or {}))

    def save(self, folder: Path) -> None:
        atomic.write_text(folder / FILE, json.dumps(self.as_json(), indent=1) + "\n")

    def as_json(self) -> dict[str, Any]:
        """Return the document without keys whose value is unknown."""

        def known_items(items: Iterable[tuple[str, Any]]) -> dict[str, Any]:
            # None is a value of two keys: the run has not ended, and the process has no exit code.
            return {key: value for key, value in items if value is not None or key in ("ended", "returncode")}

        document = asdict(self, dict_factory=known_items)
        if self.pipeline is not None:
            document["pipeline"] = as_document(self.pipeline)
        if not document.pop("is_run"):
            return {key: document[key] for key in ("schema_version", "name", "files", "refused")}
        absent = {name for name in _OPTIONAL if not document[name]}
        return {key: value for key, value in document.items() if key not in absent}

    def with_job(
        self,
        entry: JobEntry,
        files: Iterable[FileEntry] = (),
        refused: Iterable[RefusedFile] = (),
        families: Mapping[str, str] = MappingProxyType({}),
        incidents: Iterable[Incident] = (),
        private_files: tuple[str, ...] | None = None,
    ) -> Manifest:
        """Return the manifest with a job, in place of an earlier try, and with the private files of the run.

        ``files`` and ``refused`` are its files. ``families`` is the kernel family that each of its cases must run. The
        sources of ``incidents`` are relative to the job's folder.
        """
        job_incidents = (replace(incident, source=f"{entry.folder}/{incident.source}") for incident in incidents)
        earlier = self.without_job(entry.folder)
        return replace(
            earlier,
            jobs=(*earlier.jobs, entry),
            files=(*earlier.files, *files),
            refused=(*earlier.refused, *refused),
            incidents=(*earlier.incidents, *job_incidents),
            private_files=self.private_files if private_files is None else private_files,
            expects={**self.expects, entry.workload: {**self.expects.get(entry.workload, {}), **families}},
        )

    def with_incidents(self, more: Iterable[Incident]) -> Manifest:
        """Return the manifest with further incidents. One that it has already is not repeated."""
        return replace(self, incidents=tuple(dict.fromkeys((*self.incidents, *more))))

    def without_job(self, folder: str) -> Manifest:
        """Return the manifest without the job in ``folder`` and without its files."""
        return replace(
            self,
            jobs=tuple(job for job in self.jobs if job.folder != folder),
            files=tuple(file for file in self.files if not file.source.startswith(f"{folder}/")),
            refused=tuple(file for file in self.refused if not file.source.startswith(f"{folder}/")),
            incidents=tuple(incident for incident in self.incidents if not incident.source.startswith(f"{folder}/")),
        )


def as_document(pipeline: Pipeline) -> dict[str, Any]:
    """Return a pipeline as run.json holds it: environment variables have no values."""
    document: dict[str, Any] = pipeline.model_dump(mode="json", by_alias=True)
    for settings in (document["defaults"], *document["workloads"].values()):
        settings["env"] = dict.fromkeys(settings["env"])
    return document


def _read_pipeline(document: Any) -> Pipeline | None:
    if not document:
        return None
    from profpipe.config.models import read_recorded

    if not isinstance(document, dict):
        raise ValueError("pipeline is not a mapping")
    try:
        return read_recorded(document)
    except ValueError as error:
        raise ValueError(f"pipeline.{error}") from None


_T = TypeVar("_T")


def parse(kind: type[_T], document: Mapping[str, Any]) -> _T:
    """Return a part of the manifest from its JSON document. Raises ValueError that names each wrong value."""
    value: _T = _adapter(kind).validate_python(document)  # type: ignore[arg-type]
    _check_numbers(value)
    return value


def _check_numbers(value: object, place: str = "") -> None:
    """Raise ValueError for a whole number beyond 64 bits: pydantic reads a text of any length as one."""
    if isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            raise ValueError(f"{place} is a number beyond 64 bits")
    elif isinstance(value, Mapping):
        for key, child in value.items():
            _check_numbers(child, f"{place}.{key}" if place else str(key))
    elif isinstance(value, (list, tuple)):
        for number, child in enumerate(value):
            _check_numbers(child, f"{place}.{number}")
    elif is_dataclass(value):
        _check_numbers(vars(value), place)


@functools.cache
def _adapter(kind: Any) -> Any:
    # pydantic takes 0.1 s to load, and most commands only write a manifest.
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def utc_now() -> datetime:
    return datetime.now(timezone.utc)
