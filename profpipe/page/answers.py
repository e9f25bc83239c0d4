"""Findings -> the sentences that answer the question: who is fastest, where, and by how much."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from profpipe.findings import Point, Shape, Split, Swap, Win, WorkloadFindings
from profpipe.page import excerpt
from profpipe.page.markdown import code, escape, listed, slug
from profpipe.page.quantities import count, duration, number, percent, plus_minus, ratio, time_unit
from profpipe.page.wording import PARTS_SAID, SWAP_HEADING, axes, heading, of_what

#: Shapes, cases or names that are level in a sentence; more are counted.
_NAMED = 2

#: Winners, and groups that are level, that the headline names where there are several more.
_WINNERS = 2

#: A median of which less is known is told with its interval, and one without an interval with its samples, where these
#: spread further. Leads of a tenth are common.
_WIDE, _SCATTERED = 0.05, 0.10

#: Misses that are less than so many times as far off are told as one.
_APART = 1.1

#: A winner this many times as far from the reference as the baseline is told to be, though it is within the tolerance.
_FURTHER = 5

#: A lead of which less than this share is left at the host's pace is told with what is left of it.
_SHRUNK = 0.90

#: The host's time to issue a call has no interval. That of one implementation, which no size of its tensors should
#: change, was up to twice as long in one case as in another of the same run on an H200.
_LOST = 0.50
_ROUGH = "The host's times are rough: of one call they differ by up to twice from case to case"

#: Shapes in which another is the fastest in a loop that are told one by one; of more, the one where it is so by most.
_PLACES = 2

#: A time with one of these marks is not the call's own, or wrong: it is not called the fastest in a loop.
_NOT_ITS_OWN = frozenset({"other_process", "waited", "above_peak"})


def answer(workload: WorkloadFindings, alone: bool) -> list[str]:
    """The sentences of the first lines. ``alone``: the report has no other workload, so no heading carries its name."""
    largest = workload.largest
    if largest is None or not any(shape.win for shape in workload.shapes):
        if workload.shapes and all(p.fate == "skipped" for shape in workload.shapes for p in shape.points):
            return ["**Nothing was measured: every case was skipped.**"]
        counted = [f"{n} launches under {code(profiler)}" for profiler, n in workload.launches.items() if n]
        return [f"**No case has a time{'; ' + listed(counted) + ', of unknown duration' if counted else ''}.**"]
    if not _compared(workload):
        return [f"**{_capitalised(_plain_times(workload))}**"]
    judged = [shape for shape in workload.shapes if shape.win]
    said = _one_shape(workload, judged[0]) if len(judged) == 1 else _many_shapes(workload, judged, largest)
    first = [f"**{_capitalised(said)}**", *_less_exact(judged), *_barred(judged)]
    return [*first, *_spread(judged), *_in_a_row(judged), *_paradoxes(workload, largest, alone)]


def _capitalised(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def _compared(workload: WorkloadFindings) -> bool:
    several = any(len(shape.timed) > 1 or shape.baseline is not None for shape in workload.shapes)
    return several and bool(workload.compare)


# --- nothing to compare ----------------------------------------------------------------------------------------------


def _plain_times(workload: WorkloadFindings) -> str:
    points = [point for shape in workload.shapes for point in shape.timed]
    only = points[0]
    if (
        len(points) == 1
        and only.split
        and only.split.iterations is None
        and workload.basis
        and not workload.basis.timed
    ):
        cpu, total = only.split.kind == "cpu_op", only.split.total
        launched = total.calls + workload.untimed.get((only.id, only.split.profiler), 0)
        of_all = f" in the {count(total.calls)} that have a time" if launched > total.calls else " in all"
        return f"{count(launched)} {_noun(launched, cpu)}, {duration(total.ns)}{of_all}{_mostly(only.split)}."
    if len(points) == 1 and not only.shape and only.time:
        return f"{duration(only.time.ns)} {of_what(workload.basis)}{_well_known(only)}."
    if len(points) <= 4:
        times = _times(points)
        told = (f"{axes(p.shape) or code(p.variant) or 'one call'}: {t}" for p, t in zip(points, times, strict=True))
        return f"{'; '.join(told)} {of_what(workload.basis)}."
    ordered = sorted(points, key=lambda p: p.time.ns if p.time else 0.0)
    ends = (ordered[0], ordered[-1])
    low, high = (f"{t} ({axes(p.shape) or code(p.variant)})" for p, t in zip(ends, _times(ends), strict=True))
    return f"{len(points)} cases, from {low} to {high} {of_what(workload.basis)}."


def _times(points: Sequence[Point]) -> list[str]:
    """The times of one sentence, in one unit."""
    unit = time_unit(point.time.ns for point in points if point.time)
    return [unit.with_name(point.time.ns if point.time else None) for point in points]


def _well_known(point: Point) -> str:
    margin = point.time.margin if point.time else None
    return "" if margin is None else f", 95 % interval {plus_minus(margin)}"


def _noun(calls: float, cpu: bool) -> str:
    one = round(calls) == 1
    return f"call{'' if one else 's'} of CPU operators" if cpu else f"kernel launch{'' if one else 'es'}"


def _mostly(split: Split) -> str:
    """The two classes with most time, where more than one kernel was classified."""
    first = sorted(((part.ns, name) for name, part in split.classes.items() if part.ns), reverse=True)
    named = [f"{escape(name)} {percent(ns / split.total.ns)} %" for ns, name in first[:2] if name != "other"]
    return f": {listed(named)} of it" if named else ""


# --- one shape -------------------------------------------------------------------------------------------------------


def _one_shape(workload: WorkloadFindings, shape: Shape) -> str:
    win = shape.win
    assert win is not None and win.best.time is not None
    comma = "," if len(shape.axes) > 1 else ""
    name, place = code(win.best.variant), f"At {axes(shape.axes)}{comma} " if shape.axes else ""
    time = f"{duration(win.best.time.ns)} {of_what(workload.basis)}"
    if win.second is None:
        return f"{place}only {name} has a time{_and_accurate(shape)}: {time}."
    if win.verdict == "void":
        return f"{place}{name} has the lowest time, {time}, but is not called the fastest: {win.why}."
    if win.verdict == "level":
        return f"{place}{level(win)} are level: {time}, {_lead(win, shape)}; their 95 % intervals overlap."
    fastest = "the fastest accurate one" if win.barred else "fastest"
    return f"{place}{name} is {fastest}: {time}, {_lead(win, shape)}."


def level(win: Win) -> str:
    """Those that are level, the lowest time first: three are named, of more the first two."""
    return listed(level_names(win))


def level_names(win: Win) -> list[str]:
    """The same one by one; the last of many says how many more they are."""
    return _few([code(point.variant) for point in win.level])


def _few(names: list[str]) -> list[str]:
    return names if len(names) <= _NAMED + 1 else [*names[:_NAMED], f"{len(names) - _NAMED} more"]


def _and_accurate(*shapes: Shape) -> str:
    """Of the only one left, where others have a time too."""
    return " and is accurate" if any(len(shape.timed) > 1 for shape in shapes) else ""


def _lead(win: Win, shape: Shape) -> str:
    """By how much, over which baseline; a winning baseline is compared with the next."""
    best, second = win.best, win.second
    assert best.time is not None and second is not None and second.time is not None
    ahead = f"{ratio(second.time.ns / best.time.ns)} over the next, {code(second.variant)}"
    if best.is_baseline:
        return f"the baseline itself, {ahead}"
    if best.speedup is None and best.baseline_mark:
        return f"{ahead}; the baseline's own result is {best.baseline_mark}"
    if best.speedup is None:
        return f"{ahead}; the baseline has no time here" if shape.baseline else ahead
    base = f"{code(shape.baseline.variant)} (baseline)" if shape.baseline else "its baseline"
    return f"{ratio(best.speedup)} over {base}"


# --- several shapes --------------------------------------------------------------------------------------------------


def _many_shapes(workload: WorkloadFindings, shapes: Sequence[Shape], largest: Shape) -> str:
    clear = _by_variant(shapes, "clear")
    if len(clear) == 1 and sum(map(len, clear.values())) == len(shapes):
        return _everywhere(workload, next(iter(clear.values())), largest)
    said = []
    if clear:
        of = " of the accurate ones" if any(s.win.barred for s in shapes if s.win) else ""
        said.append(f"Fastest{of}: {listed(_winners(clear, len(shapes)))}.")
    said += list(_levels(shapes))
    said += list(_voided(shapes))
    if only := _by_variant(shapes, "only"):
        alone = [
            f"only {code(name)} has a time{_and_accurate(*own)} {_where(own, len(shapes))}"
            for name, own in only.items()
        ]
        said.append(f"{listed(alone)}.".replace("only", "Only", 1))
    return " ".join(said)


def _winners(clear: Mapping[str, Sequence[Shape]], total: int) -> Iterator[str]:
    """Who wins where and by how much; of many winners the first two, and in how many shapes the others do."""
    named = list(clear.items()) if len(clear) <= _WINNERS + 1 else list(clear.items())[:_WINNERS]
    for name, own in named:
        yield f"{code(name)} {_where(own, total)} ({_leads(own)})"
    if others := [own for name, own in clear.items() if name not in dict(named)]:
        yield f"{len(others)} others in {sum(map(len, others))}"


def _by_variant(shapes: Iterable[Shape], verdict: str) -> dict[str, list[Shape]]:
    """The shapes with that verdict by who is first in them, the one with most first."""
    found: dict[str, list[Shape]] = {}
    for shape in shapes:
        if shape.win and shape.win.verdict == verdict:
            found.setdefault(shape.win.best.variant, []).append(shape)
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))


def _everywhere(workload: WorkloadFindings, shapes: Sequence[Shape], largest: Shape) -> str:
    win = shapes[0].win
    assert win is not None
    name = code(win.best.variant)
    who = f"The baseline, {name}," if win.best.is_baseline else name
    at = next((shape for shape in shapes if shape is largest), shapes[-1])
    assert at.win is not None and at.win.best.time is not None
    there = f"{duration(at.win.best.time.ns)} {of_what(workload.basis)} at {axes(at.axes)}"
    fastest = "the fastest accurate one" if any(shape.win.barred for shape in shapes if shape.win) else "fastest"
    return f"{who} is {fastest} in {_every(len(shapes))}: {_leads(shapes)}; {there} ({ratio(_over(at, shapes))})."


def _every(shapes: int) -> str:
    return "both shapes" if shapes == 2 else f"all {shapes} shapes"


def _leads(shapes: Sequence[Shape]) -> str:
    """``1.34x to 1.61x over `sdpa_flash` (baseline)``, else over the next."""
    leads = [_over(shape, shapes) for shape in shapes]
    low, high = ratio(min(leads)), ratio(max(leads))
    return f"{low if low == high else f'{low} to {high}'} over {_over_what(shapes)}"


def _over_what(shapes: Sequence[Shape]) -> str:
    """What every one of them is ahead of; a baseline of another shape, or of several kinds, has no name here."""
    if not all(map(_has_speedup, shapes)):
        return "the next"
    first, *others = dict.fromkeys(shape.baseline.variant if shape.baseline else "" for shape in shapes)
    return f"{code(first)} (baseline)" if first and not others else "the baseline"


def _has_speedup(shape: Shape) -> bool:
    return bool(shape.win and shape.win.best.speedup is not None and not shape.win.best.is_baseline)


def _over(shape: Shape, among: Sequence[Shape]) -> float:
    """The winner's lead over the baseline; over the next where any of ``among`` has none, or it is the winner."""
    win = shape.win
    assert win is not None and win.best.time is not None
    if win.best.speedup is not None and all(map(_has_speedup, among)):
        return win.best.speedup
    return win.second.time.ns / win.best.time.ns if win.second and win.second.time else 1.0


