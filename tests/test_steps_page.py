"""The page of a program with steps: made-up runs in golden files, and cells and findings of single sections."""

import gzip
import json
import re
import shutil
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from nsys_exports import Export
from report_study import (
    DATA,
    analyze,
    case_row,
    check_golden,
    check_studies,
    every_table,
    kernel_row,
    metric_row,
    range_row,
    read_pages,
    write_page,
)
from step_study import (
    COMPILED,
    ELEMENTWISE,
    GEMM,
    HTOD,
    NCCL,
    compiled,
    step_kernels,
    step_metrics,
    step_row,
    step_tables,
    two_ranks,
)

from profpipe import plugins
from profpipe.analysis.analyze import analyze as analyze_tables
from profpipe.analysis.findings import WorkloadFindings
from profpipe.analysis.steps import StepPart
from profpipe.analysis.waits import find_waits
from profpipe.cli import main
from profpipe.ingest import reader
from profpipe.report import document as doc
from profpipe.report.sections import headline, kernel_share, kernels, phases, recording, step_times, steps
from profpipe.results import store

ROOT = Path(__file__).resolve().parents[1]
TEMPLATE = plugins.builtin_folder("templates") / "SUMMARY.md.j2"

STUDIES = {"compiled": compiled, "two_ranks": two_ranks}


def step_warnings(workload):
    return (line for _, line in steps.warnings(workload))


def only(study):
    (workload,) = analyze(*study).workloads
    return workload


@pytest.mark.parametrize("name", STUDIES)
def test_the_pages_are_the_golden_ones(name, tmp_path, regenerate):
    data, run = STUDIES[name]()
    summary = write_page(analyze(data, run), data, run, tmp_path, TEMPLATE)
    assert len(summary.read_text().splitlines()) <= 150
    check_golden(f"pages-steps-{name}.md", read_pages(tmp_path), regenerate)


# --- sections, each from a few made-up numbers -----------------------------------------------------------------------


def looped(
    *parts: Sequence[float], n: int = 6, kernels: Mapping[str, tuple[float, float]] = {}, profiler: str = "nsys",
    run: Mapping[str, Any] = {}, metrics: Sequence[Mapping[str, Any]] = (), **more: Any
) -> WorkloadFindings:  # fmt: skip
    """A case whose steps have these parts in ns in turn."""
    rows = [step_row("", i, parts[i % len(parts)], profiler, **more) for i in range(n)]
    of_kernels, numbers = step_kernels("", kernels, profiler)
    times = step_metrics("", statistics.mean(map(sum, parts)), profiler)
    return only((step_tables(kernels=of_kernels, metrics=[*times, *numbers, *metrics], steps=rows), dict(run)))


def scattered():
    """Nine steps of 30 ms and one of 1.6 s, whose mean says nothing."""
    rows = [step_row("", n, (30e6 if n else 1.6e9, 0, 0, 0, 0, 0), "plain") for n in range(10)]
    time = {"n": 10, "ci_low": -2e8, "ci_high": 5.74e8}
    metrics = [metric_row("", metric, 187e6, **time) for metric in ("step_time", "time")]
    return only((step_tables(metrics=[*metrics, metric_row("", "step_spread", 523.0, "%")], steps=rows), {}))


def nine_cases():
    names = [f"batch={n}" for n in range(1, 10)]
    rows = [step_row(name, n, (6e6, 0, 0, 2e6, 0, 0)) for name in names for n in range(6)]
    metrics = [row for name in names for row in step_metrics(name, 8e6)]
    return only((step_tables(metrics=metrics, steps=rows), {}))


def one_of_two_cases_is_a_single_class():
    cases = {"n=1": (9.999e6, 0, 0, 0, 0, 1e3), "n=2": (5e6, 0, 0, 0, 0, 5e6)}
    rows = [step_row(case, step, parts) for case, parts in cases.items() for step in range(6)]
    of_cases = [step_kernels(case, {GEMM: (10, parts[0])}) for case, parts in cases.items()]
    metrics = [row for case, (_, own) in zip(cases, of_cases, strict=True) for row in [*step_metrics(case, 1e7), *own]]
    return only((step_tables(kernels=[row for own, _ in of_cases for row in own], metrics=metrics, steps=rows), {}))


