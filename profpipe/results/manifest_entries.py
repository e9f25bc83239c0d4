"""Make the manifest of a run that starts, and its entries, as they may be published: without secrets.

Environment variables have no values, and words with secrets are masked.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from profpipe import masking
from profpipe.job import Command, Job, JobOutcome, Missing, RunTool, Tool
from profpipe.results.manifest import (
    FileEntry,
    GitState,
    JobEntry,
    Manifest,
    PlannedJob,
    StoredFile,
    ToolEntry,
    as_document,
    utc_now,
)
from profpipe.results.schema import Origin

if TYPE_CHECKING:
    from profpipe.config.models import Pipeline

#: ``--set workloads.training.env.HF_TOKEN=...``: the value is as private as one in the file.
_SET_ENV = re.compile(r"^((?:--\w+=)?(?:[^=]+\.)?env\.[^=]+=).+", re.DOTALL)


def begin_run(
    pipeline: Pipeline,
    tools: Mapping[str, Tool | Missing],
    command: Sequence[str] = (),
    planned: Iterable[Job] = (),
    secrets: Mapping[str, str] = MappingProxyType({}),
    **described: Any,
) -> Manifest:
    """Return the manifest of a run that starts now. ``described`` are its machine, packages and git state.

    ``secrets`` are secret words of commands, and the text that replaces each of them.
    """
    options = pipeline.slurm.options if pipeline.slurm else ()
    # Each workload and profiler once, in the order in which they run.
    cases: dict[tuple[str, str], dict[str, None]] = {}
    for job in planned:
        cases.setdefault((job.workload, job.profiler), {}).update(dict.fromkeys(case.id for case in job.cases))
    return Manifest(
        name=pipeline.name,
        started=utc_now().isoformat(timespec="seconds"),
        ended=None,
        command=tuple(_published_word(*pair, secrets, options) for pair in itertools.pairwise(("", *command))),
        pipeline=published(pipeline, secrets),
        tools={
            # Without the path, which describes the machine rather than the result.
            name: ToolEntry(missing=tool.reason, remedy=tool.remedy)
            if isinstance(tool, Missing)
            else ToolEntry(tool.version, tool.variant)
            for name, tool in tools.items()
        },
        planned=tuple(PlannedJob(*key, tuple(names)) for key, names in cases.items()),
        private_files=(),
        **described,
    )


def _published_word(before: str, word: str, secrets: Mapping[str, str], options: Collection[str]) -> str:
    """Return a word of the command line of profpipe without secrets. ``options`` are those of sbatch."""
    if word in options:
        word = masking.hide_option(word)
    word = _SET_ENV.sub(r"\1...", word)
    prefix = "--set=" if word.startswith("--set=") else ""
    name, equals, value = word.removeprefix(prefix).partition("=")
    is_secret = masking.is_secret_parameter(name.rpartition(".")[2], value)
    if equals and value != "..." and is_secret and not masking.is_line_option(before):
        return f"{prefix}{name}=..."
    return masking.mask_printed(masking.masker(secrets).mask(masking.hide_assigned(word, "...", before)))


def published(pipeline: Pipeline, secrets: Mapping[str, str] = MappingProxyType({})) -> Pipeline:
    """Return the resolved pipeline without secrets: environment variables have no values, `slurm.setup` no lines."""
    from profpipe.config.models import read_recorded

    document = as_document(pipeline)
    for settings in document["workloads"].values():
        settings["command"] = settings["command"] and [secrets.get(word, word) for word in settings["command"]]
        settings["srun"] = list(map(masking.hide_option, settings["srun"]))
    if document["slurm"] is not None:
        # Lines of a shell may set variables, whose values are not published either.
        document["slurm"]["setup"] = []
        for name in ("options", "launcher"):
            document["slurm"][name] = list(map(masking.hide_option, document["slurm"][name]))
    return read_recorded(masking.masker(secrets).mask_all(document))


def job_entry(outcome: JobOutcome, commands: Iterable[Command], run_folder: Path, **measured: Any) -> JobEntry:
    """Return the entry of a job that ended. ``measured`` are its devices and what a later run reuses."""
    job = outcome.job
    files = (path for path in outcome.files if path.exists())
    span = job.settings.capture
    return JobEntry(
        workload=job.workload,
        profiler=job.profiler,
        cases=tuple(case.id for case in job.cases),
        status=outcome.status,
        reason=outcome.reason,
        cause=outcome.end.cause,
        causes=outcome.causes,
        interrupted=outcome.interrupted,
        seconds=round(outcome.seconds, 3),
        returncode=outcome.returncode,
        argv=tuple(
            tuple(job.launch.secrets.get(word) or job.masked(job.portable(word)) for word in command.argv)
            for command in commands
        ),
        folder=str(job.folder.relative_to(run_folder)),
        log=str((job.folder / "log.txt").relative_to(run_folder)),
        files=tuple(StoredFile(str(path.relative_to(run_folder)), path.stat().st_size) for path in files),
        lane=job.launch.slot or None,
        span={"after_s": span.after_s, "for_s": span.for_s} if span and span.is_chosen and not span.is_whole else None,
        **measured,
    )


def file_entry(source: str, parser: str, origin: Origin, scrubbed: bool | None = None) -> FileEntry:
    return FileEntry(**vars(origin), source=source, parser=parser, scrubbed=scrubbed)


def git_argv(folder: Path, *words: str) -> list[str]:
    """Return a command of git in ``folder`` that starts no program of a configuration: no hook and no fsmonitor.

    Filters depend on attributes: see ``checkout``. Without optional locks `git status` does not rewrite the index.
    """
    settings = (f"core.hooksPath={os.devnull}", "core.fsmonitor=false", "submodule.recurse=false")
    options = [word for setting in settings for word in ("-c", setting)]
    return ["git", "--no-optional-locks", *options, "-C", str(folder), *words]


def git_state(ask: RunTool, folder: Path) -> GitState:
    """Return the state of the checkout that holds ``folder``."""
    commit = ask(git_argv(folder, "rev-parse", "HEAD"))
    if commit is None or len(commit.split()) != 1:
        return GitState()
    changed = ask(git_argv(folder, "status", "--porcelain", "--untracked-files=no"))
    return GitState(commit.strip(), bool((changed or "").strip()))
