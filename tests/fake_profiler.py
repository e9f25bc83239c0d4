"""A profiler without a GPU or a tool: its workload is a script that does what each case's ``do`` says.

The runner and its processes are real; only what a harness would measure is not.
"""

import json
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

from profpipe.job import Case, Command, ProgressListener, Tool, Traits

WORKLOAD = '''
import json, os, pathlib, signal, subprocess, sys, time
spec_path = pathlib.Path(sys.argv[1])
spec = json.loads(spec_path.read_text())
folder = spec_path.parent

def write(event, **fields):
    with (folder / "job.jsonl").open("a") as stream:
        stream.write(json.dumps({"event": event, **fields}) + "\\n")

def stubborn_child(own_session):
    """A process that ignores the polite signals; `ready` appears once it does."""
    ignore = "import pathlib, signal, sys, time\\n" \\
        "for s in (signal.SIGINT, signal.SIGTERM): signal.signal(s, signal.SIG_IGN)\\n" \\
        "pathlib.Path(sys.argv[1]).touch(); time.sleep(600)"
    ready = folder / f"ready-{os.getpid()}-{own_session}"
    child = subprocess.Popen([sys.executable, "-c", ignore, ready], start_new_session=own_session)
    while not ready.exists():
        time.sleep(0.01)
    with (folder / "pids").open("a") as stream:
        stream.write(f"{child.pid}\\n")

def ignore_polite_signals():
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)

exec(os.environ.get("FIRST", ""))
for case in spec["cases"]:
    write("case_started", case=case["id"], pid=os.getpid())
    exec(case["params"]["do"])
    write("case_ended", case=case["id"], status="ok")
(folder / (spec["stem"] + ".out")).write_text("measured")
exec(os.environ.get("LAST", ""))
'''


#: Its cases are complete when they end.
KEEPS = Traits(keeps_ended_cases=True)


@dataclass
class FakeProfiler:
    """``exports`` are Python programs run after the workload, each of which is to make ``<stem>.export``."""

    script: Path
    exports: tuple[str, ...] = ()
    makes_report: bool = True
    explains: tuple[str, str] | None = None
    retry_pattern: re.Pattern[str] | None = None
    NAME: str = "fake"
    TRAITS: Traits = KEEPS

    def find(self, ask):
        return Tool("fake", "1")

    def commands(self, job):
        if job.script is None:
            return [Command(job.command, retry_pattern=self.retry_pattern)]
        report, export = job.folder / f"{job.stem}.out", job.folder / f"{job.stem}.export"
        argv = (sys.executable, str(self.script), str(job.spec))
        workload = Command(argv, (report,) if self.makes_report else (), retry_pattern=self.retry_pattern)
        after = [
            Command((sys.executable, "-c", text, str(export)), (export,), runs_workload=False) for text in self.exports
        ]
        return [workload, *after]

    def artifacts(self, job):
        return [job.folder / f"{job.stem}.out", job.folder / f"{job.stem}.export", job.folder / "job.jsonl"]

    def diagnose(self, log):
        return self.explains


@dataclass
class Notes(ProgressListener):
    """A ProgressListener that keeps the events."""

    calls: list[tuple[object, ...]] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    visits: list[tuple[str, int, int, int]] = field(default_factory=list)

    def lane(self, name):
        return self

    def job_started(self, job, index, total, left=None):
        self.calls.append(("job_started", index, total))

    def case_started(self, case, number=1, round=1, rounds=1):
        self.visits.append((case, number, round, rounds))
        self.calls.append(("case_started", case))

    def case_ended(self, case, status, reason=""):
        self.calls.append(("case_ended", case, status))

    def job_ended(self, outcome):
        self.calls.append(("job_ended", outcome.status))

    def message(self, text):
        self.messages.append(text)


def fake_profiler(folder, **fields):
    script = folder / "workload.py"
    script.write_text(WORKLOAD, encoding="utf-8")
    return FakeProfiler(script, **fields)  # type: ignore[arg-type]


def chrome_trace(path, kernel_us):
    """A trace as torch.profiler writes it: in the range of each case one kernel of that many microseconds."""
    events = []
    for number, (case, duration) in enumerate(kernel_us.items(), start=1):
        host, begin, launch = {"ph": "X", "pid": 1, "tid": 1}, 1000.0 * number, {"correlation": number}
        on_gpu = {"device": 0, "stream": 7, **launch}
        events += [
            {**host, "cat": "user_annotation", "name": f"profpipe:{case}", "ts": begin, "dur": 500.0},
            {**host, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": begin + 10, "dur": 5.0, "args": launch},
            {
                "ph": "X",
                "pid": 0,
                "tid": 7,
                "cat": "kernel",
                "name": "add",
                "ts": begin + 20,
                "dur": duration,
                "args": on_gpu,
            },
        ]
    path.write_text(json.dumps({"schemaVersion": 1, "deviceProperties": [], "traceEvents": events}), encoding="utf-8")
    return path


def job_of(below, *todo, **fields):
    """A job with one case for each program in ``todo``: ``case=1``, ``case=2`` and so on."""
    given: dict[str, object] = {
        "workload": "attention",
        "profiler": "fake",
        "cases": tuple(Case(f"case={number}", {"do": do}) for number, do in enumerate(todo, start=1)),
        "folder": below / "raw" / "attention" / "fake",
        "tool": Tool("fake", "1"),
        "python": sys.executable,
        "cwd": below,
        "script": below / "unused.py",
        "timeout_s": 60.0,
    }
    # Not at the top: the workload's process imports this module without pydantic.
    from jobs import make_job

    return make_job(**(given | fields))  # type: ignore[arg-type]
