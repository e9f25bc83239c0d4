"""Whether the kernel killed a process because the host, or the container, ran out of memory.

The kernel counts what its OOM killer kills: for our control group (Linux's cgroup-v2.rst, ``memory.events``; v1's
``memory.oom_control``), and for the whole machine in ``/proc/vmstat``. A count that rose while a process died of
SIGKILL is taken for the reason. Otherwise it stays a guess, and is worded as one.
"""

from __future__ import annotations

from pathlib import Path

from profpipe.running import reasons

_ROOT = Path("/")


def kills(root: Path = _ROOT) -> int | None:
    """How many processes the kernel has killed for want of memory so far; None where nothing says so."""
    for path in (*_of_our_group(root), root / "proc/vmstat"):
        count = _count(path)
        if count is not None:
            return count
    return None


def fate(returncode: int | None, kills_before: int | None, root: Path = _ROOT) -> tuple[str, str] | None:
    """(status, reason) for a process that died of a SIGKILL that was not ours; None for any other end."""
    if returncode is None or reasons.killed_by(returncode) != "SIGKILL":
        return None
    now = kills(root)
    if kills_before is not None and now is not None and now > kills_before:
        return "oom", "killed by SIGKILL: out of host memory, by the kernel's count of such kills"
    return "crashed", "killed by SIGKILL, perhaps out of host memory"


def _of_our_group(root: Path) -> list[Path]:
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


def _count(path: Path) -> int | None:
    try:
        words = [line.split() for line in path.read_text(encoding="utf-8").splitlines()]
    except OSError:
        return None
    return next((int(pair[1]) for pair in words if pair[:1] == ["oom_kill"]), None)
