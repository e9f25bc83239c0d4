"""Run profpipe in a process forked from one that has made a run: what a first run loads takes most of its time.

The process has arguments, environment, folder, output and exit code as if ``python -m profpipe`` had started it. Tests
of the start itself, of signals and of closed streams start a new Python instead.
"""

import functools
import gc
import importlib
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import weakref
from multiprocessing.connection import Connection, Pipe
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

#: Variables that Python reads when it starts, so processes that differ in them have other servers. The entries of
#: PYTHONPATH are put into ``sys.path`` of the forked process.
_READ_AT_START = ("PYTHON", "LANG", "LC_")


def _is_read_at_start(name):
    return name.startswith(_READ_AT_START) and name != "PYTHONPATH"


def run(folder, *words, env=os.environ, timeout=300):
    """Run ``profpipe WORDS`` in ``folder``, without input, and return the finished process with its output."""
    at_start = frozenset((name, value) for name, value in env.items() if _is_read_at_start(name))
    server = _server(at_start)
    argv = [str(word) for word in words]
    with tempfile.TemporaryDirectory(prefix="profpipe-forked-") as kept:
        output = [Path(kept, name) for name in ("stdout", "stderr")]
        try:
            code = server.ask((str(folder), argv, dict(env), [str(path) for path in output]), timeout)
        except BaseException:
            _server.cache_clear()
            raise
        stdout, stderr = (path.read_text(encoding="utf-8", errors="replace") for path in output)
    return subprocess.CompletedProcess(["profpipe", *argv], code, stdout, stderr)


class _Server:
    """The process that has imported profpipe. It ends when this object does, and with the process of the tests."""

    def __init__(self, at_start):
        ours, theirs = Pipe()
        kept = {name: value for name, value in os.environ.items() if not _is_read_at_start(name)}
        self._connection = ours
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno())], pass_fds=[theirs.fileno()], start_new_session=True,
            env={**kept, **dict(at_start), "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        theirs.close()
        weakref.finalize(self, _end, ours, self._process)

    def ask(self, request, timeout):
        self._connection.send(request)
        if not self._connection.poll(timeout):
            os.killpg(self._process.pid, signal.SIGKILL)
            raise subprocess.TimeoutExpired("profpipe", timeout)
        return int(self._connection.recv())


def _end(connection, process):
    connection.close()
    process.wait(60)


#: Few servers live at once, for each holds 150 MB.
_server = functools.lru_cache(maxsize=2)(_Server)


def _serve(connection):
    """Fork a process for each request, one after the other, until the tests close the connection."""
    _warm_up()
    gc.freeze()
    while True:
        try:
            folder, words, env, output = connection.recv()
        except EOFError:
            return
        child = os.fork()
        if not child:
            connection.close()
            return _become(folder, words, env, output)
        connection.send(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def _warm_up():
    """Load what commands load, by one run of a program, and forget what it learned of the machine."""
    from profpipe import cli

    for command in cli.COMMANDS:
        importlib.import_module(f"profpipe.commands.{command}")
    before = dict(os.environ)
    with tempfile.TemporaryDirectory(prefix="profpipe-warm-") as folder:
        os.environ["XDG_STATE_HOME"] = folder
        code = cli.main(["run", "--quiet", "--out", f"{folder}/out", "-p", "plain", "--", "true"])
        assert code == 0, "the first run has failed"
    os.environ.clear()
    os.environ.update(before)
    sys.modules.pop("pynvml", None)


def _become(folder, words, env, output):
    """Make this process what ``python -m profpipe WORDS`` is, and run it."""
    for stream, path in enumerate(output, start=1):
        opened = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
        os.dup2(opened, stream)
        os.close(opened)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    given = filter(None, env.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:2] = [folder, *given]
    sys.argv[1:] = words
    runpy.run_module("profpipe", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _serve(Connection(int(sys.argv[1])))
