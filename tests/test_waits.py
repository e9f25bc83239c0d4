"""Why a GPU, or a step without one, waits: what the start-up hook sees of the host, and how idle time is divided."""

from __future__ import annotations

import json
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from program import profpipe

from profpipe.ingest import host
from profpipe.ingest.groupby import Union
from profpipe.ingest.host import Host
from profpipe.ingest.operations import Spans

MS = 1_000_000

#: Waits of four kinds in each step, after the work of the step. The program prints its own times in ms.
PLANTED = """
import gc, json, time, torch
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self): return 40
    def __getitem__(self, i):
        time.sleep(0.04)
        return torch.ones(8)

torch.set_num_threads(1)
net = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(net.parameters(), 0.01)
weights = torch.zeros(3_000_000)
garbage = [[i] for i in range(300_000)]
times = {"loader": [], "garbage": [], "checkpoint": [], "code": []}
gc.disable()
batches = iter(DataLoader(Slow(), batch_size=1))
for step in range(40):
    begin = time.perf_counter()
    batch = next(batches)  # loader
    loaded = time.perf_counter()
    net(batch).sum().backward()
    optimizer.step()
    worked = time.perf_counter()
    gc.collect()  # garbage
    collected = time.perf_counter()
    torch.save(weights, "weights.pt")  # checkpoint
    saved = time.perf_counter()
    sum(i * i for i in range(400_000))  # code
    ended = time.perf_counter()
    times["loader"].append(loaded - begin)
    times["garbage"].append(collected - worked)
    times["checkpoint"].append(saved - collected)
    times["code"].append(ended - saved)
print("TRUTH", json.dumps(times))
"""


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, list[float]]]:
    """Return the folder of a run of the program under torch.profiler, and the times that it printed."""
    folder = tmp_path_factory.mktemp("planted")
    (folder / "train.py").write_text(PLANTED, encoding="utf-8")
    profpipe(folder, "run", "-q", "-p", "torch", "--", sys.executable, "train.py")
    run = (folder / "out" / "latest").resolve()
    printed = next(run.glob("raw/*/torch/log.txt")).read_text(encoding="utf-8")
    return run, json.loads(printed.rpartition("TRUTH")[2].strip().splitlines()[0])


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("loader", "DataLoader (0 workers)"),
        ("garbage", "garbage collection (generation 2)"),
        ("checkpoint", "checkpoint"),
        ("code", "host code"),
    ],
)
def test_a_planted_wait_is_named_with_its_line_and_its_time(
    planted: tuple[Path, dict[str, list[float]]], name: str, kind: str
) -> None:
    run, truth = planted
    metrics = pd.read_parquet(run / "metrics.parquet")
    waits = metrics[metrics["metric"] == "step_wait_idle"].set_index("subject")["value"]
    steps = pd.read_parquet(run / "steps.parquet")
    # A step goes from one optimizer step to the next: it ends with the wait for the batch of the next iteration.
    steady = steps.loc[steps["state"] == "steady", "step"].astype(int) + (name == "loader")
    expected = 1000 * np.mean([truth[name][step] for step in steady])
    line = 1 + next(number for number, text in enumerate(PLANTED.splitlines()) if text.endswith(f"# {name}"))
    assert waits[f"{kind} > train.py:{line}"] / MS == pytest.approx(expected, rel=0.05, abs=1)


