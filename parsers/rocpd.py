"""Read databases of rocprof: rocpd (the default of rocprofv3 from ROCm 7 on) and results.db of rocprof v1.

rocpd: the name of a table has the GUID of its process, and rows are joined by GUID and id. The views of the same
names can lose rows by inner joins, so the tables are read. A dispatch and its API call share the ``stack_id`` of their
events (``correlation_id`` is the user's). The text of a marker is in its event's ``extdata``. Processes of different
GUIDs may have the same pid, as in two containers.

v1: ``OPS`` (with --hip-trace) and ``KERN`` list the same kernels. ``Index`` of ``OPS`` is the id of the call.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pandas as pd

from profpipe.errors import UnreadableFile
from profpipe.ingest import bounds, kernel_classes, rocprof
from profpipe.results import budget, schema

FORMATS = ("rocpd database of rocprofv3", "results.db of rocprof v1")

_RECORD_AGAIN = "Record again with `rocprofv3 --kernel-trace --marker-trace --hip-trace -- COMMAND`."
_V1_TABLES = {"KERN", "OPS"}
_MARKER = re.compile(r"marker|roctx", re.IGNORECASE)


def sniff(path: Path) -> bool:
    """Return True for an SQLite file with the tables of rocpd or rocprof v1."""
    with path.open("rb") as file:
        head = file.read(1 << 16)
    if not head.startswith(bounds.SQLITE_HEAD):
        return False
    try:
        with closing(_connect(path)) as database, budget.interrupting(database):
            names = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
    except (sqlite3.Error, UnicodeDecodeError):
        # The first page of a damaged file may still hold the schema's text; `parse` says what is wrong. SQLite's error
        # can quote bytes that are no UTF-8.
        return b"rocpd_kernel_dispatch" in head or b"CREATE TABLE KERN" in head
    return any(name.startswith("rocpd_kernel_dispatch") for name in names) or bool(_V1_TABLES & names)


def _connect(path: Path) -> sqlite3.Connection:
    """Open the file as ``immutable``: nothing is written beside it, and its folder may be read-only."""
    connection = sqlite3.connect(path.resolve().as_uri() + "?mode=ro&immutable=1", uri=True)
    connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
    return connection


def parse(path: Path, step_range: str = "") -> schema.Tables:
    """Read kernels, copies, ranges, steps and counters. Raises ``UnreadableFile`` for a damaged or empty database.

    ``step_range`` is a regular expression for the ranges that are steps.
    """
    try:
        with closing(_connect(path)) as connection, budget.interrupting(connection):
            database = _Database(connection)
            read = _rocpd if database.names("rocpd_kernel_dispatch") else _v1
            tables = read(database, step_range)
    except (sqlite3.Error, OverflowError, UnicodeDecodeError) as error:
        raise UnreadableFile(path, f"damaged or cut short, cannot be read ({error})", _RECORD_AGAIN) from error
    except (ValueError, TypeError) as error:
        raise UnreadableFile(path, f"holds values that are no times or ids ({error})", _RECORD_AGAIN) from error
    return rocprof.refuse_empty(tables, path)


class _Database:
    """Tables by their name without the GUID of a process."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        tables = connection.execute(bounds.SELECT_TABLES).fetchall()
        self._names: dict[str, list[str]] = {}
        for (name,) in tables:
            self._names.setdefault(rocprof.GUID.sub("", name), []).append(name)

    def names(self, base: str) -> list[str]:
        return self._names.get(base, [])

    def read(self, base: str, *columns: str) -> pd.DataFrame:
        """Return all rows of the tables ``base``; a missing column is None, a missing ``guid`` the end of the name."""
        rows: list[tuple[Any, ...]] = []
        for name in self.names(base):
            present = {row[1] for row in self._connection.execute(f'PRAGMA table_info("{name}")')}
            guid = name.removeprefix(base)
            chosen = [f'"{c}"' if c in present else f"'{guid}'" if c == "guid" else "NULL" for c in columns]
            rows += self._connection.execute(f'SELECT {", ".join(chosen)} FROM "{name}"').fetchall()
        return pd.DataFrame(rows, columns=list(columns), dtype=object)


# --- rocpd -----------------------------------------------------------------------------------------------------------


