"""Findings -> sentences: whatever casts doubt on the whole, and what is known to be in order."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from profpipe.concerns import Coverage, Expectation, NotRun, Unattributed, Unseen, Visit
from profpipe.findings import Agreement, Findings, WorkloadFindings
from profpipe.page.files import NO_KERNELS
from profpipe.page.markdown import code, escape, listed, short_names
from profpipe.page.quantities import duration, percent, signed_percent, time_unit
from profpipe.page.skips import subject
from profpipe.page.wording import case_id, case_label, cases
from profpipe.points import in_words

#: A classified share below this is told among the doubts.
ENOUGH = 0.99

#: More of the kernel time than this outside every case, for no known reason, is told among the doubts.
LEAST_UNEXPLAINED = 0.001

#: What nsys says of every capture that is stopped by a range, and the harness of every run: no doubt, just a note.
_HARMLESS = re.compile(
    r"might (not )?have |events were lost\? no|bytes written between samples|cut off is set aside"
    r"|^read with it: |^launch \d+ of |^launches left out: |device numbers are HSA agent ids"
)


def doubts(findings: Findings, run: Mapping[str, Any], alone: bool) -> list[str]:
    """Every reason to be careful, most serious first, a sentence each."""
    lines = _interrupted(findings, run, alone)
    lines += [_not_run(g, findings, alone) for g in findings.not_run if g.status not in ("skipped", "interrupted")]
    lines += [_unmet(e) for e in _grouped(findings.expectations) if not e.met]
    lines += [_refused(refusal) for refusal in run.get("refused") or ()]
    lines += [coverage_sentence(c, alone) for c in findings.coverage if c.classified < ENOUGH or c.too_low]
    lines += [_unseen(u, findings, alone) for u in findings.unseen]
    lines += [outside(u, alone) for u in findings.unattributed if u.unexplained >= LEAST_UNEXPLAINED]
    lines += [line for w in findings.workloads for line in _disagreements(w, alone)]
    lines += _twice(findings)
    # On a CPU every file says that it has no GPU events, which the first lines have said already.
    serious = [] if on_cpu(findings) else [note for note, harmless in _told(run) if not harmless]
    return list(dict.fromkeys(lines + serious))


def on_cpu(findings: Findings) -> bool:
    """Whether everything that was seen are CPU operators."""
    kinds = {point.split.kind for w in findings.workloads for point in w.points if point.split}
    return kinds == {"cpu_op"}


def notes(findings: Findings, run: Mapping[str, Any]) -> list[str]:
    """What the parsers had to say of the files and is no doubt."""
    return [note for note, harmless in _told(run) if harmless or on_cpu(findings)]


def _told(run: Mapping[str, Any]) -> list[tuple[str, bool]]:
    """(sentences, whether they are harmless) of the parsers; files that share their notes together."""
    sources: dict[tuple[bool, tuple[str, ...]], list[str]] = {}
    for file in run.get("files") or ():
        for harmless in (False, True):
            own = tuple(note for note in map(str, file.get("notes") or ()) if _is_harmless(note, run) is harmless)
            if own:
                sources.setdefault((harmless, own), []).append(code(file.get("source", "")))
    return [
        (f"{listed(files, most=3)}: {' '.join(map(sentence, own))}", harmless)
        for (harmless, own), files in sources.items()
    ]


def _is_harmless(note: str, run: Mapping[str, Any]) -> bool:
    return bool(_HARMLESS.search(note) or (without_gpu(run) and NO_KERNELS.match(note)))


def without_gpu(run: Mapping[str, Any]) -> bool:
    """Whether the run was made on a machine that has no GPU; of files from elsewhere nobody knows."""
    return (run.get("machine") or {}).get("gpus") == []


def sentence(text: object) -> str:
    """Escaped text that ends as a sentence does; empty stays empty."""
    flat = escape(text or "")
    return flat if not flat or flat.endswith((".", "!", "?")) else flat + "."


def _not_run(group: NotRun, findings: Findings, alone: bool) -> str:
    what = subject(group, findings)
    where = "" if alone else f" of {code(group.workload)}"
    who = f" under {listed(map(code, group.profilers))}"
    logs = [f"[{escape(log)}]({escape(log)})" for log in group.logs]
    log = f" Log: {listed(logs, most=4)}." if logs else ""
    reason = sentence(group.reason or "no reason was recorded")
    return f"**{fate(group, findings)}**{where}{who}{', ' + what if what else ''}: {reason}{log}"


def _interrupted(findings: Findings, run: Mapping[str, Any], alone: bool) -> list[str]:
    """One sentence for a run that was stopped: how to go on, and what is missing until then."""
    missing: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    alone = alone and len({job["workload"] for job in run.get("planned") or ()}) < 2
    stopped = [group for group in findings.not_run if group.status == "interrupted"]
    for (became, profilers, workload), groups in by_fate(stopped, findings).items():
        cases_of = tuple(dict.fromkeys(case for group in groups for case in group.cases))
        whole = NotRun(workload, "interrupted", "", profilers, cases_of, any(group.whole_job for group in groups))
        what = subject(whole, findings) or "everything"
        number = f" ({cases(len(cases_of))})" if len(cases_of) > 1 else ""
        told = f"{what}{'' if alone else f' of {code(workload)}'}{number}"
        if not cases_of and all(group.after_cases for group in groups):
            told = f"what comes after the last case{'' if alone else f' of {code(workload)}'}"
        missing.setdefault((became.lower(), profilers), []).append(told)
    for (became, workload, left), profilers in _unread(run).items():
        what = subject(NotRun(workload, "interrupted", "", profilers, left), findings) if left else "everything"
        number = f" ({cases(len(left))})" if len(left) > 1 else ""
        told = f"{what}{'' if alone else f' of {code(workload)}'}{number}"
        missing.setdefault((became, profilers), []).append(told)
    go_on = f"this run is not complete. {code('profpipe resume')} with its folder goes on."
    lacks = [f"{became} under {listed(map(code, by))}: {listed(told)}" for (became, by), told in missing.items()]
    if lacks:
        return [f"**Interrupted**: {go_on} Until then it lacks what was {'; '.join(lacks)}."]
    return [f"**Not ended**: {go_on}"] if "ended" in run and not run["ended"] else []


def by_fate(groups: Iterable[NotRun], findings: Findings) -> dict[tuple[str, tuple[str, ...], str], list[NotRun]]:
    """``groups`` by fate, profilers and workload: their reasons tell apart what ended alike."""
    found: dict[tuple[str, tuple[str, ...], str], list[NotRun]] = {}
    for group in groups:
        found.setdefault((fate(group, findings), group.profilers, group.workload), []).append(group)
    return found


def _unread(run: Mapping[str, Any]) -> dict[tuple[str, str, tuple[str, ...]], tuple[str, ...]]:
    """The profilers of what left no row in a run that has not ended, by what became of it, workload and cases.

    No cases are all of them. The run did not reach them, or was killed in the midst of one: what that had measured is
    read when it goes on.
    """
    if run.get("ended"):
        return {}
    known: dict[tuple[Any, Any], set[str]] = {}
    for job in run.get("jobs") or ():
        known.setdefault((job.get("workload"), job.get("profiler")), set()).update(job.get("cases") or ())
    left: dict[tuple[str, str, tuple[str, ...]], tuple[str, ...]] = {}
    for job in run.get("planned") or ():
        told = known.get((job["workload"], job["profiler"]))
        absent = tuple(case for case in job.get("cases") or () if case not in told) if told is not None else ()
        if told is None or absent:
            key = _cut_off(job, some=bool(absent)), job["workload"], absent
            left[key] = (*left.get(key, ()), job["profiler"])
    return left


def _cut_off(job: Mapping[str, Any], some: bool) -> str:
    """What became of a workload under a profiler; of ``some`` of its cases nobody knows which was the one cut off."""
    if job.get("cut_off"):
        return "cut off, not read yet or not begun" if some else "cut off or not read yet"
    return "not begun"


def fate(group: NotRun, findings: Findings) -> str:
    """What became of the cases, as a sentence begins."""
    if group.status == "interrupted" and _has_times(group, findings):
        return "Not finished"
    if group.status == "interrupted" and group.reason.endswith("before it started"):
        return "Not begun"
    return {"skipped": "Not run", "oom": "Out of memory", "timeout": "Timed out"}.get(
        group.status, group.status.capitalize()
    )


def _has_times(group: NotRun, findings: Findings) -> bool:
    """Whether there are samples of these cases: those that take turns have the ones of the rounds before."""
    points = [point for w in findings.workloads if w.name == group.workload for point in w.points]
    return "plain" in group.profilers and any(point.id in group.cases and point.time for point in points)


def _refused(refusal: Mapping[str, Any]) -> str:
    told = [sentence(refusal.get(key, "")) for key in ("what", "remedy")]
    return f"Not read: {code(refusal.get('source', ''))}: {' '.join(told)}".strip()


def _grouped(expectations: Sequence[Expectation]) -> list[Expectation]:
    """One of each kind of expectation that failed alike, its cases together."""
    groups: dict[tuple[object, ...], list[str]] = {}
    for e in expectations:
        groups.setdefault((e.workload, e.asked, e.found, e.met, e.own_copy), []).append(e.case)
    return [
        Expectation(workload, listed((case_id(case) for case in alike), most=4), asked, found, met, own)  # type: ignore[arg-type]
        for (workload, asked, found, met, own), alike in groups.items()
    ]


def _unmet(e: Expectation) -> str:
    ran = listed(code(family) for family in e.found) or "no attention kernel at all (gemm and softmax)"
    return f"**Failed expectation**: {e.case} asked for {_either(e.asked)} kernels; what ran is {ran}."


def _either(families: str) -> str:
    """``fa2|cutlass_fmha`` in words: outside a table a code span shows the backslash before its pipe."""
    return " or ".join(code(family) for family in families.split("|"))


def expectations_met(findings: Findings) -> str:
    """One sentence on the cases that ran what they asked for; empty where none was asked."""
    met = [e for e in findings.expectations if e.met]
    if not met:
        return ""
    total = len(findings.expectations)
    every = f"All {total} cases" if len(met) == total else f"{len(met)} of {total} cases"
    every = "The one case" if total == 1 else every
    names = f"{every} that name{'s' if total == 1 else ''} a kernel family"
    return f"{names} ran kernels of that family{_own_copy(met, findings)}.{_not_captured(findings)}"


def _not_captured(findings: Findings) -> str:
    """The workloads whose times nothing stands behind, where others' kernels were seen."""
    blind = [w for w in findings.workloads if w.kernel_profiler is None and any(point.time for point in w.points)]
    if not blind:
        return ""
    count = sum(1 for w in blind for point in w.points if point.time)
    of = listed(code(w.name) for w in blind)
    return f" No kernel of {of} ({cases(count)}) was captured, so which ran there is not known."


