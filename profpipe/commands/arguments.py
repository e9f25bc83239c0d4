"""Options that several commands share."""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar

from profpipe import plugins, stdio
from profpipe.errors import ConfigError, did_you_mean
from profpipe.report import bounded_json, screen
from profpipe.report.screen import Screen
from profpipe.results import answer, atomic
from profpipe.stdio import visible_line

_Number = TypeVar("_Number", int, float)


def add_out(parser: argparse.ArgumentParser) -> None:
    out = Path(read_project(parser).get("out", "out"))
    shown = str(out).replace("%", "%%")
    parser.add_argument("--out", type=Path, default=out, metavar="DIR", help=f"results folder (default: {shown}/)")


#: The keys of ``[tool.profpipe]``, and what their values are.
_PROJECT: Final[dict[str, tuple[type, str]]] = {
    "out": (str, "a folder in quotes"),
    "profilers": (list, "a list of names"),
}


def read_project(parser: argparse.ArgumentParser) -> dict[str, Any]:
    """Return ``[tool.profpipe]`` of the ``pyproject.toml`` in the current folder, unless that is a results folder.

    Ends the program with a usage error where a key or a value is wrong.
    """
    file = Path("pyproject.toml")
    if not file.is_file() or plugins.is_in_results(Path.cwd()):
        return {}
    tomllib = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        settings = dict(tomllib.loads(file.read_text(encoding="utf-8")).get("tool", {}).get("profpipe", {}))
    except (AttributeError, OSError, TypeError, ValueError) as error:  # `tool = 3` is no table
        parser.error(f"{file}: {error}")
    for key, value in settings.items():
        if key not in _PROJECT:
            parser.error(f"{file}: tool.profpipe: unknown key '{key}'. {did_you_mean(key, _PROJECT)}")
        if type(value) is not _PROJECT[key][0] or not all(isinstance(part, str) for part in settings[key]):
            parser.error(f"{file}: tool.profpipe.{key}: is not {_PROJECT[key][1]} (got {value!r}).")
    return settings


#: An option that gives names: ``plain,torch`` or ``plain torch``.
NAMES: Final[dict[str, Any]] = {
    "action": "extend",
    "type": lambda text: text.replace(",", " ").split(),
    "default": [],
    "metavar": "NAME[,NAME]",
}

#: With more pairs an exact test of one case takes seconds.
MOST_PAIRS: Final = 1000

#: The profilers whose recordings `trace` reads. One whose recordings hold less of the host comes later.
TRACED: Final = ("nsys", "torch")

#: A step like most others, in place of a number.
STEADY: Final = "steady"

STEP_RANGE: Final = "ranges of the program with such a name are its steps"

#: The page of a results folder, and what stands for it where `history --html` names no file.
HISTORY_PAGE: Final = "profpipe.html"
IN_RESULTS: Final = Path()

#: The file of ``--json`` that is standard output: the short document, and with ``--json=full`` everything.
STDOUT: Final = "-"
FULL: Final = "--json=full"


def add_output_format(parser: argparse.ArgumentParser) -> None:
    formats = parser.add_mutually_exclusive_group()
    add_quiet(formats)
    add_json(formats)
    add_open(formats)
    add_csv(parser)


def add_open(parser: Any) -> None:
    parser.add_argument("--open", action="store_true", help="open report.html in the browser at the end")


def add_json(parser: Any) -> None:
    text = "print the answer as one JSON object of at most 8 kB"
    parser.add_argument("--json", action="store_const", const=STDOUT, help=text)
    _add_full_json(parser)


def _add_full_json(parser: Any) -> None:
    # argparse finds an option string before it takes `=` for the start of a value.
    parser.add_argument(
        FULL, dest="json", action="store_const", const=FULL, help="print all results as one JSON object"
    )


def add_quiet(parser: Any) -> None:
    parser.add_argument("-q", "--quiet", action="store_true", help="print only the path of SUMMARY.md")


