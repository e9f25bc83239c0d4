"""Which modules of a process come from another folder than the one that its side of an `ab` run exchanges.

A package that is installed in editable mode is imported from the folder in which it was installed. So a commit that is
checked out elsewhere does not bring its own version of the package, and both sides run the same code.

The start-up hook imports this module in programs of Python 3.8 on.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # Programs without torch have not imported these.
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

#: Folders, separated as those of PATH: that of the process's side, then those whose code belongs to another side.
ROOTS_VARIABLE = "PROFPIPE_ROOTS"
#: The file to which a process appends its foreign modules: a line ``package<tab>file`` for each package.
FILE_VARIABLE = "PROFPIPE_FOREIGN_MODULES"
FILE = "foreign_modules.txt"

#: Folders of packages that no checkout contains, and profpipe itself.
_INSTALLED = ("site-packages", "dist-packages")
_PROFPIPE = "profpipe"


def variables(roots: Sequence[Path], folder: Path) -> dict[str, str]:
    """Return the variables with which a process writes its foreign modules into ``folder``; none without ``roots``."""
    if not roots:
        return {}
    return {ROOTS_VARIABLE: os.pathsep.join(map(str, roots)), FILE_VARIABLE: str(folder / FILE)}


def write_foreign_modules() -> None:
    """Append the foreign packages of this process to the file of its job, where the environment names one."""
    roots, target = os.environ.get(ROOTS_VARIABLE), os.environ.get(FILE_VARIABLE)
    if not roots or not target:
        return
    files = {name: getattr(module, "__file__", None) for name, module in list(sys.modules.items())}
    packages = dict(foreign_packages(files, roots.split(os.pathsep)))
    if packages:
        with open(target, "a", encoding="utf-8") as stream:
            stream.writelines(f"{name}\t{path}\n" for name, path in packages.items())


def read_foreign_modules(folder: Path) -> dict[str, str]:
    """Return the foreign packages of the processes of a job: the file of each, relative to the folder it belongs to."""
    path = folder / FILE
    if not path.is_file():
        return {}
    lines = (line.split("\t") for line in path.read_text(encoding="utf-8", errors="replace").splitlines())
    return {words[0]: words[1] for words in lines if len(words) == 2}


def foreign_packages(files: Mapping[str, object], roots: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the foreign ones of the packages with these ``files`` by module: name, and file relative to its root.

    A file belongs to the deepest of ``roots`` that holds it. It is foreign unless that is the first one.
    """
    real_folders: dict[str, str] = {}
    seen = set()
    for name, file in files.items():
        package = name.partition(".")[0]
        if not isinstance(file, str) or package in seen or package == _PROFPIPE:
            continue
        folder = os.path.dirname(os.path.abspath(file))
        if any(f"{os.sep}{part}{os.sep}" in f"{folder}{os.sep}" for part in _INSTALLED):
            continue
        if folder not in real_folders:
            real_folders[folder] = os.path.realpath(folder)
        path = os.path.join(real_folders[folder], os.path.basename(file))
        root = max((root for root in roots if path.startswith(root.rstrip(os.sep) + os.sep)), key=len, default=None)
        if root is not None and root != roots[0]:
            seen.add(package)
            yield package, os.path.relpath(path, root)
