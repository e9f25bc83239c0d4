"""The models of single parts of a pipeline file, such as ``ncu``, ``timing``, ``targets`` and ``slurm``."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from profpipe.config.quantities import Grade


class StrictModel(BaseModel):
    """A mapping of a pipeline file: it refuses unknown keys."""

    # Defaults are validated too: a resumed run reads back their normalised form and must find the same values.
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


def _validate_regex(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"is no regular expression: {error}") from None
    return text


Regex = Annotated[str, AfterValidator(_validate_regex)]

#: Times are finite: JSON, and so run.json, cannot hold infinity.
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class NcuTargets(StrictModel):
    """Throughput in % of the hardware's peak below which the report names a kernel."""

    memory: float = Field(80.0, ge=0, le=100, description="memory throughput")
    sm: float = Field(90.0, ge=0, le=100, description="SM throughput")


class Ncu(StrictModel):
    """Metrics and kernels that Nsight Compute collects."""

    set: str = Field("basic", description="ncu --set: basic, detailed, full, roofline")
    sections: tuple[str, ...] = Field(
        ("MemoryWorkloadAnalysis", "ComputeWorkloadAnalysis", "WarpStateStats"),
        description="additional ncu --section names; the first two fill ncu_memory_metrics.txt and "
        "ncu_compute_metrics.txt, the third gives the reasons for stalls",
    )
    kernels: Regex = Field(
        "all",
        description="'all', 'guided' (the kernels with the largest share), or a regular expression; for a `command` "
        "with nsys or torch among its profilers the default is 'guided'",
    )
    shapes: Literal["largest", "all"] = Field(
        "largest",
        description="cases of a `script` whose kernels ncu counts: each variant at the largest value of the axis that "
        "runs, such as the sequence length, or all",
    )
    top: int = Field(3, ge=1, description="number of kernels of a case that 'guided' profiles")
    source: bool = Field(False, description="embed the source code of kernels in the ncu report")
    targets: NcuTargets = NcuTargets()
    exclude: Regex = Field(
        "nccl", description="kernels that are never replayed; a kernel that waits for another process would hang"
    )


class Timing(StrictModel):
    """Settings of the times that are measured without a profiler."""

    target: float = Field(
        0.005, gt=0, lt=1, description="stop when half the 95 % interval is at most this share of the median"
    )
    budget_s: Seconds = Field(2.0, le=86_400, description="seconds of sampling for each case, all rounds together")
    slowed_s: float = Field(
        0.0, ge=0, le=86_400, description="least seconds of sampling where power or heat lowers the GPU's clock"
    )
    most: int = Field(10_000, ge=1, description="largest number of samples of a case")
    mode: Literal["eager", "cuda_graph", "both"] = Field(
        "eager", description="launch each call, replay a CUDA graph, or both"
    )
    order: Literal["interleaved", "sequential"] = Field(
        "interleaved", description="cases in rounds, or one after the other"
    )
    rounds: int = Field(3, ge=1, description="rounds when interleaved, so that drift affects all cases alike")
    seed: int = Field(0, description="seed of the random order in each round")
    flush: bool = Field(True, description="overwrite the caches before each sample; false sets the flag warm_cache")


class Steps(StrictModel):
    """Steps of a `command`: what a program does in each iteration, such as a training step."""

    warmup: int = Field(5, ge=0, description="first steps, which are not recorded and do not count")
    measure: int = Field(
        20,
        ge=1,
        description="steps that profilers record after the warm-up (ncu: one; torch without a number of yours: those of"
        " half a second, at least 5); plain times all steps",
    )
    stop: bool | None = Field(
        None,
        description="end the program after these steps, with exit code 0; null: under torch and nsys, if plain ran it"
        " to its end",
    )
    range: Regex | None = Field(
        None, description="name of a range that the program opens once in each step, as a regular expression"
    )
    forward: bool = Field(False, description="take each call of the outermost module for a step, for inference")


