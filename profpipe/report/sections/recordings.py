"""Recordings of several files side by side: which tool and GPU each comes from, and where its kernel time goes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePath
from typing import NamedTuple

from profpipe.analysis.findings.workloads import Findings, KernelBreakdown
from profpipe.report import document as doc
from profpipe.report.sections.plots import pieces
from profpipe.report.units import Unit, time_unit
from profpipe.results.manifest import FileEntry, Manifest


class _Recording(NamedTuple):
    name: str
    breakdown: KernelBreakdown
    file: FileEntry


def recordings(findings: Findings, run: Manifest) -> doc.Section:
    """Return the shares of the kernel time by file; empty for a run, and for fewer than two files with kernels."""
    # The files without cases whose kernels were recorded, in their order.
    found = [
        _Recording(workload.name, case.breakdown, file)
        for workload in findings.workloads
        if not run.is_run and (file := _file_of(workload.name, run.files))
        for case in workload.cases
        if not case.id and case.breakdown and case.breakdown.kind == "kernel"
    ]
    summary = (
        "The files were recorded elsewhere, by the tools and on the GPUs that they name. The shares of their kernel"
        " time can be compared; their times are of different programs and machines."
    )
    blocks = (_table(found), _chart(found)) if len(found) > 1 else ()
    return doc.make_section("recordings", "Recordings side by side", blocks, summary)


def _file_of(workload: str, files: Iterable[FileEntry]) -> FileEntry | None:
    """Return the file of a workload, which is named like the file, with as many of its folders as make it unique.

    The path may have fewer parts than the name, where it starts at the current folder.
    """
    name, alike = PurePath(workload).parts, []
    for file in files:
        path = PurePath(file.source).parts
        depth = min(len(path), len(name))
        if depth and path[-depth:] == name[-depth:]:
            alike.append((depth, file))
    return max(alike, key=lambda pair: pair[0])[1] if alike else None


def _table(found: list[_Recording]) -> doc.Table:
    unit = time_unit(each.file.total_ns or 0.0 for each in found)
    columns = [
        (doc.label("file"), lambda each: each.name),
        (doc.label("tool"), lambda each: f"{each.file.tool} {each.file.tool_version}".strip()),
        (doc.label("GPU"), lambda each: each.file.device or "not named"),
        (doc.count("launches"), lambda each: each.file.launches),
        (doc.Column("total", "kernel time", unit), lambda each: each.file.total_ns),
    ]
    return doc.table_of("recordings", found, columns)


def _chart(found: list[_Recording]) -> doc.Chart:
    breakdowns = [each.breakdown for each in found]
    series = tuple(
        doc.Series(
            piece.name,
            piece.key,
            tuple(doc.Mark(i, piece.of(each).ns / each.total.ns) for i, each in enumerate(breakdowns)),
        )
        for piece in pieces(breakdowns)
    )
    return doc.Chart(
        "recordings-share",
        "Kernel time by recording",
        doc.ChartKind.STACKED_BARS,
        doc.Axis("file", labels=tuple(f"{each.name} ({each.file.tool})" for each in found)),
        doc.Axis("% of the kernel time of the file", Unit("%", 0.01), quantity="share"),
        {"": series},
        subtitle="Recorded elsewhere",
    )
