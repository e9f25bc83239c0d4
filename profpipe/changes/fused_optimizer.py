"""Adam, AdamW and SGD as one fused kernel for all parameters."""

from profpipe.hook import changes

ALTERS_NUMERICS = False
CODE = "fused=True, an argument of the optimizer"

KIND, PARTS, AT = "optimizer", ("optimizer", "elementwise", "idle", "operators", "host code"), "optimizers"


def applies(uses):  # type: ignore[no-untyped-def]
    return changes.explain_optimizers(uses, lambda optimizer: optimizer["fused"])


def apply(torch):  # type: ignore[no-untyped-def]
    for kind in (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD):
        changes.with_arguments(kind, lambda given: {"fused": True, "foreach": None})
