"""How often verdicts on pairs of processes are wrong, and how often they find a true change, by simulation.

    python benchmarks/verdicts.py [--repetitions 4000] [--seed 1]

Needs no GPU. The median time of a process is drawn as: the time of the code, times the effect of the process, times
drift, times what is left of sampling inside the process. Effects of processes are normal, bimodal (memory placed in one
of two ways) or heavy-tailed (Student's t with 3 degrees of freedom). Drift adds 1 % from the first to the last process.

First table: how often rules call two sides different that run the same code. Second table: the verdicts on 8 pairs
where the code of B takes longer. docs/verdicts.md shows both.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from profpipe.analysis import verdict  # noqa: E402
from profpipe.results.schema import Verdict  # noqa: E402

#: The standard deviation of the median of one process, by its samples alone.
SAMPLING = 0.001
DRIFT = 0.01
PAIRS = 8
CHANGES = (0.0, 0.01, 0.02, 0.03, 0.05)

Effect = Callable[[random.Random], float]


def normal(sd: float) -> Effect:
    return lambda rng: rng.gauss(0.0, sd)


def bimodal(sd: float) -> Effect:
    """Two levels, equally likely, with some spread around each. Their standard deviation is ``sd``."""
    level, around = 0.95 * sd, math.sqrt(1 - 0.95**2) * sd
    return lambda rng: rng.choice((-level, level)) + rng.gauss(0.0, around)


def heavy_tailed(sd: float) -> Effect:
    """Student's t with 3 degrees of freedom, whose variance is 3."""

    def draw(rng: random.Random) -> float:
        chi_square = sum(rng.gauss(0.0, 1.0) ** 2 for _ in range(3))
        return sd / math.sqrt(3) * rng.gauss(0.0, 1.0) / math.sqrt(chi_square / 3)

    return draw


EFFECTS = {
    f"{name}, sd {100 * sd:g} %": effect(sd)
    for name, effect in (("normal", normal), ("bimodal", bimodal), ("heavy-tailed", heavy_tailed))
    for sd in (0.005, 0.01)
}


@dataclass(frozen=True)
class Machine:
    """A machine on which processes of one program vary by ``effect``, and all of them by ``drift`` over a session."""

    effect: Effect
    drift: float = 0.0

    def log_times(self, sides: Sequence[bool], change: float, rng: random.Random) -> list[float]:
        """Return the log of the median time of each process in their order; True is a process of B."""
        step = math.log1p(self.drift) / max(1, len(sides) - 1)
        return [
            self.effect(rng) + rng.gauss(0.0, SAMPLING) + i * step + (math.log1p(change) if is_b else 0.0)
            for i, is_b in enumerate(sides)
        ]


def log_ratios(machine: Machine, pairs: int, change: float, rng: random.Random) -> list[float]:
    """Return log(B / A) of each pair; which side of a pair comes first is drawn."""
    firsts = [rng.random() < 0.5 for _ in range(pairs)]
    times = machine.log_times([side for first in firsts for side in (first, not first)], change, rng)
    return [
        times[2 * i] - times[2 * i + 1] if first else times[2 * i + 1] - times[2 * i] for i, first in enumerate(firsts)
    ]


# --- rules that use fewer processes, or other orders -----------------------------------------------------------------


def one_process_a_side(machine: Machine, rng: random.Random) -> bool:
    """The 95 % intervals of one process each, from their own samples, do not overlap."""
    a, b = machine.log_times([False, True], 0.0, rng)
    return abs(a - b) > 2 * 1.96 * SAMPLING


def three_pairs_agree(machine: Machine, rng: random.Random) -> bool:
    return len({ratio > 0 for ratio in log_ratios(machine, 3, 0.0, rng)}) == 1


def blocks_of_ten(machine: Machine, rng: random.Random) -> bool:
    """Ten processes of A, then ten of B; the U test of Mann and Whitney at 5 %, by its normal approximation."""
    times = machine.log_times([False] * 10 + [True] * 10, 0.0, rng)
    u = sum(b > a for a in times[:10] for b in times[10:])
    z = (abs(u - 50) - 0.5) / math.sqrt(10 * 10 * 21 / 12)
    return 2 * (1 - statistics.NormalDist().cdf(z)) <= 0.05


def eight_pairs(machine: Machine, rng: random.Random) -> bool:
    return verdict.judge(log_ratios(machine, PAIRS, 0.0, rng)).verdict in (Verdict.FASTER, Verdict.SLOWER)


RULES = {
    "one process a side": one_process_a_side,
    "three pairs, unanimous": three_pairs_agree,
    "two blocks of ten, U test": blocks_of_ten,
    f"{PAIRS} interleaved pairs": eight_pairs,
}


def false_rate(rule: Callable[[Machine, random.Random], bool], machine: Machine, repetitions: int, seed: int) -> float:
    """Return the share of repetitions in which ``rule`` calls the same code different."""
    rng = random.Random(seed)
    return sum(rule(machine, rng) for _ in range(repetitions)) / repetitions


def verdict_shares(machine: Machine, change: float, repetitions: int, seed: int) -> dict[Verdict, float]:
    """Return the share of each verdict after ``PAIRS`` pairs, where B takes ``change`` longer than A."""
    rng = random.Random(seed)
    found = [verdict.judge(log_ratios(machine, PAIRS, change, rng)).verdict for _ in range(repetitions)]
    return {each: found.count(each) / repetitions for each in Verdict}


# --- output ----------------------------------------------------------------------------------------------------------


def machines() -> Iterator[tuple[str, Machine]]:
    for name, effect in EFFECTS.items():
        yield name, Machine(effect)
        yield f"{name}, drift {100 * DRIFT:g} %", Machine(effect, DRIFT)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    print(f"{args.repetitions} repetitions, seed {args.seed}\n\nFalse differences in %, the same code on both sides\n")
    print(f"| processes vary | {' | '.join(RULES)} |\n| --- |{' ---: |' * len(RULES)}")
    for name, machine in machines():
        rates = (100 * false_rate(rule, machine, args.repetitions, args.seed) for rule in RULES.values())
        print(f"| {name} | {' | '.join(f'{rate:.2f}' for rate in rates)} |")
    print(f"\nVerdicts on {PAIRS} interleaved pairs in %, by how much longer B takes\n")
    print(f"| processes vary | B takes | {' | '.join(Verdict)} |\n| --- | ---: |{' ---: |' * len(Verdict)}")
    for name, machine in machines():
        # Drift moves both sides of a pair alike, as the first table shows.
        for change in CHANGES if not machine.drift else ():
            shares = verdict_shares(machine, change, args.repetitions, args.seed)
            print(f"| {name} | +{100 * change:g} % | {' | '.join(f'{100 * s:.1f}' for s in shares.values())} |")


if __name__ == "__main__":
    main()
