"""The models of a pipeline file: one frozen pydantic model for a mapping."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticKnownError

from profpipe import plugins
from profpipe.config.quantities import parameters
from profpipe.config.settings import (
    Capture,
    Coverage,
    KernelRule,
    Ncu,
    Report,
    Seconds,
    Slurm,
    Steps,
    StrictModel,
    Targets,
    Timing,
    TorchProfiler,
    Words,
)
from profpipe.config.yaml import as_list, scalar
from profpipe.job import Scalar, as_text
from profpipe.measure.tolerance import Measure, bound

#: The context of a validation that reads the pipeline of a run, not a user's file.
RECORDED: Final = {"recorded": True}
#: That of a validation of a saved request, which may come from another machine.
SAVED: Final = {"saved": True}

#: The built-in profilers, which an editor suggests.
PROFILERS: Final = sorted(path.stem for path in plugins.builtin_folder("profilers").glob("[!_]*.py"))


def _validate_profiler(name: object, info: ValidationInfo) -> object:
    """Check that a profiler is installed. What a run has saved may name others."""
    names = [*PROFILERS, *(filename.removesuffix(".py") for filename in plugins.installed("profilers"))]
    if info.context is None and name not in names:
        raise PydanticKnownError("literal_error", {"expected": ", ".join(map(repr, names))})
    return name


_SUGGESTED: Final[dict[str, Any]] = {"anyOf": [{"enum": PROFILERS, "type": "string"}, {"type": "string"}]}
ProfilerName = Annotated[str, BeforeValidator(_validate_profiler), WithJsonSchema(_SUGGESTED)]

_NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]*$"

Names = Annotated[list[str], BeforeValidator(as_list)]
Values = Annotated[list[Scalar], BeforeValidator(as_list), Field(min_length=1)]
Point = Mapping[str, Scalar]
Region = Mapping[str, Annotated[list[Scalar], BeforeValidator(as_list)]]


def _validate_name(name: str) -> str:
    if name == "lock" or name.endswith(".json"):
        raise ValueError("is the name of a file that each run writes; choose another name")
    return name


#: Also the name of a folder below ``raw/``.
WorkloadName = Annotated[str, Field(pattern=_NAME), AfterValidator(_validate_name)]


def _validate_limits(limits: Mapping[Measure, float]) -> Mapping[Measure, float]:
    for measure, limit in limits.items():
        if measure.startswith("cosine") and limit > 1:
            raise ValueError(f"no {measure} is {bound(measure, limit)}: 1 is the most that it can be")
    return limits


Limits = Annotated[
    Mapping[Measure, Annotated[float, Field(ge=0, allow_inf_nan=False)]], AfterValidator(_validate_limits)
]


def _read_variables(env: object, info: ValidationInfo) -> object:
    """Return variables with texts: the record of a run has their names only."""
    return dict.fromkeys(env, "") if info.context is RECORDED and isinstance(env, Mapping) else env


Variables = Annotated[Mapping[str, str], BeforeValidator(_read_variables)]

_TIMEOUT = "seconds without a next case or the end of the job after which the process and its children are killed"
_CASE_TIMEOUT = "seconds after which a case, or one round of it, is killed; the others continue in a new process"


def _read_flag(flag: object) -> object:
    """Return the words by value: ``--compile`` alone is the word for true."""
    if isinstance(flag, str):
        return {"true": [flag], "false": []}
    if not isinstance(flag, Mapping):
        return flag
    words = {as_text(value) if not isinstance(value, str) else value: word for value, word in flag.items()}
    return {value: [] if word is None else word for value, word in words.items()}


#: By value of a parameter, the words of a command that stand for it.
Flag = Annotated[Mapping[str, Annotated[tuple[str, ...], BeforeValidator(as_list)]], BeforeValidator(_read_flag)]


def _validate_items(items: float | str) -> float | str:
    if isinstance(items, str):
        parameters(items)
    elif not (math.isfinite(items) and items > 0):
        raise ValueError("is no positive number")
    return items


ItemCount = Annotated[float | str, AfterValidator(_validate_items)]


class Settings(StrictModel):
    """Settings of all workloads; a workload may override each of them."""

    profilers: Annotated[list[ProfilerName], BeforeValidator(as_list), Field(min_length=1)] = Field(
        ["plain", "torch", "nsys", "ncu"], description="profilers to run; each runs a workload in its own process"
    )
    warmup: int = Field(10, ge=0, description="smallest number of iterations before the measured ones")
    repeats: int = Field(
        30,
        ge=1,
        description="measured iterations of each case, at least (ncu: one). In a workload with `command`: processes of "
        "each case under plain, 1 unless the workload itself sets it",
    )
    timeout_s: Seconds = Field(900.0, description=_TIMEOUT)
    case_timeout_s: Seconds | None = Field(None, description=_CASE_TIMEOUT)
    isolate: bool = Field(False, description="start one process for each case instead of one for all")
    processes: int = Field(
        1, ge=1, le=1024, description="ranks that run each case together under torchrun, one on each GPU"
    )
    parallel: bool = Field(
        False,
        description="allow cases to run side by side on the `gpus` of the machine, one on each; cases that the report "
        "compares stay on one GPU",
    )
    env: Variables = Field({}, description="environment variables of the workload's process")
    ncu: Ncu = Ncu()
    timing: Timing = Timing()
    tolerance: Limits = Field(
        {}, description="largest error and smallest cosine of a case that may win: {error_rel_l1: 0.05, cosine: 0.99}"
    )
    targets: Targets = Field(
        Targets(), description="what each case should reach: {tflops: {good: 150, poor: 100}, speedup: {good: 3}}"
    )
    skip_larger_after_oom: bool = Field(
        True, description="after a case ran out of memory, skip cases that are larger in every dimension"
    )

    @property
    def limits(self) -> dict[str, float]:
        """The tolerances by the names of the measures."""
        return {str(measure): limit for measure, limit in self.tolerance.items()}


#: Settings of the harness, which does not run inside a command.
OF_SCRIPTS: Final = ("warmup", "timing")
#: Settings of commands: a script has cases instead of steps.
OF_COMMANDS: Final = ("hook", "steps", "capture", "torch", "collect", "clean_env")


class Workload(Settings):
    """Workloads by name: each is a script with `build`, or a command."""

    script: str | None = Field(
        None, description="file with build(params): a path beside this file, or a name in workloads/"
    )
    command: tuple[str, ...] | None = Field(
        None, description="argument list; {name} becomes the parameter of that name"
    )
    flag: Mapping[str, Flag] = Field(
        {},
        description="words of the command for the values of a parameter: {compile: {true: --compile, false: null}}, or "
        "short {compile: --compile}; {compile} in the command becomes these words",
    )
    cwd: str | None = Field(
        None, description="working folder of the command, relative to this file; without it the folder of this file"
    )
    clean_env: bool = Field(
        False, description="give a `command` only the environment variables of known tools and those under `env`"
    )
    nodes: int = Field(
        1,
        ge=1,
        le=16_384,
        description="nodes of a Slurm allocation on which srun starts the command; profpipe then runs inside an "
        "allocation, or with --slurm",
    )
    tasks_per_node: int = Field(
        1, ge=1, le=1024, description="processes of the command that srun starts on each of `nodes`"
    )
    srun: Words = Field((), description="further options of srun: [--cpus-per-task=8, --mpi=pmix]")
    hook: bool = Field(
        True, description="find the steps of a `command` that runs PyTorch by a start-up hook in its Python processes"
    )
    steps: Steps = Steps()
    capture: Capture | None = None
    torch: TorchProfiler = TorchProfiler()
    collect: str | None = Field(
        None,
        min_length=1,
        description="glob of the traces that a `command` writes itself with torch.profiler, taken under torch: "
        "'log/*.json'",
    )
    items_per_step: ItemCount | None = Field(
        None,
        description="items that one step, or one call of a script, processes over all ranks together: a number, or "
        "arithmetic on parameters such as batch * 1024",
    )
    item_name: str = Field("items", min_length=1, description="what these items are: tokens, samples, images")
    params: Mapping[str, Scalar] = Field({}, description="parameters with the same value in every case")
    matrix: Mapping[str, Values] = Field(
        {}, description="parameters that vary: the cases are all combinations of the lists"
    )
    exclude: tuple[Region, ...] = Field((), description="cases to remove: those that match all values of an entry")
    include: tuple[Point, ...] = Field((), description="cases to add")
    baseline: Point | None = Field(None, description="the case that speed-ups are relative to: {impl: sdpa_flash}")

    @model_validator(mode="before")
    @classmethod
    def _set_defaults_of_commands(cls, document: Any) -> Any:
        """Start one process, and have ncu replay the largest kernels: a step of a training launches hundreds."""
        if not isinstance(document, Mapping) or document.get("command") is None:
            return document
        document, ncu = {"repeats": 1, **document}, document.get("ncu", {})
        names = as_list(document.get("profilers", cls.model_fields["profilers"].default))
        is_guidable = isinstance(names, list) and not {"nsys", "torch"}.isdisjoint(map(str, names))
        if is_guidable and isinstance(ncu, Mapping):
            document["ncu"] = {"kernels": "guided", **ncu}
        return document

    @model_validator(mode="after")
    def _validate_command(self, info: ValidationInfo) -> Workload:
        if info.context is RECORDED:
            return self
        if (self.script is None) == (self.command is None) or self.command == ():
            raise ValueError("needs either 'script' (a file with build) or 'command' (an argv)")
        if self.cwd is not None and self.command is None:
            raise ValueError("'cwd' is for a 'command'. A script runs in the folder of the pipeline file")
        changed = [name for name in OF_COMMANDS if getattr(self, name) != type(self).model_fields[name].default]
        if self.command is None and changed:
            raise ValueError(f"'{changed[0]}' is for a 'command'. A 'script' has iterations instead of steps")
        if self.capture and self.nodes > 1:
            raise ValueError("'capture' is for a command on one node: the clocks of nodes differ. Leave one out")
        if self.capture and (end_s := self.capture.after_s + self.capture.for_s) >= self.timeout_s:
            raise ValueError(f"'capture' ends after {end_s:g} s. Set timeout_s higher than {self.timeout_s:g}")
        if self.command is None and (self.nodes > 1 or self.tasks_per_node > 1 or self.srun):
            raise ValueError("'nodes', 'tasks_per_node' and 'srun' are for a 'command', which srun starts")
        if self.nodes == 1 and (self.tasks_per_node > 1 or self.srun):
            raise ValueError("'tasks_per_node' and 'srun' are for a command on several nodes. Set 'nodes' too")
        if self.flag and self.command is None:
            raise ValueError("'flag' is for a 'command'. A script gets the parameter itself in build(params)")
        if self.processes > 1 and self.command is not None:
            raise ValueError("'processes' is for a 'script'. Let the command start its own: [torchrun, ..., train.py]")
        if self.processes > 1 and self.timing.mode != "eager":
            raise ValueError("'timing.mode' must be eager with several processes")
        return self

    def flag_words(self, name: str, value: Scalar) -> tuple[str, ...] | None:
        """Return the words of the command for a value of the parameter ``name``; None where `flag` has none.

        A value of a command is as written: ``True`` has the words for true.
        """
        words, text = self.flag[name], as_text(value)
        return words.get(text, words.get(as_text(scalar(text)))) if isinstance(value, str) else words.get(text)

    @property
    def is_command(self) -> bool:
        return self.command is not None

    @property
    def is_parallel(self) -> bool:
        """Return True if cases may run beside others.

        Ranks need several GPUs or nodes, and traces in a common folder do not say which program wrote them.
        """
        return self.parallel and self.processes == 1 and self.nodes == 1 and self.collect is None


class _Study(StrictModel):
    """Keys that the tables and plots of a study share."""

    title: str = Field(min_length=1, description="heading in the report")
    workload: Names = Field([], description="workloads whose cases are shown; not needed if there is only one")
    where: Mapping[str, Values] = Field({}, description="cases to show: {precision: bf16, batch: [1, 8]}")
    value: Names = Field(
        min_length=1, description="time, tflops, memory, attention.share, kernels.calls, any metric, ..."
    )
    unit: Names = Field([], description="units of the values: ms, GiB, million; without it a readable one is chosen")
    phase: Names = Field([], description="only kernels of these ranges of the workload: forward, 'forward > softmax'")
    profiler: ProfilerName | None = Field(
        None, description="profiler of the times and kernels; without it the one that the report uses"
    )


class Table(_Study):
    """Tables that the report shows first."""

    rows: Names = Field(
        min_length=1,
        description="an axis, a metric, 'workload', 'phase', 'profiler' or 'value'; several are nested in this order",
    )
    columns: Names = Field([], description="as rows; several values or phases that are placed nowhere become columns")
    note: str = Field("", description="one or two sentences above the table")
    first: bool = Field(False, description="show the table right after the answer, above the times")

    @property
    def axes(self) -> dict[str, list[str]]:
        """The axes by their key: those of the rows, and those of the columns."""
        return {"rows": self.rows, "columns": self.columns}


class Plot(_Study):
    """Plots of the study: a picture for each value, with a panel for each combination of the other axes."""

    over: str = Field(min_length=1, description="axis or metric with numbers on the x axis: seqlen, tokens")
    lines: Names = Field(
        [],
        description="axes with a line for each value, 'workload', 'phase' or 'profiler'; without it the compared axis",
    )
    note: ClassVar[str] = ""
    first: ClassVar[bool] = False

    @property
    def axes(self) -> dict[str, list[str]]:
        """The axes by their key: what the x axis shows, and those of the lines."""
        return {"over": [self.over], "lines": self.lines}


class Pipeline(StrictModel):
    """A pipeline file."""

    version: Literal[1] = Field(description="version of the format")
    name: str = Field("profpipe", pattern=_NAME, description="part of the name of the run's folder")
    defaults: Settings = Settings()
    gpus: int = Field(
        1,
        ge=1,
        le=1024,
        description="GPUs of the machine on which the cases of workloads with `parallel: true` run side by side",
    )
    workloads: Mapping[WorkloadName, Workload] = Field(min_length=1)
    coverage: Coverage = Coverage()
    kernel_classes: tuple[KernelRule, ...] = ()
    tables: tuple[Table, ...] = Field((), description="tables that the report shows first")
    plots: tuple[Plot, ...] = Field((), description="plots that the report shows after these tables")
    report: Report = Report()
    slurm: Slurm | None = None

    @model_validator(mode="after")
    def _validate_gpus(self, info: ValidationInfo) -> Pipeline:
        if self.gpus > 1 and info.context is not RECORDED:
            if not any(workload.parallel for workload in self.workloads.values()):
                raise ValueError("'gpus' is for workloads with 'parallel: true', and none has it")
            for name, workload in self.workloads.items():
                if workload.is_parallel and "CUDA_VISIBLE_DEVICES" in workload.env:
                    raise ValueError(
                        f"{name}: 'gpus' chooses the GPU of each case, and 'env' sets CUDA_VISIBLE_DEVICES"
                    )
        return self


def read_recorded(document: Mapping[str, Any]) -> Pipeline:
    """Return the pipeline in the record of a run, in which variables have no values.

    A setting that another version had, lacked or allowed gets its default. Raises ValueError for one of the wrong type.
    """
    remaining: dict[str, Any] = copy.deepcopy({**document, "version": 1})
    while True:
        try:
            return Pipeline.model_validate(remaining, context=RECORDED)
        except ValidationError as error:
            for detail in error.errors(include_url=False):
                is_mistyped = detail["type"].endswith(("_type", "_parsing", "literal_error"))
                setting = None if is_mistyped else _deepest_key(remaining, detail["loc"])
                if setting is None:
                    raise ValueError(f"{'.'.join(map(str, detail['loc']))}: {detail['msg']}") from None
                mapping, key = setting
                mapping.pop(key, None)


def _deepest_key(document: dict[str, Any], location: Sequence[int | str]) -> tuple[dict[str, Any], str] | None:
    """Return the last mapping and its key on the way to ``location``, as far as the document goes."""
    node: Any = document
    deepest: tuple[dict[str, Any], str] | None = None
    for key in location:
        if isinstance(node, dict) and key in node:
            deepest = node, str(key)
        elif not (isinstance(node, list) and isinstance(key, int)):
            break
        node = node[key]
    return deepest
