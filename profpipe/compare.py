"""Two runs' times, case by case: how much faster or slower, and whether the difference exceeds their uncertainty."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from profpipe.concerns import has_failed
from profpipe.job import readable
from profpipe.tables import Tables
from profpipe.tolerance import INACCURATE

_KEY = ["workload", "case"]

#: (workload, case id).
_Case = tuple[str, str]


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
        return _name((self.workload, self.case))

    @property
    def percent(self) -> float:
        """Positive: B takes longer than A."""
        return (self.after_ns / self.before_ns - 1) * 100


@dataclass(frozen=True)
class Unlike:
    """A case that has one name in both runs and is not the same: what a name does not hold differs."""

    case: str
    #: As ``head_dim 64 and 128``: the value in A, then the one in B.
    params: tuple[str, ...]


@dataclass(frozen=True)
class Comparison:
    """All that two runs' tables and records say of B beside A."""

    changes: tuple[Change, ...]
    #: By name: what has a time in A and failed in B, and what has none in B for no failure.
    lost: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    unlike: tuple[Unlike, ...] = ()
    #: What A and B ran on, where that differs.
    gpus: tuple[str, str] | None = None
    #: Whether B was stopped before it had done everything.
    unfinished: bool = False


def examined(a: Tables, b: Tables, record_a: Mapping[str, Any], record_b: Mapping[str, Any]) -> Comparison:
    """``compare`` and all that casts doubt on it; the records are those of ``run.json``."""
    gpus = _gpus(record_a), _gpus(record_b)
    differ = gpus if all(gpus) and gpus[0] != gpus[1] else None
    changes, failed, others = compare(a, b), lost(a, b), unlike(a, b)
    told = {*failed, *(change.name for change in changes), *(case.case for case in others)}
    absent = tuple(name for name in map(_name, _keys(_times(a))) if name not in told)
    unfinished = "jobs" in record_b and not record_b.get("ended")
    return Comparison(tuple(changes), tuple(failed), absent, tuple(others), differ, unfinished)


def _gpus(record: Mapping[str, Any]) -> str:
    """What a run was made on; empty where it does not say."""
    gpus = (record.get("machine") or {}).get("gpus")
    return "" if gpus is None else ", ".join(str(gpu.get("name") or "a GPU") for gpu in gpus) or "no GPU"


def compare(a: Tables, b: Tables) -> list[Change]:
    """The cases that have a time in both runs, in the order of ``a``, but for those whose parameters differ."""
    differ = {case.case for case in unlike(a, b)}
    both = _times(a).merge(_times(b), on=_KEY, suffixes=("_a", "_b"))
    missed = {"A": _inaccurate(a), "B": _inaccurate(b)}
    changes = []
    for _, row in both.iterrows():
        case = (str(row["workload"]), str(row["case"]))
        where = " and ".join(run for run, cases in missed.items() if case in cases)
        changes.append(Change(*case, float(row["value_a"]), float(row["value_b"]), _distinct(row), where))
    return [change for change in changes if change.name not in differ]


def unlike(a: Tables, b: Tables) -> list[Unlike]:
    """The cases that have a time in both runs, with other parameters than their names hold: ``params`` of the file.

    A case of which one run keeps no parameters, as one that was read from a file, is taken for the same.
    """
    params, found = (_params(a), _params(b)), []
    for case in _keys(_times(a).merge(_times(b)[_KEY], on=_KEY)):
        in_a, in_b = (of.get(case) for of in params)
        if in_a and in_b and in_a != in_b:
            names = [name for name in {**in_a, **in_b} if in_a.get(name, _NONE) != in_b.get(name, _NONE)]
            values = (f"{name} {_word(in_a, name)} and {_word(in_b, name)}" for name in names)
            found.append(Unlike(_name(case), tuple(values)))
    return found


#: Of a parameter that a run does not have; it may have one that is null.
_NONE = object()


def _word(params: Mapping[str, Any], name: str) -> str:
    value = params.get(name, _NONE)
    return "none" if value is _NONE else value if isinstance(value, str) else json.dumps(value)


def _params(data: Tables) -> dict[_Case, dict[str, Any]]:
    """All parameters of each case, as the process that was timed had them."""
    rows = data.cases[(data.cases["profiler"] == "plain") & (data.cases["params"].fillna("") != "")]
    return dict(zip(_keys(rows), map(json.loads, rows["params"]), strict=True))


def _keys(rows: pd.DataFrame) -> list[_Case]:
    return [(str(workload), str(case)) for workload, case in zip(rows["workload"], rows["case"], strict=True)]


