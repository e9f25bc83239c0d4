"""Describe in one line why a process failed: from its exit code, its missing files, its output and the kernel's counts.

The kernel counts the kills of its OOM killer: for our control group (Linux's cgroup-v2.rst, ``memory.events``; v1's
``memory.oom_control``) and for the whole machine (``/proc/vmstat``). If the count rose while a process died of SIGKILL,
host memory is the reason. Otherwise it is a guess, and the text says so.
"""

from __future__ import annotations

import errno
import os
import re
import signal
from collections.abc import Sequence
from pathlib import Path

from profpipe.errors import UNWRITTEN, is_disk_full
from profpipe.job import Cause, Outcome, Status

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
#: As torch and CUDA write it.
_GPU_MEMORY = re.compile(
    r"OutOfMemoryError: [^.]*out of memory(?:\. Tried to allocate [\d.]+ \w+)?"
    r"(?:\. GPU \d+ has a total capacity of [\d.]+ \w+ of which [\d.]+ \w+ is free)?|CUDA error: out of memory"
)
#: What NCCL's watchdog puts before the error, which libstdc++ prints when it ends the process.
_WATCHDOG_PREFIX = re.compile(r"^what\(\): +\[PG ID .* terminated with exception: ")
_MAX_LENGTH = 240
#: Signals that end a program from outside, as a shell or a user does it. Others are errors of the program.
_STOPS = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGKILL", "SIGPIPE", "SIGALRM", "SIGUSR1", "SIGUSR2")
#: The command of coreutils, and its exit code where it ended the program.
_TIMEOUT, _TIMED_OUT = re.compile(r"\btimeout\b"), 124
_ROOT = Path("/")


def describe_exit(returncode: int, log: str) -> str:
    """Return ``killed by SIGSEGV`` or ``exit code 3``, and the last line of ``log`` that names an error.

    Of several processes the first failure counts (``rank 1 was killed by SIGSEGV``), for torchrun ends the others.
    """
    first = first_failure(log)
    if first is None:
        return _append_error_line(describe_returncode(returncode), log)
    rank, code = first
    before = _AGENT.split(log, maxsplit=1)[0]
    # The other ranks report that they lost this one. torch puts the rank before an exception that nothing caught.
    lines = [line for line in before.splitlines() if line.startswith(f"[rank{rank}]") or not _RANK_PREFIX.match(line)]
    name = signal_name(code)
    end = f"was killed by {name}" if name else f"ended with exit code {code}"
    return _append_error_line(f"rank {rank} {end}", _RANK_PREFIX.sub("", "\n".join(lines)))


def first_failure(log: str) -> tuple[int, int] | None:
    """Return rank and exit code of the process that failed first, as torchrun reports it."""
    match = _FIRST_FAILURE.search(log)
    return (int(match[1]), int(match[2])) if match else None


def describe_missing_file(missing: Path, log: str) -> str:
    """Explain why the process did not make ``missing``.

    nsys (2022.4 to 2025.3) ends with the application's exit code in each of these cases.
    """
    if match := re.fullmatch(r"hook\.\w+\.change\.(.+)", missing.name):
        return f"the change {match[1]} reached nothing in the program"
    if match := re.search(r"^profpipe: (nothing was recorded: .+?)\.?$", log, re.MULTILINE):
        return match[1]
    if "Importer error status" in log or "skipping importation of the QDSTRM" in log:
        return _append_error_line(f"nsys could not convert its recording to {missing.name}", log, _IMPORTER)
    if leftover := sorted(missing.parent.glob(f"{missing.stem.rstrip('*')}*.qdstrm")):
        return f"nsys left {leftover[0].name} unconverted instead of {missing.name}"
    if elsewhere := [path for path in generated_files(log) if path != missing]:
        return _append_error_line(f"nsys wrote {elsewhere[0]} instead of {missing.name}", log)
    return _append_error_line(f"{missing.name} was not made", log)


def generated_files(log: str) -> list[Path]:
    """Return the files that nsys lists below its last line ``Generated:``."""
    _, heading, after = log.rpartition("Generated:")
    return [Path(line) for line in _lines(after) if line.startswith("/")] if heading else []


def describe_gpu_memory(details: str) -> str:
    """Return ``details`` up to the amounts where they say that a GPU had no memory left; empty where they do not."""
    match = _GPU_MEMORY.search(details)
    return details[: match.end()] if match else ""


def describe_returncode(returncode: int) -> str:
    name = signal_name(returncode)
    return f"killed by {name}" if name else f"exit code {returncode}"


def signal_name(returncode: int) -> str | None:
    """Return the signal that ended a process. Popen gives it as a negative code, nsys and the shell as 128 + signal."""
    try:
        return signal.Signals(-returncode if returncode < 0 else returncode - 128).name
    except ValueError:
        return None


def ended_by(returncode: int | None, command: Sequence[str]) -> str:
    """Return what ended ``command`` from outside: ``SIGTERM``, or the limit of `timeout`; empty for any other end."""
    has_limit = any(_TIMEOUT.search(word) for word in command)
    name = signal_name(returncode or 0) or ""
    if has_limit and (returncode == _TIMED_OUT or name == "SIGKILL"):
        return "the limit of `timeout`"
    return name if name in _STOPS else ""


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


def _append_error_line(text: str, log: str, words: re.Pattern[str] = _ERROR_WORDS) -> str:
    line = last_error_line(log, words)
    return f"{text}: {line}" if line else text


def _lines(log: str) -> list[str]:
    # A progress bar overwrites itself with carriage returns, and colours its text.
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", log)
    return [line for line in (line.strip() for line in re.split(r"[\r\n]+", text)) if line]


# --- the OOM killer ---------------------------------------------------------------------------------------------------


def count_kills(root: Path = _ROOT) -> int | None:
    """Return how many processes the OOM killer has killed so far; None where no file has the count."""
    counts = (_read_count(path) for path in (*_cgroup_files(root), root / "proc/vmstat"))
    return next((count for count in counts if count is not None), None)


def explain_sigkill(returncode: int | None, kills_before: int | None, root: Path = _ROOT) -> Outcome | None:
    """Return the outcome of a process that a SIGKILL from outside ended; None for any other end."""
    if not is_sigkill(returncode):
        return None
    now = count_kills(root)
    if kills_before is not None and now is not None and now > kills_before:
        details = "killed by SIGKILL: out of host memory, by the kernel's count of such kills"
        return Outcome(Status.OOM, Cause.HOST_MEMORY, details)
    return Outcome(Status.CRASHED, Cause.SIGKILL, "killed by SIGKILL, perhaps out of host memory")


def _cgroup_files(root: Path) -> list[Path]:
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    files = []
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if not controllers:
            files.append(root / "sys/fs/cgroup" / group.lstrip("/") / "memory.events")
        elif "memory" in controllers.split(","):
            files.append(root / "sys/fs/cgroup/memory" / group.lstrip("/") / "memory.oom_control")
    return files


def _read_count(path: Path) -> int | None:
    try:
        words = [line.split() for line in path.read_text(encoding="utf-8").splitlines()]
    except OSError:
        return None
    return next((int(pair[1]) for pair in words if pair[:1] == ["oom_kill"]), None)
