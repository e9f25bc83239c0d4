"""The first sentences of the page: who is fastest, where and by how much, and what a reader must know of it."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from profpipe.analysis.cases import in_words
from profpipe.analysis.costs import find_costs
from profpipe.analysis.findings import CaseResult, DoubtCause, Shape, Win, WinVerdict, WorkloadFindings
from profpipe.analysis.grouping import grouped
from profpipe.analysis.kernels import SwitchCost
from profpipe.job import Status
from profpipe.measure.flags import Flag
from profpipe.report import document as doc, selection
from profpipe.report.document import Code, Text
from profpipe.report.labels import (
    PARTS_SAID,
    capitalise,
    case_text,
    duration,
    fill,
    literal,
    margin,
    names,
    plural,
    ratio,
    write_what,
)
from profpipe.report.sections import memory, recording, roofline, step_times, steps, times, waits
from profpipe.report.sections.times import MOST_NAMES, doubt_of, tied_names
from profpipe.report.units import Unit, number, percent, ratio as write_ratio, size_unit, step_unit, time_unit
from profpipe.results.schema import StepRule

#: Workloads whose answers the page begins with; of more, each stands in the section of its workload.
MOST_ANSWERS = 8

#: Shapes up to which the headline names the winner of each; of more, it counts those of the most frequent one.
_FEW_SHAPES = 2

#: What a shape without a clear winner is.
_OTHERWISE: Mapping[WinVerdict, tuple[str, str]] = {
    WinVerdict.TIE: ("is tied", "are tied"),
    WinVerdict.INCONCLUSIVE: ("is in doubt", "are in doubt"),
    WinVerdict.UNOPPOSED: ("has the time of one case alone", "have the time of one case alone"),
}

#: Groups of tied cases, and doubts, that the headline names; of more, it counts the others.
_MOST_NAMED = 2

#: A median is uncertain with a wider 95 % interval; without one, with a wider p10 to p90. Leads of 10 % are common.
_WIDE_INTERVAL, _WIDE_SPREAD = 0.05, 0.10

#: The mean of steps with a wider 95 % interval is no answer.
_NO_MEAN = 0.50

#: The part of a step that explains this share of a difference is named.
_EXPLAINS = 0.5
#: The difference of the recorded steps is that of the times to this share.
_LIKE_TIMES = 0.05

#: A winner with an error this many times the baseline's is reported, although the tolerance allows it.
_LARGER_ERROR = 5

#: Fewer steady steps stand beside the number of all steps.
_FEWEST_STEPS = 5

#: Cases whose times the headline names; of more, the lowest and the highest.
_MOST_TIMES = 4
#: Faster kernels in slower calls that are named.
_MOST_SLOWER_CALLS = 3


def headline(
    workload: WorkloadFindings, picture: doc.Block | None = None, title: str = "", has_answer: bool = True
) -> doc.Section:
    """Return the answer to the workload's question, its picture, then remarks on it; of several, also the winners."""
    strong = doc.Paragraph(doc.Strong(answer(workload))) if has_answer else None
    winners = {(shape.win.verdict, shape.win.best.variant) for shape in workload.shapes if shape.win}
    grid = times.winner_grid(workload) if title and len(winners) > 1 else None
    doubts = _explain_doubts(workload.shapes) if grid else ()
    bullets = doc.Bullets((*doubts, *_remarks(workload)), drawn=_drawn(workload))
    blocks = (strong, grid, picture, bullets)
    return doc.make_section("headline", title, blocks, workload=workload.name)


def answers(workloads: Sequence[WorkloadFindings]) -> doc.Section:
    """Return the answer of each of several workloads, of the first ``MOST_ANSWERS``."""
    sentences: list[doc.Text] = [
        fill("{}: {}", Code(workload.name), doc.Strong(answer(workload))) for workload in workloads[:MOST_ANSWERS]
    ]
    if (more := len(workloads) - MOST_ANSWERS) > 0:
        sentences.append(f"{plural(more, 'more workload')}: each answer stands above its table of times.")
    return doc.make_section("answers", "", [doc.Bullets(tuple(sentences))] if len(workloads) > 1 else [])


