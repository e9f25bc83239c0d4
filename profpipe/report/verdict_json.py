"""The verdicts of an `ab` run as one JSON document. docs/verdicts.md describes it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any, Final

from profpipe.analysis import verdict
from profpipe.analysis.grouping import grouped
from profpipe.analysis.pairs import FIGURES, CaseVerdict, PairFindings, figures
from profpipe.analysis.verdict import Judgement
from profpipe.job import readable
from profpipe.report import document as doc
from profpipe.report.sections.kernel_differences import explain, variation
from profpipe.report.sections.verdicts import foreign_modules, name, write_verdict
from profpipe.results.manifest import Manifest, PairsEntry
from profpipe.results.schema import Tables, Verdict

FORMAT: Final = "profpipe.verdicts"
#: Raised where a key is removed or changes its meaning. A new key raises nothing.
VERSION: Final = 1

#: Columns of `verdicts` that a kernel has from its case.
_KEYS: Final = ["run", "workload", "case", "profiler"]


def document(findings: PairFindings, data: Tables, run: Manifest, summary: str, exit_code: int) -> dict[str, Any]:
    """Return everything that is known of the verdicts as plain values. A value that is not known is None."""
    assert run.ab is not None
    kernels = _kernels(data)
    gates = [gate.value for gate in findings.gates] if findings.gates else [None] * len(findings.cases)
    statuses = data.cases.loc[data.cases["profiler"] == "plain", "status"].value_counts()
    return {
        "format": FORMAT,
        "version": VERSION,
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
        "gate": _gate(findings),
        "counts": {str(each): findings.count(each) for each in Verdict},
        "expected_false": findings.false_verdicts,
        "statuses": {str(status): int(count) for status, count in statuses.items()},
        "cases": [
            {**case_document(case), "gate": gate, "kernels": kernels.get((case.workload, case.case), [])}
            for case, gate in zip(findings.cases, gates, strict=True)
        ],
        "warnings": list(_warnings(findings, run.ab)),
    }


def _gate(findings: PairFindings) -> dict[str, Any] | None:
    if findings.gate is None:
        return None
    return {
        "percent": findings.percent,
        "inconclusive": findings.undecided.value,
        "result": findings.gate.value,
        "failed": len(findings.failed),
        "undecided": len(findings.open),
    }


def case_document(case: CaseVerdict) -> dict[str, Any]:
    """Return a case without its gate and its kernels."""
    failure = case.failure
    return {
        "workload": case.workload,
        "case": case.case,
        "metric": case.metric or None,
        **{name: None if math.isnan(ns := getattr(case, name)) else ns for name in ("a_ns", "b_ns", "difference_ns")},
        "explanation": doc.plain(explain(case)) or None,
        **_judgement(case.judgement),
        "further_pairs": case.further_pairs,
        "first_block": _judgement(case.first) if case.first else None,
        "log_ratios": list(case.log_ratios),
        "failure": asdict(failure) if failure else None,
        "is_newly_inaccurate": case.is_newly_inaccurate,
        "flags": json.loads(case.flags or "[]"),
    }


def _judgement(judged: Judgement | None) -> Mapping[str, Any]:
    return figures(judged) if judged else dict.fromkeys(("verdict", *FIGURES))


def _kernels(data: Tables) -> dict[tuple[str, str], list[dict[str, Any]]]:
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
    if judged and max(each.pairs for each in judged) < verdict.FEWEST_PAIRS:
        text = f"Below {verdict.FEWEST_PAIRS} pairs no case can be called faster or slower."
        yield {"kind": "few_pairs", "text": text}
    for case in findings.cases:
        if case.failure:
            yield {"kind": "failed", "text": f"{write_verdict(case)}: {case.failure.reason}"}
        elif case.is_newly_inaccurate:
            yield {"kind": "inaccurate", "text": write_verdict(case)}
        if case.kernels and case.kernels.variations:
            yield {"kind": "kernels_vary", "text": f"{name(case)}: {doc.plain(variation(case))}"}
    for each in findings.failed_captures:
        text = f"{each.workload}/{readable(each.case)}, {each.profiler}: {each.status}: {each.reason}"
        yield {"kind": "capture_failed", "text": text}
