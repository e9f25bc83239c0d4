"""The first sentences of the page, of made-up numbers and of recorded runs. golden/headline.md holds their wording."""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from report_study import (
    ADD,
    ATTENTION,
    COPY,
    analyze,
    case_row,
    check_golden,
    check_studies,
    example,
    kernel_row,
    made_up,
    metric_row,
    range_row,
    recorded,
    tables,
    texts,
)

from profpipe.report.document import plain
from profpipe.report.sections import headline
from profpipe.results.schema import Tables

Study = tuple[Tables, Mapping[str, Any]]


def with_baseline(impl, **more):
    return {"pipeline": {"workloads": {"w": {"baseline": {"impl": impl}, **more}}}}


def times(**ns):
    return [metric_row(f"impl={impl}", "time", value, n=30) for impl, value in ns.items()]


def intervals(half=10.0, shape="", **ns):
    return [metric_row(f"impl={i}{shape}", "time", n, ci_low=n - half, ci_high=n + half) for i, n in ns.items()]


def spread(impl, ns, half, shape=""):
    case = f"impl={impl}{shape}"
    wide = metric_row(case, "time", ns, n=30, ci_low=(1 - half) * ns, ci_high=(1 + half) * ns)
    return [wide, metric_row(case, "time_p10", 0.6 * ns), metric_row(case, "time_p90", 1.3 * ns)]


def with_errors(shapes, **impls):
    """Cases of a time in ns and a relative error each; None without a comparison."""
    cases = [(f"impl={i},seqlen={n}", ns, e) for i, (ns, e) in impls.items() for n in range(1, shapes + 1)]
    metrics = [metric_row(case, "time", ns, n=30, ci_low=ns, ci_high=ns) for case, ns, _ in cases]
    metrics += [metric_row(case, "error_rel_l1", error, "1") for case, _, error in cases if error is not None]
    rows = [case_row(case, flags=[] if error is not None else ["unchecked"]) for case, _, error in cases]
    return tables(rows, metrics=metrics)


def in_loops(shapes, **paces):
    """Cases by the time of a call and the host's time to issue it, which grows by itself with each shape."""
    cases = [(f"impl={impl},n={n}", *own) for n in range(shapes) for impl, own in paces.items()]
    rows = [case_row(case, flags=["host_bound"] if issue and issue > ns else []) for case, ns, issue in cases]
    metrics = [metric_row(case, "time", ns) for case, ns, _ in cases]
    metrics += [metric_row(case, "issue", issue * (1 + int(case[-1])), "ns") for case, _, issue in cases if issue]
    return tables(rows, metrics=metrics)


def only(study):
    (workload,) = analyze(*study).workloads
    return workload


# --- studies ---------------------------------------------------------------------------------------------------------


def without_comparison():
    yield "nothing but launches", (tables(kernels=[kernel_row("", ADD, 4, None)]), {})
    yield "all skipped", (tables([case_row("impl=a", status="skipped", reason="no GPU")]), {})
    yield "one case", (tables(metrics=[metric_row("", "time", 5e6, n=9, ci_low=4.9e6, ci_high=5.2e6)]), {})
    yield "one capture", (tables(kernels=[kernel_row("", ADD, 4, 4000.0), kernel_row("", COPY, 2, 1000.0)]), {})
    untimed = [kernel_row("", ATTENTION, 3, 3e8), kernel_row("", ADD, 1, None)]
    yield "one capture with a launch without a time", (tables(kernels=untimed), {})
    names = [f"what={what},precision={p}" for what in ("forward", "train_step") for p in ("fp32", "bf16")]
    rows = [metric_row(name, "time", 1e6 * (i + 1), n=5) for i, name in enumerate(names)]
    yield "four cases", (tables(metrics=rows), {})
    long = metric_row("what=forward,precision=fp16", "time", 2e8, n=5)
    yield "five cases", (tables(metrics=[*rows, long]), {})


