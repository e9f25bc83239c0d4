"""action.yml and the reusable workflow: the script runs as GitHub runs it, and the inputs fit together."""

import argparse
import os
import subprocess
import sys
from pathlib import Path

import pytest
import test_ab
import yaml
from test_ab import project  # noqa: F401 - a fixture

from profpipe.commands import ab

ROOT = Path(__file__).parents[1]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
(STEP,) = ACTION["runs"]["steps"]
# YAML 1.1 reads `on` as true.
WORKFLOW = yaml.safe_load((ROOT / ".github" / "workflows" / "gate.yml").read_text())


def run_step(folder, tmp_path, program, base, inconclusive="pass"):
    """Run the script of the action in the checkout ``folder`` with a shell script as `profpipe`; return its outputs."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "profpipe").write_text(f"#!/bin/sh\n{program}\n")
    (tools / "profpipe").chmod(0o755)
    variables = test_ab.environment() | {
        "PATH": f"{tools}:{os.environ['PATH']}", "PIPELINE": "pipeline.yaml", "BASE": base, "GATE": "2",
        "INCONCLUSIVE": inconclusive, "RUN": "https://example.org/run",
    }  # fmt: skip
    assert variables.keys() >= STEP["env"].keys() - {"OUT"}
    variables |= {name: str(tmp_path / name) for name in ("OUT", "GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    Path(variables["GITHUB_OUTPUT"]).touch()
    # GitHub's `shell: bash`.
    words = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", STEP["run"]]
    done = subprocess.run(words, cwd=folder, env=variables, capture_output=True, encoding="utf-8")
    lines = Path(variables["GITHUB_OUTPUT"]).read_text().splitlines()
    return done, dict(line.split("=", 1) for line in lines)


@pytest.fixture
def checkout(tmp_path):
    folder = tmp_path / "checkout"
    folder.mkdir()
    words = ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "first"]
    for command in (["init", "-q"], words):
        subprocess.run(["git", *command], cwd=folder, check=True)
    return folder


@pytest.mark.parametrize(("inconclusive", "expected"), [("pass", "pass"), ("", None)])
def test_the_script_asks_for_a_gate_and_writes_a_comment(checkout, tmp_path, inconclusive, expected):
    (tmp_path / "SUMMARY.md").write_text("# B against A\n\n**Gate of 2 %:** failed\n\n## Cases\n\n| case |\n")
    program = f'printf "%s\\n" "$@" > words; echo "folder={tmp_path}" >> "$GITHUB_OUTPUT"; exit 4'
    done, outputs = run_step(checkout, tmp_path, program, "HEAD", inconclusive)
    assert done.returncode == 4, done.stderr
    command, *words = (checkout / "words").read_text().splitlines()
    parser = argparse.ArgumentParser()
    ab.add_arguments(parser)
    args = parser.parse_args(words)
    assert (command, args.pipeline, args.gate, args.inconclusive, args.github) == (
        "ab", "pipeline.yaml", 2, expected, True,
    )  # fmt: skip
    assert args.a[0].startswith("git:") and args.json == "profpipe.json"
    comment = Path(outputs["comment"])
    assert comment == checkout / "profpipe.md"
    assert comment.read_text() == "# B against A\n\n**Gate of 2 %:** failed\n\n\n[All cases](https://example.org/run)\n"


def test_a_comparison_that_did_not_begin_fails_the_step_and_has_no_comment(checkout, tmp_path):
    done, outputs = run_step(checkout, tmp_path, "exit 2", "HEAD")
    assert done.returncode == 2 and outputs == {}
    assert not (checkout / "profpipe.md").exists()


@pytest.mark.slow
@pytest.mark.exhaustive
def test_the_action_compares_a_branch_with_its_base(project, tmp_path):  # noqa: F811
    base = test_ab.git(project, "rev-parse", "HEAD")
    (project / "sums.py").write_text(test_ab.WORKLOAD.replace("2000", "20000"))
    test_ab.commit(project, "slower")
    done, outputs = run_step(project, tmp_path, f'exec {sys.executable} -m profpipe "$@"', base)
    assert done.returncode == 4, done.stdout + done.stderr
    assert outputs["gate"] == "failed" and "**Gate of 2 %:** failed by" in Path(outputs["comment"]).read_text()


def test_the_workflow_gives_inputs_that_the_action_has_and_reads_its_outputs():
    job = WORKFLOW["jobs"]["gate"]
    (step,) = (step for step in job["steps"] if step.get("id") == "gate")
    inputs = WORKFLOW[True]["workflow_call"]["inputs"]
    assert set(step["with"]) <= ACTION["inputs"].keys()
    assert step["uses"] == f"./{job['steps'][1]['with']['path']}"
    for name in step["with"]:
        assert inputs[name]["default"] == ACTION["inputs"][name]["default"]
    assert {"folder", "comment"} <= ACTION["outputs"].keys()
    # Nothing after the comparison fails the job, and each such step runs also where the gate failed.
    after = job["steps"][job["steps"].index(step) + 1 :]
    assert [(one["continue-on-error"], "always()" in one["if"]) for one in after] == [(True, True)] * 2
