"""``profpipe.read`` and ``profpipe.compare``: results and recordings as pandas frames."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import profpipe
from profpipe.errors import ConfigError, UnreadableFile
from profpipe.results import schema

ROOT = Path(__file__).resolve().parents[1]
NSYS = ROOT / "tests/data/nsys-2025.3.1/attention/attn_h200.sqlite"
BEFORE, AFTER = (sorted((ROOT / f"tests/data/reported/compare_{side}").iterdir())[0] for side in ("before", "after"))


@pytest.fixture
def results(tmp_path):
    """Return the folder of results of `ingest`."""
    folder = tmp_path / "out" / "mine"
    argv = [sys.executable, "-m", "profpipe", "ingest", str(NSYS), "--out", str(folder), "-q"]
    subprocess.run(argv, check=True, capture_output=True)
    return folder


def test_a_recording_has_tables_an_answer_and_results():
    run = profpipe.read(NSYS)
    for table in schema.ALL:
        assert list(getattr(run, table.name).columns) == list(table.names)
    assert run.kernels["calls"].sum() >= 380
    assert "GPU computed" in run.answer
    assert run.results["cases"]
    assert "GPU computed" in str(run)


def test_a_folder_of_results_is_found_by_its_path_and_below_the_results_folder(results):
    by_path, by_name = profpipe.read(results), profpipe.read("mine", out=results.parent)
    assert by_path.kernels.equals(by_name.kernels)
    assert by_path.answer == profpipe.read(NSYS).answer
    (results / "kernels.parquet").write_text("damaged")
    with pytest.raises(ConfigError, match=r"kernels\.parquet: is not the table that profpipe wrote"):
        profpipe.read(results)


def test_a_notebook_shows_the_first_screen_as_text(tmp_path):
    page = profpipe.read(NSYS)._repr_html_()
    assert page.startswith("<pre>") and "GPU computed" in page
    assert "elementwise_kernel&lt;" in page and "elementwise_kernel<" not in page


def test_a_folder_of_ranks_is_one_run_and_names_what_it_cannot_read(tmp_path):
    for rank in range(2):
        kernel = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7}
        events = [{**kernel, "ts": 100.0 * i, "dur": 5.0, "args": {"device": 0, "stream": 7}} for i in range(10)]
        trace = {"schemaVersion": 1, "distributedInfo": {"rank": rank, "world_size": 2}, "traceEvents": events}
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(trace))
    (tmp_path / "config.json").write_text("{}")
    run = profpipe.read(tmp_path)
    assert run.kernels["calls"].sum() == 20
    assert [Path(refused.source).name for refused in run.manifest.refused] == ["config.json"]


def test_what_cannot_be_read_raises_an_error_that_says_why(tmp_path):
    with pytest.raises(ConfigError, match="holds no results of profpipe"):
        profpipe.read(tmp_path)
    (tmp_path / "notes.txt").write_text("no profile")
    with pytest.raises(UnreadableFile, match="is in no format that profpipe reads"):
        profpipe.read(tmp_path / "notes.txt")
    with pytest.raises(ConfigError, match="does not exist"):
        profpipe.read(tmp_path / "absent")
    with pytest.raises(UnreadableFile, match="there is no such file"):
        profpipe.read(NSYS, tmp_path / "absent.sqlite")


def test_compare_takes_paths_and_runs():
    differences = profpipe.compare(BEFORE, profpipe.read(AFTER))
    command = [sys.executable, "-m", "profpipe", "compare", str(BEFORE), str(AFTER)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert differences.answer == str(differences) == printed.rstrip("\n")
    full = subprocess.run([*command, "--json=full"], check=True, capture_output=True, text=True).stdout
    assert json.loads(json.dumps(differences.results)) == json.loads(full)


def test_the_notebook_of_the_examples_runs_and_shows_where_a_step_goes(tmp_path, monkeypatch):
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=lambda *_: ["cogvideox"])
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    monkeypatch.chdir(tmp_path / "examples")
    shown = []
    names: dict[str, object] = {}
    for cell in json.loads((tmp_path / "examples/notebook.ipynb").read_text())["cells"]:
        if cell["cell_type"] == "code":
            *lines, last = cell["source"]
            exec("".join(lines), names)
            shown.append(eval(last, names))
    assert "A step takes" in shown[0]._repr_html_()
    bars = shown[-1].to_html()
    assert bars.count("linear-gradient") >= 3 and "gemm" in bars
    assert "compute" in shown[1].to_html()
