"""Weights of convolutions lie in memory with their channels last."""

from profpipe.hook import changes

ALTERS_NUMERICS = False
CODE = "model = model.to(memory_format=torch.channels_last)"

PARTS, AT = ("conv", "copy", "norm", "operators"), "before"


def applies(uses):  # type: ignore[no-untyped-def]
    return "" if "Conv2d" in uses["convolutions"] else "the model has no Conv2d"


def apply(torch):  # type: ignore[no-untyped-def]
    changes.at_first_call(torch, lambda module: module.to(memory_format=torch.channels_last))
