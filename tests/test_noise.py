"""The noise model: what pairs, processes and runs of the same code show, and the database that keeps it."""

import math
import random
import sqlite3
import statistics
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from program import WITHOUT_TORCH, profpipe

from profpipe.analysis import history as shown, verdict
from profpipe.errors import ConfigError
from profpipe.results import database, noise, schema
from profpipe.results.manifest import Gpu, JobEntry, Machine, Manifest
from profpipe.results.noise import Sample, SpreadSource
from profpipe.results.schema import CASES, METRICS, Tables

RUN = Manifest(name="study", started="2026-11-20T06:00:00+00:00", ended="x")


def on_gpu(driver="580.1", **more):
    return replace(RUN, machine=Machine(gpus=(Gpu("NVIDIA H200", driver=driver),)), **more)  # type: ignore[arg-type]


# --- Student's t -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("probability", "degrees", "value"),
    # Abramowitz and Stegun, table 26.10.
    [(0.975, 1, 12.706), (0.995, 1, 63.657), (0.975, 4, 2.776), (0.995, 8, 3.355), (0.9975, 10, 3.581),
     (0.95, 30, 1.697), (0.995, 120, 2.617)],
)  # fmt: skip
def test_quantiles_of_student_are_those_of_the_printed_table(probability, degrees, value):
    assert verdict.quantile(probability, degrees) == pytest.approx(value, abs=0.0006)


def test_quantiles_with_a_fraction_of_a_degree_are_those_of_scipy():
    stats = pytest.importorskip("scipy.stats")
    for degrees in (1.7, 2.96, 6.02, 33.3):
        assert verdict.quantile(0.995, degrees) == pytest.approx(stats.t.ppf(0.995, degrees), rel=1e-5)


# --- what a source shows ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [3, 5, 20])
def test_processes_show_the_spread_of_two_of_them(count):
    rng = random.Random(1)
    found = []
    for _ in range(400):
        times = [100 * math.exp(rng.gauss(0, 0.01)) for _ in range(count)]
        sample = shown.sample_processes(SpreadSource.CAPTURES, "r", "w", "c", times)
        assert sample is not None and sample.n == count
        found.append(math.log1p(sample.spread))
    # Of few processes the estimate is rather too large than too small.
    assert 0.99 < statistics.median(found) / (math.sqrt(2) * 0.01) < (1.03 if count == 20 else 1.25)


def test_one_process_shows_nothing_and_single_slow_ones_do_not_count():
    assert shown.sample_processes(SpreadSource.CAPTURES, "r", "w", "c", [100.0]) is None
    calm = [100.0, 100.4, 99.8, 100.2, 99.9, 100.1, 100.3]
    samples = [shown.sample_processes(SpreadSource.CAPTURES, "r", "w", "c", times) for times in (calm, [*calm, 150.0])]
    assert all(sample and sample.spread < 0.007 for sample in samples)


def test_samples_are_pooled_as_variances_by_their_degrees_of_freedom():
    rows = [{"source": "pairs", "n": 8, "degrees": 3.0, "spread": 0.01},
            {"source": "captures", "n": 5, "degrees": 1.0, "spread": 0.03}]  # fmt: skip
    pooled = noise.pool(rows)
    assert (
        pooled is not None
        and pooled.degrees == 4.0
        and pooled.counts == {SpreadSource.PAIRS: 8, SpreadSource.CAPTURES: 5}
    )
    variance = (3 * math.log1p(0.01) ** 2 + math.log1p(0.03) ** 2) / 4
    assert pooled.spread == pytest.approx(math.expm1(math.sqrt(variance)))
    assert noise.pool([]) is None


# --- the database ----------------------------------------------------------------------------------------------------


def test_the_spread_is_kept_by_pipeline_gpu_and_driver(tmp_path):
    assert noise.read(tmp_path, on_gpu()) == {}
    for _ in range(2):  # a run that is resumed replaces its samples
        noise.store(tmp_path, on_gpu(), [Sample(SpreadSource.PAIRS, "one", "w", "c", 8, 3.0, 0.01)], "one")
    noise.store(tmp_path, on_gpu(), [Sample(SpreadSource.RUNS, "print", "w", "c", 4, 2.6, 0.04)], "two")
    known = noise.read(tmp_path, on_gpu())["w", "c"]
    assert known.within is not None and known.within.counts == {SpreadSource.PAIRS: 8}
    assert known.between is not None and known.between.counts == {SpreadSource.RUNS: 4}
    assert noise.read_floors(tmp_path, on_gpu()) == {"w": {"c": pytest.approx(0.01)}}
    assert known.run_spread is not None and known.run_spread.spread == pytest.approx(0.04)
    assert noise.read(tmp_path, on_gpu("590.2")) == noise.read(tmp_path, on_gpu(name="other")) == {}


@pytest.mark.parametrize(
    ("column", "value"), [("spread", -2.0), ("spread", math.inf), ("spread", None), ("degrees", "x"), ("source", "x")]
)
def test_a_spread_that_no_sample_has_is_left_out(tmp_path, column, value):
    noise.store(tmp_path, on_gpu(), [Sample(SpreadSource.PAIRS, "one", "w", "c", 8, 3.0, 0.01)], "one")
    with database.connect(tmp_path) as db, db.conn:
        db.execute(f"update noise set {column} = ?", [value])
    assert noise.read(tmp_path, on_gpu()) == {}


def tables(run, times):
    key = {"run": run, "workload": "w", "case": "c", "profiler": "plain"}
    numbers = [{**key, "metric": "time", "subject": subject, "value": value} for subject, value in times.items()]
    return Tables(cases=schema.frame(CASES, [{**key, "status": "ok"}]), metrics=schema.frame(METRICS, numbers))


