"""The work of phases, from the tables to the page.

The numbers are made up; no GPU ever gave them. golden/phases.md holds the sections.
"""

import report_study as study
from report_study import analyze, check_studies

from profpipe.report.sections import phases

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

    (recorded,) = analyze(*study.recorded()).workloads
    yield "Nothing was", phases.phase_work(recorded), phases.host_phases(recorded)

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


def test_the_sections_of_phases_read_as_in_the_golden_file(regenerate):
    check_studies("phases.md", _studies(), regenerate)


def test_the_work_of_a_phase_is_not_taken_for_that_of_the_case():
    (point,) = _analysed(_case("size=small", softmax_ns=5000)).cases
    assert point.values["flops"] == 1e9 and "bytes_moved" not in point.values
    assert point.tflops == 1e9 / 50e-6 / 1e12
