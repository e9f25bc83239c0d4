"""Count the steps of this process, and end the program after the chosen ones where the user asked for it."""

from __future__ import annotations

import atexit
import functools
import os
import sys
import threading
from typing import Any, Callable, Optional

from profpipe.hook import captures, process, settings
from profpipe.hook.captures import Capture
from profpipe.hook.record import Record
from profpipe.hook.sequence import Sequence
from profpipe.hook.settings import Settings

#: Of two rules, the first one applies.
_RULES = ("marker", "optimizer", "forward")
#: A program that catches SystemExit so many times is ended without it.
_PATIENCE = 3


class Steps:
    """The steps of one process. ``number`` counts from 0; -1: none has begun.

    The first boundary begins step 0, so work before it belongs to no step. No method raises an error of the hook: it is
    written to the record, and the steps end there.
    """

    def __init__(self, given: Settings) -> None:
        self._settings = given
        self._record = Record(lambda: given.path(f"{given.place}{os.getpid()}.jsonl"), lambda: process.describe(given))
        self._reset()
        os.register_at_fork(after_in_child=self._after_fork)

    def _reset(self) -> None:
        self.number, self.rule = -1, ""
        self._is_open = self._is_over = False
        self._capture: Optional[Capture] = None
        self._members = Sequence()
        self._stops = 0

    # --- boundaries --------------------------------------------------------------------------------------------------

    def boundary(self, rule: str) -> None:
        """End the current step, and begin the next one."""
        self._guard(lambda: self._boundary(rule), rule)

    def close(self) -> None:
        """End the current step. The next one does not follow at once, or there is none."""
        self._guard(self._close, "marker")

    def abandon(self) -> None:
        """Forget the current step: the program left it half-way."""
        self._guard(self._abandon, "marker")

    def call(self, rule: str, member: Any) -> None:
        """Note the call of an optimizer, which ends a step if it is the last one of its iteration."""
        self._guard(lambda: self._call(rule, member), rule)

    def failed(self, error: BaseException, during: str) -> None:
        """Record an error of the hook. Steps are not measured any more, because some may be missing."""
        self._is_over = True
        self._record.error(error, during)

    def not_installed(self, error: BaseException, during: str) -> None:
        """Record that the hook cannot find steps by itself. Marks by hand still count."""
        self._record.error(error, during)

    def note(self, text: str) -> None:
        self._record.note(text)

    def _guard(self, act: Callable[[], None], during: str) -> None:
        if self._is_over and not self._stops:
            return
        try:
            if not self._is_over and not _is_capturing():
                act()
        except Exception as error:  # an error of the hook must not end the program
            self.failed(error, during)
        if self._stops:
            self._stop()

    def _call(self, rule: str, member: Any) -> None:
        if self._is_inferior(rule):
            return
        what = self._members.add(member)
        if what == "inside":
            return
        if what == "new" and self.number >= 0 and rule == self.rule:
            if self.number < self._settings.warmup:
                self._discard()
            else:
                self._record.note(f"another optimizer ends the steps from step {self.number} on")
        self._boundary(rule)

    def _is_inferior(self, rule: str) -> bool:
        """Return True if steps by another rule are found, which says more."""
        return bool(self.rule) and _RULES.index(self.rule) < _RULES.index(rule)

    def _boundary(self, rule: str) -> None:
        if self._is_inferior(rule):
            return
        if self._capture is None:
            self._begin_recording(rule)
        elif rule != self.rule:
            self._discard()
        capture = self._capture
        assert capture is not None
        self.rule = rule
        self._end()
        if not self._stops:
            self.number += 1
            self._is_open = True
            capture.begin(rule, self.number)

    def _close(self) -> None:
        if self.rule == "marker" and self._is_open:
            self._end()
            assert self._capture is not None
            self._capture.pause()

    def _abandon(self) -> None:
        if self.rule == "marker" and self._is_open:
            assert self._capture is not None
            self._is_open = False
            self._capture.abandon()
            self._capture.pause()

    def _end(self) -> None:
        if not self._is_open:
            return
        assert self._capture is not None
        self._is_open = False
        self._capture.end(self.rule, self.number)
        if self._settings.stop and self.number >= self._settings.last:
            self._stops = 1

    def _discard(self) -> None:
        assert self._capture is not None
        self._capture.discard()
        self.number, self._is_open = -1, False

    # --- the process -------------------------------------------------------------------------------------------------

    def _begin_recording(self, rule: str) -> None:
        self.rule = rule
        self._record.write("recording", rule=rule)
        self._capture = captures.choose(self._settings, self._record)
        at_exit = functools.partial(self._at_exit, os.getpid())
        atexit.register(at_exit)
        process.at_end_of_multiprocessing(at_exit)

    def _at_exit(self, pid: int) -> None:
        """Complete the files. A forked child inherits this function, and the steps are not its own."""
        if pid != os.getpid() or self._capture is None:
            return
        capture, self._capture, self._is_over = self._capture, None, True
        try:
            capture.finish()
            self._record.write("finished", steps=self.number + (not self._is_open), stopped=bool(self._stops))
        except Exception as error:  # at the exit nothing else can be done with it
            self._record.error(error, "exit")

    def _after_fork(self) -> None:
        """Begin again in a forked process, which may train a model itself. A worker of a data loader makes no step."""
        self._record.forget()
        began = self.number >= 0
        if self._capture is not None:
            import ctypes

            # A forked process cannot use the CUDA context. Destroying a copied event would abort it, so the capture is
            # never freed here.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._capture))
        self._reset()
        # A copy of a process in mid-training is a worker, and the profiler in it a copy that must not be used.
        self._is_over = began

    def _stop(self) -> None:
        """End the program as its own end would: cleanly, with exit code 0."""
        if self._stops == 1:
            self._at_exit(os.getpid())
            atexit.register(self._leave_group)
            self._finish_gpu()
        is_main = threading.current_thread() is threading.main_thread()
        self._stops += 1
        if is_main and self._stops <= _PATIENCE + 1:
            raise SystemExit(0)
        # The program catches SystemExit, or this thread cannot end the process.
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        os._exit(0)

    def _finish_gpu(self) -> None:
        try:
            library = captures.clock.cuda()
            if library is not None:
                library.synchronize()
        except Exception as error:
            self._record.error(error, "stop")

    def _leave_group(self) -> None:
        """Leave torch's process group: a process that ends inside it makes the others wait or complain."""
        distributed = getattr(sys.modules.get("torch"), "distributed", None)
        try:
            if distributed is not None and distributed.is_available() and distributed.is_initialized():
                distributed.destroy_process_group()
        except Exception as error:
            self._record.error(error, "destroy_process_group")


def _is_capturing() -> bool:
    """Return True while the program captures a CUDA graph: an event would become a part of the graph."""
    library = captures.clock.cuda()
    return library is not None and bool(library.is_current_stream_capturing())


_STEPS: Optional[Steps] = None
_IS_READ = False


def of_process() -> Optional[Steps]:
    """Return the steps of this process, None where no profpipe records them."""
    global _STEPS, _IS_READ
    if not _IS_READ:
        _IS_READ = True
        given = settings.read()
        _STEPS = Steps(given) if given is not None and given.capture is None else None
    return _STEPS
