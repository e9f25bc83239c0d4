"""Why a GPU is idle in the steady steps: the waits and the lines of the host, by name, place and time.

Idle time that a late launch ends is divided by what the host did meanwhile, in this order:

1. a wait that has a name: of the file that the start-up hook wrote, or of the recording itself, such as a call in which
   the host waited for the GPU;
2. what the launching thread ran, by samples of its Python stack, or by what the recording has of that thread: functions
   of Python, ranges, operators. Between two kernels of one stretch of launches that is the ``launching`` itself, as is
   the time from a launch call until the GPU begins; in a longer gap it is ``host code``.

The parts add up to that idle time. The rest of a wait, while queued work kept the GPU busy, is ``hidden``: without it
the step would take as long. In a backward pass autograd's own thread launches, which has no Python stack: the samples
of the thread that waits in ``backward()`` stand for it.

The file of a process, ``hook.capture.4711.host.json``, holds ``steps`` (``step``, ``time_ns``), ``places``, ``samples``
(``time_ns``, ``thread``, ``place``, ``is_backward``), ``waits`` (name, begin, end, thread, place, detail) and
``step_thread``, in which the steps begin. Its clock is that of the process; the begins of the steps lead to the clock
of the recording.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from profpipe.ingest.groupby import Bools, Int64s, Ints, Union, combine, count_up_to, groups
from profpipe.ingest.operations import Spans
from profpipe.results import atomic, schema

#: A gap from this length on is no launch that follows another one: PyTorch launches an operator in 5 to 50 us, and a
#: profiler makes that a few times as long.
_LONG_NS: Final = 300_000
#: Bytes of a file of the hook that are read: one of an hour has 40 MB.
_MOST_BYTES: Final = 256_000_000
#: A collection stops all threads, not only the one that it runs in.
_OF_ALL_THREADS: Final = "garbage collection"
#: The causes by the names that ranges, operators, functions and calls of a recording have. torch.profiler, and NVTX by
#: ``emit_nvtx``, have a range round the loading of a batch, and torch.compile has one round a phase of its work.
_NAMED: Final = {
    "DataLoader": r"enumerate\(DataLoader\)|DataLoader\S*\.__next__|(?i:^\W*(data.?load(er|ing)|load.?batch)\W*$)",
    "compilation": r"\(dynamo_timed\)$",
    "checkpoint": r"^torch[/\\]serialization\.py\(\d+\): save$",
    "garbage collection": r"^<built-in function collect>$",
    "memory allocation": r"^(cuda|cu|hip)(Malloc|Free|Mem(Alloc|Free|Host|Create|Map|Unmap|SetA|Rel)|Host[ARU])",
    "graph capture": r"^(cuda|cu|hip)(GraphInstantiate|GraphExecUpdate|StreamEndCapture)",
    "module loading": r"^(cuda|cu|hip)(Module|Library)Load",
    "MPI": r"^(MPI:)?MPI_[A-Z]",
}
#: Calls, which are the detail of their cause.
_API: Final = re.compile(r"(?:MPI:)?((?:cuda|cu|hip|MPI_)[A-Z].*)")
#: Steps have names that differ in such numbers.
_DIGITS: Final = re.compile(r"\d+")
#: Half the time between two samples. A sample stands for so much time before and after it. One that came late, since a
#: thread kept the interpreter's lock, stands for the delay too.
_HALF_NS: Final = 2_500_000
#: Calls of libc that nsys records, and samples of a thread of which nothing is recorded.
_SYSTEM: Final = "operating system"
#: Those in which a thread waits for another one.
_SIGNAL: Final = re.compile(r"pthread_cond|pthread_join|sem_|futex|epoll")
_NOWHERE: Final = (np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))
#: A line of fewer samples in the steady steps is not named: by chance it has several times its share.
_LEAST_SAMPLES: Final = 5
#: The columns of ``samples``, and characters of a place or name.
_SAMPLE: Final = ("time_ns", "thread", "place", "is_backward")
_LONGEST: Final = 300
#: The hook names a few waits, with numbers of workers.
_MOST_NAMES: Final = 200
#: The clock of the process leads to that of the recording by one offset, to so many ns in most of the steps.
_NEAR_NS: Final = 2_000_000
#: Causes of a device that have a row by their place; the others are together in one of their name.
_ELSEWHERE: Final = "other lines"
_MOST_CAUSES: Final = 40


@dataclass(frozen=True)
class Host:
    """What the host of a process did, in ns on the clock of the recording.

    ``waits`` do not overlap: of two that do, the inner one counts. ``place`` of waits and samples indexes ``places``,
    -1 where it is unknown. ``samples`` are by thread (its id), with the time until which a sample stands; thread 0
    stands for threads without Python. Without ``is_sampled`` they are exact times.
    """

    start: Int64s
    end: Int64s
    name: Ints
    place: Ints
    names: tuple[str, ...]
    places: tuple[str, ...]
    samples: Mapping[int, tuple[Int64s, Ints]]
    is_sampled: bool = True


def read(folder: Path, pid: int) -> dict[str, Any] | None:
    """Return the file of the start-up hook in ``folder`` for the process ``pid``; None where there is none to use."""
    paths = sorted(folder.glob(f"hook.*.{pid}.host.json")) if pid >= 0 else []
    try:
        if len(paths) != 1 or paths[0].is_symlink() or paths[0].stat().st_size > _MOST_BYTES:
            return None
        content = json.loads(atomic.read_regular(paths[0]))
        return _check(content) if content["pid"] == pid else None
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError, OSError):
        return None


def _check(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content with arrays of numbers. Raises an error of its type or value where it has another form."""
    steps = {name: np.array(content["steps"][name], dtype=np.int64) for name in ("step", "time_ns")}
    samples = {name: np.array(content["samples"][name], dtype=np.int64) for name in _SAMPLE}
    places = tuple(str(text)[:_LONGEST] for text in content["places"])
    waits = [
        (str(name)[:_LONGEST], int(begin), int(end), int(thread), int(place), str(detail)[:_LONGEST])
        for name, begin, end, thread, place, detail in content["waits"]
    ]
    at = [*samples["place"].tolist(), *(wait[4] for wait in waits)]
    columns = [list(samples.values()), list(steps.values())]
    is_even = all({column.shape for column in group} == {(len(group[0]),)} for group in columns)
    if not is_even or any(not 0 <= number < len(places) for number in at):
        raise ValueError("columns of other lengths, or a place that is not there")
    if len({(wait[0], wait[5]) for wait in waits}) > _MOST_NAMES:
        raise ValueError("more names of waits than the hook gives")
    own = int(content["step_thread"])
    return {**content, "steps": steps, "samples": samples, "places": places, "waits": waits, "step_thread": own}


