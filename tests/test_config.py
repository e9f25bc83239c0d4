"""pipeline.yaml -> Pipeline: what is accepted, and how each mistake is named."""

import json
import re
from pathlib import Path

import jsonschema
import pytest
import yaml

from profpipe.config import loader, settings, yaml as yaml_file
from profpipe.config.models import Pipeline, Workload
from profpipe.errors import ConfigError

ROOT = Path(__file__).parents[1]

MINIMAL = """
version: 1
workloads:
  attention:
    script: attention
    matrix: {impl: [sdpa_math, sdpa_flash], seqlen: [512]}
"""


def load(tmp_path, text, overrides=(), env=None):
    path = tmp_path / "pipeline.yaml"
    path.write_text(text)
    return loader.load_pipeline(path, overrides, env or {})


def refusal(tmp_path, text, overrides=(), env=None):
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text, overrides, env)
    return drop_lines(str(caught.value)).replace(f"{tmp_path}/", "")


def drop_lines(message):
    """Return a message with the paths of settings, without the lines of these in the file."""
    return re.sub(r"(?<=\.yaml):\d+(?=: [\w./-]+: )", "", message)


def test_the_shipped_pipeline_loads_and_names_its_schema():
    text = (ROOT / "pipeline.yaml").read_text()
    assert text.startswith("# yaml-language-server: $schema=./pipeline.schema.json")
    pipeline = loader.load_pipeline(ROOT / "pipeline.yaml", env={})
    assert pipeline.workloads["attention"].matrix["seqlen"] == [512, 1024, 2048]


def test_the_schema_file_agrees_with_the_models_and_accepts_the_shipped_pipeline():
    stored = json.loads((ROOT / "pipeline.schema.json").read_text())
    assert stored == loader.schema(), "regenerate it: profpipe schema > pipeline.schema.json"
    jsonschema.Draft202012Validator.check_schema(stored)
    plain = {"version": 1, "workloads": {"a": {"script": "attention", "matrix": {"impl": ["fa2"]}}}}
    jsonschema.validate(plain, stored)


def test_the_schema_refuses_an_unknown_key():
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"version": 1, "workloads": {"a": {"scrpt": "x"}}}, loader.schema())


def test_an_environment_variable_gives_a_list_with_the_types_of_yaml(tmp_path):
    text = MINIMAL.replace("[512]", "'${SEQLEN:-512}'")
    assert load(tmp_path, text).workloads["attention"].matrix["seqlen"] == [512]
    given = load(tmp_path, text, env={"SEQLEN": "1024, 4096"})
    assert given.workloads["attention"].matrix["seqlen"] == [1024, 4096]


@pytest.mark.parametrize("override", ["seqlen=[128", "impl=*x", "workloads.attention.repeats={", "impl=2026-13-45"])
def test_a_value_on_the_command_line_that_yaml_cannot_read_is_refused_with_its_name(tmp_path, override):
    message = refusal(tmp_path, MINIMAL, [override])
    name, _, value = override.partition("=")
    assert message.startswith(f"--set: {name}: '{value}' is no value of YAML: ") and "in quotes" in message


def test_a_value_of_the_environment_that_yaml_cannot_read_is_refused_with_its_place(tmp_path):
    text = MINIMAL.replace("[512]", "'${SEQLEN:-512}'") + "    baseline: {seqlen: 512}\n"
    place = "pipeline.yaml: workloads.attention.matrix.seqlen: "
    message = refusal(tmp_path, text, env={"SEQLEN": "*x"})
    assert message.startswith(f"{place}environment variable SEQLEN: '*x' is no value of YAML: found undefined alias")
    assert refusal(tmp_path, text, env={"SEQLEN": "128,[4"}).startswith(f"{place}'[4' is no value of YAML: ")


def test_a_default_that_yaml_cannot_read_matters_only_where_it_is_used(tmp_path):
    text = MINIMAL.replace("[512]", "'${SEQLEN:-1,[2}'") + "    baseline: {seqlen: 512}\n"
    text += "tables: [{title: t, value: time, rows: seqlen}]\n"
    assert load(tmp_path, text, env={"SEQLEN": "512"}).workloads["attention"].matrix["seqlen"] == [512]
    assert "'[2' is no value of YAML" in refusal(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (MINIMAL + "    baseline: &a {impl: *a}\n", "workloads.attention.baseline.impl"),
        (MINIMAL.replace("matrix: {impl", "matrix: &m {params: *m, impl"), "workloads.attention.matrix.params"),
        ("version: 1\nworkloads: &w {w: {script: attention, params: *w}}\n", "workloads.w.params"),
        ("version: 1\nworkloads: {w: {command: &c [sh, *c]}}\n", "workloads.w.command.1"),
    ],
)
def test_an_alias_inside_its_own_value_is_refused(tmp_path, text, place):
    assert refusal(tmp_path, text).startswith(f"pipeline.yaml: {place}: is an alias of what it stands in.")


