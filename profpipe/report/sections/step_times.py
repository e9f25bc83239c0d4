"""The time of a step under each profiler and on each rank, the outliers with what is in them, and every step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from profpipe.analysis.findings.steps import CaseSteps, OutlierCause, RankSteps, StepOutlier, StepPart, StepRow
from profpipe.analysis.findings.workloads import CaseResult, WorkloadFindings
from profpipe.analysis.grouping import grouped
from profpipe.report import document as doc
from profpipe.report.inlines import duration, fill, plural
from profpipe.report.labels import case_text
from profpipe.report.sections.steps import PART_NAMES
from profpipe.report.units import Unit, number, percent, signed_percent, size_unit, step_unit
from profpipe.results.schema import StepState

#: Ranks of all cases up to which their table stands on the short page.
_RANKS = 16

#: Below this difference the step times of ranks are equal: ranks that wait for each other end a step together.
_EQUAL = 0.01

#: Outliers that have a sentence.
_MOST_OUTLIERS = 3

#: Rows of a table with every step.
_MOST_ROWS = 200

_CAUSES: Mapping[OutlierCause, str] = {
    OutlierCause.IDLE_LAUNCH: "idle time because the host launched late",
    OutlierCause.IDLE_BLOCKED: "idle time after a synchronising call",
    OutlierCause.IDLE_OTHER: "other idle time",
    OutlierCause.COPIES: "exposed copies",
    OutlierCause.COMMUNICATION: "exposed communication",
    OutlierCause.KERNELS: "time in the kernels of every step",
    OutlierCause.OTHER_KERNELS: "time in kernels that steady steps do not have",
}


def by_profiler(workload: WorkloadFindings) -> doc.Section:
    """Return the step times side by side; empty where one profiler timed each case."""
    cases = [(case, own) for case in workload.cases if (own := workload.steps.of(case.id)) and len(own.times) > 1]
    names = list(dict.fromkeys(name for _, own in cases for name in own.times))
    unit = step_unit(time.ns for _, own in cases for time in own.times.values())
    columns = [doc.label("case")]
    columns += [doc.Column(name, "without a profiler" if name == "plain" else name, unit) for name in names]
    rows = [[case_text(case), *(_time(own, name, unit) for name in names)] for case, own in cases]
    table = doc.make_table("step_times", columns, rows)
    table = table if len(workload.cases) > 1 else table.without("case")
    title = "Step time under each profiler"
    return doc.make_section("step_times", title, [table], _overheads(cases), workload.name)


def _time(own: CaseSteps, profiler: str, unit: Unit) -> doc.Cell:
    if (time := own.times.get(profiler)) is None:
        return doc.Cell(missing=doc.Missing.NOT_MEASURED)
    added = dict(own.overheads).get(profiler)
    if added is None:
        return doc.Cell(time.ns)
    note = signed_percent(added)
    if own.uneven:
        # The times of the columns are of all steps, and the median where steps are even under one profiler.
        same = own.same_steps[profiler]
        note += f": {number(same.ns / unit.size)} over {number(same.without_ns / unit.size)}"
    return doc.Cell(time.ns, note=f"({note})")


def _overheads(cases: Sequence[tuple[CaseResult, CaseSteps]]) -> doc.Text:
    """Return what each profiler adds: ``torch +4.1 %``, or the least and the most of several cases."""
    added = grouped(overhead for _, own in cases for overhead in own.overheads)
    is_uneven = any(own.uneven for _, own in cases)
    if not added and is_uneven and any("plain" in own.times for _, own in cases):
        return "Steps are uneven and not the same under each profiler, so what each profiler adds is unknown."
    if not added:
        return "No case was timed without a profiler, so what each profiler adds is unknown."
    ends = {name: dict.fromkeys(map(signed_percent, (min(own), max(own)))) for name, own in added.items()}
    named = [f"{name} {' to '.join(own)}" for name, own in ends.items()]
    timed = {name: [own for _, own in cases if name in dict(own.overheads)] for name in added}
    unclear = [name for name, every in timed.items() if not any(own.has_measured_overhead(name) for own in every)]
    why = "interval of the difference to {} contains 0" if is_uneven else "intervals with and without {} overlap"
    doubt = fill(f" The 95 % {why}: no overhead was measured.", doc.join(unclear))
    same = (
        " Of uneven steps, only those with the same numbers are compared:"
        " their mean with the profiler over that without."
        if is_uneven
        else ""
    )
    return fill(f"Each profiler's own overhead: {{}}.{same}{{}}", doc.join(named), doubt if unclear else "")


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


# --- outliers --------------------------------------------------------------------------------------------------------


def outliers(workload: WorkloadFindings) -> doc.Section:
    """Return the steps beyond three median absolute deviations, and what they have that others have not."""
    found = [(case, own, each) for case, own in _with_steps(workload) for each in own.outliers]
    longest = sorted(found, key=lambda item: item[2].wall_ns - item[2].median_ns, reverse=True)[:_MOST_OUTLIERS]
    is_lone = len(workload.cases) == 1
    items = tuple(_outlier("" if is_lone else case_text(case), own, each) for case, own, each in longest)
    number = plural(len(found), "step")
    summary = f"{number} beyond three median absolute deviations. They are not in the figures above."
    blocks = (doc.Bullets(items), _outlier_table(found, is_lone))
    return doc.make_section("step_outliers", "Outliers", blocks, summary, workload.name, folds_long_tables=True)


def _with_steps(workload: WorkloadFindings) -> Iterator[tuple[CaseResult, CaseSteps]]:
    return ((case, own) for case in workload.cases if (own := workload.steps.of(case.id)) is not None)


def _outlier(case: doc.Text, own: CaseSteps, outlier: StepOutlier) -> doc.Text:
    of_rank = f" of rank {outlier.rank}" if len(own.ranks) > 1 else ""
    unit = step_unit([outlier.median_ns, outlier.wall_ns])
    who = fill("{}: step ", case) if case else "Step "
    took = fill(f"{{}}{outlier.step}{of_rank} took {{}}, the median {{}}", who, duration(outlier.wall_ns, unit),
                duration(outlier.median_ns, unit))  # fmt: skip
    causes = [fill(f"{{}} more {_CAUSES[cause]}", duration(outlier.excess[cause], unit)) for cause in outlier.causes]
    return fill("{}: {}." if causes else "{}{}.", took, doc.join(causes))


def _outlier_table(found: Sequence[tuple[CaseResult, CaseSteps, StepOutlier]], is_lone: bool) -> doc.Table:
    unit = step_unit(each.wall_ns for *_, each in found)
    columns: doc.Columns[tuple[CaseResult, CaseSteps, StepOutlier]] = [
        (doc.label("case"), lambda row: case_text(row[0])),
        (doc.count("rank"), lambda row: row[2].rank if len(row[1].ranks) > 1 else ""),
        (doc.count("step"), lambda row: row[2].step),
        (doc.Column("wall", "time", unit), lambda row: row[2].wall_ns),
        (doc.Column("median", "median", unit), lambda row: row[2].median_ns),
        *((doc.Column(cause.value, f"more {_CAUSES[cause]}", unit), lambda row, of=cause: row[2].excess.get(of) or "")
          for cause in OutlierCause),
    ]  # fmt: skip
    return doc.table_of("outliers", found, columns[is_lone:], "Every outlier", doc.Placement.DETAILS)


# --- every step ------------------------------------------------------------------------------------------------------


def every_step(workload: WorkloadFindings) -> doc.Section:
    """Return a table with every step of each case, for details.md."""
    tables = (_step_table(workload, case, own) for case, own in _with_steps(workload))
    folded = (doc.Details(table.title, (replace(table, title=""),)) for table in tables)
    return doc.make_section("every_step", "Every step", folded, workload=workload.name)


def _step_table(workload: WorkloadFindings, case: CaseResult, own: CaseSteps) -> doc.Table:
    unit = step_unit(row.wall_ns for row in own.rows)
    several = len({row.rank for row in own.rows}) > 1
    columns: doc.Columns[StepRow] = [
        (doc.label("rank"), lambda row: str(row.rank)),
        (doc.label("step"), lambda row: str(row.step)),
        (doc.label("state"), lambda row: "between steps" if row.state is StepState.OTHER else row.state.value),
        (doc.Column("wall", "time", unit), lambda row: row.wall_ns),
        *((doc.Column(part.value, PART_NAMES[part], unit), lambda row, of=part: row.parts.ns[of] if row.parts else "")
          for part in StepPart),
        (doc.count("kernels", "launches"), lambda row: "" if row.kernels is None else row.kernels),
    ]  # fmt: skip
    rest = f", the first {_MOST_ROWS} of {len(own.rows)} rows of steps.csv" if len(own.rows) > _MOST_ROWS else ""
    title = fill(f"{{}} ({own.profiler}{rest})", case_text(case) if case.id else workload.name)
    id, rows = f"steps {case.id}".strip(), own.rows[:_MOST_ROWS]
    return doc.table_of(id, rows, columns if several else columns[1:], title, doc.Placement.DETAILS)
