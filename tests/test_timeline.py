"""The events of one step that ingestion keeps for the timeline: equal to the tables, and few."""

import gzip
from pathlib import Path

import pandas as pd
import pytest
from nsys_exports import Export

from profpipe import plugins
from profpipe.analysis.timeline import find_timelines
from profpipe.errors import UnreadableFile
from profpipe.ingest import kernel_classes, reader
from profpipe.results import schema
from profpipe.results.schema import STEP_PREFIX, Tables

ROOT = Path(__file__).resolve().parents[1]
WINDOWS = ("step", "iteration", "beginning")
OPERATIONS = ("kernel", "memcpy", "memset", "graph")
IDLE = ("idle_launch", "idle_blocked", "idle_other")


def parsed(path, parser="nsys_sqlite"):
    tables: Tables = plugins.load_module(ROOT / "parsers" / f"{parser}.py").parse(path)
    return reader.combine([tables])


def union_ns(rows, low, high):
    """The time in [low, high) in which one of ``rows`` runs, by going through them."""
    total, reached = 0.0, low
    for start, duration in sorted(zip(rows["start_ns"], rows["duration_ns"], strict=True)):
        end = min(start + duration, high)
        total += max(end - max(start, reached), 0.0)
        reached = max(reached, end)
    return total


def window_of(timeline):
    """Kind, start and end of what the rows of a rank show."""
    (row,) = timeline[timeline["kind"].isin(WINDOWS)].to_dict("records")
    return row["kind"], row["start_ns"], row["start_ns"] + row["duration_ns"]


def assert_equal_to_its_step(timeline, step):
    kind, low, high = window_of(timeline)
    assert (kind, high - low) == ("step", step["wall_ns"])
    operations = timeline[timeline["kind"].isin(OPERATIONS)]
    computes = (operations["kind"] == "kernel") & (operations["kernel_class"] != "communication")
    compute = union_ns(operations[computes], low, high)
    kernels = union_ns(operations[operations["kind"] == "kernel"], low, high)
    assert compute == step["compute_ns"]
    assert kernels - compute == step["communication_ns"]
    assert union_ns(operations, low, high) - kernels == step["copy_ns"]
    for cause in IDLE:
        assert timeline.loc[timeline["kind"] == cause, "duration_ns"].sum() == step[f"{cause}_ns"]


@pytest.mark.parametrize("kind", ["evals", "graphs"])
def test_the_events_of_a_known_loop_add_up_to_its_step(kind, tmp_path):
    path = tmp_path / f"{kind}.sqlite"
    path.write_bytes(gzip.decompress((ROOT / "tests/data/nsys-2025.3.1/loops" / f"{kind}.sqlite.gz").read_bytes()))
    tables = parsed(path)
    (number,) = tables.timeline["step"].unique()
    steady = tables.steps[tables.steps["state"] == "steady"]
    (step,) = steady[steady["step"] == number].to_dict("records")
    assert_equal_to_its_step(tables.timeline, step)
    # The step that is shown is a typical one, from the middle of the run.
    assert step["wall_ns"] == pytest.approx(steady["wall_ns"].median(), rel=0.02)


def test_ranks_of_one_recording_show_the_same_step_on_one_clock(shared_data, tmp_path):
    path = tmp_path / "ddp.sqlite"
    path.write_bytes(gzip.decompress((shared_data / "steps" / "ddp.sqlite.gz").read_bytes()))
    tables = parsed(path)
    assert tables.timeline["step"].nunique() == 1
    number = tables.timeline["step"].iloc[0]
    starts = {}
    for rank, own in tables.timeline.groupby("rank"):
        rows = tables.steps[(tables.steps["rank"] == rank) & (tables.steps["step"] == number)]
        (step,) = rows[rows["state"] == "steady"].to_dict("records")
        assert_equal_to_its_step(own, step)
        starts[rank] = (window_of(own)[1], step["start_ns"])
    assert starts[1][0] - starts[0][0] == starts[1][1] - starts[0][1]


RECORDINGS = {
    "nsys": "tests/nsys-2025.3.1/training/lm_eager.sqlite",
    "torch": "tests/torch-2.11/attention_h200.json.gz",
    "rocprof JSON": "rocprof/**/results.json",
    "rocpd": "rocprof/**/*.db",
    "rocprofv3 CSV": "rocprof/**/*kernel_trace.csv",
}


