"""The errors that a user can meet, and their exit codes.

An error says where, what, and what to do next. Only ``cli.py`` turns an error into an exit code.
"""

from __future__ import annotations

import difflib
import errno
import os
import re
from collections.abc import Iterable
from pathlib import Path

from profpipe.masking import mask_printed

OK = 0
SOME_FAILED = 1
BAD_INPUT = 2
TOOL_MISSING = 3
GATE_FAILED = 4
GATE_UNDECIDED = 5
INTERRUPTED = 130

#: Exit code of a workload's process that could not write its results (EX_IOERR of sysexits.h).
UNWRITTEN = 74

#: A full disk, an exhausted quota, and a file longer than `ulimit -f`. SQLite has its own text for the first.
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_DISK_FULL_TEXT = re.compile("|".join(map(re.escape, [*map(os.strerror, _DISK_FULL), "database or disk is full"])))


class ProfpipeError(Exception):
    """An error with a message for the user and the exit code of the program."""

    exit_code = SOME_FAILED


class ConfigError(ProfpipeError):
    """The pipeline file or the command line is wrong; nothing was run.

    ``where`` is the place as the user finds it: ``pipeline.yaml: workloads.attention.matrix``.
    """

    exit_code = BAD_INPUT

    def __init__(self, where: str, what: str, remedy: str = "") -> None:
        super().__init__(" ".join(part for part in (f"{where}: {what}", remedy) if part))


class ToolMissing(ProfpipeError):
    """A tool without which the command cannot do anything is not on this machine."""

    exit_code = TOOL_MISSING


class UnreadableFile(ProfpipeError):
    """A file that holds no profile we can read: which file, what is wrong with it, what to do.

    Parsers raise it; the other files are still read.
    """

    def __init__(self, path: Path | str, what: str, remedy: str) -> None:
        self.path, self.what, self.remedy = Path(path), what, remedy
        super().__init__(f"{path}: {what}. {remedy}")


class GateNotPassed(ProfpipeError):
    """A limit of the user (``compare --gate``) was exceeded, or the data do not decide it."""

    def __init__(self, why: str, exit_code: int) -> None:
        super().__init__(why)
        self.exit_code = exit_code


class Interrupted(ProfpipeError):
    """The user stopped the run. The finished jobs are stored, and the report is still written."""

    exit_code = INTERRUPTED


def describe_os_error(error: OSError) -> str:
    """Return what the operating system refused, where, and what to do about it."""
    # An error that a library raises may have a text and no number.
    what = (os.strerror(error.errno) if error.errno else "") or str(error) or type(error).__name__
    resume, out = "`profpipe resume` then continues the run.", "--out DIR."
    remedies = {
        errno.ENOSPC: f"Free some space; {resume}",
        errno.EDQUOT: f"Free some space; {resume}",
        errno.EFBIG: f"Raise the limit (ulimit -f); {resume}",
        errno.EACCES: f"Choose a folder that you may write to: {out}",
        errno.EROFS: f"Choose a folder that you may write to: {out}",
        errno.EEXIST: f"Choose another name: {out}",
        errno.ENOTDIR: f"Choose a folder: {out}",
    }
    where = f"{os.fspath(error.filename)!s}: " if isinstance(error.filename, (str, os.PathLike)) else ""
    return f"{where}{what}. {remedies.get(error.errno or 0, '--debug shows where.')}"


def is_disk_full(text: str) -> bool:
    """Return True if ``text`` contains the message of a full disk. Another try may succeed."""
    return bool(_DISK_FULL_TEXT.search(text))


def explain_disk_full(text: str) -> tuple[str, str]:
    """Return what stopped a write, and the remedy, from a text with the message of a full disk."""
    if os.strerror(errno.EFBIG) in text:
        return "a file reached the limit of its size", "Raise the limit (ulimit -f)"
    return "the disk was full", "Free some space"


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """Return ``Did you mean 'seqlen'?``, or the list of known words if none is close."""
    choices = sorted(set(choices))
    if close := difflib.get_close_matches(word, choices, n=1, cutoff=0.6):
        return f"Did you mean '{close[0]}'?"
    # Short words ("b") are below any cutoff, so all words are shown.
    return f"Known: {', '.join(choices)}." if choices else ""


def one_line(error: BaseException) -> str:
    """Return the kind and the message of an exception in one line."""
    kind, text = type(error).__name__, words(error)
    return kind if text == kind else f"{kind}: {text}"


def words(error: BaseException) -> str:
    """Return the message of an exception in one line, at most 300 characters; its kind if it has no message."""
    # Masked before it is cut: a part of a secret would not be recognised.
    return " ".join(mask_printed(str(error)).split())[:300] or type(error).__name__
