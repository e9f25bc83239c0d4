"""Divide the memory of a GPU by who holds it, from torch's snapshot and the facts that the start-up hook writes.

A snapshot has the blocks at its end and the trace of what came before: which address was given out for how many bytes,
and which was given back. Going back through the trace gives the blocks at its begin. From there on the allocator is
followed, for the trace does not say how large a block is: torch gives a multiple of 512 bytes, and the rest of a free
block with it where that rest is too small to divide. Its sum is ``allocated_bytes`` of torch at any time.

Whose a block is:

* parameters, buffers, gradients and states of optimizers at the end are known by their addresses;
* what a call of an optimizer leaves is its state, and what a backward pass leaves is a gradient;
* what a forward pass makes and a later backward pass may need is an activation;
* what is given back in the same pass is temporary.

A pass shows in the Python stack: ``Module.__call__``, a file of ``torch.optim``, or, in autograd's thread, none.
"""

from __future__ import annotations

import bisect
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pandas as pd

from profpipe.errors import UnreadableFile
from profpipe.results import atomic, schema
from profpipe.results.schema import MemoryMoment, MemoryPart, Pass

# --- stacks ----------------------------------------------------------------------------------------------------------

_LIBRARIES: Final = re.compile(r"^.*[/\\](?:site|dist)-packages[/\\]")
#: Python, torch, profpipe and code without a file: no frame of theirs is a line of the program.
_BELOW: Final = re.compile(
    r"[/\\](?:site|dist)-packages[/\\](?:torch|triton)[/\\]|[/\\]profpipe[/\\]hook[/\\]|^<"
    r"|[/\\]lib(?:64)?[/\\]python3\.\d+[/\\](?!(?:site|dist)-packages[/\\])"
)
#: The frames of torch that say what calls an allocator. Outside of a call of a module or an optimizer there is none.
_PASSES: Final = (
    (re.compile(r"[/\\]torch[/\\]optim[/\\]"), re.compile(""), Pass.OPTIMIZER),
    (re.compile(r"[/\\]torch[/\\]nn[/\\]modules[/\\]module\.py$"), re.compile(r"_call_impl|__call__"), Pass.FORWARD),
    (re.compile(r"[/\\]torch[/\\]autograd[/\\]graph\.py$"), re.compile("_engine_run_backward"), Pass.BACKWARD),
)
#: In the thread of autograd, which has no other frames: functions of the program, and what is computed again.
_IN_BACKWARD: Final = re.compile(r"[/\\]torch[/\\](?:autograd[/\\](?:function|graph)|utils[/\\]checkpoint)\.py$")
#: Functions of torch that make or move parameters.
_MAKES_PARAMETERS: Final = re.compile(r"[/\\]torch[/\\]nn[/\\]modules[/\\]")
_MAKERS: Final = {"__init__", "_apply", "convert", "reset_parameters", "_load_from_state_dict", "to_empty"}


@dataclass(frozen=True)
class Stack:
    """What the Python frames of an allocation say. ``place`` is the innermost line of the program."""

    during: Pass = Pass.OTHER
    place: str = ""
    operator: str = ""
    makes_parameters: bool = False


