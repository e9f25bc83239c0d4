"""Find what an nsys export hides, lacks and complains of."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import numpy.typing as npt
import pandas as pd

from profpipe.ingest import attribution, bounds
from profpipe.ingest.nsys import activities
from profpipe.ingest.nsys.columns import Source, read_rows

#: nsys 2022 to 2026 say this of every capture that a range ends.
_HARMLESS = re.compile(r"might (not )?have |events were lost\? no")
_RELEVANT = re.compile(r"CUDA|CUPTI|NVTX|GPU|lost|dropped|driver|permission|privilege", re.IGNORECASE)
#: Why nothing was recorded: the causes come before what follows from them, and NVTX last.
_CAUSES = (
    re.compile(r"(?!.*(?:metrics|sampling|switch)).*(?:permission|privilege|NVGPUCTRPERM)", re.IGNORECASE),
    re.compile(r".*(?:driver|CUPTI|CUDA\b.*not supported)", re.IGNORECASE),
    re.compile(r"(?!No |Not all ).*CUDA"),
    re.compile(r".*CUDA"),
    re.compile(""),
)


def notes(work: activities.Work, calls: activities.Calls, launches: attribution.Launches) -> list[str]:
    """Return the reasons for doubt in kernels and CUDA calls."""
    graph = work.is_kind("graph")
    lost = work.is_kind("kernel") & (launches.thread == attribution.NO_THREAD)
    unnamed = work.names.index(activities.UNNAMED) if activities.UNNAMED in work.names else -1
    counted = {
        f"records are whole CUDA graphs ({_milliseconds(work, graph)}) and hide the kernels in them; record with "
        "--cuda-graph-trace=node to see these": graph.sum(),
        f"kernels ({_milliseconds(work, lost)}) have no launch call in the file and lie in no range: they were "
        "launched before the capture began": lost.sum(),
        "records end before they begin, or have no time, and were left out": work.dropped,
        "kernels have no name in the file": (work.name == unnamed).sum(),
        "launches of CUDA graphs left no kernel in the file (nsys before 2024 does not export whole graphs), so their "
        "GPU time is missing; record with --cuda-graph-trace=node": _count_lost_graphs(work, calls),
    }
    found = [f"{count} {what}" for what, count in counted.items() if count]
    if work.folded:
        found.append(bounds.note_of_names(work.folded))
    if calls.failed:
        worst = ", ".join(f"{name} returned {result} ({n}x)" for (name, result), n in calls.failed.most_common(3))
        found.append(f"{sum(calls.failed.values())} CUDA calls failed: {worst}")
    return found


def _milliseconds(work: activities.Work, rows: npt.NDArray[np.bool_]) -> str:
    return f"{(work.end[rows] - work.start[rows]).sum() / 1e6:.3f} ms"


def _count_lost_graphs(work: activities.Work, calls: activities.Calls) -> int:
    if not len(calls.graphs):
        return 0
    called = pd.MultiIndex.from_arrays([calls.process[calls.graphs], calls.correlation[calls.graphs]])
    near = np.isin(work.correlation, calls.correlation[calls.graphs])
    return int((~called.isin(pd.MultiIndex.from_arrays([work.process[near], work.correlation[near]]))).sum())


def messages(export: Source, work: activities.Work) -> tuple[list[str], list[str]]:
    """Return nsys's warnings about CUDA and NVTX: (reasons for doubt, harmless ones).

    A helper process without CUDA leaves messages too ("No CUDA events collected", "CUDA profiling might have not
    been started correctly"). They are dropped where another process used the GPU. Where none did, they are reasons for
    doubt, and the one that explains most comes first.
    """
    texts: Counter[str] = Counter()
    at_work = {str(process) for process in np.unique(work.process)}
    process_column = [name for name in ("globalPid",) if name in export.columns("DIAGNOSTIC_EVENT")]
    for severity, text, *of in read_rows(export, "DIAGNOSTIC_EVENT", "severity", "text", *process_column):
        line, process = " ".join(text.split()), "".join(of)
        is_helper = process.isdigit() and process != "0" and process not in at_work
        is_idle = bool(at_work) and (is_helper or line.startswith("No "))
        if severity in ("2", "3") and _RELEVANT.search(line) and not is_idle:
            texts[line[:200]] += 1
    if not at_work:
        ordered = sorted(texts, key=lambda text: next(rank for rank, cause in enumerate(_CAUSES) if cause.match(text)))
        return [_counted(text, texts[text]) for text in ordered], []
    lines = [_counted(text, count) for text, count in texts.items()]
    return [line for line in lines if not _HARMLESS.search(line)], [line for line in lines if _HARMLESS.search(line)]


def _counted(text: str, count: int) -> str:
    return f"nsys: {text}" + (f" ({count}x)" if count > 1 else "")
