"""What the hook records of the chosen steps, one class for a profiler.

``begin`` and ``end`` are called at the boundaries of all steps, chosen or not; ``discard`` when the numbers start again
at 0; ``finish`` once, when the steps are over or the process ends.

What lies between the first and the last chosen step is a window for the profilers that the program itself starts.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from typing import Any, Dict, Iterable, List, Optional

from profpipe import ranges
from profpipe.hook import clock, memory, settings, torch_profiler
from profpipe.hook.energy import EnergyCounter
from profpipe.hook.flops import FlopStep
from profpipe.hook.host import Host, LoaderClock
from profpipe.hook.modules import ModuleRanges
from profpipe.hook.record import HookRecord, Pending
from profpipe.hook.settings import HookSettings

# --- the window of nsys and ncu, and of rocprof ----------------------------------------------------------------------


class CudaWindow:
    """The capture range of nsys and ncu: cudaProfilerStart to cudaProfilerStop.

    All processes of a machine that run under one nsys share one capture, and the first cudaProfilerStop ends it. So
    a process leaves an empty file when it has come to its last step, or ends, and the last one to come ends the
    capture. A process without a GPU cannot end it, and leaves its file for the others.
    """

    def __init__(self, given: HookSettings) -> None:
        self._settings = given
        self._size = settings.local_size()
        self._has_begun = self._is_on = False

    def begin(self) -> None:
        self._has_begun = True
        self._is_on = _cuda_profiler("cudaProfilerStart")

    def end(self, late: int) -> None:
        """End the capture if this process is the last one. It is asked again at all steps, ``late`` after the last.

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
    """The region that rocprofv3 records: roctxProfilerResume to roctxProfilerPause, in a process for itself."""

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


def choose_window(given: HookSettings, record: HookRecord) -> Any:
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


# --- captures --------------------------------------------------------------------------------------------------------

#: Times are written to the record at least once in so many ns.
_PERIOD_NS = 1_000_000_000
#: Bytes of a step that is not in the record yet, and where the last but one can be.
_STEP, _LAST = Pending.STEP, Pending.ALL - 2 * Pending.STEP


class StepCapture:
    """Nothing is recorded."""

    def __init__(self, given: HookSettings, record: HookRecord) -> None:
        self.settings, self.record = given, record

    def is_complete(self, number: int) -> bool:
        """Return True if step ``number`` is the last one to record. All ranks return it at the same step."""
        return number >= self.settings.last

    def begin(self, rule: str, number: int, call: str) -> None:
        """A step begins; ``call`` says which module it calls, and with which tokens. It is empty by other rules."""

    def end(self, number: int) -> None:
        """The step ends that began last."""

    def abandon(self) -> None:
        """The step that began last has no end."""

    def pause(self) -> None:
        """No step follows at once."""

    def discard(self) -> None:
        """The steps so far were none."""

    def finish(self) -> None:
        """No step follows."""


class Times(StepCapture):
    """The times of the steps, their waits for a data loader, torch's peak memory, and the energy of the GPUs."""

    def __init__(self, given: HookSettings, record: HookRecord) -> None:
        super().__init__(given, record)
        #: By the number of a step that has not been written: what it calls.
        self._calls: Dict[int, str] = {}
        #: By the same number: ns in which it waits for a data loader.
        self._loading: Dict[int, int] = {}
        self._loader: Any = None
        self._rows: List[clock.Row] = []
        self._offset = 0
        self._pending = Pending(given.path(f"{given.place}{os.getpid()}.pending"))
        self._clock: Any = None
        self._energy: Optional[EnergyCounter] = None
        self._rule, self._words = "", b""
        self._due_ns = 0

    def begin(self, rule: str, number: int, call: str) -> None:
        if self._clock is None:
            library = clock.cuda()
            self._clock = clock.EventClock(library) if library else clock.HostClock()
            if rule != "forward":
                self._clock.share_between_threads()
            if library and self._energy is None:
                # To open NVML can take a second, so it is done before the first step.
                self._energy = EnergyCounter(library)
            self._rule, self._words = rule, f"{rule} {self._clock.name} ".encode()
        if self._loader is None:
            self._loader = LoaderClock()
        self._loader.take()
        if call:
            self._calls[number] = call
        self._clock.begin(number)

    def end(self, number: int) -> None:
        if self._loader.is_used:
            self._loading[number] = self._loader.take()
        self._keep(self._clock.end())
        self._mark_unfinished()

    def _mark_unfinished(self) -> None:
        number = self._clock.unfinished
        if number is not None:
            self._pending.put(self._offset, number, 1, -1.0, b"")

    def _keep(self, rows: Iterable[clock.Row]) -> None:
        for row in rows:
            words = self._words
            if self._calls:
                words += self._calls.get(row[0], "").encode()
            self._pending.put(self._offset, *row, words)
            self._rows.append(row)
            self._offset += _STEP
            # The last place is for a step that the GPU has not finished.
            if row[1] > self._due_ns or self._offset > _LAST:
                self._due_ns = row[1] + _PERIOD_NS
                self._write()

    def pause(self) -> None:
        getattr(self._clock, "pause", lambda: None)()

    def discard(self) -> None:
        self._clock = None
        self._clear()
        self._calls.clear()
        self._loading.clear()
        self.record.write("restart")

    def finish(self) -> None:
        if self._clock is not None:
            self._keep(self._clock.finish())
            self._write(is_last=True)
            self._mark_unfinished()

    def _write(self, is_last: bool = False) -> None:
        """Write the times to the record."""
        rows = self._rows
        if not rows:
            return
        columns: Dict[str, List[Any]] = {
            "step": [row[0] for row in rows],
            "start_ns": [row[1] for row in rows],
            "wall_ns": [round(row[2]) for row in rows],
        }
        if self._calls:
            columns["calls"] = [self._calls.pop(row[0], "") for row in rows]
        loading_ns = [self._loading.pop(row[0], 0) for row in rows]
        if any(loading_ns):
            columns["loading_ns"] = loading_ns
        more: Dict[str, Any] = {**clock.peaks_of_torch()}
        try:
            # The GPU may be inside the next step. Making it wait here would change the times.
            more.update(self._energy.read(is_last) if self._energy else {})
        except Exception as error:  # the steps have times without it
            self._energy = None
            self.record.error(error, "energy")
        self.record.write("steps", rule=self._rule, clock=self._clock.name, **columns, **more)
        self._clear()

    def _clear(self) -> None:
        self._rows, self._offset = [], 0
        self._pending.clear()


