"""Estimate how long a run takes: from earlier runs of the same cases on the same GPU, else from a model.

An earlier run tells the seconds of each process (``run.json``) and of each case in it (table ``cases``). What it does
not tell follows from the model, scaled by what is known of the same workload. So do the jobs of a run that have ended
for those that are left. A program that has not ended well once has no known length. `profpipe.db` has no settings of a
case, so that it cannot tell whether a case is the same.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import math
import re
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import pandas as pd

from profpipe import plugins
from profpipe.config.models import Pipeline, Workload
from profpipe.errors import ConfigError
from profpipe.job import Case, Job, Missing, Status
from profpipe.profilers import find_traits
from profpipe.results import manifest, manifest_entries, pair_blocks, store
from profpipe.results.manifest import JobEntry, Manifest
from profpipe.runner import guided_ncu
from profpipe.runner.request import ExaminedMachine, RunRequest

# --- the model -------------------------------------------------------------------------------------------------------
# Seconds on an H100. They give 131 s for the 24 cases of pipeline.yaml under four profilers, of 134 s that were
# measured, and a half to twice the truth for the runs of scripts in examples/. Models whose calls take seconds
# (transformer_lm, cogvideox) need five times as long and more: the length of a call is not known. The CPU is an EPYC
# with two cores and torch 2.13. What earlier runs tell takes the place of the model.

# A profiler states the seconds of a process (Python, torch, CUDA, its start and export) and of a case on a GPU
# (``job.Traits``).

#: The same on a CPU. Calls are long and their times scatter: sampling, warm-up and the loop without a profiler use the
#: budget (`budget_s`) about three times, a recorded loop with its warm-up one to two times.
_CPU_PROCESS_S: Final = 2.0
_CPU_CASE_S, _CPU_BUDGETS, _CPU_BUDGETS_RECORDED = 0.4, 2.8, 1.6
#: Of profpipe itself: its start, before it knows the jobs, and plan, tables and report, for a run and for each case
#: under a profiler. The recording of a program has some 100,000 events on a GPU, and 5,000 on a CPU.
_START_S, _REPORT_S, _READ_S, _READ_RECORDING_S, _READ_ON_CPU_S = 1.5, 2.0, 0.1, 5.0, 1.0

#: Workload, case and profiler.
_CaseKey = tuple[str, str, str]

#: Earlier runs that are read, the newest first, and how many of them give the median of a case.
_RUNS, _RECENT = 8, 3
#: What the seconds of a case depend on, beside its parameters and the profiler.
_SETTINGS: Final = {
    *("script", "command", "flag", "params", "warmup", "processes", "timing", "steps", "capture", "ncu", "torch"),
    *("collect", "hook", "nodes", "tasks_per_node"),
}


def _model(workload: Workload, profiler: str, is_on_gpu: bool) -> float:
    """Return the seconds of a case of a script; of a program, its length in lengths without a profiler."""
    if workload.is_command:
        return find_traits(profiler).program
    if is_on_gpu:
        return find_traits(profiler).case_s
    budgets = _CPU_BUDGETS if profiler == "plain" else _CPU_BUDGETS_RECORDED
    return _CPU_CASE_S + budgets * workload.timing.budget_s


def _process_s(workload: Workload, profiler: str, is_on_gpu: bool) -> float:
    if workload.is_command:
        return 0.0
    return find_traits(profiler).process_s if is_on_gpu else _CPU_PROCESS_S


# --- earlier runs ----------------------------------------------------------------------------------------------------


def _recent(newest_first: Sequence[float]) -> float | None:
    return statistics.median(newest_first[:_RECENT]) if newest_first else None


@dataclass
class _Past:
    """What earlier runs tell of a workload under a profiler."""

    #: Seconds of each case in the newest runs with the same settings, without its share of the process.
    cases: dict[str, list[float]] = field(default_factory=dict)
    #: Seconds of cases in the newest run, with whatever settings, in those of the model.
    ratios: list[float] = field(default_factory=list)
    #: Seconds of the processes of the newest runs outside their cases.
    process_s: list[float] = field(default_factory=list)

    def case_s(self, case: Case) -> float | None:
        return _recent(self.cases.get(case.id, ()))


@dataclass
class Estimates:
    """Estimates the jobs of a pipeline on a machine."""

    pipeline: Pipeline
    is_on_gpu: bool
    #: By how many seconds a program ends before it did under plain, by the folder of its job.
    saved_s: Mapping[Path, float] = field(default_factory=dict)
    past: dict[tuple[str, str], _Past] = field(default_factory=dict)
    #: By how much the work of profpipe itself took longer in the newest runs than in the model.
    overhead_ratios: list[float] = field(default_factory=list)
    #: By workload and case: whether the newest run with the same settings skipped it, under any profiler.
    skipped: dict[tuple[str, str], bool] = field(default_factory=dict)

    @classmethod
    def read(cls, request: RunRequest, machine: ExaminedMachine, before: Path | None = None) -> Estimates:
        """Read the newest runs in the results folder, of those older than the run in ``before``.

        So a resumed run has the estimates with which it began.
        """
        here = Manifest(machine=manifest.parse(manifest.Machine, machine.described))
        made = cls(manifest_entries.published(request.pipeline, request.secrets), bool(here.machine.gpus))
        for folder, run in _earlier(request.out, before):
            if run.device[0] == here.device[0] and run.schema_version == here.schema_version and not run.nodes:
                made._learn(run, _seconds_of_cases(folder))
        return made

    def add_run(self, run: Manifest, cases: pd.DataFrame, saved_s: Mapping[Path, float]) -> Estimates:
        """Return the estimates with what the jobs tell that have ended in a run that goes on."""
        made = Estimates(self.pipeline, self.is_on_gpu, saved_s)
        made._learn(run, _read_seconds(cases))
        made.overhead_ratios += self.overhead_ratios
        made.skipped = {**self.skipped, **made.skipped}
        for key, earlier in self.past.items():
            past = made.past.setdefault(key, _Past())
            past.ratios = past.ratios or earlier.ratios
            past.process_s += earlier.process_s
            for case, seconds in earlier.cases.items():
                past.cases.setdefault(case, []).extend(seconds)
        return made

    def _learn(self, run: Manifest, seconds: Mapping[_CaseKey, tuple[str, float]]) -> None:
        """Add what a run tells, after newer runs. ``seconds`` are the status and the seconds of its cases."""
        for (name, profiler), entries in _group_processes(run).items():
            workload = run.workload(name)
            # A guided job of ncu becomes several, and without all of them the length of a case is not known.
            is_part = profiler == "ncu" and workload and workload.ncu.kernels == "guided" and not run.ended
            if workload is not None and name in self.pipeline.workloads and not is_part:
                self._add(run, name, profiler, workload, entries, seconds)
        own_s = _own_s(run)
        if own_s is not None and not run.ab:
            skipped = {key for key, (status, _) in seconds.items() if status == Status.SKIPPED}
            counts = [(e, sum((e.workload, case, e.profiler) not in skipped for case in e.cases)) for e in run.jobs]
            model_s = sum(
                _reading_s(run.is_command(e.workload), e.profiler, count, self.is_on_gpu) for e, count in counts
            )
            self.overhead_ratios.append(own_s / (_REPORT_S + model_s))

    def _add(
        self,
        run: Manifest,
        name: str,
        profiler: str,
        workload: Workload,
        entries: Sequence[JobEntry],
        seconds: Mapping[_CaseKey, tuple[str, float]],
    ) -> None:
        """Add what the processes of an earlier run tell, after those of newer runs."""
        planned = self.pipeline.workloads[name]
        is_same = _settings(planned) == _settings(workload) and planned.is_command == workload.is_command
        past, model_s = self.past.setdefault((name, profiler), _Past()), _model(workload, profiler, self.is_on_gpu)
        outside_s = _process_s(workload, profiler, self.is_on_gpu)
        is_guided = profiler == "ncu" and workload.ncu.kernels == "guided"
        ratios, rests, case_seconds = [], [], dict[str, list[float]]()
        for entry in entries:
            # The table has the cases of the sides of an `ab` run by another name, and a run that goes on by none yet.
            has_failed = entry.causes or entry.status is not Status.OK
            unnamed = Status.FAILED if has_failed else Status.OK, 0.0
            rows = {case: seconds.get((name, case, profiler), unnamed) for case in entry.cases}
            inside_s = sum(own_s for _, own_s in rows.values())
            # In the table, a program has the sum of its processes.
            if workload.is_command or not 0 < inside_s <= entry.seconds:
                inside_s = max(entry.seconds - outside_s, 0.0)
                rows = {case: (status, inside_s / max(len(rows), 1)) for case, (status, _) in rows.items()}
            rests.append(entry.seconds - inside_s)
            lengths = _count_lengths(run, entry, workload)
            for case, (status, case_s) in rows.items():
                own_s = case_s / lengths
                if status in (Status.OK, Status.SKIPPED):
                    case_seconds.setdefault(case, []).append(own_s)
                    if is_same:
                        self.skipped.setdefault((name, case), status == Status.SKIPPED)
                if status == Status.OK:
                    ratios.append(own_s / model_s)
        past.ratios = past.ratios or ratios
        past.process_s += [statistics.median(rests)] if rests else []
        for case, measured in case_seconds.items() if is_same else ():
            past.cases.setdefault(case, []).append(
                sum(measured) if is_guided else statistics.median(measured[-_RECENT:])
            )

    # --- estimates ---------------------------------------------------------------------------------------------------

    def is_measured(self, job: Job, case: Case) -> bool:
        """Return True if an earlier run has measured the case under the profiler of ``job``, with the same settings."""
        past = self.past.get((job.workload, job.profiler), _Past())
        return case.id in past.cases

    def seconds(self, job: Job) -> float | None:
        """Return the seconds of the job's processes; None for a program whose length is not known."""
        parts = self.part_seconds(job)
        return None if parts is None else sum(parts.values())

    def part_seconds(self, job: Job) -> Mapping[str, float] | None:
        """Return the seconds of each case, and as case "" those of the process outside its cases."""
        if isinstance(job.tool, Missing):
            return {}
        workload = self.pipeline.workloads[job.workload]
        past = self.past.get((job.workload, job.profiler), _Past())
        others = [other.ratios for (name, _), other in self.past.items() if name == job.workload and other.ratios]
        ratios = past.ratios or (others[0] if others else [])
        runnable = [case for case in job.cases if not self._is_skipped(job, case)]
        if workload.is_command and not ratios and any(case.id not in past.cases for case in runnable):
            return None
        scale = statistics.fmean(ratios) if ratios else 1.0
        process_s = _recent(past.process_s)
        if process_s is None:
            process_s = _process_s(workload, job.profiler, self.is_on_gpu)
        saved_s = 0.0 if past.ratios else self.saved_s.get(job.folder, 0.0)
        new_s = max(scale - saved_s, 0.0) * _model(workload, job.profiler, self.is_on_gpu)
        share = len(job.guided.chosen) / (job.settings.ncu.top * len(job.cases)) if job.guided else 1.0
        seconds = {case.id: past.case_s(case) for case in runnable}
        share *= _lengths(job.settings.timing.budget_s / workload.timing.budget_s) if job.script else 1.0
        return {
            "": process_s,
            **{case: share * (new_s if case_s is None else case_s) for case, case_s in seconds.items()},
        }

    def _is_skipped(self, job: Job, case: Case) -> bool:
        """Return True if the case cannot run here: the newest run says so, else the file of the workload."""
        is_skipped = self.skipped.get((job.workload, case.id))
        if is_skipped is None and job.script is not None:
            return _lacks_requirement(job.script, case.params, self.is_on_gpu)
        return bool(is_skipped)

    def left(self, job: Job, later: Sequence[Job], slots: int = 1) -> tuple[Mapping[str, float], float] | None:
        """Return the seconds of each part of a job that starts now, and those of all that comes after it.

        None where one is not known.
        """
        parts, total_s = self.part_seconds(job), self.total_s([job, *later], slots)
        if parts is None or total_s is None:
            return None
        return parts, max(total_s - _START_S - sum(parts.values()), 0.0)

    def own_s(self, jobs: Iterable[Job]) -> float:
        """Return the seconds of profpipe outside the processes: its start, reading, tables and the report."""
        counts = (
            (job, sum(not self._is_skipped(job, case) for case in job.cases))
            for job in jobs
            if not isinstance(job.tool, Missing)
        )
        read = (_reading_s(job.script is None, job.profiler, count, self.is_on_gpu) for job, count in counts)
        return _START_S + (_recent(self.overhead_ratios) or 1.0) * (_REPORT_S + sum(read))

    def total_s(self, jobs: Sequence[Job], slots: int = 1) -> float | None:
        """Return the seconds of a run of ``jobs`` with so many of them side by side; None where one is not known."""
        slot_s, alone_s, groups = [0.0] * slots, 0.0, dict[str, int]()
        for job in self.longest_first(jobs) if slots > 1 else jobs:
            seconds = self.seconds(job)
            if seconds is None:
                return None
            if not job.group:
                alone_s += seconds
                continue
            slot = groups.setdefault(job.group, slot_s.index(min(slot_s)))
            slot_s[slot] += seconds
        return alone_s + max(slot_s) + self.own_s(jobs)

    def longest_first(self, jobs: Sequence[Job]) -> list[Job]:
        """Return the jobs with those of long groups before those of short ones, so that all GPUs end together.

        The order of profilers in a workload stays, and so does the order of processes that take turns and of jobs that
        run alone: nothing overtakes these.
        """
        totals: dict[str, float] = {}
        for job in jobs:
            totals[job.group] = totals.get(job.group, 0.0) + (self.seconds(job) or 0.0)
        turns: dict[str, dict[str, int]] = {}
        for job in jobs:
            numbers = turns.setdefault(job.workload, {})
            numbers.setdefault(job.profiler, len(numbers))
        blocks = itertools.groupby(jobs, key=lambda job: bool(job.group) and not job.is_repeated)
        return [
            job
            for is_free, block in blocks
            for job in (
                sorted(block, key=lambda job: (turns[job.workload][job.profiler], -totals[job.group]))
                if is_free
                else block
            )
        ]


