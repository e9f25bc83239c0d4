"""Runs the cases of a job one after the other, inside the workload's process, under any profiler.

``python -m profpipe.measure.harness raw/<workload>/<profiler>/cases.json`` appends to ``job.jsonl`` beside the
specification, one line at a time, so a crash loses no case that ended before it.
"""

from __future__ import annotations

import errno
import functools
import gc
import itertools
import json
import math
import os
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TextIO

from profpipe import masking, measure, origins, plugins, ranges
from profpipe.errors import UNWRITTEN, is_disk_full, one_line
from profpipe.job import LOG, WAIT_VARIABLE, Status, log_name
from profpipe.measure import (
    case_order,
    conditions,
    distributed,
    launch_profile,
    machine,
    rounds,
    sampling,
    workload_metrics,
)
from profpipe.measure.distributed import SINGLE_PROCESS, CaseEnd, Ranks
from profpipe.measure.flags import Flag

# --- what a profiler records -----------------------------------------------------------------------------------------

#: Makes the context around the iterations; calls its argument, which loads the GPU, as late as possible before them.
Region = Callable[[Callable[[], None]], AbstractContextManager[None]]


@contextmanager
def single_threaded_autograd() -> Iterator[None]:
    """Run backward passes on the calling thread instead of autograd's thread.

    ncu assigns a kernel to the ranges of the thread that launched it, and has no times to assign it by, so kernels
    of a backward pass would belong to no case. The kernels are the same.
    """
    torch = machine.torch()
    with torch.autograd.set_multithreading_enabled(False) if torch is not None else nullcontext():
        yield


@contextmanager
def capture_cases(spec: Mapping[str, Any], folder: Path, ranks: Ranks) -> Iterator[Region]:
    """Yield the function that makes the context around a case's measured iterations.

    nsys ends its capture at the first cudaProfilerStop, so all cases share one capture. With several processes it
    records everything, and the ranges show what is measured. ncu takes any number of start/stop pairs. torch.profiler
    keeps its records in memory until the export, so a case has a trace to itself: a later crash loses nothing.
    """
    profiler = spec["profiler"]
    if profiler == "nsys" and not ranks.is_distributed:
        with _cuda_profiler():
            yield _load_only
    elif profiler == "ncu":
        yield lambda load: _cuda_profiler()  # ncu replays kernels with pauses between, so a load has no effect
    elif profiler == "torch":
        stem = ranks.file_name(spec["stem"])
        traces = (folder / f"{stem}.{number}.pt.trace.json.gz" for number in itertools.count(1))
        yield lambda load: _torch_profiler(next(traces), load)
    else:
        yield _load_only


@contextmanager
def _load_only(load: Callable[[], None]) -> Iterator[None]:
    load()
    yield


@contextmanager
def _cuda_profiler() -> Iterator[None]:
    if machine.device() == "cpu":
        yield
        return
    torch = machine.torch()
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStart()
    try:
        yield
    finally:
        torch.cuda.synchronize()
        torch.cuda.cudart().cudaProfilerStop()


