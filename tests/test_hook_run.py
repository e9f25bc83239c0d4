"""Commands under the start-up hook in whole runs: the options of the profilers, and the tables of the run."""

import gzip
import json
import os
import sys
from pathlib import Path

import forked
import numpy as np
import pandas as pd
import pytest
from hooked import LOOP
from jobs import change, make_job
from program import ROOT, profpipe, rows

from profpipe.config.loader import load_pipeline
from profpipe.errors import ConfigError
from profpipe.ingest import attribution, launch_tables
from profpipe.ingest.operations import Spans
from profpipe.job import Case, Tool
from profpipe.profilers import ncu, nsys
from profpipe.runner import after_plain, artifacts

HOOKED = {"hook": True, "steps": {"warmup": 5, "measure": 20, "stop": None, "range": None, "forward": False}}


def job_of(profiler, **options):
    tool = Tool(profiler, "2025.3", f"/opt/{profiler}")
    given = {**HOOKED, "ncu": {"kernels": "all"}, **options}
    job = make_job("w", profiler, (Case("default", {}),), Path("/job"), tool, "python", Path("/"), on_gpu=True)
    return change(job, command=("python", "t.py"), options=given)


def test_nsys_waits_for_the_first_step_and_records_all_where_none_begins():
    profile = nsys.commands(job_of("nsys"))[0]
    assert "--capture-range=cudaProfilerApi" in profile.argv and not profile.env
    assert profile.fallback is not None
    assert not any("capture" in word for word in profile.fallback.argv[:-4])
    assert profile.fallback.env == {"PROFPIPE_RECORD": "whole"}


def test_nsys_records_the_whole_process_without_the_hook():
    profile = nsys.commands(job_of("nsys", hook=False))[0]
    assert profile.fallback is None and not any(word.startswith("--capture") for word in profile.argv)


def test_nsys_records_a_span_of_time_and_its_signal_is_no_failure():
    profile = nsys.commands(job_of("nsys", capture={"after_s": 60.0, "for_s": 5.0}))[0]
    assert "--delay=60" in profile.argv and "--duration=5" in profile.argv
    assert not profile.has_failed(143, seconds=66.0) and profile.has_failed(1, seconds=3.0)


@pytest.mark.parametrize(
    ("options", "off"),
    [
        ({}, True),
        ({"hook": False}, False),
        ({"ncu": {"kernels": "guided", "pattern": "x", "invocations": ["1"]}}, False),
    ],
    ids=["hooked", "without hook", "guided by a whole capture"],
)
def test_ncu_waits_for_the_step_that_the_hook_chooses(options, off):
    (command,) = ncu.commands(job_of("ncu", **options))
    assert ("off" in command.argv) == off and (command.fallback is not None) == off


def test_launches_of_a_command_are_counted_by_step():
    ranges = Spans(
        start=np.array([100, 200]),
        end=np.array([200, 300]),
        thread=np.array([1, 1]),
        process=np.array([1, 1]),
        name=np.array([0, 1], dtype=np.int32),
        names=["profpipe.step:optimizer:5", "profpipe.step:optimizer:6"],
    )
    begin = np.array([50, 110, 150, 250, 350])
    same = np.ones(5, dtype=np.int64)
    calls = attribution.Launches(begin, begin + 5, same, same, same.astype(bool))
    placed = attribution.attribute(ranges, calls)
    seen = {"kernel": list("abcde"), "grid": ["1x1x1"] * 5, "block": ["1x1x1"] * 5, "duration_ns": [1] * 5}
    found = launch_tables.order_launches(ranges, calls, placed, np.arange(5), pd.DataFrame(seen), begin)
    assert list(found["iteration"]) == [-1, 5, 5, 6, -1]


