"""Run two sides as interleaved pairs of processes: the session of `profpipe ab`.

Each pair starts a process of A and one of B for each workload, one right after the other, in an order that is drawn.
Every process has a separate job in ``raw/<workload>/pair-03/A``, so that a run that was killed goes on with the
process that was missing. The tables hold one row of ``time`` for each case, pair and side, with the subject
``pair 3 A``. The verdicts are made from these rows by the command above.

After the timed processes of each of the first pairs, a process of each side runs under a profiler, in
``raw/<workload>/pair-03/A-nsys``. The tables `kernels` and `ranges` hold the rows of these captures by their file.

After the first block, further blocks measure some of the cases again: those that would fail a gate, and those that are
undecided. A process of a further pair visits each case several times, and its time is the mean of the visits' medians.
Where the first pairs of a workload scatter, the later ones visit each case as often, and their time stays the median of
all samples: single slow visits do not move it.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import statistics
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from profpipe import origins, profilers
from profpipe.config.models import Pipeline
from profpipe.errors import ConfigError
from profpipe.ingest import reader
from profpipe.job import Case, Job, ProgressListener, Status
from profpipe.measure import rounds
from profpipe.measure.flags import Flag
from profpipe.results import atomic, noise, pair_blocks, schema, store
from profpipe.results.manifest import Manifest, PairsEntry
from profpipe.results.pair_blocks import Block
from profpipe.results.schema import Tables
from profpipe.runner import checkout, executor, fingerprint, own_runs, pair_captures, plan, session, sides
from profpipe.runner.request import REQUEST_FILE, Machine, RunRequest
from profpipe.runner.session import Session
from profpipe.runner.sides import Side

#: (workload, case) with the case's name on both sides.
Key = tuple[str, str]
#: Chooses from the tables of an `ab` run the cases to measure in a later block of pairs.
ChooseAgain = Callable[[Tables, Manifest, Block], Collection[Key]]


def join_cases(a: Pipeline, b: Pipeline, workloads: Sequence[str] = ()) -> dict[str, list[tuple[str, Case, Case]]]:
    """Return by workload: the name of each case on both sides, and the case of A and of B.

    The names of cases may differ in the parameters that ``set:`` gives: these are left out of the common name. Raises
    ConfigError for a case that one side lacks.
    """
    joined = {}
    for name, workload in a.workloads.items():
        if workloads and name not in workloads:
            continue
        cases = [plan.cases(each) for each in (workload, b.workloads[name])]
        differing = _differing_params(*cases)
        named_a, named_b = ({_common_name(case, differing): case for case in own} for own in cases)
        alone = sorted(named_a.keys() ^ named_b.keys())
        if alone or len(named_a) < len(cases[0]) or len(named_b) < len(cases[1]):
            which = f"case {alone[0]} is on one side only" if alone else "several cases of a side have one name"
            remedy = "A and B must have the same cases. Give both sides the same values, except one for each set:."
            raise ConfigError(f"workload '{name}'", f"{which}.", remedy)
        joined[name] = [(common, case, named_b[common]) for common, case in named_a.items()]
    return joined


def _differing_params(a: Sequence[Case], b: Sequence[Case]) -> set[str]:
    """Return the parameters in the names of cases that have other values on the other side."""
    names = {part.partition("=")[0] for case in (*a, *b) for part in case.id.split(",")}
    return {
        name
        for name in names
        if {_value_in_name(case, name) for case in a} != {_value_in_name(case, name) for case in b}
    }


def _value_in_name(case: Case, name: str) -> str | None:
    return next((part for part in case.id.split(",") if part.partition("=")[0] == name), None)


def _common_name(case: Case, without: Collection[str]) -> str:
    kept = [part for part in case.id.split(",") if part.partition("=")[0] not in without]
    return ",".join(kept) or plan.ONLY_CASE


def create(request: RunRequest, both: tuple[Side, Side], settings: PairsEntry, command: Sequence[str]) -> PairSession:
    """Make the folder of a new run. ``request`` is that of A at the user's own pipeline file."""
    session.load_rules(request)
    reader.parsers(request.plugin_dir)
    joined = join_cases(both[0].request.pipeline, both[1].request.pipeline, request.workloads)
    checkout.remove_abandoned(request.out)
    machine, settings = pair_captures.prepare(request, settings)
    planned = [
        replace(job, cases=tuple(Case(name, a.params) for name, a, _ in joined[job.workload] if a in job.cases))
        for job in session.plan_jobs(request, machine, request.out)
    ]
    begun = session.begin_run(request, machine, sides.working_folder(request), planned, command)
    begun = replace(begun, ab=replace(settings, spreads=noise.read_floors(request.out, begun)))
    folder = session.make_folder(request, begun, lambda new: sides.save(new, both))
    created = PairSession(request.placed_in(folder), folder, begun, Tables(), both)
    created.machine = machine
    return created


