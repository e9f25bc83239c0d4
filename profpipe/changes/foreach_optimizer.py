"""Optimizers update all parameters by one call for each operation."""

from profpipe.hook import changes

ALTERS_NUMERICS = False
CODE = "foreach=True, an argument of the optimizer"

KIND, PARTS, AT = "optimizer", ("optimizer", "elementwise", "idle", "operators", "host code"), "optimizers"


def applies(uses):  # type: ignore[no-untyped-def]
    return changes.explain_optimizers(uses, lambda optimizer: optimizer["fused"] or optimizer["foreach"])


def apply(torch):  # type: ignore[no-untyped-def]
    for kind in (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD):
        changes.with_arguments(kind, lambda given: {"foreach": True, "fused": None})
