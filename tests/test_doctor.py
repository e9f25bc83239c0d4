"""`profpipe doctor`: what works here, what does not, and how to repair it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from profpipe import profilers
from profpipe.commands import doctor
from profpipe.job import Tool
from profpipe.measure import machine
from profpipe.runner import checkout

PROFPIPE = Path(sys.executable).with_name("profpipe")


def silent(argv):
    return None


def test_every_check_that_is_not_ok_has_a_remedy():
    checks = doctor.examine(profilers.ALL, silent, silent)
    assert {"Python", "torch", "nsys", "ncu", "rocprof", "nvtx", "flash-attn", "disk"} <= {c.name for c in checks}
    assert all(check.remedy for check in checks if check.state != "ok")


def check_of(name, ask=silent, modules=profilers.ALL):
    (check,) = (each for each in doctor.examine(modules, ask, ask) if each.name == name)
    return check


def test_a_torch_that_does_not_see_the_gpu_is_wrong_and_not_missing(monkeypatch):
    monkeypatch.setattr(machine, "nvidia_gpus", lambda: [{"name": "H200"}])
    check = check_of("torch", lambda argv: "2.11.0 cpu no\n")
    assert check.state == "wrong" and "CUDA build" in check.remedy
    monkeypatch.setattr(machine, "nvidia_gpus", list)
    assert check_of("torch", lambda argv: "2.13.0+cpu cpu no\n").state == "ok"


@pytest.mark.parametrize(("version", "state"), [("0.2.16", "wrong"), ("0.2.11", "ok")])
def test_an_nvtx_that_this_nsys_would_not_record_is_wrong(monkeypatch, version, state):
    class Nsys2023:
        @staticmethod
        def find(ask):
            return Tool("nsys", "2023.4.4", "/nsys")

    monkeypatch.setattr(machine, "packages", lambda names: {"nvtx": version})
    check = check_of("nvtx", modules={"nsys": Nsys2023})
    assert check.state == state and ("nvtx<0.2.12" in check.remedy) == (state == "wrong")


def test_the_text_puts_the_remedy_below_its_check():
    lines = doctor.text([doctor.ToolCheck("ncu", "missing", "not on PATH", "Install it.")]).splitlines()
    assert lines[0].startswith("missing  ncu  not on PATH") and lines[1].strip() == "-> Install it."


@pytest.mark.parametrize("path", [None, "", ".", os.pathsep, "here"])
def test_nothing_is_imported_from_the_current_folder(tmp_path, path):
    for name in ("torch", "json", "numpy", "packaging"):
        (tmp_path / f"{name}.py").write_text(f"open('RAN-{name}', 'w')")
    env = {**os.environ, **({} if path is None else {"PYTHONPATH": str(tmp_path) if path == "here" else path})}
    subprocess.run([PROFPIPE, "doctor"], cwd=tmp_path, env=env, check=True, capture_output=True)
    assert not list(tmp_path.glob("RAN*"))


def test_another_interpreter_imports_nothing_from_the_current_folder_when_it_is_asked(tmp_path, monkeypatch):
    (tmp_path / "json.py").write_text("open('RAN', 'w')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep)
    other = tmp_path / "python"
    other.symlink_to(sys.executable)
    checkout.differing_versions(sys.executable, str(other))
    assert not (tmp_path / "RAN").exists()


@pytest.mark.slow
def test_a_program_imports_from_the_current_folder_where_its_user_says_so(tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "program.py").write_text("import helper")
    (tmp_path / "helper.py").write_text("open('RAN', 'w')")
    monkeypatch.setenv("PYTHONPATH", os.pathsep + "/none")
    run = [PROFPIPE, "run", "-p", "plain", "--quiet", "--", sys.executable, "mine/program.py"]
    subprocess.run(run, cwd=tmp_path, check=True, capture_output=True)
    assert (tmp_path / "RAN").exists()
