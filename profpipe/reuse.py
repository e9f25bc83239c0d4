"""Whether a job has been done before, and taking its files over instead of doing it again.

A job's key is a hash of all that its numbers depend on. Of a command that is its program, and the files and the module
(``-m``) that its words name. What is not in it: files that the workload opens while it runs, modules that it imports by
names made up at run time, the source of packages installed in editable mode (their version is in it), and what else the
machine was doing.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import hmac
import itertools
import json
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from profpipe.job import JOURNAL, Command, Job, Tool

#: In the folder of a job that was taken over: the run that measured it.
_ORIGIN = "reused.json"
#: Files that are written to in place; a hard link would carry that into the run they came from.
_COPIED = re.compile(rf"events(\.rank\d+)?\.jsonl|log\.txt|{re.escape(_ORIGIN)}")
#: A file named in a command is read whole up to this size; a larger one is known by its size and time.
_HASHED_BYTES = 16 << 20

#: Of the environment that a job's process gets: what decides where files lie or how text looks, and no time. Where PATH
#: and PYTHONPATH lead, as far as the job's words follow them, is among its files.
_IRRELEVANT = {
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "TZ", "LANG", "LANGUAGE", "TMPDIR", "PYTHONPATH", "PWD",
    "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV",
}  # fmt: skip
#: What of a job's options only says when to give up.
_LIMITS = {"case_timeout_s", "skip_larger_after_oom"}
_GPU = (
    "name", "mig", "sm_count", "driver", "cuda", "memory_bytes", "power_limit_w", "max_sm_clock_hz",
    "max_memory_clock_hz",
)  # fmt: skip


@dataclass(frozen=True)
class Offer:
    """A job of an earlier run: the folder with its files, and the run that measured it."""

    folder: Path
    run: str


# --- the key ---------------------------------------------------------------------------------------------------------


def key(
    job: Job, commands: Sequence[Command], machine: Mapping[str, Any], environment: Mapping[str, str], salt: bytes
) -> str:
    """The hash of all that ``job``'s numbers depend on; empty where its tool, or the salt, is missing.

    ``machine`` is what ``device.machine`` says, ``environment`` what the job's processes get of ours. Without ``salt``,
    which is kept beside the runs, nobody can try out which secrets of the pipeline file the key is made with.
    """
    known = basis(job, commands, machine, environment)
    text = json.dumps(known, sort_keys=True, default=str)
    return hmac.digest(salt, text.encode(), "sha256").hex() if known and salt else ""


def basis(
    job: Job, commands: Sequence[Command], machine: Mapping[str, Any], environment: Mapping[str, str]
) -> dict[str, Any]:
    """All that ``job``'s numbers depend on, by what a person would call it; nothing where its tool is missing."""
    if not isinstance(job.tool, Tool):
        return {}
    variables = {**environment, **job.env}
    return {
        "its cases": [(case.id, dict(case.params)) for case in job.cases],
        "its repeats": (job.warmup, job.repeats),
        "its options": {name: value for name, value in job.options.items() if name not in _LIMITS},
        **{f"variable {name}": value for name, value in variables.items() if not _is_irrelevant(name)},
        "the profiler": asdict(job.tool),
        "its command": [_argv(command, job) for command in commands],
        "its program": str(_program(job, variables) or ""),
        **_sources(job, variables),
        "the machine": _machine(machine),
        "Python": sys.version,
        # Its first entry is the folder of the program, or with ``python -m`` the one that it was typed in.
        "the installed packages": _distributions(sys.path[1:]),
    }


def digests(known: Mapping[str, Any]) -> dict[str, str]:
    """What ``basis`` gives, each thing as a hash by which it is known again."""
    texts = {name: json.dumps(value, sort_keys=True, default=str) for name, value in known.items()}
    return {name: hashlib.sha256(text.encode()).hexdigest()[:16] for name, text in texts.items()}


def may_have_written(job: Job, began: float, ended: float) -> set[str]:
    """The names in ``basis`` of the files that ``job``'s command may write itself: ``--output=result.json``.

    They are those that its words name, no programs, and last written between the two times, in seconds as files have
    them.
    """
    data = [path for path in _named(job) if path.suffix != ".py" and not os.access(path, os.X_OK)]
    written = (path for path in data if began <= path.stat().st_mtime <= ended)
    return {f"file {_shown(path.resolve(), job)}" for path in written}


def _argv(command: Command, job: Job) -> list[str]:
    """Without the run's folder, and the name by which this Python was started, which changes nothing."""
    words = ("{python}" if argument == job.python else argument for argument in command.argv)
    return [word.replace(str(job.folder), "{job}") for word in words]


def _is_irrelevant(variable: str) -> bool:
    return variable in _IRRELEVANT or variable.startswith("LC_")


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


def _sources(job: Job, variables: Mapping[str, str]) -> dict[str, list[str]]:
    """Hashes of the files that the job runs: its own, those that they import from beside them, and the harness."""
    named = [job.script] if job.script else [*_named(job), *filter(None, [_program(job, variables)])]
    entries = filter(None, job.env.get("PYTHONPATH", "").split(os.pathsep))
    # Where packages are installed their versions tell all; following imports into torch would take a minute.
    own = [root for root in map(Path, entries) if not any(root.glob("*.dist-info"))]
    roots = [job.cwd, *(path.parent for path in named), *own]
    files = {each for path in (*named, *_modules(job, roots)) for each in imported(path, roots)}
    if job.script:
        harness = Path(__file__).with_name("harness.py")
        files |= imported(harness, [harness.parents[1]], package="profpipe")
    found: dict[str, list[str]] = {}
    for each in sorted(files):
        # Outside of the pipeline's folder two files may have one name.
        found.setdefault(f"file {_shown(each, job)}", []).append(_digest(each))
    return found


def _program(job: Job, variables: Mapping[str, str]) -> Path | None:
    """The file that PATH finds for a command's first word; one with a folder in it is among the files that it names."""
    if not job.command or os.sep in job.command[0]:
        return None
    found = shutil.which(job.command[0], path=variables.get("PATH"))
    return Path(found) if found else None


def _named(job: Job) -> list[Path]:
    """The files that a command's words name, alone or behind an equals sign."""
    words = (text for word in job.command for text in (word, word.partition("=")[2], word.rpartition("=")[2]))
    return [job.cwd / text for text in dict.fromkeys(words) if text and _is_file(job.cwd / text)]


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False  # a word that is too long for a name, or has a NUL byte


def _modules(job: Job, roots: Sequence[Path]) -> Iterator[Path]:
    """The files of a module that a command runs by its name (``python -m``), and lies below ``roots``."""
    for option, name in itertools.pairwise(job.command):
        if option == "-m" and all(map(str.isidentifier, name.split("."))):
            yield from _files((0, f"{name}.__main__"), job.cwd, roots)


def _shown(path: Path, job: Job) -> str:
    return str(path.relative_to(job.cwd)) if path.is_relative_to(job.cwd) else path.name


def _digest(path: Path) -> str:
    stat = path.stat()
    # A program need not be readable to be run.
    if stat.st_size > _HASHED_BYTES or not os.access(path, os.R_OK):
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
    return _imports_in(path.read_bytes()) if path.suffix == ".py" and os.access(path, os.R_OK) else ()


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
        return (folder / entry["folder"] / JOURNAL).is_file() and all(
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
