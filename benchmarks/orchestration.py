"""Measure the overhead of profpipe: `profpipe run` of a sweep, and the bare commands that it starts, in turns.

    python benchmarks/orchestration.py [PIPELINE] [-p PROFILER]... [--set KEY=VALUE]... [--rounds 4]

The bare commands are those of run.json, one after the other, in the same environment: the profilers with their
harness and nsys's export. profpipe adds its start, planning, reading, storing and reporting. The limit is 3 s and 2 %
of the bare time. `added` is the difference of the two times. `own` is the time of profpipe outside its processes, which
does not vary with their times. The first run is shown and not counted, because it loads all files from disk. After it,
the two take turns in being first. Without PIPELINE the sweep is matrix products on a CPU or GPU under plain, torch and,
where it is on PATH, nsys.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import profpipe_run

ALLOWED_S, ALLOWED_SHARE = 3.0, 0.02

WORKLOAD = """
import torch

PARAMS = {"n": 256, "dtype": "float32"}

def build(params):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    a = torch.rand(params["n"], params["n"], dtype=getattr(torch, params["dtype"]), device=device)
    return lambda: a @ a

def flops(params):
    return 2 * params["n"] ** 3
"""
PIPELINE = """
version: 1
name: orchestration
defaults: {{profilers: [{profilers}], timing: {{budget_s: 0.2}}}}
workloads:
  matmul:
    script: matmul.py
    matrix: {{n: [64, 128, 192, 256, 320, 384, 448, 512, 640, 768], dtype: [float32, bfloat16]}}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pipeline", nargs="?", type=Path)
    parser.add_argument("-p", "--profiler", action="append", default=[])
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--rounds", type=int, default=4)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="profpipe-orchestration-") as scratch:
        pipeline = args.pipeline or made_up(Path(scratch))
        options = [*(word for name in args.profiler for word in ("-p", name)), *profpipe_run.sets(args.set)]
        out = pipeline.resolve().parent / "out" / "orchestration"
        shutil.rmtree(out, ignore_errors=True)
        print("round commands   bare s profpipe s  added s  own s  allowed s")
        whole, own = timed_profpipe(pipeline, options, out)
        print(f"first {'':8} {'':8} {whole:10.2f} {'':8} {own:6.2f}", flush=True)
        rounds = [timed_round(number, pipeline, options, out) for number in range(1, args.rounds + 1)]
        added, own = (statistics.median(figures) for figures in zip(*rounds, strict=True))
        print(f"medians of {args.rounds}: added {added:.2f} s, own {own:.2f} s")


def timed_round(number: int, pipeline: Path, options: Sequence[str], out: Path) -> tuple[float, float]:
    """Return the seconds that profpipe added to the bare commands, and its seconds outside its processes."""
    if number % 2:
        whole, own = timed_profpipe(pipeline, options, out)
        bare, commands = timed_bare(pipeline, out)
    else:
        bare, commands = timed_bare(pipeline, out)
        whole, own = timed_profpipe(pipeline, options, out)
    allowed = ALLOWED_S + ALLOWED_SHARE * bare
    print(
        f"{number:5} {commands:8} {bare:8.2f} {whole:10.2f} {whole - bare:8.2f} {own:6.2f} {allowed:10.2f}", flush=True
    )
    return whole - bare, own


def made_up(folder: Path) -> Path:
    (folder / "matmul.py").write_text(WORKLOAD, encoding="utf-8")
    names = ["plain", "torch", *(["nsys"] if shutil.which("nsys") else [])]
    path = folder / "pipeline.yaml"
    path.write_text(PIPELINE.format(profilers=", ".join(names)), encoding="utf-8")
    return path


def timed_profpipe(pipeline: Path, options: Sequence[str], out: Path) -> tuple[float, float]:
    """Return the wall seconds of a whole run, and those outside the processes that it started."""
    began = time.monotonic()
    profpipe_run.run(pipeline, out, options, allowed=(0, 1))  # 1: a case failed, in both
    seconds = time.monotonic() - began
    return seconds, seconds - sum(job["seconds"] for job in jobs_of(out))


def jobs_of(out: Path) -> list[dict[str, Any]]:
    """Return the jobs in the record of the latest run."""
    return list(json.loads((out / "latest" / "run.json").read_text(encoding="utf-8"))["jobs"])


def timed_bare(pipeline: Path, out: Path) -> tuple[float, int]:
    """Run the commands of the latest run in a copy of its folders; return their seconds and number."""
    run, here, jobs = (out / "latest").resolve(), pipeline.resolve().parent, jobs_of(out)
    bare = Path(tempfile.mkdtemp(prefix=f"{run.name}.bare-", dir=run.parent))
    for job in jobs:
        (bare / job["folder"]).mkdir(parents=True)
        for spec in (run / job["folder"]).glob("cases*.json"):
            shutil.copy(spec, bare / job["folder"])
    commands = [[word.replace(run.name, bare.name) for word in argv] for job in jobs for argv in job["argv"]]
    began = time.monotonic()
    for command in commands:
        subprocess.run(command, cwd=here, env=profpipe_run.environment(), capture_output=True, check=False)
    return time.monotonic() - began, len(commands)


if __name__ == "__main__":
    main()
