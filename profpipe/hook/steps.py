"""Count the steps of this process, and end the program after the chosen ones where the user asked for it."""

from __future__ import annotations

import atexit
import functools
import itertools
import os
import sys
import threading
import types
import weakref
from typing import Any, Callable, Iterable, Iterator, Optional, TypeVar

from profpipe import ranges
from profpipe.hook import captures, record, settings
from profpipe.hook.record import HookRecord
from profpipe.hook.settings import HookSettings

# --- optimizers ------------------------------------------------------------------------------------------------------

#: An iteration may hold so many times as many calls as the longest one so far, and a few more, before the loop is
#: taken for another one, which does not use the optimizer that ended the steps until then.
_LONGER = 4
_MORE = 16


class Sequence:
    """The optimizers of a program in the order of their calls.

    The optimizer that stepped for the first time last ends a step: in a GAN that is the second of two, and where
    the discriminator steps five times for a step of the generator, the generator.
    """

    def __init__(self) -> None:
        self._seen = weakref.WeakSet()  # type: ignore[var-annotated]
        self._last: Any = lambda: None
        self._since = 0
        self._longest = 1

    def add(self, member: Any) -> str:
        """Return what the call of ``member`` is: ``ends`` a step, is ``inside`` one, or begins a ``new`` order."""
        if member not in self._seen:
            self._seen.add(member)
            return self._end_with(member)
        if self._last() is member:
            self._longest = max(self._longest, self._since + 1)
            self._since = 0
            return "ends"
        self._since += 1
        if self._since > _LONGER * self._longest + _MORE:
            return self._end_with(member)
        return "inside"

    def _end_with(self, member: Any) -> str:
        self._last, self._since, self._longest = weakref.ref(member), 0, 1
        return "new"


# --- the steps of a process ------------------------------------------------------------------------------------------

#: Of two rules, the first one applies.
_RULES = ("marker", "optimizer", "forward")
#: A program that catches SystemExit so many times is ended without it.
_PATIENCE = 3


class _Thread(threading.local):
    """The open step of this thread, -1 where none is; and the number of the thread among those that call modules."""

    step = index = -1