def _range_name(given: HookSettings, rule: str, number: int, call: str) -> str:
    """Return ``profpipe.step:forward:7 *LlamaModel 1x512``; ``*`` marks the module whose calls are steps."""
    is_step = given.module and call.partition(" ")[0] == given.module
    return f"{ranges.STEP_PREFIX}{rule}:{number}" + (f" {'*' if is_step else ''}{call}" if call else "")


class _Opened(threading.local):
    """The range around the step of this thread, or the function that closes it."""

    range: Any = None


class TorchTrace(StepCapture):
    """One trace of torch.profiler over the chosen steps, and over a few more with ranges around calls of modules.

    These ranges cost time of the host, so the chosen steps have none. They are in the same trace: where one
    profiler sees the beginning of a range of the program and the next one its end, torch writes into freed memory.
    """

    def __init__(self, given: HookSettings, record: HookRecord) -> None:
        super().__init__(given, record)
        self._profile: Any = None
        self._is_on = self._is_over = self._has_step = self._has_all = False
        self._modules = ModuleRanges(sys.modules.get("torch"), record)
        #: The number of the last step in the trace. The ranges of modules begin inside the first step that has some, so
        #: that it does not count.
        self._last = given.last
        if self._modules.are_possible and not given.is_collected:
            self._last += 1 + min(ranges.MODULE_STEPS, given.measure)
        self._opened = _Opened()
        self._others: Any = None
        self._flops = FlopStep(record)
        self._host = Host(given, record)
        #: How often the steps so far call what.
        self._calls: Counter[str] = Counter()
        if given.is_collected:
            self._is_over = True
        else:
            self._others = torch_profiler.Others(given, record, self._is_own, self._make_room)

    def is_complete(self, number: int) -> bool:
        if self.settings.is_stop_chosen and self._others is not None and self._others.is_wanted:
            return False  # the program has not written its own trace, which is the capture
        # The FLOPs are counted in a step after the trace.
        return number >= self._last + (not self.settings.is_collected)

    def begin(self, rule: str, number: int, call: str) -> None:
        if number <= self._last:
            self._calls[call] += 1
        elif not self.settings.is_collected and [call] == [most for most, _ in self._calls.most_common(1)]:
            self._flops.begin(number)
        if self._is_over:
            return
        if number == max(0, self.settings.warmup - 1):
            self._prepare()
        if number == self.settings.warmup and self._profile is not None:
            self._start()
        if self._is_on:
            self._host.boundary(number)
            name = _range_name(self.settings, rule, number, call)
            if number > self.settings.last:
                name = name.replace(ranges.STEP_PREFIX, ranges.MODULES_PREFIX, 1)
                self._modules.install()
            self._opened.range = sys.modules["torch"].profiler.record_function(ranges.encode_name(name))
            self._opened.range.__enter__()

    def end(self, number: int) -> None:
        self._flops.end()
        if self._opened.range is not None:
            opened, self._opened.range = self._opened.range, None
            opened.__exit__(None, None, None)
            if number > self.settings.last:
                # The step in which the program ends has an end in the trace too.
                with sys.modules["torch"].profiler.record_function(ranges.MODULES_END):
                    pass
        self._has_step = self._is_on
        self._has_all = self._is_on and number >= self.settings.last
        if number >= self.settings.last:
            self._host.end()
        if self._is_on and number >= self._last:
            self._export()

    def abandon(self) -> None:
        # Without an end it is no event of the trace.
        self._opened.range = None
        self._flops.abandon()

    def discard(self) -> None:
        self._calls.clear()
        self._flops.abandon()
        self._host.discard()
        if self._has_all:
            self._export()

    def finish(self) -> None:
        """Export what was recorded, if the program ends inside the steps to record."""
        self._flops.abandon()
        self._host.end()
        if self._is_on and not self._has_step:
            self._is_on = False
            self._profile.stop_trace()
        elif self._is_on:
            if not self._has_all:
                self.record.note(f"the program ended before step {self.settings.last}, the last one to record")
            self._export()
        self._is_over = True
        if self._others is not None:
            self._others.finish()

    def _prepare(self) -> None:
        """Load CUPTI one step before the first one that counts, for this takes up to a second."""
        torch = sys.modules["torch"]
        if self._profile is not None:
            return  # the numbers started again
        if torch.autograd._profiler_enabled():
            self._is_over = True
            self._others.want()
            return
        # Steps of several threads: torch ends a profile in the thread that began it, or one of all threads in any.
        is_main = threading.current_thread() is threading.main_thread()
        self._profile = torch_profiler.new(self.settings, **({} if is_main else torch_profiler.all_threads()))
        self._profile.prepare_trace()

    def _start(self) -> None:
        if clock.cuda() is not None:
            clock.cuda().synchronize()
        self._profile.start_trace()
        self._is_on = True

    def _export(self) -> None:
        library, profile = clock.cuda(), self._profile
        self._is_on, self._is_over, self._has_all, self._profile = False, True, False, None
        self._modules.remove()
        if library is not None:
            library.synchronize()
        profile.stop_trace()
        torch_profiler.export(profile, self.settings)

    def _is_own(self, profiler: Any) -> bool:
        return profiler is getattr(self._profile, "profiler", None)

    def _make_room(self) -> bool:
        """End the trace for the program's profiler. Return whether there is none of profpipe's."""
        was_over, self._is_over = self._is_over, True
        if self._is_on:
            if not self._has_all:
                self.record.note("the program uses torch.profiler itself, which ended profpipe's trace")
            self._export()
            return False
        return not was_over


