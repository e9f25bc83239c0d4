"""Warnings, and the sections on kernels, files, environment and commands of a run: golden/warnings.md.

Each study is the least that shows one thing.
"""

from collections.abc import Callable
from typing import Any

from report_study import ADD, ATTENTION, analyze, case_row, check_studies, kernel_row, metric_row, recorded, tables

from profpipe.analysis.findings import Findings
from profpipe.report.document import Section
from profpipe.report.sections import environment, kernels, warnings
from profpipe.results.manifest import Manifest
from profpipe.results.schema import Tables

FA2 = {"kernel_class": "attention", "kernel_family": "fa2"}

#: Its name, its tables, its record, and the sections that show it.
Study = tuple[str, Tables, dict[str, Any], tuple[Callable[[Findings, Manifest], Section], ...]]


def failed(findings, run):
    return warnings.failures(findings)


def skipped(findings, run):
    return warnings.skipped(findings)


def classified(findings, run):
    return kernels.classification(findings)


def machine(findings, run):
    return environment.environment(run)


def commands(findings, run):
    return environment.commands(run)


WARNED = (warnings.warnings,)


def times(**ns):
    return [metric_row(f"impl={impl}", "time", value) for impl, value in ns.items()]


def of_kernels():
    both = (warnings.warnings, classified)
    family = {"expects": {"w": {"impl=b": "cudnn|ck"}}}
    yield ("A case ran another kernel than it requested",
           tables(kernels=[kernel_row("impl=b", "flash_fwd_kernel", 1, 5.0) | FA2]), family, both)  # fmt: skip
    copy = kernel_row("impl=b", "pytorch_flash::flash_fwd_kernel<64, 128>", 1, 5.0) | FA2
    package = kernel_row("impl=fa2", "flash::flash_fwd_kernel<64, 128>", 1, 5.0) | FA2
    run = {"expects": {"w": {"impl=b": "fa2|cutlass_fmha", "impl=fa2": "fa2"}},
           "pipeline": {"workloads": {"w": {"baseline": {"impl": "fa2"}}}}}  # fmt: skip
    data = tables(kernels=[copy, package], metrics=times(b=1000.0, fa2=1000.0))
    yield "The variants that ran PyTorch's copy are named", data, run, both
    other = [row | {"workload": "lengths"} for row in times(a=2000.0)]
    data = tables(kernels=[package | {"case": "impl=b"}], metrics=[*times(b=1000.0), *other])
    yield "A workload without recorded kernels is named", data, {"expects": {"w": {"impl=b": "fa2"}}}, both
    few = [kernel_row("impl=a", ATTENTION, 1, 90.0), kernel_row("impl=a", "mystery", 1, 10.0)]
    required = {"pipeline": {"workloads": {"w": {}}, "coverage": {"min_classified": 0.95}}}
    yield "A classified share below the required one", tables(kernels=few), required, both
    own = [kernel_row("impl=a", "stencil(int, float*)", 1, 80.0), kernel_row("impl=a", "at::unheard_of<int>", 1, 20.0)]
    yield "The program's own kernels are no warning", tables(kernels=own), {}, both
    fused, unfused = ({"expects": {"w": {"impl=a": family}}} for family in ("fa2", ""))
    for ns in (30.0, 3.0):
        rows = [kernel_row("impl=a", ATTENTION, 1, 40.0) | FA2, kernel_row("impl=a", ADD, 1, 60.0 - ns)]
        data = tables(kernels=[*rows, kernel_row("impl=a", "mystery", 1, ns)])
        yield f"Own kernels of {ns:g} % beside attention", data, fused, WARNED
        yield f"Own kernels of {ns:g} % where no fused kernel was requested", data, unfused, WARNED
    ran = [case_row("impl=a", "nsys"), case_row("impl=b", "nsys")]
    yield "A case ran without a recorded kernel", tables(ran, [kernel_row("impl=a", ATTENTION, 1, 5.0)]), {}, WARNED


def sweep(*impls):
    return [f"impl={i},mode={m},seqlen={n}" for i in impls for m in ("fwd", "fwd_bwd") for n in (512, 2048)]