def growing(recorded, rule="optimizer", longer=1.1, missing=-1):
    """A program whose steps grow by 1 ms each. torch records some of them, and makes each ``longer``."""
    of_plain = [n for n in range(100) if n != missing]
    rows = [step_row("", n, (5e6 + n * 1e6, 0, 0, 0, 0, 0), "plain") for n in of_plain]
    rows += [{**step_row("", n, (longer * (5e6 + n * 1e6), 0, 0, 0, 0, 0), "torch"), "rule": rule} for n in recorded]
    times = [*step_metrics("", 54.5e6, "plain"), *step_metrics("", 16.5e6, "torch")]
    return only((step_tables(metrics=[*times, metric_row("", "step_spread", 60.0, "%")], steps=rows), {}))


def disagreeing():
    data, run = compiled()
    row = metric_row("compile=true", "step_count_by_pattern", 96.0, "1", profiler="nsys")
    return only((step_tables(data.cases, data.kernels, [*data.metrics.to_dict("records"), row], data.steps), run))


def layers(pauses):
    """Steps by pattern with some outliers in which the GPU is idle."""
    rows = [step_row("", n, (6e6, 0, 0, 0, 0, 0), rule="pattern") for n in range(30)]
    rows += [step_row("", 30 + n, (6e6, 0, 0, 3e8, 0, 0), state="outlier", rule="pattern") for n in range(pauses)]
    return only((step_tables(metrics=step_metrics("", 6e6), steps=rows), {}))


def phased():
    """A range that is opened for each step under another name is one phase."""
    kernels, metrics = step_kernels("", {GEMM: (1, 8e6)}, steps=1)
    rows = [row | {"phase": f"ProfilerStep#{n} > forward"} for n in (101, 102, 103) for row in kernels]
    steps_rows = [step_row("", n, (8e6, 0, 0, 0, 0, 0)) for n in range(6)]
    return only((step_tables(kernels=rows, metrics=[*metrics, *step_metrics("", 8e6)], steps=steps_rows), {}))


def slow_start():
    """The compiled program starts much more slowly: its process takes longer, and its steps are shorter."""
    data, run = compiled()
    slow = [metric_row("compile=true", "process_wall", 9e10), metric_row("compile=false", "process_wall", 3e10)]
    metrics = data.metrics[data.metrics["metric"] != "process_wall"].to_dict("records")
    return only((step_tables(data.cases, data.kernels, [*metrics, *slow], data.steps), run))


def one_case_without_steps():
    data, run = compiled()
    is_eager = data.metrics["case"] == "compile=false"
    kept = data.metrics[~(is_eager & data.metrics["metric"].str.startswith("step_"))]
    steps = data.steps[data.steps["case"] != "compile=false"]
    return only((step_tables(data.cases, data.kernels, kept, steps), run))


def alone(**more):
    """Ten steps without a profiler."""
    rows = [step_row("", n, 10e6, "plain", **more) for n in range(6)]
    return only((step_tables([case_row("")], metrics=step_metrics("", 10e6, "plain"), steps=rows), COMPILED))


def ranks(*ns, takes_turns=False, half=0.002):
    """Two ranks with these times of a step, which they may exchange from step to step."""
    rows = [step_row("", n, (ns[(rank + n) % 2 if takes_turns else rank], 0, 0, 0, 0, 0), rank=rank)
            for n in range(6) for rank in (0, 1)]  # fmt: skip
    times = {"": statistics.mean(ns), "rank 0": ns[0], "rank 1": ns[1]}
    ends = {name: {"ci_low": (1 - half) * ns, "ci_high": (1 + half) * ns, "n": 6} for name, ns in times.items()}
    metrics = [metric_row("", "step_time", ns, subject=name, profiler="nsys", **ends[name])
               for name, ns in times.items()]  # fmt: skip
    return only((step_tables(steps=rows, metrics=metrics), {}))


def waiting(parts, plain=None, steps=12, ranks=2, more=(), **columns):
    """A program on several ranks, whose ``parts`` of a step in ms are by rank and step, with ``more`` metrics."""
    rows = [
        step_row("", n, [1e6 * ms for ms in parts(rank, n)], rank=rank, process=rank, **columns)
        for rank in range(ranks)
        for n in range(steps)
    ]
    wall = statistics.mean(row["wall_ns"] for row in rows)
    times = [*step_metrics("", wall, n=steps), *(step_metrics("", 1e6 * plain, "plain") if plain else []), *more]
    return only((step_tables(metrics=times, steps=rows), {"name": "waits", "is_run": False}))


