"""What ncu adds to the time of a launch: kernels that count clock cycles, under nsys and under ncu. Needs a GPU.

    python benchmarks/ncu_launch.py [--cycles N,N,...] [--repeats 30]

``torch.cuda._sleep`` is a kernel of one thread that reads the clock until so many cycles have passed: neither a cache
nor the load on the GPU changes its time, only the clock does. nsys has the mean of ``--repeats`` launches, ncu the time
of one. Where both tools ran at one clock, the difference is the same at each number of cycles.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import pandas as pd
import profpipe_run

WORKLOAD = """
import functools
import torch

PARAMS = {"cycles": 1000}


def build(params):
    return functools.partial(torch.cuda._sleep, int(params["cycles"]))
"""

PIPELINE = """
version: 1
name: ncu_launch
defaults: {{profilers: [nsys, ncu], warmup: 10, repeats: {repeats}, timeout_s: 300}}
workloads:
  spin:
    script: spin.py
    matrix: {{cycles: [{cycles}]}}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", default="500,5000,20000,50000,100000")
    parser.add_argument("--repeats", type=int, default=30)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="profpipe-ncu-launch-") as scratch:
        path = Path(scratch, "pipeline.yaml")
        path.write_text(PIPELINE.format(repeats=args.repeats, cycles=args.cycles), encoding="utf-8")
        Path(scratch, "spin.py").write_text(WORKLOAD, encoding="utf-8")
        means = times(profpipe_run.run(path, Path(scratch, "out"), ()))
    print("  cycles   nsys us    ncu us  ncu adds us")
    for cycles in map(int, args.cycles.split(",")):
        nsys, ncu = (means[f"cycles={cycles}", profiler] / 1e3 for profiler in ("nsys", "ncu"))
        print(f"{cycles:8} {nsys:9.3f} {ncu:9.3f} {ncu - nsys:12.3f}")


def times(run: Path) -> dict[tuple[str, str], float]:
    """Return the mean time of a launch of the spinning kernel in ns, by case and profiler."""
    kernels = pd.read_parquet(run / "kernels.parquet", columns=["case", "profiler", "kernel", "mean_ns"])
    spins = kernels[kernels["kernel"].str.contains("spin_kernel")]
    return {(row.case, row.profiler): float(row.mean_ns) for row in spins.itertuples()}


if __name__ == "__main__":
    main()