def add_verbose(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--verbose", action="store_true", help="show the output of the programs while they run")


def add_csv(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--csv", action="store_true", help="write all tables as CSV too, not only the cases")


def add_json_file(parser: argparse.ArgumentParser) -> None:
    # Until 1.0 only `--json FILE` wrote a file.
    text = "print the answer as one JSON object of at most 8 kB; with FILE as --json-file"
    parser.add_argument("--json", nargs="?", const=STDOUT, type=_json_file, metavar="FILE", help=text)
    text = "write all results as one JSON object"
    parser.add_argument("--json-file", dest="json", type=_json_file, metavar="FILE", help=text)
    _add_full_json(parser)


def html_file(text: str) -> Path:
    """Return the file of `--html`: `--html bench.yaml` must not replace the pipeline file."""
    if text.endswith(".html"):
        return Path(text)
    raise argparse.ArgumentTypeError(f"{text!r} does not end in .html")


def _json_file(text: str) -> str:
    # `--json bench.yaml` must not replace the pipeline file.
    if text == STDOUT or text.endswith(".json"):
        return text
    raise argparse.ArgumentTypeError(f"{text!r} does not end in .json. To print the object: --json -")


def check_output_file(option: str, path: Path) -> None:
    """Raise ConfigError where the file of an option cannot be written, before anything runs."""
    if not path.absolute().parent.is_dir():
        raise ConfigError(option, f"{path.parent} is no folder.", "Create it, or name another file.")
    if path.is_dir():
        raise ConfigError(option, f"{path} is a folder.", "Name a file.")


def write_output_file(option: str, path: Path, text: str) -> None:
    """Write the file of an option. A file that cannot be written is a warning: the exit code is that of the run."""
    try:
        atomic.write_text(path.parent.resolve() / path.name, text)
    except OSError as error:
        print(f"profpipe: {option}: {path}: {error.strerror or error}. Nothing was written.", file=sys.stderr)


def prints_json(args: argparse.Namespace) -> bool:
    return args.json in (STDOUT, FULL)


def print_json(args: argparse.Namespace, short: Callable[[], Any], full: Callable[[], Any]) -> None:
    """Print the short document or the whole one, or write the whole one to a file, as ``--json`` says."""
    if prints_json(args):
        print(stdio.as_json(short() if args.json == STDOUT else full()))
    elif args.json:
        write_output_file("--json", Path(args.json), stdio.as_json(full()) + "\n")


def print_report(
    args: argparse.Namespace,
    summary: Path,
    first_screen: Callable[[], Screen],
    short: Callable[[], Any],
    full: Callable[[], Any],
) -> None:
    """Print the first screen of a report, its path alone, or one JSON object, as the options say."""
    folder = shown_path(summary.parent)
    print_json(args, lambda: bounded_json.add_folder(short(), folder), full)
    if not prints_json(args):
        if not args.quiet:
            print(f"{screen.lay_out(first_screen())}\n\nTables and details: {folder}")
        print(shown_path(summary) if args.quiet else f"Report: {shown_path(summary)}")
    if getattr(args, "open", False):
        _open_page(summary.with_name("report.html"))


def _open_page(page: Path) -> None:
    import webbrowser

    sys.stdout.flush()
    if not webbrowser.open(page.resolve().as_uri()):
        print(f"profpipe: --open: no browser was started. Open {shown_path(page)}.", file=sys.stderr)


def print_kept(args: argparse.Namespace, folder: Path, kept: answer.Answer) -> None:
    """Print what stands in the folder that ``ingest`` has written, as ``print_report`` does."""
    results = folder / "results.json"
    print_report(args, folder / "SUMMARY.md", lambda: kept.first_screen, lambda: kept.document,
                 lambda: json.loads(results.read_bytes()))  # fmt: skip


def shown_path(path: Path) -> str:
    """Return ``path`` as the user would type it. A line end in it is written out: it is no line of this program."""
    return visible_line(os.path.relpath(path) if path.is_relative_to(Path.cwd()) else path)


def add_output_of_pairs(parser: argparse.ArgumentParser) -> None:
    """Add what ``ab`` and ``try`` print and write."""
    add_quiet(parser)
    add_open(parser)
    add_json_file(parser)
    add_csv(parser)
    add_verbose(parser)
    add_out(parser)


#: Options of a program after ``--``, and what a pipeline file has in their place.
_OF_PROGRAMS: Final = {
    "name": "name: NAME",
    "warmup_steps": "steps: {warmup: 5}",
    "measure_steps": "steps: {measure: 20}",
    "step_range": "steps: {range: REGEX}",
    "forward": "steps: {forward: true}",
    "stop": "steps: {stop: true}",
    "no_stop": "steps: {stop: false}",
    "capture": "capture: {after_s: 60, for_s: 5}",
    "clean_env": "clean_env: true",
}


def add_pipeline(parser: argparse.ArgumentParser, command: str, set_where: str = "of the pipeline file") -> None:
    """Add the pipeline file or the program after ``--``, and their options."""
    parser.usage = f"{command} [OPTIONS] [PIPELINE]\n       {command} [OPTIONS] -- PROGRAM [ARGUMENTS]"
    parser.add_argument(
        "pipeline", nargs="?", help="pipeline file, or a study of `profpipe list studies` (default: pipeline.yaml)"
    )
    parser.add_argument("-w", "--workload", help="only these workloads (repeatable)", **NAMES)
    add_program(parser, set_where)


def add_program(parser: argparse.ArgumentParser, set_where: str) -> None:
    """Add the options of the program after ``--``."""
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=f"override a value {set_where}")
    parser.add_argument("--name", default="", help="name of the run of a program after --, and of its folder")
    parser.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME[=VALUE]",
        help="environment variable of the program after -- beside those of the shell",
    )
    text = "give the program after -- only the environment variables of known tools, and those of --env"
    parser.add_argument("--clean-env", action="store_true", help=text)
    group = parser.add_argument_group("steps of a program after --")
    group.add_argument(
        "--warmup-steps", type=count, metavar="N", help="first steps, which are not recorded (default: 5)"
    )
    text = "steps that profilers record (default: 20, under torch fewer long ones)"
    group.add_argument("--measure-steps", type=positive_count, metavar="N", help=text)
    group.add_argument("--step-range", type=regex, metavar="REGEX", help=STEP_RANGE)
    text = "take each call of the outermost module of torch for a step, for inference"
    group.add_argument("--forward", action="store_true", help=text)
    text = "record FOR seconds that begin AFTER seconds after the start, and then end the program, such as a server"
    group.add_argument("--capture", type=span, metavar="AFTER:FOR", help=text)
    stops = group.add_mutually_exclusive_group()
    stops.add_argument("--stop", action="store_true", help="end the program after these steps, with exit code 0")
    text = "run it to its end under torch and nsys too (default: they end it after these steps, if plain ran it whole)"
    stops.add_argument("--no-stop", action="store_true", help=text)


