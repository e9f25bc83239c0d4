"""``profpipe bisect``: find the commit that made a program slower, in interleaved pairs of processes.

The run's folder holds in `runs/` the runs of `ab` that answer its questions. Their answers are kept in run.json, and
the next question follows from these alone (``analysis.bisect``). So a run that was killed goes on where it stopped.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import math
import os
import random
import statistics
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from profpipe import plugins, stdio
from profpipe.commands import arguments
from profpipe.errors import ConfigError, Interrupted, ProfpipeError
from profpipe.masking import mask_printed

if TYPE_CHECKING:
    from profpipe.results.manifest import BisectEntry, BisectPairs, Manifest
    from profpipe.runner.request import RunRequest
    from profpipe.runner.session import Session
    from profpipe.runner.sides import PairSide

EXAMPLES = """\
  profpipe bisect v1.2..main -- python train.py --batch 8
  profpipe bisect v1.2..main --gate 3 -- python train.py       # a change below 3 % is of no interest
  profpipe bisect v1.2..main --build "make -j8" -- python bench.py
  profpipe bisect HEAD~20..HEAD bench.yaml                     # a pipeline with one case"""

#: Further pairs of a verdict that 8 pairs leave undecided, as `ab --more`.
_MORE = 20
#: Pairs in which the kernels of the commit and of its parent are recorded, where there is a GPU.
_CAPTURES = 3
#: The exit code of a build that cannot test its commit, as for `git bisect run`.
_SKIP: Final = 125
_BUILD_S: Final = 86_400.0
#: Characters of the output of a build that failed, and of a subject.
_TAIL, _SUBJECT = 300, 60


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("range", metavar="GOOD..BAD", help="the commits to search, along the first parents of BAD")
    arguments.add_pipeline(parser, "profpipe bisect GOOD..BAD", "of the file")
    text = "shell command that runs in each checkout before its first process; exit code 125 skips the commit"
    parser.add_argument("--build", default="", metavar="CMD", help=text)
    text = "least difference of interest (default: 1)"
    parser.add_argument("--gate", type=arguments.percentage, metavar="PERCENT", help=text)
    arguments.add_more(parser, _MORE)
    formats = parser.add_mutually_exclusive_group()
    arguments.add_quiet(formats)
    arguments.add_json(formats)
    arguments.add_verbose(parser)
    arguments.add_out(parser)


def main(args: argparse.Namespace) -> int:
    from profpipe.results import folders, noise
    from profpipe.results.manifest import BisectEntry
    from profpipe.runner import checkout, pairs, session, sides
    from profpipe.runner.request import ExaminedMachine

    if args.range.endswith((".yaml", ".yml")):
        args.range, args.pipeline = args.pipeline or "", args.range
    good, dots, bad = args.range.partition("..")
    if not (good and dots) or bad.startswith("."):
        raise ConfigError("profpipe bisect", f"{args.range!r} is no range of commits.", "For example: v1.2..main")
    arguments.check_program(args, "profpipe bisect")
    arguments.check_more(args.more)
    request = _load_request(args)
    revisions = {"GOOD": good, "BAD": bad or "HEAD"}
    both = [
        replace(sides.create(label, [sides.Spec(sides.SpecKind.GIT, text)], request), build=args.build)
        for label, text in revisions.items()
    ]
    a, b = both
    joined = pairs.join_cases(a.request.pipeline, b.request.pipeline, a.request.workloads)
    if (count := sum(map(len, joined.values()))) != 1:
        what = f"searches by one case, and the pipeline has {count}."
        raise ConfigError("profpipe bisect", what, "Choose one with -w WORKLOAD and --set KEY=VALUE.")
    assert a.repository
    commits = tuple(checkout.list_commits(a.repository, a.commit, b.commit))
    checkout.remove_abandoned(request.out)
    words = [request.secrets.get(word, word) for word in args.words_after_dashes or ()]
    command = ["profpipe", *args.words, *(["--", *words] if words else [])]
    begun = session.begin_run(request, ExaminedMachine.examine(a.request), (), command)
    spreads = (spread for cases in noise.read_floors(request.out, begun).values() for spread in cases.values())
    gate = max([args.gate or 0.0, *(100 * spread for spread in spreads)])
    begun = replace(begun, bisect=BisectEntry(commits, args.more, gate))
    folder = session.make_folder(request, begun, lambda folder: sides.save(folder, both))
    with folders.lock(folder):
        return Search(folder, request, begun, args).carry_out()


