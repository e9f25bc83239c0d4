"""The page of an `ab` run: verdicts, the gate, the two sides, the differences as a forest plot, and a page a case."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence

from profpipe import plugins
from profpipe.analysis import verdict
from profpipe.analysis.changes import Change, Gate, GateResult, MetricChange
from profpipe.analysis.pairs import PairFindings
from profpipe.analysis.verdict import Judgement
from profpipe.job import readable
from profpipe.measure.flags import Flag
from profpipe.report import document as doc
from profpipe.report.labels import fill, plural
from profpipe.report.sections import environment, kernel_differences
from profpipe.report.sections.kernel_differences import capture_facts, explain, variation
from profpipe.report.units import signed_percent, time_unit
from profpipe.results import pair_blocks
from profpipe.results.manifest import Manifest, PairsEntry, SideEntry
from profpipe.results.schema import PROCESS_WALL, Verdict

#: The verdicts in the order of tables and charts.
NAMES: Mapping[Verdict, str] = {
    Verdict.SLOWER: "slower",
    Verdict.FASTER: "faster",
    Verdict.INCONCLUSIVE: "inconclusive",
    Verdict.SAME: "the same",
}

#: The verdicts on an energy.
_OF_ENERGY: Mapping[Verdict, str] = {
    Verdict.SLOWER: "more",
    Verdict.FASTER: "less",
    Verdict.INCONCLUSIVE: "inconclusive",
    Verdict.SAME: "the same",
}

#: Flags of the samples of one process say nothing of a verdict, which rests on many processes.
_SHOWN_FLAGS = (
    Flag.THROTTLED,
    Flag.CLOCK_SPREAD,
    Flag.OTHER_PROCESS,
    Flag.HOST_BOUND,
    Flag.INACCURATE,
    Flag.KERNELS_VARY,
)

_CHANGED = (Verdict.SLOWER, Verdict.FASTER)

#: Cases whose difference the headline explains.
_MOST_EXPLAINED = 3

#: From this floor on the headline says what it means.
_LARGE_FLOOR = 0.05

#: Cases that a sentence names; more are counted.
_MOST_NAMED = 4

#: Versions that a sentence names. ``run.json`` has all of them.
_MOST_VERSIONS = 6


def headline(findings: PairFindings, run: Manifest) -> doc.Section:
    """Return the counts of verdicts, the gate, the sides and how many verdicts may be false."""
    assert run.ab is not None
    judged = [case.judgement for case in findings.cases if case.judgement]
    about = "Both sides are the same" if run.ab.is_aa else "B compared with A"
    begin = f"{about}, {plural(len(judged), 'case')}: " if judged else ""
    strong = doc.Strong(f"{begin}{_answer(findings, judged)}.")
    return doc.make_section("headline", "", [doc.Paragraph(strong), doc.Bullets(tuple(_facts(findings, run, run.ab)))])


def _answer(findings: PairFindings, judged: Sequence[Judgement]) -> str:
    """Return the number of each verdict; of a single case its verdict and the difference."""
    if not judged:
        failed = sum(case.failure is not None for case in findings.cases)
        return "No case has a pair of times" + (f": {plural(failed, 'case')} failed" if failed else "")
    if len(judged) == 1:
        return f"{NAMES[judged[0].verdict]}, {signed_percent(judged[0].ratio - 1)}"
    order = (*_CHANGED, Verdict.SAME, Verdict.INCONCLUSIVE)
    shown = [kind for kind in order if findings.count(kind) or kind is Verdict.SLOWER]
    return ", ".join(f"{findings.count(kind)} {NAMES[kind]}" for kind in shown)


def _facts(findings: PairFindings, run: Manifest, settings: PairsEntry) -> Iterator[doc.Text]:
    if not findings.is_complete:
        yield fill(
            "The run has not ended: {} runs the pairs that are missing.",
            doc.Code(environment.command_on(run, "resume")),
        )
    if findings.gate is not None:
        yield doc.concat(doc.Strong(f"Gate of {findings.gate.percent:g} %:"), " ", *_write_gate(findings.gate))
    yield fill("A: {}. B: {}.", _side(settings.a), _side(settings.b))
    for spec in dict.fromkeys([*settings.a.specs, *settings.b.specs]):
        kind, _, name = spec.partition(":")
        # A change that profpipe has, whose file is read and not executed: a file of the user is data here.
        path = plugins.builtin_folder("changes") / f"{name}.py"
        if kind == "change" and name.isidentifier() and path.is_file():
            yield fill("{} in the program: {}", doc.Code(spec), doc.Code(plugins.read_constant(path, "CODE")))
    yield from foreign_modules(settings)
    a, b = settings.a.versions, settings.b.versions
    if differing := [f"{name} {a[name] or 'missing'} in A and {b.get(name) or 'missing'} in B" for name in a]:
        listed = doc.join(differing, "; ", "; ", most=_MOST_VERSIONS)
        yield fill("Versions that differ and may explain a difference: {}.", listed)
    planned = "" if findings.is_complete else " are planned"
    yield (
        f"{plural(settings.pairs, 'pair')} of processes{planned}, one right after the other. The order in each pair is"
        f" drawn (seed {settings.seed})."
    )
    yield from _further_facts(findings, run, settings)
    if overall := _overall(findings):
        yield overall
    if settings.pairs < verdict.FEWEST_PAIRS and not any(case.further_pairs for case in findings.cases):
        yield f"Below {verdict.FEWEST_PAIRS} pairs no case can be called faster or slower."
    elif any(case.judgement for case in findings.cases):
        yield f"Expected false alarms if A and B are equal: {findings.false_verdicts:.1g}."
    if large := [case for case in findings.cases if case.judgement and case.judgement.floor > _LARGE_FLOOR]:
        largest = max(case.judgement.floor for case in large if case.judgement)
        words = f"Processes of the same code are known to differ by up to {100 * largest:.1f} % here: smaller"
        yield fill(f"{words} differences of {{}} do not count, also for {{}}.", _named(large), doc.Code("same"))
    if settings.is_aa:
        false = findings.count(Verdict.FASTER) + findings.count(Verdict.SLOWER)
        yield f"False verdicts: {false} of {len(findings.cases)} (both sides are the same)."
    yield from capture_facts(settings)
    if settings.captures:
        yield from _kernel_facts(findings)


def _further_facts(findings: PairFindings, run: Manifest, settings: PairsEntry) -> Iterator[doc.Text]:
    """Yield which cases were measured in further pairs, and how an undecided case gets some."""
    measured = [case for case in findings.cases if case.further_pairs]
    undecided = [case for case in measured if case.verdict is Verdict.INCONCLUSIVE]
    if decided := [case for case in measured if case.verdict is not Verdict.INCONCLUSIVE]:
        counted = [fill("{} ({})", doc.Code(case.name), str(case.further_pairs)) for case in decided]
        yield fill(
            "Decided by further pairs, after a first block that was not clear: {}.", doc.join(counted, most=_MOST_NAMED)
        )
    if undecided:
        yield fill("Undecided after further pairs: {}.", _named(undecided))
    if settings.longer:
        words = f"The first {pair_blocks.TRIAL} pairs of {{}} scattered. The later ones are longer and alone count."
        yield fill(words, doc.join(list(map(doc.Code, settings.longer))))
    # With a gate, a case that passes it gets no further pairs.
    candidates = findings.gate.open if findings.gate else findings.cases
    # The option counts the further pairs that exist too.
    offer = doc.Code(f"{environment.command_on(run, 'resume')} --more {settings.more + pair_blocks.OFFERED}")
    may_have_more = findings.is_complete and not run.tasks and settings.pairs >= verdict.FEWEST_PAIRS
    coarse = [case for case in candidates if _is_coarse(case)]
    if resolved := max((case.judgement.resolution or 0.0 for case in coarse if case.judgement), default=0.0):
        # A process of a further pair takes longer.
        has_offer = may_have_more and not any(case.further_pairs for case in coarse)
        ways = doc.join([doc.Code("timing.budget_s"), *([offer] if has_offer else [])], last=" or ")
        percent = float(f"{100 * resolved:.2g}")
        words = f"Differences below {percent:g} % are within the noise for {{}}: pin the clock,"
        yield fill(f"{words} close other programs, or measure longer ({{}}).", _named(coarse), ways)
    if may_have_more and any(case.verdict is Verdict.INCONCLUSIVE and not _is_coarse(case) for case in candidates):
        yield fill("To measure inconclusive cases alone, in up to {} more pairs: {}.", str(pair_blocks.OFFERED), offer)


def _is_coarse(case: Change) -> bool:
    """Return True for an inconclusive case whose pairs scatter so far that those on offer do not decide it."""
    if case.judgement is None or case.verdict is not Verdict.INCONCLUSIVE:
        return False
    return case.judgement.pairs_more is None or case.judgement.pairs_more > pair_blocks.OFFERED


def _kernel_facts(findings: PairFindings) -> Iterator[doc.Text]:
    """Yield which cases have other kernels in each process of a side, and what explains the largest verdicts."""
    varying = [case for case in findings.cases if case.kernels and case.kernels.variations]
    for case in varying[:_MOST_NAMED]:
        words = "{} launches other kernels from process to process, so its difference may be chance: {}."
        yield fill(words, doc.Code(case.name), variation(case))
    if len(varying) > _MOST_NAMED:
        yield f"{plural(len(varying) - _MOST_NAMED, 'further case')} with the flag {Flag.KERNELS_VARY}."
    without = [case for case in findings.unexplained if findings.is_complete]
    if without:
        yield fill("No kernel explains {}: their captures show none of an iteration or a step.", _named(without))
    changed = [case for case in findings.cases if case.has_difference]
    explained = [(case, line) for case in sorted(changed, key=_rank) if (line := explain(case))]
    for case, line in explained[:_MOST_EXPLAINED]:
        yield fill("{} is {}, {}.", doc.Code(case.name), str(case.verdict), line)
    if (more := len(explained) - _MOST_EXPLAINED) > 0:
        yield f"{plural(more, 'further case')} with an explanation by kernel in the table below."


def _overall(findings: PairFindings) -> str:
    """Return the change over all cases, of which each counts alike; empty for a single case."""
    judged = [case.judgement for case in findings.cases if case.judgement]
    if len(judged) < 2:
        return ""
    mean = math.exp(statistics.fmean(math.log(judgement.ratio) for judgement in judged))
    return (
        f"Over {len(judged)} cases B - A is {signed_percent(mean - 1)} on average (geometric mean; cases count alike)."
    )


def _side(side: SideEntry) -> doc.Text:
    specs = doc.join([doc.Code(text) for text in side.specs]) or ("as it is",)
    return doc.concat(specs, f" (commit {side.commit[:12]})") if side.commit else specs


def foreign_modules(settings: PairsEntry) -> Iterator[doc.Text]:
    """Yield for each side the packages that its processes loaded from another folder than that of the side."""
    for label, side in (("A", settings.a), ("B", settings.b)):
        if side.foreign_modules:
            named = [fill("{} ({})", doc.Code(name), doc.Code(path)) for name, path in side.foreign_modules.items()]
            yield fill(
                "{} loaded code from outside its folder, so both sides may run the same code: {}. A package that is"
                " installed in editable mode is imported from there. Set {} to the package's folder, relative to that"
                " of the side, or install each side in an environment and use {}.",
                doc.Strong(label), doc.join(named, most=_MOST_NAMED), doc.Code("PYTHONPATH"), doc.Code("python:"),
            )  # fmt: skip


def _write_gate(gate: GateResult) -> tuple[doc.Text, ...]:
    """Return the result of the gate and the cases that decide it."""
    if gate.verdict is Gate.PASSED and not gate.open:
        return ("passed.",)
    if gate.failed:
        worst_first = sorted(gate.failed, key=lambda case: case.percent if case.judgement else math.inf)
        undecided = f" Undecided: {plural(len(gate.open), 'case')}." if gate.open else ""
        return ("failed by ", _named(worst_first[::-1]), f".{undecided}")
    words = {
        Gate.FAILED: "failed, because these cases are undecided: ",
        Gate.PASSED: "passed. Undecided: ",
        Gate.UNDECIDED: "undecided: ",
    }
    return (words[gate.verdict], _named(gate.open) or "cases are missing", ".")


def _named(cases: Sequence[Change]) -> doc.Text:
    return doc.join([doc.Code(case.name) for case in cases], most=_MOST_NAMED)


def verdicts(changes: Sequence[Change], run: Manifest) -> doc.Section:
    """Return a row for each case, the slower ones first."""
    judged = [case for case in changes if case.judgement]
    unit = time_unit([time for case in judged for time in (case.a_ns, case.b_ns)])
    cases = sorted(judged, key=_rank)
    columns = [
        (doc.label("workload"), lambda case: doc.Code(case.workload)),
        (doc.label("case"), lambda case: doc.case_link(doc.Code(readable(case.case)), case.name)),
        (doc.label("verdict"), _verdict_cell),
        (doc.number("a", "A", unit), lambda case: case.a_ns),
        (doc.number("b", "B", unit), lambda case: case.b_ns),
        (doc.signed_percent("change", "B - A"), lambda case: case.judgement.ratio - 1),
        (doc.words("interval", "99 % interval"), _interval),
        (doc.number("p", "p"), lambda case: case.judgement.p),
        (doc.count("pairs"), lambda case: case.judgement.pairs),
        (doc.percent("floor"), lambda case: case.judgement.floor),
        (doc.words("more", "pairs that would decide"), _more),
        (doc.words("first_block", "first block"), _first_block),
        (doc.words("further", "further pairs"), lambda case: str(case.further_pairs) if case.further_pairs else ""),
        (doc.words("kernels", "B - A by kernel"), explain),
    ]
    table = doc.table_of("verdicts", cases, columns)
    table = table if len({case.workload for case in cases}) > 1 else table.without("workload")
    note = doc.Paragraph(_explain_columns(cases, run)) if cases else None
    return doc.make_section("times", "Verdicts", [table, note, _energies(cases)])


def _energies(cases: Sequence[Change]) -> doc.TableBlock:
    """Return the verdicts on the energy of the cases that have one on both sides."""
    columns: doc.Columns[tuple[Change, MetricChange, Judgement]] = [
        (doc.label("case"), lambda row: doc.case_link(doc.Code(row[0].name), row[0].name)),
        (doc.label("verdict", "B draws"), lambda row: _OF_ENERGY[row[2].verdict]),
        (doc.number("a", "A, J"), lambda row: row[1].a_ns),
        (doc.number("b", "B, J"), lambda row: row[1].b_ns),
        (doc.words("of", "energy of"), lambda row: row[1].metric.replace("energy_per_", "a ")),
        (doc.signed_percent("change", "B - A"), lambda row: row[2].ratio - 1),
        (doc.words("interval", "99 % interval"), lambda row: _interval(row[1])),
        (doc.number("p", "p"), lambda row: row[2].p),
        (doc.count("pairs"), lambda row: row[2].pairs),
    ]
    judged = [(case, case.energy, case.energy.judgement) for case in cases if case.energy and case.energy.judgement]
    return doc.table_of("energies", judged, columns, "Energy, judged in the same way as time; it is no part of a gate")


def _explain_columns(cases: Sequence[Change], run: Manifest) -> str:
    """Return what the columns of the table of verdicts hold."""
    sentences = [
        f"A, B: median over processes of the median time of {_timed(cases, run)}.",
        "B - A: estimate over the pairs (Hodges-Lehmann, or their median where single slow processes move that); its"
        " interval and p come from the exact signed-rank test.",
        f"Floor: the smallest difference that counts, {100 * verdict.LEAST_FLOOR:g} % or how far processes of the same"
        " code are known to differ.",
    ]
    judged = [(case.b_ns / case.a_ns, case.judgement) for case in cases if case.judgement]
    if any(abs(math.log(medians / judgement.ratio)) > math.log1p(judgement.floor) for medians, judgement in judged):
        sentences.append(
            "Where B - A does not fit A and B, the speed of the machine changed between pairs, or single processes were"
            " slow: read B - A and its interval."
        )
    if any(case.first for case in cases):
        sentences.append("First block: the verdict before the case was measured again.")
    if further := [case for case in cases if case.further_pairs]:
        sentences.append("Further pairs: the pairs behind the verdict of a case that was undecided.")
        # A process of a command runs the program once.
        if any(not run.is_command(case.workload) for case in further):
            sentences.append(
                f"A process visits such a case up to {pair_blocks.VISITS} times, and its time is the mean of the"
                " medians of these visits."
            )
        sentences.append(
            f"The test is stricter: the highest p of a difference is {verdict.ALPHA_FURTHER:g} after"
            f" {pair_blocks.FIRST_LOOK} further pairs, and half as much after each {pair_blocks.LOOK_EVERY} more."
        )
    return " ".join(sentences)


def _timed(cases: Sequence[Change], run: Manifest) -> str:
    """Return what the times are of: ``a step``, ``a call``, ``the whole process``, or several of these."""
    kinds = dict.fromkeys(
        "the whole process" if case.metric == PROCESS_WALL
        else "a step" if run.is_command(case.workload)
        else "a call"
        for case in cases
    )  # fmt: skip
    return " or ".join(kinds)


def _rank(case: Change) -> tuple[int, float]:
    assert case.judgement is not None
    return list(NAMES).index(case.judgement.verdict), -abs(case.judgement.percent)


def _verdict_cell(case: Change) -> doc.TableCell:
    flags = tuple(flag for flag in json.loads(case.flags or "[]") if flag in _SHOWN_FLAGS)
    return doc.TableCell(
        text=doc.Strong(str(case.verdict)) if case.verdict in _CHANGED else str(case.verdict), flags=flags
    )


def _interval(case: MetricChange) -> doc.Text:
    judged = case.judgement
    if judged is None or judged.ci_low is None or judged.ci_high is None:
        return ""
    return f"{100 * (judged.ci_low - 1):+.1f} to {100 * (judged.ci_high - 1):+.1f} %"


def _more(case: Change) -> doc.Text:
    if case.judgement is None or case.verdict is not Verdict.INCONCLUSIVE:
        return ""
    return f"over {pair_blocks.OFFERED}" if _is_coarse(case) else f"{case.judgement.pairs_more} more"


def _first_block(case: Change) -> doc.Text:
    """Return the verdict after the first block of a case that was measured again."""
    first = case.first
    return f"{first.verdict}, {100 * (first.ratio - 1):+.1f} %" if first else ""


def failures(findings: PairFindings) -> doc.Section:
    """Return the cases that did not run well on a side, with the pair and the side that met the problem."""
    failed = [case for case in findings.cases if case.failure]
    columns: doc.Columns[Change] = [
        (doc.label("case"), lambda case: doc.case_link(doc.Code(case.name), case.name)),
        (doc.words("status"), lambda case: case.failure.status if case.failure else ""),
        (doc.words("reason"), lambda case: case.failure.reason if case.failure else ""),
    ]
    inaccurate = [case for case in findings.cases if case.is_newly_inaccurate]
    note = doc.concat("Outside the tolerance on B and not on A: ", _named(inaccurate), ".") if inaccurate else ""
    return doc.make_section("failures", "Failed", [doc.table_of("failures", failed, columns), doc.Paragraph(note)])


def spread(findings: PairFindings, run: Manifest) -> doc.Section:
    """Return, for two sides that are the same, how far the pairs of each case lie apart."""
    if run.ab is None or not run.ab.is_aa:
        return doc.make_section("spread", "", [])
    columns: doc.Columns[Change] = [
        (doc.label("case"), lambda case: doc.Code(case.name)),
        (doc.percent("spread", "spread of pairs"), lambda case: verdict.spread(case.log_ratios)),
    ]
    cases = [case for case in findings.cases if case.judgement]
    table = doc.table_of("spread", cases, columns)
    note = "Standard deviation between pairs of the same code, from their median distance."
    return doc.make_section("spread", "Spread between processes", [table, doc.Paragraph(note)] if cases else [])


def write_verdict(case: Change) -> str:
    """Return one line for a message: ``sums/n=2: slower, +3.1 %, +41 us: +44 us add (1 more launch)``."""
    if case.is_newly_inaccurate:
        return f"{case.name}: inaccurate on B"
    if case.judgement is None or case.failure:
        return f"{case.name}: {case.failure.status if case.failure else 'not measured'}"
    judged = f"{case.name}: {case.judgement.verdict}, {signed_percent(case.judgement.ratio - 1)}"
    if case.further_pairs:
        words = "after" if case.verdict is Verdict.INCONCLUSIVE else "decided by"
        judged += f" ({words} {case.further_pairs} further pairs)"
    energy = case.energy.judgement if case.energy else None
    drawn = f"energy {_OF_ENERGY[energy.verdict]}, {signed_percent(energy.ratio - 1)}" if energy else ""
    return ", ".join(filter(None, [judged, doc.plain(explain(case)), drawn]))


# --- verdict plots ----------------------------------------------------------------------------------------------------

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
            _mark(i, case) for i, case in enumerate(rows) if case.verdict is verdict
        ))
        for verdict, words in NAMES.items()
    )  # fmt: skip
    beyond = f" The {len(judged) - len(rows)} others are in the table." if len(judged) > len(rows) else ""
    several = len({case.workload for case in rows}) > 1
    chart = doc.Chart(
        "forest",
        "B - A of each case",
        doc.ChartKind.FOREST,
        doc.Axis("case", labels=tuple(case.name if several else case.name.partition("/")[2] for case in rows),
                 cases=tuple(case.name for case in rows)),
        doc.Axis("B - A in %: right of zero, B takes longer", quantity="change"),
        {"": tuple(points for points in series if points.marks)},
        f"Whiskers: 99 % interval. Grey: the smallest difference that counts. The first cases change the most time."
        f"{beyond}",
        doc.OnPage.HTML,
        keys=tuple(verdict.value for verdict in NAMES),
        references=(doc.Reference(doc.ReferenceKind.LEVEL, 0.0),),
    )  # fmt: skip
    return doc.Section("forest", "Differences", (chart,))


def _mark(row: int, case: Change) -> doc.Mark:
    judged = case.judgement
    assert judged is not None
    low, high = (None if end is None else end - 1 for end in (judged.ci_low, judged.ci_high))
    why = doc.plain(kernel_differences.explain(case))
    return doc.Mark(float(row), judged.ratio - 1, low, high, case=case.name, floor=judged.floor, note=why)


def case_pages(findings: PairFindings, run: Manifest) -> tuple[doc.Section, ...]:
    """Return the page of each case: its verdict, the difference of each pair, and the kernels behind it."""
    return tuple(_page(case, run) for case in findings.cases)


def _page(case: Change, run: Manifest) -> doc.Section:
    parts = (verdicts([case], run), kernel_differences.kernel_differences([case]))
    why = kernel_differences.explain(case)
    blocks = [doc.Paragraph(fill("By kernel: {}.", why), doc.OnPage.HTML)] if why else []
    # The sections of an `ab` run belong to no workload.
    return doc.Section(case.name, doc.Code(case.name), (*blocks, *_pairs(case)), sections=tuple(filter(None, parts)))


def _pairs(case: Change) -> Iterator[doc.Chart]:
    """Yield the difference of each pair in their order."""
    if len(case.log_ratios) < 2:
        return
    marks = tuple(doc.Mark(float(i), math.expm1(log_ratio)) for i, log_ratio in enumerate(case.log_ratios, start=1))
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
        placement=doc.OnPage.HTML,
        references=tuple(references),
    )
