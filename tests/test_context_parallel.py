"""Attention over two processes: PyTorch's own rings and DTensor on the CPU, with gloo, under a real torchrun."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import lazy
import pytest
from report_study import read_pages

from profpipe import plugins
from profpipe.job import log_name
from profpipe.results import store

pytestmark = lazy.needs("torch")

ROOT = Path(__file__).resolve().parents[1]
WORKLOAD = ROOT / "workloads" / "context_parallel.py"
PIPELINE = ROOT / "pipelines" / "context_parallel.yaml"

SMALL: dict[str, Any] = {"batch": 2, "seqlen": 64, "heads": 4, "head_dim": 16, "dtype": "fp32", "mode": "fwd_bwd"}
PARALLEL = ("ring_allgather", "ring_alltoall", "heads")
CASES = [
    {"method": method, "causal": causal, "load_balance": balance}
    for method in (*PARALLEL, "single")
    for causal, balance in ((True, True), (True, False), (False, True))
]

ANSWER = """
import json, sys
from pathlib import Path

import torch
from torch import distributed
from torch.distributed import _functional_collectives as collectives
from profpipe import plugins

workload = plugins.load_module(Path(sys.argv[1]))
small, cases, unavailable = json.loads(sys.argv[2])
distributed.init_process_group("gloo")
received = []


def counted(name, times):
    was = getattr(collectives, name, None)

    def call(tensor, *args, **kwargs):
        received.append(tensor.numel() * tensor.element_size() * times)
        return was(tensor, *args, **kwargs)

    if was:
        setattr(collectives, name, call)


def ask(params):
    reason = workload.available(params)
    if reason:
        return {"available": reason}
    call = workload.build(params)
    received.clear()
    results = call()
    got = {"shapes": [list(t.shape) for t in results], "received": sum(received)}
    again = call()
    got["same"] = all(bool((one == other).all()) for one, other in zip(results, again))
    got["checked"] = workload.check(params)
    got["flops"], got["facts"] = workload.flops(params), workload.facts(params)
    return got


# Of the ring's two ways of sending; all_gather_tensor is called all_gather_single from torch 2.13 on.
counted("permute_tensor", 1)
counted("all_gather_tensor", distributed.get_world_size() - 1)
counted("all_gather_single", distributed.get_world_size() - 1)
answers = [ask({**small, **case}) for case in cases] + [ask({**small, **case}) for case in unavailable]
Path(sys.argv[3], f"{distributed.get_rank()}.json").write_text(json.dumps(answers))


# --- a stand-in for the GPU's flash operator, made of the CPU's, so that the code of a GPU's ring runs here

aten, stand_in, called = torch.ops.aten, torch.library.Library("aten", "IMPL"), []


def forward(q, k, v, dropout_p=0.0, is_causal=False, return_debug_mask=False, *, scale=None):
    called.append([q.shape[2], k.shape[2], is_causal])
    out, log_sum_exp = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, dropout_p, is_causal)
    none = torch.zeros(())
    return out, log_sum_exp, none, none, q.shape[2], k.shape[2], torch.zeros(2, dtype=torch.long), none, none


def backward(gradient, q, k, v, out, log_sum_exp, a, b, c, d, dropout_p, is_causal, *rest, scale=None):
    return aten._scaled_dot_product_flash_attention_for_cpu_backward(
        gradient, q, k, v, out, log_sum_exp, dropout_p, is_causal
    )


def through_dtensor(params):
    case, parallel = workload.parse_params(params), workload.parallel
    ring = parallel.ring_module()
    ring.set_rotate_method(parallel.RINGS[case.method])
    plain = lambda q, k, v: aten._scaled_dot_product_flash_attention(q, k, v, 0.0, case.causal)[0]
    call = workload.iteration(
        case, parallel.ring_on_gpu(plain), case.shards(*workload.draw_inputs(case)), workload.nullcontext
    )
    called.clear()
    got, calls = call(), list(called)
    whole = workload.iteration(
        case, parallel.prepare("single", case), workload.draw_inputs(case), workload.nullcontext
    )()
    apart = [(one - case.shards(other.detach())[0]).abs().max().item() for one, other in zip(got, whole)]
    return {"apart": max(apart), "calls": calls}


