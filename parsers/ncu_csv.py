"""What ``ncu`` prints: CSV of the raw page (wide) and of the details page (long), and the text page, plain or gzipped.

Columns are found by name, for each version has others. Before, between and behind the rows stand ncu's own messages
(``==PROF== …``) and whatever the program printed. From 2025 on ncu shortens the names of kernels in CSV
(``at::native::`` to ``at::``, ``(int)64`` to ``64``), which ``kernels.normalise`` undoes for what it can be undone.
"""

from __future__ import annotations

import csv
import gzip
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from profpipe import counters, kernels, tables
from profpipe.errors import Refused

FORMATS = ("ncu --csv, raw and details page (.csv, .csv.gz)", "ncu's text page")

_HEADER = re.compile(r'^"?ID"?[,;].*\bKernel Name\b')
#: The table of `--print-summary`, in CSV and on the text page.
_SUMMARY = re.compile(r"Kernel Name.*Invocations|Metric Name +Metric Unit +Minimum +Maximum +Average")
_MESSAGE = re.compile(r"^==(?:PROF|ERROR|WARNING)==", re.MULTILINE)
_RUN_AGAIN = "Profile again; the rest of ncu's output is missing."
_PERMISSION = (
    "On the host, load the nvidia module with NVreg_RestrictProfilingToAdminUsers=0, or start the container with "
    "--cap-add=SYS_ADMIN; nsys needs no such permission."
)


def sniff(path: Path) -> bool:
    """True for text with a header of ncu's CSV, a kernel of its text page, or one of its messages."""
    try:
        head = _text(path, 1 << 20)
    except Refused:
        return False
    return bool(_MESSAGE.search(head)) or any(_HEADER.match(line) or _kernel(line) for line in head.splitlines())


def parse(path: Path) -> tables.Tables:
    """Kernels, the ranges around them, and the chosen metrics.

    Raises ``Refused`` where there is no kernel, with ncu's own error, and where the output is cut.
    """
    text = _text(path)
    lines = text.splitlines()
    first = next((number for number, line in enumerate(lines) if _HEADER.match(line)), None)
    if first is not None:
        sheet, format_ = _read_csv(path, lines, first), FORMATS[0]
    else:
        sheet, format_ = _read_text_page(lines), FORMATS[1]
    if not sheet.launches:
        raise _refusal(path, text)
    launches = list(sheet.launches.values())
    parsed = counters.tables_of(
        launches,
        tables.Origin(
            format=format_,
            tool="ncu",
            device=sheet.device,
            attribution=counters.attribution(launches, "NVTX ranges that ncu printed beside them"),
            notes=(*_notes(sheet), *(f"ncu ended with '{said}'" for said in _errors(text)[:1])),
        ),
    )
    return replace(parsed, kernels=kernels.annotate(parsed.kernels))


def _notes(sheet: Sheet) -> Iterator[str]:
    timed = (launch.values.get(name, (0.0, ""))[1] for launch in sheet.launches.values() for name in counters.DURATIONS)
    if sheet.is_details and set(timed) - {"", "ns", "nsecond"}:
        yield "times are rounded to three digits, as this page has them; the raw page has all of them"


def _text(path: Path, limit: int = -1) -> str:
    """The text, unzipped. Raises ``Refused`` for a zip that is cut; ``limit`` is in bytes of the zip."""
    if not path.is_file():
        raise Refused(path, "is no file", "Name the file that ncu printed.")
    with path.open("rb") as file:
        data = file.read(limit)
    if data.startswith(b"\x1f\x8b"):
        try:
            data = gzip.decompress(data) if limit < 0 else zlib.decompressobj(wbits=31).decompress(data, limit)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise Refused(path, f"a gzip file that is cut or damaged ({error})", _RUN_AGAIN) from error
    # PowerShell writes what it redirects as UTF-16.
    utf16 = data.startswith((b"\xff\xfe", b"\xfe\xff"))
    return data.decode("utf-16" if utf16 else "utf-8-sig", errors="replace")


