"""``annotate("forward")``: one range that whichever profiler is watching records.

NVTX on CUDA, ROCTX on ROCm, ``record_function`` under torch.profiler, nothing otherwise. Which of them is decided once,
by the harness, with ``use``; a workload only says ``with annotate("forward"):``.

NVTX goes through ``torch.cuda.nvtx`` where torch has CUDA: every nsys records it, while the ranges of PyPI's ``nvtx``
from 0.2.12 on are lost under nsys 2022 and 2023, which tell it that the domain is off. A CPU build of torch has no
NVTX, so there PyPI's package is used, pinned below 0.2.12.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

#: As tables.ENCODED_PREFIX, which this process does not import: it would bring pandas.
ENCODED_PREFIX = "profpipe%"

Push = Callable[[str], object]
Pop = Callable[[], object]


def _nothing(*_: Any) -> None:
    return None


class _Backend:
    """The pair in use in this process. One object, so that ``annotate`` imported early sees a later ``use``."""

    push: Push = staticmethod(_nothing)
    pop: Pop = staticmethod(_nothing)


@contextmanager
def annotate(name: str) -> Iterator[None]:
    """A range around the block, nested in those around it on this thread."""
    push, pop = _Backend.push, _Backend.pop
    push(name)
    try:
        yield
    finally:
        pop()


def use(profiler: str) -> str:
    """Chooses what ``annotate`` emits for ``profiler``; returns its name for the record.

    ``plain`` emits nothing: a range costs about a microsecond, which is not the workload's.
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
        pass  # a workload need not use torch
    import nvtx

    return f"nvtx {nvtx.__version__}" if hasattr(nvtx, "__version__") else "nvtx", nvtx.push_range, nvtx.pop_range


def _roctx() -> tuple[str, Push, Pop]:
    """ROCTX by its C interface: the library of rocprofv3 first, then the older one.

    The generations before see ``libroctx64`` only; where they run, ``PROFPIPE_ROCTX`` says so.
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
        stack.append(record_function(_spelled(name)))
        stack[-1].__enter__()

    def pop() -> None:
        stack.pop().__exit__(None, None, None)

    return "record_function", push, pop


@functools.lru_cache(maxsize=1024)
def _spelled(name: str) -> str:
    """``name`` as a trace of torch keeps it; its parser takes the encoding off again.

    torch writes ``unknown`` in place of any name that is not printable ASCII and ``/`` for a backslash, drops newlines,
    and a quote ends its JSON.
    """
    if name.isascii() and name.isprintable() and not {'"', "\\"} & set(name):
        return name
    return ENCODED_PREFIX + quote(name, safe=" !#$&'()*+,/:;<=>?@[]^`{|}", errors="surrogatepass")