def answer(workload: WorkloadFindings) -> doc.Text:
    """Return one or two sentences. Of parts of the work and the whole, such as a step, they are of the whole."""
    judged = [shape for shape in workload.wholes if shape.win]
    if workload.largest is None or not judged:
        if held := next(memory.remarks(workload), ""):
            return held
        if workload.cases and all(case.status == Status.SKIPPED for case in workload.cases):
            return "Nothing was measured: every case was skipped."
        if only_copies := recording.name_copies(workload):
            return only_copies
        launches = [fill(f"{n} launches under {{}}", doc.Code(name)) for name, n in workload.launches.items() if n]
        return fill("No case has a time{}.", fill("; {}, of unknown duration", doc.join(launches)) if launches else "")
    if kernels := recording.compared_kernels(workload):
        return fill("{} {}", kernels, _plain_times(workload))
    if not _has_comparison(workload):
        # The remarks on a single program follow its answer.
        peak = tuple(memory.name_peak(workload)) if len(workload.cases) > 1 else ()
        times = () if peak and len(workload.cases) > _MOST_TIMES else (_plain_times(workload),)
        return doc.join([*peak, *times], separator=" ", last=" ")
    is_wall = workload.timed_quantity == "wall"
    if is_wall and all(case.time.n == 1 for case in workload.cases if case.time):
        advice = "{} One process of each case names no winner; {} starts five of each."
        return fill(advice, _plain_times(workload), doc.Code("repeats: 5"))
    first, *others = judged
    if first.win and not others:
        sentences = [_one_shape(workload, first, first.win), _explain_loser(workload, first, first.win)]
        return doc.join([sentence for sentence in sentences if sentence], separator=" ", last=" ")
    if workload.whole is None:
        return _many_shapes(workload, judged)
    of_whole = f"Only {literal(workload.whole[1])} is compared."
    return fill(f"{{}} {of_whole}", _many_shapes(workload, judged))


def _remarks(workload: WorkloadFindings) -> Iterator[doc.Text]:
    judged = [shape for shape in workload.shapes if shape.win]
    yield from _describe_steps(workload)
    yield from recording.remarks(workload)
    # Without a time the answer is the first of them.
    said = doc.plain(answer(workload))
    yield from (remark for remark in memory.remarks(workload) if doc.plain(remark) not in said)
    if workload.largest is None or not judged or not _has_comparison(workload):
        return
    in_loop = list(_compare_plain_loop(judged))
    if not in_loop or workload.largest.fastest is None or Flag.HOST_BOUND not in workload.largest.fastest.flags:
        yield from roofline.summary(workload)
    yield from _lowest_memory(workload.largest)
    yield from _larger_errors(judged)
    yield from _disqualified(judged)
    yield from _uncertain_times(judged)
    yield from in_loop
    # The kernels of several processes are smaller parts of the work, not faster kernels.
    if not workload.ranks:
        slower = [cost for cost in workload.largest.switch_costs if cost.faster_kernel_slower_call]
        yield from (_slower_call(cost, workload.largest) for cost in slower[:_MOST_SLOWER_CALLS])


def _describe_steps(workload: WorkloadFindings) -> Iterator[doc.Text]:
    """Yield where a step of the best case of the largest shape goes; of a single case also its rate and memory."""
    win = workload.largest.win if workload.largest else None
    if win is None or not workload.steps or workload.launch_times:
        return
    if len(workload.cases) == 1:
        rate, peak = times.items_per_s(workload, win.best), times.peak_memory(workload, win.best)
        facts: list[doc.Text] = [f"{number(rate)} {workload.steps.item_name} per second"] if rate else []
        facts += [step_times.describe_requests(workload)] if step_times.describe_requests(workload) else []
        facts += [fill("{} J a {}", number(joules), of) for joules, of in step_times.energies(workload)]
        facts += [fill("MFU {} %", percent(cost.mfu)) for cost in find_costs(workload) if cost.mfu]
        facts += [f"peak memory {size_unit([peak]).with_name(peak)}"] if peak else []
        if facts:
            yield _capitalise(fill("{}.", doc.join(facts)))
    yield from steps.remarks(workload, win.best)
    yield from waits.remarks(workload, win.best)
    case_steps = workload.steps.of(win.best.id)
    if case_steps and len(workload.cases) > 1:
        yield from steps.whole_program(
            case_steps, workload.time_source.profiler if workload.time_source else case_steps.profiler
        )
        why, share = steps.waiting(case_steps)
        if why:
            yield _capitalise(
                fill("{} ({} of {}).", why, share, steps.other_step(workload, win.best, case_steps) or "its step")
            )


def _drawn(workload: WorkloadFindings) -> tuple[doc.Text, ...]:
    """Return the sentence that says what the bar of a lone case shows: where a step goes."""
    remarks = steps.remarks(workload, workload.cases[0]) if len(workload.cases) == 1 else iter(())
    return tuple(itertools.islice(remarks, 1))


def _capitalise(text: doc.Text) -> doc.Text:
    first, *others = doc.inlines(text)
    return (capitalise(first), *others) if isinstance(first, str) else text


def _has_comparison(workload: WorkloadFindings) -> bool:
    several = any(len(shape.timed) > 1 or shape.baseline is not None for shape in workload.shapes)
    return several and bool(workload.compare)


# --- nothing to compare ----------------------------------------------------------------------------------------------


