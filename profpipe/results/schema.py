"""The schema of the tables. Checking, loading and documentation use this one declaration.

Times are in ns and sizes in bytes; the parser converts them from the units of the file. A value that the tool did not
record is missing (``NA``), never zero and never a default of this machine.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final
from urllib.parse import unquote

import numpy as np
import pandas as pd

from profpipe.job import Status

# The names of ranges, for parsers too: the process of a workload writes them, and may have no pandas.
from profpipe.ranges import (
    CASE_PREFIX,
    ENCODED_PREFIX,
    MODULE_PREFIX as MODULE_PREFIX,
    MODULES_END as MODULES_END,
    MODULES_PREFIX as MODULES_PREFIX,
    STEP_PREFIX,
)

#: Increase this number when a column changes. ``run.json`` stores it, and runs of other versions are refused.
SCHEMA_VERSION: Final = 1

#: The subject of a metric of one process, or of its GPU, begins with one of these; its number follows.
RANK_PREFIX: Final = "rank "
#: The same for one of the processes that repeat a command.
PROCESS_PREFIX: Final = "process "
DEVICE_PREFIX: Final = "device "
#: The subject of a metric of the requests of a language model begins with this; the length of their prompt follows.
PROMPT_PREFIX: Final = "prompt "
#: The same for the time of the reference case on a node of a cluster; the name of the node follows.
NODE_PREFIX: Final = "node "

#: The metric with the time from the start of a command's process to its end.
PROCESS_WALL: Final = "process_wall"

#: The metric with the time that the host waited in a function of CUDA or HIP, the subject, in a whole recording.
CAPTURE_WAIT: Final = "capture_wait"

#: The metric with the median time of a launch of a kernel with one grid and block, ``kernel<<<32x1x1, 128x1x1>>>``, in
#: a recording without cases and without steps of the program; ``n`` launches.
CAPTURE_LAUNCH: Final = "capture_launch"

#: The times of a case without a profiler, the better one first: of a call or step, else of the process of a command.
TIMES: Final = ("time", PROCESS_WALL)

#: The energy in J of a token of a language model, and of a step; and the ns in which the counter was read for it.
ENERGIES: Final = ("energy_per_token", "energy_per_step")
ENERGY_WINDOW: Final = "energy_window"
#: Metrics of a step, or of an iteration where ``step_stride`` steps are one.
PER_STEP: Final = ("time", "energy_per_step")
#: The least time over which energy is measured, in s: the driver renews the counter ten times a second or more.
LEAST_ENERGY_WINDOW_S: Final = 2.0
#: The beginning of metrics of the FLOPs of one step: `model_flops.bfloat16`.
FLOPS: Final = "model_flops"
#: The number of GPUs of a program with steps.
GPUS: Final = "gpus_used"

#: The subject of a time that one process of an `ab` run measured: ``pair 3 A``.
PAIR_PREFIX: Final = "pair "
#: Begins the label of a process of `profpipe try` before its pairs: ``try bf16 1 B``, with the seed.
TRY_PREFIX: Final = "try "
#: Metrics that mark a process of an `ab` run in which the case failed, or its result was outside the tolerance.
PAIR_FAILED: Final = "failed"
PAIR_INACCURATE: Final = "inaccurate"
#: The metrics of a capture of an `ab` run, with the subject ``pair 3 A``, or ``pair 3 A `` and the name of a kernel.
CAPTURED_METRICS: Final = ("iterations", "step_kernel_time", "step_launches")

#: Between the ranges of a path, outermost first.
PATH_SEPARATOR: Final = " > "

STATUSES: Final = tuple(str(status) for status in Status)
#: Statuses whose measurements do not count.
FAILED: Final = tuple(str(status) for status in Status if status.is_failure)
KINDS: Final = ("kernel", "memcpy", "memset", "graph", "cpu_op")


@dataclass(frozen=True)
class Column:
    """One column: ``dtype`` is ``str``, ``Int64`` or ``Float64`` (pandas' nullable types)."""

    name: str
    dtype: str
    meaning: str
    #: All texts that the column may hold; empty where it may hold any.
    values: tuple[str, ...] = ()


@dataclass(frozen=True)
class Table:
    """One table: its name, what a row is, and its columns in order.

    Runs of earlier versions may lack the files of a table that ``is_new``; it is then empty. A table that is
    ``parquet_only`` holds what one picture or section shows: it is written only with rows.
    """

    name: str
    row: str
    columns: tuple[Column, ...]
    is_new: bool = False
    parquet_only: bool = False

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.columns]


