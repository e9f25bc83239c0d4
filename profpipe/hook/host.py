"""What the host does during the recorded steps: waits that have a name, and samples of the Python line of each thread.

It is recorded in jobs that are profiled anyway, never in one without a profiler. A thread wakes 200 times a second. It
may get the interpreter's lock late, so a sample stands for the time since the one before it, and the switch interval of
the process is short meanwhile: a count of samples would give pure Python a sixth of its share.

The file ``hook.capture.4711.host.json`` is one JSON object. ``profpipe/ingest/host.py`` describes and reads it. Its
times are of ``time.perf_counter_ns``; the times of the steps in it lead to the clock of a profiler.
"""

from __future__ import annotations

import functools
import gc
import json
import os
import sys
import sysconfig
import threading
import time
import types
from typing import Any, Callable, Dict, List, Optional, Tuple

from profpipe.hook.record import HookRecord
from profpipe.hook.settings import HookSettings

#: Seconds between two samples, and for which a thread may keep the interpreter's lock.
_PERIOD_S, _SWITCH_S = 0.005, 1e-4
#: A recording of hours needs no more of either.
_MOST_SAMPLES, _MOST_WAITS = 1_000_000, 200_000

# --- places ----------------------------------------------------------------------------------------------------------

#: Whose code a frame runs: of the program; of a library that the program uses; of torch, Python or profpipe.
_PROGRAM, _LIBRARY, _BELOW = range(3)
#: The frame of torch in which a thread waits for the backward pass, which autograd's own thread launches.
_BACKWARD = "_engine_run_backward"


class _Places:
    """Names of the lines that frames are at: ``train.py:41``, or ``train.py:41 > transformers/generation/utils.py:9``.

    The first part is the innermost line of the program, the second one the innermost line of a library that it uses.
    """

    def __init__(self) -> None:
        self.names: List[str] = []
        self._numbers: Dict[Any, int] = {}
        self._owners: Dict[types.CodeType, int] = {}
        paths = sysconfig.get_paths()
        self._libraries = tuple({paths["purelib"] + os.sep, paths["platlib"] + os.sep})
        own = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        self._below = (paths["stdlib"] + os.sep, own + os.sep)

    def number(self, frame: Optional[types.FrameType]) -> Tuple[int, bool]:
        """Return the number of the place of ``frame``, and whether a call of ``backward()`` lies in between."""
        library: Any = None
        is_backward = False
        while frame is not None:
            code = frame.f_code
            owner = self._owners.get(code)
            if owner is None:
                owner = self._owners[code] = self._find_owner(code.co_filename)
            if owner == _PROGRAM:
                break
            if owner == _LIBRARY and library is None:
                library = code, frame.f_lineno
            is_backward = is_backward or code.co_name == _BACKWARD
            frame = frame.f_back
        key = library, frame and (frame.f_code, frame.f_lineno)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.names)
            self.names.append(" > ".join(self._name(*at) for at in key[::-1] if at))
        return number, is_backward

    def _find_owner(self, path: str) -> int:
        if path.startswith("<") or f"{os.sep}torchinductor_" in path:
            return _BELOW  # generated code
        for folder in self._libraries:
            if path.startswith(folder):
                return _BELOW if path[len(folder) :].startswith(("torch" + os.sep, "triton" + os.sep)) else _LIBRARY
        if "site-packages" in path or "dist-packages" in path:
            return _BELOW if f"-packages{os.sep}torch{os.sep}" in path else _LIBRARY
        return _BELOW if path.startswith(self._below) else _PROGRAM

    def _name(self, code: types.CodeType, line: int) -> str:
        path = code.co_filename
        for folder in self._libraries:
            if path.startswith(folder):
                return f"{path[len(folder) :]}:{line}"
        # A file of the program is named as people name it, from the folder in which it was started.
        return f"{os.path.relpath(path) if path.startswith(os.getcwd() + os.sep) else os.path.basename(path)}:{line}"


# --- recording -------------------------------------------------------------------------------------------------------


