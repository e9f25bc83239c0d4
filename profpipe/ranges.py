"""``annotate("forward")``: a range that the running profiler records.

The range is NVTX on CUDA, ROCTX on ROCm, ``record_function`` under torch.profiler, and nothing otherwise. The harness
chooses with ``use``. In any other process the first range chooses, by the profiler that profpipe or the user started;
a program only writes ``with annotate("forward"):``.

NVTX goes through ``torch.cuda.nvtx`` where torch has CUDA, which every nsys records. nsys 2022 and 2023 disable the
domain of PyPI's ``nvtx`` from 0.2.12 on, and lose its ranges. A CPU build of torch has no NVTX, so there PyPI's
package is used, pinned below 0.2.12.

This module works from Python 3.8 on, as a profiled program may have an older Python than profpipe.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from typing import Any, Callable, Optional
from urllib.parse import quote

#: A range with this prefix has a percent-encoded name, because torch's traces change some characters.
ENCODED_PREFIX = "profpipe%"

#: The range around each iteration of a case: ``profpipe:impl=fa2,seqlen=512``. Its instances count the iterations.
CASE_PREFIX = "profpipe:"

#: The range around a step, by its rule and number: ``profpipe.step:optimizer:7``.
STEP_PREFIX = "profpipe.step:"

#: The range around a call of a module, by its path and class: ``profpipe.module:GPT.h.0.mlp:MLP``.
MODULE_PREFIX = "profpipe.module:"

#: Steps that torch.profiler records with the ranges of modules, after the others.
MODULE_STEPS = 3

#: The range around each of them: ``profpipe.modules:optimizer:25``. Only the modules count there.
MODULES_PREFIX = "profpipe.modules:"
#: A range after each of these steps that came to its end.
MODULES_END = "profpipe.modules_end"

#: Calls of the outermost module before those that are steps, where no optimizer steps and the user did not ask for
#: calls. A program that makes no more is no loop.
CALLS_BEFORE_STEPS = 3

#: What a replay of a CUDA graph is called beside calls of modules.
REPLAY = "CUDAGraph"

#: Set by the runner for the process of a workload: the profiler that it runs under.
PROFILER_VARIABLE = "PROFPIPE_PROFILER"
#: The files of the changes of a program's processes (``profpipe.changes``), divided like the entries of PATH.
CHANGES_VARIABLE = "PROFPIPE_CHANGES"
#: What ``profpipe.hook.observe`` does beside noting: a JSON object.
OBSERVE_VARIABLE = "PROFPIPE_OBSERVE"

#: Opens a range and returns the function that closes it; None where nothing records.
Open = Callable[[str], Optional[Callable[[], object]]]

#: Variables by which profilers enter the processes that they start.
_NVTX_INJECTED = ("NVTX_INJECTION64_PATH", "NV_NSIGHT_INJECTION_TRANSPORT_TYPE", "NSYS_PROFILING_SESSION_ID")
_ROCM_INJECTED = ("ROCP_TOOL_LIB", "ROCP_TOOL_LIBRARIES", "ROCPROFILER_REGISTER_FORCE_LOAD")


def _nothing(name: str) -> None:
    return None


def _decide(name: str) -> Optional[Callable[[], object]]:
    _Backend.open = staticmethod(_find())
    return _Backend.open(name)


class _Backend:
    """How this process opens ranges; an attribute, so that ``annotate`` sees a later ``use``."""

    open: Open = staticmethod(_decide)
    #: Whether profpipe records all threads with torch.profiler. Only the thread that started it can see that.
    records_all_threads = False


class annotate:
    """Put a range around a block or a function, nested in the ranges around it on this thread.

    Where nothing is recorded, the range costs well under a microsecond.
    """

    __slots__ = ("_close", "_name")

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        self._close = _Backend.open(self._name)

    def __exit__(self, *_: object) -> None:
        if self._close is not None:
            self._close()

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``function`` with the range around each of its calls."""

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with annotate(self._name):
                return function(*args, **kwargs)

        return call


def use(profiler: str) -> str:
    """Choose the ranges for ``profiler``; return their name for the record.

    ``plain`` has none: a range costs about a microsecond, which would be charged to the workload.
    """
    choose = {"torch": _record_function, "nsys": _nvtx, "ncu": _nvtx, "rocprof": _roctx}.get(profiler)
    name, opener = choose() if choose else ("none", _nothing)
    _Backend.open = staticmethod(opener)
    return name


def _find() -> Open:
    """Return how ranges are opened in a process without the harness. Print once if profpipe's profiler gets none."""
    profiler = os.environ.get(PROFILER_VARIABLE)
    if profiler is None:
        profiler = _find_injected()
    elif profiler in ("nsys", "ncu", "rocprof"):
        try:
            name = use(profiler)
        except ImportError:
            name = "none"
        if name == "none":
            _Backend.open = staticmethod(_nothing)
            _warn(profiler)
        return _Backend.open
    if profiler == "plain":
        return _nothing
    if profiler in ("nsys", "rocprof"):
        try:
            use(profiler)
        except ImportError:  # nothing was asked of profpipe here
            return _nothing
        return _Backend.open
    return lambda name: record(name) if is_profiled() else None


def _find_injected() -> str:
    """Return the profiler that the user started without profpipe, as far as its variables show."""
    if any(name in os.environ for name in _NVTX_INJECTED):
        return "nsys"
    return "rocprof" if any(name in os.environ for name in _ROCM_INJECTED) else ""


