"""The work and the memory of phases, from the tables to the page. The numbers are made up; no GPU ever gave them."""

from __future__ import annotations

from typing import Any

import pytest
import report_study as study
from report_study import analyze

from profpipe.analysis.findings import CaseResult, WorkloadFindings
from profpipe.analysis.kernels import Memory, Phase
from profpipe.report.document import plain
from profpipe.report.sections import memory, phases
from profpipe.results.schema import Tables

SCORES, SOFTMAX = "forward > attention scores", "forward > softmax"
MACHINE = {"peaks": {"flops": {"bf16": 1e15}, "bytes_per_s": 4e12, "source": "invented for a test"}}
RUN = {
    "machine": MACHINE,
    "jobs": [
        {"workload": "w", "profiler": "nsys", "folder": "raw/w/nsys", "cases": ["size=small", "size=large"]},
        {"workload": "w", "profiler": "plain", "folder": "raw/w/plain", "cases": ["size=small", "size=large"]},
    ],
}


def _case(name: str, softmax_ns: float, scale: float = 1.0) -> dict[str, list[dict[str, Any]]]:
    """Ten iterations under nsys, each of 3 us of scores, the softmax and 1 us elsewhere; the work of a call."""
    kernels = [
        study.kernel_row(name, "gemm", 120, 30_000 * scale, phase=SCORES),
        study.kernel_row(name, "softmax", 100, 8 * softmax_ns * scale, phase=SOFTMAX),
        study.kernel_row(name, "cast", 20, 2 * softmax_ns * scale, phase=f"{SOFTMAX} > inner"),
        study.kernel_row(name, "other", 10, 10_000 * scale, phase="forward"),
        # Another profiler saw the same; its times are never mixed with those of nsys.
        study.kernel_row(name, "gemm", 120, 900_000, phase=SCORES, profiler="torch"),
    ]
    work = [
        (SCORES, "flops", 900e6 * scale, "flop"), (SCORES, "bytes_moved", 3e6 * scale, "byte"),
        (SOFTMAX, "flops", 10e6 * scale, "flop"), (SOFTMAX, "bytes_moved", 8e6 * scale, "byte"),
        ("loss", "flops", 1e6, "flop"),
    ]  # fmt: skip
    metrics = [study.metric_row(name, metric, value, unit, subject=phase) for phase, metric, value, unit in work]
    metrics += [study.metric_row(name, "time", 50_000), study.metric_row(name, "flops", 1e9, "flop")]
    # ncu's subjects are kernels, also if their names look like phases.
    metrics += [study.metric_row(name, "flops", 5, "flop", subject=SOFTMAX, profiler="ncu")]
    return {
        "cases": [study.case_row(name, p, params={"precision": "bf16"}) for p in ("plain", "nsys", "torch", "ncu")],
        "kernels": kernels,
        "ranges": [study.range_row(name, 10), study.range_row(name, 10, "torch")],
        "metrics": metrics,
    }


def _tables(*parts: dict[str, list[dict[str, Any]]]) -> Tables:
    return study.tables(**{key: [row for part in parts for row in part.get(key, ())] for key in parts[0]})


def _analysed(*parts: dict[str, list[dict[str, Any]]]) -> WorkloadFindings:
    return analyze(_tables(*parts), RUN).workloads[0]


# --- work ------------------------------------------------------------------------------------------------------------


def test_a_phase_has_its_time_its_work_and_its_limit() -> None:
    scores, softmax = _analysed(_case("size=small", softmax_ns=5000)).phase_work
    # The ranges nested in it count, and an iteration is a tenth of the whole.
    assert (scores.phase, scores.ns, softmax.phase, softmax.ns) == (SCORES, 3000, SOFTMAX, 5000)
    assert scores.of_time == pytest.approx(3 / 8) and softmax.of_time == pytest.approx(5 / 8)
    assert softmax.of_work == pytest.approx(10 / 910)
    assert (scores.intensity, softmax.intensity) == (300, 1.25)
    assert scores.flops_per_s == pytest.approx(3e14) and scores.of_flops == pytest.approx(0.3)
    assert softmax.bytes_per_s == pytest.approx(1.6e12) and softmax.of_bandwidth == pytest.approx(0.4)
    assert (scores.ridge, scores.limited_by, softmax.limited_by) == (250, "compute", "memory")


