"""The difference of two recordings: what is longer or shorter, by part, rank and kernel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from profpipe.analysis.compare_recordings import Extent, RecordingChange, RecordingComparison, Side, name_of
from profpipe.analysis.kernel_differences import KernelDifference
from profpipe.analysis.kernel_totals import COPIES
from profpipe.analysis.steps import StepPart
from profpipe.report import document as doc
from profpipe.report.labels import duration, fill, literal, plural
from profpipe.report.sections.kernel_differences import kernel_rows
from profpipe.report.sections.steps import PART_NAMES, class_label, classes
from profpipe.report.units import Unit, count, signed_percent, step_unit, time_unit
from profpipe.results.schema import KernelChange, StepState

#: Recordings with tables of their own: those with the largest differences. The others have a row each.
_MOST_SECTIONS = 8
#: Parts that a sentence names, and the share of the largest part below which none is named.
_MOST_PARTS, _LEAST_PART = 3, 0.1
#: Names of recordings that a sentence names; more are counted.
_MOST_NAMED = 8
#: From this ratio of launches on, two whole recordings may be of unequal work.
_LONGER = 1.1

_WHAT = {
    Extent.STEP: "A step takes",
    Extent.CALL: "The kernels of a call take",
    Extent.RECORDING: "The recording takes",
    Extent.KERNELS: "The kernels take",
}
_OF = {
    Extent.STEP: "of a step",
    Extent.CALL: "of a call",
    Extent.RECORDING: "of the recording",
    Extent.KERNELS: "of the recording",
}
_TOTALS = {
    Extent.STEP: "step (mean)",
    Extent.CALL: "kernels of a call",
    Extent.RECORDING: "recording",
    Extent.KERNELS: "kernels",
}

_CHANGES = {
    KernelChange.EXCHANGED: "other name",
    KernelChange.APPEARED: "appeared",
    KernelChange.VANISHED: "vanished",
    KernelChange.CLASS: "class",
    KernelChange.LAUNCHES: "launches",
    KernelChange.UNCHANGED: "",
}

NO_VERDICT = (
    "No verdict: one recording of each side cannot tell a difference from noise. `profpipe ab` runs both sides in turns"
    " and gives a verdict: profpipe ab --a git:REVISION -- PROGRAM"
)


def sections(found: RecordingComparison) -> Iterator[doc.Section]:
    """Yield a table of all recordings where there are several, and those with the largest differences by part."""

    def size(change: RecordingChange) -> float:
        return abs(change.difference_ns) / max(change.a.parts.wall_ns, 1.0) if change.has_times else 0.0

    changes = sorted(found.changes, key=size, reverse=True)
    several = len(changes) > 1
    if several:
        yield doc.make_section("recordings", "", [_overview(found.changes)])
    for change in changes[:_MOST_SECTIONS]:
        yield _section(change, _title(change) if several else "")
    if left := changes[_MOST_SECTIONS:]:
        text = (
            f"Not shown: {plural(len(left), 'recording')} with smaller differences. `--json FILE` has the parts of all."
        )
        yield doc.make_section("others", "", [doc.Paragraph(text)])
    yield doc.make_section("notes", "", [doc.Paragraph(line) for line in notes(found)])


def notes(found: RecordingComparison) -> Iterator[doc.Text]:
    """Yield the GPUs that differ, the recordings without a partner, and why there is no verdict."""
    if found.gpus:
        yield f"The GPUs differ: A was recorded on {found.gpus[0]}, B on {found.gpus[1]}."
    for side, names in found.alone.items():
        if names:
            listed = doc.join(map(doc.Code, names), most=_MOST_NAMED)
            yield fill(f"Only {side} holds {{}}.", listed)
    if any(change.has_times and not change.is_same for change in found.changes):
        yield NO_VERDICT


def _title(change: RecordingChange) -> str:
    a, b = (name_of(own.workload, own.case) for own in (change.a, change.b))
    return a if a == b else f"{a} → {b}"


def _overview(changes: Sequence[RecordingChange]) -> doc.Table:
    timed = [change for change in changes if change.has_times]
    unit = time_unit([own.parts.wall_ns for change in timed for own in (change.a, change.b)])
    columns: doc.Columns[RecordingChange] = [
        (doc.label("recording"), lambda own: doc.Code(_title(own))),
        (doc.words("of"), lambda own: own.extent.value),
        (doc.Column("a", "A", unit), lambda own: own.a.parts.wall_ns),
        (doc.Column("b", "B", unit), lambda own: own.b.parts.wall_ns),
        (doc.Column("part", "B - A", unit.signed()), lambda own: own.difference_ns),
    ]
    return doc.table_of("recordings", timed, columns)


def _section(change: RecordingChange, title: str) -> doc.Section:
    blocks: list[doc.Block] = [doc.Paragraph(doc.Strong(headline(change)))]
    if not change.is_same:
        blocks += [doc.Paragraph(sentence) for sentence in sentences(change)]
        if change.has_times:
            blocks += [_parts_table(change), _ranks_table(change)]
        blocks.append(_kernels_table(change))
    return doc.make_section("recording_change", title, blocks)


# --- sentences -------------------------------------------------------------------------------------------------------


def headline(change: RecordingChange) -> doc.Text:
    """Return ``A step takes 599 us in A and 470 us in B: -129 us (-21.5 %), under torch.``"""
    a_ns, b_ns = change.a.parts.wall_ns, change.b.parts.wall_ns
    if not change.has_times:
        return (
            f"A was recorded by {change.a.profiler} and B by {change.b.profiler}. Each adds its own overhead, so times"
            " are not compared, only launches."
        )
    under = f"under {change.a.profiler}"
    if change.is_same:
        return fill(f"{_WHAT[change.extent]} {{}} in A and in B: no difference in any part or kernel, {under}.",
                    duration(a_ns, step_unit([a_ns])))  # fmt: skip
    unit = step_unit([a_ns, b_ns])
    return fill(
        f"{_WHAT[change.extent]} {{}} in A and {{}} in B: {{}}{_percent(a_ns, b_ns)}, {under}.",
        duration(a_ns, unit), duration(b_ns, unit), _signed(change.difference_ns),
    )  # fmt: skip


def _percent(a_ns: float, b_ns: float) -> str:
    return f" ({signed_percent(b_ns / a_ns - 1)})" if a_ns else ""


def _signed(ns: float) -> doc.Number:
    return doc.Number(ns, time_unit([ns]).signed())


def sentences(change: RecordingChange) -> Iterator[doc.Text]:
    """Yield the largest parts, what the figures are of, and what hinders the comparison."""
    if change.has_times:
        parts = sorted(((name, b - a) for name, a, b in _leaves(change)), key=lambda part: -abs(part[1]))
        largest = [(name, ns) for name, ns in parts[:_MOST_PARTS] if abs(ns) > _LEAST_PART * abs(parts[0][1])]
        if largest:
            named = [fill(f"{literal(name)} {{}}", _signed(ns)) for name, ns in largest]
            yield fill("The largest parts of it: {}.", doc.join(named, last=", "))
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
        both = [(side, own.steps) for side, own in (("A", a), ("B", b)) if own.steps]
        counts = [f"{own.count(StepState.STEADY)[1]} of {plural(own.steps, 'step')} in {side}" for side, own in both]
        yield f"The {what} are means of the steady steps: {' and '.join(counts)}."
        first, second = (own.rule.value for _, own in both)
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
    ranks = a.ranks.keys() | b.ranks.keys()
    if len(ranks) > 1:
        yield "They are means over the ranks that both sides have."
        for side, own in (("A", a), ("B", b)):
            if missing := sorted(ranks - own.ranks.keys()):
                names = doc.join(map(str, missing), most=_MOST_NAMED)
                yield fill(f"{side} has no rank {{}}; the kernels below are means over all ranks of a side.", names)
    if change.extent in (Extent.STEP, Extent.CALL):
        calls = [sum(own.calls for own in side.kernels.values() if own.kernel_class not in COPIES) for side in (a, b)]
        yield f"A {change.extent.value} has {count(calls[0])} launches in A and {count(calls[1])} in B."
    yield fill("In all, A holds {} and B {}.", *(_whole(own, change.has_times) for own in (a, b)))
    is_longer = max(a.launches, b.launches) > _LONGER * min(a.launches, b.launches)
    if is_longer and change.extent in (Extent.RECORDING, Extent.KERNELS):
        yield "One recording holds more launches than the other, so the sums may be of unequal work."


def _whole(own: Side, has_times: bool) -> doc.Text:
    launches = plural(round(own.launches), "launch", "launches")
    return fill(f"{launches} of {{}}", duration(own.kernel_ns)) if has_times else launches


# --- tables ----------------------------------------------------------------------------------------------------------


def _leaves(change: RecordingChange) -> list[tuple[str, float, float]]:
    """Return (name, ns on A, ns on B) of the parts that add up to the times of both sides."""
    both = change.a.parts, change.b.parts
    shown = classes(both) if any(own.classes for own in both) else []
    prefix = "compute: " if change.a.ranks else ""
    times = {f"{prefix}{class_label(name)}": [own.classes.get(name, 0.0) for own in both] for name in shown}
    rest = [own.ns[StepPart.COMPUTE] - sum(own.classes.get(name, 0.0) for name in shown) for own in both]
    times[f"{prefix}other kernels" if shown else "compute"] = rest
    times |= {PART_NAMES[part]: [own.ns[part] for own in both] for part in StepPart if part is not StepPart.COMPUTE}
    return [(name, a_ns, b_ns) for name, (a_ns, b_ns) in times.items() if a_ns or b_ns]


def _parts_table(change: RecordingChange) -> doc.Table:
    """Return the parts and their sum. The compute and the idle time have a row with their sum too."""
    both = change.a.parts, change.b.parts
    sums: dict[str, tuple[doc.Text, list[float]]] = {
        "compute": (doc.Strong("compute"), [own.ns[StepPart.COMPUTE] for own in both]),
        "idle": (doc.Strong("idle"), [own.idle_ns for own in both]),
    }
    rows: list[tuple[doc.Text, list[float]]] = []
    for name, a_ns, b_ns in _leaves(change):
        # The row of a sum precedes the first of its parts.
        group = name.partition(":")[0]
        if group != name and group in sums:
            rows.append(sums.pop(group))
        rows.append((name if ":" in name or not change.a.ranks else doc.Strong(name), [a_ns, b_ns]))
    rows.append((doc.Strong(_TOTALS[change.extent]), [own.wall_ns for own in both]))
    unit = step_unit(own.wall_ns for own in both)
    columns = [doc.label("part", ""), *_time_columns(unit)]
    cells = tuple(tuple(map(doc.cell, (name, a, b, b - a))) for name, (a, b) in rows)
    return doc.Table("parts", tuple(columns), cells, is_divisible=False)


def _time_columns(unit: Unit) -> list[doc.Column]:
    return [
        doc.Column("a", "A", unit),
        doc.Column("b", "B", unit),
        doc.Column("part", "B - A", unit.signed()),
    ]


def _ranks_table(change: RecordingChange) -> doc.Table:
    """Return the time of each rank that both sides have, and how much of the difference is exposed communication."""
    a, b = change.a.ranks, change.b.ranks
    shared = sorted(a.keys() & b.keys()) if len(a.keys() | b.keys()) > 1 else []
    unit = step_unit(own[rank].wall_ns for rank in shared for own in (a, b))
    columns = [doc.label("rank"), *_time_columns(unit)]
    columns.append(doc.Column("waiting", "of it exposed communication", unit.signed()))
    rows: list[list[doc.Content]] = [
        [str(rank), a[rank].wall_ns, b[rank].wall_ns, b[rank].wall_ns - a[rank].wall_ns,
         b[rank].ns[StepPart.COMMUNICATION] - a[rank].ns[StepPart.COMMUNICATION]]
        for rank in shared
    ]  # fmt: skip
    return doc.make_table("ranks", columns, rows)


def _kernels_table(change: RecordingChange) -> doc.Table:
    """Return the kernels that differ most, and all copies and sets."""
    what = "Kernels and copies" if change.has_times else "Kernels"
    columns, rows = kernel_rows(change.kernels, _change, _is_kept)
    table = doc.make_table("kernels", columns, rows, f"{what} {_OF[change.extent]}")
    return table.without("range", *(() if change.has_times else ("a", "b", "part")))


def _is_kept(kernel: KernelDifference) -> bool:
    is_on_both = kernel.change in (KernelChange.LAUNCHES, KernelChange.TIME, KernelChange.UNCHANGED)
    return not is_on_both or kernel.kernel_class in COPIES


def _change(kernel: KernelDifference) -> str:
    if kernel.change is KernelChange.TIME:
        return "grew" if kernel.part_ns > 0 else "shrank"
    return _CHANGES[kernel.change]