def _plain_times(workload: WorkloadFindings) -> doc.Text:
    """Return the times of a workload that compares nothing."""
    cases = [case for shape in workload.shapes for case in shape.timed]
    first, unit, per = cases[0], _unit(workload, [case.ns for case in cases]), write_what(workload.time_source)
    is_one, is_timed = len(cases) == 1, workload.time_source is None or workload.time_source.is_timed
    if is_one and not is_timed and first.breakdown and first.breakdown.iterations is None:
        return recording.answer(workload, first) or recording.sum_of_kernels(workload, first, first.breakdown)
    if is_one and workload.timed_quantity == "step":
        return _one_program(workload, first)
    if is_one and not first.shape and first.time:
        interval = "" if first.time.margin is None else fill(", 95 % interval {}", margin(first.time.margin))
        return fill("{} {}{}.", duration(first.ns), per, interval)
    if len(cases) <= _MOST_TIMES:
        times = [fill("{}: {}", case_text(case), duration(case.ns, unit)) for case in cases]
        return fill("{} {}.", doc.join(times, separator="; ", last="; "), per)
    ends = (pick(cases, key=lambda case: case.ns or 0.0) for pick in (min, max))
    named = (part for case in ends for part in (duration(case.ns), case_text(case)))
    return fill(f"{len(cases)} cases, from {{}} ({{}}) to {{}} ({{}}) {per}.", *named)


def _unit(workload: WorkloadFindings, times_ns: Sequence[float | None]) -> Unit:
    is_step = workload.timed_quantity == "step"
    return step_unit(times_ns) if is_step else time_unit(times_ns)


def _duration(workload: WorkloadFindings, ns: float | None) -> doc.Amount:
    return duration(ns, _unit(workload, [ns]))


def _one_program(workload: WorkloadFindings, case: CaseResult) -> doc.Text:
    """Return the time of a steady step of the only case, its interval, the number of steps, and who waits for whom."""
    assert case.time is not None and workload.time_source is not None
    case_steps, n = workload.steps.of(case.id), case.time.n
    unit, what = steps.name_step(case_steps, workload.time_source.profiler) if case_steps else ("step", "A step")
    parts: list[doc.Text] = ["mean"] if case_steps and case_steps.uneven else []
    parts += [] if case.time.margin is None else [fill("95 % interval {}", margin(case.time.margin))]
    of = f" of {case.time.processes} processes" if case.time.processes > 1 else ""
    if n:
        # So few steps have no interval.
        all_steps = case_steps.all_steps(workload.time_source.profiler) if case_steps and n < _FEWEST_STEPS else None
        parts.append(f"{n} of {plural(all_steps, unit)}{of}" if all_steps else f"{plural(n, f'steady {unit}')}{of}")
    parts += [steps.whose(case_steps)] if case_steps and len(case_steps.ranks) > 1 else []
    parts += [] if workload.time_source.profiler == "plain" else [f"under {workload.time_source.profiler}"]
    parts += ["found by launches that recur"] if case_steps and case_steps.rule is StepRule.PATTERN else []
    if case_steps and case_steps.uneven and (case.time.margin or 0.0) > _NO_MEAN:
        walls = case_steps.steady_walls(workload.time_source.profiler)
        ends = [doc.Amount(ns, step_unit([walls.median()])) for ns in (walls.median(), walls.max())]
        time = fill("Half of the steps take up to {}, the longest {} ({})", *ends, doc.join(parts[2:], last=", "))
    else:
        time = fill("{} takes {} ({})", what, _duration(workload, case.time.ns), doc.join(parts, last=", "))
    more = [waiting] if (waiting := waits.headline(workload, case)) else []
    more += [*steps.whole_program(case_steps, workload.time_source.profiler)] if case_steps else []
    is_named = bool(case_steps and waits.slowest_rank(workload, case_steps))
    why, share = steps.waiting(case_steps, is_named) if case_steps else ("", "")
    if case_steps and why:
        mean = f"the step, the mean of {len(case_steps.ranks)} {steps.peers(case_steps)}"
        whole = steps.other_step(workload, case, case_steps) or mean
        time = fill("{}, {} ({} of {})", time, why, share, whole)
    return doc.join([fill("{}.", time), *more], separator=" ", last=" ")


# --- one shape -------------------------------------------------------------------------------------------------------


def _one_shape(workload: WorkloadFindings, shape: Shape, win: Win) -> doc.Text:
    name = doc.Code(win.best.variant)
    place = f"At {literal(in_words(shape.axes))}{',' if len(shape.axes) > 1 else ''} " if shape.axes else ""
    time = fill(f"{{}} {write_what(workload.time_source)}", _duration(workload, win.best.ns))
    match win.verdict:
        case WinVerdict.UNOPPOSED:
            if len(shape.cases) == 1:
                return fill(f"{place}{{}} takes {{}}.", name, time)
            only = "only" if place else "Only"
            return fill(f"{place}{only} {{}} has a time{_and_is_accurate(shape)}: {{}}.", name, time)
        case WinVerdict.INCONCLUSIVE:
            # No number says how much faster an inaccurate one is.
            second = win.second if win.doubts[0].cause is not DoubtCause.INACCURATE else None
            over = fill(", {} over the next, {}", ratio(win.lead), Code(second.variant)) if second else ""
            lowest = f"{place}{{}} has the lowest time, {{}}{{}}. It is not reported as the fastest: {{}}."
            return fill(lowest, name, time, over, doubt_of(win))
        case WinVerdict.TIE:
            tie = f"{place}{{}} are tied: {{}}, {{}}; their 95 % intervals overlap."
            return fill(tie, tied_names(win, len(shape.timed) if place else 0), time, _lead(win, shape))
    return fill(f"{place}{{}} is {_fastest([shape])}: {{}}, {{}}.", name, time, _lead(win, shape))


