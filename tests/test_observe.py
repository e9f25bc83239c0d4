"""What `profpipe try` notes of a program: a process of the real torch, on the CPU."""

import json
import os
import subprocess
import sys

import pytest
from program import ROOT

PROGRAM = """
import os, sys, torch
from torch.utils.data import DataLoader, TensorDataset
torch.set_num_threads(1)
torch.manual_seed(3)
net = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
net(torch.ones(1, 8))
opt = torch.optim.SGD(net.parameters(), 0.1)
for (x,) in DataLoader(TensorDataset(torch.randn(60, 8)), batch_size=2):
    loss = net(x).square().mean()
    opt.zero_grad(); loss.backward(); opt.step()
with open("inside.txt", "w") as file: file.write("x")
with open(sys.argv[1], "a") as file: file.write("x")
torch.save({}, sys.argv[1] + ".pt")
"""
SWITCHED = "import torch\ndef apply(torch): pass\ndef switch(torch, is_on): print('switched', is_on)\n"


def observe(folder, **given):
    """Return what a process notes, and what it prints."""
    outside = folder.parent / "outside.txt"
    (folder / "tmp").mkdir(exist_ok=True)
    (folder / "p.py").write_text(PROGRAM, encoding="utf-8")
    (folder / "mine.py").write_text(SWITCHED, encoding="utf-8")
    steps = {"warmup": 0, "measure": 1000, "stop": False, "forward": False}
    hook = {"folder": str(folder), "stem": "capture", "profiler": "plain", "steps": steps}
    variables = {
        **os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'profpipe' / 'hook' / 'startup'}", "TMPDIR": str(folder / "tmp"),
        "PROFPIPE_HOOK": json.dumps(hook), "PROFPIPE_OBSERVE": json.dumps(given),
        "PROFPIPE_CHANGES": f"{ROOT / 'profpipe' / 'hook' / 'observe.py'}:{folder / 'mine.py'}",
    }  # fmt: skip
    words = [sys.executable, "p.py", str(outside)]
    done = subprocess.run(words, cwd=folder, env=variables, capture_output=True, text=True, check=True)
    (path,) = folder.glob("hook.capture.observed.*.json")
    document = json.loads(path.read_text(encoding="utf-8"))
    path.unlink()
    return document, done.stdout


@pytest.mark.slow
def test_a_process_leaves_its_losses_what_it_uses_and_where(tmp_path):
    folder = tmp_path / "src"
    folder.mkdir()
    first, _ = observe(folder, seed=0, watch=True)
    again, _ = observe(folder, seed=0)
    other, printed = observe(folder, seed=1, switches=["mine"])
    assert len(first["losses"]) == 30 and first["losses"] == again["losses"] != other["losses"]
    assert len(first["gradient_norm"]) == 1 and first["parameter_change"][0] > 0 and len(first["output"]) == 2
    assert first["uses"]["optimizers"] == [{"kind": "SGD", "fused": False, "foreach": None}]
    assert (
        first["uses"]["loaders"] == [{"workers": 0, "prefetch": 2, "is_iterable": False}]
        and first["uses"]["device"] == "cpu"
    )
    assert first["places"] == {"module": "p.py:7", "optimizers": "p.py:8", "loaders": "p.py:9"}
    # What lies in the folder of the program is in its copy.
    outside = str(tmp_path / "outside.txt")
    assert first["written"] == [outside, f"{outside}.pt"] and again["written"] == []
    # Thirty steps are six blocks of five, of which each second one is with the change.
    assert {name: len(times) for name, times in other["blocks"].items()} == {"": 3, "mine": 3}
    assert printed.split("switched ")[1:4] == ["False\n", "True\n", "False\n"] and first["blocks"] == {}