def _where(shapes: Sequence[Shape], total: int) -> str:
    if len(shapes) == total > 1:
        return f"in {_every(total)}"
    if len(shapes) <= _NAMED:
        return "at " + listed(axes(shape.axes) for shape in shapes)
    return f"in {len(shapes)} of {total} shapes"


def _levels(shapes: Sequence[Shape]) -> Iterator[str]:
    """Those that are level in the same shapes, named as they are ordered in the first of these."""
    groups: dict[frozenset[str], list[tuple[Shape, Win]]] = {}
    for shape in shapes:
        if shape.win and shape.win.verdict == "level":
            groups.setdefault(frozenset(point.variant for point in shape.win.level), []).append((shape, shape.win))
    ordered = sorted(groups.values(), key=lambda own: -len(own))
    named = ordered if len(ordered) <= _WINNERS + 1 else ordered[:_WINNERS]
    for own in named:
        yield f"{level(own[0][1])} are level {_where([shape for shape, _ in own], len(shapes))}."
    if others := ordered[len(named) :]:
        yield f"{len(others)} other groups are level in {sum(map(len, others))} shapes."


def _voided(shapes: Sequence[Shape]) -> Iterator[str]:
    groups: dict[str, dict[str, list[Shape]]] = {}
    for shape in shapes:
        if shape.win and shape.win.verdict == "void":
            groups.setdefault(shape.win.why, {}).setdefault(shape.win.best.variant, []).append(shape)
    if sum(map(len, groups.values())) > (1 if len(shapes) > excerpt.SHAPES else _WINNERS):
        why = f": {next(iter(groups))}" if len(groups) == 1 else "; the table says why"
        many = sum(len(own) for of in groups.values() for own in of.values())
        where = _every(many) if many == len(shapes) else f"{many} of {len(shapes)} shapes"
        yield f"In {where} the lowest time is not called the fastest{why}."
        return
    for why, of in groups.items():
        first, *others = (f"{code(name)} {{}}{_where(own, len(shapes))}" for name, own in of.items())
        named = listed([first.format("has the lowest time "), *(other.format("") for other in others)])
        yield f"{named}, but {'neither is' if others else 'is not'} called the fastest: {why}."


