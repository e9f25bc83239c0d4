"""The profilers: each a module that meets ``job.Profiler``; it builds commands and never runs them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from profpipe.job import Profiler
from profpipe.profilers import ncu, nsys, plain, rocprof, torch

#: In the order in which they run: the undisturbed times first, the slowest tool last.
ALL: Final[Mapping[str, Profiler]] = {
    "plain": plain,
    "torch": torch,
    "nsys": nsys,
    "ncu": ncu,
    "rocprof": rocprof,
}
