"""Read the samples of Python lines that profpipe's profiler `lines` writes: one process of a program."""

from __future__ import annotations

import json
from pathlib import Path

from profpipe.errors import UnreadableFile
from profpipe.ingest import json_stream, kernel_classes
from profpipe.results import atomic, schema

FORMATS = ("samples of Python lines of profpipe (JSON)",)
ROWS = schema.PYTHON_LINES

#: The share of the sampled time from which on the CPU time of other threads is reported.
_LEAST_OTHERS = 0.1


def sniff(path: Path) -> bool:
    return json_stream.read_head(path, 256).startswith(b'{"profpipe": "lines"')


def parse(path: Path) -> schema.Tables:
    """Return a `kernels` row of kind `cpu_op` for each place: its samples are the calls."""
    try:
        content = json.loads(atomic.read_regular(path))
        rows = [
            {"kind": "cpu_op", "kernel": str(place) or "(outside of the program)", "calls": int(samples),
             "total_ns": float(ns), "kernel_class": "python"}
            for place, ns, samples in content["lines"]
        ]  # fmt: skip
        others_ns = float(content.get("others_ns", 0.0))
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise UnreadableFile(path, f"is cut or damaged ({error!r})", "Run the program again.") from error
    note = "other threads used the CPU too, and only the main thread was sampled."
    kernels = kernel_classes.annotate(schema.frame(schema.KERNELS, rows))
    notes = (note,) if others_ns > _LEAST_OTHERS * kernels["total_ns"].sum() else ()
    origin = schema.Origin(
        FORMATS[0], tool="lines", total_ns=0.0, attributed_ns=0.0, unattributed_ns=0.0, notes=notes, rows=ROWS
    )
    return schema.Tables(kernels=kernels, origin=origin)
