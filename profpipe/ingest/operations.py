"""The operations of GPUs and the calls of the host, as the parsers give them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import numpy as np

from profpipe.ingest import kernel_classes
from profpipe.ingest.groupby import Bools, Int64s, Ints, groups
from profpipe.results import schema

#: When the host launched an operation whose call is not in the file.
UNKNOWN: Final = np.iinfo(np.int64).min

#: Calls of CUDA and HIP in which the host waits for the GPU. `hipMemcpyWithStream` waits too.
_WAITING: Final = re.compile(r"^(cuda|cu|hip)(\w*Synchronize|Memcpy(?!\w*Async)\w*)")
_PEER: Final = re.compile(r"Peer-to-Peer|Memcpy PtoP|DeviceToDevicePeer", re.IGNORECASE)
_COMMUNICATION: Final = "communication"
_OPTIMIZER: Final = "optimizer"
_IS_COPY: Final = np.array([kind in ("memcpy", "memset") for kind in schema.KINDS])


def is_waiting_call(name: str) -> bool:
    """Return True for a call that returns only when the GPU has finished something."""
    return _WAITING.match(name) is not None


@dataclass(frozen=True)
class Spans:
    """Ranges of the program, or calls of the CUDA or HIP API, on the host; times in ns, ``name`` indexes ``names``.

    ``thread`` of a call is a number of the tool, negative where that is unknown. Threads of ranges must have different
    numbers in different processes. ``recorded`` are the names of ranges as the program gave them, with the numbers of
    steps; empty: those of ``names``.
    """

    start: Int64s
    end: Int64s
    thread: Int64s
    process: Int64s
    name: Ints
    names: Sequence[str]
    recorded: Sequence[str] = ()

    def of(self, rows: Ints) -> Spans:
        place = self.thread[rows], self.process[rows]
        return Spans(self.start[rows], self.end[rows], *place, self.name[rows], self.names)

    @classmethod
    def join(cls, *parts: Spans) -> Spans:
        columns = ("start", "end", "thread", "process")
        start, end, thread, process = (np.concatenate([getattr(part, name) for part in parts]) for name in columns)
        before = np.cumsum([0, *(len(part.names) for part in parts)])
        name = np.concatenate([part.name + first for part, first in zip(parts, before, strict=False)])
        return cls(start, end, thread, process, name, [text for part in parts for text in part.names])

    @classmethod
    def none(cls) -> Spans:
        nothing = np.zeros(0, dtype=np.int64)
        return cls(nothing, nothing, nothing, nothing, nothing, ())


@dataclass(frozen=True)
class Operations:
    """Operations of GPUs, one a row, times in ns on the clock of the host.

    ``kind`` indexes ``schema.KINDS``, ``name`` indexes ``names``; ``classes`` are the kernel classes of the names. A
    parser gives the classes that its file states, and no ``in_case``: ``recording`` fills in both.
    ``launched`` is when the launch call began, ``UNKNOWN`` without one. ``process`` and ``device`` are numbers that
    identify a process and its devices. ``stream`` is negative where it is unknown. ``grid`` is a number for the grid of
    a row, None where the tool records none. ``read_sizes`` returns the bytes that a row copies or sets, and
    ``read_calls`` the ends of the launch calls of some rows, not after their begins where they are unknown, and their
    threads, as the tool numbers them, negative where they are unknown; both are called only if they are needed.
    ``correlation`` numbers the launch calls, and is not positive where they are unknown; it is needed until the ends
    are corrected. ``checks`` are those of the parser (``reconcile``).
    """

    kind: Ints
    start: Int64s
    end: Int64s
    process: Int64s
    device: Ints
    name: Ints
    names: Sequence[str]
    stream: Ints
    correlation: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    launched: Int64s = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    read_calls: Callable[[Ints], tuple[Int64s, Ints]] = lambda rows: (np.full(len(rows), -1), np.full(len(rows), -1))
    classes: Sequence[str] = ()
    in_case: Bools = field(default_factory=lambda: np.zeros(0, dtype=bool))
    grid: Ints | None = None
    read_sizes: Callable[[], Ints] | None = None
    checks: Sequence[Mapping[str, Any]] = ()

    def is_kind(self, *kinds: str) -> Bools:
        return np.isin(self.kind, [schema.KINDS.index(kind) for kind in kinds])

    @cached_property
    def sizes(self) -> Ints | None:
        """Return the bytes that a row copies or sets; None where the tool records none."""
        return self.read_sizes() if self.read_sizes else None

    @cached_property
    def are_collective(self) -> Bools:
        """Return for a name whether it is a communication kernel's."""
        return np.array([kernel_class == _COMMUNICATION for kernel_class in self.classes], dtype=bool)

    @cached_property
    def are_optimizers(self) -> Bools:
        """Return for a name whether it is an optimizer's kernel's."""
        return np.array([kernel_class == _OPTIMIZER for kernel_class in self.classes], dtype=bool)

    @cached_property
    def are_peer_copies(self) -> Bools:
        """Return for a name whether it is a copy's between two GPUs."""
        # A copy's name is short. That of a kernel may have 40,000 characters.
        return np.array([_PEER.search(text, 0, 100) is not None for text in self.names], dtype=bool)

    @cached_property
    def table_names(self) -> tuple[list[str], Ints]:
        """Return the names as in the tables, and the numbers of ``names`` among them."""
        number: dict[str, int] = {}
        codes = [number.setdefault(kernel_classes.normalise(name), len(number)) for name in self.names]
        return list(number), np.array(codes, dtype=np.int64)

    def processes(self) -> Iterator[tuple[int, dict[int, Ints]]]:
        """Yield (process, rows by device) of the processes that ran something outside all cases."""
        outside = np.flatnonzero(~self.in_case) if self.in_case.any() else None
        for process, of_process in groups(self.process if outside is None else self.process[outside]):
            rows = of_process if outside is None else outside[of_process]
            yield process, {device: rows[of_device] for device, of_device in groups(self.device[rows])}


@dataclass(frozen=True)
class Timeline:
    """Some ``operations`` of one device of one process, ordered by their launch; columns as in ``Operations``.

    ``launched`` is the start on the GPU where the call is unknown (``is_launched`` is False).
    """

    start: Int64s
    end: Int64s
    launched: Int64s
    is_launched: Bools
    name: Ints
    rows: Ints
    communicates: Bools
    copies: Bools
    operations: Operations

    @property
    def is_kernel(self) -> Bools:
        return ~self.copies


def timeline(operations: Operations, rows: Ints) -> Timeline:
    """Return the operations ``rows`` in the order of their launches."""
    launched = operations.launched[rows]
    is_launched = launched != UNKNOWN
    if not is_launched.all():
        launched = np.where(is_launched, launched, operations.start[rows])
    if (launched[1:] < launched[:-1]).any():
        order = np.argsort(launched, kind="stable")
        rows, launched, is_launched = rows[order], launched[order], is_launched[order]
    copies = _IS_COPY[operations.kind[rows]]
    name = operations.name[rows]
    communicates = operations.are_collective[name] & ~copies
    if operations.are_peer_copies.any():
        communicates |= operations.are_peer_copies[name] & copies
    start, end = operations.start[rows], operations.end[rows]
    return Timeline(start, end, launched, is_launched, name, rows, communicates, copies, operations)
