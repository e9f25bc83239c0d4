"""Record a span of time of a program without steps, such as a server: ``capture: {after_s, for_s}``.

A thread waits for the span, so the program goes on as without it. The seconds count from the start of the command, so
that all processes of the command record the same span. ``time.monotonic`` is one clock for all processes of a machine,
and setting the date does not change it. The runner ends the program afterwards, where the user asked for the span.

torch.profiler records a short program without steps ``whole``: from the import of torch, or from the moment at which
torch begins to use the GPU, to its end.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
from typing import Any

from profpipe import ranges
from profpipe.hook import clock, record, torch_profiler
from profpipe.hook.record import HookRecord
from profpipe.hook.settings import HookSettings

_POLL_S = 0.05
#: How long the end of a process waits for its trace to be written.
_EXPORT_S = 300.0


def begin(given: HookSettings) -> None:
    """Record the span of this process, and that of processes which it forks before the span begins."""
    span = _Span(given)
    os.register_at_fork(after_in_child=span.restart_in_child)
    if not span.is_whole:
        span.start()
    elif span.waits_for_gpu:
        span.wait_for_gpu(sys.modules["torch"].cuda)
    else:
        span.start_now()


class _Span:
    """The span of one process. Errors are written to the record: the program goes on."""

    def __init__(self, given: HookSettings) -> None:
        assert given.capture is not None
        self._settings = given
        self._begin_s = float(given.capture["started_s"]) + float(given.capture["after_s"])
        self._for_s = float(given.capture["for_s"])
        self._end_s = self._begin_s + self._for_s
        if "goes_on" in given.capture and self._end_s < time.monotonic():
            # The program took longer to start than under plain.
            self._end_s = time.monotonic() + self._for_s
        self.is_whole = bool(given.capture.get("whole"))
        #: profpipe chose the span: a process that uses no GPU has nothing to show on a machine with one.
        self.waits_for_gpu = given.profiler == "torch" and bool(given.capture.get("on_gpu"))
        self._is_waiting = False
        self._record = HookRecord(lambda: given.path(f"{os.getpid()}.jsonl"), lambda: record.describe(given))
        self._reset()
        if given.profiler == "torch" and not given.is_collected:
            self._others = torch_profiler.Others(given, self._record, self._is_own, self._make_room)

    def _reset(self) -> None:
        self._profile: Any = None
        self._is_on = self._has_begun = False
        #: Set where the span must end before its time: the process ends, or the program starts a profiler.
        self._is_cut = threading.Event()
        self._thread = threading.Thread(target=self._run, name="profpipe", daemon=True)

    def start(self) -> None:
        finish = functools.partial(self._finish, os.getpid())
        record.at_end(finish)
        self._thread.start()

    def wait_for_gpu(self, library: Any) -> None:
        """Start when torch begins to use the GPU, before it launches a kernel. ``library`` is ``torch.cuda``."""
        original, self._is_waiting = library._lazy_init, True

        @functools.wraps(original)
        def initialize(*args: Any, **kwargs: Any) -> None:
            original(*args, **kwargs)
            # torch calls this function again while it initializes, when there is no GPU to record yet.
            if self._is_waiting and library.is_initialized():
                self._is_waiting, library._lazy_init = False, original
                self.start_now()

        library._lazy_init = initialize

    def start_now(self) -> None:
        """Start in this thread, so that the program waits: torch.profiler may take seconds to start."""
        self._begin_s = time.monotonic()
        self._end_s = self._begin_s + self._for_s
        try:
            if torch_profiler.all_threads() and not sys.modules["torch"].autograd._profiler_enabled():
                self._start_trace()
        except Exception as error:  # an error of the hook must not end the program
            self._profile = None
            self._record.error(error, "capture")
        self.start()

    def restart_in_child(self) -> None:
        """Record the span in a forked process too. A profiler that is on is a copy, which must not be used."""
        self._record.forget()
        was_on = self._is_on
        self._reset()
        ranges.record_all_threads(False)
        if not (was_on or self._is_waiting) and time.monotonic() < self._end_s:
            self.start()

    def _run(self) -> None:
        try:
            if self._is_cut.wait(max(0.0, self._begin_s - time.monotonic())) or time.monotonic() >= self._end_s:
                return
            if self.waits_for_gpu and not self._sees_gpu_used():
                return
            self._has_begun = True
            self._record.write("span")
            if self._settings.profiler == "torch" and not self._settings.is_collected:
                self._record_trace()
            else:
                self._wait()
            if self.is_whole and not self._is_cut.is_set():
                self._record.note(f"torch.profiler recorded {self._for_s:g} s, and the program went on")
            if self._settings.profiler == "plain":
                self._record.write("memory", **clock.peaks_on_any_device(), **clock.peak_of_host())
        except Exception as error:  # an error of the hook must not end the program
            self._record.error(error, "capture")
        self._record.write("finished", steps=0, stopped=False)

    def _sees_gpu_used(self) -> bool:
        """Wait until torch uses a GPU in this process. Return False where the process ends before."""
        while clock.cuda() is None:
            if self._is_cut.wait(_POLL_S):
                return False
        self._end_s = max(self._end_s, time.monotonic() + self._for_s)
        return True

    def _wait(self) -> None:
        self._is_cut.wait(max(0.0, self._end_s - time.monotonic()))

    def _record_trace(self) -> None:
        if self._profile is None and sys.modules["torch"].autograd._profiler_enabled():
            self._others.want()
            self._wait()
            self._others.finish()
            return
        if self._profile is None:
            self._start_trace()
        ranges.record_all_threads(True)
        self._wait()
        ranges.record_all_threads(False)
        clock.synchronize_all()
        self._profile.stop_trace()
        self._is_on = False
        # The parent of worker processes may run nothing.
        if self._profile.profiler.kineto_results.events():
            torch_profiler.export(self._profile, self._settings)
        self._profile = None

    def _start_trace(self) -> None:
        self._profile = self._new_profile()
        self._is_on = True
        self._profile.prepare_trace()
        self._profile.start_trace()
        # The start may take seconds: torch imports its compiler for it.
        self._end_s = time.monotonic() + self._for_s

    def _new_profile(self) -> Any:
        """Return torch.profiler for all threads: requests are served in threads, and this one runs nothing."""
        every_thread = torch_profiler.all_threads()
        if not every_thread:
            version = sys.modules["torch"].__version__
            self._record.note(
                f"torch {version} records operators of the thread that starts torch.profiler only, so the operators of "
                "the program are missing. Kernels on a GPU are recorded. Newer versions record all threads"
            )
        return torch_profiler.new(self._settings, **every_thread)

    # --- the program's own profiler, and its end ---------------------------------------------------------------------

    def _is_own(self, profiler: Any) -> bool:
        return profiler is getattr(self._profile, "profiler", None)

    def _make_room(self) -> bool:
        """End the span: a process has one profiler, and the program starts another one."""
        if not self._has_begun or not self._thread.is_alive():
            return False
        was_on = self._is_on
        self._cut()
        if was_on:
            self._record.note("the program uses torch.profiler itself, which ended profpipe's trace")
        return not was_on

    def _finish(self, pid: int) -> None:
        """Export what was recorded, if the program ends inside the span. A forked child inherits this function."""
        if pid != os.getpid() or not self._thread.is_alive():
            return
        left_s = self._end_s - time.monotonic()
        if self._has_begun and left_s > 0 and not self.is_whole:
            self._record.note(f"the program ended {left_s:.1f} s before the end of the capture")
        self._cut()

    def _cut(self) -> None:
        self._is_cut.set()
        self._thread.join(_EXPORT_S)
