"""The steps of a program and the processes that ran cases: times under each profiler and on each rank, and outliers."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd

from profpipe.analysis.case_index import MetricRow
from profpipe.analysis.costs import Cost, find_costs
from profpipe.analysis.findings import CaseResult, WorkloadFindings
from profpipe.analysis.grouping import grouped
from profpipe.analysis.steps import (
    COLUMNS,
    IDLE_PARTS,
    ONE_DEVICE,
    CaseSteps,
    OutlierCause,
    RankSteps,
    StepOutlier,
    StepPart,
)
from profpipe.report import document as doc
from profpipe.report.labels import capitalise, case_text, duration, fill, means_note, plural, span
from profpipe.report.sections.steps import PART_NAMES, peers, rank_name, wait
from profpipe.report.sections.waits import slowest_rank
from profpipe.report.units import MISSING, number, percent, signed_percent, size_unit, step_unit, time_unit
from profpipe.results.schema import LEAST_ENERGY_WINDOW_S, PROMPT_PREFIX, StepState

#: Ranks of all cases up to which their table stands on the short page.
_RANKS = 16

#: Below this difference step times are equal, also those of ranks: ranks that wait for each other end a step together.
_EQUAL = 0.01

#: From this share of a step on, a sentence names whom others wait for; and so many of them.
_LEAST_WAITING, _MOST_WAITED_FOR = 0.02, 4

_STATES = {StepState.OTHER.value: "between steps", StepState.UNMATCHED.value: "not on all ranks"}

#: Outliers that have a sentence, and rows of a table with every step.
_MOST_OUTLIERS, _MOST_ROWS = 3, 200

_CAUSES: Mapping[OutlierCause, str] = {
    OutlierCause.IDLE_LAUNCH: "idle time because the host launched late",
    OutlierCause.IDLE_BLOCKED: "idle time after a synchronising call",
    OutlierCause.IDLE_OTHER: "other idle time",
    OutlierCause.COPIES: "exposed copies",
    OutlierCause.COMMUNICATION: "exposed communication",
    OutlierCause.KERNELS: "time in the kernels of every step",
    OutlierCause.OTHER_KERNELS: "time in kernels that steady steps do not have",
}


def _list_case_steps(workload: WorkloadFindings) -> list[tuple[CaseResult, CaseSteps]]:
    return [(case, case_steps) for case in workload.cases if (case_steps := workload.steps.of(case.id))]


def compare_profilers(workload: WorkloadFindings) -> doc.Section:
    """Return the step times side by side; empty where one profiler timed each case."""
    cases = [(case, case_steps) for case, case_steps in _list_case_steps(workload) if len(case_steps.times) > 1]
    names = list(dict.fromkeys(name for _, case_steps in cases for name in case_steps.times))
    unit = step_unit(time.ns for _, case_steps in cases for time in case_steps.times.values())

    def cell(case_steps: CaseSteps, name: str) -> doc.TableCell:
        if name not in case_steps.times:
            return doc.TableCell(missing=MISSING)
        time, added = case_steps.times[name].ns, case_steps.overheads.get(name)
        if added is None:
            return doc.TableCell(time)
        note = signed_percent(added)
        if case_steps.uneven:
            # The times of the columns are of all steps, and the median where steps are even under one profiler.
            ns, without_ns, _ = case_steps.same_steps[name]
            note += f": {number(ns / unit.size)} over {number(without_ns / unit.size)}"
        return doc.TableCell(time, note=f"({note})")

    columns = [doc.label("case")]
    columns += [doc.number(name, "without a profiler" if name == "plain" else name, unit) for name in names]
    rows = [[case_text(case), *(cell(case_steps, name) for name in names)] for case, case_steps in cases]
    table = doc.make_table("step_times", columns, rows).without(*_lone(case=len(workload.cases)))
    title = "Step time under each profiler"
    return doc.make_section(
        "step_times", title, [table], _overheads([case_steps for _, case_steps in cases]), workload.name
    )


def costs(workload: WorkloadFindings) -> doc.Section:
    """Return the energy and the money of a step or a token; empty without a GPU, and where neither is known."""
    step_costs = [
        cost
        for cost in find_costs(workload)
        if cost.window_s is not None or cost.euros_per_1000_steps or cost.flops_per_s or cost.missing
    ]
    item = workload.steps.item_name
    columns: doc.Columns[Cost] = [
        (doc.label("case"), lambda cost: case_text(cost.case)),
        (doc.count("gpus", "GPUs"), lambda cost: cost.gpus),
        (doc.number("tflop", "TFLOP a step"), lambda cost: _convert_to_tera(cost.flops)),
        (doc.number("tflops", "TFLOP/s a GPU"), lambda cost: _convert_to_tera(cost.flops_per_s)),
        (doc.percent("mfu", "MFU"), lambda cost: cost.mfu),
        (doc.number("energy", "J a step"), lambda cost: cost.step_j),
        (doc.number("power", "W"), lambda cost: cost.power_w),
        (doc.number("item_energy", f"J per {item.removesuffix('s')}"), lambda cost: cost.item_j),
        (doc.number("token_energy", "J per token"), lambda cost: cost.token_j),
        (doc.number("price", "EUR per 1000 steps"), lambda cost: cost.euros_per_1000_steps),
        (doc.number("item_price", f"EUR per million {item}"), lambda cost: cost.euros_per_million_items),
    ]
    table = doc.table_of("step_costs", step_costs, columns).without(*_lone(case=len(workload.cases)))
    title = "What a token costs" if any(cost.token_j for cost in step_costs) else "What a step costs"
    note = doc.join(
        [*_explain_work(workload, step_costs), *_explain_costs(step_costs, workload.gpu.price)], separator=" ", last=" "
    )
    if all(column.id in ("case", "gpus") for column in table.columns):
        # Only the reasons are known.
        return doc.make_section("step_costs", title, [doc.Paragraph(note)], workload=workload.name)
    return doc.make_section("step_costs", title, [table], note, workload.name)


def _convert_to_tera(value: float | None) -> float | None:
    return value / 1e12 if value else None


#: Operators without a formula that a sentence names.
_MOST_UNKNOWN = 4

#: Why FLOPs are unknown.
_NOT_COUNTED = {
    "compiled": "the program is compiled, and cannot execute a step without the compiler",
    "memory": "the program is compiled, and a step without the compiler may not fit the memory",
    "modes": "the program uses a dispatch mode of torch",
    "ended": "the program ended before the step in which they are counted",
    "uneven": "steps are uneven, and one step does not stand for the others",
    "torch": "this release of torch has no flop counter with formulas",
    "error": "the counting failed, as the warnings say",
    "none": "no operator of the step has a formula",
}


def _explain_work(workload: WorkloadFindings, step_costs: Sequence[Cost]) -> list[doc.Text]:
    """Return what FLOPs and MFU are of, and why they are unknown."""
    missing = dict.fromkeys(cost.missing for cost in step_costs if cost.missing)
    sentences: list[doc.Text] = [f"FLOPs are unknown: {_NOT_COUNTED.get(why, why)}." for why in missing]
    if any(cost.flops for cost in step_costs):
        sentences.append(
            "FLOPs: matrix products, convolutions and attention (causal attention in full) of one step, counted once"
            " under torch by the formulas of its flop counter."
        )
    peaks = {(cost.dtype, cost.peak) for cost in step_costs if cost.mfu}
    name = workload.gpu.data_sheet[0]
    sentences += [
        f"MFU: share of {number(peak / 1e12)} TFLOP/s, dense {dtype} by the data sheet of {name}."
        for dtype, peak in sorted(peaks)
        if peak
    ]
    if any(cost.flops_per_s and not cost.peak for cost in step_costs):
        sentences.append(f"The peak of {name or 'the GPU'} is not known here, so there is no MFU.")
    if again := [cost.again / cost.flops for cost in step_costs if cost.flops and cost.again]:
        sentences.append(f"What the backward pass computes again is not in it: {span(again, percent)} % more.")
    if unknown := list(dict.fromkeys(name for cost in step_costs for name in cost.unknown)):
        named = doc.join(map(doc.Code, unknown), most=_MOST_UNKNOWN)
        sentences.append(fill("These are at least so many, for the FLOPs of {} are unknown.", named))
    return sentences


def energies(workload: WorkloadFindings) -> list[tuple[float, str]]:
    """Return the energies in J of the cases, and what they are of."""
    step_costs = list(find_costs(workload))
    return [(j, of) for cost in step_costs for j, of in ((cost.step_j, "step"), (cost.token_j, "token")) if j]


def _explain_costs(step_costs: Sequence[Cost], price: float | None) -> list[doc.Text]:
    """Return what the energies and prices are of, and why an energy is unknown."""
    sentences: list[doc.Text] = []
    energies = [(cost.window_s, cost.step_j or cost.token_j) for cost in step_costs if cost.window_s is not None]
    if windows_s := [window_s for window_s, energy in energies if energy]:
        sentences.append(
            f"Energy: all GPUs of the program, by the driver's counter over {span(windows_s, number)} s of steady steps"
            " without a profiler, as mean power times the time of these steps. What other processes draw counts too."
        )
    if short := [window_s for window_s, energy in energies if not energy]:
        sentences.append(
            f"Energy is unknown where the counter was read over less than {LEAST_ENERGY_WINDOW_S:g} s of steady steps"
            f" ({span(short, number)} s): let the program run longer."
        )
    if any(cost.euros_per_1000_steps for cost in step_costs):
        sentences.append(f"Money: EUR {price:g} for an hour of a GPU.")
    return sentences


#: A case, the length of a prompt, and the figures of its requests by metric.
_Requests = tuple[CaseResult, int, Mapping[str, MetricRow]]


_PROMPT = re.compile(rf"{PROMPT_PREFIX}(\d{{1,9}})")
_FIGURES = {"request_batch", "request_output", "time_to_first_token", "time_per_output_token", "tokens_per_s"}


def _requests(workload: WorkloadFindings) -> list[_Requests]:
    cases = {case.id: case for case in workload.cases}
    rows = [
        (cases[case], int(match[1]), figures)
        for (case, profiler, subject), figures in workload.recorded.numbers.items()
        if case in cases and profiler == "plain" and (match := _PROMPT.fullmatch(subject))
        # The tables may be those of another program.
        if figures.keys() >= _FIGURES and not pd.isna(figures["time_to_first_token"].n)
    ]
    order = list(cases)
    return sorted(rows, key=lambda row: (order.index(row[0].id), row[1]))


def requests(workload: WorkloadFindings) -> doc.Section:
    """Return the requests in which a language model generates tokens, by the length of their prompt."""
    rows = _requests(workload)

    def value(metric: str) -> Callable[[_Requests], float]:
        return lambda row: row[2][metric].value

    def make_time_column(metric: str, header: str) -> tuple[doc.TableColumn, Callable[[_Requests], float]]:
        return doc.number(metric, header, time_unit(map(value(metric), rows))), value(metric)

    columns: list[tuple[doc.TableColumn, Callable[[_Requests], doc.Content]]] = [
        (doc.label("case"), lambda row: case_text(row[0])),
        (doc.count("prompt", "prompt tokens"), lambda row: row[1]),
        (doc.count("requests"), lambda row: int(row[2]["time_to_first_token"].n)),
        (doc.count("batch"), value("request_batch")),
        (doc.count("output", "output tokens"), value("request_output")),
        make_time_column("time_to_first_token", "time to first token"),
        make_time_column("time_per_output_token", "time per output token"),
        (doc.count("tokens_per_s", "tokens/s"), value("tokens_per_s")),
    ]
    prices = {cost.case.id: cost.euros_per_s for cost in find_costs(workload)}
    if workload.gpu.price:
        columns.append((
            doc.number("price", "EUR per million tokens"),
            lambda row: _million(prices.get(row[0].id), row[2]["tokens_per_s"].value),
        ))  # fmt: skip
    is_uneven = any("plain" in case_steps.uneven for case_steps in workload.steps.cases)
    note = _OF_REQUESTS + " Steps are uneven, so the time per output token is their mean." * is_uneven
    table = doc.table_of("requests", rows, columns).without(*_lone(case=len(workload.cases)))
    return doc.make_section("requests", "Requests", [table], note if rows else "", workload.name)


def _million(euros_per_s: float | None, tokens_per_s: float) -> float | None:
    return 1e6 * euros_per_s / tokens_per_s if euros_per_s and tokens_per_s else None


_OF_REQUESTS = (
    "Medians, without a profiler. A request is a call of the model with a prompt and the calls after it, with one token"
    " each; those of the warm-up are left out. Tokens per second are of the whole request and its batch."
)


def describe_requests(workload: WorkloadFindings) -> doc.Text:
    """Return the figures of the longest prompt of the only case; empty without requests."""
    rows = _requests(workload)
    if len(workload.cases) != 1 or not rows:
        return ""
    _, prompt, figures = rows[-1]
    first, per_token = figures["time_to_first_token"], figures["time_per_output_token"]
    text = f"prompt of {plural(prompt, 'token')}: first token after {{}}, then {{}} each; {{}} tokens per second"
    return fill(text, duration(first.value), duration(per_token.value), number(figures["tokens_per_s"].value))


def _lone(**counts: int) -> list[str]:
    """Return the names of the columns that say the same in each row: they have one value."""
    return [name for name, number in counts.items() if number < 2]


def _share_or_none(share: float) -> str:
    return signed_percent(share) if share else "none"


def _overheads(cases: Sequence[CaseSteps]) -> doc.Text:
    """Return what each profiler adds: ``torch +4.1 %``, or the least and the most of several cases.

    No profiler makes a program faster: where a step is shorter under it, the times of two processes differ by as much.
    """
    added = grouped((name, (share, case_steps)) for case_steps in cases for name, share in case_steps.overheads.items())
    is_uneven = any(case_steps.uneven for case_steps in cases)
    if not added and is_uneven and any("plain" in case_steps.times for case_steps in cases):
        return "Steps are uneven and not the same under each profiler, so what each profiler adds is unknown."
    if not added:
        return "No case was timed without a profiler, so what each profiler adds is unknown."
    named, unclear, shorter = [], [], []
    for name, timed in added.items():
        shares = [share for share, _ in timed]
        named.append(f"{name} {span((max(share, 0.0) for share in shares), _share_or_none)}")
        if min(shares) < -_EQUAL:
            shorter.append(f"{name} ({percent(-min(shares))} %)")
        if not any(case_steps.has_measured_overhead(name) for _, case_steps in timed):
            unclear.append(name)
    text = fill("Each profiler's own overhead: {}.", doc.join(named))
    if shorter:
        noise = " A step is shorter under {}: its times differ by as much from process to process."
        text = doc.concat(text, fill(noise, doc.join(shorter)))
    if is_uneven:
        text = doc.concat(text, " Of uneven steps, only those with the same numbers are compared: their mean with the"
                          " profiler over that without.")  # fmt: skip
    if not unclear:
        return text
    why = "interval of the difference to {} contains 0" if is_uneven else "intervals with and without {} overlap"
    return doc.concat(text, fill(f" The 95 % {why}: no overhead was measured.", doc.join(unclear)))


# --- ranks -----------------------------------------------------------------------------------------------------------


def ranks(workload: WorkloadFindings) -> doc.Section:
    """Return the steps of each rank; empty where every case has one rank."""
    cases = [(case, case_steps) for case, case_steps in _list_case_steps(workload) if len(case_steps.ranks) > 1]
    is_lone, has_ranks = len(workload.cases) == 1, any(case_steps.processes > 1 for _, case_steps in cases)
    table = _ranks_table(cases, "" if is_lone else "Each rank").without(
        *_lone(
            case=len(workload.cases),
            rank=max((case_steps.processes for _, case_steps in cases), default=1),
            device=max((len(case_steps.ranks) - case_steps.processes + 1 for _, case_steps in cases), default=1),
        )
    )
    shown = {column.id for column in table.columns}
    sentences: list[doc.Text] = []
    for say in (_slowest, functools.partial(slowest_rank, workload), _waited_for):
        said = ((case, say(case_steps)) for case, case_steps in cases)
        sentences += [text if is_lone else fill("{}: {}", case_text(case), text) for case, text in said if text]
    unlike = dict.fromkeys(difference for case, _ in cases for difference in workload.nodes.within.get(case.id, ()))
    sentences += [fill(f"The nodes differ in {name}: {{}}.", doc.join(values)) for name, values in unlike]
    what = "ranks" if has_ranks else "GPUs"
    summary = f"The figures of a case are means over its {what}; parts are means over steady steps."
    if "device" in shown:
        summary += " GPUs of one process share its steps."
    if "waited_for" in shown:
        summary += f" Waiting is the exposed communication over the least one of all {what} in the same step, which is"
        summary += " the transfer, at most."
    if any(case_steps.transfer_ns is not None for _, case_steps in cases):
        summary += " Waiting in SendRecv is its exposed time over as many of its shortest calls, the transfer at most."
    if "node" in shown:
        summary += " Clocks of different nodes are not compared: steps of ranks are matched by their numbers."
    blocks = (doc.Bullets(tuple(sentences)), doc.fold_if_long(table))
    return doc.make_section("step_ranks", "Ranks" if has_ranks else "GPUs", blocks, summary, workload.name)


def _ranks_table(cases: Sequence[tuple[CaseResult, CaseSteps]], title: str) -> doc.TableBlock:
    rows = [(case, case_steps, rank) for case, case_steps in cases for rank in case_steps.ranks]
    unit, memory = step_unit(rank.time.ns for *_, rank in rows), size_unit(rank.peak_memory for *_, rank in rows)

    def of(*parts: StepPart) -> Callable[[tuple[CaseResult, CaseSteps, RankSteps]], doc.Content]:
        return lambda row: sum(row[2].parts.ns[part] for part in parts) if row[2].parts else ""

    def hidden(rank: RankSteps) -> doc.Content:
        if rank.parts is None or rank.parts.communication_total_ns is None:
            return ""
        return max(0.0, rank.parts.communication_total_ns - rank.parts.ns[StepPart.COMMUNICATION])

    def waited_for(case_steps: CaseSteps, rank: RankSteps) -> doc.Content:
        return f"{rank.waited_for} of {plural(case_steps.count(StepState.STEADY)[0], 'step')}" if rank.parts else ""

    columns: doc.Columns[tuple[CaseResult, CaseSteps, RankSteps]] = [
        (doc.label("case"), lambda row: case_text(row[0]) if row[2] is row[1].ranks[0] else ""),
        (doc.label("rank"), lambda row: str(row[2].rank)),
        (doc.label("device", "GPU"), lambda row: "" if row[2].device is None else str(row[2].device)),
        (doc.label("node"), lambda row: row[2].node),
        (doc.number("time", "median step", unit), lambda row: row[2].time.ns),
        (doc.number("compute", "compute", unit), of(StepPart.COMPUTE)),
        (doc.number("communication", "exposed communication", unit), of(StepPart.COMMUNICATION)),
        (doc.number("waiting", "waiting, part of it", unit),
         lambda row: _or_empty(row[2].parts.waiting_ns if row[2].parts else None)),
        (doc.number("hidden", "hidden communication", unit), lambda row: hidden(row[2])),
        (doc.number("copy", "exposed copies", unit), of(StepPart.COPY)),
        (doc.number("idle", "idle", unit), of(*IDLE_PARTS)),
        (doc.words("waited_for", "others wait for it in"), lambda row: waited_for(row[1], row[2])),
        (doc.number("memory", "peak memory", memory), lambda row: _or_empty(row[2].peak_memory)),
    ]  # fmt: skip
    placement = doc.OnPage.SUMMARY if len(rows) <= _RANKS else doc.OnPage.DETAILS
    table = doc.table_of("ranks", rows, columns, title, placement)
    has_nodes = any(rank.node for *_, rank in rows)
    waits = any(
        r.parts and r.parts.waiting_ns is not None and case_steps.transfer_ns is None for _, case_steps, r in rows
    )
    return table.without(*([] if has_nodes else ["node"]), *([] if waits else ["waited_for"]))


def _or_empty(value: float | None) -> doc.Content:
    return "" if value is None else value


def _slowest(case_steps: CaseSteps) -> doc.Text:
    """Name the slowest rank: by its step time, or where these are equal by its time without communication.

    It is the slowest in most of the steady steps. GPUs of one process that take turns are neither fast nor slow.
    """
    if case_steps.processes == 1:
        return ""
    ranks, steady = case_steps.ranks, case_steps.count(StepState.STEADY)[0]
    mean = sum(rank.time.ns for rank in ranks) / len(ranks)
    unit = step_unit([mean])
    late = max(ranks, key=lambda rank: rank.slowest_in)
    first = min(ranks, key=lambda rank: rank.time.ns)
    if 2 * late.slowest_in > steady:
        is_longest = late.time.ns > (1 + _EQUAL) * first.time.ns and not first.time.overlaps(late.time)
        if is_longest and late.time.ns == max(rank.time.ns for rank in ranks):
            slowest = "{} is the slowest: {} a step, {} % above the mean of {}."
            above = percent(late.time.ns / mean - 1)
            return fill(slowest, _name(case_steps, late), duration(late.time.ns, unit), above, duration(mean, unit))
        early = min(ranks, key=lambda rank: rank.own_ns or 0.0)
        if late.own_ns is not None and early.own_ns is not None:
            longer = late.own_ns - early.own_ns
            margins = [rank.time.margin * rank.time.ns for rank in ranks if rank.time.margin]
            if longer > max([_EQUAL * mean, *margins]):
                sentence = f"{{}} is the slowest in {late.slowest_in} of {plural(steady, 'step')}: without exposed"
                sentence += f" communication its step takes {{}} longer than that of {rank_name(case_steps, early)}."
                return fill(sentence, _name(case_steps, late), duration(longer, unit))
    # Ranks that wait for each other have one period, so without the waiting nothing is known.
    return (
        f"The {peers(case_steps)} are equally fast."
        if case_steps.parts and case_steps.parts.waiting_ns is not None
        else ""
    )


def _waited_for(case_steps: CaseSteps) -> doc.Text:
    """Return in how many steps others wait for each rank; empty where they hardly wait."""
    waited = sorted((rank for rank in case_steps.ranks if rank.waited_for), key=lambda rank: -rank.waited_for)
    if (
        not waited
        or not case_steps.parts
        or case_steps.parts.share(case_steps.parts.waiting_ns or 0.0) < _LEAST_WAITING
    ):
        return ""
    first, *rest = waited
    steady = plural(case_steps.count(StepState.STEADY)[0], "step")
    named = [f"for {rank_name(case_steps, first)} in {first.waited_for} of {steady}"]
    named += [f"for {rank_name(case_steps, rank)} in {rank.waited_for}" for rank in rest]
    return doc.concat(f"{capitalise(wait(case_steps))} ", doc.join(named, most=_MOST_WAITED_FOR), ".")


def _name(case_steps: CaseSteps, rank: RankSteps) -> str:
    """Return ``Rank 1``, on a cluster ``Rank 1 on node2``."""
    name = capitalise(rank_name(case_steps, rank))
    return f"{name} on {rank.node}" if rank.node else name


# --- outliers --------------------------------------------------------------------------------------------------------


def outliers(workload: WorkloadFindings) -> doc.Section:
    """Return the steps beyond three median absolute deviations, and what they have that others have not."""
    rows = [
        (case, case_steps, outlier)
        for case, case_steps in _list_case_steps(workload)
        for outlier in (case_steps.outliers if case.time else ())
    ]
    longest = sorted(rows, key=lambda item: item[2].wall_ns - item[2].median_ns, reverse=True)[:_MOST_OUTLIERS]
    is_lone = len(workload.cases) == 1
    items = tuple(
        _outlier("" if is_lone else case_text(case), case_steps, outlier) for case, case_steps, outlier in longest
    )
    number = plural(len({(case.id, outlier.step) for case, _, outlier in rows}), "step")
    summary = f"{number} beyond three median absolute deviations. They are not in the figures above."
    unit = step_unit(outlier.wall_ns for *_, outlier in rows)
    columns: doc.Columns[tuple[CaseResult, CaseSteps, StepOutlier]] = [
        (doc.label("case"), lambda row: case_text(row[0])),
        (doc.count("rank"), lambda row: row[2].rank if row[1].processes > 1 else ""),
        (doc.count("device", "GPU"), lambda row: _or_empty(row[2].device)),
        (doc.count("step"), lambda row: row[2].step),
        (doc.number("wall", "time", unit), lambda row: row[2].wall_ns),
        (doc.number("median", "median", unit), lambda row: row[2].median_ns),
        *((doc.number(cause.value, f"more {_CAUSES[cause]}", unit),
           lambda row, of=cause: row[2].excess.get(of) or "") for cause in OutlierCause),
    ]  # fmt: skip
    table = doc.table_of("outliers", rows, columns[is_lone:], "Every outlier", doc.OnPage.DETAILS)
    blocks = (doc.Bullets(items), table)
    return doc.make_section("step_outliers", "Outliers", blocks, summary, workload.name, folds_long_tables=True)


def _outlier(case: doc.Text, case_steps: CaseSteps, outlier: StepOutlier) -> doc.Text:
    of_rank = f" of {rank_name(case_steps, outlier)}" if len(case_steps.ranks) > 1 else ""
    unit = step_unit([outlier.median_ns, outlier.wall_ns])
    who = fill("{}: step ", case) if case else "Step "
    took = fill(f"{{}}{outlier.step}{of_rank} took {{}}, the median {{}}", who, duration(outlier.wall_ns, unit),
                duration(outlier.median_ns, unit))  # fmt: skip
    causes = [fill(f"{{}} more {_CAUSES[cause]}", duration(outlier.excess[cause], unit)) for cause in outlier.causes]
    return fill("{}: {}." if causes else "{}{}.", took, doc.join(causes))


# --- every step ------------------------------------------------------------------------------------------------------


def every_step(workload: WorkloadFindings) -> doc.Section:
    """Return a table with every step of each case, for details.md."""
    folded = (_step_table(workload, case, case_steps) for case, case_steps in _list_case_steps(workload))
    return doc.make_section("every_step", "Every step", folded, workload=workload.name)


def _step_table(workload: WorkloadFindings, case: CaseResult, case_steps: CaseSteps) -> doc.Details:
    shown = case_steps.rows[:_MOST_ROWS]
    # A step has all parts or none.
    lacks_parts = shown[COLUMNS].isna().any(axis=1)
    shown = shown.assign(**shown[[*COLUMNS, "waiting_ns"]].mask(lacks_parts)).astype(object)
    unit = step_unit(case_steps.rows["wall_ns"].dropna())
    columns: doc.Columns[Any] = [
        (doc.label("rank"), lambda row: str(row.rank)),
        (doc.label("device", "GPU"), lambda row: "" if row.place == ONE_DEVICE else str(row.place)),
        (doc.label("step"), lambda row: str(row.step)),
        (doc.label("state"), lambda row: _STATES.get(row.state, row.state)),
        (doc.number("wall", "time", unit), lambda row: row.wall_ns),
        *((doc.number(part.value, PART_NAMES[part], unit), lambda row, of=part: getattr(row, of.column))
          for part in StepPart),
        (doc.number("waiting", "waiting, part of exposed communication", unit), lambda row: row.waiting_ns),
        (doc.count("kernels", "launches"), lambda row: row.kernels),
    ]  # fmt: skip
    rest = (
        f", the first {_MOST_ROWS} of {len(case_steps.rows)} rows of steps.parquet"
        if len(case_steps.rows) > _MOST_ROWS
        else ""
    )
    title = fill(f"{{}} ({case_steps.profiler}{rest})", case_text(case) if case.id else workload.name)
    id, lines = f"steps {case.id}".strip(), shown.where(shown.notna(), "").itertuples()
    table = doc.table_of(id, lines, columns, placement=doc.OnPage.DETAILS)
    return doc.Details(
        title,
        (table.without(*_lone(rank=case_steps.processes, device=len(case_steps.ranks) - case_steps.processes + 1)),),
    )


# --- the processes that ran cases together ----------------------------------------------------------------------------

#: Endings of the metrics of errors, and the tensors that they are of.
_TENSORS = {"": "output", "_dq": "dQ", "_dk": "dK", "_dv": "dV"}
_DIFFERENCES = {"error_max": "max", "error_mean": "mean"}
_ERRORS = {
    "error_rel_l1": "rel. L1 error",
    "error_rel_l1_dq": "of dQ",
    "error_rel_l1_dk": "of dK",
    "error_rel_l1_dv": "of dV",
}


def processes(workload: WorkloadFindings) -> doc.Section:
    """Return the figures of each process and its differences from the reference; empty without several processes."""
    case_ranks = {case.id: [rank for rank in workload.ranks if rank.case == case.id] for case in workload.cases}
    rows = [(case, rank, i == 0) for case in workload.cases for i, rank in enumerate(case_ranks[case.id])]

    def numbers(metric: str) -> list[float | None]:
        return [rank.numbers.get(metric) for _, rank, _ in rows]

    memory, busy = size_unit(numbers("peak_allocated")), time_unit(numbers("communication_busy"))
    metrics = [
        doc.number("time", "time", time_unit(numbers("time"))),
        doc.number("peak_allocated", "peak memory", memory),
        doc.number("peak_reserved", "reserved", memory),
        *(doc.number(metric, title) for metric, title in _ERRORS.items()),
        doc.number("communication_busy", "communicates", busy),
        doc.number("compute_busy", "computes", busy),
        doc.number("communication_overlap", "hidden %"),
    ]
    differences = [
        doc.number(f"{error}{ending}", f"{tensor}: {title}")
        for ending, tensor in _TENSORS.items()
        for error, title in _DIFFERENCES.items()
    ]

    def table(id: str, title: str, numbers: Sequence[doc.TableColumn]) -> doc.TableBlock:
        cells = [
            [case_text(case) if is_first else "", rank.name, *(rank.numbers.get(column.id) for column in numbers)]
            for case, rank, is_first in rows
            if any(column.id in rank.numbers for column in numbers)
        ]
        return doc.make_table(id, [doc.label("case"), doc.label("rank"), *numbers], cells, title, doc.OnPage.DETAILS)

    tables = [
        table("processes", "Each process", metrics),
        table("differences", "Largest and mean difference of each process from the reference", differences),
    ]
    notes = [means_note(workload)]
    if any("time" in rank.numbers for rank in workload.ranks):
        notes.append(
            "Several processes ran each case together. Elsewhere the time of a case is that of its slowest process in"
            " each call, and its memory and errors are the worst ones."
        )
    if profilers := {rank.profiler for rank in workload.ranks if "communication_overlap" in rank.numbers}:
        notes.append(
            f"Per call, from single launches ({', '.join(sorted(profilers))}): communicates and computes are the times"
            " in which a GPU runs a kernel of either kind, waiting included; hidden is the part of the communication"
            " during which the GPU computes too."
        )
    title, summary = "Processes and GPUs", " ".join(filter(None, notes))
    return doc.make_section("ranks", title, tables, summary, workload.name, folds_long_tables=True)
