"""Jobs for tests, from flat settings: those of a job, of its launch and of its workload."""

from dataclasses import fields, replace
from typing import Any

from profpipe.config.settings import ChosenSteps, Ncu, Timing, TorchProfiler
from profpipe.job import Case, GuidedKernels, Job, JobSettings, Launch, Span, Tool

_LAUNCH = {field.name for field in fields(Launch)}
_SETTINGS = {field.name for field in fields(JobSettings)}


def read_options(options):
    """Return the fields of JobSettings and the kernels for ``options``, which are as in cases.json."""
    settings = {"hook": False, "skip_larger_after_oom": False, **options}
    ncu = {"sections": (), "exclude": "", **options.get("ncu", {})}
    chosen = {name: ncu.pop(name) for name in ("pattern", "invocations", "chosen") if name in ncu}
    settings |= {"ncu": Ncu(**ncu), "timing": Timing(**options.get("timing", {}))}
    settings |= {"steps": ChosenSteps(**options.get("steps", {})), "torch": TorchProfiler(**options.get("torch", {}))}
    if span := options.get("capture"):
        names = {"whole": "is_whole"}
        span = {names.get(name, name): value for name, value in span.items()}
        settings["capture"] = Span(**span, is_chosen="goes_on" in span)
    return settings, GuidedKernels(**chosen) if chosen else None


def make_job(workload="w", profiler="plain", cases=(), folder=None, tool=None, python="python", cwd=None, **given):
    """Return a job; ``given`` are other fields of the job, of its launch and of its settings."""
    launch = Launch(folder, python, cwd)
    settings, guided = read_options({})
    cases, tool = cases or (Case("default", {}),), tool or Tool(profiler, "")
    return change(Job(workload, profiler, cases, tool, JobSettings(**settings), launch, guided=guided), **given)


def change(job, **given):
    """Return the job with other values of its fields, of its launch and of its settings."""
    launch = replace(job.launch, **{name: given.pop(name) for name in _LAUNCH & given.keys()})
    settings: dict[str, Any] = {}
    if "options" in given:
        settings, given["guided"] = read_options(given.pop("options"))
    settings |= {name: given.pop(name) for name in _SETTINGS & given.keys()}
    return replace(job, launch=launch, settings=replace(job.settings, **settings), **given)