def _explain_loser(workload: WorkloadFindings, shape: Shape, win: Win) -> doc.Text:
    """Say in which part of a step, or two, the baseline or the next case is slower; empty where less than half is."""
    slower = win.second if win.best.is_baseline else shape.baseline or win.second
    if win.verdict is not WinVerdict.CLEAR or slower is None:
        return ""
    both = [case_steps for case in (win.best, slower) if (case_steps := workload.steps.of(case.id))]
    pairs = [(of.parts, of.parts_without_profiler) for of in both]
    # Where it is unknown what the profiler adds to one of them, both are as recorded.
    is_recorded = any(recorded is without for recorded, without in pairs)
    parts = [of for pair in pairs if (of := pair[not is_recorded])]
    if len(parts) < 2 or slower.ns is None or win.best.ns is None:
        return ""
    (first, second), waiting = parts, steps.waiting_name(both[1])
    more_ns, longer_ns = second.wall_ns - first.wall_ns, slower.ns - win.best.ns
    named = sorted(steps.differences(first, second, waiting).items(), key=lambda pair: -pair[1])[:2]
    named = named[: 1 if named[0][1] >= _EXPLAINS * more_ns else 2]
    explained_ns = sum(ns for _, ns in named)
    if more_ns <= 0 or explained_ns < _EXPLAINS * more_ns or named[-1][1] <= 0:
        return ""
    under = f"Under {both[1].profiler} " if is_recorded and "plain" in both[1].times else ""
    longer_ns = more_ns if under else longer_ns
    # Of uneven steps the parts are those of a few, and so is the picture below.
    unit, is_like = step_unit([longer_ns]), abs(more_ns - longer_ns) <= _LIKE_TIMES * longer_ns
    where: list[doc.Text] = []
    for name, ns in named:
        # The causes are without the profiler.
        cause = waits.explain_idle(workload, slower, ns) if name.startswith("idle") and not under else ""
        part = fill("idle time, above all waiting for {}", cause) if cause else name
        share = ns / max(more_ns, explained_ns)
        if is_like:
            whole = "" if where else " of it"
            where.append(fill(f"{{}}{whole} in {{}}", duration(share * longer_ns, unit), part))
        else:
            whole = "" if where else " of the difference"
            where.append(fill(f"{{}} %{whole} is {{}}", percent(share), part))
    longer = fill(" {} longer,", duration(longer_ns, unit)) if is_like else " longer:"
    return fill(f"{under}{{}} takes{{}} {{}}.", doc.Code(slower.variant), longer, doc.join(where, last=", and "))


def _fastest(shapes: Iterable[Shape]) -> str:
    return "the fastest accurate one" if any(s.win.disqualified for s in shapes if s.win) else "fastest"


def _and_is_accurate(*shapes: Shape) -> str:
    return " and is accurate" if any(len(shape.timed) > 1 for shape in shapes) else ""


def _lead(win: Win, shape: Shape) -> doc.Text:
    """Return the speed-up over the baseline; without one, over the next case."""
    best = win.best
    ahead = fill("{} over the next, {}", ratio(win.lead), doc.Code(win.second.variant if win.second else ""))
    if best.is_baseline:
        return fill("the baseline, {}", ahead)
    if best.baseline_flag == Flag.UNLIKE_NODES:
        return fill("{}; the baseline ran on an unlike node", ahead)
    if best.speedup is None and best.baseline_flag:
        return fill(f"{{}}; the baseline's own result is {best.baseline_flag}", ahead)
    if best.speedup is None:
        return fill("{}; the baseline has no time here", ahead) if shape.baseline else ahead
    over = fill("{} (baseline)", doc.Code(shape.baseline.variant)) if shape.baseline else "its baseline"
    return fill("{} over {}", ratio(best.speedup), over)


# --- several shapes --------------------------------------------------------------------------------------------------


def _many_shapes(workload: WorkloadFindings, shapes: Sequence[Shape]) -> doc.Text:
    clear = _group_by_variant(shapes, WinVerdict.CLEAR)
    if len(clear) == 1 and sum(map(len, clear.values())) == len(shapes):
        return _everywhere(workload, shapes)
    if clear and len(shapes) > _FEW_SHAPES:
        return _count_winners(shapes, clear)
    parts: list[doc.Text] = []
    if clear:
        among = " of the accurate ones" if any(shape.win.disqualified for shape in shapes if shape.win) else ""
        winners: list[doc.Text] = []
        is_named = False
        for name, won_shapes in clear.items():
            lead = _leads(won_shapes, is_named=is_named)
            winners.append(fill("{} {} ({})", doc.Code(name), where(won_shapes, len(shapes)), lead))
            is_named = is_named or all(map(_has_speedup, won_shapes))
        parts.append(fill(f"Fastest{among}: {{}}.", doc.join(winners)))
    parts += [*_ties(shapes), *_inconclusive(shapes)]
    unopposed: list[doc.Text] = []
    for name, unopposed_shapes in _group_by_variant(shapes, WinVerdict.UNOPPOSED).items():
        # Nothing was lost where no other case was asked for.
        is_lone = all(len(shape.cases) == 1 for shape in unopposed_shapes)
        words = (
            "{} is the only case {}" if is_lone else f"only {{}} has a time{_and_is_accurate(*unopposed_shapes)} {{}}"
        )
        unopposed.append(fill(words, doc.Code(name), where(unopposed_shapes, len(shapes))))
    if unopposed:
        parts.append(fill("{}.", doc.join(unopposed)))
    return doc.join(map(_capitalise, parts), separator=" ", last=" ")


