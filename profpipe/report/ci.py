"""Verdicts for CI: JUnit XML, and the files and messages that GitHub Actions reads.

Sources: the JUnit schema of Jenkins' xunit plugin; GitHub, "Workflow commands for GitHub Actions".
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final
from xml.etree import ElementTree

from profpipe.analysis.changes import Change, Gate, GateResult
from profpipe.analysis.pairs import PairFindings
from profpipe.job import readable
from profpipe.report import document as doc
from profpipe.report.labels import plural
from profpipe.report.markdown import Markdown
from profpipe.report.sections.verdicts import write_verdict
from profpipe.results.manifest import Undecided
from profpipe.results.schema import FAILED, Verdict
from profpipe.stdio import visible_line

#: GitHub refuses a longer job summary.
MOST_SUMMARY_BYTES: Final = 1 << 20
#: GitHub shows so many messages of each kind for a step.
_MOST_ANNOTATIONS: Final = 10

#: Rows of a table above the fold; a few more are not worth one.
_MOST_ROWS: Final = 30
_FEW_MORE: Final = 5
#: Sections that are folded as a whole.
_BACKGROUND: Final = ("kernel_differences", "environment", "commands")


def junit(findings: PairFindings, name: str) -> str:
    """Return the verdicts as JUnit XML: a suite for each workload, a test for each case.

    A case that fails the gate is a failure, and another one that failed is an error. An undecided one is skipped, or a
    failure with ``--inconclusive fail``.
    """
    root = ElementTree.Element("testsuites", name=name)
    for workload in dict.fromkeys(case.workload for case in findings.cases):
        suite = ElementTree.SubElement(root, "testsuite", name=workload)
        for case in findings.cases:
            if case.workload == workload:
                _add_test(suite, case, _choose_outcome(case, findings.gate))
        suite.set("tests", str(len(suite)))
        for outcome, attribute in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
            suite.set(attribute, str(len(suite.findall(f"testcase/{outcome}"))))
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _add_test(suite: ElementTree.Element, case: Change, outcome: str | None) -> None:
    test = ElementTree.SubElement(suite, "testcase", classname=case.workload, name=readable(case.case))
    if not math.isnan(case.b_ns):
        test.set("time", f"{case.b_ns / 1e9:.9f}")
    if outcome is not None:
        ElementTree.SubElement(test, outcome, message=write_verdict(case))
    ElementTree.SubElement(test, "system-out").text = write_verdict(case)


def _choose_outcome(case: Change, gate: GateResult | None) -> str | None:
    judged = gate.judge(case) if gate else None
    if judged is Gate.FAILED or (gate and judged is Gate.UNDECIDED and gate.undecided is Undecided.FAIL):
        return "failure"
    if case.failure and case.failure.status in FAILED:
        return "error"
    if judged is Gate.UNDECIDED or case.judgement is None:
        return "skipped"
    return None


def workflow_commands(findings: PairFindings) -> Iterator[str]:
    """Yield the workflow commands that show an error for what fails the gate and a warning for what is undecided."""
    if (gate := findings.gate) is None:
        return
    for kind, cases in (("error", gate.failed), ("warning", gate.open)):
        messages = [write_verdict(case) for case in cases]
        if len(messages) > _MOST_ANNOTATIONS:
            kept = messages[: _MOST_ANNOTATIONS - 1]
            messages = [*kept, f"{len(messages) - len(kept)} more cases: see the job summary"]
        for message in messages:
            # In a message `%` begins an encoded character.
            encoded = message.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
            yield f"::{kind} title=profpipe gate of {gate.percent:g} %25::{encoded}"


def outputs(findings: PairFindings, folder: str) -> str:
    """Return the outputs of the step as ``name=value`` lines: the gate, the number of each verdict, and the folder."""
    counts = {str(verdict): findings.count(verdict) for verdict in Verdict}
    gate = findings.gate.verdict.value if findings.gate else "none"
    fields = {"gate": gate, "cases": len(findings.cases), **counts, "folder": visible_line(folder)}
    return "".join(f"{name}={value}\n" for name, value in fields.items())


# --- the job summary -------------------------------------------------------------------------------------------------


def job_summary(document: doc.Document, findings: PairFindings, folder: str) -> str:
    """Return the page of an `ab` run as a job summary of less than 1 MiB.

    The answer and the cases that changed come first; the other cases, the machine and the command are folded.
    ``folder`` is the run's folder, which has all cases.
    """
    end = f"\n\nAll cases: `verdicts.parquet`, `details.md` and `report.html` in `{folder}`.\n"
    room = MOST_SUMMARY_BYTES - len(end.encode()) - 1
    document = document.without(doc.OnPage.HTML)
    # GitHub does not have the other files of the run, so links to them would be broken.
    writer = Markdown(exists=lambda path: False, names_workloads=len(document.workloads) > 1)
    for most_folded in (1000, 200, 0):
        sections = (writer.section(_folded(section, findings, most_folded)) for section in document.sections)
        text = "\n\n".join([f"# {writer.text(document.title)}", *filter(None, sections)])
        # Keep a number and its unit on one line where a cell wraps.
        text = re.sub(r"(?<=\d) %(?= )", "&nbsp;%", text)
        if len(text.encode()) <= room:
            break
    else:
        # Nothing is folded now, so that a cut between lines leaves no fold open.
        text = text.encode()[:room].decode(errors="ignore").rpartition("\n")[0]
    return text.rstrip("\n") + end


def _folded(section: doc.Section, findings: PairFindings, most_folded: int) -> doc.Section:
    """Return the section with the first rows of its tables. At most ``most_folded`` more rows follow below a fold."""
    blocks: list[doc.Block] = []
    for block in section.blocks:
        if isinstance(block, doc.TableBlock) and block.placement is not doc.OnPage.DETAILS:
            decided = findings.count(Verdict.SLOWER) + findings.count(Verdict.FASTER)
            changed = decided if block.id == "verdicts" and decided else _MOST_ROWS
            blocks += _divided(block, min(changed, _MOST_ROWS), most_folded)
        elif not isinstance(block, doc.Details) and (most_folded or block.placement is not doc.OnPage.DETAILS):
            blocks.append(block)
    sections = tuple(_folded(child, findings, most_folded) for child in section.sections)
    if section.id not in _BACKGROUND:
        return replace(section, blocks=tuple(blocks), sections=sections)
    fold = (doc.Details(section.title, tuple(blocks)),) if blocks and most_folded else ()
    return replace(section, title="", summary="", blocks=fold, sections=())


def _drop_empty_columns(table: doc.TableBlock) -> doc.TableBlock:
    columns = zip(table.columns, zip(*table.rows, strict=True), strict=True)
    return table.without(*(column.id for column, cells in columns if all(cell.is_empty for cell in cells)))


def _counted(table: doc.TableBlock, rows: Sequence[Sequence[doc.TableCell]]) -> str:
    """Return ``190 more rows``; of a table of verdicts ``190 more cases: 20 inconclusive, 170 same``."""
    at = next((i for i, column in enumerate(table.columns) if column.id == "verdict"), None)
    if at is None:
        return plural(len(rows), "more row")
    counts = Counter(doc.plain(row[at].text) for row in rows)
    return f"{plural(len(rows), 'more case')}: {', '.join(f'{count} {name}' for name, count in counts.items())}"


def _divided(table: doc.TableBlock, rows: int, most_folded: int) -> Iterator[doc.Block]:
    """Yield the first rows of a table, a fold with further ones, and how many are left out."""
    if len(table.rows) <= rows + _FEW_MORE:
        yield table
        return
    yield _drop_empty_columns(replace(table, rows=table.rows[:rows]))
    if rest := table.rows[rows : rows + most_folded]:
        yield doc.Details(_counted(table, rest), (replace(table, rows=rest, title=""),))
    if left := len(table.rows) - rows - len(rest):
        yield doc.Paragraph(f"{plural(left, 'row')} {'is' if left == 1 else 'are'} left out here.")
