"""The DataLoader loads ahead: workers for half of the cores, which stay, and pinned memory where there is a GPU."""

import os

from profpipe.hook import changes

ALTERS_NUMERICS = False
CODE = "DataLoader(..., num_workers=N, persistent_workers=True, pin_memory=True)"


def apply(torch):  # type: ignore[no-untyped-def]
    from torch.utils.data import DataLoader

    def arguments(given):  # type: ignore[no-untyped-def]
        workers = max(given.get("num_workers", 0), len(os.sched_getaffinity(0)) // 2, 1)
        return {"num_workers": workers, "persistent_workers": True, "pin_memory": torch.cuda.is_available()}

    changes.with_arguments(DataLoader, arguments)
