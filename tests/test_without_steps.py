"""Programs without steps: recorded whole or for a span in their middle, with the CPU time and memory that they used."""

import json
import re
import sys

import hooked
import pytest
from jobs import change, make_job
from nsys_exports import Export
from program import profpipe, rows
from report_study import analyze, case_row, grid, metric_row, tables

from profpipe.analysis.kernels import ClassTotal, Kernel, KernelTotals, find_variants
from profpipe.ingest import reader
from profpipe.job import Case, ProgressListener, Tool
from profpipe.profilers import nsys as nsys_profiler, torch as torch_profiler
from profpipe.report.sections import headline, recording
from profpipe.report.text import write_text
from profpipe.runner import after_plain, slots

STEPS = {"warmup": 5, "measure": 20, "stop": False, "range": None, "forward": False}
PYTHON_LOADED, TORCH_IMPORTED = "hook.capture.loaded", "hook.capture.torch"
STEP = '{"hook": "steps", "rule": "optimizer", "clock": "perf_counter", "step": [0], "start_ns": [1], "wall_ns": [5]}\n'


def job_of(folder, profiler, path="/opt/tool", **steps):
    options = {"hook": True, "steps": {**STEPS, **steps}, "capture": None, "collect": None, "torch": {}}
    job = make_job(
        "w", profiler, (Case("default", {}),), folder / profiler, Tool(profiler, "2025", path), "python", folder
    )
    return change(job, command=("python", "t.py"), options=options, on_gpu=True)


def adapted(folder, profiler, seconds, *files, record="", **steps):
    """Return the job after a run under plain that took ``seconds`` and left ``files`` of the hook."""
    plain = job_of(folder, "plain", **steps)
    plain.folder.mkdir()
    for name in files:
        (plain.folder / name).touch()
    if record:
        (plain.folder / "hook.capture.7.jsonl").write_text(record, encoding="utf-8")
    return after_plain.adapt(job_of(folder, profiler, **steps), plain, "", seconds)


@pytest.mark.parametrize("files", [(PYTHON_LOADED,), (PYTHON_LOADED, TORCH_IMPORTED)], ids=["no torch", "no steps"])
def test_nsys_records_a_long_program_in_its_middle_and_lets_it_go_on(tmp_path, files):
    (profile, _) = nsys_profiler.commands(adapted(tmp_path, "nsys", 109.0, *files))
    assert {"--delay=39", "--duration=30", "--kill=none"} <= set(profile.argv)
    assert profile.may_outlive_tool and profile.ends_after_s is None and profile.fallback is None


def test_nsys_records_a_program_of_a_minute_whole(tmp_path):
    (profile, _) = nsys_profiler.commands(adapted(tmp_path, "nsys", 60.0, PYTHON_LOADED, TORCH_IMPORTED))
    assert not any(word.startswith(("--delay", "--duration", "--kill", "--capture")) for word in profile.argv)
    assert not profile.may_outlive_tool


def test_a_program_that_the_user_wants_to_stop_ends_after_the_span(tmp_path):
    (profile, _) = nsys_profiler.commands(adapted(tmp_path, "nsys", 109.0, PYTHON_LOADED, stop=True))
    assert "--kill=none" not in profile.argv and profile.ends_after_s == 69.0


def test_torch_waits_for_the_gpu_where_there_is_one(tmp_path):
    job = adapted(tmp_path, "torch", 15.0, PYTHON_LOADED, TORCH_IMPORTED)
    assert job.dump_settings()["capture"] == {
        "after_s": 0.0, "for_s": 30.0, "whole": True, "on_gpu": True, "goes_on": True
    }  # fmt: skip
    (command,) = torch_profiler.commands(job)
    assert command.ends_after_s is None


@pytest.mark.parametrize(("record", "steps"), [(STEP, {}), ("", {"range": "iteration"})], ids=["steps", "a range"])
def test_where_there_are_steps_no_span_is_chosen(tmp_path, record, steps):
    assert adapted(tmp_path, "torch", 500.0, PYTHON_LOADED, TORCH_IMPORTED, record=record, **steps).is_hooked


MATMUL = """
import multiprocessing, torch
def work():
    torch.set_num_threads(1)
    a = torch.ones(64, 64)
    for _ in range(100):
        torch.relu(a) @ a
if __name__ == "__main__":
    child = multiprocessing.get_context("spawn").Process(target=work)
    child.start()
    child.join()
"""


