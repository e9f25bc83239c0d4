"""``annotate("forward")``: a range that the running profiler records.

The range is NVTX on CUDA, ROCTX on ROCm, ``record_function`` under torch.profiler, and nothing otherwise. The harness
chooses once with ``use``; a workload only writes ``with annotate("forward"):``.

NVTX goes through ``torch.cuda.nvtx`` where torch has CUDA, which every nsys records. nsys 2022 and 2023 disable the
domain of PyPI's ``nvtx`` from 0.2.12 on, and lose its ranges. A CPU build of torch has no NVTX, so there PyPI's
package is used, pinned below 0.2.12.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

#: As results.schema.ENCODED_PREFIX, which this process does not import, because the schema needs pandas.
ENCODED_PREFIX = "profpipe%"

Push = Callable[[str], object]
Pop = Callable[[], object]


def _nothing(*_: Any) -> None:
    return None


class _Backend:
    """The pair of functions of this process; attributes, so that ``annotate`` sees a later ``use``."""

    push: Push = staticmethod(_nothing)
    pop: Pop = staticmethod(_nothing)


@contextmanager
def annotate(name: str) -> Iterator[None]:
    """Put a range around the block, nested in the ranges around it on this thread."""
    push, pop = _Backend.push, _Backend.pop
    push(name)
    try:
        yield
    finally:
        pop()


def use(profiler: str) -> str:
    """Choose the ranges for ``profiler``; return their name for the record.

    ``plain`` has none: a range costs about a microsecond, which would be charged to the workload.
    """
    choose = {"torch": _record_function, "nsys": _nvtx, "ncu": _nvtx, "rocprof": _roctx}.get(profiler)
    name, _Backend.push, _Backend.pop = choose() if choose else ("none", _nothing, _nothing)
    return name


def _nvtx() -> tuple[str, Push, Pop]:
    try:
        import torch

        if torch.version.cuda is not None:
            return "torch.cuda.nvtx", torch.cuda.nvtx.range_push, torch.cuda.nvtx.range_pop
    except ImportError:
        pass  # a workload may do without torch
    import nvtx

    return f"nvtx {nvtx.__version__}" if hasattr(nvtx, "__version__") else "nvtx", nvtx.push_range, nvtx.pop_range


def _roctx() -> tuple[str, Push, Pop]:
    """Load ROCTX through its C interface: the library of rocprofv3 first, then the older one.

    Profilers before rocprofv3 record ``libroctx64`` only; the runner sets ``PROFPIPE_ROCTX`` for them.
    """
    new, old = ("librocprofiler-sdk-roctx.so.1", "librocprofiler-sdk-roctx.so"), ("libroctx64.so.4", "libroctx64.so")
    for soname in old if os.environ.get("PROFPIPE_ROCTX") == "libroctx64" else (*new, *old):
        try:
            library = ctypes.CDLL(soname)
        except OSError:
            continue
        library.roctxRangePushA.argtypes = [ctypes.c_char_p]
        return soname, functools.partial(_push_roctx, library), library.roctxRangePop
    return "none", _nothing, _nothing


def _push_roctx(library: ctypes.CDLL, name: str) -> None:
    library.roctxRangePushA(name.encode())


def _record_function() -> tuple[str, Push, Pop]:
    from torch.profiler import record_function

    stack: list[Any] = []

    def push(name: str) -> None:
        stack.append(record_function(encode_name(name)))
        stack[-1].__enter__()

    def pop() -> None:
        stack.pop().__exit__(None, None, None)

    return "record_function", push, pop


@functools.lru_cache(maxsize=1024)
def encode_name(name: str) -> str:
    """Encode ``name`` so that a torch trace keeps it; the parser of the trace decodes it.

    torch writes ``unknown`` for a name that is not printable ASCII and ``/`` for a backslash, and drops newlines; a
    quote breaks its JSON.
    """
    if name.isascii() and name.isprintable() and not {'"', "\\"} & set(name):
        return name
    return ENCODED_PREFIX + quote(name, safe=" !#$&'()*+,/:;<=>?@[]^`{|}", errors="surrogatepass")
