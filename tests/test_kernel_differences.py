"""The difference between A and B by kernel: captures made of a real recording, sums, and the page."""

import functools
import itertools
import json
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pandas as pd
import pytest
from recorded_pairs import export, place, read, renamed, slower, twice, without

from profpipe.analysis import kernel_differences, pairs
from profpipe.analysis.kernels import ClassTotal, Kernel, KernelTotals
from profpipe.config.models import read_recorded
from profpipe.report import ci, pages, render, results_json
from profpipe.report.document import plain
from profpipe.report.markdown import Markdown
from profpipe.report.sections.kernel_differences import explain, variation
from profpipe.report.sections.verdicts import headline
from profpipe.results import schema, store
from profpipe.results.manifest import Manifest, NoCaptures, PairsEntry, SideEntry
from profpipe.results.schema import CASES, METRICS, NOT_IN_KERNELS, KernelChange, Tables, Verdict

ROOT = Path(__file__).resolve().parents[1]
GOLDEN = ROOT / "tests" / "golden" / "kernel_differences.md"

CASE = "seqlen=2048"
ADD, COPY = "CUDAFunctor_add", "direct_copy"


def around(percent, spread=0.2, count=8):
    return [1 + (percent + spread * (2 * i / (count - 1) - 1)) / 100 for i in range(count)]


def timed(ratios, a_ns=150000.0, workload="attention"):
    """Return the times of the pairs, as the processes without a profiler leave them."""
    key = {"run": "r", "workload": workload, "profiler": "plain"}
    cases = [{**key, "case": c, "status": "ok", "reason": "", "params": "{}", "flags": "[]"} for c in ratios]
    metrics = [
        {**key, "case": case, "subject": f"pair {number} {side}", "metric": "time", "value": ns, "unit": "ns", "n": 9}
        for case, own in ratios.items()
        for number, ratio in enumerate(own, start=1)
        for side, ns in (("A", a_ns), ("B", a_ns * ratio))
    ]
    return Tables(cases=schema.frame(CASES, cases), metrics=schema.frame(METRICS, metrics))


def run_of(**more):
    settings = {"captures": 3, "profiler": "nsys", **more}
    ab = PairsEntry(SideEntry(("set:impl=sdpa_flash",)), SideEntry(("set:impl=new",)), gate=2, seed=7, **settings)
    return Manifest(name="small", started="2026-11-23T10:00:00+00:00", ended="2026-11-23T10:02:00+00:00", ab=ab)


@pytest.fixture(scope="module")
def captured(tmp_path_factory):
    """Return a function: (impl and SQL changes of each capture of A, the same of B) to the tables of the run."""

    @functools.cache
    def recorded(impl, *changes):
        return read(export(tmp_path_factory.mktemp("recorded") / "capture.sqlite", impl, *changes))

    def make(a, b, percent=3.0):
        captures = [(pair, "A", words) for pair, words in enumerate(a, start=1)]
        captures += [(pair, "B", words) for pair, words in enumerate(b, start=1)]
        placed = [place(recorded(*words), pair, side) for pair, side, words in captures]
        return schema.concat([timed({CASE: around(percent)}), *placed])

    return make


def comparison(data, run=None):
    (case,) = pairs.analyze(data, run or run_of()).cases
    return case


def changes(case):
    """Return what changed, by class."""
    return {kernel.kernel_class: kernel.change for kernel in case.kernels.kernels}


# --- real recordings -------------------------------------------------------------------------------------------------


def test_the_same_recording_on_both_sides_has_no_change(captured):
    case = comparison(captured([("flash",)] * 3, [("flash",)] * 3, percent=0.0))
    assert set(changes(case).values()) == {KernelChange.UNCHANGED}
    assert [kernel.part_ns for kernel in case.kernels.kernels] == [0.0] * 3
    assert case.kernels.not_in_kernels_ns == pytest.approx(case.difference_ns, abs=0.001)
    assert (case.kernels.variations, explain(case)) == ({}, "")


