"""How the host launches one call: its launch time, and whether it waits for the GPU inside the call."""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from profpipe.errors import words
from profpipe.measure.distributed import Ranks

#: Calls launched into an idle GPU to measure the launch time; fewer where calls are long.
_TRIALS: Final = 5
_TRIALS_NS: Final = 0.2e9

#: Longest time for which the GPU is held before a sample.
LONGEST_HOLD_NS: Final = 100e6
#: A call with a longer launch time is not tried behind a held GPU: a hold much shorter than the call shows nothing.
_LONGEST_TRIED_NS: Final = 500e6
#: A longer call is made once only: its launch time is negligible.
_LONG_CALL_NS: Final = 2e9

#: A CUDA stream takes about 1024 launches; then the host waits. Filling the queue takes the host at least this long.
LAUNCH_QUEUE: Final = 1024
_FILL_QUEUE_NS: Final = 1e6
_SHORT_HOLDS: Final = 3


@dataclass(frozen=True)
class LaunchProfile:
    """The host's side of one call.

    ``host_ns`` is the launch time of the call. ``synchronises``: the host waits inside the call until the GPU is
    done. ``fills_queue``: the host waits inside the call for room in the launch queue. ``starves_gpu``: such a call
    leaves the GPU idle when it returns, even behind a hold, so the GPU waits for launches. ``call_ns`` is the
    approximate time of the whole call; ``gpu_tail_ns`` is the part of ``call_ns`` after the launch.
    """

    host_ns: float
    synchronises: bool = False
    fills_queue: bool = False
    starves_gpu: bool = False
    call_ns: float = 0.0
    gpu_tail_ns: float = 0.0

    @property
    def host_waits(self) -> bool:
        return self.synchronises or self.fills_queue

    def limit_host_time(self, limit_ns: float) -> LaunchProfile:
        """Return the profile with a launch time of at most ``limit_ns``."""
        return replace(self, host_ns=min(self.host_ns, limit_ns))


@dataclass(frozen=True)
class PriorMeasurement:
    """What earlier visits to a case measured.

    ``keeps_clock``: the GPU kept its highest clock under full load. ``clock_hz`` is the highest SM clock that the GPU
    had under any case.
    """

    launch: LaunchProfile | None = None
    keeps_clock: bool = False
    median_ns: float | None = None
    clock_hz: float | None = None


NO_PRIOR: Final = PriorMeasurement()


class _Trial(NamedTuple):
    """One call: the launch time, whether the GPU was idle after the launch, and the time until the GPU was idle."""

    host_ns: float
    idle: bool
    call_ns: float


class LaunchProfiler:
    """Measures how the host launches a call. ``hold(ns)`` keeps the GPU busy for ``ns``.

    Torch reports some synchronising operations. Any other shows by a hold: a call that synchronises takes longer
    behind a held GPU by the time of the hold. With several processes the slowest one counts, and an observation of one
    process counts for all, so all of them make the same calls and hold their GPUs for the same time.
    """

    def __init__(self, torch: Any, hold: Callable[[float], None], ranks: Ranks) -> None:
        self._torch, self._hold, self._ranks = torch, hold, ranks

    def profile(self, fn: Callable[[], object]) -> LaunchProfile:
        begin = time.perf_counter_ns()
        reported = count_synchronising_operations(fn) > 0
        host_ns = float(time.perf_counter_ns() - begin)
        self._torch.cuda.synchronize()
        call_ns = float(time.perf_counter_ns() - begin)
        synchronises = bool(self._ranks.all_max(reported))
        if self._ranks.is_distributed or call_ns <= _LONG_CALL_NS:
            return self._profile_by_holds(fn, synchronises)
        return LaunchProfile(host_ns, synchronises, call_ns=call_ns, gpu_tail_ns=call_ns - host_ns)

    def _profile_by_holds(self, fn: Callable[[], object], reported: bool) -> LaunchProfile:
        """Launch ``fn`` into an idle GPU and behind a hold; ``reported``: torch saw ``fn`` synchronise.

        A full launch queue also makes the host wait until the hold ends, and usually leaves the GPU with work when the
        host returns; not where kernels finish faster than they are launched. Such a call does not wait behind a hold
        that is shorter than the time to fill the queue. A call that synchronises does, unless it does so later.
        """
        ranks = self._ranks
        (unheld,) = self._launch(fn, [0.0])
        host_ns = ranks.all_max(statistics.median(trial.host_ns for trial in unheld))
        quickest = min(unheld, key=lambda trial: trial.call_ns)
        # Several processes always hold: in a collective call, one without a hold waits for one with a hold.
        tail_ns = 0.0 if ranks.is_distributed else quickest.call_ns - quickest.host_ns
        call_ns = ranks.all_max(quickest.call_ns)
        if host_ns > _LONGEST_TRIED_NS:
            return LaunchProfile(host_ns, reported, call_ns=call_ns, gpu_tail_ns=tail_ns)
        hold_ns = min(2 * host_ns + 1e6, LONGEST_HOLD_NS)
        waited_ns = host_ns + hold_ns / 2
        # One call without the hold in its launch time is enough evidence.
        (held,) = self._launch(fn, [hold_ns], until_ns=waited_ns)
        waits = bool(ranks.all_max(min(trial.host_ns for trial in held) > waited_ns))
        idle = not ranks.all_max(not all(trial.idle for trial in held))
        fills_queue = waits and not reported and host_ns > _FILL_QUEUE_NS
        if fills_queue and idle and self._waits_behind_short_holds(fn):
            fills_queue = False
        synchronises = reported or (waits and not fills_queue)
        return LaunchProfile(host_ns, synchronises, fills_queue, fills_queue and idle, call_ns, tail_ns)

    def _waits_behind_short_holds(self, fn: Callable[[], object]) -> bool:
        """Return True if the host waits, in any process, behind holds too short to fill the queue.

        A call that waits takes longer by about the hold, always. A slow host took 21 to 38 ms for the same forward
        pass, for several calls in a row. So calls with and without a hold take turns.
        """
        for _ in range(_SHORT_HOLDS):
            turns = self._launch(fn, [0.0, _FILL_QUEUE_NS])
            unheld, held = ([trial.host_ns for trial in trials] for trials in turns)
            by_the_hold = 0.5 < (min(held) - min(unheld)) / _FILL_QUEUE_NS < 1.5
            if not self._ranks.all_max(by_the_hold and min(held) > statistics.median(unheld)):
                return False
        return True

    def _launch(self, fn: Callable[[], object], holds_ns: Sequence[float], until_ns: float = 0.0) -> list[list[_Trial]]:
        """Launch ``fn`` behind the ``holds_ns`` in turn; return their trials.

        A single process stops after a trial with a launch time of at most ``until_ns``, or when time is up. Several
        processes make a fixed number of calls.
        """
        trials: list[list[_Trial]] = [[] for _ in holds_ns]
        self._torch.cuda.synchronize()
        first_ns = time.perf_counter_ns()

        def continues() -> bool:
            if not trials[-1]:
                return True
            in_time = time.perf_counter_ns() - first_ns < _TRIALS_NS * len(trials)
            needed = self._ranks.is_distributed or (trials[-1][-1].host_ns > until_ns and in_time)
            return len(trials[-1]) < _TRIALS and needed

        while continues():
            for hold_ns, of_hold in zip(holds_ns, trials, strict=True):
                self._hold(hold_ns)
                begin = time.perf_counter_ns()
                fn()
                host_ns = time.perf_counter_ns() - begin
                idle = bool(self._torch.cuda.current_stream().query())
                self._torch.cuda.synchronize()
                of_hold.append(_Trial(host_ns, idle, time.perf_counter_ns() - begin))
        return trials


