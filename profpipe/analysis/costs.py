"""What a step of a program, or a token that it generates, costs: energy, money and arithmetic."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from profpipe.analysis import roofline
from profpipe.analysis.case_index import TimeSource
from profpipe.analysis.findings import CaseResult, WorkloadFindings
from profpipe.results import schema

_S_PER_HOUR = 3600

#: Names of data types in torch, to those of the rates of a GPU.
_DTYPES = {"float8_e4m3fn": "fp8", "float8_e5m2": "fp8"}


@dataclass(frozen=True)
class Cost:
    """The cost of a case on all ``gpus`` of its program, without a profiler; None: not known.

    Energies are in J. Those of a step have the time ``step_s`` of a steady step, and ``items`` of it where the pipeline
    file states these. ``window_s`` is how long the counter of energy was read. ``euros_per_s`` are for all GPUs.

    ``flops`` are those of the model in one step on all GPUs, 0 where they are not known. torch counts them in a step
    that is not recorded. ``dtype`` is that of the most FLOPs. ``again`` are FLOPs of what the backward pass computes
    again, which is no work of the model. ``unknown`` are operators whose FLOPs are not known: then there are at least
    ``flops``. ``missing`` is why nothing is known, empty where torch did not record the case.
    """

    case: CaseResult
    gpus: int
    step_s: float
    step_j: float | None
    token_j: float | None
    window_s: float | None
    items: float | None
    euros_per_s: float | None
    #: A language model generates tokens: the price of a step says nothing.
    has_requests: bool = False
    flops: float = 0.0
    dtype: str = ""
    again: float = 0.0
    unknown: tuple[str, ...] = ()
    missing: str = ""
    #: The dense FLOP/s of a GPU for the data type of most of the work, by the data sheet.
    peak: float | None = None

    @property
    def power_w(self) -> float | None:
        """The mean power of all GPUs in a steady step."""
        return self.step_j / self.step_s if self.step_j else None

    @property
    def flops_per_s(self) -> float | None:
        """The FLOP/s of a GPU, as the mean over a step."""
        return self.flops / self.step_s / self.gpus if self.flops else None

    @property
    def mfu(self) -> float | None:
        """Model FLOP utilisation: the share of the peak FLOP/s."""
        return self.flops_per_s / self.peak if self.flops_per_s and self.peak else None

    @property
    def item_j(self) -> float | None:
        return self.step_j / self.items if self.step_j and self.items else None

    @property
    def euros_per_1000_steps(self) -> float | None:
        return 1e3 * self.step_s * self.euros_per_s if self.euros_per_s and not self.has_requests else None

    @property
    def euros_per_million_items(self) -> float | None:
        return 1e6 * self.step_s * self.euros_per_s / self.items if self.euros_per_s and self.items else None


def find_costs(workload: WorkloadFindings) -> Iterator[Cost]:
    """Yield the cost of each case whose steps were timed on a GPU without a profiler."""
    if workload.time_source != TimeSource("plain", "step"):
        return
    subjects = ((case, subject) for case, _, subject in workload.recorded.numbers)
    requests = {case for case, subject in subjects if subject.startswith(schema.PROMPT_PREFIX)}
    for case in workload.cases:
        numbers = workload.recorded.numbers.get((case.id, "plain", ""), {})
        values = {name: number.value for name, number in numbers.items()}
        if not case.time or not case.time.ns or not values.get(schema.GPUS):
            continue
        case_steps = workload.steps.of(case.id)
        # Which of several processes work on a token is not known.
        is_priced = case.id not in requests or (case_steps is not None and case_steps.processes == 1)
        gpus, window_ns = round(values[schema.GPUS]), values.get(schema.ENERGY_WINDOW)
        token_j, step_j = (values.get(name) for name in schema.ENERGIES)
        cost = Cost(
            case,
            gpus,
            step_s=case.time.ns / 1e9,
            step_j=step_j,
            token_j=token_j,
            window_s=None if window_ns is None else window_ns / 1e9,
            items=workload.steps.items.get(case.id),
            euros_per_s=workload.gpu.price * gpus / _S_PER_HOUR if workload.gpu.price and is_priced else None,
            has_requests=case.id in requests,
        )
        yield cost if cost.has_requests else _add_flops(cost, workload)


def _add_flops(cost: Cost, workload: WorkloadFindings) -> Cost:
    numbers = workload.recorded.numbers.get((cost.case.id, "torch", ""), {})
    metrics = {
        name.removeprefix(schema.FLOPS): number.value
        for name, number in numbers.items()
        if name.startswith(schema.FLOPS)
    }
    if not metrics:
        return cost
    why = [name.removeprefix("_missing.") for name in metrics if name.startswith("_missing.")]
    case_steps = workload.steps.of(cost.case.id)
    if case_steps and "plain" in case_steps.uneven:
        why.append("uneven")
    by_type = {name[1:]: flops for name, flops in metrics.items() if name.startswith(".") and flops}
    if not by_type and not why:
        why.append("none")
    if why:
        return replace(cost, missing=why[0])
    most = max(by_type, key=lambda name: by_type[name])
    unknown = tuple(name.removeprefix("_unknown.") for name in metrics if name.startswith("_unknown."))
    cost = replace(cost, flops=sum(by_type.values()), again=metrics.get("_again", 0.0), unknown=unknown)
    dtype = _DTYPES.get(most) or roofline.dtype_of(most)
    return replace(cost, dtype=dtype, peak=workload.gpu.data_sheet[1].get(dtype))
