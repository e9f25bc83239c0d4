"""A file -> its parser -> the tables. Which parser reads a file is decided by its content."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from profpipe.errors import UnreadableFile
from profpipe.ingest import kernel_classes, registry
from profpipe.ingest.steps import figures
from profpipe.job import Job, JobOutcome
from profpipe.measure import event_lines
from profpipe.results import schema
from profpipe.results.schema import CASES, METRICS, Tables


@dataclass(frozen=True)
class Source:
    """A file to read and what is known about it beforehand; ``name`` is how the tables and messages call it.

    ``case`` is set where the whole file belongs to one case: that of a command, which has no case ranges.
    ``set_aside`` are cases of which the file holds an attempt that was cut off, and another file the whole.
    ``step_range`` is the user's regular expression for the ranges that are steps.
    """

    path: Path
    name: str
    run: str = ""
    workload: str = ""
    profiler: str = ""
    case: str = ""
    set_aside: frozenset[str] = frozenset()
    step_range: str = ""


@dataclass(frozen=True)
class Read:
    """The tables of a file."""

    source: Source
    parser: str
    tables: Tables


@dataclass(frozen=True)
class Refusal:
    """A file that cannot be read: what is wrong with it, and the remedy."""

    source: Source
    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.source.name}: {self.what}. {self.remedy}"


def ingest(sources: Iterable[Source], pipeline_dir: Path | None = None, rules: Any = None) -> Iterator[Read | Refusal]:
    """Read each file. A file that cannot be read becomes a Refusal, and the others are still read.

    ``pipeline_dir`` is the folder of the user's pipeline file, whose ``parsers/`` come first; ``rules`` are the user's
    kernel classes.
    """
    known = registry.parsers(pipeline_dir)
    for source in sources:
        try:
            parser = registry.choose(source.path, known)
            tables = _complete(registry.parse(parser, source.path, source.step_range), source, rules)
        except UnreadableFile as refused:
            yield Refusal(source, refused.what, refused.remedy)
        else:
            yield Read(source, registry.name_of(parser), tables)


def combine(read: Iterable[Tables]) -> Tables:
    """Return the rows of several files, those of a job or more, with the ranks and the metrics of their steps.

    Of the peaks of memory that processes without a rank have for the same case the largest stays.
    """
    tables = schema.concat(tuple(read))
    peaks = tables.metrics[tables.metrics["metric"].str.startswith("peak_")].sort_values("value", ascending=False)
    smaller = peaks.index[peaks.duplicated(["workload", "case", "profiler", "subject", "metric"])]
    if len(smaller):
        tables = replace(tables, metrics=tables.metrics.drop(index=smaller))
    return figures.with_metrics(tables)


def _complete(parsed: Tables, source: Source, rules: Any) -> Tables:
    """Fill in what a parser cannot know: run, workload, source, and the case of a whole file."""
    profiler = source.profiler or parsed.origin.tool
    placed = parsed.with_columns(
        run=source.run, workload=source.workload or source.path.name, profiler=profiler, source=source.name
    )
    if source.case:
        placed = _move_into_case(placed, source.case)
    if source.set_aside:
        placed = _without_cases(placed, source.set_aside)
    if rules:
        placed = replace(placed, kernels=kernel_classes.annotate(placed.kernels, rules))
        placed = replace(placed, timeline=_reclassified(placed.timeline, rules))
    return placed


def _reclassified(timeline: pd.DataFrame, rules: Any) -> pd.DataFrame:
    """Return the timeline with the classes by the user's rules, as in `kernels`."""
    has_class = timeline["kernel_class"] != ""
    if not has_class.any():
        return timeline
    named = timeline.loc[has_class, ["kind", "name", "kernel_class"]].rename(columns={"name": "kernel"})
    found = kernel_classes.annotate(named, rules)["kernel_class"]
    return timeline.assign(kernel_class=found.reindex(timeline.index).fillna(""))


def _move_into_case(placed: Tables, case: str) -> Tables:
    """Move all rows into ``case``, so that no time is unattributed."""
    frames = {table.name: getattr(placed, table.name) for table in schema.PARSED}
    moved = {name: frame.assign(case=frame["case"].where(frame["case"] != "", case)) for name, frame in frames.items()}
    origin = replace(placed.origin, attributed_ns=placed.origin.total_ns, unattributed_ns=0.0)
    return Tables(**moved, origin=origin)


def _without_cases(placed: Tables, cases: frozenset[str]) -> Tables:
    """Drop ranges and metrics of ``cases``. Their kernels stay, outside every case, because they did run."""
    kernels_aside = placed.kernels["case"].isin(cases)
    device = kernels_aside & (placed.kernels["kind"] == "kernel")
    time_ns = float(placed.kernels.loc[device, "total_ns"].sum())
    detail = f"an attempt that was cut off is set aside: {', '.join(sorted(cases))}"
    origin = replace(placed.origin, details=(*placed.origin.details, detail))
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