def test_a_kernel_of_the_same_class_and_as_many_launches_is_exchanged(captured):
    case = comparison(captured([("flash",)] * 3, [("cudnn",)] * 3, percent=-28.0))
    found = {kernel.kernel_class: kernel for kernel in case.kernels.kernels}
    attention = found["attention"]
    assert attention.change is KernelChange.EXCHANGED
    assert attention.name.startswith("pytorch_flash::") and attention.b_name.startswith("cudnn_generated_fort_native_")
    # The recording has 597.73 us and 382.50 us in 5 iterations.
    assert (attention.a.ns, attention.b.ns) == (pytest.approx(119_546, abs=1), pytest.approx(76_499, abs=1))
    assert found["memset"].change is KernelChange.APPEARED
    assert case.kernels.kernels[0] is attention
    line = plain(explain(case))
    assert line.startswith("-42 us: -43 us attention (pytorch_flash::flash_fwd_kernel → cudnn")


def test_an_added_launch_is_named_with_its_class_and_its_part(captured):
    case = comparison(captured([("flash",)] * 3, [("flash", *twice(ADD))] * 3, percent=10.0))
    assert changes(case)["add"] is KernelChange.LAUNCHES
    assert plain(explain(case)) == "+15 us: +15 us add (1 more launch)"


def test_a_kernel_that_only_one_side_launches_appeared_or_vanished(captured):
    added = comparison(captured([("flash", without(ADD))] * 3, [("flash",)] * 3, percent=10.0))
    assert changes(added)["add"] is KernelChange.APPEARED
    removed = comparison(captured([("flash",)] * 3, [("flash", without(ADD))] * 3, percent=-10.0))
    assert changes(removed)["add"] is KernelChange.VANISHED
    assert plain(explain(removed)).startswith("-15 us: -15 us add (1 fewer launch)")


@pytest.mark.slow
def test_time_changes_where_no_capture_of_a_side_is_among_those_of_the_other(captured):
    longer = [("flash", slower(COPY, ns)) for ns in (2000, 2500, 3000)]
    case = comparison(captured([("flash",)] * 3, longer, percent=1.7))
    found = {kernel.kernel_class: kernel for kernel in case.kernels.kernels}
    assert found["copy"].change is KernelChange.TIME
    assert (found["copy"].low_ns, found["copy"].part_ns, found["copy"].high_ns) == pytest.approx(
        (2000, 2500, 3000), 1e-3
    )
    mixed = comparison(captured([("flash", slower(COPY, 2200)), ("flash",), ("flash",)], longer, percent=1.7))
    assert changes(mixed)["copy"] is KernelChange.UNCHANGED


def test_a_variant_with_other_numbers_in_its_name_is_exchanged_among_several(captured):
    other = [
        renamed("sm80_xmma_gemm", "tilesize64x64x8", "tilesize128x64x8"),
        renamed("sm80_xmma_gemm", "sm80", "sm90"),
    ]
    case = comparison(captured([("math",)] * 3, [("math", *other)] * 3, percent=-2.0))
    exchanged = [k for k in case.kernels.kernels if k.change is KernelChange.EXCHANGED]
    assert {(k.name[:9], k.b_name[:9]) for k in exchanged} == {("sm80_xmma", "sm90_xmma")}
    assert not {KernelChange.APPEARED, KernelChange.VANISHED} & {k.change for k in case.kernels.kernels}


def test_processes_of_one_side_with_other_kernels_are_named_before_the_table(captured):
    data = captured([("flash",), ("cudnn",), ("flash",)], [("flash",)] * 3)
    case = comparison(data)
    ((side, sets),) = case.kernels.variations.items()
    assert (side, [processes for processes, _ in sets]) == ("A", [2, 1])
    text = plain(variation(case))
    assert text.startswith("2 of 3 processes of A launched ") and ", 1 launched " in text
    assert '"kernels_vary"' in case.flags
    page = page_of(data, run_of())
    assert page.index("launches other kernels from process to process") < page.index("## Verdicts")
    assert "*kernels_vary*" in page


