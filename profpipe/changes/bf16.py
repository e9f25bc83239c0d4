"""bf16 autocast round the outermost module; its outputs are float32 again, as the loss expects them."""

from profpipe.hook import changes

ALTERS_NUMERICS = True
CODE = "with torch.autocast(device, torch.bfloat16): output = model(input).float()"

KIND, PARTS, AT = "precision", ("gemm", "conv", "attention", "elementwise", "norm"), "module"


def applies(uses):  # type: ignore[no-untyped-def]
    if uses["device"] == "cpu":
        return "the model is on a CPU"
    if uses["is_autocast"]:
        return "the program has autocast"
    return "" if "float32" in uses["types"] else f"the parameters are {' and '.join(uses['types'])}"


_IS_ON = [True]


def switch(torch, is_on):  # type: ignore[no-untyped-def]
    _IS_ON[0] = is_on


def apply(torch):  # type: ignore[no-untyped-def]
    def cast(module):  # type: ignore[no-untyped-def]
        forward, device = module.forward, changes.device_of(module)
        tree_map = torch.utils._pytree.tree_map

        def to_float32(value):  # type: ignore[no-untyped-def]
            is_cast = isinstance(value, torch.Tensor) and value.dtype is torch.bfloat16
            return value.float() if is_cast else value

        def forward_in_bf16(*args, **kwargs):  # type: ignore[no-untyped-def]
            if not _IS_ON[0]:
                return forward(*args, **kwargs)
            with torch.autocast(device, torch.bfloat16):
                output = forward(*args, **kwargs)
            return tree_map(to_float32, output)

        module.forward = forward_in_bf16

    changes.at_first_call(torch, cast)