def load(folder: Path, request: RunRequest) -> PairSession:
    """Load the `ab` run in ``folder``, which must be locked."""
    atomic.remove_partial_files(folder)
    for place in (folder / name for name in sides.MADE_ANEW):
        if place.is_symlink():
            place.unlink()
        shutil.rmtree(place, ignore_errors=True)
    data, begun = store.load(folder)
    both = sides.load(folder)
    requests = ((REQUEST_FILE, request), *((sides.SIDES_FILE, side.request) for side in both))
    begun = begun.with_incidents(session.unknown_settings(requests))
    return PairSession(request, folder, begun, data, both)


@dataclass
class PairSession(Session):
    """An `ab` run in progress. ``choose_again`` names the cases to measure in a later block of pairs."""

    sides: tuple[Side, Side]
    choose_again: ChooseAgain = lambda data, run, block: ()

    @cached_property
    def machine(self) -> Machine:
        return pair_captures.examine(self.request, self.settings)

    @property
    def settings(self) -> PairsEntry:
        assert self.manifest.ab is not None
        return self.manifest.ab

    def carry_out(self, listener: ProgressListener) -> None:
        """Run every process that is missing. Raises Interrupted where the user stops the run."""
        try:
            self._record_sources()
            asked = self.settings.pairs - pair_blocks.TRIAL * bool(self.settings.longer)
            self._run_block(range(1, asked + 1), None, listener)
            count = self.settings.pairs
            if added := [(name, case) for name in self.settings.longer for case, *_ in self._joined[name]]:
                self._run_block(range(asked + 1, count + 1), added, listener)
            if again := self.choose_again(self.data, self.manifest, Block.GATE):
                message = f"measuring again what would fail the gate, in {count} fresh pairs: {_shown(again)}"
                listener.message(message)
                self._run_block(range(count + 1, 2 * count + 1), again, listener)
            self._run_further(listener)
        finally:
            checkout.remove(self.folder)

    def _run_further(self, listener: ProgressListener) -> None:
        """Run further pairs of the undecided cases, which are judged again after each look."""
        begin, done = pair_blocks.first_further(self.settings), 0
        for look in pair_blocks.looks(self.settings.more):
            undecided = self.choose_again(self.data, self.manifest, Block.FURTHER)
            if not undecided:
                return
            pairs = range(begin + done, begin + look)
            what = f"{len(pairs)} further pairs (at most {self.settings.more})"
            listener.message(f"measuring what is undecided, in {what}: {_shown(undecided)}")
            self._run_block(pairs, undecided, listener)
            done = look

    # --- planning ----------------------------------------------------------------------------------------------------

    @cached_property
    def _joined(self) -> dict[str, list[tuple[str, Case, Case]]]:
        a, b = self.sides
        return join_cases(a.request.pipeline, b.request.pipeline, self.request.workloads)

    def _side_jobs(self, profiler: str = "plain") -> tuple[list[Job], list[Job]]:
        """Return the jobs of one process of each side, in the same order. Checkouts are made where they are missing."""
        a, b = (self._jobs_of(side.in_checkout(self.folder), profiler) for side in self.sides)
        order = {case.id: i for pairs in self._joined.values() for i, (_, _, case) in enumerate(pairs)}
        return a, sorted(b, key=lambda job: ([*self._joined].index(job.workload), order[job.cases[0].id]))

    def _jobs_of(self, side: Side, profiler: str) -> list[Job]:
        jobs = session.plan_jobs(replace(side.request, profilers=(profiler,)), self.machine, self.folder)
        return [self._adapted(job, side) for job in jobs]

    def _adapted(self, job: Job, side: Side) -> Job:
        """Return the job with its folder below that of the side, and with the side's interpreter."""
        below = job.folder.relative_to(self.folder / "raw" / job.workload / job.profiler)
        name = side.label if job.profiler == "plain" else f"{side.label}-{job.profiler}"
        folder = self.folder / "raw" / job.workload / name / below
        # A side may run in another folder, whose path is of no use to a reader of the page.
        job = replace(
            job,
            folder=folder,
            label=side.label,
            shown_from=sides.working_folder(self.request),
            roots=self._roots.get(side.label, ()),
        )
        if side.python == job.python:
            return job
        words = (side.python, *job.command[1:]) if job.command and sides.is_python(job.command[0]) else job.command
        return replace(job, python=side.python, command=words, env={**job.env, "PYTHONPATH": self._library()})

    def _library(self) -> str:
        """Return a PYTHONPATH with profpipe alone: an installed profpipe lies among packages of this interpreter."""
        package = Path(profilers.__file__).resolve().parents[1]
        link = self.folder / sides.LIBRARY / package.name
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.is_symlink():
            link.symlink_to(package, target_is_directory=True)
        return os.pathsep.join([str(link.parent), *filter(None, [os.environ.get("PYTHONPATH")])])

    def _check_sources(self) -> None:
        a, b = self._side_jobs()
        if (self.folder / fingerprint.FILE).exists():
            fingerprint.check(self.folder, [*a, *b], self.machine.described)

    def _record_sources(self) -> None:
        if not (self.folder / fingerprint.FILE).exists():
            a, b = self._side_jobs()
            fingerprint.save(self.folder, [*a, *b], self.folder, self.machine.described)
            own_runs.add(self.folder)

    # --- running -----------------------------------------------------------------------------------------------------

    def _run_block(self, pairs: range, wanted: Collection[Key] | None, listener: ProgressListener) -> None:
        """Run the pairs, of the cases ``wanted`` or of all, and the captures of the first block."""
        timed, with_captures = self._side_jobs(), pairs[: self.settings.captures] if wanted is None else ()
        captured = self._side_jobs(self.settings.profiler) if with_captures else timed
        total = len(pairs) * sum(map(len, timed)) + len(with_captures) * sum(map(len, captured))
        number = 1
        for pair in pairs:
            if pair == pair_blocks.TRIAL + 1:
                self._choose_length(timed[0], listener)
            long = {job.workload for job in timed[0] if pair_blocks.is_long(pair, job.workload, self.settings)}
            a, b = ([_with_visits(job) if job.workload in long else job for job in side] for side in timed)
            own = a, b
            for sides_jobs in (own, captured) if pair in with_captures else (own,):
                # The jobs of a capture are chosen when the timed processes of the pair have ended.
                every = self._jobs_of_pair(pair, *sides_jobs, wanted)
                jobs = [job for job in every if not self._is_done(job)]
                for outcome in executor.run(jobs, profilers.ALL, listener, numbers=(number, total)):
                    self._add_foreign_modules(outcome.job)
                    self._store(outcome, "")
                number += sum(map(len, sides_jobs))

    def _choose_length(self, jobs: Sequence[Job], listener: ProgressListener) -> None:
        """Make the later pairs of a workload longer where its first pairs scatter, and add pairs for these.

        The first pairs then are no part of a verdict, so the choice cannot favour a side. Pairs that an earlier version
        has measured stay as they are.
        """
        if self.data.metrics["subject"].str.startswith(f"{schema.PAIR_PREFIX}{pair_blocks.TRIAL + 1} ").any():
            return
        noisy = {workload for workload, _ in self.choose_again(self.data, self.manifest, Block.FIRST)}
        noisy &= {job.workload for job in jobs if _with_visits(job) != job}
        if longer := tuple(sorted(noisy)):
            pairs = self.settings.pairs + pair_blocks.TRIAL
            self.manifest = replace(self.manifest, ab=replace(self.settings, longer=longer, pairs=pairs))
            what = f"the first {pair_blocks.TRIAL} pairs scatter, so {pairs - pair_blocks.TRIAL} longer ones follow"
            listener.message(f"{', '.join(longer)}: {what}")

    def _jobs_of_pair(
        self, pair: int, a: Sequence[Job], b: Sequence[Job], wanted: Collection[Key] | None
    ) -> Iterator[Job]:
        """Yield the jobs of both sides in the order of the pair. A case that failed on a side is not tried again."""
        for number, both in enumerate(zip(a, b, strict=True)):
            # A new generator for each draw: a resumed run draws the same orders.
            is_b_first = random.Random(f"{self.settings.seed} {pair} {number}").random() < 0.5
            failed = self._failed_cases(("plain", both[0].profiler))
            for job in both[:: -1 if is_b_first else 1]:
                names = self._names(job)
                kept = tuple(
                    case
                    for case in job.cases
                    if (key := (job.workload, names[case.id])) not in failed and (wanted is None or key in wanted)
                )
                if kept:
                    label = f"{schema.PAIR_PREFIX}{pair} {job.label}"
                    yield replace(job, cases=kept, folder=self._folder_of_pair(job, pair), label=label)

    @cached_property
    def _roots(self) -> Mapping[str, tuple[Path, ...]]:
        """By label: the top folder of the side's code, and those of the other side and of the user's own code."""
        if not any(side.exchanges_folder for side in self.sides):
            return {}
        own = {side.label: side.root(self.folder) for side in self.sides}
        every = [*own.values(), checkout.top_folder(sides.working_folder(self.request))]
        return {label: tuple(dict.fromkeys([root, *every])) for label, root in own.items()}

    def _folder_of_pair(self, job: Job, pair: int) -> Path:
        workload = self.folder / "raw" / job.workload
        return workload / f"pair-{pair:02d}" / job.folder.relative_to(workload)

    def _names(self, job: Job) -> Mapping[str, str]:
        """Return the common name of each case of a job, by its name on the job's side."""
        side = job.label.split()[-1]
        return {(a if side == "A" else b).id: name for name, a, b in self._joined[job.workload]}

    def _is_further(self, job: Job) -> bool:
        pair = int(job.label.removeprefix(schema.PAIR_PREFIX).split()[0])
        return pair_blocks.block_of(pair, self.settings) is Block.FURTHER

    def _failed_cases(self, under: Collection[str]) -> set[Key]:
        """Return the cases of which a process failed under one of these profilers, in an earlier pair."""
        rows = self.data.cases[~self.data.cases["status"].isin([Status.OK.value, Status.INTERRUPTED.value])]
        rows = rows[rows["profiler"].isin(under)]
        return set(zip(rows["workload"], rows["case"], strict=True))

    # --- storing -----------------------------------------------------------------------------------------------------

    def _add_foreign_modules(self, job: Job) -> None:
        """Add the packages that a process of a side loaded from another folder to the record of the side."""
        if not (found := origins.read_foreign_modules(job.folder)):
            return
        is_a = job.label.endswith(" A")
        entry = self.settings.a if is_a else self.settings.b
        changed = replace(entry, foreign_modules={**entry.foreign_modules, **found})
        settings = replace(self.settings, a=changed) if is_a else replace(self.settings, b=changed)
        self.manifest = replace(self.manifest, ab=settings)

    def _private_files(self, job: Job) -> tuple[str, ...]:
        return tuple(sorted({*super()._private_files(job), str(sides.SIDES_FILE)}))

    def _merged(self, job: Job, fresh: Tables) -> Tables:
        """Return the stored rows with the times or the kernels of a process, and what became of its cases."""
        names = self._names(job)
        cases = fresh.cases.assign(case=fresh.cases["case"].map(names))
        ended = schema.frame(schema.CASES, _merge_cases(self.data.cases, cases, f"{job.label}: "))
        if job.profiler != "plain":
            captured = pair_captures.merge(self.data, fresh, job, self._name(job.folder), names)
            return replace(captured, cases=ended)
        is_time = fresh.metrics["metric"].isin(schema.TIMES) & (fresh.metrics["subject"] == "")
        times = fresh.metrics[is_time & fresh.metrics["case"].isin(names)]
        times = _with_means_of_visits(times, job) if self._is_further(job) else times
        times = times.assign(subject=job.label, case=times["case"].map(names))
        mine = (self.data.metrics["subject"] == job.label) & (self.data.metrics["workload"] == job.workload)
        mine &= self.data.metrics["case"].isin([names[case.id] for case in job.cases])
        marks = {
            schema.PAIR_FAILED: cases["status"].isin(schema.FAILED),
            schema.PAIR_INACCURATE: cases["flags"].str.contains(f'"{Flag.INACCURATE}"', regex=False),
        }
        keys = ["run", "workload", "case", "profiler"]
        marked = [
            cases.loc[chosen, keys].assign(subject=job.label, metric=metric, value=1.0, unit="1", n=1)
            for metric, chosen in marks.items()
        ]
        return replace(
            self.data,
            metrics=schema.concat_rows(
                schema.METRICS, [self.data.metrics[~mine], times, *(schema.frame(schema.METRICS, m) for m in marked)]
            ),
            cases=ended,
        )


