"""The page of `profpipe try`: what the best changes gain together, what to write, and each change that was tried."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

from profpipe.analysis.changes import Change
from profpipe.analysis.pairs import PairFindings
from profpipe.analysis.verdict import FEWEST_PAIRS
from profpipe.report import document as doc
from profpipe.report.labels import fill, plural
from profpipe.report.sections import environment
from profpipe.report.units import RATIO, ratio, size_unit, step_unit
from profpipe.results import pair_blocks
from profpipe.results.manifest import Manifest, PairsEntry, TriedChange, TryEntry, TryOutcome
from profpipe.results.schema import Verdict

#: Paths that a sentence names; more are counted.
_MOST_PATHS: Final = 3
#: The share of a process by which a change makes its start longer, from which on the page says so.
_LONGER_START: Final = 0.5
_SCREENED: Final = "Screened in single processes: a change alone has no verdict."


def headline(findings: PairFindings, run: Manifest) -> doc.Section:
    """Return what the kept changes gain together, the lines to write, and what the reader must know of the run."""
    assert run.ab is not None and run.ab.tried is not None
    answer = doc.Strong(_answer(findings, run.ab, run.ab.tried))
    facts = tuple(_facts(findings, run, run.ab, run.ab.tried))
    lines = doc.CodeBlock("\n".join(_write_lines(findings, run.ab.tried)), "text")
    return doc.make_section("headline", "", [doc.Paragraph(answer), lines if lines.text else None, doc.Bullets(facts)])


def _find_chosen(tried: TryEntry) -> Sequence[TriedChange]:
    """Return the changes of the combination; while changes are tried, those that are kept so far."""
    chosen = tried.chosen or [change.name for change in tried.changes if change.outcome is TryOutcome.KEPT]
    return [change for change in tried.changes if change.name in chosen]


def _judged(findings: PairFindings) -> Change | None:
    return next((case for case in findings.cases if case.judgement), None)


def _answer(findings: PairFindings, settings: PairsEntry, tried: TryEntry) -> str:
    case, chosen = _judged(findings), _find_chosen(tried)
    names, count = doc.plain(doc.join([c.name for c in chosen], last=" and ")), plural(len(chosen), "change")
    if not chosen:
        measured = any(change.ns for change in tried.changes)
        refused = [c for c in tried.changes if c.outcome is TryOutcome.REFUSED and c.ns and tried.unchanged.ns]
        if measured and refused:
            best = min(refused, key=lambda change: change.ns or math.inf)
            gain = ratio((tried.unchanged.ns or 0.0) / (best.ns or math.inf))
            return f"No change is kept. The fastest one, {best.name}, gave {gain} and is refused: {best.reason}."
        if not measured:
            return f"No change was tried: {_why_none(tried)}."
        first, *more = (change.name for change in tried.changes if change.ns)
        if not more:
            return f"The change {first} does not make the program faster."
        return f"None of the {len(more) + 1} changes that were tried makes the program faster."
    if case is None or case.judgement is None:
        return f"{count} may make the program faster: {names}. No pair of processes has measured them together."
    if tried.harm:
        return f"Refused: {names}. Nothing shows that the program computes the same: {tried.harm}."
    low, high = (None if end is None else 1 / end for end in (case.judgement.ci_high, case.judgement.ci_low))
    interval = f" (99 %: {ratio(low)} to {ratio(high)})" if low and high else ""
    together = ", measured together" if len(chosen) > 1 else ""
    if case.verdict is Verdict.FASTER:
        return f"Steps are {ratio(1 / case.judgement.ratio)} faster with {count}{together}{interval}: {names}."
    gain = ratio(1 / case.judgement.ratio)
    return f"No change makes the program faster for certain: {names}{together} gave {gain}{interval}."


def _why_none(tried: TryEntry) -> str:
    reasons = list(dict.fromkeys(change.reason for change in tried.changes if change.reason))
    return reasons[0] if len(reasons) == 1 else "none applies, or can gain 2 %"


def _write_lines(findings: PairFindings, tried: TryEntry) -> Iterator[str]:
    """Yield what to write into the program, and where."""
    case = _judged(findings)
    if case is not None and case.verdict is Verdict.FASTER and not tried.harm:
        for change in _find_chosen(tried):
            yield f"{change.place}: {change.code}" if change.place else change.code


def _facts(findings: PairFindings, run: Manifest, settings: PairsEntry, tried: TryEntry) -> Iterator[doc.Text]:
    if not findings.is_complete:
        yield fill("The run has not ended: {} goes on.", doc.Code(environment.command_on(run, "resume")))
    case = _judged(findings)
    numerics = [doc.Code(change.name) for change in _find_chosen(tried) if change.alters_numerics]
    if tried.harm and 0 < len(numerics) < len(_find_chosen(tried)):
        yield fill("Try the other changes again without what alters numerics: {}.", doc.join(numerics))
    if numerics and case is not None and tried.loss and not tried.harm:
        yield fill("{}: alters numerics, within the spread between seeds.", doc.join(numerics, last=" and "))
    if case is not None and tried.loss and not tried.harm:
        yield f"Compared with the unchanged program over {plural(settings.pairs, 'seed')}: {tried.loss}."
    if case is not None:
        yield (
            f"{plural(settings.pairs, 'pair')} of fresh processes, each pair with a seed. Expected false alarms if the"
            f" changes gain nothing: {findings.false_verdicts:.1g}."
        )
        if settings.pairs < FEWEST_PAIRS:
            yield f"Below {FEWEST_PAIRS} pairs no verdict is possible."
        if findings.is_complete and case.verdict is Verdict.INCONCLUSIVE and settings.pairs >= FEWEST_PAIRS:
            offer = f"{environment.command_on(run, 'resume')} --more {settings.more + pair_blocks.OFFERED}"
            yield fill("To measure it in up to {} more pairs: {}.", str(pair_blocks.OFFERED), doc.Code(offer))
    if case is not None:
        yield from list_limits(tried, case.verdict)
    if tried.unchanged.reason:
        advice = "so smaller gains are not found. Stop what else runs on the machine, or try again."
        yield f"Without a change {tried.unchanged.reason}, {advice}"
    if tried.is_deterministic:
        yield "The program asks for deterministic algorithms, and this stays."
    if tried.written:
        paths = doc.join([doc.Code(path) for path in tried.written], most=_MOST_PATHS)
        yield fill("The program writes outside of its folder, in each process anew: {}.", paths)


def list_limits(tried: TryEntry, verdict: Verdict | None) -> Iterator[doc.Text]:
    """Yield after how many steps the processes ended, and how many steps repay a start that a change makes longer."""
    if tried.steps:
        yield f"Each process ended after {tried.steps} steps. What comes later, such as an evaluation, is not measured."
    for change in _find_chosen(tried) if verdict is Verdict.FASTER and not tried.harm else ():
        longer_s = (change.seconds or 0.0) - (tried.unchanged.seconds or 0.0)
        saved_ns = (tried.unchanged.ns or 0.0) - (change.ns or 0.0)
        if saved_ns > 0 and longer_s > _LONGER_START * (tried.unchanged.seconds or 0.0):
            # The first process has saved time in its steps.
            repaid = f"About {1e9 * longer_s / saved_ns + tried.steps:,.0f} steps repay that."
            yield fill(f"With {{}} the first process takes {longer_s:.0f} s longer. {repaid}", doc.Code(change.name))


def changes(tried: TryEntry) -> doc.Section:
    """Return a row for each change that was measured or failed, the fastest first."""
    base = tried.unchanged
    measured = sorted((c for c in tried.changes if c.outcome is not TryOutcome.NOT_TRIED), key=lambda c: c.ns or 9e99)
    rows = [base, *measured] if base.ns else measured
    unit, memory = step_unit([row.ns for row in rows]), size_unit([row.peak_bytes for row in rows])
    columns: doc.Columns[TriedChange] = [
        (doc.label("change"), lambda row: doc.Code(row.name)),
        (doc.label("outcome"), lambda row: "" if row is base else str(row.outcome)),
        (doc.number("step", "step", unit), lambda row: row.ns),
        (doc.number("gain", "times as fast", RATIO), lambda row: base.ns / row.ns if row.ns and base.ns else None),
        (doc.count("processes"), lambda row: row.processes or None),
        (doc.number("seconds", "first process, s"), lambda row: row.seconds),
        (doc.number("memory", "peak memory", memory), lambda row: row.peak_bytes),
        (doc.number("energy", "J a step"), lambda row: row.joules),
        (doc.words("loss", "compared with unchanged"), lambda row: row.loss),
        (doc.words("reason", "why"), lambda row: row.reason),
    ]
    blocks = [doc.table_of("changes", rows, columns), doc.Paragraph(_SCREENED) if rows else None]
    return doc.make_section("changes", "Changes", blocks)


def not_tried(tried: TryEntry) -> doc.Section:
    """Return why the other changes were not tried."""
    rows = [change for change in tried.changes if change.outcome is TryOutcome.NOT_TRIED]
    columns: doc.Columns[TriedChange] = [
        (doc.label("change"), lambda row: doc.Code(row.name)),
        (doc.words("reason", "why"), lambda row: row.reason),
    ]
    return doc.make_section("not_tried", "Not tried", [doc.table_of("not_tried", rows, columns)])
