"""Finds the GPUs that a job can use, and the peak rates for its results.

A process with torch records its GPU as CUDA describes it. For any other process the environment only lists the visible
GPUs; where these have different rates, the job has no peak rates.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from profpipe.errors import ConfigError
from profpipe.measure import machine

#: A GPU as ``machine.nvidia_gpus`` describes it.
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
    """Return one entry of CUDA_VISIBLE_DEVICES for each of the first ``count`` GPUs that it shows.

    Without the variable these are the ordinals of ``gpus``. Raises ConfigError where one of these GPUs may be listed
    by its ordinal and by its UUID, because its ordinal is not known.
    """
    entries = environment.get("CUDA_VISIBLE_DEVICES")
    if entries is None:
        return [str(number) for number in range(len(gpus))][:count]
    has_numbers = len(gpus) == 1 or environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    found: dict[int | str, str] = {}
    for entry in map(str.strip, entries.split(",")):
        listed = list(_listed(gpus, [entry], by_bus=has_numbers))
        if not listed:
            break  # CUDA ignores all entries after an invalid one
        known = str(listed[0].get("uuid") or entry)
        found.setdefault(int(entry) if entry.isdecimal() and not has_numbers else known, entry)
    if len({type(key) for key in list(found)[:count]}) > 1:
        what = "lists GPUs by number and by UUID, and one GPU may be listed twice."
        raise ConfigError("CUDA_VISIBLE_DEVICES", what, "List all by UUID, or set CUDA_DEVICE_ORDER=PCI_BUS_ID.")
    return list(found.values())[:count]


def _listed(gpus: Sequence[Gpu], entries: Iterable[str], by_bus: bool) -> Iterator[Gpu]:
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
            return  # CUDA ignores all entries after an invalid one
        yield from found


def matching_gpus(gpus: Sequence[Gpu], described: Mapping[str, Any]) -> list[Gpu]:
    """Return the GPU of a process (``process_info.describe``), or several GPUs that match its description.

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


def peaks(candidates: Iterable[Gpu], none: str = "no NVIDIA GPU") -> dict[str, Any]:
    """Return the peak rates that all ``candidates`` share; unknown where they differ or there are none."""
    alike = [(str(gpu.get("name")), machine.peaks(gpu)) for gpu in candidates]
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
        return peaks(visible(gpus, environment), "CUDA_VISIBLE_DEVICES shows no GPU" if gpus else "no NVIDIA GPU")
    used = [gpu for one in described for gpu in matching_gpus(gpus, one)]
    return peaks(used, "its process used the CPU" if gpus else "no NVIDIA GPU")
