"""The command line: build the parser, run one command, and turn errors into exit codes."""

from __future__ import annotations

import argparse
import atexit
import gc
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn, Protocol, cast

from profpipe import __version__, errors, masking, stdio
from profpipe.errors import ProfpipeError

#: Each command is a module of ``profpipe.commands``. Its module is imported only when the command is used, for
#: ``profpipe --help`` must not wait for pandas.
COMMANDS = {
    "run": "run a pipeline, or a program as it is, and write SUMMARY.md",
    "ab": "measure whether B is faster than A, in pairs of processes",
    "try": "try changes that make a program faster, and measure the best ones together",
    "bisect": "find the commit that made a program slower, in pairs of processes",
    "resume": "finish a run that was interrupted",
    "collect": "read what a run on a cluster has finished so far, and write its report",
    "report": "render SUMMARY.md again from the files of a run, without running anything",
    "ingest": "read files of profilers into the tables; needs neither a GPU nor a profiler",
    "scrub": "remove environments, command lines and host names from exports, in place",
    "trace": "write the recordings of a run as a trace for ui.perfetto.dev",
    "compare": "compare the times of two runs, or two recordings",
    "history": "list the last runs, and the course of each case with its noise",
    "mcp": "answer agents from results folders and recordings, over the Model Context Protocol",
    "doctor": "check which tools work on this machine, and how to fix the others",
    "list": "list the workloads of a pipeline and their cases",
    "schema": "print the JSON schema of a pipeline file",
    "skill": "print how an agent uses profpipe, as a skill file",
    "completion": "print the completion of commands and options for a shell",
}

#: Commands that only batch scripts of profpipe start. `--help` leaves them out.
_INTERNAL = ("task",)


