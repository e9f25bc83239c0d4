"""Read what ``ncu`` 2020 to 2026 prints: CSV of the raw and the details page, and the text page, plain or gzipped.

Columns are found by name: versions have others. ncu's messages (``==PROF== …``) and the program's output stand among
the rows. From 2025 on ncu shortens the names of kernels in CSV (``at::native::`` to ``at::``, ``(int)64`` to ``64``);
``kernel_names.normalise`` gives all tools one spelling.

The raw page has a column for a metric, the details page a row. The text page has a line for a kernel and
the tables of its sections below it.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from profpipe.errors import UnreadableFile
from profpipe.ingest import bounds, json_stream, kernel_classes, ncu, printed
from profpipe.ingest.printed import decimal_mark
from profpipe.results import schema

FORMATS = ("ncu --csv, raw and details page (.csv, .csv.gz)", "ncu's text page")

#: The table of `--print-summary`, in CSV and on the text page.
_SUMMARY = re.compile(r"Kernel Name.*Invocations|Metric Name +Metric Unit +Minimum +Maximum +Average")
#: Parts of the header of the CSV and of the line of a kernel on the text page.
_KNOWN_BY = ("Kernel Name", ", Context ")
_MESSAGE = re.compile(r"^==(?:PROF|ERROR|WARNING)==", re.MULTILINE)
_PERMISSION = (
    "On the host, load the nvidia module with NVreg_RestrictProfilingToAdminUsers=0, or start the container with "
    "--cap-add=SYS_ADMIN; nsys needs no such permission."
)


def sniff(path: Path) -> bool:
    """Return True for text with a header of ncu's CSV, a kernel of its text page, or one of its messages."""
    begin = json_stream.read_head(path, 1 << 22)
    if begin.startswith(bounds.SQLITE_HEAD):
        return False  # Decoding a megabyte of what is no text is slow.
    head = printed.decode(begin)
    if _MESSAGE.search(head):
        return True
    if not any(words in head for words in _KNOWN_BY):
        return False  # Reading a file line by line is slow.
    matchers = (is_header, match_kernel)
    return any(matches(line) for line in head.splitlines() for matches in matchers)


def parse(path: Path) -> schema.Tables:
    """Read kernels, the ranges around them, and the chosen metrics.

    Raises ``UnreadableFile`` where the output is cut or has no kernel, with ncu's error.
    """
    text = _text(path)
    lines = text.splitlines()
    first = next((number for number, line in enumerate(lines) if is_header(line)), None)
    if first is not None:
        page, format_ = read_csv(path, lines, first), FORMATS[0]
    else:
        page, format_ = read_text(lines), FORMATS[1]
    if not page.launches:
        raise _refusal(path, text)
    notes = (*_notes(page), *(f"ncu ended with '{error}'" for error in _errors(text)[:1]))
    origin = schema.Origin(format=format_, tool="ncu", device=page.device, notes=notes)
    return ncu.tables_of(path, list(page.launches.values()), origin, schema.Placement.NVTX_COLUMNS)


def _notes(page: Page) -> Iterator[str]:
    timed = (launch.values.get(name, (0.0, ""))[1] for launch in page.launches.values() for name in ncu.DURATIONS)
    if page.is_details and set(timed) - {"", "ns", "nsecond"}:
        yield "times are rounded to three digits, as this page has them; the raw page has all of them"


def _text(path: Path) -> str:
    """Read and unzip the text. Raises ``UnreadableFile`` for a zip that is cut."""
    try:
        with json_stream.open_bytes(path) as file:
            data = file.read()
    except json_stream.FAILURES as error:
        raise UnreadableFile(path, f"a gzip file that is cut or damaged ({error})", RUN_AGAIN) from error
    if data.count(b"\n") > bounds.MOST_LINES:
        raise bounds.TooLarge(f"it has more than {bounds.MOST_LINES:,} lines")
    return printed.decode(data)


def _refusal(path: Path, text: str) -> UnreadableFile:
    """Return why the output has no kernel, with ncu's error where it printed one."""
    if "ERR_NVGPUCTRPERM" in text:
        return UnreadableFile(path, "ncu was not permitted to read the GPU's counters (ERR_NVGPUCTRPERM)", _PERMISSION)
    if any(_SUMMARY.search(line) for line in text.splitlines()):
        return UnreadableFile(path, "ncu's sums over launches, not the launches", "Print them without --print-summary.")
    if printed := _errors(text):
        return UnreadableFile(path, f"no kernel in it: ncu ended with '{printed[0]}'", "Fix that, then profile again.")
    what = "ncu's messages without a kernel" if _MESSAGE.search(text) else "no row of a kernel in it"
    return UnreadableFile(path, what, "Check that the program ran on the GPU, and that ncu's filters match a kernel.")


