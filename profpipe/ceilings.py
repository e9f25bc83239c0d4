"""What this GPU reaches at best: the bytes/s of a copy within its memory and the FLOP/s of dense matmuls, by data type.

``python -m profpipe.ceilings OUT.json``, in a process of its own, on random data: zeros need less power and come out
faster. Peaks by rule (``device.peaks``) are what cannot be exceeded; these are what cuBLAS gets out of this very GPU in
its power limit, its cooling and its driver, so a kernel of another kind may well come to lie above them.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final

from profpipe import device, errors, timing
from profpipe.job import Ask
from profpipe.measuring import conditions

#: Square matmuls; the faster of the two stands. 4096 gives each SM of the largest GPUs several tiles of 128 x 256.
_SIZES: Final = (4096, 8192)
_COPY_BYTES: Final = 2 * 2**30
_RULE: Final = timing.Rule(least=10, budget_s=0.4, most=300)

#: One matmul of operands that are made already, the second transposed as in a linear layer.
_Product = Callable[[], object]


def measure(
    kind: str = "cuda", sizes: Sequence[int] = _SIZES, most_copied: int = _COPY_BYTES, rule: timing.Rule = _RULE
) -> dict[str, Any]:
    """The ceilings of torch's current device, in ten seconds or so; a data type that it does not take has a reason.

    ``copy``: bytes read and written per second, and the ``bytes`` that were copied. ``matmul``: by data type, FLOP/s at
    the ``size`` of the operands, an FMA counting two. Each with the number of samples ``n`` and their median.
    """
    import torch

    absent: dict[str, str] = {}
    rates: dict[str, dict[str, Any]] = {}
    with conditions.watching() as watched:
        copied = _copy(torch, kind, most_copied, rule)
        for dtype, operands in _PRODUCTS.items():
            try:
                found = [_matmul(torch, kind, dtype, operands, size, rule) for size in sizes]
            except (RuntimeError, AttributeError, NotImplementedError, ValueError) as error:
                absent[dtype] = errors.words(error)
            else:
                rates[dtype] = max(found, key=lambda one: float(one["flops"]))
    seen = watched.summary()
    return {
        "device": torch.cuda.get_device_name() if kind == "cuda" else kind,
        "driver": _driver(),
        "torch": torch.__version__,
        "copy": copied,
        "matmul": rates,
        "absent": absent,
        "conditions": {name: value for name, (value, _) in conditions.as_metrics(seen).items()},
        "notes": conditions.notes(seen),
    }


#: The file in the results folder from which later runs take the ceilings.
FILE: Final = "ceilings.json"
LONGEST_S: Final = 300.0


def renew(out: Path, ask: Ask) -> dict[str, Any]:
    """Measures in a process of its own, started by ``ask``, and leaves the result in ``out``; returns it.

    ``ask`` runs an argv for up to LONGEST_S and gives what it printed. Raises ToolMissing with the process's own
    words where nothing was measured; an earlier file then stays.
    """
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out, prefix=".ceilings-") as folder:
        made = Path(folder, FILE)
        said = ask([sys.executable, "-m", "profpipe.ceilings", str(made)])
        if not made.is_file():
            last = (said or f"nothing came back within {LONGEST_S:.0f} s").strip().splitlines()[-1]
            raise errors.ToolMissing(f"the ceilings were not measured: {last}")
        found: dict[str, Any] = json.loads(made.read_text(encoding="utf-8"))
        made.replace(out / FILE)
    return found


def text(found: Mapping[str, Any]) -> str:
    """What was measured, a line a rate."""
    lines = [f"{'copy':8}{found['copy']['bytes_per_s'] / 1e12:8.2f} TB/s"]
    lines += [f"{dtype:8}{one['flops'] / 1e12:8.1f} TFLOP/s" for dtype, one in found["matmul"].items()]
    lines += [f"{dtype:8}{'':8} not measured: {reason}" for dtype, reason in found["absent"].items()]
    return "\n".join([*lines, *found["notes"]])


def load(path: Path, gpus: Iterable[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Ceilings measured on one of ``gpus``, or its like, in the form of ``device.peaks``, with its name as ``device``.

    None where ``path`` holds none of them.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["device"] not in [gpu.get("name") for gpu in gpus]:
            return None
        matmul, copied = found["matmul"], found["copy"]
        sizes = ", ".join(f"{dtype} {one['size']} (n={one['n']})" for dtype, one in matmul.items())
        return {
            "device": found["device"],
            "flops": {dtype: one["flops"] for dtype, one in matmul.items()},
            "bytes_per_s": copied["bytes_per_s"],
            "source": f"measured on such a GPU with driver {found['driver']} and torch {found['torch']}: a copy of "
            f"{copied['bytes'] / 2**20:.0f} MiB (n={copied['n']}), square matmuls of {sizes or 'no type'}",
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def main(argv: Sequence[str]) -> int:
    """Measures and writes ``argv[0]``, whole or not at all."""
    if len(argv) != 1:
        print("usage: python -m profpipe.ceilings OUT.json", file=sys.stderr)
        return errors.BAD_INPUT
    try:
        import torch
    except ImportError:
        torch = None
    if torch is None or not torch.cuda.is_available():
        print("Ceilings are measured by torch on a GPU, and there is none here.", file=sys.stderr)
        return errors.TOOL_MISSING
    out = Path(argv[0])
    partial = out.with_name(f"partial-{out.name}")
    partial.write_text(json.dumps(measure(), indent=2) + "\n", encoding="utf-8")
    partial.replace(out)
    return errors.OK


def _driver() -> str | None:
    with device.nvml() as library:
        return None if library is None else str(library.nvmlSystemGetDriverVersion())


# --- what is run -----------------------------------------------------------------------------------------------------


def _median_ns(fn: Callable[[], object], kind: str, rule: timing.Rule) -> tuple[float, int]:
    timing.settle(fn, device=kind, least=3, budget_s=rule.budget_s / 2)
    samples = timing.sample(fn, device=kind, rule=rule, range_name="", annotate=lambda _: nullcontext())
    return statistics.median(samples.values_ns), len(samples.values_ns)


def _copy(torch: Any, kind: str, most: int, rule: timing.Rule) -> dict[str, Any]:
    """From one half of the memory in use to the other; far more than the L2 holds."""
    free = torch.cuda.mem_get_info()[0] if kind == "cuda" else 4 * most
    source = torch.empty(min(most, free // 4) // 4, dtype=torch.int32, device=kind).random_()
    target = torch.empty_like(source)
    size = source.numel() * source.element_size()
    median_ns, n = _median_ns(lambda: target.copy_(source), kind, rule)
    return {"bytes_per_s": 2 * size / median_ns * 1e9, "bytes": size, "n": n, "median_ns": median_ns}


def _matmul(
    torch: Any, kind: str, dtype: str, product: Callable[[Any, str, int], _Product], size: int, rule: timing.Rule
) -> dict[str, Any]:
    with _precision(torch, "high" if dtype == "tf32" else "highest"):
        median_ns, n = _median_ns(product(torch, kind, size), kind, rule)
    return {"flops": 2 * size**3 / median_ns * 1e9, "size": size, "n": n, "median_ns": median_ns}


@contextmanager
def _precision(torch: Any, precision: str) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _floats(dtype: str) -> Callable[[Any, str, int], _Product]:
    def product(torch: Any, kind: str, size: int) -> _Product:
        a, b = (torch.randn(size, size, device=kind, dtype=getattr(torch, dtype)) for _ in range(2))
        return lambda: a @ b.t()

    return product


def _tf32(torch: Any, kind: str, size: int) -> _Product:
    if kind == "cuda" and torch.cuda.get_device_capability() < (8, 0):
        raise RuntimeError("this GPU has no TF32")  # and torch would run fp32 without a word
    return _floats("float32")(torch, kind, size)


def _fp8(torch: Any, kind: str, size: int) -> _Product:
    """With fast accumulation, as inference does it; torch names no public matmul of fp8 (2.13)."""
    a, b = (torch.randn(size, size, device=kind).to(torch.float8_e4m3fn) for _ in range(2))
    one = torch.ones((), device=kind)
    return lambda: torch._scaled_mm(
        a, b.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=kind == "cuda"
    )


def _int8(torch: Any, kind: str, size: int) -> _Product:
    a, b = (torch.randint(-128, 128, (size, size), device=kind, dtype=torch.int8) for _ in range(2))
    return lambda: torch._int_mm(a, b.t())


_PRODUCTS: Final[Mapping[str, Callable[[Any, str, int], _Product]]] = {
    "fp16": _floats("float16"),
    "bf16": _floats("bfloat16"),
    "tf32": _tf32,
    "fp32": _floats("float32"),
    "fp8": _fp8,
    "int8": _int8,
}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
