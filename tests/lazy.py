"""Modules that a test imports at their first use: each worker collects all test files, and torch takes seconds."""

import importlib
from functools import cache, partial
from importlib.util import find_spec

import pytest

from profpipe import plugins

#: pytest asks each object of a test file for these while it collects.
_ASKED = {"_mock_name", "__wrapped__", "__test__", "__bases__"}


class Lazy:
    """Stands for the module that ``load`` returns."""

    __slots__ = ("_load",)

    def __init__(self, load):
        object.__setattr__(self, "_load", cache(load))

    @property
    def __dict__(self):  # type: ignore[override]
        """The module's, where monkeypatch looks for what it replaces."""
        return vars(self._load())

    def __getattr__(self, name):
        if name in _ASKED:
            raise AttributeError(name)
        return getattr(self._load(), name)

    def __setattr__(self, name, value):
        setattr(self._load(), name, value)

    def __delattr__(self, name):
        delattr(self._load(), name)


def module(name):
    return Lazy(partial(importlib.import_module, name))


def workload(path):
    """Return the file of a workload, loaded as a run loads it."""
    return Lazy(partial(plugins.load_module, path))


def needs(*packages):
    """Return the mark that skips tests where a package is not installed."""
    missing = [name for name in packages if find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")