def _count_winners(shapes: Sequence[Shape], clear: Mapping[str, Sequence[Shape]]) -> doc.Text:
    """Return in how many shapes the most frequent winner is fastest, which others are, and what the rest is."""
    (name, won_shapes), *others = clear.items()
    count = f"{{}} is {_fastest(shapes)} in {len(won_shapes)} of {len(shapes)} shapes ({{}})"
    winners: list[doc.Text] = [fill(count, Code(name), _leads(won_shapes))]
    most = len(others) if len(others) <= _MOST_NAMED + 1 else _MOST_NAMED
    for other, won in others[:most]:
        place = f" ({in_words(won[0].axes)})" if len(won) == 1 else ""
        winners.append(fill(f"{{}} in {len(won)}{place}", Code(other)))
    if more := [won for _, won in others[most:]]:
        winners.append(f"{len(more)} others in {sum(map(len, more))}")
    verdicts = Counter(shape.win.verdict for shape in shapes if shape.win)
    rest: list[doc.Text] = [f"{n} {words[n > 1]}" for verdict, words in _OTHERWISE.items() if (n := verdicts[verdict])]
    tied = [shape for shape in shapes if shape.win and shape.win.verdict is WinVerdict.TIE]
    groups = {frozenset(case.variant for case in shape.win.tied) for shape in tied if shape.win}
    if tied and tied[0].win:
        # A lead over the baseline contradicts a tie with it.
        is_ahead = not any(case.is_baseline for shape in tied if shape.win for case in shape.win.tied)
        lead = fill(" ({})", _leads(tied, is_named=True)) if is_ahead and all(map(_has_speedup, tied)) else ""
        named = fill(f"{{}} are tied in {len(tied)}", tied_names(tied[0].win, _count_cases(tied)))
        names = named if len(groups) == 1 else rest[0]
        rest[0] = fill("{}{}", names, lead)
    return fill("{}{}.", doc.join(winners), fill("; {}", doc.join(rest)) if rest else "")


def _count_cases(shapes: Sequence[Shape]) -> int:
    """Return how many cases a shape has; 0 where they differ."""
    first, *others = {len(shape.timed) for shape in shapes}
    return 0 if others else first


def _group_by_variant(shapes: Iterable[Shape], verdict: WinVerdict) -> dict[str, list[Shape]]:
    """Return the shapes with ``verdict`` by their best variant, the most frequent variant first."""
    shapes_by_variant = grouped(
        (shape.win.best.variant, shape) for shape in shapes if shape.win and shape.win.verdict == verdict
    )
    return dict(sorted(shapes_by_variant.items(), key=lambda item: -len(item[1])))


def _everywhere(workload: WorkloadFindings, shapes: Sequence[Shape]) -> doc.Text:
    """Return the sentence for one winner of all shapes, with its time in the largest."""
    at = next((shape for shape in shapes if shape is workload.largest), shapes[-1])
    assert at.win is not None
    best = at.win.best
    who = fill("The baseline, {},", doc.Code(best.variant)) if best.is_baseline else doc.Code(best.variant)
    per = write_what(workload.time_source)
    sentence = f"{{}} is {_fastest(shapes)} in {name_shapes(len(shapes))}: {{}}; {{}} {per} at {{}} ({{}})."
    return fill(
        sentence, who, _leads(shapes), _duration(workload, best.ns), in_words(at.axes), ratio(_over(at, shapes))
    )


def _leads(shapes: Sequence[Shape], *, is_named: bool = False) -> doc.Text:
    """Return ``1.34x to 1.61x over `sdpa_flash` (baseline)``; without a baseline, over the next case.

    ``is_named``: the sentence has named the baseline before.
    """
    leads = [_over(shape, shapes) for shape in shapes]
    low, high = ratio(min(leads)), ratio(max(leads))
    span = fill("{} to {}", low, high) if write_ratio(min(leads)) != write_ratio(max(leads)) else low
    if not all(map(_has_speedup, shapes)):
        return fill("{} over the next", span)
    if is_named:
        return span
    first, *others = dict.fromkeys(shape.baseline.variant if shape.baseline else "" for shape in shapes)
    baseline = fill("{} (baseline)", doc.Code(first)) if first and not others else "the baseline"
    return fill("{} over {}", span, baseline)


