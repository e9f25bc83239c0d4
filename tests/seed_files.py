"""A small valid file of each format that profpipe reads, with any name of a kernel, of a range, and any number.

Texts are made from the columns that the tools write; ``tests/data`` has recorded files of some formats.
"""

import csv
import gzip
import io
import json
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fake_rocprof
from nsys_exports import Export, thread_id


@dataclass(frozen=True)
class Texts:
    """What is put into a file: names, a number in place of a time, and how often the row of a launch is repeated.

    ``number`` is text as it stands in the file, so that it may be no number.
    """

    kernel: str = "gemm(float*)"
    range: str = "profpipe:impl=fa2"
    number: str = "350"
    rows: int = 1


def _csv(*rows, number):
    """Return CSV; None is replaced by ``number`` as it is."""
    out = io.StringIO()
    for row in rows:
        cells = [number if cell is None else '"' + str(cell).replace('"', '""') + '"' for cell in row]
        out.write(",".join(cells) + "\n")
    return out.getvalue()


def _table(columns, values, texts):
    """Return a CSV file with one row, repeated."""
    names = next(csv.reader([columns]))
    head = _csv(list(names), number="")
    return head + _csv([values.get(name, 0) for name in names], number=texts.number) * texts.rows


_NUMBER = "@number@"


def _json(document, texts):
    return json.dumps(document).replace(f'"{_NUMBER}"', texts.number or "null")


# --- Nsight Systems --------------------------------------------------------------------------------------------------


def nsys_stats_csv(texts):
    columns = "Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name"
    values = {"Time (%)": 100, "Total Time (ns)": None, "Instances": 1, "Avg (ns)": 350, "Name": texts.kernel}
    return _table(columns, values, texts)


def nsys_trace_csv(texts):
    columns = "Start (ns),Duration (ns),CorrId,GrdX,GrdY,GrdZ,BlkX,BlkY,BlkZ,Reg/Trd,Device,Ctx,Strm,Name"
    values = {"Start (ns)": 10, "Duration (ns)": None, "CorrId": 1, "Device": "NVIDIA H200 (0)", "Name": texts.kernel}
    return _table(columns, values, texts)


def nsys_stats_text(texts):
    head = (
        "CUDA Kernel Statistics:\n\n"
        " Time(%)  Total Time (ns)  Instances  Average      Minimum  Maximum  Name\n"
        " -------  ---------------  ---------  -----------  -------  -------  -------------\n"
    )
    return head + f"   100.0  {texts.number:>15}  {1:>9}  {350:>11}  {350:>7}  {350:>7}  {texts.kernel}\n" * texts.rows


def nsys_export(texts):
    """Return an export in which ``number`` is the end of a kernel, as SQLite stores it."""
    export = Export()
    export.range(0, 1000, texts.range)
    export.range(10, 900, texts.kernel)
    for i in range(texts.rows):
        export.call(20 + i, 22 + i, i + 1)
        export.kernel(100 + i, 150 + i, i + 1, texts.kernel)
    try:
        number: Any = int(texts.number)
    except ValueError:
        number = texts.number
    export.call(5, 6, 10**6)
    export.kernel(300, number if not isinstance(number, int) or abs(number) < 1 << 63 else str(number), 10**6, "last")
    export.add("DIAGNOSTIC_EVENT", timestamp=1, severity=2, text=texts.range, globalPid=thread_id(1, 0))
    return export


# --- Nsight Compute --------------------------------------------------------------------------------------------------

_NCU = "ID,Process ID,Process Name,Host Name,Kernel Name,Context,Stream"
_PUSH = "thread Domain:Push/Pop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg"


def _ncu_values(texts):
    pushed = f'9  "<default domain>:{texts.range}{":none" * 6}"'
    return {"Process ID": 7, "Process Name": "app", "Host Name": "host", "Kernel Name": texts.kernel, _PUSH: pushed}


def ncu_details_csv(texts):
    columns = f'{_NCU},"{_PUSH}",Section Name,Metric Name,Metric Unit,Metric Value'
    metric = {"Section Name": "S", "Metric Name": "gpu__time_duration.sum", "Metric Unit": "ns", "Metric Value": None}
    return "==PROF== Connected\n" + _table(columns, {**_ncu_values(texts), **metric}, texts)


