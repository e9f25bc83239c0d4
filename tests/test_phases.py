"""The work and the memory of phases, from the tables to the page. The numbers are made up; no GPU ever gave them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import report_study as study

from profpipe import load
from profpipe.analyze import analyze
from profpipe.findings import WorkloadFindings
from profpipe.page import memory_sheets, phase_sheets
from profpipe.phase_findings import HostPhase
from profpipe.report import render
from profpipe.tables import Tables

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
        # Another profiler saw the same; its times never meet those of nsys.
        study.kernel_row(name, "gemm", 120, 900_000, phase=SCORES, profiler="torch"),
    ]
    work = [
        (SCORES, "flops", 900e6 * scale, "flop"), (SCORES, "bytes_moved", 3e6 * scale, "byte"),
        (SOFTMAX, "flops", 10e6 * scale, "flop"), (SOFTMAX, "bytes_moved", 8e6 * scale, "byte"),
        ("loss", "flops", 1e6, "flop"),
    ]  # fmt: skip
    metrics = [study.metric_row(name, metric, value, unit, subject=phase) for phase, metric, value, unit in work]
    metrics += [study.metric_row(name, "time", 50_000), study.metric_row(name, "flops", 1e9, "flop")]
    # ncu's subjects are kernels, whatever they are called.
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


def test_the_time_of_a_phase_stands_beside_its_work_and_what_limits_it() -> None:
    scores, softmax = _analysed(_case("size=small", softmax_ns=5000)).phase_work
    # The ranges nested in it count, and an iteration is a tenth of the whole.
    assert (scores.phase, scores.ns, softmax.phase, softmax.ns) == (SCORES, 3000, SOFTMAX, 5000)
    assert scores.of_time == pytest.approx(3 / 8) and softmax.of_time == pytest.approx(5 / 8)
    assert softmax.of_work == pytest.approx(10 / 910)
    assert (scores.intensity, softmax.intensity) == (300, 1.25)
    assert scores.flops_per_s == pytest.approx(3e14) and scores.of_flops == pytest.approx(0.3)
    assert softmax.bytes_per_s == pytest.approx(1.6e12) and softmax.of_bandwidth == pytest.approx(0.4)
    assert (scores.ridge, scores.binds, softmax.binds) == (250, "compute", "memory")


def test_a_phase_is_held_against_the_data_types_that_it_computes_in() -> None:
    case = _case("size=small", softmax_ns=5000)
    parts = [study.metric_row("size=small", f"flops.{name}", 450e6, "flop", subject=SCORES) for name in ("int8", "fp8")]
    rates = {"flops": {"bf16": 1e15, "int8": 3e15, "fp8": 1.5e15}, "bytes_per_s": 4e12}
    data = _tables({**case, "metrics": [*case["metrics"], *parts]})
    scores, softmax = analyze(data, {"machine": {"peaks": rates}}).workloads[0].phase_work
    assert (scores.of_flops, scores.ridge) == (pytest.approx(0.15), 500) and softmax.ridge == 250


def test_nothing_is_said_of_what_limits_a_phase_far_below_both_rates() -> None:
    scores, softmax = _analysed(_case("size=small", softmax_ns=500_000)).phase_work
    assert (scores.binds, softmax.binds) == ("compute", "")
    assert softmax.of_bandwidth == pytest.approx(0.004)


def test_without_a_number_of_iterations_or_rates_of_the_machine_nothing_is_made_up() -> None:
    case = _case("size=small", softmax_ns=5000)
    assert analyze(_tables({**case, "ranges": []}), RUN).workloads[0].phase_work == ()
    scores, _ = analyze(_tables(case), {}).workloads[0].phase_work
    assert (scores.binds, scores.of_flops, scores.ridge) == ("", None, None)
    assert scores.flops_per_s == pytest.approx(3e14)


def test_the_work_of_phases_is_none_of_the_case() -> None:
    (point,) = _analysed(_case("size=small", softmax_ns=5000)).points
    assert point.values["flops"] == 1e9 and "bytes_moved" not in point.values
    assert point.tflops == pytest.approx(1e9 / 50e-6 / 1e12)


def test_a_memory_bound_softmax_explains_itself_in_one_sentence() -> None:
    workload = _analysed(_case("size=small", 5000), _case("size=large", 3000, scale=8))
    what, sentence = phase_sheets.explained(workload)
    assert what.startswith("FLOPs and bytes are those that the workload declares")
    assert what.endswith("Limited by: the nearer of the roofline's two roofs.")
    assert sentence == (
        "softmax takes 50 to 62 % of the time of these phases for 1.10 % of their FLOPs: it does 1.25 FLOP for each "
        "byte, where the machine could do 250, so memory is the nearer roof, of whose bandwidth it reaches 40 % "
        "(size small) to 67 % (size large)."
    )


def test_what_an_axis_sets_apart_is_said_of_each_of_its_values_and_not_as_one_range() -> None:
    times = {("small", "rows"): 5000, ("large", "rows"): 4800, ("small", "columns"): 2200, ("large", "columns"): 2200}
    parts = [_case(f"size={size},layout={layout}", ns) for (size, layout), ns in times.items()]
    rows, columns = phase_sheets.explained(_analysed(*parts))[1:]
    assert rows.startswith("softmax at layout rows takes 62 % of")
    assert rows.endswith("it reaches 40 % (size small, layout rows) to 42 % (size large, layout rows).")
    assert columns.startswith("softmax at layout columns takes 42 % of") and columns.endswith("it reaches 91 %.")


def test_only_what_is_known_of_a_slow_phase_is_said() -> None:
    both = (_case("size=small", 5000), _case("size=large", 40))
    sentence = phase_sheets.explained(_analysed(*both))[-1]
    assert "1.10 % of their FLOPs (in 1 case of 2): it does" in sentence
    bare = phase_sheets.explained(analyze(_tables(*both), {}).workloads[0])[-1]
    assert bare.endswith("(in 1 case of 2): it does 1.25 FLOP for each byte.")
    assert len(phase_sheets.explained(_analysed(_case("size=small", 40)))) == 1
    without = {"cases": [study.case_row("a")], "metrics": [study.metric_row("a", "time", 1)]}
    assert phase_sheets.explained(_analysed(without)) == []


def test_the_table_has_a_row_for_each_phase() -> None:
    workload = _analysed(_case("size=small", 5000), _case("size=large", 1500))
    sheet = phase_sheets.work(workload, workload.points)
    small, _, large, beyond = [dict(zip(sheet.head, row, strict=True)) for row in sheet.rows]
    assert (small["case"], small["phase"]) == ("size small", "attention scores")
    assert (small["us/call"], small["% of their time"], small["% of their FLOP"]) == ("3.00", "37.5", "98.9")
    assert (small["TFLOP/s"], small["% of peak FLOP/s"], small["limited by"]) == ("300.0", "30.0", "arithmetic")
    assert large["case"] == "size large"
    # 8 MB in 1.5 us are more than the memory gives: they came from a cache.
    assert beyond["phase"] == "softmax"
    assert (beyond["TB/s"], beyond["% of peak bytes/s"]) == ("5.33", "**133, above**")
    assert "Bytes above the memory's rate came from a cache." in phase_sheets.explained(workload)[0]


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


def test_the_peak_of_each_phase_stands_beside_what_was_there_before() -> None:
    sheet = memory_sheets.peaks(_two_passes())
    phases = ["forward", "forward &gt; softmax", "backward", "optimizer"]
    assert sheet.head == ["case", "before MiB", *(f"{phase} MiB" for phase in phases)]
    assert sheet.rows == [
        ["forward", "100.0", "**160.0**", "**160.0**", "", ""],
        ["step", "100.0", "300.0", "280.0", "**400.0**", "380.0"],
    ]


def test_a_phase_stands_after_those_around_it_whatever_else_is_known_of_it() -> None:
    peaks = _memory("a", {"forward": 300, SCORES: 280, SOFTMAX: 290, "backward": 400}, [])
    work = [study.metric_row("a", "flops", 5, "flop", subject=phase) for phase in (SOFTMAX, SCORES)]
    (record,) = _analysed({**peaks, "metrics": [*work, *peaks["metrics"]]}).memory
    assert [phase.phase for phase in record.phases] == ["forward", SOFTMAX, SCORES, "backward"]


def test_the_largest_allocations_tell_where_and_how_much_of_the_peak_they_are() -> None:
    workload = _two_passes()
    sheet = memory_sheets.allocations(workload, workload.points, most=1)
    assert sheet.rows == [
        ["forward", "`plain, _lm_model.py:80`", "16.0", "12", "32.0", "20.0"],
        ["step", "`plain, _lm_model.py:80`", "40.0", "2", "80.0", "20.0"],
    ]
    assert memory_sheets.files(workload).rows[1][1] == "`raw/w/plain/snapshots/what=step/memory.pickle`"


def test_allocations_stand_by_what_they_hold_at_the_peak_and_those_that_hold_nothing_are_left_out() -> None:
    large, none, small = ("a.py:1", 40, 1, 1), ("b.py:2", 30, 9, 0), ("c.py:3", 4.5, 40, 36)
    workload = _analysed(_memory("what=forward", {"forward": 400}, [large, none, small]))
    rows = memory_sheets.allocations(workload, workload.points, most=6).rows
    assert [row[1:5] for row in rows] == [["`c.py:3`", "4.50", "40", "162.0"], ["`a.py:1`", "40.0", "1", "40.0"]]
    assert len(memory_sheets.allocations(workload, workload.points, most=1).rows) == 1


def test_the_page_has_both_sections_where_there_is_something_to_tell(tmp_path: Path) -> None:
    parts = [_case("size=small", 5000), _memory("size=large", {"forward": 160}, [("plain, model.py:1", 16, 12, 2)])]
    whole = _tables(*[{"kernels": [], "ranges": [], **part} for part in parts])
    template = load.own_folder("templates") / "SUMMARY.md.j2"
    page = render(analyze(whole, RUN), whole, RUN, tmp_path, template).read_text()
    assert "## Work by phase\n\nFLOPs and bytes are those" in page
    assert "softmax takes 62 %" in page and "| memory |" in page
    assert "## Memory by phase\n\nOne iteration of each case, recorded apart" in page
    assert "`raw/w/plain/snapshots/size=large/memory.pickle`" in page
    recorded, run = study.recorded()
    page = render(analyze(recorded, run), recorded, run, tmp_path, template).read_text()
    assert "Work by phase" not in page and "Memory by phase" not in page


# --- on the host, where there are no kernels -------------------------------------------------------------------------


def _on_host(*rows: dict[str, Any], **run: Any) -> tuple[Tables, dict[str, Any]]:
    return study.tables(ranges=list(rows)), {**RUN, **run}


def test_a_command_without_a_gpu_has_its_phases_by_the_host_s_clock_and_they_are_called_that(tmp_path: Path) -> None:
    whole, run = _on_host(
        study.range_row("default", 4, range="forward", wall_ns=8e6),
        study.range_row("default", 4, range=SOFTMAX, wall_ns=2e6),
        pipeline={"workloads": {"w": {"command": ["python", "train.py"]}}},
    )
    (workload,) = analyze(whole, run).workloads
    sheet = phase_sheets.on_host(workload, workload.points)
    assert (sheet.head, sheet.rows) == (
        ["case", "phase", "entered", "host us"],
        [["`default`", "forward", "4", "8000"], ["", "forward &gt; softmax", "4", "2000"]],
    )
    template = load.own_folder("templates") / "SUMMARY.md.j2"
    page = render(analyze(whole, run), whole, run, tmp_path, template).read_text()
    assert "## By phase, on the host\n\nTime on the host's clock inside each range" in page
    assert "(nsys). No kernel was recorded" in page and "\n## By phase\n" not in page


def test_phases_on_the_host_are_per_call_where_the_calls_are_counted() -> None:
    whole, run = _on_host(
        study.range_row("impl=a", 10, wall_ns=4e6),
        study.range_row("impl=a", 20, range="forward", wall_ns=1e6),
        study.range_row("impl=a", 10, "torch", range="forward", wall_ns=9e6),
    )
    (workload,) = analyze(whole, run).workloads
    assert workload.host_phases == (HostPhase("impl=a", "forward", "nsys", 2.0, 1e5, 0.25, per_call=True),)
    assert phase_sheets.on_host(workload, workload.points).head[2:] == ["entered/call", "host us/call", "% of the call"]


def test_nothing_is_told_of_the_host_where_kernels_were_seen() -> None:
    whole = study.tables(
        kernels=[study.kernel_row("impl=a", "gemm", 10, 1000.0, phase="forward")],
        ranges=[study.range_row("impl=a", 10), study.range_row("impl=a", 10, range="forward", wall_ns=5.0)],
    )
    assert analyze(whole, RUN).workloads[0].host_phases == ()
