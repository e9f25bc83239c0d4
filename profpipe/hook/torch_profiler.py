"""torch.profiler in this process: started, written to a file, and never at the same time as one of the program."""

from __future__ import annotations

import functools
import gzip
import os
import shutil
import sys
from typing import Any, Callable, Dict

from profpipe.hook import clock, settings
from profpipe.hook.record import HookRecord
from profpipe.hook.settings import HookSettings

#: The runner looks for the first words where a process left no trace.
_NOT_USED = "the program uses torch.profiler itself, and a process has one profiler: profpipe's was not used"
_TAKEN = "The trace is the one that the program's own torch.profiler recorded"


def new(given: HookSettings, **options: Any) -> Any:
    """Return a ``torch.profiler.profile`` as the user asked for it, which records the GPU where the program uses it."""
    library = sys.modules["torch"].profiler
    activities = [library.ProfilerActivity.CPU]
    if clock.cuda() is not None:
        activities.append(library.ProfilerActivity.CUDA)
    return library.profile(
        activities=activities, with_stack=given.with_stack, record_shapes=given.record_shapes, **options
    )


def all_threads() -> Dict[str, Any]:
    """Return the option with which torch.profiler records all threads; nothing where torch is too old for it."""
    try:
        config = sys.modules["torch"].profiler._ExperimentalConfig(profile_all_threads=True)
    except (AttributeError, TypeError):
        return {}
    return {"experimental_config": config}


def export(profile: Any, given: HookSettings) -> None:
    """Write the trace of this process."""
    # Renamed when complete, so that the trace of a killed process is not read.
    partial = os.path.join(given.folder, f"partial-{_trace_name(given)}")
    profile.export_chrome_trace(partial)
    os.replace(partial, os.path.join(given.folder, _trace_name(given)))


def _trace_name(given: HookSettings) -> str:
    """Return the name of this process's trace, with its rank or its id."""
    number = settings.rank()
    process = f"rank{number}" if number is not None else str(os.getpid())
    return f"{given.stem}.{given.place}{process}.pt.trace.json.gz"


class Others:
    """The program's torch.profiler: profpipe's makes room for it, for a process has one profiler.

    ``is_own`` says whether a profiler is profpipe's. ``make_room`` is called when the program starts another one, and
    returns whether profpipe's was given up. Then the first trace that the program exports is profpipe's trace too, else
    the last one that it recorded: torch writes a trace only once.
    """

    def __init__(
        self, given: HookSettings, record: HookRecord, is_own: Callable[[Any], bool], make_room: Callable[[], bool]
    ) -> None:
        self._settings, self._record = given, record
        self._is_own, self._make_room = is_own, make_room
        self.is_wanted = self._is_over = False
        #: The profiler whose trace is neither written nor dropped, and the one that profpipe wrote.
        self._stopped: Any = None
        self._written: Any = None
        kind = sys.modules["torch"].autograd.profiler.profile
        self._export = kind.export_chrome_trace
        wrappers = {
            "_prepare_trace": self._starting, "__enter__": self._starting, "__exit__": self._stopping,
            "export_chrome_trace": self._exporting,
        }  # fmt: skip
        for method, wrapper in wrappers.items():
            original = getattr(kind, method, None)
            if original is not None:
                setattr(kind, method, functools.wraps(original)(wrapper(original)))

    def want(self) -> None:
        """Take the program's trace in place of profpipe's."""
        self.is_wanted = True
        self._record.note(_NOT_USED)

    def finish(self) -> None:
        """Write the trace that the program recorded last, if it has written none."""
        self._is_over = True
        if self._stopped is not None:
            self._write()

    def _write(self) -> None:
        profiler, self._stopped = self._stopped, None
        path = os.path.join(self._settings.folder, f"partial-{os.getpid()}.json")
        self._export(profiler, path)
        self._written = profiler
        self._take(path)
        os.remove(path)

    def _take(self, path: str) -> None:
        """Make a copy of the trace in ``path`` the trace of this process."""
        name = _trace_name(self._settings)
        partial = os.path.join(self._settings.folder, f"partial-{name}")
        with open(path, "rb") as trace, (open if _is_zipped(path) else gzip.open)(partial, "wb") as copy:
            shutil.copyfileobj(trace, copy)
        os.replace(partial, os.path.join(self._settings.folder, name))
        self.is_wanted, self._stopped = False, None
        self._record.note(_TAKEN)

    def _guard(self, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:  # the program's profiler must work all the same
            self._record.error(error, "torch.profiler of the program")

    def _starting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(profiler: Any, *args: Any, **kwargs: Any) -> Any:
            def act() -> None:
                if self._make_room():
                    self.want()

            if not self._is_own(profiler):
                self._guard(act)
            return original(profiler, *args, **kwargs)

        return call

    def _stopping(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(profiler: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(profiler, *args, **kwargs)
            if self.is_wanted and not self._is_own(profiler) and getattr(profiler, "kineto_results", None) is not None:
                self._stopped = profiler
                if self._is_over:  # profpipe ends the program, whose profiler was still on
                    self._guard(self._write)
            return result

        return call

    def _exporting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(profiler: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
            if profiler is self._written:
                trace_path = os.path.join(self._settings.folder, _trace_name(self._settings))
                with gzip.open(trace_path) as trace, open(path, "wb") as copy:
                    shutil.copyfileobj(trace, copy)
                return None
            result = original(profiler, path, *args, **kwargs)
            if self.is_wanted and not self._is_own(profiler):
                self._guard(lambda: self._take(os.fspath(path)))
            return result

        return call


def _is_zipped(path: str) -> bool:
    with open(path, "rb") as file:
        return file.read(2) == b"\x1f\x8b"
