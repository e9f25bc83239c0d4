"""torch.profiler in this process: started, written to a file, and never at the same time as the program's own."""

from __future__ import annotations

import functools
import os
import sys
from typing import Any, Callable

from profpipe.hook import clock, settings
from profpipe.hook.record import Record
from profpipe.hook.settings import Settings

_OTHER_PROFILER = (
    "the program uses torch.profiler itself, and a process has one profiler: profpipe's was not used. "
    "Name the trace that the program writes under `collect:`, or turn its profiler off"
)


def new(given: Settings, **options: Any) -> Any:
    """Return a ``torch.profiler.profile`` as the user asked for it, which records the GPU where the program uses it."""
    library = sys.modules["torch"].profiler
    activities = [library.ProfilerActivity.CPU]
    if clock.cuda() is not None:
        activities.append(library.ProfilerActivity.CUDA)
    return library.profile(
        activities=activities, with_stack=given.with_stack, record_shapes=given.record_shapes, **options
    )


def export(profile: Any, given: Settings) -> None:
    """Write the trace of this process."""
    name = f"{given.stem}.{given.place}{_process_name()}.pt.trace.json.gz"
    # Renamed when complete, so that the trace of a killed process is not read.
    partial = os.path.join(given.folder, f"partial-{name}")
    profile.export_chrome_trace(partial)
    os.replace(partial, os.path.join(given.folder, name))


def _process_name() -> str:
    """Return the part of a file's name that stands for this process: its rank, or its id."""
    number = settings.rank()
    return f"rank{number}" if number is not None else str(os.getpid())


def make_room_for_others(is_own: Callable[[Any], bool], make_room: Callable[[], bool], record: Record) -> None:
    """Call ``make_room`` when the program starts torch.profiler itself: a process has one profiler.

    ``is_own`` says whether a profiler is profpipe's. ``make_room`` returns whether profpipe's was given up.
    """
    kind = sys.modules["torch"].autograd.profiler.profile

    def before(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(profiler: Any, *args: Any, **kwargs: Any) -> Any:
            if not is_own(profiler):
                try:
                    if make_room():
                        note_other(record)
                except Exception as error:  # the program's own profiler must start all the same
                    record.error(error, "torch.profiler of the program")
            return original(profiler, *args, **kwargs)

        return call

    for method in ("_prepare_trace", "__enter__"):
        original = getattr(kind, method, None)
        if original is not None:
            setattr(kind, method, before(original))


def note_other(record: Record) -> None:
    record.note(_OTHER_PROFILER)
