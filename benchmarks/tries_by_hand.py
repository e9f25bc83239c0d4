"""Follow the page of `profpipe try` by hand on a GPU: write its changes into the source, and compare the times.

    python benchmarks/tries_by_hand.py [--programs optimizer products loader] [--mnist FOLDER] [--nanogpt FOLDER]

``optimizer`` has an AdamW that is not fused, ``products`` products in fp32, ``loader`` a data loader without workers.
FOLDER is a copy of `mnist` of pytorch/examples, or of nanoGPT with the data of shakespeare_char; their files are
changed, and written back. A row has what the page chose, its time of a step with and without, and the times of the
source by hand and as it was, in ms; where the page chose nothing, its sentence. ``--out`` keeps the pages.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HEAD = "import time, torch\ntorch.manual_seed(0)\ndev = 'cuda'\n"
NET = """layers = [m for _ in range({layers}) for m in (torch.nn.Linear({width}, {width}), torch.nn.ReLU())]
net = torch.nn.Sequential(*layers, torch.nn.Linear({width}, 10)).to(dev)
"""
STEP = """
    loss = torch.nn.functional.cross_entropy(net(x), y)
    opt.zero_grad(); loss.backward(); opt.step()
"""
RANDOM = "    x = torch.randn({batch}, 4096, device=dev); y = (x.sum(1) > 0).long()"
LOADED = """class Slow(torch.utils.data.Dataset):
    def __len__(self): return 4000
    def __getitem__(self, i):
        time.sleep(0.002)
        x = torch.randn(1024, generator=torch.Generator().manual_seed(i))
        return x, (x.sum() > 0).long()
