"""Why a GPU waits for the host in a step, or what a step without a GPU is made of: the metrics ``step_wait_*``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from profpipe.analysis.steps import CaseSteps, RankSteps, StepPart
from profpipe.results.schema import (
    HOST_CODE,
    LAUNCHING,
    PATH_SEPARATOR,
    RANK_PREFIX,
    WAIT_HIDDEN,
    WAIT_IDLE,
    WAIT_LOADING,
)

if TYPE_CHECKING:
    from profpipe.analysis.findings import WorkloadFindings

#: What a profiler slows down: its overhead is taken from these causes first.
_SLOWED: Final = (LAUNCHING, HOST_CODE)
#: About what a profiler adds to a launch: on H200 machines nsys added 6 to 10 us and torch.profiler 14 to 35 us to most
#: programs. By what a step is longer beyond that, all code of the host was slower.
_LAUNCH_NS: Final = {"nsys": 10_000.0, "torch": 30_000.0}


@dataclass(frozen=True)
class Wait:
    """A cause of idle time, in ns of a mean steady step, those of all lines together but for code of the program.

    ``hidden_ns`` are those in which the GPU had work. ``places`` are the lines, such as ``train.py:41``, with their
    time, the largest first.
    """

    cause: str
    idle_ns: float
    hidden_ns: float
    places: tuple[tuple[str, float], ...]

    @property
    def name(self) -> str:
        """The cause without its details: ``DataLoader``."""
        return self.cause.partition(" (")[0]

    @property
    def detail(self) -> str:
        """``0 workers``; empty without details."""
        return self.cause.partition(" (")[2].removesuffix(")")


def find_waits(workload: WorkloadFindings, case_steps: CaseSteps, rank: RankSteps | None = None) -> tuple[Wait, ...]:
    """Return the causes under the profiler of the parts of a step, the largest first; nothing where none is recorded.

    On a GPU they add up to the idle time before late launches in ``case_steps.parts_without_profiler``; on a CPU to the
    step under the profiler. Of several ranks they are the mean; those of a ``rank`` are as they were recorded.
    """
    recorded = workload.recorded.step_numbers
    parts = case_steps.parts_without_profiler if case_steps.is_on_gpu and rank is None else None
    by_profiler = {name: recorded.get((case_steps.case, name), {}) for name in (case_steps.profiler, *case_steps.times)}
    profiler, numbers = next((pair for pair in by_profiler.items() if pair[1].get(WAIT_IDLE)), ("", {}))
    of = "" if rank is None else f"{RANK_PREFIX}{rank.rank}{PATH_SEPARATOR}"
    idle, hidden = (
        {
            subject.removeprefix(of): row.value
            for subject, row in numbers.get(metric, {}).items()
            if (subject.startswith(of) if of else not subject.startswith(RANK_PREFIX))
        }
        for metric in (WAIT_IDLE, WAIT_HIDDEN)
    )
    if parts is not None and idle:
        late_ns, idle_ns = parts.ns[StepPart.IDLE_LAUNCH] + parts.ns[StepPart.IDLE_BLOCKED], sum(idle.values())
        if parts is case_steps.parts and numbers is by_profiler[case_steps.profiler] and idle_ns:
            # The last step, whose end is an estimate, has no causes.
            idle = {subject: ns * late_ns / idle_ns for subject, ns in idle.items()}
        else:
            idle = _take_overhead(idle, idle_ns - late_ns, case_steps.kernels * _LAUNCH_NS.get(profiler, np.inf))
    grouped: dict[tuple[str, str], list[tuple[str, float, float]]] = {}
    for subject in dict.fromkeys([*idle, *hidden]):
        cause, _, place = subject.partition(PATH_SEPARATOR)
        apart = place if cause == HOST_CODE else ""
        row = place, idle.get(subject, 0.0), hidden.get(subject, 0.0)
        grouped.setdefault((cause, apart), []).append(row)
    waits = [
        Wait(
            cause,
            sum(idle_ns for _, idle_ns, _ in rows),
            sum(hidden_ns for *_, hidden_ns in rows),
            tuple(sorted(((place, max(ns, late)) for place, ns, late in rows if place), key=lambda pair: -pair[1])),
        )
        for (cause, _), rows in grouped.items()
    ]
    return tuple(sorted(waits, key=lambda wait: (-wait.idle_ns, -wait.hidden_ns)))


def join_waits(waits: Sequence[Wait]) -> Wait:
    """Return the waits of one cause, of which host code has one a line, as a single one."""
    idle_ns, hidden_ns = (sum(getattr(wait, name) for wait in waits) for name in ("idle_ns", "hidden_ns"))
    places = sorted((place for wait in waits for place in wait.places), key=lambda pair: -pair[1])
    return Wait(waits[0].cause, idle_ns, hidden_ns, tuple(places))


def find_loading(workload: WorkloadFindings, case_steps: CaseSteps, waits: Sequence[Wait]) -> tuple[Wait, float] | None:
    """Return the wait for the data loader in a step without a profiler, and the ns of that step.

    A profiler slows the rest of a step, and hides a part of this wait behind it. None where it was not measured.
    """
    plain = workload.recorded.step_numbers.get((case_steps.case, "plain"), {}).get(WAIT_LOADING, {}).get("")
    wait = next((wait for wait in waits if wait.name == "DataLoader"), None)
    if plain is None or wait is None or not case_steps.is_on_gpu or case_steps.processes > 1:
        return None
    idle_ns = max(plain.value - wait.hidden_ns, wait.idle_ns)
    step_ns = case_steps.times["plain"].ns
    longer = idle_ns / max(wait.idle_ns, 1.0)
    places = tuple((place, ns * longer) for place, ns in wait.places)
    return (Wait(wait.cause, idle_ns, wait.hidden_ns, places), step_ns) if idle_ns < step_ns else None


def _take_overhead(idle: dict[str, float], overhead_ns: float, of_launches_ns: float) -> dict[str, float]:
    """Return the causes without what the profiler added: first to launches, then to all code, then to the rest."""
    left = dict(idle)
    for causes, most_ns in (((LAUNCHING,), of_launches_ns), (_SLOWED, np.inf), (("",), np.inf)):
        slowed = {subject: ns for subject, ns in left.items() if subject.startswith(causes)}
        total = sum(slowed.values())
        taken = min(max(overhead_ns, 0.0), total, most_ns)
        left |= {subject: ns * (1 - taken / total) for subject, ns in slowed.items()} if total else {}
        overhead_ns -= taken
    # Less is left by rounding.
    return {subject: ns if ns >= 1.0 else 0.0 for subject, ns in left.items()}
