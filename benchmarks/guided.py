"""What guided ncu saves on one training step: all kernels against the largest few, and whether their figures agree.

    python benchmarks/guided.py [--set KEY=VALUE]... [--top 3]

Needs a GPU with nsys and ncu. Both ways are whole runs of profpipe over one training step of a small decoder: nsys and
then ncu. Compared are the seconds of the ncu jobs, those of the kernels' own processes, and for each of the largest
kernels the figures that both ways have.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

PIPELINE = """
version: 1
name: guided
defaults: {profilers: [nsys, ncu], warmup: 2, repeats: 3, timeout_s: 550}
workloads:
  step:
    script: transformer_lm
    params: {size: custom, d_model: 512, d_ff: 2048, layers: 4, heads: 8, context: 512, batch: 4, what: train_step}
"""

#: ncu's figures that say how long a kernel took and what it did with the hardware.
FIGURES = {
    "gpu__time_duration.sum": "duration",
    "dram__bytes.sum": "DRAM bytes",
    "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed": "memory %",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": "SM %",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "occupancy %",
}


def main() -> None:
    args = arguments()
    with tempfile.TemporaryDirectory(prefix="profpipe-guided-") as scratch:
        path = Path(scratch, "pipeline.yaml")
        path.write_text(PIPELINE, encoding="utf-8")
        sets = [word for pair in args.set for word in ("--set", pair)]
        few = ["--set", "defaults.ncu.kernels=guided", "--set", f"defaults.ncu.top={args.top}"]
        guided = timed_run(path, Path(scratch, "guided"), [*sets, *few])
        whole = timed_run(path, Path(scratch, "all"), sets)
        seconds = {run: ncu_seconds(run) for run in (whole, guided)}
        print(f"ncu over all kernels: {seconds[whole]:.1f} s, {len(figures(whole))} kernels")
        print(
            f"guided: {seconds[guided]:.1f} s, {len(figures(guided))} kernels, {seconds[whole] / seconds[guided]:.1f}x"
        )
        compare(figures(whole), figures(guided))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--top", type=int, default=3)
    return parser.parse_args()


def timed_run(pipeline: Path, out: Path, options: Sequence[str]) -> Path:
    command = [sys.executable, "-m", "profpipe", "run", str(pipeline), "--out", str(out), *options]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, check=False)
    if done.returncode:
        sys.exit(done.stdout.decode(errors="replace") + done.stderr.decode(errors="replace"))
    return (out / "latest").resolve()


def ncu_seconds(run: Path) -> float:
    jobs = json.loads((run / "run.json").read_text(encoding="utf-8"))["jobs"]
    return sum(float(job["seconds"]) for job in jobs if job["profiler"] == "ncu")


def figures(run: Path) -> dict[str, dict[str, float]]:
    """By kernel: the figures of ncu, means over its launches as the table has them."""
    found: dict[str, dict[str, float]] = defaultdict(dict)
    with (run / "metrics.csv").open(encoding="utf-8") as rows:
        for row in csv.DictReader(rows):
            if row["profiler"] == "ncu" and row["subject"] and row["metric"] in FIGURES:
                found[row["subject"]][FIGURES[row["metric"]]] = float(row["value"])
    return found


def compare(whole: dict[str, dict[str, float]], guided: dict[str, dict[str, float]]) -> None:
    print("\nkernel: figure, over all kernels, guided, difference %")
    for kernel, own in guided.items():
        print(kernel[:100])
        for name, value in own.items():
            if other := whole.get(kernel, {}).get(name):
                print(f"    {name:12} {other:14.2f} {value:14.2f} {100 * (value / other - 1):+7.2f}")


if __name__ == "__main__":
    main()
