"""The GPU memory of one iteration of the language model: its peak by phase, and what was allocated where."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from profpipe import load

if TYPE_CHECKING:
    import _lm_step
    from _lm_setting import Setting
else:
    _lm_step = load.module(Path(__file__).with_name("_lm_step.py"))

#: Numbers by what they are of and by name: value, unit, and how often it was counted.
Numbers = dict[str, dict[str, tuple[float, str, int]]]

#: A record of one allocation or release, as torch.cuda.memory._snapshot describes it: ``action``, ``addr``, ``size``,
#: ``frames`` (innermost first, each with ``filename``, ``line`` and ``name``; absent where none were recorded).
Entry = Mapping[str, Any]

#: Kinds of allocation that are told.
_LARGEST = 12


class Peaks:
    """A ``phase`` that reads the allocator's counters: by path of the range its start, peak and end, in bytes.

    The peak is the highest of all times that the range was entered, and includes the ranges inside; start is the
    first entry's, end the last one's. ``already`` is what was allocated before and is not counted.
    """

    def __init__(self, already: int) -> None:
        self.by_phase: dict[str, dict[str, int]] = {}
        self._already = already
        self._open: list[str] = []

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        self._note_peak()
        self._open.append(name)
        path, now = " > ".join(self._open), self._allocated()
        row = self.by_phase.setdefault(path, {"allocated_at_start": now, "peak_allocated": now})
        try:
            yield
        finally:
            self._note_peak()
            row["allocated_at_end"] = self._allocated()
            self._open.pop()

    def _allocated(self) -> int:
        return torch.cuda.memory_allocated() - self._already

    def _note_peak(self) -> None:
        """Gives the peak since the last note to every open range."""
        peak = torch.cuda.max_memory_allocated() - self._already
        for depth in range(1, len(self._open) + 1):
            row = self.by_phase[" > ".join(self._open[:depth])]
            row["peak_allocated"] = max(row["peak_allocated"], peak)
        torch.cuda.reset_peak_memory_stats()


def record(s: Setting, file: Path) -> Numbers:
    """Writes ``file`` for torch's viewer and returns what is in it: memory by phase, the largest allocations by place.

    The iteration is the second: AdamW makes its states in the first. The backward pass runs on this thread: autograd's
    own has no Python frames to tell its allocations by.
    """
    memory, peaks = torch.cuda.memory, Peaks(torch.cuda.memory_allocated())
    iterate = _lm_step.iteration(s, peaks)
    with torch.autograd.set_multithreading_enabled(False):
        iterate()
        peaks.by_phase.clear()
        memory._record_memory_history(stacks="python")
        try:
            iterate()
            torch.cuda.synchronize()
            seen = memory._snapshot()
        finally:
            memory._record_memory_history(enabled=None)
    for frame in _frames(seen):
        frame["filename"] = _without_folder(frame["filename"])
    file.write_bytes(pickle.dumps(seen))
    phases = {
        path: {metric: (float(size), "byte", 1) for metric, size in row.items()} for path, row in peaks.by_phase.items()
    }
    return {**phases, **largest(seen["device_traces"][torch.cuda.current_device()])}


def largest(trace: Sequence[Entry]) -> Numbers:
    """What held most of a record's peak, by its place, then the largest of the rest; of one size and place it is one.

    ``allocation:<rank>``: the bytes of one and how many there were. ``held:<rank>``: the bytes of all of them that were
    held when memory was at its peak, and how many those are.
    """
    kinds, held = Counter(_kind(entry) for entry in trace if entry["action"] == "alloc"), _held_at_peak(trace)
    ranked = sorted(kinds, key=lambda kind: (-kind[0] * held[kind], -kind[0]))
    found: Numbers = {}
    for rank, kind in enumerate(ranked[:_LARGEST], start=1):
        (size, place), count = kind, kinds[kind]
        own = found.setdefault(place, {})
        own[f"allocation:{rank}"] = (float(size), "byte", count)
        if held[kind]:
            own[f"held:{rank}"] = (float(size * held[kind]), "byte", held[kind])
    return found


def _kind(entry: Entry) -> tuple[int, str]:
    return entry["size"], _place(entry.get("frames", ()))


def _held_at_peak(trace: Sequence[Entry]) -> Counter[tuple[int, str]]:
    """What of the record's own allocations was not yet released when the sum was largest.

    The allocator counts memory as free from ``free_requested`` on, also of what was allocated before the record began.
    """
    now = peak = end = 0
    for number, entry in enumerate(trace, start=1):
        now += entry["size"] * ((entry["action"] == "alloc") - (entry["action"] == "free_requested"))
        if now > peak:
            peak, end = now, number
    live: dict[int, tuple[int, str]] = {}
    for entry in trace[:end]:
        if entry["action"] == "alloc":
            live[entry["addr"]] = _kind(entry)
        elif entry["action"] == "free_requested":
            live.pop(entry["addr"], None)
    return Counter(live.values())


def _place(frames: Sequence[Mapping[str, Any]]) -> str:
    """The innermost frame in this workload, else the innermost: ``plain, _lm_model.py:80``."""
    shown = [(Path(frame["filename"]).name, frame["line"], frame["name"]) for frame in frames]
    own = [frame for frame in shown if frame[0].startswith(("_lm_", "transformer_lm"))]
    return next((f"{name}, {file}:{line}" for file, line, name in own or shown), "outside Python")


def _frames(seen: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for segment in seen["segments"]:
        for block in segment["blocks"]:
            yield from block.get("frames", ())
    for trace in seen["device_traces"]:
        for entry in trace:
            yield from entry.get("frames", ())


def _without_folder(filename: str) -> str:
    """From the package or this workload's folder on: where those lie tells of the machine, and nothing of memory."""
    path = Path(filename)
    if not path.is_absolute():
        return filename
    start = max((i for i, part in enumerate(path.parts) if part in ("site-packages", "dist-packages")), default=None)
    return str(Path(*path.parts[start + 1 :])) if start is not None else path.name
