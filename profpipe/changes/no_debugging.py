"""Switches for debugging are off: blocking launches, and the detection of anomalies."""

import os

ALTERS_NUMERICS = False
CODE = "unset CUDA_LAUNCH_BLOCKING; remove torch.autograd.set_detect_anomaly(True)"
VARIABLES = {"CUDA_LAUNCH_BLOCKING": "0"}
IS_LIKELY = True


def applies(uses):  # type: ignore[no-untyped-def]
    return "" if uses["switches"] else "no such switch is on"


def apply(torch):  # type: ignore[no-untyped-def]
    # The program may have set it before it imported torch. CUDA reads it later.
    os.environ["CUDA_LAUNCH_BLOCKING"] = "0"
    torch.set_anomaly_enabled = lambda *args, **kwargs: None
