"""Read and write ``guide.json`` next to a report of guided ncu: the requested launches.

ncu takes one list of invocations for all kernels, so it profiles more launches than requested. They come in the
order of their launch: of each kernel, the j-th in the report is the j-th of that list.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from profpipe.errors import UnreadableFile
from profpipe.ingest import kernel_classes
from profpipe.ingest.ncu import counters
from profpipe.ingest.ncu.counters import Launch
from profpipe.results import schema

FILE: Final = "guide.json"
#: The file's first key; its value is the version of the format.
_MARK: Final = "profpipe_guide"
_NAME_WIDTH: Final = 100


@dataclass(frozen=True)
class Choice:
    """A chosen launch: the ``invocation``-th of ``kernel`` in one iteration of ``case``, counted from 1.

    ``launches`` is the kernel's number of launches in an iteration. The choice stands for the invocations in ``alike``,
    itself among them, which have its ``grid`` and ``block`` and about its duration; ``share`` is their part of the
    kernel's time. Without a capture of single launches all of these are missing, and the first launch is chosen.
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
    """The launches requested from one process of ncu."""

    choices: tuple[Choice, ...]

    @property
    def invocations(self) -> list[int]:
        """Return the list that ncu was given."""
        return sorted({choice.invocation for choice in self.choices})


@dataclass(frozen=True)
class Selection:
    """The requested launches, and the notes on their choice for ``schema.Origin``."""

    launches: list[Launch]
    notes: tuple[str, ...] = ()
    details: tuple[str, ...] = ()
    read_with: tuple[str, ...] = ()


def to_json(guide: Guide) -> str:
    document = {_MARK: 1, "invocations": guide.invocations, "kernels": [asdict(choice) for choice in guide.choices]}
    return json.dumps(document, indent=1)


def read_beside(report: Path) -> Guide | None:
    """Read the guide beside ``report``, None where it has none. Raises ``UnreadableFile`` for a damaged one."""
    path = report.with_name(FILE)
    try:
        document: Any = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(document, dict) or _MARK not in document:
            return None  # a file of another program
        # pydantic takes 0.1 s to load.
        from pydantic import TypeAdapter

        return Guide(TypeAdapter(tuple[Choice, ...]).validate_json(json.dumps(document["kernels"]), strict=True))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        what = f"{FILE} beside it cannot be read ({error!r}), which says which launches were meant"
        remedy = f"Repair {FILE}, or move it away to read every launch in the report."
        raise UnreadableFile(report, what, remedy) from error


def select(report: Path, launches: Sequence[Launch]) -> Selection:
    """Select the launches that the guide beside ``report`` asks for, all without a guide. Raises ``UnreadableFile``."""
    guide = read_beside(report)
    if guide is None:
        return Selection(list(launches))
    kernels = [launch for launch in launches if launch.kind == "kernel"]
    cases = {_case_of(launch) for launch in kernels}
    # A report that was made after a crash has only the remaining cases. The range of a case is missing in a command.
    choices = [choice for choice in guide.choices if choice.case in cases or "" in cases]
    matches = [_match(choice, kernels, guide) for choice in choices]
    found = {id(launch) for launch, _, _ in matches if launch}
    if not found:
        note = f"none of the kernels in {FILE} is in the report: every launch is kept"
        return Selection(list(launches), notes=(note,))
    details = [text for _, text, is_expected in matches if is_expected]
    if more := len(launches) - len(found):
        details.append(f"launches left out: {more}, which ncu took with one list of invocations for all kernels")
    return Selection(
        [launch for launch in launches if id(launch) in found],
        notes=tuple(text for _, text, is_expected in matches if not is_expected),
        details=tuple(details),
        read_with=(FILE,),
    )


def tables_of(
    report: Path, launches: Sequence[Launch], origin: schema.Origin, placement: schema.Placement
) -> schema.Tables:
    """Return the tables of the launches that ``select`` returns, with classes and families. Raises ``UnreadableFile``.

    ``origin`` and ``placement`` are those of ``counters.tables_of``.
    """
    selection = select(report, launches)
    notes = (*selection.notes, *origin.notes)
    origin = replace(origin, notes=notes, details=selection.details, read_with=selection.read_with)
    parsed = counters.tables_of(selection.launches, origin, placement)
    return replace(parsed, kernels=kernel_classes.annotate(parsed.kernels))


def _match(choice: Choice, launches: Iterable[Launch], guide: Guide) -> tuple[Launch | None, str, bool]:
    """Return (the launch of ``choice``, a sentence about it, whether it is the requested launch)."""
    of_kernel = [each for each in launches if each.name == choice.kernel and _case_of(each) in ("", choice.case)]
    half = _NAME_WIDTH // 2
    # Both ends of the name, which distinguish PyTorch's kernels.
    is_long = len(choice.kernel) > _NAME_WIDTH
    name = f"{choice.kernel[:half]}…{choice.kernel[-half:]}" if is_long else choice.kernel
    if not of_kernel:
        return None, f"not in the report: {name}, of which launch {choice.invocation} was requested", False
    rank = guide.invocations.index(choice.invocation)
    counted = of_kernel[rank] if rank < len(of_kernel) else None
    if counted and _has_shape(counted, choice):
        return counted, _describe(choice, name), True
    alike = next((each for each in of_kernel if _has_shape(each, choice)), None)
    taken = alike or counted or of_kernel[-1]
    what = "another launch of its shape" if alike else f"one of grid {taken.grid or '?'}, block {taken.block or '?'},"
    text = (
        f"of {name} launch {choice.invocation} was chosen (grid {choice.grid}, block {choice.block}), which is not the "
        f"one that ncu counted as that: taken is {what} instead"
    )
    return taken, text, False


def _case_of(launch: Launch) -> str:
    return schema.split_path(launch.path)[0]


def _has_shape(launch: Launch, choice: Choice) -> bool:
    """Return True where no known size differs: CSV and old reports do not give the three sizes."""
    pairs = ((launch.grid, choice.grid), (launch.block, choice.block))
    return all(not seen or not wanted or seen == wanted for seen, wanted in pairs)


def _describe(choice: Choice, name: str) -> str:
    of_all = "" if choice.launches is None else f" of {choice.launches}"
    if choice.share is None:
        return f"launch {choice.invocation}{of_all} of {name} (the guiding capture does not distinguish its launches)"
    alike = "1 launch" if len(choice.alike) == 1 else f"{len(choice.alike)} launches"
    shape = f"(grid {choice.grid}), of the shape with {100 * choice.share:.0f} % of that kernel's time ({alike})"
    return f"launch {choice.invocation}{of_all} of {name} {shape}"