def add_more(parser: argparse.ArgumentParser, default: int | None) -> None:
    without = "as the run began with" if default is None else default
    parser.add_argument(
        "--more",
        type=count,
        default=default,
        metavar="N",
        help="measure undecided cases alone in up to N further pairs, judged after 10, 15, 20, ..."
        f" (default: {without})",
    )


def check_more(more: int) -> None:
    """Raise ConfigError where so many further pairs decide nothing, or are too many for an exact test."""
    from profpipe.results import pair_blocks

    if not pair_blocks.looks(more):
        remedy = f"Ask for at least {pair_blocks.FIRST_LOOK}."
        raise ConfigError("--more", f"{more} further pairs are too few to decide a case.", remedy)
    if more > MOST_PAIRS:
        raise ConfigError("--more", f"{more} pairs are too many for an exact test.", f"Ask for at most {MOST_PAIRS}.")


def add_wait(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--wait", action="store_true", help=f"{what}, follow the queue and write the report at its end")


def split_sbatch(words: Sequence[str] | None) -> tuple[list[str], list[str] | None]:
    """Return the options of sbatch after ``--``, and the program after them or after another ``--``."""
    if words is None or not words[:1] or not words[0].startswith("-"):
        return [], None if words is None else list(words)
    at = list(words).index("--") if "--" in words else len(words)
    return list(words[:at]), list(words[at + 1 :]) if at < len(words) else None


def read_slurm(args: argparse.Namespace) -> list[str]:
    """Return the options of sbatch after ``--``, and leave the program, if any, in ``args.program``."""
    if not args.slurm:
        if args.wait:
            raise ConfigError("--wait", "is for a run on a cluster.", "Add --slurm.")
        return []
    if getattr(args, "gpus", None):
        what = "is for the GPUs of one machine. Slurm runs the cases of an array side by side."
        raise ConfigError("--gpus", what, "Leave out --gpus or --slurm.")
    if getattr(args, "budget", None):
        raise ConfigError("--budget", "is for a run on one machine.", "Leave out --budget or --slurm.")
    if getattr(args, "reuse", False):
        raise ConfigError("--reuse", "is for a run on one machine.", "Leave out --reuse or --slurm.")
    if args.csv and not args.wait:
        remedy = "Add --wait, or leave out --csv and collect the run later: profpipe collect RUN --csv"
        raise ConfigError("--csv", "is for tables, and a run that is only submitted has none yet.", remedy)
    options, args.program = split_sbatch(args.program)
    return options


def check_program(args: argparse.Namespace, command: str) -> None:
    """Raise ConfigError where options of a program and of a pipeline file are mixed."""
    if args.program is not None:
        if args.pipeline is not None:
            what = f"both a pipeline file, '{args.pipeline}', and a program after '--'."
            raise ConfigError(command, what, "Leave out one of them.")
        if args.workload:
            raise ConfigError("-w", "chooses workloads of a pipeline file; a program is one workload.", "Leave it out.")
    elif args.env:
        raise ConfigError("--env", "is for a program after '--'.", "In a pipeline file, write env: {NAME: VALUE}.")
    elif given := next((name for name in _OF_PROGRAMS if getattr(args, name) not in (None, False, "")), ""):
        option, remedy = f"--{given.replace('_', '-')}", f"In a pipeline file, write {_OF_PROGRAMS[given]}."
        raise ConfigError(option, "is for a program after '--'.", remedy)


def settings(args: argparse.Namespace) -> dict[str, Any]:
    """Return the settings of a workload that the options of a program give."""
    steps = {
        "warmup": args.warmup_steps,
        "measure": args.measure_steps,
        "stop": True if args.stop else False if args.no_stop else None,
        "range": args.step_range,
        "forward": args.forward or None,
    }
    given = {name: value for name, value in steps.items() if value is not None}
    options = {"steps": given or None, "capture": args.capture, "clean_env": args.clean_env or None}
    return {name: value for name, value in options.items() if value is not None}


def program_file(out: Path) -> Path:
    """Return the path of the pipeline file of a program: in a folder as deep as that of the run, which has no name."""
    return out.resolve() / "run" / "pipeline.yaml"


def regex(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no regular expression ({error})") from None
    return text


def span(text: str) -> dict[str, float]:
    """Return the setting ``capture`` of ``60:5``."""
    after, _, length = text.partition(":")
    with suppress(ValueError):
        after_s, for_s = float(after), float(length)
        if 0 <= after_s < math.inf and 0 < for_s < math.inf:
            return {"after_s": after_s, "for_s": for_s}
    raise argparse.ArgumentTypeError(f"{text!r} is not AFTER:FOR in seconds. For example: 60:5")


def percentage(text: str) -> float:
    return _parse(float, text, 0, "a percentage", 5)


def price(text: str) -> float:
    return _parse(float, text, 0.0001, "a price", 2.5)


def gpu_count(text: str) -> int | str:
    return text if text == "all" else positive_count(text)


def budget(text: str) -> float:
    """Return the seconds of ``90s``, ``10m`` or ``1.5h``."""
    if (match := re.fullmatch(r"(\d{1,6}(?:\.\d+)?)([smh])", text)) and float(match[1]) > 0:
        return float(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2]]
    raise argparse.ArgumentTypeError(f"{text!r} is no time. For example: 90s, 10m or 1h")


def count(text: str) -> int:
    return _parse(int, text, 0, "a number", 5)


def positive_count(text: str) -> int:
    return _parse(int, text, 1, "a number", 10)


def _parse(kind: Callable[[str], _Number], text: str, least: float, what: str, example: float) -> _Number:
    with suppress(ValueError):
        # Nothing is greater than nan, so a gate of nan would stop nothing.
        if least <= (value := kind(text)) < math.inf:
            return value
    raise argparse.ArgumentTypeError(f"{text!r} is not {what} of at least {least}. For example: {example}")
