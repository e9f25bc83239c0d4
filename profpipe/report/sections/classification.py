"""Which share of the kernel time has a class, which kernels are the program's own, and which families ran."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from profpipe.analysis.findings.workloads import Coverage, Expectation, Findings
from profpipe.config.quantities import is_own
from profpipe.report import document as doc
from profpipe.report.short_kernel_names import short_names
from profpipe.report.units import percent

#: Names of kernels without a class in a sentence.
_NAMED = 3


def classification(findings: Findings) -> doc.Section:
    """Return the classified share, the families that ran as requested, and the kernels of the program itself."""
    sentences = doc.join([*_covered(findings), *_families(findings)], " ", " ")
    rows = [(each.workload, doc.Code(name), share) for each in findings.coverage for name, share in each.largest]
    noun = "kernel" if any(each.kind == "kernel" for each in findings.coverage) else "operator"
    columns = (doc.label("workload"), doc.label("name", noun), doc.percent("share", "of the workload's time"))
    are_theirs = all(is_own(name, each.kind) for each in findings.coverage for name, _ in each.largest)
    what, them = ("The program's own kernels", "them a class") if are_theirs else ("Without a class", "one")
    title = (f"{what}; a rule under ", doc.Code("kernel_classes"), f" in the pipeline file gives {them}")
    table = doc.make_table("unclassified", columns, rows, title, doc.Placement.DETAILS)
    table = table if len(findings.workloads) > 1 else table.without("workload")
    return doc.make_section("classification", "Classification", [doc.Paragraph(sentences), table])


def low_coverage(findings: Findings) -> Iterator[doc.Text]:
    """Yield a warning for each workload of which kernels without a class limit a conclusion or the required share."""
    return (_coverage(each, findings) for each in findings.coverage if not _is_enough(each))


def _is_enough(coverage: Coverage) -> bool:
    return not (coverage.is_too_low or coverage.blurs_attention)


def _covered(findings: Findings) -> Iterator[doc.Text]:
    """Yield the classified share; one sentence for several workloads."""
    enough = [each for each in findings.coverage if _is_enough(each)]
    if len(enough) < 2:
        yield from (_coverage(each, findings) for each in enough)
        return
    others = " other" if len(enough) < len(findings.coverage) else ""
    least = percent(min(each.classified for each in enough))
    share = least if least == percent(1) else f"at least {least}"
    yield f"Classified: {share} % of the kernel time of each of {len(enough)}{others} workloads."


def _coverage(coverage: Coverage, findings: Findings) -> doc.Text:
    noun = "CPU operators' self time" if coverage.kind == "cpu_op" else "kernel time"
    short = short_names(name for name, _ in coverage.largest)
    minimum = doc.Strong(f"below the required {percent(coverage.minimum or 0.0)} %")
    attention = coverage.attention or 0.0
    most = percent(attention + 1 - coverage.classified)
    blur = f"; attention's share, {percent(attention)} %, is up to {most} % if the rest is attention too"
    return doc.concat(
        f"Classified: {percent(coverage.classified)} % of {noun}",
        (" of ", doc.Code(coverage.workload)) if len(findings.workloads) > 1 else "",
        f" ({coverage.profiler})",
        (", ", minimum) if coverage.is_too_low else "",
        blur if coverage.blurs_attention else "",
        *_without_class(coverage, short),
        ".",
    )


def _without_class(coverage: Coverage, short: Mapping[str, str]) -> Iterator[doc.Text]:
    """Yield the largest kernels of the program itself, then those of libraries, and operators, that no rule knows."""
    named = coverage.largest[:_NAMED]
    for words, is_theirs in (("own kernels", True), ("without a class", False)):
        kept = [(name, share) for name, share in named if is_own(name, coverage.kind) is is_theirs]
        if kept:
            yield f"; {words}: ", *doc.join(doc.concat(doc.Code(short[n]), f" ({percent(s)} %)") for n, s in kept)


def _families(findings: Findings) -> Iterator[doc.Text]:
    """Yield how many cases ran the kernel family that they requested."""
    met = [each for each in findings.expectations if each.is_met]
    total = len(findings.expectations)
    if met:
        which = "All" if len(met) == total else f"{len(met)} of"
        cases = f"{which} {total} case{'' if total == 1 else 's'}" if total > 1 else "The case"
        yield doc.concat(f"{cases} with a requested kernel family ran it", _pytorch_copies(met, findings), ".")
    blind = [w for w in findings.workloads if w.kernel_profiler is None and any(case.time for case in w.cases)]
    if met and blind:
        names = doc.join(doc.Code(workload.name) for workload in blind)
        yield doc.concat("No profiler recorded kernels of ", names, ", so their kernels are unknown.")


def _pytorch_copies(met: Iterable[Expectation], findings: Findings) -> doc.Text:
    """Return which variants ran PyTorch's build of FlashAttention-2, which has the family of the package."""
    copies = {(each.workload, each.case) for each in met if each.is_pytorch_copy}
    if not copies:
        return ""
    cases = ((w.name, case) for w in findings.workloads for case in w.cases)
    variants = dict.fromkeys(case.variant for name, case in cases if (name, case.id) in copies and case.variant)
    which: doc.Text = (*doc.join(map(doc.Code, variants)), " ran ") if variants else ""
    return doc.concat(" (", which, "PyTorch's copy of ", doc.Code("fa2"), ")")
