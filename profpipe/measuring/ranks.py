"""The processes of a job that has several: who this one is, and how they stay in step.

They are started by torchrun and call collective operations together, so all of them must make the same calls in the
same order: where one makes a call more than another, both wait for ever. So whatever one of them decides, all decide
together, at meetings that each of them comes to: what it has to say is left in the store of torchrun's agent, outside
CUDA and NCCL, and so also after an error of these. Who cannot go on says so at its next meeting; the others read it at
theirs and leave the case with it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

#: How long a process that ends a case waits for the others. Later than that, they wait for it inside the case.
PATIENCE_S: Final = 60.0
#: A job ends by its own limits before this.
_FOREVER: Final = timedelta(days=7)

#: In the store once a process has left because the others did not come.
_GONE: Final = "gone"

#: The case goes on.
ON: Final = ""
#: Ends of a case, the gravest first: of several, it is the reason of the others.
_GRAVEST: Final = ("crashed", "oom", "failed", "skipped")


class Ended(Exception):
    """Another process has ended the case: ``status`` and ``reason``."""

    def __init__(self, status: str, reason: str) -> None:
        super().__init__(f"{status}: {reason}")
        self.status, self.reason = status, reason


class Absent(Exception):
    """The other processes did not come within ``PATIENCE_S``: they wait for this one inside the case."""


@dataclass(frozen=True)
class Said:
    """What one process says at a meeting: where it is, what the case has come to, and numbers to be compared."""

    place: str
    status: str = ON
    reason: str = ""
    flags: Sequence[str] = ()
    values: Sequence[float] = ()


@dataclass(eq=False)
class Ranks:
    """The processes, seen from number ``rank`` of ``size``. Of one, every meeting ends as it begins.

    ``lack`` says why they cannot work together here.
    """

    rank: int = 0
    size: int = 1
    lack: str = ""
    store: Any = field(default=None, repr=False)
    meetings: int = 0

    @property
    def several(self) -> bool:
        return self.size > 1

    def described(self) -> dict[str, int]:
        """For the first line of the record."""
        return {"rank": self.rank, "processes": self.size} if self.several else {}

    def named(self, name: str) -> str:
        """``name`` for a file of this process's own; the first has the names that it would have alone."""
        return f"{name}.rank{self.rank}" if self.rank else name

    def step(self, place: str) -> None:
        """Waits until all are here. Raises Ended where one has ended the case instead."""
        self._together(Said(place))

    def most(self, value: float) -> float:
        """The largest of all processes' values. Raises Ended."""
        return self.largest([value])[0]

    def largest(self, values: Sequence[float]) -> list[float]:
        """The largest of all processes' values in each place; all of them have as many. Raises Ended."""
        said = self._together(Said("numbers", values=tuple(values)))
        return [max(at_once) for at_once in zip(*(each.values for each in said), strict=True)]

    def agreed(self, status: str, reason: str, flags: Sequence[str] = ()) -> tuple[str, str, Sequence[str]]:
        """What the visit to a case came to: the gravest end that any process met, and the marks of all.

        Raises Absent where this process ends the case before its time and the others do not learn of it.
        """
        # A check that failed may have left the others in the midst of it.
        early = status in _GRAVEST or "unchecked" in flags
        said = self._meet(Said("end", status, reason, tuple(flags)), PATIENCE_S if early else None)
        ended = _gravest(said)
        marks = tuple(dict.fromkeys(flag for each in said for flag in each.flags))
        return (*ended, marks) if ended else (status, reason, marks)

    def part(self) -> None:
        """Takes the processes apart, after their last case."""
        if self.several:
            import torch

            self._meet(Said("parting"), None)
            if torch.distributed.is_initialized():
                torch.distributed.destroy_process_group()

    def _together(self, own: Said) -> list[Said]:
        said = self._meet(own, None)
        if ended := _gravest(said):
            raise Ended(*ended)
        return said

    def _meet(self, own: Said, patience_s: float | None) -> list[Said]:
        """What each of them says, in order of rank."""
        if not self.several:
            return [own]
        self.meetings += 1
        keys = [f"{self.meetings}/{rank}" for rank in range(self.size)]
        self.store.set(keys[self.rank], json.dumps(vars(own)))
        try:
            self.store.wait(keys, timedelta(seconds=patience_s) if patience_s else _FOREVER)
        except RuntimeError as error:
            if patience_s is None:
                raise
            self.store.set(_GONE, "")
            raise Absent from error
        said = [Said(**json.loads(self.store.get(key))) for key in keys]
        if any(each.status in _GRAVEST for each in said) and self.store.check([_GONE]):
            # Who waited in vain has written down the case's end and left; its end only let this process out of it.
            sys.exit(1)
        return said


ALONE: Final = Ranks()


def record(rank: int) -> str:
    """The file that a process writes its events to. What counts for the job is the first one's."""
    return f"events.rank{rank}.jsonl" if rank else "events.jsonl"


def _gravest(said: Sequence[Said]) -> tuple[str, str] | None:
    """The end that counts for all, with the rank that met it where not all did; None while the case goes on."""
    ends = [(rank, each) for rank, each in enumerate(said) if each.status in _GRAVEST]
    if ends:
        rank, first = min(ends, key=lambda end: _GRAVEST.index(end[1].status))
        alike = len(ends) == len(said) and len({each.reason for each in said}) == 1
        return first.status, first.reason if alike else f"rank {rank}: {first.reason}"
    if len({each.place for each in said}) > 1:
        where = ", ".join(f"rank {rank} at {each.place!r}" for rank, each in enumerate(said))
        return "failed", f"the processes are out of step: {where}"
    return None


def joined(processes: int) -> Ranks:
    """This process among those that torchrun started, which names it in its environment; their process group is made.

    NCCL on GPUs, each process with the one of its rank, gloo for what is on the CPU.
    """
    if processes == 1:
        return ALONE
    import torch
    from torch import distributed

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    # A client of its own: the process group's store is not made for several threads.
    agent = distributed.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    ranks = Ranks(rank, size, _lack(torch, size), distributed.PrefixStore("profpipe", agent))
    if not ranks.lack:
        if torch.cuda.is_available():
            torch.cuda.set_device(rank)
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        distributed.init_process_group(backend)
    return ranks


def _lack(torch: Any, size: int) -> str:
    """Without a GPU they work on the CPU, however many they are."""
    here = torch.cuda.device_count()
    if not torch.cuda.is_available() or here >= size:
        return ""
    return f"needs {size} GPUs, and torch sees {here} here. Run it where there are {size}, or set fewer processes."
