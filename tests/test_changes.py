"""Changes of a program from outside: what each does to a program that prints what it sees."""

import json
import os
import sys

import forked
import pytest
from program import profpipe

from profpipe import plugins

PROGRAM = """
import gc, json, os, torch
from torch.utils.data import DataLoader, TensorDataset
torch.set_num_threads(1)
torch.autograd.set_detect_anomaly(True)
net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Flatten(), torch.nn.Linear(144, 2))
optimizer = torch.optim.AdamW(net.parameters())
data = DataLoader(TensorDataset(torch.randn(8, 3, 8, 8)), batch_size=2)
for (x,) in data:
    y = net(x)
    optimizer.zero_grad()
    y.sum().backward()
    optimizer.step()
gradient, weight, given = net[2].weight.grad, net[0].weight, os.environ.get
print("SEEN", json.dumps({
    "threads": torch.get_num_threads() > 1 or os.cpu_count() == 1, "anomaly": torch.is_anomaly_enabled(),
    "workers": data.num_workers, "persistent": data.persistent_workers, "fused": optimizer.defaults["fused"],
    "foreach": optimizer.defaults["foreach"], "frozen": gc.get_freeze_count() > 0, "output": str(y.dtype),
    "last": weight.is_contiguous(memory_format=torch.channels_last), "benchmark": torch.backends.cudnn.benchmark,
    "precision": torch.get_float32_matmul_precision(), "compiled": net._compiled_call_impl is not None,
    "blocking": given("CUDA_LAUNCH_BLOCKING"), "segments": given("PYTORCH_CUDA_ALLOC_CONF"), "own": given("OWN"),
    "rounded": bool((gradient.bfloat16() == gradient).all()),
}))
"""

WITHOUT = {
    "threads": False, "anomaly": True, "precision": "highest", "workers": 0, "persistent": False, "fused": None,
    "foreach": None, "frozen": False, "last": False, "benchmark": False, "output": "torch.float32", "compiled": False,
    "blocking": None, "segments": None, "rounded": False, "own": None,
}  # fmt: skip
#: What each change does to what the program sees. Dynamo is off: to compile takes long.
CHANGES = {
    "all_cores": {"threads": True},
    "bf16": {"rounded": True},
    "channels_last": {"last": True},
    "compile": {"compiled": True},
    "cudnn_benchmark": {"benchmark": True},
    "expandable_segments": {"segments": "expandable_segments:True"},
    "gc_freeze": {"frozen": True},
    "loader_workers": {"workers": 4, "persistent": True},
    "no_debugging": {"anomaly": False, "blocking": "0"},
    "tf32": {"precision": "high"},
}
OWN = "ALTERS_NUMERICS, CODE = False, ''\nVARIABLES = {'OWN': '1'}\n"


def measured(folder, *changes, exit_code=0, program=PROGRAM):
    """Return what the program saw on either side, and the log of B, of a pair with ``changes`` on side B."""
    (folder / "p.py").write_text(program)
    words = [word for change in changes for word in ("--b", f"change:{change}")]
    words += ["--pairs", "1", "--captures", "0", "--env", "TORCH_COMPILE_DISABLE=1", "--", sys.executable, "p.py"]
    profpipe(folder, "ab", "-q", *words, exit_code=exit_code)
    logs = [next((folder / "out" / "latest").glob(f"raw/*/pair-01/{side}/log.txt")).read_text() for side in "AB"]
    return [json.loads(log.partition("SEEN")[2].strip().partition("\n")[0] or "{}") for log in logs], logs[1]


@pytest.mark.slow
def test_changes_together_reach_the_program_on_their_side_only(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    seen, _ = measured(tmp_path, *CHANGES, "fused_optimizer", "own.py")
    assert seen[0] == WITHOUT
    together = {name: value for change in CHANGES.values() for name, value in change.items()}
    assert seen[1] == WITHOUT | together | {"fused": True, "own": "1"}


INFERENCE = """
import json, torch
net = torch.nn.Linear(64, 64)
outputs = [net(torch.ones(64)) for _ in range(3)]
print("SEEN", json.dumps({"rounded": [bool((output.bfloat16() == output).all()) for output in outputs]}))
"""


@pytest.mark.slow
def test_a_change_reaches_the_first_call_of_inference_or_the_case_fails(tmp_path):
    seen, _ = measured(tmp_path, "bf16", program=INFERENCE)
    assert [side["rounded"] for side in seen] == [[False] * 3, [True] * 3]
    summary = (tmp_path / "out" / "latest" / "SUMMARY.md").read_text()
    assert (
        "- `change:bf16` in the program: `with torch.autocast(device, torch.bfloat16): output = model(input).float()`"
        in summary
    )
    measured(tmp_path, "loader_workers", program=INFERENCE, exit_code=1)
    failures = (tmp_path / "out" / "latest" / "SUMMARY.md").read_text()
    assert "the change loader_workers reached nothing in the program" in failures


@pytest.mark.slow
def test_a_change_that_fails_ends_the_program_with_its_reason(tmp_path):
    (tmp_path / "bad.py").write_text(OWN + "def apply(torch):\n    torch.no_such_switch()\n")
    seen, log = measured(tmp_path, "foreach_optimizer", "bad.py", exit_code=1)
    assert seen == [WITHOUT, {}]
    assert "profpipe: the change bad cannot be applied: AttributeError: module 'torch' has no attribute" in log


def test_what_cannot_be_changed_is_refused(tmp_path):
    def refused(*words):
        done = forked.run(tmp_path, "ab", *words, env=dict(os.environ))
        assert done.returncode == 2
        return done.stderr

    assert "'tf32' describes no side. Did you mean change:tf32?" in refused("--b", "tf32", "--", "python", "p.py")
    (tmp_path / "own.py").write_text("VARIABLES = {'X': 1}")
    assert "VARIABLES in" in refused("--b", "change:own.py", "--", "python", "p.py")
    assert "there is no change 'tf23'. Did you mean 'tf32'?" in refused("--b", "change:tf23", "--", "python", "p.py")
    (tmp_path / "w.py").write_text("def build(params):\n    return lambda: None\n")
    (tmp_path / "pipeline.yaml").write_text("version: 1\nworkloads: {w: {script: w}}\n")
    assert "change: needs a program that the start-up hook watches, and workload 'w' is none" in refused(
        "--b", "change:tf32"
    )


def test_each_change_is_listed_with_its_code(tmp_path):
    printed = profpipe(tmp_path, "list", "changes")
    assert all(f"\n{path.stem} " in f"\n{printed}" for path in plugins.files("changes", "*.py"))
    assert "bf16 autocast round the outermost module" in printed and "Alters numerics." in printed
