"""What a call does beside its parts, by kernel class: together it is often the largest of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from profpipe.findings import Part, Split

#: From this share of any call's kernel time on, a class is told apart from everything else.
_TOLD = 0.05

#: Classes that are parts of a call themselves.
_PARTS = ("attention", "attention_aux", "gemm", "softmax", "add", "graph")

_NAMES: Mapping[str, str] = {"copy": "other copies", "other": "unclassified"}


def classes(splits: Sequence[Split]) -> list[str]:
    """The classes beside the parts that make 5 % of any of these calls, the one with the largest share first."""
    found = [_beside(split) for split in splits]
    # A rule of the user's own may class such kernels otherwise, so that they cannot be told apart.
    if any(part.ns < 0 for own in found for part in own.values()):
        return []
    largest: dict[str, float] = {}
    for split, own in zip(splits, found, strict=True):
        for name, part in own.items():
            largest[name] = max(largest.get(name, 0.0), part.ns / split.total.ns)
    return sorted((name for name in largest if largest[name] >= _TOLD), key=lambda name: -largest[name])


def named(name: str) -> str:
    """How a class is called beside the parts: copies are those that are no direct_copy."""
    return _NAMES.get(name, name)


def of(split: Split, name: str) -> Part:
    """The kernels of class ``name`` that are in no part of the call."""
    return _beside(split).get(name, Part())


def left(split: Split, names: Sequence[str]) -> Part:
    """Everything else: what is in no part of the call, and in none of the classes ``names``."""
    own = [of(split, name) for name in names]
    return _minus(split.part("rest"), Part(sum(part.calls for part in own), sum(part.ns for part in own)))


def _beside(split: Split) -> dict[str, Part]:
    """By class, what is in no part of the call."""
    own = {name: part for name, part in split.classes.items() if name not in _PARTS}
    if "copy" in own:
        own["copy"] = _minus(own["copy"], split.part("direct_copy"))
    if "reduction" in own:
        # Sage's smoothing of K is a reduction by its name, and one of attention's helpers.
        smoothing = _minus(split.part("helpers"), split.classes.get("attention_aux", Part()))
        own["reduction"] = _minus(own["reduction"], smoothing)
    return own


def _minus(one: Part, other: Part) -> Part:
    """Nothing where the two are as long: sums that cancel out are not zero to the last digit."""
    same = abs(one.ns - other.ns) <= 1e-9 * one.ns
    return Part() if same else Part(one.calls - other.calls, one.ns - other.ns)