class ProcessSteps:
    """The steps of one process. ``number`` counts from 0; -1: none has begun. Each thread that calls modules has steps.

    The first boundary begins step 0, so work before it belongs to no step. No method raises an error of the hook: it is
    written to the record, and the steps end there.
    """

    def __init__(self, given: HookSettings) -> None:
        self._settings = given
        self.record = HookRecord(
            lambda: given.path(f"{given.place}{os.getpid()}.jsonl"), lambda: record.describe(given)
        )
        self._when_optimizer_steps: Optional[Callable[[], None]] = None
        self._reset()
        os.register_at_fork(after_in_child=self._restart_in_child)

    def _reset(self) -> None:
        self.number, self.rule = -1, ""
        self._is_over = False
        self._thread: Any = _Thread()
        self._threads, self._lock = itertools.count(), threading.RLock()
        #: The capture of the process from its first boundary on.
        self._capture: Any = None
        self._members = Sequence()
        self._stops = self._calls = self._optimizer_steps = 0

    # --- boundaries --------------------------------------------------------------------------------------------------

    def boundary(self, rule: str, describe: Callable[[], str] = str) -> None:
        """End the current step, and begin the next one; ``describe`` says what it calls: ``LlamaModel 1x512``."""
        self._guard(rule, self._boundary, rule, describe)

    def when_optimizer_steps(self, act: Callable[[], None]) -> None:
        """Have ``act`` called where the first optimizer steps. Until then calls of modules are steps."""
        self._when_optimizer_steps = act

    def note_memory_at_exit(self) -> None:
        """Write the peaks of torch's memory when the process ends, where it used a GPU and made no step."""
        atexit.register(self._note_memory, os.getpid())

    def _note_memory(self, pid: int) -> None:
        try:
            # torchrun imports torch too, and uses no GPU.
            if pid == os.getpid() and not self.rule and captures.clock.cuda() is not None:
                self.record.write("memory", **captures.clock.peaks_on_any_device())
        except Exception as error:  # at the exit nothing else can be done with it
            self.record.error(error, "exit")

    def close(self) -> None:
        """End the current step. The next one does not follow at once, or there is none."""
        self._guard("marker", self._close)

    def abandon(self) -> None:
        """Forget the current step: the program left it half-way."""
        self._guard("marker", self._abandon)

    def call(self, rule: str, member: Any) -> None:
        """Note the call of an optimizer, which ends a step if it is the last one of its iteration."""
        self._guard(rule, self._call, rule, member)

    def failed(self, error: BaseException, during: str) -> None:
        """Record an error of the hook. Steps are not measured any more, because some may be missing."""
        self._is_over = True
        self.record.error(error, during)

    def not_installed(self, error: BaseException, during: str) -> None:
        """Record that the hook cannot find steps by itself. Marks by hand still count."""
        self.record.error(error, during)

    def note(self, text: str) -> None:
        self.record.note(text)

    def _guard(self, during: str, act: Callable[..., None], *arguments: Any) -> None:
        if self._is_over and not self._stops:
            return
        try:
            # torch.profiler takes seconds to start, in which another thread may come to the next step.
            with self._lock:
                if not self._is_over and not _is_capturing():
                    act(*arguments)
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
        if what == "new" and self.number < 0 < self._optimizer_steps:
            # Plain begins to count again here.
            self._optimizer_steps = 0
        elif what == "new" and self.number >= 0 and rule == self.rule:
            if self.number < self._settings.warmup:
                self._discard()
            else:
                self.record.note(f"another optimizer ends the steps from step {self.number} on")
        self._boundary(rule)

    def _is_inferior(self, rule: str) -> bool:
        """Return True if steps by another rule exist, which says more."""
        return rule != self.rule != "" and _RULES.index(self.rule) < _RULES.index(rule)

    def _boundary(self, rule: str, describe: Callable[[], str] = str) -> None:
        if self._is_inferior(rule):
            return
        if rule == "optimizer":
            from_first = self._optimizer_steps - self._settings.offset
            self._optimizer_steps += 1
            if from_first < 0 or from_first % self._settings.stride:
                return
        # Modules are numbered from the first call on, under each profiler.
        call = describe()
        if rule == "forward":
            self._thread.index = next(self._threads) if self._thread.index < 0 else self._thread.index
            call += f" @{self._thread.index}" if self._thread.index else ""
        if rule == "forward" and not self._settings.forward and self._calls < ranges.CALLS_BEFORE_STEPS:
            self._calls += 1
            return
        if rule != "forward" and self._when_optimizer_steps is not None:
            act, self._when_optimizer_steps = self._when_optimizer_steps, None
            act()
        if self._capture is None:
            self._begin_recording(rule)
            # Calls have the same numbers as under a profiler that records the first ones too.
            self.number += self._calls if rule == "forward" else 0
        elif rule != self.rule:
            self._discard()
        self.rule = rule
        if rule != "forward" and isinstance(self._thread, _Thread):
            # Only calls of modules have steps in several threads.
            self._thread = types.SimpleNamespace(step=-1, index=-1)
        self._end()
        if not self._stops:
            self.number += 1
            self._thread.step = self.number
            self._capture.begin(rule, self.number, call)

    def _close(self) -> None:
        if self.rule == "marker" and self._thread.step >= 0:
            self._end()
            self._capture.pause()

    def _abandon(self) -> None:
        if self.rule == "marker" and self._thread.step >= 0:
            self._thread.step = -1
            self._capture.abandon()
            self._capture.pause()

    def _end(self) -> None:
        number, self._thread.step = self._thread.step, -1
        if number < 0:
            return
        self._capture.end(number)
        # An evaluation before a training is no reason to stop it.
        is_asked_for = self._settings.stop and (self.rule != "forward" or self._settings.forward)
        if is_asked_for and self._capture.is_complete(number) and not self._has_children():
            self._stops = 1

    def _has_children(self) -> bool:
        """Return True if the end of the program would wait for child processes, which the user did not ask for."""
        library = sys.modules.get("multiprocessing")
        if library is None or not self._settings.is_stop_chosen or settings.local_size() > 1:
            return False  # ranks must all end at the same step
        return any(not child.daemon for child in library.active_children())

    def _discard(self) -> None:
        self._capture.discard()
        self.number, self._thread, self._optimizer_steps = -1, _Thread(), 0

    # --- the process -------------------------------------------------------------------------------------------------

    def _begin_recording(self, rule: str) -> None:
        self.rule = rule
        self.record.write("recording", rule=rule)
        self._capture = captures.choose(self._settings, self.record)
        record.at_end(functools.partial(self._finish_capture, os.getpid()))

    def _finish_capture(self, pid: int) -> None:
        """Complete the files. A forked child inherits this function, and the steps are those of its parent."""
        if pid != os.getpid() or self._capture is None:
            return
        # Other threads may still call modules. One that hangs must not keep the process.
        is_alone = self._lock.acquire(timeout=10.0)
        capture, self._capture, self._is_over = self._capture, None, True
        try:
            capture.finish()
            self.record.write("finished", steps=self.number + (self._thread.step < 0), stopped=bool(self._stops))
        except Exception as error:  # at the exit nothing else can be done with it
            self.record.error(error, "exit")
        finally:
            if is_alone:
                self._lock.release()

    def _restart_in_child(self) -> None:
        """Begin again in a forked process, which may train a model itself. A worker of a data loader makes no step."""
        self.record.forget()
        # A model that was only evaluated so far may be trained in the child.
        began = self.number >= 0 and (self.rule != "forward" or self._settings.forward)
        if self._capture is not None:
            import ctypes

            # A forked process cannot use the CUDA context. Destroying a copied event would abort it, so the capture is
            # never freed here.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._capture))
        rule = self.rule if began else ""
        self._reset()
        # Calls of a model in a copy of a process in mid-training are no steps.
        self.rule = rule
        # The profiler in such a copy is a copy too, which must not be used.
        self._is_over = began and self._settings.profiler != "plain"

    def _stop(self) -> None:
        """End the program as its end would: cleanly, with exit code 0."""
        if self._stops == 1:
            self._finish_capture(os.getpid())
            atexit.register(self._leave_group)
            self._finish_gpu()
            # At the exit torch waits so long for each worker of a loader with pinned memory, 5 s, before it ends it.
            loader: Any = sys.modules.get("torch.utils.data._utils")
            if loader is not None:
                loader.MP_STATUS_CHECK_INTERVAL = 0.1
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
            self.record.error(error, "stop")

    def _leave_group(self) -> None:
        """Leave torch's process group: a process that ends inside it makes the others wait or complain."""
        distributed = getattr(sys.modules.get("torch"), "distributed", None)
        try:
            if distributed is not None and distributed.is_available() and distributed.is_initialized():
                distributed.destroy_process_group()
        except Exception as error:
            self.record.error(error, "destroy_process_group")


