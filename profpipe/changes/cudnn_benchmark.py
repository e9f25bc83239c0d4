"""cuDNN tries its convolutions at the first call of each shape, and takes the fastest."""

ALTERS_NUMERICS = False
CODE = "torch.backends.cudnn.benchmark = True"

PARTS = ("conv",)


def applies(uses):  # type: ignore[no-untyped-def]
    if uses["device"] == "cpu" or not uses["convolutions"]:
        return "the model has no convolution on a GPU"
    if uses["is_deterministic"]:
        return "the program asks for deterministic algorithms"
    return "the program has it" if uses["benchmark"] else ""


def apply(torch):  # type: ignore[no-untyped-def]
    switch(torch, True)


def switch(torch, is_on):  # type: ignore[no-untyped-def]
    torch.backends.cudnn.benchmark = is_on
