"""The page of each case, which report.html opens: its figures, samples, kernels, phases and commands."""

from __future__ import annotations

import itertools
import shlex
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

from profpipe.analysis.cases import in_words
from profpipe.analysis.findings import CaseResult, Findings, Shape, WorkloadFindings
from profpipe.analysis.grouping import grouped
from profpipe.analysis.kernels import rows
from profpipe.analysis.steps import CaseSteps
from profpipe.job import as_text
from profpipe.report import document as doc
from profpipe.report.labels import case_text, duration, fill, margin, ratio, write_what
from profpipe.report.sections import (
    agreement,
    cases,
    environment,
    kernel_share,
    kernels,
    memory,
    phases,
    plots,
    recording,
    roofline,
    step_times,
    steps,
    times,
)
from profpipe.report.selection import restrict
from profpipe.report.units import NO_UNIT
from profpipe.results.manifest import JobEntry, Manifest
from profpipe.results.schema import StepState

#: Pages of a run; a larger run has them for its first cases, and the tables for all.
MOST_PAGES = 600

#: Points of all samples together, so that many cases do not make a large file.
_MOST_POINTS = 12_000

#: Points of a strip that are worth drawing.
_FEWEST_POINTS = 40

#: Cases of a job whose pages show its command.
_FEW_CASES = 3

Samples = Sequence[tuple[int, float]]


