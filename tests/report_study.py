"""Runs to analyse and report: the recorded one in tests/data/report-h200, and made-up ones that say so."""

import functools
import itertools
import json
import re
from pathlib import Path
from typing import Any

import pandas as pd

from profpipe.analysis import analyze as analysis
from profpipe.report import pages, render, results_json, text_files
from profpipe.report.document import Bullets, Paragraph, Section, TableBlock
from profpipe.report.markdown import Markdown
from profpipe.results import atomic, raw_files
from profpipe.results.manifest import Manifest
from profpipe.results.schema import ALL, CASES, KERNELS, METRICS, RANGES, Tables, empty, frame

DATA = Path(__file__).parent / "data"

ATTENTION = "void made_up::attention_kernel<64, 128>(Params)"
COPY = (
    "at::elementwise_kernel<128, 4, at::gpu_kernel_impl_nocast<at::direct_copy_kernel_cuda(at::TensorIteratorBase&)>>"
)
ADD = "at::elementwise_kernel<128, 4, at::gpu_kernel_impl_nocast<at::CUDAFunctor_add<c10::Half>>::{lambda(int)#1}>"
FLUSH = "at::vectorized_elementwise_kernel<4, at::FillFunctor<int>, std::array<char*, 1>>"
CLASS_OF = {ATTENTION: ("attention", "fa2"), COPY: ("copy", ""), ADD: ("add", ""), FLUSH: ("elementwise", "")}


def analyze(data, run):
    """Return the findings of a run whose record is a JSON document, of which any key may be absent."""
    return analysis.analyze(data, Manifest.parse(_complete(run)))


def _complete(run):
    """Return the record of a run whose workloads ask for one sample, unless they say otherwise."""
    pipeline = run.get("pipeline") or {}
    workloads = {name: {"repeats": 1, **own} for name, own in pipeline.get("workloads", {}).items()}
    return {**run, "pipeline": {**pipeline, "workloads": workloads} if pipeline else {}}


def write_page(findings, data, run, folder, template):
    """Write the pages of a run whose record is a JSON document; return the path of SUMMARY.md."""
    own = Manifest.parse(_complete(run))
    results = results_json.text(results_json.document(findings, data, own))
    for name, text in {**text_files.texts(findings, data, own), results_json.FILE: results}.items():
        atomic.write_text(folder / name, text)
    pages.write(render.build(findings, data, own, raw_files.read(folder, own)), folder, template)
    return folder / "SUMMARY.md"


def read_pages(folder):
    """Return SUMMARY.md and details.md of a run's folder, one after the other."""
    pages = (folder / name for name in ("SUMMARY.md", "details.md"))
    return "\n".join(page.read_text(encoding="utf-8") for page in pages if page.is_file())


def recorded():
    """Seven implementations at two lengths under nsys on an H200, 5 iterations each: attn_h200.sqlite, by SQL."""
    return _stored(DATA / "report-h200")


@functools.cache
def _example(name):
    data, run = _stored(DATA.parents[1] / "examples" / name)
    return data, json.dumps(run)


#: The rates that `profpipe doctor --measure-peaks` measured on an H200 (driver 580, torch 2.11).
H200_CEILINGS = {
    "flops": {"fp16": 711e12, "bf16": 715e12, "tf32": 356e12, "int8": 924e12, "fp8": 1421e12, "fp32": 51e12},
    "bytes_per_s": 4.27e12,
    "source": "measured on such a GPU",
}


def with_ceilings(data, run):
    """Return the run as if the rates of its GPU had been measured before."""
    return data, {**run, "machine": {**run["machine"], "ceilings": H200_CEILINGS}}


def example(name):
    """The tables of a real run, and its record, which a test may change."""
    data, run = _example(name)
    return data, json.loads(run)


def _stored(folder):
    frames = {table.name: _read(folder, table) for table in ALL}
    return Tables(**frames), json.loads((folder / "run.json").read_text(encoding="utf-8"))


def _read(folder, table):
    if (path := folder / f"{table.name}.parquet").exists():
        return frame(table, pd.read_parquet(path))
    if not (path := folder / f"{table.name}.csv").exists():
        return empty(table)
    types = {column.name: str if column.dtype == "str" else column.dtype for column in table.columns}
    return frame(table, pd.read_csv(path, dtype=types, keep_default_na=False, na_values=[""]))


def case_row(case, profiler="plain", status="ok", reason="", **more):
    params = json.dumps(more.pop("params")) if "params" in more else ""
    flags = json.dumps(more.pop("flags", []))
    row = {"workload": "w", "case": case, "profiler": profiler, "status": status, "reason": reason}
    return {**row, "params": params, "flags": flags, **more}


def kernel_row(case, kernel, calls, total_ns, **more):
    cls, family = CLASS_OF.get(kernel, ("other", ""))
    row = {"workload": "w", "case": case, "profiler": "nsys", "kind": "kernel", "kernel": kernel, "calls": calls}
    return {**row, "total_ns": total_ns, "kernel_class": cls, "kernel_family": family, **more}


def metric_row(case, metric, value, unit="ns", **more):
    row = {"workload": "w", "case": case, "profiler": "plain", "metric": metric, "value": value, "unit": unit, "n": 30}
    return {**row, **more}


def range_row(case, instances, profiler="nsys", **more):
    return {"workload": "w", "case": case, "profiler": profiler, "range": "", "instances": instances, **more}


def every_table(section):
    """Yield every table of the section and of its subsections."""
    return (block for block in section.walk() if isinstance(block, TableBlock))


def tables(cases=(), kernels=(), ranges=(), metrics=()):
    return Tables(frame(CASES, cases), frame(KERNELS, kernels), frame(RANGES, ranges), frame(METRICS, metrics))


