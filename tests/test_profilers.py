"""The command lines that profpipe builds, and what it makes of the tools' messages."""

import os
import stat
from pathlib import Path
from types import SimpleNamespace

import pytest
from jobs import change, make_job

from profpipe import profilers
from profpipe.analysis.kernels import by_preference
from profpipe.config.models import read_recorded
from profpipe.errors import ConfigError
from profpipe.job import Case, Missing, Tool, Traits
from profpipe.profilers import ncu, nsys, plain, rocprof, torch
from profpipe.runner import plan, process
from profpipe.runner.request import ExaminedMachine, RunRequest

JOB = make_job(
    workload="attention",
    profiler="nsys",
    cases=(Case("n=1", {"n": 1}), Case("n=2", {"n": 2})),
    folder=Path("/o/raw/attention/nsys"),
    tool=Tool("nsys", "2025.3.1", "/usr/bin/nsys"),
    python="python",
    cwd=Path("/p"),
    script=Path("/p/workloads/attention.py"),
    on_gpu=True,
)
HARNESS = ("python", "-m", "profpipe.measure.harness", "/o/raw/attention/nsys/cases.json")


def silent(argv):
    return None


def test_every_profiler_meets_the_protocol():
    for name, module in profilers.ALL.items():
        assert name == module.NAME and isinstance(module.TRAITS, Traits)
        assert all(callable(getattr(module, verb)) for verb in ("find", "commands", "artifacts", "diagnose"))


def test_plain_and_torch_start_the_harness_alone():
    for module in (plain, torch):
        assert module.commands(JOB)[0].argv == HARNESS


def test_nsys_captures_the_harness_region_and_exports_with_the_same_nsys():
    profile, export = nsys.commands(JOB)
    assert profile.argv == (
        "/usr/bin/nsys", "profile", "-t", "cuda,nvtx", "-s", "none", "--cpuctxsw=none",
        "--capture-range=cudaProfilerApi", "--capture-range-end=stop", "--cuda-graph-trace=node", "-f", "true",
        "-o", "/o/raw/attention/nsys/capture.nsys-rep", *HARNESS,
    )  # fmt: skip
    assert export.argv[:4] == ("/usr/bin/nsys", "export", "-t", "sqlite")
    assert profile.makes == (Path("/o/raw/attention/nsys/capture.nsys-rep"),)
    assert export.makes == (Path("/o/raw/attention/nsys/capture.sqlite"),)


COMMAND = {"script": None, "command": ("./train", "--steps", "3")}


def argv_of(module, options=None, **changes):
    """The words of the first command, in one line between blanks."""
    tool = Tool("ncu", "2025.3.1", "ncu") if module is ncu else JOB.tool
    command = module.commands(change(JOB, tool=tool, options={"ncu": options or {}}, **changes))[0]
    return f" {' '.join(command.argv)} "


@pytest.mark.parametrize(
    ("module", "options", "changes", "held", "absent"),
    [
        # nsys 2022 and 2023 refuse a double dash.
        (nsys, {}, {}, [" --capture-range=cudaProfilerApi "], [" -- "]),
        # Without a GPU nothing would start a capture.
        (nsys, {}, {"on_gpu": False}, [" -t nvtx "], ["--capture-range"]),
        # A user's command is recorded from beginning to end.
        (nsys, {}, COMMAND, [" ./train --steps 3 "], ["--capture-range"]),
        (ncu, {}, COMMAND, [" ./train --steps 3 "], ["--profile-from-start"]),
        (
            ncu,
            {"set": "full", "sections": ["SpeedOfLight"], "kernels": "flash", "exclude": "nccl"},
            {},
            ["--clock-control none", "--nvtx", "--profile-from-start off", "--set full --section SpeedOfLight",
             "--kernel-name regex:^(?!.*(?:nccl)).*(?:flash)"],
            ["--import-source"],
        ),
        (ncu, {"source": True, "kernels": "all", "exclude": ""}, {}, ["--import-source yes"], ["--kernel-name"]),
    ],
)  # fmt: skip
def test_a_command_line_follows_the_job_and_the_pipeline(module, options, changes, held, absent):
    words = argv_of(module, options, **changes)
    assert all(text in words for text in held) and not any(text in words for text in absent)


