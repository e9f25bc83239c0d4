"""What several test files share: the recorded profiler files, a real nsys, and the option that renews golden files."""

import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest
import slurm_cluster
from hypothesis import HealthCheck, settings

#: Several workers run at once, so each uses one thread: more threads than cores make torch many times slower.
os.environ.setdefault("OMP_NUM_THREADS", "1")

signal.signal(signal.SIGINT, signal.default_int_handler)  # A script's command in the background ignores Ctrl-C.

#: No process is started ahead, whatever machine this is; tests/test_prestart.py sets another number.
os.environ.setdefault("PROFPIPE_LEAST_CORES", "1000000")

#: The key that marks the runs of this user is made in a temporary folder, and not in the home of the developer.
_STATE = tempfile.TemporaryDirectory(prefix="profpipe-state-")
os.environ["XDG_STATE_HOME"] = _STATE.name

#: A loaded machine takes longer for an example than the 200 ms of the default, and longer to make examples.
settings.register_profile("profpipe", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("profpipe")

ROOT = Path(__file__).resolve().parents[1]
SHARED_DATA = ROOT.parent / "shared" / "data"
#: `make nightly` runs the tests with a stub of torch too, with the real one.
REAL_TORCH = os.environ.get("PROFPIPE_REAL_TORCH") == "1"


@pytest.fixture(autouse=True)
def _restore_environment():
    """Drop what a command that runs in this process sets, such as the number of threads of its libraries."""
    before = dict(os.environ)
    yield
    if dict(os.environ) != before:
        os.environ.clear()
        os.environ.update(before)


def pytest_addoption(parser):
    parser.addoption(
        "--regenerate", action="store_true", help="write the golden files again instead of comparing with them"
    )


@pytest.fixture(scope="session")
def regenerate(pytestconfig):
    """True where golden files are to be written instead of compared with."""
    return bool(pytestconfig.getoption("--regenerate"))


@pytest.fixture(scope="session")
def root():
    """The checkout."""
    return ROOT


@pytest.fixture(scope="session")
def shared_data():
    """Recorded files of many tools and versions; some may not be redistributed, so they lie outside the project."""
    if not SHARED_DATA.is_dir():
        pytest.skip(f"no recorded profiler files in {SHARED_DATA}")
    return SHARED_DATA


@pytest.fixture(scope="session")
def made_once(tmp_path_factory):
    """Return what lets the first worker fill a folder, for which the others wait."""

    def make(name, fill):
        base = tmp_path_factory.getbasetemp()
        base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
        folder = base / f"once-{name}"
        with (base / f"once-{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (folder / ".is_made").exists():
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                fill(folder)
                (folder / ".is_made").touch()
        return folder

    return make


@pytest.fixture(scope="module")
def parser(request):
    """The parser that the module of the test is named after."""
    from profpipe import plugins

    return plugins.load_module(
        plugins.builtin_folder("parsers") / f"{request.module.__name__.removeprefix('test_')}.py"
    )


@pytest.fixture
def stub_torch(monkeypatch):
    """Programs import tests/stub_torch, which costs a twentieth; with PROFPIPE_REAL_TORCH=1 the real torch.

    It is for tests that ask nothing of torch: no profiler, no compiler, no data loader, no result. Returns what stands
    first on PYTHONPATH, for tests that set that variable.
    """
    path = [] if REAL_TORCH else [str(ROOT / "tests" / "stub_torch")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([*path, *filter(None, [os.environ.get("PYTHONPATH")])]))
    return path


@pytest.fixture
def on_the_cpu(monkeypatch):
    """The same answers on a machine with a GPU."""
    from profpipe.workload_lib import attention_config

    monkeypatch.setattr(attention_config, "device", lambda: "cpu")


@pytest.fixture
def opened(monkeypatch):
    """For a workload's module: the names of the ranges that it opens from then on, in order."""

    def record(workload):
        names: list[str] = []

        @contextmanager
        def annotate(name):
            names.append(name)
            yield

        monkeypatch.setattr(workload, "annotate", annotate)
        return names

    return record


def _find_nsys():
    """A real nsys and its version, or None and why not."""
    configured = os.environ.get("PROFPIPE_TEST_NSYS", "")
    fetched = ROOT / ".cache" / "nsys" / "target-linux-x64" / "nsys"
    found = configured or (str(fetched) if fetched.exists() else shutil.which("nsys"))
    if not found:
        return None, "no nsys here: run `make nsys`, or set PROFPIPE_TEST_NSYS to one"
    try:
        version = subprocess.run([found, "--version"], capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        return None, f"{found} does not start: {error}"
    return Path(found), version.strip()


@pytest.fixture(scope="session")
def nsys():
    """The executable of a real nsys; it needs no GPU to record ranges."""
    path, detail = _find_nsys()
    if path is None:
        pytest.skip(detail)
    return path


@pytest.fixture(scope="session")
def slurm():
    """A running Slurm cluster of four nodes on this machine. A test that leaves jobs or nodes down calls `clear`."""
    if missing := slurm_cluster.why_missing():
        pytest.skip(missing)
    with slurm_cluster.running() as cluster:
        yield cluster


def pytest_terminal_summary(terminalreporter):
    """Says whether nsys was there: a green run without it has proved less."""
    _write_table(terminalreporter)
    path, detail = _find_nsys()
    terminalreporter.write_line(f"nsys: {path} ({detail})" if path else f"nsys: not used, {detail}")
    terminalreporter.write_line(f"slurm: {slurm_cluster.why_missing() or slurm_cluster.version()}")
    if not SHARED_DATA.is_dir():
        terminalreporter.write_line(f"recorded files: not used, no {SHARED_DATA}")


def _write_table(terminalreporter):
    """The rows that tests recorded as `table`: what was proved, in figures."""
    reports = terminalreporter.stats.get("passed", [])
    rows = [value for report in reports for name, value in report.user_properties if name == "table"]
    if rows:
        terminalreporter.section("equal to the truth", sep="-")
        width = max(len(row[0]) for row in rows)
        for name, *figures in sorted(rows):
            terminalreporter.write_line(f"{name:{width}}  " + "  ".join(f"{figure:>18}" for figure in figures))


#: Fixtures that start several processes, or a real nsys. The tests that use them are slow.
SLOW_FIXTURES = {"nsys", "run_of_two", "answer_folder", "study", "script", "slurm", "wheel"}


def pytest_collection_modifyitems(items):
    for item in items:
        if REAL_TORCH and "stub_torch" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.exhaustive)
        if SLOW_FIXTURES & set(getattr(item, "fixturenames", ())) or item.get_closest_marker("exhaustive"):
            item.add_marker(pytest.mark.slow)
        if item.get_closest_marker("slow") and item.path.stem not in ("test_kill", "test_chaos"):
            # It times real processes, which other programs on the machine delay. What is broken fails twice, but for
            # races, which those two look for.
            item.add_marker(pytest.mark.flaky(reruns=1))
