"""Do the profilers agree? How far their times of the same call differ, and why."""

from __future__ import annotations

import functools
import statistics
import string
from collections import Counter
from collections.abc import Mapping, Sequence

from profpipe.analysis.case_index import OVERHEAD
from profpipe.analysis.findings import CLOSE, ProfilerTime, WorkloadFindings
from profpipe.analysis.grouping import grouped
from profpipe.report import document as doc
from profpipe.report.labels import case_texts, means_note
from profpipe.report.units import RATIO, percent, signed_percent, time_unit

#: Kernels above this are long enough for launch gaps and cold caches to be a small part of them.
_LONG_NS = 50_000.0

#: A comparison that covers at least this share of the kernel time is one of all of it.
_WHOLE = 0.995

_UNKNOWN = doc.Strong("no known reason")

#: A case, and the time of a profiler that is compared with the reference.
_Pair = tuple[str, ProfilerTime]


def find_reference(workload: WorkloadFindings) -> str:
    """Return the profiler that others are compared with; empty where none are."""
    return next((times[0].profiler for times in workload.agreements.values()), "")


def agreement(workload: WorkloadFindings) -> doc.Section:
    """Return how far the profilers agree; empty where a single one timed each case."""
    if not workload.agreements:
        return doc.Section("agreement", "", workload=workload.name)
    # The summary says whether they agree; differences without a known cause are a warning.
    tables = [make_profiler_table(workload), differences(workload), all_figures(workload), overheads(workload)]
    title, summary = "Do the profilers agree?", _summary(workload)
    return doc.make_section("agreement", title, tables, summary, workload.name, folds_long_tables=True)


def _summary(workload: WorkloadFindings) -> doc.Text:
    """Return how far long calls agree, by profiler, and what makes the larger differences."""
    reference, means, by_profiler = find_reference(workload), means_note(workload), _pairs(workload)
    long = {name: long_pairs for name, pairs in by_profiler.items() if (long_pairs := _long(pairs, workload))}
    far = [pair for pairs in long.values() for pair in pairs if not pair[1].is_close]
    words: list[doc.Text] = [f"{means} "] if means else []
    if long:
        work = "operators" if workload.is_on_cpu else "kernels"
        within = doc.join([f"{_quantity(name, workload)} in {_within(pairs)}" for name, pairs in long.items()])
        words += [f"Of calls with at least 50 us of {work}, within 3 % of {reference}: ", within, ". "]
    if far:
        words += [f"{len(far)} differ{'s' if len(far) == 1 else ''} by more; causes: ", _causes(far), ". "]
    return doc.concat(*words, "Differences up to 3 % need no reason.")


def make_profiler_table(workload: WorkloadFindings) -> doc.TableBlock:
    """Return a row a profiler: how many cases are within 3 % of the reference, the largest difference, the causes."""
    names, reference = case_texts(workload.cases), find_reference(workload)

    def largest(pairs: Sequence[_Pair]) -> doc.TableCell | None:
        case_differences = [(case, time.difference) for case, time in pairs if time.difference is not None]
        case, difference = max(case_differences, key=lambda pair: abs(pair[1]), default=("", None))
        return None if difference is None else doc.TableCell(difference, note=doc.concat("(", names[case], ")"))

    def select_long(pairs: Sequence[_Pair]) -> Sequence[_Pair]:
        """Return the long calls where there are others too."""
        return long if 0 < len(long := _long(pairs, workload)) < len(pairs) else ()

    columns = [
        (doc.label("profiler", f"compared with {reference}"), lambda row: _title(row[0], workload)),
        (doc.number("within", "within 3 %"), lambda row: _within(row[1])),
        (doc.signed_percent("largest", "largest difference"), lambda row: largest(row[1])),
        (doc.number("long_within", "above 50 us: within 3 %"), lambda row: _within(select_long(row[1]))),
        (doc.signed_percent("long_largest", "largest"), lambda row: largest(select_long(row[1])) or ""),
        (doc.words("causes", "causes above 3 %"), lambda row: _causes([p for p in row[1] if not p[1].is_close])),
    ]
    return doc.table_of("profilers", _pairs(workload).items(), columns, placement=doc.OnPage.DETAILS)