@pytest.mark.slow
def test_tensor_code_without_modules_of_a_spawned_process_is_recorded_whole(tmp_path):
    (tmp_path / "matmul.py").write_text(MATMUL, encoding="utf-8")
    profpipe(tmp_path, "run", "-p", "plain,torch", "--", sys.executable, "matmul.py")
    latest = tmp_path / "out" / "latest"
    (relu,) = (row for row in rows(latest / "kernels.parquet") if row["kernel"] == "aten::relu")
    assert relu["calls"] == "100"
    metrics = {
        row["metric"]: float(row["value"]) for row in rows(latest / "metrics.parquet") if row["profiler"] == "plain"
    }
    assert metrics["process_cpu"] > 0 and 50e6 < metrics["peak_host"] < 1e11
    page = (latest / "SUMMARY.md").read_text(encoding="utf-8")
    assert "- CPU time of all processes: " in page and "py-spy" not in page


#: On a machine without a GPU: torch takes itself for initialized, as after its first use of one.
USES_GPU = """
import sys, torch
torch.relu(torch.ones(3))
if sys.argv[1:]:
    torch.cuda.is_initialized = lambda: True
    torch.cuda.current_device = lambda: 0
    torch.cuda.get_device_name = lambda device: "H100"
    torch.cuda._lazy_init()
for _ in range(7):
    torch.tanh(torch.ones(3))
"""
WHOLE = {"after_s": 0.0, "for_s": 30.0, "whole": True, "on_gpu": True, "goes_on": True}


@pytest.mark.slow
def test_torch_records_from_its_first_use_of_the_gpu(tmp_path):
    done = hooked.run_python(tmp_path, USES_GPU, "gpu", profiler="torch", capture=WHOLE)
    (trace,) = done.traces
    kernels = reader.parse(reader.choose(trace, reader.parsers()), trace).kernels
    calls = dict(zip(kernels["kernel"], kernels["calls"], strict=True))
    assert calls["aten::tanh"] == 7 and "aten::relu" not in calls
    assert done.returncode == 0 and not done.explanation and not done.notes


@pytest.mark.usefixtures("stub_torch")
def test_torch_says_that_no_gpu_was_used(tmp_path):
    done = hooked.run_python(tmp_path, USES_GPU, profiler="torch", capture=WHOLE)
    assert done.returncode == 0 and done.explanation == "nothing was recorded: no process used a GPU through torch."


CRUNCH = """
import time
begin = time.perf_counter()
for step in range(4): sum(i * i for i in range(1_500_000))
worked = time.perf_counter()
for step in range(4): time.sleep(0.4)
print("TRUTH", worked - begin, time.perf_counter() - worked)
"""


@pytest.mark.slow
def test_a_python_program_without_torch_has_the_lines_by_time(tmp_path):
    (tmp_path / "crunch.py").write_text(CRUNCH, encoding="utf-8")
    profpipe(tmp_path, "run", "-p", "plain,torch", "--", sys.executable, "crunch.py")
    latest = tmp_path / "out" / "latest"
    ns = {row["kernel"]: float(row["total_ns"]) for row in rows(latest / "kernels.parquet")}
    log = (latest / "raw" / "crunch" / "lines" / "log.txt").read_text(encoding="utf-8")
    worked, waited = (float(word) for word in log.rpartition("TRUTH")[2].split()[:2])
    assert ns["crunch.py:4"] / 1e9 == pytest.approx(worked, rel=0.1, abs=0.03)
    assert ns["crunch.py:6"] / 1e9 == pytest.approx(waited, rel=0.1, abs=0.03)
    page = (latest / "SUMMARY.md").read_text(encoding="utf-8")
    assert "- Time of the main thread, its waits included: " in page and "at `crunch.py:6`" in page
    assert "py-spy" not in page


SPIN = """
import threading, time
def spin():
    begin = time.perf_counter()
    while time.perf_counter() - begin < 0.5: pass
thread = threading.Thread(target=spin)
thread.start()
thread.join()
"""


@pytest.mark.slow
def test_the_lines_of_processes_are_added_and_other_threads_are_named(tmp_path):
    (tmp_path / "spin.py").write_text(SPIN, encoding="utf-8")
    profpipe(tmp_path, "run", "-p", "lines", "--", "sh", "-c", f"{sys.executable} spin.py; {sys.executable} spin.py")
    page = (tmp_path / "out" / "latest" / "SUMMARY.md").read_text(encoding="utf-8")
    took = re.search(r"\| `spin.py:8` \| python \| \d+ \| ([\d.]+) \|", page)
    # Two times half a second; the mean was half of it.
    assert took and float(took[1]) > 750 and "means over" not in page
    assert "other threads used the CPU too, and only the main thread was sampled." in page


@pytest.mark.slow
def test_lines_are_those_of_python(tmp_path):
    profpipe(tmp_path, "run", "-p", "lines", "--", "sh", "-c", "true")
    (row,) = rows(tmp_path / "out" / "latest" / "cases.csv")
    assert row["status"] == "skipped" and "the start-up hook was not loaded" in row["reason"]


