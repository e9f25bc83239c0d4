"""Whether a job has been done before, and taking its files over instead of doing it again.

A job's key is a hash of all that its numbers depend on. What is not in it: files that the workload opens while it runs,
modules that it imports by names made up at run time, the source of packages installed in editable mode (their version
is in it), and what else the machine was doing.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from profpipe.environment import is_secret
from profpipe.job import Command, Job, Tool

#: In the folder of a job that was taken over: the run that measured it.
_ORIGIN = "reused.json"
#: There since a runner began the job: what ``run`` finds it done by.
_PARTS = "parts.json"
#: Files that are written to in place; a hard link would carry that into the run they came from.
_COPIED = re.compile(rf"events(\.rank\d+)?\.jsonl|log\.txt|{re.escape(_ORIGIN)}")
#: A file named in a command is read whole up to this size; a larger one is known by its size and time.
_HASHED_BYTES = 16 << 20

#: Of the environment that a job's process gets: what decides where files lie or how text looks, and no time.
_IRRELEVANT = {
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "TZ", "LANG", "LANGUAGE", "TMPDIR", "PYTHONPATH", "PWD",
    "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME",
}  # fmt: skip
#: What of a job's options only says when to give up.
_LIMITS = {"case_timeout_s", "skip_larger_after_oom"}
_GPU = ("name", "driver", "cuda", "memory_bytes", "power_limit_w", "max_sm_clock_hz", "max_memory_clock_hz")


@dataclass(frozen=True)
class Offer:
    """A job of an earlier run: the folder with its files, and the run that measured it."""

    folder: Path
    run: str


# --- the key ---------------------------------------------------------------------------------------------------------


def key(job: Job, commands: Sequence[Command], machine: Mapping[str, Any], environment: Mapping[str, str]) -> str:
    """The hash of all that ``job``'s numbers depend on; empty where its tool is missing.

    ``machine`` is what ``device.machine`` says, ``environment`` what the job's processes get of ours.
    """
    if not isinstance(job.tool, Tool):
        return ""
    known = {
        "cases": [(case.id, dict(case.params)) for case in job.cases],
        "counts": (job.warmup, job.repeats),
        "options": {name: value for name, value in job.options.items() if name not in _LIMITS},
        "environment": _environment({**environment, **job.env}),
        "tool": asdict(job.tool),
        "commands": [_argv(command, job) for command in commands],
        "sources": _sources(job),
        "machine": _machine(machine),
        "python": sys.version,
        "packages": _distributions(sys.path),
    }
    return hashlib.sha256(json.dumps(known, sort_keys=True, default=str).encode()).hexdigest()


def _argv(command: Command, job: Job) -> list[str]:
    return [argument.replace(str(job.folder), "{job}") for argument in command.argv]


def _environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Of what looks like a secret only the name: it changes no time, and a hash of it could be guessed at."""
    return {
        name: "" if is_secret(name) else value
        for name, value in variables.items()
        if name not in _IRRELEVANT and not name.startswith("LC_")
    }


def _machine(machine: Mapping[str, Any]) -> dict[str, Any]:
    gpus = [{name: gpu.get(name) for name in _GPU} for gpu in machine.get("gpus", ())]
    return {"gpus": gpus, **{name: machine.get(name) for name in ("cpu", "cpu_count", "os")}}


def _distributions(entries: Iterable[str]) -> list[str]:
    """Name and version of every installed package: they are in the names of their folders, which is fast to read."""
    found: set[str] = set()
    for entry in map(Path, entries):
        if entry.is_dir():
            found.update(path.name for path in entry.iterdir() if path.suffix in (".dist-info", ".egg-info"))
    return sorted(found)


def _sources(job: Job) -> list[tuple[str, str]]:
    """Hashes of the files that the job runs: its own, those that they import from beside them, and the harness."""
    named = [job.script] if job.script else [job.cwd / argument for argument in job.command]
    entries = filter(None, job.env.get("PYTHONPATH", "").split(os.pathsep))
    # Where packages are installed their versions tell all; following imports into torch would take a minute.
    own = [root for root in map(Path, entries) if not any(root.glob("*.dist-info"))]
    roots = [job.cwd, *(path.parent for path in named), *own]
    files = {each for path in named if path.is_file() for each in imported(path, roots)}
    if job.script:
        harness = Path(__file__).with_name("harness.py")
        files |= imported(harness, [harness.parents[1]], package="profpipe")
    return sorted((_shown(each, job), _digest(each)) for each in files)


