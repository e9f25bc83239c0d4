"""What a program showed under plain decides how the other profilers record it."""

from __future__ import annotations

from dataclasses import replace

from profpipe.job import Job, Missing
from profpipe.runner import artifacts


def adapt(job: Job, plain: Job, failure: str) -> Job:
    """Return ``job``, a command under a profiler, as the same command under ``plain`` requires it.

    ``failure`` says how the command failed under plain. It would fail as well under the others, after as long. Where no
    process imports torch there is no hook to wait for. Where no optimizer stepped, calls of the model are the steps.
    """
    if failure:
        remedy = "Mend it, then start a new run."
        return replace(
            job, tool=Missing(job.profiler, f"the program failed under plain: {failure.rstrip('.')}", remedy)
        )
    if artifacts.starts_no_python(plain):
        return _without_hook(job, "the program starts no Python")
    if artifacts.imports_no_torch(plain):
        return _without_hook(job, "the program imports no torch")
    if (steps := artifacts.steps_of_calls(plain, job.profiler)) is not None:
        return replace(job, options={**job.options, "steps": steps})
    return job


def _without_hook(job: Job, why: str) -> Job:
    if job.profiler == "torch" and not job.options.get("collect"):
        return replace(job, tool=Missing(job.profiler, f"{why}, and torch.profiler records torch only", "Use nsys."))
    return replace(job, options={**job.options, "hook": False})
