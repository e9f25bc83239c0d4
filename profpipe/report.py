"""Findings -> SUMMARY.md, its plots and the text files beside it.

What is said comes from ``wording`` and ``sheets``; in which order, from the template, which users may replace.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2

from profpipe import caveats, companions, kernel_sheets, plots, sheets, wording
from profpipe.canvas import Plot
from profpipe.findings import Findings, Point, WorkloadFindings
from profpipe.markdown import Sheet, code, escape, listed
from profpipe.points import shown
from profpipe.quantities import duration, percent, size_unit
from profpipe.tables import Tables

#: Tables longer than this are folded.
_LONG = 24

#: Kernels of a case on the open page; the folded table has all that were kept.
_FIRST_KERNELS = 3


@dataclass(frozen=True)
class Block:
    """A table and where it goes: folded ones open at a click on their title."""

    title: str
    sheet: Sheet
    folded: bool = False


@dataclass(frozen=True)
class Chapter:
    """One workload, ready for the template."""

    workload: WorkloadFindings
    suffix: str
    answer: list[str]
    answers: Sheet
    marks: list[str]
    shares: list[Block]
    swaps: list[Block]
    agreement: list[Block]
    cases: list[Block]
    kernels: list[Block]
    memory: list[Block]
    compute: list[Block]
    phases: Block | None
    plots: Sequence[Plot]
    largest: str
    fixed: str
    quantity: str
    cpu: bool


def render(findings: Findings, tables: Tables, run: Mapping[str, Any], folder: Path, template: Path) -> Path:
    """Writes plots, text files and last SUMMARY.md into ``folder``, each whole or not at all; returns its path."""
    drawn = plots.draw(findings, folder)
    chapters = [_chapter(workload, findings, drawn) for workload in findings.workloads]
    for name, text in companions.texts(findings, tables, run).items():
        _write(folder / name, text)
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(template.parent),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters.update(code=code, escape=escape, duration=duration, percent=percent)
    page = environment.get_template(template.name).render(
        title=_title(findings, run),
        chapters=chapters,
        doubts=caveats.doubts(findings, run, alone=len(chapters) < 2),
        expectations=caveats.expectations_met(findings),
        coverage=caveats.coverage(findings),
        unclassified=_unclassified(findings),
        failures=list(_failures(findings)),
        files=_files(run),
        notes=caveats.notes(run) if caveats.on_cpu(findings) else [],
        outside=[caveats.outside(u, len(chapters) < 2) for u in findings.unattributed],
        private=_private(run),
        environment=list(_environment(run)),
        tools=_tools(run),
        commands=list(_commands(run)),
        command=_command(run.get("command")),
    )
    return _write(folder / "SUMMARY.md", _tidy(page))


def _write(path: Path, text: str) -> Path:
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)
    return path


def _tidy(page: str) -> str:
    """One blank line between blocks, whatever the template's conditions left."""
    lines: list[str] = []
    for line in page.splitlines():
        if line.strip() or (lines and lines[-1]):
            lines.append(line.rstrip())
    return "\n".join(lines).strip() + "\n"


def _title(findings: Findings, run: Mapping[str, Any]) -> str:
    names = listed((escape(w.name) for w in findings.workloads), most=3) or escape(run.get("name") or "profpipe")
    cases = f"{findings.cases} case{'s' if findings.cases != 1 else ''}" if findings.cases else ""
    return " · ".join(part for part in (names, cases, escape(_machine(run)), _date(run)) if part)


def _machine(run: Mapping[str, Any]) -> str:
    """The GPU, or the CPU where the run says that there is none, or what the files say."""
    machine = run.get("machine") or {}
    if gpus := machine.get("gpus"):
        return (f"{len(gpus)} x " if len(gpus) > 1 else "") + str(gpus[0].get("name", "GPU"))
    if "gpus" in machine:
        return f"{machine['cpu']}, no GPU" if machine.get("cpu") else "CPU, no GPU"
    return listed(dict.fromkeys(str(f["device"]) for f in run.get("files") or () if f.get("device")), most=3)


def _date(run: Mapping[str, Any]) -> str:
    try:
        return datetime.fromisoformat(str(run.get("started", "")).replace("Z", "+00:00")).strftime("%Y-%m-%d %H:%M UTC")
    except ValueError:
        return ""


# --- chapters --------------------------------------------------------------------------------------------------------


