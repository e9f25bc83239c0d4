"""What the host does during the recorded steps: waits that have a name, and samples of the Python line of each thread.

It is recorded in jobs that are profiled anyway. In one without a profiler only the waits for a data loader are timed:
a profiler slows the rest of a step, and hides such a wait behind it. A thread wakes 200 times a second, at
random intervals: at a constant one it would see every step of 5 ms, or of a tenth of a second, at the same lines. It
may get the interpreter's lock late, so a sample stands for the time since the one before it, and the switch interval of
the process is short meanwhile: a count of samples would give pure Python a sixth of its share.

The file ``hook.capture.4711.host.json`` is one JSON object. ``profpipe/ingest/host.py`` describes and reads it. Its
times are of ``time.perf_counter_ns``; the times of the steps in it lead to the clock of a profiler.
"""

from __future__ import annotations

import functools
import gc
import itertools
import json
import os
import random
import sys
import sysconfig
import threading
import time
import types
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

from profpipe.hook.record import HookRecord, write_whole
from profpipe.hook.settings import HookSettings

#: Seconds between two samples in the mean, and for which a thread may keep the interpreter's lock.
_PERIOD_S, SWITCH_S = 0.005, 1e-4
#: A recording of hours needs no more of either.
_MOST_SAMPLES, _MOST_WAITS = 1_000_000, 200_000

# --- places ----------------------------------------------------------------------------------------------------------

#: Whose code a frame runs: of the program; of a library that the program uses; of torch, Python or profpipe.
_PROGRAM, _LIBRARY, _BELOW = range(3)
#: The frame of torch in which a thread waits for the backward pass, which autograd's own thread launches.
_BACKWARD = "_engine_run_backward"


class Places:
    """Names of the lines that frames are at: ``train.py:41``, or ``train.py:41 > transformers/generation/utils.py:9``.

    The first part is the innermost line of the program, the second one the innermost line of a library that it uses.
    """

    def __init__(self) -> None:
        #: By number. Threads that meet a place at once may leave a number without a name.
        self.names: Dict[int, str] = {}
        self._numbers: Dict[Any, int] = {}
        self._counter = itertools.count()
        self._owners: Dict[str, int] = {}
        paths = sysconfig.get_paths()
        self._libraries = tuple({paths["purelib"] + os.sep, paths["platlib"] + os.sep})
        own = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        self._below = (paths["stdlib"] + os.sep, own + os.sep)
        try:
            self._folder = os.getcwd() + os.sep
        except OSError:  # the program has removed it
            self._folder = ""

    def number(self, frame: Optional[types.FrameType]) -> Tuple[int, bool]:
        """Return the number of the place of ``frame``, and whether a call of ``backward()`` lies in between."""
        library: Any = None
        is_backward = False
        while frame is not None:
            # Not the code itself: a hash of it takes long, and some constants have none.
            path = frame.f_code.co_filename
            owner = self._owners.get(path)
            if owner is None:
                owner = self._owners[path] = self._find_owner(path, frame.f_globals.get("__name__"))
            if owner == _PROGRAM:
                break
            if owner == _LIBRARY and library is None:
                library = path, frame.f_lineno
            is_backward = is_backward or frame.f_code.co_name == _BACKWARD
            frame = frame.f_back
        key = library, frame and (frame.f_code.co_filename, frame.f_lineno)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers.setdefault(key, next(self._counter))
            self.names[number] = " > ".join(self._name(*at) for at in key[::-1] if at)
        return number, is_backward

    def list_names(self) -> List[str]:
        return [self.names.get(number, "") for number in range(max(self.names, default=-1) + 1)]

    def _find_owner(self, path: str, module: Any) -> int:
        # Code that torch.compile and Triton wrote is of their modules, and lies in a folder of temporary files. Other
        # code without a file was made by a library, such as a method of a dataclass, but for `python -c`.
        if str(module).startswith(("torch.", "triton.")):
            return _BELOW
        if path.startswith("<") and path != "<stdin>" and not (path == "<string>" and sys.argv[:1] == ["-c"]):
            return _BELOW
        for folder in self._libraries:
            if path.startswith(folder):
                return _BELOW if path[len(folder) :].startswith(("torch" + os.sep, "triton" + os.sep)) else _LIBRARY
        if "site-packages" in path or "dist-packages" in path:
            return _BELOW if f"-packages{os.sep}torch{os.sep}" in path else _LIBRARY
        return _BELOW if path.startswith(self._below) else _PROGRAM

    def _name(self, path: str, line: int) -> str:
        for folder in (*self._libraries, self._folder):
            if folder and path.startswith(folder):
                return f"{path[len(folder) :]}:{line}"
        return f"{os.path.basename(path)}:{line}"


