"""Classify kernel names by the ordered rules of ``parsers/kernel_classes.yaml``.

Rules are searched in the tool's spelling and in the spelling that all tools share (``kernel_names.normalise``).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from profpipe import plugins
from profpipe.ingest import bounds
from profpipe.ingest.kernel_names import normalise

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pandas as pd

OTHER: Final = "other"
CONVOLUTION: Final = "conv"

#: Assertions about the text around a match. RE2 lacks them; without them a pattern finds no less.
_LOOK_AROUND: Final = re.compile(
    r"(?<!\\)\(\?<?[=!](?:[^()\[\\]|\\.|\[\^?\]?(?:[^\]\\]|\\.)*\]|\((?:[^()\[\\]|\\.|\[\^?\]?(?:[^\]\\]|\\.)*\])*\))*\)"
)
_PLAIN: Final = re.compile(r"[\n -~]*")
#: To compile a pattern for RE2 takes as long as to search a few names with ``re``.
_FEW: Final = 8
#: RE2 first searches so many patterns as one. Most texts have none of them, and are then read once instead of 16 times.
_TOGETHER: Final = 16
_MOST_CACHED: Final = 1 << 16


@dataclass(frozen=True)
class Rule:
    """One rule of ``kernel_classes.yaml``: the class and family of the names that ``expression`` finds.

    A family such as ``sage2|sparge`` means that the name is the same in both.
    ``company`` (family -> expression) is for projects that share a kernel name: if exactly one of its expressions finds
    another kernel of the same case, the family is that one, else ``family``.
    """

    kernel_class: str
    family: str
    expression: str
    company: Mapping[str, str] = field(default_factory=dict, hash=False)

    @functools.cached_property
    def pattern(self) -> re.Pattern[str]:
        return _compiled(self.expression)


def user_rules(entries: Iterable[Mapping[str, Any]]) -> tuple[Rule, ...]:
    """Return the rules of the pipeline file.

    Raises ``ValueError`` with the index of a rule with an unknown class or an empty pattern.
    """
    classes = plugins.kernel_classes()["classes"]
    parsed = tuple(map(_rule, entries))
    for index, rule in enumerate(parsed):
        if rule.kernel_class not in classes:
            raise ValueError(f"rule {index}: unknown class '{rule.kernel_class}'. Known: {', '.join(classes)}.")
        if not rule.expression:
            raise ValueError(f"rule {index}: the pattern must be a text, not ''")
    return parsed


def _rule(entry: Mapping[str, Any]) -> Rule:
    return Rule(entry["class"], entry.get("family", ""), entry["pattern"], entry.get("company", {}))


@functools.cache
def _compiled(expression: str) -> re.Pattern[str]:
    # The two spellings of a name are two lines.
    return re.compile(expression, re.MULTILINE)


_UNKNOWN: Final = Rule("", "", "")
#: The results of ``first_rules``.
_FIRST_RULES: Final[dict[tuple[str, tuple[Rule, ...]], Rule | None]] = {}


@functools.cache
def rules() -> tuple[Rule, ...]:
    """Return the engine's rules. Their patterns are compiled when the first name may match: most never are."""
    return tuple(map(_rule, plugins.kernel_classes()["rules"]))


def first_rules(names: Iterable[str], preferred: tuple[Rule, ...] = ()) -> dict[str, Rule | None]:
    """Return for ``names`` the first rules that find them in either spelling; ``preferred`` go first.

    Many names at once take a tenth of the time.
    """
    rule_of = {name: _FIRST_RULES.get((name, preferred), _UNKNOWN) for name in names}
    texts = {name: _both_spellings(name) for name, rule in rule_of.items() if rule is _UNKNOWN}
    for (name, text), possible in zip(texts.items(), _possible_rules(list(texts.values())), strict=True):
        rule_of[name] = next((rule for rule in (*preferred, *possible) if rule.pattern.search(text)), None)
    if len(_FIRST_RULES) + len(texts) > _MOST_CACHED:
        _FIRST_RULES.clear()
    _FIRST_RULES.update(((name, preferred), rule_of[name]) for name in texts)
    return rule_of


