"""The machine, this process of it, and the GPUs that a job can use, with their peak rates."""

from __future__ import annotations

import os
import platform
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from profpipe.errors import ConfigError

# --- hardware --------------------------------------------------------------------------------------------------------

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


def usable_cores() -> float:
    """Return how many cores this process may use: the limit of its container (cgroups(7)) counts too."""
    cores: float = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for names in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):  # version 2, and version 1
        with suppress(OSError, ValueError):  # the other version; or no limit, which is written as "max"
            words = " ".join(Path("/sys/fs/cgroup", name).read_text(encoding="ascii") for name in names).split()
            quota, period = map(int, words)
            cores = min(cores, quota / period) if quota > 0 else cores
    return cores


def packages(names: Iterable[str] = PACKAGES) -> dict[str, str]:
    """Return the versions of the installed packages among ``names``."""
    versions = {}
    for name in names:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


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
    """Return the NVIDIA GPUs in the order of NVML, which is by PCI bus; sizes in bytes, clocks in Hz.

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


#: The clocks in MHz of the peak rates in the data sheets of NVIDIA, by the name of the GPU. 1830 MHz gives 989 TFLOP/s
#: of bf16 on an H100. The highest clock that the driver reports may be another one.
_DATA_SHEET_MHZ: Final[Mapping[str, int]] = {
    r"NVIDIA H100 80GB HBM3|NVIDIA H200|NVIDIA GH200 \w+": 1830,
    "NVIDIA H100 PCIe": 1620,
    r"(NVIDIA )?A100-(SXM4|PCIE)-\w+|NVIDIA A100 80GB PCIe": 1410,
    "NVIDIA L40S": 2490,
    "NVIDIA L4": 2040,
    "NVIDIA A10": 1695,
    "NVIDIA GeForce RTX 4090": 2520,
    "NVIDIA GeForce RTX 3090": 1695,
    r"Tesla V100-SXM2-\w+": 1530,
    "Tesla T4": 1590,
}


def data_sheet_flops(gpu: Mapping[str, Any]) -> dict[str, float]:
    """Return the dense FLOP/s by data type of NVIDIA's data sheet; empty for a card that is not listed here."""
    matching_mhz = (mhz for pattern, mhz in _DATA_SHEET_MHZ.items() if re.fullmatch(pattern, str(gpu.get("name"))))
    mhz = None if gpu.get("mig") else next(matching_mhz, None)
    return {} if mhz is None else peaks({**gpu, "max_sm_clock_hz": mhz * 1_000_000}).get("flops", {})


def _cpu_model() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


# --- this process ----------------------------------------------------------------------------------------------------


def torch() -> Any:
    """Return the module torch, or None: a workload may do without it."""
    try:
        import torch as library
    except ImportError:
        return None
    return library


def device() -> str:
    """Return ``cuda`` (also on ROCm) or ``cpu``."""
    library = torch()
    return "cuda" if library is not None and library.cuda.is_available() else "cpu"


