"""The time of the modules of a program: known factors, the join of backward and forward passes, and the page."""

import json

import pandas as pd
import pytest
from hooked import run_python
from report_study import analyze, case_row, kernel_row, tables, written

from profpipe.analysis.modules import find_modules
from profpipe.ingest import reader
from profpipe.report import results_json
from profpipe.report.sections import modules
from profpipe.results import schema
from profpipe.results.manifest import Manifest
from profpipe.results.schema import Tables

#: Layers with 1, 4 and 16 times the work, one that is used twice, and one that torch.compile makes a function of.
TRAINING = """
import sys
import torch
torch.manual_seed(0)
torch.set_num_threads(1)

class Layer(torch.nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.up = torch.nn.Linear(256, 64 * factor)
        self.down = torch.nn.Linear(64 * factor, 256)
    def forward(self, x):
        return self.down(self.up(x))

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(Layer(factor) for factor in (1, 4, 16))
        self.small = torch.nn.Sequential(torch.nn.Linear(256, 8), torch.nn.Linear(8, 256))
        self.again = self.small
        self.compiled = torch.compile(torch.nn.Sequential(torch.nn.Linear(256, 8), torch.nn.Tanh()), backend="eager")
    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.compiled(self.again(self.small(x)))

model, call = torch.nn.DataParallel(Model()), torch.nn.Module.__call__
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for number in range(int(sys.argv[1])):
    optimizer.zero_grad()
    model(torch.ones(4096, 256)).square().mean().backward()
    optimizer.step()
    print("iteration", number, flush=True)
print("untouched", torch.nn.Module.__call__ is call)
"""


def read(path):
    return reader.parse(reader.choose(path, reader.parsers()), path)


@pytest.mark.slow
def test_the_time_of_layers_follows_their_known_factors_and_the_rows_add_up_to_all_time(tmp_path):
    pytest.importorskip("torch")
    done = run_python(tmp_path, TRAINING, "14", profiler="torch")
    assert done.returncode == 0 and "untouched True" in done.output and not done.notes, done.output + done.notes
    (found,) = map(read, done.traces)
    rows = found.modules.set_index(["module", "part"])
    assert set(rows["steps"]) == {3} and (rows["self_ns"] <= rows["total_ns"] + 1).all()
    for part in ("forward", "backward"):
        small, middle, large = (rows["total_ns"][f"Model.layers.{number}", part] for number in range(3))
        # A busy machine moves the ratios of 4 and 16. What is exact stands below, in traces of a GPU.
        assert small < middle < large and 4 < large / small < 64
    inside = [f"Model.layers.{number}.{name}" for number in range(3) for name in ("up", "down")]
    assert {name for name, _ in rows.index} == {
        "", "Model", *(f"Model.layers.{number}" for number in range(3)), *inside,
        "Model.small", "Model.small.0", "Model.small.1", "Model.compiled",
    }  # fmt: skip
    assert rows["type"]["Model.compiled", "forward"] == "Sequential"
    assert rows["compiled_ns"]["Model.compiled", "backward"] > 0 and not rows["compiled_ns"]["Model.small.0", "forward"]
    optimizer = rows["self_ns"]["", "optimizer"]
    assert optimizer > 0 and rows["total_ns"]["Model", "forward"] == pytest.approx(
        rows.xs("forward", level="part")["self_ns"].sum()
    )
    # The other tables hold the chosen steps alone.
    assert len(found.steps) == 4 and not found.ranges["range"].str.contains("profpipe.module").any()
    assert found.kernels.loc[found.kernels["kernel"] == "aten::mm", "calls"].sum() % 4 == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("iterations", "measured"), [pytest.param("6", 0, marks=pytest.mark.exhaustive), ("7", 0), ("9", 2)]
)
def test_a_program_that_ends_early_has_the_modules_of_the_steps_that_it_made(tmp_path, iterations, measured):
    pytest.importorskip("torch")
    done = run_python(tmp_path, TRAINING, iterations, profiler="torch", steps={"warmup": 1})
    assert done.returncode == 0 and len(done.traces) == 1 and not done.notes, done.output + done.notes
    (found,) = map(read, done.traces)
    assert len(found.steps) == 4 and set(found.modules["steps"]) == ({measured} if measured else set())


GENERATION = """
import sys
import torch
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU())
with torch.no_grad():
    for _ in range(int(sys.argv[1])):
        model(torch.ones(8, 64))
        print("iteration", flush=True)
"""


@pytest.mark.slow
def test_calls_of_a_model_are_whole_steps_and_the_program_stops_after_those_with_modules(tmp_path):
    pytest.importorskip("torch")
    done = run_python(tmp_path, GENERATION, "100", profiler="torch", steps={"forward": True, "stop": True})
    assert done.returncode == 0 and done.output.count("iteration") == 2 + 4 + 1 + 3 + 1, done.output
    (found,) = map(read, done.traces)
    rows = found.modules.set_index("module")
    assert set(rows["part"]) <= {"forward", "other"}
    assert set(rows.index) - {""} == {"Sequential", "Sequential.0", "Sequential.1"}
    assert rows["total_ns"]["Sequential"] == pytest.approx(rows["self_ns"].drop("", errors="ignore").sum())