def read_first(pattern, shared_data):
    """The first recording with launches that ``pattern`` finds."""
    base = ROOT / "tests" / "data" if pattern.startswith("tests/") else shared_data
    for path in sorted(base.glob(pattern.removeprefix("tests/"))):
        try:
            tables = reader.parse(reader.choose(path, reader.parsers()), path)
        except UnreadableFile:
            continue
        if len(tables.timeline):
            return reader.combine([tables])
    raise AssertionError(f"no recording {pattern}")


@pytest.mark.parametrize("kind", RECORDINGS)
def test_every_format_with_single_launches_gives_a_timeline(kind, shared_data):
    tables = read_first(RECORDINGS[kind], shared_data)
    operations = tables.timeline[tables.timeline["kind"].isin(OPERATIONS)]
    assert len(operations)
    key = ["case", "kind", "kernel", "kernel_class"]
    known = tables.kernels.groupby(key)[["calls", "max_ns", "min_ns"]].agg(
        {"calls": "sum", "max_ns": "max", "min_ns": "min"}
    )
    for of, own in operations.rename(columns={"name": "kernel"}).groupby(key):
        assert len(own) <= known.loc[of, "calls"]
        assert (
            known.loc[of, "min_ns"] <= own["duration_ns"].min() and own["duration_ns"].max() <= known.loc[of, "max_ns"]
        )
    for _, own in tables.timeline.groupby(["case", "rank"]):
        _, low, high = window_of(own)
        idle = own.loc[own["kind"].isin(IDLE), "duration_ns"].sum()
        assert union_ns(own[own["kind"].isin(OPERATIONS)], low, high) + idle == pytest.approx(high - low, abs=1)


def test_a_case_shows_one_iteration_up_to_the_next_one(tmp_path):
    export = Export()
    for n, period in enumerate((900, 300, 310)):
        at = 1000 * n
        export.range(at, at + period, "profpipe:impl=a")
        export.call(at + 10, at + 20, 2 * n + 1)
        export.kernel(at + 100, at + 150, 2 * n + 1, "first")
        export.call(at + 30, at + 40, 2 * n + 2)
        export.kernel(at + 160, at + 200, 2 * n + 2, "second")
    timeline = parsed(export.write_sqlite(tmp_path / "x.sqlite")).timeline
    assert set(timeline["case"]) == {"impl=a"} and set(timeline["step"]) == {2}
    shown = timeline.set_index(["kind", "name"])[["start_ns", "duration_ns", "launched_ns"]]
    # The third iteration has the median time. It is the last one, and ends with its last operation.
    assert shown.loc[("iteration", "")].tolist()[:2] == [0, 100]
    assert shown.loc[("kernel", "second")].tolist() == [60, 40, -70]
    assert shown.loc[("idle_other", "")].tolist()[:2] == [50, 10]


def test_idle_time_and_calls_are_those_of_the_host(tmp_path):
    export = Export()
    for n in range(4):
        at = 1000 * n
        export.range(at, at + 900, f"{STEP_PREFIX}marker:{n}")
        export.call(at + 100, at + 110, 3 * n + 1)
        export.kernel(at + 200, at + 300, 3 * n + 1)
        export.call(at + 290, at + 350, 99, name="cudaStreamSynchronize_v3020", tid=1)
        export.call(at + 360, at + 370, 3 * n + 2)
        export.kernel(at + 400, at + 500, 3 * n + 2)
        export.call(at + 560, at + 570, 3 * n + 3, tid=5)
        export.kernel(at + 600, at + 700, 3 * n + 3, "last")
    timeline = parsed(export.write_sqlite(tmp_path / "x.sqlite")).timeline
    rows = {(row.kind, row.name_): row for row in timeline.rename(columns={"name": "name_"}).itertuples()}
    assert (rows["idle_blocked", ""].start_ns, rows["idle_blocked", ""].duration_ns) == (100, 100)
    assert rows["wait", "cudaStreamSynchronize"].duration_ns == 60
    launch = rows["launch", "last"]
    assert (launch.start_ns, launch.duration_ns, launch.thread) == (360, 10, 5)
    late = timeline[timeline["kind"] == "idle_launch"]
    assert late["start_ns"].tolist() == [300, 500] and late["duration_ns"].tolist() == [100, 500]


