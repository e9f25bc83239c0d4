"""Name the files of other tools, which profpipe does not read, by their content."""

from __future__ import annotations

import re
from pathlib import Path

from profpipe.errors import UnreadableFile
from profpipe.ingest import json_stream

_NSYS = "nsys profile -t cuda,nvtx -o OUT COMMAND"
_RECORD = f"Record the program with nsys: {_NSYS}. Then: profpipe ingest OUT.nsys-rep."
_RECORD_TORCH = (
    "Record the kernels with torch.profiler.profile and ProfilerActivity.CUDA, and write them with "
    f"export_chrome_trace. Or record with nsys: {_NSYS}."
)
_EXPORT = "Give the report itself, or export it to SQLite: nsys export --type sqlite -o OUT.sqlite REPORT.nsys-rep."


#: What a file begins with or holds in its first part, and what the file is. Sources: NCCL, ext-profiler/example;
#: torch, autograd/profiler_util.py, profiler/_memory_profiler.py and cuda/memory.py; nvprof 11; nsys 2020 to 2025.
_KINDS = (
    (
        r'"cat":\s*"(?:GROUP|COLL|P2P|PROXY|NET|GPU|KERNEL_LAUNCH|CE)[A-Z_]*",\s*"ph":\s*"[bei]"|"(?:CommHash|StopGpuClk)":',
        "a trace of NCCL's profiler plug-in, which times the parts of collectives and no other kernel",
        _RECORD,
    ),
    (
        r'"pid":\s*"(?:CPU|CUDA) functions"',
        "a list of torch.autograd.profiler, the legacy profiler of PyTorch, without streams and launches",
        _RECORD_TORCH,
    ),
    (
        r"\A\[\s*\[\s*(?:-?\d|\])|\A<(?:!doctype|html)(?i:.*memory[ _]?(?:viz|timeline))"
        r'|\A\{\s*"(?:segments|device_traces)":|"name":\s*"\[memory\]"',
        "a recording of torch's memory alone, without kernels",
        _RECORD_TORCH,
    ),
    (
        r"(?:\A|\n)==\d+== (?:NVPROF|Profiling|Metric result|Event result)"
        r"|\ASQLite format 3\0.*CREATE TABLE \W?StringTable"
        r'|\A"?(?:Type"?,"?)?Time\(%\)"?,"?Time"?,|\A"?Start"?,"?Duration"?,"?Grid X'
        r'|\A"?Device"?,"?Kernel"?,"?Invocations'
        r"|(?:\A|\n)\s*(?:Type\s+Time\(%\)\s+Time|Start\s+Duration\s+Grid Size)\s",
        "a recording of nvprof, which nsys has replaced",
        _RECORD,
    ),
    (
        r'\A\{\s*"data":\s*\[|"(?:CudaEvent|TraceProcessEvent|NvtxEvent|DiagnosticEvent)":\s*\{',
        "nsys' export as JSON, which profpipe does not read",
        _EXPORT,
    ),
    (r'\A\[\s*\{\s*"(?:Time \(%\)|Start \(ns\))":', "JSON of nsys stats, which profpipe does not read", _EXPORT),
    (
        r"\x12[\0-\x40]/(?:host|device):\w",
        "the XSpace (.xplane.pb) of a JAX or TensorFlow trace",
        "Give the .trace.json.gz beside it.",
    ),
)


def refuse(path: Path) -> None:
    """Raise ``UnreadableFile`` for a file of another tool: what it is, and what to do."""
    head = json_stream.read_head(path)
    for pattern, what, remedy in _KINDS:
        if re.search(pattern.encode(), head, re.DOTALL):
            raise UnreadableFile(path, what, remedy)
