"""The machine, the versions and the tools of a run, and the title of its report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime

from profpipe.analysis.cases import shown
from profpipe.analysis.grouping import grouped
from profpipe.job import Status, count_cases
from profpipe.report import document as doc
from profpipe.report.text import write_text
from profpipe.report.units import number, size_unit
from profpipe.results.manifest import DeviceEntry, Gpu, Manifest, NodeEntry, PeakRates, ToolEntry
from profpipe.results.schema import Tables

#: Nodes that a row names; more are counted.
_MOST_NODES = 8


def environment(run: Manifest) -> doc.Section:
    """Return the machine, the packages, the state of the repository and the profilers."""
    facts = tuple(f"{name}: {value}" for name, value in _facts(run))
    columns = (doc.label("profiler"), doc.label("version"), doc.words("note"))
    rows = [_tool(name, tool) for name, tool in run.tools.items()]
    tools = doc.make_table("tools", columns, rows, placement=doc.Placement.DETAILS)
    bullets = doc.Bullets(facts, doc.Placement.DETAILS)
    return doc.make_section("environment", "Environment", [bullets, _nodes(run), tools])


def _nodes(run: Manifest) -> doc.Table:
    """Return the nodes of a cluster: like nodes are one row."""

    def facts(node: NodeEntry) -> tuple[str, ...]:
        gpus = "; ".join(dict.fromkeys(map(_gpu, node.machine.gpus or ()))) or "none"
        clocks = {gpu.max_sm_clock_hz / 1e6 for gpu in node.machine.gpus or () if gpu.max_sm_clock_hz}
        clock = ", ".join(f"{clock:.0f} MHz" for clock in sorted(clocks))
        return gpus, clock, node.machine.cpu, node.packages.get("torch") or ""

    columns = [doc.label("nodes"), *map(doc.words, ("GPUs", "highest SM clock", "CPU", "torch"))]
    alike = grouped((facts(node), name) for name, node in run.nodes.items())
    rows: list[tuple[doc.Text, ...]] = [(doc.join(names, most=_MOST_NODES), *own) for own, names in alike.items()]
    return doc.make_table("nodes", columns, rows, placement=doc.Placement.DETAILS)


def _facts(run: Manifest) -> Iterator[tuple[str, str]]:
    machine = run.machine
    yield from ((f"GPU {i}", _gpu(gpu)) for i, gpu in enumerate(machine.gpus or ()))
    rates = {"peak rates": machine.peaks, "measured rates": machine.ceilings}
    rates |= {f"peak rates of {job.workload}": job.peaks for job in run.jobs if job.peaks}
    yield from ((name, write_rates(found)) for name, found in rates.items() if found)
    if machine.cpu:
        yield "CPU", machine.cpu + (f", {machine.cpu_count} CPUs" if machine.cpu_count else "")
    packages = ", ".join(f"{name} {version}" for name, version in run.packages.items() if version)
    dirty = "" if run.git.dirty is None else f", dirty {shown(run.git.dirty)}"
    facts = {
        "system": machine.os,
        "Python": machine.python,
        "packages": packages,
        "git": f"commit {run.git.commit}{dirty}" if run.git.commit else "",
        "started": run.started,
        "ended": run.ended,
    }
    yield from ((name, fact) for name, fact in facts.items() if fact)


def _gpu(gpu: Gpu) -> str:
    facts = [
        gpu.name,
        size_unit([gpu.memory_bytes]).with_name(gpu.memory_bytes) if gpu.memory_bytes else "",
        f"{gpu.sm_count} SMs" if gpu.sm_count else "",
        f"compute capability {'.'.join(map(str, gpu.compute_capability))}" if gpu.compute_capability else "",
        f"driver {gpu.driver}" if gpu.driver else "",
        f"CUDA {gpu.cuda}" if gpu.cuda else "",
    ]
    return ", ".join(fact for fact in facts if fact)


def write_rates(rates: PeakRates) -> str:
    """Return ``fp16 711.4, int8 939.1 TFLOP/s, memory 4249 GB/s; measured``: the rates and their source."""
    flops = ", ".join(f"{dtype} {number(rate / 1e12)}" for dtype, rate in rates.flops.items() if rate)
    memory = f"memory {number(rates.bytes_per_s / 1e9)} GB/s" if rates.bytes_per_s else ""
    found = ", ".join(rate for rate in (f"{flops} TFLOP/s" if flops else "", memory) if rate)
    return "; ".join(part for part in (found, rates.source) if part)


def _tool(name: str, tool: ToolEntry) -> tuple[doc.Text, ...]:
    if tool.missing:
        return doc.Code(name), "not found", " ".join(filter(None, [tool.missing, tool.remedy]))
    return doc.Code(name), tool.version or ("built in" if name == "plain" else "found"), tool.variant


# --- the title -------------------------------------------------------------------------------------------------------


def title(workloads: Iterable[str], cases: int, run: Manifest, tables: Tables) -> str:
    """Return ``attention · 14 cases · NVIDIA H200 · 2026-11-20 05:55 UTC``."""
    names, name = list(workloads), run.pipeline.name if run.pipeline else ""
    named = name if name and len(names) > 1 else _listed(names) or run.name or "profpipe"
    count = count_cases(cases) if cases else ""
    return " · ".join(part for part in (named, count, _machine(run, tables), _date(run)) if part)


def _listed(names: Iterable[str]) -> str:
    return write_text(doc.join(dict.fromkeys(names), most=3))


def _machine(run: Manifest, tables: Tables) -> str:
    """Return the GPU, the CPU of a machine without a GPU, or the device that the files name."""
    gpus = run.machine.gpus
    if gpus is None:
        devices = [file.device for file in run.files]
        return _listed(device or "GPU not named" for device in devices) if any(devices) else ""
    if not gpus:
        return f"{run.machine.cpu or 'CPU'}, no GPU"
    names = list(dict.fromkeys(gpu.name for gpu in gpus))
    if len(names) > 1:
        return _listed([entry.device for job in run.jobs for entry in job.devices] or names)
    count = _gpus_in_use(run, tables)
    if count is not None and count < len(gpus):
        return f"{count} of {len(gpus)} {names[0]}"
    return (f"{len(gpus)} x " if len(gpus) > 1 else "") + names[0]


def _gpus_in_use(run: Manifest, tables: Tables) -> int | None:
    """Return how many GPUs the jobs used at once at most; None if a job that ran does not say.

    Each process names the GPU that it began on; the kernels name the others.
    """
    ran = [job for job in run.jobs if job.status is not Status.SKIPPED and job.returncode is not None]
    counts = [[entry.count for entry in job.devices or (DeviceEntry(),) if entry.device != "cpu"] for job in ran]
    known = [[count for count in of_job if count is not None] for of_job in counts]
    if not ran or known != counts:
        return None
    recorded = tables.kernels.groupby(["workload", "profiler"])["device"].nunique()
    return max([*map(sum, known), *recorded]) or None


def _date(run: Manifest) -> str:
    try:
        return datetime.fromisoformat(run.started.replace("Z", "+00:00")).strftime("%Y-%m-%d %H:%M UTC")
    except ValueError:
        return ""
