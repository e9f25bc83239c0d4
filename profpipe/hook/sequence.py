"""Which call ends a step: of several optimizers that take turns, the last one of each iteration."""

from __future__ import annotations

import weakref
from typing import Any

#: An iteration may hold so many times as many calls as the longest one so far, and a few more, before the loop is
#: taken for another one, which does not use the optimizer that ended the steps until then.
_LONGER = 4
_MORE = 16


class Sequence:
    """The optimizers of a program in the order of their calls.

    The optimizer that stepped for the first time last ends each step: in a GAN that is the second of two, and where
    the discriminator steps five times for each step of the generator, the generator.
    """

    def __init__(self) -> None:
        self._seen = weakref.WeakSet()  # type: ignore[var-annotated]
        self._last: Any = lambda: None
        self._since = 0
        self._longest = 1

    def add(self, member: Any) -> str:
        """Return what the call of ``member`` is: ``ends`` a step, is ``inside`` one, or begins a ``new`` order."""
        if member not in self._seen:
            self._seen.add(member)
            return self._end_with(member)
        if self._last() is member:
            self._longest = max(self._longest, self._since + 1)
            self._since = 0
            return "ends"
        self._since += 1
        if self._since > _LONGER * self._longest + _MORE:
            return self._end_with(member)
        return "inside"

    def _end_with(self, member: Any) -> str:
        self._last, self._since, self._longest = weakref.ref(member), 0, 1
        return "new"
