"""Cases that several processes run together: under a real torchrun, on the CPU with gloo."""

import json
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import lazy
import pytest

from profpipe import profilers
from profpipe.config.models import Pipeline
from profpipe.job import Missing, Tool, log_name, workload_argv
from profpipe.measure import distributed, rounds
from profpipe.measure.distributed import CaseEnd, EndedByPeer, Ranks
from profpipe.results import schema, store
from profpipe.runner import plan

pytestmark = lazy.needs("torch")
torch = lazy.module("torch")

ROOT = Path(__file__).resolve().parents[1]

# --- meetings, of threads that share a store -------------------------------------------------------------------------


def together(*does):
    """What each of the processes, here threads, returned or raised."""
    shared, found = torch.distributed.HashStore(), [None] * len(does)

    def one(rank):
        try:
            found[rank] = does[rank](Ranks(rank, len(does), store=shared))
        except (Exception, SystemExit) as error:
            found[rank] = error

    threads = [threading.Thread(target=one, args=(rank,), daemon=True) for rank in range(len(does))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return found


def test_a_single_process_exchanges_nothing():
    alone = distributed.join(1)
    alone.barrier("built")
    assert (alone.all_max(3.5), alone.agree_on_end(CaseEnd("ok", "", ["noisy"])), alone.file_name("x")) == (
        3.5,
        CaseEnd("ok", "", ("noisy",)),
        "x",
    )
    alone.shutdown()


def test_the_largest_value_is_everybodys():
    assert together(lambda r: r.all_max(1.0), lambda r: r.all_max(2.5)) == [2.5, 2.5]


def test_the_most_severe_end_counts_for_all_processes_and_names_the_rank():
    ends = CaseEnd("failed", "lost the others"), CaseEnd("oom", "no more memory")
    found = together(lambda r: r.agree_on_end(ends[0]), lambda r: r.agree_on_end(ends[1]))
    assert found == [CaseEnd("oom", "rank 1: no more memory", ())] * 2


def test_the_largest_of_all_processes_is_found_place_by_place():
    found = together(lambda r: r.all_max_each([1.0, 5.0, 2.0]), lambda r: r.all_max_each([3.0, 4.0, 2.0]))
    assert found == [[3.0, 5.0, 2.0]] * 2
    assert together(lambda r: r.all_max(1.0), lambda r: r.all_max(2.0)) == [2.0, 2.0]


def test_an_end_that_all_processes_share_names_no_rank():
    end = CaseEnd("skipped", "no flash here", ())
    assert together(*[lambda r: r.agree_on_end(end)] * 2) == [end] * 2


def test_the_case_has_the_flags_of_all_processes():
    ends = CaseEnd("ok"), CaseEnd("ok", "", ["noisy"])
    found = together(lambda r: r.agree_on_end(ends[0]), lambda r: r.agree_on_end(ends[1]))
    assert [end.flags for end in found] == [("noisy",)] * 2


def test_who_comes_to_a_step_leaves_the_case_that_another_has_ended():
    def failing(own):
        return own.agree_on_end(CaseEnd("oom", "no more memory"))

    waiting, ended = together(lambda r: r.barrier("built"), failing)
    assert isinstance(waiting, EndedByPeer)
    assert waiting.end == ended == CaseEnd("oom", "rank 1: no more memory", ())


def test_processes_that_are_not_at_the_same_point_fail_the_case_and_say_where_they_are():
    one, other = together(lambda r: r.barrier("batch"), lambda r: r.agree_on_end(CaseEnd("ok", "")))
    where = "the processes are out of step: rank 0 at 'batch', rank 1 at 'end'"
    assert (other.status, other.reason) == ("failed", where) and one.end.reason == where


def test_a_rank_that_waits_too_long_gets_an_error_and_a_late_rank_ends(monkeypatch):
    monkeypatch.setattr(distributed, "PEER_TIMEOUT_S", 0.2)
    left = threading.Event()

    def early(own):
        try:
            return own.agree_on_end(CaseEnd("oom", "no more memory"))
        finally:
            left.set()

    def late(own):
        left.wait(20)
        return own.agree_on_end(CaseEnd("failed", "connection lost"))

    found = together(early, late)
    assert [type(each) for each in found] == [distributed.PeerTimeout, SystemExit]


@pytest.mark.parametrize(("gpus", "lacks"), [(0, ""), (1, "needs 2 GPUs, and torch sees 1 here. "), (2, ""), (8, "")])
def test_fewer_gpus_than_processes_skip_the_case_and_a_machine_without_gpus_does_not(gpus, lacks):
    """A mock, for want of GPUs."""
    cuda = SimpleNamespace(is_available=lambda: gpus > 0, device_count=lambda: gpus)
    found = distributed.missing_gpus(SimpleNamespace(cuda=cuda), 2)
    assert found.startswith(lacks) and bool(found) == bool(lacks)


# --- planned jobs ----------------------------------------------------------------------------------------------------


def pipeline(**workload):
    return Pipeline.model_validate({"version": 1, "workloads": {"w": {"script": "w", **workload}}})


def planned(**workload):
    names = ("plain", "torch", "nsys", "ncu", "rocprof")
    jobs = plan.plan(
        pipeline(processes=2, profilers=list(names), **workload),
        {name: Tool(name, "1", f"/bin/{name}") for name in names},
        scripts={"w": Path("w.py")},
        cwd=Path("/work"),
        out=Path("/out"),
        python="/bin/python",
        on_gpu=True,
    )
    return {job.profiler: job for job in jobs}


def test_torchrun_starts_the_harness_once_for_each_process():
    argv = workload_argv(planned()["plain"])
    assert argv[:3] == ("/bin/python", "-m", "torch.distributed.run")
    assert argv[argv.index("--nproc-per-node") + 1] == "2"
    assert argv[-3:] == ("-m", "profpipe.measure.harness", "/out/raw/w/plain/cases.json")


def test_profilers_of_one_process_say_so():
    jobs = planned()
    assert {name for name, job in jobs.items() if isinstance(job.tool, Missing)} == {"ncu", "rocprof"}
    assert "would wait forever" in str(jobs["ncu"].tool)


def test_nsys_records_all_of_several_processes_and_one_only_between_start_and_stop():
    several = planned()["nsys"]
    one = replace(several, processes=1)
    recorded = [" ".join(profilers.nsys.commands(job)[0].argv) for job in (several, one)]
    assert ["--capture-range" in line for line in recorded] == [False, True]


def test_each_process_writes_separate_events_and_traces():
    jobs = planned(matrix={"a": [1, 2]})
    names = [path.name for path in profilers.torch.artifacts(jobs["torch"])]
    assert names == [
        "capture.1.pt.trace.json.gz",
        "capture.2.pt.trace.json.gz",
        "capture.rank1.1.pt.trace.json.gz",
        "capture.rank1.2.pt.trace.json.gz",
        "job.jsonl",
        "job.rank1.jsonl",
    ]
    assert [path.name for path in profilers.plain.commands(jobs["plain"])[0].makes] == ["job.jsonl"]


@pytest.mark.parametrize(
    ("workload", "message"),
    [
        ({"processes": 0}, "greater than or equal to 1"),
        ({"processes": 2, "timing": {"mode": "cuda_graph"}}, "'timing.mode' must be eager"),
        ({"processes": 2, "script": None, "command": ["python", "x.py"]}, "Let the command start its own"),
    ],
)
def test_options_that_several_processes_do_not_support_are_errors(workload, message):
    with pytest.raises(ValueError, match=message):
        pipeline(**workload)


def test_of_several_processes_nothing_that_they_do_hangs_on_a_time():
    spec = {"options": {"timing": {"rounds": 3, "order": "interleaved"}}, "repeats": 7, "warmup": 2, "processes": 2}
    timing = rounds.TimingPlan.from_spec(spec)
    assert (timing.rounds, timing.mode) == (1, "eager")
    # For any noise and any duration.
    assert [timing.rule.next_batch([1.0, 9.0] * n, 2 * n, 1e9) for n in (0, 1, 3)] == [1, 5, 1]
    assert timing.rule.next_batch([1.0] * 7, 7, 0.0) == 0


def test_of_a_further_process_the_numbers_are_taken_and_the_cases_are_not(tmp_path):
    from profpipe import plugins

    events = plugins.load_module(ROOT / "parsers" / "events.py")
    lines = [
        {"event": "started", "profiler": "plain", "rank": 1, "processes": 2},
        {"event": "case_started", "case": "a=1", "params": {"a": 1}},
        {"event": "samples", "case": "a=1", "unit": "ns", "values": [1, 2, 3]},
        {"event": "metric", "case": "a=1", "subject": "", "metric": "peak_allocated", "value": 5, "unit": "byte"},
        {"event": "metric", "case": "a=1", "subject": "forward", "metric": "flops", "value": 5, "unit": "flop"},
        {"event": "case_ended", "case": "a=1", "status": "ok"},
        {"event": "case_started", "case": "a=2", "params": {"a": 2}},
        {"event": "samples", "case": "a=2", "unit": "ns", "values": [1, 2, 3]},
        {"event": "case_ended", "case": "a=2", "status": "oom"},
    ]
    record = tmp_path / log_name(1)
    record.write_text("".join(json.dumps(line) + "\n" for line in lines))
    parsed = events.parse(record)
    assert parsed.cases.empty
    assert set(parsed.metrics["subject"]) == {f"{schema.RANK_PREFIX}1"} and set(parsed.metrics["case"]) == {"a=1"}
    found = dict(zip(parsed.metrics["metric"], parsed.metrics["value"], strict=True))
    assert (found["time"], found["peak_allocated"]) == (2.0, 5.0) and "flops" not in found


# --- under a real torchrun -------------------------------------------------------------------------------------------

WORKLOAD = '''
"""Two processes that do as `what` says. Each iteration is an all-reduce, which needs both."""
import os
import signal
from pathlib import Path

import torch
from torch import distributed

from profpipe.measure import distributed as ranks

PARAMS = {"what": "ok"}
ranks.PEER_TIMEOUT_S = 3.0


def second():
    return distributed.get_rank() == 1


def available(params):
    if params["what"] == "unavailable" and second():
        return "this one has no flash"


def build(params):
    what, calls = params["what"], []
    if what == "oom_in_build" and second():
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    def call():
        calls.append(1)
        Path(os.environ["CALLS"], f"{what}.{distributed.get_rank()}").write_text(str(len(calls)))
        if len(calls) == 3 and second():
            if what == "oom_inside":
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3 GiB")
            if what == "dies":
                os.kill(os.getpid(), signal.SIGKILL)
        distributed.all_reduce(torch.ones(1))

    return call


def check(params):
    if params["what"] == "check_fails" and second():
        raise ValueError("no reference")
    return {"error_max": float(distributed.get_rank())}
'''

PIPELINE = """
version: 1
name: two
workloads:
  two:
    script: two
    processes: 2
    profilers: [plain]
    warmup: 1
    repeats: 6
    skip_larger_after_oom: false
    env: {CALLS: CALLS_FOLDER}
    matrix: {what: [ok, oom_in_build, unavailable, check_fails, oom_inside, last, dies, after]}
"""


@pytest.fixture(scope="module")
def run_of_two(made_once):
    """A run whose cases end in every way that one of two processes can end them: (its folder, what was printed)."""
    home = made_once("two", run_two)
    return home / "out" / "latest", (home / "printed.txt").read_text()


def run_two(home):
    (home / "workloads").mkdir()
    (home / "calls").mkdir()
    (home / "workloads" / "two.py").write_text(WORKLOAD)
    (home / "pipeline.yaml").write_text(PIPELINE.replace("CALLS_FOLDER", str(home / "calls")))
    done = subprocess.run(
        [sys.executable, "-m", "profpipe", "run", str(home / "pipeline.yaml"), "--out", str(home / "out")],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    (home / "printed.txt").write_text(done.stdout + done.stderr)


@pytest.fixture(scope="module")
def ends(run_of_two):
    data, _ = store.load(run_of_two[0])
    rows = zip(data.cases["params"], data.cases["status"], data.cases["reason"], strict=True)
    return {json.loads(params)["what"]: (status, reason) for params, status, reason in rows}


def test_both_processes_time_a_case_in_step(run_of_two, ends):
    data, _ = store.load(run_of_two[0])
    time = data.metrics[(data.metrics["case"] == "what=ok") & (data.metrics["metric"] == "time")]
    assert ends["ok"] == ("ok", "")
    assert dict(zip(time["subject"], time["n"], strict=True)) == {"": 6, "rank 1": 6}


def test_both_processes_have_made_the_same_number_of_calls(run_of_two):
    calls = run_of_two[0].resolve().parents[1] / "calls"
    counts = {rank: (calls / f"ok.{rank}").read_text() for rank in (0, 1)}
    # One to warm up, six samples, and one and six as a profiler would see them.
    assert counts == {0: "14", 1: "14"}


def test_each_process_checks_its_part(run_of_two):
    data, _ = store.load(run_of_two[0])
    errors = data.metrics[(data.metrics["case"] == "what=ok") & (data.metrics["metric"] == "error_max")]
    assert dict(zip(errors["subject"], errors["value"], strict=True)) == {"": 0.0, "rank 1": 1.0}


def test_an_oom_of_one_before_the_work_together_is_everybodys_and_they_go_on(ends):
    status, reason = ends["oom_in_build"]
    assert status == "oom" and reason.startswith("rank 1: ") and "2 GiB" in reason


def test_a_case_that_one_process_cannot_run_is_skipped_by_all(ends):
    assert ends["unavailable"] == ("skipped", "rank 1: this one has no flash")


def test_a_check_that_fails_in_one_process_keeps_the_times_and_flags_the_case(run_of_two, ends):
    data, _ = store.load(run_of_two[0])
    flags = data.cases.loc[data.cases["case"] == "what=check_fails", "flags"].item()
    assert ends["check_fails"] == ("ok", "") and "unchecked" in json.loads(flags)


def test_an_oom_of_one_inside_the_work_together_ends_the_processes_and_others_go_on(ends, run_of_two):
    status, reason = ends["oom_inside"]
    assert status == "oom" and reason.startswith("rank 1: ") and "3 GiB" in reason
    assert ends["last"] == ("ok", "")
    assert "A new process runs the remaining cases: 3" in run_of_two[1]


def test_a_process_that_dies_ends_the_job_with_a_reason_that_names_it(ends):
    status, reason = ends["dies"]
    assert status == "crashed" and reason.startswith("rank 1: killed by SIGKILL")
    assert ends["after"] == ("ok", "")


@pytest.mark.exhaustive
def test_nsys_records_the_ranges_of_every_process_in_one_report(nsys, tmp_path):
    (tmp_path / "workloads").mkdir()
    (tmp_path / "workloads" / "two.py").write_text(WORKLOAD)
    text = PIPELINE.replace("CALLS_FOLDER", str(tmp_path)).replace("[plain]", "[nsys]")
    (tmp_path / "pipeline.yaml").write_text(text)
    command = [sys.executable, "-m", "profpipe", "run", str(tmp_path / "pipeline.yaml"), "--set", "what=ok"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": f"{nsys.parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "out")], env=env, capture_output=True, text=True, timeout=180
    )
    assert done.returncode == 0, done.stdout + done.stderr
    data, _ = store.load(tmp_path / "out" / "latest")
    own = data.ranges[(data.ranges["case"] == "what=ok") & (data.ranges["range"] == "")]
    assert own["process"].nunique() == 2 and own["instances"].tolist() == [6, 6]


def test_reused_events_of_any_process_are_copied(tmp_path):
    from profpipe.runner import job_cache

    for name in ("job.jsonl", "job.rank1.jsonl", "capture.sqlite"):
        (tmp_path / name).write_text("x")
        job_cache.link_or_copy(str(tmp_path / name), str(tmp_path / f"{name}.taken"))
    linked = [path.name for path in sorted(tmp_path.iterdir()) if path.stat().st_nlink > 1]
    assert linked == ["capture.sqlite", "capture.sqlite.taken"]
