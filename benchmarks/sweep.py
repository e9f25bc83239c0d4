"""Measures what one process for a whole sweep saves: the same cases with and without `isolate: true`.

    python benchmarks/sweep.py [-p PROFILER]... [--impls A,B,...] [--seqlens N,N,...] [--batches N,N] [--gpus N]

The default is sixty cases on a GPU, six implementations of attention at ten shapes, and fewer on a CPU, under plain
and, if it is on PATH, nsys. Wall times are those of the whole command `profpipe run`, from its start to SUMMARY.md. In
one process the sweep runs twice, and the second run counts: the first run on a new machine reads libraries from disk
and compiles kernels, which takes seconds. The measured times of both ways are compared as well, to show whether the
cases of a sweep disturb each other.

With ``--gpus N`` the other way is one process on each of N GPUs, and the ratio says how many times as fast that is.
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import profpipe_run

from profpipe.results import store

ON_GPU = {"impls": "sdpa_flash,sdpa_cudnn,sdpa_efficient,fa2,sage,xformers", "seqlens": "512,1024,2048,4096,8192"}
ON_CPU = {"impls": "sdpa_math,sdpa_flash", "seqlens": "64,128,256,512"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    defaults = ON_GPU if shutil.which("nvidia-smi") and importlib.util.find_spec("flash_attn") else ON_CPU
    parser.add_argument("-p", "--profiler", action="append", default=[])
    parser.add_argument("--impls", default=defaults["impls"])
    parser.add_argument("--seqlens", default=defaults["seqlens"])
    parser.add_argument("--batches", default="1,2")
    parser.add_argument("--gpus", help="compare one GPU with so many, in place of one process with many")
    args = parser.parse_args()
    other = ["--gpus", args.gpus] if args.gpus else ["--set", "isolate=true"]
    chosen = {"impl": args.impls, "seqlen": args.seqlens, "batch": args.batches}
    print("profiler cases  first s  one process s  other way s  ratio  time other way/swept: median, farthest")
    print("In brackets: seconds of the longest process.")
    for profiler in args.profiler or ["plain", *(["nsys"] if shutil.which("nsys") else [])]:
        with tempfile.TemporaryDirectory(prefix="profpipe-sweep-") as scratch:
            first_s, *_ = timed_run(Path(scratch, "first"), profiler, chosen, [])
            swept_s, swept_job_s, swept = timed_run(Path(scratch, "swept"), profiler, chosen, [])
            other_s, other_job_s, others = timed_run(Path(scratch, "other"), profiler, chosen, other)
        if swept.keys() != others.keys():
            sys.exit(f"the two ways have different successful cases: {sorted(swept.keys() ^ others.keys())}")
        ratios = [others[case] / swept[case] for case in swept]
        farthest = max(ratios, key=lambda ratio: abs(ratio - 1))
        apart = f"{statistics.median(ratios):.3f}, {farthest:.3f}"
        ratio = swept_s / other_s if args.gpus else other_s / swept_s
        ways = f"{swept_s:.1f} ({swept_job_s:.1f})", f"{other_s:.1f} ({other_job_s:.1f})"
        seconds = f"{first_s:8.1f} {ways[0]:>14} {ways[1]:>12} {ratio:6.2f}"
        print(f"{profiler:8} {len(swept):5} {seconds}  {apart}", flush=True)


def timed_run(
    out: Path, profiler: str, chosen: dict[str, str], options: Sequence[str]
) -> tuple[float, float, dict[str, float]]:
    """Return (wall seconds of the whole command, those of its longest job, ns per call of each successful case)."""
    words = ["-p", profiler, *profpipe_run.sets(chosen), *options]
    began = time.monotonic()
    # 1: some case failed, and is missing below.
    run = profpipe_run.run(profpipe_run.ROOT / "pipeline.yaml", out, words, allowed=(0, 1))
    seconds = time.monotonic() - began
    return seconds, max(job.seconds for job in store.load(run)[1].jobs), times(run)


def times(run: Path) -> dict[str, float]:
    """Return the median of the calls for plain, and the kernel time per call for a profiler."""
    tables, _ = store.load(run)
    ok = tables.cases.loc[tables.cases["status"] == "ok", "case"]
    metrics = tables.metrics[(tables.metrics["metric"] == "time") & (tables.metrics["subject"] == "")]
    if metrics["case"].isin(ok).any():
        found = metrics.set_index("case")["value"]
    else:
        whole = tables.ranges[tables.ranges["range"] == ""].set_index("case")
        found = whole["kernel_ns"].fillna(whole["wall_ns"]) / whole["instances"]
    return {str(case): float(value) for case, value in found.items() if case in set(ok)}


if __name__ == "__main__":
    main()
