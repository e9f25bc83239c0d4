"""This process: what the record says about it, and its end."""

from __future__ import annotations

import sys
from typing import Any, Callable, Dict

from profpipe.hook import clock, settings
from profpipe.hook.settings import Settings


def describe(given: Settings) -> Dict[str, Any]:
    """Return the fields of the first line of the record."""
    torch = sys.modules.get("torch")
    about: Dict[str, Any] = {
        "profiler": given.profiler,
        "rank": settings.rank(),
        "python": sys.version.split()[0],
        "warmup": given.warmup,
        "torch": str(getattr(torch, "__version__", "")),
    }
    distributed = getattr(torch, "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        about["rank"] = distributed.get_rank()
    if given.node:
        about["node"] = given.node
    library = clock.cuda()
    if library is not None:
        about["device_name"] = library.get_device_name(library.current_device())
    return about


def at_end_of_multiprocessing(finish: Callable[[], None]) -> None:
    """Have ``finish`` called in a process of multiprocessing, which ends without ``atexit``.

    While a process is forked it is not known yet to be one, and forgets such functions before it begins its work.
    """
    util = sys.modules.get("multiprocessing.util")
    if util is not None:
        _register(finish)
        util.register_after_fork(finish, _register)


def _register(finish: Callable[[], None]) -> None:
    process = sys.modules.get("multiprocessing.process")
    if process is not None and process.parent_process() is not None:
        sys.modules["multiprocessing.util"].Finalize(None, finish, exitpriority=0)