def one_shape():
    yield "a clear win", (tables(metrics=times(a=1000.0, b=2000.0)), with_baseline("b"))
    yield "the baseline wins", (tables(metrics=times(a=1000.0, b=2000.0)), with_baseline("a"))
    yield "a tie", (tables(metrics=intervals(a=1000.0, b=1005.0)), with_baseline("b"))
    yield "a tie of six", (tables(metrics=intervals(**dict.fromkeys("abcdef", 1000.0))), {})
    throttled = [case_row("impl=a"), case_row("impl=b", flags=["throttled"])]
    yield "a throttled case", (tables(throttled, metrics=times(a=2000.0, b=1000.0)), with_baseline("a"))
    yield "only one was asked for", (tables([case_row("impl=a")], metrics=times(a=1000.0)), with_baseline("a"))
    lost = [case_row("impl=a"), case_row("impl=b", status="failed", reason="why not")]
    yield "only one has a time", (tables(lost, metrics=times(a=1000.0)), with_baseline("a"))
    kernels = [kernel_row("impl=b", ATTENTION, 1, 5.0)]
    wrong = {**with_baseline("a"), "expects": {"w": {"impl=b": "cudnn"}}}
    yield "the wrong kernels", (tables(kernels=kernels, metrics=times(a=2000.0, b=1000.0)), wrong)
    clocks = [metric_row(f"impl={i}", "sm_clock", hz, "Hz") for i, hz in (("a", 1.9e9), ("b", 0.9e9))]
    yield "different clocks", (tables(metrics=[*intervals(a=1000.0, b=1100.0), *clocks]), with_baseline("b"))
    wide = [*spread("a", 1e8, 0.245), *spread("b", 5e8, 0.04), *spread("c", 9e8, 0.5)]
    yield "an uncertain time", (tables(metrics=wide), with_baseline("b"))
    ends = [metric_row("impl=b", "time_p10", 500.0), metric_row("impl=b", "time_p90", 3e3)]
    yield "no interval", (tables(metrics=[*times(a=1000.0, b=2000.0), *ends]), with_baseline("a"))


def several_shapes():
    yield "an H200, kernel times", recorded()
    yield "an H200, measured calls", example("h200-attention")
    data, run = made_up(["a", "b", "c"], [512, 1024, 2048, 4096, 8192])
    yield "the baseline wins everywhere", (data, run)
    rows = [row for i in "abcde" for n in (1, 2, 3) for row in intervals(shape=f",seqlen={n}", **{i: 1000.0})]
    yield "ties", (tables(metrics=rows), with_baseline("b"))
    alone = [row for n in (1, 2, 3) for row in intervals(shape=f",seqlen={n}", a=1000.0)]
    yield "only one was asked for", (tables(metrics=alone), with_baseline("a"))
    wide = [r for n in (1, 2, 3) for i, ns in (("a", 1e8), ("b", 5e8)) for r in spread(i, ns, 0.03 * n, f",seqlen={n}")]
    yield "uncertain times", (tables(metrics=wide), with_baseline("b"))
    own = {("a", 1): 800.0, ("b", 1): 400.0, ("a", 2): 600.0, ("b", 2): 200.0}
    other_shape = {"pipeline": {"workloads": {"w": {"baseline": {"impl": "a", "n": 1}}}}}
    yield "a baseline of another shape", (by_case(own), other_shape)
    own = {("a", 1): 900.0, ("b", 1): 400.0, ("c", 1): 600.0, ("b", 2): 100.0, ("c", 2): 200.0}
    yield "a baseline of some shapes", (by_case(own), with_baseline("a"))
    yield "many winners and doubts", many_winners()


def by_case(ns):
    return tables(metrics=[metric_row(f"impl={impl},n={n}", "time", value, n=30) for (impl, n), value in ns.items()])


def many_winners():
    names = [f"impl={i},n={n},mode={m}" for i in "abcdef" for n in range(1, 16) for m in ("fwd", "bwd")]
    own = {"a": range(1, 5), "b": range(5, 9), "c": (9, 10), "d": (11, 12), "e": (13,), "f": (14, 15)}
    ns = {name: 5.0 if int(name.split(",")[1][2:]) in own[name[5]] else 9.0 for name in names}
    rows = [case_row(name, flags=["other_process"] if name[5] in "ef" and ns[name] == 5.0 else []) for name in names]
    return tables(rows, metrics=[metric_row(name, "time", value, n=3) for name, value in ns.items()]), with_baseline(
        "a"
    )