def describe() -> dict[str, Any]:
    """Return the facts of this process for the first line of its events."""
    library = torch()
    described: dict[str, Any] = {"pid": os.getpid(), "time": time.time(), "machine": {"device": "cpu"}}
    if library is not None:
        described |= {"torch": library.__version__, "cuda": library.version.cuda}
    if device() == "cuda":
        properties = library.cuda.get_device_properties(library.cuda.current_device())
        pci = [getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
        described["machine"] = {
            "device": properties.name,
            "sm_count": properties.multi_processor_count,
            "memory_bytes": properties.total_memory,
            "l2_bytes": getattr(properties, "L2_cache_size", None),
            # Domain, bus and device identify a GPU of the machine; some releases of torch have no address.
            "pci": None if None in pci else ":".join(f"{part:02x}" for part in pci),
        }
    return described


# --- the GPUs of a job -----------------------------------------------------------------------------------------------

#: A GPU as ``nvidia_gpus`` describes it.
Gpu = Mapping[str, Any]


def visible(gpus: Sequence[Gpu], environment: Mapping[str, str]) -> list[Gpu]:
    """Return the GPUs that CUDA may show to a process with this ``environment``.

    Ordinals in CUDA_VISIBLE_DEVICES count the fastest GPU first. With CUDA_DEVICE_ORDER=PCI_BUS_ID they count by PCI
    bus, as NVML does (CUDA programming guide, "CUDA environment variables"). So without it an ordinal may mean any GPU.
    With MIG a process sees a part of a GPU, whose size is unknown.
    """
    entries = environment.get("CUDA_VISIBLE_DEVICES")
    by_bus = environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    chosen = gpus if entries is None else list(_listed(gpus, map(str.strip, entries.split(",")), by_bus))
    return [{"name": f"a part (MIG) of {gpu.get('name')}"} if gpu.get("mig") else gpu for gpu in chosen]


def valid_entries(gpus: Sequence[Gpu], environment: Mapping[str, str], count: int) -> list[str]:
    """Return one entry of CUDA_VISIBLE_DEVICES for the first ``count`` GPUs that it shows.

    Without the variable these are the ordinals of ``gpus``. Raises ConfigError where one of these GPUs may be listed
    by its ordinal and by its UUID, because its ordinal is unknown.
    """
    entries = environment.get("CUDA_VISIBLE_DEVICES")
    if entries is None:
        return [str(number) for number in range(len(gpus))][:count]
    has_numbers = len(gpus) == 1 or environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    entry_by_gpu: dict[int | str, str] = {}
    for entry in map(str.strip, entries.split(",")):
        listed = list(_listed(gpus, [entry], by_bus=has_numbers))
        if not listed:
            break  # CUDA ignores all entries after an invalid one
        gpu_id = str(listed[0].get("uuid") or entry)
        entry_by_gpu.setdefault(int(entry) if entry.isdecimal() and not has_numbers else gpu_id, entry)
    if len({type(key) for key in list(entry_by_gpu)[:count]}) > 1:
        what = "lists GPUs by number and by UUID, and one GPU may be listed twice."
        raise ConfigError("CUDA_VISIBLE_DEVICES", what, "List all by UUID, or set CUDA_DEVICE_ORDER=PCI_BUS_ID.")
    return list(entry_by_gpu.values())[:count]


def _listed(gpus: Sequence[Gpu], entries: Iterable[str], by_bus: bool) -> Iterator[Gpu]:
    for entry in entries:
        if entry.startswith("MIG-"):
            listed: Sequence[Gpu] = [{"name": "a part (MIG) of a GPU"}]
        elif entry.isdecimal() and by_bus:
            listed = gpus[int(entry) : int(entry) + 1]
        elif entry.isdecimal():
            listed = gpus if int(entry) < len(gpus) else ()
        else:
            listed = [gpu for gpu in gpus if entry and str(gpu.get("uuid", "")).startswith(entry)]
        if not listed:
            return  # CUDA ignores all entries after an invalid one
        yield from listed


def matching_gpus(gpus: Sequence[Gpu], described: Mapping[str, Any]) -> list[Gpu]:
    """Return the GPU of a process (``describe``), or several GPUs that match its description.

    The number of SMs is the process's: a part of a GPU (MIG) has fewer. The bandwidth of a part is unknown.
    """
    name, count = described.get("device"), described.get("sm_count")
    if name == "cpu":
        return []
    whole = [gpu for gpu in gpus if gpu.get("name") == name]
    # CUDA's name of a part: NVIDIA A100-SXM4-40GB MIG 1g.5gb.
    parts = [gpu for gpu in gpus if str(name).startswith(f"{gpu.get('name')} MIG ")]
    alike = whole or [{key: value for key, value in gpu.items() if key != "memory_bus_bits"} for gpu in parts] or [{}]
    exact = [gpu for gpu in alike if gpu.get("sm_count") == count]
    return [{**gpu, "name": name, "sm_count": count} for gpu in exact or alike]


def common_peaks(candidates: Iterable[Gpu], none: str = "no NVIDIA GPU") -> dict[str, Any]:
    """Return the peak rates that all ``candidates`` share; unknown where they differ or there are none."""
    alike = [(str(gpu.get("name")), peaks(gpu)) for gpu in candidates]
    if not alike:
        return {"source": f"unknown: {none}"}
    if all(rates == alike[0][1] for _, rates in alike):
        return alike[0][1]
    names = ", ".join(dict.fromkeys(name for name, _ in alike))
    return {"source": f"unknown: which of several GPUs was used ({names})"}


def peaks_of_job(
    gpus: Sequence[Gpu], environment: Mapping[str, str], described: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the peak rates for a job from the ``environment`` of its processes and their ``described`` devices."""
    if not described:
        return common_peaks(
            visible(gpus, environment), "CUDA_VISIBLE_DEVICES shows no GPU" if gpus else "no NVIDIA GPU"
        )
    used = [gpu for process in described for gpu in matching_gpus(gpus, process)]
    return common_peaks(used, "its process used the CPU" if gpus else "no NVIDIA GPU")
