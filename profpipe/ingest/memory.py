"""Divide the memory of a GPU by who holds it, from torch's snapshot and the facts that the start-up hook adds.

A snapshot has the blocks at its end and the trace of what came before: which address was given out for how many bytes,
and which was given back. Going back through the trace gives the blocks at its begin. From there on the allocator is
followed, for the trace does not say how large a block is: torch gives a multiple of 512 bytes, and the rest of a free
block with it where that rest is too small to divide. The sum is ``allocated_bytes`` of torch at any time.

Whose a block is:

* parameters, buffers, gradients and states of optimizers at the end are recognised by their addresses;
* what a call of an optimizer leaves is its state, and what a backward pass leaves is a gradient;
* what a forward pass makes and a later backward pass may need is an activation;
* what is given back in the same pass, or right after it, is temporary.

A pass shows in the Python stack: ``Module.__call__``, a file of ``torch.optim``, or, in autograd's thread, none.
"""

from __future__ import annotations

import bisect
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import pandas as pd

from profpipe.results import schema

Entries: TypeAlias = "Sequence[Mapping[str, Any]]"

# --- stacks ----------------------------------------------------------------------------------------------------------

_PACKAGES: Final = "/(?:site|dist)-packages/"
#: A stack that also has the frames of C++ ends with such files, or has "??" for them.
_PYTHON: Final = re.compile(r"^<|\.py$")
#: Python, torch, profpipe and code without a file: no frame of theirs is a line of the program.
_BELOW: Final = re.compile(rf"{_PACKAGES}(?:torch|triton)/|/profpipe/hook/|^<|/python3\.\d+/(?!(?:site|dist)-packages)")
#: The frames of torch that say in which pass an allocation is: the innermost one counts. The rest are functions that
#: make or move parameters, and in autograd's thread, where no other frames are, what calls a function of the program.
_FRAMES: Final = {
    "optimizer": re.compile("/torch/optim/"),
    "forward": re.compile(r"/nn/modules/module\.py (?:_call_impl|_wrapped_call_impl|__call__)$"),
    "backward": re.compile(r"/(?:function\.py apply|graph\.py _engine_run_backward|checkpoint\.py unpack_hook)$"),
    "parameters": re.compile("/nn/modules/.* (?:__init__|_apply|reset_parameters|_load_from_state_dict)$"),
}


#: Functions of these names are called by that of their file: it says what a module is.
_UNNAMED: Final = ("forward", "<lambda>", "<module>")


class StackReader:
    """Reads stacks, whose frames a snapshot shares. ``folder`` is that of the program."""

    def __init__(self, folder: str) -> None:
        self._prefix = re.compile(rf"^.*{_PACKAGES}" + (rf"|^{re.escape(folder.rstrip('/'))}/" if folder else ""))
        self._frames: dict[int, tuple[str, str, str] | None] = {}
        self._stacks: dict[tuple[int, ...], dict[str, Any]] = {}

    def read(self, frames: Entries | None) -> dict[str, Any]:
        """Return what ``frames``, innermost first, say of a block. Autograd's thread has no frames.

        ``caller`` is the line that calls the model; ``is_inner``: torch's code makes the block, not the program's.
        """
        # The three replays of a trace meet the same frames.
        key = tuple(map(id, frames or ()))
        if key not in self._stacks:
            self._stacks[key] = self._read_stack([self._read_frame(frame) for frame in frames or ()])
        return self._stacks[key]

    def _read_stack(self, frames: Sequence[tuple[str, str, str] | None]) -> dict[str, Any]:
        if not (read := [frame for frame in frames if frame]):
            return {"during": "backward", "place": "", "operator": "backward", "caller": "", "is_inner": True}
        kinds, *texts = zip(*read, strict=True)
        outside = len(kinds) - kinds[::-1].index("forward") if "forward" in kinds else 0
        # What is computed again inside a backward pass is a part of it.
        inner = next(filter(None, kinds), "other")
        outer = next((kind for kind in ("parameters", "backward") if kind in kinds and inner != "optimizer"), inner)
        place, operator = (next(filter(None, names), "") for names in texts)
        caller = next(filter(None, texts[0][outside:]), place)
        is_inner = not texts[0][0]
        return {"during": outer, "place": place, "operator": operator, "caller": caller, "is_inner": is_inner}

    def _read_frame(self, frame: Mapping[str, Any]) -> tuple[str, str, str] | None:
        if id(frame) not in self._frames and not _PYTHON.search(frame["filename"]):
            self._frames[id(frame)] = None
        elif id(frame) not in self._frames:
            path, name = str(frame["filename"]).replace("\\", "/"), str(frame["name"])
            kind = next((kind for kind, pattern in _FRAMES.items() if pattern.search(f"{path} {name}")), "")
            file = path.rpartition("/")[2]
            short = self._prefix.sub("", path)
            place = "" if _BELOW.search(path) else f"{file if short == path else short}:{frame['line']}"
            self._frames[id(frame)] = kind, place, file.removesuffix(".py") if name in _UNNAMED else name
        return self._frames[id(frame)]


