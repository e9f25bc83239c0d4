"""A wheel, an editable install and a bare checkout all find the parsers, workloads and templates."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pandas as pd
import pytest

import profpipe

ROOT = Path(__file__).resolve().parents[1]
KINDS = ("parsers", "workloads", "templates", "pipelines")
SHIPPED = ("*.py", "*.yaml", "*.j2")

FOLDERS = f"""
import json
from profpipe import plugins
print(json.dumps({{kind: sorted(map(str, plugins.builtin_folder(kind).iterdir())) for kind in {KINDS}}}))
"""


def call(argv, cwd, **env):
    """What ``argv`` prints, run far from the checkout and without the PYTHONPATH of the tests."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | env
    done = subprocess.run(argv, cwd=cwd, env=environ, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def pip(python, command, *arguments, cwd):
    alone = ("--no-deps", "--no-build-isolation", "--quiet", "--disable-pip-version-check")
    call([python, "-m", "pip", command, *alone, *arguments], cwd)


@pytest.fixture(scope="module")
def checkout(made_once):
    """A copy of the files that the project ships, so that building changes nothing in the checkout."""
    return made_once("checkout", copy_shipped)


def copy_shipped(copy):
    for folder in ("profpipe", *KINDS):
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "MANIFEST.in", "pipeline.yaml"):
        shutil.copy(ROOT / name, copy)


@pytest.fixture(scope="module")
def wheel(checkout, made_once):
    build = lambda folder: pip(sys.executable, "wheel", "--wheel-dir", folder, checkout, cwd=folder)  # noqa: E731
    return next(made_once("wheel", build).glob("*.whl"))


@pytest.fixture
def python(tmp_path):
    """The interpreter of a new environment with the packages of this one in reach, pip included, and no profpipe."""
    home = tmp_path / "venv"
    venv.create(home, system_site_packages=True)
    inside = next((home / "lib").glob("python*")) / "site-packages"
    # A plain path: the editable install of this environment is a .pth file there, which is not followed further.
    (inside / "packages_of_the_tests.pth").write_text(sysconfig.get_path("purelib"))
    return home / "bin" / "python"


def found(python, cwd, **env):
    return {
        kind: [Path(path) for path in paths]
        for kind, paths in json.loads(call([python, "-c", FOLDERS], cwd, **env)).items()
    }


def shipped(folder):
    return (path.name for pattern in SHIPPED for path in folder.glob(pattern))


def assert_all_there(folders, inside):
    for kind in KINDS:
        assert all(path.is_relative_to(inside) for path in folders[kind])
        assert {path.name for path in folders[kind]} >= set(shipped(ROOT / kind))


def test_an_installed_wheel_finds_its_own_folders(wheel, python, tmp_path):
    pip(python, "install", wheel, cwd=tmp_path)
    assert_all_there(found(python, tmp_path), inside=tmp_path / "venv")


@pytest.mark.slow
def test_an_editable_install_finds_the_folders_of_the_checkout(checkout, python, tmp_path):
    pip(python, "install", "--editable", checkout, cwd=tmp_path)
    assert_all_there(found(python, tmp_path), inside=checkout)


def test_a_bare_checkout_finds_its_folders(checkout, tmp_path):
    assert_all_there(found(sys.executable, tmp_path, PYTHONPATH=str(checkout)), inside=checkout)


@pytest.mark.slow
def test_a_new_file_in_a_shipped_folder_is_in_the_next_wheel(checkout, tmp_path):
    copy = shutil.copytree(checkout, tmp_path / "copy")
    for name in (
        "parsers/mine.py",
        "parsers/mine.yaml",
        "workloads/mine.py",
        "templates/mine.j2",
        "pipelines/mine.yaml",
    ):
        (copy / name).write_text("")
    pip(sys.executable, "wheel", "--wheel-dir", tmp_path, copy, cwd=tmp_path)
    names = zipfile.ZipFile(next(tmp_path.glob("*.whl"))).namelist()
    assert {f"profpipe/{kind}/mine.{end}" for kind, end in zip(KINDS, ("py", "py", "j2", "yaml"), strict=True)} <= set(
        names
    )
    assert "profpipe/parsers/mine.yaml" in names


def test_the_version_can_be_tagged_and_the_wheel_has_it(wheel):
    assert re.fullmatch(r"\d+\.\d+\.\d+", profpipe.__version__)
    assert wheel.name.startswith(f"profpipe-{profpipe.__version__}-")
    steps = (ROOT / "RELEASING.md").read_text().splitlines()
    assert sum(bool(re.match(r"\d+\. ", line)) for line in steps) == 10


def test_the_installed_program_prints_its_skill_file(wheel, python, tmp_path):
    folder = tmp_path / "unpacked"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    printed = call([python, "-m", "profpipe", "skill"], tmp_path, PYTHONPATH=str(folder))
    assert printed == (ROOT / "profpipe" / "SKILL.md").read_text(encoding="utf-8")