for x, y in torch.utils.data.DataLoader(Slow(), batch_size=16, shuffle=True):
    x, y = x.to(dev), y.to(dev)"""
ADAMW = "opt = torch.optim.AdamW(net.parameters(), 1e-5)\n"
PLANTED = {
    "optimizer": HEAD
    + NET.format(layers=8, width=4096)
    + ADAMW
    + "for _ in range(300):\n"
    + RANDOM.format(batch=64)
    + STEP,
    "products": HEAD
    + NET.format(layers=6, width=4096)
    + "opt = torch.optim.SGD(net.parameters(), 1e-3)\nfor _ in range(50):\n"
    + RANDOM.format(batch=4096)
    + STEP,
    "loader": HEAD + NET.format(layers=12, width=1024) + ADAMW + LOADED + STEP,
}
ONLY = {
    "optimizer": "fused_optimizer,foreach_optimizer",
    "products": "tf32,bf16",
    "loader": "loader_workers,fused_optimizer",
}
WORKERS = "num_workers=max(4, len(__import__('os').sched_getaffinity(0)) // 2)"
TF32 = "torch.set_float32_matmul_precision('high'); torch.backends.cudnn.allow_tf32 = True"

#: What to write into a program for a change: a pattern of its source, and what takes its place.
Edits = dict[str, tuple[str, str]]
OF_PLANTED: Edits = {
    "fused_optimizer": (r"(torch\.optim\.\w+\(net\.parameters\(\), [^)]*)\)", r"\1, fused=True)"),
    "foreach_optimizer": (r"(torch\.optim\.\w+\(net\.parameters\(\), [^)]*)\)", r"\1, foreach=True)"),
    "tf32": (r"dev = 'cuda'\n", f"dev = 'cuda'\n{TF32}\n"),
    "bf16": (
        r"    loss = torch.nn.functional.cross_entropy\(net\(x\), y\)",
        "    with torch.autocast(dev, torch.bfloat16): output = net(x).float()\n"
        "    loss = torch.nn.functional.cross_entropy(output, y)",
    ),
    "loader_workers": (r"shuffle=True", f"shuffle=True, {WORKERS}, persistent_workers=True, pin_memory=True"),
}
OF_MNIST: Edits = {
    "tf32": (r"\ndef main\(\):\n", f"\ndef main():\n    {TF32}\n"),
    "cudnn_benchmark": (r"\ndef main\(\):\n", "\ndef main():\n    torch.backends.cudnn.benchmark = True\n"),
    "bf16": (
        r"output = model\(data\)\n        loss",
        "with torch.autocast('cuda', torch.bfloat16): output = model(data).float()\n        loss",
    ),
    "channels_last": (r"Net\(\)\.to\(device\)", "Net().to(device).to(memory_format=torch.channels_last)"),
    "loader_workers": (r"'num_workers': 1", "'num_workers': max(4, len(__import__('os').sched_getaffinity(0)) // 2)"),
    "compile": (r"model = Net\(\)\.to\(device\)", "model = Net().to(device); model.compile()"),
    "gc_freeze": (r"    for epoch in range\(1,", "    import gc; gc.collect(); gc.freeze()\n    for epoch in range(1,"),
}
#: nanoGPT has TF32 and a fused AdamW.
OF_NANOGPT: Edits = {
    "bf16": (
        r"(    with ctx:\n            )(logits, loss = model\(X, Y\)\n            loss)",
        r"\1with torch.autocast('cuda', torch.bfloat16): \2",
    ),
    "compile": (r"model\.to\(device\)\n", "model.to(device)\nmodel.compile()\n"),
    "gc_freeze": (
        r"\nX, Y = get_batch\('train'\)",
        "\nimport gc; gc.collect(); gc.freeze()\nX, Y = get_batch('train')",
    ),
}
NANOGPT = ["config/train_shakespeare_char.py", "--compile=False", "--eval_iters=1", "--eval_interval=10000",
           "--max_iters=300", "--dtype=float32"]  # fmt: skip


def profpipe(folder: Path, *words: str) -> Any:
    """Return what profpipe prints as JSON in ``folder``."""
    command = [sys.executable, "-m", "profpipe", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if not done.stdout:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout)


def measure(folder: Path, file: str, arguments: list[str], edits: Edits, words: list[str]) -> list[str]:
    """Return the cells of a row: the chosen changes, the page's times, and those by hand and without a change.

    ``words`` are options of `profpipe try`.
    """
    program = ["--", sys.executable, file, *arguments]
    document = profpipe(folder, "try", "--json=full", *words, *program)
    if not document["cases"]:
        return [Path(document["summary"]).read_text(encoding="utf-8").splitlines()[2].strip("*"), "", "", "", ""]
    tried, case = document["tried"], document["cases"][0]
    path = folder / file
    source = text = path.read_text(encoding="utf-8")
    for change in tried["chosen"]:
        text = re.sub(*edits[change], text, count=1)
    steps = min(max(math.ceil(1e9 / tried["unchanged"]["ns"]), 20), 200)
    times = []
    try:
        for version in (text, source, text):
            path.write_text(version, encoding="utf-8")
            with tempfile.TemporaryDirectory() as name:
                of_steps = ["--stop", "--warmup-steps", "50", "--measure-steps", str(steps)]
                run = profpipe(folder, "run", "-p", "plain", "--json=full", "--out", name, *of_steps, *program)
            times.append(run["cases"][0]["time"]["median"] / 1e6)
    finally:
        path.write_text(source, encoding="utf-8")
    by_hand = f"{times[0]:.3f} and {times[2]:.3f}"
    page = f"{case['b_ns'] / 1e6:.3f}", f"{case['a_ns'] / 1e6:.3f}"
    return [", ".join(tried["chosen"]), page[0], by_hand, page[1], f"{times[1]:.3f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--programs", nargs="*", choices=sorted(PLANTED), default=[*PLANTED])
    parser.add_argument("--mnist", type=Path)
    parser.add_argument("--nanogpt", type=Path)
    parser.add_argument("--budget", default="2m")
    parser.add_argument("--out", type=Path, default="out/tries_by_hand")
    args = parser.parse_args()
    out = args.out.resolve()
    print(
        "| program | chosen | page | by hand | page, unchanged | as it was |\n| --- | --- | ---: | ---: | ---: | ---: |"
    )

    def show(name: str, cells: list[str]) -> None:
        print(f"| {' | '.join([name, *cells])} |", flush=True)

    for name in args.programs:
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "train.py").write_text(PLANTED[name], encoding="utf-8")
            words = ["--budget", args.budget, "--only", ONLY[name], "--out", str(out / name)]
            show(name, measure(Path(folder), "train.py", [], OF_PLANTED, words))
    if args.mnist:
        words = ["--budget", args.budget, "--without", "compile_reduce_overhead", "--out", str(out / "mnist")]
        show("mnist", measure(args.mnist, "main.py", ["--epochs", "1"], OF_MNIST, words))
    if args.nanogpt:
        words = ["--budget", args.budget, "--only", "bf16,compile,gc_freeze", "--out", str(out / "nanogpt")]
        show("nanoGPT", measure(args.nanogpt, "train.py", NANOGPT, OF_NANOGPT, words))


if __name__ == "__main__":
    main()
