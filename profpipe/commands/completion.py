"""``profpipe completion``: the completion of commands and options for a shell, made by shtab."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

from profpipe import errors

EXAMPLES = """\
  profpipe completion bash > ~/.local/share/bash-completion/completions/profpipe
  profpipe completion zsh > ~/.zfunc/_profpipe     # a folder of $fpath"""

_FILES = ("files", "folders", "pipeline", "recordings", "run", "runs")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=["bash", "zsh"])


def main(args: argparse.Namespace) -> int:
    try:
        shtab = importlib.import_module("shtab")
    except ImportError:
        raise errors.ToolMissing("shtab is not installed: pip install 'profpipe[completion]'") from None
    # argparse has no public list of its commands and options.
    (commands,) = (action for action in args.parser._actions if isinstance(action, argparse._SubParsersAction))
    for command in commands.choices.values():
        if command.command:
            command.load(["--help-all"])
        for action in command._actions:
            if any("=" in option for option in action.option_strings):
                action.help = argparse.SUPPRESS  # zsh takes it for an option and its value
            elif action.type is Path or action.dest in _FILES:
                action.complete = shtab.DIRECTORY if action.dest == "out" else shtab.FILE
    print(shtab.complete(args.parser, args.shell))
    return errors.OK
