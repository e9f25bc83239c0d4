"""Where the time of a program's step goes, what could be gained, its copies, and how many steps there are."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from profpipe.analysis.findings import CaseResult, WorkloadFindings
from profpipe.analysis.kernels import ClassTotal
from profpipe.analysis.steps import (
    COLUMNS,
    IDLE_PARTS,
    CaseSteps,
    RankSteps,
    StepOutlier,
    StepPart,
    StepParts,
)
from profpipe.analysis.waits import find_waits
from profpipe.job import count_cases
from profpipe.ranges import REPLAY
from profpipe.report import document as doc
from profpipe.report.labels import case_text, duration, fill, make_time_cell, marked_text, percent, plural, ratio, span
from profpipe.report.sections import plots
from profpipe.report.units import Unit, percent as percent_text, size_unit, step_unit, time_unit
from profpipe.results.schema import LEAST_REST, PATH_SEPARATOR, PREFILL, StepRule, StepState

#: Cases that stand side by side; more stand in further tables on the other page.
_CASES_A_TABLE = 6

#: A class of kernels has a row from this share of any step on. A part that could speed up a step by less is not named.
_LEAST_SHARE, _LEAST_SPEEDUP = 0.02, 1.02

#: A part below this share of a step is neither in a sentence nor in the bars.
LEAST_SHOWN = 0.0005

#: From this share of a step on, the overhead of the profiler is named beside the parts.
_LEAST_OVERHEAD = 0.02

#: Cases that a warning names, and parts in a sentence on what could be gained.
_NAMED, _MOST_GAINS = 3, 4

#: A class of kernels with more than this share of a step has no bound: hardly a launch gap would be left.
_MOST_OF_A_CLASS = 0.99

PART_NAMES: Mapping[StepPart, str] = {
    StepPart.COMPUTE: "compute",
    StepPart.COMMUNICATION: "exposed communication",
    StepPart.COPY: "exposed copies",
    StepPart.IDLE_LAUNCH: "idle: the host launched late",
    StepPart.IDLE_BLOCKED: "idle: after a synchronising call",
    StepPart.IDLE_OTHER: "idle: cause unknown",
}

#: What the calls of a request leave over is named from this share of it on.
_LEAST_REST_OF_CALLS = 0.02

#: Waiting for other ranks is in the first sentence from this share of a step on, if it is more than the transfer.
_LEADING_WAIT = 0.1

#: Others wait for a rank, and not for one or another in turn, from this share of the steps on.
_MOSTLY = 0.75

#: What one rank does while the others wait for it, by cause: the words before it, and the verb with its end.
_WHY_WAITING: Mapping[StepPart | None, tuple[str, str]] = {
    StepPart.COMPUTE: ("compute differs: ", "computes longer"),
    StepPart.COPY: ("copies differ: ", "copies longer"),
    StepPart.IDLE_LAUNCH: ("host-bound: ", "launches late"),
    StepPart.IDLE_BLOCKED: ("host-bound: ", "launches late after a synchronising call"),
    StepPart.IDLE_OTHER: ("", "is late"),
    None: ("", "is late (cause unknown)"),
}

WHY_IDLE: Mapping[StepPart, str] = {
    StepPart.IDLE_LAUNCH: "because the host launched late",
    StepPart.IDLE_BLOCKED: "after synchronising calls of the host, with nothing queued",
    StepPart.IDLE_OTHER: "cause unknown",
}

_EXPOSED_MEANS: Mapping[StepPart, str] = {
    StepPart.COMMUNICATION: "Communication is exposed while nothing computes.",
    StepPart.COPY: "Copies are exposed while no kernel runs.",
}

_RULES: Mapping[StepRule, str] = {
    StepRule.MARKER: "at the program's own marker",
    StepRule.OPTIMIZER: "after each step of the optimizer",
    StepRule.FORWARD: "at each call of the model",
    StepRule.FRAMEWORK: "at the framework's range of a step",
    StepRule.RANGE: "at the program's own range",
    StepRule.PATTERN: "where the sequence of launches recurs",
}

#: Steps that are in no figure: one of them, and several.
_LEFT_OUT: Mapping[StepState, tuple[str, str]] = {
    StepState.WARMUP: ("warm-up step", "warm-up steps"),
    StepState.OUTLIER: ("outlier", "outliers"),
    StepState.LAST: ("last step (its end is unknown)", "last step (its end is unknown)"),
    StepState.UNMATCHED: ("step that not all ranks have", "steps that not all ranks have"),
}

#: The columns of the table of the steps that were found.
_FOUND: Mapping[StepState, str] = {
    StepState.WARMUP: "warm-up",
    StepState.STEADY: "steady",
    StepState.OUTLIER: "outliers",
    StepState.OTHER: "parts between steps",
    StepState.UNMATCHED: "not on all ranks",
    StepState.LAST: "last, its end is unknown",
}

#: A case with its steps and their parts, without the time that the profiler adds where that is known.
_Case: TypeAlias = "tuple[CaseResult, CaseSteps, StepParts]"


def steps(workload: WorkloadFindings) -> doc.Section:
    """Return where a step goes, as a table and as bars; empty where no profiler recorded the parts of a step."""
    cases = _cases(workload)
    if not cases:
        return doc.Section("steps", "", workload=workload.name)
    groups = [cases[i : i + _CASES_A_TABLE] for i in range(0, len(cases), _CASES_A_TABLE)]
    blocks: list[doc.Block] = [doc.Paragraph(_context(cases))]
    blocks += [_numbered(where_table(group), group, number) for number, group in enumerate(groups)]
    blocks += [*other_calls(cases)]
    blocks += [bars(workload, cases), *(_numbered(gains(group), group, number) for number, group in enumerate(groups))]
    blocks += [copies(cases), found_steps(cases)]
    return doc.make_section("steps", "Where a step goes", blocks, workload=workload.name)


def _cases(workload: WorkloadFindings) -> list[_Case]:
    """Return the cases whose parts are known, in the headline's time: the baseline first, then the fastest."""
    ordered = sorted(workload.cases, key=lambda c: (not c.is_baseline, c.time.ns if c.time else 0.0))
    recorded = [(case, case_steps) for case in ordered if (case_steps := workload.steps.of(case.id))]
    return [(case, case_steps, parts) for case, case_steps in recorded if (parts := case_steps.parts_without_profiler)]


