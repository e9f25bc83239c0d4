"""``profpipe run PROGRAM`` for programs without an optimizer, without Python, and with an error."""

import re
import subprocess
import sys

import pytest
from program import profpipe, rows

#: Generates tokens one by one after a prompt, for which ``main`` gives the number of requests.
GENERATE = """
import sys, torch
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Embedding(10, 4), torch.nn.Linear(4, 10))
with torch.no_grad():
    for _ in range(int(sys.argv[1])):
        token = model(torch.zeros(1, 8, dtype=torch.long))[:, -1:].argmax(-1)
        for _ in range(9):
            token = model(token)[:, -1:].argmax(-1)
"""

#: Evaluates a model before it trains it, as nanoGPT does.
TRAIN = """
import torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
with torch.no_grad():
    for _ in range(30):
        model(torch.ones(4))
for _ in range(12):
    model(torch.ones(4)).sum().backward()
    optimizer.step()
"""

#: Two other processes call modules while this one trains: a worker that loads data, and an actor.
BESIDE = """
import multiprocessing, torch
from torch.utils.data import DataLoader, Dataset

class Images(Dataset):
    normalize = torch.nn.LayerNorm(4)
    def __len__(self):
        return 24
    def __getitem__(self, index):
        return self.normalize(torch.ones(4)).detach()

def act():
    model = torch.nn.Linear(4, 4)
    for _ in range(40):
        model(torch.ones(4))

if __name__ == "__main__":
    multiprocessing.get_context("spawn").Process(target=act).start()
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for batch in DataLoader(Images(), num_workers=1, batch_size=2):
        model(batch).sum().backward()
        optimizer.step()
"""

FAILS = "import sys\nprint('reading')\nraise ValueError('no data in /data')\n"


def run(folder, *words):
    """Run a program of ``folder``; return what is printed, and the folder of the run."""
    command = [sys.executable, "-m", "profpipe", "run", *words]
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return done.stdout, folder / "out" / "latest"


def rules(folder):
    """The rules of the steps by profiler."""
    found: dict[str, set[str]] = {}
    for row in rows(folder / "steps.parquet"):
        found.setdefault(row["profiler"], set()).add(row["rule"])
    return found


@pytest.mark.slow
def test_calls_of_the_model_are_the_steps_where_no_optimizer_steps(tmp_path):
    (tmp_path / "generate.py").write_text(GENERATE, encoding="utf-8")
    profpipe(tmp_path, "run", "-p", "plain,torch", "--", sys.executable, "generate.py", "4")
    latest = tmp_path / "out" / "latest"
    assert rules(latest) == {"plain": {"forward"}, "torch": {"forward"}}
    page = (latest / "SUMMARY.md").read_text(encoding="utf-8")
    assert "A step begins at each call of `Sequential`." in page
    # The first calls of the first request are left out, and so is that request.
    assert "| prompt tokens | requests | batch | output tokens |" in page
    assert re.search(r"^\| 8 \| [123] \| 1 \| 10 \| ", page, re.MULTILINE)
    assert "- Prompt of 8 tokens: first token after " in page


#: A model, a module that is made for each call, a loss, and now and then another model of the same class.
SCORE = """
import torch
net, other, loss = torch.nn.Linear(2000, 2000), torch.nn.Linear(4, 4), torch.nn.MSELoss()
with torch.inference_mode():
    for n in range(20):
        scores = torch.nn.Sigmoid()(net(torch.ones(64, 2000)))
        loss(scores, torch.zeros_like(scores))
        if n == 12:
            other(torch.ones(4))
"""


