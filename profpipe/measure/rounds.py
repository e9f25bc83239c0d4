"""Times many cases in rounds, in a new random order, so that a drift affects all cases equally.

Each visit builds its case again, so that only one case's tensors are in memory, and writes its samples to
``job.jsonl``.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

from profpipe import ranges
from profpipe.measure import case_order, conditions, event_lines, launch_profile, sampling
from profpipe.measure.conditions import GpuConditions
from profpipe.measure.distributed import SINGLE_PROCESS, Ranks
from profpipe.measure.flags import Flag
from profpipe.measure.launch_profile import LaunchProfile, PriorMeasurement

#: Metric of one process's times in a distributed job. The times of the case are those of the slowest process, because
#: a collective call ends with it.
RANK_TIME = "time_own"

#: Metric of the times of CUDA graph replays; ``time`` has those of eager launches.
GRAPH_TIME = "time_cuda_graph"

#: Length of the loop without a profiler, and its least number of iterations: the first launch and the last
#: synchronisation, some 0.1 ms, are outside the iterations.
_LOOP_NS: Final = 30e6
_LEAST_ITERATIONS: Final = 10

#: On a CPU, how many budgets the least number of samples may take: with half a budget of warm-up that makes two.
_CPU_BUDGETS: Final = 1.5

Write = Callable[..., None]


@dataclass(frozen=True)
class TimingPlan:
    """How the cases of one process are timed; from the pipeline's ``timing``, ``warmup`` and ``repeats``.

    Several processes must make the same calls, so nothing they do may depend on a time: they make ``warmup`` calls
    and take ``repeats`` samples in one round.
    """

    rule: sampling.StoppingRule
    rounds: int
    seed: int
    mode: str
    warmup: int
    repeats: int
    flush: bool = True

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> TimingPlan:
        timing, repeats = spec["options"].get("timing", {}), spec["repeats"]
        seed, flush = timing.get("seed", 0), timing.get("flush", True)
        if spec.get("processes", 1) > 1:
            fixed = sampling.StoppingRule(min_samples=repeats, budget_s=math.inf, max_samples=repeats)
            return cls(fixed, 1, seed, "eager", spec["warmup"], repeats, flush)
        given = {name: timing[name] for name in ("target", "budget_s", "slowed_s") if name in timing}
        most = max(repeats, timing.get("most", sampling.StoppingRule.max_samples))
        rule = sampling.StoppingRule(min_samples=repeats, max_samples=most, **given)
        rounds = timing.get("rounds", 1) if timing.get("order") == "interleaved" else 1
        # A round without a sample would only warm up.
        rounds = max(1, min(rounds, repeats))
        return cls(rule, rounds, seed, timing.get("mode", "eager"), spec["warmup"], repeats, flush)

    def visits(self, cases: Sequence[Mapping[str, Any]]) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Yield (round from 1, case) in the order of measurement; a single round keeps the order of the pipeline."""
        for number, order in case_order.rounds(cases, self.rounds, self.seed):
            yield from ((number, case) for case in order)


#: The samples of one visit to a case in ns, and their conditions.
RoundSamples: TypeAlias = "tuple[list[float], GpuConditions]"


