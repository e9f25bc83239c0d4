"""Recordings of writers and tools that profpipe does not start: read whole, or named with the one remedy."""

import gzip
import io
import json
import math
import pickle
import sqlite3

import forked
import pytest
from nsys_exports import Export
from program import ROOT, profpipe, rows

from profpipe.ingest import json_stream, kernel_names
from profpipe.report.text import align

REPORTED = ROOT / "tests" / "data" / "reported"
#: The values that were worked out without profpipe.
EXPECT = {
    "jax_gpu_trace.json": {"kernels_of_each_device": 45, "kernel_us_of_each_device": 1050.0, "copies": 5, "steps": 5},
    "windows_paths.json": {"kernels": 40, "total_us": 1200.0, "steps": 4},
    "pmc_perf.csv": {"kernels": 20, "total_ns": 400_000},
    "unicode_names.sqlite": {"kernels": 30, "total_ns": 600_000},
}


def read(folder, file):
    """The page of what ``profpipe ingest`` reads in ``file``; its tables are in ``folder/read``."""
    profpipe(folder, "ingest", file, "--out", folder / "read")
    return (folder / "read" / "SUMMARY.md").read_text(encoding="utf-8")


def refusal(folder, file):
    done = forked.run(folder, "ingest", file, "--out", folder / "read")
    assert done.returncode == 1 and not (folder / "read").exists() and len(done.stderr.splitlines()) == 1
    return done.stderr.removeprefix(f"profpipe: {file}: ").strip()


def kernels(folder):
    return [row for row in rows(folder / "read" / "kernels.parquet") if row["kind"] == "kernel"]


# --- JAX -------------------------------------------------------------------------------------------------------------


def named(pid, name, tid=None):
    kind = "process_name" if tid is None else "thread_name"
    return {"ph": "M", "pid": pid, "name": kind, "args": {"name": name}, **({} if tid is None else {"tid": tid})}


def done(pid, tid, name, ts, dur, **args):
    return {"ph": "X", "pid": pid, "tid": tid, "name": name, "ts": ts, "dur": dur, "args": args}


def jax_trace(path, *events):
    """As jax.profiler names it; the names of the rows come last, as nothing promises that they come first."""
    with gzip.open(path, "wt") as stream:
        json.dump({"displayTimeUnit": "ns", "metadata": {"highres-ticks": True}, "traceEvents": events}, stream)
    return path


def test_a_jax_trace_of_two_gpus_is_read_without_the_rows_that_repeat_its_kernels(tmp_path):
    expect = EXPECT["jax_gpu_trace.json"]
    page = read(tmp_path, REPORTED / "jax_gpu_trace.json")
    table = rows(tmp_path / "read" / "kernels.parquet")
    for device in ("0", "1"):
        own = [row for row in table if row["device"] == device]
        assert sum(int(row["calls"]) for row in own if row["kind"] == "kernel") == expect["kernels_of_each_device"]
        total_ns = sum(float(row["total_ns"]) for row in own if row["kind"] == "kernel")
        assert total_ns == 1000 * expect["kernel_us_of_each_device"]
        assert sum(int(row["calls"]) for row in own if row["kind"] == "memcpy") == expect["copies"]
        steps = [row for row in rows(tmp_path / "read" / "steps.parquet") if row["device"] == device]
        assert [row["step"] for row in steps if row["state"] != "other"] == [str(n) for n in range(expect["steps"])]
    assert {row["profiler"] for row in table} == {"jax"} and "torch" not in page.partition("## Kernel share")[0]