def _has_speedup(shape: Shape) -> bool:
    return bool(shape.win and shape.win.best.speedup is not None and not shape.win.best.is_baseline)


def _over(shape: Shape, among: Sequence[Shape]) -> float:
    """Return the winner's lead over the baseline; over the next where any of ``among`` has no such lead."""
    assert shape.win is not None
    speedup = shape.win.best.speedup
    return speedup if speedup is not None and all(map(_has_speedup, among)) else shape.win.lead


def name_shapes(shapes: int) -> str:
    return "both shapes" if shapes == 2 else f"all {shapes} shapes"


def where(shapes: Sequence[Shape], total: int) -> str:
    if len(shapes) == total > 1:
        return f"in {name_shapes(total)}"
    if len(shapes) <= MOST_NAMES:
        return f"at {' and '.join(in_words(shape.axes) for shape in shapes)}"
    return f"in {len(shapes)} of {total} shapes"


def _ties(shapes: Sequence[Shape]) -> Iterator[doc.Text]:
    wins = [(shape, shape.win) for shape in shapes if shape.win and shape.win.verdict == WinVerdict.TIE]
    groups = grouped((frozenset(case.variant for case in win.tied), (shape, win)) for shape, win in wins)
    ordered = sorted(groups.values(), key=lambda group: -len(group))
    named = ordered if len(ordered) <= _MOST_NAMED + 1 else ordered[:_MOST_NAMED]
    for group in named:
        tied = [shape for shape, _ in group]
        place = where(tied, len(shapes))
        comma = "," if "," in place else ""
        yield fill(f"{{}}{comma} {{}} are tied.", capitalise(place), tied_names(group[0][1], _count_cases(tied)))
    if others := ordered[len(named) :]:
        yield f"{len(others)} other groups are tied in {sum(map(len, others))} shapes."


def _inconclusive(shapes: Sequence[Shape]) -> Iterator[doc.Text]:
    """Say where the lowest time is not reported as the fastest; of more than two shapes, only how many they are."""
    undecided = [(shape, shape.win) for shape in shapes if shape.win and shape.win.verdict == WinVerdict.INCONCLUSIVE]
    if len(undecided) > (1 if len(shapes) > selection.SHAPES else _MOST_NAMED):
        place = capitalise(where([shape for shape, _ in undecided], len(shapes)))
        yield fill("{} the lowest time is not reported as the fastest; the table says why.", place)
        return
    for shape, win in undecided:
        place = literal(in_words(shape.axes))
        sentence = f"{{}} has the lowest time at {place}. It is not reported as the fastest: {{}}."
        yield fill(sentence, doc.Code(win.best.variant), doubt_of(win))


def _explain_doubts(shapes: Sequence[Shape]) -> Iterator[doc.Text]:
    """Yield why the first winners in doubt are, and how many others."""
    undecided = [(shape, shape.win) for shape in shapes if shape.win and shape.win.verdict is WinVerdict.INCONCLUSIVE]
    for shape, win in undecided[:_MOST_NAMED]:
        yield fill(f"In doubt at {literal(in_words(shape.axes))}: {{}}.", doubt_of(win))
    if (more := len(undecided) - _MOST_NAMED) > 0:
        yield fill(f"{plural(more, 'other winner')} in doubt: {{}} say why.", doc.Link("the times", "#times"))


# --- accuracy --------------------------------------------------------------------------------------------------------


def _disqualified(shapes: Sequence[Shape]) -> Iterator[doc.Text]:
    """Name the cases that took less time than the winner but have no accurate result, and the largest miss."""
    missed = [(shape, case) for shape in shapes if shape.win for case in shape.win.disqualified]
    by_mark = grouped((case.accuracy.flag, (case.variant, (shape, case))) for shape, case in missed if case.accuracy)
    for mark, named in by_mark.items():
        by_variant = grouped(named)
        pairs = [pair for variant_pairs in by_variant.values() for pair in variant_pairs]
        shape, case = max(pairs, key=lambda pair: _excess(pair[1]))
        why = case.accuracy.why if case.accuracy else ""
        place = f" at {in_words(shape.axes)}" if len(shapes) > 1 else ""
        places = list({s.axes: s for s, _ in pairs}.values())
        among = f" {literal(where(places, len(shapes)))}" if len(shapes) > 1 else ""
        takes, are = ("takes", "is") if len(by_variant) == 1 else ("take", "are")
        most = fill(" ({}{}: {})", doc.Code(case.variant), place, why) if why else ""
        sentence = f"{{}} {takes} less time than the winner{among}, but {are} {{}}{{}}."
        yield fill(sentence, names(list(by_variant), MOST_NAMES + 1), doc.Strong(mark), most)


def _excess(case: CaseResult) -> float:
    """Return how many times its limit the worst error is; of a cosine, its distance from 1 counts."""
    misses = case.accuracy.misses if case.accuracy else ()
    pairs = [(1 - value, 1 - limit) if m.startswith("cosine") else (value, limit) for m, value, limit in misses]
    return max((error / limit if error < math.inf and limit else math.inf for error, limit in pairs), default=0.0)


