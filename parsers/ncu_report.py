"""Read reports of Nsight Compute (``.ncu-rep``) with NVIDIA's package ``ncu_report``.

The package reads nothing from junk, and the whole kernels of a report that was cut, without an error. So the parser
compares its results with the container, which states its length and its number of results: ``NVR``, a header, then
blocks of a header and its payload (Nsight Compute 2025.3, Customization Guide, "Report File Format").
"""

from __future__ import annotations

import importlib
import math
import re
import struct
from collections.abc import Iterator
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, BinaryIO

from profpipe.errors import UnreadableFile
from profpipe.ingest import kernel_classes, launch_tables, ncu
from profpipe.results import schema

FORMATS = ("Nsight Compute report (.ncu-rep)",)

_MAGIC = b"NVR\0"
_VERSION = re.compile(rb"(20\d\d\.\d+\.\d+)\.\d+ \(build \d+\)")
_PROFILE_AGAIN = "Profile again and let ncu end by itself; a report is complete only then."
#: The errors of the package's generated bindings for a damaged report.
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
#: The messages of rules that give advice (``IRuleResult``, NvRules MsgType).
_OPTIMIZATION, _WARNING = 2, 3
#: Fields of a block's header.
_RESULTS, _PAYLOAD_SIZE = 2, 5
_LOCAL = 1
_WORKLOAD_KERNEL = 0


def sniff(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def parse(path: Path) -> schema.Tables:
    """Read kernels, the ranges around them, and the chosen metrics.

    Raises ``UnreadableFile`` for a report that is damaged, holds no kernel, or is newer than the installed package.
    """
    launches, written_by, device = _read(path)
    origin = schema.Origin(format=FORMATS[0], tool="ncu", tool_version=written_by, device=device)
    return ncu.tables_of(path, launches, origin, schema.Placement.NVTX_STATE)


def single_launches(path: Path) -> list[ncu.Launch]:
    """Return the launches that ``parse`` adds up, in the order in which ncu profiled them. Raises as ``parse`` does."""
    return ncu.select(path, _read(path)[0], schema.Origin())[0]


def _read(path: Path) -> tuple[list[ncu.Launch], str, str]:
    """Return (all launches in the report, the version of ncu that wrote it, the GPU's name)."""
    results, written_by = _count_results(path), _written_by(path)
    context = _open(path, written_by)
    try:
        ranges = [context.range_by_idx(number) for number in range(context.num_ranges())]
        actions = [results.action_by_idx(number) for results in ranges for number in range(results.num_actions())]
        launches = [_launch(action) for action in actions]
        name = actions[0].metric_by_name("device__attribute_display_name") if actions else None
        device = "" if name is None else _clean(name.as_string() or "")
    except _BINDING_ERRORS as error:
        raise UnreadableFile(path, f"an ncu report that is damaged ({error})", _PROFILE_AGAIN) from error
    if not results:
        raise UnreadableFile(
            path, "an ncu report without a kernel", "Check ncu's filters: perhaps none that ran matches them."
        )
    if len(launches) != results:
        what = f"an ncu report that is damaged: of its {results} results {len(launches)} can be read"
        raise UnreadableFile(path, what, _PROFILE_AGAIN)
    return launches, written_by, device


# --- the container ---------------------------------------------------------------------------------------------------


def _count_results(path: Path) -> int:
    """Count the results that the file's blocks announce. Raises ``UnreadableFile`` where the file is cut."""
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
        raise UnreadableFile(path, f"an ncu report that is cut or damaged ({end:,} bytes)", _PROFILE_AGAIN)
    return results


def _message(file: BinaryIO) -> bytes:
    """Read a length and the protobuf message of that length."""
    (length,) = struct.unpack("<I", file.read(4))
    message = file.read(length)
    if len(message) < length:
        raise ValueError("the file ends inside a header")
    return message


def _numbers(message: bytes) -> Iterator[tuple[int, int]]:
    """Yield (field number, value) of the integers in a protobuf message."""
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
    """Return the version of ncu that wrote the report, empty where it is not stated."""
    with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as content:
        match = _VERSION.search(content)
        return match[1].decode() if match else ""


# --- the package -----------------------------------------------------------------------------------------------------


def _open(path: Path, written_by: str) -> Any:
    """Load the report. Raises ``UnreadableFile`` where the package is missing or older than the report."""
    newest = f">={'.'.join(written_by.split('.')[:2])}" if written_by else ""
    remedy = f"pip install -U 'ncu-report{newest}', or export the report: ncu --import FILE --page raw --csv."
    try:
        package: Any = importlib.import_module("ncu_report")
    except ImportError as error:
        raise UnreadableFile(path, f"an ncu report, and the package ncu-report is missing ({error})", remedy) from error
    try:
        context = package.load_report(str(path))
        library = str(context.get_version())
    except (*_BINDING_ERRORS, OSError) as error:
        raise UnreadableFile(
            path, f"an ncu report that the package ncu-report cannot open ({error})", remedy
        ) from error
    if written_by and _release(library) < _release(written_by):
        # An older library skips unknown data without an error.
        raise UnreadableFile(
            path, f"an ncu report of {written_by}, newer than the package ncu-report {library}", remedy
        )
    return context


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


def _launch(action: Any) -> ncu.Launch:
    names = action.metric_names()
    values = {name: _value(action, name) for name in ncu.chosen(names)}
    launch = ncu.Launch(
        name=kernel_classes.normalise(_clean(action.name(action.NameBase_DEMANGLED) or action.name())),
        device=_integer(action, "launch__device_id"),
        stream=_integer(action, "launch__stream_id"),
        path=_path(action.nvtx_state()),
        kind="kernel" if action.workload_type() == _WORKLOAD_KERNEL else "graph",
        grid=_shape(action, "grid"),
        block=_shape(action, "block"),
        values={name: value for name, value in values.items() if value is not None},
    )
    for result in action.rule_results_as_dicts():
        if result.get("rule_message", {}).get("type") in (_OPTIMIZATION, _WARNING):
            estimate = result.get("speedup_estimation") or {}
            launch.add_rule(result["rule_identifier"], estimate.get("type") == _LOCAL, estimate.get("speedup"))
    return launch


def _clean(text: str) -> str:
    # The bindings decode bytes that are no UTF-8 as surrogates, which Arrow cannot store.
    return text.encode("utf-8", "replace").decode()


def _value(action: Any, name: str) -> tuple[float, str] | None:
    metric = action.metric_by_name(name)
    if metric is None or metric.as_double() is None or math.isnan(metric.as_double()):
        return None
    return metric.as_double(), metric.unit() or ""


def _integer(action: Any, name: str) -> int | None:
    metric = _value(action, name)
    return None if metric is None else int(metric[0])


def _shape(action: Any, what: str) -> str:
    return launch_tables.shape([_integer(action, f"launch__{what}_dim_{axis}") for axis in "xyz"])


def _path(state: Any) -> tuple[str, ...]:
    """Return the ranges around the launch, outermost first: start/end ranges, then push/pop ranges, by domain.

    The report has no order between domains. The default domain, which has the range of the case, comes first.
    """
    if state is None:
        return ()
    domains = [state.domain_by_id(number) for number in sorted(state.domains())]
    started = [name for domain in domains for name in domain.start_end_ranges()]
    pushed = [name for domain in domains for name in domain.push_pop_ranges()]
    return tuple(map(_clean, started + pushed))
