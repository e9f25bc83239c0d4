"""What casts doubt on a run: what did not run, what ran instead, what no rule knows, what lies outside every case."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import pandas as pd

from profpipe.analysis.shares import PREFERENCE, device_rows, unclassified
from profpipe.concerns import Coverage, Expectation, NotRun, Unattributed, Unseen, status_told
from profpipe.tables import Tables

#: What a workload answers when it expects gemm, softmax and gemm rather than one attention kernel.
_UNFUSED = ("unfused", "math", "none")

#: Kernels of the harness's own loop: the cache flush, ``zero_`` of an int32 buffer, which runs between the samples of
#: every case, and ``torch.cuda._sleep``, by which it counts the clock.
_OWN = r"FillFunctor<int>|spin_kernel"

#: Profilers that the harness starts for the measured iterations and stops after them: they see no set-up or warm-up.
_ITERATIONS_ONLY = ("torch", "ncu")

#: How the runner ends a reason: with the log's path as one sees it from where the run was started.
_NAMED_LOG = re.compile(r"\s*\(log: (.+)\)$")

#: What torch's allocator says of a GPU that is full: sizes that differ from case to case, and advice.
_FULL = re.compile(r"CUDA out of memory\. Tried to allocate .*? has a total capacity of ([\d.]+ \w+)\b.*", re.DOTALL)


def not_run(tables: Tables, run: Mapping[str, Any]) -> tuple[NotRun, ...]:
    """Cases that did not end well, gathered by their fate; jobs whose fate no case tells."""
    bad = tables.cases[~tables.cases["status"].isin(["ok", ""])]
    logs = [str(job["log"]) for job in run.get("jobs") or () if job.get("log")]
    bad = bad.assign(
        status=[status_told(*pair) for pair in zip(bad["status"], bad["reason"], strict=True)],
        reason=[_FULL.sub(r"CUDA out of memory, of \1", _without_log(reason, logs)) for reason in bad["reason"]],
    )
    groups = [
        _group(own, tables, run)
        for _, rows in bad.groupby(["workload", "status", "reason"], sort=False)
        for own in _under_the_same(rows)
    ]
    told, seen = (set(zip(rows["workload"], rows["profiler"], strict=True)) for rows in (bad, tables.cases))
    return tuple(groups + list(_jobs(run, told, seen)))


def _under_the_same(rows: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """The rows of those cases that met it under the same profilers, together: of profilers and cases named side by side
    each goes with each.
    """
    under: dict[str, frozenset[str]] = {}
    for case, profiler in zip(rows["case"], rows["profiler"], strict=True):
        under[case] = under.get(case, frozenset()) | {profiler}
    for profilers in dict.fromkeys(under.values()):
        yield rows[[under[case] == profilers for case in rows["case"]]]


def _group(rows: pd.DataFrame, tables: Tables, run: Mapping[str, Any]) -> NotRun:
    workload, status, reason = (str(rows[key].iloc[0]) for key in ("workload", "status", "reason"))
    profilers, cases = tuple(rows["profiler"].drop_duplicates()), tuple(rows["case"].drop_duplicates())
    every = set(tables.cases.loc[tables.cases["workload"] == workload, "case"])
    logs = tuple(job["log"] for job in run.get("jobs") or () if job.get("log") and job.get("workload") == workload
                 and job.get("profiler") in profilers and set(job.get("cases") or cases) & set(cases))  # fmt: skip
    return NotRun(workload, status, reason, profilers, cases, set(cases) == every, tuple(dict.fromkeys(logs)))


def _without_log(reason: str, logs: Collection[str]) -> str:
    """``reason`` without the path of a log that is linked beside it."""
    named = _NAMED_LOG.search(reason)
    return reason[: named.start()] if named and any(named[1].endswith(log) for log in logs) else reason


def _jobs(run: Mapping[str, Any], told: set[tuple[str, str]], seen: set[tuple[str, str]]) -> Iterator[NotRun]:
    for job in run.get("jobs") or ():
        workload, profiler = str(job.get("workload", "")), str(job.get("profiler", ""))
        if job.get("status", "ok") != "ok" and (workload, profiler) not in told:
            logs = (str(job["log"]),) if job.get("log") else ()
            reason = str(job.get("reason") or "")
            status = status_told(str(job["status"]), reason)
            after_cases = (workload, profiler) in seen
            yield NotRun(workload, status, _without_log(reason, logs), (profiler,), (), True, logs, after_cases)


def preferred(kernels: pd.DataFrame) -> str | None:
    """The profiler whose kernels stand for a workload."""
    present = set(device_rows(kernels)["profiler"])
    return next((name for name in PREFERENCE if name in present), None)


def expectations(tables: Tables, run: Mapping[str, Any]) -> tuple[Expectation, ...]:
    """For each case that names a kernel family and whose kernels were seen: whether that family ran.

    CPU operators are left out: what a workload expects is the kernel of a GPU.
    """
    kernels = tables.kernels[tables.kernels["kind"] == "kernel"]
    found = []
    for workload, asked in (run.get("expects") or {}).items():
        for case, family in (asked or {}).items():
            rows = kernels[(kernels["workload"] == workload) & (kernels["case"] == case)]
            if family and len(rows):
                found.append(_expectation(workload, case, family, rows[rows["profiler"] == preferred(rows)]))
    return tuple(found)


def _expectation(workload: str, case: str, asked: str, rows: pd.DataFrame) -> Expectation:
    attention = rows[rows["kernel_class"] == "attention"]
    named = attention.assign(family=attention["kernel_family"].where(attention["kernel_family"] != "", "unnamed"))
    families = tuple(named.groupby("family")["total_ns"].sum().sort_values(ascending=False).index.astype(str))
    # A family may be `sage2|sparge` on either side: any of them was asked for, or the name does not tell which ran.
    ran = {name for family in families for name in family.split("|")}
    met = not families if asked in _UNFUSED else bool(ran & set(asked.split("|")))
    own_copy = "fa2" in asked.split("|") and bool(attention["kernel"].str.contains("pytorch_flash", regex=False).any())
    return Expectation(workload, case, asked, families, met, own_copy)


def coverage(tables: Tables, run: Mapping[str, Any]) -> tuple[Coverage, ...]:
    """The classified share of each workload's kernel time, by the profiler that stands for it."""
    minimum = ((run.get("pipeline") or {}).get("coverage") or {}).get("min_classified")
    found = []
    for workload, rows in tables.kernels.groupby("workload", sort=False):
        profiler = preferred(rows)
        if profiler is not None:
            rows = device_rows(_inside(rows[rows["profiler"] == profiler]))
            total, classified, largest = unclassified(rows, limit=5)
            kind = str(rows["kind"].iloc[0])
            found.append(Coverage(str(workload), profiler, kind, total, classified, largest, minimum))
    return tuple(found)


