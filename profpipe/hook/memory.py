"""The history of torch's allocator in this process, and which tensors are parameters and states of optimizers.

``capture.4711.memory.pickle`` is a snapshot of torch, which torch's viewer shows too. Its key ``profpipe`` has, as
JSON, what it lacks: addresses of tensors, begins of steps (us since the epoch, as in the snapshot), torch's counters
and what the driver says of the device. What runs out of memory leaves ``capture.4711.oom.memory.pickle``.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import pickle
import sys
import threading
import time
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, List, Tuple

from profpipe.hook import record, settings
from profpipe.hook.host import Places
from profpipe.hook.modules import ModuleMetadata
from profpipe.hook.record import HookRecord
from profpipe.hook.settings import HookSettings

#: Allocations and releases that the history keeps: the last ones.
_MOST_ENTRIES = 400_000
#: A search for the batch size may run out of memory many times: for so many seconds its snapshots are written.
_MOST_S = 20.0


class AllocatorHistory:
    """The history from the first use of the GPU on. No method raises: ``record`` gets what could not be recorded."""

    def __init__(self, torch: Any, path: str, record: HookRecord) -> None:
        self._torch, self._path, self._record = torch, path, record
        self._pid = os.getpid()
        self.steps: List[Tuple[int, int]] = []
        self._failed: List[Dict[str, Any]] = []
        self._spent_s = 0.0
        self._is_on = self._is_written = False
        self._places, self._modules = Places(), ModuleMetadata(torch, record)

    def begin(self) -> None:
        self._guard("begin", self._begin)

    def _begin(self) -> None:
        memory, what = self._torch.cuda.memory, f"torch {self._torch.__version__}"
        if not hasattr(memory, "_record_memory_history"):
            self._record.note(f"{what} records no history of its memory")
            return
        memory._record_memory_history("all", context="alloc", stacks="python", max_entries=_MOST_ENTRIES)
        self._is_on = True
        # To begin or end another one would empty this one.
        self._switch, memory._record_memory_history = memory._record_memory_history, self._keep
        if hasattr(self._torch._C, "_cuda_setMemoryMetadata"):
            self._modules.install()
        else:
            self._record.note(f"{what} does not keep the module of an allocation: activations have lines only")
        if hasattr(self._torch._C, "_cuda_attach_out_of_memory_observer"):
            self._torch._C._cuda_attach_out_of_memory_observer(self._note_failure)
        else:
            self._record.note(f"{what} does not tell when an allocation fails")

    def mark(self, number: int) -> None:
        """Note that step ``number`` begins."""
        self.steps.append((number, time.time_ns() // 1000))

    def write(self) -> None:
        """Write the snapshot, once."""
        if self._is_on and not self._is_written:
            self._is_written = True
            self._guard("snapshot", self._write, self._path)

    def end(self) -> None:
        """End the history."""
        self._modules.remove()
        if self._is_on:
            self._is_on, self._torch.cuda.memory._record_memory_history = False, self._switch
            self._guard("end", self._switch, None)

    def _keep(self, *given: object, **more: object) -> None:
        self._record.note("the program records its memory too: it has the history of profpipe instead")

    def _guard(self, during: str, act: Callable[..., None], *arguments: Any) -> None:
        try:
            # A forked process is none that this history knows.
            if os.getpid() == self._pid:
                act(*arguments)
        except Exception as error:  # the program must go on
            self._record.error(error, f"memory: {during}")

    def _note_failure(self, device: int, size: int, total: int, free: int) -> None:
        """Write what is held when an allocation of ``size`` bytes fails. Nothing here allocates on the GPU.

        ``total`` are the bytes that the process may use, or those of the device.
        """
        began = time.monotonic()
        if self._is_on and self._spent_s < _MOST_S:
            self._guard("an allocation that failed", self._write_failure, device, size, total, free)
        self._spent_s += time.monotonic() - began

    def _write_failure(self, device: int, size: int, total: int, free: int) -> None:
        # The thread of autograd has no line: that of the main thread, which waits in backward(), stands for it.
        main = sys._current_frames().get(threading.main_thread().ident or 0)
        number, is_backward = self._places.number(main)
        about = {"device": device, "asked": size, "may_use": total, "free": free, "place": self._places.names[number]}
        about["is_training"] = is_backward or self._torch.is_grad_enabled()
        # A backward pass runs after the block of autocast.
        about["is_autocast"] = self._modules.is_autocast or self._torch.is_autocast_enabled()
        self._failed.append(about)
        # The harness does not rename this one.
        folder, name = os.path.split(self._path.replace(".memory.pickle", ".oom.memory.pickle"))
        self._write(os.path.join(folder, name.replace("partial-", "")))

    def _write(self, path: str) -> None:
        library = self._torch.cuda
        used = [device for device in range(library.device_count()) if library.max_memory_reserved(device)]
        facts = {
            "pid": self._pid,
            "rank": settings.rank(),
            "torch": str(self._torch.__version__),
            "folder": os.getcwd(),
            "devices": {device: self._describe(library, device) for device in used},
            "steps": self.steps,
            "tensors": sorted(set(self._tensors())),
            "most_entries": _MOST_ENTRIES,
            "out_of_memory": self._failed,
        }
        # A text, as torch's viewer reads few types.
        record.write_whole(path, pickle.dumps({**library.memory._snapshot(), "profpipe": json.dumps(facts)}))

    def _describe(self, library: Any, device: int) -> Dict[str, Any]:
        free, total = library.mem_get_info(device)
        may_use = int(total * getattr(library, "get_per_process_memory_fraction", lambda of: 1.0)(device))
        return {**library.memory_stats(device), "free": free, "total": total, "may_use": may_use}

    def _tensors(self) -> Iterator[Tuple[int, int, str, str]]:
        """Yield addresses and devices of the tensors that modules and optimizers hold, and what they are."""
        torch, held = self._torch, []
        for owner in gc.get_objects():
            # Not by isinstance, which asks a proxy for its class.
            if issubclass(type(owner), torch.nn.Module):
                parts = (owner.__dict__.get(name, {}).values() for name in ("_parameters", "_buffers"))
                held += [("parameters", tensor) for tensor in itertools.chain(*parts)]
            elif issubclass(type(owner), torch.optim.Optimizer):
                held += [("parameters", tensor) for group in owner.param_groups for tensor in group["params"]]
                states = [state.values() for state in owner.state.values() if isinstance(state, dict)]
                held += [("optimizer", tensor) for tensor in itertools.chain(*states)]
        held = [(kind, tensor) for kind, tensor in held if isinstance(tensor, torch.Tensor) and tensor.is_cuda]
        gradients = (("gradients", tensor.grad) for kind, tensor in held if kind == "parameters")
        for kind, tensor in itertools.chain(held, (pair for pair in gradients if pair[1] is not None)):
            tensor = getattr(tensor, "_local_tensor", tensor)  # of a DTensor, which has no storage
            tensor = tensor._values() if tensor.layout == torch.sparse_coo else tensor
            data_type = str(tensor.dtype).rpartition(".")[2]
            yield tensor.untyped_storage().data_ptr(), tensor.device.index, kind, data_type


#: That of this process, once ``start`` has made it.
HISTORY: Any = None


def start(torch: Any, given: HookSettings, hook_record: HookRecord) -> None:
    """Begin the history when this process first uses the GPU. At the end of the process it is written."""
    global HISTORY
    number = settings.rank()
    process = f"rank{number}" if number is not None else str(os.getpid())
    path = os.path.join(given.folder, f"{given.stem}.{given.place}{process}.memory.pickle")
    HISTORY = AllocatorHistory(torch, path, hook_record)
    # It calls the function at once where the GPU is in use.
    torch.cuda._lazy_call(HISTORY.begin)
    record.at_end(HISTORY.write)


# --- scripts ---------------------------------------------------------------------------------------------------------


def at_start(given: Dict[str, Any]) -> None:
    """In a command ``start`` begins the history, when torch has been imported."""


@contextmanager
def wrap(call: Callable[[], object], case: str, path: str) -> Iterator[Callable[[], object]]:
    """Record the iterations of a case."""
    errors = HookRecord(lambda: path.replace(".memory.pickle", ".errors.jsonl"), dict)
    recorded = AllocatorHistory(sys.modules["torch"], path, errors)
    recorded.begin()
    library = sys.modules["torch"].cuda
    # The peak that torch counts is to be that of the history.
    for device in range(library.device_count()):
        recorded._guard("peak", library.reset_peak_memory_stats, device)

    def iterate() -> object:
        recorded.mark(len(recorded.steps))
        return call()

    try:
        yield iterate
    finally:
        recorded.write()
        recorded.end()
