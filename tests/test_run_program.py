"""``profpipe run -- PROGRAM``: a program as it is, without a pipeline file."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import forked
import pytest
import yaml
from program import ROOT, profpipe, rows

from profpipe.config import program
from profpipe.config.loader import load_pipeline
from profpipe.runner.request import RunRequest

TRAIN = """
import json, os, sys
with open("seen.jsonl", "a") as stream:
    seen = {"argv": sys.argv[1:], "cwd": os.getcwd(), "data": os.environ.get("DATA_DIR")}
    stream.write(json.dumps(seen) + "\\n")
"""


@pytest.fixture
def project(tmp_path):
    """A project with a folder `parsers`, which has nothing to do with profpipe."""
    folder = tmp_path / "project"
    (folder / "parsers").mkdir(parents=True)
    (folder / "parsers" / "page.py").write_text("raise SystemExit('profpipe must not load this')\n", encoding="utf-8")
    (folder / "train.py").write_text(TRAIN, encoding="utf-8")
    return folder


def seen(folder):
    return [json.loads(line) for line in (folder / "seen.jsonl").read_text(encoding="utf-8").splitlines()]


def refusal(folder, *arguments):
    """The message of a run that is refused with exit code 2 before anything runs."""
    done = forked.run(folder, "run", *arguments, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert (done.returncode, done.stdout) == (2, "") and not (folder / "out").exists()
    return done.stderr


def test_a_program_runs_in_the_users_folder_and_its_file_repeats_the_run_from_another(project):
    profpipe(project, "run", "-p", "plain", "--", "python", "train.py", "--batch", "8", "-w", "--")
    file = project / "out" / "latest" / "pipeline.yaml"
    assert seen(project) == [{"argv": ["--batch", "8", "-w", "--"], "cwd": str(project), "data": None}]
    elsewhere = project.parent / "elsewhere"
    elsewhere.mkdir()
    profpipe(elsewhere, "run", file)
    first, second = seen(project)
    assert first == second
    runs = [rows(folder / "out" / "latest" / "cases.csv") for folder in (project, elsewhere)]
    assert [[(row["workload"], row["case"], row["status"]) for row in run] for run in runs] == [
        [("train", "default", "ok")]
    ] * 2


def test_the_page_says_how_to_repeat_it(project):
    profpipe(project, "run", "-p", "plain", "--", "python", "train.py")
    page = (project / "out" / "latest" / "SUMMARY.md").read_text(encoding="utf-8")
    assert "profpipe run -p plain -- python train.py" in page and "`profpipe run pipeline.yaml`" in page
    assert page.startswith("# train · 1 case")


def test_a_profiler_that_is_missing_is_a_row_and_no_failure(project):
    profpipe(project, "run", "--out", "o", "--", "python", "train.py", PATH=str(Path(sys.executable).parent))
    statuses = {row["profiler"]: row["status"] for row in rows(project / "o" / "latest" / "cases.csv")}
    assert statuses == {"plain": "ok", "torch": "skipped", "nsys": "skipped"}


@pytest.mark.slow
def test_set_changes_the_file_and_a_key_in_braces_makes_an_axis(project):
    options = ["-p", "plain", "--set", "repeats=3", "--set", "batch=8,16"]
    profpipe(project, "run", *options, "--", "python", "train.py", "{batch}", "{x}")
    words = sorted(" ".join(map(str, each["argv"])) for each in seen(project))
    assert words == sorted(["8 {x}", "16 {x}"] * 3)
    pipeline = load_pipeline(project / "out" / "latest" / "pipeline.yaml")
    workload = pipeline.workloads["train"]
    assert (workload.repeats, workload.matrix, workload.baseline) == (3, {"batch": [8, 16]}, {"batch": 8})


@pytest.mark.slow
def test_an_interrupted_run_of_a_program_is_resumed_from_any_folder(project):
    profpipe(project, "run", "-p", "plain", "--", "python", "train.py")
    run = (project / "out" / "latest").resolve()
    record = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**record, "ended": None, "jobs": []}))
    (run / "raw" / "train" / "plain" / "job.jsonl").unlink()
    profpipe(project.parent, "resume", run)
    assert [each["cwd"] for each in seen(project)] == [str(project)] * 2


@pytest.mark.slow
@pytest.mark.parametrize("given", [set(), {"measure"}])
def test_a_resumed_run_knows_which_steps_the_user_gave(project, given):
    profpipe(project, "run", "-p", "plain", *(["--measure-steps", "20"] if given else []), "--", "python", "train.py")
    request = RunRequest.load((project / "out" / "latest").resolve())
    assert request.pipeline.workloads["train"].steps.model_fields_set == given


@pytest.mark.slow
def test_a_program_that_was_interrupted_in_its_steps_counts_once(tmp_path, stub_torch):
    text = "import time, torch\nnet = torch.nn.Linear(2, 2); opt = torch.optim.SGD(net.parameters(), 0.1)\n"
    text += "for step in range(40): time.sleep(0.02); opt.step(); print(step, flush=True)\n"
    (tmp_path / "train.py").write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "profpipe", "run", "-p", "plain", "--", sys.executable, "train.py"]
    env = {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ["PYTHONPATH"]]),
    }
    null = subprocess.DEVNULL
    with subprocess.Popen(command, cwd=tmp_path, env=env, stdout=null, stderr=null) as process:
        log = tmp_path / "out" / "latest" / "raw" / "train" / "plain" / "log.txt"
        deadline = time.monotonic() + 60
        while not (log.exists() and "20" in log.read_text().split()) and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
    assert process.returncode == 130
    profpipe(tmp_path, "resume", "out/latest")
    steps = rows(tmp_path / "out" / "latest" / "steps.parquet")
    assert len({row["process"] for row in steps}) == 1 and len(steps) >= 39


@pytest.mark.slow
def test_the_program_gets_the_variables_of_the_shell_or_with_clean_env_those_that_are_named(project):
    for options in ([], ["--clean-env"], ["--clean-env", "--env", "DATA_DIR"], ["--env", "DATA_DIR=/other"]):
        profpipe(project, "run", "-p", "plain", *options, "--", "python", "train.py", DATA_DIR="/data")
    assert [each["data"] for each in seen(project)] == ["/data", None, "/data", "/other"]


@pytest.mark.slow
def test_a_program_without_dashes_is_understood(project):
    profpipe(project, "run", "-p", "plain", "--env", "DATA_DIR=1", "python", "train.py", "--batch", "010")
    profpipe(project, "run", "--name", "small", "--profiler=plain", "train.py", "--name", "8")
    assert [each["argv"] for each in seen(project)] == [["--batch", "010"], ["--name", "8"]]
    run = (project / "out" / "latest").resolve()
    assert run.name.endswith("-small")
    assert "profpipe run --name small --profiler=plain -- python train.py --name 8" in (run / "SUMMARY.md").read_text()


def test_the_name_of_a_run_may_be_set_too(project):
    printed = profpipe(project, "run", "-p", "plain", "--dry-run", "--set", "name=small", "--", "python", "train.py")
    assert "# small under plain: 1 case" in printed


# --- secrets ---------------------------------------------------------------------------------------------------------


def test_no_secret_of_the_arguments_is_written_and_the_program_gets_them_all(project):
    words = ["--hub-token", "hf_s3cret", "--password=hunter2", "--db", "pg://me:pa55word@host", "--tokenizer", "gpt2"]
    profpipe(project, "run", "-p", "plain", "--", "python", "train.py", *words, DB_PASS="pa55word")
    (only,) = seen(project)
    assert only["argv"] == words
    run = project / "out" / "latest"
    private = [run / name for name in json.loads((run / "run.json").read_text())["private_files"]]
    public = [path for path in run.rglob("*") if path.is_file() and path not in private]
    texts = {path: path.read_bytes() for path in [*public, project / "out" / "profpipe.db"]}
    for secret in (b"hf_s3cret", b"hunter2", b"pa55word"):
        assert [path for path, text in texts.items() if secret in text] == []
    assert run / "raw" / "request.json" in private and all(path.stat().st_mode & 0o077 == 0 for path in private)
    written = yaml.safe_load((run / "pipeline.yaml").read_text())["workloads"]["train"]["command"]
    assert written[2:] == [
        "--hub-token", "${HUB_TOKEN}", "--password=${PASSWORD}", "--db", "pg://me:${DB_PASS}@host",
        "--tokenizer", "gpt2",
    ]  # fmt: skip
    assert "# Set HUB_TOKEN, PASSWORD before" in (run / "pipeline.yaml").read_text()
    given = {"DB_PASS": "pa55word", "HUB_TOKEN": "hf_s3cret", "PASSWORD": "hunter2"}
    profpipe(project, "run", run.resolve() / "pipeline.yaml", "--out", "again", **given)
    assert seen(project)[1]["argv"] == words


@pytest.mark.slow
def test_a_placeholder_among_the_arguments_reaches_the_program_as_it_is(project):
    profpipe(project, "run", "-p", "plain", "--", "python", "train.py", "${HOME}", "${X:-y}")
    profpipe(project, "run", (project / "out" / "latest").resolve() / "pipeline.yaml")
    assert [each["argv"] for each in seen(project)] == [["${HOME}", "${X:-y}"]] * 2


def test_only_options_that_take_a_secret_hide_their_value():
    shown = ["--max-tokens", "128", "--key", "k", "--num-key-value-heads", "8", "--sort-key=name", "--no-token", "--x"]
    assert program.mask(shown, {}) == (shown, {})
    key = "0a1b2c3d4e5f"
    for words, name in ((["--cfg.hf-token", key], "CFG_HF_TOKEN"), (["--2nd-key", key], "_2ND_KEY")):
        assert program.mask(words, {}) == ([words[0], f"${{{name}}}"], {name: key})
    line = ["bash", "-c", "train --wandb-key {} --n 3"]
    shown_line = [word.format("${SECRET}") for word in line]
    assert program.mask([word.format(key) for word in line], {}) == (shown_line, {"SECRET": key})
    assert program.mask(["--api-key", "k"], {}) == (["--api-key", "${API_KEY}"], {"API_KEY": "k"})


def test_a_word_that_holds_a_secret_keeps_its_other_parts():
    line = ["bash", "-c", "NUM_PASS=1 python x.py --mode 17"]
    assert program.mask(line, {}) == (line, {})
    assert program.mask(["bash", "-c", "OPENAI_API_KEY=EMPTY python x.py --mode 7"], {}) == (
        ["bash", "-c", "OPENAI_API_KEY=${SECRET} python x.py --mode 7"],
        {"SECRET": "EMPTY"},
    )
    assert program.mask(["env", "A_TOKEN=first-secret,B_TOKEN=E", "python"], {}) == (
        ["env", "A_TOKEN=${SECRET},B_TOKEN=${SECRET_2}", "python"],
        {"SECRET": "first-secret", "SECRET_2": "E"},
    )
    assert program.mask(["env", "A_TOKEN=x-hunter2"], {"MY_PASS": "hunter2"}) == (
        ["env", "A_TOKEN=${SECRET}"],
        {"MY_PASS": "hunter2", "SECRET": "x-hunter2"},
    )


# --- names and mistakes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("python train.py --batch 8", "train"),
        ("torchrun --nproc-per-node 2 scripts/fine tune.py", "tune"),
        ("python -m torch.distributed.run -m pkg.train", "train"),
        ("python -m http.server", "server"),
        ("./a.out input.dat", "a.out"),
        ("bash run.sh", "run"),
        ("/usr/bin/env", "env"),
        ("./lock", "program"),
        ("./größe", "gr-e"),
    ],
)
def test_a_run_is_named_after_its_program(command, name):
    assert program.name_of(command.split()) == name


@pytest.mark.slow
def test_mistakes_say_what_to_do(project):
    assert "no program after '--'. For example: profpipe run -- python train.py" in refusal(project, "--")
    assert "there is no program 'pyhton'" in refusal(project, "--", "pyhton", "train.py")
    assert "'a b' is no name of a folder. Use letters" in refusal(project, "--name", "a b", "--", "python", "train.py")
    assert "'5' is not AFTER:FOR in seconds" in refusal(project, "--capture", "5", "--", "python", "train.py")
    assert "To run a pipeline file: profpipe run p.yaml" in refusal(project, "--", "p.yaml")
    assert "both a pipeline file, 'p.yaml', and a program" in refusal(project, "p.yaml", "--", "python", "train.py")
    assert "Did you mean 'repeats'?" in refusal(project, "--set", "repeat=2", "--", "python", "train.py")
    assert "Did you mean 'plain'?" in refusal(project, "-p", "plian", "--", "python", "train.py")
    assert "-w: chooses workloads of a pipeline file" in refusal(project, "-w", "train", "--", "python", "train.py")
    assert "DATA_DIRS is not set" in refusal(project, "--env", "DATA_DIRS", "--", "python", "train.py")
    assert "X_TOKEN looks secret" in refusal(project, "--env", "X_TOKEN=1", "--", "python", "train.py")
    assert "--env: is for a program" in refusal(project, "--env", "A=1")
    assert "--measure-steps: is for a program" in refusal(project, "--measure-steps", "3")
    assert "write capture: {after_s: 60, for_s: 5}" in refusal(project, "--capture", "1:2")
    assert "'0' is not a number of at least 1" in refusal(project, "--measure-steps", "0", "--", "python", "train.py")


def test_a_dry_run_writes_nothing_and_shows_the_command(project):
    printed = profpipe(project, "run", "-p", "plain", "--dry-run", "--", "python", "train.py", "--token", "hunter2")
    assert "in " + str(project) in printed and "python train.py --token '${TOKEN}'" in printed
    assert not (project / "out").exists() and "hunter2" not in printed


def test_the_options_for_steps_are_in_the_pipeline_file(project):
    options = ["-p", "plain", "--warmup-steps", "0", "--measure-steps", "7", "--stop"]
    profpipe(project, "run", *options, "--", "python", "train.py")
    written = yaml.safe_load((project / "out" / "latest" / "pipeline.yaml").read_text())
    assert written["workloads"]["train"]["steps"] == {"warmup": 0, "measure": 7, "stop": True}


def test_a_working_folder_must_exist_and_belongs_to_a_command(tmp_path):
    file = tmp_path / "p.yaml"
    for own, message in (
        ("{command: [ls], cwd: nowhere}", "workloads.w.cwd: there is no folder 'nowhere'"),
        ("{script: attention, cwd: .}", "'cwd' is for a 'command'"),
    ):
        file.write_text(f"version: 1\nworkloads: {{w: {own}}}\n", encoding="utf-8")
        assert message in refusal(tmp_path, str(file))
