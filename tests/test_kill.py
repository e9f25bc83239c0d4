"""A runner that is killed, at any point of its life: nothing that was finished is lost, and nothing is repeated."""

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pandas as pd
import pytest
from kill_server import processes_of

from profpipe.results import database, folders, schema, store
from profpipe.results.manifest import Manifest

ROOT = Path(__file__).resolve().parents[1]

pytestmark = pytest.mark.slow

WORKLOAD = """
PARAMS = {"n": 1}

def build(params):
    return lambda: sum(range(10 * params["n"]))
"""
PIPELINE = """
version: 1
name: small
defaults: {warmup: 0, repeats: 3, timeout_s: 60, timing: {order: sequential, budget_s: 30, most: 3}}
workloads:
  sums:
    script: sums.py
    profilers: [plain, nsys]
    matrix: {n: [1, 2, 3]}
"""

CASES = ["n=1", "n=2", "n=3"]
#: Points of time, and steps of the runner: it writes, renames, links or starts something. Many times are spent waiting
#: for a process, while most steps are in the short moments between.
TIMES, STEPS = 13, 37


class Server:
    """``kill_server.py``, and projects to run in."""

    def __init__(self, below):
        path = os.pathsep.join(map(str, (ROOT, ROOT / "tests", ROOT / "tests" / "no_torch")))
        self._below, self._count = below, 0
        self._process = subprocess.Popen(
            [sys.executable, str(ROOT / "tests" / "kill_server.py")],
            env={**os.environ, "PYTHONPATH": path, "PROFPIPE_TEST": "1", "PROFPIPE_LEAST_CORES": "0"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def project(self, pipeline=PIPELINE):
        self._count += 1
        folder = self._below / str(self._count)
        folder.mkdir()
        (folder / "sums.py").write_text(WORKLOAD)
        (folder / "pipeline.yaml").write_text(pipeline)
        return folder

    def run(self, project, do, **kill):
        assert self._process.stdin and self._process.stdout
        print(json.dumps({"project": str(project), "do": do, **kill}), file=self._process.stdin, flush=True)
        return dict(json.loads(self._process.stdout.readline()))

    def stop(self):
        self._process.communicate()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("kill"))
    yield server
    server.stop()


@pytest.fixture(scope="module")
def undisturbed(server):
    """A run that is not killed: its length in seconds and steps, and its tables."""
    project = server.project()
    answer = server.run(project, "start")
    assert answer["status"] == 0, (project / "output.txt").read_text()
    return answer, store.load(project / "out" / "latest")[0]


def only_run(project):
    runs = [folder for folder, _ in folders.list_runs(project / "out")] if (project / "out").exists() else []
    assert len(runs) <= 1
    return runs[0] if runs else None


def events(run, profiler):
    path = run / "raw" / "sums" / profiler / "job.jsonl"
    found = []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue  # cut by the kill
    return found


def counted(run, profiler, event):
    return Counter(entry["case"] for entry in events(run, profiler) if entry["event"] == event)


def has_report(run):
    """Whether the runner knew, when it was killed, that the profiler had written its report."""
    return any(entry["event"] == "ended" for entry in events(run, "nsys"))


def comparable(data, table):
    """The rows without what differs between any two runs: times, process ids, and which part a file belongs to."""
    frame: pd.DataFrame = getattr(data, table.name).copy()
    measured = [
        c for c in frame if str(c) in ("run", "process", "seconds", "flags", "ci_low", "ci_high", "n", "wall_ns")
    ]
    frame = frame.drop(columns=measured)
    if "source" in frame:
        frame["source"] = frame["source"].str.replace(r"capture-\d+", "capture", regex=True)
    if "metric" in frame:
        varies = frame["unit"].isin(["ns", "%"]) | ((frame["metric"] == "iterations") & (frame["profiler"] == "plain"))
        frame["value"] = frame["value"].where(~varies)
    return frame.sort_values(list(frame.columns)).reset_index(drop=True)


def check_finished(project, expected):
    run = only_run(project)
    assert run is not None
    data, record = store.load(run)
    assert record.ended
    rows = sorted(zip(data.cases["profiler"], data.cases["case"], data.cases["status"], strict=True))
    assert rows == [(profiler, case, "ok") for profiler in ("nsys", "plain") for case in CASES]
    for table in schema.ALL:
        pd.testing.assert_frame_equal(comparable(data, table), comparable(expected, table))
        path = run / f"{table.name}.parquet"
        stored = len(pd.read_parquet(path)) if path.is_file() else 0
        assert stored == len(getattr(data, table.name)) and (stored or path.is_file() or table.is_new)
    assert (run / "SUMMARY.md").is_file()
    assert (project / "out" / "latest").resolve() == run
    assert [row["run"] for row in database.read_history(project / "out")[0]] == [run.name]
    assert [entry.folder for entry in record.jobs] == ["raw/sums/plain", "raw/sums/nsys"]
    assert len({entry.source for entry in record.files}) == len(record.files)
    assert processes_of(run) == []


def kill_and_resume(server, expected, kills):
    """Kills a run, and what resumes it, as often as ``kills`` has entries; returns where the run stood at first."""
    project, stood, finished = server.project(), "", False
    for kill in kills:
        run = only_run(project)
        server.run(project, "resume" if run else "start", **kill)
        run = only_run(project)
        finished = run is not None and bool(Manifest.load(run).ended)
        stood = stood or ("no folder" if run is None else where(run))
        if finished:
            break
        assert run is None or done_twice(run) == []
    run = only_run(project)
    reported = counted(run, "nsys", "case_started") if run and has_report(run) else None
    if not finished:
        answer = server.run(project, "resume" if run else "start")
        assert answer["status"] == 0, (project / "output.txt").read_text()
    check_finished(project, expected)
    run = only_run(project)
    assert run is not None and done_twice(run) == []
    assert reported in (None, counted(run, "nsys", "case_started")), "a case whose report was there ran again"
    shutil.rmtree(project)
    return stood


def done_twice(run):
    """Cases without a profiler that were begun again after they had ended."""
    ended: set[str] = set()
    again = []
    for event in events(run, "plain"):
        if event["event"] == "case_ended":
            ended.add(event["case"])
        elif event["event"] == "case_started" and event["case"] in ended:
            again.append(event["case"])
    return again


def where(run):
    jobs = [entry.profiler for entry in Manifest.load(run).jobs]
    if Manifest.load(run).ended:
        return "ended"
    return f"{'+'.join(jobs) or 'nothing'} stored"


@pytest.fixture(scope="module")
def stood():
    """Where the runs stood when they were killed, so far."""
    return Counter()


#: In so many tests, for none may take minutes on a busy machine. CI runs the first one.
PARTS, OF_CI = 20, 1


@pytest.mark.parametrize(
    "part", [part if part < OF_CI else pytest.param(part, marks=pytest.mark.exhaustive) for part in range(PARTS)]
)
def test_a_run_killed_at_any_point_is_resumed_without_loss_or_repetition(server, undisturbed, stood, part):
    answer, expected = undisturbed
    chance = random.Random(20261120)
    kills: list[dict[str, float | int]] = [{"kill_after_s": chance.uniform(0, answer["seconds"])} for _ in range(TIMES)]
    kills += [
        {"kill_at_step": step} for step in chance.sample(range(1, answer["steps"] + 1), min(STEPS, answer["steps"]))
    ]
    stood.update(kill_and_resume(server, expected, [kill]) for kill in kills[part::PARTS])


def test_the_kills_came_at_every_stage_of_a_run(stood):
    if sum(stood.values()) < TIMES + STEPS:
        pytest.skip("not all of the kills were asked for")
    assert sum(stood.values()) >= 50
    assert {"no folder", "nothing stored", "plain stored", "plain+nsys stored"} <= stood.keys(), stood


def test_a_run_that_is_killed_repeatedly_is_finished_in_the_end(server, undisturbed):
    answer, expected = undisturbed
    chance = random.Random(7)
    kill_and_resume(server, expected, [{"kill_at_step": chance.randint(5, answer["steps"] // 2)} for _ in range(3)])


def cases_by_event(run):
    """The case of each job whose log has an event, by event. Each job has one case."""
    found = {"case_ended": [], "ended": []}
    for path in run.glob("raw/**/job.jsonl") if run else ():
        lines = path.read_text().splitlines()
        for line in lines:
            with suppress(ValueError):  # cut by the kill
                found.setdefault(json.loads(line)["event"], []).extend(json.loads(lines[0])["cases"])
    return found


#: One process runs each case. Under plain, two processes wait while the first one runs. Under nsys, the files of a case
#: are read while the next case runs.
@pytest.mark.parametrize(
    ("profiler", "count"),
    [("plain", 4), *(pytest.param(name, 5, marks=pytest.mark.exhaustive) for name in ("plain", "nsys"))],
)
def test_a_run_whose_jobs_overlap_is_killed_without_loss_repetition_or_a_process_that_is_left(server, profiler, count):
    pipeline = PIPELINE.replace("profilers: [plain, nsys]", f"profilers: [{profiler}]\n    isolate: true")
    whole = server.project(pipeline)
    answer = server.run(whole, "start")
    assert answer["status"] == 0, (whole / "output.txt").read_text()
    expected, chance, overlapped, were_kept = store.load(only_run(whole))[0], random.Random(41), 0, 0
    kills = [{"kill_after_s": answer["seconds"] * (0.3 + 0.6 * chance.random())} for _ in range(count)]
    kills[0]["least_processes"] = 2  # on a busy machine no kill may come while two jobs overlap
    kills += [{"kill_at_step": step} for step in chance.sample(range(answer["steps"] // 2, answer["steps"]), count)]
    for kill in kills:
        project = server.project(pipeline)
        killed = server.run(project, "start", **kill)
        deadline = time.monotonic() + 10
        run = only_run(project)
        begun = cases_by_event(run)
        if profiler == "plain":  # one process measures, and a second one waits
            overlapped += killed["processes"] > 1
        elif run:  # one job runs, and the one before it is not stored
            overlapped += len([*run.glob("raw/sums/nsys/*/")]) > len(Manifest.load(run).jobs) + 1
        while processes_of(project):
            assert time.monotonic() < deadline, "a process is left"
            time.sleep(0.02)
        server.run(project, "resume" if run else "start")
        run = only_run(project)
        data, record = store.load(run)
        assert record.ended and len(record.jobs) == len(CASES)
        for table in schema.ALL:
            pd.testing.assert_frame_equal(comparable(data, table), comparable(expected, table))
        measured = Counter(cases_by_event(run)["case_ended"])
        assert sorted(measured) == CASES
        # A case under nsys whose report was not written is recorded again.
        kept = CASES if profiler == "plain" else begun["ended"]
        assert all(measured[case] == 1 for case in kept)
        were_kept += len(kept)
    assert overlapped, "no kill came while two jobs overlapped"
    assert were_kept, "no kill came after a job"
