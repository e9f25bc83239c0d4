"""Describe the node that this runs on, for programs on several nodes of a cluster: ``python -m profpipe.measure.node``.

On standard output: a JSON object with the node's name for Slurm, its hardware and versions of packages, in lines that
srun does not mix with those of other nodes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, Final

from profpipe.hook import settings
from profpipe.measure import machine


def name() -> str:
    """Return the name of this node, which the records of the start-up hook have too."""
    return settings.node_name()


def describe() -> dict[str, Any]:
    return {"node": name(), "machine": machine.machine(machine.nvidia_gpus()), "packages": machine.packages()}


#: srun passes on up to 1024 bytes at a time (``MAX_MSG_LEN`` in Slurm), so longer lines of several nodes get mixed.
_PIECE: Final = 500
_MARK: Final = "profpipe-node"


def as_lines(described: dict[str, Any]) -> Iterator[str]:
    """Yield the description of a node in short lines, with the name of the node."""
    text = json.dumps(described)
    for begin in range(0, len(text), _PIECE):
        yield f"{_MARK} {described['node']} {text[begin : begin + _PIECE]}"


def from_lines(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield the descriptions in the lines of several nodes, among lines of srun. One that lacks a part is left out."""
    pieces: dict[str, list[str]] = {}
    for line in lines:
        words = line.split(" ", 2)
        if words[0] == _MARK and len(words) == 3:
            pieces.setdefault(words[1], []).append(words[2])
    for parts in pieces.values():
        try:
            yield json.loads("".join(parts))
        except ValueError:
            continue


if __name__ == "__main__":
    print("\n".join(as_lines(describe())))