stand_in.impl("_scaled_dot_product_flash_attention", forward, "CPU")
stand_in.impl("_scaled_dot_product_flash_attention_backward", backward, "CPU")
rings = [through_dtensor({**small, **case}) for case in cases if case["method"] in workload.parallel.RINGS]
Path(sys.argv[3], f"rings.{distributed.get_rank()}.json").write_text(json.dumps(rings))
distributed.destroy_process_group()
"""

UNAVAILABLE = [
    ({"method": "ring_allgather", "seqlen": 66}, "cannot be parted into 4 equal chunks. Use a multiple of 4"),
    ({"method": "heads", "seqlen": 65}, "cannot be parted into 2 equal chunks. Use a multiple of 2"),
    ({"method": "heads", "heads": 3}, "3 heads cannot be parted among 2 processes. Use a multiple of 2"),
    ({"method": "heads", "backend": "cudnn"}, "does not take fp32"),
]


@pytest.fixture(scope="module")
def workload():
    return plugins.load_module(WORKLOAD)


@pytest.fixture(scope="module")
def answer_folder(made_once):
    """The folder with what two processes wrote down."""
    return made_once("answers", write_answers)


def write_answers(folder):
    script = folder / "answer.py"
    script.write_text(ANSWER)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"]
    given = json.dumps([SMALL, CASES, [case for case, _ in UNAVAILABLE]])
    done = subprocess.run(
        [*torchrun, "--nproc-per-node", "2", str(script), str(WORKLOAD), given, str(folder)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def answers(answer_folder):
    """By rank: what the workload answers for each of CASES and of UNAVAILABLE."""
    return [json.loads((answer_folder / f"{rank}.json").read_text()) for rank in (0, 1)]


def named(case):
    return ",".join(f"{name}={value}" for name, value in case.items())


each_case = pytest.mark.parametrize("number", range(len(CASES)), ids=[named(case) for case in CASES])
each_rank = pytest.mark.parametrize("rank", [0, 1])


# --- two processes ---------------------------------------------------------------------------------------------------


@each_rank
@each_case
def test_output_and_gradients_of_each_process_are_those_of_one_device(answers, rank, number):
    checked = answers[rank][number]["checked"]
    assert {name.rpartition("_d")[2] for name in checked if name.startswith("error_rel_l1_")} == {"q", "k", "v"}
    for tensor in ("", "_dq", "_dk", "_dv"):
        assert checked[f"error_rel_l1{tensor}"] < 1e-6
        assert checked[f"cosine{tensor}"] == pytest.approx(1, abs=1e-6)


@each_rank
@each_case
def test_each_process_has_its_share_of_the_sequence_under_every_method(answers, rank, number):
    length = 64 if CASES[number]["method"] == "single" else 32
    assert answers[rank][number]["shapes"] == [[2, 4, length, 16]] * 4


@each_case
def test_calls_repeat_themselves(answers, number):
    assert all(own[number]["same"] for own in answers)


@each_case
def test_a_device_has_its_part_of_the_work_and_all_of_them_the_whole(answers, number):
    case, own = CASES[number], answers[0][number]
    visible = 32 if case["causal"] else 64
    whole = 3.5 * 4 * 2 * 4 * 64 * visible * 16
    assert own["facts"]["flops_all"] == [whole, "flop"]
    assert own["flops"] == (whole if case["method"] == "single" else whole / 2)


@pytest.mark.parametrize("number", [n for n, case in enumerate(CASES) if case["method"].startswith("ring")])
def test_a_ring_sends_the_declared_number_of_bytes(answers, number):
    for own in answers:
        assert own[number]["received"] == own[number]["facts"]["bytes_received"][0] > 0


RINGS = [case for case in CASES if case["method"].startswith("ring")]


@pytest.mark.parametrize("number", range(len(RINGS)), ids=[named(case) for case in RINGS])
def test_the_gpu_path_of_a_ring_through_dtensor_has_the_same_result(answer_folder, number):
    """The GPU's operator is a mock, made of the CPU's; modules, DTensor, dispatcher and ring are torch's own."""
    ways = [json.loads((answer_folder / f"rings.{rank}.json").read_text())[number] for rank in (0, 1)]
    assert all(way["apart"] < 1e-5 for way in ways)
    case = RINGS[number]
    other = {
        (True, True): [[16, 32, False], [32, 16, False]],  # half the queries, or half the keys
        (True, False): [None, [32, 32, False]],  # the first sees nothing of the second's keys
        (False, True): [[32, 32, False], [32, 32, False]],
    }[case["causal"], case["load_balance"]]
    for way, step in zip(ways, other, strict=True):
        assert way["calls"] == [[32, 32, case["causal"]]] + ([step] if step else [])


@pytest.mark.parametrize("number", range(len(UNAVAILABLE)))
def test_shapes_that_cannot_be_parted_say_what_can(answers, number):
    for own in answers:
        assert UNAVAILABLE[number][1] in own[len(CASES) + number]["available"]


# --- one process -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", PARALLEL)
def test_alone_the_workload_asks_for_processes(workload, method):
    assert "Set processes: 2 in the workload, or use method: single." in workload.available({**SMALL, "method": method})


def test_alone_it_is_plain_attention(workload):
    params = {**SMALL, "method": "single"}
    assert workload.available(params) is None
    assert [tuple(tensor.shape) for tensor in workload.build(params)()] == [(2, 4, 64, 16)] * 4
    assert workload.check(params)["error_max"] == 0
    assert workload.facts(params)["bytes_received"] == (0.0, "byte")


