"""What the processes of a run show of the spread between processes of the same code."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from profpipe.analysis import pairs, verdict
from profpipe.analysis.compare_runs import plain_processes
from profpipe.analysis.pairs import PairFindings
from profpipe.results.manifest import Manifest
from profpipe.results.noise import Sample, Source
from profpipe.results.schema import Tables

#: The information in a median distance to 0, and in a median distance of two values, as a share of that in a standard
#: deviation of normal values (Rousseeuw and Croux, J. Am. Stat. Assoc. 88 (1993) 1273; Bickel and Lehmann, 1979).
_EFFICIENCY_OF_DISTANCE: Final = 0.37
_EFFICIENCY_OF_PAIRWISE: Final = 0.86
#: The fewest runs of the same code that show a spread. Of three or four, one that met a busy machine decides: it has
#: half of the distances or more.
FEWEST_RUNS: Final = 5
#: Half of a normal distribution lies within so many standard deviations.
_HALF: Final = statistics.NormalDist().inv_cdf(0.75)


def of_pairs(run: str, workload: str, case: str, log_ratios: Sequence[float]) -> Sample:
    """Return what A-A pairs show. Their ratios vary around 1, so no degree of freedom goes to their centre."""
    degrees = _EFFICIENCY_OF_DISTANCE * len(log_ratios)
    return Sample(Source.PAIRS, run, workload, case, len(log_ratios), degrees, verdict.spread(log_ratios))


def of_processes(source: Source, origin: str, workload: str, case: str, times: Sequence[float]) -> Sample | None:
    """Return what the times (ns) of processes or runs of the same code show; None below two.

    The spread is the median distance of two of them. A process that met another load, or a day of another clock, does
    not move it as long as most others agree.
    """
    if len(times) < 2:
        return None
    distances = [abs(math.log(b / a)) for a, b in itertools.combinations(times, 2)]
    degrees = _EFFICIENCY_OF_PAIRWISE * (len(times) - 1)
    return Sample(source, origin, workload, case, len(times), degrees, math.expm1(statistics.median(distances) / _HALF))


def of_run(run: str, data: Tables, manifest: Manifest, found: PairFindings | None = None) -> Iterator[Sample]:
    """Yield what a run that has ended shows of each of its cases. ``found`` are the verdicts of an `ab` run."""
    if manifest.ab is None:
        processes = plain_processes(data).items()
        yield from filter(None, (of_processes(Source.CAPTURES, run, *key, times) for key, times in processes))
    elif manifest.ab.is_aa:
        judged = [case for case in (found or pairs.analyze(data, manifest)).cases if case.judgement]
        # Processes of further pairs visit a case more often, so they vary less than those of a first block.
        ratios = ((case, case.earlier_ratios or case.log_ratios) for case in judged)
        yield from (of_pairs(run, case.workload, case.case, own) for case, own in ratios)


def of_repeated(times: Mapping[tuple[str, str, str], Sequence[float]]) -> Iterator[Sample]:
    """Yield what runs of the same code show. ``times`` are by (fingerprint, workload, case)."""
    known = (of_processes(Source.RUNS, *key, own) for key, own in times.items() if len(own) >= FEWEST_RUNS)
    return filter(None, known)