def test_without_a_profiler_only_the_wait_for_the_loader_is_timed(
    planted: tuple[Path, dict[str, list[float]]],
) -> None:
    folder = planted[0].parents[1]
    profpipe(folder, "run", "-q", "-p", "plain", "--", sys.executable, "train.py")
    run = (folder / "out" / "latest").resolve()
    waits = pd.read_parquet(run / "metrics.parquet").query("metric.str.startswith('step_wait')", engine="python")
    assert waits["metric"].tolist() == ["step_wait_loading"]
    printed = next(run.glob("raw/*/plain/log.txt")).read_text(encoding="utf-8")
    truth = json.loads(printed.rpartition("TRUTH")[2].strip().splitlines()[0])
    steady = pd.read_parquet(run / "steps.parquet").query("state == 'steady'")["step"].astype(int) + 1
    expected = 1000 * np.mean([truth["loader"][step] for step in steady])
    assert waits["value"].item() / MS == pytest.approx(expected, rel=0.05, abs=1)
    assert waits["n"].item() == len(steady)
    assert "\n- The host waits " in (run / "SUMMARY.md").read_text(encoding="utf-8")


def page_of(tmp_path: Path, name: str) -> str:
    """Return the page of a run with torch 2.11 on an H200."""
    run = tmp_path / "run"
    shutil.copytree(Path(__file__).parent / "data" / "torch-2.11" / name, run)
    profpipe(tmp_path, "report", "-q", run)
    return (run / "SUMMARY.md").read_text(encoding="utf-8")


def test_on_a_gpu_the_wait_for_the_loader_is_that_without_a_profiler(tmp_path: Path) -> None:
    """mnist of pytorch/examples on an H200: under torch a step waited 2.38 ms for its loader, without it 3.70 ms."""
    page = page_of(tmp_path, "mnist_loader")
    assert "For 3.70 ms of it the GPU waits for the DataLoader (1 worker, `main.py:38`)." in page.splitlines()[2]
    said = "- DataLoader at `main.py:38`: 3.70 ms of a step without a profiler. Without it a step would be 2.39 times"
    assert said in page
    assert "91.6 % is idle, 8.2 % compute" in page and "- At most to gain on the GPU: conv 1.03x" in page


def test_the_headline_says_what_the_slower_case_waits_for(tmp_path: Path) -> None:
    """Decoding on an H200. The uneven steps took 10.4 ms, those that torch recorded 9.32 ms without it."""
    answer = page_of(tmp_path, "decode").splitlines()[2]
    longer = "`graphs=false` takes longer: 96.1 % of the difference is idle time, above all waiting for launches ("
    assert f"{longer}mostly `decode.py:34`, `decode.py:32`)." in answer


def test_host_code_of_a_library_has_advice_of_its_own(tmp_path: Path) -> None:
    """A BERT on an H200, with texts of all lengths: cuDNN prepares its attention anew for each length."""
    page = page_of(tmp_path, "st_encode")
    line = "Host code at `st_encode.py:6 > transformers/integrations/sdpa_attention.py:158`: 38.3 ms of a step."
    assert line in page and "It is in a library: call it less often, with shapes that recur" in page


def test_of_ranks_the_profiler_delays_differently_none_is_blamed(tmp_path: Path) -> None:
    """nanoGPT on two GPUs. In the second run rank 1 sleeps for 20 ms in each step. torch adds 13 ms to a step."""
    answer = page_of(tmp_path / "1", "nanogpt_ddp").splitlines()[2]
    assert answer == "**A step takes 19.9 ms (95 % interval ±1.3 %, 93 steady steps, 2 ranks).**"
    page = page_of(tmp_path / "2", "nanogpt_sleep")
    late = "Under torch the GPU of rank 1 waits 17.4 ms of a step for host code (`train.py:311`), that of rank 0 waits"
    assert late in page.splitlines()[2] and "`train.py:311`: 8.21 ms of a step, the mean of 2 ranks." in page


