"""Run two sides as interleaved pairs of processes: the course of `profpipe ab`.

Each pair starts a process of A and one of B for each workload, one right after the other, in an order that is drawn.
Every process is a job with a label, ``pair 3 A``, in ``raw/<workload>/pair-03/A``, so that a run that was killed goes
on with the process that was missing. The tables hold one row of ``time`` for each case, pair and side, with the label
as subject. The verdicts are made from these rows by the command above.

After all pairs, processes of each side record the cases that are faster or slower under a profiler, as many as there
are captures, in ``raw/<workload>/pair-03/A-nsys``. The tables `kernels` and `ranges` hold the rows of these captures by
their file. Their times are never compared with those of the timed processes.

After the first block, further blocks measure some of the cases again: those that would fail a gate, and those that are
undecided. A process of a further pair visits each case several times, and its time is the mean of the visits' medians.
Where the first pairs of a workload scatter, the later ones visit each case as often, and their time stays the median of
all samples: single slow visits do not move it.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import statistics
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import pandas as pd

from profpipe import origins, profilers
from profpipe.config.models import Pipeline, Workload
from profpipe.errors import ConfigError
from profpipe.ingest import job_tables
from profpipe.job import Case, Job, ProgressListener, Scalar, Status, as_text
from profpipe.measure import rounds
from profpipe.measure.flags import Flag
from profpipe.results import pair_blocks, schema
from profpipe.results.manifest import Manifest, PairsEntry
from profpipe.results.pair_blocks import PairBlock
from profpipe.results.schema import Tables
from profpipe.results.tasks import Task
from profpipe.runner import checkout, fingerprint, plan, program_copy, sides
from profpipe.runner.request import ExaminedMachine, RunRequest, find_saved, plan_jobs
from profpipe.runner.sides import PairSide

#: (workload, case) with the case's name on both sides.
Key = tuple[str, str]
#: Chooses from the tables of an `ab` run the cases to measure in a later block of pairs.
ChooseAgain = Callable[[Tables, Manifest, PairBlock], Collection[Key]]


def join_cases(a: Pipeline, b: Pipeline, workloads: Sequence[str] = ()) -> dict[str, list[tuple[str, Case, Case]]]:
    """Return by workload: the name of each case on both sides, and the case of A and of B.

    The names of cases may differ in the parameters that ``set:`` gives: these are left out of the common name. Raises
    ConfigError for a case that one side lacks.
    """
    joined = {}
    for name, workload in a.workloads.items():
        if workloads and name not in workloads:
            continue
        both = workload, b.workloads[name]
        differing = _differing_params(*both)
        named_a, named_b = (_name_cases(side, differing) for side in both)
        alone = sorted(named_a.keys() ^ named_b.keys())
        if alone or [len(named_a), len(named_b)] != [len(plan.points(side)) for side in both]:
            which = f"case {alone[0]} is on one side only" if alone else "several cases of a side have one name"
            remedy = "A and B must have the same cases. Give both sides the same values, except one for each set:."
            raise ConfigError(f"workload '{name}'", f"{which}.", remedy)
        joined[name] = [(common, case, named_b[common]) for common, case in named_a.items()]
    return joined


def _differing_params(a: Workload, b: Workload) -> set[str]:
    """Return the parameters in the names of cases that have other values on the other side."""
    points_a, points_b = plan.points(a).values(), plan.points(b).values()

    def values(points: Collection[Mapping[str, Scalar]], name: str) -> set[str | None]:
        return {as_text(point[name]) if name in point else None for point in points}

    names = {name for point in (*points_a, *points_b) for name in point}
    return {name for name in names if values(points_a, name) != values(points_b, name)}


def _name_cases(workload: Workload, differing: Collection[str]) -> dict[str, Case]:
    """Return the cases of a side by their names without the ``differing`` parameters."""
    points = plan.points(workload).values()
    names = (plan.case_id({name: value for name, value in point.items() if name not in differing}) for point in points)
    return dict(zip(names, plan.cases(workload), strict=True))


class PairsSession(Protocol):
    """What pairs need of the session that runs their jobs."""

    request: RunRequest
    folder: Path
    manifest: Manifest
    data: Tables
    task: Task | None
    profile: list[Tables]

    @property
    def machine(self) -> ExaminedMachine: ...

    def placed(self, job: Job) -> Job: ...

    def run_jobs(
        self,
        planned: Sequence[Job],
        listener: ProgressListener,
        numbers: tuple[int, int] | None = None,
        following: Sequence[Job] = (),
        later: Sequence[Job] = (),
    ) -> None: ...


class Pairs:
    """The pairs of a session, which runs their jobs and stores their rows as ``merge`` returns them."""

    def __init__(self, session: PairsSession, both: tuple[PairSide, PairSide]) -> None:
        self._session, self._folder, self._sides = session, session.folder, both
        self._choose_again: ChooseAgain = lambda data, run, block: ()
        a, b = both
        joined = join_cases(a.request.pipeline, b.request.pipeline, session.request.workloads)
        task = session.task
        self._joined = {
            name: [case for case in cases if task is None or case[0] in task.cases] for name, cases in joined.items()
        }

    @property
    def settings(self) -> PairsEntry:
        assert self._session.manifest.ab is not None
        return self._session.manifest.ab

    def _change_settings(self, **changed: Any) -> None:
        self._session.manifest = replace(self._session.manifest, ab=replace(self.settings, **changed))

    def run(self, listener: ProgressListener, choose_again: ChooseAgain) -> None:
        """Run every process that is missing. ``choose_again`` names the cases to measure in a later block.

        Raises Interrupted where the user stops the run.
        """
        self._choose_again = choose_again
        try:
            self._record_sources()
            asked = self.settings.pairs - pair_blocks.TRIAL * bool(self.settings.longer)
            self._run_block(range(1, asked + 1), None, listener)
            count = self.settings.pairs
            if added := [(name, case) for name in self.settings.longer for case, *_ in self._joined[name]]:
                self._run_block(range(asked + 1, count + 1), added, listener)
            if again := self._choose(PairBlock.GATE):
                message = f"measuring again what would fail the gate, in {count} fresh pairs: {_shown(again)}"
                listener.message(message)
                self._run_block(range(count + 1, 2 * count + 1), again, listener)
            self._run_further(listener)
            if self.settings.captures:
                self._run_captures({*self._choose(PairBlock.CAPTURES)}, listener)
        finally:
            checkout.remove(self._folder)

    def _choose(self, block: PairBlock) -> Collection[Key]:
        return self._choose_again(self._session.data, self._session.manifest, block)

    def _run_further(self, listener: ProgressListener) -> None:
        """Run further pairs of the undecided cases, which are judged again after each look."""
        begin, done = pair_blocks.first_further(self.settings), 0
        for look in pair_blocks.looks(self.settings.more):
            undecided = self._choose(PairBlock.FURTHER)
            if not undecided:
                return
            pairs = range(begin + done, begin + look)
            what = f"{len(pairs)} further pairs (at most {self.settings.more})"
            listener.message(f"measuring what is undecided, in {what}: {_shown(undecided)}")
            self._run_block(pairs, undecided, listener)
            done = look

    def _run_captures(self, wanted: set[Key], listener: ProgressListener) -> None:
        """Record the kernels of the cases, as many times as there are captures.

        Cases that further pairs have decided since earlier captures get the numbers after those.
        """
        count, profiler = self.settings.captures, self.settings.profiler
        for begin in itertools.count(1, count):
            pairs = range(begin, begin + count)
            recorded = {case for pair in pairs for case in self._recorded_cases(f"/pair-{pair:02d}/", profiler)}
            if chosen := wanted & recorded if recorded else wanted:
                listener.message(f"recording kernels under {profiler} in {count} pairs: {_shown(chosen)}")
                self._run_block(pairs, chosen, listener, profiler)
            if not (wanted := wanted - chosen):
                return

    def _recorded_cases(self, place: str, profiler: str) -> Iterator[Key]:
        """Yield the cases with a process under the profiler in the folder of a pair."""
        for entry in self._session.manifest.jobs:
            if entry.profiler == profiler and place in entry.folder:
                both = self._joined.get(entry.workload, ())
                yield from ((entry.workload, name) for name, a, b in both if {a.id, b.id} & {*entry.cases})

    # --- planning ----------------------------------------------------------------------------------------------------

    def jobs(self) -> list[Job]:
        """Return the jobs of one timed process of each side."""
        a, b = self.side_jobs()
        return [*a, *b]

    def side_jobs(self, profiler: str = "plain") -> tuple[list[Job], list[Job]]:
        """Return the jobs of one process of each side, in the same order. Checkouts are made where they are missing."""
        a, b = (self._jobs_of(side.in_checkout(self._folder), profiler) for side in self._sides)
        order = {case.id: i for pairs in self._joined.values() for i, (_, _, case) in enumerate(pairs)}
        return a, sorted(b, key=lambda job: ([*self._joined].index(job.workload), order[job.cases[0].id]))

    def _jobs_of(self, side: PairSide, profiler: str) -> list[Job]:
        wanted = {(a if side.label == "A" else b).id for cases in self._joined.values() for _, a, b in cases}
        request = replace(side.request, profilers=(profiler,))
        planned = plan_jobs(request, self._session.machine, self._folder, wanted)
        return [self._adapted(job, side) for job in planned]

    def _adapted(self, job: Job, side: PairSide) -> Job:
        """Return the job with its folder below that of the side, and with the side's interpreter."""
        workload = self._folder / "raw" / job.workload
        name = side.label if job.profiler == "plain" else f"{side.label}-{job.profiler}"
        is_other = side.python != job.launch.python
        launch = replace(
            job.launch,
            folder=workload / name / job.folder.relative_to(workload / job.profiler),
            python=side.python,
            env={**job.launch.env, "PYTHONPATH": self._library()} if is_other else job.launch.env,
            # A side may run in another folder, whose path is of no use to a reader of the page.
            shown_from=sides.working_folder(self._session.request),
            roots=self._roots.get(side.label, ()),
        )
        is_replaced = is_other and bool(job.command) and job.command[0] in sides.PYTHONS
        words = (side.python, *job.command[1:]) if is_replaced else job.command
        return replace(job, label=side.label, command=words, launch=launch)

    def _library(self) -> str:
        """Return a PYTHONPATH with profpipe alone: an installed profpipe lies among packages of this interpreter."""
        package = Path(profilers.__file__).resolve().parents[1]
        link = self._folder / sides.LIBRARY / package.name
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.is_symlink():
            link.symlink_to(package, target_is_directory=True)
        return os.pathsep.join([str(link.parent), *filter(None, [os.environ.get("PYTHONPATH")])])

    @cached_property
    def _roots(self) -> Mapping[str, tuple[Path, ...]]:
        """By label: the top folder of the side's code, and those of the other side and of the user's own code."""
        if not any(side.exchanges_folder for side in self._sides):
            return {}
        roots = {side.label: side.root(self._folder) for side in self._sides}
        all_roots = [*roots.values(), checkout.top_folder(sides.working_folder(self._session.request))]
        return {label: tuple(dict.fromkeys([root, *all_roots])) for label, root in roots.items()}

    def _record_sources(self) -> None:
        """Record the code of both sides. A task of a cluster has compared it with what was submitted."""
        if self._session.task is None and not find_saved(self._folder, fingerprint.FILE).exists():
            fingerprint.save(self._folder, self.jobs(), self._folder, self._session.machine.described)
            fingerprint.remember(self._folder)

    # --- running -----------------------------------------------------------------------------------------------------

    def _run_block(
        self, pairs: range, wanted: Collection[Key] | None, listener: ProgressListener, profiler: str = "plain"
    ) -> None:
        """Run the pairs, of the cases ``wanted`` or of all."""
        planned = self.side_jobs(profiler)
        total, number = len(pairs) * sum(map(len, planned)), 1
        captures = self.settings.captures if self.settings.captures_all and profiler == "plain" else 0
        captured = [job for side in self.side_jobs(self.settings.profiler) for job in side] if captures else []
        for pair in pairs:
            if pair == pair_blocks.TRIAL + 1:
                self._choose_length(planned[0], listener)
            long = {job.workload for job in planned[0] if pair_blocks.is_long(pair, job.workload, self.settings)}
            long = long if profiler == "plain" else set()
            a, b = ([_add_visits(job) if job.workload in long else job for job in side] for side in planned)
            following = [*self._jobs_of_pair(pair + 1, *planned, wanted)] if pair + 1 in pairs else []
            jobs = list(self._jobs_of_pair(pair, a, b, wanted))
            added = [job for job in jobs if pairs.start == 1 and job.workload in self.settings.longer]
            later = [*jobs * (pairs.stop - pair - 1), *added * pair_blocks.TRIAL, *captured * captures]
            if self.settings.tried is None:
                self._session.run_jobs(jobs, listener, (number, total), following, later)
            else:
                program_copy.run(self._session, jobs, listener, pair - 1, numbers=(number, total), later=later)
            number += sum(map(len, planned))

    def _choose_length(self, jobs: Sequence[Job], listener: ProgressListener) -> None:
        """Make the later pairs of a workload longer where its first pairs scatter, and add pairs for these.

        The first pairs then are no part of a verdict, so the choice cannot favour a side. Pairs that are measured stay
        as they are. The tasks of a cluster choose no length: they must number their pairs alike.
        """
        session, first = self._session, f"{schema.PAIR_PREFIX}{pair_blocks.TRIAL + 1} "
        if session.task is not None or session.data.metrics["subject"].str.startswith(first).any():
            return
        noisy = {workload for workload, _ in self._choose(PairBlock.FIRST)}
        noisy &= {job.workload for job in jobs if _add_visits(job) != job}
        if longer := tuple(sorted(noisy)):
            pairs = self.settings.pairs + pair_blocks.TRIAL
            self._change_settings(longer=longer, pairs=pairs)
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
                    workload = self._folder / "raw" / job.workload
                    folder = workload / f"pair-{pair:02d}" / job.folder.relative_to(workload)
                    label = f"{schema.PAIR_PREFIX}{pair} {job.label}"
                    yield self._session.placed(job.select_cases(kept).move_to(folder, label))

    def _names(self, job: Job) -> Mapping[str, str]:
        """Return the common name of each case of a job, by its name on the job's side."""
        is_a = job.label.endswith("A")
        return {(a if is_a else b).id: name for name, a, b in self._joined[job.workload]}

    def _failed_cases(self, under: Collection[str]) -> set[Key]:
        """Return the cases of which a process failed under one of these profilers, in an earlier pair."""
        cases = self._session.data.cases
        rows = cases[~cases["status"].isin([Status.OK.value, Status.INTERRUPTED.value])]
        rows = rows[rows["profiler"].isin(under)]
        return set(zip(rows["workload"], rows["case"], strict=True))

    # --- storing -----------------------------------------------------------------------------------------------------

    def add_foreign_modules(self, job: Job) -> None:
        """Add the packages that a process of a side loaded from another folder to the record of the side."""
        if not (modules := origins.read_foreign_modules(job.folder)):
            return
        side = "a" if job.label.endswith("A") else "b"
        entry = getattr(self.settings, side)
        changed = replace(entry, foreign_modules={**entry.foreign_modules, **modules})
        self._change_settings(**{side: changed})

    def merge(self, stored: Tables, fresh: Tables, job: Job) -> Tables:
        """Return the stored rows with the times or the kernels of a process, and what became of its cases."""
        names = self._names(job)
        if job.label.startswith(schema.TRY_PREFIX):
            return self._merge_tried(stored, fresh, job)
        stored = job_tables.drop_folder(stored, str(job.folder.relative_to(self._folder)))
        cases = _renamed(fresh.cases, names)
        ended = schema.frame(schema.CASES, _merge_cases(stored.cases, cases, f"{job.label}: "))
        if job.profiler == "plain":
            is_time = fresh.metrics["metric"].isin([*schema.TIMES, *schema.ENERGIES]) & (fresh.metrics["subject"] == "")
            times = pd.concat([fresh.metrics[is_time], _strides(fresh.metrics)])
            times = _average_visits(times, job) if self._is_further(job) else times
            added = [_renamed(times.assign(subject=job.label), names), *_marks(cases, job.label)]
        else:
            numbers = fresh.metrics[fresh.metrics["metric"].isin(schema.CAPTURED_METRICS)]
            subjects = (f"{job.label} " + numbers["subject"]).str.rstrip(" ")
            added = [_renamed(numbers.assign(subject=subjects), names)]
        earlier = (stored.metrics["workload"] == job.workload) & (stored.metrics["profiler"] == job.profiler)
        earlier &= stored.metrics["case"].isin([names[case.id] for case in job.cases])
        earlier &= (stored.metrics["subject"] + " ").str.startswith(f"{job.label} ")
        metrics = schema.concat_rows(schema.METRICS, [stored.metrics[~earlier], *added])
        merged = replace(stored, cases=ended, metrics=metrics)
        if job.profiler == "plain":
            return merged
        ranges = _renamed(fresh.ranges[fresh.ranges["range"] == ""], names)
        return replace(
            merged,
            kernels=schema.concat_rows(schema.KERNELS, [stored.kernels, _renamed(fresh.kernels, names)]),
            ranges=schema.concat_rows(schema.RANGES, [stored.ranges, ranges]),
        )

    def _merge_tried(self, stored: Tables, fresh: Tables, job: Job) -> Tables:
        """Return the stored rows with the times of a process of `profpipe try`. If a change fails, the case has not."""
        if f"{schema.TRY_PREFIX}look " in f"{job.label} ":
            self._session.profile.append(fresh)
        wanted = [*schema.TIMES, *schema.ENERGIES, "peak_allocated"] if job.profiler == "plain" else []
        numbers = fresh.metrics[fresh.metrics["metric"].isin(wanted) & (fresh.metrics["subject"] == "")]
        # One process may take several steps as an iteration, and the next one of the same program not.
        strides = _strides(fresh.metrics).groupby("case")["value"].max()
        steps = numbers["case"].map(strides).where(numbers["metric"].isin(schema.PER_STEP)).fillna(1.0)
        numbers = numbers.assign(value=numbers["value"] / steps)
        earlier = (stored.metrics["subject"] == job.label) & (stored.metrics["profiler"] == job.profiler)
        rows = [stored.metrics[~earlier], _renamed(numbers.assign(subject=job.label), self._names(job))]
        return replace(stored, metrics=schema.concat_rows(schema.METRICS, rows))

    def _is_further(self, job: Job) -> bool:
        pair = int(job.label.removeprefix(schema.PAIR_PREFIX).split()[0])
        return pair_blocks.block_of(pair, self.settings) is PairBlock.FURTHER