def accuracy():
    run = with_baseline("a", tolerance={"error_rel_l1": 0.05})
    wrong = {"a": (4000.0, 0.001), "b": (2000.0, 0.01), "c": (1000.0, 0.08)}
    yield "a fast and inaccurate case", (with_errors(1, **wrong), run)
    yield "a fast and inaccurate case in two shapes", (with_errors(2, **wrong), run)
    yield "two of them", (with_errors(1, **wrong, d=(1500.0, 0.07)), run)
    yield "an inaccurate case that is slow", (with_errors(1, a=(4000.0, 0.001), b=(2000.0, 0.002), c=(9e3, 0.8)), run)
    yield "an unchecked case", (with_errors(1, a=(4000.0, 0.001), b=(2000.0, None)), run)
    yield "an unchecked case without a tolerance", (with_errors(1, a=(4e3, 0.001), b=(2e3, None)), with_baseline("a"))
    yield "none is accurate", (with_errors(1, a=(4000.0, 0.2), b=(2000.0, 0.1)), run)
    yield "none was compared", (with_errors(1, a=(4000.0, None), b=(2000.0, None)), run)
    yield "a result that is no number", (with_errors(2, a=(4000.0, 0.0), c=(1000.0, math.inf)), run)
    errors = {"a": 0.0001, "b": 0.02, "c": 0.0001, "d": 0.03, "e": 0.02}
    tied = intervals(a=4000.0, b=1000.0, c=1005.0, d=1006.0, e=1010.0)
    tied += [metric_row(f"impl={i}", "error_rel_l1", error, "1") for i, error in errors.items()]
    yield "tied cases with larger errors", (tables(metrics=tied), run)


def host_and_kernels():
    fast, known, base = (1e6, 6e6), (2e6, 1e5), (9e6, 1e5)
    yield "another is fastest in a loop", (in_loops(1, a=fast, b=known, base=base), with_baseline("base"))
    yield "another is fastest in four loops", (in_loops(4, a=fast, b=known, base=base), with_baseline("base"))
    yield "a lead shrinks in a loop", (in_loops(1, a=fast, b=(2e6, 3.2e6)), with_baseline("b"))
    yield "leads shrink in loops", (in_loops(4, a=(1e6, 1.2e6), b=(3e6, 1e5)), with_baseline("b"))
    kernels = [kernel_row("impl=a", ATTENTION, 10, 2_000_000.0), kernel_row("impl=b", ATTENTION, 10, 1_400_000.0)]
    ranges = [range_row(f"impl={impl}", 10) for impl in "ab"]
    copy = kernel_row("impl=b", "[CUDA memcpy DtoD]", 10, 600_000.0, kind="memcpy")
    ns = times(a=200_000.0, b=250_000.0)
    yield "a copy costs what the kernel saves", (tables((), [*kernels, copy], ranges, ns), with_baseline("a"))
    yield "a gap costs what the kernel saves", (tables((), kernels, ranges, ns), with_baseline("a"))
    add = kernel_row("impl=b", ADD, 10, 900_000.0)
    yield "an addition costs what the kernel saves", (tables((), [*kernels, add], ranges, ns), with_baseline("a"))


def braces():
    """A parameter whose value is a pair of braces."""
    rows = [
        metric_row(f"cfg={cfg},impl={i}", "time", ns, n=30, ci_low=ns, ci_high=ns)
        for cfg, ns, i in (("{}", 1e3, "a"), ("{}", 2e3, "b"))
    ]
    cases = [case_row(row["case"]) for row in rows] + [case_row(f"cfg=y,impl={i}", status="failed") for i in "ab"]
    return tables(cases, metrics=rows), {}


def with_memory(peaks, inaccurate="", workload="w", **ns):
    """Implementations with these peak memories in MiB and times in ns; 1 us each without times."""
    of, own = {"workload": workload}, ns or dict.fromkeys(peaks, 1e3)
    rows = [metric_row(f"impl={impl}", "peak_allocated", peak * 2**20, "byte", **of) for impl, peak in peaks.items()]
    rows += [metric_row(f"impl={impl}", "time", time, **of) for impl, time in own.items()]
    rows += [metric_row(f"impl={i}", "error_max", float(i == inaccurate), "1", **of) for i in peaks if inaccurate]
    run = {"pipeline": {"workloads": {workload: {"tolerance": {"error_max": 0.1}}}}}
    return tables([case_row(f"impl={impl}", **of) for impl in peaks], metrics=rows), run if inaccurate else {}


def memory():
    yield "braces in the value of a parameter stay where they are", braces()
    yield "the lowest is named beside the fastest", with_memory({"a": 100, "b": 50}, a=1e3, b=2e3)
    several = {"a": 50, "b": 50.3, "c": 100, "d": 200}
    yield "the fastest has the lowest", with_memory(several, a=1e3, b=2e3, c=3e3, d=4e3)
    yield "memory that is the same", with_memory({"a": 50, "b": 50.3}, a=1e3, b=2e3)
    yield "memory of one that is not known", with_memory({"a": 50, "b": 0}, a=1e3, b=2e3)
    yield "memory of both that is not known", with_memory({"a": 0, "b": 0}, a=1e3, b=2e3)
    yield "an inaccurate case has the lowest", with_memory({"a": 1, "b": 2, "c": 3}, "a")


