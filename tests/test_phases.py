"""The work and the memory of phases, from the tables to the page.

The numbers are made up; no GPU ever gave them. golden/phases.md holds the sections.
"""

import report_study as study
from report_study import analyze, check_studies

from profpipe.report.document import Chart
from profpipe.report.sections import headline, phases

SCORES, SOFTMAX = "forward > attention scores", "forward > softmax"
MACHINE = {"peaks": {"flops": {"bf16": 1e15}, "bytes_per_s": 4e12, "source": "invented for a test"}}
RUN = {
    "machine": MACHINE,
    "jobs": [
        {"workload": "w", "profiler": "nsys", "folder": "raw/w/nsys", "cases": ["size=small", "size=large"]},
        {"workload": "w", "profiler": "plain", "folder": "raw/w/plain", "cases": ["size=small", "size=large"]},
    ],
}


def _case(name, softmax_ns, scale=1.0):
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


def _tables(*parts):
    return study.tables(**{key: [row for part in parts for row in part.get(key, ())] for key in parts[0]})


def _analysed(*parts):
    return analyze(_tables(*parts), RUN).workloads[0]


def _in_types():
    """One phase computes in two data types."""
    case = _case("size=small", softmax_ns=5000)
    parts = [study.metric_row("size=small", f"flops.{name}", 450e6, "flop", subject=SCORES) for name in ("int8", "fp8")]
    rates = {"flops": {"bf16": 1e15, "int8": 3e15, "fp8": 1.5e15}, "bytes_per_s": 4e12}
    data = _tables({**case, "metrics": [*case["metrics"], *parts]})
    return analyze(data, {"machine": {"peaks": rates}}).workloads[0]


def _by_layout():
    times = {("small", "rows"): 5000, ("large", "rows"): 4800, ("small", "columns"): 2200, ("large", "columns"): 2200}
    return _analysed(*(_case(f"size={size},layout={layout}", ns) for (size, layout), ns in times.items()))


MIB = 2.0**20


def _memory(name, passes, allocations):
    """A record: peaks by phase in MiB; allocations as (place, MiB, how many, how many of them held at the peak)."""
    rows = []
    for phase, peak in passes.items():
        numbers = {"allocated_at_start": 100 * MIB, "peak_allocated": peak * MIB}
        rows += [study.metric_row(name, metric, value, "byte", subject=phase) for metric, value in numbers.items()]
    for rank, (place, size, n, held) in enumerate(allocations, start=1):
        rows.append(study.metric_row(name, f"allocation:{rank}", size * MIB, "byte", subject=place, n=n))
        if held:
            rows.append(study.metric_row(name, f"held:{rank}", held * size * MIB, "byte", subject=place, n=held))
    kept = {"subject": f"snapshots/{name}/memory.pickle"}
    rows += [study.metric_row(name, "time", 50_000), study.metric_row(name, "kept", 3 * MIB, "byte", **kept)]
    rows.append(study.metric_row(name, "peak_allocated", 7, "byte"))
    return {"cases": [study.case_row(name)], "metrics": rows}


def _two_passes():
    softmax, plain = "forward > softmax", "plain, _lm_model.py:80"
    return _analysed(
        _memory("what=forward", {"forward": 160, softmax: 160}, [(plain, 16, 12, 2), (plain, 8, 1, 0)]),
        _memory("what=step", {"forward": 300, softmax: 280, "backward": 400, "optimizer": 380}, [(plain, 40, 2, 2)]),
    )


def _with_a_trend():
    step = _memory("what=step", {"forward": 300, "backward": 400}, [])
    points = {"forward": {2000: 120, 4000: 300}, "backward": {6000: 400, 8000: 100}}
    step["metrics"] += [
        study.metric_row("what=step", f"allocated_at:{at}", size * MIB, "byte", subject=phase)
        for phase, own in points.items()
        for at, size in own.items()
    ]
    return _analysed(_memory("what=forward", {"forward": 160}, []), step)


def _on_host(*rows, **run):
    return analyze(study.tables(ranges=list(rows)), {**RUN, **run}).workloads[0]


