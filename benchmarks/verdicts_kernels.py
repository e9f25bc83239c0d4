"""Whether `profpipe ab` names the kernels behind a difference: known changes on a GPU, each with what must be found.

    python benchmarks/verdicts_kernels.py OUT [--pairs 8] [--captures 3] [--only operations,program] [-p nsys]
    python benchmarks/verdicts_kernels.py --runs OUT/*/*-ab

The first form runs two comparisons on this machine. `operations` has four cases in one process: B launches an addition
more, multiplies with TF32, takes attention from cuDNN instead of FlashAttention, and has a fused optimizer. `program`
trains examples/own_program/gpt.py, with 12 heads on A and 6 on B, and compares its steps. The second form reads such
runs again. Both print a line for each case, and end with 1 where a kernel that must be found is not.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from profpipe_run import ROOT

from profpipe.analysis import pairs
from profpipe.analysis.kernel_differences import KernelComparison, KernelDifference
from profpipe.report.sections.verdicts import write_verdict
from profpipe.results import store
from profpipe.results.schema import KernelChange

SCRIPT = '''
"""One operation in two variants; the sides of a comparison choose the variant."""

import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

PARAMS = {"operation": "add", "changed": False}
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HALF = torch.float16 if DEVICE == "cuda" else torch.float32
SIZE = 4096 if DEVICE == "cuda" else 256


def build(params):
    return {"add": add, "tf32": tf32, "attention": attention, "optimizer": optimizer}[params["operation"]](
        params["changed"]
    )


def add(changed):
    a, b, product, total = (torch.randn(SIZE, SIZE, device=DEVICE, dtype=HALF) for _ in range(4))

    def call():
        torch.mm(a, b, out=product)
        torch.add(product, a, out=total)
        if changed:
            torch.add(total, b, out=total)

    return call


def tf32(changed):
    a, b, out = (torch.randn(SIZE, SIZE, device=DEVICE) for _ in range(3))

    def call():
        torch.backends.cuda.matmul.allow_tf32 = changed
        torch.mm(a, b, out=out)

    return call


def attention(changed):
    shape = (2, 16, SIZE, 128) if DEVICE == "cuda" else (1, 2, SIZE, 64)
    q, k, v = (torch.randn(shape, device=DEVICE, dtype=HALF) for _ in range(3))
    other = SDPBackend.CUDNN_ATTENTION if DEVICE == "cuda" else SDPBackend.MATH
    backend = other if changed else SDPBackend.FLASH_ATTENTION

    def call():
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, k, v)

    return call


def optimizer(changed):
    weights = [torch.randn(1024, 1024, device=DEVICE, requires_grad=True) for _ in range(24)]
    for weight in weights:
        weight.grad = torch.randn_like(weight)
    return torch.optim.AdamW(weights, lr=1e-4, fused=changed, foreach=not changed).step
'''

OPERATIONS = """
version: 1
name: operations
workloads:
  operations:
    script: operations.py
    profilers: [plain]
    matrix: {operation: [add, tf32, attention, optimizer], changed: [false]}
"""

PROGRAM = """
version: 1
name: program
workloads:
  gpt:
    command: ["{python}", gpt.py, --layers, "4", --batch, "8", --steps, "40", --heads, "{heads}"]
    matrix: {heads: [12]}
"""

SIDES = {
    "operations": ("set:changed=false", "set:changed=true"),
    "program": ("set:heads=12", "set:heads=6"),
}


@dataclass(frozen=True)
class Expectation:
    """What the captures of a case must show, for people and as a function of its kernels."""

    text: str
    holds: Callable[[KernelComparison], bool]


def _some(holds: Callable[[KernelDifference], bool]) -> Callable[[KernelComparison], bool]:
    return lambda found: any(map(holds, found.kernels))


def _is_exchanged(kernel_class: str) -> Callable[[KernelComparison], bool]:
    return _some(lambda kernel: kernel.change is KernelChange.EXCHANGED and kernel.kernel_class == kernel_class)


EXPECTED = {
    ("operations", "operation=add"): Expectation(
        "add: 2 launches for 1",
        _some(lambda own: (own.kernel_class, own.a.calls, own.b.calls) == ("add", 1, 2) and own.part_ns > 0),
    ),
    ("operations", "operation=tf32"): Expectation("gemm exchanged", _is_exchanged("gemm")),
    ("operations", "operation=attention"): Expectation("attention exchanged", _is_exchanged("attention")),
    ("operations", "operation=optimizer"): Expectation(
        "fewer launches", lambda found: sum(kernel.b.calls - kernel.a.calls for kernel in found.kernels) < 0
    ),
    ("gpt", "default"): Expectation("attention exchanged", _is_exchanged("attention")),
}


def measure(out: Path, names: Sequence[str], options: Sequence[str]) -> list[Path]:
    """Run the comparisons ``names`` in ``out``; return the folders of their runs."""
    out = out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    (out / "operations.py").write_text(SCRIPT, encoding="utf-8")
    (out / "gpt.py").write_bytes((ROOT / "examples" / "own_program" / "gpt.py").read_bytes())
    folders = []
    for name in names:
        pipeline = out / f"{name}.yaml"
        text = {"operations": OPERATIONS, "program": PROGRAM.replace("{python}", sys.executable)}[name]
        pipeline.write_text(text, encoding="utf-8")
        a, b = SIDES[name]
        argv = [sys.executable, "-m", "profpipe", "ab", str(pipeline), "--a", a, "--b", b, *options]
        done = subprocess.run([*argv, "--quiet", "--out", str(out / name)], cwd=ROOT, check=False)
        if done.returncode:
            sys.exit(f"{' '.join(argv)} ended with {done.returncode}")
        folders.append((out / name / "latest").resolve())
    return folders


def check(folder: Path) -> Iterator[tuple[str, str, bool]]:
    """Yield for each case: its verdict with the kernels, what must be found, and whether it was."""
    data, run = store.load(folder)
    for case in pairs.analyze(data, run).cases:
        expected, found = EXPECTED[case.workload, case.case], case.kernels
        parts_ns = sum(kernel.part_ns for kernel in found.kernels) + found.not_in_kernels_ns if found else None
        holds = found is not None and parts_ns == found.difference_ns and expected.holds(found)
        yield write_verdict(case), expected.text, holds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, nargs="?", help="folder for the runs")
    parser.add_argument("--pairs", default="8", help="pairs of processes of each comparison")
    parser.add_argument("--captures", default="3", help="pairs with a capture of each side")
    parser.add_argument("--only", default="operations,program", help="comparisons to run")
    parser.add_argument("-p", "--profiler", help="profiler of the captures")
    parser.add_argument("--runs", type=Path, nargs="+", metavar="RUN", help="folders of ab runs to read")
    args = parser.parse_args()
    options = ["--pairs", args.pairs, "--captures", args.captures, *(["-p", args.profiler] if args.profiler else [])]
    if not args.runs and not args.out:
        parser.error("name a folder for the runs, or --runs")
    folders = args.runs or measure(args.out, args.only.split(","), options)
    found = [line for folder in folders for line in check(folder)]
    print("| case | must be found | found |\n| --- | --- | --- |")
    for verdict, expected, holds in found:
        print(f"| {verdict} | {expected} | {'yes' if holds else '**no**'} |")
    return 0 if all(holds for _, _, holds in found) else 1


if __name__ == "__main__":
    sys.exit(main())
