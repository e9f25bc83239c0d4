"""The stages in order: plan, run, ingest, store, report. Above the stages and below the command line.

A run may be killed at any point and gone on with. What on disk says how far it is, from the whole to the parts:

* ``ended`` in ``run.json`` is written last of all: the run is done.
* A job in ``run.json``'s ``jobs`` that was not interrupted is done; its rows were in the tables before. Not where one
  of them says that its case failed for want of room.
* Any other job is handed to ``run`` again, which takes it up where ``parts.json`` in its folder says. Where nothing is
  left to do it starts no process, and what there is is read.
* Within a part that was cut off, ``case_ended`` in ``events.jsonl``, where the profiler keeps what such cases left.
"""

from __future__ import annotations

import importlib
import os
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import pandas as pd

from profpipe import (
    analyze,
    device,
    environment,
    errors,
    gpus,
    guide,
    ingest,
    kernels,
    load,
    parsing,
    plan,
    privacy,
    profilers,
    progress,
    reading,
    record,
    reuse,
    run,
    store,
    tables,
    unchanged,
)
from profpipe.document import shown
from profpipe.errors import ConfigError, Interrupted, ProfpipeError, Refused, ToolMissing
from profpipe.formats import guided as guide_file
from profpipe.formats import launch_order
from profpipe.job import Case, Job, Missing, Outcome, Watch, readable
from profpipe.order import ORDER, Machine, Order
from profpipe.running import events, journal
from profpipe.running.events import NO_ROOM
from profpipe.scripts import script_path
from profpipe.tables import Tables


def show(order: Order) -> None:
    """Prints every job with its exact commands; starts and writes nothing."""
    _rules(order)
    folder = order.out / store.folder_name(order.pipeline.name, record.utc_now())
    for job in _jobs(order, Machine.examine(order), folder):
        cases = "1 case" if len(job.cases) == 1 else f"{len(job.cases)} cases"
        print(f"# {job.workload} under {job.profiler}: {cases}, in {job.cwd}")
        for case in job.cases:
            print(f"#   {readable(case.id)}")
        if isinstance(job.tool, Missing):
            print(f"# skipped: {job.tool}")
            continue
        for command in profilers.ALL[job.profiler].commands(guide.preview(job)):
            print(job.shown(command))


def start(order: Order, command: Sequence[str]) -> int:
    """A new run of ``order``; returns the exit code."""
    # A wrong rule or parser of the user's is refused before anything runs.
    _rules(order)
    parsing.parsers(order.beside)
    machine, now = Machine.examine(order), record.utc_now()
    planned = _jobs(order, machine, order.out)
    _check_something_to_run(planned)
    begun = record.begun(
        order.pipeline,
        now=now,
        machine=machine.described,
        packages=device.packages(),
        tools=machine.tools,
        git=record.git_state(run.ask, order.beside),
        command=command,
        planned=planned,
        secrets=order.secrets,
    )

    def fill(folder: Path) -> None:
        order.save(folder)
        unchanged.save(folder, planned, order.out, machine.described)
        store.save(folder, Tables(), begun)

    folder = store.new_folder(order.out, order.pipeline.name, now, fill)
    with store.locked(folder):
        return _Run(order, folder, begun, Tables()).carry_out(_jobs(order, machine, folder), machine)


def _check_something_to_run(planned: Sequence[Job]) -> None:
    if all(isinstance(job.tool, Missing) for job in planned):
        raise ToolMissing("; ".join(dict.fromkeys(str(job.tool) for job in planned)))


def resume(folder: Path) -> int:
    """Finishes the run in ``folder``; what it had finished is kept."""
    order = Order.load(folder)
    with store.locked(folder):
        store.tidy(folder)
        data, begun = store.load(folder)
        if begun.get("ended") and not _lacked_room(data).any():
            print(f"{folder.name} has nothing left to do.")
            return _exit_code(data, begun, analyze.analyze(data, begun).failed)
        begun["ended"] = None
        machine = Machine.examine(order)
        _check_same_gpus(folder, begun, machine)
        planned = _jobs(order, machine, folder)
        unchanged.check(folder, planned, machine.described)
        store.point_latest(order.out)
        return _Run(order, folder, begun, data).carry_out(planned, machine)


