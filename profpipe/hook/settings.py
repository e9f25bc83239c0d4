"""What the runner asks of the hook: the environment variable PROFPIPE_HOOK, a JSON object."""

from __future__ import annotations

import json
import os
import re
import socket
from typing import Any, Dict, Optional, Pattern

#: Variables in which launchers give a process its number among all processes, and among those of this machine.
_RANK = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID")
_LOCAL_RANK = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")
_LOCAL_SIZE = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")


class HookSettings:
    """``warmup`` and ``measure`` count steps. ``stem`` begins the names of the files in ``folder``."""

    def __init__(self, given: Dict[str, Any]) -> None:
        self.folder = str(given["folder"])
        self.stem = str(given["stem"])
        self.profiler = str(given["profiler"])
        #: The node of a program on several nodes; empty on one machine.
        self.node = node_name() if int(given.get("nodes") or 1) > 1 else ""
        steps = given["steps"]
        self.warmup = int(steps["warmup"])
        # ncu replays a kernel many times, so one step is enough, and all that a user wants to wait for.
        self.measure = 1 if self.profiler == "ncu" else int(steps["measure"])
        self.stop = bool(steps["stop"])
        #: Whether profpipe chose to end the program, which the user did not ask for.
        self.is_stop_chosen = bool(steps.get("is_stop_chosen"))
        self.forward = bool(steps["forward"])
        #: The module whose calls are the steps, where plain has shown it.
        self.module = str(steps.get("module") or "")
        #: Steps of the optimizer that are an iteration, and the number of the first of them, where plain has shown it.
        self.stride, self.offset = int(steps.get("stride") or 1), int(steps.get("offset") or 0)
        self.range: Optional[Pattern[str]] = re.compile(steps["range"]) if steps.get("range") else None
        torch = given.get("torch") or {}
        self.with_stack = bool(torch.get("with_stack"))
        self.record_shapes = bool(torch.get("record_shapes"))
        #: The span to record instead of steps: ``started_s`` (of ``time.monotonic``), ``after_s`` and ``for_s``.
        self.capture: Optional[Dict[str, float]] = given.get("capture")
        #: Whether the program writes a trace itself, which the runner collects.
        self.is_collected = bool(given.get("collect"))

    @property
    def last(self) -> int:
        """The number of the last chosen step."""
        return self.warmup + self.measure - 1

    @property
    def place(self) -> str:
        """The beginning of the names of files: ``node1.``, for processes of several nodes may have equal ids.

        It is empty on one machine.
        """
        return re.sub(r"[^\w-]", "-", self.node) + "." if self.node else ""

    def path(self, name: str) -> str:
        """Return the path of one of the hook's files."""
        return os.path.join(self.folder, f"hook.{self.stem}.{name}")


def read() -> Optional[HookSettings]:
    """Return the settings of this process; None where no profpipe profiles it."""
    text = os.environ.get("PROFPIPE_HOOK")
    return HookSettings(json.loads(text)) if text else None


def node_name() -> str:
    """Return the name of this node as Slurm has it.

    Where Slurm does not give it, as in a process that no srun started, it is the name of the host without the domain:
    slurmd finds its node by that name (``slurmd(8)``, option ``-N``).
    """
    host = socket.gethostname()
    first = host.partition(".")[0]
    return os.environ.get("SLURMD_NODENAME") or (host if first.isdigit() else first)


def rank() -> Optional[int]:
    """Return the number of this process among those that work together, None where no launcher gave one."""
    return _number(_RANK)


def local_rank() -> Optional[int]:
    """Return the number of this process among those on this machine, None where no launcher gave one."""
    return _number(_LOCAL_RANK)


def local_size() -> int:
    """Return the number of processes on this machine that work together."""
    return _number(_LOCAL_SIZE) or 1


def _number(names: Any) -> Optional[int]:
    texts = (os.environ.get(name, "") for name in names)
    return next((int(text) for text in texts if text.isdigit()), None)
