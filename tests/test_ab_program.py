"""``profpipe ab -- PROGRAM``: two sides of a program as it is, without a pipeline file."""

import json
import subprocess

import forked
import pytest
import yaml
from program import WITHOUT_TORCH, profpipe

PROGRAM = """
import json, os, sys
with open(os.environ["SEEN"], "a") as stream:
    stream.write(json.dumps({"argv": sys.argv[1:], "cwd": os.getcwd(), "data": os.environ.get("DATA_DIR")}) + "\\n")
"""


@pytest.fixture
def project(tmp_path):
    """A repository with a program in a folder of it."""
    folder = tmp_path / "project" / "src"
    folder.mkdir(parents=True)
    (folder / "bench.py").write_text(PROGRAM, encoding="utf-8")
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    for words in (["init", "--quiet"], ["add", "--all"], [*identity, "commit", "--quiet", "--message", "one"]):
        subprocess.run(["git", "-C", str(folder.parent), *words], check=True)
    return folder


def ab(folder, *arguments):
    """Run `ab` with one pair; return what each process of the program saw, those of A first."""
    seen = folder.parents[1] / "seen.jsonl"
    seen.unlink(missing_ok=True)
    profpipe(folder, "ab", "--pairs", "1", "--seed", "1", *arguments, SEEN=str(seen), PYTHONPATH=WITHOUT_TORCH)
    processes = [json.loads(line) for line in seen.read_text(encoding="utf-8").splitlines()]
    run = json.loads((folder / "out" / "latest" / "run.json").read_text(encoding="utf-8"))
    sides = [job["folder"].split("/")[-1] for job in run["jobs"]]
    return [process for _, process in sorted(zip(sides, processes, strict=True), key=lambda pair: pair[0])]


def refusal(folder, *arguments):
    """Return the message of a command line that is refused before anything runs."""
    done = forked.run(folder, "ab", *arguments)
    assert done.returncode == 2 and not (folder / "out").exists()
    return done.stderr


@pytest.mark.slow
def test_a_name_in_braces_has_a_value_on_each_side_and_an_empty_one_is_left_out(project):
    program = ("--", "python", "bench.py", "{mode}", "-n", "{n}", '{"json": 1}')
    modes = ("--a", "set:mode=", "--b", "set:mode=--compile")
    given = ab(project, *modes, "--set", "n=3", "--env", "SEEN", *program)
    assert [process["argv"] for process in given] == [
        ["-n", "3", '{"json": 1}'],
        ["--compile", "-n", "3", '{"json": 1}'],
    ]
    assert {process["cwd"] for process in given} == {str(project)}
    file = project / "out" / "latest" / "pipeline.yaml"
    first = file.read_text(encoding="utf-8").splitlines()[0]
    assert first.endswith(": profpipe ab pipeline.yaml --pairs 1 --a set:mode= --b set:mode=--compile")
    assert ab(project, file, *modes) == given


@pytest.mark.slow
@pytest.mark.parametrize("out", ["out", "../../elsewhere"])
def test_a_commit_takes_the_place_of_the_programs_folder_also_when_its_file_is_run(project, out):
    (project / "bench.py").write_text(PROGRAM.replace("sys.argv[1:]", "['changed']"), encoding="utf-8")
    (project / "out").symlink_to(out) if out != "out" else None
    given = ab(project, "--a", "git:HEAD", "--out", out, "--env", "SEEN", "--", "python", "bench.py", "x")
    assert [process["argv"] for process in given] == [["x"], ["changed"]]
    assert str(given[0]["cwd"]).endswith("/raw/checkouts/A/src") and given[1]["cwd"] == str(project)
    assert str(project) not in (project / out / "latest" / "run.json").read_text(encoding="utf-8")
    again = ab(project, "--a", "git:HEAD", "--out", out, (project / out / "latest" / "pipeline.yaml").resolve())
    assert [process["argv"] for process in again] == [["x"], ["changed"]]


@pytest.mark.slow
def test_variables_and_a_folder_of_a_side_and_what_repeats_them(project):
    (project / "other").mkdir()
    (project / "other" / "bench.py").write_text(PROGRAM, encoding="utf-8")
    words = ("--a", "env:DATA_DIR=/a", "--b", "dir:other", "--b", "env:HF_TOKEN=abc")
    given = ab(project, *words, "--env", "SEEN", "--", "python", "bench.py", "--password", "hunter2")
    assert [process["data"] for process in given] == ["/a", None]
    assert [process["argv"] for process in given] == [["--password", "hunter2"]] * 2
    assert given[1]["cwd"] == str(project / "other")
    run = (project / "out" / "latest").resolve()
    assert "--b dir:../../other --b env:HF_TOKEN=..." in (run / "pipeline.yaml").read_text(encoding="utf-8")
    public = [path for path in run.rglob("*") if path.is_file() and path.name not in ("request.json", "sides.json")]
    assert [path for path in public if b"hunter2" in path.read_bytes()] == []
    page = (run / "SUMMARY.md").read_text(encoding="utf-8")
    assert "-- python bench.py --password '${PASSWORD}'" in page and "its first line is the command" in page


@pytest.mark.slow
def test_the_file_keeps_the_steps_and_names_no_folder_of_this_machine(project):
    gate = ("--pairs", "8", "--gate", "2", "--inconclusive", "pass")
    ab(project, "--aa", *gate, "--measure-steps", "3", "--stop", "--env", "SEEN", "--", "python", "bench.py")
    text = (project / "out" / "latest" / "pipeline.yaml").read_text(encoding="utf-8")
    assert text.startswith(
        "# Repeats the run in this folder: profpipe ab pipeline.yaml --aa --gate 2 --inconclusive pass\n"
    )
    workload = yaml.safe_load(text)["workloads"]["bench"]
    assert workload["steps"] == {"measure": 3, "stop": True} and workload["cwd"] == "../.."


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--b", "set:m=x", "--", "python", "bench.py", "{m}"), "--a: {m} has a value on B only. Add --a set:m=VALUE."),
        (("--a", "set:m=x", "--", "python", "bench.py", "{m}"), "--b: {m} has a value on A only. Add --b set:m=VALUE."),
        (("--b", "set:m=x", "--", "python", "bench.py"), "--set: 'm' is no setting, and no argument is {m}. Write {m}"),
        (("p.yaml", "--aa", "--", "python", "bench.py"), "profpipe ab: both a pipeline file, 'p.yaml', and a program"),
        (("--aa", "--"), "profpipe ab --: no program after '--'. For example: profpipe ab -- python train.py"),
        (("--aa", "--stop"), "--stop: is for a program after '--'."),
        (("--b", "python:nowhere", "--", "python", "bench.py"), "--b: python:nowhere does not exist."),
    ],
)
def test_a_wrong_command_line_is_refused(project, arguments, message):
    assert refusal(project, *arguments).startswith(f"profpipe: {message}")


@pytest.mark.slow
def test_a_process_of_a_pair_that_a_signal_ended_has_failed(project):
    (project / "bench.py").write_text("import os, sys\nif sys.argv[1] == 'b':\n    os.kill(os.getpid(), 15)\n")
    sides = ["--a", "set:v=a", "--b", "set:v=b"]
    profpipe(
        project, "ab", "--pairs", "1", *sides, "--", "python", "bench.py", "{v}", PYTHONPATH=WITHOUT_TORCH, exit_code=1
    )
    assert "killed by SIGTERM" in (project / "out" / "latest" / "SUMMARY.md").read_text(encoding="utf-8")
