"""The files of a process: those that it made, its output, and those of the start-up hook of a command."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import shutil
import statistics
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from profpipe import origins, ranges
from profpipe.config.settings import ChosenSteps
from profpipe.ingest.steps import accounting, calls
from profpipe.job import Command, Job
from profpipe.measure import event_lines
from profpipe.profilers import find_traits
from profpipe.results import atomic, raw_files, schema

#: Time, size and inode of a file. They change when the file is made again.
Stamp = tuple[int, int, int]

_KEY_BEGINS, _KEY_ENDS = re.compile("-----BEGIN [A-Z ]*PRIVATE KEY"), re.compile("-----END [A-Z ]*PRIVATE KEY")

#: How much of a process's output is read, from its end.
_LOG_TAIL_BYTES = 1 << 20
#: How much of it is published.
_PUBLIC_BYTES = 1 << 14


def stamp_files(command: Command, job: Job) -> dict[Path, Stamp | None]:
    """Return the files that ``command`` is to make, with their present state."""
    matching = job.folder.rglob(command.makes_like) if command.makes_like else ()
    return {path: stamp_of(path) for path in (*command.makes, *matching)}


def find_missing(
    command: Command, job: Job, before: Mapping[Path, Stamp | None] = MappingProxyType({})
) -> tuple[str, ...]:
    """Return the names of the files that the command did not make: absent ones, or unchanged since ``before``."""
    new = {path for path, stamp in stamp_files(command, job).items() if stamp and stamp != before.get(path)}
    names = [path.name for path in command.makes if path not in new]
    if command.makes_like and len(new - set(command.makes)) < command.makes_count:
        names.append(command.makes_like)
    return tuple(names)


def stamp_of(path: Path) -> Stamp | None:
    """Return None for an empty or absent file or folder.

    No clock is compared with a file's time: file systems round their times, and a file server has another clock.
    """
    try:
        stat = path.stat()
        is_empty = not any(path.iterdir()) if path.is_dir() else not stat.st_size
    except OSError:
        return None
    return None if is_empty else (stat.st_mtime_ns, stat.st_size, stat.st_ino)


def stamp_collected(job: Job) -> dict[Path, Stamp | None]:
    """Return the traces of ``collect:`` that are there before the command starts, with their state."""
    return {path: stamp_of(path) for path in _find_collected(job)}


def collect(job: Job, before: Mapping[Path, Stamp | None]) -> None:
    """Copy the traces that the command wrote since ``before`` into the folder of ``job``. They stay where they are."""
    written = [path for path in _find_collected(job) if stamp_of(path) != before.get(path)]
    for number, path in enumerate(written, start=1):
        shutil.copy2(path, job.folder / f"{job.stem}.collected.{number}.{path.name}")


def _find_collected(job: Job) -> Iterator[Path]:
    pattern = job.settings.collect
    if not pattern or job.script is not None or job.profiler != "torch":
        return
    root = Path(Path(pattern).anchor or job.launch.cwd)
    yield from sorted(path for path in root.glob(pattern.removeprefix(Path(pattern).anchor)) if path.is_file())


def publish_output(job: Job) -> None:
    """Write the end of the job's output without secrets into its folder, where report.html finds it."""
    log = job.folder / "log.txt"
    if log.is_file():
        size = log.stat().st_size
        # Masked before it is cut: the first line of a private key may be above the cut.
        text = job.masked(read_output(log, (0, size))).encode(errors="replace")
        if len(text) > _PUBLIC_BYTES:
            text = text[-_PUBLIC_BYTES:].partition(b"\n")[2]
        atomic.write_bytes(job.folder / raw_files.OUTPUT, text)


def read_lines(job: Job, begin: int = 0) -> tuple[list[str], int]:
    """Return the whole lines of the job's output from a byte on, without secrets, and where the next line begins.

    Of more than a MiB they are those of the last one. A progress bar writes one line again and again: its last state
    counts.
    """
    log = job.folder / "log.txt"
    size = log.stat().st_size if log.exists() else 0
    text = read_output(log, (begin, size)) if size > begin else ""
    whole, _, rest = text.rpartition("\n")
    if _KEY_BEGINS.search(whole) and not _KEY_ENDS.search(whole):
        return [], begin  # the masking recognises a private key as a whole
    lines = [line.rstrip("\r").rpartition("\r")[2] for line in job.masked(whole).split("\n")] if whole else []
    return lines, size - len(rest.encode(errors="replace"))


