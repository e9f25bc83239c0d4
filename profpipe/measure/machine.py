"""Describes the machine: GPUs, driver, CPU, packages, and the peak rates of each GPU.

This module only reads NVML (nvidia-ml-py) and changes no clock, power limit or mode. The description names neither the
host nor its user.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Mapping
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import Any, Final

#: Packages whose versions a result depends on.
PACKAGES: Final = (
    "profpipe", "torch", "triton", "flash-attn", "flash-attn-3", "sageattention", "spas-sage-attn", "xformers",
    "diffusers", "nvtx", "ncu-report",
)  # fmt: skip

#: Dense floating-point operations per clock and SM by compute capability, from NVIDIA's architecture white papers
#: ("peak rates", "throughput of native arithmetic instructions"). An FMA counts two; fp16 and bf16 accumulate in fp32.
_FLOP_PER_CLOCK_SM: Final[Mapping[tuple[int, int], Mapping[str, int]]] = {
    (7, 0): {"fp16": 1024, "fp32": 128, "fp64": 64},
    (7, 5): {"fp16": 1024, "int8": 2048, "fp32": 128},
    (8, 0): {"fp16": 2048, "bf16": 2048, "tf32": 1024, "int8": 4096, "fp32": 128, "fp64": 128},
    (8, 6): {"fp16": 1024, "bf16": 1024, "tf32": 512, "int8": 2048, "fp32": 256},
    (8, 9): {"fp16": 1024, "bf16": 1024, "tf32": 512, "int8": 2048, "fp8": 2048, "fp32": 256},
    (9, 0): {"fp16": 4096, "bf16": 4096, "tf32": 2048, "int8": 8192, "fp8": 8192, "fp32": 256, "fp64": 256},
    (10, 0): {"fp16": 8192, "bf16": 8192, "tf32": 4096, "int8": 16384, "fp8": 16384, "fp32": 256, "fp64": 128},
    (10, 3): {"fp16": 8192, "bf16": 8192, "tf32": 4096, "fp8": 16384, "fp32": 256},
    (12, 0): {"fp16": 1024, "bf16": 1024, "tf32": 512, "int8": 2048, "fp8": 2048, "fp32": 256},
}

#: GeForce cards accumulate in fp32 at half the rate of workstation and server cards with the same chip: the RTX 4090
#: has 165 TFLOP/s of fp16, the L40S 362. Accumulation in 16 bits, as in SageAttention 1 for PV, has the full rate on
#: GeForce too (Ada white paper, table of the RTX 4090: 330).
_HALVED: Final[Mapping[tuple[int, int], frozenset[str]]] = {
    (7, 5): frozenset({"fp16"}),
    (8, 6): frozenset({"fp16", "bf16", "tf32"}),
    (8, 9): frozenset({"fp16", "bf16", "tf32", "fp8"}),
    (12, 0): frozenset({"fp16", "bf16", "tf32", "fp8"}),
}

#: CUDA cores by SM, to get the SM count from NVML, which knows only cores.
_CORES_PER_SM: Final[Mapping[int, int]] = {7: 64, 8: 128, 9: 128, 10: 128, 12: 128}


def machine(gpus: Iterable[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """Return the machine as run.json records it; without the UUIDs of ``gpus``."""
    return {
        "gpus": [{name: value for name, value in gpu.items() if name != "uuid"} for gpu in gpus],
        "cpu": _cpu_model(),
        "cpu_count": os.cpu_count(),
        "os": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


def packages(names: Iterable[str] = PACKAGES) -> dict[str, str]:
    """Return the versions of the installed packages among ``names``."""
    found = {}
    for name in names:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


@contextmanager
def nvml() -> Any:
    """Yield the module pynvml, initialised; None where there is no NVIDIA driver."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # ImportError, NVMLError, OSError: there is no usable driver
        yield None
        return
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