class StackReader:
    """Reads stacks, whose frames a snapshot shares. ``folder`` is that of the program."""

    def __init__(self, folder: str) -> None:
        self._folder = f"{folder.rstrip('/')}/" if folder else ""
        self._frames: dict[int, tuple[str, str, Pass | None]] = {}

    def read(self, frames: Sequence[Mapping[str, Any]] | None) -> Stack:
        """Return what the frames say, innermost first. Autograd's own thread has none where it runs C++."""
        if not frames:
            return Stack(Pass.BACKWARD, operator="backward")
        read = [self._read_frame(frame) for frame in frames]
        places = [place for place, _, _ in read if place]
        passes = [during for _, _, during in read if during]
        operator = next((name for _, name, _ in read if name), "")
        makes = any(frame["name"] in _MAKERS and _MAKES_PARAMETERS.search(str(frame["filename"])) for frame in frames)
        is_backward = Pass.BACKWARD in passes or _IN_BACKWARD.search(str(frames[-1]["filename"]))
        during = passes[0] if passes else Pass.OTHER
        if is_backward and during is not Pass.OPTIMIZER:
            during = Pass.BACKWARD
        return Stack(during, places[0] if places else "", operator, bool(makes))

    def _read_frame(self, frame: Mapping[str, Any]) -> tuple[str, str, Pass | None]:
        kept = self._frames.get(id(frame))
        if kept is None:
            path, name = str(frame["filename"]), str(frame["name"])
            passes = (during for of, names, during in _PASSES if of.search(path) and names.search(name))
            kept = self._frames[id(frame)] = self._place(path, frame["line"]), _operator(path, name), next(passes, None)
        return kept

    def _place(self, path: str, line: int) -> str:
        if _BELOW.search(path):
            return ""
        if self._folder and path.startswith(self._folder):
            return f"{path[len(self._folder) :]}:{line}"
        short = _LIBRARIES.sub("", path)
        return f"{short if short != path else path.replace(chr(92), '/').rpartition('/')[2]}:{line}"


def _operator(path: str, name: str) -> str:
    """Return the function that allocates: ``cross_entropy``, and for the forward pass of a module its file."""
    if re.search(r"[/\\]profpipe[/\\]hook[/\\]", path):
        return ""
    stem = re.split(r"[/\\]", path)[-1].removesuffix(".py")
    return stem if name in ("forward", "<lambda>") else name


# --- the allocator ---------------------------------------------------------------------------------------------------

#: As in c10/cuda/CUDACachingAllocator.cpp: the smallest block, and the limit of small ones. A large free block is divided
#: where the rest is larger than that limit.
_SMALLEST: Final = 512
_SMALL: Final = 1 << 20
#: What is asked of the driver for small blocks.
_SMALL_REGION: Final = 1 << 21


@dataclass
class Block:
    """Memory that was given out. ``begin`` and ``end`` are rows of the trace: -1 before it, None where it is held."""

    address: int
    asked: int
    size: int
    stack: Stack
    module: str = ""
    begin: int = -1
    end: int | None = None
    part: MemoryPart = MemoryPart.OTHER
    data_type: str = ""


