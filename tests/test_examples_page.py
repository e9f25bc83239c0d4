"""Every figure of examples/README.md is recomputed from the tables of the examples, or listed as given.

``CLAIMS`` has a function for each example. It yields the sentences and the rows of tables that hold figures, with the
figures as they follow from the tables of the example. Each must stand on the page word by word. The digits of the page
that no claim covers must stand in ``GIVEN``: published figures, settings, versions, and figures of runs that are not
committed.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from example_tables import Example

from profpipe.analysis import pairs
from profpipe.analysis.analyze import analyze
from profpipe.analysis.findings.agreement import Cause, Figure
from profpipe.analysis.findings.targets import Grade
from profpipe.analysis.findings.workloads import WinVerdict
from profpipe.analysis.verdict import Gate
from profpipe.report.document import plain
from profpipe.report.sections.kernel_differences import explain
from profpipe.report.units import number
from profpipe.results import store
from profpipe.results.schema import RANK_PREFIX, KernelChange

PAGE = Path(__file__).resolve().parents[1] / "examples" / "README.md"
MIB, GIB = 2.0**20, 2.0**30
US, MS, S = 1e3, 1e6, 1e9

#: A sentence of the page with replacement fields, and their values.
Claim = tuple[Any, ...]

CLAIMS: dict[str, Callable[[Example], Iterator[Claim]]] = {}


def claims(function: Callable[[Example], Iterator[Claim]]) -> Callable[[Example], Iterator[Claim]]:
    """Register the claims about the example that is named like ``function``."""
    CLAIMS[re.sub("^(h[12]00)_", r"\1-", function.__name__)] = function
    return function


WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


def word(number: int) -> str:
    return WORDS[number]


def duration(seconds: float) -> str:
    return f"{round(seconds) // 60} min {round(seconds) % 60} s"


def together(example: Example) -> str:
    """The time of all jobs of a run."""
    return duration(sum(job["seconds"] for job in example.run["jobs"]))


def jobs(example: Example) -> str:
    return word(len(example.run["jobs"]))


def count(example: Example) -> int:
    return len(example.rows.drop_duplicates(["workload", "case"]))


def power(value: float) -> str:
    """``1.1e-5``."""
    return re.sub(r"e([+-])0", r"e\1", f"{value:.1e}")


def span(values: Any, form: str = ".2f") -> str:
    """``1.45 to 1.78``."""
    return f"{min(values):{form}} to {max(values):{form}}"


def ran(example: Example, profiler: str = "plain") -> pd.DataFrame:
    return example.where(profiler, status="ok")


def flagged(rows: pd.DataFrame, flag: str) -> pd.DataFrame:
    return rows[rows["flags"].map(lambda flags: flag in flags)]


@claims
def scenarios(e: Example) -> Iterator[Claim]:
    yield "{} cases in {} jobs, {} together", count(e), jobs(e), together(e)
    shapes = {name: own.set_index("impl") for name, own in ran(e).groupby("scenario")}
    accurate = {name: own[own["error_rel_l1"] <= 0.06] for name, own in shapes.items()}
    fastest = {name: own["time"].idxmin() for name, own in accurate.items()}
    by_cudnn = [name for name, impl in fastest.items() if impl == "sdpa_cudnn"]
    leads = [shapes[name].loc["sdpa_flash", "time"] / shapes[name].loc["sdpa_cudnn", "time"] for name in by_cudnn]
    yield (
        "cuDNN's kernel is the fastest in {} of {}, {} times as fast",
        word(len(by_cudnn)),
        word(len(shapes)),
        span(leads),
    )
    assert {name for name, impl in fastest.items() if impl == "sage2"} == {"context-8k", "context-16k"}
    yield (
        "`sage2` is the fastest at 16384 tokens ({:.2f} against {:.2f} ms), and most likely at 8192, where the clocks",
        e.time(impl="sage2", scenario="context-16k") / MS, e.time(impl="sdpa_flash", scenario="context-16k") / MS,
    )  # fmt: skip
    batch = {name: own["batch"].iloc[0] for name, own in shapes.items()}
    assert batch["bert-base"] == batch["bert-large"]
    yield (
        "2 for GPT-3 ({:.0f} here), 16 for BERT-base and 8 for BERT-large ({:.0f} here)",
        batch["gpt3"],
        batch["bert-base"],
    )
    decode = shapes["decode"]["time"]
    yield (
        "FlexAttention takes {:.0f} us for a step of decoding; FlashAttention-2 takes {} us, and SageAttention, whose "
        "kernels are made for prompts, {} ms",
        decode["flex"] / US,
        span(decode[["fa2", "xformers", "sdpa_flash"]] / US, ".0f"),
        span(decode[["sage1", "sage2"]] / MS, ".1f"),
    )


@claims
def scenarios_published(e: Example) -> Iterator[Claim]:
    yield "{} cases in {} job of {:.0f} s", count(e), jobs(e), sum(job["seconds"] for job in e.run["jobs"])
    rows = ran(e).set_index(["scenario", "impl"])
    names = {
        "gpt2-small": "GPT-2 small, causal", "gpt3-large": "GPT-3 large, causal", "bert-base-16": "BERT-base",
        "bert-large-8": "BERT-large", "long-8k": "8k", "long-16k": "16k", "inference-32": "batch inference",
    }  # fmt: skip
    times = rows["time"].astype(float).unstack()
    assert sorted(times.index) == sorted(names)
    for scenario, name in names.items():
        shape = rows.loc[(scenario, "fa2"), ["batch", "seqlen", "heads", "head_dim"]]
        assert bool(rows.loc[(scenario, "fa2"), "causal"]) == name.endswith("causal")
        yield (
            "| {} | {:.0f}, {:.0f}, {:.0f}, {:.0f} | {:.0f} | {:.0f} | {:.0f} | {:.0f} |",
            name, *shape, *(rows.loc[(scenario, impl), "tflops"] for impl in ("fa2", "fa3", "sdpa_cudnn", "sage2")),
        )  # fmt: skip
    fastest = times.idxmin(axis=1)
    assert set(fastest) == {"sdpa_cudnn", "fa3"} and set(fastest[fastest == "fa3"].index) == {
        "gpt3-large", "long-8k", "long-16k",
    }  # fmt: skip
    yield "cuDNN is the fastest in {} of {}", word(int((fastest == "sdpa_cudnn").sum())), word(len(fastest))
    yield "FlashAttention 3 in {}, the long ones and GPT-3", word(int((fastest == "fa3").sum()))
    yield "FlashAttention-2 takes {} times as long as FlashAttention 3", span(times["fa2"] / times["fa3"])
    ratio, is_long = times["sage2"] / times["fa2"], times.index.str.startswith("long")
    yield "`sage2` takes {} times as long as FlashAttention-2 up to 2048 tokens", span(ratio[~is_long], ".1f")
    assert (ratio[is_long] < 1).all()


@claims
def sparsity_video(e: Example) -> Iterator[Claim]:
    yield "{} cases in {} job of {}", count(e), jobs(e), together(e)
    rows = ran(e)
    local, random = (rows[rows["inputs"] == name].set_index("impl") for name in ("local", "normal"))
    names = {impl: f"`{impl}`" for impl in ("sdpa_flash", "fa2", "fa3", "sage2", "sta")}
    for impl, name in (names | {"sparge_fp8": "`sparge_fp8`, half of the blocks"}).items():
        ns, left_out = local.loc[impl, "time"], local.loc[impl, "sparsity"]
        yield (
            "| {} | {:.1f} ms | {:.2f}x | {}| {:.4f} |",
            name, ns / MS, local.loc["sdpa_flash", "time"] / ns, "" if pd.isna(left_out) else f"{left_out:.1f} % ",
            local.loc[impl, "error_rel_l1"],
        )  # fmt: skip
    assert set(flagged(rows, "inaccurate")["impl"]) == {"sta", "sparge_fp8"}
    errors = random["error_rel_l1"]
    yield "its relative L1 is {:.2f} and that of SpargeAttn {:.2f}", errors["sta"], errors["sparge_fp8"]
    effective = local["flops_effective"] / local["time"] / 1e3
    yield (
        "{:.0f} TFLOP/s of the work that is left, where `fa3` reaches {:.0f}",
        effective["sta"],
        local.loc["fa3", "tflops"],
    )


@claims
def regression_check(e: Example) -> Iterator[Claim]:
    data, run = store.load(e.folder)
    found = pairs.analyze(data, run)
    (case,) = found.cases
    judged, first = case.judgement, case.first
    assert judged is not None and first is not None and found.gate is Gate.FAILED
    percents = [100 * (value - 1) for value in (judged.ratio, judged.ci_low, judged.ci_high, first.ratio)]
    yield (
        "A step takes {:.1f} ms on A and {:.1f} ms on B: {}, +{:.1f} % (99 % interval: {:.1f} to {:.1f} %)",
        case.a_ns / MS, case.b_ns / MS, judged.verdict.value, *percents[:3],
    )  # fmt: skip
    yield (
        "The first {} pairs had +{:.1f} %, and {} fresh pairs had +{:.1f} %",
        first.pairs, percents[3], judged.pairs, percents[0],
    )  # fmt: skip
    assert case.kernels is not None
    text = plain(explain(case))
    yield (
        "{} elementwise kernels with {} more launches (+{} ms), {} more copies (+{} ms) and {} more additions (+{} ms)",
        *_groups(
            r"\+(\S+) ms (\d+) elementwise kernels \((\d+) more launches\), "
            r"\+(\S+) ms copy \((\d+) more launches\), \+(\S+) ms add \((\d+) more launches\)",
            text, (2, 3, 1, 5, 4, 7, 6),
        ),
    )  # fmt: skip
    vanished = [kernel for kernel in case.kernels.kernels if kernel.change is KernelChange.VANISHED]
    gelu = [kernel.a.calls for kernel in vanished if "Gelu" in kernel.name]
    assert len(gelu) == 2
    yield "one forward and one backward for each of {} layers", _once(gelu, ".0f")
    ended, started = (pd.Timestamp(e.run[key]) for key in ("ended", "started"))
    timed = [job for job in e.run["jobs"] if job["profiler"] == "plain"]
    yield (
        "{} timed processes and {} captures took {}",
        len(timed), word(len(e.run["jobs"]) - len(timed)), duration((ended - started).total_seconds()),
    )  # fmt: skip


def _groups(pattern: str, text: str, order: tuple[int, ...]) -> tuple[str, ...]:
    found = re.search(pattern, text)
    assert found is not None, text
    return tuple(found[i] for i in order)


@claims
def targets(e: Example) -> Iterator[Claim]:
    yield "{} cases in {} jobs, {} together", count(e), jobs(e), together(e)
    (workload,) = analyze(*store.load(e.folder)).workloads
    found, by_id = workload.targets, {case.id: case.params for case in workload.cases}
    grades = {quantity: [found.grade(id, quantity) for id in by_id] for quantity in found.targets}
    good = {quantity: own.count(Grade.GOOD) for quantity, own in grades.items()}
    of = {(p["impl"], p["seqlen"]): found.values[id] for id, p in by_id.items()}
    yield "{} of {} cases are good ({:.0f} or more)", good["tflops"], len(by_id), found.targets["tflops"].good
    yield (
        "`sage2` at 1024 tokens is fair ({:.0f}), and `sdpa_math`, which computes the formula step by step, is poor "
        "({:.0f})",
        of["sage2", 1024]["tflops"],
        of["sdpa_math", 4096]["tflops"],
    )
    assert sorted(values["tflops"] for values in of.values())[-3] < 400
    share = {case.params["impl"]: case.of_peak_flops for case in workload.cases if case.params["seqlen"] == 4096}
    yield (
        "only `fa3` ({:.0f}) and cuDNN ({:.0f}) at 4096 tokens are good, {:.0f} and {:.0f} % of the peak",
        of["fa3", 4096]["tflops"], of["sdpa_cudnn", 4096]["tflops"],
        100 * float(share["fa3"] or 0), 100 * float(share["sdpa_cudnn"] or 0),
    )  # fmt: skip
    yield (
        "GPU busy: {} are good. At 1024 tokens `fa3` is poor ({:.0f} %) and `sage2` fair ({:.0f} %)",
        good["gpu_busy"], of["fa3", 1024]["gpu_busy"], of["sage2", 1024]["gpu_busy"],
    )  # fmt: skip
    moved = {key: values["memory_bandwidth"] for key, values in of.items()}
    others = [value for (impl, _), value in moved.items() if impl != "sdpa_math"]
    assert good["memory_bandwidth"] == 0
    yield "The formula reaches up to {:.0f} %, the others {} %", moved["sdpa_math", 4096], span(others, ".0f")
    leads = [f"{values['speedup']:.3g}x" for values in of.values() if "speedup" in values]
    leads.sort(key=lambda text: float(text[:-1]))
    yield "all {} are good (above {:.0f}x), from {} to {}", word(good["speedup"]), 3, leads[0], leads[-1]


@claims
def profilers(e: Example) -> Iterator[Claim]:
    yield "{} cases in {} jobs, {} together", count(e), jobs(e), together(e)
    kernels = e.kernels[e.kernels["case"] != ""].groupby(["workload", "case", "profiler"])["total_ns"].sum()
    iterations = e.cases.set_index(["workload", "case", "profiler"])["iterations"]
    table = (kernels / iterations.astype(float)).unstack()
    table["plain"] = e.plain.set_index(["workload", "case"])["time"].astype(float)
    tokens = e.plain.set_index(["workload", "case"])["tokens"]
    one = table.loc["length"].set_index(tokens.loc["length"].reindex(table.loc["length"].index)).sort_index()
    for length in (128, 1024, 4096, 16384):
        own = (one.loc[length, name] / US for name in ("plain", "nsys", "torch", "ncu"))
        yield "| {} | {} | {} | {} | {} |", length, *map(number, own)
    yield "differ by at most {:.1f} %", 100 * (table["torch"] / table["nsys"] - 1).abs().max()
    short = table[tokens.reindex(table.index) <= 2048]
    yield (
        "up to 2048 tokens its time is {} us longer than the kernel: the gap between two launches. That is {:.0f} % of "
        "the kernel's time at 128 tokens and {:.0f} % at 2048",
        span((short["plain"] - short["nsys"]) / US, ".1f"),
        *(100 * (one.loc[length, "plain"] / one.loc[length, "nsys"] - 1) for length in (128, 2048)),
    )
    clock = e.where("nsys", workload="length").set_index("case")["sm_clock"] / S
    yield (
        "the clock was {:.2f} and {:.2f} GHz under nsys, its times are {:.1f} and {:.1f} % shorter",
        *(clock[f"impl=fa2,seqlens={length}"] for length in (8192, 16384)),
        *(100 * (1 - one.loc[length, "ncu"] / one.loc[length, "nsys"]) for length in (8192, 16384)),
    )
    found = {workload.name: workload for workload in analyze(*store.load(e.folder)).workloads}["sequences"]
    figures = [f for own in found.agreements for f in own.figures[1:] if f.profiler == "ncu"]
    apart = [f for f in figures if not f.is_close]
    yield (
        "ncu differs from nsys by up to {:.1f} %, and in {} of {} cases by more than 3 %",
        100 * max(abs(f.difference or 0.0) for f in figures), word(len(apart)), len(figures),
    )  # fmt: skip
    for cause, sign in ((Cause.NCU_LAUNCH, 1), (Cause.CLEAN_CACHE, -1)):
        own = [f for f in apart if f.reasons[0].cause is cause]
        assert all(sign * (f.difference or 0.0) > 0 for f in own)
        yield "{} are " + ("longer" if sign > 0 else "shorter"), word(len(own)).capitalize()


@claims
def sparsity(e: Example) -> Iterator[Claim]:
    yield "{} cases in {} jobs, {} together", count(e), jobs(e), together(e)
    local, dense = e.where(inputs="local", status="ok"), e.time(workload="topk", impl="sdpa_flash", inputs="local")
    yield "On local inputs `sdpa_flash` takes {:.1f} ms", dense / MS
    for row in local[(local["impl"] == "sparge_fp8") & local["topk"].notna()].to_dict("records"):
        assert row["sparsity"] == pytest.approx(row["sparsity_requested"], abs=0.5)  # in %
        left_out = f"| {row['sparsity_requested']:.0f} % | {number(row['time'] / MS)} ms |"
        if row["topk"] > 0.1:
            rate = row["flops_effective"] / row["time"] / 1e3
            yield left_out + " {:.2f}x | {:.0f} | {:.3f} |", dense / row["time"], rate, row["error_rel_l1"]
        else:
            yield left_out + " | | {:.3f}, fails: 0.1 is allowed |", row["error_rel_l1"]
    fp16 = local[(local["impl"] == "sparge_fp16") & (local["topk"] > 0.1)].sort_values("sparsity_requested")
    leads = [f"{dense / ns:.2f}x" for ns in fp16["time"]]
    yield "`sparge_fp16` reaches at 25, 50 and 75 % {}, {} and {}", *leads
    sage = local[local["impl"] == "sage2"].iloc[0]
    quarter = local[(local["impl"] == "sparge_fp8") & (local["topk"] == 0.75)].iloc[0]
    yield (
        "Dense `sage2` takes {:.1f} ms ({:.2f}x) with a relative L1 of {:.3f}",
        sage["time"] / MS,
        dense / sage["time"],
        sage["error_rel_l1"],
    )
    yield "Leaving out a quarter gains {:.0f} % over it", 100 * (sage["time"] / quarter["time"] - 1)
    yield "({:.0f} MHz for `sage2`, {:.0f} MHz for the other)", sage["sm_clock"] / 1e6, quarter["sm_clock"] / 1e6
    random = e.where(inputs="normal", status="ok")
    topk = random[random["topk"].notna()].sort_values("topk")
    fp8 = {row["topk"]: row for row in topk[topk["impl"] == "sparge_fp8"].to_dict("records")}
    failed = int((topk["error_rel_l1"] > 0.1).sum())
    yield (
        "({:.2f} ms at 75 %), and all {} results fail: {:.2f} at 25 %, {:.1f} at 50 %, {:.1f} at 75 %, {:.1f} at 90 %",
        fp8[0.25]["time"] / MS, word(failed), *(fp8[key]["error_rel_l1"] for key in (0.75, 0.5, 0.25, 0.1)),
    )  # fmt: skip
    assert failed == len(topk)
    limits = random[random["cdfthreshd"].notna()]
    assert (limits["sparsity"].max() < 0.5) and (limits["error_rel_l1"] < 0.1).all()
    own = limits[limits["impl"] == "sparge_fp8"]
    yield (
        "leave out 0 % and pass: `sparge_fp8` takes {} ms ({:.3f}) where `sage2` takes {:.1f} ms",
        span(own["time"] / MS, ".1f"), own["error_rel_l1"].max(),
        e.time(workload="topk", impl="sage2", inputs="normal") / MS,
    )  # fmt: skip


@claims
def sparsity_lengths(e: Example) -> Iterator[Claim]:
    yield "{} cases in {} jobs, {} together", count(e), jobs(e), together(e)
    cases = ran(e).assign(topk=ran(e)["topk"].fillna(0))
    rows = cases[cases["workload"] == "lengths"].set_index(["impl", "topk", "causal", "seqlen"]).sort_index()
    rate, time, error = rows["tflops"], rows["time"], rows["error_rel_l1"]
    for title, impl, topk in (
        ("`sdpa_flash`", "sdpa_flash", 0), ("`sdpa_cudnn`", "sdpa_cudnn", 0), ("`fa3`", "fa3", 0),
        ("`sage2`", "sage2", 0),
        ("`sparge_fp16`, nothing left out", "sparge_fp16", 1.0), ("`sparge_fp16`, 30 % left out", "sparge_fp16", 0.7),
        ("`sparge_fp8`, nothing left out", "sparge_fp8", 1.0), ("`sparge_fp8`, 30 % left out", "sparge_fp8", 0.7),
    ):  # fmt: skip
        of = rate[impl, topk, False]
        yield (f"| {title} | " + " | ".join(f"{of[n]:.0f}" for n in (1024, 4096, 8192, 16384, 32768)) + " |",)
    without_mask = time.xs(False, level="causal").unstack("seqlen")
    fastest = without_mask.idxmin()
    assert set(fastest[:3]) == {("fa3", 0.0)} and set(fastest[3:]) == {("sparge_fp8", 0.7)}
    sparse, fa3, sage2 = (time[impl, topk, False] for impl, topk in (("sparge_fp8", 0.7), ("fa3", 0), ("sage2", 0)))
    yield (
        "{:.2f} ms against {:.2f} ms of `fa3` and {:.2f} ms of `sage2` at 16384",
        sparse[16384] / MS, fa3[16384] / MS, sage2[16384] / MS,
    )  # fmt: skip
    yield (
        "is at most {:.4f}, that of `sage2` {:.4f}, and that of `fa3` {:.4f}",
        error["sparge_fp8", 0.7].max(), error["sage2", 0, False].max(), error["fa3", 0, False].max(),
    )  # fmt: skip
    whole, cudnn = time["sparge_fp8", 1.0, False], time["sdpa_cudnn", 0, False]
    yield "does the same work as `sage2` in {} times the time", span(whole / sage2)
    assert whole[8192] > cudnn[8192]
    yield "passes cuDNN at 16384 tokens ({:.2f}x)", cudnn[16384] / whole[16384]
    flash, fp16 = time["sdpa_flash", 0], time["sparge_fp16", 0.7]
    assert list(fp16[False].index[fp16[False] < flash[False]]) == [8192, 16384, 32768]
    assert (time["sparge_fp16", 0.7, False] > cudnn).all() and (time["sparge_fp16", 1.0, False] > flash[False]).all()
    yield (
        "leaves out only {} % of its work",
        span(rows.loc[("sparge_fp16", 0.7, True), "sparsity"], ".1f"),
    )
    causal = rows.loc["sparge_fp16"].xs(True, level="causal")["time"]
    yield "takes {} times as long as `sdpa_flash`", span(causal / flash[True].reindex(causal.index, level="seqlen"))
    assert (cases["error_rel_l1"] < 0.1).all() and (cases["cosine"] > 0.98).all()
    skipped = e.plain[(e.plain["impl"] == "sparge_fp8") & (e.plain["status"] == "skipped")]
    assert set(skipped["causal"]) == {True} and skipped["reason"].str.contains("first query sees later keys").all()
    longest = [time["sparge_fp8", topk, False, 32768] / MS for topk in (1.0, 0.7)]
    yield "ran at higher clocks, in {:.1f} and {:.1f} ms", *longest
    yield from _reached(cases[cases["workload"] == "reached"])


def _reached(cases: pd.DataFrame) -> Iterator[Claim]:
    """The figures of the table by the share that was left out."""
    rows = cases.assign(effective=cases["flops_effective"] / cases["time"] / 1e3)
    rows = rows.set_index(["impl", "causal", "topk"]).sort_index()
    fp16, fp8, causal = rows.loc["sparge_fp16", False], rows.loc["sparge_fp8", False], rows.loc["sparge_fp16", True]
    for topk in (1.0, 0.7, 0.5, 0.3, 0.1):
        ms = (number(of.loc[topk, "time"] / MS) for of in (fp16, fp8))
        (left_out,) = {f"{of.loc[topk, 'sparsity']:.0f}" for of in (fp16, fp8)}
        fast, masked = fp8.loc[topk], causal.loc[topk]
        yield (
            "| {} | {} % | {} | {} | {:.0f} | {:.0f} | {:.4f} | {:.0f} % | {} |",
            topk, left_out, *ms, fast["tflops"], fast["effective"], fast["error_rel_l1"], masked["sparsity"],
            number(masked["time"] / MS),
        )  # fmt: skip
    lost = [100 * (1 - of.loc[0.1, "effective"] / of.loc[1.0, "effective"]) for of in (fp16, fp8)]
    yield (
        "From 0 to 90 % `sparge_fp16` loses {:.0f} % of its effective rate, and `sparge_fp8` {:.0f} %",
        *lost,
    )
    fixed = []
    for of in (fp16, fp8):
        first, last = of.loc[1.0], of.loc[0.1]
        slope = (first["time"] - last["time"]) / (last["sparsity"] - first["sparsity"])
        fixed.append((first["time"] - 100 * slope) / MS)
    yield "would leave {:.1f} ms (`sparge_fp16`) and {:.1f} ms (`sparge_fp8`) if everything", *fixed
    shown = fp8.loc[[1.0, 0.7, 0.5, 0.3, 0.1], "flags"]
    throttled = [topk for topk, flags in shown.items() if "throttled" in flags]
    assert throttled == [1.0, 0.7, 0.3]


@claims
def accuracy(e: Example) -> Iterator[Claim]:
    yield "{} cases in {} jobs, {} together", count(e), jobs(e), together(e)
    rows = ran(e)
    errors = rows[[name for name in rows if str(name).startswith("error_rel_l1")]].max(axis=1)
    rows = rows.assign(worst=errors)
    yield "{} cases ran; all but {} are within the tolerance", len(rows), word(len(flagged(rows, "inaccurate")))
    fused = ["sdpa_flash", "sdpa_cudnn", "fa2", "flex", "xformers"]
    for dtype, form in (("fp16", ".5f"), ("bf16", ".4f")):
        own = rows[rows["workload"] == dtype].groupby("impl")["worst"].max()
        figures = (own[fused].max(), own["sdpa_efficient"], own["plain"])
        yield (
            f"| {dtype}, at most | "
            + " | ".join(f"{figure:{form}}" for figure in figures)
            + f" | {_limit(e, dtype)} |",
        )
    own = rows[rows["workload"] == "quantised"].groupby(["impl", "inputs"])["worst"].max()
    yield (
        "| `sage1` (q and k in int8) | {:.3f} | {:.4f} | {} |",
        own["sage1", "normal"],
        own["sage1", "local"],
        _limit(e, "quantised"),
    )
    yield (
        "| `sage2` (values in fp8 too) | {:.3f} | {:.3f} | {} |",
        own["sage2", "normal"],
        own["sage2", "local"],
        _limit(e, "quantised"),
    )
    sparge = rows[rows["impl"].isin(["sparge_fp16", "sparge_fp8"])]
    assert (sparge["inputs"] == "normal").sum() == len(flagged(rows, "inaccurate"))
    by_inputs = {name: own["worst"] for name, own in sparge.groupby("inputs")}
    yield (
        "SpargeAttn with its defaults left out {:.0f} % of the blocks: {} on local inputs, {} on random ones",
        sparge["sparsity"].median(), span(by_inputs["local"], ".3f"), span(by_inputs["normal"]),
    )  # fmt: skip
    fp32 = rows[rows["workload"] == "fp32"]
    yield "In fp32 no difference is above {}", power(fp32["worst"].max())
    assert (fp32.loc[fp32["impl"] == "plain", "error_max"] == 0).all()
    tiled = e.where(workload="bf16", impl="tiled", seqlen=4096, causal=False).iloc[0]
    yield "its times ({:.0f} ms in bf16, flagged noisy and host_bound)", tiled["time"] / MS
    assert {"noisy", "host_bound"} <= set(tiled["flags"])
    fa2 = e.where(workload="fp16", impl="fa2", causal=False).set_index("seqlen")
    yield (
        "Here `fa2` without a mask has {:.6f} and {} at 1024 tokens, and {:.6f} and {} at 4096",
        fa2.loc[1024, "error_max"], power(fa2.loc[1024, "error_mean"]),
        fa2.loc[4096, "error_max"], power(fa2.loc[4096, "error_mean"]),
    )  # fmt: skip
    causal = e.where(workload="fp16", impl="fa2", causal=True)
    yield "With a causal mask the maximum is {}", span(causal["error_max"], ".6f")


def _limit(example: Example, workload: str) -> float:
    """The relative L1 that the pipeline allows."""
    return float(example.run["pipeline"]["workloads"][workload]["tolerance"]["error_rel_l1"])


@claims
def attention_scaling(e: Example) -> Iterator[Claim]:
    yield "{} cases in {} jobs, {} together", count(e), jobs(e), together(e)
    lengths, batches = e.where(workload="lengths", status="ok"), e.where(workload="batches", status="ok")
    for rows, template in ((lengths, "it reaches up to {:.0f} TFLOP/s forward and {:.0f} with the backward pass"),
                           (batches, "({:.0f} and {:.0f} in batches of 2)")):  # fmt: skip
        cudnn = rows[rows["impl"] == "sdpa_cudnn"].groupby("mode")["tflops"].max()
        yield template, cudnn["fwd"], cudnn["fwd_bwd"]
    forward = lengths[lengths["mode"] == "fwd"].set_index(["causal", "seqlen", "impl"])
    first, most, factor = {}, {}, 0.0
    for causal in (False, True):
        times = forward.loc[causal]["time"].unstack()
        ahead = [length for length, row in times.iterrows() if row["sage2"] < row["sdpa_cudnn"]]
        assert ahead == [length for length in times.index if length >= min(ahead)]
        first[causal] = min(ahead)
        most[causal] = forward.loc[(causal, 65536, "sage2"), "tflops"]
        errors = forward.loc[causal]["error_rel_l1"].unstack().loc[ahead]
        factor = max(factor, float((errors["sage2"] / errors["sdpa_cudnn"]).max()))
    yield (
        "Forward, by medians, `sage2` passes it from {} tokens on without a mask and from {} on with a causal one "
        "({:.0f} and {:.0f} TFLOP/s at 65536), at {:.0f} times the error",
        first[False],
        first[True],
        most[False],
        most[True],
        factor,
    )
    memory = e.where(workload="batches", impl="fa2", mode="fwd_bwd").sort_values("batch")["peak_allocated"] / MIB
    yield "| peak memory of `fa2`, forward and backward, MiB | {:.0f} | {:.0f} | {:.0f} | {:.0f} |", *memory
    fa2 = lengths[(lengths["impl"] == "fa2") & ~lengths["causal"].astype(bool)].set_index(["mode", "seqlen"])["tflops"]
    sizes = (4096, 8192, 16384, 32768, 65536)
    for mode, name in (("fwd", "forward"), ("fwd_bwd", "forward and backward")):
        yield (f"| {name}, H200 | " + " | ".join(f"{fa2[mode, size]:.0f}" for size in sizes) + " |",)
    ahead = [100 * (fa2[mode, 65536] / published[-1] - 1) for mode, published in PUBLISHED_H100.items()]
    yield "At 65536 tokens the H200 is {} % ahead", span(ahead, ".0f")
    early = [100 * (fa2[mode, 4096] / published[0] - 1) for mode, published in PUBLISHED_H100.items()]
    yield "At 4096 tokens it is {} % ahead", span(early, ".0f")


#: FlashAttention-2's published TFLOP/s on an H100 at 4096 to 65536 tokens, head dim 128, not causal.
PUBLISHED_H100 = {"fwd": (234, 276, 317, 337, 346), "fwd_bwd": (221, 264, 294, 303, 307)}


@claims
def accuracy_fa3(e: Example) -> Iterator[Claim]:
    rows = ran(e)
    assert len(rows) == count(e) and not len(flagged(rows, "inaccurate"))
    yield "{} cases in {} jobs, {:.0f} s together", count(e), jobs(e), sum(job["seconds"] for job in e.run["jobs"])
    columns = [name for name in rows if str(name).startswith("error_rel_l1")]
    worst = rows.assign(worst=rows[columns].max(axis=1)).groupby(["workload", "impl"])["worst"].max()
    rounded = {dtype: {f"{worst[dtype, impl]:.{n}f}" for impl in ("fa3", "fa2", "sdpa_cudnn")}
               for dtype, n in (("fp16", 5), ("bf16", 4))}  # fmt: skip
    (fp16,), (bf16,) = rounded["fp16"], rounded["bf16"]
    yield "at most {} in fp16 and {} in bf16, as that of `fa2` and cuDNN", fp16, bf16


@claims
def attention_scaling_fa3(e: Example) -> Iterator[Claim]:
    yield "{} cases in {}.", count(e), together(e)
    rows = e.where(causal=False).set_index(["mode", "impl", "seqlen"])["tflops"]
    for mode, title in (("fwd", "forward"), ("fwd_bwd", "forward and backward")):
        for impl, name in (("fa3", "`fa3`"), ("sdpa_cudnn", "cuDNN"), ("fa2", "`fa2`")):
            cells = (f"{rows[mode, impl, seqlen]:.0f}" for seqlen in (1024, 4096, 16384, 65536))
            yield (f"| {title}, {name} | {' | '.join(cells)} |",)
    times = e.plain.pivot_table(index=["mode", "causal", "seqlen"], columns="impl", values="time")
    assert (times.idxmin(axis=1) == "fa3").all()
    yield (
        "in all {} shapes: {} times as fast as `fa2` and {} times as fast as cuDNN",
        len(times), span(times["fa2"] / times["fa3"]), span(times["sdpa_cudnn"] / times["fa3"]),
    )  # fmt: skip
    (error,) = {f"{e.where(impl=impl)['error_rel_l1'].max():.4f}" for impl in ("fa3", "fa2")}
    yield "Its relative L1 is that of `fa2`: {}", error
    forward, both = (e.where(impl="fa3", seqlen=1024, causal=False, mode=mode).iloc[0] for mode in ("fwd", "fwd_bwd"))
    yield (
        "the host needs {:.2f} ms to launch a forward pass of `fa3`, and the GPU {:.3f} ms to run it at 1024 tokens. "
        "With the backward pass the host needs {:.2f} ms",
        forward["issue"] / MS, forward["time"] / MS, both["issue"] / MS,
    )  # fmt: skip


@claims
def attention_scaling_fa4(e: Example) -> Iterator[Claim]:
    yield "{} cases in {}.", count(e), together(e)
    rates = e.plain.set_index(["mode", "causal", "impl", "seqlen"])["tflops"]
    for mode, title in (("fwd", "forward"), ("fwd_bwd", "forward and backward")):
        for causal, impl in ((causal, impl) for causal in (False, True) for impl in ("fa4", "fa3")):
            cells = (f"{rates[mode, causal, impl, seqlen]:.0f}" for seqlen in (512, 2048, 8192, 16384))
            yield (f"| {'causal ' * causal}{title}, `{impl}` | {' | '.join(cells)} |",)
    times = e.plain.pivot_table(index=["seqlen", "mode", "causal"], columns="impl", values="time").sort_index()
    over_fa3 = times["fa3"] / times["fa4"]
    yield (
        "At 512 tokens `fa4` is {} times as fast as `fa3`, and from 2048 tokens on {} times",
        span(over_fa3[512]), span(over_fa3.loc[2048:]),
    )  # fmt: skip
    yield "It is {} times as fast as cuDNN", span(times["sdpa_cudnn"] / times["fa4"])
    (error,) = {f"{of['error_rel_l1'].max():.4f}" for _, of in e.plain.groupby("impl")}
    yield "The relative L1 of the output is that of all five: {}", error
    short = e.where(seqlen=512, mode="fwd", causal=False).set_index("impl")["issue"] / US
    assert short.idxmin() in ("sdpa_cudnn", "sdpa_flash")
    yield (
        "takes {:.0f} us to launch a forward pass of `fa4`, {:.0f} us of `fa3` and {:.0f} us of cuDNN",
        *short[["fa4", "fa3", "sdpa_cudnn"]],
    )


@claims
def attention_scaling_fp16(e: Example) -> Iterator[Claim]:
    yield "{} cases in {}, on the same kind of machine", count(e), together(e)
    rates = e.where(causal=False, status="ok").set_index(["mode", "seqlen", "impl"])["tflops"]
    yield (
        "cuDNN reaches {:.0f} TFLOP/s forward at 4096 tokens and {:.0f} with the backward pass at 16384; "
        "FlashAttention-2 "
        "reaches {:.0f} and {:.0f}, FlexAttention {:.0f} and {:.0f}",
        *(
            rates[place][impl]
            for impl in ("sdpa_cudnn", "fa2", "flex")
            for place in (("fwd", 4096), ("fwd_bwd", 16384))
        ),
    )
    own = e.where(causal=False, mode="fwd", seqlen=16384).set_index("impl")
    assert own.loc["sage2", "time"] < own.loc["sdpa_cudnn", "time"]
    yield (
        "`sage2` passes cuDNN at 16384 tokens without a mask ({:.0f}), at {:.0f} times the error of `sdpa_flash`",
        own.loc["sage2", "tflops"], own.loc["sage2", "error_rel_l1"] / own.loc["sdpa_flash", "error_rel_l1"],
    )  # fmt: skip


@claims
def grouped_sequences(e: Example) -> Iterator[Claim]:
    yield "{} cases in {} jobs, {} together", count(e), jobs(e), together(e)
    rows = e.where(workload=("groups", "single"), status="ok")
    times = rows.assign(seqlens=rows["seqlens"].astype(str)).set_index(["workload", "seqlens", "impl"])
    long, short = times.loc[("single", "8192", "fa2")], times.loc[("groups", "64x128", "fa2")]
    yield "flash-attn reaches {:.0f} TFLOP/s in {:.0f} us", long["tflops"], long["time"] / US
    assert round(long["flops"] / short["flops"]) == 64 and round(long["time"] / short["time"]) == 32
    yield (
        "({:.1f} us) at {:.0f} TFLOP/s, with {:.0f} FLOP for each byte", short["time"] / US, short["tflops"],
        short["flops"] / short["bytes_moved"],
    )  # fmt: skip
    peaks = e.run["machine"]["peaks"]
    yield "arithmetic is the limit only above {:.0f}", peaks["flops"]["bf16"] / peaks["bytes_per_s"]
    yield "They reach {:.2f} TB/s of {:.1f}", short["bytes_moved"] / short["time"] / 1e3, peaks["bytes_per_s"] / 1e12
    wide = times["time"].unstack()
    few = [*wide.loc["single"].index, "128,128", "128,128,128,128"]
    gains = [100 * (row["fa2"] / row["flex"] - 1) for (_, name), row in wide.iterrows() if name in few]
    yield "FlexAttention is {} % faster for single sequences and up to four short ones", span(gains, ".0f")
    assert all(
        wide.loc[("groups", f"{n}x128"), "flex"] > wide.loc[("groups", f"{n}x128"), "fa2"] for n in (8, 16, 32, 64)
    )
    slower = [row["sdpa_loop"] / row["fa2"] for name, row in wide.loc["groups"].iterrows() if name != "128"]
    yield "(`sdpa_loop`) take {} times as long as one varlen kernel, from two sequences to 64", span(slower, ".1f")
    rows = e.where(workload="heads", status="ok")
    heads = rows.assign(seqlens=rows["seqlens"].astype(str)).set_index(["seqlens", "impl", "head_dim", "kvheads"])
    heads = heads["time"].unstack()
    fall = 100 * (1 - heads[1] / heads[32])
    yield "the time falls by at most {:.1f} % at 8192 tokens", fall.loc["8192"].max()
    yield "and by {} % in sequences of 128", span(fall.loc["64x128"].dropna(), ".0f")


@claims
def attention_memory(e: Example) -> Iterator[Claim]:
    yield "{} cases in {}, 100 passes each", count(e), together(e)
    assert set(e.plain["status"]) == {"ok"} and set(e.plain["iterations"]) == {100}
    rows = e.plain.set_index(["mode", "head_dim", "seqlen", "impl"])
    before = (rows["memory_before_backward"] / MIB).loc["bwd"]
    workspace = 32
    long, short = before.loc[64, 16384], before.loc[64, 256]
    yield (
        "Without the workspace it is {:.0f} MiB (formula) and {:.1f} MiB (tiles)",
        long["plain"] - workspace,
        long["tiled"] - workspace,
    )
    yield "and {:.2f} and {:.2f} MiB at 256 tokens", short["plain"] - workspace, short["tiled"] - workspace
    for impl, growth in (("plain", 4), ("plain_compiled", 4), ("tiled", 2)):
        assert (before.loc[64, 16384][impl] - workspace) / (before.loc[64, 8192][impl] - workspace) == pytest.approx(
            growth, rel=0.02
        )
    tiles = [before.loc[dim, 16384]["tiled"] - workspace for dim in (16, 128)]
    yield "({:.1f} to {:.1f} MiB at 16384)", *tiles
    at = rows.loc[(slice(None), 64, 16384), :].droplevel(["head_dim", "seqlen"])
    for name, impl in (("formula", "plain"), ("compiled", "plain_compiled"), ("tiles", "tiled")):
        forward, backward = at.loc[("fwd", impl)], at.loc[("bwd", impl)]
        peak = backward["peak_allocated"] / MIB
        yield (
            f"| {name} | {peak:.{0 if peak > 1000 else 1}f} MiB | "
            f"{forward['time'] / MS:.1f} ms | {backward['time'] / MS:.1f} ms |",
        )
    yield "torch had reserved {:.0f} MiB for the formula", at.loc[("bwd", "plain"), "peak_reserved"] / MIB
    times = rows["time"].unstack().xs(16384, level="seqlen")
    saved = 100 * (1 - times["plain_compiled"] / times["plain"])
    yield "and {} % of the time at 16384 tokens", span(saved, ".0f")
    ms = times / MS
    yield (
        "At head dim 16 it goes from {:.1f} to {:.1f} ms forward and from {:.1f} to {:.1f} ms backward",
        *(ms.loc[(mode, 16), impl] for mode in ("fwd", "bwd") for impl in ("plain", "plain_compiled")),
    )  # fmt: skip


@claims
def ncu_full(e: Example) -> Iterator[Claim]:
    (case,) = e.plain.to_dict("records")
    seconds = sum(job["seconds"] for job in e.run["jobs"])
    yield "One case in {} jobs, {:.0f} s together", jobs(e), seconds
    counted = e.metrics[(e.metrics["profiler"] == "ncu") & (e.metrics["subject"] != "")]
    of = counted.set_index("metric")["value"]
    yield "ncu measures {:.1f} us, and CUDA events {:.1f} us", of["gpu__time_duration.sum"] / US, case["time"] / US
    yield (
        "The tensor cores work in {:.1f} % of the cycles",
        of["sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed"],
    )
    yield (
        "DRAM is at {:.1f} % of its peak, because {:.1f} % of the sectors hit in the L2 cache",
        of["gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"],
        of["lts__t_sector_hit_rate.pct"],
    )
    units = of[
        ["l1tex__throughput.avg.pct_of_peak_sustained_active", "lts__throughput.avg.pct_of_peak_sustained_elapsed"]
    ]
    assert units.idxmax().startswith("l1tex")
    yield "L1 and shared memory are the busiest part of the memory: {:.1f} %", units.max()
    assert of["launch__occupancy_limit_registers"] == of["launch__occupancy_limit_shared_mem"] == 1
    yield (
        "A block has {:.0f} threads of {:.0f} registers and {:.0f} KiB of shared memory",
        of["launch__block_size"],
        of["launch__registers_per_thread"],
        of["launch__shared_mem_per_block"] / 1024,
    )
    yield "{:.0f} % of the warps that fit", of["sm__maximum_warps_per_active_cycle_pct"]
    yield "{:.1f} % are active on average", of["sm__warps_active.avg.pct_of_peak_sustained_active"]
    stalls = of[of.index.str.contains("_stalled_")]
    assert stalls.idxmax() == "smsp__average_warps_issue_stalled_wait_per_issue_active.ratio"
    yield "(`wait`, {:.2f} warps for each issued instruction)", stalls.max()
    rules = of[of.index.str.startswith("rule:")].dropna()
    yield "`{}` has the largest estimated speed-up: {:.1f} %", rules.idxmax().removeprefix("rule:"), rules.max()


@claims
def attention_memory_cap(e: Example) -> Iterator[Claim]:
    yield "{} cases in {:.0f} s on an H200", count(e), sum(job["seconds"] for job in e.run["jobs"])
    rows = e.plain.set_index(["mode", "seqlen", "impl"])
    assert list(rows.index[rows["status"] != "ok"]) == [("bwd", 16384, "plain")]
    peak, ms = rows["peak_allocated"] / MIB, rows["time"] / MS
    yield "Its forward pass alone needs {:.0f} MiB", peak["fwd", 16384, "plain"]
    compiled = [(mode, 16384, "plain_compiled") for mode in ("fwd", "bwd")]
    yield "with {:.0f} and {:.0f} MiB", *(peak[case] for case in compiled)
    yield "They take {:.1f} and {:.1f} ms", *(ms[case] for case in compiled)


@claims
def cogvideox_step(e: Example) -> Iterator[Claim]:
    rows = ran(e).set_index("impl")
    yield "{} implementations in {}", word(len(rows)), together(e)
    ms = rows["time"] / MS
    yield (
        "A step takes {:.0f} ms with `sdpa_flash` (`fa2` {:.0f}, `xformers` {:.0f}), {:.0f} with FlexAttention, "
        "{:.0f} with "
        "cuDNN",
        ms["sdpa_flash"],
        ms["fa2"],
        ms["xformers"],
        ms["flex"],
        ms["sdpa_cudnn"],
    )
    yield (
        "{:.0f} with `sage1`, {:.0f} with `sage2` (relative L1 {:.3f}) and {:.0f} with",
        ms["sage1"],
        ms["sage2"],
        rows.loc["sage2", "error_rel_l1"],
        ms["sdpa_efficient"],
    )
    sparge = rows.loc[["sparge_fp16", "sparge_fp8"], "error_rel_l1"]
    yield (
        "It takes {:.0f} with `sparge_fp16` and {:.0f} with `sparge_fp8`, which fail with {:.2f}",
        ms["sparge_fp16"],
        ms["sparge_fp8"],
        sparge.mean(),
    )
    assert sparge.round(2).nunique() == 1


@claims
def cogvideox_step_fa3(e: Example) -> Iterator[Claim]:
    assert len(e.run["jobs"]) == 1
    yield "{} cases in {}", word(count(e)), together(e)
    rows = ran(e).set_index(["impl", "compile"])
    ms = rows["time"] / MS
    both = ("sdpa_flash", "fa3", "sage2")
    for impl in both:
        yield "| `{}` | {:.0f} | {:.0f} |", impl, ms[impl, False], ms[impl, True]
    yield (
        "With FlashAttention 3 a step is {:.2f} times as fast as with `sdpa_flash`, and {:.2f} times where both are "
        "compiled. "
        "Its relative L1 is {:.4f}, and that of `sage2` {:.4f}",
        *(ms["sdpa_flash", compiled] / ms["fa3", compiled] for compiled in (False, True)),
        rows.loc["fa3", "error_rel_l1"].max(), rows.loc["sage2", "error_rel_l1"].max(),
    )  # fmt: skip
    less = [ms[impl, False] - ms[impl, True] for impl in both]
    shares = [100 * (1 - ms[impl, True] / ms[impl, False]) for impl in both]
    yield "Compiling saves {} ms, {} % of a step", span(less, ".0f"), span(shares, ".0f")
    slow = flagged(rows.reset_index(), "throttled")
    clocks = slow["sm_clock"] / 1e6
    yield (
        "{} of {} cases are `throttled`: {:.0f} to {:.0f} MHz",
        word(len(slow)).capitalize(), word(len(rows)), clocks.min(), clocks.max(),
    )  # fmt: skip
    error = rows.loc[("sparge_fp8", False), "error_rel_l1"]
    yield "`sparge_fp8` takes {:.0f} ms and fails with {:.2f}", ms["sparge_fp8", False], error
    (skipped,) = e.plain.loc[e.plain["status"] == "skipped", "reason"]
    tokens = _groups(r"takes (\d+) or (\d+) tokens and no others, not (\d+)", skipped, (1, 2, 3))
    yield "it takes {} or {} tokens, and this video has {}", *tokens


@claims
def cogvideox(e: Example) -> Iterator[Claim]:
    yield "in one job of {}", together(e)
    impls = ("sdpa_flash", "fa2", "fa3", "sage2", "sparge_fp16", "sparge_fp8")
    kernels, video = _video(e)

    def row(title: str, form: str, values: Any) -> Claim:
        return (f"| {title} | " + " | ".join(f"{values[impl]:{form}}" for impl in impls) + " |",)

    yield row("total s, H100", ".1f", video)
    attention = _attention(kernels)
    yield row("attention %, H100", ".1f", 100 * attention / kernels.groupby("impl")["total_ns"].sum())
    seconds = attention / S
    yield ("| attention s, H100 | " + " | ".join(number(seconds[impl]) for impl in impls) + " |",)
    in_steps = kernels[kernels["phase"].str.startswith("denoising")]
    copies = "direct_copy_kernel"
    yield row("direct_copy calls, H100", ".0f", _calls(kernels, copies))
    yield row("of these in the 50 steps, H100", ".0f", _calls(in_steps, copies))
    yield row("add calls, H100", ".0f", _additions(kernels))
    yield row("of these in the 50 steps, H100", ".0f", _additions(in_steps))
    yield row("`CUDAFunctor_add` calls, H100", ".0f", _calls(kernels, "CUDAFunctor_add"))
    assert 1.95 < 85.4 / video["fa2"] < 2.05  # the published time is twice ours
    yield "Sage 2 speeds it up by {:.1f} times here", seconds["fa2"] / seconds["sage2"]
    assert abs(video["fa3"] / video["sage2"] - 1) < 0.01
    helpers = (
        kernels[kernels["kernel_class"].isin(["attention_aux", "reduction"])].groupby("impl")["total_ns"].sum() / S
    )
    yield (
        "take {:.1f} s with Sage 2, {:.1f} s with Sparge fp16 and {:.1f} s with Sparge fp8",
        *helpers[["sage2", "sparge_fp16", "sparge_fp8"]],
    )
    yield (
        "Sage 2's attention is {:.2f} s shorter, and its helper kernels take {:.2f} s",
        seconds["fa3"] - seconds["sage2"],
        helpers["sage2"],
    )
    added = _additions(kernels)["sage2"] - _additions(kernels)["fa2"]
    yield "Sage 2 adds {:.0f} additions in both", added
    # Per call of attention: SpargeAttn has four copies more, FlashAttention 3 one less.
    saved = {impl: (_calls(in_steps, copies)[impl] - _calls(in_steps, copies)["fa2"]) / added for impl in impls}
    assert (saved["sparge_fp16"], saved["sparge_fp8"], saved["fa3"]) == (4, 4, -1)
    decoder = kernels[~kernels["phase"].str.startswith("denoising") & (kernels["impl"] == "fa2")]
    yield "({:.0f} copies and {:.0f} additions)", _calls(decoder, copies)["fa2"], _additions(decoder)["fa2"]


@claims
def cogvideox_compiled(e: Example) -> Iterator[Claim]:
    yield "with one video to warm up, in {}", together(e)
    (kernels, video), (others, before) = _video(e), _video(Example("cogvideox"))
    impl = "sdpa_flash"
    yield "It takes {:.1f} s instead of {:.1f}", video[impl], before[impl]
    steps, steps_before = (k[k["phase"].str.startswith("denoising")] for k in (kernels, others))
    copies = "direct_copy_kernel"
    yield (
        "the 50 steps launch {:.0f} additions instead of {:.0f} and {:.0f} copies instead of {:.0f}",
        _additions(steps)[impl], _additions(steps_before)[impl], _calls(steps, copies)[impl],
        _calls(steps_before, copies)[impl],
    )  # fmt: skip
    attention = [_attention(each)[impl] for each in (kernels, others)]
    yield (
        "Attention takes {:.1f} s instead of {:.1f}, and is now {:.1f} % of the kernel time",
        attention[0] / S, attention[1] / S, 100 * attention[0] / kernels["total_ns"].sum(),
    )  # fmt: skip


def _video(e: Example) -> tuple[pd.DataFrame, pd.Series]:
    """Return the kernels of a run of whole videos with their implementation, and the wall time of each video in s."""
    by_case = {row["case"]: row["impl"] for row in e.rows.to_dict("records")}
    kernels = e.kernels[e.kernels["kind"] == "kernel"]
    kernels = kernels.assign(impl=kernels["case"].map(by_case)).dropna(subset=["impl"])
    whole = e.ranges[e.ranges["range"] == ""]
    return kernels, whole.assign(impl=whole["case"].map(by_case)).set_index("impl")["wall_ns"] / S


def _attention(kernels: pd.DataFrame) -> pd.Series:
    return kernels[kernels["kernel_class"] == "attention"].groupby("impl")["total_ns"].sum()


def _calls(kernels: pd.DataFrame, name: str) -> pd.Series:
    return kernels[kernels["kernel"].str.contains(name)].groupby("impl")["calls"].sum()


def _additions(kernels: pd.DataFrame) -> pd.Series:
    return kernels[kernels["kernel_class"] == "add"].groupby("impl")["calls"].sum()


@claims
def context_parallel(e: Example) -> Iterator[Claim]:
    yield "{} cases in {} jobs, {} together", count(e), jobs(e), together(e)
    methods = e.where(workload="methods", status="ok").set_index(["seqlen", "causal", "mode", "method"])
    ms = methods["time"].unstack() / MS
    rings, dense = ["ring_allgather", "ring_alltoall"], ms.loc[32768, False]
    gains = [row["single"] / row[name] for _, row in ms.loc[32768].iterrows() for name in (*rings, "heads")]
    yield "At 32768 tokens two GPUs are {} times as fast as one", span(gains, ".1f")
    yield (
        "rings take {} ms against {:.1f} ms forward, and {} ms against {:.1f} ms with the backward pass",
        span(dense.loc["fwd", rings], ".1f"), dense.loc["fwd", "single"],
        _once(dense.loc["fwd_bwd", rings], ".1f"), dense.loc["fwd_bwd", "single"],
    )  # fmt: skip
    nsys = e.where("nsys", workload="methods", status="ok")
    overlap = nsys[nsys["method"].isin(rings)].groupby("seqlen")["communication_overlap"]
    yield "At 32768 tokens, {} % of the communication time", span(overlap.get_group(32768), ".0f")
    yield "at 8192 tokens {} %", span(overlap.get_group(8192), ".0f")
    assert nsys.loc[nsys["method"] == "heads", "communication_overlap"].max() < 0.5
    training = ms.xs("fwd_bwd", level="mode")
    assert len(training) == 4 and (training.drop(columns="heads").min(axis=1) > training["heads"]).all()
    causal = training.loc[32768, True]
    yield (
        "{:.1f} ms for a causal one of 32768 tokens, where rings take {} ms",
        causal["heads"],
        _once(causal[rings], ".1f"),
    )
    balance = e.where(workload="balance", status="ok").set_index(["method", "mode", "load_balance"])["time"].unstack()
    yield "Dividing a causal sequence evenly makes it {} times as fast", _once(balance[False] / balance[True], ".1f")
    backends = e.where(workload="backends", status="ok").set_index(["method", "mode", "backend"])["time"].unstack()
    yield (
        "cuDNN instead of FlashAttention-2 makes it {} times as fast",
        _once(backends["flash"] / backends["cudnn"], ".1f"),
    )
    errors = methods["error_rel_l1"].unstack()
    yield "The relative L1 error of the rings is {:.3f}", errors[rings].max().max()
    by_heads = _of_any_process(e, ["heads"])
    assert errors["heads"].max() == by_heads["error_max_dk"] == by_heads["error_max_dv"] == 0
    yield "differs, by at most {:.4f}", by_heads["error_max_dq"]
    short = e.where(workload="methods", seqlen=8192, method=(*rings, "heads"))
    yield "the host limits {} of the {} cases on two GPUs", word(len(flagged(short, "host_bound"))), word(len(short))
    loop = e.where(workload="methods", seqlen=8192, causal=True, mode="fwd_bwd").set_index("method")["loop_wall"] / MS
    yield "by heads takes {:.2f} ms, and one on one GPU {:.2f} ms", loop["heads"], loop["single"]
    crashed = e.rows[e.rows["status"] == "crashed"]
    assert list(crashed["backend"]) == ["efficient"] and set(crashed["mode"]) == {"fwd_bwd"}
    yield "{} case crashed", word(len(crashed)).capitalize()


@claims
def context_parallel_4(e: Example) -> Iterator[Claim]:
    assert len(e.run["machine"]["gpus"]) == 4
    yield "{} cases in {} jobs, {} together", count(e), jobs(e), together(e)
    rings = ["ring_allgather", "ring_alltoall"]
    methods = ("single", *rings, "heads")
    rows = e.where(workload="methods").set_index(["seqlen", "causal", "mode", "method"]).sort_index()
    time = rows["time"].unstack()
    gains = time.drop(columns="single").rdiv(time["single"], axis=0)
    for seqlen in (8192, 32768, 131072):
        cells = [span(gains.loc[seqlen, name]) for name in (*rings, "heads")]
        yield (f"| {seqlen} | " + " | ".join(cells) + " |",)
    longest = rows.loc[(131072, False, "fwd_bwd"), "time"] / MS
    yield "`heads` takes {:.0f} ms for an unmasked training step", longest["heads"]
    yield "where one GPU takes {:.0f} ms", longest["single"]
    peak = rows.loc[(131072, False, "fwd"), "peak_allocated"] / GIB
    yield (
        "rings need {:.1f} and {:.1f} GiB on each GPU, one GPU {:.1f}, and `heads` {:.1f}",
        *(peak[name] for name in (*rings, "single", "heads")),
    )
    limited = [name for (seqlen, *_, name), flags in rows["flags"].items() if seqlen == 8192 and "host_bound" in flags]
    assert sorted(limited) == sorted(4 * ["heads", *rings])
    yield "the host limits all {} cases.", word(len(limited))
    (findings,) = (w for w in analyze(*store.load(e.folder)).workloads if w.name == "methods")
    alone: dict[str, list[float]] = {name: [] for name in ("rings", "heads")}
    for shape in findings.shapes:
        if dict(shape.axes)["seqlen"] == 8192:
            loop = {case.variant: max(case.ns or 0.0, case.values["issue"]) for case in shape.cases}
            for variant, ns in loop.items():
                if variant != "method=single":
                    alone["heads" if "heads" in variant else "rings"].append(loop["method=single"] / ns)
    yield "rings are {} times as fast as one", span(alone["rings"])
    yield "`heads` {} times, because", span(alone["heads"])
    clocks = e.metrics[(e.metrics["metric"] == "sm_clock") & (e.metrics["profiler"] == "plain")]
    slowest = rows["case"].map(clocks.groupby("case")["value"].min() / 1e6)[(131072, True, "fwd")]
    best = gains.loc[131072, rings].max()
    assert list(gains.loc[(131072, True, "fwd"), rings]) == list(best)
    yield "speed-ups, {:.2f} and {:.2f}, are partly due to clocks", *sorted(best)
    yield (
        "the slowest card ran at {:.0f} MHz there, and with rings at {:.0f} and {:.0f}",
        slowest["single"],
        *sorted(slowest[rings]),
    )
    slow = flagged(ran(e), "throttled")
    yield "{} of the {} cases are `throttled`", len(slow), count(e)
    own = slow[slow["workload"] == "methods"]
    assert len(own[own["method"] == "single"]) == len(time) and len(own[own["seqlen"] == 131072]) == 16
    wins = [shape.win for shape in findings.shapes if shape.win]
    clear = [win for win in wins if win.verdict == WinVerdict.CLEAR]
    assert {win.best.variant for win in clear} == {"method=heads"} and len(wins) == len(time)
    yield "`heads` is the fastest in {} of {} shapes, in all with fewer than", word(len(clear)), word(len(wins))
    unclear = {dict(shape.axes)["seqlen"] for shape in findings.shapes if shape.win not in clear}
    verdicts = [win.verdict for win in wins]
    assert unclear == {131072} and verdicts.count(WinVerdict.INCONCLUSIVE) == 1
    yield "At 131072 tokens {} shapes are ties, and one is in doubt", word(verdicts.count(WinVerdict.TIE))
    worst = _of_any_process(e, rings)
    tensors = ("", "_dq", "_dk", "_dv")
    yield (
        "Rings differ from one GPU by up to {:.4f} in an output and by {:.3f} in a gradient",
        worst["error_max"],
        max(worst[f"error_max{tensor}"] for tensor in tensors[1:]),
    )
    yield "the mean difference is at most {}", power(max(worst[f"error_mean{tensor}"] for tensor in tensors))
    by_heads = _of_any_process(e, ["heads"])
    assert by_heads["error_max"] == by_heads["error_max_dk"] == by_heads["error_max_dv"] == 0
    yield "queries differs, by up to {:.3f}: FlashAttention-2 sums", by_heads["error_max_dq"]
    rate = e.where(workload="throughput").set_index(["mode", "batch", "method"])["items_per_second"].unstack() / 1e3
    for title, mode, batch in (
        ("8, forward", "fwd", 8), ("32, forward", "fwd", 32), ("128, forward", "fwd", 128),
        ("8, forward and backward", "fwd_bwd", 8), ("32, forward and backward", "fwd_bwd", 32),
        ("128, forward and backward", "fwd_bwd", 128),
    ):  # fmt: skip
        yield (f"| {title} | " + " | ".join(f"{rate.loc[(mode, batch), name]:.0f}" for name in methods) + " |",)
    lost = [row["single"] / row[name] for _, row in rate.iterrows() for name in rings]
    yield "one GPU alone processes {} times as many tokens as four together", span(lost)
    won = rate["heads"] / rate["single"]
    yield "By heads four GPUs process {} times as many tokens as one with a backward pass", span(won["fwd_bwd"])
    yield "and {} times without", span(won["fwd"])
    single = rate["single"].unstack()
    split = [4 * own[batch] / own[4 * batch] for _, own in single.iterrows() for batch in (8, 32)]
    yield "Four GPUs with a quarter of the batch each would process {} times as many", span(split)
    small = e.where(workload="throughput", batch=8, method=[*rings, "heads"])
    assert len(flagged(small, "host_bound")) == len(small)
    yield "at batch 8 the host limits all {} cases on four", word(len(small))
    apart = _large_differences(e)
    unknown = [f for f in apart if f.is_unexplained]
    yield "Of {} differences between nsys and CUDA events above 3 %, {} have no known cause", len(apart), len(unknown)
    (whole,) = e.where(workload="methods", seqlen=32768, causal=False, mode="fwd", method="single").to_dict("records")
    keys_and_values = 2 * 16 * 32768 * 128 * 2 * 7 / 8
    yield (
        "compute an eighth of the {:.1f} ms of one GPU, {:.1f} ms, and receive {:.0f} MB of keys and values",
        whole["time"] / MS,
        whole["time"] / 8 / MS,
        keys_and_values / 1e6,
    )
    yield "if each GPU receives {:.0f} GB/s", keys_and_values / (whole["time"] / 8)


def _of_any_process(e: Example, methods: list[str]) -> pd.Series:
    """The largest value of each metric in any process, over the cases of these methods."""
    cases = e.where(method=methods)[["workload", "case"]]
    own = e.metrics[(e.metrics["profiler"] == "plain") & e.metrics["subject"].str.match(rf"$|{RANK_PREFIX}")]
    return own.merge(cases, on=["workload", "case"]).groupby("metric")["value"].max()


def _once(values: Any, form: str) -> str:
    """``50.1``, or ``13.0 to 13.2`` where the values differ in their digits."""
    written = sorted({f"{value:{form}}" for value in values}, key=float)
    return written[0] if len(written) == 1 else f"{written[0]} to {written[-1]}"


@claims
def auto_profile(e: Example) -> Iterator[Claim]:
    yield "Its {} cases under {} profilers took {} together", len(e.plain), jobs(e), together(e)
    assert len(e.run["jobs"]) == 4
    skipped = e.plain[e.plain["status"] == "skipped"]
    assert set(skipped["impl"]) == {"fa2", "fa3", "sage", "xformers"}
    yield "their {} cases are rows with the command", len(skipped)
    times = {"plain": e.where(seqlen=4096, status="ok").set_index("impl")["time"] / US}
    own = e.kernels[e.kernels["kind"] == "kernel"].merge(
        e.cases[["workload", "case", "profiler", "impl", "seqlen", "iterations"]], on=["workload", "case", "profiler"]
    )
    for profiler in ("nsys", "torch", "ncu"):
        of = own[(own["profiler"] == profiler) & (own["seqlen"] == 4096)]
        calls = of["iterations"] if profiler != "ncu" else 1  # ncu measures one call
        times[profiler] = (of["total_ns"] / calls / US).groupby(of["impl"]).sum()
    for impl in ("sdpa_flash", "sdpa_cudnn", "sdpa_efficient", "sdpa_math"):
        cells = [f"{own[impl]:.{1 if own[impl] < 1000 else 0}f}" for own in times.values()]
        yield (f"| `{impl}` | " + " | ".join(cells) + " |",)
    rows = ran(e).set_index(["impl", "seqlen"])
    time, rate = rows["time"], rows["tflops"]
    assert set(time.groupby("seqlen").idxmin().str[0]) == {"sdpa_cudnn"}
    yield (
        "{:.2f} and {:.2f} times as fast as FlashAttention-2 in PyTorch: {:.0f} and {:.0f} TFLOP/s",
        *(time["sdpa_flash", seqlen] / time["sdpa_cudnn", seqlen] for seqlen in (1024, 4096)),
        *(rate["sdpa_cudnn", seqlen] for seqlen in (1024, 4096)),
    )
    assert list(flagged(ran(e), "throttled")["case"]) == [rows.loc[("sdpa_cudnn", 4096), "case"]]
    yield "`throttled`: {:.0f} of 1980 MHz", rows.loc[("sdpa_cudnn", 4096), "sm_clock"] / 1e6
    assert times["ncu"]["sdpa_cudnn"] == min(own["sdpa_cudnn"] for own in times.values())
    yield "It takes {:.1f} times as long as", time["sdpa_math", 4096] / time["sdpa_flash", 4096]
    peak = rows["peak_allocated"] / MIB
    yield "allocates {:.0f} MiB instead of {:.0f}", peak["sdpa_math", 4096], peak["sdpa_flash", 4096]


@claims
def transformer_lm_batch_8(e: Example) -> Iterator[Claim]:
    yield "{} cases in {} jobs, {} together", word(count(e)), jobs(e), together(e)
    sizes = ("small", "medium", "large")
    rows = ran(e).set_index(["what", "size"])
    ms = rows["time"] / MS
    for what in ("forward", "backward", "train_step"):
        yield (f"| {what} | " + " | ".join(f"{ms[what, size]:.1f}" for size in sizes) + " |",)
    half = Example("transformer_lm").where(workload="sizes", what="forward", precision="fp32").set_index("size")["time"]
    yield "Twice the batch takes {} times as long forward", span([ms["forward", s] * MS / half[s] for s in sizes])
    ratios = [ms["backward", size] / ms["forward", size] for size in sizes]
    yield "The backward pass takes {} times as long as the forward pass", span(ratios)
    peak = rows["peak_allocated"] / MIB
    yield "A training step allocates {:.0f}, {:.0f} and {:.0f} MiB at most", *(peak["train_step", s] for s in sizes)


@claims
def transformer_lm_memory(e: Example) -> Iterator[Claim]:
    yield "{} cases in {} jobs took {} together", count(e), jobs(e), together(e)
    own = e.metrics[e.metrics["subject"] != ""].merge(
        e.plain[["case", "size", "what", "context", "precision"]], on="case"
    )
    axes = ["metric", "size", "what", "context", "precision", "subject"]
    mib = own[own["metric"].isin(["peak_allocated", "allocated_at_start"])].set_index(axes)["value"].sort_index() / MIB
    peak = mib["peak_allocated"]
    saved = {}
    for size in ("medium", "large"):
        for name in ("fp32", "bf16"):
            of = peak[size, "train_step", 1024, name]
            cells = [f"{of[phase]:.0f}" for phase in ("forward", "backward", "optimizer")]
            assert of.idxmax() == "backward"
            yield (f"| training step of {size}, {name} | " + " | ".join(cells) + " |",)
        whole = {name: peak[size, "train_step", 1024, name].max() for name in ("fp32", "bf16")}
        saved[size] = 100 * (1 - whole["bf16"] / whole["fp32"])
    assert round(saved["large"]) == 0
    yield "Mixed precision saves {:.0f} % of it for medium and nothing for large", saved["medium"]
    forward = {name: peak["medium", "forward", 1024, name].max() for name in ("fp32", "bf16")}
    before = mib["allocated_at_start", "medium", "forward", 1024, "bf16", "forward"]
    yield "more in bf16, for medium {:.0f} instead of {:.0f} MiB", forward["bf16"], forward["fp32"]
    more = forward["bf16"] - forward["fp32"]
    assert 0.45 < more / before < 0.55
    yield "The difference of {:.0f} MiB is half of the {:.0f} MiB", more, before
    short = {size: [peak[size, "train_step", 256, name] for name in ("fp32", "bf16")] for size in ("medium", "large")}
    assert {of.idxmax() for both in short.values() for of in both} == {"optimizer"}
    medium, large = ([of.max() for of in both] for both in short.values())
    yield "the optimizer has the peak: {} MiB for medium and {} MiB for large", _once(medium, ".0f"), span(large, ".0f")
    yield from _precision(e)


def _precision(e: Example) -> Iterator[Claim]:
    """The bits that autocast computes in, and sums of a thousand terms of 0.01."""
    dtypes = ran(e)[ran(e)["workload"] == "dtypes"].set_index(["block", "precision"])
    bits = ["linear_bits", "logits_bits", "parameter_bits", "norm_bits", "loss_bits", "gradient_bits"]
    mixed = dtypes.drop(index="fp32", level="precision")[bits]
    assert len(mixed) == 4 and (mixed == mixed.iloc[0]).all(axis=None)
    (low,), (high,) = (set(mixed.iloc[0][part]) for part in (bits[:2], bits[2:]))
    yield (
        "linear layers and logits have {:.0f} bits; parameters, norms, loss and gradients have {:.0f}",
        low,
        high,
    )
    total = ran(e).set_index(["sum", "term"])["total"].dropna()
    yield (
        "1000 times 0.01 is {:.4f} in fp32, {:.4f} in fp16, and {:.4f} in mixed precision",
        total["fp32", "fp32"], total["fp16", "fp16"], total["fp32", "fp16"],
    )  # fmt: skip
    assert list(flagged(ran(e), "inaccurate")["sum"]) == ["bf16"]
    yield "In bf16 the sum stops at {:.1f}, which fails", total["bf16", "bf16"]


@claims
def own_program(e: Example) -> Iterator[Claim]:
    programs = (
        ("gpt.py", "gpt", {"compile": False}), ("gpt.py --compile", "gpt", {"compile": True}),
        ("trainer.py", "trainer", {}),
        ("decode.py", "decode", {"graphs": False}), ("decode.py --graphs", "decode", {"graphs": True}),
        ("loader.py", "loader", {}),
    )  # fmt: skip
    printed = ("36.10", "30.23", "36.16", "4.978", "1.568", "44.14")
    for (title, workload, params), own in zip(programs, printed, strict=True):
        plain, torch, nsys = (
            e.value("step_time", profiler, workload=workload, **params) for profiler in ("plain", "torch", "nsys")
        )
        yield (
            f"| {title} | {own} | {number(plain / MS)} | "
            f"{100 * (torch / plain - 1):+.1f} % | {100 * (nsys / plain - 1):+.1f} % |",
        )
        assert abs(plain / MS / float(own) - 1) < 0.02 or workload == "loader"
    memory = e.plain["peak_allocated"].max() / GIB
    yield "The largest program allocates {:.1f} GiB", memory
    walls = pd.read_parquet(e.folder / "steps.parquet").query(
        "workload == 'loader' and profiler == 'plain' and state == 'steady'"
    )["wall_ns"]
    yield "are uneven ({:.0f} to {:.0f} ms)", walls.min() / MS, walls.max() / MS


@claims
def transformer_lm(e: Example) -> Iterator[Claim]:
    yield "{} cases in {} jobs, {} together", count(e), jobs(e), together(e)
    sizes = ("small", "medium", "large")
    rows = e.where(workload="sizes", status="ok").set_index(["what", "precision", "size"]).sort_index()
    kernels = e.kernels[(e.kernels["profiler"] == "nsys") & (e.kernels["kind"] == "kernel")]
    kernels = kernels.merge(e.where("nsys")[["workload", "case", "iterations"]], on=["workload", "case"])
    kernels = kernels.assign(
        ms=kernels["total_ns"] / kernels["iterations"] / MS, launches=kernels["calls"] / kernels["iterations"]
    )
    in_call = kernels.groupby(["workload", "case"])[["ms", "launches"]].sum()
    rows["kernels"] = [in_call["ms"].get(("sizes", case), float("nan")) for case in rows["case"]]
    rows["launches"] = [in_call["launches"].get(("sizes", case), float("nan")) for case in rows["case"]]

    def row(title: str, values: list[str]) -> Claim:
        return (f"| {title} | " + " | ".join(values) + " |",)

    for what, title in (("forward", "forward"), ("forward_backward", "forward and backward")):
        fp32 = rows.loc[(what, "fp32"), "time"] / MS
        yield row(f"{title}, fp32", [number(fp32[size]) for size in sizes])
        half = [rows.loc[(what, name), "kernels"] for name in ("bf16", "fp16")]
        yield row(f"{title}, bf16 (fp16), its kernels", [f"{number(half[0][s])} ({number(half[1][s])})" for s in sizes])
    gemm = kernels[kernels["kernel_class"] == "gemm"].groupby(["workload", "case"])["ms"].sum()
    rows["gemm"] = [100 * gemm.get(("sizes", case), float("nan")) for case in rows["case"]] / rows["kernels"]
    for what, title in (("forward", "a forward"), ("train_step", "a full step")):
        share = {name: rows.loc[(what, name), "gemm"] for name in ("fp32", "bf16")}
        yield row(
            f"matmul share of {title}, fp32 (bf16), %",
            [f"{share['fp32'][s]:.1f} ({share['bf16'][s]:.1f})" for s in sizes],
        )
    published = {"forward": (35, 93, 187), "forward_backward": (77, 216, 447)}
    ours = [(what, size, ms) for what, own in published.items() for size, ms in zip(sizes, own, strict=True)]
    yield (
        "Our fp32 times are {} times shorter",
        span([ms / (rows.loc[(what, "fp32", size), "time"] / MS) for what, size, ms in ours], ".1f"),
    )
    half_rows = rows.loc[(slice(None), ["bf16", "fp16"], slice(None)), :]
    yield "with {:.0f} to {:.0f} launches a call", half_rows["launches"].min(), half_rows["launches"].max()
    times = rows["kernels"].unstack("precision")
    for name, words in (("bf16", "By their kernels bf16 is {} times as fast as fp32"), ("fp16", "and fp16 {} times")):
        yield words, span(times["fp32"] / times[name], ".1f")
    whole = rows["time"].unstack("what")
    ratios = (whole["backward"] / whole["forward"]).loc["fp32"]
    yield "The backward pass alone takes {} times as long as the forward pass in fp32", _once(ratios, ".1f")
    passes = rows["kernels"].unstack("what")
    half_ratios = (passes["backward"] / passes["forward"]).loc[["bf16", "fp16"]]
    yield "and {} times in bf16 and fp16", _once(half_ratios, ".1f")
    launched = kernels[kernels["workload"] == "sizes"].groupby(["case", "kernel"])["launches"].sum()
    yield "Of the {} calls of `sizes`", len(rows)
    most = {
        name: [launched[rows.loc[("forward", name, size), "case"]].max() for size in sizes]
        for name in ("fp32", "bf16", "fp16")
    }
    every = [rows.loc[("forward", "fp32", size), "launches"] for size in sizes]
    yield "({:.0f}, {:.0f} and {:.0f} of {:.0f}, {:.0f} and {:.0f} launches)", *most["fp32"], *every
    assert most["bf16"] == most["fp16"]
    yield "in bf16 and fp16 ({:.0f}, {:.0f} and {:.0f})", *most["bf16"]
    yield from _phases_of_attention(e, rows, kernels)
    yield from _contexts(e, in_call)


def _phases_of_attention(e: Example, rows: pd.DataFrame, kernels: pd.DataFrame) -> Iterator[Claim]:
    metrics = pd.read_parquet(e.folder / "metrics.parquet")
    work = metrics[metrics["metric"].isin(["flops", "bytes_moved"]) & (metrics["profiler"] == "plain")]
    work = work.set_index(["workload", "case", "subject", "metric"])["value"]
    case = {name: rows.loc[("forward", name, "large"), "case"] for name in ("fp32", "bf16", "fp16")}
    ms = kernels[kernels["workload"] == "sizes"].groupby(["case", "phase"])["ms"].sum()
    us: dict[str, dict[str, float]] = {}
    phases = ("attention scores", "softmax", "final matmul")
    for phase in phases:
        path = f"forward > {phase}"
        us[phase] = {name: 1e3 * ms[own, path] for name, own in case.items()}
        of = {name: work["sizes", own, path] for name, own in case.items()}
        moved = {name: of[name]["bytes_moved"] / MIB for name in of}
        assert moved["bf16"] == moved["fp16"]
        yield (
            f"| {phase} | " + " | ".join(f"{value:.0f}" for value in us[phase].values())
            + f" | {number(of['fp32']['flops'] / 1e9)} | {moved['fp32']:.0f} | {moved['bf16']:.1f} |",
        )  # fmt: skip
    share = {name: 100 * us["softmax"][name] / sum(us[phase][name] for phase in phases) for name in case}
    flops = {phase: work["sizes", case["fp32"], f"forward > {phase}", "flops"] for phase in phases}
    per_byte = flops["softmax"] / work["sizes", case["fp32"], "forward > softmax", "bytes_moved"]
    yield (
        "Softmax takes {:.1f} % of that time in fp32 for {:.1f} % of the FLOPs, "
        "because it does {:.3f} FLOP for each byte",
        share["fp32"],
        100 * flops["softmax"] / sum(flops.values()),
        per_byte,
    )
    yield "In bf16 it takes {:.1f} %", share["bf16"]
    yield "In fp16 it takes {:.1f} %", share["fp16"]


def _contexts(e: Example, in_call: pd.DataFrame) -> Iterator[Claim]:
    rows = e.where(workload="contexts", status="ok").set_index(["what", "context", "attention"]).sort_index()
    forward, train = rows["time"].unstack().loc["forward"], rows.loc["train_step", 2048]
    gain = forward["plain"] / forward["sdpa"]
    yield "SDPA is {:.2f} times as fast forward at 512 tokens and {:.2f} times at 2048", gain[512], gain[2048]
    yield (
        "There a training step takes {:.0f} ms instead of {:.0f} and needs {:.0f} MiB instead of {:.0f}",
        *(train.loc[name, "time"] / MS for name in ("sdpa", "plain")),
        *(train.loc[name, "peak_allocated"] / MIB for name in ("sdpa", "plain")),
    )  # fmt: skip
    rates = e.where(workload="batches", what="train_step").set_index("batch")["tflops"]
    yield "From batch 1 to 64 a training step goes from {} to {:.0f} TFLOP/s", number(rates[1]), rates[64]
    compiled = e.where(workload="compiled", block="modern").set_index(["what", "compile"]).sort_index()
    for what, words in (
        (
            "forward",
            "torch.compile turns {:.0f} launches into {:.0f}, and {:.2f} ms into {:.2f}, in a forward pass of small",
        ),
        ("train_step", "{:.0f} launches into {:.0f}, and {:.1f} ms into {:.1f}, in a training step"),
    ):
        own = [compiled.loc[(what, compile)] for compile in (False, True)]
        yield (
            words,
            *(in_call.loc[("compiled", each["case"]), "launches"] for each in own),
            *(each["time"] / MS for each in own),
        )
    peaks = e.where(workload="memory", size="large").set_index(["what", "context"])["peak_allocated"] / GIB
    yield (
        "A training step of large holds at most {:.1f} GiB with 256 tokens and {:.1f} GiB with 1024",
        peaks["train_step", 256],
        peaks["train_step", 1024],
    )
    yield "its forward pass alone {:.1f} and {:.1f} GiB", peaks["forward", 256], peaks["forward", 1024]


@claims
def h200_attention(e: Example) -> Iterator[Claim]:
    begun, ended = (pd.Timestamp(e.run[key]) for key in ("started", "ended"))
    yield "{} cases in {} jobs took {}", count(e), jobs(e), duration((ended - begun).total_seconds())
    rows = ran(e)
    slow = flagged(rows, "throttled")
    yield "{} of the {} cases that ran are `throttled`", len(slow), len(rows)
    long, short = slow[slow["seqlen"] == 8192], slow[slow["seqlen"] != 8192]
    highest = e.run["machine"]["gpus"][0]["max_sm_clock_hz"]
    clocks = long["sm_clock"] / 1e9
    yield "{} have 8192 tokens and ran at {} GHz of {:.2f}", word(len(long)).capitalize(), span(clocks), highest / 1e9
    assert list(short["impl"]) == ["fa2"] and list(short["mode"]) == ["fwd_bwd"]
    yield (
        "`fa2` forward and backward at {} tokens, ran at {:.0f} MHz",
        short["seqlen"].iloc[0],
        short["sm_clock"].iloc[0] / 1e6,
    )
    yield "{} calls were measured", len(rows)
    yield from _agreement(e)


@claims
def h100_attention(e: Example) -> Iterator[Claim]:
    begun, ended = (pd.Timestamp(e.run[key]) for key in ("started", "ended"))
    yield "{} cases in {} jobs took {}", count(e), jobs(e), duration((ended - begun).total_seconds())
    rows = ran(e).set_index(["mode", "seqlen", "impl"])
    us, rate = rows["time"].unstack() / US, rows["tflops"]
    for impl in ("sdpa_flash", "fa2", "sdpa_cudnn", "fa3", "xformers"):
        cells = [f"{us.loc[(mode, n), impl]:.{1 if n < 8192 else 0}f}" for mode in ("fwd", "fwd_bwd")
                 for n in (512, 2048, 8192)]  # fmt: skip
        yield (f"| `{impl}` | " + " | ".join(cells) + " |",)
    long = us[us.index.get_level_values("seqlen") > 512]
    yield "From 2048 tokens on, `fa3` is {} times as fast as `fa2`", span(long["fa2"] / long["fa3"])
    yield "differ from those of `fa3` by at most {:.1f} %", (100 * (long["xformers"] / long["fa3"] - 1).abs()).max()
    yield "`fa3` reaches {:.0f} TFLOP/s in the forward pass of 8192 tokens", rate["fwd", 8192, "fa3"]
    assert set(e.kernels.loc[e.kernels["case"].str.contains("impl=xformers"), "kernel_family"].dropna()) <= {"fa3", ""}
    short = us.loc[("fwd", [512, 2048]), :]
    assert (short["sdpa_cudnn"] < short["fa3"]).all()
    yield "cuDNN is the fastest: {:.1f} and {:.1f} us against {:.1f} and {:.1f}", *short["sdpa_cudnn"], *short["fa3"]
    slow = flagged(ran(e), "throttled")
    yield "{} of the {} cases that ran are `throttled`", word(len(slow)).capitalize(), len(rows)
    assert set(slow["seqlen"]) == {8192}
    mhz = slow[slow["impl"] == "fa3"]["sm_clock"] / 1e6
    yield "`fa3` at {:.0f} and {:.0f} MHz of {:.0f}", *sorted(mhz), e.run["machine"]["gpus"][0]["max_sm_clock_hz"] / 1e6
    issue = rows.loc[("fwd_bwd", 512, "fa3"), "issue"] / US
    limited = ran(e)[ran(e)["seqlen"] == 512]
    yield "At 512 tokens the host limits {} of {} calls", len(flagged(limited, "host_bound")), len(limited)
    yield "It needs {:.0f} us to launch a forward and backward call", issue
    yield "which the GPU takes {:.0f} us", us.loc[("fwd_bwd", 512), "fa3"]
    apart = _large_differences(e)
    (unknown,) = (f for f in apart if f.is_unexplained)
    assert unknown.profiler == "ncu"
    yield (
        "Of {} differences between profilers above 3 %, one has no known cause: ncu's time of `fa3`, forward, at 2048 "
        "tokens is {:.1f} % longer than nsys's",
        len(apart),
        100 * (unknown.difference or 0.0),
    )
    added = [f for f in apart if f.reasons and f.reasons[0].cause is Cause.NCU_LAUNCH]
    yield "In {} the cause is what ncu adds to a launch", len(added)


def _large_differences(e: Example) -> list[Figure]:
    """The profilers' times of calls that differ by more than 3 % from those of the case's first profiler."""
    agreements = [found for workload in analyze(*store.load(e.folder)).workloads for found in workload.agreements]
    times = [time for found in agreements for time in found.figures[1:]]
    return [time for time in times if time.difference is not None and not time.is_close]


def _agreement(e: Example) -> Iterator[Claim]:
    (workload,) = analyze(*store.load(e.folder)).workloads
    own = {found.case: found for found in workload.agreements}
    measured = {id: found for id, found in own.items() if found.figures[0].ns >= 50 * US}
    yield "{} of them have 50 us of kernels or more", len(measured)
    figures = [figure for found in measured.values() for figure in found.figures[1:]]
    by_profiler = {name: [f for f in figures if f.profiler == name] for name in ("torch", "plain", "ncu")}
    close = {name: sum(f.is_close for f in own) for name, own in by_profiler.items()}
    largest = 100 * max(abs(f.difference or 0.0) for f in by_profiler["torch"])
    assert close["torch"] == len(measured)
    yield (
        "torch is within 3 % in all {} (largest difference {:.1f} %), CUDA events in {}, ncu in {}",
        len(measured),
        largest,
        close["plain"],
        close["ncu"],
    )
    apart = [f for f in figures if not f.is_close]
    causes = [next((reason.cause for reason in f.reasons), None) for f in apart]
    clocks = sum(cause in (Cause.NCU_CLOCK, Cause.BELOW_HIGHEST, Cause.CLOCK, Cause.THROTTLED) for cause in causes)
    yield (
        "each of the {} larger differences has a cause: launch gaps in {}",
        len(apart),
        causes.count(Cause.LAUNCH_GAPS),
    )
    yield "what ncu adds to each launch in {},", causes.count(Cause.NCU_LAUNCH)
    yield "clocks in {};", clocks
    every = _large_differences(e)
    assert not any(f.is_unexplained for f in every)
    yield "All {} differences above 3 %, in calls of any length, have a cause", len(every)
    high = [f for f, cause in zip(apart, causes, strict=True) if cause is Cause.BELOW_HIGHEST]
    yield "ncu's times are {} % shorter", span([-100 * (f.difference or 0.0) for f in high], ".1f")
    low = [f for f, cause in zip(apart, causes, strict=True) if cause is Cause.NCU_CLOCK]
    yield "its times are {} % longer", span([100 * (f.difference or 0.0) for f in low], ".1f")
    kernels = e.kernels[e.kernels["kind"] == "kernel"].set_index(["case", "profiler"])
    gaps = [f.reasons[0].numbers for f, cause in zip(apart, causes, strict=True) if cause is Cause.LAUNCH_GAPS]
    one, several = ([n for n in gaps if (n["kernels"] == 1) is alone] for alone in (True, False))
    longest = max(several, key=lambda numbers: numbers["kernels"])
    yield (
        "(a call is longer than its kernels, by {} us around one kernel and by {:.0f} us around {:.0f})",
        span([float(n["ns"]) / US for n in one], ".0f"), float(longest["ns"]) / US, longest["kernels"],
    )  # fmt: skip
    clocks = [float(f.reasons[0].numbers["hz"]) / 1e9 for f in high]
    yield "at 8192 tokens, which ran at {} GHz under nsys", span(clocks)
    for impl in ("sdpa_cudnn", "xformers"):
        id = f"impl={impl},mode=fwd,batch=2,heads=16,seqlen=512"
        ncu, nsys = kernels.loc[(id, "ncu")], kernels.loc[(id, "nsys")]
        assert isinstance(ncu, pd.Series) and isinstance(nsys, pd.Series) and ncu["calls"] == 1
        (figure,) = (f for f in own[id].figures if f.profiler == "ncu")
        assert [reason.cause for reason in figure.reasons] == [Cause.NCU_LAUNCH]
        above = 100 * (ncu["mean_ns"] / nsys["mean_ns"] - 1)
        if impl == "sdpa_cudnn":
            deviations = (ncu["mean_ns"] - nsys["mean_ns"]) / nsys["stddev_ns"]
            yield (
                "That of `sdpa_cudnn` ({:.1f} us) is {:.1f} % longer than the mean under nsys, {} standard deviations",
                ncu["mean_ns"] / US,
                above,
                word(round(deviations)),
            )
        else:
            beyond = 100 * (ncu["mean_ns"] / nsys["max_ns"] - 1)
            yield (
                "That of `xformers` ({:.1f} us) is {:.1f} % longer than the mean and {:.1f} % longer "
                "than the longest launch",
                ncu["mean_ns"] / US,
                above,
                beyond,
            )


# --- the page --------------------------------------------------------------------------------------------------------

#: Examples whose claims stand in the section of another one.
PLACES = {
    "accuracy_fa3": "accuracy", "attention_scaling_fa3": "attention_scaling",
    "attention_scaling_fa4": "attention_scaling", "attention_scaling_fp16": "attention_scaling",
    "cogvideox_compiled": "cogvideox", "cogvideox_step": "cogvideox", "cogvideox_step_fa3": "cogvideox",
    "context_parallel_4": "context_parallel", "transformer_lm_batch_8": "transformer_lm",
    "transformer_lm_memory": "transformer_lm",
}  # fmt: skip

#: Digits of each section that follow from no table of the example, by what they are.
GIVEN: dict[str, tuple[str, ...]] = {
    "h200-attention": (
        "(driver 580, torch 2.11, nsys 2025.3, ncu 2025.3)", "at commit fedca7c", "xFormers 0.0.35", "here (3.0.0)",
        "more than 2 % below the highest. Here 1 % in the median is enough, or 2 % in a twentieth",  # the flag's limits
        "In the other four, at 2048 tokens", "one kernel at 512 tokens",
        # of an earlier run
        "7170 launches of 39 cases and 5.239975134 s, of the capture's 11187 launches and 7.101882431 s",
    ),
    "h100-attention": (
        "FlashAttention 3 (3.0.0)", "(driver 580, torch 2.11, nsys 2025.3, ncu 2025.3)",
        "| us | fwd 512 | fwd 2048 | fwd 8192 | fwd+bwd 512 | fwd+bwd 2048 | fwd+bwd 8192 |", "with 8192 tokens",
        "at 2048 tokens", "at 512 and 2048 tokens", "at 8192 tokens", "kernels of FlashAttention 3, and its",
    ),
    "auto_profile": (
        "nsys 2025.3", "from the wheels in 21 s",  # as the shell showed
        "| 4096 tokens, us per call |", "Its call at 4096 tokens", "at 4096 tokens and", "of 1980 MHz",
    ),
    "own_program": (
        "(124 M parameters", "at commit 5293af5", "differ by less than 2 %",
        # sizes of files that are not committed
        "nsys recorded 20 steps of gpt.py in 1.3 MB, and 2.8 MB as SQLite. All 60 steps of the same program took 4.0 "
        "and 8.8 MB",
    ),
    "grouped_sequences": (
        "at commit 2496043 with flash-attn 2.8.3 and xFormers 0.0.35", "8192 tokens as one sequence",
        "64 sequences of 128", "From 32 heads to 1", "sequences of 128",
    ),
    "accuracy": (
        "`plain`'s output differs by 0", "without a mask at 4096 tokens", "32 MiB too high",
        "since August 2025 (commit d41eb57)", "profpipe's trial of 128 tokens",
        "a maximum error of 0.000244, one step of fp16 between 0.25 and 0.5, and a mean of 7.5e-6",  # published
    ),
    "sparsity_video": ("69120 tokens, batch 2, 12 heads of 128", "0.3.5", "All 12 cases", "where 0.1 is allowed",
                       "takes 69120 or 82944 tokens only"),
    "targets": (
        "batch 8, 16 heads of 64", "its peak is 3.4 times that of an A100", "From 400 TFLOP/s on", "(above 80 %)",
        "`GOOD_TFLOPS=400 POOR_TFLOPS=250`",
    ),
    "profilers": ("32 query and 32 key/value heads of 128, bf16, 10 calls to warm up and 100 measured",
                  "At 8192 and 16384 tokens", "packed sequences of 128 tokens"),
    "scenarios_published": ("from 8192 tokens on",),
    "sparsity_lengths": (
        "(`topk=1.0`)", "with 30 % left out (`topk=0.7`), from 1024 to 32768 tokens", "batch 2, 16 heads of 128",
        "with 0 to 90 % left out at 32768 tokens", "At 32768 tokens, by the share",
        "| TFLOP/s of dense work, not causal | 1024 | 4096 | 8192 | 16384 | 32768 |", "up to 4096 tokens, and",
        "with 30 % left out from 8192 tokens on", "At 4096, 8192 and 16384 tokens the clocks", "with 0, 30 and 70 %",
        "its calls with 0 and 30 %", "with 30 % left out is at most",
        "needs 8192 tokens and 30 %", "within the tolerance of 0.1, at 90 % barely",
    ),
    "sparsity": ("32768 tokens, batch 2, 16 heads of 128", "69120 or 82944 tokens only"),
    "attention_memory": (
        "at commit 2496043", "with batch 8, one head, and head dims of 16 to 128",
        "includes 32 MiB of cuBLAS's workspace",
        "head dims of 16 to 128 and 256, 1024, 4096, 8192 and 16384 tokens; ours",
        "at head dim 64 and 16384 tokens", "At head dim 64 and 16384 tokens", "a card of 24 GiB",
    ),
    "regression_check": ("batch 12, 1024 tokens", "The gate of 2 % fails with exit code 4"),
    "ncu_full": ("batch 2, 16 heads of 64, 4096 tokens", "FlashAttention 3 in bf16"),
    "attention_memory_cap": (
        "a card of 24 GiB", "torch may use 24 GiB", "formula at 16384 tokens", "another 8 GiB",
        "compiled cases of 16384 tokens", "a tensor of 60 MiB",
    ),
    "transformer_lm": (
        "at commit 2496043", "(here 2.11)", "is batch 8 in fp32", "(batch 4)",
        "| peak MiB, context 1024 |", "copies of them in 16 bits", "At context 256 the optimizer",
        "| forward, published | 35 | 93 | 187 |", "| forward and backward, published | 77 | 216 | 447 |",
        "The published shares are 66.4 % of a forward pass and 47.3 % of a full step",
    ),
    "attention_scaling": (
        "4.0.0b36 with `nvidia-cutlass-dsl` 4.8.1", "| TFLOP/s on an H100 | 512 | 2048 | 8192 | 16384 |",
        "the limit at 512 tokens",
        "compiles for 8 s for each shape", "with 0.3 s a case", "Above 10 TFLOP of reference",
        "batch 2, 16 heads, head dim 128, not causal", "flash-attn 2.8.3",
        "| sequence | 4096 | 8192 | 16384 | 32768 | 65536 |", "Peak memory at 4096 tokens",
        "| batch | 2 | 8 | 16 | 64 |", "| TFLOP/s, not causal | 1024 | 4096 | 16384 | 65536 |",
        "Without a mask at 1024 tokens forward",
        "| forward, published, H100 | 234 | 276 | 317 | 337 | 346 |",
        "| forward and backward, published, H100 | 221 | 264 | 294 | 303 | 307 |",
        "| published, MiB | 321 | 1284 | 2568 | 10272 |",
        # of a longer run, which is not committed
        "| forward, H200, in `benchmarks/timing.py` | 363 | 371 | 371 | 374 | 377 |",
        "| forward and backward, H200, in `benchmarks/timing.py` | 326 | 335 | 334 | 337 | 339 |",
        "were within 1 % of each other",
    ),
    "scenarios": (
        "contexts of 8k and 16k tokens and its 32 prompts of 512 tokens have 8 heads of 64",  # published
    ),
    "cogvideox": (
        "49 frames of 480 x 720 in 50 steps",
        "| total s, published | | 85.4 | | 63.2 | 64.3 | 61.6 |",
        "| attention %, published | | 53.7 | | 31.3 | 32.2 | 28.7 |",
        "| attention s, published | | 45.4 | | 19.5 | 20.4 | 17.4 |",
        "| direct_copy calls, published | | 10835 | | 10885 | 12385 | 12385 |",
        "| add calls, published | | 6422 | | 7922 | 6422 | 6422 |", "1890 MHz of 1980",
        "by 2.3 times on the 4090. The tensor cores of a 4090", "Version 0.1.0", "diffusers (0.42 here)",
    ),
    "context_parallel": (
        "hides nothing (0 %)", "At 8192 tokens the host", "causal, 2048 tokens", "At 131072 tokens `heads` takes",
        "in all with fewer than 131072 tokens", "all with 131072 tokens",
        "over one, at batch 1,", "Called one after another at 8192 tokens,", "forward pass of 131072 tokens, rings",
        "a length that is a multiple of 16", "a multiple of 8 heads", "a mask at 32768 tokens each",
    ),
}  # fmt: skip

#: Code blocks, inline code, targets of links, and names of packages and methods that have digits.
_NO_FIGURES = re.compile(
    r"```.*?```|`[^`]*`|\[[^\]]*\]\([^)]*\)|FlashAttention-?\s?\d|SageAttention \d[\d.]*|SpargeAttn \d[\d.]*|Sage 2"
    r"|[AH][12]00|RTX 4090D?"
    r"|\b(?:fp|bf|int|TF)\d+\b|CogVideoX-2b|L1|SQL(?:ite)?\d?|GPT-\d|step \d+", re.DOTALL
)  # fmt: skip


def sections() -> dict[str, str]:
    """Return the text of each section by its title, in one line."""
    parts = re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    return {title.strip(): " ".join(text.split()) for title, _, text in (part.partition("\n") for part in parts)}


@functools.cache
def written(name: str) -> list[str]:
    """Return the claims about an example as the page must write them."""
    return [" ".join(template.format(*values).split()) for template, *values in CLAIMS[name](Example(name))]


@pytest.mark.parametrize("name", CLAIMS)
def test_the_figures_of_an_example_follow_from_its_tables(name: str) -> None:
    text = sections()[PLACES.get(name, name)]
    assert [claim for claim in written(name) if claim not in text] == []


@pytest.mark.parametrize("section", sections())
def test_every_other_figure_of_a_section_is_listed_as_given(section: str) -> None:
    text = sections()[section]
    assert [phrase for phrase in GIVEN.get(section, ()) if phrase not in text] == [], "given, and not on the page"
    names = [name for name in CLAIMS if PLACES.get(name, name) == section]
    covered = {i for match in _NO_FIGURES.finditer(text) for i in range(*match.span())}
    for phrase in (*GIVEN.get(section, ()), *(claim for name in names for claim in written(name))):
        for match in re.finditer(re.escape(phrase), text):
            covered.update(range(*match.span()))
    left = [m for m in re.finditer(r"\d+(?:[.,]\d+)*", text) if not covered.issuperset(range(*m.span()))]
    assert [text[max(0, m.start() - 40) : m.end() + 20] for m in left] == []


def test_every_example_has_a_section_with_claims() -> None:
    names = {path.parent.name for path in PAGE.parent.glob("*/run.json")}
    assert names == set(CLAIMS) and set(GIVEN) | {PLACES.get(name, name) for name in names} == set(sections())
