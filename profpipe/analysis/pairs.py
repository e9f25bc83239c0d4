"""The tables of an `ab` run to verdicts and to the result of its gate."""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import pandas as pd

from profpipe.analysis import cluster, kernel_differences, verdict
from profpipe.analysis.changes import (
    Change,
    Failure,
    Gate,
    GateResult,
    MetricChange,
    find_gate_cause,
    judge_gate,
    judge_time,
)
from profpipe.analysis.compare_runs import POSSIBLE_NS, Key
from profpipe.analysis.findings import NotRun
from profpipe.analysis.grouping import grouped
from profpipe.analysis.kernel_differences import Captures, KernelDifference
from profpipe.analysis.kernels import rows
from profpipe.analysis.verdict import Judgement
from profpipe.job import Status
from profpipe.measure.flags import Flag
from profpipe.results import pair_blocks, schema
from profpipe.results.manifest import Manifest, PairsEntry
from profpipe.results.pair_blocks import PairBlock
from profpipe.results.schema import NOT_IN_KERNELS, KernelChange, Tables, Verdict

_SUBJECT: Final = re.compile(rf"{schema.PAIR_PREFIX}(\d+) ([AB])")


@dataclass(frozen=True)
class PairFindings:
    """The verdicts of an `ab` run. ``false_verdicts`` is how many FASTER and SLOWER chance alone is likely to give."""

    cases: tuple[Change, ...]
    false_verdicts: float
    #: None without a gate.
    gate: GateResult | None = None
    is_complete: bool = True
    #: Rows of `cases`: the processes under a profiler that did not end well.
    failed_captures: tuple[Any, ...] = ()
    #: What the tasks of a cluster lack.
    pending: tuple[NotRun, ...] = ()

    def count(self, wanted: Verdict) -> int:
        return sum(case.verdict is wanted for case in self.cases)

    @property
    def unexplained(self) -> tuple[Change, ...]:
        """The faster and slower cases that no capture explains, although none of their captures failed."""
        failed = {(row.workload, row.case) for row in self.failed_captures}
        changed = (case for case in self.cases if case.has_difference and not case.kernels)
        return tuple(case for case in changed if case.key not in failed)


def analyze(data: Tables, run: Manifest) -> PairFindings:
    """Return the verdicts of an `ab` run. Pairs of which one process is missing or failed do not count."""
    assert run.ab is not None
    metrics = {key: metric for key, (metric, _) in _read_values(data, schema.TIMES).items()}
    cases = tuple(_find_changes(data, run.ab, kernel_differences.read_captures(data, run, metrics)))
    is_complete = run.ended is not None
    # What is decided by further pairs had its chance of a false verdict in the first block too.
    series = [compared for case in cases for compared in (case, case.energy) if compared]
    judged = [
        judgement
        for compared in series
        for judgement in (compared.judgement, compared.first if compared.further_pairs else None)
        if judgement
    ]
    return PairFindings(
        cases,
        verdict.expected_false(judged),
        None if run.ab.gate is None else judge_gate(cases, run.ab.gate, run.ab.undecided, is_complete=is_complete),
        is_complete=is_complete,
        failed_captures=kernel_differences.failed_captures(data),
        pending=cluster.find_unfinished(data, run),
    )


def choose_again(data: Tables, run: Manifest, block: PairBlock) -> set[Key]:
    """Return (workload, case) of the cases to measure in a later block of pairs. A case that failed is not among them.

    ``PairBlock.GATE``: the first block fails the gate. ``PairBlock.FURTHER``: the earlier blocks leave the case
    undecided, and so do the further pairs that were judged so far. Such a case is not measured for the gate. With a
    gate, a case that passes it needs no further pairs. ``PairBlock.FIRST``: the first pairs scatter by more than the
    gate can bear. ``PairBlock.CAPTURES``: the case is faster or slower, or the user wants captures of every case.
    """
    assert run.ab is not None
    if block is PairBlock.FIRST:
        trial = _find_measured(_select_pairs(data, pair_blocks.TRIAL), run.ab)
        return {key for key, case in trial.items() if verdict.scatters(case.log_ratios, run.ab.gate)}
    if block is PairBlock.GATE:
        first = _select_pairs(data, run.ab.pairs)
        failing = {
            key
            for key, case in _find_measured(first, run.ab).items()
            if run.ab.gate is not None and judge_time(case, run.ab.gate) is Gate.FAILED
        }
        return failing - _find_undecided(first, run.ab) if run.ab.more else failing
    if block is PairBlock.CAPTURES:
        judged_cases = _find_measured(data, run.ab).values()
        return {case.key for case in judged_cases if run.ab.captures_all or case.has_difference}
    open_cases = _find_undecided(_select_pairs(data, pair_blocks.first_further(run.ab) - 1), run.ab)
    cases = _find_measured(data, run.ab)
    return {key for key in open_cases & cases.keys() if not _is_decided_by_further_pairs(cases[key])}


def _select_pairs(data: Tables, last: int) -> Tables:
    """Return the tables with the times of the pairs up to number ``last``."""
    numbers = data.metrics["subject"].str.extract(_SUBJECT.pattern)[0].fillna("0").astype(int)
    return Tables(data.cases, metrics=data.metrics[numbers <= last])


