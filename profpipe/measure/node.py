"""Describe the node that this runs on, for programs on several nodes of a cluster: ``python -m profpipe.measure.node``.

One line on standard output: a JSON object with the node's name for Slurm, its hardware and versions of packages.
"""

from __future__ import annotations

import json

from profpipe.hook import settings
from profpipe.measure import machine


def name() -> str:
    """Return the name of this node, which the records of the start-up hook have too."""
    return settings.node_name()


def describe() -> dict[str, object]:
    return {"node": name(), "machine": machine.machine(machine.nvidia_gpus()), "packages": machine.packages()}


if __name__ == "__main__":
    print(json.dumps(describe()))
