"""Compare the times of two runs, or of two groups of runs, with a gate for CI."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from profpipe import errors, stdio
from profpipe.analysis import compare_groups
from profpipe.analysis.compare_groups import GroupComparison
from profpipe.analysis.compare_runs import compare_runs
from profpipe.analysis.verdict import Gate
from profpipe.commands import arguments
from profpipe.errors import ConfigError, ProfpipeError
from profpipe.report import comparison_json, comparison_text
from profpipe.report.comparison_text import Compared
from profpipe.results import folders, noise, store
from profpipe.results.manifest import Manifest


def show(args: argparse.Namespace) -> int:
    """Print or write what ``profpipe compare`` finds; return the exit code."""
    if args.json and args.json != arguments.STDOUT:
        arguments.check_output_file("--json", Path(args.json))
    if args.program is not None:
        return _compare_groups(args.runs, args.program, args)
    if len(args.runs) != 2:
        what = f"needs two runs, and {len(args.runs)} {'is' if len(args.runs) == 1 else 'are'} given."
        raise ConfigError("profpipe compare", what, "Put -- between the runs of A and those of B to compare groups.")
    (a, manifest_a), (b, manifest_b) = (store.load(folders.find(name, args.out)) for name in args.runs)
    is_alike = (manifest_a.name, manifest_a.device) == (manifest_b.name, manifest_b.device)
    known = noise.read(args.out, manifest_b) if is_alike else {}
    found = compare_runs(a, b, manifest_a, manifest_b, known)
    return _end(args, found, ([args.runs[0]], [args.runs[1]]), manifest_b)


def _end(args: argparse.Namespace, found: Compared, names: tuple[Sequence[str], Sequence[str]], run: Manifest) -> int:
    """Print the comparison, or write it as JSON, and end as the gate demands."""
    stop: ProfpipeError | None = None
    if args.gate is not None and (why := comparison_text.gate_text(found, args.gate)):
        is_open = found.judge_gate(args.gate) is Gate.UNDECIDED
        stop = errors.GateUndecided(why) if is_open else errors.GateFailed(why)
    if args.json:
        code = stop.exit_code if stop else errors.OK
        line = stdio.as_json(comparison_json.document(found, names, run, args.gate, code))
        if args.json == arguments.STDOUT:
            print(line)
        else:
            arguments.write_output_file("--json", Path(args.json), line + "\n")
    if args.json != arguments.STDOUT:
        print(comparison_text.text(found))
    if stop:
        raise stop
    if args.gate is not None and args.json != arguments.STDOUT:
        noise_too = "" if isinstance(found, GroupComparison) else " and beyond the noise"
        print(f"B passes the gate: no case is more than {args.gate:g} % slower{noise_too}.")
    return errors.OK


def _compare_groups(names_a: Sequence[str], names_b: Sequence[str], args: argparse.Namespace) -> int:
    """Compare the runs before ``--`` with those after it."""
    if not names_b:
        raise ConfigError("profpipe compare", "has no run after '--'.", "Name the runs of B there.")
    found_folders = [folders.find(name, args.out) for name in (*names_a, *names_b)]
    if twice := next((path for path in found_folders if found_folders.count(path) > 1), None):
        raise ConfigError("profpipe compare", f"{twice.name} is given twice.", "Name each run once.")
    runs = list(map(store.load, found_folders))
    a, b = runs[: len(names_a)], runs[len(names_a) :]
    machines = {(run.name, run.device) for _, run in (*a, *b)}
    known = noise.read(args.out, b[-1][1]) if len(machines) == 1 else {}
    found = compare_groups.compare_groups(a, b, known, args.gate)
    return _end(args, found, (names_a, names_b), b[-1][1])