def _check_same_gpus(folder: Path, begun: Mapping[str, Any], machine: Machine) -> None:
    """One run has one table, whose times are compared with each other."""
    before, now = (
        [(gpu.get("name"), gpu.get("driver")) for gpu in m["gpus"]] for m in (begun["machine"], machine.described)
    )
    if before != now:
        what = f"was begun on {before or 'no GPU'}, and here is {now or 'no GPU'}: their times cannot be compared."
        raise ConfigError(str(folder), what, "Resume it there, or start it again here.")


def _jobs(order: Order, machine: Machine, folder: Path) -> list[Job]:
    jobs = plan.plan(
        order.pipeline,
        machine.tools,
        scripts=dict(_scripts(order)),
        cwd=order.beside,
        out=folder,
        python=sys.executable,
        env={"PYTHONPATH": environment.python_path()},
        on_gpu=bool(machine.described["gpus"]),
        workloads=order.workloads,
        profilers=order.profilers,
    )
    return [replace(job, secrets=order.secrets) for job in jobs]


def _scripts(order: Order) -> Iterator[tuple[str, Path]]:
    """Each workload that is to run from a file, and the file. When a run is resumed one may have gone."""
    for name, workload in order.pipeline.workloads.items():
        if workload.script is None or (order.workloads and name not in order.workloads):
            continue
        found = script_path(workload.script, order.path)
        if found is None:
            where = f"{shown(order.path)}: workloads.{name}.script"
            raise ConfigError(where, f"the file of '{workload.script}' is gone.", f"Put it back into {order.beside}.")
        yield name, found


# --- running ---------------------------------------------------------------------------------------------------------