@pytest.mark.slow
def test_a_program_on_the_cpu_without_torch_gets_the_names_of_other_tools(tmp_path):
    profpipe(tmp_path, "run", "-p", "plain,torch", "--", "sh", "-c", "true")
    page = (tmp_path / "out" / "latest" / "SUMMARY.md").read_text(encoding="utf-8")
    assert "- profpipe measures GPU programs. For a program on the CPU use py-spy (Python) or perf." in page


def test_the_first_screen_says_how_busy_a_gpu_was_whose_second_stream_runs_later(tmp_path):
    """A quarter of the kernels of each step run after all steps, so no step has a time. The GPU is busy all along."""
    export, launches = Export(), [(step, number) for step in range(20) for number in range(20)]
    for step, number in launches:
        export.call(500_000 + 200 * step + 5 * number, 500_002 + 200 * step + 5 * number, 20 * step + number + 1)
        if not number:
            export.range(499_999 + 200 * step, 500_110 + 200 * step, f"step {step}")
    in_order = sorted(launches, key=lambda launch: (launch[1] % 4 == 0, launch))
    for place, (step, number) in enumerate(in_order):
        start = 1_000_000 + 1000 * place
        stream = 13 if number % 4 == 0 else 7
        export.kernel(start, start + 963, 20 * step + number + 1, f"k{step}_{number}", streamId=stream)
    export.write_sqlite(tmp_path / "later.sqlite")
    page = " ".join(profpipe(tmp_path, "ingest", "later.sqlite", "--out", "tables").split())
    assert " the GPU computed 96.3 % and was idle 3.7 %" in page and "so the time of a step is unknown" in page


def test_the_first_screen_says_how_busy_a_gpu_was_that_only_copied(tmp_path):
    export, place = Export(), {"deviceId": 0, "contextId": 1, "streamId": 7, "globalPid": 1 << 48 | 1 << 24}
    for copy in range(200):
        times = {"start": 1000 * copy, "end": 1000 * copy + 963, "correlationId": copy + 1}
        export.add("CUPTI_ACTIVITY_KIND_MEMCPY", **times, **place, bytes=4096, copyKind=1)
    export.write_sqlite(tmp_path / "copies.sqlite")
    page = " ".join(profpipe(tmp_path, "ingest", "copies.sqlite", "--out", "tables").split())
    assert "the GPU copied while no kernel ran 96.3 % and was idle 3.7 %" in page


@pytest.mark.slow
def test_a_program_goes_on_after_the_span_of_nsys(tmp_path, nsys):
    job = job_of(tmp_path, "nsys", str(nsys))
    capture = {"after_s": 0.0, "for_s": 1.0, "goes_on": True}
    program = "import time; time.sleep(6); print('late', flush=True); open('done', 'w').close()"
    job = change(
        job, command=(sys.executable, "-c", program), on_gpu=False, options={**job.dump_settings(), "capture": capture}
    )
    (outcome,) = slots.run([job], {"nsys": nsys_profiler}, ProgressListener())
    assert outcome.status == "ok" and nsys_profiler.sqlite(job).exists() and (tmp_path / "done").exists()
    assert "late" in (job.folder / "log.txt").read_text(encoding="utf-8")


def test_the_page_names_the_span(tmp_path):
    (tmp_path / "sleep.sh").write_text("sleep 0.1\n", encoding="utf-8")
    profpipe(tmp_path, "run", "-p", "plain", "--", "sh", "sleep.sh")
    latest = (tmp_path / "out" / "latest").resolve()
    manifest = json.loads((latest / "run.json").read_text(encoding="utf-8"))
    (plain,) = manifest["jobs"]
    span = {"after_s": 39.0, "for_s": 30.0}
    manifest["jobs"] = [{**plain, "seconds": 109.2}, {**plain, "profiler": "nsys", "span": span}]
    (latest / "run.json").write_text(json.dumps(manifest), encoding="utf-8")
    profpipe(tmp_path, "report", str(latest))
    assert "- nsys recorded 30 s of 109 s, from 39 s on.\n" in (latest / "SUMMARY.md").read_text(encoding="utf-8")


# --- the page of a recording -----------------------------------------------------------------------------------------


def cuda_program(folder):
    """Write the export of a program with variants of a kernel, and return it."""
    export, at = Export(), 0
    for name, lasts in (("copyRow", 30), ("transposeNaive", 780), ("transposeCoalesced", 100), ("reduce0", 50)):
        # Nothing recurs in half of the kernel time.
        for number in range(10 + len(name) % 3):
            export.launch(at, at + 1, f"{name}(float *, const float *)", lasts=lasts * 1000 + number)
            at += lasts * 1000 + 2000
        export.call(at, at + 5000, at + 2, name="cudaDeviceSynchronize_v3020")
        at += 9000 + lasts
    return export.write_sqlite(folder / "transpose.sqlite")


