"""Why a GPU waits for the host in a recording of somebody else: its ranges, operators, functions, calls and samples."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from nsys_exports import Export, thread_id
from program import profpipe

MODULE, STEP, NET = "train.py <module>", "train.py:20 step", "train.py:20 step > models/net.py:14 forward"


def read_causes(folder: Path, file: Path | str) -> tuple[dict[str, float], str]:
    """Return ms of a steady step by cause and place, which must add up to the idle time, and what is printed."""
    shown = " ".join(profpipe(folder, "ingest", str(file), "--out", "read").split())
    metrics, steps = (pd.read_parquet(folder / "read" / f"{name}.parquet") for name in ("metrics", "steps"))
    waits = metrics[metrics["metric"] == "step_wait_idle"]
    steady = steps[steps["state"] == "steady"]
    late = steady[["idle_launch_ns", "idle_blocked_ns"]].astype(float).sum(axis=1).mean()
    if len(waits) and late > 0:
        # The last step of several has an estimated end, and no causes.
        assert waits["value"].sum() == pytest.approx(late, rel=0.01 if len(steady) > 2 else 0.15)
    causes = {row.subject: row.value / 1e6 for row in waits.itertuples()}
    hidden = metrics[metrics["metric"] == "step_wait_hidden"]
    return {**causes, **{f"hidden {row.subject}": row.value / 1e6 for row in hidden.itertuples()}}, shown


#: Events of a step of 20 ms: category, name, thread, begin and length in us. Thread 1 is the main one; 2 is autograd's,
#: which launches the backward pass. The last kernel ends 1.02 ms after the begin of the next step.
PLANTED = [
    ("user_annotation", "ProfilerStep#{n}", 1, 0, 19990),
    ("user_annotation", "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 1, 200, 5000),
    ("python_function", "train.py(9): preprocess", 1, 6000, 4000),
    ("python_function", "<built-in function sleep>", 1, 6001, 3998),
    ("python_function", "torch/serialization.py(944): save", 1, 10000, 2000),
    ("python_function", "<built-in function collect>", 1, 12000, 1000),
    ("cuda_runtime", "cudaMalloc", 1, 13000, 1000),
    ("cpu_op", "_compile.compile_inner (dynamo_timed)", 1, 14000, 1500),
    ("python_function", "train.py(20): step", 1, 15550, 3050),
    ("python_function", "models/net.py(14): forward", 1, 15600, 1400),
    ("python_function", "torch/nn/modules/module.py(1782): _call_impl", 1, 15600, 1400),
    ("python_function", "threading.py(973): wait", 1, 15600, 1400),
    ("cpu_op", "aten::linear", 1, 15650, 1000),
    ("python_function", "torch/autograd/graph.py(966): _engine_run_backward", 1, 17000, 1500),
    ("cpu_op", "autograd::engine::evaluate_function: AddmmBackward0", 2, 17100, 1200),
]
LAUNCHES = [(1, 15700, 200), (1, 16000, 200), (1, 16300, 200), (2, 17200, 200), (2, 17600, 200), (2, 18000, 3000)]
CALM = [(1, 100 + 50 * i, 49) for i in range(395)]


def write_trace(
    path: Path, planted: list[tuple[str, str, int, int, int]], launches: list[tuple[int, int, int]]
) -> None:
    """Write twelve steps, with functions of Python if ``planted`` has some: two were open when the recording began."""
    spans = [(c, name.format(n=n), thread, 1_000_000 + 20_000 * n + at, length)
             for n in range(12) for c, name, thread, at, length in planted]  # fmt: skip
    if any(category == "python_function" for category, *_ in planted):
        spans += [("python_function", "train.py(30): <module>", 1, 990_000, 300_000),
                  ("python_function", "tqdm/_monitor.py(60): run", 9, 990_000, 900_000)]  # fmt: skip
    events = [
        {"ph": "X", "cat": category, "name": name, "pid": 5, "tid": thread, "ts": at, "dur": length}
        for category, name, thread, at, length in spans
    ]
    for n in range(12):
        for i, (thread, at, length) in enumerate(launches):
            of, begin = {"correlation": 1000 * n + i + 1}, 1_000_000 + 20_000 * n + at
            call = {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 5, "tid": thread, "ts": begin, "dur": 5}
            kernel = {"cat": "kernel", "name": f"k{i % 7}", "pid": 0, "tid": 7, "ts": begin + 20, "dur": length}
            events += [{"ph": "X", **call, "args": of}, {"ph": "X", **kernel, "args": {**of, "device": 0, "stream": 7}}]
    path.write_text(json.dumps({"schemaVersion": 1, "deviceProperties": [], "traceEvents": events}), "utf-8")


def test_planted_waits_of_a_trace_with_stacks_are_named_with_their_functions(tmp_path: Path) -> None:
    write_trace(tmp_path / "trace.json", PLANTED, LAUNCHES)
    causes, shown = read_causes(tmp_path, "trace.json")
    expected = {
        f"DataLoader > {MODULE}": 4.18,
        f"hidden DataLoader > {MODULE}": 0.82,
        "host code > train.py:9 preprocess": 4.0,
        f"checkpoint > {MODULE}": 2.0,
        f"compilation > {MODULE}": 1.5,
        f"garbage collection > {MODULE}": 1.0,
        f"memory allocation (cudaMalloc) > {MODULE}": 1.0,
        f"host code > {MODULE}": 0.85,
        f"host code > {NET}": 0.58,
        # Autograd's thread has no Python: what called backward() stands for it.
        f"host code > {STEP}": 0.25,
        f"launching > {STEP}": 0.40,
        f"launching > {NET}": 0.22,
    }
    assert causes == pytest.approx(expected, rel=0.05)
    assert f"For 4.18 ms of it the GPU waits for the DataLoader ({MODULE})." in shown
    assert "Host code at train.py:9 preprocess: 4.00 ms of a step. Without it a step would be 1.25 times" in shown
    assert "with_stack" not in shown


def test_what_the_host_does_after_a_launch_call_keeps_no_gpu_waiting(tmp_path: Path) -> None:
    launches = [(1, 1000 + 600 * i, 100) for i in range(30)]
    planted = [PLANTED[0], *(("cuda_runtime", "cudaMalloc", 1, at + 6, 10) for _, at, _ in launches)]
    write_trace(tmp_path / "trace.json", planted, launches)
    causes, _ = read_causes(tmp_path, "trace.json")
    assert causes["hidden memory allocation (cudaMalloc)"] == pytest.approx(0.3, rel=0.05)
    assert causes["launching"] == pytest.approx(0.6, rel=0.05)


def test_an_operator_in_place_of_a_launch_call_is_late_for_no_longer_than_a_call(tmp_path: Path) -> None:
    events = []
    for n in range(8):
        of, at = {"External id": n + 1}, 10_000 * (n + 1)
        spans = [("user_annotation", f"ProfilerStep#{n}", 1, at, 9_990, {}),
                 ("cpu_op", "aten::mm", 1, at + 200, 9_000, of),
                 ("kernel", "k", 7, at + 8_200, 1_000, {**of, "device": 0, "stream": 7})]  # fmt: skip
        events += [{"ph": "X", "cat": cat, "name": name, "pid": 5, "tid": tid, "ts": ts, "dur": dur, "args": args}
                   for cat, name, tid, ts, dur, args in spans]  # fmt: skip
    (tmp_path / "trace.json").write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}), "utf-8")
    profpipe(tmp_path, "ingest", "trace.json", "--out", "read")
    assert pd.read_parquet(tmp_path / "read" / "steps.parquet")["idle_launch_ns"].median() == 1_020_000


def test_without_stacks_the_operators_and_ranges_are_the_places(tmp_path: Path) -> None:
    planted = [event for event in PLANTED if event[0] != "python_function"]
    write_trace(tmp_path / "trace.json", planted, LAUNCHES)
    causes, shown = read_causes(tmp_path, "trace.json")
    expected = {"launching > AddmmBackward0": 0.40, "launching > aten::linear": 0.22, "compilation": 1.5,
                "host code > AddmmBackward0": 0.1, "host code > aten::linear": 0.18, "DataLoader": 4.18,
                "memory allocation (cudaMalloc)": 1.0}  # fmt: skip
    assert {cause: causes[cause] for cause in expected} == pytest.approx(expected, rel=0.05)
    # preprocess, save, collect and the rest of the Python code.
    assert causes["host code"] == pytest.approx(8.4, rel=0.05)
    assert "does not say what the host did in 8.40 ms of a step" in shown
    assert "torch.profiler records the lines with with_stack=True." in shown


def test_a_recording_of_a_calm_program_names_no_wait(tmp_path: Path) -> None:
    write_trace(tmp_path / "trace.json", PLANTED[:1], CALM)
    causes, shown = read_causes(tmp_path, "trace.json")
    assert all(cause.startswith("launching") or ms < 0.01 * 20 for cause, ms in causes.items())
    assert "the GPU waits for" not in shown and "does not say" not in shown


def test_where_nothing_of_the_host_is_recorded_the_page_names_the_option(tmp_path: Path) -> None:
    """Fourteen steps by the launches that recur, 4 ms apart."""
    export = Export()
    for i in range(14 * 5):
        export.launch(10_000_000 + i // 5 * 4_000_000 + i % 5 * 1_000, i + 1, name=f"k{i % 5}", lasts=990)
    export.write_sqlite(tmp_path / "bare.sqlite")
    causes, shown = read_causes(tmp_path, "bare.sqlite")
    assert not causes
    assert (
        "The recording does not say what the host did in 4.00 ms of a step while the GPU waited. nsys profile" in shown
    )


def test_an_export_names_calls_of_the_operating_system_and_of_cuda_by_the_thread_that_launches(tmp_path: Path) -> None:
    """Steps of 20 ms: the main thread, 1, loads and launches a forward pass, and autograd's thread, 2, the backward."""
    export, us = Export(), 1_000
    for n in range(12):
        begin = (1_000_000 + 20_000 * n) * us

        def system(name: str, tid: int, first: int, last: int, begin: int = begin) -> None:
            at = {"start": begin + first * us, "end": begin + last * us, "globalTid": thread_id(1, tid)}
            export.add("OSRT_API", **at, eventClass=27, nameId=export.string(name), returnValue=0, callchainId=0)

        for text, first, last in ((f"iteration {n}", 0, 19_990), ("load", 1_000, 6_000), ("forward", 9_000, 16_500)):
            export.range(begin + first * us, begin + last * us, text)
        system("read", 1, 2_000, 5_000)
        system("ioctl", 1, 7_100, 7_900)
        system("pthread_cond_wait", 2, 0, 15_000)
        system("pthread_cond_wait", 1, 16_600, 17_120)
        for i, (name, first, last) in enumerate(
            (("cudaMalloc_v3020", 7_000, 8_000), ("cuLibraryLoadData", 8_000, 8_500))
        ):
            export.call(begin + first * us, begin + last * us, 9_000 + 10 * n + i, name=name)
        for i, (tid, at) in enumerate(((1, 9_000), (1, 9_100), (2, 17_000), (2, 17_100))):
            export.launch(begin + at * us, 10 * n + i + 1, name=f"k{i}", tid=tid, lasts=50 * us)
    export.write_sqlite(tmp_path / "run.sqlite")
    causes, shown = read_causes(tmp_path, "run.sqlite")
    expected = {
        "host code > forward": 7.35,
        "host code": 5.85,
        "operating system (read) > load": 3.0,
        "host code > load": 2.0,
        "memory allocation (cudaMalloc)": 1.0,
        "module loading (cuLibraryLoadData)": 0.5,
        "launching > forward": 0.05,
    }
    assert {cause: causes[cause] for cause in expected} == pytest.approx(expected, rel=0.05)
    assert "Operating system (read) at load: 3.00 ms of a step. Without it a step would be 1.18 times" in shown


