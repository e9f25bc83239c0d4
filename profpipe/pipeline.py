"""What a pipeline file may hold: one pydantic model a mapping of it, frozen once checked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Final, Literal, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from profpipe.document import as_list
from profpipe.job import Scalar
from profpipe.tolerance import Measure, bound

ProfilerName = Literal["plain", "torch", "nsys", "ncu", "rocprof"]
PROFILERS: Final = get_args(ProfilerName)

_NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]*$"


Names = Annotated[list[str], BeforeValidator(as_list)]
Values = Annotated[list[Scalar], BeforeValidator(as_list), Field(min_length=1)]
Point = Mapping[str, Scalar]
Region = Mapping[str, Annotated[list[Scalar], BeforeValidator(as_list)]]


def _regex(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"is no regular expression: {error}") from None
    return text


Regex = Annotated[str, AfterValidator(_regex)]


def _free(name: str) -> str:
    if name == "lock" or name.endswith(".json"):
        raise ValueError("a run has a file of its own called so; choose another name")
    return name


#: Of the folder below ``raw/`` too.
WorkloadName = Annotated[str, Field(pattern=_NAME), AfterValidator(_free)]


def _can_be_met(limits: Mapping[Measure, float]) -> Mapping[Measure, float]:
    for measure, limit in limits.items():
        if measure.startswith("cosine") and limit > 1:
            raise ValueError(f"no {measure} is {bound(measure, limit)}: 1 is the most that it can be")
    return limits


Limits = Annotated[Mapping[Measure, Annotated[float, Field(ge=0, allow_inf_nan=False)]], AfterValidator(_can_be_met)]


#: No time is infinite: it would have no place in run.json, which is JSON.
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


_TIMEOUT = "seconds after which a process that came to no other case and to no end is ended, with all its children"
_CASE_TIMEOUT = "seconds after which a case is given up, or a round of it where it is measured in several"


class _Model(BaseModel):
    # Defaults too: a run that is resumed reads back what they came to, and must find the same as when it was begun.
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


class NcuTargets(_Model):
    """What a good kernel reaches, in % of the hardware's peak; kernels below are named in the report."""

    memory: float = Field(80.0, ge=0, le=100, description="memory throughput")
    sm: float = Field(90.0, ge=0, le=100, description="SM throughput")


class Ncu(_Model):
    """What Nsight Compute collects."""

    set: str = Field("basic", description="ncu --set: basic, detailed, full, roofline")
    sections: tuple[str, ...] = Field(
        ("MemoryWorkloadAnalysis", "ComputeWorkloadAnalysis", "WarpStateStats"),
        description="further ncu --section names; the first two fill ncu_memory_metrics.txt and "
        "ncu_compute_metrics.txt, the third the reasons for stalls",
    )
    kernels: Regex = Field("all", description="'all', 'guided' (those with the largest share), or a regular expression")
    top: int = Field(3, ge=1, description="how many kernels of a case 'guided' takes")
    source: bool = Field(False, description="embed the kernels' sources in the report")
    targets: NcuTargets = NcuTargets()
    exclude: Regex = Field("nccl", description="kernels never replayed: those that wait for another process would hang")


class Timing(_Model):
    """How cases are timed without a profiler."""

    target: float = Field(0.005, gt=0, lt=1, description="stop at a 95 % interval within this share of the median")
    budget_s: Seconds = Field(2.0, le=86_400, description="seconds of measuring for a case, all rounds together")
    most: int = Field(10_000, ge=1, description="samples after which a case is done in any event")
    mode: Literal["eager", "cuda_graph", "both"] = Field("eager", description="as launched, as a CUDA graph, or both")
    order: Literal["interleaved", "sequential"] = Field("interleaved", description="in rounds, or one after the other")
    rounds: int = Field(3, ge=1, description="visits to each case when interleaved, so that drift hits all alike")
    seed: int = Field(0, description="of the order within each round")


class Coverage(_Model):
    """What share of the GPU time must be understood for the report to pass."""

    min_classified: float | None = Field(None, ge=0, le=1, description="smallest classified share of kernel time")


class KernelRule(_Model):
    """A rule of the user's own for the class of a kernel; it goes before those of parsers/kernel_classes.yaml."""

    pattern: Regex = Field(description="regular expression, searched in the kernel's name")
    kernel_class: str = Field(alias="class", description="attention, gemm, copy, add, ...")
    family: str = ""


