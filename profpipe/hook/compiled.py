"""See the calls of what torch.compile returns: the hooks of torch run while it traces, and never again.

``torch.compile`` is wrapped. Its functions are called by a wrapper that Dynamo does not trace, so nothing is compiled
twice and no graph is broken.
"""

from __future__ import annotations

import functools
import itertools
import weakref
from typing import Any, Callable, Dict, Tuple

#: Wraps ``compiled``, which torch.compile made of ``target``.
Wrap = Callable[[Any, Callable[..., Any]], Callable[..., Any]]

#: A step changes the parameters. So many of the first ones are looked at.
_PARAMETERS = 8


def watch(torch: Any, wrap: Wrap) -> None:
    """Pass each function that torch.compile makes through ``wrap``. A compiled module stays as it is."""
    original = getattr(torch, "compile", None)
    if original is None:
        return

    @functools.wraps(original)
    def compile(model: Any = None, *args: Any, **kwargs: Any) -> Any:
        found = original(model, *args, **kwargs)
        # Without a model it is a decorator, which calls torch.compile again. A module is wrapped by its `__call__`.
        if model is None or isinstance(model, (type, torch.nn.Module)) or not callable(found):
            return found
        return wrap(model, found)

    torch.compile = compile


class OptimizerWatch:
    """The optimizers of the process, and how many steps of each were seen."""

    def __init__(self, torch: Any, is_compiling: Callable[[], bool], stepped: Callable[[Any], None]) -> None:
        self._is_compiling, self._stepped = is_compiling, stepped
        self._counts: Any = weakref.WeakKeyDictionary()
        self._watch_creation(torch.optim.Optimizer)

    def count(self, optimizer: Any) -> int:
        found: int = self._counts.get(optimizer, 0)
        return found

    def step(self, optimizer: Any) -> None:
        """Count a step of ``optimizer``, and report it."""
        self._counts[optimizer] = self.count(optimizer) + 1
        self._stepped(optimizer)

    def wrap(self, target: Any, compiled: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``compiled`` so that the step of an optimizer inside is seen by the change of its parameters."""

        @functools.wraps(compiled)
        def call(*args: Any, **kwargs: Any) -> Any:
            if self._is_compiling():
                return compiled(*args, **kwargs)
            before = self._states()
            result = compiled(*args, **kwargs)
            for optimizer, (count, versions) in before.items():
                if self.count(optimizer) == count and _versions(optimizer) != versions:
                    self.step(optimizer)
            return result

        return call

    def _states(self) -> Dict[Any, Tuple[int, Any]]:
        return {optimizer: (count, _versions(optimizer)) for optimizer, count in list(self._counts.items())}

    def _watch_creation(self, kind: Any) -> None:
        original = kind.__init__

        @functools.wraps(original)
        def create(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            original(optimizer, *args, **kwargs)
            self._counts.setdefault(optimizer, 0)

        kind.__init__ = create


def _versions(optimizer: Any) -> Any:
    """Return the numbers of changes of the first parameters, which torch counts for autograd."""
    parameters = itertools.chain.from_iterable(group["params"] for group in optimizer.param_groups)
    return [parameter._version for parameter in itertools.islice(parameters, _PARAMETERS)]
