"""Read every file of the hostile corpus, and show by format what was read, what was refused, and what it took.

    python benchmarks/hostile.py [--match "TEXT|TEXT"] [--small] [--all] [--log FILE] [--keep FOLDER]

The files are made by ``tests/hostile_files.py`` one after the other in a temporary folder; the largest have 80 MB. Each
is read by the command that a user would type, in a process that is a copy of this one, which has loaded profpipe.
Times are CPU times, and memory is the peak of the process, 250 MB of which are the copy.

A file fails where the command ends with an internal error, a traceback or a signal, prints a control character, blames
a parser, or takes more than 10 s and 1 s per 50 MB, or more than 1 GB and 4 times the file's size.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import hostile_files  # noqa: E402
import hostile_folders  # noqa: E402
import seed_files  # noqa: E402
from hostile_files import Hostile  # noqa: E402

#: By format: the command that reads the file; its path comes last.
COMMANDS = {"pipeline file": ("list",), "history": ("history", "--out"), "request.json": ("resume",)}
COMMANDS |= dict.fromkeys(hostile_folders.REPORTED, ("report",))
#: Formats whose files stand in copies of a results folder, which is made once.
FOLDERS = {"history", "request.json", *hostile_folders.REPORTED}
#: Stops a process that nothing else stops.
_MOST_S, _MOST_BYTES = 120, 12 << 30
_BLAMES = ("internal error", "Traceback", "fails on it", "contradicts itself", "cannot be trusted")
_NO_ERRORS = {0, 1, 2}
#: Of the small files so many bytes and such a share are kept in tests/corpus, and all that once showed a defect.
_KEPT_BYTES, _KEPT_SHARE = 6_000, 0.15
FINDS = {
    "nsys stats, CSV: names: a field beyond the limit of CSV",
    "nsys Parquet: NUL in places of e",
    "nsys SQLite: globalPid: large",
    "ncu details, CSV: a number: 400 digits",
    "torch trace: a number: 400 digits",
}


@dataclass(frozen=True)
class Outcome:
    """What reading a file took; ``failure`` is empty where it was read or refused within its budget."""

    format: str
    name: str
    is_read: bool
    seconds: float
    megabytes: float
    size: int
    failure: str


class Reader:
    """Reads files in copies of this process, below a temporary folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # No more: what else is loaded would count as memory of each process.
        from profpipe.commands import ingest  # noqa: F401
        from profpipe.ingest import reader
        from profpipe.results import manifest_entries, store  # noqa: F401

        reader.parsers()
        gc.freeze()

    def prepare(self, work: Callable[[], object]) -> None:
        """Do ``work`` in a copy of this process."""

        def done() -> int:
            work()
            return 0

        status, _ = self._fork(done, os.devnull)
        assert status == 0

    def read(self, file: Hostile) -> Outcome:
        place = self._folder / "file"
        place.mkdir()
        try:
            return self._outcome(file, self._write(file, place))
        finally:
            shutil.rmtree(place)

    def _write(self, file: Hostile, place: Path) -> Path:
        if not file.is_large:
            return file.write(place)
        # What it takes to write a large file would count as memory of each process after it.
        written = self._folder / "written"
        self._fork(lambda: written.write_text(str(file.write(place))) and 0, os.devnull)
        return Path(written.read_text())

    def _outcome(self, file: Hostile, path: Path) -> Outcome:
        size, printed = _size(path), self._folder / "printed"
        words = [*COMMANDS.get(file.format, ("ingest",)), str(path)]

        def command() -> int:
            from profpipe import cli

            os.chdir(self._folder)
            try:
                return cli.main(words)
            except SystemExit as end:
                return int(str(end.code))

        status, usage = self._fork(command, str(printed))
        text = printed.read_text(encoding="utf-8", errors="replace")
        seconds, megabytes = usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024 * 1.048576
        # A compressed file counts 16 times its size: docs/security.md.
        counted = 16 * size if path.suffix == ".gz" else size
        failure = _find_failure(status, text, seconds, megabytes, counted)
        return Outcome(file.format, file.name, status == 0, seconds, megabytes, size, failure)

    def _fork(self, work: Callable[[], int], printed: str) -> tuple[int, resource.struct_rusage]:
        pid = os.fork()
        if pid == 0:
            code = 70
            try:
                out = os.open(printed, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
                os.dup2(out, 1)
                os.dup2(out, 2)
                sys.stdout, sys.stderr = (os.fdopen(n, "w", encoding="utf-8", errors="surrogateescape") for n in (1, 2))
                resource.setrlimit(resource.RLIMIT_CPU, (_MOST_S, _MOST_S))
                resource.setrlimit(resource.RLIMIT_AS, (_MOST_BYTES, _MOST_BYTES))
                code = work()
                sys.stdout.flush()
                sys.stderr.flush()
            except BaseException as error:
                os.write(2, f"internal error: {error!r}\n".encode("utf-8", "replace"))
            finally:
                os._exit(code)
        _, status, usage = os.wait4(pid, 0)
        return os.waitstatus_to_exitcode(status), usage


def _size(path: Path) -> int:
    return (
        sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) if path.is_dir() else path.stat().st_size
    )


