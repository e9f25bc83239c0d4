"""What a reader of an nsys export must know: what it hides, lacks and complains of."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pandas as pd

from profpipe import load
from profpipe.formats import attribution
from profpipe.formats.columns import Source, read_rows

if TYPE_CHECKING:
    import _nsys_activities
else:
    _nsys_activities = load.module(Path(__file__).with_name("_nsys_activities.py"))


def of(
    export: Source, work: _nsys_activities.Work, calls: _nsys_activities.Calls, launches: attribution.Launches
) -> list[str]:
    """Notes of everything but the ranges."""
    return [*_of_work(work, launches), *_of_calls(work, calls), *_of_nsys(export, work)]


def _counted(count: int, what: str) -> list[str]:
    return [f"{count} {what}"] if count else []


def _milliseconds(work: _nsys_activities.Work, rows: npt.NDArray[np.bool_]) -> str:
    return f"{(work.end[rows] - work.start[rows]).sum() / 1e6:.3f} ms"


def _of_work(work: _nsys_activities.Work, launches: attribution.Launches) -> list[str]:
    kernel, graph = work.is_kind("kernel"), work.is_kind("graph")
    notes = [] if kernel.any() else ["no kernels in this file"]
    if graph.any():
        notes.append(
            f"{graph.sum()} records are whole CUDA graphs ({_milliseconds(work, graph)}) and hide the "
            "kernels in them; record with --cuda-graph-trace=node to see these"
        )
    lost = kernel & (launches.thread == attribution.NO_THREAD)
    notes += _counted(
        int(lost.sum()),
        f"kernels ({_milliseconds(work, lost)}) have no launch call in the file and lie in no range: they "
        "were launched before the capture began",
    )
    notes += _counted(work.dropped, "records end before they begin, or have no time, and were left out")
    if _nsys_activities.UNNAMED in work.names:
        unnamed = work.name == work.names.index(_nsys_activities.UNNAMED)
        notes += _counted(int(unnamed.sum()), "kernels have no name in the file")
    return notes


def _of_calls(work: _nsys_activities.Work, calls: _nsys_activities.Calls) -> list[str]:
    called = pd.MultiIndex.from_arrays([calls.process[calls.graphs], calls.correlation[calls.graphs]])
    notes = []
    if len(called):
        near = np.isin(work.correlation, calls.correlation[calls.graphs])
        lost = ~called.isin(pd.MultiIndex.from_arrays([work.process[near], work.correlation[near]]))
        notes += _counted(
            int(lost.sum()),
            "launches of CUDA graphs left no kernel in the file (nsys before 2024 does not export whole graphs), so "
            "their GPU time is missing; record with --cuda-graph-trace=node",
        )
    if calls.failed:
        worst = ", ".join(f"{name} returned {result} ({n}x)" for (name, result), n in calls.failed.most_common(3))
        notes.append(f"{sum(calls.failed.values())} CUDA calls failed: {worst}")
    return notes


def _of_nsys(export: Source, work: _nsys_activities.Work) -> list[str]:
    """Warnings and errors of nsys about CUDA and NVTX; those about CPU sampling say nothing of kernels.

    Each helper process without CUDA gives copies of its own ("No CUDA events collected", "CUDA profiling might have not
    been started correctly"): beside a process that did work they say nothing.
    """
    texts: Counter[str] = Counter()
    at_work = {str(process) for process in np.unique(work.process)}
    whose = [name for name in ("globalPid",) if name in export.columns("DIAGNOSTIC_EVENT")]
    for severity, text, *of in read_rows(export, "DIAGNOSTIC_EVENT", "severity", "text", *whose):
        line, process = " ".join(text.split()), "".join(of)
        helper = process.isdigit() and process != "0" and process not in at_work
        idle = bool(at_work) and (helper or line.startswith("No "))
        if severity in ("2", "3") and re.search(r"CUDA|CUPTI|NVTX|GPU|lost|dropped", line) and not idle:
            texts[line[:200]] += 1
    return [f"nsys: {text}" + (f" ({count}x)" if count > 1 else "") for text, count in texts.items()]