_KEY: Final = """
    run      str     name of the run's folder; empty for files read by `profpipe ingest`
    workload str     entry of the pipeline file; for `profpipe ingest` the name of the file
    case     str     name of the case; empty for kernels and ranges outside every case
    profiler str     plain, torch, memory, nsys, ncu or rocprof
    """
_ORIGIN: Final = """
    source   str     file that the row comes from, relative to the run's folder
    process  Int64   process id; NA if the tool does not record it
    """
_RANK: Final = """
    rank     Int64   number of the process among those of the job, from 0
    """
_DEVICE: Final = """
    device   Int64   device ordinal in that process; NA if the tool does not record it
    """
_COLUMN: Final = re.compile(r"\n    (\w+) +(\w+) +(.+(?:\n      .+)*)")


def _table(
    name: str, row: str, columns: str, is_new: bool = False, parquet_only: bool = False, **values: tuple[str, ...]
) -> Table:
    """Read the columns from their text: name, type and meaning, which may go on in further lines."""
    groups = (match.groups() for match in _COLUMN.finditer(_KEY + columns))
    read = tuple(Column(key, dtype, " ".join(text.split()), values.get(key, ())) for key, dtype, text in groups)
    return Table(name, row, read, is_new, parquet_only)


def _values(of: type[Enum]) -> tuple[str, ...]:
    return tuple(str(member.value) for member in of)


CASES: Final = _table(
    "cases",
    "one workload's case under one profiler",
    """
    status  str     ok, oom, failed, crashed, timeout, skipped or interrupted
    reason  str     why the status is not ok, and what to do
    params  str     all parameters of the case, as a JSON object
    seconds Float64 wall time of the case in its process, with set-up and warm-up
    flags   str     validity flags, as a JSON list
    """,
    status=STATUSES,
)

KERNELS: Final = _table(
    "kernels",
    "one kernel name, launch context and case",
    _ORIGIN
    + _DEVICE
    + """
    stream        Int64   stream, or queue where rocprof records no stream; NA if the tool does not record it
    phase         str     path of the user's ranges inside the case, outermost first, joined by ` > `
    kind          str     kernel, memcpy, memset, graph (a whole CUDA graph) or cpu_op, as the tool recorded it
    kernel        str     kernel name, demangled, with the same spelling for all tools
    kernel_class  str     what the kernel does: attention, gemm, copy, add, ...
    kernel_family str     implementation: fa2, cudnn, sage1, ...; may be empty
    calls         Int64   number of launches
    total_ns      Float64 sum of the launches' times
    mean_ns       Float64 mean of single launches
    median_ns     Float64 median of single launches; NA if the file has only sums
    min_ns        Float64 shortest launch
    max_ns        Float64 longest launch
    stddev_ns     Float64 standard deviation (n - 1) of single launches; NA for fewer than two
    """,
)

RANGES: Final = _table(
    "ranges",
    "one range path and case",
    _ORIGIN
    + """
    range     str     path of ranges inside the case; empty: the case's own range
    instances Int64   number of times that the range was entered
    wall_ns   Float64 sum of the instances' durations on the CPU
    kernel_ns Float64 time of the kernels launched in it and its nested ranges, on any thread
    kernels   Int64   number of those launches
    busy_ns   Float64 time in which at least one of those kernels runs
    span_ns   Float64 of a case's own range: from the first kernel's start to the last one's end, by instance
    """,
)

METRICS: Final = _table(
    "metrics",
    "one number",
    """
    subject str     empty: the case; else a kernel's name, the path of a range, a line of the source,
                    `rank 1`, `device 0`, `process 2`, `prompt 512`
    metric  str     name of the quantity
    value   Float64 value, in `unit`
    unit    str     ns, byte, byte/s, flop, flop/s, %, 1, or a unit of the tool
    n       Int64   number of samples behind the value
    ci_low  Float64 lower end of the 95 % confidence interval
    ci_high Float64 upper end of the 95 % confidence interval
    """,
)


