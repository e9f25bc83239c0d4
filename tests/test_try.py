"""``profpipe try``: which changes make a program faster. The program runs with the real torch, on the CPU."""

import json
import sys
from dataclasses import replace

import forked
import pytest
from program import profpipe

from profpipe.report import document as doc
from profpipe.report.sections import tries
from profpipe.results.manifest import TriedChange, TryEntry, TryOutcome
from profpipe.results.schema import Verdict

#: It waits for its items, and a little longer in each eighth step. It writes a checkpoint into its folder and resumes
#: from it, and logs outside of its folder. The fourth process, the second as it is, is slower.
TRAIN = """
import os, sys, time, torch
from torch.utils.data import DataLoader, Dataset
torch.set_num_threads(1)
class Slow(Dataset):
    def __len__(self): return 1000
    def __getitem__(self, i):
        time.sleep(0.004 if open(sys.argv[1]).read().count("begun") != 4 else 0.02)
        x = torch.randn(16, generator=torch.Generator().manual_seed(i))
        return x, (x.sum() > 0).long()
net = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))
opt = torch.optim.AdamW(net.parameters(), 1e-3)
if os.path.exists("last.pt"): net.load_state_dict(torch.load("last.pt"))
with open(sys.argv[1], "a") as log: log.write("begun\\n")
for n, (x, y) in enumerate(DataLoader(Slow(), batch_size=8, shuffle=True)):
    if n % 8 == 0: time.sleep(0.004)
    loss = torch.nn.functional.cross_entropy(net(x), y)
    opt.zero_grad(); loss.backward(); opt.step()
    torch.save(net.state_dict(), "last.pt")
"""
#: It saves all waiting, and doubles the learning rate.
WRONG = '''
"""No item waits, and the learning rate is twice as high."""
ALTERS_NUMERICS, CODE = True, "lr=2e-3"
def apply(torch):
    import time
    time.sleep = lambda seconds: None
    create = torch.optim.AdamW.__init__
    torch.optim.AdamW.__init__ = lambda self, given, lr, **more: create(self, given, 2 * lr, **more)
'''


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.mark.slow
def test_the_remedy_is_kept_what_harms_is_refused_and_the_folder_stays_as_it_was(tmp_path):
    folder = tmp_path / "src"
    folder.mkdir()
    (folder / "train.py").write_text(TRAIN, encoding="utf-8")
    (folder / "wrong.py").write_text(WRONG.strip(), encoding="utf-8")
    before = files(folder)
    # What is in folders for temporary files is no loss. Sockets of torch lie there: 107 characters at most.
    (tmp_path / "t").mkdir()
    log = tmp_path / "begun.log"
    names = ["--only", "loader_workers,gc_freeze,tf32", "--change", "rate=wrong.py"]
    options = ["--budget", "10s", "--pairs", "1", "--measure-steps", "20", *names]
    program = ("--", sys.executable, "train.py", str(log))
    document = json.loads(profpipe(folder, "try", "--json=full", *options, *program, TMPDIR=str(tmp_path / "t")))
    changes = {change["name"]: change for change in document["tried"]["changes"]}
    assert {name: change["outcome"] for name, change in changes.items()} == {
        # One pair is no verdict.
        "loader_workers": "undecided", "gc_freeze": "not tried", "tf32": "not tried", "rate": "refused",
    }, changes  # fmt: skip
    assert changes["loader_workers"]["place"] == "train.py:15"
    assert ", seeds ±" in changes["rate"]["reason"]
    assert changes["tf32"]["reason"] == "the model is on a CPU"
    assert changes["gc_freeze"]["reason"].startswith("garbage collection: ")
    # Eight items of 4 ms: long steps that recur make no iteration of eight steps.
    assert 0.03e9 < document["tried"]["unchanged"]["ns"] < 0.2e9
    assert document["cases"][0]["b_ns"] < 0.8 * document["cases"][0]["a_ns"] and not document["tried"]["harm"]
    # The checkpoint of a process is in its copy: no process has resumed from that of another one.
    assert files(folder) == before and document["tried"]["loss"].startswith("loss ")
    assert not (folder / "out" / "latest" / "raw" / "checkouts").exists()
    assert log.read_text().count("begun") == len(json.loads((folder / "out/latest/run.json").read_text())["jobs"])
    page = (folder / "out" / "latest" / "SUMMARY.md").read_text(encoding="utf-8")
    assert f"The program writes outside of its folder, in each process anew: `{log}`." in page
    assert "- Without a change a step took " in page and "so smaller gains are not found." in page
    answer = json.loads(profpipe(folder, "report", "out/latest", "--json"))
    assert answer["chosen"] == ["loader_workers"] and {change["name"] for change in answer["changes"]} == {*changes}
    record = json.loads((folder / "out/latest/run.json").read_text(encoding="utf-8"))
    assert "- Each process ended after " in page
    record["ab"]["tried"] |= {"chosen": ["loader_workers", "rate"], "harm": "loss +9 %, seeds ±1 %"}
    (folder / "out/latest/run.json").write_text(json.dumps(record), encoding="utf-8")
    assert "Try the other changes again without what alters numerics: rate." in profpipe(folder, "report", "out/latest")


