"""The text of ``profpipe compare``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from profpipe.analysis.compare_recordings import RecordingComparison
from profpipe.analysis.compare_runs import Change, Comparison, GateCause
from profpipe.analysis.history import FEWEST_RUNS
from profpipe.job import count_cases
from profpipe.report.sections import recording_changes
from profpipe.report.text import column_width, write_section
from profpipe.report.units import time_unit

#: What a difference of two runs is worth, by whether it is beyond the noise.
_NOTES: Final = {True: "  beyond the noise", False: "  within the noise", None: "  no verdict"}


def text(found: Comparison | RecordingComparison) -> str:
    """Return one line for each case, what hinders a verdict, and one line for each difference between the runs.

    Of recordings, return the parts and the kernels of their differences.
    """
    if isinstance(found, RecordingComparison):
        return "\n\n".join(filter(None, map(write_section, recording_changes.sections(found))))
    same = "is the same" if found.changed_params else "has a time"
    lines = _run_table(found.changes) if found.changes else [f"No case {same} in both runs."]
    lines += missing(found)
    if any(change.is_beyond_noise is None for change in found.changes):
        lines.append(
            "no verdict: one of the two runs came first, and how far runs of the same code differ here is not known."
            f" {FEWEST_RUNS} runs of the same code in this results folder show it. `profpipe ab` needs none."
        )
    return "\n".join([*lines, *differences(found)])


def missing(found: Comparison) -> Iterator[str]:
    """Yield the cases that have a time in A alone."""
    yield from (f"{name}: has a time in A and failed in B" for name in found.lost)
    yield from (f"{name}: has a time in A and none of the same kind in B" for name in found.absent)


def differences(found: Comparison) -> Iterator[str]:
    """Yield what differs between the runs beside the code."""
    if found.changed_params:
        yield f"Not compared, because parameters differ ({count_cases(len(found.changed_params))}; in A and in B):"
    for case, differing in found.changed_params.items():
        texts = {name: ["none" if v is None else v for v in values] for name, values in differing.items()}
        yield f"{case}: {', '.join(f'{name} {a} and {b}' for name, (a, b) in texts.items())}"
    if found.gpus:
        yield f"The GPUs differ: A ran on {found.gpus[0]}, B on {found.gpus[1]}."
    if found.is_b_unfinished:
        yield "B has not ended: `profpipe resume` continues it."


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


def gate_text(found: Comparison, percent: float) -> str:
    """Return why B does not pass the gate; empty if it passes."""
    causes = found.find_gate_causes(percent)
    return "; ".join(_cause_text(cause, cases, found, percent).rstrip(".") for cause, cases in causes.items())


def _cause_text(cause: GateCause, cases: Sequence[str], found: Comparison, percent: float) -> str:
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
            params = dict.fromkeys(name for differences in found.changed_params.values() for name in differences)
            return (
                f"{count} {'has' if is_one else 'have'} other parameters in B, so nothing is known: {', '.join(params)}"
            )
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
