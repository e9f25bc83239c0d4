"""The stages in order: plan, run, ingest, store, report. Above the stages and below the command line.

After every job the tables and ``run.json`` are on disk, so that a run that is killed can be reported and resumed.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from profpipe import (
    analyze,
    config,
    device,
    errors,
    ingest,
    kernels,
    load,
    plan,
    profilers,
    progress,
    record,
    run,
    store,
    tables,
)
from profpipe import report as reporting
from profpipe.config import Pipeline
from profpipe.errors import ConfigError, Interrupted, ToolMissing
from profpipe.job import Job, Missing, Outcome, Tool
from profpipe.tables import Tables

#: What a resumed run needs and nobody else may see: the pipeline with the values of its environment variables.
_ORDER = Path("raw") / "order.json"


@dataclass(frozen=True)
class Order:
    """What the user asked for: a pipeline, the part of it to run, and where the results go."""

    pipeline: Pipeline
    path: Path
    out: Path
    workloads: tuple[str, ...]
    profilers: tuple[str, ...]

    @classmethod
    def of(cls, pipeline: Pipeline, path: Path, out: Path, workloads: Sequence[str], names: Sequence[str]) -> Order:
        return cls(pipeline, path.resolve(), out.resolve(), tuple(workloads), tuple(names))

    @property
    def beside(self) -> Path:
        return self.path.parent

    def save(self, folder: Path) -> None:
        document = {"pipeline": self.pipeline.model_dump(mode="json", by_alias=True), "path": str(self.path)}
        document |= {"workloads": self.workloads, "profilers": self.profilers}
        target = folder / _ORDER
        target.parent.mkdir(parents=True, exist_ok=True)
        store.write(target, lambda beside: beside.write_text(json.dumps(document), encoding="utf-8"))
        target.chmod(0o600)

    @classmethod
    def load(cls, folder: Path) -> Order:
        try:
            document = json.loads((folder / _ORDER).read_text(encoding="utf-8"))
        except OSError:
            raise ConfigError(str(folder), "cannot be resumed: its raw/ is gone.", "Start it again.") from None
        pipeline = Pipeline.model_validate(document["pipeline"])
        return cls.of(pipeline, Path(document["path"]), folder.parent, document["workloads"], document["profilers"])


@dataclass(frozen=True)
class Machine:
    """What is here to run on."""

    tools: Mapping[str, Tool | Missing]
    described: Mapping[str, Any]

    @classmethod
    def examine(cls, order: Order) -> Machine:
        named = [name for workload in order.pipeline.workloads.values() for name in workload.profilers]
        wanted = {*named, *order.profilers}
        tools = {name: module.find(run.ask) for name, module in profilers.ALL.items() if name in wanted}
        return cls(tools, device.machine())


def show(order: Order) -> None:
    """Prints every job with its exact commands; starts and writes nothing."""
    folder = order.out / store.folder_name(order.pipeline.name, record.utc_now())
    for job in _jobs(order, Machine.examine(order), folder):
        print(f"# {job.workload} under {job.profiler}: {len(job.cases)} cases, in {job.cwd}")
        for case in job.cases:
            print(f"#   {case.id}")
        if isinstance(job.tool, Missing):
            print(f"# skipped: {job.tool}")
            continue
        for command in profilers.ALL[job.profiler].commands(job):
            print(shlex.join(command.argv))


def start(order: Order, command: Sequence[str]) -> int:
    """A new run of ``order``; returns the exit code."""
    machine, now = Machine.examine(order), record.utc_now()
    folder = _folder(order, machine, now)
    order.save(folder)
    begun = record.begun(
        order.pipeline,
        now=now,
        machine=machine.described,
        packages=device.packages(),
        tools=machine.tools,
        git=record.git_state(run.ask, order.beside),
        command=command,
    )
    return _Run(order, folder, begun, Tables()).carry_out(_jobs(order, machine, folder))


def _folder(order: Order, machine: Machine, now: datetime) -> Path:
    """The run's folder, made only after the plan has shown that there is something to run."""
    planned = _jobs(order, machine, order.out)
    if all(isinstance(job.tool, Missing) for job in planned):
        raise ToolMissing("; ".join(dict.fromkeys(str(job.tool) for job in planned)))
    return store.new_folder(order.out, order.pipeline.name, now)


def resume(folder: Path) -> int:
    """Finishes the run in ``folder``; what it had finished is kept."""
    order = Order.load(folder)
    data, begun = store.load(folder)
    if begun.get("ended"):
        print(f"{folder.name} has nothing left to do.")
        return _exit_code(data, begun)
    done = {entry["folder"] for entry in begun["jobs"] if entry.get("reason") != "interrupted"}
    begun["jobs"] = [entry for entry in begun["jobs"] if entry["folder"] in done]
    jobs = [job for job in _jobs(order, Machine.examine(order), folder) if str(job.folder.relative_to(folder)) not in done]
    return _Run(order, folder, begun, data).carry_out([_continued(job) for job in jobs])


def _continued(job: Job) -> Job:
    """``job`` without the cases that it had finished, as a later part; whole where a report died with its process."""
    module = profilers.ALL[job.profiler]
    last = max((n for n in range(1, 100) if replace(job, part=n).spec.exists()), default=0)
    ended = ingest.ended_cases(job.folder / "events.jsonl") if module.KEEPS_ENDED_CASES else set()
    rest = tuple(case for case in job.cases if case.id not in ended)
    return replace(job, part=last + 1, cases=rest)


