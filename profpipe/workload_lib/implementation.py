"""The description of one implementation of attention."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from profpipe.workload_lib import attention_config
from profpipe.workload_lib.attention_config import AttentionConfig, Forward


@dataclass(frozen=True)
class Implementation:
    """An implementation of attention: how to call it, and what it supports.

    ``prepare`` imports its package and binds the config. ``heads_first``: its tensors are ``(batch, heads, seqlen,
    head_dim)``. ``family`` gives the kernel family on an NVIDIA GPU, ``rocm_family`` on an AMD GPU; ``|`` separates
    alternatives.

    ``package`` is the imported module and ``distribution`` its name for pip, where the version matters: it must begin
    with ``version``. ``install`` is the command that installs it; ``{arch}`` stands for the GPU's architecture (9.0).
    ``missing_dependency`` returns what else is missing here, with the remedy.

    ``bottom_right``: with fewer queries than keys, the causal mask lets the last query see every key. ``grouped``:
    fewer key/value heads than query heads are supported. ``causal``: a causal mask is supported. ``lengths`` are the
    only supported sequence lengths; empty: any. ``gpu_dtypes`` are the dtypes supported on a GPU, where they differ
    from ``dtypes``. ``products`` returns the data types of QK and PV where they differ from the tensors'. ``sparsity``
    prepares a call that returns the share of scores that the implementation does not compute.
    """

    prepare: Callable[[AttentionConfig], Forward]
    family: str | Callable[[AttentionConfig], str] = ""
    heads_first: bool = True
    rocm_family: str = ""
    package: str = ""
    distribution: str = ""
    version: str = ""
    install: str = ""
    missing_dependency: Callable[[], str | None] = lambda: None
    on_cpu: bool = False
    has_backward: bool = True
    grouped: bool = True
    causal: bool = True
    bottom_right: bool = False
    lengths: tuple[int, ...] = ()
    dtypes: tuple[str, ...] = tuple(attention_config.DTYPES)
    gpu_dtypes: tuple[str, ...] = ()
    max_head_dim: int | None = None
    least_sm: tuple[int, int] = (0, 0)
    products: Callable[[], tuple[str, str] | None] = lambda: None
    sparsity: Callable[[AttentionConfig], Callable[[Tensor, Tensor, Tensor], float]] | None = None

    def view(self, tensor: Tensor) -> Tensor:
        """Swap between ``(batch, seqlen, heads, head_dim)`` and the implementation's layout, without a copy."""
        return tensor.transpose(1, 2) if self.heads_first else tensor
