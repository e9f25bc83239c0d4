"""`profpipe trace`: queries of Perfetto's own trace processor give back the sums of the tables."""

import gzip
import importlib.util
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from nsys_exports import Export
from trace_processor import query

from profpipe.cli import main
from profpipe.results import store
from profpipe.results.schema import STEP_PREFIX

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "tests" / "data"

#: Time by process, track and category; JSON has threads where Perfetto's own format has tracks.
TRACKS = """
select p.name as process, t.name as track, s.category, s.name, s.ts, s.dur
from slice s join process_track t on s.track_id = t.id join process p using (upid)
"""
THREADS = """
select p.name as process, h.name as track, s.category, s.name, s.ts, s.dur
from slice s join thread_track t on s.track_id = t.id join thread h using (utid) join process p using (upid)
"""
OF_HOST = ("range", "launch", "wait", "call")


@pytest.fixture
def ingested(tmp_path):
    """The folder of the tables of a recording, which lies in it; a zipped one is unzipped first."""

    def ingest(path):
        is_zipped, tables = path.suffixes[-2:] == [".sqlite", ".gz"], tmp_path / "tables"
        tables.mkdir(exist_ok=True)
        copy = tables / (path.stem if is_zipped else path.name)
        copy.write_bytes(gzip.decompress(path.read_bytes()) if is_zipped else path.read_bytes())
        assert main(["ingest", str(copy), "--out", str(tables)]) == 0
        return tables

    return ingest


def traced(folder, *options, name="trace.pftrace"):
    """The slices of a trace of the run in ``folder``."""
    assert main(["trace", str(folder), "--out", str(folder / name), *options]) == 0
    (rows,) = query(folder / name, THREADS if ".json" in name else TRACKS)
    return pd.DataFrame(rows)


def operations(slices):
    return slices[~slices["category"].isin([*OF_HOST, "step", "idle"])]


def assert_sums_of_tables(slices, folder):
    kernels = store.load(folder)[0].kernels
    expected = kernels.groupby(["kernel", "kernel_class"])[["calls", "total_ns"]].sum()
    found = operations(slices).groupby(["name", "category"])["dur"].agg(["size", "sum"])
    assert found["size"].to_dict() == expected["calls"].to_dict()
    assert found["sum"].to_dict() == expected["total_ns"].to_dict()


RECORDINGS = {
    "steps": DATA / "nsys-2025.3.1/loops/graphs.sqlite.gz",
    "ranges": DATA / "nsys-2025.3.1/training/lm_eager.sqlite",
    "torch": DATA / "torch-2.11/attention_h200.json.gz",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["trace.pftrace", pytest.param("trace.json", marks=pytest.mark.slow)])
@pytest.mark.parametrize("recording", RECORDINGS)
def test_the_operations_of_a_trace_have_the_sums_of_the_tables(recording, name, ingested):
    folder = ingested(RECORDINGS[recording])
    assert_sums_of_tables(traced(folder, name=name), folder)


@pytest.mark.slow
def test_steps_and_their_idle_time_equal_the_table(ingested):
    folder = ingested(RECORDINGS["steps"])
    slices = traced(folder)
    steps = store.load(folder)[0].steps
    shown = slices[slices["category"] == "step"].sort_values("ts")
    assert shown["dur"].tolist() == steps["wall_ns"].tolist()
    idle = slices[slices["category"] == "idle"]
    names = {"idle: the host launched late": "idle_launch_ns", "idle: after a synchronising call": "idle_blocked_ns",
             "idle: cause unknown": "idle_other_ns"}  # fmt: skip
    for at, length, row in zip(shown["ts"], shown["dur"], steps.to_dict("records"), strict=True):
        inside = idle[(idle["ts"] >= at) & (idle["ts"] < at + length)]
        by_cause = inside.groupby("name")["dur"].sum()
        assert {column: by_cause.get(name, 0) for name, column in names.items()} == {
            column: row[column] for column in names.values()
        }


@pytest.mark.slow
def test_one_step_is_written_with_the_calls_that_launched_it(ingested):
    folder = ingested(RECORDINGS["steps"])
    data = store.load(folder)[0]
    slices = traced(folder, "--step", "steady")
    (step,) = slices[slices["category"] == "step"].to_dict("records")
    (number,) = data.timeline["step"].unique()
    assert step["name"] == f"step {number}"
    inside = operations(slices)
    assert (inside["ts"] + inside["dur"] > step["ts"]).all() and (inside["ts"] < step["ts"] + step["dur"]).all()
    row = data.steps[(data.steps["step"] == number) & (data.steps["state"] == "steady")].iloc[0]
    assert slices.loc[slices["category"] == "idle", "dur"].sum() == row["idle_ns"]
    assert len(slices[slices["category"] == "launch"]) > 0


