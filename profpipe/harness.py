"""Runs inside the workload's process: its cases, one after the other, whatever the profiler.

``python -m profpipe.harness raw/<workload>/<profiler>/cases.json``. Each iteration of a case stands in a range
``profpipe:<case id>``, and all of them between cudaProfilerStart and cudaProfilerStop, so that every profiler sees the
same region. What happened is appended to ``events.jsonl`` beside the specification, line by line: what finished before
a crash is never lost.
"""

from __future__ import annotations

import errno
import functools
import gc
import json
import os
import re
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TextIO

from profpipe import load, ranges, sizes, timing
from profpipe.errors import UNWRITTEN, lacks_room, one_line
from profpipe.measuring import conditions, facts, process, ranks, sweep
from profpipe.measuring.captures import Region, captured, on_one_thread
from profpipe.measuring.ranks import Ranks

#: Exit code of a process that could not go on after a CUDA error.
CONTEXT_LOST = 70

CASE_PREFIX = "profpipe:"  # as tables.CASE_PREFIX, which this process does not import: it would bring pandas


class Events:
    """``events.jsonl``, one JSON object a line, on disk before the next thing happens."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, event: str, **fields: Any) -> None:
        self._stream.write(json.dumps({"event": event, **fields}, default=str) + "\n")
        self._stream.flush()

    def metric(self, case: str, metric: str, value: float | None, unit: str) -> None:
        if value is not None:
            self.write("metric", case=case, subject="", metric=metric, value=value, unit=unit, n=1)

    def of(self, case: str) -> Callable[..., None]:
        """``write`` for one case."""
        return functools.partial(self.write, case=case)


def main(argv: list[str]) -> int:
    """Runs the specification ``argv[0]``; 0 when every case was tried, whatever became of it."""
    try:
        _run(Path(argv[0]))
    except OSError as error:
        if not lacks_room(str(error)):
            raise
        _print_if_possible(traceback.format_exc())
        return UNWRITTEN
    return 0


def _print_if_possible(text: str) -> None:
    """The log may be on the full disk as well, and an interpreter that cannot flush its streams ends with code 120."""
    for stream, last in ((sys.stdout, ""), (sys.stderr, text)):
        try:
            stream.write(last)
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _run(spec_path: Path) -> None:
    spec = json.loads(spec_path.read_text(encoding="utf-8"))
    together = ranks.joined(spec.get("processes", 1))
    log = spec_path.parent / ranks.record(together.rank)
    # Of several processes, one may have been ended a round earlier than another.
    names = () if together.several else {case["id"] for case in spec["cases"]}
    earlier = sweep.inherited(log, names)
    with log.open("a", encoding="utf-8") as stream:
        events = Events(stream)
        seen = {"ranges": ranges.use(spec["profiler"]), **together.described(), **process.described()}
        events.write("started", profiler=spec["profiler"], **seen)
        desk = _Desk(load.module(Path(spec["script"])), spec, events, process.device(), together)
        _freeze_imports(desk)
        if spec["profiler"] == "plain":
            _time_cases(desk, earlier)
        else:
            _profile_cases(desk, spec_path.parent)
        together.part()
        events.write("finished", time=time.time())


# --- one visit to a case ---------------------------------------------------------------------------------------------


@dataclass
class _Desk:
    """What every visit needs, and what earlier ones left: what ran out of memory, the time spent, the GPU's clocks."""

    workload: Any
    spec: Mapping[str, Any]
    events: Events
    device: str
    ranks: Ranks = ranks.ALONE
    out_of_memory: list[Mapping[str, Any]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    visit_clocks_hz: list[float] = field(default_factory=list)
    frozen_modules: int = 0


@dataclass(frozen=True)
class _End:
    """How a case ended."""

    status: str
    reason: str = ""
    flags: Sequence[str] = ()


def _visit(desk: _Desk, case: Mapping[str, Any], do: Callable[[dict[str, Any]], _End | None]) -> bool:
    """Turns to ``case`` once; True when that was its end. A case that fails does not end those after it."""
    name, params, begin = case["id"], _complete(desk.workload, case["params"]), time.time()
    desk.events.write("case_started", case=name, params=params, time=begin)
    try:
        end = _agreed(desk, name, _tried(desk, name, params, do))
    except ranks.Ended as ended:
        _clean_up(desk)
        end = _End(ended.status, ended.reason)
    if end is not None and end.status == "oom":
        desk.out_of_memory.append(params)
    desk.seconds[name] = desk.seconds.get(name, 0.0) + time.time() - begin
    if end is not None:
        desk.events.write("case_ended", case=name, **vars(end), seconds=desk.seconds[name])
    if end is not None and end.status == "crashed":
        # Every later call would fail in this process; the runner goes on with the next case in a new one.
        sys.exit(CONTEXT_LOST)
    return end is not None


def _tried(desk: _Desk, name: str, params: dict[str, Any], do: Callable[[dict[str, Any]], _End | None]) -> _End | None:
    """What the visit came to in this process. Raises Ended where another one has ended the case."""
    lost = ""
    try:
        end = _unwanted(desk, name, params) or do(params)
    except ranks.Ended:
        raise
    except Exception as error:  # whatever a workload raises is its case's result, never the end of the sweep
        end = _End("oom" if _out_of_memory(error) else "failed", one_line(error))
        desk.events.write("error", case=name, traceback=traceback.format_exc())
        if isinstance(error, timing.LeftCapturing):
            lost = "torch is left in the midst of the capture"
    if _clean_up(desk):
        lost = "the CUDA context is lost"
    return _End("crashed", f"{end.reason if end else 'CUDA error'}; {lost}") if lost else end


def _agreed(desk: _Desk, name: str, end: _End | None) -> _End | None:
    """What the visit came to in all processes together."""
    own = end or _End(ranks.ON)
    try:
        status, reason, flags = desk.ranks.agreed(own.status, own.reason, own.flags)
    except ranks.Absent:
        # torchrun ends the others with this process, and the runner goes on with the next case in new ones, if the
        # record, which is the first process's, says what became of this case.
        reason = f"rank {desk.ranks.rank}: {own.reason}" if own.reason else ""
        fate = {"status": own.status, "reason": reason, "flags": own.flags}
        with Path(desk.spec["folder"], ranks.record(0)).open("a", encoding="utf-8") as stream:
            Events(stream).write("case_ended", case=name, **fate)
        sys.exit(CONTEXT_LOST)
    return _End(status, reason, flags) if status else None


def _complete(workload: Any, params: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters with the workload's defaults for those that the pipeline does not set."""
    return {**getattr(workload, "PARAMS", {}), **params}


def _optional(workload: Any, name: str, params: Mapping[str, Any]) -> Any:
    function = getattr(workload, name, None)
    return function(params) if function else None


def _unwanted(desk: _Desk, name: str, params: Mapping[str, Any]) -> _End | None:
    """Why the case is not tried; and, on its first visit, the kernels that it should run."""
    if name in desk.seconds:
        return None
    if desk.ranks.lack:
        return _End("skipped", desk.ranks.lack)
    desk.events.write("expects", case=name, family=_optional(desk.workload, "expects", params) or "")
    if desk.spec["options"].get("skip_larger_after_oom", True):
        for smaller in desk.out_of_memory:
            if sizes.larger(params, smaller):
                return _End("skipped", "larger in every dimension than a case that ran out of memory")
    if reason := _optional(desk.workload, "available", params):
        return _End("skipped", reason)
    desk.ranks.step("available")
    return None


#: As torch's allocators of the GPU and of the host, cuBLAS and cuDNN, and the C library say it.
_NO_MEMORY: Final = re.compile(
    r"out of memory|(can't|cannot) allocate memory|not enough memory|_ALLOC_FAILED", re.IGNORECASE
)


def _out_of_memory(error: Exception) -> bool:
    lacks = isinstance(error, OSError) and error.errno == errno.ENOMEM
    return lacks or isinstance(error, MemoryError) or bool(_NO_MEMORY.search(str(error)))


def _clean_up(desk: _Desk) -> bool:
    """Gives the case's memory back before the next one; True when the CUDA context did not survive the case."""
    gc.collect()
    if process.device() == "cuda":
        torch = process.torch()
        try:
            torch.cuda.synchronize()
            _forget_workspaces()
            torch.cuda.empty_cache()
            if not torch.cuda.memory_allocated():
                _freeze_imports(desk)
        except RuntimeError:
            return True
    return False


def _forget_workspaces() -> None:
    """Once used, cuBLAS keeps a workspace in torch's memory, 32 MiB on an H200, which the next call is said to need."""
    torch = process.torch()
    if torch is not None and process.device() == "cuda" and hasattr(torch._C, "_cuda_clearCublasWorkspaces"):
        torch._C._cuda_clearCublasWorkspaces()


def _freeze_imports(desk: _Desk) -> None:
    """Takes what was imported since the last time out of what ``gc.collect`` looks through, 0.1 s at every visit.

    It takes all that is alive. So no case may have anything then: what a workload keeps would never be given back.
    """
    if desk.frozen_modules != len(sys.modules):
        gc.collect()
        gc.freeze()
        desk.frozen_modules = len(sys.modules)


# --- without a profiler ----------------------------------------------------------------------------------------------


def _time_cases(desk: _Desk, earlier: Mapping[str, Any]) -> None:
    """Times the cases in rounds; ``earlier`` is what a process before this one had measured of them."""
    plan, cases = sweep.Plan.of(desk.spec), desk.spec["cases"]
    clock = "cuda_event" if desk.device == "cuda" else "perf_counter"
    desk.events.write("order", rounds=plan.rounds, seed=plan.seed, clock=clock)
    shared: dict[str, Any] = {"ranks": desk.ranks, "visit_clocks_hz": desk.visit_clocks_hz}
    timed = {
        name: sweep.Case(plan, desk.device, CASE_PREFIX + name, desk.events.of(name), **shared)
        for name in (case["id"] for case in cases)
    }
    for name, samples in earlier.items():
        timed[name].inherit(samples)
    over: set[str] = set()
    for number, case in plan.visits(cases):
        name = case["id"]
        if name in over or number <= timed[name].rounds:
            continue
        if _visit(desk, case, functools.partial(_time, desk, name, timed[name])):
            over.add(name)


def _time(desk: _Desk, name: str, case: sweep.Case, params: dict[str, Any]) -> _End | None:
    fn = desk.workload.build(params)
    _forget_workspaces()  # of products by which the inputs were made
    desk.ranks.step("built")
    if not case.visit(fn):
        return None
    flags, kept = case.facts(fn), Path(desk.spec["folder"], "snapshots", desk.ranks.named(name))
    del fn  # a reference may need the memory that it holds
    desk.ranks.step("timed")
    limits = desk.spec["options"].get("tolerance", {})
    return _End("ok", flags=[*flags, *facts.write(desk.workload, params, kept, desk.events.of(name), limits)])


# --- under a profiler ------------------------------------------------------------------------------------------------


def _profile_cases(desk: _Desk, folder: Path) -> None:
    with captured(desk.spec, folder, desk.ranks) as region:
        for case in desk.spec["cases"]:
            _visit(desk, case, functools.partial(_profile, desk, case["id"], region))


def _profile(desk: _Desk, name: str, region: Region, params: dict[str, Any]) -> _End:
    fn, repeats, range_name = desk.workload.build(params), desk.spec["repeats"], CASE_PREFIX + name
    if desk.spec["options"].get("timing", {}).get("mode") == "cuda_graph":
        fn = timing.graphed(fn)
    desk.ranks.step("built")
    warmup = desk.spec["warmup"]
    # The first of the calls that load a GPU is the last that warms up: of one that takes a minute none is made more.
    loads = warmup > 0 and desk.device == "cuda" and desk.spec["profiler"] != "ncu"
    timing.warm_up(fn, warmup - loads, device=desk.device)
    desk.ranks.step("warm")
    load = functools.partial(_load, desk, fn) if loads else lambda: None
    if desk.spec["profiler"] == "ncu":
        repeats = 1  # ncu replays each kernel for every group of counters, so one iteration has them all
        with region(load), on_one_thread(), ranges.annotate(range_name):
            fn()
    else:
        # What the clocks were tells later why a profiler's times differ from those without one.
        with region(load), conditions.watching_on(desk.device) as watched:
            named: dict[str, Any] = {"range_name": range_name, "annotate": ranges.annotate}
            loop = timing.loop(fn, repeats, device=desk.device, **named, ranks=desk.ranks)
        desk.events.metric(name, "loop_wall", loop.wall_ns, "ns")
        seen = replace(watched.summary(), counted_hz=loop.clocks_hz)
        if seen.counted_clock_hz is not None:
            desk.visit_clocks_hz.append(seen.counted_clock_hz)
        for metric, (value, unit) in conditions.as_metrics(seen).items():
            desk.events.metric(name, metric, value, unit)
    desk.events.metric(name, "iterations", repeats, "1")
    return _End("ok")


def _load(desk: _Desk, fn: Callable[[], object]) -> None:
    with conditions.watching():  # NVML is opened at its first use, which can take as long as a GPU needs to rest
        highest_hz = max(desk.visit_clocks_hz, default=None)
        timing.load(fn, device=desk.device, ranks=desk.ranks, clock_hz=highest_hz)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