def test_a_phase_is_compared_with_the_peaks_of_the_data_types_that_it_computes_in() -> None:
    case = _case("size=small", softmax_ns=5000)
    parts = [study.metric_row("size=small", f"flops.{name}", 450e6, "flop", subject=SCORES) for name in ("int8", "fp8")]
    rates = {"flops": {"bf16": 1e15, "int8": 3e15, "fp8": 1.5e15}, "bytes_per_s": 4e12}
    data = _tables({**case, "metrics": [*case["metrics"], *parts]})
    scores, softmax = analyze(data, {"machine": {"peaks": rates}}).workloads[0].phase_work
    assert (scores.of_flops, scores.ridge) == (pytest.approx(0.15), 500) and softmax.ridge == 250


def test_a_phase_far_below_both_rates_has_no_known_limit() -> None:
    scores, softmax = _analysed(_case("size=small", softmax_ns=500_000)).phase_work
    assert (scores.limited_by, softmax.limited_by) == ("compute", "")
    assert softmax.of_bandwidth == pytest.approx(0.004)


def test_without_a_number_of_iterations_or_rates_of_the_machine_nothing_is_made_up() -> None:
    case = _case("size=small", softmax_ns=5000)
    assert analyze(_tables({**case, "ranges": []}), RUN).workloads[0].phase_work == ()
    scores, _ = analyze(_tables(case), {}).workloads[0].phase_work
    assert (scores.limited_by, scores.of_flops, scores.ridge) == ("", None, None)
    assert scores.flops_per_s == pytest.approx(3e14)


def test_the_work_of_a_phase_is_not_taken_for_that_of_the_case() -> None:
    (point,) = _analysed(_case("size=small", softmax_ns=5000)).cases
    assert point.values["flops"] == 1e9 and "bytes_moved" not in point.values
    assert point.tflops == pytest.approx(1e9 / 50e-6 / 1e12)


def sentences(workload: WorkloadFindings) -> list[str]:
    return [plain(sentence) for sentence in phases.disproportions(workload)]


def test_a_memory_bound_softmax_explains_itself_in_one_sentence() -> None:
    workload = _analysed(_case("size=small", 5000), _case("size=large", 3000, scale=8))
    section = phases.phase_work(workload)
    assert plain(section.summary).endswith("Limited by: the nearer of the two limits of the roofline.")
    assert sentences(workload) == [
        "softmax takes 50 to 62 % of the time of these phases for 1.10 % of their FLOPs: it does 1.25 FLOP per byte,"
        " and the machine could do 250. Memory limits it: it reaches 40 % (size small) to 67 % (size large) of the"
        " bandwidth."
    ]


def test_what_an_axis_sets_apart_has_a_sentence_for_each_of_its_values() -> None:
    times = {("small", "rows"): 5000, ("large", "rows"): 4800, ("small", "columns"): 2200, ("large", "columns"): 2200}
    parts = [_case(f"size={size},layout={layout}", ns) for (size, layout), ns in times.items()]
    rows, columns = sentences(_analysed(*parts))
    assert rows.startswith("softmax at layout rows takes 62 % of")
    assert "it reaches 40 % (size small, layout rows) to 42 % (size large, layout rows) of the" in rows
    assert columns.startswith("softmax at layout columns takes 42 % of") and "it reaches 91 % of" in columns


def test_a_sentence_holds_only_what_is_known_of_a_slow_phase() -> None:
    both = (_case("size=small", 5000), _case("size=large", 40))
    (sentence,) = sentences(_analysed(*both))
    assert "1.10 % of their FLOPs (in 1 case of 2): it does" in sentence
    (bare,) = sentences(analyze(_tables(*both), {}).workloads[0])
    assert bare.endswith("(in 1 case of 2): it does 1.25 FLOP per byte.")
    assert sentences(_analysed(_case("size=small", 40))) == []
    without = {"cases": [study.case_row("a")], "metrics": [study.metric_row("a", "time", 1)]}
    assert not phases.phase_work(_analysed(without))


def test_the_table_has_a_row_for_each_phase() -> None:
    workload = _analysed(_case("size=small", 5000), _case("size=large", 1500))
    table = phases.work(workload, workload.cases)
    small, _, large, beyond = [dict(zip([c.id for c in table.columns], row, strict=True)) for row in table.rows]
    assert (plain(small["case"].text), small["phase"].text) == ("size small", "attention scores")
    assert small["limited_by"].text == "arithmetic"
    numbers = ("ns", "of_time", "of_work", "flops_per_s", "of_flops")
    assert [small[name].value for name in numbers] == pytest.approx([3000, 3 / 8, 90 / 91, 3e14, 0.3])
    assert plain(large["case"].text) == "size large" and beyond["phase"].text == "softmax"
    # 8 MB in 1.5 us are more than the memory gives: they came from a cache.
    assert beyond["bytes_per_s"].value == pytest.approx(8e6 / 1.5e-6)
    assert (beyond["of_bandwidth"].is_strong, beyond["of_bandwidth"].note) == (True, "above")
    assert "Bytes above the memory's rate came from a cache." in plain(phases.phase_work(workload).summary)