# --- traces of a GPU -------------------------------------------------------------------------------------------------


def event(name, ts, dur, tid=1, cat="cpu_op", **args):
    return {"ph": "X", "cat": cat, "name": name, "pid": 100, "tid": tid, "ts": ts, "dur": dur, "args": args}


def call(name, ts, dur, tid=1):
    return event(f"{schema.MODULE_PREFIX}{name}", ts, dur, tid)


def operator(ts, sequence, tid=1, name="aten::mm"):
    return event(name, ts, 1, tid, **{"Sequence number": sequence, "Fwd thread id": 0})


def node(ts, dur, sequence, forward, name="MmBackward0"):
    numbers = {"Sequence number": sequence, "Fwd thread id": forward}
    return event(f"autograd::engine::evaluate_function: {name}", ts, dur, 2, **numbers)


def kernel(number, ts, us, tid=1):
    launch = event("cudaLaunchKernel", ts, 0.5, tid, "cuda_runtime", correlation=number)
    work = event(f"kernel {number}", 1000 + 50 * number, us, 7, "kernel", correlation=number, device=0, stream=7)
    return [launch, {**work, "pid": 0}]


def parsed(folder, *events):
    flat = [each for one in events for each in (one if isinstance(one, list) else [one])]
    path = folder / "trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": flat}))
    found = read(path)
    assert found.kernels["kernel"].tolist() == ["kernel 0"] and found.origin.launches == 1
    return found.modules.set_index(["module", "part"])


#: A chosen step, and two with ranges of modules, of which the first does not count.
STEP = [
    event("profpipe.step:optimizer:7", -100, 80, cat="user_annotation"), *kernel(0, -90, 10),
    event("profpipe.modules:optimizer:8", -10, 10, cat="user_annotation"), *kernel(99, -5, 100),
    event("profpipe.modules_end", 0, 0, cat="user_annotation"),
    event("profpipe.modules:optimizer:9", 0, 500, cat="user_annotation"),
    event("profpipe.modules_end", 500, 0, cat="user_annotation"),
]  # fmt: skip
#: Model calls A and then B. The optimizer has a range.
CALLS = [call("M:M", 10, 90), call("M.a:A", 20, 30), call("M.b:B", 60, 30),
         event("Optimizer.step#Adam.step", 300, 50, cat="user_annotation")]  # fmt: skip


def test_each_kernel_belongs_to_the_module_of_its_launch_or_of_its_node(tmp_path):
    rows = parsed(
        tmp_path, STEP, CALLS,
        # The last operator that shows a number made its node: `aten::linear` of A shows that of B's product too.
        operator(25, 5), operator(45, 6, name="aten::size"), operator(65, 6),
        kernel(1, 26, 10), kernel(2, 66, 20), kernel(3, 95, 1), kernel(4, 105, 2),
        node(200, 10, 6, forward=3), node(220, 10, 5, forward=3),
        node(240, 10, 2**40, forward=0, name="torch::autograd::AccumulateGrad"),
        kernel(5, 205, 40, tid=2), kernel(6, 225, 30, tid=2), kernel(7, 245, 4, tid=2), kernel(8, 310, 7),
        kernel(9, 700, 1000),
    )  # fmt: skip
    own = {key: us * 1000 for key, us in {
        ("M.a", "forward"): 10, ("M.b", "forward"): 20, ("M", "forward"): 1, ("", "other"): 2,
        ("M.b", "backward"): 40, ("M.a", "backward"): 30, ("", "backward"): 4, ("", "optimizer"): 7,
        ("M", "backward"): 0,
    }.items()}  # fmt: skip
    assert rows["self_ns"].to_dict() == own
    assert rows["total_ns"]["M", "forward"] == 31e3 and rows["total_ns"]["M", "backward"] == 70e3
    assert rows["type"]["M.a", "forward"] == "A" and set(rows["process"]) == {100}


def test_threads_that_count_alike_are_told_apart_and_a_repeated_forward_pass_is_a_part_of_the_backward_pass(tmp_path):
    rows = parsed(
        tmp_path, STEP, CALLS,
        operator(25, 5), operator(65, 6),
        # Activation checkpointing calls A again inside the backward pass, whose thread has counted to 5 itself.
        node(200, 100, 6, forward=1, name="CheckpointFunctionBackward"),
        call("M.a:A", 210, 30, tid=2), operator(215, 5, tid=2), kernel(1, 216, 10, tid=2),
        node(250, 20, 5, forward=2), kernel(2, 255, 20, tid=2),
        node(320, 20, 5, forward=1), kernel(3, 325, 40, tid=2),
        kernel(4, 26, 1),
    )  # fmt: skip
    assert rows["self_ns"]["M.a", "backward"] == 70e3 and rows["self_ns"]["M.a", "forward"] == 1e3


