"""The profilers: modules that implement ``job.Profiler``. They build commands and never run them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from profpipe.job import Profiler
from profpipe.profilers import ncu, nsys, plain, rocprof, torch

#: In the order in which they run: times without a profiler first, the slowest tool last.
ALL: Final[Mapping[str, Profiler]] = {
    "plain": plain,
    "torch": torch,
    "nsys": nsys,
    "ncu": ncu,
    "rocprof": rocprof,
}
