"""Findings -> SUMMARY.md, its plots and the text files beside it.

What is said of a workload comes from ``chapters``; in which order, from the template, which users may replace.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2

from profpipe.errors import ProfpipeError
from profpipe.findings import Findings
from profpipe.page import caveats, companions, files, plots, same_launches, skips, study_plots, study_sheets
from profpipe.page.chapters import chapter
from profpipe.page.markdown import Sheet, code, escape, listed
from profpipe.page.quantities import duration, number, percent, size_unit
from profpipe.page.study_sheets import Written
from profpipe.page.wording import case_id
from profpipe.points import shown
from profpipe.study_findings import Study
from profpipe.tables import Tables

#: A link of the page to what a profiler left, and a picture on it.
_TO_RAW = re.compile(r"\[([^\]]+)\]\((raw/[^)]+)\)")
_PLOT = re.compile(r"!\[[^\]]*\]\((plots/[\w.-]+)\)")


def render(findings: Findings, tables: Tables, run: Mapping[str, Any], folder: Path, template: Path) -> Path:
    """Writes plots, text files and last SUMMARY.md into ``folder``, each whole or not at all; returns its path."""
    drawn = plots.draw(findings, folder)
    without_gpu, alone = caveats.without_gpu(run), len(findings.workloads) < 2
    chapters = [chapter(w, findings, drawn, without_gpu) for w in findings.workloads]
    asked = [(study.title, study_plots.draw(study, folder)) for study in findings.plots]
    for name, text in companions.texts(findings, tables, run).items():
        _write(folder / name, text)
    page = _filled(
        template,
        title=_title(findings, run, tables),
        chapters=chapters,
        study_plots=[plot for _, pictures in asked for plot in pictures],
        undrawn=listed((escape(title) for title, pictures in asked if not pictures), most=4),
        first_studies=[study_sheets.written(study) for study in findings.studies if study.first],
        studies=_studies([study for study in findings.studies if not study.first]),
        doubts=caveats.doubts(findings, run, alone),
        skipped=skips.skipped(findings, alone),
        expectations=caveats.expectations_met(findings),
        coverage=caveats.coverage(findings),
        unclassified=_unclassified(findings),
        failures=list(_failures(findings, alone)),
        files=files.held(run),
        remarks=[
            *(caveats.outside(u, alone) for u in findings.unattributed if caveats.is_remark(u)),
            *caveats.set_up(findings, alone),
            *files.remarks(run),
            *same_launches.said(findings),
            *caveats.notes(findings, run),
        ],
        environment=list(_environment(run)),
        tools=_tools(run),
        commands=list(_commands(run)),
        command=_command(run.get("command")),
    )
    text, before = _with_living_links(_tidy(page), folder), _plots_of(folder / "SUMMARY.md")
    written = _write(folder / "SUMMARY.md", text)
    # Other pictures in the folder are somebody's own.
    for plot in before - set(_PLOT.findall(text)):
        (folder / plot).unlink(missing_ok=True)
    return written


def _with_living_links(page: str, folder: Path) -> str:
    """What the profilers wrote may have been left behind when the run was copied: it is then named, and not linked."""
    return _TO_RAW.sub(lambda link: link[0] if (folder / _unescaped(link[2])).exists() else link[1], page)


def _unescaped(markdown: str) -> str:
    return re.sub(r"\\(.)", r"\1", markdown)


def _plots_of(page: Path) -> set[str]:
    """The pictures that a page shows, whoever has edited it since."""
    return set(_PLOT.findall(page.read_text(encoding="utf-8", errors="replace"))) if page.is_file() else set()


def _filled(template: Path, **told: Any) -> str:
    """The template with what is told put into it; raises for one of the user's own that is wrong or out of date."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(template.parent),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters.update(code=code, escape=escape, duration=duration, percent=percent)
    try:
        return environment.get_template(template.name).render(told)
    except jinja2.TemplateError as error:
        line = f":{error.lineno}" if isinstance(error, jinja2.TemplateSyntaxError) else ""
        remedy = "Compare it with the template of this version of profpipe; the tables are written."
        raise ProfpipeError(f"{template}{line}: {error.message}. {remedy}") from error


def _studies(asked: Sequence[Study]) -> list[Written]:
    """What cases share is said once where tables follow one another."""
    return [study_sheets.written(study, before=before) for before, study in zip((None, *asked), asked, strict=False)]


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


def _title(findings: Findings, run: Mapping[str, Any], tables: Tables) -> str:
    """A study of several workloads goes by its own name, and its headings name them; files from elsewhere have none."""
    names, own = [escape(w.name) for w in findings.workloads], (run.get("pipeline") or {}).get("name") or ""
    named = escape(own) if own and len(names) > 1 else listed(names, most=3) or escape(run.get("name") or "profpipe")
    cases = f"{findings.cases} case{'s' if findings.cases != 1 else ''}" if findings.cases else ""
    return " · ".join(part for part in (named, cases, escape(_machine(run, tables)), _date(run)) if part)


def _machine(run: Mapping[str, Any], tables: Tables) -> str:
    """The GPU, or the CPU where the run says that there is none, or what the files say."""
    machine = run.get("machine") or {}
    if gpus := machine.get("gpus"):
        names = list(dict.fromkeys(str(gpu.get("name", "GPU")) for gpu in gpus))
        if len(names) > 1:
            used = [str(one.get("device")) for job in run.get("jobs") or () for one in job.get("devices") or ()]
            return listed(dict.fromkeys(used or names), most=3)
        if (count := _used_at_once(run, tables)) is not None and count < len(gpus):
            return f"{count} of {len(gpus)} {names[0]}"
        return (f"{len(gpus)} x " if len(gpus) > 1 else "") + names[0]
    if "gpus" in machine:
        return f"{machine['cpu']}, no GPU" if machine.get("cpu") else "CPU, no GPU"
    return listed(dict.fromkeys(str(f["device"]) for f in run.get("files") or () if f.get("device")), most=3)


