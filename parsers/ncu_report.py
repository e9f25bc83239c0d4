"""Reports of Nsight Compute (``.ncu-rep``), read with NVIDIA's own ``ncu_report`` package.

That package gives what it can make of any file: nothing of junk, and of a report that was cut while it was written the
kernels that are whole. The container itself says how long it is and how many results it holds (``NVR``, a header, then
blocks of a header and its payload; Nsight Compute, Customization Guide, "Report File Format"), so both are compared.
"""

from __future__ import annotations

import importlib
import math
import re
import struct
from collections.abc import Iterator
from dataclasses import replace
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, BinaryIO

from profpipe import kernels, tables
from profpipe.errors import Refused
from profpipe.formats import counters, guided, launch_order

FORMATS = ("Nsight Compute report (.ncu-rep)",)

_MAGIC = b"NVR\0"
_VERSION = re.compile(rb"(20\d\d\.\d+\.\d+)\.\d+ \(build \d+\)")
_PROFILE_AGAIN = "Profile again and let ncu end by itself; a report is complete only then."
#: What the package's generated bindings raise when a damaged report gives them something of the wrong kind.
_BINDING_ERRORS = (
    AttributeError,
    IndexError,
    KeyError,
    OverflowError,
    RuntimeError,
    SystemError,
    TypeError,
    ValueError,
)
#: Rules speak also where all is well (OK); advice are these two (``IRuleResult``, NvRules MsgType).
_OPTIMIZATION, _WARNING = 2, 3
#: Fields of a block's header.
_RESULTS, _PAYLOAD_SIZE = 2, 5
_LOCAL = 1
_WORKLOAD_KERNEL = 0


