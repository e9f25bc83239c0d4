"""The page of a run of `bisect`: the commit, its verdict against its parent, and the path taken as a picture."""

from __future__ import annotations

from collections.abc import Iterator

from profpipe.analysis import bisect
from profpipe.analysis.bisect import Bisection
from profpipe.analysis.verdict import Judgement
from profpipe.report import document as doc
from profpipe.report.labels import fill, percent
from profpipe.report.sections import environment
from profpipe.report.units import signed_percent
from profpipe.results import pair_blocks
from profpipe.results.manifest import BisectEntry, BisectKind, BisectPairs, Manifest
from profpipe.results.schema import Verdict

#: Characters of a commit's hash, and of its subject in the picture.
_HASH, _SUBJECT = 12, 40
#: Commits, and remarks on one, that a sentence names.
_MOST_NAMED = 8


def headline(findings: Bisection, run: Manifest) -> doc.Section:
    """Return the commit that is named, or why none is, and what the search rests on."""
    assert run.bisect is not None
    answer = doc.Paragraph(doc.Strong(_answer(findings, run.bisect)))
    return doc.make_section("headline", "", [answer, doc.Bullets(tuple(_facts(findings, run, run.bisect)))])


def _answer(findings: Bisection, entry: BisectEntry) -> doc.Text:
    if findings.whole is None:
        return "Nothing is measured so far."
    if not findings.is_different:
        return f"No difference is shown, so no commit is searched. BAD against GOOD: {_write(findings.whole)}."
    listed = doc.join((_name(entry, number) for number in findings.remaining), most=_MOST_NAMED, last=" or ")
    if findings.culprit is not None and findings.step:
        return fill(f"{{}} makes it {_write(findings.step)}.", listed)
    if findings.question and len(findings.remaining) == 1:
        return fill(f"{{}} probably makes it {findings.whole.verdict}. Its verdict is not measured yet.", listed)
    return fill(f"Undecided which commit makes it {findings.whole.verdict}. What remains: {{}}.", listed)


def _write(judged: Judgement) -> str:
    words = f"{judged.verdict}, {signed_percent(judged.ratio - 1)}"
    if judged.ci_low is not None and judged.ci_high is not None:
        words += f" (99 % interval {100 * (judged.ci_low - 1):+.1f} to {100 * (judged.ci_high - 1):+.1f} %)"
    return words


def _name(entry: BisectEntry, number: int) -> doc.Code:
    return doc.Code(entry.commits[number][0][:_HASH])


def _link(judged: Judgement, pairs: BisectPairs) -> doc.Link:
    """Return the number of pairs, which leads to the page of their run of `ab`."""
    return doc.Link(f"{judged.pairs} pairs", f"runs/{pairs.run}/SUMMARY.md")


def _facts(findings: Bisection, run: Manifest, entry: BisectEntry) -> Iterator[doc.Text]:
    last, whole, step, pairs = len(entry.commits) - 1, findings.whole, findings.step, findings.step_pairs
    if not run.ended:
        yield fill("The search has not ended: {} continues it.", doc.Code(environment.command_on(run, "resume")))
    for number in findings.remaining[:_MOST_NAMED]:
        words = f"{{}}, commit {number} of {last}: {{}}. The first change is here with a probability of {{}}."
        subject, share = doc.Code(entry.commits[number][1]), percent(findings.probabilities[number])
        yield fill(words, _name(entry, number), subject, share)
    if whole:
        words, link = f"BAD ({{}}) against GOOD ({{}}): {_write(whole)}, {{}}.", _link(whole, entry.comparisons[0])
        yield fill(words, _name(entry, last), _name(entry, 0), link)
        if whole.verdict is Verdict.INCONCLUSIVE:
            more = doc.Code(f"--more {entry.more + pair_blocks.OFFERED}")
            yield fill("To decide it: {}, fewer programs beside it, or a longer program.", more)
    if step and pairs:
        words = f"{{}} against {{}}, in fresh pairs: {_write(step)}, {{}}."
        yield fill(words, _name(entry, pairs.b), _name(entry, pairs.a), _link(step, pairs))
        if pairs.remarks:
            changes = ", ".join(pairs.remarks).split(", ")
            yield fill("What changed: {}.", doc.join(map(doc.Code, changes), most=_MOST_NAMED))
    if findings.part is not None and whole and step and pairs:
        rest = doc.Code(f"profpipe bisect {_name(entry, pairs.b).text}..{_name(entry, last).text}")
        both = f"This one makes {signed_percent(step.ratio - 1)}, all together {signed_percent(whole.ratio - 1)}."
        yield fill(f"More is left: other commits change the time too. {both} To search the rest: {{}}.", rest)
    for number, why in entry.skipped.items():
        yield fill("Skipped {}: {}", _name(entry, number), doc.Code(why))
    count = sum(len(measured.log_ratios) for measured in entry.comparisons)
    yield from (
        text for measured in entry.comparisons if measured.kind is BisectKind.WHOLE for text in measured.remarks
    )
    yield f"This rests on {2 * count} processes in pairs. Their logs and verdicts are in runs/."


def draw_path(findings: Bisection, run: Manifest) -> doc.Section:
    """Return the time of each commit that was measured against GOOD, as a picture and a table, in their order."""
    entry = run.bisect
    assert entry is not None
    levels = bisect.measure_levels(entry, findings.whole)
    likely = (number for number, p in enumerate(findings.probabilities) if p >= bisect.LEAST_SHOWN)
    columns: doc.Columns[int] = [
        (doc.label("number", "commit"), str),
        (doc.label("hash"), lambda number: _name(entry, number)),
        (doc.label("subject"), lambda number: doc.Code(entry.commits[number][1])),
        (doc.signed_percent("time", "against GOOD"), lambda n: levels[n][0] - 1 if n in levels else None),
        (doc.count("pairs"), lambda number: levels[number][-1] if number in levels else None),
        (doc.percent("share", "probability"), lambda n: findings.probabilities[n] if findings.probabilities else None),
    ]
    times = enumerate(levels.values())
    marks = (doc.Mark(float(row), ratio - 1, low - 1, high - 1) for row, (ratio, low, high, _) in times)
    names = (f"{number}: {_name(entry, number).text} {entry.commits[number][1][:_SUBJECT]}" for number in levels)
    order = ", ".join(str(measured.b) for measured in entry.comparisons if measured.kind is not BisectKind.STEP)
    chart = doc.Chart(
        "path",
        "Commits against GOOD",
        doc.ChartKind.FOREST,
        doc.Axis("commit", labels=tuple(names)),
        doc.Axis("commit - GOOD in %: right of zero, it takes longer", quantity="change"),
        {"": (doc.Series("commit", "commit", tuple(marks)),)},
        f"Whiskers: 99 % interval, of one pair by the spread of BAD against GOOD. Measured in this order: {order}.",
        references=(doc.Reference(doc.ReferenceKind.LEVEL, 0.0),),
    )
    table = doc.table_of("commits", sorted({*levels, *likely}), columns)
    return doc.make_section("times", "Path", [table, chart] if levels else [])
