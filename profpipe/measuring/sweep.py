"""The undisturbed times of many cases: visited in rounds, in an order that is drawn anew for each.

A machine drifts: it heats up, its clocks and its neighbours change. Measured one after the other, the first case would
get the cool machine and the last the hot one; visited in rounds, drift hits all alike. Each visit builds its case anew,
so that only one case's tensors are in memory, and leaves its samples in ``events.jsonl``.
"""

from __future__ import annotations

import json
import math
import random
import statistics
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from profpipe import ranges, timing
from profpipe.measuring import conditions
from profpipe.measuring.conditions import Conditions
from profpipe.measuring.ranks import ALONE, Ranks
from profpipe.measuring.watches import Issue, Known

#: The times of this one of several processes. They call together, and the call is over when the last of them is done:
#: the case's own times are those of the slowest.
OWN_TIME = "time_own"

#: The times of a case whose launches were recorded once and replayed, beside those of eager launches.
GRAPH_TIME = "time_cuda_graph"

#: The loop without a profiler lasts so long at most, but so many iterations at least: what is not in each of them, from
#: the first launch and to the last wait, is some 0.1 ms.
_LOOP_NS: Final = 30e6
_LEAST_IN_LOOP: Final = 10

Write = Callable[..., None]


@dataclass(frozen=True)
class Plan:
    """How the cases of one process are timed; from the pipeline's ``timing``, ``warmup`` and ``repeats``.

    Several processes must make the same calls, so nothing of what they do may hang on a time: they make ``warmup``
    calls and take ``repeats`` samples, in one round.
    """

    rule: timing.Rule
    rounds: int
    seed: int
    mode: str
    warmup: int
    repeats: int

    @classmethod
    def of(cls, spec: Mapping[str, Any]) -> Plan:
        asked, repeats = spec["options"].get("timing", {}), spec["repeats"]
        if spec.get("processes", 1) > 1:
            fixed = timing.Rule(least=repeats, budget_s=math.inf, most=repeats)
            return cls(fixed, 1, asked.get("seed", 0), "eager", spec["warmup"], repeats)
        defaults = timing.Rule()
        rule = timing.Rule(
            least=repeats,
            target=asked.get("target", defaults.target),
            budget_s=asked.get("budget_s", defaults.budget_s),
            most=max(repeats, asked.get("most", defaults.most)),
        )
        rounds = asked.get("rounds", 1) if asked.get("order") == "interleaved" else 1
        # A round without a sample of its own would only warm up.
        rounds = max(1, min(rounds, repeats))
        return cls(rule, rounds, asked.get("seed", 0), asked.get("mode", "eager"), spec["warmup"], repeats)

    def visits(self, cases: Sequence[Mapping[str, Any]]) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """(round from 1, case) in the order of measuring; one round keeps the order of the pipeline."""
        for number in range(1, self.rounds + 1):
            order = list(cases)
            if self.rounds > 1:
                random.Random(f"{self.seed}/{number}").shuffle(order)
            yield from ((number, case) for case in order)

    def warmup_of(self, again: bool) -> int:
        """Later visits of a process find compiled kernels and tuned plans; they warm up caches and the allocator."""
        return min(self.warmup, 3) if again else self.warmup


@dataclass(frozen=True)
class Round:
    """The samples of one visit to a case, and under what conditions they were taken."""

    values_ns: list[float]
    under: Conditions = field(default_factory=Conditions)


