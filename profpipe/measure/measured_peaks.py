"""Measures the rates that this GPU reaches: bytes/s of a copy in its memory, FLOP/s of dense matmuls by data type.

``python -m profpipe.measure.measured_peaks OUT.json`` uses random data, because zeros need less power and run faster.
The peaks by rule (``machine.peaks``) are upper bounds. The measured rates are those of cuBLAS on this GPU with its
power limit, cooling and driver; another kernel may exceed them.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final

from profpipe import errors
from profpipe.job import RunTool
from profpipe.measure import conditions, machine, sampling

#: Sizes of square matmuls; the faster one counts.
_SIZES: Final = (4096, 8192)
_COPY_BYTES: Final = 2 * 2**30
_RULE: Final = sampling.StoppingRule(min_samples=10, budget_s=0.4, max_samples=300)

#: ``(torch, device, size)`` -> one matmul of existing operands, the second transposed as in a linear layer.
_MakeProduct = Callable[[Any, str, int], Callable[[], object]]


def measure(
    kind: str = "cuda",
    sizes: Sequence[int] = _SIZES,
    max_copy_bytes: int = _COPY_BYTES,
    rule: sampling.StoppingRule = _RULE,
) -> dict[str, Any]:
    """Measure the peak rates of torch's current device, in about ten seconds.

    ``copy``: bytes read and written per second. ``matmul``: by data type, FLOP/s (an FMA counts two) at the ``size``
    of the operands. ``n`` is the number of samples. ``absent``: why the device does not support a data type.
    """
    import torch

    absent: dict[str, str] = {}
    rates: dict[str, dict[str, Any]] = {}
    with conditions.monitor_gpu() as monitor:
        copied = _copy(torch, kind, max_copy_bytes, rule)
        for dtype in PRODUCTS:
            try:
                products = [_matmul(torch, kind, dtype, size, rule) for size in sizes]
            except (RuntimeError, AttributeError, ValueError) as error:
                absent[dtype] = errors.words(error)
            else:
                rates[dtype] = max(products, key=lambda product: float(product["flops"]))
    measured = monitor.conditions()
    with machine.nvml() as library:
        driver = None if library is None else str(library.nvmlSystemGetDriverVersion())
    return {
        "device": torch.cuda.get_device_name() if kind == "cuda" else kind,
        "driver": driver,
        "torch": torch.__version__,
        "copy": copied,
        "matmul": rates,
        "absent": absent,
        "conditions": {name: value for name, (value, _) in measured.metrics().items()},
        "notes": list(measured.findings.values()),
    }


#: The file in the results folder from which later runs read the measured rates.
FILE: Final = "ceilings.json"
LONGEST_S: Final = 300.0


def renew(out: Path, ask_python: RunTool) -> dict[str, Any]:
    """Measure in a separate process and store the result in ``out``; return it.

    ``ask_python`` runs this interpreter in another folder for up to LONGEST_S and returns its output. Raises
    ToolMissing with the last line of that output where nothing was measured; an earlier file is kept then.
    """
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.absolute(), prefix=".ceilings-") as folder:
        made = Path(folder, FILE)
        output = ask_python(["-m", "profpipe.measure.measured_peaks", str(made)])
        if not made.is_file():
            last = (output or f"no output within {LONGEST_S:.0f} s").strip().splitlines()[-1]
            raise errors.ToolMissing(f"the ceilings were not measured: {last}")
        ceilings: dict[str, Any] = json.loads(made.read_text(encoding="utf-8"))
        made.replace(out / FILE)
    return ceilings


def text(ceilings: Mapping[str, Any]) -> str:
    """Format the measured rates, one per line."""
    lines = [f"{'copy':8}{ceilings['copy']['bytes_per_s'] / 1e12:8.2f} TB/s"]
    lines += [f"{dtype:8}{product['flops'] / 1e12:8.1f} TFLOP/s" for dtype, product in ceilings["matmul"].items()]
    lines += [f"{dtype:8}{'':8} not measured: {reason}" for dtype, reason in ceilings["absent"].items()]
    return "\n".join([*lines, *ceilings["notes"]])


def load(path: Path, gpus: Iterable[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Load rates measured on a GPU of the same name as one of ``gpus``, in the form of ``machine.peaks``.

    The name is in ``device``. Returns None where ``path`` has no such rates.
    """
    try:
        # Reading a pipe could wait for ever.
        ceilings = json.loads(path.read_text(encoding="utf-8") if path.is_file() else "")
        if ceilings["device"] not in [gpu.get("name") for gpu in gpus]:
            return None
        matmul, copied = ceilings["matmul"], ceilings["copy"]
        sizes = ", ".join(f"{dtype} {product['size']} (n={product['n']})" for dtype, product in matmul.items())
        return {
            "device": ceilings["device"],
            "flops": {dtype: product["flops"] for dtype, product in matmul.items()},
            "bytes_per_s": copied["bytes_per_s"],
            "source": f"measured on such a GPU with driver {ceilings['driver']} and torch {ceilings['torch']}: a copy "
            f"of {copied['bytes'] / 2**20:.0f} MiB (n={copied['n']}), square matmuls of {sizes or 'no type'}",
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def main(argv: Sequence[str]) -> int:
    """Measure and write ``argv[0]`` atomically."""
    if len(argv) != 1:
        print("usage: python -m profpipe.measure.measured_peaks OUT.json", file=sys.stderr)
        return errors.BAD_INPUT
    if machine.device() == "cpu":
        print("Measuring the ceilings needs torch and a GPU. Run it on a machine with both.", file=sys.stderr)
        return errors.TOOL_MISSING
    out = Path(argv[0])
    partial = out.with_name(f"partial-{out.name}")
    partial.write_text(json.dumps(measure(), indent=2) + "\n", encoding="utf-8")
    partial.replace(out)
    return errors.OK


def _timed(fn: Callable[[], object], kind: str, rule: sampling.StoppingRule) -> dict[str, Any]:
    sampling.warm_up_until_stable(fn, device=kind, min_calls=3, budget_s=rule.budget_s / 2)
    samples = sampling.sample(fn, device=kind, rule=rule, range_name="", annotate=lambda _: nullcontext())
    return {"n": len(samples.values_ns), "median_ns": statistics.median(samples.values_ns)}


def _copy(torch: Any, kind: str, most: int, rule: sampling.StoppingRule) -> dict[str, Any]:
    """Copy one half of a buffer to the other; both are far larger than the L2."""
    free = torch.cuda.mem_get_info()[0] if kind == "cuda" else 4 * most
    source = torch.empty(min(most, free // 4) // 4, dtype=torch.int32, device=kind).random_()
    target = torch.empty_like(source)
    size = source.numel() * source.element_size()
    timed = _timed(lambda: target.copy_(source), kind, rule)
    return {"bytes_per_s": 2 * size / timed["median_ns"] * 1e9, "bytes": size, **timed}


def _matmul(torch: Any, kind: str, dtype: str, size: int, rule: sampling.StoppingRule) -> dict[str, Any]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
    try:
        timed = _timed(PRODUCTS[dtype](torch, kind, size), kind, rule)
    finally:
        torch.set_float32_matmul_precision(before)
    return {"flops": 2 * size**3 / timed["median_ns"] * 1e9, "size": size, **timed}


def _floats(dtype: str) -> _MakeProduct:
    def product(torch: Any, kind: str, size: int) -> Callable[[], object]:
        a, b = (torch.randn(size, size, device=kind, dtype=getattr(torch, dtype)) for _ in range(2))
        return lambda: a @ b.t()

    return product


def _tf32(torch: Any, kind: str, size: int) -> Callable[[], object]:
    if kind == "cuda" and torch.cuda.get_device_capability() < (8, 0):
        raise RuntimeError("this GPU has no TF32")  # torch would run fp32 instead
    return _floats("float32")(torch, kind, size)


def _fp8(torch: Any, kind: str, size: int) -> Callable[[], object]:
    """With fast accumulation, as in inference; torch has no public fp8 matmul (2.13)."""
    a, b = (torch.randn(size, size, device=kind).to(torch.float8_e4m3fn) for _ in range(2))
    one = torch.ones((), device=kind)
    return lambda: torch._scaled_mm(
        a, b.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=kind == "cuda"
    )


def _int8(torch: Any, kind: str, size: int) -> Callable[[], object]:
    a, b = (torch.randint(-128, 128, (size, size), device=kind, dtype=torch.int8) for _ in range(2))
    return lambda: torch._int_mm(a, b.t())


PRODUCTS: Final[Mapping[str, _MakeProduct]] = {
    "fp16": _floats("float16"),
    "bf16": _floats("bfloat16"),
    "tf32": _tf32,
    "fp32": _floats("float32"),
    "fp8": _fp8,
    "int8": _int8,
}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