def _load_request(args: argparse.Namespace) -> RunRequest:
    """Return the request of the pipeline file, or of the program after ``--``."""
    from profpipe.config import loader, program
    from profpipe.runner.request import RunRequest

    if args.program is None:
        path = plugins.pipeline_path(args.pipeline)
        return RunRequest.create(loader.load_pipeline(path, args.set), path, args.out, args.workload, ["plain"])
    path = arguments.program_file(args.out)
    repeat = ["profpipe", "bisect", args.range]
    given = (("--build", args.build, ""), ("--gate", args.gate, None), ("--more", args.more, _MORE))
    for option, value, default in given:
        repeat += [] if value == default else [option, mask_printed(str(value))]
    user_program = program.read_program(
        args.program, path, overrides=args.set, variables=args.env, name=args.name,
        settings=arguments.settings(args), repeat=repeat,
    )  # fmt: skip
    return RunRequest.create(user_program.pipeline, path, args.out, program=user_program)


class _Unmeasured(ProfpipeError):
    """A commit cannot be checked out or built, or its program fails."""

    def __init__(self, number: int, why: str) -> None:
        self.number = number
        super().__init__(" ".join(why.split()))


class Search:
    """A search in its folder, which is locked. ``carry_out`` does what is left of it."""

    def __init__(self, folder: Path, request: RunRequest, run: Manifest, args: argparse.Namespace) -> None:
        from profpipe.runner import checkout, sides

        self._folder, self._request, self._args = folder, request, args
        good, bad = sides.load(folder)
        assert run.bisect and good.repository
        # What is started follows from the private file alone.
        commits = checkout.list_commits(good.repository, good.commit, bad.commit)
        self._good, self._repository = good, good.repository
        self._run = replace(run, bisect=replace(run.bisect, commits=tuple(commits)))

    @property
    def _entry(self) -> BisectEntry:
        assert self._run.bisect is not None
        return self._run.bisect

    def carry_out(self) -> int:
        from profpipe.analysis import bisect
        from profpipe.commands import execution, rendering
        from profpipe.results import manifest
        from profpipe.results.schema import Tables
        from profpipe.runner import checkout

        stop: Interrupted | None = None
        checkout.remove(self._folder)
        try:
            while question := (findings := bisect.analyze(self._entry)).question:
                self._answer(question, findings.pairs)
            self._run = replace(self._run, ended=manifest.utc_now().isoformat(timespec="seconds"))
        except (Interrupted, KeyboardInterrupt):
            stop = Interrupted(f"Interrupted. To continue: {execution.command('resume', self._folder)}")
        finally:
            checkout.remove(self._folder)
        result = execution.write_results(self._folder, self._request, Tables(), self._run, csv=False)
        self._run.save(self._folder)
        rendering.print_result(result, self._args, stop.exit_code if stop else None)
        if stop:
            raise stop
        return result.exit_code

    def _answer(self, question: BisectPairs, pairs: int) -> None:
        """Measure what the search asks, or skip a commit that cannot be measured, and keep that in run.json."""
        what = f"{self._name(question.b)} against {self._name(question.a)}"
        try:
            both = self._make_side("A", question.a), self._make_side("B", question.b)
            self._print(f"measuring {what}")
            measured = self._measure(question, both, pairs)
            self._print(f"{what}: {100 * math.expm1(statistics.median(measured.log_ratios)):+.1f} %")
            entry = replace(self._entry, comparisons=(*self._entry.comparisons, measured))
        except _Unmeasured as skip:
            self._print(f"{self._name(skip.number)} cannot be measured: {skip}")
            if skip.number in (0, len(self._entry.commits) - 1):
                raise ProfpipeError("GOOD and BAD must run. The log is in the run's folder, below runs/.") from None
            entry = replace(self._entry, skipped={**self._entry.skipped, skip.number: str(skip)})
        self._run = replace(self._run, bisect=entry)
        self._run.save(self._folder)

    def _name(self, number: int) -> str:
        commit, subject = self._entry.commits[number]
        return stdio.visible_line(f"{commit[:12]} ({subject[:_SUBJECT]})")

    def _print(self, text: str) -> None:
        if not self._args.quiet:
            print(f"profpipe: {text}", file=sys.stderr)

    def _make_side(self, label: str, number: int) -> PairSide:
        """Return a commit as a side. It is checked out and built at its first use."""
        from profpipe.runner import process
        from profpipe.runner.sides import Spec, SpecKind

        commit, _ = self._entry.commits[number]
        side = replace(self._good, label=commit, commit=commit)
        is_new = not side.checkout_folder(self._folder).exists()
        try:
            built = side.in_checkout(self._folder)
        except ConfigError as error:
            raise _Unmeasured(number, str(error)) from None
        if is_new and side.build:
            self._print(f"building {self._name(number)}")
            place = built.request.pipeline_dir
            code, output = process.call(["sh", "-c", side.build], dict(os.environ), _BUILD_S, place)
            if code != 0:
                what = "its build skips it" if code == _SKIP else f"its build ended with exit code {code}"
                raise _Unmeasured(number, f"{what}. {mask_printed(output)[-_TAIL:]}")
        return replace(built, label=label, specs=(Spec(SpecKind.GIT, commit[:12]),), repository=None)

    def _measure(self, question: BisectPairs, both: tuple[PairSide, PairSide], pairs: int) -> BisectPairs:
        """Return the pairs of two commits."""
        from profpipe.commands import execution
        from profpipe.report.document import plain
        from profpipe.report.sections.kernel_differences import explain
        from profpipe.report.sections.verdicts import foreign_modules
        from profpipe.results.manifest import BisectKind
        from profpipe.runner import checkout

        args = argparse.Namespace(**{**vars(self._args), "json": None, "csv": False})
        run = self._open_run(question, both, pairs)
        with contextlib.redirect_stdout(io.StringIO()):
            report = execution.carry_out(run, args)
        assert report.pairs is not None
        change = report.pairs.cases[0]
        if not change.log_ratios:
            why = change.failure.reason or change.failure.status if change.failure else "it has no time"
            is_of_a = change.failure is not None and not change.failure.is_of_b_alone
            is_a = is_of_a and question.kind is not BisectKind.LEVEL
            raise _Unmeasured(question.a if is_a else question.b, why)
        remarks: list[str] = []
        if question.kind is BisectKind.STEP:
            changed = checkout.list_changes(self._repository, both[0].commit, both[1].commit)
            remarks = [*filter(None, [plain(explain(change))]), *changed]
        elif question.kind is BisectKind.WHOLE and report.manifest.ab:
            remarks = list(map(plain, foreign_modules(report.manifest.ab)))
        ratios, further = change.log_ratios, change.further_pairs
        return replace(question, log_ratios=ratios, further_pairs=further, run=run.folder.name, remarks=tuple(remarks))

    def _open_run(self, question: BisectPairs, both: tuple[PairSide, PairSide], pairs: int) -> Session:
        """Return a run of `ab` of two commits: the one that was interrupted, else a new one."""
        from profpipe.results import folders
        from profpipe.results.manifest import BisectKind, NoCaptures, PairsEntry
        from profpipe.runner import session, sides

        out = self._folder / "runs"
        is_in_run = bool(self._request.text) or self._request.is_in_run
        request = replace(self._good.request, text="", is_in_run=is_in_run, out=out)
        recorded, commits = {measured.run for measured in self._entry.comparisons}, [side.commit for side in both]
        for folder, begun in folders.list_runs(out):
            if begun.ab and folder.name not in recorded and [begun.ab.a.commit, begun.ab.b.commit] == commits:
                run = session.load(folder, request)
                try:
                    run.reopen()
                    return run
                except ConfigError as error:
                    self._print(f"measured anew, since a build may differ from the one before: {error}")
                    break
        is_step = question.kind is BisectKind.STEP
        settings = PairsEntry(
            *sides.entries(*both), pairs, random.SystemRandom().randrange(2**31),
            captures=_CAPTURES if is_step else 0, captures_all=False,
            no_captures=None if is_step else NoCaptures.NOT_REQUESTED,
            more=0 if question.kind is BisectKind.LEVEL else self._entry.more,
        )  # fmt: skip
        return session.create(request, ["profpipe", "ab"], both, settings)