def place(
    content: Mapping[str, Any],
    step: Ints,
    begin: Int64s,
    calls: Spans,
    launching: Collection[int] = (),
    call_name: str = schema.SYNCHRONISING,
) -> Host | None:
    """Return what ``content`` says, on the clock on which the steps ``step`` begin at ``begin``.

    ``calls`` are those in which the host waited for the GPU or a collective, of the same process, and ``launching`` the
    threads that launch, beside the one of the steps: what another one waits for delays no launch. None where no step
    has a partner, or the clocks of the steps contradict each other.
    """
    number, time_ns = content["steps"]["step"], content["steps"]["time_ns"]
    _, mine, theirs = np.intersect1d(step, number, return_indices=True)
    if not len(mine):
        return None
    offsets = begin[mine] - time_ns[theirs]
    offset = int(np.median(offsets))
    if np.median(np.abs(offsets - offset)) > _NEAR_NS:
        return None
    names: dict[str, int] = {}
    spans: list[tuple[int, int, int, int]] = []
    for name, start, end, thread, at, detail in content["waits"]:
        if thread not in (content["step_thread"], *launching) and name != _OF_ALL_THREADS:
            continue
        text = f"{name} ({detail})" if detail else str(name)
        spans.append((start + offset, end + offset, names.setdefault(text, len(names)), at))
    samples = _by_thread(content, offset)
    of_steps = samples.get(0, _NOWHERE)
    reads = names.setdefault(call_name, len(names))
    at_call = look_up(of_steps, (calls.start + calls.end) // 2)
    spans += zip(calls.start.tolist(), calls.end.tolist(), [reads] * len(at_call), at_call.tolist(), strict=True)
    return _make_host(spans, tuple(names), content["places"], samples)


def name_wait(text: str) -> str:
    """Return the cause that a span of a recording with this name is; empty where it is none."""
    return next((cause for cause, pattern in _NAMED.items() if re.search(pattern, text)), "")


def read_recording(
    given: tuple[Spans, Spans, Spans],
    calls: Spans,
    process: int,
    begins: Int64s,
    gaps: tuple[Int64s, Int64s, Ints],
    launching: Collection[int] = (),
) -> Host | None:
    """Return what a recording says of the host of a process; None where it says nothing.

    ``given`` are spans that may be waits, calls of the operating system, and places, of which the inner one counts.
    Ranges that begin at one of ``begins`` are steps, and no places, as are others of their names.
    ``gaps`` are the starts, ends and threads of the idle times; a thread that waits in the operating system delays the
    launches that it does itself. ``calls`` and ``launching`` are those of ``place``; all threads are numbered alike.
    """
    named, system, places = (spans.of(np.flatnonzero(spans.process == process)) for spans in given)
    steps = named.of(np.flatnonzero(np.isin(named.start, begins)))
    titles = {_DIGITS.sub("#", steps.names[code]) for code in np.unique(steps.name)}
    places = places.of(np.flatnonzero(places.end > places.start))
    places = places.of(_named_rows(places, lambda text: not name_wait(text) and _DIGITS.sub("#", text) not in titles))
    backward = named.of(_named_rows(named, lambda text: "run_backward" in text))

    def rank_thread(thread: int) -> tuple[int, int, bool, int]:
        inside, stepping = (int((of.end - of.start)[of.thread == thread].sum()) for of in (backward, steps))
        # The first thread of a process has the lowest number.
        return inside, stepping, thread in launching, -thread

    of_places = dict(groups(places.thread))
    main = max(of_places or launching, key=rank_thread, default=0)
    tiled = {thread: tile(places.of(rows)) for thread, rows in of_places.items() if thread in (main, *launching)}
    if tiled:
        tiled[0] = tiled[main]
    named = named.of(_named_rows(named, name_wait))
    named = named.of(np.flatnonzero(np.isin(named.thread, [*launching, main]))) if launching else named
    # Autograd's thread waits for the main thread until there is something to launch.
    is_signal = np.isin(np.arange(len(system.name)), _named_rows(system, _SIGNAL.match)) & (system.thread != main)
    system = _clip(system.of(np.flatnonzero(~is_signal)), *gaps)
    outer = Union(*(np.concatenate([getattr(named, end), getattr(calls, end)]) for end in ("start", "end")))
    system = system.of(np.flatnonzero(~outer.contains(system.start)))
    names: dict[str, int] = {}
    rows: list[tuple[int, int, int, int]] = []
    for spans, label in (
        (named, _label),
        (system, lambda text: f"{_SYSTEM} ({text})"),
        (calls, lambda _: schema.SYNCHRONISING),
    ):
        code, used = np.unique(spans.name, return_inverse=True)
        labels = [label(spans.names[text])[:_LONGEST] for text in code]
        numbers = np.array([names.setdefault(text, len(names)) for text in labels], dtype=np.int64)
        at = np.full(len(used), -1)
        for thread, of_thread in groups(spans.thread):
            at[of_thread] = look_up(tiled.get(thread, _NOWHERE), spans.start[of_thread] + 1)
        rows += zip(spans.start.tolist(), spans.end.tolist(), numbers[used].tolist(), at.tolist(), strict=True)
    texts = tuple(text[:_LONGEST] for text in places.names)
    return _make_host(rows, tuple(names), texts, tiled, is_sampled=False) if rows or tiled else None


def _named_rows(spans: Spans, chosen: Callable[[str], Any]) -> Ints:
    """Return the rows of ``spans`` whose names are ``chosen``."""
    used = np.unique(spans.name)
    return np.flatnonzero(np.isin(spans.name, [code for code in used.tolist() if chosen(spans.names[code])]))


def _label(text: str) -> str:
    call = _API.fullmatch(text)
    return f"{name_wait(text)} ({call[1]})" if call else name_wait(text)


def _clip(spans: Spans, start: Int64s, end: Int64s, thread: Ints) -> Spans:
    """Return the parts of ``spans`` in the gaps [start, end) that their thread ends, the inner ones of nested spans."""
    parts = [Spans.none()]
    for number, gaps in groups(thread):
        times, name = tile(spans.of(np.flatnonzero(spans.thread == number)))
        if not len(times):
            continue
        cuts = _unite(times, start[gaps], end[gaps])
        span = find_span(times[::2], times[1::2], cuts[:-1])
        inside = np.flatnonzero((span >= 0) & (find_span(start[gaps], end[gaps], cuts[:-1]) >= 0))
        threads = np.full(len(inside), number)
        parts.append(Spans(cuts[inside], cuts[inside + 1], threads, threads, name[1::2][span[inside]], ()))
    return replace(Spans.join(*parts), names=spans.names)


def _unite(*times: Int64s) -> Int64s:
    """Return the different times, ascending. They are given in a few ascending runs, on which np.unique is slow."""
    ascending = np.sort(np.concatenate(times), kind="stable")
    return ascending[np.diff(ascending, prepend=ascending[:1] - 1) > 0]


def tile(spans: Spans) -> tuple[Int64s, Ints]:
    """Return the inner ones of nested spans as samples: each stands for the time since the one before it."""
    rows = zip(spans.start.tolist(), spans.end.tolist(), spans.name.tolist(), spans.name.tolist(), strict=True)
    tiles = np.array(list(_flatten(list(rows))), dtype=np.int64).reshape(-1, 4)
    return tiles[:, :2].ravel(), np.stack([np.full(len(tiles), -1), tiles[:, 3]], axis=1).ravel()


def _make_host(
    spans: list[tuple[int, int, int, int]],
    names: tuple[str, ...],
    places: tuple[str, ...],
    samples: Mapping[int, tuple[Int64s, Ints]],
    is_sampled: bool = True,
) -> Host:
    start, end, name, at = np.array(list(_flatten(spans)), dtype=np.int64).reshape(-1, 4).T
    return Host(start, end, name, at, names, places, samples, is_sampled)


def _by_thread(content: Mapping[str, Any], offset: int) -> dict[int, tuple[Int64s, Ints]]:
    """Return times and places of the samples of each thread, and of the one that stands for threads without Python."""
    given = content["samples"]
    time_ns, thread, at = given["time_ns"] + offset + _HALF_NS, given["thread"], given["place"]
    is_backward = given["is_backward"] != 0
    by_thread = {int(of): (time_ns[thread == of], at[thread == of]) for of in np.unique(thread) if of}
    # At each time the thread inside backward(), else the one of the steps.
    order = np.lexsort((~is_backward, time_ns))
    chosen = order[is_backward[order] | (thread[order] == content["step_thread"])]
    _, firsts = np.unique(time_ns[chosen], return_index=True)
    return {**by_thread, 0: (time_ns[chosen[firsts]], at[chosen[firsts]])}


def look_up(samples: tuple[Int64s, Ints], time_ns: Int64s) -> Ints:
    """Return the place of the sample that stands for each time; -1 after the last one."""
    times, places = samples
    return np.append(places, -1)[np.searchsorted(times, time_ns, side="left")]


def _list_levels(places: Sequence[str]) -> tuple[list[str], Ints]:
    """Return names of the places, the later the coarser, and by level their numbers.

    ``train.py:9 > lib/x.py:3``, ``train.py:9 > lib/x.py``, ``train.py:9 > other lines``, ``train.py``.
    """
    between = schema.PATH_SEPARATOR
    lines = [place.partition(between)[0] for place in places]
    files = [re.sub(rf"({between}.*):\d+$", r"\1", place) for place in places]
    below = [f"{line}{between}{_ELSEWHERE}" for line in lines]
    texts = [*places, *files, *below, *(re.sub(r":\d+$", "", line) for line in lines)]
    first: dict[str, int] = {}
    numbers = [first.setdefault(text, i) for i, text in enumerate(texts)]
    return texts, np.array(numbers, dtype=np.int64).reshape(4, len(places))


def _name_often(at: Ints, levels: Ints, counted: Bools) -> Ints:
    """Return the places of samples by the first level on which enough ``counted`` ones agree; -1 without one."""
    named = np.full(len(at), -1)
    for level in levels:
        left = named < 0
        seen, times = np.unique(level[at[left & counted]], return_counts=True)
        named = np.where(left & np.isin(level[at], seen[times >= _LEAST_SAMPLES]), level[at], named)
    return named


def _flatten(spans: list[tuple[int, int, int, int]]) -> Iterator[tuple[int, int, int, int]]:
    """Yield ascending parts without overlap, (start, end, name, place): where several are open, the last one counts."""
    open_spans: list[tuple[int, int, int, int]] = []
    at = 0
    for span in [*sorted(spans, key=lambda span: (span[0], -span[1])), None]:
        begin = span[0] if span else np.iinfo(np.int64).max
        while open_spans and at < begin:
            _, end, name, where = open_spans[-1]
            if min(end, begin) > at:
                yield at, min(end, begin), name, where
                at = min(end, begin)
            if end <= begin:
                open_spans.pop()
        if span:
            at = begin
            open_spans.append(span)


def causes(
    host: Host,
    start: Int64s,
    end: Int64s,
    thread: Ints,
    steady: tuple[Int64s, Int64s],
    operators: Union | None = None,
    is_launch: Bools | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield the causes of idle time as figures of a device, in ns of a steady step.

    ``start`` and ``end`` are the gaps that late launches end, ascending, inside steady steps; ``thread`` is the thread
    of each such launch, and ``is_launch`` says which gaps are the launch itself. ``steady`` are the begins and ends of
    the steady steps, ascending. Without a GPU the steps themselves are divided, and ``operators`` are those of the CPU.
    """
    steps = len(steady[0])
    edges = [start, end, host.start, host.end, *(times for times, _ in host.samples.values())]
    cuts = _unite(*edges, *([operators.start, operators.end] if operators else []))
    begin, length = cuts[:-1], np.diff(cuts)
    gap = find_span(start, end, begin)
    begin, length, gap = begin[gap >= 0], length[gap >= 0], gap[gap >= 0]
    wait = find_span(host.start, host.end, begin)
    is_in_operator = find_span(operators.start, operators.end, begin) >= 0 if operators else np.zeros(len(wait), bool)
    if schema.COLLECTIVE in host.names:
        # Another thread runs the collective. The step waits for it only while no operator runs.
        is_collective = np.append(host.name, -1)[wait] == host.names.index(schema.COLLECTIVE)
        wait = np.where(is_collective & is_in_operator, -1, wait)
    launches = np.zeros(len(begin), dtype=bool) if is_launch is None else is_launch[gap]
    is_wait = (wait >= 0) & ~launches
    name = np.where(is_wait, np.append(host.name, 0)[wait], -1)
    place = np.where(is_wait, np.append(host.place, -1)[wait], -1)
    rest = np.bincount(gap, weights=np.where(is_wait, 0, length), minlength=len(start))
    is_long = (rest[gap] >= _LONG_NS) & ~launches if operators is None else ~is_in_operator
    names = (*host.names, schema.HOST_CODE, schema.LAUNCHING if operators is None else schema.OPERATORS)
    name = np.where(is_wait, name, len(names) - np.where(is_long, 2, 1))
    of_thread = np.where(np.isin(thread, list(host.samples)), thread, 0)[gap]
    texts, levels = _list_levels(host.places)
    for number, (times, places) in host.samples.items():
        # A sample inside a wait or an operator says nothing of the code outside, and one outside nothing of these.
        at = times - _HALF_NS
        used = (find_span(host.start, host.end, at) < 0) | (not host.is_sampled)
        mine = ~is_wait & (of_thread == number)
        kinds = [(mine, used)]
        if operators is not None and host.is_sampled:
            is_code = find_span(operators.start, operators.end, at) < 0
            kinds = [(mine & is_long, used & is_code), (mine & ~is_long, used & ~is_code)]
        is_steady = find_span(*steady, at) >= 0
        for rows, chosen in kinds:
            if chosen.any():
                often = _name_often(places, levels, chosen & is_steady) if host.is_sampled else places
                # The chosen samples stand for all the time.
                until = np.append(times[chosen][:-1], times[-1])
                place[rows] = look_up((until, often[chosen]), begin[rows] + 1)
    if not host.is_sampled and 0 in host.samples:
        # A thread in which nothing is open waits for the one of the steps, as autograd's does.
        rows = ~is_wait & (place < 0)
        place[rows] = look_up(host.samples[0], begin[rows] + 1)
    idle_ns = _sum_by(name, place, length)
    in_steady = find_span(*steady, host.start) >= 0
    whole_ns = _sum_by(host.name[in_steady], host.place[in_steady], (host.end - host.start)[in_steady])
    counts = _sum_by(host.name[in_steady], host.place[in_steady], np.ones(int(in_steady.sum())))
    keys = sorted({*idle_ns, *whole_ns}, key=lambda key: -max(idle_ns.get(key, 0.0), whole_ns.get(key, 0.0)))
    for key in keys[:_MOST_CAUSES]:
        idle = idle_ns.get(key, 0.0)
        place_name = texts[key[1]] if key[1] >= 0 else ""
        of = {"subject": schema.PATH_SEPARATOR.join(filter(None, [names[key[0]], place_name])), "unit": "ns"}
        yield {**of, "metric": schema.WAIT_IDLE, "value": idle / steps, "n": int(counts.get(key, 0))}
        if (hidden := whole_ns.get(key, 0.0) - idle) > 0:
            yield {**of, "metric": schema.WAIT_HIDDEN, "value": hidden / steps, "n": int(counts.get(key, 0))}
    rest_ns: dict[int, float] = {}
    for key in keys[_MOST_CAUSES:]:
        rest_ns[key[0]] = rest_ns.get(key[0], 0.0) + idle_ns.get(key, 0.0)
    for number, text in enumerate(names):
        if others := rest_ns.get(number):
            elsewhere = schema.PATH_SEPARATOR.join([text, _ELSEWHERE])
            yield {"subject": elsewhere, "unit": "ns", "metric": schema.WAIT_IDLE, "value": others / steps, "n": 0}


def list_events(host: Host, begin: int, end: int) -> Iterator[tuple[int, int, str, bool]]:
    """Yield what the thread of the steps did from ``begin`` to ``end``: start, end, name with line, if it waited."""
    samples = host.samples.get(0, _NOWHERE)
    if end <= begin:
        return
    cuts = np.unique(np.concatenate([[begin, end], host.start, host.end, samples[0]]).clip(begin, end))
    wait, place = find_span(host.start, host.end, cuts[:-1]), look_up(samples, cuts[:-1] + 1)
    place = np.where(wait >= 0, np.append(host.place, -1)[wait], place)
    firsts = np.flatnonzero(np.diff(wait, prepend=-2) | np.diff(place, prepend=-2))
    for first, until in zip(firsts, np.append(cuts[firsts[1:]], end), strict=True):
        name = host.names[host.name[wait[first]]] if wait[first] >= 0 else ""
        if text := ", ".join(filter(None, [name, host.places[place[first]] if place[first] >= 0 else ""])):
            yield int(cuts[first]), int(until), text, bool(name)


def find_span(start: Int64s, end: Int64s, time_ns: Int64s) -> Ints:
    """Return which of the ascending spans holds each time, -1 where none does."""
    at = count_up_to(start, time_ns) - 1
    is_inside: Bools = (at >= 0) & (time_ns < np.append(end, 0)[at])
    return np.where(is_inside, at, -1)


def _sum_by(name: Ints, place: Ints, values: Any) -> dict[tuple[int, int], float]:
    codes, firsts = combine(name, place)
    sums = np.bincount(codes, weights=values, minlength=len(firsts)).tolist()
    return dict(zip(zip(name[firsts].tolist(), place[firsts].tolist(), strict=True), sums, strict=True))
