"""What of the user's environment reaches a job, and so a profiler's report."""

from __future__ import annotations

import pytest

from profpipe import environment


@pytest.mark.parametrize(
    "name",
    [
        *("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "PYTHONPATH", "OMP_NUM_THREADS"),
        *("CUDA_VISIBLE_DEVICES", "CUDA_HOME", "NVIDIA_TF32_OVERRIDE", "NSYS_NVTX_PROFILER_REGISTER_ONLY"),
        *("ROCM_PATH", "HIP_VISIBLE_DEVICES", "HSA_XNACK"),
        *("PYTORCH_CUDA_ALLOC_CONF", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "HF_HUB_OFFLINE"),
    ],
)
def test_what_a_workload_needs_is_passed_on(name: str) -> None:
    assert environment.passed_on({name: "1"}) == {name: "1"}


@pytest.mark.parametrize(
    "name",
    [
        *("HF_TOKEN", "PYTHON_KEYRING_PASSWORD", "CUDA_SECRET", "NVIDIA_API_KEY", "TORCH_CREDENTIALS"),
        *("AWS_SESSION", "DATABASE_URL", "SSH_AUTH_SOCK", "PATHS", "HOMEPAGE"),
    ],
)
def test_what_looks_like_a_secret_or_is_unknown_is_not(name: str) -> None:
    assert environment.passed_on({name: "1"}) == {}
