"""What a program showed under plain decides how the other profilers record it."""

from __future__ import annotations

from dataclasses import replace

from profpipe.config.settings import ChosenSteps
from profpipe.job import Job, Missing, Span
from profpipe.profilers import find_traits
from profpipe.runner import artifacts

#: A program without steps that took at most so many seconds under plain is recorded whole.
_WHOLE_S = 60.0
#: torch.profiler records so many seconds of a program that is recorded whole.
_MOST_S = 30.0


#: torch.profiler records steps of so many seconds, and at least so many steps.
_STEPS_S, _FEWEST_STEPS = 0.5, 5

#: These profilers record nothing after the chosen steps.
_OF_STEPS = ("torch", "nsys", "memory")


def adapt(job: Job, plain: Job, failure: str, seconds: float, ended_well: bool = False) -> Job:
    """Return ``job``, a command under a profiler, as the same command under ``plain`` requires it.

    ``failure`` says how the command failed under plain, where it did not end well. It would fail as well under the
    others, after as long. Where no process imports torch there is no hook to wait for. Where no optimizer stepped,
    calls of the model are the steps. A program without steps, which took ``seconds`` under plain, is recorded whole, or
    for a span in its middle.
    """
    if failure:
        remedy = "Fix it, then start a new run."
        why = f"the program failed under plain: {failure.rstrip('.')}"
        return replace(job, tool=Missing(job.profiler, why, remedy))
    if artifacts.starts_no_python(plain):
        return _bounded(_remove_hook(job, "the program starts no Python"), seconds)
    if artifacts.imports_no_torch(plain):
        return _bounded(_remove_hook(job, "the program imports no torch"), seconds)
    if (steps := artifacts.steps_of_calls(plain, job.profiler)) is not None:
        job = job.change_settings(steps=steps)
    elif job.is_hooked and not job.settings.collect and not artifacts.has_steps(plain):
        return _bounded(job, seconds)
    job = _record_fewer(_shorten_warmup(job, plain), plain)
    return _end_after_steps(job, plain) if ended_well else job


def _shorten_warmup(job: Job, plain: Job) -> Job:
    """Return ``job`` so that half of the steps of a short program are recorded, where the user gives no warm-up."""
    steps, made = job.settings.steps, artifacts.count_steps(plain)
    wanted = 1 if job.profiler == "ncu" else steps.measure
    if steps.forward or steps.stop or "warmup" in steps.model_fields_set or made >= steps.warmup + wanted:
        return job
    return job.change_settings(steps=steps.model_copy(update={"warmup": min(steps.warmup, max(made // 2, 1))}))


def _record_fewer(job: Job, plain: Job) -> Job:
    """Return ``job`` so that torch.profiler records half a second of steps, where the user gives no number of them.

    A trace of 20 steps of 10,000 operators takes half a minute to write, and as long to read.
    """
    steps = job.settings.steps
    if job.profiler != "torch" or steps.forward or {"measure", "stride"} & steps.model_fields_set:
        return job
    measure = artifacts.count_steps_within(plain, _STEPS_S, least=_FEWEST_STEPS, most=steps.measure)
    return job.change_settings(steps=steps.model_copy(update={"measure": measure}))


def _end_after_steps(job: Job, plain: Job) -> Job:
    """Return ``job`` so that its program, which plain ran to its end, ends after the steps where nothing is lost."""
    given, launch = plain.settings, job.launch
    is_possible = given.steps.stop is None and job.profiler in _OF_STEPS and launch.nodes * launch.tasks_per_node == 1
    if not is_possible or not job.is_hooked or given.collect or not artifacts.makes_equal_steps(plain):
        return job
    return job.change_settings(steps=ChosenSteps.of(job.settings.steps, stop=True, is_stop_chosen=True))


def _bounded(job: Job, seconds: float) -> Job:
    """Return ``job`` so that it records the whole program, or a span in its middle where it is long."""
    span_s = find_traits(job.profiler).span_s
    if isinstance(job.tool, Missing) or span_s is None or job.settings.capture or job.launch.nodes > 1:
        return job
    is_whole = seconds <= _WHOLE_S
    after_s, for_s = (0.0, _MOST_S) if is_whole else (float((seconds - span_s) // 2), span_s)
    goes_on = is_whole or not job.settings.steps.stop
    span = Span(after_s, for_s, is_chosen=True, goes_on=goes_on, is_whole=is_whole, on_gpu=job.launch.on_gpu)
    return job.change_settings(capture=span)


def _remove_hook(job: Job, why: str) -> Job:
    traits = find_traits(job.profiler)
    if traits.needs_torch and not job.settings.collect:
        what = f"{why}, and {traits.title or job.profiler} records torch only"
        return replace(job, tool=Missing(job.profiler, what, "Use nsys."))
    if traits.needs_hook and not traits.needs_torch:
        return job
    return job.change_settings(hook=False)
