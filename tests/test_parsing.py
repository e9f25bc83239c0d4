"""A parser is believed only as far as its rows and its sums agree, and one that fails takes no other file with it."""

import json
import os
from pathlib import Path

import forked
import pytest

from profpipe.errors import ConfigError, UnreadableFile
from profpipe.ingest import reader
from profpipe.ingest.reader import InputFile, Read, Refusal

ROOT = Path(__file__).parents[1]

#: A user's parser for a made-up format: launches and metadata as JSON.
PARSER = """
import json
from profpipe.ingest import kernel_classes as kernels
from profpipe.results import schema as tables

FORMATS = ("mine",)

def sniff(path):
    return path.read_bytes().startswith(b'{"mine"')

def parse(path):
    mine = json.loads(path.read_text())["mine"]
    rows = kernels.annotate(tables.frame(tables.KERNELS, mine["rows"]))
    return tables.Tables(kernels=rows, origin=tables.Origin(format="mine", tool="mine", **mine["origin"]))
"""

ROWS = [
    {"case": "n=1", "kind": "kernel", "kernel": "a", "calls": 2, "total_ns": 20.0},
    {"case": "", "kind": "kernel", "kernel": "b", "calls": 1, "total_ns": 5.0},
    {"case": "n=1", "kind": "memcpy", "kernel": "[CUDA memcpy Host-to-Device]", "calls": 7, "total_ns": 70.0},
]
ORIGIN = {"launches": 3, "total_ns": 25.0, "attributed_ns": 20.0, "unattributed_ns": 5.0}


@pytest.fixture
def project(tmp_path):
    (tmp_path / "parsers").mkdir()
    (tmp_path / "parsers" / "mine.py").write_text(PARSER)
    return tmp_path


def read(project, rows=ROWS, **origin):
    path = project / "x.mine"
    path.write_text(json.dumps({"mine": {"rows": rows, "origin": {**ORIGIN, **origin}}}))
    (result,) = reader.ingest([InputFile(path, path.name)], pipeline_dir=project)
    return result


def test_rows_that_add_up_to_the_sums_of_the_file_are_read_without_counting_copies(project):
    assert isinstance(read(project), Read)


def test_a_changed_copy_of_a_shipped_parser_works_in_the_pipelines_folder(project):
    ours = (ROOT / "parsers" / "nsys_csv.py").read_text(encoding="utf-8")
    (project / "parsers" / "nsys_csv.py").write_text(ours.replace('format="nsys stats reports"', 'format="changed"'))
    (project / "x.csv").write_text("Time (%),Total Time (ns),Instances,Avg (ns),Name\n100.0,30,2,15.0,k\n")
    (result,) = reader.ingest([InputFile(project / "x.csv", "x.csv")], pipeline_dir=project)
    assert isinstance(result, Read) and result.tables.origin.format == "changed"


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"launches": 4}, "its rows hold 3 launches, the file 4"),
        ({"total_ns": 30.0}, "its rows hold 25 ns in all, the file 30 ns"),
        ({"total_ns": float("nan")}, "its rows hold 25 ns in all, the file nan ns"),
        ({"attributed_ns": 25.0, "unattributed_ns": 0.0}, "its rows hold 20 ns inside cases, the file 25 ns"),
        ({"unattributed_ns": 0.0}, "its rows hold 5 ns outside every case, the file 0 ns"),
    ],
)
def test_a_parser_whose_rows_contradict_its_sums_is_refused_by_name(project, changed, what):
    result = read(project, **changed)
    assert isinstance(result, Refusal)
    assert str(result) == (
        f"x.mine: cannot be trusted: the parser mine.py contradicts itself: {what}. "
        "Fix mine.py, or report this with the file."
    )


def test_a_folder_is_not_offered_to_a_parser_that_reads_files(project):
    read(project)
    (project / "folder.mine").mkdir()
    (result,) = reader.ingest([InputFile(project / "folder.mine", "folder.mine")], pipeline_dir=project)
    assert isinstance(result, Refusal) and result.what == "is a folder, and not one that a profiler wrote"


