"""`profpipe ingest`: the line about each file, and which refusals are no error."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from profpipe import cli, errors

LLM = Path("rocprof", "jyohukuchan__sLLM")


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
