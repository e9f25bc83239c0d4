"""cuDNN computes scaled dot product attention where it can, else the memory-efficient kernels."""

ALTERS_NUMERICS = False
CODE = "with sdpa_kernel([SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]): ..."
PARTS = ("attention",)


def applies(uses):  # type: ignore[no-untyped-def]
    return "the model is on a CPU" if uses["device"] == "cpu" else ""


def apply(torch):  # type: ignore[no-untyped-def]
    torch.backends.cuda.enable_cudnn_sdp(True)
    switch(torch, True)


def switch(torch, is_on):  # type: ignore[no-untyped-def]
    torch.backends.cuda.enable_flash_sdp(not is_on)