def class_order(workload: WorkloadFindings) -> list[str]:
    """Return the classes of kernels that have a row, in the order of the table, of the bars and of the timeline."""
    return classes([parts for *_, parts in _cases(workload)])


def _numbered(table: doc.TableBlock, cases: Sequence[_Case], number: int) -> doc.TableBlock:
    """Return a table of the first cases as it is; one of further cases names them, on the long page."""
    if not number:
        return table
    title = table.title or doc.join([case_text(case) for case, *_ in cases], most=2)
    return replace(table, id=f"{table.id} {number + 1}", title=title, placement=doc.OnPage.DETAILS)


def _context(cases: Sequence[_Case]) -> doc.Text:
    """Return of how many steps the parts are means, and where a step begins."""
    all_steps = [case_steps for _, case_steps, _ in cases]
    profiler, most = all_steps[0].profiler, max(all_steps, key=lambda case_steps: len(case_steps.ranks))
    over = f" of each of {whose(most)}" if len(most.ranks) > 1 else ""
    steady = span(n for case_steps in all_steps for n in case_steps.count(StepState.STEADY))
    mean = "One steady step" if steady == "1" else f"Mean of the {steady} steady steps"
    exposed = [sentence for part, sentence in _EXPOSED_MEANS.items() if any(parts.ns[part] for *_, parts in cases)]
    text = " ".join([f"{mean}{over} ({profiler}); the parts add up to the step.", *exposed])
    added = {
        case_steps.case: share
        for case_steps in all_steps
        if (share := case_steps.overheads.get(profiler, 0.0)) >= _LEAST_OVERHEAD
    }
    if not added:
        return doc.concat(f"{text} ", found_text(all_steps))
    most = max(
        (case_steps for case_steps in all_steps if case_steps.case in added),
        key=lambda case_steps: added[case_steps.case],
    )
    wall_ns = most.same_steps[profiler][0] if most.uneven else most.times[profiler].ns
    longer = f"{percent_text(added[most.case])} % longer than without a profiler"
    name = doc.join(
        [fill(" of {}", case_text(case)) for case, case_steps, _ in cases if case_steps is most and len(cases) > 1]
    )
    is_measured = any(
        case_steps.has_measured_overhead(profiler) for case_steps in all_steps if case_steps.case in added
    )
    why = "because the host launches later." if is_measured else "which is within the uncertainty of both."
    recorded = [_is_recorded(case) for case in cases if case[0].id in added]
    if not all(recorded):
        is_waiting = any(parts.waiting_ns is not None for *_, parts in cases)
        why += f" {'Idle time and waiting are' if is_waiting else 'Idle time is'} shown without this"
        why += ", except where a column says otherwise." if any(recorded) else "."
    template = f"{text} Under {profiler} a step{{}} takes {{}}, {longer}, {why} "
    under = fill(template, name, duration(wall_ns, step_unit([wall_ns])))
    return doc.concat(under, found_text(all_steps))


def found_text(cases: Sequence[CaseSteps]) -> doc.Text:
    """Return which steps are in no figure, where a step begins, and which share of the kernel time lies in steps."""
    left_out = [
        f"{span(counts)} {one if max(counts) == 1 else several}"
        for state, (one, several) in _LEFT_OUT.items()
        if any(counts := [n for case_steps in cases for n in case_steps.count(state)])
    ]
    begins = dict.fromkeys(
        f"after {case_steps.stride} steps of the optimizer, and is an iteration of the program"
        if case_steps.part_ns
        else "at each replay of a CUDA graph"
        if is_replay(case_steps)
        else fill("at each call of {}", doc.Code(case_steps.module))
        if case_steps.module
        else doc.concat(
            _RULES[case_steps.rule], (" ", doc.Code(case_steps.range_name)) if case_steps.range_name else ""
        )
        for case_steps in cases
    )
    text = fill("A step begins {}.", doc.join(begins, last=" or "))
    if left_out:
        text = doc.concat(f"Left out: {' and '.join(left_out)}. ", text)
    if strides := sorted(
        {case_steps.stride for case_steps in cases if case_steps.stride > 1 and case_steps.rule is StepRule.PATTERN}
    ):
        numbers = " or ".join(map(str, strides))
        text = fill("{} The sequence recurs {} times in a step: the host pauses after the last of them.", text, numbers)
    if coverages := [case_steps.coverage for case_steps in cases if case_steps.coverage is not None]:
        least = "at least " if len(set(coverages)) > 1 else ""
        return fill(f"{{}} Steps hold {least}{{}} of the kernel time.", text, percent(min(coverages)))
    return text


_OTHER_WORK = "other work between or after them"

#: Fewer tokens are no request: a draft model proposes a few between two calls of the model that checks them.
_FEWEST_TOKENS = 16


