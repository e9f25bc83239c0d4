"""The `nvtx` package in reach is one whose ranges every nsys records, the oldest included."""

import sqlite3
import subprocess
import sys
from importlib import metadata

import real_nsys

PROGRAM = """
import nvtx

with nvtx.annotate("profpipe:impl=fa2,seqlen=512"):
    with nvtx.annotate("forward"):
        pass
nvtx.push_range("computing softmax")
nvtx.pop_range()
"""

#: `eventType` of a push/pop range in NVTX_EVENTS (59), as nsys documents it; 75 and 76 are only its domains.
PUSH_POP = 59


def test_the_installed_nvtx_is_older_than_the_release_that_old_nsys_ignores():
    major, minor, patch = (int(part) for part in metadata.version("nvtx").split(".")[:3])
    assert (0, 2, 8) <= (major, minor, patch) < (0, 2, 12)


def test_ranges_of_the_nvtx_package_arrive_in_a_real_nsys_export(nsys, tmp_path):
    program, report, export = (tmp_path / name for name in ("ranges.py", "capture.nsys-rep", "capture.sqlite"))
    program.write_text(PROGRAM)
    real_nsys.record(nsys, report, sys.executable, program)
    subprocess.run([nsys, "export", "-t", "sqlite", "-q", "true", "-o", export, report], check=True, timeout=120)
    assert _ranges(export) == ["profpipe:impl=fa2,seqlen=512", "forward", "computing softmax"]


def _ranges(export):
    query = """
        select coalesce(event.text, strings.value)
        from NVTX_EVENTS event left join StringIds strings on strings.id = event.textId
        where event.eventType = ? and event.end >= event.start order by event.start
    """
    with sqlite3.connect(f"file:{export}?mode=ro", uri=True) as database:
        return [text for (text,) in database.execute(query, [PUSH_POP])]