class StepRule(str, Enum):
    """What says where a step begins: the first of these that applies."""

    #: Ranges that the user opened or named.
    MARKER = "marker"
    #: Ranges between the returns of `Optimizer.step`.
    OPTIMIZER = "optimizer"
    #: Ranges around each top-level module call.
    FORWARD = "forward"
    #: Ranges that a framework opens.
    FRAMEWORK = "framework"
    #: The program's own ranges that recur and hold most of the kernel time.
    RANGE = "range"
    #: No range: the sequence of launches recurs.
    PATTERN = "pattern"


#: Steps are uneven above this ``step_spread``, in %: their time is the mean, since the median says little.
UNEVEN_STEPS: Final = 20.0


#: Steady steps that leave out more of the time, or of the kernel time, do not stand for the program.
LEAST_REST: Final = 0.1


class StepState(str, Enum):
    """Which steps count: the figures of a report are medians over ``STEADY`` steps."""

    #: Before the step time settled.
    WARMUP = "warmup"
    STEADY = "steady"
    #: Beyond three median absolute deviations of the steady steps.
    OUTLIER = "outlier"
    #: Work between two steps: evaluation, a checkpoint.
    OTHER = "other"
    #: The last step, where nothing says when it ends.
    LAST = "last"
    #: Some ranks have no step of this number.
    UNMATCHED = "unmatched"


class Check(str, Enum):
    """Metrics of what a recording contradicts itself in: the number, and ``n`` of how many."""

    #: ns by which kernels are recorded to end too late, by name; ``n`` of them. Their ends were corrected.
    LATE_END = "check_late_end"
    #: Launches of a process without a kernel in the file, of ``n`` launches.
    LOST_KERNELS = "check_lost_kernels"
    #: Kernels that some of ``n`` replays of a graph lack.
    REPLAYS = "check_replays"
    #: % of the kernel time launched in ``n`` steps that ran in other steps or after them.
    OUTSIDE_STEPS = "check_outside_steps"
    #: Kernels whose launch is unknown, since several processes of a merged trace use its number; of ``n`` kernels.
    SHARED_IDS = "check_shared_ids"
    #: % of the kernel time that lies in steps, of ``n`` steps: too little for a step.
    COVERAGE = "check_coverage"

    __str__ = str.__str__

    @property
    def forbids_steps(self) -> bool:
        """Return True where no figure of a step follows from the recording. Late ends are corrected."""
        return self is not Check.LATE_END


#: Metric with the name of the program's range that is the step as its subject; % of the kernel time in it.
STEP_RANGE: Final = "step_range"
#: Metric: so many recurrences of a sequence of launches are one step, since the host pauses after the last of them; or
#: so many steps of the optimizer are one iteration, since other work comes before the first of them.
STEP_STRIDE: Final = "step_stride"
#: Metric of steps in which kernels send from one rank to another: ns of the transfer in a step, at most.
STEP_TRANSFER: Final = "step_transfer"
#: What the host did while a late launch left the GPU idle in a steady step, by name and place; and the rest of a wait,
#: while queued work kept the GPU busy.
WAIT_IDLE: Final = "step_wait_idle"
WAIT_HIDDEN: Final = "step_wait_hidden"
#: The same where no profiler runs: ns in which the program waits for its data loader in a mean steady step.
WAIT_LOADING: Final = "step_wait_loading"
#: What rows of kind ``cpu_op`` are in samples of a program's lines. They count samples, and all are of one class.
PYTHON_LINES: Final = "Python lines"
#: Causes that no wrapper of the start-up hook names.
SYNCHRONISING: Final = "synchronising call"
COLLECTIVE: Final = "communication"
HOST_CODE: Final = "host code"
LAUNCHING: Final = "launching"
OPERATORS: Final = "operators"
#: Metric: ns of one of the steps of which several are an iteration.
STEP_PART: Final = "step_part"
#: Metrics of what a device runs after the last step: ns until its end, and of its kernels.
STEP_AFTER: Final = "step_after"
STEP_AFTER_KERNELS: Final = "step_after_kernels"
#: Metric: calls that are steps decode a token of each sequence.
STEP_DECODES: Final = "step_decodes"
#: The kind of a call of a language model with a prompt.
PREFILL: Final = "prefill"
#: Metric with a kind of call that is no step and a kernel as its subject, ``prefill > kernel``: ns in such a call.
CALL_KERNEL_TIME: Final = "step_call_kernel_time"


