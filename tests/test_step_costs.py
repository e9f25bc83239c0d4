"""What steps cost: energy by the counter of the driver, its page, and its verdicts in pairs."""

import ctypes
import json
import random
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pandas as pd
import pytest
import yaml
from hooked import ROOT, run_python
from pair_study import page_of, run_of, tables_of
from program import profpipe
from report_study import analyze, metric_row, records, written
from step_study import compiled

from profpipe.analysis import pairs
from profpipe.hook import energy
from profpipe.ingest import job_tables, reader
from profpipe.report import results_json
from profpipe.report.sections import step_times
from profpipe.results import schema
from profpipe.results.manifest import Manifest
from profpipe.results.schema import Tables, Verdict

# --- the counter -----------------------------------------------------------------------------------------------------

#: A driver with four GPUs, the last of which is CUDA's first: each counts 1000 mJ more at every reading. The second one
#: is divided (MIG), and the first one counts no energy.
DRIVER = """
#include <stdio.h>
#include <string.h>
static unsigned long long readings[4];
int cuDeviceGet(int *device, int ordinal) { *device = 3 - ordinal; return 0; }
int cuDeviceGetPCIBusId(char *text, int size, int device) { return snprintf(text, size, "0000:0%d:00.0", device) < 0; }
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetHandleByPciBusId_v2(const char *text, void **handle) {
    *handle = &readings[text[6] - '0'];
    return 0;
}
int nvmlDeviceGetMigMode(void *handle, unsigned *mode, unsigned *pending) {
    if (handle == &readings[3]) return 3;
    *mode = *pending = handle == &readings[1];
    return 0;
}
int nvmlDeviceGetTotalEnergyConsumption(void *handle, unsigned long long *energy) {
    if (handle == &readings[0]) return 3;
    *energy = ++*(unsigned long long *)handle * 1000;
    return 0;
}
"""


def torch_cuda(*used):
    """Of torch.cuda, four devices, with memory on those that are ``used``."""
    return SimpleNamespace(device_count=lambda: 4, max_memory_reserved=lambda device: int(device in used))


@pytest.fixture
def driver(tmp_path, monkeypatch):
    source, library = tmp_path / "driver.c", tmp_path / "driver.so"
    source.write_text(DRIVER, encoding="utf-8")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    load = ctypes.CDLL
    monkeypatch.setattr(ctypes, "CDLL", lambda name: load(str(library)))


def test_the_counters_of_all_gpus_that_the_process_uses_are_added_up(driver):
    counter = energy.EnergyCounter(torch_cuda(0, 1))
    first = counter.read()
    assert first["gpus"] == 2 and first["energy"][1] == 2000
    assert counter.read() == {}, "not within a second"
    later = counter.read(at_once=True)
    assert later["energy"][1] == 4000 and later["energy"][0] > first["energy"][0]


@pytest.mark.parametrize("used", [(2,), (0, 2), (3,)], ids=["a part of a GPU", "one is divided", "no counter"])
def test_a_gpu_without_a_counter_gives_no_energy(driver, used):
    assert energy.EnergyCounter(torch_cuda(*used)).read() == {"gpus": len(used)}


def test_another_vendor_gives_the_number_of_gpus(monkeypatch):
    def load(name):
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", load)
    assert energy.EnergyCounter(torch_cuda(0)).read() == {"gpus": 1}


# --- steps -----------------------------------------------------------------------------------------------------------


def read(tmp_path, lines, rank=None):
    """The metrics of a process with these lines, by name."""
    path = tmp_path / "hook.capture.1.jsonl"
    started = {"hook": "started", "profiler": "plain", "pid": 1, "rank": rank, "warmup": 2}
    path.write_text("".join(json.dumps(line) + "\n" for line in (started, *lines)), encoding="utf-8")
    return reader.parse(reader.choose(path, reader.parsers()), path).metrics


def values(metrics):
    return {row.metric: row.value for row in metrics.itertuples() if not row.subject.startswith("prompt ")}


def windows(*spans, watts=500.0, gpus=1, tokens=None):
    """Lines of a program: each span is (steps, ms of a step, s of a pause before the counter is read)."""
    number, now_s, found = 0, 100.0, []
    for count, ms, pause_s in spans:
        now_s += count * ms / 1e3 + pause_s
        steps = [*range(number, number + count)]
        line = {"hook": "steps", "rule": "optimizer", "step": steps, "start_ns": [10**9 + n for n in steps]}
        line |= {
            "wall_ns": [ms * 1e6] * count,
            "gpus": gpus,
            "energy": [round(now_s * 1e9), round(now_s * watts * 1e3)],
        }
        found.append(line if tokens is None else {**line, "rule": "forward", "calls": tokens[number : number + count]})
        number += count
    return found


