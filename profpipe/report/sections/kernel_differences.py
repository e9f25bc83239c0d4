"""The difference of a case of an `ab` run by kernel: one line for tables and messages, and a table for the details."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from profpipe.analysis.changes import Change
from profpipe.analysis.grouping import grouped
from profpipe.analysis.kernel_differences import VAGUE_CLASSES, KernelComparison, KernelDifference, KernelSet
from profpipe.analysis.pairs import PairFindings
from profpipe.job import readable
from profpipe.report import document as doc
from profpipe.report.labels import fill, plural, short_names, shorten
from profpipe.report.units import Unit, count, rounded, signed, time_unit
from profpipe.results.manifest import NoCaptures, PairsEntry
from profpipe.results.schema import KernelChange, Verdict

#: The parts of a line: so many, and none below this share of the largest.
_MOST_PARTS, _LEAST_PART = 3, 0.1
#: Characters of a kernel's name in a line and in a table.
_IN_LINE, _IN_TABLE = 32, 60
#: Rows of the table of a case; kernels that change in more than their time have one beyond the first number too.
_MOST_ROWS, _MOST_CHANGED = 12, 40
#: Cases up to which the details have a table for each of them; beyond, for those with an explanation.
_MOST_TABLES = 24
#: Kernels that a sentence names; more are counted.
_MOST_NAMED = 2

_REST = "not in kernels"

#: The changes whose words differ from their values.
_CHANGES: Mapping[KernelChange, str] = {
    KernelChange.APPEARED: "only on B",
    KernelChange.VANISHED: "only on A",
    KernelChange.UNCHANGED: "",
}

_NO_CAPTURES: Mapping[NoCaptures, str] = {
    NoCaptures.NO_GPU: "No capture shows the kernels of a difference, because there is no GPU.",
    NoCaptures.NO_PROFILER: "No capture shows the kernels of a difference: neither nsys nor torch is installed."
    " `profpipe doctor` says how to install them.",
}


# --- one line --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Part:
    """The kernels of one class, or the rest of the difference without any."""

    ns: float
    label: doc.Text
    kernels: tuple[KernelDifference, ...] = ()


def is_explained(case: Change) -> bool:
    """Return True for a case that is faster or slower, or launches other kernels on B, and has captures."""
    if case.kernels is None or case.judgement is None:
        return False
    return case.judgement.verdict in (Verdict.FASTER, Verdict.SLOWER) or case.kernels.has_other_kernels


def explain(case: Change) -> doc.Text:
    """Return ``+41 us: +44 us add (1 more launch), -3 us attention``; empty for a case without an explanation."""
    if case.kernels is None or not is_explained(case):
        return ""
    parts = _largest(case.kernels)
    unit = time_unit([max([case.kernels.difference_ns, *(part.ns for part in parts)], key=abs)])
    notes = [_write_change(part.kernels) for part in parts]
    listed = [
        doc.concat(f"{_signed(part.ns, unit)} ", part.label, fill(" ({})", note) if note else "")
        for part, note in zip(parts, notes, strict=True)
    ]
    return doc.concat(f"{_signed(case.kernels.difference_ns, unit)}: ", doc.join(listed, last=", "))


def _largest(comparison: KernelComparison) -> list[_Part]:
    """Return the parts to name: the largest ones, and the largest one with other kernels."""
    parts = sorted(
        [*_sum_classes(comparison.kernels), _Part(comparison.not_in_kernels_ns, _REST)], key=lambda part: -abs(part.ns)
    )
    named = [part for part in parts[:_MOST_PARTS] if abs(part.ns) >= _LEAST_PART * abs(parts[0].ns)]
    with_others = [part for part in parts if any(kernel.is_other for kernel in part.kernels)]
    return named if any(part in with_others for part in named) else [*named, *with_others[:1]]


def _sum_classes(kernels: Sequence[KernelDifference]) -> Iterator[_Part]:
    for name, class_kernels in grouped((kernel.kernel_class, kernel) for kernel in kernels).items():
        changed = [kernel for kernel in class_kernels if kernel.change is not KernelChange.UNCHANGED]
        label: doc.Text = name
        if name in VAGUE_CLASSES:
            first = doc.Code(shorten((changed or class_kernels)[0].name, _IN_LINE))
            many = len(changed or class_kernels)
            label = first if many == 1 else f"{many} {name or 'other'} kernels"
        yield _Part(sum(kernel.part_ns for kernel in class_kernels), label, tuple(class_kernels))


def _write_change(kernels: Sequence[KernelDifference]) -> doc.Text:
    """Return what changed in kernels of one class, beside their time."""
    more = sum(kernel.b.calls - kernel.a.calls for kernel in kernels)
    if count(abs(more)) != "0":
        return f"{count(abs(more))} {'more' if more > 0 else 'fewer'} {'launch' if abs(more) == 1 else 'launches'}"
    exchanged = [kernel for kernel in kernels if kernel.change is KernelChange.EXCHANGED]
    if len(exchanged) == 1:
        return _exchange(exchanged[0], _IN_LINE)
    if exchanged:
        return f"{len(exchanged)} kernels exchanged"
    changed = [kernel for kernel in kernels if kernel.change in (KernelChange.APPEARED, KernelChange.VANISHED)]
    return "other kernels" if changed else ""


def _exchange(kernel: KernelDifference, width: int) -> doc.Text:
    short = _brief([kernel.name, kernel.b_name], width)
    return fill("{} → {}", doc.Code(short[kernel.name]), doc.Code(short[kernel.b_name]))


def _brief(names: Sequence[str], width: int) -> dict[str, str]:
    """Return each name in about ``width`` characters, without template arguments where it differs before them."""
    once = list(dict.fromkeys(names))
    bases = [shorten(name, _IN_TABLE).partition("<")[0] for name in once]
    return {
        name: shorten(base if bases.count(base) == 1 else name, width) for name, base in zip(once, bases, strict=True)
    }


def _signed(ns: float, unit: Unit) -> str:
    return f"{rounded(ns / unit.size)} {unit.name}"


# --- sentences -------------------------------------------------------------------------------------------------------


def capture_facts(settings: PairsEntry) -> Iterator[doc.Text]:
    """Yield how the kernels were recorded, or why they were not."""
    if settings.no_captures:
        yield from filter(None, [_NO_CAPTURES.get(settings.no_captures)])
    elif settings.captures:
        if settings.captures_all:
            yield (
                f"{settings.profiler} recorded the kernels of both sides in {plural(settings.captures, 'pair')}, in"
                " separate processes that are not timed."
            )
        else:
            yield (
                f"After the pairs {settings.profiler} records the kernels of faster and slower cases, in"
                f" {plural(settings.captures, 'pair')} of separate processes. Whether kernels vary between processes is"
                f" judged for these only; `--captures {settings.captures}` records every case."
            )


def variation(case: Change) -> doc.Text:
    """Return ``2 of 3 processes of A launched X, 1 launched Y``; empty where the processes of each side agree."""
    sides = case.kernels.variations if case.kernels else {}
    return doc.join([_variation(*side) for side in sides.items()], separator="; ", last="; ")


def _variation(side: str, kernel_sets: Sequence[KernelSet]) -> doc.Text:
    seen = [name for _, launches in kernel_sets for name in launches]
    short, processes = _brief(seen, _IN_LINE), sum(alike for alike, _ in kernel_sets)
    sets: list[doc.Text] = []
    for alike, launches in kernel_sets:
        kernels = [_launches(short[name], calls, seen.count(name) > 1) for name, calls in launches.items()]
        listed = doc.join(kernels, most=_MOST_NAMED) if kernels else "none of these"
        head = f"{alike} of {plural(processes, 'process', 'processes')} of {side} launched "
        sets.append(doc.concat(head if not sets else f"{alike} launched ", listed))
    return doc.join(sets, last=", ")


def _launches(name: str, calls: float, is_counted: bool) -> doc.Text:
    times = f" ({plural(round(calls), 'time') if calls == round(calls) else f'{count(calls)} times'})"
    return doc.concat(doc.Code(name), times if is_counted else "")


# --- sections --------------------------------------------------------------------------------------------------------


def kernel_differences(changes: Sequence[Change]) -> doc.Section:
    """Return the kernels of each case, those with the largest parts first. They add up to the difference."""
    compared = [case for case in changes if case.kernels]
    shown = [case for case in compared if len(compared) <= _MOST_TABLES or is_explained(case)]
    blocks: list[doc.Block] = [_case_table(case, f"kernels_{i}") for i, case in enumerate(shown, start=1)]
    if blocks:
        left = len(compared) - len(shown)
        more = (
            f" `verdicts.parquet` has the kernels of {left} further cases, which are not faster or slower."
            if left
            else ""
        )
        note = (
            "Times and launches of one iteration: medians over the captures of a side. B - A of a case is the"
            " estimate without a profiler, and the rows add up to it. Not in kernels: idle time, launch gaps and the"
            f" error of the profiler.{more}"
        )
        blocks.insert(0, doc.Paragraph(note, doc.OnPage.DETAILS))
    return doc.make_section("kernel_differences", "Differences by kernel", blocks)


def _case_table(case: Change, id: str) -> doc.TableBlock:
    comparison = case.kernels
    assert comparison is not None and case.judgement is not None
    columns, rows = kernel_rows(
        comparison.kernels,
        lambda kernel: _CHANGES.get(kernel.change, kernel.change.value),
        lambda kernel: kernel.is_other,
    )
    rows.append(_sum_row(_REST, comparison.not_in_kernels_ns))
    total = doc.TableCell(comparison.difference_ns, is_strong=True)
    rows.append([doc.Strong("the case"), "", "", doc.TableCell(), doc.TableCell(), case.a_ns, case.b_ns, total, ""])
    line = explain(case)
    head = doc.concat(doc.Code(case.name), f": {case.judgement.verdict}")
    return doc.TableBlock(
        id,
        tuple(columns),
        tuple(tuple(map(doc.cell, row)) for row in rows),
        doc.concat(head, ", ", line) if line else head,
        doc.OnPage.DETAILS,
        is_divisible=False,
    )


def kernel_rows(
    kernels: Sequence[KernelDifference],
    write_change: Callable[[KernelDifference], str],
    is_kept: Callable[[KernelDifference], bool],
) -> tuple[list[doc.TableColumn], list[list[doc.Content]]]:
    """Return the columns, and the rows of the first kernels, of further ones that are kept, and of a sum."""
    first = kernels[:_MOST_CHANGED]
    shown = [kernel for i, kernel in enumerate(first) if i < _MOST_ROWS or is_kept(kernel)]
    others = [kernel for kernel in kernels if kernel not in shown]
    unit = time_unit([time for kernel in shown for time in (kernel.a.ns, kernel.b.ns)])
    columns = [
        doc.label("kernel"), doc.words("class"), doc.words("change"),
        doc.count("a_calls", "launches A"), doc.count("b_calls", "launches B"),
        doc.number("a", "A", unit), doc.number("b", "B", unit),
        doc.number("part", "B - A", unit.signed()), doc.words("range", "in single captures"),
    ]  # fmt: skip
    short = short_names((kernel.name for kernel in shown), _IN_TABLE)
    rows: list[list[doc.Content]] = [_row(kernel, short, unit, write_change(kernel)) for kernel in shown]
    if others:
        rows.append(_sum_row(plural(len(others), "other kernel"), sum(kernel.part_ns for kernel in others)))
    return columns, rows


def _row(kernel: KernelDifference, short: Mapping[str, str], unit: Unit, change: str) -> list[doc.Content]:
    is_exchanged = kernel.change is KernelChange.EXCHANGED
    name = _exchange(kernel, _IN_TABLE) if is_exchanged else doc.Code(short[kernel.name])
    is_other_class = kernel.change is KernelChange.CLASS
    classes = f"{kernel.a.kernel_class} → {kernel.b.kernel_class}" if is_other_class else kernel.kernel_class
    if kernel.judgement:
        change = ", ".join(filter(None, [change, str(kernel.judgement.verdict)]))
    low, high = (signed(end / unit.size) for end in (kernel.low_ns, kernel.high_ns))
    ends = "" if kernel.captures < 2 else f"{low} to {high}"
    return [name, classes, change, kernel.a.calls, kernel.b.calls, kernel.a.ns, kernel.b.ns, kernel.part_ns, ends]


def _sum_row(name: str, ns: float) -> list[doc.Content]:
    return [name, "", "", *(doc.TableCell() for _ in range(4)), ns, ""]


def failed_captures(findings: PairFindings) -> doc.Section:
    """Return the cases of which a capture failed. Their verdicts hold."""
    columns = [
        (doc.label("case"), lambda capture: doc.Code(f"{capture.workload}/{readable(capture.case)}")),
        (doc.words("profiler"), lambda capture: capture.profiler),
        (doc.words("status"), lambda capture: capture.status),
        (doc.words("reason"), lambda capture: capture.reason),
    ]
    table = doc.table_of("failed_captures", findings.failed_captures, columns)
    note = doc.Paragraph("The verdicts hold: a capture is a separate process.")
    return doc.make_section("failed_captures", "Captures that failed", [table, note] if table.rows else [])
