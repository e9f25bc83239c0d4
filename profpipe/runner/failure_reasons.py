"""Describe in one line why a process failed: from its exit code, its missing files and its output."""

from __future__ import annotations

import errno
import os
import re
import signal
from pathlib import Path

from profpipe.errors import UNWRITTEN, is_disk_full

_ERROR_WORDS = re.compile(
    r"error|exception|fail|fatal|abort|denied|cannot|unable|no such|not found|illegal|unrecogni", re.IGNORECASE
)
_IMPORTER = re.compile(r"Importer error status|QDSTRM")
#: torchrun's report of the process that failed first, and the first line that its agent writes then.
_FIRST_FAILURE = re.compile(r"Root Cause \(first observed failure\):.*?rank +: (\d+).*?exitcode +: (-?\d+)", re.DOTALL)
_RANK_PREFIX = re.compile(r"^\[rank\d+\]: ?", re.MULTILINE)
_AGENT = re.compile(r"^.*torch/distributed/elastic/.*$", re.MULTILINE)
#: Lines that never explain a failure: nsys's progress bars and headings, the runner's header lines, Python's pointers
#: into a traceback, torchrun's lines of stars and its advice, Kineto's log of torch.profiler
#: (``USDT:2026-11-20 11:19:06 ...``), and libtorch's advice and frames below a CUDA error (c10/cuda/CUDAException.cpp).
_NOISE = re.compile(
    r"^(?:USDT|STAGE|INFO|VERBOSE):\d{4}-"
    r"|^[*=-]+$|^Setting OMP_NUM_THREADS environment variable"
    r"|^\[\d+/\d+\] \[|^Generat(ed|ing)\b|^\$ |^Traceback|^File \"|^[\^~ ]+$|^Processing events"
    r"|^frame #\d+: |^Exception raised from .* \(most recent call first\):|^CUDA kernel errors might be asynchronously"
    r"|^Search for `cuda\w+' in |^For debugging consider passing |^Device-side assertions? |^Compile with `TORCH_"
)
#: What NCCL's watchdog puts before the error, which libstdc++ prints when it ends the process.
_WATCHDOG_PREFIX = re.compile(r"^what\(\): +\[PG ID .* terminated with exception: ")
_MAX_LENGTH = 240


def describe_exit(returncode: int, log: str) -> str:
    """Return ``killed by SIGSEGV`` or ``exit code 3``, and the last line of ``log`` that names an error.

    Of several processes the first failure counts (``rank 1 was killed by SIGSEGV``), for torchrun ends the others.
    """
    first = first_failure(log)
    if first is None:
        return _with_error_line(describe_returncode(returncode), log)
    rank, code = first
    before = _AGENT.split(log, maxsplit=1)[0]
    # The other ranks report that they lost this one. torch puts the rank before an exception that nothing caught.
    lines = [line for line in before.splitlines() if line.startswith(f"[rank{rank}]") or not _RANK_PREFIX.match(line)]
    name = signal_name(code)
    end = f"was killed by {name}" if name else f"ended with exit code {code}"
    return _with_error_line(f"rank {rank} {end}", _RANK_PREFIX.sub("", "\n".join(lines)))


def first_failure(log: str) -> tuple[int, int] | None:
    """Return rank and exit code of the process that failed first, as torchrun reports it."""
    found = _FIRST_FAILURE.search(log)
    return (int(found[1]), int(found[2])) if found else None


def describe_missing_file(missing: Path, log: str) -> str:
    """Explain why the process did not make ``missing``.

    nsys (2022.4 to 2025.3) ends with the application's exit code in each of these cases.
    """
    if found := re.search(r"^profpipe: (nothing was recorded: .+?)\.?$", log, re.MULTILINE):
        return found[1]
    if "Importer error status" in log or "skipping importation of the QDSTRM" in log:
        return _with_error_line(f"nsys could not convert its recording to {missing.name}", log, _IMPORTER)
    if leftover := sorted(missing.parent.glob(f"{missing.stem}*.qdstrm")):
        return f"nsys left {leftover[0].name} unconverted instead of {missing.name}"
    if elsewhere := [path for path in generated_files(log) if path != missing]:
        return _with_error_line(f"nsys wrote {elsewhere[0]} instead of {missing.name}", log)
    return _with_error_line(f"{missing.name} was not made", log)


def generated_files(log: str) -> list[Path]:
    """Return the files that nsys lists below its last line ``Generated:``."""
    _, found, after = log.rpartition("Generated:")
    return [Path(line) for line in _lines(after) if line.startswith("/")] if found else []


def describe_returncode(returncode: int) -> str:
    name = signal_name(returncode)
    return f"killed by {name}" if name else f"exit code {returncode}"


def signal_name(returncode: int) -> str | None:
    """Return the signal that ended a process. Popen gives it as a negative code, nsys and the shell as 128 + signal."""
    try:
        return signal.Signals(-returncode if returncode < 0 else returncode - 128).name
    except ValueError:
        return None


def is_sigkill(returncode: int | None) -> bool:
    return signal_name(returncode or 0) == "SIGKILL"


def describe_disk_full(returncode: int, log: str) -> str:
    """Return how the process ended and its line about a full disk; empty where the disk was not the reason."""
    is_too_large = signal_name(returncode) == "SIGXFSZ"
    if returncode != UNWRITTEN and not is_too_large and not is_disk_full(log):
        return ""
    line = next((line for line in reversed(_lines(log)) if is_disk_full(line)), "")
    line = line if 0 < len(line) <= _MAX_LENGTH else os.strerror(errno.EFBIG if is_too_large else errno.ENOSPC)
    return f"{describe_returncode(returncode)}: {line}"


def last_error_line(log: str, words: re.Pattern[str] = _ERROR_WORDS) -> str:
    """Return the last line with one of ``words``, else the last line."""
    lines = [line for line in _lines(log) if not _NOISE.search(line)]
    line = next((line for line in reversed(lines) if words.search(line)), lines[-1] if lines else "")
    line = _WATCHDOG_PREFIX.sub("", line)
    return line if len(line) <= _MAX_LENGTH else line[: _MAX_LENGTH - 3] + "..."


def _with_error_line(text: str, log: str, words: re.Pattern[str] = _ERROR_WORDS) -> str:
    line = last_error_line(log, words)
    return f"{text}: {line}" if line else text


def _lines(log: str) -> list[str]:
    # A progress bar overwrites itself with carriage returns, and colours its text.
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", log)
    return [line for line in (line.strip() for line in re.split(r"[\r\n]+", text)) if line]