def is_replay(case_steps: CaseSteps) -> bool:
    return case_steps.module.partition(" ")[0] == REPLAY


def name_step(case_steps: CaseSteps, profiler: str) -> tuple[str, doc.Text]:
    """Return what a step is, as a noun and as a subject. Beside large calls of other modules it is only a call."""
    if case_steps.part_ns:
        return "iteration", "An iteration"
    if not case_steps.module:
        return "step", "A step"
    if is_replay(case_steps):
        return "step", f"A {'decode ' * case_steps.decodes}step (a replay of a CUDA graph)"
    if case_steps.decodes:
        return "step", fill("A decode step of {}", doc.Code(case_steps.module))
    if case_steps.has_steady(profiler) and _other_kinds(case_steps, profiler):
        return "call", fill("A call of {}", doc.Code(case_steps.module))
    # What runs between two calls, such as an update by hand, is in the time.
    return "step", fill("A step (one call of {})", doc.Code(case_steps.module))


def _other_kinds(case_steps: CaseSteps, profiler: str) -> list[tuple[str, float, float]]:
    """Return the calls of other modules, with ns of one and their share of the time, where these are a tenth of it."""
    shares = case_steps.shares(profiler)
    states = [state.value for state in StepState]
    kinds = shares[~shares.index.isin([*states, PREFILL])].sort_values("wall", ascending=False)
    calls = [(str(kind), float(row.ns), float(row.wall)) for kind, row in kinds.iterrows()]
    return calls if sum(share for *_, share in calls) > LEAST_REST else []


def whole_program(case_steps: CaseSteps, profiler: str) -> Iterator[doc.Text]:
    """Yield what an iteration or a request holds, and what the time of a step leaves out of the program, if much."""
    if not case_steps.has_steady(profiler):
        return
    request, kinds, shares = (
        case_steps.request(profiler),
        _other_kinds(case_steps, profiler),
        case_steps.shares(profiler),
    )
    if case_steps.part_ns:
        whole, ns = case_steps.times[profiler].ns, case_steps.stride * case_steps.part_ns
        unit = step_unit([whole])
        step = duration(case_steps.part_ns, step_unit([case_steps.part_ns]))
        said = f"An iteration holds {case_steps.stride} steps of the optimizer, {{}} ({{}} a step), and {{}}"
        yield fill(f"{said} of other work before them.", duration(ns, unit), step, duration(max(whole - ns, 0.0), unit))
    if request is not None:
        ns, number, calls = request
        decodes = case_steps.decodes and calls[case_steps.module][0] >= _FEWEST_TOKENS
        held, rest_ns = [], ns
        for name, (n, call_ns) in calls.items():
            one = case_steps.times[profiler].ns if name == case_steps.module else call_ns
            label = "tokens" if decodes and name == case_steps.module else name if name == PREFILL else doc.Code(name)
            said = "{} {}" if n == 1 else f"{n} {{}} at {{}}" if label == "tokens" else f"{n} calls of {{}} at {{}}"
            held.append(fill(said, label, duration(one, step_unit([one]))))
            rest_ns -= n * one
        if rest_ns > _LEAST_REST_OF_CALLS * ns:
            held.append(fill("{} of longer calls and other work", duration(rest_ns, step_unit([ns]))))
        noun = "A request" if decodes else "An iteration of the program"
        yield fill(f"{noun} takes {{}} (median of {number}): {{}}.", duration(ns, step_unit([ns])), doc.join(held))
    elif kinds:
        others = [
            fill("one of {} takes {} ({})", doc.Code(name), duration(ns, step_unit([ns])), percent(share))
            for name, ns, share in kinds[:_NAMED]
        ]
        mine = percent(float(shares["wall"].get(StepState.STEADY.value, 0.0)))
        yield fill("These calls are {} of the time; {}.", mine, doc.join(others))
    if request is None and PREFILL in shares.index and shares["wall"][PREFILL] > LEAST_REST:
        ns, share = float(shares["ns"][PREFILL]), float(shares["wall"][PREFILL])
        prompts = plural(int(shares["n"][PREFILL]), "call")
        said = f"Calls with a prompt take {{}} of the time: {prompts}, {{}} in the median."
        yield fill(said, percent(share), duration(ns, step_unit([ns])))
    rest = shares[shares.index.isin([StepState.OUTLIER.value, StepState.OTHER.value])]
    which = "wall" if rest["wall"].sum() > LEAST_REST else "kernels"
    if rest[which].sum() > LEAST_REST:
        named = [
            fill(
                f"{{}} in {plural(int(n), 'outlier') if state == StepState.OUTLIER.value else _OTHER_WORK}",
                percent(share),
            )
            for state, n, share in rest[["n", which]].itertuples()
            if share >= LEAST_SHOWN
        ]
        said = f"From the first steady one on, this leaves out {{}} of the {'kernel ' * (which != 'wall')}time: {{}}."
        yield fill(said, percent(float(rest[which].sum())), doc.join(named))
    if case_steps.uneven and case_steps.stride > 1 and case_steps.rule is StepRule.OPTIMIZER and not case_steps.part_ns:
        walls = case_steps.steady_walls(profiler)
        long, short = (walls[is_long].median() for is_long in (walls > walls.mean(), walls <= walls.mean()))
        said = f"One of {case_steps.stride} steps takes {{}}, the others {{}}."
        yield fill(said, duration(long, step_unit([long])), duration(short, step_unit([short])))
    if is_replay(case_steps) and (before := case_steps.calls_before(profiler)):
        named = [fill(f"{plural(n, 'call')} of {{}}", doc.Code(name)) for name, n in before.items()]
        yield fill("Left out: {} before the first replay (warm-up and capture).", doc.join(named, most=_NAMED))