def test_an_alias_of_something_else_may_be_used_twice(tmp_path):
    text = (
        "version: 1\nworkloads: {a: {script: attention, matrix: &m {impl: [fa2]}}, b: {script: attention, matrix: *m}}"
    )
    assert load(tmp_path, text).workloads["b"].matrix == {"impl": ["fa2"]}


@pytest.mark.parametrize("text", ["version: 1\nname: 2026-13-45\n", f"version: {'[' * 5000}\n"])
def test_yaml_that_cannot_be_read_is_refused(tmp_path, text):
    assert re.match(r"pipeline.yaml(:2)?: is ", refusal(tmp_path, text))


@pytest.mark.parametrize(
    "setting", ["timing: {budget_s: .inf}", "timing: {budget_s: 1e+300}", "timeout_s: .inf", "case_timeout_s: .nan"]
)
def test_an_infinite_time_is_refused(tmp_path, setting):
    message = refusal(tmp_path, f"{MINIMAL}    {setting}\n")
    assert re.search("_s: (is not a finite number|must be at most 86400) ", message)
    assert "workloads.attention." in message


def test_an_empty_environment_variable_counts_as_unset(tmp_path):
    text = MINIMAL.replace("[512]", "'${SEQLEN:-512}'")
    assert load(tmp_path, text, env={"SEQLEN": ""}).workloads["attention"].matrix["seqlen"] == [512]


def test_a_placeholder_without_default_and_without_value_is_refused_with_its_place(tmp_path):
    message = refusal(tmp_path, MINIMAL.replace("[512]", "'${SEQLEN}'"))
    place = "pipeline.yaml: workloads.attention.matrix.seqlen"
    assert message.startswith(f"{place}: environment variable SEQLEN is not set")


def test_a_placeholder_cannot_add_keys(tmp_path):
    text = MINIMAL.replace("[512]", "'${SEQLEN:-512}'")
    message = refusal(tmp_path, text, env={"SEQLEN": "{a: 1}"})
    assert "workloads.attention.matrix.seqlen" in message


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("profilers: [nsis]", ".profilers.0: 'nsis' is not known. Did you mean 'nsys'?"),
        ("timing.mode: eager", ": unknown key 'timing.mode'."),
        ("timing: {mode: eagr}", ".timing.mode: 'eagr' is not known. Did you mean 'eager'?"),
        ("repeats: many", ".repeats: is not a whole number (got 'many')."),
        ("baseline: {impl: fa2}", ".baseline: impl=fa2 is not in the matrix."),
        ("exclude: [{sequence: 512}]", ".exclude: 'sequence' is not an axis of the matrix."),
        ("params: {seqlen: 1}", ".matrix.seqlen: is also in params."),
        ("command: [python, x.py]", ": needs either 'script' (a file with build) or 'command' (an argv)"),
        ("ncu: {kernels: '('}", ".ncu.kernels: is no regular expression: missing )"),
    ],
)
def test_a_mistake_in_a_setting_is_named_with_file_place_and_remedy(tmp_path, monkeypatch, line, expected):
    monkeypatch.chdir(tmp_path)
    assert f"pipeline.yaml: workloads.attention{expected}" in refusal(tmp_path, f"{MINIMAL}    {line}\n")