def _possible_rules(texts: Sequence[str]) -> list[Sequence[Rule]]:
    """Return the engine's rules without those that cannot find a text.

    RE2, which pyarrow contains, searches 300 names for one rule in 0.2 ms, and ``re`` in 3 ms.
    """
    if len(texts) < _FEW:
        return [rules()] * len(texts)
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute

    # In other texts RE2 has other words and spaces than Python.
    is_plain = [_PLAIN.fullmatch(text) is not None for text in texts]
    column = pa.array([text if plain else "" for text, plain in zip(texts, is_plain, strict=True)], pa.large_string())
    # RE2 copies what is repeated up to a number of times. Without it the pattern finds more, never less.
    patterns = [re.sub(r"\{0,\d+\}", "*", f"(?:(?m){_LOOK_AROUND.sub('', rule.expression)})") for rule in rules()]

    def search(pattern: str, rows: npt.NDArray[np.intp]) -> npt.NDArray[np.bool_]:
        matches = pyarrow.compute.match_substring_regex(column.take(pa.array(rows)), pattern)
        return np.asarray(matches.to_numpy(zero_copy_only=False), dtype=bool)

    can_find = np.ones((len(rules()), len(texts)), dtype=bool)
    for first in range(0, len(patterns), _TOGETHER):
        group, rows = patterns[first : first + _TOGETHER], np.arange(len(texts))
        with suppress(pa.ArrowInvalid):  # RE2 does not know the syntax of one of these patterns
            can_find[first : first + _TOGETHER] = are_found = search("|".join(group), rows)
            rows = np.flatnonzero(are_found)
        for row, pattern in zip(can_find[first : first + _TOGETHER], group, strict=True):
            with suppress(pa.ArrowInvalid):
                row[rows] = search(pattern, rows)
    can_find[:, np.logical_not(is_plain)] = True
    return [[rules()[number] for number in np.flatnonzero(numbers)] for numbers in can_find.T]


def _both_spellings(name: str) -> str:
    same = normalise(name)
    # The rules are regular expressions, some of which take time by the square of a text's length.
    name, same = name[: bounds.LONGEST_NAME], same[: bounds.LONGEST_NAME]
    return name if same == name else f"{name}\n{same}"


def classes(names: Sequence[str]) -> list[str]:
    """Return the classes of ``names`` by the engine's rules."""
    rule_of = first_rules(names)
    return [rule.kernel_class if (rule := rule_of[name]) else OTHER for name in names]


def annotate(frame: pd.DataFrame, rules: tuple[Rule, ...] | None = None) -> pd.DataFrame:
    """Normalise ``kernel`` and fill ``kernel_class`` and ``kernel_family`` of the rows.

    ``rules``, the user's from ``user_rules``, go first. Rows of kind ``graph`` have the class ``graph``. Rows that have
    the class ``conv`` keep it, unless a rule of the user finds them: a file can say that a convolution launched them.
    Rows that have another class keep it, unless a rule finds them. Raises ``TooLarge`` for very many names.
    """
    import numpy as np
    import pandas as pd

    names = frame["kernel"].astype(object)
    codes, distinct = pd.factorize(names)
    if len(distinct) > bounds.MOST_SUMMED_NAMES:
        raise bounds.TooLarge(f"it names more than {bounds.MOST_SUMMED_NAMES:,} kernels")
    rule_of = first_rules(distinct, rules or ())

    def spread(values: Iterable[Any]) -> pd.Series[Any]:
        # A map over a hundred thousand rows takes longer than all rules over the distinct names.
        return pd.Series(np.array([*values, ""], dtype=object)[codes], index=frame.index, dtype=object)

    result = frame.assign(
        kernel=spread(normalise(name) for name in rule_of),
        kernel_class=spread(rule.kernel_class if rule else OTHER for rule in rule_of.values()),
        kernel_family=spread(rule.family if rule else "" for rule in rule_of.values()),
    )
    if "kernel_class" in frame.columns and (given := frame["kernel_class"].fillna("")).any():
        is_user_rule = spread(rule in (rules or ()) for rule in rule_of.values()).astype(bool)
        launched = (given == CONVOLUTION) & ~is_user_rule & (result["kernel_class"] != CONVOLUTION)
        kept = launched | ((given != "") & spread(rule is None for rule in rule_of.values()).astype(bool))
        result.loc[kept, "kernel_class"], result.loc[kept, "kernel_family"] = given[kept], ""
    if "kind" in frame.columns:
        graphs = frame["kind"] == "graph"
        result.loc[graphs, ["kernel_class", "kernel_family"]] = ["graph", ""]
    for rows, family in _choose_families(frame, codes, rule_of):
        result.iloc[rows, result.columns.get_loc("kernel_family")] = family
    return result


def _choose_families(
    frame: pd.DataFrame, codes: npt.NDArray[np.intp], rule_of: Mapping[str, Rule | None]
) -> Iterator[tuple[npt.NDArray[np.bool_], str]]:
    """Yield (mask of rows, family) for the ambiguous names whose case holds kernels of just one candidate.

    ``codes`` index the names in ``rule_of``.
    """
    import numpy as np
    import pandas as pd

    names = list(rule_of)
    ambiguous = {code: rule for code, rule in enumerate(rule_of.values()) if rule and rule.company}
    case = pd.factorize(frame["case"])[0] if "case" in frame.columns else np.zeros_like(codes)
    for number in np.unique(case[np.isin(codes, list(ambiguous))]):
        inside = case == number
        company = "\n".join(_both_spellings(names[code]) for code in np.unique(codes[inside]))
        for code, rule in ambiguous.items():
            families = [family for family, expression in rule.company.items() if _compiled(expression).search(company)]
            if len(families) == 1:
                yield inside & (codes == code), families[0]
