"""profpipe: run GPU workloads under several profilers and get one table that can be trusted.

A program marks its work with ``from profpipe import step, steps, annotate``, with or without profpipe running it.
"""

from __future__ import annotations

__version__ = "0.1.0"

__all__ = ["annotate", "step", "steps"]


def __getattr__(name: str) -> object:
    """Import a mark of a program at its first use: every command of profpipe imports this module."""
    if name in ("step", "steps"):
        from profpipe.hook import steps

        return getattr(steps, name)
    if name == "annotate":
        from profpipe.ranges import annotate

        return annotate
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
