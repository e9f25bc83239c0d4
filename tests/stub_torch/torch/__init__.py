"""A torch that is imported in milliseconds and computes nothing, for tests of what profpipe does around a program.

It has what the start-up hook watches and what small programs call: modules, optimizers with hooks, and a CUDA that is
not there. Tensors have a shape. ``make nightly`` runs the same tests with the real torch.
"""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

from torch import nn, optim  # noqa: F401
from torch.tensors import Tensor, ones, randn, zeros  # noqa: F401

__version__ = "2.13.0"

long, float32 = "int64", "float32"
version = SimpleNamespace(cuda=None, hip=None)
compiler = SimpleNamespace(is_compiling=lambda: False)
distributed = SimpleNamespace(is_available=lambda: False)
autograd = SimpleNamespace(_profiler_enabled=lambda: False)
backends = SimpleNamespace(mps=SimpleNamespace(is_available=lambda: False))
#: Functions of it are replaced by programs that pretend to have a GPU.
cuda = SimpleNamespace(
    is_available=lambda: False, is_initialized=lambda: False, device_count=lambda: 0, _lazy_init=lambda: None
)  # fmt: skip
_modes = [True]


@contextlib.contextmanager
def no_grad():
    _modes.append(False)
    yield
    _modes.pop()


inference_mode = no_grad


def is_grad_enabled() -> bool:
    return _modes[-1]


def manual_seed(seed: int) -> None:
    """Accept a seed: there are no random numbers."""


def set_num_threads(number: int) -> None:
    """Accept a number: there are no threads."""


def relu(tensor: Tensor) -> Tensor:
    return tensor


tanh = zeros_like = relu