def _studies():
    small, large = _case("size=small", 5000), _case("size=large", 3000, scale=8)
    # The ranges nested in a phase count, and an iteration is a tenth of the whole.
    explained = _analysed(small, large)
    yield (
        "A memory-bound softmax explains itself in one sentence",
        phases.phases(explained),
        phases.phase_work(explained),
    )
    yield "A phase is compared with the peaks of the data types that it computes in", phases.phase_work(_in_types())
    slow = _analysed(_case("size=small", softmax_ns=500_000))
    yield "A phase far below both rates has no known limit", phases.phase_work(slow)
    # 8 MB in 1.5 us are more than the memory gives.
    cached = _analysed(small, _case("size=large", 1500))
    yield "Bytes above the memory's rate came from a cache", phases.phase_work(cached)
    uncounted = analyze(_tables({**small, "ranges": []}), RUN).workloads[0]
    yield "Without a number of iterations nothing is made up", phases.phase_work(uncounted)
    yield "Nor without rates of the machine", phases.phase_work(analyze(_tables(small), {}).workloads[0])
    yield "What an axis sets apart has a sentence for each of its values", phases.phase_work(_by_layout())
    both = (small, _case("size=large", 40))
    yield "A sentence holds only what is known of a slow phase", phases.phase_work(_analysed(*both))
    yield "Less without rates", phases.phase_work(analyze(_tables(*both), {}).workloads[0])
    yield "None of a fast one", phases.phase_work(_analysed(_case("size=small", 40)))

    yield "Each phase has its peak memory, and the largest allocations their place", phases.memory(_two_passes())
    yield "The answer says where the memory is highest, and which line holds most of it", headline.answer(_two_passes())
    held = [("a.py:1", 40, 1, 1), ("b.py:2", 30, 9, 0), ("c.py:3", 4.5, 40, 36)]
    ordered = _analysed(_memory("what=forward", {"forward": 400}, held))
    yield "Allocations are ordered by their size at the peak, and others are left out", phases.memory(ordered)
    many = [(f"a.py:{line}", line, 1, 1) for line in range(1, 10)]
    yield "Of many six are listed", phases.memory(_analysed(_memory("what=forward", {"forward": 400}, many)))
    parts = [small, _memory("size=large", {"forward": 160}, [("plain, model.py:1", 16, 12, 2)])]
    (mixed,) = analyze(_tables(*[{"kernels": [], "ranges": [], **part} for part in parts]), RUN).workloads
    yield ("The sections are there only where something was recorded", phases.phases(mixed), phases.phase_work(mixed),
           phases.memory(mixed))  # fmt: skip
    (recorded,) = analyze(*study.recorded()).workloads
    yield ("Nothing was", phases.phase_work(recorded), phases.memory(recorded), phases.host_phases(recorded))

    command = _on_host(
        study.range_row("default", 4, range="forward", wall_ns=8e6),
        study.range_row("default", 4, range=SOFTMAX, wall_ns=2e6),
        pipeline={"workloads": {"w": {"command": ["python", "train.py"]}}},
    )
    yield (
        "A command without a GPU has its phases by the host's clock",
        phases.phases(command),
        phases.host_phases(command),
    )
    counted = _on_host(
        study.range_row("impl=a", 10, wall_ns=4e6),
        study.range_row("impl=a", 20, range="forward", wall_ns=1e6),
        study.range_row("impl=a", 10, "torch", range="forward", wall_ns=9e6),
    )
    yield "Phases on the host are per call where the calls are counted", phases.host_phases(counted)
    kernels = study.tables(
        kernels=[study.kernel_row("impl=a", "gemm", 10, 1000.0, phase="forward")],
        ranges=[study.range_row("impl=a", 10), study.range_row("impl=a", 10, range="forward", wall_ns=5.0)],
    )
    yield "Cases with kernels have no host phases", phases.host_phases(analyze(kernels, RUN).workloads[0])


def test_the_sections_of_phases_and_memory_read_as_in_the_golden_file(regenerate):
    check_studies("phases.md", _studies(), regenerate)


def test_the_work_of_a_phase_is_not_taken_for_that_of_the_case():
    (point,) = _analysed(_case("size=small", softmax_ns=5000)).cases
    assert point.values["flops"] == 1e9 and "bytes_moved" not in point.values
    assert point.tflops == 1e9 / 50e-6 / 1e12


def test_the_trend_of_the_highest_case_is_a_chart_with_a_line_for_each_phase():
    (chart,) = (block for block in phases.memory(_with_a_trend()).blocks if isinstance(block, Chart))
    assert (chart.subtitle, len(chart.panels)) == ("step", 1)
    drawn = {series.name: [(mark.x, mark.y / MIB) for mark in series.marks] for series in chart.series}
    assert drawn == {"forward": [(2, 120), (4, 300)], "backward": [(6, 400), (8, 100)]}
    assert not [block for block in phases.memory(_two_passes()).blocks if isinstance(block, Chart)]