PROGRAM = """
import json, time, torch
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self): return 40
    def __getitem__(self, i):
        time.sleep(0.02)
        return torch.ones(512)

def preprocess(batch):
    time.sleep(0.03)
    return batch * 2

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(512, 512)
    def forward(self, x):
        return self.inner(x)

torch.set_num_threads(1)
net = Net()
times = {"loader": [], "preprocess": []}
kept = dict(activities=[ProfilerActivity.CPU], with_stack=True, schedule=schedule(wait=1, warmup=1, active=8, repeat=1))
with profile(**kept, on_trace_ready=lambda done: done.export_chrome_trace("trace.json")) as profiler:
    begin = time.perf_counter()
    for batch in DataLoader(Slow(), batch_size=1):
        loaded = time.perf_counter()
        batch = preprocess(batch)
        worked = time.perf_counter()
        net(batch).sum().backward()
        profiler.step()
        times["loader"].append(loaded - begin)
        times["preprocess"].append(worked - loaded)
        begin = time.perf_counter()
print(json.dumps(times))
"""


@pytest.mark.slow
def test_a_trace_of_torch_on_a_cpu_is_divided_by_its_functions_and_operators(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM, encoding="utf-8")
    done = subprocess.run([sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, check=True)
    times = json.loads(done.stdout.splitlines()[-1])
    causes, _ = read_causes(tmp_path, "trace.json")
    steps = pd.read_parquet(tmp_path / "read" / "steps.parquet")
    steady = steps.loc[steps["state"] == "steady"]
    assert sum(causes.values()) == pytest.approx(steady["wall_ns"].astype(float).mean() / 1e6, rel=1e-6)
    loading = sum(ms for cause, ms in causes.items() if cause.startswith("DataLoader"))
    loader, preprocess = (1e3 * np.mean([times[name][step] for step in steady["step"]]) for name in times)
    assert loading == pytest.approx(loader, rel=0.05)
    line = 1 + next(number for number, text in enumerate(PROGRAM.splitlines()) if text.startswith("def preprocess"))
    place = f"train.py:{line} preprocess"
    prepared = causes[f"host code > {place}"] + causes.get(f"operators > {place}", 0.0)
    assert prepared == pytest.approx(preprocess, rel=0.05)
    assert any(cause.startswith("operators > train.py") and cause.endswith(" forward") for cause in causes)


def test_real_recordings_of_others_have_the_causes_that_their_events_add_up_to(
    tmp_path: Path, shared_data: Path
) -> None:
    """The figures were added up event by event from the files."""
    bert = "torch_trace/AMD-AGI__TraceLens/h100_gaunernst_bert-small-uncased__1016001.json.gz"
    causes, _ = read_causes(tmp_path, shared_data / bert)
    model = "transformers/models/bert/modeling_bert.py"
    assert causes[f"launching > {model}:364 forward"] == pytest.approx(0.8843, rel=1e-3)
    assert causes[f"host code > {model}:181 forward"] == pytest.approx(0.1902, rel=1e-3)
    saxpy = "nsys/hpcgroup__pipit/saxpy-mpi-cuda_nsys_perlmutter0.sqlite"
    causes, _ = read_causes(tmp_path, shared_data / saxpy)
    sent = sum(ms for cause, ms in causes.items() if cause.startswith("MPI (MPI_Send)"))
    assert sent == pytest.approx(22.2179, rel=1e-3)
    assert sum(ms for cause, ms in causes.items() if "cudaMalloc" in cause) == pytest.approx(0.855, rel=1e-3)
    assert causes["host code > main"] == pytest.approx(116.8, rel=0.05)


def test_a_recorded_training_step_has_its_ranges_as_places(tmp_path: Path, root: Path) -> None:
    causes, _ = read_causes(tmp_path, root / "tests" / "data" / "nsys-2025.3.1" / "training" / "lm_eager.sqlite")
    assert causes["host code > optimizer"] == pytest.approx(0.4214, rel=1e-3)
    assert {cause.partition(" > ")[0] for cause, ms in causes.items() if ms > 0.078} == {"launching", "host code"}