@pytest.mark.slow
def test_eight_captures_give_kernels_a_verdict_and_three_none(captured):
    few = captured([("flash",)] * 3, [("flash", slower(COPY, 2000))] * 3)
    rows = pairs.verdict_rows(pairs.analyze(few, run_of()), "r").set_index("kernel_class")
    assert rows.loc["copy", "verdict"] == "" and rows["p"].isna().sum() == len(rows) - 1
    assert rows.loc["copy", "ratio"] == pytest.approx(1.16, abs=0.01)
    many = captured([("flash",)] * 8, [("flash", slower(COPY, 2000 + i)) for i in range(8)])
    rows = pairs.verdict_rows(pairs.analyze(many, run_of(captures=8)), "r").set_index("kernel_class")
    assert (rows.loc["copy", "verdict"], rows.loc["add", "verdict"]) == ("slower", "same")
    assert rows.loc["copy", "p"] == 2 / 256 and rows.loc["copy", "pairs"] == 8


def test_the_rows_of_a_case_add_up_to_it_in_the_stored_table_too(captured, tmp_path):
    data = captured([("flash",), ("cudnn",), ("flash", *twice(ADD))], [("cudnn", slower(COPY, 777))] * 2, percent=-1.3)
    rows = pairs.verdict_rows(pairs.analyze(data, run_of()), "r")
    store.save(tmp_path, Tables(cases=data.cases, verdicts=rows), run_of())
    stored = store.load(tmp_path)[0].verdicts
    parts = stored[stored["kernel"] != ""]
    assert NOT_IN_KERNELS in set(parts["kernel"]) and len(parts) > 3
    assert parts["part_ns"].sum() == stored.loc[stored["kernel"] == "", "part_ns"].item()


def test_without_captures_on_a_side_a_case_has_its_verdict_alone(captured):
    case = comparison(captured([("flash",)] * 3, []))
    assert case.kernels is None and case.judgement.verdict is Verdict.SLOWER


def test_a_case_whose_iterations_are_not_known_is_not_divided(captured):
    data = captured([("flash",)], [("flash",)])
    unknown = Tables(cases=data.cases, metrics=data.metrics, kernels=data.kernels)
    assert comparison(unknown).kernels is None


def test_a_kernel_of_the_user_stays_text_on_the_page(captured):
    evil = "evil|`[x]`"
    data = captured([("flash",)], [("flash", renamed("pytorch_flash", "pytorch_flash::flash_fwd_kernel", evil))])
    page = page_of(data, run_of())
    # In a code span of two backticks, with the pipe escaped, which would end a cell.
    assert "``evil\\|`[x]`" in page


# --- sums ------------------------------------------------------------------------------------------------------------


def test_parts_add_up_exactly_whatever_the_captures():
    rng = random.Random(5)
    for _ in range(300):
        names = [f"kernel_{i}" for i in range(rng.randint(0, 30))]

        def capture(names=names):
            own = [name for name in names if rng.random() < 0.8]
            return {n: ClassTotal(rng.choice([1, 2, 0.3]), rng.lognormvariate(9, 4), "gemm") for n in own}

        sides = [{pair: capture() for pair in range(1, rng.randint(2, 5))} for _ in range(2)]
        difference = rng.gauss(0, 1e6)
        found = kernel_differences.compare(difference, *sides)
        parts = [*(kernel.part_ns for kernel in found.kernels), found.not_in_kernels_ns]
        rng.shuffle(parts)
        assert sum(parts) == found.difference_ns
        assert abs(found.difference_ns - difference) <= 2**-11
        sizes = [abs(kernel.part_ns) for kernel in found.kernels]
        assert sizes == sorted(sizes, reverse=True)
        # A kernel is in one place only, on each side.
        places = [k.name for k in found.kernels if k.a.calls], [k.b_name for k in found.kernels if k.b.calls]
        assert all(len(own) == len(set(own)) for own in places)


@pytest.mark.parametrize(
    ("calls", "others", "expected"),
    [(1, 1, True), (100, 101, False), (1.002, 1, True), (12.4, 12.45, True), (12.4, 12.9, False), (0, 0.5, False)],
)
def test_whole_launches_are_compared_exactly_and_means_of_steps_within_1_percent(calls, others, expected):
    assert kernel_differences.are_as_many(calls, others) is expected


