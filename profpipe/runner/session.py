"""Run the jobs of a request, read what they left and store it. The report is made by the command above.

A run may be killed at any point and resumed. Its files say how far it is, from the whole to the parts:

* ``ended`` in ``run.json`` is written last: the run is done.
* A job in ``run.json``'s ``jobs`` that was neither interrupted nor found the disk full is done. Its rows are in the
  tables already.
* Any other job is handed to the executor again, which continues where its log (``job_log.py``) ends. If no process
  is left to run, the existing files are read.
* In an attempt that was cut off, ``case_ended`` in the log counts if the profiler keeps the files of ended
  cases.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from profpipe import masking, profilers
from profpipe.config.quantities import items_of
from profpipe.config.settings import ChosenSteps
from profpipe.config.yaml import shown
from profpipe.errors import ConfigError, ToolMissing, UnreadableFile
from profpipe.ingest import job_tables, kernel_classes, launch_tables, ncu as guide_file, reader
from profpipe.job import (
    LOG,
    Case,
    Cause,
    Command,
    Incident,
    IncidentKind,
    Job,
    JobOutcome,
    Missing,
    ProgressListener,
    Status,
)
from profpipe.measure import machine as machine_info
from profpipe.results import atomic, folders, manifest, manifest_entries, noise, schema, store
from profpipe.results.manifest import FileEntry, JobEntry, Manifest, PairsEntry, PeakRates, RefusedFile
from profpipe.results.schema import Tables
from profpipe.results.tasks import Task
from profpipe.runner import (
    after_plain,
    artifacts,
    checkout,
    estimate,
    fingerprint,
    guided_ncu,
    job_cache,
    pairs,
    prestart,
    process,
    sides,
    slots,
)
from profpipe.runner.pairs import ChooseAgain, Pairs
from profpipe.runner.prestart import Prestart
from profpipe.runner.request import REQUEST_FILE, ExaminedMachine, RunRequest, find_saved, plan_jobs
from profpipe.runner.sides import PairSide
from profpipe.runner.slurm import queue
from profpipe.scrub import exports

#: The profiler that shows what held the memory of a program that ran out of it, and the longest one that is run again.
MEMORY = "memory"
_LONGEST_FAILURE_S = 900.0
#: The profiler of a Python program without torch, and the shortest one that is run again.
LINES = "lines"
_LEAST_LINES_S = 1.0


def load_rules(request: RunRequest) -> Any:
    """Return the kernel classes of the pipeline file; None if it has none."""
    entries = [rule.model_dump(by_alias=True) for rule in request.pipeline.kernel_classes]
    try:
        return kernel_classes.user_rules(entries) if entries else None
    except ValueError as error:
        raise ConfigError(f"{shown(request.path)}: kernel_classes", f"{str(error).rstrip('.')}.") from None


def begin_run(
    request: RunRequest,
    machine: ExaminedMachine,
    planned: Sequence[Job] = (),
    command: Sequence[str] = (),
    settings: PairsEntry | None = None,
) -> Manifest:
    """Return the manifest of a run that starts now, with the git state of the folder in which the first job runs.

    ``settings`` are those of an `ab` run on this machine.
    """
    begun = manifest_entries.begin_run(
        request.pipeline,
        machine.tools,
        command,
        planned,
        request.secrets,
        machine=manifest.parse(manifest.Machine, machine.described),
        packages=machine_info.packages(),
        git=manifest_entries.git_state(process.ask, planned[0].launch.cwd) if planned else manifest.GitState(),
    )
    spreads = noise.read_floors(request.out, begun) if settings else {}
    return replace(begun, ab=replace(settings, spreads=spreads)) if settings else begun


def make_folder(request: RunRequest, begun: Manifest, write: Callable[[Path], object]) -> Path:
    """Make the folder of a new run with its request, what ``write`` adds and its manifest; return it."""

    def fill(folder: Path) -> None:
        request.save(folder)
        write(folder)
        fingerprint.remember(folder)
        store.save(folder, Tables(), begun)

    folders.remove_litter(request.out)
    return folders.create(request.out, folders.run_name(begun), datetime.fromisoformat(begun.started), fill)


def create(
    request: RunRequest,
    command: Sequence[str],
    both: tuple[PairSide, PairSide] | None = None,
    settings: PairsEntry | None = None,
    candidates: Sequence[PairSide] = (),
) -> Session:
    """Make the folder of a new run. A wrong rule or parser of the user is refused before.

    ``both`` are the sides of an `ab` run with these ``settings``, and ``candidates`` those of which `profpipe try`
    makes B. ``request`` is then that of A at the user's own pipeline file.
    """
    load_rules(request)
    reader.parsers(request.plugin_dir)
    if both and settings:
        machine, settings = sides.prepare(request, settings)
    else:
        machine = ExaminedMachine.examine(request)
    if request.comparisons:
        _find_slots(request, machine)  # refuses a number of GPUs that the machine lacks
    planned = plan_run(request, machine, both)
    if all(isinstance(job.tool, Missing) for job in planned):
        raise ToolMissing("; ".join(dict.fromkeys(str(job.tool) for job in planned)))
    checkout.remove_abandoned(request.out)
    begun = begin_run(request, machine, planned, command, settings)

    def write(folder: Path) -> None:
        if both:
            sides.save(folder, (*both, *candidates))
        else:
            fingerprint.save(folder, planned, request.out, machine.described)

    folder = make_folder(request, begun, write)
    session = Session(request.placed_in(folder), folder, begun, Tables(), both, candidates=tuple(candidates))
    session.machine = machine
    return session


def plan_run(request: RunRequest, machine: ExaminedMachine, both: tuple[PairSide, PairSide] | None = None) -> list[Job]:
    """Return the jobs of a new run; those of an `ab` run once, with the names that its cases have on both sides."""
    planned = plan_jobs(request, machine, request.out)
    if both is None:
        return planned
    joined = pairs.join_cases(both[0].request.pipeline, both[1].request.pipeline, request.workloads)
    return [
        job.select_cases(Case(name, a.params) for name, a, _ in joined[job.workload] if a in job.cases)
        for job in planned
    ]


def load(folder: Path, request: RunRequest) -> Session:
    """Load the run in ``folder``, which must be locked."""
    atomic.remove_partial_files(folder)
    for place in (folder / name for name in sides.MADE_ANEW):
        if place.is_symlink():
            place.unlink()
        shutil.rmtree(place, ignore_errors=True)
    data, begun = store.load(folder)
    a, b, *candidates = sides.load_all(folder) if begun.ab else (None, None)
    both = (a, b) if a and b else None
    requests = [(REQUEST_FILE, request), *((sides.SIDES_FILE, side.request) for side in both or ())]
    unknown = [
        Incident(IncidentKind.UNKNOWN_SETTINGS, str(name), ", ".join(saved.unknown))
        for name, saved in requests
        if saved.unknown
    ]
    sides_of_changes = tuple(side for side in candidates if side)
    return Session(request, folder, begun.with_incidents(unknown), data, both, candidates=sides_of_changes)


@dataclass
class Session:
    """A run in progress: its record and the tables that are stored so far.

    An `ab` run has ``both`` sides. A ``task`` of a cluster is a run of a part of the plan, in a folder of its node:
    ``on_stored`` copies the files of each job that has ended to the folder of the whole run.
    """

    request: RunRequest
    folder: Path
    manifest: Manifest
    data: Tables
    both: tuple[PairSide, PairSide] | None = None
    task: Task | None = None
    on_stored: Callable[[Job], object] = lambda job: None
    #: The sides with a change each, of which `profpipe try` makes B.
    candidates: tuple[PairSide, ...] = ()
    #: The tables of the processes of `profpipe try` that show where its program spends time.
    profile: list[Tables] = field(default_factory=list, init=False)
    #: How many nodes this session has asked to describe themselves; 1 where it has not asked.
    _asked_nodes: int = field(default=1, init=False)
    _prestart: Prestart = field(default_factory=Prestart, init=False)
    #: By folder: jobs that wait, adapted to what plain showed, and by how many seconds they end before plain did.
    _foreseen: dict[Path, Job] = field(default_factory=dict, init=False)
    _saved_s: dict[Path, float] = field(default_factory=dict, init=False)

    @cached_property
    def machine(self) -> ExaminedMachine:
        return sides.examine(self.request, self.manifest.ab)

    @cached_property
    def estimates(self) -> estimate.Estimates:
        return estimate.Estimates.read(self.request, self.machine, self.folder)

    @cached_property
    def pairs(self) -> Pairs | None:
        return Pairs(self, self.both) if self.both else None

    @property
    def is_complete(self) -> bool:
        return bool(self.manifest.ended) and not self.disk_full_cases

    @property
    def disk_full_cases(self) -> set[tuple[str, str]]:
        """(workload, case) of the cases that failed because a disk was full. With free space they may succeed."""
        return {(entry.workload, case) for entry in self.manifest.jobs for case in disk_full_cases(entry)}

    def reopen(self) -> None:
        """Prepare a run that is not complete for ``carry_out``.

        Raises ConfigError where the machine, the code or the settings differ from those at the start of the run.
        """
        self.manifest = replace(self.manifest, ended=None)
        self.check_machine()
        if self.pairs is None:
            fingerprint.check(self.folder, self.plan(), self.machine.described)
        elif find_saved(self.folder, fingerprint.FILE).exists():
            fingerprint.check(self.folder, self.pairs.jobs(), self.machine.described)
        folders.point_latest(self.request.out)

    def check_machine(self) -> None:
        """Raise ConfigError where this machine has other GPUs than that at the start of the run."""
        before, now = (
            [(gpu.name, gpu.driver) for gpu in machine.gpus or ()]
            for machine in (self.manifest.machine, manifest.parse(manifest.Machine, self.machine.described))
        )
        if before != now:
            what = f"was started on {before or 'no GPU'}, this machine has {now or 'no GPU'}: times cannot be compared."
            raise ConfigError(str(self.folder), what, "Resume it there, or start a new run here.")

    def plan(self) -> list[Job]:
        """Return the jobs of a run without pairs, those that are done too."""
        wanted = self.task.cases if self.task else None
        return list(map(self.placed, plan_jobs(self.request, self.machine, self.folder, wanted)))

    def left(self) -> list[Job]:
        """Return the jobs that are left; of pairs, which B has in the same number, those of A twice."""
        ab = self.manifest.ab
        if ab is None:
            return [job for job in self.plan() if not self.is_done(job)]
        if ab.tried is not None:
            # Its plan is printed when the run begins.
            return []
        captures = ab.captures if ab.captures_all else 0
        counts = [("plain", ab.pairs), (ab.profiler, captures)] if not self.manifest.jobs else []
        requests = [(replace(self.request, profilers=(profiler,)), 2 * n) for profiler, n in counts if n]
        return [job for request, n in requests for job in plan_jobs(request, self.machine, self.folder) * n]

    def placed(self, job: Job) -> Job:
        """Return the job with its folder below that of the task."""
        if self.task is None:
            return job
        workload = self.folder / "raw" / job.workload
        return job.move_to(workload / self.task.label / job.folder.relative_to(workload))

    def carry_out(self, listener: ProgressListener, choose_again: ChooseAgain) -> None:
        """Run every job that is not done yet, and store its rows. Raises Interrupted where the user stops the run.

        ``choose_again`` names the cases to measure in a later block of pairs.
        """
        most_jobs = len(self._slots.gpus) if self._slots else 1
        with Prestart(prestart.PER_SLOT * most_jobs * prestart.has_spare_cores(most_jobs)) as self._prestart:
            self._carry_out(listener, choose_again)

    def _carry_out(self, listener: ProgressListener, choose_again: ChooseAgain) -> None:
        if self.pairs:
            self.pairs.run(listener, choose_again)
            return
        planned = self.plan()
        waiting = [job for job in planned if guided_ncu.is_guided(job)]
        self.run_jobs([job for job in planned if not guided_ncu.is_guided(job)], listener, later=waiting)
        self.run_jobs(self._memory_jobs(planned), listener)
        self.run_jobs(self._line_jobs(planned), listener)
        # The captures of the other profilers name the kernels for ncu, so guided jobs run after them.
        guided = self._guided_jobs(waiting)
        self.run_jobs(guided, listener)
        self.run_jobs(guided_ncu.missed_kernels(guided, self.data), listener)
        if self.task and self.task.reference:
            self.run_jobs(self._reference_jobs(self.task), listener)

    def exchange_b(self, b: PairSide, **changed: Any) -> None:
        """Make ``b`` the side B of the run, with these settings changed."""
        assert self.both is not None and self.manifest.ab is not None
        self.both = (self.both[0], b)
        self.__dict__.pop("pairs", None)
        _, entry = sides.entries(*self.both)
        self.manifest = replace(self.manifest, ab=replace(self.manifest.ab, b=entry, **changed))

    def save_sides(self) -> None:
        """Save the sides for a resumed run, which is still one that this user made."""
        assert self.both is not None
        sides.save(self.folder, (*self.both, *self.candidates))
        fingerprint.remember(self.folder)

    def end(self) -> None:
        """Record that the run has ended. The caller saves the record after the report."""
        self.manifest = replace(self.manifest, ended=manifest.utc_now().isoformat(timespec="seconds"))

    # --- running -----------------------------------------------------------------------------------------------------

    def run_jobs(
        self,
        planned: Sequence[Job],
        listener: ProgressListener,
        numbers: tuple[int, int] | None = None,
        following: Sequence[Job] = (),
        later: Sequence[Job] = (),
    ) -> None:
        """Run the jobs that are not done. ``numbers`` are those of the first job and of the last one of the run.

        ``following`` are jobs that are likely to be run next, and ``later`` all that are, for the time that is left.
        """
        self._prestart.following = following
        planned = self._reuse_ended_folders(planned)
        jobs = [job for job in planned if not self.is_done(job)]
        self._describe_nodes(jobs)
        # A process of a pair, and a part of a run on a cluster, are never reused.
        keys = {} if self.both or self.task else self._find_keys(planned)
        if self.request.reuse:
            self._reuse(jobs, keys)
        for job in jobs:
            if text := guided_ncu.guide_text(job):
                job.folder.mkdir(parents=True, exist_ok=True)
                atomic.write_text(job.folder / guide_file.FILE, text)
        oom_cases = _find_oom_cases(planned, self.data)
        whole = {job.folder: job.cases for job in jobs}
        outcomes = slots.run(
            self.estimates.longest_first(jobs) if self._slots else jobs,
            profilers.ALL,
            listener,
            oom_cases=oom_cases,
            narrow=self._narrow,
            numbers=numbers,
            prestart=self._prestart,
            overlaps=self._overlaps,
            slots=self._slots,
            estimate=lambda job, waiting: self._estimate(job, [*waiting, *later]),
        )
        with contextlib.closing(outcomes):
            for outcome in outcomes:
                folder = outcome.job.folder
                self._store(outcome, keys.get(folder, "") if outcome.job.cases == whole[folder] else "")

    def _estimate(self, job: Job, later: Sequence[Job]) -> tuple[Mapping[str, float], float] | None:
        """Return the seconds of each part of a job that starts now, and of what comes after it; None if not known."""
        if job.label.startswith(schema.TRY_PREFIX):
            # More changes may follow.
            return None
        for other in later:
            if other.folder not in self._foreseen and self._find_plain(other) is not None:
                self._foreseen[other.folder] = self._adapt_to_plain(other)
        later = [self._foreseen.get(other.folder, other) for other in later]
        slot_count = len(self._slots.gpus) if self._slots else 1
        return self.estimates.add_run(self.manifest, self.data.cases, self._saved_s).left(job, later, slot_count)

    def _overlaps(self, ended: Job, following: Job) -> bool:
        """Return True if ``following`` may run while the files of ``ended`` are read.

        The cores must suffice for both, and ``_narrow`` must not need what is read. A job without a profiler, whose
        times count, does not start before the files are read.
        """
        needs_plain = following.script is None and ended.profiler == "plain"
        is_alone = following.profiler == "plain" or following.is_repeated
        return self._prestart.most > 0 and not is_alone and not needs_plain

    def _find_keys(self, planned: Iterable[Job]) -> dict[Path, str]:
        salt = folders.read_salt(self.request.out)
        described, variables = self.machine.described, process.relevant_variables
        return {job.folder: job_cache.key(job, _commands(job), described, variables(job), salt) for job in planned}

    def _describe_nodes(self, jobs: Sequence[Job]) -> None:
        """Record the nodes of the allocation where a command runs on several of them."""
        most = max((job.launch.nodes for job in jobs if not isinstance(job.tool, Missing)), default=1)
        # A resumed run may have another allocation, and nodes that are not recorded.
        if most > self._asked_nodes:
            self._asked_nodes = most
            nodes = queue.describe_nodes(most, functools.partial(process.ask, timeout_s=60.0))
            self.manifest = replace(self.manifest, nodes={**nodes, **self.manifest.nodes})

    @cached_property
    def _slots(self) -> slots.Slots | None:
        """The GPUs of the run, where its jobs run side by side."""
        return slots.load(self.folder, _find_slots(self.request, self.machine)) if self.request.comparisons else None

    def is_done(self, job: Job) -> bool:
        return any(is_done(entry) for entry in self.manifest.jobs if entry.folder == self._name(job.folder))

    def _reuse_ended_folders(self, jobs: Sequence[Job]) -> Sequence[Job]:
        """Return the jobs of a task. Those that an earlier attempt at it has ended have its folder."""
        if self.task is None:
            return jobs
        # raw/<workload>/<task>/...
        ended = {entry.folder.split("/", 3)[-1]: entry.folder for entry in self.manifest.jobs if is_done(entry)}
        names = [self._name(job.folder) for job in jobs]
        return [
            job.move_to(self.folder / ended.get(name.split("/", 3)[-1], name))
            for job, name in zip(jobs, names, strict=True)
        ]

    def _narrow(self, job: Job) -> Job | None:
        """Return the job without the cases that failed in another process of theirs; None where none is left.

        The program of a command runs first under plain, which shows what the other profilers can record.
        """
        if not job.is_repeated:
            return self._adapt_to_plain(job)
        others = (entry for entry in self.manifest.jobs_of(job.workload) if entry.folder != self._name(job.folder))
        causes = itertools.chain.from_iterable(e.causes.items() for e in others if e.profiler == job.profiler)
        failed = {case for case, cause in causes if cause not in (Cause.INTERRUPTED, Cause.NOT_STARTED)}
        left = tuple(case for case in job.cases if case.id not in failed)
        return job.select_cases(left) if left else None

    def _find_plain(self, job: Job) -> JobEntry | None:
        """Return the process of a command under plain, which shows how to record it under another profiler."""
        if job.script is not None or job.profiler == "plain":
            return None
        ids = tuple(case.id for case in job.cases)
        ran = [e for e in self.manifest.jobs_of(job.workload) if e.profiler == "plain" and e.cases == ids]
        if job.label:
            # The sides of a pair have other programs: raw/<workload>/pair-03/A-nsys follows raw/<workload>/pair-03/A.
            side = f"/{job.label.split()[-1]}"
            plain_folder = self._name(job.folder).replace(f"{side}-{job.profiler}", side, 1)
            ran = [e for e in ran if e.folder == plain_folder]
        # A user may have removed the files.
        return ran[-1] if ran and (self.folder / ran[-1].folder / LOG).exists() else None

    def _adapt_to_plain(self, job: Job) -> Job:
        entry = self._find_plain(job)
        if entry is None:
            return job
        plain = replace(job.move_to(self.folder / entry.folder), profiler="plain")
        causes = (Cause.EXIT,) if job.profiler == MEMORY else (Cause.EXIT, Cause.GPU_MEMORY)
        failure = entry.reason if entry.cause in causes else ""
        ended_well = entry.cause is Cause.NONE and entry.returncode == 0
        adapted = after_plain.adapt(job, plain, failure, entry.seconds, ended_well)
        if isinstance(steps := adapted.settings.steps, ChosenSteps) and steps.is_stop_chosen:
            self._saved_s[job.folder] = artifacts.seconds_after_steps(plain, steps)
        return adapted

    def _reuse(self, jobs: Iterable[Job], keys: Mapping[Path, str]) -> None:
        """Link the files of jobs that an earlier run has done into this run, where the executor finds them.

        Cases that are compared stay on one GPU: the jobs of a group are reused only from the GPU that the group has.
        """
        others = (run for run in folders.list_runs(self.request.out) if run[0] != self.folder)
        cached_jobs = job_cache.find_cached_jobs(others)
        for job in jobs:
            if keys[job.folder] not in cached_jobs or job.folder.exists():
                continue
            run, entry = cached_jobs[keys[job.folder]]
            if not job.group or self._slots is None or self._slots.assign_name(job.group, entry.lane or ""):
                job_cache.reuse(run, entry, job.folder)

    def _name(self, folder: Path) -> str:
        return str(folder.relative_to(self.folder))

    def _memory_jobs(self, planned: Sequence[Job]) -> list[Job]:
        """Return the jobs that show what held the memory of commands that soon ran out of it under plain."""
        has_job = {job.workload for job in planned if job.profiler == MEMORY}
        failed = {
            (entry.workload, case)
            for entry in self.manifest.jobs
            for case, cause in entry.causes.items()
            if cause is Cause.GPU_MEMORY and entry.profiler == "plain" and entry.workload not in has_job
            if entry.seconds <= _LONGEST_FAILURE_S
        }
        if not failed:
            return []
        return [job for job in self._plan_commands(MEMORY) if (job.workload, job.cases[0].id) in failed]

    def _line_jobs(self, planned: Sequence[Job]) -> list[Job]:
        """Return the jobs that sample the lines of Python programs without torch, on a machine without a GPU."""
        if self.machine.gpus or any(job.profiler == LINES for job in planned):
            return []
        asked = {job.workload for job in planned if job.profiler == "torch"}
        return [job for job in self._plan_commands(LINES) if job.workload in asked and self._has_lines_only(job)]

    def _has_lines_only(self, job: Job) -> bool:
        """Return True if plain showed a Python program that imports no torch, and takes long enough."""
        entry = self._find_plain(job)
        if entry is None or entry.returncode != 0 or entry.seconds < _LEAST_LINES_S:
            return False
        folder = self.folder / entry.folder
        return any(folder.glob("hook.*.loaded")) and artifacts.imports_no_torch(job.move_to(folder))

    def _plan_commands(self, profiler: str) -> list[Job]:
        """Return the jobs of all commands under a profiler that the run was not asked for."""
        tools = {**self.machine.tools, profiler: profilers.ALL[profiler].find(process.ask)}
        machine = ExaminedMachine(tools, self.machine.gpus, self.machine.described)
        jobs = map(self.placed, plan_jobs(self.request, machine, self.folder, profilers=(profiler,)))
        return [job for job in jobs if job.script is None]

    # --- the reference of a task -------------------------------------------------------------------------------------

    def _reference_jobs(self, task: Task) -> list[Job]:
        """Return one process of the case that every task times; none where this node has timed it already."""
        label = f"{schema.NODE_PREFIX}{task.node}"
        if (self.data.metrics["subject"] == label).any():
            return []
        request = replace(self.request, profilers=("plain",), captures=None)
        planned = plan_jobs(request, self.machine, self.folder, [task.reference])
        folder = self.folder / "raw" / task.workload / task.label / "reference"
        return [replace(job.move_to(folder, label), repeat=1, captures=1, interleaved=()) for job in planned[:1]]

    # --- guided ncu --------------------------------------------------------------------------------------------------

    def _guided_jobs(self, waiting: Sequence[Job]) -> list[Job]:
        """Return the jobs in place of ``waiting``, and remove the rows of jobs that an earlier try had instead."""
        earlier = {
            job.folder: [
                guide
                for path in sorted(job.folder.glob(f"*/{guide_file.FILE}"))
                if (guide := _read_guide(path.parent)) is not None
            ]
            for job in waiting
            if not isinstance(job.tool, Missing)
        }
        guided = guided_ncu.jobs(waiting, self.data, self._launches, earlier)
        wanted = {self._name(job.folder) for job in guided}
        chosen = {choice for job in guided for choice in guided_ncu.chosen(job)}
        for entry in self.manifest.jobs:
            folder = self.folder / entry.folder
            if folder.parent not in earlier or entry.folder in wanted:
                continue
            guide = _read_guide(folder)
            # A job for one missed kernel stays, as long as that kernel is still chosen.
            if guide is None or not chosen.issuperset(guide):
                self.manifest = self.manifest.without_job(entry.folder)
                self.data = job_tables.drop_folder(self.data, entry.folder)
        return guided

    def _launches(self, source: str) -> pd.DataFrame:
        """Return the single launches in a file of this run; none where its parser gives none."""
        path = self.folder / source
        try:
            return reader.launches(reader.choose(path, reader.parsers(self.request.plugin_dir)), path)
        except UnreadableFile:
            return launch_tables.no_launches()

    # --- storing -----------------------------------------------------------------------------------------------------

    def _store(self, outcome: JobOutcome, key: str) -> None:
        """Read the files of a job and store the rows, in place of the rows of an earlier try."""
        job, read = outcome.job, []
        if self.pairs:
            self.pairs.add_foreign_modules(job)
        artifacts.publish_output(job)
        files: list[FileEntry] = []
        refused: list[RefusedFile] = []
        scrubbed = exports.scrub_exports(outcome.files, self.request.plugin_dir)
        sources = job_tables.sources_of_job(outcome, self.folder)
        for result in reader.ingest(sources, self.request.plugin_dir, load_rules(self.request)):
            if isinstance(result, reader.Refusal):
                refused.append(RefusedFile(result.source.name, job.masked(result.what), result.remedy))
            else:
                tables = exports.mask_tables(result.tables, job.launch.secrets)
                read.append(tables)
                is_scrubbed = scrubbed.get(result.source.path)
                files.append(manifest_entries.file_entry(result.source.name, result.parser, tables.origin, is_scrubbed))
        stored, fresh = self.data, reader.combine(read)
        fresh = job_tables.replace_cases(fresh, job_tables.case_rows(outcome, self.folder.name, fresh.cases))
        fresh = job_tables.add_up_costs(job_tables.add_process_wall(fresh, outcome, self.folder.name))
        if job.is_repeated:
            fresh = job_tables.merge_processes(stored, fresh, job.repeat, job.captures)
        expression = self.request.pipeline.workloads[job.workload].items_per_step
        counts = ((case.id, items_of(expression, case.params)) for case in job.cases)
        fresh = job_tables.add_item_rates(fresh, {case: count for case, count in counts if count is not None})
        self.data = self._merged(job, fresh)
        devices = job_tables.read_devices(job.records)
        # The peak rates of the job's devices are kept if they differ from those of the machine.
        variables = {**process.job_variables(job), **job.launch.env}
        peaks = manifest.parse(PeakRates, machine_info.peaks_of_job(self.machine.gpus, variables, devices))
        entry = manifest_entries.job_entry(
            outcome,
            _commands(job),
            self.folder,
            key=key if _is_reusable(outcome, fresh) else "",
            reused_from=job_cache.read_origin(job.folder),
            devices=tuple(manifest.parse(manifest.DeviceEntry, device) for device in devices),
            peaks=None if peaks == self.manifest.machine.peaks else peaks,
            ended_early=artifacts.is_ended_early(job),
            rank_nodes=job_tables.read_rank_nodes(job.records) or None if job.launch.nodes > 1 else None,
        )
        families = job_tables.expected_families(job.log)
        private_files = self._private_files(job)
        self.manifest = self.manifest.with_job(entry, files, refused, families, outcome.incidents, private_files)
        if is_reference(job):
            # Its case has a job in another task.
            self.manifest = self.manifest.without_job(entry.folder)
        store.save(self.folder, self.data, self.manifest, stored)
        self.on_stored(job)

    def _private_files(self, job: Job) -> tuple[str, ...]:
        """Return the private files of the run, of which those of ``job`` are searched for again."""
        secrets = masking.masker(job.launch.secrets).spellings
        private_names = exports.find_private_files(self.folder, job.folder, secrets)
        if job.folder.is_dir():
            job.folder.chmod((self.folder / "raw").stat().st_mode & 0o777)
        own_files = (REQUEST_FILE, fingerprint.FILE, sides.SIDES_FILE)
        paths = (find_saved(self.folder, name) for name in own_files)
        requests = [str(path.relative_to(self.folder)) for path in paths if path.exists()]
        below = f"{self._name(job.folder)}/"
        others = (
            name
            for name in self.manifest.private_files or ()
            if not name.startswith(below) and (self.folder / name).is_file()
        )
        return tuple(sorted({*requests, *others, *private_names}))

    def _merged(self, job: Job, fresh: Tables) -> Tables:
        """Return the stored rows with those of a job."""
        if self.pairs:
            return self.pairs.merge(self.data, fresh, job)
        if is_reference(job):
            is_time = fresh.metrics["metric"].isin(schema.TIMES) & (fresh.metrics["subject"] == "")
            times = fresh.metrics[is_time].assign(subject=job.label)
            return replace(self.data, metrics=schema.concat_rows(schema.METRICS, [self.data.metrics, times]))
        if guided_ncu.adds_kernels(job):
            return job_tables.add_kernels(self.data, fresh)
        job_folder, cases = str(job.folder.relative_to(self.folder)), [case.id for case in job.cases]
        stored = job_tables.drop_folder(self.data, job_folder, (job.workload, job.profiler, cases))
        return job_tables.replace_cases(stored, fresh)


def _find_slots(request: RunRequest, machine: ExaminedMachine) -> slots.Gpus:
    return slots.find(request.pipeline.gpus, machine.gpus, os.environ)


def is_done(entry: JobEntry) -> bool:
    """Return True if the job ended, without an interrupt and without a full disk."""
    return not entry.interrupted and not disk_full_cases(entry)


def disk_full_cases(entry: JobEntry) -> Sequence[str]:
    """Return the cases of a job that a full disk stopped: all of them where it stopped the job itself."""
    cases = [case for case, cause in entry.causes.items() if cause is Cause.DISK_FULL]
    return cases or (entry.cases if entry.cause is Cause.DISK_FULL else ())


def is_reference(job: Job) -> bool:
    """Return True for the job with which a task of a cluster times the reference of its workload."""
    return job.label.startswith(schema.NODE_PREFIX)


def _read_guide(folder: Path) -> guide_file.Guide | None:
    """Return None for a damaged guide too: its kernels are then profiled again."""
    try:
        return guide_file.read_beside(folder / "report")
    except UnreadableFile:
        return None


def _is_reusable(outcome: JobOutcome, fresh: Tables) -> bool:
    """Return True if a later run may reuse the job: each case is ok, or its workload says that it cannot run here.

    A case that was skipped for its size is no such case: another job decided that, and may end differently next time.
    """
    was_pruned = Cause.LARGER_THAN_OOM in outcome.causes.values()
    has_run = outcome.status is Status.OK and outcome.returncode is not None and not was_pruned
    return has_run and bool(fresh.cases["status"].isin([Status.OK.value, Status.SKIPPED.value]).all())


def _find_oom_cases(planned: Iterable[Job], data: Tables) -> dict[tuple[str, str], list[Case]]:
    """Return the stored cases that ran out of memory, by workload and profiler."""
    oom = data.cases[data.cases["status"] == Status.OOM.value]
    oom_keys = set(zip(oom["workload"], oom["profiler"], oom["case"], strict=True))
    oom_cases: dict[tuple[str, str], list[Case]] = {}
    for job in planned:
        cases = [case for case in job.cases if (job.workload, job.profiler, case.id) in oom_keys]
        oom_cases.setdefault((job.workload, job.profiler), []).extend(cases)
    return oom_cases


def _commands(job: Job) -> list[Command]:
    return [] if isinstance(job.tool, Missing) else profilers.ALL[job.profiler].commands(job)