@dataclass
class Case:
    """A case being timed: what its visits have given so far.

    ``samples_ns`` and ``issues`` by metric: ``time``, and ``time_cuda_graph`` in mode both. ``write(event, **fields)``
    appends to events.jsonl.
    """

    plan: Plan
    device: str
    range_name: str
    write: Write
    ranks: Ranks = ALONE
    samples_ns: dict[str, list[float]] = field(default_factory=dict)
    rounds: int = 0
    seen: list[Conditions] = field(default_factory=list)
    last: timing.Samples | None = None
    uncaptured: bool = False
    issues: dict[str, Issue | None] = field(default_factory=dict)
    #: By metric, whether a visit that loaded the GPU fully found it at its highest clock, and every one since then.
    light: dict[str, bool] = field(default_factory=dict)
    #: The SM clock of every visit to any case of this process, which share this list.
    visit_clocks_hz: list[float] = field(default_factory=list)

    def inherit(self, earlier: Mapping[str, Mapping[int, Round]]) -> None:
        """Takes over, and writes again as this process's own, what a process before it had measured.

        The last round is made anew: what else is known of a case follows from it.
        """
        for metric, rounds in earlier.items():
            for number, measured in rounds.items():
                if number < self.plan.rounds:
                    self._add(metric, number, measured)
                    self.rounds = max(self.rounds, number)

    def visit(self, fn: Callable[[], object]) -> bool:
        """Times ``fn`` for the next round; True after the last. In mode `both` the eager times are the case's."""
        self.rounds += 1
        self.last = self._sample(self._as_timed(fn), "time")
        if self.plan.mode == "both" and not self.uncaptured:
            self._sample_graph(fn)
        return self.rounds >= self.plan.rounds

    def _sample_graph(self, fn: Callable[[], object]) -> None:
        """The graph's times beside the eager ones, which stand where the call has no graph."""
        try:
            replay = timing.graphed(fn)
        except timing.LeftCapturing:
            raise  # this process can measure nothing more
        except timing.NotCapturable as error:
            self.uncaptured = True
            self.write("note", text=str(error))
        else:
            self._sample(replay, GRAPH_TIME)

    def _as_timed(self, fn: Callable[[], object]) -> Callable[[], object]:
        return timing.graphed(fn) if self.plan.mode == "cuda_graph" else fn

    def _sample(self, fn: Callable[[], object], metric: str) -> timing.Samples:
        number = min(self.rounds, self.plan.rounds)
        earlier = self.samples_ns.get(metric, [])
        rule = self.plan.rule.of_round(number, self.plan.rounds, len(earlier))
        # A process that goes on where another was ended has the rounds of that one and nothing that it compiled.
        again = metric in self.issues
        warmup = self.plan.warmup_of(again)
        # On a GPU sampling sees to it that the time has settled, once all is compiled.
        if self.ranks.several or (again and self.device == "cuda"):
            timing.warm_up(fn, warmup, device=self.device)
        else:
            timing.settle(fn, device=self.device, least=warmup, budget_s=rule.budget_s / 2)
        highest_hz = max(self.visit_clocks_hz, default=None)
        known = Known(self.issues.get(metric), self.light.get(metric, False), clock_hz=highest_hz)
        with conditions.watching_on(self.device) as watched:
            samples = timing.sample(
                fn,
                device=self.device,
                rule=rule,
                earlier=earlier,
                range_name=self.range_name,
                annotate=ranges.annotate,
                ranks=self.ranks,
                begun=watched.forget,
                known=known,
            )
        self.issues[metric] = _quicker(samples.issue, self.issues.get(metric))
        under = replace(watched.summary(), counted_hz=samples.clocks_hz)
        loaded = samples.fully_loaded or self.light.get(metric, False)
        self.light[metric] = loaded and under.kept_highest_clock
        if self.ranks.several:
            self.write("samples", metric=OWN_TIME, round=self.rounds, unit="ns", values=samples.values_ns)
            samples = replace(samples, values_ns=self.ranks.largest(samples.values_ns))
        self._add(metric, self.rounds, Round(samples.values_ns, under))
        for note in samples.notes:
            self.write("note", text=note)
        return samples

    def _add(self, metric: str, number: int, measured: Round) -> None:
        self.samples_ns.setdefault(metric, []).extend(measured.values_ns)
        self.seen.append(measured.under)
        if measured.under.counted_clock_hz is not None:
            self.visit_clocks_hz.append(measured.under.counted_clock_hz)
        under = asdict(measured.under)
        self.write("samples", metric=metric, round=number, unit="ns", values=measured.values_ns, conditions=under)

    def facts(self, fn: Callable[[], object]) -> list[str]:
        """Writes what is known of the case after its last visit; returns its validity marks."""
        assert self.last is not None
        conditions_seen, loop_wall_ns = conditions.combined(self.seen), self._loop_wall_ns(self._as_timed(fn))
        last = replace(self.last, issue=_within(self.issues["time"], loop_wall_ns))
        numbers = {
            "peak_allocated": (last.peak_allocated, "byte"),
            "peak_reserved": (last.peak_reserved, "byte"),
            "issue": (last.issue and last.issue.ns, "ns"),
            "loop_wall": (loop_wall_ns, "ns"),
            **conditions.as_metrics(conditions_seen),
        }
        for metric, (value, unit) in numbers.items():
            if value is not None:
                self.write("metric", subject="", metric=metric, value=value, unit=unit, n=1)
        for note in conditions.notes(conditions_seen):
            self.write("note", text=note)
        uncaptured = ["not_captured"] if self.uncaptured else []
        return list(dict.fromkeys([*last.flags, *conditions.marks(conditions_seen), *uncaptured]))

    def _loop_wall_ns(self, fn: Callable[[], object]) -> float | None:
        """The loop that profilers see, without one, so that what each of them adds to it can be told.

        None where one call alone takes longer than all measuring should: of it nobody notices what a profiler adds.
        """
        n = self.plan.repeats
        if not self.ranks.several:
            call_ns = max(statistics.median(self.samples_ns["time"]), 1.0)
            n = min(n, int(self.plan.rule.budget_s * 1e9 / call_ns), max(_LEAST_IN_LOOP, math.ceil(_LOOP_NS / call_ns)))
        if n == 0:
            return None
        # Sampling gave the allocator's cache back; under a profiler the calls before the loop have filled it.
        timing.warm_up(fn, 1, device=self.device)
        named: dict[str, Any] = {"range_name": self.range_name, "annotate": ranges.annotate}
        return timing.loop(fn, n, device=self.device, **named, ranks=self.ranks).wall_ns


def _quicker(issue: Issue | None, before: Issue | None) -> Issue | None:
    """``issue`` with what the host took at its best: after a rest it takes longer (``Gpu.learned``)."""
    return replace(issue, ns=min(issue.ns, before.ns)) if issue and before else issue


def _within(issue: Issue | None, loop_wall_ns: float | None) -> Issue | None:
    """``issue`` with no more time of the host than an iteration of the loop takes in all."""
    return replace(issue, ns=min(issue.ns, loop_wall_ns)) if issue and loop_wall_ns is not None else issue


def inherited(events: Path, names: Collection[str]) -> dict[str, dict[str, dict[int, Round]]]:
    """By case, metric and round: what was measured of cases that an earlier process could not end.

    It was ended by another case, by its time limit or by a person; what it had measured of these is none the worse.
    """
    found: dict[str, dict[str, dict[int, Round]]] = {}
    if not events.is_file():
        return found
    for line in events.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue  # the last line of a process that was killed while it wrote
        if event.get("event") == "samples" and event["case"] in names:
            metrics = found.setdefault(event["case"], {})
            measured = Round(event["values"], conditions.from_record(event.get("conditions", {})))
            metrics.setdefault(event.get("metric", "time"), {})[event.get("round", 1)] = measured
    return found
