"""Every error a user can meet, with the exit code that it ends the program with.

An error says where, what, and what to do next; ``cli.py`` is the only place that turns one into an exit code.
"""

from __future__ import annotations

import difflib
import errno
import os
import re
from collections.abc import Iterable
from pathlib import Path

OK = 0
SOME_FAILED = 1
BAD_INPUT = 2
TOOL_MISSING = 3
GATE_FAILED = 4
INTERRUPTED = 130

#: Exit code of a workload's process that could not write down what it measured (EX_IOERR of sysexits.h).
UNWRITTEN = 74

#: A full disk, a used up quota, and a file that would be longer than `ulimit -f`; and SQLite's words for the first.
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_TELLS_NO_ROOM = re.compile("|".join(map(re.escape, [*map(os.strerror, _NO_ROOM), "database or disk is full"])))


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


class Refused(ProfpipeError):
    """A file that holds no profile we can read: which file, what is wrong with it, what to do.

    Parsers raise it; the other files are still read.
    """

    def __init__(self, path: Path | str, what: str, remedy: str) -> None:
        self.path, self.what, self.remedy = Path(path), what, remedy
        super().__init__(f"{path}: {what}. {remedy}")


class GateFailed(ProfpipeError):
    """A bound that the user set (``compare --gate``) was crossed."""

    exit_code = GATE_FAILED


class Interrupted(ProfpipeError):
    """The user stopped the run. What was done until then is stored, and the report is still written."""

    exit_code = INTERRUPTED


def of_the_system(error: OSError) -> str:
    """What the operating system refused, where, and what to do about it."""
    # A library's own words for a full disk have no strerror.
    what = (os.strerror(error.errno) if error.errno else "") or str(error) or type(error).__name__
    remedies = {
        errno.ENOSPC: "Free some space; `profpipe resume` then goes on with a run that had begun.",
        errno.EDQUOT: "Free some space; `profpipe resume` then goes on with a run that had begun.",
        errno.EFBIG: "Raise the limit (ulimit -f); `profpipe resume` then goes on with a run that had begun.",
        errno.EACCES: "Choose a folder that you may write to: --out DIR.",
        errno.EROFS: "Choose a folder that you may write to: --out DIR.",
        errno.EEXIST: "Choose another name: --out DIR.",
        errno.ENOTDIR: "Choose a folder: --out DIR.",
    }
    where = f"{os.fspath(error.filename)!s}: " if isinstance(error.filename, (str, os.PathLike)) else ""
    return f"{where}{what}. {remedies.get(error.errno or 0, '--debug shows where.')}"


def lacks_room(text: str) -> bool:
    """Whether ``text`` says that something could not be written for want of room: done again, it may well succeed."""
    return bool(_TELLS_NO_ROOM.search(text))


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """``Did you mean 'seqlen'?``, or the list of what is known where nothing is close."""
    known = sorted(set(known))
    if close := difflib.get_close_matches(word, known, n=1, cutoff=0.6):
        return f"Did you mean '{close[0]}'?"
    # Short words ("b") are below any cutoff, so the whole choice is shown.
    return f"Known: {', '.join(known)}." if known else ""


def one_line(error: BaseException) -> str:
    """An exception's kind and what it says, in a line of a report."""
    kind, text = type(error).__name__, words(error)
    return kind if text == kind else f"{kind}: {text}"


def words(error: BaseException) -> str:
    """What an exception says, in a line; its kind where it says nothing."""
    return " ".join(str(error).split())[:300] or type(error).__name__
