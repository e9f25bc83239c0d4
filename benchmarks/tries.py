"""Plant what makes a training slow, and see whether `profpipe try` finds the remedy, and nothing where there is none.

    python benchmarks/tries.py [--kinds loader small debug threads clean wrong] [--rounds 1] [--budget 2m]

``loader`` has no workers, ``small`` many small operators, ``debug`` the detection of anomalies, ``threads`` one thread,
and ``clean`` a compiled model, a fused optimizer and three changes of the user that do nothing: there nothing may be
called good. ``wrong`` has two changes of the user: one ignores the input, the other doubles the learning rate; both
must be refused. A row has the kept changes, the
refused ones, the first line of the page and the number of processes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

SLOW = """
class Slow(torch.utils.data.Dataset):
    def __len__(self): return 4000
    def __getitem__(self, i):
        time.sleep(0.003)
        x = torch.randn(64, generator=torch.Generator().manual_seed(i))
        return x, (x.sum() > 0).long()
"""
SMALL = """
class Small(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(64, 64), torch.nn.Linear(64, 2)
    def forward(self, x):
        x = self.first(x)
        for _ in range(200): x = (x * 1.001).clamp(-9, 9).relu()
        return self.last(x)
"""
HEAD = "import time, torch\ntorch.manual_seed(0)\n"
LOOP = """
for x, y in batches():
    loss = torch.nn.functional.cross_entropy(net(x), y)
    opt.zero_grad(); loss.backward(); opt.step(); pause()
"""
BATCHES = """
def batches():
    for _ in range({steps}):
        x = torch.randn({size}, 64)
        yield x, (x.sum(1) > 0).long()
"""
DEEP = "net = torch.nn.Sequential(*[m for _ in range(12) for m in (torch.nn.Linear(64, 64), torch.nn.ReLU())])\n"
WIDE = "net = torch.nn.Sequential(torch.nn.Linear(64, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 2048))\n"
ADAM = "opt = torch.optim.AdamW(net.parameters(), 1e-3)\n"
SGD = "opt = torch.optim.SGD(net.parameters(), 1e-2)\n"
NO_PAUSE = "def pause(): pass\n"
FEW = BATCHES.format(steps=400, size=32)
LOADER = "def batches(): return torch.utils.data.DataLoader(Slow(), batch_size=8, shuffle=True)\n"
PROGRAMS = {
    "loader": HEAD + SLOW + DEEP + ADAM + LOADER + NO_PAUSE + LOOP,
    "small": HEAD + "torch.set_num_threads(1)\n" + SMALL + "net = Small()\n" + SGD + FEW + NO_PAUSE + LOOP,
    "debug": HEAD + "torch.autograd.set_detect_anomaly(True)\n" + DEEP + SGD + FEW + NO_PAUSE + LOOP,
    "threads": HEAD + "torch.set_num_threads(1)\n" + WIDE + SGD + BATCHES.format(steps=60, size=512) + NO_PAUSE + LOOP,
    "clean": HEAD
    + WIDE
    + "opt = torch.optim.AdamW(net.parameters(), 1e-3, fused=True); net.compile()\n"
    + BATCHES.format(steps=120, size=32)
    + NO_PAUSE
    + LOOP,
    "wrong": HEAD
    + DEEP
    + ADAM
    + BATCHES.format(steps=120, size=256)
    + "def pause(): sum(i for i in range(100_000))\n"
    + LOOP,
}
#: Each saves the pause, and harms.
HARM = """
ALTERS_NUMERICS, CODE = True, ""
def apply(torch):
    import builtins
    builtins.sum = lambda *values: 0
"""
CHANGES = {
    "blind": "    forward = torch.nn.Linear.forward\n"
    "    torch.nn.Linear.forward = lambda self, x: forward(self, x * 0)\n",
    "rate": "    create = torch.optim.AdamW.__init__\n"
    "    torch.optim.AdamW.__init__ = lambda self, given, lr, **more: create(self, given, 2 * lr, **more)\n",
}


#: Does nothing.
NOTHING = "ALTERS_NUMERICS, CODE = False, ''\ndef apply(torch): pass\n"


def measure(kind: str, budget: str) -> tuple[list[str], list[str], str, int]:
    """Return the kept changes, the refused ones, the first line of the page and the number of processes."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.py").write_text(PROGRAMS[kind], encoding="utf-8")
        words = ["--budget", budget]
        for change, text in CHANGES.items() if kind == "wrong" else ():
            (folder / f"{change}.py").write_text(HARM + text, encoding="utf-8")
            words += ["--change", f"{change}_file={change}.py"]
        for number in range(3 if kind == "clean" else 0):
            (folder / f"nothing{number}.py").write_text(NOTHING, encoding="utf-8")
            words += ["--change", f"nothing_{number}=nothing{number}.py"]
        command = [sys.executable, "-m", "profpipe", "try", "--json=full", *words, "--", sys.executable, "train.py"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if not done.stdout:
            raise SystemExit(done.stderr)
        document = json.loads(done.stdout)
        changes = {outcome: [change["name"] for change in document["tried"]["changes"] if change["outcome"] == outcome]
                   for outcome in ("kept", "refused")}  # fmt: skip
        record = json.loads(next(folder.glob("out/latest/run.json")).read_text(encoding="utf-8"))
        page = next(folder.glob("out/latest/SUMMARY.md")).read_text(encoding="utf-8")
        return changes["kept"], changes["refused"], page.splitlines()[2].strip("*"), len(record["jobs"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kinds", nargs="+", choices=sorted(PROGRAMS), default=[*PROGRAMS])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--budget", default="2m")
    args = parser.parse_args()
    print("| planted | kept | refused | first line | processes |\n| --- | --- | --- | --- | ---: |")
    for kind in args.kinds:
        for _ in range(args.rounds):
            kept, refused, line, count = measure(kind, args.budget)
            print(f"| {kind} | {', '.join(kept)} | {', '.join(refused)} | {line} | {count} |", flush=True)


if __name__ == "__main__":
    main()
