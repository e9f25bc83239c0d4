"""What works here, what does not, and how to mend it."""

from profpipe import doctor, profilers


def silent(argv):
    return None


def test_every_check_that_is_not_ok_says_how_to_mend_it():
    checks = doctor.examine(profilers.ALL, silent)
    assert {"Python", "torch", "nsys", "ncu", "rocprof", "nvtx", "flash-attn", "disk"} <= {c.name for c in checks}
    assert all(check.remedy for check in checks if check.state != "ok")


def test_a_torch_that_does_not_see_the_gpu_is_wrong_and_not_missing():
    check = doctor._torch(lambda argv: "2.11.0 cpu no\n", gpu=True)
    assert check.state == "wrong" and "CUDA build" in check.remedy
    assert doctor._torch(lambda argv: "2.13.0+cpu cpu no\n", gpu=False).state == "ok"


def test_an_nvtx_that_this_nsys_would_not_record_is_wrong(monkeypatch):
    class Nsys2023:
        @staticmethod
        def find(ask):
            return doctor.Missing("nsys", "", "") if ask is None else profilers.nsys.Tool("nsys", "2023.4.4", "/nsys")

    monkeypatch.setattr(doctor.device, "packages", lambda names: {"nvtx": "0.2.16"})
    (check,) = doctor._nvtx({"nsys": Nsys2023}, silent)
    assert check.state == "wrong" and "nvtx<0.2.12" in check.remedy
    monkeypatch.setattr(doctor.device, "packages", lambda names: {"nvtx": "0.2.11"})
    assert next(iter(doctor._nvtx({"nsys": Nsys2023}, silent))).state == "ok"


def test_the_text_puts_the_remedy_below_its_check():
    lines = doctor.text([doctor.Check("ncu", "missing", "not on PATH", "Install it.")]).splitlines()
    assert lines[0].startswith("missing  ncu  not on PATH") and lines[1].strip() == "-> Install it."