def whose(case_steps: CaseSteps) -> str:
    """Return ``2 ranks``, ``4 GPUs of one process``, or both numbers where ranks have several GPUs."""
    gpus = plural(len(case_steps.ranks), "GPU")
    if len(case_steps.ranks) == case_steps.processes:
        return plural(case_steps.processes, "rank")
    return f"{gpus} of one process" if case_steps.processes == 1 else f"{gpus} of {case_steps.processes} ranks"


def peers(case_steps: CaseSteps) -> str:
    """Return what waits for another one: ranks, or GPUs of one process."""
    return "ranks" if case_steps.processes > 1 else "GPUs"


# --- where a step goes, and what could be gained ----------------------------------------------------------------------


@dataclass(frozen=True)
class _Row:
    """A part of a step, or one that divides it, whose ``name`` is plain text.

    ``removes`` is the time that a step would lose at most without it; None where nothing, or too little, would be left.
    ``improvement`` says so in words; improvements stand in the order of their ``rank``.
    """

    name: doc.Text
    of: Callable[[StepParts], float]
    removes: Callable[[CaseSteps, StepParts], float | None] = lambda case_steps, parts: None
    improvement: str = ""
    rank: int = 0
    is_shown_without_time: bool = False

    @property
    def is_part(self) -> bool:
        return not isinstance(self.name, str)

    def gain(self, case_steps: CaseSteps, parts: StepParts) -> float | None:
        """Return the speed-up of a step without it, at most."""
        removed = self.removes(case_steps, parts)
        return None if removed is None else parts.speedup_without(removed)


def _rows(cases: Sequence[tuple[CaseSteps, StepParts]]) -> Iterator[_Row]:
    """Yield the rows from top to bottom: the four parts, of which two are divided, and the step."""
    all_parts = [parts for _, parts in cases]
    yield _Row(doc.Strong("compute"), _read_part(StepPart.COMPUTE), is_shown_without_time=True)
    names = classes(all_parts)
    for name in names:
        label, of = class_label(name), _sum_classes((name,))
        yield _Row(f"compute: {label}", of, _remove_kernels(of), label, 4)
    if names:
        others = _sum_classes(names, others=True)
        yield _Row("compute: other kernels", others, _remove_kernels(others))
    waits = [case_steps for case_steps, parts in cases if parts.waiting_ns is not None]
    exposed = _read_part(StepPart.COMMUNICATION)
    if waits:
        # A faster network does not end the waiting for a late host.
        name = waiting_name(max(waits, key=lambda case_steps: case_steps.processes))
        yield _Row(doc.Strong(PART_NAMES[StepPart.COMMUNICATION]), exposed)
        yield _Row("exposed communication: transfer, at most", lambda parts: parts.transfer_ns,
                   lambda case_steps, parts: parts.transfer_ns, "transfer", 2, True)  # fmt: skip
        yield _Row(f"exposed communication: {name}", lambda parts: parts.waiting_ns or 0.0,
                   lambda case_steps, parts: parts.waiting_ns or 0.0, name, 1, True)  # fmt: skip
    else:
        yield _Row(doc.Strong(PART_NAMES[StepPart.COMMUNICATION]), exposed, _remove_parts(StepPart.COMMUNICATION),
                   "exposed communication", 2)  # fmt: skip
    yield _Row(doc.Strong(PART_NAMES[StepPart.COPY]), _read_part(StepPart.COPY), _remove_parts(StepPart.COPY),
               "exposed copies", 3)  # fmt: skip
    for_it = " and the waiting for it" if any(case_steps.wait_cause in IDLE_PARTS for case_steps in waits) else ""
    yield _Row(doc.Strong("idle"), lambda parts: parts.idle_ns, _remove_parts(*IDLE_PARTS),
               f"idle{for_it}", is_shown_without_time=True)  # fmt: skip
    if any(case_steps.is_on_gpu for case_steps, _ in cases):
        yield from (_Row(PART_NAMES[part], _read_part(part), _remove_parts(part)) for part in IDLE_PARTS)
    yield _Row(doc.Strong("step"), lambda parts: parts.wall_ns, is_shown_without_time=True)


def _read_part(part: StepPart) -> Callable[[StepParts], float]:
    return lambda parts: parts.ns[part]


def _sum_classes(names: Collection[str], others: bool = False) -> Callable[[StepParts], float]:
    return lambda parts: sum((ns for name, ns in parts.classes.items() if (name in names) is not others), 0.0)


def _waiting_for(case_steps: CaseSteps, parts: StepParts, causes: Collection[StepPart]) -> float:
    """Return the waiting that would end with what causes it."""
    return parts.waiting_ns or 0.0 if case_steps.wait_cause in causes else 0.0


def _remove_parts(*removed: StepPart) -> Callable[[CaseSteps, StepParts], float]:
    """Return a function of the time of these parts and of the waiting that they cause."""
    return lambda case_steps, parts: sum(parts.ns[part] for part in removed) + _waiting_for(case_steps, parts, removed)


def _remove_kernels(of: Callable[[StepParts], float]) -> Callable[[CaseSteps, StepParts], float | None]:
    """Return a function of the time of a class of kernels and of the waiting for it; None for nearly the whole step."""

    def removes(case_steps: CaseSteps, parts: StepParts) -> float | None:
        removed = of(parts) + _waiting_for(case_steps, parts, [StepPart.COMPUTE]) if of(parts) else 0.0
        return removed if parts.share(removed) <= _MOST_OF_A_CLASS else None

    return removes


