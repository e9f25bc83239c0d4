"""What happens inside the workload's process, seen from outside: real processes, their events and their traces."""

import gc
import gzip
import json
import os
import re
import subprocess
import sys
import weakref
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from profpipe.measure import harness
from profpipe.measure.conditions import GpuConditions, Reading

ROOT = Path(__file__).parents[1]

WORKLOAD = """
import torch
from profpipe.measure import launch_profile
from profpipe.ranges import annotate

PARAMS = {"n": 8, "do": "work"}
calls = []

def build(params):
    if params["do"] == "refuse":
        raise ValueError("n is odd")
    x = torch.ones(params["n"], params["n"])
    def fn():
        if params["do"] == "oom":
            raise RuntimeError("CUDA out of memory. Tried to allocate 20 GiB")
        if params["do"] == "host_oom":
            return torch.ones(10**15)
        if params["do"].startswith("raise "):
            raise RuntimeError(params["do"])
        if params["do"] == "spoil":  # in place of a capture that fails, for want of a GPU
            raise launch_profile.CaptureAborted("the call cannot be captured")
        with annotate("multiply"):
            return x @ x
    return fn

def available(params):
    return "no such kernel. Install one." if params["do"] == "skip" else None

def expects(params):
    return "mine"

def flops(params):
    return 2 * params["n"] ** 3

def phase_work(params):
    return {"multiply": {"flops": 2 * params["n"] ** 3, "bytes_moved": None}}

def check(params):
    if params["do"] == "uncheckable":
        raise MemoryError("the reference does not fit")
    return {"error_max": 0.5}
"""


#: Needs no torch, so that its process starts at once.
SUMS = "def build(params):\n    return lambda: sum(range(1000))\n"