def without_a_result():
    ends = [case_row("impl=a"), case_row("impl=b", status="oom"), case_row("impl=c", status="oom"),
            case_row("impl=d", status="crashed", reason="killed by SIGABRT")]  # fmt: skip
    yield "Failures are counted by outcome", tables(ends), {}, WARNED
    rows = [case_row("n=1", "plain", "crashed", "killed by SIGABRT"), case_row("n=2")]
    logs = {"n=1": "raw/topk_/plain/log.txt", "n=2": "raw/other.txt"}
    jobs = [{"workload": "w", "profiler": "plain", "cases": [case], "log": log} for case, log in logs.items()]
    data = tables(rows, metrics=[metric_row("n=2", "time", 5.0)])
    yield "A failure links the log of its job", data, {"jobs": jobs}, (failed,)
    names = [f"impl={i},mode={m},seqlen={n}" for i in "ab" for m in ("fwd", "bwd") for n in (1, 2, 3)]
    lost = [name for name in names if name.startswith("impl=b") and not name.endswith("=1")]
    rows = [case_row(name, status="oom" if name in lost else "ok", reason="no room") for name in names]
    data = tables(rows, metrics=[metric_row(name, "time", 5.0) for name in names if name not in lost])
    run = {"pipeline": {"workloads": {"w": {"baseline": {"impl": "a"}}}}}
    yield "Failed cases are named by the values that they share", data, run, (failed,)
    rows = [case_row("seqlens=128%2C128", status="failed", reason="why not"), case_row("seqlens=256")]
    data = tables(rows, metrics=[metric_row("seqlens=256", "time", 5.0)])
    yield "A value with commas is written as in the pipeline file", data, {}, (failed,)
    rows = [case_row("impl=a", "nsys"), case_row("impl=b", "nsys")]
    job = {"workload": "w", "profiler": "nsys", "status": "failed", "reason": "export failed"}
    data = tables(rows, metrics=times(a=1000.0, b=2000.0))
    yield "A job that failed after its last case has a row without cases", data, {"jobs": [job]}, (failed,)
    rows = [case_row("impl=ok")]
    rows += [case_row(f"impl=a,n={n}", "plain", "oom", f"CUDA out of memory. Tried {n} GiB.") for n in (1, 2)]
    yield "Cases out of memory share a row although their allocations differ", tables(rows), {}, (failed,)

    why = "sage has no backward pass. Use mode: fwd."
    rows = [case_row(c, "plain", *(("skipped", why) if "fwd_bwd" in c else ())) for c in sweep("sage")]
    yield "Cases are named by the axis that explains them", tables(rows), {}, (skipped,)
    missing = {"fa2": "flash-attn is not installed. pip install flash-attn.", "x": "xformers is not installed."}
    rows = [case_row(c, "plain", "skipped", missing[i]) for i in missing for c in sweep(i)]
    yield "Each reason has a row", tables([*rows, *map(case_row, sweep("ok"))]), {}, (skipped,)
    row = case_row("", "plain", "skipped", "needs a GPU. Get one.")
    rows = [{**row, "case": f"impl={i}", "workload": w} for w in "vw" for i in "ab"]
    yield "Workloads that skip the same cases share a row", tables(rows), {}, (skipped,)
    rows = [case_row("impl=a"), case_row("impl=b"), case_row("impl=a", "ncu", "skipped", "too large for a replay")]
    data = tables(rows, metrics=times(a=1.0, b=1.0))
    yield "A profiler that skipped what others ran is named", data, {}, (skipped,)
    rows = [case_row(c, "plain", *(("skipped", "why not") if c.endswith("fwd,seqlen=2048") else ()))
            for c in sweep("a", "b")]  # fmt: skip
    yield "Single cases are named by their shape", tables(rows), {}, (skipped,)


