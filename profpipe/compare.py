"""Two runs' times, case by case: how much faster or slower, and whether the difference exceeds their uncertainty."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pandas as pd

from profpipe.job import readable
from profpipe.tables import Tables
from profpipe.tolerance import INACCURATE

_KEY = ["workload", "case"]


@dataclass(frozen=True)
class Change:
    """One case in both runs; times are medians in ns, of events without a profiler."""

    workload: str
    case: str
    before_ns: float
    after_ns: float
    #: The confidence intervals of the two medians do not meet; None where a run kept none.
    distinct: bool | None
    #: The runs in which its result was outside the tolerance: ``A``, ``B``, ``A and B``; empty for none.
    inaccurate: str = ""

    @property
    def name(self) -> str:
        return f"{self.workload}/{readable(self.case)}"

    @property
    def percent(self) -> float:
        """Positive: B takes longer than A."""
        return (self.after_ns / self.before_ns - 1) * 100


def compare(a: Tables, b: Tables) -> list[Change]:
    """The cases that have a time in both runs, in the order of ``a``."""
    both = _times(a).merge(_times(b), on=_KEY, suffixes=("_a", "_b"))
    missed = {"A": _inaccurate(a), "B": _inaccurate(b)}
    changes = []
    for _, row in both.iterrows():
        case = (str(row["workload"]), str(row["case"]))
        where = " and ".join(run for run, cases in missed.items() if case in cases)
        changes.append(Change(*case, float(row["value_a"]), float(row["value_b"]), _distinct(row), where))
    return changes


def _inaccurate(data: Tables) -> set[tuple[str, str]]:
    marked = data.cases[data.cases["flags"].str.contains(f'"{INACCURATE}"', regex=False, na=False)]
    return set(zip(marked["workload"], marked["case"], strict=True))


def lost(a: Tables, b: Tables) -> list[str]:
    """The cases that have a time in ``a``, that ``b`` tried, and that failed there."""
    tried = b.cases[(b.cases["profiler"] == "plain") & ~b.cases["status"].isin(["ok", "skipped"])]
    bad = tried[_KEY].drop_duplicates().merge(_times(a)[_KEY], on=_KEY)
    return [f"{row['workload']}/{readable(row['case'])}" for _, row in bad.iterrows()]


def _times(data: Tables) -> pd.DataFrame:
    metrics = data.metrics
    plain = metrics[(metrics["metric"] == "time") & (metrics["profiler"] == "plain") & (metrics["subject"] == "")]
    return plain[[*_KEY, "value", "ci_low", "ci_high"]].dropna(subset=["value"])


def _distinct(row: pd.Series) -> bool | None:  # type: ignore[type-arg]
    ends = [row[f"{end}_{run}"] for run in "ab" for end in ("ci_low", "ci_high")]
    if any(pd.isna(end) for end in ends):
        return None
    low_a, high_a, low_b, high_b = ends
    return bool(high_a < low_b or high_b < low_a)


def slower(changes: Iterable[Change], percent: float) -> list[Change]:
    """Those that a gate of ``percent`` stops. A difference within the uncertainty stops nobody."""
    return [change for change in changes if change.percent > percent and change.distinct is not False]


def spoilt(changes: Iterable[Change]) -> list[Change]:
    """Those whose result was within the tolerance in A and is not in B, whatever time they take."""
    return [change for change in changes if change.inaccurate == "B"]


def text(changes: Sequence[Change], lost: Sequence[str] = ()) -> str:
    """One line a case."""
    failed = [f"{name}: has a time in A and failed in B" for name in lost]
    if not changes:
        return "\n".join(["No case has a time in both runs.", *failed])
    width = max(len(change.name) for change in changes)
    lines = [f"{'case':{width}}  {'A us':>12}  {'B us':>12}  {'B vs A':>8}"]
    for change in changes:
        doubt = {True: "", False: "  within the noise", None: "  no interval kept"}[change.distinct]
        doubt += f"  inaccurate in {change.inaccurate}" if change.inaccurate else ""
        times = f"{change.before_ns / 1e3:12.2f}  {change.after_ns / 1e3:12.2f}"
        lines.append(f"{change.name:{width}}  {times}  {change.percent:+7.1f}%{doubt}")
    return "\n".join([*lines, *failed])
