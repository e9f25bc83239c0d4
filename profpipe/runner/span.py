"""The end of a command that would not end by itself: ``capture: {after_s, for_s}`` says when."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from profpipe.job import Command, Job


def is_over(command: Command, job: Job, seconds: float) -> bool:
    """Return True if the runner must end the process of ``command``, which has run for ``seconds``.

    The start-up hook writes its traces after the span, so the processes that record are waited for.
    """
    if command.ends_after_s is None or command.is_ended_by_tool or seconds < command.ends_after_s:
        return False
    return not any(map(_is_recording, job.records))


def _is_recording(path: Path) -> bool:
    """Return True if the living process that writes this file of the hook has not finished it."""
    text = path.read_text(encoding="utf-8", errors="replace")
    if '{"hook": "span"' not in text or '{"hook": "finished"' in text:
        return False
    with suppress(ValueError, ProcessLookupError):
        os.kill(int(path.name.split(".")[-2]), 0)
        return True
    return False