@pytest.mark.parametrize(
    ("broken", "expected"),
    [
        (
            MINIMAL.replace("seqlen:", "seq_len:"),
            "pipeline.yaml: workloads.attention.matrix: unknown key 'seq_len'. Did you mean 'seqlen'?",
        ),
        (
            MINIMAL.replace("    matrix", "    matirx"),
            "pipeline.yaml: workloads.attention: unknown key 'matirx'. Did you mean 'matrix'?",
        ),
        (
            MINIMAL.replace("script: attention", "script: atention"),
            "pipeline.yaml: workloads.attention.script: there is no workload 'atention'. Did you mean 'attention'?",
        ),
        (
            MINIMAL.replace("[512]", "[abc]"),
            "pipeline.yaml: workloads.attention.matrix.seqlen: 'abc' is not a whole number.",
        ),
        (MINIMAL.replace("version: 1", "version: 2"), "pipeline.yaml: version: 2 is not known."),
        (MINIMAL.replace("version: 1\n", ""), "pipeline.yaml: version: is missing."),
        (MINIMAL.replace("attention:", "../attention:", 1), "pipeline.yaml: workloads."),
        (
            MINIMAL + "kernel_classes: [{pattern: '*', class: attention}]\n",
            "pipeline.yaml: kernel_classes.0.pattern: is no regular expression: nothing to repeat",
        ),
        (
            "version: 1\nworkloads: {w: {command: [x, '{bach}', '{\"a\": 1}'], matrix: {batch: [1]}}}\n",
            "pipeline.yaml: workloads.w.command: there is no parameter 'bach'. Did you mean 'batch'?",
        ),
        (MINIMAL + "    timeout_s: 0\n", "workloads.attention.timeout_s: must be above 0 (got 0)."),
        (MINIMAL + "    script: attention\n", "pipeline.yaml:7: is not YAML: the key 'script' is given twice"),
        ("a: [1", "pipeline.yaml:1: is not YAML"),
        (f"version: {2**63}", "pipeline.yaml:1: is not YAML: the number 9223372036854775808... has more than 64 bits"),
        ("", "pipeline.yaml: is empty or not a mapping."),
        ("version: 1\nworkloads: {}\n", "pipeline.yaml: workloads: "),
        ("version: 1\nworkloads: {lock: {command: [ls]}}\n", "workloads.lock: is the name of a file that each run"),
        (
            "version: 1\nworkloads: {w: {script: attention, matrix: {impl: [none, null, 1, '1']}}}\n",
            'workloads.w.matrix.impl: "none" and null would be cases of one name. Keep one of the two',
        ),
        (
            "version: 1\nworkloads: {w: {command: [x, '{m}'], params: {m: q}, matrix: {n: [1]},"
            " include: [{n: 2, m: '1'}, {n: 2, m: 1}]}}\n",
            'workloads.w.include.m: "1" and 1 would be cases of one name.',
        ),
        ("version: 1\nworkloads: {a.json: {command: [ls]}}\n", "workloads.a.json: is the name of a file"),
    ],
)
def test_a_mistake_is_named_with_file_place_and_remedy(tmp_path, monkeypatch, broken, expected):
    monkeypatch.chdir(tmp_path)
    assert expected in refusal(tmp_path, broken)


def of_a_command(argument, more=""):
    command = f"    command: [sh, -c, {json.dumps(argument)}]\n    matrix: {{seqlen: [1, 2]}}\n"
    return f"version: 1\nworkloads:\n  w:\n{command}{more}"


@pytest.mark.parametrize("words", [["--length", "{n}"], ["--length={n}", "{print}"]])
def test_an_unknown_placeholder_of_an_option_is_refused_if_an_axis_is_unused(tmp_path, words):
    message = "there is no parameter 'n', and the axis 'seqlen' is used nowhere. Write {seqlen} where its value belongs"
    text = of_a_command("x").replace('[sh, -c, "x"]', json.dumps(["python", "train.py", *words]))
    assert refusal(tmp_path, text).startswith(f"pipeline.yaml: workloads.w.command: {message}")


@pytest.mark.parametrize(
    ("argument", "more"),
    [
        ("awk '{print}' {seqlen}", ""),
        ("date -d {seqlen} | awk '{print}'", ""),
        ('{"a": {seqlen}, "b": {x}}', ""),
        ('echo {"a": {"b": {seqlen}}}', ""),
        ("awk '{print}'", "    env: {LENGTH: '{seqlen}'}\n"),
    ],
)
def test_other_braces_in_a_command_stay(tmp_path, argument, more):
    assert load(tmp_path, of_a_command(argument, more=more)).workloads["w"].command[-1] == argument


def test_a_placeholder_in_a_variable_of_a_script_is_refused(tmp_path):
    message = "workloads.attention.env.LENGTH: {seqlen} stays as it is: the cases of a script share their process"
    assert message in refusal(tmp_path, MINIMAL + "    env: {LENGTH: '{seqlen}'}\n")
    load(tmp_path, MINIMAL + "    env: {OPTIONS: '{\"a\": {}}', OTHER: '{x}'}\n")


