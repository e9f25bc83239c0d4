"""Which kernels Nsight Compute should replay: those that take the largest share of a case, one launch of each.

Replaying every kernel of a training step takes minutes; three kernels usually hold most of its time. Their names come
from the nsys or torch capture of the same case in the same run. So does the launch: a name like torch's direct copy is
launched dozens of times in a step, in grids of different sizes, and its first launch stands for none but those like it.
Taken is, of those alike in grid, block and duration that take the most time, one of median duration, as the last
iteration of the capture has them.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

import pandas as pd

from profpipe.formats import guided as guide_file
from profpipe.formats.guided import Choice, Guide
from profpipe.job import Case, Job, Missing
from profpipe.tables import FAILED, Tables

#: The single launches in a file that the tables name as a source (``launch_order.COLUMNS``); empty where it has none.
Launches = Callable[[str], pd.DataFrame]

#: What is chosen in each of some cases.
_Group = dict[str, tuple[Choice, ...]]

#: Whose capture names the kernels, the first that has the case.
_GUIDES: Final = ("nsys", "torch")

_IDENTIFIER = re.compile(r"[A-Za-z_]\w{3,}")
#: Words of the spelling that differ between the tools, or that stand in every name.
_COMMON: Final = frozenset(
    (
        *("anonymous", "array", "bool", "char", "const", "cutlass", "detail", "float", "function", "half", "impl"),
        *("int", "lambda", "long", "memory", "namespace", "native", "operator", "std", "unsigned", "void"),
        *("LoadWithoutCast", "StoreWithoutCast", "TensorIteratorBase", "TrivialOffsetCalculator"),
    )
)
#: Template arguments that a pattern names; more would make it slow to match and no more exact.
_WORDS: Final = 4
#: Durations of which each is at most this many times the one before are those of one sort of launch.
_LIKE: Final = 1.2


def guided(job: Job) -> bool:
    """Whether ``job`` waits for other profilers' captures to know its kernels."""
    return job.profiler == "ncu" and job.options.get("ncu", {}).get("kernels") == "guided"


def jobs(
    waiting: Iterable[Job],
    data: Tables,
    launches: Launches,
    earlier: Mapping[Path, Sequence[Guide]] = MappingProxyType({}),
) -> list[Job]:
    """The jobs in place of those that ``guided`` holds back, each with its kernels' names and the launches to take.

    ncu counts a kernel's launches over its whole process. So a case goes into one with others only where neither
    launches a kernel that was chosen for the other. ``earlier`` is by job's folder what processes of this run were
    asked for already: where the same is chosen for all cases of one, they stay together, and so its job is known again.
    """
    made = []
    read = functools.cache(launches)
    for job in waiting:
        if isinstance(job.tool, Missing):
            made.append(job)
            continue
        seen = {case.id: _capture(data, job, case) for case in job.cases}
        chosen = {case.id: _choices(job, case, seen[case.id], read) for case in job.cases if len(seen[case.id])}
        kept = _asked_again(chosen, earlier.get(job.folder, ()))
        others = {case: choices for case, choices in chosen.items() if not any(case in group for group in kept)}
        groups = kept + _groups(others, {case: set(rows["kernel"]) for case, rows in seen.items()})
        made += [_narrowed(job, group) for group in groups]
        if left := tuple(case for case in job.cases if case.id not in chosen):
            made.append(replace(job, cases=left, folder=job.folder / "unguided", tool=_NO_GUIDE))
    return made


def chosen(job: Job) -> tuple[Choice, ...]:
    """What ncu is asked for in ``job``, one of those that ``jobs`` made."""
    return tuple(Choice(**entry) for entry in job.options.get("ncu", {}).get("chosen", ()))


