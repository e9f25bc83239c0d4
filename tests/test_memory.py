"""The memory of a GPU: snapshots of torch 2.11 on an H200, whose counters are known, and programs under the hook."""

import bisect
import gzip
import itertools
import json
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from profpipe import cli
from profpipe.analysis.memory import find_fit, find_leading, find_memory
from profpipe.ingest import memory, torch_snapshot
from profpipe.runner import failure_reasons

DATA = Path(__file__).parent / "data" / "torch-2.11" / "memory"
NAMES = sorted(path.name.partition(".")[0] for path in DATA.glob("*.pickle.gz"))
MIB = 1 << 20


def read(name):
    snapshot = torch_snapshot.read_snapshot(DATA / f"{name}.memory.pickle.gz")
    return snapshot, json.loads(snapshot["profpipe"])


def read_facts(path):
    return json.loads(torch_snapshot.read_snapshot(path)["profpipe"])


def case_memory(snapshot, facts):
    tables = memory.make_tables(snapshot, facts, "")
    return find_memory(tables.memory.assign(case="c", source="s"), "c"), tables.origin.notes


@pytest.mark.parametrize("name", NAMES)
def test_the_parts_of_a_peak_add_up_to_the_counter_of_torch(name):
    snapshot, facts = read(name)
    of_case, notes = case_memory(snapshot, facts)
    assert of_case.sum_parts("peak").sum() == facts["devices"]["0"]["allocated_bytes.all.peak"]
    assert notes == ()


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("hook")])
def test_the_bytes_in_use_are_those_that_torch_counted_at_any_moment(name):
    snapshot, facts = read(name)
    trace = snapshot["device_traces"][0]
    _, allocated, _ = memory.replay(snapshot["segments"], trace, memory.StackReader(""), len(trace))
    times = [entry["time_us"] for entry in trace]
    # What follows a failure came after the snapshot.
    marks = [mark for mark in facts["marks"] if times[0] <= mark[1] and not (mark[0] == "end" and name[:3] == "oom")]
    assert [allocated[bisect.bisect_right(times, at) - 1] for _, at, _ in marks] == [size for *_, size in marks]


def test_a_contradiction_with_the_counters_is_a_note():
    snapshot, facts = read("gpt")
    counters = facts["devices"]["0"]
    # The program may have reset the peak.
    counters["allocated_bytes.all.peak"] -= 512
    assert case_memory(snapshot, facts)[1] == ()
    counters["allocated_bytes.all.peak"] += 1024
    assert case_memory(snapshot, facts)[1] == (
        "the blocks are 248945152 bytes at the peak and 127878656 at the end; torch counted 248945664 and 127878656",
    )


def test_a_peak_is_divided_by_what_holds_it():
    parts = case_memory(*read("gpt"))[0].sum_parts("peak").astype(int).to_dict()
    parameters = 4_934_280 * 4
    assert parts["parameters"] == parameters
    assert parts["optimizer"] == 2 * parameters
    # The gradients of the head are there when the peak comes, early in the backward pass.
    assert parts["gradients"] == 5_140_000
    assert parts["workspace"] == 65 * MIB
    assert parts["activations"] == pytest.approx(51.5e6, rel=0.01)


def test_each_pass_has_its_peak():
    of_case = case_memory(*read("gpt"))[0]
    passes = dict(zip(of_case.at("pass")["part"], of_case.at("pass")["bytes"] / MIB, strict=True))
    assert passes == pytest.approx({"before": 122.0, "forward": 192.0, "backward": 237.4, "optimizer": 159.6}, abs=0.1)
    assert passes["backward"] * MIB == of_case.sum_parts("peak").sum()
    # Without steps the passes are those of the whole trace, and the memory before is that of its begin.
    snapshot, facts = read("gpt")
    trace = snapshot["device_traces"][0]
    blocks, _, _ = memory.replay(snapshot["segments"], trace, memory.StackReader(""), len(trace))
    whole = case_memory(snapshot, {**facts, "steps": []})[0].at("pass")
    assert whole["bytes"].iloc[0] == blocks.loc[blocks["begin"] < 0, "size"].sum()


