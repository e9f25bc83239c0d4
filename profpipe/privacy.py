"""Which files are scrubbed, and what is said of it: those of a run before they are read, and any that a user names."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from profpipe import errors, exports, parsing, scrub
from profpipe.errors import Refused

#: Reports of nsys, the recordings that they are made of, and reports of ncu: nothing can be taken out of them.
_REPORTS = {".nsys-rep", ".qdrep", ".qdstrm", ".ncu-rep"}


def scrubbed(files: Iterable[Path], beside: Path) -> Iterator[tuple[Path, bool]]:
    """Scrubs the exports among ``files``; says of each whether it is, for one that is damaged stays as it was."""
    known = parsing.parsers(beside)
    for path in files:
        try:
            parser = parsing.name_of(parsing.choose(path, known))
        except Refused:
            continue  # if it cannot be read either, that is said when it is
        if parser in scrub.PARSERS:
            yield path, _is_scrubbed(path, parser)


def _is_scrubbed(path: Path, parser: str) -> bool:
    try:
        if not scrub.is_scrubbed(path):
            scrub.scrub(path, parser)
    except Refused:
        return False
    return True


def private_files(run_folder: Path) -> list[str]:
    """The files of a run that hold what is nobody's business: reports, and exports and traces that are not scrubbed."""
    files = (path for path in (run_folder / "raw").rglob("*") if path.is_file())
    found = (path for path in files if path.suffix in _REPORTS or scrub.may_be_private(path))
    return sorted(str(path.relative_to(run_folder)) for path in found)


def scrub_files(paths: Sequence[Path]) -> int:
    """Scrubs exports in place, and says how much was removed from each, never what."""
    known, code = parsing.parsers(), errors.OK
    for path in paths:
        try:
            if exports.is_report(path) or exports.is_recording(path):
                raise Refused(path, "is nsys's own report, which cannot be changed", "Share an export of it instead.")
            removed = scrub.scrub(path, parsing.name_of(parsing.choose(path, known)))
        except (Refused, OSError) as refused:
            print(f"profpipe: {refused}", file=sys.stderr)
            code = errors.SOME_FAILED
        else:
            counts = ", ".join(f"{count} of {where}" for where, count in removed.items())
            print(f"{path}: {f'removed {counts}' if counts else 'nothing to remove'}")
    return code
