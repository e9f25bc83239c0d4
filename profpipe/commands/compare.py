"""``profpipe compare``: the times of two runs, and a gate for CI."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from profpipe import errors
from profpipe.analysis.compare_runs import (
    Change,
    Comparison,
    GateCause,
    compare_runs,
    find_gate_failure,
)
from profpipe.commands import arguments
from profpipe.job import count_cases
from profpipe.report.units import time_unit
from profpipe.results import folders, noise, store

EXAMPLES = """\
  profpipe compare 20261120T120000Z-attention latest
  profpipe compare out/before out/after --gate 5    # exit code 4 if a case is more than 5 % slower"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("a", metavar="A", help="the run to compare with: its folder, its name below --out, or latest")
    parser.add_argument("b", metavar="B", help="the run to judge")
    parser.add_argument(
        "--gate",
        type=arguments.percentage,
        metavar="PERCENT",
        help="exit with 4 if a case of B is slower by more, with 5 if that is undecided",
    )
    arguments.add_out(parser)


def main(args: argparse.Namespace) -> int:
    (a, manifest_a), (b, manifest_b) = (store.load(folders.find(name, args.out)) for name in (args.a, args.b))
    is_alike = (manifest_a.name, manifest_a.device) == (manifest_b.name, manifest_b.device)
    known = noise.read(args.out, manifest_b) if is_alike else {}
    found = compare_runs(a, b, manifest_a, manifest_b, known)
    print(text(found))
    if args.gate is not None:
        if failure := find_gate_failure(found, args.gate):
            kind = errors.GateUndecided if failure.cause is GateCause.UNDECIDED else errors.GateFailed
            raise kind(gate_text(found, args.gate))
        print(f"B passes the gate: no case is more than {args.gate:g} % slower.")
    return errors.OK


def text(found: Comparison) -> str:
    """Return one line for each case, and one for each difference between the runs."""
    same = "is the same" if found.changed_params else "has a time"
    lines = _table(found.changes) or [f"No case {same} in both runs."]
    lines += [f"{name}: has a time in A and failed in B" for name in found.lost]
    lines += [f"{name}: has a time in A and none in B" for name in found.absent]
    if any(change.is_beyond_noise is None for change in found.changes):
        lines.append(
            "no verdict: the spread between processes is not known for the case."
            " `profpipe ab --aa` and `profpipe run --captures 5` measure it."
        )
    if found.changed_params:
        lines.append(
            f"Not compared, because parameters differ ({count_cases(len(found.changed_params))}; in A and in B):"
        )
        for case in found.changed_params:
            texts = {name: ["none" if v is None else v for v in values] for name, values in case.differences.items()}
            lines.append(f"{case.name}: {', '.join(f'{name} {a} and {b}' for name, (a, b) in texts.items())}")
    if found.gpus:
        lines.append(f"The GPUs differ: A ran on {found.gpus[0]}, B on {found.gpus[1]}.")
    if found.is_b_unfinished:
        lines.append("B has not ended: `profpipe resume` continues it.")
    return "\n".join(lines)


def _table(changes: Sequence[Change]) -> list[str]:
    if not changes:
        return []
    width = max(len(change.name) for change in changes)
    unit = time_unit([time for change in changes for time in (change.before_ns, change.after_ns)])
    lines = [f"{'case':{width}}  {f'A {unit.name}':>9}  {f'B {unit.name}':>9}  {'B vs A':>8}"]
    for change in changes:
        note = _note(change)
        if change.inaccurate_in:
            note += f"  inaccurate in {' and '.join(change.inaccurate_in)}"
        times = f"{unit.of(change.before_ns):>9}  {unit.of(change.after_ns):>9}"
        lines.append(f"{change.name:{width}}  {times}  {change.percent:+7.1f}%{note}")
    return lines


def _note(change: Change) -> str:
    """Return what a difference is worth. One process a side tells nothing of the spread between processes."""
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
                f"the gate is undecided: {count} {'is' if is_one else 'are'} more than {percent:g} % slower by one"
                f" process each, and processes of the same code differ too: {names}. `profpipe ab` decides;"
                " `profpipe ab --aa` measures how far processes differ here."
            )
        case GateCause.NOTHING_TO_JUDGE:
            return "there is nothing to judge. Name two runs of the same cases, both under plain."
