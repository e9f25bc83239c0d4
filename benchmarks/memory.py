"""Check the profiler `memory` on a GPU: sums, moments, planted failures, what fits, and what it costs.

``python benchmarks/memory.py [--out FILE] [PART ...]`` prints a table as it goes, and writes it to FILE. The parts are
``sums``, ``planted``, ``fits`` and ``cost``. It takes 200 s on an H200.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
MODELS = ROOT / "benchmarks" / "memory_models.py"
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

#: Batches of the four models.
SIZES = {"gpt": 16, "resnet": 16, "unet": 16, "llama": 16}
MOMENTS = 20

Row = tuple[str, str, str]


def recorded(path: Path, name: str) -> tuple[Any, Any, dict[str, Any]]:
    """Return the table of a snapshot, the bytes in use after the rows of its trace, and its facts."""
    from profpipe.ingest import memory, torch_snapshot

    snapshot = torch_snapshot.read_snapshot(path)
    facts = json.loads(snapshot["profpipe"])
    tables = memory.make_tables(snapshot, facts, "")
    trace = snapshot["device_traces"][0]
    segments = [segment for segment in snapshot["segments"] if not segment["device"]]
    _, allocated, _ = memory.replay(segments, trace, memory.StackReader(""), len(trace))
    return tables.memory.assign(case=name, source=path.name), (allocated, trace), facts


def record(folder: Path, name: str, act: Callable[[Any], object]) -> Path:
    """Record what ``act``, which is called with the history, allocates."""
    import torch

    from profpipe.hook.memory import AllocatorHistory
    from profpipe.hook.record import HookRecord

    path = folder / f"{name}.memory.pickle"
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    history = AllocatorHistory(torch, str(path), HookRecord(lambda: str(folder / f"{name}.jsonl"), dict))
    history.begin()
    try:
        act(history)
    finally:
        torch.cuda.synchronize()
        history.write()
        history.end()
    return path


def check_sums(folder: Path) -> Iterator[Row]:
    import torch
    from memory_models import step_of

    from profpipe.analysis.memory import find_leading, find_memory

    for kind, size in SIZES.items():
        seen: list[tuple[int, int]] = []
        chance = random.Random(1)

        def look(*given: object, seen: list[tuple[int, int]] = seen, chance: random.Random = chance) -> None:
            if chance.random() < 0.05:
                seen.append((time.time_ns() // 1000, torch.cuda.memory_allocated()))
                time.sleep(0.001)

        def act(history: Any, kind: str = kind, size: int = size) -> None:
            step = step_of(kind, size)
            hook = torch.nn.modules.module.register_module_forward_hook(look)
            for number in range(5):
                history.mark(number)
                step()
            hook.remove()

        path = record(folder, kind, act)
        table, (in_use, trace), facts = recorded(path, kind)
        counted = facts["devices"]["0"]["allocated_bytes.all.peak"]
        memory = find_memory(table, kind)
        assert memory is not None
        times = [entry["time_us"] for entry in trace]
        chosen = random.Random(2).sample(seen, min(MOMENTS, len(seen)))
        right = 0
        for at_us, allocated in chosen:
            row = max((row for row, us in enumerate(times) if us <= at_us), default=-1)
            right += row >= 0 and in_use[row] == allocated
        sizes = memory.sum_parts("peak")
        parts = ", ".join(f"{part} {size / 2**20:,.0f}" for part, size in sizes[:6].items())
        yield f"sum of {kind}", f"{sizes.sum():,.0f} of {counted:,}", str(sizes.sum() == counted)
        yield f"moments of {kind}", f"{right} of {len(chosen)}", str(right == len(chosen))
        yield f"peak of {kind}", f"{parts} MiB; {find_leading(memory)}", ""
        torch.cuda.empty_cache()


def profpipe(folder: Path, name: str, *words: str) -> tuple[str, float]:
    """Return what profpipe prints of a run, and its time."""
    began = time.monotonic()
    command = [sys.executable, "-m", "profpipe", "run", "--name", name, "--out", str(folder / name), *words]
    paths = filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    (folder / f"{name}.txt").write_text(f"$ {shlex.join(command)}\n{ended.stdout}{ended.stderr}")
    return ended.stdout, time.monotonic() - began


#: The line of the programs that leaks.
LEAK = next(number for number, line in enumerate(MODELS.read_text().splitlines(), 1) if line.endswith("# LEAK"))
#: What the first screen must say of a planted failure.
PLANTED = {
    "leak": ("leaves", f"called at memory_models.py:{LEAK}"),
    "forward": ("Out of memory in the forward pass",),
    "backward": ("Out of memory in the backward pass",),
    "optimizer": ("Out of memory in the step of the optimizer",),
    "fragments": ("which are too small", "expandable_segments"),
    "search": ("failed, and the program went on",),
    "other": ("Other processes",),
}


def check_planted(folder: Path) -> Iterator[Row]:
    def run(kind: str) -> tuple[str, str, float]:
        profilers = "memory" if kind in ("leak", "search") else "plain,torch"
        text, seconds = profpipe(folder, kind, "-p", profilers, "--", sys.executable, str(MODELS), kind)
        return kind, " ".join(text.split()), seconds

    others = [kind for kind in PLANTED if kind != "other"]
    with ThreadPoolExecutor(4) as pool:
        results = [*pool.map(run, others)]
    # It takes nearly all memory of the GPU, so it runs alone.
    for kind, text, seconds in [*results, run("other")]:
        missing = [words for words in PLANTED[kind] if words not in text]
        yield f"planted: {kind}", f"{text[:400]} ({seconds:.0f} s)", f"lacks {missing}" if missing else "True"


def check_fits(folder: Path) -> Iterator[Row]:
    """Predict the largest batch under a limit from two small ones; three times it must run, and the next one not."""
    import torch
    from memory_models import limit, step_of

    from profpipe.analysis.memory import find_fit, find_memory

    def runs(kind: str, size: int) -> bool:
        torch.cuda.empty_cache()
        try:
            step = step_of(kind, size)
            for _ in range(3):
                step()
        except torch.OutOfMemoryError:
            return False
        return True

    for kind, megabytes in (("gpt", 6000), ("resnet", 4000), ("unet", 4000)):
        limit(megabytes)
        found = []
        for size in (4, 8):

            def act(history: Any, kind: str = kind, size: int = size) -> None:
                step = step_of(kind, size)
                for number in range(3):
                    history.mark(number)
                    step()

            path = record(folder, f"{kind}-{size}", act)
            table, _, _ = recorded(path, str(size))
            # A torch that does not tell its limit leaves the memory of the GPU.
            is_room = table["part"].isin(["capacity", "room"])
            memory = find_memory(table.assign(bytes=table["bytes"].mask(is_room, megabytes * 2.0**20)), str(size))
            assert memory is not None
            found.append((float(size), memory))
        fit = find_fit(found)
        assert fit is not None
        tried = [(runs(kind, fit.least), runs(kind, fit.most + 1)) for _ in range(3)]
        largest = next((size for size in range(fit.most + 1, fit.least - 1, -1) if runs(kind, size)), None)
        said = f"{fit.least} to {fit.most} in {megabytes} MiB; the largest that runs: {largest}; runs, next: {tried}"
        yield f"fits: {kind}", said, str(all(least and not more for least, more in tried))
        limit(torch.cuda.get_device_properties(0).total_memory / 2**20)


def check_cost(folder: Path) -> Iterator[Row]:
    """Compare steps with and without the history, in turn, in one process."""
    import torch
    from memory_models import step_of

    for kind, size in SIZES.items():
        step = step_of(kind, size)
        step()
        times: dict[bool, list[float]] = {False: [], True: []}

        def measure(is_on: bool, step: Callable[[], object] = step, times: dict[bool, list[float]] = times) -> None:
            for number in range(5):
                torch.cuda.synchronize()
                began = time.perf_counter()
                step()
                torch.cuda.synchronize()
                if number:
                    times[is_on].append(time.perf_counter() - began)

        def on(history: Any, measure: Callable[[bool], None] = measure) -> None:
            measure(True)

        began = time.perf_counter()
        for _ in range(4):
            measure(False)
            record(folder, f"cost-{kind}", on)
        plain, slow = (1e3 * statistics.median(times[is_on]) for is_on in (False, True))
        snapshot = folder / f"cost-{kind}.memory.pickle"
        size_mb = snapshot.stat().st_size / 1e6
        whole = time.perf_counter() - began
        said = f"{plain:.2f} ms a step, {slow:.2f} ms with the history ({100 * (slow / plain - 1):+.1f} %)"
        yield f"cost: {kind}", f"{said}, snapshot {size_mb:.1f} MB, all {whole:.1f} s", ""


PARTS: dict[str, Callable[[Path], Iterator[Row]]] = {
    "sums": check_sums,
    "cost": check_cost,
    "fits": check_fits,
    "planted": check_planted,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], default=[])
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    out = args.out or Path(tempfile.mkdtemp()) / "memory.md"
    out.parent.mkdir(parents=True, exist_ok=True)
    folder = out.parent.resolve() / "files"
    folder.mkdir(exist_ok=True)
    began = time.monotonic()
    with out.open("w") as file:
        for line in ("| what | result | as it must be |", "| --- | --- | --- |"):
            print(line, file=file, flush=True)
        for name in args.parts or PARTS:
            try:
                for row in PARTS[name](folder):
                    line = f"| {' | '.join(text.replace('|', '/') for text in row)} |"
                    print(f"{time.monotonic() - began:5.0f} s {line}", flush=True)
                    print(line, file=file, flush=True)
            except Exception as error:
                print(
                    f"| {name} | {type(error).__name__}: {json.dumps(str(error)[:300])} | False |",
                    file=file,
                    flush=True,
                )
                print(f"{time.monotonic() - began:5.0f} s {name}: {type(error).__name__}: {error}", flush=True)


if __name__ == "__main__":
    main()