def ncu_raw_csv(texts):
    columns = f'{_NCU},"{_PUSH}",gpu__time_duration.sum'
    names = next(csv.reader([columns]))
    values = _ncu_values(texts)
    units = ["ns" if name.startswith("gpu__") else "" for name in names]
    row = [None if name.startswith("gpu__") else values.get(name, 0) for name in names]
    return _csv(list(names), list(units), number="") + _csv(row, number=texts.number) * texts.rows


def ncu_text(texts):
    launch = (
        f"  {texts.kernel}, 2024-Jan-01 00:00:00, Context 1, Stream 7\n"
        "    Section: GPU Speed Of Light Throughput\n"
        "    ---------------------------------------------------------------------- --------------- -----\n"
        f"    Duration                                                                        nsecond {texts.number}\n"
        "    ---------------------------------------------------------------------- --------------- -----\n"
    )
    return "==PROF== Connected to process 7\n[7] app@127.0.0.1\n" + launch * texts.rows


# --- torch.profiler --------------------------------------------------------------------------------------------------


def _torch_events(texts):
    kernel = {
        "ph": "X", "cat": "kernel", "name": texts.kernel, "pid": 0, "tid": 7, "ts": 100, "dur": _NUMBER,
        "args": {"device": 0, "stream": 7, "correlation": 1, "External id": 3},
    }  # fmt: skip
    call = {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "args": {"correlation": 1, "External id": 3}}
    return [
        {"ph": "X", "cat": "user_annotation", "name": texts.range, "pid": 1, "tid": 1, "ts": 10, "dur": 900},
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 15, "dur": 50,
         "args": {"External id": 3}},
        {"ph": "X", "pid": 1, "tid": 1, "ts": 20, "dur": 5, **call},
        *[kernel] * texts.rows,
    ]  # fmt: skip


def torch_trace(texts):
    return _json({"schemaVersion": 1, "deviceProperties": [], "traceEvents": _torch_events(texts)}, texts)


def torch_list(texts):
    """Return a trace that is only a list of events, as tools that cut Kineto's traces write them."""
    return _json(_torch_events(texts), texts)


def torch_rank(texts):
    """Return a trace of one rank, as HTA reads them: Kineto states the group, and gives collectives their sizes."""
    events = _torch_events(texts)
    events[-1] = {**events[-1], "name": "ncclDevKernel_AllReduce(int)",
                  "args": {**events[-1]["args"], "In msg nelems": 8, "Group size": 2, "dtype": "Float"}}  # fmt: skip
    about = {"backend": "nccl", "rank": 1, "world_size": 2}
    return _json({"schemaVersion": 1, "distributedInfo": about, "traceEvents": events, "traceName": texts.range}, texts)


# --- rocprof ---------------------------------------------------------------------------------------------------------

_TIMES_V3 = {"Start_Timestamp": 310, "End_Timestamp": None, "Correlation_Id": 1, "Thread_Id": 7, "Process_Id": 70}


def rocprof_v1_csv(texts):
    values = {"KernelName": texts.kernel, "DispatchNs": 300, "BeginNs": 310, "EndNs": None, "DurationNs": 40}
    return _table(fake_rocprof.RESULTS_V1, values, texts)


def rocprof_v1_stats(texts):
    values = {"Name": texts.kernel, "Calls": 1, "TotalDurationNs": None, "AverageNs": 350, "Percentage": 100}
    return _table(fake_rocprof.STATS_V1, values, texts)


def rocprof_v1_json(texts):
    sections = {0: "Markers and Ranges", 2: "CPU HIP API", 6: "GPU0"}
    labels = [
        {"args": {"name": name}, "ph": "M", "pid": pid, "name": "process_name", "sort_index": place}
        for place, (pid, name) in enumerate(sections.items())
    ]

    def event(section, name, begin, end):
        values = {"BeginNs": str(begin), "EndNs": end, "pid": "70", "tid": "7", "Name": name, "gpu-id": "0"}
        return {"ph": "X", "name": name, "ts": 1, "dur": 1, "pid": section, "tid": 7, "args": values}

    events = [event(0, texts.range, 100, "900"), *[event(6, texts.kernel, 310, _NUMBER)] * texts.rows]
    return _json({"traceEvents": [{}, *labels, *events], "otherData": {}}, texts)