def missed(done: Iterable[Job], data: Tables) -> list[Job]:
    """For each kernel that ncu was asked for with others and did not profile: a job that asks for it alone.

    2025.3.1 was seen to leave one of three of a training step out whenever it was asked for all three, and to find it
    among two, or alone. A case that failed, or of which ncu saw no kernel at all, has another fault, which its reason
    tells.
    """
    failed = data.cases[(data.cases["profiler"] == "ncu") & data.cases["status"].isin(FAILED)]
    lost = set(zip(failed["workload"], failed["case"], strict=True))
    own = data.kernels[(data.kernels["profiler"] == "ncu") & (data.kernels["kind"] == "kernel")]
    seen = set(zip(own["workload"], own["case"], own["kernel"], strict=True))
    made = []
    for job in done:
        choices = chosen(job)
        for case in job.cases:
            if (job.workload, case.id) in lost:
                continue
            of_case = [choice for choice in choices if choice.case == case.id]
            absent = [
                c for c in of_case if not {(job.workload, case.id, c.kernel), (job.workload, "", c.kernel)} & seen
            ]
            if len(absent) < len(of_case):
                made += [_alone(job, choice) for choice in absent]
    return made


def _alone(job: Job, choice: Choice) -> Job:
    found = _narrowed(replace(job, folder=job.folder.parent), {choice.case: (choice,)})
    return replace(found, options={**found.options, "ncu": {**found.options["ncu"], "adds": True}})


def adds(job: Job) -> bool:
    """Whether ``job`` only adds kernels to cases that another of its workload and profiler has told of."""
    return bool(job.options.get("ncu", {}).get("adds"))


def preview(job: Job) -> Job:
    """``job`` as `--dry-run` shows it: which kernels it will name is not known before the run."""
    if not guided(job):
        return job
    largest = f"the {job.options['ncu']['top']} largest kernels of each case"
    ncu = {**job.options["ncu"], "pattern": largest, "invocations": ["one launch of each"]}
    return replace(job, options={**job.options, "ncu": ncu})


_NO_GUIDE: Final = Missing(
    "ncu",
    "ncu.kernels is 'guided', and no capture of this case by nsys or torch says which kernels matter",
    "Add nsys or torch to its profilers, or set ncu.kernels to 'all'.",
)


def note(job: Job) -> str:
    """The text of ``guide.json``, which says beside ``job``'s report what was chosen; empty for any other job."""
    choices = chosen(job)
    return guide_file.written(Guide(choices)) if choices else ""


def top_kernels(data: Tables, job: Job, case: Case) -> tuple[str, ...]:
    """Names of the ``ncu.top`` kernels of ``case`` by total time, in the first capture that has any."""
    return _largest(_capture(data, job, case), job.options["ncu"]["top"])


def _capture(data: Tables, job: Job, case: Case) -> pd.DataFrame:
    """The rows of the kernels of ``case`` in the first capture that has any, but for those that ncu leaves out."""
    kernels = data.kernels
    mine = kernels[(kernels["workload"] == job.workload) & (kernels["case"] == case.id) & (kernels["kind"] == "kernel")]
    if unwanted := job.options["ncu"].get("exclude"):
        wanted = [re.search(unwanted, str(name)) is None for name in mine["kernel"]]
        mine = mine[pd.Series(wanted, index=mine.index, dtype=bool)]
    seen = next((profiler for profiler in _GUIDES if (mine["profiler"] == profiler).any()), "")
    return mine[mine["profiler"] == seen]


def _largest(rows: pd.DataFrame, top: int) -> tuple[str, ...]:
    totals = rows.groupby("kernel", sort=True)["total_ns"].sum().sort_values(ascending=False, kind="stable")
    return tuple(totals.index[:top])


def _choices(job: Job, case: Case, rows: pd.DataFrame, launches: Launches) -> tuple[Choice, ...]:
    """The launches to take in ``case``, whose capture has ``rows``."""
    found = launches(str(rows["source"].iloc[-1]))
    if job.script is not None:
        # A command of the user's opens no case's range: the whole capture is its one iteration.
        found = found[found["case"] == case.id]
    steady = found[found["process"] == found["process"].iloc[0]] if len(found) else found
    return tuple(_choice(case.id, name, steady) for name in _largest(rows, job.options["ncu"]["top"]))