def _lacks_requirement(script: Path, params: Mapping[str, Any], is_on_gpu: bool) -> bool:
    """Return True if the file of a workload says that the case cannot run: it needs a GPU, or a package."""
    needs, defaults = _declared(script)
    packages = [values.get({**defaults, **params}.get(name)) for name, values in needs.items()]
    return any(
        not is_on_gpu or (name and find_spec(name.partition(".")[0]) is None) for name in packages if name is not None
    )


@functools.cache
def _declared(script: Path) -> tuple[Mapping[str, Mapping[Any, str]], Mapping[str, Any]]:
    try:
        return plugins.declared_needs(script), plugins.declared_params(script) or {}
    except (OSError, SyntaxError, ValueError):
        return {}, {}  # the process of the workload says what is wrong with its file


def _reading_s(is_program: bool, profiler: str, cases: int, is_on_gpu: bool) -> float:
    if is_program and profiler != "plain":
        return _READ_RECORDING_S if is_on_gpu else _READ_ON_CPU_S
    return _READ_S * cases


def _earlier(out: Path, before: Path | None) -> Iterator[tuple[Path, Manifest]]:
    """Yield the newest runs by the times in their names. A run with a damaged manifest is left out."""
    runs = (path.parent for path in out.glob(f"[!.]*/{manifest.FILE}") if not path.parent.is_symlink())
    names = sorted((path for path in runs if before is None or path.name < before.name), key=lambda path: path.name)
    for folder in names[: -_RUNS - 1 : -1]:
        with suppress(ConfigError):
            if (run := Manifest.load(folder)).is_run:
                yield folder, run


