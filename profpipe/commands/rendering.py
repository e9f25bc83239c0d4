"""Write the report of a run or of ingested files, and print the requested part of it."""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from profpipe import plugins
from profpipe.analysis import analyze, bisect, kernel_differences, pairs
from profpipe.analysis.bisect import Bisection
from profpipe.analysis.changes import Gate, choose_exit_code
from profpipe.analysis.findings import Findings
from profpipe.analysis.pairs import PairFindings
from profpipe.commands import arguments
from profpipe.errors import GATE_UNDECIDED, OK, ConfigError
from profpipe.job import Status
from profpipe.report import (
    answer_json,
    first_screen,
    html_page,
    pages,
    render,
    results_json,
    text as page_text,
    text_files,
)
from profpipe.report.document import Document
from profpipe.report.screen import Screen
from profpipe.report.sections import verdicts
from profpipe.results import atomic, raw_files, schema
from profpipe.results.manifest import Manifest
from profpipe.results.schema import Tables

#: The name of the template of SUMMARY.md in a folder ``templates``.
TEMPLATE: Final = "SUMMARY.md.j2"


@dataclass(frozen=True)
class RunReport:
    """What a run, or ingested files, show. ``expectations_failed``: one of the pipeline file was not met.

    ``pairs`` are the findings of an `ab` run, and ``bisection`` those of `bisect`: both have no ``findings``.
    """

    summary: Path
    data: Tables
    manifest: Manifest
    exit_code: int
    expectations_failed: bool
    findings: Findings | None = None
    pairs: PairFindings | None = None
    bisection: Bisection | None = None
    raw: raw_files.RawFiles = render.NO_RAW_FILES

    @cached_property
    def document(self) -> Document:
        """The pages."""
        if self.pairs is not None:
            return render.build_pairs(self.pairs, self.data, self.manifest)
        if self.bisection is not None:
            return render.build_bisection(self.bisection, self.data, self.manifest)
        assert self.findings is not None
        return render.build(self.findings, self.data, self.manifest, self.raw)

    @cached_property
    def first_screen(self) -> Screen:
        """What the terminal shows of the pages."""
        return first_screen.show_document(self.document)

    @cached_property
    def results(self) -> dict[str, Any]:
        """The document of results.json. A run of `ab` or `bisect` has that of its verdicts in its place."""
        assert self.findings is not None
        return results_json.document(self.findings, self.data, self.manifest)


def find_templates(pipeline_dir: Path | None = None, not_below: Path | None = None) -> dict[str, Path]:
    """Return the files that make the pages by their names: each from ``pipeline_dir``, else the built-in one.

    ``TEMPLATE`` makes SUMMARY.md and details.md, the others make report.html. Files in the folder ``not_below``, which
    may come from somebody else, are not used.
    """

    def find(name: str) -> Path:
        path = plugins.find("templates", name, pipeline_dir)
        if path is not None and not_below is not None and path.resolve().is_relative_to(not_below):
            path = plugins.find("templates", name)
        if path is None:
            raise ConfigError(f"templates/{name}", "is missing.", "Install profpipe again.")
        return path

    return {name: find(name) for name in (TEMPLATE, *html_page.FILES)}


def write_report(
    folder: Path,
    data: Tables,
    manifest: Manifest,
    templates: Mapping[str, Path] | None = None,
    pair_findings: PairFindings | None = None,
) -> RunReport:
    """Write SUMMARY.md, its pictures, report.html and the text files into ``folder``.

    The default are the built-in templates. ``pair_findings`` are the verdicts of an `ab` run, if any.
    """
    templates = templates or find_templates()
    raw = render.NO_RAW_FILES if manifest.ab is not None else raw_files.read(folder, manifest)
    result = judge(folder, page_text.shorten_tables(data), manifest, pair_findings, raw)
    if result.findings is not None:
        texts = text_files.texts(result.findings, result.data, manifest)
        for name, text in {**texts, results_json.FILE: results_json.text(result.results)}.items():
            atomic.write_text(folder / name, text)
    pages.write(result.document, folder, templates[TEMPLATE])
    html_page.write(result.document, folder, templates)
    return result


def read_report(folder: Path, data: Tables, manifest: Manifest) -> RunReport:
    """Return the report of a run, and write nothing."""
    return judge(folder, page_text.shorten_tables(data), manifest)


