"""TF32: products of float32 matrices on tensor cores, with a mantissa of 10 bits."""

ALTERS_NUMERICS = True
CODE = 'torch.set_float32_matmul_precision("high"); torch.backends.cudnn.allow_tf32 = True'

KIND, PARTS = "precision", ("gemm", "conv")


def applies(uses):  # type: ignore[no-untyped-def]
    if uses["device"] == "cpu":
        return "the model is on a CPU"
    if uses["is_autocast"] or "float32" not in uses["types"]:
        return "the model computes in 16 bits"
    return "the program has it" if uses["precision"] != "highest" else ""


def apply(torch):  # type: ignore[no-untyped-def]
    switch(torch, True)


def switch(torch, is_on):  # type: ignore[no-untyped-def]
    torch.set_float32_matmul_precision("high" if is_on else "highest")
    torch.backends.cudnn.allow_tf32 = is_on