def rocprof_v2_csv(texts):
    values = {"Kernel_Name": texts.kernel, "PID": 70, "TID": 7, "Start_Timestamp": 310, "End_Timestamp": None}
    return _table(fake_rocprof.RESULTS_V2, values, texts)


def rocprof_v3_csv(texts):
    values = {"Kind": "KERNEL_DISPATCH", "Agent_Id": "Agent 2", "Kernel_Name": texts.kernel, **_TIMES_V3}
    return _table(fake_rocprof.KERNEL_TRACE, values, texts)


def rocprof_v3_markers(texts):
    values = {"Domain": "MARKER_CORE_RANGE_API", "Function": texts.range, **_TIMES_V3}
    return _table(fake_rocprof.API_TRACE, values, texts)


def rocprof_v3_copies(texts):
    columns = (
        "Kind,Direction,Stream_Id,Source_Agent_Id,Destination_Agent_Id,Correlation_Id,Start_Timestamp,End_Timestamp"
    )
    values = {"Kind": "MEMORY_COPY", "Direction": texts.kernel, "Source_Agent_Id": "Agent 0", **_TIMES_V3}
    return _table(columns, values, texts)


def rocprof_v3_counters(texts):
    columns = (
        "Correlation_Id,Dispatch_Id,Agent_Id,Queue_Id,Process_Id,Thread_Id,Grid_Size,Kernel_Id,Kernel_Name,"
        "Workgroup_Size,LDS_Block_Size,Scratch_Size,VGPR_Count,Accum_VGPR_Count,SGPR_Count,Counter_Name,Counter_Value,"
        "Start_Timestamp,End_Timestamp"
    )
    values = {"Kernel_Name": texts.kernel, "Counter_Name": texts.range, "Counter_Value": 8, "Dispatch_Id": 1}
    return _table(columns, {**values, **_TIMES_V3}, texts)


def rocprof_v3_stats(texts):
    values = {"Name": texts.kernel, "Calls": 1, "TotalDurationNs": None, "AverageNs": 350, "MinNs": 350, "MaxNs": 350}
    return _table(fake_rocprof.STATS_V3, values, texts)


def rocprof_v3_json(texts):
    def record(start, end, **more):
        times = {"start_timestamp": start, "end_timestamp": end}
        return {"thread_id": 7, "correlation_id": {"internal": 5, "external": 0}, **times, **more}

    info = {"kernel_id": 4, "dispatch_id": 1, "agent_id": {"handle": 20}, "queue_id": {"handle": 1}}
    process = {
        "metadata": {"pid": 70, "init_time": 1, "fini_time": 2, "command": ["python"]},
        "agents": [{"id": {"handle": 20}, "type": 2, "name": "gfx942", "product_name": texts.range}],
        "counters": [],
        "strings": {
            "buffer_records": [{"kind": "NONE", "operations": []},
                               {"kind": "MARKER_CORE_RANGE_API", "operations": ["roctxMarkA", "roctxThreadRangeA"]}],
            "marker_api": [{"key": 5, "value": texts.range}],
        },
        "kernel_symbols": [
            {"kernel_id": 4, "kernel_name": texts.kernel, "formatted_kernel_name": texts.kernel},
        ],
        "callback_records": {"counter_collection": []},
        "buffer_records": {
            "kernel_dispatch": [record(310, _NUMBER, dispatch_info=info, stream_id={"handle": 3})] * texts.rows,
            "hip_api": [record(120, 130)],
            "marker_api": [record(100, 900, kind=1, operation=1)],
        },
    }  # fmt: skip
    return _json({"rocprofiler-sdk-tool": [process]}, texts)