def case_pages(
    findings: Findings, run: Manifest, samples: Mapping[tuple[str, str], Samples], logs: Mapping[str, str]
) -> tuple[doc.Section, ...]:
    """Return a section per case, in the order of the tables."""
    most = max(_FEWEST_POINTS, _MOST_POINTS // max(len(samples), 1))
    pages = (
        _page(workload, case, run, limit_samples(samples.get((workload.name, case.id), ()), most), logs)
        for workload in findings.workloads
        for case in workload.cases
    )
    return tuple(itertools.islice(pages, MOST_PAGES))


def _page(
    workload: WorkloadFindings, case: CaseResult, run: Manifest, samples: Samples, logs: Mapping[str, str]
) -> doc.Section:
    shape = next(shape for shape in workload.shapes if case in shape.cases)
    alone = restrict(workload, (Shape(shape.axes, (case,)),))
    case_steps, step_section = workload.steps.of(case.id), steps.steps(alone)
    has_timeline = any(timeline.case == case.id for timeline in workload.timelines)
    blocks: list[doc.Block | None] = [
        doc.Bullets(tuple(fill("{}: {}", doc.Strong(flag), text) for flag, text in times.meanings([alone]).items())),
        strip_of_samples(samples, case) if len(samples) > 1 else None,
        strip_of_steps(case_steps) if case_steps else None,
        _figures(alone, case),
        _classes(alone),
        doc.Paragraph(doc.Link("What ran when: the timeline", "#timeline")) if has_timeline else None,
    ]
    sections = (
        # The chart of the step stands above.
        replace(step_section, blocks=tuple(block for block in step_section.blocks if not isinstance(block, doc.Chart))),
        step_times.compare_profilers(alone),
        recording.recording(alone),
        kernel_share.kernel_share(alone) if not alone.steps else doc.Section("kernel_share", ""),
        kernels.kernels(alone, names_shape=False),
        phases.phases(alone),
        phases.host_phases(alone),
        phases.phase_work(alone),
        agreement.agreement(alone),
        memory.memory(alone),
        step_times.processes(alone),
        step_times.outliers(alone),
        _repeat(workload, case, run, logs),
    )
    title = case_text(case) if case.id else workload.name
    made = doc.make_section(case.id, title, blocks, _summary(workload, case), workload.name)
    shown = tuple(section for section in sections if section)
    return doc.Section(case.id, title, made.blocks, made.summary, workload.name, shown)


def _summary(workload: WorkloadFindings, case: CaseResult) -> doc.Text:
    """Return the time of the case and its speed-up; why it has none."""
    if case.time is None:
        return fill("No time: {}.", case.status or "not measured")
    text: doc.Text = fill(f"{{}} {write_what(workload.time_source)}", doc.Strong(duration(case.time.ns)))
    if case.time.margin is not None:
        text = fill("{} (95 % interval {})", text, margin(case.time.margin))
    if case.is_baseline:
        text = fill("{}, the baseline", text)
    elif case.speedup is not None:
        text = fill("{}, {} over the baseline", text, ratio(case.speedup))
    fixed = f" Every case: {in_words(workload.fixed)}." if workload.fixed else ""
    return fill(f"{{}}.{fixed}", text)


def _figures(alone: WorkloadFindings, case: CaseResult) -> doc.TableBlock | None:
    """Return the figures of the case as rows, each with its unit; what limits it follows its rates."""
    rows: dict[str, doc.TableCell] = {}
    for wide in (cases.make_case_table(alone, [case]), roofline.table(alone, [case], is_one_shape=False)):
        for column, cell in zip(wide.columns, wide.rows[0] if wide.rows else [], strict=bool(wide.rows)):
            if (column.is_numeric or column.id == "limiter") and not cell.is_empty and not cell.missing:
                title = doc.plain(column.title) or (column.unit.name if column.unit else "")
                rows.setdefault(title, _add_unit(cell, column))
    columns = [doc.label("figure"), doc.words("value")]
    return doc.make_table("figures", columns, list(rows.items()), "Figures", doc.OnPage.HTML, is_divisible=False)


def _add_unit(cell: doc.TableCell, column: doc.TableColumn) -> doc.TableCell:
    """Return a cell whose number is followed by its unit, because each row has another unit."""
    if cell.value is None:
        return cell
    number = doc.Amount(cell.value, cell.unit or column.unit or NO_UNIT)
    return doc.TableCell(None, number, cell.flags, cell.is_strong, cell.missing, cell.unit, cell.note)


def _classes(alone: WorkloadFindings) -> doc.Chart | None:
    """Return a bar of the kernel time by class; of a program with steps a bar of the step."""
    case = alone.cases[0]
    if alone.steps:
        chart = next((block for block in steps.steps(alone).blocks if isinstance(block, doc.Chart)), None)
        return replace(chart, placement=doc.OnPage.HTML, subtitle="") if chart else None
    has_kernels = case.breakdown and case.breakdown.total.ns
    return plots.breakdown(alone, alone.shapes[0], doc.OnPage.HTML, is_of_page=True) if has_kernels else None


# --- strips ----------------------------------------------------------------------------------------------------------


def limit_samples(samples: Samples, most: int) -> Samples:
    """Return at most ``most`` samples: of equal parts the least and the largest, in their order."""
    if len(samples) <= most:
        return samples
    parts = max(most // 2, 1)
    kept = []
    for i in range(parts):
        part = range(i * len(samples) // parts, (i + 1) * len(samples) // parts)
        kept += sorted({min(part, key=lambda j: samples[j][1]), max(part, key=lambda j: samples[j][1])})
    return [samples[j] for j in kept]


def strip_of_samples(samples: Samples, case: CaseResult) -> doc.Chart:
    """Return the samples of a case in their order, coloured by the round in which they were taken."""
    points = grouped((f"round {number}", (float(i), ns)) for i, (number, ns) in enumerate(samples, start=1))
    rounds = sorted(points, key=lambda name: int(name.split()[1]))
    total = case.time.n if case.time and case.time.n else len(samples)
    thinned = f" {len(samples)} of {total} are drawn, the least and the largest of each part." * (total > len(samples))
    caption = f"Rounds alternate with those of the other cases.{thinned}" if len(rounds) > 1 else thinned.strip()
    middle = case.time.ns if case.time else statistics.median(ns for _, ns in samples)
    named = {name: name if len(rounds) > 1 else "sample" for name in rounds}
    return _strip("samples", "Samples in the order of measuring", "sample", points, named, {"median": middle}, caption)


_STATES = {
    StepState.STEADY: "steady",
    StepState.WARMUP: "warm-up",
    StepState.OUTLIER: "outlier",
    StepState.OTHER: "between steps",
    StepState.LAST: "last, its end is unknown",
    StepState.UNMATCHED: "not on all ranks",
}


def strip_of_steps(case_steps: CaseSteps) -> doc.Chart | None:
    """Return the time of every step under the profiler that recorded them."""
    if len(case_steps.rows) < 2:
        return None
    points = grouped(
        (_STATES[StepState(state)], (float(step), ns))
        for state, step, ns in rows(case_steps.rows, "state", "step", "wall_ns")
    )
    title, time = f"Every step ({case_steps.profiler or 'no profiler'})", case_steps.times.get(case_steps.profiler)
    caption = "Points of several ranks share a place." if len(case_steps.ranks) > 1 else ""
    level = {"median of steady steps": time.ns} if time else {}
    return _strip("steps", title, "step", points, {name: name for name in _STATES.values()}, level, caption)


def _strip(
    id: str, title: str, x: str, points: Mapping[str, Sequence[tuple[float, float]]], names: Mapping[str, str],
    levels: Mapping[str, float], caption: str,
) -> doc.Chart:  # fmt: skip
    """Return times (ns) as points over their number. ``points`` are by key, ``names`` has all keys in order."""
    marks = {key: tuple(doc.Mark(*point) for point in group) for key, group in points.items()}
    series = tuple(doc.Series(name, key, marks[key]) for key, name in names.items() if key in marks)
    references = tuple(doc.Reference(doc.ReferenceKind.LEVEL, ns, name) for name, ns in levels.items())
    return doc.Chart(
        id, title, doc.ChartKind.STRIP, doc.Axis(x), doc.Axis("time", quantity="ns"), {"": series}, caption,
        doc.OnPage.HTML, keys=tuple(names), references=references,
    )  # fmt: skip


# --- commands --------------------------------------------------------------------------------------------------------


def _repeat(workload: WorkloadFindings, case: CaseResult, run: Manifest, logs: Mapping[str, str]) -> doc.Section:
    """Return the command that measures the case alone, and the commands and logs of its jobs."""
    blocks: list[doc.Block] = []
    if words := alone_command(workload.name, case, run):
        blocks.append(doc.CodeBlock(shlex.join(words), placement=doc.OnPage.HTML))
    jobs = [job for job in run.jobs_of(workload.name) if case.id in job.cases]
    # A command that measures many cases stands once, below the report.
    blocks += environment.jobs(job for job in jobs if len(job.cases) <= _FEW_CASES)
    if links := [doc.Link(job.profiler, f"#{log_id(job)}") for job in jobs if job.folder in logs]:
        blocks.append(doc.Paragraph(doc.concat("Logs: ", doc.join(links), "."), doc.OnPage.HTML))
    return doc.make_section("repeat", "How to repeat it", blocks, workload=workload.name)


def alone_command(workload: str, case: CaseResult, run: Manifest) -> list[str]:
    """Return the command of the run with the parameters of one case; empty where no command is known."""
    if not run.command or run.ab is not None:
        return []
    declared = run.workload(workload)
    axes = declared.matrix if declared else {}
    params = {name: case.params[name] for name, values in axes.items()
              if name in case.params and len(values) > 1}  # fmt: skip
    chosen = [f"{name}={'null' if value is None else as_text(value)}" for name, value in params.items()]
    several = run.pipeline is not None and len(run.pipeline.workloads) > 1
    options = [*(["-w", workload] if several else []), *(word for setting in chosen for word in ("--set", setting))]
    at = run.command.index("--") if "--" in run.command else len(run.command)
    return [*run.command[:at], *options, *run.command[at:]]


def log_id(job: JobEntry) -> str:
    return f"log {job.folder}"


def list_logs(run: Manifest, logs: Mapping[str, str]) -> doc.Section:
    """Return the ends of the logs of the jobs, for report.html."""
    sections = tuple(
        doc.Section(log_id(job), doc.Code(job.log), (doc.CodeBlock(logs[job.folder], "", doc.OnPage.HTML),))
        for job in run.jobs
        if job.folder in logs
    )
    intro = doc.Paragraph("The last lines of each job's log.", doc.OnPage.HTML)
    return doc.Section("logs", "Logs", (intro,), sections=sections) if sections else doc.Section("logs", "")