def late_in_turn(rank, step):
    """One rank launches 30 ms late: its GPU is idle before the step, and the other waits in the step."""
    return (20, 2 if step % 2 == rank else 32, 0, 0 if step % 2 == rank else 30, 0, 0)


def late_third(*late, **more):
    return waiting(lambda rank, step: late if rank == 2 else (20, 32, 0, 0, 0, 0), ranks=3, **more)


def waits_of_ranks(cause, *ms):
    """The metrics of one cause of idle time: of each rank, and their mean."""
    by_rank = [(f"rank {rank} > ", 1e6 * value) for rank, value in enumerate(ms)]
    return [
        metric_row("", "step_wait_idle", ns, subject=f"{of}{cause}", profiler="nsys", n=12)
        for of, ns in [*by_rank, ("", 1e6 * statistics.mean(ms))]
    ]


def sharded(recorded):
    """DDP beside FSDP, of which rank 1 launches late, and rank 0 waits for it. Under nsys DDP takes ``recorded`` ms."""
    by_case = {"parallel=ddp": [(recorded - 2, 1, 0, 1, 0, 0)] * 2,
               "parallel=fsdp": [(38, 42, 0, 0, 0, 0), (38, 2, 0, 40, 0, 0)]}  # fmt: skip
    rows = [step_row(case, n, [1e6 * ms for ms in parts], rank=rank, process=rank)
            for case, ranks in by_case.items() for n in range(12) for rank, parts in enumerate(ranks)]  # fmt: skip
    own = {"parallel=ddp": (38, recorded), "parallel=fsdp": (80, 80)}
    times = [row for case, walls in own.items() for name, ms in zip(("plain", "nsys"), walls, strict=True)
             for row in step_metrics(case, 1e6 * ms, name)]  # fmt: skip
    lines = {"host code > gpt.py:95": 12e6, "host code > gpt.py:46": 7e6, "launching > gpt.py:95": 1e6}
    times += [metric_row("parallel=fsdp", "step_wait_idle", ns, subject=subject, profiler="nsys", n=12)
              for subject, ns in lines.items()]  # fmt: skip
    of_ddp = {
        "command": ["torchrun", "gpt.py"],
        "matrix": {"parallel": ["ddp", "fsdp"]},
        "baseline": {"parallel": "ddp"},
    }
    run = {"pipeline": {"workloads": {"w": of_ddp}}}
    return only((step_tables([case_row(case) for case in own], metrics=times, steps=rows), run))


def lost_records():
    """plain has steps, which the recording of nsys has not."""
    rows = [{**step_row("", n, (5e6, 0, 0, 0, 0, 0)), "profiler": "plain"} for n in range(9)]
    time = metric_row("", "step_time", 5e6, n=9, profiler="plain")
    lost = metric_row("", "check_lost_kernels", 6, subject="process 1", n=38, profiler="nsys")
    return only((step_tables(steps=rows, metrics=[time, lost]), {}))


def few_steps():
    rows = [step_row("", n, (5e7, 0, 0, 0, 0, 0), state="steady" if n else "warmup") for n in range(3)]
    return only((step_tables(metrics=[metric_row("", "step_time", 5e7, n=2, profiler="nsys")], steps=rows),
                 {"is_run": False}))  # fmt: skip


def gpus_of_one_process():
    rows = [
        step_row("", n, (1e6, 0, 0, 0, 0, 1.7e6 - 1e5 * device), device=device) for device in range(4) for n in range(8)
    ]
    return only((step_tables(metrics=step_metrics("", 2.7e6, n=8), steps=rows), {"is_run": False}))


def outlier_of_one_rank():
    """The mean over the ranks decides. In step 8 rank 1 took as long as in other steps."""
    rows = [
        step_row("", n, (8e7 if n % 2 == rank else 3e7, 0, 0, 0, 0, 0), rank=rank) for n in range(8) for rank in (0, 1)
    ]
    rows += [step_row("", 8, (ns, 0, 0, 0, 0, 0), state="outlier", rank=rank) for rank, ns in enumerate((2e8, 3e7))]
    return only((step_tables(metrics=step_metrics("", 5.5e7, n=8), steps=rows), {}))