def pipeline(folder, program, **workload):
    (folder / "train.py").write_text(program, encoding="utf-8")
    given = {"command": [sys.executable, "train.py", "12"], "steps": {"warmup": 2, "measure": 4}, **workload}
    path = folder / "pipeline.yaml"
    path.write_text(json.dumps({"version": 1, "workloads": {"loop": given}}), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"script": "x.py", "command": None, "hook": False}, "'hook' is for a 'command'"),
        ({"steps": {"warm_up": 1}}, "unknown key 'warm_up'"),
        ({"steps": {"range": "("}}, "is no regular expression"),
        ({"capture": {"after_s": 3}}, "capture.for_s: is missing"),
    ],
)
def test_a_mistake_in_the_keys_of_steps_is_named(tmp_path, keys, message):
    given = {name: value for name, value in keys.items() if value is not None}
    path = pipeline(tmp_path, "", **given)
    if "script" in keys:
        document = json.loads(path.read_text(encoding="utf-8"))
        del document["workloads"]["loop"]["command"], document["workloads"]["loop"]["steps"]
        path.write_text(json.dumps(document), encoding="utf-8")
        (tmp_path / "x.py").write_text("def build(params): return lambda: None\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
        load_pipeline(path)


@pytest.mark.slow
def test_a_run_has_the_step_time_under_plain_and_the_trace_of_the_chosen_steps(tmp_path):
    pipeline(tmp_path, LOOP, profilers=["plain", "torch"])
    profpipe(tmp_path, "run", "pipeline.yaml", "--out", "out")
    latest = tmp_path / "out" / "latest"
    steps = [row for row in rows(latest / "steps.parquet") if row["profiler"] == "plain"]
    assert [row["step"] for row in steps] == [str(number) for number in range(11)]
    metrics = {(row["profiler"], row["metric"]) for row in rows(latest / "metrics.parquet")}
    assert ("plain", "step_time") in metrics and ("plain", "time") in metrics
    kernels = [row for row in rows(latest / "kernels.parquet") if row["profiler"] == "torch"]
    assert sum(int(row["calls"]) for row in kernels if row["kernel"] == "aten::mm") in (4, 8)
    page = (latest / "SUMMARY.md").read_text(encoding="utf-8")
    times = page.partition("## Times")[2].partition("\n## ")[0]
    assert "Time: median time of a steady step" in times and "| `default` |" in times
    assert "The times are sums over all recorded steps (`steps.measure`)" in page


@pytest.mark.slow
def test_traces_that_the_program_writes_are_collected(tmp_path):
    program = """
import torch
from torch.profiler import profile
with profile() as own:
    torch.ones(3).cumsum(0)
own.export_chrome_trace("log/mine.json")
"""
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "old.json").write_text("{}", encoding="utf-8")
    pipeline(tmp_path, program, profilers=["torch"], collect="log/*.json")
    profpipe(tmp_path, "run", "pipeline.yaml", "--out", "out")
    files = [path.name for path in (tmp_path / "out/latest/raw/loop/torch").glob("*collected*")]
    assert files == ["capture.collected.1.mine.json"]
    assert any(row["kernel"] == "aten::cumsum" for row in rows(tmp_path / "out/latest/kernels.parquet"))


def test_a_trace_that_cannot_be_copied_fails_its_case_and_the_others_run(tmp_path):
    (tmp_path / "log").mkdir()
    pipeline(tmp_path, f"open('log/' + {'n' * 245!r} + '.json', 'w').write('{{}}')", profilers=["torch"], hook=False)
    given = json.loads((tmp_path / "pipeline.yaml").read_text())
    del given["workloads"]["loop"]["steps"]
    given["workloads"]["loop"]["collect"] = "log/*.json"
    given["workloads"]["other"] = {"command": [sys.executable, "-c", ""], "profilers": ["plain"], "hook": False}
    (tmp_path / "pipeline.yaml").write_text(json.dumps(given))
    assert "internal error" not in forked.run(tmp_path, "run", "pipeline.yaml", "--out", "out").stderr
    ended = {row["workload"]: (row["status"], row["reason"]) for row in rows(tmp_path / "out/latest/cases.csv")}
    assert ended["other"] == ("ok", "")
    assert ended["loop"][0] == "failed"
    assert ended["loop"][1].startswith("a file of collect: cannot be copied: [Errno 36] File name too long: '")


def test_a_run_without_steps_says_why(tmp_path):
    pipeline(tmp_path, "print('no torch')", profilers=["plain"])
    profpipe(tmp_path, "run", "pipeline.yaml", "--out", "out")
    log = (tmp_path / "out/latest/raw/loop/plain/log.txt").read_text(encoding="utf-8")
    assert "profpipe: no step was recorded: no process imported torch. A loop in Python can call" in log
    assert "an NVTX range in each step, which --step-range REGEX names." in log and "Mark the steps" not in log


