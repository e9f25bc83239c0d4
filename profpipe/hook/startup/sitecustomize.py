"""Executed by the Python processes of a command, before its program: prepares the recording of steps.

Python's ``site`` imports this module, because its folder is first on PYTHONPATH. The module watches for the import of
torch, and then executes the ``sitecustomize`` that the process would have without profpipe. Until torch is imported it
costs well under 5 ms: no module is imported that the interpreter has not loaded already.
"""

from __future__ import annotations

import os
import sys

# The module is loaded by all interpreters; `importlib.machinery`, where it is documented, takes milliseconds.
from _frozen_importlib_external import PathFinder  # type: ignore[import-not-found]

_FOLDER = os.path.dirname(os.path.abspath(__file__))
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(_FOLDER)))


class _Finder:
    """Find the profpipe that profiles this process, and call the hook when a watched module has been imported."""

    #: torch opens the steps; the ranges of nvtx are watched for `steps: {range: REGEX}`.
    watched = ("torch", "nvtx")

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        if name == "profpipe":
            return PathFinder.find_spec(name, [_ROOT])
        if name not in self.watched:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find and finder is not self else None
            if spec is not None:
                self._watch(spec.loader)
                return spec
        return None

    def _watch(self, loader):  # type: ignore[no-untyped-def]
        """Have ``loader`` call the hook. The loader stays of its type, for programs ask for it."""
        execute = getattr(loader, "exec_module", None)

        if execute is None:
            return

        def execute_and_report(module):  # type: ignore[no-untyped-def]
            loader.__dict__.pop("exec_module", None)
            execute(module)
            _imported(module.__name__)

        loader.exec_module = execute_and_report


def _imported(name):  # type: ignore[no-untyped-def]
    try:
        from profpipe.hook import install

        install.after_import(name)
    except Exception as error:
        # The hook itself cannot be loaded, so it has no file.
        print(f"profpipe: the start-up hook failed: {type(error).__name__}: {error}", file=sys.stderr)


def _list_foreign_modules():  # type: ignore[no-untyped-def]
    try:
        from profpipe import origins

        origins.write_foreign_modules()
    except Exception as error:
        print(f"profpipe: the modules cannot be listed: {type(error).__name__}: {error}", file=sys.stderr)


def _prepare(settings):  # type: ignore[no-untyped-def]
    sys.meta_path.insert(0, _Finder())
    # The settings are JSON; the name of this file is kept apart, so that no JSON is read before torch is imported.
    loaded = os.environ.get("PROFPIPE_HOOK_LOADED")
    if loaded:
        os.close(os.open(loaded, os.O_CREAT | os.O_WRONLY, 0o666))
    if os.environ.get("PROFPIPE_ROOTS"):
        import atexit

        atexit.register(_list_foreign_modules)
    for name in _Finder.watched:
        if name in sys.modules:  # a .pth file imported it
            _imported(name)
    # The file of a profiler that works inside the process.
    inside = os.environ.get("PROFPIPE_INSIDE")
    if inside:
        import json

        namespace = {"__name__": "profpipe_inside", "__file__": inside}
        with open(inside, "rb") as file:
            exec(compile(file.read(), inside, "exec"), namespace)
        namespace["at_start"](json.loads(settings))  # type: ignore[operator]


def _chain():  # type: ignore[no-untyped-def]
    """Execute the sitecustomize that this module hides. Its errors are treated by ``site`` as without the hook."""
    hook_module = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        # The import system looks for the module that it is importing.
        if hook_module is not None:
            sys.modules.setdefault("sitecustomize", hook_module)


sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != _FOLDER]
if os.environ.get("PROFPIPE_HOOK"):
    try:
        _prepare(os.environ["PROFPIPE_HOOK"])
    except Exception as error:
        print(f"profpipe: the start-up hook failed: {type(error).__name__}: {error}", file=sys.stderr)
_chain()
