"""Measures what the start-up hook costs a training loop under plain, and what a mark costs where nothing is recorded.

    python benchmarks/hook.py [--pairs 10] [--steps 400] [--width 512] [--device cuda]

Each pair is two processes of one training loop, with and without the hook, in an order that alternates. The loop prints
its steps per second after a warm-up. Then: the time of `annotate`, `step` and `steps` without a recording, and of the
start of Python with and without the hook.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from profpipe_run import ROOT

from profpipe.measure.statistics import median_interval
from profpipe.runner import artifacts

LOOP = """
import sys, time, torch
steps, width, device = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
torch.manual_seed(0)
torch.set_num_threads(1)
layers = [torch.nn.Linear(width, width, device=device) for _ in range(4)]
model = torch.nn.Sequential(*layers)
optimizer = torch.optim.AdamW(model.parameters())
batch = torch.randn(64, width, device=device)
def run(number):
    for _ in range(number):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
    if device == "cuda":
        torch.cuda.synchronize()
run(20)
began = time.perf_counter()
run(steps)
print(steps / (time.perf_counter() - began))
"""

MARKS = """
import timeit, torch
from profpipe import annotate, step, steps
def ranges():
    for _ in range(100_000):
        with annotate("forward"):
            pass
def boundaries():
    for _ in range(100_000):
        step()
def loop():
    for _ in steps(range(100_000)):
        pass
for name, function in (("annotate", ranges), ("step", boundaries), ("steps", loop)):
    print(f"{name}: {min(timeit.repeat(function, number=1, repeat=5)) / 100_000 * 1e9:.0f} ns")
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        hooked, bare = _environments(Path(folder))
        ratios = []
        for number in range(args.pairs):
            words = (LOOP, str(args.steps), str(args.width), args.device)
            order = [("hooked", hooked), ("bare", bare)]
            found = {name: float(_run(env, *words)) for name, env in order[:: 1 if number % 2 else -1]}
            ratios.append(found["bare"] / found["hooked"])
            print(f"pair {number + 1}: {found['bare']:.1f} steps/s without, {found['hooked']:.1f} with the hook")
        low, high = median_interval(sorted(ratios)) or (min(ratios), max(ratios))
        median = statistics.median(ratios)
        cost = [f"{100 * (ratio - 1):+.2f} %" for ratio in (median, low, high)]
        print(
            f"a step takes {cost[0]} longer with the hook (median of {len(ratios)} pairs; 95 %: {cost[1]} to {cost[2]})"
        )
        print(_run(bare, MARKS).strip())
        print(f"start of Python: {_start_ms(bare):.1f} ms without, {_start_ms(hooked):.1f} ms with the hook")


def _environments(folder: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Return the variables of a process with the hook, and of one without."""
    bare = {**os.environ, "PYTHONPATH": str(ROOT)}
    steps = {"warmup": 5, "measure": 20, "stop": False, "range": None, "forward": False}
    settings = {"folder": str(folder), "stem": "capture", "profiler": "plain", "steps": steps}
    paths = os.pathsep.join([str(artifacts.STARTUP), str(ROOT)])
    hooked = {
        "PROFPIPE_HOOK": json.dumps(settings),
        "PROFPIPE_HOOK_LOADED": str(folder / "loaded"),
        "PYTHONPATH": paths,
    }
    return {**bare, **hooked}, bare


def _run(environment: Mapping[str, str], *words: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", *words], env=dict(environment), capture_output=True, text=True, check=True
    ).stdout


def _start_ms(environment: Mapping[str, str]) -> float:
    times = []
    for _ in range(20):
        began = time.perf_counter()
        _run(environment, "pass")
        times.append(time.perf_counter() - began)
    return min(times) * 1e3


if __name__ == "__main__":
    main()
