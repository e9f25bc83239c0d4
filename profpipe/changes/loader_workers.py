"""The DataLoader loads ahead: a worker for each two cores, at least four, which stay, into pinned memory."""

import os

from profpipe.hook import changes

ALTERS_NUMERICS = False
CODE = (
    "DataLoader(..., num_workers=max(4, len(os.sched_getaffinity(0)) // 2), persistent_workers=True, pin_memory=True)"
)
PARTS, AT = ("DataLoader",), "loaders"


def applies(uses):  # type: ignore[no-untyped-def]
    if not uses["loaders"]:
        return "the program has no DataLoader"
    is_iterable = any(loader["is_iterable"] for loader in uses["loaders"])
    return "each worker would yield all items of an IterableDataset" if is_iterable else ""


def apply(torch):  # type: ignore[no-untyped-def]
    from torch.utils.data import DataLoader

    def arguments(given):  # type: ignore[no-untyped-def]
        workers = max(given.get("num_workers", 0), len(os.sched_getaffinity(0)) // 2, 4)
        return {"num_workers": workers, "persistent_workers": True, "pin_memory": torch.cuda.is_available()}

    changes.with_arguments(DataLoader, arguments)
