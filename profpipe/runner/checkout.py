"""The code of a side of an `ab` run: a commit of the user's repository, and the packages of another interpreter.

The checkout is a repository that borrows the objects of the user's one (gitrepository-layout(5), ``alternates``). So
nothing is written into the user's repository: no entry of ``git worktree``, no branch, and a process that is killed
leaves nothing there. Uncommitted changes are neither read nor touched.

The commit may be somebody else's, so git starts no hook, no filter and no fsmonitor, whoever configured it.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from profpipe.errors import ConfigError
from profpipe.masking import mask_printed
from profpipe.measure.machine import PACKAGES
from profpipe.results import folders, manifest_entries
from profpipe.runner import process

#: Below the run's folder: one checkout for each side that is a commit.
FOLDER: Final = Path("raw") / "checkouts"

_TIMEOUT_S: Final = 600.0
#: In ``info/attributes``, which goes before the attributes of the commit and of the user: no file has a filter.
_ATTRIBUTES: Final = "* -filter\n"
_HASH: Final = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


def top_folder(folder: Path) -> Path:
    """Return the top folder of the working tree that holds ``folder``; without one ``folder`` itself."""
    top = _show_top(folder)
    return Path(top if top.startswith("/") else folder).resolve()


def _show_top(folder: Path) -> str:
    return (_git(folder, "rev-parse", "--show-toplevel") or "").strip()


def find(folder: Path, revision: str, option: str) -> tuple[Path, str, str]:
    """Return the repository that holds ``folder``, its commit ``revision``, and the path of ``folder`` inside of it."""
    top = _show_top(folder)
    if not top.startswith("/"):
        # git also refuses a repository of another user, and says what to do.
        why = " ".join(mask_printed(top).split())[:300] or "git cannot be started"
        what = f"git:{revision} needs a git repository that holds {folder}: {why}."
        raise ConfigError(option, what, "Or use dir:PATH with a second folder.")
    # A revision never begins with a hyphen, which git would read as an option.
    output = "" if revision.startswith("-") else (_git(folder, "rev-parse", "--verify", f"{revision}^{{commit}}") or "")
    if not _HASH.fullmatch(commit := output.strip()):
        remedy = "`git log --oneline` lists commits. A shallow clone has only the latest: `git fetch --unshallow`."
        raise ConfigError(option, f"git:{revision} names no commit of {top}.", remedy)
    return Path(top), commit, (_git(folder, "rev-parse", "--show-prefix") or "").strip()


def list_commits(repository: Path, good: str, bad: str) -> list[tuple[str, str]]:
    """Return hash and subject of the commits from ``good`` to ``bad``, each the first parent of the next.

    Raises ConfigError where the first parents of ``bad`` do not lead to ``good``.
    """
    form = ["--no-show-signature", "--first-parent", "--reverse", "--format=%H%x09%P%x09%s"]
    printed = _git(repository, "log", *form, f"{good}~1..{bad}") or ""
    if not _HASH.match(printed):  # GOOD is the first commit of the repository
        printed = _git(repository, "log", *form, bad) or ""
    rows = [line.split("\t", 2) for line in printed.split("\n") if line.count("\t") >= 2]
    hashes = [commit for commit, *_ in rows]
    if good not in hashes[:-1]:
        what = f"GOOD ({good[:12]}) is none of the first parents of BAD ({bad[:12]})."
        if good != bad and (_git(repository, "merge-base", good, bad) or "").strip() == bad:
            raise ConfigError("GOOD..BAD", "is the wrong way round: BAD comes before GOOD.", "Exchange the commits.")
        remedy = f"The commit where both branches part is `git merge-base {good[:12]} {bad[:12]}`."
        raise ConfigError("GOOD..BAD", what, remedy)
    return [(commit, mask_printed(subject)) for commit, _, subject in rows[hashes.index(good) :]]


def list_changes(repository: Path, before: str, after: str) -> list[str]:
    """Return the files that differ between two commits, each with its lines: ``kernels/add.py (+3 -1)``."""
    options = ["--no-ext-diff", "--no-textconv", "--no-renames", "--numstat"]
    printed = _git(repository, "diff", *options, before, after) or ""
    rows = [line.split("\t", 2) for line in printed.split("\n") if line.count("\t") >= 2]
    return [f"{mask_printed(path)} (+{added} -{removed})" for added, removed, path in rows]


def create(repository: Path, commit: str, target: Path) -> None:
    """Check out ``commit`` of ``repository``, with its submodules, into ``target``; an existing one stays.

    A submodule is checked out where the user's working tree has it.
    """
    if target.exists():
        return
    # Whole or not at all: a process that was killed leaves the partial one.
    partial = target.with_name(f".{target.name}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.parent.mkdir(parents=True, exist_ok=True)
    _check_out(repository, commit, partial)
    partial.rename(target)


def remove(run_folder: Path) -> None:
    """Remove the checkouts of a run. ``resume`` makes them again."""
    shutil.rmtree(run_folder / FOLDER, ignore_errors=True)


def remove_abandoned(out: Path) -> None:
    """Remove the checkouts of runs in ``out`` that were killed: of those that no process works on."""
    for checkouts in out.glob(f"[!.]*/{FOLDER}"):
        run_folder = checkouts.parents[1]
        if run_folder.is_symlink():
            continue  # out/latest, or a link to what is no run of this results folder
        try:
            with folders.lock(run_folder):
                remove(run_folder)
        except ConfigError:
            continue  # another profpipe works on this run


def _check_out(repository: Path, commit: str, target: Path) -> None:
    kind = ["--object-format=sha256"] if len(commit) == 64 else []
    # Without templates there are no hooks.
    printed = [_git(repository, "init", "--quiet", "--template=", *kind, str(target.absolute()))]
    objects, shallow = (_path_in_git(repository, name) for name in ("objects", "shallow"))
    if target.is_dir():
        for name, text in (("objects/info/alternates", f"{objects}\n"), ("info/attributes", _ATTRIBUTES)):
            (target / ".git" / name).parent.mkdir(parents=True, exist_ok=True)
            (target / ".git" / name).write_text(text, encoding="utf-8")
        if shallow.is_file():
            shutil.copy(shallow, target / ".git" / "shallow")
        printed.append(_git(target, "checkout", "--quiet", "--detach", commit))
    # git 2.39 ends with 0 where a partial clone lacks the content of a file, and leaves out the file.
    is_whole = (_git(target, "ls-files", "--deleted") or "").strip() == ""
    if not is_whole or (_git(target, "rev-parse", "--verify", "HEAD") or "").strip() != commit:
        why = " ".join(" ".join(filter(None, printed)).split()) or "git failed"
        what = f"commit {commit[:12]} cannot be checked out: {why}."
        remedy = f"Try `git worktree add FOLDER {commit[:12]}` and dir:FOLDER; in a submodule `git submodule update`."
        raise ConfigError(str(repository), what, remedy)
    for path, own_commit in _submodules(target):
        # The file .git of a submodule, or its folder in a repository of an older git.
        if (repository / path / ".git").exists():
            _check_out(repository / path, own_commit, target / path)


def _submodules(target: Path) -> Iterator[tuple[str, str]]:
    """Yield path and commit of each submodule of a checkout: the entries of its index with mode 160000.

    What ``.gitmodules`` names may be a link, and the index holds nothing below a link.
    """
    for entry in (_git(target, "ls-files", "--stage", "-z") or "").split("\0"):
        about, _, path = entry.partition("\t")
        if about.startswith("160000 "):
            yield path, about.split()[1]


def _path_in_git(repository: Path, name: str) -> Path:
    path = (_git(repository, "rev-parse", "--git-path", name) or "").strip()
    return (repository / path).resolve()


def _git(folder: Path, *words: str) -> str | None:
    return process.ask(manifest_entries.git_argv(folder, *words), timeout_s=_TIMEOUT_S)


# --- another interpreter ----------------------------------------------------------------------------------------------

#: The versions that explain most differences.
_FIRST: Final = ("Python", "torch", "CUDA of torch", "HIP of torch", *PACKAGES)

#: Does not import torch, which takes seconds: its version.py is a few assignments.
_PROGRAM: Final = """
import json, pathlib, platform, re, sys
from importlib import metadata, util
found = {"Python": platform.python_version()}
for package in metadata.distributions():
    # The first one on sys.path is the one that is imported.
    found.setdefault(re.sub("[-_.]+", "-", package.metadata["Name"] or "").lower(), package.version)
