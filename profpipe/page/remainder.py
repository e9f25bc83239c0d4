"""What a call does beside its parts, by kernel class: together it is often the largest of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from profpipe.findings import Part, Split

#: From this share of any call's kernel time on, a class is told apart from everything else.
_TOLD = 0.05

_NAMES: Mapping[str, str] = {"copy": "other copies", "other": "unclassified"}


def classes(splits: Sequence[Split]) -> list[str]:
    """The classes beside the parts that make 5 % of any of these calls, the one with the largest share first."""
    largest: dict[str, float] = {}
    for split in splits:
        for name, part in split.rest.items():
            largest[name] = max(largest.get(name, 0.0), part.ns / split.total.ns)
    return sorted((name for name in largest if largest[name] >= _TOLD), key=lambda name: -largest[name])


def named(name: str) -> str:
    """How a class is called beside the parts: copies are those that are no direct_copy."""
    return _NAMES.get(name, name)


def of(split: Split, name: str) -> Part:
    """The kernels of class ``name`` that are in no part of the call."""
    return split.rest.get(name, Part())


def left(split: Split, names: Sequence[str]) -> Part:
    """Everything else: what is in no part of the call, and in none of the classes ``names``."""
    own = [part for name, part in split.rest.items() if name not in names]
    return Part(sum(part.calls for part in own), sum(part.ns for part in own))
