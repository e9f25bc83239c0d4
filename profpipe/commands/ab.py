"""``profpipe ab``: measure whether B is faster than A, in interleaved pairs of processes."""

from __future__ import annotations

import argparse
import os
import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from profpipe import plugins, stdio
from profpipe.commands import arguments
from profpipe.errors import ConfigError

if TYPE_CHECKING:
    from profpipe.analysis.pairs import PairFindings
    from profpipe.results.manifest import PairsEntry
    from profpipe.runner.request import RunRequest
    from profpipe.runner.session import Session
    from profpipe.runner.sides import PairSide, Spec

EXAMPLES = """\
  profpipe ab --a set:impl=sdpa_flash --b set:impl=sdpa_cudnn
  profpipe ab bench.yaml --a git:main --gate 2            # A: the commit, B: the files as they are
  profpipe ab --a python:old/bin/python --b python:new/bin/python
  profpipe ab --b env:TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1  # A: without the variable
  profpipe ab --b env:OMP_NUM_THREADS=1 --more 20         # up to 20 further pairs of the cases that 8 leave undecided
  profpipe ab --aa                                        # how often is a verdict false on this machine?

a program as it is, without a pipeline file; the run's folder gets one that repeats the run:
  profpipe ab --a git:main -- python train.py --batch 8
  profpipe ab --a set:mode= --b set:mode=--compile -- python bench.py {mode}   # A: without the argument
  profpipe ab --b env:OMP_NUM_THREADS=1 --stop -- python train.py              # its first 25 steps
  profpipe ab --b change:loader_workers -- python train.py     # `profpipe list changes`: changes from outside"""

USUAL = ("--a", "--b", "--aa", "--pairs", "--more", "--gate", "--set", "--stop", "--json", "--out")

#: Pairs below which no verdict `faster` or `slower` is possible.
_PAIRS = 8
#: Pairs of which both sides are captured too: enough to see kernels that vary between processes.
_CAPTURES = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.add_pipeline(parser, "profpipe ab", "of the file on both sides")
    spec: dict[str, Any] = {"action": "append", "default": [], "metavar": "SPEC"}
    kinds = "git:REV, dir:PATH, set:KEY=VALUE, env:NAME=VALUE, python:PATH or change:NAME (repeatable)"
    parser.add_argument("--a", help=f"what A is: {kinds}; without it A is the pipeline as it is", **spec)
    parser.add_argument("--b", help="what B is, in the same form as --a", **spec)
    parser.add_argument("--aa", action="store_true", help="the same on both sides: how often are verdicts false here?")
    parser.add_argument(
        "--pairs", type=arguments.positive_count, default=_PAIRS, help=f"pairs of processes (default: {_PAIRS})"
    )
    arguments.add_more(parser, 0)
    parser.add_argument(
        "--captures",
        type=arguments.count,
        metavar="N",
        help=f"record the kernels of every case in N pairs (default: in {_CAPTURES}, of faster and slower cases);"
        " 0: no captures",
    )
    parser.add_argument(
        "-p", "--profiler", choices=["nsys", "torch", "none"],
        help="profiler of the captures (default with a GPU: nsys, else torch; without a GPU: none)",
    )  # fmt: skip
    parser.add_argument(
        "--gate", type=arguments.percentage, metavar="PERCENT", help="exit code 4 if B is slower by more than PERCENT"
    )
    parser.add_argument(
        "--inconclusive", choices=["fail", "pass"], help="what an undecided gate counts as (default: exit code 5)"
    )
    parser.add_argument("--junit", type=Path, metavar="FILE", help="also write the verdicts as JUnit XML")
    parser.add_argument(
        "--github", action="store_true", help="in a step of GitHub Actions: job summary, annotations and outputs"
    )
    parser.add_argument("--seed", type=int, help="seed of the order in each pair (default: drawn)")
    parser.add_argument("--slurm", action="store_true", help="submit the cases to a Slurm cluster; see docs/cluster.md")
    arguments.add_wait(parser, "with --slurm")
    arguments.add_output_of_pairs(parser)