@dataclass
class _Run:
    """A run in progress: what is stored so far."""

    order: Order
    folder: Path
    record: dict[str, Any]
    data: Tables
    #: What is left to do for the job that ended last, and what the report will import, step by step.
    _keeping: Iterator[None] = field(default_factory=lambda: iter(()))
    _imports: Iterator[None] = field(default_factory=lambda: _import_ahead())

    def carry_out(self, planned: Sequence[Job], machine: Machine) -> int:
        """Does all that is left to do, and writes the report; the exit code."""
        try:
            return self._carry_out_and_show(planned, machine)
        except KeyboardInterrupt:
            # Jobs count their interrupts themselves, so this one came while nothing was measured.
            told = "Interrupted before SUMMARY.md was written. What was measured is kept."
            raise Interrupted(f"{told} To go on, and to write it: {_resume_command(self.folder)}") from None

    def _carry_out_and_show(self, planned: Sequence[Job], machine: Machine) -> int:
        interrupted, extra = None, []
        with progress.Display() as watch:
            try:
                self._carry_out([job for job in planned if not guide.guided(job)], machine, watch)
                # Only now do the captures of the other profilers say which kernels matter.
                guided = self._guided([job for job in planned if guide.guided(job)])
                self._carry_out(guided, machine, watch)
                extra = guide.missed(guided, self.data)
                self._carry_out(extra, machine, watch)
            except Interrupted as stop:
                interrupted = stop
        if interrupted is not None:
            self._show(self.record)
            raise Interrupted(f"{interrupted} To go on: {_resume_command(self.folder)}")
        rows = self.data.cases[_lacked_room(self.data)]
        lacked = set(zip(rows["workload"], rows["case"], strict=True))
        lacked |= {(job.workload, case.id) for job in extra if not self._is_done(job) for case in job.cases}
        if lacked:
            self._show(self.record)
            told = "1 case" if len(lacked) == 1 else f"{len(lacked)} cases"
            way_on = f"Free some; to go on: {_resume_command(self.folder)}"
            raise ProfpipeError(f"{told} failed for want of room on the disk. {way_on}")
        ended = {**self.record, "ended": record.utc_now().isoformat(timespec="seconds")}
        failed = self._show(ended)
        store.save_record(self.folder, ended)
        return _exit_code(self.data, ended, failed)

    def _carry_out(self, planned: Sequence[Job], machine: Machine, watch: Watch) -> None:
        salt = store.salt(self.order.out)
        keys = {job.folder: _key(job, machine, salt) for job in planned}
        jobs = [job for job in planned if not self._is_done(job)]
        if self.order.reuse:
            self._take_over(jobs, keys)
        for job in jobs:
            if note := guide.note(job):
                job.folder.mkdir(parents=True, exist_ok=True)
                journal.write_whole(job.folder / guide_file.FILE, note)
        exhausted = _exhausted(planned, self.data)
        try:
            ended = run.run(jobs, profilers.ALL, watch, exhausted=exhausted, meanwhile=self._do_a_little)
            for number, outcome in enumerate(ended, start=1):
                self._finish_keeping()
                self._keeping = self._keep(outcome, keys[outcome.job.folder], machine)
                if outcome.interrupted or not (_imports_long(jobs[number:]) and self._is_soon_read(outcome)):
                    self._finish_keeping()
        except Interrupted:
            self._finish_keeping()
            raise

    def _guided(self, waiting: Sequence[Job]) -> list[Job]:
        """The jobs in place of ``waiting``; others that stood there in an earlier try are no longer on record."""
        earlier = {job.folder: [*_guides(job.folder)] for job in waiting if not isinstance(job.tool, Missing)}
        guided = guide.jobs(waiting, self.data, self._launches, earlier)
        asked = {str(job.folder.relative_to(self.folder)) for job in guided}
        chosen = {choice for job in guided for choice in guide.chosen(job)}
        for entry in list(self.record["jobs"]):
            folder = self.folder / entry["folder"]
            if folder.parent not in earlier or entry["folder"] in asked:
                continue
            own = _guide_in(folder)
            # One that was asked for a kernel alone still is, where that kernel is chosen.
            if own is None or not chosen.issuperset(own.choices):
                self.record["jobs"].remove(entry)
                self._forget(entry["folder"])
                self.data = ingest.without_folder(self.data, entry["folder"])
        return guided

    def _do_a_little(self) -> bool:
        """Takes the next step of what nobody needs to wait for; whether there was one."""
        return any(next(steps, _NO_MORE) is not _NO_MORE for steps in (self._imports, self._keeping))

    def _finish_keeping(self) -> None:
        """A step that failed has ended this, and its job is as if it had not been read: a run gone on with reads it."""
        for _ in self._keeping:
            pass

    def _is_soon_read(self, outcome: Outcome) -> bool:
        """Whether what the job left is surely read while another process imports torch.

        Not where the user has parsers, which may take any time.
        """
        ours = load.own_folder("parsers").resolve()
        if any(path.parent.resolve() != ours for path in load.files("parsers", "*.py", self.order.beside)):
            return False
        sizes = [(path, path.stat().st_size) for path in outcome.files if path.exists()]
        seconds = (_READ_FILE_S + size / _READ_BYTES_PER_S.get(path.suffix, _READ_REST_PER_S) for path, size in sizes)
        return not any(path.is_dir() for path, _ in sizes) and sum(seconds) <= _SOON_READ_S

    def _launches(self, source: str) -> pd.DataFrame:
        """The single launches in a file of this run; none where its parser, which may be the user's, tells none."""
        path = self.folder / source
        try:
            return parsing.launches(parsing.choose(path, parsing.parsers(self.order.beside)), path)
        except Refused:
            return launch_order.empty()

    def _show(self, begun: Mapping[str, Any]) -> bool:
        """Writes the report, the Parquet tables and the history; whether the report names a failure."""
        store.save_parquet(self.folder, self.data)
        failed = reading.render(self.folder, self.data, begun, self.order.beside)
        try:
            store.remember(self.order.out, self.folder, self.data, begun)
        except ConfigError as error:
            # Nothing of the run itself is lost.
            print(f"profpipe: {error} This run is not in the history; its folder is whole.", file=sys.stderr)
        return failed

    def _is_done(self, job: Job) -> bool:
        name, cases = str(job.folder.relative_to(self.folder)), self.data.cases
        own = (cases["workload"] == job.workload) & (cases["profiler"] == job.profiler)
        if (own & cases["case"].isin([case.id for case in job.cases]) & _lacked_room(self.data)).any():
            return False
        entries = [entry for entry in self.record["jobs"] if entry["folder"] == name]
        # Its cases are another job's, and have no row that would say that it lacked room.
        if guide.adds(job) and (
            any(errors.lacks_room(entry["reason"]) for entry in entries)
            or NO_ROOM in events.statuses(job.folder / "events.jsonl").values()
        ):
            return False
        return any(not entry.get("interrupted") for entry in entries)

    def _take_over(self, jobs: Iterable[Job], keys: Mapping[Path, str]) -> None:
        """Puts the files of those jobs that an earlier run has done in their place, where ``run`` finds them done."""
        offered = reuse.offers(run for run in store.records(self.order.out) if run[0] != self.folder)
        for job in jobs:
            if (offer := offered.get(keys[job.folder])) and not job.folder.exists():
                reuse.take(offer, job.folder)

    def _keep(self, outcome: Outcome, key: str, machine: Machine) -> Iterator[None]:
        """Reads what the job left, and puts its rows in place of any that an earlier try left; then stores both.

        In steps: after each file, whatever comes between may be done.
        """
        job, read, scrubbed = outcome.job, [], {}
        for path, is_done in privacy.scrubbed(outcome.files, self.order.beside):
            scrubbed[path] = is_done
            yield
        self._forget(str(job.folder.relative_to(self.folder)))
        for result in ingest.ingest(ingest.sources_of(outcome, self.folder), self.order.beside, _rules(self.order)):
            if isinstance(result, ingest.Refusal):
                record.put(self.record["refused"], reading.refused(result), "source")
            else:
                read.append(result.tables)
                cleaned = scrubbed.get(result.source.path)
                entry = record.file(result.source.name, result.parser, result.tables.origin, cleaned)
                record.put(self.record["files"], entry, "source")
            yield
        stored = self.data
        fresh = tables.concat(read)
        fresh = ingest.replaced(fresh, ingest.fates(outcome, self.folder.name, fresh.cases))
        if guide.adds(job):
            self.data = ingest.added(self.data, fresh)
        else:
            self.data = ingest.replaced(ingest.without(self.data, job, self.folder), fresh)
        known = key if _went_well(outcome, fresh) else "", reuse.origin(job.folder)
        entry = record.job(outcome, _commands(job), self.folder, *known, self._rates(job, machine))
        record.put(self.record["jobs"], entry, "folder")
        self.record["private_files"] = privacy.private_files(self.folder)
        self.record["expects"].setdefault(job.workload, {}).update(ingest.expectations(job.folder / "events.jsonl"))
        store.save(self.folder, self.data, self.record, stored)
        yield

    def _forget(self, folder: str) -> None:
        """What an earlier try at the job in ``folder``, a path below the run's, left in the record of its files."""
        below = f"{folder}/"
        for name in ("files", "refused"):
            self.record[name][:] = [entry for entry in self.record[name] if not entry["source"].startswith(below)]

    def _rates(self, job: Job, machine: Machine) -> dict[str, Any]:
        """The devices that the job's processes name, and the rates that hold for it where the machine's do not."""
        devices = ingest.devices(job.records)
        peaks = gpus.peaks_of_job(machine.gpus, {**environment.passed_on(os.environ), **job.env}, devices)
        return {"devices": devices, **({"peaks": peaks} if peaks != self.record["machine"].get("peaks") else {})}


