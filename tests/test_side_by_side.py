"""Jobs side by side on the slots of one machine: real processes, on places of a machine without a visible GPU."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import forked
import pytest
from fake_profiler import Notes, fake_profiler, job_of
from jobs import change
from program import ROOT

from profpipe.config.loader import load_pipeline
from profpipe.errors import ConfigError, Interrupted
from profpipe.job import Job
from profpipe.results.manifest import Manifest
from profpipe.runner import slots
from profpipe.runner.process import GracePeriods
from profpipe.runner.slots import Slots

HURRIED = GracePeriods(interrupt_s=1.0, terminate_s=0.5, linger_s=0.3)
TWO = {"GPU 4": "4", "GPU 7": "7"}
#: Writes when it ran, and where.
SPAN = """
began = time.monotonic()
time.sleep({seconds})
span = [began, time.monotonic(), os.environ.get("CUDA_VISIBLE_DEVICES")]
(folder / "span.json").write_text(json.dumps(span))
"""


def job(below: Path, name: str, group: str, do: str = SPAN.format(seconds=0.3), **fields: object) -> Job:
    return job_of(below, do, folder=below / "raw" / "attention" / name, group=group, **fields)


def carry_out(jobs, places, below):
    profiler = {"fake": fake_profiler(below)}
    return {one.job.folder.name: one for one in slots.run(jobs, profiler, Notes(), HURRIED, slots=places)}


def span_of(outcome):
    return tuple(json.loads((outcome.job.folder / "span.json").read_text()))


@pytest.mark.slow
def test_a_group_stays_on_one_gpu_and_two_groups_run_at_the_same_time(tmp_path):
    names = [f"{group}{number}" for number in range(2) for group in "abc"]
    # Nothing runs beside a job without a group, and the order of the jobs stays.
    jobs = [job(tmp_path, name, name[0]) for name in names] + [job(tmp_path, "solo", ""), job(tmp_path, "d0", "d")]
    places = Slots(TWO, {"c": 1}, tmp_path / "raw" / "slots.json")
    ended = carry_out(jobs, places, tmp_path)
    spans = {name: span_of(outcome) for name, outcome in ended.items()}
    gpus = {group: {spans[name][2] for name in spans if name[0] == group} for group in "abcd"}
    assert all(len(own) == 1 for own in gpus.values()) and gpus["a"] != gpus["b"] and gpus["c"] == {"7"}
    assert {name: outcome.job.launch.slot for name, outcome in ended.items()} == {
        name: f"GPU {span[2]}" if name != "solo" else "" for name, span in spans.items()
    }
    together = Counter(
        sum(begin < end_of and begin_of < end for begin_of, end_of, _ in spans.values()) - 1
        for begin, end, _ in spans.values()
    )
    assert together[0] >= 1 and sum(count for others, count in together.items() if others) >= 4
    begin, end, _ = spans["solo"]
    assert all(other[1] <= begin for name, other in spans.items() if name not in ("solo", "d0"))
    assert spans["d0"][0] >= end
    assert slots.load(tmp_path, TWO).assigned == places.assigned
    with pytest.raises(ConfigError, match="was started on GPU 4, GPU 7, and now has GPU 0, GPU 1"):
        slots.load(tmp_path, {"GPU 0": "0", "GPU 1": "1"})


@pytest.mark.slow
def test_a_time_limit_ends_the_processes_of_its_own_job_only(tmp_path):
    child = "stubborn_child(own_session=True); stubborn_child(own_session=False)\n"
    # The limit begins with the case, and not with the start of Python.
    late = job(tmp_path, "late", "a", child + "time.sleep(600)", options={"case_timeout_s": 2.0})
    # The child of this job outlives the end of the other one, which would end it if it took the child for its own.
    well = job(tmp_path, "well", "b", child + SPAN.format(seconds=5.0))
    ended = carry_out([late, well], Slots(TWO), tmp_path)
    assert (ended["late"].status, ended["well"].status) == ("timeout", "ok")
    assert span_of(ended["well"])[1] - span_of(ended["well"])[0] >= 5.0
    for outcome in ended.values():
        pids = (outcome.job.folder / "pids").read_text().split()
        assert len(pids) == 2 and not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_an_interrupt_ends_all_jobs_and_what_they_measured_is_kept(tmp_path):
    jobs = [job(tmp_path, name, name, "time.sleep(600)") for name in "abc"]
    outcomes = slots.run(jobs, {"fake": fake_profiler(tmp_path)}, Notes(), HURRIED, slots=Slots(TWO))

    def interrupt():
        while not all((one.folder / "job.jsonl").exists() for one in jobs[:2]):
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    assert [next(outcomes).interrupted for _ in range(2)] == [True, True]
    with pytest.raises(Interrupted, match=r"Interrupted in job 1 and 2 of 3\."):
        next(outcomes)
    assert not jobs[2].folder.exists()


def test_jobs_end_at_once_where_the_caller_goes_away_or_a_job_cannot_be_carried_out(tmp_path):
    jobs = [job(tmp_path, "a", "a", "pass"), job(tmp_path, "b", "b", "time.sleep(600)")]
    outcomes = slots.run(jobs, {"fake": fake_profiler(tmp_path)}, Notes(), HURRIED, slots=Slots(TWO))
    assert next(outcomes).job.folder.name == "a"
    began = time.monotonic()
    outcomes.close()
    assert time.monotonic() - began < 10
    (tmp_path / "file").touch()
    jobs = [change(jobs[1], folder=tmp_path / "b2"), change(jobs[0], folder=tmp_path / "file" / "a")]
    with pytest.raises(NotADirectoryError):
        list(slots.run(jobs, {"fake": fake_profiler(tmp_path)}, Notes(), HURRIED, slots=Slots(TWO)))


# --- which GPUs ------------------------------------------------------------------------------------------------------

GPUS = [{"name": "H200", "uuid": f"GPU-{number}"} for number in range(4)]


def test_the_gpus_are_the_first_visible_ones():
    assert slots.find(2, GPUS, {}) == {"GPU 0": "0", "GPU 1": "1"}
    by_bus = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    # A GPU that is listed by its number and by its UUID is one slot.
    assert slots.find(2, GPUS, {"CUDA_VISIBLE_DEVICES": "3, GPU-3,03,GPU-1,0", **by_bus}) == {
        "GPU 3": "3",
        "GPU GPU-1": "GPU-1",
    }
    with pytest.raises(ConfigError, match="lists GPUs by number and by UUID, and one GPU may be listed twice"):
        slots.find(2, GPUS, {"CUDA_VISIBLE_DEVICES": "3,GPU-1"})
    # Entries that no slot uses do not matter.
    assert slots.find(2, GPUS, {"CUDA_VISIBLE_DEVICES": "0,1,MIG-a"}) == {"GPU 0": "0", "GPU 1": "1"}
    with pytest.raises(ConfigError, match="asks for 2 GPUs, and 1 of this machine is visible"):
        slots.find(2, GPUS[:1], {"CUDA_VISIBLE_DEVICES": "0,GPU-0"})
    # Without a GPU the number is that of the processes side by side; GPUs that the user hides stay hidden.
    assert slots.find(2, [], {}) == {"place 1": "0", "place 2": "1"}
    assert slots.find(2, GPUS, {"CUDA_VISIBLE_DEVICES": ""}) == {"place 1": None, "place 2": None}
    with pytest.raises(ConfigError, match="asks for 2 GPUs, and 1 of this machine is visible"):
        slots.find(2, GPUS, {"CUDA_VISIBLE_DEVICES": "3"})
    # CUDA ignores entries from the first invalid one on, and a GPU that is listed twice is one slot.
    for listed in ("3,7,1", "3,3", "3,-1,1"):
        with pytest.raises(ConfigError, match="asks for 2 GPUs, and 1 of this machine is visible"):
            slots.find(2, GPUS, {"CUDA_VISIBLE_DEVICES": listed})


def test_all_gpus_are_those_that_are_visible(tmp_path):
    assert [slots.count_visible(GPUS, each) for each in ({}, {"CUDA_VISIBLE_DEVICES": "GPU-1,GPU-3,GPU-3"})] == [4, 2]
    with pytest.raises(ConfigError, match="asks for all GPUs, and none is visible"):
        slots.count_visible(GPUS, {"CUDA_VISIBLE_DEVICES": ""})
    done = forked.run(tmp_path, "run", "--gpus", "all", env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
    assert done.returncode == 2 and "With a number, so many processes run side by side on the CPU." in done.stderr


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("script: loop", "none has it"),
        ("{script: loop, parallel: true, env: {CUDA_VISIBLE_DEVICES: '1'}}", "chooses the GPU of each case"),
    ],
)
def test_gpus_without_a_parallel_workload_and_with_a_chosen_gpu_are_refused(tmp_path, settings, message):
    (tmp_path / "loop.py").write_text("def build(params): ...\n")
    settings = settings if settings.startswith("{") else f"{{{settings}}}"
    (tmp_path / "p.yaml").write_text(f"version: 1\ngpus: 2\nworkloads: {{w: {settings}}}\n")
    with pytest.raises(ConfigError, match=message):
        load_pipeline(tmp_path / "p.yaml")


def test_gpus_of_one_machine_are_not_for_a_cluster(tmp_path):
    done = forked.run(tmp_path, "run", "--gpus", "2", "--slurm")
    assert done.returncode == 2 and "Slurm runs the cases of an array side by side" in done.stderr


# --- a run -----------------------------------------------------------------------------------------------------------

PIPELINE = """
version: 1
name: sweep
gpus: 2
defaults: {profilers: [plain], parallel: true}
workloads:
  w:
    command: [sh, -c, "echo {impl}{n} $CUDA_VISIBLE_DEVICES >> ran.txt; sleep {n}; echo {impl}{n} >> ended.txt"]
    matrix: {impl: [a, b], n: [0.3, 0.4, 0.5]}
