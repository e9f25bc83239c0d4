"""``profpipe try``: which changes make a program faster, each measured, with its loss beside it."""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from profpipe import plugins
from profpipe.commands import arguments
from profpipe.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from profpipe.results.manifest import TriedChange
    from profpipe.runner.request import RunRequest
    from profpipe.runner.sides import PairSide

EXAMPLES = """\
  profpipe try -- python train.py                        # ten minutes
  profpipe try --budget 30m -- python train.py --batch 8
  profpipe try --only bf16,compile -- python train.py    # `profpipe list changes`: all of them
  profpipe try --change big=set:batch=64 --set batch=8 -- python train.py --batch {batch}
  profpipe try --change mine=mine.py --change threads=env:OMP_NUM_THREADS=1 -- python train.py"""

USUAL = ("--budget", "--only", "--without", "--change", "--set", "--pairs", "--measure-steps", "--json", "--quiet",
         "--out")  # fmt: skip

#: Pairs that judge the combination: below them no verdict is possible.
_PAIRS: Final = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "profpipe try [OPTIONS] -- PROGRAM [ARGUMENTS]"
    arguments.add_program(parser, "of the program")
    parser.add_argument(
        "--budget", type=arguments.budget, default=600.0, metavar="TIME", help="how long it may take (default: 10m)"
    )
    parser.add_argument("--only", help="try these changes and those of --change", **arguments.NAMES)
    parser.add_argument("--without", help="leave out these changes", **arguments.NAMES)
    text = "a further change: NAME=FILE.py, NAME=env:VARIABLE=VALUE or NAME=set:KEY=VALUE (repeatable)"
    parser.add_argument("--change", action="append", default=[], metavar="NAME=SPEC", help=text)
    parser.add_argument(
        "--pairs", type=arguments.positive_count, default=_PAIRS, help=f"pairs of the combination (default: {_PAIRS})"
    )
    parser.add_argument("--seed", type=int, help="seed of the order in each pair (default: drawn)")
    arguments.add_output_of_pairs(parser)


def main(args: argparse.Namespace) -> int:
    from profpipe.commands import execution
    from profpipe.results import folders
    from profpipe.results.manifest import PairsEntry, TryEntry
    from profpipe.runner import session, sides

    if args.program is None:
        raise ConfigError("profpipe try", "needs a program.", "For example: profpipe try -- python train.py")
    if args.pairs > arguments.MOST_PAIRS:
        what = f"{args.pairs} pairs are too many for an exact test."
        raise ConfigError("--pairs", what, f"Ask for at most {arguments.MOST_PAIRS}.")
    specs = list(_read_specs(args))
    if len(named := dict(specs)) < len(specs):
        raise ConfigError("--change", "names two changes alike.", "Give each its name.")
    request = sides.for_pairs(_load(args, ()))
    a = sides.create("A", (), _load(args, ()))
    candidates = [sides.create("B", [spec], _load(args, sides.overrides([spec]))) for spec in named.values()]
    changes = tuple(_describe(name, side) for name, side in zip(named, candidates, strict=True))
    settings = PairsEntry(
        *sides.entries(a, a),
        pairs=args.pairs,
        seed=random.SystemRandom().randrange(2**31) if args.seed is None else args.seed,
        profiler="torch",
        tried=TryEntry(args.budget, args.pairs, changes=changes),
    )
    words = ["profpipe", *args.words, "--", *(request.secrets.get(word, word) for word in args.words_after_dashes)]
    run = session.create(request, words, (a, replace(a, label="B")), settings, candidates)
    with folders.lock(run.folder):
        return execution.carry_out(run, args).exit_code


def _read_specs(args: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    """Yield the name of each change and what it changes. Raises ConfigError for an unknown name."""
    from profpipe.runner.sides import Spec, SpecKind

    names = [path.stem for path in plugins.files("changes", "*.py")]
    for option, given in (("--only", args.only), ("--without", args.without)):
        for name in given:
            if name not in names:
                hint = f"{did_you_mean(name, names)} `profpipe list changes` prints all."
                raise ConfigError(option, f"there is no change {name!r}.", hint)
    for name in args.only or names:
        if name not in args.without:
            yield name, Spec(SpecKind.CHANGE, name)
    for text in args.change:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier() or name in names:
            what = f"{text!r} is not NAME=SPEC with a new name of letters, digits and '_'."
            raise ConfigError("--change", what, "For example: --change threads=env:OMP_NUM_THREADS=1")
        yield name, Spec.parse(f"change:{value}" if value.endswith(".py") else value, "--change")


def _load(args: argparse.Namespace, overrides: Sequence[str]) -> RunRequest:
    """Return the request of the program, whose processes end after a number of steps."""
    from profpipe.config import program
    from profpipe.runner.request import RunRequest

    path = arguments.program_file(args.out)
    settings = arguments.settings(args)
    steps = {**settings.get("steps", {}), "stop": True}
    repeat = ["profpipe", "run"]
    user_program = program.read_program(
        args.program, path, overrides=[*args.set, *overrides], variables=args.env, name=args.name,
        settings={**settings, "steps": steps}, repeat=repeat,
    )  # fmt: skip
    return RunRequest.create(user_program.pipeline, path, args.out, program=user_program)


def _describe(name: str, side: PairSide) -> TriedChange:
    from profpipe.results.manifest import TriedChange
    from profpipe.runner import sides

    (spec,) = side.specs
    path = sides.find_change(spec)
    file = plugins.load_module(Path(path)) if path else None
    code = getattr(file, "CODE", "") or spec.published
    code = f"export {spec.published.partition(':')[2]}" if spec.kind is sides.SpecKind.ENV else code
    return TriedChange(name, code=str(code), alters_numerics=bool(getattr(file, "ALTERS_NUMERICS", True)))
