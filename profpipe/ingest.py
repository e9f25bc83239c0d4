"""A file -> its parser -> the tables. Which parser reads a file is decided by its content."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from profpipe import kernels, parsing, tables
from profpipe.errors import Refused
from profpipe.job import Job, Outcome
from profpipe.tables import CASES, METRICS, Tables


@dataclass(frozen=True)
class Source:
    """A file to read and what is known about it beforehand; ``name`` is how the tables and messages call it.

    ``case`` is set where the whole file belongs to one case: that of a command, which has no case ranges.
    ``set_aside`` are cases of which the file holds an attempt that was cut off, and another file the whole.
    """

    path: Path
    name: str
    run: str = ""
    workload: str = ""
    profiler: str = ""
    case: str = ""
    set_aside: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Read:
    """A file that was read."""

    source: Source
    parser: str
    tables: Tables


@dataclass(frozen=True)
class Refusal:
    """A file that was not: what is wrong with it, and what to do."""

    source: Source
    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.source.name}: {self.what}. {self.remedy}"


def ingest(sources: Iterable[Source], beside: Path | None = None, rules: Any = None) -> Iterator[Read | Refusal]:
    """Reads each file; one that cannot be read becomes a Refusal and the others are still read.

    ``beside`` is the folder of the user's pipeline file, whose ``parsers/`` come first; ``rules`` are the user's own
    kernel classes.
    """
    known = parsing.parsers(beside)
    for source in sources:
        try:
            parser = parsing.choose(source.path, known)
            result = Read(source, parsing.name_of(parser), _placed(parsing.parse(parser, source.path), source, rules))
        except Refused as refused:
            yield Refusal(source, refused.what, refused.remedy)
        else:
            yield result


def _placed(parsed: Tables, source: Source, rules: Any) -> Tables:
    """The tables with what only the caller knows: run, workload, source, and a whole file's case."""
    profiler = source.profiler or parsed.origin.tool
    placed = parsed.with_columns(
        run=source.run, workload=source.workload or source.path.name, profiler=profiler, source=source.name
    )
    if source.case:
        placed = _within(placed, source.case)
    if source.set_aside:
        placed = _without_cases(placed, source.set_aside)
    if rules:
        placed = replace(placed, kernels=kernels.annotate(placed.kernels, rules))
    return placed


def _within(placed: Tables, case: str) -> Tables:
    """Everything in the file belongs to ``case``, so nothing of it is unattributed."""
    frames = {table.name: getattr(placed, table.name) for table in tables.ALL}
    moved = {name: frame.assign(case=frame["case"].where(frame["case"] != "", case)) for name, frame in frames.items()}
    origin = replace(placed.origin, attributed_ns=placed.origin.total_ns, unattributed_ns=0.0)
    return Tables(**moved, origin=origin)


def _without_cases(placed: Tables, cases: frozenset[str]) -> Tables:
    """What is known of ``cases`` is left out. Their kernels did run, so they stay, as those of no case."""
    kernels_aside = placed.kernels["case"].isin(cases)
    device = kernels_aside & (placed.kernels["kind"] == "kernel")
    time_ns = float(placed.kernels.loc[device, "total_ns"].sum())
    note = f"an attempt that was cut off is set aside: {', '.join(sorted(cases))}"
    origin = replace(placed.origin, notes=(*placed.origin.notes, note))
    if origin.attributed_ns is not None and origin.unattributed_ns is not None:
        attributed_ns, unattributed_ns = origin.attributed_ns - time_ns, origin.unattributed_ns + time_ns
        origin = replace(origin, attributed_ns=attributed_ns, unattributed_ns=unattributed_ns)
    return replace(
        placed,
        kernels=placed.kernels.assign(case=placed.kernels["case"].where(~kernels_aside, "")),
        ranges=placed.ranges[~placed.ranges["case"].isin(cases)],
        metrics=placed.metrics[~placed.metrics["case"].isin(cases)],
        origin=origin,
    )


