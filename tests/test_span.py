"""``capture: {after_s, for_s}``: a span of time of a real server, which has no steps and does not end by itself."""

import gzip
import json
import socket
import subprocess
import sys
import time

import hooked
import pytest
from program import profpipe, rows

from profpipe.config.loader import load_pipeline
from profpipe.errors import ConfigError
from profpipe.ingest import reader

SERVER = """
import json, sys, threading, urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
import torch
from profpipe import annotate

model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        with torch.no_grad(), annotate("answer"):
            body = json.dumps(model(torch.ones(4, 8)).sum().item()).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_): pass

torch.set_num_threads(1)
server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
print("ready", flush=True)
server.serve_forever()
"""
#: A client that asks until its server is gone.
CLIENT = """
import sys, time, urllib.request
last = time.monotonic()
while time.monotonic() < last + 60:
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[1]}", timeout=5).read()
    except OSError:
        time.sleep(0.1)
    time.sleep(0.02)
"""


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return str(found.getsockname()[1])


def pipeline(folder, program, **workload):
    (folder / "server.py").write_text(program, encoding="utf-8")
    (folder / "client.py").write_text(CLIENT, encoding="utf-8")
    port = free_port()
    line = f"{sys.executable} client.py {port} & exec {sys.executable} server.py {port}"
    document = {"version": 1, "workloads": {"server": {"command": ["sh", "-c", line], **workload}}}
    (folder / "pipeline.yaml").write_text(json.dumps(document), encoding="utf-8")
    return folder / "pipeline.yaml"


@pytest.mark.slow
def test_a_server_is_recorded_for_a_span_and_ended(tmp_path):
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    # The server has imported torch by then, beside its client and on a machine as busy as this one.
    after_s = 3 + round(2 * (time.monotonic() - began))
    latest = tmp_path / "out" / "latest"
    for _ in range(3):
        pipeline(tmp_path, SERVER, profilers=["plain", "torch"], capture={"after_s": after_s, "for_s": 1})
        profpipe(tmp_path, "run", "pipeline.yaml", "--out", "out")
        cases = {row["profiler"]: row for row in rows(latest / "cases.csv")}
        late = [row["reason"] for row in cases.values() if "Set capture.after_s higher" in row["reason"]]
        if not late:
            break
        # The machine became busier than it was while torch was imported above: do what the reason says.
        after_s *= 2
    assert not late
    assert cases["plain"]["status"] == cases["torch"]["status"] == "ok"
    assert after_s + 1 <= float(cases["plain"]["seconds"]) < after_s + 6
    metrics = {(row["profiler"], row["metric"]): float(row["value"]) for row in rows(latest / "metrics.parquet")}
    assert metrics["plain", "peak_host"] > 50e6 and ("plain", "process_wall") not in metrics
    # Requests are served in other threads than the one that started torch.profiler.
    (answer,) = (row for row in rows(latest / "ranges.parquet") if row["range"] == "answer")
    assert int(answer["instances"]) >= 3
    assert any(row["kernel"] == "aten::addmm" for row in rows(latest / "kernels.parquet"))
    page = (latest / "SUMMARY.md").read_text(encoding="utf-8")
    assert f"Recorded: 1 s, from {after_s} s after the start of the program." in page and "of the host." in page


def run_span(folder, program, profiler="torch", after_s=0.0, for_s=60.0):
    """Run a program that ends by itself under a span of time."""
    return hooked.run_python(folder, program, profiler=profiler, capture={"after_s": after_s, "for_s": for_s})


WORKS = """
import time
import torch
ends = time.monotonic() + {}
while time.monotonic() < ends:
    torch.ones(8).cumsum(0)
    time.sleep(0.01)
"""


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_program_that_ends_inside_the_span_leaves_its_trace(tmp_path):
    # torch imports its compiler when the profiler starts, which takes seconds.
    done = run_span(tmp_path, "import torch._inductor.config\n" + WORKS.format(3))
    assert done.returncode == 0 and "before the end of the capture" in done.notes, done.output
    with gzip.open(done.traces[0], "rt", encoding="utf-8") as file:
        names = [event.get("name") for event in json.load(file)["traceEvents"]]
    assert "aten::cumsum" in names