def _own_copy(met: Iterable[Expectation], findings: Findings) -> str:
    """Who ran FlashAttention-2 as PyTorch builds it: the family alone would read as the package of that name."""
    own = {(e.workload, e.case) for e in met if e.own_copy}
    if not own:
        return ""
    ran = dict.fromkeys(p.variant for w in findings.workloads for p in w.points if (w.name, p.id) in own)
    who = listed(code(variant) for variant in ran if variant)
    return f" ({who} ran PyTorch's own copy of {code('fa2')})" if who else f" (PyTorch's own copy of {code('fa2')})"


def outside(u: Unattributed, alone: bool) -> str:
    """What lies outside every case of a file where set-up and warm-up are no reason."""
    where = "" if alone else f" of {code(u.workload)}"
    said = f"{duration(u.ns)} of {code(u.profiler)}'s kernel time{where} ({percent(u.share)} %) lie outside every case"
    own = "the harness's own: the cache flush between samples, and what counts the clock"
    flush = f"; {percent(u.flush_ns / u.ns)} % of that is {own}"
    return f"{said}{flush if u.flush_ns else ''}.{_by_thread(u)}"


def is_remark(u: Unattributed) -> bool:
    """Whether ``outside`` is worth a line and no doubt."""
    return not u.own_run and u.unexplained < LEAST_UNEXPLAINED


