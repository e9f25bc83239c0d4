"""What the cases reach of the targets of a pipeline file. Numbers are made up."""

from pathlib import Path

import pytest
from report_study import ATTENTION, analyze, case_row, check_studies, kernel_row, metric_row, range_row, tables

from profpipe.config import loader
from profpipe.config.quantities import Grade
from profpipe.config.settings import Target
from profpipe.errors import ConfigError
from profpipe.report.sections import cases as section

ROOT = Path(__file__).resolve().parents[1]
SM = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
EVERY = {
    "tflops": {"good": 150, "poor": 100}, "gpu_busy": {"good": 90, "poor": 70}, "memory_bandwidth": {"good": 80},
    "sm": {"good": 60, "poor": 50}, "speedup": {"good": 3, "poor": 2},
}  # fmt: skip


def study(targets, flags=(), **ns):
    """Implementations with these times in ns of 1 GFLOP and 1 MB; ``plain`` is the baseline."""
    cases, kernels, ranges, metrics = [], [], [], []
    for impl, time in ns.items():
        case = f"impl={impl}"
        cases += [case_row(case, flags=list(flags)), case_row(case, "nsys"), case_row(case, "ncu")]
        kernels += [kernel_row(case, ATTENTION, 10, 8 * time), kernel_row(case, ATTENTION, 1, time, profiler="ncu")]
        ranges.append(range_row(case, 10, wall_ns=10 * time, busy_ns=8 * time))
        metrics += [metric_row(case, "time", time), metric_row(case, "flops", 1e9, "flop")]
        metrics += [metric_row(case, "bytes_moved", 1e6, "byte")]
        metrics.append(metric_row(case, SM, 55.0, "%", profiler="ncu", subject=ATTENTION))
    own = {"baseline": {"impl": "plain"}, "targets": targets}
    machine = {"peaks": {"flops": {"": 1e15}, "bytes_per_s": 1e12, "source": "a rule"}}
    run = {"pipeline": {"workloads": {"w": own}}, "machine": machine}
    (workload,) = analyze(tables(cases, kernels, ranges, metrics), run).workloads
    return workload


@pytest.mark.parametrize(
    ("value", "grade"), [(150, "good"), (149.9, "fair"), (100, "fair"), (99.9, "poor"), (0, "poor")]
)
def test_a_value_is_good_from_one_limit_on_and_poor_below_the_other(value, grade):
    assert Target(good=150, poor=100).judge(value) is Grade(grade)


def test_without_a_lower_limit_a_value_is_good_or_below_target():
    assert [Target(good=80).judge(value) for value in (80, 1)] == [Grade.GOOD, Grade.BELOW]


def test_each_quantity_of_a_case_is_judged_by_its_own_target():
    found = study(EVERY, plain=20_000, fast=5_000)
    fast, plain = ({case.id: case for case in found.cases}[id] for id in ("impl=fast", "impl=plain"))
    assert {name: reached for name, (reached, _) in fast.grades.items()} == pytest.approx(
        {"tflops": 200, "gpu_busy": 80, "memory_bandwidth": 20, "sm": 55, "speedup": 4}
    )
    alike = {"gpu_busy": "fair", "memory_bandwidth": "below target", "sm": "fair"}
    assert {name: grade for name, (_, grade) in fast.grades.items()} == {**alike, "tflops": "good", "speedup": "good"}
    # The baseline is no speed-up over itself.
    assert {name: grade for name, (_, grade) in plain.grades.items()} == {**alike, "tflops": "poor"}


def test_a_rate_above_the_peak_of_the_hardware_is_not_called_good():
    found = study({"tflops": {"good": 150}}, plain=20_000, wrong=500)
    wrong = next(case for case in found.cases if case.variant == "wrong")
    assert "above_peak" in wrong.flags and not wrong.grades


def test_the_section_of_targets_reads_as_in_the_golden_file(regenerate):
    run = {"pipeline": {"workloads": {"w": {"targets": EVERY}}}}
    (unmeasured,) = analyze(tables([case_row("impl=a")], metrics=[metric_row("impl=a", "time", 1e3)]), run).workloads
    workloads = {
        "The page counts the cases of each grade": study(EVERY, plain=20_000, slow=12_000, fast=5_000),
        "A target that nothing measured says what measures it": unmeasured, "Without targets": study({}, plain=1e3),
    }  # fmt: skip
    studies = [(name, section.targets(workload, workload)) for name, workload in workloads.items()]
    check_studies("targets.md", studies, regenerate)


PIPELINE = """
version: 1
defaults: {targets: {tflops: {good: 150, poor: 100}}}
workloads: {w: {command: [train], targets: TARGETS}}
"""


def load(tmp_path, targets):
    path = tmp_path / "pipeline.yaml"
    path.write_text(PIPELINE.replace("TARGETS", targets))
    return loader.load_pipeline(path).workloads["w"].targets


def test_a_workload_changes_single_targets_of_the_defaults(tmp_path):
    found = load(tmp_path, "{tflops: {good: 300}, speedup: {good: 3}}")
    assert (found.tflops.good, found.tflops.poor, found.speedup.good, found.sm) == (300, 100, 3, None)


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        ("{tflop: {good: 1}}", "unknown key 'tflop'. Did you mean 'tflops'?"),
        ("{sm: {poor: 1}}", "workloads.w.targets.sm.good: is missing."),
        ("{sm: {good: 120}}", "is in %, and 120 is more than 100"),
        ("{speedup: {good: 2, poor: 3}}", "calls values from 2 on good and values below 3 poor"),
    ],
)
def test_a_wrong_target_is_refused_with_its_place(tmp_path, targets, message):
    with pytest.raises(ConfigError) as refused:
        load(tmp_path, targets)
    assert message in str(refused.value)


def test_the_shipped_pipeline_has_the_published_targets_of_an_a100():
    found = loader.load_pipeline(ROOT / "pipelines" / "targets.yaml").workloads["attention"].targets
    assert (found.tflops.good, found.tflops.poor) == (150, 100)
    assert (found.gpu_busy.good, found.gpu_busy.poor) == (90, 70)
    assert found.memory_bandwidth.good == 80
    assert (found.speedup.good, found.speedup.poor) == (3, 2)