# --- who is not called fast ------------------------------------------------------------------------------------------


def _barred(shapes: Sequence[Shape]) -> Iterator[str]:
    """Those that took less time than the winner and whose result is outside the tolerance, by where they did."""
    found: dict[tuple[str, str], list[tuple[Shape, Point]]] = {}
    for shape in shapes:
        for point in shape.win.barred if shape.win else ():
            if point.accuracy:
                found.setdefault((point.variant, point.accuracy.mark), []).append((shape, point))
    alike: dict[tuple[str, ...], list[list[tuple[Shape, Point]]]] = {}
    for (_, mark), own in found.items():
        where = "" if len(shapes) == 1 else f" {_where([shape for shape, _ in own], len(shapes))}"
        alike.setdefault((where, mark), []).append(own)
    for (where, mark), cases in alike.items():
        yield _barred_alike(cases, where, mark, several=len(shapes) > 1)


def _barred_alike(cases: Sequence[Sequence[tuple[Shape, Point]]], where: str, mark: str, several: bool) -> str:
    """A sentence of all that were barred in the same shapes, with what the first of them misses there."""
    points = [own[0][1] for own in cases]
    names, times, why = [code(point.variant) for point in points], _times(points), _missed(cases[0], several)
    if len(cases) == 1:
        took = "takes less time" if several else f"takes {times[0]}"
        told = f"{names[0]} {took}{where} and is not called faster: its result is"
    else:
        each = names if several else [f"{name} ({time})" for name, time in zip(names, times, strict=True)]
        told = f"{listed(each)} take less time{where} and are not called faster: their results are"
        why = f"{names[0]}: {why}" if why else why
    return f"{told} **{mark}**{f' ({why})' if why else ''}."


