"""Findings -> sentences: what to think of a number, and whatever casts doubt on the whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from profpipe.findings import Coverage, Expectation, Findings, NotRun, Point, Unattributed, WorkloadFindings
from profpipe.markdown import code, escape, listed, short_names
from profpipe.quantities import duration, percent

#: What each validity mark means; a mark that is not here is shown under its own name.
MARKS: Mapping[str, str] = {
    "throttled": "the GPU lowered its clock (power, heat) while this was measured",
    "clock-spread": "the SM clock moved between samples by more than the times differ",
    "noisy": "the samples spread more than the target allows",
    "host_bound": "the GPU waits for the CPU's launches, so the time says little about the kernels",
    "other-process": "another process used the GPU at the same time",
    "above-peak": "above what the hardware can do: a wrong FLOP or byte count, a skipped kernel, or data in the cache",
    "too-few-samples": "fewer samples than the pipeline asks for",
    "profiler-overhead": "the profiler slowed the case down noticeably",
}

#: A classified share below this is told among the doubts.
ENOUGH = 0.99


def trust(workload: WorkloadFindings, point: Point) -> str:
    """What to think of one time: how many samples, how far apart, and its marks."""
    said = []
    time = point.time
    if time is None:
        return ""
    noun = "samples" if workload.basis and workload.basis.timed else "iterations"
    if time.n is not None:
        below = f", below the {workload.asked_samples} asked for" if "too-few-samples" in point.marks else ""
        said.append(f"{time.n} {noun if time.n != 1 else noun[:-1]}{below}")
    if time.ci_low is not None and time.ci_high is not None and time.ns:
        said.append(f"95 % interval ±{percent((time.ci_high - time.ci_low) / 2 / time.ns)} %")
    return "; ".join(said + [marked(mark, point) for mark in point.marks if mark != "too-few-samples"])


def marked(mark: str, point: Point) -> str:
    name = f"**{escape(mark)}**"
    if mark == "host_bound" and point.split and point.split.idle:
        return f"{name}: no kernel runs in {100 * point.split.idle:.0f} % of its range under {point.split.profiler}"
    return name


def marks_explained(workload: WorkloadFindings) -> list[str]:
    """One sentence for each mark that occurs."""
    timed = [point for point in workload.points if point.time]
    present = dict.fromkeys(mark for point in timed for mark in point.marks)
    everywhere = workload.shared_marks
    return [
        f"**{escape(mark)}**{' (every case)' if mark in everywhere else ''}: {MARKS.get(mark, 'set by the workload')}."
        for mark in present
    ]


def doubts(findings: Findings, run: Mapping[str, Any], alone: bool) -> list[str]:
    """Every reason to be careful, most serious first, a sentence each."""
    groups = sorted(findings.not_run, key=lambda group: group.status == "skipped")
    lines = [_not_run(group, findings, alone) for group in groups]
    lines += [_unmet(e) for e in _grouped(findings.expectations) if not e.met]
    lines += [_refused(refusal) for refusal in run.get("refused") or ()]
    lines += [outside(u, alone) for u in findings.unattributed if u.unexplained >= 0.001]
    lines += [coverage_sentence(c, alone) for c in findings.coverage if c.classified < ENOUGH or c.too_low]
    lines += [_disagreement(w) for w in findings.workloads if any(f.flagged for a in w.agreements for f in a.figures)]
    # On a CPU every file says that it has no GPU events, which the first lines have said already.
    return list(dict.fromkeys(lines + ([] if on_cpu(findings) else notes(run))))


def on_cpu(findings: Findings) -> bool:
    """Whether everything that was seen are CPU operators."""
    kinds = {point.split.kind for w in findings.workloads for point in w.points if point.split}
    return kinds == {"cpu_op"}


def notes(run: Mapping[str, Any]) -> list[str]:
    """What the parsers had to say of the files, files that share a note together."""
    sources: dict[str, list[str]] = {}
    for file in run.get("files") or ():
        for note in file.get("notes") or ():
            sources.setdefault(str(note), []).append(code(file.get("source", "")))
    return [f"{listed(files, most=3)}: {sentence(note)}" for note, files in sources.items()]


def sentence(text: object) -> str:
    """Escaped text that ends as a sentence does; empty stays empty."""
    flat = escape(text or "")
    return flat if not flat or flat.endswith((".", "!", "?")) else flat + "."


def _not_run(group: NotRun, findings: Findings, alone: bool) -> str:
    who = listed(code(profiler) for profiler in group.profilers)
    what = which(group, findings, most=4)
    where = "" if alone else f" of {code(group.workload)}"
    subject = f"{fate(group)}{where} under {who}" + (f", {what}" if what else "")
    return f"{subject}: {sentence(group.reason or 'no reason was recorded')}"


def which(group: NotRun, findings: Findings, most: int) -> str:
    """The cases of a group, by implementation where all cases of one share the fate; empty for the whole workload."""
    if group.whole_job:
        return ""
    workload = next((w for w in findings.workloads if w.name == group.workload), None)
    named, left = [], list(group.cases)
    for variant in workload.variants if workload and workload.compare else ():
        own = [point.id for point in workload.points if point.variant == variant] if workload else []
        if len(own) > 1 and set(own) <= set(left):
            named.append(f"every case of {code(variant)}")
            left = [case for case in left if case not in own]
    return listed([*named, *map(code, left)], most=most)


def fate(group: NotRun) -> str:
    return {"skipped": "Not run", "oom": "Out of memory", "timeout": "Timed out"}.get(
        group.status, group.status.capitalize()
    )


def _refused(refusal: Mapping[str, Any]) -> str:
    told = [sentence(refusal.get(key, "")) for key in ("what", "remedy")]
    return f"Not read: {code(refusal.get('source', ''))}: {' '.join(told)}".strip()


def _grouped(expectations: Sequence[Expectation]) -> list[Expectation]:
    """One of each kind of expectation that failed alike, its cases together."""
    groups: dict[tuple[object, ...], list[str]] = {}
    for e in expectations:
        groups.setdefault((e.workload, e.asked, e.found, e.met, e.own_copy), []).append(e.case)
    return [
        Expectation(workload, listed((code(case) for case in cases), most=4), asked, found, met, own)  # type: ignore[arg-type]
        for (workload, asked, found, met, own), cases in groups.items()
    ]


def _unmet(e: Expectation) -> str:
    ran = listed(code(family) for family in e.found) or "no attention kernel at all (gemm and softmax)"
    return f"**Failed expectation**: {e.case} asked for {code(e.asked)} kernels; what ran is {ran}."


def expectations_met(findings: Findings) -> str:
    """One sentence on the cases that ran what they asked for; empty where none was asked."""
    met = [e for e in findings.expectations if e.met]
    if not met:
        return ""
    total = len(findings.expectations)
    every = f"All {total} cases" if len(met) == total else f"{len(met)} of {total} cases"
    own = sorted({e.asked for e in met if e.own_copy})
    note = f" ({listed(code(f) for f in own)} from PyTorch's own copy)" if own else ""
    return f"{every} that name a kernel family ran kernels of that family{note}."


def outside(u: Unattributed, alone: bool) -> str:
    """What lies outside every case, and how much of it is the harness's own doing."""
    where = "" if alone else f" of {code(u.workload)}"
    said = f"{duration(u.ns)} of {code(u.profiler)}'s kernel time{where} ({percent(u.share)} %) lie outside every case"
    if not u.flush_ns:
        return f"{said}."
    return f"{said}; {percent(u.flush_ns / u.ns)} % of that is the harness's own cache flush between samples."