def _find_failure(status: int, text: str, seconds: float, megabytes: float, size: int) -> str:
    if status < 0:
        return f"ended by {signal.Signals(-status).name}"
    if status not in _NO_ERRORS:
        return f"exit code {status}"
    if blame := next((words for words in _BLAMES if words in text), ""):
        return next(line for line in text.splitlines() if blame in line)[:300]
    if wrong := next((c for c in text if not c.isprintable() and c not in "\n\t"), ""):
        return f"printed {wrong!r}"
    if seconds > (most := 10 + size / 50e6):
        return f"took {seconds:.1f} s of {most:.1f}"
    if megabytes > (most := 1000 + 4 * size / 1e6):
        return f"took {megabytes:,.0f} MB of {most:,.0f}"
    return ""


def kept(folder: Path) -> Iterator[Hostile]:
    """Yield the files of a kept corpus: FOLDER/FORMAT/NAME/FILE, with the words of the format joined by ``_``."""
    formats = {folder_name(format): format for format in (*seed_files.FORMATS, "ncu report")}
    for place in sorted(folder.glob("*/*")):

        def write(into: Path, place: Path = place) -> Path:
            (source,) = place.iterdir()
            copy = shutil.copytree if source.is_dir() else shutil.copyfile
            return Path(copy(source, into / source.name))

        yield Hostile(formats[place.parent.name], f"kept: {place.name}", write)


def folder_name(text: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in text).strip("_")


def keep(files: Iterable[Hostile], folder: Path) -> None:
    """Write a part of the small files, so that their bytes stay as they are whatever writes them."""
    dice = random.Random(22)
    for file in files:
        # A doubling name takes two seconds, by the limit of the process that demangles it.
        is_drawn = dice.random() < _KEPT_SHARE and not file.is_large and "doubling" not in file.name
        if not is_drawn and file.label not in FINDS:
            continue
        place = folder / folder_name(file.format) / folder_name(file.name)
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        file.write(place)
        if _size(place) > _KEPT_BYTES and file.label not in FINDS:
            shutil.rmtree(place)


def table(outcomes: Iterable[Outcome]) -> str:
    """Return a Markdown table by format."""
    of_format: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        of_format[outcome.format].append(outcome)
        of_format["all"].append(outcome)
    of_format["all"] = of_format.pop("all")
    lines = ["| format | files | read | refused | failed | longest | largest memory |", "| --- |" + " ---: |" * 6]
    for format, own in of_format.items():
        read, failed = sum(o.is_read for o in own), sum(bool(o.failure) for o in own)
        slowest, largest = max(own, key=lambda o: o.seconds), max(own, key=lambda o: o.megabytes)
        longest = f"{slowest.seconds:.1f} s ({slowest.size / 1e6:.1f} MB)"
        most = f"{largest.megabytes:,.0f} MB ({largest.size / 1e6:.1f} MB)"
        lines.append(f"| {format} | {len(own)} | {read} | {len(own) - read - failed} | {failed} | {longest} | {most} |")
    return "\n".join(lines)


