"""A case on A and on B, measured in pairs of processes or once on each side, and what such cases mean for a gate."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from profpipe import errors
from profpipe.analysis.kernel_differences import KernelComparison
from profpipe.analysis.verdict import ALPHA_SAME, Judgement, p_values
from profpipe.job import readable
from profpipe.results.manifest import Undecided
from profpipe.results.schema import FAILED, Verdict


@dataclass(frozen=True)
class Failure:
    """A case that did not run well. ``is_of_b_alone``: a process of B failed, and none of A."""

    status: str
    reason: str
    is_of_b_alone: bool = True


@dataclass(frozen=True)
class MetricChange:
    """B compared with A by one metric. Pairs of processes have a ``judgement``, and one run of A and of B has none.

    ``a_ns`` and ``b_ns`` are medians over processes, and NaN where nothing is compared; those of an energy are in J. A
    case that would have failed the gate was measured in a second block of pairs, and one that was undecided in further
    pairs: then ``judgement`` is that of the last block alone, and ``first`` that of the first block. ``further_pairs``
    is 0 where no further pairs were judged. ``log_ratios`` are those of the pairs behind ``judgement``.
    ``earlier_ratios`` are those of the block before the further pairs; without further pairs there are none.
    """

    metric: str = ""
    a_ns: float = math.nan
    b_ns: float = math.nan
    failure: Failure | None = None
    #: None where no pair has both times, and where a process failed.
    judgement: Judgement | None = None
    first: Judgement | None = None
    log_ratios: tuple[float, ...] = ()
    further_pairs: int = 0
    earlier_ratios: tuple[float, ...] = ()

    @property
    def verdict(self) -> Verdict | None:
        return self.judgement.verdict if self.judgement else None

    @property
    def has_difference(self) -> bool:
        return self.verdict in (Verdict.FASTER, Verdict.SLOWER)

    @property
    def ratio(self) -> float:
        """B / A; NaN where it is not known, and where a process failed."""
        if self.judgement:
            return self.judgement.ratio
        return math.nan if self.failure else self.b_ns / self.a_ns

    @property
    def percent(self) -> float:
        """Positive: B takes longer than A."""
        return (self.ratio - 1) * 100

    @property
    def difference_ns(self) -> float:
        """B - A; of pairs the estimate over them, in the time of A."""
        return self.a_ns * (self.ratio - 1)


@dataclass(frozen=True)
class Change(MetricChange):
    """A case of both sides, or of A alone."""

    workload: str = ""
    case: str = ""
    #: Whether a difference of one run each is more than chance; None where their spread is missing and could tell.
    is_beyond_noise: bool | None = None
    #: Whether a signal ended its process in A or B: its wall time is that of the signal.
    was_ended: bool = False
    #: The sides on which the result was outside the tolerance: ``A``, ``B`` or both.
    inaccurate_in: tuple[str, ...] = ()
    #: The values of A and B of the parameters that differ, None without one. They are no part of the case's name.
    differing_params: Mapping[str, tuple[str | None, ...]] = field(default_factory=dict)
    flags: str = "[]"
    #: The difference by kernel, where both sides have a capture.
    kernels: KernelComparison | None = None
    #: The same case by its energy, which no gate judges. None where a side has no energy.
    energy: MetricChange | None = None

    @property
    def key(self) -> tuple[str, str]:
        return self.workload, self.case

    @property
    def name(self) -> str:
        """The name of the case: ``attention/batch=2,seqlen=512``."""
        return f"{self.workload}/{readable(self.case)}"

    @property
    def is_newly_inaccurate(self) -> bool:
        return self.inaccurate_in == ("B",)


# --- the gate --------------------------------------------------------------------------------------------------------


class Gate(Enum):
    """What a case means for a gate, and the result of the gate."""

    PASSED = "passed"
    FAILED = "failed"
    UNDECIDED = "undecided"


class GateCause(Enum):
    """Why a case does not pass a gate."""

    SLOWER = "slower"
    NEWLY_INACCURATE = "newly_inaccurate"
    #: It failed on B alone.
    LOST = "lost"
    CHANGED_PARAMS = "changed_params"
    #: It may be slower, and the data do not tell whether that is chance or drift.
    UNDECIDED = "undecided"
    #: It has no times that can be compared.
    ABSENT = "absent"
    #: A signal ended its process in A or B.
    ENDED = "ended"

    @property
    def gate(self) -> Gate:
        is_open = self in (GateCause.UNDECIDED, GateCause.ABSENT, GateCause.ENDED)
        return Gate.UNDECIDED if is_open else Gate.FAILED


@dataclass(frozen=True)
class GateResult:
    """The result of a gate of ``percent``, and the cases that do not pass it, in their order."""

    percent: float
    verdict: Gate
    causes: tuple[tuple[Change, GateCause], ...]
    undecided: Undecided = Undecided.REPORT

    @property
    def failed(self) -> tuple[Change, ...]:
        return tuple(change for change, cause in self.causes if cause.gate is Gate.FAILED)

    @property
    def open(self) -> tuple[Change, ...]:
        """The cases that neither pass the gate nor fail it."""
        return tuple(change for change, cause in self.causes if cause.gate is Gate.UNDECIDED)

    def judge(self, change: Change) -> Gate:
        """Return what one of the cases means for the gate."""
        cause = find_gate_cause(change, self.percent)
        return cause.gate if cause else Gate.PASSED


def judge_gate(
    changes: Sequence[Change], percent: float, undecided: Undecided = Undecided.REPORT, *, is_complete: bool = True
) -> GateResult:
    """Return the result of a gate of ``percent``. ``undecided`` says what cases count as that neither pass nor fail.

    Nothing passes without a case, and none of a run that is not complete. A case without times may be any slower.
    """
    causes = tuple((change, cause) for change in changes if (cause := find_gate_cause(change, percent)))
    gates = {cause.gate for _, cause in causes}
    lacks_cases = not changes or not is_complete
    is_open = lacks_cases or Gate.UNDECIDED in gates
    if Gate.FAILED in gates or (is_open and undecided is Undecided.FAIL):
        verdict = Gate.FAILED
    elif lacks_cases or (is_open and (undecided is Undecided.REPORT or any(_lacks_times(*why) for why in causes))):
        verdict = Gate.UNDECIDED
    else:
        verdict = Gate.PASSED
    return GateResult(percent, verdict, causes, undecided)


def find_gate_cause(change: Change, percent: float) -> GateCause | None:
    """Return why a case does not pass a gate of ``percent``; None if it passes."""
    if change.differing_params:
        return GateCause.CHANGED_PARAMS
    if change.is_newly_inaccurate:
        return GateCause.NEWLY_INACCURATE
    if change.failure:
        return GateCause.LOST if change.failure.is_of_b_alone else GateCause.ABSENT
    if math.isnan(change.ratio):
        return GateCause.ENDED if change.was_ended else GateCause.ABSENT
    causes = {Gate.FAILED: GateCause.SLOWER, Gate.UNDECIDED: GateCause.UNDECIDED}
    return causes.get(judge_time(change, percent))


def judge_time(change: Change, percent: float) -> Gate:
    """Return what the difference of a case means for a gate of ``percent``.

    It fails where B is slower by more, and that is no chance. Pairs pass where B is FASTER, SLOWER by less, or SAME
    with a floor below the gate, and where the one-sided test rejects at 5 % that B is slower by the gate or more.
    """
    judged = change.judgement
    if judged is None:
        is_slower = change.is_beyond_noise if change.percent > percent else False
        return {True: Gate.FAILED, False: Gate.PASSED, None: Gate.UNDECIDED}[is_slower]
    if judged.verdict is Verdict.SLOWER and judged.percent > percent:
        return Gate.FAILED
    is_fine = judged.verdict is Verdict.SAME and 100 * judged.floor <= percent
    if is_fine or judged.verdict in (Verdict.FASTER, Verdict.SLOWER):
        return Gate.PASSED
    limit = math.log1p(percent / 100)
    p_slower = p_values([value - limit for value in change.log_ratios])[0]
    return Gate.PASSED if p_slower <= ALPHA_SAME else Gate.UNDECIDED


def _lacks_times(change: Change, cause: GateCause) -> bool:
    """Return True for an open case that failed or lacks times. A skipped one is not expected to have times."""
    if cause is GateCause.ENDED:
        return True
    return cause is GateCause.ABSENT and (change.failure is None or change.failure.status in FAILED)


def choose_exit_code(gate: GateResult | None, has_failures: bool = False) -> int:
    """Return the exit code: a failed gate comes before a failed case, and that before an undecided gate."""
    if gate and gate.verdict is Gate.FAILED:
        return errors.GATE_FAILED
    if has_failures:
        return errors.SOME_FAILED
    return errors.GATE_UNDECIDED if gate and gate.verdict is Gate.UNDECIDED else errors.OK
