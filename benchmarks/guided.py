"""What guided ncu saves on one training step: all kernels against the largest few, and whether their figures agree.

    python benchmarks/guided.py [--set KEY=VALUE]... [--top 3]

Needs a GPU with nsys and ncu. Both ways are whole runs of profpipe over one training step of a decoder of three layers:
nsys and then ncu. Compared are the seconds of the ncu jobs, those of the kernels' own processes, and for each kernel of
the guided run its figures with those of the same launches in the run over all kernels: the launch that was chosen, and
the mean over those that it stands for (of its grid, block and about its duration in nsys's capture, as guide.json
beside the report says). The latter is what the differences are from.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

import profpipe_run

from profpipe import plugins
from profpipe.ingest import ncu
from profpipe.ingest.ncu import Choice, Launch

PIPELINE = """
version: 1
name: guided
defaults: {profilers: [nsys, ncu], warmup: 2, repeats: 3, timeout_s: 550}
workloads:
  step:
    script: transformer_lm
    params:
      {size: custom, d_model: 1024, d_ff: 4096, layers: 3, heads: 16, context: 512, batch: 8, precision: fp32,
       attention: sdpa, what: train_step}
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--top", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="profpipe-guided-") as scratch:
        path = Path(scratch, "pipeline.yaml")
        path.write_text(PIPELINE, encoding="utf-8")
        few = ["defaults.ncu.kernels=guided", f"defaults.ncu.top={args.top}"]
        run = profpipe_run.run(path, Path(scratch, "guided"), profpipe_run.sets([*args.set, *few]))
        seconds, few_launches = ncu_seconds(run), launches(run)
        print(f"guided: {seconds:.1f} s, {len(few_launches)} launches, {len(reports(run))} processes", flush=True)
        whole = profpipe_run.run(path, Path(scratch, "all"), profpipe_run.sets(args.set))
        every = launches(whole)
        print(f"ncu over all kernels: {ncu_seconds(whole):.1f} s, {len(every)} launches")
        print(f"{ncu_seconds(whole) / seconds:.1f} times as long")
        compare(every, few_launches, choices(run))


def ncu_seconds(run: Path) -> float:
    jobs = json.loads((run / "run.json").read_text(encoding="utf-8"))["jobs"]
    return sum(float(job["seconds"]) for job in jobs if job["profiler"] == "ncu")


def launches(run: Path) -> list[Launch]:
    """Each launch that ncu's reports of ``run`` give figures of, in order."""
    parser = plugins.load_module(plugins.builtin_folder("parsers") / "ncu_report.py")
    return [launch for report in reports(run) for launch in parser.single_launches(report)]


def choices(run: Path) -> list[Choice]:
    """Each choice once: a kernel that ncu left out is profiled again, alone."""
    guides = [ncu.read_beside(report) for report in reports(run)]
    return list(dict.fromkeys(choice for guide in guides if guide for choice in guide))


def reports(run: Path) -> list[Path]:
    return sorted((run / "raw").rglob("*.ncu-rep"))


def compare(every: Sequence[Launch], few: Sequence[Launch], chosen: Sequence[Choice]) -> None:
    for choice in chosen:
        mine = [launch for launch in every if launch.name == choice.kernel]
        print(f"\n{choice.kernel[:110]}")
        own = next((launch for launch in few if launch.name == choice.kernel), None)
        if own is None or len(mine) != choice.launches:
            profiled = "profiled" if own else "not profiled"
            seen = f"{len(mine)} launches in the run over all kernels, {choice.launches} in the capture"
            print(f"    not compared: {profiled} when guided, {seen}")
            continue
        alike = [mine[number - 1] for number in choice.alike]
        grids = sorted({launch.grid for launch in alike})
        print(
            f"    launch {choice.invocation} of {choice.launches}, grid {own.grid}; it stands for {len(alike)} launches"
            f" ({100 * (choice.share or 0):.0f} % of the kernel's time), of grid {', '.join(grids)} among all kernels"
        )
        print(f"    {'':14} {'that launch':>16} {'mean of those':>16} {'guided':>16} {'difference %':>14}")
        for metric, title in FIGURES.items():
            values = [value_of(launch, metric) for launch in (mine[choice.invocation - 1], own)]
            mean = statistics.fmean(value_of(launch, metric) for launch in alike)
            if mean and not math.isnan(mean):
                that, here = values
                print(f"    {title:14} {that:16.2f} {mean:16.2f} {here:16.2f} {100 * (here / mean - 1):+14.2f}")


def value_of(launch: Launch, metric: str) -> float:
    """In ns, byte or %; NaN where it was not measured."""
    return ncu.convert_unit(*launch.values.get(metric, (math.nan, "")))[0]


if __name__ == "__main__":
    main()
