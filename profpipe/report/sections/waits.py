"""Why the GPU waits for the host: causes with their lines, what could be gained, and what to do."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from profpipe.analysis.findings import CaseResult, WorkloadFindings
from profpipe.analysis.grouping import grouped
from profpipe.analysis.steps import CaseSteps, StepPart
from profpipe.analysis.waits import Wait, find_loading, find_waits, join_waits
from profpipe.report import document as doc
from profpipe.report.labels import capitalise, case_text, duration, fill, percent
from profpipe.report.sections.steps import rank_name
from profpipe.report.units import Unit, step_unit
from profpipe.results.schema import (
    COLLECTIVE,
    HOST_CODE,
    LAUNCHING,
    OPERATORS,
    PATH_SEPARATOR,
    SYNCHRONISING,
    WAIT_LOADING,
    StepState,
)

#: A cause has a sentence from this share of a step on, and is in the headline from this one on; so many have one.
_LEAST_SHARE, _LEADING_SHARE, _MOST_SENTENCES = 0.03, 0.1, 3
#: The steps that a profiler records may take shorter or longer than the mean, by this share of them.
_OTHER_STEPS = 0.1
#: A larger gain is none that a step can have.
_MOST_GAIN = 20.0
#: Rows of the table, and lines of a cause in a sentence and in a row. Below this share of a step a cause has no row.
_MOST_ROWS, _MOST_PLACES, _LEAST_ROW = 10, 2, 0.002
#: Share of a cause from which on a line is named with it, and that of a line which is said to be all of it.
_LEAST_PLACE, _NEARLY_ALL = 0.05, 0.9

#: What a cause is in a sentence, and what to do about it.
_NAMES: Mapping[str, str] = {
    SYNCHRONISING: "calls that wait for the GPU",
    LAUNCHING: "launches",
    HOST_CODE: "host code",
    "DataLoader": "the DataLoader",
    "garbage collection": "the garbage collection",
    "compilation": "a compilation",
    "checkpoint": "a checkpoint",
    OPERATORS: "operators",
    COLLECTIVE: "communication",
    "memory allocation": "memory allocations",
    "graph capture": "a graph capture",
    "module loading": "the loading of kernels",
    "operating system": "the operating system",
    "MPI": "MPI",
}
_DEEDS: Mapping[str, str] = {
    "DataLoader": "Load ahead: set num_workers (up to the free cores) and persistent_workers, or make items cheaper.",
    SYNCHRONISING: "Read results less often: keep .item(), .cpu(), print and nonzero out of the loop.",
    LAUNCHING: "Launch less: torch.compile, CUDA graphs, or fewer and larger operators.",
    HOST_CODE: (
        "Move work out of the step or to another process, or use a cheaper operator. If the line waits, start what it"
        " waits for sooner."
    ),
    "garbage collection": (
        "Keep gc.collect() out of the loop, call gc.freeze() after the set-up, or gc.disable() and collect seldom."
    ),
    "compilation": "Keep shapes constant or mark them dynamic. TORCH_LOGS=recompiles names the reason.",
    "checkpoint": "Save less often, or asynchronously (torch.distributed.checkpoint.async_save).",
    "memory allocation": "Keep the memory: allocate before the loop, or from a pool.",
    "graph capture": "Capture a graph once, before the loop.",
    "module loading": "Load kernels before the loop, in a warm-up or with CUDA_MODULE_LOADING=EAGER.",
    "operating system": "Read files and wait for other threads outside the step, or ahead of it.",
    "MPI": "Send while the GPU works.",
}
#: What to do about host code of a library. A new shape makes libraries choose kernels, and compilers compile, anew.
_IN_LIBRARY: Final = "It is in a library: call it less often, with shapes that recur, or with another backend."
#: What records the causes that a recording of a profiler lacks.
_RECORD: Mapping[str, doc.Text] = {
    "torch": fill("torch.profiler records the lines with {}.", doc.Code("with_stack=True")),
    "nsys": fill(
        "{} records ranges and calls of the operating system, {} the lines of a program in Python.",
        doc.Code("nsys profile --trace=cuda,nvtx,osrt"),
        doc.Code("profpipe run"),
    ),
}


def _list(workload: WorkloadFindings, case: CaseResult) -> tuple[CaseSteps, tuple[Wait, ...], float] | None:
    """Return the steps of a case, the causes and ns of the step that they divide; None where none is recorded."""
    case_steps = workload.steps.of(case.id)
    waits = find_waits(workload, case_steps) if case_steps else ()
    if case_steps is None or not waits:
        return None
    parts = case_steps.parts_without_profiler
    return case_steps, waits, parts.wall_ns if parts and case_steps.is_on_gpu else sum(wait.idle_ns for wait in waits)


def _list_certain(workload: WorkloadFindings, case: CaseResult) -> tuple[CaseSteps, tuple[Wait, ...], float] | None:
    """Return what `_list` returns. On a CPU leave out host code of which half may be the profiler's.

    The profiler works between two operators, so a line without operators keeps its host code.
    """
    listed = _list(workload, case)
    if listed is None or listed[0].is_on_gpu or case.time is None:
        return listed
    case_steps, waits, step_ns = listed
    code_ns = sum(wait.idle_ns for wait in waits if wait.name == HOST_CODE)
    if 2 * (step_ns - case.time.ns) >= code_ns:
        lines = {"", *(place for wait in waits if wait.name == OPERATORS for place, _ in wait.places)}
        waits = tuple(wait for wait in waits if wait.name != HOST_CODE or _line(wait) not in lines)
    return (case_steps, waits, step_ns) if waits else None


def _name(wait: Wait) -> doc.Text:
    """Return ``the garbage collection (generation 2; train.py:41)``."""
    chosen, how = _choose_places(wait)
    places: list[doc.Text] = [doc.Code(place) for place, _ in chosen]
    if places and sum(ns for _, ns in chosen) <= _NEARLY_ALL * max(wait.idle_ns, wait.hidden_ns):
        places[0] = fill(f"{how} {{}}", places[0])
    what = _NAMES.get(wait.name, wait.name)
    about = [wait.detail, *places] if wait.detail else places
    return fill("{} ({})", what, doc.join(about, last=", ")) if about else what


def headline(workload: WorkloadFindings, case: CaseResult) -> doc.Text:
    """Return the sentence on the largest cause; empty where it is a small part of the step."""
    listed = _list_certain(workload, case)
    if listed is None or listed[0].has_unplaced_overhead:
        return ""
    case_steps, waits, step_ns = listed
    if slowest := slowest_rank(workload, case_steps):
        return slowest
    leading = [wait for wait in waits[:2] if wait.idle_ns >= _LEADING_SHARE * step_ns]
    loading = find_loading(workload, case_steps, waits)
    if loading and loading[0].idle_ns / loading[1] >= max(_LEADING_SHARE, waits[0].idle_ns / step_ns):
        wait, whole_ns = loading
        return fill("For {} of it the GPU waits for {}.", duration(wait.idle_ns, step_unit([whole_ns])), _name(wait))
    if not leading:
        return ""
    recorded = duration(step_ns, step_unit([step_ns]))
    if not case_steps.is_on_gpu:
        # The time of the headline is without a profiler.
        parts = [fill("{} in {}", percent(wait.idle_ns / step_ns), _name(wait)) for wait in leading]
        step = "a step" if _is_alike(case, step_ns) else fill("a recorded step of {}", recorded)
        return fill("Under the profiler {} spends {}.", step, doc.join(parts))
    of = "of it" if _is_alike(case, step_ns) else fill("of the {} of a recorded step", recorded)
    idle = duration(waits[0].idle_ns, step_unit([step_ns]))
    return fill("For {} {} the GPU waits for {}.", idle, of, _name(waits[0]))


def _is_alike(case: CaseResult, recorded_ns: float) -> bool:
    """Return whether a recorded step takes about as long as the step of the headline."""
    return case.time is None or abs(case.time.ns - recorded_ns) <= _OTHER_STEPS * recorded_ns


def explain_idle(workload: WorkloadFindings, case: CaseResult, idle_ns: float) -> doc.Text:
    """Return the largest cause with its lines; empty where it is less than half of ``idle_ns``."""
    _, causes, _ = _list(workload, case) or (None, (), 0.0)
    by_cause = grouped((wait.cause, wait) for wait in causes)
    largest = max(map(join_waits, by_cause.values()), key=lambda wait: wait.idle_ns, default=None)
    return _name(largest) if largest and 2 * largest.idle_ns >= idle_ns else ""


def remarks(workload: WorkloadFindings, case: CaseResult) -> Iterator[doc.Text]:
    """Yield the largest causes with what one could gain and what to do, and what would record others."""
    listed = _list_certain(workload, case)
    if listed is not None and listed[0].has_unplaced_overhead:
        return
    if listed is not None:
        # On a CPU the host code holds what the profiler adds.
        has_gain = listed[0].processes < 2 and (listed[0].is_on_gpu or _is_alike(case, listed[2]))
        yield from _describe_largest(*listed, find_loading(workload, *listed[:2]), has_gain)
    else:
        yield from _name_loading(workload, case)
    yield from _name_option(workload, case, listed[1] if listed else ())


def _name_loading(workload: WorkloadFindings, case: CaseResult) -> Iterator[doc.Text]:
    """Yield the wait for the data loader where only plain ran, which does not see what the GPU does meanwhile."""
    loading = workload.recorded.step_numbers.get((case.id, "plain"), {}).get(WAIT_LOADING, {}).get("")
    if loading and case.time and loading.value >= _LEADING_SHARE * case.time.ns:
        wait = "The host waits {} of a step for the DataLoader. {} The profiler torch shows whether a GPU waits too."
        yield fill(wait, duration(loading.value, step_unit([case.time.ns])), _DEEDS["DataLoader"])


def _describe_largest(
    case_steps: CaseSteps,
    waits: tuple[Wait, ...],
    recorded_ns: float,
    loading: tuple[Wait, float] | None,
    has_gain: bool,
) -> Iterator[doc.Text]:
    of_steps = [loading if loading and wait.name == loading[0].name else (wait, recorded_ns) for wait in waits]
    of_steps.sort(key=lambda pair: -pair[0].idle_ns / pair[1])
    large = [(wait, ns) for wait, ns in of_steps if wait.idle_ns >= _LEAST_SHARE * ns and wait.name in _DEEDS]
    unit = step_unit([recorded_ns])
    one = "an iteration" if case_steps.part_ns else "a step"
    # The wait for the data loader is that of a step without a profiler, and others are of the recorded one.
    is_other = loading is not None and round(loading[1]) != round(recorded_ns)
    whole: doc.Text = f"a recorded {one.partition(' ')[2]}" if is_other else one
    whole = f"{one}, the mean of {case_steps.processes} ranks" if case_steps.processes > 1 else whole
    step = one if case_steps.is_on_gpu else "that step"
    if not case_steps.is_on_gpu:
        # The headline has the time of a step without a profiler, which may be shorter.
        whole = fill("the {} of a step under the profiler", duration(recorded_ns, unit))
    operators_ns = {place: ns for wait in waits if wait.name == OPERATORS for place, ns in wait.places}
    advised: set[str] = set()
    for wait, step_ns in large[:_MOST_SENTENCES]:
        name, advice = _NAMES[wait.name], _DEEDS[wait.name]
        # A line of the program, and that of a library: ``train.py:6 > transformers/modeling.py:158``.
        if re.search(rf":\d+{PATH_SEPARATOR}", _line(wait)):
            advice = _IN_LIBRARY
        if wait.name == HOST_CODE and operators_ns.get(_line(wait), 0.0) > wait.idle_ns:
            # PyTorch and its profiler work between two operators, of which the line has many.
            name, advice = "host code between operators", "Use fewer and larger operators, or torch.compile."
        # Several lines of host code have one advice.
        deed = "" if advice in advised else f" {advice}"
        advised.add(advice)
        without = "Without them" if wait.name in (LAUNCHING, SYNCHRONISING, "memory allocation") else "Without it"
        gain = step_ns / max(step_ns - wait.idle_ns, 1.0)
        yield fill(
            f"{{}}{{}}{{}}: {{}} of {{}}{{}}.{{}}{deed}",
            capitalise(name.removeprefix("the ").removeprefix("a ")),
            # The name of a call, no count of workers.
            fill(" ({})", doc.Code(wait.detail)) if wait.detail.isidentifier() else "",
            _write_places(wait, unit),
            duration(wait.idle_ns, unit),
            whole if loading is None or wait is not loading[0] else f"{one} without a profiler",
            f" for {case_steps.kernels:,.0f} kernels" if wait.name == LAUNCHING and case_steps.kernels > 0 else "",
            # Without a cause that is nearly the whole step, another one is the step. Of several ranks the causes are
            # means, and some wait for those of another one.
            f" {without} {step} would be {gain:.2f} times as fast, the rest unchanged."
            if gain < _MOST_GAIN and has_gain
            else "",
        )


def _write_places(wait: Wait, unit: Unit) -> doc.Text:
    chosen, how = _choose_places(wait)
    if len(wait.places) == 1 and chosen and chosen[0][1] > _NEARLY_ALL * max(wait.idle_ns, wait.hidden_ns):
        return fill(" at {}", doc.Code(chosen[0][0]))
    places = [fill("{} ({})", doc.Code(place), duration(ns, unit)) for place, ns in chosen]
    return fill(f", {how} at {{}}", doc.join(places)) if places else ""


def _choose_places(wait: Wait) -> tuple[list[tuple[str, float]], str]:
    """Return the places with the most time, of those with a share of it that matters, and ``mostly`` or ``partly``."""
    total_ns = max(wait.idle_ns, wait.hidden_ns)
    chosen = [(place, ns) for place, ns in wait.places[:_MOST_PLACES] if ns >= _LEAST_PLACE * total_ns]
    return chosen, "mostly" if 2 * sum(ns for _, ns in chosen) >= total_ns else "partly"


def _name_option(workload: WorkloadFindings, case: CaseResult, waits: tuple[Wait, ...]) -> Iterator[doc.Text]:
    """Yield what would record the causes where a recording of somebody else lacks them for a large part of a step."""
    case_steps = workload.steps.of(case.id)
    parts = case_steps.parts_without_profiler if case_steps else None
    if workload.declared is not None or case_steps is None or case_steps.profiler not in _RECORD:
        return
    step_ns = parts.wall_ns if parts else sum(wait.idle_ns for wait in waits)
    unknown_ns = sum(wait.idle_ns for wait in waits if wait.name == HOST_CODE and not wait.places)
    if parts and not waits:
        unknown_ns = parts.ns[StepPart.IDLE_LAUNCH] + parts.ns[StepPart.IDLE_BLOCKED]
    if step_ns and unknown_ns >= _LEADING_SHARE * step_ns:
        meanwhile = " while the GPU waited" if parts else ""
        did = f"The recording does not say what the host did in {{}} of a step{meanwhile}. {{}}"
        yield fill(did, duration(unknown_ns, step_unit([step_ns])), _RECORD[case_steps.profiler])


def slowest_rank(workload: WorkloadFindings, case_steps: CaseSteps) -> doc.Text:
    """Return what the rank that is the slowest in most of the steps does for longer than the fastest one."""
    if case_steps.processes == 1:
        return ""
    late = max(case_steps.ranks, key=lambda rank: rank.slowest_in)
    early = min(case_steps.ranks, key=lambda rank: rank.slowest_in)
    if 2 * late.slowest_in <= case_steps.count(StepState.STEADY)[0] or late.device is not None:
        return ""
    # Several lines of host code are a cause each.
    early_ns = {(wait.cause, _line(wait)): wait.idle_ns for wait in find_waits(workload, case_steps, early)}
    longer = [
        (wait.idle_ns - early_ns.get((wait.cause, _line(wait)), 0.0), wait)
        for wait in find_waits(workload, case_steps, late)
        if wait.name != OPERATORS
    ]
    more_ns, wait = max(longer, key=lambda pair: pair[0], default=(0.0, None))
    # A profiler slows the ranks by different amounts.
    added = case_steps.overheads.get(case_steps.profiler, 0.0)
    if wait is None or more_ns < late.time.ns * max(_LEAST_SHARE, added / (1 + added)):
        return ""
    unit, other = step_unit([late.time.ns]), rank_name(case_steps, early)
    if case_steps.is_on_gpu:
        begin = f"Under {case_steps.profiler} the" if added else "The"
        template = f"{begin} GPU of {{}} waits {{}} of a step for {{}}, that of {other} waits {{}}."
    else:
        template = f"{{}} spends {{}} of a step in {{}}, {other} spends {{}}."
    of_early = duration(early_ns.get((wait.cause, _line(wait)), 0.0), unit)
    who = rank_name(case_steps, late) if case_steps.is_on_gpu else capitalise(rank_name(case_steps, late))
    return fill(template, who, duration(wait.idle_ns, unit), _name(wait), of_early)


def _line(wait: Wait) -> str:
    return wait.places[0][0] if wait.name == HOST_CODE and wait.places else ""


def waits(workload: WorkloadFindings) -> doc.Section:
    """Return the causes of each case: where the GPU waits for the host, and what waits are hidden behind its work."""
    rows = []
    for case in workload.cases:
        if listed := _list(workload, case):
            _, found, step_ns = listed
            shown = [wait for wait in found if max(wait.idle_ns, wait.hidden_ns) >= _LEAST_ROW * step_ns]
            rows += [(case, wait, step_ns, i == 0) for i, wait in enumerate(shown[:_MOST_ROWS])]
    is_on_gpu = any(case_steps.is_on_gpu for case_steps in workload.steps.cases)
    unit = step_unit(step_ns for _, _, step_ns, _ in rows)
    columns = [
        (doc.label("case"), lambda row: case_text(row[0]) if row[3] else ""),
        (doc.label("cause"), lambda row: row[1].cause),
        (
            doc.words("places", "lines"),
            lambda row: doc.join([doc.Code(place) for place, _ in _choose_places(row[1])[0]], last=", "),
        ),
        (doc.number("idle", "idle" if is_on_gpu else "time", unit), lambda row: row[1].idle_ns),
        (doc.percent("share", "of a step"), lambda row: row[1].idle_ns / row[2]),
        (doc.number("hidden", "hidden", unit), lambda row: row[1].hidden_ns or ""),
    ]
    table = doc.table_of("waits", rows, columns[len(workload.cases) < 2 :])
    title = "Why the GPU waits for the host" if is_on_gpu else "What a step does"
    note = _NOTE if is_on_gpu else _NOTE_OF_CPU
    if workload.declared is None:
        note = f"{note.partition(' Lines are')[0]} {_NOTE_OF_RECORDING}"
    return doc.make_section("waits", title, [table], note, workload.name)


_NOTE = (
    "The causes divide the time in which the GPU is idle because the next launch comes late. The profiler's own"
    " overhead is subtracted from launching and host code first. Hidden: the GPU had work meanwhile, so a step gains"
    " nothing without that wait. Lines are of the program and the libraries that it calls, by samples of its Python"
    ' stacks 200 times a second. A file, or "other lines", holds lines with few samples. Launching: gaps below 0.3 ms.'
)
_NOTE_OF_CPU = (
    "The causes divide a mean steady step under the profiler, which may take longer than one without it. Lines are of"
    " the program and the libraries that it calls, by samples of its Python stacks 200 times a second. A file, or"
    ' "other lines", holds lines with few samples.'
)
_NOTE_OF_RECORDING = (
    "Lines are what the recording has of the launching thread, the inner one of these: functions of Python with their"
    " first line; else ranges, operators, and functions in samples of the CPU. Launching: gaps below 0.3 ms."
)