def test_the_page_says_what_a_step_spends_and_what_that_step_could_gain(
    planted: tuple[Path, dict[str, list[float]]],
) -> None:
    run, _ = planted
    page = (run / "SUMMARY.md").read_text(encoding="utf-8")
    line = 1 + next(number for number, text in enumerate(PLANTED.splitlines()) if text.endswith("# garbage"))
    place = f"`train.py:{line}`"
    assert re.search(
        rf"Under the profiler a .*spends \d+\.\d % in the garbage collection \(generation 2, {place}\)", page
    )
    of = rf"Garbage collection at {place}: (\S+) ms of the (\S+) ms of a step under the profiler\.(.*) Keep gc\.collect"
    wait, step, gain = re.findall(of, page)[0]
    # On a busy machine the steps are uneven: then the page names the recorded step, and promises no gain.
    assert bool(gain) == ("Under the profiler a step spends" in page) != ("a recorded step of" in page)
    if gain:
        said = re.fullmatch(r" Without it that step would be (\S+) times as fast, the rest unchanged\.", gain)
        assert said and float(said[1]) == pytest.approx(float(step) / (float(step) - float(wait)), rel=0.02)


WORK = """
import time, torch; torch.set_num_threads(1)
net = torch.nn.Linear(20_000, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.01)
for step in range(30):
    x = torch.ones(20_000)
    for _ in range(2000): x = x + 1
    net(x).sum().backward()
    optimizer.step()
    time.sleep(0.04)
"""