@pytest.mark.slow
def test_an_arrow_leads_from_each_launch_to_its_operation(ingested, tmp_path):
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

    folder = ingested(RECORDINGS["ranges"])
    traced(folder)
    trace = Trace.FromString((folder / "trace.pftrace").read_bytes())
    for packet in trace.packet:
        # The trace processor of the tests, of 2021, knows the field that `flow_ids` has replaced.
        packet.track_event.flow_ids_old.extend(packet.track_event.flow_ids)
    old = tmp_path / "old.pftrace"
    old.write_bytes(trace.SerializeToString())
    arrows = """select o.category as a, o.ts as called, i.category as b, i.ts as ran
        from flow f join slice o on o.id = f.slice_out join slice i on i.id = f.slice_in"""
    rows, (launches,) = query(old, arrows, "select count(*) as n from slice where category = 'launch'")
    assert len(rows) == launches["n"] > 100
    assert all(row["a"] == "launch" and row["b"] not in OF_HOST and row["called"] <= row["ran"] for row in rows)


@pytest.mark.slow
def test_the_typical_step_is_the_same_of_all_processes(ingested, tmp_path):
    export = Export()
    for rank, pause in enumerate((3, 8)):
        at = 0
        for n in range(12):
            of = {"pid": 10 + rank, "tid": 10 + rank}
            export.range(at, at + 900, f"{STEP_PREFIX}marker:{n}", **of)
            export.call(at + 10, at + 12, 100 * rank + n + 1, **of)
            export.kernel(at + 20, at + 90, 100 * rank + n + 1, f"k{n}", pid=10 + rank, deviceId=rank)
            at += 1000 + (n * pause) % 7
    folder = ingested(export.write_sqlite(tmp_path / "x.sqlite"))
    slices = traced(folder, "--step", "steady")
    (name,) = slices.loc[slices["category"] == "step", "name"].unique()
    assert name == f"step {store.load(folder)[0].timeline['step'].iloc[0]}"
    assert slices.loc[slices["category"] == "step", "process"].nunique() == 2


def test_a_case_is_written_alone(ingested, tmp_path):
    export = Export()
    for n, case in enumerate(["impl=a", "impl=b", "impl=a"]):
        at = 1000 * n
        export.range(at, at + 900, f"profpipe:{case}")
        export.range(at + 5, at + 100, "forward")
        export.launch(at + 100, 2 * n + 1, f"kernel of {case}", lasts=100)
        export.launch(at + 300, 2 * n + 2, f"kernel of {case}", lasts=100)
    folder = ingested(export.write_sqlite(tmp_path / "x.sqlite"))
    slices = traced(folder, "--case", "impl=a")
    assert set(operations(slices)["name"]) == {"kernel of impl=a"} and len(operations(slices)) == 4
    assert slices["category"].value_counts()[["launch", "range", "idle"]].tolist() == [4, 4, 2]
    assert set(slices.loc[slices["category"] == "range", "name"]) == {"profpipe:impl=a", "forward"}
    assert (slices["ts"] >= 0).all() and slices["ts"].min() == 0


@pytest.mark.slow
def test_operations_of_a_stream_that_overlap_have_two_tracks(ingested, tmp_path):
    export = Export()
    for n, (start, end) in enumerate([(0, 100), (50, 150), (100, 200), (160, 210)], start=1):
        export.call(start, start + 1, n)
        export.kernel(start, end, n, f"k{n}")
    folder = ingested(export.write_sqlite(tmp_path / "x.sqlite"))
    tracks = operations(traced(folder)).groupby("track")["name"].agg(list).to_dict()
    assert tracks == {"GPU 0 stream 7": ["k1", "k3"], "GPU 0 stream 7 (2)": ["k2", "k4"]}


@pytest.mark.slow
def test_names_from_outside_stay_text(ingested, tmp_path):
    names = ['</script><img src=x onerror="alert(1)">', "\x1b[31mred\x1b[0m", "名前\\\"'", "k" * 10_000]
    export = Export()
    for n, name in enumerate(names, start=1):
        export.launch(1000 * n, n, name)
        export.range(1000 * n - 10, 1000 * n + 100, name)
    folder = ingested(export.write_sqlite(tmp_path / "x.sqlite"))
    for name in ("trace.pftrace", "trace.json.gz"):
        slices = traced(folder, name=name)
        assert set(operations(slices)["name"]) == set(store.load(folder)[0].kernels["kernel"])
        assert set(slices.loc[slices["category"] == "range", "name"]) == set(names)


