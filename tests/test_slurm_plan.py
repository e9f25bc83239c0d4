"""The plan, the batch script and the records of a run on a cluster, without one."""

import argparse
import json
import os
import re
import shlex
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from program import profpipe
from report_study import check_golden

from profpipe import cli
from profpipe.analysis.cases import comparisons
from profpipe.commands import cluster, resume
from profpipe.config.loader import load_pipeline
from profpipe.config.models import Pipeline
from profpipe.config.settings import Slurm
from profpipe.errors import ConfigError
from profpipe.results import atomic, manifest_entries, schema
from profpipe.results.manifest import JobEntry, Manifest, PlannedJob
from profpipe.results.tasks import Task, TaskState
from profpipe.runner.request import RunRequest
from profpipe.runner.slurm import collect, queue, records, submit
from profpipe.runner.slurm.records import TaskRecord

PIPELINE = """\
version: 1
name: sweep
workloads:
  attention:
    command: [echo, "{impl}", "{n}"]
    profilers: [plain, nsys, ncu]
    matrix: {n: [1, 2], impl: [a, b]}
    baseline: {impl: a}
  other:
    command: [echo, "{n}"]
    profilers: [plain]
    matrix: {n: [1, 2]}
"""


def request(folder, text=PIPELINE):
    path = folder / "pipeline.yaml"
    path.write_text(text, encoding="utf-8")
    return RunRequest.create(load_pipeline(path, env={}), path, folder / "out")


def tasks(folder, spread):
    plan = submit.plan_tasks(request(folder, f"{PIPELINE}slurm: {{spread: {spread}}}\n"), comparisons)
    return [(task.workload, task.cases, task.profilers) for task in plan]


def test_cases_that_the_report_compares_are_one_task(tmp_path):
    every = ("plain", "nsys", "ncu")
    assert tasks(tmp_path, "comparisons") == [
        ("attention", ("n=1,impl=a", "n=1,impl=b"), every),
        ("attention", ("n=2,impl=a", "n=2,impl=b"), every),
        ("other", ("n=1",), ("plain",)),
        ("other", ("n=2",), ("plain",)),
    ]


def test_each_case_is_a_task_or_each_case_under_each_profiler(tmp_path):
    assert [cases for _, cases, _ in tasks(tmp_path, "cases")] == [
        ("n=1,impl=a",), ("n=1,impl=b",), ("n=2,impl=a",), ("n=2,impl=b",), ("n=1",), ("n=2",),
    ]  # fmt: skip
    # Guided ncu takes the names of its kernels from nsys, so the two stay together.
    assert tasks(tmp_path, "all")[:2] == [
        ("attention", ("n=1,impl=a",), ("plain",)),
        ("attention", ("n=1,impl=a",), ("nsys", "ncu")),
    ]


def test_the_plan_is_read_as_it_was_written(tmp_path):
    plan = submit.plan_tasks(request(tmp_path), comparisons)
    records.save_plan(tmp_path, plan)
    assert list(records.load_plan(tmp_path)) == plan
    (tmp_path / "slurm" / "plan.json").write_text('{"spread": "all", "tasks": [{"index": 7}]}')
    with pytest.raises(ConfigError, match=r"plan\.json: is not the plan that profpipe wrote"):
        records.load_plan(tmp_path)


def script_of(settings, folder, tasks, place):
    workloads = {"w": {"command": ["true"]}}
    pipeline = Pipeline.model_validate({"version": 1, "name": "sweep", "workloads": workloads})
    own = RunRequest(pipeline.model_copy(update={"slurm": settings}), place / "pipeline.yaml", folder.parent)
    return submit.write_script(own, folder, tasks)


def test_the_batch_script_is_the_golden_one(regenerate):
    settings = Slurm(
        partition="gpu",
        gres="gpu:h100:1",
        constraint="[rack1|rack2]",
        time="1:30:00",
        array_limit=8,
        setup="module load cuda\nsource venv/bin/activate",
        launcher="apptainer exec --nv 'my image.sif'",
        python="python3",
        options=["--mem=64G", "-A", "physics", '--comment=a "b" \\ c #d'],
    )
    text = script_of(settings, Path("/shared/out/it's 100 %/run"), 42, Path("/shared/it's"))
    check_golden("slurm.sh", re.sub(r"profpipe [\d.]+\.", "profpipe 1.2.3.", text), regenerate)