def _missed(own: Sequence[tuple[Shape, Point]], several: bool) -> str:
    """What a case misses where it misses most, and of several shapes that are unlike in it also where least."""
    ordered = sorted(own, key=lambda found: _times_over(found[1]))
    (_, least), (_, most) = ends = (ordered[0], ordered[-1])
    low, high = (_miss(shape, point, several) for shape, point in ends)
    return f"least: {low}; most: {high}" if _times_over(most) > _APART * _times_over(least) else high


def _miss(shape: Shape, point: Point, several: bool) -> str:
    why = escape(point.accuracy.why) if point.accuracy else ""
    return f"{why} at {axes(shape.axes)}" if why and several else why


def _times_over(point: Point) -> float:
    """How many times as far off as it may be the result is, by its worst measure. What is no number is so without end.

    Of a cosine it is the distance from 1 that counts.
    """
    misses = point.accuracy.misses if point.accuracy else ()
    pairs = [(1 - m.value, 1 - m.limit) if m.measure.startswith("cosine") else (m.value, m.limit) for m in misses]
    return max((off / allowed if off < math.inf and allowed else math.inf for off, allowed in pairs), default=0.0)


# --- how well the times are known ------------------------------------------------------------------------------------


def _spread(shapes: Sequence[Shape]) -> Iterator[str]:
    """Whether the winner's or the next one's median is poorly known: the worst of them, and in how many shapes."""
    first = [(s, p) for s in shapes if s.win for p in (s.win.best, s.win.second) if p is not None]
    poor = [(shape, point) for shape, point in first if _uncertainty(point)]
    if not poor:
        return
    shape, worst = max(poor, key=lambda pair: _uncertainty(pair[1]))
    place = f" at {axes(shape.axes)}" if len(shapes) > 1 else ""
    touched = len({shape.axes for shape, _ in poor})
    among = f" in {_every(touched) if touched == len(shapes) else f'{touched} of {len(shapes)} shapes'}, most of all"
    others = [point for _, point in poor if point is not worst] if len(shapes) == 1 else []
    told = listed(
        [f"{code(worst.variant)}{place} {_known(worst)}", *(f"{code(p.variant)} {_known(p)}" for p in others)]
    )
    yield f"Mind the spread{among if touched > 1 else ''}: {told}."


