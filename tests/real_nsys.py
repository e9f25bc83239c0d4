"""Recording with a real nsys, outside profpipe: as its users do it by hand."""

import subprocess
import time

from profpipe.profilers.nsys import FALSE_START

_MAX_STARTS = 8


def record(nsys, report, *program):
    """Record the NVTX ranges of ``program`` (argv) in ``report``."""
    profile = [nsys, "profile", "-t", "nvtx", "-s", "none", "--cpuctxsw=none", "-f", "true", "-o", report, *program]
    for start in range(_MAX_STARTS):
        done = subprocess.run(list(map(str, profile)), capture_output=True, text=True, timeout=120)
        if not FALSE_START.search(done.stdout + done.stderr):
            break
        time.sleep(0.2 * start)
    assert done.returncode == 0, done.stdout + done.stderr
