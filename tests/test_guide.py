"""Which kernels ncu replays when it is guided by another profiler's capture."""

import re
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from profpipe import guide, kernels, tables
from profpipe.job import Case, Job, Missing, Tool
from profpipe.profilers import ncu
from profpipe.tables import KERNELS, Tables

DATA = Path(__file__).parent / "data" / "nsys-2025.3.1"

CASES = (Case("n=1", {"n": 1}), Case("n=2", {"n": 2}), Case("n=3", {"n": 3}))
JOB = Job(
    workload="w", profiler="ncu", cases=CASES, folder=Path("/o/raw/w/ncu"), tool=Tool("ncu", "2025.3.1", "ncu"),
    python="python", cwd=Path("/p"), script=Path("/w.py"),
    options={"ncu": {"kernels": "guided", "top": 2, "set": "basic", "sections": [], "exclude": "nccl"}},
)  # fmt: skip


def captured(**cases):
    """Tables in which nsys saw these kernels (name -> ns) in these cases; torch saw others."""
    rows = [
        {"workload": "w", "case": case.replace("_", "="), "profiler": profiler, "kind": "kernel", "kernel": name,
         "calls": 1, "total_ns": float(ns)}
        for case, seen in cases.items() for profiler, names in seen.items() for name, ns in names.items()
    ]  # fmt: skip
    return Tables(kernels=tables.frame(KERNELS, rows))


def test_the_largest_kernels_of_a_case_are_taken_from_nsys_before_torch():
    data = captured(n_1={"nsys": {"a": 1, "b": 9, "c": 5}, "torch": {"z": 99}})
    assert guide.top_kernels(data, JOB, CASES[0]) == ("b", "c")
    assert guide.top_kernels(captured(n_1={"torch": {"z": 99}}), JOB, CASES[0]) == ("z",)


def test_the_launches_of_one_kernel_in_several_phases_count_together():
    data = captured(n_1={"nsys": {"a": 6, "b": 5}})
    rows = data.kernels.to_dict("records")
    twice = Tables(kernels=tables.frame(KERNELS, [*rows, *rows[1:]]))
    assert guide.top_kernels(twice, JOB, CASES[0]) == ("b", "a")


def test_cases_that_share_no_kernel_share_a_process_and_others_do_not():
    data = captured(n_1={"nsys": {"a": 2}}, n_2={"nsys": {"b": 2}}, n_3={"nsys": {"a": 3, "c": 1}})
    made = guide.jobs([JOB], data)
    assert [[case.id for case in job.cases] for job in made] == [["n=1", "n=2"], ["n=3"]]
    assert len({job.folder for job in made}) == 2


def test_a_case_that_no_capture_knows_is_skipped_with_the_remedy():
    made = guide.jobs([JOB], captured(n_1={"nsys": {"a": 2}}))
    left = made[-1]
    assert isinstance(left.tool, Missing) and "nsys or torch" in left.tool.remedy
    assert [case.id for case in left.cases] == ["n=2", "n=3"]


def test_a_job_whose_tool_is_missing_stays_as_it_is():
    missing = replace(JOB, tool=Missing("ncu", "not here", "Install it."))
    assert guide.jobs([missing], Tables()) == [missing]


def test_only_a_guided_ncu_job_waits():
    assert guide.guided(JOB)
    assert not guide.guided(replace(JOB, options={"ncu": {"kernels": "all"}}))
    assert not guide.guided(replace(JOB, profiler="nsys"))


def filtered(pattern, exclude="nccl"):
    """(kernel names' base, what stands before, in and behind the pattern of --kernel-id)."""
    ncu_options = {**JOB.options["ncu"], "pattern": pattern, "exclude": exclude}
    argv = ncu.commands(replace(JOB, options={"ncu": ncu_options}))[0].argv
    kernel_id = argv[argv.index("--kernel-id") + 1]
    assert kernel_id.count(":") == 4, "ncu divides it by colons"
    return argv[argv.index("--kernel-name-base") + 1], kernel_id.split(":")


def test_a_guided_job_takes_the_first_launch_of_each_kernel_in_each_shape():
    (job, *_) = guide.jobs([JOB], captured(n_1={"nsys": {"at::add_kernel<int>": 2}}))
    base, (context, stream, operator, pattern, invocation) = filtered(job.options["ncu"]["pattern"])
    assert (base, context, stream, operator, invocation) == ("demangled", "", "", "regex", "1")
    assert re.search(pattern, "void at::add_kernel<int>(int)") and not re.search(pattern, "void at::sub_kernel(int)")
    assert not re.search(pattern, "ncclDevKernel at::add_kernel<int>(int)")


def test_shapes_do_not_stand_for_kernels():
    argv = ncu.commands(replace(JOB, options={"ncu": {**JOB.options["ncu"], "pattern": "a"}}))[0].argv
    assert "--filter-mode" not in argv, "per-launch-config takes one kernel of those launched in one shape"


def test_a_pattern_with_colons_finds_the_same_names_without_them():
    _, (*_, pattern, _) = filtered("(?:at::a_kernel)|b_kernel", exclude="nccl::|(?:nvshmem)")
    assert all(re.search(pattern, name) for name in ("void at::a_kernel(int)", "b_kernel"))
    assert not any(re.search(pattern, name) for name in ("nccl::b_kernel", "nvshmem_b_kernel", "at::c_kernel"))


@pytest.mark.parametrize("recording", sorted(DATA.glob("*/*.sqlite")), ids=lambda path: path.stem)
def test_a_pattern_finds_its_kernel_among_real_names_and_few_others(recording):
    rows = sqlite3.connect(recording).execute(
        "select distinct s.value from CUPTI_ACTIVITY_KIND_KERNEL k join StringIds s on s.id = k.demangledName"
    )
    names = [name for (name,) in rows]
    found = {name: [n for n in names if re.search(guide.pattern([kernels.normalise(name)]), n)] for name in names}
    assert all(name in hits for name, hits in found.items())
    assert sum(map(len, found.values())) <= 1.5 * len(names)


def test_several_kernels_are_one_pattern():
    pattern = guide.pattern(["at::a_kernel<float>", "b_kernel"])
    assert all(re.search(pattern, name) for name in ("void at::native::a_kernel<float>(int)", "b_kernel(int)"))
    assert not re.search(pattern, "ab_kernel")
