"""Say who is fastest in a shape, and why the lowest time may not be called that."""

from __future__ import annotations

from profpipe.analysis.findings.workloads import (
    ClockDifference,
    Doubt,
    FlaggedTime,
    NoAccurateResult,
    PossiblyFaster,
    SingleSample,
    Unreliability,
    Win,
)
from profpipe.measure.flags import Flag
from profpipe.report import document as doc
from profpipe.report.inlines import fill, names
from profpipe.report.units import Unit

#: Names of tied cases in a sentence; more are counted.
MOST_NAMES = 2

_UNRELIABLE = {
    Unreliability.NO_KERNELS: "the profiler recorded no kernel of {}",
    Unreliability.WRONG_KERNELS: "{} did not run the kernels it should",
    Unreliability.CONTRADICTED: "{} took a different time in another workload",
}

_MHZ = Unit("MHz", 1e6)


def tied_names(win: Win) -> doc.Text:
    """Return the tied cases, the lowest time first; of more than three the first two."""
    most = MOST_NAMES + 1 if len(win.tied) == MOST_NAMES + 1 else MOST_NAMES
    return names([case.variant for case in win.tied], most)


def doubt_text(doubt: Doubt) -> doc.Text:
    """Return why the lowest time is not called the fastest."""
    if isinstance(doubt, NoAccurateResult):
        if doubt.is_same and doubt.flag == Flag.UNCHECKED:
            return "no result was compared with the reference"
        return f"its result is {doubt.flag}" + (", and no other is accurate" if doubt.has_others else "")
    if isinstance(doubt, FlaggedTime):
        end = " and has no 95 % interval" if doubt.lacks_interval else ""
        return fill(f"{{}} is {' and '.join(doubt.flags)}{end}", doc.Code(doubt.variant))
    if isinstance(doubt, PossiblyFaster):
        return fill("{} waited for another process and may be faster", doc.join(list(map(doc.Code, doubt.variants))))
    if isinstance(doubt, ClockDifference):
        best, other = (doc.Number(hz, _MHZ) for hz in (doubt.best_hz, doubt.other_hz))
        return fill(
            "the GPU ran at {} for {} and at {} for {}", best, doc.Code(doubt.best), other, doc.Code(doubt.other)
        )
    if isinstance(doubt, SingleSample):
        return fill("{} has a single sample of unknown spread", doc.Code(doubt.variant))
    return fill(_UNRELIABLE[doubt.cause], doc.Code(doubt.variant))


def doubt_of(win: Win) -> doc.Text:
    """Return the most important doubt of an inconclusive win."""
    return doubt_text(win.doubts[0])