def _find_measured(data: Tables, settings: PairsEntry) -> dict[Key, Change]:
    cases = (case for case in _find_changes(data, settings) if case.judgement and not case.failure)
    return {case.key: case for case in cases}


def _find_undecided(data: Tables, settings: PairsEntry) -> set[Key]:
    """Return the cases that need further pairs after the blocks in ``data``."""
    return {key for key, case in _find_measured(data, settings).items() if _needs_more(case, settings)}


def _needs_more(case: Change, settings: PairsEntry) -> bool:
    judged = case.judgement
    if judged is None or (settings.gate is not None and find_gate_cause(case, settings.gate) is None):
        return False
    # The second block of a gate has confirmed a difference of the first.
    return judged.verdict is Verdict.INCONCLUSIVE if case.first else not verdict.is_clear(judged, case.log_ratios)


def _is_decided_by_further_pairs(case: Change) -> bool:
    return bool(case.further_pairs and case.judgement and case.judgement.verdict is not Verdict.INCONCLUSIVE)


def verdict_rows(findings: PairFindings, run: str) -> pd.DataFrame:
    """Return the table `verdicts`."""
    table_rows = []
    for case in findings.cases:
        if (judged := case.judgement) is None:
            continue
        key = {"run": run, "workload": case.workload, "case": case.case, "profiler": "plain", "kernel": ""}
        times = {"a_ns": case.a_ns, "b_ns": case.b_ns, "part_ns": kernel_differences.on_grid(case.difference_ns)}
        table_rows.append({**key, **times, **figures(judged), "further_pairs": case.further_pairs})
        if case.kernels:
            table_rows += [{**key, **_kernel_row(kernel)} for kernel in case.kernels.kernels]
            rest = {"cause": str(KernelChange.NOT_IN_KERNELS), "part_ns": case.kernels.not_in_kernels_ns}
            table_rows.append({**key, "kernel": NOT_IN_KERNELS, **rest})
    return schema.frame(schema.VERDICTS, table_rows)


def figures(judged: Judgement) -> dict[str, Any]:
    """Return the columns of `verdicts` that a judgement fills."""
    return {"verdict": str(judged.verdict), **{name: getattr(judged, name) for name in FIGURES}}


def _kernel_row(kernel: KernelDifference) -> dict[str, Any]:
    """Return the row of a kernel. Below 8 pairs of captures it has no verdict and no p."""
    ratio = kernel.b.ns / kernel.a.ns if kernel.a.ns and kernel.b.ns else None
    judged = figures(kernel.judgement) if kernel.judgement else {"ratio": ratio, "pairs": kernel.captures}
    return {
        **judged,
        "kernel": kernel.name,
        "b_kernel": kernel.b_name if kernel.b_name != kernel.name else "",
        "cause": str(kernel.change),
        "kernel_class": kernel.kernel_class,
        "b_class": kernel.b.kernel_class or kernel.kernel_class,
        "a_calls": kernel.a.calls,
        "b_calls": kernel.b.calls,
        "a_ns": kernel.a.ns,
        "b_ns": kernel.b.ns,
        "part_ns": kernel.part_ns,
        "part_low_ns": kernel.low_ns,
        "part_high_ns": kernel.high_ns,
    }


FIGURES: Final = ("ratio", "ci_low", "ci_high", "p", "pairs", "floor", "pairs_more")


# --- cases -----------------------------------------------------------------------------------------------------------


def _find_changes(
    data: Tables, settings: PairsEntry, captures: Mapping[Key, Mapping[str, Captures]] = MappingProxyType({})
) -> Iterator[Change]:
    """Yield the cases in the order of the table, with the verdict of the last block that was judged.

    A case that has a verdict and a capture of both sides has the difference by kernel.
    """
    failures = _find_failures(data)
    times, energies = _read_values(data, schema.TIMES), _read_values(data, schema.ENERGIES)
    inaccurate = _find_marked_sides(data, schema.PAIR_INACCURATE)
    timed = data.cases[data.cases["profiler"] == "plain"]
    for workload, case, flags in rows(timed, "workload", "case", "flags"):
        key = workload, case
        failure = failures.get(key)
        series, energy = (
            _judge_metric(key, *values.get(key, ("", {})), failure, settings) for values in (times, energies)
        )
        kernels = None
        if series.judgement and key in captures:
            kernels = kernel_differences.compare(series.difference_ns, captures[key]["A"], captures[key]["B"])
        if kernels and kernels.variations:
            flags = json.dumps([*json.loads(flags or "[]"), Flag.KERNELS_VARY])
        yield Change(
            **vars(series),
            workload=workload,
            case=case,
            inaccurate_in=tuple(sorted(inaccurate.get(key, ()))),
            flags=flags,
            kernels=kernels,
            energy=energy if energy.judgement else None,
        )


