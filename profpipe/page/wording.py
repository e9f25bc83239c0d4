"""How findings are called in sentences and in tables."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import unquote

from profpipe.findings import Axes, Basis, Point, WorkloadFindings
from profpipe.page.markdown import code, escape
from profpipe.points import in_words

PART_NAMES: Mapping[str, str] = {
    "attention": "Attn", "helpers": "Attn helpers", "direct_copy": "direct_copy", "add": "add", "gemm": "gemm",
    "softmax": "softmax", "rest": "everything else", "graph": "whole graphs",
    "copies": "copies and sets (no kernels)",
}  # fmt: skip

#: The same parts inside a sentence.
PARTS_SAID: Mapping[str, str] = {
    "helpers": "its helper kernels", "direct_copy": "copies", "add": "additions", "gemm": "gemm", "softmax": "softmax",
    "rest": "other kernels", "graph": "graphs", "copies": "copies and sets that are no kernels",
}  # fmt: skip

SWAP_HEADING = "What a swap really costs"

#: Said beside TFLOP/s of calls some of which are sparse.
DENSE_WORK = (
    "TFLOP/s count the dense work, also of calls that leave out a part of it, so they may pass what the GPU can do; "
    "effective ones count what is done."
)


def axes(shape: Axes) -> str:
    """``seqlen 2048, causal``: a shape as people say it."""
    return escape(in_words(shape))


def case_label(point: Point) -> str:
    """``seqlen 512, `flash` ``: a case in words."""
    words = [part for part in (axes(point.shape), code(point.variant)) if part]
    return ", ".join(words) or case_id(point.id) or "whole capture"


def case_id(case: str) -> str:
    """A case by its name, as its parameters are written: a comma inside a value is ``%2C`` in the name."""
    return code(unquote(case))


def cases(number: int) -> str:
    """``1 case``, ``3 cases``."""
    return f"{number} case{'' if number == 1 else 's'}"


def quantity(basis: Basis | None) -> str:
    """What the times of a workload are, in words."""
    if basis is None:
        return ""
    if basis.quantity == "time":
        return "median time of a call"
    if basis.quantity == "wall":
        return "wall time of the process, start-up included"
    if basis.quantity == "cpu_op":
        return f"self time of CPU operators per call ({basis.profiler})"
    return f"kernel time per call ({basis.profiler})"


def of_what(basis: Basis | None) -> str:
    """``per call``: what follows a time in a sentence."""
    words = {
        "time": "per call",
        "wall": "of wall time",
        "kernel": "of kernel time per call",
        "cpu_op": "of CPU operators' self time per call",
    }
    return words[basis.quantity] if basis else ""


def heading(title: str, workload: WorkloadFindings, alone: bool) -> str:
    """A section's heading; with several workloads in a report each carries its workload's name."""
    return title if alone else f"{title}: {escape(workload.name)}"
