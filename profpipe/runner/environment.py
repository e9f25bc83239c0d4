"""Choose the environment variables of a job's processes.

Profilers store the environment in their reports (nsys in several tables of the export), and reports are shared. So only
listed names pass, and no name that looks like a secret.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from profpipe.masking import is_secret_name

_NEEDED = re.compile(
    r"""
    (PATH | HOME | USER | LOGNAME | SHELL | TERM | TZ | LANG | LANGUAGE | TMPDIR | LD_LIBRARY_PATH | LD_PRELOAD
    | VIRTUAL_ENV | CONDA_PREFIX | CONDA_DEFAULT_ENV | XDG_(CACHE|CONFIG|DATA)_HOME | MPLBACKEND
    | CC | CXX | LIBRARY_PATH | CPATH | (C|CPLUS)_INCLUDE_PATH
    | SSL_CERT_(FILE|DIR) | REQUESTS_CA_BUNDLE | CURL_CA_BUNDLE) $
    | LC_ | PYTHON | PROFPIPE_
    | CUDA | CUDNN_ | CUBLAS | NVIDIA_ | NSYS_ | NCU_ | NCCL_
    | ROCM | HIP | HSA | ROCR | ROCPROF | MIOPEN_ | GPU_ | AMD_
    | TORCH | PYTORCH_ | TRITON | XFORMERS_ | FLASH_ | OMP_ | MKL_ | KMP_ | OPENBLAS_
    | HF_ | TRANSFORMERS_ | DIFFUSERS_ | TOKENIZERS_ | ACCELERATE_ | DEEPSPEED_ | NVTE_ | VLLM_ | WANDB_
    | JAX_ | XLA_ | TF_(?!VAR_) | KERAS_ | NUMBA_ | CUPY_ | NUMEXPR_ | GOMP_ | MALLOC_
    | OMPI_MCA_(?!ess|orte|pmix) | OPAL_ | PRTE_MCA_ | MPICH_ | I_MPI_ | UCX_ | UCC_ | FI_ | HCOLL_ | GLOO_ | NVSHMEM_
    """,
    re.VERBOSE,
)


def filter_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the part of ``environment`` that a job's processes get.

    The variables under ``env`` in a pipeline file are added later and not filtered, for the user named them.
    """
    return {name: value for name, value in environment.items() if _NEEDED.match(name) and not is_secret_name(name)}


def left_out(environment: Iterable[str], passed: Iterable[str]) -> list[str]:
    """Return the names in ``environment`` that are not ``passed``, without those that a shell sets itself."""
    return sorted({*environment} - {*passed} - {"_", "PWD", "OLDPWD", "SHLVL"})


#: The folder that holds the package profpipe.
ROOT: Final = Path(__file__).resolve().parents[2]


def python_path() -> str:
    """Return the PYTHONPATH with which ``python -m profpipe`` finds this profpipe, installed or not.

    An empty entry stands for the current folder.
    """
    given = os.environ.get("PYTHONPATH")
    entries = given.split(os.pathsep) if given else []
    return os.pathsep.join(dict.fromkeys([str(ROOT), *(entry or os.curdir for entry in entries)]))


def own_python_path() -> str:
    """Return ``PYTHONPATH`` without the current folder and the folders that are relative to it.

    The current folder may be a results folder of somebody else.
    """
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    here = os.path.realpath(os.curdir)
    return os.pathsep.join(entry for entry in given if entry.startswith(os.sep) and os.path.realpath(entry) != here)