spec = util.find_spec("torch")
path = pathlib.Path(spec.origin or "").with_name("version.py") if spec else None
if path and path.is_file():
    for name, version in re.findall(r"^(cuda|hip)\\b.*?=\\s*['\\"]([^'\\"]+)", path.read_text(), re.MULTILINE):
        found[f"{name.upper()} of torch"] = version
print(json.dumps({name: version for name, version in found.items() if name}))
"""


def differing_versions(a: str, b: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return the versions in the interpreters ``a`` and ``b`` that differ: Python, torch, its CUDA, and packages.

    Both have the same names, those that explain most first; a version is empty where the package is missing. Both are
    empty where one interpreter cannot be asked.
    """
    if a == b or not (of_a := _versions(a)) or not (of_b := _versions(b)):
        return {}, {}
    names = sorted(name for name in {*of_a, *of_b} if of_a.get(name) != of_b.get(name))
    names.sort(key=lambda name: _FIRST.index(name) if name in _FIRST else len(_FIRST))
    return tuple({name: versions.get(name, "") for name in names} for versions in (of_a, of_b))  # type: ignore[return-value]


def _versions(python: str) -> Mapping[str, str]:
    lines = (process.ask_python(["-c", _PROGRAM], python) or "").strip().splitlines()
    try:
        versions = json.loads(lines[-1]) if lines else {}
    except ValueError:
        return {}
    return versions if isinstance(versions, dict) else {}