class ChosenSteps(Steps):
    """Steps as profpipe chooses them by what a program did under plain."""

    stride: int = Field(1, description="steps of the optimizer that are an iteration")
    offset: int = Field(0, description="number of the first of them")
    module: str = Field("", description="module whose calls are the steps")
    is_stop_chosen: bool = Field(False, description="the user does not ask for the end after the steps")

    @classmethod
    def of(cls, steps: Steps, **changed: Any) -> ChosenSteps:
        return cls(**(steps.model_dump() | changed))


class Capture(StrictModel):
    """The time that profilers record of a `command` without steps, such as a server."""

    after_s: float = Field(0.0, ge=0, allow_inf_nan=False, description="seconds from the start to the recording")
    for_s: Seconds = Field(description="seconds that are recorded")


class TorchProfiler(StrictModel):
    """What torch.profiler records of a `command`."""

    with_stack: bool = Field(False, description="record the Python stack of each operator, which slows the program")
    record_shapes: bool = Field(False, description="record the shapes of the inputs of each operator")


class Coverage(StrictModel):
    """Share of the kernel time that must be classified; below it the exit code is 1."""

    min_classified: float | None = Field(
        None, ge=0, le=1, description="smallest classified share of the kernel time, 0 to 1"
    )


class KernelRule(StrictModel):
    """Rules for the class of a kernel, tried before those of parsers/kernel_classes.yaml."""

    pattern: Regex = Field(description="regular expression that is searched in the kernel name")
    kernel_class: str = Field(alias="class", description="attention, gemm, copy, add, ...")
    family: str = Field("", description="implementation that the kernel belongs to: fa2, cudnn, ...")


class Report(StrictModel):
    """Settings of the report."""

    top_kernels: int | None = Field(
        None,
        ge=1,
        description="kernels that are listed for each case; without it 10 for a single case and 3 for several",
    )
    price: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="EUR for an hour of one GPU, for the cost of steps and tokens"
    )


# --- targets ---------------------------------------------------------------------------------------------------------


class Target(StrictModel):
    """What a quantity of a case should reach: from `good` on it is good, below `poor` poor, between them fair.

    Without `poor` any other value is below target.
    """

    good: float = Field(gt=0, allow_inf_nan=False, description="the least value that is good")
    poor: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="a value below it is poor; without it no value is fair or poor"
    )

    def judge(self, value: float) -> Grade:
        """Return the grade of ``value``, which has the unit of the target."""
        if value >= self.good:
            return Grade.GOOD
        if self.poor is None:
            return Grade.BELOW
        return Grade.POOR if value < self.poor else Grade.FAIR

    @model_validator(mode="after")
    def _validate_order(self) -> Target:
        if self.poor is not None and self.poor > self.good:
            raise ValueError(f"calls values from {self.good:g} on good and values below {self.poor:g} poor")
        return self


class Share(Target):
    """A target in %."""

    @model_validator(mode="after")
    def _validate_share(self) -> Share:
        if self.good > 100:
            raise ValueError(f"is in %, and {self.good:g} is more than 100")
        return self


class Targets(StrictModel):
    """Targets of each case, which the report judges."""

    tflops: Target | None = Field(None, description="TFLOP/s of a call; of a sparse one, of the work that is done")
    gpu_busy: Share | None = Field(None, description="% of a call, or of a step, in which the GPU runs a kernel")
    memory_bandwidth: Share | None = Field(
        None,
        description="% of the machine's memory bandwidth that a call reaches: of the traffic that ncu measured, "
        "else of the bytes that it must move",
    )
    sm: Share | None = Field(None, description="% of the SMs' peak throughput, over the kernels that ncu measured")
    speedup: Target | None = Field(None, description="speed-up over the baseline")


# --- slurm -----------------------------------------------------------------------------------------------------------

