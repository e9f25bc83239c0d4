"""How fast an nsys export becomes tables, and in how much memory, beside `nsys stats` on the same file.

    python benchmarks/ingest.py [--kernels 10000 100000 1000000 10000000] [--nsys PATH] [--repeats 3] [--folder DIR]

The exports are grown from the recorded one in tests/data: four processes that count the same correlation ids, 360
kernel names, ranges `profpipe:impl=N` > step > layer_N > attention | mlp | norm of 40 kernels each. Every time is a
whole process's, start-up included, and the best of the repeats; memory is its peak. The tables' sums are checked
against SQL. `nsys stats` makes its table of kernels by range, the report nearest to ours.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TEMPLATE = ROOT / "tests" / "data" / "nsys-2025.3.1" / "attention" / "attn_h200.sqlite"

PROCESSES = 4
NAMES = 360
#: Kernels in a range of each level, outermost first, and the SQL of its name from its number ``i``.
LEVELS = (
    (57600, "'profpipe:impl=' || (i % 6)"),
    (5760, "'step'"),
    (120, "'layer_' || (i % 48)"),
    (40, "CASE i % 3 WHEN 0 THEN 'attention' WHEN 1 THEN 'mlp' ELSE 'norm' END"),
)
#: Of ten million kernels `nsys stats` 2022.4 would need 16 GB.
NSYS_UP_TO = 1_000_000
#: ns from one call to the next, and how long a call lasts.
STRIDE, CALL = 6000, 4000

#: Reads one export the way `profpipe ingest` does and prints what was found.
READ = """
import sys
from pathlib import Path
from profpipe import load
parsed = load.module(load.own_folder("parsers") / "nsys_sqlite.py").parse(Path(sys.argv[1]))
print(parsed.origin.launches, int(parsed.origin.total_ns), int(parsed.origin.attributed_ns), len(parsed.kernels))
"""


@dataclass(frozen=True)
class Cost:
    """Of one process: wall time and peak resident memory."""

    seconds: float
    megabytes: float
    output: str


# --- exports of any size ---------------------------------------------------------------------------------------------


def grow(out: Path, kernels: int) -> int:
    """Writes an export of about ``kernels`` kernels (whole per process) and returns the number of its ranges."""
    shutil.copyfile(TEMPLATE, out)
    each = kernels // PROCESSES
    with closing(sqlite3.connect(out)) as database:
        database.executescript("PRAGMA journal_mode = off; PRAGMA synchronous = off;")
        for table in ("KERNEL", "RUNTIME", "MEMSET", "MEMCPY"):
            if _columns(database, f"CUPTI_ACTIVITY_KIND_{table}"):
                database.execute(f"DELETE FROM CUPTI_ACTIVITY_KIND_{table}")
        database.execute("DELETE FROM NVTX_EVENTS")
        first_name = _write_names(database)
        for process in range(PROCESSES):
            _write_process(database, process, each, first_name)
        ranges = int(database.execute("SELECT count(*) FROM NVTX_EVENTS").fetchone()[0])
        database.commit()
    return ranges


def _columns(database: sqlite3.Connection, table: str) -> list[tuple[str, bool]]:
    """(name, whether it must not be NULL) of each column."""
    return [(row[1], bool(row[3])) for row in database.execute(f'PRAGMA table_info("{table}")')]


def _write_names(database: sqlite3.Connection) -> int:
    """Adds the names of the kernels, real ones and variants of them, and returns the first one's id."""
    real = [row[0] for row in database.execute("SELECT value FROM StringIds WHERE value LIKE '%(%' ORDER BY id")]
    first = int(database.execute("SELECT max(id) + 1 FROM StringIds").fetchone()[0])
    names = [real[i % len(real)] + (f"#v{i // len(real)}" if i >= len(real) else "") for i in range(NAMES)]
    database.executemany("INSERT INTO StringIds(id, value) VALUES (?, ?)", enumerate(names, first))
    database.execute("INSERT INTO StringIds(id, value) VALUES (?, 'cudaLaunchKernel_v7000')", (first + NAMES,))
    return first


