"""The processes of a distributed job: which one this is, and how they stay in step.

If one process makes a collective call that another does not, both wait forever. So the processes take all decisions
together: at an exchange they publish messages in the store of torchrun's agent, which needs neither CUDA nor
NCCL and works after their errors. A process that cannot continue says so, and the others leave the case as well.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from profpipe.job import Status
from profpipe.measure.flags import Flag

#: How long a process that ends a case waits for the others. After that they wait for it inside the case.
PEER_TIMEOUT_S: Final = 60.0
#: The limits of a job end it before this.
_FOREVER: Final = timedelta(days=7)

#: Key in the store once a process has left because the others did not come.
_LEFT: Final = "gone"

#: The status in a message of a process that continues the case.
CONTINUE: Final = ""
#: Ends of a case, the most severe first: it becomes the end of the case in all processes.
_SEVERITY: Final[tuple[str, ...]] = (Status.CRASHED, Status.OOM, Status.FAILED, Status.SKIPPED)


@dataclass(frozen=True)
class CaseEnd:
    """How a case ended."""

    status: str
    reason: str = ""
    flags: Sequence[str] = ()


class EndedByPeer(Exception):
    """Another process ended the case, as ``end`` says."""

    def __init__(self, end: CaseEnd) -> None:
        super().__init__(f"{end.status}: {end.reason}")
        self.end = end


class PeerTimeout(Exception):
    """The other processes did not come within ``PEER_TIMEOUT_S``: they wait for this process inside the case."""


@dataclass(frozen=True)
class RankMessage:
    """What one process publishes at an exchange: where it is, how the case ended for it, and numbers to compare."""

    place: str
    status: str = CONTINUE
    reason: str = ""
    flags: Sequence[str] = ()
    values: Sequence[float] = ()


@dataclass(eq=False)
class Ranks:
    """The processes of the job, as process ``rank`` of ``size`` sees them. A single process exchanges nothing.

    ``missing_gpus`` is the reason why the processes cannot work together here, or empty.
    """

    rank: int = 0
    size: int = 1
    missing_gpus: str = ""
    store: Any = field(default=None, repr=False)
    exchanges: int = 0

    @property
    def is_distributed(self) -> bool:
        return self.size > 1

    def describe(self) -> dict[str, int]:
        """Return the fields for the first event of this process."""
        return {"rank": self.rank, "processes": self.size} if self.is_distributed else {}

    def file_name(self, name: str) -> str:
        """Return ``name`` for a file of this process; rank 0 keeps the names of a single process."""
        return f"{name}.rank{self.rank}" if self.rank else name

    def barrier(self, place: str) -> None:
        """Wait for all processes. Raises EndedByPeer if one of them ended the case."""
        self._exchange_and_continue(RankMessage(place))

    def all_max(self, value: float) -> float:
        """Return the largest of all processes' values. Raises EndedByPeer."""
        return self.all_max_each([value])[0]

    def all_max_each(self, values: Sequence[float]) -> list[float]:
        """Return the largest value at an index over all processes, which have equally many. Raises EndedByPeer."""
        messages = self._exchange_and_continue(RankMessage("numbers", values=tuple(values)))
        return [max(at_index) for at_index in zip(*(message.values for message in messages), strict=True)]

    def agree_on_end(self, end: CaseEnd) -> CaseEnd:
        """Return how the visit to a case ended: the most severe end of any process, and the flags of all.

        Raises PeerTimeout if this process ends the case early and the others do not come to the exchange.
        """
        # A failed check may have left the others in the middle of it.
        is_early = end.status in _SEVERITY or Flag.UNCHECKED in end.flags
        message = RankMessage("end", end.status, end.reason, tuple(end.flags))
        messages = self._exchange(message, PEER_TIMEOUT_S if is_early else None)
        of_all = tuple(dict.fromkeys(flag for message in messages for flag in message.flags))
        worst = _most_severe_end(messages) or end
        return CaseEnd(worst.status, worst.reason, of_all)

    def shutdown(self) -> None:
        """Destroy the process group after the last case."""
        if self.is_distributed:
            import torch

            self._exchange(RankMessage("parting"), None)
            if torch.distributed.is_initialized():
                torch.distributed.destroy_process_group()

    def _exchange_and_continue(self, message: RankMessage) -> list[RankMessage]:
        messages = self._exchange(message, None)
        if ended := _most_severe_end(messages):
            raise EndedByPeer(ended)
        return messages

    def _exchange(self, message: RankMessage, timeout_s: float | None) -> list[RankMessage]:
        """Publish ``message`` and return the messages of all processes in order of rank."""
        if not self.is_distributed:
            return [message]
        self.exchanges += 1
        keys = [f"{self.exchanges}/{rank}" for rank in range(self.size)]
        self.store.set(keys[self.rank], json.dumps(vars(message)))
        try:
            self.store.wait(keys, timedelta(seconds=timeout_s) if timeout_s else _FOREVER)
        except RuntimeError as error:
            if timeout_s is None:
                raise
            self.store.set(_LEFT, "")
            raise PeerTimeout from error
        messages = [RankMessage(**json.loads(self.store.get(key))) for key in keys]
        if any(peer.status in _SEVERITY for peer in messages) and self.store.check([_LEFT]):
            # The process that timed out has recorded the end of the case; this one was only released by its exit.
            sys.exit(1)
        return messages


SINGLE_PROCESS: Final = Ranks()


def _most_severe_end(messages: Sequence[RankMessage]) -> CaseEnd | None:
    """Return the end of the case for all, with its rank where not all agree; None while the case continues."""
    ends = [(rank, message) for rank, message in enumerate(messages) if message.status in _SEVERITY]
    if ends:
        rank, worst = min(ends, key=lambda end: _SEVERITY.index(end[1].status))
        all_agree = len(ends) == len(messages) and len({message.reason for message in messages}) == 1
        return CaseEnd(worst.status, worst.reason if all_agree else f"rank {rank}: {worst.reason}")
    if len({message.place for message in messages}) > 1:
        where = ", ".join(f"rank {rank} at {message.place!r}" for rank, message in enumerate(messages))
        return CaseEnd(Status.FAILED, f"the processes are out of step: {where}")
    return None


def join(processes: int) -> Ranks:
    """Join the processes that torchrun started, and create their process group.

    torchrun sets the rank in the environment. On GPUs the backend is NCCL, with the GPU of the same number for a
    rank; tensors on the CPU use gloo.
    """
    if processes == 1:
        return SINGLE_PROCESS
    import torch
    from torch import distributed

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    # A separate client: the store of the process group does not support several threads.
    agent = distributed.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    ranks = Ranks(rank, size, missing_gpus(torch, size), distributed.PrefixStore("profpipe", agent))
    if not ranks.missing_gpus:
        if torch.cuda.is_available():
            torch.cuda.set_device(rank)
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        distributed.init_process_group(backend)
    return ranks


def missing_gpus(torch: Any, size: int) -> str:
    """Return why ``size`` processes have too few GPUs here, or an empty text. Without any GPU they use the CPU."""
    count = torch.cuda.device_count()
    if not torch.cuda.is_available() or count >= size:
        return ""
    return f"needs {size} GPUs, and torch sees {count} here. Run it where there are {size}, or set fewer processes."
