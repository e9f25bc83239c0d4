"""The classes and categories of kernels, as ``parsers/kernel_classes.yaml`` declares them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from profpipe import plugins

_DOCUMENT: Final[Mapping[str, Any]] = plugins.kernel_classes()

#: Class -> category.
CATEGORY_OF: Final[Mapping[str, str]] = _DOCUMENT["classes"]

#: In reading order.
CATEGORIES: Final[tuple[str, ...]] = tuple(_DOCUMENT["categories"])

#: The classes that are no category of the same name, and that a kernel on the GPU can have.
OTHER_CLASSES: Final = tuple(name for name in CATEGORY_OF if name not in (*CATEGORIES, "memcpy", "memset"))

_LIBRARIES: Final = re.compile(_DOCUMENT["libraries"])

_RULES: Final = [{**rule, "pattern": re.compile(rule.get("pattern", ""))} for rule in _DOCUMENT["category_rules"]]


def category(name: str, kernel_class: str, kind: str) -> str:
    """Return the category of a kernel."""
    for rule in _RULES:
        has_kind = rule.get("kind", kind) == kind and rule.get("class", kernel_class) == kernel_class
        if has_kind and rule["pattern"].search(name):
            return str(rule["category"])
    return CATEGORY_OF.get(kernel_class, "rest")


def is_own(name: str, kind: str) -> bool:
    """Return whether a kernel without a class is the program's own: on the GPU, and of no known library."""
    return kind != "cpu_op" and not _LIBRARIES.search(name)
