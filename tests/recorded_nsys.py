"""An nsys for machines without a GPU: it runs the workload, and exports a recording of an H200 in the cases' names.

The variable IMPL of a side chooses the attention implementation of the recording. FAILS makes nsys fail. WAITS is the
path of a file: nsys waits until the file exists. RECORDING names a recorded loop, for a command.
"""

import gzip
import json
import os
import shlex
import stat
import subprocess
import sys
import time
from pathlib import Path

LOOPS = Path(__file__).parent / "data" / "nsys-2025.3.1" / "loops"


def install(folder):
    """Write the program ``nsys`` into ``folder``, and return the folder."""
    folder.mkdir()
    program = folder / "nsys"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {shlex.quote(__file__)} "$@"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return folder


def main(argv):
    if argv == ["--version"]:
        print("NVIDIA Nsight Systems version 2025.3.1.90-253135822126v0")
        return 0
    output = Path(argv[argv.index("-o") + 1])
    return profile(output, argv[argv.index("-o") + 2 :]) if argv[0] == "profile" else export(output, Path(argv[-1]))


def profile(report, workload):
    if "FAILS" in os.environ:
        print("the driver refused")
        return 3
    while "WAITS" in os.environ and not Path(os.environ["WAITS"]).exists():
        time.sleep(0.05)
    returncode = subprocess.run(workload, check=False).returncode
    cases = [] if "RECORDING" in os.environ else json.loads(Path(workload[-1]).read_text())["cases"]
    report.write_text(json.dumps([case["id"] for case in cases]))
    return returncode


def export(target, report):
    import recorded_pairs

    if name := os.environ.get("RECORDING"):
        target.write_bytes(gzip.decompress((LOOPS / f"{name}.sqlite.gz").read_bytes()))
        return 0
    recorded_pairs.export(target, os.environ.get("IMPL", "flash"), cases=json.loads(report.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
