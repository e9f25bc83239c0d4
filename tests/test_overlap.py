"""Communication and computation at once: in exports and traces written by hand, as no recorded file here has both."""

import json
import os
from pathlib import Path
from typing import Any

import forked
from nsys_exports import Export

from profpipe import plugins

ROOT = Path(__file__).resolve().parents[1]
NCCL = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<(unsigned long)4096>)"


def parsed(parser, path):
    return plugins.load_module(ROOT / "parsers" / f"{parser}.py").parse(path)


def by_kernel(metrics):
    """By case and subject: metric -> value."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    for row in metrics.itertuples():
        found.setdefault((row.case, row.subject), {})[row.metric] = row.value
    return found


def two_ranks(folder):
    """Two processes, each with its GPU and two iterations of a case; ids of calls are the same in both.

    An iteration of the first: 100 ns of communication, 40 of them beside 70 ns of attention. Of the second: 100 ns
    beside nothing, for its attention runs afterwards.
    """
    export = Export()
    for rank, pid in ((0, 11), (1, 22)):
        for iteration in (0, 1):
            t = 1000 * iteration
            ids = [10 * iteration + n for n in (1, 2)]
            export.range(t, t + 500, "profpipe:method=ring", pid)
            for n, correlation in enumerate(ids):
                export.call(t + 1 + 4 * n, t + 3 + 4 * n, correlation, pid)
            begin = 60 if rank == 0 else 200
            gpu = {"pid": pid, "deviceId": rank}
            export.kernel(t + 10, t + 110, ids[0], NCCL, streamId=20, **gpu)
            export.kernel(t + 10 + begin, t + 10 + begin + 70, ids[1], "flash_fwd_kernel", streamId=7, **gpu)
        # Before the case: no part of it.
        export.launch(5000, 91, NCCL, pid)
    return export.write_sqlite(folder / "two.sqlite")


def test_each_device_has_its_own_overlap_by_iteration_and_all_have_one_together(tmp_path):
    found = by_kernel(parsed("nsys_sqlite", two_ranks(tmp_path)).metrics)
    case = "method=ring"
    assert found[case, "device 0"] == {
        "communication_busy": 100, "compute_busy": 70, "communication_overlap": 40,
    }  # fmt: skip
    assert found[case, "device 1"]["communication_overlap"] == 0
    assert found[case, ""] == {"communication_busy": 100, "compute_busy": 70, "communication_overlap": 20}


def test_communication_outside_the_cases_has_a_row_and_is_part_of_the_sum(tmp_path):
    metrics = parsed("nsys_sqlite", two_ranks(tmp_path)).metrics
    outside = metrics[(metrics["case"] == "") & (metrics["metric"] == "communication_busy")]
    # Both of them on what each calls device 0.
    assert outside["subject"].tolist() == ["device 0 of process 11", "device 0 of process 22", ""]
    assert outside["value"].tolist() == [10, 10, 10]
    assert outside["n"].isna().all()


def test_of_the_iterations_that_one_process_made_there_are_two(tmp_path):
    metrics = parsed("nsys_sqlite", two_ranks(tmp_path)).metrics
    assert set(metrics.loc[metrics["case"] == "method=ring", "n"]) == {2}


def test_files_without_communication_have_no_overlap(tmp_path):
    export = Export()
    export.range(0, 100, "profpipe:a=1")
    export.launch(1, 1, "flash_fwd_kernel")
    assert parsed("nsys_sqlite", export.write_sqlite(tmp_path / "one.sqlite")).metrics.empty


def test_copies_neither_communicate_nor_compute(tmp_path):
    export = Export()
    export.range(0, 100, "profpipe:a=1")
    export.launch(1, 1, NCCL, lasts=40)
    export.call(10, 12, 2)
    export.add(
        "CUPTI_ACTIVITY_KIND_MEMCPY",
        start=15, end=40, deviceId=0, contextId=1, streamId=8, correlationId=2, globalPid=1 << 48 | 1 << 24,
        bytes=1, copyKind=8, srcKind=2, dstKind=2,
    )  # fmt: skip
    found = by_kernel(parsed("nsys_sqlite", export.write_sqlite(tmp_path / "copy.sqlite")).metrics)
    assert found["a=1", "device 0"] == {"communication_busy": 40, "compute_busy": 0, "communication_overlap": 0}


def test_a_torch_trace_of_one_rank_has_its_device(tmp_path):
    """The kernel in the middle has no recorded launch but runs on the device."""
    events: list[dict[str, Any]] = [
        {"cat": "user_annotation", "name": "profpipe:a=1", "ph": "X", "ts": 0, "dur": 100, "pid": 7, "tid": 7}
    ]
    for number, (name, begin, lasts) in enumerate([(NCCL, 10, 40), ("flash_fwd_kernel", 20, 10), ("gemm", 45, 30)]):
        if number != 1:
            call = {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ph": "X", "ts": number + 1, "dur": 1}
            events.append({**call, "pid": 7, "tid": 7, "args": {"correlation": number + 1}})
        args = {"device": 1, "stream": number, "correlation": number + 1, "External id": 0}
        events.append(
            {"cat": "kernel", "name": name, "ph": "X", "ts": begin, "dur": lasts, "pid": 1, "tid": 7, "args": args}
        )
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    found = by_kernel(parsed("torch_trace", path).metrics)
    assert found["a=1", "device 1"] == {
        "communication_busy": 40_000, "compute_busy": 30_000, "communication_overlap": 12.5,
    }  # fmt: skip


def test_the_report_shows_by_gpu_what_is_hidden(tmp_path):
    export = two_ranks(tmp_path)
    done = forked.run(tmp_path, "ingest", export, "--out", "out", env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stdout + done.stderr
    table = (tmp_path / "out" / "details.md").read_text().split("## Processes and GPUs")[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines() if line.startswith("| ")]
    assert rows[0] == ["case", "rank", "communicates ns", "computes ns", "hidden %"]
    assert [row[1:] for row in rows[2:]] == [["0", "100.0", "70.0", "40.0"], ["1", "100.0", "70.0", "0"]]
    assert "single launches (nsys)" in table
