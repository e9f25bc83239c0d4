"""Load a memory snapshot of torch from its pickle, check it, and pass it on.

``python -I -S unpickle.py SECONDS BYTES``: the file, plain or gzipped, is the standard input. The standard output gets
a marshalled pair: ``READ`` and the snapshot, or why there is none. The limits are those of CPU time and of memory:
before a name is read, a pickle of nine bytes can ask for 1.5 GB. Without a name, a pickle makes plain values only.
What is passed on has the types and the keys of ``SNAPSHOT``, and shares what the pickle shares: marshal keeps that.

Only the standard library is imported, and the limits hold for all of it.
"""

from __future__ import annotations

import gc
import gzip
import marshal
import os
import pickle
import resource
import sys
from typing import Any

#: The first value of the pair; the second is the snapshot, the limit that was passed, or what is wrong.
READ, TOO_LARGE, REFUSED = "read", "too large", "refused"

_FRAMES = [{"filename": str, "line": int, "name": str}]
_TEXT = {"frames": _FRAMES, "user_metadata": str}
_BLOCK = {**_TEXT, "size": int, "state": str, "address": int, "requested_size": int}
_SEGMENT = {"device": int, "address": int, "total_size": int, "is_expandable": bool, "blocks": [_BLOCK]}
_ENTRY = {**_TEXT, "action": str, "size": int, "addr": int, "time_us": int}
#: A type, the items of a list, or the values of a dict, from ``torch.cuda.memory._snapshot`` (torch 2.1 to 2.13). Other
#: keys are passed on as they are, and not read.
SNAPSHOT = {
    "segments": [_SEGMENT],
    "device_traces": [[_ENTRY]],
    "profpipe": str,
    "external_annotations": [{"stage": str, "name": str, "device": int, "time_us": int}],
}
_REQUIRED = {"segments", "device_traces", "total_size", "blocks", "size", "state", "action", "filename", "line", "name"}


class Refused(Exception):
    """The file is no snapshot. The text says why, ``place`` where, as a path of keys."""

    place = ""


class PlainUnpickler(pickle.Unpickler):
    """Makes plain values. Without a class or a function, nothing can be called."""

    def find_class(self, module: str, name: str) -> Any:
        raise Refused(f"asks for the Python object {module}.{name}, and a snapshot asks for none")

    def persistent_load(self, number: Any) -> Any:
        raise Refused("asks for an object outside of the file, and a snapshot asks for none")


def check(value: Any, shape: Any, checked: set[tuple[int, int]]) -> None:
    """Raise Refused where a type differs from ``shape`` or a key is missing.

    ``checked`` has the ids of what was checked with which shape: what is shared is checked once.
    """
    kind: Any = shape if isinstance(shape, type) else type(shape)
    if type(value) is not kind:
        raise Refused(f"is of type {type(value).__name__}, and not {kind.__name__}")
    if kind is int and not 0 <= value < 1 << 62:
        raise Refused("is no whole number from 0 to 2**62 - 1")
    if kind is str:
        value.encode()
    if shape is kind or (id(value), id(shape)) in checked:
        return
    checked.add((id(value), id(shape)))
    if kind is dict and (missing := [name for name in shape if name in _REQUIRED and name not in value]):
        raise Refused(f"has no {missing[0]}")
    parts = ((name, shape[name]) for name in shape if name in value) if kind is dict else enumerate(shape * len(value))
    for name, of_part in parts:
        try:
            check(value[name], of_part, checked)
        except Refused as refused:
            refused.place = (f".{name}" if kind is dict else f"[{name}]") + refused.place
            raise


def read(most_bytes: int) -> bytes:
    """Return the pair for the file on the standard input."""
    try:
        is_zipped = sys.stdin.buffer.peek(2).startswith(b"\x1f\x8b")  # type: ignore[union-attr]
        file = gzip.GzipFile(fileobj=sys.stdin.buffer) if is_zipped else sys.stdin.buffer
        snapshot = PlainUnpickler(file).load()
        check(snapshot, SNAPSHOT, set())
        return marshal.dumps((READ, snapshot))
    except MemoryError:
        pair = TOO_LARGE, f"to read it takes more than {most_bytes / 1e6:,.0f} MB of memory"
    except Refused as refused:
        pair = REFUSED, f"{refused.place[1:] or 'it'} {refused}"
    except Exception as error:  # a damaged pickle or zip may raise anything
        pair = REFUSED, f"it is damaged, or no pickle ({type(error).__name__}: {error})"
    return marshal.dumps(pair)


def main() -> None:
    """Set the limits, write the pair, and end without freeing millions of values one by one."""
    most_s, most_bytes = map(int, sys.argv[1:])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (most_s, most_s + 1))
    resource.setrlimit(resource.RLIMIT_AS, (most_bytes, most_bytes))
    gc.disable()
    sys.stdout.buffer.write(read(most_bytes))
    sys.stdout.buffer.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