def carry_out(folder, cases, profiler="plain", code=0, workload=WORKLOAD, **spec):
    """Run the harness in a subprocess, with torch if the workload imports it, and return its events."""
    (folder / "workload.py").write_text(workload)
    document = {
        "workload": "w", "profiler": profiler, "script": str(folder / "workload.py"), "warmup": 2, "repeats": 4,
        "options": {"timing": {"budget_s": 4, "most": 4}}, "stem": "capture", "part": 1, "folder": str(folder),
        "cases": [{"id": case, "params": params} for case, params in cases.items()], **spec,
    }  # fmt: skip
    (folder / "cases.json").write_text(json.dumps(document))
    path = os.pathsep.join([str(ROOT), *([] if "import torch" in workload else [str(ROOT / "tests" / "no_torch")])])
    done = subprocess.run(
        [sys.executable, "-m", "profpipe.measure.harness", str(folder / "cases.json")],
        env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    return [json.loads(line) for line in (folder / "job.jsonl").read_text().splitlines()]


def of(events, kind, case=None):
    return [event for event in events if event["event"] == kind and case in (None, event.get("case"))]


INSIDE = """
from contextlib import contextmanager

@contextmanager
def wrap(call, case, path):
    calls = []
    yield lambda: calls.append(call())
    if case != "n=1":
        open(path, "w").write(str(len(calls)))
"""


def test_a_profiler_inside_the_process_writes_a_file_of_each_case_or_the_case_fails(tmp_path):
    (tmp_path / "inside.py").write_text(INSIDE)
    spec = {"inside": str(tmp_path / "inside.py"), "suffix": ".acme"}
    events = carry_out(tmp_path, {f"n={n}": {} for n in (1, 2)}, "acme", workload=SUMS, **spec)
    ends = {event["case"]: event["reason"] for event in of(events, "case_ended")}
    assert ends["n=1"].endswith("inside.py wrote no file") and not ends["n=2"]
    assert [path.name for path in tmp_path.glob("*.acme")] == ["capture.2.acme"]
    assert (tmp_path / "capture.2.acme").read_text() == "4"


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    cases = {do: {"do": do} for do in ("work", "refuse", "skip", "oom", "uncheckable")}
    return carry_out(tmp_path_factory.mktemp("plain"), cases)


@pytest.mark.slow
def test_every_case_is_tried_whether_or_not_the_previous_case_failed(plain):
    ended = {event["case"]: event["status"] for event in of(plain, "case_ended")}
    assert ended == {
        "work": "ok", "refuse": "failed", "skip": "skipped", "oom": "oom", "uncheckable": "ok",
    }  # fmt: skip
    assert plain[0]["event"] == "started" and plain[-1]["event"] == "finished"


@pytest.mark.slow
def test_a_process_that_torch_left_in_a_capture_measures_no_further_case(tmp_path):
    events = carry_out(tmp_path, {"a": {"do": "spoil"}, "b": {"do": "work"}}, code=harness.CONTEXT_LOST)
    (ended,) = of(events, "case_ended")
    assert (ended["case"], ended["status"]) == ("a", "crashed")
    assert ended["reason"].endswith("the call cannot be captured; torch is left in the middle of the capture")


def test_a_failure_says_why_in_a_line_and_keeps_its_traceback(plain):
    (ended,) = of(plain, "case_ended", "refuse")
    assert re.fullmatch(r"ValueError: n is odd \(.*workload\.py:11\)", ended["reason"])
    assert "in build" in of(plain, "error", "refuse")[0]["traceback"]


RETURNED = "workload.py:3: build(params) returned {}. Return the callable that runs one iteration."


@pytest.mark.parametrize(
    ("body", "begin", "end"),
    [
        ("    return None\n", "", RETURNED.format("None")),
        ("    return 3.5\n", "", RETURNED.format("an object of type float")),
        # The line in the workload, where the error is below `build`.
        (
            "    return read()\n\ndef read():\n    return json.loads('?')\n",
            "JSONDecodeError: Expecting",
            "workload.py:7)",
        ),
    ],
)
def test_a_build_that_fails_or_returns_no_callable_is_named_with_file_and_line(tmp_path, body, begin, end):
    workload = f"import json\n\ndef build(params):\n{body}"
    (ended,) = of(carry_out(tmp_path, {"a": {}}, workload=workload), "case_ended")
    assert ended["status"] == "failed" and ended["reason"].startswith(begin) and ended["reason"].endswith(end)


@pytest.mark.parametrize("profiler", ["plain", pytest.param("torch", marks=(pytest.mark.slow, pytest.mark.exhaustive))])
def test_the_cache_flush_can_be_turned_off_and_the_case_says_so(tmp_path, profiler):
    options = {"timing": {"budget_s": 0.2, "flush": False}}
    workload = SUMS if profiler == "plain" else WORKLOAD
    events = carry_out(tmp_path, {"a": {}}, profiler, options=options, workload=workload)
    (ended,) = of(events, "case_ended")
    assert "warm_cache" in ended["flags"]
    notes = [event["text"] for event in of(events, "note")]
    assert ("the caches are not flushed between samples" in notes) is (profiler == "plain")


def test_a_case_has_one_sample_an_iteration_and_its_facts(plain):
    (samples,) = of(plain, "samples", "work")
    assert len(samples["values"]) >= 4 and min(samples["values"]) > 0
    assert of(plain, "order")[0]["clock"] == "perf_counter"
    metrics = {event["metric"]: event["value"] for event in of(plain, "metric", "work")}
    assert (metrics["flops"], metrics["error_max"]) == (1024, 0.5) and metrics["loop_wall"] > 0
    assert of(plain, "case_started", "work")[0]["params"] == {"n": 8, "do": "work"}, "with the workload's defaults"
    assert of(plain, "expects", "work")[0]["family"] == "mine"
    # Times stand where the reference cannot be computed, and are marked.
    (ended,) = of(plain, "case_ended", "uncheckable")
    assert "unchecked" in ended["flags"] and of(plain, "samples", "uncheckable")


def test_under_the_torch_profiler_each_case_leaves_a_trace_with_a_range_an_iteration(tmp_path):
    events = carry_out(tmp_path, {"a": {}, "skip": {"do": "skip"}, "b": {"n": 16}}, "torch")
    assert {event["metric"]: event["value"] for event in of(events, "metric", "a")}["iterations"] == 4
    traces = sorted(path.name for path in tmp_path.glob("*.gz"))
    assert traces == ["capture.1.pt.trace.json.gz", "capture.2.pt.trace.json.gz"]
    with gzip.open(tmp_path / traces[0]) as stream:
        names = [
            event.get("name") for event in json.load(stream)["traceEvents"] if event.get("cat") == "user_annotation"
        ]
    assert names.count("profpipe:a") == 4 and names.count("multiply") == 4


@pytest.mark.parametrize(("call_s", "iterations"), [(0.0, 30), (0.1, 4), (0.6, 1)])
def test_on_a_cpu_a_profiler_records_as_many_iterations_as_fit_into_the_budget(monkeypatch, call_s, iterations):
    """A mock of the loop: an iteration takes ``call_s``."""
    recorded = {}
    monkeypatch.setattr(harness.sampling, "run_loop", lambda fn, n, **_: (call_s * 1e9, ()))
    events = SimpleNamespace(
        write=lambda *_, **__: None, metric=lambda case, metric, value, unit: recorded.update({metric: value})
    )
    workload = SimpleNamespace(build=lambda params: lambda: None)
    spec = {"profiler": "torch", "repeats": 30, "warmup": 1, "options": {"timing": {"budget_s": 0.45}}}
    harness.profile_case(harness.Worker(workload, spec, events, "cpu"), "a", nullcontext, {})
    assert recorded["iterations"] == iterations


@pytest.mark.slow
def test_missing_memory_of_the_host_or_a_library_has_the_status_oom(tmp_path):
    cases = {
        "host": {"do": "host_oom"},
        "cublas": {"do": "raise CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"},
        "other": {"do": "raise CUBLAS_STATUS_EXECUTION_FAILED"},
    }
    options = {"options": {"skip_larger_after_oom": False, "timing": {"budget_s": 0.2}}}
    ended = {event["case"]: event["status"] for event in of(carry_out(tmp_path, cases, **options), "case_ended")}
    assert ended == {"host": "oom", "cublas": "oom", "other": "failed"}


@pytest.mark.slow
def test_after_an_oom_larger_cases_are_skipped_by_default(tmp_path):
    cases = {"small": {"do": "oom"}, "large": {"do": "oom", "n": 16}, "other": {"n": 16}}
    ended = {event["case"]: event for event in of(carry_out(tmp_path, cases), "case_ended")}
    assert [ended[case]["status"] for case in cases] == ["oom", "skipped", "ok"]
    assert "larger in every dimension" in ended["large"]["reason"]
    (tmp_path / "job.jsonl").unlink()
    options = {"options": {"skip_larger_after_oom": False, "timing": {"budget_s": 0.2}}}
    assert of(carry_out(tmp_path, cases, **options), "case_ended", "large")[0]["status"] == "oom"


def test_cases_in_rounds_are_visited_several_times_and_end_once(tmp_path):
    options = {"timing": {"order": "interleaved", "rounds": 3, "budget_s": 0.2}}
    events = carry_out(tmp_path, {"a": {}, "b": {}}, options=options, workload=SUMS)
    assert len(of(events, "case_started", "a")) == 3 and len(of(events, "case_ended", "a")) == 1
    assert [event["round"] for event in of(events, "samples", "a")] == [1, 2, 3]
    seconds = of(events, "case_ended", "a")[0]["seconds"]
    assert seconds > 0


def test_ncu_gets_one_iteration_for_it_replays_each_kernel(tmp_path):
    events = carry_out(tmp_path, {"a": {}}, "ncu", workload=SUMS)
    assert [event["value"] for event in of(events, "metric", "a")] == [1]


def test_clocks_under_a_profiler_are_recorded(monkeypatch):
    """NVML is a mock: there is no GPU here."""
    seen = GpuConditions(tuple(Reading(mhz * 1e6, 500.0) for mhz in (1900, 1950, 1980)))
    monkeypatch.setattr(
        harness.conditions,
        "monitor_device",
        lambda device: nullcontext(SimpleNamespace(conditions=lambda clocks_hz: seen)),
    )
    recorded = {}
    events = SimpleNamespace(
        write=lambda *_, **__: None, metric=lambda case, metric, value, unit: recorded.update({metric: (value, unit)})
    )
    workload = SimpleNamespace(build=lambda params: lambda: None)
    own = harness.Worker(workload, {"profiler": "nsys", "repeats": 3, "warmup": 1, "options": {}}, events, "cpu")
    assert harness.profile_case(own, "a", nullcontext, {}).status == "ok"
    assert (
        recorded["sm_clock_min"] == (1.9e9, "Hz")
        and recorded["sm_clock_max"] == (1.98e9, "Hz")
        and "loop_wall" in recorded
    )


def test_the_harness_starts_without_pandas():
    code = "import sys, profpipe.measure.harness; sys.exit('pandas' in sys.modules or 'torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)}).returncode == 0


def desk():
    return harness.Worker(None, {}, None, "cuda")


def on_a_gpu(monkeypatch, allocated=0):
    """A mock of torch on a GPU, which is missing here; it records the calls."""
    calls = []
    cuda = SimpleNamespace(
        synchronize=lambda: calls.append("wait"),
        empty_cache=lambda: calls.append("empty"),
        memory_allocated=lambda: allocated,
    )
    own = SimpleNamespace(_cuda_clearCublasWorkspaces=lambda: calls.append("cublas"))
    monkeypatch.setattr(harness.machine, "device", lambda: "cuda")
    monkeypatch.setattr(harness.machine, "torch", lambda: SimpleNamespace(cuda=cuda, _C=own))
    return calls


@pytest.mark.slow
def test_imported_modules_are_excluded_from_garbage_collection(monkeypatch):
    frozen, own = [], desk()
    on_a_gpu(monkeypatch)
    monkeypatch.setattr(harness.gc, "freeze", lambda: frozen.append(len(sys.modules)))
    for _ in range(3):
        own.clean_up()
    assert len(frozen) == 1
    monkeypatch.setitem(sys.modules, "a_package_that_a_case_imports", SimpleNamespace())
    own.clean_up()
    assert len(frozen) == 2


@pytest.mark.parametrize(
    ("profiler", "warmup", "expected"),
    [
        ("nsys", 3, ["warm 2", "load", "loop"]),
        ("nsys", 0, ["warm 0", "loop"]),
        ("ncu", 3, ["warm 3", "call"]),
        # The buffer that flushes the caches is none of the program's memory.
        ("memory", 3, ["warm 2", "load", "loop without flush"]),
    ],
)
def test_the_call_that_begins_to_load_a_gpu_is_the_last_that_warms_up(monkeypatch, profiler, warmup, expected):
    """A mock of a GPU: which calls are made, and none more, for one may take a minute."""
    done = []
    monkeypatch.setattr(harness.sampling, "warm_up", lambda fn, n, **_: done.append(f"warm {n}"))
    monkeypatch.setattr(harness.sampling, "apply_load", lambda fn, **_: done.append("load"))
    monkeypatch.setattr(
        harness.sampling,
        "run_loop",
        lambda fn, n, flush, **_: done.append("loop" if flush else "loop without flush") or (1.0, ()),
    )
    monkeypatch.setattr(harness.conditions, "monitor_gpu", lambda: nullcontext(harness.conditions.GpuMonitor(None)))
    monkeypatch.setattr(harness, "single_threaded_autograd", nullcontext)
    workload = SimpleNamespace(build=lambda params: lambda: done.append("call"))
    events = SimpleNamespace(write=lambda *_, **__: None, metric=lambda *_: None)
    spec = {"profiler": profiler, "warmup": warmup, "repeats": 2, "options": {}}

    @contextmanager
    def region(load):
        load()
        yield

    ended = harness.profile_case(harness.Worker(workload, spec, events, "cuda"), "a", region, {})
    assert (ended.status, ended.flags, done) == ("ok", [], expected)


def test_a_profiled_case_is_loaded_until_the_gpu_has_the_highest_clock_of_those_before_it(monkeypatch):
    """A mock of a GPU: the clocks that it counts around three loops."""
    requested, counts = [], iter([(1850e6, 1860e6), (1980e6, 1980e6), (1900e6, 1900e6)])
    monkeypatch.setattr(harness.sampling, "warm_up", lambda fn, n, **_: None)
    monkeypatch.setattr(harness.sampling, "apply_load", lambda fn, *, clock_hz, **_: requested.append(clock_hz))
    monkeypatch.setattr(harness.sampling, "run_loop", lambda fn, n, **_: (1.0, next(counts)))
    for name in ("monitor_gpu", "monitor_device"):
        unread = harness.conditions.GpuMonitor(None)
        monkeypatch.setattr(harness.conditions, name, lambda device=None, unread=unread: nullcontext(unread))
    workload, events = (
        SimpleNamespace(build=lambda params: lambda: None),
        SimpleNamespace(write=lambda *_, **__: None, metric=lambda *_: None),
    )
    own = harness.Worker(workload, {"profiler": "nsys", "warmup": 1, "repeats": 2, "options": {}}, events, "cuda")

    @contextmanager
    def region(load):
        load()
        yield

    assert [harness.profile_case(own, name, region, {}).status for name in "abc"] == ["ok"] * 3
    assert requested == [None, 1850e6, 1980e6]


def test_all_cases_of_a_process_share_the_clocks_of_the_gpu(monkeypatch):
    """A mock of a visit: no case is timed."""
    seen = []
    events = SimpleNamespace(write=lambda *_, **__: None, bind_case=lambda name: None)
    spec = {"cases": [{"id": name, "params": {}} for name in "ab"], "warmup": 1, "repeats": 3, "options": {}}
    monkeypatch.setattr(
        harness.Worker, "visit", lambda self, case, measure: seen.append(measure.args[2].visit_clocks_hz) or True
    )
    own = harness.Worker(None, spec, events, "cuda")
    harness.time_cases(own, {})
    assert len(seen) == 2 and all(clocks is own.visit_clocks_hz for clocks in seen)


def test_the_cublas_workspace_is_freed_before_the_first_call(monkeypatch):
    """A stand-in for torch, as above: its order of calls, not its memory."""
    calls = on_a_gpu(monkeypatch)
    workload = SimpleNamespace(build=lambda params: calls.append("build") or (lambda: None))
    own = harness.Worker(workload, {}, SimpleNamespace(write=lambda *_, **__: None), "cuda")
    case = SimpleNamespace(visit=lambda fn: calls.append("visit"))
    assert harness.time_case(own, "a", case, {}) is None
    assert calls == ["build", "cublas", "visit"]


class Model:
    """It refers to itself, so only the garbage collector frees it."""

    def __init__(self):
        self.own = self


@pytest.mark.parametrize("allocated", [None, 2**30])
def test_memory_that_a_workload_keeps_is_freed_once_it_is_released(monkeypatch, allocated):
    if allocated is None:
        monkeypatch.setattr(harness.machine, "device", lambda: "cpu")
    else:
        on_a_gpu(monkeypatch, allocated)
    own, kept = desk(), [Model()]
    model = weakref.ref(kept[0])
    own.clean_up()
    kept.clear()
    own.clean_up()
    gone = model() is None
    gc.unfreeze()
    assert gone


def test_the_cublas_workspace_is_freed_before_the_next_case(monkeypatch):
    calls = on_a_gpu(monkeypatch)
    monkeypatch.setattr(harness.gc, "freeze", lambda: None)
    assert desk().clean_up() is False
    assert calls == ["wait", "cublas", "empty"]
