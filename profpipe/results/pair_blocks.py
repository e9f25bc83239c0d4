"""The blocks of pairs of an `ab` run: which pair belongs to which, and after how many further pairs a case is judged.

Pairs have numbers from 1. The first block has the pairs that the user asks for. The block of a gate has as many, and
measures the cases that would fail it. The further pairs come last, and measure the cases that are undecided.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from profpipe.results.manifest import PairsEntry


class PairBlock(Enum):
    FIRST = "first"
    GATE = "gate"
    FURTHER = "further"
    #: Pairs of processes under a profiler, after all others. They have the numbers of the first pairs.
    CAPTURES = "captures"


#: The first number of further pairs after which a case is judged: below it the test cannot reject at the level used.
FIRST_LOOK: Final = 10
#: A case that is still undecided is judged again after so many more.
LOOK_EVERY: Final = 5
#: The spread of so many first pairs chooses how long the later ones are.
TRIAL: Final = 4
#: Visits to a case in each process of a further or a longer pair. A visit builds the case anew.
VISITS: Final = 8
#: Further pairs that a page offers for cases that are undecided.
OFFERED: Final = 20


def block_of(pair: int, settings: PairsEntry) -> PairBlock:
    """Return the block of the pair with this number."""
    if pair <= settings.pairs:
        return PairBlock.FIRST
    return PairBlock.GATE if pair < first_further(settings) else PairBlock.FURTHER


def is_trial(pair: int, workload: str, settings: PairsEntry) -> bool:
    """Return True for a pair that chose the length of the later pairs, and is no part of a verdict."""
    return pair <= TRIAL and workload in settings.longer


def is_long(pair: int, workload: str, settings: PairsEntry) -> bool:
    """Return True if a process of the pair visits each case several times."""
    is_longer = workload in settings.longer and pair > TRIAL
    return is_longer or block_of(pair, settings) is PairBlock.FURTHER


def count_visits(rounds: int, repeats: int) -> int:
    """Return the visits to a case in each process of a long pair."""
    return max(rounds, min(VISITS, repeats))


def first_further(settings: PairsEntry) -> int:
    """Return the number of the first further pair. Without a gate the further pairs follow the first block."""
    return settings.pairs * (1 if settings.gate is None else 2) + 1


def looks(most: int) -> range:
    """Return the numbers of further pairs, at most ``most``, after which the undecided cases are judged."""
    return range(FIRST_LOOK, most + 1, LOOK_EVERY)