def test_without_facts_stacks_and_the_ends_of_optimizers_say_the_same():
    snapshot, facts = read("gpt")
    with_facts, without = case_memory(snapshot, facts)[0], case_memory(snapshot, {})[0]
    for part in ("parameters", "optimizer", "gradients", "workspace", "activations", "temporary"):
        assert without.sum_parts("peak")[part] == pytest.approx(with_facts.sum_parts("peak")[part], rel=0.01)


def test_the_deepest_module_with_a_quarter_of_the_peak_leads():
    assert find_leading(case_memory(*read("conv"))[0]) == (
        "activations",
        "GPT.c.*.*",
        "snap.py:42",
        pytest.approx(0.416, abs=1e-3),
    )


def test_the_parts_of_two_batches_tell_the_peak_of_a_third_one():
    cases = {batch: case_memory(*read(name))[0] for batch, name in ((4, "gpt_b4"), (8, "gpt"), (16, "gpt_b16"))}
    fit = find_fit([(batch, cases[batch]) for batch in (4, 8)])
    assert fit.fixed + 16 * fit.slope == pytest.approx(cases[16].sum_parts("peak").sum(), rel=0.05)
    assert set(fit.growing) == {"activations", "temporary", "gradients"}
    assert 0 < fit.least <= fit.most
    assert find_fit([(4, cases[4]), (4, cases[8])]) is None


def test_the_largest_batch_that_ran_is_in_the_range_that_fits():
    # With 4000 MiB batches of 77 ran on the GPU.
    cases = [(batch, case_memory(*read(f"hook_unet_{batch}"))[0]) for batch in (4, 8)]
    fit = find_fit(cases)
    assert cases[1][1].facts["room"] == 4000 * MIB
    assert (fit.least, fit.most) == (62, 80)
    assert fit.fixed + 16 * fit.slope == pytest.approx(
        case_memory(*read("hook_unet_16"))[0].sum_parts("peak").sum(), rel=0.05
    )


SAID = {
    "hook_leak": [
        "Each step leaves 112.8 MiB behind, 60.0 MiB of it from benchmarks/memory_models.py:35, called at"
        " benchmarks/memory_models.py:143."
    ],
    "hook_backward": ["Out of memory in the backward pass: backward at memory_models.py:153 asked for 250.0 MiB"],
    "hook_other": ["Other processes and CUDA contexts hold 137.5 GiB of the GPU."],
    "hook_search": ["Out of memory in the forward pass: GPT.h.5.mlp.0 at", "Checkpointing of GPT.h.* would free up to"],
    "leak": ["Each step leaves 49.3 MiB behind, 30.1 MiB of it from snap.py:31, called at snap.py:86."],
    "oom_forward": [
        "Out of memory in the forward pass: GPT.h.2.mlp.1 at snap.py:31 asked for 4096 KiB, and 2048 KiB of 100.0 MiB"
        " were free. Held: activations 45.1 MiB, cuBLAS workspaces 32.0 MiB, parameters 18.8 MiB",
        "Checkpointing of GPT.h.* would free up to 28.3 MiB.",
        "Autocast to bfloat16 would free up to 23.2 MiB of activations.",
    ],
    "oom_optimizer": ["Out of memory in the step of the optimizer: _init_group at snap.py:84 asked for 768.0 KiB"],
    "oom_fragment": [
        "torch has 198.2 MiB free, in pieces of at most 17.0 MiB, which are too small."
        " PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True can join them.",
    ],
}


