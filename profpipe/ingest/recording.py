"""What one file recorded, event by event, as every parser with a function ``recording`` gives it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from profpipe.ingest import attribution
from profpipe.ingest.groupby import Int64s, Ints
from profpipe.ingest.steps.operations import Calls, Operations


@dataclass(frozen=True)
class Recording:
    """The operations of the GPUs, the calls and ranges of the host, and what joins them; times in ns on one clock.

    ``case`` indexes ``cases`` for each operation, ``call`` indexes ``calls``, -1 where the call is not in the file.
    ``waits`` are the calls in which the host waited for the GPU. ``pids`` turns numbers of processes into process ids,
    ``tids`` the threads of ``ranges`` into thread ids; both are negative where they are unknown. ``latest`` is the end
    that the parser gave to ranges without one. ``offset_ns`` leads from the clock of the file to one that files of
    several processes share.
    """

    operations: Operations
    case: Ints
    cases: Sequence[str]
    call: Ints
    calls: Calls
    ranges: attribution.Ranges
    waits: Calls
    pids: Callable[[Int64s], Any]
    tids: Callable[[Int64s], Any]
    latest: int | None = None
    offset_ns: int = 0