def test_a_word_of_the_command_stays_one_word(tmp_path):
    folder = tmp_path / "a; touch $(whoami) 'b'"
    lines = script_of(Slurm(python="py thon"), folder, 1, folder).splitlines()
    assert shlex.split(lines[-1])[:6] == ["exec", "py thon", "-m", "profpipe", "task", str(folder)]
    assert shlex.split(next(line for line in lines if line.startswith("cd ")))[1] == str(folder)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("time: 1:30:00", r"slurm\.time: must be in quotes"),
        ("partition: \"gpu\\n#SBATCH --uid=0\"", r"slurm\.partition: is not one line of text"),
        ("partitoin: gpu", r"slurm: unknown key 'partitoin'\. Did you mean 'partition'"),
        ("spread: nodes", r"slurm\.spread: 'nodes' is not known"),
        ("options: [--array=0-9]", r"slurm\.options: --array cannot be given"),
        ("options: [-a0-9]", r"slurm\.options: --array cannot be given"),
        ("options: [64G]", r"slurm\.options: '64G' is no option of sbatch"),
        ("array_limit: 0", r"slurm\.array_limit"),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_refused_with_its_place(tmp_path, text, message):
    with pytest.raises(ConfigError, match=message):
        request(tmp_path, f"{PIPELINE}slurm: {{{text}}}\n")


def test_settings_of_the_command_line_are_text(tmp_path):
    path = tmp_path / "pipeline.yaml"
    path.write_text(PIPELINE, encoding="utf-8")
    overrides = ["slurm.time=1:30:00", "slurm.array_limit=4", "slurm.options=--mem=4G --exclusive"]
    settings = load_pipeline(path, overrides).slurm
    assert settings == Slurm(time="1:30:00", array_limit=4, options=("--mem=4G", "--exclusive"))
    assert Pipeline.model_validate(load_pipeline(path, overrides).model_dump(mode="json")).slurm == settings


def test_what_the_batch_script_sets_is_in_private_files_only(tmp_path, capsys):
    own = request(tmp_path, f"{PIPELINE}slurm: {{setup: [export DB_PASSWORD=hunter2-hunter2, module load cuda]}}\n")
    run = submit.create(own, ["profpipe"], comparisons)
    holders = [path for path in run.rglob("*") if path.is_file() and "hunter2" in path.read_text(errors="replace")]
    assert sorted(path.name for path in holders) == ["job.sh", "request.json"]
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in holders)
    words = "options: ['--export=ALL,HF_TOKEN=a-b,X=1', --mem=4G], launcher: [apptainer, --env, DB_PASSWORD=p=q, i.sif]"
    path = tmp_path / "words.yaml"
    path.write_text(f"{PIPELINE}slurm: {{{words}}}\n", encoding="utf-8")
    settings = manifest_entries.published(load_pipeline(path)).slurm
    assert list(settings.options) == ["--export=ALL,HF_TOKEN=...,X=1", "--mem=4G"]
    assert list(settings.launcher) == ["apptainer", "--env", "DB_PASSWORD=...", "i.sif"]
    words = "options: ['--export=ALL,wandb_key=s3cr3t-abcd-99,db_pass=hunter2hunter2'], "
    path.write_text(f"{PIPELINE}slurm: {{{words}launcher: [--env-HF_TOKEN=$abc, api_auth=...abc]}}\n", encoding="utf-8")
    settings = manifest_entries.published(load_pipeline(path)).slurm
    assert list(settings.options) == ["--export=ALL,wandb_key=...,db_pass=..."]
    assert list(settings.launcher) == ["--env-HF_TOKEN=...", "api_auth=..."]
    # A run of somebody else shows the lines before it is resumed.
    with pytest.raises(ConfigError, match="add --trust"):
        resume.confirm(run, "it is not in the list of your runs", is_trusted=False)
    assert "module load cuda" in capsys.readouterr().err


def test_the_value_in_a_word_of_a_command_is_kept_elsewhere_if_it_is_a_short_word(tmp_path):
    command = "{command: [python, x.py, '{seqlen}', SORT_KEY=seqlen], matrix: {seqlen: [1, 2]}, profilers: [plain]}"
    own = request(tmp_path, f"version: 1\nname: words\nworkloads:\n  sort: {command}\n")
    settings = manifest_entries.published(own.pipeline, own.secrets).workloads["sort"]
    assert list(settings.command) == ["python", "x.py", "{seqlen}", "SORT_KEY=***"] and "seqlen" in settings.matrix


def test_options_after_the_dashes_are_published_without_secrets(tmp_path):
    words = ["--export=ALL,DB_PASSWORD=hunter2-hunter2,db_pass=tok-tok", "--comment", "MY_TOKEN=tok-tok-t", "--mem=4G"]
    own = cluster.add_options(request(tmp_path, PIPELINE), words, "profpipe run --slurm")
    run = submit.create(own, ["profpipe", "run", "--slurm", "--", *words], comparisons)
    texts = {path.name: path.read_text(errors="replace") for path in run.rglob("*") if path.is_file()}
    holders = [name for name, text in texts.items() if "hunter2" in text or "tok-tok" in text]
    assert sorted(holders) == ["job.sh", "request.json"]
    command = json.loads(texts["run.json"])["command"]
    assert command[4:] == ["--export=ALL,DB_PASSWORD=...,db_pass=...", "--comment", "MY_TOKEN=...", "--mem=4G"]


