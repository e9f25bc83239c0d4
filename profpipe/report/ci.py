"""Verdicts for CI: JUnit XML, and the files and messages that GitHub Actions reads.

Sources: the JUnit schema of Jenkins' xunit plugin; GitHub, "Workflow commands for GitHub Actions".
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final
from xml.etree import ElementTree

from profpipe.analysis.pairs import CaseVerdict, Gate, PairFindings
from profpipe.job import readable
from profpipe.report.sections.verdicts import write_verdict
from profpipe.results.manifest import Undecided
from profpipe.results.schema import Verdict

#: GitHub refuses a longer job summary.
MOST_SUMMARY_BYTES: Final = 1 << 20
#: GitHub shows so many messages of each kind for a step.
_MOST_ANNOTATIONS: Final = 10


def junit(findings: PairFindings, name: str) -> str:
    """Return the verdicts as JUnit XML: a suite for each workload, a test for each case.

    A case that fails the gate is a failure. An undecided one is skipped, or a failure with ``--inconclusive fail``.
    """
    root = ElementTree.Element("testsuites", name=name)
    gates = findings.gates or (None,) * len(findings.cases)
    judged = list(zip(findings.cases, gates, strict=True))
    for workload in dict.fromkeys(case.workload for case in findings.cases):
        suite = ElementTree.SubElement(root, "testsuite", name=workload)
        for case, gate in judged:
            if case.workload == workload:
                _add_test(suite, case, _outcome(case, gate, findings.undecided))
        suite.set("tests", str(len(suite)))
        for outcome, attribute in (("failure", "failures"), ("skipped", "skipped")):
            suite.set(attribute, str(len(suite.findall(f"testcase/{outcome}"))))
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _add_test(suite: ElementTree.Element, case: CaseVerdict, outcome: str | None) -> None:
    test = ElementTree.SubElement(suite, "testcase", classname=case.workload, name=readable(case.case))
    if not math.isnan(case.b_ns):
        test.set("time", f"{case.b_ns / 1e9:.9f}")
    if outcome is not None:
        ElementTree.SubElement(test, outcome, message=write_verdict(case))
    ElementTree.SubElement(test, "system-out").text = write_verdict(case)


def _outcome(case: CaseVerdict, gate: Gate | None, undecided: Undecided) -> str | None:
    if gate is Gate.FAILED or (gate is Gate.UNDECIDED and undecided is Undecided.FAIL):
        return "failure"
    if gate is Gate.UNDECIDED or case.judgement is None:
        return "skipped"
    return None


def workflow_commands(findings: PairFindings) -> Iterator[str]:
    """Yield the workflow commands that show an error for what fails the gate and a warning for what is undecided."""
    for kind, cases in (("error", findings.failed), ("warning", findings.open)):
        for case in cases[:_MOST_ANNOTATIONS]:
            # In a message `%` begins an encoded character.
            message = write_verdict(case).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
            yield f"::{kind} title=profpipe gate of {findings.percent:g} %25::{message}"


def outputs(findings: PairFindings) -> str:
    """Return the outputs of the step as ``name=value`` lines: the gate and the number of each verdict."""
    counts = "".join(f"{each}={findings.count(each)}\n" for each in Verdict)
    return f"gate={findings.gate.value if findings.gate else 'none'}\n{counts}"


def job_summary(page: str, folder: str) -> str:
    """Return SUMMARY.md as a job summary of less than 1 MiB; ``folder`` is the run's folder, which has the details."""
    end = f"\n\nTables and details: `{folder}`\n"
    # Links to other files of the run lead nowhere on GitHub. A page has at most 150 lines, which may be long.
    kept = page.encode()[: MOST_SUMMARY_BYTES - len(end.encode()) - 1].decode(errors="ignore")
    whole = kept if len(kept) == len(page) else kept.rpartition("\n")[0]
    return whole.rstrip("\n") + end
