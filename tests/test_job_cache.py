"""Recognise a job that an earlier run has done, and reuse its files."""

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import forked
import pandas as pd
import pytest
from jobs import change, make_job

from profpipe.config import loader
from profpipe.config.models import PROFILERS
from profpipe.job import Case, Command, Job, Missing, Tool
from profpipe.results import folders, store
from profpipe.results.manifest import Manifest
from profpipe.runner import job_cache, plan
from profpipe.runner.request import RunRequest

ROOT = Path(__file__).resolve().parents[1]
MACHINE = {"gpus": [{"name": "H200", "driver": "580"}], "cpu": "x", "cpu_count": 8, "os": "Linux 6"}


def a_job(folder):
    (folder / "mine.py").write_text("import beside\nfrom pack import inner\n")
    (folder / "beside.py").write_text("import deeper\n")
    (folder / "deeper.py").write_text("x = 1\n")
    (folder / "pack").mkdir()
    (folder / "pack" / "__init__.py").touch()
    (folder / "pack" / "inner.py").write_text("from . import sibling\n")
    (folder / "pack" / "sibling.py").write_text("y = 1\n")
    (folder / "unrelated.py").write_text("z = 1\n")
    return make_job(
        workload="w",
        profiler="nsys",
        cases=(Case("n=1", {"n": 1}),),
        folder=folder / "out" / "run" / "raw" / "w" / "nsys",
        tool=Tool("nsys", "2025.3.1", "/usr/bin/nsys"),
        python="python",
        cwd=folder,
        script=folder / "mine.py",
        env={"PYTHONPATH": "/somewhere", "MODE": "fast"},
        options={"ncu": {"set": "basic"}, "case_timeout_s": None},
    )


def key(job, machine=MACHINE, environment=None, salt=b"salt"):
    command = Command(("nsys", "profile", "-o", str(job.folder / "capture"), "python"))
    return job_cache.key(job, [command], machine, environment or {"CUDA_VISIBLE_DEVICES": "0", "HOME": "/a"}, salt)