def main(args: argparse.Namespace) -> int:
    # pydantic and pyyaml load while mistakes in the command line are found; pandas only afterwards.
    from profpipe.runner import sides

    sbatch = arguments.read_slurm(args)
    a, b = sides.parse_specs(args.a, "--a"), sides.parse_specs(args.b, "--b")
    _check(args, a, b)
    b = a if args.aa else b
    arguments.check_program(args, "profpipe ab")
    if args.program is not None:
        _check_placeholders(args, a, b)
    load = _file_loader(args) if args.program is None else _program_loader(args, a, b)
    request = load(sides.overrides(a))
    side_a = sides.create("A", a, request)
    side_b = sides.create("B", b, load(sides.overrides(b)))
    request = sides.for_pairs(request)
    if args.slurm:
        from profpipe.commands import cluster

        request = cluster.add_options(request, sbatch, "profpipe ab --slurm")
        command = _published_command((side_a, side_b), request, args)
        return cluster.start(request, command, args, (side_a, side_b), _settings(args, (side_a, side_b)))
    return _start(args, request, (side_a, side_b))


def _file_loader(args: argparse.Namespace) -> Callable[[Sequence[str]], RunRequest]:
    """Return the function that loads the pipeline file with the values of a side."""
    from profpipe.config import loader
    from profpipe.runner.request import RunRequest

    path = plugins.pipeline_path(args.pipeline)
    return lambda overrides: RunRequest.create(
        loader.load_pipeline(path, [*args.set, *overrides]), path, args.out, args.workload, ["plain"]
    )


def _program_loader(args: argparse.Namespace, *both: Sequence[Spec]) -> Callable[[Sequence[str]], RunRequest]:
    """Return the function that makes the pipeline of the program after ``--`` with the values of a side."""
    from profpipe.config import program
    from profpipe.runner.request import RunRequest

    path = arguments.program_file(args.out)
    repeat = ["profpipe", "ab", *(["--aa"] if args.aa else [])]
    for option, value, default in (
        ("--pairs", args.pairs, _PAIRS),
        ("--more", args.more, 0),
        ("--captures", args.captures, None),
        ("-p", args.profiler, None),
        ("--gate", args.gate, None),
        ("--inconclusive", args.inconclusive, None),
    ):
        repeat += [] if value == default else [option, f"{value:g}" if isinstance(value, float) else str(value)]
    for option, specs in zip(("--a", "--b"), both[: 1 if args.aa else 2], strict=False):
        repeat += [word for spec in specs for word in (option, spec.published_from(path.parent))]

    def load(overrides: Sequence[str]) -> RunRequest:
        user_program = program.read_program(
            args.program,
            path,
            overrides=[*args.set, *overrides],
            variables=args.env,
            name=args.name,
            settings=arguments.settings(args),
            repeat=repeat,
        )
        return RunRequest.create(user_program.pipeline, path, args.out, program=user_program)

    return load


def _check_placeholders(args: argparse.Namespace, a: Sequence[Spec], b: Sequence[Spec]) -> None:
    """Raise ConfigError for a name in braces that has a value on one side only: the other would get the braces."""
    from profpipe.runner import sides

    of_both, of_a, of_b = (
        {text.partition("=")[0].strip() for text in words}
        for words in (args.set, sides.overrides(a), sides.overrides(b))
    )
    for names, other, option, label in ((of_a, of_b, "--b", "A"), (of_b, of_a, "--a", "B")):
        for name in sorted(names - other - of_both):
            if any(f"{{{name}}}" in word for word in args.program):
                remedy = f"Add {option} set:{name}=VALUE. Without VALUE the argument is left out."
                raise ConfigError(option, f"{{{name}}} has a value on {label} only.", remedy)