#: The columns of each table of rocpd that the tests write.
ROCPD = {
    "string": "string",
    "event": "category_id, stack_id, extdata",
    "info_process": "pid",
    "info_thread": "tid",
    "info_agent": "type, type_index, name, product_name",
    "info_kernel_symbol": "kernel_name, display_name",
    "info_pmc": "name, symbol, units",
    "pmc_event": "event_id, pmc_id, value",
    "kernel_dispatch": "pid, tid, agent_id, kernel_id, stream_id, start, end, event_id",
    "memory_copy": "pid, tid, name_id, src_agent_id, dst_agent_id, stream_id, start, end, event_id",
    "region": "pid, tid, name_id, start, end, event_id",
}


def _stored(text):
    """Return a text as SQLite can hold it."""
    return text.encode("utf-8", "replace").decode()


def write_rocpd(path, texts):
    guid, suffix = "00000000-0000-0000-0000-00000000000a", "00000000_0000_0000_0000_00000000000a"
    rows: dict[str, list[tuple[Any, ...]]] = {
        "string": [(_stored(texts.range),), ("MARKER_CORE_RANGE_API",)],
        "event": [(1, 1, "{}"), (2, 0, json.dumps({"message": texts.range}))],
        "info_process": [(70,)],
        "info_thread": [(7,)],
        "info_agent": [("GPU", 0, "gfx942", "AMD Instinct MI300X")],
        "info_kernel_symbol": [(_stored(texts.kernel), _stored(texts.kernel))],
        "kernel_dispatch": [(1, 1, 1, 1, 3, 310, texts.number, 1)] * texts.rows,
        "region": [(1, 1, 1, 100, 900, 2)],
    }
    with closing(sqlite3.connect(path)) as database:
        for table, columns in ROCPD.items():
            named = ", ".join(f'"{column.strip()}"' for column in columns.split(","))
            name = f'"rocpd_{table}_{suffix}"'
            database.execute(f"CREATE TABLE {name} (id INTEGER PRIMARY KEY, guid TEXT, {named})")
            for row in rows.get(table, []):
                marks = ", ".join("?" * (len(row) + 1))
                database.execute(f"INSERT INTO {name} (guid, {named}) VALUES ({marks})", (guid, *row))
        database.commit()


def write_rocprof_v1_db(path, texts):
    kernel, text = _stored(texts.kernel), _stored(texts.range)
    tables = {
        "KERN": ("Index KernelName gpu-id pid tid DispatchNs BeginNs EndNs",
                 (0, kernel, 1, 70, 7, 120, 310, texts.number)),
        "rocTX": ("BeginNs EndNs pid tid Name Index __section __lane", (100, 900, 70, 7, text, 1, 0, 7)),
    }  # fmt: skip
    with closing(sqlite3.connect(path)) as database:
        for table, (columns, row) in tables.items():
            named = ", ".join(f'"{column}"' for column in columns.split())
            database.execute(f'CREATE TABLE "{table}" ({named})')
            repeated = [row] * (texts.rows if table == "KERN" else 1)
            database.executemany(f'INSERT INTO "{table}" VALUES ({", ".join("?" * len(row))})', repeated)
        database.commit()


# --- profpipe --------------------------------------------------------------------------------------------------------


def events(texts):
    case = {"case": texts.range.removeprefix("profpipe:")}
    lines = [
        {"event": "started", "profiler": "plain", "torch": texts.kernel, "machine": {"name": texts.range}},
        {"event": "case_started", "params": {"impl": texts.kernel}, **case},
        *[{"event": "samples", "values": [_NUMBER, 1.5], "unit": "ns", "metric": "time", **case}] * texts.rows,
        {"event": "metric", "metric": texts.range, "value": _NUMBER, "unit": texts.kernel, **case},
        {"event": "case_ended", "status": "ok", "seconds": _NUMBER, "flags": [texts.range], **case},
    ]
    return "".join(_json(line, texts) + "\n" for line in lines)


def hook(texts):
    lines = [
        {"hook": "started", "profiler": "plain", "torch": texts.kernel, "device_name": texts.range, "pid": 7},
        *[{"hook": "steps", "rule": "optimizer", "step": [0, 1], "start_ns": [5, _NUMBER],
           "wall_ns": [5, _NUMBER]}] * texts.rows,
        {"hook": "note", "text": texts.range},
        {"hook": "memory", "peak_allocated": _NUMBER, "peak_host": 5},
        {"hook": "finished", "steps": 2},
    ]  # fmt: skip
    return "".join(_json(line, texts) + "\n" for line in lines)


