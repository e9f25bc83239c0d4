"""What ran when in one step of a case, and its largest gaps. Markdown leaves it out."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from profpipe.analysis.findings import WorkloadFindings
from profpipe.analysis.grouping import grouped
from profpipe.analysis.steps import IDLE_PARTS
from profpipe.analysis.timeline import MOST_TIMELINES, CaseTimeline, Gap, Lane, LaneKind, RankTimeline
from profpipe.report import document as doc
from profpipe.report.labels import case_text, duration, fill, percent, shorten
from profpipe.report.scales import coloured_keys
from profpipe.report.sections.steps import PART_NAMES, class_order
from profpipe.report.units import time_unit
from profpipe.results.schema import EventKind

#: Clocks that are read at different times differ by less.
_LEAST_EARLY_NS = 1000.0

_NAMES: Mapping[str, str] = {part.value: PART_NAMES[part] for part in IDLE_PARTS}
#: What the program did.
_PROGRAM_NAMES = {EventKind.NAMED_WAIT.value: "waits", EventKind.LINE.value: "code"}
#: Classes of operations whose name says more in the legend.
_CLASSES: Mapping[str, str] = {
    "copy": "copy kernels",
    "attention_aux": "attention (auxiliary)",
    "other": "other kernels",
}
#: Operations that a bar of a step shows after the classes of kernels.
_NO_KERNELS = ("communication", "memcpy", "memset")
#: Gaps that are listed, and characters of the names beside them.
_GAPS, _WIDTH = 5, 48
#: A call that waits has the colour of the idle time that it causes.
_WAIT = EventKind.IDLE_BLOCKED.value


def timeline(workload: WorkloadFindings) -> doc.Section:
    """Return the timelines of the cases, of which a reader sees one; empty without single launches."""
    order = {case.id: number for number, case in enumerate(sorted(workload.cases, key=lambda c: not c.is_baseline))}
    timelines = [
        timeline for timeline in sorted(workload.timelines, key=lambda t: order.get(t.case, len(order)))
        if any(lane.kind is LaneKind.STREAM for rank in timeline.ranks for lane in rank.lanes)
    ]  # fmt: skip
    if not timelines:
        return doc.Section("timeline", "", workload=workload.name)
    classes = class_order(workload)
    texts = {case.id: case_text(case) for case in workload.cases}
    options: dict[tuple[str, ...], tuple[doc.Block, ...]] = {
        (doc.plain(texts.get(timeline.case, timeline.case)) or workload.name,): tuple(_blocks(timeline, classes))
        for timeline in timelines
    }
    blocks = next(iter(options.values()))
    if len(options) > 1:
        blocks = (doc.ViewChoice("timeline", ("case",), options),)
    if len(timelines) == MOST_TIMELINES < len(workload.cases):
        which = f"the timelines of the first {MOST_TIMELINES} cases"
        text = f"These are {which}. timeline.parquet holds those of the others."
        blocks = (*blocks, doc.Paragraph(text, doc.OnPage.HTML))
    return doc.make_section("timeline", "Timeline", blocks, workload=workload.name)


def _blocks(timeline: CaseTimeline, classes: Sequence[str]) -> list[doc.Block]:
    several, has_ranks = len(timeline.ranks) > 1, len({rank.rank for rank in timeline.ranks}) > 1
    of_ranks = [(place, lane) for place, rank in enumerate(timeline.ranks) for lane in rank.lanes]
    lanes = tuple(
        (
            _rank_title(timeline.ranks[place], several, has_ranks),
            _lane_title(lane),
            replace(
                lane,
                events=tuple(replace(event, key=_key(event.key)) for event in lane.events),
                totals={
                    key: (sum(calls for calls, _ in totals), sum(ns for _, ns in totals))
                    for key, totals in grouped((_key(key), total) for key, total in lane.totals.items()).items()
                },
            ),
        )
        for place, lane in of_ranks
    )
    idle = {place: number for number, (place, lane) in enumerate(of_ranks) if lane.kind is LaneKind.IDLE}
    # The place of the rank and the gap.
    placed_gaps = ((place, gap) for place, rank in enumerate(timeline.ranks) for gap in rank.gaps)
    gaps = heapq.nlargest(_GAPS, placed_gaps, key=lambda pair: pair[1].duration_ns)
    picture = doc.TimelineChart(
        f"timeline {timeline.case}", _title(timeline), lanes, timeline.duration_ns,
        _labels((lane for *_, lane in lanes), classes),
        tuple((idle[place], gap.start_ns) for place, gap in gaps), _caption(timeline), timeline.case,
    )  # fmt: skip
    return [picture, _gap_table(timeline, gaps)]


def _title(timeline: CaseTimeline) -> doc.Text:
    steps = {rank.step for rank in timeline.ranks}
    number = f": step {steps.pop()}" if len(steps) == 1 else ""
    if timeline.kind == EventKind.STEP.value:
        return f"One steady step{number} ({timeline.profiler})"
    if timeline.kind == EventKind.ITERATION.value:
        return f"One call ({timeline.profiler})"
    return fill(f"The recording from its start: {{}} ({timeline.profiler})", duration(timeline.duration_ns))


def _caption(timeline: CaseTimeline) -> doc.Text:
    """Return what is shown where it is not everything, and how idle time is drawn."""
    parts: list[doc.Text] = [
        "Calls of the host stand above the operations that they launched. The ground of a stream is coloured where "
        "nothing runs on the device, by the cause."
    ]
    if any(lane.kind is LaneKind.PROGRAM for rank in timeline.ranks for lane in rank.lanes):
        parts.append(" The lane of the program shows its waits, and where its code was: lines, functions or ranges.")
    if not timeline.has_one_clock:
        parts.append(" Each rank begins at 0: their recordings share no clock.")
    if timeline.shift_ns:
        parts.append(fill(" The clock of the GPU is behind that of the host: the lanes of the GPU stand {} later than"
                          " recorded.", duration(timeline.shift_ns)))  # fmt: skip
    if timeline.early_ns >= timeline.duration_ns:
        parts.append(fill(" The clocks of host and GPU differ by at least {}, so calls of the host do not stand above"
                          " their operations.", duration(timeline.early_ns)))  # fmt: skip
    elif timeline.early_ns >= _LEAST_EARLY_NS:
        parts.append(fill(" Single operations begin before their launches, by up to {}.", duration(timeline.early_ns)))
    if timeline.step_ns is not None:
        share = timeline.duration_ns / timeline.step_ns
        parts.append(fill(" The step has very many launches: its first {} are shown.", percent(share)))
    if timeline.merged_below_ns:
        unit = time_unit([timeline.merged_below_ns])
        parts.append(fill(" Neighbours shorter than {} are drawn as one box, with the class that has most of the time.",
                          doc.Amount(timeline.merged_below_ns, unit)))  # fmt: skip
    return doc.concat(*parts)


def _rank_title(rank: RankTimeline, several: bool, has_ranks: bool) -> str:
    device = f"GPU {rank.device}" if rank.device is not None else "GPU"
    process = f"process {rank.process}" if rank.process is not None else ""
    step = f"step {rank.step}" if several and rank.step is not None else ""
    return " · ".join(part for part in (f"rank {rank.rank}" if has_ranks else "", device, process, step) if part)


def _lane_title(lane: Lane) -> str:
    if lane.kind in (LaneKind.IDLE, LaneKind.PROGRAM):
        return lane.kind.value
    if lane.others:
        return f"{lane.others} other streams"
    what = "thread" if lane.kind is LaneKind.HOST else "stream"
    return f"{what} {lane.number}" if lane.number is not None else ("host" if what == "thread" else what)


def _key(key: str) -> str:
    class_key = _WAIT if key == EventKind.WAIT.value else key
    if class_key in _NAMES:
        return f"step_{class_key}"
    # Classes without a colour are one.
    return class_key if class_key in _PROGRAM_NAMES or class_key in coloured_keys() else "other"


def _labels(lanes: Iterable[Lane], classes: Sequence[str]) -> dict[str, str]:
    """Return the names of the keys in the order of the bars: ``classes``, other classes by their time, other parts."""
    time = grouped(
        (key, ns if lane.kind in (LaneKind.IDLE, LaneKind.STREAM) else 0.0)
        for lane in lanes
        for key, (_, ns) in lane.totals.items()
    )
    names = {f"step_{part}": name for part, name in _NAMES.items()} | _PROGRAM_NAMES
    place = {key: n - len(classes) for n, key in enumerate(classes)}
    place |= {key: n for n, key in enumerate(("other", *_NO_KERNELS, *names), start=1)}
    ordered = sorted(time, key=lambda key: (place.get(key, 0), -sum(time[key])))
    return {key: names.get(key) or _CLASSES.get(key, key) for key in ordered}


def _gap_table(timeline: CaseTimeline, gaps: Sequence[tuple[int, Gap]]) -> doc.TableBlock:
    """Return the largest gaps, with what ran before and after. Their numbers stand in the picture too."""
    rows = [(number, timeline.ranks[place], gap) for number, (place, gap) in enumerate(gaps, start=1)]

    def cause(gap: Gap) -> doc.Text:
        text = _NAMES[gap.cause].removeprefix("idle: ")
        return fill(f"{text}, in {{}}", doc.Code(gap.wait)) if gap.wait else text

    def operation(name: str) -> doc.Text:
        return doc.Code(shorten(name, _WIDTH)) if name else ""

    columns = [
        (doc.label("number", "gap"), lambda row: str(row[0])),
        (doc.label("rank"), lambda row: str(row[1].rank)),
        (doc.label("device", "GPU"), lambda row: "" if row[1].device is None else str(row[1].device)),
        (doc.number("start", "begins at", time_unit([timeline.duration_ns])), lambda row: row[2].start_ns),
        (doc.number("ns", "lasts", time_unit(gap.duration_ns for _, gap in gaps)), lambda row: row[2].duration_ns),
        (doc.percent("share"), lambda row: row[2].duration_ns / row[1].duration_ns),
        (doc.words("cause"), lambda row: cause(row[2])),
        (doc.words("after"), lambda row: operation(row[2].after)),
        (doc.words("before"), lambda row: operation(row[2].before) or "the end of the time shown"),
    ]
    table = doc.table_of(f"gaps {timeline.case}", rows, columns, "Largest gaps", doc.OnPage.HTML)
    ranks = {rank.rank for rank in timeline.ranks}
    lone = [*(["rank"] if len(ranks) == 1 else []), *(["device"] if len(ranks) == len(timeline.ranks) else [])]
    return table.without(*lone)
