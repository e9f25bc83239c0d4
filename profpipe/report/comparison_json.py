"""The result of ``profpipe compare`` as the JSON document of verdicts. docs/verdicts.md describes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from profpipe.analysis.compare_recordings import RecordingChange, RecordingComparison
from profpipe.analysis.compare_runs import Change, Comparison
from profpipe.analysis.pairs import CaseVerdict, PairFindings
from profpipe.analysis.steps import StepPart
from profpipe.analysis.verdict import Gate
from profpipe.report import comparison_text, document as doc, results_json
from profpipe.report.sections import recording_changes
from profpipe.results.manifest import Manifest, PairsEntry
from profpipe.results.schema import StepState, Tables, Verdict


def document(
    found: Comparison, names: Sequence[str], run: Manifest, gate: float | None, exit_code: int
) -> dict[str, Any]:
    """Return the document of a comparison. ``names`` are those of A and of B, and ``run`` is B."""
    failed, undecided = (None if gate is None else each.value for each in (Gate.FAILED, Gate.UNDECIDED))
    cases = [_case(change, gate) for change in found.changes]
    cases += [{**_unknown(name), "failure": asdict(why), "gate": failed} for name, why in found.lost.items()]
    cases += [{**_unknown(name), "gate": undecided} for name in found.absent]
    cases += [
        {**_unknown(name), "differing_params": differing, "gate": failed}
        for name, differing in found.changed_params.items()
    ]
    # All keys that ``profpipe ab`` writes, of which most have no value here.
    nothing = results_json.verdict_document(
        PairFindings((), 0.0), Tables(), Manifest(name=run.name, ab=PairsEntry()), "", exit_code
    )
    unknown = ("started", "ended", "summary", "aa", "pairs", "seed", "captures", "profiler", "expected_false")
    warnings = {"not_compared": comparison_text.missing(found), "runs_differ": comparison_text.differences(found)}
    return {
        **nothing,
        **dict.fromkeys(key for key in unknown if key in nothing),
        "kind": "compare",
        "a": {"runs": [names[0]]},
        "b": {"runs": [names[1]]},
        "gate": None if gate is None else {
            "percent": gate, "inconclusive": "report", "result": found.judge_gate(gate).value,
            **{key: sum(case["gate"] == key for case in cases) for key in ("failed", "undecided")},
        },
        "counts": {str(each): sum(case["verdict"] == str(each) for case in cases) for each in Verdict},
        "cases": cases,
        "warnings": [{"kind": kind, "text": text} for kind, texts in warnings.items() for text in texts],
    }  # fmt: skip


def _case(change: Change, gate: float | None) -> dict[str, Any]:
    ratio = change.b_ns / change.a_ns
    return {
        **_unknown(change.name),
        "a_ns": change.a_ns,
        "b_ns": change.b_ns,
        "difference_ns": change.a_ns * (ratio - 1),
        "ratio": ratio,
        "is_beyond_noise": change.is_beyond_noise,
        "is_newly_inaccurate": change.inaccurate_in == ("B",),
        "gate": None if gate is None else change.judge_gate(gate).value,
    }


def _unknown(name: str) -> dict[str, Any]:
    """Return a case of which nothing but its name is known."""
    workload, _, case = name.partition("/")
    nan = float("nan")
    known = results_json.case_document(CaseVerdict(workload, case, "", nan, nan, None))
    return {**known, "kernels": [], "differing_params": None}


def recordings_document(found: RecordingComparison, names: Sequence[str]) -> dict[str, Any]:
    """Return the document of two recordings, which has no verdicts. Times are of ``of``: a step, a call, ..."""
    a, b = names
    return {
        "format": results_json.VERDICTS_FORMAT,
        "version": results_json.VERDICTS_VERSION,
        "kind": "compare_recordings",
        "a": {"runs": [a]},
        "b": {"runs": [b]},
        "cases": [_recording(change) for change in found.changes],
        "alone": dict(found.alone),
        "warnings": [{"kind": "no_verdict", "text": doc.plain(text)} for text in recording_changes.notes(found)],
    }


def _recording(change: RecordingChange) -> dict[str, Any]:
    sides = {
        name: {
            **{key: getattr(own, key) for key in ("workload", "case", "profiler", "launches")},
            "steady": own.steps.count(StepState.STEADY)[1] if own.steps else 0,
            "steps": own.steps.steps if own.steps else 0,
            "kernel_ns": own.kernel_ns if change.has_times else None,
        }
        for name, own in (("a", change.a), ("b", change.b))
    }
    kernels = [
        {"kernel": own.name, "b_kernel": own.b_name, "kernel_class": own.kernel_class, "cause": str(own.change),
         "a_calls": own.a.calls, "b_calls": own.b.calls,
         **(_difference(own.a.ns, own.b.ns) if change.has_times else {})}
        for own in change.kernels
    ]  # fmt: skip
    found = {"of": change.extent.value, **sides, "kernels": kernels}
    if not change.has_times:
        return found
    a, b = change.a.parts, change.b.parts
    classes = {
        name: _difference(*(own.classes.get(name, 0.0) for own in (a, b))) for name in {**a.classes, **b.classes}
    }
    ranks = {rank: _difference(own.wall_ns, change.b.ranks[rank].wall_ns)
             for rank, own in change.a.ranks.items() if rank in change.b.ranks}  # fmt: skip
    return {
        **found,
        **_difference(a.wall_ns, b.wall_ns),
        "parts": {part.value: _difference(a.ns[part], b.ns[part]) for part in StepPart},
        "compute": classes,
        "ranks": ranks,
    }


def _difference(a_ns: float, b_ns: float) -> dict[str, float]:
    return {"a_ns": a_ns, "b_ns": b_ns, "difference_ns": b_ns - a_ns}