def _chapter(workload: WorkloadFindings, findings: Findings, drawn: Mapping[str, Sequence[Plot]]) -> Chapter:
    alone = len(findings.workloads) < 2
    doubted = {e.case for e in findings.expectations if e.workload == workload.name and not e.met}
    return Chapter(
        workload=workload,
        suffix="" if alone else f": {escape(workload.name)}",
        answer=wording.answer(workload, doubted, alone),
        answers=sheets.answers(workload) if workload.compare else Sheet([], []),
        marks=caveats.marks_explained(workload),
        shares=list(_shares(workload)),
        swaps=_by_shape(workload, sheets.swaps),
        agreement=list(_agreement(workload)),
        cases=list(_cases(workload)),
        kernels=list(_kernels(workload)),
        largest=wording.axes(workload.largest.axes) if workload.largest else "",
        memory=list(_counters(workload, kernel_sheets.MEMORY_FIGURES)),
        compute=list(_counters(workload, kernel_sheets.COMPUTE_FIGURES)),
        phases=Block("", kernel_sheets.phases(workload), folded=len(workload.phases) > _LONG)
        if workload.phases
        else None,
        plots=drawn.get(workload.name, ()),
        fixed=escape(", ".join(f"{axis} {shown(value)}" for axis, value in workload.fixed)),
        quantity=wording.quantity(workload.basis),
        cpu=any(point.split and point.split.kind == "cpu_op" for point in workload.points),
    )


def _by_shape(workload: WorkloadFindings, sheet_of: Any) -> list[Block]:
    """A table a shape: the largest open, the others folded."""
    ordered = sorted(workload.shapes, key=lambda shape: shape is not workload.largest)
    made = [(shape, sheet_of(shape)) for shape in ordered]
    made = [(shape, sheet) for shape, sheet in made if sheet]
    return [Block(wording.axes(shape.axes), sheet, folded=i > 0) for i, (shape, sheet) in enumerate(made)]


def _cases(workload: WorkloadFindings) -> Iterator[Block]:
    """Times and TFLOP/s by shape, those of the largest group open; then every number of every case."""
    pivots = sheets.pivots(workload)
    opened = 2 if len(pivots) > 1 and pivots[1][0].startswith("TFLOP/s") else 1
    for i, (title, sheet) in enumerate(pivots):
        yield Block(title, sheet, folded=i >= opened)
    timed = [point for point in workload.points if point.time]
    if timed and (workload.basis is None or workload.basis.timed or len(workload.points) > 1):
        yield Block("every number by case", sheets.cases(workload, timed), folded=bool(pivots) or len(timed) > _LONG)


def _shares(workload: WorkloadFindings) -> Iterator[Block]:
    if workload.compare:
        yield from _by_shape(workload, lambda shape: sheets.kernel_share(shape, workload.iterated))
        return
    points = [point for point in workload.points if point.split]
    for i in range(0, len(points), 4):
        group = points[i : i + 4]
        yield Block(listed(sheets.case_label(p) for p in group), sheets.classes(group), folded=i > 0)


def _open_points(workload: WorkloadFindings) -> tuple[list[Point], list[Point]]:
    """(cases of the largest shape, all others)."""
    largest = list(workload.largest.points) if workload.largest else []
    return largest, [point for point in workload.points if point not in largest]


def _agreement(workload: WorkloadFindings) -> Iterator[Block]:
    largest, _ = _open_points(workload)
    first = [a for a in workload.agreements if a.point in largest]
    rest = [a for a in workload.agreements if a.point not in largest]
    for title, group, folded in (("", first, False), ("the other cases", rest, True)):
        if group:
            yield Block(title, sheets.agreements(group), folded)


def _phases(workload: WorkloadFindings) -> Block | None:
    folded = len(workload.phases) > _LONG
    return Block("phases", kernel_sheets.phases(workload), folded) if workload.phases else None


def _kernels(workload: WorkloadFindings) -> Iterator[Block]:
    largest, _ = _open_points(workload)
    opened = kernel_sheets.top(workload.top, largest, limit=_FIRST_KERNELS, iterated=workload.iterated)
    if opened:
        yield Block("", opened)
    everything = kernel_sheets.top(workload.top, workload.points, limit=len(workload.top), iterated=workload.iterated)
    if len(everything.rows) > len(opened.rows):
        yield Block("all cases", everything, folded=True)
    if names := kernel_sheets.full_names(workload.top):
        yield Block("full names", names, folded=True)


def _counters(workload: WorkloadFindings, figures: Any) -> Iterator[Block]:
    largest, others = _open_points(workload)
    for title, points, folded in (("", largest, False), ("the other cases", others, True)):
        ids = {point.id for point in points}
        rows = [row for row in workload.counters if row.case in ids]
        sheet = kernel_sheets.counters(rows, workload.points, figures)
        if rows and len(sheet.head) > 3 - (len(workload.points) == 1):
            yield Block(title, sheet, folded or len(rows) > _LONG)


# --- the run ---------------------------------------------------------------------------------------------------------


def _unclassified(findings: Findings) -> Sheet:
    rows = [[code(name), percent(share)] for c in findings.coverage for name, share in c.largest]
    return Sheet(["kernel that no rule classifies", "% of its workload's time"], rows)