def _guides(folder: Path) -> Iterator[guide_file.Guide]:
    """What processes of guided ncu were asked for in an earlier try at this run."""
    found = (_guide_in(path.parent) for path in sorted(folder.glob(f"*/{guide_file.FILE}")))
    return (one for one in found if one is not None)


def _guide_in(folder: Path) -> guide_file.Guide | None:
    """None for a damaged one too: then its kernels are asked for anew."""
    try:
        return guide_file.beside(folder / "report")
    except Refused:
        return None


#: What ``next`` gives of steps that are all taken.
_NO_MORE: Final = object()

#: About as long as a process takes to import torch at least; and what scrubbing and reading takes, for each file and by
#: its size: of a trace that is compressed, of a report that a library reads, and of the rest.
_SOON_READ_S: Final = 2.0
_READ_FILE_S: Final = 0.05
_READ_BYTES_PER_S: Final = {".gz": 0.8e6, ".ncu-rep": 5e6}
_READ_REST_PER_S: Final = 30e6


def _imports_long(following: Sequence[Job]) -> bool:
    """Whether the first of these jobs starts a process that imports torch before it does anything else."""
    return bool(following) and following[0].script is not None and not isinstance(following[0].tool, Missing)


def _import_ahead() -> Iterator[None]:
    """What reading and the report import: half a second and more, in which nobody needs to wait for it.

    What cannot be imported is told by what needs it, after the measurements.
    """
    for name in ("pyarrow.parquet", "sqlite_utils", "matplotlib.figure", "matplotlib.backends.backend_agg"):
        with suppress(ImportError):
            importlib.import_module(name)
        yield


