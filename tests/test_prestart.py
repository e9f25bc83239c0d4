"""The process of the next job is started while a job runs, and nothing else changes by that."""

import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from jobs import make_job
from kill_server import processes_of
from program import ROOT, WITHOUT_TORCH, profpipe, rows

from profpipe.config import loader
from profpipe.errors import ConfigError
from profpipe.job import WAIT_VARIABLE, Case, ProgressListener, Tool
from profpipe.runner import process, session
from profpipe.runner.prestart import Prestart, Start, finish, has_spare_cores
from profpipe.runner.request import RunRequest

WORKLOAD = """
import os, time
from pathlib import Path

with open(os.environ["LOADED"], "a") as stream:
    stream.write("loaded ")

def others():
    '''The processes of this run that wait.'''
    found = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            content = entry.read_bytes()
        except OSError:
            continue
        if b"PROFPIPE_WAIT=1" in content and b"PROFPIPE_JOB=" + bytes(Path.cwd()) in content:
            found.append(int(entry.parent.name))
    return [pid for pid in found if pid != os.getpid()]

def build(params):
    DO
    return lambda: sum(range(100))
"""
PIPELINE = """
version: 1
name: ahead
defaults: {warmup: 0, repeats: 2, env: {LOADED: LOADED_FILE}, timing: {order: sequential, budget_s: 1, most: 3}}
workloads:
  sums: {script: sums.py, profilers: [plain], isolate: true, matrix: {n: [1, 2, 3]}}
"""


EXHAUSTIVE_SIGTERM = pytest.param(signal.SIGTERM, marks=pytest.mark.exhaustive)


@pytest.fixture
def project(tmp_path):
    def make(name, do="pass"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "sums.py").write_text(WORKLOAD.replace("DO", do))
        text = PIPELINE.replace("LOADED_FILE", str(folder / "loaded.txt"))
        (folder / "pipeline.yaml").write_text(text)
        return folder

    return make


def run(folder, *words, cores="0", **options):
    profpipe(folder, "run", *words, PYTHONPATH=WITHOUT_TORCH, PROFPIPE_LEAST_CORES=cores, **options)
    return folder / "out" / "latest"


def started_ahead(run):
    """Of each job in their order: whether its process began before the process of the job before it had ended."""
    logs = [path.read_text().splitlines() for path in sorted((run / "raw").glob("*/*/**/job.jsonl"))]
    events = [[json.loads(line) for line in lines] for lines in logs]
    began = [next(e["began"] for e in own if e["event"] == "started") for own in events]
    ended = [next(e["at"] for e in own if e["event"] == "finished") for own in events]
    return [False, *(a < b for a, b in zip(began[1:], ended[:-1], strict=True))]


def cells(run, name):
    measured = {"run", "process", "seconds", "flags", "value", "ci_low", "ci_high", "n"}
    found = [{k: v for k, v in row.items() if k not in measured} for row in rows(run / f"{name}.parquet")]
    return sorted(found, key=str)


WAIT_FOR_OTHERS = "[time.sleep(0.1) for _ in range(100) if params['n'] < 3 and not others()]"


def test_the_next_process_waits_while_a_job_runs_and_the_tables_are_the_same(project):
    ahead, usual = run(project("ahead", WAIT_FOR_OTHERS)), run(project("usual"), cores="1000000")
    assert (started_ahead(ahead), started_ahead(usual)) == ([False, True, True], [False, False, False])
    for name in ("cases", "metrics", "kernels", "ranges"):
        assert cells(ahead, name) == cells(usual, name)
    assert (ahead / "../../loaded.txt").resolve().read_text() == "loaded " * 3
    logs = [sorted((found / "raw").glob("**/log.txt")) for found in (ahead, usual)]
    assert [[len(path.read_text().splitlines()) for path in own] for own in logs] == [[1, 1, 1]] * 2


@pytest.mark.slow
def test_nothing_starts_beside_a_process_that_measures_without_a_profiler(project):
    found = run(project("four", WAIT_FOR_OTHERS.replace("< 3", "in (1, 2)")), "--set", "n=1,2,3,4")
    # The fourth would have started beside the second, which had waited itself.
    assert started_ahead(found) == [False, True, True, False]


@pytest.mark.slow
def test_what_a_process_prints_after_it_has_waited_is_in_its_log(project):
    found = run(project("printing", f"{WAIT_FOR_OTHERS}; print('case', params['n'], flush=True); os.system('echo x')"))
    assert [path.read_text().splitlines()[1:] for path in sorted(found.glob("raw/**/log.txt"))] == [
        [f"case {n}", "x"] for n in (1, 2, 3)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, EXHAUSTIVE_SIGTERM])
def test_a_process_that_died_while_it_waits_costs_no_case(project, number):
    found = run(
        project("killed", f"{WAIT_FOR_OTHERS}; [os.kill(pid, {int(number)}) for pid in others()]; time.sleep(0.3)")
    )
    assert [row["status"] for row in rows(found / "cases.parquet")] == ["ok"] * 3
    assert started_ahead(found) == [False] * 3


@pytest.mark.slow
def test_on_several_places_each_has_its_own(project):
    words = "--set", "parallel=true", "--set", "gpus=2"
    ahead, usual = (run(project(name), *words, cores=cores) for name, cores in (("a", "0"), ("b", "99999")))
    assert cells(ahead, "cases") == cells(usual, "cases")
    assert sorted(json.loads((ahead / "raw" / "slots.json").read_text())["slots"]) == ["place 1", "place 2"]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, EXHAUSTIVE_SIGTERM, signal.SIGKILL])