@pytest.mark.parametrize("ids", [("correlation_id", "group_id"), ("group_id",)])
def test_kernels_that_run_after_their_step_belong_to_it_by_the_ids_of_xla(tmp_path, ids):
    events = []
    for step in range(8):
        start = 1000.0 * step
        group = {"group_id": str(step)}
        events.append(done(701, 5, f"train {step}", start, 200, **group))
        for number in range(step % 2 + 1):
            given = {"correlation_id": str(10 * step + number + 1), **group}
            given = {name: given[name] for name in ids}
            if "correlation_id" in ids:
                events.append(done(701, 5, "cuLaunchKernelEx", start + 10 + number, 1, **given))
            details = {"kernel_details": "regs:32 static_shared:0 grid:7,1,1 block:256,1,1 occ_pct:100"}
            events.append(done(2, 9, "fusion", start + 900 + 200 * number, 90, **given, **details))
            events.append(done(2, 12, "fusion.1", start + 900 + 200 * number, 90))
        events.append(done(2, 10, "MemcpyH2D", start + 800, 5, memcpy_details="kind_src:pinned size:4096", **group))
    rows_of_trace = [
        named(2, "/device:GPU:0"), named(2, "Stream #20(Compute)", 9), named(2, "Stream #18(MemcpyH2D)", 10),
        named(2, "XLA Ops", 12), named(701, "/host:CPU"), named(701, "python", 5),
    ]  # fmt: skip
    read(tmp_path, jax_trace(tmp_path / "host.trace.json.gz", *events, *rows_of_trace))
    steps = [row for row in rows(tmp_path / "read" / "steps.parquet") if row["state"] != "other"]
    assert [(row["step"], row["kernels"]) for row in steps] == [(str(step), str(step % 2 + 1)) for step in range(8)]
    assert [row["range"] for row in rows(tmp_path / "read" / "ranges.parquet")] == ["train"]
    copies = [row for row in rows(tmp_path / "read" / "metrics.parquet") if row["metric"] == "step_copy_bytes"]
    assert [(row["subject"], float(row["value"])) for row in copies] == [("Memcpy HtoD", 4096)]


def test_jax_traces_without_a_gpu_are_named_with_what_to_do(tmp_path):
    tpu = jax_trace(
        tmp_path / "tpu.trace.json.gz", named(1, "/device:TPU:0"), named(1, "XLA Ops", 1), done(1, 1, "f", 1, 2)
    )
    assert refusal(tmp_path, tpu).startswith("a JAX trace of a TPU (/device:TPU:0). profpipe reads recordings of GPUs.")
    host = jax_trace(tmp_path / "cpu.trace.json.gz", named(701, "/host:CPU"), done(701, 1, "PjitFunction(f)", 1, 2))
    assert refusal(tmp_path, host).startswith("a JAX trace of the host alone, without a GPU. Run the program where")
    idle = jax_trace(tmp_path / "gpu.trace.json.gz", named(1, "/device:GPU:0"), named(1, "XLA Ops", 1))
    assert refusal(tmp_path, idle).startswith("a JAX trace in which nothing ran on /device:GPU:0.")


# --- JSON that is none -----------------------------------------------------------------------------------------------


def test_a_trace_with_unescaped_paths_of_windows_is_read_whole(tmp_path):
    expect = EXPECT["windows_paths.json"]
    read(tmp_path, REPORTED / "windows_paths.json")
    found = kernels(tmp_path)
    assert sum(int(row["calls"]) for row in found) == expect["kernels"]
    assert sum(float(row["total_ns"]) for row in found) == 1000 * expect["total_us"]
    steps = rows(tmp_path / "read" / "steps.parquet")
    assert sum(row["state"] != "other" for row in steps) == expect["steps"]


@pytest.mark.parametrize("chunk", [1, 7, 40, 8 << 20])
def test_flaws_of_writers_are_mended_wherever_a_part_of_the_text_ends(chunk, monkeypatch):
    monkeypatch.setattr(json_stream, "_CHUNK", chunk)
    text = (
        r'{"path": "C:\Users\NVIDIA\x", "kept": "\\server \u0041 \"q\" \\u12", "cut": "\u12G4",'
        ' "raw": "a\tb\nc", "numbers": [-nan, 1, inf, -nan(ind), NaN, -Infinity], "ts":  nan}'
    )
    found = dict(json_stream.items(io.StringIO(text), unroll="traceEvents"))
    assert found["path"] == r"C:\Users\NVIDIA\x" and found["cut"] == r"\u12G4" and found["raw"] == "a\tb\nc"
    assert found["kept"] == r'\server A "q" \u12'
    numbers = found["numbers"]
    assert numbers[1] == 1 and all(not math.isfinite(n) for n in (*numbers[:1], *numbers[2:], found["ts"]))