def _shown(cases: Collection[Key]) -> str:
    return ", ".join(f"{workload}/{case}" for workload, case in sorted(cases))


def _add_visits(job: Job) -> Job:
    """Return the job with several visits to each case, each of which takes as long as a visit of the job does.

    A visit builds the case anew and takes at least one sample. Where the time differs from visit to visit, this costs
    less than as many processes. Several processes of a case make one visit, and so does a command.
    """
    timing = job.settings.timing
    if job.script is None or timing.order != "interleaved":
        return job
    visits = pair_blocks.count_visits(timing.rounds, job.settings.repeats)
    changed = {"rounds": visits, "budget_s": timing.budget_s * visits / timing.rounds}
    return job.change_settings(timing=timing.model_copy(update=changed))


def _strides(metrics: pd.DataFrame) -> pd.DataFrame:
    """Return how many steps are an iteration where the time is that of one; elsewhere long steps recur at a stride."""
    of_iterations = metrics.loc[metrics["metric"] == schema.STEP_PART, "case"]
    return metrics[(metrics["metric"] == schema.STEP_STRIDE) & metrics["case"].isin(of_iterations)]


def _renamed(rows: pd.DataFrame, names: Mapping[str, str]) -> pd.DataFrame:
    """Return the rows of these cases, by the names that they have on both sides."""
    case_rows = rows[rows["case"].isin(names)]
    return case_rows.assign(case=case_rows["case"].map(names))