STEPS: Final = _table(
    "steps",
    "one step of a program, by process and device",
    _ORIGIN
    + _RANK
    + _DEVICE
    + """
    step                   Int64   number of the step, as in the name of its range, else from 0; of other work, of the
                                   step before it
    state                  str     warmup, steady, outlier, last (its end is unknown), other (work between two steps)
                                   or unmatched (some ranks lack the step)
    rule                   str     what says where the step begins: marker, optimizer, forward, framework, range or
                                   pattern
    kind                   str     where calls of modules are steps, the class of the module, or `prefill`: a call with
                                   a prompt; else empty
    start_ns               Float64 start of its first GPU operation, since the first one in the file
    wall_ns                Float64 from there to the first GPU operation of what follows
    compute_ns             Float64 part of `wall_ns` in which a kernel runs that is no communication
    communication_ns       Float64 part in which communication runs and nothing computes: exposed
    copy_ns                Float64 part in which only copies and sets run: exposed
    idle_ns                Float64 part in which nothing runs; the four parts add up to `wall_ns`
    idle_launch_ns         Float64 part of `idle_ns` before what the host launched too late
    idle_blocked_ns        Float64 part of `idle_ns` that began while the host waited for the GPU
    idle_other_ns          Float64 rest of `idle_ns`: dependencies, waits of streams, or not recorded
    communication_total_ns Float64 time in which communication runs, computation beside it or not
    kernel_ns              Float64 sum of the times of its kernels
    kernels                Int64   number of its kernel launches
    """,
    state=_values(StepState),
    rule=_values(StepRule),
    is_new=True,
)


class EventKind(str, Enum):
    """What a row of `timeline` is, where it is no operation of a GPU (``KINDS``)."""

    #: The part of the recording that the other rows of a rank show: a step of a program, one iteration of a case, or
    #: the beginning of a recording without either.
    STEP = "step"
    ITERATION = "iteration"
    BEGINNING = "beginning"
    #: A call of the host that launched an operation.
    LAUNCH = "launch"
    #: A call in which the host waited for the GPU.
    WAIT = "wait"
    #: Nothing runs on the device: the host launched late, the host waited for the GPU, or another cause.
    IDLE_LAUNCH = "idle_launch"
    IDLE_BLOCKED = "idle_blocked"
    IDLE_OTHER = "idle_other"
    #: What the program did meanwhile: a wait that has a name, or a line.
    NAMED_WAIT = "named_wait"
    LINE = "line"


TIMELINE: Final = _table(
    "timeline",
    "one event of the step, or of the iteration of a case, that the timeline shows",
    _ORIGIN
    + _RANK
    + _DEVICE
    + """
    stream       Int64   stream of an operation; NA if the tool does not record it
    thread       Int64   thread of a call of the host; NA if the tool does not record it
    step         Int64   number of the step, or of the iteration; NA: the beginning of a recording without them
    kind         str     kernel, memcpy, memset or graph: an operation; launch or wait: a call of the host;
                         idle_launch, idle_blocked or idle_other: nothing runs; named_wait or line: what the program
                         did; step, iteration or beginning: the time that is shown
    name         str     kernel or copy; of a launch, the operation that it starts; of a wait, the call or its name
                         and line
    kernel_class str     what the kernel does; of a launch, what the launched kernel does
    start_ns     Float64 start, since the window of the first rank of the file; may lie before the window
    duration_ns  Float64 duration
    launched_ns  Float64 of an operation: when its launch call began; NA if that is not recorded
    bytes        Float64 of a copy or set: its size; NA if that is not recorded
    """,
    is_new=True,
    parquet_only=True,
)


class Pass(str, Enum):
    """Which part of a step a row of `modules` is."""

    FORWARD = "forward"
    #: With the forward pass that is computed again.
    BACKWARD = "backward"
    #: Outside all modules: an optimizer, or neither.
    OPTIMIZER = "optimizer"
    OTHER = "other"


MODULES: Final = _table(
    "modules",
    "the forward or backward pass of one module in a step of a program, by process",
    _ORIGIN
    + """
    module      str     path of the module, such as `GPT.h.0.mlp`; empty: outside all modules
    type        str     class of the module
    part        str     forward, backward, optimizer or other
    self_ns     Float64 time of its kernels in a step, of CPU operators without a GPU; without modules that it calls
    total_ns    Float64 the same with the modules that it calls
    compiled_ns Float64 part of `self_ns` in functions of torch.compile, which show no modules
    launches    Float64 number of the kernels behind `self_ns`
    steps       Int64   number of steps behind the means
    """,
    part=_values(Pass),
    is_new=True,
    parquet_only=True,
)