# --- memory ----------------------------------------------------------------------------------------------------------

MIB = 2.0**20


def _memory(name: str, passes: dict[str, float], allocations: list[tuple[str, float, int, int]]) -> dict[str, Any]:
    """A record: peaks by phase in MiB; allocations as (place, MiB, how many, how many of them held at the peak)."""
    rows = []
    for phase, peak in passes.items():
        numbers = {"allocated_at_start": 100 * MIB, "peak_allocated": peak * MIB, "allocated_at_end": 90 * MIB}
        rows += [study.metric_row(name, metric, value, "byte", subject=phase) for metric, value in numbers.items()]
    for rank, (place, size, n, held) in enumerate(allocations, start=1):
        rows.append(study.metric_row(name, f"allocation:{rank}", size * MIB, "byte", subject=place, n=n))
        if held:
            rows.append(study.metric_row(name, f"held:{rank}", held * size * MIB, "byte", subject=place, n=held))
    kept = {"subject": f"snapshots/{name}/memory.pickle"}
    rows += [study.metric_row(name, "time", 50_000), study.metric_row(name, "kept", 3 * MIB, "byte", **kept)]
    rows.append(study.metric_row(name, "peak_allocated", 7, "byte"))
    return {"cases": [study.case_row(name)], "metrics": rows}


def _two_passes() -> WorkloadFindings:
    softmax, plain = "forward > softmax", "plain, _lm_model.py:80"
    return _analysed(
        _memory("what=forward", {"forward": 160, softmax: 160}, [(plain, 16, 12, 2), (plain, 8, 1, 0)]),
        _memory("what=step", {"forward": 300, softmax: 280, "backward": 400, "optimizer": 380}, [(plain, 40, 2, 2)]),
    )


def test_a_record_is_read_back_from_the_tables() -> None:
    forward, step = _two_passes().memory
    assert (forward.case, step.case) == ("what=forward", "what=step")
    assert [(phase.phase, phase.peak / MIB) for phase in forward.phases] == [("forward", 160), (SOFTMAX, 160)]
    assert (step.phases[0].start, step.phases[0].end, step.peak) == (100 * MIB, 90 * MIB, 400 * MIB)
    first, second = forward.allocations
    assert (first.place, first.size, first.count, first.held) == ("plain, _lm_model.py:80", 16 * MIB, 12, 2)
    assert (second.size, second.held) == (8 * MIB, 0)
    assert forward.files == (("raw/w/plain/snapshots/what=forward/memory.pickle", 3 * MIB),)


def _pairs(workload: WorkloadFindings) -> list[tuple[CaseResult, Memory]]:
    return list(zip(workload.cases, workload.memory, strict=True))


def test_each_phase_has_its_peak_memory_and_the_memory_in_use_before() -> None:
    table = memory.peaks(_pairs(_two_passes()))
    assert [column.id for column in table.columns[1:]] == ["before", "forward", SOFTMAX, "backward", "optimizer"]
    forward, step = table.rows
    assert [cell.value and cell.value / MIB for cell in forward[1:]] == [100, 160, 160, None, None]
    assert [cell.value and cell.value / MIB for cell in step[1:]] == [100, 300, 280, 400, 380]
    assert [cell.is_strong for cell in step[2:]] == [False, False, True, False]


def test_the_largest_allocations_have_their_place_and_their_share_of_the_peak() -> None:
    forward, step = (row for row in memory.allocations(_pairs(_two_passes())).rows if row[0].text)
    assert (plain(forward[0].text), plain(forward[1].text)) == ("forward", "plain, _lm_model.py:80")
    assert [cell.value for cell in forward[2:]] == [16 * MIB, 12, 32 * MIB, 0.2]
    assert [cell.value for cell in step[2:]] == [40 * MIB, 2, 80 * MIB, 0.2]
    files = memory.files(_pairs(_two_passes()))
    assert plain(files.rows[1][1].text) == "raw/w/plain/snapshots/what=step/memory.pickle"


