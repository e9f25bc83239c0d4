"""Build the document of a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from profpipe.analysis.bisect import Bisection
from profpipe.analysis.findings import Findings, WorkloadFindings
from profpipe.analysis.pairs import PairFindings
from profpipe.report import selection
from profpipe.report.document import Chart, Document, Section
from profpipe.report.sections import (
    agreement,
    bisect,
    case_pages,
    cases,
    environment,
    headline,
    kernel_differences,
    kernel_share,
    kernels,
    memory,
    modules,
    phases,
    plots,
    recording,
    roofline,
    step_times,
    steps,
    studies,
    timeline,
    times,
    tries,
    verdicts,
    waits,
    warnings,
)
from profpipe.results import raw_files
from profpipe.results.manifest import Manifest
from profpipe.results.schema import Tables

NO_RAW_FILES: raw_files.RawFiles = ({}, {})


def build_pairs(findings: PairFindings, tables: Tables, run: Manifest) -> Document:
    """Return the document of an `ab` run."""
    workloads = list(dict.fromkeys(case.workload for case in findings.cases))
    tried = run.ab.tried if run.ab else None
    first = (
        (tries.headline(findings, run), tries.changes(tried), tries.not_tried(tried))
        if tried
        else (verdicts.headline(findings, run), verdicts.forest(findings))
    )
    sections = (
        *first,
        verdicts.verdicts(findings.cases, run),
        verdicts.failures(findings),
        warnings.unfinished(Findings(pending=findings.pending)),
        kernel_differences.failed_captures(findings),
        verdicts.spread(findings, run),
        kernel_differences.kernel_differences(findings.cases),
        environment.environment(run),
        environment.commands(run),
    )
    title = environment.title(workloads, len(findings.cases), run, tables)
    shown = tuple(section for section in sections if section)
    pages = verdicts.case_pages(findings, run)
    return Document(f"{'Changes of' if tried else 'B against A ·'} {title}", shown, pages, times.MEANINGS_OF_SIDES)


def build_bisection(findings: Bisection, tables: Tables, run: Manifest) -> Document:
    """Return the document of a run of `bisect`."""
    sections = (
        bisect.headline(findings, run),
        bisect.draw_path(findings, run),
        environment.environment(run),
        environment.commands(run),
    )
    title = environment.title([f"Bisection of {run.name}"], 0, run, tables)
    return Document(title, tuple(section for section in sections if section))


def build(findings: Findings, tables: Tables, run: Manifest, raw: raw_files.RawFiles = NO_RAW_FILES) -> Document:
    """Return the document of a run: its sections in the order of the page, which begins with the answer."""
    first = [studies.study_table(study, id="first_studies") for study in findings.studies if study.entry.first]
    is_alone = len(findings.workloads) == 1
    answers: list[Section] = [headline.answers(findings.workloads), *(() if is_alone else first)]
    others: list[Section] = []
    for number, workload in enumerate(findings.workloads):
        picture, remaining = _take_picture((*_where_time_goes(workload), *_workload_sections(workload, findings)))
        has_answer = is_alone or number >= headline.MOST_ANSWERS
        answers += [
            headline.headline(workload, picture, "" if is_alone else "At a glance", has_answer),
            timeline.timeline(workload),
            cases.targets(workload, selection.select(workload, findings.workloads)),
            *(first if is_alone else ()),
            times.times(workload, explains_flags=is_alone),
        ]
        others += remaining
    sections = (
        *answers,
        recording.recordings(findings, run),
        *(() if is_alone else (times.flags(findings.workloads),)),
        warnings.warnings(findings, run),
        kernels.classification(findings),
        studies.study_tables([study for study in findings.studies if not study.entry.first]),
        studies.study_plots(findings.plots),
        *others,
        warnings.failures(findings),
        warnings.unfinished(findings),
        warnings.skipped(findings),
        environment.launch_counts(findings),
        environment.files(findings, run),
        environment.environment(run),
        environment.commands(run),
        case_pages.list_logs(run, raw[1]),
    )
    title = environment.title([workload.name for workload in findings.workloads], findings.case_count, run, tables)
    return Document(
        title,
        tuple(section for section in sections if section),
        case_pages.case_pages(findings, run, *raw),
        times.meanings(findings.workloads),
    )


def _where_time_goes(workload: WorkloadFindings) -> tuple[Section, ...]:
    sections = step_times.requests(workload), steps.steps(workload), recording.recording(workload)
    return (*sections, recording.launches(workload), modules.modules(workload), memory.memory(workload))


def _take_picture(sections: Iterable[Section]) -> tuple[Chart | None, list[Section]]:
    """Return the first chart of a step, else of the plots, and the sections without it."""
    remaining = list(sections)
    charts = (
        block for id in ("steps", "plots") for section in remaining if section.id == id for block in section.blocks
    )
    picture = next((block for block in charts if isinstance(block, Chart)), None)
    if picture is not None:
        remaining = [replace(section, blocks=tuple(plots.drop_chart(section.blocks, picture))) for section in remaining]
    return picture, remaining


def _workload_sections(workload: WorkloadFindings, findings: Findings) -> Iterator[Section]:
    """Yield the sections of one workload below its headline and times; a large comparison shows some shapes only."""
    part = selection.select(workload, findings.workloads)
    if note := selection.note(workload, findings.workloads):
        yield Section("selection", "", summary=note, workload=workload.name)
    yield plots.explorer(workload)
    yield plots.roofline(workload)
    yield waits.waits(workload)
    yield step_times.costs(workload)
    yield step_times.ranks(workload)
    yield step_times.outliers(workload)
    yield step_times.compare_profilers(workload)
    yield kernel_share.kernel_share(part)
    yield kernel_share.switch_cost(part)
    yield roofline.limits(workload, part)
    yield cases.accuracy(part)
    yield agreement.agreement(workload)
    yield cases.cases(workload, part)
    yield plots.plots(workload)
    yield phases.phases(part)
    yield phases.host_phases(workload)
    yield phases.phase_work(workload)
    yield step_times.processes(part)
    yield kernels.kernels(part)
    yield step_times.every_step(workload)
