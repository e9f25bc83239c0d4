"""A profiler that, like nsys, runs its workload in a separate session and writes its report only at the very end.

fake_nsys.py profile REPORT WORKLOAD...      fake_nsys.py export REPORT TRACE
"""

import json
import subprocess
import sys
from pathlib import Path


def main(verb, report, *rest):
    return profile(report, rest) if verb == "profile" else export(report, Path(rest[0]))


def profile(report, workload):
    process = subprocess.Popen(workload, start_new_session=True)
    returncode = process.wait()
    spec = json.loads(Path(workload[-1]).read_text(encoding="utf-8"))
    report.write_text(json.dumps({case["id"]: 10.0 * case["params"]["n"] for case in spec["cases"]}), encoding="utf-8")
    return returncode


def export(report, trace):
    from fake_profiler import chrome_trace

    chrome_trace(trace, json.loads(report.read_text(encoding="utf-8")))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:]))