def _write_process(database: sqlite3.Connection, process: int, kernels: int, first_name: int) -> None:
    pid = 1 << 48 | (1000 + process) << 24
    call = f"1000000000 + i * {STRIDE}"
    # As in a real program each layer launches the same kernels every time, and no two launches last alike.
    name = f"{first_name} + i % {NAMES}"
    work = {
        "start": f"{call} + 10000", "end": f"{call} + 12000 + i * 2654435761 % 9000", "deviceId": str(process),
        "contextId": "1", "streamId": "7", "correlationId": "i + 1", "globalPid": str(pid), "demangledName": name,
        "shortName": name, "mangledName": name,
    }  # fmt: skip
    _insert(database, "CUPTI_ACTIVITY_KIND_KERNEL", work, kernels)
    thread = str(pid | (1000 + process))
    calls = {"start": call, "end": f"{call} + {CALL}", "globalTid": thread, "correlationId": "i + 1"}
    _insert(database, "CUPTI_ACTIVITY_KIND_RUNTIME", {**calls, "nameId": str(first_name + NAMES)}, kernels)
    for depth, (size, text) in enumerate(LEVELS):
        # Each level begins a little before, and ends a little behind, what is nested in it.
        slack = 100 * (len(LEVELS) - depth)
        last = f"min(i * {size} + {size}, {kernels}) - 1"
        ranges = {
            "start": f"1000000000 + i * {size * STRIDE} - {slack}", "text": text, "eventType": "59", "domainId": "0",
            "end": f"1000000000 + ({last}) * {STRIDE} + {CALL + slack}", "globalTid": thread,
        }  # fmt: skip
        _insert(database, "NVTX_EVENTS", ranges, -(-kernels // size))


def _insert(database: sqlite3.Connection, table: str, values: dict[str, str], rows: int) -> None:
    """Rows 0 to ``rows`` of SQL expressions in ``i``; 0 where a column needs a value and none is given."""
    columns = _columns(database, table)
    chosen = ", ".join(values.get(name, "0" if needed else "NULL") for name, needed in columns)
    database.execute(
        f"WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < {rows}) "
        f'INSERT INTO "{table}" SELECT {chosen} FROM n'
    )


def truth(export: Path) -> str:
    """Launches and total time, as SQL counts them."""
    with closing(sqlite3.connect(export)) as database:
        row = database.execute('SELECT count(*), sum("end" - start) FROM CUPTI_ACTIVITY_KIND_KERNEL').fetchone()
    return f"{row[0]} {row[1]} {row[1]}"


# --- measuring -------------------------------------------------------------------------------------------------------


def measure(command: list[str], repeats: int) -> Cost:
    """The best of ``repeats`` runs; raises CalledProcessError where one fails."""
    return min((_run_once(command) for _ in range(repeats)), key=lambda cost: cost.seconds)


def _run_once(command: list[str]) -> Cost:
    with tempfile.TemporaryFile("w+") as output:
        begin = time.perf_counter()
        process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - begin
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        text = output.read()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command, text)
    # Linux counts in KiB, macOS in bytes.
    per_megabyte = 1e6 if sys.platform == "darwin" else 1e6 / 1024
    return Cost(seconds, usage.ru_maxrss / per_megabyte, text)


def nsys_report(nsys: str) -> str:
    """The name that this nsys has for its table of kernels by range."""
    version = subprocess.run([nsys, "--version"], capture_output=True, text=True, check=True).stdout
    return "nvtxkernsum" if " version 2022" in version or " version 2021" in version else "nvtx_kern_sum"


def row(kernels: int, folder: Path, nsys: str | None, repeats: int) -> str:
    export = folder / f"{kernels}.sqlite"
    ranges = grow(export, kernels)
    own = measure([sys.executable, "-c", READ, str(export)], repeats)
    if not own.output.startswith(truth(export)):
        raise SystemExit(f"{export}: read {own.output.strip()}, but SQL counts {truth(export)}")
    cells = [f"{kernels:,}", f"{ranges:,}", f"{export.stat().st_size / 1e6:,.0f} MB", _cost(own)]
    if nsys and kernels <= NSYS_UP_TO:
        theirs = measure([nsys, "stats", "-q", "-r", nsys_report(nsys), "-f", "csv", "-o", "-", str(export)], 1)
        faster, smaller = theirs.seconds / own.seconds, theirs.megabytes / own.megabytes
        cells += [_cost(theirs), f"{faster:.1f}x as fast, {smaller:.1f}x less memory"]
    export.unlink()
    return "| " + " | ".join(cells) + " |"


def _cost(cost: Cost) -> str:
    return f"{cost.seconds:.2f} s, {cost.megabytes:,.0f} MB"


def main() -> None:
    parser = argparse.ArgumentParser(description="Times of reading nsys exports of growing size.")
    parser.add_argument("--kernels", type=int, nargs="+", default=[10_000, 100_000, 1_000_000, 10_000_000])
    parser.add_argument("--nsys", default=shutil.which("nsys"), help="nsys to compare with (default: the one in PATH)")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where the exports are made (default: a temporary folder)")
    options = parser.parse_args()
    head = ["kernels", "ranges", "export", "profpipe"] + (["nsys stats", "profpipe is"] if options.nsys else [])
    print("| " + " | ".join(head) + " |\n|" + " --- |" * len(head))
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for kernels in options.kernels:
            print(row(kernels, Path(folder), options.nsys, options.repeats), flush=True)


if __name__ == "__main__":
    main()
