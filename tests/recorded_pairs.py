"""Captures of an `ab` run, made of a real recording: attention implementations on an H200, under nsys 2025.3.1."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from profpipe.ingest import reader
from profpipe.results.schema import Tables

RECORDED = Path(__file__).parent / "data" / "nsys-2025.3.1" / "attention" / "attn_h200.sqlite"


def export(target, impl, *changes, cases=("seqlen=512", "seqlen=2048")):
    """Write the recording of ``impl`` with each of its 5 iterations in the range of a case, and make SQL ``changes``.

    The recording has the two sequence lengths 512 and 2048, to which ``cases`` give their names.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(RECORDED, target)
    with closing(sqlite3.connect(target)) as database:
        for length, case in zip((512, 2048), cases, strict=False):
            (whole,) = database.execute(
                "select start, end from NVTX_EVENTS where text = ?", [f"case:{impl}:{length}"]
            ).fetchall()
            inside = "text = 'iter' and start > ? and end < ?"
            database.execute(f"update NVTX_EVENTS set text = ? where {inside}", [f"profpipe:{case}", *whole])
        database.execute("delete from NVTX_EVENTS where text not like 'profpipe:%'")
        for change in changes:
            database.execute(change)
        database.commit()
    return target


def launches_of(name):
    """Return SQL for the rows of the kernels whose name contains ``name``."""
    return f"demangledName in (select id from StringIds where value like '%{name}%')"


def slower(name, ns):
    """Return SQL that makes each launch of a kernel take ``ns`` more."""
    return f"update CUPTI_ACTIVITY_KIND_KERNEL set end = end + {ns} where {launches_of(name)}"


def without(name):
    return f"delete from CUPTI_ACTIVITY_KIND_KERNEL where {launches_of(name)}"


def twice(name):
    """Return SQL that repeats each launch of a kernel."""
    return (
        f"create table more as select * from CUPTI_ACTIVITY_KIND_KERNEL where {launches_of(name)}",
        "insert into CUPTI_ACTIVITY_KIND_KERNEL select * from more",
    )


def renamed(name, part, other):
    """Return SQL that replaces ``part`` of a kernel's name."""
    return f"update StringIds set value = replace(value, '{part}', '{other}') where value like '%{name}%'"


def read(path, workload="attention"):
    """Return the rows of an export that are of a case."""
    (found,) = reader.ingest([reader.InputFile(path, path.name, "r", workload, "nsys")])
    assert isinstance(found, reader.Read), found
    own = found.tables
    return Tables(kernels=own.kernels[own.kernels["case"] != ""], ranges=own.ranges[own.ranges["case"] != ""])


def place(tables, pair, side, workload="attention"):
    """Return the rows as those of a capture of an `ab` run."""
    return tables.set_columns(source=f"raw/{workload}/pair-{pair:02d}/{side}-nsys/capture.sqlite")
