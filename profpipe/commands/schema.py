"""``profpipe schema``: the JSON schema of a pipeline file."""

from __future__ import annotations

import argparse
import json

from profpipe import errors

EXAMPLES = """\
  profpipe schema > pipeline.schema.json    # for completion and checks in an editor"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add nothing: the command has no options."""


def main(args: argparse.Namespace) -> int:
    from profpipe.config import loader

    print(json.dumps(loader.schema(), indent=1))
    return errors.OK
