"""How findings are called in sentences and in tables: numbers with their units, cases, workloads, lists."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final
from urllib.parse import unquote

from profpipe.analysis.case_index import CPU_ROWS, TimeSource
from profpipe.analysis.cases import in_words
from profpipe.analysis.findings import CaseResult, Findings, Iteration, WorkloadFindings
from profpipe.analysis.grouping import grouped
from profpipe.report import document as doc
from profpipe.report.document import Code, Text, case_link, inlines, join
from profpipe.report.units import PERCENT, PLUS_MINUS, RATIO, Unit, time_unit

PART_NAMES: Mapping[str, str] = {
    "attention": "attention", "helpers": "attention helpers", "direct_copy": "direct_copy", "add": "add",
    "gemm": "gemm", "softmax": "softmax", "rest": "everything else", "graph": "whole graphs",
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


def is_on_cpu(findings: Findings) -> bool:
    """Return True if the profilers recorded CPU operators only."""
    breakdowns = (case.breakdown for workload in findings.workloads for case in workload.cases)
    return {breakdown.kind for breakdown in breakdowns if breakdown} == {"cpu_op"}


def add_workload(name: str, findings: Findings) -> Text:
    """Return `` of attention`` where the run has several workloads."""
    return (" of ", Code(name)) if len(findings.workloads) > 1 else ""


def iteration(workload: WorkloadFindings) -> str:
    """Return what kernel times are of: ``call``, ``step``, ``process``."""
    return "call" if workload.iteration is Iteration.CAPTURE else workload.iteration.value


def per_iteration(workload: WorkloadFindings) -> str:
    """Return ``/call`` or ``/step``, which follows the unit of a kernel time; empty where times are of everything."""
    return {Iteration.CALL: "/call", Iteration.STEP: "/step"}.get(workload.iteration, "")


#: By quantity: what a time is, what follows it in a sentence, and what it is measured over, one and several.
_TIMES: Mapping[str, tuple[str, str, str, str]] = {
    "time": ("median time of a call", "per call", "sample", "samples"),
    "step": ("median time of a steady step", "per step", "step", "steps"),
    "wall": ("process wall time, start-up included", "of process wall time", "process", "processes"),
    "kernel": ("kernel time per call", "of kernel time per call", "iteration", "iterations"),
    "cpu_op": (
        "self time of CPU operators per call", "of CPU operators' self time per call", "iteration", "iterations",
    ),
}  # fmt: skip


def quantity(source: TimeSource | None, are_uneven: bool = False) -> str:
    """What the times of a workload are, in words. ``are_uneven``: steps of a case are, and their time is the mean."""
    if source is None:
        return ""
    words = _TIMES[source.quantity][0].replace(CPU_ROWS, source.rows)
    if source.quantity == "step" and are_uneven:
        words += ", of uneven steps the mean"
    return words if source.profiler == "plain" else f"{words} ({source.profiler})"


def write_what(source: TimeSource | None) -> str:
    """``per call``: what follows a time in a sentence."""
    return _TIMES[source.quantity][1].replace(CPU_ROWS, source.rows) if source else ""


def samples(source: TimeSource, counts: Iterable[int]) -> str:
    """Return ``30 samples`` or ``3 to 5 steps``: what times are measured over, of each case so many."""
    one, several = _TIMES[source.quantity][2:]
    over = span(counts)
    return f"{over} {one if over == '1' else several}"


# --- sentences -------------------------------------------------------------------------------------------------------

#: Stands for ``{}`` in a name until the template around it is filled.
_BRACES: Final = "{\ue000}"


def literal(name: str) -> str:
    """Return a name from outside as it may stand in a template."""
    return name.replace("{}", _BRACES)


def fill(template: str, *parts: Text) -> tuple[doc.Inline, ...]:
    """Return ``template`` with each ``{}`` replaced by the next of ``parts``. Names in it are ``literal``."""
    first, *texts = (text.replace(_BRACES, "{}") for text in template.split("{}", len(parts)))
    filled: list[doc.Inline] = [first]
    for part, text in zip(parts, texts, strict=True):
        filled += [*inlines(part), text]
    return tuple(inline for inline in filled if inline != "")


def duration(ns: float | None, unit: Unit | None = None) -> doc.Amount:
    """Return a time in ``unit``, or in the unit in which it reads best."""
    return doc.Amount(ns, unit or time_unit([ns]))


#: Ratios and shares.
ratio, percent, margin = (partial(doc.Amount, unit=unit) for unit in (RATIO, PERCENT, PLUS_MINUS))


def share_cell(share: float | None, flag: str | None = None) -> doc.TableCell | None:
    """Return a share as a percentage for a column whose title holds the sign."""
    return None if share is None else doc.TableCell(share, unit=PERCENT, flags=(flag,) if flag else ())


def make_time_cell(ns: float, share: float, unit: Unit | None = None, is_strong: bool = False) -> doc.TableCell:
    """Return a time followed by its share of the whole."""
    return doc.TableCell(ns, unit=unit, is_strong=is_strong, note=fill("({})", percent(share)))


def names(words: Sequence[str], most: int = 8) -> tuple[doc.Inline, ...]:
    """Return names as ``a, b and c``; of more than ``most`` the first and how many others there are."""
    return join([Code(word) for word in words], most=most)


def plural(number: int, noun: str, nouns: str = "") -> str:
    """Return ``1 case`` or ``3 cases``."""
    return f"{number} {noun if number == 1 else nouns or noun + 's'}"


def capitalise(text: str) -> str:
    """Return ``text`` with an upper-case first letter; ``str.capitalize`` changes the other letters too."""
    return text[:1].upper() + text[1:]


def span(values: Iterable[float], write: Callable[[float], str] = str) -> str:
    """Return ``5``, or ``5 to 9`` where the smallest and the largest value are written differently."""
    numbers = list(values)
    return " to ".join(dict.fromkeys(map(write, (min(numbers), max(numbers)))))


def means_note(workload: WorkloadFindings) -> str:
    """Return that kernel times are means over the GPUs; empty where those of one GPU alone are known."""
    if (most := max((case.breakdown.ranks for case in workload.cases if case.breakdown), default=1)) > 1:
        what = (
            "GPUs"
            if any(len(case_steps.ranks) > case_steps.processes for case_steps in workload.steps.cases)
            else "ranks"
        )
        return f"Kernel times are means over {most} {what}; communication includes waiting for the others."
    kernel_ranks = (rank for rank in workload.ranks if rank.profiler == workload.kernel_profiler)
    seen = [rank.case for rank in kernel_ranks if "communication_busy" in rank.numbers]
    if len(seen) == len(set(seen)):
        return ""
    return "Kernel times of several GPUs are means over them; communication includes waiting for the others."


# --- short names of kernels: the kernel, and what distinguishes it from kernels of the same template ------------------

#: What distinguishes instances of a generic kernel: the functor or the operation that it is instantiated with.
_TELLING = re.compile(
    r"\b(?!gpu_kernel|\w*elementwise_kernel)\w*(?:_kernel_cuda|_kernel_impl|_kernel|Functor_?\w*|Ops?)\b"
    r"(?:<[\w:., ]{1,24}>)?"
)

#: Wrappers among those: what they wrap is more specific.
_WRAPPER = re.compile(r"(?:Reduce|[AB]?(?:Unary|Binary))(?:Ops?|Functor)|gpu_index_kernel")

#: A kernel made for a lambda carries the function that the lambda was written in.
_LAMBDA_OF = re.compile(r"(\w+)\([^()]*\)(?:::|[ ]?const)*\{lambda")

#: What generated names say the same of all of them: cuBLAS's between the tile and the end, cuDNN's maker.
_GENERATED = re.compile(r"_stage\d+_warpsize\w*?_(?=cublas|cudnn|cutlass|$)|_generated_fort_native_")

_LONGEST, _LONGEST_SUFFIX = 4_000, 32

#: Kernels whose own name says nothing of what they do.
_GENERIC = re.compile(r"elementwise_kernel|reduce_kernel|multi_tensor_apply_kernel|device_kernel|Kernel2?$|kentry")


def shorten(name: str, width: int = 72) -> str:
    """Shorten a kernel's name to about ``width`` characters: the function, and the argument that distinguishes it.

    ``at::elementwise_kernel<128, 4, at::gpu_kernel_impl_nocast<at::direct_copy_kernel_cuda(...)...`` becomes
    ``elementwise_kernel<…direct_copy_kernel_cuda…>``.
    """
    # A long name is searched in its beginning: the search takes time by the square of the length.
    base, arguments = _taken_apart(" ".join(name[:_LONGEST].split()).replace("(anonymous namespace)::", ""))
    if not arguments:
        return _cut(base if len(base) <= width else _GENERATED.sub("…", base), width)
    whole = f"{base}<{arguments}>"
    if len(whole) <= width:
        return whole
    telling = _telling(arguments, generic=bool(_GENERIC.search(base)))
    if telling:
        return _cut(f"{base}<…{telling}…>", width)
    numbers = re.findall(r"(?<![\w:])\d+(?!\w)", arguments)
    return _cut(f"{base}<{', '.join(numbers[:4])}, …>" if numbers else whole, width)


def _telling(arguments: str, generic: bool) -> str:
    candidates = [m.group() for m in _TELLING.finditer(arguments)] if generic else []
    precise = [candidate for candidate in candidates if not _WRAPPER.match(candidate)]
    if precise or candidates:
        return (precise or candidates)[0]
    if function := _LAMBDA_OF.search(arguments):
        return function[1]
    # `kentry<1, ck_tile::Rmsnorm2dFwd<...>>` is distinguished by its first type that is not one of C++.
    match = re.search(r"\b(?:\w+::)+(\w{4,})", arguments) if generic else None
    return match[1] if match else ""


def _taken_apart(name: str) -> tuple[str, str]:
    """(own name without PyTorch's namespaces, return type and parameters; its template arguments)."""
    match = re.match(r"^(?:void )?([^<(]+)(<?)", name)
    if match is None:
        return name, ""
    rest, depth = (name[match.end() :], 1) if match[2] else ("", 0)
    end = 0
    while depth and end < len(rest):
        depth += (rest[end] == "<") - (rest[end] == ">" and rest[end - 1 : end] != "-")
        end += 1
    return re.sub(r"^(?:at::(?:native::)?|c10::)+", "", match[1].strip()), rest[
        : end - 1
    ] if depth == 0 and end else rest


def _cut(text: str, width: int) -> str:
    """The middle goes: names begin with what they are and end with the tile or the type."""
    if len(text) <= width:
        return text
    head = (width - 1) * 2 // 3
    return f"{text[:head]}…{text[len(text) - (width - 1 - head) :]}"


def short_names(names: Iterable[str], width: int = 72) -> dict[str, str]:
    """Full name to short name of about ``width`` characters; two kernels never share one.

    Names that would be alike get the words in which they differ: ``kernel<…MulFunctor<float>…> (AUnaryFunctor)``.
    """
    alike = grouped((shorten(name, width), name) for name in dict.fromkeys(names))
    return {
        name: f"{short} ({words})" if words else short
        for short, group in alike.items()
        for name, words in zip(group, _tell_apart(group), strict=True)
    }


def _tell_apart(names: Sequence[str]) -> list[str]:
    """Return for each name the first words that together no other has; its number where they would be long."""
    chosen: list[tuple[str, ...]] = [()] * len(names)
    columns = itertools.zip_longest(*(re.findall(r"(?:\w+::)*(#?\w+)", name) for name in names), fillvalue="-")
    # Numbers of a template say less than words.
    for column in sorted(columns, key=lambda column: not any(word[0].isalpha() for word in column)):
        longer = [(*words, word) for words, word in zip(chosen, column, strict=True)]
        chosen = longer if len(set(longer)) > len(set(chosen)) else chosen
    suffixes = list(map(", ".join, chosen))
    differ = len(set(chosen)) == len(names) and max(map(len, suffixes)) <= _LONGEST_SUFFIX
    return suffixes if differ else list(map(str, range(1, len(names) + 1)))