_MISSING = {
    "rocprof": "no libroctx64 is here. It belongs to ROCm",
    "nsys": "torch has no CUDA here, and the package nvtx is missing. Install 'nvtx<0.2.12'",
}


def _warn(profiler: str) -> None:
    why = _MISSING["rocprof" if profiler == "rocprof" else "nsys"]
    print(f"profpipe: annotate() records nothing under {profiler}: {why}.", file=sys.stderr)


# --- ranges on the stack of their thread -----------------------------------------------------------------------------


def _nvtx() -> tuple[str, Open]:
    name, push, pop = _nvtx_library("range_push", "range_pop", "push_range", "pop_range")

    def open_range(text: str) -> Callable[[], object]:
        push(text)
        return pop

    return name, open_range


def _nvtx_library(first: str, second: str, first_of_package: str, second_of_package: str) -> tuple[str, Any, Any]:
    """Return the name of the library, and two functions of it. Raises ImportError where there is none."""
    try:
        import torch

        if torch.version.cuda is not None:
            return "torch.cuda.nvtx", getattr(torch.cuda.nvtx, first), getattr(torch.cuda.nvtx, second)
    except ImportError:
        pass  # a workload may do without torch
    import nvtx

    name = f"nvtx {nvtx.__version__}" if hasattr(nvtx, "__version__") else "nvtx"
    return name, getattr(nvtx, first_of_package), getattr(nvtx, second_of_package)


def _roctx() -> tuple[str, Open]:
    soname, library = _roctx_library()
    if library is None:
        return "none", _nothing
    library.roctxRangePushA.argtypes = [ctypes.c_char_p]

    def open_range(text: str) -> Callable[[], object]:
        library.roctxRangePushA(text.encode())
        pop: Callable[[], object] = library.roctxRangePop
        return pop

    return soname, open_range


def roctx_control() -> Any:
    """Return the ROCTX library whose roctxProfilerResume and roctxProfilerPause rocprofv3 obeys, None without one."""
    _, library = _roctx_library()
    for name in ("roctxProfilerResume", "roctxProfilerPause"):
        if not hasattr(library, name):  # the older library has none
            return None
        # The argument is a thread's id, 0 for all.
        getattr(library, name).argtypes = [ctypes.c_uint64]
    return library


def _roctx_library() -> tuple[str, Any]:
    """Load ROCTX through its C interface: the library of rocprofv3 first, then the older one.

    Profilers before rocprofv3 record ``libroctx64`` only; the runner sets ``PROFPIPE_ROCTX`` for them.
    """
    new, old = ("librocprofiler-sdk-roctx.so.1", "librocprofiler-sdk-roctx.so"), ("libroctx64.so.4", "libroctx64.so")
    for soname in old if os.environ.get("PROFPIPE_ROCTX") == "libroctx64" else (*new, *old):
        try:
            return soname, ctypes.CDLL(soname)
        except OSError:
            continue
    return "none", None


def _record_function() -> tuple[str, Open]:
    import torch.profiler  # noqa: F401 - where it is missing, the choice fails and not the first range

    return "record_function", record


def record(name: str) -> Callable[[], object]:
    """Open a range for torch.profiler; return the function that closes it."""
    from torch.profiler import record_function

    entered = record_function(encode_name(name))
    entered.__enter__()
    return functools.partial(entered.__exit__, None, None, None)


def record_all_threads(is_on: bool) -> None:
    """Note that torch.profiler records all threads of this process from now on, or no longer."""
    _Backend.records_all_threads = is_on


def is_profiled() -> bool:
    """Return True if torch.profiler is on now, whoever started it. Costs a tenth of a microsecond."""
    try:
        return _Backend.records_all_threads or bool(sys.modules["torch"].autograd._profiler_enabled())
    except (KeyError, AttributeError):  # torch is not imported, or not to its end
        return False


# --- ranges that may begin and end anywhere --------------------------------------------------------------------------


def free_ranges(profiler: str = "") -> Optional[Open]:
    """Return how to open a range that is no part of the stack of its thread, None where no NVTX or ROCTX is recorded.

    Without ``profiler``, the one that the user started without profpipe counts. Under torch.profiler any range may
    begin and end anywhere.
    """
    profiler = profiler or _find_injected()
    if profiler == "nsys":
        return _free_nvtx()
    return _free_roctx() if profiler == "rocprof" else None


def _free_nvtx() -> Optional[Open]:
    try:
        _, start, end = _nvtx_library("range_start", "range_end", "start_range", "end_range")
    except ImportError:
        return None
    return lambda name: functools.partial(end, start(name))


def _free_roctx() -> Optional[Open]:
    _, library = _roctx_library()
    if library is None:
        return None
    library.roctxRangeStartA.argtypes, library.roctxRangeStartA.restype = [ctypes.c_char_p], ctypes.c_uint64
    library.roctxRangeStop.argtypes = [ctypes.c_uint64]
    return lambda name: functools.partial(library.roctxRangeStop, library.roctxRangeStartA(name.encode()))


@functools.lru_cache(maxsize=1024)
def encode_name(name: str) -> str:
    """Encode ``name`` so that a torch trace keeps it; the parser of the trace decodes it.

    torch writes ``unknown`` for a name that is not printable ASCII and ``/`` for a backslash, and drops newlines; a
    quote breaks its JSON.
    """
    if name.isascii() and name.isprintable() and not {'"', "\\"} & set(name):
        return name
    return ENCODED_PREFIX + quote(name, safe=" !#$&'()*+,/:;<=>?@[]^`{|}", errors="surrogatepass")