def stored(out, number, time_ns, key, reused_from="", **more):
    """Store a run with a job of this key."""
    job = JobEntry(workload="w", profiler="plain", cases=("c",), key=key, reused_from=reused_from)
    run = on_gpu(started=f"2026-11-{number:02d}T00:00:00+00:00", jobs=(job,))
    database.store_run(out, out / f"run{number}", tables(f"run{number}", {"": time_ns, **more}), run)


def test_runs_with_the_same_fingerprint_show_the_spread_between_runs_and_others_do_not(tmp_path):
    for number, (time_ns, key, origin) in enumerate(
        [(100.0, "a", ""), (101.0, "a", ""), (150.0, "b", ""), (99.0, "a", ""), (99.0, "a", "run4"), (98.0, "", "")], 1
    ):
        stored(tmp_path, number, time_ns, key, origin)
    ((_, *case), times), *others = noise.read_repeated(tmp_path, "run4").items()
    assert (case, times, others) == (["w", "c"], [100.0, 101.0, 99.0], [])
    # A job that was reused measured nothing, and a job without a key may have measured anything.
    assert noise.read_repeated(tmp_path, "run5") == noise.read_repeated(tmp_path, "run6") == {}


def test_five_runs_show_a_spread_and_a_single_slow_one_does_not_change_it():
    times = [100.0, 101.0, 99.0, 100.0, 100.5]
    (calm,) = shown.sample_repeated({("print", "w", "c"): times})
    (slow,) = shown.sample_repeated({("print", "w", "c"): [*times[:4], 150.0]})
    assert (calm.source, calm.origin, calm.n) == (SpreadSource.RUNS, "print", 5)
    assert calm.spread == pytest.approx(math.log(101 / 100) / 0.6745, rel=0.05)
    assert slow.spread < 2.5 * calm.spread
    assert list(shown.sample_repeated({("print", "w", "c"): times[:4]})) == []


def test_of_runs_with_several_processes_the_first_one_counts(tmp_path):
    for number, first in ((1, 90.0), (2, 95.0)):
        stored(tmp_path, number, 100.0, "a", **{"process 1": first, "process 2": 110.0})
    assert list(noise.read_repeated(tmp_path, "run2").values()) == [[90.0, 95.0]]


#: A database as development versions wrote it.
OLD = """
create table runs (run text primary key, name text, started text, ended text);
create table metrics (run text, workload text, "case" text, profiler text, subject text, metric text, value float);
insert into metrics values ('old', 'w', 'c', 'plain', '', 'time', 90.0);
"""


def write_old(out, script=OLD):
    connection = sqlite3.connect(out / database.FILE)
    connection.executescript(script)
    connection.close()


def test_processes_that_make_a_database_at_the_same_time_wait_for_each_other(tmp_path):
    def connect(out, start):
        start.wait()
        with database.connect(out) as known:
            return len(known.table_names())

    for number in range(10):
        out, start = tmp_path / str(number), threading.Barrier(4)
        out.mkdir()
        with ThreadPoolExecutor(4) as threads:
            counts = list(threads.map(connect, [out] * 4, [start] * 4))
        assert set(counts) == {4}


def test_a_database_without_a_column_of_this_version_is_refused(tmp_path):
    stored(tmp_path, 1, 100.0, "a")
    write_old(tmp_path, "alter table cases drop column first_ns;")
    with pytest.raises(ConfigError, match="is of another version of profpipe"):
        stored(tmp_path, 2, 101.0, "a")


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (f"pragma user_version = {database.VERSION + 1};", "is of another version of profpipe"),
        (
            OLD,
            r"is of another version of profpipe \(schema 0; this one writes 2\)\. Use that version, or move the file",
        ),
        ("create table songs (title text);", "is a database of another program: it has the tables songs"),
        ("create table runs (id integer);", "is a database of another program: it has the tables runs"),
    ],
)
def test_a_foreign_database_is_refused_and_left_as_it_is(tmp_path, script, message):
    write_old(tmp_path, script)
    before = (tmp_path / database.FILE).read_bytes()
    for command in (lambda: database.read_history(tmp_path), lambda: stored(tmp_path, 1, 1.0, "a")):
        with pytest.raises(ConfigError, match=message):
            command()
    assert (tmp_path / database.FILE).read_bytes() == before


# --- whole commands --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_captures_and_repeated_runs_fill_the_noise_model(tmp_path):
    (tmp_path / "sums.py").write_text("def build(params):\n    return lambda: sum(range(20000))\n", encoding="utf-8")
    text = "version: 1\nname: study\nworkloads: {sums: {script: sums.py, profilers: [plain], timing: {budget_s: 0.05}}}"
    (tmp_path / "pipeline.yaml").write_text(text, encoding="utf-8")
    for _ in range(5):
        profpipe(tmp_path, "run", "--captures", "2", PYTHONPATH=WITHOUT_TORCH)
    rows = sqlite3.connect(tmp_path / "out" / database.FILE).execute("select source, n from noise order by source, n")
    assert rows.fetchall() == [("captures", 2)] * 5 + [("runs", 5)]
    manifest = Manifest.load((tmp_path / "out" / "latest").resolve())
    known = noise.read(tmp_path / "out", manifest)["sums", "default"]
    assert known.within is not None and known.within.counts == {SpreadSource.CAPTURES: 10}
    # A change of the code is another fingerprint.
    (tmp_path / "sums.py").write_text("def build(params):\n    return lambda: sum(range(40000))\n", encoding="utf-8")
    profpipe(tmp_path, "run", "--captures", "2", PYTHONPATH=WITHOUT_TORCH)
    (between,) = [noise.read(tmp_path / "out", manifest)["sums", "default"].between]
    assert between is not None and between.counts == {SpreadSource.RUNS: 5}
