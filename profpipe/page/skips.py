"""Findings -> a line for each reason why cases were not run, with the cases named by what they have in common."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from profpipe.concerns import NotRun
from profpipe.findings import Axes, Findings, Point, WorkloadFindings
from profpipe.page.markdown import code, escape, listed
from profpipe.page.wording import case_id
from profpipe.points import in_words, is_number, shown

#: ``flash-attn is not installed. Install it.``: who, what of it, and what to do.
_STATED = re.compile(
    r"(\S+) (?=(?:is|has|needs|does|takes|refuses|cannot)\b)(?:is )?([^.]*(?:\.\d[^.]*)*)(?:\.\s+(.*)|\.?)$", re.S
)


@dataclass(frozen=True)
class _Skip:
    """Cases of one implementation: ``who`` in words, and the reason in its parts."""

    who: str
    cases: int
    about: str
    what: str
    remedy: str
    under: tuple[str, ...]


def skipped(findings: Findings, alone: bool) -> list[str]:
    """One line for each reason; implementations that were skipped for like reasons share it."""
    lines: dict[tuple[str, str, tuple[str, ...]], list[_Skip]] = {}
    whole: dict[tuple[tuple[str, ...], str], list[str]] = {}
    for group in findings.not_run:
        if group.status != "skipped":
            continue
        if group.whole_job:
            whole.setdefault((group.profilers, group.reason), []).append(group.workload)
            continue
        for skip in _by_variant(group, findings):
            lines.setdefault((group.workload, skip.what, skip.under), []).append(skip)
    shared: dict[tuple[object, ...], dict[str, list[_Skip]]] = {}
    for (workload, *why), skips in lines.items():
        same = (*why, *((skip.who, skip.about, skip.remedy) for skip in skips))
        shared.setdefault(same, {})[workload] = skips
    said = [_whole(why, profilers, of, alone) for (profilers, why), of in whole.items()]
    return said + [_line(of, alone) for of in shared.values()]


def _whole(why: str, profilers: Sequence[str], workloads: Iterable[str], alone: bool) -> str:
    where = "" if alone else f" of {listed(map(code, dict.fromkeys(workloads)))}"
    return f"Not run{where} under {listed(map(code, profilers))}: {_ended(escape(why or 'no reason was recorded'))}"


def _line(of: Mapping[str, Sequence[_Skip]], alone: bool) -> str:
    """Of the workloads whose cases were skipped alike."""
    skips = next(iter(of.values()))
    who = listed(skip.who for skip in skips)
    count = sum(skip.cases for own in of.values() for skip in own)
    where = "" if alone else f" of {listed(map(code, of))}"
    under = f" under {listed(map(code, skips[0].under))}" if skips[0].under else ""
    about = listed(dict.fromkeys(code(skip.about) for skip in skips if skip.about))
    remedies = " ".join(dict.fromkeys(_ended(escape(skip.remedy)) for skip in skips if skip.remedy))
    what = escape(skips[0].what) + (f" ({about})" if about else "")
    return f"Not run{where}: {who}{under} ({count} case{'s' if count != 1 else ''}): {_ended(what)} {remedies}".rstrip()


def _by_variant(group: NotRun, findings: Findings) -> Iterable[_Skip]:
    workload = next((w for w in findings.workloads if w.name == group.workload), None)
    by_variant: dict[str, list[str]] = {}
    variants = {point.id: point.variant for point in workload.points} if workload else {}
    for case in group.cases:
        by_variant.setdefault(variants.get(case, ""), []).append(case)
    under = _only_under(group, findings)
    for variant, cases in by_variant.items():
        about, what, remedy = _taken_apart(group.reason, variant)
        yield _Skip(_named(workload, variant, cases), len(cases), about, what, remedy, under)


def _only_under(group: NotRun, findings: Findings) -> tuple[str, ...]:
    """The profilers of a group, where others did run its cases."""
    workload = next((w for w in findings.workloads if w.name == group.workload), None)
    cases = set(group.cases)
    ran = workload is not None and any(p.id in cases and (p.time or p.split) for p in workload.points)
    return group.profilers if ran else ()


def _taken_apart(reason: str, variant: str) -> tuple[str, str, str]:
    """(whom the reason is about, where that is not the implementation itself; what is wrong; what to do)."""
    flat = " ".join(reason.split()) or "no reason was recorded"
    stated = _STATED.match(flat)
    if stated is None:
        return "", flat, ""
    return "" if stated[1] == variant else stated[1], stated[2].strip(), (stated[3] or "").strip()


def _ended(text: str) -> str:
    return text if not text or text.endswith((".", "!", "?")) else f"{text}."


# --- what cases have in common ---------------------------------------------------------------------------------------


def subject(group: NotRun, findings: Findings) -> str:
    """The cases of a group in words; empty for a whole workload."""
    if group.whole_job:
        return ""
    workload = next((w for w in findings.workloads if w.name == group.workload), None)
    variants = {point.id: point.variant for point in workload.points} if workload else {}
    by_variant: dict[str, list[str]] = {}
    for case in group.cases:
        by_variant.setdefault(variants.get(case, ""), []).append(case)
    return listed((_named(workload, variant, cases) for variant, cases in by_variant.items()), most=6)


def _named(workload: WorkloadFindings | None, variant: str, cases: Sequence[str]) -> str:
    """```sage` with `mode=fwd_bwd` ``: an implementation and the axes that single these cases out among its own."""
    own = [point for point in workload.points if point.variant == variant] if workload else []
    chosen = [point for point in own if point.id in set(cases)]
    if not chosen or len(chosen) < len(cases):
        return listed(map(case_id, cases), most=3)
    name = code(variant)
    if len(chosen) == len(own):
        return name or "every case"
    common = _common(chosen)
    if common and len([p for p in own if set(common) <= set(p.shape)]) == len(chosen):
        return f"{name} {_at(common)}" if name else escape(in_words(common))
    if spanned := _spanned(chosen, own):
        return f"{name} {spanned}".strip()
    if not name:
        return listed((escape(in_words(point.shape)) for point in chosen), most=3)
    return f"{name} {listed((_at(point.shape) for point in chosen), most=3)}"


def _at(axes: Axes) -> str:
    """``with `mode=fwd` at seqlen 512``: only numbers read as words beside the name of their axis."""
    words = listed(code(f"{axis}={shown(value)}") for axis, value in axes if not is_number(value))
    numbers = escape(in_words(tuple(pair for pair in axes if is_number(pair[1]))))
    return " ".join(part for part in (words and f"with {words}", numbers and f"at {numbers}") if part)


def _spanned(chosen: Sequence[Point], own: Sequence[Point]) -> str:
    """```at seqlen 32768 and 65536``: the values that single them out, where they are all of these values' cases."""
    if len(chosen) < 4:
        return ""
    values = _values(chosen)
    told = {axis: here for axis, here in values.items() if here != _values(own)[axis]}
    among = [p for p in own if all(shown(value) in values.get(axis, ()) for axis, value in p.shape)]
    if len(among) != len(chosen) or not told:
        return ""
    numbers = {axis for axis, value in chosen[0].shape if is_number(value)}
    words = listed(f"{code(axis)} {listed(map(code, here))}" for axis, here in told.items() if axis not in numbers)
    sizes = listed(f"{escape(axis)} {listed(map(escape, here))}" for axis, here in told.items() if axis in numbers)
    return " ".join(part for part in (words and f"with {words}", sizes and f"at {sizes}") if part)


def _values(points: Sequence[Point]) -> dict[str, tuple[str, ...]]:
    """Each axis with the values that ``points`` have on it."""
    found: dict[str, dict[str, None]] = {}
    for point in points:
        for axis, value in point.shape:
            found.setdefault(axis, {})[shown(value)] = None
    return {axis: tuple(values) for axis, values in found.items()}


def _common(points: Sequence[Point]) -> Axes:
    first = points[0].shape
    return tuple(pair for pair in first if all(_has(point, pair) for point in points))


def _has(point: Point, pair: tuple[str, object]) -> bool:
    return any(axis == pair[0] and shown(value) == shown(pair[1]) for axis, value in point.shape)
