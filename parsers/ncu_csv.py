"""What ``ncu`` prints: CSV of the raw page (wide) and of the details page (long), and the text page, plain or gzipped.

Columns are found by name, for each version has others. Before, between and behind the rows stand ncu's own messages
(``==PROF== …``) and whatever the program printed. From 2025 on ncu shortens the names of kernels in CSV
(``at::native::`` to ``at::``, ``(int)64`` to ``64``), which ``kernels.normalise`` undoes for what it can be undone.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from profpipe import kernels, load, tables
from profpipe.errors import Refused
from profpipe.formats import counters, guided

if TYPE_CHECKING:
    import _ncu_csv_pages
    import _ncu_sheet
    import _ncu_text_page
else:
    _ncu_csv_pages = load.module(Path(__file__).with_name("_ncu_csv_pages.py"))
    _ncu_sheet = load.module(Path(__file__).with_name("_ncu_sheet.py"))
    _ncu_text_page = load.module(Path(__file__).with_name("_ncu_text_page.py"))

FORMATS = ("ncu --csv, raw and details page (.csv, .csv.gz)", "ncu's text page")

#: The table of `--print-summary`, in CSV and on the text page.
_SUMMARY = re.compile(r"Kernel Name.*Invocations|Metric Name +Metric Unit +Minimum +Maximum +Average")
#: What the header of the CSV and a kernel of the text page have in them.
_KNOWN_BY = ("Kernel Name", ", Context ")
_MESSAGE = re.compile(r"^==(?:PROF|ERROR|WARNING)==", re.MULTILINE)
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
    if _MESSAGE.search(head):
        return True
    if not any(words in head for words in _KNOWN_BY):
        return False  # as nearly every other file; a look at each line of one takes a while
    known = (_ncu_csv_pages.is_header, _ncu_text_page.kernel_line)
    return any(is_it(line) for line in head.splitlines() for is_it in known)


def parse(path: Path) -> tables.Tables:
    """Kernels, the ranges around them, and the chosen metrics.

    Raises ``Refused`` where there is no kernel, with ncu's own error, and where the output is cut.
    """
    text = _text(path)
    lines = text.splitlines()
    first = next((number for number, line in enumerate(lines) if _ncu_csv_pages.is_header(line)), None)
    if first is not None:
        sheet, format_ = _ncu_csv_pages.read(path, lines, first), FORMATS[0]
    else:
        sheet, format_ = _ncu_text_page.read(lines), FORMATS[1]
    if not sheet.launches:
        raise _refusal(path, text)
    launches, guide = list(sheet.launches.values()), guided.beside(path)
    launches, notes = guided.kept(launches, guide) if guide else (launches, [])
    parsed = counters.tables_of(
        launches,
        tables.Origin(
            format=format_,
            tool="ncu",
            device=sheet.device,
            attribution=counters.attribution(launches, "NVTX ranges that ncu printed beside them"),
            notes=(*notes, *_notes(sheet), *(f"ncu ended with '{said}'" for said in _errors(text)[:1])),
        ),
    )
    return replace(parsed, kernels=kernels.annotate(parsed.kernels))


def _notes(sheet: _ncu_sheet.Sheet) -> Iterator[str]:
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
            raise Refused(path, f"a gzip file that is cut or damaged ({error})", _ncu_csv_pages.RUN_AGAIN) from error
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