def test_a_name_with_several_classes_has_the_one_of_the_most_time_of_equal_times_the_first():
    times = {"gemm": 2.0, "conv": 5.0, "add": 5.0}
    totals = KernelTotals({Kernel("k", name, "", "kernel"): ClassTotal(1, ns) for name, ns in times.items()})
    assert kernel_differences.sum_kernels(totals) == {"k": ClassTotal(3, 12.0, "conv")}


def test_sets_of_kernels_are_grouped_whatever_the_order_of_the_processes():
    x, y = {"x": ClassTotal(2, 10.0, "gemm")}, {"y": ClassTotal(1, 20.0, "gemm"), "z": ClassTotal(1, 1.0, "add")}
    for order in itertools.permutations([x, x, y]):
        found = kernel_differences.vary(dict(enumerate(order, start=1)))
        assert found == [(2, {"x": 2}), (1, {"y": 1, "z": 1})]


def test_two_of_a_class_that_appear_for_one_are_not_called_exchanged():
    a = {1: {"one": ClassTotal(1, 10.0, "gemm")}}
    b = {1: {"two": ClassTotal(1, 5.0, "gemm"), "three": ClassTotal(1, 4.0, "gemm")}}
    found = kernel_differences.compare(0.0, a, b)
    assert {k.change for k in found.kernels} == {KernelChange.APPEARED, KernelChange.VANISHED}


def test_kernels_of_a_class_that_says_little_are_exchanged_only_if_their_names_are_alike():
    def change(name, other, kernel_class):
        a, b = {1: {name: ClassTotal(1, 10.0, kernel_class)}}, {1: {other: ClassTotal(1, 5.0, kernel_class)}}
        return {kernel.change for kernel in kernel_differences.compare(0.0, a, b).kernels}

    assert change("mul_kernel", "where_kernel", "elementwise") == {KernelChange.APPEARED, KernelChange.VANISHED}
    assert change("triton_poi_fused_mul_3", "triton_poi_fused_mul_5", "fused") == {KernelChange.EXCHANGED}
    assert change("memcpy HtoD", "memcpy DtoH", "memcpy") == {KernelChange.APPEARED, KernelChange.VANISHED}


def test_the_changed_kernels_of_a_class_that_says_little_are_counted():
    times = timed({"default": around(-20)}, 1e6, "train")
    fill = {"fill": (1.0, 10_000.0)}
    before = {f"op_{letter}": (10.0, 20_000.0) for letter in "abcd"} | fill
    after = {"fused_op": (1.0, 30_000.0)} | fill
    parts = [with_steps(n, s, k) for n in (1, 2) for s, k in (("A", before), ("B", after))]
    data = schema.concat([times, *parts])
    data = replace(data, kernels=data.kernels.assign(kernel_class="elementwise"))
    line = plain(explain(comparison(data, as_command(run_of()))))
    assert line.startswith("-200 us: -150 us not in kernels, -50 us 5 elementwise kernels (39 fewer launches)")


# --- commands with steps ---------------------------------------------------------------------------------------------


def with_steps(pair, side, steps):
    """Return a capture of a command with steps: the launches and ns of each kernel in a steady step."""
    key = {"run": "r", "workload": "train", "case": "default", "profiler": "nsys"}
    source = f"raw/train/pair-{pair:02d}/{side}-nsys/capture.sqlite"
    kernels = [
        {**key, "source": source, "process": 1, "device": 0, "kind": "kernel", "kernel": name, "kernel_class": "gemm",
         "calls": 10 * calls, "total_ns": 10 * ns, "stddev_ns": 0.0}
        for name, (calls, ns) in steps.items()
    ]  # fmt: skip
    metrics = [
        {**key, "subject": f"pair {pair} {side} {name}", "metric": metric, "value": value, "unit": unit, "n": 10}
        for name, (calls, ns) in steps.items()
        for metric, value, unit in (("step_kernel_time", ns, "ns"), ("step_launches", calls, "1"))
    ]
    return Tables(kernels=schema.frame(schema.KERNELS, kernels), metrics=schema.frame(METRICS, metrics))