#: Options of sbatch that profpipe sets itself, and why.
_OWN: Final = {
    "--array": "profpipe numbers the tasks; array_limit says how many run at a time",
    "--wrap": "profpipe writes the script",
    "--parsable": "profpipe reads the answer of sbatch",
    "--output": "the output is in the run's folder, below slurm/logs",
    "--error": "the output is in the run's folder, below slurm/logs",
    "--chdir": "a task starts in the folder of the pipeline file",
    "--wait": "profpipe run --slurm --wait follows the run",
    "--ntasks": "a task of the array is one process",
    "--nodes": "a task of the array is one process on one node",
}
#: Their short forms, which hold the value too: `-a0-9`.
_SHORT: Final = {"-a": "--array", "-o": "--output", "-e": "--error", "-D": "--chdir", "-W": "--wait", "-n": "--ntasks",
                 "-N": "--nodes"}  # fmt: skip


def _one_line(text: str) -> str:
    if not text.isprintable() or not text.strip():
        raise ValueError("is not one line of text")
    return text


def _quoted_time(value: object) -> object:
    # YAML 1.1 reads 30:00 as the number 1800, and Slurm takes a number for minutes.
    if isinstance(value, (int, float)):
        raise ValueError('must be in quotes, as YAML takes 30:00 for a number: time: "1:30:00", or "90" for minutes')
    return value


def _words(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return shlex.split(value)
    except ValueError as error:
        raise ValueError(f"is no list of words: {error}") from None


def check_options(words: Sequence[str]) -> Sequence[str]:
    """Return options of sbatch. Raises ValueError for one that profpipe sets itself, and for no option."""
    for word in map(_one_line, words):
        name = word.partition("=")[0]
        name = name if name.startswith("--") else _SHORT.get(name[:2], name)
        if name in _OWN:
            raise ValueError(f"{name} cannot be given: {_OWN[name]}")
    if words and not words[0].startswith("-"):
        raise ValueError(f"{words[0]!r} is no option of sbatch, which begins with '-'")
    return words


def option_lines(words: Sequence[str]) -> Iterator[list[str]]:
    """Yield the options with the words that follow it: ``["--mem=8G"]``, ``["-A", "physics"]``."""
    line: list[str] = []
    for word in words:
        if word.startswith("-") and line:
            yield line
            line = []
        line.append(word)
    if line:
        yield line


Line = Annotated[str, AfterValidator(_one_line)]
Words = Annotated[tuple[Line, ...], BeforeValidator(_words)]
Spread = Literal["cases", "comparisons", "all"]


class Slurm(StrictModel):
    """Settings of `profpipe run --slurm`, which runs the cases as tasks of a Slurm array."""

    partition: Line | None = Field(None, description="partition, as for sbatch --partition")
    gres: Line | None = Field(None, description="what a task needs, as for sbatch --gres: 'gpu:1', 'gpu:h100:1'")
    constraint: Line | None = Field(None, description="features of the nodes, as for sbatch --constraint")
    time: Annotated[Line | None, BeforeValidator(_quoted_time)] = Field(
        None, description="time limit of a task, in quotes: '1:30:00', or '90' for minutes"
    )
    array_limit: int | None = Field(None, ge=1, description="most tasks that run at the same time")
    spread: Spread = Field(
        "comparisons",
        description="what may run on different nodes. comparisons: cases that the report compares are one task; cases: "
        "each case is a task; all: each case under each profiler is a task",
    )
    setup: Annotated[tuple[str, ...], BeforeValidator(lambda v: v.splitlines() if isinstance(v, str) else v)] = Field(
        (), description="lines of the batch script before profpipe starts: [module load cuda]"
    )
    launcher: Words = Field((), description="words before the command of a task: [apptainer, exec, --nv, image.sif]")
    python: Line | None = Field(
        None, description="Python with profpipe on the nodes; without it the one that submits the run"
    )
    scratch: Line | None = Field(
        None,
        description="folder on the node for what profilers write; without it $SLURM_TMPDIR, $TMPDIR or /tmp. It may "
        "name variables of the node: '/scratch/$USER'",
    )
    options: Annotated[Words, AfterValidator(check_options)] = Field(
        (), description="further options of sbatch: [--mem=64G, --exclusive]"
    )

    def add_options(self, more: Sequence[str]) -> Slurm:
        """Return the settings with further options. Raises ValueError for a wrong one."""
        document: dict[str, Any] = self.model_dump()
        return type(self).model_validate({**document, "options": [*self.options, *check_options(more)]})
