"""``profpipe doctor``: check the tools of this machine, and measure its peak rates."""

from __future__ import annotations

import argparse
import functools
import platform
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from profpipe import errors
from profpipe.commands import arguments

if TYPE_CHECKING:
    from profpipe.job import Missing, Profiler, RunTool, Tool

EXAMPLES = """\
  profpipe doctor
  profpipe doctor --measure-peaks    # later runs with the same --out compare their rates with these"""

_IMPLEMENTATIONS = {
    "flash-attn": "pip install flash-attn --no-build-isolation",
    "sageattention": "pip install sageattention",
    "spas-sage-attn": "build github.com/thu-ml/SpargeAttn from source",
    "xformers": "pip install xformers",
    "diffusers": "pip install diffusers",
}

#: Prints whether torch can compute on this GPU. It runs in another process, for importing torch takes seconds.
_TORCH = (
    "import torch; ok = torch.cuda.is_available();"
    "print(torch.__version__, torch.version.cuda or torch.version.hip or 'cpu', 'yes' if ok else 'no')"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--measure-peaks",
        action="store_true",
        help="measure the highest rates of this GPU; later runs with the same --out compare their results with them",
    )
    arguments.add_out(parser)


def main(args: argparse.Namespace) -> int:
    from profpipe import profilers
    from profpipe.measure import measured_peaks
    from profpipe.runner import process

    print(text(examine(profilers.ALL, process.ask, process.ask_python)))
    if args.measure_peaks:
        ask_python = functools.partial(process.ask_python, timeout_s=measured_peaks.LONGEST_S)
        peaks = measured_peaks.renew(args.out, ask_python)
        path = args.out / measured_peaks.FILE
        print(f"\nHighest rates of {peaks['device']}, kept in {path}:\n{measured_peaks.text(peaks)}")
    return errors.OK


@dataclass(frozen=True)
class ToolCheck:
    """One line of the output. ``state`` is ok, missing or wrong; ``remedy`` says how to fix what is not ok."""

    name: str
    state: str
    details: str
    remedy: str = ""


def examine(modules: Mapping[str, Profiler], ask: RunTool, ask_python: RunTool) -> list[ToolCheck]:
    """Return every check, in the order in which things depend on each other.

    ``ask`` returns the output of a tool, ``ask_python`` that of this interpreter.
    """
    from profpipe.measure import machine

    gpus, packages = machine.nvidia_gpus(), machine.packages(["nvtx", *_IMPLEMENTATIONS])
    tools = {name: module.find(ask) for name, module in modules.items() if name not in ("plain", "torch")}
    free = shutil.disk_usage(Path.cwd()).free
    enough = free > 5 * 2**30
    advice = "" if enough else "Reports of ncu take about a megabyte a kernel: free some, or use --out on another disk."
    return [
        ToolCheck("Python", "ok", platform.python_version()),
        *_check_gpus(gpus),
        _check_torch(ask_python, has_gpu=bool(gpus)),
        *map(_check_tool, tools.values()),
        *(_check_counters() if gpus else ()),
        _check_nvtx(packages.get("nvtx"), tools.get("nsys")),
        *(
            ToolCheck(name, "ok", packages[name])
            if name in packages
            else ToolCheck(name, "missing", "not installed", remedy)
            for name, remedy in _IMPLEMENTATIONS.items()
        ),
        ToolCheck("disk", "ok" if enough else "wrong", f"{free / 2**30:.0f} GiB free here", advice),
    ]


def _check_gpus(gpus: Sequence[Mapping[str, object]]) -> Iterator[ToolCheck]:
    if not gpus:
        remedy = "Workloads run on the CPU. For an NVIDIA GPU, install its driver (nvidia-smi must work)."
        yield ToolCheck("GPU", "missing", "no NVIDIA GPU or driver", remedy)
    for number, gpu in enumerate(gpus):
        memory = f", {int(str(gpu['memory_bytes'])) / 2**30:.0f} GiB" if "memory_bytes" in gpu else ""
        yield ToolCheck(f"GPU {number}", "ok", f"{gpu.get('name')}{memory}, driver {gpu.get('driver', 'unknown')}")


def _check_torch(ask_python: RunTool, *, has_gpu: bool) -> ToolCheck:
    answer = (ask_python(["-c", _TORCH]) or "").split()
    if len(answer) != 3:
        return ToolCheck("torch", "missing", "cannot be imported", "Install it as pytorch.org says for this machine.")
    version, build, usable = answer
    if has_gpu and usable == "no":
        remedy = "Install a CUDA build of torch, no newer than the driver allows."
        return ToolCheck("torch", "wrong", f"{version} ({build}) does not see the GPU", remedy)
    return ToolCheck("torch", "ok", f"{version} ({build})")


def _check_tool(tool: Tool | Missing) -> ToolCheck:
    from profpipe.job import Missing

    if isinstance(tool, Missing):
        return ToolCheck(tool.name, "missing", tool.reason, tool.remedy)
    place = f"at {tool.path}" if tool.path else ""
    return ToolCheck(tool.name, "ok", " ".join(filter(None, (tool.variant, tool.version, place))))


def _check_counters() -> Iterator[ToolCheck]:
    """Check whether the driver lets this user read performance counters, which ncu needs (ERR_NVGPUCTRPERM)."""
    parameters = Path("/proc/driver/nvidia/params")
    if not parameters.is_file():
        return
    restricted = "RmProfilingAdminOnly: 1" in parameters.read_text(encoding="utf-8")
    if restricted and not _may_administer():
        is_in_container = any(Path(mark).exists() for mark in ("/.dockerenv", "/run/.containerenv"))
        where = "In this container, start it with --cap-add=SYS_ADMIN; or on" if is_in_container else "On"
        remedy = f"{where} the host, load the nvidia module with NVreg_RestrictProfilingToAdminUsers=0."
        yield ToolCheck("GPU counters", "wrong", "only administrators may read them (ERR_NVGPUCTRPERM)", remedy)
    else:
        yield ToolCheck("GPU counters", "ok", "this user may read them")


def _may_administer() -> bool:
    """CAP_SYS_ADMIN, bit 21 of the effective capabilities (capabilities(7))."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> 21 & 1)
    return False


def _check_nvtx(version: str | None, nsys: Tool | Missing | None) -> ToolCheck:
    """Check the version of nvtx: nsys 2022 and 2023 do not record nvtx 0.2.12 and later from PyPI."""
    from profpipe.job import Tool

    if version is None:
        return ToolCheck("nvtx", "missing", "not installed", "pip install 'nvtx<0.2.12'")
    is_new = tuple(int(part) for part in version.split(".")[:3] if part.isdigit()) >= (0, 2, 12)
    if isinstance(nsys, Tool) and nsys.version.split(".")[0] in ("2022", "2023") and is_new:
        remedy = "pip install 'nvtx<0.2.12'; torch.cuda.nvtx is not affected."
        return ToolCheck("nvtx", "wrong", f"{version} is not recorded by nsys {nsys.version}", remedy)
    return ToolCheck("nvtx", "ok", version)


def text(checks: Sequence[ToolCheck]) -> str:
    """Return one line for each check, and below it how to fix what is not ok."""
    width = max(len(check.name) for check in checks)
    lines = []
    for check in checks:
        lines.append(f"{check.state:7}  {check.name:{width}}  {check.details}")
        if check.remedy:
            lines.append(f"{'':7}  {'':{width}}  -> {check.remedy}")
    return "\n".join(lines)