class Host:
    """Records the host from the first chosen step to the last one. An error of it is noted, and the program goes on."""

    def __init__(self, given: HookSettings, record: HookRecord) -> None:
        self._settings, self._record = given, record
        self._places = _Places()
        self._is_on = False
        self._ended = threading.Event()
        self._steps: List[Tuple[int, int]] = []
        self._samples: List[Tuple[int, int, int, bool]] = []
        self._waits: List[Tuple[str, int, int, int, int, str]] = []
        self._thread: Optional[threading.Thread] = None
        self._switch_s = 0.0
        self._undo: List[Callable[[], None]] = []
        self._since: Dict[str, int] = {}

    def boundary(self, number: int) -> None:
        """Note when step ``number`` begins. The first chosen one begins the recording."""
        if self._settings.warmup <= number <= self._settings.last + 1 and not self._ended.is_set():
            if not self._is_on:
                self._guard(self._begin)
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

    def _guard(self, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:  # the program must go on
            self._record.error(error, "host")

    def _begin(self) -> None:
        self._is_on = True
        self._switch_s = sys.getswitchinterval()
        sys.setswitchinterval(min(_SWITCH_S, self._switch_s))
        self._watch()
        self._thread = threading.Thread(target=self._sample, name="profpipe-host", daemon=True)
        self._thread.start()

    def _finish(self) -> None:
        self._ended.set()
        sys.setswitchinterval(self._switch_s)
        for undo in self._undo:
            undo()
        if self._thread is not None:
            self._thread.join(1.0)
        path = self._settings.path(f"{self._settings.place}{os.getpid()}.host.json")
        samples, steps = list(self._samples), list(self._steps)
        names = ("time_ns", "thread", "place", "is_backward")
        content = {
            "pid": os.getpid(),
            "main_thread": threading.main_thread().native_id,
            "steps": {"step": [row[0] for row in steps], "time_ns": [row[1] for row in steps]},
            "places": self._places.names,
            "samples": {name: [row[column] for row in samples] for column, name in enumerate(names)},
            "waits": [list(row) for row in self._waits],
        }
        with open(f"{path}.partial", "w", encoding="utf-8") as file:
            json.dump(content, file)
        os.replace(f"{path}.partial", path)

    # --- samples -----------------------------------------------------------------------------------------------------

    def _sample(self) -> None:
        own = threading.get_ident()
        while not self._ended.wait(_PERIOD_S) and len(self._samples) < _MOST_SAMPLES:
            now = time.perf_counter_ns()
            threads = {thread.ident: thread.native_id for thread in threading.enumerate()}
            for ident, frame in sys._current_frames().items():
                if ident != own:
                    place, is_backward = self._places.number(frame)
                    self._samples.append((now, threads.get(ident) or 0, place, is_backward))

    # --- waits that have a name --------------------------------------------------------------------------------------

    def _watch(self) -> None:
        torch = sys.modules.get("torch")
        loader = sys.modules.get("torch.utils.data.dataloader")
        if loader is not None:
            kind = loader._BaseDataLoaderIter
            self._wrap(kind, "__next__", "DataLoader", lambda iterator, *_: f"{iterator._num_workers} workers")
        for owner, function in ((torch, "save"), (sys.modules.get("safetensors.torch"), "save_file")):
            if owner is not None:
                self._wrap(owner, function, "checkpoint")
        gc.callbacks.append(self._collecting)
        self._undo.append(lambda: gc.callbacks.remove(self._collecting))
        callbacks = getattr(sys.modules.get("torch._dynamo.callback"), "callback_handler", None)
        if callbacks is not None:
            begin, end = self._opened("compilation"), self._closed("compilation")
            callbacks.register_start_callback(begin)
            callbacks.register_end_callback(end)
            self._undo.append(lambda: callbacks.remove_start_callback(begin))
            self._undo.append(lambda: callbacks.remove_end_callback(end))

    def _wrap(self, owner: Any, name: str, kind: str, detail: Callable[..., str] = lambda *_: "") -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            begin = time.perf_counter_ns()
            try:
                return original(*args, **kwargs)
            finally:
                self._add(kind, begin, detail(*args))

        setattr(owner, name, call)
        self._undo.append(lambda: setattr(owner, name, original))

    def _opened(self, kind: str) -> Callable[..., None]:
        def begin(*_: Any) -> None:
            self._since[kind] = time.perf_counter_ns()

        return begin

    def _closed(self, kind: str) -> Callable[..., None]:
        def end(*_: Any) -> None:
            since = self._since.pop(kind, None)
            if since is not None:
                self._add(kind, since)

        return end

    def _collecting(self, phase: str, info: Dict[str, int]) -> None:
        if phase == "start":
            self._since["garbage collection"] = time.perf_counter_ns()
        elif "garbage collection" in self._since:
            self._add("garbage collection", self._since.pop("garbage collection"), f"generation {info['generation']}")

    def _add(self, kind: str, begin: int, detail: str = "") -> None:
        if self._is_on and len(self._waits) < _MOST_WAITS:
            place, _ = self._places.number(sys._getframe(1))
            self._waits.append((kind, begin, time.perf_counter_ns(), threading.get_native_id(), place, detail))
