"""DistributedDataParallel keeps gradients in its buckets, and takes its graph for constant."""

from profpipe.hook import changes

ALTERS_NUMERICS = False
CODE = "DistributedDataParallel(..., gradient_as_bucket_view=True, static_graph=True)"


def applies(uses):  # type: ignore[no-untyped-def]
    return "" if uses["is_distributed"] else "the model is not a DistributedDataParallel"


def apply(torch):  # type: ignore[no-untyped-def]
    from torch.nn.parallel import DistributedDataParallel

    more = {"gradient_as_bucket_view": True, "static_graph": True}
    changes.with_arguments(DistributedDataParallel, lambda given: more)