def test_kernels_of_compiled_functions_belong_to_the_module_that_called_them(tmp_path):
    region = event("Torch-Compiled Region: 0/0", 22, 20)
    rows = parsed(
        tmp_path, STEP, CALLS, region, operator(25, 5, name="CompiledFunction"), kernel(1, 26, 10), kernel(2, 45, 3),
        node(200, 10, 5, forward=1, name="CompiledFunctionBackward"), kernel(3, 205, 20, tid=2),
        event("Torch-Compiled Region: 1/0", 400, 20), kernel(4, 405, 5),
    )  # fmt: skip
    assert rows["compiled_ns"].to_dict() == {
        ("M.a", "forward"): 10e3, ("M", "forward"): 0, ("M.a", "backward"): 20e3, ("M", "backward"): 0,
        ("", "other"): 5e3,
    }  # fmt: skip
    assert rows["self_ns"]["M.a", "forward"] == 13e3


def test_steps_that_call_the_model_with_other_tokens_have_no_common_mean(tmp_path):
    numbered = [("M 1x512", 0, 1), ("M 1x1", 200, 2), ("M 1x1", 400, 3), ("M 1x512", 600, 4)]
    steps = [event(f"profpipe.modules:forward:{ts} {call}", ts, 100, cat="user_annotation") for call, ts, _ in numbered]
    ends = [event("profpipe.modules_end", ts + 100, 0, cat="user_annotation") for _, ts, _ in numbered[:3]]
    calls = [[call("M:M", ts, 90), *kernel(number, ts + 10, 10 * number)] for _, ts, number in numbered]
    rows = parsed(tmp_path, STEP[:3], *calls, steps, ends)
    assert rows["self_ns"].to_dict() == {("M", "forward"): 25e3} and set(rows["steps"]) == {2}


def test_a_trace_without_a_whole_step_has_no_modules(tmp_path):
    assert parsed(tmp_path, STEP[:-1], CALLS, kernel(1, 26, 10)).empty


# --- the page --------------------------------------------------------------------------------------------------------


def row(module, type, part, own_us, total_us, source="r0", **more):
    times = {"self_ns": own_us * 1e3, "total_ns": total_us * 1e3, "compiled_ns": 0.0, "steps": 3, **more}
    return {"workload": "w", "case": "impl=a", "profiler": "torch", "source": source, "module": module,
            "type": type, "part": part, **times}  # fmt: skip


def model(layers, **more):
    rows = [
        row("M", "Model", "forward", 1, 1 + sum(layers)),
        row("", "", "optimizer", 5, 5),
        row("", "", "other", 2, 2),
    ]
    for number, us in enumerate(layers):
        rows += [row(f"M.h.{number}", "Layer", "forward", us, us, **more)]
        rows += [row(f"M.h.{number}", "Layer", "backward", 2 * us, 2 * us, **more)]
    return schema.frame(schema.MODULES, rows)


def test_layers_that_take_as_long_are_one_row_and_others_stand_alone():
    alike, different = (find_modules(model(layers), "impl=a") for layers in ([10, 11, 12], [10, 40, 160]))
    assert alike is not None and different is not None
    assert [(each.name, each.count) for each in alike.modules] == [("M.h.*", 3), ("M", 1)]
    assert [each.name for each in different.modules] == ["M.h.2", "M", "M.h.1", "M.h.0"]
    (layer, _) = alike.types
    assert (layer.name, layer.count, layer.forward_ns, layer.backward_ns) == ("Layer", 3, 33e3, 66e3)
    assert alike.total_ns == layer.ns + 1e3 + alike.optimizer_ns + alike.outside.ns


def test_the_times_of_several_processes_are_their_mean():
    two = pd.concat([model([10]), model([20]).assign(source="r1")])
    found = find_modules(two, "impl=a")
    assert found is not None and found.processes == 2 and found.types[0].forward_ns == 15e3


def test_the_page_and_the_results_have_the_modules():
    data = tables([case_row("impl=a", "torch")], [kernel_row("impl=a", "gemm", 3, 3e6, profiler="torch")])
    data = Tables(cases=data.cases, kernels=data.kernels, modules=model([10, 40], compiled_ns=40_000.0))
    findings = analyze(data, {})
    text = written(modules.modules(findings.workloads[0]))
    assert "| `Layer` (compiled) | 2 | 50.0 | 100.0 | 150.0 | 94.9 |" in text
    assert "| the optimizer | – | – | – | 5.00 | 3.2 |" in text and "| `M.h.1` | `Layer`" in text and "158" in text
    (case,) = results_json.document(findings, data, Manifest.parse({"name": "made-up"}))["cases"]
    found = case["modules"]
    assert (found["steps"], found["time"], found["optimizer"]) == (3, 158e3, 5e3)
    assert found["types"]["Layer"] == {
        "count": 2,
        "forward": 50e3,
        "backward": 100e3,
        "own": 150e3,
        "is_compiled": True,
    }
    assert [each["module"] for each in found["largest"]] == ["M.h.1", "M", "M.h.0"]
