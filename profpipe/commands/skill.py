"""``profpipe skill``: a page for agents about how to use profpipe."""

from __future__ import annotations

import argparse
from importlib import resources

from profpipe import errors

EXAMPLES = """\
  profpipe skill > SKILL.md    # in the folder where an agent looks for skills"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add nothing: the command has no options."""


def main(args: argparse.Namespace) -> int:
    print(resources.files("profpipe").joinpath("SKILL.md").read_text(encoding="utf-8"), end="")
    return errors.OK
