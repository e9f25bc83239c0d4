"""Choose the kernels that Nsight Compute replays: those with the largest share of a case, and one launch of each.

To replay every kernel of a training step takes minutes, and three kernels usually take most of its time. Their names
come from the nsys or torch capture of the same case in the same run. So does the launch: a step launches a kernel such
as torch's direct copy dozens of times, in grids of different sizes, and the first launch is not typical. The launches
in the last iteration are grouped by grid, block and duration. The chosen launch has the median duration in the group
that takes the most time.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

import pandas as pd

from profpipe.ingest import ncu as guide_file
from profpipe.ingest.ncu import Choice, Guide
from profpipe.job import Case, GuidedKernels, Job, Missing
from profpipe.profilers import ALL
from profpipe.results.schema import FAILED, Tables

#: Returns the single launches in a source file (``launch_tables.COLUMNS``); empty if it has none.
Launches = Callable[[str], pd.DataFrame]

#: The chosen launches of each case.
_Group = dict[str, tuple[Choice, ...]]

#: The profilers whose capture names the kernels, in order of preference: nsys before torch.
GUIDES: Final = sorted(name for name, module in ALL.items() if module.TRAITS.guides_ncu)

_IDENTIFIER = re.compile(r"[A-Za-z_]\w{3,}")
#: Words that the tools spell differently, or that occur in every name.
_COMMON: Final = frozenset(
    (
        *("anonymous", "array", "bool", "char", "const", "cutlass", "detail", "float", "function", "half", "impl"),
        *("int", "lambda", "long", "memory", "namespace", "native", "operator", "std", "unsigned", "void"),
        *("LoadWithoutCast", "StoreWithoutCast", "TensorIteratorBase", "TrivialOffsetCalculator"),
    )
)
#: How many template arguments a pattern names. More would make it slow and no more exact.
_WORDS: Final = 4
#: In a group of similar launches, sorted by duration, each takes at most this many times as long as the one before.
_LIKE: Final = 1.2


def is_guided(job: Job) -> bool:
    """Return True if the captures of other profilers choose the kernels of ``job``."""
    return job.profiler == "ncu" and job.settings.ncu.kernels == "guided"


def jobs(
    waiting: Iterable[Job],
    data: Tables,
    launches: Launches,
    earlier: Mapping[Path, Sequence[Guide]] = MappingProxyType({}),
) -> list[Job]:
    """Return the jobs in place of the guided jobs ``waiting``, each with the names of its kernels and the launches.

    ncu counts the launches of a kernel over its whole process. So two cases share a process only if neither launches a
    kernel that is chosen for the other. ``earlier`` are the guides of this run so far, by the folder of the job: cases
    with an unchanged choice stay together, so that their job is recognised.
    """
    made = []
    read = functools.cache(launches)
    for job in waiting:
        if isinstance(job.tool, Missing):
            made.append(job)
            continue
        captured = {case.id: captured_kernels(data, job, case) for case in job.cases}
        chosen = {case.id: _choices(job, case, captured[case.id], read) for case in job.cases if len(captured[case.id])}
        # Of a capture with steps ncu records one step, and counts the launches from its begin.
        sources = [str(rows["source"].iloc[-1]) for rows in captured.values() if len(rows)] if job.is_hooked else []
        by_step = any(bool((read(source)["iteration"] != 0).any()) for source in sources) if job.is_hooked else None
        kept = _unchanged_groups(chosen, earlier.get(job.folder, ()))
        others = {case: choices for case, choices in chosen.items() if not any(case in group for group in kept)}
        groups = kept + _groups(others, {case: set(rows["kernel"]) for case, rows in captured.items()})
        made += [_narrow(job, job.folder, group, by_step) for group in groups]
        if left := tuple(case for case in job.cases if case.id not in chosen):
            unguided = job.select_cases(left).move_to(job.folder / "unguided")
            made.append(replace(unguided, tool=_NO_GUIDE))
    return made


def chosen(job: Job) -> tuple[Choice, ...]:
    """Return the launches that ncu profiles in ``job``, which ``jobs`` has made."""
    return job.guided.chosen if job.guided else ()


def missed_kernels(done: Iterable[Job], data: Tables) -> list[Job]:
    """Return a job for each kernel that ncu did not profile together with others.

    ncu 2025.3.1 always left out one of three kernels of a training step, and found this kernel among two or alone. A
    case that failed, or of which ncu saw no kernel at all, has another problem, which its reason names.
    """
    failed = data.cases[(data.cases["profiler"] == "ncu") & data.cases["status"].isin(FAILED)]
    lost = set(zip(failed["workload"], failed["case"], strict=True))
    kernel_rows = data.kernels[(data.kernels["profiler"] == "ncu") & (data.kernels["kind"] == "kernel")]
    captured = set(zip(kernel_rows["workload"], kernel_rows["case"], kernel_rows["kernel"], strict=True))
    alone = []
    for job in done:
        choices = chosen(job)
        for case in job.cases:
            if (job.workload, case.id) in lost:
                continue
            of_case = [choice for choice in choices if choice.case == case.id]
            absent = [
                c for c in of_case if not any((job.workload, name, c.kernel) in captured for name in (case.id, ""))
            ]
            if len(absent) < len(of_case):
                by_step = job.guided.by_step if job.guided else None
                alone += [_narrow(job, job.folder.parent, {c.case: (c,)}, by_step, adds=True) for c in absent]
    return alone


def adds_kernels(job: Job) -> bool:
    """Return True if ``job`` only adds kernels to the cases of another job."""
    return job.guided is not None and job.guided.adds


def preview(job: Job) -> Job:
    """Return ``job`` as `--dry-run` shows it. Its kernels are not known before the run."""
    if not is_guided(job):
        return job
    largest = f"the {job.settings.ncu.top} largest kernels of each case"
    return replace(job, guided=GuidedKernels(largest, ("one launch of each",)))


_NO_GUIDE: Final = Missing(
    "ncu",
    "ncu.kernels is 'guided', and no capture of this case by nsys or torch says which kernels matter",
    "Add nsys or torch to its profilers, or set ncu.kernels to 'all'.",
)


def guide_text(job: Job) -> str:
    """Return the text of ``guide.json`` with the choice for ``job``; empty for a job that is not guided."""
    choices = chosen(job)
    return guide_file.to_json(choices) if choices else ""


def captured_kernels(data: Tables, job: Job, case: Case) -> pd.DataFrame:
    """Return the kernels of ``case`` in the first capture that has any, without those that ncu excludes."""
    kernels = data.kernels
    mine = kernels[(kernels["workload"] == job.workload) & (kernels["case"] == case.id) & (kernels["kind"] == "kernel")]
    if unwanted := job.settings.ncu.exclude:
        wanted = [re.search(unwanted, str(name)) is None for name in mine["kernel"]]
        mine = mine[pd.Series(wanted, index=mine.index, dtype=bool)]
    captured = next((profiler for profiler in GUIDES if (mine["profiler"] == profiler).any()), "")
    return mine[mine["profiler"] == captured]


def top_kernels(rows: pd.DataFrame, job: Job) -> tuple[str, ...]:
    """Return the names of the ``ncu.top`` largest kernels of a capture by total time."""
    totals = rows.groupby("kernel", sort=True)["total_ns"].sum().sort_values(ascending=False, kind="stable")
    return tuple(totals.index[: job.settings.ncu.top])


def _choices(job: Job, case: Case, rows: pd.DataFrame, launches: Launches) -> tuple[Choice, ...]:
    """Choose the launches in ``case``, whose capture has ``rows``."""
    launch_rows = launches(str(rows["source"].iloc[-1]))
    if job.script is not None:
        # A command opens no range of a case: its iterations are its steps, or the whole capture is one.
        launch_rows = launch_rows[launch_rows["case"] == case.id]
    steady = launch_rows[launch_rows["process"] == launch_rows["process"].iloc[0]] if len(launch_rows) else launch_rows
    return tuple(_choice(case.id, name, steady) for name in top_kernels(rows, job))


def _choice(case: str, kernel: str, launches: pd.DataFrame) -> Choice:
    """Choose the launch of ``kernel`` among the launches of a case, which are in launch order."""
    steady = launches["iteration"] == launches["iteration"].max()
    last = launches[steady & (launches["kernel"] == kernel)].reset_index(drop=True)
    if last.empty:
        return Choice(case, kernel)
    # The group of similar launches that takes the most time, in launch order. A grid alone does not distinguish
    # matmuls: cuBLAS runs one kernel in one grid on sums of different lengths.
    ordered = last.sort_values(["grid", "block", "duration_ns"], kind="stable")
    before = ordered.shift()
    other_shape = (ordered["grid"] != before["grid"]) | (ordered["block"] != before["block"])
    sort = (other_shape | (ordered["duration_ns"] > _LIKE * before["duration_ns"])).cumsum()
    similar = ordered[sort == ordered.groupby(sort)["duration_ns"].sum().idxmax()].sort_index()
    ordinals = tuple(int(row) + 1 for row in similar.index)
    seen_ns, every_ns = float(similar["duration_ns"].sum()), float(last["duration_ns"].sum())
    middle = int((similar["duration_ns"] - similar["duration_ns"].median()).abs().argmin())
    return Choice(
        case,
        kernel,
        ordinals[middle],
        grid=str(similar["grid"].iloc[middle]),
        block=str(similar["block"].iloc[middle]),
        alike=ordinals,
        launches=len(last),
        share=round(seen_ns / every_ns if every_ns else len(similar) / len(last), 4),
    )


def _unchanged_groups(chosen: _Group, earlier: Iterable[Guide]) -> list[_Group]:
    """Return the groups of ``earlier`` whose choice is the same now for each of their cases."""
    kept: list[_Group] = []
    for guide in earlier:
        by_case = itertools.groupby(guide, key=lambda choice: choice.case)
        group = {case: tuple(choices) for case, choices in by_case}
        held = {case for other in kept for case in other}
        if group and not held & group.keys() and all(chosen.get(case) == choices for case, choices in group.items()):
            kept.append(group)
    return kept


def _groups(chosen: _Group, launched: Mapping[str, set[str]]) -> list[_Group]:
    """Group the cases greedily, so that no case launches a kernel that is chosen for another case of its group."""
    groups: list[_Group] = []
    names = {case: {choice.kernel for choice in choices} for case, choices in chosen.items()}
    for case, choices in chosen.items():
        for group in groups:
            if not any(names[case] & launched[other] or names[other] & launched[case] for other in group):
                group[case] = choices
                break
        else:
            groups.append({case: choices})
    return groups


def _narrow(job: Job, below: Path, group: _Group, by_step: bool | None, adds: bool = False) -> Job:
    """Return ``job`` for the cases of ``group`` and their chosen launches, with its folder below ``below``."""
    guide = tuple(choice for choices in group.values() for choice in choices)
    names = dict.fromkeys(choice.kernel for choice in guide)
    regex = pattern(names)
    cases = tuple(case for case in job.cases if case.id in group)
    # The name contains the choice: a resumed run with another choice, from a new capture, needs another job.
    text = "\n".join([*(case.id for case in cases), regex, guide_file.to_json(guide)])
    folder = below / f"guided-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    guided = GuidedKernels(regex, tuple(guide_file.invocations(guide)), guide, by_step, adds)
    return replace(job.select_cases(cases).move_to(folder), guided=guided)


def pattern(names: Iterable[str]) -> str:
    """Return a regular expression that finds each of the normalised ``names`` among ncu's demangled names.

    It contains the name of the kernel and its longest template arguments, in order. Each tool spells the rest
    differently.
    """
    patterns = []
    for name in names:
        head, _, arguments = name.replace("(anonymous namespace)::", "").partition("<")
        base = re.escape(head.split("(")[0].rpartition("::")[2])
        words = list(dict.fromkeys(word for word in _IDENTIFIER.findall(arguments) if word not in _COMMON))
        longest = sorted(words, key=len, reverse=True)[:_WORDS]
        parts = [base, *(word for word in words if word in longest)]
        patterns.append("(?:" + ".*".join(rf"\b{part}\b" for part in parts) + ")")
    return "|".join(patterns)