def two_processes():
    """A command without steps. A process that touches the GPU of another one for a moment is no further rank."""
    rows = [kernel_row("", GEMM, 100, 155e6, kernel_class="gemm", process=p, device=d) for p, d in ((1, 0), (2, 1))]
    stray = kernel_row("", ELEMENTWISE, 1, 2e3, kernel_class="elementwise", process=2, device=0)
    run = {"pipeline": {"workloads": {"w": {"command": ["torchrun", "train.py"]}}}}
    return only((step_tables([case_row("", "nsys")], [*rows, stray]), run))


def without_steps(*ranks):
    """A recording without steps, and its parts by rank."""
    kernels, _ = step_kernels("", {ELEMENTWISE: (5, 89e6), HTOD: (10, 285e6)}, steps=1)
    parts = [
        metric_row("", f"capture_{part.value}", ns, subject=f"rank {rank}", profiler="nsys")
        for rank, own in enumerate(ranks)
        for part, ns in zip(StepPart, own, strict=True)
    ]
    return only((step_tables(kernels=kernels, metrics=parts), {}))


def measured_calls():
    kernels = [kernel_row("impl=a", GEMM, 30, 3e6)]
    return only((step_tables(kernels=kernels, ranges=[range_row("impl=a", 30)]), {}))


def under_torch():
    return looped((9e6, 0, 0, 4e6, 0, 0), kernels={GEMM: (1, 9e6)}, profiler="torch",
                  metrics=step_metrics("", 10e6, "plain"))  # fmt: skip


def called(kind):
    """Calls of a model, and two other calls of this kind between them."""
    rows = [step_row("", n, (1e6, 0, 0, 3e6, 0, 0), rule="forward", kind="Llama") for n in (1, 2, 3, 4, 5, 7, 8)]
    rows += [step_row("", n, (3e7, 0, 1e6, 1e6, 0, 0), rule="forward", kind=kind, state="other") for n in (0, 6)]
    kernel = metric_row("", "step_call_kernel_time", 2.4e7, profiler="nsys", subject=f"{kind} > {GEMM}", n=2)
    return only((step_tables(steps=rows, metrics=[*step_metrics("", 4e6), kernel]), {}))


SPREAD = [metric_row("", "step_spread", 90.0, "%", profiler="nsys")]

