"""The runs of a results folder to the trend of each case, and what runs show of the noise between processes."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np

from profpipe.analysis import pairs, verdict
from profpipe.analysis.compare_runs import POSSIBLE_NS, plain_processes
from profpipe.analysis.grouping import grouped
from profpipe.analysis.pairs import PairFindings
from profpipe.analysis.verdict import LEAST_FLOOR
from profpipe.job import readable
from profpipe.results.manifest import Manifest
from profpipe.results.noise import Model, Noise, Sample, SpreadSource
from profpipe.results.schema import Tables

#: 99 % of a normal distribution lie within so many standard deviations.
_BAND: Final = statistics.NormalDist().inv_cdf(0.995)

#: The fewest runs whose distances show the noise, the quantile of these distances that gives it, and that of a normal
#: distribution of spread 1.
_FEWEST: Final = 5
_QUANTILE: Final = 0.85
_OF_NORMAL: Final = statistics.NormalDist().inv_cdf((1 + _QUANTILE) / 2)


#: A row of a table: of the database, or of what is made of it.
Row: TypeAlias = "Mapping[str, Any]"


@dataclass(frozen=True)
class Trend:
    """A case on one device over the runs, the oldest first.

    A row of ``points`` is the time ``time_ns`` of one run, and ``is_outside`` if it is outside the noise band. Its
    ``fingerprint`` is a hash of the code that was measured; it may be empty.

    ``band`` is the noise as a ratio minus 1: 99 % of the runs of the same code lie within it around the level, the
    median of the runs. It is None where it is not known. ``sources`` says what it comes from; empty: from the
    neighbours of this trend alone.
    """

    workload: str
    case: str
    device: str
    points: tuple[Row, ...]
    level_ns: float
    band: float | None
    sources: Mapping[SpreadSource, int]

    @property
    def name(self) -> str:
        return f"{self.workload}/{readable(self.case)}"


@dataclass(frozen=True)
class PipelineHistory:
    """The runs of one pipeline, the newest first, and the trends of its cases.

    In a row of ``runs``, ``ok`` of ``cases`` rows of its cases ended well.
    """

    name: str
    runs: tuple[Row, ...]
    trends: tuple[Trend, ...]


#: The noise of a pipeline on a device with a driver.
FindNoise = Callable[[str, str, str], Model]


def analyze(runs: Sequence[Row], times: Sequence[Row], find_noise: FindNoise) -> tuple[PipelineHistory, ...]:
    """Return the trends of the cases of each pipeline.

    ``runs`` are the newest first; ``times`` are sorted by case and within a case the oldest first. Times on different
    devices are different trends; a driver or a torch may change within a trend.
    """
    names = dict.fromkeys(str(row["name"]) for row in runs)
    return tuple(_pipeline(name, runs, times, find_noise) for name in names)


def _pipeline(name: str, runs: Sequence[Row], times: Sequence[Row], find_noise: FindNoise) -> PipelineHistory:
    pipeline_runs = tuple(_run(row) for row in runs if row["name"] == name)
    ids = {row["run"] for row in pipeline_runs}
    timed = (row for row in times if row["run"] in ids and POSSIBLE_NS[0] <= (row["value"] or 0) <= POSSIBLE_NS[1])
    groups = grouped(((row["workload"], row["case"], row.get("device") or ""), row) for row in timed)
    models: dict[tuple[str, str], Model] = {}
    trends = []
    for (workload, case, device), rows in groups.items():
        driver = rows[-1].get("driver") or ""
        model = models.setdefault((device, driver), find_noise(name, device, driver))
        noise = model.get((workload, str(rows[-1].get("case_id", case))), Noise())
        logs = [math.log(row["value"]) for row in rows]
        sigma, sources = _sigma(logs, noise)
        level = statistics.median(row["value"] for row in rows)
        band = None if sigma is None else max(LEAST_FLOOR, math.expm1(_BAND * sigma))
        points = tuple(_point(row, level, band) for row in rows)
        trends.append(Trend(workload, case, device, points, level, band, sources))
    return PipelineHistory(name, pipeline_runs, tuple(trends))


def _run(row: Row) -> Row:
    return {
        "run": row["run"],
        "started": row["started"],
        "is_ended": bool(row["ended"]),
        "cases": row["cases"] or 0,
        "ok": row["ok"] or 0,
        "commit": row.get("git_commit") or "",
    }


def _point(row: Row, level: float, band: float | None) -> Row:
    return {
        "run": row["run"],
        "time_ns": row["value"],
        "commit": row.get("git_commit") or "",
        "torch": row.get("torch") or "",
        "driver": row.get("driver") or "",
        "fingerprint": row.get("fingerprint") or "",
        "is_outside": band is not None and abs(math.log(row["value"] / level)) > math.log1p(band),
    }


def _sigma(logs: Sequence[float], noise: Noise) -> tuple[float | None, Mapping[SpreadSource, int]]:
    """Return the standard deviation of one run around its level, and what it comes from.

    The spread between runs of the same code comes first. Without it the larger one of the spread within a session,
    which holds no change from day to day, and of the distances of neighbours in the trend.
    """
    if noise.between:
        return math.log1p(noise.between.spread) / math.sqrt(2), noise.between.counts
    sigma = estimate_sigma(logs)
    if noise.within is None:
        return sigma, {}
    within = math.log1p(noise.within.spread) / math.sqrt(2)
    return (within, noise.within.counts) if sigma is None or sigma < within else (sigma, {})


def estimate_sigma(values: Sequence[float]) -> float | None:
    """Return the standard deviation of one value around its level, from the distances of neighbours; None below five.

    It is their 85th percentile: a change of level enters in one distance, and two levels that alternate by chance, as
    of memory placed in one of two ways, count as noise.
    """
    if len(values) < _FEWEST:
        return None
    return float(np.quantile(np.abs(np.diff(values)), _QUANTILE)) / _OF_NORMAL / math.sqrt(2)


# --- noise ------------------------------------------------------------------------------------------------------------

#: The information in a median distance to 0, and in a median distance of two values, as a share of that in a standard
#: deviation of normal values (Rousseeuw and Croux, J. Am. Stat. Assoc. 88 (1993) 1273; Bickel and Lehmann, 1979).
_EFFICIENCY_OF_DISTANCE: Final = 0.37
_EFFICIENCY_OF_PAIRWISE: Final = 0.86
#: The fewest runs of the same code that show a spread. Of three or four, one that met a busy machine decides: it has
#: half of the distances or more.
FEWEST_RUNS: Final = 5
#: Half of a normal distribution lies within so many standard deviations.
_HALF: Final = statistics.NormalDist().inv_cdf(0.75)


def sample_pairs(run: str, workload: str, case: str, log_ratios: Sequence[float]) -> Sample:
    """Return what A-A pairs show. Their ratios vary around 1, so no degree of freedom goes to their centre."""
    degrees = _EFFICIENCY_OF_DISTANCE * len(log_ratios)
    return Sample(SpreadSource.PAIRS, run, workload, case, len(log_ratios), degrees, verdict.spread(log_ratios))


def sample_processes(
    source: SpreadSource, origin: str, workload: str, case: str, times: Sequence[float]
) -> Sample | None:
    """Return what the times (ns) of processes or runs of the same code show; None below two.

    The spread is the median distance of two of them. A process that met another load, or a day of another clock, does
    not move it as long as most others agree.
    """
    if len(times) < 2:
        return None
    distances = [abs(math.log(b / a)) for a, b in itertools.combinations(times, 2)]
    degrees = _EFFICIENCY_OF_PAIRWISE * (len(times) - 1)
    return Sample(source, origin, workload, case, len(times), degrees, math.expm1(statistics.median(distances) / _HALF))


def sample_run(run: str, data: Tables, manifest: Manifest, verdicts: PairFindings | None = None) -> Iterator[Sample]:
    """Yield what a run that has ended shows of each of its cases. ``verdicts`` are those of an `ab` run."""
    if manifest.ab is None:
        processes = plain_processes(data).items()
        yield from filter(None, (sample_processes(SpreadSource.CAPTURES, run, *key, times) for key, times in processes))
    elif manifest.ab.is_aa:
        judged = [case for case in (verdicts or pairs.analyze(data, manifest)).cases if case.judgement]
        # Processes of further pairs visit a case more often, so they vary less than those of a first block.
        ratios = ((case, case.earlier_ratios or case.log_ratios) for case in judged)
        yield from (sample_pairs(run, case.workload, case.case, case_ratios) for case, case_ratios in ratios)


def sample_repeated(times: Mapping[tuple[str, str, str], Sequence[float]]) -> Iterator[Sample]:
    """Yield what runs of the same code show. ``times`` are by (fingerprint, workload, case)."""
    samples = (
        sample_processes(SpreadSource.RUNS, *key, case_times)
        for key, case_times in times.items()
        if len(case_times) >= FEWEST_RUNS
    )
    return filter(None, samples)
