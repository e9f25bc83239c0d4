"""How findings are called in sentences and in tables: numbers with their units, cases, workloads, lists."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Final
from urllib.parse import unquote

from profpipe.analysis.case_index import Basis
from profpipe.analysis.cases import in_words
from profpipe.analysis.findings import CaseResult, Findings, Iteration, WorkloadFindings
from profpipe.report import document as doc
from profpipe.report.document import Code, Text, case_link, inlines, join
from profpipe.report.units import PERCENT, PLUS_MINUS, RATIO, Unit, time_unit
from profpipe.results.manifest import Manifest

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

#: The note at TFLOP/s of calls some of which are sparse.
DENSE_WORK = (
    "TFLOP/s count the dense work, also of calls that leave out a part of it, so they may pass what the GPU can do; "
    "effective ones count what is done."
)


def case_text(point: CaseResult) -> Text:
    """Return a case in words: ``seqlen 512, flash`` with the compared value as code. It leads to the case."""
    parts: list[Text] = [in_words(point.shape)] if point.shape else []
    parts += [Code(point.variant)] if point.variant else []
    if not parts and not point.id:
        return "whole capture"
    return case_link(join(parts, last=", ") or Code(unquote(point.id)), point.id)


def marked_text(point: CaseResult, otherwise: Text = "") -> Text:
    """Return a case in words, a baseline marked. A case without an id is ``otherwise``."""
    words = case_text(point) if point.id or not otherwise else otherwise
    return (*inlines(words), " (baseline)") if point.is_baseline else words


def variant_text(point: CaseResult) -> Text:
    """Return the compared value of a case as code. It leads to the case."""
    return case_link(Code(point.variant), point.id)


def case_texts(cases: Iterable[CaseResult]) -> dict[str, Text]:
    """Return the cases in words, by id."""
    return {case.id: case_text(case) for case in cases}


def has_no_gpu(run: Manifest) -> bool:
    """Return True if the run's machine has no GPU; of files from elsewhere the machine is unknown."""
    return run.machine.gpus == ()


def is_on_cpu(findings: Findings) -> bool:
    """Return True if the profilers recorded CPU operators only."""
    breakdowns = (case.breakdown for workload in findings.workloads for case in workload.cases)
    return {breakdown.kind for breakdown in breakdowns if breakdown} == {"cpu_op"}


def of_workload(name: str, findings: Findings) -> Text:
    """Return `` of attention`` where the run has several workloads."""
    return (" of ", Code(name)) if len(findings.workloads) > 1 else ""


def iteration(workload: WorkloadFindings) -> str:
    """Return what kernel times are of: ``call``, ``step``, ``process``."""
    return "call" if workload.iteration is Iteration.CAPTURE else workload.iteration.value


def per_iteration(workload: WorkloadFindings) -> str:
    """Return ``/call`` or ``/step``, which follows the unit of a kernel time; empty where times are of everything."""
    return {Iteration.CALL: "/call", Iteration.STEP: "/step"}.get(workload.iteration, "")


def quantity(basis: Basis | None, are_uneven: bool = False) -> str:
    """What the times of a workload are, in words. ``are_uneven``: steps of a case are, and their time is the mean."""
    if basis is None:
        return ""
    if basis.quantity == "time":
        return "median time of a call"
    if basis.quantity == "step":
        average = "median time of a steady step" + (", of uneven steps the mean" if are_uneven else "")
        return average + ("" if basis.profiler == "plain" else f" ({basis.profiler})")
    if basis.quantity == "wall":
        return "process wall time, start-up included"
    if basis.quantity == "cpu_op":
        return f"self time of CPU operators per call ({basis.profiler})"
    return f"kernel time per call ({basis.profiler})"


def of_what(basis: Basis | None) -> str:
    """``per call``: what follows a time in a sentence."""
    words = {
        "time": "per call",
        "step": "per step",
        "wall": "of process wall time",
        "kernel": "of kernel time per call",
        "cpu_op": "of CPU operators' self time per call",
    }
    return words[basis.quantity] if basis else ""


# --- sentences -------------------------------------------------------------------------------------------------------

#: Stands for ``{}`` in a name until the template around it is filled.
_BRACES: Final = "{\ue000}"


def literal(name: str) -> str:
    """Return a name from outside as it may stand in a template."""
    return name.replace("{}", _BRACES)


def fill(template: str, *parts: Text) -> tuple[doc.Inline, ...]:
    """Return ``template`` with each ``{}`` replaced by the next of ``parts``. Names in it are ``literal``."""
    first, *texts = (text.replace(_BRACES, "{}") for text in template.split("{}", len(parts)))
    found: list[doc.Inline] = [first]
    for part, text in zip(parts, texts, strict=True):
        found += [*inlines(part), text]
    return tuple(inline for inline in found if inline != "")


def duration(ns: float | None, unit: Unit | None = None) -> doc.Number:
    """Return a time in ``unit``, or in the unit in which it reads best."""
    return doc.Number(ns, unit or time_unit([ns]))


#: Ratios and shares.
ratio, percent, margin = (partial(doc.Number, unit=unit) for unit in (RATIO, PERCENT, PLUS_MINUS))


def share_cell(share: float | None, flag: str | None = None) -> doc.Cell | None:
    """Return a share as a percentage for a column whose title holds the sign."""
    return None if share is None else doc.Cell(share, unit=PERCENT, flags=(flag,) if flag else ())


def with_share(ns: float, share: float, unit: Unit | None = None, is_strong: bool = False) -> doc.Cell:
    """Return a time followed by its share of the whole."""
    return doc.Cell(ns, unit=unit, is_strong=is_strong, note=fill("({})", percent(share)))


def names(words: Sequence[str], most: int = 8) -> tuple[doc.Inline, ...]:
    """Return names as ``a, b and c``; of more than ``most`` the first and how many others there are."""
    return join([Code(word) for word in words], most=most)


def plural(number: int, noun: str, nouns: str = "") -> str:
    """Return ``1 case`` or ``3 cases``."""
    return f"{number} {noun if number == 1 else nouns or noun + 's'}"


def means_note(workload: WorkloadFindings) -> str:
    """Return that kernel times are means over the GPUs; empty where those of one GPU alone are known."""
    if (most := max((case.breakdown.ranks for case in workload.cases if case.breakdown), default=1)) > 1:
        what = "GPUs" if any(len(own.ranks) > own.processes for own in workload.steps.cases) else "ranks"
        return f"Kernel times are means over {most} {what}; communication includes waiting for the others."
    own = (rank for rank in workload.ranks if rank.profiler == workload.kernel_profiler)
    seen = [rank.case for rank in own if "communication_busy" in rank.numbers]
    if len(seen) == len(set(seen)):
        return ""
    return "Kernel times of several GPUs are means over them; communication includes waiting for the others."