"""


@pytest.mark.slow
def test_a_killed_run_goes_on_and_compared_cases_stay_on_one_gpu(tmp_path):
    (tmp_path / "p.yaml").write_text(PIPELINE)
    env = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(tmp_path / "state")}
    env.pop("CUDA_VISIBLE_DEVICES", None)
    argv = [sys.executable, "-m", "profpipe", "run", "p.yaml"]
    with (tmp_path / "err.txt").open("wb") as err:
        runner = subprocess.Popen(argv, cwd=tmp_path, env=env, stdout=subprocess.DEVNULL, stderr=err)
        ended = tmp_path / "ended.txt"
        deadline = time.monotonic() + 60
        while not (ended.exists() and ended.read_text().count("\n") >= 2):
            assert runner.poll() is None and time.monotonic() < deadline, (tmp_path / "err.txt").read_text()
            time.sleep(0.02)
        runner.kill()
        runner.wait()
    done = forked.run(tmp_path, "resume", "--quiet", env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    folder = (tmp_path / "out" / "latest").resolve()
    run = Manifest.load(folder)
    assert {job.cases[0]: job.status for job in run.jobs} == {
        f"impl={i},n={n}": "ok" for i in "ab" for n in (0.3, 0.4, 0.5)
    }
    by_size = {n: {job.lane for job in run.jobs if job.cases[0].endswith(f"n={n}")} for n in (0.3, 0.4, 0.5)}
    assert all(len(own) == 1 for own in by_size.values()) and len(set.union(*by_size.values())) == 2
    page = (folder / "SUMMARY.md").read_text()
    assert "**shared_host** (every case)" in page and "A lead is not reported as a win." in page
    assert "beside other jobs" in (folder / "details.md").read_text()
    # What was killed or lost its outcome ran again; the rest did not.
    counts = Counter(line.split()[0] for line in (tmp_path / "ran.txt").read_text().splitlines())
    assert sum(counts.values()) <= 6 + 4
    # A reused job names the place that measured it, although n=0.3 would get the first one today. The other case of its
    # group, which ran nowhere else, runs again.
    document = json.loads((folder / "run.json").read_text())
    for job in document["jobs"]:
        job["lane"] = "place 2" if job["cases"] == ["impl=a,n=0.3"] else "place 1"
    (folder / "run.json").write_text(json.dumps(document))
    again = forked.run(tmp_path, "run", "p.yaml", "--reuse", "--set", "n=0.3,0.4", env=env)
    assert again.returncode == 0, again.stderr
    run = Manifest.load(tmp_path / "out" / "latest")
    reused = {job.cases[0]: (job.lane, bool(job.reused_from)) for job in run.jobs}
    assert reused == {
        "impl=a,n=0.3": ("place 2", True),
        "impl=b,n=0.3": ("place 2", False),
        "impl=a,n=0.4": ("place 1", True),
        "impl=b,n=0.4": ("place 1", True),
    }
    lines = again.stderr.splitlines()
    assert any(line.startswith("place 1 | [") for line in lines) and any(
        line.startswith("place 2 | [") for line in lines
    )