@dataclass
class CaseTiming:
    """A case and the results of its visits so far.

    ``samples_ns`` and ``launches`` by metric: ``time``, and ``time_cuda_graph`` in mode both. ``write(event,
    **fields)`` appends to the log of the job.
    """

    plan: TimingPlan
    device: str
    range_name: str
    write: Write
    ranks: Ranks = SINGLE_PROCESS
    samples_ns: dict[str, list[float]] = field(default_factory=dict)
    rounds: int = 0
    conditions: list[GpuConditions] = field(default_factory=list)
    last: sampling.Samples | None = None
    not_captured: bool = False
    launches: dict[str, LaunchProfile | None] = field(default_factory=dict)
    #: By metric: a visit that loaded the GPU fully kept the highest clock, and so did all later visits.
    keeps_clock: dict[str, bool] = field(default_factory=dict)
    #: SM clocks of all visits; the cases of a process share this list.
    visit_clocks_hz: list[float] = field(default_factory=list)

    def restore(self, earlier: Mapping[str, Mapping[int, RoundSamples]]) -> None:
        """Take over the rounds of an earlier process, and write them again.

        The last round is measured again: the facts of a case that are no samples follow from it.
        """
        for metric, rounds in earlier.items():
            for number, (values_ns, measured) in rounds.items():
                if number < self.plan.rounds:
                    self._add(metric, number, values_ns, measured)
                    self.rounds = max(self.rounds, number)

    def visit(self, fn: Callable[[], object]) -> bool:
        """Time ``fn`` for the next round; return True after the last. In mode `both` the eager times are the case's."""
        self.rounds += 1
        self.last = self._sample(self._timed_callable(fn), "time")
        if self.plan.mode == "both" and not self.not_captured:
            self._sample_graph(fn)
        return self.rounds >= self.plan.rounds

    def _sample_graph(self, fn: Callable[[], object]) -> None:
        """Time the graph as well; a call that cannot be captured keeps its eager times."""
        try:
            replay = launch_profile.capture_graph(fn)
        except launch_profile.NotCapturable as error:
            if isinstance(error, launch_profile.CaptureAborted):
                raise  # this process can measure nothing more
            self.not_captured = True
            self.write("note", text=str(error))
        else:
            self._sample(replay, GRAPH_TIME)

    def _timed_callable(self, fn: Callable[[], object]) -> Callable[[], object]:
        return launch_profile.capture_graph(fn) if self.plan.mode == "cuda_graph" else fn

    def _warm_up(self, fn: Callable[[], object], metric: str, budget_s: float) -> None:
        # Rounds restored from an earlier process are no visits of this one: nothing is compiled yet.
        is_repeated = metric in self.launches
        # A repeated visit finds compiled kernels and tuned plans; it warms up caches and the allocator.
        warmup = min(self.plan.warmup, 3) if is_repeated else self.plan.warmup
        if is_repeated and self.device == "cpu" and statistics.median(self.samples_ns[metric]) > budget_s * 1e9:
            warmup = 0
        # On a GPU, `sample` waits for stable times once everything is compiled.
        if self.ranks.is_distributed or (is_repeated and self.device == "cuda"):
            sampling.warm_up(fn, warmup, device=self.device)
        else:
            sampling.warm_up_until_stable(fn, device=self.device, min_calls=warmup, budget_s=budget_s)

    def _sample(self, fn: Callable[[], object], metric: str) -> sampling.Samples:
        earlier = self.samples_ns.get(metric, [])
        rule = self.plan.rule.limit_round(min(self.rounds, self.plan.rounds), self.plan.rounds, len(earlier))
        rule = replace(rule, least_budgets=_CPU_BUDGETS) if self.device == "cpu" else rule
        self._warm_up(fn, metric, rule.budget_s / 2)
        began = time.monotonic()
        before = self.launches.get(metric)
        highest_hz = max(self.visit_clocks_hz, default=None)
        with conditions.monitor_device(self.device) as monitor:
            samples = sampling.sample(
                fn,
                device=self.device,
                rule=rule,
                earlier=earlier,
                range_name=self.range_name,
                annotate=ranges.annotate,
                ranks=self.ranks,
                on_start=monitor.clear,
                prior=PriorMeasurement(before, self.keeps_clock.get(metric, False), clock_hz=highest_hz),
                flush=self.plan.flush,
                is_slowed=lambda: monitor.is_slowed,
            )
        # After a pause the host takes longer to launch, so the shortest launch time of all visits counts.
        launch = samples.launch
        self.launches[metric] = launch.limit_host_time(before.host_ns) if launch and before else launch
        measured = monitor.conditions(samples.clocks_hz)
        loaded = samples.fully_loaded or self.keeps_clock.get(metric, False)
        self.keeps_clock[metric] = loaded and measured.kept_highest_clock
        if self.ranks.is_distributed:
            self.write("samples", metric=RANK_TIME, round=self.rounds, unit="ns", values=samples.values_ns)
            samples = replace(samples, values_ns=self.ranks.all_max_each(samples.values_ns))
        self._add(metric, self.rounds, samples.values_ns, measured, began=began)
        for note in samples.notes:
            self.write("note", text=note)
        return samples

    def _add(self, metric: str, number: int, values_ns: list[float], measured: GpuConditions, **times: float) -> None:
        self.samples_ns.setdefault(metric, []).extend(values_ns)
        self.conditions.append(measured)
        if measured.counted_clock_hz is not None:
            self.visit_clocks_hz.append(measured.counted_clock_hz)
        record = asdict(measured)
        self.write("samples", metric=metric, round=number, unit="ns", values=values_ns, conditions=record, **times)

    def finish(self, fn: Callable[[], object]) -> list[Flag]:
        """Write the metrics of the case after its last visit; return its validity flags."""
        assert self.last is not None
        overall, loop_wall_ns = conditions.combine(self.conditions), self.loop_wall_ns(self._timed_callable(fn))
        launch = self.launches["time"]
        if launch is not None and loop_wall_ns is not None:
            # Launching takes no longer than an iteration of the loop.
            launch = launch.limit_host_time(loop_wall_ns)
        last = replace(self.last, launch=launch)
        metrics = {
            "peak_allocated": (last.peak_allocated, "byte"),
            "peak_reserved": (last.peak_reserved, "byte"),
            "issue": (launch and launch.host_ns, "ns"),
            "loop_wall": (loop_wall_ns, "ns"),
            **overall.metrics(),
        }
        for metric, (value, unit) in metrics.items():
            if value is not None:
                self.write("metric", subject="", metric=metric, value=value, unit=unit, n=1)
        for note in overall.findings.values():
            self.write("note", text=note)
        graph_flags = [Flag.NOT_CAPTURED] if self.not_captured else []
        return list(dict.fromkeys([*last.flags, *overall.findings, *graph_flags]))

    def loop_wall_ns(self, fn: Callable[[], object]) -> float | None:
        """Return the time of an iteration of the loop that profilers record, measured without a profiler.

        None where one call exceeds the budget: a profiler's overhead is not noticeable then.
        """
        n = self.plan.repeats
        if not self.ranks.is_distributed:
            call_ns = max(statistics.median(self.samples_ns["time"]), 1.0)
            most = max(_LEAST_ITERATIONS, math.ceil(_LOOP_NS / call_ns))
            n = min(n, int(self.plan.rule.budget_s * 1e9 / call_ns), most)
        if n == 0:
            return None
        # Sampling emptied the allocator's cache; under a profiler the calls before the loop fill it.
        sampling.warm_up(fn, 1, device=self.device)
        run_loop = partial(sampling.run_loop, range_name=self.range_name, annotate=ranges.annotate, ranks=self.ranks)
        wall_ns, _ = run_loop(fn, n, device=self.device, flush=self.plan.flush)
        return wall_ns


def load_earlier_rounds(events: Path, names: Collection[str]) -> dict[str, dict[str, dict[int, RoundSamples]]]:
    """Return the samples of an earlier process by case, metric and round, for the cases ``names``.

    Another case, the time limit or the user ended that process; its samples are as good as any.
    """
    samples: dict[str, dict[str, dict[int, RoundSamples]]] = {}
    for event in event_lines.read(events)[0]:
        if event["event"] == "samples" and event["case"] in names:
            metrics = samples.setdefault(event["case"], {})
            measured = GpuConditions.from_record(event.get("conditions") or {})
            rounds = metrics.setdefault(event.get("metric") or "time", {})
            rounds[event.get("round") or 1] = (event["values"], measured)
    return samples
