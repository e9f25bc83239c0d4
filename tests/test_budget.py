"""A file that takes more time or memory than its size explains is refused, whatever its reader is doing."""

import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from profpipe.errors import ConfigError, UnreadableFile
from profpipe.ingest import reader
from profpipe.results import budget, database

NUMBERS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n"


@pytest.fixture
def file(tmp_path, monkeypatch):
    """A file whose budget is a tenth of a second and 10 MB."""
    monkeypatch.setenv("PROFPIPE_BUDGET", "0.015")
    path = tmp_path / "file"
    path.write_text("text")
    return path


def loop():
    while True:
        pass


def match():
    re.match(r"(a+)+$", "a" * 40 + "b")


def ask_sqlite():
    with closing(sqlite3.connect(":memory:")) as database, budget.interrupting(database):
        database.execute(f"SELECT count(*) FROM ({NUMBERS})").fetchall()


def loop_in_thread():
    def work():
        while True:
            budget.check()

    with ThreadPoolExecutor(1) as executor:
        executor.submit(work).result()


@pytest.mark.parametrize("work", [loop, match, ask_sqlite, loop_in_thread])
def test_work_without_an_end_is_stopped(file, work):
    begin = time.process_time()
    with pytest.raises(budget.TooLarge, match="more than 0 s of CPU time"), budget.limit(file):
        work()
    assert time.process_time() - begin < 2
    assert signal.getitimer(signal.ITIMER_PROF) == (0, 0)


def test_the_budget_is_for_all_work_on_the_database(file):
    refused = pytest.raises(
        ConfigError, match="is more than profpipe reads: to read it takes more than 0 s of CPU time"
    )
    with refused, database.connect(file.parent) as opened:
        opened.execute(f"SELECT count(*) FROM ({NUMBERS})").fetchall()


def test_ctrl_c_ends_a_statement_of_sqlite(tmp_path):
    with pytest.raises(KeyboardInterrupt), database.connect(tmp_path) as opened:
        threading.Timer(0.3, os.kill, [os.getpid(), signal.SIGINT]).start()
        opened.execute(f"SELECT count(*) FROM ({NUMBERS})").fetchall()


def test_memory_without_an_end_is_stopped(file, monkeypatch):
    monkeypatch.setenv("PROFPIPE_BUDGET", "0.1")
    kept, before = [], budget.resident_bytes()
    with pytest.raises(budget.TooLarge, match="more than 67 MB of memory"), budget.limit(file):
        while True:
            kept.append(bytearray(1 << 20))
            time.sleep(0.001)
    assert budget.resident_bytes() - before < 1 << 30


def test_the_budget_grows_with_the_file(tmp_path):
    sizes = {}
    for name, head in (("plain", b"{"), ("packed", b"\x1f\x8b")):
        path = tmp_path / name
        with path.open("wb") as stream:
            stream.write(head)
            stream.truncate(100_000_000)
        sizes[name] = budget.allowed(path)
    assert sizes["plain"][0] == 11 and sizes["plain"][1] > 1e9
    # As one of 1.6 GB: beyond 100 MB a file gets more, for honest texts take long on slow machines.
    assert sizes["packed"][0] == 161


def test_time_that_other_programs_take_does_not_count(file):
    with budget.limit(file):
        time.sleep(0.3)


PARSER = """
FORMATS = ("endless",)

def sniff(path):
    return path.read_bytes() == b"text"

def parse(path):
    while True:
        try:
            sum(range(1000))
        except ValueError:
            pass
"""


def test_a_file_beyond_its_budget_is_refused_with_the_reason(file):
    (file.parent / "parsers").mkdir()
    (file.parent / "parsers" / "endless.py").write_text(PARSER)
    known = reader.parsers(file.parent)
    with pytest.raises(UnreadableFile) as refused:
        reader.parse(reader.choose(file, known), file)
    what = "is more than profpipe reads: to read it takes more than 0 s of CPU time"
    assert (refused.value.path, refused.value.what, refused.value.remedy) == (file, what, budget.REMEDY)


@pytest.mark.parametrize("factor", ["much", "0", "-1", "nan", "inf", ""])
def test_a_wrong_factor_is_an_error(file, monkeypatch, factor):
    monkeypatch.setenv("PROFPIPE_BUDGET", factor)
    with pytest.raises(ConfigError, match=f"PROFPIPE_BUDGET: '{factor}' is no positive number"):
        reader.choose(file, reader.parsers())


def test_a_program_that_ends_meanwhile_costs_the_file_nothing(file):
    busy = "import time\nwhile time.process_time() < 0.5: pass"
    with budget.limit(file):
        subprocess.run([sys.executable, "-S", "-c", busy], check=True)
        budget.check()
