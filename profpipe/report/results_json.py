"""The JSON documents: the results of a run, one object a case (docs/tables.md), and verdicts (docs/verdicts.md)."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any, Final

from profpipe.analysis import verdict
from profpipe.analysis.bisect import Bisection
from profpipe.analysis.case_index import Measure
from profpipe.analysis.changes import Change, GateResult, MetricChange
from profpipe.analysis.costs import Cost, find_costs
from profpipe.analysis.findings import CaseResult, Findings, WorkloadFindings
from profpipe.analysis.grouping import grouped
from profpipe.analysis.kernels import rows
from profpipe.analysis.modules import ModuleTime, find_modules
from profpipe.analysis.pairs import FIGURES, PairFindings, figures
from profpipe.analysis.verdict import Judgement
from profpipe.job import readable
from profpipe.measure.tolerance import worst
from profpipe.report import document as doc
from profpipe.report.sections.kernel_differences import explain, variation
from profpipe.report.sections.modules import MOST_MODULES
from profpipe.report.sections.verdicts import foreign_modules, write_verdict
from profpipe.results.manifest import Manifest, PairsEntry
from profpipe.results.schema import Tables, Verdict
from profpipe.stdio import visible_values

FILE: Final = "results.json"
FORMAT: Final = "profpipe.results"
#: Raised where a key is removed or changes its meaning. A new key raises nothing.
VERSION: Final = 1
VERDICTS_FORMAT: Final = "profpipe.verdicts"
VERDICTS_VERSION: Final = 1

#: Columns of `verdicts` that a kernel has from its case.
_KEYS: Final = ["run", "workload", "case", "profiler"]


def text(results: Mapping[str, Any]) -> str:
    """Return the document as text with a line per case, so that two of them can be compared line by line."""
    shown = visible_values(results)
    head = json.dumps({**shown, "cases": []}, allow_nan=False).removesuffix("]}")
    lines = ",\n".join(json.dumps(case, allow_nan=False) for case in shown["cases"])
    return f"{head}\n{lines}\n]}}\n"


def document(findings: Findings, tables: Tables, run: Manifest) -> dict[str, Any]:
    """Return the results as plain values. Times are ns, sizes bytes, shares 0 to 1; an unknown value is None."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "name": run.name,
        "started": run.started,
        "ended": run.ended or None,
        "devices": [gpu.name for gpu in run.machine.gpus or ()],
        "cases": [
            _finite(_case(workload, case, statuses, costs))
            for workload, statuses, costs in (
                (workload, _statuses(tables, workload.name), {cost.case.id: cost for cost in find_costs(workload)})
                for workload in findings.workloads
            )
            for case in workload.cases
        ],
    }


def _finite(value: Any) -> Any:
    """Return ``value`` without numbers that JSON cannot hold: None stands in their places."""
    if isinstance(value, Mapping):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _statuses(tables: Tables, workload: str) -> dict[str, dict[str, dict[str, str]]]:
    """Return the status of each case by profiler, with the reason where there is one."""
    case_rows = tables.cases[tables.cases["workload"] == workload]
    ended = grouped(
        (case, (profiler, {"status": status, **({"reason": reason} if reason else {})}))
        for case, profiler, status, reason in rows(case_rows, "case", "profiler", "status", "reason")
    )
    return {case: dict(by_profiler) for case, by_profiler in ended.items()}


def _case(
    workload: WorkloadFindings,
    case: CaseResult,
    statuses: Mapping[str, Mapping[str, Mapping[str, str]]],
    costs: Mapping[str, Cost],
) -> dict[str, Any]:
    values, cost = case.values, costs.get(case.id)
    return {
        "workload": workload.name,
        "case": case.id,
        "params": dict(case.params),
        "profilers": statuses.get(case.id, {}),
        "time": _time(workload, case.time) if case.time else None,
        "tflops": case.tflops,
        "tflops_best": case.tflops_best,
        "tflops_effective": case.tflops_done,
        "flops_share": case.of_peak_flops,
        "gbytes_per_s": case.gbytes_per_s,
        "bandwidth_share": case.of_peak_bytes,
        "speedup": case.speedup,
        "is_baseline": case.is_baseline,
        "memory": {name: values.get(name) for name in ("peak_allocated", "peak_reserved")},
        "model_flops": cost.flops or None if cost else None,
        "mfu": cost.mfu if cost else None,
        "energy": {of: getattr(cost, f"{of}_j", None) for of in ("step", "token", "item")},
        "price": {of: getattr(cost, f"euros_{of}", None) for of in ("per_1000_steps", "per_million_items")},
        # An error or a cosine that is not a number is None.
        "error": {
            name: None if value == worst(name) else value
            for name, value in values.items()
            if name.startswith(("error_", "cosine"))
        }
        or None,
        "is_accurate": None if case.accuracy is None else not case.accuracy.flag,
        "kernels": _kernels(case),
        "modules": _modules(workload, case.id),
        "limited_by": case.limit.limited_by.value if case.limit.limited_by else None,
        "flags": list(case.flags),
        "grades": {name: grade.value for name, (_, grade) in case.grades.items()},
    }