def _is_capturing() -> bool:
    """Return True while the program captures a CUDA graph: an event would become a part of the graph."""
    library = captures.clock.cuda()
    return library is not None and bool(library.is_current_stream_capturing())


_STEPS: Optional[ProcessSteps] = None
_IS_READ = False


def read_process_steps() -> Optional[ProcessSteps]:
    """Return the steps of this process, None where no profpipe records them."""
    global _STEPS, _IS_READ
    if not _IS_READ:
        _IS_READ = True
        given = settings.read()
        _STEPS = ProcessSteps(given) if given is not None and given.capture is None else None
    return _STEPS


# --- marks by hand ---------------------------------------------------------------------------------------------------
#
# ``from profpipe import step, steps``: both work in any process. Where nothing is recorded a call costs well under a
# microsecond.

T = TypeVar("T")


class _Marks:
    """What the functions below call: the steps that profpipe records, or ranges for another profiler."""

    steps: Any = None


def step() -> None:
    """Mark the boundary between two steps: call it once in each iteration, always at the same place.

    The first call begins the first step. Steps that a program marks take precedence over those that profpipe finds.
    """
    (_Marks.steps or _choose()).boundary("marker")


def steps(iterable: Iterable[T]) -> Iterator[T]:
    """Yield the items of ``iterable``; each iteration of the loop over them is a step.

    A step lasts until the loop has its next item, so the loading of that item belongs to it. What follows the loop
    belongs to no step, and neither does an iteration that the program leaves by ``break``.
    """
    marks = _Marks.steps or _choose()
    is_complete = False
    try:
        for item in iterable:
            marks.boundary("marker")
            yield item
        marks.close()
        is_complete = True
    finally:
        if not is_complete:
            marks.abandon()


def _choose() -> Any:
    _Marks.steps = read_process_steps() or _Ranges()
    return _Marks.steps


class _Ranges:
    """Ranges around the steps for a profiler that the user started without profpipe: nsys, ncu, torch or rocprof."""

    def __init__(self) -> None:
        self._number = -1
        self._open = ranges.free_ranges()
        self._close: Optional[Callable[[], object]] = None

    def boundary(self, rule: str) -> None:
        if self._close is not None:
            self.close()
        self._number += 1
        if self._open is not None:
            self._close = self._open(f"{ranges.STEP_PREFIX}{rule}:{self._number}")
        elif ranges.is_profiled():
            self._close = ranges.record(f"{ranges.STEP_PREFIX}{rule}:{self._number}")

    def close(self) -> None:
        if self._close is not None:
            close, self._close = self._close, None
            close()

    def abandon(self) -> None:
        self._close = None