def several_workloads():
    rows = [
        metric_row(f"impl={i}", "time", ns, workload=f"w{w}") for w in range(10) for i, ns in (("a", 1e3), ("b", 2e3))
    ]
    yield "two workloads", (tables(metrics=rows[:4]), {})
    yield "one workload has its answer in its own section", (tables(metrics=rows[:2]), {})
    yield "more workloads than are listed", (tables(metrics=rows), {})


GROUPS: tuple[Callable[[], Iterator[tuple[str, Study]]], ...] = (
    without_comparison, one_shape, several_shapes, accuracy, host_and_kernels, memory,
)  # fmt: skip


def test_the_headline_reads_as_in_the_golden_file(regenerate):
    parts = []
    for group in GROUPS:
        parts.append(f"# {group.__name__.replace('_', ' ')}")
        for name, study in group():
            first, *remarks = texts(headline.headline(only(study)))
            parts.append(
                "\n".join([f"## {name}", "", first, *[""] * bool(remarks), *(f"- {line}" for line in remarks)])
            )
    check_golden("headline.md", "\n\n".join(parts) + "\n", regenerate)


def test_the_answers_of_several_workloads_read_as_in_the_golden_file(regenerate):
    studies = [(name, headline.answers(analyze(*study).workloads)) for name, study in several_workloads()]
    check_studies("answers.md", studies, regenerate)


def test_a_wrong_result_is_not_the_fastest_in_a_loop():
    data = in_loops(1, a=(1e6, 6e6), wrong=(2e6, 1e5), base=(9e6, 1e5))
    data.cases.loc[data.cases["case"] == "impl=wrong,n=0", "flags"] = '["inaccurate"]'
    win = headline.host_bound_win(only((data, with_baseline("base"))).shapes[0])
    assert win is not None and win.fastest.variant == "a"


def test_a_case_without_a_host_time_is_not_the_fastest_in_a_loop():
    data = in_loops(1, a=(1e6, 6e6), b=(2e6, None), c=(2.5e6, 3e6), base=(9e6, 1e5))
    win = headline.host_bound_win(only((data, with_baseline("base"))).shapes[0])
    assert win is not None and (win.fastest.variant, win.share_of_fastest) == ("c", 0.5)


def test_the_host_time_of_a_call_is_at_most_that_of_an_iteration_of_the_loop():
    data = in_loops(1, a=(1e6, 6e6), b=(3e6, 1e5))
    loop = tables(data.cases.to_dict("records"), metrics=[*data.metrics.to_dict("records"),
                                                          metric_row("impl=a,n=0", "loop_wall", 1.5e6)])  # fmt: skip
    leads = []
    for each in (data, loop):
        win = headline.host_bound_win(only((each, with_baseline("b"))).shapes[0])
        leads.append(win and win.loop_lead)
    assert leads == [0.5, 2.0]


@pytest.mark.parametrize(
    ("parts", "whole"),
    [
        (("forward", "backward", "train_step"), "train_step"),
        (("fwd", "bwd", "both"), "both"),
        (("encoder", "decoder", "total"), "total"),
        (("forward", "forward_backward", "step"), "step"),
        (("fwd", "fwd_bwd"), None),
        (("sliding", "full"), None),
        (("forward", "forward_fp8"), None),
    ],
)
def test_of_parts_and_a_whole_the_answer_is_of_the_whole(parts, whole):
    # The whole is slower with b than with a; each part is faster.
    rows = [row for n in (1, 2) for part in parts
            for row in intervals(shape=f",what={part},n={n}", a=5e3, b=9e3 if part == parts[-1] else 1e3)]  # fmt: skip
    data = tables(metrics=rows)
    workload = only((data, with_baseline("a")))
    assert (workload.whole and workload.whole[1]) == whole
    answer = plain(headline.answer(workload))
    assert answer.startswith("The baseline, a, is fastest in both shapes") == (whole is not None)
    assert answer.endswith(f"Only {whole} is compared.") == (whole is not None)
    assert workload.largest and (whole is None or ("what", whole) in workload.largest.axes)


def test_the_longest_value_is_the_whole_only_if_no_part_takes_longer():
    rows = [row for part, ns in (("forward", 5e3), ("step", 2e3)) for row in intervals(shape=f",what={part}", a=ns)]
    assert only((tables(metrics=rows), {})).whole is None
