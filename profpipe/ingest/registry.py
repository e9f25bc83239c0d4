"""Find the parser of a file, and trust its tables only where their rows agree with the file's sums."""

from __future__ import annotations

import inspect
import math
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pandas as pd

from profpipe import plugins
from profpipe.errors import ConfigError, UnreadableFile
from profpipe.ingest import foreign_files, launch_order
from profpipe.ingest.recording import Recording
from profpipe.results import budget
from profpipe.results.schema import Tables

_LFS = b"version https://git-lfs.github.com/spec/"
#: The first bytes of compressed files, and what unpacks them.
_COMPRESSED = {b"\x1f\x8b": "gunzip", b"PK\x03\x04": "unzip", b"\xfd7zXZ": "unxz", b"(\xb5/\xfd": "unzstd"}

#: The names that a parser module defines.
_PARTS = ("FORMATS", "sniff", "parse")

#: Two sums of the same times may differ by the order of their additions.
_ROUNDING = {"rel_tol": 1e-9, "abs_tol": 1.0}


def parsers(pipeline_dir: Path | None = None) -> list[ModuleType]:
    """Load all parsers; those in ``pipeline_dir/parsers`` replace the built-in ones of the same name.

    Raises ConfigError for a user's file that cannot be loaded or is no parser.
    """
    return [_loaded(path) for path in plugins.files("parsers", "*.py", pipeline_dir)]


def _loaded(path: Path) -> ModuleType:
    try:
        parser = plugins.load_module(path)
    except Exception as error:  # a user's file may raise anything
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
    """Return the parser that knows the content of ``path``. Raises UnreadableFile where none does."""
    _check_content(path)
    able = [parser for parser in parsers if path.is_file() or getattr(parser, "READS_FOLDERS", False)]
    with within_budget(path):
        for parser in able:
            with _blame(parser, path):
                if parser.sniff(path):
                    return parser
    if path.is_dir():
        raise UnreadableFile(path, "is a folder, and not one that a profiler wrote", "Name the files in it.")
    foreign_files.refuse(path)
    with path.open("rb") as stream:
        head = stream.read(8)
    if unpack := next((tool for magic, tool in _COMPRESSED.items() if head.startswith(magic)), None):
        remedy = f"profpipe reads only CSV files and torch traces compressed. Unpack it: {unpack} {path.name}"
        raise UnreadableFile(path, "is compressed", remedy)
    known = "; ".join(text for parser in parsers for text in parser.FORMATS)
    raise UnreadableFile(path, "is in no format that profpipe reads", f"It reads: {known}.")


def _check_content(path: Path) -> None:
    if not path.exists():
        raise UnreadableFile(path, "there is no such file", "Check the path.")
    if path.is_dir():
        return
    if not path.is_file():  # reading a pipe could wait for ever
        raise UnreadableFile(path, "is neither a file nor a folder", "Name the file that a profiler wrote.")
    try:
        with path.open("rb") as stream:
            head = stream.read(len(_LFS))
    except OSError as error:
        raise UnreadableFile(
            path, f"cannot be read: {error.strerror or error}", "Make it readable, or copy it."
        ) from error
    if not head:
        raise UnreadableFile(path, "is empty", "The tool that should have written it failed: read its log.")
    if head == _LFS:
        raise UnreadableFile(path, "is a Git LFS pointer, not the file itself", "Fetch the file: git lfs pull.")


def parse(parser: ModuleType, path: Path, step_range: str = "") -> Tables:
    """Parse the file. Raises UnreadableFile where the rows contradict the sums of the file.

    ``step_range``, a regular expression for ranges that are steps, is for parsers that find steps.
    """
    with _blame(parser, path):
        finds_steps = step_range and "step_range" in inspect.signature(parser.parse).parameters
        parsed: Tables = parser.parse(path, step_range=step_range) if finds_steps else parser.parse(path)
        wrong = _contradiction(parsed)
    if wrong:
        raise _wrong(parser, path, f"contradicts itself: {wrong}")
    return parsed


def launches(parser: ModuleType, path: Path) -> pd.DataFrame:
    """Return the single launches in the file (``launch_order.COLUMNS``), none where the parser has no ``launches``."""
    if not hasattr(parser, "launches"):
        return launch_order.empty()
    with _blame(parser, path):
        found: pd.DataFrame = parser.launches(path)
        wrong = [name for name in launch_order.COLUMNS if name not in found.columns]
    if wrong:
        raise _wrong(parser, path, f"returns launches without {wrong[0]}")
    return found


def recording(parser: ModuleType, path: Path) -> Recording:
    """Return the single events in the file, for a parser that has ``recording``."""
    with _blame(parser, path):
        found: Recording = parser.recording(path)
    return found


def _contradiction(parsed: Tables) -> str:
    """Return where the rows of device kernels differ from the sums of the origin, empty where they agree.

    The rows come from joins and groups, the sums straight from the file: a row that a join lost or doubled shows.
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


@contextmanager
def within_budget(path: Path, times: float = 1) -> Iterator[None]:
    """Raise UnreadableFile where the body takes more than ``times`` the budget of a file of this size."""
    try:
        with budget.limit(path, times):
            yield
    except budget.TooLarge as error:
        raise UnreadableFile(path, f"is more than profpipe reads: {error}", budget.REMEDY) from error


@contextmanager
def _blame(parser: ModuleType, path: Path) -> Iterator[None]:
    """Turn any error of a parser into an UnreadableFile: the other files are still read."""
    try:
        with within_budget(path):
            yield
    except (UnreadableFile, ConfigError):
        raise
    except Exception as error:
        raise _wrong(parser, path, f"fails on it: {_place(error, Path(str(parser.__file__)))}") from error


def _wrong(parser: ModuleType, path: Path, what: str) -> UnreadableFile:
    name = Path(str(parser.__file__)).name
    return UnreadableFile(
        path, f"cannot be trusted: the parser {name} {what}", f"Mend {name}, or report this with the file."
    )


def _place(error: BaseException, file: Path) -> str:
    """Return ``KeyError: 'x' (line 12)``: the error and the last line of ``file`` in its traceback."""
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == file]
    return f"{type(error).__name__}: {error}" + (f" (line {lines[-1]})" if lines else "")