def _by_thread(u: Unattributed) -> str:
    if u.profiler != "ncu" or u.unexplained < LEAST_UNEXPLAINED:
        return ""
    return (
        " ncu knows the ranges of the launching thread alone; where a backward pass is launched by a thread of"
        " autograd's own, its kernels are in none, and ncu's figures of them in no table here."
    )


def set_up(findings: Findings, alone: bool) -> list[str]:
    """What of our own runs lies outside every case, and that it belongs there."""
    told = [
        f"{code(u.profiler)} {duration(u.ns)} ({percent(u.share)} % of its kernel time"
        + ("" if alone else f" of {code(u.workload)}")
        + (f", {percent(u.flush_ns / u.ns)} % of that the flush)" if u.flush_ns else ")")
        for u in findings.unattributed
        if u.own_run
    ]
    what = "set-up, warm-up and the cache flush between samples, which the capture holds too"
    return [f"Kernel time outside every case is {what}: {listed(told, most=12)}."] if told else []


def _unseen(u: Unseen, findings: Findings, alone: bool) -> str:
    where = "" if alone else f" of {code(u.workload)}"
    points = {point.id: point for w in findings.workloads if w.name == u.workload for point in w.points}
    named = listed((case_label(points[case]) if case in points else case_id(case) for case in u.cases), most=3)
    splits = [points[case].split for case in points]
    noun = "operator" if any(split and split.kind == "cpu_op" for split in splits) else "kernel"
    return f"{code(u.profiler)} shows no {noun} of {cases(len(u.cases))}{where} that ran well: {named}."


