"""How far profpipe's times are from those of Triton's `do_bench`, and from themselves in separate runs. Needs a GPU.

    python benchmarks/timing.py [--impl fa2] [--seqlens N,N,...] [--runs 10]

First, in one process and for forward and forward+backward, batch 2, 16 heads, head dim 128: profpipe's median before
and after the median of `do_bench`, which flushes the same cache and queues no call ahead; the nearer of the two counts,
as the GPU drifts between them. Then one case in separate runs of `profpipe run -p plain`: the spread of its medians,
and the marks that it carried.
"""

from __future__ import annotations

import argparse
import csv
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from profpipe import load, timing  # noqa: E402

FIXED = {"batch": 2, "heads": 16, "head_dim": 128, "dtype": "bf16"}


def main() -> None:
    args = arguments()
    print("impl       mode     seqlen      profpipe us  do_bench us  before %  after %  samples  marks")
    for mode in ("fwd", "fwd_bwd"):
        for seqlen in map(int, args.seqlens.split(",")):
            beside_do_bench(args.impl, mode, seqlen)
    if args.runs:
        separate_runs(args.impl, args.runs)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--impl", default="fa2")
    parser.add_argument("--seqlens", default="4096,8192,16384,32768,65536")
    parser.add_argument("--runs", type=int, default=10)
    return parser.parse_args()


def beside_do_bench(impl: str, mode: str, seqlen: int) -> None:
    import torch
    from triton.testing import do_bench

    attention = load.module(ROOT / "workloads" / "attention.py")
    call = attention.build({**FIXED, "impl": impl, "mode": mode, "seqlen": seqlen})
    timing.settle(call, device="cuda", least=3, budget_s=1.0)
    before = sample(call)
    beside_ns = do_bench(call, warmup=50, rep=1000, return_mode="median") * 1e6
    after = sample(call)
    differences = [100 * (statistics.median(samples.values_ns) / beside_ns - 1) for samples in (before, after)]
    median_us = statistics.median(before.values_ns) / 1e3
    told = f"{differences[0]:+8.2f} {differences[1]:+8.2f} {len(before.values_ns):8}  {', '.join(before.flags)}"
    print(f"{impl:10} {mode:8} {seqlen:6} {median_us:16.1f} {beside_ns / 1e3:12.1f} {told}", flush=True)
    del call
    gc.collect()
    torch.cuda.empty_cache()


def sample(call: Callable[[], object]) -> timing.Samples:
    return timing.sample(
        call, device="cuda", rule=timing.Rule(), range_name="benchmark", annotate=lambda name: nullcontext()
    )


def separate_runs(impl: str, runs: int) -> None:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    chosen = {"impl": impl, "seqlen": 4096, "batch": 2, "mode": "fwd"}
    sets = [word for name, value in chosen.items() for word in ("--set", f"{name}={value}")]
    sets += ["--set", "head_dim=128"]
    medians, marks = [], []
    for _ in range(runs):
        with tempfile.TemporaryDirectory(prefix="profpipe-timing-") as out:
            command = [
                sys.executable,
                "-m",
                "profpipe",
                "run",
                str(ROOT / "pipeline.yaml"),
                "-p",
                "plain",
                "--out",
                out,
            ]
            subprocess.run([*command, *sets], env={**os.environ, "PYTHONPATH": path}, capture_output=True, check=True)
            with Path(out, "latest", "metrics.csv").open(encoding="utf-8") as rows:
                medians += [float(row["value"]) / 1e3 for row in csv.DictReader(rows) if row["metric"] == "time"]
            with Path(out, "latest", "cases.csv").open(encoding="utf-8") as rows:
                marks += [json.loads(row["flags"]) for row in csv.DictReader(rows)]
    spread = 100 * (max(medians) - min(medians)) / statistics.median(medians)
    print(f"\n{impl} forward 4096 in {runs} separate runs: {', '.join(f'{median:.2f}' for median in medians)} us")
    print(
        f"spread {spread:.2f} % of the median; marks: {', '.join(sorted({m for own in marks for m in own})) or 'none'}"
    )


if __name__ == "__main__":
    main()