@pytest.mark.parametrize("command", ["run --slurm", "ab --slurm", "resume"])
def test_a_wrong_option_of_sbatch_is_said_to_be_of_the_command_that_was_typed(tmp_path, capsys, command):
    run = submit.create(request(tmp_path), ["profpipe"], comparisons)
    of_command = {"resume": [str(run), "--trust"], "ab --slurm": [str(tmp_path / "pipeline.yaml"), "--aa"]}
    words = [*command.split(), *of_command.get(command, [str(tmp_path / "pipeline.yaml")])]
    assert cli.main([*words, "--", "--array=1-2"]) == 2
    assert f"profpipe {command} --: " in capsys.readouterr().err


def test_a_dry_run_prints_the_script_and_the_tasks_and_writes_nothing(tmp_path):
    (tmp_path / "p.yaml").write_text(PIPELINE, encoding="utf-8")
    printed = profpipe(tmp_path, "run", "p.yaml", "--slurm", "--dry-run", "--", "--mem=4G", "-p", "gpu")
    assert "#SBATCH --mem=4G\n#SBATCH -p gpu\n" in printed and "#SBATCH --array=0-3\n" in printed
    assert "# 0: attention under plain, nsys, ncu: 2 cases\n#   n=1,impl=a\n#   n=1,impl=b\n" in printed
    assert [path.name for path in tmp_path.iterdir()] == ["p.yaml"]


def test_an_unknown_workload_is_refused_before_the_plan_is_shown(tmp_path):
    own = replace(request(tmp_path), workloads=("atention",))
    with pytest.raises(ConfigError, match="atention"):
        submit.plan_tasks(own, comparisons)


def test_a_folder_that_cannot_stand_in_a_batch_script_is_refused(tmp_path):
    own = replace(request(tmp_path), out=tmp_path / "a\n#SBATCH --uid=0")
    with pytest.raises(ConfigError, match=r"cannot stand in a batch script\. Choose another --out\."):
        submit.create(own, ["profpipe"], comparisons)
    assert not own.out.exists()


def test_indices_are_written_and_read_as_slurm_does():
    assert queue.indices([0, 1, 2, 3, 7, 9, 10]) == "0-3,7,9-10"
    assert list(queue.expand("[0-3,7,9-10%4]")) == [0, 1, 2, 3, 7, 9, 10]
    assert list(queue.expand("0-8:4")) == [0, 4, 8] and list(queue.expand("N/A")) == []


# --- records ---------------------------------------------------------------------------------------------------------


def record(index, attempt=1, state=TaskState.DONE, node="n1"):
    job = JobEntry("w", "plain", (f"n={index}",), folder=f"raw/w/task-{index:04d}", node=node)
    row = ["run", "w", f"n={index}", "plain", "ok", f"attempt {attempt}", "{}", 1.5, "[]"]
    cases = {"columns": schema.CASES.names, "rows": [row]}
    task = Task(index, "w", (f"n={index}",), ("plain",), state=state, attempt=attempt, node=node, job=f"7_{index}")
    return TaskRecord(Manifest(jobs=(job,), tasks=(task,)), {"cases": json.dumps(cases)})


@pytest.fixture
def run_folder(tmp_path):
    """A run of three tasks with one case each, of which none was submitted."""
    folder = tmp_path / "run"
    records.save_plan(folder, [Task(i, "w", (f"n={i}",), ("plain",)) for i in range(3)])
    Manifest(name="run", ended=None, planned=(PlannedJob("w", "plain", ("n=0", "n=1", "n=2")),)).save(folder)
    return folder


def test_the_last_complete_record_of_a_task_counts_and_only_that(run_folder):
    for each in (record(0), record(1), record(1, 2), record(1, 3, TaskState.RUNNING), record(2, 1, TaskState.RUNNING)):
        each.save(run_folder)
    data, known = collect.collect(run_folder, {})
    assert list(data.cases["case"]) == ["n=0", "n=1", "n=2"]
    assert list(data.cases["reason"]) == ["attempt 1", "attempt 2", "attempt 1"]
    assert [job.cases for job in known.jobs] == [("n=0",), ("n=1",), ("n=2",)]
    assert [(task.state, task.attempt) for task in known.tasks] == [
        (TaskState.DONE, 1), (TaskState.DONE, 2), (TaskState.NOT_SUBMITTED, 0),
    ]  # fmt: skip
    assert known.ended is None
    record(2, 2).save(run_folder)
    assert collect.collect(run_folder, {})[1].ended