def _went_well(outcome: Outcome, fresh: Tables) -> bool:
    """Whether a later run may take the job over, with its cases that told themselves that they cannot run here.

    Not with one that was skipped for its size: another job decided that, which may come to something else next time.
    """
    too_large = any(status == "skipped" for _, status, _ in outcome.ended_by_runner)
    ran = outcome.status == "ok" and outcome.returncode is not None and not too_large
    return ran and bool(fresh.cases["status"].isin(["ok", "skipped"]).all())


def _lacked_room(data: Tables) -> pd.Series[bool]:
    """Which cases failed because something could not be written. With room they may well succeed."""
    return (data.cases["status"] != "ok") & data.cases["reason"].map(errors.lacks_room).astype(bool)


def _resume_command(folder: Path) -> str:
    """As the user can type it where they are: also from auto_profile.sh, which leaves profpipe off PATH."""
    program = ["profpipe"] if shutil.which("profpipe") else [sys.executable, "-m", "profpipe"]
    return shlex.join([*program, "resume", shown(folder)])


def _key(job: Job, machine: Machine, salt: bytes) -> str:
    return reuse.key(job, _commands(job), machine.described, environment.passed_on(os.environ), salt)


def _exhausted(planned: Iterable[Job], data: Tables) -> dict[tuple[str, str], list[Case]]:
    """The cases of the stored jobs that ran out of memory, by workload and profiler."""
    oom = data.cases[data.cases["status"] == "oom"]
    known = set(zip(oom["workload"], oom["profiler"], oom["case"], strict=True))
    found: dict[tuple[str, str], list[Case]] = {}
    for job in planned:
        cases = [case for case in job.cases if (job.workload, job.profiler, case.id) in known]
        found.setdefault((job.workload, job.profiler), []).extend(cases)
    return found


def _commands(job: Job) -> list[Any]:
    return [] if isinstance(job.tool, Missing) else profilers.ALL[job.profiler].commands(job)


def _rules(order: Order) -> Any:
    entries = [rule.model_dump(by_alias=True) for rule in order.pipeline.kernel_classes]
    try:
        return kernels.user_rules(entries) if entries else None
    except ValueError as error:
        raise ConfigError(f"{shown(order.path)}: kernel_classes", f"{str(error).rstrip('.')}.") from None


def _exit_code(data: Tables, begun: Mapping[str, Any], failed: bool) -> int:
    """``failed``: the report names a case that failed, a failed expectation, or too little classified."""
    bad = data.cases["status"].isin(tables.FAILED).any()
    return errors.SOME_FAILED if bad or failed or begun.get("refused") else errors.OK


# --- reporting -------------------------------------------------------------------------------------------------------


def report(folder: Path) -> int:
    """Renders a stored run again."""
    data, begun = store.load(folder)
    beside = Order.load(folder).beside if (folder / ORDER).exists() else None
    # Where the runner was killed in the midst of a job, or before it had read one, nothing else says that it was begun.
    known = {job["folder"] for job in begun.get("jobs") or ()}
    begun_in = (path.parent.relative_to(folder) for path in (folder / "raw").rglob(journal.NAME))
    ran = {place.parts[1:3] for place in begun_in if str(place) not in known}
    planned = begun.get("planned") or ()
    begun["planned"] = [{**job, "cut_off": (job["workload"], job["profiler"]) in ran} for job in planned]
    return _exit_code(data, begun, reading.render(folder, data, begun, beside))
