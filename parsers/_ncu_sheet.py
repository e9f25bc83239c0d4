"""What the pages of ``ncu`` say of each launch: its name, place, ranges, metrics and advice."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from profpipe import kernels
from profpipe.formats import counters, numerals


@dataclass
class Sheet:
    """The launches of one file, by segment (header), host, process, ID and row, and the GPU's name."""

    launches: dict[tuple[int, str, str, str, int], counters.Launch] = field(default_factory=dict)
    device: str = ""
    is_details: bool = False

    def launch(self, segment: int, cells: dict[str, str], row: int = 0) -> counters.Launch:
        """The launch of a row, new or known from the rows before; ``row`` is its number where each has a launch."""
        key = (segment, cells.get("Host Name", ""), cells.get("Process ID", ""), cells["ID"], row)
        if key not in self.launches:
            device = cells.get("Device", "")
            self.launches[key] = counters.Launch(
                name=kernels.normalise(_name(cells["Kernel Name"])),
                process=_integer(cells.get("Process ID")),
                device=_integer(device),
                stream=_integer(cells.get("Stream")),
                path=tuple(_path(cells)),
            )
            named = device if _integer(device) is None else ""
            self.device = self.device or cells.get("device__attribute_display_name", named)
        return self.launches[key]


def _name(name: str) -> str:
    # The CSV of ncu 2026 has lost the first character of "<unnamed>::saxpy_kernel".
    return f"<{name}" if name.startswith("unnamed>::") else name


def _integer(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() and len(text) < 19 else None


def number(text: str, mark: str) -> float | None:
    """The number, without the instances in ``5 (2; 3)``; None for ``n/a``, ``nan`` and words."""
    return numerals.number(text.partition(" (")[0].strip(), mark)


def add_row(launch: counters.Launch, cells: dict[str, str], mark: str) -> None:
    """A row of the details page: one metric or one rule."""
    if rule := cells.get("Rule Name"):
        if cells.get("Rule Type") in ("OPT", "WRN"):
            is_local = cells.get("Estimated Speedup Type", "").lower() == "local"
            launch.rules.append(counters.Rule(rule, number(cells.get("Estimated Speedup", ""), mark), is_local))
        return
    unit = cells.get("Metric Unit", "")
    name, value = _metric(cells.get("Metric Name", ""), unit), number(cells["Metric Value"], mark)
    if name and value is not None:
        launch.values.setdefault(name, (value, unit))
        if cells.get("Section Name") == "Command line profiler metrics":
            launch.asked.add(name)


# --- ranges ----------------------------------------------------------------------------------------------------------

_RANGE = re.compile(r'"([^"]*)"')


def _path(cells: dict[str, str]) -> Iterator[str]:
    """Ranges around the launch, outermost first: start/end ranges, then push/pop ranges as ncu lists them."""
    for kind in ("Start/Stop_Range", "Push/Pop_Range"):
        for column in (name for name in cells if kind in name):
            for text in _RANGE.findall(cells[column]):
                yield _range_name(text)


def _range_name(text: str) -> str:
    """``step`` of ``<default domain>:step:none:none:none:none:none:none``; a name may hold colons, the rest does not.

    Behind the name stand six fields: type and value of the payload and of the colour, type and text of the message.
    """
    _, _, rest = text.partition(":")
    return rest.rsplit(":", 6)[0]


# --- the details page's names ----------------------------------------------------------------------------------------

#: Label -> metric, by the sections of ncu 2020 to 2025; of two in one version the unit decides.
_LABELS = {
    "Duration": "gpu__time_duration.sum",
    "DRAM Throughput": "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "SOL DRAM": "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "Memory Throughput": "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    "Memory [%]": "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    "SOL Memory": "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    "Compute (SM) Throughput": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "SM [%]": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "SOL SM": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "L1/TEX Cache Throughput": "l1tex__throughput.avg.pct_of_peak_sustained_active",
    "SOL L1/TEX Cache": "l1tex__throughput.avg.pct_of_peak_sustained_active",
    "L2 Cache Throughput": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "SOL L2 Cache": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "L1/TEX Hit Rate": "l1tex__t_sector_hit_rate.pct",
    "L2 Hit Rate": "lts__t_sector_hit_rate.pct",
    "SM Frequency": "gpc__cycles_elapsed.avg.per_second",
    "DRAM Frequency": "dram__cycles_elapsed.avg.per_second",
    "Executed Ipc Active": "sm__inst_executed.avg.per_cycle_active",
    "Executed Instructions": "smsp__inst_executed.sum",
    "Theoretical Occupancy": "sm__maximum_warps_per_active_cycle_pct",
    "Achieved Occupancy": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "Block Limit Registers": "launch__occupancy_limit_registers",
    "Block Limit Shared Mem": "launch__occupancy_limit_shared_mem",
    "Block Limit Warps": "launch__occupancy_limit_warps",
    "Block Limit SM": "launch__occupancy_limit_blocks",
    "Block Limit Barriers": "launch__occupancy_limit_barriers",
    "Grid Size": "launch__grid_size",
    "Block Size": "launch__block_size",
    "Threads": "launch__thread_count",
    "Cluster Size": "launch__cluster_size",
    "Waves Per SM": "launch__waves_per_multiprocessor",
    "Registers Per Thread": "launch__registers_per_thread",
    "Static Shared Memory Per Block": "launch__shared_mem_per_block_static",
    "Dynamic Shared Memory Per Block": "launch__shared_mem_per_block_dynamic",
}
#: In the memory section "Memory Throughput" is a rate, in the speed-of-light section a percentage.
_RATES = {"Memory Throughput": "dram__bytes.sum.per_second"}


def _metric(label: str, unit: str) -> str:
    """The metric that a row holds; empty where ``label`` is none that is kept."""
    if "__" in label:
        return label
    if unit.endswith(("/second", "/s")) and label in _RATES:
        return _RATES[label]
    return _LABELS.get(label, "")