def _check(args: argparse.Namespace, a: Sequence[Spec], b: Sequence[Spec]) -> None:
    if args.slurm and (args.junit or args.github):
        option = "--junit" if args.junit else "--github"
        raise ConfigError(option, "is for a run on one machine.", "Leave out --slurm.")
    if args.aa and b:
        raise ConfigError("--aa", "runs A on both sides, so --b has no meaning.", "Leave out --b.")
    if not args.aa and set(a) == set(b):
        which = "neither --a nor --b is given" if not a else "--a and --b are the same"
        remedy = "For example: --a git:main. To measure how often verdicts are false here, add --aa."
        raise ConfigError("--a, --b", f"{which}.", remedy)
    if args.pairs > arguments.MOST_PAIRS:
        remedy = f"Ask for at most {arguments.MOST_PAIRS}."
        raise ConfigError("--pairs", f"{args.pairs} pairs are too many for an exact test.", remedy)
    if args.more:
        arguments.check_more(args.more)
    elif args.gate is not None and args.pairs < _PAIRS:
        what = f"cannot decide with --pairs {args.pairs}: {_PAIRS} pairs are the least that can decide."
        raise ConfigError("--gate", what, f"Ask for --pairs {_PAIRS} or more, or for further pairs: --more 20.")
    if args.junit:
        arguments.check_output_file("--junit", args.junit)
    if arguments.prints_json(args) and args.quiet:
        raise ConfigError("--json", "and --quiet both choose what is printed.", "Name a file: --json verdicts.json")
    if args.json and not arguments.prints_json(args):
        arguments.check_output_file("--json", Path(args.json))
    if args.inconclusive and args.gate is None:
        raise ConfigError("--inconclusive", "has no meaning without --gate.", "Add --gate PERCENT.")


def _start(args: argparse.Namespace, request: RunRequest, both: tuple[PairSide, PairSide]) -> int:
    from profpipe.commands import execution
    from profpipe.report import ci
    from profpipe.results import folders
    from profpipe.runner import session

    run = session.create(request, _published_command(both, request, args), both, _settings(args, both))
    with folders.lock(run.folder):
        try:
            result = execution.carry_out(run, args)
        except ConfigError:
            # A commit that cannot be checked out: there is nothing to resume.
            if not run.manifest.jobs:
                folders.discard(run.folder)
            raise
    findings = result.pairs
    assert findings is not None
    if args.junit:
        arguments.write_output_file("--junit", args.junit, ci.junit(findings, run.manifest.name))
    if args.github:
        _write_for_github(findings, run)
    return result.exit_code


def _settings(args: argparse.Namespace, both: tuple[PairSide, PairSide]) -> PairsEntry:
    from profpipe.results.manifest import NoCaptures, PairsEntry, Undecided
    from profpipe.runner import sides

    return PairsEntry(
        *sides.entries(*both),
        args.pairs,
        random.SystemRandom().randrange(2**31) if args.seed is None else args.seed,
        args.gate,
        Undecided(args.inconclusive) if args.inconclusive else Undecided.REPORT,
        args.aa,
        captures=min(_CAPTURES if args.captures is None else args.captures, args.pairs),
        captures_all=args.captures is not None,
        profiler=args.profiler or "",
        no_captures=NoCaptures.NOT_REQUESTED if args.captures == 0 or args.profiler == "none" else None,
        more=args.more,
    )


def _write_for_github(findings: PairFindings, run: Session) -> None:
    """Write what GitHub Actions shows. What cannot be written is a warning: the exit code is that of the gate."""
    from profpipe.config.yaml import shown
    from profpipe.report import ci, render

    for line in ci.workflow_commands(findings):
        print(line, file=stdio.for_commands(sys.stderr))
    document = render.build_pairs(findings, run.data, run.manifest)
    texts = {
        "GITHUB_STEP_SUMMARY": ci.job_summary(document, findings, shown(run.folder)),
        "GITHUB_OUTPUT": ci.outputs(findings, str(run.folder)),
    }
    for variable, text in texts.items():
        path = os.environ.get(variable)
        try:
            if not path:
                raise OSError("it is not set; GitHub Actions sets it")
            with Path(path).open("a", encoding="utf-8") as stream:
                stream.write(text)
        except OSError as error:
            print(f"profpipe: --github: {variable}: {error.strerror or error}. Nothing was written.", file=sys.stderr)


def _published_command(both: Sequence[PairSide], request: RunRequest, args: argparse.Namespace) -> list[str]:
    """Return the command line without the values of secret variables."""
    hidden: dict[str, str] = {}
    for side in both:
        option = f"--{side.label.lower()}"
        for spec in side.specs:
            word = f"{spec.kind}:{spec.value}"
            hidden |= {word: spec.published, f"{option}={word}": f"{option}={spec.published}"}
    program = [] if args.words_after_dashes is None else ["--", *args.words_after_dashes]
    shown = (request.secrets.get(word, word) for word in program)
    return ["profpipe", *(hidden.get(word, word) for word in args.words), *shown]