def given(paths: Iterable[Path]) -> list[Source]:
    """Files that a user names, each once. What would be one workload by its name alone is told apart by its folders.

    Exports of several runs often have one name, and the kernels of two files must not be added up as those of one.
    """
    once = {path.resolve(): path for path in paths}.values()
    # Not resolved: a link's own name is the one that its user knows.
    places = [path.absolute() for path in once]
    return [
        Source(path, str(path), workload=_told_apart(place, places)) for path, place in zip(once, places, strict=True)
    ]


def _told_apart(path: Path, among: Iterable[Path]) -> str:
    """The last parts of ``path``, as many as no other of the paths ends with."""
    others = [other.parts for other in among if other != path]
    depths = range(1, len(path.parts))
    depth = next((d for d in depths if all(other[-d:] != path.parts[-d:] for other in others)), len(path.parts))
    return str(Path(*path.parts[-depth:]))


# --- a job's outcome -------------------------------------------------------------------------------------------------


def sources_of(outcome: Outcome, run_folder: Path) -> list[Source]:
    """The files that a job left, named relative to the run's folder."""
    job = outcome.job
    whole = job.cases[0].id if job.script is None else ""
    again = outcome.attempted_again
    return [
        Source(
            path,
            str(path.relative_to(run_folder)),
            run_folder.name,
            job.workload,
            job.profiler,
            case=whole,
            set_aside=again.get(path, frozenset()),
        )
        for path in outcome.files
        if path.exists() and not _of_a_false_start(path, outcome)
    ]


def _of_a_false_start(path: Path, outcome: Outcome) -> bool:
    """The record of a process that died before its first case; why it did is the outcome's reason."""
    if outcome.status == "ok" or path not in outcome.job.records:
        return False
    return not any(event.get("event") == "case_started" for event in _events(path))


def fates(outcome: Outcome, run: str, written: pd.DataFrame) -> Tables:
    """Rows for the cases whose end the workload's process could not write itself.

    ``written`` are the `cases` rows that came from the job's ``events.jsonl``. What the runner saw (a crash, a
    timeout) comes before what the file says; a case that was never reached shares the job's fate.
    """
    job, known = outcome.job, set(written["case"])
    ended = {case: (status, reason) for case, status, reason in outcome.ended_by_runner}
    # With the defaults of its PARAMS, where it came so far as to say what they are.
    begun = {
        event["case"]: event["params"]
        for event in _events(job.folder / "events.jsonl")
        if event.get("event") == "case_started" and isinstance(event.get("params"), dict)
    }
    rows = []
    for case in job.cases:
        if case.id in known and case.id not in ended:
            continue
        status, reason = ended.get(case.id, (outcome.status, outcome.reason))
        if status == "ok" and job.script is not None:
            status, reason = "failed", "the workload's process ended well without trying this case"
        seconds = outcome.last_s if job.script is None and status != "skipped" else None
        row = {"case": case.id, "status": status, "reason": reason, "seconds": seconds, "flags": "[]"}
        rows.append({**row, "params": json.dumps(begun.get(case.id) or dict(case.params))})
    return Tables(cases=tables.frame(CASES, rows), metrics=_wall_time(outcome)).with_columns(
        run=run, workload=job.workload, profiler=job.profiler
    )


def _wall_time(outcome: Outcome) -> pd.DataFrame:
    """A command has no harness inside: what can be known of it without a profiler is its process's wall time."""
    job = outcome.job
    if job.script is not None or outcome.status != "ok" or job.profiler != "plain":
        return tables.empty(METRICS)
    case = job.cases[0].id
    time = {"case": case, "metric": "time", "value": outcome.last_s * 1e9, "unit": "ns", "n": 1}
    return tables.frame(METRICS, [time, {"case": case, "metric": "iterations", "value": 1.0, "unit": "1", "n": 1}])


def expectations(events: Path) -> dict[str, str]:
    """The kernel family that each case of a job should have run, as its workload said in ``events.jsonl``."""
    said = (event for event in _events(events) if event.get("event") == "expects")
    return {event["case"]: event["family"] for event in said if event["family"]}