#: What holds, the workload, and the sections that show it.
SECTIONS: list[tuple[str, Callable[[], WorkloadFindings], tuple[Any, ...]]] = [
    ("The parts and the bars add up to the step, beside the times without a profiler", lambda: only(compiled()),
     (headline.headline, steps.steps, step_times.compare_profilers, step_times.outliers)),
    ("Of two ranks that end a step together the slowest is the one that does not wait", lambda: only(two_ranks()),
     (headline.headline, steps.steps, step_times.ranks, kernel_share.kernel_share, step_times.every_step)),
    ("More cases than fit side by side have further tables", nine_cases, (steps.steps,)),
    ("Kernels that overlap share the time in which the GPU computes, 30 ms in 20 ms",
     lambda: looped((20e6, 1e6, 0, 0, 0, 0), kernels={GEMM: (10, 20e6), ELEMENTWISE: (10, 10e6), NCCL: (1, 5e6)}),
     (steps.steps,)),
    ("A prefill is beside a decode step, not in its mean", lambda: called("prefill"),
     (headline.headline, steps.steps)),
    ("So is another module", lambda: called("AutoencoderKL"), (headline.headline, steps.steps)),
    ("One class and nothing else has no bound",
     lambda: looped((9.999e6, 0, 0, 0, 0, 1e3), kernels={GEMM: (10, 9.999e6)}), (headline.headline, steps.steps)),
    ("Of a step that is nearly all idle the idle time has one",
     lambda: looped((1e5, 0, 0, 9.9e6, 0, 0), kernels={GEMM: (10, 1e5)}), (headline.headline, steps.steps)),
    ("Nearly all of one class has a bound",
     lambda: looped((9.8e6, 0, 0, 0, 0, 2e5), kernels={GEMM: (10, 9.8e6)}), (headline.headline, steps.steps)),
    ("Two cases have a bound where one of them is a single class", one_of_two_cases_is_a_single_class, (steps.steps,)),
    ("Idle time that the profiler adds is no gain",
     lambda: looped((60.0, 0.0, 0.0, 30.0, 4.0, 6.0), n=8, metrics=step_metrics("", 72.0, "plain")), (steps.steps,)),
    ("An idle gap without a recorded cause is other idle time",
     lambda: looped((6e6, 0, 0, 0, 0, 4e6), idle_launch_ns=None, idle_blocked_ns=None), (steps.steps,)),
    ("Uneven steps are a warning: every other one waits for a data loader",
     lambda: looped((5e6, 0, 0, 4e6, 0, 0), (5e6, 0, 0, 80e6, 0, 0), n=20, metrics=SPREAD), (step_warnings,)),
    ("They are none where the time without a profiler is that of even steps",
     lambda: looped((5e6, 0, 0, 4e6, 0, 0), (5e6, 0, 0, 80e6, 0, 0), n=20,
                    metrics=[*SPREAD, *step_metrics("", 47e6, "plain")]), (step_warnings,)),
    ("Of steps that differ too much the mean is no headline", scattered, (headline.headline,)),
    ("The profiler of the parts says how much longer it makes a step", under_torch, (steps.steps,)),
    ("Of uneven steps the same ones give the overhead", lambda: growing(range(5, 15)), (step_times.compare_profilers,)),
    ("A difference of uneven steps within its interval is no overhead", lambda: growing(range(5, 15), longer=1.0),
     (step_times.compare_profilers,)),
    ("A step that is shorter under a profiler has no overhead", lambda: growing(range(5, 15), longer=0.79),
     (step_times.compare_profilers,)),
    ("Uneven steps by another rule give no overhead", lambda: growing(range(5, 15), "pattern"),
     (step_times.compare_profilers,)),
    ("Uneven steps of which plain lacks one give none", lambda: growing(range(5, 15), missing=7),
     (step_times.compare_profilers,)),
    ("Markers and launches that disagree on the number of steps are a warning", disagreeing, (step_warnings,)),
    ("Steps by pattern whose outliers take most of the time are doubted", lambda: layers(2), (step_warnings,)),
    ("With fewer outliers they are not", lambda: layers(0), (step_warnings,)),
    ("Ranges that are opened for each step are one phase", phased, (phases.phases,)),
    ("The winner is named from the times of steps and not of processes", slow_start, (headline.headline,)),
    ("Cases of which only some have steps are not compared by kernels", one_case_without_steps,
     (headline.headline, step_warnings, kernel_share.kernel_share)),
    ("Timing without a profiler gives times and no parts, and a process without a rank is rank 0",
     lambda: alone(rank=None), (headline.headline, steps.steps, step_times.every_step)),
    ("A rank with longer steps is named with its distance from the mean", lambda: ranks(9e6, 11e6),
     (step_times.ranks,)),
    ("Without communication nothing is said of equal ranks", lambda: ranks(9e6, 11e6, half=0.2), (step_times.ranks,)),
    ("Nor of ranks of which each is the slowest in half of the steps", lambda: ranks(9e6, 11e6, takes_turns=True),
     (step_times.ranks,)),
    # Without late launches nothing waits: 22 ms of 53 are left. A faster network removes 2 ms.
    ("Ranks are late in turn", lambda: waiting(late_in_turn), (headline.headline, step_times.ranks, steps.steps)),
    ("Two parts explain the loser together, and the lines of a cause count together", lambda: sharded(38),
     (headline.headline,)),
    ("What nsys adds to one of the two is in both", lambda: sharded(42), (headline.headline,)),
    ("The third computes longer", lambda: late_third(50, 2, 0, 0, 0, 0), (headline.answer,)),
    ("The third copies longer", lambda: late_third(20, 2, 30, 0, 0, 0), (headline.answer,)),
    ("The third launches late", lambda: late_third(20, 2, 0, 30, 0, 0), (headline.answer,)),
    ("The third launches late after a synchronising call", lambda: late_third(20, 2, 0, 0, 30, 0), (headline.answer,)),
    ("The third waits for its data loader, and rank 0 hardly does",
     lambda: late_third(20, 2, 0, 30, 0, 0, more=waits_of_ranks("DataLoader (2 workers) > train.py:41", 1, 2, 29)),
     (headline.answer, step_times.ranks)),
    ("On a CPU the third spends its time in a line",
     lambda: late_third(20, 2, 0, 0, 0, 30, more=waits_of_ranks("host code > train.py:12", 0, 0, 30), kernels=None),
     (headline.answer, step_times.ranks)),
    ("The third is late for an unknown cause", lambda: late_third(20, 2, 0, 0, 0, 30), (headline.answer,)),
    ("Without the copies that a rank is late for the others do not wait",
     lambda: waiting(lambda rank, step: (20, 2, 30, 0, 0, 0) if rank else (20, 32, 0, 0, 0, 0)), (steps.steps,)),
    ("Waiting that is less than the transfer is not in the first sentence",
     lambda: waiting(lambda rank, step: (20, 20 if rank else 26, 0, 0, 0, 0 if rank else 6)), (headline.answer,)),
    # 10 of 52 ms, in proportion to the 15 ms of either.
    ("What the profiler adds is taken from waiting as from late launches", lambda: waiting(late_in_turn, plain=42.0),
     (headline.headline,)),
    ("Shares of a step say so where the overhead of the profiler is in no part",
     lambda: waiting(late_in_turn, plain=15.0), (headline.headline,)),
    ("Steps without a profiler stand beside a recording that lost records", lost_records, (headline.headline,)),
    ("Few steady steps stand beside the number of all", few_steps, (headline.answer,)),
    ("GPUs of one process are no ranks", gpus_of_one_process, (headline.answer, step_times.ranks)),
    ("An outlier of several ranks is one step", outlier_of_one_rank, (step_times.outliers,)),
    ("Kernels of a command without steps are means over its processes", two_processes,
     (headline.headline, kernel_share.kernel_share, kernels.kernels)),
    ("A recording without steps shows its idle time and its copies",
     lambda: without_steps((89e6, 0, 285e6, 0, 726e6, 0)), (headline.headline, recording.recording)),
    ("That of several GPUs has a row for each",
     lambda: without_steps((8e6, 0, 0, 0, 0, 2e6), (1e6, 0, 0, 9e6, 0, 0)), (headline.headline, recording.recording)),
    ("A file with sums alone has neither steps nor idle time", without_steps, (recording.recording,)),
    ("Measured calls have no such section", measured_calls, (recording.recording,)),
]  # fmt: skip


