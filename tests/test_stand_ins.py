"""The pipeline under profilers that need hardware which is not here: executables that leave files as the real ones do.

What is real: profpipe from the command line to SUMMARY.md, its processes, the harness and the parsers. What is not:
rocprof's files are made up in AMD's formats (fake_rocprof.py), and ncu's report is a recorded one.
"""

import os
import shlex
import shutil
import stat
import sys
from pathlib import Path

import forked
import pytest
from report_study import read_pages

from profpipe.results import store
from profpipe.results.manifest import ToolEntry

ROOT = Path(__file__).parents[1]
TESTS = Path(__file__).parent
REPORT = TESTS / "data" / "ncu-2025.3" / "sdpa_h200.ncu-rep"

#: Needs no torch, so that its process starts at once.
WORKLOAD = "PARAMS = {'n': 1}\n\ndef build(params):\n    return lambda: sum(range(params['n']))\n"
PIPELINE = """
version: 1
workloads:
  sums: {script: sums.py, matrix: {n: [1, 2]}, profilers: [PROFILER], warmup: 1, repeats: 3}
"""
COMMAND = "version: 1\nworkloads: {mine: {command: [sh, -c, 'echo ran > ran.txt'], profilers: [PROFILER]}}\n"


class Project:
    """A folder with a workload, and a folder on PATH for the stand-ins."""

    def __init__(self, folder):
        self.folder, self.programs = folder, folder / "bin"
        self.programs.mkdir()
        (folder / "sums.py").write_text(WORKLOAD)

    def install(self, name, script):
        path = self.programs / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path

    def profpipe(self, profiler, pipeline=PIPELINE):
        (self.folder / "pipeline.yaml").write_text(pipeline.replace("PROFILER", profiler))
        # Without torch, which no workload here needs and every harness would wait for.
        paths = {"PYTHONPATH": f"{ROOT}{os.pathsep}{TESTS / 'no_torch'}"}
        paths["PATH"] = f"{self.programs}{os.pathsep}{os.environ['PATH']}"
        return forked.run(self.folder, "run", env={**os.environ, **paths})

    def latest(self):
        return store.load((self.folder / "out" / "latest").resolve())

    def summary(self):
        return read_pages(self.folder / "out" / "latest")


@pytest.fixture
def project(tmp_path):
    return Project(tmp_path)


def install_rocprof(project, variant):
    program = shlex.join([sys.executable, str(TESTS / "fake_rocprof.py"), variant])
    project.install(variant, f'exec {program} "$@"')


def by_case(kernels):
    return {case: (int(rows["calls"].sum()), rows["total_ns"].sum()) for case, rows in kernels.groupby("case")}


@pytest.mark.slow
def test_rocprofv3_gives_each_case_its_kernels_by_the_call_that_launched_them(project):
    install_rocprof(project, "rocprofv3")
    done = project.profpipe("rocprof")
    assert done.returncode == 0, done.stderr
    data, record = project.latest()
    assert dict(zip(data.cases["case"], data.cases["status"], strict=True)) == {"n=1": "ok", "n=2": "ok"}
    assert by_case(data.kernels) == {"": (2, 2e3), "n=1": (3, 30e3), "n=2": (3, 30e3)}
    ranges = data.ranges.set_index(["case", "range"])
    assert ranges["instances"].to_dict() == ranges["kernels"].to_dict() == {("n=1", ""): 3, ("n=2", ""): 3}
    assert record.tools["rocprof"] == ToolEntry("1.0.0", "rocprofv3")
    (job,), (events, trace) = record.jobs, sorted(record.files, key=lambda file: file.format)
    assert job.argv[0][0] == "rocprofv3" and events.parser == "events"
    assert (trace.launches, trace.attributed_ns, trace.unattributed_ns) == (8, 60e3, 2e3)
    assert record.refused == () and "`scale_kernel<float>`" in project.summary()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variant", "source"),
    [("rocprofv2", "raw/sums/rocprof/results_capture.csv"), ("rocprof", "raw/sums/rocprof/capture.csv")],
)
def test_the_older_generations_count_each_launch_once_and_in_no_case(project, variant, source):
    install_rocprof(project, variant)
    done = project.profpipe("rocprof")
    assert done.returncode == 0, done.stderr
    data, record = project.latest()
    assert by_case(data.kernels) == {"": (8, 62e3)} and set(data.kernels["source"]) == {source}
    assert set(data.cases["status"]) == {"ok"} and record.tools["rocprof"].variant == variant