def test_the_energy_of_a_step_is_power_times_time(tmp_path):
    found = values(read(tmp_path, windows((1, 900.0, 0), *[(10, 100.0, 0)] * 5)))
    assert found["energy_per_step"] == pytest.approx(50.0) and found["gpus_used"] == 1
    # The first window has the two steps of the warm-up that the user chose, so it does not count.
    assert found["energy_window"] == pytest.approx(4e9)


def test_a_gpu_inside_a_step_at_each_reading_moves_nothing(tmp_path):
    lines = windows((4, 300.0, 0), *[(4, 300.0, 0)] * 4)
    for line in lines:
        line["energy"] = [line["energy"][0] + 250_000_000, line["energy"][1] + 125_000]
    assert values(read(tmp_path, lines))["energy_per_step"] == pytest.approx(150.0)


def test_pauses_are_in_no_energy_of_a_step(tmp_path):
    found = values(read(tmp_path, windows(*[(10, 100.0, 0), (10, 100.0, 3.0)] * 3)))
    assert found["energy_per_step"] == pytest.approx(50.0) and found["energy_window"] == pytest.approx(2e9)


def test_too_short_a_time_gives_no_energy_and_says_how_short(tmp_path):
    found = values(read(tmp_path, windows(*[(10, 50.0, 0)] * 4)))
    assert "energy_per_step" not in found and found["energy_window"] == pytest.approx(1.5e9)


@pytest.mark.parametrize(
    "change", [{"energy": None}, {"energy": [10**9, 5000]}, {"gpus": 2}], ids=["none", "backwards", "another GPU"]
)
def test_a_reading_that_does_not_fit_ends_a_window(tmp_path, change):
    lines = windows(*[(10, 100.0, 0)] * 3)
    lines[1] |= change
    assert "energy_per_step" not in values(read(tmp_path, lines))


@pytest.mark.parametrize("energy", [7, [1], [1, "x"], "x"])
def test_a_damaged_reading_drops_the_line(tmp_path, energy):
    lines = windows(*[(10, 100.0, 0)] * 4)
    lines[2]["energy"] = energy
    found = values(read(tmp_path, lines))
    assert "energy_per_step" not in found or found["energy_per_step"] == pytest.approx(50.0)


def test_the_energy_of_a_token_is_that_of_whole_requests(tmp_path):
    # A prompt of 64 and 9 further tokens for each of 4 sequences: 10 calls.
    tokens = ["LM 4x64", *["LM 4x1"] * 9] * 8
    found = values(read(tmp_path, windows(*[(10, 100.0, 0)] * 8, tokens=tokens)))
    # 500 W over 1 s for 40 tokens.
    assert found["energy_per_token"] == pytest.approx(12.5) and "energy_per_step" not in found


def test_a_token_that_took_long_is_in_no_energy(tmp_path):
    tokens = ["LM 4x64", *["LM 4x1"] * 99] * 4
    lines = windows(*[(100, 10.0, 0)] * 4, tokens=tokens)
    slow = lines[2]["wall_ns"]
    # One call takes 50 ms longer, and the driver counts in that time too.
    slow[50] += 50e6
    for line in lines[2:]:
        line["energy"] = [line["energy"][0] + 50_000_000, line["energy"][1] + 25_000]
    found = values(read(tmp_path, lines))
    # 500 W over 10 ms for 4 tokens.
    assert found["energy_per_token"] == pytest.approx(1.25, rel=1e-3)


# --- several processes -----------------------------------------------------------------------------------------------


def of_ranks(*ranks):
    rows = [
        metric_row("c", metric, value, "J", subject=f"rank {rank}")
        for rank, own in enumerate(ranks)
        for metric, value in own.items()
    ]
    return Tables(metrics=schema.frame(schema.METRICS, rows))


def test_the_energies_of_ranks_add_up():
    own = {"gpus_used": 1.0, "energy_per_step": 30.0, "energy_window": 5e9}
    found = job_tables.add_up_costs(of_ranks(own, {**own, "energy_per_step": 34.0, "energy_window": 4e9})).metrics
    assert values(found) == {"gpus_used": 2.0, "energy_per_step": 64.0, "energy_window": 4e9}
    assert set(found["subject"]) == {""}


def test_a_rank_without_energy_leaves_it_unknown():
    own = {"gpus_used": 1.0, "energy_per_step": 30.0}
    assert values(job_tables.add_up_costs(of_ranks(own, {"gpus_used": 1.0})).metrics) == {"gpus_used": 2.0}


