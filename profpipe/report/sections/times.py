"""The times on the first screen, why the lowest time may not be reported as the fastest, and what each flag means.

The table has the fastest case of each shape, or every case where there is one shape.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from profpipe.analysis.case_index import OVERHEAD
from profpipe.analysis.cases import in_words, is_number, running_axis, without
from profpipe.analysis.findings import CaseResult, Doubt, DoubtCause, Shape, Win, WinVerdict, WorkloadFindings
from profpipe.analysis.grouping import grouped
from profpipe.job import as_text, readable
from profpipe.measure.flags import Flag
from profpipe.report import document as doc, selection
from profpipe.report.labels import fill, marked_text, names, percent, quantity, ratio, samples, span, variant_text
from profpipe.report.sections import steps
from profpipe.report.units import Unit, size_unit, step_unit, time_unit

#: Names of cases that share their flags in a cell; more are counted.
_MOST_NAMES = 2


def times(workload: WorkloadFindings, explains_flags: bool = True) -> doc.Section:
    """Return the times, what they are, and one line per flag; among several workloads neither flags nor winners."""
    lines = doc.Bullets(tuple(explanations([workload]) if explains_flags else ()))
    context = doc.join(filter(None, (_context(workload), _found_steps(workload))), last=" ")
    blocks: list[doc.Block] = [doc.Paragraph(context), *_tables(workload, explains_flags), lines]
    return doc.make_section("times", "Times", blocks, workload=workload.name)


def _context(workload: WorkloadFindings) -> str:
    """Return the parameters that all cases share, what a time is, and of how many samples."""
    parts = []
    if workload.fixed:
        parts.append(f"Every case: {', '.join(f'{axis} {as_text(value)}' for axis, value in workload.fixed)}.")
    counts = [case.time.n for case in workload.cases if case.time and case.time.n is not None]
    if workload.time_source and counts and not _is_in_headline(workload):
        are_uneven = any(workload.time_source.profiler in case_steps.uneven for case_steps in workload.steps.cases)
        what = quantity(workload.time_source, are_uneven)
        parts.append(f"Time: {what}, over {samples(workload.time_source, counts)}{_name_processes(workload)}.")
    if workload.is_on_cpu:
        recorder = "torch.profiler" if workload.kernel_profiler == "torch" else workload.kernel_profiler
        parts.append(f"Measured on a CPU: shares are the self time of {workload.cpu_rows}, as {recorder} records it.")
    elif workload.gpu.is_absent and workload.time_source is not None and workload.time_source.is_timed:
        parts.append("Measured on a CPU.")
    return " ".join(parts)


def _name_processes(workload: WorkloadFindings) -> str:
    """Return in how many processes the samples of each case were taken, where several repeated it."""
    counts = sorted({case.time.processes for case in workload.cases if case.time})
    if workload.timed_quantity in ("", "wall") or not counts or counts[-1] == 1:
        return ""
    meaning = "The time of a case is the median of its processes; the interval is that of these medians"
    return f" in {span(counts)} processes. {meaning}"


def _is_in_headline(workload: WorkloadFindings) -> bool:
    """Return True if the section can be left out: the headline has the time and the steps of a single program."""
    is_single = workload.timed_quantity == "step" and len(workload.cases) == 1
    return is_single and not (workload.is_on_cpu or workload.gpu.is_absent or _found_steps(workload))


def _found_steps(workload: WorkloadFindings) -> doc.Text:
    """Return how the steps were found, where no profiler divided them: there the table of their parts says it."""
    all_steps = workload.steps.cases
    return (
        steps.found_text(all_steps) if all_steps and all(case_steps.parts is None for case_steps in all_steps) else ""
    )


def _tables(workload: WorkloadFindings, is_alone: bool) -> Iterator[doc.TableBlock]:
    cases = [case for shape in workload.shapes for case in shape.timed]
    if not workload.compare or len(workload.shapes) == 1:
        is_of_steps = workload.timed_quantity == "step"
        if len(cases) > 1 or (cases and cases[0].flags) or (is_of_steps and not _is_in_headline(workload)):
            yield every_case(workload, cases)
        return
    grid = winner_grid(workload) if len(workload.shapes) > selection.SHAPES else None
    has_grid = grid is not None and len(grid.columns) >= _LEAST_COLUMNS
    if grid and has_grid and is_alone:
        yield grid
    yield fastest_by_shape(workload, doc.OnPage.DETAILS if has_grid else doc.OnPage.SUMMARY)


def every_case(workload: WorkloadFindings, cases: Sequence[CaseResult]) -> doc.TableBlock:
    """Return a row for each case: its time, how well that is known, its speed-up and its flags."""
    of_steps = workload.timed_quantity == "step"
    unit = (step_unit if of_steps else time_unit)([case.ns for case in cases])
    memory = size_unit(peak_memory(workload, case) for case in cases)
    wins = {shape.win.best.id: shape.win for shape in workload.shapes if shape.win}
    columns = [
        (doc.label("case", workload.compare or "case"), marked_text),
        (doc.number("time", "time", unit), lambda case: case.ns),
        (doc.plus_minus("interval", "95 % interval"), lambda case: case.time.margin),
        (doc.number("rate", f"{workload.steps.item_name}/s"), lambda case: items_per_s(workload, case)),
        (doc.ratio("speedup", "over baseline"), lambda case: case.speedup),
        (doc.number("memory", "peak memory", memory), lambda case: peak_memory(workload, case)),
        (doc.words("flags"), lambda case: _flags_of_case(workload, case, wins.get(case.id))),
    ]
    return doc.table_of("times", [case for case in cases if case.time], columns)


def items_per_s(workload: WorkloadFindings, case: CaseResult) -> float | None:
    """Return the items of a step or a call, which the pipeline file states, by second."""
    is_of_steps = workload.timed_quantity in ("time", "step")
    items = workload.steps.items.get(case.id) if is_of_steps else None
    return items * 1e9 / case.time.ns if items and case.time and case.time.ns else None


def peak_memory(workload: WorkloadFindings, case: CaseResult) -> float | None:
    """Return the largest peak of a rank in bytes, of programs with steps."""
    case_steps = workload.steps.of(case.id)
    return (
        max((rank.peak_memory for rank in case_steps.ranks if rank.peak_memory), default=None) if case_steps else None
    )


def _flags_of_case(workload: WorkloadFindings, case: CaseResult, win: Win | None) -> doc.Text:
    """Return the flags of a case; of the lowest time of a shape, which has a ``win``, also why it is in doubt."""
    case_flags = _own_flags(case)
    if not workload.compare or win is None or win.verdict != WinVerdict.INCONCLUSIVE:
        return case_flags
    return doc.join([part for part in (case_flags, fill("in doubt: {}", doubt_of(win))) if part], last="; ")


def fastest_by_shape(workload: WorkloadFindings, placement: doc.OnPage = doc.OnPage.SUMMARY) -> doc.TableBlock:
    """Return a row per shape: its fastest case, the time, the lead and the flags of the cases compared."""
    wins = [(shape, shape.win, shape.win.best.time) for shape in workload.shapes if shape.win and shape.win.best.time]
    columns = (
        *map(doc.label, workload.varying_shape),
        doc.label("fastest"),
        doc.number("time", "time", time_unit(time.ns for _, _, time in wins)),
        doc.plus_minus("interval", "95 % interval"),
        doc.ratio("speedup", "over baseline"),
        doc.words("flags"),
    )
    rows = [
        (*(as_text(value) for _, value in shape.axes), _fastest(win), time.ns, time.margin, win.best.speedup,
         _flags_of(workload, shape))
        for shape, win, time in wins
    ]  # fmt: skip
    return doc.make_table("fastest", columns, rows, placement=placement)


def _fastest(win: Win, lead: doc.Text = "") -> doc.Text:
    """Return the fastest case, ``lead`` behind its name, and whether it may be called that."""
    name = fill("tie: {}", tied_names(win)) if win.verdict == WinVerdict.TIE else variant_text(win.best)
    return fill(f"{{}}{{}}{_SUFFIXES.get(win.verdict, '')}", name, lead)


_SUFFIXES = {WinVerdict.INCONCLUSIVE: ", in doubt", WinVerdict.UNOPPOSED: ", alone"}


def _flags_of(workload: WorkloadFindings, shape: Shape) -> doc.Text:
    """Return the flags of the best case, of the case it is compared with and of disqualified ones, and the doubt.

    The best case is compared with the baseline; where it is the baseline, with the next.
    """
    win, base = shape.win, shape.baseline
    assert win is not None
    compared = win.second if win.best is base else base
    others = [case for case in (compared,) if case not in win.disqualified] + [*win.disqualified]
    by_flags = grouped(
        (case_flags, case.variant)
        for case in others
        if case is not None and case is not win.best and (case_flags := _own_flags(case))
    )
    best = _own_flags(win.best)
    is_shared = len(others) == 1 and by_flags.pop(best, []) != []
    parts = [fill("winner and baseline: {}", best) if is_shared else best]
    parts += [fill("{}: {}", names(variants, _MOST_NAMES), case_flags) for case_flags, variants in by_flags.items()]
    if win.verdict == WinVerdict.INCONCLUSIVE:
        parts.append(fill("in doubt: {}", doubt_of(win)))
    kept = [part for part in parts if part]
    return doc.join(kept, separator="; ", last="; ")


# --- many shapes -----------------------------------------------------------------------------------------------------

#: Shapes from which on the winners have a table, and its columns where it stands for the longer one.
_LEAST_SHAPES, _LEAST_COLUMNS = 3, 3


def winner_grid(workload: WorkloadFindings) -> doc.TableBlock | None:
    """Return the winners, with the running or the last axis as rows and the others as columns; None for few shapes."""
    axes = workload.varying_shape
    axis = running_axis(shape.axes for shape in workload.shapes) or (axes[-1] if axes else None)
    if axis is None or not workload.compare or len(workload.shapes) < _LEAST_SHAPES:
        return None
    by_group = grouped((without(shape.axes, axis), (dict(shape.axes)[axis], shape)) for shape in workload.shapes)
    groups = {others: dict(by_group[others]) for others in selection.groups(workload, axis)}
    values = list(dict.fromkeys(dict(shape.axes)[axis] for shape in workload.shapes))
    if all(map(is_number, values)):
        values.sort()
    columns = [doc.label(axis)]
    columns += [doc.label(in_words(others), selection.column(others) or "fastest") for others in groups]
    rows = [
        (doc.TableCell(text=as_text(value)), *(_winner(by_value.get(value)) for by_value in groups.values()))
        for value in values
    ]
    title = "Fastest of each shape, and its speed-up over the baseline"
    return doc.make_table("winners", columns, rows, title)


def _winner(shape: Shape | None) -> doc.TableCell:
    win = shape.win if shape else None
    if win is None:
        return doc.TableCell()
    has_lead = win.best.speedup is not None and not win.best.is_baseline
    return doc.TableCell(text=_fastest(win, fill(" {}", ratio(win.best.speedup)) if has_lead else ""))


# --- wins -------------------------------------------------------------------------------------------------------------

#: Names of tied cases in a sentence; more are counted.
MOST_NAMES = 2

#: By cause a sentence about the cases.
_DOUBTS = {
    DoubtCause.WRONG_KERNELS: "{} did not run the kernels it should",
    DoubtCause.CONTRADICTED: "{} took a different time in another workload",
    DoubtCause.ONE_SAMPLE: "{} has a single sample of unknown spread",
    DoubtCause.MAY_BE_FASTER: "{} waited for another process and may be faster",
}

_MHZ = Unit("MHz", 1e6)


def tied_names(win: Win, cases: int = 0) -> doc.Text:
    """Return the tied cases, the lowest time first; of more than three the first two, or that all ``cases`` are."""
    if len(win.tied) == cases > MOST_NAMES + 1:
        return f"all {cases} cases"
    most = MOST_NAMES + 1 if len(win.tied) == MOST_NAMES + 1 else MOST_NAMES
    return names([case.variant for case in win.tied], most)


def doubt_text(doubt: Doubt) -> doc.Text:
    """Return why the lowest time is not reported as the fastest."""
    cases, flags = [doc.Code(variant) for variant in doubt.variants], " and ".join(doubt.flags)
    apart: doc.Text = ""
    if doubt.ratios:
        apart = fill("; the lead is {}, the clocks differ by {}", *map(ratio, doubt.ratios))
    match doubt.cause:
        case DoubtCause.NOT_COMPARED:
            return "no result was compared with the reference"
        case DoubtCause.INACCURATE:
            return f"its result is {flags}" + (", and no other is accurate" if len(cases) > 1 else "")
        case DoubtCause.FLAGGED:
            return fill(f"{{}} has the flag{'s' * (len(doubt.flags) > 1)} {flags}{{}}", *cases, apart)
        case DoubtCause.NO_INTERVAL:
            return fill("{} has too few samples for a 95 % interval", *cases)
        case DoubtCause.CLOCKS:
            best, other = (doc.Amount(hz, _MHZ) for hz in doubt.clocks_hz)
            return fill("the GPU ran at {} for {} and at {} for {}{}", best, cases[0], other, cases[1], apart)
        case DoubtCause.UNLIKE_NODES:
            facts = (
                fill(f"{fact} {{}}", doc.join((value or "none" for value in values), most=MOST_NAMES))
                for fact, values in doubt.differences
            )
            return fill("its cases ran on unlike nodes: {}", doc.join(facts))
        case DoubtCause.NODE_SPREAD:
            apart = "how far these lie apart is not known"
            if spread := doubt.spread:
                varies = f"{{}} varies by {{}} between {spread.nodes} nodes"
                apart = fill(varies, doc.Code(readable(spread.case)), percent(spread.ratio))
            return fill("{} ran on different nodes, and {}", doc.join(cases), apart)
    return fill(_DOUBTS[doubt.cause], doc.join(cases))


def doubt_of(win: Win) -> doc.Text:
    """Return the most important doubt of an inconclusive win."""
    return doubt_text(win.doubts[0])


# --- flags ------------------------------------------------------------------------------------------------------------

#: Samples below which a median has no 95 % interval: 1 - 2 / 2^n is less than 0.95.
_LEAST_FOR_INTERVAL = 6

_SMALL_LEAD = "A lead smaller than the clock difference is not reported as a win."

_MEANINGS: Mapping[str, str] = {
    Flag.CLOCK_SPREAD: f"the SM clock moved by more than 5 %. {_SMALL_LEAD}",
    Flag.NOISY: "the samples are scattered: the 95 % interval of the median is wide.",
    Flag.WAITED: "the samples include waiting for another process. Never reported as a win.",
    Flag.SHARED_HOST: "another case ran on this host at the same time, and the host sets this time. How much that"
    " changes a time was not measured. A lead is not reported as a win.",
    Flag.OTHER_PROCESS: "another process used the GPU. Never reported as a win.",
    Flag.ABOVE_PEAK: "the rate is above the hardware's peak: a wrong FLOP or byte count, a skipped kernel or cached"
    " data. Never reported as a win.",
    Flag.TOO_FEW_SAMPLES: "fewer samples than the pipeline file requests.",
    Flag.PROFILER_OVERHEAD: f"the profiler made the loop over {100 * OVERHEAD:.0f} % slower. Kernel times hold; idle"
    " shares are too high.",
    Flag.SYNCHRONISES: "the call waits for the GPU, so its time includes launching.",
    Flag.NOT_CAPTURED: "the call could not be captured as a CUDA graph. Its time without a graph holds.",
    Flag.WARM_CACHE: "the cache is not flushed before each sample (timing: {flush: false}), so data may be cached.",
    Flag.UNCHECKED: "the result was not compared with the reference.",
    Flag.INACCURATE: "the result misses the tolerance or is not a number. Never reported as a win.",
    Flag.UNLIKE_NODES: "the cases that the report compares ran on nodes that differ in GPU, driver, CPU or torch. Never"
    " reported as a win, and no speed-up.",
    Flag.KERNELS_VARY: "processes of one side launch different kernels. The headline names them.",
}

#: The flags of an `ab` run that come from its captures.
MEANINGS_OF_SIDES: Mapping[str, doc.Text] = {Flag.KERNELS_VARY: _MEANINGS[Flag.KERNELS_VARY]}


def flags(workloads: Sequence[WorkloadFindings]) -> doc.Section:
    """Return the section with one line per flag of a timed case, whatever its workload."""
    return doc.make_section("flags", "Flags", [doc.Bullets(tuple(explanations(workloads)))])


def explanations(workloads: Sequence[WorkloadFindings]) -> list[doc.Text]:
    """Return one line per flag of a timed case of the workloads, with the number of these cases."""
    timed = sum(1 for workload in workloads for case in workload.cases if case.time)
    lines: list[doc.Text] = []
    for flag, flagged in _flagged(workloads).items():
        count = "every case" if len(flagged) == timed else f"{len(flagged)} of {timed} cases"
        lines.append(fill(f"{{}} ({count}): {_meaning(flag, flagged)}", doc.Strong(flag)))
    return lines


def meanings(workloads: Sequence[WorkloadFindings]) -> dict[str, str]:
    """Return what each flag of a timed case of the workloads means."""
    return {flag: _meaning(flag, flagged) for flag, flagged in _flagged(workloads).items()}


def _flagged(workloads: Sequence[WorkloadFindings]) -> dict[str, list[tuple[WorkloadFindings, CaseResult]]]:
    return grouped(
        (flag, (workload, case))
        for workload in workloads
        for case in workload.cases
        for flag in dict.fromkeys(case.flags if case.time else ())
    )


def _meaning(flag: str, flagged: Sequence[tuple[WorkloadFindings, CaseResult]]) -> str:
    workloads = [workload for workload, _ in flagged]
    is_timed = any(workload.time_source is not None and workload.time_source.is_timed for workload in workloads)
    if flag == Flag.UNCHECKED and any(workload.tolerance for workload in workloads):
        return f"{_MEANINGS[flag]} Under a tolerance it is never reported as a win."
    if flag == Flag.SEVERAL_NODES:
        return _nodes([workload for workload in workloads if workload.nodes.spread])
    if flag == Flag.THROTTLED:
        clocks = _clocks(flagged) if is_timed else ""
        return f"the GPU ran below its maximum clock{clocks}. {_SMALL_LEAD}"
    if flag == Flag.HOST_BOUND and is_timed:
        return (
            "launching takes over 5 % longer than running. Calls were queued ahead of the GPU while timed. Launched one"
            " by one, the host is the limit, and a faster kernel changes nothing."
        )
    if flag == Flag.HOST_BOUND:
        return "no kernel runs in over half of the range. Kernel times hold; a call takes longer."
    requested = {workload.declared and workload.declared.repeats for workload in workloads}
    counts = [case.time.n for _, case in flagged if case.time and case.time.n is not None]
    if flag == Flag.TOO_FEW_SAMPLES and len(requested) == 1 and counts and (most := requested.pop()):
        return _sample_counts(counts, most)
    return _MEANINGS.get(flag, "set by the workload.")


def _nodes(workloads: Sequence[WorkloadFindings]) -> str:
    begin = "the cases that the report compares ran on different nodes of the same kind"
    spreads = {workload.nodes.spread: None for workload in workloads if workload.nodes.spread}
    if not spreads:
        return f"{begin}. How far these lie apart is not known, so no lead is reported as a win."
    variations = ", ".join(
        f"{readable(spread.case)} varies by {100 * spread.ratio:.1f} % between {spread.nodes} of them"
        for spread in spreads
    )
    return f"{begin}: {variations}. A smaller lead is not reported as a win."


def _clocks(flagged: Sequence[tuple[WorkloadFindings, CaseResult]]) -> str:
    """Return the range of the cases' median SM clocks and the lowest clock: `` (1799-1964 of 1980 MHz)``.

    Of several GPUs that ran a case, the slowest counts.
    """
    highest = flagged[0][0].gpu.highest_clock
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
    return f"{span(counts)} samples, but {' and '.join(bounds)}."


def _own_flags(case: CaseResult) -> doc.Text:
    """Return the flags in bold that not every case has."""
    # The flag of a case without timed calls says how idle the GPU was.
    idle = fill(" (GPU idle {})", percent(case.idle_share)) if case.idle_share and "time" not in case.values else ""
    flags = [doc.concat(doc.Strong(mark), idle if mark == Flag.HOST_BOUND else "") for mark in case.unshared_flags]
    return doc.join(flags, last=", ")