def _marks(cases: pd.DataFrame, label: str) -> Iterator[pd.DataFrame]:
    """Yield the rows that mark the cases that failed in a process, and those with a result outside the tolerance."""
    marked = {
        schema.PAIR_FAILED: cases["status"].isin(schema.FAILED),
        schema.PAIR_INACCURATE: cases["flags"].str.contains(f'"{Flag.INACCURATE}"', regex=False),
    }
    for metric, chosen in marked.items():
        case_rows = cases.loc[chosen, ["run", "workload", "case", "profiler"]]
        yield schema.frame(schema.METRICS, case_rows.assign(subject=label, metric=metric, value=1.0, unit="1", n=1))


def _average_visits(times: pd.DataFrame, job: Job) -> pd.DataFrame:
    """Return the times of a process with the mean of the medians of its visits in place of the median of all samples.

    Where visits are in one of two states, a median of all samples is in one of them too, and the mean between them.
    """
    means = {
        case: statistics.fmean(statistics.median(values_ns) for values_ns, _ in by_metric["time"].values())
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
        stored_row = rows.get(key)
        if row["status"] != Status.OK:
            row["reason"] = prefix + (row["reason"] or row["status"])
        if stored_row:
            # What an earlier try of this process met does not count any more.
            is_over = stored_row["reason"].startswith(prefix)
            if stored_row["status"] != Status.OK and not is_over:
                row |= {name: stored_row[name] for name in ("status", "reason")}
            flags = [*json.loads(stored_row["flags"] or "[]"), *json.loads(row["flags"] or "[]")]
            row |= {"flags": json.dumps(list(dict.fromkeys(flags))), "params": stored_row["params"]}
        rows[key] = row
    return rows.values()


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(name): value for name, value in row.items()} for row in frame.to_dict("records")]