def _is_recorded(case: _Case) -> bool:
    """Return True where the parts are those under the profiler, since the step without it is unknown or too short."""
    _, case_steps, parts = case
    return parts is case_steps.parts


def _heading(case: _Case, cases: Sequence[_Case], otherwise: doc.Text = "") -> doc.Text:
    """Return the case in words, with the profiler where its parts alone are those under it."""
    text = marked_text(case[0], otherwise)
    is_other = _is_recorded(case) and not all(map(_is_recorded, cases))
    return doc.concat(text, f" (under {case[1].profiler})") if is_other else text


def where_table(cases: Sequence[_Case]) -> doc.TableBlock:
    """Return the parts of a step as rows: of one case with what could be gained, of several side by side."""
    unit = step_unit(parts.wall_ns for *_, parts in cases)
    shown = [
        row for row in _rows([(case_steps, parts) for _, case_steps, parts in cases])
        if row.is_shown_without_time or any(row.of(parts) for *_, parts in cases)
    ]  # fmt: skip
    rows: list[tuple[doc.Content, ...]]
    if len(cases) == 1:
        ((_, case_steps, parts),) = cases
        columns = [doc.number("ns", "", unit), doc.percent("share", "")]
        columns.append(doc.ratio("gain", "speed-up without it, at most"))
        rows = [
            (row.name, doc.TableCell(row.of(parts), is_strong=row.is_part), parts.share(row.of(parts)),
             doc.TableCell(row.gain(case_steps, parts)))
            for row in shown
        ]  # fmt: skip
    else:
        columns = [doc.number(case[0].id, fill(f"{{}}: {unit.name}", _heading(case, cases))) for case in cases]
        rows = [
            (row.name, *(make_time_cell(ns, parts.share(ns), unit, row.is_part)
                         for *_, parts in cases for ns in [row.of(parts)]))
            for row in shown
        ]  # fmt: skip
    cells = tuple(tuple(map(doc.cell, row)) for row in rows)
    return doc.TableBlock("parts", (doc.label("part", ""), *columns), cells, is_divisible=False)


def other_calls(cases: Sequence[_Case]) -> Iterator[doc.TableBlock]:
    """Yield the parts of the calls that are no steps, by kind, and the largest kernels of each kind."""
    calls = [
        (case, kind, n, parts) for case, case_steps, _ in cases for kind, (n, parts) in case_steps.other_calls.items()
    ]
    unit = step_unit(parts.wall_ns for *_, parts in calls)
    names = [part for part in StepPart if any(parts.share(parts.ns[part]) >= LEAST_SHOWN for *_, parts in calls)]
    columns: doc.Columns[tuple[CaseResult, str, int, StepParts]] = [
        (doc.label("case"), lambda row: case_text(row[0])),
        (doc.label("call"), lambda row: row[1]),
        (doc.count("calls", "number"), lambda row: row[2]),
        (doc.number("wall", "time", unit), lambda row: row[3].wall_ns),
        *((doc.number(part.value, PART_NAMES[part], unit), lambda row, of=part: row[3].ns[of]) for part in names),
    ]  # fmt: skip
    is_prefill = {kind for _, kind, *_ in calls} == {PREFILL}
    title = "Where a prefill goes" if is_prefill else "Where calls between steps go"
    yield doc.table_of("other_calls", calls, columns[len(cases) < 2 :], title)
    kernels = [
        (case, *subject.split(PATH_SEPARATOR, 1), number.value, case_steps.other_calls[kind][1])
        for case, case_steps, _ in cases
        for subject, number in case_steps.call_kernels.items()
        if (kind := subject.split(PATH_SEPARATOR, 1)[0]) in case_steps.other_calls
    ]
    of_kernels: doc.Columns[Any] = [
        (doc.label("case"), lambda row: case_text(row[0])),
        (doc.label("call"), lambda row: row[1]),
        (doc.label("kernel"), lambda row: doc.Code(row[2])),
        (doc.number("ns", "time", unit), lambda row: row[3]),
        (doc.percent("share", "of the call"), lambda row: row[4].share(row[3])),
    ]
    title = "Largest kernels of a prefill" if is_prefill else "Largest kernels of calls between steps"
    yield doc.table_of("call_kernels", kernels, of_kernels[len(cases) < 2 :], title)


def gains(cases: Sequence[_Case]) -> doc.TableBlock:
    """Return by how much a step of each case would be faster without a part, at most; empty for one case."""
    columns = [doc.label("part", ""), *(doc.ratio(case[0].id, _heading(case, cases)) for case in cases)]
    pairs = [(case_steps, parts) for _, case_steps, parts in cases]
    improvements = [(row.improvement, [row.gain(*pair) for pair in pairs]) for row in _improvements(pairs)]
    rows = [
        (name, *speedups) for name, speedups in improvements
        if len(cases) > 1 and max(filter(None, speedups), default=0.0) >= _LEAST_SPEEDUP
    ]  # fmt: skip
    return doc.make_table("gains", columns, rows, "Speed-up of a step without a part, at most")


def _improvements(cases: Sequence[tuple[CaseSteps, StepParts]]) -> list[_Row]:
    return sorted((row for row in _rows(cases) if row.improvement), key=lambda row: row.rank)


