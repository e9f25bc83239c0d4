"""Which kernels Nsight Compute should replay: those that take the largest share of a case, one launch of each.

Replaying every kernel of a training step takes minutes; three kernels usually hold most of its time. Their names come
from the nsys or torch capture of the same case in the same run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from profpipe.job import Case, Job, Missing
from profpipe.tables import Tables

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


def guided(job: Job) -> bool:
    """Whether ``job`` waits for other profilers' captures to know its kernels."""
    return job.profiler == "ncu" and job.options.get("ncu", {}).get("kernels") == "guided"


def jobs(waiting: Iterable[Job], data: Tables) -> list[Job]:
    """The jobs in place of those that ``guided`` holds back, each with the pattern of its kernels' names.

    ncu is told to take the first launch of each kernel in each shape (``profilers/ncu.py``). That counts over its whole
    process, so cases that share a kernel go into processes of their own, and those that share none into one.
    """
    made = []
    for job in waiting:
        if isinstance(job.tool, Missing):
            made.append(job)
            continue
        chosen = {case.id: names for case in job.cases if (names := top_kernels(data, job, case))}
        made += [_with_pattern(job, group, number) for number, group in enumerate(_groups(chosen), start=1)]
        if left := tuple(case for case in job.cases if case.id not in chosen):
            made.append(replace(job, cases=left, folder=job.folder / "unguided", tool=_NO_GUIDE))
    return made


def preview(job: Job) -> Job:
    """``job`` as `--dry-run` shows it: which kernels it will name is not known before the run."""
    if not guided(job):
        return job
    ncu = {**job.options["ncu"], "pattern": f"the {job.options['ncu']['top']} largest kernels of each case"}
    return replace(job, options={**job.options, "ncu": ncu})


_NO_GUIDE: Final = Missing(
    "ncu",
    "ncu.kernels is 'guided', and no capture of this case by nsys or torch says which kernels matter",
    "Add nsys or torch to its profilers, or set ncu.kernels to 'all'.",
)


def top_kernels(data: Tables, job: Job, case: Case) -> tuple[str, ...]:
    """Names of the ``ncu.top`` kernels of ``case`` by total time, in the first capture that has any."""
    kernels = data.kernels
    mine = kernels[(kernels["workload"] == job.workload) & (kernels["case"] == case.id) & (kernels["kind"] == "kernel")]
    for profiler in _GUIDES:
        seen = mine[mine["profiler"] == profiler]
        if len(seen):
            totals = seen.groupby("kernel", sort=True)["total_ns"].sum().sort_values(ascending=False, kind="stable")
            return tuple(totals.index[: job.options["ncu"]["top"]])
    return ()


def _groups(chosen: Mapping[str, Sequence[str]]) -> list[dict[str, Sequence[str]]]:
    """The cases in as few groups as a greedy choice finds, no two of a group with a kernel in common."""
    groups: list[dict[str, Sequence[str]]] = []
    for case, names in chosen.items():
        free = (group for group in groups if not any(set(names) & set(taken) for taken in group.values()))
        group = next(free, None)
        if group is None:
            groups.append(group := {})
        group[case] = names
    return groups


def _with_pattern(job: Job, group: Mapping[str, Sequence[str]], number: int) -> Job:
    names = dict.fromkeys(name for taken in group.values() for name in taken)
    ncu = {**job.options["ncu"], "pattern": pattern(names)}
    folder = job.folder / f"guided-{number}"
    cases = tuple(case for case in job.cases if case.id in group)
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