def sources_of_paths(paths: Iterable[Path]) -> list[Source]:
    """Return the files that a user names, each once. Files of the same name are workloads named with their folder.

    Exports of several runs often have the same name, and the kernels of two files must not be added up.
    """
    # Unlike Path.resolve, realpath accepts a link to itself; its parser then says what is wrong with it.
    once = {os.path.realpath(path): path for path in paths}.values()
    # Not resolved: users know the name of their link.
    places = [path.absolute() for path in once]
    return [
        Source(path, str(path), workload=_unique_tail(place, places)) for path, place in zip(once, places, strict=True)
    ]


def _unique_tail(path: Path, among: Iterable[Path]) -> str:
    """Return the last parts of ``path``, as few as no other path ends with."""
    others = [other.parts for other in among if other != path]
    depths = range(1, len(path.parts))
    depth = next((d for d in depths if all(other[-d:] != path.parts[-d:] for other in others)), len(path.parts))
    return str(Path(*path.parts[-depth:]))


# --- a job's outcome -------------------------------------------------------------------------------------------------


def sources_of_job(outcome: JobOutcome, run_folder: Path) -> list[Source]:
    """Return the files of a job, named relative to the run's folder."""
    job = outcome.job
    whole = job.cases[0].id if job.script is None else ""
    again = outcome.attempted_again
    step_range = str((job.options.get("steps") or {}).get("range") or "")
    files = [path for path in outcome.files if path.exists() and not _is_false_start(path, outcome)]
    names = [str(path.relative_to(run_folder)) for path in files]
    return [
        Source(path, name, run_folder.name, job.workload, job.profiler, whole, again.get(path, frozenset()), step_range)
        for path, name in zip(files, names, strict=True)
    ]


def _is_false_start(path: Path, outcome: JobOutcome) -> bool:
    """Return True for the record of a process that died before its first case; the outcome has the reason."""
    if outcome.status == "ok" or path not in outcome.job.records:
        return False
    return not any(event["event"] == "case_started" for event in event_lines.read(path)[0])


def case_rows(outcome: JobOutcome, run: str, written: pd.DataFrame) -> Tables:
    """Return rows for the cases whose end the workload's process could not write.

    ``written`` are the `cases` rows of the log of the job; a crash or timeout that the runner saw replaces
    them. A case that was never reached has the outcome of the job.
    """
    job, known = outcome.job, set(written["case"])
    ended = {case: (end.status.value, end.reason) for case, end in outcome.case_outcomes.items()}
    # With the defaults of PARAMS, where the process got that far.
    begun = {
        event["case"]: event["params"]
        for event in event_lines.read(job.log)[0]
        if event["event"] == "case_started" and isinstance(event.get("params"), dict)
    }
    rows = []
    for case in job.cases:
        if case.id in known and case.id not in ended:
            continue
        status, reason = ended.get(case.id, (outcome.status.value, outcome.reason))
        if status == "ok" and job.script is not None:
            status, reason = "failed", "the workload's process ended well without trying this case"
        seconds = outcome.last_s if job.script is None and status != "skipped" else None
        row = {"case": case.id, "status": status, "reason": reason, "seconds": seconds, "flags": "[]"}
        rows.append({**row, "params": json.dumps(begun.get(case.id) or dict(case.params))})
    return Tables(cases=schema.frame(CASES, rows)).with_columns(run=run, workload=job.workload, profiler=job.profiler)


def add_process_wall(fresh: Tables, outcome: JobOutcome, run: str) -> Tables:
    """Add the wall time of a command's process under plain to the numbers that its steps have.

    A process that ran until the end of its span has none: the user chose that time.
    """
    job = outcome.job
    if job.script is not None or outcome.status != "ok" or job.profiler != "plain" or job.options.get("capture"):
        return fresh
    key = {"run": run, "workload": job.workload, "case": job.cases[0].id, "profiler": job.profiler}
    row = {**key, "metric": schema.PROCESS_WALL, "value": outcome.last_s * 1e9, "unit": "ns", "n": 1}
    return replace(fresh, metrics=_append(fresh.metrics, schema.frame(METRICS, [row])))


def expected_families(events: Path) -> dict[str, str]:
    """Return the kernel family that each case should run, from the workload's ``expects`` in the log of the job."""
    expects = (event for event in event_lines.read(events)[0] if event["event"] == "expects")
    return {event["case"]: event["family"] for event in expects if event.get("family")}