def classes(all_parts: Sequence[StepParts]) -> list[str]:
    """Return the classes of kernels that are at least 2 % of any of these steps, by their share of the first one."""
    names = dict.fromkeys(name for parts in all_parts for name in parts.classes if name != "other")
    shares = {name: [parts.share(parts.classes.get(name, 0.0)) for parts in all_parts] for name in names}
    shown = (name for name in shares if max(shares[name]) >= _LEAST_SHARE)
    return sorted(shown, key=shares.__getitem__, reverse=True)


def differences(first: StepParts, second: StepParts, waiting: str) -> dict[str, float]:
    """Return how many ns longer each part of the second step is: compute by kernel class, and the other parts.

    ``waiting`` is the name of the part of exposed communication that is no transfer.
    """
    longer = {
        f"{class_label(name).removesuffix(' kernels')} kernels": second.classes.get(name, 0.0)
        - first.classes.get(name, 0.0)
        for name in {**first.classes, **second.classes}
    }
    idle_ns = {cause: second.ns[cause] - first.ns[cause] for cause in IDLE_PARTS}
    cause = max(idle_ns, key=lambda part: idle_ns[part])
    others = {PART_NAMES[part]: second.ns[part] - first.ns[part] for part in (StepPart.COMMUNICATION, StepPart.COPY)}
    if second.waiting_ns is not None:
        del others[PART_NAMES[StepPart.COMMUNICATION]]
        others |= {waiting: second.waiting_ns - (first.waiting_ns or 0.0)}
        others |= {"exposed transfer": second.transfer_ns - first.transfer_ns}
    return {**longer, **others, f"idle time ({WHY_IDLE[cause]})": second.idle_ns - first.idle_ns}


def class_label(name: str) -> str:
    """Return the name of a class beside parts that are no kernels: copies by the copy engine are none."""
    return f"{name} kernels" if name in ("copy", "communication", "memcpy", "memset") else name


def bars(workload: WorkloadFindings, cases: Sequence[_Case]) -> doc.Chart:
    """Return a bar per case: compute by class, exposed communication, exposed copies and idle time by cause."""
    all_parts = [parts for *_, parts in cases]
    unit = step_unit(parts.wall_ns for parts in all_parts)
    labels = tuple(doc.plain(_heading(case, cases, workload.name)) for case in cases)
    under = f", under {cases[0][1].profiler}" if all(map(_is_recorded, cases)) else ""
    return doc.Chart(
        plots.chart_id(workload.name, "step"),
        f"Where a step goes{under}",
        doc.ChartKind.STACKED_BARS,
        doc.Axis("", labels=labels, cases=tuple(case.id for case, *_ in cases)),
        doc.Axis(f"{unit.name} of a steady step", unit, quantity="ns"),
        {"": bar_series(all_parts)},
        subtitle=". ".join(filter(None, [plots.fixed(workload), legend_order(len(all_parts))])),
    )


def legend_order(bars: int) -> str:
    """Return which share in the legend is of which bar; empty where the legend has none, or of one bar."""
    return f"Legend: shares of the {bars} bars, from the top." if 1 < bars <= doc.MOST_SHARES else ""


def pieces(all_parts: Sequence[StepParts]) -> list[tuple[str, str, list[float]]]:
    """Return the pieces of bars from left to right: name, key of the colour, and ns in each bar."""
    names = classes(all_parts)
    class_pieces = [(class_label(name), name, [parts.classes.get(name, 0.0) for parts in all_parts]) for name in names]
    left = [parts.ns[StepPart.COMPUTE] - sum(parts.classes.get(name, 0.0) for name in names) for parts in all_parts]
    class_pieces.append(("other kernels" if names else "compute", "rest", left))
    others = ((part, name) for part, name in PART_NAMES.items() if part is not StepPart.COMPUTE)
    return [
        *class_pieces,
        *((name, f"step_{part.value}", [parts.ns[part] for parts in all_parts]) for part, name in others),
    ]


def bar_series(all_parts: Sequence[StepParts]) -> tuple[doc.Series, ...]:
    """Return the pieces of a bar for each of ``all_parts`` that are large enough to see."""
    return tuple(
        doc.Series(name, key, tuple(doc.Mark(i, ns) for i, ns in enumerate(values)))
        for name, key, values in pieces(all_parts)
        if any(parts.share(ns) >= LEAST_SHOWN for parts, ns in zip(all_parts, values, strict=True))
    )


# --- sentences -------------------------------------------------------------------------------------------------------


def waiting(case_steps: CaseSteps, is_named: bool = False) -> tuple[str, doc.Text]:
    """Return which rank others wait for and why, and the share of the step; empty where waiting does not lead.

    ``is_named``: another sentence says what that rank does.
    """
    parts = case_steps.parts_without_profiler
    if parts is None or not parts.waiting_ns:
        return "", ""
    share = parts.share(parts.waiting_ns)
    if case_steps.transfer_ns is not None or share < _LEADING_WAIT or parts.waiting_ns <= parts.transfer_ns:
        return "", ""
    steady, most = case_steps.count(StepState.STEADY)[0], max(case_steps.ranks, key=lambda rank: rank.waited_for)
    cause, does = _WHY_WAITING[case_steps.wait_cause]
    does = "is late" if is_named and case_steps.wait_cause is None else does
    if most.waited_for >= _MOSTLY * steady:
        who = rank_name(case_steps, most)
    else:
        late = sum(rank.waited_for for rank in case_steps.ranks)
        which = "each step" if late == steady else f"{late} of {steady} steps"
        who = f"in {which} one {peers(case_steps).removesuffix('s')}"
    return f"{cause}{who} {does} and {wait(case_steps)}", percent(share)


