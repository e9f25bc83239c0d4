"""Programs as their users start them, under the start-up hook, on the CPU; and what the hook left."""

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from jobs import change, make_job

from profpipe.ingest import reader
from profpipe.job import Case, Tool
from profpipe.measure import event_lines
from profpipe.runner import artifacts, process

ROOT = Path(__file__).resolve().parents[1]

#: A training loop that knows nothing of profpipe: `python train.py NUMBER` prints its iterations.
LOOP = """
import sys
import torch

torch.manual_seed(0)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for number in range(int(sys.argv[1])):
    optimizer.zero_grad()
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
    print("iteration", number, flush=True)
print("trained")
"""

STEPS = {"warmup": 2, "measure": 4, "stop": False, "range": None, "forward": False}


@dataclass(frozen=True)
class Hooked:
    """A program's process under the hook. ``files`` are the hook's, one for each process that made steps."""

    folder: Path
    returncode: int
    output: str
    explanation: str

    @cached_property
    def files(self):
        return sorted(self.folder.glob("hook.capture.*.jsonl"))

    def lines(self, file):
        return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]

    @property
    def tables(self):
        parsers = reader.parsers()
        return [reader.parse(reader.choose(path, parsers), path) for path in self.files]

    @property
    def steps(self):
        """The steps of the only process that made some."""
        (tables,) = self.tables
        return tables.steps

    @property
    def notes(self):
        return "\n".join(note for tables in self.tables for note in tables.origin.notes)

    @property
    def traces(self):
        return sorted(self.folder.glob("capture*.pt.trace.json.gz"))


def run(folder, *argv, profiler="plain", env=None, timeout_s=240, **options):
    """Run ``argv`` in ``folder`` with the variables that the runner gives a command. ``options`` are its settings."""
    job_folder = folder / "job"
    job_folder.mkdir(exist_ok=True)
    steps = {**STEPS, **options.pop("steps", {})}
    given = {"hook": True, "steps": steps, "capture": None, "torch": {}, "collect": None, **options}
    job = make_job("w", profiler, (Case("default", {}),), job_folder, Tool(profiler, ""), sys.executable, folder)
    job = change(job, command=argv, options=given)
    variables = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": process.python_path(), **(env or {})}
    variables |= artifacts.variables(job, variables)
    began = time.monotonic()
    done = subprocess.run(argv, cwd=folder, env=variables, capture_output=True, text=True, timeout=timeout_s)
    for pending in job_folder.glob("*.pending"):
        event_lines.complete(pending)
    why = artifacts.explain_missing_records(job, time.monotonic() - began)
    return Hooked(job_folder, done.returncode, done.stdout + done.stderr, why)


def path_with(folder):
    """Return a PYTHONPATH with ``folder`` first, as a user sets it."""
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))}


def run_python(folder, program, *arguments, **options):
    """Run ``program``, written to train.py in ``folder``, by this Python."""
    (folder / "train.py").write_text(program, encoding="utf-8")
    return run(folder, sys.executable, "train.py", *arguments, **options)