def _time(workload: WorkloadFindings, time: Measure) -> dict[str, Any]:
    assert workload.time_source is not None
    low, high = time.interval or (None, None)
    return {
        "of": workload.time_source.quantity,
        "profiler": workload.time_source.profiler,
        "median": time.ns,
        "ci_low": low,
        "ci_high": high,
        "min": time.lowest,
        "p10": time.p10,
        "p90": time.p90,
        "max": time.highest,
        "samples": time.n,
        "processes": time.processes,
    }


def _kernels(case: CaseResult) -> dict[str, Any] | None:
    """Return the kernel time of an iteration, its launches, and the share of each class of kernels."""
    breakdown = case.breakdown
    if breakdown is None or breakdown.kind != "kernel" or not breakdown.total.ns:
        return None
    return {
        "profiler": breakdown.profiler,
        "iterations": breakdown.iterations,
        "time": breakdown.total.ns,
        "launches": breakdown.total.calls,
        "idle_share": breakdown.idle_share,
        "shares": {name: part.ns / breakdown.total.ns for name, part in breakdown.classes.items()},
    }


def _modules(workload: WorkloadFindings, case: str) -> dict[str, Any] | None:
    """Return the time of a step by class of modules, and of the modules with the most time."""
    module_times = find_modules(workload.recorded.tables.modules, case)
    if module_times is None:
        return None

    def times(module: ModuleTime) -> dict[str, Any]:
        return {"count": module.count, "forward": module.forward_ns, "backward": module.backward_ns,
                "own": module.own_ns, "is_compiled": module.is_compiled}  # fmt: skip

    return {
        "steps": module_times.steps,
        "time": module_times.total_ns,
        "optimizer": module_times.optimizer_ns,
        "outside": times(module_times.outside),
        "types": {module.name: times(module) for module in module_times.types},
        "largest": [
            {"module": module.name, "type": module.type, **times(module)}
            for module in module_times.modules[:MOST_MODULES]
        ],
    }


# --- verdicts --------------------------------------------------------------------------------------------------------


def verdict_document(
    findings: PairFindings, data: Tables, run: Manifest, summary: str, exit_code: int
) -> dict[str, Any]:
    """Return everything that is known of the verdicts of an `ab` run as plain values. An unknown value is None."""
    assert run.ab is not None
    kernels = _verdict_kernels(data)
    statuses = data.cases.loc[data.cases["profiler"] == "plain", "status"].value_counts()
    return {
        "format": VERDICTS_FORMAT,
        "version": VERDICTS_VERSION,
        "kind": "ab",
        "name": run.name,
        "started": run.started,
        "ended": run.ended or None,
        "summary": summary,
        "exit_code": exit_code,
        "a": asdict(run.ab.a),
        "b": asdict(run.ab.b),
        "aa": run.ab.is_aa,
        "pairs": run.ab.pairs,
        "more": run.ab.more,
        "seed": run.ab.seed,
        "captures": run.ab.captures,
        "profiler": run.ab.profiler or None,
        "gate": findings.gate and gate_document(findings.gate),
        "counts": {str(kind): findings.count(kind) for kind in Verdict},
        "expected_false": findings.false_verdicts,
        "statuses": {str(status): int(count) for status, count in statuses.items()},
        "cases": [
            {
                **case_document(case),
                "gate": findings.gate and findings.gate.judge(case).value,
                "kernels": kernels.get(case.key, []),
            }
            for case in findings.cases
        ],
        "warnings": list(_warnings(findings, run.ab)),
        **({"tried": asdict(run.ab.tried)} if run.ab.tried else {}),
    }