def _larger_errors(shapes: Sequence[Shape]) -> Iterator[doc.Text]:
    """Name winners, alone or tied, whose error is within the tolerance and much larger than the baseline's."""
    worst: dict[str, tuple[float, float, float, str]] = {}
    for shape in shapes:
        win, base = shape.win, shape.baseline
        if win is None or base is None or win.verdict == WinVerdict.INCONCLUSIVE:
            continue
        for case in win.tied or (win.best,):
            error, other = (one.values.get("error_rel_l1", 0.0) for one in (case, base))
            if case.accuracy and other > 0 and error > _LARGER_ERROR * other:
                comparison = (error / other, error, other, base.variant)
                worst[case.variant] = max(worst.get(case.variant, comparison), comparison)
    same = grouped((comparison, variant) for variant, comparison in worst.items())
    for (factor, error, other, base_name), variants in same.items():
        has = "has" if len(variants) == 1 else "have"
        up_to = "up to " if len(shapes) > 1 else ""
        sentence = f"{{}} {has} {up_to}{factor:.0f} times the baseline's error (relative L1 {number(error)}, of {{}} "
        yield fill(sentence + f"{number(other)}).", names(variants, MOST_NAMES + 1), doc.Code(base_name))


# --- memory ----------------------------------------------------------------------------------------------------------


def _lowest_memory(shape: Shape) -> Iterator[doc.Text]:
    """Name the cases with the lowest peak memory, and what the fastest or else the highest of the others needs."""
    lowest = shape.lowest_memory
    if not lowest:
        return
    others = [case for case in shape.timed if case.peak_memory and not case.is_disqualified and case not in lowest]
    best = shape.win.best if shape.win else None
    other = best if best in others else max(others, key=lambda case: case.peak_memory or 0.0)
    role = "the fastest, {}, needs {}" if other is best else "{} needs the most, {}"
    place = f" at {literal(in_words(shape.axes))}" if shape.axes else ""
    yield fill(
        f"Lowest peak memory{place}: {{}} with {{}}; {role} ({{}}).",
        names([case.variant for case in lowest], MOST_NAMES + 1),
        _peak(lowest[0]),
        doc.Code(other.variant),
        _peak(other),
        ratio((other.peak_memory or 0.0) / (lowest[0].peak_memory or math.inf)),
    )


def _peak(case: CaseResult) -> doc.Text:
    return size_unit([case.peak_memory]).with_name(case.peak_memory)


# --- spread and kernels ----------------------------------------------------------------------------------------------


def _uncertain_times(shapes: Sequence[Shape]) -> Iterator[doc.Text]:
    """Name the most uncertain median of the winners and of the cases next to them."""
    uncertain = [
        (s, c) for s in shapes if s.win for c in (s.win.best, s.win.second) if c is not None and _uncertainty(c)
    ]
    if not uncertain:
        return
    shape, case = max(uncertain, key=lambda pair: _uncertainty(pair[1]))
    place = f" at {literal(in_words(shape.axes))}" if len(shapes) > 1 else ""
    more = len(uncertain) - 1
    also = f"{plural(more, 'other time')} of the two fastest cases {'is' if more == 1 else 'are'} uncertain too"
    others = f"; {also}" if more else ""
    assert case.time is not None
    how = fill("95 % interval {}", margin(case.time.margin)) if case.time.margin else "too few samples for an interval"
    unit = time_unit([case.time.ns])
    if case.time.p10 is not None and case.time.p90 is not None:
        how = fill("{}, p10 to p90 {} to {}", how, unit.of(case.time.p10), duration(case.time.p90, unit))
    yield fill(f"The time of {{}}{place} is uncertain ({{}}){others}.", doc.Code(case.variant), how)


def _uncertainty(case: CaseResult) -> float:
    """Return the width of the interval, or half of p10 to p90, as a share of the median; 0 where it is narrow."""
    time = case.time
    if time is None:
        return 0.0
    if time.margin is not None:
        return time.margin if time.margin > _WIDE_INTERVAL else 0.0
    if time.p10 is None or time.p90 is None or not time.ns:
        return 0.0
    half = (time.p90 - time.p10) / 2 / time.ns
    return half if half > _WIDE_SPREAD else 0.0


def _slower_call(cost: SwitchCost, shape: Shape) -> doc.Text:
    """Say which other kernels cost more than a faster attention kernel saves."""
    noun = "operator" if any(case.is_on_cpu for case in shape.cases) else "kernel"
    call = cost.measured_call if cost.measured_call is not None else cost.call
    costs = {part: fill(f"{PARTS_SAID[part]} {{}}", duration(ns)) for part, ns, _ in cost.changes if ns > 0}
    why: doc.Text = "the time passes between the kernels"
    if cost.call > 1 and "copies" in costs:
        why = fill("all kernels together are not slower; added: {}", costs["copies"])
    elif cost.call > 1:
        why = "all kernels together are not slower, the time passes between them"
    elif costs:
        why = fill("added: {}", doc.join(costs.values()))
    sentence = f"{{}} has a faster attention {noun} ({{}}) but a slower call ({{}}): {{}} ({{}})."
    link = doc.Link("details", "#switch_cost")
    return fill(sentence, doc.Code(cost.variant), ratio(cost.attention), ratio(call), why, link)


