"""A Slurm cluster of four nodes on this machine, for tests: a real slurmctld and four real slurmd.

``python slurm_cluster.py`` writes the configuration into a new temporary folder, starts the daemons and prints the
folder. When its input ends it ends all daemons and jobs and removes the folder: it adopts its orphans, so a job that
its node left behind is found too (``PR_SET_CHILD_SUBREAPER``). The kernel closes the input when the tests end in any
way, so killed tests leave neither.

The daemons run as the user of the tests, listen on the loopback interface and trust what a client says about itself
(``auth/none``). There are no cgroups. Each node has 2 CPUs and 2 GPUs; a GPU is a link to /dev/null, which Slurm counts
and hands out, and nothing can run on. ``hostname`` is that of the machine everywhere: SLURMD_NODENAME has the node.
"""

import getpass
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from profpipe.runner import supervisor

NODES = ("node1", "node2", "node3", "node4")
GPUS = 2

_PROGRAMS = ("slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol", "scancel", "sinfo")
#: Debian installs the daemons where the PATH of a user does not look.
_PATH = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"))
#: How long a busy machine may take to start the daemons.
_START_S, _STEP_S = 60.0, 0.05
_PR_SET_CHILD_SUBREAPER = 36
#: The states in which a node takes jobs.
_IN_SERVICE = ("idle", "mixed", "allocated")

#: Times are short, so that a test waits little. Slurm 22.05 looks at time limits every 30 seconds.
_CONFIGURATION = """\
ClusterName=profpipe
SlurmctldHost=localhost(127.0.0.1)
MailProg=/bin/true
SlurmctldPort={controller_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=1,sched_min_interval=0,batch_sched_delay=0,bf_interval=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
GresTypes=gpu
SlurmdParameters=config_overrides
MaxArraySize=10001
MaxJobCount=10001
ReturnToService=2
SlurmdTimeout=15
MessageTimeout=30
KillWait=2
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10
"""
_NODE = "NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs=2 Gres=gpu:{gpus} State=UNKNOWN"


@dataclass(frozen=True)
class Cluster:
    """The running cluster. ``environment`` is for the processes that use it: SLURM_CONF and PATH."""

    folder: Path
    environment: Mapping[str, str]
    daemons: subprocess.Popen[str]
    nodes: tuple[str, ...] = NODES

    def run(self, *argv, timeout=60):
        """Run a program of Slurm, such as ``squeue``, and return its output."""
        words = [str(word) for word in argv]
        env = {**os.environ, **self.environment}
        done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=timeout)
        assert done.returncode == 0, f"{words}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def set_down(self, node):
        """Mark a node as down, as an administrator does: its jobs end or are requeued, its daemon still runs."""
        self.run("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")

    def set_up(self, node):
        """Return a node to service and wait until it is there. It may have a job at once, when one is pending."""
        if self._state(node) not in _IN_SERVICE:
            # The node may return by itself meanwhile, when its daemon answers.
            with suppress(AssertionError):
                self.run("scontrol", "update", f"NodeName={node}", "State=RESUME")
        _wait_for(lambda: self._state(node) in _IN_SERVICE, lambda: f"{node} is {self._state(node)}, not in service")

    def clear(self):
        """End all jobs, and return all nodes to service."""
        self.run("scancel", "--user", getpass.getuser())
        for node in self.nodes:
            self.set_up(node)
        for node in self.nodes:
            self._wait_until_idle(node)

    def _state(self, node):
        return self.run("sinfo", "--noheader", "--nodes", node, "--format", "%T").split()[0]

    def _wait_until_idle(self, node):
        _wait_for(lambda: self._state(node) == "idle", lambda: f"{node} is {self._state(node)}, not idle")


def why_missing():
    """Return why no cluster can be started here; empty where one can."""
    missing = [name for name in _PROGRAMS if not shutil.which(name, path=_PATH)]
    return f"no Slurm here ({', '.join(missing)} not found): run `.ci/slurm`" if missing else ""


def version():
    """Return the version of the Slurm that is installed here."""
    daemon = shutil.which("slurmctld", path=_PATH)
    return subprocess.run([str(daemon), "-V"], capture_output=True, text=True, timeout=60).stdout.strip()


@contextmanager
def running():
    """Start a cluster with a folder, ports and daemons that no other one has; end it at the end."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    daemons = subprocess.Popen(
        [sys.executable, __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=env,
        start_new_session=True,
    )
    assert daemons.stdin is not None and daemons.stdout is not None
    try:
        folder = daemons.stdout.readline().strip()
        assert folder, "the cluster does not start: its error is above"
        yield Cluster(Path(folder), {"SLURM_CONF": f"{folder}/slurm.conf", "PATH": _PATH}, daemons)
    finally:
        daemons.stdin.close()
        daemons.wait(timeout=60)
        daemons.stdout.close()


def main():
    """Run the daemons until the input ends."""
    folder = Path(tempfile.mkdtemp(prefix="profpipe-slurm-"))
    supervisor.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGCHLD, _reap)
    os.environ |= {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": _PATH}
    try:
        _write_configuration(folder)
        _start("slurmctld", "-D", "-c", "-i", log=folder / "slurmctld.out")
        for node in NODES:
            os.environ["SLURMD_NODENAME"] = node
            _start("slurmd", "-D", "-N", node, log=folder / f"slurmd.{node}.out")
        _wait_for(_all_idle, lambda: _read_logs(folder))
        print(folder, flush=True)
        sys.stdin.read()
    finally:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        supervisor.kill_all(0, _START_S)
        shutil.rmtree(folder)


def _reap(*_):
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _write_configuration(folder):
    controller_port, *ports = _free_ports(1 + len(NODES))
    nodes = [_NODE.format(name=name, port=port, gpus=GPUS) for name, port in zip(NODES, ports, strict=True)]
    text = _CONFIGURATION.format(
        folder=folder, user=getpass.getuser(), controller_port=controller_port, nodes="\n".join(nodes)
    )
    (folder / "slurm.conf").write_text(text)
    (folder / "gres.conf").write_text(
        f"NodeName={','.join(NODES)} Name=gpu File={folder}/devices/nvidia[0-{GPUS - 1}]\n"
    )
    for name in ("state", "devices", *(f"spool.{node}" for node in NODES)):
        (folder / name).mkdir()
    for number in range(GPUS):
        (folder / "devices" / f"nvidia{number}").symlink_to("/dev/null")


def _free_ports(count):
    """Return ports that nothing listens on, below those that the kernel gives to outgoing connections."""
    ports: list[int] = []
    for port in random.sample(range(20000, 32000), 1000):
        with socket.socket() as trial, suppress(OSError):
            trial.bind(("127.0.0.1", port))
            ports.append(port)
        if len(ports) == count:
            return ports
    raise RuntimeError("no free ports between 20000 and 32000")


def _start(*argv, log):
    with log.open("ab") as output:
        subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True)


def _all_idle():
    argv = ["sinfo", "--noheader", "--partition", "main", "--format", "%D %T"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=_START_S)
    return done.stdout.split() == [str(len(NODES)), "idle"]


def _read_logs(folder):
    return "\n".join(f"{path.name}:\n{path.read_text()}" for path in sorted(folder.glob("*.out")))


def _wait_for(is_true, describe):
    deadline = time.monotonic() + _START_S
    while not is_true():
        if time.monotonic() > deadline:
            raise TimeoutError(describe())
        time.sleep(_STEP_S)


if __name__ == "__main__":
    main()