def differences(workload: WorkloadFindings) -> doc.TableBlock:
    """Return each difference of more than 3 % with its reason; those without one first, then the largest."""
    names = case_texts(workload.cases)
    pairs = [pair for profiler_pairs in _pairs(workload).values() for pair in profiler_pairs if not pair[1].is_close]
    pairs.sort(key=lambda pair: (not pair[1].is_unexplained, -abs(pair[1].difference or 0.0)))
    columns = [
        (doc.label("case"), lambda pair: names[pair[0]]),
        (doc.label("profiler", "timed by"), lambda pair: _title(pair[1].profiler, workload)),
        (doc.signed_percent("difference"), lambda pair: pair[1].difference),
        (doc.words("reason"), lambda pair: _why(workload.agreements[pair[0]], pair[1])),
    ]
    title = f"The {len(pairs)} differences above 3 %"
    return doc.table_of("differences", pairs, columns, title, doc.OnPage.DETAILS)


def all_figures(workload: WorkloadFindings) -> doc.TableBlock:
    """Return a row a case: the reference's kernels, and how far each other time is off."""
    names, splits = case_texts(workload.cases), {case.id: case.breakdown for case in workload.cases}
    unit = time_unit(times[0].ns for times in workload.agreements.values())
    reference = find_reference(workload)

    def busy_ns(case: str) -> float | None:
        """Return the time in which some kernel ran, where that is not the sum of them all."""
        split = splits[case]
        return split.busy_ns if split and split.busy_ns and abs(split.busy_ns / split.total.ns - 1) >= 0.001 else None

    def difference(case: str, name: str) -> doc.TableCell | None:
        time = next((time for time in workload.agreements[case][1:] if time.profiler == name), None)
        if time is None:
            return None
        covered = f"over {percent(time.covered)} %" if time.covered < _WHOLE else ""
        unknown = (f"{covered} ".lstrip(), doc.Strong("?"))
        return doc.TableCell(time.difference, note=unknown if time.is_unexplained else covered)

    columns: doc.Columns[str] = [
        (doc.label("case"), lambda case: names[case]),
        (doc.number("ns", reference, unit.per("/call")), lambda case: workload.agreements[case][0].ns),
        (doc.number("busy_ns", "some kernel runs", unit), busy_ns),
        (doc.number("span_ns", "first to last kernel", unit),
         lambda case: split.span_ns if (split := splits[case]) else None),
        (doc.number("range_ns", "host in its range", unit),
         lambda case: split.range_ns if (split := splits[case]) else None),
        *((doc.signed_percent(name, _title(name, workload)), functools.partial(difference, name=name))
          for name in _pairs(workload)),
    ]  # fmt: skip
    return doc.table_of("figures", workload.agreements, columns, "Every figure", doc.OnPage.DETAILS)


def overheads(workload: WorkloadFindings) -> doc.TableBlock:
    """Return what each profiler added to the wall time of a case's loop."""
    names = case_texts(workload.cases)
    by_profiler = grouped((profiler, (share, case)) for (case, profiler), share in workload.recorded.overheads.items())
    by_share = {profiler: sorted(shares, key=lambda pair: pair[0]) for profiler, shares in by_profiler.items()}

    def added(share: float, *note: doc.Text) -> doc.TableCell:
        if share < 0:
            # No profiler makes a program faster: something else held up the loop without it.
            return doc.TableCell(text="none", note=doc.concat(*note))
        if share < 9.995:
            return doc.TableCell(share, note=doc.concat(*note))
        return doc.TableCell(share + 1, unit=RATIO, note=doc.concat("the time ", *note))

    def write_case(share: float, case: str) -> doc.TableCell:
        return added(share, "(", names.get(case, doc.Code(case)), ")")

    columns: doc.Columns[str] = [
        (doc.label("profiler"), doc.Code),
        (doc.signed_percent("median"), lambda name: added(statistics.median(share for share, _ in by_share[name]))),
        (doc.signed_percent("least"), lambda name: write_case(*by_share[name][0]) if len(by_share[name]) > 1 else None),
        (doc.signed_percent("most"), lambda name: write_case(*by_share[name][-1])),
        (doc.number("marked", ("cases marked ", doc.Code("profiler_overhead"))),
         lambda name: f"{sum(share > OVERHEAD for share, _ in by_share[name])} of {len(by_share[name])}"),
    ]  # fmt: skip
    title = "Time that a profiler adds to the loop"
    return doc.table_of("overheads", by_share, columns, title, doc.OnPage.DETAILS)


