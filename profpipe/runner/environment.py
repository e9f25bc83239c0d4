"""Choose the environment variables of a job's processes.

Profilers store the environment in their reports (nsys in several tables of the export), and reports are shared. So only
listed names pass, and no name that looks like a secret.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

_NEEDED = re.compile(
    r"""
    (PATH | HOME | USER | LOGNAME | SHELL | TERM | TZ | LANG | LANGUAGE | TMPDIR | LD_LIBRARY_PATH | LD_PRELOAD
    | VIRTUAL_ENV | CONDA_PREFIX | CONDA_DEFAULT_ENV | XDG_(CACHE|CONFIG|DATA)_HOME) $
    | LC_ | PYTHON | PROFPIPE_
    | CUDA | CUDNN_ | CUBLAS | NVIDIA_ | NSYS_ | NCU_ | NCCL_
    | ROCM | HIP | HSA | ROCR | ROCPROF | MIOPEN_ | GPU_ | AMD_
    | TORCH | PYTORCH_ | TRITON | XFORMERS_ | FLASH_ | OMP_ | MKL_ | KMP_ | OPENBLAS_
    | HF_ | TRANSFORMERS_ | DIFFUSERS_
    """,
    re.VERBOSE,
)
#: PASS, PWD and PAT count as words or at the end of a word, but not COMPASS, BYPASS, PWD itself, PATH, PATTERN, AUTHOR.
_SECRET = re.compile(
    r"""
    TOKEN | SECRET | KEY | CREDENTIAL | PASS(W|PHRASE|CODE)
    | (?<!BY)(?<!COM) PASS (?![A-Z])
    | (?<=.)(?<!^OLD) PWD (?![A-Z])
    | AUTH (?!OR(?!I[SZ]))
    | (?<![A-Z]) PAT (?![A-Z])
    """,
    re.IGNORECASE | re.VERBOSE,
)


def filter_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the part of ``environment`` that a job's processes get.

    The variables under ``env`` in a pipeline file are added later and not filtered, for the user named them.
    """
    return {name: value for name, value in environment.items() if _NEEDED.match(name) and not is_secret(name)}


def is_secret(name: str) -> bool:
    """Return True if the variable of that name may hold a secret."""
    return bool(_SECRET.search(name))


def python_path() -> str:
    """Return the PYTHONPATH with which ``python -m profpipe`` finds this profpipe, installed or not."""
    package_dir = str(Path(__file__).resolve().parents[2])
    return os.pathsep.join([package_dir, *filter(None, [os.environ.get("PYTHONPATH")])])
