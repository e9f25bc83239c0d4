"""Runs profpipe over and over, each time in a fork of one process that has loaded everything, and kills it on request.

A line of JSON on stdin asks for a run, a line on stdout answers. Starting an interpreter and loading pandas for each of
a hundred runs would take minutes.
"""

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from profpipe import plugins, profilers
from profpipe.commands import execution, resume as resume_command
from profpipe.config import loader
from profpipe.job import Command, Tool, Traits, workload_argv
from profpipe.results import folders
from profpipe.runner import process
from profpipe.runner.request import RunRequest

TESTS = Path(__file__).resolve().parent

#: The modules that a run loads. The server forks before any of them has started a thread.
LOADED_LATER = (
    "pyarrow.parquet", "sqlite_utils", "jinja2", "profpipe.commands.cluster", "profpipe.runner.pairs",
)  # fmt: skip


def without_options():
    """The options of `run` and `resume` as none of them is given."""
    parser = argparse.ArgumentParser()
    resume_command.add_arguments(parser)
    return parser.parse_args([], argparse.Namespace(sbatch=[]))


#: The calls of the runner that change something outside its process. A kill before or after a read makes no difference.
STEPS = {
    "os.rename", "os.mkdir", "os.link", "os.remove", "os.chmod", "sqlite3.connect", "subprocess.Popen",
    "profpipe.start",
}  # fmt: skip


class FakeNsys:
    """Meets job.Profiler with ``fake_nsys.py``."""

    NAME = "nsys"
    TRAITS = Traits()

    def find(self, order):
        return Tool("nsys", "1.0.0", str(TESTS / "fake_nsys.py"))

    def commands(self, job):
        report, trace = job.folder / f"{job.stem}.rep", job.folder / f"{job.stem}.json"
        program = (sys.executable, "-S", str(TESTS / "fake_nsys.py"))
        profile = Command((*program, "profile", str(report), *workload_argv(job)), (report,))
        return [profile, Command((*program, "export", str(report), str(trace)), (trace,), runs_workload=False)]

    def artifacts(self, job):
        return [job.folder / f"{job.stem}.json", job.folder / "job.jsonl"]

    def diagnose(self, log):
        return None


def load():
    """Load what a run loads, before the first fork."""
    profilers.ALL["nsys"] = FakeNsys()  # type: ignore[index]
    for name in LOADED_LATER:
        import_module(name)
    for path in plugins.files("parsers", "*.py"):
        plugins.load_module(path)


def main():
    load()
    for line in sys.stdin:
        print(json.dumps(serve(**json.loads(line))), flush=True)


def serve(project, do, kill_after_s=None, kill_at_step=None, least_processes=0):
    """The wait status of a run, its seconds, its number of steps, and how many processes it had when it was killed.

    A kill after a time comes when the run has ``least_processes`` processes.
    """
    reader, writer = os.pipe()
    began = time.monotonic()
    pid = os.fork()
    if pid == 0:
        run_in_child(Path(project), do, kill_at_step, writer)
    os.close(writer)
    status, processes = wait(pid, project, None if kill_after_s is None else began + kill_after_s, least_processes)
    seconds = time.monotonic() - began
    with os.fdopen(reader) as steps_file:
        counted = json.loads(steps_file.read() or "{}")
    return {
        "status": os.waitstatus_to_exitcode(status), "seconds": seconds, "steps": 0, "processes": processes, **counted,
    }  # fmt: skip


def wait(pid, project, deadline, least_processes):
    processes, killed = 0, deadline is None
    while True:
        ended, status = os.waitpid(pid, 0 if killed else os.WNOHANG)
        if ended:
            return status, processes
        if not killed and time.monotonic() >= deadline:
            processes = len(processes_of(project))
            if killed := processes >= least_processes:
                os.kill(pid, signal.SIGKILL)
                continue
            time.sleep(0.02)  # to look at all processes takes long
        time.sleep(0.001)


def run_in_child(project, do, kill_at_step, writer):
    """Never returns: the fork must not come back into the server's loop."""
    code, count = 70, 0

    def step(event, arguments):
        nonlocal count
        if event in STEPS or (event == "open" and arguments[1] and set(arguments[1]) & set("wax+")):
            count += 1
            if count == kill_at_step:
                os.write(writer, json.dumps({"processes": len(processes_of(project))}).encode())
                os.kill(os.getpid(), signal.SIGKILL)

    try:
        os.chdir(project)
        output = os.open("output.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.addaudithook(step)
        code = ACTIONS[do]()
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os.write(writer, json.dumps({"steps": count}).encode())
        os._exit(code)


def processes_of(folder):
    """The ids of the living processes of the jobs below ``folder``."""
    mark, found = os.fsencode(f"{process.JOB_VARIABLE}={folder}"), []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in environ.read_bytes():
                found.append(environ.parent.name)
        except OSError:
            continue
    return found


def start():
    path = Path("pipeline.yaml")
    request = RunRequest.create(loader.load_pipeline(path), path, Path("out"))
    return execution.start(request, ["profpipe", "run"], without_options())


def resume():
    return resume_command.finish(next(folders.list_unfinished(Path("out"))), without_options())


ACTIONS: dict[str, Callable[[], int]] = {"start": start, "resume": resume}

if __name__ == "__main__":
    main()
