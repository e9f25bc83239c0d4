"""How to repeat a run: its command, and the command of each job."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator

from profpipe.analysis.grouping import grouped
from profpipe.job import Status
from profpipe.report.document import Block, Code, CodeBlock, Details, Paragraph, Section
from profpipe.results.manifest import JobEntry, Manifest


def commands(run: Manifest) -> Section:
    """Return the command of the run, and the commands that each job started."""
    blocks: list[Block] = [CodeBlock(shlex.join(run.command))] if run.command else []
    # The pipeline file of a program from the command line is in the run's folder.
    if "--" in run.command:
        how = (": its first line is the command.",) if run.ab else (": ", Code("profpipe run pipeline.yaml"), ".")
        blocks.append(Paragraph((Code("pipeline.yaml"), " in the folder of this run repeats it", *how)))
    return Section("commands", "How to repeat it", (*blocks, *jobs(run.jobs)))


def jobs(entries: Iterable[JobEntry]) -> Iterator[Details]:
    """Yield the commands of each job, folded below what became of it."""
    # The processes that repeat a command differ in nothing but their time.
    alike = grouped(
        ((job.workload, job.profiler, job.cases, job.argv, job.reused_from, job.status, job.interrupted, job.lane), job)
        for job in entries
        if job.argv
    )
    for own in alike.values():
        job, seconds = own[0], sum(job.seconds for job in own)
        status = Status.INTERRUPTED if job.interrupted else job.status
        processes = f", {len(own)} processes" if len(own) > 1 else ""
        place = f", on {job.lane}, beside other jobs" if job.lane else ""
        ended = "" if status is Status.OK else f", {status}"
        took = f", {seconds:.1f} s" if seconds else ""
        took = f", reused from {job.reused_from}" if job.reused_from else took
        lines = "\n".join(map(shlex.join, job.argv))
        yield Details(f"{job.workload} under {job.profiler}{processes}{took}{place}{ended}", (CodeBlock(lines),))
