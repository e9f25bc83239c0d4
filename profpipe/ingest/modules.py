"""The times of the modules of a PyTorch program, from a trace with ranges around their calls.

A kernel of the forward pass belongs to the innermost module around its launch. One of the backward pass belongs to the
module that called the operator with the same sequence number: autograd numbers the nodes of a thread, and
torch.profiler writes the number of the node to the operator that made it and to ``evaluate_function`` of the node
(``profiler_kineto.cpp``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from profpipe.ingest.groupby import Bools, Int64s, Union
from profpipe.ingest.operations import UNKNOWN
from profpipe.ingest.recording import Recording
from profpipe.ingest.torch_events import Trace
from profpipe.results import schema
from profpipe.results.schema import Pass

#: What holds launches beside calls of modules, by the beginning of its name.
_NODE = re.compile("autograd::engine::evaluate_function: ")
_COMPILED = re.compile("Torch-Compiled Region|CompiledFunction|autograd::engine::evaluate_function: Compiled")
_OPTIMIZER = re.compile(r"Optimizer\.step#")


class _Place(NamedTuple):
    """Where a launch lies: the event that is the call of its module, -1 outside all modules."""

    call: int
    part: Pass
    is_compiled: bool = False


def rows(recording: Recording, trace: Trace) -> pd.DataFrame:
    """Return rows of `modules`: means over the steps of the trace, none without a step."""
    work, launches, ranges = recording.operations, recording.launches, recording.ranges
    names = [ranges.recorded[name] for name in ranges.name.tolist()]
    begun = [row for row in np.argsort(ranges.start).tolist() if names[row].startswith(schema.MODULES_PREFIX)]
    # The ranges of modules begin inside the first step, and the last one may have no end.
    ended = begun[1 : names.count(schema.MODULES_END)]
    # A prefill and a decoded token have no common mean.
    calls = [names[row].partition(" ")[2] for row in ended]
    whole = [row for row, call in zip(ended, calls, strict=True) if call == max(calls, key=calls.count)]
    if not whole:
        return schema.empty(schema.MODULES)
    time = np.where(launches.start == UNKNOWN, work.start, launches.start)
    is_counted = launches.is_kernel if recording.on_gpu else np.ones(len(time), dtype=bool)
    counted = np.flatnonzero(is_counted & Union(ranges.start[whole], ranges.end[whole]).contains(time))
    tree = _Tree(trace, launches.thread[counted], time[counted])
    places = pd.DataFrame(tree.places(), columns=list(_Place._fields))
    places["ns"] = (work.end - work.start)[counted] / len(whole)
    sums: dict[tuple[str, str], dict[str, float]] = {}
    for place, group in places.groupby(["call", "part", "is_compiled"]):
        call, part, is_compiled = place
        ns, launched = float(group["ns"].sum()), len(group) / len(whole)
        names = tree.names_around(call)
        for name in dict.fromkeys(names):
            row = sums.setdefault((name, part), dict.fromkeys(("self_ns", "total_ns", "compiled_ns", "launches"), 0.0))
            row["total_ns"] += ns
            if name == names[0]:
                row["self_ns"] += ns
                row["launches"] += launched
                row["compiled_ns"] += ns if is_compiled else 0.0
    process = int(trace.pids(np.array([tree.process]))[0])
    keys = ("module", "type")
    given = [
        {
            **dict(zip(keys, name.rsplit(":", 1), strict=True)),
            "part": part,
            "process": process,
            "steps": len(whole),
            **row,
        }
        for (name, part), row in sums.items()
    ]
    return schema.frame(schema.MODULES, given)


class _Tree:
    """The calls of modules, what autograd recorded, and the launches, with the innermost event around it."""

    def __init__(self, trace: Trace, thread: Int64s, time: Int64s) -> None:
        calls = trace.frame("module")
        events = pd.concat([calls, trace.frame("autograd")], ignore_index=True)
        self._names = [trace.texts[code] for code in events["name"].astype(int)]
        self._count, self._calls = len(events), len(calls)
        self.process = int(trace.process_codes[calls["thread"].astype(int).iloc[0]])
        start = np.rint(events["start"].to_numpy() * 1000).astype(np.int64)
        end = start + np.rint(events["dur"].to_numpy() * 1000).astype(np.int64)
        kinds = [self._matching(trace, events, pattern) for pattern in (_NODE, _COMPILED, _OPTIMIZER)]
        self._is_node, self._is_compiled, self._is_optimizer = kinds
        opens = np.logical_or.reduce([np.arange(self._count) < self._calls, *kinds])
        self._around = _around(
            np.concatenate([events["thread"].to_numpy().astype(np.int64), thread]),
            np.concatenate([start, time]),
            np.concatenate([end, time]),
            np.concatenate([opens, np.zeros(len(time), dtype=bool)]),
        )
        self._forward = dict(_forward_operators(events, self._is_node))
        self._places: dict[int, _Place] = {-1: _Place(-1, Pass.OTHER)}

    def _matching(self, trace: Trace, events: pd.DataFrame, pattern: re.Pattern[str]) -> Bools:
        return events["name"].isin(trace.named(pattern.match)).to_numpy()

    def places(self) -> Iterator[_Place]:
        """Yield the places of the launches."""
        return (self._place(around) for around in self._around[self._count :])

    def _place(self, event: int) -> _Place:
        """Return the place of what the event holds."""
        if event not in self._places:
            # Damaged numbers could lead back to this event.
            self._places[event] = self._places[-1]
            self._places[event] = self._find_place(event)
        return self._places[event]

    def _find_place(self, event: int) -> _Place:
        around = self._place(self._around[event])
        if event < self._calls:
            # A call inside the backward pass computes the forward pass again.
            return _Place(event, Pass.BACKWARD if around.part is Pass.BACKWARD else Pass.FORWARD)
        is_compiled = bool(self._is_compiled[event])
        if self._is_node[event]:
            operator = self._forward.get(event)
            place = around if operator is None else self._place(self._around[operator])
            return _Place(place.call, Pass.BACKWARD, is_compiled or place.is_compiled)
        if self._is_optimizer[event] and around.call < 0:
            return _Place(-1, Pass.OPTIMIZER, is_compiled)
        return around._replace(is_compiled=is_compiled or around.is_compiled)

    def names_around(self, call: int) -> list[str]:
        """Return path and class of a module and of those that called it, the innermost one first."""
        names = [] if call >= 0 else [":"]
        while call >= 0:
            names.append(schema.decoded(self._names[call]).removeprefix(schema.MODULE_PREFIX))
            call = self._place(self._around[call]).call
        return names


def _around(thread: Int64s, start: Int64s, end: Int64s, opens: Bools) -> list[int]:
    """Return for an event the innermost one that ``opens`` and holds its start on its thread, -1 without one."""
    parents, stack = [-1] * len(start), list[int]()
    threads, starts, ends, opening = (values.tolist() for values in (thread, start, end, opens))
    for event in np.lexsort((~opens, -end, start, thread)).tolist():
        while stack and (threads[stack[-1]] != threads[event] or ends[stack[-1]] <= starts[event]):
            stack.pop()
        if stack:
            parents[event] = stack[-1]
        if opening[event]:
            stack.append(event)
    return parents


def _forward_operators(events: pd.DataFrame, is_node: Bools) -> Iterator[tuple[int, int]]:
    """Yield (node of the backward pass, the operator that made it).

    Operators show the number that the next node will get, so the last one to show a number made the node. ``forward``
    is autograd's number of a thread, 0 for operators: the thread is the one that shows most of its numbers.
    """
    events = events.assign(event=events.index)
    numbered = events[events["sequence"] >= 0].sort_values("start", kind="stable")
    made = numbered[~(numbered["forward"] > 0)].drop_duplicates(["thread", "sequence"], keep="last")
    nodes = numbered[(numbered["forward"] > 0) & is_node[numbered.index]]
    pairs = nodes.merge(made, on="sequence", suffixes=("", "_made"))
    votes: Any = pairs.groupby(["forward", "thread_made"]).size().sort_values(ascending=False).reset_index()
    thread_of = votes.drop_duplicates("forward").set_index("forward")["thread_made"]
    joined = pairs[pairs["forward"].map(thread_of) == pairs["thread_made"]]
    yield from zip(joined["event"].tolist(), joined["event_made"].tolist(), strict=True)