def test_the_sections_of_steps_read_as_in_the_golden_file(regenerate):
    studies = ((name, *(section(workload()) for section in sections)) for name, workload, sections in SECTIONS)
    check_studies("steps.md", studies, regenerate)


def test_the_bars_of_a_step_add_up_to_it():
    (chart,) = (block for block in steps.steps(only(compiled())).blocks if isinstance(block, doc.Chart))
    assert [sum(series.marks[i].y for series in chart.series) for i in (0, 1)] == [33.2e6, 26.9e6]


@pytest.mark.parametrize("example", ["two_gpus", "own_program"])
def test_bars_and_tables_of_a_step_are_in_the_time_of_the_headline(example):
    data, manifest = store.load(ROOT / "examples" / example)
    for workload in analyze_tables(data, manifest).workloads:
        section = steps.steps(workload)
        (chart,) = (block for block in section.blocks if isinstance(block, doc.Chart))
        of_case = {case.id: case.time.ns for case in workload.cases if case.time}
        table = next(block for block in every_table(section) if block.id == "parts")
        for row, case in enumerate(chart.x.cases):
            shown = sum(mark.y for series in chart.series for mark in series.marks if mark.x == row)
            # The bars leave out a part below 0.05 %.
            assert table.rows[-1][1 + row].value == pytest.approx(shown, rel=1e-3)
            # The steps of the loader differ, and nsys recorded shorter ones than those that were timed.
            # What nsys adds to a step with DDP is more than idle time and waiting.
            is_recorded = "under nsys" in chart.title + chart.x.labels[row]
            assert is_recorded is ((workload.name, case) in (("loader", "default"), ("parallel", "parallel=ddp")))
            assert is_recorded or shown == pytest.approx(of_case[case], rel=1e-3)


# --- two recorded ranks with a known lateness ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def late_ranks(tmp_path_factory):
    """FullyShardedDataParallel on two H100s, recorded by nsys 2025.5. One rank in turn slept 30 ms before its step.

    The values are the steps and by rank and step the seconds that it slept. Of the recordings nine steps are left, with
    their kernels, copies, launches and calls that wait.
    """
    found, folder = {}, tmp_path_factory.mktemp("late")
    for name in ("fsdp1_late", "fsdp_late"):
        path = folder / f"{name}.sqlite"
        path.write_bytes(gzip.decompress((DATA / "steps_vary" / f"{name}.sqlite.gz").read_bytes()))
        (read,) = reader.ingest(reader.sources_of_paths([path]))
        assert isinstance(read, reader.Read)
        (workload,) = analyze(reader.combine([read.tables]), {"is_run": False}).workloads
        late = json.loads((DATA / "steps_vary" / f"{name}.late.json").read_text())
        found[name] = (workload.steps.cases[0], late)
    return found