@pytest.mark.usefixtures("stub_torch")
@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("print('ran')", "no process imported torch"),
        (WORKS.format(0.1), "the program ended before capture.after_s (30 s)"),
    ],
    ids=["no torch", "too short"],
)
def test_a_program_that_leaves_nothing_says_why(tmp_path, program, why):
    done = run_span(tmp_path, program, after_s=30)
    assert done.returncode == 0 and not done.traces and why in done.explanation


@pytest.mark.usefixtures("stub_torch")
@pytest.mark.parametrize("profiler", ["plain", "torch"])
@pytest.mark.parametrize(
    ("program", "why"),
    [
        (
            "import time; time.sleep(0.3)",
            "no process had imported torch when the capture ended, 0.1 s after the start. ",
        ),
        (
            "import time; time.sleep(0.3)\nimport torch",
            "no process with torch ran during the capture, which ended 0.1 s",
        ),
    ],
    ids=["no torch", "torch"],
)
def test_the_reason_says_when_a_span_ended_before_torch_was_imported(tmp_path, program, why, profiler):
    done = run_span(tmp_path, program, profiler, for_s=0.1)
    assert done.returncode == 0 and not done.traces
    assert why in done.explanation and "Set capture.after_s higher" in done.explanation


FORKS = """
import multiprocessing, time
import torch

def work(size):
    held = bytearray(b"x") * size
    time.sleep(2)

# A fork does not copy the pages of files, so a process with little memory has less than the one that forks it.
workers = [multiprocessing.get_context("fork").Process(target=work, args=(size,)) for size in (1 << 20, 400 << 20)]
for worker in workers: worker.start()
for worker in workers: worker.join()
"""


@pytest.mark.usefixtures("stub_torch")
def test_processes_that_a_server_forks_are_recorded_too_and_the_largest_counts(tmp_path):
    done = run_span(tmp_path, FORKS, "plain")
    assert done.returncode == 0 and len(done.tables) == 3, done.output
    tables = reader.combine(own.set_columns(workload="w", case="c", profiler="plain") for own in done.tables)
    peaks = [own.metrics["value"].max() for own in done.tables]
    assert list(tables.metrics["value"]) == [max(peaks)] and max(peaks) - min(peaks) > 40e6


@pytest.mark.slow
def test_a_profiler_of_the_program_ends_the_span(tmp_path):
    program = WORKS.format(2) + "with torch.profiler.profile() as own:\n    torch.ones(3).cumprod(0)\n"
    program += "print([event.key for event in own.key_averages()])"
    done = run_span(tmp_path, "import torch._inductor.config\n" + program)
    assert "aten::cumprod" in done.output and "the program uses torch.profiler itself" in done.notes


def test_a_span_longer_than_the_time_limit_is_refused(tmp_path):
    path = pipeline(tmp_path, "", capture={"after_s": 890, "for_s": 20})
    with pytest.raises(ConfigError, match=r"'capture' ends after 910 s\. Set timeout_s higher than 900"):
        load_pipeline(path)


@pytest.mark.slow
def test_what_a_program_returns_when_it_is_ended_is_no_failure(tmp_path):
    program = "import signal, time\nsignal.signal(signal.SIGTERM, lambda *_: print('asked'))\ntime.sleep(1)\n"
    # It ends later than it was asked to, with an exit code that it chose.
    program += "while True:\n    time.sleep(0.1)\n    if time.monotonic() > ends: raise SystemExit(3)\n"
    program = "import time; ends = time.monotonic() + 4\n" + program
    (tmp_path / "stubborn.py").write_text(program, encoding="utf-8")
    document = {"command": [sys.executable, "-u", "stubborn.py"], "profilers": ["plain"], "capture": {"for_s": 1}}
    text = json.dumps({"version": 1, "workloads": {"stubborn": document}})
    (tmp_path / "pipeline.yaml").write_text(text, encoding="utf-8")
    profpipe(tmp_path, "run", "pipeline.yaml", "--out", "out")
    log = (tmp_path / "out/latest/raw/stubborn/plain/log.txt").read_text(encoding="utf-8")
    assert "asked" in log
    (case,) = rows(tmp_path / "out/latest/cases.csv")
    assert case["status"] == "ok"
