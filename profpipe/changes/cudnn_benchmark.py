"""cuDNN tries its convolutions at the first call of each shape, and takes the fastest."""

ALTERS_NUMERICS = False
CODE = "torch.backends.cudnn.benchmark = True"


def apply(torch):  # type: ignore[no-untyped-def]
    torch.backends.cudnn.benchmark = True