CHANGES: dict[str, Callable[[Job], Job]] = {
    "a parameter": lambda job: change(job, cases=(Case("n=1", {"n": 2}),)),
    "a case more": lambda job: change(job, cases=(*job.cases, Case("n=2", {"n": 2}))),
    "repeats": lambda job: change(job, repeats=31),
    "an option of the profiler": lambda job: change(job, options={"ncu": {"set": "full"}}),
    "the tool's version": lambda job: change(job, tool=Tool("nsys", "2026.1.1", "/usr/bin/nsys")),
    "a variable of the pipeline file": lambda job: change(job, env={**job.launch.env, "MODE": "slow"}),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_of_a_dependency_changes_the_key(tmp_path, change):
    job = a_job(tmp_path)
    assert key(change(job)) != key(job)


@pytest.mark.parametrize(
    "name", ["mine.py", "beside.py", "deeper.py", "pack/__init__.py", "pack/inner.py", "pack/sibling.py"]
)
def test_the_workloads_file_and_its_imports_from_the_same_folder_are_in_the_key(tmp_path, name):
    job = a_job(tmp_path)
    before = key(job)
    with (tmp_path / name).open("a") as stream:
        stream.write("more = 1\n")
    assert key(job) != before


def test_the_machine_and_the_variables_that_decide_times_are_in_the_key(tmp_path):
    job = a_job(tmp_path)
    for changed in ({"driver": "590"}, {"mig": True}, {"sm_count": 66}):
        assert key(job, {**MACHINE, "gpus": [{"name": "H200", "driver": "580", **changed}]}) != key(job)
    assert key(job, environment={"CUDA_VISIBLE_DEVICES": "1", "HOME": "/a"}) != key(job)
    assert key(change(job, tool=Missing("nsys", "not here", "Install it."))) == "", "there is no tool"


def test_a_change_that_affects_no_number_does_not_change_the_key(tmp_path):
    job = a_job(tmp_path)
    before = key(job)
    (tmp_path / "unrelated.py").write_text("z = 2\n")
    elsewhere = change(
        job, folder=tmp_path / "out" / "other", timeout_s=1.0, options={**job.dump_settings(), "case_timeout_s": 3}
    )
    assert key(elsewhere) == before
    assert key(job, {**MACHINE, "peaks": {}}) == before
    assert key(job, environment={"CUDA_VISIBLE_DEVICES": "0", "HOME": "/b", "LC_ALL": "C"}) == before


def test_a_secret_variable_is_in_the_key_and_the_key_depends_on_the_salt(tmp_path):
    job = a_job(tmp_path)
    short, long = (change(job, env={**job.launch.env, "MAX_TOKENS": value}) for value in ("512", "4096"))
    assert key(short) != key(long)
    assert key(short, salt=b"of another folder") != key(short) != key(job)


def test_each_results_folder_has_one_private_salt(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    assert folders.read_salt(tmp_path / "a") == folders.read_salt(tmp_path / "a") != folders.read_salt(tmp_path / "b")
    (made,) = (tmp_path / "a").iterdir()
    assert made.stat().st_mode & 0o077 == 0 and len(made.read_bytes()) == 32


def test_a_user_who_may_not_read_the_salt_has_no_key_and_the_first_of_two_salts_is_kept(tmp_path, monkeypatch):
    assert key(a_job(tmp_path), salt=b"") == ""
    first = folders.read_salt(tmp_path)
    # As a run that began in the same moment and saw none.
    monkeypatch.setattr(Path, "exists", lambda self: False)
    assert folders.read_salt(tmp_path) == first
    assert [path.name for path in tmp_path.glob(".salt*")] == [".salt"]

    def forbidden(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(folders.atomic, "read_regular", forbidden)
    assert folders.read_salt(tmp_path) == b""


@pytest.mark.parametrize(
    ("command", "file"),
    [
        (("python", "mine.py", "--n", "1"), "deeper.py"),
        (("python", "-m", "train", "--n", "1"), "train.py"),
        (("python", "-m", "pack.inner"), "pack/inner.py"),
        (("python", "-m", "pack"), "pack/__main__.py"),
        (("bench", "--fast"), "bin/bench"),
        (("bin/bench",), "bin/bench"),
        (("python", "-c", "pass", "--config=conf.yaml"), "conf.yaml"),
        (("sh", "-c", "x" * 5000, "conf.yaml", "a\0b"), "conf.yaml"),
    ],
)
def test_the_program_the_module_and_option_values_of_a_command_are_in_the_key(tmp_path, command, file):
    job = replace(a_job(tmp_path), script=None, command=command)
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    search = {"PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    before = key(job, environment=search)
    assert key(job, environment=search) == before
    path.write_text("#!/bin/sh\nexit\n")
    assert key(job, environment=search) != before


def test_a_file_that_a_command_names_and_that_was_written_meanwhile_may_be_its_output(tmp_path):
    command = ("python", "train.py", "--config", "conf.yaml", "--output=result.json")
    job = replace(a_job(tmp_path), script=None, command=command)
    for name, written in (("train.py", 15), ("conf.yaml", 5), ("result.json", 15)):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (written, written))
    assert job_cache.possible_outputs(job, 10, 20) == {"file result.json"}
    assert job_cache.possible_outputs(job, 0, 20) == {"file result.json", "file conf.yaml"}
    (tmp_path / "result.json").chmod(0o755)
    assert job_cache.possible_outputs(job, 10, 20) == set(), "a program"
    assert job_cache.possible_outputs(change(job, script=tmp_path / "mine.py", command=()), 0, 20) == set()


def test_the_name_of_this_python_and_an_activated_environment_are_not_in_the_key(tmp_path):
    job = a_job(tmp_path)
    as_typed = [Command((name, "-m", "profpipe.measure.harness")) for name in ("/env/bin/python", "/env/bin/python3")]
    keys = {job_cache.key(change(job, python=each.argv[0]), [each], MACHINE, {}, b"") for each in as_typed}
    assert len(keys) == 1
    assert job_cache.key(job, [], MACHINE, {"VIRTUAL_ENV": "/env"}, b"") == job_cache.key(job, [], MACHINE, {}, b"")


def test_a_program_that_path_finds_elsewhere_changes_the_key(tmp_path):
    job = replace(a_job(tmp_path), script=None, command=("bench",))
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "bench").write_text("#!/bin/sh\n")
        (tmp_path / name / "bench").chmod(0o755)
    assert key(job, environment={"PATH": str(tmp_path / "a")}) != key(job, environment={"PATH": str(tmp_path / "b")})
    of_the_job = change(job, env={"PATH": str(tmp_path / "a")})
    assert key(of_the_job, environment={"PATH": str(tmp_path / "b")}) == key(of_the_job, environment={"PATH": "/x"})


def test_imports_are_not_followed_into_installed_packages(tmp_path):
    job = a_job(tmp_path)
    installed = tmp_path / "site-packages"
    (installed / "big-1.0.dist-info").mkdir(parents=True)
    (installed / "big.py").write_text("x = 1\n")
    (tmp_path / "mine.py").write_text("import big\n")
    job = change(job, env={"PYTHONPATH": str(installed)})
    before = key(job)
    (installed / "big.py").write_text("x = 2\n")
    assert key(job) == before


@pytest.mark.parametrize("file", ["pipeline.yaml", *sorted(f"pipelines/{p.name}" for p in ROOT.glob("pipelines/*"))])
def test_a_resumed_run_gives_every_job_the_key_that_a_new_one_gives_it(tmp_path, file):
    pipeline = loader.load_pipeline(ROOT / file, env={})
    saved = RunRequest.create(pipeline, ROOT / file, tmp_path)
    saved.save(tmp_path / "run")
    tools = {name: Tool(name, "1", f"/bin/{name}") for name in PROFILERS}
    keys = []
    for order in (saved, RunRequest.load(tmp_path / "run")):
        jobs = plan.plan(
            order.pipeline, tools, scripts={}, cwd=order.pipeline_dir, out=tmp_path / "run", python="python"
        )
        keys.append([key(job) for job in jobs])
    assert keys[0] == keys[1]


# --- taking over -----------------------------------------------------------------------------------------------------


def done(out, name, **entry):
    run = out / name
    folder = run / "raw" / "w" / "nsys"
    folder.mkdir(parents=True)
    for file in ("capture.sqlite", "job.jsonl", "log.txt"):
        (folder / file).write_text(f"{file} of {name}")
    size = (folder / "capture.sqlite").stat().st_size
    files = [{"path": "raw/w/nsys/capture.sqlite", "bytes": size}]
    return run, Manifest.parse({"jobs": [{"key": "k", "folder": "raw/w/nsys", "files": files, **entry}]})


def test_the_newest_run_with_the_job_is_used(tmp_path):
    newest, older = done(tmp_path, "2"), done(tmp_path, "1")
    assert job_cache.find_cached_jobs([newest, older]) == {"k": (newest[0], newest[1].jobs[0])}


def test_a_job_without_key_or_with_a_changed_file_is_not_reused(tmp_path):
    failed, changed = done(tmp_path, "2", key=""), done(tmp_path, "1")
    (changed[0] / "raw/w/nsys/capture.sqlite").write_text("cut")
    assert job_cache.find_cached_jobs([failed, changed]) == {}


def test_a_job_whose_folder_was_removed_is_not_reused(tmp_path):
    of_a_command = done(tmp_path, "1", files=[])
    assert job_cache.find_cached_jobs([of_a_command])
    shutil.rmtree(of_a_command[0] / "raw")
    assert job_cache.find_cached_jobs([of_a_command]) == {}


def test_a_job_that_cannot_be_copied_leaves_no_files(tmp_path):
    run, manifest = done(tmp_path, "1")
    target = tmp_path / "2" / "raw" / "w" / "nsys"
    job_cache.reuse(run, replace(manifest.jobs[0], folder="raw/w/gone"), target)
    (run / "raw/w/nsys/log.txt").unlink()
    (run / "raw/w/nsys/log.txt").symlink_to("nowhere")
    job_cache.reuse(run, manifest.jobs[0], target)
    assert list(target.parent.iterdir()) == []


def test_large_files_are_linked_and_growing_files_are_copied(tmp_path):
    run, manifest = done(tmp_path, "1")
    target = tmp_path / "2" / "raw" / "w" / "nsys"
    job_cache.reuse(run, manifest.jobs[0], target)
    assert job_cache.read_origin(target) == "1" and job_cache.read_origin(run / "raw/w/nsys") == ""
    assert (target / "capture.sqlite").samefile(run / "raw/w/nsys/capture.sqlite")
    with (target / "job.jsonl").open("a") as stream:
        stream.write("more")
    assert (run / "raw/w/nsys/job.jsonl").read_text() == "job.jsonl of 1"
    # One that was reused before names the run that measured it.
    again = tmp_path / "3" / "raw" / "w" / "nsys"
    job_cache.reuse(tmp_path / "2", replace(manifest.jobs[0], reused_from="0"), again)
    assert (job_cache.read_origin(target), job_cache.read_origin(again)) == ("1", "0")


# --- the program -----------------------------------------------------------------------------------------------------

PIPELINE = """
version: 1
defaults: {profilers: [plain], warmup: 0, repeats: 3, timing: {order: sequential, budget_s: 0.01}}
workloads:
  first: {script: first.py, matrix: {n: [1, 2]}}
  second: {script: second.py, matrix: {n: [1, 2]}}
  broken: {script: broken.py}
"""


@pytest.fixture
def project(tmp_path):
    for name, does in (("first", "n"), ("second", "n"), ("broken", "1 / 0")):
        text = f"PARAMS = {{'n': 1}}\n\ndef build(params):\n    n = params['n']\n    return lambda: {does}\n"
        (tmp_path / f"{name}.py").write_text(text)
    (tmp_path / "pipeline.yaml").write_text(PIPELINE)
    return tmp_path


def profpipe(project, *arguments):
    path = os.pathsep.join(map(str, (ROOT, ROOT / "tests" / "no_torch")))
    return forked.run(project, *arguments, env={**os.environ, "PYTHONPATH": path})


@pytest.mark.slow
def test_unchanged_jobs_are_reused_on_request_and_changed_or_failed_jobs_and_those_of_damaged_runs_run_again(project):
    assert profpipe(project, "run").returncode == 1
    first = folders.find(None, project / "out")
    (project / "second.py").write_text((project / "second.py").read_text() + "# changed\n")
    assert profpipe(project, "run", "--reuse").returncode == 1
    again = folders.find(None, project / "out")
    data, record = store.load(again)
    assert {entry.workload: entry.reused_from for entry in record.jobs} == {
        "first": first.name, "second": "", "broken": "",
    }  # fmt: skip
    before = store.load(first)[0]
    for table in ("cases", "metrics"):
        frames = [getattr(each, table).query("workload == 'first'").drop(columns="run") for each in (before, data)]
        pd.testing.assert_frame_equal(*frames)
    assert set(data.metrics["run"]) == {again.name}
    assert not any(entry.key for entry in record.jobs if entry.workload == "broken")

    def origins(*options):
        done = profpipe(project, "run", "-w", "first", *options)
        assert done.returncode == 0 and "is not JSON" not in done.stderr
        return [entry.reused_from for entry in Manifest.load(folders.find(None, project / "out")).jobs]

    assert origins() == [""], "without the option no job is reused"
    for run in (project / "out").glob("2*"):
        (run / "run.json").write_text("{")
    assert origins("--reuse") == [""]


@pytest.mark.slow
def test_a_case_that_was_skipped_for_its_size_is_tried_in_the_next_run(project):
    (project / "first.py").write_text(
        "from pathlib import Path\nPARAMS = {'n': 1}\n\ndef build(params):\n"
        "    if not Path('room').exists():\n        raise MemoryError('out of memory')\n    return lambda: None\n"
    )
    first_run = ["run", "-w", "first", "--set", "isolate=true"]
    assert profpipe(project, *first_run).returncode == 1
    data, record = store.load(folders.find(None, project / "out"))
    assert list(data.cases["status"]) == ["oom", "skipped"] and not any(entry.key for entry in record.jobs)
    (project / "room").touch()
    again = profpipe(project, *first_run, "--reuse")
    assert again.returncode == 0, again.stderr
    assert set(store.load(folders.find(None, project / "out"))[0].cases["status"]) == {"ok"}


@pytest.mark.slow
def test_the_files_of_a_command_that_were_removed_are_made_again(project):
    (project / "pipeline.yaml").write_text("version: 1\nworkloads: {w: {command: [echo, hello], profilers: [plain]}}\n")
    assert profpipe(project, "run").returncode == 0
    shutil.rmtree(folders.find(None, project / "out") / "raw")
    again = profpipe(project, "run", "--reuse")
    assert again.returncode == 0, again.stderr
    assert "hello" in (project / "out" / "latest" / "raw" / "w" / "plain" / "log.txt").read_text()