# --- times of samples ------------------------------------------------------------------------------------------------


def sample_times(ended: threading.Event) -> Iterator[int]:
    """Yield ``time.perf_counter_ns()`` at random intervals of ``_PERIOD_S`` in the mean, until ``ended`` is set."""
    # Numbers for it alone: those of the program must not change.
    chance = random.Random(0)
    while not ended.wait(_PERIOD_S * (0.5 + chance.random())):
        yield time.perf_counter_ns()


# --- recording -------------------------------------------------------------------------------------------------------


class Host:
    """Records the host from the first chosen step to the last one. An error of it is noted, and the program goes on."""

    def __init__(self, given: HookSettings, record: HookRecord) -> None:
        self._settings, self._record = given, record
        self._places = Places()
        self._is_on = False
        self._ended = threading.Event()
        self._steps: List[Tuple[int, int]] = []
        self._samples: List[Tuple[int, int, int, bool]] = []
        self._waits: List[Tuple[str, int, int, int, int, str]] = []
        self._thread: Optional[threading.Thread] = None
        self._step_thread = 0
        self._switch_s = 0.0
        self._undo: List[Callable[[], None]] = []
        self._since: Dict[str, int] = {}

    def boundary(self, number: int) -> None:
        """Note when step ``number`` begins. The first chosen one begins the recording."""
        if self._settings.warmup <= number <= self._settings.last + 1 and not self._ended.is_set():
            if not self._is_on:
                self._guard(self._begin)
            self._step_thread = threading.get_native_id()
            self._steps.append((number, time.perf_counter_ns()))

    def end(self) -> None:
        """Write the file."""
        if self._is_on:
            self._is_on = False
            self._guard(self._finish)

    def discard(self) -> None:
        """Forget what was recorded: the numbers of the steps begin again."""
        for rows in (self._steps, self._samples, self._waits):
            rows.clear()
        if self._ended.is_set():
            self._ended = threading.Event()
            self._guard(lambda: os.remove(self._path))

    def _guard(self, act: Callable[[], object]) -> None:
        try:
            act()
        except Exception as error:  # the program must go on
            self._record.error(error, "host")

    @property
    def _path(self) -> str:
        return self._settings.path(f"{self._settings.place}{os.getpid()}.host.json")

    def _begin(self) -> None:
        self._is_on = True
        self._switch_s = sys.getswitchinterval()
        sys.setswitchinterval(min(SWITCH_S, self._switch_s))
        os.register_at_fork(after_in_child=self._leave)
        self._watch()
        self._thread = threading.Thread(target=self._guard, args=(self._sample,), name="profpipe-host", daemon=True)
        self._thread.start()

    def _leave(self) -> None:
        """Take back what was changed in this process, or in a copy of it, which has no such thread."""
        if not self._undo:
            return
        self._is_on = False
        # The program may have chosen another one meanwhile.
        if abs(sys.getswitchinterval() - SWITCH_S) < SWITCH_S / 10:
            sys.setswitchinterval(self._switch_s)
        for undo in self._undo:
            self._guard(undo)
        self._undo = []

    def _finish(self) -> None:
        self._ended.set()
        self._leave()
        if self._thread is not None:
            self._thread.join(1.0)
        samples, steps = list(self._samples), list(self._steps)
        names = ("time_ns", "thread", "place", "is_backward")
        content = {
            "pid": os.getpid(),
            "step_thread": self._step_thread,
            "steps": {"step": [row[0] for row in steps], "time_ns": [row[1] for row in steps]},
            "samples": {name: [row[column] for row in samples] for column, name in enumerate(names)},
            "waits": [list(row) for row in self._waits],
            "places": self._places.list_names(),
        }
        write_whole(self._path, json.dumps(content).encode())

    # --- samples -----------------------------------------------------------------------------------------------------

    def _sample(self) -> None:
        own = threading.get_ident()
        for now in sample_times(self._ended):
            if len(self._samples) >= _MOST_SAMPLES:
                break
            threads = {thread.ident: thread.native_id for thread in threading.enumerate()}
            frame: Optional[types.FrameType]
            for ident, frame in sys._current_frames().items():
                if ident != own:
                    place, is_backward = self._places.number(frame)
                    self._samples.append((now, threads.get(ident) or 0, place, is_backward))
            # A frame that is kept during the wait would keep the variables of its function.
            frame = None

    # --- waits that have a name --------------------------------------------------------------------------------------

    def _watch(self) -> None:
        loader = sys.modules.get("torch.utils.data.dataloader")
        if loader is not None:
            self._wrap(loader._BaseDataLoaderIter, "__next__", "DataLoader", _count_workers)
        # Not torch.save, which a program may pickle and torch.compile may trace.
        serialization = sys.modules.get("torch.serialization")
        # It opens the file, writes it, and flushes it as it closes it.
        files = [getattr(serialization, f"_open_zipfile_writer_{kind}", None) for kind in ("file", "buffer")]
        functions = ("_open_zipfile_writer", "_save", "_legacy_save")
        writers = [*((serialization, name) for name in functions), *((file, "__exit__") for file in files)]
        for owner, function in [*writers, (sys.modules.get("safetensors.torch"), "save_file")]:
            if hasattr(owner, function):
                self._wrap(owner, function, "checkpoint")
        gc.callbacks.append(self._collecting)
        self._undo.append(lambda: _remove(gc.callbacks, self._collecting))
        # Dynamo's callbacks leave out a tenth of the compilation of a frame, such as the search for the reason. They
        # also name the compilation of a backward pass.
        if frames := getattr(sys.modules.get("torch._dynamo.convert_frame"), "ConvertFrameAssert", None):
            self._wrap(frames, "__call__", "compilation")
        callbacks = getattr(sys.modules.get("torch._dynamo.callback"), "callback_handler", None)
        if callbacks is not None:
            begin, end = (lambda *_, is_begin=edge: self._note_edge("compilation", is_begin) for edge in (True, False))
            callbacks.register_start_callback(begin)
            callbacks.register_end_callback(end)
            self._undo.append(lambda: _remove(callbacks.start_callbacks, begin))
            self._undo.append(lambda: _remove(callbacks.end_callbacks, end))

    def _wrap(self, owner: Any, name: str, kind: str, detail: Callable[..., str] = lambda *_: "") -> None:
        def note(begin: int, end: int, args: Any) -> None:
            self._guard(lambda: self._add(kind, begin, end, detail(*args)))

        self._undo.append(_time_calls(owner, name, note))

    def _note_edge(self, kind: str, is_begin: bool, detail: str = "") -> None:
        now = time.perf_counter_ns()
        if is_begin:
            self._since[kind] = now
        elif (since := self._since.pop(kind, None)) is not None:
            self._guard(lambda: self._add(kind, since, now, detail))

    def _collecting(self, phase: str, info: Dict[str, int]) -> None:
        self._note_edge("garbage collection", phase == "start", f"generation {info['generation']}")

    def _add(self, kind: str, begin: int, end: int, detail: str = "") -> None:
        if self._is_on and len(self._waits) < _MOST_WAITS:
            place, _ = self._places.number(sys._getframe(1))
            self._waits.append((kind, begin, end, threading.get_native_id(), place, detail))


