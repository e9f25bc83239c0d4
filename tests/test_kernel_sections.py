"""The sections on kernels and processes, from recorded and made-up findings."""

from report_study import (
    ATTENTION,
    COPY,
    analyze,
    every_table,
    example,
    kernel_row,
    metric_row,
    range_row,
    recorded,
    tables,
)

from profpipe.report.document import Code, Details, OnPage, plain
from profpipe.report.sections import kernels, step_times


def only(run):
    (workload,) = analyze(*run).workloads
    return workload


def table(section, id):
    return next(table for table in every_table(section) if table.id == id)


def many_kernels(**report):
    """A single case of twelve kernels."""
    rows = [kernel_row("n=1", f"kernel_{i}", 10, 1e6 * (20 - i)) for i in range(12)]
    return only(
        (tables(kernels=rows, ranges=[range_row("n=1", 10)]), {"pipeline": {"workloads": {"w": {}}, "report": report}})
    )


def test_a_lone_case_shows_its_first_kernels_on_the_short_page():
    first = table(kernels.kernels(many_kernels()), "top_kernels")
    assert first.placement is OnPage.SUMMARY and len(first.rows) == 10
    assert [row[0].text for row in first.rows[:2]] == [Code("kernel_0"), Code("kernel_1")]


def test_the_pipeline_file_sets_how_many_kernels_are_shown():
    assert len(table(kernels.kernels(many_kernels(top_kernels=2)), "top_kernels").rows) == 2
    assert len(table(kernels.kernels(many_kernels(top_kernels=11)), "top_kernels").rows) == 11


def test_each_case_of_the_largest_shape_shows_three_kernels_and_others_are_folded():
    section = kernels.kernels(only(recorded()))
    assert plain(section.title) == "Top kernels, seqlen 2048"
    first = table(section, "top_kernels")
    assert first.placement is OnPage.DETAILS and len(first.rows) == 3 * 7 - 2
    assert isinstance(section.blocks[1], Details) and plain(section.blocks[1].summary).startswith("The first 2 kernels")


def test_the_metrics_of_ncu_are_in_the_row_of_their_kernel():
    section = kernels.kernels(only(example("h200-attention")))
    first = table(section, "top_kernels")
    named = {column.id for column in first.columns}
    assert {"memory %", "SM %", "tensor %", "occupancy %"} <= named
    assert {t.id for t in every_table(section)} >= {"ncu_figures", "ncu_rules", "full_names"}


def test_each_process_has_a_row_below_its_case():
    kernel = [kernel_row("impl=a", name, 10, 1e6, process=pid) for pid in (1, 2) for name in (ATTENTION, COPY)]
    rows = [metric_row("impl=a", "time", 2e5), metric_row("impl=a", "time_own", 2e5)]
    rows += [metric_row("impl=a", "time_own", 1e5, subject="rank 1")]
    workload = only((tables(kernels=kernel, ranges=[range_row("impl=a", 10)], metrics=rows), {}))
    section = step_times.processes(workload)
    assert [(plain(r[0].text), r[1].text, r[2].value) for r in table(section, "processes").rows] == [
        ("a", "0", 2e5), ("", "1", 1e5),
    ]  # fmt: skip
    assert "Several processes ran each case together." in plain(section.summary)
    assert not step_times.processes(only(recorded()))