def _refusal(path: Path, text: str) -> Refused:
    """Why there is no kernel in what ncu printed, in its own words where it has some."""
    if "ERR_NVGPUCTRPERM" in text:
        return Refused(path, "ncu was not permitted to read the GPU's counters (ERR_NVGPUCTRPERM)", _PERMISSION)
    if any(_SUMMARY.search(line) for line in text.splitlines()):
        return Refused(path, "ncu's sums over launches, not the launches", "Print them without --print-summary.")
    if said := _errors(text):
        return Refused(path, f"no kernel in it: ncu ended with '{said[0]}'", "Mend that, then profile again.")
    what = "ncu's messages without a kernel" if _MESSAGE.search(text) else "no row of a kernel in it"
    return Refused(path, what, "Check that the program ran on the GPU, and that ncu's filters match a kernel.")


def _errors(text: str) -> list[str]:
    return [line.removeprefix("==ERROR==").strip() for line in text.splitlines() if line.startswith("==ERROR==")]


@dataclass
class Sheet:
    """The launches of one file, by segment (header), process and ID, and the GPU's name."""

    launches: dict[tuple[int, str, str], counters.Launch] = field(default_factory=dict)
    device: str = ""
    is_details: bool = False

    def launch(self, segment: int, cells: dict[str, str]) -> counters.Launch:
        """The launch of a row, new or known from the rows before."""
        key = (segment, cells.get("Process ID", ""), cells["ID"])
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


# --- CSV -------------------------------------------------------------------------------------------------------------


