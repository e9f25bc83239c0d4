"""The commands. Each calls the stages in order; this is the only place that turns errors into exit codes.

Stages are imported by the command that needs them: ``profpipe --help`` must not wait for pandas.
"""

from __future__ import annotations

import argparse
import atexit
import gc
import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

from profpipe import __version__, errors
from profpipe.errors import ProfpipeError


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit code of DESIGN: 0 to 4, or 130."""
    from profpipe import progress

    # Python ends by a last look through all objects for garbage, 0.2 s of it, though the process gives all back anyway.
    atexit.register(gc.freeze)
    progress.open_closed_streams()
    args = _parser().parse_args(argv)
    with nullcontext() if _only_prints(args) else progress.heard_or_not():
        return _exit_code(args)


def _only_prints(args: argparse.Namespace) -> bool:
    """Whether the command comes to nothing but its text: it leaves no file, and no exit code of it is waited for."""
    if args.command is _run:
        return bool(args.dry_run)
    if args.command is _compare:
        return args.gate is None
    if args.command is _doctor:
        return not args.measure_peaks
    return args.command in (_history, _list, _schema)


def _exit_code(args: argparse.Namespace) -> int:
    try:
        code = int(args.command(args))
        sys.stdout.flush()  # here, where it may fail
    except ProfpipeError as error:
        if args.debug:
            raise
        print(f"profpipe: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("profpipe: interrupted.", file=sys.stderr)
        return errors.INTERRUPTED
    except BrokenPipeError:
        _drop_what_cannot_be_printed()  # the reader (head, less) of a command that only prints has gone
        return errors.OK
    except OSError as error:
        if args.debug:
            raise
        _drop_what_cannot_be_printed()
        print(f"profpipe: {errors.of_the_system(error)}", file=sys.stderr)
        return errors.SOME_FAILED
    except Exception as error:
        if args.debug:
            raise
        print(f"profpipe: internal error: {type(error).__name__}: {error}. --debug shows where.", file=sys.stderr)
        return errors.SOME_FAILED
    return code


def _drop_what_cannot_be_printed() -> None:
    """Python would fail with it again at its end, and end with code 120."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="profpipe", description="Run GPU workloads under several profilers and get one table that can be trusted."
    )
    parser.add_argument("--version", action="version", version=f"profpipe {__version__}")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def command(name: str, function: Any, text: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        added.set_defaults(command=function)
        added.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
        return added

    run = command("run", _run, "run a pipeline and write SUMMARY.md")
    run.add_argument("pipeline", nargs="?", default="pipeline.yaml", help="pipeline file (default: pipeline.yaml)")
    run.add_argument("-w", "--workload", action="append", default=[], help="only this workload (repeatable)")
    run.add_argument("-p", "--profiler", action="append", default=[], help="only this profiler (repeatable)")
    run.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a value of the file")
    run.add_argument("--reuse", action="store_true", help="take over unchanged jobs of an earlier run in --out")
    run.add_argument("--dry-run", action="store_true", help="print every job with its exact command, run nothing")
    _out(run)
    resume = command("resume", _resume, "finish a run that was interrupted")
    resume.add_argument("run", nargs="?", help="a run's folder or name (default: the latest unfinished)")
    _out(resume)
    report = command("report", _report, "render SUMMARY.md again from what a run left, without running anything")
    report.add_argument("run", help="a run's folder or name")
    _out(report)
    ingest = command("ingest", _ingest, "read profilers' files into the tables; needs neither GPU nor profiler")
    ingest.add_argument("files", nargs="+", metavar="FILE", type=Path)
    ingest.add_argument("--out", type=Path, metavar="DIR", help="folder that receives the tables and SUMMARY.md")
    scrub = command("scrub", _scrub, "remove environments, command lines and host names from exports, in place")
    scrub.add_argument("files", nargs="+", metavar="FILE", type=Path)
    compare = command("compare", _compare, "compare the times of two runs")
    compare.add_argument("a", metavar="A", help="the run to compare with")
    compare.add_argument("b", metavar="B", help="the run to judge")
    compare.add_argument(
        "--gate", type=_percent, metavar="PERCENT", help="exit with 4 if a case of B is slower by more"
    )
    _out(compare)
    history = command("history", _history, "list the last runs and how each case's time moved")
    history.add_argument("-n", type=_count, default=10, help="how many runs (default: 10)")
    _out(history)
    doctor = command("doctor", _doctor, "say what works on this machine, what does not, and how to mend it")
    measures = "measure what this GPU reaches at best; later runs with the same --out hold their results against it"
    doctor.add_argument("--measure-peaks", action="store_true", help=measures)
    _out(doctor)
    lists = command("list", _list, "list the pipeline's workloads and their cases")
    lists.add_argument("pipeline", nargs="?", default="pipeline.yaml")
    command("schema", _schema, "print the JSON schema of a pipeline file")
    return parser


def _percent(text: str) -> float:
    with suppress(ValueError):
        # Nothing is slower by more than nan, so that gate would stop nobody.
        if 0 <= (value := float(text)) < float("inf"):
            return value
    raise argparse.ArgumentTypeError(f"{text!r} is not a percentage of at least 0. For example: 5")


def _count(text: str) -> int:
    with suppress(ValueError):
        if (value := int(text)) >= 1:
            return value
    raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 1. For example: 10")


def _out(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, default=Path("out"), metavar="DIR", help="results folder (default: out/)")


# --- the commands ----------------------------------------------------------------------------------------------------


def _run(args: argparse.Namespace) -> int:
    from profpipe import config, environment

    path = Path(args.pipeline)
    pipeline = config.load_pipeline(path, args.set)
    # Not before: importing pandas takes longer than all the rest, and a mistake in the pipeline need not wait for it.
    from profpipe import workflow

    order = workflow.Order.of(pipeline, path, args.out, args.workload, args.profiler, args.reuse)
    if args.dry_run:
        workflow.show(order)
        return errors.OK
    named = (name for name in config.variables(path) if os.environ.get(name) and not environment.is_secret(name))
    given = [f"{name}={os.environ[name]}" for name in named]
    return workflow.start(order, command=[*(["env", *given] if given else []), "profpipe", *(sys.argv[1:] or ["run"])])


def _resume(args: argparse.Namespace) -> int:
    from profpipe import store, workflow

    return workflow.resume(store.unfinished(args.out) if args.run is None else store.resolve(args.run, args.out))


def _report(args: argparse.Namespace) -> int:
    from profpipe import store, workflow

    return workflow.report(store.resolve(args.run, args.out))


def _ingest(args: argparse.Namespace) -> int:
    from profpipe import reading

    return reading.read_files(args.files, args.out)


def _scrub(args: argparse.Namespace) -> int:
    from profpipe import privacy

    return privacy.scrub_files(args.files)


def _compare(args: argparse.Namespace) -> int:
    from profpipe import compare, store

    (a, record_a), (b, record_b) = (store.load(store.resolve(name, args.out)) for name in (args.a, args.b))
    found = compare.examined(a, b, record_a, record_b)
    print(compare.page(found))
    if args.gate is not None and (why := compare.objection(found, args.gate)):
        raise errors.GateFailed(why)
    return errors.OK


def _history(args: argparse.Namespace) -> int:
    from profpipe import history, store

    print(history.text(*store.history(args.out, args.n)))
    return errors.OK


def _doctor(args: argparse.Namespace) -> int:
    from profpipe import doctor, profilers, run

    print(doctor.text(doctor.examine(profilers.ALL, run.ask)))
    if args.measure_peaks:
        from profpipe import ceilings, environment

        own = {"PYTHONPATH": environment.python_path()}
        found = ceilings.renew(args.out, lambda argv: run.ask(argv, ceilings.LONGEST_S, own))
        print(f"\n{found['device']} at best, kept in {args.out / ceilings.FILE}:\n{ceilings.text(found)}")
    return errors.OK


def _list(args: argparse.Namespace) -> int:
    from profpipe import config, plan
    from profpipe.job import readable

    pipeline = config.load_pipeline(Path(args.pipeline))
    for name, workload in pipeline.workloads.items():
        cases = plan.cases(workload)
        what = workload.script or " ".join(workload.command or ())
        count = "1 case" if len(cases) == 1 else f"{len(cases)} cases"
        print(f"{name}: {what}, {count} under {', '.join(workload.profilers)}")
        for case in cases:
            print(f"  {readable(case.id)}")
    return errors.OK


def _schema(args: argparse.Namespace) -> int:
    import json

    from profpipe import config

    print(json.dumps(config.schema(), indent=1))
    return errors.OK


if __name__ == "__main__":
    sys.exit(main())