def read_devices(records: Iterable[Path]) -> list[dict[str, Any]]:
    """Return the kinds of devices that a job's processes describe in ``records``.

    ``count`` is the number of a kind, where each process states its device's PCI address. A process without torch
    describes no device.
    """
    started = (event for path in records for event in event_lines.read(path)[0] if event["event"] == "started")
    machines = [dict(event["machine"]) for event in started if event.get("torch") and event.get("machine")]
    addresses = [machine.pop("pci", None) for machine in machines]
    kinds = [machine for number, machine in enumerate(machines) if machine not in machines[:number]]
    of_kind = [{address for one, address in zip(machines, addresses, strict=True) if one == kind} for kind in kinds]
    return [
        kind if None in known else {**kind, "count": len(known)} for kind, known in zip(kinds, of_kind, strict=True)
    ]


def read_rank_nodes(records: Iterable[Path]) -> dict[int, str]:
    """Return the node of each rank, from the first lines of the records of the start-up hook."""
    found: dict[int, str] = {}
    for path in records:
        with path.open(encoding="utf-8", errors="replace") as stream:
            line = stream.readline()
        try:
            about = json.loads(line)
            rank, node = about.get("rank"), about.get("node")
        except (ValueError, AttributeError):  # a killed process has not written its first line
            continue
        if type(rank) is int and isinstance(node, str) and node:
            found[rank] = node
    return dict(sorted(found.items()))


def replace_cases(stored: Tables, fresh: Tables) -> Tables:
    """Replace the rows of ``stored`` by those of ``fresh`` with the same workload, profiler and case.

    A table without a change stays the same object.
    """

    def change(table: schema.Table, old: pd.DataFrame) -> pd.DataFrame:
        new = getattr(fresh, table.name)
        key = ["workload", "profiler", "case"] + (["source"] if "source" in table.names else [])
        return _append(_drop(old, _has_key_of(old, new, key)), new)

    return _change(stored, change)


def add_kernels(stored: Tables, fresh: Tables) -> Tables:
    """Add the kernels of ``fresh`` and their metrics to ``stored``; its other rows of the same cases are left out."""
    numbers = fresh.metrics[fresh.metrics["subject"] != ""]
    key = ["workload", "profiler", "case", "subject"]
    kernels = _drop(stored.kernels, stored.kernels["source"].isin(fresh.kernels["source"].unique()))
    metrics = _append(_drop(stored.metrics, _has_key_of(stored.metrics, numbers, key)), numbers)
    return replace(stored, kernels=_append(kernels, fresh.kernels), metrics=metrics)


def drop_job(stored: Tables, job: Job, run_folder: Path) -> Tables:
    """Drop the rows of an earlier attempt at ``job``, from any of its files."""
    folder = str(job.folder.relative_to(run_folder))
    return drop_attempt(stored, job.workload, job.profiler, folder, {case.id for case in job.cases})


def drop_attempt(stored: Tables, workload: str, profiler: str, folder: str, cases: Collection[str]) -> Tables:
    """Drop the rows of a job in ``folder``, a path below the run's folder."""

    def change(table: schema.Table, old: pd.DataFrame) -> pd.DataFrame:
        mine = (old["workload"] == workload) & (old["profiler"] == profiler)
        of_job = old["source"].str.startswith(f"{folder}/") if "source" in table.names else old["case"].isin(cases)
        return _drop(old, mine & of_job)

    return _change(stored, change)


def drop_folder(stored: Tables, folder: str) -> Tables:
    """Drop the rows of the files in ``folder``, a path below the run's folder."""

    def change(table: schema.Table, old: pd.DataFrame) -> pd.DataFrame:
        return _drop(old, old["source"].str.startswith(f"{folder}/")) if "source" in table.names else old

    return _change(stored, change)


def _change(stored: Tables, change: Callable[[schema.Table, pd.DataFrame], pd.DataFrame]) -> Tables:
    """Return ``stored`` with a change to each table that has rows, or gets some."""
    changed = {table.name: change(table, getattr(stored, table.name)) for table in schema.ALL}
    return Tables(**changed, origin=stored.origin)


def _has_key_of(old: pd.DataFrame, new: pd.DataFrame, key: list[str]) -> Any:
    """Return which rows of ``old`` have a key that ``new`` has too."""
    if not len(old) or not len(new):
        return np.zeros(len(old), dtype=bool)
    return pd.MultiIndex.from_frame(old[key]).isin(pd.MultiIndex.from_frame(new[key]))


def _drop(old: pd.DataFrame, dropped: Any) -> pd.DataFrame:
    return old[~dropped] if dropped.any() else old


def _append(old: pd.DataFrame, new: pd.DataFrame) -> pd.DataFrame:
    if not len(new):
        return old
    return pd.concat([old, new], ignore_index=True) if len(old) else new.reset_index(drop=True)