def _group_processes(run: Manifest) -> dict[tuple[str, str], list[JobEntry]]:
    """Return the processes of a run that came to their end, by workload and profiler."""
    entries: dict[tuple[str, str], list[JobEntry]] = {}
    for entry in run.jobs:
        if not entry.interrupted and 0 < entry.seconds < math.inf:
            entries.setdefault((entry.workload, entry.profiler), []).append(entry)
    return entries


def _count_lengths(run: Manifest, entry: JobEntry, workload: Workload) -> float:
    """Return how many times as long as planned a process takes for each case: those of long pairs visit it again."""
    pair = re.search(r"/pair-(\d+)/", entry.folder)
    if run.ab is None or pair is None or entry.profiler != "plain" or workload.timing.order != "interleaved":
        return 1.0
    is_long = not workload.is_command and pair_blocks.is_long(int(pair[1]), entry.workload, run.ab)
    rounds = workload.timing.rounds
    return _lengths(pair_blocks.count_visits(rounds, workload.repeats) / rounds) if is_long else 1.0


def _lengths(visits: float) -> float:
    """Return how many times as long a case takes with so many times the visits, which compile and check nothing."""
    return 1 + (visits - 1) / 3


def _seconds_of_cases(folder: Path) -> Mapping[_CaseKey, tuple[str, float]]:
    try:
        return _read_seconds(store.load_cases(folder))
    except ConfigError:
        return {}  # the report of that run names the damage