@contextmanager
def _torch_profiler(trace: Path, load: Callable[[], None]) -> Iterator[None]:
    """Record the block. Setting up the recorder takes milliseconds, in which a GPU idles, so ``load`` runs after it."""
    from torch.profiler import ProfilerActivity, profile

    on_gpu = machine.device() == "cuda"
    recorder = profile(activities=[ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * on_gpu)
    recorder.prepare_trace()
    load()
    recorder.start_trace()
    try:
        yield
        if on_gpu:
            machine.torch().cuda.synchronize()
    finally:
        recorder.stop_trace()
    # Renamed when complete, so that the trace of a killed process is not read.
    partial = trace.with_name(f"partial-{trace.name}")
    recorder.export_chrome_trace(str(partial))
    partial.replace(trace)


# --- the job ---------------------------------------------------------------------------------------------------------

#: Exit code of a process that could not continue after a CUDA error.
CONTEXT_LOST = 70


class Events:
    """The log of the job: one JSON object a line, flushed at once, without ``secrets``.

    ``at`` of a line is the time of ``time.monotonic``. The event ``mark`` says which ``phase`` of a case is over.
    """

    def __init__(self, stream: TextIO, secrets: Mapping[str, str] = MappingProxyType({})) -> None:
        self._stream = stream
        self._masker = masking.masker(secrets) if secrets else None

    def write(self, event: str, **fields: Any) -> None:
        if self._masker is not None:
            fields = self._masker.mask_all(fields)
        elif text := fields.get("reason"):
            fields["reason"] = masking.mask_forms(str(text))
        line = {"event": event, **fields, "at": round(time.monotonic(), 4)}
        self._stream.write(json.dumps(line, default=str) + "\n")
        self._stream.flush()

    def metric(self, case: str, metric: str, value: float | None, unit: str) -> None:
        if value is not None:
            self.write("metric", case=case, subject="", metric=metric, value=value, unit=unit, n=1)

    def bind_case(self, case: str) -> Callable[..., None]:
        """Return ``write`` for one case."""
        return functools.partial(self.write, case=case)


def main(argv: list[str]) -> int:
    """Run the specification ``argv[0]``; return 0 when all cases were tried, whatever its status."""
    try:
        _wait_for_turn()
        _run(Path(argv[0]))
    except OSError as error:
        if not is_disk_full(str(error)):
            raise
        # The log may be on the full disk as well, and an interpreter that cannot flush its streams exits with 120.
        for stream, last in ((sys.stdout, ""), (sys.stderr, traceback.format_exc())):
            try:
                stream.write(last)
                stream.flush()
            except OSError:
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return UNWRITTEN
    return 0


def _wait_for_turn() -> None:
    """Wait after the imports where the runner has started this process ahead; end where it is not needed."""
    if not os.environ.pop(WAIT_VARIABLE, ""):
        return
    machine.torch()
    with os.fdopen(0, "rb", closefd=False) as runner:
        if not (message := runner.readline()):
            sys.exit(1)
    output, gpus = json.loads(message)
    if gpus is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpus
    for stream, path, flags in ((0, os.devnull, os.O_RDONLY), (1, output, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW)):
        opened = os.open(path, flags)
        os.dup2(opened, stream)
        os.close(opened)
    os.dup2(1, 2)


def _run(spec_path: Path) -> None:
    spec = json.loads(spec_path.read_text(encoding="utf-8"))
    masking.remember(spec.get("secrets", {}))
    machine.torch()
    marks = {"began": measure.BEGAN, "imported": time.monotonic()}
    ranks = distributed.join(spec.get("processes", 1))
    log = spec_path.parent / log_name(ranks.rank)
    # Several processes measure all rounds again: one of them may have been ended a round earlier than another.
    names = () if ranks.is_distributed else {case["id"] for case in spec["cases"]}
    earlier = rounds.load_earlier_rounds(log, names)
    with log.open("a", encoding="utf-8") as stream:
        events = Events(stream, spec.get("secrets", {}))
        kind = spec.get("ranges", spec["profiler"])
        described = {"ranges": ranges.use(kind), **marks, **ranks.describe(), **machine.describe()}
        events.write("started", profiler=spec["profiler"], **described)
        worker = Worker(plugins.load_module(Path(spec["script"])), spec, events, machine.device(), ranks)
        worker.freeze_imports()
        if spec["profiler"] == "plain":
            time_cases(worker, earlier)
        else:
            with capture_cases(spec, spec_path.parent, ranks) as region:
                for case in spec["cases"]:
                    worker.visit(case, functools.partial(profile_case, worker, case["id"], region))
        ranks.shutdown()
        origins.write_foreign_modules()
        events.write("finished", time=time.time())


# --- one visit to a case ---------------------------------------------------------------------------------------------


@dataclass
class Worker:
    """This process: its specification and workload, and what earlier visits to cases left.

    ``oom_params`` are the parameters of cases that ran out of memory, ``seconds`` the time spent by case.
    """

    workload: Any
    spec: Mapping[str, Any]
    events: Events
    device: str
    ranks: Ranks = SINGLE_PROCESS
    oom_params: list[Mapping[str, Any]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    visit_clocks_hz: list[float] = field(default_factory=list)
    frozen_modules: int = 0

    @property
    def script(self) -> Path:
        return Path(self.spec["script"]).resolve()

    @property
    def flush(self) -> bool:
        # The buffer that flushes the caches would stand among what holds the memory.
        return self.spec["profiler"] != "memory" and bool(self.spec["options"].get("timing", {}).get("flush", True))

    def visit(self, case: Mapping[str, Any], measure: Callable[[dict[str, Any]], CaseEnd | None]) -> bool:
        """Visit ``case`` once; return True if the case ended. A case that fails does not end those after it."""
        # No clock that may be set measures a duration.
        name, begin = case["id"], time.perf_counter()
        params = {**getattr(self.workload, "PARAMS", {}), **case["params"]}
        self.events.write("case_started", case=name, params=params, time=time.time())
        params |= case.get("hidden", {})
        try:
            end = self._agree_on_end(name, self._try_case(name, params, measure))
        except distributed.EndedByPeer as ended:
            self.clean_up()
            end = ended.end
        if end is not None and end.status == Status.OOM:
            self.oom_params.append(params)
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - begin
        if end is not None:
            self.events.write("case_ended", case=name, **vars(end), seconds=self.seconds[name])
        if end is not None and end.status == Status.CRASHED:
            # Every later call would fail in this process; the runner starts a new one for the next case.
            sys.exit(CONTEXT_LOST)
        return end is not None

    def _try_case(
        self, name: str, params: dict[str, Any], measure: Callable[[dict[str, Any]], CaseEnd | None]
    ) -> CaseEnd | None:
        """Return how the visit ended in this process. Raises EndedByPeer where another process ended the case."""
        lost = ""
        try:
            end = self._skip_reason(name, params) or measure(params)
        except distributed.EndedByPeer:
            raise
        except Exception as error:  # an error of the workload ends its case, not the other cases
            status = Status.OOM if _is_out_of_memory(error) else Status.FAILED
            end = CaseEnd(status, str(error) if isinstance(error, BuildError) else one_line(error))
            self.events.write("error", case=name, traceback=traceback.format_exc())
            if isinstance(error, launch_profile.CaptureAborted):
                lost = "torch is left in the middle of the capture"
        if self.clean_up():
            lost = "the CUDA context is lost"
        return CaseEnd(Status.CRASHED, f"{end.reason if end else 'CUDA error'}; {lost}") if lost else end

    def _agree_on_end(self, name: str, end: CaseEnd | None) -> CaseEnd | None:
        """Return how the visit ended in all processes."""
        rank_end = end or CaseEnd(distributed.CONTINUE)
        try:
            agreed = self.ranks.agree_on_end(rank_end)
        except distributed.PeerTimeout:
            # torchrun ends the other processes with this one, and the runner starts new ones for the next case if the
            # events of rank 0 have the end of this case.
            reason = f"rank {self.ranks.rank}: {rank_end.reason}" if rank_end.reason else ""
            ended = {"status": rank_end.status, "reason": reason, "flags": rank_end.flags}
            with Path(self.spec["folder"], LOG).open("a", encoding="utf-8") as stream:
                Events(stream, self.spec.get("secrets", {})).write("case_ended", case=name, **ended)
            sys.exit(CONTEXT_LOST)
        return agreed if agreed.status else None

    def _skip_reason(self, name: str, params: Mapping[str, Any]) -> CaseEnd | None:
        """Return why the case is skipped. On the first visit, also write the kernels that the case must run."""
        if name in self.seconds:
            return None
        if self.ranks.missing_gpus:
            return CaseEnd(Status.SKIPPED, self.ranks.missing_gpus)
        if self.spec["profiler"] == "memory" and self.device != "cuda":
            return CaseEnd(Status.SKIPPED, "the profiler memory records the memory of a GPU, and torch sees none")
        expects = getattr(self.workload, "expects", None)
        self.events.write("expects", case=name, family=(expects(params) if expects else None) or "")
        prunes = self.spec["options"].get("skip_larger_after_oom", True)
        if prunes and any(case_order.is_larger(params, smaller) for smaller in self.oom_params):
            return CaseEnd(Status.SKIPPED, "larger in every dimension than a case that ran out of memory")
        available = getattr(self.workload, "available", None)
        if available and (reason := available(params)):
            return CaseEnd(Status.SKIPPED, reason)
        self.ranks.barrier("available")
        return None

    def build(self, params: dict[str, Any]) -> Callable[[], object]:
        """Return the workload's callable for ``params``. Raises BuildError with the place in the workload's file."""
        try:
            fn = self.workload.build(params)
        except Exception as error:
            if _is_out_of_memory(error):
                raise
            frames = traceback.extract_tb(error.__traceback__)
            lines = [frame.lineno for frame in frames if Path(frame.filename) == self.script]
            place = f" ({_relative(self.script)}:{lines[-1]})" if lines else ""
            raise BuildError(f"{one_line(error)}{place}") from error
        if not callable(fn):
            code = getattr(self.workload.build, "__code__", None)  # none where build is an object with __call__
            place = f"{_relative(self.script)}:{code.co_firstlineno}" if code else _relative(self.script)
            returned = "None" if fn is None else f"an object of type {type(fn).__name__}"
            remedy = "Return the callable that runs one iteration."
            raise BuildError(f"{place}: build(params) returned {returned}. {remedy}")
        return fn

    def clean_up(self) -> bool:
        """Free the case's memory before the next case; return True if the CUDA context did not survive the case."""
        gc.collect()
        if machine.device() == "cuda":
            torch = machine.torch()
            try:
                torch.cuda.synchronize()
                _clear_workspaces()
                torch.cuda.empty_cache()
                if not torch.cuda.memory_allocated():
                    self.freeze_imports()
            except RuntimeError:
                return True
        return False

    def freeze_imports(self) -> None:
        """Exclude modules imported since the last call from ``gc.collect``, which costs 0.1 s a visit otherwise.

        This freezes all live objects, so no case may hold tensors then: they would never be freed.
        """
        if self.frozen_modules != len(sys.modules):
            gc.collect()
            gc.freeze()
            self.frozen_modules = len(sys.modules)


class BuildError(Exception):
    """``build`` of the workload failed; the message has the place in the workload's file."""


def _relative(path: Path) -> str:
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


#: Messages of torch's allocators of the GPU and of the host, of cuBLAS and cuDNN, and of the C library.
_OUT_OF_MEMORY: Final = re.compile(
    r"out of memory|(can't|cannot) allocate memory|not enough memory|_ALLOC_FAILED", re.IGNORECASE
)


def _is_out_of_memory(error: Exception) -> bool:
    has_errno = isinstance(error, OSError) and error.errno == errno.ENOMEM
    return has_errno or isinstance(error, MemoryError) or bool(_OUT_OF_MEMORY.search(str(error)))


def _clear_workspaces() -> None:
    """Free the workspace that cuBLAS keeps in torch's memory, 32 MiB on an H200, and that the next call would count."""
    torch = machine.torch()
    if torch is not None and machine.device() == "cuda" and hasattr(torch._C, "_cuda_clearCublasWorkspaces"):
        torch._C._cuda_clearCublasWorkspaces()


# --- without a profiler ----------------------------------------------------------------------------------------------


def time_cases(worker: Worker, earlier: Mapping[str, Any]) -> None:
    """Time the cases in rounds; ``earlier`` are the samples of an earlier process."""
    plan, cases = rounds.TimingPlan.from_spec(worker.spec), worker.spec["cases"]
    clock = "cuda_event" if worker.device == "cuda" else "perf_counter"
    worker.events.write("order", rounds=plan.rounds, seed=plan.seed, clock=clock)
    shared: dict[str, Any] = {"ranks": worker.ranks, "visit_clocks_hz": worker.visit_clocks_hz}
    timed = {
        name: rounds.CaseTiming(plan, worker.device, ranges.CASE_PREFIX + name, worker.events.bind_case(name), **shared)
        for name in (case["id"] for case in cases)
    }
    for name, samples in earlier.items():
        timed[name].restore(samples)
    # The collector would look through all of these after a visit.
    gc.freeze()
    ended: set[str] = set()
    for number, case in plan.visits(cases):
        name = case["id"]
        if name in ended or number <= timed[name].rounds:
            continue
        if worker.visit(case, functools.partial(time_case, worker, name, timed[name])):
            ended.add(name)
            del timed[name]


def time_case(worker: Worker, name: str, case: rounds.CaseTiming, params: dict[str, Any]) -> CaseEnd | None:
    fn = worker.build(params)
    _clear_workspaces()  # of products that made the inputs
    worker.ranks.barrier("built")
    worker.events.write("mark", case=name, phase="build")
    if not case.visit(fn):
        return None
    flags = case.finish(fn)
    del fn  # a reference may need the memory that the callable holds
    worker.ranks.barrier("timed")
    limits, events = worker.spec["options"].get("tolerance", {}), worker.events.bind_case(name)
    return CaseEnd(Status.OK, flags=[*flags, *workload_metrics.write(worker.workload, params, events, limits)])


# --- under a profiler ------------------------------------------------------------------------------------------------


def profile_case(worker: Worker, name: str, region: Region, params: dict[str, Any]) -> CaseEnd:
    fn, repeats, range_name = worker.build(params), worker.spec["repeats"], ranges.CASE_PREFIX + name
    if worker.spec["options"].get("timing", {}).get("mode") == "cuda_graph":
        fn = launch_profile.capture_graph(fn)
    worker.ranks.barrier("built")
    mark = functools.partial(worker.events.write, "mark", case=name)
    mark(phase="build")
    warmup = worker.spec["warmup"]
    # The first call of the load is the last call of the warm-up, so that a call of a minute is not made once more.
    loads = warmup > 0 and worker.device == "cuda" and worker.spec["profiler"] != "ncu"
    is_bounded = worker.device == "cpu" and not worker.ranks.is_distributed
    budget_s = worker.spec["options"].get("timing", {}).get("budget_s", sampling.StoppingRule.budget_s)
    sampling.warm_up(fn, warmup - loads, device=worker.device, budget_s=budget_s / 2 if is_bounded else math.inf)
    if is_bounded:
        iteration_ns, _ = sampling.run_loop(
            fn, 1, device=worker.device, range_name="", annotate=lambda name: nullcontext(), flush=worker.flush
        )
        repeats = max(1, min(repeats, int(budget_s * 1e9 / max(iteration_ns, 1))))
    worker.ranks.barrier("warm")
    mark(phase="warm-up")
    load = functools.partial(_apply_load, worker, fn) if loads else lambda: None
    if worker.spec["profiler"] == "ncu":
        repeats = 1  # ncu replays a kernel for all groups of counters, so one iteration has them all
        with region(load), single_threaded_autograd(), ranges.annotate(range_name):
            fn()
            mark(phase="sampling")
    else:
        # The clocks help to explain why times under a profiler differ from times without one.
        monitored = conditions.monitor_device(worker.device)
        with region(load), monitored as monitor, _wrap(worker, fn, name) as call:
            run_loop = functools.partial(sampling.run_loop, ranks=worker.ranks, flush=worker.flush)
            wall_ns, clocks_hz = run_loop(
                call, repeats, device=worker.device, range_name=range_name, annotate=ranges.annotate
            )
            mark(phase="sampling")
        worker.events.metric(name, "loop_wall", wall_ns, "ns")
        measured = monitor.conditions(clocks_hz)
        if measured.counted_clock_hz is not None:
            worker.visit_clocks_hz.append(measured.counted_clock_hz)
        for metric, (value, unit) in measured.metrics().items():
            worker.events.metric(name, metric, value, unit)
    worker.events.metric(name, "iterations", repeats, "1")
    # ncu flushes the caches itself before a replay.
    is_warm = not worker.flush and worker.spec["profiler"] not in ("ncu", "memory")
    return CaseEnd(Status.OK, flags=[Flag.WARM_CACHE] if is_warm else [])


@contextmanager
def _wrap(worker: Worker, fn: Callable[[], object], name: str) -> Iterator[Callable[[], object]]:
    """Yield the callable of the measured iterations: that of the profiler's ``wrap`` where it has one.

    Raises RuntimeError where ``wrap`` wrote no file.
    """
    inside = worker.spec.get("inside")
    wrap = getattr(plugins.load_module(Path(inside)), "wrap", None) if inside else None
    if wrap is None:
        yield fn
        return
    number = [case["id"] for case in worker.spec["cases"]].index(name) + 1
    stem = worker.ranks.file_name(worker.spec["stem"])
    path = Path(worker.spec["folder"], f"{stem}.{number}{worker.spec['suffix']}")
    # Renamed when complete, so that the file of a killed process is not read.
    partial = path.with_name(f"partial-{path.name}")
    with wrap(fn, name, str(partial)) as wrapped:
        yield wrapped
    if not partial.exists():
        raise RuntimeError(f"wrap() of {inside} wrote no file")
    partial.replace(path)


def _apply_load(worker: Worker, fn: Callable[[], object]) -> None:
    with conditions.monitor_gpu():  # NVML is opened at its first use, which can take as long as a GPU needs to idle
        highest_hz = max(worker.visit_clocks_hz, default=None)
        sampling.apply_load(fn, device=worker.device, ranks=worker.ranks, clock_hz=highest_hz, flush=worker.flush)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
