"""How far processes of the same code lie apart, in ``profpipe.db``: the noise that a difference must exceed.

Each row of the table ``noise`` is what one source shows of one case on one GPU and driver. Rows of one kind are pooled
by their degrees of freedom, as variances of independent samples are (Kalibera and Jones, "Quantifying performance
changes with effect size confidence intervals", 2012: repeat at the level that varies).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from profpipe.results import database
from profpipe.results.manifest import Manifest


class SpreadSource(str, Enum):
    """What showed the spread between processes."""

    #: A-A pairs of `profpipe ab --aa`: processes one right after the other.
    PAIRS = "pairs"
    #: The processes of a run with several of each case.
    CAPTURES = "captures"
    #: Runs with the same code, settings, packages and machine.
    RUNS = "runs"

    __str__ = str.__str__


@dataclass(frozen=True)
class Sample:
    """What one source shows of a case. ``origin`` is the run, or for runs the fingerprint of what they measured.

    ``n`` counts pairs, processes or runs. ``spread`` is the standard deviation of the log ratio of two processes, as a
    ratio minus 1, with ``degrees`` of freedom.
    """

    source: SpreadSource
    origin: str
    workload: str
    case: str
    n: int
    degrees: float
    spread: float


@dataclass(frozen=True)
class Spread:
    """A pooled spread: the standard deviation of the log ratio of two processes, as a ratio minus 1.

    ``counts`` has the number of pairs, processes or runs of each source.
    """

    spread: float
    degrees: float
    counts: Mapping[SpreadSource, int]


@dataclass(frozen=True)
class Noise:
    """The spread of a case between processes of one session, and between runs. One of them may be unknown."""

    within: Spread | None = None
    between: Spread | None = None

    @property
    def pair_spread(self) -> Spread | None:
        """The spread of two processes one right after the other: of one session where that is known."""
        return self.within or self.between

    @property
    def run_spread(self) -> Spread | None:
        """The spread of processes of two runs: the larger one, for runs vary at least as much as one session."""
        spreads = [spread for spread in (self.between, self.within) if spread]
        return max(spreads, key=lambda spread: spread.spread, default=None)


#: What is known of each case, by (workload, case).
Model = Mapping[tuple[str, str], Noise]

#: Rows whose numbers no sample has are left out: a damaged one would forgive any difference.
_READ = """
select source, workload, "case", n, degrees, spread from noise
where name = ? and device = ? and driver = ? and degrees between 1e-9 and 1e9 and spread between 0 and 1e9
  and n between 0 and 1e9 and source in ('pairs', 'captures', 'runs')
order by workload, "case", source
"""

#: The times of the first process of each case, in all runs that measured the same as a run did.
_REPEATED = """
select c.fingerprint, c.workload, c."case", c.run, c.first_ns as value from cases mine
join cases c on c.fingerprint = mine.fingerprint and c.workload = mine.workload and c."case" = mine."case"
join runs r on r.run = c.run
where mine.run = ? and c.first_ns between 1e-9 and 1e30
order by c.workload, c."case", r.started, c.run
"""


def store(out: Path, manifest: Manifest, samples: Iterable[Sample], run: str) -> None:
    """Store what ``run`` shows, in place of earlier samples of the same origin. They hold for its GPU and driver."""
    device, driver = manifest.device
    key = {"name": manifest.name, "device": device, "driver": driver, "run": run}
    rows = [{**vars(sample), "source": str(sample.source), **key} for sample in samples]
    with database.connect(out) as db, db.conn:
        db["noise"].upsert_all(rows, pk=database.NOISE_KEY)


def read(out: Path, manifest: Manifest) -> Model:
    """Return the noise of the cases of a pipeline on the GPU and driver of a run."""
    return read_of(out, manifest.name, *manifest.device)


def read_of(out: Path, name: str, device: str, driver: str) -> Model:
    """Return the noise of the cases of a pipeline on a GPU and driver. Without a database nothing is known."""
    if not (out / database.FILE).is_file():
        return {}
    with database.connect(out) as db:
        rows = list(db.query(_READ, [name, device, driver]))
    rows_by_case: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        rows_by_case.setdefault((row["workload"], row["case"]), []).append(row)
    return {
        key: Noise(
            pool([row for row in case_rows if row["source"] != SpreadSource.RUNS]),
            pool([row for row in case_rows if row["source"] == SpreadSource.RUNS]),
        )
        for key, case_rows in rows_by_case.items()
    }


def pool(rows: Sequence[Mapping[str, Any]]) -> Spread | None:
    """Return the pooled spread of samples: the mean of their variances, weighted by the degrees of freedom."""
    degrees = sum(row["degrees"] for row in rows)
    if not degrees:
        return None
    variance = sum(row["degrees"] * math.log1p(row["spread"]) ** 2 for row in rows) / degrees
    counts: dict[SpreadSource, int] = {}
    for row in rows:
        source = SpreadSource(row["source"])
        counts[source] = counts.get(source, 0) + row["n"]
    return Spread(math.expm1(math.sqrt(variance)), degrees, counts)


def read_floors(out: Path, manifest: Manifest) -> dict[str, dict[str, float]]:
    """Return by workload and case the spread of two processes one right after the other, as a ratio minus 1."""
    floors: dict[str, dict[str, float]] = {}
    for (workload, case), noise in read(out, manifest).items():
        if noise.pair_spread:
            floors.setdefault(workload, {})[case] = noise.pair_spread.spread
    return floors


def read_repeated(out: Path, run: str) -> dict[tuple[str, str, str], list[float]]:
    """Return by (fingerprint, workload, case) the times in ns of the runs that measured the same as ``run``.

    They are in the order of the runs, and of the first process where several repeat a case.
    """
    times_ns: dict[tuple[str, str, str], list[float]] = {}
    with database.connect(out) as db:
        for row in db.query(_REPEATED, [run]):
            times_ns.setdefault((row["fingerprint"], row["workload"], row["case"]), []).append(row["value"])
    return times_ns
