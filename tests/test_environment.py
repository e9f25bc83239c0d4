"""What of the user's environment reaches a job, and so a profiler's report."""

import subprocess
import sys

import pytest

from profpipe import masking
from profpipe.runner import process


@pytest.mark.parametrize(
    "name",
    [
        *("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "PYTHONPATH", "OMP_NUM_THREADS"),
        *("CUDA_VISIBLE_DEVICES", "CUDA_HOME", "NVIDIA_TF32_OVERRIDE", "NSYS_NVTX_PROFILER_REGISTER_ONLY"),
        *("ROCM_PATH", "HIP_VISIBLE_DEVICES", "HSA_XNACK"),
        *("PYTORCH_CUDA_ALLOC_CONF", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "HF_HUB_OFFLINE"),
        *("XLA_FLAGS", "JAX_PLATFORMS", "TOKENIZERS_PARALLELISM", "WANDB_MODE", "MALLOC_ARENA_MAX", "NVTE_FLASH_ATTN"),
        *(
            "OPAL_PREFIX",
            "OMPI_MCA_btl",
            "UCX_TLS",
            "NVSHMEM_DISABLE_NVLS",
            "CC",
            "CPLUS_INCLUDE_PATH",
            "SSL_CERT_FILE",
        ),
    ],
)
def test_variables_that_a_workload_needs_are_passed_on(name):
    assert process.filter_variables({name: "1"}) == {name: "1"}


@pytest.mark.parametrize(
    "name",
    [
        *("HF_TOKEN", "PYTHON_KEYRING_PASSWORD", "CUDA_SECRET", "NVIDIA_API_KEY", "TORCH_CREDENTIALS"),
        *(
            "AWS_SESSION",
            "DATABASE_URL",
            "SSH_AUTH_SOCK",
            "PATHS",
            "HOMEPAGE",
            "WANDB_API_KEY",
            "OMPI_COMM_WORLD_RANK",
            "CCACHE_DIR",
            "TF_VAR_db_url",
            "OMPI_MCA_orte_hnp_uri",
        ),
    ],
)
def test_unknown_variables_and_secrets_are_not_passed_on(name):
    assert process.filter_variables({name: "1"}) == {}


def test_the_log_of_a_program_names_the_variables_that_clean_env_leaves_out(tmp_path, monkeypatch):
    monkeypatch.setenv("OPAL_PREFIX", "/opt/mpi")
    monkeypatch.setenv("MY_DATA", "/data")
    monkeypatch.setenv("MY_TOKEN", "s3cret-s3cret")
    monkeypatch.setenv("MY_MODE", "fast")
    monkeypatch.setenv("MY_OTHER", "1")
    program = "import os; print([os.environ.get(n) for n in ('OPAL_PREFIX', 'MY_DATA', 'MY_MODE')])"
    words = ["run", "-p", "plain", "--clean-env", "--env", "MY_MODE", "--", sys.executable, "-c", program]
    subprocess.run([sys.executable, "-m", "profpipe", *words], cwd=tmp_path, check=True, capture_output=True)
    (log,) = (path.read_text(encoding="utf-8") for path in tmp_path.glob("out/latest/raw/*/plain/log.txt"))
    _, names, output, *_ = log.splitlines()
    assert output == "['/opt/mpi', None, 'fast']"
    listed = names.removeprefix("# variables that the program does not get: ").split(", ")
    assert {"MY_DATA", "MY_TOKEN"} <= {*listed} and not {"OPAL_PREFIX", "MY_MODE", "PATH", "PWD"} & {*listed}
    assert "s3cret" not in log
    assert "MY_OTHER" in listed and "MY_OTHER" not in (tmp_path / "out/latest/report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "name",
    [
        *("DB_PASS", "PGPASS", "SSHPASS", "DB_PASS_2", "PASSPHRASE", "MYSQL_PWD", "DBPWD", "db_password"),
        *("REDISCLI_AUTH", "AUTH", "OAUTH_CODE", "HTTP_AUTHORIZATION", "GITHUB_PAT", "PAT", "PAT_2", "HF_TOKEN"),
    ],
)
def test_names_of_secrets_are_recognised(name):
    assert masking.is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    [
        *("PATH", "LD_LIBRARY_PATH", "PATTERN", "DISPATCH", "PATCH_SIZE", "PWD", "OLDPWD", "COMPASS", "BYPASS_CACHE"),
        *("PASSES", "AUTHOR", "GIT_AUTHOR_NAME", "XAUTHORITY", "SEQLENS"),
    ],
)
def test_names_that_resemble_secrets_are_not_secrets(name):
    assert not masking.is_secret_name(name)
