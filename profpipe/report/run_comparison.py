"""The text of ``profpipe compare`` on two runs."""

from __future__ import annotations

from collections.abc import Sequence

from profpipe.analysis.compare_runs import Change, Comparison, GateCause, find_gate_failure
from profpipe.analysis.noise import FEWEST_RUNS
from profpipe.job import count_cases
from profpipe.report import group_comparison
from profpipe.report.units import time_unit


def text(found: Comparison) -> str:
    """Return one line for each case, and one for each difference between the runs."""
    same = "is the same" if found.changed_params else "has a time"
    lines = _table(found.changes) or [f"No case {same} in both runs."]
    lines += group_comparison.missing(found)
    if any(change.is_beyond_noise is None for change in found.changes):
        lines.append(
            "no verdict: one of the two runs came first, and how far runs of the same code differ here is not known."
            f" {FEWEST_RUNS} runs of the same code in this results folder show it. `profpipe ab` needs none."
        )
    return "\n".join([*lines, *group_comparison.differences(found)])


def _table(changes: Sequence[Change]) -> list[str]:
    if not changes:
        return []
    width = max(len(change.name) for change in changes)
    unit = time_unit([time for change in changes for time in (change.a_ns, change.b_ns)])
    lines = [f"{'case':{width}}  {f'A {unit.name}':>9}  {f'B {unit.name}':>9}  {'B vs A':>8}"]
    for change in changes:
        note = _note(change)
        if change.inaccurate_in:
            note += f"  inaccurate in {' and '.join(change.inaccurate_in)}"
        times = f"{unit.of(change.a_ns):>9}  {unit.of(change.b_ns):>9}"
        lines.append(f"{change.name:{width}}  {times}  {change.percent:+7.1f}%{note}")
    return lines


def _note(change: Change) -> str:
    """Return what a difference is worth."""
    if change.is_beyond_noise is not None:
        return "  beyond the noise" if change.is_beyond_noise else "  within the noise"
    return "  no verdict"


def gate_text(found: Comparison, percent: float) -> str:
    """Return why B does not pass the gate; empty if it passes."""
    failure = find_gate_failure(found, percent)
    if failure is None:
        return ""
    count, is_one, names = count_cases(len(failure.cases)), len(failure.cases) == 1, ", ".join(failure.cases)
    match failure.cause:
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
        case GateCause.UNDECIDED:
            return (
                f"the gate is undecided: {count} {'is' if is_one else 'are'} more than {percent:g} % slower, and how"
                f" far runs of the same code differ here is not known: {names}. `profpipe ab` decides."
            )
        case GateCause.NOTHING_TO_JUDGE:
            return "there is nothing to judge. Name two runs of the same cases, both under plain."