def _shown(cases: Collection[Key]) -> str:
    return ", ".join(f"{workload}/{case}" for workload, case in sorted(cases))


def _with_visits(job: Job) -> Job:
    """Return the job with several visits to each case, each of which takes as long as a visit of the job does.

    A visit builds the case anew and takes at least one sample. Where the time differs from visit to visit, this costs
    less than as many processes. Several processes of a case make one visit, and so does a command.
    """
    timing = job.options.get("timing")
    if job.script is None or not timing or timing["order"] != "interleaved":
        return job
    visits = max(timing["rounds"], min(pair_blocks.VISITS, job.repeats))
    changed = {**timing, "rounds": visits, "budget_s": timing["budget_s"] * visits / timing["rounds"]}
    return replace(job, options={**job.options, "timing": changed})


def _with_means_of_visits(times: pd.DataFrame, job: Job) -> pd.DataFrame:
    """Return the times of a process with the mean of the medians of its visits in place of the median of all samples.

    Where visits are in one of two states, a median of all samples is in one of them too, and the mean between them.
    """
    means = {
        case: statistics.fmean(statistics.median(visit.values_ns) for visit in by_metric["time"].values())
        for case, by_metric in rounds.load_earlier_rounds(job.log, {case.id for case in job.cases}).items()
        if "time" in by_metric
    }
    is_mean = (times["metric"] == "time") & times["case"].isin(means)
    # The interval in the table is that of the median.
    return times.assign(
        value=times["value"].where(~is_mean, times["case"].map(means)),
        ci_low=times["ci_low"].where(~is_mean),
        ci_high=times["ci_high"].where(~is_mean),
    )


def _merge_cases(stored: pd.DataFrame, fresh: pd.DataFrame, prefix: str) -> Iterable[Mapping[str, Any]]:
    """Return one row for each case and profiler: its first problem on any side, else that all processes are ok.

    Flags of all processes are collected, ``seconds`` are those of the last process.
    """
    rows = {(row["workload"], row["case"], row["profiler"]): row for row in _records(stored)}
    for row in _records(fresh):
        key = row["workload"], row["case"], row["profiler"]
        known = rows.get(key)
        if row["status"] != Status.OK:
            row["reason"] = prefix + (row["reason"] or row["status"])
        if known:
            # What an earlier try of this process met does not count any more.
            is_over = known["reason"].startswith(prefix)
            if known["status"] != Status.OK and not is_over:
                row |= {name: known[name] for name in ("status", "reason")}
            flags = [*json.loads(known["flags"] or "[]"), *json.loads(row["flags"] or "[]")]
            row |= {"flags": json.dumps(list(dict.fromkeys(flags))), "params": known["params"]}
        rows[key] = row
    return rows.values()


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(name): value for name, value in row.items()} for row in frame.to_dict("records")]
