"""The optimizers, as torch.optim has them: without the module that defines them."""

from torch.optim.optimizer import SGD, Adam, AdamW, Optimizer  # noqa: F401

del optimizer  # noqa: F821