def test_what_a_profiler_adds_beyond_the_cost_of_its_launches_slows_all_code_of_the_host():
    """trainer.py under nsys on two H200 machines: nsys added 27 us a launch on one, 9 us on the other."""
    idle = (("launching > a.py:1", 27e6), ("host code > b.py:2", 9e6), ("DataLoader > a.py:3", 2e6))
    more = [metric_row("", "step_wait_idle", ns, subject=cause, profiler="nsys", n=12) for cause, ns in idle]

    def left_ms(plain):
        study = waiting(lambda rank, step: (30, 0, 0, 38, 0, 0), plain, ranks=1, more=more, kernels=1000)
        return {wait.name: wait.idle_ns / 1e6 for wait in find_waits(study, study.steps.cases[0])}

    # 10 of 28 ms are the launches'. The rest is taken from what is left of both causes, 17 to 9.
    assert left_ms(40) == pytest.approx({"launching": 17 * 8 / 26, "host code": 9 * 8 / 26, "DataLoader": 2})
    assert left_ms(59) == pytest.approx({"launching": 18, "host code": 9, "DataLoader": 2})


def waits_of(own):
    """By step and rank, how long the rank waited in ms."""
    waits = own.rows.pivot(index="step", columns="rank", values="waiting_ns").dropna() / 1e6
    return {int(step): row.to_dict() for step, row in waits.iterrows()}


def test_the_rank_that_is_waited_for_is_the_one_that_slept(late_ranks):
    own, late = late_ranks["fsdp1_late"]
    waits = waits_of(own)
    assert len(waits) >= 6
    for step, by_rank in waits.items():
        slept = 0 if late[0][step] else 1
        # The host of the other one had time to launch ahead.
        assert by_rank[slept] == 0 and 30 < by_rank[1 - slept] < 50
    assert {rank.rank: rank.waited_for for rank in own.ranks} == {
        rank: sum(late[rank][step] > 0 for step in waits) for rank in (0, 1)
    }
    assert own.wait_cause is StepPart.IDLE_LAUNCH
    assert steps.waiting(own)[0] == "host-bound: in each step one rank launches late and the other waits"


def test_the_other_rank_waits_longer_by_the_time_that_a_rank_slept(late_ranks):
    """The host of rank 1 is the later one in each step, by 30 ms more in those in which it slept."""
    own, late = late_ranks["fsdp_late"]
    waits = waits_of(own)
    assert all(by_rank[1] == 0 for by_rank in waits.values())
    slept, awake = (
        statistics.median(by_rank[0] for step, by_rank in waits.items() if (late[1][step] > 0) == is_late)
        for is_late in (True, False)
    )
    assert slept - awake == pytest.approx(30, abs=3)
    assert steps.waiting(own)[0] == "host-bound: rank 1 launches late and the other waits"


# --- recordings ------------------------------------------------------------------------------------------------------


def ingested(recording_, folder):
    """Run `profpipe ingest` on a recording; return the lines of SUMMARY.md, and both pages."""
    plain_file = folder / recording_.name.removesuffix(".gz")
    with gzip.open(recording_) as packed, plain_file.open("wb") as file:
        shutil.copyfileobj(packed, file)
    assert main(["ingest", str(plain_file), "--out", str(folder / "out")]) == 0
    return (folder / "out" / "SUMMARY.md").read_text().splitlines(), read_pages(folder / "out")


def cell(lines, label, column=1):
    """Return the number in the first row that begins with ``label``."""
    row = next(line for line in lines if line.startswith(f"| {label} |"))
    return float(row.split("|")[1 + column].replace("*", "").split()[0])


