"""Finds the parser that knows a file, and trusts what it says only where its rows and its sums agree."""

from __future__ import annotations

import math
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pandas as pd

from profpipe import load
from profpipe.errors import ConfigError, Refused
from profpipe.formats import launch_order
from profpipe.tables import Tables

_LFS = b"version https://git-lfs.github.com/spec/"

#: What a parser must have.
_PARTS = ("FORMATS", "sniff", "parse")

#: How far two sums of the same times may be apart, by the order in which floating-point numbers were added.
_ROUNDING = {"rel_tol": 1e-9, "abs_tol": 1.0}


def parsers(beside: Path | None = None) -> list[ModuleType]:
    """All parsers, of which those in the folder ``beside`` come before ours of the same name.

    Raises ConfigError for one of the user's that cannot be loaded, or is none.
    """
    return [_loaded(path) for path in load.files("parsers", "*.py", beside)]


def _loaded(path: Path) -> ModuleType:
    try:
        parser = load.module(path)
    except Exception as error:  # a file of the user's may raise anything
        raise ConfigError(
            str(path), f"cannot be loaded: {_place(error, path)}.", "Mend it, or move it away."
        ) from error
    if missing := [part for part in _PARTS if not hasattr(parser, part)]:
        remedy = "A file that is no parser begins with an underscore, or lies elsewhere."
        raise ConfigError(str(path), f"is no parser: it has no {missing[0]}.", remedy)
    return parser


def name_of(parser: ModuleType) -> str:
    return Path(str(parser.__file__)).stem


def choose(path: Path, parsers: Sequence[ModuleType]) -> ModuleType:
    """The parser that knows the content of ``path``; raises Refused with the reason where none does."""
    _check_content(path)
    for parser in parsers:
        try:
            if parser.sniff(path):
                return parser
        except Exception as error:  # as in parse
            raise _wrong(parser, path, f"fails on it: {_place(error, Path(str(parser.__file__)))}") from error
    if path.is_dir():
        raise Refused(path, "is a folder, and not one that a profiler wrote", "Name the files in it.")
    known = "; ".join(text for parser in parsers for text in parser.FORMATS)
    raise Refused(path, "is in no format that profpipe reads", f"It reads: {known}.")


def _check_content(path: Path) -> None:
    if not path.exists():
        raise Refused(path, "there is no such file", "Check the path.")
    if path.is_dir():
        return
    if not path.is_file():  # reading a pipe that nobody writes into would wait for ever
        raise Refused(path, "is neither a file nor a folder", "Name the file that a profiler wrote.")
    try:
        with path.open("rb") as stream:
            head = stream.read(len(_LFS))
    except OSError as error:
        raise Refused(path, f"cannot be read: {error.strerror or error}", "Make it readable, or copy it.") from error
    if not head:
        raise Refused(path, "is empty", "The tool that should have written it failed: read its log.")
    if head == _LFS:
        raise Refused(path, "is a Git LFS pointer, not the file itself", "Fetch the file: git lfs pull.")


def parse(parser: ModuleType, path: Path) -> Tables:
    """What the parser makes of the file, once its rows are known to agree with the sums that it counted beside them."""
    try:
        parsed: Tables = parser.parse(path)
        wrong = _contradiction(parsed)
    except Refused:
        raise
    except Exception as error:  # whatever a parser raises is about its file, and the others are still to be read
        raise _wrong(parser, path, f"fails on it: {_place(error, Path(str(parser.__file__)))}") from error
    if wrong:
        raise _wrong(parser, path, f"contradicts itself: {wrong}")
    return parsed


def launches(parser: ModuleType, path: Path) -> pd.DataFrame:
    """The single launches in the file (``launch_order.COLUMNS``); none of a parser that cannot tell them apart."""
    if not hasattr(parser, "launches"):
        return launch_order.empty()
    try:
        found: pd.DataFrame = parser.launches(path)
        wrong = [name for name in launch_order.COLUMNS if name not in found.columns]
    except Refused:
        raise
    except Exception as error:  # as in parse
        raise _wrong(parser, path, f"fails on it: {_place(error, Path(str(parser.__file__)))}") from error
    if wrong:
        raise _wrong(parser, path, f"tells launches without {wrong[0]}")
    return found


def _contradiction(parsed: Tables) -> str:
    """Where the rows of device kernels differ from what the origin says of the file; empty where they do not.

    The rows come from joins and groups, the origin's sums straight from the file: what a join lost or doubled shows.
    """
    device = parsed.kernels[parsed.kernels["kind"] == "kernel"]
    origin, times = parsed.origin, device["total_ns"].astype("Float64")
    if (calls := int(device["calls"].sum())) != origin.launches:
        return f"its rows hold {calls} launches, the file {origin.launches}"
    if origin.total_ns is None:
        return ""
    sums = [("in all", times.sum(), origin.total_ns)]
    if origin.attributed_ns is not None and origin.unattributed_ns is not None:
        inside = times[device["case"] != ""].sum()
        sums.append(("inside cases", inside, origin.attributed_ns))
        sums.append(("outside every case", times.sum() - inside, origin.unattributed_ns))
    for where, rows_ns, file_ns in sums:
        if not math.isclose(rows_ns, file_ns, **_ROUNDING):
            return f"its rows hold {rows_ns:.0f} ns {where}, the file {file_ns:.0f} ns"
    return ""


def _wrong(parser: ModuleType, path: Path, what: str) -> Refused:
    name = Path(str(parser.__file__)).name
    return Refused(path, f"cannot be trusted: the parser {name} {what}", f"Mend {name}, or report this with the file.")


def _place(error: BaseException, file: Path) -> str:
    """``KeyError: 'x' (line 12)``: what went wrong, and the last line of ``file`` on the way there."""
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == file]
    return f"{type(error).__name__}: {error}" + (f" (line {lines[-1]})" if lines else "")