def _name(case: _Case) -> str:
    return f"{case[0]}/{readable(case[1])}"


def _inaccurate(data: Tables) -> set[tuple[str, str]]:
    marked = data.cases[data.cases["flags"].str.contains(f'"{INACCURATE}"', regex=False, na=False)]
    return set(zip(marked["workload"], marked["case"], strict=True))


def lost(a: Tables, b: Tables) -> list[str]:
    """The cases that have a time in ``a``, that ``b`` tried, and that failed there."""
    tried = b.cases[(b.cases["profiler"] == "plain") & ~b.cases["status"].isin(["ok", "skipped"])]
    bad = tried[_KEY].drop_duplicates().merge(_times(a)[_KEY], on=_KEY)
    return [_name(case) for case in _keys(bad)]


def _times(data: Tables) -> pd.DataFrame:
    metrics = data.metrics
    plain = metrics[(metrics["metric"] == "time") & (metrics["profiler"] == "plain") & (metrics["subject"] == "")]
    own = data.cases[data.cases["profiler"] == "plain"]
    failed = set(itertools.compress(_keys(own), map(has_failed, own["status"], own["reason"])))
    ended = pd.Series([case not in failed for case in _keys(plain)], index=plain.index, dtype=bool)
    return plain.loc[ended, [*_KEY, "value", "ci_low", "ci_high"]].dropna(subset=["value"])


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


def text(changes: Sequence[Change], lost: Sequence[str] = (), nothing: str = "No case has a time in both runs.") -> str:
    """One line a case; ``nothing`` where there is none."""
    failed = [f"{name}: has a time in A and failed in B" for name in lost]
    if not changes:
        return "\n".join([nothing, *failed])
    width = max(len(change.name) for change in changes)
    lines = [f"{'case':{width}}  {'A us':>12}  {'B us':>12}  {'B vs A':>8}"]
    for change in changes:
        doubt = {True: "", False: "  within the noise", None: "  no interval kept"}[change.distinct]
        doubt += f"  inaccurate in {change.inaccurate}" if change.inaccurate else ""
        times = f"{change.before_ns / 1e3:12.2f}  {change.after_ns / 1e3:12.2f}"
        lines.append(f"{change.name:{width}}  {times}  {change.percent:+7.1f}%{doubt}")
    return "\n".join([*lines, *failed])


def page(found: Comparison) -> str:
    """``text``, and a line for each thing that makes the runs unlike."""
    nothing = {"nothing": "No case is the same in both runs."} if found.unlike else {}
    lines = [text(found.changes, found.lost, **nothing)]
    lines += [f"{name}: has a time in A and none in B" for name in found.absent]
    if found.unlike:
        lines.append(f"Not compared, for their parameters differ ({_cases(found.unlike)}; in A and in B):")
        lines += [f"{case.case}: {', '.join(case.params)}" for case in found.unlike]
    if found.gpus:
        lines.append(f"The GPUs differ: A ran on {found.gpus[0]}, B on {found.gpus[1]}.")
    return "\n".join(lines + (["B has not ended: `profpipe resume` goes on with it."] if found.unfinished else []))


def objection(found: Comparison, percent: float) -> str:
    """Why a gate of ``percent`` stops B; empty where it does not."""
    if found.unfinished:
        return "B has not ended, so what it lacks cannot be judged. `profpipe resume` goes on with it."
    if stopped := slower(found.changes, percent):
        names = ", ".join(change.name for change in stopped)
        return f"{_cases(stopped, 'is', 'are')} more than {percent:g} % slower: {names}"
    if stopped := spoilt(found.changes):
        names = ", ".join(change.name for change in stopped)
        return f"{_cases(stopped, 'was', 'were')} within the tolerance in A, and not in B: {names}"
    if found.lost:
        return f"{_cases(found.lost, 'had', 'had')} a time in A and did not end well in B: {', '.join(found.lost)}"
    if found.unlike:
        names = ", ".join(dict.fromkeys(param.split()[0] for case in found.unlike for param in case.params))
        return f"{_cases(found.unlike, 'has', 'have')} other parameters in B, so nothing is known of them: {names}"
    return "" if found.changes else "there is nothing to judge. Name two runs of the same cases, both under plain."


def _cases(found: Sequence[object], one: str = "", several: str = "") -> str:
    return f"1 case {one}".rstrip() if len(found) == 1 else f"{len(found)} cases {several}".rstrip()
