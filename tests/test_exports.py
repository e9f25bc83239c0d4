"""Reports that only nsys can read: exported where it is here, else refused with what to do and where."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import real_nsys
from program import rows

from profpipe.errors import UnreadableFile
from profpipe.job import Missing, Tool
from profpipe.profilers import nsys as profiler

ROOT = Path(__file__).parents[1]
HERE = Tool("nsys", "2022.4.2", "/opt/nsys")
#: The first line of reports since 2023. The name of the file does not matter.
NEWER = b"NVIDIA Tegra Profiler Report 2026@4@1@191-264138605071v0.\n\x0bLocal (CLI)"


def refusal(report, tool, says=None):
    def ask(argv):
        assert argv[0] == "/opt/nsys" and argv[-1] == str(report)
        return says

    with pytest.raises(UnreadableFile) as refused:
        profiler.export(report, report.with_suffix(".sqlite"), tool, ask)
    return str(refused.value)


@pytest.fixture
def newer(tmp_path):
    path = tmp_path / "my report.nsys-rep"
    path.write_bytes(NEWER)
    return path


def test_a_report_is_recognised_by_its_content_with_the_version_of_nsys(newer, tmp_path):
    other = tmp_path / "other.nsys-rep"
    other.write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    assert profiler.is_report(newer) and profiler.version(newer) == "2026.4.1"
    assert not profiler.is_report(other) and not profiler.is_report(tmp_path) and not profiler.is_recording(other)


#: A report of 2020 in short: the program and another process in it have version numbers, and nsys has the last one.
OLDER = (
    b"NVIDIA Tegra Profiler Report 1.\n\x0bLocal (CLI)R\x18/opt/python-2021.3.4/bin"
    b"\x12\x2d/root/.vscode/extensions/python-2020.9.112786\x2a\x05vm2.5"
    b'"\x132020-10-07T11:15:31*\x05vm2.52\x122020.3.2.6-87e152c:\x122020.3.2.6-87e152c\xa2\x01\x0787e152c'
    b"\xca\x01\x27nsys profile -o 2019.1.1.1-ab python x.pyU3w[END]"
)


def test_a_version_number_of_a_program_is_not_taken_for_the_version_of_nsys(tmp_path):
    path = tmp_path / "report1.qdrep"
    path.write_bytes(OLDER)
    assert profiler.is_report(path) and profiler.version(path) == "2020.3.2"
    path.write_bytes(OLDER.replace(b"2020.3.2.6-87e152c", b""))
    assert profiler.version(path) == ""


def test_without_nsys_the_error_names_the_version_of_the_report_and_the_export_command(newer):
    text = refusal(newer, Missing("nsys", "nsys is not on PATH", "Install it."))
    assert "a report of nsys 2026.4.1, which only nsys can read, and nsys is not on PATH" in text
    assert "nsys export -t sqlite -q true -f true -o 'my report.sqlite' 'my report.nsys-rep'" in text
    assert "profpipe ingest 'my report.sqlite'" in text


@pytest.mark.parametrize(
    "says",
    [
        "Exportation error: Version number is invalid: 2026@4@1@191-264138605071v0",
        "Report was created in Nsight Systems version (2026.4.1.191), newer than your current version (2023.4.4.54)",
    ],
)
def test_an_nsys_that_is_older_than_the_report_is_named_as_the_reason(newer, says):
    text = refusal(newer, HERE, says)
    assert "was written by nsys 2026.4.1; nsys 2022.4.2, which is here, is too old to read it" in text
    assert "Where nsys 2026.4.1 or newer is installed: nsys export" in text


def test_a_cut_report_and_an_export_that_does_not_end_have_different_reasons(newer):
    newer.write_bytes(NEWER.replace(b"2026@4@1", b"2022@4@1"))
    text = refusal(newer, HERE, "Exportation error: Section Table Reference magic number mismatch.")
    assert "magic number mismatch" in text and "cut or damaged" in text
    assert "did not end its export in time" in refusal(newer, HERE, None)


@pytest.mark.parametrize("says", ["Exportation error: boost\nstd::exception::what: ProtobufParseException\n\n", None])
def test_what_a_failed_export_leaves_behind_is_not_read(tmp_path, says):
    report, left = tmp_path / "x.nsys-rep", tmp_path / "x.sqlite"
    report.write_bytes(NEWER.replace(b"2026@4@1", b"2022@4@1"))
    left.write_bytes(b"SQLite format 3\0")
    assert "nsys 2022.4.2, which is here," in refusal(report, HERE, says)
    assert not left.exists()


def test_a_failure_at_a_newer_report_is_put_down_to_its_version(newer):
    assert "is too old to read it" in refusal(newer, HERE, "Exportation error: boost\nProtobufParseException\n")


def test_a_recording_that_was_never_converted_is_named_as_such(tmp_path):
    path = tmp_path / "report1.qdstrm"
    path.write_bytes(b"U3w[END]NVIDIA Nsight Systems Stream 2022.4.2.1-df9881f!")
    text = refusal(path, HERE)
    assert "is a recording of nsys 2022.4.2 that was not made into a report" in text
    assert "QdstrmImporter -i report1.qdstrm" in text


# --- a real nsys -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def report(nsys, tmp_path_factory):
    """A report of a program with one range, recorded by a real nsys."""
    pytest.importorskip("nvtx")
    path = tmp_path_factory.mktemp("nsys") / "real.nsys-rep"
    real_nsys.record(nsys, path, sys.executable, "-c", "import nvtx\nwith nvtx.annotate('forward'): pass")
    return path


def ingested(nsys, *files):
    path = f"{nsys.parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        [sys.executable, "-m", "profpipe", "ingest", *map(str, files), "--out", "read"],
        cwd=files[0].parent, capture_output=True, text=True, timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PATH": path},
    )  # fmt: skip


def test_a_real_report_is_read_under_either_name_and_one_that_is_cut_is_refused(nsys, report):
    assert profiler.version(report) == "2022.4.2"
    old, cut, newer = (report.with_name(name) for name in ("old.qdrep", "cut.nsys-rep", "newer.nsys-rep"))
    content = report.read_bytes()
    old.write_bytes(content)
    cut.write_bytes(content[: len(content) // 2])
    newer.write_bytes(NEWER + content[0x2D:])
    done = ingested(nsys, report, cut, newer, old)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert f"{report}: nsys_sqlite (nsys 2022.4.2" in done.stdout and f"{old}: nsys_sqlite" in done.stdout
    wrong = done.stderr.splitlines()
    assert len(wrong) == 2 and "cut.nsys-rep" in wrong[0] and "cut or damaged" in wrong[0]
    assert "newer.nsys-rep: was written by nsys 2026.4.1" in wrong[1] and "too old to read it" in wrong[1]
    ranges = rows(report.parent / "read" / "ranges.parquet")
    assert sum("forward" in row["range"] for row in ranges) == 2
    left = {path.name for path in report.parent.iterdir()}
    assert left == {"real.nsys-rep", "old.qdrep", "cut.nsys-rep", "newer.nsys-rep", "read"}