def waiting_name(case_steps: CaseSteps) -> str:
    """Return what waiting is called. SendRecv waits for its peer, between stages of a pipeline for most of the time."""
    if case_steps.transfer_ns is not None:
        return "waiting in SendRecv (the bubble of a pipeline, or a late peer)"
    return f"waiting for other {peers(case_steps)}"


def wait(case_steps: CaseSteps) -> str:
    return "the other waits" if len(case_steps.ranks) == 2 else "the others wait"


def rank_name(case_steps: CaseSteps, rank: RankSteps | StepOutlier) -> str:
    """Return ``rank 1``, ``GPU 1`` of the only process, or both."""
    if rank.device is None:
        return f"rank {rank.rank}"
    return f"GPU {rank.device}" if case_steps.processes == 1 else f"rank {rank.rank} GPU {rank.device}"


def other_step(workload: WorkloadFindings, case: CaseResult, case_steps: CaseSteps) -> doc.Text:
    """Return the step that shares are of, where it is not the one whose time is named; empty where it is.

    The time may be one without a profiler, and of other steps, if what the profiler adds is unknown or in no part.
    """
    parts, source = case_steps.parts_without_profiler, workload.time_source
    if parts is None or source is None or source.quantity != "step" or case.time is None:
        return ""
    if source.profiler == case_steps.profiler or abs(parts.wall_ns / case.time.ns - 1) <= _LEAST_OVERHEAD:
        return ""
    under = (
        f"under {case_steps.profiler}"
        if parts is case_steps.parts
        else f"without the overhead of {case_steps.profiler}"
    )
    return fill(f"the {{}} of a mean step {under}", duration(parts.wall_ns, step_unit([parts.wall_ns])))


def remarks(workload: WorkloadFindings, case: CaseResult) -> Iterator[doc.Text]:
    """Yield where a step of ``case`` goes, the largest part first, and what could be gained; nothing where unknown."""
    case_steps = workload.steps.of(case.id)
    if case_steps is None or (parts := case_steps.parts_without_profiler) is None:
        return
    cause = max(IDLE_PARTS, key=lambda part: parts.ns[part])
    # The causes have their sentences. Without a GPU idle time is all that is outside operators and collectives.
    named_ns = sum(wait.idle_ns for wait in find_waits(workload, case_steps))
    are_named = case_steps.is_on_gpu and case_steps.processes < 2 and 2 * named_ns >= parts.idle_ns > 0
    hides_idle = are_named or case_steps.has_unplaced_overhead
    is_said = case_steps.is_on_gpu and not hides_idle and parts.share(parts.ns[cause]) >= _LEAST_SHARE
    how = "mostly" if 2 * parts.ns[cause] >= parts.idle_ns else "partly"
    why = f"{how} {WHY_IDLE[cause]}"
    if cause is StepPart.IDLE_OTHER:
        why = WHY_IDLE[cause] if parts.ns[cause] >= _MOSTLY * parts.idle_ns else f"{how} of unknown cause"
    why = f" ({why})" if is_said else ""
    shares = {"compute": parts.ns[StepPart.COMPUTE]}
    if parts.waiting_ns is None:
        shares[PART_NAMES[StepPart.COMMUNICATION]] = parts.ns[StepPart.COMMUNICATION]
    else:
        shares |= {"exposed transfer": parts.transfer_ns, waiting_name(case_steps): parts.waiting_ns}
    shares |= {PART_NAMES[StepPart.COPY]: parts.ns[StepPart.COPY], f"idle{why}": parts.idle_ns}
    shown = sorted((pair for pair in shares.items() if parts.share(pair[1]) >= LEAST_SHOWN), key=lambda pair: -pair[1])
    other = other_step(workload, case, case_steps)
    named = [
        fill(f"{{}} {'' if i or not other else 'is '}{name}", percent(parts.share(ns)))
        for i, (name, ns) in enumerate(shown)
    ]
    rows = [row for row in _improvements([(case_steps, parts)]) if not (hides_idle and row.improvement[:4] == "idle")]
    speedups = sorted(
        ((row.gain(case_steps, parts) or 0.0, row.improvement) for row in rows), key=lambda pair: -pair[0]
    )
    largest = [pair for pair in speedups[:_MOST_GAINS] if pair[0] >= _LEAST_SPEEDUP]
    most = doc.join([fill(f"{name} {{}}", ratio(value)) for value, name in largest], last=", ")
    is_slowed = case_steps.overheads.get(case_steps.profiler, 0.0) >= _LEAST_OVERHEAD and parts is not case_steps.parts
    who = f"Without the overhead of {case_steps.profiler} a step" if is_slowed else "A step"
    begin = fill("Of {}{}, " if other else f"{who}{{}}{{}} is ", other, _name_case(workload, case))
    yield fill("{}{}.", begin, doc.join(named))
    if largest:
        yield fill(f"At most to gain{' on the GPU' * are_named}: {{}}.", most)


def _name_case(workload: WorkloadFindings, case: CaseResult) -> doc.Text:
    return fill(" of {}", case_text(case)) if len(workload.cases) > 1 else ""


#: Steps by pattern are doubted where the GPU is idle in outliers for more than this share of their time. An evaluation,
#: which makes a long step too, keeps it busy.
_MOST_PAUSES = 0.5


def _pauses(case_steps: CaseSteps) -> float:
    """Return the share of the time of the steps of all ranks in which the GPU is idle in an outlier."""
    rows = case_steps.rows[
        case_steps.rows[COLUMNS].notna().all(axis=1) & (case_steps.rows["state"] != StepState.OTHER.value)
    ]
    paused = rows.loc[rows["state"] == StepState.OUTLIER.value, "idle_ns"].sum()
    return float(paused / total) if (total := rows["wall_ns"].sum()) else 0.0