def _less_exact(shapes: Sequence[Shape]) -> Iterator[str]:
    """Winners, alone or level, that a tolerance lets pass and that are much further off than the baseline."""
    found: dict[str, tuple[float, str, str]] = {}
    for shape in shapes:
        win, base = shape.win, shape.baseline
        if win is None or base is None or win.verdict == "void":
            continue
        wins = "is among the fastest" if win.verdict == "level" else "wins"
        for point in win.level or (win.best,):
            errors = [one.values.get("error_rel_l1", 0.0) for one in (point, base)]
            if point.accuracy and errors[1] > 0 and errors[0] > _FURTHER * errors[1]:
                told = f"relative L1 {number(errors[0])}, of {code(base.variant)} {number(errors[1])}"
                worst = found.get(point.variant, (0.0, "", ""))
                found[point.variant] = max(worst, (errors[0] / errors[1], wins, told))
    alike: dict[tuple[float, str, str], list[str]] = {}
    for variant, worst in found.items():
        alike.setdefault(worst, []).append(code(variant))
    for (factor, wins, told), names in alike.items():
        times = f"{'up to ' if len(shapes) > 1 else ''}{factor:.0f} times"
        verb = wins if len(names) == 1 else {"wins": "win"}.get(wins, "are among the fastest")
        yield f"{listed(_few(names))} {verb} with {times} the baseline's error ({told})."


def _in_a_row(shapes: Sequence[Shape]) -> Iterator[str]:
    """Where the win is one of calls that were queued ahead: another wins among calls in a loop, or the lead is less."""
    found = [in_row for shape in shapes if (in_row := _paced(shape))]
    if lost := [in_row for in_row in found if in_row.is_lost]:
        yield _overtaken(lost, len(shapes))
    kept = [(in_row, in_row.lead) for in_row in found if in_row.lead is not None and not in_row.is_lost]
    if less := [(in_row, lead) for in_row, lead in kept if lead < _SHRUNK * in_row.queued]:
        less.sort(key=lambda pair: pair[1] / pair[0].queued)
        told = [
            f"{ratio(in_row.queued)} becomes {_roughly(lead)}"
            + (f" ({axes(in_row.shape.axes)})" if len(shapes) > 1 else "")
            for in_row, lead in less
        ]
        by_less = "by less or not at all" if any(lead * _LOST <= 1 for _, lead in less) else "by less"
        yield f"Where calls go at the host's pace the fastest leads {by_less}: {listed(told, most=_NAMED)}. {_ROUGH}."


def _roughly(factor: float) -> str:
    """A ratio of which one of the two times is the host's."""
    return f"about {factor:.1f}x"


@dataclass(frozen=True)
class _Paced:
    """The win of a shape at the host's pace: ``best`` is the winner, ``first`` the fastest in a loop, which may be it.

    ``other`` is what the headline holds the winner against.
    """

    shape: Shape
    best: Point
    first: Point
    other: Point

    @property
    def queued(self) -> float:
        return self.other.time.ns / self.best.time.ns if self.other.time and self.best.time else 1.0

    @property
    def lead(self) -> float | None:
        """In a loop, over ``other``; None where nobody knows how fast the host issues that."""
        other, best = _pace_ns(self.other), _pace_ns(self.best)
        return other / best if other and best else None

    @property
    def of_first(self) -> float:
        """How fast the winner is in a loop, as a share of the fastest there."""
        first, best = _pace_ns(self.first), _pace_ns(self.best)
        return first / best if first and best else 1.0

    @property
    def is_lost(self) -> bool:
        """By more than the host's times are known to."""
        return self.of_first <= _LOST


def _paced(shape: Shape) -> _Paced | None:
    """None where no win depends on the host's pace."""
    win = shape.win
    if win is None or win.verdict != "clear" or "host_bound" not in win.best.marks or _pace_ns(win.best) is None:
        return None
    over_baseline = win.best.speedup is not None and not win.best.is_baseline
    other = shape.baseline if over_baseline and shape.baseline else win.second
    first = min(_in_loops(shape), key=lambda pair: pair[1], default=(win.best, 0.0))[0]
    return _Paced(shape, win.best, first, other) if other and other.time else None


