"""A kernel name -> its class and its family, by the ordered rules of ``parsers/kernel_classes.yaml``.

The spelling that all tools share is ``kernel_names.normalise``; rules are searched in both, the tool's and that one.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from profpipe import load
from profpipe.kernel_names import demangle, normalise

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "CLASSES",
    "OTHER",
    "Rule",
    "annotate",
    "classify",
    "demangle",
    "first_rule",
    "normalise",
    "rules",
    "user_rules",
]

CLASSES: Final = (
    "attention", "attention_aux", "gemm", "conv", "softmax", "norm", "reduction", "copy", "add", "elementwise", "index",
    "random", "optimizer", "communication", "fused", "memcpy", "memset", "graph", "other",
)  # fmt: skip

OTHER: Final = ("other", "")


@dataclass(frozen=True)
class Rule:
    """One line of ``kernel_classes.yaml``: names that ``pattern`` finds are of this class and family.

    ``company`` (family -> pattern) tells apart projects that gave their kernels one name: where exactly one of its
    patterns finds another kernel of the same case, that family is meant; else ``family`` stands and says what is
    unknown.
    """

    kernel_class: str
    family: str
    pattern: re.Pattern[str]
    source: str = ""
    examples: tuple[str, ...] = ()
    company: Mapping[str, re.Pattern[str]] = field(default_factory=dict, hash=False)


def user_rules(entries: Iterable[Mapping[str, Any]]) -> tuple[Rule, ...]:
    """The rules of ``entries`` (``class``, ``pattern``; optional ``family``, ``source``, ``examples``, ``company``).

    Raises ``ValueError`` naming the rule's index and what is wrong with it.
    """
    return tuple(_rule(index, entry) for index, entry in enumerate(entries))


def _rule(index: int, entry: Mapping[str, Any]) -> Rule:
    known = {"class", "family", "pattern", "source", "examples", "company"}
    if not isinstance(entry, Mapping) or not {"class", "pattern"} <= set(entry):
        raise ValueError(f"rule {index}: needs 'class' and 'pattern'")
    if unknown := sorted(set(entry) - known):
        raise ValueError(f"rule {index}: unknown key '{unknown[0]}'. Known: {', '.join(sorted(known))}.")
    if entry["class"] not in CLASSES:
        raise ValueError(f"rule {index}: unknown class '{entry['class']}'. Known: {', '.join(CLASSES)}.")
    return Rule(
        kernel_class=entry["class"],
        family=str(entry.get("family") or ""),
        pattern=_compiled(index, entry["pattern"]),
        source=str(entry.get("source") or ""),
        examples=tuple(entry.get("examples") or ()),
        company={family: _compiled(index, pattern) for family, pattern in (entry.get("company") or {}).items()},
    )


def _compiled(index: int, pattern: object) -> re.Pattern[str]:
    if not isinstance(pattern, str) or not pattern:
        raise ValueError(f"rule {index}: the pattern must be a text, not {pattern!r}")
    try:
        # Each name is searched in both spellings, one a line.
        return re.compile(pattern, re.MULTILINE)
    except re.error as error:
        raise ValueError(f"rule {index}: bad regular expression {pattern!r}: {error}") from error


@functools.cache
def rules(path: Path | None = None) -> tuple[Rule, ...]:
    """The engine's own rules, in order."""
    import yaml

    path = path or load.own_folder("parsers") / "kernel_classes.yaml"
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    with path.open(encoding="utf-8") as file:
        return user_rules(yaml.load(file, Loader=loader)["rules"])


@functools.lru_cache(maxsize=65536)
def first_rule(name: str, own: tuple[Rule, ...] = ()) -> Rule | None:
    """The first rule that finds ``name`` as it is given or normalised; ``own`` rules go before the engine's."""
    text = _both_spellings(name)
    return next((rule for rule in (*own, *rules()) if rule.pattern.search(text)), None)


def _both_spellings(name: str) -> str:
    same = normalise(name)
    return name if same == name else f"{name}\n{same}"


def classify(name: str, own: tuple[Rule, ...] = ()) -> tuple[str, str]:
    """(class, family) of a kernel name as any tool writes it; ``("other", "")`` where no rule finds it.

    A family with ``|`` in it (``sage2|sparge``) says that the name alone does not tell which.
    """
    rule = first_rule(name, own)
    return (rule.kernel_class, rule.family) if rule else OTHER


def annotate(frame: pd.DataFrame, rules: tuple[Rule, ...] | None = None) -> pd.DataFrame:
    """``frame`` with ``kernel`` normalised and ``kernel_class`` and ``kernel_family`` filled; rows stay as they are.

    ``rules``: the user's own, from ``user_rules``; they go first. Where the frame has ``kind``, whole graphs are class
    ``graph`` whatever they are called.
    """
    import numpy as np
    import pandas as pd

    names = frame["kernel"].astype(object)
    codes, distinct = pd.factorize(names)
    found = {name: first_rule(name, rules or ()) for name in distinct}

    def spread(values: Iterable[str]) -> pd.Series[Any]:
        # One lookup for each distinct name; a map over a hundred thousand rows takes longer than all rules.
        return pd.Series(np.array([*values, ""], dtype=object)[codes], index=frame.index, dtype=object)

    result = frame.assign(
        kernel=spread(normalise(name) for name in found),
        kernel_class=spread(rule.kernel_class if rule else "other" for rule in found.values()),
        kernel_family=spread(rule.family if rule else "" for rule in found.values()),
    )
    if "kind" in frame.columns:
        graphs = frame["kind"] == "graph"
        result.loc[graphs, ["kernel_class", "kernel_family"]] = ["graph", ""]
    for rows, family in _by_company(frame, names, found):
        result.loc[rows, "kernel_family"] = family
    return result


def _by_company(
    frame: pd.DataFrame, names: pd.Series[Any], found: Mapping[str, Rule | None]
) -> Iterator[tuple[pd.Series[Any], str]]:
    """(mask of rows, family) for the ambiguous names whose case holds kernels of just one candidate."""
    ambiguous = {name: rule for name, rule in found.items() if rule and rule.company}
    if not ambiguous:
        return
    cases = frame["case"] if "case" in frame.columns else names.map(lambda _: "")
    for case in cases[names.isin(list(ambiguous))].unique():
        inside = cases == case
        company = "\n".join(_both_spellings(name) for name in names[inside].unique())
        for name, rule in ambiguous.items():
            families = [family for family, pattern in rule.company.items() if pattern.search(company)]
            if len(families) == 1:
                yield inside & (names == name), families[0]