def training(times):
    slow, fast = {"mm": (4.0, 90_000.0), "extra": (2.0, 9_000.0)}, {"mm": (4.0, 90_000.0)}
    return schema.concat([times, *(with_steps(n, s, k) for n in (1, 2) for s, k in (("A", fast), ("B", slow)))])


def as_command(run):
    return replace(run, pipeline=read_recorded({"workloads": {"train": {"command": ["python", "train.py"]}}}))


def test_a_case_without_kernels_is_named():
    data = training(timed({"default": around(6)}, workload="train"))
    wall = replace(data, metrics=data.metrics.replace({"metric": {"time": schema.PROCESS_WALL}}))
    assert "No kernel explains `train/default`" in page_of(wall, as_command(run_of()))
    assert "No kernel explains" not in page_of(data, as_command(run_of()))


def test_a_command_with_steps_has_the_kernels_of_a_steady_step():
    data = training(timed({"default": around(6)}, workload="train"))
    case = comparison(data, as_command(run_of()))
    found = {kernel.name: kernel for kernel in case.kernels.kernels}
    assert found["extra"].change is KernelChange.APPEARED
    assert (found["extra"].b.calls, found["extra"].part_ns, found["mm"].part_ns) == (2, 9_000, 0)


def test_a_step_and_a_whole_process_are_not_compared():
    times = timed({"default": around(6)}, workload="train")
    wall = Tables(cases=times.cases, metrics=times.metrics.assign(metric=schema.PROCESS_WALL))
    assert comparison(training(wall), as_command(run_of())).kernels is None


# --- pages and messages ----------------------------------------------------------------------------------------------


def page_of(data, run):
    document = render.build_pairs(pairs.analyze(data, run), data, run)
    return "\n\n".join(filter(None, (Markdown().section(section) for section in document.sections))) + "\n"


def test_the_page_is_the_golden_one(captured, regenerate):
    data = captured(
        [("flash",), ("cudnn",), ("flash",)], [("cudnn", *twice(ADD), slower(COPY, 500))] * 3, percent=-18.0
    )
    failed = {"run": "r", "workload": "attention", "case": "seqlen=512", "profiler": "nsys", "status": "failed"}
    rows = schema.frame(CASES, [{**failed, "reason": "pair 1 B: no profile", "params": "{}", "flags": "[]"}])
    text = page_of(schema.concat([data, Tables(cases=rows)]), run_of())
    if regenerate:
        GOLDEN.write_text(text, encoding="utf-8")
    assert text == GOLDEN.read_text(encoding="utf-8")


def test_the_headline_counts_the_cases_that_it_does_not_explain(captured):
    found = pairs.analyze(captured([("flash",)] * 3, [("flash", *twice(ADD))] * 3, percent=10.0), run_of())
    many = replace(found, cases=tuple(replace(found.cases[0], case=f"n={n}") for n in range(5)))
    text = Markdown().section(headline(many, run_of(captures=3)))
    assert text.count("is slower, +15 us") == 3 and "\n- 2 further cases with an explanation by kernel" in text


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        (NoCaptures.NO_GPU, "there is no GPU"),
        (NoCaptures.NO_PROFILER, "neither nsys nor torch"),
        (None, "nsys recorded"),
    ],
)
def test_the_page_says_why_there_are_no_captures(reason, expected):
    assert expected in page_of(timed({"c": around(3)}), run_of(no_captures=reason, captures=3 if reason is None else 0))
    silent = page_of(timed({"c": around(3)}), run_of(no_captures=NoCaptures.NOT_REQUESTED, captures=0))
    assert "capture" not in silent.lower()


def test_messages_of_ci_have_the_explanation_of_what_failed(captured):
    found = pairs.analyze(captured([("flash",)] * 3, [("flash", *twice(ADD))] * 3, percent=10.0), run_of())
    line = "attention/seqlen=2048: slower, +10.0 %, +15 us: +15 us add (1 more launch)"
    suite = ElementTree.fromstring(ci.junit(found, "small")).find("testsuite")
    assert suite.find("testcase/failure").get("message") == line
    assert next(iter(ci.workflow_commands(found))).endswith(line.replace("%", "%25"))