def count_synchronising_operations(fn: Callable[[], object]) -> int:
    """Count the synchronising operations that torch reports in one call of ``fn``: ``item()``, ``cpu()``, ...

    Torch reports its operations, but not ``torch.cuda.synchronize()`` and those of other packages (torch 2.13).
    """
    import torch

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        before = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("warn")
        try:
            fn()
        finally:
            torch.cuda.set_sync_debug_mode(before)
    return sum("called a synchronizing CUDA operation" in str(warning.message) for warning in caught)


# --- CUDA graphs -----------------------------------------------------------------------------------------------------

#: Calls on the capture's stream before the capture, as torch's documentation asks for; Triton autotunes in the first.
_CALLS_BEFORE_CAPTURE: Final = 3


class NotCapturable(RuntimeError):
    """The call cannot become a CUDA graph; the message gives the reason."""


class CaptureAborted(NotCapturable):
    """The driver aborted the capture; nothing more can be measured in this process.

    torch (2.11, in part up to 2.13) then behaves as in a capture: the allocator never frees the memory of that
    capture, so all later peaks include it, and the random number generator raises errors.
    """


def capture_graph(fn: Callable[[], object]) -> Callable[[], None]:
    """Capture ``fn`` once as a CUDA graph; return a callable that replays it.

    Ranges that ``fn`` opens are recorded at the capture, not at a replay. When the result is dropped,
    ``torch.cuda.empty_cache`` frees the graph's memory. Raises NotCapturable before the capture where torch reports
    that ``fn`` synchronises, and CaptureAborted where the driver aborts the capture.
    """
    import torch

    if not torch.cuda.is_available():
        raise NotCapturable("CUDA graphs need a GPU, and torch sees none. Use mode: eager.")
    # One stream for both: on ROCm, hipBLASLt makes its handle at the first use of a stream, which a capture forbids.
    side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(_CALLS_BEFORE_CAPTURE):
            waits = count_synchronising_operations(fn)
        if waits:
            raise NotCapturable(f"the call synchronises ({waits} operations, as item() and cpu() do). Use mode: eager.")
        failed: Exception | None = None
        try:
            with torch.cuda.graph(graph, stream=side):
                try:
                    fn()
                except Exception as error:  # whatever the driver, torch or the workload raises: this call has no graph
                    failed = error
        except Exception as error:  # the end of an aborted capture only reports that an earlier call failed
            raise CaptureAborted(_failure(failed or error)) from error
        if failed is not None:
            raise NotCapturable(_failure(failed)) from failed
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()

    # The graph holds only addresses, so ``captured``, which owns the tensors, must live as long.
    def replay(captured: object = fn) -> None:
        graph.replay()

    return replay


def _failure(error: Exception) -> str:
    return f"the call cannot be captured as a CUDA graph: {words(error)}. Use mode: eager."
