"""The Slurm cluster of the tests: it runs jobs on several nodes, loses nodes, and ends when the tests are killed."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from slurm_cluster import Cluster

#: Starts a cluster with a job that outlives its node's daemon, and then waits.
PROGRAM = """
import sys, time
sys.path[:0] = [{tests!r}, {root!r}]
import slurm_cluster
with slurm_cluster.running() as cluster:
    cluster.run("sbatch", "--nodelist=node1", "--output=/dev/null", "--wrap", "touch {mark}; setsid sleep 600")
    print(cluster.folder, flush=True)
    time.sleep(600)
"""


def test_a_step_has_its_node_and_its_gpus(slurm: Cluster) -> None:
    script = "echo $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES"
    lines = slurm.run("srun", "--nodes=2", "--gres=gpu:2", "sh", "-c", script).split("\n")
    assert sorted(filter(None, lines)) == ["node1 0,1", "node2 0,1"]


def test_a_lost_node_runs_its_job_again_when_it_returns(slurm: Cluster, tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    script = f"echo start >> {starts}; [ $SLURM_RESTART_COUNT ] || sleep 600"
    try:
        job = slurm.run("sbatch", "--parsable", "--nodelist=node2", "--output=/dev/null", "--wrap", script).strip()
        _wait_for(starts.exists)
        slurm.kill("node2")
        slurm.set_down("node2")
        assert slurm.run("squeue", "--noheader", "--format=%T", "--jobs", job).split() == ["PENDING"]
        slurm.start("node2")
        # A job that a lost node ran waits two minutes for its next start, or for this.
        slurm.run("scontrol", "update", f"JobId={job}", "StartTime=now")
        _wait_for(lambda: starts.read_text() == "start\nstart\n")
    finally:
        slurm.clear()


def test_killed_tests_leave_neither_daemons_nor_jobs_nor_files(slurm: Cluster, root: Path, tmp_path: Path) -> None:
    mark = tmp_path / "job"
    program = PROGRAM.format(tests=str(root / "tests"), root=str(root), mark=mark)
    tests = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert tests.stdout is not None
    folder = Path(tests.stdout.readline().strip())
    _wait_for(mark.exists)
    assert len(_users_of(folder)) >= 8  # a controller, four nodes, slurmstepd, the job and its process
    tests.kill()
    tests.wait()
    tests.stdout.close()
    _wait_for(lambda: not _users_of(folder))
    _wait_for(lambda: not folder.exists())


def _users_of(folder: Path) -> list[str]:
    """Return the commands of the processes that use the configuration in ``folder``."""
    entry, found = f"SLURM_CONF={folder}/slurm.conf".encode(), []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if entry in (process / "environ").read_bytes().split(b"\0"):
                found.append((process / "cmdline").read_text())
        except OSError:  # the process has ended, or belongs to another user
            continue
    return found


def _wait_for(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.05)