# --- the allocator ---------------------------------------------------------------------------------------------------

#: As in c10/cuda/CUDACachingAllocator.cpp: the smallest block, the limit of small ones and what the driver gives for
#: them, or maps at once. A large free block is divided where the rest exceeds the limit of small ones.
_SMALLEST: Final = 512
_SMALL: Final = 1 << 20
_PAGE: Final = 1 << 21
_MOST_REGIONS: Final = 1 << 20
#: The row at which what is still held ends.
_HELD: Final = 1 << 62


class _Regions:
    """The memory that the allocator has of the driver, and the addresses in use. What is mapped comes in pages."""

    def __init__(self) -> None:
        #: Begin, end, and whether it is mapped, sorted.
        self._regions: list[tuple[int, int, bool]] = []
        self._used: list[int] = []

    def add(self, begin: int, size: int, is_mapped: bool) -> None:
        for at in range(begin, begin + size, _PAGE if is_mapped else max(size, 1)):
            bisect.insort(self._regions, (at, min(at + _PAGE, begin + size) if is_mapped else begin + size, is_mapped))
            if len(self._regions) > _MOST_REGIONS:
                raise ValueError("more than 2 TB of memory are mapped")

    def remove(self, begin: int, size: int) -> None:
        first, last = (bisect.bisect_left(self._regions, (at,)) for at in (begin, begin + size))
        del self._regions[first:last]

    def use(self, address: int, asked: int) -> int:
        """Give out ``asked`` bytes at ``address``; return the size of the block."""
        size = max(-(-asked // _SMALLEST) * _SMALLEST, _SMALLEST)
        at = bisect.bisect_right(self._used, address)
        self._used.insert(at, address)
        after = bisect.bisect_left(self._regions, (address + 1,))
        _, end, is_mapped = self._regions[after - 1] if after else (0, 0, False)
        # Pages without a gap are one region.
        last = len(self._regions)
        while is_mapped and end < address + size + _SMALLEST and after < last and self._regions[after][0] == end:
            end, after = self._regions[after][1], after + 1
        room = min([end, *self._used[at + 1 : at + 2]]) - address
        least_rest = _SMALLEST if is_mapped or size <= _SMALL else _SMALL + 1
        return size if room - size >= least_rest else max(room, size)

    def release(self, address: int) -> None:
        at = bisect.bisect_left(self._used, address)
        del self._used[at : at + (self._used[at : at + 1] == [address])]

    def measure_free(self, sizes: Mapping[int, int], asked: int) -> dict[str, int]:
        """Return the free bytes of regions without one of the blocks ``sizes``, those between them, and the largest.

        The largest piece is that of the regions from which ``asked`` bytes could come: small ones have small blocks.
        """
        free, used = {"cached": 0, "fragmented": 0, "largest": 0}, sorted(sizes)
        for begin, end, is_mapped in self._regions:
            inside, at = used[bisect.bisect_left(used, begin) : bisect.bisect_left(used, end)], begin
            for address in [*inside, end]:
                free["fragmented" if inside else "cached"] += max(address - at, 0)
                if is_mapped or (end - begin == _PAGE) == (asked <= _SMALL):
                    free["largest"] = max(free["largest"], address - at)
                at = address + sizes.get(address, 0)
        return free


#: Whether what the driver gives or takes is mapped.
_GIVES: Final = {"segment_alloc": False, "segment_map": True}
_TAKES: Final = {"segment_free": False, "segment_unmap": True}


def _rewind(segments: Entries, trace: Entries) -> tuple[_Regions, list[dict[str, Any]]]:
    """Return the regions at the begin of ``trace``, and what was in use then as entries that give it out."""
    state, last = _Regions(), dict[int, Any]()
    for segment in segments:
        state.add(segment["address"], segment["total_size"], bool(segment.get("is_expandable")))
        last |= {block["address"]: block for block in segment["blocks"] if block["state"] != "inactive"}
    first = {address: int(block["requested_size"]) for address, block in last.items()}
    for entry in reversed(trace):
        action, address = entry["action"], entry.get("addr", 0)
        if action == "alloc":
            first.pop(address, None)
        elif action == "free_completed":
            first[address] = entry["size"]
        elif action in _GIVES:
            state.remove(address, entry["size"])
        elif action in _TAKES:
            state.add(address, entry["size"], _TAKES[action])
    held = ((address, last.get(address, {})) for address in sorted(first))
    return state, [
        {**block, "action": "alloc", "addr": address, "size": first[address], "given": block.get("size")}
        for address, block in held
    ]


def replay(segments: Entries, trace: Entries, stacks: StackReader, rows: int) -> tuple[pd.DataFrame, list[int], Any]:
    """Follow the allocator of a device over the first ``rows`` of ``trace``.

    Return the blocks from the row ``begin`` to the row ``end``, the bytes in use after the rows, and the regions.
    """
    (state, before), total = _rewind(segments, trace), 0
    has_stacks = any(entry.get("frames") for entry in trace)
    blocks: list[dict[str, Any]] = []
    used: dict[int, dict[str, Any]] = {}
    allocated: list[int] = []
    for row, entry in enumerate([*before, *trace[:rows]], start=-len(before)):
        action, address, size = entry["action"], entry.get("addr", 0), entry["size"]
        if action == "alloc":
            given, frames = state.use(address, size), entry.get("frames")
            used[address] = {
                "address": address, "asked": size, "size": entry.get("given") or given, "begin": max(row, -1),
                "end": _HELD, "module": str(entry.get("user_metadata") or ""),
                **(stacks.read(frames) if frames or (row >= 0 and has_stacks) else _UNKNOWN),
            }  # fmt: skip
            blocks.append(used[address])
            total += used[address]["size"]
        elif action in ("free_requested", "free_completed"):
            # The first of them counts: until the second one a block waits for another stream.
            if address in used and used[address]["end"] == _HELD:
                used[address]["end"] = row
                total -= used[address]["size"]
            if action == "free_completed":
                state.release(address)
                used.pop(address, None)
        elif action in _GIVES:
            state.add(address, size, _GIVES[action])
        elif action in _TAKES:
            state.remove(address, size)
        if row >= 0:
            allocated.append(total)
    # Of a GPU that is not used there are none.
    frame = pd.DataFrame(blocks, columns=[*_NUMBERS, "module", *_UNKNOWN]).astype(dict.fromkeys(_NUMBERS, np.int64))
    return frame, allocated, state


_UNKNOWN: Final = {"during": "other", "place": "", "operator": "", "caller": "", "is_inner": False}
_NUMBERS: Final = ("address", "asked", "size", "begin", "end")


# --- whose a block is ------------------------------------------------------------------------------------------------

#: The sizes of the workspaces that torch gives to cuBLAS for good at the first product of matrices in a thread
#: (aten/src/ATen/cuda/CUDABlas.cpp): of GPUs from Hopper on, and of others; and to cuBLASLt.
_WORKSPACES: Final = (1 << 25, 8_519_680, 1 << 20)


def assign_parts(
    blocks: pd.DataFrame, rows: int, steps: Sequence[int], tensors: Mapping[int, tuple[str, str]], failed: Sequence[int]
) -> tuple[pd.DataFrame, Any]:
    """Return the blocks with ``part``, ``name`` and ``step``, and the pass at any row.

    ``steps`` are the rows at which steps begin; ``tensors`` are kind and type of data by address at the end.
    ``failed`` are the rows of allocations that failed while the program trained.
    """
    during = np.full(rows + 1, "", dtype=object)
    made = blocks[blocks["begin"] >= 0]
    during[made["begin"]] = made["during"].replace("parameters", "other")
    is_step = np.isin(np.arange(rows + 1), steps)
    during[is_step & (during == "")] = "other"
    passes = pd.Series(during).replace("", None).ffill().fillna("other").to_numpy()
    is_new = np.append(False, passes[1:] != passes[:-1]) | is_step
    number, backwards, step = (np.cumsum(of) for of in (is_new, is_new & (passes == "backward"), is_step))
    begin, end = blocks["begin"].clip(lower=0).to_numpy(), blocks["end"].clip(upper=rows).to_numpy()
    is_held, kind = (blocks["end"] == _HELD).to_numpy(), blocks["during"].to_numpy()
    is_same, later = number[begin] == number[end], step[end] - step[begin]
    by_backward = (backwards[end] > backwards[begin]) | (is_held & (later == 0) & bool(backwards[-1]))
    # What an allocation that failed was for would have been kept for a backward pass.
    count = np.cumsum(np.isin(np.arange(rows + 1), failed))
    fails = count[end] > count[begin]
    by_backward |= fails
    by_kind = {
        "optimizer": np.where(is_same & ~is_held, "temporary", "optimizer"),
        "backward": np.where(is_same, "temporary", "gradients"),
        "other": np.where((passes[end] == "backward") & ~is_held | fails & blocks["is_inner"], "activations", "other"),
        # What autocast makes of the weights is given back when the pass has ended. A cache lives through more passes.
        "forward": np.where(is_same | ~is_held & (later == 0) & (number[end] - number[begin] < 2), "temporary", "kept"),
    }
    by_kind["forward"] = np.where(by_backward & (later < 2), "activations", by_kind["forward"])
    part = np.select([kind == name for name in by_kind], list(by_kind.values()), "parameters").astype(object)
    # The first block of such a size in a thread; a later one is a tensor, and of the small ones most are.
    sizes = blocks["size"].where(
        is_held & blocks["size"].isin(_WORKSPACES) & np.isin(kind, ["forward", "backward", "other"])
    )
    sizes = sizes.where((sizes > _SMALL) | (part == "kept"))
    part[sizes.notna() & ~pd.DataFrame({"size": sizes, "kind": kind}).duplicated()] = "workspace"
    addresses, types = np.array([*sorted(tensors), _HELD]), np.full(len(blocks), "", dtype=object)
    first = addresses[np.searchsorted(addresses, blocks["address"])]
    for number_of_block in np.flatnonzero(is_held & (first < blocks["address"] + blocks["size"])):
        part[number_of_block], types[number_of_block] = tensors[first[number_of_block]]
    names = blocks["module"].where((blocks["module"] != "") & (part != "temporary"), blocks["operator"])
    names = names.where(~np.isin(part, ["parameters", "gradients", "optimizer", "workspace"]), types)
    names = names.str.replace(_COPY, "", regex=True)
    return blocks.assign(part=part, name=names, step=np.where(blocks["begin"] < 0, -1, step[begin])), passes


# --- rows ------------------------------------------------------------------------------------------------------------

#: The number of a layer in a path, and that of a model among those of one class.
_NUMBER: Final = r"\.\d+(?=\.|$)"
_COPY: Final = r"#\d+"
#: Blocks that are listed, points of the picture, steps that it shows, and steps that must leave memory behind.
_MOST_BLOCKS: Final = 20
_POINTS: Final = 160
_STEPS: Final = 2
_LEAST_STEPS: Final = 3
#: A leak is at least so many bytes a step, and a thousandth of the peak.
_LEAST_GROWTH: Final = 1 << 20


class _Device:
    """The memory of a device, and the rows of the table that it makes."""

    def __init__(self, device: int, snapshot: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
        self.trace: Entries = snapshot["device_traces"][device]
        self.counters = facts.get("devices", {}).get(str(device), {})
        failures = [failure for failure in facts.get("out_of_memory", ()) if failure["device"] == device]
        self.failure: dict[str, Any] = failures[-1] if failures else {}
        self.segments = [segment for segment in snapshot["segments"] if segment.get("device", 0) == device]
        self.stacks = StackReader(str(facts.get("folder") or ""))
        self.times = [int(entry.get("time_us") or row) for row, entry in enumerate(self.trace)]
        self.failed = [row for row, entry in enumerate(self.trace) if entry["action"] == "oom"]
        blocks, self.allocated, _ = replay(self.segments, self.trace, self.stacks, len(self.trace))
        # Without facts the call of an optimizer ends a step.
        notes = (note for note in snapshot.get("external_annotations", ()) if note.get("device", device) == device)
        ends = [n["time_us"] for n in notes if n["stage"] == "END" and n["name"].startswith("Optimizer.step#")]
        begins = [at for _, at in facts["steps"]] if "steps" in facts else ends
        rows = {bisect.bisect_left(self.times, at) for at in begins}
        self.steps = sorted(row for row in rows if row < len(self.trace))
        tensors = {address: (kind, of_type) for address, of, kind, of_type in facts.get("tensors", ()) if of == device}
        failed = self.failed if self.failure.get("is_training", True) else []
        self.blocks, self.passes = assign_parts(blocks, len(self.trace), self.steps, tensors, failed)

    def write_rows(self) -> Iterator[dict[str, Any]]:
        if self.allocated:
            yield from self._write_moment("peak", int(np.argmax(self.allocated)), self.counters)
            yield from self._write_points()
            yield from self._write_passes()
            yield from self._write_growth()
        for row in self.failed[-1:]:
            stack, size = self.stacks.read(self.trace[row].get("frames")), self.trace[row]["size"]
            name = re.sub(_COPY, "", str(self.trace[row].get("user_metadata") or "")) or stack["operator"]
            # Autograd's thread has no line.
            asked = _row("asked", stack["during"], size, name, stack["place"] or self.failure.get("place", ""))
            yield {**asked, "blocks": len(self.failed)}
            yield from self._write_moment("failure", row, self.counters)
        if total := self.counters.get("total"):
            may_use = self.failure.get("may_use", self.counters.get("may_use", total))
            yield _row("fact", "capacity", may_use)
            yield _row("fact", "room", min(may_use, total - _measure_outside(self.counters)))

    def _find_live(self, row: int) -> pd.DataFrame:
        return self.blocks[(self.blocks["begin"] <= row) & (self.blocks["end"] > row)]

    def _write_moment(self, moment: str, row: int, counters: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield the parts of a moment by module and operator, its largest blocks, and of a failure what would help."""
        _, _, state = replay(self.segments, self.trace, self.stacks, row + 1)
        live = self._find_live(row)
        # Layers that differ in their number only are one holder.
        alike = live.assign(name=live["name"].str.replace(_NUMBER, ".*", regex=True))
        alike = alike.sort_values("asked", ascending=False, kind="stable")
        by_part, by_block = (moment, ["part", "name"], "sum"), (f"{moment}_block", ["part", "name", "asked"], "first")
        for of, keys, how in (by_part, by_block):
            groups = alike.assign(bytes=alike["asked"], blocks=1).groupby(keys, sort=False)
            sums = groups.agg({"bytes": how, "blocks": "sum", "place": "first"}).reset_index()
            sums = sums.sort_values("bytes", ascending=False, kind="stable")[: None if of == moment else _MOST_BLOCKS]
            yield from sums[["part", "name", "place", "bytes", "blocks"]].assign(moment=of).to_dict("records")
        rest = state.measure_free(dict(zip(live["address"], live["size"], strict=True)), self.trace[row]["size"])
        largest, unused = rest.pop("largest"), rest["cached"] + rest["fragmented"]
        rest["rounding"] = int((live["size"] - live["asked"]).sum())
        if moment == "failure":
            # The counters are those of the end.
            counters = {**counters, "reserved_bytes.all.current": int(live["size"].sum()) + unused, **self.failure}
        rest["outside"] = _measure_outside(counters)
        yield from (_row(moment, part, size) for part, size in rest.items() if size)
        if moment == "failure":
            yield _row("fact", "largest", largest)
            if "total" in counters:
                may_get = max(counters["may_use"] - counters["reserved_bytes.all.current"], 0)
                yield _row("fact", "free", min(counters["free"], may_get))
            yield from self._advise(live, unused * (largest < self.trace[row]["size"]), rest["outside"])

    def _advise(self, live: pd.DataFrame, unused: int, outside: int) -> Iterator[dict[str, Any]]:
        """Yield what would free memory, and how much at most."""
        kept = live[live["part"] == "activations"]
        layers = kept["module"].str.extract(r"^(.*?)(\.\d+)(?:\.|$)")
        for path, of_path in kept.groupby(layers[0]):
            by_layer = of_path.groupby(layers[1])["size"].sum()
            # One layer is computed again at a time.
            yield _row("advice", "checkpoint", by_layer.sum() - by_layer.max(), re.sub(_COPY, "", f"{path}.*"))
        types = live[live["part"] == "parameters"].groupby("name")["size"].sum()
        if types.get("float32", 0) > types.sum() / 2 and not self.failure.get("is_autocast"):
            yield _row("advice", "bfloat16", kept["size"].sum() / 2, "bfloat16")
        if not any(segment.get("is_expandable") for segment in self.segments):
            yield _row("advice", "expandable", unused, "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True")
        if self.failure.get("free", 0) < self.failure.get("asked", 0):
            yield _row("advice", "outside", outside)

    def _write_points(self) -> Iterator[dict[str, Any]]:
        """Yield the bytes of all parts at points of the last whole steps."""
        first, last = self._shown
        at = np.array(self.times[first:last])
        bins = (at - at[0]) * _POINTS // max(int(at[-1] - at[0]), 1)
        for row in pd.Series(self.allocated[first:last]).groupby(bins).idxmax() + first:
            for part, size in self._find_live(row).groupby("part")["size"].sum().items():
                point = _row("time", str(part), size, self.passes[row])
                yield {**point, "at_ns": 1e3 * (self.times[row] - self.times[0])}

    def _write_passes(self) -> Iterator[dict[str, Any]]:
        """Yield the bytes in use when the last whole steps begin, and the most in use during each of their passes."""
        first, last = self._shown
        held = self.blocks.loc[self.blocks["begin"] < 0, "size"].sum()
        yield _row("pass", "before", self.allocated[first - 1] if first else held)
        peaks = pd.Series(self.allocated[first:last]).groupby(self.passes[first:last], sort=False).max()
        yield from (_row("pass", str(name), size) for name, size in peaks.drop("other", errors="ignore").items())

    @property
    def _shown(self) -> tuple[int, int]:
        """The rows of the last whole steps, or of the trace where it has no steps."""
        whole = len(self.steps) > _STEPS
        return (self.steps[-_STEPS - 1], self.steps[-1]) if whole else (0, len(self.trace))

    def _write_growth(self) -> Iterator[dict[str, Any]]:
        """Yield by line what the steps before the last one have left behind when that begins.

        At the end of the trace the program may have given back all.
        """
        first, last = len(self.steps) - _LEAST_STEPS, len(self.steps)
        live = self._find_live(self.steps[-1] if self.steps else 0)
        held = live[live["step"].between(first, last - 1)]
        held = held.assign(at=held["place"].where(held["place"] != "", held["operator"]))
        left = held.pivot_table(index="at", columns="step", values="size", aggfunc="sum")
        left = left.dropna().min(axis=1) if len(left.columns) == _LEAST_STEPS else pd.Series(dtype=float)
        if first > 0 and left.sum() >= max(_LEAST_GROWTH, max(self.allocated) / 1000):
            for place, size in left.items():
                by_caller = held[held["at"] == place].groupby("caller")["size"].sum()
                yield _row("growth", "kept", size, str(by_caller.idxmax()), str(place))


def _row(moment: str, part: str, size: float, name: str = "", place: str = "") -> dict[str, Any]:
    return {"moment": moment, "part": part, "name": name, "place": place, "bytes": float(size)}


def _measure_outside(counters: Mapping[str, Any]) -> int:
    """Return the bytes of the device that are not of torch in this process; 0 where the facts do not say."""
    reserved = counters.get("reserved_bytes.all.current", 0)
    return max(int(counters.get("total", 0) - counters.get("free", 0) - reserved), 0)


def make_tables(snapshot: Mapping[str, Any], facts: Mapping[str, Any], form: str) -> schema.Tables:
    """Return the table `memory` of a snapshot, with a note where it contradicts torch's counter."""
    rows, notes = [], []
    for number in range(len(snapshot["device_traces"])):
        device = _Device(number, snapshot, facts)
        rows += [{**row, "device": number} for row in device.write_rows()]
        peak, end = max(device.allocated, default=0), (device.allocated or [0])[-1]
        counted, now = (device.counters.get(f"allocated_bytes.all.{name}") for name in ("peak", "current"))
        if len(device.trace) >= facts.get("most_entries", math.inf):
            notes.append(f"the history holds the last {len(device.trace):,} events only: an earlier peak is not in it")
        # A program may have reset the counter of the peak.
        elif (counted or 0) > peak or now not in (None, end):
            notes.append(
                f"the blocks are {peak} bytes at the peak and {end} at the end; torch counted {counted} and {now}"
            )
    about = {"process": facts.get("pid"), "rank": facts.get("rank")}
    frame = schema.frame(schema.MEMORY, [{**row, **about} for row in rows])
    version = f"torch {facts['torch']}" if facts.get("torch") else ""
    origin = schema.Origin(format=form, tool="memory", tool_version=version, notes=tuple(notes))
    return schema.Tables(memory=frame, origin=origin)
