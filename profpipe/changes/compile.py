"""torch.compile of the outermost module."""

from profpipe.hook import changes

ALTERS_NUMERICS = False
CODE = "model.compile()"


def apply(torch):  # type: ignore[no-untyped-def]
    changes.at_first_call(torch, lambda module: module.compile())