def coverage(findings: Findings) -> list[str]:
    """What is classified, where `doubts` has no reason to say it: of many workloads in one sentence."""
    fine = [c for c in findings.coverage if c.classified >= ENOUGH and not c.too_low]
    if len(fine) < 2:
        return [coverage_sentence(c, len(findings.workloads) < 2) for c in fine]
    least = min(c.classified for c in fine)
    others = " other" if len(fine) < len(findings.coverage) else ""
    return [f"Classified: at least {percent(least)} % of the kernel time of each of {len(fine)}{others} workloads."]


def coverage_sentence(c: Coverage, alone: bool) -> str:
    noun = "CPU operators' self time" if c.kind == "cpu_op" else "kernel time"
    where = "" if alone else f" of {code(c.workload)}"
    short = short_names(name for name, _ in c.largest)
    largest = listed(f"{code(short[name])} ({percent(share)} %)" for name, share in c.largest[:3])
    asked = f", **below the {percent(c.minimum)} % asked for**" if c.too_low else ""
    return f"Classified: {percent(c.classified)} % of {noun}{where} ({c.profiler}){asked}" + (
        f"; largest unclassified: {largest}." if largest else "."
    )


def _disagreement(workload: WorkloadFindings) -> str:
    flagged = [a for a in workload.agreements if any(f.flagged for f in a.figures)]
    cases = listed((code(a.point.id) for a in flagged), most=3)
    return f"The profilers differ without a known reason for {cases} (see the table of their figures)."
