"""What works on this machine, what does not, and how to mend it."""

from __future__ import annotations

import platform
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from profpipe import device
from profpipe.job import Ask, Missing, Profiler, Tool

_IMPLEMENTATIONS = {
    "flash-attn": "pip install flash-attn --no-build-isolation",
    "sageattention": "pip install sageattention",
    "spas-sage-attn": "build github.com/thu-ml/SpargeAttn from source",
    "xformers": "pip install xformers",
    "diffusers": "pip install diffusers",
}

#: Whether torch can compute on this GPU; asked in a process of its own, for importing torch takes seconds.
_TORCH = (
    "import torch; ok = torch.cuda.is_available();"
    "print(torch.__version__, torch.version.cuda or torch.version.hip or 'cpu', 'yes' if ok else 'no')"
)


@dataclass(frozen=True)
class Check:
    """One line: ``state`` is ok, missing or wrong; ``remedy`` says how to mend what is not ok."""

    name: str
    state: str
    found: str
    remedy: str = ""


def examine(profilers: Mapping[str, Profiler], ask: Ask) -> list[Check]:
    """Every check, in the order in which things depend on each other."""
    gpus = device.nvidia_gpus()
    return [
        _python(),
        *_gpus(gpus),
        _torch(ask, bool(gpus)),
        *(_profiler(name, module, ask) for name, module in profilers.items() if name not in ("plain", "torch")),
        *_counters(bool(gpus)),
        *_nvtx(profilers, ask),
        *_packages(),
        _disk(Path.cwd()),
    ]


def _python() -> Check:
    good = sys.version_info >= (3, 10)
    return Check("Python", "ok" if good else "wrong", platform.python_version(), "" if good else "Use 3.10 or later.")


def _gpus(gpus: Sequence[Mapping[str, object]]) -> Iterator[Check]:
    if not gpus:
        remedy = "Workloads run on the CPU. For an NVIDIA GPU, install its driver (nvidia-smi must work)."
        yield Check("GPU", "missing", "no NVIDIA GPU or driver", remedy)
    for number, gpu in enumerate(gpus):
        memory = f", {int(str(gpu['memory_bytes'])) / 2**30:.0f} GiB" if "memory_bytes" in gpu else ""
        yield Check(f"GPU {number}", "ok", f"{gpu.get('name')}{memory}, driver {gpu.get('driver', 'unknown')}")


def _torch(ask: Ask, gpu: bool) -> Check:
    answer = (ask([sys.executable, "-c", _TORCH]) or "").split()
    if len(answer) != 3:
        return Check("torch", "missing", "cannot be imported", "Install it as pytorch.org says for this machine.")
    version, build, usable = answer
    if gpu and usable == "no":
        remedy = "Install a CUDA build of torch, no newer than the driver allows."
        return Check("torch", "wrong", f"{version} ({build}) does not see the GPU", remedy)
    return Check("torch", "ok", f"{version} ({build})")


def _profiler(name: str, module: Profiler, ask: Ask) -> Check:
    tool = module.find(ask)
    if isinstance(tool, Missing):
        return Check(name, "missing", tool.reason, tool.remedy)
    return Check(name, "ok", " ".join(part for part in (tool.variant, tool.version, f"at {tool.path}") if part))


def _counters(gpu: bool) -> Iterator[Check]:
    """Whether the driver lets this user read performance counters, which ncu needs (ERR_NVGPUCTRPERM)."""
    parameters = Path("/proc/driver/nvidia/params")
    if not gpu or not parameters.is_file():
        return
    restricted = "RmProfilingAdminOnly: 1" in parameters.read_text(encoding="utf-8")
    if restricted and not _may_administer():
        where = "In this container, start it with --cap-add=SYS_ADMIN; or on" if _in_container() else "On"
        remedy = f"{where} the host, load the nvidia module with NVreg_RestrictProfilingToAdminUsers=0."
        yield Check("GPU counters", "wrong", "only administrators may read them (ERR_NVGPUCTRPERM)", remedy)
    else:
        yield Check("GPU counters", "ok", "this user may read them")


def _may_administer() -> bool:
    """CAP_SYS_ADMIN, bit 21 of the effective capabilities (capabilities(7))."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> 21 & 1)
    return False


def _in_container() -> bool:
    return any(Path(mark).exists() for mark in ("/.dockerenv", "/run/.containerenv"))


def _nvtx(profilers: Mapping[str, Profiler], ask: Ask) -> Iterator[Check]:
    """PyPI's nvtx from 0.2.12 on is not recorded by nsys 2022 and 2023."""
    version = device.packages(["nvtx"]).get("nvtx")
    if version is None:
        yield Check("nvtx", "missing", "not installed", "pip install 'nvtx<0.2.12'")
        return
    nsys = profilers["nsys"].find(ask)
    old_nsys = isinstance(nsys, Tool) and nsys.version.split(".")[0] in ("2022", "2023")
    if (
        isinstance(nsys, Tool)
        and old_nsys
        and tuple(int(part) for part in version.split(".")[:3] if part.isdigit()) >= (0, 2, 12)
    ):
        found = f"{version} is not recorded by nsys {nsys.version}"
        yield Check("nvtx", "wrong", found, "pip install 'nvtx<0.2.12'; torch.cuda.nvtx is not affected.")
    else:
        yield Check("nvtx", "ok", version)


def _packages() -> Iterator[Check]:
    found = device.packages(_IMPLEMENTATIONS)
    for name, remedy in _IMPLEMENTATIONS.items():
        yield Check(name, "ok", found[name]) if name in found else Check(name, "missing", "not installed", remedy)


def _disk(folder: Path) -> Check:
    free = shutil.disk_usage(folder).free
    enough = free > 5 * 2**30
    remedy = "" if enough else "Reports of ncu take about a megabyte a kernel: free some, or use --out on another disk."
    return Check("disk", "ok" if enough else "wrong", f"{free / 2**30:.0f} GiB free here", remedy)


def text(checks: Sequence[Check]) -> str:
    """A line a check, and below it how to mend what is not ok."""
    width = max(len(check.name) for check in checks)
    lines = []
    for check in checks:
        lines.append(f"{check.state:7}  {check.name:{width}}  {check.found}")
        if check.remedy:
            lines.append(f"{'':7}  {'':{width}}  -> {check.remedy}")
    return "\n".join(lines)
