"""``profpipe ingest``: read, store and report files of profilers."""

from __future__ import annotations

import argparse
import ctypes
import sys
from pathlib import Path
from typing import Final

#: Options of mallopt(3).
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8

EXAMPLES = """\
  profpipe ingest capture.nsys-rep                       # print what the file holds
  profpipe ingest *.sqlite report.ncu-rep --out tables   # tables and SUMMARY.md in tables/"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", metavar="FILE", type=Path)
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder that receives the tables and SUMMARY.md")


def main(args: argparse.Namespace) -> int:
    # Not with this module: `profpipe ingest --help` must not wait for them.
    import pyarrow

    from profpipe.ingest.nsys import ahead

    # Arrow's own pool keeps the memory that it frees. Memory that malloc frees is used again by numpy, which saves a
    # quarter of the peak.
    pyarrow.set_memory_pool(pyarrow.system_memory_pool())
    # A thread that returns from SQLite, numpy or Arrow waits so long for one that runs Python, by default 5 ms.
    sys.setswitchinterval(0.0005)
    _share_freed_memory()
    with ahead.reading(args.files[0]):
        from profpipe.commands import read_files

        return read_files.read_files(args.files, args.out)


def _share_freed_memory() -> None:
    """Let each thread use what others have freed.

    glibc gives each thread a heap, and the system what was mapped for a large array. A page that comes back from the
    system is cleared first.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform.startswith("linux") else None
    if mallopt:
        mallopt(_M_ARENA_MAX, 1)
        mallopt(_M_MMAP_THRESHOLD, 32 << 20)
        mallopt(_M_TRIM_THRESHOLD, 32 << 20)
