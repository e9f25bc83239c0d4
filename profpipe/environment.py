"""Which of the user's environment variables a job's processes see.

Profilers store the environment inside their reports (nsys in several tables of the export), and reports are shared.
So what is needed is let through by name, and nothing that looks like a secret, whatever its prefix.
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
#: PASS, PWD and PAT as words, or at the end of one: COMPASS, BYPASS, PWD itself, PATH, PATTERN and AUTHOR are none.
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


def passed_on(environment: Mapping[str, str]) -> dict[str, str]:
    """The part of ``environment`` that a job's processes get.

    What a pipeline file sets under ``env`` is added later and not filtered: there the user has named it.
    """
    return {name: value for name, value in environment.items() if _NEEDED.match(name) and not is_secret(name)}


def is_secret(name: str) -> bool:
    """Whether the variable of that name may hold what nobody else must see."""
    return bool(_SECRET.search(name))


def python_path() -> str:
    """So that ``python -m profpipe.harness`` is this profpipe, also in a checkout that was never installed."""
    own = str(Path(__file__).resolve().parent.parent)
    return os.pathsep.join([own, *filter(None, [os.environ.get("PYTHONPATH")])])
