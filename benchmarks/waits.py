"""Plant waits in a training step, and compare what profpipe says of them with the truth.

    python benchmarks/waits.py [--profiler torch] [--kinds loader item garbage checkpoint recompile python]

Each program waits once in a step: for a data loader, for the GPU (``.item()``), for the garbage collector, for the file
of a checkpoint, for a compilation, or in a loop of Python. On a GPU each runs twice: the wait begins after a
synchronisation, or with 20 ms of work queued. The truth is the GPU's own: the time between an event behind the queued
work and one before the work after the wait. On a CPU it is the program's clock round the wait. A row has the truth and
what profpipe names, both in ms of a mean steady step, their ratio, and the line with the most of it.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import profpipe_run

PROGRAM = """
import gc, json, sys, time, torch
from torch.utils.data import DataLoader, Dataset
kind, is_queued = sys.argv[1], sys.argv[2] == "queued"
device = "cuda" if torch.cuda.is_available() else "cpu"
is_gpu = device == "cuda"
torch.set_num_threads(1)

class Slow(Dataset):
    def __len__(self): return 100
    def __getitem__(self, i):
        time.sleep(0.03)
        return torch.ones(8)

net = torch.nn.Linear(512, 512, device=device)
optimizer = torch.optim.SGD(net.parameters(), 1e-3)
size = 8192 if is_gpu else 512
data, big = torch.randn(512, 512, device=device), torch.randn(size, size, device=device)
weights, garbage = torch.zeros(6_000_000), [[i] for i in range(300_000)]
batches = iter(DataLoader(Slow(), batch_size=1)) if kind == "loader" else None
gc.disable()
torch._dynamo.config.cache_size_limit = 1000
compiled = torch.compile(lambda x, n: x * n, backend="eager", dynamic=False)
copies, truth, events = 0, [], []
if is_gpu:  # so many products take 20 ms
    for count in (10, 10):
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        first.record(); [big @ big for _ in range(count)]; last.record(); torch.cuda.synchronize()
    copies = max(round(20 / (first.elapsed_time(last) / count)), 1)

def wait(step):
    if kind == "loader": next(batches)  # WAIT
    elif kind == "item": big[0, 0].item()  # WAIT
    elif kind == "garbage": gc.collect()  # WAIT
    elif kind == "checkpoint": torch.save(weights, "weights.pt")  # WAIT
    elif kind == "recompile": compiled(torch.ones(8 + step), step)  # WAIT
    else: sum(i * i for i in range(300_000))  # WAIT

for step in range(40):
    net(data).sum().backward()
    optimizer.step()
    if is_gpu and is_queued: [big @ big for _ in range(copies)]
    if is_gpu and not is_queued: torch.cuda.synchronize()
    pair = [torch.cuda.Event(enable_timing=True) for _ in range(2)] if is_gpu else []
    if is_gpu: pair[0].record()
    began = time.perf_counter()
    wait(step)
    truth.append(1e3 * (time.perf_counter() - began))
    if is_gpu: pair[1].record(); events.append(pair)
if is_gpu:
    torch.cuda.synchronize()
    truth = [first.elapsed_time(last) for first, last in events]
print("TRUTH", json.dumps(truth))
"""
NAMES = {"loader": "DataLoader", "item": "synchronising call", "garbage": "garbage collection", "python": "host code"}
NAMES |= {"checkpoint": "checkpoint", "recompile": "compilation"}


def measure(kind: str, queue: str, profiler: str, folder: Path) -> tuple[float, float, str]:
    """Return ms of a step that the program waits, and that profpipe names, and the line with the most of them."""
    folder.mkdir()
    (folder / "train.py").write_text(PROGRAM, encoding="utf-8")
    words = ["-p", profiler, "-q", "--out", str(folder / "out"), "--", sys.executable, "train.py", kind, queue]
    profpipe_run.start(words, folder)
    run = (folder / "out" / "latest").resolve()
    log = next(run.glob(f"raw/*/{profiler}/log.txt")).read_text(encoding="utf-8")
    truth = json.loads(log.rpartition("TRUTH")[2].strip().splitlines()[0])
    metrics, steps = pd.read_parquet(run / "metrics.parquet"), pd.read_parquet(run / "steps.parquet")
    steady = steps.loc[(steps["state"] == "steady") & (steps["profiler"] == profiler), "step"].astype(int).unique()
    waits = metrics[(metrics["metric"] == "step_wait_idle") & metrics["subject"].str.startswith(NAMES[kind])]
    named = waits.set_index("subject")["value"].sort_values(ascending=False)
    line = str(named.index[0]).rpartition(" > ")[2] if len(named) else "-"
    # A step goes from one step of the optimizer to the next one: it holds the wait of the iteration before.
    expected = [truth[step] for step in steady if step < len(truth)]
    return sum(expected) / max(len(expected), 1), float(named.sum()) / 1e6, line


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--profiler", default="torch")
    parser.add_argument(
        "--kinds", nargs="+", choices=sorted(NAMES), default=[*NAMES], help="without a GPU `item` waits for nothing"
    )
    args = parser.parse_args(words)
    import torch

    queues = ("sync", "queued") if torch.cuda.is_available() else ("sync",)
    line = 1 + next(number for number, text in enumerate(PROGRAM.splitlines()) if "# WAIT" in text)
    print(f"waits are in the lines from train.py:{line} on\n| wait | queue | truth ms | named ms | ratio | line |")
    print("| --- | --- | ---: | ---: | ---: | --- |")
    with tempfile.TemporaryDirectory() as folder:
        for kind in args.kinds:
            for queue in queues:
                truth, named, place = measure(kind, queue, args.profiler, Path(folder) / f"{kind}-{queue}")
                ratio = f"{named / truth:.3f}" if truth else "-"
                print(f"| {kind} | {queue} | {truth:.2f} | {named:.2f} | {ratio} | {place} |", flush=True)


if __name__ == "__main__":
    main()
