"""Why a process failed, in one line: from how it ended, from the files it did not make, and from what it printed."""

from __future__ import annotations

import errno
import os
import re
import signal
from pathlib import Path

from profpipe.errors import UNWRITTEN, lacks_room

_TELLING = re.compile(
    r"error|exception|fail|fatal|abort|denied|cannot|unable|no such|not found|illegal|unrecogni", re.IGNORECASE
)
_IMPORTER = re.compile(r"Importer error status|QDSTRM")
#: What torchrun says when one of its processes has failed, and the first line that its agent writes then.
_FIRST_FAILURE = re.compile(r"Root Cause \(first observed failure\):.*?rank +: (\d+).*?exitcode +: (-?\d+)", re.DOTALL)
_OF_A_RANK = re.compile(r"^\[rank\d+\]: ?", re.MULTILINE)
_AGENT = re.compile(r"^.*torch/distributed/elastic/.*$", re.MULTILINE)
#: nsys's progress bars and headings, the runner's own header lines, Python's pointers into a traceback, lines of stars
#: or dashes and what torchrun says between two of them before it starts its processes, what torch.profiler's Kineto
#: logs of its own progress (``USDT:2026-11-20 11:19:06 ...``), and what libtorch writes below a CUDA error: advice
#: (c10/cuda/CUDAException.cpp), where it was raised and the frames.
_NOISE = re.compile(
    r"^(?:USDT|STAGE|INFO|VERBOSE):\d{4}-"
    r"|^[*=-]+$|^Setting OMP_NUM_THREADS environment variable"
    r"|^\[\d+/\d+\] \[|^Generat(ed|ing)\b|^\$ |^Traceback|^File \"|^[\^~ ]+$|^Processing events"
    r"|^frame #\d+: |^Exception raised from .* \(most recent call first\):|^CUDA kernel errors might be asynchronously"
    r"|^Search for `cuda\w+' in |^For debugging consider passing |^Device-side assertions? |^Compile with `TORCH_"
)
#: What NCCL's watchdog puts before the error that it found, which libstdc++ prints as it ends the process.
_FOUND_BY = re.compile(r"^what\(\): +\[PG ID .* terminated with exception: ")
_LONGEST = 240


def of_exit(returncode: int, log: str) -> str:
    """``killed by SIGSEGV`` or ``exit code 3``, and the last line that tells something.

    Of several processes it is the one that failed first: ``rank 1 killed by SIGSEGV``. torchrun ends the others.
    """
    if first := first_failure(log):
        rank, code = first
        before = _AGENT.split(log, maxsplit=1)[0]
        # What the others say is that they lost it. torch puts the rank before an exception that nobody caught.
        own = [line for line in before.splitlines() if line.startswith(f"[rank{rank}]") or not _OF_A_RANK.match(line)]
        return with_line(f"rank {rank} {_died(code)}", _OF_A_RANK.sub("", "\n".join(own)))
    return with_line(how(returncode), log)


def first_failure(log: str) -> tuple[int, int] | None:
    """Rank and exit code of the process that failed first, as torchrun reports it; None where it reports none."""
    found = _FIRST_FAILURE.search(log)
    return (int(found[1]), int(found[2])) if found else None


def of_missing(missing: Path, log: str) -> str:
    """Why the file that a process should have made is not there, as far as its output tells.

    nsys (2022.4 to 2025.3) ends with the application's exit code in each of these cases.
    """
    if "Importer error status" in log or "skipping importation of the QDSTRM" in log:
        return with_line(f"nsys could not convert its recording to {missing.name}", log, _IMPORTER)
    if leftover := sorted(missing.parent.glob(f"{missing.stem}*.qdstrm")):
        return f"nsys left {leftover[0].name} unconverted instead of {missing.name}"
    if elsewhere := [path for path in generated(log) if path != missing]:
        return with_line(f"nsys wrote {elsewhere[0]} instead of {missing.name}", log)
    return with_line(f"{missing.name} was not made", log)


def generated(log: str) -> list[Path]:
    """The files that nsys names below its last line ``Generated:``; empty when it made none."""
    _, found, after = log.rpartition("Generated:")
    return [Path(line) for line in _lines(after) if line.startswith("/")] if found else []


def how(returncode: int) -> str:
    name = killed_by(returncode)
    return f"killed by {name}" if name else f"exit code {returncode}"


def _died(returncode: int) -> str:
    name = killed_by(returncode)
    return f"was killed by {name}" if name else f"ended with exit code {returncode}"


def killed_by(returncode: int) -> str | None:
    """The signal's name. A negative code is Popen's for a signal, 128 + signal is nsys's and the shell's."""
    try:
        return signal.Signals(-returncode if returncode < 0 else returncode - 128).name
    except ValueError:
        return None


def with_line(what: str, log: str, telling: re.Pattern[str] = _TELLING) -> str:
    line = last_line(log, telling)
    return f"{what}: {line}" if line else what


def of_no_room(returncode: int, log: str) -> str | None:
    """Where a process says that it could not write for want of room: how it ended, and in what words it says so."""
    if returncode != UNWRITTEN and not lacks_room(log):
        return None
    said = next((line for line in reversed(_lines(log)) if lacks_room(line)), os.strerror(errno.ENOSPC))
    return f"{how(returncode)}: {said if len(said) <= _LONGEST else os.strerror(errno.ENOSPC)}"


def last_line(log: str, telling: re.Pattern[str] = _TELLING) -> str:
    """The last line that speaks of a failure, or else the last line at all."""
    lines = [line for line in _lines(log) if not _NOISE.search(line)]
    said = next((line for line in reversed(lines) if telling.search(line)), lines[-1] if lines else "")
    said = _FOUND_BY.sub("", said)
    return said if len(said) <= _LONGEST else said[: _LONGEST - 3] + "..."


def _lines(log: str) -> list[str]:
    """A progress bar overwrites itself with carriage returns, and colours its text."""
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", log)
    return [line for line in (line.strip() for line in re.split(r"[\r\n]+", text)) if line]