def _condition(profiler: str) -> str:
    return "no profiler" if profiler == "plain" else profiler


def warnings(workload: WorkloadFindings) -> Iterator[tuple[str, doc.Text]]:
    """Yield the cases without steps beside others, and those in which ranges and launches give different numbers.

    Each has a word for programs.
    """
    if workload.steps and (without := workload.steps.without_steps):
        labels = {case.id: case_text(case) for case in workload.cases}
        named = doc.join([labels.get(case, case) for case in without], most=_NAMED)
        number = f"{len(without)} of {count_cases(len(workload.cases))}"
        what = f"No steps were found in {number}, which the tables of steps and kernels leave out: {{}}."
        yield "without_steps", fill(what, named)
    for case in workload.cases:
        if case_steps := workload.steps.of(case.id):
            yield from _warnings_of_case(case_steps, _name_case(workload, case), case_text(case), workload.name)


def _warnings_of_case(
    case_steps: CaseSteps, of_case: doc.Text, name: doc.Text, workload: str
) -> Iterator[tuple[str, doc.Text]]:
    # Where plain timed even steps, their time is the median.
    if case_steps.uneven and ("plain" in case_steps.uneven or "plain" not in case_steps.times):
        profiler = next(iter(case_steps.uneven))
        walls = case_steps.steady_walls(profiler)
        unit = step_unit([walls.median(), walls.max()])
        spreads = [
            fill(f"{{}} ({_condition(profiler_name)})", percent(spread))
            for profiler_name, spread in case_steps.uneven.items()
        ]
        yield (
            "uneven",
            fill(
                "Steps of {} are uneven, so their time is the mean and not the median. Half of them take up to {};"
                f" the longest steady step, {walls.idxmax()}, takes {{}} ({_condition(profiler)})."
                " Their spread is {} of the median.",
                name if of_case else doc.Code(workload),
                doc.Amount(walls.median(), unit),
                doc.Amount(walls.max(), unit),
                doc.join(spreads),
            ),
        )
    if case_steps.rule is StepRule.PATTERN and (share := _pauses(case_steps)) > _MOST_PAUSES:
        yield (
            "outliers",
            fill(
                "The GPU is idle in outliers for {} of the time of all steps{}, so the time of a step may be that of a"
                " part, such as a layer. Open a range in each step, and name it with --step-range.",
                percent(share),
                of_case,
            ),
        )
    if case_steps.pattern_count is not None and case_steps.pattern_count != case_steps.steps:
        yield (
            "step_rule",
            fill(
                f"The steps{{}} begin {_RULES[case_steps.rule]}: {case_steps.steps}."
                f" Its launches recur {case_steps.pattern_count} times."
                " Check that a step is what you mean.",
                of_case,
            ),
        )


# --- copies, and the steps that were found ---------------------------------------------------------------------------


def copies(cases: Sequence[_Case]) -> doc.TableBlock:
    """Return the copies and sets of a step by direction, with their bandwidth.

    Those of less than every second step and 0.1 % of its time are left out.
    """
    shown = [
        (case_text(case), {name: copy for name, copy in case_steps.copies.items()
                           if copy.calls >= 0.5 or parts.share(copy.ns) >= 0.001})
        for case, case_steps, parts in cases
    ]  # fmt: skip
    return copy_table(shown, "copies and sets of a step")


def copy_table(cases: Sequence[tuple[doc.Text, Mapping[str, ClassTotal]]], title: str) -> doc.TableBlock:
    """Return a row per direction of the copies of each case, which stands beside its label."""
    rows = [
        (label if i == 0 else "", *copy) for label, case_copies in cases for i, copy in enumerate(case_copies.items())
    ]
    columns = [
        (doc.label("case"), lambda row: row[0]),
        # ``Host-to-Device`` from ``[CUDA memcpy Host-to-Device]``.
        (doc.label("direction", title),
         lambda row: row[1].strip("[]").removeprefix("CUDA memcpy ").removeprefix("CUDA ")),
        (doc.count("calls", "number"), lambda row: row[2].calls),
        (doc.number("ns", "time", time_unit(copy.ns for *_, copy in rows)), lambda row: row[2].ns),
        (doc.number("bytes", "size", size_unit(copy.bytes for *_, copy in rows)), lambda row: row[2].bytes or ""),
        (doc.number("bandwidth", "", Unit("GB/s", 1e9)), lambda row: row[2].bytes_per_s or ""),
    ]  # fmt: skip
    return doc.table_of("copies", rows, columns[len(cases) < 2 :])


def found_steps(cases: Sequence[_Case]) -> doc.TableBlock:
    """Return how many steps a rank of each case has, by state, and the rule that found them; empty for one case."""
    rare = (StepState.UNMATCHED, StepState.LAST)
    states = [
        state for state in _FOUND if state not in rare or any(case_steps.count(state)[1] for _, case_steps, _ in cases)
    ]
    columns = [doc.label("case"), *(doc.words(state.value, _FOUND[state]) for state in states)]
    columns += [doc.percent("coverage", "of the kernel time"), doc.label("rule", "a step begins")]
    rows = [
        [
            case_text(case),
            *(span(case_steps.count(state)) for state in states),
            case_steps.coverage,
            _RULES[case_steps.rule],
        ]
        for case, case_steps, _ in cases
        if len(cases) > 1
    ]
    return doc.make_table("found", columns, rows, "Steps of each case and rank", doc.OnPage.DETAILS)