@pytest.mark.parametrize("kind", ["train", "evals", "ddp", "graphs", "accumulate"])
def test_the_page_of_a_loop_has_its_true_step_time_and_kernels(kind, tmp_path, shared_data):
    """Of two ranks, the figures are means: nothing on the page is their sum."""
    truth = json.loads((shared_data / "steps" / "truth.json").read_text())[kind]
    lines, page = ingested(shared_data / "steps" / f"{kind}.sqlite.gz", tmp_path)
    found = re.match(r"\*\*A step takes ([\d.]+) (us|ms) ", lines[2])
    assert found and len(lines) <= 150
    step_ns = float(found[1]) * {"us": 1e3, "ms": 1e6}[found[2]]
    assert step_ns == pytest.approx(statistics.mean(own["median_period_ns"] for own in truth), rel=0.03)
    assert cell(lines, "launches") == pytest.approx(statistics.mean(own["median_launches"] for own in truth), abs=0.5)
    total, unit = next(
        (float(m[2]), {"us": 1e3, "ms": 1e6}[m[1]])
        for line in lines
        if (m := re.match(r"\| \*\*Total (us|ms)/step\*\* \| \*\*([\d.]+)", line))
    )
    if kind == "ddp":
        # Its kernels wait for each other, so that their means over steps are far from their medians.
        kernels = [statistics.mean(own["kernel_ns"][3:]) for own in truth]
        assert total * unit == pytest.approx(statistics.mean(kernels), rel=0.1)
        assert "Kernel times are means over 2 ranks" in page
    else:
        assert total * unit == pytest.approx(truth[0]["median_kernel_ns"], rel=0.01)
    parts = [cell(lines, f"**{name}**") for name in ("compute", "exposed copies", "idle")]
    parts += [cell(lines, "**exposed communication**")] if kind == "ddp" else []
    assert sum(parts) == pytest.approx(cell(lines, "**step**"), rel=0.01)


def test_the_page_of_a_loop_counts_evaluations_and_names_the_pause(tmp_path):
    lines, page = ingested(DATA / "nsys-2025.3.1" / "loops" / "evals.sqlite.gz", tmp_path)
    assert any(
        line.startswith("- Step 12 took 209.0 ms, the median 8.85 ms: 200.2 ms more idle time") for line in lines
    )
    assert page.count("| between steps |") == 4


def test_a_recording_in_which_nothing_recurs_shows_where_its_time_goes(tmp_path):
    """Two processes, one with a GPU that the host keeps waiting, one with a copy."""
    export = Export()
    for n, start in enumerate((0, 1000, 3000)):
        export.launch(start, n, name=f"kernel {n}", lasts=100)
    export.launch(500, 9, name="kernel 9", pid=2, lasts=300)
    path = export.write_sqlite(tmp_path / "x.sqlite")
    assert main(["ingest", str(path), "--out", str(tmp_path / "out")]) == 0
    lines = (tmp_path / "out" / "SUMMARY.md").read_text().splitlines()
    rows = [line for line in lines if line.startswith(("| rank", "| 0 |", "| 1 |"))]
    assert rows == [
        "| rank | recorded us | compute us | idle: the host launched late us |",
        "| 0 | 3.10 | 0.3 (9.7 %) | 2.80 (90.3 %) |",
        "| 1 | 0.3 | 0.3 (100 %) | 0 (0 %) |",
    ]


# --- a run -----------------------------------------------------------------------------------------------------------

LOOP = """
import sys, time
from profpipe import step
for _ in range(20):
    time.sleep(float(sys.argv[1]))
    step()
"""

LOOPS = """
version: 1
workloads:
  loop:
    command: [PYTHON, loop.py, "{seconds}"]
    profilers: [plain]
    matrix: {seconds: [0.01, 0.02]}
    baseline: {seconds: 0.02}
    items_per_step: 10
    item_name: words
"""


def test_a_run_names_the_program_with_the_shorter_step(tmp_path, monkeypatch):
    (tmp_path / "loop.py").write_text(LOOP)
    (tmp_path / "pipeline.yaml").write_text(LOOPS.replace("PYTHON", sys.executable))
    monkeypatch.chdir(tmp_path)
    assert main(["run", "pipeline.yaml", "--out", "out", "--quiet"]) == 0
    lines = (tmp_path / "out" / "latest" / "SUMMARY.md").read_text().splitlines()
    answer = re.match(r"\*\*`seconds=0.01` is fastest: ([\d.]+) ms per step, ([\d.]+)x over `seconds=0.02`", lines[2])
    assert answer and float(answer[1]) == pytest.approx(10, rel=0.3) and float(answer[2]) > 1.3
    assert cell(lines, "`seconds=0.01`", 3) == pytest.approx(10 / (float(answer[1]) / 1e3), rel=0.01)
    assert any("A step begins at the program's own marker." in line for line in lines)
