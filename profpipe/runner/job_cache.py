"""Recognise a job that an earlier run has done, and reuse its files.

The key of a job is a hash of everything that its numbers depend on. For a command these are the program, and the files
and the module (``-m``) in its words. The key does not contain: files that the workload opens while it runs, modules
that it imports by computed names, the source of packages in editable mode (only their version), and the load of the
machine.
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
from dataclasses import asdict
from pathlib import Path
from typing import Any

from profpipe import ranges
from profpipe.job import LOG, Command, Job, Tool
from profpipe.profilers import find_traits
from profpipe.results.manifest import JobEntry, Manifest
from profpipe.runner import artifacts

#: Names the run that measured a job, in the folder of a job that was reused.
_ORIGIN = "reused.json"
#: Files that are changed in place. A hard link would change the file of the earlier run too.
_COPIED = re.compile(rf"job(\.rank\d+)?\.jsonl|log\.txt|{re.escape(_ORIGIN)}")
#: A larger file in a command counts by size and time instead of its content.
_HASHED_BYTES = 16 << 20

#: Variables that decide where files are or how text looks, but no time. The files that PATH and PYTHONPATH lead to are
#: hashed instead.
_IRRELEVANT = {
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "TZ", "LANG", "LANGUAGE", "TMPDIR", "PYTHONPATH", "PWD",
    "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV",
    "MPLBACKEND", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE",
    "WANDB_RUN_ID", "WANDB_NAME", "WANDB_RUN_GROUP",
}  # fmt: skip
#: Options of a job that only limit its time.
_LIMITS = {"case_timeout_s", "skip_larger_after_oom"}
#: Folders in whose names an installed package has its name and version.
_METADATA = (".dist-info", ".egg-info")
_GPU = (
    "name", "mig", "sm_count", "driver", "cuda", "memory_bytes", "power_limit_w", "max_sm_clock_hz",
    "max_memory_clock_hz",
)  # fmt: skip


# --- the key ---------------------------------------------------------------------------------------------------------


def key(
    job: Job, commands: Sequence[Command], machine: Mapping[str, Any], environment: Mapping[str, str], salt: bytes
) -> str:
    """Return the hash of everything that the job's numbers depend on; empty without a tool or without ``salt``.

    ``machine`` is the described machine, ``environment`` its variables. The salt is private: without it
    the secrets of the pipeline file could be found out by trial.
    """
    inputs = dependencies(job, commands, machine, environment)
    text = json.dumps(inputs, sort_keys=True, default=str)
    return hmac.digest(salt, text.encode(), "sha256").hex() if inputs and salt else ""


def dependencies(
    job: Job, commands: Sequence[Command], machine: Mapping[str, Any], environment: Mapping[str, str]
) -> dict[str, Any]:
    """Return everything that the job's numbers depend on, by a readable name; empty where its tool is missing."""
    if not isinstance(job.tool, Tool):
        return {}
    variables = {**environment, **job.launch.env}
    relevant = {name: value for name, value in variables.items() if not name.startswith("LC_")}
    gpus = [{name: gpu.get(name) for name in _GPU} for gpu in machine.get("gpus", ())]
    # The first entry is the folder of the program, or with ``python -m`` the current folder.
    installed = (path for folder in filter(Path.is_dir, map(Path, sys.path[1:])) for path in folder.iterdir())
    return {
        "its cases": [(case.id, dict(case.params)) for case in job.cases],
        "its repeats": _repeats(job),
        "its options": {name: value for name, value in job.dump_settings().items() if name not in _LIMITS},
        **{f"variable {name}": value for name, value in relevant.items() if name not in _IRRELEVANT},
        "the profiler": asdict(job.tool),
        # Without the run's folder and the name of this Python, which change no number.
        "its command": [
            [
                "{python}" if word == job.launch.python else word.replace(str(job.folder), "{job}")
                for word in command.argv
            ]
            for command in commands
        ],
        "its program": str(_find_program(job, variables) or ""),
        **hash_sources(job, variables),
        "the machine": {"gpus": gpus, **{name: machine.get(name) for name in ("cpu", "cpu_count", "os")}},
        **({"its place": "beside other processes"} if job.group else {}),
        "Python": sys.version,
        "the installed packages": sorted({path.name for path in installed if path.suffix in _METADATA}),
    }