def _rocpd(database: _Database, step_range: str) -> schema.Tables:
    lookup = _Lookup(database)
    dispatches = database.read(
        "rocpd_kernel_dispatch", "guid", "pid", "tid", "agent_id", "kernel_id", "stream_id", "start", "end", "event_id"
    )
    launches = _launches(dispatches, lookup, kind="kernel", name=lookup.kernel_names(dispatches), agent="agent_id")
    # Counters refer to the event of their dispatch.
    launches[["guid", "event_id"]] = dispatches[["guid", "event_id"]]
    copies = database.read(
        "rocpd_memory_copy",
        "guid", "pid", "tid", "name_id", "src_agent_id", "dst_agent_id", "stream_id", "start", "end", "event_id",
    )  # fmt: skip
    copied = _launches(
        copies, lookup, kind="memcpy", name=lookup.texts(copies, "name_id"), agent=lookup.gpu_of_copy(copies)
    )
    regions = _regions(database, lookup)
    is_marker = regions["category"].str.contains(_MARKER)
    markers = regions[is_marker]
    text = markers["message"].where(markers["message"] != "", markers["name"])
    named = markers.assign(operation=markers["name"], name=text, domain=markers["category"])
    origin = schema.Origin(
        format=f"rocpd database{lookup.schema()}", tool="rocprof", tool_version="v3", device=lookup.device(launches)
    )
    return rocprof.tables(
        origin,
        pd.concat([launches, copied], ignore_index=True),
        rocprof.marker_ranges(named),
        regions[~is_marker][[*rocprof.CALL]],
        step_range,
        _counters(database, launches),
        ["guid", "event_id"],
    )


class _Lookup:
    """The values of a process's ids, by (GUID, id)."""

    def __init__(self, database: _Database) -> None:
        self._database = database
        self._strings = self._of("rocpd_string", "string")
        self._processes = self._of("rocpd_info_process", "pid")
        self._threads = self._of("rocpd_info_thread", "tid")
        self._stacks = self._of("rocpd_event", "stack_id")
        self._agents = self._of("rocpd_info_agent", "type_index", "type", "product_name", "name")
        self._spaces: dict[Any, int] = {}

    def _of(self, table: str, *values: str) -> dict[tuple[Any, Any], Any]:
        frame = self._database.read(table, "guid", "id", *values)
        rows = frame[values[0]] if len(values) == 1 else list(zip(*(frame[v] for v in values), strict=True))
        return dict(zip(zip(frame["guid"], frame["id"], strict=True), rows, strict=True))

    def _find(self, by_key: dict[tuple[Any, Any], Any], frame: pd.DataFrame, column: str) -> list[Any]:
        return [by_key.get(key) for key in zip(frame["guid"], frame[column], strict=True)]

    def places(self, frame: pd.DataFrame) -> dict[str, Any]:
        """Return the times of the records, and its ``space``, ``process``, ``thread`` and ``correlation``."""
        return {
            "start": frame["start"],
            "end": frame["end"],
            "space": [self._spaces.setdefault(guid, len(self._spaces)) for guid in frame["guid"]],
            "process": self._find(self._processes, frame, "pid"),
            "thread": self._find(self._threads, frame, "tid"),
            # 0 stands for a record without a call.
            "correlation": [stack or None for stack in self._find(self._stacks, frame, "event_id")],
        }

    def texts(self, frame: pd.DataFrame, column: str) -> list[str]:
        return [text or "" for text in self._find(self._strings, frame, column)]

    def kernel_names(self, dispatches: pd.DataFrame) -> list[str]:
        names = self._of("rocpd_info_kernel_symbol", "display_name", "kernel_name")
        pairs = [names.get(key) or () for key in zip(dispatches["guid"], dispatches["kernel_id"], strict=True)]
        return [next((name for name in pair if name), rocprof.UNNAMED) for pair in pairs]

    def gpu_of_copy(self, copies: pd.DataFrame) -> str:
        """Add a column to ``copies`` and return its name: the GPU of a copy, between GPUs the one that receives."""
        target = self._find(self._agents, copies, "dst_agent_id")
        to_gpu = [bool(agent) and agent[1] == "GPU" for agent in target]
        copies["gpu"] = copies["dst_agent_id"].where(pd.Series(to_gpu, dtype=bool), copies["src_agent_id"])
        return "gpu"

    def ordinals(self, frame: pd.DataFrame, column: str) -> list[Any]:
        return [agent[0] if agent else None for agent in self._find(self._agents, frame, column)]

    def device(self, launches: pd.DataFrame) -> str:
        used = set(launches["device"].dropna())
        names = [a[2] or a[3] or "" for a in self._agents.values() if a[1] == "GPU" and a[0] in used]
        return ", ".join(dict.fromkeys(filter(None, names)))

    def schema(self) -> str:
        rows = self._database.read("rocpd_metadata", "tag", "value")
        versions = rows.loc[rows["tag"] == "schema_version", "value"]
        return f" (schema {versions.iloc[0]})" if len(versions) else ""


def _launches(frame: pd.DataFrame, lookup: _Lookup, *, kind: str, name: list[str], agent: str) -> pd.DataFrame:
    return rocprof.records(
        rocprof.LAUNCH,
        {
            "name": name,
            "kind": kind,
            "device": lookup.ordinals(frame, agent),
            "stream": frame["stream_id"],
            **lookup.places(frame),
        },
    )


