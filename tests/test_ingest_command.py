"""`profpipe ingest`: the line about each file, and which refusals are no error."""

import shutil
from pathlib import Path

import pytest

from profpipe import cli, errors

DATA = Path(__file__).parent / "data"
LLM = Path("rocprof", "jyohukuchan__sLLM")
RECORDING = DATA / "nsys-2025.3.1" / "attention" / "attn_h200.sqlite"


def ingested(folder, *paths):
    return cli.main(["ingest", *map(str, paths), "--out", str(folder / "read")])


def test_a_file_that_belongs_to_another_recording_is_not_refused(tmp_path, shared_data, capsys):
    for name in ("ck-m8_agent_info.csv", "ck-m8_kernel_trace.csv"):
        shutil.copy(shared_data / LLM / name, tmp_path)
    assert ingested(tmp_path, *sorted(tmp_path.glob("*.csv"))) == errors.OK
    printed = capsys.readouterr()
    assert "read with it: ck-m8_agent_info.csv" in printed.out and "agent_info" not in printed.err


def test_the_same_file_alone_is_refused(tmp_path, shared_data, capsys):
    shutil.copy(shared_data / LLM / "ck-m8_agent_info.csv", tmp_path)
    assert ingested(tmp_path, tmp_path / "ck-m8_agent_info.csv") == errors.SOME_FAILED
    assert "ck-m8_agent_info.csv: " in capsys.readouterr().err
    assert not (tmp_path / "read").exists()


@pytest.mark.slow
def test_recordings_of_rocprof_and_of_cuda_stand_side_by_side_with_their_tool_and_gpu(tmp_path, shared_data):
    rocm, cuda = shared_data / LLM / "564735_kernel_trace.csv", DATA / "torch-2.11" / "attention_h200.json.gz"
    assert ingested(tmp_path, rocm, cuda) == errors.OK
    title, page = (tmp_path / "read" / "SUMMARY.md").read_text(encoding="utf-8").split("\n", 1)
    assert title.endswith("GPU not named and NVIDIA H200")
    section = page.split("## Recordings side by side\n")[1].split("\n## ")[0]
    assert "recorded elsewhere" in section
    assert "| 564735_kernel_trace.csv | rocprof v3 | not named | 319 | 105.7 |" in section
    assert "| attention_h200.json.gz | torch | NVIDIA H200 | " in section
    assert "![Kernel time by recording](plots/recordings-share.svg)" in section
    assert (tmp_path / "read" / "plots" / "recordings-share.svg").stat().st_size > 1000
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        shutil.copy(rocm, tmp_path / name)
    assert ingested(tmp_path / "both", *(tmp_path / name / rocm.name for name in ("a", "b"))) == errors.OK
    page = (tmp_path / "both" / "read" / "SUMMARY.md").read_text(encoding="utf-8")
    section = page.split("## Recordings side by side\n")[1].split("\n## ")[0]
    for name in ("a", "b"):
        assert f"| {name}/564735_kernel_trace.csv | rocprof v3 | not named | 319 | 105.7 |" in section
    assert ingested(tmp_path / "alone", rocm) == errors.OK
    assert "side by side" not in (tmp_path / "alone" / "read" / "SUMMARY.md").read_text(encoding="utf-8")


def test_the_answer_is_printed_beside_what_the_file_holds_and_quietly_the_path_alone(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["ingest", str(RECORDING), "--out", "read"]) == 0
    held, answer, *_ = capsys.readouterr().out.split("\n\n")
    assert held.endswith("380 kernel launches, 18.238 ms") and answer.startswith("Of 23.8 ms the GPU computed 76.5 %")
    # The first look, and the second one from the folder.
    for out in ("other", "read"):
        assert cli.main(["ingest", str(RECORDING), "--out", out, "-q"]) == 0
        assert capsys.readouterr().out == f"{out}/SUMMARY.md\n"
    assert cli.main(["ingest", str(RECORDING), "--quiet"]) == 2
    assert "Add --out DIR." in capsys.readouterr().err


PARSER = """
from pathlib import Path
from profpipe.results import schema
Path("ran").touch()
FORMATS = ("lines of NAME NS",)
def sniff(path):
    return path.suffix == ".lines"
def parse(path):
    rows = [{"profiler": "mine", "kind": "cpu_op", "kernel": name, "kernel_class": "other", "calls": 1,
             "total_ns": float(ns)} for name, ns in map(str.split, path.read_text().splitlines())]
    return schema.Tables(kernels=schema.frame(schema.KERNELS, rows), origin=schema.Origin(
        FORMATS[0], tool="mine", total_ns=0.0, attributed_ns=0.0, unattributed_ns=0.0))
"""


@pytest.mark.parametrize(
    ("beside", "code"),
    [({"pipeline.yaml"}, errors.OK), (set(), errors.SOME_FAILED), ({"pipeline.yaml", "run.json"}, errors.SOME_FAILED)],
    ids=["beside a pipeline file", "in any folder", "in a results folder"],
)
def test_parsers_beside_the_pipeline_file_read_files_and_others_never_run(tmp_path, monkeypatch, beside, code):
    monkeypatch.chdir(tmp_path)
    for name, text in {
        "parsers/mine.py": PARSER,
        "a.lines": "sort 9000\nhash 4000\n",
        **dict.fromkeys(beside, ""),
    }.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text, encoding="utf-8")
    assert ingested(tmp_path, Path("a.lines")) == code
    assert Path("ran").exists() == (code == errors.OK)
    if code == errors.OK:
        page = Path("read/SUMMARY.md").read_text(encoding="utf-8")
        assert "| `sort` | other | 1 | 9.00 | 69.2 |" in page and "as mine records it" in page
