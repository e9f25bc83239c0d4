"""Apply the changes that `profpipe ab --b change:NAME` measures, and what their files share.

A change that has reached the program leaves a file, ``hook.capture.change.bf16``. A process without it has
failed: what ran without the change must not be measured as if it had run with it.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
import types
from typing import Any, Callable, Dict, List

from profpipe import ranges
from profpipe.hook import settings

#: The change whose ``apply`` runs, and the changes that wait for something of the program.
_applying: List[str] = []
_waiting: List[str] = []


def apply(torch: Any) -> None:
    """Apply the changes to the process, which has imported torch. One that fails ends the process with its reason."""
    for path in filter(None, os.environ.get(ranges.CHANGES_VARIABLE, "").split(os.pathsep)):
        name = os.path.splitext(os.path.basename(path))[0]
        # Dynamo imports the module of a function by its name.
        change = sys.modules[f"profpipe_change_{name}"] = types.ModuleType(f"profpipe_change_{name}")
        change.__file__ = path
        _applying[:] = [name]
        try:
            with open(path, "rb") as file:
                exec(compile(file.read(), path, "exec"), vars(change))
            if hasattr(change, "apply"):
                change.apply(torch)
            if name not in _waiting:
                _note(name)
        except Exception as error:
            fail(name, error)


def fail(name: str, error: BaseException) -> None:
    """End the process, because the change ``name`` cannot be applied."""
    print(f"profpipe: the change {name} cannot be applied: {type(error).__name__}: {error}", file=sys.stderr)
    sys.exit(1)


def _note(name: str) -> None:
    given = settings.read()
    if given is not None:
        with open(given.path(f"change.{name}"), "a", encoding="utf-8") as file:
            file.write(f"{find_place()}\n")


def find_place() -> str:
    """Return the line of the program that is running, ``train.py:12``; empty where none of the program is."""
    frame: Any = sys._getframe(1)
    folder = os.path.join(os.getcwd(), "")
    while frame is not None:
        path = os.path.abspath(frame.f_code.co_filename)
        # A virtual environment may lie in the folder of the program.
        if path.startswith(folder) and "site-packages" not in path:
            return f"{path[len(folder) :]}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def at_first_call(torch: Any, act: Callable[[Any], object]) -> None:
    """Call ``act`` with the module of the first call that is not inside another one, before that call.

    A module without parameters, such as a loss or a transform of images, is none.
    """
    kind = torch.nn.Module
    original, name, pending = kind.__call__, _applying[0], [True]
    is_compiling = getattr(getattr(torch, "compiler", None), "is_compiling", lambda: False)
    _waiting.append(name)

    @functools.wraps(original)
    def call(module: Any, *args: Any, **kwargs: Any) -> Any:
        # Dynamo traces this function where the program compiles what calls the module.
        if pending and not is_compiling() and next(module.parameters(), None) is not None:
            pending.clear()
            # Another wrapper may lie around this one.
            if kind.__call__ is call:
                kind.__call__ = original
            act(module)
            _note(name)
        return original(module, *args, **kwargs)

    kind.__call__ = call


def with_arguments(kind: Any, arguments: Callable[[Dict[str, Any]], Dict[str, Any]]) -> None:
    """Create objects of ``kind`` with the arguments that ``arguments`` returns for those of the program, by name.

    Where the class refuses them, the process ends with its reason.
    """
    original, name = kind.__init__, _applying[0]
    signature = inspect.signature(original)
    _waiting.append(name)

    @functools.wraps(original)
    def create(self: Any, *args: Any, **kwargs: Any) -> None:
        bound = signature.bind(self, *args, **kwargs)
        more = arguments(dict(bound.arguments))
        bound.arguments.update(more)
        try:
            if unknown := more.keys() - signature.parameters.keys():
                raise TypeError(f"{kind.__name__} has no argument {', '.join(sorted(unknown))}")
            original(*bound.args, **bound.kwargs)
        except (TypeError, ValueError, RuntimeError) as error:
            fail(name, error)
        _note(name)

    kind.__init__ = create


def device_of(module: Any) -> str:
    """Return the type of the device of a module: ``cuda`` or ``cpu``."""
    return str(next(module.parameters()).device.type)


def explain_optimizers(uses: Dict[str, Any], is_done: Callable[[Dict[str, Any]], Any]) -> str:
    """Return why a change of Adam, AdamW and SGD does not apply to a program; empty if it does."""
    able = [optimizer for optimizer in uses["optimizers"] if optimizer["kind"] in ("Adam", "AdamW", "SGD")]
    if not able:
        return "the program has no Adam, AdamW or SGD"
    return "the program has it" if all(map(is_done, able)) else ""
