"""Say who is fastest in a shape, and why the lowest time may not be called that."""

from __future__ import annotations

from profpipe.analysis.findings.workloads import Doubt, DoubtCause, Win
from profpipe.job import readable
from profpipe.report import document as doc
from profpipe.report.labels import fill, names, percent
from profpipe.report.units import Unit

#: Names of tied cases in a sentence; more are counted.
MOST_NAMES = 2

#: By cause a sentence about the cases.
_DOUBTS = {
    DoubtCause.NO_KERNELS: "the profiler recorded no kernel of {}",
    DoubtCause.WRONG_KERNELS: "{} did not run the kernels it should",
    DoubtCause.CONTRADICTED: "{} took a different time in another workload",
    DoubtCause.ONE_SAMPLE: "{} has a single sample of unknown spread",
    DoubtCause.MAY_BE_FASTER: "{} waited for another process and may be faster",
}

_MHZ = Unit("MHz", 1e6)


def tied_names(win: Win) -> doc.Text:
    """Return the tied cases, the lowest time first; of more than three the first two."""
    most = MOST_NAMES + 1 if len(win.tied) == MOST_NAMES + 1 else MOST_NAMES
    return names([case.variant for case in win.tied], most)


def doubt_text(doubt: Doubt) -> doc.Text:
    """Return why the lowest time is not called the fastest."""
    cases, flags = [doc.Code(variant) for variant in doubt.variants], " and ".join(doubt.flags)
    match doubt.cause:
        case DoubtCause.NOT_COMPARED:
            return "no result was compared with the reference"
        case DoubtCause.INACCURATE:
            return f"its result is {flags}" + (", and no other is accurate" if len(cases) > 1 else "")
        case DoubtCause.FLAGGED | DoubtCause.NO_INTERVAL:
            end = " and has no 95 % interval" if doubt.cause is DoubtCause.NO_INTERVAL else ""
            return fill(f"{{}} is {flags}{end}", *cases)
        case DoubtCause.CLOCKS:
            best, other = (doc.Number(hz, _MHZ) for hz in doubt.clocks_hz)
            return fill("the GPU ran at {} for {} and at {} for {}", best, cases[0], other, cases[1])
        case DoubtCause.UNLIKE_NODES:
            facts = (
                fill(f"{fact} {{}}", doc.join((value or "none" for value in values), most=MOST_NAMES))
                for fact, values in doubt.differences
            )
            return fill("its cases ran on unlike nodes: {}", doc.join(facts))
        case DoubtCause.NODE_SPREAD:
            apart: doc.Text = "how far these lie apart is not known"
            if spread := doubt.spread:
                varies = f"{{}} varies by {{}} between {spread.nodes} nodes"
                apart = fill(varies, doc.Code(readable(spread.case)), percent(spread.ratio))
            return fill("{} ran on different nodes, and {}", doc.join(cases), apart)
    return fill(_DOUBTS[doubt.cause], doc.join(cases))


def doubt_of(win: Win) -> doc.Text:
    """Return the most important doubt of an inconclusive win."""
    return doubt_text(win.doubts[0])
