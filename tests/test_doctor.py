"""`profpipe doctor`: what works here, what does not, and how to repair it."""

import pytest

from profpipe import profilers
from profpipe.commands import examination
from profpipe.job import Tool


def silent(argv):
    return None


def test_every_check_that_is_not_ok_has_a_remedy():
    checks = examination.examine(profilers.ALL, silent)
    assert {"Python", "torch", "nsys", "ncu", "rocprof", "nvtx", "flash-attn", "disk"} <= {c.name for c in checks}
    assert all(check.remedy for check in checks if check.state != "ok")


def check_of(name, ask=silent, modules=profilers.ALL):
    (check,) = (each for each in examination.examine(modules, ask) if each.name == name)
    return check


def test_a_torch_that_does_not_see_the_gpu_is_wrong_and_not_missing(monkeypatch):
    monkeypatch.setattr(examination.machine, "nvidia_gpus", lambda: [{"name": "H200"}])
    check = check_of("torch", lambda argv: "2.11.0 cpu no\n")
    assert check.state == "wrong" and "CUDA build" in check.remedy
    monkeypatch.setattr(examination.machine, "nvidia_gpus", list)
    assert check_of("torch", lambda argv: "2.13.0+cpu cpu no\n").state == "ok"


@pytest.mark.parametrize(("version", "state"), [("0.2.16", "wrong"), ("0.2.11", "ok")])
def test_an_nvtx_that_this_nsys_would_not_record_is_wrong(monkeypatch, version, state):
    class Nsys2023:
        @staticmethod
        def find(ask):
            return Tool("nsys", "2023.4.4", "/nsys")

    monkeypatch.setattr(examination.machine, "packages", lambda names: {"nvtx": version})
    check = check_of("nvtx", modules={"nsys": Nsys2023})
    assert check.state == state and ("nvtx<0.2.12" in check.remedy) == (state == "wrong")


def test_the_text_puts_the_remedy_below_its_check():
    lines = examination.text([examination.Check("ncu", "missing", "not on PATH", "Install it.")]).splitlines()
    assert lines[0].startswith("missing  ncu  not on PATH") and lines[1].strip() == "-> Install it."
