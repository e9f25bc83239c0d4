"""Recognise a kill by the kernel's OOM killer. The kernel's files are invented, because no test may fill a host."""

from __future__ import annotations

from pathlib import Path

import pytest

from profpipe.job import Cause, Status
from profpipe.runner import oom


def kernel(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


V2 = {"proc/self/cgroup": "0::/user/job7\n", "sys/fs/cgroup/user/job7/memory.events": "low 0\noom 3\noom_kill 2\n"}
V1 = {
    "proc/self/cgroup": "5:cpu,cpuacct:/x\n4:memory:/job7\n0::/\n",
    "sys/fs/cgroup/memory/job7/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
}
WHOLE = {"proc/vmstat": "pgfault 99\noom_kill 2\n"}


@pytest.mark.parametrize("files", [V2, V1, WHOLE], ids=["cgroup v2", "cgroup v1", "whole machine"])
def test_a_sigkill_while_the_kernels_count_rose_is_out_of_memory(tmp_path: Path, files: dict[str, str]) -> None:
    root = kernel(tmp_path, files)
    assert oom.count_kills(root) == 2
    for returncode in (-9, 137):
        killed = oom.explain_sigkill(returncode, 1, root)
        assert killed and (killed.status, killed.cause) == (Status.OOM, Cause.HOST_MEMORY)


@pytest.mark.parametrize(("before", "files"), [(2, WHOLE), (None, {})])
def test_any_other_sigkill_is_a_crash_that_may_have_been_out_of_memory(tmp_path, before, files) -> None:
    killed = oom.explain_sigkill(-9, before, kernel(tmp_path, files))
    assert killed and (killed.status, killed.cause) == (Status.CRASHED, Cause.SIGKILL)
    assert killed.reason == "killed by SIGKILL, perhaps out of host memory"


@pytest.mark.parametrize("returncode", [0, 1, -11, 139, None])
def test_any_other_end_is_not_explained(tmp_path: Path, returncode: int | None) -> None:
    assert oom.explain_sigkill(returncode, 0, kernel(tmp_path, WHOLE)) is None