def test_the_process_that_waits_ends_with_the_runner(project, number):
    folder = project("interrupted", f"{WAIT_FOR_OTHERS}; open('ready', 'w').close(); time.sleep(30)")
    env = {**os.environ, "PYTHONPATH": WITHOUT_TORCH, "PROFPIPE_LEAST_CORES": "0"}
    runner = subprocess.Popen([sys.executable, "-m", "profpipe", "run"], cwd=folder, env=env, stdout=subprocess.DEVNULL)
    wait_until((folder / "ready").exists)
    assert len(processes_of(folder)) == 3
    runner.send_signal(number)
    runner.wait(60)
    wait_until(lambda: not processes_of(folder))


def wait_until(is_true):
    deadline = time.monotonic() + 30
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def job(tmp_path):
    """A job whose program prints what it is sent."""
    words = "import sys; print(sys.stdin.readline().strip(), flush=True)"
    (tmp_path / "log.txt").touch()
    start = Start((sys.executable, "-c", words), {"A": "1"}, tmp_path)
    tool = Tool("plain", "")
    made = make_job("sums", "plain", (Case("n=1", {}),), tmp_path, tool, sys.executable, tmp_path, script=ROOT / "a.py")
    return made, start


def test_a_process_is_used_only_for_the_same_command_environment_and_folder(job, tmp_path):
    job, start = job
    others = [
        Start((*start.argv, "more"), start.env, start.cwd),
        Start(start.argv, {"A": "2"}, start.cwd),
        Start(start.argv, {}, start.cwd),
        Start(start.argv, start.env, Path("/")),
    ]
    for needed in (*others, start, Start(start.argv, {"A": "1", "CUDA_VISIBLE_DEVICES": "1"}, start.cwd)):
        with Prestart(1) as prestart:
            prestart.start([(job, start)], process.GRACE)
            child = prestart.take(job, needed, io.BytesIO())
            assert (child is None) == (needed in others)
            if child:
                assert child.wait(20) == 0 and child.end_remaining(process.GRACE) == 0
                # It has not opened the log, as one whose imports fail.
                log = io.BytesIO()
                finish(child, log)
                assert json.loads(log.getvalue()) == [str(tmp_path / "log.txt"), needed.env.get("CUDA_VISIBLE_DEVICES")]
        assert left_below(tmp_path) == []


def test_at_most_so_many_processes_wait_and_one_that_no_job_needs_ends(job, tmp_path):
    job, start = job
    with Prestart(0) as prestart:
        prestart.start([(job, start)], process.GRACE)
        assert left_below(tmp_path) == []
    with Prestart(1) as prestart:
        for _ in range(2):
            prestart.start([(job, start)], process.GRACE)
            assert len(left_below(tmp_path)) == 1
        prestart.start([], process.GRACE)
        assert left_below(tmp_path) == []


def test_no_line_of_a_process_that_writes_meanwhile_is_lost(tmp_path):
    words = "import sys; sys.stdin.readline(); [print(n, flush=True) for n in range(3000)]"
    with tempfile.TemporaryFile() as output:
        child = process.start([sys.executable, "-c", words], {}, output, tmp_path, waits=True)
        log = io.BytesIO()
        child.go_on("")
        while child.poll() is None:
            child.copy_output(log)
        child.copy_output(log)
        child.end_remaining(process.GRACE)
    assert list(map(int, log.getvalue().split())) == list(range(3000))


def test_a_number_of_cores_that_is_none_is_refused(monkeypatch):
    monkeypatch.setenv("PROFPIPE_LEAST_CORES", "many")
    with pytest.raises(ConfigError, match="PROFPIPE_LEAST_CORES: is 'many', which is no number of cores"):
        has_spare_cores()


def left_below(folder):
    """The processes that wait in ``folder``."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            is_one = f"{WAIT_VARIABLE}=1".encode() in (entry / "environ").read_bytes()
            if is_one and (entry / "cwd").readlink() == folder:
                found.append(entry.name)
        except OSError:
            continue
    return found


def test_the_job_that_runs_ends_when_the_outcome_of_the_one_before_cannot_be_stored(tmp_path, monkeypatch):
    path, pid = tmp_path / "pipeline.yaml", tmp_path / "pid"
    path.write_text(
        "version: 1\nname: two\ndefaults: {profilers: [plain]}\nworkloads:\n"
        "  first: {command: ['true'], hook: false}\n"
        f"  second: {{command: [sh, -c, 'echo $$ > {pid}; exec sleep 600'], hook: false}}\n"
    )

    def fail(*_):
        wait_until(lambda: pid.exists() and pid.read_text())
        raise OSError("no space left")

    monkeypatch.setattr(session.Session, "_overlaps", lambda *_: True)
    monkeypatch.setattr(session.Session, "_store", fail)
    run = session.create(RunRequest.create(loader.load_pipeline(path), path, tmp_path / "out"), ["profpipe", "run"])
    # While the error is kept, so are the frames that wait for outcomes.
    with pytest.raises(OSError, match="no space left") as caught:
        run.run_jobs(run.plan(), ProgressListener())
    assert caught.tb and not Path(f"/proc/{pid.read_text().strip()}").exists()
