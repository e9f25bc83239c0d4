"""Disturb runs by seeded faults, resume them, and compare their tables with those of an undisturbed run.

    python benchmarks/chaos.py [--faults 100] [--part 1/4] [--seed 22]

A sweep of 20 cases runs without a profiler and under one that, like nsys, writes its report at the end. A fault kills
the runner, the harness or the profiler, or fails a write of the runner or the harness with ENOSPC or of the runner with
EIO, at the n-th call that changes a file (``chaos_shim.c``). Other faults: the runner and its supervisor are killed at
once; another process holds the database; the clock is set back by an hour during the run; two processes resume one run.
Each run is then resumed until nothing is left to do.

The table counts faults, cases that are lost or differ in a cell that is no time, cases without a profiler that were
measured again after they had ended, and processes that live two seconds after their runner.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

CASES = 20
WORKLOAD = "def build(params):\n    return lambda: sum(range(10 * params['n']))\n"
PIPELINE = f"""
version: 1
name: sweep
defaults:
  {{warmup: 0, repeats: 2, timeout_s: 60, timing: {{order: sequential, budget_s: 30, most: 3, rounds: 1}}}}
workloads:
  sums: {{script: sums.py, profilers: [plain, nsys], matrix: {{n: {list(range(1, CASES + 1))}}}}}
