"""What lies between the first and the last chosen step, for profilers that the program itself starts and stops."""

from __future__ import annotations

import os
import sys
from typing import Any, Optional

from profpipe import ranges
from profpipe.hook import settings
from profpipe.hook.record import Record
from profpipe.hook.settings import Settings


class CudaWindow:
    """The capture range of nsys and ncu: cudaProfilerStart to cudaProfilerStop.

    All processes of a machine that run under one nsys share one capture, and the first cudaProfilerStop ends it. So
    each process leaves an empty file when it has come to its last step, or ends, and the last one to come ends the
    capture. A process without a GPU cannot end it, and leaves its file for the others.
    """

    def __init__(self, given: Settings) -> None:
        self._settings = given
        self._size = settings.local_size()
        self._has_begun = self._is_on = False

    def begin(self) -> None:
        self._has_begun = True
        self._is_on = _cuda_profiler("cudaProfilerStart")

    def end(self, late: int) -> None:
        """End the capture if this process is the last one. It is asked again at each step, ``late`` after the last.

        A process that makes no steps, or hangs, leaves no file. Ranks that work together are never as many steps apart
        as are measured.
        """
        self._leave_mark()
        if self._is_on and (self._count_marks() >= self._size or late >= self._settings.measure):
            self._is_on = False
            _cuda_profiler("cudaProfilerStop")

    def leave(self) -> None:
        if self._has_begun:
            self._leave_mark()

    def _leave_mark(self) -> None:
        if self._size > 1:
            number = settings.local_rank()
            name = os.getpid() if number is None else f"rank{number}"
            mark = self._settings.path(f"{self._settings.place}done-{name}")
            os.close(os.open(mark, os.O_CREAT | os.O_WRONLY, 0o666))

    def _count_marks(self) -> int:
        if self._size == 1:
            return 1
        prefix = os.path.basename(self._settings.path(f"{self._settings.place}done-"))
        return sum(name.startswith(prefix) for name in os.listdir(self._settings.folder))


class RoctxWindow:
    """The region that rocprofv3 records: roctxProfilerResume to roctxProfilerPause, in each process for itself."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self._is_on = False

    def begin(self) -> None:
        _synchronize()
        self._library.roctxProfilerResume(0)
        self._is_on = True

    def end(self, late: int) -> None:
        if self._is_on:
            self._is_on = False
            _synchronize()
            self._library.roctxProfilerPause(0)

    def leave(self) -> None:
        """Record to the end of the process."""


def choose(given: Settings, record: Record) -> Any:
    """Return the window of this process's profiler, None where it records the whole process."""
    recording = os.environ.get("PROFPIPE_RECORD")
    if given.profiler in ("nsys", "ncu") and recording != "whole":
        return CudaWindow(given)
    if given.profiler == "rocprof" and recording == "regions":
        library = ranges.roctx_control()
        if library is not None:
            return RoctxWindow(library)
        record.note("no librocprofiler-sdk-roctx is in this process, so rocprofv3 cannot be started at a step")
    return None


def _cuda() -> Optional[Any]:
    library = getattr(sys.modules.get("torch"), "cuda", None)
    return library if library is not None and library.is_available() else None


def _synchronize() -> None:
    library = _cuda()
    if library is not None:
        library.synchronize()


def _cuda_profiler(call: str) -> bool:
    """Call cudaProfilerStart or cudaProfilerStop; return False on a machine without a GPU.

    The call goes through torch. A program that uses the GPU without torch gets a context of torch by it.
    """
    library = _cuda()
    if library is None:
        return False
    library.synchronize()
    getattr(library.cudart(), call)()
    return True