class LoaderClock:
    """How long the program waits for torch's data loader, where no profiler runs: it takes 0.5 us for a batch."""

    def __init__(self) -> None:
        self._ns, self._thread = 0, threading.get_ident()
        loader = sys.modules.get("torch.utils.data.dataloader")
        self.is_used = loader is not None
        if loader is not None:
            _time_calls(loader._BaseDataLoaderIter, "__next__", self._add)

    def take(self) -> int:
        """Return the ns since this was called last. The thread that calls it is the one whose waits count."""
        self._thread = threading.get_ident()
        ns, self._ns = self._ns, 0
        return ns

    def _add(self, begin: int, end: int, args: Any) -> None:
        if threading.get_ident() == self._thread:
            self._ns += end - begin


def _time_calls(owner: Any, name: str, note: Callable[[int, int, Any], None]) -> Callable[[], None]:
    """Have ``note`` called with the begin, the end and the arguments of each call; return what undoes it."""
    original = getattr(owner, name)
    # Where a compiled function reads a batch, torch.compile shall not trace or compile these two.
    note = getattr(sys.modules.get("torch._dynamo"), "disable", lambda function: function)(note)

    def call(*args: Any, **kwargs: Any) -> Any:
        begin = time.perf_counter_ns()
        try:
            return original(*args, **kwargs)
        finally:
            note(begin, time.perf_counter_ns(), args)

    functools.update_wrapper(call, original)
    call._torchdynamo_disable = True  # type: ignore[attr-defined]
    skip = getattr(sys.modules.get("torch._dynamo.eval_frame"), "skip_code", None)
    if skip is not None:
        skip(call.__code__)

    def undo() -> None:
        if getattr(owner, name) is call:
            setattr(owner, name, original)

    setattr(owner, name, call)
    return undo


def _count_workers(iterator: Any, *_: Any) -> str:
    """Return ``2 workers``, as DataLoader's ``num_workers``."""
    return f"{iterator._num_workers} worker{'' if iterator._num_workers == 1 else 's'}"


def _remove(members: List[Any], member: Any) -> None:
    """Remove a member that the program may have removed already."""
    if member in members:
        members.remove(member)
