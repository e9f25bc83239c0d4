"""Why the GPU waits for the host: causes with their lines, what could be gained, and what to do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from profpipe.analysis.findings import CaseResult, WorkloadFindings
from profpipe.analysis.steps import CaseSteps
from profpipe.analysis.waits import Wait, find_waits
from profpipe.report import document as doc
from profpipe.report.labels import capitalise, case_text, duration, fill, percent
from profpipe.report.sections.steps import rank_name
from profpipe.report.units import Unit, step_unit
from profpipe.results.schema import COLLECTIVE, HOST_CODE, LAUNCHING, OPERATORS, SYNCHRONISING, StepState

#: A cause has a sentence from this share of a step on, and is in the headline from this one on; so many have one.
_LEAST_SHARE, _LEADING_SHARE, _MOST_SENTENCES = 0.03, 0.1, 3
#: A larger gain is none that a step can have.
_MOST_GAIN = 20.0
#: Rows of the table, and lines of a cause in a sentence and in a row. Below this share of a step a cause has no row.
_MOST_ROWS, _MOST_PLACES, _LEAST_ROW = 10, 2, 0.002

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
}
_DEEDS: Mapping[str, str] = {
    "DataLoader": "Load ahead: more workers (num_workers, persistent_workers=True), pinned memory, or cheaper items.",
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
}


def _list(workload: WorkloadFindings, case: CaseResult) -> tuple[CaseSteps, tuple[Wait, ...], float] | None:
    """Return the steps of a case, the causes and ns of the step that they divide; None where none is recorded."""
    case_steps = workload.steps.of(case.id)
    waits = find_waits(workload, case_steps) if case_steps else ()
    if case_steps is None or not waits:
        return None
    parts = case_steps.parts_without_profiler
    return case_steps, waits, parts.wall_ns if parts and case_steps.is_on_gpu else sum(wait.idle_ns for wait in waits)


def _name(wait: Wait) -> doc.Text:
    """Return ``the garbage collection (generation 2; train.py:41)``."""
    places: list[doc.Text] = [doc.Code(place) for place, _ in wait.places[:_MOST_PLACES]]
    if len(wait.places) > _MOST_PLACES:
        places[0] = fill("mostly {}", places[0])
    what = _NAMES.get(wait.name, wait.name)
    about = [wait.detail, *places] if wait.detail else places
    return fill("{} ({})", what, doc.join(about, last=", ")) if about else what


def headline(workload: WorkloadFindings, case: CaseResult) -> doc.Text:
    """Return the sentence on the largest cause; empty where it is a small part of the step."""
    listed = _list(workload, case)
    if listed is None:
        return ""
    case_steps, waits, step_ns = listed
    if slowest := slowest_rank(workload, case_steps):
        return slowest
    leading = [wait for wait in waits[:2] if wait.idle_ns >= _LEADING_SHARE * step_ns]
    if not leading:
        return ""
    if not case_steps.is_on_gpu:
        # The time of the headline is without a profiler.
        parts = [fill("{} in {}", percent(wait.idle_ns / step_ns), _name(wait)) for wait in leading]
        return fill("Under the profiler a step spends {}.", doc.join(parts))
    return fill("For {} of it the GPU waits for {}.", duration(waits[0].idle_ns, step_unit([step_ns])), _name(waits[0]))


def remarks(workload: WorkloadFindings, case: CaseResult) -> Iterator[doc.Text]:
    """Yield the largest causes, each with what could be gained at most and what to do."""
    listed = _list(workload, case)
    if listed is None:
        return
    case_steps, waits, step_ns = listed
    large = [wait for wait in waits if wait.idle_ns >= _LEAST_SHARE * step_ns and wait.name in _DEEDS]
    unit = step_unit([step_ns])
    whole: doc.Text = "a step"
    step = "a step" if case_steps.is_on_gpu else "that step"
    if not case_steps.is_on_gpu:
        # The headline has the time of a step without a profiler, which may be shorter.
        whole = fill("the {} of a step under the profiler", duration(step_ns, unit))
    operators_ns = {place: ns for wait in waits if wait.name == OPERATORS for place, ns in wait.places}
    advised: set[str] = set()
    for wait in large[:_MOST_SENTENCES]:
        name, advice = _NAMES[wait.name], _DEEDS[wait.name]
        if wait.name == HOST_CODE and operators_ns.get(_line(wait), 0.0) > wait.idle_ns:
            # PyTorch and its profiler work between two operators, of which the line has many.
            name, advice = "host code between operators", "Use fewer and larger operators, or torch.compile."
        # Several lines of host code have one advice.
        deed = "" if advice in advised else f" {advice}"
        advised.add(advice)
        without = "Without them" if wait.name in (LAUNCHING, SYNCHRONISING) else "Without it"
        gain = step_ns / max(step_ns - wait.idle_ns, 1.0)
        yield fill(
            f"{{}}{{}}: {{}} of {{}}{{}}.{{}}{deed}",
            capitalise(name.removeprefix("the ").removeprefix("a ")),
            _write_places(wait, unit),
            duration(wait.idle_ns, unit),
            whole,
            _count_launches(case_steps) if wait.name == LAUNCHING else "",
            # Without a cause that is nearly the whole step, another one is the step.
            f" {without} {step} would be at most {gain:.2f} times as fast." if gain < _MOST_GAIN else "",
        )


def _count_launches(case_steps: CaseSteps) -> str:
    rows = case_steps.rows[case_steps.rows["state"] == StepState.STEADY.value]
    return f" for {float(rows['kernels'].mean()):,.0f} kernels" if rows["kernels"].notna().any() else ""


def _write_places(wait: Wait, unit: Unit) -> doc.Text:
    if len(wait.places) == 1:
        return fill(" at {}", doc.Code(wait.places[0][0]))
    places = [fill("{} ({})", doc.Code(place), duration(ns, unit)) for place, ns in wait.places[:_MOST_PLACES]]
    return fill(", mostly at {}", doc.join(places)) if places else ""


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
    if wait is None or more_ns < _LEAST_SHARE * late.time.ns:
        return ""
    unit = step_unit([late.time.ns])
    if case_steps.is_on_gpu:
        template = f"The GPU of {{}} waits {{}} of a step for {{}}, that of {rank_name(case_steps, early)} waits {{}}."
    else:
        template = f"{{}} spends {{}} of a step in {{}}, {rank_name(case_steps, early)} spends {{}}."
    name = rank_name(case_steps, late)
    of_early = duration(early_ns.get((wait.cause, _line(wait)), 0.0), unit)
    who = name if case_steps.is_on_gpu else capitalise(name)
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
        (doc.words("places", "lines"), lambda row: doc.join(map(doc.Code, _places(row[1])), last=", ")),
        (doc.number("idle", "idle" if is_on_gpu else "time", unit), lambda row: row[1].idle_ns),
        (doc.percent("share", "of a step"), lambda row: row[1].idle_ns / row[2]),
        (doc.number("hidden", "hidden", unit), lambda row: row[1].hidden_ns or ""),
    ]
    table = doc.table_of("waits", rows, columns[len(workload.cases) < 2 :])
    title = "Why the GPU waits for the host" if is_on_gpu else "What a step does"
    return doc.make_section("waits", title, [table], _NOTE if is_on_gpu else _NOTE_OF_CPU, workload.name)


def _places(wait: Wait) -> list[str]:
    return [place for place, _ in wait.places[:_MOST_PLACES]]


_NOTE = (
    "The causes divide the time in which the GPU is idle because the next launch comes late. The profiler's own"
    " overhead is subtracted from launching and host code first. Hidden: the GPU had work meanwhile, so a step gains"
    " nothing without that wait. Lines are of the program, by samples of its Python stacks 200 times a second."
    " Launching: gaps below 0.3 ms."
)
_NOTE_OF_CPU = (
    "The causes divide a mean steady step under the profiler, which may take longer than one without it. Lines are of"
    " the program, by samples of its Python stacks 200 times a second: a line of few samples is an estimate."
)