def _judge_metric(
    key: Key, metric: str, pairs: Mapping[int, Mapping[str, float]], failure: Failure | None, settings: PairsEntry
) -> MetricChange:
    """Return the verdict on a case by one metric, from its values by pair and side."""
    workload, case = key
    blocks = grouped(
        (pair_blocks.block_of(number, settings), pair)
        for number, pair in sorted(pairs.items())
        if len(pair) == 2 and not pair_blocks.is_trial(number, workload, settings)
    )
    first, gate, further = (blocks.get(block, []) for block in (PairBlock.FIRST, PairBlock.GATE, PairBlock.FURTHER))
    floor = max(verdict.LEAST_FLOOR, settings.spreads.get(workload, {}).get(case, 0.0))
    # One process that crashed makes the times of the others doubtful, and one that was skipped does not.
    is_doubtful = bool(failure and failure.status in schema.FAILED)
    judgement = None if is_doubtful else verdict.judge_further(_log_ratios(further), floor)
    further_pairs = judgement.pairs if judgement else 0
    counted = further[:further_pairs] or gate or first
    ratios = [] if is_doubtful else _log_ratios(counted)
    if ratios and judgement is None:
        judgement = verdict.judge(ratios, floor)
    has_later = counted is not first and bool(first)
    return MetricChange(
        metric,
        a_ns=_median([pair["A"] for pair in counted]),
        b_ns=_median([pair["B"] for pair in counted]),
        failure=failure,
        judgement=judgement,
        first=verdict.judge(_log_ratios(first), floor) if has_later else None,
        log_ratios=tuple(ratios),
        further_pairs=further_pairs,
        earlier_ratios=tuple(_log_ratios(gate or first)) if further_pairs else (),
    )


def _read_pair_rows(metrics: pd.DataFrame) -> Iterator[tuple[Key, str, int, str, float]]:
    """Yield the case, the metric, the pair, the side and the value of the rows of single processes."""
    for workload, case, metric, subject, value in rows(metrics, "workload", "case", "metric", "subject", "value"):
        if match := _SUBJECT.fullmatch(subject):
            yield (workload, case), metric, int(match[1]), match[2], value


def _read_values(data: Tables, metrics: Sequence[str]) -> dict[Key, tuple[str, dict[int, dict[str, float]]]]:
    """Return by case the first of ``metrics`` that a side has, and its values by pair and side.

    Where the other side lacks it, nothing is compared. Where some processes take several steps as an iteration and
    others do not, the values are of a step.
    """
    strides: dict[Key, dict[tuple[int, str], float]] = {}
    for key, _, pair, side, stride in _read_pair_rows(data.metrics[data.metrics["metric"] == schema.STEP_STRIDE]):
        strides.setdefault(key, {})[pair, side] = stride
    is_wanted = data.metrics["metric"].isin(metrics) & (data.metrics["profiler"] == "plain")
    values: dict[Key, dict[str, dict[int, dict[str, float]]]] = {}
    for key, metric, pair, side, value in _read_pair_rows(
        data.metrics[is_wanted & data.metrics["value"].between(*POSSIBLE_NS)]
    ):
        values.setdefault(key, {}).setdefault(metric, {}).setdefault(pair, {})[side] = float(value)
    best = {key: next(name for name in metrics if name in by_metric) for key, by_metric in values.items()}
    for key, of_process in strides.items():
        by_pair = values.get(key, {}).get(best.get(key, ""), {})
        processes = [(pair, side) for pair, sides in by_pair.items() for side in sides]
        if best.get(key) in schema.PER_STEP and len({of_process.get(process) for process in processes}) > 1:
            for pair, side in processes:
                by_pair[pair][side] /= of_process.get((pair, side), 1.0)
    return {key: (name, values[key][name]) for key, name in best.items()}


def _log_ratios(pairs: Sequence[Mapping[str, float]]) -> list[float]:
    return [math.log(pair["B"] / pair["A"]) for pair in pairs]


def _median(values: Sequence[float]) -> float:
    return statistics.median(values) if values else math.nan


def _find_failures(data: Tables) -> dict[Key, Failure]:
    failed = data.cases[(data.cases["status"] != Status.OK.value) & (data.cases["profiler"] == "plain")]
    sides = _find_marked_sides(data, schema.PAIR_FAILED)
    is_time = data.metrics["metric"].isin(schema.TIMES) & (data.metrics["profiler"] == "plain")
    wrong = data.metrics[is_time & ~data.metrics["value"].between(*POSSIBLE_NS).fillna(False)]
    damaged = Failure(Status.FAILED.value, "a recorded time is 0, negative or no number", is_of_b_alone=False)
    return {key: damaged for key, *_ in _read_pair_rows(wrong)} | {
        (workload, case): Failure(status, reason, sides.get((workload, case)) == {"B"})
        for workload, case, status, reason in rows(failed, "workload", "case", "status", "reason")
    }


def _find_marked_sides(data: Tables, metric: str) -> dict[Key, set[str]]:
    """Return by case the sides of which a process has the mark ``metric``."""
    marked = _read_pair_rows(data.metrics[data.metrics["metric"] == metric])
    return {key: set(sides) for key, sides in grouped((key, side) for key, _, _, side, _ in marked).items()}
