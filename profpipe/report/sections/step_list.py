"""The outliers among a program's steps with what is in them, and every step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from profpipe.analysis.findings.steps import CaseSteps, OutlierCause, StepOutlier, StepPart, StepRow
from profpipe.analysis.findings.workloads import CaseResult, WorkloadFindings
from profpipe.report import document as doc
from profpipe.report.inlines import duration, fill, plural
from profpipe.report.labels import case_text
from profpipe.report.sections.steps import PART_NAMES
from profpipe.report.units import step_unit
from profpipe.results.schema import StepState

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


# --- outliers --------------------------------------------------------------------------------------------------------


def outliers(workload: WorkloadFindings) -> doc.Section:
    """Return the steps beyond three median absolute deviations, and what they have that others have not."""
    found = [(case, own, each) for case, own in _cases(workload) for each in own.outliers]
    longest = sorted(found, key=lambda item: item[2].wall_ns - item[2].median_ns, reverse=True)[:_MOST_OUTLIERS]
    is_lone = len(workload.cases) == 1
    items = tuple(_outlier("" if is_lone else case_text(case), own, each) for case, own, each in longest)
    number = plural(len(found), "step")
    summary = f"{number} beyond three median absolute deviations. They are not in the figures above."
    blocks = (doc.Bullets(items), _outlier_table(found, is_lone))
    return doc.make_section("step_outliers", "Outliers", blocks, summary, workload.name, folds_long_tables=True)


def _cases(workload: WorkloadFindings) -> Iterator[tuple[CaseResult, CaseSteps]]:
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
    tables = (_step_table(workload, case, own) for case, own in _cases(workload))
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