@pytest.mark.usefixtures("stub_torch")
def test_a_step_holds_what_is_called_after_each_call_of_the_model(tmp_path):
    (tmp_path / "score.py").write_text(SCORE, encoding="utf-8")
    profpipe(tmp_path, "run", "-p", "plain", "--", sys.executable, "score.py")
    found = [(row["step"], row["state"], row["kind"]) for row in rows(tmp_path / "out" / "latest" / "steps.parquet")]
    name = "Linear + Sigmoid + MSELoss"
    assert {row[2] for row in found} == {name, "Linear#2", ""}
    # The first call that is recorded is the fourth one.
    assert found[0][0] == "3" and [row for row in found if row[1] == "other"] == [
        ("36", "other", name), ("39", "other", "Linear#2"),
        # The program ends in the last one.
        ("58", "other", ""), ("59", "other", ""),
    ]  # fmt: skip


@pytest.mark.slow
def test_a_replay_of_a_cuda_graph_is_a_step(tmp_path):
    program = """
import torch
class Graph(torch.cuda.CUDAGraph):
    __new__, __init__ = object.__new__, object.__init__
graph = Graph()
for _ in range(9):
    try:
        graph.replay()
    except AttributeError:  # torch has no graphs without CUDA
        pass
"""
    (tmp_path / "replay.py").write_text(program, encoding="utf-8")
    profpipe(tmp_path, "run", "-p", "plain", "--", sys.executable, "replay.py")
    found = rows(tmp_path / "out" / "latest" / "steps.parquet")
    assert {row["kind"] for row in found} == {"CUDAGraph"} and len(found) in (5, 6)


@pytest.mark.exhaustive
def test_captures_of_ab_record_the_calls_that_plain_found(tmp_path):
    (tmp_path / "generate.py").write_text(GENERATE, encoding="utf-8")
    options = ("--aa", "--pairs", "1", "--captures", "1", "-p", "torch")
    profpipe(tmp_path, "ab", *options, "--", sys.executable, "generate.py", "4")
    for side in ("A", "B"):
        (record,) = (tmp_path / "out" / "latest" / "raw" / "generate" / "pair-01" / f"{side}-torch").glob(
            "hook.*.jsonl"
        )
        assert '"rule": "forward"' in record.read_text(encoding="utf-8")


@pytest.mark.usefixtures("stub_torch")
def test_an_evaluation_before_a_training_has_no_steps(tmp_path):
    (tmp_path / "train.py").write_text(TRAIN, encoding="utf-8")
    profpipe(tmp_path, "run", "-p", "plain", "--stop", "--measure-steps", "3", "--", sys.executable, "train.py")
    found = rows(tmp_path / "out" / "latest" / "steps.parquet")
    assert {row["rule"] for row in found} == {"optimizer"} and len({row["step"] for row in found}) == 8


@pytest.mark.slow
@pytest.mark.parametrize("profilers", ["plain", pytest.param("plain,torch", marks=pytest.mark.exhaustive)])
def test_calls_of_modules_beside_a_training_are_no_steps(tmp_path, profilers):
    (tmp_path / "train.py").write_text(BESIDE, encoding="utf-8")
    profpipe(tmp_path, "run", "-p", profilers, "--", sys.executable, "train.py")
    latest = tmp_path / "out" / "latest"
    assert rules(latest) == {name: {"optimizer"} for name in profilers.split(",")}
    assert {row["rank"] for row in rows(latest / "steps.parquet")} == {"0"}


@pytest.mark.slow
def test_a_program_that_fails_under_plain_is_not_started_again_and_its_error_is_shown(tmp_path):
    (tmp_path / "fails.py").write_text(FAILS, encoding="utf-8")
    printed, latest = run(tmp_path, "-p", "plain,torch", "fails.py")
    assert "  | ValueError: no data in /data\n" in printed
    assert "skipped (the program failed under plain: exit code 1: ValueError: no data in /data. Fix it" in printed
    assert not list(latest.glob("raw/fails/torch/log.txt"))
    assert "1 case failed: exit code 1: ValueError: no data in /data (reasons and logs in SUMMARY.md)" in " ".join(
        printed.split()
    )


