"""torch computes with a thread for each core."""

import os

ALTERS_NUMERICS = False
CODE = "remove what limits the threads: torch.set_num_threads(1), or OMP_NUM_THREADS=1"
VARIABLES = {"OMP_NUM_THREADS": str(len(os.sched_getaffinity(0)))}
IS_LIKELY = True


def applies(uses):  # type: ignore[no-untyped-def]
    if uses["device"] != "cpu":
        return "the model is on a GPU"
    return "" if uses["threads"] < uses["cores"] else f"torch has {uses['threads']} threads for {uses['cores']} cores"


def apply(torch):  # type: ignore[no-untyped-def]
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    torch.set_num_threads = lambda *args, **kwargs: None