@pytest.mark.slow
def test_rocprof_that_ends_well_and_leaves_nothing_has_profiled_nothing(project):
    project.install("rocprofv3", 'while [ "$1" != -- ]; do shift; done; shift; exec "$@"')
    assert project.profpipe("rocprof").returncode == 1
    cases = project.latest()[0].cases
    assert set(cases["status"]) == {"failed"}
    assert cases["reason"].str.startswith("no profile: capture*_kernel_trace.csv was not made").all()


@pytest.mark.slow
def test_rocprof_v1_that_never_started_the_workload_is_skipped_with_the_remedy(project):
    project.install("rocprof", 'echo "WARNING: cannot find rocm_agent_enumerator"')
    done = project.profpipe("rocprof")
    assert done.returncode == 0, done.stderr
    cases = project.latest()[0].cases
    assert set(cases["status"]) == {"skipped"} and cases["reason"].str.contains("Complete the ROCm install").all()


#: Runs the command behind the report's name, then the test's ending with the report's path in $report.
NCU = """
[ "$1" = --version ] && { echo 'Version 2025.3.1.0 (build 36398880) (public-release)'; exit; }
while [ "$1" != -o ]; do shift; done
report=$2
shift 2
"$@"
code=$?
"""


def install_ncu(project, ending):
    project.install("ncu", NCU + ending)


def test_ncus_report_of_a_command_is_that_of_its_case(project):
    install_ncu(project, f"cp {shlex.quote(str(REPORT))} $report; exit $code")
    done = project.profpipe("ncu", COMMAND)
    assert done.returncode == 0, done.stderr
    data, record = project.latest()
    assert by_case(data.kernels) == {"default": (2, 1206976.0)}
    assert set(data.metrics["profiler"]) == {"ncu"} and set(data.metrics["case"]) == {"default"}
    # The other file says why the command has no steps.
    (file,) = (file for file in record.files if file.source.endswith(".ncu-rep"))
    assert (file.attributed_ns, file.unattributed_ns, file.device) == (1206976.0, 0.0, "NVIDIA H200")
    assert {"raw/mine/ncu/capture.ncu-rep", "raw/mine/ncu/log.txt"} <= set(record.private_files)
    out = project.folder / "out" / "latest"
    assert "flash_fwd_kernel" in (out / "ncu_memory_metrics.txt").read_text()
    assert (project.folder / "ran.txt").exists()


@pytest.mark.slow
def test_kernels_that_ncu_saw_in_no_range_are_shown_outside_every_case(project):
    install_ncu(project, f"cp {shlex.quote(str(REPORT))} $report; exit $code")
    done = project.profpipe("ncu")
    assert done.returncode == 0, done.stderr
    data, _ = project.latest()
    assert set(data.cases["status"]) == {"ok"} and by_case(data.kernels) == {"": (2, 1206976.0)}


def test_locked_counters_skip_ncu_with_the_remedy_and_the_run_ends_well(project):
    message = "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters"
    install_ncu(project, f"echo '{message} on the target device 0.'; exit 1")
    done = project.profpipe("ncu")
    assert done.returncode == 0, done.stderr
    cases = project.latest()[0].cases
    assert set(cases["status"]) == {"skipped"} and len(cases) == 1, "ncu counts the largest"
    assert cases["reason"].str.contains("NVreg_RestrictProfilingToAdminUsers=0").all()
    assert "NVreg_RestrictProfilingToAdminUsers=0" in project.summary()


@pytest.mark.slow
def test_ncu_that_profiled_no_kernel_has_failed_with_any_exit_code(project):
    install_ncu(project, "echo '==WARNING== No kernels were profiled.'; exit 0")
    assert project.profpipe("ncu").returncode == 1
    cases = project.latest()[0].cases
    assert set(cases["status"]) == {"failed"} and cases["reason"].str.contains("ncu profiled no kernel").all()


@pytest.mark.slow
def test_a_report_that_is_cut_is_refused_and_the_run_says_so(project):
    cut = project.folder / "cut.ncu-rep"
    shutil.copy(REPORT, cut)
    os.truncate(cut, 1000)
    install_ncu(project, f"cp {shlex.quote(str(cut))} $report; exit $code")
    assert project.profpipe("ncu").returncode == 1
    (refused,) = project.latest()[1].refused
    assert refused.source == "raw/sums/ncu/capture.ncu-rep" and refused.remedy
