"""Store runs in ``profpipe.db``: the run that a command made, and runs that could not be stored before."""

from __future__ import annotations

import sys
from pathlib import Path

from profpipe.analysis import history
from profpipe.analysis.pairs import PairFindings
from profpipe.errors import ConfigError
from profpipe.results import database, folders, noise as noise_table, store
from profpipe.results.manifest import Manifest
from profpipe.results.schema import Tables


def record(out: Path, folder: Path, data: Tables, manifest: Manifest, findings: PairFindings | None = None) -> None:
    """Store a run, and the runs that could not be stored before. A run that cannot be stored is complete all the same.

    ``folder`` is that of the run, which this process has locked. ``findings`` are the verdicts of an `ab` run.
    """
    try:
        _store(out, folder, data, manifest, findings)
    except ConfigError as error:
        database.mark_missing(folder)
        later = "This run is not in the history yet; the next command enters it. Its folder is complete."
        print(f"profpipe: {error} {later}", file=sys.stderr)
    else:
        database.unmark(folder)
        record_missing(out)


def record_missing(out: Path) -> None:
    """Store the runs that could not be stored before, from their folders. What fails is tried again by a later command.

    Raises ConfigError where the database cannot be used.
    """
    for folder in database.find_missing(out):
        try:
            with folders.lock(folder):
                data, manifest = store.load(folder)
        except ConfigError as error:  # another profpipe works on the run, or its tables are damaged
            print(f"profpipe: {error} This run is not in the history yet.", file=sys.stderr)
            continue
        _store(out, folder, data, manifest)
        database.unmark(folder)


def _store(out: Path, folder: Path, data: Tables, manifest: Manifest, findings: PairFindings | None = None) -> None:
    database.store_run(out, folder, data, manifest)
    if manifest.ended:
        repeated = noise_table.read_repeated(out, folder.name)
        samples = [*history.sample_run(folder.name, data, manifest, findings), *history.sample_repeated(repeated)]
        noise_table.store(out, manifest, samples, folder.name)
