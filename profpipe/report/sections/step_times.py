"""The time of a step under each profiler and on each rank, the outliers with what is in them, and every step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from profpipe.analysis.findings.steps import CaseSteps, OutlierCause, RankSteps, StepOutlier, StepPart, StepRow
from profpipe.analysis.findings.workloads import CaseResult, WorkloadFindings
from profpipe.analysis.grouping import grouped
from profpipe.report import document as doc
from profpipe.report.labels import case_text, duration, fill, plural
from profpipe.report.sections.steps import PART_NAMES, peers, rank_name, wait
from profpipe.report.units import MISSING, Unit, number, percent, signed_percent, size_unit, step_unit
from profpipe.results.schema import StepState

#: Ranks of all cases up to which their table stands on the short page.
_RANKS = 16

#: Below this difference the step times of ranks are equal: ranks that wait for each other end a step together.
_EQUAL = 0.01

#: From this share of a step on, a sentence names whom others wait for; and so many of them.
_LEAST_WAITING, _MOST_WAITED_FOR = 0.02, 4

_STATES = {StepState.OTHER: "between steps", StepState.UNMATCHED: "not on all ranks"}

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
        return doc.Cell(missing=MISSING)
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
        "waiting": "waiting, part of it", "hidden": "hidden communication", "copy": "exposed copies", "idle": "idle",
    }  # fmt: skip
    labels = [doc.label("case"), doc.label("rank"), doc.label("device", "GPU"), doc.label("node")]
    columns = [*labels, *(doc.Column(id, title, unit) for id, title in parts.items())]
    columns.append(doc.words("waited_for", "others wait for it in"))
    columns.append(doc.Column("memory", "peak memory", size_unit(rank.peak_memory for _, rank, _ in every)))
    steady = {case.id: own.count(StepState.STEADY)[0] for case, own in cases}
    rows = [
        [case_text(case) if is_first else "", str(rank.rank), "" if rank.device is None else str(rank.device),
         rank.node, rank.time.ns, *_parts(rank, steady[case.id])]
        for case, rank, is_first in every
    ]  # fmt: skip
    placement = doc.Placement.SUMMARY if len(every) <= _RANKS else doc.Placement.DETAILS
    whole = doc.make_table("ranks", columns, rows, "" if is_lone else "Each rank", placement)
    has_nodes = any(rank.node for _, rank, _ in every)
    whole = whole if has_nodes else whole.without("node")
    shares_steps = [own for _, own in cases if len(own.ranks) > own.processes]
    whole = whole if shares_steps else whole.without("device")
    has_ranks = any(own.processes > 1 for _, own in cases)
    whole = whole if has_ranks else whole.without("rank")
    waits = any(rank.parts and rank.parts.waiting_ns is not None for _, rank, _ in every)
    whole = whole if waits else whole.without("waited_for")
    table = doc.fold_if_long(whole.without("case") if is_lone else whole)
    # GPUs of one process that take turns are neither fast nor slow.
    sentences = tuple(_slowest("" if is_lone else case_text(case), own) for case, own in cases if own.processes > 1)
    sentences += tuple(filter(None, (_waited_for("" if is_lone else case_text(case), own) for case, own in cases)))
    unlike = dict.fromkeys(difference for _, own in cases for difference in own.unlike_nodes)
    sentences += tuple(fill(f"The nodes differ in {name}: {{}}.", doc.join(values)) for name, values in unlike)
    what = "ranks" if has_ranks else "GPUs"
    summary = f"The figures of a case are means over its {what}; parts are means over steady steps."
    if shares_steps:
        summary += " GPUs of one process share its steps."
    if waits:
        summary += f" Waiting is the exposed communication over the least one of all {what} in the same step, which is"
        summary += " the transfer, at most."
    if has_nodes:
        summary += " Clocks of different nodes are not compared: steps of ranks are matched by their numbers."
    title = "Ranks" if has_ranks else "GPUs"
    return doc.make_section("step_ranks", title, (doc.Bullets(sentences), table), summary, workload.name)


def _parts(rank: RankSteps, steady: int) -> Iterator[float | str]:
    """Yield the numbers of a rank after its time; empty where no profiler recorded them."""
    parts = rank.parts
    if parts is None:
        yield from [""] * 7
    else:
        exposed, total = parts.ns[StepPart.COMMUNICATION], parts.communication_total_ns
        yield from (parts.ns[StepPart.COMPUTE], exposed, "" if parts.waiting_ns is None else parts.waiting_ns)
        yield from ("" if total is None else max(0.0, total - exposed), parts.ns[StepPart.COPY], parts.idle_ns)
        yield f"{rank.waited_for} of {plural(steady, 'step')}"
    yield "" if rank.peak_memory is None else rank.peak_memory


def _slowest(case: doc.Text, own: CaseSteps) -> doc.Text:
    """Name the slowest rank: by its step time, or where these are equal by its time without communication.

    It is the slowest in most of the steady steps.
    """
    begin, ranks, steady = fill("{}: ", case) if case else "", own.ranks, own.count(StepState.STEADY)[0]
    mean = sum(rank.time.ns for rank in ranks) / len(ranks)
    unit = step_unit([mean])
    late = max(ranks, key=lambda rank: rank.slowest_in)
    first = min(ranks, key=lambda rank: rank.time.ns)
    if 2 * late.slowest_in > steady:
        is_longest = late.time.ns > (1 + _EQUAL) * first.time.ns and not first.time.overlaps(late.time)
        if is_longest and late.time.ns == max(rank.time.ns for rank in ranks):
            slowest = f"{{}}{_name(own, late)} is the slowest: {{}} a step, {{}} % above the mean of {{}}."
            above = percent(late.time.ns / mean - 1)
            return fill(slowest, begin, duration(late.time.ns, unit), above, duration(mean, unit))
        early = min(ranks, key=lambda rank: rank.own_ns or 0.0)
        if late.own_ns is not None and early.own_ns is not None:
            longer = late.own_ns - early.own_ns
            margins = [rank.time.margin * rank.time.ns for rank in ranks if rank.time.margin]
            if longer > max([_EQUAL * mean, *margins]):
                sentence = f"{{}}{_name(own, late)} is the slowest in {late.slowest_in} of {plural(steady, 'step')}:"
                sentence += " without exposed communication its step takes {} longer than that of"
                sentence += f" {rank_name(own, early)}."
                return fill(sentence, begin, duration(longer, unit))
    return fill(f"{{}}The {peers(own)} are equally fast.", begin)


def _waited_for(case: doc.Text, own: CaseSteps) -> doc.Text:
    """Return in how many steps others wait for each rank; empty where they hardly wait."""
    waited = sorted((rank for rank in own.ranks if rank.waited_for), key=lambda rank: -rank.waited_for)
    if not waited or not own.parts or own.parts.share(own.parts.waiting_ns or 0.0) < _LEAST_WAITING:
        return ""
    first, *rest = waited
    steady = plural(own.count(StepState.STEADY)[0], "step")
    named = [f"for {rank_name(own, first)} in {first.waited_for} of {steady}"]
    named += [f"for {rank_name(own, rank)} in {rank.waited_for}" for rank in rest]
    begin, who = fill("{}: ", case) if case else "", wait(own)
    return fill("{}{} {}.", begin, f"{who[:1].upper()}{who[1:]}", doc.join(named, most=_MOST_WAITED_FOR))


def _name(own: CaseSteps, rank: RankSteps) -> str:
    """Return ``Rank 1``, on a cluster ``Rank 1 on node2``."""
    # Braces would be a place of the text that the name is put into.
    node = rank.node.replace("{", "{{").replace("}", "}}")
    name = rank_name(own, rank)
    name = f"{name[:1].upper()}{name[1:]}"
    return f"{name} on {node}" if node else name


# --- outliers --------------------------------------------------------------------------------------------------------


def outliers(workload: WorkloadFindings) -> doc.Section:
    """Return the steps beyond three median absolute deviations, and what they have that others have not."""
    found = [(case, own, each) for case, own in _with_steps(workload) for each in own.outliers]
    longest = sorted(found, key=lambda item: item[2].wall_ns - item[2].median_ns, reverse=True)[:_MOST_OUTLIERS]
    is_lone = len(workload.cases) == 1
    items = tuple(_outlier("" if is_lone else case_text(case), own, each) for case, own, each in longest)
    number = plural(len({(case.id, each.step) for case, _, each in found}), "step")
    summary = f"{number} beyond three median absolute deviations. They are not in the figures above."
    blocks = (doc.Bullets(items), _outlier_table(found, is_lone))
    return doc.make_section("step_outliers", "Outliers", blocks, summary, workload.name, folds_long_tables=True)


def _with_steps(workload: WorkloadFindings) -> Iterator[tuple[CaseResult, CaseSteps]]:
    return ((case, own) for case in workload.cases if (own := workload.steps.of(case.id)) is not None)


def _outlier(case: doc.Text, own: CaseSteps, outlier: StepOutlier) -> doc.Text:
    of_rank = f" of {rank_name(own, outlier)}" if len(own.ranks) > 1 else ""
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
        (doc.count("rank"), lambda row: row[2].rank if row[1].processes > 1 else ""),
        (doc.count("device", "GPU"), lambda row: "" if row[2].device is None else row[2].device),
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
    columns: doc.Columns[StepRow] = [
        (doc.label("rank"), lambda row: str(row.rank)),
        (doc.label("device", "GPU"), lambda row: "" if row.device is None else str(row.device)),
        (doc.label("step"), lambda row: str(row.step)),
        (doc.label("state"), lambda row: _STATES.get(row.state, row.state.value)),
        (doc.Column("wall", "time", unit), lambda row: row.wall_ns),
        *((doc.Column(part.value, PART_NAMES[part], unit), lambda row, of=part: row.parts.ns[of] if row.parts else "")
          for part in StepPart),
        (doc.Column("waiting", "waiting, part of exposed communication", unit), _waiting_of),
        (doc.count("kernels", "launches"), lambda row: "" if row.kernels is None else row.kernels),
    ]  # fmt: skip
    rest = f", the first {_MOST_ROWS} of {len(own.rows)} rows of steps.parquet" if len(own.rows) > _MOST_ROWS else ""
    title = fill(f"{{}} ({own.profiler}{rest})", case_text(case) if case.id else workload.name)
    id, rows = f"steps {case.id}".strip(), own.rows[:_MOST_ROWS]
    table = doc.table_of(id, rows, columns, title, doc.Placement.DETAILS)
    lone = [*(["rank"] if own.processes == 1 else []), *(["device"] if own.processes == len(own.ranks) else [])]
    return table.without(*lone)


def _waiting_of(row: StepRow) -> float | str:
    return "" if row.parts is None or row.parts.waiting_ns is None else row.parts.waiting_ns