#: Parts of `memory` that are not in use: all others add up to what torch's allocator has given out.
UNUSED_MEMORY: Final = ("cached", "fragmented", "outside")

MEMORY: Final = _table(
    "memory",
    "one part of the memory of a GPU at its peak, where an allocation failed or at another time, by process",
    _ORIGIN
    + _RANK
    + _DEVICE
    + """
    moment str     peak, failure (an allocation failed), peak_block, failure_block (the largest blocks, and the size of
                   one), asked (what failed), time (a point of two steps), pass (the most in use during one of their
                   passes, and before them), growth (what a step leaves behind), advice (what would free memory at
                   the failure) or fact (a size of the device or of the failure)
    part   str     parameters, gradients, optimizer, activations, temporary, kept, workspace, other, rounding, cached,
                   fragmented or outside, as docs/memory.md explains them; of other rows the pass, or which
    name   str     module or function of torch that allocated it, type of data, pass, or line that calls the model
    place  str     line of the program that allocated the largest block of it
    at_ns  Float64 of a time: when, since the begin of the history
    bytes  Float64 size
    blocks Int64   number of blocks, or of allocations that failed
    """,
    is_new=True,
    parquet_only=True,
)


class Verdict(str, Enum):
    """Whether B is faster than A, by interleaved pairs of processes."""

    FASTER = "faster"
    SLOWER = "slower"
    #: The difference is smaller than the floor.
    SAME = "same"
    INCONCLUSIVE = "inconclusive"

    __str__ = str.__str__


class KernelChange(str, Enum):
    """What differs between A and B in a kernel of a case; a row has the first that applies."""

    #: Another kernel of the same class, launched as often, is in its place on B.
    EXCHANGED = "exchanged"
    APPEARED = "appeared"
    VANISHED = "vanished"
    CLASS = "class"
    LAUNCHES = "launches"
    TIME = "time"
    UNCHANGED = "unchanged"
    #: No kernel: the rest of the difference of the case.
    NOT_IN_KERNELS = "not_in_kernels"

    __str__ = str.__str__


#: The name of the row of `verdicts` with the rest of the difference of a case.
NOT_IN_KERNELS: Final = "(not in kernels)"

VERDICTS: Final = _table(
    "verdicts",
    "one case of `profpipe ab` on the sides A and B, or one kernel of it",
    """
    kernel        str     empty: the case; else a kernel's name, or `(not in kernels)`: idle time, launch gaps
    verdict       str     faster, slower, same or inconclusive: B compared with A; empty: too few captures
    a_ns          Float64 median over the processes of A of their median times; of a kernel, by iteration
    b_ns          Float64 the same of B
    ratio         Float64 time of B over time of A: the estimate over the pairs
    ci_low        Float64 lower end of the 99 % confidence interval of `ratio`; NA below 8 pairs
    ci_high       Float64 upper end of that interval
    p             Float64 two-sided p value of the exact signed-rank test
    pairs         Int64   number of pairs of processes behind the verdict; of a kernel, of captures
    floor         Float64 smallest difference that counts, as a ratio minus 1
    pairs_more    Int64   pairs that would decide an inconclusive case; 0: decided; NA: none up to 1000
    further_pairs Int64   `pairs` where these are further ones; 0: the verdict is that of an earlier block
    part_ns       Float64 B - A: of the case `a_ns` times (`ratio` - 1), and the rows of its kernels add up to it
    part_low_ns   Float64 smallest B - A of one pair of captures
    part_high_ns  Float64 largest B - A of one pair of captures
    cause         str     exchanged, appeared, vanished, class, launches, time, unchanged or not_in_kernels; empty: the
                          case
    b_kernel      str     name of the kernel on B where it is exchanged, else empty
    kernel_class  str     class of the kernel on A, or where it appeared
    b_class       str     its class on B, or where it vanished
    a_calls       Float64 launches by iteration on A
    b_calls       Float64 the same on B
    """,
    verdict=("", *_values(Verdict)),
    cause=("", *_values(KernelChange)),
    is_new=True,
)

ALL: Final = (CASES, KERNELS, RANGES, METRICS, STEPS, VERDICTS, TIMELINE, MODULES, MEMORY)