def _choice(case: str, kernel: str, launches: pd.DataFrame) -> Choice:
    """The launch that stands for ``kernel`` among a case's, which are in the order in which they were launched."""
    steady = launches["iteration"] == launches["iteration"].max()
    last = launches[steady & (launches["kernel"] == kernel)].reset_index(drop=True)
    if last.empty:
        return Choice(case, kernel)
    alike = _most_time(last)
    ordinals = tuple(int(row) + 1 for row in alike.index)
    seen_ns, every_ns = float(alike["duration_ns"].sum()), float(last["duration_ns"].sum())
    middle = int((alike["duration_ns"] - alike["duration_ns"].median()).abs().argmin())
    return Choice(
        case,
        kernel,
        ordinals[middle],
        grid=str(alike["grid"].iloc[middle]),
        block=str(alike["block"].iloc[middle]),
        alike=ordinals,
        launches=len(last),
        share=round(seen_ns / every_ns if every_ns else len(alike) / len(last), 4),
    )


def _most_time(launches: pd.DataFrame) -> pd.DataFrame:
    """Of a kernel's launches those of the grid, block and duration that take the most time together, in their order.

    A grid alone does not tell matmuls apart: cuBLAS runs one kernel in one grid on sums of different lengths.
    """
    ordered = launches.sort_values(["grid", "block", "duration_ns"], kind="stable")
    before = ordered.shift()
    other_shape = (ordered["grid"] != before["grid"]) | (ordered["block"] != before["block"])
    sort = (other_shape | (ordered["duration_ns"] > _LIKE * before["duration_ns"])).cumsum()
    return ordered[sort == ordered.groupby(sort)["duration_ns"].sum().idxmax()].sort_index()


def _asked_again(chosen: _Group, earlier: Iterable[Guide]) -> list[_Group]:
    """The groups of ``earlier`` for all of whose cases the same is chosen now."""
    kept: list[_Group] = []
    for guide in earlier:
        group: _Group = {}
        for choice in guide.choices:
            group[choice.case] = (*group.get(choice.case, ()), choice)
        held = {case for other in kept for case in other}
        if group and not held & group.keys() and all(chosen.get(case) == own for case, own in group.items()):
            kept.append(group)
    return kept


def _groups(chosen: _Group, launched: Mapping[str, set[str]]) -> list[_Group]:
    """The cases in as few groups as a greedy choice finds, none with a kernel chosen for another of its group."""
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


def _narrowed(job: Job, group: _Group) -> Job:
    """``job`` for the cases of ``group``, and of those only the launches that were chosen."""
    guide = Guide(tuple(choice for choices in group.values() for choice in choices))
    names = dict.fromkeys(choice.kernel for choice in guide.choices)
    chosen = {"invocations": guide.invocations, "chosen": [asdict(choice) for choice in guide.choices]}
    ncu = {**job.options["ncu"], "pattern": pattern(names), **chosen}
    cases = tuple(case for case in job.cases if case.id in group)
    # Named by what was chosen: a resumed run that chooses otherwise, for a capture was made anew, is not done with it.
    told = "\n".join([*(case.id for case in cases), ncu["pattern"], guide_file.written(guide)])
    folder = job.folder / f"guided-{hashlib.sha256(told.encode()).hexdigest()[:8]}"
    return replace(job, cases=cases, folder=folder, options={**job.options, "ncu": ncu})


def pattern(names: Iterable[str]) -> str:
    """A regular expression for ncu's demangled names that finds each of ``names``, which are normalised.

    A kernel's own name and the most telling of its template arguments, in their order: what lies between is spelt
    differently by each tool.
    """
    return "|".join(f"(?:{_one(name)})" for name in names)


def _one(name: str) -> str:
    head, bracket, arguments = name.replace("(anonymous namespace)::", "").partition("<")
    own = re.escape(head.split("(")[0].rpartition("::")[2])
    words = [word for word in _IDENTIFIER.findall(arguments) if word not in _COMMON] if bracket else []
    telling = sorted(dict.fromkeys(words), key=len, reverse=True)[:_WORDS]
    ordered = [word for word in dict.fromkeys(words) if word in telling]
    return ".*".join([rf"\b{own}\b", *(rf"\b{word}\b" for word in ordered)])