def test_a_forward_pass_needs_no_gradient(workload):
    (out,) = workload.build({**SMALL, "method": "single", "mode": "fwd"})()
    assert not out.requires_grad


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"methd": "heads"}, "unknown parameter 'methd'. Did you mean 'method'?"),
        ({"method": "ring"}, "unknown method 'ring'. Did you mean"),
        ({"backend": "math"}, "unknown backend 'math'"),
        ({"mode": "bwd"}, "unknown mode 'bwd'"),
        ({"load_balance": 1}, "load_balance must be true or false"),
        ({"seqlen": 0}, "seqlen must be a whole number of at least 1"),
    ],
)
def test_invalid_parameters_are_named(workload, params, message):
    with pytest.raises(ValueError, match="^" + message.replace("?", r"\?")):
        workload.build({**SMALL, **params})


def test_a_torch_without_the_ring_says_which_has_it(workload, monkeypatch):
    ring = pytest.importorskip("torch.distributed.tensor.experimental._attention")
    monkeypatch.delattr(ring, "_ContextParallel")
    assert "in the form of torch 2.11 to 2.13" in workload.parallel.missing_context_parallel()


# --- the study -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """The study at a size for two processes on a CPU: the run's folder."""
    out = tmp_path_factory.mktemp("study")
    reduced = {
        "GPUS": "2", "BATCH": "1", "NHEADS": "4", "HEADDIM": "16", "DTYPE": "fp32", "SEQLEN": "64", "MODE": "fwd_bwd",
        "CAUSAL": "true", "METHODS": "single,ring_alltoall", "PROFILERS": "plain,torch", "WARMUP": "1", "REPEATS": "6",
    }  # fmt: skip
    command = [sys.executable, "-m", "profpipe", "run", str(PIPELINE), "-w", "methods", "--out", str(out)]
    env = {**os.environ, "PYTHONPATH": str(ROOT), **reduced}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stdout + done.stderr
    return out / "latest"


@pytest.mark.exhaustive
def test_the_study_has_time_and_errors_of_each_process(study):
    data, _ = store.load(study)
    metrics = data.metrics[data.metrics["profiler"] == "plain"]
    for metric in ("time", "error_rel_l1", "error_rel_l1_dq", "error_rel_l1_dk", "error_rel_l1_dv"):
        rows = metrics[metrics["metric"] == metric]
        assert sorted(rows["subject"]) == ["", "", "rank 1", "rank 1"], metric
    assert (data.cases["status"] == "ok").all() and len(data.cases) == 4


@pytest.mark.exhaustive
def test_the_study_reads_a_torch_trace_of_each_process(study):
    data, _ = store.load(study)
    rows = data.kernels[data.kernels["profiler"] == "torch"]
    assert {Path(source).name for source in rows["source"]} == {
        f"capture{rank}.{number}.pt.trace.json.gz" for rank in ("", ".rank1") for number in (1, 2)
    }
    own = data.ranges[(data.ranges["profiler"] == "torch") & (data.ranges["range"] == "")]
    assert own["instances"].tolist() == [6] * 4 and own["process"].nunique() == 2


@pytest.mark.exhaustive
def test_the_study_reports_each_process_in_a_table(study):
    summary = read_pages(study)
    section = summary.split("## Processes and GPUs")[1].split("\n## ")[0]
    figures, differences = section.split("of each process from the reference")
    for table in (figures, differences):
        rows = [line.split("|")[2].strip() for line in table.splitlines() if line.startswith("| ")]
        assert rows == ["rank", "---", "0", "1", "0", "1"]
    assert "that of its slowest process" in figures and "of dQ" in figures
    for tensor in ("output", "dQ", "dK", "dV"):
        assert f"| {tensor}: max | {tensor}: mean |" in differences


@pytest.mark.exhaustive
def test_the_time_of_a_case_is_that_of_its_slowest_process_in_each_call(study):
    records = [study / "raw" / "methods" / "plain" / log_name(rank) for rank in (0, 1)]
    events = [[json.loads(line) for line in record.read_text().splitlines()] for record in records]
    samples = [{(e["case"], e["metric"]): e["values"] for e in each if e["event"] == "samples"} for each in events]
    assert samples[0].keys() == samples[1].keys()
    for case in {case for case, _ in samples[0]}:
        own = [each[case, "time_own"] for each in samples]
        assert samples[0][case, "time"] == samples[1][case, "time"] == [max(pair) for pair in zip(*own, strict=True)]


@pytest.mark.exhaustive
def test_the_metrics_of_a_rank_are_not_phases_of_its_case(study):
    summary = read_pages(study)
    assert "Memory by phase" not in summary
