"""The result of ``profpipe compare`` as the JSON document of verdicts. docs/verdicts.md describes it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from profpipe.analysis.compare_groups import GroupChange, GroupComparison, judge_gate
from profpipe.analysis.compare_runs import Change, Comparison, find_gate_failure
from profpipe.analysis.pairs import CaseVerdict, PairFindings
from profpipe.analysis.verdict import Gate
from profpipe.report import group_comparison, verdict_json
from profpipe.results.manifest import Manifest, PairsEntry
from profpipe.results.schema import Tables, Verdict

_Found = Comparison | GroupComparison


def document(
    found: _Found, names: tuple[Sequence[str], Sequence[str]], run: Manifest, gate: float | None, exit_code: int
) -> dict[str, Any]:
    """Return the document of a comparison. ``names`` are the runs of each side, ``run`` is the last one of B."""
    failed, passed = (None if gate is None else each.value for each in (Gate.FAILED, Gate.PASSED))
    cases = [_case(change, gate) for change in found.changes]
    cases += [{**_unknown(name), "failure": asdict(why), "gate": failed} for name, why in found.lost.items()]
    cases += [{**_unknown(name), "gate": passed} for name in found.absent]
    cases += [
        {**_unknown(case.name), "differing_params": dict(case.differences), "gate": failed}
        for case in found.changed_params
    ]
    return {
        **_empty(run, exit_code),
        "kind": "compare" if isinstance(found, Comparison) else "compare_groups",
        "a": {"runs": list(names[0])},
        "b": {"runs": list(names[1])},
        "gate": None if gate is None else _gate(found, gate, cases),
        "counts": {str(each): sum(case["verdict"] == str(each) for case in cases) for each in Verdict},
        "cases": cases,
        "warnings": list(_warnings(found)),
    }


def _empty(run: Manifest, exit_code: int) -> dict[str, Any]:
    """Return the document without a case: all keys that ``profpipe ab`` writes, of which most have no value here."""
    alone = Manifest(name=run.name, ab=PairsEntry())
    nothing = verdict_json.document(PairFindings((), 0.0), Tables(), alone, "", exit_code)
    unknown = ("started", "ended", "summary", "aa", "pairs", "seed", "captures", "profiler", "expected_false")
    return {**nothing, **dict.fromkeys(key for key in unknown if key in nothing)}


def _case(change: Change | GroupChange, gate: float | None) -> dict[str, Any]:
    if isinstance(change, GroupChange):
        a_ns, b_ns, ratio = change.a.median_ns, change.b.median_ns, change.ratio
        figures = {"verdict": str(change.verdict), "p": change.p, "floor": change.floor}
        figures |= {"ci_low": change.ci_low, "ci_high": change.ci_high}
        figures |= {"processes": [len(change.a.logs), len(change.b.logs)]}
        figures |= {"hindrance": change.hindrance.value if change.hindrance else None}
        result = judge_gate(change, gate).value if gate is not None else None
    else:
        a_ns, b_ns = change.a_ns, change.b_ns
        ratio = b_ns / a_ns
        figures = {"is_beyond_noise": change.is_beyond_noise}
        result = _result(change, gate).value if gate is not None else None
    known = {"a_ns": a_ns, "b_ns": b_ns, "difference_ns": a_ns * (ratio - 1), "ratio": ratio}
    inaccurate = {"is_newly_inaccurate": change.inaccurate_in == ("B",)}
    return {**_unknown(change.name), **known, **figures, **inaccurate, "gate": result}


def _unknown(name: str) -> dict[str, Any]:
    """Return a case of which nothing but its name is known."""
    workload, _, case = name.partition("/")
    nan = float("nan")
    known = verdict_json.case_document(CaseVerdict(workload, case, "", nan, nan, None))
    return {**known, "kernels": [], "differing_params": None}


def _result(change: Change, gate: float) -> Gate:
    is_slower = change.is_slower_by(gate)
    if is_slower or change.inaccurate_in == ("B",):
        return Gate.FAILED
    return Gate.PASSED if is_slower is False else Gate.UNDECIDED


def _gate(found: _Found, percent: float, cases: Sequence[dict[str, Any]]) -> dict[str, Any]:
    if isinstance(found, Comparison):
        failure = find_gate_failure(found, percent)
        is_open = failure is not None and failure.cause.is_open
        is_failed = failure is not None and not is_open
    else:
        is_failed = bool(group_comparison.gate_failure(found, percent))
        is_open = bool(group_comparison.gate_undecided(found, percent))
    result = Gate.FAILED if is_failed else Gate.UNDECIDED if is_open else Gate.PASSED
    counts = {key: sum(case["gate"] == key for case in cases) for key in ("failed", "undecided")}
    return {"percent": percent, "inconclusive": "report", "result": result.value, **counts}


def _warnings(found: _Found) -> Iterator[dict[str, str]]:
    yield from ({"kind": "not_compared", "text": text} for text in group_comparison.missing(found))
    yield from ({"kind": "runs_differ", "text": text} for text in group_comparison.differences(found))
    if isinstance(found, GroupComparison):
        yield from ({"kind": "no_verdict", "text": text} for text in group_comparison.hindrances(found))
