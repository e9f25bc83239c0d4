"""Small nsys exports written by hand, for what no recorded file holds."""

import sqlite3
from contextlib import closing
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

_ACTIVITY = "start end deviceId contextId streamId correlationId globalPid"
#: The columns that nsys 2022 to 2026 have in common, as far as anything depends on them.
SCHEMA = {
    "StringIds": "id value",
    "CUPTI_ACTIVITY_KIND_KERNEL": f"{_ACTIVITY} demangledName shortName mangledName graphNodeId",
    "CUPTI_ACTIVITY_KIND_MEMCPY": f"{_ACTIVITY} bytes copyKind srcKind dstKind graphNodeId",
    "CUPTI_ACTIVITY_KIND_MEMSET": f"{_ACTIVITY} value bytes graphNodeId memKind",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": f"{_ACTIVITY} graphId graphExecId",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start end eventClass globalTid correlationId nameId returnValue callchainId",
    "OSRT_API": "start end eventClass globalTid nameId returnValue nestingLevel callchainId",
    "NVTX_EVENTS": "start end eventType rangeId category color text globalTid endGlobalTid textId domainId",
    "META_DATA_EXPORT": "name value",
    "EXPORT_META_DATA": "name value",
    "TARGET_INFO_GPU": "id name cuDevice",
    "TARGET_INFO_CUDA_DEVICE": "gpuId cudaId pid",
    "TARGET_INFO_CUDA_GPU": "name deviceId",
    "DIAGNOSTIC_EVENT": "timestamp severity text globalPid",
}
_TEXT = {"value", "name", "text"}
PUSH_POP, START_END, DOMAIN = 59, 60, 75


def pid_id(pid, host=1):
    return host << 48 | pid << 24


def thread_id(pid, tid, host=1):
    return pid_id(pid, host) | tid


class Export:
    """Rows of an export; ``kernel``, ``call`` and ``range`` take what differs and fill in the rest."""

    def __init__(self):
        self.rows: dict[str, list[dict[str, Any]]] = {"StringIds": []}
        self._strings: dict[str, int] = {}

    def string(self, text):
        if text not in self._strings:
            self._strings[text] = len(self._strings) + 1
            self.add("StringIds", id=self._strings[text], value=text)
        return self._strings[text]

    def add(self, table, **values):
        self.rows.setdefault(table, []).append(values)

    def kernel(self, start, end, correlation, name="k", pid=1, **more):
        identity = self.string(name)
        names = {"demangledName": identity, "shortName": identity, "mangledName": None}
        base = {"deviceId": 0, "contextId": 1, "streamId": 7, "globalPid": pid_id(pid)}
        self.add(
            "CUPTI_ACTIVITY_KIND_KERNEL", start=start, end=end, correlationId=correlation, **{**base, **names, **more}
        )

    def call(self, start, end, correlation, pid=1, tid=1, **more):
        base = {"eventClass": 0, "returnValue": 0, "nameId": self.string(more.pop("name", "cudaLaunchKernel_v7000"))}
        thread = thread_id(pid, tid)
        self.add(
            "CUPTI_ACTIVITY_KIND_RUNTIME",
            start=start, end=end, correlationId=correlation, globalTid=thread, **{**base, **more},
        )  # fmt: skip

    def launch(self, start, correlation, name="k", pid=1, tid=1, lasts=10):
        """A call of 2 ns at ``start`` and its kernel right behind."""
        self.call(start, start + 2, correlation, pid, tid)
        self.kernel(start + 5, start + 5 + lasts, correlation, name, pid)

    def range(self, start, end, text, pid=1, tid=1, **more):
        base = {"eventType": PUSH_POP, "domainId": 0, "endGlobalTid": None, "textId": None}
        self.add("NVTX_EVENTS", start=start, end=end, text=text, globalTid=thread_id(pid, tid), **{**base, **more})

    def write_sqlite(self, path, without=(), also=None):
        """Writes the tables that have rows; ``without`` columns, ``also`` with further columns by table."""
        with closing(sqlite3.connect(path)) as database:
            for table, rows in self.rows.items():
                names = [c for c in (*SCHEMA[table].split(), *(also or {}).get(table, "").split()) if c not in without]
                columns = ", ".join(f'"{c}" {"TEXT" if c in _TEXT else "INTEGER"}' for c in names)
                database.execute(f'CREATE TABLE "{table}" ({columns})')
                marks = ", ".join("?" * len(names))
                database.executemany(
                    f'INSERT INTO "{table}" VALUES ({marks})', [[row.get(c) for c in names] for row in rows]
                )
            database.commit()
        return path

    def write_parquet(self, folder):
        folder.mkdir()
        for table, rows in self.rows.items():
            columns = {
                c: pa.array([r.get(c) for r in rows], pa.string() if c in _TEXT else pa.int64())
                for c in SCHEMA[table].split()
            }
            pq.write_table(pa.table(columns), folder / f"{table}.parquet")
        return folder
