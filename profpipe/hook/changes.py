"""Apply the changes that `profpipe ab --b change:NAME` measures, and what their files share."""

from __future__ import annotations

import functools
import os
import sys
from typing import Any, Callable, Dict

from profpipe import ranges


def apply(torch: Any) -> None:
    """Apply the changes to the process, which has imported torch. One that fails ends the process with its reason."""
    for path in filter(None, os.environ.get(ranges.CHANGES_VARIABLE, "").split(os.pathsep)):
        namespace: Dict[str, Any] = {"__name__": "profpipe_change", "__file__": path}
        try:
            with open(path, "rb") as file:
                exec(compile(file.read(), path, "exec"), namespace)
            if "apply" in namespace:
                namespace["apply"](torch)
        except Exception as error:
            fail(path, error)


def fail(path: str, error: BaseException) -> None:
    """End the process: what ran without the change must not be measured as if it had run with it."""
    name = os.path.splitext(os.path.basename(path))[0]
    print(f"profpipe: the change {name} cannot be applied: {type(error).__name__}: {error}", file=sys.stderr)
    sys.exit(1)


def at_first_call(torch: Any, act: Callable[[Any], object]) -> None:
    """Call ``act`` with the module of the first call that is not inside another one, before that call.

    A module without parameters, such as a loss or a transform of images, is none.
    """
    kind = torch.nn.Module
    original = kind.__call__

    @functools.wraps(original)
    def call(module: Any, *args: Any, **kwargs: Any) -> Any:
        if kind.__call__ is call and next(module.parameters(), None) is not None:
            kind.__call__ = original
            act(module)
        return original(module, *args, **kwargs)

    kind.__call__ = call


def with_arguments(kind: Any, arguments: Callable[..., Dict[str, Any]]) -> None:
    """Create objects of ``kind`` with these arguments; as the program does where they are refused."""
    original = kind.__init__

    @functools.wraps(original)
    def create(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            original(self, *args, **{**kwargs, **arguments(*args, **kwargs)})
        except (TypeError, ValueError, RuntimeError) as error:
            print(f"profpipe: {kind.__name__} refuses the arguments of a change: {error}", file=sys.stderr)
            original(self, *args, **kwargs)

    kind.__init__ = create


def device_of(module: Any) -> str:
    """Return the type of the device of a module: ``cuda`` or ``cpu``."""
    return str(next(module.parameters()).device.type)