@pytest.mark.parametrize("text", ['{"a": inf', r'{"a": "C:\x\"}', '{"a": 0x262c}', '{"a": nano}'])
def test_what_no_mending_explains_stays_damaged(text):
    with pytest.raises(ValueError, match=r"cut or damaged|expected"):
        list(json_stream.items(io.StringIO(text), unroll="traceEvents"))


# --- files of other tools --------------------------------------------------------------------------------------------

NVPROF_TRACE = """"Start","Duration","Grid X","Grid Y","Grid Z","Block X","Block Y","Block Z","Device","Stream","Name"
s,us,,,,,,,,,
0.1,10,1,1,1,32,1,1,"V100 (0)","7","vecAdd(float*)"
"""
NVPROF = """hello
==9== NVPROF is profiling process 9, command: ./a
==9== Profiling result:
"Type","Time(%)","Time","Calls","Avg","Min","Max","Name"
,%,ms,,ms,ms,ms,
"GPU activities",100.0,12.5,10,1.25,1.2,1.3,"vecAdd(float*)"
"""
LEGACY = [{"name": "aten::mm", "ph": "X", "ts": 1.0, "dur": 3.0, "tid": 1, "pid": "CPU functions", "args": {}}]
INSTANT = {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 1, "ts": 1}

FOREIGN = {
    "nvprof.csv": (NVPROF, "a recording of nvprof", "nsys profile"),
    "nvprof_trace.csv": (NVPROF_TRACE, "a recording of nvprof", "nsys profile"),
    "nsys.json": ('{"data":["a"]}\n{"Type":79,"CudaEvent":{"startNs":"1"}}\n', "nsys' export as JSON", "--type sqlite"),
    "stats.json": ('[{"Time (%)": 100, "Name": "k"}]', "JSON of nsys stats", "--type sqlite"),
    "legacy.json": (json.dumps(LEGACY), "a list of torch.autograd.profiler", "torch.profiler.profile"),
    "timeline.json": ("[[1, 2], [[0, 1], [0, 2]]]", "a recording of torch's memory alone", "torch.profiler.profile"),
    "memory.json": (
        json.dumps({"schemaVersion": 1, "traceEvents": [INSTANT]}), "a recording of torch's memory", "CUDA"
    ),
    "viz.json": (
        '{"traceEvents": [{"ph": "X", "cat": "FEE", "name": "f", "pid": 1, "tid": 1, "ts": 1, "dur": 4}]}',
        "a Chrome trace without an event of torch.profiler or JAX", "nsys profile",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FOREIGN)
def test_a_file_of_another_tool_is_named_with_one_remedy(tmp_path, name):
    text, what, remedy = FOREIGN[name]
    (tmp_path / name).write_text(text, encoding="utf-8")
    found = refusal(tmp_path, tmp_path / name)
    assert found.startswith(what) and remedy in found


def test_the_database_of_nvprof_is_not_taken_for_an_export_of_nsys(tmp_path):
    database = sqlite3.connect(tmp_path / "old.nvvp")
    database.execute("CREATE TABLE StringTable (_id_ INTEGER PRIMARY KEY, value TEXT)")
    database.execute(
        "CREATE TABLE CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL (_id_ INTEGER PRIMARY KEY, start INT, end INT)"
    )
    database.commit()
    database.close()
    assert refusal(tmp_path, tmp_path / "old.nvvp").startswith("a recording of nvprof, which nsys has replaced.")


def test_a_snapshot_of_memory_and_the_xspace_of_jax_are_named(tmp_path):
    snapshot = {"segments": [{"device": 0, "total_size": 4}], "device_traces": [[]]}
    (tmp_path / "snapshot.pickle").write_bytes(pickle.dumps(snapshot))
    assert refusal(tmp_path, tmp_path / "snapshot.pickle").startswith("is no memory snapshot of torch: segments[0] has")
    (tmp_path / "host.xplane.pb").write_bytes(b"\x0a\x40\x08\x01\x12\x0d/device:GPU:0\x1a\x10")
    assert refusal(tmp_path, tmp_path / "host.xplane.pb").endswith("Give the .trace.json.gz beside it.")


def test_a_trace_of_nccls_plugin_is_named_without_the_remedy_of_torch(tmp_path):
    found = refusal(tmp_path, REPORTED / "nccl_plugin_trace.json")
    assert found.startswith("a trace of NCCL's profiler plug-in") and "export_chrome_trace" not in found


# --- nsys and rocprof ------------------------------------------------------------------------------------------------


def test_the_message_of_nsys_that_explains_the_failure_is_the_reason(tmp_path):
    found = refusal(tmp_path, REPORTED / "no_cuda_events.sqlite")
    assert "(nsys: CUDA profiling might have not been started correctly" in found and "No NVTX events" not in found
    assert "Check that nsys is as new as the driver" in found


@pytest.mark.parametrize(
    "cause",
    [
        "Insufficient privilege to trace CUDA, see ERR_NVGPUCTRPERM.",
        "The installed driver does not support this version of CUDA tracing.",
    ],
)
def test_a_missing_permission_or_an_old_driver_comes_before_what_follows_from_it(tmp_path, cause):
    export = Export()
    export.string("anything")
    followed = ("No NVTX events collected. Does the process use NVTX?", "CUDA profiling might have not been started.")
    for text in (*followed, "GPU Metrics: insufficient privilege.", cause):
        export.add("DIAGNOSTIC_EVENT", severity=2, text=text)
    assert f"(nsys: {cause.rstrip('.')})" in refusal(tmp_path, export.write_sqlite(tmp_path / "nothing.sqlite"))


def test_a_recording_of_one_memset_says_that_and_what_to_do(tmp_path):
    page = read(tmp_path, REPORTED / "memset_only.sqlite")
    assert not kernels(tmp_path) and "**No kernel was recorded, only 1 memset (1.47 us).**" in page
    assert "Record again while the program launches kernels" in page and "idle" not in page


def test_launches_under_counters_are_said_to_run_one_by_one(tmp_path):
    expect = EXPECT["pmc_perf.csv"]
    page = read(tmp_path, REPORTED / "pmc_perf.csv")
    found = kernels(tmp_path)
    assert sum(int(row["calls"]) for row in found) == expect["kernels"]
    assert sum(float(row["total_ns"]) for row in found) == expect["total_ns"]
    assert "ran the launches one by one" in page and "does not say when each launch ran" not in page


def test_names_in_any_script_stay_whole_in_every_file(tmp_path):
    expect = EXPECT["unicode_names.sqlite"]
    read(tmp_path, REPORTED / "unicode_names.sqlite")
    found = kernels(tmp_path)
    assert sum(int(row["calls"]) for row in found) == expect["kernels"]
    assert sum(float(row["total_ns"]) for row in found) == expect["total_ns"]
    assert {row["kernel"] for row in found} == {"умножение(float*)", "矩阵乘<float>", "compute_Δt(float*)"}
    for name in ("SUMMARY.md", "details.md", "nsys_stats.txt", "report.html"):
        text = (tmp_path / "read" / name).read_text(encoding="utf-8")
        assert all(whole in text for whole in ("умножение", "矩阵乘", "compute_Δt")) and "у м" not in text


@pytest.mark.parametrize(
    ("given", "whole"),
    [
        ("void ядро::умножить<(int)64, 矩阵::型<float>>(T1 *)", "ядро::умножить<64, 矩阵::型<float>>"),
        ("गुणा<float>(float *)", "गुणा<float>"),
        ("naïve<é::ü>(const ß *)", "naïve<é::ü>"),
        ("_Z18умножениеPf", "умножение(float*)"),
        ("void 核<[lambda(int) (instance 1)]>(T1)", "核<{lambda(int)#1}>"),
    ],
)
def test_the_one_spelling_of_a_name_keeps_letters_and_signs_of_its_script_together(given, whole):
    assert kernel_names.normalise(given) == whole


def test_columns_of_text_stand_below_each_other_beside_wide_letters():
    lines = align([["矩阵乘", "1"], ["गुणा", "22"], ["gemm", "333"]], [False, True])
    assert lines == ["矩阵乘    1", "गुणा      22", "gemm    333"]