def devices(records: Iterable[Path]) -> list[dict[str, Any]]:
    """The kinds of devices that a job's processes ran on, as they described them in ``records``.

    ``count`` is how many of a kind it was, where all of them told their address. A process without torch describes
    none: it says that it has a CPU, and may have used anything.
    """
    started = (event for path in records for event in _events(path) if event.get("event") == "started")
    told = [dict(event["machine"]) for event in started if event.get("torch") and event.get("machine")]
    addresses = [one.pop("pci", None) for one in told]
    kinds = [one for number, one in enumerate(told) if one not in told[:number]]
    of_kind = [{address for one, address in zip(told, addresses, strict=True) if one == kind} for kind in kinds]
    return [
        kind if None in known else {**kind, "count": len(known)} for kind, known in zip(kinds, of_kind, strict=True)
    ]


def _events(path: Path) -> Iterator[dict[str, Any]]:
    if not path.is_file():
        return
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            continue  # the last line of a process that was killed while it wrote


def replaced(stored: Tables, fresh: Tables) -> Tables:
    """``stored`` with the rows of ``fresh`` in place of those of the same workload, profiler and case.

    A table in which nothing changes is the same object as before.
    """
    parts = {}
    for table in tables.ALL:
        old, new = getattr(stored, table.name), getattr(fresh, table.name)
        key = ["workload", "profiler", "case"] + (["source"] if "source" in table.names else [])
        parts[table.name] = _joined(_kept(old, _rows_like(old, new, key)), new)
    return Tables(**parts, origin=stored.origin)


def added(stored: Tables, fresh: Tables) -> Tables:
    """``stored`` with the kernels of ``fresh`` and their figures beside those of the same cases.

    What else ``fresh`` says of the cases, which another job told of, is left out.
    """
    figures = fresh.metrics[fresh.metrics["subject"] != ""]
    key = ["workload", "profiler", "case", "subject"]
    kernels = _kept(stored.kernels, stored.kernels["source"].isin(fresh.kernels["source"].unique()))
    return Tables(
        cases=stored.cases,
        kernels=_joined(kernels, fresh.kernels),
        ranges=stored.ranges,
        metrics=_joined(_kept(stored.metrics, _rows_like(stored.metrics, figures, key)), figures),
        origin=stored.origin,
    )


def without(stored: Tables, job: Job, run_folder: Path) -> Tables:
    """``stored`` without what an earlier try at ``job`` left in it, whichever of its files that came from."""
    folder, cases, parts = f"{job.folder.relative_to(run_folder)}/", {case.id for case in job.cases}, {}
    for table in tables.ALL:
        old = getattr(stored, table.name)
        if len(old):
            mine = (old["workload"] == job.workload) & (old["profiler"] == job.profiler)
            of_job = old["source"].str.startswith(folder) if "source" in table.names else old["case"].isin(cases)
            old = _kept(old, mine & of_job)
        parts[table.name] = old
    return Tables(**parts, origin=stored.origin)


def without_folder(stored: Tables, folder: str) -> Tables:
    """``stored`` without the rows of the files in ``folder``, a path below the run's."""
    parts: dict[str, pd.DataFrame] = {}
    for table in tables.ALL:
        old = getattr(stored, table.name)
        sourced = "source" in table.names and len(old)
        parts[table.name] = _kept(old, old["source"].str.startswith(f"{folder}/")) if sourced else old
    return Tables(**parts, origin=stored.origin)


def _rows_like(old: pd.DataFrame, new: pd.DataFrame, key: list[str]) -> Any:
    """Which rows of ``old`` have a key that is also in ``new``."""
    if not len(old) or not len(new):
        return np.zeros(len(old), dtype=bool)
    return pd.MultiIndex.from_frame(old[key]).isin(pd.MultiIndex.from_frame(new[key]))


def _kept(old: pd.DataFrame, dropped: Any) -> pd.DataFrame:
    return old[~dropped] if dropped.any() else old


def _joined(old: pd.DataFrame, new: pd.DataFrame) -> pd.DataFrame:
    if not len(new):
        return old
    return pd.concat([old, new], ignore_index=True) if len(old) else new.reset_index(drop=True)