def worst_table() -> str:
    """Return what took longest before there were bounds, and what it takes now."""
    lines = ["| file | size | before | now | time | memory |", "| --- | ---: | --- | --- | ---: | ---: |"]
    with tempfile.TemporaryDirectory(prefix="hostile-") as folder:
        reader = Reader(Path(folder))
        for name, before, file in hostile_files.worst():
            found = reader.read(file)
            now = found.failure or ("read" if found.is_read else "refused")
            cells = (name, f"{found.size / 1e6:,.1f} MB", before, now, f"{found.seconds:.1f} s")
            lines.append(f"| {' | '.join(cells)} | {found.megabytes:,.0f} MB |")
    return "\n".join(lines)


def read_all(options: argparse.Namespace, made: Iterable[Hostile], known: set[tuple[str, str]]) -> Iterator[Outcome]:
    """Read the files that the options choose, but for those of ``known`` format and name."""
    with tempfile.TemporaryDirectory(prefix="hostile-") as folder:
        os.environ["XDG_STATE_HOME"] = f"{folder}/state"
        reader, base = Reader(Path(folder)), Path(folder) / "made"
        end = time.monotonic() + options.seconds
        files = [*kept(options.corpus), *made, *hostile_folders.corpus(base)]
        if options.seconds < float("inf"):
            random.Random(22).shuffle(files)
        for file in files:
            if not any(text in file.label for text in options.match.split("|")):
                continue
            if (options.small and file.is_large) or (options.large and not file.is_large):
                continue
            if (file.format, file.name) in known or time.monotonic() > end:
                continue
            if file.format in FOLDERS and not base.exists():
                reader.prepare(lambda: hostile_folders.make_all(base))
            yield reader.read(file)


def main() -> int:
    parser = argparse.ArgumentParser(description="Read the hostile corpus, and print a table by format.")
    parser.add_argument("--match", default="", help="only files whose format and name hold one of these texts, by |")
    parser.add_argument("--small", action="store_true", help="without the large files")
    parser.add_argument("--large", action="store_true", help="the large files only")
    parser.add_argument("--all", action="store_true", help="each kind of large text in each format")
    parser.add_argument("--worst", action="store_true", help="what took longest before there were bounds, instead")
    parser.add_argument("--corpus", type=Path, default=ROOT / "tests" / "corpus", help="files that are kept")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="write small files there, and read nothing")
    parser.add_argument("--log", type=Path, help="note each file there, and do not read those that are noted already")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no file after so many seconds")
    options = parser.parse_args()
    made = hostile_files.corpus(has_all=options.all)
    if options.keep:
        keep(made, options.keep)
        return 0
    if options.worst:
        print(worst_table())
        return 0
    lines = options.log.read_text().splitlines() if options.log and options.log.is_file() else []
    outcomes = [Outcome(**json.loads(line)) for line in lines]
    for outcome in read_all(options, made, {(outcome.format, outcome.name) for outcome in outcomes}):
        outcomes.append(outcome)
        if options.log:
            with options.log.open("a") as stream:
                stream.write(json.dumps(asdict(outcome)) + "\n")
        if outcome.failure:
            cost = f"{outcome.seconds:.1f} s, {outcome.megabytes:,.0f} MB, file of {outcome.size / 1e6:.1f} MB"
            print(f"{outcome.format}: {outcome.name}: {outcome.failure} ({cost})", file=sys.stderr, flush=True)
    print(table(outcomes))
    return 1 if any(outcome.failure for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
