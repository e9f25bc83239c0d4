"""Show where the wall time of a run of profpipe goes, as it is typed.

    python benchmarks/orchestration.py [--rounds 3] [--save FILE] [WORDS OF A COMMAND...]
    python benchmarks/orchestration.py run pipeline.yaml -p plain,torch
    python benchmarks/orchestration.py run -- python train.py

Without words it runs a sweep: twenty matrix products on a CPU or GPU under plain, torch and, where it is on PATH, nsys.
Each row has the median seconds of a phase over the rounds, in all and by profiler, and its share as a bar. Where two
phases overlap, the time is that of the first one in the list ``PHASES``. The command runs in a process of this file,
which notes when profpipe plans, starts a command, reads and writes. Times inside the processes are those of
``job.jsonl`` and of the records of the start-up hook. ``--save`` writes the seconds of all rounds as JSON.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import profpipe_run

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
    matrix: {{n: [64, 128, 192, 256, 320, 384, 448, 512, 640, 768], dtype: [float32, float64]}}
"""
#: Where several are in progress, the first one counts: what a run is for, then what it waits for.
PHASES = (
    "sampling", "warm-up", "build", "checks", "steps of the program", "before its steps", "after its steps",
    "CUDA context", "imports", "profiler start and end", "process start and end", "export", "reading", "pages",
    "planning", "start of profpipe", "end of profpipe", "unnamed",
)  # fmt: skip


@dataclass(frozen=True)
class Span:
    """The time in which a phase is in progress (``time.monotonic``). ``profiler`` is empty outside a job."""

    phase: str
    begin: float
    end: float
    profiler: str = ""


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        sys.exit(run_and_note(Path(sys.argv[2]), sys.argv[3:]))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--save", type=Path)
    parser.add_argument("words", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="profpipe-orchestration-") as scratch:
        words = args.words or ["run", str(made_up(Path(scratch))), "--out", str(Path(scratch) / "out")]
        rounds = [measure(words, Path(scratch) / "notes.json") for _ in range(args.rounds)]
    if args.save:
        named = [{" under ".join(filter(None, key)): seconds for key, seconds in each.items()} for each in rounds]
        args.save.write_text(json.dumps(named, indent=1), encoding="utf-8")
    show(rounds)


def made_up(folder: Path) -> Path:
    (folder / "matmul.py").write_text(WORKLOAD, encoding="utf-8")
    names = ["plain", "torch", *(["nsys"] if shutil.which("nsys") else [])]
    path = folder / "pipeline.yaml"
    path.write_text(PIPELINE.format(profilers=", ".join(names)), encoding="utf-8")
    return path


def measure(words: list[str], notes: Path) -> dict[tuple[str, str], float]:
    """Run the command; return the seconds of each (phase, profiler), which add up to its wall time."""
    begin = time.monotonic()
    done = subprocess.run(
        [sys.executable, __file__, "--child", str(notes), *words], env=profpipe_run.environment(),
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    end = time.monotonic()
    if done.returncode not in (0, 1) or not notes.exists():  # 1: a case failed
        sys.exit(done.stdout + done.stderr)
    found = json.loads(notes.read_text(encoding="utf-8"))
    spans = [Span(*each) for each in found["spans"]]
    for command in found["commands"]:
        spans += inside(command, to_monotonic=time.monotonic() - time.time())
    first, last = min(s.begin for s in spans if s.profiler), max(s.end for s in spans)
    spans += [Span("start of profpipe", begin, first), Span("end of profpipe", last, end)]
    return add_up(spans, begin, end)


def add_up(spans: list[Span], begin: float, end: float) -> dict[tuple[str, str], float]:
    """Give each instant to the first phase of ``PHASES`` that is in progress."""
    by_rank = sorted(spans, key=lambda span: PHASES.index(span.phase))
    edges = sorted({begin, end, *(t for s in spans for t in (s.begin, s.end) if begin < t < end)})
    seconds: dict[tuple[str, str], float] = defaultdict(float)
    for left, right in itertools.pairwise(edges):
        span = next((s for s in by_rank if s.begin <= left and s.end >= right), Span("unnamed", left, right))
        seconds[span.phase, span.profiler] += right - left
    return seconds


# --- inside a process ------------------------------------------------------------------------------------------------


def inside(command: dict[str, Any], to_monotonic: float) -> Iterator[Span]:
    """Yield the phases of a command of a job. What its log does not say is the start or end of its process or tool."""
    begin, end, profiler, folder = (command[name] for name in ("begin", "end", "profiler", "folder"))
    if not command["runs_workload"]:
        yield Span("export", begin, end, profiler)
        return
    events = read_lines(Path(folder) / "job.jsonl")
    own = [event for event in events if begin <= event.get("at", 0.0) <= end]
    marks = phases_of_harness(own) if own else phases_of_program(Path(folder), begin, end, to_monotonic)
    last = begin
    for phase, at in marks:
        if at > last:
            yield Span(phase, last, at, profiler)
            last = at
    is_tool = profiler not in ("plain", "torch")
    yield Span("profiler start and end" if is_tool else "process start and end", begin, end, profiler)


def read_lines(path: Path) -> list[dict[str, Any]]:
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else []
    return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]


