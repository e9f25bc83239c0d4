"""Recording with a real nsys, outside profpipe: as its users do it by hand."""

from __future__ import annotations

import subprocess
from pathlib import Path

#: How often nsys 2022.4 may lose its own agent: on a busy machine it looks for that process before it is there.
_STARTS = 8


def record(nsys: Path, report: Path, *program: object) -> None:
    """Leaves in ``report`` the NVTX ranges of ``program`` (argv)."""
    profile = [nsys, "profile", "-t", "nvtx", "-s", "none", "--cpuctxsw=none", "-f", "true", "-o", report, *program]
    for _ in range(_STARTS):
        done = subprocess.run(list(map(str, profile)), capture_output=True, text=True, timeout=120)
        if "ProcessWaiterImpl" not in done.stderr:
            break
    assert done.returncode == 0, done.stdout + done.stderr