def _failures(findings: Findings) -> Iterator[str]:
    for group in findings.not_run:
        cases = caveats.which(group, findings, most=12) or "all its cases"
        where = listed((f"[{escape(log)}]({escape(log)})" for log in group.logs), most=6)
        who = listed(code(profiler) for profiler in group.profilers)
        yield (
            f"{caveats.fate(group)}: {code(group.workload)} under {who}, {cases}."
            + (f" {caveats.sentence(group.reason)}" if group.reason else "")
            + (f" Log: {where}." if where else "")
        )


def _files(run: Mapping[str, Any]) -> Sheet:
    """What each file with kernels holds, and the two sums that prove nothing was lost."""
    rows = []
    for f in run.get("files") or ():
        if f.get("total_ns") is None and not f.get("launches"):
            continue
        tool = " ".join(str(f[key]) for key in ("tool", "tool_version") if f.get(key))
        sums = [duration(f.get(key)) for key in ("total_ns", "attributed_ns", "unattributed_ns")]
        launches = str(f["launches"]) if f.get("launches") is not None else "–"
        rows.append([code(f.get("source", "")), escape(f.get("format", "")), escape(tool), launches, *sums,
                     escape(f.get("attribution", ""))])  # fmt: skip
    head = ["file", "format", "tool", "launches", "kernel time", "in cases", "outside every case", "placed in ranges"]
    return Sheet(head, rows, labels=3, words=frozenset({"placed in ranges"})).without_empty()


def _private(run: Mapping[str, Any]) -> bool:
    """Whether a file is kept that holds the environment of the profiled processes."""
    kept = [file for job in run.get("jobs") or () for file in job.get("files") or ()]
    names = [str(file.get("path", "")) if isinstance(file, Mapping) else str(file) for file in kept]
    return any(name.endswith((".nsys-rep", ".qdrep")) for name in names)


def _environment(run: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    machine = run.get("machine") or {}
    for i, gpu in enumerate(machine.get("gpus") or ()):
        yield f"GPU {i}", _gpu(gpu)
    peaks = machine.get("peaks") or {}
    if peaks.get("source"):
        yield "peak rates", str(peaks["source"])
    for key, title in (("cpu", "CPU"), ("cpu_count", "CPUs"), ("os", "system"), ("python", "Python")):
        if machine.get(key):
            yield title, str(machine[key])
    if packages := run.get("packages"):
        yield "packages", ", ".join(f"{name} {version}" for name, version in packages.items() if version)
    if git := {key: value for key, value in (run.get("git") or {}).items() if value not in (None, "")}:
        yield "git", ", ".join(f"{key} {shown(value)}" for key, value in git.items())
    for key in ("started", "ended"):
        if run.get(key):
            yield key, str(run[key])


def _gpu(gpu: Mapping[str, Any]) -> str:
    capability = gpu.get("compute_capability")
    dotted = ".".join(map(str, capability)) if isinstance(capability, (list, tuple)) else capability
    memory = gpu.get("memory_bytes")
    facts = [
        str(gpu.get("name", "")),
        size_unit([memory]).with_name(memory) if memory else "",
        f"{gpu['sm_count']} SMs" if gpu.get("sm_count") else "",
        f"compute capability {dotted}" if dotted else "",
        f"driver {gpu['driver']}" if gpu.get("driver") else "",
        f"CUDA {gpu['cuda']}" if gpu.get("cuda") else "",
    ]
    return ", ".join(fact for fact in facts if fact)


def _tools(run: Mapping[str, Any]) -> Sheet:
    rows = []
    for name, tool in (run.get("tools") or {}).items():
        if tool.get("missing"):
            rows.append(
                [
                    code(name),
                    "not here",
                    " ".join(caveats.sentence(tool.get(key)) for key in ("missing", "remedy")).strip(),
                ]
            )
        else:
            told = ", ".join(str(tool[key]) for key in ("variant", "path") if tool.get(key))
            rows.append([code(name), escape(tool.get("version") or "found"), escape(told)])
    return Sheet(["profiler", "version", ""], rows, labels=3)


def _commands(run: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(title, shell lines) for each job."""
    for job in run.get("jobs") or ():
        if argvs := job.get("argv"):
            fate = "" if job.get("status", "ok") == "ok" else f", {job['status']}"
            took = f", {job['seconds']:.1f} s" if job.get("seconds") else ""
            title = f"{job.get('workload', '')} under {job.get('profiler', '')}{took}{fate}"
            yield title, "\n".join(map(_command, argvs))


def _command(argv: Any) -> str:
    """A command as one types it: an argv quoted for the shell; text as it is."""
    return shlex.join(map(str, argv)) if isinstance(argv, (list, tuple)) else str(argv or "")
