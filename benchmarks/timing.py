"""How far profpipe's times are from those of Triton's `do_bench`, and from themselves in separate runs. Needs a GPU.

    python benchmarks/timing.py [--impl fa2] [--seqlens N,N,...] [--rounds 5] [--runs 10]

First one case in separate runs of `profpipe run -p plain`: the spread of its medians, and the marks that it carried.
Then, in one process and for forward and forward+backward, batch 2, 16 heads, head dim 128: the medians of profpipe and
of `do_bench`, each with its own defaults. The two take turns over the rounds, so that both meet the same clocks.
"""

from __future__ import annotations

import argparse
import csv
import gc
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from profpipe import load, timing  # noqa: E402

FIXED = {"batch": 2, "heads": 16, "head_dim": 128, "dtype": "bf16"}


def main() -> None:
    args = arguments()
    if args.runs:  # first, while this process has no context on the GPU and is no other process to them
        separate_runs(args.impl, args.runs)
    print("\nimpl       mode     seqlen  profpipe us  do_bench us  difference %  samples of each  marks")
    for mode in ("fwd", "fwd_bwd"):
        for seqlen in map(int, args.seqlens.split(",")):
            beside_do_bench(args.impl, mode, seqlen, args.rounds)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--impl", default="fa2")
    parser.add_argument("--seqlens", default="4096,8192,16384,32768,65536")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--runs", type=int, default=10)
    return parser.parse_args()


def beside_do_bench(impl: str, mode: str, seqlen: int, rounds: int) -> None:
    import torch
    from triton.testing import do_bench

    attention = load.module(ROOT / "workloads" / "attention.py")
    call = attention.build({**FIXED, "impl": impl, "mode": mode, "seqlen": seqlen})
    own_ns: list[float] = []
    beside_ns: list[float] = []
    flags: set[str] = set()
    for number in range(1, rounds + 1):
        timing.settle(call, device="cuda", least=3, budget_s=1.0)
        samples = sample(call, timing.Rule().of_round(number, rounds, len(own_ns)), own_ns)
        own_ns += samples.values_ns
        flags |= set(samples.flags)
        beside_ns += [ms * 1e6 for ms in do_bench(call, return_mode="all")]
    own_us, beside_us = (statistics.median(values) / 1e3 for values in (own_ns, beside_ns))
    times = f"{own_us:12.1f} {beside_us:12.1f} {100 * (own_us / beside_us - 1):+13.2f}"
    counts = f"{len(own_ns):9} {len(beside_ns):6}"
    print(f"{impl:10} {mode:8} {seqlen:6} {times} {counts}  {', '.join(sorted(flags))}", flush=True)
    del call
    gc.collect()
    torch.cuda.empty_cache()


def sample(call: Callable[[], object], rule: timing.Rule, earlier: Sequence[float]) -> timing.Samples:
    return timing.sample(
        call,
        device="cuda",
        rule=rule,
        earlier=earlier,
        range_name="benchmark",
        annotate=lambda name: nullcontext(),
    )


def separate_runs(impl: str, runs: int) -> None:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    chosen = {"impl": impl, "seqlen": 4096, "batch": 2, "mode": "fwd"}
    sets = [word for name, value in chosen.items() for word in ("--set", f"{name}={value}")]
    command = [sys.executable, "-m", "profpipe", "run", str(ROOT / "pipeline.yaml"), "-p", "plain"]
    command += [*sets, "--set", "head_dim=128"]
    times: dict[bool, list[float]] = {True: [], False: []}
    print(f"{impl} forward 4096 in {runs} separate runs\n      us  95 % interval %  SM MHz: median, lowest  marks")
    for _ in range(runs):
        with tempfile.TemporaryDirectory(prefix="profpipe-timing-") as out:
            environment = {**os.environ, "PYTHONPATH": path}
            subprocess.run([*command, "--out", out], env=environment, capture_output=True, check=True)
            with Path(out, "latest", "metrics.csv").open(encoding="utf-8") as rows:
                metrics = {row["metric"]: row for row in csv.DictReader(rows) if not row["subject"]}
            with Path(out, "latest", "cases.csv").open(encoding="utf-8") as rows:
                (marks,) = (json.loads(row["flags"]) for row in csv.DictReader(rows))
        time, low, high = (float(metrics["time"][name]) / 1e3 for name in ("value", "ci_low", "ci_high"))
        clocks = ", ".join(f"{float(metrics[name]['value']) / 1e6:.0f}" for name in ("sm_clock", "sm_clock_min"))
        interval = 100 * max(time - low, high - time) / time
        print(f"{time:8.2f} {interval:16.2f}  {clocks:22}  {', '.join(marks)}", flush=True)
        times[bool(marks)].append(time)
    every = times[True] + times[False]
    print(
        f"spread of all {spread(every):.2f} %, of the {len(times[False])} without a mark {spread(times[False]):.2f} %"
    )


def spread(times: Sequence[float]) -> float:
    """From the least to the most, in percent of the median; of no times not a number."""
    return 100 * (max(times) - min(times)) / statistics.median(times) if times else math.nan


if __name__ == "__main__":
    main()
