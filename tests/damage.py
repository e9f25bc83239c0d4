"""Files as a bad disk, an interrupted copy or an editor leaves them."""

from __future__ import annotations

import random


def mutated(data: bytes, dice: random.Random, bytes_set: bytes, ends: float) -> bytes:
    """``data`` with bytes set to some of ``bytes_set``, parts cut out or repeated, or, so often, its end cut off."""
    changed = bytearray(data)
    for _ in range(dice.choice([1, 1, 2, 8])):
        at, length = dice.randrange(max(len(changed), 1)), dice.choice([1, 1, 4, 200])
        kind = dice.choice(["set", "cut", "repeat", "end"])
        if kind == "set":
            changed[at : at + 1] = bytes([dice.choice(bytes_set)])
        elif kind == "cut":
            del changed[at : at + length]
        elif kind == "repeat":
            changed[at:at] = changed[at : at + length]
        elif dice.random() < ends:
            del changed[max(at, 16) :]
    return bytes(changed)
