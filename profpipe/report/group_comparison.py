"""The text of ``profpipe compare`` on groups of runs, and what both forms of the command have in common."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from profpipe.analysis import rank_sum
from profpipe.analysis.compare_groups import (
    ALPHA,
    GroupChange,
    GroupComparison,
    Hindrance,
    judge_gate,
)
from profpipe.analysis.compare_runs import Comparison
from profpipe.analysis.verdict import Gate
from profpipe.job import count_cases
from profpipe.report.inlines import plural
from profpipe.report.units import time_unit
from profpipe.results.schema import Verdict

_COLUMNS: Final = ("case", "A", "B", "B vs A", "99 % interval", "p", "processes", "verdict")


def text(found: GroupComparison) -> str:
    """Return one line for each case, and what hinders a verdict."""
    lines = [f"A: {plural(found.runs[0], 'run')}, B: {plural(found.runs[1], 'run')}"]
    lines += _table(found.changes) or ["No case has a time in both groups."]
    lines += missing(found)
    lines += hindrances(found)
    return "\n".join([*lines, *differences(found)])


def missing(found: Comparison | GroupComparison) -> Iterator[str]:
    """Yield the cases that have a time in A alone."""
    yield from (f"{name}: has a time in A and failed in B" for name in found.lost)
    yield from (f"{name}: has a time in A and none in B" for name in found.absent)


def differences(found: Comparison | GroupComparison) -> Iterator[str]:
    """Yield what differs between the runs beside the code."""
    if found.changed_params:
        yield f"Not compared, because parameters differ ({count_cases(len(found.changed_params))}; in A and in B):"
    for case in found.changed_params:
        texts = {name: ["none" if v is None else v for v in values] for name, values in case.differences.items()}
        yield f"{case.name}: {', '.join(f'{name} {a} and {b}' for name, (a, b) in texts.items())}"
    if found.gpus:
        yield f"The GPUs differ: A ran on {found.gpus[0]}, B on {found.gpus[1]}."
    if found.is_b_unfinished:
        yield "B has not ended: `profpipe resume` continues it."


def _table(changes: Sequence[GroupChange]) -> list[str]:
    if not changes:
        return []
    unit = time_unit([time for change in changes for time in (change.a.median_ns, change.b.median_ns)])
    rows = [tuple(f"{name} {unit.name}" if name in ("A", "B") else name for name in _COLUMNS)]
    for change in changes:
        has_interval = change.ci_low is not None and change.ci_high is not None
        ends = [f"{100 * (end - 1):+.1f}" for end in (change.ci_low, change.ci_high) if end is not None]
        note = f", inaccurate in {' and '.join(change.inaccurate_in)}" if change.inaccurate_in else ""
        sizes = f"{len(change.a.logs)} + {len(change.b.logs)}"
        verdict = f"{change.verdict} (floor {100 * change.floor:.1f} %){note}"
        times = unit.of(change.a.median_ns), unit.of(change.b.median_ns)
        interval = f"{ends[0]} to {ends[1]} %" if has_interval else "-"
        rows.append((change.name, *times, f"{change.percent:+.1f} %", interval, f"{change.p:.2g}", sizes, verdict))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    last = len(_COLUMNS) - 1
    return [
        "  ".join(
            cell.ljust(width) if i in (0, last) else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def hindrances(found: GroupComparison) -> Iterator[str]:
    """Yield why no verdict was possible, whatever the difference."""
    hindrances = {change.hindrance for change in found.changes}
    if Hindrance.NOT_INTERLEAVED in hindrances:
        first, other = ("A", "B") if found.imbalance > 0 else ("B", "A")
        which = "All" if found.is_in_blocks else "Most"
        yield (
            f"{which} runs of {first} came before those of {other}. A drift of the machine then looks like a"
            " difference, so no case gets a verdict. Let the runs of A and B take turns, or use `profpipe ab`."
        )
    if Hindrance.ONE_RUN_A_SIDE in hindrances:
        yield "Each side is one run, and how far runs of the same code differ is not known. Add runs to both sides."
    if Hindrance.TOO_FEW_PROCESSES in hindrances:
        few = [change for change in found.changes if change.hindrance is Hindrance.TOO_FEW_PROCESSES]
        sizes = len(few[0].a.logs), len(few[0].b.logs)
        yield (
            f"{sizes[0]} and {sizes[1]} processes cannot make a case faster or slower: their smallest p is"
            f" {rank_sum.smallest_two_sided_p(*sizes):.2g}, and the test is at {ALPHA:g}. Six on each side can."
        )


# --- the gate --------------------------------------------------------------------------------------------------------


def gate_failure(found: GroupComparison, percent: float) -> str:
    """Return why B fails a gate of ``percent``; empty if it does not."""
    if found.is_b_unfinished:
        return "A run of B has not ended, so its missing cases cannot be judged. `profpipe resume` continues it."
    failed = [change for change in found.changes if judge_gate(change, percent) is Gate.FAILED]
    slower = [change.name for change in failed if change.verdict is Verdict.SLOWER and change.percent > percent]
    inaccurate = [change.name for change in failed if change.name not in slower]
    changed = [case.name for case in found.changed_params]
    causes = {
        f"more than {percent:g} % slower": slower,
        "within the tolerance in A, and not in B": inaccurate,
        "with a time in A, and failed in B": found.lost,
        "not comparable, for parameters differ": changed,
    }
    parts = [f"{count_cases(len(names))} {what}: {', '.join(names)}" for what, names in causes.items() if names]
    return "; ".join(parts)


def gate_undecided(found: GroupComparison, percent: float) -> str:
    """Return which cases neither pass nor fail a gate of ``percent``; empty where there is none."""
    names = [change.name for change in found.changes if judge_gate(change, percent) is Gate.UNDECIDED]
    if names:
        which = f"{count_cases(len(names))} may be more than {percent:g} % slower"
        return f"the gate is undecided: {which}: {', '.join(names)}"
    return "" if found.changes else "there is nothing to judge. Name runs of the same cases, all under plain."