@pytest.mark.parametrize(
    ("written", "value"),
    [("1e-3", 0.001), ("1E5", 1e5), ("-2e+3", -2e3), ("1.5e3", 1500.0), (".5e1", 5.0), ("1.e-2", 0.01)],
)
def test_a_number_needs_no_point_before_its_exponent_wherever_it_is_written(tmp_path, written, value):
    text = "version: 1\nworkloads: {w: {script: attention, matrix: {memory_cap_gib: %s}}}\n"
    given = [
        load(tmp_path, text % f"[{written}, 0.1]"),
        load(tmp_path, text % "'${LR:-1}'", env={"LR": f"{written},0.1"}),
        load(tmp_path, text % "1", [f"memory_cap_gib={written},0.1"]),
    ]
    for pipeline in given:
        found = pipeline.workloads["w"].matrix["memory_cap_gib"]
        assert found == [value, 0.1] and isinstance(found[0], float)
    assert load(tmp_path, text % "1", [f"memory_cap_gib={written}"]).workloads["w"].matrix["memory_cap_gib"] == [value]


def test_text_that_resembles_an_exponent_stays_text(tmp_path):
    text = "version: 1\nworkloads: {w: {command: [x, '{a}'], matrix: {a: ['1e-3', 1e, e5, 1e5x, 1-e3, 2x1e3]}}}\n"
    assert load(tmp_path, text).workloads["w"].matrix["a"] == ["1e-3", "1e", "e5", "1e5x", "1-e3", "2x1e3"]


def test_every_mistake_is_named_at_once(tmp_path):
    message = refusal(tmp_path, MINIMAL.replace("seqlen:", "seq_len:") + "    baseline: {impl: fa2}\n")
    assert "seq_len" in message and "impl=fa2" in message and len(message.splitlines()) == 2


def test_a_missing_file_says_what_to_name(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere\.yaml: No such file or directory\. Name a pipeline file"):
        loader.load_pipeline(tmp_path / "nowhere.yaml")


def test_defaults_are_merged_into_workloads_and_a_workloads_own_values_win(tmp_path):
    text = MINIMAL.replace("workloads:", "defaults: {repeats: 3, warmup: 1, env: {A: x, B: y}}\nworkloads:")
    workload = load(tmp_path, text + "    repeats: 7\n    env: {B: z}\n").workloads["attention"]
    assert (workload.repeats, workload.warmup, dict(workload.env)) == (7, 1, {"A": "x", "B": "z"})


def test_a_wrong_default_is_named_once_and_not_in_every_workload(tmp_path):
    message = refusal(tmp_path, MINIMAL.replace("workloads:", "defaults: {repeat: 3}\nworkloads:"))
    assert message.count("repeat'") == 1 and "Did you mean 'repeats'?" in message


def test_set_takes_a_path_a_parameter_and_a_setting(tmp_path):
    overrides = ["seqlen=64,128", "repeats=2", "workloads.attention.warmup=1", "head_dim=32"]
    workload = load(tmp_path, MINIMAL, overrides).workloads["attention"]
    assert workload.matrix["seqlen"] == [64, 128] and workload.matrix["head_dim"] == [32]
    assert (workload.repeats, workload.warmup) == (2, 1)


def test_set_makes_an_axis_of_a_parameter_that_was_the_same_in_every_case(tmp_path):
    pipeline = load(tmp_path, MINIMAL + "    params: {head_dim: 64, causal: true}\n", ["head_dim=32,128"])
    assert pipeline.workloads["attention"].matrix["head_dim"] == [32, 128]
    assert pipeline.workloads["attention"].params == {"causal": True}


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("seqln=3", "--set: unknown name 'seqln'. Did you mean 'seqlen'?"),
        ("seqlen", "--set: 'seqlen' is not KEY=VALUE."),
    ],
)
def test_a_wrong_set_is_refused(tmp_path, override, expected):
    assert refusal(tmp_path, MINIMAL, [override]).startswith(expected)


def test_a_baseline_that_is_removed_by_the_environment_is_replaced_by_the_first_value(tmp_path):
    text = MINIMAL.replace("[sdpa_math, sdpa_flash]", "'${IMPLS:-sdpa_math,sdpa_flash}'")
    text += "    baseline: {impl: sdpa_math}\n"
    assert load(tmp_path, text).workloads["attention"].baseline == {"impl": "sdpa_math"}
    assert load(tmp_path, text, env={"IMPLS": "fa2,sage"}).workloads["attention"].baseline == {"impl": "fa2"}
    assert load(tmp_path, text, ["impl=sage"]).workloads["attention"].baseline == {"impl": "sage"}