#: Figures of single processes and devices, of which the reader makes metrics. No file holds them.
STEP_FIGURES: Final = _table(
    "step_figures",
    "one number of a process and device",
    _ORIGIN
    + _DEVICE
    + """
    step    Int64   number of the step; NA: of all steady steps
    subject str     name of a kernel, or empty
    metric  str     name of the quantity
    value   Float64 value, in `unit`
    unit    str     ns, byte, % or 1
    n       Int64   number of steps behind the value
    """,
)

#: What a parser returns.
PARSED: Final = (*ALL, STEP_FIGURES)


class Placement(str, Enum):
    """How launches were placed in the ranges of a file, or why they were not."""

    THREAD = "thread"
    OTHER_THREAD = "other_thread"
    API_CALL = "api_call"
    DISPATCH = "dispatch"
    RUN_TIME = "run_time"
    NVTX_STATE = "nvtx_state"
    NVTX_COLUMNS = "nvtx_columns"
    NO_RANGE = "no_range"
    SHARED_ID = "shared_id"
    NO_CALL = "no_call"
    NO_RANGES = "no_ranges"
    NO_NVTX = "no_nvtx"
    NOT_SHOWN = "not_shown"
    #: Parts of the launches that another member counts.
    OF_OTHER_THREAD = "of_other_thread"
    OF_EXTERNAL_ID = "of_external_id"


@dataclass(frozen=True)
class Origin:
    """The format and tool of a file, and its sums, which show whether a launch was lost or counted twice.

    ``launches`` and ``total_ns`` count the device kernels of the file (kind ``kernel``), without copies, sets and whole
    graphs. ``total_ns`` is the sum of ``attributed_ns``, inside case ranges, and ``unattributed_ns``. A sum is None if
    the file does not contain it.
    """

    format: str = ""
    tool: str = ""
    tool_version: str = ""
    launches: int = 0
    total_ns: float | None = None
    attributed_ns: float | None = None
    unattributed_ns: float | None = None
    #: The number of launches by how they were placed in ranges; None: the others.
    attribution: Mapping[Placement, int | None] = field(default_factory=dict)
    #: The name of the GPU; empty if the file does not contain it.
    device: str = ""
    #: Warnings: kernels hidden in graphs, ranges without an end, dropped rows, ...
    notes: tuple[str, ...] = ()
    #: How the file was read. These are no warnings.
    details: tuple[str, ...] = ()
    #: The names of other files of the same recording that were read with this file.
    read_with: tuple[str, ...] = ()
    #: What the file contains instead of kernels, as expected on a machine without a GPU.
    without_kernels: str = ""
    #: What the rows of kind ``cpu_op`` are, where they are no CPU operators: ``Python functions``.
    rows: str = ""

    def add_sums(self, durations_ns: pd.Series[Any], in_case: Any) -> Origin:
        """Return the origin with the sums of all kernels: their times, one each, and which of them lie in a case.

        With a kernel whose time is missing the sums of times are None.
        """
        if durations_ns.isna().any():
            return replace(self, launches=len(durations_ns))
        total, inside = float(durations_ns.sum()), float(durations_ns[in_case].sum())
        return replace(
            self,
            launches=len(durations_ns),
            total_ns=total,
            attributed_ns=inside,
            unattributed_ns=total - inside,
        )


def empty(table: Table) -> pd.DataFrame:
    """Return a frame of ``table`` without rows."""
    return _empty(table).copy(deep=False)


@functools.cache
def _empty(table: Table) -> pd.DataFrame:
    # Each process of a run makes twenty empty frames, and pandas takes milliseconds for one.
    return frame(table, {})


def frame(table: Table, data: Mapping[str, Any] | Iterable[Mapping[str, Any]] | pd.DataFrame) -> pd.DataFrame:
    """Return ``data`` (columns, or rows) with the columns, order and types of ``table``; absent columns are missing.

    Raises ValueError for a column that the table does not have.
    """
    if isinstance(data, Mapping):
        # pandas would make strings of Arrow of an array of texts, and `_cast` texts of these again.
        texts = (column.name for column in table.columns if column.dtype == "str")
        arrays = [name for name in texts if isinstance(data.get(name), np.ndarray)]
        data = {**data, **{name: pd.Index(data[name], dtype=object) for name in arrays}}
    given = pd.DataFrame(data if isinstance(data, (Mapping, pd.DataFrame)) else list(data))
    if unknown := set(given.columns) - set(table.names):
        raise ValueError(f"table {table.name} has no column {', '.join(sorted(unknown))}")
    columns = {column.name: _cast(given, column) for column in table.columns}
    return pd.DataFrame(columns, index=given.index, copy=False)


