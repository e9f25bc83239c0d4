"""The reason of a failure, from the output of the tools."""

from pathlib import Path

import pytest

from profpipe.job import Cause, Status
from profpipe.runner import failure_reasons

# nsys 2022.4.2, `-o` below a folder that does not exist; the exit code was 0.
ELSEWHERE = """hi
Generating '/tmp/nsys-report-f2ea.qdstrm'
\r[1/1] [0%                          ] nsys-report-ab8e.nsys-rep\r[1/1] [=========100%] nsys-report-ab8e.nsys-rep
Failed to create '/data/nodir/a.nsys-rep': No such file or directory.
Generated:
    /tmp/nsys-report-ab8e.nsys-rep
"""


@pytest.mark.parametrize(
    ("returncode", "text"),
    [
        (-11, "killed by SIGSEGV"),
        (139, "killed by SIGSEGV"),
        (137, "killed by SIGKILL"),
        (1, "exit code 1"),
        (255, "exit code 255"),
    ],
)
def test_a_signal_has_its_name_whether_popen_or_nsys_reports_it(returncode, text):
    assert failure_reasons.describe_returncode(returncode) == text


def test_a_report_in_another_place_is_named_with_the_message_of_nsys():
    assert failure_reasons.describe_missing_file(Path("/data/nodir/a.nsys-rep"), ELSEWHERE) == (
        "nsys wrote /tmp/nsys-report-ab8e.nsys-rep instead of a.nsys-rep: "
        "Failed to create '/data/nodir/a.nsys-rep': No such file or directory."
    )


def test_only_the_last_list_of_generated_files_counts():
    assert failure_reasons.generated_files("Generated:\n    /a.nsys-rep\nhi\nGenerated:\n") == []
    assert failure_reasons.generated_files("no such word") == []


def test_a_recording_that_was_not_converted_is_named(tmp_path):
    (tmp_path / "capture.qdstrm").write_bytes(b"x")
    assert failure_reasons.describe_missing_file(tmp_path / "capture.nsys-rep", "") == (
        "nsys left capture.qdstrm unconverted instead of capture.nsys-rep"
    )


def test_a_file_whose_name_the_tool_chooses_is_missing_like_any_other(tmp_path):
    described = failure_reasons.describe_missing_file(tmp_path / "capture.*.task*.sqlite", "")
    assert described.startswith("capture.*.task*.sqlite was not made")


def test_an_importer_that_failed_is_quoted(tmp_path):
    log = "Importer error status: An unknown error occurred.\nGenerated:\n    /tmp/a.qdstrm\n"
    assert failure_reasons.describe_missing_file(tmp_path / "a.nsys-rep", log) == (
        "nsys could not convert its recording to a.nsys-rep: Importer error status: An unknown error occurred."
    )


def test_without_an_error_the_last_line_is_quoted_without_colours_and_a_long_one_is_cut():
    assert failure_reasons.last_error_line("one\n\x1b[31mtwo\x1b[0m\n\n") == "two"
    assert failure_reasons.last_error_line("") == ""
    assert len(failure_reasons.last_error_line("error " * 1000)) == 240


# torch 2.13: its second process ended itself with exit code 3, without a word.
SILENT = """\

*****************************************
Setting OMP_NUM_THREADS environment variable for each process to be 1 in default, to avoid your system being \
overloaded, please further tune the variable for optimal performance in your application as needed.\x20
*****************************************
W1122 12:37:32.842000 29145 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 29161 closing \
signal SIGTERM
E1122 12:37:32.844000 29145 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 3) local_rank: 1
Root Cause (first observed failure):
[0]:
  rank      : 1 (local_rank: 1)
  exitcode  : 3 (pid: 29162)
"""


