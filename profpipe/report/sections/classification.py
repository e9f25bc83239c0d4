"""Which share of the kernel time has a class, which names have none, and which kernel families ran."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from profpipe.analysis.findings.warnings import Coverage, Expectation
from profpipe.analysis.findings.workloads import Findings
from profpipe.report import document as doc
from profpipe.report.short_kernel_names import short_names
from profpipe.report.units import percent

#: A classified share below this is a warning.
ENOUGH = 0.99

#: Unclassified names in a warning.
_NAMED = 3


def classification(findings: Findings) -> doc.Section:
    """Return the classified share, the kernel families that ran as requested, and the unclassified names."""
    sentences = doc.join([*_covered(findings), *_families(findings)], " ", " ")
    rows = [(each.workload, doc.Code(name), share) for each in findings.coverage for name, share in each.largest]
    noun = "kernel" if any(each.kind == "kernel" for each in findings.coverage) else "operator"
    columns = (doc.label("workload"), doc.label("name", noun), doc.percent("share", "of the workload's time"))
    title = ("Without a class; a rule under ", doc.Code("kernel_classes"), " in the pipeline file gives one")
    table = doc.make_table("unclassified", columns, rows, title, doc.Placement.DETAILS)
    table = table if len(findings.workloads) > 1 else table.without("workload")
    return doc.make_section("classification", "Classification", [doc.Paragraph(sentences), table])


def low_coverage(findings: Findings) -> Iterator[doc.Text]:
    """Yield a warning for each workload whose classified share is too low."""
    return (_coverage(each, findings) for each in findings.coverage if not _is_enough(each))


def _is_enough(coverage: Coverage) -> bool:
    return coverage.classified >= ENOUGH and not coverage.is_too_low


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
    largest = doc.join(
        doc.concat(doc.Code(short[name]), f" ({percent(share)} %)") for name, share in coverage.largest[:_NAMED]
    )
    minimum = doc.Strong(f"below the required {percent(coverage.minimum or 0.0)} %")
    return doc.concat(
        f"Classified: {percent(coverage.classified)} % of {noun}",
        (" of ", doc.Code(coverage.workload)) if len(findings.workloads) > 1 else "",
        f" ({coverage.profiler})",
        (", ", minimum) if coverage.is_too_low else "",
        ("; largest unclassified: ", *largest) if largest else "",
        ".",
    )


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