class Ranges(StepCapture):
    """A range around a chosen step, for nsys and rocprof, and the recording from the first to the last one only.

    These ranges may begin and end inside ranges of the program, so they are no part of its stack.
    """

    def __init__(self, given: HookSettings, record: HookRecord) -> None:
        super().__init__(given, record)
        self._opened = _Opened()
        self._window = choose_window(given, record)
        self._open = ranges.free_ranges(given.profiler) if given.profiler != "ncu" else None
        self._host = Host(given, record) if self._open is not None else None
        if self._open is None and given.profiler == "nsys":
            record.note(
                "no library for NVTX ranges is in this process, so nsys sees no steps: torch is built without CUDA and "
                "the package nvtx is missing. Install 'nvtx<0.2.12'"
            )

    def begin(self, rule: str, number: int, call: str) -> None:
        if number == self.settings.warmup and self._window is not None:
            self._window.begin()
        if self._host is not None:
            self._host.boundary(number)
        if self._open is not None and self.settings.warmup <= number <= self.settings.last:
            self._opened.range = self._open(_range_name(self.settings, rule, number, call))

    def end(self, number: int) -> None:
        if self._opened.range is not None:
            close, self._opened.range = self._opened.range, None
            close()
        if self._host is not None and number >= self.settings.last:
            self._host.end()
        if self._window is not None and number >= self.settings.last:
            self._window.end(number - self.settings.last)

    def abandon(self) -> None:
        # A range without an end is no step for the parsers.
        self._opened.range = None

    def discard(self) -> None:
        if self._host is not None:
            self._host.discard()

    def finish(self) -> None:
        if self._host is not None:
            self._host.end()
        if self._window is not None:
            self._window.leave()


class MemoryMarks(StepCapture):
    """The begins of the steps in the history of the memory, which is written after the last chosen one."""

    def begin(self, rule: str, number: int, call: str) -> None:
        memory.HISTORY.mark(number)

    def end(self, number: int) -> None:
        if number >= self.settings.last:
            memory.HISTORY.write()

    def discard(self) -> None:
        memory.HISTORY.steps.clear()

    def finish(self) -> None:
        memory.HISTORY.write()


def choose(given: HookSettings, record: HookRecord) -> StepCapture:
    kinds = {"plain": Times, "memory": MemoryMarks, "torch": TorchTrace}
    kinds.update(dict.fromkeys(("nsys", "ncu", "rocprof"), Ranges))
    return kinds.get(given.profiler, StepCapture)(given, record)
