"""What a program showed under plain decides how the other profilers record it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from profpipe.job import Job, Missing
from profpipe.profilers import find_traits
from profpipe.runner import artifacts

#: A program without steps that took at most so many seconds under plain is recorded whole.
_WHOLE_S = 60.0
#: torch.profiler records so many seconds of a program that is recorded whole.
_MOST_S = 30.0


def adapt(job: Job, plain: Job, failure: str, seconds: float) -> Job:
    """Return ``job``, a command under a profiler, as the same command under ``plain`` requires it.

    ``failure`` says how the command failed under plain. It would fail as well under the others, after as long. Where no
    process imports torch there is no hook to wait for. Where no optimizer stepped, calls of the model are the steps.
    A program without steps, which took ``seconds`` under plain, is recorded whole, or for a span in its middle.
    """
    if failure:
        remedy = "Mend it, then start a new run."
        return replace(
            job, tool=Missing(job.profiler, f"the program failed under plain: {failure.rstrip('.')}", remedy)
        )
    if artifacts.starts_no_python(plain):
        return _bounded(_remove_hook(job, "the program starts no Python"), seconds)
    if artifacts.imports_no_torch(plain):
        return _bounded(_remove_hook(job, "the program imports no torch"), seconds)
    if (steps := artifacts.steps_of_calls(plain, job.profiler)) is not None:
        return replace(job, options={**job.options, "steps": steps})
    if job.is_hooked and not job.options.get("collect") and not artifacts.has_steps(plain):
        return _bounded(job, seconds)
    return job


def _bounded(job: Job, seconds: float) -> Job:
    """Return ``job`` so that it records the whole program, or a span in its middle where it is long."""
    span_s = find_traits(job.profiler).span_s
    if isinstance(job.tool, Missing) or span_s is None or job.options.get("capture") or job.nodes > 1:
        return job
    span: dict[str, Any] = {"after_s": float((seconds - span_s) // 2), "for_s": span_s}
    if seconds <= _WHOLE_S:
        span = {"after_s": 0.0, "for_s": _MOST_S, "whole": True}
    goes_on = bool(span.get("whole")) or not job.options["steps"]["stop"]
    chosen = {**span, "on_gpu": job.on_gpu, "goes_on": goes_on}
    return replace(job, options={**job.options, "capture": chosen})


def _remove_hook(job: Job, why: str) -> Job:
    traits = find_traits(job.profiler)
    if traits.needs_torch and not job.options.get("collect"):
        what = f"{why}, and {traits.title or job.profiler} records torch only"
        return replace(job, tool=Missing(job.profiler, what, "Use nsys."))
    if traits.needs_hook and not traits.needs_torch:
        return job
    return replace(job, options={**job.options, "hook": False})
