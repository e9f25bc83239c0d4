"""Measure time and memory of `profpipe ingest` beside `nsys stats` on the same nsys export.

    python benchmarks/ingest.py [--kernels 10000 100000 1000000] [--nsys PATH] [--tracelens PATH] [--rounds 3]

Each round runs its processes one after the other, start-up included: the parser alone, without and with the search for
steps; `profpipe ingest FILE`, and `profpipe ingest FILE --out DIR` as users type it (tables, analysis, pages), twice,
the second time with the unchanged file; and `nsys stats` with its reports of kernels by range and of all kernels
(nvtx_kern_sum, cuda_gpu_kern_sum), which are the closest to ours. A cell has the medians of the rounds: wall time, CPU
time and peak memory. A ratio is the median of the ratios of each round, since a machine that is busy for a while slows
both sides. The sums of the tables are checked against SQL.

The exports are grown from the recorded one in tests/data: four processes that use the same correlation ids, 360 kernel
names, ranges step > layer_N > attention | mlp | norm of 40 kernels each. Steps have 42 or 55 layers, and a few kernels
run most often, in any order. `--regular` makes all steps alike, which is twice as fast to read. `--cases` adds ranges
`profpipe:impl=N` around regular steps, which give SUMMARY.md a chapter for each case.

`--tracelens PATH`, TraceLens_generate_perf_report_rocprof of https://github.com/AMD-AGI/TraceLens, adds a line on a
JSON file of rocprofv3 with 60,000 kernels (39 MB).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
TEMPLATE = ROOT / "tests" / "data" / "nsys-2025.3.1" / "attention" / "attn_h200.sqlite"

PROCESSES = 4
NAMES = 360
#: Kernels in a step and in a layer.
STEP, LAYER = 5760, 120
#: A step of an irregular export begins so many layers later.
LATER = "({i} * 7 % 13)"
#: Kernels in a range of each level, outermost first, and the SQL of its name from its number ``i``.
LEVELS = (
    (57600, "'profpipe:impl=' || (i % 6)"),
    (STEP, "'step'"),
    (LAYER, "'layer_' || (i % 48)"),
    (40, "CASE i % 3 WHEN 0 THEN 'attention' WHEN 1 THEN 'mlp' ELSE 'norm' END"),
)
#: Of ten million kernels `nsys stats` 2022.4 would need 16 GB.
NSYS_UP_TO = 1_000_000
#: ns from one call to the next, and how long a call lasts.
STRIDE, CALL = 6000, 4000

#: Reads one export with the parser alone and prints its sums.
READ = """
import sys
from pathlib import Path
from profpipe import plugins
parsed = plugins.load_module(plugins.builtin_folder("parsers") / "nsys_sqlite.py").parse(Path(sys.argv[1]))
print(parsed.origin.launches, int(parsed.origin.total_ns), int(parsed.origin.attributed_ns), len(parsed.steps))
"""
#: Leaves out the search for steps.
WITHOUT_STEPS = """
from profpipe.ingest.steps import search
from profpipe.results import schema
search.find = lambda *given: schema.Tables()
"""
CODES = {"plain": WITHOUT_STEPS + READ, "parser": READ}


class Cost(NamedTuple):
    """Wall time, CPU time and peak resident memory of one process."""

    seconds: float
    cpu_seconds: float
    megabytes: float
    output: str


# --- exports of any size ---------------------------------------------------------------------------------------------


def grow(out: Path, kernels: int, has_cases: bool, is_regular: bool) -> int:
    """Write an export of about ``kernels`` kernels and return the number of its ranges."""
    shutil.copyfile(TEMPLATE, out)
    each = kernels // PROCESSES
    with closing(sqlite3.connect(out)) as database:
        database.executescript("PRAGMA journal_mode = off; PRAGMA synchronous = off;")
        for table in ("KERNEL", "RUNTIME", "MEMSET", "MEMCPY"):
            if _columns(database, f"CUPTI_ACTIVITY_KIND_{table}"):
                database.execute(f"DELETE FROM CUPTI_ACTIVITY_KIND_{table}")
        database.execute("DELETE FROM NVTX_EVENTS")
        # The names of the kernels: real ones and variants of them.
        real = [row[0] for row in database.execute("SELECT value FROM StringIds WHERE value LIKE '%(%' ORDER BY id")]
        first_name = int(database.execute("SELECT max(id) + 1 FROM StringIds").fetchone()[0])
        names = [real[i % len(real)] + (f"#v{i // len(real)}" if i >= len(real) else "") for i in range(NAMES)]
        names.append("cudaLaunchKernel_v7000")
        database.executemany("INSERT INTO StringIds(id, value) VALUES (?, ?)", enumerate(names, first_name))
        for process in range(PROCESSES):
            levels = LEVELS if has_cases else LEVELS[1:]
            _write_process(database, process, each, first_name, levels, has_cases or is_regular)
        ranges = int(database.execute("SELECT count(*) FROM NVTX_EVENTS").fetchone()[0])
        database.commit()
    return ranges


def _columns(database: sqlite3.Connection, table: str) -> list[tuple[str, bool]]:
    """Return (name, whether it must not be NULL) of each column."""
    return [(row[1], bool(row[3])) for row in database.execute(f'PRAGMA table_info("{table}")')]


def _write_process(
    database: sqlite3.Connection,
    process: int,
    kernels: int,
    first_name: int,
    levels: tuple[tuple[int, str], ...],
    is_regular: bool,
) -> None:
    pid = 1 << 48 | (1000 + process) << 24
    call = f"1000000000 + i * {STRIDE}"
    # As in a real program each layer launches the same kernels every time, with other durations.
    name = f"{first_name} + i % {NAMES}"
    if not is_regular:
        drawn = "(i * 2654435761 % 1009)"
        name = f"{first_name} + {NAMES} * {drawn} * {drawn} / {1009**2}"
    work = {
        "start": f"{call} + 10000", "end": f"{call} + 12000 + i * 2654435761 % 3900", "deviceId": str(process),
        "contextId": "1", "streamId": "7", "correlationId": "i + 1", "globalPid": str(pid), "demangledName": name,
        "shortName": name, "mangledName": name,
    }  # fmt: skip
    _insert(database, "CUPTI_ACTIVITY_KIND_KERNEL", work, kernels)
    thread = str(pid | (1000 + process))
    calls = {"start": call, "end": f"{call} + {CALL}", "globalTid": thread, "correlationId": "i + 1"}
    _insert(database, "CUPTI_ACTIVITY_KIND_RUNTIME", {**calls, "nameId": str(first_name + NAMES)}, kernels)
    for depth, (size, text) in enumerate(levels):
        # Each level begins before, and ends after, the ranges inside it.
        slack = 100 * (len(levels) - depth)
        later = f" + {LAYER} * {LATER}" if size == STEP and not is_regular else ""
        first, following = (f"({i} * {size}{later.format(i=i)})" for i in ("i", "(i + 1)"))
        last = f"min({following}, {kernels}) - 1"
        ranges = {
            "start": f"1000000000 + {first} * {STRIDE} - {slack}", "text": text, "eventType": "59", "domainId": "0",
            "end": f"1000000000 + ({last}) * {STRIDE} + {CALL + slack}", "globalTid": thread,
        }  # fmt: skip
        # An irregular step may begin up to 12 layers later.
        _insert(database, "NVTX_EVENTS", ranges, -(-(kernels - (12 * LAYER if later else 0)) // size))


def _insert(database: sqlite3.Connection, table: str, values: dict[str, str], rows: int) -> None:
    """Insert ``rows`` rows of SQL expressions in ``i``; 0 where a column needs a value and has none."""
    columns = _columns(database, table)
    chosen = ", ".join(values.get(name, "0" if needed else "NULL") for name, needed in columns)
    database.execute(
        f"WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < {rows}) "
        f'INSERT INTO "{table}" SELECT {chosen} FROM n'
    )


def truth(export: Path, has_cases: bool) -> str:
    """Return launches, total time and time in cases, as SQL counts them."""
    with closing(sqlite3.connect(export)) as database:
        row = database.execute('SELECT count(*), sum("end" - start) FROM CUPTI_ACTIVITY_KIND_KERNEL').fetchone()
    return f"{row[0]} {row[1]} {row[1] if has_cases else 0} "


def write_rocprof(out: Path, kernels: int) -> None:
    """Write the JSON of rocprofv3 of a process with ``kernels`` kernels of 120 names, each with its HIP call."""
    dispatches, calls, at = [], [], 1_000_000
    for i in range(kernels):
        length = 2000 + i * 2654435761 % 28000
        common = {"thread_id": 70, "correlation_id": {"internal": i + 1, "external": 0, "ancestor": 0}}
        info = {
            "size": 136, "agent_id": {"handle": 20}, "queue_id": {"handle": 1}, "kernel_id": i % 120,
            "dispatch_id": i + 1, "private_segment_size": 0, "group_segment_size": 0,
            "workgroup_size": {"x": 256, "y": 1, "z": 1}, "grid_size": {"x": 65536, "y": 1, "z": 1},
        }  # fmt: skip
        times = {"start_timestamp": at + 8000, "end_timestamp": at + 8000 + length}
        stream = {"stream_id": {"handle": 0}}
        dispatches.append({"size": 176, "kind": 2, "operation": 1, **common, **times, "dispatch_info": info, **stream})
        calls.append(
            {"size": 56, "kind": 1, "operation": 1, **common, "start_timestamp": at, "end_timestamp": at + 4000}
        )
        at += length + 1500
    names = (f"Cijk_Ailk_Bljk_HHS_BH_MT{16 * (i % 9 + 1)}x128x32_SN_{i}" for i in range(120))
    symbols = [{"kernel_id": i, "kernel_name": name, "formatted_kernel_name": name} for i, name in enumerate(names)]
    kinds = [{"kind": "NONE", "operations": []}, {"kind": "HIP_RUNTIME_API", "operations": ["", "hipLaunchKernel"]}]
    agent = {"id": {"handle": 20}, "type": 2, "node_id": 1, "logical_node_id": 1, "name": "gfx942"}
    process = {
        "metadata": {"pid": 70, "init_time": 1, "fini_time": at, "command": ["python"]},
        "agents": [agent], "counters": [], "strings": {"buffer_records": kinds}, "kernel_symbols": symbols,
        "callback_records": {"counter_collection": []},
        "buffer_records": {"kernel_dispatch": dispatches, "hip_api": calls, "memory_copy": []},
    }  # fmt: skip
    out.write_text(json.dumps({"rocprofiler-sdk-tool": [process]}))


# --- measuring -------------------------------------------------------------------------------------------------------


def measure(command: list[str]) -> Cost:
    """Run one process. Raises CalledProcessError."""
    # Users have the compiled modules in __pycache__; a development shell may forbid them.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with tempfile.TemporaryFile("w+") as output:
        begin = time.perf_counter()
        process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=output, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - begin
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        text = output.read()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command, text)
    # Linux counts in KiB, macOS in bytes.
    per_megabyte = 1e6 if sys.platform == "darwin" else 1e6 / 1024
    return Cost(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / per_megabyte, text)


def row(kernels: int, folder: Path, options: argparse.Namespace) -> str:
    export, out = folder / f"{kernels}.sqlite", folder / f"{kernels}-tables"
    ranges = grow(export, kernels, options.cases, options.regular)
    commands = {name: [sys.executable, "-c", code, str(export)] for name, code in CODES.items()}
    commands["printed"] = [sys.executable, "-m", "profpipe", "ingest", str(export)]
    commands["command"] = commands["again"] = [*commands["printed"], "--out", str(out)]
    if options.nsys and kernels <= NSYS_UP_TO:
        # This nsys's names of its reports.
        version = subprocess.run([options.nsys, "--version"], capture_output=True, text=True, check=True).stdout
        is_old = " version 2022" in version or " version 2021" in version
        reports = "nvtxkernsum,gpukernsum" if is_old else "nvtx_kern_sum,cuda_gpu_kern_sum"
        commands["nsys"] = [options.nsys, "stats", "-q", "-r", reports, "-f", "csv", "-o", "-", str(export)]
    costs: dict[str, list[Cost]] = {name: [] for name in commands}
    for _ in range(options.rounds):
        for name, command in commands.items():
            if name == "command":
                shutil.rmtree(out, ignore_errors=True)
            costs[name].append(measure(command))
    size, sums = f"{export.stat().st_size / 1e6:,.0f} MB", costs["parser"][0].output
    if not sums.startswith(expected := truth(export, options.cases)):
        raise SystemExit(f"{export}: read {sums.strip()}, but SQL counts {expected}")
    export.unlink()
    cells = [f"{kernels:,}", f"{ranges:,}", size, _cost(costs["plain"]), _cost(costs["parser"])]
    cells.append(f"{int(sums.split()[-1]):,}")
    wall, cpu, _ = _ratios(costs["parser"], costs["plain"])
    cells += [f"{wall:.2f} ({cpu:.2f} by CPU time)", *(_cost(costs[name]) for name in ("printed", "command", "again"))]
    if "nsys" in costs:
        wall, cpu, _ = _ratios(costs["nsys"], costs["command"])
        memory = _ratios(costs["command"], costs["nsys"])[2]
        cells += [_cost(costs["nsys"]), f"{wall:.1f}x as fast ({cpu:.1f}x by CPU time), {memory:.2f} of the memory"]
    return "| " + " | ".join(cells) + " |"


def rocprof_row(kernels: int, folder: Path, options: argparse.Namespace) -> str:
    given, out = folder / f"{kernels}_results.json", folder / "rocprof"
    write_rocprof(given, kernels)
    ours = [sys.executable, "-m", "profpipe", "ingest", str(given), "--out", str(out)]
    theirs = [options.tracelens, "--profile_json_path", str(given), "--output_csvs_dir", str(folder / "tracelens")]
    costs: tuple[list[Cost], list[Cost]] = ([], [])
    for _ in range(options.rounds):
        shutil.rmtree(out, ignore_errors=True)
        for command, found in zip((ours, theirs), costs, strict=True):
            found.append(measure(command))
    wall, cpu, _ = _ratios(*costs)
    size = f"{given.stat().st_size / 1e6:,.0f} MB"
    return (
        f"rocprofv3 JSON, {kernels:,} kernels, {size}: profpipe ingest --out {_cost(costs[0])};"
        f" TraceLens {_cost(costs[1])}: {wall:.2f} of its time ({cpu:.2f} by CPU time)"
    )


def _ratios(over: list[Cost], under: list[Cost]) -> list[float]:
    """Return the median ratios of wall time, CPU time and memory."""
    ratios = ([a / b for a, b in zip(x[:3], y[:3], strict=True)] for x, y in zip(over, under, strict=True))
    return [statistics.median(values) for values in zip(*ratios, strict=True)]


def _cost(costs: list[Cost]) -> str:
    seconds, cpu, megabytes = (statistics.median(values) for values in zip(*(cost[:3] for cost in costs), strict=True))
    return f"{seconds:.2f} s (CPU {cpu:.2f} s), {megabytes:,.0f} MB"


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure `profpipe ingest` on nsys exports of growing size.")
    parser.add_argument("--kernels", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--nsys", default=shutil.which("nsys"), help="nsys to compare with (default: the one in PATH)")
    parser.add_argument("--tracelens", help="TraceLens_generate_perf_report_rocprof to compare with")
    parser.add_argument("--rounds", type=int, default=3, help="how often each process runs (default: 3)")
    parser.add_argument("--cases", action="store_true", help="put the kernels into ranges of cases")
    parser.add_argument("--regular", action="store_true", help="make all steps alike")
    parser.add_argument("--folder", type=Path, help="where the exports are made (default: a temporary folder)")
    options = parser.parse_args()
    head = ["kernels", "ranges", "export", "parser without steps", "parser", "rows of steps", "ratio"]
    head += ["profpipe ingest", "profpipe ingest --out", "again"]
    head += ["nsys stats", "the command is"] if options.nsys else []
    print("| " + " | ".join(head) + " |\n|" + " --- |" * len(head))
    if options.folder is not None:
        options.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for kernels in options.kernels:
            print(row(kernels, Path(folder), options), flush=True)
        if options.tracelens:
            print(rocprof_row(60_000, Path(folder), options))


if __name__ == "__main__":
    main()
