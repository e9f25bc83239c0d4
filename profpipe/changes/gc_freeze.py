"""The garbage collector leaves out all objects that the set-up made."""

import gc

from profpipe.hook import changes

ALTERS_NUMERICS = False
CODE = "gc.collect(); gc.freeze()  # after the set-up"

PARTS = ("garbage collection",)


def apply(torch):  # type: ignore[no-untyped-def]
    def freeze(module):  # type: ignore[no-untyped-def]
        gc.collect()
        gc.freeze()

    changes.at_first_call(torch, freeze)


def switch(torch, is_on):  # type: ignore[no-untyped-def]
    (gc.freeze if is_on else gc.unfreeze)()