def coverage(findings: Findings) -> list[str]:
    """What is classified, where `doubts` has no reason to say it: of many workloads in one sentence."""
    fine = [c for c in findings.coverage if c.classified >= ENOUGH and not c.too_low]
    if len(fine) < 2:
        return [coverage_sentence(c, len(findings.workloads) < 2) for c in fine]
    least = min(c.classified for c in fine)
    others = " other" if len(fine) < len(findings.coverage) else ""
    share = percent(least) if percent(least) == percent(1) else f"at least {percent(least)}"
    return [f"Classified: {share} % of the kernel time of each of {len(fine)}{others} workloads."]


def coverage_sentence(c: Coverage, alone: bool) -> str:
    noun = "CPU operators' self time" if c.kind == "cpu_op" else "kernel time"
    where = "" if alone else f" of {code(c.workload)}"
    short = short_names(name for name, _ in c.largest)
    largest = listed(f"{code(short[name])} ({percent(share)} %)" for name, share in c.largest[:3])
    asked = f", **below the {percent(c.minimum)} % asked for**" if c.too_low else ""
    return f"Classified: {percent(c.classified)} % of {noun}{where} ({c.profiler}){asked}" + (
        f"; largest unclassified: {largest}." if largest else "."
    )


def _disagreements(workload: WorkloadFindings, alone: bool) -> list[str]:
    """A sentence for each profiler whose figures differ from the reference's, and nobody knows why."""
    flagged: dict[str, list[tuple[Agreement, float | None]]] = {}
    for agreement in workload.agreements:
        for figure in agreement.figures:
            if figure.flagged:
                flagged.setdefault(figure.profiler, []).append((agreement, figure.difference))
    where = "" if alone else f" of {code(workload.name)}"
    return [
        f"{profiler_named(profiler)} and {code(own[0][0].reference)} differ without a known reason in {len(own)} of"
        f" {cases(len(workload.agreements))}{where}: "
        + listed((f"{case_label(a.point)} ({signed_percent(d)})" for a, d in own), most=3)
        + "."
        for profiler, own in flagged.items()
    ]


def _twice(findings: Findings) -> list[str]:
    """One sentence on the cases that two workloads measured with unlike results."""
    if not findings.twice:
        return []
    pairs: dict[Visit, list[Visit]] = {}
    for pair in findings.twice:
        pairs.setdefault(pair.longer, []).append(pair.shorter)
    told = []
    for longer, others in pairs.items():
        unit = time_unit([longer.ns])
        times = [f"{unit.with_name(visit.ns)} in {code(visit.workload)}" for visit in (longer, *others)]
        told.append(f"{escape(in_words(longer.axes)) or 'their only case'}: {listed(times)}")
    more = f"; and {len(told) - 3} more" if len(told) > 3 else ""
    return [
        f"The same case took unlike times in two workloads, so neither is to be relied on: {'; '.join(told[:3])}{more}."
    ]


def profiler_named(profiler: str) -> str:
    return "The time of calls" if profiler == "plain" else code(profiler)