def torch_trace(folder, rank, offset_us):
    events: list[dict[str, Any]] = []
    for n in range(4):
        at = offset_us + 100 * n
        args = {"correlation": n + 1}
        base = {"ph": "X", "pid": 100 + rank, "tid": 1}
        events.append({**base, "cat": "user_annotation", "name": f"ProfilerStep#{n}", "ts": at, "dur": 100})
        events.append({**base, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": at + 1, "dur": 2, "args": args})
        gpu = {"device": rank, "stream": 7, **args}
        events.append(
            {"ph": "X", "cat": "kernel", "name": "k", "ts": at + 5, "dur": 10, "pid": rank, "tid": 7, "args": gpu}
        )
    path = folder / f"rank{rank}.json"
    top = {"schemaVersion": 1, "distributedInfo": {"rank": rank}, "baseTimeNanoseconds": 1_700_000_000_000_000_000}
    path.write_text(json.dumps({**top, "traceEvents": events}))
    return path


@pytest.mark.slow
def test_the_traces_of_two_ranks_share_a_clock(tmp_path):
    from profpipe.ingest import reader
    from profpipe.results.manifest import Manifest
    from profpipe.results.manifest_entries import file_entry

    folder = tmp_path / "run"
    folder.mkdir()
    files = [torch_trace(folder, rank, 1e6 + 40 * rank) for rank in (0, 1)]
    sources = [reader.InputFile(path, path.name, "run", "w", "torch", "c=1") for path in files]
    read = [result for result in reader.ingest(sources) if isinstance(result, reader.Read)]
    entries = tuple(file_entry(result.source.name, result.parser, result.tables.origin) for result in read)
    manifest = Manifest(name="run", started="2026-11-20T05:55:00+00:00", ended="", files=entries)
    store.save(folder, reader.combine(result.tables for result in read), manifest)
    slices = traced(folder, "--case", "c=1")
    firsts = operations(slices).groupby("process")["ts"].min()
    assert firsts.index.tolist() == ["w c=1 rank 0 (pid 100)", "w c=1 rank 1 (pid 101)"]
    assert firsts.diff().iloc[1] == 40_000


def test_without_the_package_a_trace_is_json(ingested, monkeypatch, capsys):
    folder = ingested(RECORDINGS["torch"])
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "perfetto" else find(name, *more)
    )
    capsys.readouterr()
    assert main(["trace", str(folder)]) == 0
    printed = capsys.readouterr().out
    assert "trace.json.gz: " in printed and "pip install 'profpipe[perfetto]'" in printed
    with gzip.open(folder / "trace.json.gz") as stream:
        assert json.load(stream)["traceEvents"]
    assert main(["trace", str(folder), "--out", str(folder / "x.pftrace")]) == 2
    assert "pip install 'profpipe[perfetto]'" in capsys.readouterr().err


def test_errors_say_what_is_missing(ingested, tmp_path, capsys):
    folder = ingested(RECORDINGS["steps"])

    def error(*options):
        capsys.readouterr()
        assert main(["trace", str(folder), *options]) == 2
        return capsys.readouterr().err

    assert "has no step 999. Known: 0 to" in error("--step", "999")
    assert "has no case 'impl=x'" in error("--case", "impl=x")
    assert "has no recording of torch. It has: nsys." in error("--profiler", "torch")
    assert "is a folder. Name a file" in error("--out", str(tmp_path))
    next(folder.glob("*.sqlite")).unlink()
    assert "is gone, and the tables do not hold single calls. Copy the recording there" in error()
    shutil.rmtree(folder)
    assert "does not exist" in error()


@pytest.mark.parametrize("is_link", [False, True])
def test_a_recording_outside_of_the_folder_is_read_only_if_the_user_names_it(ingested, tmp_path, capsys, is_link):
    folder, mine = ingested(RECORDINGS["torch"]), tmp_path / "mine.json.gz"
    inside = folder / RECORDINGS["torch"].name
    inside.rename(mine)
    inside.symlink_to(mine)
    source = inside if is_link else folder / ".." / "mine.json.gz"
    data, manifest = store.load(folder)
    files = tuple(replace(file, source=str(source)) for file in manifest.files)
    store.save(folder, data.set_columns(source=str(source)), replace(manifest, files=files))
    assert main(["trace", str(folder), "--out", str(tmp_path / "t.json")]) == 2
    assert f"is outside of {folder}. " in (error := capsys.readouterr().err) and f"{folder} {source}" in error
    assert not (tmp_path / "t.json").exists()
    assert main(["trace", str(folder), str(source), "--out", str(tmp_path / "t.json")]) == 0


def test_a_run_without_a_recording_of_single_launches_is_refused(ingested, capsys):
    folder = ingested(DATA / "ncu-2025.3/attention_h200.raw.csv.gz")
    assert main(["trace", str(folder)]) == 2
    assert "has no recording of nsys or torch.profiler. Run with `-p nsys`" in capsys.readouterr().err


def test_one_step_of_a_command_is_chosen_by_its_number(ingested, tmp_path):
    export = Export()
    for n in range(6):
        at = 1000 * n
        export.range(at, at + 900, f"{STEP_PREFIX}marker:{n + 10}")
        export.launch(at + 100, n + 1, f"k{n}", lasts=100)
    folder = ingested(export.write_sqlite(tmp_path / "x.sqlite"))
    slices = traced(folder, "--step", "12")
    assert operations(slices)["name"].tolist() == ["k2"]
    assert slices.loc[slices["category"] == "step", "name"].tolist() == ["step 12"]
