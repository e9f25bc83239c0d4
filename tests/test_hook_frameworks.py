"""The start-up hook in programs that torchrun, accelerate, Hugging Face Trainer and Lightning train."""

import shutil
import sys
from pathlib import Path

import pytest
from hooked import LOOP, run

from profpipe.ingest import reader
from profpipe.results import schema

pytestmark = pytest.mark.slow

DDP = """
import os
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for number in range({iterations}):
    optimizer.zero_grad()
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
print("rank", dist.get_rank(), "of", dist.get_world_size(), "is done")
dist.destroy_process_group()
"""
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1")


@pytest.mark.exhaustive
def test_each_process_of_torchrun_has_its_rank_and_its_steps(tmp_path):
    (tmp_path / "train.py").write_text(DDP.format(iterations=9), encoding="utf-8")
    check_steps_of_ranks(run(tmp_path, *TORCHRUN, "--nproc-per-node", "2", "train.py"))


def check_steps_of_ranks(done):
    """Two processes have 8 steps each and a rank."""
    assert done.returncode == 0, done.output
    steps = [tables.steps for tables in done.tables]
    assert sorted(int(frame["rank"].iloc[0]) for frame in steps) == [0, 1]
    assert [len(frame) for frame in steps] == [8, 8]
    tables = reader.combine(frame.set_columns(workload="w", case="c", profiler="plain") for frame in done.tables)
    times = tables.metrics[tables.metrics["metric"] == "step_time"].set_index("subject")["value"]
    # Of each step the mean over the ranks, and of these the median, or the mean where they are uneven.
    walls = tables.steps[tables.steps["state"] == "steady"].groupby("step")["wall_ns"].mean()
    assert times[""] in (pytest.approx(walls.median()), pytest.approx(walls.mean()))
    assert {"rank 0", "rank 1"} < set(times.index)


def test_all_ranks_end_after_the_same_step_and_their_traces_show_the_wait_for_the_late_one(tmp_path):
    late = "\n    __import__('time').sleep(0.03 * dist.get_rank())\n    optimizer.zero_grad()"
    program = DDP.replace("\n    optimizer.zero_grad()", late).format(iterations=100_000)
    (tmp_path / "train.py").write_text(program, encoding="utf-8")
    options = {"profiler": "torch", "steps": {"measure": 20, "stop": True}}
    done = run(tmp_path, *TORCHRUN, "--nproc-per-node", "2", "train.py", **options)
    assert done.returncode == 0 and "is done" not in done.output, done.output
    ends = [line for file in done.files for line in done.lines(file) if line["hook"] == "finished"]
    assert [(line["steps"], line["stopped"]) for line in ends] == [(27, True), (27, True)]
    assert [path.name for path in done.traces] == [f"capture.rank{rank}.pt.trace.json.gz" for rank in (0, 1)]
    parsers = reader.parsers()
    parsed = [reader.parse(reader.choose(trace, parsers), trace) for trace in done.traces]
    assert all(tables.ranges["range"].str.contains("profpipe.step:optimizer").any() for tables in parsed)
    steps = [tables.steps for tables in parsed]
    waits = [rows.loc[rows["state"] == "steady", "communication_ns"].astype(float).median() / 1e6 for rows in steps]
    # Rank 0 waits for the 30 ms that rank 1 sleeps.
    assert waits[0] - waits[1] == pytest.approx(30, rel=0.2)
    columns = ["compute_ns", "communication_ns", "copy_ns", "idle_ns"]
    assert all((rows[columns].sum(axis=1) == rows["wall_ns"]).all() for rows in steps)


@pytest.mark.usefixtures("stub_torch")
def test_mpirun_gives_each_process_its_rank(tmp_path):
    mpirun = shutil.which("mpirun", path=str(Path(sys.executable).parent))
    if mpirun is None:
        pytest.skip("mpirun is missing: pip install mpich")
    (tmp_path / "train.py").write_text(LOOP, encoding="utf-8")
    check_steps_of_ranks(run(tmp_path, mpirun, "-n", "2", sys.executable, "train.py", "9"))


ACCELERATE = """
import torch
from accelerate import Accelerator

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.AdamW(model.parameters())
data = torch.utils.data.DataLoader(torch.ones(48, 8), batch_size=4)
model, optimizer, data = accelerator.prepare(model, optimizer, data)
for batch in data:
    with accelerator.accumulate(model):
        accelerator.backward(model(batch).sum())
        optimizer.step()
        optimizer.zero_grad()
print("trained")
"""


@pytest.mark.exhaustive
def test_a_program_under_accelerate_launch(tmp_path):
    pytest.importorskip("accelerate")
    (tmp_path / "train.py").write_text(ACCELERATE, encoding="utf-8")
    launch = (
        sys.executable,
        "-m",
        "accelerate.commands.launch",
        "--cpu",
        "--num_processes",
        "1",
        "--num_machines",
        "1",
    )
    done = run(tmp_path, *launch, "--mixed_precision", "no", "--dynamo_backend", "no", "train.py")
    assert done.returncode == 0 and "trained" in done.output, done.output
    assert len(done.steps) == 5, "twelve batches make six updates, and the first one begins step 0"


TRAINER = """
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=16, vocab_size=32, n_positions=16))
data = [{"input_ids": torch.arange(8), "labels": torch.arange(8)} for _ in range(64)]
arguments = TrainingArguments(
    "out", max_steps=12, per_device_train_batch_size=2, gradient_accumulation_steps=2, use_cpu=True, report_to=[],
    save_strategy="no", disable_tqdm=True,
)
Trainer(model, arguments, train_dataset=data).train()
print("trained")
"""

LIGHTNING = """
import lightning
import torch

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)

    def training_step(self, batch, number):
        return self.layer(batch).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

trainer = lightning.Trainer(
    max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False
)
trainer.fit(Model(), torch.utils.data.DataLoader(torch.ones(48, 8), batch_size=4))
print("trained")
"""


@pytest.mark.parametrize(
    ("package", "program", "profiler", "stop"),
    [
        pytest.param("transformers", TRAINER, "torch", True, id="transformers, torch"),
        pytest.param("lightning", LIGHTNING, "plain", False, id="lightning, plain", marks=pytest.mark.exhaustive),
        pytest.param("transformers", TRAINER, "plain", False, id="transformers, plain", marks=pytest.mark.exhaustive),
        pytest.param("lightning", LIGHTNING, "torch", True, id="lightning, torch", marks=pytest.mark.exhaustive),
    ],
)
def test_the_loop_of_a_framework(tmp_path, package, program, profiler, stop):
    pytest.importorskip(package)
    (tmp_path / "train.py").write_text(program, encoding="utf-8")
    done = run(tmp_path, sys.executable, "train.py", profiler=profiler, steps={"stop": stop})
    assert done.returncode == 0 and ("trained" in done.output) != stop, done.output
    (end,) = (line for file in done.files for line in done.lines(file) if line["hook"] == "finished")
    assert end == {"hook": "finished", "steps": 11, "stopped": stop}
    assert len(done.traces) == (profiler == "torch")
    if profiler == "plain":
        assert set(done.steps["rule"]) == {schema.StepRule.OPTIMIZER.value}