class Subcommand(Protocol):
    """A module of ``profpipe.commands``. ``EXAMPLES`` are shown by ``--help``.

    One with many options names those that ``--help`` shows in ``USUAL``; ``--help-all`` shows all.
    """

    EXAMPLES: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the options of the command."""

    def main(self, args: argparse.Namespace) -> int:
        """Run the command and return the exit code."""


def _module(command: str) -> Subcommand:
    return cast(Subcommand, importlib.import_module(f"profpipe.commands.{command}"))


class _CommandParser(argparse.ArgumentParser):
    """The parser of one command, which imports the command's module when it parses arguments."""

    command = ""

    def load(self, args: Sequence[str]) -> None:
        """Add the options of the command, which ``args`` follow."""
        module, self.command = _module(self.command), ""
        self.epilog = f"examples:\n{module.EXAMPLES}"
        module.add_arguments(self)
        self._hide_rare_options(getattr(module, "USUAL", ()), args)
        self.set_defaults(command=module)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        if self.command:
            self.load(args)
            # Files may stand on both sides of an option. This parses twice, by way of this function.
            parsed, unknown = super().parse_known_intermixed_args(args, namespace)
            if unknown:
                self._refuse(unknown)
            return parsed, unknown
        return super().parse_known_args(args, namespace)

    def _hide_rare_options(self, usual: Sequence[str], args: Sequence[str]) -> None:
        """Leave options that are not ``usual`` out of `--help`, if any are named."""
        if usual:
            self.add_argument("--help-all", action="help", help="show all options and exit")
        for action in self._actions if usual and "--help-all" not in args else ():
            if action.option_strings and not {*action.option_strings} & {*usual, "--help", "--help-all"}:
                action.help = argparse.SUPPRESS

    def _refuse(self, words: Sequence[str]) -> NoReturn:
        """End with what is wrong: the first unknown option, else the first word too many."""
        option = next((word.partition("=")[0] for word in words if word.startswith("-")), "")
        remedy = errors.did_you_mean(option, self._option_string_actions)
        if not remedy.startswith("Did you mean"):
            remedy = f"`{self.prog} --help` lists the options."
        self.error(f"unknown option '{option}'. {remedy}" if option else f"'{words[0]}' is one word too many. {remedy}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    # At its end, Python looks through all objects for garbage. That takes 0.2 s and frees nothing that matters.
    atexit.register(gc.freeze)
    # Nor is there garbage while modules load: to search for it after each 700 objects takes 0.1 s.
    gc.set_threshold(50_000)
    stdio.open_closed_streams()
    words, program = _split_program(sys.argv[1:] if argv is None else argv)
    if "ingest" in words[:1]:
        # Nothing here is linear algebra, for which numpy starts a thread on every core when it is imported.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    masking.forget()
    masking.remember(masking.secrets_of_environment(os.environ))
    with stdio.mask_output():
        parser = _build_parser()
        command = _find_command(words)
        if command and command not in (*COMMANDS, *_INTERNAL):
            parser.error(f"unknown command '{command}'. {errors.did_you_mean(command, COMMANDS)}")
        args = parser.parse_args(words)
    args.words, args.words_after_dashes, args.parser = words, program, parser
    # A command takes options of sbatch out of it.
    args.program = program
    with stdio.mask_output() if _only_prints(args) else stdio.ignore_output_errors():
        try:
            return _run(args)
        except Exception:  # with --debug only
            # Printed here and not by Python, whose stream has neither of these filters.
            import traceback

            traceback.print_exc()
            return errors.SOME_FAILED


def _find_command(argv: Sequence[str]) -> str:
    return next((word for word in argv if not word.startswith("-")), "")


def _split_program(argv: Sequence[str]) -> tuple[Sequence[str], Sequence[str] | None]:
    """Return the words before ``--`` and those after it; None where there is no ``--``.

    After it stands the program of ``run``, ``ab`` and ``bisect``; with ``--slurm`` and for ``resume``, options of
    sbatch may stand before the program or alone. ``compare`` refuses any. A program of ``run`` and ``ab`` without
    ``--`` is recognised too: ``profpipe run python train.py``.
    """
    command = _find_command(argv)
    if command not in ("run", "ab", "try", "bisect", "resume", "compare"):
        return argv, None
    if "--" in argv:
        dashes = argv.index("--")
        return argv[:dashes], argv[dashes + 1 :]
    at = _find_program(argv, command) if command in ("run", "ab", "try") else None
    return (argv, None) if at is None else (argv[:at], argv[at:])


def _find_program(argv: Sequence[str], command: str) -> int | None:
    """Return where the program begins: at the first word of the command that is neither an option nor its value."""
    import shutil

    module, options = _module(command), argparse.ArgumentParser(add_help=False)
    module.add_arguments(options)
    # argparse has no public list of its options.
    with_value = {option for action in options._actions if action.nargs is None for option in action.option_strings}
    at = argv.index(command) + 1
    while at < len(argv) and argv[at].startswith("-"):
        is_file_of_json = argv[at] == "--json" and "".join(argv[at + 1 : at + 2]).endswith(".json")
        at += 2 if argv[at] in with_value or is_file_of_json else 1
    if at >= len(argv):
        return None
    suffix = os.path.splitext(argv[at])[1]  # noqa: PTH122 - pathlib is not imported yet
    return at if suffix == ".py" or (suffix not in (".yaml", ".yml") and shutil.which(argv[at])) else None


def _only_prints(args: argparse.Namespace) -> bool:
    """Return True if the command leaves no file and its exit code has no meaning beyond its output."""
    match args.command.__name__.rpartition(".")[2]:
        case "completion" | "history" | "list" | "schema" | "skill":
            return True
        case "compare":
            return args.gate is None and args.html is None and args.json in (None, "-", "--json=full")
        case "doctor":
            return not args.measure_peaks
        case "run":
            return bool(args.dry_run)
    return False


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="profpipe",
        description="Run GPU workloads under several profilers and get one table that can be trusted.",
        epilog="examples:\n  profpipe doctor\n  profpipe run\n  profpipe run -- python train.py --batch 8\n"
        "  profpipe ingest capture.nsys-rep",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"profpipe {__version__}")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=_CommandParser)
    for name, text in COMMANDS.items():
        description = f"{text[0].upper()}{text[1:]}."
        raw = argparse.RawDescriptionHelpFormatter
        added = commands.add_parser(name, help=text, description=description, formatter_class=raw)
        added.command = name
        added.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    for name in _INTERNAL:
        commands.add_parser(name).command = name
    return parser


#: Where no memory is left, Python says so of a thread, and the loader of a library.
_OF_NO_MEMORY = ("can't start new thread", "failed to map segment")


def _run(args: argparse.Namespace) -> int:
    try:
        code = int(args.command.main(args))
        sys.stdout.flush()  # so that a failure is reported here
    except ProfpipeError as error:
        if args.debug:
            raise
        print(f"profpipe: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("profpipe: interrupted.", file=sys.stderr)
        return errors.INTERRUPTED
    except BrokenPipeError:
        stdio.discard_if_broken(sys.stdout)  # the reader of a command that only prints (head, less) has gone
        return errors.OK
    except OSError as error:
        if args.debug:
            raise
        stdio.discard_if_broken(sys.stdout)
        print(f"profpipe: {errors.describe_os_error(error)}", file=sys.stderr)
        return errors.SOME_FAILED
    except Exception as error:
        if args.debug:
            raise
        what = f"internal error: {type(error).__name__}: {error}. --debug shows where."
        if isinstance(error, MemoryError) or any(text in str(error) for text in _OF_NO_MEMORY):
            what = "the memory is exhausted. Free some, raise its limit (ulimit -v), or read less."
        print(f"profpipe: {what}", file=sys.stderr)
        return errors.SOME_FAILED
    return code


if __name__ == "__main__":
    sys.exit(main())