def test_the_course_of_the_highest_case_is_a_chart_with_a_line_for_each_phase() -> None:
    step = _memory("what=step", {"forward": 300, "backward": 400}, [])
    points = {"forward": {2000: 120, 4000: 300}, "backward": {6000: 400, 8000: 100}}
    step["metrics"] += [
        study.metric_row("what=step", f"allocated_at:{at}", size * MIB, "byte", subject=phase)
        for phase, own in points.items()
        for at, size in own.items()
    ]
    workload = _analysed(_memory("what=forward", {"forward": 160}, []), step)
    chart = memory.course(workload, _pairs(workload))
    assert chart is not None and (chart.subtitle, len(chart.panels)) == ("step", 1)
    drawn = {series.name: [(mark.x, mark.y / MIB) for mark in series.marks] for series in chart.series}
    assert drawn == {"forward": [(2, 120), (4, 300)], "backward": [(6, 400), (8, 100)]}
    assert memory.course(workload, _pairs(workload)[:1]) is None


def test_allocations_are_ordered_by_their_size_at_the_peak_and_others_are_left_out() -> None:
    large, none, small = ("a.py:1", 40, 1, 1), ("b.py:2", 30, 9, 0), ("c.py:3", 4.5, 40, 36)
    workload = _analysed(_memory("what=forward", {"forward": 400}, [large, none, small]))
    rows = memory.allocations(_pairs(workload)).rows
    held = [(plain(row[1].text), [cell.value for cell in row[2:5]]) for row in rows]
    assert held == [("c.py:3", [4.5 * MIB, 40, 162 * MIB]), ("a.py:1", [40 * MIB, 1, 40 * MIB])]
    many = [(f"a.py:{line}", line, 1, 1) for line in range(1, 10)]
    assert len(memory.allocations(_pairs(_analysed(_memory("what=forward", {"forward": 400}, many)))).rows) == 6


def test_the_sections_are_there_only_where_something_was_recorded() -> None:
    parts = [_case("size=small", 5000), _memory("size=large", {"forward": 160}, [("plain, model.py:1", 16, 12, 2)])]
    whole = _tables(*[{"kernels": [], "ranges": [], **part} for part in parts])
    (workload,) = analyze(whole, RUN).workloads
    assert phases.phase_work(workload) and phases.phases(workload)
    assert [table.id for table in memory.memory(workload).tables()] == ["peaks", "allocations", "files"]
    recorded, run = study.recorded()
    (workload,) = analyze(recorded, run).workloads
    assert not phases.phase_work(workload) and not memory.memory(workload) and not phases.host_phases(workload)


# --- on the host, where there are no kernels -------------------------------------------------------------------------


def _on_host(*rows: dict[str, Any], **run: Any) -> tuple[Tables, dict[str, Any]]:
    return study.tables(ranges=list(rows)), {**RUN, **run}


def test_a_command_without_a_gpu_has_its_phases_by_the_hosts_clock() -> None:
    whole, run = _on_host(
        study.range_row("default", 4, range="forward", wall_ns=8e6),
        study.range_row("default", 4, range=SOFTMAX, wall_ns=2e6),
        pipeline={"workloads": {"w": {"command": ["python", "train.py"]}}},
    )
    (workload,) = analyze(whole, run).workloads
    section = phases.host_phases(workload)
    (table,) = section.tables()
    assert [plain(column.title) for column in table.columns] == ["case", "phase", "entered", "host"]
    assert [[plain(row[1].text), row[2].value, row[3].value] for row in table.rows] == [
        ["forward", 4, 8e6], [SOFTMAX, 4, 2e6],
    ]  # fmt: skip
    assert "(nsys). No kernel was recorded" in plain(section.summary) and not phases.phases(workload)


def test_phases_on_the_host_are_per_call_where_the_calls_are_counted() -> None:
    whole, run = _on_host(
        study.range_row("impl=a", 10, wall_ns=4e6),
        study.range_row("impl=a", 20, range="forward", wall_ns=1e6),
        study.range_row("impl=a", 10, "torch", range="forward", wall_ns=9e6),
    )
    (workload,) = analyze(whole, run).workloads
    assert workload.host_phases == (Phase("impl=a", "forward", 2.0, 1e5, 0.25, "nsys"),)
    _, _, entered, host, share = phases.phases_on_host(workload, workload.cases).columns
    assert (entered.title, host.unit and host.unit.name, share.title) == ("entered/call", "us/call", "of the call")


def test_cases_with_kernels_have_no_host_phases() -> None:
    whole = study.tables(
        kernels=[study.kernel_row("impl=a", "gemm", 10, 1000.0, phase="forward")],
        ranges=[study.range_row("impl=a", 10), study.range_row("impl=a", 10, range="forward", wall_ns=5.0)],
    )
    assert analyze(whole, RUN).workloads[0].host_phases == ()