def test_the_second_part_of_a_job_overwrites_nothing_of_the_first():
    first, second = nsys.commands(JOB), nsys.commands(change(JOB, part=2))
    assert not {path for c in first for path in c.makes} & {path for c in second for path in c.makes}
    assert second[0].argv[-1].endswith("cases-2.json")


@pytest.mark.parametrize(
    ("variant", "words"),
    [
        ("rocprofv3", ["--kernel-trace", "--marker-trace", "-f csv", "-- python"]),
        ("rocprofv2", ["--kernel-trace", "--roctx-trace", "--hip-trace"]),
        ("rocprof", ["--hip-trace", "--roctx-trace", "capture.csv"]),
    ],
)
def test_each_generation_of_rocprof_gets_the_flags_that_it_knows(variant, words):
    (command,) = rocprof.commands(change(JOB, tool=Tool("rocprof", "6", f"/opt/rocm/bin/{variant}", variant)))
    assert all(word in " ".join(command.argv) for word in words)
    assert ("--" in command.argv) == (variant == "rocprofv3")
    # The older ones see the ranges of the older library only.
    assert ("PROFPIPE_ROCTX" in command.env) == (variant != "rocprofv3")


def test_rocprof_output_is_found_below_the_folder_and_sums_give_way_to_single_launches(tmp_path):
    host = tmp_path / "node7"
    host.mkdir()
    for name in ("capture_kernel_trace.csv", "capture_kernel_stats.csv", "capture-2_kernel_trace.csv", "other.csv"):
        (host / name).write_text("x")
    found = rocprof.artifacts(change(JOB, folder=tmp_path))
    assert [path.name for path in found] == ["capture_kernel_trace.csv", "job.jsonl"]


def stand_in(folder, name, text):
    """An executable that prints what the real tool prints; the real one needs hardware that is not here."""
    path = folder / name
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.mark.parametrize(
    ("module", "printed", "found"),
    [
        (nsys, "NVIDIA Nsight Systems version 2023.4.4.54-234433681190v0", ("nsys", "2023.4.4", "")),
        (ncu, "NVIDIA (R) Nsight Compute Command Line Profiler\nVersion 2025.3.1.0 (build 3)", ("ncu", "2025.3.1", "")),
        # It comes before its predecessors.
        (rocprof, "1.0.0", ("rocprof", "1.0.0", "rocprofv3")),
    ],
)
def test_a_tool_is_found_with_its_version(tmp_path, monkeypatch, module, printed, found):
    for name in ("nsys", "ncu", "rocprof", "rocprofv2", "rocprofv3"):
        stand_in(tmp_path, name, printed)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    tool = module.find(process.ask)
    assert (tool.name, tool.version, tool.variant) == found and tool.path.startswith(str(tmp_path))


def test_a_tool_that_does_not_start_is_missing_with_its_last_words(tmp_path, monkeypatch):
    stand_in(tmp_path, "nsys", "error while loading shared libraries: libdw.so.1")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    found = nsys.find(process.ask)
    assert isinstance(found, Missing) and "libdw.so.1" in found.reason


def test_a_tool_that_is_absent_says_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    for module in (nsys, ncu):
        found = module.find(silent)
        assert isinstance(found, Missing) and "Install" in found.remedy


#: What nsys 2022.4.2 printed, as one of sixteen that were started at once on two cores.
LOST_AGENT = """/build/agent/work/323cb361ab84164c/QuadD/Common/ProcessWaiter/Src/POSIX/ProcessWaiterImpl.cpp(166): \
Throw in function QuadDCommon::ProcessWaiter::ProcessWaiterImpl::ProcessWaiterImpl(QuadDCommon::ProcessId, bool)
Dynamic exception type: boost::wrapexcept<QuadDCommon::SystemException>
std::exception::what: SystemException
[QuadDCommon::tag_errno_text*] = No such file or directory
[boost::errinfo_errno_*] = 2, "No such file or directory"
[boost::errinfo_api_function_*] = sem_open
"""