"""
#: How often each kind of fault occurs among a hundred.
SHARES = {
    "runner killed": 30,
    "supervisor and runner killed": 6,
    "harness killed": 14,
    "profiler killed": 6,
    "runner: ENOSPC": 12,
    "runner: EIO": 10,
    "harness: ENOSPC": 10,
    "database locked": 4,
    "clock set back": 5,
    "two runners": 3,
}
#: What a run writes of its times, its processes and its files' parts.
_TIMES = ("run", "process", "seconds", "flags", "ci_low", "ci_high", "n", "wall_ns", "kernel_ns", "busy_ns")


@dataclass
class Result:
    """The counts of one kind of fault."""

    faults: int = 0
    reached: int = 0
    lost: int = 0
    repeated: int = 0
    left: int = 0
    notes: list[str] = field(default_factory=list)


class Chaos:
    """Projects below a folder, and the shim. Each command runs in a fork of this process, which has loaded profpipe."""

    def __init__(self, below: Path, shim: Path) -> None:
        self._below, self._shim, self._count = below, ctypes.CDLL(str(shim)), 0
        self.calls: dict[str, int] = {}
        began = self.project()
        code = self.command(began, "start", runner=(b"n", 0), count_harness=True)
        assert code == 0, (began / "output.txt").read_text()
        self.calls = {name: int((began / name).read_text().split()[0]) for name in ("runner", "harness")}
        self.expected = tables(began)

    def project(self) -> Path:
        self._count += 1
        folder = self._below / str(self._count)
        folder.mkdir()
        (folder / "sums.py").write_text(WORKLOAD)
        (folder / "pipeline.yaml").write_text(PIPELINE)
        return folder

    def start(
        self, project: Path, do: str, runner: tuple[bytes, int] | None = None, harness: tuple[bytes, int] | None = None,
        count_harness: bool = False, role: str = "measure.harness",
    ) -> int:  # fmt: skip
        """Fork a command; return its process id."""
        pid = os.fork()
        if pid:
            return pid
        code = 70
        try:
            os.chdir(project)
            output = os.open("output.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(output, 1)
            os.dup2(output, 2)
            # The same value in all commands: a run is not resumed with other variables.
            os.environ["PROFPIPE_CHAOS"] = str(project / "chaos")
            (project / "chaos").unlink(missing_ok=True)
            if fault := (b"n", 0) if count_harness else harness:
                once = project / ("harness" if count_harness else "once")
                (project / "chaos").write_text(f"{role},{fault[0].decode()},{fault[1]},{once}")
            if runner:
                once = project / ("runner" if runner[0] == b"n" else "once")
                self._shim.chaos_arm(ctypes.c_char(runner[0]), ctypes.c_long(runner[1]), os.fsencode(once))
            code = commands()[do]()
            if runner and runner[0] == b"n":
                (project / "runner").write_text(str(self._shim.chaos_count()))
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(code)

    def command(self, project: Path, do: str, **faults: Any) -> int:
        _, status = os.waitpid(self.start(project, do, **faults), 0)
        return os.waitstatus_to_exitcode(status)

    def disturb(self, kind: str, dice: random.Random, result: Result) -> None:
        """Run a project with one fault, resume it to its end, and add what is wrong to ``result``."""
        from kill_server import processes_of

        project = self.project()
        result.faults += 1
        FAULTS[kind](self, project, dice)
        result.reached += (project / "once").exists()
        deadline = time.monotonic() + 2
        while (left := processes_of(project)) and time.monotonic() < deadline:
            time.sleep(0.05)
        result.left += len(left)
        for _ in range(4):
            if finished(project):
                break
            self.command(project, "resume" if only_run(project) else "start")
        # A run that could not be stored is entered into the history by the next command.
        self.command(project, "history")
        wrong = differences(tables(project), self.expected) if finished(project) else ["not finished"]
        result.lost += len(wrong)
        again = repeated(project)
        result.repeated += len(again)
        # A folder with such a name may belong to a run that another process is about to fill: it is removed with its
        # files after a minute.
        out = project / "out"
        partial = [path for path in out.rglob(".*.partial") if not path.is_dir()]
        litter = [path for path in partial if not path.relative_to(out).parts[0].endswith(".partial")]
        if wrong or again or left or litter:
            result.notes.append(f"{project}: {wrong} {again} {left} {litter}")
        else:
            shutil.rmtree(project)


def _at_a_call(process: str, action: bytes) -> Callable[[Chaos, Path, random.Random], None]:
    """Do ``action`` of the shim at any call of the ``runner`` or the ``harness``."""

    def disturb(chaos: Chaos, project: Path, dice: random.Random) -> None:
        chaos.command(project, "start", **{process: (action, dice.randint(1, chaos.calls[process]))})

    return disturb


def _profiler_killed(chaos: Chaos, project: Path, dice: random.Random) -> None:
    chaos.command(project, "start", harness=(b"k", 1), role="fake_nsys.py")


def _set_back(chaos: Chaos, project: Path, dice: random.Random) -> None:
    at = dice.randint(1, 200)
    chaos.command(project, "start", runner=(b"c", at), harness=(b"c", at))
    (project / "once").touch()


def _kill_supervisor(chaos: Chaos, project: Path, dice: random.Random) -> None:
    pid, deadline = chaos.start(project, "start"), time.monotonic() + 10
    while not _supervisors(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(dice.uniform(0, 1.5))
    for supervisor in _supervisors(pid):
        (project / "once").touch()
        os.kill(pid, signal.SIGKILL)
        os.kill(supervisor, signal.SIGKILL)
    os.waitpid(pid, 0)


def _supervisors(pid: int) -> list[int]:
    # A thread of the runner started it.
    children = " ".join(path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")).split()
    return [int(name) for name in children if b"supervisor.py" in Path(f"/proc/{name}/cmdline").read_bytes()]


def _locked(chaos: Chaos, project: Path, dice: random.Random) -> None:
    from profpipe.results import database

    (project / "out").mkdir()
    with database.connect(project / "out"):
        pass
    with closing(sqlite3.connect(project / "out" / database.FILE)) as other:
        other.execute("begin exclusive")
        chaos.command(project, "start")
        (project / "once").touch()


def _two(chaos: Chaos, project: Path, dice: random.Random) -> None:
    chaos.command(project, "start", runner=(b"k", dice.randint(chaos.calls["runner"] // 3, chaos.calls["runner"])))
    both = [chaos.start(project, "resume") for _ in range(2)]
    for pid in both:
        os.waitpid(pid, 0)


FAULTS: dict[str, Callable[[Chaos, Path, random.Random], None]] = {
    "runner killed": _at_a_call("runner", b"k"),
    "supervisor and runner killed": _kill_supervisor,
    "harness killed": _at_a_call("harness", b"k"),
    "profiler killed": _profiler_killed,
    "runner: ENOSPC": _at_a_call("runner", b"s"),
    "runner: EIO": _at_a_call("runner", b"i"),
    "harness: ENOSPC": _at_a_call("harness", b"s"),
    "database locked": _locked,
    "clock set back": _set_back,
    "two runners": _two,
}


# --- profpipe --------------------------------------------------------------------------------------------------------


def commands() -> dict[str, Callable[[], int]]:
    import kill_server

    from profpipe.commands import recording

    def history() -> int:
        recording.record_missing(Path("out"))
        return 0

    return {**kill_server.ACTIONS, "history": history}


def only_run(project: Path) -> Path | None:
    from profpipe.results import folders

    out = project / "out"
    return next((folder for folder, _ in folders.list_runs(out)), None) if out.exists() else None


def finished(project: Path) -> bool:
    from profpipe.results.manifest import Manifest

    run = only_run(project)
    return run is not None and bool(Manifest.load(run).ended)


def tables(project: Path) -> dict[str, Any]:
    """The tables of the run without times, and the entry in the history."""
    from profpipe.results import database, schema, store

    run = only_run(project)
    assert run is not None
    data, _ = store.load(run)
    found = {}
    for table in schema.ALL:
        frame = getattr(data, table.name).copy()
        if table is schema.KERNELS:
            # Kernels of an attempt that another one replaced stay, outside all cases.
            frame = frame[frame["case"] != ""]
        frame = frame.drop(columns=[name for name in frame if str(name) in _TIMES])
        if "source" in frame:
            frame["source"] = frame["source"].str.replace(r"capture-\d+", "capture", regex=True)
        if "metric" in frame:
            is_time = frame["unit"].isin(["ns", "%"]) | (frame["metric"] == "iterations")
            # A host without noise has other notes on its clock.
            frame["value"] = frame["value"].where(~is_time)
        found[table.name] = sorted(map(repr, frame.astype(object).itertuples(index=False)))
    found["history"] = [str(row["ok"]) for row in database.read_history(project / "out")[0]]
    return found


def differences(own: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    """The rows that one of the runs has and the other lacks."""
    return [
        f"{name}: {row}"
        for name in expected
        for row in ((Counter(own[name]) - Counter(expected[name])) + (Counter(expected[name]) - Counter(own[name])))
    ]


def repeated(project: Path) -> list[str]:
    """Cases without a profiler that were begun again after they had ended well."""
    run, ended, again = only_run(project), set(), []
    path = run / "raw/sums/plain/job.jsonl" if run else Path("none")
    for line in path.read_text(errors="replace").splitlines() if path.exists() else ():
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if event["event"] == "case_ended" and event["status"] == "ok":
            ended.add(event["case"])
        elif event["event"] == "case_started" and event["case"] in ended:
            again.append(event["case"])
    return again


@contextmanager
def built_shim() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="profpipe-chaos-") as folder:
        shim = Path(folder) / "shim.so"
        source = ROOT / "benchmarks" / "chaos_shim.c"
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(shim), str(source), "-ldl"], check=True)
        yield shim


def chosen(faults: int, part: str, seed: int) -> list[tuple[int, str]]:
    """Return number and kind of the faults of ``part``, in a random order. Each kind occurs where there is room."""
    kinds = [kind for kind, share in SHARES.items() for _ in range(max(1, round(share * faults / 100)))]
    random.Random(seed).shuffle(kinds)
    first, _, step = part.partition("/")
    return list(enumerate(kinds[:faults], start=1))[int(first) - 1 :: int(step)]


def run(faults: list[tuple[int, str]], seed: int, below: Path, shim: Path, seconds: float) -> dict[str, Result]:
    import kill_server

    kill_server.load()
    chaos = Chaos(below, shim)
    results, began = {kind: Result() for kind in SHARES}, time.monotonic()
    for number, kind in faults:
        if time.monotonic() - began > seconds:
            break
        chaos.disturb(kind, random.Random(f"{seed} {number}"), results[kind])
        print(f"{number}: {kind} {results[kind].notes[-1:]}", file=sys.stderr, flush=True)
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--seed", type=int, default=22)
    parser.add_argument("--seconds", type=float, default=3600.0, help="start no further fault after this time")
    parser.add_argument("--part", default="1/1", metavar="I/N", help="every N-th fault from the I-th on")
    parser.add_argument("--shim", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.shim is None:
        with built_shim() as shim:
            path = os.pathsep.join(map(str, (ROOT, ROOT / "tests", ROOT / "tests" / "no_torch")))
            environment = {**os.environ, "LD_PRELOAD": str(shim), "PYTHONPATH": path}
            again = [sys.executable, __file__, *sys.argv[1:], "--shim", str(shim)]
            return subprocess.run(again, env=environment, check=False).returncode
    below = Path(tempfile.mkdtemp(prefix="profpipe-chaos-"))
    results = run(chosen(args.faults, args.part, args.seed), args.seed, below, args.shim, args.seconds)
    print("| fault | faults | reached | cells that differ | cases repeated | processes left |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for kind, each in results.items():
        print(f"| {kind} | {each.faults} | {each.reached} | {each.lost} | {each.repeated} | {each.left} |")
    notes = [note for each in results.values() for note in each.notes]
    print(*notes, sep="\n", file=sys.stderr)
    if not notes:
        shutil.rmtree(below, ignore_errors=True)
    return 1 if notes else 0


if __name__ == "__main__":
    sys.exit(main())
