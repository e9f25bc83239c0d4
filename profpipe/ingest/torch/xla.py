"""Read the events of XLA's profiler, which jax.profiler and TensorFlow write, as events of Kineto.

A process of the trace is a device (``/device:GPU:0``) or the host. What ran on a GPU is in its rows ``Stream #...``.
Its other rows (``XLA Modules``, ``XLA Ops``, ``Steps``, ``Framework Ops``, ...) repeat it. Sources: openxla/xla,
backends/profiler/gpu/cupti_collector.cc and tsl/profiler/utils/xplane_schema.cc.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from profpipe.errors import UnreadableFile

_PLACE = re.compile(r"(?:^|\s)(/(device|host):(\w+)(?::(\d+))?)")
_STREAM = re.compile(r"\bStream #(\d+)")
#: A step whose number is in its name; StepTraceAnnotation gives it as ``step_num``.
_NUMBERED = re.compile(r"(\w*(?:train|step|iter|eval)\w*)[ _#](\d+)", re.IGNORECASE)
_COPY = re.compile(r"^Memcpy([HDAP])2([HDAP])$")
_BYTES = re.compile(r"\bsize:(\d+)")
_SHAPE = {name: re.compile(rf"\b{name}:(\d+),(\d+),(\d+)") for name in ("grid", "block")}
#: Allocations are no work of the GPU.
_ALLOCATIONS = {"memalloc_details", "memfree_details", "memoryresidency_details"}

_NSYS = "nsys profile -t cuda,nvtx -o OUT python PROGRAM"

Event = dict[str, Any]


class Rows:
    """The devices, streams and hosts that the metadata of a trace name, and the steps that its hosts mark."""

    def __init__(self) -> None:
        self._places: dict[str, re.Match[str]] = {}
        self._streams: dict[tuple[str, str], int] = {}
        self._steps: list[Event] = []
        #: The names of the steps without their numbers, by the names that they have in the trace.
        self.step_names: dict[str, str] = {}

    def __bool__(self) -> bool:
        return bool(self._places)

    def note(self, event: Event) -> None:
        """Note the name of a process or a thread."""
        given = event.get("args")
        name = str(given.get("name")) if isinstance(given, dict) else ""
        if event.get("name") == "process_name" and (place := _PLACE.search(name)):
            self._places[str(event.get("pid"))] = place
        elif event.get("name") == "thread_name" and (stream := _STREAM.search(name)):
            self._streams[str(event.get("pid")), str(event.get("tid"))] = int(stream[1])

    def check(self, path: Path) -> None:
        """Raise ``UnreadableFile`` for a trace without a stream of a GPU."""
        kinds = {place[3].upper(): place[1] for place in self._places.values() if place[2] == "device"}
        if "TPU" in kinds:
            remedy = (
                "profpipe reads recordings of GPUs. Open this one with XProf: pip install xprof; xprof --logdir FOLDER."
            )
            raise UnreadableFile(path, f"a JAX trace of a TPU ({kinds['TPU']})", remedy)
        if "GPU" not in kinds:
            of = f"a JAX trace of {', '.join(kinds.values())}" if kinds else "a JAX trace of the host alone"
            remedy = f"Run the program where jax.devices() lists a GPU, or record it with nsys: {_NSYS}."
            raise UnreadableFile(path, f"{of}, without a GPU", remedy)
        if not self._streams:
            remedy = f"End other profilers of the GPU and record again, or record with nsys: {_NSYS}."
            raise UnreadableFile(path, f"a JAX trace in which nothing ran on {kinds['GPU']}", remedy)

    def translate(self, event: Event) -> Event | None:
        """Return work of a GPU, or the call that launched it, as Kineto writes it; None for another event."""
        place = self._places.get(str(event.get("pid")))
        if place is None or event.get("ph") != "X":
            return None
        args = event.get("args") or {}
        common = {"ph": "X", "ts": event["ts"], "dur": event.get("dur", 0)}
        ids = {"correlation": args.get("correlation_id"), "External id": _group(args)}
        name = str(event["name"])
        if place[2] == "device":
            stream = self._streams.get((str(event["pid"]), str(event.get("tid"))))
            if place[3].upper() != "GPU" or stream is None or not _ALLOCATIONS.isdisjoint(map(str.lower, args)):
                return None
            name, category, more = _work(name, args)
            where = {"device": int(place[4] or 0), "stream": stream}
            return {**common, "cat": category, "name": name, "args": {**ids, **where, **more}}
        found = _NUMBERED.fullmatch(name)
        number = args.get("step_num", found and found[2])
        if number is not None:
            # The search for steps knows a step by this name. A colon would end the domain before it.
            label = found[1] if found else name.replace(":", " ") or "step"
            numbered = f"{label}:step {number}"
            self.step_names[numbered] = label
            self._steps.append(
                {**common, "cat": "user_annotation", "name": numbered, "tid": event.get("tid"), "args": ids}
            )
            return None
        # XLA numbers the hosts itself. The numbers are no process ids.
        return (
            {**common, "cat": "cuda_driver", "name": name, "tid": event.get("tid"), "args": ids}
            if ids["correlation"]
            else None
        )

    def steps(self) -> Iterator[Event]:
        """Yield the steps, each of which ends where the next one of its thread begins, if not before."""
        steps = sorted(self._steps, key=lambda step: (str(step["tid"]), float(step["ts"])))
        for step, following in itertools.zip_longest(steps, steps[1:]):
            longest = (
                float(following["ts"]) - float(step["ts"])
                if following and following["tid"] == step["tid"]
                else math.inf
            )
            yield {**step, "dur": min(float(step["dur"]), longest)}


def _group(args: Event) -> int | None:
    """Return the number of the step that XLA grouped an event with, from 1."""
    text = str(args.get("group_id"))
    return int(text) + 1 if text.isdecimal() and len(text) < 16 else None


def _work(name: str, args: Event) -> tuple[str, str, Event]:
    """Return the name of work on a GPU, its category and its sizes, as Kineto writes them."""
    details = " ".join(str(value) for key, value in args.items() if str(key).endswith("_details"))
    if copy := _COPY.match(name):
        name = f"Memcpy {copy[1]}to{copy[2]}"
    category = "gpu_memcpy" if name.startswith("Memcpy") else "gpu_memset" if name.startswith("Memset") else "kernel"
    shapes = {
        key: [int(size) for size in found.groups()] for key, own in _SHAPE.items() if (found := own.search(details))
    }
    size = _BYTES.search(details)
    return name, category, {**shapes, **({"bytes": int(size[1])} if size else {})}
