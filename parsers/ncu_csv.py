"""Read what ``ncu`` 2020 to 2026 prints: CSV of the raw and the details page, and the text page, plain or gzipped.

Columns are found by name: each version has others. ncu's messages (``==PROF== …``) and the program's output stand among
the rows. From 2025 on ncu shortens the names of kernels in CSV (``at::native::`` to ``at::``, ``(int)64`` to ``64``);
``kernel_names.normalise`` gives all tools one spelling.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from profpipe.errors import UnreadableFile
from profpipe.ingest import bounds, json_stream
from profpipe.ingest.ncu import counters, guided, pages
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
    head = _decoded(begin)
    if _MESSAGE.search(head):
        return True
    if not any(words in head for words in _KNOWN_BY):
        return False  # Reading a file line by line is slow.
    known = (pages.is_header, pages.match_kernel)
    return any(is_it(line) for line in head.splitlines() for is_it in known)


def parse(path: Path) -> schema.Tables:
    """Read kernels, the ranges around them, and the chosen metrics.

    Raises ``UnreadableFile`` where the output is cut or has no kernel, with ncu's error.
    """
    text = _text(path)
    lines = text.splitlines()
    first = next((number for number, line in enumerate(lines) if pages.is_header(line)), None)
    if first is not None:
        page, format_ = pages.read_csv(path, lines, first), FORMATS[0]
    else:
        page, format_ = pages.read_text(lines), FORMATS[1]
    if not page.launches:
        raise _refusal(path, text)
    notes = (*_notes(page), *(f"ncu ended with '{error}'" for error in _errors(text)[:1]))
    origin = schema.Origin(format=format_, tool="ncu", device=page.device, notes=notes)
    return guided.tables_of(path, list(page.launches.values()), origin, schema.Placement.NVTX_COLUMNS)


def _notes(page: pages.Page) -> Iterator[str]:
    timed = (launch.values.get(name, (0.0, ""))[1] for launch in page.launches.values() for name in counters.DURATIONS)
    if page.is_details and set(timed) - {"", "ns", "nsecond"}:
        yield "times are rounded to three digits, as this page has them; the raw page has all of them"


def _text(path: Path) -> str:
    """Read and unzip the text. Raises ``UnreadableFile`` for a zip that is cut."""
    try:
        with json_stream.open_bytes(path) as file:
            data = file.read()
    except json_stream.FAILURES as error:
        raise UnreadableFile(path, f"a gzip file that is cut or damaged ({error})", pages.RUN_AGAIN) from error
    if data.count(b"\n") > bounds.MOST_LINES:
        raise bounds.TooLarge(f"it has more than {bounds.MOST_LINES:,} lines")
    return _decoded(data)


def _decoded(data: bytes) -> str:
    # PowerShell redirects output as UTF-16.
    utf16 = data.startswith((b"\xff\xfe", b"\xfe\xff"))
    return data.decode("utf-16" if utf16 else "utf-8-sig", errors="replace")


def _refusal(path: Path, text: str) -> UnreadableFile:
    """Return why the output has no kernel, with ncu's error where it printed one."""
    if "ERR_NVGPUCTRPERM" in text:
        return UnreadableFile(path, "ncu was not permitted to read the GPU's counters (ERR_NVGPUCTRPERM)", _PERMISSION)
    if any(_SUMMARY.search(line) for line in text.splitlines()):
        return UnreadableFile(path, "ncu's sums over launches, not the launches", "Print them without --print-summary.")
    if printed := _errors(text):
        return UnreadableFile(path, f"no kernel in it: ncu ended with '{printed[0]}'", "Mend that, then profile again.")
    what = "ncu's messages without a kernel" if _MESSAGE.search(text) else "no row of a kernel in it"
    return UnreadableFile(path, what, "Check that the program ran on the GPU, and that ncu's filters match a kernel.")


def _errors(text: str) -> list[str]:
    return [line.removeprefix("==ERROR==").strip() for line in text.splitlines() if line.startswith("==ERROR==")]