def _errors(text: str) -> list[str]:
    return [line.removeprefix("==ERROR==").strip() for line in text.splitlines() if line.startswith("==ERROR==")]


# --- launches --------------------------------------------------------------------------------------------------------


@dataclass
class Page:
    """The launches of one file by segment (header), host, process, ID and row, and the GPU's name."""

    launches: dict[tuple[int, str, str, str, int], ncu.Launch] = field(default_factory=dict)
    device: str = ""
    is_details: bool = False

    def launch(self, segment: int, cells: dict[str, str], row: int = 0) -> ncu.Launch:
        """Return the launch of a row. ``row`` is its number where rows are launches."""
        key = (segment, cells.get("Host Name", ""), cells.get("Process ID", ""), cells["ID"], row)
        if key not in self.launches:
            device = cells.get("Device", "")
            self.launches[key] = ncu.Launch(
                # The CSV of ncu 2026 lacks the first character of "<unnamed>::saxpy_kernel".
                name=kernel_classes.normalise(re.sub("^unnamed>::", "<unnamed>::", cells["Kernel Name"])),
                process=_integer(cells.get("Process ID")),
                device=_integer(device),
                stream=_integer(cells.get("Stream")),
                path=tuple(_path(cells)),
            )
            named = device if _integer(device) is None else ""
            self.device = self.device or cells.get("device__attribute_display_name", named)
        return self.launches[key]