def _repeats(job: Job) -> tuple[Any, ...]:
    """Return how often the job measures. The processes of a case differ in nothing else, and each is a sample."""
    of_processes = (job.repeat, job.captures, job.interleaved)
    if job.script is None:
        return of_processes
    return (job.settings.warmup, job.settings.repeats, *(of_processes if job.is_repeated else ()))


def digests(inputs: Mapping[str, Any]) -> dict[str, str]:
    """Return a short hash of each dependency."""
    texts = {name: json.dumps(value, sort_keys=True, default=str) for name, value in inputs.items()}
    return {name: hashlib.sha256(text.encode()).hexdigest()[:16] for name, text in texts.items()}


def possible_outputs(job: Job, began: float, ended: float) -> set[str]:
    """Return the names of the dependencies that the job's command may have written: ``--output=result.json``.

    These are the data files in its words that were written between the two times (seconds, as files have them).
    """
    data = [path for path in _files_in_words(job) if path.suffix != ".py" and not os.access(path, os.X_OK)]
    written = (path for path in data if began <= path.stat().st_mtime <= ended)
    return {f"file {_shown(path.resolve(), job)}" for path in written}


def hash_sources(job: Job, variables: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the hashes of the job's files, of the files that these import, and of the harness."""
    sources = _drop_packages(map(Path, filter(None, job.launch.env.get("PYTHONPATH", "").split(os.pathsep))))
    hashes: dict[str, list[str]] = {}
    harness: set[Path] = set()
    if job.script:
        starts, roots = [job.script], [job.launch.cwd, job.script.parent, *sources]
        package_dir = Path(__file__).resolve().parents[2]
        start = package_dir / "profpipe" / "measure" / "harness.py"
        harness = trace_imports([start], _drop_packages([package_dir]))
    else:
        harness = set((Path(ranges.__file__).parent / "hook").rglob("*.py")) if artifacts.loads_hook(job) else set()
        starts = [*_files_in_words(job), *filter(None, [_find_program(job, variables)])]
        roots = [job.launch.cwd, *(path.parent for path in starts), *sources]
        for option, name in itertools.pairwise(job.command):
            if option == "-m" and all(map(str.isidentifier, name.split("."))):
                starts += _module_files(f"{name}.__main__", roots)
    harness |= {Path(path) for path in job.launch.env.get(ranges.CHANGES_VARIABLE, "").split(os.pathsep) if path}
    harness |= {path for path in [find_traits(job.profiler).inside] if path}
    for path in sorted(trace_imports(starts, roots) | harness):
        # Two files outside of the pipeline's folder may have one name.
        hashes.setdefault(f"file {_shown(path, job)}", []).append(_hash(path))
    return hashes


def _drop_packages(paths: Iterable[Path]) -> list[Path]:
    """Drop folders of installed packages: their versions are known, and to trace imports in torch takes a minute."""
    return [path for path in paths if not any(path.glob("*.dist-info"))]


def _find_program(job: Job, variables: Mapping[str, str]) -> Path | None:
    """Return the file that PATH finds for the first word of a command."""
    if not job.command or os.sep in job.command[0]:
        return None
    program = shutil.which(job.command[0], path=variables.get("PATH"))
    return Path(program) if program else None


def _files_in_words(job: Job) -> list[Path]:
    """Return the files that are a word of the command, or follow an equals sign in a word."""

    def is_file(path: Path) -> bool:
        try:
            return path.is_file()
        except (OSError, ValueError):
            return False  # the word is too long for a name, or has a NUL byte

    words = (text for word in job.command for text in (word, word.partition("=")[2], word.rpartition("=")[2]))
    return [job.launch.cwd / text for text in dict.fromkeys(words) if text and is_file(job.launch.cwd / text)]


def _shown(path: Path, job: Job) -> str:
    return str(path.relative_to(job.launch.cwd)) if path.is_relative_to(job.launch.cwd) else path.name


def _hash(path: Path) -> str:
    stat = path.stat()
    # A program may be executable and not readable.
    if stat.st_size > _HASHED_BYTES or not os.access(path, os.R_OK):
        return f"{stat.st_size} bytes of {stat.st_mtime_ns}"
    return hashlib.sha256(path.read_bytes()).hexdigest()


def trace_imports(paths: Iterable[Path], roots: Sequence[Path]) -> set[Path]:
    """Return ``paths`` and the Python files below ``roots`` that they import, as far as import statements say."""
    traced: set[Path] = set()
    looked_up: set[tuple[str, tuple[Path, ...]]] = set()  # many files import the same names
    waiting = [path.resolve() for path in paths]
    while waiting:
        path = waiting.pop()
        if path in traced:
            continue
        traced.add(path)
        if path.suffix == ".py" and os.access(path, os.R_OK):
            for level, name in _read_imports(path.read_bytes()):
                places = (path.parents[level - 1],) if level else tuple(roots)
                if (name, places) not in looked_up:
                    looked_up.add((name, places))
                    waiting += _module_files(name, places)
    return traced


@functools.cache  # the harness is the same for every job
def _read_imports(text: bytes) -> tuple[tuple[int, str], ...]:
    """Return (level, dotted name) of each import; the level counts the dots of a relative one."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return ()  # the job will fail, and a failed job is never reused
    imports: list[tuple[int, str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imports += [(0, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            imports += [(node.level, f"{node.module or ''}.{alias.name}".strip(".")) for alias in node.names]
    return tuple(imports)


def _module_files(name: str, places: Iterable[Path]) -> Iterator[Path]:
    """Yield the files that an import of ``name`` reads: each package on the way, and the module itself."""
    for place in dict.fromkeys(places):
        stems = [*itertools.accumulate(name.split("."), lambda stem, word: f"{stem}/{word}")]
        candidates = ["__init__.py", *(f"{stem}{end}" for stem in stems for end in (".py", "/__init__.py"))]
        yield from (path.resolve() for path in map(place.joinpath, candidates) if path.is_file())


# --- reuse -----------------------------------------------------------------------------------------------------------


def find_cached_jobs(runs: Iterable[tuple[Path, Manifest]]) -> dict[str, tuple[Path, JobEntry]]:
    """Return the finished jobs of earlier runs by key, each with the folder of its run.

    ``runs`` are folders and manifests, the newest first.
    """
    cached: dict[str, tuple[Path, JobEntry]] = {}
    for folder, manifest in runs:
        for entry in manifest.jobs:
            if entry.key and _is_unchanged(entry, folder):
                cached.setdefault(entry.key, (folder, entry))
    return cached


def _is_unchanged(entry: JobEntry, folder: Path) -> bool:
    """Return True if the folder of a job exists below the run, without links, and its files have their sizes.

    A link could lead to private files elsewhere, which a copy would put into the results.
    """
    job_folder = folder / entry.folder
    try:
        return (
            job_folder.resolve().is_relative_to(folder.resolve())
            and (job_folder / LOG).is_file()
            and not any(path.is_symlink() for path in (job_folder, *job_folder.rglob("*")))
            and all((folder / file.path).stat().st_size == file.bytes for file in entry.files)
        )
    except (OSError, ValueError, RuntimeError):  # no path, or a link to itself
        return False


def reuse(run: Path, entry: JobEntry, folder: Path) -> None:
    """Put the files of a job of ``run`` into ``folder``, which must not exist yet: as hard links, or else as copies.

    The folder appears as a whole or not at all. If the system refuses a file, the job runs again.
    """
    temporary = folder.with_name(f".{folder.name}-taken")
    shutil.rmtree(temporary, ignore_errors=True)  # left by a run that was killed here
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(run / entry.folder, temporary, copy_function=link_or_copy)
        (temporary / _ORIGIN).write_text(json.dumps({"run": entry.reused_from or run.name}), encoding="utf-8")
        temporary.rename(folder)
    except OSError:
        shutil.rmtree(temporary, ignore_errors=True)


def link_or_copy(source: str, target: str) -> None:
    """Copy a file that is changed in place; link any other, where the file system has links."""
    if not _COPIED.fullmatch(Path(source).name):
        try:
            return os.link(source, target)
        except OSError:
            pass
    shutil.copy2(source, target)


def read_origin(folder: Path) -> str:
    """Return the run that measured the job in ``folder``; empty where that is the job's own run."""
    try:
        return str(json.loads((folder / _ORIGIN).read_text(encoding="utf-8"))["run"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""  # measured here, or the file was changed
