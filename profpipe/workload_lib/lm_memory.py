"""The GPU memory of one iteration of the language model: peaks by phase, and the largest allocations."""

from __future__ import annotations

import pickle
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from profpipe.workload_lib import lm_model
from profpipe.workload_lib.lm_model import LmConfig

#: By subject and name: value, unit, and number of occurrences.
Numbers = dict[str, dict[str, tuple[float, str, int]]]

#: One allocation or release in torch.cuda.memory._snapshot: ``action``, ``addr``, ``size``,
#: ``frames`` (innermost first, with ``filename``, ``line`` and ``name``; absent where none were recorded).
Entry = Mapping[str, Any]

#: Reported kinds of allocation.
_LARGEST = 12

#: Points of the course of a phase.
_POINTS = 30


class Peaks:
    """A ``phase`` that reads the allocator's counters: bytes at start and peak by path of the range.

    The peak is the highest over all entries of the range, with the ranges inside it; start is that of the first entry.
    ``baseline`` bytes were allocated before and are not counted. ``spans``: the outer ranges with begin and end in us.
    """

    def __init__(self, baseline: int) -> None:
        self.by_phase: dict[str, dict[str, int]] = {}
        self.spans: list[tuple[str, int, int]] = []
        self._baseline = baseline
        self._open: list[str] = []

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        self._update_peaks()
        self._open.append(name)
        path, now = " > ".join(self._open), torch.cuda.memory_allocated() - self._baseline
        self.by_phase.setdefault(path, {"allocated_at_start": now, "peak_allocated": now})
        began = _now_us()
        try:
            yield
        finally:
            self._update_peaks()
            self._open.pop()
            if not self._open:
                self.spans.append((name, began, _now_us()))

    def _update_peaks(self) -> None:
        """Add the peak since the last call to all open ranges."""
        peak = torch.cuda.max_memory_allocated() - self._baseline
        for depth in range(1, len(self._open) + 1):
            row = self.by_phase[" > ".join(self._open[:depth])]
            row["peak_allocated"] = max(row["peak_allocated"], peak)
        torch.cuda.reset_peak_memory_stats()


def _now_us() -> int:
    """Return the time that the allocator writes into its record: us since 1970."""
    return time.time_ns() // 1000


def record(config: LmConfig, file: Path) -> Numbers:
    """Write ``file`` for torch's viewer; return memory by phase, its course, and the largest allocations by place.

    The second iteration is recorded, because AdamW allocates its states in the first. The backward pass runs on this
    thread, because autograd's thread has no Python frames that show the place of an allocation.
    """
    memory, peaks = torch.cuda.memory, Peaks(torch.cuda.memory_allocated())
    iterate = lm_model.iteration(config, peaks)
    with torch.autograd.set_multithreading_enabled(False):
        iterate()
        peaks.by_phase.clear()
        peaks.spans.clear()
        memory._record_memory_history(stacks="python")
        try:
            iterate()
            torch.cuda.synchronize()
            snapshot = memory._snapshot()
        finally:
            memory._record_memory_history(enabled=None)
    blocks = (block for segment in snapshot["segments"] for block in segment["blocks"])
    for entry in chain(blocks, *snapshot["device_traces"]):
        for frame in entry.get("frames", ()):
            frame["filename"] = _shorten_path(frame["filename"])
    file.write_bytes(pickle.dumps(snapshot))
    phases = {
        path: {metric: (float(size), "byte", 1) for metric, size in row.items()} for path, row in peaks.by_phase.items()
    }
    trace = snapshot["device_traces"][torch.cuda.current_device()]
    for name, points in courses(trace, peaks).items():
        phases[name] |= {f"allocated_at:{at}": (float(size), "byte", 1) for at, size in points}
    return {**phases, **largest_allocations(trace)}


def courses(trace: Sequence[Entry], peaks: Peaks) -> dict[str, list[tuple[int, int]]]:
    """Return points of an outer phase: us since the first one began, and the most bytes since the point before.

    The points divide a phase evenly. Times are the host's: the GPU may run a kernel later than its memory is allocated.
    """
    points_by_phase: dict[str, list[tuple[int, int]]] = {}
    for name, began, ended in peaks.spans:
        step = max(1, -(-(ended - began) // _POINTS))
        now, points = peaks.by_phase[name]["allocated_at_start"], points_by_phase.setdefault(name, [])
        entries = iter([entry for entry in trace if began <= entry.get("time_us", 0) <= ended])
        entry = next(entries, None)
        for end in range(began + step, ended + step, step):
            most = now
            while entry is not None and entry["time_us"] <= end:
                now += _change(entry)
                most, entry = max(most, now), next(entries, None)
            points.append((min(end, ended) - peaks.spans[0][1], most))
    return points_by_phase


def _change(entry: Entry) -> int:
    """Return by how many bytes the allocated memory grows: it is free from ``free_requested`` on."""
    return int(entry["size"]) * ((entry["action"] == "alloc") - (entry["action"] == "free_requested"))


def largest_allocations(trace: Sequence[Entry]) -> Numbers:
    """Return the allocations that hold most of the peak, then the largest others, grouped by size and place.

    ``allocation:<rank>``: the bytes of one allocation and how many there were. ``held:<rank>``: the bytes of those that
    were live at the peak, and how many.
    """
    kinds, held = Counter(_kind(entry) for entry in trace if entry["action"] == "alloc"), _held_at_peak(trace)
    ranked = sorted(kinds, key=lambda kind: (-kind[0] * held[kind], -kind[0]))
    numbers: Numbers = {}
    for rank, kind in enumerate(ranked[:_LARGEST], start=1):
        (size, place), count = kind, kinds[kind]
        place_numbers = numbers.setdefault(place, {})
        place_numbers[f"allocation:{rank}"] = (float(size), "byte", count)
        if held[kind]:
            place_numbers[f"held:{rank}"] = (float(size * held[kind]), "byte", held[kind])
    return numbers


def _kind(entry: Entry) -> tuple[int, str]:
    return entry["size"], place_of(entry.get("frames", ()))


def _held_at_peak(trace: Sequence[Entry]) -> Counter[tuple[int, str]]:
    """Count the recorded allocations that were live when the sum was largest; releases of earlier ones count too."""
    now = peak = end = 0
    for number, entry in enumerate(trace, start=1):
        now += _change(entry)
        if now > peak:
            peak, end = now, number
    live: dict[int, tuple[int, str]] = {}
    for entry in trace[:end]:
        if entry["action"] == "alloc":
            live[entry["addr"]] = _kind(entry)
        elif entry["action"] == "free_requested":
            live.pop(entry["addr"], None)
    return Counter(live.values())


def place_of(frames: Sequence[Mapping[str, Any]]) -> str:
    """Return the innermost frame in this workload, else the innermost: ``plain, lm_model.py:80``."""
    shown = [(Path(frame["filename"]).name, frame["line"], frame["name"]) for frame in frames]
    workload_frames = [frame for frame in shown if frame[0].startswith(("lm_", "transformer_lm"))]
    return next((f"{name}, {file}:{line}" for file, line, name in workload_frames or shown), "outside Python")


def _shorten_path(filename: str) -> str:
    """Return the path from the package or the workload's folder on, without folders of this machine."""
    path = Path(filename)
    if not path.is_absolute():
        return filename
    start = max((i for i, part in enumerate(path.parts) if part in ("site-packages", "dist-packages")), default=None)
    return str(Path(*path.parts[start + 1 :])) if start is not None else path.name