@pytest.mark.slow
def test_code_between_operators_is_not_taken_for_code_that_stands_alone(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(WORK, encoding="utf-8")
    shown = " ".join(profpipe(tmp_path, "run", "-p", "torch", "--", sys.executable, "train.py").split())
    begin = r"Under the profiler a (?:step|recorded step of \S+ ms) spends "
    headline = re.split(begin, shown)[1].partition(". - ")[0]
    # Beside a busy machine the operators may be a smaller part than a headline names.
    assert "% in host code (train.py:10)" in headline
    assert "Host code at train.py:10: " in shown and "Host code between operators at train.py:7: " in shown
    assert "Use fewer and larger operators, or torch.compile." in shown
    # Where a step takes half of the time without the profiler, the code between operators may be the profiler's.
    run = tmp_path / "out" / "latest"
    metrics = pd.read_parquet(run / "metrics.parquet")
    metrics.loc[metrics["metric"] == "step_time", ["value", "ci_low", "ci_high"]] *= 0.5
    metrics.to_parquet(run / "metrics.parquet")
    shown = " ".join(profpipe(tmp_path, "report", str(run)).split())
    assert "Host code at train.py:10: " in shown and "Host code between operators" not in shown
    assert "Under the profiler a recorded step of " in shown and " times as fast" not in shown


def test_the_causes_add_up_to_the_steps(planted: tuple[Path, dict[str, list[float]]]) -> None:
    run, _ = planted
    metrics, steps = pd.read_parquet(run / "metrics.parquet"), pd.read_parquet(run / "steps.parquet")
    waits = metrics.loc[metrics["metric"] == "step_wait_idle", "value"].sum()
    assert waits == pytest.approx(steps.loc[steps["state"] == "steady", "wall_ns"].astype(float).mean(), rel=1e-9)
    summary = (run / "SUMMARY.md").read_text(encoding="utf-8")
    assert re.search(r"Under the profiler a (?:step|recorded step of \S+ ms) spends \d\d\.\d % in ", summary)


def content(**more: object) -> dict[str, object]:
    """Return a file of the hook: two steps of 100 ms from 1 s on, a thread with Python and a sample each 5 ms."""
    times = [1_000_000_000 + i * 5 * MS for i in range(41)]
    samples = {"time_ns": times, "thread": [7] * 41, "place": [i % 2 for i in range(41)], "is_backward": [False] * 41}
    steps = {"step": [3, 4], "time_ns": [1_000_000_000, 1_100_000_000]}
    return {"pid": 9, "step_thread": 7, "steps": steps, "places": ["a.py:1", "b.py:2"], "samples": samples,
            "waits": [], **more}  # fmt: skip


def spans(*pairs: tuple[float, float]) -> tuple[host.Int64s, host.Int64s]:
    ascending = (np.array(sorted(pairs)).reshape(-1, 2) * MS).astype(np.int64)
    return ascending[:, 0], ascending[:, 1]


def placed(given: dict[str, object], calls: Spans | None = None, call_name: str = "synchronising call") -> Host:
    """Return it on a clock on which the first step begins at 0."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "hook.capture.9.host.json").write_text(json.dumps(given), encoding="utf-8")
        read = host.read(Path(folder), 9)
    assert read is not None
    seen = host.place(read, np.array([3, 4]), np.array([0, 100 * MS]), calls or Spans.none(), call_name=call_name)
    assert seen is not None
    return seen


def divided(
    seen: Host, gaps: tuple[host.Int64s, host.Int64s], thread: int = 7, operators: Union | None = None
) -> dict[tuple[str, str], float]:
    """Return ms of a step by metric and subject."""
    steady = spans((0, 100), (100, 200))
    rows = host.causes(seen, *gaps, np.full(len(gaps[0]), thread), steady, operators)
    return {(row["metric"], row["subject"]): row["value"] / MS for row in rows}


def test_a_wait_counts_where_the_gpu_is_idle_and_the_rest_is_hidden() -> None:
    begin = 1_000_000_000
    wait = ["DataLoader", begin + 10 * MS, begin + 50 * MS, 7, 0, "2 workers"]
    parts = divided(placed(content(waits=[wait])), spans((30, 60)))
    assert parts["step_wait_idle", "DataLoader (2 workers) > a.py:1"] == 10
    assert parts["step_wait_hidden", "DataLoader (2 workers) > a.py:1"] == 10
    # From 50 to 60 ms it ran code: a sample stands for the 2.5 ms before it and after it.
    assert parts["step_wait_idle", "host code > b.py:2"] == parts["step_wait_idle", "host code > a.py:1"] == 2.5


def test_lines_with_few_samples_are_together_in_their_file_or_in_the_line_that_calls_it() -> None:
    lines = {"a.py:1": 11, "a.py:9 > x.py:1": 6, "a.py:9 > x.py:2": 4, "a.py:9 > x.py:3": 3, "a.py:9 > y.py:4": 3,
             "a.py:9": 2, "a.py:90": 4, "a.py:91": 1, "b.py:1": 2, "a.py:2": 5}  # fmt: skip
    given = content(places=list(lines))
    assert isinstance(given["samples"], dict)
    given["samples"]["place"] = [i for i, times in enumerate(lines.values()) for _ in range(times)]
    parts = divided(placed(given), spans((0, 200)))
    # A sample stands for 5 ms, in two steps, and half of the first one's and the last one's time is outside.
    ms = {" > a.py:1": 26.25, " > a.py:9 > x.py:1": 15, " > a.py:9 > x.py": 17.5, " > a.py:9 > other lines": 12.5,
          " > a.py": 23.75, "": 5}  # fmt: skip
    assert parts == {("step_wait_idle", f"host code{at}"): value for at, value in ms.items()}


def test_of_two_waits_the_inner_one_counts() -> None:
    begin = 1_000_000_000
    waits = [
        ["DataLoader", begin, begin + 40 * MS, 7, 0, ""],
        ["garbage collection", begin + 10 * MS, begin + 20 * MS, 7, 1, ""],
    ]
    parts = divided(placed(content(waits=waits)), spans((0, 40)))
    assert parts == {
        ("step_wait_idle", "DataLoader > a.py:1"): 15,
        ("step_wait_idle", "garbage collection > b.py:2"): 5,
    }


def test_the_timeline_shows_waits_and_in_between_the_lines_of_samples() -> None:
    begin = 1_000_000_000
    given = content(waits=[["DataLoader", begin + 10 * MS, begin + 50 * MS, 7, 0, "2 workers"]])
    events = list(host.list_events(placed(given), 4 * MS, 57 * MS))
    # A sample stands for the 2.5 ms before it and after it.
    assert [((start / MS, end / MS), name, is_wait) for start, end, name, is_wait in events] == [
        ((4, 7.5), "b.py:2", False),
        ((7.5, 10), "a.py:1", False),
        ((10, 50), "DataLoader (2 workers), a.py:1", True),
        ((50, 52.5), "a.py:1", False),
        ((52.5, 57), "b.py:2", False),
    ]


def test_an_empty_window_shows_nothing_and_a_place_without_a_length_is_none() -> None:
    assert list(host.list_events(placed(content()), 4 * MS, 4 * MS)) == []
    none, of_first = Spans.none(), np.zeros(1, dtype=np.int64)
    at = np.array([2 * MS], dtype=np.int64)
    place = Spans(at, at, of_first, of_first, of_first, ("aten::add",))
    gaps = *spans((0, 4)), of_first
    assert host.read_recording((none, none, place), none, 0, of_first, gaps, {0}) is None


def test_short_gaps_are_launching_and_a_thread_without_python_has_the_place_of_the_one_that_waits_for_it() -> None:
    given = content()
    samples = given["samples"]
    assert isinstance(samples, dict)
    # Another thread is inside backward() all the time, which autograd's own thread, 99, works for.
    samples["time_ns"] *= 2
    samples["thread"] += [8] * 41
    samples["place"] += [1] * 41
    samples["is_backward"] += [True] * 41
    gaps = spans(*((i, i + 0.2) for i in range(20)))
    seen = placed(given)
    assert divided(seen, gaps, thread=99) == {("step_wait_idle", "launching > b.py:2"): pytest.approx(2)}
    assert set(divided(seen, gaps, thread=7)) == {
        ("step_wait_idle", f"launching > {at}") for at in ("a.py:1", "b.py:2")
    }


@pytest.mark.parametrize("seed", range(20))
def test_the_parts_always_add_up_to_the_idle_time(seed: int) -> None:
    random = np.random.default_rng(seed)
    begin = 1_000_000_000
    waits = []
    for _ in range(30):
        start, end = np.sort(random.integers(-50, 250, 2)).tolist()
        waits.append([random.choice(["a", "b"]), begin + start * MS, begin + end * MS, 7, int(random.integers(2)), ""])
    edges = np.unique(random.integers(0, 200, 40))
    gaps = spans(*zip(edges[::2].tolist(), edges[1::2].tolist(), strict=False))
    operators = Union(*spans((20, 40), (90, 120))) if seed % 2 else None
    parts = divided(placed(content(waits=waits)), gaps, operators=operators)
    idle = sum(value for (metric, _), value in parts.items() if metric == "step_wait_idle")
    assert idle == pytest.approx((gaps[1] - gaps[0]).sum() / MS / 2)


def test_a_step_on_a_cpu_waits_for_a_collective_while_it_computes_nothing() -> None:
    start, end = spans((20, 60))
    number = np.zeros(1, dtype=np.int64)
    seen = placed(content(), Spans(start, end, number, number, number, ("gloo:all_reduce",)), "communication")
    parts = divided(seen, spans((0, 100)), operators=Union(*spans((30, 40), (70, 80))))
    of_cause: dict[str, float] = {}
    for (metric, subject), ms in parts.items():
        if metric == "step_wait_idle":
            cause = subject.partition(" > ")[0]
            of_cause[cause] = of_cause.get(cause, 0.0) + ms
    # In ms of two steps of 100 ms, of which the first is divided.
    assert of_cause == {"communication": 15, "operators": 10, "host code": 25}


def test_operators_without_a_sample_inside_have_no_line() -> None:
    parts = divided(placed(content()), spans((0, 20)), operators=Union(*spans((11, 14))))
    assert parts["step_wait_idle", "operators"] == 1.5


def test_a_wait_of_a_thread_that_launches_nothing_delays_no_launch() -> None:
    begin = 1_000_000_000
    waits = [["checkpoint", begin, begin + 40 * MS, 8, 0, ""], ["garbage collection", begin, begin + 10 * MS, 8, 1, ""]]
    parts = divided(placed(content(waits=waits)), spans((0, 40)))
    assert {cause.partition(" > ")[0] for _, cause in parts} == {"garbage collection", "host code"}


def test_steps_on_contradicting_clocks_say_nothing() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "hook.capture.9.host.json").write_text(json.dumps(content()), encoding="utf-8")
        read = host.read(Path(folder), 9)
    assert read is not None
    assert host.place(read, np.array([3, 4]), np.array([0, 400 * MS]), Spans.none()) is None


GONE = """
import os, tempfile, torch
folder = tempfile.mkdtemp()
os.chdir(folder)
net = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(net.parameters(), 0.01)
os.rmdir(folder)
batches = torch.utils.data.DataLoader(torch.ones(40, 8), batch_size=1)
for batch in batches:
    net(batch).sum().backward()
    optimizer.step()
    torch.save(net.state_dict(), os.devnull)
print("trained")
"""


@pytest.mark.slow
def test_the_recording_never_fails_the_program(tmp_path: Path) -> None:
    """Its folder is removed, and it resets what the hook has registered."""
    (tmp_path / "train.py").write_text(GONE, encoding="utf-8")
    profpipe(tmp_path, "run", "-q", "-p", "torch", "--", sys.executable, "train.py")
    (log,) = (tmp_path / "out" / "latest").resolve().glob("raw/*/torch/log.txt")
    assert log.read_text(encoding="utf-8").splitlines()[-1] == "trained"
    assert "hook failed" not in (tmp_path / "out" / "latest" / "SUMMARY.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"pid": 9', '{"pid": 8}', '{"pid": 9}', '{"pid": 9, "steps": 3}'])
def test_a_file_that_cannot_be_read_says_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "hook.capture.9.host.json").write_text(text, encoding="utf-8")
    assert host.read(tmp_path, 9) is None


def test_the_ranges_of_a_recording_say_how_long_the_gpu_waits_for_a_loader(tmp_path: Path) -> None:
    """Steps of 10 ms: 6 ms in the loader, then three kernels that follow each other."""
    host_of, on_gpu = {"ph": "X", "pid": 1, "tid": 1}, {"ph": "X", "pid": 0, "tid": 7, "cat": "kernel"}
    events: list[dict[str, object]] = []
    for step in range(12):
        begin = 1e6 + step * 10_000
        loader = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
        for name, start, duration in ((f"ProfilerStep#{step}", 0, 9990), (loader, 100, 6000)):
            times = {"ts": begin + start, "dur": duration}
            events.append({**host_of, "cat": "user_annotation", "name": name, **times})
        for number in range(3):
            launch = {"correlation": step * 10 + number + 1}
            at = begin + 6200 + number * 900
            call = {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": at, "dur": 5, "args": launch}
            events.append({**host_of, **call})
            kernel = {"name": f"k{number}", "ts": at + 20, "dur": 800, "args": {**launch, "device": 0, "stream": 7}}
            events.append({**on_gpu, **kernel})
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps({"schemaVersion": 1, "deviceProperties": [], "traceEvents": events}), "utf-8")
    shown = " ".join(profpipe(tmp_path, "ingest", "trace.json", "--out", "read").split())
    assert "For 6.00 ms of it the GPU waits for the DataLoader." in shown
    assert (
        "DataLoader: 6.00 ms of a step. Without it a step would be 2.50 times as fast, the rest unchanged. Load ahead:"
        in shown
    )
    metrics, steps = (pd.read_parquet(tmp_path / "read" / f"{name}.parquet") for name in ("metrics", "steps"))
    idle = metrics.loc[metrics["metric"] == "step_wait_idle", "value"].sum()
    # The last step has an estimated end, and no causes.
    steady = steps[steps["state"] == "steady"]
    assert idle == pytest.approx(
        steady[["idle_launch_ns", "idle_blocked_ns"]].astype(float).sum(axis=1).mean(), rel=1e-3
    )
    timeline = pd.read_parquet(tmp_path / "read" / "timeline.parquet")
    waits = timeline[timeline["kind"] == "named_wait"]
    assert list(waits["name"]) == ["DataLoader"] and waits["duration_ns"].iloc[0] == 6_000_000
    assert '"title":"program"' in (tmp_path / "read" / "report.html").read_text("utf-8")


def test_a_sample_inside_a_wait_or_an_operator_stands_for_no_code_outside() -> None:
    """The thread is at a.py:1 in every wait or operator of 9 of 10 ms, and at b.py:2 outside."""
    given = content()
    samples = given["samples"]
    assert isinstance(samples, dict)
    samples["time_ns"] = [1_000_000_000 + i * 3 * MS for i in range(70)]
    inside = [(at - 1_000_000_000) % (10 * MS) < 9 * MS for at in samples["time_ns"]]
    samples["place"] = [0 if is_inside else 1 for is_inside in inside]
    samples["thread"], samples["is_backward"] = [7] * 70, [False] * 70
    assert not all(inside)
    busy = [(i * 10, i * 10 + 9) for i in range(21)]
    step = spans((0, 100), (100, 200))
    parts = divided(placed(given), step, operators=Union(*spans(*busy)))
    assert parts == {("step_wait_idle", "operators > a.py:1"): 90, ("step_wait_idle", "host code > b.py:2"): 10}
    waits = [["load", 1_000_000_000 + a * MS, 1_000_000_000 + b * MS, 7, 0, ""] for a, b in busy]
    parts = divided(placed({**given, "waits": waits}), step)
    assert parts == {("step_wait_idle", "load > a.py:1"): 90, ("step_wait_idle", "host code > b.py:2"): 10}


def test_code_that_no_file_of_the_program_holds_has_the_line_that_calls_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py"])
    from profpipe.hook.host import Places

    found: dict[str, str] = {}
    for path, module in (("<string>", "lib"), ("/tmp/torchinductor_me/kw/ckw7.py", "torch._inductor.x"), ("p.py", "p")):
        names = {"__name__": module, "sys": sys}
        exec(compile("def call():\n    return sys._getframe()\n", path, "exec"), names)
        places = Places()
        places.number(names["call"]())  # type: ignore[operator]
        found[module] = places.list_names()[0].partition(":")[0].rpartition("/")[2]
    assert found == {"lib": "test_waits.py", "torch._inductor.x": "test_waits.py", "p": "p.py"}


@pytest.mark.slow
def test_torch_compile_neither_traces_nor_compiles_what_notes_a_wait(recwarn: pytest.WarningsRecorder) -> None:
    import torch
    from torch._dynamo.utils import counters

    from profpipe.hook.host import Host
    from profpipe.hook.record import HookRecord
    from profpipe.hook.settings import HookSettings

    def compile_and_count() -> int:
        """Return how many functions torch.compile compiles where a compiled one reads two batches."""
        torch._dynamo.reset()
        counters.clear()

        @torch.compile(backend="eager")
        def read(batches: Any) -> Any:
            return next(batches).sum() + next(batches).sum()

        read(iter(torch.utils.data.DataLoader(torch.ones(4, 8), batch_size=1)))  # type: ignore[arg-type]
        return counters["frames"]["total"]

    # The first compilation also traces functions of the compiler.
    compile_and_count()
    without = compile_and_count()
    steps = {"warmup": 1, "measure": 1, "stop": False, "forward": False}
    settings = HookSettings({"folder": "", "stem": "hook", "profiler": "torch", "steps": steps})
    recording = Host(settings, HookRecord(lambda: "", dict))
    recording._is_on = True
    recording._watch()
    try:
        assert compile_and_count() == without
    finally:
        recording._leave()
    assert [wait[0] for wait in recording._waits].count("DataLoader") == 2
    assert not [warning for warning in recwarn if "Dynamo" in str(warning.message)]