def _pairs(workload: WorkloadFindings) -> dict[str, list[_Pair]]:
    """Return by profiler every time but the reference's own."""
    return grouped((time.profiler, (case, time)) for case, times in workload.agreements.items() for time in times[1:])


def _long(pairs: Sequence[_Pair], workload: WorkloadFindings) -> list[_Pair]:
    return [(case, time) for case, time in pairs if workload.agreements[case][0].ns >= _LONG_NS]


def _within(pairs: Sequence[_Pair]) -> str:
    return f"{sum(time.is_close for _, time in pairs)} of {len(pairs)}" if pairs else ""


def _quantity(profiler: str, workload: WorkloadFindings) -> str:
    if profiler != "plain":
        return profiler
    return "time of a call" if workload.is_on_cpu else "CUDA events"


def _title(profiler: str, workload: WorkloadFindings) -> str:
    work = "" if profiler == "plain" else ", operators" if workload.is_on_cpu else ", kernels"
    return f"{_quantity(profiler, workload)}{work}"


# --- reasons ---------------------------------------------------------------------------------------------------------


def _causes(far: Sequence[_Pair]) -> doc.Text:
    """Return ``launch gaps 12 and no known reason 1``: the number of differences by cause."""
    counts = Counter("" if time.is_unexplained else time.explanations[0][0] for _, time in far)
    return doc.join([f"{cause} {n}" if cause else (_UNKNOWN, f" {n}") for cause, n in counts.most_common()])


def _why(times: Sequence[ProfilerTime], time: ProfilerTime) -> doc.Text:
    """Return why a time differs, or that nothing explains it and what may help to find out.

    Other profilers whose kernels take as long without a reason are none, but show where to look for one. The time of a
    call may agree by chance.
    """
    parts: list[doc.Text] = [describe(*explanation) for explanation in time.explanations]
    if time.difference is None:
        parts = ["no kernel name in common"]
    elif time.is_unexplained:
        parts = [(_UNKNOWN, " beyond this: ", *doc.join(parts, "; ", "; ")) if parts else _UNKNOWN]
        kernels = [f for f in times[1:] if f.is_unexplained and f.covered >= _WHOLE and f.profiler != "plain"]
        same = [f.profiler for f in kernels if f is not time and abs(f.ns / time.ns - 1) <= CLOSE]
        if time in kernels and same:
            parts.append((*doc.join(same), f" within 3 % of it: {times[0].profiler} is the outlier"))
    if time.covered < _WHOLE:
        parts.append(f"over the kernels that both profiled, {percent(time.covered)} % of the time")
    return doc.join(parts, "; ", "; ")