def test_which_of_two_processes_works_on_a_token_is_unknown():
    own = {"gpus_used": 1.0, "energy_per_token": 3.0}
    assert values(job_tables.add_up_costs(of_ranks(own)).metrics)["energy_per_token"] == 3.0
    assert "energy_per_token" not in values(job_tables.add_up_costs(of_ranks(own, own)).metrics)


# --- FLOPs -----------------------------------------------------------------------------------------------------------

#: Counts by hand what a step of a GPT does: 6 N for each token and 12 L H Q T for attention (PaLM, appendix B).
GPT = """
import sys
sys.dont_write_bytecode = True
sys.path.insert(0, sys.argv[1])
import torch
from gpt import GPT
from torch.utils.checkpoint import checkpoint

how = sys.argv[2]
layers, heads, width, vocabulary, length, batch = 2, 4, 64, 500, 64, 2
model = GPT(vocabulary, length, layers, heads, width)
if how == "checkpoint":
    for block in model.blocks:
        block.forward = (lambda own: lambda x: checkpoint(own, x, use_reentrant=False))(block.forward)
run = torch.compile(model, backend="aot_eager") if how == "compile" else model
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
tokens = torch.randint(0, vocabulary, (batch, length))
for number in range(13):
    with torch.autocast("cpu", torch.bfloat16, enabled=how == "autocast"):
        loss = torch.nn.functional.cross_entropy(run(tokens).flatten(0, 1), tokens.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
if how == "compile":
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    assert torch._dynamo.eval_frame._stance.stance == "default"
assert not torch._C._len_torch_dispatch_stack()
matrices = [each.numel() for name, each in model.named_parameters() if each.ndim == 2 and "tokens" not in name]
of_attention = 12 * layers * width * length
print("hand", batch * length * (6 * (sum(matrices) - model.positions.weight.numel()) + of_attention))
"""


def hook_of_gpt(folder, how, **options):
    own = [str(ROOT / "examples" / "own_program"), how]
    return run_python(folder, GPT, *own, profiler="torch", **options)


@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    ["checkpoint", *(pytest.param(each, marks=pytest.mark.exhaustive) for each in ("eager", "autocast", "compile"))],
)
def test_the_flops_of_a_step_agree_with_a_hand_count(tmp_path, how):
    done = hook_of_gpt(tmp_path, how)
    assert done.returncode == 0, done.output
    by_hand = float(done.output.split("hand ")[1].split()[0])
    (tables,) = done.tables
    found = values(tables.metrics)
    dtype = "bfloat16" if how == "autocast" else "float32"
    assert found[f"model_flops.{dtype}"] == pytest.approx(by_hand, rel=0.001)
    # What is computed again is a forward pass of the blocks, or the scores in the backward pass of attention.
    again = found["model_flops_again"] / by_hand
    assert 0.15 < again < 0.4 if how == "checkpoint" else again < 0.05
    assert not [name for name in found if "unknown" in name or "missing" in name]
    assert len(done.traces) >= 1 and not done.notes


@pytest.mark.slow
def test_heads_that_share_keys_count_as_all_heads_with_the_formulas_of_older_torch(tmp_path):
    program = """
import torch, torch.utils.flop_counter as counter

def equal(original):
    def count(*shapes):
        assert len({shape[1] for shape in shapes}) == 1, "torch 2.11 wants equal heads"
        return original(*shapes)
    return count

for name in ("sdpa_flop_count", "sdpa_backward_flop_count"):
    setattr(counter, name, equal(getattr(counter, name)))
q = torch.ones(2, 8, 16, 32, requires_grad=True)
k = torch.ones(2, 2, 16, 32, requires_grad=True)
optimizer = torch.optim.SGD([q, k], lr=0.1)
for number in range(13):
    torch.nn.functional.scaled_dot_product_attention(q, k, k, enable_gqa=True).sum().backward()
    optimizer.step()
"""
    done = run_python(tmp_path, program, profiler="torch")
    assert done.returncode == 0, done.output
    (tables,) = done.tables
    found = values(tables.metrics)
    # Two products forward and four backward, of 2 x 8 heads.
    assert found["model_flops.float32"] == 6 * 2 * (2 * 8) * 16 * 16 * 32
    assert not [name for name in found if "unknown" in name or "missing" in name] and not done.notes


@pytest.mark.slow
def test_a_program_that_ends_too_soon_has_no_flops(tmp_path):
    (tables,) = hook_of_gpt(tmp_path, "eager", steps={"measure": 10}).tables
    assert values(tables.metrics) == {"model_flops_missing.ended": 1.0}


