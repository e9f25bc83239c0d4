"""torch computes with a thread for each core."""

import os

ALTERS_NUMERICS = False
CODE = "remove torch.set_num_threads(1) and OMP_NUM_THREADS=1"
VARIABLES = {"OMP_NUM_THREADS": str(len(os.sched_getaffinity(0)))}


def apply(torch):  # type: ignore[no-untyped-def]
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    torch.set_num_threads = lambda *args, **kwargs: None
