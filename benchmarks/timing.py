"""Compares times of profpipe with those of Triton's `do_bench`, and with each other over separate runs. Needs a GPU.

    python benchmarks/timing.py [--impl fa2] [--seqlens N,N,...] [--rounds 5] [--runs 10]

First runs one case in separate runs of `profpipe run -p plain`: the spread of its medians, and its flags. Then, in
one process, forward and forward+backward with batch 2, 16 heads and head dim 128: the medians of profpipe and of
`do_bench`, each with its defaults. The two take turns over the rounds, so that both meet the same clocks.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import statistics
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import profpipe_run

from profpipe import plugins
from profpipe.measure import sampling
from profpipe.results import store

FIXED = {"batch": 2, "heads": 16, "head_dim": 128, "dtype": "bf16"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--impl", default="fa2")
    parser.add_argument("--seqlens", default="4096,8192,16384,32768,65536")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--runs", type=int, default=10)
    args = parser.parse_args()
    if args.runs:  # first, because a context of this process on the GPU would set the flag other_process
        separate_runs(args.impl, args.runs)
    print("\nimpl       mode     seqlen  profpipe us  do_bench us  difference %  samples of each  flags")
    for mode in ("fwd", "fwd_bwd"):
        for seqlen in map(int, args.seqlens.split(",")):
            compare_with_do_bench(args.impl, mode, seqlen, args.rounds)


def compare_with_do_bench(impl: str, mode: str, seqlen: int, rounds: int) -> None:
    import torch
    from triton.testing import do_bench

    attention = plugins.load_module(profpipe_run.ROOT / "workloads" / "attention.py")
    call = attention.build({**FIXED, "impl": impl, "mode": mode, "seqlen": seqlen})
    profpipe_ns: list[float] = []
    do_bench_ns: list[float] = []
    flags: set[str] = set()
    for number in range(1, rounds + 1):
        sampling.warm_up_until_stable(call, device="cuda", min_calls=3, budget_s=1.0)
        samples = sampling.sample(
            call,
            device="cuda",
            rule=sampling.StoppingRule().limit_round(number, rounds, len(profpipe_ns)),
            earlier=profpipe_ns,
            range_name="benchmark",
            annotate=lambda name: nullcontext(),
        )
        profpipe_ns += samples.values_ns
        flags |= set(samples.flags)
        do_bench_ns += [ms * 1e6 for ms in do_bench(call, return_mode="all")]
    profpipe_us, do_bench_us = (statistics.median(values) / 1e3 for values in (profpipe_ns, do_bench_ns))
    times = f"{profpipe_us:12.1f} {do_bench_us:12.1f} {100 * (profpipe_us / do_bench_us - 1):+13.2f}"
    counts = f"{len(profpipe_ns):9} {len(do_bench_ns):6}"
    print(f"{impl:10} {mode:8} {seqlen:6} {times} {counts}  {', '.join(sorted(flags))}", flush=True)
    del call
    gc.collect()
    torch.cuda.empty_cache()


def separate_runs(impl: str, runs: int) -> None:
    chosen = {"impl": impl, "seqlen": 4096, "batch": 2, "mode": "fwd", "head_dim": 128}
    options = ["-p", "plain", *profpipe_run.sets(chosen)]
    times: dict[bool, list[float]] = {True: [], False: []}
    print(f"{impl} forward 4096 in {runs} separate runs\n      us  95 % interval %  SM MHz: median, lowest  flags")
    for _ in range(runs):
        with tempfile.TemporaryDirectory(prefix="profpipe-timing-") as out:
            tables, _ = store.load(profpipe_run.run(profpipe_run.ROOT / "pipeline.yaml", Path(out), options))
        metrics = tables.metrics[tables.metrics["subject"] == ""].set_index("metric")
        (flags,) = map(json.loads, tables.cases["flags"])
        time, low, high = (metrics.loc["time", ["value", "ci_low", "ci_high"]] / 1e3).astype(float)
        clocks = ", ".join(f"{value / 1e6:.0f}" for value in metrics.loc[["sm_clock", "sm_clock_min"], "value"])
        interval = 100 * max(time - low, high - time) / time
        print(f"{time:8.2f} {interval:16.2f}  {clocks:22}  {', '.join(flags)}", flush=True)
        times[bool(flags)].append(time)
    every = times[True] + times[False]
    print(
        f"spread of all {spread(every):.2f} %, of the {len(times[False])} without a flag {spread(times[False]):.2f} %"
    )


def spread(times: Sequence[float]) -> float:
    """Return the difference of largest and smallest, in percent of the median; NaN without times."""
    return 100 * (max(times) - min(times)) / statistics.median(times) if times else math.nan


if __name__ == "__main__":
    main()