def judge(
    folder: Path,
    data: Tables,
    manifest: Manifest,
    pair_findings: PairFindings | None = None,
    raw: raw_files.RawFiles = render.NO_RAW_FILES,
) -> RunReport:
    """Return what a run shows. ``pair_findings`` are the verdicts of an `ab` run, if any."""
    if manifest.ab is not None:
        return _judge_pairs(folder, data, manifest, pair_findings or pairs.analyze(data, manifest))
    if manifest.bisect is not None:
        bisection = bisect.analyze(manifest.bisect)
        code = GATE_UNDECIDED if bisection.culprit is None else OK
        return RunReport(folder / "SUMMARY.md", data, manifest, code, expectations_failed=False, bisection=bisection)
    findings = analyze.analyze(data, manifest)
    is_bad = data.cases["status"].isin([*schema.FAILED, Status.INTERRUPTED.value]).any()
    is_failure = is_bad or findings.failed or bool(manifest.refused)
    code = choose_exit_code(None, bool(is_failure))
    expectations_failed = findings.expectations_failed
    return RunReport(folder / "SUMMARY.md", data, manifest, code, expectations_failed, findings=findings, raw=raw)


def _judge_pairs(folder: Path, data: Tables, manifest: Manifest, findings: PairFindings) -> RunReport:
    """Return the result of an `ab` run."""
    timed = data.cases[data.cases["profiler"] == "plain"]
    is_bad = timed["status"].isin([*schema.FAILED, Status.INTERRUPTED.value]).any()
    tried = manifest.ab.tried if manifest.ab else None
    if tried is not None and not tried.unchanged.ns:
        is_bad = is_bad or any(job.status.is_failure and job.returncode != 0 for job in manifest.jobs)
    # A capture that failed costs no verdict: the page names it.
    is_bad = is_bad or not all(kernel_differences.is_of_capture(refused.source) for refused in manifest.refused)
    code = choose_exit_code(findings.gate, bool(is_bad))
    return RunReport(folder / "SUMMARY.md", data, manifest, code, expectations_failed=False, pairs=findings)


def print_result(
    result: RunReport, args: argparse.Namespace, exit_code: int | None = None, *, is_measured: bool = True
) -> None:
    """Print the first screen of the report, its path alone (``--quiet``), or one JSON object (``--json``).

    A JSON object may go into a file instead. A report that is not ``is_measured`` is that of a stored run.
    """
    full = functools.partial(as_json, result, exit_code)
    arguments.print_report(
        args, result.summary, lambda: result.first_screen, lambda: as_answer(result, exit_code), full
    )
    if result.expectations_failed:
        what = "a kernel family that was expected did not run, or too little of the kernels' time is classified"
        print(f"profpipe: {what}. SUMMARY.md says which.", file=sys.stderr)
    gate = result.pairs.gate if result.pairs else None
    if gate and gate.verdict is not Gate.PASSED:
        cases = gate.failed or gate.open
        why = "; ".join(map(verdicts.write_verdict, cases[:_MOST_NAMED])) or "cases are missing"
        more = f"; {len(cases) - _MOST_NAMED} more" if len(cases) > _MOST_NAMED else ""
        state = "failed" if gate.verdict is Gate.FAILED else "is undecided"
        of_run = (
            "" if is_measured else f"nothing was measured now. In the stored run of {result.manifest.started[:10]} "
        )
        print(f"profpipe: {of_run}the gate of {gate.percent:g} % {state}: {why}{more}.", file=sys.stderr)


#: Cases that a message names; more are counted.
_MOST_NAMED = 4


def as_answer(result: RunReport, exit_code: int | None = None) -> dict[str, Any]:
    """Return the short document, without the path of the folder."""
    findings = result.findings or result.pairs or result.bisection
    assert findings is not None
    return answer_json.select_report(result.document, findings, result.manifest, as_json(result, exit_code))


def as_json(result: RunReport, exit_code: int | None = None) -> dict[str, Any]:
    """Return the document of results.json; of a run of `ab` or `bisect` that of its verdicts."""
    summary, code = str(result.summary.resolve()), result.exit_code if exit_code is None else exit_code
    if result.bisection is not None:
        return results_json.bisect_document(result.bisection, result.manifest, summary, code)
    if result.pairs is None:
        return result.results
    return results_json.verdict_document(result.pairs, result.data, result.manifest, summary, code)