class Settings(_Model):
    """What `defaults` may set for all workloads and each workload for itself."""

    profilers: Annotated[list[ProfilerName], BeforeValidator(as_list), Field(min_length=1)] = Field(
        ["plain", "torch", "nsys", "ncu"], description="each is one process a workload"
    )
    warmup: int = Field(10, ge=0, description="iterations before the measured ones")
    repeats: int = Field(30, ge=1, description="measured iterations of each case (ncu: one)")
    timeout_s: Seconds = Field(900.0, description=_TIMEOUT)
    case_timeout_s: Seconds | None = Field(None, description=_CASE_TIMEOUT)
    isolate: bool = Field(False, description="one process for each case instead of one for all")
    processes: int = Field(1, ge=1, description="that run each case together, one a GPU, started by torchrun")
    env: Mapping[str, str] = Field({}, description="environment variables for the workload's process")
    ncu: Ncu = Ncu()
    timing: Timing = Timing()
    tolerance: Limits = Field(
        {}, description="largest error, smallest cosine, of a result that may be called fast: {error_rel_l1: 0.05}"
    )
    skip_larger_after_oom: bool = Field(True, description="after an OOM, skip cases that are larger in every dimension")


class Workload(Settings):
    """One entry under `workloads`: a script with `build`, or any command."""

    script: str | None = Field(None, description="a file with build(params), here or in workloads/")
    command: tuple[str, ...] | None = Field(None, description="any argv; {name} becomes the parameter of that name")
    params: Mapping[str, Scalar] = Field({}, description="parameters that are the same in every case")
    matrix: Mapping[str, Values] = Field({}, description="parameters that vary: the cases are the product of the lists")
    exclude: tuple[Region, ...] = Field((), description="cases left out: those that match every value of an entry")
    include: tuple[Point, ...] = Field((), description="cases added to the product")
    baseline: Point | None = Field(None, description="what the others are compared with: {impl: sdpa_flash}")

    @model_validator(mode="after")
    def _one_way_to_run(self) -> Workload:
        if (self.script is None) == (self.command is None) or self.command == ():
            raise ValueError("needs either 'script' (a file with build) or 'command' (an argv)")
        if self.processes > 1 and self.command is not None:
            raise ValueError("'processes' is for a 'script'. Let the command start its own: [torchrun, ..., train.py]")
        if self.processes > 1 and self.timing.mode != "eager":
            raise ValueError("of several processes 'timing.mode' must be eager")
        return self


class _Study(_Model):
    """What a table and a plot of the study's own have in common."""

    title: str = Field(min_length=1, description="its heading in the report")
    workload: Names = Field([], description="whose cases; may be left out where there is only one")
    where: Mapping[str, Values] = Field({}, description="the cases: {precision: bf16, batch: [1, 8]}")
    value: Names = Field(
        min_length=1, description="time, tflops, memory, attention.share, kernels.calls, any metric, ..."
    )
    unit: Names = Field([], description="units to show them in: ms, GiB, million; left out: what reads best")
    phase: Names = Field([], description="kernels of these ranges of the workload's own: forward, 'forward > softmax'")
    profiler: ProfilerName | None = Field(None, description="whose times and kernels; the report's own if left out")


class Table(_Study):
    """A table of the study's own in the report, filled from what was measured."""

    rows: Names = Field(
        min_length=1, description="an axis, a metric, 'workload', 'phase' or 'value'; several are nested in that order"
    )
    columns: Names = Field([], description="likewise; what has several values and stands nowhere is put here")
    note: str = Field("", description="what its reader must know, a sentence or two; stands above it")
    first: bool = Field(False, description="opens the report, above the answers on speed: what the study is about")


class Plot(_Study):
    """A plot of the study's own: a picture for each value, and in it a panel for each combination of what is left."""

    over: str = Field(min_length=1, description="an axis or a metric of numbers: seqlen, tokens")
    lines: Names = Field([], description="a line each: axes, 'workload', 'phase'; left out: what is compared")


class Pipeline(_Model):
    """A pipeline file."""

    version: Literal[1] = Field(description="of this format")
    name: str = Field("profpipe", pattern=_NAME, description="part of the name of the results' folder")
    defaults: Settings = Settings()
    workloads: Mapping[WorkloadName, Workload] = Field(min_length=1)
    coverage: Coverage = Coverage()
    kernel_classes: tuple[KernelRule, ...] = ()
    tables: tuple[Table, ...] = Field((), description="tables of the study's own, first in the report")
    plots: tuple[Plot, ...] = Field((), description="plots of the study's own, behind its tables")