#: Output of the same nsys in a test run on two cores.
NO_ENDPOINT = """/build/agent/work/323cb361ab84164c/QuadD/Common/ProtobufComm/Client/ClientProxy.cpp(381): Throw in \
function QuadDProtobufComm::Endpoint QuadDProtobufComm::Client::ClientProxy::GetLocalEndpoint() const
Dynamic exception type: boost::wrapexcept<QuadDCommon::RuntimeException>
std::exception::what: RuntimeException
[QuadDCommon::tag_message*] = Local Endpoint is not available.
"""


#: All that the same nsys printed at other false starts.
CLOSED, RESET = "End of file\n", "Connection reset by peer\n"


@pytest.mark.parametrize("printed", [LOST_AGENT, NO_ENDPOINT, CLOSED, RESET])
def test_nsys_is_started_again_after_a_start_that_fails_by_chance(printed):
    profile, export = nsys.commands(JOB)
    assert profile.retry_pattern.search(printed) and not export.retry_pattern


def test_a_program_may_print_the_words_of_a_false_start():
    profile, _ = nsys.commands(JOB)
    assert not profile.retry_pattern.search("reading a.txt\nEnd of file\n")


LOST = ("failed", "lost its own agent")


@pytest.mark.parametrize(
    ("module", "log", "status", "word"),
    [
        (nsys, LOST_AGENT, *LOST),
        (nsys, NO_ENDPOINT, *LOST),
        (nsys, CLOSED, *LOST),
        (nsys, "Importer error status: Importation failed.", "failed", "convert"),
        (nsys, "Processing events...\nGenerated:\n", "failed", "capture range"),
        (ncu, "==ERROR== ERR_NVGPUCTRPERM - The user does not", "skipped", "NVreg_RestrictProfilingToAdminUsers=0"),
        (ncu, "==WARNING== No kernels were profiled.", "failed", "no kernel"),
        (rocprof, "rocm_agent_enumerator: not found", "skipped", "Complete the ROCm install"),
    ],
)
def test_a_tools_message_becomes_a_status_with_its_reason(module, log, status, word):
    found, reason = module.diagnose(log)
    assert found == status and word in reason


def test_an_unremarkable_log_explains_nothing():
    for module in profilers.ALL.values():
        assert module.diagnose("Generated:\n    /o/capture.nsys-rep\n") is None


def test_profilers_of_packages_come_after_those_that_record_every_launch():
    assert by_preference({"plain", "acme", "torch", "nsys"}) == ["nsys", "torch", "acme"]


def test_a_saved_pipeline_may_name_a_profiler_that_is_not_installed_here(tmp_path):
    document = {"version": 1, "workloads": {"w": {"command": ["./train"], "profilers": ["acme"]}}}
    assert read_recorded(document).workloads["w"].profilers == ["acme"]
    request = RunRequest.create(read_recorded(document), tmp_path / "pipeline.yaml", tmp_path)
    with pytest.raises(ConfigError, match="the profiler 'acme' is not installed here"):
        ExaminedMachine.examine(request)


@pytest.mark.parametrize(
    ("traits", "changes", "why"),
    [
        ({"needs_hook": True, "title": "Acme"}, {"hook": False}, "Acme works inside the process, and hook is false"),
        ({"one_process": "acme sees one process"}, {"nodes": 2}, "acme sees one process"),
        ({"no_span": ("acme sees all", "Wait.")}, {"capture": {"after_s": 1, "for_s": 1}}, "acme sees all"),
        ({"no_script": "acme starts no harness"}, {}, ""),
        ({}, {}, ""),
    ],
)
def test_what_a_profiler_cannot_do_is_read_from_its_traits(tmp_path, monkeypatch, traits, changes, why):
    monkeypatch.setitem(profilers.ALL, "acme", SimpleNamespace(TRAITS=Traits(**traits)))
    document = {"version": 1, "workloads": {"w": {"command": ["./train"], "profilers": ["acme"], **changes}}}
    tools, folders = {"acme": Tool("acme", "1")}, {"cwd": tmp_path, "out": tmp_path, "scripts": {}}
    (job,) = plan.plan(read_recorded(document), tools, **folders, python="python", allocated=2)
    assert (job.tool.reason if isinstance(job.tool, Missing) else "") == why
