"""torch.compile of the outermost module, with CUDA graphs."""

from profpipe.hook import changes

ALTERS_NUMERICS = False
CODE = 'model.compile(mode="reduce-overhead")'
KIND, AT = "compile", "before"


def applies(uses):  # type: ignore[no-untyped-def]
    if uses["device"] == "cpu":
        return "the model is on a CPU"
    if uses.get("keeps_outputs"):
        return "the program keeps outputs, which the next call would overwrite"
    return "the program compiles the model" if uses["is_compiled"] else ""


def apply(torch):  # type: ignore[no-untyped-def]
    changes.at_first_call(torch, lambda module: module.compile(mode="reduce-overhead"))
