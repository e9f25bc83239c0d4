"""The values of secret variables in a command: its processes get them, and nothing that is published holds them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from profpipe import config, plan, record, workflow
from profpipe.job import Command, Job, Outcome, Tool
from profpipe.order import Order

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
def order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Order:
    for name, value in VALUES.items():
        monkeypatch.setenv(name, value)
    path = tmp_path / "pipeline.yaml"
    path.write_text(PIPELINE)
    return Order.of(config.load_pipeline(path), path, tmp_path / "out", (), ())


def jobs_of(order: Order) -> list[Job]:
    tools = {"plain": Tool("plain", "1")}
    jobs = plan.plan(order.pipeline, tools, scripts={}, cwd=order.beside, out=order.out, python="python")
    return [replace(job, secrets=order.secrets) for job in jobs]


def published(order: Order) -> str:
    """All of the record that is made of commands."""
    begun = record.begun(
        order.pipeline, now=record.utc_now(), machine={}, packages={}, tools={}, git={}, command=["profpipe", "run"],
        secrets=order.secrets,
    )  # fmt: skip
    entries = [record.job(Outcome(job, "ok"), [Command(job.command)], order.out, "", "", {}) for job in jobs_of(order)]
    return json.dumps([begun, entries])


def test_the_record_has_the_names_of_secret_variables_and_the_values_of_others(order: Order) -> None:
    text = published(order)
    assert "hf_abcdef" not in text and "hunter2" not in text
    for told in ("${HF_TOKEN}", "--db=${DB_PASS}:{n}", "--db=${DB_PASS}:2", "--steps=300"):
        assert json.dumps(told) in text


def test_the_processes_get_the_values(order: Order) -> None:
    assert jobs_of(order)[1].command == ("python", "t.py", "--token", "hf_abcdef", "--db=hunter2:2", "--steps=300")


def test_a_dry_run_shows_commands_without_the_values_of_secret_variables(
    order: Order, capsys: pytest.CaptureFixture[str]
) -> None:
    workflow.show(order)
    shown = capsys.readouterr().out
    assert "hf_abcdef" not in shown and "hunter2" not in shown
    assert "python t.py --token '${HF_TOKEN}' '--db=${DB_PASS}:2' --steps=300" in shown


def test_a_resumed_run_knows_its_secrets_whatever_the_environment_says_by_then(
    order: Order, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order.save(tmp_path / "out" / "run")
    monkeypatch.setenv("HF_TOKEN", "another")
    (tmp_path / "pipeline.yaml").unlink()
    again = Order.load(tmp_path / "out" / "run")
    assert again == order and "hf_abcdef" not in published(again)


def test_what_needs_no_secret_has_none(order: Order) -> None:
    order.path.write_text(PIPELINE.replace("${HF_TOKEN}", "${HOST_OF:-here}").replace("DB_PASS", "PATH_OF_DB"))
    assert Order.of(config.load_pipeline(order.path), order.path, order.out, (), ()).secrets == {}
