"""The program as a user sees it: commands, files and exit codes, with real processes."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path

import forked
import pandas as pd
import pytest
from fake_profiler import job_of
from nsys_exports import Export

from profpipe import cli, errors
from profpipe.commands import execution, rendering
from profpipe.config import loader
from profpipe.results import database, folders, noise, schema, store
from profpipe.results.manifest import Manifest
from profpipe.results.schema import PROCESS_WALL
from profpipe.runner import fingerprint, plan
from profpipe.runner.request import RunRequest

ROOT = Path(__file__).parents[1]
#: Holds a torch that cannot be imported: loading the real one costs each of the workloads' processes seconds.
NO_TORCH = Path(__file__).parent / "no_torch"
PYTHONPATH = f"{ROOT}{os.pathsep}{NO_TORCH}"

#: Needs no torch, so that its process starts at once.
WORKLOAD = """
import os, resource, signal, time

PARAMS = {"n": 1, "do": "work"}

def build(params):
    if params["do"] == "fill":
        resource.setrlimit(resource.RLIMIT_AS, (4 << 30, resource.getrlimit(resource.RLIMIT_AS)[1]))

    def fn():
        if params["do"] == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        if params["do"] == "hang":
            time.sleep(600)
        if params["do"] == "slow":
            time.sleep(0.3)
        if params["do"] == "fill":
            bytes(1 << 40)
        return sum(range(100 * params["n"]))
    return fn

def flops(params):
    return 100 * params["n"]
"""

PIPELINE = """
version: 1
name: small
defaults: {profilers: [plain], warmup: 1, repeats: 5, timeout_s: 60, timing: {order: sequential, budget_s: 0.05}}
workloads:
  sums:
    script: sums.py
    matrix: {do: [work], n: '${N:-1,2,3}'}
