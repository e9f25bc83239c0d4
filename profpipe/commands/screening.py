"""Choose the changes of `profpipe try`: look at the program, measure each change in short processes, combine the best.

First the program runs as it is, once without a profiler and once under torch: this shows what it uses and where a step
spends its time, so a change that cannot pay is not tried. Then it runs unchanged under several seeds, which gives the
spread of its time and of its loss. Each change runs once, and a second time where it may pay. Those that are faster
than every unchanged process and compute the same within the spread are combined; the pairs of `ab` then judge the
combination in fresh processes. Every process ends after the same number of steps.

All decisions follow from the record and the files of the run, so a resumed run makes the same ones.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import ModuleType
from typing import Any, Final

from profpipe import plugins
from profpipe.analysis import analyze, losses, pairs
from profpipe.analysis.losses import Observation
from profpipe.analysis.waits import find_waits
from profpipe.ingest import reader
from profpipe.job import Job, ProgressListener, Status
from profpipe.measure import event_lines
from profpipe.results import schema
from profpipe.results.manifest import JobEntry, TriedChange, TryEntry, TryOutcome
from profpipe.results.schema import Verdict
from profpipe.runner import program_copy, sides
from profpipe.runner.pairs import Pairs
from profpipe.runner.session import Session
from profpipe.runner.sides import PairSide
from profpipe.stdio import visible_line

#: Unchanged processes, each under its own seed. The pairs have eight seeds.
_SEEDS: Final = 5
#: Processes of a change that may pay.
_PROCESSES: Final = 2
#: A process of a change may take so many times as long as the unchanged one, and so many seconds more, or this part of
#: the budget: torch.compile takes its time.
_LONGER, _LONGER_S, _BUDGET_PART = 5, 30.0, 0.2
#: Where unchanged processes differ by this factor, other work may share the machine.
_BUSY: Final = 1.2
#: So many changes are tried whatever the budget is, those first that can shorten most of a step.
_LEAST_TRIED: Final = 4
#: A change that can shorten less of a step is not tried, and one that shortens less is not kept.
_LEAST_PART: Final = 0.02
_LEAST_GAIN: Final = 0.01
#: From so many changes on that can be switched in one process, this comes first, with so many steps for each of them:
#: four blocks with it and as many without.
_LEAST_SWITCHED, _STEPS_OF_BLOCKS = 2, 40
#: A change of which nothing shows what it can shorten comes between the others.
_UNKNOWN_PART: Final = 0.5
#: The measured steps of a process take so long, within these numbers of steps.
_MEASURED_NS: Final = 1e9
_STEPS: Final = (20, 200)
#: A data loader hands out what it loaded ahead in so many steps for each worker and item that it prefetches.
_FILL: Final = 3
_MOST_WARMUP: Final = 60
_LOOK: Final = "look"
#: Fewer unchanged processes that ended well have no spread; and paths that are kept.
_FEWEST_UNCHANGED, _MOST_NOTED = 2, 20


def choose_changes(session: Session, listener: ProgressListener) -> None:
    """Measure the changes and make the best combination side B of the run; without one the run gets no pairs."""
    screening = _Screening(session, listener)
    screening.look()
    if screening.has_planned:
        screening.measure_unchanged()
    if screening.has_planned:
        chosen = screening.combine(screening.measure_changes())
        screening.finish(chosen)
    else:
        screening.finish(())


def judge_losses(session: Session) -> None:
    """Compare what the combination computed in the pairs, of which each has a seed, with the unchanged program."""
    settings = session.manifest.ab
    assert settings is not None and settings.tried is not None
    if not settings.tried.chosen:
        return
    of_a, of_b = (dict(_observe_pairs(session, side, settings.pairs)) for side in "AB")
    compared = losses.compare(of_b, of_a)
    findings = pairs.analyze(session.data, session.manifest)
    verdict = next((case.judgement.verdict for case in findings.cases if case.judgement), Verdict.INCONCLUSIVE)
    judged = {Verdict.FASTER: TryOutcome.KEPT, Verdict.INCONCLUSIVE: TryOutcome.UNDECIDED}
    outcome = TryOutcome.REFUSED if compared.harm else judged.get(verdict, TryOutcome.NO_GAIN)
    reason = compared.harm or ("" if outcome is TryOutcome.KEPT else f"the pairs say: {verdict}")
    changes = tuple(
        replace(change, outcome=outcome, reason=reason) if change.name in settings.tried.chosen else change
        for change in settings.tried.changes
    )
    tried = replace(settings.tried, changes=changes, loss=compared.text, harm=compared.harm)
    session.manifest = replace(session.manifest, ab=replace(settings, tried=tried))


def _observe_pairs(session: Session, side: str, count: int) -> Iterator[tuple[int, Observation]]:
    for pair in range(1, count + 1):
        for folder in sorted(session.folder.glob(f"raw/*/pair-{pair:02d}/{side}")):
            if (observation := losses.read_observation(folder)) is not None:
                yield pair - 1, observation


@dataclass(frozen=True)
class _Candidate:
    """A change with its side and its file, which is None for variables and settings."""

    change: TriedChange
    side: PairSide
    file: ModuleType | None

    @property
    def kind(self) -> str:
        sets = any(spec.kind is sides.SpecKind.SET for spec in self.side.specs)
        # Two settings of the pipeline file cannot be combined.
        return str(getattr(self.file, "KIND", "set" if sets else self.change.name))


class _Screening:
    def __init__(self, session: Session, listener: ProgressListener) -> None:
        assert session.both is not None
        self._session, self._listener, self._a = session, listener, session.both[0]
        self._steps: dict[str, int] = {}
        self._places: Mapping[str, str] = {}
        #: Seconds of an unchanged process; 0.0 before one has run.
        self._process_s = 0.0
        self._in_pairs = 2 * self._tried.pairs
        #: Seconds of the processes that led to the decisions so far.
        self._spent_s = 0.0
        planned = (replace(change, outcome=TryOutcome.PLANNED, reason="") for change in self._tried.changes)
        self._changes = {change.name: change for change in planned}

    @property
    def _tried(self) -> TryEntry:
        settings = self._session.manifest.ab
        assert settings is not None and settings.tried is not None
        return settings.tried

    def _record(self, **changed: Any) -> None:
        settings = self._session.manifest.ab
        assert settings is not None
        tried = replace(self._tried, **{"changes": tuple(self._changes.values()), **changed})
        self._session.manifest = replace(self._session.manifest, ab=replace(settings, tried=tried))

    def _decide(self, name: str, outcome: TryOutcome, reason: str = "", **fields: Any) -> None:
        self._changes[name] = replace(self._changes[name], outcome=outcome, reason=reason, **fields)
        self._record()

    # --- processes ---------------------------------------------------------------------------------------------------

    def _run(self, name: str, side: PairSide, seed: int, profiler: str = "plain", **observe: Any) -> JobEntry:
        """Run the program under a seed, if it has not run, and return the entry of the process."""
        self._session.exchange_b(side)
        jobs = Pairs(self._session, (self._a, side)).side_jobs(profiler)[side is not self._a]
        (job,) = (self._place(job, name, seed) for job in jobs)
        program_copy.run(self._session, [job], self._listener, seed, observe=observe)
        folder = str(job.folder.relative_to(self._session.folder))
        entry = next(entry for entry in self._session.manifest.jobs if entry.folder == folder)
        self._spent_s += entry.seconds
        return entry

    def _place(self, job: Job, name: str, seed: int) -> Job:
        folder = self._session.folder / "raw" / job.workload / "try" / f"{name}-{seed}" / job.folder.name
        job = job.move_to(folder, f"{schema.TRY_PREFIX}{name} {seed} {job.label}")
        longest_s = max(_LONGER * self._process_s + _LONGER_S, _BUDGET_PART * self._tried.budget_s)
        longest_s = longest_s if self._process_s else max(self._tried.budget_s, _LONGER_S)
        job = job.change_settings(timeout_s=min(job.settings.timeout_s, longest_s))
        if not self._steps or job.settings.steps is None:
            return job
        return job.change_settings(steps=job.settings.steps.model_copy(update=self._steps))

    def _observation(self, entry: JobEntry) -> Observation | None:
        return losses.read_observation(self._session.folder / entry.folder)

    def _value(self, name: str, seed: int, label: str, metrics: Sequence[str]) -> float | None:
        rows = self._session.data.metrics
        rows = rows[rows["subject"] == f"{schema.TRY_PREFIX}{name} {seed} {label}"]
        columns = (rows.loc[rows["metric"] == metric, "value"] for metric in metrics)
        return next((float(values.iloc[0]) for values in columns if len(values)), None)

    def _figures(self, name: str, label: str, seeds: Iterable[int]) -> dict[str, Any]:
        """Return the medians over processes: of a step in ns, of the peak memory and of the energy of a step."""
        wanted = {"ns": schema.TIMES, "peak_bytes": ["peak_allocated"], "joules": schema.ENERGIES[1:]}
        values = {key: [self._value(name, seed, label, metrics) for seed in seeds] for key, metrics in wanted.items()}
        measured = {key: [value for value in column if value is not None] for key, column in values.items()}
        return {key: statistics.median(column) if column else None for key, column in measured.items()}

    def _count_steps(self, entry: JobEntry) -> int:
        """Return after how many steps profpipe ended the process; 0 where the program came to its end."""
        paths = (self._session.folder / entry.folder).glob("hook.*.jsonl")
        lines = [line for path in paths for line in event_lines.read(path, "hook")[0]]
        return max((line["steps"] for line in lines if line["hook"] == "finished" and line.get("stopped")), default=0)

    # --- the program as it is ----------------------------------------------------------------------------------------

    def look(self) -> None:
        """Run the program once without a profiler and once under torch; leave out the changes that cannot pay."""
        self._listener.message(
            f"plan: 2 processes to look at the program, {_SEEDS} as it is, up to {_PROCESSES} of each of"
            f" {len(self._changes)} changes, {self._in_pairs} in pairs of the best; budget {self._tried.budget_s:g} s"
        )
        if not self._tried.parts:
            # A run that was killed may have lost what the look showed; its files are read again.
            for entry in self._session.manifest.jobs:
                if f"/try/{_LOOK}-" in entry.folder:
                    self._session.manifest = self._session.manifest.without_job(entry.folder)
        entry = self._run(_LOOK, self._a, 0, watch=True)
        self._uses: Mapping[str, Any] = {}
        if (observation := self._observation(entry)) is not None:
            self._uses, self._places = observation.uses, observation.places
            written = tuple(visible_line(path)[:300] for path in observation.written[:_MOST_NOTED])
            self._record(written=written, is_deterministic=bool(self._uses.get("is_deterministic")))
            for text in [*(f"written outside of the folder: {path}" for path in written), *observation.errors]:
                self._listener.message(visible_line(text)[:300])
        time_ns = self._value(_LOOK, 0, "A", schema.TIMES)
        if entry.status is not Status.OK or time_ns is None or "device" not in self._uses:
            is_unseen = not entry.reason or f"the change {program_copy.OBSERVER.stem} reached nothing" in entry.reason
            why = "the program calls no module of torch, or makes no steps" if is_unseen else entry.reason
            self._leave_out(self._changes, why)
            return
        self._run(_LOOK, self._a, 0, "torch")
        if not self._tried.parts and self._session.profile:
            self._record(parts=_find_parts(self._session))
        self._steps = _choose_steps(self._uses, time_ns, self._a)
        for candidate in self._candidates:
            why = self._why_not(candidate)
            if why:
                self._decide(candidate.change.name, TryOutcome.NOT_TRIED, why)

    @cached_property
    def _candidates(self) -> list[_Candidate]:
        files = [[sides.find_change(spec) for spec in side.specs] for side in self._session.candidates]
        modules = [plugins.load_module(paths[0]) if paths and paths[0] else None for paths in files]
        return [
            _Candidate(change, side, module)
            for change, side, module in zip(self._changes.values(), self._session.candidates, modules, strict=True)
        ]

    def _why_not(self, candidate: _Candidate) -> str:
        applies = getattr(candidate.file, "applies", None)
        if applies is not None and (why := applies(self._uses)):
            return str(why)
        part = self._part(candidate)
        if part is not None and part < _LEAST_PART:
            names = " and ".join(getattr(candidate.file, "PARTS", ()))
            return f"{names}: {100 * part:.1f} % of a step"
        return ""

    def _part(self, candidate: _Candidate) -> float | None:
        """Return the share of a step that the change can shorten; None where it is not known."""
        names = getattr(candidate.file, "PARTS", None)
        parts = self._tried.parts
        return sum(parts.get(name, 0.0) for name in names) if names and parts else None

    def _promise(self, candidate: _Candidate) -> float:
        part = self._part(candidate)
        return 1.0 if hasattr(candidate.file, "IS_LIKELY") else _UNKNOWN_PART if part is None else part

    @property
    def has_planned(self) -> bool:
        return any(change.outcome is TryOutcome.PLANNED for change in self._changes.values())

    def _leave_out(self, names: Iterable[str], why: str) -> None:
        for name in [*names]:
            self._decide(name, TryOutcome.NOT_TRIED, why)

    def measure_unchanged(self) -> None:
        """Run the program as it is under each seed."""
        first = self._run("unchanged", self._a, 0)
        count = len([change for change in self._changes.values() if change.outcome is TryOutcome.PLANNED])
        seeds = range(1, _SEEDS) if first.status is Status.OK else ()
        entries = {0: first, **{seed: self._run("unchanged", self._a, seed) for seed in seeds}}
        failed = [entry for entry in entries.values() if entry.status is not Status.OK]
        entries = {seed: entry for seed, entry in entries.items() if entry.status is Status.OK}
        if len(entries) < _FEWEST_UNCHANGED:
            self._leave_out(self._changes, f"the unchanged program failed: {failed[0].reason}")
            return
        observations = {seed: self._observation(entry) for seed, entry in entries.items()}
        self._unchanged = {seed: observation for seed, observation in observations.items() if observation is not None}
        self._process_s = statistics.median(entry.seconds for entry in entries.values())
        times = [self._value("unchanged", seed, "A", schema.TIMES) for seed in entries]
        self._times = [time for time in times if time is not None]
        figures = self._figures("unchanged", "A", entries)
        figures |= {"processes": len(self._times), "seconds": first.seconds}
        low, high = min(self._times, default=0.0), max(self._times, default=0.0)
        if high > _BUSY * low:
            figures["reason"] = f"a step took {low / 1e6:.3g} to {high / 1e6:.3g} ms in its processes"
        self._record(unchanged=TriedChange("unchanged", TryOutcome.KEPT, **figures), steps=self._count_steps(first))
        pairs_s = self._in_pairs * self._process_s
        least_s = self._spent_s + min(count, _LEAST_TRIED) * self._process_s + pairs_s
        budget = f"the budget of {self._tried.budget_s:g} s"
        whole = f"about {least_s:.0f} s" + (f", more than {budget}" if least_s > self._tried.budget_s else "")
        process = f"an unchanged process takes {self._process_s:.1f} s"
        self._listener.message(f"{process}; with {self._in_pairs} processes in pairs all takes {whole}")

    # --- the changes -------------------------------------------------------------------------------------------------

    def measure_changes(self) -> list[_Candidate]:
        """Run each change, those that can shorten most of a step first; return those that are faster, best first."""
        planned = [c for c in self._candidates if self._changes[c.change.name].outcome is TryOutcome.PLANNED]
        planned = self._leave_out_by_blocks(sorted(planned, key=self._promise, reverse=True))
        faster = [c for number, c in enumerate(planned) if self._times and self._measure(c, number < _LEAST_TRIED)]
        return sorted(faster, key=lambda c: self._changes[c.change.name].ns or math.inf)

    def _leave_out_by_blocks(self, planned: list[_Candidate]) -> list[_Candidate]:
        """Turn changes on and off in one process, in alternating blocks of steps; return those that may gain."""
        able = [c for c in planned if hasattr(c.file, "switch")]
        if len(able) < _LEAST_SWITCHED or not self._uses["optimizers"] or not self._times:
            return planned
        names, steps = [candidate.change.name for candidate in able], self._steps
        self._steps = {**steps, "measure": _STEPS_OF_BLOCKS * len(able)}
        entry = self._run("blocks", self._join(able), 0, switches=names)
        self._steps = steps
        blocks = observation.blocks if (observation := self._observation(entry)) else {}
        for name in (name for name in names if blocks.get(name) and blocks.get("")):
            # Single blocks are slow where other work disturbs them, and none is fast by chance.
            gains = [1 - of(blocks[name]) / of(blocks[""]) for of in (statistics.median, min)]
            if max(gains) < _LEAST_GAIN:
                what = f"{1 / (1 - gains[0]):.2f}x in alternating blocks of steps of one process"
                self._decide(name, TryOutcome.NO_GAIN, what)
        return [c for c in planned if self._changes[c.change.name].outcome is TryOutcome.PLANNED]

    def _measure(self, candidate: _Candidate, is_first: bool) -> bool:
        """Run a change once, and again where it may pay; return whether it is faster and computes the same."""
        name = candidate.change.name
        if not is_first and self._spent_s + (1 + self._in_pairs) * self._process_s > self._tried.budget_s:
            self._decide(name, TryOutcome.NOT_TRIED, "the budget is spent")
            return False
        return self._try(name, candidate.side, getattr(candidate.file, "AT", ""))

    def _try(self, name: str, side: PairSide, at: str) -> bool:
        observed: dict[int, Observation] = {}
        fastest_ns, unchanged_ns = min(self._times), statistics.median(self._times)
        first_s: float | None = None
        for seed in range(_PROCESSES):
            entry = self._run(name, side, seed)
            time_ns = self._value(name, seed, "B", schema.TIMES)
            if entry.status is not Status.OK or time_ns is None:
                self._decide(name, TryOutcome.FAILED, entry.reason or "no step was measured")
                return False
            if (observation := self._observation(entry)) is not None:
                observed[seed] = observation
            first_s = first_s or entry.seconds
            figures = self._figures(name, "B", range(seed + 1))
            if time_ns >= fastest_ns:
                break
        compared = losses.compare(observed, self._unchanged)
        fields = {**figures, "processes": seed + 1, "seconds": first_s, "loss": compared.text}
        before, at = ("before ", "module") if at == "before" else ("", at)
        fields["place"] = f"{before}{place}" if (place := self._places.get(at)) else ""
        step_ns: float = figures["ns"] or math.inf
        gain = 1 - step_ns / unchanged_ns
        if not (time_ns and time_ns < fastest_ns and gain >= _LEAST_GAIN):
            took, low, high = (f"{ns / 1e6:.3g}" for ns in (time_ns or 0.0, fastest_ns, max(self._times)))
            what = f"a step took {took} ms in a process, and {low} to {high} ms in unchanged ones"
            self._decide(name, TryOutcome.NO_GAIN, what, **fields)
        elif compared.harm:
            self._decide(name, TryOutcome.REFUSED, compared.harm, **fields)
        else:
            self._decide(name, TryOutcome.KEPT, **fields)
            return True
        return False

    def combine(self, faster: Sequence[_Candidate]) -> Sequence[_Candidate]:
        """Return the changes whose combination is fastest: the best of each kind, or the best one alone.

        Where they harm together, those that alter numerics leave first, also the fastest.
        """
        best: dict[str, _Candidate] = {}
        for candidate in faster:
            first = best.setdefault(candidate.kind, candidate)
            if first is not candidate:
                self._decide(candidate.change.name, TryOutcome.REPLACED, f"{first.change.name} is faster")
        chosen = list(best.values())
        while len(chosen) > 1:
            names = "+".join(candidate.change.name for candidate in chosen)
            self._changes[names] = TriedChange(names)
            is_better = self._try(names, self._join(chosen), "")
            together = self._changes.pop(names)
            if is_better and (together.ns or math.inf) <= (self._changes[chosen[0].change.name].ns or math.inf):
                break
            # The slowest one leaves, and of those that harm together the slowest that alters numerics.
            altering = [c for c in chosen if together.outcome is TryOutcome.REFUSED and c.change.alters_numerics]
            last = (altering or chosen)[-1]
            chosen.remove(last)
            why = f": {together.reason}" if together.reason else " it is no faster"
            why = f"together with {chosen[0].change.name}{why}"
            self._decide(last.change.name, TryOutcome.REFUSED if altering else TryOutcome.REPLACED, why)
        return chosen

    def _join(self, chosen: Sequence[_Candidate]) -> PairSide:
        """Return the side with all of the changes."""
        bases = (c.side for c in chosen if any(spec.kind is sides.SpecKind.SET for spec in c.side.specs))
        base = next(bases, self._a)
        specs = list(itertools.chain.from_iterable(candidate.side.specs for candidate in chosen))
        return sides.create("B", specs, base.request)

    def finish(self, chosen: Sequence[_Candidate]) -> None:
        """Make the combination side B, and plan its pairs."""
        self._record()
        side = self._join(chosen) if chosen else replace(self._a, label="B")
        # The pairs have as many steps.
        if self._steps:
            self._a, side = (_with_steps(each, self._steps) for each in (self._a, side))
            assert self._session.both is not None
            self._session.both = (self._a, side)
        self._record(chosen=tuple(candidate.change.name for candidate in chosen))
        self._session.exchange_b(side, pairs=self._tried.pairs if chosen else 0)
        self._session.save_sides()


def _with_steps(side: PairSide, steps: Mapping[str, int]) -> PairSide:
    workloads = {
        name: workload.model_copy(update={"steps": workload.steps.model_copy(update=dict(steps))})
        for name, workload in side.request.pipeline.workloads.items()
    }
    pipeline = side.request.pipeline.model_copy(update={"workloads": workloads})
    return replace(side, request=replace(side.request, pipeline=pipeline))


def _choose_steps(uses: Mapping[str, Any], time_ns: float, side: PairSide) -> dict[str, int]:
    """Return how many steps each process measures after how many, by what the look shows."""
    (workload,) = side.request.pipeline.workloads.values()
    least, most = _STEPS
    given = workload.steps.model_fields_set
    loaders = [_FILL * max(loader["workers"], uses["cores"] // 2, 4) * loader["prefetch"] for loader in uses["loaders"]]
    warmup = max([workload.steps.warmup, *(min(fill, _MOST_WARMUP) for fill in loaders)])
    measure = workload.steps.measure if "measure" in given else min(max(math.ceil(_MEASURED_NS / time_ns), least), most)
    return {"warmup": workload.steps.warmup if "warmup" in given else warmup, "measure": measure}


def _find_parts(session: Session) -> dict[str, float]:
    """Return the shares of a step by kernel class and by the cause of a wait, and that of idle time."""
    findings = analyze.analyze(reader.combine(session.profile), replace(session.manifest, ab=None))
    shares: dict[str, float] = {}
    for workload in findings.workloads:
        for case_steps in workload.steps.cases:
            parts = case_steps.parts_without_profiler if case_steps.is_on_gpu else None
            waits = find_waits(workload, case_steps)
            whole = parts.wall_ns if parts else sum(wait.idle_ns for wait in waits)
            if parts:
                shares |= {name: parts.share(ns) for name, ns in parts.classes.items()}
                shares["idle"] = parts.share(parts.idle_ns)
            for wait in waits if whole else ():
                shares[wait.name] = shares.get(wait.name, 0.0) + wait.idle_ns / whole
    return shares
