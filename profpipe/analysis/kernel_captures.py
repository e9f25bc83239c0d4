"""Read the captures of an `ab` run: the kernels of an iteration, by case, side and pair.

The rows of a capture are known by the folder of their file, ``raw/<workload>/pair-01/A-nsys``; its metrics by their
subject, ``pair 1 A`` or ``pair 1 A <kernel>``.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import pandas as pd

from profpipe.analysis.case_index import CaseIndex
from profpipe.analysis.kernel_differences import Capture, Work
from profpipe.analysis.kernel_totals import COPIES, KernelTotals, rows
from profpipe.job import Status
from profpipe.results import schema
from profpipe.results.manifest import Manifest
from profpipe.results.schema import PROCESS_WALL, Tables

#: (workload, case)
_Key = tuple[str, str]
#: (workload, pair, side)
_Process = tuple[str, int, str]

_SOURCE: Final = re.compile(r"^raw/.+?/pair-(?P<pair>\d+)/(?P<side>[AB])-\w+/")
_SUBJECT: Final = re.compile(rf"^{schema.PAIR_PREFIX}(?P<pair>\d+) (?P<side>[AB])(?: (?P<subject>.*))?$", re.DOTALL)


@dataclass(frozen=True)
class FailedCapture:
    """A case without a capture in some process: the status of that process and why, with its pair and side."""

    workload: str
    case: str
    profiler: str
    status: str
    reason: str


def is_of_capture(source: str) -> bool:
    """Return True for the path of a file, relative to the run's folder, that a capture left."""
    return _SOURCE.search(source) is not None


def failed(data: Tables) -> tuple[FailedCapture, ...]:
    """Return the cases of which a process under the profiler did not end well."""
    own = data.cases[(data.cases["profiler"] != "plain") & (data.cases["status"] != Status.OK.value)]
    return tuple(itertools.starmap(FailedCapture, rows(own, "workload", "case", "profiler", "status", "reason")))


def read(data: Tables, run: Manifest, times: Mapping[_Key, str]) -> dict[_Key, dict[str, list[Capture]]]:
    """Return the captures of each case by side. ``times`` is the metric by which each case is compared.

    A command that is compared by its step time has the kernels of a steady step, one that is compared by the time of
    its process has those of the whole recording. A capture of the other kind is left out.
    """
    found: dict[_Key, dict[str, list[Capture]]] = {}
    for (workload, pair, side), own in _processes(data):
        is_command = run.is_command(workload)
        index = CaseIndex.of(own, is_command)
        copies = own.kernels[own.kernels["kind"].isin(COPIES)]
        classes = dict(zip(copies["kernel"], copies["kind"], strict=True))
        for case, profiler in index.capture_totals:
            totals = _totals(index, case, profiler, is_command, times.get((workload, case), ""))
            if totals is not None and (kernels := dict(_kernels(totals, classes))):
                sides = found.setdefault((workload, case), {"A": [], "B": []})
                sides[side].append(Capture(pair, kernels))
    return found


def _processes(data: Tables) -> Iterator[tuple[_Process, Tables]]:
    """Yield the tables of each process that was captured, its metrics without the pair and the side."""
    kernels, ranges = (dict(_by_process(frame, frame["source"], _SOURCE)) for frame in (data.kernels, data.ranges))
    captured = data.metrics[data.metrics["metric"].isin(schema.CAPTURED_METRICS)]
    metrics = dict(_by_process(captured, captured["subject"], _SUBJECT))
    for process, own in kernels.items():
        numbers = metrics.get(process, data.metrics[:0])
        subjects = numbers["subject"].str.extract(_SUBJECT.pattern, flags=re.DOTALL)["subject"].fillna("")
        yield (
            process,
            Tables(kernels=own, ranges=ranges.get(process, data.ranges[:0]), metrics=numbers.assign(subject=subjects)),
        )


def _by_process(
    frame: pd.DataFrame, texts: pd.Series[str], pattern: re.Pattern[str]
) -> Iterator[tuple[_Process, pd.DataFrame]]:
    """Yield the rows of each workload, pair and side, as ``pattern`` finds them in ``texts``."""
    found = texts.str.extract(pattern.pattern, flags=pattern.flags & re.DOTALL)
    groups = frame.groupby([frame["workload"], found["pair"], found["side"]], sort=False)
    for (workload, pair, side), own in groups:
        yield (str(workload), int(str(pair)), str(side)), own


def _totals(index: CaseIndex, case: str, profiler: str, is_command: bool, metric: str) -> KernelTotals | None:
    """Return the kernels of one iteration, or None where the capture does not have those that the time is of."""
    key = case, profiler
    if not is_command:
        count = index.iterations(case, profiler)
        return index.totals[key].divided_by(count) if count and key in index.totals else None
    if metric == PROCESS_WALL:
        return None if key in index.step_totals else index.capture_totals[key]
    return index.step_totals.get(key)


def _kernels(totals: KernelTotals, copies: Mapping[str, str]) -> Iterator[tuple[str, Work]]:
    """Yield the kernels by name, copies and sets included. A name with several classes has the one of the most time."""
    largest: dict[str, tuple[float, str]] = {}
    for kernel, (_, ns) in totals.work.items():
        if kernel.name not in largest or ns > largest[kernel.name][0]:
            largest[kernel.name] = ns, kernel.kernel_class
    for name, (calls, ns) in totals.by_name.items():
        yield name, Work(calls, ns, largest[name][1])
    for name, (calls, ns) in totals.by_copy.items():
        yield name, Work(calls, ns, copies.get(name, ""))
