"""`profpipe ingest`: the line about each file, and which refusals are no error."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from profpipe import cli, errors

DATA = Path(__file__).parent / "data"
LLM = Path("rocprof", "jyohukuchan__sLLM")
RECORDING = DATA / "nsys-2025.3.1" / "attention" / "attn_h200.sqlite"


def ingested(folder: Path, *paths: Path) -> int:
    return cli.main(["ingest", *map(str, paths), "--out", str(folder / "read")])


def test_a_file_that_belongs_to_another_recording_is_not_refused(
    tmp_path: Path, shared_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("ck-m8_agent_info.csv", "ck-m8_kernel_trace.csv"):
        shutil.copy(shared_data / LLM / name, tmp_path)
    assert ingested(tmp_path, *sorted(tmp_path.glob("*.csv"))) == errors.OK
    printed = capsys.readouterr()
    assert "read with it: ck-m8_agent_info.csv" in printed.out and "agent_info" not in printed.err


def test_the_same_file_alone_is_refused(tmp_path: Path, shared_data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(shared_data / LLM / "ck-m8_agent_info.csv", tmp_path)
    assert ingested(tmp_path, tmp_path / "ck-m8_agent_info.csv") == errors.SOME_FAILED
    assert "ck-m8_agent_info.csv: " in capsys.readouterr().err
    assert not (tmp_path / "read").exists()


@pytest.mark.slow
def test_recordings_of_rocprof_and_of_cuda_stand_side_by_side_with_their_tool_and_gpu(
    tmp_path: Path, shared_data: Path
) -> None:
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


def test_the_answer_is_printed_beside_what_the_file_holds_and_quietly_the_path_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
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
