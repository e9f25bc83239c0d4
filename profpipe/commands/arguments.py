"""Options that several commands share."""

from __future__ import annotations

import argparse
from contextlib import suppress
from pathlib import Path


def add_out(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, default=Path("out"), metavar="DIR", help="results folder (default: out/)")


def add_output_format(parser: argparse.ArgumentParser) -> None:
    formats = parser.add_mutually_exclusive_group()
    formats.add_argument("--quiet", action="store_true", help="print only the path of SUMMARY.md")
    formats.add_argument("--json", action="store_true", help="print the results as one JSON object")


def names(text: str) -> list[str]:
    """Parse ``plain,torch`` or ``plain torch``."""
    return text.replace(",", " ").split()


def percentage(text: str) -> float:
    with suppress(ValueError):
        # Nothing is greater than nan, so a gate of nan would stop nothing.
        if 0 <= (value := float(text)) < float("inf"):
            return value
    raise argparse.ArgumentTypeError(f"{text!r} is not a percentage of at least 0. For example: 5")


def count(text: str) -> int:
    with suppress(ValueError):
        if (value := int(text)) >= 0:
            return value
    raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 0. For example: 5")


def positive_count(text: str) -> int:
    with suppress(ValueError):
        if (value := int(text)) >= 1:
            return value
    raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 1. For example: 10")