#: How a cause is worded: the first text whose numbers are all known. What follows a colon is a unit of ``_Quantity``.
WORDING: Mapping[str, Sequence[doc.Text]] = {
    "launch gaps": ["{ns:us} around {kernels:kernels}"],
    "copies and sets": ["{ns:us}, which the sum of kernels leaves out"],
    "host-bound": [
        "the host takes {issue_ns:ms} to issue {launches:count} launches, of which about {queue:count} can be queued",
        "no kernel runs in {idle:%} of the range",
        "",
    ],
    "synchronisation": [
        "the call waits for the GPU, and the host takes {issue_ns:ms} to issue it",
        "the call waits for the GPU",
    ],
    "between operators": ["the call takes time outside of all operators"],
    "profiler overhead": [
        "the loop takes {loop_ns:ms} an iteration under {profiler}, {alone_ns:ms} without",
        "{profiler} slows each operator",
    ],
    "overlap": [
        "{ns:us} of the {of_ns:us}",
        "alone it would make the call {excess_ns:us} shorter than it is",
        "{ns:us} of kernels on {streams:count} streams ran beside others",
    ],
    "waiting in communication": ["{slow_ns:ms} on GPU {slow}, {fast_ns:ms} on GPU {fast}"],
    "slowest process": ["rank {slow} takes {slow_ns:ms}, rank {fast} {fast_ns:ms}"],
    "clock": [
        "{hz:MHz} recorded under {profiler}, {reference_hz:MHz} under {reference}; the cycles differ by {cycles:+%}"
    ],
    "clock below its highest": [
        "{hz:MHz} of {highest_hz:MHz} recorded under {reference}; between kernels of ncu the GPU rests"
    ],
    "throttled clock": ["{hz:MHz} ({low:MHz} to {high:MHz}) in timed calls, {marks}; at most {highest_hz:MHz}"],
    "derived clock": [
        "{low:MHz} to {high:MHz} under {profiler} by time x clock (recorded {recorded_low:MHz} to {recorded_high:MHz})",
        "{low:MHz} to {high:MHz} under {profiler} by time x clock (not recorded)",
    ],
    "lower clock under ncu": ["{hz:MHz}, and {longer_hz:MHz} in longer launches that agree; that makes {share:%}"],
    "launch under ncu": ["up to {limit_ns:us} more for each launch"],
    "locked clock": [("ncu locks the base clock (", doc.Code("--clock-control"), ")")],
    "cold cache": ["ncu empties the caches before each replay"],
    "clean cache under ncu": [
        "ncu empties the caches; under {reference} they are written back meanwhile, for up to {limit_ns:us}"
    ],
    "spread": [
        "the clock moved; the kernels' time lies within p10 to p90 of the call's, {p10:ms} to {p90:ms}",
        "the kernels' time lies within the 95 % interval of the call's, {ci_low:ms} to {ci_high:ms}",
        "the call's time has too few samples for an interval",
    ],
    "short kernels": ["less than {limit_ns:us} a launch"],
    "single launch": ["{ns:us} under ncu; {low:us} to {high:us} in the {launches:count} launches under {reference}"],
}


class _Quantity(float):
    """A number that is formatted by its unit: ``f"{_Quantity(2e6):ms}"``."""

    def __format__(self, unit: str) -> str:
        match unit:
            case "MHz":
                return f"{self / 1e6:.0f} MHz"
            case "%":
                return f"{percent(self)} %"
            case "+%":
                return signed_percent(self)
            case "kernels":
                return f"{float(self):.0f} kernel{'' if self == 1 else 's'}"
            case "count":
                return f"{float(self):.0f}"
        return f"{self / {'us': 1e3, 'ms': 1e6}[unit]:.4g} {unit}"


def describe(cause: str, numbers: Mapping[str, float | str]) -> doc.Text:
    """Return a cause and its numbers in words."""
    shown = {name: n if isinstance(n, str) else _Quantity(n) for name, n in numbers.items()}

    def is_known(wording: doc.Text) -> bool:
        fields = string.Formatter().parse(wording) if isinstance(wording, str) else ()
        return {name for _, name, *_ in fields if name} <= shown.keys()

    wording = next(text for text in WORDING[cause] if is_known(text))
    detail = wording.format(**shown) if isinstance(wording, str) else wording
    return (f"{cause}: ", *doc.inlines(detail)) if detail else cause
