"""profpipe: run GPU workloads under several profilers and get one table that can be trusted.

A program marks its work with ``from profpipe import step, steps, annotate``, with or without profpipe running it.
``profpipe.read`` and ``profpipe.compare`` return results and recordings as pandas frames.
"""

from __future__ import annotations

__version__ = "1.0.0"

__all__ = ["annotate", "compare", "read", "step", "steps"]


def __getattr__(name: str) -> object:
    """Import what a program uses at its first use: every command of profpipe imports this module."""
    if name in ("compare", "read"):
        from profpipe.commands import api

        return getattr(api, name)
    if name in ("step", "steps"):
        from profpipe.hook import steps

        return getattr(steps, name)
    if name == "annotate":
        from profpipe.ranges import annotate

        return annotate
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
