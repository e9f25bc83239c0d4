"""TF32: products of float32 matrices on tensor cores, with a mantissa of 10 bits."""

ALTERS_NUMERICS = True
CODE = 'torch.set_float32_matmul_precision("high"); torch.backends.cudnn.allow_tf32 = True'


def apply(torch):  # type: ignore[no-untyped-def]
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