# torch 2.11 with NCCL, two H200: one rank met an illegal address. Shortened in the middle only.
ILLEGAL_ADDRESS = """\
[rank0]:[E1120 19:26:26.110587379 ProcessGroupNCCL.cpp:2119] [PG ID 0 PG GUID 0(default_pg) Rank 0] Process group \
watchdog thread terminated with exception: CUDA error: an illegal memory access was encountered
Search for `cudaErrorIllegalAddress' in https://docs.nvidia.com/cuda for more information.
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.

Exception raised from query at /pytorch/c10/cuda/CUDAEvent.h:111 (most recent call first):
frame #0: c10::Error::Error(c10::SourceLocation, std::__cxx11::basic_string<char>) + 0x9d (0x7fa3d6b7305d in libc10.so)

terminate called after throwing an instance of 'c10::DistBackendError'
  what():  [PG ID 0 PG GUID 0(default_pg) Rank 0] Process group watchdog thread terminated with exception: CUDA error: \
an illegal memory access was encountered
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.

Exception raised from query at /pytorch/c10/cuda/CUDAEvent.h:111 (most recent call first):
frame #0: c10::Error::Error(c10::SourceLocation, std::__cxx11::basic_string<char>) + 0x9d (0x7fa3d6b7305d in libc10.so)

E1120 19:26:26.874000 1380 torch/distributed/elastic/multiprocessing/api.py:986] failed (exitcode: -6) local_rank: 0
Root Cause (first observed failure):
[0]:
  rank      : 0 (local_rank: 0)
  exitcode  : -6 (pid: 1422)
"""


STEPS = "step 1\nCUDA error: an illegal memory access was encountered\nstep 2\n[1/1] [==100%] a.nsys-rep\n"
KINETO = "warming up\nUSDT:2026-11-20 11:19:06 32265:32265 SyncActivityProfilerHandler.cpp:59] profiler_stop\n"


@pytest.mark.parametrize(
    ("returncode", "log", "reason"),
    [
        (1, STEPS, "exit code 1: CUDA error: an illegal memory access was encountered"),
        # The log lines of Kineto, the advice of torchrun and the frames below a CUDA error are left out.
        (-11, KINETO, "killed by SIGSEGV: warming up"),
        (1, SILENT, "rank 1 ended with exit code 3"),
        (1, SILENT.replace("W1122", "step 7\nW1122"), "rank 1 ended with exit code 3: step 7"),
        (1, ILLEGAL_ADDRESS, "rank 0 was killed by SIGABRT: CUDA error: an illegal memory access was encountered"),
    ],
)
def test_the_last_line_with_an_error_is_quoted(returncode, log, reason):
    assert failure_reasons.describe_exit(returncode, log) == reason


# --- the OOM killer; the kernel's files are invented, because no test may fill a host --------------------------------


def kernel(root, files):
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


V2 = {"proc/self/cgroup": "0::/user/job7\n", "sys/fs/cgroup/user/job7/memory.events": "low 0\noom 3\noom_kill 2\n"}
V1 = {
    "proc/self/cgroup": "5:cpu,cpuacct:/x\n4:memory:/job7\n0::/\n",
    "sys/fs/cgroup/memory/job7/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
}
WHOLE = {"proc/vmstat": "pgfault 99\noom_kill 2\n"}


@pytest.mark.parametrize("files", [V2, V1, WHOLE], ids=["cgroup v2", "cgroup v1", "whole machine"])
def test_a_sigkill_while_the_kernels_count_rose_is_out_of_memory(tmp_path, files):
    root = kernel(tmp_path, files)
    assert failure_reasons.count_kills(root) == 2
    for returncode in (-9, 137):
        killed = failure_reasons.explain_sigkill(returncode, 1, root)
        assert killed and (killed.status, killed.cause) == (Status.OOM, Cause.HOST_MEMORY)


@pytest.mark.parametrize(("before", "files"), [(2, WHOLE), (None, {})])
def test_any_other_sigkill_is_a_crash_that_may_have_been_out_of_memory(tmp_path, before, files):
    killed = failure_reasons.explain_sigkill(-9, before, kernel(tmp_path, files))
    assert killed and (killed.status, killed.cause) == (Status.CRASHED, Cause.SIGKILL)
    assert killed.reason == "killed by SIGKILL, perhaps out of host memory"


@pytest.mark.parametrize("returncode", [0, 1, -11, 139, None])
def test_any_other_end_is_not_explained(tmp_path, returncode):
    assert failure_reasons.explain_sigkill(returncode, 0, kernel(tmp_path, WHOLE)) is None