def made_up(impls, lengths, *, causal=(False,), baseline=None, **others):
    """A sweep with invented times under plain, nsys, torch and ncu: no GPU ever gave these numbers.

    The last implementation runs out of memory at the largest length. ``others`` are further axes with their values.
    """
    cases: list[dict[str, Any]] = []
    kernels: list[dict[str, Any]] = []
    ranges: list[dict[str, Any]] = []
    metrics: list[dict[str, Any]] = []
    expects: dict[str, str] = {}
    for place, impl in enumerate(impls):
        for length, mask, *more in itertools.product(lengths, causal, *others.values()):
            rest = dict(zip(others, more, strict=True))
            named = {"causal": str(mask).lower(), **rest} if len(causal) > 1 else rest
            case = ",".join([f"impl={impl},seqlen={length}", *(f"{axis}={value}" for axis, value in named.items())])
            params = {
                "batch": 2,
                "head_dim": 128,
                "dtype": "bf16",
                "impl": impl,
                "seqlen": length,
                "causal": mask,
                **rest,
            }
            lost = impl == impls[-1] and length == max(lengths) and len(lengths) > 1
            status, reason = ("oom", "OutOfMemoryError: tried to allocate 64 GiB") if lost else ("ok", "")
            cases += [case_row(case, p, status, reason, params=params) for p in ("plain", "nsys", "torch", "ncu")]
            expects[case] = "fa2"
            if not lost:
                kernel_ns = (1 + 0.13 * ((place * 5 + 3) % len(impls))) * length**2 / 40 / (2 if mask else 1)
                kernels += _kernels(case, kernel_ns)
                ranges.append(range_row(case, 30, wall_ns=45 * kernel_ns, busy_ns=36 * kernel_ns))
                ranges.append(range_row(case, 30, "torch"))
                metrics += _metrics(case, kernel_ns, length)
    run = {
        "name": "made-up",
        "started": "2026-11-20T05:55:33+00:00",
        "pipeline": {"workloads": {"w": {"baseline": {"impl": baseline or impls[0]}, "repeats": 30}}},
        "machine": {
            "gpus": [{"name": "Made-up GPU"}],
            "peaks": {"flops": {"bf16": 1e15}, "bytes_per_s": 5e12, "source": "invented for a test"},
        },
        "expects": {"w": expects},
    }
    return tables(cases, kernels, ranges, metrics), run


def _kernels(case, kernel_ns):
    rows = []
    for profiler, calls, slower in (("nsys", 30, 1.0), ("torch", 30, 1.01), ("ncu", 1, 1.02)):
        for kernel, share in ((ATTENTION, 1.0), (COPY, 0.15), (ADD, 0.05)):
            rows.append(kernel_row(case, kernel, calls, calls * slower * share * kernel_ns, profiler=profiler))
    return rows


def _metrics(case, kernel_ns, length):
    time = 1.2 * kernel_ns + 3000
    spread = {"n": 30, "ci_low": 0.998 * time, "ci_high": 1.003 * time}
    numbers = [("time_p10", 0.98 * time, "ns"), ("time_p90", 1.05 * time, "ns"), ("error_max", 2e-3, "1")]
    numbers += [("flops", 2.0 * length**2 * 4096, "flop"), ("bytes_moved", 32768.0 * length, "byte")]
    numbers += [("peak_allocated", 40000.0 * length, "byte")]
    rows = [metric_row(case, "time", time, **spread), metric_row(case, "iterations", 1, "1", profiler="ncu")]
    rows += [metric_row(case, name, value, unit) for name, value, unit in numbers]
    ncu = {"profiler": "ncu", "subject": ATTENTION}
    rows.append(metric_row(case, "sm__throughput.avg.pct_of_peak_sustained_elapsed", 61.5, "%", **ncu))
    rows.append(metric_row(case, "dram__bytes.sum.per_second", 1.25e12, "byte/s", **ncu))
    return rows


def texts(section):
    """Return the paragraphs and the items of lists of a section as Markdown."""
    found: list[str] = []
    for block in section.blocks:
        if isinstance(block, Paragraph):
            found.append(Markdown().text(block.content))
        elif isinstance(block, Bullets):
            found += map(Markdown().text, block.items)
    return found


def grid(table):
    """Return the head and the rows of a table as the page writes them."""
    assert isinstance(table, TableBlock)
    lines = [line for line in Markdown().table(table).splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return [cells[0], *cells[2:]] if cells else []


def records(table):
    """Return the rows of a table as the page writes them, by the titles of the columns."""
    head, *rows = grid(table) or [[]]
    return [dict(zip(head, row, strict=True)) for row in rows]


def check_golden(name, text, regenerate):
    """Compare ``text`` with the golden file ``name``; with --regenerate, write it."""
    path = Path(__file__).parent / "golden" / name
    if regenerate:
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), f"{path} differs; pytest --regenerate writes it again"


def check_studies(name, studies, regenerate):
    """Compare sections, tables and texts, which follow the name of their study, with the golden file ``name``."""
    parts = [[f"# {study}", *map(written, shown)] for study, *shown in studies]
    check_golden(name, "\n\n".join(text for part in parts for text in part) + "\n", regenerate)


def written(shown):
    """Return a section, a table, a text, or a list of texts as Markdown."""
    if isinstance(shown, Section):
        return Markdown().section(shown) or "(no section)"
    if isinstance(shown, TableBlock):
        return Markdown().table(shown) or "(no table)"
    if isinstance(shown, (str, tuple)):
        return Markdown().text(shown)
    return "\n".join(f"- {Markdown().text(text)}" for text in shown) or "(nothing)"