def _in_loops(shape: Shape) -> Iterator[tuple[Point, float]]:
    """Those that may be called the fastest in a loop, with what a call takes there."""
    for point in shape.timed:
        pace = _pace_ns(point)
        if pace is not None and not point.barred and _NOT_ITS_OWN.isdisjoint(point.marks):
            yield point, pace


def _overtaken(lost: Sequence[_Paced], shapes: int) -> str:
    """Who is the fastest in a loop, where that is not the winner: of many shapes, where it is so by most."""
    where = f" in {_every(shapes) if len(lost) == shapes else f'{len(lost)} of {shapes} shapes'}" if shapes > 1 else ""
    if len(lost) <= _PLACES:
        told = listed(_loop_won(in_row, shapes > 1) for in_row in lost)
        return f"In a loop another is the fastest{where}: {told}."
    most = min(lost, key=lambda in_row: in_row.of_first)
    return f"In a loop another is the fastest{where}, by most {_loop_won(most, True)}."


def _loop_won(in_row: _Paced, several: bool) -> str:
    """What a call takes in a loop, and whether that is the host's time or its own. The winner's is the host's."""
    first, best = _pace_ns(in_row.first), _pace_ns(in_row.best)
    unit, names = time_unit([first, best]), [code(point.variant) for point in (in_row.first, in_row.best)]
    place = f" at {axes(in_row.shape.axes)}" if several else ""
    if first == in_row.first.values["issue"]:
        takes = f"the host issues a call in {unit.with_name(first)}, and in {unit.with_name(best)} one of {names[1]}"
    else:
        takes = f"a call takes {unit.with_name(first)}, and the host {unit.with_name(best)} to issue one of {names[1]}"
    return f"{names[0]}{place} ({takes}, which is {_roughly(in_row.of_first)} as fast)"


def _pace_ns(point: Point) -> float | None:
    """What a call takes among others in a loop: its own time, or the host's that issues it; None if that is unknown."""
    issue = point.values.get("issue")
    return max(point.time.ns, issue) if point.time and issue is not None else None


def _uncertainty(point: Point) -> float:
    """How far off its median may be, or half the width of its samples, as a share of it; 0 where that is no worry."""
    time = point.time
    if time is None:
        return 0.0
    if time.margin is not None:
        return time.margin if time.margin > _WIDE else 0.0
    if time.p10 is None or time.p90 is None or not time.ns:
        return 0.0
    half = (time.p90 - time.p10) / 2 / time.ns
    return half if half > _SCATTERED else 0.0


def _known(point: Point) -> str:
    time = point.time
    assert time is not None
    unit = time_unit([time.ns])
    samples = ""
    if time.p10 is not None and time.p90 is not None:
        samples = f"p10 to p90 {unit.of(time.p10)} to {unit.with_name(time.p90)}"
    if time.margin is None:
        return f"has too few samples for a 95 % interval ({samples})"
    interval = f"has a 95 % interval of {plus_minus(time.margin)}"
    return f"{interval} ({samples})" if samples else interval


# --- what a swap eats ------------------------------------------------------------------------------------------------


def _paradoxes(workload: WorkloadFindings, shape: Shape, alone: bool) -> Iterator[str]:
    """A faster attention kernel in a slower call, and what ate the difference.

    Not where several processes share the work: each then has less of the kernel, which is no faster for it.
    """
    if workload.ranks:
        return
    noun = "operator" if any(p.split and p.split.kind == "cpu_op" for p in shape.points) else "kernel"
    anchor = slug(heading(SWAP_HEADING, workload, alone))
    for swap in [swap for swap in shape.swaps if swap.faster_kernel_slower_call][:3]:
        call = swap.measured_call if swap.measured_call is not None else swap.call
        yield (
            f"{code(swap.variant)} has a faster attention {noun} than the baseline ({ratio(swap.attention)})"
            f" and yet a slower call ({ratio(call)}): {_eaten(swap)} ([why](#{anchor}))."
        )


def _eaten(swap: Swap) -> str:
    costs = {part: f"{PARTS_SAID[part]} ({duration(ns)} more)" for part, ns, _ in swap.changes if ns > 0}
    if swap.call > 1 and "copies" in costs:
        return f"its kernels together are no slower, beside them it has {costs['copies']}"
    if swap.call > 1 or not costs:
        return "its kernels together are no slower, the time goes between them"
    return f"{listed(costs.values())} cost what the kernel saves"