@dataclass
class Segment:
    """What stands under one header: a column for each metric (``figures``), or on the details page a row for each."""

    header: list[str]
    units: dict[str, str] = field(default_factory=dict)
    rows: list[dict[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.is_long = "Metric Value" in self.header
        self.figures = ["Metric Value"] if self.is_long else list(counters.chosen(self.header))
        self.least = self.header.index("Metric Value") + 1 if self.is_long else len(self.header)

    def numbers(self) -> Iterator[str]:
        return (row[name] for row in self.rows for name in self.figures)


def _read_csv(path: Path, lines: Sequence[str], first: int) -> Sheet:
    segments: list[Segment] = []
    for number, row in _records(path, lines, first):
        if row[0] == "ID":
            segments.append(Segment(row))
        elif not row[0]:
            segments[-1].units = dict(zip(segments[-1].header, row, strict=False))
        elif len(row) < segments[-1].least:
            raise Refused(path, f"ncu's CSV is cut or damaged in line {number}", _RUN_AGAIN)
        else:
            segments[-1].rows.append(dict(zip(segments[-1].header, row, strict=False)))
    mark = _decimal_mark(text for segment in segments for text in segment.numbers())
    sheet = Sheet(is_details=any(segment.is_long for segment in segments))
    for number, segment in enumerate(segments):
        for cells in segment.rows:
            launch = sheet.launch(number, cells)
            if segment.is_long:
                _add_row(launch, cells, mark)
            else:
                _add_columns(launch, cells, segment, mark)
    return sheet


def _records(path: Path, lines: Sequence[str], first: int) -> Iterator[tuple[int, list[str]]]:
    """(line number, cells) of headers, rows of units and rows of launches; what else was printed is left out."""
    quote = '"' if lines[first].startswith('"') else ""
    comma = ";" if lines[first].count(";") > lines[first].count(",") else ","
    begins = re.compile(rf"^{quote}(?:ID|\d+|){quote}{comma}")
    for at in range(first, len(lines)):
        if not begins.match(lines[at]):
            continue
        # The text of a rule may go over several lines; the next row begins on a line of its own at the latest.
        record, following = lines[at], at + 1
        while record.count('"') % 2 and following < len(lines) and not begins.match(lines[following]):
            record, following = f"{record}\n{lines[following]}", following + 1
        try:
            (row,) = csv.reader([record], delimiter=comma, strict=True)
        except (csv.Error, ValueError) as error:
            raise Refused(path, f"ncu's CSV is cut or damaged in line {at + 1} ({error})", _RUN_AGAIN) from error
        yield at + 1, row


def _add_columns(launch: counters.Launch, cells: dict[str, str], segment: Segment, mark: str) -> None:
    """A row of the raw page: every metric of the launch."""
    for name in segment.figures:
        value = _number(cells[name], mark)
        if value is not None:
            launch.values[name] = (value, segment.units.get(name, ""))


def _add_row(launch: counters.Launch, cells: dict[str, str], mark: str) -> None:
    """A row of the details page: one metric or one rule."""
    if rule := cells.get("Rule Name"):
        if cells.get("Rule Type") in ("OPT", "WRN"):
            is_local = cells.get("Estimated Speedup Type", "").lower() == "local"
            launch.rules.append(counters.Rule(rule, _number(cells.get("Estimated Speedup", ""), mark), is_local))
        return
    unit = cells.get("Metric Unit", "")
    name, value = _metric(cells.get("Metric Name", ""), unit), _number(cells["Metric Value"], mark)
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


# --- numbers ---------------------------------------------------------------------------------------------------------

_NUMBER = re.compile(r"^[-+]?\d[\d.,]*(?:[eE][-+]?\d+)?$")
_GROUPING = re.compile(r"(?<=\d)[\s\u00a0\u202f'’](?=\d)")


def _number(text: str, mark: str) -> float | None:
    """The number, without its grouping and the instances in ``5 (2; 3)``; None for ``n/a``, ``nan`` and words."""
    text = _GROUPING.sub("", text.partition(" (")[0].strip())
    if not _NUMBER.match(text):
        return None
    try:
        return float(text.replace("," if mark == "." else ".", "").replace(mark, "."))
    except ValueError:
        return None


def _decimal_mark(texts: Iterable[str]) -> str:
    """Whether these numbers were written with a decimal point or, by the locale of some machines, with a comma.

    ``1.234`` can be either; ``0.5``, ``1.25``, ``1,234.5`` and ``27.595.520`` cannot, and the most of them decide.
    """
    votes: Counter[str] = Counter()
    for text in texts:
        if _NUMBER.match(text):
            votes[_told_by(text)] += 1
    return "," if votes[","] > votes["."] else "."


def _told_by(text: str) -> str:
    """The decimal mark that ``text`` must have been written with; empty where it could be either or has none."""
    points, commas = text.count("."), text.count(",")
    if points and commas:
        return "." if text.rindex(".") > text.rindex(",") else ","
    if points + commas > 1:
        return "," if points else "."
    if not points + commas:
        return ""
    mark = "." if points else ","
    whole, _, fraction = text.lstrip("+-").partition(mark)
    return "" if len(fraction) == 3 and len(whole) <= 3 and whole != "0" else mark


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


# --- the text page ---------------------------------------------------------------------------------------------------

_PROCESS = re.compile(r"^\s*\[(\d+)\] \S+@\S+$")
_KERNEL = re.compile(
    r"^\s+(?P<name>\S.*?)(?: \(\d+, \d+, \d+\)x\(\d+, \d+, \d+\))?(?:, \d{4}-\w{3}-\d\d \d\d:\d\d:\d\d)?"
    r", Context \d+, Stream (?P<stream>\d+)(?:, Device (?P<device>\d+))?(?:, CC [\d.]+)?\s*$"
)
_RULER = re.compile(r"^\s*-{3,}(?: +-{3,})+\s*$")


def _kernel(line: str) -> re.Match[str] | None:
    # The pattern alone takes seconds to find nothing in a line of a megabyte.
    return _KERNEL.match(line) if ", Context " in line[:65536] else None


def _read_text_page(lines: Sequence[str]) -> Sheet:
    """Launches of the text page, with the rows of the tables below each."""
    sheet, rows = Sheet(is_details=True), list(_text_rows(lines))
    mark = _decimal_mark(row.get("Metric Value", "") for row in rows)
    for cells in rows:
        launch = sheet.launch(0, cells)
        if "Metric Value" in cells:
            _add_row(launch, cells, mark)
    return sheet


def _text_rows(lines: Sequence[str]) -> Iterator[dict[str, str]]:
    """The cells of each kernel's line, then those of each row of its sections with the kernel's own before them.

    A row is cut where the ruler above it has its gaps, for a name may hold blanks and a unit be empty.
    """
    kernel: dict[str, str] = {}
    process, section, number = "", "", 0
    columns: list[slice] = []
    for line in lines:
        if found := _PROCESS.match(line):
            process = found[1]
        elif found := _kernel(line):
            kernel = {"ID": str(number), "Process ID": process, "Kernel Name": found["name"]}
            kernel |= {"Stream": found["stream"], "Device": found["device"] or ""}
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