def _read_seconds(cases: pd.DataFrame) -> Mapping[_CaseKey, tuple[str, float]]:
    """Return the status and the seconds of each case of a run."""
    columns = (cases[name] for name in ("workload", "case", "profiler", "status"))
    rows = zip(*columns, cases["seconds"].fillna(0.0), strict=True)
    return {(workload, case, profiler): (status, float(s)) for workload, case, profiler, status, s in rows}


def _settings(workload: Workload) -> dict[str, Any]:
    is_repeated = not workload.is_command  # `repeats` of a program are its processes
    names = _SETTINGS | ({"repeats"} if is_repeated else set())
    return workload.model_dump(mode="json", include=names, exclude={"ncu": {"shapes"}})


def _own_s(run: Manifest) -> float | None:
    """Return the seconds of profpipe itself in a run, without its start; None where the record does not say."""
    slot_s: dict[str | None, float] = {}
    for entry in run.jobs:
        if not entry.reused_from:
            slot_s[entry.lane] = slot_s.get(entry.lane, 0.0) + entry.seconds
    alone_s = slot_s.pop(None, 0.0)
    own_s = (run.seconds or 0.0) - alone_s - max(slot_s.values(), default=0.0)
    # Of a run that was killed and resumed, a part of the time is not known. A damaged record may hold any number.
    return own_s if 0 < own_s < math.inf else None