@pytest.mark.slow
def test_a_program_that_starts_no_python_gets_no_advice_for_python(tmp_path):
    printed, latest = run(tmp_path, "-p", "plain,torch", "sleep", "0.2")
    assert "skipped (the program starts no Python, and torch.profiler records torch only. Use nsys.)" in printed
    summary = (latest / "SUMMARY.md").read_text(encoding="utf-8")
    assert "## Warnings" not in summary and "hook" not in summary and "of process wall time" in summary


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "what"),
    [
        (("bash", "-c", "sleep 9 & sleep 0.2; kill %1; wait %1"), "SIGTERM ended it"),
        (("timeout", "-s", "KILL", "0.2", "sleep", "9"), "the limit of `timeout` ended it"),
        (("bash", "-c", "kill -HUP $$"), "SIGHUP ended it"),
    ],
)
def test_what_ended_a_program_from_outside_is_named_and_no_crash(tmp_path, command, what):
    printed = " ".join(profpipe(tmp_path, "run", "--out", "out", "-p", "plain", "--", *command).split())
    assert f"did not end by itself ({what})" in printed and "process wall time" in printed
    assert not re.search("crashed|failed|--capture", printed)


@pytest.mark.slow
def test_a_span_is_advised_where_a_signal_took_the_recording(tmp_path):
    (tmp_path / "serve.py").write_text("import torch, time\nwhile True: torch.ones(9).sum(); time.sleep(0.01)\n")
    command = ("timeout", "6", sys.executable, "serve.py")
    profpipe(tmp_path, "run", "--out", "out", "-p", "plain,torch", "--", *command, exit_code=1)
    page = (tmp_path / "out/latest/SUMMARY.md").read_text()
    assert "ended the program before torch had written" in page and "--capture AFTER:FOR" in page


def test_verbose_shows_the_output_while_the_program_runs(tmp_path):
    code = "import time\nfor n in range(3): print('line', n, flush=True); time.sleep(0.3)"
    printed, _ = run(tmp_path, "--verbose", "-p", "plain", "--", sys.executable, "-c", code)
    assert [line for line in printed.splitlines() if line.startswith("  | line")] == [f"  | line {n}" for n in range(3)]
    assert "line" not in run(tmp_path, "-p", "plain", "--", sys.executable, "-c", code)[0]


#: What a program may do with its model after profpipe has seen calls of it.
COPIES = """
import copy, io, pickle, torch
class Net(torch.nn.Module):
    def forward(self, x):
        return x * 2
model = torch.nn.Sequential(torch.nn.Embedding(10, 4), torch.nn.Linear(4, 10))
tokens = torch.zeros(1, 8, dtype=torch.long)
with torch.no_grad():
    for _ in range(6):
        model(tokens)
    copy.deepcopy(model)(tokens)
    torch.save(model, io.BytesIO())
    pickle.dumps(model)
    torch.jit.script(model)
    torch.fx.symbolic_trace(model)
    model.forward = torch.compile(model.forward, backend="eager")
    for _ in range(5):
        model(tokens)
    compiled = torch.compile(Net().__call__, backend="eager", fullgraph=True)
    for _ in range(5):
        compiled(torch.ones(2, 4))
    torch.nn.Linear(4, 4)(torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(3, 4)]))
print("fine", type(model).__call__ is torch.nn.Module.__call__)
"""


@pytest.mark.slow
def test_a_program_may_copy_save_script_trace_and_compile_its_model(tmp_path):
    (tmp_path / "copies.py").write_text(COPIES, encoding="utf-8")
    profpipe(tmp_path, "run", "-p", "plain", "--", sys.executable, "copies.py")
    latest = tmp_path / "out" / "latest"
    assert "fine True" in (latest / "raw" / "copies" / "plain" / "log.txt").read_text(encoding="utf-8")
    # Each call is one step: 6 + 1 + 5 + 5 + 1 without the first three.
    assert len(rows(latest / "steps.parquet")) in (14, 15)
