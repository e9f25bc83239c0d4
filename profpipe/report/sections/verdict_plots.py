"""The verdicts of an `ab` run as a forest plot, and the page of each case, for report.html."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from profpipe.analysis.pairs import CaseVerdict, PairFindings
from profpipe.report import document as doc
from profpipe.report.labels import fill
from profpipe.report.sections import kernel_differences
from profpipe.report.sections.verdicts import NAMES, name, verdicts
from profpipe.results.manifest import Manifest

#: Rows of the plot; a larger run has its other cases in the table.
_MOST_ROWS = 60


def forest(findings: PairFindings) -> doc.Section:
    """Return the difference of each case with its interval, those that change the most time first."""
    judged = [case for case in findings.cases if case.judgement]
    judged.sort(key=lambda case: -abs(case.difference_ns))
    rows = judged[:_MOST_ROWS]
    if not rows:
        return doc.Section("forest", "")
    series = tuple(
        doc.Series(words, verdict.value, tuple(
            _mark(i, case) for i, case in enumerate(rows) if case.judgement and case.judgement.verdict is verdict
        ))
        for verdict, words in NAMES.items()
    )  # fmt: skip
    beyond = f" The {len(judged) - len(rows)} others are in the table." if len(judged) > len(rows) else ""
    several = len({case.workload for case in rows}) > 1
    chart = doc.Chart(
        "forest",
        "B - A of each case",
        doc.ChartKind.FOREST,
        doc.Axis("case", labels=tuple(name(case) if several else name(case).partition("/")[2] for case in rows),
                 cases=tuple(map(name, rows))),
        doc.Axis("B - A in %: right of zero, B takes longer", quantity="change"),
        {"": tuple(each for each in series if each.marks)},
        f"Whiskers: 99 % interval. Grey: the smallest difference that counts. The first cases change the most time."
        f"{beyond}",
        doc.Placement.HTML,
        keys=tuple(verdict.value for verdict in NAMES),
        references=(doc.Reference(doc.ReferenceKind.LEVEL, 0.0),),
    )  # fmt: skip
    return doc.Section("forest", "Differences", (chart,))


def _mark(row: int, case: CaseVerdict) -> doc.Mark:
    judged = case.judgement
    assert judged is not None
    low, high = (None if end is None else end - 1 for end in (judged.ci_low, judged.ci_high))
    why = doc.plain(kernel_differences.explain(case))
    return doc.Mark(float(row), judged.ratio - 1, low, high, case=name(case), floor=judged.floor, note=why)


def case_pages(findings: PairFindings, run: Manifest) -> tuple[doc.Section, ...]:
    """Return the page of each case: its verdict, the difference of each pair, and the kernels behind it."""
    return tuple(_page(findings, case, run) for case in findings.cases)


def _page(findings: PairFindings, case: CaseVerdict, run: Manifest) -> doc.Section:
    alone = replace(findings, cases=(case,), gates=())
    parts = (verdicts(alone, run), kernel_differences.kernel_differences(alone))
    why = kernel_differences.explain(case)
    blocks = [doc.Paragraph(fill("By kernel: {}.", why), doc.Placement.HTML)] if why else []
    # The sections of an `ab` run belong to no workload.
    made = doc.make_section(name(case), doc.Code(name(case)), [*blocks, *_pairs(case)])
    return replace(made, title=doc.Code(name(case)), sections=tuple(part for part in parts if part))


def _pairs(case: CaseVerdict) -> Iterator[doc.Chart]:
    """Yield the difference of each pair in their order."""
    if len(case.log_ratios) < 2:
        return
    marks = tuple(doc.Mark(float(i), math.expm1(own)) for i, own in enumerate(case.log_ratios, start=1))
    references = [doc.Reference(doc.ReferenceKind.LEVEL, 0.0, "the same")]
    if case.judgement:
        references.append(doc.Reference(doc.ReferenceKind.LEVEL, case.judgement.ratio - 1, "estimate"))
    yield doc.Chart(
        "pairs",
        "B - A of each pair of processes",
        doc.ChartKind.STRIP,
        doc.Axis("pair"),
        doc.Axis("B - A", quantity="change"),
        {"": (doc.Series("pair", "pair", marks),)},
        placement=doc.Placement.HTML,
        references=tuple(references),
    )