def _inside(kernels: pd.DataFrame) -> pd.DataFrame:
    """The rows inside cases; all where nothing has a case."""
    inside = kernels[kernels["case"] != ""]
    return inside if len(inside) else kernels


def unattributed(tables: Tables, run: Mapping[str, Any]) -> tuple[Unattributed, ...]:
    """Kernel time outside every case, of files that have cases at all."""
    ours = {(job.get("workload"), job.get("profiler")) for job in run.get("jobs") or () if job.get("cases")}
    found = []
    for (workload, profiler), rows in tables.kernels.groupby(["workload", "profiler"], sort=False):
        rows = device_rows(rows)
        outside = rows[rows["case"] == ""]
        ns = float(outside["total_ns"].sum())
        if ns and len(outside) < len(rows):
            flush = float(outside.loc[outside["kernel"].str.contains(_OWN), "total_ns"].sum())
            share = ns / float(rows["total_ns"].sum())
            own_run = (workload, profiler) in ours and profiler not in _ITERATIONS_ONLY
            found.append(Unattributed(str(workload), str(profiler), ns, share, flush, own_run))
    return tuple(found)


def unseen(tables: Tables) -> tuple[Unseen, ...]:
    """Cases that ended well without a kernel in a capture that has kernels of others.

    ncu is left out: it profiles what it was told to.
    """
    seen: dict[tuple[str, str], set[str]] = {}
    names = ("workload", "profiler", "case")
    for workload, profiler, case in zip(*(tables.kernels[name] for name in names), strict=True):
        seen.setdefault((workload, profiler), set()).add(case)
    found = []
    well = tables.cases[tables.cases["status"] == "ok"]
    for (workload, profiler), rows in well.groupby(["workload", "profiler"], sort=False):
        others = seen.get((str(workload), str(profiler)), set()) - {""}
        missing = tuple(case for case in rows["case"] if case not in others)
        if others and missing and profiler != "ncu":
            found.append(Unseen(str(workload), str(profiler), missing))
    return tuple(found)