def test_a_table_of_a_replaced_baseline_shows_its_replacement(tmp_path):
    text = MINIMAL.replace("[sdpa_math, sdpa_flash]", "'${IMPLS:-sdpa_math,sdpa_flash}'")
    text += "    baseline: {impl: sdpa_math}\n"
    text += "tables: [{title: t, where: {impl: [sdpa_math]}, rows: seqlen, value: time}]\n"
    assert load(tmp_path, text).tables[0].where == {"impl": ["sdpa_math"]}
    assert load(tmp_path, text, env={"IMPLS": "fa2,sage"}).tables[0].where == {"impl": ["fa2"]}
    assert "no case has" in refusal(tmp_path, text.replace("where: {impl: [sdpa_math]}", "where: {impl: [fa3]}"))


LISTED = """
version: 1
workloads:
  packed:
    script: mine.py
    matrix: {seqlens: "${SEQLENS:-128;128,128}", heads: "${HEADS:-4,8}"}
"""


@pytest.fixture
def listed(tmp_path):
    """A pipeline of a workload with a parameter that is itself a list, as its default shows."""
    (tmp_path / "mine.py").write_text("PARAMS = {'seqlens': '128,128', 'heads': 8}\ndef build(params): ...\n")

    def loaded(text=LISTED, overrides=(), **env):
        return load(tmp_path, text, overrides, env).workloads["packed"]

    return loaded


def test_a_parameter_that_is_a_list_keeps_its_commas_and_semicolons_separate_its_values(listed):
    assert listed().matrix == {"seqlens": [128, "128,128"], "heads": [4, 8]}
    assert listed(SEQLENS="128,128").matrix["seqlens"] == ["128,128"]
    assert listed(SEQLENS="128; 128,128;2x64 ;").matrix["seqlens"] == [128, "128,128", "2x64"]
    assert listed(SEQLENS="128", HEADS="2,4").matrix == {"seqlens": [128], "heads": [2, 4]}


def test_set_and_lists_of_yaml_keep_the_commas_too(listed):
    assert listed(overrides=["seqlens=128,128"]).matrix["seqlens"] == ["128,128"]
    assert listed(overrides=["workloads.packed.matrix.seqlens=64;64,32"]).matrix["seqlens"] == [64, "64,32"]
    written = LISTED.replace('"${SEQLENS:-128;128,128}"', '["64,64", 128]')
    assert listed(written).matrix["seqlens"] == ["64,64", 128]
    fixed = "version: 1\nworkloads: {packed: {script: mine.py, params: {seqlens: '64,64'}}}\n"
    assert listed(fixed).params == {"seqlens": "64,64"}


def test_an_exclusion_and_a_baseline_name_a_value_that_is_a_list(listed):
    text = LISTED + "    exclude: [{seqlens: '128,128', heads: 4}]\n    baseline: {seqlens: '128,128'}\n"
    assert listed(text).exclude == ({"seqlens": ["128,128"], "heads": [4]},)
    assert listed(text).baseline == {"seqlens": "128,128"}
    assert listed(text, SEQLENS="64;32,32").baseline == {"seqlens": 64}
    alone = text.replace("128;128,128", "128,128")
    assert listed(alone, SEQLENS="32,32").baseline == {"seqlens": "32,32"}


def test_semicolons_separate_values_with_commas_of_a_command_too(tmp_path):
    text = "version: 1\nworkloads: {w: {command: [x, '{lens}', '{n}'], matrix: {lens: '${LENS:-a}', n: '1,2'}}}\n"
    matrix = load(tmp_path, text, env={"LENS": "8;8,8"}).workloads["w"].matrix
    assert matrix == {"lens": [8, "8,8"], "n": [1, 2]}
    assert load(tmp_path, text, env={"LENS": "8,8;"}).workloads["w"].matrix["lens"] == ["8,8"]


def test_a_workload_in_the_pipelines_folder_comes_before_the_shipped_one(tmp_path):
    (tmp_path / "workloads").mkdir()
    (tmp_path / "workloads" / "attention.py").write_text("PARAMS = {'own': 1}\n\ndef build(params): ...\n")
    text = MINIMAL.replace("{impl: [sdpa_math, sdpa_flash], seqlen: [512]}", "{own: [1, 2]}")
    assert load(tmp_path, text).workloads["attention"].matrix == {"own": [1, 2]}