def pipeline(texts):
    """Return a pipeline file, as JSON is YAML."""
    entry = {"command": ["echo", "{n}", texts.kernel], "matrix": {"n": [_NUMBER, 1]}, "profilers": ["plain"],
             "env": {"A": texts.range}}  # fmt: skip
    tables = [{"title": texts.range, "rows": "n", "value": "time"}]
    document = {"version": 1, "name": "x", "workloads": {"w": entry}, "tables": tables}
    return _json(document, texts)


#: Format -> (name of the file, its text).
TEXTS: Mapping[str, tuple[str, Callable[[Texts], str]]] = {
    "nsys stats, CSV": ("sum.csv", nsys_stats_csv),
    "nsys trace, CSV": ("trace.csv", nsys_trace_csv),
    "nsys stats, text": ("stats.txt", nsys_stats_text),
    "ncu details, CSV": ("details.csv", ncu_details_csv),
    "ncu raw, CSV": ("raw.csv", ncu_raw_csv),
    "ncu text": ("ncu.txt", ncu_text),
    "torch trace": ("trace.json", torch_trace),
    "torch trace, list": ("list.json", torch_list),
    "torch trace of a rank": ("rank1.json", torch_rank),
    "rocprof v1, CSV": ("results.csv", rocprof_v1_csv),
    "rocprof v1, stats": ("results.stats.csv", rocprof_v1_stats),
    "rocprof v1, JSON": ("results.json", rocprof_v1_json),
    "rocprof v2, CSV": ("results_x.csv", rocprof_v2_csv),
    "rocprof v3, kernels": ("x_kernel_trace.csv", rocprof_v3_csv),
    "rocprof v3, markers": ("x_marker_api_trace.csv", rocprof_v3_markers),
    "rocprof v3, copies": ("x_memory_copy_trace.csv", rocprof_v3_copies),
    "rocprof v3, counters": ("x_counter_collection.csv", rocprof_v3_counters),
    "rocprof v3, stats": ("x_kernel_stats.csv", rocprof_v3_stats),
    "rocprof v3, JSON": ("x_results.json", rocprof_v3_json),
    "job.jsonl": ("job.jsonl", events),
    "hook": ("hook.jsonl", hook),
    "pipeline file": ("pipeline.yaml", pipeline),
}


def _write_text(path, format, texts):
    path.write_bytes(TEXTS[format][1](texts).encode("utf-8", "surrogatepass"))


def _write_zip(path, texts):
    path.write_bytes(gzip.compress(torch_trace(texts).encode("utf-8", "surrogatepass"), 1))


#: Format -> (name of the file, what writes it).
BINARIES: Mapping[str, tuple[str, Callable[[Path, Texts], object]]] = {
    "nsys SQLite": ("export.sqlite", lambda path, texts: nsys_export(_storable(texts)).write_sqlite(path)),
    "nsys Parquet": ("export_pqtdir", lambda path, texts: nsys_export(_in_columns(texts)).write_parquet(path)),
    "torch trace, gzip": ("trace.json.gz", _write_zip),
    "rocpd": ("x_results.db", write_rocpd),
    "rocprof v1, database": ("results.db", write_rocprof_v1_db),
}


def _storable(texts):
    return Texts(_stored(texts.kernel), _stored(texts.range), texts.number, texts.rows)


def _in_columns(texts):
    """Return texts that fit into columns of Arrow, whose numbers have 64 bits."""
    is_number = texts.number.lstrip("-").isdecimal() and abs(int(texts.number[:40])) < 1 << 63
    return Texts(_stored(texts.kernel), _stored(texts.range), texts.number if is_number else "1", texts.rows)


FORMATS = (*TEXTS, *BINARIES)


def file_name(format):
    return {**TEXTS, **BINARIES}[format][0]


def write(folder: Path, format: str, texts: Texts = Texts()) -> Path:
    """Write a file of ``format`` below ``folder``, with its usual name, and return its path."""
    path = folder / file_name(format)
    if format in BINARIES:
        BINARIES[format][1](path, texts)
    else:
        _write_text(path, format, texts)
    return path
