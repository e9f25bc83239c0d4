"""``guide.json`` beside a report of guided ncu: which launch of each kernel was asked for, and what it stands for.

ncu takes one list of invocations for all kernels, so it profiles a few launches more than were wanted. They come in the
order in which they were launched: of a kernel, the j-th in the report is the j-th of that list.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from profpipe import tables
from profpipe.errors import Refused
from profpipe.formats.counters import Launch

FILE: Final = "guide.json"
#: The file's first key, and the version of what is under it.
_MARK: Final = "profpipe_guide"
_NAME_WIDTH: Final = 100


@dataclass(frozen=True)
class Choice:
    """A launch that was chosen: the ``invocation``-th of ``kernel`` in one iteration of ``case``, counted from 1.

    ``launches`` is how many the kernel has in an iteration. It stands for those in ``alike``, itself among them, which
    have its ``grid``, ``block`` and about its duration; ``share`` is their part of the kernel's time. Where no capture
    told the launches apart all of this is missing, and the first is chosen.
    """

    case: str
    kernel: str
    invocation: int = 1
    grid: str = ""
    block: str = ""
    alike: tuple[int, ...] = ()
    launches: int | None = None
    share: float | None = None


@dataclass(frozen=True)
class Guide:
    """What one process of ncu was asked for."""

    choices: tuple[Choice, ...]

    @property
    def invocations(self) -> list[int]:
        """The list that ncu was given."""
        return sorted({choice.invocation for choice in self.choices})


def written(guide: Guide) -> str:
    """The text of ``guide.json``."""
    document = {_MARK: 1, "invocations": guide.invocations, "kernels": [asdict(choice) for choice in guide.choices]}
    return json.dumps(document, indent=1)


def beside(report: Path) -> Guide | None:
    """The guide of ``report``; None where none lies beside it. Raises ``Refused`` for one that is damaged."""
    path = report.with_name(FILE)
    try:
        document: Any = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(document, dict) or _MARK not in document:
            return None  # a file of somebody else's
        return Guide(tuple(_choice(entry) for entry in document["kernels"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        what = f"{FILE} beside it cannot be read ({error!r}), which says which launches were meant"
        raise Refused(report, what, f"Mend {FILE}, or move it away to read every launch in the report.") from error


def _choice(entry: Mapping[str, Any]) -> Choice:
    """Raises TypeError where something is missing or of another type than it was written in."""
    choice = Choice(**{**entry, "alike": tuple(entry["alike"])})
    right = (
        all(isinstance(text, str) for text in (choice.case, choice.kernel, choice.grid, choice.block))
        and all(isinstance(number, int) for number in (choice.invocation, *choice.alike))
        and isinstance(choice.launches, int | None)
        and isinstance(choice.share, float | int | None)
    )
    if not right:
        raise TypeError(f"not a launch: {entry}")
    return choice


def kept(launches: Sequence[Launch], guide: Guide) -> tuple[list[Launch], list[str]]:
    """The launches that were meant, in their order, and what a reader must know of them."""
    own = [launch for launch in launches if launch.kind == "kernel"]
    cases = {tables.split_path(launch.path)[0] for launch in own}
    found: list[Launch] = []
    notes = []
    for choice in guide.choices:
        # After a crash another report has the cases that were left. A command of the user's has no case's range.
        if choice.case in cases or "" in cases:
            launch, note = _found(choice, own, guide)
            found += [launch] if launch else []
            notes.append(note)
    if not found:
        return list(launches), [f"none of the kernels in {FILE} is in the report: every launch is kept"]
    meant = {id(launch) for launch in found}
    if more := len(launches) - len(meant):
        notes.append(f"launches left out: {more}, which ncu took with one list of invocations for all kernels")
    return [launch for launch in launches if id(launch) in meant], [*notes, f"read with it: {FILE}"]


def _found(choice: Choice, launches: Iterable[Launch], guide: Guide) -> tuple[Launch | None, str]:
    """The launch of ``choice`` and the sentence about it."""
    mine = [each for each in launches if each.name == choice.kernel and _may_be_of(choice.case, each)]
    name = _shortened(choice.kernel)
    if not mine:
        return None, f"not in the report: {name}, of which launch {choice.invocation} was asked for"
    rank = guide.invocations.index(choice.invocation)
    counted = mine[rank] if rank < len(mine) else None
    if counted and _has_shape(counted, choice):
        return counted, " ".join(_told(choice, name))
    alike = next((each for each in mine if _has_shape(each, choice)), None)
    taken = alike or counted or mine[-1]
    what = "another launch of its shape" if alike else f"one of grid {taken.grid or '?'}, block {taken.block or '?'},"
    return taken, (
        f"of {name} launch {choice.invocation} was chosen (grid {choice.grid}, block {choice.block}), which is not the "
        f"one that ncu counted as that: taken is {what} instead"
    )


def _may_be_of(case: str, launch: Launch) -> bool:
    return tables.split_path(launch.path)[0] in ("", case)


def _has_shape(launch: Launch, choice: Choice) -> bool:
    """Whether nothing speaks against it: CSV and old reports do not give the three sizes."""
    pairs = ((launch.grid, choice.grid), (launch.block, choice.block))
    return all(not seen or not wanted or seen == wanted for seen, wanted in pairs)


def _told(choice: Choice, name: str) -> Iterator[str]:
    yield f"launch {choice.invocation}"
    if choice.launches is not None:
        yield f"of {choice.launches}"
    yield f"of {name}"
    if choice.share is None:
        yield "(the guiding capture does not tell its launches apart)"
    else:
        alike = "1 launch" if len(choice.alike) == 1 else f"{len(choice.alike)} launches"
        yield f"(grid {choice.grid}), of the shape with {100 * choice.share:.0f} % of that kernel's time ({alike})"


def _shortened(name: str) -> str:
    """What tells kernels of torch apart stands at both ends of their names."""
    half = _NAME_WIDTH // 2
    return name if len(name) <= _NAME_WIDTH else f"{name[:half]}…{name[-half:]}"