class _Segments:
    """The memory that the allocator has of the driver, as regions, and the addresses in use."""

    def __init__(self) -> None:
        self.regions: dict[int, tuple[int, bool]] = {}
        self._begins: list[int] = []
        self._used: list[int] = []

    def add(self, begin: int, size: int, is_mapped: bool) -> None:
        """Add a region. Those that are mapped into one range of addresses are joined."""
        end = begin + size
        if is_mapped:
            if (after := self.regions.get(end)) and after[1]:
                self._drop(end)
                end = after[0]
            before = self._find(begin)
            if before is not None and self.regions[before] == (begin, True):
                self._drop(before)
                begin = before
        self._keep(begin, end, is_mapped)

    def remove(self, begin: int, size: int) -> None:
        start = self._find(begin)
        if start is None:
            return
        end, is_mapped = self.regions[start]
        self._drop(start)
        if start < begin:
            self._keep(start, begin, is_mapped)
        if begin + size < end:
            self._keep(begin + size, end, is_mapped)

    def _keep(self, begin: int, end: int, is_mapped: bool) -> None:
        self.regions[begin] = (end, is_mapped)
        bisect.insort(self._begins, begin)

    def _drop(self, begin: int) -> None:
        del self.regions[begin]
        del self._begins[bisect.bisect_left(self._begins, begin)]

    def _find(self, address: int) -> int | None:
        """Return the begin of the last region that begins at ``address`` or before."""
        at = bisect.bisect_right(self._begins, address)
        return self._begins[at - 1] if at else None

    def use(self, address: int, asked: int) -> int:
        """Give out ``asked`` bytes at ``address``; return the size of the block."""
        size = max(-(-asked // _SMALLEST) * _SMALLEST, _SMALLEST)
        begin, at = self._find(address), bisect.bisect_right(self._used, address)
        self._used.insert(at, address)
        if begin is None or self.regions[begin][0] <= address:
            return size
        end, is_mapped = self.regions[begin]
        room = (min(end, self._used[at + 1]) if at + 1 < len(self._used) else end) - address
        least_rest = _SMALLEST if is_mapped or size <= _SMALL else _SMALL + 1
        return size if room - size >= least_rest else max(room, size)

    def release(self, address: int) -> None:
        at = bisect.bisect_left(self._used, address)
        if at < len(self._used) and self._used[at] == address:
            del self._used[at]

    def measure_free(self, blocks: Sequence[Block], asked: int) -> tuple[int, int, int]:
        """Return the free bytes of regions without one of ``blocks``, those between them, and the largest free piece.

        That is of the regions from which ``asked`` bytes could come: the small ones are for small blocks alone.
        """
        sizes = {block.address: block.size for block in blocks}
        used = sorted(sizes)
        whole = between = largest = 0
        for begin, (end, is_mapped) in self.regions.items():
            serves = is_mapped or (end - begin == _SMALL_REGION) == (asked <= _SMALL)
            inside = used[bisect.bisect_left(used, begin) : bisect.bisect_left(used, end)]
            at, free = begin, 0
            for address in [*inside, end]:
                free += address - at
                largest = max(largest, address - at) if serves else largest
                at = address + sizes.get(address, 0)
            whole, between = (whole, between + free) if inside else (whole + free, between)
        return whole, between, largest


@dataclass(frozen=True)
class Moment:
    """What is in use at a row of the trace, which came at ``at_us``, and what of the reserved memory is free."""

    row: int
    at_us: int
    blocks: tuple[Block, ...]
    cached: int
    fragmented: int
    largest_free: int

    @property
    def allocated(self) -> int:
        return sum(block.size for block in self.blocks)


@dataclass
class Replay:
    """The allocator of one device over a trace. ``allocated`` has the bytes in use after each of its rows."""

    blocks: list[Block] = field(default_factory=list)
    allocated: list[int] = field(default_factory=list)
    #: Blocks whose size at the end is another one than the snapshot says.
    wrong: int = 0
    peak: Moment | None = None
    failure: Moment | None = None


_GIVES: Final = {"segment_alloc": False, "segment_map": True}
_TAKES: Final = {"segment_free": False, "segment_unmap": True}


def replay(segments: Sequence[Mapping[str, Any]], trace: Sequence[Mapping[str, Any]], stacks: StackReader) -> Replay:
    """Follow the allocator of a device over ``trace``."""
    state, done = _first_segments(segments, trace), Replay()
    active = ("active_allocated", "active_awaiting_free")
    last = {block["address"]: block for block in _blocks_of(segments) if block["state"] in active}
    used: dict[int, Block] = {}
    total = 0
    for address, asked in sorted(_first_blocks(last, trace).items()):
        held = last.get(address, {})
        stack = stacks.read(held["frames"]) if held.get("frames") else Stack()
        size = state.use(address, asked)
        used[address] = Block(address, asked, held.get("size", size), stack, str(held.get("user_metadata") or ""))
        total += used[address].size
    done.blocks += used.values()
    for row, entry in enumerate(trace):
        action, address, size = entry["action"], entry.get("addr", 0), entry["size"]
        if action == "alloc":
            block = Block(
                address, size, 0, stacks.read(entry.get("frames")), str(entry.get("user_metadata") or ""), row
            )
            block.size = state.use(address, size)
            used[address] = block
            done.blocks.append(block)
            total += block.size
        elif action in ("free_requested", "free_completed"):
            # The first of them counts: until the second one a block waits for another stream.
            if address in used and used[address].end is None:
                used[address].end = row
                total -= used[address].size
            if action == "free_completed":
                state.release(address)
                used.pop(address, None)
        elif action in _GIVES:
            state.add(address, size, _GIVES[action])
        elif action in _TAKES:
            state.remove(address, size)
        done.allocated.append(total)
    done.wrong = sum(block.size != last.get(address, {}).get("size") for address, block in used.items())
    if done.allocated:
        done.peak = _look(max(range(len(trace)), key=done.allocated.__getitem__), done, segments, trace)
    if failed := [row for row, entry in enumerate(trace) if entry["action"] == "oom"]:
        done.failure = _look(failed[-1], done, segments, trace)
    return done


def _look(row: int, done: Replay, segments: Sequence[Mapping[str, Any]], trace: Sequence[Mapping[str, Any]]) -> Moment:
    """Return what is in use after ``row`` of the trace."""
    state = _first_segments(segments, trace)
    for entry in trace[: row + 1]:
        if entry["action"] in _GIVES:
            state.add(entry["addr"], entry["size"], _GIVES[entry["action"]])
        elif entry["action"] in _TAKES:
            state.remove(entry["addr"], entry["size"])
    blocks = tuple(block for block in done.blocks if block.begin <= row and (block.end is None or block.end > row))
    return Moment(row, int(trace[row].get("time_us") or row), blocks, *state.measure_free(blocks, trace[row]["size"]))


def _blocks_of(segments: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the blocks; early releases of torch do not state their addresses."""
    for segment in segments:
        address = segment.get("address", 0)
        for block in segment["blocks"]:
            yield {"address": address, "requested_size": block["size"], **block}
            address += block["size"]


def _first_blocks(last: Mapping[int, Mapping[str, Any]], trace: Sequence[Mapping[str, Any]]) -> dict[int, int]:
    """Return what was in use when the trace begins: the bytes asked for by address."""
    used = {address: int(block["requested_size"]) for address, block in last.items()}
    for entry in reversed(trace):
        if entry["action"] == "alloc":
            used.pop(entry["addr"], None)
        elif entry["action"] == "free_completed":
            used[entry["addr"]] = entry["size"]
    return used


def _first_segments(segments: Sequence[Mapping[str, Any]], trace: Sequence[Mapping[str, Any]]) -> _Segments:
    """Return the memory that the allocator had of the driver when the trace begins."""
    state = _Segments()
    for segment in segments:
        state.add(segment.get("address", 0), segment["total_size"], bool(segment.get("is_expandable")))
    for entry in reversed(trace):
        if entry["action"] in _GIVES:
            state.remove(entry["addr"], entry["size"])
        elif entry["action"] in _TAKES:
            state.add(entry["addr"], entry["size"], _TAKES[entry["action"]])
    return state


# --- whose a block is ------------------------------------------------------------------------------------------------


class _Passes:
    """The pass at each row of a trace, and how many passes, backward passes and steps began until then."""

    def __init__(self, done: Replay, rows: int, begins: Sequence[int]) -> None:
        during: dict[int, Pass] = {block.begin: block.stack.during for block in done.blocks if block.begin >= 0}
        steps, now, number, backwards, step = set(begins), Pass.OTHER, 0, 0, 0
        self.during: list[Pass] = []
        self.counts: list[tuple[int, int, int]] = []
        for row in range(rows):
            if row in steps:
                number, step, now = number + 1, step + 1, Pass.OTHER
            if (then := during.get(row, now)) is not now:
                number, backwards, now = number + 1, backwards + (then is Pass.BACKWARD), then
            self.during.append(now)
            self.counts.append((number, backwards, step))
        self.has_backward = backwards > 0

    def at(self, row: int) -> tuple[int, int, int]:
        return self.counts[row] if 0 <= row < len(self.counts) else (0, 0, 0)


def assign_parts(done: Replay, passes: _Passes, tensors: Mapping[int, tuple[str, str]], trains: bool) -> None:
    """Set the part of each block.

    ``tensors`` are kind and type of data by address at the end. ``trains``: what failed would be kept for a backward
    pass.
    """
    addresses = sorted(tensors)
    last = len(passes.counts) - 1
    workspaces: set[tuple[int, Pass]] = set()
    for block in done.blocks:
        block.part = _choose_part(block, passes, last, trains)
        if block.end is None and block.size in _WORKSPACES and block.stack.during is not Pass.OPTIMIZER:
            # The first one of a thread; a later one is a tensor, and of the small ones most are.
            is_workspace = (block.size, block.stack.during) not in workspaces
            is_workspace = is_workspace and (block.size > _SMALL or block.part is MemoryPart.KEPT)
            workspaces.add((block.size, block.stack.during))
            block.part = MemoryPart.WORKSPACE if is_workspace else block.part
        at = bisect.bisect_left(addresses, block.address)
        inside = addresses[at] if at < len(addresses) and block.end is None else -1
        if block.address <= inside < block.address + block.size:
            kind, block.data_type = tensors[inside]
            block.part = MemoryPart(kind)


#: The sizes of the workspaces that torch gives to cuBLAS for good at the first product of matrices in a thread
#: (aten/src/ATen/cuda/CUDABlas.cpp): of GPUs from Hopper on, and of others; and to cuBLASLt.
_WORKSPACES: Final = {1 << 25, 8_519_680, 1 << 20}


def _choose_part(block: Block, passes: _Passes, last: int, trains: bool) -> MemoryPart:
    end = last if block.end is None else block.end
    (number, backwards, step), (number_end, backwards_end, step_end) = passes.at(block.begin), passes.at(end)
    is_held, during = block.end is None, block.stack.during
    if block.stack.makes_parameters:
        return MemoryPart.PARAMETERS
    if during is Pass.OPTIMIZER:
        return MemoryPart.TEMPORARY if number == number_end and not is_held else MemoryPart.OPTIMIZER
    if during is Pass.BACKWARD:
        return MemoryPart.TEMPORARY if number == number_end else MemoryPart.GRADIENTS
    ends_in_backward = not is_held and passes.during[end] is Pass.BACKWARD
    if during is Pass.OTHER:
        return MemoryPart.ACTIVATIONS if ends_in_backward else MemoryPart.OTHER
    if step_end > step + 1:
        return MemoryPart.KEPT
    if backwards_end > backwards or (is_held and trains):
        return MemoryPart.ACTIVATIONS
    if is_held and passes.has_backward and step == step_end:
        return MemoryPart.ACTIVATIONS
    return MemoryPart.KEPT if step_end > step else MemoryPart.TEMPORARY


# --- rows ------------------------------------------------------------------------------------------------------------

_NUMBER: Final = re.compile(r"\.\d+(?=\.|$)")
#: Blocks that are listed, points of the picture, and steps that it shows.
_MOST_BLOCKS: Final = 20
_POINTS: Final = 160
_STEPS: Final = 2
#: A leak is at least so many bytes a step, and a thousandth of the peak.
_LEAST_GROWTH: Final = 1 << 20
#: So many steps must leave memory behind, after the first ones.
_LEAST_STEPS: Final = 3


@dataclass(frozen=True)
class DeviceMemory:
    """What is known of the memory of a device: its rows, and what contradicts torch's own counters."""

    rows: list[dict[str, Any]]
    notes: list[str]


def read_facts(snapshot: Path) -> dict[str, Any]:
    """Return the facts that the start-up hook has written beside ``snapshot``; empty where there are none."""
    path = snapshot.with_name(snapshot.name.removesuffix(".gz").replace(".memory.pickle", ".memory.json"))
    if ".memory.json" not in path.name or not path.exists():
        return {}
    try:
        facts: dict[str, Any] = json.loads(atomic.read_regular(path))
        return facts
    except (ValueError, OSError, RecursionError) as error:
        raise UnreadableFile(path, f"is damaged ({error})", "Record the program again.") from error


def divide(snapshot: Mapping[str, Any], facts: Mapping[str, Any]) -> Iterator[DeviceMemory]:
    """Yield the memory of each device that the snapshot has."""
    for device, trace in enumerate(snapshot["device_traces"]):
        segments = [segment for segment in snapshot["segments"] if segment.get("device", 0) == device]
        if segments or trace:
            yield _divide_device(device, segments, trace, {"steps": _steps_of(snapshot, device), **facts})


def _steps_of(snapshot: Mapping[str, Any], device: int) -> list[tuple[int, int]]:
    """Return numbers and begins of the steps of a snapshot without facts: each call of an optimizer ends one."""
    notes = (note for note in snapshot.get("external_annotations", ()) if note.get("device", device) == device)
    ends = {int(n["time_us"]) for n in notes if n["stage"] == "END" and n["name"].startswith("Optimizer.step#")}
    return list(enumerate(sorted(ends)))


def _divide_device(
    device: int, segments: Sequence[Mapping[str, Any]], trace: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]
) -> DeviceMemory:
    counters = facts.get("devices", {}).get(str(device), {})
    failures = [failure for failure in facts.get("out_of_memory", ()) if failure["device"] == device]
    done = replay(segments, trace, StackReader(str(facts.get("folder") or "")))
    times = [int(entry.get("time_us") or row) for row, entry in enumerate(trace)]
    begins = [bisect.bisect_left(times, at) for _, at in facts.get("steps", ())]
    passes = _Passes(done, len(trace), begins)
    tensors = {
        address: (_KINDS.get(kind, kind), data_type)
        for address, of, kind, data_type in facts.get("tensors", ())
        if of == device
    }
    assign_parts(done, passes, tensors, any(failure.get("is_training") for failure in failures))
    rows = list(_rows_of_moment(MemoryMoment.PEAK, done.peak, times, _outside(counters)))
    if done.failure is not None:
        failure = failures[-1] if failures else {}
        outside = _outside({**counters, **failure})
        rows += _rows_of_moment(MemoryMoment.FAILURE, done.failure, times, outside)
        asked = [entry for entry in trace if entry["action"] == "oom"]
        rows += [_asked(entry, failure if entry is asked[-1] else {}, times[0]) for entry in asked]
        rows.append(_row(MemoryMoment.LARGEST_FREE, MemoryPart.FRAGMENTED, done.failure.largest_free, 1))
        if failure:
            reserved = done.failure.allocated + done.failure.cached + done.failure.fragmented
            free = min(failure["free"], max(failure["may_use"] - reserved, 0))
            rows.append(_row(MemoryMoment.FREE, MemoryPart.OTHER, free, None))
        is_expandable = any(segment.get("is_expandable") for segment in segments)
        rows += _advise(done.failure, failure, outside, is_expandable)
    if total := counters.get("total"):
        may_use = min([counters.get("may_use", total), *(failure["may_use"] for failure in failures)])
        room = min(may_use, total - (_outside(counters) or 0))
        for moment, size in ((MemoryMoment.CAPACITY, may_use), (MemoryMoment.ROOM, room)):
            rows.append(_row(moment, MemoryPart.OTHER, size, None))
    rows += _rows_over_time(done, passes, times, begins)
    rows += _growth(done, passes, begins)
    notes = [f"{done.wrong} blocks have another size than the snapshot says"] if done.wrong else []
    peak, counted = done.peak.allocated if done.peak else 0, counters.get("allocated_bytes.all.peak")
    if counted is not None and counted != peak:
        notes.append(f"the parts of the peak add up to {peak} bytes, and torch counted {counted}")
    return DeviceMemory([{**row, "device": device} for row in rows], notes)


_KINDS: Final = {"buffers": MemoryPart.PARAMETERS.value}


def _outside(counters: Mapping[str, Any]) -> int | None:
    if not {"total", "free", "reserved_bytes.all.current"} <= counters.keys():
        return None
    return max(int(counters["total"] - counters["free"] - counters["reserved_bytes.all.current"]), 0)


def _rows_of_moment(
    moment: MemoryMoment, at: Moment | None, times: Sequence[int], outside: int | None
) -> Iterator[dict[str, Any]]:
    """Yield the parts of a moment by module and operator, then its largest blocks."""
    if at is None:
        return
    groups: dict[tuple[MemoryPart, str], list[Block]] = {}
    for block in at.blocks:
        groups.setdefault((block.part, _name(block)), []).append(block)
    at_ns = 1e3 * (at.at_us - times[0])
    for (part, name), blocks in groups.items():
        by_place: Counter[str] = Counter()
        for block in blocks:
            by_place[block.stack.place] += block.asked
        size = sum(block.asked for block in blocks)
        place = by_place.most_common(1)[0][0]
        yield _row(moment, part, size, len(blocks), name, place, at_ns)
    rounding = sum(block.size - block.asked for block in at.blocks)
    for part, unused in (
        (MemoryPart.ROUNDING, rounding),
        (MemoryPart.CACHED, at.cached),
        (MemoryPart.FRAGMENTED, at.fragmented),
        (MemoryPart.OUTSIDE, outside),
    ):
        if unused:
            yield _row(moment, part, unused, None, at_ns=at_ns)
    alike: Counter[tuple[MemoryPart, str, str, int]] = Counter(
        (block.part, _NUMBER.sub(".*", _name(block)), block.stack.place, block.asked) for block in at.blocks
    )
    largest = sorted(alike.items(), key=lambda item: (-item[0][3] * item[1], item[0]))[:_MOST_BLOCKS]
    for (part, name, place, asked), count in largest:
        yield _row(MemoryMoment(f"{moment.value}_block"), part, asked * count, count, name, place, at_ns)


def _name(block: Block) -> str:
    """Return the path of the module of an activation, the type of parameters, and the function behind others."""
    if block.part in _NAMED_BY_TYPE:
        return block.data_type
    if block.part is MemoryPart.TEMPORARY or not block.module:
        return block.stack.operator
    return re.sub(r"#\d+", "", block.module)


_NAMED_BY_TYPE: Final = (MemoryPart.PARAMETERS, MemoryPart.GRADIENTS, MemoryPart.OPTIMIZER, MemoryPart.WORKSPACE)


def _row(
    moment: MemoryMoment,
    part: MemoryPart,
    size: float,
    blocks: int | None,
    name: str = "",
    place: str = "",
    at_ns: float | None = None,
) -> dict[str, Any]:
    about = {"moment": moment.value, "part": part.value, "name": name, "place": place}
    return {**about, "bytes": float(size), "blocks": blocks, "at_ns": at_ns}


def _asked(entry: Mapping[str, Any], failure: Mapping[str, Any], begin_us: int) -> dict[str, Any]:
    """Return the row of what could not be had; its name is the module or the function that asked."""
    stack = StackReader("").read(entry.get("frames"))
    name = str(entry.get("user_metadata") or "") or stack.operator
    place = str(failure.get("place") or stack.place)
    at_ns = 1e3 * (int(entry.get("time_us") or begin_us) - begin_us)
    return _row(MemoryMoment.ASKED, _ASKS[stack.during], entry["size"], 1, name, place, at_ns)


_ASKS: Final = {
    Pass.FORWARD: MemoryPart.ACTIVATIONS,
    Pass.BACKWARD: MemoryPart.GRADIENTS,
    Pass.OPTIMIZER: MemoryPart.OPTIMIZER,
    Pass.OTHER: MemoryPart.OTHER,
}


def _advise(
    at: Moment, failure: Mapping[str, Any], outside: int | None, is_expandable: bool
) -> Iterator[dict[str, Any]]:
    """Yield what would free memory, and how much at most."""
    kept = [block for block in at.blocks if block.part is MemoryPart.ACTIVATIONS]
    layers: dict[str, Counter[str]] = {}
    for block in kept:
        if match := _NUMBER.search(block.module):
            layers.setdefault(f"{block.module[: match.start()]}.*", Counter())[match[0]] += block.size
    for path, sizes in layers.items():
        if len(sizes) > 1:
            # One layer is computed again at a time.
            yield _row(MemoryMoment.ADVICE, MemoryPart.ACTIVATIONS, sizes.total() - max(sizes.values()), None, path)
    types = Counter[str]()
    for block in at.blocks:
        types[block.data_type] += block.size if block.part is MemoryPart.PARAMETERS else 0
    if kept and types["float32"] > types.total() / 2 and not failure.get("is_autocast"):
        yield _row(MemoryMoment.ADVICE, MemoryPart.ACTIVATIONS, sum(block.size for block in kept) / 2, None, "bfloat16")
    if at.cached + at.fragmented and not is_expandable:
        free = at.cached + at.fragmented
        yield _row(MemoryMoment.ADVICE, MemoryPart.FRAGMENTED, free, None, "expandable_segments")
    if outside and failure.get("free", 0) < failure.get("asked", 0):
        yield _row(MemoryMoment.ADVICE, MemoryPart.OUTSIDE, outside, None, "outside")


def _rows_over_time(
    done: Replay, passes: _Passes, times: Sequence[int], begins: Sequence[int]
) -> Iterator[dict[str, Any]]:
    """Yield the bytes of each part at points of the last whole steps, or of the whole trace where it has no steps."""
    rows = len(passes.counts)
    edges = [begin for begin in begins if begin < rows]
    first, last = (edges[-_STEPS - 1], edges[-1]) if len(edges) > _STEPS else (0, rows)
    if last - first < 2:
        return
    changes: dict[int, list[tuple[MemoryPart, int]]] = {}
    now: Counter[MemoryPart] = Counter()
    for block in done.blocks:
        if block.begin < first and (block.end is None or block.end >= first):
            now[block.part] += block.size
        for row, size in ((block.begin, block.size), (block.end, -block.size)):
            if row is not None and first <= row < last:
                changes.setdefault(row, []).append((block.part, size))
    width = (times[last - 1] - times[first]) / _POINTS or 1.0
    best: tuple[int, int, Counter[MemoryPart]] | None = None
    point = 0
    for row in range(first, last):
        for part, size in changes.get(row, ()):
            now[part] += size
        if int((times[row] - times[first]) / width) > point and best is not None:
            yield from _point(best, passes, times)
            best, point = None, int((times[row] - times[first]) / width)
        if best is None or now.total() > best[0]:
            best = (now.total(), row, now.copy())
    if best is not None:
        yield from _point(best, passes, times)


def _point(
    best: tuple[int, int, Counter[MemoryPart]], passes: _Passes, times: Sequence[int]
) -> Iterator[dict[str, Any]]:
    _, row, parts = best
    for part, size in parts.items():
        during = passes.during[row].value
        yield _row(MemoryMoment.TIME, part, size, None, during, at_ns=1e3 * (times[row] - times[0]))


def _growth(done: Replay, passes: _Passes, begins: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Yield by line what each of the steps leaves behind, the first ones and the last one aside."""
    first, last = len(begins) - _LEAST_STEPS, len(begins)
    left: dict[str, dict[int, list[Block]]] = {}
    for block in done.blocks:
        step = passes.at(block.begin)[2]
        if block.end is None and first <= step < last and block.begin >= 0:
            left.setdefault(block.stack.place or block.stack.operator, {}).setdefault(step, []).append(block)
    steady = {place: steps for place, steps in left.items() if len(steps) == _LEAST_STEPS}
    sizes = {
        place: min(sum(block.size for block in blocks) for blocks in steps.values()) for place, steps in steady.items()
    }
    least = max(_LEAST_GROWTH, (done.peak.allocated if done.peak else 0) / 1000)
    if first < 1 or sum(sizes.values()) < least:
        return
    for place, size in sizes.items():
        block = steady[place][first][0]
        yield _row(MemoryMoment.GROWTH, block.part, size, len(steady[place][first]), block.module, place)
    newest = max((block for steps in steady.values() for block in steps[first]), key=lambda block: block.begin)
    yield _row(MemoryMoment.GROWTH_LAST, newest.part, newest.size, 1, newest.module, newest.stack.place)


def make_tables(snapshot: Mapping[str, Any], facts: Mapping[str, Any], form: str) -> schema.Tables:
    """Return the table `memory` of a snapshot, and the peak as a metric."""
    devices = list(divide(snapshot, facts))
    rank, process = facts.get("rank"), facts.get("pid")
    frame = schema.frame(schema.MEMORY, [row for device in devices for row in device.rows])
    origin = schema.Origin(
        format=form,
        tool="memory",
        tool_version=f"torch {facts['torch']}" if facts.get("torch") else "",
        notes=tuple(note for device in devices for note in device.notes),
    )
    return schema.Tables(memory=frame.assign(process=_number(process), rank=_number(rank)), origin=origin)


def _number(value: Any) -> Any:
    return pd.array([value], dtype="Int64")[0] if value is not None else pd.NA