def of_files():
    run: dict[str, Any] = {
        "refused": [{"source": "a.sqlite", "what": "is empty", "remedy": "Record it again"}],
        "files": [
            {"source": "b.sqlite", "launches": 1, "total_ns": 5.0, "notes": ["3 graph launches hide their kernels"]}
        ],
    }
    kernel = tables(kernels=[kernel_row("impl=a", ADD, 1, 5.0)])
    yield "Files that could not be read, and notes on files, are warnings", kernel, run, WARNED
    incident = {"kind": "restarted", "source": "raw/w/plain/log.txt", "details": "killed by SIGKILL"}
    yield "A process was started again", tables(metrics=times(a=1000.0)), {"incidents": [incident]}, WARNED
    data, run = recorded()
    run["files"][0]["details"] = ["nsys: Not all CUDA events might have been collected."]
    yield "What nsys notes of every capture is a remark", data, run, (warnings.warnings, environment.files)
    sums = {"launches": 0, "total_ns": 0.0, "attributed_ns": 0.0, "unattributed_ns": 0.0}
    nsys = {"source": "a.sqlite", "format": "nsys", "without_kernels": "no kernels in this file", **sums}
    operators = {"without_kernels": "no GPU events: CPU operators, each with its self time", **sums}
    torch = {"source": "b.json", "format": "torch", "attribution": {"thread": 80}, **operators}
    data = tables(metrics=times(a=1.0, b=2.0))
    for name, gpus in (("without a GPU", []), ("with a GPU", [{"name": "GPU"}])):
        run = {"machine": {"gpus": gpus}, "files": [nsys, torch], "jobs": [{"files": []}]}
        yield f"Files without kernels on a machine {name}", data, run, (warnings.warnings, environment.files)
    attribution = {"thread": 30, "no_range": 30}
    sums |= {"launches": 60, "total_ns": 2e6, "attributed_ns": 1e6, "unattributed_ns": 1e6}
    held = [{"source": f"raw/w/torch/{i}.json.gz", "format": "trace", "tool": "torch", "attribution": attribution,
             **sums} for i in range(3)]  # fmt: skip
    run = {"files": held, "jobs": [{"files": [{"path": f["source"], "bytes": 2**20} for f in held]}]}
    yield "Many files of one job share a row", kernel, run, (environment.files,)
    report = {"jobs": [{"files": [{"path": "raw/capture.nsys-rep", "bytes": 1}]}]}
    yield "A report of nsys holds the environment of the process", tables(), report, (environment.files,)
    private = {"private_files": ["raw/capture.nsys-rep"]}
    yield "So it does where the run lists its private files", tables(), private, (environment.files,)

    def job(case, source, profiler="plain"):
        return {"workload": "b", "profiler": profiler, "cases": [case], "reused_from": source}

    some = [job("n=1", "r1"), job("n=2", ""), job("n=3", "r1"), job("n=4", "r0")]
    run = {"jobs": [*some, job("n=1", "r1", "nsys"), job("n=2", "r1", "nsys")], "private_files": []}
    yield "Cases of an earlier run are named with the run", tables(), run, (environment.files,)


def of_the_machine():
    rate = {"flops": {"fp16": 711.44e12, "fp64": 0}, "bytes_per_s": 4248.6e9, "source": "measured"}
    run = {"machine": {"peaks": {"source": "unknown"}, "ceilings": rate}}
    yield "Rates stand with their source", tables(), run, (machine,)
    jobs: list[dict[str, Any]] = [
        {"workload": "w", "peaks": {"flops": {"int8": 2e15, "fp8": 1e15}}}, {"workload": "v"}
    ]  # fmt: skip
    yield "Rates of a workload name it", tables(), {"jobs": jobs}, (machine,)
    ends: list[dict[str, Any]] = [
        {"status": "failed", "interrupted": True, "seconds": 51.6}, {"status": "failed", "seconds": 51.6},
        {"reused_from": "20261119T010101Z-w"},
    ]  # fmt: skip
    jobs = [{"workload": "w", "profiler": "nsys", "argv": [["nsys", "a b"]], **end} for end in ends]
    yield "A command says how its job ended", tables(), {"jobs": jobs}, (commands,)


STUDIES = (of_kernels, without_a_result, of_files, of_the_machine)


def test_warnings_and_the_sections_of_a_run_read_as_in_the_golden_file(regenerate):
    studies = []
    for name, data, run, sections in (study for group in STUDIES for study in group()):
        findings, record = analyze(data, run), Manifest.parse(run)
        studies.append((name, *(section(findings, record) for section in sections)))
    check_studies("warnings.md", studies, regenerate)