def test_a_change_that_takes_long_to_start_says_when_that_is_repaid():
    """10 s of compilation and 10 ms less a step: a thousand steps, of which the first process has made two hundred."""
    unchanged = TriedChange("unchanged", TryOutcome.KEPT, seconds=6.0, ns=30e6)
    compiled = TriedChange("compile", TryOutcome.KEPT, seconds=14.0, ns=20e6)
    tried = TryEntry(chosen=("compile",), unchanged=unchanged, changes=(compiled,), steps=200)
    ended, said = map(doc.plain, tries.list_limits(tried, Verdict.FASTER))
    assert ended.startswith("Each process ended after 200 steps.")
    assert said == "With compile the first process takes 8 s longer. About 1,000 steps repay that."
    (ended,) = tries.list_limits(replace(tried, changes=(replace(compiled, seconds=7.0),)), Verdict.FASTER)
    assert [*tries.list_limits(tried, Verdict.INCONCLUSIVE)] == [ended]


@pytest.mark.exhaustive
def test_what_alters_numerics_leaves_a_combination_that_harms_first(tmp_path):
    """The one that alters numerics is faster, and harms only beside the other one."""
    (tmp_path / "train.py").write_text(TRAIN, encoding="utf-8")
    for name, part, alters in (("numeric", 0.3, True), ("safe", 0.6, False)):
        text = WRONG.strip().replace("= True, ", f"= {alters}, ").replace("None", f"sleep(seconds * {part})")
        text = text.replace(
            "import time", "import time\n    sleep = time.sleep\n    both = hasattr(torch, 'is_applied')"
        )
        text = text.replace("2 * lr", "(3 if both else 1) * lr") + "\n    torch.is_applied = True"
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    names = ["--only", "gc_freeze", "--change", "numeric=numeric.py", "--change", "safe=safe.py"]
    options = ["--budget", "10s", "--pairs", "1", "--measure-steps", "20", *names]
    program = ("--", sys.executable, "train.py", str(tmp_path / "begun.log"))
    tried = json.loads(profpipe(tmp_path, "try", "--json=full", *options, *program))["tried"]
    changes = {change["name"]: change for change in tried["changes"]}
    assert tried["chosen"] == ["safe"] and changes["numeric"]["outcome"] == "refused", changes
    assert ", seeds ±" in changes["numeric"]["reason"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--only", "bf17"], "there is no change 'bf17'. Did you mean 'bf16'?"),
        (["--change", "bf16=env:A=1"], "'bf16=env:A=1' is not NAME=SPEC"),
        (["--change", "mine=env"], "'env' describes no side"),
        (["--change", "mine=absent.py"], "there is no change 'absent.py'"),
        (["--budget", "2"], "'2' is no time"),
    ],
)
def test_a_wrong_change_is_refused_before_anything_runs(tmp_path, words, message):
    done = forked.run(tmp_path, "try", *words, "--", sys.executable, "-c", "pass")
    assert done.returncode == 2 and message in done.stderr and not (tmp_path / "out").exists()


def test_it_needs_a_program(tmp_path):
    done = forked.run(tmp_path, "try")
    assert done.returncode == 2 and "needs a program" in done.stderr


@pytest.mark.slow
def test_a_program_without_torch_says_why_nothing_was_tried(tmp_path):
    (tmp_path / "p.py").write_text("print('no torch')", encoding="utf-8")
    profpipe(tmp_path, "try", "-q", "--", sys.executable, "p.py")
    page = (tmp_path / "out" / "latest" / "SUMMARY.md").read_text(encoding="utf-8")
    assert "**No change was tried: the program calls no module of torch, or makes no steps.**" in page


@pytest.mark.slow
def test_a_program_that_fails_is_a_failure(tmp_path):
    (tmp_path / "p.py").write_text("import torch; raise SystemExit('no data')", encoding="utf-8")
    profpipe(tmp_path, "try", "-q", "--", sys.executable, "p.py", exit_code=1)