def _used_at_once(run: Mapping[str, Any], tables: Tables) -> int | None:
    """How many GPUs the jobs used at once at most; None where one that ran does not say.

    Each process tells the one that it began on. Those that one uses beside it are known from the kernels on them.
    """
    jobs = (job for job in run.get("jobs") or () if job.get("status") != "skipped")
    ran = [job.get("devices") or [{}] for job in jobs if job.get("returncode", 0) is not None]
    told = [[one.get("count") for one in devices if one.get("device") != "cpu"] for devices in ran]
    if any(None in of_job for of_job in told):
        return None
    seen = tables.kernels.groupby(["workload", "profiler"])["device"].nunique()
    return max([*map(sum, told), *seen]) or None if told else None


def _date(run: Mapping[str, Any]) -> str:
    try:
        return datetime.fromisoformat(str(run.get("started", "")).replace("Z", "+00:00")).strftime("%Y-%m-%d %H:%M UTC")
    except ValueError:
        return ""


# --- the run ---------------------------------------------------------------------------------------------------------


def _unclassified(findings: Findings) -> Sheet:
    rows = [[escape(c.workload), code(name), percent(share)] for c in findings.coverage for name, share in c.largest]
    noun = "operator" if caveats.on_cpu(findings) else "kernel"
    sheet = Sheet(["workload", f"{noun} that no rule classifies", "% of the workload's time"], rows, labels=2)
    return sheet if len(findings.workloads) > 1 else sheet.without("workload")


def _failures(findings: Findings, alone: bool) -> Iterator[str]:
    """The cases of each fate by name; why, and where the log is, is among the doubts."""
    ended = [group for group in findings.not_run if group.status != "skipped" and group.cases]
    for (fate, profilers, workload), groups in caveats.by_fate(ended, findings).items():
        cases = dict.fromkeys(case for group in groups for case in group.cases)
        of = "" if alone else f" of {code(workload)}"
        yield f"{fate}{of} under {listed(map(code, profilers))}: {listed(map(case_id, cases), most=20)}."


def _environment(run: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    machine = run.get("machine") or {}
    for i, gpu in enumerate(machine.get("gpus") or ()):
        yield f"GPU {i}", _gpu(gpu)
    for key, title in (("peaks", "peak rates"), ("ceilings", "measured rates")):
        if rates := _rates(machine.get(key) or {}):
            yield title, rates
    own = [
        (f"peak rates of {job['workload']}", _rates(job["peaks"])) for job in run.get("jobs") or () if "peaks" in job
    ]
    yield from dict.fromkeys((title, rates) for title, rates in own if rates)
    if machine.get("cpu"):
        yield "CPU", f"{machine['cpu']}" + (f", {machine['cpu_count']} CPUs" if machine.get("cpu_count") else "")
    for key, title in (("os", "system"), ("python", "Python")):
        if machine.get(key):
            yield title, str(machine[key])
    if packages := run.get("packages"):
        yield "packages", ", ".join(f"{name} {version}" for name, version in packages.items() if version)
    if git := {key: value for key, value in (run.get("git") or {}).items() if value not in (None, "")}:
        yield "git", ", ".join(f"{key} {shown(value)}" for key, value in git.items())
    for key in ("started", "ended"):
        if run.get(key):
            yield key, str(run[key])


def _rates(stated: Mapping[str, Any]) -> str:
    """``fp16 711.4, int8 939.1 TFLOP/s, memory 4249 GB/s; measured on such a GPU``: the rates, and what gave them."""
    flops = ", ".join(f"{dtype} {number(rate / 1e12)}" for dtype, rate in (stated.get("flops") or {}).items() if rate)
    moved = stated.get("bytes_per_s")
    rates = [f"{flops} TFLOP/s" if flops else "", f"memory {number(moved / 1e9)} GB/s" if moved else ""]
    told = [", ".join(rate for rate in rates if rate), str(stated.get("source") or "")]
    return "; ".join(part for part in told if part)


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
            rows.append(
                [code(name), escape(tool.get("version") or ("built in" if name == "plain" else "found")), escape(told)]
            )
    return Sheet(["profiler", "version", ""], rows, labels=3)


def _commands(run: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(title, shell lines) for each job."""
    for job in run.get("jobs") or ():
        if argvs := job.get("argv"):
            fate = "" if job.get("status", "ok") == "ok" else f", {_ended(job)}"
            took = f", {job['seconds']:.1f} s" if job.get("seconds") else ""
            took = f", reused from {job['reused_from']}" if job.get("reused_from") else took
            title = f"{job.get('workload', '')} under {job.get('profiler', '')}{took}{fate}"
            yield title, "\n".join(map(_command, argvs))


def _ended(job: Mapping[str, Any]) -> str:
    """How a job ended that did not end well: what was stopped from outside has not failed."""
    return "interrupted" if job.get("interrupted") else str(job["status"])


def _command(argv: Any) -> str:
    """A command as one types it: an argv quoted for the shell; text as it is."""
    return shlex.join(map(str, argv)) if isinstance(argv, (list, tuple)) else str(argv or "")
