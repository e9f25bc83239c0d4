"""What a run left on disk and what each of its files holds: findings and run.json -> the section Files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from profpipe.page.markdown import Sheet, code, escape, listed
from profpipe.page.quantities import MISSING, duration, size_unit
from profpipe.page.wording import case_id

Run = Mapping[str, Any]

#: Files that hold the environment and the command line of the profiled process.
_PRIVATE = (".nsys-rep", ".qdrep", ".ncu-rep")


#: What the parsers note of a file without kernels: nsys's of a machine without a GPU, torch's with CPU operators.
NO_KERNELS = re.compile(r"no (kernels in this file|GPU events)")


def held(run: Run) -> Sheet:
    """What the files with kernels hold, and the two sums that prove nothing was lost; files of one job in a row."""
    sizes = _sizes(run)
    rows = []
    for place, files in _grouped(run):
        launches, placed = str(sum(f.get("launches") or 0 for f in files)), _attribution(files)
        sums = [duration(_sum(files, key)) for key in ("total_ns", "attributed_ns", "unattributed_ns")]
        if not any(f.get("launches") for f in files) and any(_has_no_kernels(f) for f in files):
            launches, sums = MISSING, [MISSING] * len(sums)
            placed = re.sub(r"^(\d+) (?=by |in )", r"\1 CPU operators ", placed)
        first = files[0]
        tool = " ".join(str(first[key]) for key in ("tool", "tool_version") if first.get(key))
        size = sum(sizes.get(str(f.get("source")), 0) for f in files)
        rows.append(
            [place, escape(first.get("format", "")), escape(tool), _size(size), launches, *sums, escape(placed)]
        )
    head = [
        "file",
        "format",
        "tool",
        "size",
        "launches",
        "kernel time",
        "in cases",
        "outside every case",
        "placed in ranges",
    ]
    sheet = Sheet(head, rows, labels=3, words=frozenset({"placed in ranges"})).without_empty()
    # Of files from elsewhere that know no cases: there is nothing to be outside of.
    caseless = not run.get("jobs") and not any(f.get("attributed_ns") for f in run.get("files") or ())
    return sheet.without("in cases", "outside every case") if caseless else sheet


def _grouped(run: Run) -> Iterator[tuple[str, list[Mapping[str, Any]]]]:
    groups: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for f in run.get("files") or ():
        if f.get("total_ns") is not None or f.get("launches"):
            folder = str(PurePosixPath(str(f.get("source", ""))).parent)
            key = (folder, str(f.get("format")), f"{f.get('tool')} {f.get('tool_version')}")
            groups.setdefault(key, []).append(f)
    for (folder, _, _), files in groups.items():
        alone = len(files) == 1
        yield (code(files[0].get("source", "")) if alone else f"{code(folder + '/')}, {len(files)} files"), files


def _has_no_kernels(file: Mapping[str, Any]) -> bool:
    return not file.get("launches") and any(NO_KERNELS.match(str(note)) for note in file.get("notes") or ())


def _sum(files: Iterable[Mapping[str, Any]], key: str) -> float | None:
    known = [f[key] for f in files if f.get(key) is not None]
    return sum(known) if known else None


def _attribution(files: Sequence[Mapping[str, Any]]) -> str:
    """``30 by the launching thread's ranges; 30 in no range``: of several files the sum of each count."""
    if len(files) == 1:
        return str(files[0].get("attribution", ""))
    counts: dict[str, int] = {}
    for f in files:
        for part in str(f.get("attribution", "")).split("; "):
            found = re.match(r"(\d+) (.+)", part)
            if found is None:
                return str(files[0].get("attribution", ""))
            counts[found[2]] = counts.get(found[2], 0) + int(found[1])
    return "; ".join(f"{n} {words}" for words, n in counts.items())


def _sizes(run: Run) -> dict[str, int]:
    kept = [f for job in run.get("jobs") or () for f in job.get("files") or () if isinstance(f, Mapping)]
    return {str(f.get("path")): int(f.get("bytes") or 0) for f in kept}


def _size(size: int) -> str:
    return size_unit([size]).with_name(size) if size else ""


def remarks(run: Run) -> Iterator[str]:
    """Which jobs were taken over from another run, and which files are better looked at before they are shared."""
    yield from _taken_over(run)
    if private := list(_private(run)):
        named = ", ".join(map(code, private[:3])) + (f" and {len(private) - 3} more" if len(private) > 3 else "")
        kinds = " and ".join(code(kind) for kind in _PRIVATE if any(name.endswith(kind) for name in private))
        yield (
            f"{kinds or 'Such'} files hold the environment and the command lines of the profiled process; look before"
            f" you share them: {named}. The tables and exports do not."
        )


def _taken_over(run: Run) -> Iterator[str]:
    """What was not measured again: a workload under a profiler, or those of its cases that were taken over."""
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for job in run.get("jobs") or ():
        groups.setdefault((job.get("workload", ""), job.get("profiler", "")), []).append(job)
    for (workload, profiler), jobs in groups.items():
        which = f"{code(workload)} under {code(profiler)}"
        for source in dict.fromkeys(job["reused_from"] for job in jobs if job.get("reused_from")):
            taken = [job for job in jobs if job.get("reused_from") == source]
            cases = dict.fromkeys(case for job in taken for case in job.get("cases") or ())
            named = which if len(taken) == len(jobs) else f"Of {which}, {listed(map(case_id, cases))}"
            verb, whose = ("was", "its") if named == which or len(cases) == 1 else ("were", "their")
            yield f"{named} {verb} not measured again: {whose} files are those of the run {code(source)}."


def _private(run: Run) -> Iterator[str]:
    """As run.json names them, else those that are known by their endings."""
    if run.get("private_files") is not None:
        yield from map(str, run["private_files"])
        return
    kept = [f for job in run.get("jobs") or () for f in job.get("files") or ()]
    names = [str(f.get("path", "")) if isinstance(f, Mapping) else str(f) for f in kept]
    yield from (name for name in names if name.endswith(_PRIVATE))
