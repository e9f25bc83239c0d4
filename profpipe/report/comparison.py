"""The result of ``profpipe compare``, as text and as the JSON document that docs/verdicts.md describes."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from profpipe.analysis.changes import Change, GateCause, GateResult
from profpipe.analysis.compare_recordings import Extent, RecordedCase, RecordingChange, RecordingComparison
from profpipe.analysis.compare_runs import RunComparison
from profpipe.analysis.grouping import grouped
from profpipe.analysis.history import FEWEST_RUNS
from profpipe.analysis.kernel_differences import KernelDifference
from profpipe.analysis.kernels import COPIES
from profpipe.analysis.pairs import PairFindings
from profpipe.analysis.steps import ONE_DEVICE, Place, StepPart, StepParts, place_name
from profpipe.job import count_cases, readable
from profpipe.report import document as doc, results_json
from profpipe.report.first_screen import show_section
from profpipe.report.labels import duration, fill, literal, plural
from profpipe.report.screen import Screen, lay_out
from profpipe.report.sections import memory
from profpipe.report.sections.kernel_differences import kernel_rows
from profpipe.report.sections.steps import bar_series, legend_order, pieces
from profpipe.report.text import write_text
from profpipe.report.units import Unit, count, signed_percent, step_unit, time_unit
from profpipe.results.manifest import Manifest, PairsEntry, Undecided
from profpipe.results.schema import KernelChange, StepState, Tables

#: What a difference of two runs is worth, by whether it is beyond the noise.
_NOTES: Final = {True: "beyond the noise", False: "within the noise", None: "no verdict"}


def text(comparison: RunComparison | RecordingComparison) -> str:
    """Return the page as text within the width of the terminal, whatever its length: no other page may have it."""
    made = sections(comparison) if isinstance(comparison, RecordingComparison) else run_sections(comparison)
    parts = [part for section in made for part in _titled(section) if part[-1]]
    return lay_out(parts, most_lines=sys.maxsize)


def _titled(section: doc.Section) -> Screen:
    return [["text", write_text(section.title)], *show_section(replace(section, title=""), has_bars=True)]


def page(
    comparison: RunComparison | RecordingComparison, names: Sequence[str], recorded: RecordingComparison
) -> doc.Document:
    """Return the page of two runs or recordings, which are called ``names``. ``recorded`` are the kernels of runs."""
    made = (
        sections(comparison)
        if isinstance(comparison, RecordingComparison)
        else run_sections(comparison, recorded.changes)
    )
    a, b = names
    return doc.Document(f"B compared with A · A: {a} · B: {b}", tuple(made))


def run_sections(comparison: RunComparison, recorded: Sequence[RecordingChange] = ()) -> Iterator[doc.Section]:
    """Yield the answer, a row for each case, and the recordings of both runs, whose bars follow the answer."""
    shown = _sort_by_size(recorded)
    facts: list[doc.Text] = [*missing(comparison), *differences(comparison)]
    if any(change.is_beyond_noise is None for change in comparison.timed):
        why = "No verdict: one of the two runs came first, and how far runs of the same code differ here is not known."
        how = f" {FEWEST_RUNS} runs of the same code in this results folder show it. {{}} needs none."
        facts.append(fill(why + how, doc.Code("profpipe ab")))
    strong, pictures = (
        doc.Paragraph(doc.Strong(run_headline(comparison))),
        [bars(change) for change in shown[:1] if change.has_times],
    )
    yield doc.make_section("headline", "", [strong, *pictures, doc.Bullets(tuple(facts))])
    yield doc.make_section("times", "", [_run_table(comparison.timed)])
    for number, change in enumerate(shown[:_MOST_SECTIONS]):
        yield doc.Section("recording_change", _title(change), tuple(_blocks(change, has_bars=number > 0)))


def run_headline(comparison: RunComparison) -> str:
    """Return ``B compared with A, 3 cases: 2 slower, ...; B - A from -1.0 % to +9.9 %.``; of one case its times."""
    changes = comparison.timed
    if not changes:
        return f"No case {'is the same' if comparison.changed_params else 'has a time'} in both runs."
    if len(changes) == 1:
        (only,), unit = changes, time_unit([changes[0].a_ns, changes[0].b_ns])
        times = [unit.with_name(ns) for ns in (only.a_ns, only.b_ns)]
        note = _NOTES[only.is_beyond_noise]
        return f"{only.name} takes {times[0]} in A and {times[1]} in B: {signed_percent(only.percent / 100)}, {note}."
    kinds = {True: "slower", False: "faster"}
    verdicts = [
        kinds[change.percent > 0] if change.is_beyond_noise else _NOTES[change.is_beyond_noise] for change in changes
    ]
    order = {**dict.fromkeys((*kinds.values(), _NOTES[False])), _NOTES[None]: "without a verdict"}
    counts = [f"{verdicts.count(kind)} {words or kind}" for kind, words in order.items() if kind in verdicts]
    counts += [f"{len(comparison.lost)} failed in B"] if comparison.lost else []
    ends = [signed_percent(end(change.percent for change in changes) / 100) for end in (min, max)]
    return f"B compared with A, {count_cases(len(changes))}: {', '.join(counts)}; B - A from {ends[0]} to {ends[1]}."


def missing(comparison: RunComparison) -> Iterator[str]:
    """Yield the cases that have a time in A alone."""
    yield from (f"{change.name}: has a time in A and failed in B" for change in comparison.lost)
    signal = "a signal ended its process, in A or B, so its wall time says nothing"
    none = "has no times above 0 of the same kind in A and B"
    yield from (f"{change.name}: {signal if change.was_ended else none}" for change in comparison.absent)


def differences(comparison: RunComparison) -> Iterator[str]:
    """Yield what differs between the runs beside the code."""
    if changed := comparison.changed_params:
        yield f"Not compared, because parameters differ ({count_cases(len(changed))}; in A and in B):"
        for change in changed:
            texts = {name: ["none" if v is None else v for v in both] for name, both in change.differing_params.items()}
            yield f"{change.name}: {', '.join(f'{name} {a} and {b}' for name, (a, b) in texts.items())}"
    if comparison.gpus:
        yield f"The GPUs differ: A ran on {comparison.gpus[0]}, B on {comparison.gpus[1]}."
    if comparison.is_b_unfinished:
        yield "B has not ended: `profpipe resume` continues it."


def _run_table(changes: Sequence[Change]) -> doc.TableBlock:
    unit = time_unit([time for change in changes for time in (change.a_ns, change.b_ns)])
    columns: doc.Columns[Change] = [
        (doc.label("case"), lambda change: doc.Code(change.name)),
        (doc.number("a", "A", unit), lambda change: change.a_ns),
        (doc.number("b", "B", unit), lambda change: change.b_ns),
        (doc.signed_percent("percent", "B - A"), lambda change: change.percent / 100),
        (doc.words("verdict"), lambda change: _NOTES[change.is_beyond_noise]),
        (doc.words("accuracy", "inaccurate in"), lambda change: " and ".join(change.inaccurate_in)),
    ]
    return doc.table_of("cases", changes, columns)


#: Why cases do not pass a gate, those first that fail it. A pair of words is chosen by the number of cases.
_CAUSES: Final[Mapping[GateCause, str]] = {
    GateCause.SLOWER: "{cases} {is/are} more than {percent:g} % slower: {names}",
    GateCause.NEWLY_INACCURATE: "{cases} {was/were} within the tolerance in A, and not in B: {names}",
    GateCause.LOST: "{cases} had a time in A and did not end well in B: {names}",
    GateCause.CHANGED_PARAMS: "{cases} {has/have} other parameters in B, so nothing is known: {names}",
    GateCause.UNDECIDED: "the gate is undecided: {cases} {is/are} more than {percent:g} % slower, and how far runs of"
    " the same code differ here is not known: {names}. `profpipe ab` decides",
    GateCause.ABSENT: "the gate is undecided: {cases} {has/have} no times above 0 of the same kind in A and B: {names}",
    GateCause.ENDED: "the gate is undecided: a signal ended the process of {cases}, in A or B: {names}",
}


def gate_text(comparison: RunComparison, gate: GateResult) -> str:
    """Return why B does not pass the gate; empty if it passes."""
    if comparison.is_b_unfinished:
        return "B has not ended, so its missing cases cannot be judged. `profpipe resume` continues it"
    if not comparison.changes:
        return "there is nothing to judge. Name runs of the same cases, all under plain"
    causes = grouped((cause, change) for change, cause in gate.causes)
    texts = []
    for cause, text in _CAUSES.items():
        # A case that fails the gate decides it, whatever the others do.
        if cause.gate is not gate.verdict or not (changes := causes.get(cause)):
            continue
        names: Iterable[str] = (change.name for change in changes)
        if cause is GateCause.CHANGED_PARAMS:
            names = dict.fromkeys(name for change in changes for name in change.differing_params)
        words = {pair: pair.split("/")[len(changes) != 1] for pair in ("is/are", "was/were", "has/have")}
        facts = {"cases": count_cases(len(changes)), "percent": gate.percent, "names": ", ".join(names)}
        texts.append(text.format(**words, **facts).rstrip("."))
    return "; ".join(texts)


# --- the difference of two recordings: what is longer or shorter, by part, rank and kernel ----------------------------

#: Recordings with tables of their own: those with the largest differences. The others have a row each.
_MOST_SECTIONS = 8
#: Parts that a sentence names, and the share of the largest part below which none is named.
_MOST_PARTS, _LEAST_PART = 3, 0.1
#: Names of recordings that a sentence names; more are counted.
_MOST_NAMED = 8
#: From this ratio of launches on, two whole recordings may be of unequal work.
_LONGER = 1.1

#: How times of an extent are called: in a sentence, above the kernels, and in the row of the sum.
_WORDS: Final = {
    Extent.STEP: ("A step takes", "of a step", "step (mean)"),
    Extent.CALL: ("The kernels of a call take", "of a call", "kernels of a call"),
    Extent.RECORDING: ("The recording takes", "of the recording", "recording"),
    Extent.KERNELS: ("The kernels take", "of the recording", "kernels"),
}
_CHANGES: Final = {KernelChange.EXCHANGED: "other name", KernelChange.UNCHANGED: ""}

NO_VERDICT = fill(
    "No verdict: one recording of each side cannot tell a difference from noise. {} runs both sides in turns and gives"
    " a verdict.", doc.Code("profpipe ab --a git:REVISION -- PROGRAM"),
)  # fmt: skip


def sections(comparison: RecordingComparison) -> Iterator[doc.Section]:
    """Yield the largest difference, a table of all recordings where there are several, and the others by part."""
    changes = _sort_by_size(comparison.changes)
    several = len(changes) > 1
    for number, change in enumerate(changes[:_MOST_SECTIONS]):
        id = "recording_change" if number else "headline"
        yield doc.Section(id, _title(change) if number else "", tuple(_blocks(change, several and not number)))
        if several and not number:
            yield doc.make_section("recordings", "", [_overview(comparison.changes)])
    if left := changes[_MOST_SECTIONS:]:
        text = (
            f"Not shown: {plural(len(left), 'recording')} with smaller differences. `--json FILE` has the parts of all."
        )
        yield doc.make_section("others", "", [doc.Paragraph(text)])
    for name, parts in comparison.memory.items():
        title = name if len(comparison.memory) > 1 or changes else ""
        yield doc.make_section("memory", title, memory.compare_peaks(parts))
    yield doc.make_section("notes", "", [doc.Paragraph(line) for line in notes(comparison)])


def _sort_by_size(changes: Iterable[RecordingChange]) -> list[RecordingChange]:
    """Return the recordings, that with the largest difference in percent first."""

    def size(change: RecordingChange) -> float:
        return abs(change.difference_ns) / max(change.a.parts.wall_ns, 1.0) if change.has_times else 0.0

    return sorted(changes, key=size, reverse=True)


def notes(comparison: RecordingComparison) -> Iterator[doc.Text]:
    """Yield the GPUs that differ, the recordings without a partner, and why there is no verdict."""
    if comparison.gpus:
        yield f"The GPUs differ: A was recorded on {comparison.gpus[0]}, B on {comparison.gpus[1]}."
    for side, names in comparison.alone.items():
        if names:
            listed = doc.join(map(doc.Code, names), most=_MOST_NAMED)
            yield fill(f"Only {side} holds {{}}.", listed)
    if any(change.has_times and not change.is_same for change in comparison.changes):
        yield NO_VERDICT


def _title(change: RecordingChange) -> str:
    a, b = change.a.name, change.b.name
    return a if a == b else f"{a} → {b}"


def _overview(changes: Sequence[RecordingChange]) -> doc.TableBlock:
    timed = [change for change in changes if change.has_times]
    unit = time_unit([side.parts.wall_ns for change in timed for side in (change.a, change.b)])
    columns = [doc.label("recording"), doc.words("of"), *_time_columns(unit)]
    rows = [
        [doc.Code(_title(change)), change.extent.value, *_times(change.a.parts, change.b.parts)] for change in timed
    ]
    return doc.make_table("recordings", columns, rows)


def _blocks(change: RecordingChange, is_named: bool = False, has_bars: bool = True) -> Iterator[doc.Block]:
    """Yield the sentence, the bars of both sides, the parts, the ranks and the kernels."""
    name = (doc.Code(_title(change)), ": ") if is_named else ""
    yield doc.Paragraph(doc.Strong(doc.concat(name, headline(change))))
    if change.is_same:
        return
    if change.has_times and has_bars:
        yield bars(change)
    yield from map(doc.Paragraph, sentences(change))
    tables = [_parts_table(change), _ranks_table(change)] if change.has_times else []
    yield from (table for table in (*tables, _kernels_table(change)) if table.rows)


def bars(change: RecordingChange) -> doc.Chart:
    """Return a bar for each side, in one scale."""
    both = change.a.parts, change.b.parts
    unit, of = step_unit(parts.wall_ns for parts in both), _WORDS[change.extent][1]
    return doc.Chart(
        "sides",
        f"Where the time {of} goes, under {change.a.profiler}",
        doc.ChartKind.STACKED_BARS,
        doc.Axis("", labels=("A", "B")),
        doc.Axis(f"{unit.name} {of}", unit, quantity="ns"),
        {"": bar_series(both)},
        placement=doc.OnPage.HTML,
        subtitle=f"{_title(change)}. {legend_order(2)}",
    )


# --- sentences -------------------------------------------------------------------------------------------------------


def headline(change: RecordingChange) -> doc.Text:
    """Return ``A step takes 599 us in A and 470 us in B: -129 us (-21.5 %), under torch.``"""
    a_ns, b_ns = change.a.parts.wall_ns, change.b.parts.wall_ns
    if not change.has_times:
        return (
            f"A was recorded by {change.a.profiler} and B by {change.b.profiler}. Each adds its own overhead, so times"
            " are not compared, only launches."
        )
    takes, under = _WORDS[change.extent][0], f"under {change.a.profiler}"
    if change.is_same:
        return fill(f"{takes} {{}} in A and in B: no difference in any part or kernel, {under}.",
                    duration(a_ns, step_unit([a_ns])))  # fmt: skip
    unit = step_unit([a_ns, b_ns])
    return fill(
        f"{takes} {{}} in A and {{}} in B: {{}}{_percent(a_ns, b_ns)}, {under}.",
        duration(a_ns, unit), duration(b_ns, unit), _signed(change.difference_ns),
    )  # fmt: skip


def _percent(a_ns: float, b_ns: float) -> str:
    return f" ({signed_percent(b_ns / a_ns - 1)})" if a_ns else ""


def _signed(ns: float) -> doc.Amount:
    return doc.Amount(ns, time_unit([ns]).signed())


def sentences(change: RecordingChange) -> Iterator[doc.Text]:
    """Yield the largest parts, what the figures are of, and what hinders the comparison."""
    if change.has_times:
        parts = sorted(((name, b - a) for name, a, b in _leaves(change)), key=lambda part: -abs(part[1]))
        largest = [(name, ns) for name, ns in parts[:_MOST_PARTS] if abs(ns) > _LEAST_PART * abs(parts[0][1])]
        if largest:
            named = [fill(f"{literal(name)} {{}}", _signed(ns)) for name, ns in largest]
            yield fill("The largest parts of the difference: {}.", doc.join(named, last=", "))
    yield doc.join(_context(change), " ", " ")
    if change.has_times and (renamed := list(change.renamed_classes)):
        listed = [fill(f"{literal(name)} ({{}} in A, {{}} in B)", *map(duration, ns)) for name, *ns in renamed]
        yield fill(
            "Kernels with other names that take about as long in all: {}. Autotuning may choose other tiles for the"
            " same work, so a kernel that vanished and one that appeared may be the same.", doc.join(listed),
        )  # fmt: skip


def _context(change: RecordingChange) -> Iterator[doc.Text]:
    a, b = change.a, change.b
    what = "times" if change.has_times else "launches"
    without = f"{change.without[0]} does not have" if len(change.without) == 1 else "Neither side has"
    if change.extent is Extent.STEP:
        both = [(side, recording.steps) for side, recording in (("A", a), ("B", b)) if recording.steps]
        counts = [
            f"{case_steps.count(StepState.STEADY)[1]} of {plural(case_steps.steps, 'step')} in {side}"
            for side, case_steps in both
        ]
        yield f"The {what} are means of the steady steps: {' and '.join(counts)}."
        first, second = (case_steps.rule.value for _, case_steps in both)
        if first != second:
            yield (
                f"The rule {first} found the steps of A and the rule {second} those of B, so a step may not be the same"
                " work in both."
            )
    elif change.extent is Extent.RECORDING:
        yield f"{without} steps, so the {what} are of whole recordings, from the first operation of a GPU to its last."
    elif not change.has_times:
        yield "The launches are of whole recordings."
    elif change.extent is Extent.KERNELS:
        yield f"{without} the times of single launches, so only sums of kernels are compared, without idle time."
    ranks = {**a.ranks, **b.ranks}
    if ranks and not a.ranks.keys() & b.ranks.keys():
        text = "The sides have no GPU in common, so these are means over all GPUs of each: A has {}, and B has {}."
        yield fill(text, _places(a.ranks), _places(b.ranks))
    elif len(ranks) > 1:
        places = "GPUs" if any(device != ONE_DEVICE for _, device in ranks) else "ranks"
        yield f"They are means over the {places} that both sides have."
        for side, recording in (("A", a), ("B", b)):
            if missing := [rank for rank in ranks if rank not in recording.ranks]:
                text = f"{side} has no {{}}; the kernels below are means over all {places} of a side."
                yield fill(text, _places(missing))
    if change.extent in (Extent.STEP, Extent.CALL):
        calls = [
            sum(kernel.calls for kernel in side.kernels.values() if kernel.kernel_class not in COPIES)
            for side in (a, b)
        ]
        yield f"A {change.extent.value} has {count(calls[0])} launches in A and {count(calls[1])} in B."
    yield fill("In all, A holds {} and B {}.", *(_whole(side, change.has_times) for side in (a, b)))
    is_longer = max(a.launches, b.launches) > _LONGER * min(a.launches, b.launches)
    if is_longer and change.extent in (Extent.RECORDING, Extent.KERNELS):
        yield "One recording holds more launches than the other, so the sums may be of unequal work."


def _places(ranks: Iterable[Place]) -> doc.Text:
    """Return the names of ranks, or of GPUs of ranks with several, in a sentence."""
    names = (f"rank {rank}" if device == ONE_DEVICE else f"GPU {device} of rank {rank}" for rank, device in ranks)
    return doc.join(names, most=_MOST_NAMED)


def _whole(side: RecordedCase, has_times: bool) -> doc.Text:
    launches = plural(round(side.launches), "launch", "launches")
    return fill(f"{launches} of {{}}", duration(side.kernel_ns)) if has_times else launches


# --- tables ----------------------------------------------------------------------------------------------------------


def _leaves(change: RecordingChange) -> list[tuple[str, float, float]]:
    """Return (name, ns on A, ns on B) of the parts that add up to the times of both sides."""
    leaves = []
    for name, key, (a_ns, b_ns) in pieces((change.a.parts, change.b.parts)):
        is_class = change.a.ranks and not key.startswith("step_") and name != "compute"
        leaves.append((f"compute: {name}" if is_class else name, a_ns, b_ns))
    return [leaf for leaf in leaves if any(leaf[1:])]


def _parts_table(change: RecordingChange) -> doc.TableBlock:
    """Return the parts and their sum. The compute and the idle time have a row with their sum too."""
    both = change.a.parts, change.b.parts
    sums: dict[str, tuple[doc.Text, list[float]]] = {
        "compute": (doc.Strong("compute"), [parts.ns[StepPart.COMPUTE] for parts in both]),
        "idle": (doc.Strong("idle"), [parts.idle_ns for parts in both]),
    }
    rows: list[tuple[doc.Text, list[float]]] = []
    for name, a_ns, b_ns in _leaves(change):
        # The row of a sum precedes the first of its parts.
        group = name.partition(":")[0]
        if group != name and group in sums:
            rows.append(sums.pop(group))
        rows.append((name if ":" in name or not change.a.ranks else doc.Strong(name), [a_ns, b_ns]))
    rows.append((doc.Strong(_WORDS[change.extent][2]), [parts.wall_ns for parts in both]))
    unit = step_unit(parts.wall_ns for parts in both)
    columns = [doc.label("part", ""), *_time_columns(unit)]
    cells = tuple(tuple(map(doc.cell, (name, a, b, b - a))) for name, (a, b) in rows)
    return doc.TableBlock("parts", tuple(columns), cells, is_divisible=False)


def _time_columns(unit: Unit) -> list[doc.TableColumn]:
    return [
        doc.number("a", "A", unit),
        doc.number("b", "B", unit),
        doc.number("part", "B - A", unit.signed()),
    ]


def _times(a: StepParts, b: StepParts) -> list[float]:
    return [a.wall_ns, b.wall_ns, b.wall_ns - a.wall_ns]


def _ranks_table(change: RecordingChange) -> doc.TableBlock:
    """Return the time of each rank that both sides have, and how much of the difference is exposed communication."""
    a, b = change.a.ranks, change.b.ranks
    shared = [rank for rank in a if rank in b] if len(a.keys() | b.keys()) > 1 else []
    unit = step_unit(ranks[rank].wall_ns for rank in shared for ranks in (a, b))
    columns = [doc.label("rank"), *_time_columns(unit)]
    columns.append(doc.number("waiting", "of it exposed communication", unit.signed()))
    rows: list[list[doc.Content]] = [
        [
            place_name(rank),
            *_times(a[rank], b[rank]),
            b[rank].ns[StepPart.COMMUNICATION] - a[rank].ns[StepPart.COMMUNICATION],
        ]
        for rank in shared
    ]
    return doc.make_table("ranks", columns, rows)


def _kernels_table(change: RecordingChange) -> doc.TableBlock:
    """Return the kernels that differ most, and all copies and sets."""
    what = "Kernels and copies" if change.has_times else "Kernels"
    columns, rows = kernel_rows(change.kernels, _change, _is_kept)
    table = doc.make_table("kernels", columns, rows, f"{what} {_WORDS[change.extent][1]}")
    return table.without("range", *(() if change.has_times else ("a", "b", "part")))


def _is_kept(kernel: KernelDifference) -> bool:
    is_on_both = kernel.change in (KernelChange.LAUNCHES, KernelChange.TIME, KernelChange.UNCHANGED)
    return not is_on_both or kernel.kernel_class in COPIES


def _change(kernel: KernelDifference) -> str:
    if kernel.change is KernelChange.TIME:
        return "grew" if kernel.part_ns > 0 else "shrank"
    return _CHANGES.get(kernel.change, kernel.change.value)


# --- the JSON document ------------------------------------------------------------------------------------------------


def document(
    comparison: RunComparison, names: Sequence[str], run: Manifest, gate: GateResult | None, exit_code: int
) -> dict[str, Any]:
    """Return the document of a comparison. ``names`` are those of A and of B, and ``run`` is B."""
    # All keys that ``profpipe ab`` writes, of which most have no value here.
    nothing = results_json.verdict_document(
        PairFindings((), 0.0), Tables(), Manifest(name=run.name, ab=PairsEntry()), "", exit_code
    )
    unknown = ("started", "ended", "summary", "aa", "pairs", "seed", "captures", "profiler", "expected_false")
    warnings = {"not_compared": missing(comparison), "runs_differ": differences(comparison)}
    return {
        **nothing,
        **dict.fromkeys(unknown),
        "kind": "compare",
        "a": {"runs": [names[0]]},
        "b": {"runs": [names[1]]},
        "gate": gate and {**results_json.gate_document(gate), "inconclusive": Undecided.REPORT.value},
        "cases": [_write_case(change, gate) for change in comparison.changes],
        "warnings": [{"kind": kind, "text": text} for kind, texts in warnings.items() for text in texts],
    }


def _write_case(change: Change, gate: GateResult | None) -> dict[str, Any]:
    """Return a case: what `ab` writes of it, of which most is not known here."""
    times = {} if math.isnan(change.ratio) else {"ratio": change.ratio, "is_beyond_noise": change.is_beyond_noise}
    return {
        **results_json.case_document(change),
        "case": readable(change.case),
        "kernels": [],
        "differing_params": change.differing_params or None,
        **times,
        "gate": gate and gate.judge(change).value,
    }


def recordings_document(comparison: RecordingComparison, names: Sequence[str]) -> dict[str, Any]:
    """Return the document of two recordings, which has no verdicts. Times are of ``of``: a step, a call, ..."""
    (a, b), peaks = names, comparison.memory
    return {
        "format": results_json.VERDICTS_FORMAT,
        "version": results_json.VERDICTS_VERSION,
        "kind": "compare_recordings",
        "a": {"runs": [a]},
        "b": {"runs": [b]},
        "cases": [_recording(change) for change in comparison.changes],
        "alone": dict(comparison.alone),
        **({"memory": {name: parts.to_dict("index") for name, parts in peaks.items()}} if peaks else {}),
        "warnings": [{"kind": "no_verdict", "text": doc.plain(text)} for text in notes(comparison)],
    }


def _recording(change: RecordingChange) -> dict[str, Any]:
    sides = {
        name: {
            **{key: getattr(side, key) for key in ("workload", "case", "profiler", "launches")},
            "steady": side.steps.count(StepState.STEADY)[1] if side.steps else 0,
            "steps": side.steps.steps if side.steps else 0,
            "kernel_ns": side.kernel_ns if change.has_times else None,
        }
        for name, side in (("a", change.a), ("b", change.b))
    }
    kernels = [
        {"kernel": kernel.name, "b_kernel": kernel.b_name, "kernel_class": kernel.kernel_class,
         "cause": str(kernel.change), "a_calls": kernel.a.calls, "b_calls": kernel.b.calls,
         **(_difference(kernel.a.ns, kernel.b.ns) if change.has_times else {})}
        for kernel in change.kernels
    ]  # fmt: skip
    fields = {"of": change.extent.value, **sides, "kernels": kernels}
    if not change.has_times:
        return fields
    a, b = change.a.parts, change.b.parts
    classes = {
        name: _difference(*(parts.classes.get(name, 0.0) for parts in (a, b))) for name in {**a.classes, **b.classes}
    }
    ranks = {place_name(rank): _difference(parts.wall_ns, change.b.ranks[rank].wall_ns)
             for rank, parts in change.a.ranks.items() if rank in change.b.ranks}  # fmt: skip
    return {
        **fields,
        **_difference(a.wall_ns, b.wall_ns),
        "parts": {part.value: _difference(a.ns[part], b.ns[part]) for part in StepPart},
        "compute": classes,
        "ranks": ranks,
    }


def _difference(a_ns: float, b_ns: float) -> dict[str, float]:
    return {"a_ns": a_ns, "b_ns": b_ns, "difference_ns": b_ns - a_ns}
