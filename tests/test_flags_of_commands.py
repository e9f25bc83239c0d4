"""What a command makes of its parameters: flags, empty words, unused axes; and scripts that cannot be run."""

from typing import Any

import pytest
from program import profpipe, rows

from profpipe.config.loader import load_pipeline
from profpipe.errors import ConfigError
from profpipe.job import Tool
from profpipe.runner import plan


def commands(tmp_path, workload):
    """The argv of each case of a workload, in the order of the cases."""
    return [job.command for job in jobs(tmp_path, workload)]


def jobs(tmp_path, workload, *overrides):
    path = tmp_path / "pipeline.yaml"
    path.write_text(f"version: 1\nworkloads:\n  w:\n    profilers: [plain]\n{workload}", encoding="utf-8")
    where: dict[str, Any] = {"scripts": {}, "cwd": tmp_path, "out": tmp_path, "python": "python"}
    return plan.plan(load_pipeline(path, overrides), {"plain": Tool("plain", "")}, **where)


def refusal(tmp_path, workload):
    with pytest.raises(ConfigError) as caught:
        jobs(tmp_path, workload)
    return str(caught.value).replace(f"{tmp_path}/", "")


# --- flags -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flag", ["{compile: --compile}", "{compile: {true: --compile, false: null}}"])
def test_a_flag_is_given_for_true_and_left_out_for_false(tmp_path, flag):
    text = f"    command: [t, '{{compile}}', -n, '1']\n    matrix: {{compile: [true, false]}}\n    flag: {flag}\n"
    assert commands(tmp_path, text) == [("t", "--compile", "-n", "1"), ("t", "-n", "1")]


def test_a_value_may_stand_for_several_words_and_for_a_part_of_a_word(tmp_path):
    text = (
        "    command: [t, '{opt}', '--name={opt}']\n    matrix: {opt: [fused, 2, null]}\n"
        "    flag: {opt: {fused: [--fused, --lr, '1'], 2: --two, null: null}}\n"
    )
    assert commands(tmp_path, text) == [
        ("t", "--fused", "--lr", "1", "--name=--fused --lr 1"), ("t", "--two", "--name=--two"), ("t", "--name="),
    ]  # fmt: skip


def test_a_word_that_its_parameter_leaves_empty_is_left_out_and_a_written_empty_word_stays(tmp_path):
    text = "    command: [t, '', '{more}']\n    matrix: {more: ['', --foreach]}\n"
    assert commands(tmp_path, text) == [("t", ""), ("t", "", "--foreach")]


def test_a_flag_reaches_the_variables_of_the_command(tmp_path):
    text = (
        "    command: [t]\n    env: {OPTIONS: '-x {compile}'}\n    matrix: {compile: [true, false]}\n"
        "    flag: {compile: --compile}\n"
    )
    assert [job.launch.env["OPTIONS"] for job in jobs(tmp_path, text)] == ["-x --compile", "-x "]


def test_the_cases_keep_the_names_of_their_values(tmp_path):
    (tmp_path / "p.yaml").write_text(
        "version: 1\nworkloads:\n  w:\n    command: [sh, -c, 'echo $#', sh, '{compile}']\n    profilers: plain\n"
        "    matrix: {compile: [true, false]}\n    flag: {compile: --compile}\n",
        encoding="utf-8",
    )
    profpipe(tmp_path, "run", "p.yaml")
    run = tmp_path / "out" / "latest"
    assert [row["case"] for row in rows(run / "cases.csv")] == ["compile=true", "compile=false"]
    logs = [(run / "raw" / "w" / "plain" / number / "log.txt").read_text().splitlines() for number in ("1", "2")]
    others = ("$ ", "# ", "profpipe: ")
    assert [[line for line in log if line and not line.startswith(others)] for log in logs] == [["1"], ["0"]]


@pytest.mark.parametrize(
    ("workload", "message"),
    [
        (
            "    command: [t, '{a}']\n    matrix: {a: [true, 3]}\n    flag: {a: --a}\n",
            "workloads.w.flag.a: has no words for a=3. Write {3: --option, ...}, or {3: null} for no word.",
        ),
        (
            "    command: [t, '{compile}']\n    matrix: {compile: [true]}\n    flag: {compil: --compile}\n",
            "workloads.w.flag.compil: is no parameter of this workload. Did you mean 'compile'?",
        ),
        ("    script: attention\n    flag: {a: --a}\n", "'flag' is for a 'command'"),
        ("    command: [t]\n    flag: [--a]\n", "workloads.w.flag: is not a mapping"),
    ],
)
def test_mistakes_in_flags_say_what_to_write(tmp_path, workload, message):
    assert message in refusal(tmp_path, workload)


# --- words -----------------------------------------------------------------------------------------------------------

#: Each is a number, a bool or null of YAML with another text than str() gives.
WORDS = [
    *("010", "08", "1.10", "1e5", "1e-3", ".5", "+3", "0x10", "1_000", "1:30", "2026-01-02"),
    *("False", "TRUE", "yes", "null", "~", "[128", "a:b"),
]