"""


def profpipe(folder, *arguments, env=None, code=None):
    """Run a command, which must end with ``code`` where that is given; return the finished process."""
    done = forked.run(folder, *arguments, env={**os.environ, "PYTHONPATH": PYTHONPATH, **(env or {})})
    assert code in (None, done.returncode), done.stderr
    return done


@pytest.fixture
def project(tmp_path):
    (tmp_path / "sums.py").write_text(WORKLOAD)
    (tmp_path / "pipeline.yaml").write_text(PIPELINE)
    return tmp_path


def latest(project):
    return store.load((project / "out" / "latest").resolve())


def statuses(project):
    cases = latest(project)[0].cases
    return dict(zip(cases["case"], cases["status"], strict=True))


@pytest.fixture
def copied(finished, tmp_path):
    """A copy of the project with one run, which a test may change."""
    return Path(shutil.copytree(finished[0], tmp_path / "copied", symlinks=True))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A project with one run, which no test changes, and what the command printed."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "sums.py").write_text(WORKLOAD)
    (folder / "pipeline.yaml").write_text(PIPELINE)
    done = profpipe(folder, "run", "-p", "plain", env={"N": "1,2,3"}, code=0)
    return folder, done.stdout


def test_a_run_leaves_tables_record_and_summary_and_says_where(finished):
    project, printed = finished
    folder = (project / "out" / "latest").resolve()
    assert printed.strip().endswith(f"out/{folder.name}/SUMMARY.md")
    tables = {f"{name}.parquet" for name in ("cases", "kernels", "ranges", "metrics")}
    assert {"SUMMARY.md", "run.json", "cases.csv", "raw", *tables} <= {path.name for path in folder.iterdir()}
    data, record = store.load(folder)
    assert set(data.cases["status"]) == {"ok"} and len(data.cases) == 3
    assert record.ended and record.schema_version == 1
    assert record.command == ("env", "N=1,2,3", "profpipe", "run", "-p", "plain"), "the variables of the pipeline"
    assert (project / "out" / "profpipe.db").is_file()


@pytest.mark.parametrize(
    ("words", "message"),
    [(("resume",), "no unfinished run"), (("ingest", "pipeline.yaml", "--out", "out/latest"), "is a run's folder")],
)
def test_a_finished_run_is_neither_resumed_nor_overwritten(finished, words, message):
    done = profpipe(finished[0], *words)
    assert done.returncode == 2 and message in done.stderr
    assert statuses(finished[0]) == {f"do=work,n={n}": "ok" for n in (1, 2, 3)}


def test_a_second_resume_of_the_same_run_is_refused(finished):
    folder = (finished[0] / "out" / "latest").resolve()
    with folders.lock(folder):
        done = profpipe(finished[0], "resume", folder.name)
    assert done.returncode == 2 and "another profpipe is working on this run" in done.stderr


def test_list_schema_and_doctor_answer(finished):
    assert "sums: sums.py, 3 cases under plain" in profpipe(finished[0], "list").stdout
    assert json.loads(profpipe(finished[0], "schema").stdout)["title"] == "Pipeline"
    doctor = profpipe(finished[0], "doctor")
    assert doctor.returncode == 0 and "torch" in doctor.stdout


@pytest.mark.slow
def test_environment_and_set_narrow_the_matrix(project):
    assert profpipe(project, "run", env={"N": "7"}).returncode == 0
    assert set(statuses(project)) == {"do=work,n=7"}
    assert profpipe(project, "run", "--set", "n=8,9").returncode == 0
    assert set(statuses(project)) == {"do=work,n=8", "do=work,n=9"}


def test_a_dry_run_prints_every_command_and_does_nothing(project):
    done = profpipe(project, "run", "--dry-run")
    assert done.returncode == 0 and "-m profpipe.measure.harness" in done.stdout and "do=work,n=3" in done.stdout
    assert not (project / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("do", "status", "settings", "shown", "processes"),
    [
        ("crash", "crashed", (), "SIGSEGV", 2),
        ("hang", "timeout", ("--set", "case_timeout_s=8"), "case_timeout_s", 2),
        ("fill", "oom", (), "memory", 1),
    ],
)
def test_a_case_that_fails_is_recorded_and_the_other_cases_run(project, do, status, settings, shown, processes):
    profpipe(project, "run", "--set", f"do=work,{do},slow", "--set", "n=1", *settings, code=1)
    assert statuses(project) == {"do=work,n=1": "ok", f"do={do},n=1": status, "do=slow,n=1": "ok"}
    run = project / "out" / "latest"
    assert shown in (run / "SUMMARY.md").read_text() and len(latest(project)[1].jobs) == 1
    assert (run / "raw" / "sums" / "plain" / "log.txt").read_text().count("$ ") == processes


WRONG_RULE = PIPELINE + "kernel_classes: [{pattern: '%s', class: %s}]\n"


@pytest.mark.parametrize(
    ("pipeline", "words", "code", "message"),
    [
        (PIPELINE, ("--set", "m=1"), 2, "unknown name 'm'"),
        (PIPELINE, ("-p", "rocprof"), 3, "rocprof"),
        (WRONG_RULE % ("(", "attention"), (), 2, "kernel_classes"),
        (WRONG_RULE % ("x", "attn"), ("--dry-run",), 2, "kernel_classes: rule 0: unknown class 'attn'"),
    ],
)
def test_what_is_wrong_is_refused_before_anything_runs(project, pipeline, words, code, message):
    (project / "pipeline.yaml").write_text(pipeline)
    done = profpipe(project, "run", *words)
    assert done.returncode == code and message in done.stderr and "Traceback" not in done.stderr
    assert not done.stderr.endswith("..\n") and not (project / "out").exists()


@pytest.mark.slow
def test_the_cases_of_a_missing_tool_are_skipped_with_the_reason(project):
    profpipe(project, "run", "-p", "plain", "-p", "rocprof", code=0)
    cases = latest(project)[0].cases
    skipped = cases[cases["profiler"] == "rocprof"]
    assert set(skipped["status"]) == {"skipped"} and skipped["reason"].str.contains("rocprof").all()


def test_the_report_is_rendered_again_from_the_files_alone(copied):
    summary = copied / "out" / "latest" / "SUMMARY.md"
    before = summary.read_text()
    summary.unlink()
    (copied / "sums.py").unlink()
    assert profpipe(copied, "report", "out/latest").returncode == 0
    assert summary.read_text() == before


def test_a_report_without_one_of_its_tables_is_refused_and_the_page_stays(copied):
    folder = copied / "out" / "latest"
    before = (folder / "SUMMARY.md").read_text()
    (folder / "cases.csv").unlink()
    (folder / "cases.parquet").unlink()
    done = profpipe(copied, "report", "out/latest")
    assert done.returncode == 2 and "cases.parquet: is missing." in done.stderr
    assert (folder / "SUMMARY.md").read_text() == before


@pytest.mark.slow
def test_a_command_runs_once_for_each_case_and_has_its_wall_time_or_its_exit_code_and_its_log(project):
    words = "[sh, -c, 'echo {n}; sleep 0.1; test {n} -lt 3 || { echo no such dataset >&2; exit 3; }']"
    workload = f"{{command: {words}, matrix: {{n: [1, 2, 3]}}, profilers: [plain]}}"
    (project / "pipeline.yaml").write_text(f"version: 1\nworkloads:\n  mine: {workload}\n")
    assert profpipe(project, "run").returncode == 1
    data, record = latest(project)
    times = data.metrics[data.metrics["metric"] == PROCESS_WALL]
    assert set(times["case"]) >= {"n=1", "n=2"} and (times["value"] > 0.1e9).all()
    assert [job.argv[0][-1].split(";")[0] for job in record.jobs] == ["echo 1", "echo 2", "echo 3"]
    assert list(data.cases["status"]) == ["ok", "ok", "failed"]
    assert "3" in data.cases["reason"].iloc[2] and "no such dataset" in data.cases["reason"].iloc[2]


def interrupted(project):
    """A run that Ctrl-C stops while its second case is measured; returns its exit code."""
    arguments = ["run", "--set", "do=work,slow", "--set", "n=1", "--set", "repeats=20"]
    process = subprocess.Popen(
        [sys.executable, "-m", "profpipe", *arguments], cwd=project, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": PYTHONPATH}, start_new_session=True,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        events = list(project.glob("out/2*/raw/sums/plain/job.jsonl"))
        if events and re.search('"case_started".*"case": "do=slow', events[0].read_text()):
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=120)
    return process.returncode


@pytest.mark.slow
def test_ctrl_c_keeps_what_is_there_and_resume_repeats_nothing(project):
    assert interrupted(project) == 130
    assert statuses(project)["do=work,n=1"] == "ok"
    assert (project / "out" / "latest" / "SUMMARY.md").is_file()
    profpipe(project, "resume", code=0)
    assert statuses(project) == {"do=work,n=1": "ok", "do=slow,n=1": "ok"}
    events = (project / "out" / "latest" / "raw" / "sums" / "plain" / "job.jsonl").read_text().splitlines()
    started = [json.loads(line)["case"] for line in events if '"case_started"' in line]
    assert started.count("do=work,n=1") == 1
    assert latest(project)[1].ended


SECOND = PIPELINE + "  second: {script: sums.py, matrix: {n: [4]}}\n"


def names_of(record):
    return [job.workload for job in record.jobs]


@pytest.mark.slow
def test_the_rows_of_a_job_are_stored_before_the_next_job_starts(project):
    ask = "import json; print(len(json.load(open('out/latest/run.json'))['jobs']), file=open('asked', 'w'))"
    entry = f"  second: {{command: [{sys.executable}, -c, {json.dumps(ask)}]}}\n"
    (project / "pipeline.yaml").write_text(PIPELINE + entry)
    profpipe(project, "run", code=0)
    assert (project / "asked").read_text().strip() == "1"


#: A parser of the user that is interrupted.
BREAKS = """
FORMATS = ("a file that cannot be read",)