def _shown(path: Path, job: Job) -> str:
    return str(path.relative_to(job.cwd)) if path.is_relative_to(job.cwd) else path.name


def _digest(path: Path) -> str:
    stat = path.stat()
    if stat.st_size > _HASHED_BYTES:
        return f"{stat.st_size} bytes of {stat.st_mtime_ns}"
    return hashlib.sha256(path.read_bytes()).hexdigest()


def imported(path: Path, roots: Sequence[Path], package: str = "") -> set[Path]:
    """``path``, and the Python files below ``roots`` that it imports, directly or not, as far as its text tells.

    With ``package`` only imports from that package are followed.
    """
    found: set[Path] = set()
    waiting = [path.resolve()]
    while waiting:
        current = waiting.pop()
        if current not in found:
            found.add(current)
            names = [name for name in _imports(current) if not package or name[1].split(".")[0] == package]
            waiting += [file for name in names for file in _files(name, current, roots)]
    return found


def _imports(path: Path) -> tuple[tuple[int, str], ...]:
    """(level, dotted name) of each import statement; the level counts the dots of a relative one."""
    return _imports_in(path.read_bytes()) if path.suffix == ".py" else ()


@functools.cache  # the harness is the same for every job
def _imports_in(text: bytes) -> tuple[tuple[int, str], ...]:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return ()  # it will fail by itself, and a job that failed is never reused
    found: list[tuple[int, str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(0, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            found += [(node.level, f"{base}.{alias.name}".strip(".")) for alias in node.names]
    return tuple(found)


def _files(name: tuple[int, str], importer: Path, roots: Sequence[Path]) -> Iterator[Path]:
    """The files that an import reads: each package on the way, and the module itself."""
    level, dotted = name
    places = [importer.parents[level - 1]] if level else roots
    words = dotted.split(".")
    for place in dict.fromkeys(places):
        for depth in range(len(words) + 1):
            stem = place.joinpath(*words[:depth])
            candidates = [stem / "__init__.py"] if not depth else [stem.with_suffix(".py"), stem / "__init__.py"]
            yield from (file.resolve() for file in candidates if file.is_file())


# --- taking over -----------------------------------------------------------------------------------------------------


def offers(runs: Iterable[tuple[Path, Mapping[str, Any]]]) -> dict[str, Offer]:
    """What earlier runs offer, by key. ``runs`` are their folders and records, the newest first.

    Only jobs that went well have a key in the record.
    """
    found: dict[str, Offer] = {}
    for folder, record in runs:
        for entry in record.get("jobs") or ():
            if entry.get("key") and _is_whole(entry, folder):
                run = entry.get("reused_from") or folder.name
                found.setdefault(entry["key"], Offer(folder / entry["folder"], run))
    return found


def _is_whole(entry: Mapping[str, Any], folder: Path) -> bool:
    """Whether the folder of a job is there, and its files are still what they were."""
    try:
        return (folder / entry["folder"] / _PARTS).is_file() and all(
            (folder / file["path"]).stat().st_size == file["bytes"] for file in entry["files"]
        )
    except OSError:
        return False


def take(offer: Offer, folder: Path) -> None:
    """Puts the files of ``offer`` into ``folder``, which must not exist yet: hard-linked, or copied where links fail.

    The folder appears whole or not at all: not where the system refuses a file, and then the job is done again.
    """
    beside = folder.with_name(f".{folder.name}-taken")
    shutil.rmtree(beside, ignore_errors=True)  # of a run that was killed here
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(offer.folder, beside, copy_function=_link)
        (beside / _ORIGIN).write_text(json.dumps({"run": offer.run}), encoding="utf-8")
        beside.rename(folder)
    except OSError:
        shutil.rmtree(beside, ignore_errors=True)


def _link(source: str, target: str) -> None:
    if _COPIED.fullmatch(Path(source).name):
        shutil.copy2(source, target)
        return
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)  # another file system, or one without links


def origin(folder: Path) -> str:
    """The run that measured what is in a job's ``folder``, if that is another than its own; else empty."""
    path = folder / _ORIGIN
    return str(json.loads(path.read_text(encoding="utf-8"))["run"]) if path.is_file() else ""
