"""Find out whether the kernel killed a process because the host, or the container, ran out of memory.

The kernel counts the kills of its OOM killer: for our control group (Linux's cgroup-v2.rst, ``memory.events``; v1's
``memory.oom_control``) and for the whole machine (``/proc/vmstat``). If the count rose while a process died of SIGKILL,
host memory is the reason. Otherwise it is a guess, and the text says so.
"""

from __future__ import annotations

from pathlib import Path

from profpipe.job import Cause, Outcome, Status
from profpipe.runner import failure_reasons

_ROOT = Path("/")


def count_kills(root: Path = _ROOT) -> int | None:
    """Return how many processes the OOM killer has killed so far; None where no file has the count."""
    counts = (_read_count(path) for path in (*_cgroup_files(root), root / "proc/vmstat"))
    return next((count for count in counts if count is not None), None)


def explain_sigkill(returncode: int | None, kills_before: int | None, root: Path = _ROOT) -> Outcome | None:
    """Return the outcome of a process that a SIGKILL from outside ended; None for any other end."""
    if not failure_reasons.is_sigkill(returncode):
        return None
    now = count_kills(root)
    if kills_before is not None and now is not None and now > kills_before:
        known = "killed by SIGKILL: out of host memory, by the kernel's count of such kills"
        return Outcome(Status.OOM, Cause.HOST_MEMORY, known)
    return Outcome(Status.CRASHED, Cause.SIGKILL, "killed by SIGKILL, perhaps out of host memory")


def _cgroup_files(root: Path) -> list[Path]:
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if not controllers:
            found.append(root / "sys/fs/cgroup" / group.lstrip("/") / "memory.events")
        elif "memory" in controllers.split(","):
            found.append(root / "sys/fs/cgroup/memory" / group.lstrip("/") / "memory.oom_control")
    return found


def _read_count(path: Path) -> int | None:
    try:
        words = [line.split() for line in path.read_text(encoding="utf-8").splitlines()]
    except OSError:
        return None
    return next((int(pair[1]) for pair in words if pair[:1] == ["oom_kill"]), None)