def _integer(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() and len(text) < 19 else None


def read_number(text: str, mark: str) -> float | None:
    """Parse a number without the instances in ``5 (2; 3)``; None for ``n/a``, ``nan`` and words."""
    return printed.number(text.partition(" (")[0].strip(), mark)


def add_row(launch: ncu.Launch, cells: dict[str, str], mark: str) -> None:
    """Add a row of the details page: one metric or one rule."""
    if rule := cells.get("Rule Name"):
        if cells.get("Rule Type") in ("OPT", "WRN"):
            is_local = cells.get("Estimated Speedup Type", "").lower() == "local"
            launch.add_rule(rule, is_local, read_number(cells.get("Estimated Speedup", ""), mark))
        return
    unit = cells.get("Metric Unit", "")
    name, value = _metric(cells.get("Metric Name", ""), unit), read_number(cells["Metric Value"], mark)
    if name and value is not None:
        launch.values.setdefault(name, (value, unit))
        if cells.get("Section Name") == "Command line profiler metrics":
            launch.requested.add(name)


# --- ranges ----------------------------------------------------------------------------------------------------------

_RANGE = re.compile(r'"([^"]*)"')


def _path(cells: dict[str, str]) -> Iterator[str]:
    """Yield the ranges around the launch, outermost first: start/end ranges, then push/pop ranges."""
    for kind in ("Start/Stop_Range", "Push/Pop_Range"):
        for column in (name for name in cells if kind in name):
            for text in _RANGE.findall(cells[column]):
                # ``<default domain>:step:none:none:none:none:none:none``: only the name may hold colons. The six
                # fields are type and value of the payload and of the colour, and type and text of the message.
                _, _, rest = text.partition(":")
                yield rest.rsplit(":", 6)[0]


# --- the details page's names ----------------------------------------------------------------------------------------

#: Label -> metric, from the sections of ncu 2020 to 2025.
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
    """Return the metric of a row, empty where the tables do not keep it."""
    if "__" in label:
        return label
    if unit.endswith(("/second", "/s")) and label in _RATES:
        return _RATES[label]
    return _LABELS.get(label, "")


# --- CSV -------------------------------------------------------------------------------------------------------------

_HEADER = re.compile(r'^"?ID"?[,;].*\bKernel Name\b')
RUN_AGAIN = "Profile again; the rest of ncu's output is missing."


def is_header(line: str) -> bool:
    return bool(_HEADER.match(line))


@dataclass
class _Segment:
    """The rows under one header: a column for a metric (``figures``), or on the details page a row."""

    header: list[str]
    units: dict[str, str] = field(default_factory=dict)
    rows: list[dict[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.is_long = "Metric Value" in self.header
        self.figures = ["Metric Value"] if self.is_long else list(ncu.chosen(self.header))
        needed = [self.header.index(name) for name in ("Kernel Name", "Metric Value") if name in self.header]
        self.least = max(needed, default=0) + 1 if self.is_long else len(self.header)

    def has_cells(self, row: list[str]) -> bool:
        return "Kernel Name" in self.header and len(row) >= self.least

    def numbers(self) -> Iterator[str]:
        return (row[name] for row in self.rows for name in self.figures)


def read_csv(path: Path, lines: Sequence[str], first: int) -> Page:
    segments: list[_Segment] = []
    for number, row in _records(path, lines, first):
        if row[0] == "ID":
            segments.append(_Segment(row))
        elif segments and not row[0]:
            segments[-1].units = dict(zip(segments[-1].header, row, strict=False))
        elif not segments or not segments[-1].has_cells(row):
            raise UnreadableFile(path, f"ncu's CSV is cut or damaged in line {number}", RUN_AGAIN)
        else:
            segments[-1].rows.append(dict(zip(segments[-1].header, row, strict=False)))
    mark = decimal_mark(text for segment in segments for text in segment.numbers())
    page = Page(is_details=any(segment.is_long for segment in segments))
    for number, segment in enumerate(segments):
        for place, cells in enumerate(segment.rows):
            if segment.is_long:
                add_row(page.launch(number, cells), cells, mark)
                continue
            values = {name: read_number(cells[name], mark) for name in segment.figures}
            present = {n: (value, segment.units.get(n, "")) for n, value in values.items() if value is not None}
            page.launch(number, cells, place).values.update(present)
    return page


def _records(path: Path, lines: Sequence[str], first: int) -> Iterator[tuple[int, list[str]]]:
    """Yield (line number, cells) of headers, rows of units and rows of launches; skip all other output."""
    quote = '"' if lines[first].startswith('"') else ""
    comma = ";" if lines[first].count(";") > lines[first].count(",") else ","
    begins = re.compile(rf"^{quote}(?:ID|\d+|){quote}{comma}")
    for at in range(first, len(lines)):
        if not begins.match(lines[at]):
            continue
        # The text of a rule may have several lines, and ends at the next row at the latest.
        record, following = lines[at], at + 1
        while record.count('"') % 2 and following < len(lines) and not begins.match(lines[following]):
            record, following = f"{record}\n{lines[following]}", following + 1
        try:
            (row,) = csv.reader([record], delimiter=comma, strict=True)
        except (csv.Error, ValueError) as error:
            raise UnreadableFile(path, f"ncu's CSV is cut or damaged in line {at + 1} ({error})", RUN_AGAIN) from error
        yield at + 1, row


# --- the text page ---------------------------------------------------------------------------------------------------

_PROCESS = re.compile(r"^\s*\[(\d+)\] \S+@\S+$")
_KERNEL = re.compile(
    r"^\s+(?P<name>\S.*?)(?: \(\d+, \d+, \d+\)x\(\d+, \d+, \d+\))?(?:, \d{4}-\w{3}-\d\d \d\d:\d\d:\d\d)?"
    r", Context \d+, Stream (?P<stream>\d+)(?:, Device (?P<device>\d+))?(?:, CC [\d.]+)?\s*$"
)
_RULER = re.compile(r"^\s*-{3,}(?: +-{3,})+\s*$")


def match_kernel(line: str) -> re.Match[str] | None:
    """Match the line of a kernel: its name, stream and device."""
    # On a line of a megabyte the pattern alone takes seconds.
    return _KERNEL.match(line) if ", Context " in line[:65536] else None


def read_text(lines: Sequence[str]) -> Page:
    """Read the text page: launches, with the rows of the tables below them."""
    page, rows = Page(is_details=True), list(_text_rows(lines))
    mark = decimal_mark(row.get("Metric Value", "") for row in rows)
    for cells in rows:
        launch = page.launch(0, cells)
        if "Metric Value" in cells:
            add_row(launch, cells, mark)
    return page


def _text_rows(lines: Sequence[str]) -> Iterator[dict[str, str]]:
    """Yield the cells of a kernel's line, then those of the rows of its sections, with the kernel's cells.

    The gaps of the ruler divide a row: a name may hold blanks, and a unit may be empty.
    """
    kernel: dict[str, str] = {}
    process, section, number = "", "", 0
    columns: list[slice] = []
    for line in lines:
        if match := _PROCESS.match(line):
            process = match[1]
        elif match := match_kernel(line):
            kernel = {"ID": str(number), "Process ID": process, "Kernel Name": match["name"]}
            kernel |= {"Stream": match["stream"], "Device": match["device"] or ""}
            number, columns = number + 1, []
            yield kernel
        elif _RULER.match(line):
            columns = [slice(*span.span()) for span in re.finditer("-+", line)]
        elif line.strip().startswith("Section: "):
            section, columns = line.strip().removeprefix("Section: "), []
        elif not line.strip():
            columns = []
        elif len(columns) == 3 and kernel:
            texts = [line[column].strip() for column in columns]
            named = dict(zip(("Metric Name", "Metric Unit", "Metric Value"), texts, strict=True))
            yield {**kernel, "Section Name": section, **named}
