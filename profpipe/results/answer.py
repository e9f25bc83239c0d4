"""What ``ingest`` answered, kept in the folder that it wrote: a second look at unchanged files reads none of them.

The user's folder is the only cache. An answer holds for one state of the files, of the files beside them, of the
options, of profpipe's code and of the folder itself; in any other state there is none, and everything is read anew.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import profpipe
from profpipe import masking, plugins
from profpipe.results import atomic
from profpipe.stdio import visible

FILE: Final = ".answer.json"
#: Bytes: a folder may come from somebody else.
_LONGEST: Final = 1 << 20
#: A file that changed so shortly ago may change again without a new time: the clock of a file system has ticks.
TICK_NS: Final = 100_000_000


@dataclass(frozen=True)
class Answer:
    """What ``ingest`` printed of the files, and its first screen. ``files`` stands for the files, options and code.

    The file has a digest beside it, ``folder``, of what was written, the code and the answer: an edited one does not
    hold.
    """

    printed: str
    #: The parts of ``report.screen``, of JSON values.
    first_screen: list[list[Any]]
    #: The short JSON document (``profpipe.report.answer_json``), without paths.
    document: dict[str, Any]
    files: str


def state_of_files(paths: Sequence[Path], out: Path, *options: object) -> str:
    """Return what stands for the files that ``ingest`` is given; empty where they may change without a trace."""
    places = [Path(os.path.realpath(path)) for path in paths]
    names = tuple(place.name for place in places)
    try:
        # Beside a file parsers read tables, the choice of guided ncu, and what an exporter left.
        stats = [
            stat for folder in sorted({place.parent for place in places}) for stat in _stats(folder)
            if stat[0].startswith(names) or stat[0].endswith((".csv", ".json"))
        ]  # fmt: skip
        # An export of nsys may be a folder.
        stats += (stat for place in places if place.is_dir() for stat in _stats(place))
    except OSError:
        # What is wrong with the file is said where it is read.
        return ""
    if max((stat[-1] for stat in stats), default=0) > time.time_ns() - TICK_NS:
        return ""
    nsys = os.path.realpath(shutil.which("nsys") or "")
    return _digest(_code(), list(map(str, paths)), list(map(str, places)), stats, nsys, str(out.resolve()), options)


def keep(folder: Path, files: str, printed: str, first_screen: list[list[Any]], document: dict[str, Any]) -> None:
    """Keep the answer in ``folder``, whose files are all written. ``files`` is their state before they were read."""
    content = vars(Answer(_masked(printed), _masked(first_screen), document, files))
    atomic.write_text(folder / FILE, json.dumps({**content, "folder": _state_of_folder(folder, content)}))


def find(folder: Path, files: str | None = None) -> Answer | None:
    """Return the answer of ``folder``, None where it does not hold. ``files``: it must also be that of these files."""
    try:
        if (folder / FILE).lstat().st_size > _LONGEST:
            return None
        content = dict(json.loads(atomic.read_regular(folder / FILE)))
        state = content.pop("folder", None)
        holds = state == _state_of_folder(folder, content) and (files is None or content.get("files") == files != "")
        # The folder may come from another user. Its text may hold commands for the terminal; the screen writes them
        # out.
        return Answer(**{**content, "printed": visible(content["printed"])}) if holds else None
    except (OSError, LookupError, ValueError, TypeError, RecursionError):
        return None


def _masked(node: Any) -> Any:
    if isinstance(node, list):
        return list(map(_masked, node))
    return masking.mask_printed(node) if isinstance(node, str) else node


def _state_of_folder(folder: Path, content: dict[str, Any]) -> str:
    stats = [_stats(place) for place in (folder, *sorted(folder.iterdir())) if place.is_dir()]
    return _digest(_code(), stats, {**content, "folder": ""})


def _stats(folder: Path) -> list[tuple[Any, ...]]:
    """Return name, inode, size and times of each regular file but the answer, in the order of their names."""
    files = ((entry.name, entry.stat()) for entry in os.scandir(folder) if entry.name != FILE and entry.is_file())
    return sorted((name, s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns) for name, s in files)


def _code() -> list[Any]:
    """Return the version of profpipe, with the times of its files: a checkout changes without a new version."""
    places = [Path(profpipe.__file__).parent, *map(plugins.builtin_folder, ("parsers", "templates"))]
    files = sorted(path for place in places for path in place.rglob("*") if path.suffix not in (".pyc", ""))
    return [profpipe.__version__, [(str(path), (stat := path.stat()).st_size, stat.st_mtime_ns) for path in files]]


def _digest(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts).encode("utf-8", "surrogatepass")).hexdigest()