def _regions(database: _Database, lookup: _Lookup) -> pd.DataFrame:
    """Return API calls and markers with the columns of ``rocprof.RANGE`` and ``rocprof.CALL``, and ``category``."""
    regions = database.read("rocpd_region", "guid", "pid", "tid", "start", "end", "name_id", "event_id")
    events = database.read("rocpd_event", "guid", "id", "category_id", "extdata")
    joined = regions.merge(events, left_on=["guid", "event_id"], right_on=["guid", "id"], how="left")
    named = {"name": lookup.texts(joined, "name_id"), **lookup.places(joined)}
    frame = rocprof.records((*rocprof.RANGE, "correlation"), named)
    frame["category"] = pd.Series(lookup.texts(joined, "category_id"), dtype=object).astype(str)
    return frame.assign(message=joined["extdata"].map(_message))


def _message(extdata: Any) -> str:
    try:
        given = json.loads(extdata) if isinstance(extdata, str) else {}
    except ValueError:
        return ""
    return str(given.get("message") or "") if isinstance(given, dict) else ""


def _counters(database: _Database, launches: pd.DataFrame) -> pd.DataFrame:
    values = database.read("rocpd_pmc_event", "guid", "event_id", "pmc_id", "value")
    counters = database.read("rocpd_info_pmc", "guid", "id", "name", "symbol", "units")
    named = values.merge(counters, left_on=["guid", "pmc_id"], right_on=["guid", "id"])
    # One launch has a value for a unit of the GPU.
    named = named.assign(value=pd.to_numeric(named["value"], errors="coerce"), unit=named["units"].fillna(""))
    summed = named.groupby(["guid", "event_id", "name", "unit"], sort=False, as_index=False)["value"].sum()
    subject = launches["name"].map(kernel_classes.normalise)
    dispatched = launches[["guid", "event_id"]].assign(subject=subject).dropna(subset=["event_id"])
    return summed.rename(columns={"name": "metric"}).merge(dispatched, on=["guid", "event_id"])


# --- rocprof v1 ------------------------------------------------------------------------------------------------------


def _v1(database: _Database, step_range: str) -> schema.Tables:
    operations = database.read("OPS", "Name", "BeginNs", "EndNs", "pid", "tid", "dev-id", "stream-id", "Index")
    barriers = operations["Name"].astype(str).str.contains("<barrier packet>", regex=False)
    notes = (f"{int(barriers.sum())} barrier packets are no kernels and left out",) if barriers.any() else ()
    origin = schema.Origin(format="rocprof v1 results.db", tool="rocprof", tool_version="v1", notes=notes)
    operations = operations[~barriers].reset_index(drop=True)
    launches = _v1_launches(operations, lambda _: "kernel") if len(operations) else _v1_kernels(database)
    copies = database.read("COPY", "Name", "BeginNs", "EndNs", "pid", "tid", "dev-id", "stream-id", "Index")
    copied = _v1_launches(copies, rocprof.kind_of_copy)
    calls = database.read("HIP", "apiName", "BeginNs", "EndNs", "pid", "tid", "Index")
    if len(launches) and launches["start"].isna().all():
        return rocprof.count_only(launches, origin)
    frame = database.read("rocTX", "Name", "BeginNs", "EndNs", "pid", "tid", "__lane")
    ranges = rocprof.records(rocprof.RANGE, {"name": _unquoted(frame["Name"]), **_renamed(frame)})
    # Start/stop ranges, which belong to no thread, have lane 0. A mark is 1 ns long.
    ranges.loc[frame["__lane"] == 0, "thread"] = rocprof.WHOLE_PROCESS
    ranges = ranges[(ranges["end"] - ranges["start"]).fillna(0) > 1].reset_index(drop=True)
    called = rocprof.records(rocprof.CALL, _renamed(calls, correlation="Index", name="apiName"))
    return rocprof.tables(origin, pd.concat([launches, copied], ignore_index=True), ranges, called, step_range)


def _renamed(frame: pd.DataFrame, **more: str) -> dict[str, pd.Series[Any]]:
    names = {"start": "BeginNs", "end": "EndNs", "process": "pid", "thread": "tid", **more}
    return {ours: frame[theirs] for ours, theirs in names.items()}


def _unquoted(names: pd.Series[Any]) -> list[str]:
    return [str(name or rocprof.UNNAMED).strip('"') for name in names]


def _v1_launches(frame: pd.DataFrame, kind: Callable[[str], str]) -> pd.DataFrame:
    names = _unquoted(frame["Name"])
    columns = _renamed(frame, device="dev-id", stream="stream-id", correlation="Index")
    return rocprof.records(rocprof.LAUNCH, {"name": names, "kind": [kind(name) for name in names], **columns})


def _v1_kernels(database: _Database) -> pd.DataFrame:
    frame = database.read("KERN", "KernelName", "BeginNs", "EndNs", "pid", "tid", "gpu-id", "DispatchNs")
    columns = _renamed(frame, device="gpu-id", dispatched="DispatchNs")
    return rocprof.records(rocprof.LAUNCH, {"name": _unquoted(frame["KernelName"]), "kind": "kernel", **columns})