def test_the_wheel_holds_every_module_of_the_engine_and_no_tests(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {path.relative_to(ROOT).as_posix() for path in (ROOT / "profpipe").rglob("*.py")} <= names
    assert "profpipe/py.typed" in names
    assert not [name for name in names if name.startswith(("tests/", "parsers/"))]


def test_the_installed_program_says_its_version_and_lists_workloads(wheel, python, tmp_path):
    pip(python, "install", wheel, cwd=tmp_path)
    program = python.with_name("profpipe")
    assert profpipe.__version__ in call([program, "--version"], tmp_path)
    (tmp_path / "pipeline.yaml").write_text("version: 1\nworkloads:\n  mine:\n    script: attention\n")
    assert "mine" in call([program, "list"], tmp_path)
    assert "accuracy" in call([program, "list", "studies"], tmp_path)
    assert "attention: attention, " in call([program, "list", "attention"], tmp_path)
    assert "bf16 under plain" in call([program, "run", "accuracy", "--dry-run"], tmp_path)
    assert call([python, "-m", "profpipe", "--help"], tmp_path) == call([program, "--help"], tmp_path)


PARSER = """
import json
from profpipe.ingest import kernel_classes
from profpipe.results import schema

FORMATS = ("lines of acme",)

def sniff(path):
    return path.read_bytes().startswith(b"acme")

def parse(path):
    names = path.read_text().split()[1:]
    rows = [{"kind": "cpu_op", "kernel": name, "calls": 1, "total_ns": 1e6} for name in names]
    origin = schema.Origin(FORMATS[0], tool="acme", total_ns=0.0, attributed_ns=0.0, unattributed_ns=0.0)
    return schema.Tables(kernels=kernel_classes.annotate(schema.frame(schema.KERNELS, rows)), origin=origin)
"""

PACKAGE = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "acme"
version = "1"
[project.entry-points."profpipe.parsers"]
acme = "acme.lines"
[project.entry-points."profpipe.workloads"]
idle = "acme.idle"
[tool.setuptools]
packages = ["acme"]
"""


@pytest.mark.slow
def test_an_installed_package_adds_a_parser_and_a_workload_by_entry_points(wheel, python, tmp_path):
    acme = tmp_path / "package" / "acme"
    acme.mkdir(parents=True)
    (acme / "__init__.py").touch()
    (acme / "lines.py").write_text(PARSER)
    (acme / "idle.py").write_text("import time\n\ndef build(params):\n    return lambda: time.sleep(0.001)\n")
    (acme.parent / "pyproject.toml").write_text(PACKAGE)
    pip(python, "install", wheel, acme.parent, cwd=tmp_path)
    (tmp_path / "x.txt").write_text("acme first second")
    program = python.with_name("profpipe")
    assert "x.txt: lines (acme)" in call([program, "ingest", "x.txt"], tmp_path)
    (tmp_path / "pipeline.yaml").write_text("version: 1\nworkloads:\n  mine: {script: idle, profilers: [plain]}\n")
    assert " us per call" in call([program, "run", "--set", "timing.budget_s=0.1"], tmp_path)
    shutil.rmtree(next((tmp_path / "venv").rglob("site-packages/acme")))
    with pytest.raises(AssertionError, match=r"acme: names the module 'acme\.lines' for profpipe\.parsers"):
        call([program, "ingest", "x.txt"], tmp_path)


def block_of_contributing(name):
    """The content of a file that CONTRIBUTING shows."""
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    return page.partition(f" file={name}\n")[2].partition("```")[0]


@pytest.mark.slow
def test_a_package_adds_a_profiler_by_contributing_alone(wheel, python, tmp_path):
    for name in ("acme/pyproject.toml", "acme/acme_cprofile.py", "acme/acme_inside.py", "parsers/pstats_dump.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(block_of_contributing(name))
    pip(python, "install", wheel, tmp_path / "acme", cwd=tmp_path)
    program = python.with_name("profpipe")
    assert "ok       cprofile" in call([program, "doctor"], tmp_path)
    (tmp_path / "sums.py").write_text("def build(params):\n    return lambda: sorted(range(params['n']))\n")
    (tmp_path / "prog.py").write_text("import sys\nsorted([2, 1])\nsys.exit(int(sys.argv[1]))\n")
    (tmp_path / "pipeline.yaml").write_text(
        "version: 1\nkernel_classes: [{class: index, pattern: builtins.sorted}]\nworkloads:\n"
        "  sums: {script: sums.py, profilers: [cprofile], repeats: 3, matrix: {n: [10, 20]}}\n"
        "  prog: {command: [python, prog.py, '{code}'], profilers: [cprofile], matrix: {code: [0, 3]}}\n"
    )
    with pytest.raises(AssertionError, match="1 case failed: exit code 3"):
        call([program, "run", "-p", "cprofile", "--csv"], tmp_path)
    kernels = pd.read_csv(tmp_path / "out" / "latest" / "kernels.csv")
    own = kernels[kernels["kernel"].str.contains("builtins.sorted")]
    calls = own.groupby(["workload", "case"])["calls"].sum().to_dict()
    assert calls == {("sums", "n=10"): 3, ("sums", "n=20"): 3, ("prog", "code=0"): 1, ("prog", "code=3"): 1}
    assert set(own["kernel_class"]) == {"index"} and "python" in set(kernels["kernel_class"])
    assert "## Top Python functions: sums" in (tmp_path / "out" / "latest" / "details.md").read_text()
    with pytest.raises(AssertionError, match="Did you mean 'cprofile'"):
        call([program, "run", "-p", "cprofil"], tmp_path)
    (tmp_path / "pipeline.yaml").write_text("version: 1\nworkloads: {sums: {script: sums.py, profilers: [cprofil]}}\n")
    with pytest.raises(AssertionError, match=r"workloads\.sums\.profilers\.0: 'cprofil' is not known\. Did you mean"):
        call([program, "run"], tmp_path)