# --- in a plain loop, where the host issues calls more slowly than the GPU runs them ----------------------------------

#: A lead is reported where a plain loop leaves less than this share of it.
_SHRUNK = 0.90

#: The winner has lost below this share of the fastest case's speed. The host's times of one implementation differed by
#: up to 2x from case to case of one run on an H200.
_LOST = 0.50

#: A time with one of these flags is wrong or includes other work: the case is not reported as the fastest in a loop.
_UNUSABLE = frozenset({Flag.OTHER_PROCESS, Flag.WAITED, Flag.ABOVE_PEAK})


@dataclass(frozen=True)
class HostBoundWin:
    """A win whose calls the host issues more slowly than the GPU runs them.

    ``fastest`` is the fastest case in a plain loop, and ``share_of_fastest`` the speed of ``best`` there as a share of
    that case's. ``lead`` is the speed-up of queued calls over the case that the headline compares ``best`` with,
    ``loop_lead`` that in a plain loop; None where the host's time of the other case is unknown.
    """

    shape: Shape
    best: CaseResult
    fastest: CaseResult
    lead: float
    loop_lead: float | None
    share_of_fastest: float


def host_bound_win(shape: Shape) -> HostBoundWin | None:
    """Return the win of a shape if it depends on calls that are queued ahead."""
    win = shape.win
    if win is None or win.verdict != WinVerdict.CLEAR:
        return None
    best = win.best
    loop_ns = _loop_ns(best)
    if Flag.HOST_BOUND not in best.flags or loop_ns is None:
        return None
    other = shape.baseline if best.speedup is not None and not best.is_baseline and shape.baseline else win.second
    in_loop = [c for c in shape.timed if _loop_ns(c) and not c.is_disqualified and _UNUSABLE.isdisjoint(c.flags)]
    fastest = min(in_loop, key=lambda case: _loop_ns(case) or 0.0, default=best)
    if not other or not other.time or not best.time:
        return None
    other_ns, fastest_ns = _loop_ns(other), _loop_ns(fastest)
    loop_lead = other_ns / loop_ns if other_ns and loop_ns else None
    share = fastest_ns / loop_ns if fastest_ns and loop_ns else 1.0
    lead = other.time.ns / best.time.ns if best.time.ns else 1.0
    return HostBoundWin(shape, best, fastest, lead, loop_lead, share)


def _compare_plain_loop(shapes: Sequence[Shape]) -> Iterator[Text]:
    """Yield one sentence for cases that others overtake in a plain loop, and one for leads that shrink there."""
    wins = [win for shape in shapes if (win := host_bound_win(shape))]
    if lost := sorted((w for w in wins if w.share_of_fastest <= _LOST), key=lambda w: w.share_of_fastest):
        yield _lost(lost, len(shapes))
    leads = [(win, win.loop_lead) for win in wins if win.share_of_fastest > _LOST and win.loop_lead is not None]
    if shrunk := sorted(((lead, win) for win, lead in leads if lead < _SHRUNK * win.lead), key=lambda pair: pair[0]):
        lead, win = shrunk[0]
        place = f" ({literal(in_words(win.shape.axes))})" if len(shapes) > 1 else ""
        others = len(shrunk) - 1
        more = f"; {plural(others, 'other lead')} {'shrinks' if others == 1 else 'shrink'} too" if others else ""
        change = f"{lead:.1f}x faster" if lead >= 1 else f"no longer faster: {lead:.1f}x"
        yield fill(
            f"Launched one by one, {{}} is {change} instead of {{}}{place}{more}. The CPU cannot launch fast enough."
            " Host times vary by up to 2x from case to case.",
            Code(win.best.variant),
            ratio(win.lead),
        )


def _lost(lost: Sequence[HostBoundWin], shapes: int) -> Text:
    """Say which case is the fastest in a plain loop, where the winner is not."""
    win = lost[0]
    fastest, best = _loop_ns(win.fastest), _loop_ns(win.best)
    unit = time_unit([fastest, best])
    place = f" at {literal(in_words(win.shape.axes))}" if shapes > 1 else ""
    more = f"; another case is fastest in {len(lost) - 1} more of {shapes} shapes" if len(lost) > 1 else ""
    sentence = f"Launched one by one, {{}} is fastest{place}: {{}} per call; {{}} takes {{}}{more}."
    return fill(
        sentence, Code(win.fastest.variant), duration(fastest, unit), Code(win.best.variant), duration(best, unit)
    )


def _loop_ns(case: CaseResult) -> float | None:
    """Return the time of a call in a plain loop: the longer of the GPU's time and the host's time to issue the call."""
    issue = case.values.get("issue")
    return max(case.time.ns, issue) if case.time and issue is not None else None
