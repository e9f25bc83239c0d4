"""The allocator of torch grows its segments instead of adding new ones."""

import os

ALTERS_NUMERICS = False
CODE = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"

PARTS = ("memory allocation",)


def applies(uses):  # type: ignore[no-untyped-def]
    return "the model is on a CPU" if uses["device"] == "cpu" else ""


def apply(torch):  # type: ignore[no-untyped-def]
    # The allocator reads it when CUDA begins. Other settings of the program stay.
    given = os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "")
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = ",".join(filter(None, [given, "expandable_segments:True"]))