def bisect_document(findings: Bisection, run: Manifest, summary: str, exit_code: int) -> dict[str, Any]:
    """Return everything that is known of a run of `bisect`. Commits have the numbers of its list of commits."""
    entry = run.bisect
    assert entry is not None
    return {
        "format": "profpipe.bisect",
        "version": 1,
        **{key: getattr(run, key) for key in ("name", "started", "ended")},
        "summary": summary,
        "exit_code": exit_code,
        "commit": None if findings.culprit is None else entry.commits[findings.culprit][0],
        "remaining": [entry.commits[number][0] for number in findings.remaining],
        "whole": _judgement(findings.whole),
        "step": _judgement(findings.step),
        "part": findings.part,
        "probabilities": list(findings.probabilities),
        **asdict(entry),
    }


def gate_document(gate: GateResult) -> dict[str, Any]:
    return {
        "percent": gate.percent,
        "inconclusive": gate.undecided.value,
        "result": gate.verdict.value,
        "failed": len(gate.failed),
        "undecided": len(gate.open),
    }


def case_document(case: Change) -> dict[str, Any]:
    """Return a case without its gate and its kernels."""
    failure = case.failure
    return {
        "workload": case.workload,
        "case": case.case,
        "metric": case.metric or None,
        **{key: None if math.isnan(ns := getattr(case, key)) else ns for key in ("a_ns", "b_ns", "difference_ns")},
        "explanation": doc.plain(explain(case)) or None,
        **_judgement(case.judgement),
        "further_pairs": case.further_pairs,
        "first_block": _judgement(case.first) if case.first else None,
        "log_ratios": list(case.log_ratios),
        "failure": asdict(failure) if failure else None,
        "is_newly_inaccurate": case.is_newly_inaccurate,
        "flags": json.loads(case.flags or "[]"),
        "energy": _energy(case.energy) if case.energy else None,
    }


def _energy(energy: MetricChange) -> dict[str, Any]:
    """Return the verdict on the energy of a case, in J."""
    series = {"log_ratios": list(energy.log_ratios), "further_pairs": energy.further_pairs}
    return {"metric": energy.metric, "a": energy.a_ns, "b": energy.b_ns, **_judgement(energy.judgement), **series}


def _judgement(judged: Judgement | None) -> Mapping[str, Any]:
    return figures(judged) if judged else dict.fromkeys(("verdict", *FIGURES))


def _verdict_kernels(data: Tables) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Return by case the rows of its kernels in the table `verdicts`."""
    rows = data.verdicts[data.verdicts["kernel"] != ""]
    plain = rows.drop(columns=_KEYS).astype(object).where(rows.drop(columns=_KEYS).notna(), None)
    values = (
        {str(name): value.item() if hasattr(value, "item") else value for name, value in row.items()}
        for row in plain.to_dict("records")
    )
    return grouped(zip(zip(rows["workload"], rows["case"], strict=True), values, strict=True))


def _warnings(findings: PairFindings, settings: PairsEntry) -> Iterator[dict[str, str]]:
    """Yield what limits the verdicts: ``kind`` for programs, ``text`` for people."""
    if not findings.is_complete:
        text = "The run has not ended: `profpipe resume` runs the pairs that are missing."
        yield {"kind": "unfinished", "text": text}
    for line in foreign_modules(settings):
        yield {"kind": "foreign_modules", "text": doc.plain(line)}
    judged = [case.judgement for case in findings.cases if case.judgement]
    if judged and max(judgement.pairs for judgement in judged) < verdict.FEWEST_PAIRS:
        text = f"Below {verdict.FEWEST_PAIRS} pairs no case can be called faster or slower."
        yield {"kind": "few_pairs", "text": text}
    for case in findings.cases:
        if case.failure:
            yield {"kind": "failed", "text": f"{write_verdict(case)}: {case.failure.reason}"}
        elif case.is_newly_inaccurate:
            yield {"kind": "inaccurate", "text": write_verdict(case)}
        if case.kernels and case.kernels.variations:
            yield {"kind": "kernels_vary", "text": f"{case.name}: {doc.plain(variation(case))}"}
    for capture in findings.failed_captures:
        text = f"{capture.workload}/{readable(capture.case)}, {capture.profiler}: {capture.status}: {capture.reason}"
        yield {"kind": "capture_failed", "text": text}
