"""Which of a machine's GPUs a job uses, and hence the rates that its results are held against.

A process that has torch says which one it ran on, as CUDA describes it. Of any other the environment tells no more than
what it could see; where those have different rates, nothing is held against any of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from profpipe import device

#: A GPU as ``device.nvidia_gpus`` describes it.
Gpu = Mapping[str, Any]


def visible(gpus: Sequence[Gpu], environment: Mapping[str, str]) -> list[Gpu]:
    """Those that CUDA may show to a process with this ``environment``.

    Ordinals of CUDA_VISIBLE_DEVICES count the fastest GPU first, as CUDA judges it, and by PCI bus, as NVML counts,
    only with CUDA_DEVICE_ORDER=PCI_BUS_ID (CUDA programming guide, "CUDA environment variables"). So without it an
    ordinal may mean any of them. Of a GPU that is divided (MIG) a process sees a part, and how large it is is not told.
    """
    listed = environment.get("CUDA_VISIBLE_DEVICES")
    by_bus = environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    chosen = gpus if listed is None else list(_named(gpus, map(str.strip, listed.split(",")), by_bus))
    return [{"name": f"a part (MIG) of {gpu.get('name')}"} if gpu.get("mig") else gpu for gpu in chosen]


def _named(gpus: Sequence[Gpu], entries: Iterable[str], by_bus: bool) -> Iterator[Gpu]:
    for entry in entries:
        if entry.startswith("MIG-"):
            found: Sequence[Gpu] = [{"name": "a part (MIG) of a GPU"}]
        elif entry.isdecimal() and by_bus:
            found = gpus[int(entry) : int(entry) + 1]
        elif entry.isdecimal():
            found = gpus if int(entry) < len(gpus) else ()
        else:
            found = [gpu for gpu in gpus if entry and str(gpu.get("uuid", "")).startswith(entry)]
        if not found:
            return  # what follows an entry that names none is not visible either
        yield from found


def seen(gpus: Sequence[Gpu], described: Mapping[str, Any]) -> list[Gpu]:
    """What a process ``described`` (``process.described``): one GPU, or those among which it cannot be told apart.

    Its count of SMs is the process's: that of a part of a GPU is smaller. What share of the bandwidth a part has is not
    known.
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


def peaks(candidates: Iterable[Gpu], none: str = "no NVIDIA GPU") -> dict[str, Any]:
    """``device.peaks`` of the GPU that it must have been; unknown where ``candidates`` have different ones, or none."""
    alike = [(str(gpu.get("name")), device.peaks(gpu)) for gpu in candidates]
    if not alike:
        return {"source": f"unknown: {none}"}
    if all(rates == alike[0][1] for _, rates in alike):
        return alike[0][1]
    names = ", ".join(dict.fromkeys(name for name, _ in alike))
    return {"source": f"unknown: which of several GPUs was used ({names})"}


def peaks_of_job(
    gpus: Sequence[Gpu], environment: Mapping[str, str], described: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """The rates for a job whose processes had this ``environment``, and ``described`` the devices they ran on."""
    if not described:
        return peaks(visible(gpus, environment), "CUDA_VISIBLE_DEVICES shows no GPU" if gpus else "no NVIDIA GPU")
    used = [gpu for one in described for gpu in seen(gpus, one)]
    return peaks(used, "its process used the CPU" if gpus else "no NVIDIA GPU")
