"""Perfetto's trace processor, as the page ui.perfetto.dev runs it, for SQL over a trace file."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = Path(__file__).with_suffix(".cjs")


def folder():
    """The folder with the trace processor; skips the test where it is missing."""
    found = Path(os.environ.get("PROFPIPE_TEST_PERFETTO") or ROOT / ".cache" / "perfetto")
    if not (found / "trace_processor.wasm").is_file() or not shutil.which("node"):
        pytest.skip("no trace processor here: run .ci/perfetto")
    return found


def query(trace, *statements):
    """The rows of each statement over the trace."""
    from perfetto.trace_processor.platform import PlatformDelegate
    from perfetto.trace_processor.protos import ProtoFactory

    messages = ProtoFactory(PlatformDelegate())
    method = messages.TraceProcessorRpc
    requests = messages.TraceProcessorRpcStream()

    def add(request):
        message = requests.msg.add()
        message.request, message.seq = request, len(requests.msg)
        return message

    add(method.TPM_APPEND_TRACE_DATA).append_trace_data = trace.read_bytes()
    add(method.TPM_FINALIZE_TRACE_DATA)
    for statement in statements:
        add(method.TPM_QUERY_STREAMING).query_args.sql_query = statement
    command = ["node", str(SCRIPT), str(folder())]
    done = subprocess.run(command, input=requests.SerializeToString(), capture_output=True, check=True, timeout=300)
    answers = messages.TraceProcessorRpcStream()
    answers.ParseFromString(done.stdout)
    found: list[list[dict[str, Any]]] = []
    names: list[str] = []
    for answer in (message.query_result for message in answers.msg if message.HasField("query_result")):
        assert not answer.error, answer.error
        if answer.column_names:
            names = list(answer.column_names)
            found.append([])
        for batch in answer.batch:
            values = list(_values(batch))
            found[-1] += [
                dict(zip(names, values[i : i + len(names)], strict=True)) for i in range(0, len(values), len(names))
            ]
    assert len(found) == len(statements), done.stderr.decode()
    return found


def _values(batch):
    """The cells of a batch in order. Their types: 1 missing, 2 whole number, 3 number, 4 text."""
    whole, numbers, texts = iter(batch.varint_cells), iter(batch.float64_cells), iter(batch.string_cells.split("\0"))
    for kind in batch.cells:
        yield {1: lambda: None, 2: lambda: next(whole), 3: lambda: next(numbers), 4: lambda: next(texts)}[kind]()