def _cast(given: pd.DataFrame, column: Column) -> Any:
    is_text = column.dtype == "str"
    dtype: Any = "object" if is_text else column.dtype
    if column.name in given.columns:
        values = given[column.name].astype(dtype)
        # In a group-by a missing text would be unequal to itself. Categories show it faster than their texts do.
        return values.where(present, "") if is_text and not (present := given[column.name].notna()).all() else values
    if is_text:
        return pd.Series("", dtype=dtype, index=given.index)
    # pandas takes thirty times as long for a series of missing numbers.
    kind: Any = pd.api.types.pandas_dtype(dtype)
    count = len(given)
    return kind.construct_array_type()(np.ones(count, dtype=kind.numpy_dtype), np.ones(count, dtype=bool))


@dataclass(frozen=True)
class Tables:
    """The tables, the origin of their rows, and the figures of steps that are not stored."""

    cases: pd.DataFrame = field(default_factory=lambda: empty(CASES))
    kernels: pd.DataFrame = field(default_factory=lambda: empty(KERNELS))
    ranges: pd.DataFrame = field(default_factory=lambda: empty(RANGES))
    metrics: pd.DataFrame = field(default_factory=lambda: empty(METRICS))
    steps: pd.DataFrame = field(default_factory=lambda: empty(STEPS))
    verdicts: pd.DataFrame = field(default_factory=lambda: empty(VERDICTS))
    timeline: pd.DataFrame = field(default_factory=lambda: empty(TIMELINE))
    modules: pd.DataFrame = field(default_factory=lambda: empty(MODULES))
    memory: pd.DataFrame = field(default_factory=lambda: empty(MEMORY))
    step_figures: pd.DataFrame = field(default_factory=lambda: empty(STEP_FIGURES))
    origin: Origin = field(default_factory=Origin)
    #: The rank of the file's process and how many ranks its job has, where the file states both.
    rank_of: tuple[int, int] | None = None

    def set_columns(self, **values: Any) -> Tables:
        """Return the tables with one value for each of these columns. A table without such a column stays as it is."""
        changed: dict[str, Any] = {}
        for table in PARSED:
            present = {name: value for name, value in values.items() if name in table.names}
            changed[table.name] = getattr(self, table.name).assign(**present)
        return replace(self, **changed)


def concat_rows(table: Table, frames: Iterable[pd.DataFrame]) -> pd.DataFrame:
    """Return the rows of all frames of ``table``, numbered from 0."""
    filled = [frame for frame in frames if len(frame)]
    return pd.concat(filled, ignore_index=True) if filled else empty(table)


def concat(parts: Sequence[Tables]) -> Tables:
    """Return the rows of all parts, without their origins."""
    merged: dict[str, Any] = {
        table.name: concat_rows(table, [getattr(part, table.name) for part in parts]) for table in PARSED
    }
    return Tables(**merged)


def decoded(text: str) -> str:
    """Return the name of a range as the program gave it, from its name in a trace of torch."""
    return unquote(text.removeprefix(ENCODED_PREFIX)) if text.startswith(ENCODED_PREFIX) else text


def range_name(text: str) -> str:
    """Return a range's name without the counters that ``emit_nvtx`` appends (``aten::mm, op_id = 314290``).

    With its counter each call would be another range, and so would each step with its number.
    """
    if text.startswith(STEP_PREFIX):
        return f"{text.rpartition(':')[0]}:*"
    return re.sub(r", (?:op_id|seq) = \d+", "", text)


def split_path(path: Sequence[str]) -> tuple[str, str]:
    """Return (case, phase) of a launch inside the ranges ``path``, outermost first.

    The innermost ``profpipe:`` range gives the case, and the ranges inside it are the phase. Without such a range the
    case is empty and the phase is the whole path.
    """
    depth = max((i for i, name in enumerate(path) if name.startswith(CASE_PREFIX)), default=-1)
    case = path[depth].removeprefix(CASE_PREFIX) if depth >= 0 else ""
    return case, PATH_SEPARATOR.join(map(range_name, path[depth + 1 :]))
