"""What a step of a program, or a token that it generates, costs: energy and money."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from profpipe.analysis.findings import CaseResult, WorkloadFindings
from profpipe.results import schema

_S_PER_HOUR = 3600


@dataclass(frozen=True)
class Cost:
    """The cost of a case on all ``gpus`` of its program, without a profiler; None: not known.

    Energies are in J. Those of a step have the time ``step_s`` of a steady step, and ``items`` of it where the pipeline
    file states these. ``window_s`` is how long the counter of energy was read. ``euros_per_s`` are for all GPUs.
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

    @property
    def power_w(self) -> float | None:
        """The mean power of all GPUs in a steady step."""
        return self.step_j / self.step_s if self.step_j else None

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
    if workload.basis is None or (workload.basis.profiler, workload.basis.quantity) != ("plain", "step"):
        return
    subjects = ((case, subject) for case, _, subject in workload.recorded.numbers)
    requests = {case for case, subject in subjects if subject.startswith(schema.PROMPT_PREFIX)}
    for case in workload.cases:
        numbers = workload.recorded.numbers.get((case.id, "plain", ""), {})
        known = {name: number.value for name, number in numbers.items()}
        if not case.time or not case.time.ns or not known.get(schema.GPUS):
            continue
        own = workload.steps.of(case.id)
        # Which of several processes work on a token is not known.
        is_priced = case.id not in requests or (own is not None and own.processes == 1)
        gpus, window_ns = round(known[schema.GPUS]), known.get(schema.ENERGY_WINDOW)
        token_j, step_j = (known.get(name) for name in schema.ENERGIES)
        yield Cost(
            case,
            gpus,
            step_s=case.time.ns / 1e9,
            step_j=step_j,
            token_j=token_j,
            window_s=None if window_ns is None else window_ns / 1e9,
            items=workload.steps.items.get(case.id),
            euros_per_s=workload.price * gpus / _S_PER_HOUR if workload.price and is_priced else None,
            has_requests=case.id in requests,
        )
