"""Ceilings are measured on a GPU; on a CPU the same code runs on small operands, and what it writes is read back."""

import json
from pathlib import Path

import pytest

from profpipe import cli, errors
from profpipe.config.models import Pipeline
from profpipe.measure import measured_peaks
from profpipe.measure.sampling import StoppingRule
from profpipe.runner import request

H200 = {"name": "NVIDIA H200"}


@pytest.fixture(scope="module")
def measured():
    pytest.importorskip("torch")
    return measured_peaks.measure(
        "cpu", sizes=(16, 64), max_copy_bytes=2**20, rule=StoppingRule(min_samples=3, budget_s=0.2, max_samples=10)
    )


@pytest.mark.slow
def test_each_rate_follows_from_its_size_and_time(measured):
    copied = measured["copy"]
    assert copied["bytes"] == 2**20
    assert copied["bytes_per_s"] == pytest.approx(2 * 2**20 / copied["median_ns"] * 1e9)
    assert {"fp16", "bf16", "fp32"} <= set(measured["matmul"])
    for one in measured["matmul"].values():
        assert one["n"] >= 3 and one["size"] in (16, 64)
        assert one["flops"] == pytest.approx(2 * one["size"] ** 3 / one["median_ns"] * 1e9)


def test_a_data_type_that_the_device_does_not_take_is_absent_with_its_reason(monkeypatch):
    pytest.importorskip("torch")

    def refuse(torch, kind, size):
        raise RuntimeError("torch._scaled_mm is only supported on\n  CUDA devices with compute capability >= 9.0")

    monkeypatch.setitem(measured_peaks.PRODUCTS, "fp8", refuse)
    found = measured_peaks.measure(
        "cpu", sizes=(16,), max_copy_bytes=2**20, rule=StoppingRule(min_samples=1, budget_s=0.01, max_samples=1)
    )
    assert found["absent"]["fp8"].endswith("supported on CUDA devices with compute capability >= 9.0")
    assert "fp8" not in found["matmul"]


def test_the_file_names_the_gpu_and_not_the_machine(measured):
    text = json.dumps(measured)
    assert "uuid" not in text.lower()
    assert set(measured) == {"device", "driver", "torch", "copy", "matmul", "absent", "conditions", "notes"}


def test_ceilings_of_this_kind_of_gpu_have_the_form_of_peaks(measured, tmp_path):
    path = tmp_path / "ceilings.json"
    path.write_text(json.dumps({**measured, "device": "NVIDIA H200", "driver": "580.1"}), encoding="utf-8")
    found = measured_peaks.load(path, [{"name": "NVIDIA A2"}, H200])
    assert found is not None and set(found) == {"device", "flops", "bytes_per_s", "source"}
    assert found["flops"]["fp32"] == measured["matmul"]["fp32"]["flops"]
    assert "measured" in found["source"] and "driver 580.1" in found["source"] and "copy of 1 MiB" in found["source"]
    assert measured_peaks.load(path, [{"name": "NVIDIA B200"}]) is None


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"device": "NVIDIA H200"}', '{"device": "NVIDIA H200", "matmul": 1}']
)
def test_a_file_without_ceilings_gives_none(tmp_path, text):
    path = tmp_path / "ceilings.json"
    assert measured_peaks.load(path, [H200]) is None
    path.write_text(text, encoding="utf-8")
    assert measured_peaks.load(path, [H200]) is None


def test_without_a_gpu_the_program_says_so_and_writes_nothing(tmp_path, capsys, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert measured_peaks.main([str(tmp_path / "out.json")]) == errors.TOOL_MISSING
    assert "needs torch and a GPU" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_the_file_is_written_whole(tmp_path, monkeypatch, measured):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(measured_peaks, "measure", lambda: measured)
    out = tmp_path / "out.json"
    assert measured_peaks.main([str(out)]) == errors.OK
    assert json.loads(out.read_text(encoding="utf-8")) == measured
    assert list(tmp_path.iterdir()) == [out]


def test_ceilings_measured_anew_take_the_place_of_earlier_ones(tmp_path, measured):
    def measuring(argv):
        Path(argv[-1]).write_text(json.dumps({**measured, "device": "NVIDIA H200"}))
        return ""

    found = measured_peaks.renew(tmp_path / "out", measuring)
    loaded = measured_peaks.load(tmp_path / "out" / measured_peaks.FILE, [H200])
    assert loaded is not None and loaded["flops"]["fp16"] == found["matmul"]["fp16"]["flops"]
    assert [path.name for path in (tmp_path / "out").iterdir()] == [measured_peaks.FILE]
    assert f"fp16    {found['matmul']['fp16']['flops'] / 1e12:8.1f} TFLOP/s" in measured_peaks.text(found)


@pytest.mark.parametrize(("log", "message"), [("boom\nno GPU here\n", "no GPU here"), (None, "no output within")])
def test_ceilings_that_could_not_be_measured_leave_the_earlier_ones(tmp_path, log, message):
    (tmp_path / measured_peaks.FILE).write_text("{}")
    with pytest.raises(errors.ToolMissing, match=message):
        measured_peaks.renew(tmp_path, lambda argv: log)
    assert [path.name for path in tmp_path.iterdir()] == [measured_peaks.FILE]


@pytest.mark.slow
def test_without_a_gpu_doctor_says_that_there_is_nothing_to_measure(tmp_path, capsys):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here, and measuring takes half a minute")
    assert cli.main(["doctor", "--measure-peaks", "--out", str(tmp_path)]) == errors.TOOL_MISSING
    assert "needs torch and a GPU" in capsys.readouterr().err


def test_a_run_takes_the_ceilings_of_its_results_folder(tmp_path, measured, monkeypatch):
    """The GPU is made up: there is none where these tests run."""
    monkeypatch.setattr(request.machine, "nvidia_gpus", lambda: [H200])
    (tmp_path / measured_peaks.FILE).write_text(json.dumps({**measured, "device": "NVIDIA H200"}))
    pipeline = Pipeline.model_validate({"version": 1, "workloads": {"a": {"command": ["true"], "profilers": "plain"}}})
    machine = request.ExaminedMachine.examine(request.RunRequest.create(pipeline, tmp_path / "p.yaml", tmp_path))
    assert machine.described["ceilings"]["bytes_per_s"] == measured["copy"]["bytes_per_s"]