@pytest.mark.slow
def test_a_program_ends_after_its_steps_under_torch_and_nsys_where_plain_ran_it_whole(tmp_path, nsys_on_path):
    (tmp_path / "train.py").write_text(LOOP, encoding="utf-8")
    options = ("run", "--warmup-steps", "2", "--measure-steps", "4")
    program = ("--", sys.executable, "train.py", "40")
    profpipe(tmp_path, *options, *program, **nsys_on_path)
    assert [ends_of(tmp_path, profiler) for profiler in ("plain", "torch", "nsys")] == [
        (40, True), (11, False), (6, False),
    ]  # fmt: skip
    words = "The program ended after the recorded steps under torch and nsys, because plain ran it to its end:"
    page = (tmp_path / "out" / "latest" / "SUMMARY.md").read_text(encoding="utf-8")
    assert f"{words} `--no-stop`" in " ".join(page.split())
    profpipe(tmp_path, *options, "--no-stop", "-p", "plain,torch", *program)
    assert ends_of(tmp_path, "torch") == (40, True)
    page = (tmp_path / "out" / "latest" / "SUMMARY.md").read_text(encoding="utf-8")
    assert "ended after the recorded steps" not in " ".join(page.split())
    # Without plain in the run nothing shows how the program ends.
    profpipe(tmp_path, *options, "-p", "torch", *program)
    assert ends_of(tmp_path, "torch") == (40, True)


@pytest.mark.parametrize(("profiler", "given", "step_ms", "expected"), [
    ("torch", {}, 5, 20),
    ("torch", {}, 50, 10),
    ("torch", {}, 3000, 5),
    ("torch", {"measure": 12}, 3000, 12),
    ("torch", {"forward": True}, 3000, 20),
    ("nsys", {}, 137, 20),
])  # fmt: skip
def test_torch_records_half_a_second_of_steps_where_no_number_is_given(tmp_path, profiler, given, step_ms, expected):
    plain = job_of("plain", steps={"warmup": 5, **given}).move_to(tmp_path)
    line = {**TRAINED, "step": [*range(30)], "start_ns": [1] * 30, "wall_ns": [step_ms * 10**6] * 30}
    (tmp_path / f"hook.{plain.stem}.0.jsonl").write_text(json.dumps(line) + "\n", encoding="utf-8")
    job = after_plain.adapt(job_of(profiler, steps={"warmup": 5, **given}), plain, "", 9.0)
    assert job.settings.steps.measure == expected


@pytest.mark.parametrize(("given", "made", "expected"), [({}, 4, 2), ({}, 1, 1), ({}, 20, 5), ({"warmup": 5}, 4, 5)])
def test_of_a_short_program_half_of_the_steps_are_recorded(tmp_path, given, made, expected):
    plain = job_of("plain", steps=given).move_to(tmp_path)
    line = {**TRAINED, "step": [*range(made)], "start_ns": [1] * made, "wall_ns": [5] * made}
    (tmp_path / f"hook.{plain.stem}.0.jsonl").write_text(json.dumps(line) + "\n", encoding="utf-8")
    assert after_plain.adapt(job_of("nsys", steps=given), plain, "", 9.0).settings.steps.warmup == expected


def ends_of(folder, profiler):
    """How many iterations a program made under the profiler, and whether it came to its end."""
    text = (folder / "out" / "latest" / "raw" / "train" / profiler / "log.txt").read_text(encoding="utf-8")
    return text.count("iteration "), "trained" in text


TRAINED = {"hook": "steps", "rule": "optimizer", "clock": "host", "step": [0], "start_ns": [1], "wall_ns": [1]}


@pytest.mark.parametrize(("processes", "forward", "expected"), [
    ([[TRAINED, {"hook": "finished", "steps": 40}]], False, True),
    # Ranks.
    ([[TRAINED, {"hook": "finished", "steps": 40}]] * 2, False, True),
    # Calls were taken for steps until an optimizer stepped.
    ([[{**TRAINED, "rule": "forward"}, {"hook": "restart"}, TRAINED, {"hook": "finished", "steps": 40}]], False, True),
    # Another program follows, or works beside it.
    ([[TRAINED, {"hook": "finished", "steps": 40}], [TRAINED, {"hook": "finished", "steps": 30}]], False, False),
    ([[TRAINED, {"hook": "finished", "steps": 40}], [{"hook": "memory"}]], False, False),
    # It was killed, or ended by os._exit.
    ([[TRAINED]], False, False),
    ([[{**TRAINED, "rule": "forward"}, {"hook": "finished", "steps": 40}]], False, False),
    ([[{**TRAINED, "rule": "forward"}, {"hook": "finished", "steps": 40}]], True, True),
    ([], False, False),
])  # fmt: skip
def test_only_processes_with_equal_steps_end_after_them(tmp_path, processes, forward, expected):
    job = job_of("plain", steps={**HOOKED["steps"], "forward": forward}).move_to(tmp_path)
    for number, lines in enumerate(processes):
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (tmp_path / f"hook.{job.stem}.{number}.jsonl").write_text(text, encoding="utf-8")
    assert artifacts.makes_equal_steps(job) is expected