@pytest.mark.slow
def test_an_operator_without_a_formula_is_named_and_one_step_is_counted(tmp_path):
    program = """
import torch

@torch.library.custom_op("mine::product", mutates_args=())
def product(x: torch.Tensor) -> torch.Tensor:
    return x @ x

x = torch.ones(8, 8, requires_grad=True)
optimizer = torch.optim.SGD([x], lr=0.1)
for number in range(13):
    (x @ x).sum().backward()
    product(x.detach())
    optimizer.step()
"""
    done = run_python(tmp_path, program, profiler="torch")
    (tables,) = done.tables
    found = values(tables.metrics)
    assert found["model_flops_unknown.mine.product"] == 1 and found["model_flops.float32"] == 3 * 2 * 8**3


# --- the page --------------------------------------------------------------------------------------------------------


def study(*more, price=None, cases=("compile=false", "compile=true")):
    data, run = compiled()
    rows = [
        metric_row(case, metric, value, unit)
        for case in cases
        for metric, value, unit in (("gpus_used", 2.0, "1"), *more)
    ]
    run = {**run, "pipeline": {**run["pipeline"], **({"report": {"price": price}} if price else {})}}
    data = replace(data, metrics=pd.concat([data.metrics, schema.frame(schema.METRICS, rows)], ignore_index=True))
    return analyze(data, run), data, Manifest.parse({"name": "n", "started": "2026-11-23T09:51:00+00:00"})


ENERGY = (("energy_per_step", 33.2, "J"), ("energy_window", 7e9, "ns"))


def test_the_page_has_energy_and_money_of_a_step():
    findings, data, run = study(*ENERGY, price=2.5)
    section = step_times.costs(findings.workloads[0])
    (compiled, eager) = records(section.blocks[0])
    assert eager["J a step"] == "33.2" and eager["W"] == "1000" and eager["GPUs"] == "2"
    # 33.2 ms x 2 GPUs x 2.5 EUR / 3600 s, 8192 tokens a step.
    assert eager["EUR per 1000 steps"] == "0.0461" and eager["EUR per million tokens"] == "0.00563"
    assert eager["J per token"] == "0.00405" and compiled["EUR per 1000 steps"] == "0.0374"
    summary = written([section.summary])
    assert "over 7.00 s of steady steps" in summary and "Money: EUR 2.5 for an hour of a GPU." in summary
    case = results_json.document(findings, data, run)["cases"][1]
    assert case["energy"] == {"step": 33.2, "token": None, "item": pytest.approx(33.2 / 8192)}
    assert case["price"]["per_1000_steps"] == pytest.approx(1e3 * 0.0332 * 2 * 2.5 / 3600)


def test_an_energy_that_is_unknown_has_a_reason():
    section = step_times.costs(study(("energy_window", 1.2e9, "ns"))[0].workloads[0])
    (reason,) = section.blocks  # There is no table without a figure.
    assert "less than 2 s of steady steps (1.20 s)" in written([reason.content])
    assert "Energy: all" not in written([reason.content])


FLOPS = [
    ("model_flops.bfloat16", 6e12, "flop"),
    ("model_flops.float32", 1e12, "flop"),
    ("model_flops_again", 7e11, "flop"),
]


def with_flops(*more, gpu="NVIDIA H100 80GB HBM3", **options):
    data, run = compiled()
    rows = [metric_row("compile=false", "gpus_used", 2.0, "1")]
    rows += [metric_row("compile=false", *each, profiler="torch") for each in more]
    gpus = [{"name": gpu, "sm_count": 132, "compute_capability": [9, 0], "max_sm_clock_hz": 1_980_000_000}] * 2
    data = replace(data, metrics=pd.concat([data.metrics, schema.frame(schema.METRICS, rows)], ignore_index=True))
    return analyze(data, {**run, "machine": {"gpus": gpus}, **options}).workloads[0]


def test_the_utilisation_is_of_the_named_peak():
    section = step_times.costs(with_flops(*FLOPS))
    (row,) = records(section.blocks[0])
    # 7 TFLOP in 33.2 ms on two GPUs of 989.4 TFLOP/s.
    assert (row["TFLOP a step"], row["TFLOP/s a GPU"], row["MFU %"]) == ("7.00", "105.4", "10.7")
    summary = written([section.summary])
    assert "share of 989.4 TFLOP/s, dense bf16 by the data sheet of NVIDIA H100 80GB HBM3" in summary
    assert "computes again is not in it: 10.0 % more" in summary


