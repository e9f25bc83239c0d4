"""What is left of a lead in a plain loop, where the host issues calls more slowly than the GPU runs them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from profpipe.analysis.cases import in_words
from profpipe.analysis.findings.workloads import CaseResult, Shape, WinVerdict
from profpipe.measure.flags import Flag
from profpipe.report.document import Code, Text
from profpipe.report.labels import duration, fill, literal, plural, ratio
from profpipe.report.units import time_unit

#: A lead is reported where a plain loop leaves less than this share of it.
_SHRUNK = 0.90

#: The winner has lost below this share of the fastest case's speed. The host's times of one implementation differed by
#: up to 2x from case to case of one run on an H200.
_LOST = 0.50

#: A time with one of these flags is wrong or includes other work: the case is not called the fastest in a loop.
_UNUSABLE = frozenset({Flag.OTHER_PROCESS, Flag.WAITED, Flag.ABOVE_PEAK})


@dataclass(frozen=True)
class HostBoundWin:
    """A win whose calls the host issues more slowly than the GPU runs them.

    ``fastest`` is the fastest case in a plain loop. ``other`` is the case that the headline compares ``best`` with.
    """

    shape: Shape
    best: CaseResult
    fastest: CaseResult
    other: CaseResult

    @property
    def lead(self) -> float:
        """The speed-up over ``other`` of queued calls."""
        return self.other.time.ns / self.best.time.ns if self.other.time and self.best.time else 1.0

    @property
    def loop_lead(self) -> float | None:
        """The speed-up over ``other`` in a plain loop; None where the host's time is unknown."""
        other, best = _loop_ns(self.other), _loop_ns(self.best)
        return other / best if other and best else None

    @property
    def share_of_fastest(self) -> float:
        """The speed of ``best`` in a plain loop as a share of the fastest case's."""
        fastest, best = _loop_ns(self.fastest), _loop_ns(self.best)
        return fastest / best if fastest and best else 1.0


def host_bound_win(shape: Shape) -> HostBoundWin | None:
    """Return the win of a shape if it depends on calls that are queued ahead."""
    win = shape.win
    if win is None or win.verdict != WinVerdict.CLEAR:
        return None
    best = win.best
    if Flag.HOST_BOUND not in best.marks or _loop_ns(best) is None:
        return None
    other = shape.baseline if best.speedup is not None and not best.is_baseline and shape.baseline else win.second
    in_loop = [c for c in shape.timed if _loop_ns(c) and not c.is_disqualified and _UNUSABLE.isdisjoint(c.marks)]
    fastest = min(in_loop, key=lambda case: _loop_ns(case) or 0.0, default=best)
    return HostBoundWin(shape, best, fastest, other) if other and other.time else None


def remarks(shapes: Sequence[Shape]) -> Iterator[Text]:
    """Yield one sentence for cases that others overtake in a plain loop, and one for leads that shrink there."""
    wins = [win for shape in shapes if (win := host_bound_win(shape))]
    if lost := sorted((w for w in wins if w.share_of_fastest <= _LOST), key=lambda w: w.share_of_fastest):
        yield _lost(lost, len(shapes))
    leads = [(win, win.loop_lead) for win in wins if win.share_of_fastest > _LOST and win.loop_lead is not None]
    if shrunk := sorted(((lead, win) for win, lead in leads if lead < _SHRUNK * win.lead), key=lambda pair: pair[0]):
        lead, win = shrunk[0]
        place = f" ({literal(in_words(win.shape.axes))})" if len(shapes) > 1 else ""
        others = len(shrunk) - 1
        more = f"; {plural(others, 'other lead')} {'shrinks' if others == 1 else 'shrink'} too" if others else ""
        change = "shrinks from {} to about" if lead >= 1 else "is lost: {} becomes about"
        yield fill(
            f"In a plain loop the host is the limit: there the lead of {{}} {change} {lead:.1f}x{place}{more}."
            " Host times vary by up to 2x from case to case.",
            Code(win.best.variant),
            ratio(win.lead),
        )


def _lost(lost: Sequence[HostBoundWin], shapes: int) -> Text:
    """Say which case is the fastest in a plain loop, where the winner is not."""
    win = lost[0]
    fastest, best = _loop_ns(win.fastest), _loop_ns(win.best)
    unit = time_unit([fastest, best])
    place = f" at {literal(in_words(win.shape.axes))}" if shapes > 1 else ""
    more = f"; another case is fastest in {len(lost) - 1} more of {shapes} shapes" if len(lost) > 1 else ""
    sentence = (
        f"In a plain loop the host is the limit: there {{}} is fastest{place}, {{}} per call; {{}} takes {{}}{more}."
    )
    return fill(
        sentence, Code(win.fastest.variant), duration(fastest, unit), Code(win.best.variant), duration(best, unit)
    )


def _loop_ns(case: CaseResult) -> float | None:
    """Return the time of a call in a plain loop: the longer of the GPU's time and the host's time to issue the call."""
    issue = case.values.get("issue")
    return max(case.time.ns, issue) if case.time and issue is not None else None