def sniff(path):
    return path.name == "job.jsonl"

def parse(path):
    raise KeyboardInterrupt
"""


@pytest.mark.slow
def test_a_job_whose_reading_was_interrupted_is_read_again(project, monkeypatch):
    (project / "parsers").mkdir()
    (project / "parsers" / "breaks.py").write_text(BREAKS)
    (project / "pipeline.yaml").write_text(SECOND)
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)
    monkeypatch.chdir(project)
    assert cli.main(["run"]) == errors.INTERRUPTED
    assert latest(project)[1].jobs == ()
    (project / "parsers" / "breaks.py").unlink()
    (folder,) = (project / "out").glob("*-small")
    assert cli.main(["resume", str(folder)]) == 0
    data, record = latest(project)
    assert len(data.cases) == 4 and names_of(record) == ["sums", "second"]
    events = (folder / "raw" / "sums" / "plain" / "job.jsonl").read_text()
    assert events.count('"event": "case_ended"') == 3, "no case that had finished is repeated"


@pytest.mark.slow
def test_a_run_whose_workload_was_edited_is_not_resumed_until_the_old_text_is_back(project):
    assert interrupted(project) == 130
    folder = (project / "out" / "latest").resolve()
    assert (folder / "raw" / "fingerprint.json").stat().st_mode & 0o077 == 0
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    (project / "sums.py").write_text(WORKLOAD.replace("time.sleep(0.3)", "time.sleep(0.1)"))
    done = profpipe(project, "resume", env={"OMP_NUM_THREADS": "3"})
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "code or settings" in done.stderr and "sums (file sums.py, variable OMP_NUM_THREADS)" in done.stderr
    assert "Undo that change and resume the run, or start a new run" in done.stderr
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    (project / "sums.py").write_text(WORKLOAD)
    profpipe(project, "resume", code=0)
    assert statuses(project) == {"do=work,n=1": "ok", "do=slow,n=1": "ok"}


@pytest.mark.parametrize("path", [ROOT / "pipeline.yaml", *sorted(ROOT.glob("pipelines/*.yaml"))], ids=lambda p: p.stem)
def test_a_stored_request_is_loaded_unchanged(path, tmp_path):
    order = RunRequest.create(loader.load_pipeline(path), path, tmp_path)
    order.save(tmp_path / "run")
    again = RunRequest.load(tmp_path / "run")
    texts = [
        json.dumps({n: [w.model_dump(), [asdict(c) for c in plan.cases(w)]] for n, w in o.pipeline.workloads.items()})
        for o in (order, again)
    ]
    assert texts[0] == texts[1]


def test_another_cpu_is_another_machine_and_another_build_of_the_operating_system_is_not(tmp_path):
    (tmp_path / "mine.py").touch()
    job = job_of(tmp_path, "pass", profiler="plain", script=tmp_path / "mine.py")
    fingerprint.save(tmp_path, [job], tmp_path, {"os": "Linux 6.1", "cpu": "one"})
    for path in (tmp_path / "raw" / "request.json", tmp_path / "run.json"):
        path.touch()
    fingerprint.check(tmp_path, [job], {"os": "Linux 6.2", "cpu": "one"})
    with pytest.raises(errors.ConfigError, match=r"attention \(the machine\)"):
        fingerprint.check(tmp_path, [job], {"os": "Linux 6.1", "cpu": "another"})


def unended(project):
    """The last run again as one that was killed before its end was written down."""
    folder = (project / "out" / "latest").resolve()
    replace(Manifest.load(folder), ended=None).save(folder)
    return folder


@pytest.mark.slow
def test_a_run_is_resumed_although_its_command_wrote_a_file_that_it_names(project):
    (project / "pipeline.yaml").write_text(
        "version: 1\nworkloads:\n  mine:\n    command: [sh, -c, 'date +%N > result.txt', sh, result.txt]\n"
        "    profilers: [plain]\n"
    )
    (project / "result.txt").write_text("of another day\n")
    os.utime(project / "result.txt", (1, 1))
    assert profpipe(project, "run").returncode == 0
    folder = unended(project)
    profpipe(project, "resume", code=0)
    unended(project)
    (project / "result.txt").write_text("edited afterwards\n")
    later = (folder / "run.json").stat().st_mtime + 60
    os.utime(project / "result.txt", (later, later))
    done = profpipe(project, "resume")
    assert done.returncode == 2 and "mine (file result.txt)" in done.stderr


@pytest.mark.slow
def test_a_run_whose_workload_is_gone_says_which_file_to_put_back(project):
    profpipe(project, "run", "--set", "n=1", code=0)
    record = project / "out" / "latest" / "run.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), "ended": None, "jobs": []}))
    (project / "sums.py").rename(project / "elsewhere.py")
    done = profpipe(project, "resume")
    assert done.returncode == 2 and f"'sums.py' is gone. Put it back into {project}." in done.stderr
    (project / "elsewhere.py").rename(project / "sums.py")
    assert profpipe(project, "resume").returncode == 0


def test_a_damaged_history_does_not_fail_a_run(project):
    (project / "out").mkdir()
    (project / "out" / database.FILE).write_text("no database, but longer than the header of one" * 10)
    done = profpipe(project, "run", "--set", "n=1")
    assert done.returncode == 0 and "profpipe.db: cannot be used" in done.stderr
    assert "Move it away. This run is not in the history" in done.stderr
    assert latest(project)[1].ended


@pytest.mark.slow
def test_ctrl_c_while_the_report_is_written_names_the_command_that_writes_it(project, monkeypatch, capsys):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.chdir(project)
    with monkeypatch.context() as patched:
        patched.setattr(rendering, "write_report", interrupt)
        assert cli.main(["run", "--set", "n=1"]) == 130
    printed = capsys.readouterr().err
    assert "Interrupted before SUMMARY.md was written. The measurements are kept. To write the report" in printed
    assert printed.rstrip().endswith(f"resume {os.path.relpath((project / 'out' / 'latest').resolve())}")
    assert cli.main(["resume"]) == 0
    assert (project / "out" / "latest" / "SUMMARY.md").is_file() and statuses(project) == {"do=work,n=1": "ok"}


@pytest.mark.slow
def test_a_run_that_is_stopped_does_not_wait_for_a_long_report(project, monkeypatch, capsys):
    def stop_in_a_case(run):
        while not list((project / "out").glob("2*/raw/*/*/job.jsonl")):
            time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.chdir(project)
    threading.Thread(target=stop_in_a_case, args=(project,), daemon=True).start()
    with monkeypatch.context() as patched:
        patched.setattr(rendering, "write_report", lambda *_: time.sleep(600))
        begin = time.monotonic()
        assert cli.main(["run", "--set", "n=1", "--set", "do=hang"]) == 130
    assert time.monotonic() - begin < 60
    folder = os.path.relpath((project / "out" / "latest").resolve())
    assert f"report {folder}`. To continue: " in capsys.readouterr().err
    assert cli.main(["report", "out/latest"]) == 1 and (project / "out" / "latest" / "SUMMARY.md").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("name", [b"bad\xff", pytest.param("größe".encode(), marks=pytest.mark.exhaustive)])
def test_a_folder_may_have_any_name(tmp_path, name):
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name))
    folder.mkdir()
    (folder / "sums.py").write_text(WORKLOAD)
    (folder / "pipeline.yaml").write_text(PIPELINE)
    for env in ({}, {"LC_ALL": "C"}):
        assert profpipe(folder, "run", "--set", "n=1", env=env).returncode == 0
        assert profpipe(folder, "resume", "out/latest", env=env).returncode == 0
    names = sorted(path.name for path in (folder / "out").glob("2*"))
    assert profpipe(folder, "compare", *names, env={"LC_ALL": "C"}).returncode == 0
    assert profpipe(tmp_path, "run", f"{folder}/pipeline.yaml", "--out", f"{folder}/other").returncode == 0
    assert profpipe(tmp_path, "report", f"{folder}/other/latest").returncode == 0


@pytest.mark.slow
def test_history_compare_and_a_gate_see_the_runs(copied):
    for n in ("1,2", "4"):
        profpipe(copied, "run", env={"N": n}, code=0)
    history = profpipe(copied, "history", code=0).stdout
    assert history.count("3 of 3") == history.count("2 of 2") == 1 and "sums/do=work,n=1" in history
    first, second, third = sorted(path.name for path in (copied / "out").glob("2*"))
    assert "do=work,n=2" in profpipe(copied, "compare", first, second, code=0).stdout
    same = profpipe(copied, "compare", third, "latest", "--gate", "0", code=2)
    assert f"A and B are the same run: {third}. Name two runs." in same.stderr
    profpipe(copied, "compare", third, second, code=0)
    undecided = profpipe(copied, "compare", third, second, "--gate", "5", code=5)
    assert "1 case has no times above 0 of the same kind in A and B: sums/do=work,n=4" in undecided.stderr
    profpipe(copied, "compare", first, first, "--gate", "nan", code=2)


def test_files_are_read_without_a_run_and_a_bad_one_does_not_stop_the_others(project):
    good = ROOT / "tests" / "data" / "nsys-2025.3.1" / "attention" / "attn_h200.sqlite"
    bad = project / "bad.csv"
    bad.write_text("hello\n")
    done = profpipe(project, "ingest", str(bad), str(good), "--out", "read")
    assert done.returncode == 1
    assert "bad.csv: is in no format" in done.stderr and "380 kernel launches, 18.238 ms" in done.stdout
    assert pd.read_parquet(project / "read" / "kernels.parquet")["calls"].sum() >= 380
    assert (project / "read" / "SUMMARY.md").is_file()


def test_an_export_without_records_is_refused_with_the_message_of_its_tool(project):
    nothing = Export()
    nothing.string("anything")
    nothing.add("DIAGNOSTIC_EVENT", severity=3, text="No CUDA events collected. Does the process use CUDA?")
    path = nothing.write_sqlite(project / "nothing.sqlite")
    done = profpipe(project, "ingest", str(path), "--out", "read")
    assert done.returncode == 1 and not (project / "read").exists()
    assert "holds no kernels, copies or ranges (nsys: No CUDA events collected. Does the process" in done.stderr


def test_exports_of_one_name_are_not_added_up(project):
    recorded = ROOT / "tests" / "data" / "nsys-2025.3.1" / "attention" / "attn_h200.sqlite"
    for folder in ("a", "b"):
        (project / folder).mkdir()
        shutil.copy(recorded, project / folder / "capture.sqlite")
    profpipe(project, "ingest", "a/capture.sqlite", "b/capture.sqlite", "--out", "read", code=0)
    launches = (
        pd.read_parquet(project / "read" / "kernels.parquet")
        .query("kind == 'kernel'")
        .groupby("workload")["calls"]
        .sum()
    )
    assert list(launches) == [380, 380]


def in_a_shell(project, line):
    """Run a line of shell that calls ``profpipe``; return its exit code and what the line prints."""
    line = line.replace("profpipe", f"{sys.executable} -m profpipe")
    return subprocess.run(
        ["bash", "-c", f"{line}; exit ${{PIPESTATUS[0]}}"], cwd=project, capture_output=True, text=True, timeout=300,
        env={**os.environ, "PYTHONPATH": PYTHONPATH},
    )  # fmt: skip


EXHAUSTIVE = (pytest.mark.slow, pytest.mark.exhaustive)


@pytest.mark.slow
@pytest.mark.parametrize(
    "line",
    [
        "N=1 profpipe run | true",
        pytest.param("N=1 profpipe run 2>&1 | head -n 1", marks=EXHAUSTIVE),
        pytest.param("N=1 profpipe run 2>/dev/full >/dev/full", marks=pytest.mark.slow),
        pytest.param("N=1 profpipe run 2>&-", marks=EXHAUSTIVE),
        pytest.param("N=1 profpipe run >&- 2>&-", marks=EXHAUSTIVE),
    ],
)
def test_a_run_continues_when_its_output_cannot_be_written(project, line):
    done = in_a_shell(project, line)
    assert done.returncode == 0 and "rror" not in done.stderr, done
    assert latest(project)[1].ended and set(statuses(project).values()) == {"ok"}
    assert (project / "out" / "latest" / "SUMMARY.md").is_file()


@pytest.mark.slow
def test_a_run_whose_output_cannot_be_written_has_the_exit_code_of_its_cases(project):
    done = in_a_shell(project, "profpipe run --set do=crash --set n=1 2>&1 | head -n 1")
    assert (done.returncode, statuses(project)) == (1, {"do=crash,n=1": "crashed"})


@pytest.mark.slow
def test_a_command_that_only_prints_succeeds_when_its_reader_leaves_and_fails_on_a_full_disk(project):
    done = in_a_shell(project, "profpipe schema | head -n 1")
    assert (done.returncode, done.stdout, done.stderr) == (0, "{\n", "")
    # So little that Python writes it only at its end.
    done = in_a_shell(project, "profpipe list | true")
    assert (done.returncode, done.stderr) == (0, "")
    done = in_a_shell(project, "profpipe list >/dev/full")
    assert done.returncode == 1 and "No space left on device" in done.stderr
    assert in_a_shell(project, "profpipe schema >/dev/full").returncode != 0


def test_a_traceback_is_shown_only_on_request(project):
    (project / "pipeline.yaml").write_text("version: 3\n")
    assert "Traceback" not in profpipe(project, "run").stderr
    assert "Traceback" in profpipe(project, "--debug", "run").stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["compare", "a", "b", "--gate", "abc"], "'abc' is not a percentage of at least 0"),
        (["history", "-n", "x"], "'x' is not a number of at least 1"),
        (["history", "-n", "0"], "'0' is not a number of at least 1"),
        (["compare", "a"], "needs two runs, and 1 is given. Name A and B."),
        (["compare", "a", "b", "c"], "compares one run A with one run B. `profpipe ab` decides over several runs"),
        (["compare", "a", "--", "b"], "compares one run A with one run B. `profpipe ab` decides over several runs"),
        (["compare", "a", "b", "--", "c", "--gate", "5"], "compares one run A with one run B. `profpipe ab` decides"),
    ],
)
def test_a_wrong_word_on_the_command_line_is_explained(words, message, capsys):
    try:
        code = cli.main(words)
    except SystemExit as ended:
        code = ended.code
    assert code == 2 and message in capsys.readouterr().err


def test_a_gate_counts_its_cases_in_words(tmp_path, capsys, monkeypatch):
    samples = [noise.Sample(noise.SpreadSource.RUNS, "aa", "w", f"n={n}", 8, 8.0, 0.01) for n in (0, 1)]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    noise.store(tmp_path / "out", Manifest(), samples, "aa")
    for name, times in (("a", (1.0, 1.0)), ("b", (2.0, 1.0)), ("c", (2.0, 2.0))):
        rows = [
            {"workload": "w", "case": f"n={n}", "profiler": "plain", "metric": "time", "value": value, "unit": "ns"}
            for n, value in enumerate(times)
        ]
        (tmp_path / name).mkdir()
        data = schema.Tables(metrics=schema.frame(schema.METRICS, rows))
        store.save(tmp_path / name, data, Manifest(is_run=False))
    runs = {name: str(tmp_path / name) for name in "abc"}
    assert cli.main(["compare", runs["a"], runs["b"], "--gate", "5"]) == 4
    assert "1 case is more than 5 % slower: w/n=0" in capsys.readouterr().err
    assert cli.main(["compare", runs["a"], runs["c"], "--gate", "5"]) == 4
    assert "2 cases are more than 5 % slower: w/n=0, w/n=1" in capsys.readouterr().err
    assert cli.main(["compare", runs["a"], runs["c"], "--gate", "5", "--out", "other"]) == 5
    assert "the gate is undecided: 2 cases are more than 5 % slower, and how far runs" in capsys.readouterr().err


@pytest.mark.slow
def test_too_little_classified_time_is_a_failure(project):
    pytest.importorskip("torch")
    (project / "sums.py").write_text(
        "import torch\n\ndef build(params):\n    x = torch.eye(64)\n    return lambda: torch.linalg.inv(x) @ x\n"
    )
    text = "version: 1\nworkloads: {w: {script: sums.py, profilers: [torch], repeats: 3, warmup: 1}}\n"
    with_torch = {"PYTHONPATH": str(ROOT)}
    (project / "pipeline.yaml").write_text(text + "coverage: {min_classified: 0.999999}\n")
    done = profpipe(project, "run", env=with_torch)
    assert done.returncode == 1
    assert "too little of the kernels' time is classified. SUMMARY.md says which." in done.stderr
    summary = (project / "out" / "latest" / "SUMMARY.md").read_text()
    assert "**below the required " in summary and "; without a class: `aten::" in summary
    (project / "pipeline.yaml").write_text(text + "coverage: {min_classified: 0.01}\n")
    assert profpipe(project, "run", env=with_torch).returncode == 0


def test_a_workload_that_cannot_be_imported_fails_its_cases_with_the_reason(project):
    text = "import no_such_package\nPARAMS = {'n': 1, 'do': 'work'}\ndef build(params):\n    return print\n"
    (project / "sums.py").write_text(text)
    done = profpipe(project, "run")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    cases = latest(project)[0].cases
    assert set(cases["status"]) <= {"failed", "crashed"} and cases["reason"].str.contains("no_such_package").all()
    assert latest(project)[1].refused == ()


def test_an_error_of_the_operating_system_is_not_an_internal_error(project):
    (project / "file").write_text("")
    done = profpipe(project, "run", "--out", "file")
    assert done.returncode == 2 and "cannot hold results: File exists" in done.stderr
    good = ROOT / "tests" / "data" / "nsys-2025.3.1" / "attention" / "attn_h200.sqlite"
    done = profpipe(project, "ingest", str(good), "--out", "file")
    assert done.returncode == 2 and "file: cannot hold the tables: File exists. Choose another --out." in done.stderr


def test_the_resume_command_can_be_typed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
    assert execution.command("resume", tmp_path / "o ut" / "run") == "profpipe resume 'o ut/run'"
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert execution.command("resume", tmp_path / "run") == f"{sys.executable} -m profpipe resume run"
