"""torch.compile of the outermost module."""

from profpipe.hook import changes

ALTERS_NUMERICS = False
CODE = "model.compile()"

KIND, AT = "compile", "before"


def applies(uses):  # type: ignore[no-untyped-def]
    return "the program compiles the model" if uses["is_compiled"] else ""


def apply(torch):  # type: ignore[no-untyped-def]
    changes.at_first_call(torch, lambda module: module.compile())