@pytest.mark.parametrize("text", WORDS)
def test_a_word_reaches_the_command_as_it_was_written(tmp_path, text):
    written = text if text != "[128" else f"'{text}'"
    workload = f"    command: [t, '{{a}}', '-x{{a}}', {written}]\n    matrix: {{a: [{written}, other]}}\n"
    assert commands(tmp_path, workload)[0] == ("t", text, f"-x{text}", text)
    for override in (f"a={text},other", f"a= {text} ", f"workloads.w.matrix.a={text}", f"matrix.a={text}"):
        found = jobs(tmp_path, "    command: [t, '{a}']\n    matrix: {a: [1]}\n", override)
        assert found[0].command == ("t", text), override


def test_a_variable_of_the_environment_is_a_word_too(tmp_path, monkeypatch):
    monkeypatch.setenv("RATES", "1e-3,1.10")
    text = "    command: [t, '{a}', '{b}']\n    matrix: {a: '${RATES}'}\n    params: {b: '${MODE:-False}'}\n"
    assert commands(tmp_path, text) == [("t", "1e-3", "False"), ("t", "1.10", "False")]


def test_a_flag_is_given_for_true_however_it_is_written(tmp_path):
    text = "    command: [t, '{c}']\n    matrix: {c: [True, FALSE]}\n    flag: {c: --compile}\n"
    assert commands(tmp_path, text) == [("t", "--compile"), ("t",)]


# --- axes that the command never uses --------------------------------------------------------------------------------


def test_an_axis_that_the_command_never_uses_is_refused_with_its_line(tmp_path):
    text = "    command: [t, --batch, '{batch}']\n    matrix:\n      batch: [1]\n      label: [a, b]\n"
    assert refusal(tmp_path, text) == (
        "pipeline.yaml:8: workloads.w.matrix.label: the command never uses 'label', so its values would be the same "
        "case. Write {label} where its value belongs. To repeat a case, set `repeats: 5`."
    )


def test_an_included_name_that_the_command_never_uses_is_refused_too(tmp_path):
    text = "    command: [t, '{n}']\n    params: {m: 1}\n    matrix: {n: [1]}\n    include: [{n: 2, m: 3}]\n"
    assert refusal(tmp_path, text).startswith("pipeline.yaml:8: workloads.w.include.m: the command never uses 'm'")


@pytest.mark.parametrize(("place", "words"), [("command", "[t, '{bacth}']"), ("env", "[t]\n    env: {B: '{bacth}'}")])
def test_a_misspelt_placeholder_is_named_instead_of_the_axis(tmp_path, place, words):
    message = refusal(tmp_path, f"    command: {words}\n    matrix: {{batch: [1, 2]}}\n")
    line = 5 if place == "command" else 6
    assert message == f"pipeline.yaml:{line}: workloads.w.{place}: there is no parameter 'bacth'. Did you mean 'batch'?"


def test_a_fixed_parameter_may_be_a_label_and_an_axis_may_be_used_in_a_variable(tmp_path):
    text = "    command: [t]\n    env: {N: '{n}'}\n    params: {note: hello}\n    matrix: {n: [1, 2]}\n"
    assert [job.cases[0].params for job in jobs(tmp_path, text)] == [{"note": "hello", "n": n} for n in (1, 2)]


# --- scripts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("import torch\n", "mine.py has no function 'build'. Define build(params), or run the file as a program: "
                           "command: [python, mine.py]"),
        ("def main():\n    def build(params): ...\n", "mine.py has no function 'build'"),
        ("x = 1\nbuild = {'n': 1}\n", "mine.py:2 has a 'build' that is no function"),
        ("build: str = 'x'\n", "mine.py:1 has a 'build' that is no function"),
        ("\ndef build(): ...\n", "mine.py:2 has a 'build' that does not take one argument"),
        ("def build(a, b): ...\n", "mine.py:1 has a 'build' that does not take one argument"),
        ("def build(params): ...\nbuild = None\n", "mine.py:2 has a 'build' that is no function"),
    ],
)  # fmt: skip
def test_a_script_without_a_build_is_refused_before_anything_runs(tmp_path, script, message):
    (tmp_path / "mine.py").write_text(script, encoding="utf-8")
    found = refusal(tmp_path, "    script: mine.py\n")
    assert found.startswith("pipeline.yaml:5: workloads.w.script: ") and message in found


@pytest.mark.parametrize(
    "script",
    [
        "def build(params, seed=0): ...\n",
        "def build(*params): ...\n",
        "build = lambda params: None\n",
        "from functools import partial\nbuild = partial(print, 1)\n",
        "class build:\n    def __init__(self, params): ...\n",
        "try:\n    import torch\nexcept ImportError:\n    def build(params): ...\n",
        "if True:\n    from other import make as build\n",
        "from other import *\n",
        "globals()['build'] = lambda params: None\n",
    ],
)
def test_a_script_that_may_have_a_build_is_not_refused(tmp_path, script):
    (tmp_path / "mine.py").write_text(script, encoding="utf-8")
    path = tmp_path / "pipeline.yaml"
    path.write_text("version: 1\nworkloads: {w: {script: mine.py}}\n", encoding="utf-8")
    assert load_pipeline(path).workloads["w"].script == "mine.py"
