"""The results of a run as one JSON document, one object a case. docs/tables.md describes it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Final

from profpipe.analysis.findings.workloads import CaseResult, Findings, Measure, WorkloadFindings
from profpipe.analysis.grouping import grouped
from profpipe.analysis.kernel_totals import rows
from profpipe.measure.tolerance import worst
from profpipe.results.manifest import Manifest
from profpipe.results.schema import Tables

FILE: Final = "results.json"
FORMAT: Final = "profpipe.results"
#: Raised where a key is removed or changes its meaning. A new key raises nothing.
VERSION: Final = 1


def text(findings: Findings, tables: Tables, run: Manifest) -> str:
    """Return the document as text with a line for each case, so that two of them can be compared line by line."""
    content = document(findings, tables, run)
    cases = content.pop("cases")
    lines = ",\n".join(json.dumps(case, allow_nan=False) for case in cases)
    return f'{json.dumps(content, allow_nan=False)[:-1]}, "cases": [\n{lines}\n]}}\n'


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
            _finite(_case(workload, case, statuses))
            for workload, statuses in ((each, _statuses(tables, each.name)) for each in findings.workloads)
            for case in workload.cases
        ],
    }


def _finite(value: Any) -> Any:
    """Return ``value`` without numbers that JSON cannot hold: None stands in their places."""
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _statuses(tables: Tables, workload: str) -> dict[str, dict[str, dict[str, str]]]:
    """Return the status of each case by profiler, with the reason where there is one."""
    own = tables.cases[tables.cases["workload"] == workload]
    ended = grouped(
        (case, (profiler, {"status": status, **({"reason": reason} if reason else {})}))
        for case, profiler, status, reason in rows(own, "case", "profiler", "status", "reason")
    )
    return {case: dict(by_profiler) for case, by_profiler in ended.items()}


def _case(
    workload: WorkloadFindings, case: CaseResult, statuses: Mapping[str, Mapping[str, Mapping[str, str]]]
) -> dict[str, Any]:
    values = case.values
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
        # An error or a cosine that is not a number is None.
        "error": {
            name: None if value == worst(name) else value
            for name, value in values.items()
            if name.startswith(("error_", "cosine"))
        }
        or None,
        "is_accurate": None if case.accuracy is None else not case.accuracy.mark,
        "kernels": _kernels(case),
        "limited_by": case.limit.limited_by.value if case.limit.limited_by else None,
        "flags": list(case.marks),
        "grades": {name: grade.value for name, grade in workload.targets.grades(case.id).items()},
    }


def _time(workload: WorkloadFindings, time: Measure) -> dict[str, Any]:
    assert workload.basis is not None
    low, high = time.interval or (None, None)
    return {
        "of": workload.basis.quantity,
        "profiler": workload.basis.profiler,
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
    own = case.breakdown
    if own is None or own.kind != "kernel" or not own.total.ns:
        return None
    return {
        "profiler": own.profiler,
        "iterations": own.iterations,
        "time": own.total.ns,
        "launches": own.total.calls,
        "idle_share": own.idle_share,
        "shares": {name: part.ns / own.total.ns for name, part in own.classes.items()},
    }
