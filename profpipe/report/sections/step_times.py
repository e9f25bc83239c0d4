"""The time of a step under each profiler, and on each rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from profpipe.analysis.findings.steps import CaseSteps, RankSteps, StepPart
from profpipe.analysis.findings.workloads import CaseResult, WorkloadFindings
from profpipe.analysis.grouping import grouped
from profpipe.report import document as doc
from profpipe.report.inlines import duration, fill
from profpipe.report.labels import case_text
from profpipe.report.units import percent, signed_percent, size_unit, step_unit

#: Ranks of all cases up to which their table stands on the short page.
_RANKS = 16

#: Below this difference the step times of ranks are equal: ranks that wait for each other end a step together.
_EQUAL = 0.01


def by_profiler(workload: WorkloadFindings) -> doc.Section:
    """Return the step times side by side; empty where one profiler timed each case."""
    cases = [(case, own) for case in workload.cases if (own := workload.steps.of(case.id)) and len(own.times) > 1]
    names = list(dict.fromkeys(name for _, own in cases for name in own.times))
    unit = step_unit(time.ns for _, own in cases for time in own.times.values())
    columns = [doc.label("case")]
    columns += [doc.Column(name, "without a profiler" if name == "plain" else name, unit) for name in names]
    rows = [[case_text(case), *(_time(own, name) for name in names)] for case, own in cases]
    table = doc.make_table("step_times", columns, rows)
    table = table if len(workload.cases) > 1 else table.without("case")
    title = "Step time under each profiler"
    return doc.make_section("step_times", title, [table], _overheads(cases), workload.name)


def _time(own: CaseSteps, profiler: str) -> doc.Cell:
    if (time := own.times.get(profiler)) is None:
        return doc.Cell(missing=doc.Missing.NOT_MEASURED)
    added = dict(own.overheads).get(profiler)
    return doc.Cell(time.ns, note="" if added is None else f"({signed_percent(added)})")


def _overheads(cases: Sequence[tuple[CaseResult, CaseSteps]]) -> doc.Text:
    """Return what each profiler adds: ``torch +4.1 %``, or the least and the most of several cases."""
    added = grouped(overhead for _, own in cases for overhead in own.overheads)
    if not added:
        return "No case was timed without a profiler, so what each profiler adds is unknown."
    ends = {name: dict.fromkeys(map(signed_percent, (min(own), max(own)))) for name, own in added.items()}
    named = [f"{name} {' to '.join(own)}" for name, own in ends.items()]
    unclear = [
        name
        for name in added
        if all(
            "plain" in own.times and own.times["plain"].overlaps(own.times[name])
            for _, own in cases
            if name in own.times
        )
    ]
    doubt = fill(" The 95 % intervals with and without {} overlap: no overhead was measured.", doc.join(unclear))
    return fill("Each profiler's own overhead: {}.{}", doc.join(named), doubt if unclear else "")


def ranks(workload: WorkloadFindings) -> doc.Section:
    """Return the steps of each rank; empty where every case has one rank."""
    cases = [(c, own) for c in workload.cases if (own := workload.steps.of(c.id)) and len(own.ranks) > 1]
    is_lone = len(workload.cases) == 1
    every = [(case, rank, i == 0) for case, own in cases for i, rank in enumerate(own.ranks)]
    unit = step_unit(rank.time.ns for _, rank, _ in every)
    parts = {
        "time": "median step", "compute": "compute", "communication": "exposed communication",
        "hidden": "hidden communication", "copy": "exposed copies", "idle": "idle",
    }  # fmt: skip
    labels = [doc.label("case"), doc.label("rank"), doc.label("node")]
    columns = [*labels, *(doc.Column(id, title, unit) for id, title in parts.items())]
    columns.append(doc.Column("memory", "peak memory", size_unit(rank.peak_memory for _, rank, _ in every)))
    rows = [
        [case_text(case) if is_first else "", str(rank.rank), rank.node, rank.time.ns, *_parts(rank)]
        for case, rank, is_first in every
    ]
    placement = doc.Placement.SUMMARY if len(every) <= _RANKS else doc.Placement.DETAILS
    whole = doc.make_table("ranks", columns, rows, "" if is_lone else "Each rank", placement)
    has_nodes = any(rank.node for _, rank, _ in every)
    whole = whole if has_nodes else whole.without("node")
    table = doc.fold_if_long(whole.without("case") if is_lone else whole)
    sentences = tuple(_slowest("" if is_lone else case_text(case), own.ranks) for case, own in cases)
    unlike = dict.fromkeys(difference for _, own in cases for difference in own.unlike_nodes)
    sentences += tuple(fill(f"The nodes differ in {name}: {{}}.", doc.join(values)) for name, values in unlike)
    summary = (
        "The figures of a case are means over its ranks. Exposed communication contains waiting for slower ranks;"
        " parts are means over steady steps."
    )
    if has_nodes:
        summary += " Clocks of different nodes are not compared: steps of ranks are matched by their numbers."
    return doc.make_section("step_ranks", "Ranks", (doc.Bullets(sentences), table), summary, workload.name)


def _parts(rank: RankSteps) -> Iterator[float | str]:
    """Yield the numbers of a rank after its time; empty where no profiler recorded them."""
    parts = rank.parts
    if parts is None:
        yield from [""] * 5
    else:
        exposed, total = parts.ns[StepPart.COMMUNICATION], parts.communication_total_ns
        yield from (parts.ns[StepPart.COMPUTE], exposed, "" if total is None else max(0.0, total - exposed))
        yield from (parts.ns[StepPart.COPY], parts.idle_ns)
    yield "" if rank.peak_memory is None else rank.peak_memory


def _slowest(case: doc.Text, ranks: Sequence[RankSteps]) -> doc.Text:
    """Name the slowest rank: by its step time, or where these are equal by its time without communication."""
    begin = fill("{}: ", case) if case else ""
    mean = sum(rank.time.ns for rank in ranks) / len(ranks)
    unit = step_unit([mean])
    last, first = (pick(ranks, key=lambda rank: rank.time.ns) for pick in (max, min))
    above = percent(last.time.ns / mean - 1)
    if last.time.ns > (1 + _EQUAL) * first.time.ns and not first.time.overlaps(last.time):
        slowest = f"{{}}{_name(last)} is the slowest: {{}} a step, {above} % above the mean of {{}}."
        return fill(slowest, begin, duration(last.time.ns, unit), duration(mean, unit))
    own = [(rank.own_ns, rank) for rank in ranks if rank.own_ns is not None]
    if len(own) == len(ranks):
        (high, late), (low, early) = (pick(own, key=lambda pair: pair[0]) for pick in (max, min))
        halves = ((ends[1] - ends[0]) / 2 for rank in ranks if (ends := rank.time.interval))
        if high - low > max([_EQUAL * mean, *halves]):
            sentence = f"{{}}All ranks take as long. {_name(late)} is the slowest: without exposed communication its"
            sentence += f" step takes {{}} longer than that of rank {early.rank}, and the others wait for it."
            return fill(sentence, begin, duration(high - low, unit))
    if above == "0":
        return fill("{}All ranks take as long.", begin)
    return fill(f"{{}}{_name(last)} takes the longest, {{}} a step. That is {above} % above the mean, no more than"
                " its steps vary.", begin, duration(last.time.ns, unit))  # fmt: skip


def _name(rank: RankSteps) -> str:
    """Return ``Rank 1``, on a cluster ``Rank 1 on node2``."""
    # Braces would be a place of the text that the name is put into.
    node = rank.node.replace("{", "{{").replace("}", "}}")
    return f"Rank {rank.rank} on {node}" if node else f"Rank {rank.rank}"