def read_output(log: Path, span: tuple[int, int]) -> str:
    """Return the output of one process: the bytes ``span`` of the job's log, at most the whole lines of the last MiB.

    A part of a line could be a part of a secret, which the masking does not recognise.
    """
    begin, end = span
    with log.open("rb") as stream:
        stream.seek(max(begin, end - _LOG_TAIL_BYTES))
        if stream.tell() > begin:
            stream.readline()
        return stream.read(max(0, end - stream.tell())).decode(errors="replace")


# --- the start-up hook ------------------------------------------------------------------------------------------------

_PACKAGE = Path(__file__).resolve().parents[1]
STARTUP = _PACKAGE / "hook" / "startup"

#: Begin the line of a job's log that says why no step, or nothing in a span of time, was recorded.
NO_STEPS, NO_SPAN = "no step was recorded: ", "nothing was recorded: "


def loads_hook(job: Job) -> bool:
    """Return True if the Python processes of the job's command load the start-up hook.

    Instead of steps, it may record a span of time for the profilers that work inside the process.
    """
    is_span = job.script is None and bool(job.settings.hook and job.settings.capture)
    return job.is_hooked or (is_span and (job.profiler == "plain" or find_traits(job.profiler).needs_hook))


def variables(job: Job, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for the processes of a job, which have ``environment`` otherwise.

    PYTHONPATH begins with the folder of the hook. The folder of profpipe is taken out: it may hold the packages of
    another Python. The hook finds profpipe without it.
    """
    traits = find_traits(job.profiler)
    common = {
        ranges.PROFILER_VARIABLE: traits.ranges or job.profiler,
        **origins.variables(job.launch.roots, job.folder),
    }
    if not loads_hook(job):
        return common
    paths = environment.get("PYTHONPATH", "").split(os.pathsep)
    others = paths[1:] if paths[0] == str(_PACKAGE.parent) else paths
    settings = {
        "folder": str(job.folder),
        "stem": job.stem,
        "profiler": traits.ranges or job.profiler,
        "nodes": job.launch.nodes,
        "steps": job.settings.steps.model_dump(),
        "torch": job.settings.torch.model_dump(),
        "collect": job.settings.collect,
    }
    if span := job.settings.capture:
        settings["capture"] = {**span.as_json(), "started_s": time.monotonic()}
    return {
        **common,
        "PROFPIPE_HOOK": json.dumps(settings),
        "PROFPIPE_HOOK_LOADED": str(_loaded(job)),
        **({"PROFPIPE_INSIDE": str(traits.inside)} if traits.inside and traits.needs_hook else {}),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(STARTUP), *others])),
    }


def is_over(command: Command, job: Job, seconds: float) -> bool:
    """Return True if the runner must end the process of ``command``, which has run for ``seconds``.

    ``capture: {after_s, for_s}`` says when, for a server would not end by itself. The start-up hook writes its traces
    after the span, so the processes that record are waited for.
    """
    if command.ends_after_s is None or command.is_ended_by_tool or seconds < command.ends_after_s:
        return False
    return not any(map(_is_recording, job.records))


def complete_records(job: Job) -> None:
    """Add the steps that the processes of a job, which have ended, had not written to their records yet."""
    for pending in job.folder.glob(f"hook.{job.stem}.*.pending"):
        event_lines.complete(pending)


def _is_recording(path: Path) -> bool:
    """Return True if the living process that writes this file of the hook has not finished it."""
    if not _has_begun(path) or '{"hook": "finished"' in path.read_text(encoding="utf-8", errors="replace"):
        return False
    with suppress(ValueError, ProcessLookupError, PermissionError):
        os.kill(int(path.name.split(".")[-2]), 0)
        return True
    return False


def _has_begun(path: Path) -> bool:
    """Return True if the process that writes this file of the hook has begun to record its span of time."""
    return '{"hook": "span"' in path.read_text(encoding="utf-8", errors="replace")


_LATER = "Set capture.after_s higher"
_NOT_LOADED = (
    "the start-up hook was not loaded. The command starts no Python, or starts it with -I, -E or -S, or replaces "
    "PYTHONPATH."
)


def starts_no_python(job: Job) -> bool:
    """Return True if the job's command, which has ended, started no Python, as far as its words and the hook say."""
    has_loaded = any(job.folder.glob("hook.*.loaded"))
    return loads_hook(job) and not has_loaded and not any("py" in word.lower() for word in job.command)


def imports_no_torch(job: Job) -> bool:
    """Return True if no process of the job's command, which has ended, imported torch or made a step."""
    return loads_hook(job) and not any(job.folder.glob("hook.*.torch")) and not _step_times(job)


def has_results(job: Job) -> bool:
    """Return True if the job's command, however it ended, left the times of steps or a recording."""
    return bool(_step_times(job)) or any(job.folder.glob(f"{job.stem}*"))


def has_steps(job: Job) -> bool:
    """Return True if a process of the job's command made steps, or the user said what a step is."""
    steps = job.settings.steps
    return bool(_step_times(job)) or bool(steps.range or steps.forward)


def count_steps(job: Job) -> int:
    """Return how many steps the process of the job's command with most of them made."""
    return max(map(len, _step_times(job).values()), default=0)


def steps_of_calls(job: Job, profiler: str) -> ChosenSteps | None:
    """Return which calls ``profiler`` records as steps, None where calls are no steps.

    None also where the user asked for calls, and so chose the first steps. ``job`` ran under plain.

    The first request of a program that generates tokens takes ten times as long as the others. The calls begin where
    steps take at most ``_SETTLED`` times the median of all on average. Where there are prompts they begin at one.
    Where several steps of an optimizer are an iteration, iterations are recorded.
    """
    times_by_rule = _step_times(job)
    steps = job.settings.steps
    if not job.is_hooked:
        return None
    optimizer_ns = np.array([wall for wall, _ in times_by_rule.get("optimizer", ())])
    if times_by_rule.keys() == {"optimizer"} and (iteration := accounting.find_iteration(optimizer_ns)):
        offset, stride = iteration
        warmup = max(-(-(steps.warmup - offset) // stride), 1)
        measure = max(-(-steps.measure // stride), min(_FEWEST_ITERATIONS, steps.measure))
        return ChosenSteps.of(steps, stride=stride, offset=offset, warmup=warmup, measure=measure)
    if steps.forward or times_by_rule.keys() != {"forward"}:
        return None
    walls, texts = zip(*times_by_rule["forward"], strict=True)
    parts = calls.divide(list(map(calls.read, texts)), walls)
    whole = [part for part in parts if part.is_step]
    if not whole or any(calls.read(text).thread for text in texts):
        return ChosenSteps.of(steps, forward=True)
    size = whole[0].last - whole[0].first + 1
    measure = steps.measure * size
    time, count = np.zeros(len(walls)), np.zeros(len(walls))
    for part in whole:
        time[part.first], count[part.first] = sum(walls[part.first : part.last + 1]), 1
    sums, counts = (np.concatenate([[0.0], np.cumsum(series)]) for series in (time, count))
    time_of, count_of = (series[measure:] - series[:-measure] for series in (sums, counts))
    is_settled = (time_of <= _SETTLED * np.median(time[count > 0]) * count_of) & (2 * size * count_of >= measure)
    # ncu records one call.
    prompts = [part.first for part in parts if part.kind == schema.PREFILL and profiler != "ncu"]
    firsts = (first for first in [*prompts, *(part.first for part in whole)] if steps.warmup <= first < len(time_of))
    first = next((first + ranges.CALLS_BEFORE_STEPS for first in firsts if is_settled[first]), steps.warmup)
    module = whole[0].kind.partition(" + ")[0]
    return ChosenSteps.of(steps, forward=True, module=module, warmup=first, measure=measure)


def makes_equal_steps(job: Job) -> bool:
    """Return True if all processes with a record ended after the same number of steps, which they marked or trained.

    Calls of a model are such steps only where the user asked for them. ``job`` ran under plain.
    """
    ends = set[tuple[Any, ...]]()
    for path in job.records:
        lines = event_lines.read(path, "hook")[0]
        # A rule that another one has replaced counts no more.
        restart = max((number for number, line in enumerate(lines) if line["hook"] == "restart"), default=0)
        lines = lines[restart:]
        rules = {line["rule"] for line in lines if line["hook"] == "steps"}
        ends.add((*rules, *(line["steps"] for line in lines if line["hook"] == "finished")))
    rules = {"marker", "optimizer", *(["forward"] if job.settings.steps.forward else [])}
    return len(ends) == 1 and all(len(end) == 2 and end[0] in rules for end in ends)


def seconds_after_steps(plain: Job, steps: ChosenSteps) -> float:
    """Return the seconds of the steps that ``plain`` made after the ``steps`` to record."""
    last = steps.offset + steps.stride * (steps.warmup + steps.measure)
    return sum(wall_ns for times in _step_times(plain).values() for wall_ns, _ in times[last:]) / 1e9


def count_steps_within(plain: Job, seconds: float, least: int, most: int) -> int:
    """Return how many steps as long as the median one that ``plain`` made take ``seconds``, within two bounds."""
    walls_s = [wall_ns / 1e9 for times in _step_times(plain).values() for wall_ns, _ in times if wall_ns > 0]
    count = math.ceil(seconds / statistics.median(walls_s)) if walls_s else most
    return min(max(count, least), most)


def is_ended_early(job: Job) -> bool:
    """Return True if the hook ended the program after its steps, because profpipe chose it."""
    steps = job.settings.steps
    lines = (line for path in job.records for line in event_lines.read(path, "hook")[0])
    return isinstance(steps, ChosenSteps) and steps.is_stop_chosen and any(line.get("stopped") for line in lines)


#: So many iterations are recorded at least.
_FEWEST_ITERATIONS = 5

#: In which the mean of some steps may be longer than the median of all.
_SETTLED = 1.5


def _step_times(job: Job) -> dict[str, list[tuple[float, str]]]:
    """Return the times of the steps that plain recorded (ns) and what each calls, by their rule.

    They are those of the process with the most steps. One that steps an optimizer, or marks its steps, goes before
    those that only call a model. A job that was killed and resumed has files of several attempts.
    """
    most: dict[str, list[tuple[float, str]]] = {}
    for path in job.folder.glob("hook.*.jsonl"):
        by_rule: dict[str, list[tuple[float, str]]] = {}
        for line in event_lines.read(path, "hook")[0]:
            if line["hook"] == "restart":
                by_rule.clear()
            elif line["hook"] == "steps":
                texts = itertools.chain(line.get("calls", ()), itertools.repeat(""))
                by_rule.setdefault(line["rule"], []).extend(zip(line["wall_ns"], texts, strict=False))
        most = max(most, by_rule, key=lambda times: (bool(times.keys() - {"forward"}), sum(map(len, times.values()))))
    return most


def _loaded(job: Job) -> Path:
    return job.folder / f"hook.{job.stem}.loaded"


def explain_missing_records(job: Job, seconds: float) -> str:
    """Return why nothing was recorded of the processes of a job, which ended after ``seconds``; empty if something was.

    The reason is also written where the parser of the hook's files finds it.
    """
    traits = find_traits(job.profiler)
    if traits.needs_hook and not traits.needs_torch:
        # It records without steps.
        return f"{NO_SPAN}{_NOT_LOADED}" if loads_hook(job) and not _loaded(job).exists() else ""
    if not loads_hook(job) or starts_no_python(job):
        return f"{NO_SPAN}{why}" if (why := _explain_short(job, seconds)) else ""
    if job.profiler == "memory":
        if any(job.folder.glob(f"{job.stem}.*.memory.pickle")):
            return ""
        why = next((said for said in _read_notes(job) if "memory" in said), "no process used a GPU through torch")
        text = f"{NO_SPAN}{why}."
    elif why := _explain_other_profiler(job):
        text = f"{NO_SPAN}{why}"
    elif why := _explain(job) if job.is_hooked else _explain_span(job, seconds):
        text = f"{NO_STEPS if job.is_hooked else NO_SPAN}{why}"
    else:
        return ""
    lines = [{"hook": "started", "profiler": job.profiler, "rank": None}, {"hook": "note", "text": text}]
    content = "".join(json.dumps(line) + "\n" for line in lines)
    atomic.write_text(job.folder / f"hook.{job.stem}.none.jsonl", content)
    return text


def _read_notes(job: Job) -> list[str]:
    """Return the notes and the errors of the start-up hook."""
    lines = [line for path in job.records for line in event_lines.read(path, "hook")[0]]
    errors = [f"{line['during']}: {line['message']}" for line in lines if line["hook"] == "error"]
    return [*(str(line["text"]) for line in lines if line["hook"] == "note"), *errors]


def _explain_other_profiler(job: Job) -> str:
    """Return that the program has a profiler, where that left no trace and kept profpipe's from recording one."""
    if job.profiler != "torch" or job.settings.collect or any(job.folder.glob(f"{job.stem}.*.pt.trace.json.gz")):
        return ""
    note = next((text for text in _read_notes(job) if "uses torch.profiler itself" in text), "")
    remedy = "Name the trace that the program writes under `collect:` in a pipeline file, or turn its profiler off."
    return f"{note}, and that of the program left no trace. {remedy}" if note else ""


def _explain(job: Job) -> str:
    by_hand = "Mark the steps with profpipe.step(), or name a range that is opened in each: steps: {range: REGEX}."
    if not _loaded(job).exists():
        return _NOT_LOADED
    counts = [count for path in job.records if (count := _count_steps(path)) is not None]
    if not counts and not (job.folder / f"hook.{job.stem}.torch").exists():
        binary = "Another program can open an NVTX range in each step, which --step-range REGEX names."
        return f"no process imported torch. A loop in Python can call profpipe.step(). {binary}"
    if not counts and job.settings.steps.forward:
        return f"no module of torch was called. {by_hand}"
    if not counts:
        whole = " After plain, as with -p plain,torch, it is recorded without steps." * (job.profiler == "torch")
        return f"no optimizer of torch stepped. {by_hand} For inference: steps: {{forward: true}}.{whole}"
    most, warmup = max(counts), job.settings.steps.warmup
    if most <= (0 if job.profiler == "plain" else warmup):
        remedy = "Set --warmup-steps or steps.warmup lower"
        which = f"and the first {warmup} are warm-up. {remedy}" if most else "which did not end"
        return f"the program made {most or 'one'} step{'s' * (most > 1)}, {which}."
    return ""


def _explain_short(job: Job, seconds: float) -> str:
    """Return that a program ended before the span of time that was to be recorded of it."""
    span = job.settings.capture
    is_short = span is not None and seconds < span.after_s
    return f"the program ended before capture.after_s ({span.after_s:g} s)." if span and is_short else ""


def _explain_span(job: Job, seconds: float) -> str:
    span = job.settings.capture
    if not _loaded(job).exists():
        return _NOT_LOADED
    assert span
    end_s = span.after_s + span.for_s
    if not (job.folder / f"hook.{job.stem}.torch").exists():
        if seconds < end_s:
            return "no process imported torch."
        return (
            f"no process had imported torch when the capture ended, {end_s:g} s after the start. "
            f"{_LATER} if the program imports torch later."
        )
    if why := _explain_short(job, seconds):
        return why
    if not any(map(_has_begun, job.records)):
        if span.on_gpu:
            return "no process used a GPU through torch."
        return (
            f"no process with torch ran during the capture, which ended {end_s:g} s after the start. {_LATER} if the "
            "program was still starting."
        )
    if span.goes_on and not any(job.folder.glob(f"{job.stem}.*.pt.trace.json.gz")):
        return "the program ran no operator of torch while torch.profiler recorded."
    has_traces = job.settings.collect or any(job.folder.glob(f"{job.stem}.*.pt.trace.json.gz"))
    if job.profiler == "torch" and not has_traces:
        return (
            f"no operator of torch ran in the {span.for_s:g} s of the capture. Send requests during that time. "
            f"{_LATER} if the program was still starting."
        )
    return ""


def _count_steps(path: Path) -> int | None:
    """Return the number of steps that ended in a process; None where none began. Crashed processes count as endless."""
    count: int | None = None
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith('{"hook": "recording"'):
            count = 1 << 30
        elif line.startswith('{"hook": "finished"'):
            with suppress(ValueError, LookupError, TypeError):  # a line that a kill has cut
                count = int(json.loads(line)["steps"])
    return count