def test_variants_of_a_kernel_stand_side_by_side_and_calls_that_wait_have_their_time(tmp_path):
    profpipe(tmp_path, "ingest", str(cuda_program(tmp_path)), "--out", "read")
    page = next((tmp_path / "read").glob("**/SUMMARY.md")).read_text(encoding="utf-8")
    assert "| `cudaDeviceSynchronize` | 4 | 20.0 |" in page
    assert "| `transposeCoalesced` | 10 | 100.0 | 1.00x |\n| `transposeNaive` | 12 | 780.0 | 7.80x |\n" in page
    said = (
        "`transposeCoalesced` takes 100.0 us a launch, and its variant `transposeNaive` takes 780.0 us, 7.80x as long."
    )
    assert f"- {said}\n" in page
    assert "copyRow` |" not in page.partition("variants of a kernel")[2].partition("\n\n")[0]


#: ns of a kernel by its block, of three cases. An nsys that records nothing exports them.
MEDIANS = {"1": {32: 56_000, 128: 51_000}, "3": {32: 30_000, 128: 24_500}, "5": {32: 40_000, 128: 23_100}}
SIZES = "gridX gridY gridZ blockX blockY blockZ"


def benchmark_of_kernels(path, number):
    export, at = Export(), 0
    for block, ns in MEDIANS[number].items():
        for _ in range(20):
            sizes = dict(zip(SIZES.split(), (64, 1, 1, block, 1, 1), strict=True))
            export.call(at, at + 2, at + 1)
            export.kernel(at + 5, at + 5 + ns, at + 1, f"layernorm_kernel{number}(float *)", **sizes)
            at += ns + 5000
    export.write_sqlite(path, also={"CUPTI_ACTIVITY_KIND_KERNEL": SIZES})


def test_cases_of_a_benchmark_are_compared_by_their_kernels_at_each_block(tmp_path):
    rows_of: dict[str, list[dict[str, object]]] = {"cases": [], "kernels": [], "metrics": []}
    for number, wall_ns in (("1", 1e10), ("3", 1e9), ("5", 2e9)):
        benchmark_of_kernels(tmp_path / f"{number}.sqlite", number)
        (read,) = reader.ingest(
            [reader.InputFile(tmp_path / f"{number}.sqlite", "x", workload="w", case=f"k={number}")]
        )
        assert isinstance(read, reader.Read) and read.tables.steps.empty
        for name in ("kernels", "metrics"):
            rows_of[name] += getattr(read.tables, name).to_dict("records")
        rows_of["cases"] += [case_row(f"k={number}", profiler) for profiler in ("plain", "nsys")]
        rows_of["metrics"].append(metric_row(f"k={number}", "process_wall", wall_ns, n=1))
    run = {"pipeline": {"workloads": {"w": {"command": ["./bench", "{k}"], "matrix": {"k": [1, 3, 5]}}}}}
    (workload,) = analyze(tables(**rows_of), run).workloads
    said = write_text(headline.answer(workload))
    assert said.startswith(
        "k 5 has the fastest kernel. Medians of a launch: k 5: layernorm_kernel5, 23.1 us at block 128; "
        "k 3: layernorm_kernel3, 24.5 us at block 128; k 1: layernorm_kernel1, 51.0 us at block 128. k 1: "
    ) and said.endswith("of process wall time.")
    (table,) = recording.launches(workload).blocks
    assert [row[3:] for row in grid(table)[1:]][:2] == [["128", "51.0", "20"], ["32", "56.0", "20"]]


@pytest.mark.parametrize(
    ("names", "groups"),
    [
        ({"reduce0<int>(int*)": 9, "reduce1<int>(int*)": 9, "scan(int*)": 9}, 1),
        ({"matMulNaive": 3, "matMulTiled": 3, "matAdd": 3}, 1),
        ({"transposeNaive": 100, "transposeSetup": 1}, 0),
        ({"void at::native::add<float>": 9, "void at::native::add<int>": 9}, 0),
        ({"triton_poi_fused_add_0": 9, "triton_poi_fused_mul_1": 9, "loop_add_fusion": 9, "loop_mul_fusion": 9}, 0),
        ({"kernel1": 5, "kernel2": 5}, 0),
    ],
    ids=["numbers", "two words", "launched less often", "a namespace", "generated", "any kernel"],
)
def test_kernels_with_one_stem_are_variants(names, groups):
    sums = {Kernel(name, "other", "", "kernel"): ClassTotal(calls, 10.0 * calls) for name, calls in names.items()}
    found = find_variants(KernelTotals(sums))
    assert [len(group) for group in found] == [2] * groups