def test_checking_a_pipeline_runs_no_code_of_the_workload(tmp_path):
    (tmp_path / "mine.py").write_text("raise RuntimeError('was run')\nPARAMS = {'a': 1}\ndef build(params): ...\n")
    assert load(tmp_path, "version: 1\nworkloads: {w: {script: mine.py, matrix: {a: [1]}}}")


def test_parameters_that_are_not_literals_are_refused_with_the_reason(tmp_path):
    (tmp_path / "mine.py").write_text("PARAMS = {'a': len('x')}\n")
    message = refusal(tmp_path, "version: 1\nworkloads: {w: {script: mine.py, matrix: {a: [1]}}}")
    assert "PARAMS and NEEDS_GPU must be literal dicts" in message


def test_a_script_cannot_be_taken_from_above_the_workloads_folder(tmp_path):
    text = MINIMAL.replace("script: attention", "script: ../parsers/events")
    assert "there is no workload" in refusal(tmp_path, text)


def test_the_pipeline_survives_its_own_dump(tmp_path):
    pipeline = load(tmp_path, MINIMAL + "kernel_classes: [{pattern: mine, class: attention}]\n")
    dumped = yaml.safe_load(yaml.safe_dump(pipeline.model_dump(mode="json", by_alias=True)))
    assert Pipeline.model_validate(dumped) == pipeline


@pytest.mark.parametrize(
    ("workload", "expected"),
    [
        ("{script: attention, matrix: [seqlen]}", "workloads.a.matrix: is not a mapping (got ['seqlen'])."),
        ("{script: attention, matrix: {seqlen: []}}", "workloads.a.matrix.seqlen: is empty (got [])."),
        ("{script: attention, matrix: {seqlen: [[1, 2]]}}", "matrix.seqlen.0: is not a single value (got [1, 2])."),
        ("{command: sleep 1}", "workloads.a.command: is not a list (got 'sleep 1'). Write it as [a, b]."),
        ("{command: [sleep, [a]]}", "workloads.a.command.1: is not text (got ['a']). Put it in quotes."),
        ("{command: []}", "workloads.a: needs either 'script'"),
        ("", "workloads.a: is not a mapping (got nothing)."),
    ],
)
def test_a_wrong_type_is_reported_once_and_in_words_of_yaml(tmp_path, workload, expected):
    message = refusal(tmp_path, f"version: 1\nworkloads:\n  a: {workload}\n")
    assert expected in message and len(message.splitlines()) == 1


@pytest.mark.parametrize("value", ["many", "-1", "1.5", "[[1]]", "{a: {b: 1}}", "null", "true", "", "1e400", "'('"])
def test_no_message_is_one_of_pydantic(tmp_path, value):
    inner = {"timing": settings.Timing, "ncu": settings.Ncu, "steps": settings.Steps, "slurm": settings.Slurm,
             "report": settings.Report, "targets": settings.Targets}  # fmt: skip
    keys = [*Workload.model_fields, *(f"{name}: {{{key}" for name, of in inner.items() for key in of.model_fields)]
    for key in keys:
        place = "" if key.split(":")[0] in ("slurm", "report") else "    "
        end = "}" if "{" in key else ""
        try:
            load(tmp_path, f"{MINIMAL.replace('attention:', 'a.b:')}{place}{key}: {value}{end}\n")
        except ConfigError as error:
            text = str(error)
            # Of a key that is given twice, such as `script`, the text of PyYAML.
            assert "Input" not in text and " valid " not in text and "type=" not in text
            assert re.search(r"pipeline.yaml:[2-7]: ", text), text


