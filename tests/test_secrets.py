"""The values of secret variables in a command: its processes get them, and nothing that is published holds them."""

import json
from dataclasses import replace

import pytest
from jobs import change

from profpipe import errors
from profpipe.commands import execution
from profpipe.config import loader
from profpipe.job import Command, JobOutcome, Tool
from profpipe.results import manifest_entries, raw_files
from profpipe.runner import artifacts, plan
from profpipe.runner.outcome import OK
from profpipe.runner.request import RunRequest

VALUES = {"HF_TOKEN": "hf_abcdef", "DB_PASS": "", "STEPS": "300"}
PIPELINE = """
version: 1
name: mine
workloads:
  w:
    command: [python, t.py, --token, "${HF_TOKEN}", "--db=${DB_PASS:-hunter2}:{n}", "--steps=${STEPS}"]
    profilers: [plain]
    matrix: {n: [1, 2]}
  other:
    command: [echo, hello]
    profilers: [plain]
"""


@pytest.fixture
def order(tmp_path, monkeypatch):
    for name, value in VALUES.items():
        monkeypatch.setenv(name, value)
    path = tmp_path / "pipeline.yaml"
    path.write_text(PIPELINE)
    return RunRequest.create(loader.load_pipeline(path), path, tmp_path / "out", (), ())


def jobs_of(order):
    tools = {"plain": Tool("plain", "1")}
    jobs = plan.plan(order.pipeline, tools, scripts={}, cwd=order.pipeline_dir, out=order.out, python="python")
    return [change(job, secrets=order.secrets) for job in jobs]


def entry(job, out):
    ended, commands = JobOutcome(job, OK), [Command(job.command)]
    return manifest_entries.job_entry(ended, commands, out)


def published(order):
    """All of the record that is made of commands."""
    command = ["profpipe", "run", "--", "bash", "-c", "MY_API_KEY=EMPTY x --mode 7"]
    record = manifest_entries.begin_run(order.pipeline, {}, command, secrets=order.secrets)
    entries = [entry(job, order.out) for job in jobs_of(order)]
    return json.dumps(replace(record, jobs=tuple(entries)).as_json())


def test_the_record_has_the_names_of_secret_variables_and_the_values_of_others(order):
    text = published(order)
    assert "hf_abcdef" not in text and "hunter2" not in text and "MY_API_KEY=... x --mode 7" in text
    for placeholder in ("${HF_TOKEN}", "--db=${DB_PASS}:{n}", "--db=${DB_PASS}:2", "--steps=300"):
        assert json.dumps(placeholder) in text


def test_processes_get_the_values_of_secret_variables(order):
    assert jobs_of(order)[1].command == ("python", "t.py", "--token", "hf_abcdef", "--db=hunter2:2", "--steps=300")


def test_a_dry_run_shows_commands_without_the_values_of_secret_variables(order, capsys):
    execution.print_jobs(order)
    shown = capsys.readouterr().out
    assert "hf_abcdef" not in shown and "hunter2" not in shown
    assert "python t.py --token '${HF_TOKEN}' '--db=${DB_PASS}:2' --steps=300" in shown


def test_a_resumed_run_knows_its_secrets_after_the_environment_has_changed(order, tmp_path, monkeypatch):
    order.save(tmp_path / "out" / "run")
    monkeypatch.setenv("HF_TOKEN", "another")
    (tmp_path / "pipeline.yaml").unlink()
    again = RunRequest.load(tmp_path / "out" / "run")
    assert again == order and "hf_abcdef" not in published(again)


def test_a_pipeline_without_secret_variables_has_no_secrets(order):
    text = PIPELINE.replace("--token", "--host").replace("${HF_TOKEN}", "${HOST_OF:-here}")
    order.path.write_text(text.replace("DB_PASS", "PATH_OF_DB"))
    assert RunRequest.create(loader.load_pipeline(order.path), order.path, order.out, (), ()).secrets == {}


def test_the_published_output_has_no_line_of_a_key_whose_begin_is_cut_off(order, tmp_path):
    job = change(jobs_of(order)[0], folder=tmp_path)
    key = [f"{n:064d}" for n in range(30)]
    lines = ["-----BEGIN PRIVATE KEY-----", *key, "-----END PRIVATE KEY-----", *["x" * 63] * 244]
    (tmp_path / "log.txt").write_text("\n".join([*lines, ""]))
    artifacts.publish_output(job)
    text = (tmp_path / raw_files.OUTPUT).read_text()
    assert len(text) <= 1 << 14 and text.count("x" * 63) == 244 and not any(line in text for line in key)


def test_a_secret_at_the_cut_of_a_message_is_masked_whole():
    for size in range(250, 300):
        text = errors.words(ValueError("x " * (size // 2) + "hf_QwErTyUiOpAsDfGhJkLzXcVbNm1234"))
        assert "hf_" not in text