def test_an_unknown_card_has_no_utilisation():
    section = step_times.costs(with_flops(*FLOPS, gpu="Made-up GPU"))
    (row,) = records(section.blocks[0])
    assert row["TFLOP/s a GPU"] == "105.4" and "MFU %" not in row
    assert "The peak of Made-up GPU is not known here, so there is no MFU." in written([section.summary])


def test_work_without_a_formula_makes_it_at_least():
    section = step_times.costs(with_flops(*FLOPS, ("model_flops_unknown.mine.<b>`x", 3.0, "1")))
    assert "at least so many, for the FLOPs of ``mine.<b>`x`` are unknown" in written([section.summary])


@pytest.mark.parametrize("why", ["compiled", "memory", "modes", "ended", "error"])
def test_flops_that_are_unknown_have_a_reason(why):
    section = step_times.costs(with_flops((f"model_flops_missing.{why}", 1.0, "1")))
    reason = written([section.blocks[0].content])
    assert reason.startswith("- FLOPs are unknown: ") and f": {why}." not in reason


def test_neither_energy_nor_price_is_no_section():
    findings, data, run = study()
    assert not step_times.costs(findings.workloads[0])
    assert results_json.document(findings, data, run)["cases"][0]["energy"]["step"] is None


# --- the price -------------------------------------------------------------------------------------------------------


def test_the_price_is_a_setting_that_the_pipeline_file_of_the_run_repeats(tmp_path):
    profpipe(tmp_path, "run", "-p", "plain", "--price", "2.5", "--", sys.executable, "-c", "print(1)")
    (path,) = (tmp_path / "out").glob("latest/pipeline.yaml")
    assert yaml.safe_load(path.read_text(encoding="utf-8"))["report"] == {"price": 2.5}
    run = json.loads((path.parent / "run.json").read_text(encoding="utf-8"))
    assert run["pipeline"]["report"]["price"] == 2.5


@pytest.mark.parametrize("price", ["0", "-1", "nan", "x"])
def test_a_wrong_price_is_refused(tmp_path, price):
    profpipe(tmp_path, "run", "--price", price, "--", "true", exit_code=2)


# --- pairs -----------------------------------------------------------------------------------------------------------


def with_energy(data, ratios, joules=40.0):
    """The tables with the energy of a step in each pair: B over A."""
    rows = [
        {**metric_row("c", "energy_per_step", value, "J"), "run": "r", "subject": f"pair {number} {side}", "n": 9}
        for number, ratio in enumerate(ratios, start=1)
        for side, value in (("A", joules), ("B", joules * ratio))
    ]
    return replace(data, metrics=pd.concat([data.metrics, schema.frame(schema.METRICS, rows)], ignore_index=True))


def noise(count, spread, seed):
    rng = random.Random(seed)
    return [1 + rng.gauss(0, spread) for _ in range(count)]


def test_energy_has_a_verdict_beside_that_of_time():
    data = with_energy(tables_of({"c": noise(8, 0.001, 1)}), [0.9 * each for each in noise(8, 0.002, 2)])
    (case,) = pairs.analyze(data, run_of(gate=5)).cases
    assert case.verdict is Verdict.SAME and case.energy.verdict is Verdict.FASTER
    page = page_of(data, run_of())
    assert "| `w/c` | less | 40.0 | " in page and "| a step | -10." in page
    document = results_json.case_document(case)
    assert document["energy"]["metric"] == "energy_per_step" and document["energy"]["verdict"] == "faster"


def test_more_energy_fails_no_gate():
    data = with_energy(tables_of({"c": noise(8, 0.001, 1)}), [1.5] * 8)
    assert not pairs.analyze(data, run_of(gate=5)).gate.failed


def test_a_side_without_energy_is_not_judged():
    data = tables_of({"c": [1.0] * 8})
    (case,) = pairs.analyze(data, run_of()).cases
    assert case.energy is None and results_json.case_document(case)["energy"] is None
    of_a = with_energy(data, [1.0] * 8)
    of_a = replace(
        of_a, metrics=of_a.metrics[~((of_a.metrics["unit"] == "J") & of_a.metrics["subject"].str.endswith("B"))]
    )
    assert pairs.analyze(of_a, run_of()).cases[0].energy is None


def test_noise_between_processes_of_the_same_code_is_no_verdict_on_energy():
    changed = 0
    for seed in range(200):
        data = with_energy(tables_of({"c": [1.0] * 8}), noise(8, 0.02, seed))
        changed += pairs.analyze(data, run_of()).cases[0].energy.verdict in (Verdict.FASTER, Verdict.SLOWER)
    assert changed <= 4