@pytest.mark.parametrize(
    ("text", "overrides", "place"),
    [
        (MINIMAL + "    repats: 3\n", (), ":7: workloads.attention: "),
        (MINIMAL + "    timing:\n      seed: 1\n      rounds: 0\n", (), ":9: workloads.attention.timing.rounds: "),
        (MINIMAL + "tables:\n  - {title: a, rows: n, value: time}\n  - {rows: n}\n", (), ":9: tables.1.title: "),
        (MINIMAL + "    env:\n      A: '${NOT_SET}'\n", (), ":8: workloads.attention.env.A: "),
        (MINIMAL + "on: 3\n", (), ": 1: is no name (got True). Put it in quotes: YAML reads on, off, yes"),
        (MINIMAL + "name: \x07\n", (), ":7: is not YAML: the character U+0007 is not allowed."),
        # The file does not have the wrong value.
        (MINIMAL + "    repeats: 3\n", ("repeats=0",), ": workloads.attention.repeats: "),
        (MINIMAL.replace("version: 1\n", ""), (), ": version: is missing."),
    ],
)
def test_a_mistake_names_its_line_in_the_file(tmp_path, monkeypatch, text, overrides, place):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text, overrides)
    assert f"pipeline.yaml{place}" in str(caught.value)


def test_a_mistake_in_defaults_is_reported_once(tmp_path):
    message = refusal(tmp_path, MINIMAL + "  other: {script: attention, repeats: 0}\ndefaults: {warmup: -1}\n")
    assert [line.split(": ")[1] for line in message.splitlines()] == ["defaults.warmup", "workloads.other.repeats"]


def test_variables_below_env_are_not_listed(tmp_path):
    path = tmp_path / "pipeline.yaml"
    path.write_text(MINIMAL.replace("[512]", "'${SEQLEN:-512}'") + "    env: {TOKEN: '${TOKEN}'}\n")
    assert loader.variables(path) == ["SEQLEN"]


@pytest.mark.parametrize(
    ("keys", "kernels"),
    [
        ("profilers: [nsys, ncu]", "guided"),
        ("profilers: 'torch,ncu'", "guided"),
        ("profilers: [plain, ncu]", "all"),
        ("ncu: {kernels: gemm}", "gemm"),
    ],
)
def test_ncu_replays_the_largest_kernels_of_a_command_where_a_capture_names_them(tmp_path, keys, kernels):
    text = f"version: 1\nworkloads:\n  training:\n    command: [python, train.py]\n    {keys}\n"
    assert load(tmp_path, text).workloads["training"].ncu.kernels == kernels


def test_commands_and_environment_variables_stay_text(tmp_path):
    text = """
version: 1
defaults: {env: {ALL: "${ALL:-1}"}}
workloads:
  w: {command: [run, "${STEPS:-10}", "--n=${STEPS:-10}", "{n}"], env: {GPU: "${GPU:-0}"}, matrix: {n: "${N:-4}"}}
"""
    workload = load(tmp_path, text, env={"STEPS": "1e3"}).workloads["w"]
    assert list(workload.command) == ["run", "1e3", "--n=1e3", "{n}"]
    assert dict(workload.env) == {"ALL": "1", "GPU": "0"} and workload.matrix["n"] == [4]


def test_defaults_are_merged_at_every_level(tmp_path):
    defaults = "defaults: {ncu: {top: 5, targets: {memory: 70}}}\n"
    own = MINIMAL + "    ncu: {targets: {sm: 50}}\n"
    ncu = load(tmp_path, own.replace("workloads:", f"{defaults}workloads:", 1)).workloads["attention"].ncu
    assert (ncu.top, ncu.targets.memory, ncu.targets.sm) == (5, 70, 50)


def test_a_setting_below_another_is_set_for_every_workload(tmp_path):
    assert load(tmp_path, MINIMAL, ["timing.mode=eager"]).workloads["attention"].timing.mode == "eager"
    assert load(tmp_path, MINIMAL, ["env.X=1"]).workloads["attention"].env["X"] == "1"
    assert refusal(tmp_path, MINIMAL, ["timming.mode=eager"]) == (
        "--set: unknown name 'timming'. Did you mean 'timing'?"
    )
    assert refusal(tmp_path, MINIMAL, ["workloads.atention.warmup=1"]) == (
        "--set: unknown workload 'atention'. Did you mean 'attention'?"
    )


def test_a_file_is_read_again_as_it_is_written_whatever_a_caller_did_to_the_first_reading(tmp_path):
    path = tmp_path / "pipeline.yaml"
    path.write_text("workloads: {w: {matrix: {a: [1, 2]}}}\n", encoding="utf-8")
    first = yaml_file.read(path, "here")
    first["workloads"]["w"]["matrix"]["a"].append(3)
    assert yaml_file.read(path, "here") == {"workloads": {"w": {"matrix": {"a": [1, 2]}}}}
    path.write_text("workloads: {}\n", encoding="utf-8")
    assert yaml_file.read(path, "here") == {"workloads": {}}