# --- a budget --------------------------------------------------------------------------------------------------------


def fit(
    request: RunRequest, budget_s: float, total_s: Callable[[RunRequest], float | None]
) -> tuple[RunRequest, list[str]]:
    """Return the part of ``request`` that fits into ``budget_s``, and what is left out: ``ncu``, ``torch of lm``.

    First comes one process of each case without a profiler, then the other profilers, the cheapest first and ncu last,
    then the repeated processes under plain. A workload of which no profiler is chosen keeps its first one. Guided ncu
    needs the capture of another profiler. ``total_s`` estimates a request. Raises ConfigError where nothing fits, or
    where the length of a program is not known.
    """
    whole_s = total_s(request)
    if whole_s is None:
        what = "cannot be kept: this program has never run here, so there is no estimate."
        raise ConfigError("--budget", what, "Run it once without --budget: -p plain --set repeats=1")
    if whole_s <= budget_s:
        return request, []
    chosen = {
        name: workload for name, workload in request.pipeline.workloads.items() if name in (request.workloads or [name])
    }
    asked = list(dict.fromkeys(p for workload in chosen.values() for p in request.profilers or workload.profilers))
    most = max([request.captures or 1, *(workload.repeats for workload in chosen.values() if workload.is_command)])

    def part(profilers: Sequence[str], processes: int) -> RunRequest:
        workloads = dict(request.pipeline.workloads)
        for name, workload in chosen.items():
            names = request.profilers or workload.profilers
            wanted = [p for p in names if p in profilers]
            if workload.ncu.kernels == "guided" and not {*guided_ncu.GUIDES} & {*wanted}:
                wanted = [p for p in wanted if p != "ncu"]
            wanted = wanted or list(names[:1])
            repeats = min(workload.repeats, processes) if workload.is_command else workload.repeats
            workloads[name] = workload.model_copy(update={"profilers": wanted, "repeats": repeats})
        pipeline = request.pipeline.model_copy(update={"workloads": workloads})
        captures = request.captures and min(request.captures, processes)
        return replace(request, pipeline=pipeline, profilers=(), captures=captures)

    def seconds(profilers: Sequence[str], processes: int = 1) -> float:
        return total_s(part(profilers, processes)) or 0.0

    kept = [asked[0] if "plain" not in asked else "plain"]
    others = sorted((p for p in asked if p not in kept), key=lambda p: (p == "ncu", seconds([*kept, p])))
    if (least_s := seconds(kept)) > budget_s:
        what = f"is too short: one process of each case takes about {math.ceil(least_s)} s."
        raise ConfigError("--budget", what, f"Ask for --budget {math.ceil(least_s)}s, or for fewer cases.")
    for profiler in others:
        if seconds([*kept, profiler]) <= budget_s:
            kept.append(profiler)
    # More processes take longer. On several GPUs that holds roughly, for the order of the jobs changes too.
    processes = max(1, bisect.bisect_right(range(1, most + 1), budget_s, key=lambda n: seconds(kept, n)))
    fitting = part(kept, processes)
    before = {name: request.profilers or workload.profilers for name, workload in chosen.items()}
    left = [*_lost(before, {name: workload.profilers for name, workload in fitting.pipeline.workloads.items()})]
    if processes < most:
        left.append(f"processes {processes + 1} and later of each case under plain")
    return fitting, left


def _lost(before: Mapping[str, Sequence[str]], now: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield the profilers that workloads have lost, with their names where others have kept them: ``torch of lm``."""
    for profiler in dict.fromkeys(itertools.chain.from_iterable(before.values())):
        users = [name for name, profilers in before.items() if profiler in profilers]
        lost = [name for name in users if profiler not in now[name]]
        if lost:
            yield profiler if lost == users else f"{profiler} of {' and '.join(lost)}"
