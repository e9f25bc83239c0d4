"""The memory record of the language model: peaks by phase, allocations by place.

It needs a GPU. Here the allocator's counters stand in for those of CUDA's, and the records are made up in the structure
that torch.cuda.memory._snapshot documents and c10/cuda/CUDACachingAllocator.cpp fills: ``size`` is what was asked for,
a release is a ``free_requested`` and later a ``free_completed``, and what has no Python frames has no key ``frames``.
"""

import pickle
from pathlib import Path
from typing import Any

import lazy
import pytest

pytestmark = lazy.needs("torch")
torch = lazy.module("torch")
SCRIPT = Path(__file__).parents[1] / "workloads" / "transformer_lm.py"
lm = lazy.workload(SCRIPT)
memory = lazy.Lazy(lambda: lm.lm_memory)

TINY = {"size": "tiny", "context": 16, "batch": 2, "vocab": 101, "precision": "fp32", "memory_snapshot": True}


def test_without_a_gpu_or_the_option_there_is_no_memory_record(monkeypatch, tmp_path):
    monkeypatch.setattr(lm.attention_config, "device", lambda: "cpu")
    assert lm.snapshot(TINY, tmp_path) == {}
    monkeypatch.setattr(lm.attention_config, "device", lambda: "cuda")
    assert lm.snapshot({**TINY, "memory_snapshot": False}, tmp_path) == {}
    monkeypatch.delattr(torch.cuda.memory, "_record_memory_history")
    assert lm.snapshot(TINY, tmp_path) == {}
    assert list(tmp_path.iterdir()) == []


# --- peaks -----------------------------------------------------------------------------------------------------------


class _Allocator:
    """The counters of CUDA's allocator, which a CPU build of torch does not have."""

    def __init__(self, monkeypatch):
        self.now = self.peak = 100
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: self.now)
        monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: self.peak)
        monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", self._reset)

    def _reset(self):
        self.peak = self.now

    def add(self, size):
        self.now += size
        self.peak = max(self.peak, self.now)


def test_a_range_has_the_peak_of_the_ranges_inside_it_and_not_of_those_before(monkeypatch):
    allocator = _Allocator(monkeypatch)
    allocator.add(5)
    phase = memory.Peaks(baseline=100)
    with phase("forward"):
        allocator.add(10)
        for size in (30, 20):
            with phase("softmax"):
                allocator.add(size)
                allocator.add(-size)
            allocator.add(1)
    with phase("backward"):
        allocator.add(2)
        allocator.add(-12)
    assert phase.by_phase == {
        "forward": {"allocated_at_start": 5, "peak_allocated": 45},
        "forward > softmax": {"allocated_at_start": 15, "peak_allocated": 45},
        "backward": {"allocated_at_start": 17, "peak_allocated": 19},
    }


def test_the_course_of_a_phase_has_its_highest_memory_since_the_point_before(monkeypatch):
    _Allocator(monkeypatch)
    monkeypatch.setattr(memory, "_POINTS", 3)
    peaks = memory.Peaks(baseline=90)
    clock = iter([1000, 1030, 1030, 1060])
    monkeypatch.setattr(memory, "_now_us", lambda: next(clock))
    for name in ("forward", "backward"):
        with peaks(name):
            pass
    trace = [
        _entry("alloc", 9, 7, time_us=999),  # before the first phase, whose counter has it
        _entry("alloc", 1, 100, time_us=1004),
        *_freed(1, 100, time_us=1008),
        _entry("alloc", 2, 40, time_us=1025),
        _entry("alloc", 3, 5, time_us=1055),
    ]
    assert memory.courses(trace, peaks) == {
        "forward": [(10, 110), (20, 10), (30, 50)],
        "backward": [(40, 10), (50, 10), (60, 15)],
    }


# --- allocations -----------------------------------------------------------------------------------------------------

_LINEAR = ("/opt/venv/lib/python3.11/site-packages/torch/nn/functional.py", 7, "linear")


def _frames(*places):
    return [{"filename": filename, "line": line, "name": name} for filename, line, name in places]


def _entry(action, address, size, line=0, **more):
    """An entry of a record; from ``line`` of this workload, or from outside Python for 0."""
    stack = {"frames": _frames(_LINEAR, (str(memory.__file__), line, "plain"))} if line else {}
    return {"action": action, "addr": address, "size": size, "stream": 0, "time_us": 1, **stack, **more}


def _freed(address, size, **more):
    return [_entry(action, address, size, **more) for action in ("free_requested", "free_completed")]


def _recorded(trace):
    return {place: {name: (value, n) for name, (value, _, n) in own.items()} for place, own in
            memory.largest_allocations(trace).items()}  # fmt: skip


