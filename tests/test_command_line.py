"""What a user types and what the terminal shows: options, output formats and help."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import forked
import pytest
import yaml

from profpipe import cli

ROOT = Path(__file__).parents[1]
#: Contains a torch that cannot be imported, so that processes start quickly.
NO_TORCH = Path(__file__).parent / "no_torch"

WORKLOAD = """
import os, signal

PARAMS = {"n": 1, "crash": False}

def build(params):
    def fn():
        if params["crash"]:
            os.kill(os.getpid(), signal.SIGSEGV)
        return sum(range(1000 * params["n"]))
    return fn
"""
PIPELINE = """
version: 1
name: small
defaults: {profilers: [plain], warmup: 1, repeats: 4, timeout_s: 60, timing: {budget_s: 0.05, rounds: 2}}
workloads:
  sums: {script: sums.py, matrix: {n: [1, 200]}}
  other: {command: ["true"]}
"""


@pytest.fixture
def project(tmp_path):
    (tmp_path / "sums.py").write_text(WORKLOAD)
    (tmp_path / "pipeline.yaml").write_text(PIPELINE)
    return tmp_path


def profpipe(folder, *arguments):
    return forked.run(folder, *arguments, env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{NO_TORCH}"})


def test_a_run_ends_with_the_headline_the_times_and_the_paths(project):
    done = profpipe(project, "run", "-w", "sums")
    assert done.returncode == 0, done.stderr
    folder = (project / "out" / "latest").resolve().relative_to(project)
    *screen, empty, folder_line, report_line = done.stdout.splitlines()
    assert empty == "" and folder_line == f"Tables and details: {folder}"
    assert report_line == f"Report: {folder}/SUMMARY.md"
    head = next(i for i, line in enumerate(screen) if line.startswith("case ") and "time" in line)
    assert head > 0 and [line.split()[:2] for line in screen[head + 1 : head + 3]] == [["n", "1"], ["n", "200"]]


def test_quiet_prints_the_path_of_the_summary_and_nothing_else(project):
    done = profpipe(project, "run", "-w", "other", "--quiet")
    folder = (project / "out" / "latest").resolve().relative_to(project)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{folder}/SUMMARY.md\n", "")


def test_json_prints_the_document_of_results_json(project):
    done = profpipe(project, "run", "-w", "sums", "--set", "crash=false,true", "--set", "n=1", "--json=full")
    found = json.loads(done.stdout)
    assert done.returncode == 1
    assert found == json.loads((project / "out" / "latest" / "results.json").read_text())
    ok, crashed = found["cases"]
    assert (ok["workload"], ok["case"], ok["profilers"]) == ("sums", "n=1,crash=false", {"plain": {"status": "ok"}})
    assert ok["params"] == {"n": 1, "crash": False} and ok["time"]["median"] > 0
    assert crashed["profilers"]["plain"]["status"] == "crashed" and crashed["time"] is None
    again = profpipe(project, "report", "out/latest", "--json=full")
    assert json.loads(again.stdout) == found
    assert json.loads(profpipe(project, "resume", "out/latest", "--json=full").stdout) == found


def test_quiet_and_json_exclude_each_other(project):
    done = profpipe(project, "run", "--quiet", "--json")
    assert done.returncode == 2 and "not allowed with" in done.stderr


def test_workloads_and_profilers_may_be_lists_or_repeated_options(project):
    for words in (["-p", "plain,nsys", "-w", "other,sums"], ["-p", "plain", "-p", "nsys", "-w", "other", "-w", "sums"]):
        listing = profpipe(project, "run", "--dry-run", *words).stdout
        jobs = [line for line in listing.splitlines() if " under " in line]
        assert [line.split(":")[0] for line in jobs] == [
            "# sums under plain", "# sums under nsys", "# other under plain", "# other under nsys",
        ]  # fmt: skip


def test_a_wrong_name_in_a_list_is_named_with_the_nearest_word(project):
    done = profpipe(project, "run", "-w", "other,sumz")
    assert done.returncode == 2 and "-w: unknown name 'sumz'. Did you mean 'sums'?" in done.stderr


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["rnu"], "unknown command 'rnu'. Did you mean 'run'?"),
        (["benchmark"], "unknown command 'benchmark'. Known: ab, bisect,"),
        (["run", "--profilr", "plain"], "profpipe run: error: unknown option '--profilr'. Did you mean '--profiler'?"),
        (["run", "--jsn=full", "-p", "plain"], "unknown option '--jsn'. Did you mean '--json'?"),
        (["ingest", "--zzzz", "a"], "unknown option '--zzzz'. `profpipe ingest --help` lists the options."),
        (["report", "a", "b"], "'b' is one word too many."),
        (["run", "atention"], "atention: No such file or directory. Did you mean 'attention'?"),
        (["report", "latst"], "latst: does not exist. Did you mean 'latest'?"),
    ],
)
def test_a_misspelt_word_is_named_with_the_nearest_one(tmp_path, monkeypatch, capsys, words, answer):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out" / "latest").mkdir(parents=True)
    try:
        assert cli.main(words) == 2
    except SystemExit as ended:
        assert ended.code == 2
    error = capsys.readouterr().err
    assert answer in error and "task" not in error


@pytest.mark.parametrize(("command", "rare"), [("run", "--ncu-all"), ("ab", "--junit")])
def test_help_shows_ten_options_and_help_all_shows_every_one(command, rare, capsys):
    texts = []
    for option in ("--help", "--help-all"):
        with pytest.raises(SystemExit) as ended:
            cli.main([command, option])
        assert ended.value.code == 0
        texts.append(capsys.readouterr().out)
    shown, complete = (re.findall(r"^  (-[^ ,]+)", text.partition("examples:")[0], re.MULTILINE) for text in texts)
    assert len(shown) == 12 and {"-h", "--help-all"} < set(shown)
    assert rare in complete and rare not in shown and set(shown) < set(complete)


def test_the_options_that_1_0_renamed_are_still_read():
    parse = cli._build_parser().parse_args
    assert parse(["run", "--captures", "3"]).captures == parse(["run", "--case-processes", "3"]).captures == 3
    for command in (["ab"], ["compare", "a", "b"]):
        for words, file in ((["--json", "v.json"], "v.json"), (["--json-file", "v.json"], "v.json"), (["--json"], "-")):
            assert parse([*command, *words]).json == file


def complete(folder, *words):
    """Return what bash offers for the last of ``words``."""
    quoted = " ".join(f"'{word}'" for word in ("profpipe", *words))
    script = f"source ./c.bash; COMP_WORDS=({quoted}); COMP_CWORD={len(words)}; _shtab_profpipe; echo ${{COMPREPLY[@]}}"
    done = subprocess.run(["bash", "-c", script], cwd=folder, capture_output=True, encoding="utf-8", check=True)
    return done.stdout.split()


def test_the_shell_completes_commands_options_and_files(tmp_path, capsys):
    assert cli.main(["completion", "bash"]) == 0
    (tmp_path / "c.bash").write_text(capsys.readouterr().out)
    assert complete(tmp_path, "re") == ["resume", "report"]
    assert complete(tmp_path, "t") == ["try", "trace"]  # `task` is for batch scripts
    assert complete(tmp_path, "run", "--warm") == ["--warmup-steps"]
    assert complete(tmp_path, "ab", "--profiler", "n") == ["nsys", "none"]
    assert complete(tmp_path, "ingest", "c.") == ["c.bash"]
    assert cli.main(["completion", "zsh"]) == 0
    text = capsys.readouterr().out
    assert "--warmup-steps" in text and "=full" not in text


def test_a_missing_shtab_is_one_sentence(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert cli.main(["completion", "bash"]) == 3
    assert capsys.readouterr().err == "profpipe: shtab is not installed: pip install 'profpipe[completion]'\n"


def test_the_help_of_the_program_does_not_wait_for_modules(project):
    """0.3 s on an idle machine: nothing that takes longer than argparse is imported."""
    code = "import sys; from profpipe import cli\ntry: cli.main(['--help'])\nfinally: print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", cwd=ROOT)
    loaded = {name.partition(".")[0] for name in done.stdout.splitlines()[-1].split()}
    assert not loaded & {"pandas", "numpy", "pydantic", "yaml", "rich", "shtab", "tomllib"}


def test_open_opens_the_page_of_the_report(project, monkeypatch, capsys):
    monkeypatch.chdir(project)
    opened, works = [], iter([True, False])
    monkeypatch.setattr("webbrowser.open", lambda address: opened.append(address) or next(works))
    recording = str(ROOT / "tests/data/nsys-2025.3.1/attention/attn_h200.sqlite")
    for warning in ("", "profpipe: --open: no browser was started. Open read/report.html.\n"):
        assert cli.main(["ingest", recording, "--out", "read", "--open"]) == 0
        assert capsys.readouterr().err == warning
    assert opened == [(project / "read" / "report.html").as_uri()] * 2
    assert cli.main(["ingest", recording, "--open"]) == 2
    for other in ("--quiet", "--json"):
        with pytest.raises(SystemExit):
            cli.main(["ingest", recording, "--out", "read", "--open", other])


def test_pyproject_has_defaults_for_options(project):
    (project / "pyproject.toml").write_text('[tool.profpipe]\nout = "kept"\nprofilers = ["plain"]\n')
    done = profpipe(project, "run", "-w", "other", "--quiet")
    assert done.returncode == 0 and done.stdout.startswith("kept/"), done.stderr
    assert profpipe(project, "run", "-w", "other", "--quiet", "--out", "o").stdout.startswith("o/")
    assert "under nsys" in profpipe(project, "run", "-p", "nsys", "--dry-run").stdout
    assert profpipe(project, "report", "latest", "-q").stdout.startswith("kept/")
    # A results folder is data.
    (project / "kept" / "latest" / "pyproject.toml").write_text("[tool.profpipe]\nout = 3\n")
    assert "out/profpipe.db: does not exist yet" in profpipe(project / "kept" / "latest", "history").stderr


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("out = 3", "pyproject.toml: tool.profpipe.out: is not a folder in quotes (got 3)."),
        ("profilers = 'plain'", "pyproject.toml: tool.profpipe.profilers: is not a list of names (got 'plain')."),
        ("profiler = []", "pyproject.toml: tool.profpipe: unknown key 'profiler'. Did you mean 'profilers'?"),
        ("out = ", "pyproject.toml: "),
        ("profilers = [1]", "pyproject.toml: tool.profpipe.profilers: is not a list of names (got [1])."),
        ("profilers = ['plan']", "-p: unknown name 'plan'. Did you mean 'plain'?"),
    ],
)
def test_a_mistake_in_pyproject_is_refused(project, text, answer):
    (project / "pyproject.toml").write_text(f"[tool.profpipe]\n{text}\n")
    done = profpipe(project, "run", "--dry-run")
    assert done.returncode == 2 and answer in done.stderr and "Traceback" not in done.stderr


def test_the_skill_file_names_commands_that_exist(capsys):
    assert cli.main(["skill"]) == 0
    text = capsys.readouterr().out
    head = yaml.safe_load(text.split("---")[1])
    assert head["name"] == "profpipe" and len(head["description"]) < 1024
    lines = re.findall(r"`(profpipe [^`]+)`", text)
    assert len(lines) > 12 and len(text.splitlines()) < 80
    for line in lines:
        words, program = cli._split_program(shlex.split(line)[1:])
        args = cli._build_parser().parse_args(words)
        assert (program is not None) == ("python" in line), line
        assert args.command.__name__.endswith(words[0])


def test_the_help_of_ingest_names_the_formats_and_an_unknown_file_the_help(tmp_path, capsys):
    with pytest.raises(SystemExit):
        cli.main(["ingest", "--help"])
    text = capsys.readouterr().out
    assert all(name in text for name in ("Nsight Systems", "Nsight Compute", "rocprof", "torch.profiler", ".ncu-rep"))
    (tmp_path / "notes.txt").write_text("hello\n")
    assert cli.main(["ingest", str(tmp_path / "notes.txt")]) == 1
    expected = "notes.txt: is in no format that profpipe reads. `profpipe ingest --help` names the formats.\n"
    assert capsys.readouterr().err.endswith(expected)


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_the_help_of_each_command_has_examples(command, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main([command, "--help"])
    text = capsys.readouterr().out
    assert ended.value.code == 0 and f"examples:\n  profpipe {command}" in text


def test_the_missing_sdk_of_mcp_is_one_sentence(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "mcp.server.mcpserver", None)
    assert cli.main(["mcp", str(tmp_path)]) == 3
    expected = "profpipe: the Python SDK of MCP 2 is not installed: pip install 'profpipe[mcp]'\n"
    assert capsys.readouterr().err == expected


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (("trace", "tables", "--out", "t.json", "a.sqlite"), "recordings"),
        (("ingest", "a.sqlite", "--out", "o", "b.sqlite"), "files"),
        (("compare", "a", "--gate", "5", "b"), "runs"),
    ],
)
def test_files_may_stand_on_both_sides_of_an_option(words, name):
    args = cli._build_parser().parse_args(words)
    expected = [word for word in words[1:] if word in ("a", "b") or word.endswith(".sqlite")]
    assert [str(value) for value in getattr(args, name)] == expected
