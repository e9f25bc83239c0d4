"""Remove paths from texts: the folders of a path name its user."""

from __future__ import annotations

import re
from typing import Any, Final

_PATH: Final = re.compile(r"(?<![\w.])~?(/[^\s/,;:'\"()]+){2,}/?|\b[A-Za-z]:\\[^\s,;'\"()]+")
#: An absolute path up to its last folder; folders may have blanks in their names. A semicolon or a new line separates
#: the calls of a stack.
_FOLDERS: Final = re.compile(r"(?<![\w.])(~?/|[A-Za-z]:\\)[^;\n]*[/\\]")


def without_paths(text: Any) -> Any:
    """Replace each path in ``text``; other values stay."""
    return _PATH.sub("[path]", text) if isinstance(text, str) else text


def without_folders(text: Any) -> Any:
    """Remove the folders of an absolute path from ``text``; of several paths, all text up to the last folder."""
    return _FOLDERS.sub("", text) if isinstance(text, str) else text