def phases_of_harness(events: list[dict[str, Any]]) -> Iterator[tuple[str, float]]:
    """Yield the phases in their order, each with its end."""
    after = "checks"
    for event in events:
        kind, at = event["event"], event["at"]
        if kind == "started":
            yield outside(events[0]), event["began"]
            yield "imports", event["imported"]
            yield "CUDA context", at
        elif kind == "mark":
            yield event["phase"], at
            # Under a profiler the trace is written after the iterations.
            after = "profiler start and end" if event["phase"] == "sampling" else after
        elif kind == "samples" and "began" in event:
            yield "warm-up", event["began"]
            yield "sampling", at
        else:
            yield "build" if kind in ("order", "case_started", "expects") else after, at
            after = "checks"


def outside(started: dict[str, Any]) -> str:
    return "process start and end" if started.get("profiler") in ("plain", "torch") else "profiler start and end"


def phases_of_program(folder: Path, begin: float, end: float, to_monotonic: float) -> Iterator[tuple[str, float]]:
    """Yield the phases of a program of the user, each with its end, from what the start-up hook left.

    The hook makes a file when Python has started, and one when torch is imported. Its record begins before the first
    step, and ends with the program.
    """

    def changed(pattern: str) -> list[float]:
        times = (path.stat().st_mtime + to_monotonic for path in folder.glob(pattern))
        return sorted(at for at in times if begin <= at <= end)

    lines = [line for path in folder.glob("hook.*.jsonl") for line in read_lines(path)]
    ends = [
        (start + wall) * 1e-9 + to_monotonic
        for line in lines
        if line["hook"] == "steps"
        for start, wall in zip(line["start_ns"], line["wall_ns"], strict=True)
    ]
    first = [line["time_ns"] * 1e-9 + to_monotonic for line in lines if line["hook"] == "started"]
    yield from (("process start and end", at) for at in changed("hook.*.loaded"))
    yield from (("imports", at) for at in changed("hook.*.torch"))
    yield from (("before its steps", at) for at in first if begin <= at <= end)
    yield "steps of the program", max((at for at in ends if begin <= at <= end), default=begin)
    # Under a profiler the record has no times of steps.
    yield from (("after its steps" if ends else "steps of the program", at) for at in changed("hook.*.jsonl"))
    yield from (("profiler start and end", at) for at in changed("*.pt.trace.json.gz"))


# --- the process of profpipe -----------------------------------------------------------------------------------------


def run_and_note(notes: Path, words: list[str]) -> int:
    """Carry out a command of profpipe in this process, and write when its parts were in progress."""
    from profpipe import cli
    from profpipe.commands import execution
    from profpipe.runner import executor, session

    found: dict[str, Any] = {"spans": [], "commands": []}

    def noted(function: Callable[..., Any], note: Callable[..., None]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            begin = time.monotonic()
            try:
                return function(*args, **options)
            finally:
                note(begin, time.monotonic(), *args)

        return call

    def as_span(phase: str) -> Callable[..., None]:
        return lambda begin, end, *_: found["spans"].append((phase, begin, end))

    def as_command(begin: float, end: float, command: Any, job: Any, *_: Any) -> None:
        about = {"profiler": job.profiler, "folder": str(job.folder), "runs_workload": command.runs_workload}
        found["commands"].append({"begin": begin, "end": end, **about})

    session.create = noted(session.create, as_span("planning"))
    session.Session._store = noted(session.Session._store, as_span("reading"))  # type: ignore[method-assign]
    execution.write_results = noted(execution.write_results, as_span("pages"))
    executor._start_and_wait = noted(executor._start_and_wait, as_command)
    sys.argv = ["profpipe", *words]
    try:
        return cli.main(words)
    finally:
        notes.write_text(json.dumps(found), encoding="utf-8")


# --- the table -------------------------------------------------------------------------------------------------------


def show(rounds: list[dict[tuple[str, str], float]]) -> None:
    keys = {key for each in rounds for key in each}
    seconds = {key: statistics.median(each.get(key, 0.0) for each in rounds) for key in keys}
    walls = [sum(each.values()) for each in rounds]
    wall, profilers = statistics.median(walls), sorted({profiler for _, profiler in keys if profiler})
    print(f"{'':24}{'all':>8}{'':6}" + "".join(f"{name:>8}" for name in profilers))
    for phase in PHASES:
        total = sum(own for (name, _), own in seconds.items() if name == phase)
        if total:
            by = "".join(f"{seconds.get((phase, name), 0.0):8.2f}" for name in profilers)
            print(f"{phase:24}{total:8.2f}{total / wall:6.0%}{by}  {'#' * round(50 * total / wall)}")
    print(f"{'wall':24}{wall:8.2f} s, median of {' '.join(f'{own:.2f}' for own in walls)}")


if __name__ == "__main__":
    main()
