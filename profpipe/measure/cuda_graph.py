"""Captures a call as a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from profpipe.errors import words
from profpipe.measure.launch_profile import count_synchronising_operations

#: Calls on the capture's stream before the capture, as torch's documentation asks for; Triton autotunes in the first.
_CALLS_BEFORE_CAPTURE: Final = 3


class NotCapturable(RuntimeError):
    """The call cannot become a CUDA graph; the message gives the reason."""


class CaptureAborted(NotCapturable):
    """The driver aborted the capture; nothing more can be measured in this process.

    torch (2.11, in part up to 2.13) then behaves as in a capture: the allocator never frees the memory of that
    capture, so every later peak includes it, and the random number generator raises errors.
    """


@dataclass(frozen=True)
class _Replay:
    """A captured graph. The graph holds only addresses, so ``captured``, which owns the tensors, must live as long."""

    graph: Any
    captured: Callable[[], object]

    def __call__(self) -> None:
        self.graph.replay()


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
    return _Replay(graph, fn)


def _failure(error: Exception) -> str:
    return f"the call cannot be captured as a CUDA graph: {words(error)}. Use mode: eager."
