"""Paths in texts: the folders of a path name its user."""

from __future__ import annotations

import re
from typing import Any, Final

_PATH: Final = re.compile(r"(?<![\w.])~?(/[^\s/,;:'\"()]+){2,}/?|\b[A-Za-z]:\\[^\s,;'\"()]+")
#: From the beginning of an absolute path to the last of its folders, which may have blanks in their names. A stack of
#: calls has a semicolon or a new line between two of them.
_FOLDERS: Final = re.compile(r"(?<![\w.])(~?/|[A-Za-z]:\\)[^;\n]*[/\\]")


def without_paths(text: Any) -> Any:
    """``text`` with each path in it replaced; what is no text stays."""
    return _PATH.sub("[path]", text) if isinstance(text, str) else text


def without_folders(text: Any) -> Any:
    """``text`` with the file's name alone of an absolute path, and less rather than more where there are several."""
    return _FOLDERS.sub("", text) if isinstance(text, str) else text