def test_the_json_document_has_the_explanation_and_what_limits_it(captured):
    data = captured([("flash",), ("cudnn",), ("flash",)], [("flash", *twice(ADD))] * 3, percent=10.0)
    failed = {"run": "r", "workload": "attention", "case": CASE, "profiler": "nsys", "status": "timeout"}
    rows = schema.frame(CASES, [{**failed, "reason": "pair 3 B: too long", "params": "{}", "flags": "[]"}])
    data, run = schema.concat([data, Tables(cases=rows)]), run_of()
    found = pairs.analyze(data, run)
    data = replace(data, verdicts=pairs.verdict_rows(found, "r"))
    document = json.loads(json.dumps(results_json.verdict_document(found, data, run, "SUMMARY.md", 0)))
    (case,) = document["cases"]
    assert case["explanation"] == "+15 us: +15 us add (1 more launch)"
    assert sum(kernel["part_ns"] for kernel in case["kernels"]) == pytest.approx(case["difference_ns"], abs=0.001)
    assert document["statuses"] == {"ok": 1} and (document["captures"], document["profiler"]) == (3, "nsys")
    warnings = {warning["kind"]: warning["text"] for warning in document["warnings"]}
    assert warnings["capture_failed"].endswith("nsys: timeout: pair 3 B: too long")
    assert "2 of 3 processes of A launched" in warnings["kernels_vary"]


@pytest.mark.slow
def test_the_benchmark_says_which_kernels_it_found(captured, tmp_path):
    script = ROOT / "benchmarks" / "verdicts_kernels.py"
    data = captured([("flash",)] * 3, [("flash", *twice(ADD))] * 3, percent=10.0)
    for name, found in (("add", "yes"), ("tf32", "**no**")):
        renamed_case = {"case": {CASE: f"operation={name}"}, "workload": {"attention": "operations"}}
        frames = {t: getattr(data, t).replace(renamed_case) for t in ("cases", "kernels", "ranges", "metrics")}
        store.save(tmp_path, Tables(**frames), run_of())
        done = subprocess.run([sys.executable, script, "--runs", tmp_path], capture_output=True, text=True)
        assert done.returncode == (found != "yes"), done.stderr
        (line,) = [line for line in done.stdout.splitlines() if "operation=" in line]
        assert line.endswith(f"| {found} |") and "(1 more launch)" in line


def test_the_page_of_200_cases_with_kernels_stays_short(captured, tmp_path):
    one = captured([("flash",)], [("cudnn",)], percent=0.0)
    names = [f"batch={number},seqlen=2048" for number in range(200)]
    times = timed({name: around(3 if number % 4 == 0 else 0) for number, name in enumerate(names)})
    kernels, ranges = (
        pd.concat([frame[frame["case"] == CASE].assign(case=name) for name in names])
        for frame in (one.kernels, one.ranges)
    )
    data = Tables(cases=times.cases, metrics=times.metrics, kernels=kernels, ranges=ranges)
    found = pairs.analyze(data, run_of())
    document = render.build_pairs(found, data, run_of())
    pages.write(document, tmp_path, ROOT / "templates" / "SUMMARY.md.j2")
    page = (tmp_path / "SUMMARY.md").read_text()
    assert len(page.splitlines()) <= 150 and "Differences by kernel" in page
    assert (tmp_path / "details.md").read_text().count("**the case**") == 200
    # In a job summary the kernels of all cases are below one fold.
    summary = ci.job_summary(document, found, "out/run")
    assert len(summary.encode()) < 1 << 20
    assert "<details><summary>Differences by kernel</summary>" in summary


def test_the_sql_of_these_tests_changes_the_recording(tmp_path):
    found = read(export(tmp_path / "a.sqlite", "flash", *twice(ADD)))
    calls = found.kernels.set_index(["case", "kernel_class"])["calls"]
    assert (calls[CASE, "add"], calls[CASE, "attention"]) == (10, 5)