def _jobs(order: Order, machine: Machine, folder: Path) -> list[Job]:
    scripts = {
        name: found
        for name, workload in order.pipeline.workloads.items()
        if workload.script and (found := config.script_path(workload.script, order.path))
    }
    return plan.plan(
        order.pipeline,
        machine.tools,
        scripts=scripts,
        cwd=order.beside,
        out=folder,
        python=sys.executable,
        env={"PYTHONPATH": _python_path()},
        on_gpu=bool(machine.described["gpus"]),
        workloads=order.workloads,
        profilers=order.profilers,
    )


def _python_path() -> str:
    """So that ``python -m profpipe.harness`` is this profpipe, also in a checkout that was never installed."""
    own = str(Path(__file__).resolve().parent.parent)
    return os.pathsep.join([own, *filter(None, [os.environ.get("PYTHONPATH")])])


# --- running ---------------------------------------------------------------------------------------------------------


@dataclass
class _Run:
    """A run in progress: what is stored so far."""

    order: Order
    folder: Path
    record: dict[str, Any]
    data: Tables

    def carry_out(self, jobs: Sequence[Job]) -> int:
        self._save()
        interrupted = None
        with progress.Display() as watch:
            try:
                for outcome in run.run(jobs, profilers.ALL, watch):
                    self._keep(outcome)
                    self._save()
            except Interrupted as stop:
                interrupted = stop
        if interrupted is None:
            self.record["ended"] = record.utc_now().isoformat(timespec="seconds")
        self._save()
        store.remember(self.order.out, self.folder, self.data, self.record)
        _render(self.folder, self.data, self.record, self.order.beside)
        if interrupted is not None:
            raise Interrupted(f"{interrupted} `profpipe resume` goes on with {self.folder.name}.")
        return _exit_code(self.data, self.record)

    def _keep(self, outcome: Outcome) -> None:
        """Reads what the job left, and puts its rows in place of any that an earlier try left."""
        job, name = outcome.job, self.folder.name
        read = []
        for result in ingest.ingest(ingest.sources_of(outcome, self.folder), self.order.beside, _rules(self.order.pipeline)):
            if isinstance(result, ingest.Refusal):
                self._refuse(result)
            else:
                read.append(result.tables)
                self.record["files"].append(record.file(result.source.name, result.parser, result.tables.origin))
        fresh = tables.concat(read)
        fresh = ingest.replaced(fresh, ingest.fates(outcome, name, fresh.cases))
        self.data = ingest.replaced(self.data, fresh)
        self.record["jobs"].append(record.job(outcome, _commands(job), self.folder))
        self.record["expects"].setdefault(job.workload, {}).update(ingest.expectations(job.folder / "events.jsonl"))

    def _refuse(self, refusal: ingest.Refusal) -> None:
        self.record["refused"].append(
            {"source": refusal.source.name, "what": refusal.what, "remedy": refusal.remedy}
        )

    def _save(self) -> None:
        store.save(self.folder, self.data, self.record)


def _commands(job: Job) -> list[Any]:
    return [] if isinstance(job.tool, Missing) else profilers.ALL[job.profiler].commands(job)


def _rules(pipeline: Pipeline) -> Any:
    entries = [rule.model_dump(by_alias=True) for rule in pipeline.kernel_classes]
    return kernels.user_rules(entries) if entries else None


def _exit_code(data: Tables, begun: Mapping[str, Any]) -> int:
    bad = data.cases["status"].isin(["oom", "failed", "crashed", "timeout"]).any()
    return errors.SOME_FAILED if bad or begun.get("refused") else errors.OK


# --- reporting -------------------------------------------------------------------------------------------------------


def report(folder: Path) -> int:
    """Renders a stored run again."""
    data, begun = store.load(folder)
    beside = Order.load(folder).beside if (folder / _ORDER).exists() else None
    _render(folder, data, begun, beside)
    return _exit_code(data, begun)


def _render(folder: Path, data: Tables, begun: Mapping[str, Any], beside: Path | None) -> None:
    template = load.find("templates", "SUMMARY.md.j2", beside)
    if template is None:
        raise ConfigError("templates/SUMMARY.md.j2", "is missing.", "Install profpipe anew.")
    summary = reporting.render(analyze.analyze(data, begun), data, begun, folder, template)
    print(f"{summary.relative_to(Path.cwd()) if summary.is_relative_to(Path.cwd()) else summary}")


def read_files(paths: Sequence[Path], out: Path | None) -> int:
    """Reads any profiler's files into one set of tables; with ``out``, writes them and their report there."""
    read: list[Tables] = []
    begun: dict[str, Any] = {"schema_version": tables.SCHEMA_VERSION, "files": [], "refused": []}
    for result in ingest.ingest(ingest.Source(path, str(path)) for path in paths):
        if isinstance(result, ingest.Refusal):
            print(f"profpipe: {result}", file=sys.stderr)
            begun["refused"].append({"source": result.source.name, "what": result.what, "remedy": result.remedy})
            continue
        read.append(result.tables)
        begun["files"].append(record.file(result.source.name, result.parser, result.tables.origin))
        print("\n".join(_lines(result)))
    if out is not None and read:
        out.mkdir(parents=True, exist_ok=True)
        data = tables.concat(read)
        store.save(out, data, {**begun, "name": out.resolve().name})
        _render(out, data, begun, None)
    return errors.SOME_FAILED if begun["refused"] else errors.OK


def _lines(result: ingest.Read) -> Iterator[str]:
    origin = result.tables.origin
    total = "time not in the file" if origin.total_ns is None else f"{origin.total_ns / 1e6:.3f} ms"
    tool = " ".join(part for part in (origin.tool, origin.tool_version) if part)
    yield f"{result.source.name}: {result.parser} ({tool}), {origin.launches} kernel launches, {total}"
    yield from (f"  {note}" for note in origin.notes)
