"""The text of ``profpipe compare`` on two runs and on groups of runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

from profpipe.analysis import rank_sum
from profpipe.analysis.compare_groups import (
    ALPHA,
    GroupChange,
    GroupComparison,
    Hindrance,
)
from profpipe.analysis.compare_recordings import RecordingComparison
from profpipe.analysis.compare_runs import Change, Comparison, GateCause
from profpipe.analysis.noise import FEWEST_RUNS
from profpipe.job import count_cases
from profpipe.report.formatting import column_width
from profpipe.report.inlines import plural
from profpipe.report.sections import recording_changes
from profpipe.report.text import align, write_section
from profpipe.report.units import time_unit

Compared: TypeAlias = "Comparison[Change] | GroupComparison"

#: What a difference of two runs is worth, by whether it is beyond the noise.
_NOTES: Final = {True: "  beyond the noise", False: "  within the noise", None: "  no verdict"}

_COLUMNS: Final = ("case", "A", "B", "B vs A", "99 % interval", "p", "processes", "verdict")


def text(found: Compared | RecordingComparison) -> str:
    """Return one line for each case, what hinders a verdict, and one line for each difference between the runs.

    Of recordings, return the parts and the kernels of their differences.
    """
    if isinstance(found, RecordingComparison):
        return "\n\n".join(filter(None, map(write_section, recording_changes.sections(found))))
    if isinstance(found, GroupComparison):
        lines = [f"A: {plural(found.runs[0], 'run')}, B: {plural(found.runs[1], 'run')}"]
        lines += _group_table(found.changes) if found.changes else ["No case has a time in both groups."]
        lines += [*missing(found), *hindrances(found)]
    else:
        same = "is the same" if found.changed_params else "has a time"
        lines = _run_table(found.changes) if found.changes else [f"No case {same} in both runs."]
        lines += missing(found)
        if any(change.is_beyond_noise is None for change in found.changes):
            lines.append(
                "no verdict: one of the two runs came first, and how far runs of the same code differ here is not"
                f" known. {FEWEST_RUNS} runs of the same code in this results folder show it. `profpipe ab` needs none."
            )
    return "\n".join([*lines, *differences(found)])


def missing(found: Compared) -> Iterator[str]:
    """Yield the cases that have a time in A alone."""
    yield from (f"{name}: has a time in A and failed in B" for name in found.lost)
    yield from (f"{name}: has a time in A and none of the same kind in B" for name in found.absent)


def differences(found: Compared) -> Iterator[str]:
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


def _group_table(changes: Sequence[GroupChange]) -> list[str]:
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
    return align(rows, [name not in ("case", "verdict") for name in _COLUMNS])


def _run_table(changes: Sequence[Change]) -> list[str]:
    width = column_width(change.name for change in changes)
    unit = time_unit([time for change in changes for time in (change.a_ns, change.b_ns)])
    lines = [f"{'case':{width}}  {f'A {unit.name}':>9}  {f'B {unit.name}':>9}  {'B vs A':>8}"]
    for change in changes:
        note = _NOTES[change.is_beyond_noise]
        if change.inaccurate_in:
            note += f"  inaccurate in {' and '.join(change.inaccurate_in)}"
        times = f"{unit.of(change.a_ns):>9}  {unit.of(change.b_ns):>9}"
        lines.append(f"{change.name:{width}}  {times}  {change.percent:+7.1f}%{note}")
    return lines


def hindrances(found: GroupComparison) -> Iterator[str]:
    """Yield why no verdict was possible, whatever the difference."""
    hindrances = {change.hindrance for change in found.changes}
    if Hindrance.NOT_INTERLEAVED in hindrances:
        first, other = ("A", "B") if found.imbalance > 0 else ("B", "A")
        which = "All" if abs(found.imbalance) == 1 else "Most"
        yield (
            f"{which} runs of {first} came before those of {other}. A drift of the machine then looks like a"
            " difference, so no case gets a verdict. Let the runs of A and B take turns, or use `profpipe ab`."
        )
    if unlike := [change.name for change in found.changes if change.hindrance is Hindrance.UNLIKE_GPUS]:
        yield f"No verdict where runs used different models of GPUs: {', '.join(unlike)}. Compare runs on one model."
    if Hindrance.ONE_RUN_A_SIDE in hindrances:
        yield "Each side is one run, and how far runs of the same code differ is not known. Add runs to both sides."
    if Hindrance.TOO_FEW_PROCESSES in hindrances:
        few = [change for change in found.changes if change.hindrance is Hindrance.TOO_FEW_PROCESSES]
        sizes = len(few[0].a.logs), len(few[0].b.logs)
        yield (
            f"{sizes[0]} and {sizes[1]} processes cannot make a case faster or slower: their smallest p is"
            f" {rank_sum.smallest_two_sided_p(*sizes):.2g}, and the test is at {ALPHA:g}. Six on each side can."
        )


def gate_text(found: Compared, percent: float) -> str:
    """Return why B does not pass the gate; empty if it passes."""
    causes = found.find_gate_causes(percent)
    return "; ".join(_cause_text(cause, cases, found, percent).rstrip(".") for cause, cases in causes.items())


def _cause_text(cause: GateCause, cases: Sequence[str], found: Compared, percent: float) -> str:
    count, is_one, names = count_cases(len(cases)), len(cases) == 1, ", ".join(cases)
    match cause:
        case GateCause.UNFINISHED:
            return "B has not ended, so its missing cases cannot be judged. `profpipe resume` continues it."
        case GateCause.SLOWER:
            return f"{count} {'is' if is_one else 'are'} more than {percent:g} % slower: {names}"
        case GateCause.NEWLY_INACCURATE:
            return f"{count} {'was' if is_one else 'were'} within the tolerance in A, and not in B: {names}"
        case GateCause.LOST:
            return f"{count} had a time in A and did not end well in B: {names}"
        case GateCause.CHANGED_PARAMS:
            params = dict.fromkeys(name for case in found.changed_params for name in case.differences)
            return (
                f"{count} {'has' if is_one else 'have'} other parameters in B, so nothing is known: {', '.join(params)}"
            )
        case GateCause.UNDECIDED if isinstance(found, GroupComparison):
            return f"the gate is undecided: {count} may be more than {percent:g} % slower: {names}"
        case GateCause.UNDECIDED:
            return (
                f"the gate is undecided: {count} {'is' if is_one else 'are'} more than {percent:g} % slower, and how"
                f" far runs of the same code differ here is not known: {names}. `profpipe ab` decides."
            )
        case GateCause.ABSENT:
            lacks = f"{'has' if is_one else 'have'} no time of the same kind in B"
            return f"the gate is undecided: {count} of A {lacks}: {names}"
        case GateCause.NOTHING_TO_JUDGE:
            return "there is nothing to judge. Name runs of the same cases, all under plain."