def sniff(path: Path) -> bool:
    """True for a file with the magic number of a report."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def parse(path: Path) -> tables.Tables:
    """Kernels, the ranges around them, and the chosen metrics.

    Raises ``Refused`` for a report that is cut or damaged, holds no kernel, or is newer than the installed package.
    """
    launches, written_by, device = _read(path)
    launches, notes = _meant(path, launches)
    parsed = counters.tables_of(
        launches,
        tables.Origin(
            format=FORMATS[0],
            tool="ncu",
            tool_version=written_by,
            device=device,
            attribution=counters.attribution(launches, "NVTX ranges open at the launch"),
            notes=tuple(notes),
        ),
    )
    return replace(parsed, kernels=kernels.annotate(parsed.kernels))


def single_launches(path: Path) -> list[counters.Launch]:
    """Each launch that ``parse`` adds up, in the order in which they were profiled. Raises as ``parse`` does."""
    launches, *_ = _read(path)
    return _meant(path, launches)[0]


def _meant(path: Path, launches: list[counters.Launch]) -> tuple[list[counters.Launch], list[str]]:
    """Those of ``launches`` that the run asked for where it was guided, else all; with the notes about them."""
    guide = guided.beside(path)
    return guided.kept(launches, guide) if guide else (launches, [])


def _read(path: Path) -> tuple[list[counters.Launch], str, str]:
    """(every launch in the report, the ncu that wrote it, the GPU's name)."""
    results, written_by = _count_results(path), _written_by(path)
    context = _open(path, written_by)
    try:
        actions = list(_actions(context))
        launches = [_launch(action) for action in actions]
        device = _text(actions[0], "device__attribute_display_name") if actions else ""
    except _BINDING_ERRORS as error:
        raise Refused(path, f"an ncu report that is damaged ({error})", _PROFILE_AGAIN) from error
    if not results:
        raise Refused(
            path, "an ncu report without a kernel", "Check ncu's filters: perhaps none that ran matches them."
        )
    if len(launches) != results:
        what = f"an ncu report that is damaged: of its {results} results {len(launches)} can be read"
        raise Refused(path, what, _PROFILE_AGAIN)
    return launches, written_by, device


# --- the container ---------------------------------------------------------------------------------------------------


def _count_results(path: Path) -> int:
    """The results that the blocks of the file announce. Raises ``Refused`` where they do not end with the file."""
    results = 0
    with path.open("rb") as file:
        end = file.seek(0, 2)
        try:
            file.seek(len(_MAGIC))
            _message(file)
            while file.tell() < end:
                header = dict(_numbers(_message(file)))
                results += header.get(_RESULTS, 0)
                file.seek(header.get(_PAYLOAD_SIZE, 0), 1)
            complete = file.tell() == end
        except (IndexError, ValueError, OverflowError, struct.error):
            complete = False
    if not complete:
        raise Refused(path, f"an ncu report that is cut or damaged ({end:,} bytes)", _PROFILE_AGAIN)
    return results


def _message(file: BinaryIO) -> bytes:
    """The protobuf message at this place, behind its length."""
    (length,) = struct.unpack("<I", file.read(4))
    message = file.read(length)
    if len(message) < length:
        raise ValueError("the file ends inside a header")
    return message


def _numbers(message: bytes) -> Iterator[tuple[int, int]]:
    """(field number, value) of the integers in a protobuf message; texts and messages inside it are stepped over."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        number, wire_type = key >> 3, key & 7
        if wire_type == 0:
            value, at = _varint(message, at)
            yield number, value
        elif wire_type == 2:
            length, at = _varint(message, at)
            at += length
        elif wire_type in (1, 5):
            at += 8 if wire_type == 1 else 4
        else:
            raise ValueError(f"wire type {wire_type}")


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def _written_by(path: Path) -> str:
    """Version of the ncu that wrote the report; empty where no text in it says so."""
    with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as content:
        match = _VERSION.search(content)
        return match[1].decode() if match else ""


# --- the package -----------------------------------------------------------------------------------------------------


def _open(path: Path, written_by: str) -> Any:
    """The report as the package sees it. Raises ``Refused`` where the package is missing or older than the report."""
    newest = f">={'.'.join(written_by.split('.')[:2])}" if written_by else ""
    remedy = f"pip install -U 'ncu-report{newest}', or export the report: ncu --import FILE --page raw --csv."
    try:
        package: Any = importlib.import_module("ncu_report")
    except ImportError as error:
        raise Refused(path, f"an ncu report, and the package ncu-report is missing ({error})", remedy) from error
    try:
        context = package.load_report(str(path))
        library = str(context.get_version())
    except (*_BINDING_ERRORS, OSError) as error:
        raise Refused(path, f"an ncu report that the package ncu-report cannot open ({error})", remedy) from error
    if written_by and _release(library) < _release(written_by):
        # An older library skips what it does not know and says nothing of it.
        raise Refused(path, f"an ncu report of {written_by}, newer than the package ncu-report {library}", remedy)
    return context


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


def _actions(context: Any) -> Iterator[Any]:
    for r in range(context.num_ranges()):
        results = context.range_by_idx(r)
        for a in range(results.num_actions()):
            yield results.action_by_idx(a)


def _launch(action: Any) -> counters.Launch:
    names = action.metric_names()
    found = {name: _value(action, name) for name in counters.chosen(names)}
    return counters.Launch(
        name=kernels.normalise(_clean(action.name(action.NameBase_DEMANGLED) or action.name())),
        device=_integer(action, "launch__device_id"),
        stream=_integer(action, "launch__stream_id"),
        path=_path(action.nvtx_state()),
        kind="kernel" if action.workload_type() == _WORKLOAD_KERNEL else "graph",
        grid=_shape(action, "grid"),
        block=_shape(action, "block"),
        values={name: value for name, value in found.items() if value is not None},
        rules=list(_rules(action)),
    )


def _clean(text: str) -> str:
    # The bindings hide bytes that are no UTF-8 in surrogates, which no table can be written with.
    return text.encode("utf-8", "replace").decode()


def _value(action: Any, name: str) -> tuple[float, str] | None:
    metric = action.metric_by_name(name)
    if metric is None or metric.as_double() is None or math.isnan(metric.as_double()):
        return None
    return metric.as_double(), metric.unit() or ""


def _integer(action: Any, name: str) -> int | None:
    found = _value(action, name)
    return None if found is None else int(found[0])


def _shape(action: Any, what: str) -> str:
    return launch_order.shape([_integer(action, f"launch__{what}_dim_{axis}") for axis in "xyz"])


def _text(action: Any, name: str) -> str:
    metric = action.metric_by_name(name)
    return "" if metric is None else _clean(metric.as_string() or "")


def _path(state: Any) -> tuple[str, ...]:
    """Ranges around the launch, outermost first: start/end ranges, then push/pop ranges, domain by domain.

    Ranges of two domains have no order among them in the report; the default domain, where the harness puts the case,
    comes first.
    """
    if state is None:
        return ()
    domains = [state.domain_by_id(number) for number in sorted(state.domains())]
    started = [name for domain in domains for name in domain.start_end_ranges()]
    pushed = [name for domain in domains for name in domain.push_pop_ranges()]
    return tuple(map(_clean, started + pushed))


def _rules(action: Any) -> Iterator[counters.Rule]:
    for result in action.rule_results_as_dicts():
        if result.get("rule_message", {}).get("type") in (_OPTIMIZATION, _WARNING):
            estimate = result.get("speedup_estimation") or {}
            yield counters.Rule(result["rule_identifier"], estimate.get("speedup"), estimate.get("type") == _LOCAL)
