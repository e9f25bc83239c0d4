"""What each validity flag means, in one line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from profpipe.analysis.findings.workloads import OVERHEAD, CaseResult, WorkloadFindings
from profpipe.analysis.grouping import grouped
from profpipe.job import readable
from profpipe.measure.flags import Flag
from profpipe.report import document as doc
from profpipe.report.labels import fill, percent

#: Samples below which a median has no 95 % interval: 1 - 2 / 2^n is less than 0.95.
_LEAST_FOR_INTERVAL = 6

_MEANINGS: Mapping[str, str] = {
    Flag.CLOCK_SPREAD: "the SM clock moved by more than 5 %. A lead that the clocks can explain is not called a win.",
    Flag.NOISY: "the samples are scattered: the 95 % interval of the median is wide.",
    Flag.WAITED: "the samples include waiting for another process. Never called a win.",
    Flag.SHARED_HOST: "another case ran on this host at the same time, and the host sets this time. How much that"
    " changes a time was not measured. A lead is not called a win.",
    Flag.OTHER_PROCESS: "another process used the GPU. Never called a win.",
    Flag.ABOVE_PEAK: "the rate is above the hardware's peak: a wrong FLOP or byte count, a skipped kernel or cached"
    " data. Never called a win.",
    Flag.TOO_FEW_SAMPLES: "fewer samples than the pipeline file requests.",
    Flag.PROFILER_OVERHEAD: f"the profiler made the loop over {100 * OVERHEAD:.0f} % slower. Kernel times hold; idle"
    " shares are too high.",
    Flag.SYNCHRONISES: "the call waits for the GPU, so its time includes launching.",
    Flag.NOT_CAPTURED: "the call could not be captured as a CUDA graph. Its time without a graph holds.",
    Flag.WARM_CACHE: "the cache is not flushed before each sample (timing: {flush: false}), so data may be cached.",
    Flag.UNCHECKED: "the result was not compared with the reference.",
    Flag.INACCURATE: "the result misses the tolerance or is not a number. Never called a win.",
    Flag.UNLIKE_NODES: "the cases that the report compares ran on nodes that differ in GPU, driver, CPU or torch. Never"
    " called a win, and no speed-up.",
    Flag.KERNELS_VARY: "processes of one side launch different kernels. The headline names them.",
}

#: The flags of an `ab` run that come from its captures.
MEANINGS_OF_SIDES: Mapping[str, doc.Text] = {Flag.KERNELS_VARY: _MEANINGS[Flag.KERNELS_VARY]}


def flags(workloads: Sequence[WorkloadFindings]) -> doc.Section:
    """Return the section with one line for each flag of a timed case, whatever its workload."""
    return doc.make_section("flags", "Flags", [doc.Bullets(tuple(explanations(workloads)))])


def explanations(workloads: Sequence[WorkloadFindings]) -> list[doc.Text]:
    """Return one line for each flag of a timed case of the workloads, with the number of these cases."""
    timed = sum(1 for workload in workloads for case in workload.cases if case.time)
    found: list[doc.Text] = []
    for flag, flagged in _flagged(workloads).items():
        count = "every case" if len(flagged) == timed else f"{len(flagged)} of {timed} cases"
        found.append(fill(f"{{}} ({count}): {_meaning(flag, flagged)}", doc.Strong(flag)))
    return found


def meanings(workloads: Sequence[WorkloadFindings]) -> dict[str, str]:
    """Return what each flag of a timed case of the workloads means."""
    return {flag: _meaning(flag, flagged) for flag, flagged in _flagged(workloads).items()}


def _flagged(workloads: Sequence[WorkloadFindings]) -> dict[str, list[tuple[WorkloadFindings, CaseResult]]]:
    return grouped(
        (flag, (workload, case))
        for workload in workloads
        for case in workload.cases
        for flag in dict.fromkeys(case.marks if case.time else ())
    )


def _meaning(flag: str, flagged: Sequence[tuple[WorkloadFindings, CaseResult]]) -> str:
    workloads = [workload for workload, _ in flagged]
    is_timed = any(workload.basis is not None and workload.basis.is_timed for workload in workloads)
    if flag == Flag.UNCHECKED and any(workload.tolerance for workload in workloads):
        return f"{_MEANINGS[flag]} Under a tolerance it is never called a win."
    if flag == Flag.SEVERAL_NODES:
        return _nodes([workload for workload in workloads if workload.node_spread])
    if flag == Flag.THROTTLED:
        clocks = _clocks(flagged) if is_timed else ""
        return f"the GPU ran below its maximum clock{clocks}. A lead that the clocks can explain is not called a win."
    if flag == Flag.HOST_BOUND and is_timed:
        return (
            "launching takes over 5 % longer than running. Times are of calls queued ahead; in a plain loop the host is"
            " the limit, and a faster kernel changes nothing."
        )
    if flag == Flag.HOST_BOUND:
        return "no kernel runs in over half of the range. Kernel times hold; a call takes longer."
    requested = {workload.requested_samples for workload in workloads}
    counts = [case.time.n for _, case in flagged if case.time and case.time.n is not None]
    if flag == Flag.TOO_FEW_SAMPLES and len(requested) == 1 and counts and (most := requested.pop()):
        return _sample_counts(counts, most)
    return _MEANINGS.get(flag, "set by the workload.")


def _nodes(workloads: Sequence[WorkloadFindings]) -> str:
    begin = "the cases that the report compares ran on different nodes of the same kind"
    spreads = {workload.node_spread: None for workload in workloads if workload.node_spread}
    if not spreads:
        return f"{begin}. How far these lie apart is not known, so no lead is called a win."
    each = ", ".join(
        f"{readable(spread.case)} varies by {100 * spread.ratio:.1f} % between {spread.nodes} of them"
        for spread in spreads
    )
    return f"{begin}: {each}. A smaller lead is not called a win."


def _clocks(flagged: Sequence[tuple[WorkloadFindings, CaseResult]]) -> str:
    """Return the range of the cases' median SM clocks and the lowest clock: `` (1799-1964 of 1980 MHz)``.

    Of several GPUs that ran a case, the slowest counts.
    """
    highest = flagged[0][0].highest_clock
    medians, lows = (
        [case.values[name] / 1e6 for _, case in flagged if name in case.values] for name in ("sm_clock", "sm_clock_min")
    )
    if not medians:
        return ""
    low, high = f"{min(medians):.0f}", f"{max(medians):.0f}"
    maximum = f" of {highest / 1e6:.0f}" if highest else ""
    lowest = f", down to {min(lows):.0f}" if lows and f"{min(lows):.0f}" != low else ""
    return f" ({low if low == high else f'{low}-{high}'}{maximum} MHz{lowest})"


def _sample_counts(counts: Sequence[int], requested: int) -> str:
    bounds = [f"the pipeline file requests {requested}"] if min(counts) < requested else []
    bounds += [f"a 95 % interval needs {_LEAST_FOR_INTERVAL}"] if max(counts) >= requested else []
    had = f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
    return f"{had} samples, but {' and '.join(bounds)}."


def flags_of(case: CaseResult, without: Iterable[str] = ()) -> doc.Text:
    """Return the flags of a case in bold, those in ``without`` left out."""
    # The flag of a case without timed calls says how idle the GPU was.
    idle = fill(" (GPU idle {})", percent(case.idle_share)) if case.idle_share and "time" not in case.values else ""
    own = [mark for mark in case.marks if mark not in without]
    return doc.join([doc.concat(doc.Strong(mark), idle if mark == Flag.HOST_BOUND else "") for mark in own], last=", ")