def test_a_launch_that_a_join_doubled_is_refused(project):
    result = read(project, rows=[*ROWS, ROWS[0]])
    assert isinstance(result, Refusal) and "its rows hold 5 launches, the file 3" in result.what


def test_the_order_of_summation_is_not_reported_as_a_contradiction(project):
    rows = [{**ROWS[0], "calls": 1, "total_ns": 1e9 / 3} for _ in range(1000)]
    sums = {"launches": 1000, "total_ns": 1e12 / 3, "attributed_ns": 1e12 / 3, "unattributed_ns": 0.0}
    assert isinstance(read(project, rows, **sums), Read)


def test_a_file_without_a_sum_of_times_is_checked_by_its_launches_alone(project):
    untold = {"total_ns": None, "attributed_ns": None, "unattributed_ns": None}
    rows = [{**row, "total_ns": None} for row in ROWS]
    assert isinstance(read(project, rows, **untold), Read)
    assert isinstance(read(project, rows, launches=1, **untold), Refusal)


def test_a_parser_that_fails_is_named_with_the_line_and_the_other_files_are_read(project):
    broken, whole = project / "broken.mine", project / "x.mine"
    broken.write_text('{"mine": {"rows": []}}')
    read(project)
    refusal, result = reader.ingest(
        [InputFile(broken, "broken.mine"), InputFile(whole, "x.mine")], pipeline_dir=project
    )
    assert isinstance(result, Read) and isinstance(refusal, Refusal)
    line = PARSER.splitlines().index(next(line for line in PARSER.splitlines() if "Origin(" in line)) + 1
    assert f"the parser mine.py fails on it: KeyError: 'origin' (line {line})" in refusal.what


def test_a_parser_that_fails_to_sniff_is_named_too(project):
    (project / "parsers" / "mine.py").write_text(PARSER.replace("return path.read", "return path.no_such"))
    refusal = read(project)
    assert isinstance(refusal, Refusal) and "the parser mine.py fails on it: AttributeError" in refusal.what


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("def sniff(:", "cannot be loaded: SyntaxError"),
        ("import no_such_package", "cannot be loaded: ModuleNotFoundError: No module named 'no_such_package' (line 1)"),
        ("FORMATS = ()", "is no parser: it has no sniff"),
    ],
)
def test_a_file_in_the_users_parsers_folder_that_is_not_a_parser_is_named(tmp_path, text, what):
    (tmp_path / "parsers").mkdir()
    (tmp_path / "parsers" / "mine.py").write_text(text)
    with pytest.raises(ConfigError, match=r"mine\.py: ") as caught:
        reader.parsers(tmp_path)
    assert what in str(caught.value)


def test_a_broken_parser_is_refused_before_anything_runs(tmp_path):
    (tmp_path / "parsers").mkdir()
    (tmp_path / "parsers" / "mine.py").write_text("1 / 0")
    (tmp_path / "pipeline.yaml").write_text("version: 1\nworkloads: {w: {command: [touch, ran], profilers: [plain]}}\n")
    done = forked.run(tmp_path, "run", env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 2 and "parsers/mine.py: cannot be loaded: ZeroDivisionError" in done.stderr
    assert not (tmp_path / "out").exists() and not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("own", "says"),
    [
        ("def launches(path): return 1 / 0", "fails on it"),
        ("def launches(rows, extra): return rows", "fails on it"),
        ("import pandas\ndef launches(path): return pandas.DataFrame({'kernel': []})", "returns launches without case"),
    ],
)
def test_single_launches_with_wrong_columns_or_from_a_parser_that_fails_are_refused(project, own, says):
    (project / "parsers" / "mine.py").write_text(f"{PARSER}\n{own}\n")
    with pytest.raises(UnreadableFile, match=says):
        launches(project)


def test_a_parser_without_single_launches_is_allowed(project):
    assert launches(project).empty


def launches(project):
    path = project / "x.mine"
    path.write_text('{"mine": {}}')
    return reader.launches(reader.choose(path, reader.parsers(project)), path)