@pytest.mark.parametrize("name", SAID)
def test_the_first_screen_says_what_is_wrong(name, tmp_path, capsys):
    assert cli.main(["ingest", str(DATA / f"{name}.memory.pickle.gz"), "--out", str(tmp_path / "out")]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert [words for words in SAID[name] if words not in printed] == []
    page = (tmp_path / "out" / "SUMMARY.md").read_text()
    assert ("| cuBLAS workspaces |" in page) == (name != "oom_fragment")
    (picture,) = (tmp_path / "out" / "plots").iterdir()
    if name == "oom_fragment":
        # Nothing is allocated for seconds: a corner, and no slope, is in between.
        corners = re.search(r'd="M([^z]+)z"', picture.read_text())[1].split("L")
        assert all(one.split()[0] == next_one.split()[0] or one.split()[1] == next_one.split()[1]
                   for one, next_one in itertools.pairwise(corners))  # fmt: skip


def test_two_snapshots_are_compared_by_the_parts_of_their_peaks(tmp_path, capsys):
    sides = [str(DATA / f"{name}.memory.pickle.gz") for name in ("gpt", "leak")]
    assert cli.main(["compare", *sides]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "is 237.4 MiB in A and 390.7 MiB in B, tensors kept between calls +98.3 MiB of it." in printed
    assert "activations 49.1 98.3 +49.1" in printed
    assert cli.main(["compare", *sides, "--json", str(tmp_path / "c.json")]) == 0
    (peaks,) = json.loads((tmp_path / "c.json").read_text())["memory"].values()
    assert peaks["parameters"] == {"a": 4_934_280 * 4, "b": 4_934_280 * 4}


def entries(*given):
    names = ("action", "addr", "size")
    return [
        dict(zip(names, entry, strict=True), frames=[{"filename": "a.py", "line": 1, "name": "f"}]) for entry in given
    ]


def sizes(trace, segments=()):
    blocks, allocated, _ = memory.replay(segments, entries(*trace), memory.StackReader(""), len(trace))
    return blocks["size"].tolist(), allocated


def test_the_rest_of_a_large_block_that_is_too_small_to_divide_belongs_to_it():
    trace = [("segment_alloc", 1 << 40, 20 * MIB), ("alloc", 1 << 40, 19 * MIB + 1), ("free_completed", 1 << 40, 0),
             ("alloc", 1 << 40, 19 * MIB - 512)]  # fmt: skip
    assert sizes(trace) == ([20 * MIB, 19 * MIB - 512], [0, 20 * MIB, 0, 19 * MIB - 512])


def test_mapped_pages_are_one_range_until_one_of_them_is_taken_back():
    trace = [("segment_map", 1 << 40, 2 * MIB), ("segment_map", (1 << 40) + 2 * MIB, 2 * MIB),
             ("alloc", 1 << 40, 3 * MIB), ("free_requested", 1 << 40, 3 * MIB), ("free_completed", 1 << 40, 3 * MIB),
             ("segment_unmap", (1 << 40) + 2 * MIB, 2 * MIB), ("alloc", 1 << 40, 2 * MIB - 100)]  # fmt: skip
    assert sizes(trace) == ([3 * MIB, 2 * MIB], [0, 0, 3 * MIB, 0, 0, 0, 2 * MIB])


def test_what_was_in_use_before_the_trace_is_found_by_going_back():
    block = {"address": 1 << 40, "size": 1024, "requested_size": 600, "state": "active_allocated"}
    rest = {"address": (1 << 40) + 1024, "size": 2 * MIB - 1024, "requested_size": 0, "state": "inactive"}
    segments = [{"address": 1 << 40, "total_size": 2 * MIB, "blocks": [block, rest]}]
    freed = [("free_requested", (1 << 40) + 1024, 512), ("free_completed", (1 << 40) + 1024, 512)]
    assert sizes(freed, segments) == ([1024, 512], [1024, 1024])


def test_what_is_given_back_after_a_forward_pass_is_kept_only_beyond_the_next_one():
    """Autocast converts weights until the pass has ended; a cache of keys and values lives through more passes."""
    rows = [
        ("weights", "forward", 0, 3),
        ("cache", "forward", 1, 6),
        ("loss", "other", 2, 3),
        ("next", "forward", 4, 5),
    ]
    blocks = pd.DataFrame(rows, columns=["operator", "during", "begin", "end"])
    blocks = blocks.assign(address=blocks.index, size=512, module="", is_inner=True)
    for steps in ([0, 4], [0], []):
        assigned, _ = memory.assign_parts(blocks, 8, steps, {}, [])
        assert assigned["part"].tolist() == ["temporary", "kept", "other", "temporary"]


def test_damaged_facts_are_refused(tmp_path, capsys):
    (tmp_path / "a.pickle").write_bytes(pickle.dumps({"segments": [], "device_traces": [], "profpipe": "{"}))
    assert cli.main(["ingest", str(tmp_path / "a.pickle")]) == 1
    assert "cannot be trusted: the parser torch_snapshot.py fails on it: JSONDecodeError" in capsys.readouterr().err


def test_a_snapshot_that_maps_more_than_any_gpu_has_is_refused(tmp_path, capsys):
    segment = {"device": 0, "address": 0, "total_size": 1 << 60, "is_expandable": True, "blocks": []}
    snapshot = {"segments": [segment], "device_traces": [[]]}
    (tmp_path / "s.pickle").write_bytes(pickle.dumps(snapshot))
    assert cli.main(["ingest", str(tmp_path / "s.pickle")]) == 1
    assert "ValueError: more than 2 TB of memory are mapped" in capsys.readouterr().err


def test_the_amounts_of_a_failure_stay_and_its_advice_goes():
    line = (
        "exit code 1: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total"
        " capacity of 79.10 GiB of which 1.25 GiB is free"
    )
    assert failure_reasons.describe_gpu_memory(f"{line}. Including non-PyTorch memory, this process") == line
    assert failure_reasons.describe_gpu_memory("exit code 1: RuntimeError: no memory") == ""


def test_frames_of_cpp_change_nothing():
    snapshot, facts = read("gpt")
    before = case_memory(snapshot, facts)[0].at("peak")
    native = [{"filename": "??", "line": 0, "name": "torch::unwind::unwind()"},
              {"filename": "/src/Python/ceval.c", "line": 5, "name": "_PyEval_EvalFrameDefault"}]  # fmt: skip
    for entry in snapshot["device_traces"][0]:
        entry["frames"] = [*native, *entry.get("frames", ()), *native]
    after = case_memory(snapshot, facts)[0].at("peak")
    pd.testing.assert_frame_equal(before, after)


def test_without_stacks_no_pass_is_said():
    snapshot, _ = read("gpt")
    for entry in [*snapshot["device_traces"][0], *(b for s in snapshot["segments"] for b in s["blocks"])]:
        entry.pop("frames", None)
    parts = case_memory(snapshot, {})[0].sum_parts("peak")
    assert set(parts.index) <= {"other", "workspace", "rounding"}
    assert parts.sum() == 248_945_152


def test_a_gpu_that_is_not_used_has_no_rows():
    snapshot, facts = read("gpt")
    snapshot["device_traces"].append([])
    assert set(memory.make_tables(snapshot, facts, "").memory["device"]) == {0}


def test_a_failure_without_facts_has_no_free_memory_and_short_names_of_files(tmp_path, capsys):
    snapshot, _ = read("oom_forward")
    del snapshot["profpipe"]
    (tmp_path / "a.pickle").write_bytes(pickle.dumps(snapshot))
    assert cli.main(["ingest", str(tmp_path / "a.pickle")]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "at snap.py:31 asked for 4096 KiB. Held: activations 45.1 MiB, cuBLAS workspaces 32.0 MiB" in printed


def test_a_history_that_lost_its_begin_says_so_and_still_names_a_leak():
    snapshot, facts = read("hook_leak")
    trace = snapshot["device_traces"][0]
    del trace[: len(trace) // 2]
    of_case, notes = case_memory(snapshot, {**facts, "most_entries": len(trace)})
    assert notes == (f"the history holds the last {len(trace):,} events only: an earlier peak is not in it",)
    assert of_case.at("growth")["bytes"].sum() / MIB == pytest.approx(112.8, abs=0.1)


def test_what_others_hold_at_a_failure_is_not_reckoned_by_the_counters_of_the_end():
    snapshot, facts = read("oom_fragment")
    before = case_memory(snapshot, facts)[0].at("failure")
    facts["devices"]["0"]["reserved_bytes.all.current"] = 0
    after = case_memory(snapshot, facts)[0].at("failure")
    assert before["bytes"].tolist() == after["bytes"].tolist()


def test_a_value_that_ran_fits():
    small, large = (case_memory(*read(name))[0] for name in ("gpt_b4", "gpt"))
    # The smaller one leaves much unused, so the larger one would hardly fit.
    rows = small.at("peak").assign(bytes=lambda rows: rows["bytes"].mask(rows["part"] == "cached", 4e9))
    facts = {**large.facts, "room": large.sum_parts("peak").sum() * 1.1}
    small, large = small._replace(rows={**small.rows, "peak": rows}), large._replace(facts=facts)
    fit = find_fit([(4, small), (8, large)])
    assert fit.least == 8 <= fit.most


# --- programs --------------------------------------------------------------------------------------------------------

#: No GPU is here: what torch has of one is replaced, and its snapshot is a recorded one.
STAND_IN = """
import pickle, sys, torch
library = torch.cuda
metadata, observers = [""], []
library.memory._record_memory_history = lambda *args, **kwargs: print("history:", args, kwargs)
library.memory._snapshot = lambda: pickle.load(open(sys.argv[1], "rb"))
torch._C._cuda_attach_out_of_memory_observer = observers.append
torch._C._cuda_setMemoryMetadata = lambda text: metadata.__setitem__(0, text)
torch._C._cuda_getMemoryMetadata = lambda: metadata[0]
library.device_count = lambda: 1
library.max_memory_reserved = lambda device: 1
library.reset_peak_memory_stats = lambda device: print("the peak counts from here")
library.memory_stats = lambda device: {"reserved_bytes.all.current": 1 << 30}
library.get_per_process_memory_fraction = lambda device: 1.0
library.mem_get_info = lambda device: (1 << 30, 4 << 30)
for call, _ in list(library._queued_calls):
    if "AllocatorHistory" in call.__qualname__:
        call()
"""
TRAINING = """
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.h = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU())
    def forward(self, x):
        return self.h(x)
model = Model()
seen = []
model.h[1].register_forward_pre_hook(lambda *args: seen.append(metadata[0]))
optimizer = torch.optim.Adam(model.parameters())
library.memory._record_memory_history(enabled=None)
for _ in range(30):
    torch.set_autocast_enabled("cuda", True)
    loss = model(torch.ones(4, 8)).sum()
    torch.set_autocast_enabled("cuda", False)
    loss.backward()
    optimizer.step()
print("inside", set(seen), "after", metadata)
"""
FAILING = """
for observer in observers:
    observer(0, 32 << 20, 400 << 20, 28 << 20)
raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 32.00 MiB. GPU 0 has a total capacity of 139.80 GiB"
                             " of which 133.36 GiB is free. Process 7 has 548.00 MiB memory in use. " + 9 * "More. ")
"""


def run(folder, program, *options, snapshot="oom_fragment"):
    (folder / "prog.py").write_text(program)
    for path in DATA.glob("*.pickle.gz"):
        (folder / path.name.partition(".")[0]).write_bytes(gzip.decompress(path.read_bytes()))
    command = [sys.executable, "-m", "profpipe", "run", *options, "--out", "out", "--", sys.executable, "prog.py"]
    ended = subprocess.run([*command, snapshot], cwd=folder, capture_output=True, text=True)
    return ended, " ".join(ended.stdout.split()), folder / "out" / "latest"


@pytest.mark.slow
def test_a_program_out_of_memory_runs_once_more_and_its_page_says_what_held_it(tmp_path):
    ended, printed, out = run(tmp_path, STAND_IN + TRAINING + FAILING, "-p", "plain,torch,nsys")
    assert ended.returncode == 1
    assert "Out of memory in the forward pass: GPT.h.0.qkv at snap.py:29" in printed
    assert "asked for 32.0 MiB, and 28.0 MiB of 400.0 MiB were free" in printed
    jobs = json.loads((out / "run.json").read_text())["jobs"]
    assert [(job["profiler"], job["status"]) for job in jobs] == [
        ("plain", "oom"), ("torch", "skipped"), ("nsys", "skipped"), ("memory", "oom"),
    ]  # fmt: skip
    assert jobs[0]["reason"].endswith("139.80 GiB of which 133.36 GiB is free")
    files = {path.name.split(".", 2)[2]: path for path in (out / "raw" / "prog" / "memory").glob("*.memory.*")}
    assert sorted(files) == ["memory.pickle", "oom.memory.pickle"]
    # Its forward pass was under autocast, and its failure was not.
    (failure,) = read_facts(files["oom.memory.pickle"])["out_of_memory"]
    assert (failure["is_autocast"], failure["place"].partition(":")[0]) == (True, "prog.py")


@pytest.mark.slow
def test_a_program_that_catches_the_error_has_not_failed(tmp_path):
    ended, printed, _ = run(tmp_path, STAND_IN + TRAINING + FAILING.partition("raise")[0], "-p", "memory")
    assert ended.returncode == 0
    assert printed.startswith("At the peak of 318.8 MiB other tensors hold 94.1 % (snap.py:73).")
    assert "1 allocation failed, and the program went on. The last: Out of memory in the forward pass" in printed


@pytest.mark.slow
def test_a_program_that_catches_the_error_and_fails_later_is_not_called_out_of_memory(tmp_path):
    ending = FAILING.partition("raise")[0] + "raise ValueError('no data')"
    _, printed, _ = run(tmp_path, STAND_IN + TRAINING + ending, "-p", "memory")
    assert printed.startswith("At the peak of")
    assert "1 allocation failed before the program did. The last: Out of memory in the forward pass" in printed


@pytest.mark.slow
def test_the_process_with_the_highest_peak_is_named(tmp_path):
    start = "import os, subprocess, sys\nif not os.environ.get('RANK'):\n"
    start += "    for rank, name in ('0', 'gpt_b4'), ('1', 'gpt'):\n"
    start += "        environment = {**os.environ, 'RANK': rank, 'WORLD_SIZE': '2'}\n"
    start += "        subprocess.run([sys.executable, 'prog.py', name], env=environment)\n    sys.exit()\n"
    _, _, out = run(tmp_path, start + STAND_IN, "-p", "memory")
    assert "At the peak: 237.4 MiB in use (GPU 0 of rank 1, the highest of 2)" in (out / "SUMMARY.md").read_text()


def test_a_case_that_runs_out_of_memory_ends_its_history_and_keeps_what_was_held(tmp_path):
    (tmp_path / "snapshot.pickle").write_bytes(gzip.decompress((DATA / "gpt.memory.pickle.gz").read_bytes()))
    (tmp_path / "prog.py").write_text(f"""{STAND_IN}
from profpipe.hook import memory
class Weight(torch.nn.Parameter):
    is_cuda = True
embedding = torch.nn.Embedding(4, 2, sparse=True)
embedding.weight = Weight(embedding.weight)
embedding(torch.tensor([1])).sum().backward()
try:
    fail = lambda: observers[-1](0, 1 << 20, 4 << 30, 0) or 1 / 0
    with memory.wrap(fail, "case", "partial-a.1.memory.pickle") as call:
        call()
except ZeroDivisionError:
    observers[-1](0, 1 << 20, 4 << 30, 0)
""")
    command, env = [sys.executable, "prog.py", "snapshot.pickle"], {"PYTHONPATH": str(Path(cli.__file__).parents[1])}
    ended = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    *_, first, last = ended.stdout.splitlines()
    assert (first, last) == ("the peak counts from here", "history: (None,) {}")
    names = {path.name for path in tmp_path.glob("*.1.*")}
    assert names == {"partial-a.1.memory.pickle", "a.1.oom.memory.pickle"}
    facts = read_facts(tmp_path / "partial-a.1.memory.pickle")
    assert len(facts["out_of_memory"]) == 1
    # The gradient is sparse.
    assert {kind for *_, kind, _ in facts["tensors"]} == {"parameters", "gradients"}


@pytest.mark.slow
def test_the_hook_keeps_steps_tensors_and_modules(tmp_path):
    ended, printed, out = run(tmp_path, STAND_IN + TRAINING, "-p", "memory")
    assert (ended.returncode, "At the peak of 318.8 MiB other tensors hold 94.1 %" in printed) == (0, True)
    folder = out / "raw" / "prog" / "memory"
    log = (folder / "log.txt").read_text()
    assert "inside {'Model.h.1'} after ['']" in log
    # That of the program would empty it.
    assert log.count("history:") == 1
    assert (
        "the program records its memory too: it has the history of profpipe instead" in (out / "SUMMARY.md").read_text()
    )
    facts = read_facts(next(folder.glob("*.memory.pickle")))
    assert [number for number, _ in facts["steps"]] == list(range(25))
    assert (facts["tensors"], facts["out_of_memory"]) == ([], [])
    private = json.loads((out / "run.json").read_text())["private_files"]
    assert ".pickle" in {Path(name).suffix for name in private}


@pytest.mark.slow
def test_two_batches_say_which_is_the_largest_that_fits(tmp_path):
    _, printed, _ = run(tmp_path, STAND_IN, "-p", "memory", "--set", "file=gpt_b4,gpt", snapshot="{file}")
    assert "The highest peak of memory is 237.4 MiB" in printed
    assert "that fits" not in printed
    program = f"import sys\nsys.argv[1] = {{'4': 'gpt_b4', '8': 'gpt'}}[sys.argv[1]]\n{STAND_IN}"
    _, printed, out = run(tmp_path, program, "-p", "memory", "--set", "batch=4,8", snapshot="{batch}")
    # Of 4 GiB others hold 2.
    assert (
        "The largest batch that fits is 96 to 191: 117.6 MiB do not grow with it, and one more takes 15.0 MiB"
        in printed
    )
    assert "(temporary tensors 10.0 MiB, activations 3790 KiB and gradients 1255 KiB)" in printed
    peak = "The highest peak of memory is 237.4 MiB, in the backward pass (batch=8): cuBLAS workspaces hold 27.0 %"
    assert peak in printed
    first, _, rest = (out / "SUMMARY.md").read_text().partition("**At the peak: 237.4 MiB")
    assert "**At the peak" not in first and first.endswith("**`batch=8`**\n\n") and rest


@pytest.mark.slow
def test_a_peak_outside_of_the_passes_shown_is_in_none(tmp_path):
    """It was before the model ran."""
    _, _, out = run(tmp_path, STAND_IN, "-p", "memory", "--set", "file=oom_fragment,oom_forward", snapshot="{file}")
    assert "The highest peak of memory is 318.8 MiB (`file=" in (out / "SUMMARY.md").read_text()


NOT_RECORDED = {
    "skipped: nothing was recorded: no process used a GPU through torch": "import torch\nprint(torch.ones(2).sum())",
    "failed: nothing was recorded: torch 0.5 records no history of its memory": STAND_IN.replace(
        "import pickle, sys, torch",
        "import pickle, sys, torch\ndel torch.cuda.memory._record_memory_history\ntorch.__version__ = '0.5'",
    ).replace("library.memory._record", "library.record"),
    "failed: nothing was recorded: memory: snapshot: no room": STAND_IN + "def fail(): raise OSError('no room')\n"
    "library.memory._snapshot = fail",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("said", NOT_RECORDED)
def test_without_a_snapshot_the_reason_is_said(tmp_path, said):
    _, _, out = run(tmp_path, NOT_RECORDED[said], "-p", "memory")
    (job,) = json.loads((out / "run.json").read_text())["jobs"]
    assert f"{job['status']}: {job['reason']}" == said