def test_allocations_of_one_size_and_place_are_one_row_what_holds_most_first():
    trace = [
        _entry("segment_alloc", 1, 2**21, 20),
        _entry("alloc", 1, 512, 10),
        *(_entry("alloc", 5000 * number, 4096, 20) for number in range(1, 13)),
        _entry("alloc", 7, 1024),
        *_freed(7, 1024),
    ]
    assert _recorded(trace) == {
        "plain, lm_memory.py:20": {"allocation:1": (4096, 12), "held:1": (12 * 4096, 12)},
        "outside Python": {"allocation:2": (1024, 1), "held:2": (1024, 1)},
        "plain, lm_memory.py:10": {"allocation:3": (512, 1), "held:3": (512, 1)},
    }


def test_held_is_what_was_there_when_memory_was_at_its_peak():
    trace = [
        _entry("alloc", 1, 100, 10),
        _entry("alloc", 2, 50, 20),
        *_freed(1, 100),
        _entry("alloc", 1, 30, 30),  # the address is used again
        *_freed(9, 500),  # from before the record
        _entry("alloc", 3, 90, 10),
    ]
    # Sums: 100, 150, 50, 80, -420, -330: the peak is after the second.
    assert _recorded(trace) == {
        "plain, lm_memory.py:10": {"allocation:1": (100, 1), "held:1": (100, 1), "allocation:3": (90, 1)},
        "plain, lm_memory.py:20": {"allocation:2": (50, 1), "held:2": (50, 1)},
        "plain, lm_memory.py:30": {"allocation:4": (30, 1)},
    }


def test_many_small_ones_that_hold_most_of_the_peak_are_recorded_before_a_few_large_ones():
    large = [entry for line in range(1, 15) for entry in (_entry("alloc", line, 1000 + line, line), *_freed(line, 1))]
    small = [_entry("alloc", 10_000 * number, 500, 99) for number in range(1, 37)]
    found = _recorded([*large, *small])
    assert found["plain, lm_memory.py:99"] == {"allocation:1": (500, 36), "held:1": (36 * 500, 36)}
    assert len(found) == memory._LARGEST


def test_the_place_is_the_line_of_the_model_else_the_line_that_allocated():
    assert memory.place_of(_frames(_LINEAR, ("/home/me/transformer_lm.py", 3, "build"))) == "build, transformer_lm.py:3"
    assert memory.place_of(_frames(_LINEAR, ("/home/me/train.py", 3, "main"))) == "linear, functional.py:7"
    assert memory.place_of([]) == "outside Python"


# --- the whole -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "passes"), [("forward", ["forward"]), ("train_step", ["forward", "backward", "optimizer"])]
)
def test_a_case_leaves_a_file_for_the_viewer_and_its_peaks(monkeypatch, tmp_path, what, passes):
    """The model runs on the CPU; the counters and the record of the GPU's allocator are mocks."""
    _Allocator(monkeypatch)
    recorded: list[Any] = []
    block = {"size": 512, "requested_size": 8, "address": 1, "state": "active_allocated"}
    seen = {
        "segments": [{"address": 1, "total_size": 512, "blocks": [{**block, "frames": _frames(_LINEAR)}, dict(block)]}],
        "device_traces": [[_entry("alloc", 1, 8, 1), _entry("oom", 2, 9, device_free=0)]],
        "allocator_settings": {},
    }
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", lambda **given: recorded.append(given))
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", lambda: seen)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    # Asked once by snapshot itself; the model after it asks for the device that is really here.
    answers = iter(["cuda"])
    monkeypatch.setattr(lm.attention_config, "device", lambda: next(answers, "cpu"))
    numbers = lm.snapshot({**TINY, "what": what}, tmp_path)
    assert recorded == [{"stacks": "python"}, {"enabled": None}]
    inner = [f"forward > {name}" for name in ("attention scores", "softmax", "final matmul", "loss")]
    assert list(numbers) == ["forward", *inner, *passes[1:], "plain, lm_memory.py:1"]
    assert numbers["forward"]["peak_allocated"] == (0.0, "byte", 1)
    assert any(name.startswith("allocated_at:") for name in numbers[passes[-1]])
    kept = pickle.loads((tmp_path / "memory.pickle").read_bytes())
    assert kept["segments"][0]["blocks"][0]["frames"] == _frames(("torch/nn/functional.py", 7, "linear"))
    assert kept["device_traces"][0][0]["frames"][1]["filename"] == "lm_memory.py"
    assert "/opt/" not in str(kept) and str(SCRIPT.parent) not in str(kept)