def test_a_record_that_is_being_written_is_no_record(run_folder):
    (run_folder / "slurm" / "records" / ".0000-1.json.0123456789abcdef.partial").write_text('{"index": 0')
    assert not records.read_records(run_folder)
    record(0).save(run_folder)
    path = run_folder / "slurm" / "records" / "0000-1.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_text(path.read_text()[:-9])
    with pytest.raises(ConfigError, match=r"0000-1\.json: is not the record that profpipe wrote"):
        records.read_records(run_folder)


def test_what_killed_tasks_copied_in_part_is_removed_when_all_tasks_are_done(run_folder):
    job = run_folder / "raw" / "w" / "task-0000" / "plain"
    copied, own = job.with_name(atomic.temporary_name("nsys")), job.with_name(".mine.partial")
    for folder in (job, copied, own):
        folder.mkdir(parents=True)
        (folder / "log.txt").touch()
    for index in range(3):
        # The tasks that are left may still be copying.
        collect.collect(run_folder, {})
        assert copied.exists()
        record(index).save(run_folder)
    collect.collect(run_folder, {})
    assert sorted(path.name for path in job.parent.iterdir()) == [".mine.partial", "plain"]


def test_attempts_have_different_numbers(run_folder):
    starts = [records.begin(run_folder, Task(1), node, "7_1") for node in ("n1", "n2")]
    assert [start.attempt for start in starts] == [1, 2]
    assert records.read_starts(run_folder) == starts


def test_files_that_profpipe_did_not_write_are_no_submission_and_no_start(run_folder):
    (run_folder / "slurm" / "submissions").mkdir()
    path = run_folder / "slurm" / "submissions" / "7.json"
    path.write_text('{"job": 7')
    with pytest.raises(ConfigError, match=r"7\.json: is not the submission that profpipe wrote"):
        queue.read_submissions(run_folder)
    path.unlink()
    for pipe in (path, run_folder / "slurm" / "starts" / "0001-1.json"):
        os.mkfifo(pipe)
    with pytest.raises(ConfigError, match="is no regular file"):
        queue.read_submissions(run_folder)
    assert records.read_starts(run_folder) == [Task(1, attempt=1)]


def test_a_state_that_was_seen_of_the_last_array_is_kept_where_slurm_has_forgotten_it(run_folder):
    records.begin(run_folder, Task(0), "n1", "7_0")
    queue.Submission(8, (0,)).save(run_folder)
    before = Task(0, "w", ("n=0",), ("plain",), state=TaskState.CANCELLED, job="8_0")
    (first, *_) = collect.describe_tasks(run_folder, records.load_plan(run_folder), {}, {}, [before])
    assert (first.state, first.job) == (TaskState.CANCELLED, "8_0")


def test_records_of_another_version_are_refused(run_folder):
    record(0).save(run_folder)
    other = record(1)
    tables = {"cases": other.tables["cases"].replace('"seconds"', '"duration"')}
    replace(other, tables=tables).save(run_folder)
    with pytest.raises(ConfigError, match="has other columns in the record of task 1"):
        collect.collect(run_folder, {})


def test_collect_renders_no_template_that_a_foreign_run_names(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path / "no Slurm here"))
    run = submit.create(request(tmp_path), ["profpipe"], comparisons)
    for place in (tmp_path, run / "inside"):
        (place / "templates").mkdir(parents=True)
        (place / "templates" / "SUMMARY.md.j2").write_text("template of the pipeline\n")
    options = argparse.Namespace(json=None, quiet=True, csv=False)
    assert cluster.collect(run, options) == 1
    assert (run / "SUMMARY.md").read_text() == "template of the pipeline\n"
    order = run / "raw" / "request.json"
    for named in ("inside/pipeline.yaml", f"{tmp_path}/./pipeline.yaml"):
        order.write_text(json.dumps({**json.loads(order.read_text()), "path": named}))
        cluster.collect(run, options)
        assert "template of" not in (run / "SUMMARY.md").read_text()
    assert "or its request was changed. The templates of its pipeline are not used." in capsys.readouterr().err


def test_collect_says_what_no_array_has(run_folder):
    with pytest.raises(ConfigError, match="is no run on a cluster"):
        records.load_plan(run_folder.parent)
    record(1).save(run_folder)
    assert [task.state for task in collect.collect(run_folder, {})[1].tasks] == [
        TaskState.NOT_SUBMITTED, TaskState.DONE, TaskState.NOT_SUBMITTED,
    ]  # fmt: skip