def nvidia_gpus() -> list[dict[str, Any]]:
    """Return each NVIDIA GPU in the order of NVML, which is by PCI bus; sizes in bytes, clocks in Hz.

    Values that the driver does not report are absent; so is ``mig`` where MIG is off.
    """
    with nvml() as library:
        if library is None:
            return []
        count = library.nvmlDeviceGetCount()
        return [_gpu(library, library.nvmlDeviceGetHandleByIndex(index)) for index in range(count)]


def _gpu(library: Any, handle: Any) -> dict[str, Any]:
    clock = library.nvmlDeviceGetMaxClockInfo
    queries = {
        "name": lambda: library.nvmlDeviceGetName(handle),
        "uuid": lambda: library.nvmlDeviceGetUUID(handle),
        "driver": library.nvmlSystemGetDriverVersion,
        "cuda": lambda: "{}.{}".format(*divmod(library.nvmlSystemGetCudaDriverVersion_v2() // 10, 100)),
        "memory_bytes": lambda: library.nvmlDeviceGetMemoryInfo(handle).total,
        "compute_capability": lambda: list(library.nvmlDeviceGetCudaComputeCapability(handle)),
        "cores": lambda: library.nvmlDeviceGetNumGpuCores(handle),
        "max_sm_clock_hz": lambda: clock(handle, library.NVML_CLOCK_SM) * 1_000_000,
        "max_memory_clock_hz": lambda: clock(handle, library.NVML_CLOCK_MEM) * 1_000_000,
        "memory_bus_bits": lambda: library.nvmlDeviceGetMemoryBusWidth(handle),
        "power_limit_w": lambda: library.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000,
        "mig": lambda: bool(library.nvmlDeviceGetMigMode(handle)[0]),
    }
    gpu: dict[str, Any] = {}
    for key, query in queries.items():
        with suppress(library.NVMLError):  # not supported on this GPU, or not permitted in this container
            gpu[key] = query()
    if not gpu.get("mig"):
        gpu.pop("mig", None)
    capability, cores = gpu.get("compute_capability"), gpu.pop("cores", None)
    if cores and capability and capability[0] in _CORES_PER_SM:
        per_sm = 64 if tuple(capability) == (8, 0) else _CORES_PER_SM[capability[0]]
        gpu["sm_count"] = cores // per_sm
    return gpu


def peaks(gpu: Mapping[str, Any]) -> dict[str, Any]:
    """Return the peak rates of ``gpu``: dense FLOP/s by data type, bytes/s, and the rule that gave them.

    Both assume the highest clock that the driver reports, so a result above them is wrong. Unknown rates are absent.
    ``flops_in_16_bits`` are rates that are higher with accumulation in 16 bits.
    """
    result: dict[str, Any] = {}
    capability = tuple(gpu.get("compute_capability") or ())
    rates, count, clock = _FLOP_PER_CLOCK_SM.get(capability), gpu.get("sm_count"), gpu.get("max_sm_clock_hz")  # type: ignore[call-overload]
    rules = []
    if rates and count and clock:
        halved = _HALVED.get(capability, frozenset()) if "GeForce" in gpu.get("name", "") else frozenset()  # type: ignore[call-overload]
        result["flops"] = {dtype: rate // (1 + (dtype in halved)) * count * clock for dtype, rate in rates.items()}
        if halved:
            in_16_bits = halved & {"fp16", "fp8"}  # products of the other types are accumulated in fp32 only
            result["flops_in_16_bits"] = {dtype: rates[dtype] * count * clock for dtype in sorted(in_16_bits)}
        sm = "sm_" + "".join(map(str, capability)) + (" (GeForce, accumulating in fp32)" if halved else "")
        rules.append(f"dense FLOP/s = {count} SMs x {clock / 1e6:.0f} MHz x FLOP per clock and SM of {sm}")
    bus, memory_clock = gpu.get("memory_bus_bits"), gpu.get("max_memory_clock_hz")
    if bus and memory_clock:
        result["bytes_per_s"] = 2 * memory_clock * bus // 8
        rules.append(f"bytes/s = 2 x {memory_clock / 1e6:.0f} MHz x {bus} bits / 8")
    result["source"] = "; ".join(rules) or f"unknown for {gpu.get('name', 'this GPU')}"
    return result


def _cpu_model() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