def test_of_a_recording_without_steps_the_first_two_seconds_are_kept(tmp_path):
    export = Export()
    for n in range(40):
        export.launch(n * n * 3_000_000, n + 1, f"k{n}", lasts=1000)
    timeline = parsed(export.write_sqlite(tmp_path / "x.sqlite")).timeline
    assert window_of(timeline) == ("beginning", 0, 2e9) and timeline["step"].isna().all()
    assert timeline.loc[timeline["kind"] == "kernel", "name"].tolist() == [f"k{n}" for n in range(26)]


def test_a_step_of_very_many_launches_is_cut_in_time(tmp_path):
    export = Export()
    for n in range(12_000):
        export.launch(100 * n, n + 1, lasts=50)
    export.range(0, 100 * 12_000, f"{STEP_PREFIX}marker:0")
    tables = parsed(export.write_sqlite(tmp_path / "x.sqlite"))
    kind, low, high = window_of(tables.timeline)
    assert (kind, low, high) == ("step", 0, 100 * 10_000) and high < tables.steps["wall_ns"].iloc[0]
    operations = tables.timeline[tables.timeline["kind"] == "kernel"]
    assert len(operations) == 10_000
    idle = tables.timeline.loc[tables.timeline["kind"].isin(IDLE), "duration_ns"].sum()
    assert operations["duration_ns"].sum() + idle == high


def test_the_users_rules_decide_the_class_on_the_timeline_too(tmp_path):
    export = Export()
    for n in range(5):
        export.range(100 * n, 100 * n + 90, f"{STEP_PREFIX}marker:{n}")
        export.launch(100 * n, n + 1, "my_kernel")
    path = export.write_sqlite(tmp_path / "x.sqlite")
    rules = kernel_classes.user_rules([{"class": "attention", "family": "mine", "pattern": "^my_kernel"}])
    (result,) = reader.ingest([reader.InputFile(path, path.name)], rules=rules)
    assert isinstance(result, reader.Read)
    timeline = result.tables.timeline
    assert set(timeline.loc[timeline["name"] == "my_kernel", "kernel_class"]) == {"attention"}
    assert set(timeline.loc[timeline["name"] == "", "kernel_class"]) == {""}


def test_names_stay_as_they_were_recorded(tmp_path):
    export = Export()
    hostile = "</script><img src=x onerror=alert(1)>" + "k" * 10_000
    for n in range(5):
        export.range(100 * n, 100 * n + 90, f"{STEP_PREFIX}marker:{n}")
        export.launch(100 * n, n + 1, hostile)
    timeline = parsed(export.write_sqlite(tmp_path / "x.sqlite")).timeline
    assert hostile in set(timeline["name"])
    assert list(timeline.columns) == schema.TIMELINE.names


def test_ranks_in_files_of_their_own_show_the_same_step_though_their_times_vary(tmp_path):
    shown = []
    for rank, seed in enumerate((3, 8)):
        export = Export()
        at = 0
        for n in range(21):
            export.range(at, at + 900, f"{STEP_PREFIX}marker:{n}")
            export.launch(at + 10, n + 1, lasts=50)
            at += 1000 + (n * seed) % 7
        (folder := tmp_path / str(rank)).mkdir()
        timeline = parsed(export.write_sqlite(folder / "x.sqlite")).timeline
        shown += timeline["step"].unique().tolist()
    assert len(shown) == 2 and shown[0] == shown[1]


def test_a_process_without_one_window_has_no_timeline(tmp_path):
    export = Export()
    for n in range(5):
        export.launch(n * 3_000_000, n + 1, f"k{n}", lasts=1000)
    stored, steps = parsed(export.write_sqlite(tmp_path / "x.sqlite")).timeline, schema.empty(schema.STEPS)
    window = stored[stored["kind"] == "beginning"]
    assert len(find_timelines(stored, steps)) == 1
    assert find_timelines(stored.drop(index=window.index), steps) == ()
    assert find_timelines(pd.concat([stored, window], ignore_index=True), steps) == ()