@pytest.mark.slow
def test_nsys_records_the_ranges_of_the_chosen_steps(tmp_path, nsys_on_path):
    pipeline(tmp_path, LOOP, profilers=["nsys"], steps={"warmup": 2, "measure": 4, "stop": True})
    profpipe(tmp_path, "run", "pipeline.yaml", "--out", "out", **nsys_on_path)
    found = {row["range"] for row in rows(tmp_path / "out/latest/ranges.parquet")}
    assert found and all(name.startswith("profpipe.step:optimizer") for name in found)


@pytest.mark.slow
def test_nsys_records_a_span_of_a_program_that_does_not_end(tmp_path, nsys_on_path):
    program = """
import time
import nvtx
for number in range(600):
    with nvtx.annotate("request"):
        time.sleep(0.1)
"""
    pipeline(tmp_path, program, profilers=["nsys", "ncu"], capture={"after_s": 1, "for_s": 2})
    profpipe(tmp_path, "run", "pipeline.yaml", "--out", "out", **nsys_on_path)
    statuses = {row["profiler"]: row for row in rows(tmp_path / "out/latest/cases.csv")}
    assert statuses["nsys"]["status"] == "ok" and "skipped" in statuses["ncu"]["status"]
    (request,) = (row for row in rows(tmp_path / "out/latest/ranges.parquet") if row["range"].endswith("request"))
    assert 10 <= int(request["instances"]) <= 40


def test_a_program_that_ends_before_the_span_of_nsys_says_so(tmp_path, nsys_on_path):
    pipeline(tmp_path, "print('short')", profilers=["nsys"], capture={"after_s": 30, "for_s": 2})
    profpipe(tmp_path, "run", "pipeline.yaml", "--out", "out", exit_code=1, **nsys_on_path)
    (case,) = rows(tmp_path / "out/latest/cases.csv")
    assert case["reason"] == "nothing was recorded: the program ended before capture.after_s (30 s)"


@pytest.fixture
def nsys_on_path(nsys):
    return {"PATH": os.pathsep.join([str(nsys.parent), os.environ["PATH"]])}


# --- a program with a profiler ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_trace_of_a_programs_own_profiler_is_the_capture_of_torch(tmp_path):
    profpipe(
        tmp_path, "run", "-p", "torch", "--", sys.executable, ROOT / "tests" / "data" / "reported" / "own_profiler.py"
    )
    folder = tmp_path / "out" / "latest"
    (case,) = rows(folder / "cases.csv")
    assert (case["status"], case["profiler"]) == ("ok", "torch")
    # The program's schedule records three steps.
    assert sum(row["state"] != "other" for row in rows(folder / "steps.parquet")) == 3
    assert "the program uses torch.profiler itself" in (folder / "SUMMARY.md").read_text(encoding="utf-8")


PROFILES_ITSELF = """
import torch
from torch.profiler import ProfilerActivity, profile
layer = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(layer.parameters(), 0.01)
with profile(activities=[ProfilerActivity.CPU]) as own:
    for _ in range(30):
        layer(torch.randn(2, 4)).sum().backward()
        optimizer.step()
"""


@pytest.mark.slow
def test_a_trace_that_the_program_exports_is_taken_and_stays_where_the_program_wrote_it(tmp_path):
    (tmp_path / "train.py").write_text(PROFILES_ITSELF + "own.export_chrome_trace('own.json.gz')\n", encoding="utf-8")
    profpipe(tmp_path, "run", "-p", "torch", "--", sys.executable, "train.py")
    (taken,) = (tmp_path / "out" / "latest" / "raw" / "train" / "torch").glob("*.pt.trace.json.gz")
    theirs, ours = (json.loads(gzip.decompress(path.read_bytes())) for path in (tmp_path / "own.json.gz", taken))
    assert len(theirs["traceEvents"]) == len(ours["traceEvents"]) > 100
    assert "ok" in {row["status"] for row in rows(tmp_path / "out" / "latest" / "cases.csv")}


@pytest.mark.slow
def test_a_profiler_that_leaves_no_trace_is_the_reason_of_the_missing_capture(tmp_path):
    # The process ends without the end of its profiler, and without that of Python.
    program = PROFILES_ITSELF.replace("with profile", "import os\nwith profile") + "    os._exit(0)\n"
    (tmp_path / "train.py").write_text(program, encoding="utf-8")
    profpipe(tmp_path, "run", "-p", "torch", "--", sys.executable, "train.py")
    (case,) = rows(tmp_path / "out" / "latest" / "cases.csv")
    assert case["status"] == "skipped" and "collect:" in case["reason"]
    assert case["reason"].startswith("nothing was recorded: the program uses torch.profiler itself")
