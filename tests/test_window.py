"""When the hook starts and stops the recording of nsys and rocprofv3, in real processes.

No GPU is needed: the programs hold a stand-in for the CUDA runtime, and for AMD's library of ranges, which note each
call and the step in which it was made.
"""

import sys
from pathlib import Path

import hooked
import pytest
from jobs import change, make_job

from profpipe.job import Case, Tool
from profpipe.profilers import rocprof

CALLS = "calls.txt"

#: `train.py STEPS END`: END is what the process does after its steps.
PROGRAM = """
import ctypes, os, sys, time
import torch

def note(call):
    with open("calls.txt", "a") as file:
        file.write(f"{os.environ.get('LOCAL_RANK', 0)} {call} {step}\\n")

class Runtime:
    cudaProfilerStart = staticmethod(lambda: note("start"))
    cudaProfilerStop = staticmethod(lambda: note("stop"))

class Call:
    def __init__(self, name): self.name = name
    def __call__(self, *arguments): note(self.name); return 1

class Roctx:
    def __init__(self):
        for name in ("roctxProfilerResume", "roctxProfilerPause", "roctxRangeStartA", "roctxRangeStop"):
            setattr(self, name, Call(name))

real = ctypes.CDLL
ctypes.CDLL = lambda name, *more: Roctx() if str(name).startswith("librocprofiler-sdk-roctx") else real(name, *more)
steps, end = int(sys.argv[1]), sys.argv[2]
if end != "no GPU":
    torch.cuda.is_available, torch.cuda.synchronize, torch.cuda.cudart = lambda: True, lambda: None, Runtime
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
step = -1
if end == "late":
    while not os.path.exists("first"):
        time.sleep(0.05)
for step in range(steps):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    if end == "waits" and step == 8:
        # The second process has all its steps now.
        open("first", "w").close()
        while not os.path.exists("second"):
            time.sleep(0.05)
if end == "late":
    open("second", "w").close()
if end == "killed":
    os.kill(os.getpid(), 9)
if end == "crash":
    raise RuntimeError("lost")
"""


def calls(folder):
    """(rank, call, iteration of the program) in the order of the calls."""
    lines = (folder / CALLS).read_text(encoding="utf-8").splitlines()
    return [(rank, call, int(step)) for rank, call, step in (line.split() for line in lines)]


def run_pair(folder, first, second):
    """The calls of two processes of one machine, the arguments of which are ``STEPS END``. The second starts later."""
    (folder / "train.py").write_text(PROGRAM, encoding="utf-8")
    of_rank = [f"LOCAL_WORLD_SIZE=2 LOCAL_RANK={rank} {sys.executable} train.py {arguments}" for rank, arguments in
               enumerate((first, second))]  # fmt: skip
    joint = " & " if "waits" in first else "; "
    done = hooked.run(folder, "sh", "-c", f"{joint.join(of_rank)}; wait", profiler="nsys")
    assert list(done.folder.glob("*.jsonl")), done.output
    return calls(folder)


# Two steps are warm-up and four are measured: the program's iterations 0 to 6. The hook is called inside an iteration.


@pytest.mark.usefixtures("stub_torch")
def test_the_process_that_comes_last_ends_the_capture_of_all(tmp_path):
    found = run_pair(tmp_path, "12 waits", "9 late")
    assert [call for _, call, _ in found[:2]] == ["start", "start"]
    assert found[2] == ("1", "stop", 6)


@pytest.mark.usefixtures("stub_torch")
@pytest.mark.parametrize(
    "end",
    [
        pytest.param("ends", marks=pytest.mark.exhaustive),
        "crash",
        pytest.param("'no GPU'", marks=pytest.mark.exhaustive),
    ],
)
def test_a_process_that_ends_early_or_has_no_gpu_does_not_keep_the_capture_open(tmp_path, end):
    found = run_pair(tmp_path, f"5 {end}", "20 ends")
    assert found[-1] == ("1", "stop", 6)


@pytest.mark.usefixtures("stub_torch")
def test_a_process_that_is_killed_keeps_the_capture_open_for_as_many_steps_as_are_measured(tmp_path):
    found = run_pair(tmp_path, "5 killed", "40 ends")
    assert found[-1] == ("1", "stop", 6 + 4)


@pytest.mark.usefixtures("stub_torch")
def test_rocprofv3_records_the_chosen_steps_only(tmp_path):
    env = {"PROFPIPE_RECORD": "regions"}
    hooked.run_python(tmp_path, PROGRAM, "12", "ends", profiler="rocprof", env=env)
    found = [(call, step) for _, call, step in calls(tmp_path)]
    assert found[:2] == [("roctxProfilerResume", 2), ("roctxRangeStartA", 2)]
    assert found[-2:] == [("roctxRangeStop", 6), ("roctxProfilerPause", 6)]
    assert [call for call, _ in found].count("roctxRangeStartA") == 4


OPTIONS = (rocprof.PERIOD, rocprof.REGIONS)


def rocprof_commands(options, **settings):
    steps = {"warmup": 5, "measure": 20, "stop": False, "range": None, "forward": False}
    tool = Tool("rocprof", "1.0", "/opt/rocprofv3", "rocprofv3", options)
    job = make_job("w", "rocprof", (Case("default", {}),), Path("/job"), tool, "python", Path("/"))
    return rocprof.commands(change(job, command=("python", "t.py"), options={"hook": True, "steps": steps, **settings}))


def test_rocprofv3_waits_for_the_first_step_and_records_all_where_none_begins():
    (chosen,) = rocprof_commands(OPTIONS)
    assert "--selected-regions" in chosen.argv and chosen.env == {"PROFPIPE_RECORD": "regions"}
    assert chosen.fallback is not None and "--selected-regions" not in chosen.fallback.argv
    assert chosen.fallback.env == {"PROFPIPE_RECORD": "whole"}


@pytest.mark.parametrize(
    ("options", "settings"), [((), {}), (OPTIONS, {"hook": False})], ids=["older rocprofv3", "without hook"]
)
def test_rocprofv3_records_the_whole_process_otherwise(options, settings):
    (command,) = rocprof_commands(options, **settings)
    assert "--selected-regions" not in command.argv and command.fallback is None


def test_rocprofv3_records_a_span_of_time_and_the_runner_ends_the_program():
    (command,) = rocprof_commands(OPTIONS, capture={"after_s": 60.0, "for_s": 2.5})
    where = command.argv.index("--collection-period")
    assert command.argv[where : where + 4] == ("--collection-period", "60:2.5:1", "--collection-period-unit", "sec")
    assert command.ends_after_s is not None and command.ends_after_s > 62.5 and not command.is_ended_by_tool
